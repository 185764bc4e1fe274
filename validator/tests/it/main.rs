//! The validator as others meet it: by its sockets, by its store, and by a real chain.

#[cfg(test)]
mod chain;
#[cfg(test)]
mod sockets;
#[cfg(test)]
mod store;

//! Sockets and sessions over real connections.

#[cfg(test)]
mod sessions;
#[cfg(test)]
mod sockets;
#[cfg(test)]
mod support;

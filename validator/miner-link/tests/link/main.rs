//! Channels over real sockets.

#[cfg(test)]
mod sessions;

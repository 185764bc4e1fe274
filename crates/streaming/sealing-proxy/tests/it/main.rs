//! The data path over real sockets, in front of engines that behave as they like.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what these helpers cannot do is the test's failure, on its line"
)]

mod door;
mod engines;
mod forgeries;
mod rig;
mod stream;
mod websocket;

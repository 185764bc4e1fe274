//! The data path over real sockets, in front of engines that behave as they like.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a helper that fails is a failure of its test"
)]

mod engines;
mod forgeries;
mod listener;
mod rig;
mod seeds_and_tokens;
mod stream;
mod usage;
mod websocket;

//! The pallets of the local chain: the interface of Bittensor's `SubtensorModule` and of the pallets that its clients
//! read beside it, with the checks that decide what a client may do. The README lists the absences.

#![allow(
    clippy::expect_used,
    clippy::too_many_arguments,
    reason = "FRAME's macros expand to `expect`, and a call's arguments are the chain's interface"
)]

pub mod apis;
pub mod aura;
pub mod beacon;
pub mod commitments;
pub mod subtensor;

pub use muster_devchain_types as types;
pub use types::AccountId;

//! The runtime as its clients meet it: every check of every call, by the names of the errors; epochs; what runtime APIs
//! show.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "clippy knows tests, not their helpers; these may fail by panicking too"
)]

mod batches;
mod commit_reveal;
mod commitments;
mod epochs;
mod evm;
mod interface;
mod pay;
mod pool;
mod registration;
mod replacing;
mod serving;
mod staking;
mod support;
mod timelocked;
mod views;
mod weights;

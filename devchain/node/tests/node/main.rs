//! The node as its clients meet it: over real websockets on free ports, with blocks sealed on command; and the program
//! as people start it.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "clippy knows tests, not their helpers; these may fail by panicking too"
)]

mod faults;
mod history;
mod limits;
mod persistence;
mod pool;
mod program;
mod rpc;
mod spec;
mod subscriptions;
mod support;
mod transactions;

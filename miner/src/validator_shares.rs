//! The part of a miner's executors that one validator may keep, and the time for which it may keep more without paying.
//! Pure.

pub mod shares;
pub mod unpaid;

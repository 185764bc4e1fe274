//! The status of a validator and of a miner, as operators' pages and `muster top` read it.
//!
//! The miner writes [`miner::MinerStatus`] as it is. The validator's status page is older than this crate:
//! [`validator`] and [`audits`] read those of its fields that are shown, and an unknown or missing field is no error,
//! so that a terminal of one release can look at a validator of another.

pub mod audits;
pub mod miner;
pub mod miner_earnings;
pub mod validator;

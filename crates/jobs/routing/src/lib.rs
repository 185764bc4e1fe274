//! What a validator decides about a job, all of it pure: whether it is taken ([`admission`]), which miner gets it ([`mod@route`]),
//! what follows the end of an attempt ([`retry`]), and what such an end leaves on the miner's record ([`record`]).
//!
//! No clock, no store, no randomness: the same facts give the same answer for everybody. What is known of the miners is
//! kept by a [`MinerLedger`], which is made anew from the store after a restart.

pub mod admission;
pub mod cache_keys;
mod exclusion;
pub mod excuse;
pub mod ledger;
pub mod record;
pub mod retry;
pub mod route;
#[cfg(test)]
mod testing;

pub use cache_keys::CacheKey;
pub use exclusion::Exclusion;
pub use ledger::{LedgerWindows, MinerLedger};
pub use record::{AttemptMark, mark_attempt};
pub use route::{
    Candidate, ExcludedMiner, JobRequirements, MinerStats, RoutableNeuron, Route, RouteCost, RouteDecision,
    RoutingPolicy, route,
};

//! A validator's decisions about a job, all of them pure: admission ([`admission`]), the choice of a miner
//! ([`mod@route`]), the step after an attempt ([`retry`]), and the mark that an attempt leaves on its miner's record
//! ([`record`]).
//!
//! No clock, no store, no randomness: the same facts give the same answer everywhere. A [`MinerLedger`] holds the
//! knowledge about miners; it is rebuilt from the store after a restart.

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

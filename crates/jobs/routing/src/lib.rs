//! A validator's decisions about a job, all of them pure: admission ([`admission`]), the budgets of accounts behind a
//! facilitator ([`budget`]), whether a miner has deposited enough ([`collateral`]), the choice of a miner
//! ([`mod@route`]), whether a job without a miner waits or is refused ([`availability`]), the miners that are not asked
//! again ([`earlier_attempts`]), the step after an attempt ([`retry`]), the mark that an attempt leaves on its miner's
//! record ([`attempt_mark`]), and the trials of miners under suspicion ([`trials`]).
//!
//! No clock, no store, no randomness: the same facts give the same answer everywhere. A [`MinerLedger`] holds the
//! knowledge about miners; it is rebuilt from the store after a restart.

pub mod admission;
pub mod attempt_mark;
pub mod availability;
pub mod broken_images;
pub mod budget;
pub mod busy_excuse;
pub mod cache_keys;
pub mod collateral;
pub mod earlier_attempts;
mod exclusion;
pub mod miner_ledger;
mod miner_stats;
mod newcomers;
pub mod retry;
pub mod route;
pub mod slot_excuse;
pub mod start_claims;
#[cfg(test)]
mod testing;
pub mod trials;

pub use attempt_mark::{AttemptMark, MarkEvidence, MarkedJob, mark_attempt};
pub use cache_keys::CacheKey;
pub use collateral::{CollateralReading, CollateralRule, CollateralVerdict, Deposit, judge_collateral};
pub use exclusion::Exclusion;
pub use miner_ledger::{LedgerWindows, MinerLedger};
pub use miner_stats::{LengthLimit, MinerStats, RoutableNeuron};
pub use route::{
    Candidate, ExcludedMiner, JobRequirements, Route, RouteCost, RouteDecision, RoutingPolicy, note_proven,
    route,
};

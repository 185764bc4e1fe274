//! From a snapshot of one cycle to scores and weights: a pure function over integers that any party can repeat.
//!
//! [`score_cycle`] is that function. It counts the finished receipts (`counted_work`: one owner of both parties,
//! times, the `allowance` of their validators, the `occupancy` of the proven executors), agrees on the capacity
//! that validators state (`agreed_capacity`, from observations as `proven_capacity` judges them), divides each
//! class's weight by work and capacity in one formula (`class_points`), splits each coldkey's points over its hotkeys
//! (`coldkey_split`), and spreads them over twenty cycles (`vesting`). [`to_u16`] makes the weights that the chain
//! accepts. Where nobody is paid, the earlier weights stand, without those of neurons that may not keep theirs
//! (`weight_renewal`).
//!
//! The unit of work is the executor-microsecond: a millionth of an executor-second, which is the unit of a receipt's
//! `score_str`. The unit of capacity is a thousandth of an executor. A sealed session is work like any other: its
//! receipt pays the time that its proven tokens take at the rated speed of its model.
//!
//! A receipt that does not count is dropped with a reason and never stops the others. Every neuron without
//! a weight gets a reason.

mod agreed_capacity;
mod allowance;
mod block_ranges;
mod block_worth;
mod burned_rao;
pub mod capacity_statements;
mod class_points;
mod coldkey_split;
mod contradictions;
mod counted_work;
mod drop_reason;
mod explanation;
mod key_map;
mod main_hotkeys;
mod normalize;
mod occupancy;
mod parties;
mod proven_capacity;
mod receipt_blocks;
mod score_cycle;
mod score_terms;
mod scores;
mod snapshot;
mod snapshot_pieces;
mod snapshot_rows;
#[cfg(test)]
mod testing;
mod vesting;
mod weight_list;
mod weight_renewal;
mod zero_reasons;

pub use agreed_capacity::{
    AgreedCapacity, CapacityInputs, CapacityRow, CapacityStatement, GradedExecutors, is_probed_by,
    proven_executors, stated_kinds,
};
pub use allowance::{AllowanceInputs, LOOKBACK_BLOCKS, SpentBlocks, unspend};
pub use block_worth::{EpochFacts, MULTIPLIER};
pub use burned_rao::credit_burns;
pub use class_points::{CAPACITY_PER_MILLE, MAX_CLASS_WEIGHT, POINTS, WHOLE_EXECUTOR};
pub use coldkey_split::MainHotkey;
pub use contradictions::silence_contradictions;
pub use counted_work::CountedAttempts;
pub use drop_reason::DropReason;
pub use explanation::{ClassExplanation, LostWork, MinerExplanation, StandingTerms, explain};
pub use main_hotkeys::{NamedMain, agree_main_hotkeys};
pub use normalize::to_u16;
pub use proven_capacity::{
    ExcuseState, MAX_EXECUTORS, OBSERVATIONS, Observation, ObservationKind, ProvenCapacity, executor_credit,
    proven_by, settle_excuse,
};
pub use receipt_blocks::{AllowanceBook, PayableAttempt};
pub use score_cycle::{score_cycle, score_with_attempts};
pub use scores::{MAX_LISTED, Score, Scores};
pub use snapshot::{
    QualityFactor, SNAPSHOT_FORMAT, ScoredSpan, ScoringRules, ScoringSnapshot, SnapshotError,
};
pub use snapshot_pieces::SnapshotPieces;
pub use snapshot_rows::{DeferredWork, Neuron, OnchainWeight, PaidReceipt, ProvenExecutors};
pub use vesting::{Conviction, PastCycle, PastPoints, VESTING_CYCLES};
pub use weight_list::{follow_uids, weights_of, weights_of_onchain};
pub use weight_renewal::{BurnKeys, Renewal, renew_after_departures};
pub use zero_reasons::{ZeroReason, ZeroWeight};

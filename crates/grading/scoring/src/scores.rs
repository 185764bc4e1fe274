//! The scores of a cycle, as they are stored with it.

use muster_protocol::{AttemptId, Hotkey, MinerKey, Uid};
use serde::{Deserialize, Serialize};

use crate::DropReason;
use crate::allowance::SpentBlocks;
use crate::snapshot_rows::{DeferredWork, OnchainWeight};
use crate::zero_reasons::ZeroWeight;

/// Dropped receipts that are listed; further ones are counted.
pub const MAX_LISTED: usize = 1_000;

/// The earnings of one miner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Score {
    /// The miner's number in the subnet.
    pub uid: Uid,
    /// The miner's hotkey.
    pub miner: MinerKey,
    /// The key that owns the neuron; none in scores of an earlier release.
    #[serde(default)]
    pub coldkey: Option<Hotkey>,
    /// The block in which the neuron got its uid; 0 if it is not known.
    #[serde(default)]
    pub registered: u64,
    /// Executor-microseconds of its receipts that count.
    pub micros: u64,
    /// The credit of its proven executors of all classes, in thousandths of an executor.
    #[serde(default)]
    pub credit: u64,
    /// The points of this cycle, after the split of its coldkey's; in scores of an early release, the same as `micros`.
    #[serde(default)]
    pub points: u64,
    /// The points that are paid with this cycle; none in scores of an earlier release, which paid `points` at once.
    #[serde(default)]
    pub vested: Option<u64>,
}

impl Score {
    /// The points that the weights rest on.
    pub fn paid_points(&self) -> u64 {
        self.vested.unwrap_or(self.points)
    }
}

/// The result of scoring: every receipt counts towards a score or is among the dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scores {
    /// The scores by uid, of miners that earned anything.
    pub scores: Vec<Score>,
    /// The first dropped receipts, at most [`MAX_LISTED`].
    pub dropped: Vec<(AttemptId, DropReason)>,
    /// Number of dropped receipts that are not listed.
    #[serde(default)]
    pub more_dropped: u64,
    /// Every neuron without a weight, by uid, with the reason.
    #[serde(default)]
    pub zeros: Vec<ZeroWeight>,
    /// Work that the next cycles count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deferred: Vec<DeferredWork>,
    /// Blocks that receipts have named, for the next cycles.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spent: Vec<SpentBlocks>,
    /// In a cycle that paid nobody, the weights that stand after it by uid: the earlier ones, or those that it sets
    /// instead.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub standing: Vec<OnchainWeight>,
    /// The uids whose weights stand although they are to be burned: no neuron of the subnet burns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unburned: Vec<Uid>,
}

impl Scores {
    pub(crate) fn drop_one(&mut self, attempt: AttemptId, reason: DropReason) {
        if self.dropped.len() < MAX_LISTED {
            self.dropped.push((attempt, reason));
        } else {
            self.more_dropped = self.more_dropped.saturating_add(1);
        }
    }
}

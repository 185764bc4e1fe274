//! The snapshot of a cycle: all inputs of its scores and weights.
//!
//! A snapshot is stored with its cycle and named by the SHA-256 of its canonical bytes, so anybody who has it can do
//! the sum again. `docs/scoring-snapshot.md` describes the format for other programs.

use std::collections::{BTreeMap, BTreeSet};

use muster_protocol::{Digest, ExecutorClass, Hotkey, MinerKey, Timestamp, ValidatorKey};
use serde::{Deserialize, Serialize};

use crate::agreed_capacity::CapacityInputs;
use crate::allowance::AllowanceInputs;
use crate::class_points::CAPACITY_PER_MILLE;
use crate::coldkey_split::MainHotkey;
use crate::snapshot_rows::{DeferredWork, Neuron, OnchainWeight, PaidReceipt};
use crate::vesting::{Conviction, PastCycle};

/// The format and version of a snapshot. It changes with every change of the formulas or their constants.
pub const SNAPSHOT_FORMAT: &str = "muster/scoring-snapshot/3";

/// The format before the weights that stand were an input. Its snapshots give the same weights by the present formulas.
const EARLIER_FORMAT: &str = "muster/scoring-snapshot/2";

/// All inputs of the scores and weights of a cycle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScoringSnapshot {
    /// The format and version: [`SNAPSHOT_FORMAT`].
    pub format: String,
    /// The chain's genesis hash.
    pub genesis: String,
    /// The number of the subnet.
    pub netuid: u16,
    /// The blocks and the time that are scored.
    pub span: ScoredSpan,
    /// The validator that scores.
    pub me: ValidatorKey,
    /// The neurons of the subnet.
    pub neurons: Vec<Neuron>,
    /// The validators that hold a permit. Receipts of theirs count, and the scorer's own.
    pub validators: BTreeSet<ValidatorKey>,
    /// The operator's choices.
    pub rules: ScoringRules,
    /// The finished receipts of the cycle.
    pub receipts: Vec<PaidReceipt>,
    /// The stated capacity. Absent where nobody grades. In a class that is not graded, work alone divides the class,
    /// and the number of attempts at once is not checked.
    #[serde(default)]
    pub capacity: Option<CapacityInputs>,
    /// The stakes by which receipts are checked. Absent where they are not known: then the named blocks are not
    /// checked.
    #[serde(default)]
    pub allowance: Option<AllowanceInputs>,
    /// Points of earlier cycles, which are still being paid.
    #[serde(default)]
    pub history: Vec<PastCycle>,
    /// Miners that were convicted of cheating.
    #[serde(default)]
    pub convictions: Vec<Conviction>,
    /// Factors for the quality of miners' work, from audits; without one a miner has the whole.
    #[serde(default)]
    pub quality: Vec<QualityFactor>,
    /// The hotkeys that miners named as the main ones of their coldkeys.
    #[serde(default)]
    pub main_hotkeys: Vec<MainHotkey>,
    /// Work of earlier cycles beyond what they could hold.
    #[serde(default)]
    pub deferred: Vec<DeferredWork>,
    /// The rao that each validator has burned for the work of this cycle; read only if a second has a price.
    #[serde(default)]
    pub burned: BTreeMap<ValidatorKey, u64>,
    /// The scorer's weights on the chain by uid, each with the neuron that got it. Read only if nobody is paid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub standing: Vec<OnchainWeight>,
    /// The hotkey of the subnet's owner; absent if the chain states none. Read only with `standing`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Hotkey>,
}

/// The blocks and the time that are scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScoredSpan {
    /// The number of the cycle.
    pub cycle: u64,
    /// The first block.
    pub first_block: u64,
    /// The last block.
    pub last_block: u64,
    /// The time that the blocks took, in milliseconds.
    pub duration_ms: u64,
    /// When the cycle before began: receipts that were signed earlier are late. Absent if the chain does not report the
    /// times of its blocks.
    #[serde(default)]
    pub earliest: Option<Timestamp>,
}

/// The operator's choices. Validators of one subnet agree on them, or their weights differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScoringRules {
    /// The weight of each class; a class that is not listed has weight 0.
    pub class_weights: BTreeMap<ExecutorClass, u32>,
    /// The part of a class's weight that capacity always gets, in thousandths.
    #[serde(default = "capacity_per_mille")]
    pub capacity_per_mille: u16,
    /// Rao that a validator has to burn for each second of work that counts; 0 asks for none.
    #[serde(default)]
    pub burn_per_second: u64,
    /// The hotkey whose weight is burned. Without one, nothing is burned: the others share it.
    #[serde(default)]
    pub burn_hotkey: Option<Hotkey>,
    /// The bonus for a coldkey whose main hotkey changed since the last cycle, in thousandths.
    #[serde(default)]
    pub bonus_per_mille: u16,
    /// The least number of weights that the subnet takes in one call.
    #[serde(default)]
    pub min_entries: u16,
}

const fn capacity_per_mille() -> u16 {
    CAPACITY_PER_MILLE
}

/// The factor for the quality of one miner's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QualityFactor {
    /// The miner that did the work.
    pub miner: MinerKey,
    /// The factor, in thousandths.
    pub per_mille: u16,
}

/// A snapshot cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The text is not JSON, or lacks fields.
    #[error("the file is not a scoring snapshot")]
    Text(#[from] serde_json::Error),
    /// The format is another one.
    #[error("the snapshot's format is {0:?}, this version reads {SNAPSHOT_FORMAT:?}")]
    Format(String),
}

/// The format of a text that may be of another version.
#[derive(Deserialize)]
struct StatedFormat {
    #[serde(default)]
    format: String,
}

impl ScoringSnapshot {
    /// The canonical text as a whole: see [`pieces`](Self::pieces).
    pub fn to_text(&self) -> String {
        self.pieces().collect()
    }

    /// The digest of a canonical text, which names the snapshot.
    pub fn digest_of(text: &str) -> Digest {
        Digest::of(text.as_bytes())
    }

    /// Reads a snapshot.
    ///
    /// # Errors
    /// The text is none, or of another version.
    pub fn parse(text: &str) -> Result<Self, SnapshotError> {
        let stated: StatedFormat = serde_json::from_str(text)?;
        if ![SNAPSHOT_FORMAT, EARLIER_FORMAT].contains(&stated.format.as_str()) {
            return Err(SnapshotError::Format(stated.format));
        }
        Ok(serde_json::from_str(text)?)
    }
}

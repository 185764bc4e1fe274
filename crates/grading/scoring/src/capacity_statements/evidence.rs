//! The evidence of a statement: the observations of every miner, from which anybody computes the rows again.

use std::collections::BTreeMap;

use muster_protocol::{Digest, ExecutorClass, MinerKey, canonical};
use serde::{Deserialize, Serialize};

use crate::{CapacityRow, Observation, ObservationKind, proven_by};

/// The largest text of evidence that is read, in bytes: 256 miners with five classes, two kinds of probe and eight
/// observations each.
pub const MAX_EVIDENCE_BYTES: usize = 8 * 1024 * 1024;

/// The observations of a validator, by miner and class.
pub type MinerObservations = BTreeMap<(MinerKey, ExecutorClass), ObservedMiner>;

/// The observations of one miner in one class, and its offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedMiner {
    /// The probes of its executors.
    pub observations: Vec<Observation>,
    /// Offers of the last seven days that were within the miner's manifest and its proven executors.
    pub offers: u32,
    /// The part of them that the miner refused without an excuse.
    pub refused: u32,
}

/// All observations behind one statement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapacityEvidence {
    /// The observations, one entry for each miner and class.
    pub miners: Vec<MinerEvidence>,
}

/// The observations of one miner in one class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MinerEvidence {
    /// The miner of the executors.
    pub miner: MinerKey,
    /// The class of the executors.
    pub class: ExecutorClass,
    /// The probes of its executors.
    pub observations: Vec<Observation>,
    /// Offers of the last seven days that were within the miner's manifest and its proven executors.
    pub offers: u32,
    /// The part of them that the miner refused without an excuse.
    pub refused: u32,
}

impl CapacityEvidence {
    /// The evidence of these observations.
    pub fn of(observed: &MinerObservations) -> Self {
        let entry = |((miner, class), seen): (&(MinerKey, ExecutorClass), &ObservedMiner)| MinerEvidence {
            miner: *miner,
            class: *class,
            observations: seen.observations.clone(),
            offers: seen.offers,
            refused: seen.refused,
        };
        Self {
            miners: observed.iter().map(entry).collect(),
        }
    }

    /// The rows that follow from the evidence: one for each miner, class and kind of probe that proved anything.
    pub fn rows(&self) -> Vec<CapacityRow> {
        let of_kind = |seen: &MinerEvidence, kind| {
            let proven = proven_by(&seen.observations, kind, None)?;
            Some(CapacityRow {
                miner: seen.miner,
                class: seen.class,
                kind,
                executors: proven.executors,
                credit: proven.credit,
                offers: seen.offers,
                refused: seen.refused,
            })
        };
        let kinds = [ObservationKind::Announced, ObservationKind::Unannounced];
        let rows = |seen| kinds.into_iter().filter_map(move |kind| of_kind(seen, kind));
        self.miners.iter().flat_map(rows).collect()
    }

    /// The canonical text, as Python's `json.dumps(evidence, sort_keys=True, separators=(",", ":"))` writes it.
    pub fn to_text(&self) -> String {
        // A struct of texts, integers and lists always has a JSON form.
        canonical::sorted_compact_of(self).unwrap_or_default()
    }
}

/// The digest that names evidence.
pub fn evidence_digest(text: &str) -> Digest {
    Digest::of(text.as_bytes())
}

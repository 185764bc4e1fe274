//! The file of a batch: everything a validator keeps of it, as JSON. [`crate::replay`] judges it again.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_hardware_proof::{DecodeError, Evidence, MOST_BYTES};
use muster_protocol::{ExecutorClass, MinerKey, ValidatorKey};
use serde::{Deserialize, Serialize};

use crate::course::Course;
use crate::fingerprints::{Marks, hexadecimal};
use crate::judgement::{Absence, Judgement};
use crate::plan::{Announced, BlockHash, Bounds, Serving, Silent};
use crate::settlement::ProvenBefore;

/// The version of the file.
pub const FORMAT: &str = "muster-grading/1";

/// A batch's evidence: all of it, or that about some of its executors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchFile {
    /// [`FORMAT`].
    pub format: String,
    /// What was decided before anybody was challenged.
    pub head: Head,
    /// Every proof's facts, also of executors whose evidence is not in this file.
    pub marks: Marks,
    /// What every executor comes to, in the order of the plan; behind them the silent miners, in the order of the head.
    pub judgements: Vec<Judgement>,
    /// The executors, and silent miners, whose evidence is here, by place.
    pub seats: BTreeMap<usize, SeatFile>,
}

/// What was decided before anybody was challenged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// Whose batch.
    pub validator: ValidatorKey,
    /// The block that it began with.
    pub block: u64,
    /// Its hash.
    #[serde(with = "hexadecimal")]
    pub hash: BlockHash,
    /// What miners had announced.
    pub announced: Vec<Announced>,
    /// Miners that were asked, and announced nothing in time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<Silent>,
    /// Sessions of this validator's that served then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub serving: Vec<Serving>,
    /// How large it might become.
    pub bounds: Bounds,
    /// What was asked of each class.
    pub courses: Vec<Course>,
    /// The most executors of one kind that each miner had proven at once before.
    pub before: Vec<Before>,
}

/// How many executors of one kind a miner had proven at once before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Before {
    /// Whose.
    pub miner: MinerKey,
    /// Of which kind.
    pub class: ExecutorClass,
    /// At most.
    pub proven: u32,
}

/// What is kept of one executor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeatFile {
    /// Why it was not challenged, if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absence: Option<Absence>,
    /// The job by which it was leased.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// What its miner attested of its session, signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attestation: Option<String>,
    /// Its proofs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub proofs: Vec<ProofFile>,
}

/// One proof.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProofFile {
    /// Which trial of its course.
    pub trial: usize,
    /// When the first byte of the challenge left, in microseconds after that of the first one of its round.
    pub sent_us: u64,
    /// [`Evidence::to_bytes`], base64.
    pub evidence: String,
    /// What was seen besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// What the session signed about each answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seals: Vec<String>,
}

/// Why a file is none.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Another version.
    #[error("it is no evidence of a batch, or of another version")]
    Format,
    /// Some evidence of it cannot be read.
    #[error("proof {proof} of executor {place} cannot be read")]
    Evidence {
        /// Whose.
        place: usize,
        /// Which.
        proof: usize,
        /// Why.
        source: DecodeError,
    },
    /// Some evidence is no base64.
    #[error("proof {proof} of executor {place} is no base64")]
    Text {
        /// Whose.
        place: usize,
        /// Which.
        proof: usize,
    },
}

impl ProofFile {
    /// Writes evidence down.
    pub fn new(trial: usize, sent_us: u64, evidence: &Evidence) -> Self {
        Self {
            trial,
            sent_us,
            evidence: STANDARD.encode(evidence.to_bytes()),
            trouble: None,
            seals: Vec::new(),
        }
    }

    pub(crate) fn read(&self, place: usize, proof: usize) -> Result<Evidence, FileError> {
        let most = MOST_BYTES.saturating_mul(2);
        let text = Some(&self.evidence).filter(|text| text.len() <= most);
        let bytes = text.and_then(|text| STANDARD.decode(text).ok());
        let bytes = bytes.ok_or(FileError::Text { place, proof })?;
        Evidence::from_bytes(&bytes).map_err(|source| FileError::Evidence { place, proof, source })
    }
}

impl Head {
    /// As [`settle`] takes it.
    pub fn proven_before(&self) -> ProvenBefore {
        let before = self.before.iter();
        before
            .map(|before| ((before.miner, before.class), before.proven))
            .collect()
    }
}

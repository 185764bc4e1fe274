//! The file of a batch: all evidence that a validator stores about it, as JSON. [`crate::replay()`] judges it again.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_hardware_proof::{DecodeError, Evidence, MAX_EVIDENCE_BYTES};
use muster_protocol::{ExecutorClass, MinerKey, ValidatorKey};
use muster_scoring::ObservationKind;
use serde::{Deserialize, Serialize};

use crate::batch_plan::{Announcement, BatchBounds, BlockHash, ServingSession, SilentMiner};
use crate::batch_settlement::ProvenBefore;
use crate::fingerprints::{Fingerprints, hexadecimal};
use crate::grade_spec::GradeSpec;
use crate::judgement::{Absence, Judgement};

/// The format and version of the file.
pub const FORMAT: &str = "muster-grading/1";

/// The evidence of a batch, about all of its executors or about some.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchFile {
    /// The format and version, which must be [`FORMAT`].
    pub format: String,
    /// The decisions before the first challenge.
    pub head: BatchHead,
    /// The fingerprints of all proofs, including executors whose evidence is not in this file.
    #[serde(rename = "marks")]
    pub fingerprints: Fingerprints,
    /// The judgement of every executor in the order of the plan, followed by those of the silent miners in the order of
    /// the head.
    pub judgements: Vec<Judgement>,
    /// The evidence about executors and silent miners, by their index in `judgements`.
    #[serde(rename = "seats")]
    pub participants: BTreeMap<usize, ParticipantEvidence>,
}

/// The decisions before the first challenge, from which the plan follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchHead {
    /// The validator that runs the batch.
    pub validator: ValidatorKey,
    /// Whether the executors wait for one another at a barrier, or are challenged at a given instant.
    #[serde(default = "announced", skip_serializing_if = "is_announced")]
    pub kind: ObservationKind,
    /// The number of the block with which the batch began.
    pub block: u64,
    /// The hash of that block.
    #[serde(with = "hexadecimal")]
    pub hash: BlockHash,
    /// The announcements of the miners.
    pub announced: Vec<Announcement>,
    /// Miners that announced nothing in time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<SilentMiner>,
    /// The sessions of this validator that were in use when the batch began.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub serving: Vec<ServingSession>,
    /// The largest size of the batch.
    pub bounds: BatchBounds,
    /// The grade specification of each class.
    #[serde(rename = "courses")]
    pub grade_specs: Vec<GradeSpec>,
    /// The largest number of executors that each miner had proven in one earlier batch.
    #[serde(rename = "before")]
    pub proven_before: Vec<ProvenCount>,
}

const fn announced() -> ObservationKind {
    ObservationKind::Announced
}

fn is_announced(kind: &ObservationKind) -> bool {
    *kind == ObservationKind::Announced
}

/// The largest number of executors of one class that a miner had proven in one earlier batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProvenCount {
    /// The miner of the executors.
    pub miner: MinerKey,
    /// The class of the executors.
    pub class: ExecutorClass,
    /// The number of executors.
    pub proven: u32,
}

/// The evidence about one executor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParticipantEvidence {
    /// The reason why the executor was not challenged, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absence: Option<Absence>,
    /// The id of the job by which it was leased, or of the session in which it was challenged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The attestation of its session, signed by its miner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attestation: Option<String>,
    /// The proofs in the order in which they were made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub proofs: Vec<ProofEvidence>,
}

/// The record of one proof.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProofEvidence {
    /// The number of the trial in the grade specification.
    pub trial: usize,
    /// The time at which the first byte of the challenge was sent, in microseconds after the batch began.
    pub sent_us: u64,
    /// [`Evidence::to_bytes`] in base64.
    pub evidence: String,
    /// A failure that is not a message, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// The session's signed response proofs, one per answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seals: Vec<String>,
}

/// The reason why a file cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum BatchFileError {
    /// The format or version is unknown.
    #[error("the file is not the evidence of a batch, or it is of another version")]
    Format,
    /// The evidence of a proof cannot be read.
    #[error("proof {proof} of executor {place} cannot be read")]
    Evidence {
        /// The place of the executor.
        place: usize,
        /// The number of the proof.
        proof: usize,
        /// The fault in its bytes.
        source: DecodeError,
    },
    /// The evidence of a proof is not base64, or is too long.
    #[error("proof {proof} of executor {place} is not base64")]
    Text {
        /// The place of the executor.
        place: usize,
        /// The number of the proof.
        proof: usize,
    },
}

impl ProofEvidence {
    /// Encodes the evidence of one proof.
    pub fn new(trial: usize, sent_us: u64, evidence: &Evidence) -> Self {
        Self {
            trial,
            sent_us,
            evidence: STANDARD.encode(evidence.to_bytes()),
            trouble: None,
            seals: Vec::new(),
        }
    }

    pub(crate) fn decode(&self, place: usize, proof: usize) -> Result<Evidence, BatchFileError> {
        let most = MAX_EVIDENCE_BYTES.saturating_mul(2);
        let text = Some(&self.evidence).filter(|text| text.len() <= most);
        let bytes = text.and_then(|text| STANDARD.decode(text).ok());
        let bytes = bytes.ok_or(BatchFileError::Text { place, proof })?;
        Evidence::from_bytes(&bytes).map_err(|source| BatchFileError::Evidence { place, proof, source })
    }
}

impl BatchHead {
    /// `proven_before` in the form that [`crate::batch_settlement::settle`] takes.
    pub fn proven_before(&self) -> ProvenBefore {
        index_proven(&self.proven_before)
    }
}

/// Counts of proven executors by miner and class.
pub fn index_proven(counts: &[ProvenCount]) -> ProvenBefore {
    let counts = counts.iter();
    counts
        .map(|count| ((count.miner, count.class), count.proven))
        .collect()
}

#[cfg(test)]
mod tests {
    use muster_protocol::Hotkey;
    use serde_json::{Value, json};

    use super::*;
    use crate::judgement::Why;
    use muster_hardware_proof::grade::Component;

    /// Stored files keep the names of their fields, whatever the fields are called in the program.
    #[test]
    fn a_file_has_the_field_names_of_its_format() {
        let keys = |value: &Value| {
            let mut keys: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
            keys.sort();
            keys
        };
        let class = ExecutorClass::AlwaysOnTest;
        let head = BatchHead {
            validator: ValidatorKey(Hotkey::from_bytes([1; 32])),
            kind: ObservationKind::Announced,
            block: 7,
            hash: [2; 32],
            announced: vec![],
            silent: vec![],
            serving: vec![],
            bounds: BatchBounds::default(),
            grade_specs: GradeSpec::for_class(class).into_iter().collect(),
            proven_before: vec![],
        };
        let below = Why::Below {
            component: Component::Int8,
            measured: 1,
            threshold: 2,
        };
        let fingerprint = crate::fingerprints::ProofFingerprint {
            challenge_id: [3; 32],
            roots: Some([4; 32]),
            named_challenge: Some([5; 32]),
        };
        let file = BatchFile {
            format: FORMAT.to_owned(),
            head,
            fingerprints: Fingerprints::from([(0, vec![fingerprint])]),
            judgements: vec![Judgement::Zero { reasons: vec![below] }],
            participants: BTreeMap::new(),
        };
        let value = serde_json::to_value(&file).unwrap();
        assert_eq!(keys(&value), ["format", "head", "judgements", "marks", "seats"]);
        let head = &value["head"];
        assert_eq!(
            keys(head),
            [
                "announced",
                "before",
                "block",
                "bounds",
                "courses",
                "hash",
                "validator"
            ]
        );
        assert_eq!(keys(&head["bounds"]), ["executors", "of_one"]);
        assert_eq!(keys(&head["courses"][0]), ["floors", "trials"]);
        assert_eq!(keys(&value["marks"]["0"][0]), ["named", "roots", "session"]);
        assert_eq!(
            value["judgements"][0]["reasons"][0],
            json!({"why": "below", "component": "int8", "measured": 1, "floor": 2})
        );
        assert_eq!(serde_json::from_value::<BatchFile>(value).unwrap(), file);
    }
}

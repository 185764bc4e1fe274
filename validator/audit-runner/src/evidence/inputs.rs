//! Everything that a bundle follows from: who audits, the sessions, the buckets that were drawn from, and the outcomes.

use std::collections::BTreeMap;

use muster_audit::{
    Calibration, ListCommitment, OpenedCanary, OpenedText, ReferenceMachine, RevealedNonceKey,
};
use muster_gateway::store::{LoggedAnswer, StoredBucket};
use muster_identity::ProvenOutput;
use muster_protocol::{Digest, Hotkey, MinerKey, Timestamp, ValidatorKey};
use muster_response_proof::LeafTree;

use crate::evidence::outcome::BothOutcomes;
use crate::log::shares::StoredShare;

/// The facts that are the same for all bundles of a validator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AuditorFacts {
    pub(crate) genesis: Digest,
    pub(crate) netuid: u16,
    pub(crate) validator: ValidatorKey,
}

/// A bucket from which was drawn, with all that a bundle shows of it.
#[derive(Clone, Debug)]
pub(crate) struct DrawnBucket {
    pub(crate) stored: StoredBucket,
    pub(crate) shares: Vec<StoredShare>,
    pub(crate) block_hash: Digest,
    pub(crate) draw: ProvenOutput,
    /// The tree over its leaves.
    pub(crate) tree: LeafTree,
}

/// Everything that one bundle follows from.
#[derive(Debug)]
pub(crate) struct EvidenceInputs {
    pub(crate) auditor: AuditorFacts,
    pub(crate) coldkey: Hotkey,
    pub(crate) model: String,
    pub(crate) calibration: Calibration,
    /// The calibration of answers without seeds, if the engine's sampler has one.
    pub(crate) unseeded: Option<Calibration>,
    pub(crate) references: Vec<ReferenceMachine>,
    pub(crate) sessions: Vec<WholeSession>,
    pub(crate) buckets: BTreeMap<u64, DrawnBucket>,
    /// The opened places of own prompts, by the ids of their answers.
    pub(crate) canaries: BTreeMap<String, OpenedCanary>,
    /// The headers that commit to the lists of these own prompts, and those between them, by rising bucket.
    pub(crate) commitments: Vec<ListCommitment>,
    /// The keys of nonces that are public, by rising period.
    pub(crate) nonce_keys: Vec<RevealedNonceKey>,
    /// The results by the ids of answers.
    pub(crate) outcomes: BTreeMap<String, BothOutcomes>,
    /// The words of audited answers that may be published, by the ids of the answers.
    pub(crate) words: BTreeMap<String, OpenedText>,
}

/// An answer without a valid proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MissingProof {
    /// The number of the bucket in which it would stand.
    pub(crate) bucket: u64,
    /// The name of its client. A bundle does not show it.
    pub(crate) client: Digest,
    /// The number of the session's answers in the log that ended before it.
    pub(crate) after: u64,
}

/// A session as a bundle shows it: all of its proofs from the first one on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WholeSession {
    pub(crate) miner: MinerKey,
    /// The signed attestation, in text form.
    pub(crate) attestation: String,
    /// Its answers in the log.
    pub(crate) answers: Vec<LoggedAnswer>,
    /// Its other proofs, in text form and in the order of their numbers.
    pub(crate) others: Vec<String>,
    /// Its answers without a valid proof.
    pub(crate) unproven: Vec<MissingProof>,
    /// When the newest draw was from a bucket in which one of its unproven answers would stand.
    pub(crate) newest_unproven: Option<Timestamp>,
    /// The ids of the drawn answers behind a gap in the numbers, which nobody can audit.
    pub(crate) behind_gap: Vec<String>,
}

//! Muster's own messages about spot checks: what a validator shows to the miners that it audits, and what they answer.
//!
//! A validator opens a connection to send what a miner has not taken yet, one notice after another. The miner names
//! each notice that it has stored. Peers without the feature `audits` get none of these messages.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::ids::AttemptId;
use crate::keys::ValidatorKey;
use crate::time::Timestamp;

/// `MusterAudit`, validator to miner: one notice about spot checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditMessage {
    /// The number of the notice on its connection; the miner's answer repeats it.
    pub number: u64,
    /// The notice itself.
    pub notice: AuditNotice,
}

/// A notice about spot checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditNotice {
    /// A bucket with answers of the miner is closed.
    Header(Box<HeaderNotice>),
    /// The outcomes of the miner's drawn answers of a bucket.
    Outcomes(Box<OutcomesNotice>),
    /// A verdict about the miner's coldkey counts for this validator, or did until a newer one.
    Verdict(Box<VerdictNotice>),
    /// A part of a bundle that the miner has asked for. Not answered by [`AuditReply::Taken`].
    BundlePart(Box<BundlePart>),
    /// The answer to an appeal. Not answered.
    AppealAnswer(Box<AppealAnswer>),
    /// The validator has sent everything; the miner may appeal now.
    Done,
}

/// The signed header of a bucket with the leaves of the miner's own answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeaderNotice {
    /// The signed header, in the text form of a signed statement.
    pub header: String,
    /// The headers of the buckets since the last one that the miner has taken, in rising order: each names the digest
    /// of the one before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub between: Vec<String>,
    /// The number of the miner's own answers in the bucket, those of other parts included.
    pub own: u64,
    /// Own answers of this part, in the order of their places.
    pub leaves: Vec<LeafNotice>,
}

/// The leaf of one answer: everything of which the header's root follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeafNotice {
    /// The id of the session.
    pub session: String,
    /// The number of the answer's proof in the session.
    pub sequence: u64,
    /// The digest of the proof's signed bytes.
    pub proof: Digest,
    /// Tokens of the answer, by the gateway's count.
    pub output_tokens: u64,
    /// The miner's earnings, in rao.
    pub earned: u64,
    /// The commitment to the client, which is opened in bundles if the answer is audited; from validators of earlier
    /// releases the pseudonym that the proof states.
    pub stratum: Digest,
    /// The model by its name in the whitelist.
    pub model: String,
    /// The place among the leaves of the bucket.
    pub position: u64,
    /// The hashes beside the way to the root, from the leaf upwards.
    pub path: Vec<Digest>,
}

/// The draw from a bucket, and the outcomes of the miner's drawn answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutcomesNotice {
    /// The number of the bucket.
    pub bucket: u64,
    /// The hash of the draw block.
    pub block_hash: Digest,
    /// The draw with its proof: 192 hex digits.
    pub draw: String,
    /// The miner's own shares, one for each model.
    pub shares: Vec<ShareNotice>,
    /// The miner's drawn answers, in the order of their places.
    pub outcomes: Vec<OutcomeNotice>,
}

/// The share that is audited of the miner's answers from one model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareNotice {
    /// The model by its name in the whitelist.
    pub model: String,
    /// The share in millionths.
    pub ppm: u32,
    /// The place among the header's shares.
    pub position: u64,
    /// The hashes beside the way to the root of shares.
    pub path: Vec<Digest>,
}

/// The outcome of one drawn answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutcomeNotice {
    /// The place of the answer among the leaves of its bucket.
    pub position: u64,
    /// Its scores in numbers, or why there are none.
    pub outcome: LeafOutcome,
}

/// The outcome of a drawn answer, without its words and without the scores of single tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeafOutcome {
    /// References scored it.
    Scored {
        /// The tokens that the first reference which scored it has looked at.
        tokens: u64,
        /// Those of them that are not its own choice.
        off: u64,
    },
    /// No reference could score it; it counts for the miner. The reason is a name of `audit-bundle.md`.
    Unusable(String),
    /// Nobody scored it within seven days of the draw; it counts for the miner.
    NoOutcome,
}

/// A verdict about the miner's coldkey.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerdictNotice {
    /// The digest of the bundle from which the verdict follows.
    pub bundle: Digest,
    /// The length of the bundle's text, in bytes.
    pub bytes: u64,
    /// The verdict by its name, such as `convicted`.
    pub verdict: String,
    /// The model by its name in the whitelist.
    pub model: String,
    /// The factor of quality that the validator scores with, in thousandths.
    pub quality_per_mille: u16,
    /// Since when the verdict counts.
    pub since: Timestamp,
}

/// A part of a bundle's text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundlePart {
    /// The digest of the whole text.
    pub bundle: Digest,
    /// The place of the part in the text, in bytes.
    pub offset: u64,
    /// The part, base64; empty if the validator has no such part.
    pub data: String,
}

/// The answer to an appeal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppealAnswer {
    /// The digest of the bundle that the appeal is about.
    pub bundle: Digest,
    /// Whether the validator audits fresh answers now.
    pub is_open: bool,
    /// Until when it does, or why it does not, as text.
    pub words: String,
}

/// `MusterAuditReply`, miner to validator: the answer to a notice, or a question about its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditReply {
    /// The miner has stored the notice of this number, or has nothing to store of it.
    Taken {
        /// The number of the notice.
        number: u64,
    },
    /// Asks for the part of a bundle that begins at a place.
    Fetch {
        /// The digest of the bundle.
        bundle: Digest,
        /// The place in bytes.
        offset: u64,
    },
    /// An appeal against a verdict.
    Appeal {
        /// The signed appeal, in the text form of a signed statement.
        appeal: String,
    },
}

/// `MusterSessionProofs`, executor to miner: the proofs that a session has signed, so that the miner can compare them
/// with the validator's log. Not answered; executors send it to miners with the feature `audits`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionProofs {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
    /// The id of the session.
    pub session: String,
    /// The validator that the session serves.
    pub validator: ValidatorKey,
    /// The number of the first proof.
    pub first: u64,
    /// The proofs, numbered without gaps, at most 512.
    pub proofs: Vec<SignedProof>,
}

/// A proof that a session has signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedProof {
    /// The digest of its signed bytes.
    pub digest: Digest,
    /// Whether it is of a client's request that came to its end: such a proof belongs into the log.
    pub is_answer: bool,
    /// When the answer ended, by the executor's clock.
    pub at: Timestamp,
}

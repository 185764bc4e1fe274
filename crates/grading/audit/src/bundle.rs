//! The evidence about one coldkey and one model, named by the digest of its text. `docs/audit-bundle.md` describes the
//! format for other programs.

use muster_identity::ProvenOutput;
use muster_protocol::{Digest, Hotkey, MinerKey, ValidatorKey, canonical};
use muster_response_proof::ClientOpening;
use serde::{Deserialize, Serialize};

use crate::calibration::Calibration;
use crate::canaries::OpenedCanary;
use crate::list_head::CommittedList;
use crate::margin_cells::TokenScore;
use crate::nonce_keys::RevealedNonceKey;

/// The format and version of a bundle. It changes with every change of the rules or their constants.
pub const BUNDLE_FORMAT: &str = "muster/audit-bundle/5";
/// The format whose headers name the root of one list of own prompts, which no session and no position fixes. It is
/// replayed by the same rules, and nobody adopts its convictions by own scores.
pub(crate) const BUNDLE_FORMAT_4: &str = "muster/audit-bundle/4";
/// The format whose leaves name the pseudonym in the proof, and whose missing answers name a client. It is replayed by
/// the same rules.
pub(crate) const BUNDLE_FORMAT_3: &str = "muster/audit-bundle/3";
/// The format before that one, whose bundles show no commitments to lists of own prompts, no false ids, no missing
/// answers and no other reference than the whitelisted image. They are replayed by the same rules without the test of
/// missing answers, and convict nobody.
pub(crate) const BUNDLE_FORMAT_2: &str = "muster/audit-bundle/2";
/// The format before that one, whose bundles open no words and show no keys of nonces either.
pub(crate) const BUNDLE_FORMAT_1: &str = "muster/audit-bundle/1";
/// The largest text of a bundle that is read, in bytes.
pub const MAX_BUNDLE_BYTES: usize = 64 * 1024 * 1024;

/// The evidence about the answers that the miners of one coldkey gave for one model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditBundle {
    /// The format and version, [`BUNDLE_FORMAT`] or an earlier one.
    pub format: String,
    /// The chain's genesis hash.
    pub genesis: Digest,
    /// The number of the subnet.
    pub netuid: u16,
    /// The validator that audited.
    pub validator: ValidatorKey,
    /// The coldkey of the miners.
    pub coldkey: Hotkey,
    /// The hotkeys of that coldkey whose answers were audited.
    pub miners: Vec<MinerKey>,
    /// The model by its name in the whitelist.
    pub model: String,
    /// The calibration by which the answers are judged.
    pub calibration: Calibration,
    /// The calibration by which answers are judged whose seeds nobody knows; it gives the verdict `weak` at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unseeded: Option<Calibration>,
    /// The machines that scored: the first, and a second one that confirms.
    pub references: Vec<ReferenceMachine>,
    /// The buckets of the answers, in rising order.
    pub buckets: Vec<BucketEvidence>,
    /// The commitments to lists of own prompts, in rising order of their buckets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commitments: Vec<ListCommitment>,
    /// The sessions that answered, each with all its answers from the first one on.
    pub sessions: Vec<SessionEvidence>,
    /// The keys of nonces that are revealed already, by rising period.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nonce_keys: Vec<RevealedNonceKey>,
}

/// A machine that scored answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReferenceMachine {
    /// The machine's name.
    pub machine: String,
    /// The type of its GPU, or of its processor.
    pub gpu: String,
    /// The image that it ran.
    pub engine: Digest,
}

/// A bucket of the log and the draw from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketEvidence {
    /// The signed header, in text form.
    pub header: String,
    /// The hash of the bucket's draw block.
    pub block_hash: Digest,
    /// The draw with its proof.
    pub draw: ProvenOutput,
    /// The shares of the miners in this bundle.
    pub shares: Vec<OpenedShare>,
}

/// The commitment to lists of own prompts: a header with the heads that it names. Headers that stand between such ones
/// are shown, too, so that no list can be left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListCommitment {
    /// The signed header, in text form.
    pub header: String,
    /// The hash of the draw block of the header's bucket, which did not exist when the header was signed. The
    /// pseudonyms of prompts follow from it. `None` where no list is opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_hash: Option<Digest>,
    /// The key of the nonces and seeds of these prompts, with its proof. `None` where no list is opened, and in earlier
    /// formats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<ProvenOutput>,
    /// All lists that the header names, in their order. Empty in earlier formats.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lists: Vec<CommittedList>,
}

/// A share that a bucket's header commits to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenedShare {
    /// The miner whose answers are audited.
    pub miner: MinerKey,
    /// The share in millionths.
    pub ppm: u32,
    /// The place among the header's shares.
    pub position: u64,
    /// The hashes beside the way to the root of shares.
    pub path: Vec<Digest>,
}

/// One session of a miner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionEvidence {
    /// The miner's signed attestation, in text form.
    pub attestation: String,
    /// Its answers in the log, in the order of their numbers.
    pub answers: Vec<AnswerEvidence>,
    /// Its signed proofs that are not in the log, in text form and in the order of their numbers: health checks,
    /// grading, and answers whose clients went away. Together with those of `answers` they are numbered from 0 without
    /// gaps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<String>,
    /// Its answers to clients that have no valid proof, by the validator's word, in the order of their ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unproven: Vec<UnprovenAnswer>,
}

/// An answer without a valid proof, by the validator's word. Its client was there until the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnprovenAnswer {
    /// The bucket in which it would stand.
    pub bucket: u64,
    /// The pseudonym of the client, in bundles of earlier formats. Since then the validator leaves out what is beyond
    /// the first four of a client and day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<Digest>,
    /// The number of the session's `answers` that ended before it.
    pub after: u64,
}

/// One proven answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerEvidence {
    /// The signed proof, in text form.
    pub proof: String,
    /// Tokens of the answer, as its leaf states them.
    pub output_tokens: u64,
    /// Rao, as its leaf states them.
    pub earned: u64,
    /// The number of its bucket.
    pub bucket: u64,
    /// Its place among the bucket's leaves.
    pub position: u64,
    /// The hashes beside the way to the root of leaves.
    pub path: Vec<Digest>,
    /// The origin of its prompt.
    pub origin: Origin,
    /// The result of its audit; `None` if it was not drawn.
    #[serde(default)]
    pub outcome: Option<AuditOutcome>,
    /// The words by which others score it again; only of answers that may be published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub words: Option<OpenedText>,
    /// Whether the connection ended before the answer did although the client was there, by the validator's word.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cut: bool,
    /// The client in its leaf; `None` of an answer that an earlier release logged, whose leaf names the proof's
    /// pseudonym.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<LoggedClient>,
    /// Whether it is beyond the first four answers of its client and day in the bundle, by the validator's word: the
    /// test of missing answers leaves it out.
    #[serde(default, skip_serializing_if = "is_false")]
    pub beyond: bool,
}

/// The client to which the leaf of an answer commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoggedClient {
    /// The commitment, of an answer that is not audited.
    Sealed(Digest),
    /// Its content, of an audited one.
    Opened(ClientOpening),
}

/// The words of an answer that may be published, as ids of tokens whose digests the session's proof names, or as the
/// whole response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenedText {
    /// The ids of the prompt's tokens. Empty beside `response`.
    pub prompt: Vec<u32>,
    /// The ids of the answer's tokens. Empty beside `response`.
    pub output: Vec<u32>,
    /// The body of a consenting client's request, base64: it has the parameters of the sampler. The validator's own
    /// prompt is opened with its place in the list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// The body of a response, base64, as the session signed it. Of one with false ids, since its ids and its text
    /// contradict each other. Of one without ids, since its tokens are found in its text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
}

/// The origin of a prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// A user, whose words stay private.
    User,
    /// A client that agreed to publication.
    Consenting,
    /// The validator's own prompt, from a list that a header commits to.
    Canary(OpenedCanary),
}

/// The result of an answer's audit: its scores, or why there are none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditOutcome {
    /// The tokens as each reference scored them, in the order of the references; `null` where one did not.
    Scored(Vec<Option<Vec<TokenScore>>>),
    /// The tokens as each reference scored them without a seed: what counts as margin is how far −log p lies above the
    /// entropy.
    Unseeded(Vec<Option<Vec<TokenScore>>>),
    /// The session signed false ids, as each reference found, in the order of the references; `null` where one did not.
    /// It counts against the miner.
    FalseIds(Vec<Option<FalseIds>>),
    /// The answer cannot be scored. It counts for the miner.
    Unusable(UnusableReason),
}

/// The way in which the ids that a session signed are false. An engine that runs the whitelisted image never states
/// such ids, whatever machine it runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FalseIds {
    /// The response does not have the ids whose digests the session signed.
    Response,
    /// The ids of the prompt are not those of the request.
    Prompt,
    /// The ids of the answer do not give the text that was sent.
    Text,
    /// The ids of the answer do not end where the engine would have ended it.
    End,
}

impl FalseIds {
    /// The name in texts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Response => "response",
            Self::Prompt => "prompt",
            Self::Text => "text",
            Self::End => "end",
        }
    }
}

/// The reason why an answer that was drawn cannot be scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnusableReason {
    /// Neither the proof nor a tokenizer gives the ids of the answer's tokens.
    NoTokenIds,
    /// The engine draws by a seed of its own, and the request names none.
    NoSeed,
    /// The stored body is shorter than the proof says.
    TruncatedBody,
    /// The text has a token that no engine with this tokenizer can have chosen.
    OtherTokenizer,
    /// Prompt and answer together exceed the reference's context.
    BeyondContext,
    /// The session ended before the answer did.
    SessionExpired,
    /// The reference ended while it scored.
    ReferenceDied,
    /// The reference gave no score in time.
    ReferenceStalled,
    /// The reference failed its test before the batch.
    ReferenceSelfTest,
    /// The reference refused the answer.
    ReferenceRefused,
    /// The audit of this answer was not finished within its time.
    NotAudited,
}

impl UnusableReason {
    /// The reason as text.
    pub const fn explanation(self) -> &'static str {
        match self {
            Self::NoTokenIds => "the ids of its tokens are not known, and they do not follow from its text",
            Self::NoSeed => "its engine draws by a seed of its own, and the request names none",
            Self::TruncatedBody => "its request or its response is not whole",
            Self::OtherTokenizer => {
                "it has a token that no engine with the model's tokenizer can have chosen"
            }
            Self::BeyondContext => "it is longer than a reference reads",
            Self::SessionExpired => "its session ended before it did",
            Self::ReferenceDied => "the reference ended while it scored it",
            Self::ReferenceStalled => "the reference gave no scores in time",
            Self::ReferenceSelfTest => "the reference failed its own test",
            Self::ReferenceRefused => "the reference cannot score it",
            Self::NotAudited => "its audit was not finished in time",
        }
    }
}

/// Whether a flag is left out of the text; serde passes a reference.
const fn is_false(flag: &bool) -> bool {
    !*flag
}

impl AuditBundle {
    /// The canonical text, as Python's `json.dumps(bundle, sort_keys=True, separators=(",", ":"))` writes it.
    pub fn to_text(&self) -> String {
        // A struct of texts, integers and lists always has a JSON form.
        canonical::sorted_compact_of(self).unwrap_or_default()
    }

    /// Whether it shows the commitments to lists of own prompts, and what the test of missing answers reads.
    pub(crate) fn shows_commitments(&self) -> bool {
        self.commits_to_clients() || self.format == BUNDLE_FORMAT_3
    }

    /// Whether leaves commit to clients, and the validator has counted the answers of each.
    pub(crate) fn commits_to_clients(&self) -> bool {
        self.fixes_own_prompts() || self.format == BUNDLE_FORMAT_4
    }

    /// Whether headers name the heads of lists of own prompts, which fix the session and the seed of each prompt.
    pub fn fixes_own_prompts(&self) -> bool {
        self.format == BUNDLE_FORMAT
    }

    /// The digest of a text, which names the bundle.
    pub fn digest_of(text: &str) -> Digest {
        Digest::of(text.as_bytes())
    }
}

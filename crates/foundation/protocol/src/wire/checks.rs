//! A validator's messages to its facilitator about jobs that it ran again and about answers that are refunded.
//!
//! Neither message is answered. A validator sends both again after every greeting, as far as they are of the last
//! seven days; the newest one about a job or an answer holds. Only facilitators with the feature `cross-checks` get
//! them.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::ids::JobId;
use crate::time::Timestamp;

/// The most outputs of one job that a sender lists and a receiver reads. Outputs that differ come first.
pub const MAX_CHECKED_OUTPUTS: usize = 64;

crate::macros::open_enum!(
    /// Why a job was run again.
    CheckOrigin {
        /// The draw chose the job, which declares itself deterministic.
        Drawn = "drawn",
        /// The user reported the job as cheated.
        Reported = "reported",
    }
);

crate::macros::open_enum!(
    /// The finding by running a job again.
    CheckState {
        /// It is not known yet.
        Pending = "pending",
        /// The outputs agree with those of the validator's own miner.
        Agrees = "agrees",
        /// The outputs differ from those of two runs on the validator's own miner, which agree with each other.
        Differs = "differs",
        /// Nothing can be concluded; the reason states why.
        Unproven = "unproven",
    }
);

/// One output of a job and of the same job on the validator's own miner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CheckedOutput {
    /// `stdout`, or the path of an artifact.
    pub name: String,
    /// The SHA-256 in the user's job; null if that job has no such output.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub job: Option<Digest>,
    /// The SHA-256 on the validator's own miner; null if there is no such output there.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub trusted: Option<Digest>,
}

/// `MusterJobCheck`, validator to facilitator: what running a job again showed. Users read it at
/// `GET /api/v1/jobs/{uuid}/check/`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobCheck {
    /// The id of the user's job.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "uuid"))]
    pub uuid: JobId,
    /// Why it was run again: `drawn` or `reported`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub origin: CheckOrigin,
    /// The finding: `pending`, `agrees`, `differs` or `unproven`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub state: CheckState,
    /// The reason in words; empty while it is pending.
    pub reason: String,
    /// The outputs that were compared, those that differ first; at most 64.
    pub outputs: Vec<CheckedOutput>,
    /// The time of this state by the validator's clock.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub at: Timestamp,
}

/// `MusterRefund`, validator to facilitator: an answer of a model is refunded, or is so no longer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefundNotice {
    /// The id of the answer.
    pub response: String,
    /// The pseudonym of the answer's client at the gateway.
    pub client: Digest,
    /// The model by its name in the whitelist.
    pub model: String,
    /// When the answer ended.
    pub answered_at: Timestamp,
    /// Tokens of the request.
    pub input_tokens: u64,
    /// Tokens of the answer.
    pub output_tokens: u64,
    /// The digest of the bundle that convicts the miner; null if the conviction was lifted.
    pub bundle: Option<Digest>,
}

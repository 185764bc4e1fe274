//! Validator and facilitator. Unlike the miner's models these forbid unknown fields, but for status metadata.

use indexmap::IndexMap;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::miner::StreamingDetails;
use super::muster::{
    CancelRequest, Challenge, ChallengeResponse, GatewayNotice, LiveLog, LiveProgress, StatusExtension,
};
use crate::class::ExecutorClass;
use crate::ids::JobId;
use crate::keys::{MinerKey, UserKey, ValidatorKey};
use crate::macros::constant_text;
use crate::signature::Signature;
use crate::status::{
    HordeFailureReason, JobFailureReason, JobRejectionReason, JobStage, JobStatus, ParticipantType,
};
use crate::upload::OutputUpload;
use crate::volume::Volume;

/// What a validator sends to its facilitator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "message_type")]
pub enum ToFacilitator {
    /// The first frame.
    V0AuthenticationRequest(Authentication),
    /// Every minute; it is not answered.
    V0Heartbeat(Heartbeat),
    /// A job has come further.
    V0JobStatusUpdate(Box<JobStatusUpdate>),
    /// An executor's hardware.
    V0MachineSpecsUpdate(MachineSpecsUpdate),
    /// Ours: the answer to a challenge.
    MusterChallengeResponse(ChallengeResponse),
    /// Ours: a piece of what a job prints.
    MusterJobLog(Box<LiveLog>),
    /// Ours: how far a job is.
    MusterJobProgress(LiveProgress),
    /// Ours: where the validator's gateway answers.
    MusterGateway(Box<GatewayNotice>),
}

/// What a facilitator sends to a validator.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum FromFacilitator {
    /// A new job.
    Job(Box<JobRequest>),
    /// A user reports that a job was cheated on.
    Cheated(Box<CheatReport>),
    /// Ours: a Muster facilitator's answer to the greeting of a Muster validator.
    Challenge(Challenge),
    /// Ours: the job's user no longer wants it.
    Cancel(CancelRequest),
    /// The answer to a greeting or to a status update.
    Response(Response),
}

impl<'de> Deserialize<'de> for FromFacilitator {
    /// Only [`Response`] has no `message_type`.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let value = Value::deserialize(deserializer)?;
        let kind = value
            .get("message_type")
            .map(|kind| kind.as_str().unwrap_or_default().to_owned());
        match kind.as_deref() {
            Some("V2JobRequest") => serde_json::from_value(value).map(Self::Job),
            Some("V0JobCheated") => serde_json::from_value(value).map(Self::Cheated),
            Some("MusterChallenge") => serde_json::from_value(value).map(Self::Challenge),
            Some("MusterCancelJob") => serde_json::from_value(value).map(Self::Cancel),
            None => serde_json::from_value(value).map(Self::Response),
            Some(_) => {
                return Err(D::Error::custom(
                    "unknown message_type; known are V2JobRequest, V0JobCheated, MusterChallenge, MusterCancelJob",
                ));
            }
        }
        .map_err(D::Error::custom)
    }
}

/// A validator shows its key. Static, hence replayable: it claims a key and proves nothing (see [`Challenge`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Authentication {
    /// 64 hex digits without `0x`.
    pub public_key: String,
    /// Over the 32 raw bytes of the key.
    pub signature: Signature,
}

/// Still here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heartbeat {}

/// An executor's hardware.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineSpecsUpdate {
    /// Whose executor.
    pub miner_hotkey: MinerKey,
    /// Who looked.
    pub validator_hotkey: ValidatorKey,
    /// Free in form.
    pub specs: serde_json::Map<String, Value>,
    /// The batch it was seen in.
    pub batch_id: String,
}

/// A job has come further.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobStatusUpdate {
    /// The job (never an attempt: attempts are the validator's affair).
    pub uuid: JobId,
    /// How far.
    pub status: JobStatus,
    /// What goes with it; `completed` and `streaming_ready` must have it.
    #[serde(default)]
    pub metadata: Option<StatusMetadata>,
}

/// What goes with a status. Unknown fields are kept, as ComputeHorde's model keeps them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StatusMetadata {
    /// With `completed`.
    #[serde(default)]
    pub miner_response: Option<MinerResponse>,
    /// With `rejected`.
    #[serde(default)]
    pub job_rejection_details: Option<RejectionDetails>,
    /// With `failed`.
    #[serde(default)]
    pub job_failure_details: Option<FailureDetails>,
    /// With `horde_failed`.
    #[serde(default)]
    pub horde_failure_details: Option<HordeFailureDetails>,
    /// With `streaming_ready`.
    #[serde(default)]
    pub streaming_details: Option<StreamingAddress>,
    /// Ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub muster: Option<StatusExtension>,
    /// Whatever else a newer peer says.
    #[serde(flatten)]
    pub extra: IndexMap<String, Value>,
}

/// The result of a job. Unknown fields are kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MinerResponse {
    /// What the program printed.
    pub docker_process_stderr: String,
    /// Likewise.
    pub docker_process_stdout: String,
    /// Small output files: path in the container to base64.
    #[serde(default)]
    pub artifacts: Option<IndexMap<String, String>>,
    /// What the destinations answered.
    #[serde(default)]
    pub upload_results: Option<IndexMap<String, String>>,
    /// Whatever else a newer peer says.
    #[serde(flatten)]
    pub extra: IndexMap<String, Value>,
}

/// Nobody ran it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RejectionDetails {
    /// Who refused.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub rejected_by: ParticipantType,
    /// Why.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub reason: JobRejectionReason,
    /// In words.
    pub message: String,
    /// Anything more.
    #[serde(default)]
    pub context: Option<Value>,
}

/// The job's own failure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FailureDetails {
    /// Why.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub reason: JobFailureReason,
    /// Where in its life.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub stage: JobStage,
    /// In words.
    pub message: String,
    /// Anything more.
    #[serde(default)]
    pub context: Option<Value>,
    /// The program's exit code, if it ended.
    #[serde(default)]
    pub docker_process_exit_status: Option<i64>,
    /// What it printed.
    #[serde(default)]
    pub docker_process_stdout: Option<String>,
    /// Likewise.
    #[serde(default)]
    pub docker_process_stderr: Option<String>,
}

/// The subnet's failure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HordeFailureDetails {
    /// Who says so.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub reported_by: ParticipantType,
    /// Why.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub reason: HordeFailureReason,
    /// In words.
    pub message: String,
    /// Anything more.
    #[serde(default)]
    pub context: Option<Value>,
}

/// Where a streaming job answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StreamingAddress {
    /// PEM.
    #[serde(default)]
    pub streaming_server_cert: Option<String>,
    /// Host.
    #[serde(default)]
    pub streaming_server_address: Option<String>,
    /// Port.
    #[serde(default)]
    pub streaming_server_port: Option<u16>,
}

/// Success or failure of the frame before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Response {
    /// Which.
    pub status: ResponseStatus,
    /// Why not.
    #[serde(default)]
    pub errors: Vec<ResponseError>,
}

/// Success or failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ResponseStatus {
    /// The frame was taken.
    Success,
    /// It was not.
    Error,
}

/// One reason. Unknown fields are kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResponseError {
    /// In words.
    pub msg: String,
    /// `auth.signature_invalid` and the like.
    pub r#type: String,
    /// What to do.
    #[serde(default)]
    pub help: String,
    /// Whatever else a newer peer says.
    #[serde(flatten)]
    pub extra: IndexMap<String, Value>,
}

impl Response {
    /// The frame was taken.
    pub fn success() -> Self {
        Self {
            status: ResponseStatus::Success,
            errors: Vec::new(),
        }
    }

    /// The frame was not taken.
    pub fn error(kind: &str, msg: impl Into<String>, help: impl Into<String>) -> Self {
        let error = ResponseError {
            msg: msg.into(),
            r#type: kind.to_owned(),
            help: help.into(),
            extra: IndexMap::new(),
        };
        Self {
            status: ResponseStatus::Error,
            errors: vec![error],
        }
    }
}

constant_text!(
    /// The only scheme there is.
    BittensorSignature = "bittensor"
);
constant_text!(
    /// `job.new`.
    JobNew = "job.new"
);
constant_text!(
    /// `job.cheated`.
    JobCheatedTag = "job.cheated"
);
constant_text!(
    /// `V2JobRequest`.
    JobRequestTag = "V2JobRequest"
);
constant_text!(
    /// `V0JobCheated`.
    CheatReportTag = "V0JobCheated"
);

/// A user's signature and what it covers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserSignature {
    /// Always `bittensor`: sr25519.
    pub signature_type: BittensorSignature,
    /// Who signed.
    pub signatory: UserKey,
    /// Unix nanoseconds by the user's clock; part of what is signed.
    pub timestamp_ns: i64,
    /// Base64.
    #[serde(with = "base64_signature")]
    pub signature: Signature,
    /// What it covers.
    pub signature_scope: SignatureScope,
}

/// What a user's signature covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SignatureScope {
    /// The fields of a job that decide what runs (see [`super::signing::SignedJobFields`]).
    SignedFields,
    /// The whole body.
    FullRequest,
}

/// `V2JobRequest`: a user's job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// The user's.
    pub signature: UserSignature,
    /// Always `job.new`.
    #[serde(default)]
    pub r#type: JobNew,
    /// Always `V2JobRequest`.
    #[serde(default)]
    pub message_type: JobRequestTag,
    /// The job.
    pub uuid: JobId,
    /// Whose account of work it counts towards; not signed.
    #[serde(default)]
    pub job_namespace: Option<String>,
    /// The kind of executor.
    pub executor_class: ExecutorClass,
    /// The image.
    pub docker_image: String,
    /// The arguments of its entry point.
    pub args: Vec<String>,
    /// Environment; its order is signed.
    pub env: IndexMap<String, String>,
    /// Deprecated by ComputeHorde and without effect: the class decides. Still signed.
    #[serde(default = "yes")]
    pub use_gpu: bool,
    /// The inputs.
    #[serde(default)]
    pub volume: Option<Volume>,
    /// Where the outputs go.
    #[serde(default)]
    pub output_upload: Option<OutputUpload>,
    /// Folder whose files come back inside the result.
    #[serde(default)]
    pub artifacts_dir: Option<String>,
    /// Run it on the validator's own miner.
    #[serde(default)]
    pub on_trusted_miner: bool,
    /// Seconds.
    pub download_time_limit: u64,
    /// Seconds.
    pub execution_time_limit: u64,
    /// Seconds.
    pub upload_time_limit: u64,
    /// Seconds.
    pub streaming_start_time_limit: u64,
    /// Set for a streaming job.
    #[serde(default)]
    pub streaming_details: Option<StreamingDetails>,
}

/// `V0JobCheated`: a user's report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheatReport {
    /// The user's.
    pub signature: UserSignature,
    /// Always `job.cheated`.
    #[serde(default)]
    pub r#type: JobCheatedTag,
    /// Always `V0JobCheated`.
    #[serde(default)]
    pub message_type: CheatReportTag,
    /// The job that was cheated on.
    pub job_uuid: String,
    /// The same job on a miner that is trusted.
    pub trusted_job_uuid: String,
    /// In any form.
    #[serde(default)]
    pub details: Option<Value>,
}

fn yes() -> bool {
    true
}

mod base64_signature {
    //! The one place on the wire where a signature is base64.
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::signature::Signature;

    pub(super) fn serialize<S: Serializer>(signature: &Signature, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&signature.to_base64())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Signature, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        Signature::from_base64(&text).map_err(serde::de::Error::custom)
    }
}

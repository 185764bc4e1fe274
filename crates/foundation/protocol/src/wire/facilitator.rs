//! The messages between validator and facilitator. Unlike the miner's messages, these forbid unknown fields, except in
//! status metadata.

use indexmap::IndexMap;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::checkpoints::JobCheckpoints;
use super::checks::{JobCheck, RefundNotice};
use super::machines::MinerNotice;
use super::miner::StreamingDetails;
use super::muster::{
    CancelRequest, CapacityNotice, Challenge, ChallengeResponse, GatewayNotice, JobExtension, LiveLog,
    LiveMetrics, LiveProgress, LiveQueuePlace, StatusExtension,
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

/// A message from a validator to its facilitator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "message_type")]
pub enum ToFacilitator {
    /// The first frame of every connection.
    V0AuthenticationRequest(Authentication),
    /// Sent every minute; the facilitator does not answer it.
    V0Heartbeat(Heartbeat),
    /// A job has reached another status.
    V0JobStatusUpdate(Box<JobStatusUpdate>),
    /// The hardware of an executor.
    V0MachineSpecsUpdate(MachineSpecsUpdate),
    /// Muster's own: the answer to a challenge.
    MusterChallengeResponse(ChallengeResponse),
    /// Muster's own: a piece of a job's output.
    MusterJobLog(Box<LiveLog>),
    /// Muster's own: the progress of a job's stage.
    MusterJobProgress(LiveProgress),
    /// Muster's own: the progress and the metrics that a job's program reported.
    MusterJobMetrics(Box<LiveMetrics>),
    /// Muster's own: the checkpoints of a job that are kept.
    MusterJobCheckpoints(Box<JobCheckpoints>),
    /// Muster's own: the place of a job that waits.
    MusterJobQueued(Box<LiveQueuePlace>),
    /// Muster's own: what the validator's miners offer.
    MusterCapacity(Box<CapacityNotice>),
    /// Muster's own: one miner of the subnet.
    MusterMiner(Box<MinerNotice>),
    /// Muster's own: the address and the models of the validator's gateway.
    MusterGateway(Box<GatewayNotice>),
    /// Muster's own: what running a job again showed.
    MusterJobCheck(Box<JobCheck>),
    /// Muster's own: an answer that is refunded.
    MusterRefund(Box<RefundNotice>),
}

/// A message from a facilitator to a validator.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum FromFacilitator {
    /// A new job.
    Job(Box<UserJobRequest>),
    /// A user reports that a job was cheated on.
    Cheated(Box<CheatReport>),
    /// Muster's own: a Muster facilitator's answer to the greeting of a Muster validator.
    Challenge(Challenge),
    /// Muster's own: the user has cancelled the job.
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

/// A validator's greeting. It never changes, so anyone can replay it: it claims a key and proves nothing (see
/// [`Challenge`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Authentication {
    /// The validator's public key: 64 hex digits without `0x`.
    pub public_key: String,
    /// The validator's signature over the 32 raw bytes of the key.
    pub signature: Signature,
}

/// Shows that the validator is still connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heartbeat {}

/// The hardware of an executor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineSpecsUpdate {
    /// The miner of the executor.
    pub miner_hotkey: MinerKey,
    /// The validator that took the specs.
    pub validator_hotkey: ValidatorKey,
    /// The specs, free in form.
    pub specs: serde_json::Map<String, Value>,
    /// The id of the batch in which the executor was seen.
    pub batch_id: String,
}

/// A job has reached another status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobStatusUpdate {
    /// The id of the job, never of an attempt: the facilitator does not know attempts.
    pub uuid: JobId,
    /// The status that the job has reached.
    pub status: JobStatus,
    /// Details of the status; `completed` and `streaming_ready` must have them.
    #[serde(default)]
    pub metadata: Option<StatusMetadata>,
}

/// Details of a status. Unknown fields are kept, as ComputeHorde's model keeps them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StatusMetadata {
    /// The result; with `completed`.
    #[serde(default)]
    pub miner_response: Option<MinerResponse>,
    /// The rejection; with `rejected`.
    #[serde(default)]
    pub job_rejection_details: Option<RejectionDetails>,
    /// The job's own failure; with `failed`.
    #[serde(default)]
    pub job_failure_details: Option<FailureDetails>,
    /// The subnet's failure; with `horde_failed`.
    #[serde(default)]
    pub horde_failure_details: Option<HordeFailureDetails>,
    /// The address of the job; with `streaming_ready`.
    #[serde(default)]
    pub streaming_details: Option<StreamingAddress>,
    /// Muster's own additions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub muster: Option<StatusExtension>,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub extra: IndexMap<String, Value>,
}

/// The result of a job. Unknown fields are kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MinerResponse {
    /// The program's standard error.
    pub docker_process_stderr: String,
    /// The program's standard output.
    pub docker_process_stdout: String,
    /// Small output files: path in the container to base64.
    #[serde(default)]
    pub artifacts: Option<IndexMap<String, String>>,
    /// The answers of the upload destinations, by path.
    #[serde(default)]
    pub upload_results: Option<IndexMap<String, String>>,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub extra: IndexMap<String, Value>,
}

/// The job was rejected: no executor ran it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RejectionDetails {
    /// The role that rejected the job.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub rejected_by: ParticipantType,
    /// The reason of the rejection.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub reason: JobRejectionReason,
    /// The reason in words.
    pub message: String,
    /// Further details, free in form.
    #[serde(default)]
    pub context: Option<Value>,
}

/// The job failed by its own fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FailureDetails {
    /// The reason of the failure.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub reason: JobFailureReason,
    /// The stage in which the job failed.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub stage: JobStage,
    /// The failure in words.
    pub message: String,
    /// Further details, free in form.
    #[serde(default)]
    pub context: Option<Value>,
    /// The program's exit code, if it ended.
    #[serde(default)]
    pub docker_process_exit_status: Option<i64>,
    /// The program's standard output.
    #[serde(default)]
    pub docker_process_stdout: Option<String>,
    /// The program's standard error.
    #[serde(default)]
    pub docker_process_stderr: Option<String>,
}

/// The subnet failed the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HordeFailureDetails {
    /// The role that reports the failure.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub reported_by: ParticipantType,
    /// The reason of the failure.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub reason: HordeFailureReason,
    /// The failure in words.
    pub message: String,
    /// Further details, free in form.
    #[serde(default)]
    pub context: Option<Value>,
}

/// The address at which a streaming job accepts requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StreamingAddress {
    /// The server's certificate, PEM.
    #[serde(default)]
    pub streaming_server_cert: Option<String>,
    /// The server's host name or IP address.
    #[serde(default)]
    pub streaming_server_address: Option<String>,
    /// The server's TCP port.
    #[serde(default)]
    pub streaming_server_port: Option<u16>,
}

/// The facilitator's answer to the frame before: taken or not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Response {
    /// Whether the frame was taken.
    pub status: ResponseStatus,
    /// The reasons why the frame was not taken; empty for `success`.
    #[serde(default)]
    pub errors: Vec<ResponseError>,
}

/// Whether a frame was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ResponseStatus {
    /// The frame was taken.
    Success,
    /// The frame was not taken.
    Error,
}

/// One reason why a frame was not taken. Unknown fields are kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResponseError {
    /// The reason as text.
    pub msg: String,
    /// The kind of the error, such as `auth.signature_invalid`.
    pub r#type: String,
    /// Advice on what to do about it.
    #[serde(default)]
    pub help: String,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub extra: IndexMap<String, Value>,
}

impl Response {
    /// The answer to a frame that was taken.
    pub fn success() -> Self {
        Self {
            status: ResponseStatus::Success,
            errors: Vec::new(),
        }
    }

    /// The answer to a frame that was not taken, with one reason.
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
    /// The only signature scheme that exists.
    BittensorSignature = "bittensor"
);
constant_text!(
    /// The constant of [`UserJobRequest::type`].
    JobNew = "job.new"
);
constant_text!(
    /// The constant of [`CheatReport::type`].
    JobCheatedTag = "job.cheated"
);
constant_text!(
    /// The `message_type` of [`UserJobRequest`].
    JobRequestTag = "V2JobRequest"
);
constant_text!(
    /// The `message_type` of [`CheatReport`].
    CheatReportTag = "V0JobCheated"
);

/// A user's signature and what it covers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserSignature {
    /// Always `bittensor`: sr25519.
    pub signature_type: BittensorSignature,
    /// The user's public key.
    pub signatory: UserKey,
    /// Unix nanoseconds by the user's clock; the signature covers them.
    pub timestamp_ns: i64,
    /// The signature, base64.
    #[serde(with = "base64_signature")]
    pub signature: Signature,
    /// The part of the request that the signature covers.
    pub signature_scope: SignatureScope,
}

/// The part of a request that a user's signature covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SignatureScope {
    /// The fields of a job that decide its execution (see [`super::signing::SignedJobFields`]).
    SignedFields,
    /// The whole body of the request.
    FullRequest,
}

/// `V2JobRequest`: a user's job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserJobRequest {
    /// The user's signature on the job.
    pub signature: UserSignature,
    /// Always `job.new`.
    #[serde(default)]
    pub r#type: JobNew,
    /// Always `V2JobRequest`.
    #[serde(default)]
    pub message_type: JobRequestTag,
    /// The id of the job.
    pub uuid: JobId,
    /// The account that the job counts towards; not signed.
    #[serde(default)]
    pub job_namespace: Option<String>,
    /// The class of executor that the job needs.
    pub executor_class: ExecutorClass,
    /// The reference of the image to run.
    pub docker_image: String,
    /// The arguments of the image's entry point.
    pub args: Vec<String>,
    /// Environment variables; their order is signed.
    pub env: IndexMap<String, String>,
    /// Deprecated by ComputeHorde and without effect: the class decides. The signature covers it.
    #[serde(default = "yes")]
    pub use_gpu: bool,
    /// The job's inputs.
    #[serde(default)]
    pub volume: Option<Volume>,
    /// The destinations of the outputs.
    #[serde(default)]
    pub output_upload: Option<OutputUpload>,
    /// The folder in the container whose files come back inside the result.
    #[serde(default)]
    pub artifacts_dir: Option<String>,
    /// Whether the job must run on the validator's own miner.
    #[serde(default)]
    pub on_trusted_miner: bool,
    /// Limit for fetching the inputs, in seconds.
    pub download_time_limit: u64,
    /// Limit for the program, in seconds.
    pub execution_time_limit: u64,
    /// Limit for delivering the outputs, in seconds.
    pub upload_time_limit: u64,
    /// Limit from the program's start to its first answer, in seconds; streaming jobs only.
    pub streaming_start_time_limit: u64,
    /// Present for a streaming job only.
    #[serde(default)]
    pub streaming_details: Option<StreamingDetails>,
    /// Muster's own: the job's terms and its account. Sent only to validators that showed the feature `terms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub muster: Option<Box<JobExtension>>,
}

/// `V0JobCheated`: a user's report of a job that was cheated on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheatReport {
    /// The user's signature on the report.
    pub signature: UserSignature,
    /// Always `job.cheated`.
    #[serde(default)]
    pub r#type: JobCheatedTag,
    /// Always `V0JobCheated`.
    #[serde(default)]
    pub message_type: CheatReportTag,
    /// The job that was cheated on.
    pub job_uuid: String,
    /// The same job, run on a trusted miner.
    pub trusted_job_uuid: String,
    /// The user's evidence, free in form.
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

//! The contents of the messages on the two sockets of a miner: towards validators and towards executors.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::checkpoints::RequestExtension;
use super::muster::OfferExtension;
use crate::class::{ExecutorClass, Manifest};
use crate::digest::{Digest, ImageId};
use crate::ids::{AttemptId, ExecutorToken, JobId};
use crate::job::CompletionReport;
use crate::keys::{Hotkey, MinerKey, ValidatorKey};
use crate::receipt::{AcceptedReceipt, FinishedReceipt, Receipt, StartedReceipt};
use crate::signature::Signature;
use crate::status::{HordeFailureReason, JobFailureReason, JobRejectionReason, JobStage, ParticipantType};
use crate::trace::JobTrace;
use crate::upload::OutputUpload;
use crate::volume::Volume;

/// Proof that the connecting party holds the validator's hotkey.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValidatorAuth {
    /// The hotkey of the validator that connects.
    pub validator_hotkey: ValidatorKey,
    /// The hotkey of the miner that the validator means to reach.
    pub miner_hotkey: MinerKey,
    /// Unix seconds by the validator's clock.
    pub timestamp: i64,
    /// The validator's signature over [`super::signing::validator_auth`].
    pub signature: Signature,
}

/// Both the question (with null) and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MainHotkey {
    /// The hotkey that gets the main share; null in the question.
    #[serde(default)]
    pub main_hotkey: Option<Hotkey>,
}

/// The offer of a job. It holds everything that an executor needs before it may report ready.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InitialJobRequest {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
    /// The class of executor that the job needs.
    pub executor_class: ExecutorClass,
    /// The reference of the image to have ready.
    #[serde(default)]
    pub docker_image: Option<String>,
    /// Deprecated and unused; ComputeHorde's validators send 300.
    #[serde(default)]
    pub timeout_seconds: Option<u64>,
    /// The job's inputs; null where they come with [`JobRequest`].
    #[serde(default)]
    pub volume: Option<Volume>,
    /// The started receipt: the validator's reservation of an executor.
    pub job_started_receipt_payload: StartedReceipt,
    /// The validator's signature on the started receipt.
    pub job_started_receipt_signature: Signature,
    /// Present for a streaming job only.
    #[serde(default)]
    pub streaming_details: Option<StreamingDetails>,
    /// The time limits of the job's stages.
    #[serde(default)]
    pub executor_timing: Option<ExecutorTiming>,
    /// Muster's own: the terms of the job's image. Sent only to miners that showed the features of its fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub muster: Option<Box<OfferExtension>>,
}

/// The client that may call a streaming job, and the address of the job's executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StreamingDetails {
    /// The client's certificate, PEM.
    pub public_key: String,
    /// The executor's address as its miner sees it.
    #[serde(default)]
    pub executor_ip: Option<String>,
    /// Muster's own: the terms on which the job is sealed and attested; absent for a job that answers its user
    /// directly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(ignore))]
    pub muster: Option<SealTerms>,
}

/// The facts that a miner must attest of a sealed session besides those it knows itself, and the address of the service
/// on its executor. The validator sets them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealTerms {
    /// The job that the session serves. An attempt has an id of its own, which equals the job's only in a first
    /// attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// The name of the model that clients ask for.
    pub model: String,
    /// The id of the image to run; the miner attests no other.
    pub image: ImageId,
    /// Digest of weights, dtype, tokenizer and template; null where the whitelist names none.
    #[serde(default)]
    pub weights: Option<Digest>,
    /// The scheme of the answers' digests: `raw-http` or `text`.
    pub scheme: String,
    /// The path that answers 200 once the service takes requests.
    pub health: String,
    /// The name of the Unix socket on which the service listens, in the folder that is mounted for it. Null where the
    /// service listens on [`Self::port`].
    #[serde(default)]
    pub socket: Option<String>,
    /// The TCP port on the container's own loopback on which the service listens.
    #[serde(default)]
    pub port: Option<u16>,
    /// Price of a million input tokens, in rao.
    pub input_price: u64,
    /// Price of a million output tokens, in rao.
    pub output_price: u64,
    /// The grader that challenges the executor while it serves; absent where its class is not graded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grader: Option<GraderTerms>,
}

/// A grader that an executor runs beside a session once its validator challenges the executor there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraderTerms {
    /// The id of the image to run.
    pub image: ImageId,
    /// The reference by which a container engine finds the image.
    pub docker_image: String,
    /// Arguments of the image's entry point.
    #[serde(default)]
    pub args: Vec<String>,
    /// The name of the grader's Unix socket, in a folder of its own.
    pub socket: String,
    /// The path that answers 200 once the grader takes challenges.
    pub health: String,
}

impl StreamingDetails {
    /// The job that an attempt's session is attested for: the job in the terms. Where the terms name none, it is read
    /// from the attempt's id, the only id known.
    pub fn job_of(&self, attempt: AttemptId) -> JobId {
        let named = self.muster.as_ref().and_then(|terms| terms.job);
        named.unwrap_or_else(|| JobId::from_uuid(*attempt.as_uuid()))
    }
}

/// Time limits of a job's stages on its executor, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorTiming {
    /// Slack for the whole job, in seconds.
    pub allowed_leeway: u64,
    /// Limit for fetching the inputs, in seconds.
    pub download_time_limit: u64,
    /// Limit for the program, in seconds.
    pub execution_time_limit: u64,
    /// Limit for delivering the outputs, in seconds.
    pub upload_time_limit: u64,
    /// Limit from the program's start to its first answer, in seconds; streaming jobs only.
    pub streaming_start_time_limit: u64,
}

crate::macros::open_enum!(
    /// Which of ComputeHorde's sets of `docker run` options applies.
    OptionsPreset {
        /// The container gets every GPU.
        NvidiaAll = "nvidia_all",
        /// The container gets no GPU.
        None = "none",
    }
);

/// The job itself, sent once an executor is ready.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRequest {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
    /// The class of executor that the job needs.
    pub executor_class: ExecutorClass,
    /// The reference of the image to run.
    pub docker_image: String,
    /// The text of a script to mount as `/script.py`.
    #[serde(default)]
    pub raw_script: Option<String>,
    /// Whether the container gets the GPUs.
    pub docker_run_options_preset: OptionsPreset,
    /// The arguments of the image's entry point.
    pub docker_run_cmd: Vec<String>,
    /// Environment variables, in the user's order.
    #[serde(default)]
    pub env: IndexMap<String, String>,
    /// The job's inputs, if they were not in the offer.
    #[serde(default)]
    pub volume: Option<Volume>,
    /// The destinations of the outputs.
    #[serde(default)]
    pub output_upload: Option<OutputUpload>,
    /// The folder in the container whose files come back inside the result.
    #[serde(default)]
    pub artifacts_dir: Option<String>,
    /// Muster's own: the job's checkpoints. Sent only to peers that showed the feature `checkpoints`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub muster: Option<Box<RequestExtension>>,
}

/// The validator's half of an accepted receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedReceiptRequest {
    /// The accepted receipt.
    pub payload: AcceptedReceipt,
    /// The validator's signature on it.
    pub signature: Signature,
}

/// The validator's half of a finished receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishedReceiptRequest {
    /// The finished receipt.
    pub payload: FinishedReceipt,
    /// The validator's signature on it.
    pub signature: Signature,
}

/// An error as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GenericError {
    /// The error, for the peer's operator.
    #[serde(default)]
    pub details: Option<String>,
    /// The attempt that it is about. A Muster miner sends it to a Muster validator only; other peers never see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_uuid: Option<AttemptId>,
}

crate::macros::open_enum!(
    /// The reason why a miner does not serve a validator.
    UnauthorizedCode {
        /// The timestamp of [`ValidatorAuth`] is too old.
        TokenTooOld = "TOKEN_TOO_OLD",
        /// The validator is not in the metagraph.
        UnknownValidator = "UNKNOWN_VALIDATOR",
        /// The miner knows the validator and has switched it off.
        ValidatorInactive = "VALIDATOR_INACTIVE",
    }
);

/// The miner's rejection of a validator's greeting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnauthorizedError {
    /// The reason of the rejection.
    pub code: UnauthorizedCode,
    /// The reason as text.
    #[serde(default)]
    pub details: Option<String>,
}

/// The executors that a miner has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorManifest {
    /// The number of executors of each class.
    pub manifest: Manifest,
    /// Muster's own: those of the executors that take images from archives or with a login. Sent only to validators
    /// that showed the feature `private-images`; absent if the miner does not report them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private_images: Option<Manifest>,
}

/// A message that only names its attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptNotice {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
}

/// The miner's rejection of an offer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeclineJob {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
    /// The reason as text.
    #[serde(default)]
    pub message: String,
    /// The reason of the rejection.
    #[serde(default)]
    pub reason: JobRejectionReason,
    /// Receipts which prove that the miner's executors work for others.
    #[serde(default)]
    pub receipts: Vec<Receipt>,
    /// Further details, free in form; see [`ShorterJob`].
    #[serde(default)]
    pub context: Option<Value>,
}

/// In the context of a rejection as busy: an executor is free for a job whose times are shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShorterJob {
    /// Seconds by which the limits of the job's times must be shorter, all together.
    pub shorter_by_s: u64,
}

impl ShorterJob {
    /// Reads the context of a rejection; `None` if it names no shorter job.
    pub fn of_context(context: Option<&Value>) -> Option<Self> {
        Self::deserialize(context?).ok()
    }

    /// The context of a rejection that names the shorter job.
    pub fn context(self) -> Value {
        json!({ "shorter_by_s": self.shorter_by_s })
    }
}

/// An executor reports on its start: ready, or with the deprecated messages, failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorReady {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
    /// Unused by current peers.
    #[serde(default)]
    pub executor_token: Option<ExecutorToken>,
}

/// A streaming job accepts requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamingJobReady {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
    /// Unused by current peers.
    #[serde(default)]
    pub executor_token: Option<ExecutorToken>,
    /// The server's certificate, PEM.
    pub public_key: String,
    /// The IP address of the server. An executor sends null and its miner fills it in.
    #[serde(default)]
    pub ip: Option<String>,
    /// The TCP port of the server.
    pub port: u16,
    /// The miner's signature over [`super::signing::streaming_ready`].
    #[serde(default)]
    pub miner_signature: Option<Signature>,
}

/// The executor's hardware, free in form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineSpecs {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
    /// An object `{"specs": {…}}`.
    pub specs: Value,
}

/// The result of an attempt that succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobFinished {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
    /// The program's standard output; long output is cut in the middle.
    pub docker_process_stdout: String,
    /// The program's standard error; long output is cut in the middle.
    pub docker_process_stderr: String,
    /// Small output files: path in the container to base64.
    #[serde(default)]
    pub artifacts: Option<IndexMap<String, String>>,
    /// The answers of the upload destinations: path to a JSON text of `headers` and `body`.
    #[serde(default)]
    pub upload_results: Option<IndexMap<String, String>>,
    /// Muster's own: the image that ran. ComputeHorde's validators ignore it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<JobImage>,
    /// Muster's own: the stages of the attempt, if its offer had a trace context.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::trace::read_trace"
    )]
    pub trace: Option<Box<JobTrace>>,
    /// Muster's own: what the program left and used. ComputeHorde's validators ignore it.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::job::read_completion"
    )]
    pub completion: Option<Box<CompletionReport>>,
}

/// The image that a job's image reference meant on the executor that ran the job, as the executor tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobImage {
    /// The image reference in the job.
    pub name: String,
    /// The digest of the image's configuration.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: ImageId,
    /// The digest of the image's manifest in its registry; `None` for an image that came from elsewhere.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub manifest: Option<Digest>,
}

/// The job failed by its own fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobFailed {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
    /// The failure as text.
    #[serde(default, alias = "error_detail")]
    pub message: String,
    /// The reason of the failure.
    #[serde(default, alias = "error_type")]
    pub reason: JobFailureReason,
    /// The stage in which the job failed.
    #[serde(default)]
    pub stage: JobStage,
    /// The program's exit code, if it ended.
    #[serde(default)]
    pub docker_process_exit_status: Option<i64>,
    /// The program's standard output.
    #[serde(default)]
    pub docker_process_stdout: Option<String>,
    /// The program's standard error.
    #[serde(default)]
    pub docker_process_stderr: Option<String>,
    /// Further details, free in form.
    #[serde(default)]
    pub context: Option<Value>,
}

/// The subnet failed the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HordeFailed {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
    /// The role that reports the failure.
    pub reported_by: ParticipantType,
    /// The failure as text.
    pub message: String,
    /// The reason of the failure.
    #[serde(default)]
    pub reason: HordeFailureReason,
    /// Further details, free in form.
    #[serde(default)]
    pub context: Option<Value>,
}

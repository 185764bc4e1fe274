//! Validator and miner, and miner and executor: the two sockets share their messages.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::executor::{
    EnrolExecutor, ExecutorEnrolled, ExecutorHello, ExecutorMetrics, JobLog, JobProgress, LeaseOver,
    SealSession, SessionClosed, SessionSealed,
};
use super::muster::{CancelJob, ReceiptCountersigned, WhitelistNotice};
use crate::class::{ExecutorClass, Manifest};
use crate::digest::{Digest, ImageId};
use crate::ids::{AttemptId, ExecutorToken, JobId};
use crate::keys::{Hotkey, MinerKey, ValidatorKey};
use crate::receipt::{AcceptedReceipt, FinishedReceipt, Receipt, StartedReceipt};
use crate::signature::Signature;
use crate::status::{HordeFailureReason, JobFailureReason, JobRejectionReason, JobStage, ParticipantType};
use crate::upload::OutputUpload;
use crate::volume::Volume;

/// What a validator sends to a miner, and a miner passes on to its executor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "message_type")]
pub enum ToMiner {
    /// The first frame of every connection.
    ValidatorAuthForMiner(ValidatorAuth),
    /// Asks for the miner's main hotkey.
    V0MainHotkeyMessage(MainHotkey),
    /// Offers a job.
    V0InitialJobRequest(Box<InitialJobRequest>),
    /// The rest of the job, once an executor is ready.
    V0JobRequest(Box<JobRequest>),
    /// The validator's signature on the accepted receipt.
    V0JobAcceptedReceiptRequest(AcceptedReceiptRequest),
    /// The validator's signature on the finished receipt.
    V0JobFinishedReceiptRequest(FinishedReceiptRequest),
    /// Something went wrong on the other side.
    GenericError(GenericError),
    /// Ours: stop the attempt.
    MusterCancelJob(CancelJob),
    /// Ours, to an executor only: it is enrolled.
    MusterExecutorEnrolled(ExecutorEnrolled),
    /// Ours, to an executor only: its session is attested, or will not be.
    MusterSessionSealed(SessionSealed),
    /// Ours: which images may serve.
    MusterWhitelist(WhitelistNotice),
}

/// What a miner sends to a validator, and an executor to its miner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "message_type")]
pub enum FromMiner {
    /// What the miner has, right after authentication.
    V0ExecutorManifestRequest(ExecutorManifest),
    /// Answer to the same question.
    V0MainHotkeyMessage(MainHotkey),
    /// The miner will run it.
    V0AcceptJobRequest(AttemptNotice),
    /// The miner will not.
    V0DeclineJobRequest(DeclineJob),
    /// An executor is up and has the image.
    V0ExecutorReadyRequest(ExecutorReady),
    /// The inputs are in place.
    V0VolumesReadyRequest(AttemptNotice),
    /// The program has ended.
    V0ExecutionDoneRequest(AttemptNotice),
    /// A streaming job answers.
    V0StreamingJobReadyRequest(StreamingJobReady),
    /// The executor's hardware.
    V0MachineSpecsRequest(MachineSpecs),
    /// Success.
    V0JobFinishedRequest(JobFinished),
    /// The job's own failure.
    V0JobFailedRequest(JobFailed),
    /// The subnet's failure.
    V0HordeFailedRequest(HordeFailed),
    /// Something went wrong on the other side.
    GenericError(GenericError),
    /// The miner does not serve this validator.
    UnauthorizedError(UnauthorizedError),
    /// Deprecated, still read: the executor could not start.
    V0ExecutorFailedRequest(ExecutorReady),
    /// Deprecated, still read: the streaming job did not start.
    V0StreamingJobNotReadyRequest(ExecutorReady),
    /// Ours: the miner's signature on a receipt.
    MusterReceiptCountersigned(Box<ReceiptCountersigned>),
    /// Ours: a piece of what the job prints.
    MusterJobLog(Box<JobLog>),
    /// Ours: how far something is that takes long.
    MusterJobProgress(JobProgress),
    /// Ours, from an executor only: what its machine does.
    MusterExecutorMetrics(Box<ExecutorMetrics>),
    /// Ours, from a standing executor only: it is there.
    MusterExecutorHello(ExecutorHello),
    /// Ours, from an executor only: it wants to be known.
    MusterEnrolExecutor(EnrolExecutor),
    /// Ours, from a standing executor only: it is free again.
    MusterLeaseOver(LeaseOver),
    /// Ours, from an executor only: it wants its session attested.
    MusterSealSession(Box<SealSession>),
    /// Ours: the last word of a sealed session.
    MusterSessionClosed(SessionClosed),
}

/// Proof that the connecting party holds the validator's hotkey.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValidatorAuth {
    /// Who connects.
    pub validator_hotkey: ValidatorKey,
    /// Whom it means to reach.
    pub miner_hotkey: MinerKey,
    /// Unix seconds by the validator's clock.
    pub timestamp: i64,
    /// Over [`super::signing::validator_auth`].
    pub signature: Signature,
}

/// Question (null) and answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MainHotkey {
    /// The hotkey that gets the main share.
    #[serde(default)]
    pub main_hotkey: Option<Hotkey>,
}

/// The offer of a job. Holds everything an executor needs before it may say that it is ready.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InitialJobRequest {
    /// The attempt.
    pub job_uuid: AttemptId,
    /// The kind of executor wanted.
    pub executor_class: ExecutorClass,
    /// The image to have ready.
    #[serde(default)]
    pub docker_image: Option<String>,
    /// Deprecated; Python sends 300.
    #[serde(default)]
    pub timeout_seconds: Option<u64>,
    /// The inputs.
    #[serde(default)]
    pub volume: Option<Volume>,
    /// The reservation.
    pub job_started_receipt_payload: StartedReceipt,
    /// The validator's signature on the reservation.
    pub job_started_receipt_signature: Signature,
    /// Set for a streaming job.
    #[serde(default)]
    pub streaming_details: Option<StreamingDetails>,
    /// The clocks of the stages.
    #[serde(default)]
    pub executor_timing: Option<ExecutorTiming>,
}

/// Who may call a streaming job, and where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StreamingDetails {
    /// The client's certificate, PEM.
    pub public_key: String,
    /// The executor's address as its miner sees it.
    #[serde(default)]
    pub executor_ip: Option<String>,
    /// Ours: the terms on which the job is to be sealed and attested; absent for a job that answers its user directly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(ignore))]
    pub muster: Option<SealTerms>,
}

/// What a miner is to attest of a sealed session besides what it knows itself, and how its executor reaches the service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealTerms {
    /// The job that the session is. An attempt has an id of its own, which is the job's only in a first attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// The model that clients ask for.
    pub model: String,
    /// The image that is to run: nothing else may be attested.
    pub image: ImageId,
    /// Digest of weights, dtype, tokenizer and template, if the whitelist names one.
    #[serde(default)]
    pub weights: Option<Digest>,
    /// What digests are over: `raw-http` or `text`.
    pub scheme: String,
    /// Answers 200 once the service can be asked.
    pub health: String,
    /// Where it listens: the name of a Unix socket in the folder that is mounted for it, or else [`Self::port`].
    #[serde(default)]
    pub socket: Option<String>,
    /// A TCP port on the container's own loopback.
    #[serde(default)]
    pub port: Option<u16>,
    /// Rao for a million tokens of input.
    pub input_price: u64,
    /// Rao for a million tokens of output.
    pub output_price: u64,
    /// What challenges the executor while it serves; absent where its class is not graded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grader: Option<GraderTerms>,
}

/// A grader that an executor runs beside a session, once its validator challenges it there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraderTerms {
    /// The image that is to run.
    pub image: ImageId,
    /// What an engine is given to find it by.
    pub docker_image: String,
    /// Arguments of its entry point.
    #[serde(default)]
    pub args: Vec<String>,
    /// The name of its Unix socket, in a folder that is its own.
    pub socket: String,
    /// Answers 200 once it can be challenged.
    pub health: String,
}

impl StreamingDetails {
    /// The job that the session of an attempt is attested as: the one that its terms name; where they name none, the attempt's
    /// id is all that is known of it.
    pub fn job_of(&self, attempt: AttemptId) -> JobId {
        let named = self.muster.as_ref().and_then(|terms| terms.job);
        named.unwrap_or_else(|| JobId::from_uuid(*attempt.as_uuid()))
    }
}

/// Seconds for each stage of a job on its executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorTiming {
    /// Slack for the whole job.
    pub allowed_leeway: u64,
    /// For the inputs.
    pub download_time_limit: u64,
    /// For the program.
    pub execution_time_limit: u64,
    /// For the outputs.
    pub upload_time_limit: u64,
    /// From started to answering, for streaming jobs.
    pub streaming_start_time_limit: u64,
}

crate::macros::open_enum!(
    /// Which of ComputeHorde's sets of `docker run` options applies.
    OptionsPreset {
        /// Every GPU.
        NvidiaAll = "nvidia_all",
        /// No GPU.
        None = "none",
    }
);

/// The job itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRequest {
    /// The attempt.
    pub job_uuid: AttemptId,
    /// The kind of executor.
    pub executor_class: ExecutorClass,
    /// The image to run.
    pub docker_image: String,
    /// A script to mount as `/script.py`.
    #[serde(default)]
    pub raw_script: Option<String>,
    /// GPU or not.
    pub docker_run_options_preset: OptionsPreset,
    /// The arguments of the image's entry point.
    pub docker_run_cmd: Vec<String>,
    /// Environment, in the user's order.
    #[serde(default)]
    pub env: IndexMap<String, String>,
    /// The inputs, if they were not in the offer.
    #[serde(default)]
    pub volume: Option<Volume>,
    /// Where the outputs go.
    #[serde(default)]
    pub output_upload: Option<OutputUpload>,
    /// Folder in the container whose files come back inside the result.
    #[serde(default)]
    pub artifacts_dir: Option<String>,
}

/// The validator's half of an accepted receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedReceiptRequest {
    /// What it says.
    pub payload: AcceptedReceipt,
    /// The validator's signature.
    pub signature: Signature,
}

/// The validator's half of a finished receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishedReceiptRequest {
    /// What it says.
    pub payload: FinishedReceipt,
    /// The validator's signature.
    pub signature: Signature,
}

/// An error in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GenericError {
    /// What went wrong.
    #[serde(default)]
    pub details: Option<String>,
}

crate::macros::open_enum!(
    /// Why a validator is not served.
    UnauthorizedCode {
        /// The greeting is too old.
        TokenTooOld = "TOKEN_TOO_OLD",
        /// Not in the metagraph.
        UnknownValidator = "UNKNOWN_VALIDATOR",
        /// Known and switched off.
        ValidatorInactive = "VALIDATOR_INACTIVE",
    }
);

/// A refusal at the door.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnauthorizedError {
    /// Why.
    pub code: UnauthorizedCode,
    /// In words.
    #[serde(default)]
    pub details: Option<String>,
}

/// What a miner has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorManifest {
    /// Executors per class.
    pub manifest: Manifest,
}

/// A message that says nothing but which attempt it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptNotice {
    /// The attempt.
    pub job_uuid: AttemptId,
}

/// The miner will not run it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeclineJob {
    /// The attempt.
    pub job_uuid: AttemptId,
    /// In words.
    #[serde(default)]
    pub message: String,
    /// Why.
    #[serde(default)]
    pub reason: JobRejectionReason,
    /// Proof that its executors are at work for others.
    #[serde(default)]
    pub receipts: Vec<Receipt>,
    /// Anything more.
    #[serde(default)]
    pub context: Option<Value>,
}

/// An executor speaks up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorReady {
    /// The attempt.
    pub job_uuid: AttemptId,
    /// Unused by current peers.
    #[serde(default)]
    pub executor_token: Option<ExecutorToken>,
}

/// A streaming job answers requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamingJobReady {
    /// The attempt.
    pub job_uuid: AttemptId,
    /// Unused by current peers.
    #[serde(default)]
    pub executor_token: Option<ExecutorToken>,
    /// The server's certificate, PEM.
    pub public_key: String,
    /// Where it listens; an executor leaves it to its miner.
    #[serde(default)]
    pub ip: Option<String>,
    /// Where it listens.
    pub port: u16,
    /// The miner's signature over [`super::signing::streaming_ready`].
    #[serde(default)]
    pub miner_signature: Option<Signature>,
}

/// The executor's hardware, free in form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineSpecs {
    /// The attempt.
    pub job_uuid: AttemptId,
    /// `{"specs": {…}}`.
    pub specs: Value,
}

/// Success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobFinished {
    /// The attempt.
    pub job_uuid: AttemptId,
    /// What the program printed, cut in the middle if long.
    pub docker_process_stdout: String,
    /// Likewise.
    pub docker_process_stderr: String,
    /// Small output files: path in the container to base64.
    #[serde(default)]
    pub artifacts: Option<IndexMap<String, String>>,
    /// What the destinations answered: path to a JSON text of `headers` and `body`.
    #[serde(default)]
    pub upload_results: Option<IndexMap<String, String>>,
    /// Ours: which image it was. ComputeHorde's validators ignore it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<JobImage>,
}

/// Which image a job's name for it stood for on the executor that ran it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobImage {
    /// As the job names it.
    pub name: String,
    /// The digest of its configuration.
    pub id: ImageId,
    /// The digest of its manifest in the registry it came from; `None` for one that came otherwise.
    #[serde(default)]
    pub manifest: Option<Digest>,
}

/// The job's own failure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobFailed {
    /// The attempt.
    pub job_uuid: AttemptId,
    /// In words.
    #[serde(default, alias = "error_detail")]
    pub message: String,
    /// Why.
    #[serde(default, alias = "error_type")]
    pub reason: JobFailureReason,
    /// Where in its life.
    #[serde(default)]
    pub stage: JobStage,
    /// The program's exit code, if it ended.
    #[serde(default)]
    pub docker_process_exit_status: Option<i64>,
    /// What it printed.
    #[serde(default)]
    pub docker_process_stdout: Option<String>,
    /// Likewise.
    #[serde(default)]
    pub docker_process_stderr: Option<String>,
    /// Anything more.
    #[serde(default)]
    pub context: Option<Value>,
}

/// The subnet's failure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HordeFailed {
    /// The attempt.
    pub job_uuid: AttemptId,
    /// Who says so.
    pub reported_by: ParticipantType,
    /// In words.
    pub message: String,
    /// Why.
    #[serde(default)]
    pub reason: HordeFailureReason,
    /// Anything more.
    #[serde(default)]
    pub context: Option<Value>,
}

impl FromMiner {
    /// The attempt a message is about, if it is about one.
    pub fn attempt(&self) -> Option<AttemptId> {
        match self {
            Self::V0ExecutorManifestRequest(_)
            | Self::V0MainHotkeyMessage(_)
            | Self::GenericError(_)
            | Self::UnauthorizedError(_)
            | Self::MusterExecutorMetrics(_)
            | Self::MusterExecutorHello(_)
            | Self::MusterEnrolExecutor(_) => None,
            Self::V0AcceptJobRequest(m)
            | Self::V0VolumesReadyRequest(m)
            | Self::V0ExecutionDoneRequest(m) => Some(m.job_uuid),
            Self::V0DeclineJobRequest(m) => Some(m.job_uuid),
            Self::V0ExecutorReadyRequest(m)
            | Self::V0ExecutorFailedRequest(m)
            | Self::V0StreamingJobNotReadyRequest(m) => Some(m.job_uuid),
            Self::V0StreamingJobReadyRequest(m) => Some(m.job_uuid),
            Self::V0MachineSpecsRequest(m) => Some(m.job_uuid),
            Self::V0JobFinishedRequest(m) => Some(m.job_uuid),
            Self::V0JobFailedRequest(m) => Some(m.job_uuid),
            Self::V0HordeFailedRequest(m) => Some(m.job_uuid),
            Self::MusterReceiptCountersigned(m) => Some(m.receipt.payload.attempt()),
            Self::MusterJobLog(m) => Some(m.job_uuid),
            Self::MusterJobProgress(m) => Some(m.job_uuid),
            Self::MusterLeaseOver(m) => Some(m.job_uuid),
            Self::MusterSealSession(m) => Some(m.job_uuid),
            Self::MusterSessionClosed(m) => Some(m.job_uuid),
        }
    }
}

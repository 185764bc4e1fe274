//! The socket between validator and miner: the messages of each direction.

use serde::{Deserialize, Serialize};

use super::audits::{AuditMessage, AuditReply};
use super::checkpoints::{CheckpointKept, CheckpointNotice, DrainJob};
use super::executor::{ExecutorUp, JobLog, JobMetrics, JobProgress, SessionClosed};
use super::machines::MachinesNotice;
use super::miner::{
    AcceptedReceiptRequest, AttemptNotice, DeclineJob, ExecutorManifest, ExecutorReady,
    FinishedReceiptRequest, GenericError, HordeFailed, InitialJobRequest, JobFailed, JobFinished, JobRequest,
    MachineSpecs, MainHotkey, StreamingJobReady, UnauthorizedError, ValidatorAuth,
};
use super::muster::{CancelJob, ReceiptCountersigned, WhitelistNotice};
use crate::ids::AttemptId;

/// A message from a validator to a miner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "message_type")]
pub enum ValidatorToMiner {
    /// The first frame of every connection from a validator.
    ValidatorAuthForMiner(ValidatorAuth),
    /// Asks for the miner's main hotkey.
    V0MainHotkeyMessage(MainHotkey),
    /// Offers a job.
    V0InitialJobRequest(Box<InitialJobRequest>),
    /// The rest of the job, sent once an executor is ready.
    V0JobRequest(Box<JobRequest>),
    /// The validator's signature on the accepted receipt.
    V0JobAcceptedReceiptRequest(AcceptedReceiptRequest),
    /// The validator's signature on the finished receipt.
    V0JobFinishedReceiptRequest(FinishedReceiptRequest),
    /// Reports an error of the sender as text.
    GenericError(GenericError),
    /// Muster's own: stop the attempt.
    MusterCancelJob(CancelJob),
    /// Muster's own: the images that may serve sealed sessions.
    MusterWhitelist(WhitelistNotice),
    /// Muster's own: a notice about spot checks.
    MusterAudit(Box<AuditMessage>),
    /// Muster's own: the validator has stored a checkpoint.
    MusterCheckpointKept(CheckpointKept),
    /// Muster's own: the attempt must save its state and leave its executor.
    MusterDrain(DrainJob),
}

/// A message from a miner to a validator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "message_type")]
pub enum MinerToValidator {
    /// The miner's executors per class, sent right after authentication.
    V0ExecutorManifestRequest(ExecutorManifest),
    /// Answers the validator's question for the main hotkey.
    V0MainHotkeyMessage(MainHotkey),
    /// The miner will run the attempt.
    V0AcceptJobRequest(AttemptNotice),
    /// The miner will not run the attempt.
    V0DeclineJobRequest(DeclineJob),
    /// An executor is up and has the image.
    V0ExecutorReadyRequest(ExecutorReady),
    /// The inputs are in place.
    V0VolumesReadyRequest(AttemptNotice),
    /// The program has ended.
    V0ExecutionDoneRequest(AttemptNotice),
    /// A streaming job accepts requests.
    V0StreamingJobReadyRequest(StreamingJobReady),
    /// The executor's hardware.
    V0MachineSpecsRequest(MachineSpecs),
    /// The attempt succeeded.
    V0JobFinishedRequest(JobFinished),
    /// The job failed by its own fault.
    V0JobFailedRequest(JobFailed),
    /// The subnet failed the job.
    V0HordeFailedRequest(HordeFailed),
    /// Reports an error of the sender as text.
    GenericError(GenericError),
    /// The miner does not serve this validator.
    UnauthorizedError(UnauthorizedError),
    /// Deprecated, still read: the executor could not start.
    V0ExecutorFailedRequest(ExecutorReady),
    /// Deprecated, still read: the streaming job did not start.
    V0StreamingJobNotReadyRequest(ExecutorReady),
    /// Muster's own: the miner's signature on a receipt.
    MusterReceiptCountersigned(Box<ReceiptCountersigned>),
    /// Muster's own: an executor is up and fetches the image.
    MusterExecutorUp(ExecutorUp),
    /// Muster's own: a piece of the job's output.
    MusterJobLog(Box<JobLog>),
    /// Muster's own: the progress of a stage that takes long.
    MusterJobProgress(JobProgress),
    /// Muster's own: the progress and the metrics that the program reported.
    MusterJobMetrics(Box<JobMetrics>),
    /// Muster's own: a checkpoint is in the file store.
    MusterCheckpoint(Box<CheckpointNotice>),
    /// Muster's own: the load of the miner's persistent executors.
    MusterMachines(Box<MachinesNotice>),
    /// Muster's own: the signed end of a sealed session.
    MusterSessionClosed(SessionClosed),
    /// Muster's own: the answer to a notice about spot checks.
    MusterAuditReply(AuditReply),
}

impl MinerToValidator {
    /// The attempt that the message is about; `None` for messages about the connection or the miner.
    pub fn attempt(&self) -> Option<AttemptId> {
        match self {
            Self::V0ExecutorManifestRequest(_)
            | Self::V0MainHotkeyMessage(_)
            | Self::UnauthorizedError(_)
            | Self::MusterMachines(_)
            | Self::MusterAuditReply(_) => None,
            Self::GenericError(m) => m.job_uuid,
            Self::MusterReceiptCountersigned(m) => Some(m.receipt.payload.attempt()),
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
            Self::MusterExecutorUp(m) => Some(m.job_uuid),
            Self::MusterJobLog(m) => Some(m.job_uuid),
            Self::MusterJobProgress(m) => Some(m.job_uuid),
            Self::MusterJobMetrics(m) => Some(m.job_uuid),
            Self::MusterCheckpoint(m) => Some(m.job_uuid),
            Self::MusterSessionClosed(m) => Some(m.job_uuid),
        }
    }
}

//! The socket between miner and executor: the messages of each direction.

use serde::{Deserialize, Serialize};

use super::audits::SessionProofs;
use super::checkpoints::{CheckpointKept, CheckpointNotice, DrainJob};
use super::executor::{
    EndStored, EnrolExecutor, ExecutorEnrolled, ExecutorHello, ExecutorMetrics, ExecutorUp, FetchImage,
    JobLog, JobMetrics, JobProgress, LeaseHeld, LeaseOver, Reattach, SealSession, SessionClosed,
    SessionSealed,
};
use super::miner::{
    AttemptNotice, ExecutorReady, GenericError, HordeFailed, InitialJobRequest, JobFailed, JobFinished,
    JobRequest, MachineSpecs, StreamingJobReady,
};
use super::muster::{CancelJob, WhitelistNotice};
use super::validator_socket::{MinerToValidator, ValidatorToMiner};
use super::{WireError, decode_on_socket};
use crate::ids::AttemptId;

/// A message from a miner to its executor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "message_type")]
pub enum MinerToExecutor {
    /// Offers a job.
    V0InitialJobRequest(Box<InitialJobRequest>),
    /// The rest of the job, sent once an executor is ready.
    V0JobRequest(Box<JobRequest>),
    /// Reports an error of the sender as text.
    GenericError(GenericError),
    /// Muster's own: stop the attempt.
    MusterCancelJob(CancelJob),
    /// Muster's own: the executor is enrolled.
    MusterExecutorEnrolled(ExecutorEnrolled),
    /// Muster's own: the session's attestation, or why there is none.
    MusterSessionSealed(SessionSealed),
    /// Muster's own: the images that may serve sealed sessions.
    MusterWhitelist(WhitelistNotice),
    /// Muster's own: the executor may fetch the image now.
    MusterFetchImage(FetchImage),
    /// Muster's own: how the executor comes back to the lease if the connection is lost.
    MusterLeaseHeld(LeaseHeld),
    /// Muster's own: the miner has stored the end of the attempt.
    MusterEndStored(EndStored),
    /// Muster's own: the validator has stored a checkpoint.
    MusterCheckpointKept(CheckpointKept),
    /// Muster's own: the attempt must save its state and leave its executor.
    MusterDrain(DrainJob),
}

/// A message from an executor to its miner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "message_type")]
pub enum ExecutorToMiner {
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
    /// Deprecated, still read: the executor could not start.
    V0ExecutorFailedRequest(ExecutorReady),
    /// Deprecated, still read: the streaming job did not start.
    V0StreamingJobNotReadyRequest(ExecutorReady),
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
    /// Muster's own: measurements of the executor's machine.
    MusterExecutorMetrics(Box<ExecutorMetrics>),
    /// Muster's own, of a persistent executor: the executor announces itself.
    MusterExecutorHello(ExecutorHello),
    /// Muster's own: the executor asks to be enrolled.
    MusterEnrolExecutor(EnrolExecutor),
    /// Muster's own, of a persistent executor: the executor is free again.
    MusterLeaseOver(LeaseOver),
    /// Muster's own: asks for the session's attestation.
    MusterSealSession(Box<SealSession>),
    /// Muster's own: the signed end of a sealed session.
    MusterSessionClosed(SessionClosed),
    /// Muster's own: the executor comes back to its lease.
    MusterReattach(Reattach),
    /// Muster's own: the proofs that a session has signed.
    MusterSessionProofs(Box<SessionProofs>),
}

/// Reads a frame of a miner.
///
/// # Errors
/// As [`super::decode`]; a message that only a miner receives [has no place here](WireError::is_misplaced).
pub fn decode_from_miner(frame: &str) -> Result<MinerToExecutor, WireError> {
    decode_on_socket::<_, ValidatorToMiner>(frame)
}

/// Reads a frame of an executor.
///
/// # Errors
/// As [`super::decode`]; a message that only a validator receives [has no place here](WireError::is_misplaced).
pub fn decode_from_executor(frame: &str) -> Result<ExecutorToMiner, WireError> {
    decode_on_socket::<_, MinerToValidator>(frame)
}

impl ExecutorToMiner {
    /// The attempt that the message is about; `None` for messages about the connection or the executor.
    pub fn attempt(&self) -> Option<AttemptId> {
        match self {
            Self::MusterExecutorMetrics(_) | Self::MusterExecutorHello(_) | Self::MusterEnrolExecutor(_) => {
                None
            }
            Self::GenericError(m) => m.job_uuid,
            Self::V0ExecutorReadyRequest(m)
            | Self::V0ExecutorFailedRequest(m)
            | Self::V0StreamingJobNotReadyRequest(m) => Some(m.job_uuid),
            Self::V0VolumesReadyRequest(m) | Self::V0ExecutionDoneRequest(m) => Some(m.job_uuid),
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
            Self::MusterLeaseOver(m) => Some(m.job_uuid),
            Self::MusterSealSession(m) => Some(m.job_uuid),
            Self::MusterSessionClosed(m) => Some(m.job_uuid),
            Self::MusterReattach(m) => Some(m.job_uuid),
            Self::MusterSessionProofs(m) => Some(m.job_uuid),
        }
    }
}

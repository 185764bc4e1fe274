//! How an attempt ends, and whose fault that was.

use serde::{Deserialize, Serialize};

use crate::status::{HordeFailureReason, JobFailureReason, JobRejectionReason, JobStatus, ParticipantType};
use crate::wire::facilitator::{
    FailureDetails, HordeFailureDetails, MinerResponse, RejectionDetails, StatusMetadata,
};

/// The end of an attempt, with what its user is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// The program ended with 0 and its outputs are delivered.
    Completed(Box<MinerResponse>),
    /// Nobody ran it.
    Rejected(RejectionDetails),
    /// The job failed by itself.
    Failed(Box<FailureDetails>),
    /// The subnet failed the job.
    HordeFailed(HordeFailureDetails),
}

/// The party at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// Nobody: it worked.
    Nobody,
    /// Who submitted the job.
    User,
    /// Who ran the container.
    Executor,
    /// Who kept the executor.
    Miner,
    /// Who routed the job.
    Validator,
    /// The users' door.
    Facilitator,
    /// What lies between them.
    Network,
}

impl Outcome {
    /// The status its user sees.
    pub fn status(&self) -> JobStatus {
        match self {
            Self::Completed(_) => JobStatus::Completed,
            Self::Rejected(_) => JobStatus::Rejected,
            Self::Failed(_) => JobStatus::Failed,
            Self::HordeFailed(_) => JobStatus::HordeFailed,
        }
    }

    /// The metadata that goes with that status.
    pub fn metadata(&self) -> StatusMetadata {
        let mut metadata = StatusMetadata::default();
        match self {
            Self::Completed(response) => metadata.miner_response = Some((**response).clone()),
            Self::Rejected(details) => metadata.job_rejection_details = Some(details.clone()),
            Self::Failed(details) => metadata.job_failure_details = Some((**details).clone()),
            Self::HordeFailed(details) => metadata.horde_failure_details = Some(details.clone()),
        }
        metadata
    }

    /// Whether the miner is paid for the attempt.
    pub fn is_paid(&self) -> bool {
        match self {
            Self::Completed(_) => true,
            Self::Rejected(_) | Self::Failed(_) | Self::HordeFailed(_) => false,
        }
    }

    /// Whose fault it was.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Completed(_) => Fault::Nobody,
            Self::Rejected(details) => match details.reason {
                JobRejectionReason::InvalidSignature => Fault::User,
                JobRejectionReason::NoMinerForJob => Fault::Validator,
                JobRejectionReason::Unknown
                | JobRejectionReason::Busy
                | JobRejectionReason::ValidatorBlacklisted
                | JobRejectionReason::InvalidReceipt => Fault::Miner,
            },
            Self::Failed(details) => match details.reason {
                JobFailureReason::Unknown
                | JobFailureReason::Timeout
                | JobFailureReason::NonzeroReturnCode
                | JobFailureReason::DownloadFailed
                | JobFailureReason::UploadFailed => Fault::User,
            },
            Self::HordeFailed(details) => horde_fault(details),
        }
    }
}

fn horde_fault(details: &HordeFailureDetails) -> Fault {
    match details.reason {
        HordeFailureReason::MinerConnectionFailed => Fault::Network,
        HordeFailureReason::InitialResponseTimedOut
        | HordeFailureReason::ExecutorReadinessTimedOut
        | HordeFailureReason::VolumesTimedOut
        | HordeFailureReason::StreamingJobReadyTimedOut
        | HordeFailureReason::ExecutionTimedOut
        | HordeFailureReason::FinalResponseTimedOut
        | HordeFailureReason::ExecutorSpinupFailed
        | HordeFailureReason::ExecutorDisconnected => Fault::Miner,
        HordeFailureReason::StreamingFailed | HordeFailureReason::SecurityCheckFailed => Fault::Executor,
        HordeFailureReason::Unknown
        | HordeFailureReason::GenericError
        | HordeFailureReason::UnhandledException
        | HordeFailureReason::UnhandledTimeout => match details.reported_by {
            ParticipantType::Executor => Fault::Executor,
            ParticipantType::Validator => Fault::Validator,
            ParticipantType::Facilitator => Fault::Facilitator,
            ParticipantType::Sdk => Fault::User,
            ParticipantType::Miner | ParticipantType::Unknown => Fault::Miner,
        },
    }
}

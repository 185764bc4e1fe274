//! The failures of steps: whose fault an error is, and how its attempt ends.

use muster_containers::laid_files::LayError;
use muster_job_data::{UploadError, VolumeError};
use muster_process::Coded;
use muster_process::error::Causes;
use muster_protocol::job::Fault;
use muster_protocol::{ErrorCode, HordeFailureReason, JobFailureReason, JobStage};

use crate::attempt_state::AttemptFailure;
use crate::config::Config;
use crate::images;

pub(super) fn volume_failed(error: &VolumeError) -> AttemptFailure {
    let (reason, stage) = (JobFailureReason::DownloadFailed, JobStage::VolumeDownload);
    transfer_failed(error, error.fault(), reason, stage)
}

pub(super) fn upload_failed(error: &UploadError) -> AttemptFailure {
    let (reason, stage) = (JobFailureReason::UploadFailed, JobStage::ResultUpload);
    transfer_failed(error, error.fault(), reason, stage)
}

/// The job's own failure if its user is at fault; otherwise the subnet's, because another executor may not have it.
fn transfer_failed(
    error: &(impl Coded + 'static),
    fault: Fault,
    reason: JobFailureReason,
    stage: JobStage,
) -> AttemptFailure {
    let message = Causes(error).to_string();
    let failure = match fault {
        Fault::User => AttemptFailure::job(reason, stage, message),
        Fault::Nobody
        | Fault::Executor
        | Fault::Miner
        | Fault::Validator
        | Fault::Facilitator
        | Fault::Network => {
            AttemptFailure::horde(HordeFailureReason::GenericError, stage, message).blame(fault)
        }
    };
    match error.code() {
        Some(code) => failure.with_code(code),
        None => failure,
    }
}

/// The failure of a job whose image's files cannot be laid out.
pub(super) fn image_files_failed(error: &LayError) -> AttemptFailure {
    match error {
        LayError::Engine(error) => images::engine_failed(error),
        LayError::NoRoom { .. } => {
            let (reason, stage) = (JobFailureReason::Unknown, JobStage::VolumeDownload);
            AttemptFailure::job(reason, stage, error.to_string()).with_code(ErrorCode::ImageFilesTooLarge)
        }
        LayError::Copy { .. } | LayError::Give(_) => unfit(error),
    }
}

/// The failure of a machine whose disk has less left than its operator keeps free.
pub(crate) fn reserve_lacking(config: &Config) -> AttemptFailure {
    let message = format!(
        "the executor's disk has less than its reserve of {} MiB left",
        config.disk_reserve_mib
    );
    AttemptFailure::horde(HordeFailureReason::GenericError, JobStage::Execution, message)
        .blame(Fault::Executor)
}

/// The failure of a machine that cannot do the work, with no fault of the job.
pub(super) fn unfit(error: &(dyn std::error::Error + 'static)) -> AttemptFailure {
    let message = Causes(error).to_string();
    AttemptFailure::horde(
        HordeFailureReason::GenericError,
        JobStage::VolumeDownload,
        message,
    )
}

//! The step that lays out the checkpoint from which a job begins.

use muster_checkpoint_transfer::{RestoreError, RestoreReader, restore};
use muster_process::error::Causes;
use muster_protocol::job::Fault;
use muster_protocol::{HordeFailureReason, JobStage};

use super::checkpoint_blocks::open_blocks;
use super::job::RequestedJob;
use crate::attempt_state::AttemptFailure;
use crate::context::AttemptContext;
use crate::job_sandbox::checkpoint_order;
use crate::workspace::Workspace;

/// Lays out the checkpoint that a job begins from. Returns its name; `None` for a job that begins anew.
pub(super) async fn restore_checkpoint(
    request: &RequestedJob,
    context: &AttemptContext,
    workspace: &Workspace,
) -> Result<Option<String>, AttemptFailure> {
    let resume = checkpoint_order(&request.job).and_then(|order| order.resume.as_ref());
    let Some(resume) = resume.filter(|_| request.layout.streaming.is_none()) else {
        return Ok(None);
    };
    let failed = |message: String| {
        let (reason, stage) = (HordeFailureReason::GenericError, JobStage::VolumeDownload);
        AttemptFailure::horde(reason, stage, message)
    };
    let blocks = open_blocks(context, &resume.blocks).await.map_err(failed)?;
    let config = context.config();
    let limits = request.layout.checkpoint;
    let folder = &workspace.folders().checkpoint;
    let (reader, reserve) = (RestoreReader::Job, config.disk_reserve());
    let laying = restore(&blocks, resume.manifest, reader, folder, limits, reserve);
    let restored = tokio::select! {
        () = context.called_off.cancelled() => return Ok(None),
        restored = laying => restored,
    };
    match restored {
        Ok(restored) => {
            tracing::info!(
                checkpoint = restored.name,
                bytes = restored.bytes,
                "the job resumes"
            );
            Ok(Some(restored.name))
        }
        Err(error) => {
            let failure = failed(format!("the job cannot be resumed: {}", Causes(&error)));
            Err(match (&error, error.is_damaged_data()) {
                (_, true) => failure.with_damaged_checkpoint(),
                (RestoreError::Store(_), false) => failure.blame(Fault::Network),
                (_, false) => failure,
            })
        }
    }
}

//! Collecting the outputs of a job: uploads, artifacts and the specs of this machine.

use std::sync::Arc;

use muster_job_data::{Uploaded, Uploader};
use muster_protocol::wire::executor::ProgressOf;
use muster_protocol::{HordeFailureReason, JobStage};
use serde_json::Value;
use tokio::task::spawn_blocking;

use super::{RequestedJob, unfit, upload_failed};
use crate::artifacts::Artifacts;
use crate::attempt_state::AttemptFailure;
use crate::context::AttemptContext;
use crate::job_sandbox::{JobFolders, artifacts_dir, artifacts_folder};
use crate::machine_specs;
use crate::output_capture::{STDERR_FILE, STDOUT_FILE};

/// The outputs of a job whose program has ended.
#[derive(Debug)]
pub(crate) struct CollectedOutputs {
    pub(crate) artifacts: Artifacts,
    pub(crate) uploaded: Uploaded,
    /// This machine, in ComputeHorde's field names.
    pub(crate) specs: Value,
}

/// Collects the job's artifacts and this machine's specs; uploads the job's outputs first if it `ended_well`.
pub(crate) async fn collect_outputs(
    request: Arc<RequestedJob>,
    folders: JobFolders,
    ended_well: bool,
    context: AttemptContext,
) -> Result<CollectedOutputs, AttemptFailure> {
    let config = context.config();
    let uploaded = match request.job.output_upload.as_ref().filter(|_| ended_well) {
        Some(upload) => {
            link_printed(&folders);
            let uploader = Uploader::new(&config.transfer)
                .map_err(|error| unfit(&error))?
                .with_progress(context.live.progress_sink(ProgressOf::Upload));
            let uploading = uploader.upload(upload, &folders.output, &context.called_off);
            uploading.await.map_err(|error| upload_failed(&error))?
        }
        None => Uploaded::default(),
    };
    let max_total = config.artifacts.max_total_mib.saturating_mul(1 << 20);
    let work = move || {
        let artifacts = match artifacts_dir(&request.job) {
            Ok(Some(dir)) => Artifacts::collect(artifacts_folder(&folders, &dir), &dir, max_total),
            // A path that cannot be one was rejected before the job ran.
            Ok(None) | Err(_) => Ok(Artifacts::default()),
        };
        let artifacts = artifacts.map_err(|error| {
            let message = format!("the job's artifacts cannot be read: {error}");
            AttemptFailure::horde(HordeFailureReason::GenericError, JobStage::ResultUpload, message)
        })?;
        Ok(CollectedOutputs {
            artifacts,
            uploaded,
            specs: machine_specs::gather(&folders.root),
        })
    };
    spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(unfit(&error)))
}

/// Puts what the job printed among its outputs, where ComputeHorde's users look for it. A file of the job's own by that
/// name stays as it is.
fn link_printed(folders: &JobFolders) {
    for name in [STDOUT_FILE, STDERR_FILE] {
        let (kept, output) = (folders.logs.join(name), folders.output.join(name));
        // A link to the same file: no copy, and no link of the job's is followed.
        if let Err(error) = std::fs::hard_link(&kept, &output) {
            tracing::debug!(%error, name, "the job's printed output was not added to its outputs");
        }
    }
}

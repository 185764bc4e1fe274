//! Collecting the outputs of a job: uploads, artifacts and the specs of this machine.

use std::sync::Arc;

use muster_job_data::artifacts::Artifacts;
use muster_job_data::output_listing::OutputListing;
use muster_job_data::{Uploaded, Uploader};
use muster_protocol::upload::{MultiUpload, OutputUpload};
use muster_protocol::wire::executor::ProgressOf;
use muster_protocol::wire::miner::JobRequest;
use muster_protocol::{HordeFailureReason, JobStage};
use serde_json::Value;
use tokio::task::spawn_blocking;

use super::{RequestedJob, unfit, upload_failed};
use crate::attempt_state::AttemptFailure;
use crate::context::AttemptContext;
use crate::job_sandbox::{JobFolders, artifacts_dir, artifacts_folder};
use crate::machine::specs;
use crate::output_capture::{STDERR_FILE, STDOUT_FILE};
use crate::workspace::Workspace;

/// The record of the uploads that have succeeded, in the root of the job's folders.
const UPLOADS_FILE: &str = "uploads.jsonl";

/// The outputs of a job whose program has ended.
#[derive(Debug)]
pub(crate) struct CollectedOutputs {
    pub(crate) artifacts: Artifacts,
    /// Servers' answers to the uploads, as far as they succeeded.
    pub(crate) uploaded: Uploaded,
    /// The files among the outputs; none for a miner that does not ask for them.
    pub(crate) listing: OutputListing,
    /// This machine, in ComputeHorde's field names.
    pub(crate) specs: Value,
}

/// Collects the job's artifacts and this machine's specs. Nothing is uploaded yet: artifacts are there too if uploads
/// fail or take too long. The digests of the output files are read if `lists_outputs`.
pub(crate) async fn collect_outputs(
    request: Arc<RequestedJob>,
    folders: JobFolders,
    context: AttemptContext,
    lists_outputs: bool,
) -> Result<CollectedOutputs, AttemptFailure> {
    let max_total = context.config().artifacts.max_total_mib.saturating_mul(1 << 20);
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
        let listing = match lists_outputs {
            true => list_outputs(&folders),
            false => OutputListing::default(),
        };
        Ok(CollectedOutputs {
            artifacts,
            listing,
            uploaded: Uploaded::default(),
            specs: describe_machine(&folders),
        })
    };
    spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(unfit(&error)))
}

/// The files among the job's outputs. Standard output and standard error are no outputs of its own,
/// although uploads may hold them.
fn list_outputs(folders: &JobFolders) -> OutputListing {
    OutputListing::read(&folders.output, &[STDOUT_FILE, STDERR_FILE]).unwrap_or_else(|error| {
        tracing::warn!(%error, "the job's outputs were not listed");
        OutputListing::default()
    })
}

/// This machine's specs, with the way in which it bounds the job's disk.
fn describe_machine(folders: &JobFolders) -> Value {
    let mut specs = specs::gather(&folders.root);
    if let Some(specs) = specs.as_object_mut() {
        let bound = Workspace::disk_method(folders).name();
        specs.insert("muster_disk_bound".to_owned(), Value::from(bound));
    }
    specs
}

/// Uploads the outputs of a job whose program ended well. The first value holds the answers to the uploads that
/// succeeded, whether or not another one failed.
pub(crate) async fn upload_outputs(
    request: Arc<RequestedJob>,
    folders: JobFolders,
    context: AttemptContext,
) -> (Uploaded, Option<AttemptFailure>) {
    let Some(upload) = &request.job.output_upload else {
        return (Uploaded::default(), None);
    };
    link_printed(&folders);
    upload_all(upload, &folders, &context).await
}

/// The outputs that a failed job has left and that its user asks for all the same; `None` if there are none.
pub(crate) fn find_left_outputs(job: &JobRequest, folders: &JobFolders) -> Option<OutputUpload> {
    let mut uploads = job.output_upload.as_ref()?.kept_on_failure();
    // Only a look: what is sent is opened without following links.
    uploads.retain(|upload| {
        folders
            .output
            .join(upload.relative_path())
            .symlink_metadata()
            .is_ok()
    });
    let multi = MultiUpload {
        uploads,
        system_output: None,
    };
    (!multi.uploads.is_empty()).then_some(OutputUpload::MultiUpload(multi))
}

/// Uploads to each destination. The first value holds the answers to the uploads that succeeded, whether or not another
/// one failed.
pub(crate) async fn upload_all(
    upload: &OutputUpload,
    folders: &JobFolders,
    context: &AttemptContext,
) -> (Uploaded, Option<AttemptFailure>) {
    let uploader = match Uploader::new(&context.config().transfer) {
        Ok(uploader) => uploader
            .with_progress(context.live.progress_sink(ProgressOf::Upload))
            .with_record(&folders.root.join(UPLOADS_FILE)),
        Err(error) => return (Uploaded::default(), Some(unfit(&error))),
    };
    let uploading = uploader.upload(upload, &folders.output, &context.called_off);
    let (uploaded, failed) = uploading.await;
    (uploaded, failed.err().map(|error| upload_failed(&error)))
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

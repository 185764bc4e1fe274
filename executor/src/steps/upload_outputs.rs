//! The step that uploads the outputs of a job to the places that its user named.

use std::sync::Arc;

use muster_job_data::{Uploaded, Uploader};
use muster_protocol::upload::{MultiUpload, OutputUpload};
use muster_protocol::wire::executor::ProgressOf;
use muster_protocol::wire::miner::JobRequest;

use super::failures::{unfit, upload_failed};
use super::job::RequestedJob;
use crate::attempt_state::AttemptFailure;
use crate::context::AttemptContext;
use crate::job_sandbox::JobFolders;
use crate::output_capture::{STDERR_FILE, STDOUT_FILE};

/// The record of the uploads that have succeeded, in the root of the job's folders.
const UPLOADS_FILE: &str = "uploads.jsonl";

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

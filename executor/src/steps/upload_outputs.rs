//! The step that uploads the outputs of a job to the places that its user named.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use muster_job_data::{Uploaded, Uploader, has_match};
use muster_protocol::upload::{MultiUpload, OutputKind, OutputUpload};
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
    uploads.retain(|upload| match upload.kind() {
        Some(OutputKind::Matching) => has_match(&folders.output, upload.relative_path()).unwrap_or_default(),
        Some(OutputKind::File | OutputKind::Folder) | None => folders
            .output
            .join(upload.relative_path())
            .symlink_metadata()
            .is_ok(),
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
            .with_record(&folders.root.join(UPLOADS_FILE))
            // The job's own disk may be full.
            .with_archives(&folders.root, linked_printed(folders)),
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

/// Those of the names that are the job's printed output, and no files of its own: a folder is delivered without them.
fn linked_printed(folders: &JobFolders) -> Vec<PathBuf> {
    let inode = |path: PathBuf| {
        path.symlink_metadata()
            .map(|found| (found.dev(), found.ino()))
            .ok()
    };
    let is_ours = |name: &&str| {
        let linked = inode(folders.output.join(name));
        linked.is_some() && linked == inode(folders.logs.join(name))
    };
    let names = [STDOUT_FILE, STDERR_FILE];
    names.into_iter().filter(is_ours).map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_printed_output_is_left_out_of_folders_and_never_a_file_of_the_job() {
        let root = tempfile::tempdir().unwrap();
        let folders = JobFolders::under(root.path());
        for folder in [&folders.output, &folders.logs] {
            std::fs::create_dir_all(folder).unwrap();
        }
        std::fs::write(folders.logs.join(STDOUT_FILE), "printed").unwrap();
        std::fs::write(folders.logs.join(STDERR_FILE), "printed").unwrap();
        std::fs::write(folders.output.join(STDERR_FILE), "the job's own").unwrap();
        assert_eq!(linked_printed(&folders), Vec::<PathBuf>::new());
        link_printed(&folders);
        assert_eq!(linked_printed(&folders), [PathBuf::from(STDOUT_FILE)]);
    }
}

//! The step that collects the outputs of a job: its artifacts, the listing of its files, and the specs of this machine.

use std::sync::Arc;

use muster_job_data::Uploaded;
use muster_job_data::artifacts::Artifacts;
use muster_job_data::output_listing::OutputListing;
use muster_protocol::{HordeFailureReason, JobStage};
use serde_json::Value;
use tokio::task::spawn_blocking;

use super::failures::unfit;
use super::job::RequestedJob;
use crate::attempt_state::AttemptFailure;
use crate::context::AttemptContext;
use crate::job_sandbox::{JobFolders, artifacts_dir, artifacts_folder};
use crate::machine::specs;
use crate::output_capture::{STDERR_FILE, STDOUT_FILE};
use crate::workspace::Workspace;

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

/// This machine's specs; none if they cannot be read.
pub(crate) async fn read_specs(folders: JobFolders) -> Option<Value> {
    spawn_blocking(move || describe_machine(&folders)).await.ok()
}

/// This machine's specs, with the method that bounds the job's disk.
fn describe_machine(folders: &JobFolders) -> Value {
    let mut specs = specs::gather(&folders.root);
    if let Some(specs) = specs.as_object_mut() {
        let bound = Workspace::disk_method(folders).name();
        specs.insert("muster_disk_bound".to_owned(), Value::from(bound));
    }
    specs
}

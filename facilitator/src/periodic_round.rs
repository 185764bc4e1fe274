//! Periodic clean-up: ends jobs that no validator has answered, and collects files. Old rows are the janitor's.

use std::sync::Arc;
use std::time::Duration;

use muster_facilitator_core::metric_labels::count_end;
use muster_file_store::FileService;
use muster_file_store::checkpoint_blocks::CheckpointService;
use muster_process::error::Causes;
use muster_process::{SharedClock, Tasks};
use muster_protocol::job::Fault;
use muster_protocol::{JobStatus, Timestamp};

use muster_facilitator_store::Store;

use crate::background_tasks::spawn_until_stopped;
use crate::change_notices::{Notice, Notifier};

/// The pause between two sweeps over jobs.
const JOB_SWEEP: Duration = Duration::from_secs(30);

/// Starts to end jobs that no validator has answered within `unanswered`, until the process stops.
pub(crate) fn start_job_sweep(
    store: Store,
    notifier: Notifier,
    unanswered: Duration,
    tasks: &Tasks,
    clock: SharedClock,
) {
    spawn_until_stopped(tasks, "sweep jobs", async move {
        loop {
            end_unanswered_jobs(&store, &notifier, unanswered, clock.now()).await;
            clock.sleep(JOB_SWEEP).await;
        }
    });
}

async fn end_unanswered_jobs(store: &Store, notifier: &Notifier, limit: Duration, now: Timestamp) {
    match store.expire(now.minus(limit), now).await {
        Ok(ended) => {
            for job in ended {
                count_end(JobStatus::Rejected, Fault::Validator);
                tracing::warn!(%job, "no validator answered the job in time; it has ended");
                notifier.publish(Notice::Changed(job));
            }
        }
        Err(error) => {
            tracing::warn!(error = %Causes(&error), "cannot look for jobs that no validator answers");
        }
    }
}

/// Starts collecting expired files and unused objects, until the process stops. A collection that has begun is
/// finished.
pub(crate) fn start_file_sweep(files: Arc<FileService>, tasks: &Tasks, clock: SharedClock) {
    let stop = tasks.token();
    tasks.spawn("sweep files", async move {
        loop {
            match files.sweep().await {
                Ok((0, 0)) => {}
                Ok((expired, objects)) => tracing::info!(expired, objects, "collected files"),
                Err(error) => tracing::error!(error = %Causes(&error), "cannot collect files"),
            }
            tokio::select! {
                () = clock.sleep(files.sweep_interval()) => {}
                () = stop.cancelled() => return,
            }
        }
    });
}

/// Starts collecting the blocks of checkpoints that are kept no longer, until the process stops. A collection that has
/// begun is finished.
pub(crate) fn start_block_sweep(checkpoints: Arc<CheckpointService>, tasks: &Tasks, clock: SharedClock) {
    let stop = tasks.token();
    tasks.spawn("sweep blocks", async move {
        loop {
            match checkpoints.sweep().await {
                Ok(0) => {}
                Ok(blocks) => tracing::info!(blocks, "collected blocks of checkpoints"),
                Err(error) => {
                    tracing::error!(error = %Causes(&error), "cannot collect blocks of checkpoints")
                }
            }
            tokio::select! {
                () = clock.sleep(checkpoints.sweep_interval()) => {}
                () = stop.cancelled() => return,
            }
        }
    });
}

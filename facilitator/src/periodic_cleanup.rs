//! Periodic clean-up: ends jobs that no validator has answered, deletes old live output, and collects files.

use std::sync::Arc;
use std::time::Duration;

use muster_file_store::FileService;
use muster_process::error::Causes;
use muster_process::{SharedClock, Tasks};
use muster_protocol::Timestamp;

use crate::background::spawn_until_stopped;
use crate::notices::{Notice, Notifier};
use crate::store::Store;

/// The pause between two sweeps over jobs.
const JOB_SWEEP: Duration = Duration::from_secs(30);

/// Starts sweeping jobs, until the process stops. A job without an answer ends after `unanswered`; `None` for never.
pub(crate) fn start_job_sweep(
    store: Store,
    notifier: Notifier,
    unanswered: Option<Duration>,
    tasks: &Tasks,
    clock: SharedClock,
) {
    spawn_until_stopped(tasks, "sweep jobs", async move {
        loop {
            let now = clock.now();
            if let Some(limit) = unanswered {
                end_unanswered_jobs(&store, &notifier, limit, now).await;
            }
            if let Err(error) = store.delete_old_live(now).await {
                tracing::warn!(error = %Causes(&error), "cannot delete old live output");
            }
            clock.sleep(JOB_SWEEP).await;
        }
    });
}

async fn end_unanswered_jobs(store: &Store, notifier: &Notifier, limit: Duration, now: Timestamp) {
    let limit = i64::try_from(limit.as_micros()).unwrap_or(i64::MAX);
    let before = Timestamp::from_micros(now.micros().saturating_sub(limit));
    match store.expire(before, now).await {
        Ok(ended) => {
            for job in ended {
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

//! The facilitator's metrics: requests as they are answered, the ends of jobs, and the open work every few seconds.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use muster_facilitator_core::metric_labels::{class_of, surface_of};
use muster_facilitator_store::Store;
use muster_process::SharedClock;
use muster_process::error::Causes;
use tokio::time::Instant;

use crate::job_watchers::JobWatchers;
use crate::validator_sessions::ValidatorSessions;

/// How often the open work is counted.
const MEASURE_EVERY: Duration = Duration::from_secs(5);

/// Counts a request by the part of the facilitator that answers it, and records the time until the head of its answer.
pub(crate) async fn count_request(request: Request, next: Next) -> Response {
    let surface = surface_of(request.uri().path());
    let begun = Instant::now();
    let response = next.run(request).await;
    let code = class_of(response.status().as_u16());
    metrics::counter!("muster_facilitator_requests_total", "surface" => surface, "code" => code).increment(1);
    metrics::histogram!("muster_facilitator_request_seconds", "surface" => surface)
        .record(begun.elapsed().as_secs_f64());
    response
}

/// Sets the gauges until its task is dropped.
pub(crate) async fn measure(
    store: Store,
    sessions: Arc<ValidatorSessions>,
    watchers: Arc<JobWatchers>,
    clock: SharedClock,
) {
    loop {
        match store.count_open_work(clock.now()).await {
            Ok(work) => work.set_gauges(),
            Err(error) => tracing::debug!(error = %Causes(&error), "the open work cannot be counted"),
        }
        metrics::gauge!("muster_facilitator_validators").set(to_u32(sessions.validator_count()));
        metrics::gauge!("muster_facilitator_watched_jobs").set(to_u32(watchers.count()));
        clock.sleep(MEASURE_EVERY).await;
    }
}

fn to_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

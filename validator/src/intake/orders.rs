//! The facilitator's orders, taken in the order in which they came.
//!
//! Jobs are taken in parallel, each in a task of its own, so that jobs that come together share a commit. A
//! cancellation may be about any of them, so it waits until all of them are taken.

use std::sync::Arc;

use muster_cross_checks::CrossChecks;
use muster_facilitator_link::FacilitatorOrder;
use muster_protocol::wire::facilitator::CheatReport;
use muster_store::StoreError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::jobs::JobIntake;
use crate::validator_state::ValidatorState;

/// Jobs that are being taken at a time, at most; further ones wait in the socket.
const JOBS_AT_ONCE: u32 = 256;

/// The jobs that are being taken: at most [`JOBS_AT_ONCE`], and a cancellation waits for all of them.
#[derive(Debug)]
struct JobsInIntake(Arc<Semaphore>);

impl JobsInIntake {
    fn new() -> Self {
        let most = usize::try_from(JOBS_AT_ONCE).unwrap_or(Semaphore::MAX_PERMITS);
        Self(Arc::new(Semaphore::new(most)))
    }

    /// Waits until another job may be taken. The job is being taken until the permit is dropped. The semaphore is never
    /// closed; without a permit the job would be taken all the same.
    async fn begin(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).acquire_owned().await.ok()
    }

    /// Waits until every job is taken that began before.
    async fn wait_until_taken(&self) {
        drop(self.0.acquire_many(JOBS_AT_ONCE).await);
    }
}

/// Takes orders until the validator stops, or the link that sends them has ended.
///
/// # Errors
/// The store fails.
pub(crate) async fn take_orders(
    state: Arc<ValidatorState>,
    intake: JobIntake,
    checks: CrossChecks,
    mut orders: mpsc::Receiver<FacilitatorOrder>,
) -> Result<(), StoreError> {
    let (intake, stop) = (Arc::new(intake), state.tasks.token());
    let jobs = JobsInIntake::new();
    while let Some(Some(order)) = stop.run_until_cancelled(orders.recv()).await {
        match order {
            FacilitatorOrder::Job {
                request,
                frame,
                acknowledged,
            } => {
                let permit = jobs.begin().await;
                let intake = Arc::clone(&intake);
                state.spawn("intake", async move {
                    let _permit = permit;
                    intake.take(*request, &frame, acknowledged).await
                });
            }
            FacilitatorOrder::Cancel {
                request,
                acknowledged,
            } => {
                acknowledged.await;
                jobs.wait_until_taken().await;
                intake.cancel(&request).await?;
            }
            FacilitatorOrder::CheatReport(report) => checks.take_report(&report).await?,
            FacilitatorOrder::Malformed { frame, error } => intake.refuse_malformed(&frame, &error).await?,
        }
    }
    for report in waiting_reports(orders) {
        checks.take_report(&report).await?;
    }
    Ok(())
}

/// Takes no further orders, and returns the reports of cheating among those that wait. A facilitator sends a report
/// once; it sends jobs and cancellations again.
fn waiting_reports(mut orders: mpsc::Receiver<FacilitatorOrder>) -> Vec<CheatReport> {
    orders.close();
    let waiting = std::iter::from_fn(|| orders.try_recv().ok());
    let report = |order| match order {
        FacilitatorOrder::CheatReport(report) => Some(*report),
        FacilitatorOrder::Job { .. }
        | FacilitatorOrder::Cancel { .. }
        | FacilitatorOrder::Malformed { .. } => None,
    };
    waiting.filter_map(report).collect()
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use muster_protocol::wire::decode;
    use serde_json::{Value, json};

    use super::*;

    #[tokio::test]
    async fn a_cancellation_waits_until_every_earlier_job_is_taken() {
        let jobs = JobsInIntake::new();
        let (first, second) = (jobs.begin().await, jobs.begin().await);
        assert!(first.is_some() && second.is_some());
        let mut cancellation = Box::pin(jobs.wait_until_taken());
        assert!((&mut cancellation).now_or_never().is_none());
        drop(first);
        assert!(
            (&mut cancellation).now_or_never().is_none(),
            "the second job is not taken yet"
        );
        // A job that comes later is not taken before the cancellation.
        let mut later = Box::pin(jobs.begin());
        assert!((&mut later).now_or_never().is_none());
        drop(second);
        cancellation.await;
        assert!(later.await.is_some());
    }

    #[test]
    fn reports_that_wait_at_a_stop_are_kept_and_no_order_comes_after_them() {
        let (orders, waiting) = mpsc::channel(4);
        let malformed = || {
            let error = decode::<Value>("{").unwrap_err();
            FacilitatorOrder::Malformed {
                frame: "{".to_owned(),
                error,
            }
        };
        let report: CheatReport = serde_json::from_value(json!({
            "signature": {
                "signature_type": "bittensor",
                "signatory": "5GirWmtpZfdXQiohXLcecUCnoVkwR7RXEaNnikKW3a926C2v",
                "timestamp_ns": 1,
                "signature": "A".repeat(86) + "==",
                "signature_scope": "FullRequest",
            },
            "job_uuid": "11111111-2222-4333-8444-555555555555",
            "trusted_job_uuid": "11111111-2222-4333-8444-555555555556",
        }))
        .unwrap();
        orders.try_send(malformed()).ok().unwrap();
        orders
            .try_send(FacilitatorOrder::CheatReport(Box::new(report.clone())))
            .ok()
            .unwrap();
        assert_eq!(waiting_reports(waiting), [report]);
        assert!(orders.try_send(malformed()).is_err());
    }
}

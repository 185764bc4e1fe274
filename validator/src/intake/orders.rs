//! The facilitator's orders, taken in the order in which they came.
//!
//! Jobs are taken in parallel, each in a task of its own, so that jobs that come together share a commit. A
//! cancellation may be about any of them, so it waits until all of them are taken.

use std::sync::Arc;

use muster_cross_checks::CrossChecks;
use muster_facilitator_link::FacilitatorOrder;
use muster_protocol::wire::facilitator::CheatReport;
use muster_store::StoreError;
use tokio::sync::{Semaphore, mpsc};

use super::jobs::JobIntake;
use crate::state::ValidatorState;

/// Jobs that are being taken at a time, at most; further ones wait in the socket.
const JOBS_AT_ONCE: u32 = 256;

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
    let most = usize::try_from(JOBS_AT_ONCE).unwrap_or(Semaphore::MAX_PERMITS);
    let slots = Arc::new(Semaphore::new(most));
    while let Some(Some(order)) = stop.run_until_cancelled(orders.recv()).await {
        match order {
            FacilitatorOrder::Job {
                request,
                frame,
                acknowledged,
            } => {
                // The semaphore is never closed; without a permit the job would be taken all the same.
                let slot = Arc::clone(&slots).acquire_owned().await;
                let intake = Arc::clone(&intake);
                state.spawn("intake", async move {
                    let _slot = slot;
                    intake.take(*request, &frame, acknowledged).await
                });
            }
            FacilitatorOrder::Cancel {
                request,
                acknowledged,
            } => {
                acknowledged.await;
                // Every job that came before is taken.
                drop(slots.acquire_many(JOBS_AT_ONCE).await);
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
    use muster_protocol::wire::decode;
    use serde_json::{Value, json};

    use super::*;

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

//! The facilitator's orders, taken in the order in which they came.
//!
//! Jobs are taken in parallel, each in a task of its own, so that jobs that come together share a commit. A
//! cancellation may be about any of them, so it waits until all of them are taken.

use std::sync::Arc;

use muster_cross_checks::CrossChecks;
use muster_facilitator_link::FacilitatorOrder;
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
    keep_reports(&checks, orders).await
}

/// Keeps the reports of cheating that still wait at a stop. A facilitator sends a report once; it sends jobs and
/// cancellations again.
async fn keep_reports(
    checks: &CrossChecks,
    mut orders: mpsc::Receiver<FacilitatorOrder>,
) -> Result<(), StoreError> {
    orders.close();
    while let Some(order) = orders.recv().await {
        match order {
            FacilitatorOrder::CheatReport(report) => checks.take_report(&report).await?,
            FacilitatorOrder::Job { .. }
            | FacilitatorOrder::Cancel { .. }
            | FacilitatorOrder::Malformed { .. } => {}
        }
    }
    Ok(())
}

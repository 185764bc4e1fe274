//! What a facilitator hands over: each job is taken, repeated or refused, durably, before anything else happens.

use std::sync::Arc;

use muster_identity::verify_job;
use muster_kit::store::StoreError;
use muster_protocol::JobId;
use muster_protocol::job::Outcome;
use muster_protocol::status::{JobRejectionReason, ParticipantType};
use muster_protocol::wire::facilitator::{CheatReport, JobRequest, RejectionDetails};
use muster_protocol::wire::muster::CancelRequest;
use muster_protocol::wire::{WireError, decode};
use muster_routing::admission::{Admission, decide};
use serde_json::Value;

use crate::driver;
use crate::shared::Shared;

/// How much of a user's reason for calling a job off is kept.
const MAX_REASON_CHARS: usize = 500;

/// Takes one job, as `frame` brought it.
pub(crate) async fn job(shared: &Arc<Shared>, request: &JobRequest, frame: &str) -> Result<(), StoreError> {
    let id = request.uuid;
    let seen = shared.store.seen(id, &request.signature).await?;
    let holds = verify_job(request).is_ok();
    let now = shared.clock.now();
    match decide(
        request,
        holds,
        seen,
        &shared.config.users.rule(),
        shared.keypair.hotkey(),
    ) {
        Admission::Admit => {
            if shared.store.admit(request, frame, now).await? {
                tracing::info!(job = %id, user = %request.signature.signatory, class = %request.executor_class, "job taken");
                driver::start(shared, request.clone());
            }
            Ok(())
        }
        Admission::Repeat => {
            tracing::debug!(job = %id, "the facilitator repeats a job");
            let end = driver::last_word(shared, id).await?;
            shared.store.repeat(id, end.as_ref()).await
        }
        Admission::Refuse(details) => refuse(shared, id, frame, details).await,
    }
}

/// A frame that names a job but cannot be read as one is refused by that name, so that its user is not left waiting.
pub(crate) async fn malformed(shared: &Shared, frame: &str, error: &WireError) -> Result<(), StoreError> {
    tracing::warn!(%error, "the facilitator sent a malformed frame");
    let value: Value = decode(frame).unwrap_or_default();
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    let job = text("uuid").and_then(|uuid| uuid.parse::<JobId>().ok());
    match (text("message_type"), job) {
        (Some("V2JobRequest"), Some(job)) => {
            let details = RejectionDetails {
                rejected_by: ParticipantType::Validator,
                reason: JobRejectionReason::NoMinerForJob,
                message: format!("the request cannot be read: {}", error.reason),
                context: None,
            };
            refuse(shared, job, frame, details).await
        }
        (Some(_) | None, _) => Ok(()),
    }
}

/// A user calls a job off. It is durable before its driver hears of it, so that no attempt begins after a restart either.
/// Nothing is answered but the job's last status, which is said again if the job is over already.
pub(crate) async fn cancel(shared: &Arc<Shared>, request: &CancelRequest) -> Result<(), StoreError> {
    let job = request.uuid;
    let reason: String = request.reason.chars().take(MAX_REASON_CHARS).collect();
    if shared.store.cancel(job, &reason).await? {
        tracing::info!(%job, reason, "a user calls a job off");
        shared.call_off(job, &reason);
        return Ok(());
    }
    match driver::last_word(shared, job).await? {
        Some(end) => shared.store.repeat(job, Some(&end)).await,
        None => {
            tracing::debug!(%job, "a job that is unknown, or being called off, was called off");
            Ok(())
        }
    }
}

/// Keeps a user's report of cheating. What follows from it is decided elsewhere, by people and later by audits.
pub(crate) async fn cheated(shared: &Shared, report: &CheatReport) -> Result<(), StoreError> {
    tracing::info!(job = report.job_uuid, user = %report.signature.signatory, "a user reports cheating");
    shared.store.keep_cheat_report(report, shared.clock.now()).await
}

async fn refuse(
    shared: &Shared,
    job: JobId,
    frame: &str,
    details: RejectionDetails,
) -> Result<(), StoreError> {
    tracing::info!(%job, reason = %details.reason, message = details.message, "job refused");
    shared
        .store
        .refuse(job, frame, &Outcome::Rejected(details), shared.clock.now())
        .await
}

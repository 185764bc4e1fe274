//! `/api/v1/cheated-job/` and `/api/v1/jobs/{uuid}/feedback/`.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use muster_facilitator_core::intake;
use muster_facilitator_core::signature::SignatureRefused;
use muster_protocol::rest::{Feedback, Message, ReportCheat};
use muster_protocol::wire::facilitator::{CheatReport, CheatReportTag, JobCheatedTag};
use muster_protocol::{JobId, ValidatorKey};

use super::body;
use super::caller::Caller;
use super::refusal::Refusal;
use crate::door::Door;
use crate::hub::Notice;

/// Reports that a job was cheated on, by the result of the same job on a trusted miner.
#[utoipa::path(post, path = "/api/v1/cheated-job/", tag = "jobs", request_body = ReportCheat, security(("bearer" = [])),
    responses((status = 201, body = Message), Refusal))]
pub(super) async fn cheated(
    State(door): State<Arc<Door>>,
    caller: Caller,
    request: Request,
) -> Result<(StatusCode, Json<Message>), Refusal> {
    let (parts, body) = request.into_parts();
    let body = body::json(&parts.headers, body).await?;
    let (report, signed) = intake::read_cheat_report(&body)?;
    let signature = caller.signed(&door, &parts.headers, &signed)?;
    let missing = |what: &str| Refusal::error(StatusCode::NOT_FOUND, format!("{what} not found"));
    let validator = own(&door, &caller, report.job_uuid)
        .await?
        .ok_or_else(|| missing("Job"))?;
    own(&door, &caller, report.trusted_job_uuid)
        .await?
        .ok_or_else(|| missing("Trusted job"))?;
    let frame = CheatReport {
        signature,
        r#type: JobCheatedTag,
        message_type: CheatReportTag,
        job_uuid: report.job_uuid.to_string(),
        trusted_job_uuid: report.trusted_job_uuid.to_string(),
        details: report.details,
    };
    let kept = door
        .store
        .report_cheat(&caller.0, report.job_uuid, validator, &frame, door.clock.now())
        .await?;
    if !kept {
        let reason = "Cheat report already exists for this job";
        return Err(Refusal::error(StatusCode::BAD_REQUEST, reason));
    }
    tracing::info!(job = %report.job_uuid, by = %caller.account(), "a user reports cheating");
    door.announce(Notice::Look(validator));
    let message = "Job reported as cheated".to_owned();
    Ok((StatusCode::CREATED, Json(Message { message })))
}

/// What the job's user thinks of its result.
#[utoipa::path(get, path = "/api/v1/jobs/{uuid}/feedback/", tag = "jobs", security(("bearer" = [])),
    params(("uuid" = String, Path, format = "uuid", description = "The job")),
    responses((status = 200, body = Feedback), Refusal))]
pub(super) async fn feedback(
    State(door): State<Arc<Door>>,
    caller: Caller,
    uuid: Result<Path<String>, PathRejection>,
) -> Result<Json<Feedback>, Refusal> {
    let uuid = named(uuid)?;
    own(&door, &caller, uuid).await?.ok_or_else(Refusal::not_found)?;
    let feedback = door.store.feedback(uuid).await?;
    feedback.map(Json).ok_or_else(Refusal::not_found)
}

/// Says once what the job's user thinks of its result.
#[utoipa::path(put, path = "/api/v1/jobs/{uuid}/feedback/", tag = "jobs", request_body = Feedback, security(("bearer" = [])),
    params(("uuid" = String, Path, format = "uuid", description = "The job")),
    responses((status = 201, body = Feedback), Refusal))]
pub(super) async fn give_feedback(
    State(door): State<Arc<Door>>,
    caller: Caller,
    uuid: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<(StatusCode, Json<Feedback>), Refusal> {
    let uuid = named(uuid)?;
    let (parts, body) = request.into_parts();
    let body = body::json(&parts.headers, body).await?;
    let (feedback, signed) = intake::read_feedback(&body)?;
    match caller.signed(&door, &parts.headers, &signed) {
        Ok(_) => {}
        Err(refused @ SignatureRefused::Missing(_)) => return Err(Refusal::signature_not_found(&refused)),
        Err(refused) => return Err(refused.into()),
    }
    own(&door, &caller, uuid).await?.ok_or_else(Refusal::not_found)?;
    let given = door
        .store
        .give_feedback(&caller.0, uuid, &feedback, door.clock.now())
        .await?;
    if given {
        Ok((StatusCode::CREATED, Json(feedback)))
    } else {
        let reason = "Feedback already exists for this job.";
        Err(Refusal::detail(StatusCode::CONFLICT, reason))
    }
}

/// The job that a path names.
pub(super) fn named(uuid: Result<Path<String>, PathRejection>) -> Result<JobId, Refusal> {
    let Path(uuid) = uuid.map_err(|_| Refusal::not_found())?;
    uuid.parse().map_err(|_| Refusal::not_found())
}

/// Who holds the job, if it is the caller's.
pub(super) async fn own(door: &Door, caller: &Caller, job: JobId) -> Result<Option<ValidatorKey>, Refusal> {
    let owner = door.store.owner(job).await?;
    Ok(owner
        .filter(|(account, _)| account == caller.account())
        .map(|(_, validator)| validator))
}

//! `/api/v1/cheated-job/` and `/api/v1/jobs/{uuid}/feedback/`: users' reports about results.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use muster_facilitator_core::output_comparison::compare_outputs;
use muster_facilitator_core::request_bodies;
use muster_facilitator_core::signature::SignatureRejection;
use muster_process::SharedClock;
use muster_protocol::rest::{CheatReportView, Feedback, Message, ReportCheat};
use muster_protocol::wire::checks::JobCheck;
use muster_protocol::wire::facilitator::{CheatReport, CheatReportTag, JobCheatedTag};
use muster_protocol::{JobId, ValidatorKey};
use serde_json::Value;

use super::authentication::Caller;
use super::job_path::{parse_job_id, validator_of_own_job};
use super::json_body;
use super::rights::{JobsRight, ReadRight};
use muster_facilitator_store::{Actor, Store};

use crate::change_notices::{Notice, Notifier};
use crate::request_signer::RequestSigner;
use crate::rest::rejection::ApiRejection;

/// The services behind the calls about results.
pub(crate) struct ReportService {
    pub(crate) store: Store,
    pub(crate) signer: Arc<RequestSigner>,
    pub(crate) notifier: Notifier,
    pub(crate) clock: SharedClock,
}

impl ReportService {
    /// The report as its validator is sent it, with the user's signature of the `body`.
    pub(super) fn sign_report(
        &self,
        actor: &Actor,
        headers: &HeaderMap,
        report: ReportCheat,
        body: &Value,
    ) -> Result<CheatReport, ApiRejection> {
        Ok(CheatReport {
            signature: self.signer.sign_or_check_body(actor, headers, body)?,
            r#type: JobCheatedTag,
            message_type: CheatReportTag,
            job_uuid: report.job_uuid.to_string(),
            trusted_job_uuid: report.trusted_job_uuid.to_string(),
            details: report.details,
        })
    }

    /// Lets the stored reports be sent to `validator`, and answers the user who has made one.
    pub(super) fn deliver_report(
        &self,
        validator: ValidatorKey,
        message: &str,
    ) -> (StatusCode, Json<Message>) {
        self.notifier.publish(Notice::Look(validator));
        let message = message.to_owned();
        (StatusCode::CREATED, Json(Message { message }))
    }
}

/// Reports that a miner cheated on a job. The evidence is the result of the same job on a trusted miner.
#[utoipa::path(post, path = "/api/v1/cheated-job/", operation_id = "cheated", tag = "jobs", request_body = ReportCheat,
    security(("bearer" = [])),
    responses((status = 201, body = Message), ApiRejection))]
pub(super) async fn report_cheat(
    State(service): State<Arc<ReportService>>,
    caller: Caller<JobsRight>,
    request: Request,
) -> Result<(StatusCode, Json<Message>), ApiRejection> {
    let (parts, body) = request.into_parts();
    let body = json_body::read_json(&parts.headers, body).await?;
    let (report, signed) = request_bodies::parse_cheat_report(&body)?;
    let (job, trusted) = (report.job_uuid, report.trusted_job_uuid);
    let frame = service.sign_report(&caller.actor, &parts.headers, report, &signed)?;
    let missing = |what: &str| ApiRejection::error(StatusCode::NOT_FOUND, format!("{what} not found"));
    let validator = validator_of_own_job(&service.store, &caller, job)
        .await?
        .ok_or_else(|| missing("Job"))?;
    validator_of_own_job(&service.store, &caller, trusted)
        .await?
        .ok_or_else(|| missing("Trusted job"))?;
    let now = service.clock.now();
    let stored = service
        .store
        .report_cheat(&caller.actor, job, validator, &frame, now)
        .await?;
    if !stored {
        let reason = "Cheat report already exists for this job";
        return Err(ApiRejection::error(StatusCode::BAD_REQUEST, reason));
    }
    tracing::info!(%job, by = %caller.account(), "a user reports cheating");
    Ok(service.deliver_report(validator, "Job reported as cheated"))
}

/// Returns the report of cheating about a job, and the comparison of the job's outputs with those of the trusted miner.
#[utoipa::path(get, path = "/api/v1/jobs/{uuid}/cheat-report/", tag = "jobs", security(("bearer" = [])),
    params(("uuid" = String, Path, format = "uuid", description = "The job that was reported")),
    responses((status = 200, body = CheatReportView), ApiRejection))]
pub(super) async fn cheat_report(
    State(service): State<Arc<ReportService>>,
    caller: Caller<ReadRight>,
    uuid: Result<Path<String>, PathRejection>,
) -> Result<Json<CheatReportView>, ApiRejection> {
    let job_uuid = parse_job_id(uuid)?;
    let own_view = async |job: JobId| {
        let stored = service.store.job(job).await?;
        let own = stored.filter(|job| job.account == *caller.account());
        Ok::<_, ApiRejection>(own.ok_or_else(ApiRejection::not_found)?.view())
    };
    let reported = own_view(job_uuid).await?;
    let stored = service.store.cheat_report(job_uuid).await?;
    let stored = stored.ok_or_else(ApiRejection::not_found)?;
    let trusted_job_uuid = stored.report.trusted_job_uuid.parse();
    let trusted_job_uuid = trusted_job_uuid.map_err(|_| ApiRejection::not_found())?;
    let trusted = own_view(trusted_job_uuid).await?;
    Ok(Json(CheatReportView {
        job_uuid,
        trusted_job_uuid,
        details: stored.report.details,
        reported_at: stored.reported_at,
        comparison: compare_outputs(&reported, &trusted),
        check: service.store.job_check(job_uuid).await?,
    }))
}

/// Returns what the validator found by running a drawn or reported job again; 404 until it has told.
#[utoipa::path(get, path = "/api/v1/jobs/{uuid}/check/", tag = "jobs", security(("bearer" = [])),
    params(("uuid" = String, Path, format = "uuid", description = "The job")),
    responses((status = 200, body = JobCheck), ApiRejection))]
pub(super) async fn job_check(
    State(service): State<Arc<ReportService>>,
    caller: Caller<ReadRight>,
    uuid: Result<Path<String>, PathRejection>,
) -> Result<Json<JobCheck>, ApiRejection> {
    let uuid = parse_job_id(uuid)?;
    validator_of_own_job(&service.store, &caller, uuid)
        .await?
        .ok_or_else(ApiRejection::not_found)?;
    let check = service.store.job_check(uuid).await?;
    check.map(Json).ok_or_else(ApiRejection::not_found)
}

/// Returns the user's feedback on the job's result.
#[utoipa::path(get, path = "/api/v1/jobs/{uuid}/feedback/", tag = "jobs", security(("bearer" = [])),
    params(("uuid" = String, Path, format = "uuid", description = "The job")),
    responses((status = 200, body = Feedback), ApiRejection))]
pub(super) async fn feedback(
    State(service): State<Arc<ReportService>>,
    caller: Caller<ReadRight>,
    uuid: Result<Path<String>, PathRejection>,
) -> Result<Json<Feedback>, ApiRejection> {
    let uuid = parse_job_id(uuid)?;
    validator_of_own_job(&service.store, &caller, uuid)
        .await?
        .ok_or_else(ApiRejection::not_found)?;
    let feedback = service.store.feedback(uuid).await?;
    feedback.map(Json).ok_or_else(ApiRejection::not_found)
}

/// Stores the user's feedback on the job's result. It cannot be changed later.
#[utoipa::path(put, path = "/api/v1/jobs/{uuid}/feedback/", tag = "jobs", request_body = Feedback,
    security(("bearer" = [])),
    params(("uuid" = String, Path, format = "uuid", description = "The job")),
    responses((status = 201, body = Feedback), ApiRejection))]
pub(super) async fn give_feedback(
    State(service): State<Arc<ReportService>>,
    caller: Caller<JobsRight>,
    uuid: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<(StatusCode, Json<Feedback>), ApiRejection> {
    let uuid = parse_job_id(uuid)?;
    let (parts, body) = request.into_parts();
    let body = json_body::read_json(&parts.headers, body).await?;
    let (feedback, signed) = request_bodies::parse_feedback(&body)?;
    match service
        .signer
        .sign_or_check_body(&caller.actor, &parts.headers, &signed)
    {
        Ok(_) => {}
        Err(rejection @ SignatureRejection::Missing(_)) => {
            return Err(ApiRejection::signature_not_found(&rejection));
        }
        Err(rejection) => return Err(rejection.into()),
    }
    validator_of_own_job(&service.store, &caller, uuid)
        .await?
        .ok_or_else(ApiRejection::not_found)?;
    let given = service
        .store
        .give_feedback(&caller.actor, uuid, &feedback, service.clock.now())
        .await?;
    if given {
        Ok((StatusCode::CREATED, Json(feedback)))
    } else {
        let reason = "Feedback already exists for this job.";
        Err(ApiRejection::detail(StatusCode::CONFLICT, reason))
    }
}

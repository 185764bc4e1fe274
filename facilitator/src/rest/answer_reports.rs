//! `/api/v1/cheated-answer/` and `/api/v1/answers/{uuid}/check/`: users' reports of streamed answers, and what they led
//! to.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use muster_facilitator_core::request_bodies::{BodyRejection, FieldErrors, parse_answer_report};
use muster_protocol::rest::{Message, ReportCheat};
use muster_protocol::wire::checks::JobCheck;
use muster_response_proof::{ReportedAnswer, ResponseProof};

use super::authentication::Caller;
use super::job_path::parse_job_id;
use super::json_body;
use super::model_service::ModelService;
use super::reports::ReportService;
use super::rights::{ChatRight, ReadRight};
use crate::rest::rejection::ApiRejection;

/// Reports of answers that an account may make within a day. A validator takes as many up.
const REPORTS_A_DAY: u64 = 5;
const DAY: Duration = Duration::from_secs(86_400);

/// Reports that a streamed answer is not the model's.
///
/// Both ids of the body are those of the job that the answer's proof names, and `details.answer` has the proof
/// (`proof`), the nonce that `/v1/proofs/{id}` states beside it if the request named none (`pseudonym_nonce`) and, if
/// the user shows them to the validator, the words of the exchange (`words`: `request`, `response` and `content_type`,
/// the bodies in base64). The validator audits the answers of the session's miner; with the words, it has this answer
/// scored, too.
#[utoipa::path(post, path = "/api/v1/cheated-answer/", operation_id = "cheated_answer", tag = "models",
    request_body = ReportCheat, security(("bearer" = [])),
    responses((status = 201, body = Message), ApiRejection))]
pub(super) async fn report_answer(
    State(service): State<Arc<ReportService>>,
    State(models): State<Arc<ModelService>>,
    caller: Caller<ChatRight>,
    request: Request,
) -> Result<(StatusCode, Json<Message>), ApiRejection> {
    let (parts, body) = request.into_parts();
    let body = json_body::read_json(&parts.headers, body).await?;
    let (report, signed) = parse_answer_report(&body)?;
    let (answer, proof) = read_answer(&report)?;
    let job = report.job_uuid;
    let frame = service.sign_report(&caller.actor, &parts.headers, report, &signed)?;
    // The session saw a pseudonym of the request, which the account opens.
    match models.is_answer_to(caller.account(), &answer, &proof) {
        Some(true) => {}
        Some(false) => {
            let reason = "Answer not found".to_owned();
            return Err(ApiRejection::error(StatusCode::NOT_FOUND, reason));
        }
        None => {
            let reason = "It must have answer.pseudonym_nonce: the nonce that /v1/proofs/ID states beside the proof, \
                          because the request named none.";
            return Err(wrong_field("details", reason.to_owned()).into());
        }
    }
    let now = service.clock.now();
    let made = service
        .store
        .count_answer_reports(caller.account(), now.minus(DAY))
        .await?;
    if made >= REPORTS_A_DAY {
        let reason = format!("The account has reported {REPORTS_A_DAY} answers within a day");
        return Err(ApiRejection::error(StatusCode::BAD_REQUEST, reason));
    }
    let stored = service
        .store
        .report_answer(&caller.actor, job, proof.audience, &frame, now)
        .await?;
    if !stored {
        let reason = "The account has reported an answer of this session already".to_owned();
        return Err(ApiRejection::error(StatusCode::BAD_REQUEST, reason));
    }
    tracing::info!(%job, by = %caller.account(), "a user reports an answer");
    Ok(service.deliver_report(proof.audience, "Answer reported as cheated"))
}

/// The proof of the reported answer, if the report names its session and shows the words that the proof names.
fn read_answer(report: &ReportCheat) -> Result<(ReportedAnswer, ResponseProof), BodyRejection> {
    let unreadable = || {
        wrong_field(
            "details",
            "It must have answer.proof: the proof of an answer, as /v1/proofs/ID states it.".to_owned(),
        )
    };
    let answer = ReportedAnswer::from_details(report.details.as_ref()).ok_or_else(unreadable)?;
    let proof = answer.statement().ok_or_else(unreadable)?;
    if proof.job != report.job_uuid {
        let reason = format!("It must be the job of the proof, {}.", proof.job);
        return Err(wrong_field("job_uuid", reason));
    }
    if let Some(words) = &answer.words {
        words
            .check(&proof)
            .map_err(|rejection| wrong_field("details", format!("{rejection}.")))?;
    }
    Ok((answer, proof))
}

fn wrong_field(field: &'static str, reason: String) -> BodyRejection {
    let mut errors = FieldErrors::new();
    errors.insert(field, vec![reason]);
    BodyRejection::Fields(errors)
}

/// Returns what the report of an answer of this session's job led to.
#[utoipa::path(get, path = "/api/v1/answers/{uuid}/check/", tag = "models", security(("bearer" = [])),
    params(("uuid" = String, Path, format = "uuid", description = "The job of the session, as the answer's proof names it")),
    responses((status = 200, body = JobCheck), ApiRejection))]
pub(super) async fn answer_check(
    State(service): State<Arc<ReportService>>,
    caller: Caller<ReadRight>,
    uuid: Result<Path<String>, PathRejection>,
) -> Result<Json<JobCheck>, ApiRejection> {
    let job = parse_job_id(uuid)?;
    let check = service.store.answer_check(caller.account(), job).await?;
    check.map(Json).ok_or_else(ApiRejection::not_found)
}

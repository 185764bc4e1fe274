//! `/api/v1/job-docker/` and `/api/v1/jobs/`.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use muster_protocol::JobId;
use muster_protocol::rest::{JobPage, JobView};
use muster_protocol::wire::facilitator::SignatureScope;
use uuid::Uuid;

use super::body;
use super::login::User;
use super::refusal::Refusal;
use crate::door::Door;
use crate::store::{Listed, MAX_PAGE_BYTES, StoredJob};
use muster_porter::page::PageQuery;
use muster_porter::signature::SignatureRefused;
use muster_porter::{intake, jobs, signature};

/// The list's own path, for the links between its pages.
const JOBS_PATH: &str = "/api/v1/jobs/";

/// `POST /api/v1/job-docker/`.
pub(crate) async fn create(
    State(door): State<Arc<Door>>,
    User(user): User,
    request: Request,
) -> Result<Response, Refusal> {
    let (parts, body) = request.into_parts();
    let body = body::json(&parts.headers, body).await?;
    let signed = signature::read(&parts.headers)?;
    signature::admits(
        &signed,
        SignatureScope::SignedFields,
        user,
        door.freshness,
        door.clock.now(),
    )?;
    let job = intake::read(&body)?;
    let (validator, request) = intake::into_request(job, JobId::from_uuid(Uuid::new_v4()), signed);
    let request = muster_identity::verify_job(&request).map_err(|_| SignatureRefused::Wrong)?;

    // The SDK repeats a request whose answer it did not get: the signature names the job it has made.
    let uuid = match door.store.job_of(&request.signature).await? {
        Some(known) => known,
        None if door.selects(validator).await? => {
            let taken = door.take(validator, &request).await?;
            tracing::info!(job = %taken, %user, %validator, "took a job in");
            taken
        }
        None => return Err(Refusal::list("Could not select Validator")),
    };
    let stored = door.store.job(uuid).await?.ok_or_else(Refusal::not_found)?;
    Ok((StatusCode::CREATED, Json(view(&stored))).into_response())
}

/// `GET /api/v1/jobs/{uuid}/`.
pub(crate) async fn show(
    State(door): State<Arc<Door>>,
    User(user): User,
    uuid: Result<Path<String>, PathRejection>,
) -> Result<Json<JobView>, Refusal> {
    let Path(uuid) = uuid.map_err(|_| Refusal::not_found())?;
    let uuid: JobId = uuid.parse().map_err(|_| Refusal::not_found())?;
    let stored = door.store.job(uuid).await?;
    let own = stored
        .filter(|job| job.user == user)
        .ok_or_else(Refusal::not_found)?;
    Ok(Json(view(&own)))
}

/// `GET /api/v1/jobs/`.
pub(crate) async fn list(
    State(door): State<Arc<Door>>,
    User(user): User,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Json<JobPage>, Refusal> {
    let no_such_page = || Refusal::detail(StatusCode::NOT_FOUND, "Invalid page.");
    let Query(query) = query.map_err(|_| no_such_page())?;
    let page = PageQuery::read(&query).ok_or_else(no_such_page)?;
    let found = match door.store.jobs_of(user, page.limit(), page.offset()).await? {
        Listed::Page(found) => found,
        Listed::TooLong => {
            let advice = format!(
                "This page would hold more than {MAX_PAGE_BYTES} bytes of results: ask for a smaller page_size, or for single jobs."
            );
            return Err(Refusal::detail(StatusCode::PAYLOAD_TOO_LARGE, advice));
        }
    };
    if !page.exists(found.count) {
        return Err(no_such_page());
    }
    let (next, previous) = page.links(&format!("{}{JOBS_PATH}", door.public_url), "", found.count);
    Ok(Json(JobPage {
        count: found.count,
        next,
        previous,
        results: found.jobs.iter().map(view).collect(),
    }))
}

fn view(job: &StoredJob) -> JobView {
    jobs::view(&job.request, job.validator, &job.history)
}

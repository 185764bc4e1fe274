//! `/api/v1/job-docker/` and `/api/v1/jobs/`.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use muster_facilitator_core::delivery::Trust;
use muster_facilitator_core::jobs::{History, Step};
use muster_facilitator_core::page::{JobFilter, PageQuery};
use muster_facilitator_core::signature::SignatureRefused;
use muster_facilitator_core::{intake, jobs};
use muster_protocol::rest::headers::IDEMPOTENCY_KEY;
use muster_protocol::rest::{CreateJob, JobPage, JobView};
use muster_protocol::wire::facilitator::SignatureScope;
use muster_protocol::{JobId, JobStatus};
use uuid::Uuid;

use super::body;
use super::caller::Caller;
use super::refusal::Refusal;
use super::reports::{named, own};
use crate::door::Door;
use crate::hub::Notice;
use crate::store::{Cancelled, Created, Listed, MAX_PAGE_BYTES, StoredJob, Submission};

/// The list's own path, for the links between its pages.
const JOBS_PATH: &str = "/api/v1/jobs/";

/// Takes a job in. The same signed request again, or the same `Idempotency-Key`, is the same job.
#[utoipa::path(post, path = "/api/v1/job-docker/", tag = "jobs", request_body = CreateJob, security(("bearer" = [])),
    params(("Idempotency-Key" = Option<String>, Header, max_length = 255, description = "The client's own name for this request")),
    responses((status = 201, body = JobView), Refusal))]
pub(super) async fn create(
    State(door): State<Arc<Door>>,
    caller: Caller,
    request: Request,
) -> Result<Response, Refusal> {
    let (parts, body) = request.into_parts();
    let body = body::json(&parts.headers, body).await?;
    let idempotency = idempotency(&parts.headers)?;
    let signed = caller.signature(&door, &parts.headers, SignatureScope::SignedFields)?;
    let job = intake::read(&body)?;
    let signature = signed.unwrap_or_else(|| {
        // For who has no key of their own, ours vouches.
        muster_identity::sign_job(&door.keypair, &job.signed_fields(), door.now_ns())
    });
    let (validator, request) = intake::into_request(job, JobId::from_uuid(Uuid::new_v4()), signature);
    let request = muster_identity::verify_job(&request).map_err(|_| SignatureRefused::Wrong)?;
    let submission = Submission {
        actor: &caller.0,
        validator,
        request: &request,
        idempotency: idempotency.as_deref(),
        quota: door.quota,
    };
    let now = door.clock.now();
    // The SDK repeats a request whose answer it did not get: that one needs no validator any more.
    let known = if door.selects(validator).await? {
        match door.store.create(submission, now).await? {
            Created::New => {
                door.announce(Notice::Deliver(validator, request.uuid));
                tracing::info!(job = %request.uuid, by = %caller.account(), %validator, "took a job in");
                let sent = Step {
                    status: JobStatus::Sent,
                    metadata: None,
                    at: now,
                };
                let view = jobs::view(&request, validator, &History::new(vec![sent]));
                return Ok((StatusCode::CREATED, Json(view)).into_response());
            }
            Created::Known(known) => known,
            Created::Over(over) => return Err(over.into()),
        }
    } else {
        let known = door.store.repeated(submission).await?;
        known.ok_or_else(|| Refusal::list("Could not select Validator"))?
    };
    let stored = door.store.job(known).await?.ok_or_else(Refusal::not_found)?;
    Ok((StatusCode::CREATED, Json(view(&stored))).into_response())
}

fn idempotency(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY) else {
        return Ok(None);
    };
    let name = value.to_str().ok().map(str::trim);
    match name.filter(|name| (1..=255).contains(&name.len())) {
        Some(name) => Ok(Some(name.to_owned())),
        None => Err(Refusal::detail(
            StatusCode::BAD_REQUEST,
            "Idempotency-Key must be 1 to 255 visible ASCII characters.",
        )),
    }
}

/// One job of the account.
#[utoipa::path(get, path = "/api/v1/jobs/{uuid}/", tag = "jobs", security(("bearer" = [])),
    params(("uuid" = String, Path, format = "uuid", description = "The job")),
    responses((status = 200, body = JobView), Refusal))]
pub(super) async fn show(
    State(door): State<Arc<Door>>,
    caller: Caller,
    uuid: Result<Path<String>, PathRejection>,
) -> Result<Json<JobView>, Refusal> {
    let uuid = named(uuid)?;
    let stored = door.store.job(uuid).await?;
    let own = stored
        .filter(|job| job.account == *caller.account())
        .ok_or_else(Refusal::not_found)?;
    Ok(Json(view(&own)))
}

/// Stops a job. One that no validator has answered ends at once; else its validator stops it, and its last status says how.
#[utoipa::path(post, path = "/api/v1/jobs/{uuid}/cancel/", tag = "jobs", security(("bearer" = [])),
    params(("uuid" = String, Path, format = "uuid", description = "The job")),
    responses((status = 202, body = JobView), Refusal))]
pub(super) async fn cancel(
    State(door): State<Arc<Door>>,
    caller: Caller,
    uuid: Result<Path<String>, PathRejection>,
) -> Result<(StatusCode, Json<JobView>), Refusal> {
    let uuid = named(uuid)?;
    let validator = own(&door, &caller, uuid).await?.ok_or_else(Refusal::not_found)?;
    let conflict = |reason: String| Refusal::detail(StatusCode::CONFLICT, reason);
    let stored = door.store.job(uuid).await?.ok_or_else(Refusal::not_found)?;
    let shown = stored.history.shown();
    if stored.history.len() > 1 && !shown.is_terminal() {
        // Nothing of ours is sent to a ComputeHorde peer, so its job cannot be stopped and must not seem to be.
        match door.store.known(validator).await?.map(|known| known.trust) {
            Some(Trust::Proven) => {}
            Some(Trust::Claimed) | None => {
                return Err(conflict(
                    "The job runs at a validator that cannot stop jobs; it ends by its own time limits."
                        .to_owned(),
                ));
            }
        }
    }
    match door.store.cancel(&caller.0, uuid, door.clock.now()).await? {
        Cancelled::TooLate(status) if !stored.cancelled => {
            return Err(conflict(format!("The job has already ended: {status}.")));
        }
        Cancelled::TooLate(_) => {}
        Cancelled::Ended | Cancelled::Asked => {
            tracing::info!(job = %uuid, by = %caller.account(), "a job is no longer wanted");
            door.announce(Notice::Cancel(validator, uuid));
            door.announce(Notice::Changed(uuid));
        }
    }
    let stored = door.store.job(uuid).await?.ok_or_else(Refusal::not_found)?;
    Ok((StatusCode::ACCEPTED, Json(view(&stored))))
}

/// The account's jobs, newest first, without the contents of inline volumes. A page past the end is 404.
#[utoipa::path(get, path = "/api/v1/jobs/", tag = "jobs", security(("bearer" = [])),
    params(
        ("page" = Option<u64>, Query, minimum = 1, description = "From 1"),
        ("page_size" = Option<u32>, Query, minimum = 1, description = "At most 256, else 10"),
        ("uuid" = Option<Vec<String>>, Query, description = "Only these jobs"),
        ("tag" = Option<String>, Query, description = "Only jobs with this label, of which there are none"),
    ),
    responses((status = 200, body = JobPage), Refusal))]
pub(super) async fn list(
    State(door): State<Arc<Door>>,
    caller: Caller,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Json<JobPage>, Refusal> {
    let Query(query) = query.map_err(|_| Refusal::no_such_page())?;
    let page = PageQuery::read(&query).ok_or_else(Refusal::no_such_page)?;
    let filter = JobFilter::read(&query).map_err(|error| Refusal::field("uuid", &error.to_string()))?;
    let listed = door
        .store
        .jobs_of(caller.account(), &filter, page.limit(), page.offset())
        .await?;
    let found = match listed {
        Listed::Page(found) => found,
        Listed::TooLong => {
            let advice = format!(
                "This page would hold more than {MAX_PAGE_BYTES} bytes of results: ask for a smaller page_size, or for single jobs."
            );
            return Err(Refusal::detail(StatusCode::PAYLOAD_TOO_LARGE, advice));
        }
    };
    if !page.exists(found.count) {
        return Err(Refusal::no_such_page());
    }
    let base = format!("{}{JOBS_PATH}", door.public_url);
    let (next, previous) = page.links(&base, &filter.query(), found.count);
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

//! `/api/v1/job-docker/` and `/api/v1/jobs/`: submitting, reading, cancelling and listing jobs.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use muster_facilitator_core::connections::Trust;
use muster_facilitator_core::history::{self, HistoryEntry, JobHistory};
use muster_facilitator_core::list_page::{JobFilter, PageQuery};
use muster_facilitator_core::live_remains::LiveRemains;
use muster_facilitator_core::metric_labels::{count_end, count_submitted};
use muster_facilitator_core::request_bodies;
use muster_facilitator_core::signature::SignatureRejection;
use muster_facilitator_core::traces::{note_context, read_context};
use muster_file_store::checkpoint_blocks::CheckpointService;
use muster_identity::VerifyError;
use muster_job_data::Notifications;
use muster_process::SharedClock;
use muster_protocol::job::Fault;
use muster_protocol::rest::headers::IDEMPOTENCY_KEY;
use muster_protocol::rest::{CreateJob, JobCheckpointsView, JobMetricsView, JobPage, JobView};
use muster_protocol::wire::facilitator::{SignatureScope, UserJobRequest};
use muster_protocol::{
    Feature, FeatureSet, JobId, JobStatus, MUSTER_FEATURES_HEADER, Timestamp, ValidatorKey,
};
use uuid::Uuid;

use super::authentication::Caller;
use super::files::base_url;
use super::job_path::{parse_job_id, validator_of_own_job};
use super::json_body;
use super::rights::{JobsRight, ReadRight};
use super::webhooks::check_url;
use muster_facilitator_store::{
    CancellationOutcome, JobCreation, JobListing, JobQuota, JobSubmission, MAX_PAGE_BYTES, Store, StoredJob,
};

use crate::change_notices::{Notice, Notifier};
use crate::request_signer::RequestSigner;
use crate::rest::rejection::ApiRejection;
use crate::validator_selection::ValidatorSelection;

/// The path of the list, for the links between its pages.
const JOBS_PATH: &str = "/api/v1/jobs/";

/// The services behind the calls about jobs.
pub(crate) struct JobService {
    pub(crate) store: Store,
    pub(crate) selection: ValidatorSelection,
    pub(crate) signer: Arc<RequestSigner>,
    pub(crate) notifier: Notifier,
    /// Knows which URLs of webhooks are allowed.
    pub(crate) notifications: Notifications,
    pub(crate) quota: JobQuota,
    pub(crate) checkpoints: Arc<CheckpointService>,
    pub(crate) clock: SharedClock,
    /// The beginning of links, without a slash at the end; empty for relative links.
    pub(crate) public_url: String,
}

/// Submits a job. The same signed request again, or the same `Idempotency-Key`, returns the same job.
#[utoipa::path(post, path = "/api/v1/job-docker/", tag = "jobs", request_body = CreateJob, security(("bearer" = [])),
    params(("Idempotency-Key" = Option<String>, Header, max_length = 255,
        description = "The client's name for this request"),
        ("traceparent" = Option<String>, Header, description = "The client's trace context, as W3C defines it")),
    responses((status = 201, body = JobView), ApiRejection))]
pub(super) async fn create(
    State(service): State<Arc<JobService>>,
    caller: Caller<JobsRight>,
    request: Request,
) -> Result<Response, ApiRejection> {
    let (parts, body) = request.into_parts();
    let body = json_body::read_json(&parts.headers, body).await?;
    let idempotency = parse_idempotency_key(&parts.headers)?;
    let signed = service
        .signer
        .check_headers(&caller.actor, &parts.headers, SignatureScope::SignedFields)?;
    let mut job = request_bodies::parse_job(&body)?;
    let webhook = job.webhook.take();
    let tag = job.tag.take().unwrap_or_default();
    service.check_webhook(&caller, webhook.as_deref()).await?;
    let features = service.features_for(&job, signed.is_none()).await?;
    let id = JobId::from_uuid(Uuid::new_v4());
    let signature = match signed {
        Some(signature) => signature,
        None => {
            let signature = service.signer.sign_job(&job);
            job.muster = service
                .signer
                .sign_extension(&caller.actor, &job, &signature, features);
            signature
        }
    };
    note_context(&mut job.muster, read_context(&parts.headers));
    service
        .grant_blocks(&caller, &parts.headers, id, &mut job)
        .await?;
    let (validator, request) = request_bodies::into_request(job, id, signature);
    let request = muster_identity::verify_job(&request).map_err(|error| match error {
        VerifyError::Terms { .. } => ApiRejection::field("muster", &error.to_string()),
        VerifyError::Signature { .. }
        | VerifyError::Future { .. }
        | VerifyError::Limits(_)
        | VerifyError::Scope
        | VerifyError::Missing
        | VerifyError::PublicKey => SignatureRejection::Wrong.into(),
    })?;
    let submission = JobSubmission {
        actor: &caller.actor,
        validator,
        request: &request,
        idempotency: idempotency.as_deref(),
        quota: service.quota,
        webhook: webhook.as_deref(),
        tag: &tag,
    };
    let now = service.clock.now();
    // The SDK repeats a request that got no answer. A repeated request needs no selectable validator.
    let existing = if service.selection.is_selectable(validator).await? {
        match service.store.create(submission, now).await? {
            JobCreation::New => {
                count_submitted();
                service.notifier.publish(Notice::Deliver(validator, request.uuid));
                tracing::info!(job = %request.uuid, by = %caller.account(), %validator, "accepted a job");
                let view = view_of_new(&request, validator, tag, now);
                return Ok((StatusCode::CREATED, Json(view)).into_response());
            }
            JobCreation::Existing(existing) => existing,
            JobCreation::QuotaExceeded(exceeded) => return Err(exceeded.into()),
        }
    } else {
        let existing = service.store.find_repeated(submission).await?;
        existing.ok_or_else(|| ApiRejection::list("Could not select Validator"))?
    };
    let stored = service
        .store
        .job(existing)
        .await?
        .ok_or_else(ApiRejection::not_found)?;
    let mut view = stored.view();
    (view.image, view.completion) = (None, None);
    Ok((StatusCode::CREATED, Json(view)).into_response())
}

/// The view of a job that was accepted `now`.
fn view_of_new(request: &UserJobRequest, validator: ValidatorKey, tag: String, now: Timestamp) -> JobView {
    let sent = HistoryEntry {
        status: JobStatus::Sent,
        metadata: None,
        at: now,
    };
    JobView {
        tag,
        ..history::job_view(request, validator, &JobHistory::new(vec![sent]))
    }
}

impl JobService {
    /// Adds the places of the jobs that wait, and takes out what only Muster's clients know, unless the client shows
    /// that it knows them: ComputeHorde's SDK sees what it always saw.
    async fn add_own_fields(&self, headers: &HeaderMap, views: &mut [JobView]) -> Result<(), ApiRejection> {
        let features = shown_features(headers);
        for view in views.iter_mut() {
            if !features.has(Feature::Results) {
                view.image = None;
            }
            if !features.has(Feature::Completion) {
                view.completion = None;
            }
        }
        if !features.has(Feature::Queue) {
            return Ok(());
        }
        let open = views.iter().filter(|view| !view.last_status().is_terminal());
        let open: Vec<_> = open.map(|view| view.uuid.to_string()).collect();
        let places = self.store.queue_places(&open).await?;
        for view in views {
            let place = places.get(&view.uuid.to_string());
            view.queue = place.map(|place| Box::new(place.to_view()));
        }
        Ok(())
    }

    /// Checks the URL that is notified of a job's end.
    async fn check_webhook(&self, caller: &Caller<JobsRight>, url: Option<&str>) -> Result<(), ApiRejection> {
        let Some(url) = url else { return Ok(()) };
        check_url(&self.notifications, "webhook", url)?;
        match self
            .store
            .webhooks()
            .account_webhook(&caller.account().to_string())
            .await?
        {
            Some(_) => Ok(()),
            None => Err(ApiRejection::field(
                "webhook",
                "The account has no secret that signs the message: draw one with PUT /api/v1/webhook/ first.",
            )),
        }
    }

    /// Adds the grants on the file store: for the printed streams, and for checkpoints where a job leaves any.
    async fn grant_blocks(
        &self,
        caller: &Caller<JobsRight>,
        headers: &HeaderMap,
        id: JobId,
        job: &mut CreateJob,
    ) -> Result<(), ApiRejection> {
        self.grant_output(headers, id, job);
        self.grant_checkpoints(caller, headers, id, job).await
    }

    /// Adds the grant on the file store to a job that leaves checkpoints.
    async fn grant_checkpoints(
        &self,
        caller: &Caller<JobsRight>,
        headers: &HeaderMap,
        id: JobId,
        job: &mut CreateJob,
    ) -> Result<(), ApiRejection> {
        let Some(extension) = &mut job.muster else {
            return Ok(());
        };
        let Some(terms) = extension
            .terms
            .as_ref()
            .and_then(|terms| terms.checkpoints.as_ref())
        else {
            return Ok(());
        };
        let base = base_url(&self.public_url, headers);
        let granted = self
            .checkpoints
            .grant(&caller.account().to_string(), id, terms, &base)
            .await;
        extension.checkpoints = Some(granted?);
        Ok(())
    }

    /// Fills in the output of a job of which only live pieces are left.
    async fn add_live_remains(&self, view: &mut JobView) -> Result<(), ApiRejection> {
        let mut remains = LiveRemains::default();
        for piece in self.store.all_log_pieces(view.uuid).await? {
            remains.add(piece.stream, piece.offset, &piece.data);
        }
        (view.stdout, view.stderr) = remains.into_texts();
        Ok(())
    }

    /// Adds the grant on the file store for the streams that the job's programs print. A job that answers requests
    /// prints for its operator, not for a user.
    fn grant_output(&self, headers: &HeaderMap, id: JobId, job: &mut CreateJob) {
        if job.streaming_details.is_none() {
            let base = base_url(&self.public_url, headers);
            let extension = job.muster.get_or_insert_default();
            let terms = extension.terms.as_ref();
            let keeps_checkpoints = terms.is_some_and(|terms| terms.checkpoints.is_some());
            extension.output = Some(self.checkpoints.grant_output(id, keeps_checkpoints, &base));
        }
    }

    /// The features of the job's validator, as far as the job depends on them: by its own terms, or because its account
    /// is sent with it.
    ///
    /// # Errors
    /// The validator lacks a feature that the job's terms need.
    async fn features_for(&self, job: &CreateJob, tells_account: bool) -> Result<FeatureSet, ApiRejection> {
        let needed = job.needed_features();
        if needed == FeatureSet::NONE && !tells_account {
            return Ok(FeatureSet::NONE);
        }
        let record = self.store.validator(job.target_validator_hotkey).await?;
        let features = record.map(|record| record.features).unwrap_or_default();
        match features.lacks(needed) {
            None => Ok(features),
            Some(Feature::Folders) => Err(ApiRejection::field(
                "uploads",
                "the validator does not know \"folders\", which an output with a kind needs; leave the kinds out, or choose \
                 another validator",
            )),
            Some(Feature::OutputPatterns) => Err(ApiRejection::field(
                "uploads",
                "the validator does not know \"output-patterns\", which an output named by a pattern needs; name the files \
                 or their folder, or choose another validator",
            )),
            Some(Feature::ProgramStart) => Err(ApiRejection::field(
                "muster",
                "the validator does not know \"program-start\", which a working directory, an entry point and an input \
                 for standard input need; leave them out, or choose another validator",
            )),
            Some(feature) => Err(ApiRejection::field(
                "muster",
                &format!(
                    "the validator does not know {feature:?}, which these terms need; leave the terms out, or choose \
                     another validator",
                    feature = feature.name()
                ),
            )),
        }
    }
}

/// The features that the client shows.
pub(super) fn shown_features(headers: &HeaderMap) -> FeatureSet {
    let shown = headers.get(MUSTER_FEATURES_HEADER).map(HeaderValue::as_bytes);
    FeatureSet::parse(shown.unwrap_or_default())
}

fn parse_idempotency_key(headers: &HeaderMap) -> Result<Option<String>, ApiRejection> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY) else {
        return Ok(None);
    };
    let name = value.to_str().ok().map(str::trim);
    match name.filter(|name| (1..=255).contains(&name.len())) {
        Some(name) => Ok(Some(name.to_owned())),
        None => Err(ApiRejection::detail(
            StatusCode::BAD_REQUEST,
            "Idempotency-Key must be 1 to 255 visible ASCII characters.",
        )),
    }
}

/// Returns one job of the account.
#[utoipa::path(get, path = "/api/v1/jobs/{uuid}/", tag = "jobs", security(("bearer" = [])),
    params(
        ("uuid" = String, Path, format = "uuid", description = "The job"),
        ("Muster-Features" = Option<String>, Header,
            description = "With `queue`, a job that waits has its place; with `results`, an ended one names its image; \
                with `webhooks`, a job with a webhook tells where its message stands"),
    ),
    responses((status = 200, body = JobView), ApiRejection))]
pub(super) async fn show(
    State(service): State<Arc<JobService>>,
    caller: Caller<ReadRight>,
    headers: HeaderMap,
    uuid: Result<Path<String>, PathRejection>,
) -> Result<Json<JobView>, ApiRejection> {
    let uuid = parse_job_id(uuid)?;
    let stored = service.store.job(uuid).await?;
    let own = stored
        .filter(|job| job.account == *caller.account())
        .ok_or_else(ApiRejection::not_found)?;
    let mut views = [own.view()];
    service.add_own_fields(&headers, &mut views).await?;
    let [mut view] = views;
    if shown_features(&headers).has(Feature::Webhooks) {
        view.webhook = service
            .store
            .webhooks()
            .webhook_delivery(uuid)
            .await?
            .map(Box::new);
    }
    if own.keeps_output {
        service.add_live_remains(&mut view).await?;
    }
    Ok(Json(view))
}

/// The newest state of a job's program and the series of its metrics, while it runs and after.
#[utoipa::path(get, path = "/api/v1/jobs/{uuid}/metrics/", tag = "jobs", security(("bearer" = [])),
    params(("uuid" = String, Path, format = "uuid", description = "The job")),
    responses((status = 200, description = "The metrics", body = JobMetricsView), ApiRejection))]
pub(super) async fn metrics(
    State(service): State<Arc<JobService>>,
    caller: Caller<ReadRight>,
    headers: HeaderMap,
    uuid: Result<Path<String>, PathRejection>,
) -> Result<Json<JobMetricsView>, ApiRejection> {
    let job = parse_job_id(uuid)?;
    validator_of_own_job(&service.store, &caller, job)
        .await?
        .ok_or_else(ApiRejection::not_found)?;
    let mut newest = service.store.program_report(job).await?;
    if let Some(state) = &mut newest {
        state.report.fit_to(shown_features(&headers));
    }
    Ok(Json(JobMetricsView {
        newest,
        series: service.store.metric_series(job).await?,
    }))
}

/// The checkpoints of a job that are kept, while it runs and after.
#[utoipa::path(get, path = "/api/v1/jobs/{uuid}/checkpoints/", tag = "jobs", security(("bearer" = [])),
    params(("uuid" = String, Path, format = "uuid", description = "The job")),
    responses((status = 200, description = "The checkpoints", body = JobCheckpointsView), ApiRejection))]
pub(super) async fn checkpoints(
    State(service): State<Arc<JobService>>,
    caller: Caller<ReadRight>,
    headers: HeaderMap,
    uuid: Result<Path<String>, PathRejection>,
) -> Result<Json<JobCheckpointsView>, ApiRejection> {
    let job = parse_job_id(uuid)?;
    validator_of_own_job(&service.store, &caller, job)
        .await?
        .ok_or_else(ApiRejection::not_found)?;
    let base = base_url(&service.public_url, &headers);
    Ok(Json(service.checkpoints.view(job, &base).await?))
}

/// Cancels a job.
///
/// A job that no validator has answered ends at once. Otherwise its validator stops it and reports the last status.
#[utoipa::path(post, path = "/api/v1/jobs/{uuid}/cancel/", tag = "jobs", security(("bearer" = [])),
    params(("uuid" = String, Path, format = "uuid", description = "The job")),
    responses((status = 202, body = JobView), ApiRejection))]
pub(super) async fn cancel(
    State(service): State<Arc<JobService>>,
    caller: Caller<JobsRight>,
    uuid: Result<Path<String>, PathRejection>,
) -> Result<(StatusCode, Json<JobView>), ApiRejection> {
    let uuid = parse_job_id(uuid)?;
    let store = &service.store;
    let validator = validator_of_own_job(store, &caller, uuid)
        .await?
        .ok_or_else(ApiRejection::not_found)?;
    let conflict = |reason: String| ApiRejection::detail(StatusCode::CONFLICT, reason);
    let stored = store.job(uuid).await?.ok_or_else(ApiRejection::not_found)?;
    let status = stored.history.visible_status();
    if stored.history.len() > 1 && !status.is_terminal() {
        // ComputeHorde's validators have no message to stop a job, so the answer must not claim that it stops.
        match store.validator(validator).await?.map(|record| record.trust) {
            Some(Trust::Proven) => {}
            Some(Trust::Claimed) | None => {
                return Err(conflict(
                    "The job runs at a validator that cannot stop jobs; it ends by its own time limits."
                        .to_owned(),
                ));
            }
        }
    }
    match store.cancel(&caller.actor, uuid, service.clock.now()).await? {
        CancellationOutcome::TooLate(status) if !stored.cancelled => {
            return Err(conflict(format!("The job has already ended: {status}.")));
        }
        CancellationOutcome::TooLate(_) => {}
        ended @ (CancellationOutcome::Ended | CancellationOutcome::Requested) => {
            if ended == CancellationOutcome::Ended {
                count_end(JobStatus::Rejected, Fault::User);
            }
            tracing::info!(job = %uuid, by = %caller.account(), "a user cancels a job");
            service.notifier.publish(Notice::Cancel(validator, uuid));
            service.notifier.publish(Notice::Changed(uuid));
        }
    }
    let stored = store.job(uuid).await?.ok_or_else(ApiRejection::not_found)?;
    let mut view = stored.view();
    view.image = None;
    Ok((StatusCode::ACCEPTED, Json(view)))
}

/// Lists the account's jobs, newest first, without the contents of inline volumes. A page past the end answers 404.
#[utoipa::path(get, path = "/api/v1/jobs/", tag = "jobs", security(("bearer" = [])),
    params(
        ("page" = Option<u64>, Query, minimum = 1, description = "Page number, from 1"),
        ("page_size" = Option<u32>, Query, minimum = 1, description = "Results on a page, at most 256; 10 if absent"),
        ("uuid" = Option<Vec<String>>, Query, description = "Only these jobs"),
        ("id_prefix" = Option<String>, Query, description = "Only jobs whose ids begin with this text"),
        ("tag" = Option<String>, Query, description = "Only jobs with this label"),
        ("status" = Option<Vec<String>>, Query,
            description = "Only jobs with one of these statuses, or with `queued` those that wait for an executor"),
        ("Muster-Features" = Option<String>, Header,
            description = "With `queue`, jobs that wait have their places; with `results`, ended ones name their images"),
    ),
    responses((status = 200, body = JobPage), ApiRejection))]
pub(super) async fn list(
    State(service): State<Arc<JobService>>,
    caller: Caller<ReadRight>,
    headers: HeaderMap,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Json<JobPage>, ApiRejection> {
    let Query(query) = query.map_err(|_| ApiRejection::no_such_page())?;
    let page = PageQuery::parse(&query).ok_or_else(ApiRejection::no_such_page)?;
    let filter =
        JobFilter::parse(&query).map_err(|error| ApiRejection::field(error.field(), &error.to_string()))?;
    let listing = service
        .store
        .list_jobs(caller.account(), &filter, page.limit(), page.offset())
        .await?;
    let found = match listing {
        JobListing::Page(found) => found,
        JobListing::TooLong => {
            let advice = format!(
                "This page would hold more than {MAX_PAGE_BYTES} bytes of results: ask for a smaller page_size, or for single jobs."
            );
            return Err(ApiRejection::detail(StatusCode::PAYLOAD_TOO_LARGE, advice));
        }
    };
    if !page.exists(found.count) {
        return Err(ApiRejection::no_such_page());
    }
    let base = format!("{}{JOBS_PATH}", service.public_url);
    let (next, previous) = page.links(&base, &filter.query(), found.count);
    let mut results: Vec<_> = found.jobs.iter().map(StoredJob::view).collect();
    service.add_own_fields(&headers, &mut results).await?;
    Ok(Json(JobPage {
        count: found.count,
        next,
        previous,
        results,
    }))
}

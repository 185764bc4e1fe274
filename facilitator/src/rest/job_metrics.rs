//! `/api/v1/jobs/{uuid}/metrics/`: what a job's program reported of itself.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use muster_protocol::rest::JobMetricsView;

use super::admission::Caller;
use super::job_path::{parse_job_id, validator_of_own_job};
use super::jobs::JobService;
use super::rejection::ApiRejection;
use super::rights::ReadRight;

/// The newest state of a job's program and the series of its metrics, while it runs and after.
#[utoipa::path(get, path = "/api/v1/jobs/{uuid}/metrics/", tag = "jobs", security(("bearer" = [])),
    params(("uuid" = String, Path, format = "uuid", description = "The job")),
    responses((status = 200, description = "The metrics", body = JobMetricsView), ApiRejection))]
pub(super) async fn show(
    State(service): State<Arc<JobService>>,
    caller: Caller<ReadRight>,
    uuid: Result<Path<String>, PathRejection>,
) -> Result<Json<JobMetricsView>, ApiRejection> {
    let job = parse_job_id(uuid)?;
    validator_of_own_job(&service.store, &caller, job)
        .await?
        .ok_or_else(ApiRejection::not_found)?;
    Ok(Json(JobMetricsView {
        newest: service.store.program_report(job).await?,
        series: service.store.metric_series(job).await?,
    }))
}

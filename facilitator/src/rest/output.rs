//! `/api/v1/jobs/{uuid}/output/{stream}/`: a stream that the program of an ended job printed, as bytes.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use muster_protocol::job::PrintedStream;
use muster_protocol::rest::JobView;
use serde::Deserialize;

use super::authentication::Caller;
use super::job_path::{parse_job_id, validator_of_own_job};
use super::jobs::JobService;
use super::rights::ReadRight;
use crate::rest::rejection::ApiRejection;

/// The parameters of a request for a stream.
#[derive(Debug, Deserialize)]
pub(super) struct StreamQuery {
    /// The first byte that is wanted, from 0.
    #[serde(default)]
    offset: u64,
}

/// The bytes of one stream of an ended job, in the place where they lie.
enum StreamSource<'a> {
    /// In the text of the result, which holds all of them.
    Text(&'a [u8]),
    /// In the file store.
    Stored(PrintedStream),
    /// The facilitator does not have them.
    Nowhere,
}

/// Reads what the program of an ended job printed to standard output (`stdout`) or standard error (`stderr`), byte for
/// byte.
///
/// Only executors with the feature `output` keep it. The view of the job names the length and the SHA-256.
#[utoipa::path(get, path = "/api/v1/jobs/{uuid}/output/{stream}/", tag = "jobs", security(("bearer" = [])),
    params(
        ("uuid" = String, Path, format = "uuid", description = "The job"),
        ("stream" = String, Path, pattern = "^std(out|err)$", description = "`stdout` or `stderr`"),
        ("offset" = Option<u64>, Query, minimum = 0, description = "The first byte that is wanted; 0 if absent"),
    ),
    responses(
        (status = 200, description = "The bytes", body = Vec<u8>, content_type = "application/octet-stream"),
        ApiRejection))]
pub(super) async fn output(
    State(service): State<Arc<JobService>>,
    caller: Caller<ReadRight>,
    path: Result<Path<(String, String)>, PathRejection>,
    query: Result<Query<StreamQuery>, QueryRejection>,
) -> Result<Response, ApiRejection> {
    let Path((uuid, stream)) = path.map_err(|_| ApiRejection::not_found())?;
    let job = parse_job_id(Ok(Path(uuid)))?;
    let Query(StreamQuery { offset }) =
        query.map_err(|_| ApiRejection::field("offset", "It must be a number of bytes, from 0."))?;
    validator_of_own_job(&service.store, &caller, job)
        .await?
        .ok_or_else(ApiRejection::not_found)?;
    let stored = service
        .store
        .job(job)
        .await?
        .ok_or_else(ApiRejection::not_found)?;
    let view = stored.view();
    match find_source(&view, &stream).ok_or_else(ApiRejection::not_found)? {
        StreamSource::Text(bytes) => {
            let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
            let rest = Bytes::copy_from_slice(bytes.get(start..).unwrap_or_default());
            let length = u64::try_from(rest.len()).unwrap_or(u64::MAX);
            Ok(answer(Body::from(rest), length))
        }
        StreamSource::Stored(PrintedStream {
            stored: Some(stream), ..
        }) => {
            let opened = service.checkpoints.open_stream(job, stream, offset).await;
            let pieces = opened?;
            Ok(answer(
                Body::from_stream(pieces),
                stream.bytes.saturating_sub(offset),
            ))
        }
        StreamSource::Stored(_) | StreamSource::Nowhere => Err(ApiRejection::detail(
            StatusCode::NOT_FOUND,
            "The output of this job is not in the file store: the job has not ended, its executor does not keep it, or \
             it is not whole. The view of the job has its text.",
        )),
    }
}

/// Finds the bytes of a stream; `None` for a name that is no stream's.
fn find_source<'a>(view: &'a JobView, stream: &str) -> Option<StreamSource<'a>> {
    let printed = view
        .completion
        .as_ref()
        .and_then(|completion| completion.printed.as_ref());
    let (printed, text) = match stream {
        "stdout" => (printed.map(|printed| printed.stdout), &view.stdout),
        "stderr" => (printed.map(|printed| printed.stderr), &view.stderr),
        _ => return None,
    };
    let Some(printed) = printed else {
        return Some(StreamSource::Nowhere);
    };
    Some(match (printed.stored, printed.within(text)) {
        (Some(_), _) => StreamSource::Stored(printed),
        (None, Some(bytes)) => StreamSource::Text(bytes),
        (None, None) => StreamSource::Nowhere,
    })
}

fn answer(body: Body, length: u64) -> Response {
    let headers = [
        (
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/octet-stream"),
        ),
        (
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ),
        (header::CONTENT_LENGTH, HeaderValue::from(length)),
    ];
    (headers, body).into_response()
}

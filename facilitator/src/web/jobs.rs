//! The list of jobs.

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use muster_protocol::rest::JobPage;
use muster_web_pages::jobs::{self, JobChoice, JobListQuery};
use serde::Deserialize;

use super::session::{SignedIn, as_part};

/// The query of the list.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ListQuery {
    #[serde(default)]
    status: String,
    page: Option<u64>,
}

/// A page of the list.
pub(super) async fn list(signed_in: SignedIn, query: Result<Query<ListQuery>, QueryRejection>) -> Response {
    let Query(query) = query.unwrap_or_default();
    let wanted = JobListQuery {
        choice: JobChoice::parse(&query.status),
        page: query.page.unwrap_or(1).max(1),
    };
    let path = format!("/api/v1/jobs/{}", wanted.api_query());
    let found = signed_in.api.get::<JobPage>(&path).await;
    match found {
        // A page past the end.
        Err(failure) if failure.status == StatusCode::NOT_FOUND => signed_in.not_found(),
        found => Html(jobs::render(&signed_in.visitor(), wanted, &as_part(found))).into_response(),
    }
}

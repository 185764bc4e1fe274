//! The files in the store.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query};
use axum::http::{Method, StatusCode};
use axum::response::{Html, IntoResponse, Redirect, Response};
use muster_protocol::rest::{FilePage, FileView};
use muster_web_pages::files;
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::api::{ApiFailure, decode, json_body};
use super::form::{SignedFetch, SignedForm};
use super::session::{SignedIn, as_part};

/// The query of the list.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ListQuery {
    page: Option<u64>,
}

/// A page of the list.
pub(super) async fn list(signed_in: SignedIn, query: Result<Query<ListQuery>, QueryRejection>) -> Response {
    let page = query.ok().and_then(|Query(query)| query.page).unwrap_or(1).max(1);
    show(&signed_in, page, None).await
}

async fn show(signed_in: &SignedIn, page: u64, failed: Option<&ApiFailure>) -> Response {
    let path = format!("/api/v1/files/?page={page}&page_size={}", files::PAGE_SIZE);
    let found = signed_in.api.get::<FilePage>(&path).await;
    if found
        .as_ref()
        .is_err_and(|failure| failure.status == StatusCode::NOT_FOUND)
    {
        return signed_in.not_found();
    }
    let words = failed.map(|failure| failure.words.as_str());
    let text = files::render(&signed_in.visitor(), page, &as_part(found), words);
    let status = failed.map_or(StatusCode::OK, |failure| failure.status);
    (status, Html(text)).into_response()
}

/// Announces a file for the script, and returns the path that takes its bytes.
pub(super) async fn create(request: SignedFetch) -> Response {
    let SignedFetch { signed_in, body } = request;
    let response = signed_in
        .api
        .send(Method::POST, "/api/v1/files/", &[json_body()], body)
        .await;
    match decode::<FileView>(response).await {
        Ok(file) => Json(json!({ "upload": local_path(&file.upload_url) })).into_response(),
        Err(failure) => (failure.status, Json(json!({ "problem": failure.words }))).into_response(),
    }
}

/// The address of a file without its server: a browser reaches the store where it reaches the page.
fn local_path(url: &str) -> &str {
    let after = url.split_once("://").map_or(url, |(_, after)| after);
    after.find('/').and_then(|at| after.get(at..)).unwrap_or("/")
}

/// The API's path of a file. Any other text is answered like a file that does not exist.
fn file_path(id: &str) -> Option<String> {
    let id: Uuid = id.parse().ok()?;
    Some(format!("/api/v1/files/{id}/"))
}

/// Leads to the bytes of a file.
pub(super) async fn download(signed_in: SignedIn, Path(id): Path<String>) -> Response {
    let Some(path) = file_path(&id) else {
        return signed_in.not_found();
    };
    match signed_in.api.get::<FileView>(&path).await {
        Ok(file) => Redirect::to(local_path(&file.download_url)).into_response(),
        Err(failure) => signed_in.failure(&failure),
    }
}

/// Deletes a file.
pub(super) async fn delete(Path(id): Path<String>, form: SignedForm) -> Response {
    let Some(path) = file_path(&id) else {
        return form.signed_in.not_found();
    };
    match form.signed_in.api.act(Method::DELETE, &path).await {
        Ok(()) => Redirect::to("/files").into_response(),
        Err(failure) => show(&form.signed_in, 1, Some(&failure)).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_keeps_its_path_and_its_signature() {
        let url = "https://facilitator.example:1/files/a/upload?Expires=1&Signature=b";
        assert_eq!(local_path(url), "/files/a/upload?Expires=1&Signature=b");
        assert_eq!(local_path("nothing"), "/");
    }
}

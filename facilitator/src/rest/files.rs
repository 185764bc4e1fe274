//! `/api/v1/files/`: files that users announce, list, read about and delete. Their bytes go through the signed URLs in
//! the answers ([`muster_file_store::file_routes`]).

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use muster_facilitator_core::list_page::PageQuery;
use muster_file_store::{FileAccess, FileId, FileService, NewFile, StoredFile};
use muster_protocol::Digest;
use muster_protocol::rest::{CreateFile, FilePage, FileView};

use super::authentication::Caller;
use super::json_body;
use super::rights::FilesRight;
use crate::rest::rejection::ApiRejection;

/// The path of the list, for the links between its pages.
const FILES_PATH: &str = "/api/v1/files/";

/// The services behind the calls about files.
pub(crate) struct FileCalls {
    pub(crate) files: Arc<FileService>,
    /// The beginning of links, without a slash at the end; empty for relative links.
    pub(crate) public_url: String,
}

/// Announces a file for an input or an output, and returns signed URLs for its bytes.
#[utoipa::path(post, path = "/api/v1/files/", tag = "files", request_body = CreateFile, security(("bearer" = [])),
    responses((status = 201, body = FileView), ApiRejection))]
pub(super) async fn create(
    State(calls): State<Arc<FileCalls>>,
    caller: Caller<FilesRight>,
    request: Request,
) -> Result<Response, ApiRejection> {
    let (parts, body) = request.into_parts();
    let body = json_body::read_json(&parts.headers, body).await?;
    let new =
        parse_new_file(&body).map_err(|reason| ApiRejection::detail(StatusCode::BAD_REQUEST, reason))?;
    let file = calls.files.create(&caller.account().to_string(), new).await?;
    tracing::info!(file = %file.id, user = %caller.account(), "announced a file");
    let view = file_view(&calls, &parts.headers, &file);
    Ok((StatusCode::CREATED, Json(view)).into_response())
}

fn parse_new_file(body: &[u8]) -> Result<NewFile, String> {
    let new: CreateFile = serde_json::from_slice(body).map_err(|error| {
        format!(
            "Invalid JSON: {}",
            error.to_string().chars().take(200).collect::<String>()
        )
    })?;
    let digest = |text: String| {
        let mut bytes = [0; 32];
        let read = hex::decode_to_slice(&text, &mut bytes);
        read.map(|()| Digest::from_bytes(bytes))
            .map_err(|_| "sha256 must be 64 hex digits".to_owned())
    };
    Ok(NewFile {
        name: new.name,
        size: new.size,
        max_size: new.max_size,
        sha256: new.sha256.map(digest).transpose()?,
    })
}

/// Lists the account's files, newest first.
#[utoipa::path(get, path = "/api/v1/files/", tag = "files", security(("bearer" = [])),
    params(
        ("page" = Option<u64>, Query, minimum = 1, description = "Page number, from 1"),
        ("page_size" = Option<u32>, Query, minimum = 1, description = "Results on a page, at most 256; 10 if absent"),
    ),
    responses((status = 200, body = FilePage), ApiRejection))]
pub(super) async fn list(
    State(calls): State<Arc<FileCalls>>,
    caller: Caller<FilesRight>,
    headers: HeaderMap,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Json<FilePage>, ApiRejection> {
    let Query(query) = query.map_err(|_| ApiRejection::no_such_page())?;
    let page = PageQuery::parse(&query).ok_or_else(ApiRejection::no_such_page)?;
    let found = calls
        .files
        .list(&caller.account().to_string(), page.limit(), page.offset())
        .await?;
    if !page.exists(found.count) {
        return Err(ApiRejection::no_such_page());
    }
    let (next, previous) = page.links(&format!("{}{FILES_PATH}", calls.public_url), "", found.count);
    Ok(Json(FilePage {
        count: found.count,
        next,
        previous,
        results: found
            .files
            .iter()
            .map(|file| file_view(&calls, &headers, file))
            .collect(),
    }))
}

/// Returns one file, with fresh URLs.
#[utoipa::path(get, path = "/api/v1/files/{id}/", tag = "files", security(("bearer" = [])),
    params(("id" = String, Path, description = "The file's id from the list of files")),
    responses((status = 200, body = FileView), ApiRejection))]
pub(super) async fn show(
    State(calls): State<Arc<FileCalls>>,
    caller: Caller<FilesRight>,
    headers: HeaderMap,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<FileView>, ApiRejection> {
    let file = calls
        .files
        .show(&caller.account().to_string(), parse_file_id(id)?)
        .await?;
    Ok(Json(file_view(&calls, &headers, &file)))
}

/// Deletes a file. Its URLs stop working at once.
#[utoipa::path(delete, path = "/api/v1/files/{id}/", tag = "files", security(("bearer" = [])),
    params(("id" = String, Path, description = "The file's id from the list of files")),
    responses((status = 204, description = "The file is deleted"), ApiRejection))]
pub(super) async fn remove(
    State(calls): State<Arc<FileCalls>>,
    caller: Caller<FilesRight>,
    id: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, ApiRejection> {
    let id = parse_file_id(id)?;
    calls.files.remove(&caller.account().to_string(), id).await?;
    tracing::info!(file = %id, user = %caller.account(), "deleted a file");
    Ok(StatusCode::NO_CONTENT)
}

fn parse_file_id(id: Result<Path<String>, PathRejection>) -> Result<FileId, ApiRejection> {
    let Path(id) = id.map_err(|_| ApiRejection::not_found())?;
    id.parse().map_err(|_| ApiRejection::not_found())
}

/// The owner's view of a file.
fn file_view(calls: &FileCalls, headers: &HeaderMap, file: &StoredFile) -> FileView {
    let base = base_url(&calls.public_url, headers);
    let (upload_url, expires_at) = calls.files.url(FileAccess::Write, file, &base);
    let (download_url, _) = calls.files.url(FileAccess::Read, file, &base);
    let state = file.state();
    let sha256 = file.content.map(|content| content.sha256).or(file.promised);
    FileView {
        id: file.id.to_string(),
        name: file.name.clone(),
        size: state.size.or(state.declared),
        received: state.offset(),
        complete: state.size.is_some(),
        sha256: sha256.map(|digest| digest.hex()),
        upload_url,
        download_url,
        expires_at,
        created_at: file.created_at,
    }
}

/// The beginning of signed URLs, which executors must reach: the configured address, else the host of this request.
pub(super) fn base_url(public_url: &str, headers: &HeaderMap) -> String {
    if !public_url.is_empty() {
        return public_url.to_owned();
    }
    let host = headers
        .get(header::HOST)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("localhost");
    format!("http://{host}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn a_body_announces_a_file_or_says_what_is_wrong() {
        let whole = format!(r#"{{"name":"a","size":3,"sha256":"{}"}}"#, "0".repeat(64));
        let new = parse_new_file(whole.as_bytes()).unwrap();
        assert_eq!((new.name.as_str(), new.size), ("a", Some(3)));
        assert_eq!(new.sha256, Some(Digest::from_bytes([0; 32])));
        for bad in [
            "",
            "[]",
            r#"{"name":7}"#,
            r#"{"name":"a","size":-1}"#,
            r#"{"name":"a","sha256":"zz"}"#,
        ] {
            assert!(parse_new_file(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn urls_begin_where_executors_reach_us() {
        let mut headers = HeaderMap::new();
        assert_eq!(
            base_url("https://facilitator.example", &headers),
            "https://facilitator.example"
        );
        headers.insert(header::HOST, HeaderValue::from_static("127.0.0.1:8090"));
        assert_eq!(base_url("", &headers), "http://127.0.0.1:8090");
    }
}

//! `/api/v1/files/`: files that users announce, find again and delete. Their bytes go through signed URLs
//! ([`muster_file_store::http`]), which this hands out.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use muster_facilitator_core::page::PageQuery;
use muster_file_store::{
    Catalogue, Deed, FileError, FileId, FileService, NewFile, Shelf, StoredFile, UrlKey,
};
use muster_process::error::Causes;
use muster_process::{SharedClock, Tasks};
use muster_protocol::Digest;
use muster_protocol::rest::{CreateFile, FilePage, FileView};

use crate::Error;
use crate::config::Config;
use crate::door::Door;
use crate::rest::body;
use crate::rest::caller::Caller;
use crate::rest::refusal::Refusal;
use crate::store::Store;

/// The list's own path, for the links between its pages.
const PATH: &str = "/api/v1/files/";

/// Opens the file store that the configuration names. `secret` signs its URLs.
pub(crate) async fn open(
    config: &Config,
    store: &Store,
    secret: Vec<u8>,
    clock: SharedClock,
) -> Result<Arc<FileService>, Error> {
    let shelf = Shelf::open(&config.files.store).await?;
    let service = FileService::new(
        Catalogue::new(store.pool()),
        shelf,
        UrlKey::new(secret),
        config.files.clone(),
        clock,
    );
    Ok(Arc::new(service))
}

/// Collects what is no longer needed, again and again until the process stops.
pub(crate) fn keep_swept(files: Arc<FileService>, tasks: &Tasks, clock: SharedClock) {
    let stop = tasks.token();
    tasks.spawn("collect files", async move {
        loop {
            match files.sweep().await {
                Ok((0, 0)) => {}
                Ok((expired, objects)) => tracing::info!(expired, objects, "collected files"),
                Err(error) => tracing::error!(error = %Causes(&error), "files could not be collected"),
            }
            tokio::select! {
                () = clock.sleep(files.sweep_every()) => {}
                () = stop.cancelled() => return,
            }
        }
    });
}

/// Makes a place for an input or an output, with signed addresses for its bytes.
#[utoipa::path(post, path = "/api/v1/files/", tag = "files", request_body = CreateFile, security(("bearer" = [])),
    responses((status = 201, body = FileView), Refusal))]
pub(crate) async fn create(
    State(door): State<Arc<Door>>,
    caller: Caller,
    request: Request,
) -> Result<Response, Refusal> {
    let (parts, body) = request.into_parts();
    let body = body::json(&parts.headers, body).await?;
    let new = announced(&body).map_err(|reason| Refusal::detail(StatusCode::BAD_REQUEST, reason))?;
    let file = door.files.create(&caller.account().to_string(), new).await?;
    tracing::info!(file = %file.id, user = %caller.account(), "announced a file");
    let view = view(&door, &parts.headers, &file);
    Ok((StatusCode::CREATED, Json(view)).into_response())
}

/// What a body announces.
fn announced(body: &[u8]) -> Result<NewFile, String> {
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

/// The account's files, newest first.
#[utoipa::path(get, path = "/api/v1/files/", tag = "files", security(("bearer" = [])),
    params(
        ("page" = Option<u64>, Query, minimum = 1, description = "From 1"),
        ("page_size" = Option<u32>, Query, minimum = 1, description = "At most 256, else 10"),
    ),
    responses((status = 200, body = FilePage), Refusal))]
pub(crate) async fn list(
    State(door): State<Arc<Door>>,
    caller: Caller,
    headers: HeaderMap,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Json<FilePage>, Refusal> {
    let Query(query) = query.map_err(|_| Refusal::no_such_page())?;
    let page = PageQuery::read(&query).ok_or_else(Refusal::no_such_page)?;
    let found = door
        .files
        .list(&caller.account().to_string(), page.limit(), page.offset())
        .await?;
    if !page.exists(found.count) {
        return Err(Refusal::no_such_page());
    }
    let (next, previous) = page.links(&format!("{}{PATH}", door.public_url), "", found.count);
    Ok(Json(FilePage {
        count: found.count,
        next,
        previous,
        results: found
            .files
            .iter()
            .map(|file| view(&door, &headers, file))
            .collect(),
    }))
}

/// One file, with fresh addresses.
#[utoipa::path(get, path = "/api/v1/files/{id}/", tag = "files", security(("bearer" = [])),
    params(("id" = String, Path, description = "As the list of files names it")),
    responses((status = 200, body = FileView), Refusal))]
pub(crate) async fn show(
    State(door): State<Arc<Door>>,
    caller: Caller,
    headers: HeaderMap,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<FileView>, Refusal> {
    let file = door.files.show(&caller.account().to_string(), named(id)?).await?;
    Ok(Json(view(&door, &headers, &file)))
}

/// Deletes a file; its addresses end at once.
#[utoipa::path(delete, path = "/api/v1/files/{id}/", tag = "files", security(("bearer" = [])),
    params(("id" = String, Path, description = "As the list of files names it")),
    responses((status = 204, description = "It is gone"), Refusal))]
pub(crate) async fn remove(
    State(door): State<Arc<Door>>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, Refusal> {
    let id = named(id)?;
    door.files.remove(&caller.account().to_string(), id).await?;
    tracing::info!(file = %id, user = %caller.account(), "deleted a file");
    Ok(StatusCode::NO_CONTENT)
}

fn named(id: Result<Path<String>, PathRejection>) -> Result<FileId, Refusal> {
    let Path(id) = id.map_err(|_| Refusal::not_found())?;
    id.parse().map_err(|_| Refusal::not_found())
}

/// What its owner sees of a file.
fn view(door: &Door, headers: &HeaderMap, file: &StoredFile) -> FileView {
    let base = base(&door.public_url, headers);
    let (upload_url, expires_at) = door.files.url(Deed::Write, file, &base);
    let (download_url, _) = door.files.url(Deed::Read, file, &base);
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

/// What signed URLs begin with: executors must reach it. Without a configured address, the one that this request used.
fn base(public_url: &str, headers: &HeaderMap) -> String {
    if !public_url.is_empty() {
        return public_url.to_owned();
    }
    let host = headers
        .get(header::HOST)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("localhost");
    format!("http://{host}")
}

impl From<FileError> for Refusal {
    fn from(error: FileError) -> Self {
        if matches!(error, FileError::Store(_) | FileError::Shelf(_)) {
            tracing::error!(error = %Causes(&error), "a request about a file failed");
            return Self::detail(
                StatusCode::SERVICE_UNAVAILABLE,
                "The facilitator's file store does not answer; try again.",
            );
        }
        Self::detail(error.status(), error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn a_body_announces_a_file_or_says_what_is_wrong() {
        let whole = format!(r#"{{"name":"a","size":3,"sha256":"{}"}}"#, "0".repeat(64));
        let new = announced(whole.as_bytes()).unwrap();
        assert_eq!((new.name.as_str(), new.size), ("a", Some(3)));
        assert_eq!(new.sha256, Some(Digest::from_bytes([0; 32])));
        for bad in [
            "",
            "[]",
            r#"{"name":7}"#,
            r#"{"name":"a","size":-1}"#,
            r#"{"name":"a","sha256":"zz"}"#,
        ] {
            assert!(announced(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn urls_begin_where_executors_reach_us() {
        let mut headers = HeaderMap::new();
        assert_eq!(base("https://door.example", &headers), "https://door.example");
        headers.insert(header::HOST, HeaderValue::from_static("127.0.0.1:8090"));
        assert_eq!(base("", &headers), "http://127.0.0.1:8090");
    }
}

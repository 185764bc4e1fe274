//! The requests to signed URLs: `PUT` and `HEAD` for uploads, `GET` with ranges for downloads.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Json, Router};
use futures_util::StreamExt as _;
use muster_http::range::{ContentRange, RequestedRange, unsatisfied};
use muster_process::error::Causes;
use muster_protocol::rest::Detail;
use serde_json::json;

use crate::catalogue::{FileContent, StoredFile};
use crate::error::FileError;
use crate::file_service::{FileService, WriteOutcome};
use crate::signed_urls::{FileAccess, FileId, SignedQuery, UrlRejection};
use crate::upload_plan::{WriteRejection, WriteRequest};

/// The header with the offset of the next part of an upload.
const UPLOAD_OFFSET: HeaderName = HeaderName::from_static("upload-offset");
/// The header with the declared size of an upload.
const UPLOAD_LENGTH: HeaderName = HeaderName::from_static("upload-length");

/// The most bytes of a rejected body that are read and discarded. A client that is cut off while it still sends never
/// sees the answer.
const MAX_DISCARDED: usize = 64 * 1024 * 1024;
const MAX_DISCARD_TIME: Duration = Duration::from_secs(10);

type Service = Arc<FileService>;

/// The routes of signed URLs: `/files/{id}/upload` and `/files/{id}/content`.
pub fn router(service: Service) -> Router {
    Router::new()
        .route("/files/{id}/upload", put(upload).head(offset))
        .route("/files/{id}/content", get(content))
        .with_state(service)
}

/// Checks the request's URL and finds its file.
async fn find_permitted(
    service: &Service,
    access: FileAccess,
    id: Result<Path<String>, PathRejection>,
    signed: Result<Query<SignedQuery>, QueryRejection>,
) -> Result<StoredFile, FileError> {
    let Path(id) = id.map_err(|_| FileError::NotFound)?;
    let id: FileId = id.parse().map_err(|_| FileError::NotFound)?;
    let Query(signed) = signed.map_err(|_| FileError::Url(UrlRejection::Signature))?;
    service
        .find_permitted(access, id, &signed.expires, &signed.signature)
        .await
}

/// `PUT`: the whole file, or a part of it with `Content-Range`.
async fn upload(
    State(service): State<Service>,
    id: Result<Path<String>, PathRejection>,
    signed: Result<Query<SignedQuery>, QueryRejection>,
    request: Request,
) -> Result<Response, FileError> {
    let (parts, body) = request.into_parts();
    let mut body = body.into_data_stream();
    let written = async {
        let file = find_permitted(&service, FileAccess::Write, id, signed).await?;
        let wanted = parse_write_request(&parts.headers)?;
        service.write(&file, wanted, &mut body).await
    };
    match written.await {
        Ok(WriteOutcome::Part(offset)) => {
            Ok((StatusCode::ACCEPTED, [(UPLOAD_OFFSET, offset)]).into_response())
        }
        Ok(WriteOutcome::Whole(content)) => Ok(created_response(&content)),
        Err(error) => {
            // A body that takes too long is cut off all the same.
            let _ = tokio::time::timeout(MAX_DISCARD_TIME, discard(body)).await;
            Err(error)
        }
    }
}

fn created_response(content: &FileContent) -> Response {
    let body = json!({"size": content.size, "sha256": content.sha256.hex()});
    let headers = [
        (UPLOAD_OFFSET, content.size.to_string()),
        (header::ETAG, etag(content)),
    ];
    (StatusCode::CREATED, headers, Json(body)).into_response()
}

pub(crate) fn parse_write_request(headers: &HeaderMap) -> Result<WriteRequest, FileError> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    if let Some(range) = text(header::CONTENT_RANGE) {
        return Ok(WriteRequest::Part(ContentRange::parse(range)?));
    }
    Ok(WriteRequest::Whole(
        text(header::CONTENT_LENGTH).and_then(|len| len.parse().ok()),
    ))
}

async fn discard(mut body: BodyDataStream) {
    let mut size = 0_usize;
    while let Some(Ok(piece)) = body.next().await {
        size = size.saturating_add(piece.len());
        if size > MAX_DISCARDED {
            return;
        }
    }
}

/// `HEAD`: the offset of an upload.
async fn offset(
    State(service): State<Service>,
    id: Result<Path<String>, PathRejection>,
    signed: Result<Query<SignedQuery>, QueryRejection>,
) -> Result<Response, FileError> {
    let file = find_permitted(&service, FileAccess::Write, id, signed).await?;
    let state = file.state();
    let mut response = (StatusCode::OK, [(UPLOAD_OFFSET, state.offset())]).into_response();
    if let Some(len) = state.declared {
        response
            .headers_mut()
            .insert(UPLOAD_LENGTH, HeaderValue::from(len));
    }
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// `GET`: the content, or a range of it.
async fn content(
    State(service): State<Service>,
    id: Result<Path<String>, PathRejection>,
    signed: Result<Query<SignedQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, FileError> {
    let file = find_permitted(&service, FileAccess::Read, id, signed).await?;
    let content = file.content.ok_or(FileError::Empty)?;
    let tag = etag(&content);
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    if text(header::IF_NONE_MATCH).is_some_and(|known| matches_etag(known, &tag)) {
        return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response());
    }
    let same = text(header::IF_RANGE).is_none_or(|known| known.trim() == tag);
    let wanted = RequestedRange::parse(text(header::RANGE).filter(|_| same), content.size);
    let size = content.size;
    let (status, first, end) = match wanted {
        RequestedRange::Whole => (StatusCode::OK, 0, size),
        RequestedRange::Part { first, end } => (StatusCode::PARTIAL_CONTENT, first, end),
        RequestedRange::Unsatisfiable => {
            let range = [(header::CONTENT_RANGE, unsatisfied(size))];
            return Ok((StatusCode::RANGE_NOT_SATISFIABLE, range).into_response());
        }
    };
    let bytes = service.read(&content, first, end).await?;
    // A later failure breaks the connection, so the client sees that bytes are missing.
    let bytes = bytes.inspect(|piece| {
        if let Err(error) = piece {
            tracing::error!(error = %Causes(error), "a download failed");
        }
    });
    let mut response = (status, Body::from_stream(bytes)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(end - first));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    // A browser must not show a user's file as a page of this host.
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    let mut set = |name, value: String| {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    };
    set(header::ETAG, tag);
    set(header::CONTENT_DISPOSITION, content_disposition(&file.name));
    if status == StatusCode::PARTIAL_CONTENT {
        set(
            header::CONTENT_RANGE,
            ContentRange::of_part(first, end, size).to_string(),
        );
    }
    Ok(response)
}

fn etag(content: &FileContent) -> String {
    format!("\"{}\"", content.sha256.hex())
}

/// Whether `If-None-Match` names the tag.
fn matches_etag(header: &str, tag: &str) -> bool {
    header
        .split(',')
        .map(str::trim)
        .any(|known| known == "*" || known.trim_start_matches("W/") == tag)
}

/// The value of `Content-Disposition` (RFC 6266), with the name in UTF-8.
fn content_disposition(name: &str) -> String {
    let mut encoded = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    format!("attachment; filename*=UTF-8''{encoded}")
}

impl FileError {
    /// The HTTP status of the answer.
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::NotFound | Self::Empty => StatusCode::NOT_FOUND,
            Self::Name | Self::Part(_) | Self::Broken { .. } | Self::TooMuch => StatusCode::BAD_REQUEST,
            Self::TooLarge { .. } | Self::Quota { .. } | Self::Full => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooManyFiles { .. } => StatusCode::CONFLICT,
            Self::AwaitsDeletion { .. } | Self::Throttled { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Url(_) => StatusCode::FORBIDDEN,
            Self::Write(refused) => match refused {
                WriteRejection::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
                WriteRejection::OtherSize { .. } => StatusCode::BAD_REQUEST,
                WriteRejection::OutOfOrder { .. } => StatusCode::CONFLICT,
            },
            Self::Overtaken { .. } => StatusCode::CONFLICT,
            Self::Mismatch { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Store(_) | Self::Storage(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The text for the client. The cause of a failed store goes to the operator's log instead.
    pub fn public_detail(&self) -> String {
        if matches!(self, Self::Store(_) | Self::Storage(_)) {
            tracing::error!(error = %Causes(self), "a request about a file failed");
            "The facilitator's file store does not answer; try again.".to_owned()
        } else {
            self.to_string()
        }
    }

    /// Seconds after which the client may try again, if time helps.
    pub const fn retry_after(&self) -> Option<u64> {
        match self {
            Self::AwaitsDeletion { wait_s } | Self::Throttled { wait_s } => Some(*wait_s),
            Self::Store(_) | Self::Storage(_) => Some(5),
            Self::NotFound
            | Self::Empty
            | Self::Name
            | Self::TooLarge { .. }
            | Self::Quota { .. }
            | Self::Full
            | Self::TooManyFiles { .. }
            | Self::Url(_)
            | Self::Part(_)
            | Self::Write(_)
            | Self::Overtaken { .. }
            | Self::Broken { .. }
            | Self::TooMuch
            | Self::Mismatch { .. } => None,
        }
    }

    /// The offset at which the upload must continue, if the error gives one.
    pub const fn offset(&self) -> Option<u64> {
        match self {
            Self::Write(WriteRejection::OutOfOrder { offset })
            | Self::Overtaken { offset }
            | Self::Broken { offset } => Some(*offset),
            Self::NotFound
            | Self::Empty
            | Self::Name
            | Self::TooLarge { .. }
            | Self::Quota { .. }
            | Self::Full
            | Self::TooManyFiles { .. }
            | Self::AwaitsDeletion { .. }
            | Self::Throttled { .. }
            | Self::Url(_)
            | Self::Part(_)
            | Self::Write(WriteRejection::TooLarge { .. } | WriteRejection::OtherSize { .. })
            | Self::TooMuch
            | Self::Mismatch { .. }
            | Self::Store(_)
            | Self::Storage(_) => None,
        }
    }
}

impl IntoResponse for FileError {
    fn into_response(self) -> Response {
        let status = self.status();
        let detail = self.public_detail();
        let (offset, retry_after) = (self.offset(), self.retry_after());
        let mut response = (status, Json(Detail { detail })).into_response();
        let headers = response.headers_mut();
        if let Some(offset) = offset {
            headers.insert(UPLOAD_OFFSET, HeaderValue::from(offset));
        }
        if let Some(seconds) = retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_found_among_several_and_weak_ones() {
        assert!(
            matches_etag("\"a\", W/\"b\"", "\"b\"")
                && matches_etag("*", "\"x\"")
                && matches_etag("\"a\"", "\"a\"")
        );
        assert!(!matches_etag("\"a\"", "\"b\"") && !matches_etag("", "\"b\""));
    }

    #[test]
    fn a_name_cannot_leave_its_header() {
        assert_eq!(
            content_disposition("a b\"\r\nX: ü.txt"),
            "attachment; filename*=UTF-8''a%20b%22%0D%0AX%3A%20%C3%BC.txt"
        );
    }
}

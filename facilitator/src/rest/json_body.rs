//! Reads a request's JSON body, within bounds of size and time.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt as _;

use crate::rest::rejection::ApiRejection;

/// The largest body, in bytes. The inputs of a job may be inside it.
const MAX_BODY: usize = 16 * 1024 * 1024;

/// The most bytes of a larger body that are read and discarded. A client that is cut off while it still sends never
/// sees the answer.
const MAX_DISCARDED: usize = 4 * MAX_BODY;

/// The time in which the whole body must arrive.
const MAX_TIME: Duration = Duration::from_secs(60);

/// Reads the whole body of a request, and checks that its content type is JSON.
///
/// # Errors
/// The body is late, cut off, too large, or of another content type.
pub(super) async fn read_json(headers: &HeaderMap, body: Body) -> Result<Vec<u8>, ApiRejection> {
    let body = tokio::time::timeout(MAX_TIME, collect(body))
        .await
        .map_err(|_| {
            ApiRejection::detail(
                StatusCode::REQUEST_TIMEOUT,
                "The request's body did not arrive in time.",
            )
        })??;
    if is_json(headers) {
        Ok(body)
    } else {
        Err(ApiRejection::detail(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "Unsupported media type in request: send Content-Type: application/json.",
        ))
    }
}

async fn collect(mut body: Body) -> Result<Vec<u8>, ApiRejection> {
    let mut collected = Vec::new();
    let mut size: usize = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| {
            ApiRejection::detail(
                StatusCode::BAD_REQUEST,
                "The connection broke before the request's body was complete.",
            )
        })?;
        let Ok(data) = frame.into_data() else { continue };
        size = size.saturating_add(data.len());
        if size <= MAX_BODY {
            collected.extend_from_slice(&data);
        } else {
            collected = Vec::new();
        }
        if size > MAX_DISCARDED {
            break;
        }
    }
    if size <= MAX_BODY {
        return Ok(collected);
    }
    Err(ApiRejection::detail(
        StatusCode::PAYLOAD_TOO_LARGE,
        format!("Request body too large: {MAX_BODY} bytes are allowed; give large inputs by URL."),
    ))
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/json")
}

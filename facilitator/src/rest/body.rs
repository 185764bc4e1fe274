//! Reading a request's body: JSON only, bounded in size and in time.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt as _;

use super::refusal::Refusal;

/// The largest body: the inputs of a job may travel inside it.
const MAX_BODY: usize = 16 * 1024 * 1024;

/// How much of a larger one is read and thrown away. A client that is cut off while it still sends never sees our answer.
const MAX_DISCARDED: usize = 4 * MAX_BODY;

/// How long a client may take to send it.
const MAX_TIME: Duration = Duration::from_secs(60);

/// The whole body of a request that says it is JSON.
pub(crate) async fn json(headers: &HeaderMap, body: Body) -> Result<Vec<u8>, Refusal> {
    let body = tokio::time::timeout(MAX_TIME, collect(body))
        .await
        .map_err(|_| {
            Refusal::detail(
                StatusCode::REQUEST_TIMEOUT,
                "The request's body did not arrive in time.",
            )
        })??;
    if says_json(headers) {
        Ok(body)
    } else {
        Err(Refusal::detail(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "Unsupported media type in request: send Content-Type: application/json.",
        ))
    }
}

async fn collect(mut body: Body) -> Result<Vec<u8>, Refusal> {
    let mut kept = Vec::new();
    let mut size: usize = 0;
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|_| Refusal::detail(StatusCode::BAD_REQUEST, "The request's body broke off."))?;
        let Ok(data) = frame.into_data() else { continue };
        size = size.saturating_add(data.len());
        if size <= MAX_BODY {
            kept.extend_from_slice(&data);
        } else {
            kept = Vec::new();
        }
        if size > MAX_DISCARDED {
            break;
        }
    }
    if size <= MAX_BODY {
        return Ok(kept);
    }
    Err(Refusal::detail(
        StatusCode::PAYLOAD_TOO_LARGE,
        format!("Request body too large: {MAX_BODY} bytes are allowed; give large inputs by URL."),
    ))
}

fn says_json(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/json")
}

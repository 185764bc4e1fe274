//! Collects the body of a request, bounded in size and time.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body_util::BodyExt as _;
use muster_openai::{OpenAiError, check_media};

/// How long a client may take to send a request.
const UPLOAD_LIMIT: Duration = Duration::from_secs(60);
/// An oversized body is drained up to this multiple of the limit.
const DRAIN_FACTOR: usize = 4;

/// The whole body of a request with these headers, of at most `max` bytes.
///
/// # Errors
/// The body is larger, breaks off, takes longer than 60 s, is compressed, or is of a type that is no JSON.
pub async fn collect_body(headers: &HeaderMap, body: Body, max: usize) -> Result<Bytes, OpenAiError> {
    let collected = tokio::time::timeout(UPLOAD_LIMIT, collect(body, max)).await;
    let body = collected.map_err(|_| OpenAiError::UploadTimeout)??;
    check_media(headers, &body)?;
    Ok(body)
}

async fn collect(mut body: Body, max: usize) -> Result<Bytes, OpenAiError> {
    let (mut collected, mut size) = (BytesMut::new(), 0_usize);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| OpenAiError::BadRequest("it broke off".to_owned()))?;
        let Ok(data) = frame.into_data() else { continue };
        size = size.saturating_add(data.len());
        if size <= max {
            collected.extend_from_slice(&data);
        } else {
            // A client that is cut off while it still sends never sees our response, so some more is read and
            // discarded.
            collected = BytesMut::new();
            if size > max.saturating_mul(DRAIN_FACTOR) {
                break;
            }
        }
    }
    if size > max {
        return Err(OpenAiError::TooLarge(max));
    }
    Ok(collected.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_that_is_too_large_is_refused_with_the_limit() {
        let body = || Body::from(vec![b'x'; 100]);
        let plain = HeaderMap::new();
        assert_eq!(collect_body(&plain, body(), 100).await.unwrap().len(), 100);
        assert_eq!(
            collect_body(&plain, body(), 99).await,
            Err(OpenAiError::TooLarge(99))
        );
        let gzip = HeaderMap::from_iter([(http::header::CONTENT_ENCODING, "gzip".parse().unwrap())]);
        let refused = collect_body(&gzip, body(), 100).await.unwrap_err();
        assert_eq!(refused.status(), 415);
    }
}

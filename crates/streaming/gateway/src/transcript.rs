//! The request and the answer as the client saw them.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use http_body_util::{BodyExt as _, Full};
use muster_process::SharedClock;
use muster_protocol::Timestamp;
use muster_response_proof::{RequestNonce, ResponseProof};
use muster_sealed_client::{CheckedBody, ReceivedResponse, SentRequest};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// This part of a transcript cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the record's {0} cannot be read")]
pub struct UnreadableTranscript(&'static str);

/// The request and the answer, byte for byte, as the client saw them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transcript {
    /// The method of the request, `POST`.
    pub method: String,
    /// Path and query of the request.
    pub path: String,
    /// The body of the request, base64.
    pub request: String,
    /// The HTTP status of the answer.
    pub status: u16,
    /// The header `Content-Type` of the answer.
    pub content_type: Option<String>,
    /// The body of the answer, base64, including Muster's comment lines.
    pub response: String,
    /// The nonce that the client drew, 64 hex digits.
    pub client_nonce: Option<String>,
    /// When the client sent the request, by its own clock.
    pub asked_at: Timestamp,
    /// When the answer ended, by the client's clock.
    pub ended_at: Timestamp,
}

impl Transcript {
    /// The observation of a checker who reads the request and the answer again.
    pub(crate) async fn observe(
        &self,
        proof: &ResponseProof,
        clock: SharedClock,
    ) -> Result<(SentRequest, ReceivedResponse), UnreadableTranscript> {
        let read = |text: &str, what| STANDARD.decode(text).map_err(|_| UnreadableTranscript(what));
        let request = read(&self.request, "request")?;
        let response = read(&self.response, "response")?;
        let client_nonce = match &self.client_nonce {
            None => None,
            Some(text) => Some(RequestNonce::from_hex(text).ok_or(UnreadableTranscript("nonce"))?),
        };
        let asked = SentRequest {
            // The pseudonym is the gateway's, so a transcript of the client does not have it.
            client: proof.client,
            client_nonce,
            gateway_nonce: proof.gateway_nonce,
            method: self.method.clone(),
            path: self.path.clone(),
            input: SentRequest::digest_body(proof.scheme, &request),
            at: self.asked_at,
        };
        let mut answer = Response::new(Full::new(Bytes::from(response)));
        *answer.status_mut() = self
            .status
            .try_into()
            .map_err(|_| UnreadableTranscript("status"))?;
        if let Some(kind) = &self.content_type {
            let kind = HeaderValue::from_str(kind).map_err(|_| UnreadableTranscript("content type"))?;
            answer.headers_mut().insert(CONTENT_TYPE, kind);
        }
        let observed = Arc::new(Mutex::new(None));
        let sink = Arc::clone(&observed);
        let report = move |checked: ReceivedResponse| {
            *sink.lock() = Some(checked);
        };
        let passing = CheckedBody::wrap(answer, proof.scheme, clock, report);
        // A body in memory cannot break off.
        let _ = passing.into_body().collect().await;
        let checked = observed.lock().take();
        let mut checked = checked.ok_or(UnreadableTranscript("response"))?;
        checked.ended = self.ended_at;
        Ok((asked, checked))
    }
}

//! The response to a request: the engine's, held back or streamed, or a signed error.

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, TRAILER};
use http::response::Parts;
use http::{HeaderValue, Response, StatusCode, Version};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Full};
use muster_http::http1::ResponseBody;
use muster_openai::{BodyKind, error_body};
use muster_response_proof::headers::{PROOF, body_kind, remove_hop_by_hop, take_signed_content_type};
use muster_response_proof::limits::MAX_HELD_BACK;
use muster_response_proof::{StreamEnd, Text};
use tokio::time::sleep;

use super::SealingProxy;
use crate::client_body::SealedBody;
use crate::pending_response::PendingResponse;
use crate::rejection::error;
use crate::response_relay::{Relay, RelayTerms};

/// Why the engine gave no response.
pub(crate) enum EngineFailure {
    /// The connection could not be made, or broke.
    Failed,
    /// Nothing came within the limit.
    Silent,
    /// The session was closed meanwhile.
    Closed,
}

/// The features of a client that decide the form of its response.
#[derive(Clone, Copy)]
pub(crate) struct ClientFeatures {
    pub(crate) http2: bool,
    pub(crate) trailers: bool,
    /// The engine reports its tokens at our wish: the client did not ask for the event.
    pub(crate) hides_usage: bool,
}

impl SealingProxy {
    /// The engine's response: held back until it is signed if it is short, streamed otherwise.
    pub(crate) async fn pass_response(
        &self,
        answered: Response<ResponseBody>,
        response: PendingResponse,
        client: ClientFeatures,
    ) -> Response<SealedBody> {
        let (mut head, body) = answered.into_parts();
        if head.status.is_informational() {
            // An upgrade that was not requested.
            return self.sign_failure(response, &EngineFailure::Failed);
        }
        remove_hop_by_hop(&mut head.headers);
        head.version = Version::HTTP_11;
        head.extensions.clear();
        let content_type = take_signed_content_type(&mut head.headers);
        let kind = body_kind(&head.headers);
        let length = body.size_hint().exact();
        if kind != BodyKind::Events && length.is_some_and(|length| length <= MAX_HELD_BACK) {
            self.pass_whole(head, body, content_type, kind, response).await
        } else {
            self.pass_stream(head, body, content_type, kind, response, client)
        }
    }

    /// A response whose header carries the proof.
    async fn pass_whole(
        &self,
        head: Parts,
        body: ResponseBody,
        content_type: Option<Text>,
        kind: BodyKind,
        mut response: PendingResponse,
    ) -> Response<SealedBody> {
        let whole = match self.buffer_body(body).await {
            Ok(whole) => whole,
            Err(failure) => return self.sign_failure(response, &failure),
        };
        response.set_head(head.status.as_u16(), content_type, kind);
        if !whole.is_empty() {
            response.pass(&whole);
        }
        let proof = response.finish(StreamEnd::Completed);
        let mut response = Response::from_parts(head, SealedBody::from(Full::new(whole)));
        insert_proof(&mut response, proof.as_deref());
        response
    }

    /// A response whose last line or trailer carries the proof.
    fn pass_stream(
        &self,
        mut head: Parts,
        body: ResponseBody,
        content_type: Option<Text>,
        kind: BodyKind,
        mut response: PendingResponse,
        client: ClientFeatures,
    ) -> Response<SealedBody> {
        let events = kind == BodyKind::Events;
        response.set_head(head.status.as_u16(), content_type, kind);
        if events || (client.trailers && !client.http2) {
            // The line with the proof makes the body longer, and over HTTP/1.1 only a body of unknown length has
            // trailers.
            head.headers.remove(CONTENT_LENGTH);
        }
        if client.trailers {
            head.headers.insert(TRAILER, HeaderValue::from_name(PROOF));
        }
        let terms = RelayTerms {
            events,
            hides_usage: client.hides_usage,
            budget: self.limits.response,
            silence: self.limits.silence,
        };
        let relay = Relay::new(body, response, terms);
        let body = if client.http2 {
            SealedBody::multiplexed(relay, self.limits.stall, &self.tasks)
        } else {
            SealedBody::streamed(relay)
        };
        Response::from_parts(head, body)
    }

    /// Reads a whole body.
    async fn buffer_body(&self, mut body: ResponseBody) -> Result<Bytes, EngineFailure> {
        let mut whole = BytesMut::new();
        let mut first = Bytes::new();
        loop {
            let frame = tokio::select! {
                biased;
                frame = body.frame() => frame,
                () = self.signer.closing().cancelled() => return Err(EngineFailure::Closed),
                () = sleep(self.limits.silence) => return Err(EngineFailure::Silent),
            };
            let data = match frame {
                None if whole.is_empty() => return Ok(first),
                None => return Ok(whole.freeze()),
                Some(Err(_)) => return Err(EngineFailure::Failed),
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            };
            if first.is_empty() && whole.is_empty() {
                // Most bodies arrive in one piece, which is not copied.
                first = data;
            } else {
                if whole.is_empty() {
                    whole.extend_from_slice(&std::mem::take(&mut first));
                }
                whole.extend_from_slice(&data);
            }
        }
    }

    /// A signed error response to a request that the engine did not answer.
    pub(crate) fn sign_failure(
        &self,
        mut response: PendingResponse,
        failure: &EngineFailure,
    ) -> Response<SealedBody> {
        let (status, code, message, end) = match failure {
            EngineFailure::Failed => (
                StatusCode::BAD_GATEWAY,
                "engine_failed",
                "the engine gave no whole response",
                StreamEnd::EngineFailed,
            ),
            EngineFailure::Silent => (
                StatusCode::GATEWAY_TIMEOUT,
                "engine_silent",
                "the engine did not answer in time",
                StreamEnd::EngineSilent,
            ),
            EngineFailure::Closed => (
                StatusCode::SERVICE_UNAVAILABLE,
                "session_closed",
                "the session was closed before the engine answered",
                StreamEnd::SessionClosed,
            ),
        };
        let body = error_body("server_error", code, None, message).to_string();
        let mut failed = error(status, "server_error", code, message);
        let content_type = take_signed_content_type(failed.headers_mut());
        response.set_head(status.as_u16(), content_type, BodyKind::Json);
        response.pass(body.as_bytes());
        let proof = response.finish(end);
        let mut failed = failed.map(SealedBody::from);
        insert_proof(&mut failed, proof.as_deref());
        failed
    }
}

fn insert_proof(response: &mut Response<SealedBody>, proof: Option<&str>) {
    if let Some(proof) = proof.and_then(|proof| HeaderValue::from_str(proof).ok()) {
        response.headers_mut().insert(PROOF, proof);
    }
}

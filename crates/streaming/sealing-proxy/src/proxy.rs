//! The way of a request through the proxy to a signed response.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use http::header::{CONTENT_LENGTH, TRAILER};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Response, StatusCode, Uri, Version};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use muster_http::http1::ResponseBody;
use muster_openai::{BodyKind, error_body};
use muster_process::Tasks;
use muster_process::error::Causes;
use muster_response_proof::body_digest::digest_input;
use muster_response_proof::headers::{
    PROOF, body_kind, prepare_for_engine, remove_hop_by_hop, take_signed_content_type, takes_trailers,
    upgrades_to,
};
use muster_response_proof::limits::{Limits, MAX_HELD_BACK};
use muster_response_proof::well_known::{GRADE_PATH, PREFIX};
use muster_response_proof::{StreamEnd, Text};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use crate::pending::PendingResponse;
use crate::rejection::{RequestRejection, error};
use crate::relay::{Relay, RelayTerms};
use crate::sealed_body::SealedBody;
use crate::signer::{ProofSigner, RequestFacts};
use crate::upstream::Upstream;
use crate::{intake, upgrade, well_known};

/// The most requests to the co-grader at once: one that grades, and one that asks whether it is healthy.
const MAX_CO_GRADER_REQUESTS: usize = 2;

/// The grader beside the engine. Its responses are signed by the session as the engine's are.
pub trait GraderBackend: Send + Sync {
    /// Starts the grader if it is not running, and returns the connections to it. On failure, the reason in words.
    fn start(&self) -> BoxFuture<'_, Result<Upstream, String>>;

    /// The grader's own path for a request of this method for [`GRADE_PATH`]: its health, or a message.
    fn path_for(&self, method: &http::Method) -> PathAndQuery;
}

/// The sealing proxy of one session, between its clients and its engine.
pub struct SealingProxy {
    signer: Arc<ProofSigner>,
    upstream: Upstream,
    co_grader: Option<Arc<dyn GraderBackend>>,
    co_grader_permits: Arc<Semaphore>,
    limits: Limits,
    permits: Arc<Semaphore>,
    tasks: Tasks,
}

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
}

/// A request whose body is whole.
struct AcceptedRequest {
    body: Bytes,
    response: PendingResponse,
    client: ClientFeatures,
}

impl SealingProxy {
    /// A proxy in front of this engine.
    pub fn new(signer: Arc<ProofSigner>, upstream: Upstream, limits: Limits, tasks: Tasks) -> Arc<Self> {
        Self::with_grader(signer, upstream, None, limits, tasks)
    }

    /// A proxy in front of this engine and of the grader beside it, if there is one.
    pub fn with_grader(
        signer: Arc<ProofSigner>,
        upstream: Upstream,
        co_grader: Option<Arc<dyn GraderBackend>>,
        limits: Limits,
        tasks: Tasks,
    ) -> Arc<Self> {
        Arc::new(Self {
            signer,
            upstream,
            co_grader,
            co_grader_permits: Arc::new(Semaphore::new(MAX_CO_GRADER_REQUESTS)),
            permits: Arc::new(Semaphore::new(limits.in_flight)),
            limits,
            tasks,
        })
    }

    /// The signer of the session's responses.
    pub fn signer(&self) -> &Arc<ProofSigner> {
        &self.signer
    }

    /// The connections to the engine.
    pub fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// The limits that the proxy enforces.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Answers a request. The response to every request that reaches the engine is signed, however it ends.
    pub async fn answer<B>(&self, request: Request<B>) -> Response<SealedBody>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let http2 = request.version() == Version::HTTP_2;
        match self.respond(request, http2).await {
            Ok(response) => response,
            Err(rejection) => {
                tracing::debug!(%rejection, "a request was rejected");
                rejection.response(http2).map(SealedBody::from)
            }
        }
    }

    async fn respond<B>(
        &self,
        request: Request<B>,
        http2: bool,
    ) -> Result<Response<SealedBody>, RequestRejection>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let from = self.signer.clock().now();
        let (mut head, body) = request.into_parts();
        let facts = intake::read_head(&head, from)?;
        if head.uri.path() == GRADE_PATH {
            return self.respond_by_co_grader(head, body, facts, http2).await;
        }
        if head.uri.path().starts_with(PREFIX) {
            let document = well_known::answer(&self.signer, &head.method, &head.uri).await?;
            return Ok(document.map(SealedBody::from));
        }
        let permit = self.permit(&self.permits)?;
        if !http2 && upgrades_to(&head.headers, "websocket") {
            let input = digest_input(self.signer.scheme(), b"");
            let response = PendingResponse::begin(&self.signer, facts, input, permit);
            return Ok(upgrade::answer(self, head, response).await);
        }
        let accepted = self.accept(&mut head, body, facts, http2, permit).await?;
        Ok(self.ask(&self.upstream, head, accepted).await)
    }

    /// One of the permits for requests under way.
    fn permit(&self, permits: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, RequestRejection> {
        let Ok(permit) = Arc::clone(permits).try_acquire_owned() else {
            return Err(RequestRejection::Busy);
        };
        if self.signer.is_closing() {
            return Err(RequestRejection::Closed);
        }
        Ok(permit)
    }

    /// Collects a request's body and begins its response.
    async fn accept<B>(
        &self,
        head: &mut Parts,
        body: B,
        facts: RequestFacts,
        http2: bool,
        permit: OwnedSemaphorePermit,
    ) -> Result<AcceptedRequest, RequestRejection>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let body = intake::collect(body, &self.limits).await?;
        let input = digest_input(self.signer.scheme(), &body);
        let client = ClientFeatures {
            http2,
            trailers: http2 || takes_trailers(&head.headers),
        };
        prepare_for_engine(&mut head.headers);
        Ok(AcceptedRequest {
            body,
            response: PendingResponse::begin(&self.signer, facts, input, permit),
            client,
        })
    }

    /// Passes a request to the grader beside the engine. The grader has permits of its own, so that users who fill the
    /// engine's do not keep it from answering.
    async fn respond_by_co_grader<B>(
        &self,
        mut head: Parts,
        body: B,
        facts: RequestFacts,
        http2: bool,
    ) -> Result<Response<SealedBody>, RequestRejection>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let Some(co_grader) = &self.co_grader else {
            return Err(RequestRejection::NotFound);
        };
        let permit = self.permit(&self.co_grader_permits)?;
        let accepted = self.accept(&mut head, body, facts, http2, permit).await?;
        head.uri = Uri::from(co_grader.path_for(&head.method));
        let started = tokio::select! {
            biased;
            started = co_grader.start() => started,
            () = self.signer.closing().cancelled() => {
                return Ok(self.sign_failure(accepted.response, &EngineFailure::Closed));
            }
        };
        Ok(match started {
            Ok(upstream) => self.ask(&upstream, head, accepted).await,
            Err(why) => {
                tracing::warn!(why, "the grader beside the engine does not start");
                self.sign_failure(accepted.response, &EngineFailure::Failed)
            }
        })
    }

    /// Sends an accepted request, and passes the response on.
    async fn ask(&self, upstream: &Upstream, head: Parts, accepted: AcceptedRequest) -> Response<SealedBody> {
        let AcceptedRequest {
            body,
            response,
            client,
        } = accepted;
        match self
            .send(upstream, Request::from_parts(head, Full::new(body)))
            .await
        {
            Ok(answered) => self.pass_response(answered, response, client).await,
            Err(failure) => self.sign_failure(response, &failure),
        }
    }

    /// Sends a request to the engine and waits for the head of the response.
    pub(crate) async fn send_to_engine(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<ResponseBody>, EngineFailure> {
        self.send(&self.upstream, request).await
    }

    async fn send(
        &self,
        upstream: &Upstream,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<ResponseBody>, EngineFailure> {
        let sent = upstream.send(request);
        tokio::select! {
            biased;
            answered = sent => answered.map_err(|error| {
                tracing::info!(error = %Causes(&error), "the engine gave no response");
                EngineFailure::Failed
            }),
            () = self.signer.closing().cancelled() => Err(EngineFailure::Closed),
            () = sleep(self.limits.silence) => Err(EngineFailure::Silent),
        }
    }

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
        head: http::response::Parts,
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
        mut head: http::response::Parts,
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

    /// Ends the session. Responses under way have as long as `grace` to be sent and signed; the others are signed as
    /// they are when their connections are dropped. Returns whether none is left. The caller then calls
    /// [`ProofSigner::close`].
    pub async fn drain(&self, grace: Duration) -> bool {
        self.signer.begin_close();
        timeout(grace, self.signer.wait_drained()).await.is_ok()
    }
}

impl fmt::Debug for SealingProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SealingProxy")
            .field(&self.signer)
            .field(&self.upstream)
            .finish()
    }
}

fn insert_proof(response: &mut Response<SealedBody>, proof: Option<&str>) {
    if let Some(proof) = proof.and_then(|proof| HeaderValue::from_str(proof).ok()) {
        response.headers_mut().insert(PROOF, proof);
    }
}

//! The way of a request through the proxy to a signed response.

mod response;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Request, Response, StatusCode, Uri, Version};
use http_body::Body;
use http_body_util::Full;
use muster_http::http1::ResponseBody;
use muster_openai::{asks_for_token_ids, without_mark};
use muster_process::Tasks;
use muster_process::error::Causes;
use muster_response_proof::body_digest::digest_input;
use muster_response_proof::headers::{prepare_for_engine, takes_trailers, upgrades_to};
use muster_response_proof::well_known::{GRADE_PATH, PREFIX};
use muster_response_proof::{Limits, RequestNonce};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use crate::client_body::SealedBody;
use crate::pending_response::PendingResponse;
use crate::proof_signer::{ProofSigner, RequestFacts};
use crate::rejection::RequestRejection;
use crate::request_intake::HeldBody;
use crate::upstream::Upstream;
use crate::{request_intake, upgrade, well_known};

pub(crate) use response::{ClientFeatures, EngineFailure};

/// The most requests to the co-grader at once: one that grades, and one that asks whether it is healthy.
const MAX_CO_GRADER_REQUESTS: usize = 2;
/// The most nonces of the gateway's that a session remembers: 291 requests a second for an hour.
const MAX_NONCES: usize = 1 << 20;

/// The answers of an engine that does not know a field of a request.
const REFUSALS: [StatusCode; 2] = [StatusCode::BAD_REQUEST, StatusCode::UNPROCESSABLE_ENTITY];

/// The grader beside the engine. Its responses are signed by the session as the engine's are.
pub trait GraderBackend: Send + Sync {
    /// Starts the grader if it is not running, and returns the connections to it. On failure, the reason as text.
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
    /// A permit for each byte of the bodies that are held for the engine.
    body_room: Arc<Semaphore>,
    /// The same for the grader: bodies of users take none of it.
    co_grader_room: Arc<Semaphore>,
    /// The gateway's nonces of requests that were taken. A gateway that could have one answered twice would choose
    /// among the answers.
    taken_nonces: Mutex<HashSet<RequestNonce>>,
    tasks: Tasks,
}

/// A request whose body is whole.
struct AcceptedRequest {
    body: HeldBody,
    /// The body that asks the engine for the tokens of its stream, if the client's does not.
    with_usage: Option<HeldBody>,
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
            body_room: Arc::new(Semaphore::new(limits.requests)),
            co_grader_room: Arc::new(Semaphore::new(
                limits.request.saturating_mul(MAX_CO_GRADER_REQUESTS),
            )),
            limits,
            taken_nonces: Mutex::default(),
            tasks,
        })
    }

    /// Notes that a request with this nonce of the gateway's is taken. A session answers none twice, and so many at
    /// most that its memory is bounded.
    fn take_nonce(&self, nonce: Option<RequestNonce>) -> Result<(), RequestRejection> {
        let Some(nonce) = nonce else { return Ok(()) };
        let mut taken = self.taken_nonces.lock();
        if taken.contains(&nonce) {
            return Err(RequestRejection::Repeated);
        }
        if taken.len() >= MAX_NONCES {
            return Err(RequestRejection::Busy);
        }
        taken.insert(nonce);
        Ok(())
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
        let facts = request_intake::read_head(&head, from)?;
        if head.uri.path() == GRADE_PATH {
            return self.respond_by_co_grader(head, body, facts, http2).await;
        }
        if head.uri.path().starts_with(PREFIX) {
            let document = well_known::answer(&self.signer, &head.method, &head.uri).await?;
            return Ok(document.map(SealedBody::from));
        }
        let permit = self.permit(&self.permits)?;
        if !http2 && upgrades_to(&head.headers, "websocket") {
            self.take_nonce(facts.gateway_nonce)?;
            let input = digest_input(self.signer.scheme(), b"");
            let response = PendingResponse::begin(&self.signer, facts, input, permit);
            return Ok(upgrade::answer(self, head, response).await);
        }
        let permits = (permit, &self.body_room);
        let accepted = self.accept(&mut head, body, facts, http2, permits).await?;
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

    /// Collects a request's body within the room for bodies, and begins its response.
    async fn accept<B>(
        &self,
        head: &mut Parts,
        body: B,
        facts: RequestFacts,
        http2: bool,
        (permit, room): (OwnedSemaphorePermit, &Arc<Semaphore>),
    ) -> Result<AcceptedRequest, RequestRejection>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let body = request_intake::collect(body, &self.limits, room).await?;
        self.take_nonce(facts.gateway_nonce)?;
        let input = digest_input(self.signer.scheme(), &body.bytes);
        let with_usage = request_intake::with_usage(head, &body.bytes, room);
        let client = ClientFeatures {
            http2,
            trailers: http2 || takes_trailers(&head.headers),
            hides_usage: false,
        };
        prepare_for_engine(&mut head.headers);
        request_intake::set_seed(&mut head.headers, &facts, &input);
        let mut response = PendingResponse::begin(&self.signer, facts, input, permit);
        if asks_for_token_ids(&body.bytes) {
            response.expect_token_ids();
        }
        Ok(AcceptedRequest {
            body,
            with_usage,
            response,
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
        let permits = (permit, &self.co_grader_room);
        let accepted = self.accept(&mut head, body, facts, http2, permits).await?;
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

    /// Sends an accepted request, and passes the response on. An engine that refuses the request as we changed it gets
    /// the client's own.
    async fn ask(&self, upstream: &Upstream, head: Parts, accepted: AcceptedRequest) -> Response<SealedBody> {
        let AcceptedRequest {
            body,
            with_usage,
            response,
            mut client,
        } = accepted;
        if let Some(changed) = with_usage {
            let request = Request::from_parts(head.clone(), Full::new(changed.bytes.clone()));
            match self.send(upstream, request).await {
                Ok(answered) if REFUSALS.contains(&answered.status()) => {}
                Ok(answered) => {
                    client.hides_usage = true;
                    return self.pass_response(answered, response, client).await;
                }
                Err(failure) => return self.sign_failure(response, &failure),
            }
        }
        // A reader of JSON need not skip the mark that some clients send.
        let own = body.bytes.slice_ref(without_mark(&body.bytes));
        match self
            .send(upstream, Request::from_parts(head, Full::new(own)))
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

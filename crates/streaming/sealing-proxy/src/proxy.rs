//! A request in, a signed answer out.

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
use muster_process::Tasks;
use muster_process::error::Causes;
use muster_response_proof::StreamEnd;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use crate::answer::Answer;
use crate::digest::input_digest;
use crate::exchange::Arriving;
use crate::headers::{
    PROOF, body_kind, end_to_end, signed_content_type, takes_trailers, to_engine, upgrades_to,
};
use crate::intake;
use crate::limits::{BUFFERED, Limits};
use crate::open::Open;
use crate::refusal::{Refusal, error};
use crate::relay::{Relay, Terms};
use crate::sealer::{Asking, Sealer};
use crate::upgrade;
use crate::upstream::Upstream;
use crate::wellknown;
use muster_openai::BodyKind;

/// Requests at a time for whoever stands beside the engine: one is under way, and one may ask whether it is well.
const BESIDE_IN_FLIGHT: usize = 2;

/// Whoever may be asked beside the engine. The session's answers are signed whoever of the two gives them.
pub trait Beside: Send + Sync {
    /// Where it answers; brings it up if it is not there. Why not, in words for the one who asks.
    fn upstream(&self) -> BoxFuture<'_, Result<Upstream, String>>;

    /// Where it is asked for this path below [`wellknown::BESIDE`]: how it is, or a message.
    fn path(&self, method: &http::Method) -> PathAndQuery;
}

/// One session's way from a request to an answer with a proof.
pub struct Seal {
    sealer: Arc<Sealer>,
    upstream: Upstream,
    beside: Option<Arc<dyn Beside>>,
    beside_in_flight: Arc<Semaphore>,
    limits: Limits,
    in_flight: Arc<Semaphore>,
    tasks: Tasks,
}

/// How asking the engine ended before there was an answer.
pub(crate) enum Unanswered {
    Failed,
    Silent,
    Closed,
}

/// What of a request decides the form of its answer.
#[derive(Clone, Copy)]
pub(crate) struct Client {
    pub(crate) http2: bool,
    pub(crate) trailers: bool,
}

impl Seal {
    /// In front of this engine.
    pub fn new(sealer: Arc<Sealer>, upstream: Upstream, limits: Limits, tasks: Tasks) -> Arc<Self> {
        Self::with(sealer, upstream, None, limits, tasks)
    }

    /// Likewise, with somebody beside the engine.
    pub fn with(
        sealer: Arc<Sealer>,
        upstream: Upstream,
        beside: Option<Arc<dyn Beside>>,
        limits: Limits,
        tasks: Tasks,
    ) -> Arc<Self> {
        Arc::new(Self {
            sealer,
            upstream,
            beside,
            beside_in_flight: Arc::new(Semaphore::new(BESIDE_IN_FLIGHT)),
            in_flight: Arc::new(Semaphore::new(limits.in_flight)),
            limits,
            tasks,
        })
    }

    /// Who signs.
    pub fn sealer(&self) -> &Arc<Sealer> {
        &self.sealer
    }

    /// The engine.
    pub fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// Its bounds.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Answers a request. Everything that reaches the engine is signed, whatever becomes of it.
    pub async fn answer<B>(&self, request: Request<B>) -> Response<Answer>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let http2 = request.version() == Version::HTTP_2;
        match self.answered(request, http2).await {
            Ok(response) => response,
            Err(refusal) => {
                tracing::debug!(%refusal, "a request was refused");
                refusal.response(http2).map(Answer::from)
            }
        }
    }

    async fn answered<B>(&self, request: Request<B>, http2: bool) -> Result<Response<Answer>, Refusal>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let from = self.sealer.clock().now();
        let (mut head, body) = request.into_parts();
        let asked = intake::read(&head, from)?;
        if head.uri.path() == wellknown::BESIDE {
            return self.answered_beside(head, body, asked, http2).await;
        }
        if head.uri.path().starts_with(wellknown::PREFIX) {
            let said = wellknown::answer(&self.sealer, &head.method, &head.uri).await?;
            return Ok(said.map(Answer::from));
        }
        let Ok(permit) = Arc::clone(&self.in_flight).try_acquire_owned() else {
            return Err(Refusal::Busy);
        };
        if self.sealer.is_closing() {
            return Err(Refusal::Closed);
        }
        if !http2 && upgrades_to(&head.headers, "websocket") {
            let open = Open::begin(
                &self.sealer,
                asked,
                input_digest(self.sealer.scheme(), b""),
                permit,
            );
            return Ok(upgrade::answer(self, head, open).await);
        }
        let (body, open, client) = self.taken_in(&mut head, body, asked, http2, permit).await?;
        let answered = self.ask(Request::from_parts(head, Full::new(body))).await;
        Ok(match answered {
            Ok(response) => self.pass_on(response, open, client).await,
            Err(unanswered) => self.fail(open, &unanswered),
        })
    }

    /// A question as whole as it has to be before somebody is asked, and the answer to it begun.
    async fn taken_in<B>(
        &self,
        head: &mut Parts,
        body: B,
        asked: Asking,
        http2: bool,
        permit: OwnedSemaphorePermit,
    ) -> Result<(Bytes, Open, Client), Refusal>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let body = intake::collect(body, &self.limits).await?;
        let input = input_digest(self.sealer.scheme(), &body);
        let client = Client {
            http2,
            trailers: http2 || takes_trailers(&head.headers),
        };
        to_engine(&mut head.headers);
        Ok((body, Open::begin(&self.sealer, asked, input, permit), client))
    }

    /// Whoever stands beside the engine is asked. It has places of its own: users who fill the engine's do not keep it from answering.
    async fn answered_beside<B>(
        &self,
        mut head: Parts,
        body: B,
        asked: Asking,
        http2: bool,
    ) -> Result<Response<Answer>, Refusal>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let Some(beside) = &self.beside else {
            return Err(Refusal::NotFound);
        };
        let Ok(permit) = Arc::clone(&self.beside_in_flight).try_acquire_owned() else {
            return Err(Refusal::Busy);
        };
        if self.sealer.is_closing() {
            return Err(Refusal::Closed);
        }
        let (body, open, client) = self.taken_in(&mut head, body, asked, http2, permit).await?;
        head.uri = Uri::from(beside.path(&head.method));
        let there = tokio::select! {
            biased;
            there = beside.upstream() => there,
            () = self.sealer.closing().cancelled() => return Ok(self.fail(open, &Unanswered::Closed)),
        };
        let upstream = match there {
            Ok(upstream) => upstream,
            Err(why) => {
                tracing::warn!(why, "nobody stands beside the engine");
                return Ok(self.fail(open, &Unanswered::Failed));
            }
        };
        let request = Request::from_parts(head, Full::new(body));
        Ok(match self.ask_of(&upstream, request).await {
            Ok(response) => self.pass_on(response, open, client).await,
            Err(unanswered) => self.fail(open, &unanswered),
        })
    }

    pub(crate) async fn ask(&self, request: Request<Full<Bytes>>) -> Result<Response<Arriving>, Unanswered> {
        self.ask_of(&self.upstream, request).await
    }

    async fn ask_of(
        &self,
        upstream: &Upstream,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Arriving>, Unanswered> {
        let sent = upstream.send(request);
        tokio::select! {
            biased;
            answered = sent => answered.map_err(|error| {
                tracing::info!(error = %Causes(&error), "the engine gave no answer");
                Unanswered::Failed
            }),
            () = self.sealer.closing().cancelled() => Err(Unanswered::Closed),
            () = sleep(self.limits.silence) => Err(Unanswered::Silent),
        }
    }

    /// The engine's answer, held back or passing.
    pub(crate) async fn pass_on(
        &self,
        response: Response<Arriving>,
        mut open: Open,
        client: Client,
    ) -> Response<Answer> {
        let (mut head, body) = response.into_parts();
        if head.status.is_informational() {
            // An upgrade that nobody asked for.
            return self.fail(open, &Unanswered::Failed);
        }
        end_to_end(&mut head.headers);
        head.version = Version::HTTP_11;
        head.extensions.clear();
        let content_type = signed_content_type(&mut head.headers);
        let kind = body_kind(&head.headers);
        let events = kind == BodyKind::Events;
        let length = body.size_hint().exact();
        if !events && length.is_some_and(|length| length <= BUFFERED) {
            let whole = match self.hold_back(body).await {
                Ok(whole) => whole,
                Err(unanswered) => return self.fail(open, &unanswered),
            };
            open.head(head.status.as_u16(), content_type, kind);
            if !whole.is_empty() {
                open.pass(&whole);
            }
            let proof = open.finish(StreamEnd::Completed);
            let mut response = Response::from_parts(head, Answer::from(Full::new(whole)));
            put_proof(&mut response, proof.as_deref());
            return response;
        }
        open.head(head.status.as_u16(), content_type, kind);
        if events || (client.trailers && !client.http2) {
            // Our line makes it longer; and only a body of no stated length has a trailer.
            head.headers.remove(CONTENT_LENGTH);
        }
        if client.trailers {
            head.headers.insert(TRAILER, HeaderValue::from_name(PROOF));
        }
        let terms = Terms {
            events,
            budget: self.limits.response,
            silence: self.limits.silence,
        };
        let relay = Relay::new(body, open, terms);
        let answer = if client.http2 {
            Answer::one_of_many(relay, self.limits.stall, &self.tasks)
        } else {
            Answer::passing(relay)
        };
        Response::from_parts(head, answer)
    }

    async fn hold_back(&self, mut body: Arriving) -> Result<Bytes, Unanswered> {
        let mut whole = BytesMut::new();
        let mut first = Bytes::new();
        loop {
            let frame = tokio::select! {
                biased;
                frame = body.frame() => frame,
                () = self.sealer.closing().cancelled() => return Err(Unanswered::Closed),
                () = sleep(self.limits.silence) => return Err(Unanswered::Silent),
            };
            let data = match frame {
                None if whole.is_empty() => return Ok(first),
                None => return Ok(whole.freeze()),
                Some(Err(_)) => return Err(Unanswered::Failed),
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            };
            if first.is_empty() && whole.is_empty() {
                first = data;
            } else {
                if whole.is_empty() {
                    whole.extend_from_slice(&std::mem::take(&mut first));
                }
                whole.extend_from_slice(&data);
            }
        }
    }

    /// There was no answer, and that is signed too.
    pub(crate) fn fail(&self, mut open: Open, why: &Unanswered) -> Response<Answer> {
        let (status, code, message, end) = match why {
            Unanswered::Failed => (
                StatusCode::BAD_GATEWAY,
                "engine_failed",
                "the engine gave no whole answer",
                StreamEnd::EngineFailed,
            ),
            Unanswered::Silent => (
                StatusCode::GATEWAY_TIMEOUT,
                "engine_silent",
                "the engine did not answer in time",
                StreamEnd::EngineSilent,
            ),
            Unanswered::Closed => (
                StatusCode::SERVICE_UNAVAILABLE,
                "session_closed",
                "the session was closed before the engine answered",
                StreamEnd::SessionClosed,
            ),
        };
        let body = muster_openai::error_body("server_error", code, None, message).to_string();
        let mut response = error(status, "server_error", code, message);
        let content_type = signed_content_type(response.headers_mut());
        open.head(status.as_u16(), content_type, BodyKind::Json);
        open.pass(body.as_bytes());
        let proof = open.finish(end);
        let mut response = response.map(Answer::from);
        put_proof(&mut response, proof.as_deref());
        response
    }

    /// Ends the session: what is under way gets `grace` to be signed and sent, what is left then is signed as it stands when
    /// its connection is dropped. The last word is [`Sealer::close`]'s, once nothing is under way.
    pub async fn drain(&self, grace: Duration) -> bool {
        self.sealer.begin_close();
        timeout(grace, self.sealer.drained()).await.is_ok()
    }
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Seal")
            .field(&self.sealer)
            .field(&self.upstream)
            .finish()
    }
}

fn put_proof(response: &mut Response<Answer>, proof: Option<&str>) {
    if let Some(proof) = proof.and_then(|proof| HeaderValue::from_str(proof).ok()) {
        response.headers_mut().insert(PROOF, proof);
    }
}

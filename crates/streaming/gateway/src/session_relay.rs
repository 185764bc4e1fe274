//! Relays one request to a session, and its answer to the client as it arrives.
//!
//! Until the first byte of an answer has come, the request may be given to another session. After that the client has
//! it, and errors are reported inside the stream. However the answer ends, it is settled before the client sees the
//! end.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::OptionFuture;
use http::header::{CONTENT_TYPE, TRAILER};
use http::{HeaderMap, Method, StatusCode};
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;
use muster_openai::OpenAiError;
use muster_process::error::Causes;
use muster_response_proof::StreamEnd;
use muster_response_proof::headers::{PROOF, keep_proof_trailer, keep_response_headers};
use muster_sealed_client::{CheckedBody, ClientError, ResponseBody};
use muster_session_pool::SessionNumber;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::answer_parts::{AnswerPart, REQUEST_ID, is_event_stream};
use crate::nonces::{IssuedNonce, RequestFacts};
use crate::request::RelayedRequest;
use crate::scheduler::{SessionAssignment, StreamRequest};
use crate::settlement::{AnswerObservation, ObservedEnd};
use crate::state::GatewayState;
use muster_sealed_client::{ResponseReport, SealedRequest, SealedResponse, SealedSession};

/// Grace period before aborting an answer in flight from a session that is presumed dead.
const GRACE_PERIOD: Duration = Duration::from_secs(5);
/// How long a client may take nothing of the parts that wait for it.
const STALL_LIMIT: Duration = Duration::from_secs(120);

/// The pause after which an own prompt that its session did not take may be asked again.
const RETRY_OWN: Duration = Duration::from_secs(1);

/// How one attempt with one session ended.
enum AttemptOutcome {
    /// The session failed before the first byte, so another one may serve the request.
    Failed(RequestState),
    /// The session was presumed dead before the first byte; this is the scheduler's next assignment.
    Reassigned(SessionAssignment),
    /// The client has its answer, or has gone.
    Finished,
}

/// How far a request had come when its session failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestState {
    /// The session got nothing of it, or its seal refused it: no proof of it follows.
    Untaken,
    /// The session may have got it, and may still sign an answer to it.
    Sent,
}

type AnswerBody = CheckedBody<ResponseBody, ResponseReport>;
/// The next frame of an answer's body; `None` at its end.
type NextFrame = Option<Result<Frame<Bytes>, <AnswerBody as Body>::Error>>;

/// Sends the parts of an answer to the task that writes them to the client.
struct PartSender(mpsc::Sender<AnswerPart>);

/// The client has gone, or takes nothing.
struct ClientGone;

impl PartSender {
    async fn send(&self, part: AnswerPart) -> Result<(), ClientGone> {
        match timeout(STALL_LIMIT, self.0.send(part)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(ClientGone),
        }
    }

    async fn refuse(&self, error: OpenAiError) {
        // A client that has gone needs no error.
        let _ = self.send(AnswerPart::Refused(error)).await;
    }

    async fn closed(&self) {
        self.0.closed().await;
    }
}

/// Relays one request until its answer has ended, through as many sessions as it needs.
pub(crate) async fn run(
    state: Arc<GatewayState>,
    mut stream: StreamRequest,
    request: RelayedRequest,
    parts: mpsc::Sender<AnswerPart>,
) {
    let client = PartSender(parts);
    let mut reassigned = None;
    loop {
        let assignment = match reassigned.take() {
            Some(assignment) => assignment,
            None => tokio::select! {
                assignment = stream.next_assignment() => assignment,
                // Dropping `stream` notifies the scheduler that the client has gone.
                () = client.closed() => return,
            },
        };
        let (session, line) = match assignment {
            SessionAssignment::Refused(error) => return client.refuse(error).await,
            SessionAssignment::SessionLost => {
                let error = OpenAiError::UpstreamFailed("the session is gone".to_owned());
                return client.refuse(error).await;
            }
            SessionAssignment::Assigned(session, line) => (session, line),
        };
        let mut attempt = Attempt {
            state: &state,
            stream: &mut stream,
            request: &request,
            client: &client,
            session,
            line: &line,
            nonce: None,
        };
        let outcome = attempt.run().await;
        let nonce = attempt.nonce;
        match outcome {
            AttemptOutcome::Failed(reached) => {
                if let (RequestState::Untaken, Some(nonce)) = (reached, nonce) {
                    state.nonces.take_back(line.id(), nonce);
                }
                stream.report_failure(session);
                match (request.fixed_nonce, reached) {
                    (None, _) => {}
                    // Nobody has signed its nonce.
                    (Some(_), RequestState::Untaken) => return client.refuse(not_taken()).await,
                    (Some(_), RequestState::Sent) => return client.refuse(not_answered()).await,
                }
            }
            AttemptOutcome::Reassigned(_) if request.fixed_nonce.is_some() => {
                return client.refuse(not_answered()).await;
            }
            AttemptOutcome::Reassigned(assignment) => reassigned = Some(assignment),
            AttemptOutcome::Finished => return stream.finish(session),
        }
    }
}

/// An own prompt's session failed: no other one may answer it.
fn not_answered() -> OpenAiError {
    OpenAiError::UpstreamFailed("the session did not answer".to_owned())
}

/// An own prompt did not reach its session, or its seal refused it: it may be asked again.
fn not_taken() -> OpenAiError {
    OpenAiError::QueueFull {
        message: "the session did not take the request".to_owned(),
        retry_after: RETRY_OWN,
    }
}

/// One request with one session.
struct Attempt<'a> {
    state: &'a GatewayState,
    stream: &'a mut StreamRequest,
    request: &'a RelayedRequest,
    client: &'a PartSender,
    session: SessionNumber,
    line: &'a SealedSession,
    /// The nonce of the request, once it is made.
    nonce: Option<IssuedNonce>,
}

/// The head of an answer, as the client gets it.
struct AnswerHead {
    status: StatusCode,
    headers: HeaderMap,
    content_type: Option<String>,
}

impl Attempt<'_> {
    async fn run(&mut self) -> AttemptOutcome {
        // The session is not closed before the answer is settled.
        let _passing = self.line.track_response();
        let asked_at = self.state.clock.now();
        let SealedResponse {
            sent: asked,
            response,
            received: seen,
            awaited: _awaited,
        } = match self.ask().await {
            Ok(answer) => answer,
            Err(outcome) => return outcome,
        };
        let (head, mut body) = response.into_parts();
        let Some(head) = self.read_head(head) else {
            return AttemptOutcome::Failed(RequestState::Untaken);
        };
        let mut observation =
            AnswerObservation::new(self.state, self.line, self.request, head.content_type.as_deref());
        let first = match self.first_frame(&mut body).await {
            Ok(first) => first,
            Err(outcome) => return outcome,
        };
        self.stream.report_first_byte(self.session);
        observation.first_byte_at = Some(self.state.clock.now());
        let mut trailers = None;
        let end = match self
            .client
            .send(AnswerPart::Head(head.status, head.headers))
            .await
        {
            Ok(()) => {
                self.pass_body(first, &mut body, &mut observation, &mut trailers)
                    .await
            }
            Err(ClientGone) => Some(StreamEnd::ClientGone),
        };
        // The body reports what was seen of it once it is dropped.
        drop(body);
        let events = is_event_stream(head.content_type.as_deref());
        let observed_status = head.status;
        let observed = ObservedEnd {
            asked_at,
            status: head.status,
            content_type: head.content_type,
            end,
        };
        let stated = observation
            .settle(self.state, self.line, self.request, &asked, seen, observed)
            .await;
        // A session that broke off by itself ends the body in order, and says in its proof how the answer ended. A
        // failure that it signs as a document of its own is whole.
        let stated = stated.filter(|stated| *stated != StreamEnd::Completed && observed_status.is_success());
        match end.or(stated) {
            // The client is gone, or takes nothing: an answer without its end is cut.
            Some(StreamEnd::ClientGone) if end.is_some() => return AttemptOutcome::Finished,
            Some(broken) => self.report_break(broken, events).await,
            None => {}
        }
        if let Some(trailers) = trailers {
            // The answer is stored: a client that went away by now lacks nothing that it can still be given.
            let _ = self.client.send(AnswerPart::Trailers(trailers)).await;
        }
        let _ = self.client.send(AnswerPart::End).await;
        AttemptOutcome::Finished
    }

    /// Sends the request and waits for the answer's head.
    async fn ask(&mut self) -> Result<SealedResponse, AttemptOutcome> {
        let facts = RequestFacts::of(self.line, self.request);
        let issued = match self.request.fixed_nonce {
            Some(nonce) => Ok(IssuedNonce::fixed(nonce)),
            None => self.state.nonces.make(self.line, &facts),
        };
        let issued = match issued {
            Ok(issued) => issued,
            Err(error) => {
                tracing::error!(%error, "the system gives no randomness for a nonce");
                return Err(AttemptOutcome::Failed(RequestState::Untaken));
            }
        };
        self.nonce = Some(issued);
        let question = SealedRequest {
            method: Method::POST,
            path: self.request.path.to_owned(),
            body: self.request.body.clone(),
            client: Some(facts.client),
            client_nonce: self.request.client_nonce,
            gateway_nonce: issued.nonce,
        };
        let answer = tokio::select! {
            biased;
            answer = timeout(self.silence_limit(), self.line.send(&question)) => answer,
            assignment = self.stream.next_assignment() => return Err(AttemptOutcome::Reassigned(assignment)),
            // Nothing of the answer was seen here. The session signs it all the same.
            () = self.client.closed() => return Err(AttemptOutcome::Finished),
        };
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                tracing::info!(session = %self.line.id(), error = %Causes(&error), "a session did not answer");
                let reached = match error {
                    ClientError::Connect(_) => RequestState::Untaken,
                    ClientError::Broken(_)
                    | ClientError::NoDocument(_)
                    | ClientError::Status(_)
                    | ClientError::Statement(_) => RequestState::Sent,
                };
                Err(AttemptOutcome::Failed(reached))
            }
            Err(_) => Err(AttemptOutcome::Failed(RequestState::Sent)),
        }
    }

    /// The head for the client. `None` if the seal itself refused the request, being full or about to close: the engine
    /// was asked nothing, and the answer neither has a proof nor announces one.
    fn read_head(&self, mut head: http::response::Parts) -> Option<AnswerHead> {
        let is_signed = head.headers.contains_key(PROOF) || head.headers.contains_key(TRAILER);
        if !is_signed && head.status == StatusCode::SERVICE_UNAVAILABLE {
            return None;
        }
        let content_type = head.headers.get(CONTENT_TYPE);
        let content_type = content_type
            .and_then(|kind| kind.to_str().ok())
            .map(str::to_owned);
        keep_response_headers(&mut head.headers);
        head.headers.insert(REQUEST_ID, self.request.id.header());
        Some(AnswerHead {
            status: head.status,
            headers: head.headers,
            content_type,
        })
    }

    /// Waits for the first frame. The client gets nothing before it, so until then another session may take over.
    async fn first_frame(&mut self, body: &mut AnswerBody) -> Result<NextFrame, AttemptOutcome> {
        tokio::select! {
            biased;
            next = timeout(self.silence_limit(), body.frame()) => match next {
                Ok(Some(Err(_))) | Err(_) => Err(AttemptOutcome::Failed(RequestState::Sent)),
                Ok(next) => Ok(next),
            },
            assignment = self.stream.next_assignment() => Err(AttemptOutcome::Reassigned(assignment)),
            () = self.client.closed() => Ok(None),
        }
    }

    /// Passes the body to the client, and takes the trailers out: they end the answer for the client, so they follow
    /// once the answer is stored. `None` if the body came to its end.
    async fn pass_body(
        &mut self,
        first: NextFrame,
        body: &mut AnswerBody,
        observation: &mut AnswerObservation,
        trailers: &mut Option<HeaderMap>,
    ) -> Option<StreamEnd> {
        let mut next = first;
        let mut is_presumed_dead = false;
        loop {
            let frame = match next {
                None => return None,
                Some(Err(_)) => return Some(StreamEnd::EngineFailed),
                Some(Ok(frame)) => frame,
            };
            match frame.into_data() {
                Ok(data) => {
                    observation.update(&data);
                    if observation.is_padded() {
                        self.end_padding_session();
                        return Some(StreamEnd::Oversize);
                    }
                    if self.client.send(AnswerPart::Data(data)).await.is_err() {
                        return Some(StreamEnd::ClientGone);
                    }
                }
                Err(frame) => {
                    let mut last = frame.into_trailers().unwrap_or_default();
                    keep_proof_trailer(&mut last);
                    *trailers = Some(last);
                }
            }
            next = match self.next_frame(body, &mut is_presumed_dead).await {
                Ok(next) => next,
                Err(end) => return Some(end),
            };
        }
    }

    /// Gives no more requests to a session whose miner pads its answers. Its proofs and its pay stay as they are.
    fn end_padding_session(&self) {
        tracing::warn!(session = %self.line.id(), miner = %self.line.miner(),
            "a miner pads an answer: its session takes no more requests");
        metrics::counter!("muster_gateway_padded_answers_total").increment(1);
        self.state.scheduler.drain_session(self.line.job());
    }

    async fn next_frame(
        &mut self,
        body: &mut AnswerBody,
        is_presumed_dead: &mut bool,
    ) -> Result<NextFrame, StreamEnd> {
        let silence_limit = self.silence_limit();
        loop {
            let grace = is_presumed_dead.then(|| self.state.clock.sleep(GRACE_PERIOD));
            let grace = OptionFuture::from(grace);
            tokio::select! {
                biased;
                frame = body.frame() => return Ok(frame),
                () = self.client.closed() => return Err(StreamEnd::ClientGone),
                assignment = self.stream.next_assignment(), if !*is_presumed_dead => {
                    // The report of its death may be wrong: an answer that still arrives goes on.
                    tracing::info!(session = %self.line.id(), ?assignment,
                        "a session is presumed dead in the middle of an answer");
                    *is_presumed_dead = true;
                }
                Some(()) = grace => return Err(StreamEnd::EngineFailed),
                () = sleep(silence_limit) => return Err(StreamEnd::EngineSilent),
            }
        }
    }

    /// Notifies the client that its answer broke off.
    async fn report_break(&self, end: StreamEnd, events: bool) {
        let error = OpenAiError::UpstreamFailed(format!("the answer broke off: {}", end.name()));
        let last = if events {
            // The engine may have stopped within a line.
            AnswerPart::Data(format!("\n\n{}", error.event()).into())
        } else {
            AnswerPart::Cut
        };
        // A client that has gone needs no error.
        let _ = self.client.send(last).await;
    }

    fn silence_limit(&self) -> Duration {
        Duration::from_secs(self.state.settings.silence_s)
    }
}

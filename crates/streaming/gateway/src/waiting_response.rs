//! The response to a client: its body passes the parts of an answer on, with a heartbeat until they come.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::HeaderValue;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http_body::Frame;
use muster_gateway_client::error_response;
use muster_openai::OpenAiError;
use muster_session_pool::WaitingPlace;
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::answer_parts::{AnswerPart, REQUEST_ID, is_event_stream};
use crate::scheduler::RequestPlace;
use crate::waiting_comment::waiting_comment;

/// A stream whose request has no session by then begins with its place in the waiting list.
const SOON: Duration = Duration::from_millis(500);
/// Bytes of a session's error response that are reported inside a stream that has begun.
const MAX_ERROR: usize = 64 * 1024;

/// Waits for the head of an answer and passes the answer on. If the client wants a stream, its place is known. If such
/// a request waits for a session, or its head takes longer than `heartbeat`, the stream begins without the head, and a
/// comment is sent at that interval: it names the place, and no proxy on the way closes the connection.
pub(crate) async fn reply(
    mut parts: mpsc::Receiver<AnswerPart>,
    place: Option<RequestPlace>,
    heartbeat: Duration,
    id: HeaderValue,
) -> Response {
    let Some(place) = place else {
        return begin(parts.recv().await, parts);
    };
    match first_part(&mut parts, &place, heartbeat).await {
        Some(first) => begin(first, parts),
        None => {
            let mut ticks = interval(heartbeat);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut response = Response::new(Body::new(AnswerBody {
                parts,
                phase: BodyPhase::Waiting(Heartbeat {
                    ticks,
                    place,
                    found: None,
                }),
            }));
            let headers = response.headers_mut();
            headers.insert(
                CONTENT_TYPE,
                HeaderValue::from_static("text/event-stream; charset=utf-8"),
            );
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            headers.insert(REQUEST_ID, id);
            response
        }
    }
}

/// The first part of an answer to a client that wants a stream; `None` if the stream begins before it.
async fn first_part(
    parts: &mut mpsc::Receiver<AnswerPart>,
    place: &RequestPlace,
    heartbeat: Duration,
) -> Option<Option<AnswerPart>> {
    let soon = SOON.min(heartbeat);
    if let Ok(first) = tokio::time::timeout(soon, parts.recv()).await {
        return Some(first);
    }
    if place.clone().find().await.is_some() {
        return None;
    }
    let rest = heartbeat.saturating_sub(soon);
    tokio::time::timeout(rest, parts.recv()).await.ok()
}

/// The response to a client whose answer begins with this part.
fn begin(first: Option<AnswerPart>, parts: mpsc::Receiver<AnswerPart>) -> Response {
    match first {
        Some(AnswerPart::Head(status, headers)) => {
            let mut response = Response::new(Body::new(AnswerBody::passing(parts)));
            *response.status_mut() = status;
            *response.headers_mut() = headers;
            response
        }
        Some(AnswerPart::Refused(error)) => error_response(&error),
        Some(AnswerPart::Data(_) | AnswerPart::Trailers(_) | AnswerPart::End | AnswerPart::Cut) | None => {
            error_response(&lost())
        }
    }
}

/// The error for an answer whose task was ended.
fn lost() -> OpenAiError {
    OpenAiError::Internal("the answer was lost on its way".to_owned())
}

/// The body of a response, made of the parts that the request's task sends.
struct AnswerBody {
    parts: mpsc::Receiver<AnswerPart>,
    phase: BodyPhase,
}

enum BodyPhase {
    /// The stream has begun with heartbeats; the answer has not.
    Waiting(Heartbeat),
    /// The answer passes as it arrives.
    Passing,
    /// The answer is not a stream: it is collected and reported as an error event inside this stream.
    Error(Vec<u8>),
    Ended,
}

/// The comments of a stream that waits.
struct Heartbeat {
    ticks: Interval,
    place: RequestPlace,
    /// The place for the next comment, while it is asked for.
    found: Option<BoxFuture<'static, Option<WaitingPlace>>>,
}

impl Heartbeat {
    /// The next comment.
    fn poll_comment(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        loop {
            if let Some(found) = &mut self.found {
                let place = std::task::ready!(found.as_mut().poll(cx));
                self.found = None;
                return Poll::Ready(waiting_comment(place));
            }
            std::task::ready!(self.ticks.poll_tick(cx));
            self.found = Some(Box::pin(self.place.clone().find()));
        }
    }
}

/// Ends the connection of an answer that broke off.
#[derive(Debug, thiserror::Error)]
#[error("the session broke off")]
struct AnswerCut;

impl AnswerBody {
    const fn passing(parts: mpsc::Receiver<AnswerPart>) -> Self {
        Self {
            parts,
            phase: BodyPhase::Passing,
        }
    }

    fn end_with(&mut self, text: String) -> Poll<Option<Result<Frame<Bytes>, AnswerCut>>> {
        self.phase = BodyPhase::Ended;
        Poll::Ready(Some(Ok(Frame::data(text.into()))))
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = AnswerCut;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnswerCut>>> {
        let this = self.get_mut();
        loop {
            if matches!(this.phase, BodyPhase::Ended) {
                return Poll::Ready(None);
            }
            let part = match this.parts.poll_recv(cx) {
                Poll::Ready(part) => part,
                Poll::Pending => {
                    return match &mut this.phase {
                        BodyPhase::Waiting(heartbeat) => {
                            let comment = std::task::ready!(heartbeat.poll_comment(cx));
                            Poll::Ready(Some(Ok(Frame::data(comment))))
                        }
                        BodyPhase::Passing | BodyPhase::Error(_) | BodyPhase::Ended => Poll::Pending,
                    };
                }
            };
            match (part, &mut this.phase) {
                (None | Some(AnswerPart::End), BodyPhase::Error(body)) => {
                    let json = std::mem::take(body);
                    let event = match serde_json::from_slice::<serde_json::Value>(&json) {
                        Ok(json) => format!("data: {json}\n\n"),
                        Err(_) => {
                            OpenAiError::UpstreamFailed("the session refused the request".to_owned()).event()
                        }
                    };
                    return this.end_with(event);
                }
                (Some(AnswerPart::End), BodyPhase::Passing) | (None, BodyPhase::Ended) => {
                    this.phase = BodyPhase::Ended;
                    return Poll::Ready(None);
                }
                (None, BodyPhase::Waiting(_)) => return this.end_with(lost().event()),
                (Some(AnswerPart::Head(status, headers)), BodyPhase::Waiting(_)) => {
                    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
                    this.phase = if status.is_success() && is_event_stream(kind) {
                        BodyPhase::Passing
                    } else {
                        BodyPhase::Error(Vec::new())
                    };
                }
                (Some(AnswerPart::Data(data)), BodyPhase::Error(body)) => {
                    if body.len().saturating_add(data.len()) <= MAX_ERROR {
                        body.extend_from_slice(&data);
                    }
                }
                (Some(AnswerPart::Data(data)), BodyPhase::Passing) => {
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                (Some(AnswerPart::Trailers(trailers)), BodyPhase::Passing) => {
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
                (Some(AnswerPart::Refused(error)), BodyPhase::Waiting(_)) => {
                    return this.end_with(error.event());
                }
                (None | Some(AnswerPart::Cut), BodyPhase::Passing) => {
                    this.phase = BodyPhase::Ended;
                    return Poll::Ready(Some(Err(AnswerCut)));
                }
                // The parts come in their order, so no other part follows in these phases.
                (Some(_), _) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};
    use http_body_util::BodyExt as _;
    use muster_process::Tasks;
    use muster_protocol::Digest;
    use muster_session_pool::WaitingFor;

    use super::*;
    use crate::scheduler::{SchedulerCommand, SchedulerHandle};

    fn events() -> HeaderMap {
        HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"))])
    }

    /// The place of a request whose scheduler answers each question for it with the next of `places`, then with none.
    fn placed(places: Vec<WaitingPlace>) -> RequestPlace {
        let (scheduler, mut commands) = SchedulerHandle::new();
        let request = scheduler.enqueue(0, (Digest::of(b"client"), Duration::MAX), None);
        let place = request.place();
        let answering = async move {
            let _kept = request;
            let mut places = places.into_iter();
            while let Some(command) = commands.recv().await {
                if let SchedulerCommand::FindPlace(_, _, reply) = command {
                    let _ = reply.send(places.next());
                }
            }
        };
        let tasks = Tasks::new();
        drop(tasks.spawn("scheduler", answering));
        place
    }

    async fn collected(parts: Vec<AnswerPart>, streams: bool, wait: Duration) -> (StatusCode, String) {
        let place = streams.then(|| placed(Vec::new()));
        collected_at(parts, place, wait).await
    }

    async fn collected_at(
        parts: Vec<AnswerPart>,
        place: Option<RequestPlace>,
        wait: Duration,
    ) -> (StatusCode, String) {
        let (to, from) = mpsc::channel(16);
        let beat = Duration::from_secs(10);
        let sending = async move {
            tokio::time::sleep(wait).await; // paused time
            for part in parts {
                to.send(part).await.unwrap();
            }
        };
        let id = HeaderValue::from_static("id");
        let answered = async {
            let response = reply(from, place, beat, id).await;
            let status = response.status();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            (status, String::from_utf8(body.to_vec()).unwrap())
        };
        tokio::join!(sending, answered).1
    }

    fn whole() -> Vec<AnswerPart> {
        vec![
            AnswerPart::Head(StatusCode::OK, events()),
            AnswerPart::Data(Bytes::from_static(b"data: 1\n\n")),
            AnswerPart::End,
        ]
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_without_its_end_is_cut() {
        let mut parts = whole();
        parts.pop();
        let (to, from) = mpsc::channel(16);
        for part in parts {
            to.send(part).await.unwrap();
        }
        drop(to);
        let response = reply(
            from,
            None,
            Duration::from_secs(10),
            HeaderValue::from_static("id"),
        )
        .await;
        assert!(response.into_body().collect().await.is_err());
        // One whose client waits has no head yet.
        let (status, body) = collected(Vec::new(), true, Duration::from_secs(25)).await;
        assert_eq!(status, StatusCode::OK);
        assert!(body.contains("the answer was lost on its way"), "{body}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_wants_a_stream_gets_comments_while_it_waits() {
        let (status, body) = collected(whole(), true, Duration::from_secs(25)).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(body, ": muster-wait\n: muster-wait\ndata: 1\n\n");
        let (_, body) = collected(whole(), true, Duration::from_secs(1)).await;
        assert_eq!(body, "data: 1\n\n");
        let (_, body) = collected(whole(), false, Duration::from_secs(25)).await;
        assert_eq!(
            body, "data: 1\n\n",
            "a client that wants a document gets nothing before it"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_in_the_waiting_list_learns_its_place_at_once() {
        let place = |place, expected| WaitingPlace {
            place,
            waits_for: WaitingFor::Executor,
            expected,
        };
        let places = vec![
            place(2, None),
            place(2, None),
            place(1, Some(Duration::from_secs(40))),
        ];
        let (status, body) = collected_at(whole(), Some(placed(places)), Duration::from_millis(25_600)).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(
            body,
            ": muster-wait place=2 for=executor\n\
             : muster-wait place=1 for=executor about_s=40\n\
             : muster-wait\n\
             data: 1\n\n"
        );
        let at_once = placed(vec![place(1, None)]);
        let (_, body) = collected_at(whole(), Some(at_once), Duration::from_millis(499)).await;
        assert_eq!(body, "data: 1\n\n", "nobody waits for half a second");
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_after_the_wait_is_an_event_inside_the_stream() {
        let late = Duration::from_secs(15);
        let refusal = || OpenAiError::UpstreamFailed("gone".to_owned());
        let (status, body) = collected(vec![AnswerPart::Refused(refusal())], true, late).await;
        assert_eq!(status, StatusCode::OK);
        assert!(body.ends_with(&refusal().event()), "{body}");
        let error = vec![
            AnswerPart::Head(StatusCode::BAD_REQUEST, HeaderMap::new()),
            AnswerPart::Data(Bytes::from_static(b"{\"error\": {\"message\":")),
            AnswerPart::Data(Bytes::from_static(b" \"no\"}}")),
        ];
        let (_, body) = collected(error, true, late).await;
        assert!(
            body.ends_with("data: {\"error\":{\"message\":\"no\"}}\n\n"),
            "{body}"
        );
        let (status, body) = collected(vec![AnswerPart::Refused(refusal())], true, Duration::ZERO).await;
        assert_eq!(
            (status, body),
            (StatusCode::BAD_GATEWAY, refusal().body().to_string())
        );
    }
}

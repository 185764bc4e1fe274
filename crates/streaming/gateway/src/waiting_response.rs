//! The response to a client: its body passes the parts of an answer on, with a heartbeat until they come.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::HeaderValue;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http_body::Frame;
use muster_gateway_client::error_response;
use muster_openai::OpenAiError;
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::answer_parts::{AnswerPart, REQUEST_ID, is_event_stream};

/// The heartbeat of a stream that waits: a comment line with our prefix, and no empty line after it, so that a checker
/// of the answer removes it completely.
const HEARTBEAT: &[u8] = b": muster-wait\n";
/// Bytes of a session's error response that are reported inside a stream that has begun.
const MAX_ERROR: usize = 64 * 1024;

/// Waits for the head of an answer and passes the answer on. If the client wants a stream and the head takes longer
/// than `heartbeat`, the stream begins without it, and a comment is sent at that interval, so that no proxy on the way
/// closes the connection.
pub(crate) async fn reply(
    mut parts: mpsc::Receiver<AnswerPart>,
    streams: bool,
    heartbeat: Duration,
    id: HeaderValue,
) -> Response {
    let first = if streams {
        tokio::time::timeout(heartbeat, parts.recv()).await.ok()
    } else {
        Some(parts.recv().await)
    };
    match first {
        Some(Some(AnswerPart::Head(status, headers))) => {
            let mut response = Response::new(Body::new(AnswerBody::passing(parts)));
            *response.status_mut() = status;
            *response.headers_mut() = headers;
            response
        }
        Some(Some(AnswerPart::Refused(error))) => error_response(&error),
        Some(Some(AnswerPart::Data(_) | AnswerPart::Trailers(_) | AnswerPart::Cut) | None) => error_response(
            &OpenAiError::Internal("the answer was lost on its way".to_owned()),
        ),
        None => {
            let mut ticks = interval(heartbeat);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut response = Response::new(Body::new(AnswerBody {
                parts,
                phase: BodyPhase::Waiting(ticks),
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

/// The body of a response, made of the parts that the request's task sends.
struct AnswerBody {
    parts: mpsc::Receiver<AnswerPart>,
    phase: BodyPhase,
}

enum BodyPhase {
    /// The stream has begun with heartbeats; the answer has not.
    Waiting(Interval),
    /// The answer passes as it arrives.
    Passing,
    /// The answer is not a stream: it is collected and reported as an error event inside this stream.
    Error(Vec<u8>),
    Ended,
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
                        BodyPhase::Waiting(ticks) => {
                            std::task::ready!(ticks.poll_tick(cx));
                            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(HEARTBEAT)))))
                        }
                        BodyPhase::Passing | BodyPhase::Error(_) | BodyPhase::Ended => Poll::Pending,
                    };
                }
            };
            match (part, &mut this.phase) {
                (None, BodyPhase::Error(body)) => {
                    let json = std::mem::take(body);
                    let event = match serde_json::from_slice::<serde_json::Value>(&json) {
                        Ok(json) => format!("data: {json}\n\n"),
                        Err(_) => {
                            OpenAiError::UpstreamFailed("the session refused the request".to_owned()).event()
                        }
                    };
                    return this.end_with(event);
                }
                (None, BodyPhase::Waiting(_) | BodyPhase::Passing | BodyPhase::Ended) => {
                    this.phase = BodyPhase::Ended;
                    return Poll::Ready(None);
                }
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
                (Some(AnswerPart::Cut), BodyPhase::Passing) => {
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

    use super::*;

    fn events() -> HeaderMap {
        HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"))])
    }

    async fn collected(parts: Vec<AnswerPart>, streams: bool, wait: Duration) -> (StatusCode, String) {
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
            let response = reply(from, streams, beat, id).await;
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
        ]
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

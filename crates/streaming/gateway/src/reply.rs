//! Answers of the door itself, and the body through which an answer of a session reaches its client.

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

use crate::relay::{Part, REQUEST_ID, is_events};

/// What a client hears while it waits. A comment of an event stream, with our prefix and without an empty line after it: a checker of
/// the answer leaves it out, and nothing is left of it.
const WAIT: &[u8] = b": muster-wait\n";
/// The most of a session's error that is told inside a stream that has begun without it.
const MAX_ERROR: usize = 64 * 1024;

/// Waits for the head of an answer and passes it on. A client that wants a stream is given the beginning of one after
/// `heartbeat`, with a comment as often as that, so that nobody between takes the connection for dead.
pub(crate) async fn reply(
    mut parts: mpsc::Receiver<Part>,
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
        Some(Some(Part::Head(status, headers))) => {
            let mut response = Response::new(Body::new(Passing::answer(parts)));
            *response.status_mut() = status;
            *response.headers_mut() = headers;
            response
        }
        Some(Some(Part::Refused(refusal))) => error_response(&refusal),
        Some(Some(Part::Data(_) | Part::Trailers(_) | Part::Cut) | None) => error_response(
            &OpenAiError::Internal("the answer was lost on its way".to_owned()),
        ),
        None => {
            let mut ticks = interval(heartbeat);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut response = Response::new(Body::new(Passing {
                parts,
                state: State::Waiting(ticks),
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

/// An answer's body, from whoever sees the request through.
struct Passing {
    parts: mpsc::Receiver<Part>,
    state: State,
}

enum State {
    /// The stream has begun, the answer has not.
    Waiting(Interval),
    /// The answer passes.
    Through,
    /// The answer is no stream: it is collected and told as an error inside this one.
    Error(Vec<u8>),
    Over,
}

/// The answer broke off.
#[derive(Debug, thiserror::Error)]
#[error("the session broke off")]
struct CutOff;

impl Passing {
    const fn answer(parts: mpsc::Receiver<Part>) -> Self {
        Self {
            parts,
            state: State::Through,
        }
    }

    fn last(&mut self, text: String) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        self.state = State::Over;
        Poll::Ready(Some(Ok(Frame::data(text.into()))))
    }
}

impl http_body::Body for Passing {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        let this = self.get_mut();
        loop {
            if matches!(this.state, State::Over) {
                return Poll::Ready(None);
            }
            let part = match this.parts.poll_recv(cx) {
                Poll::Ready(part) => part,
                Poll::Pending => {
                    return match &mut this.state {
                        State::Waiting(ticks) => {
                            std::task::ready!(ticks.poll_tick(cx));
                            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(WAIT)))))
                        }
                        State::Through | State::Error(_) | State::Over => Poll::Pending,
                    };
                }
            };
            match (part, &mut this.state) {
                (None, State::Error(body)) => {
                    let json = std::mem::take(body);
                    let told = match serde_json::from_slice::<serde_json::Value>(&json) {
                        Ok(json) => format!("data: {json}\n\n"),
                        Err(_) => {
                            OpenAiError::UpstreamFailed("the session refused the request".to_owned()).event()
                        }
                    };
                    return this.last(told);
                }
                (None, State::Waiting(_) | State::Through | State::Over) => {
                    this.state = State::Over;
                    return Poll::Ready(None);
                }
                (Some(Part::Head(status, headers)), State::Waiting(_)) => {
                    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
                    this.state = if status.is_success() && is_events(kind) {
                        State::Through
                    } else {
                        State::Error(Vec::new())
                    };
                }
                (Some(Part::Data(data)), State::Error(body)) => {
                    if body.len().saturating_add(data.len()) <= MAX_ERROR {
                        body.extend_from_slice(&data);
                    }
                }
                (Some(Part::Data(data)), State::Through) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                (Some(Part::Trailers(trailers)), State::Through) => {
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
                (Some(Part::Refused(refusal)), State::Waiting(_)) => return this.last(refusal.event()),
                (Some(Part::Cut), State::Through) => {
                    this.state = State::Over;
                    return Poll::Ready(Some(Err(CutOff)));
                }
                // Parts come in their order: nothing of the others follows here.
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

    async fn collected(parts: Vec<Part>, streams: bool, wait: Duration) -> (StatusCode, String) {
        let (to, from) = mpsc::channel(16);
        let beat = Duration::from_secs(10);
        let told = async move {
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
        tokio::join!(told, answered).1
    }

    fn whole() -> Vec<Part> {
        vec![
            Part::Head(StatusCode::OK, events()),
            Part::Data(Bytes::from_static(b"data: 1\n\n")),
        ]
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_wants_a_stream_hears_a_comment_while_it_waits() {
        let (status, body) = collected(whole(), true, Duration::from_secs(25)).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(body, ": muster-wait\n: muster-wait\ndata: 1\n\n");
        let (_, body) = collected(whole(), true, Duration::from_secs(1)).await;
        assert_eq!(body, "data: 1\n\n");
        let (_, body) = collected(whole(), false, Duration::from_secs(25)).await;
        assert_eq!(body, "data: 1\n\n", "who wants a document waits in silence");
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_after_the_wait_is_told_inside_the_stream() {
        let late = Duration::from_secs(15);
        let refusal = || OpenAiError::UpstreamFailed("gone".to_owned());
        let (status, body) = collected(vec![Part::Refused(refusal())], true, late).await;
        assert_eq!(status, StatusCode::OK);
        assert!(body.ends_with(&refusal().event()), "{body}");
        let error = vec![
            Part::Head(StatusCode::BAD_REQUEST, HeaderMap::new()),
            Part::Data(Bytes::from_static(b"{\"error\": {\"message\":")),
            Part::Data(Bytes::from_static(b" \"no\"}}")),
        ];
        let (_, body) = collected(error, true, late).await;
        assert!(
            body.ends_with("data: {\"error\":{\"message\":\"no\"}}\n\n"),
            "{body}"
        );
        let (status, body) = collected(vec![Part::Refused(refusal())], true, Duration::ZERO).await;
        assert_eq!(
            (status, body),
            (StatusCode::BAD_GATEWAY, refusal().body().to_string())
        );
    }
}

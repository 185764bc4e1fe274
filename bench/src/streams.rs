//! Streams of events: an engine that states when it sent each, and a listener that notes when it received it.
//!
//! Both ends read the same clock of one machine, so the difference is what stands between them.

use std::convert::Infallible;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use futures_util::stream::{self, Stream};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use muster_process::{Clock as _, SystemClock, Tasks};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use crate::process::{ENGINE, write_address};

/// Stands before the microseconds at which an event was sent.
const MARK: &str = "@T";
/// A mark with its number, of microseconds since 1970, is never longer.
const MARKED: usize = 24;
/// Filling, so that an event is as long as a token of an engine that states its ids and probabilities.
const FILLING: &str = "abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstuvwxyz0123456789";
/// No client waits longer for a stream.
const PATIENCE: Duration = Duration::from_secs(120);

/// The parameters of a stream. On the wire: OpenAI's `max_tokens` and `seed`, so that it passes through anybody's
/// gateway.
#[derive(Clone, Copy, Debug)]
pub struct StreamParameters {
    /// The number of events.
    pub events: u32,
    /// Microseconds before each.
    pub pause_us: u32,
}

impl StreamParameters {
    /// A stream of `events` events, with `pause_us` microseconds before each.
    pub const fn new(events: u32, pause_us: u32) -> Self {
        Self { events, pause_us }
    }
}

/// One stream after another: an event, and a little later another one, so that the first byte does not wait for what
/// follows the last.
pub const SHORT: StreamParameters = StreamParameters::new(2, 2_000);
/// As an engine speaks, for [`CALM_STREAMS`] at once.
pub const CALM: StreamParameters = StreamParameters::new(100, 10_000);
/// So few streams that each is received on time.
pub const CALM_STREAMS: usize = 16;

/// The observations of one stream.
#[derive(Clone, Debug, Default)]
pub struct StreamObservation {
    /// The number of events that arrived.
    pub events: u64,
    /// Microseconds from the request to the first byte of the body.
    pub first_us: f64,
    /// Microseconds that each event was on its way.
    pub late_us: Vec<f64>,
    /// Microseconds from the last event to the end of the body.
    pub end_us: f64,
}

/// Microseconds since 1970.
pub fn now_us() -> i64 {
    SystemClock::new().now().micros()
}

// === the engine ===

/// Answers on the socket of a folder and on a port, which is recorded there, until the process ends.
///
/// # Errors
/// A listener failed.
pub async fn serve_engine(folder: &Path) -> Result<()> {
    let tasks = Tasks::new();
    let port = TcpListener::bind("127.0.0.1:0").await?;
    let address = port.local_addr()?;
    let socket = UnixListener::bind(folder.join(ENGINE))?;
    write_address(folder, "engine", &address.to_string())?;
    tokio::try_join!(
        answer_on_socket(socket, tasks.clone()),
        answer_on_port(port, tasks.clone())
    )?;
    Ok(())
}

/// Answers on a Unix socket until the process ends.
///
/// # Errors
/// The listener failed.
pub async fn answer_on_socket(listener: UnixListener, tasks: Tasks) -> Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        answer(stream, &tasks);
    }
}

/// Answers on a port until the process ends.
///
/// # Errors
/// The listener failed.
pub async fn answer_on_port(listener: TcpListener, tasks: Tasks) -> Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        answer(stream, &tasks);
    }
}

fn answer<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, tasks: &Tasks) {
    let service = service_fn(|request: Request<Incoming>| async {
        let body = request.into_body().collect().await.map(|body| body.to_bytes());
        let asked: Value = body
            .ok()
            .and_then(|body| serde_json::from_slice(&body).ok())
            .unwrap_or_default();
        let number = |name: &str| asked.get(name).and_then(Value::as_u64).unwrap_or_default();
        let parameters = StreamParameters {
            events: u32::try_from(number("max_tokens")).unwrap_or(u32::MAX),
            pause_us: u32::try_from(number("seed")).unwrap_or(u32::MAX),
        };
        let mut response = Response::new(StreamBody::new(events(parameters)));
        let kind = HeaderValue::from_static("text/event-stream");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        Ok::<_, Infallible>(response)
    });
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    tasks.spawn("engine connection", async move {
        // A client that leaves is no concern of the engine's.
        let _ = connection.await;
    });
}

fn events(parameters: StreamParameters) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send {
    stream::unfold(0, move |said| async move {
        if said > parameters.events {
            return None;
        }
        if said == parameters.events {
            return Some((Ok(Frame::data(Bytes::from_static(b"data: [DONE]\n\n"))), said + 1));
        }
        if parameters.pause_us > 0 && said > 0 {
            tokio::time::sleep(Duration::from_micros(parameters.pause_us.into())).await;
        }
        let content = format!("{MARK}{}@{FILLING}", now_us());
        let event = format!(
            r#"data: {{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{{"index":0,"delta":{{"content":"{content}"}},"finish_reason":null}}]}}"#
        );
        Some((Ok(Frame::data(Bytes::from(event + "\n\n"))), said + 1))
    })
}

// === the listener ===

/// The request for such a stream, to `path` of `host`.
///
/// # Errors
/// The path is none.
pub fn request(path: &str, host: &str, parameters: StreamParameters) -> Result<Request<Full<Bytes>>> {
    let body = json!({
        "model": "bench", "stream": true, "max_tokens": parameters.events, "seed": parameters.pause_us,
        "messages": [{"role": "user", "content": "say it"}],
    });
    let request = Request::post(path)
        .header("host", host)
        .header(CONTENT_TYPE, "application/json");
    Ok(request.body(Full::from(body.to_string()))?)
}

/// Receives a stream to its end. `sent_us` is when its request was sent. Only where `timed` is each event looked at.
///
/// # Errors
/// It breaks off, or does not end.
pub async fn hear<B>(mut body: B, sent_us: i64, timed: bool) -> Result<StreamObservation>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    let mut heard = StreamObservation::default();
    let (mut last, mut marks) = (None, Marks::default());
    let hearing = async {
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.context("a stream broke off")?.into_data() else {
                continue;
            };
            let now = now_us();
            if last.is_none() {
                heard.first_us = micros(now - sent_us);
            }
            let before = heard.events;
            marks.note(&data, now, timed, &mut heard);
            if heard.events > before || last.is_none() {
                last = Some(now);
            }
        }
        anyhow::Ok(())
    };
    if tokio::time::timeout(PATIENCE, hearing).await.is_err() {
        bail!("a stream did not end");
    }
    heard.end_us = last.map_or(0.0, |last| micros(now_us() - last));
    Ok(heard)
}

/// Finds events wherever the network has cut them.
#[derive(Default)]
struct Marks {
    /// The last bytes, which may be the beginning of a mark.
    carry: Vec<u8>,
}

impl Marks {
    fn note(&mut self, data: &[u8], now: i64, timed: bool, heard: &mut StreamObservation) {
        let joined = (!self.carry.is_empty()).then(|| [&self.carry, data].concat());
        let data = joined.as_deref().unwrap_or(data);
        let mut rest = data.len().saturating_sub(MARK.len() - 1);
        for found in memchr::memmem::find_iter(data, MARK.as_bytes()) {
            if data.len() - found < MARKED {
                rest = found;
                break;
            }
            heard.events += 1;
            if timed {
                let digits = data.get(found + MARK.len()..).unwrap_or_default();
                heard.late_us.push(micros(now - number(digits)));
            }
        }
        self.carry = data.get(rest..).unwrap_or_default().to_vec();
    }
}

/// The number at the beginning of some text.
fn number(text: &[u8]) -> i64 {
    text.iter()
        .take_while(|byte| byte.is_ascii_digit())
        .fold(0, |number: i64, digit| {
            number.wrapping_mul(10).wrapping_add(i64::from(digit - b'0'))
        })
}

fn micros(span: i64) -> f64 {
    span as f64
}

/// The sample below which `share` of all lie. `None` without samples.
pub fn quantile(samples: &[f64], share: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (share * sorted.len().saturating_sub(1) as f64).round() as usize;
    sorted.get(place).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_wherever_they_stand_and_are_cut() {
        let text = format!("data: @T100@{FILLING}\n\ndata: @T250@{FILLING}\n\n");
        for cut in 0..text.len() {
            let (mut heard, mut marks) = (StreamObservation::default(), Marks::default());
            for part in [&text[..cut], &text[cut..]] {
                marks.note(part.as_bytes(), 300, true, &mut heard);
            }
            assert_eq!((heard.events, heard.late_us), (2, vec![200.0, 50.0]), "{cut}");
        }
    }

    #[test]
    fn quantiles() {
        let samples: Vec<f64> = (0..=100).map(f64::from).collect();
        assert_eq!(quantile(&samples, 0.5), Some(50.0));
        assert_eq!(quantile(&samples, 0.99), Some(99.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[tokio::test]
    async fn a_listener_hears_what_the_engine_says() {
        let tasks = Tasks::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let own = tasks.clone();
        tasks.spawn("engine", async move {
            let _ = answer_on_port(listener, own).await;
        });
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tasks.spawn("client", async move {
            let _ = connection.await;
        });
        let parameters = StreamParameters::new(5, 0);
        let sent = now_us();
        let response = sender
            .send_request(request("/v1/chat/completions", "bench", parameters).unwrap())
            .await
            .unwrap();
        let heard = hear(response.into_body(), sent, true).await.unwrap();
        assert_eq!((heard.events, heard.late_us.len()), (5, 5));
        assert!(heard.first_us > 0.0);
    }
}

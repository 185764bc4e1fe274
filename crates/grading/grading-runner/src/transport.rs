//! One message to an executor and its answer, through a sealed session.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::Method;
use http::header::CONTENT_LENGTH;
use http_body_util::BodyExt as _;
use muster_gateway::sealed::{Line, Question, draw};
use muster_process::error::Causes;
use tokio::time::Instant;

/// The most that is read of a refusal's words.
const MOST_WORDS: usize = 300;
/// A proof of the seal's that did not come with its answer is waited for so long.
const SEAL_PATIENCE: Duration = Duration::from_secs(10);

/// What came back for one message.
#[derive(Debug)]
pub enum Said {
    /// A whole message, when its last byte came, and what the session signed about it.
    Message(Vec<u8>, Instant, Option<String>),
    /// More than could be right: how much was announced, or had come.
    Oversized(u64),
    /// Nothing that could be right: why, in words.
    Nothing(String),
}

/// Whoever carries messages to one executor. A [`Way`] does; so does a test.
pub trait Ask: Send + Sync {
    /// Sends one message. `begun` is told when its first byte left, before anything is read, and says how much may be read.
    fn ask<'a>(
        &'a self,
        message: Bytes,
        begun: Box<dyn FnOnce(Instant) -> usize + Send + 'a>,
    ) -> BoxFuture<'a, Said>;
}

/// A session, and where in it an executor is challenged.
#[derive(Clone, Copy, Debug)]
pub struct Way<'a> {
    /// The session.
    pub line: &'a Line,
    /// Where its challenges go.
    pub path: &'static str,
}

impl Ask for Way<'_> {
    fn ask<'a>(
        &'a self,
        message: Bytes,
        begun: Box<dyn FnOnce(Instant) -> usize + Send + 'a>,
    ) -> BoxFuture<'a, Said> {
        Box::pin(async move {
            match through(*self, message, begun).await {
                Ok(said) => said,
                Err(words) => Said::Nothing(words),
            }
        })
    }
}

async fn through(
    way: Way<'_>,
    message: Bytes,
    begun: Box<dyn FnOnce(Instant) -> usize + Send + '_>,
) -> Result<Said, String> {
    let line = way.line;
    let question = Question {
        method: Method::POST,
        path: way.path.to_owned(),
        body: message,
        client: None,
        client_nonce: None,
        gateway_nonce: draw().map_err(|error| error.to_string())?,
    };
    // What an earlier question left.
    let _ = line.first_byte_sent();
    let handed_over = Instant::now();
    let answer = line.ask(&question).await;
    let most = begun(line.first_byte_sent().unwrap_or(handed_over));
    let answer = answer.map_err(|error| Causes(&error).to_string())?;
    let status = answer.response.status();
    let length = answer.response.headers().get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let bound = if status.is_success() { most } else { MOST_WORDS };
    let too_much = |bytes: u64| bytes > u64::try_from(bound).unwrap_or(u64::MAX);
    if status.is_success()
        && let Some(length) = length.filter(|length| too_much(*length))
    {
        return Ok(Said::Oversized(length));
    }
    let mut body = answer.response.into_body();
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| format!("its answer broke off: {error}"))?;
        let Ok(data) = frame.into_data() else { continue };
        let came = bytes.len().saturating_add(data.len());
        if came > bound {
            if status.is_success() {
                return Ok(Said::Oversized(u64::try_from(came).unwrap_or(u64::MAX)));
            }
            break;
        }
        bytes.extend_from_slice(&data);
    }
    let arrived = Instant::now();
    if !status.is_success() {
        let words = String::from_utf8_lossy(&bytes);
        return Ok(Said::Nothing(format!("its program answered {status}: {words}")));
    }
    drop(body);
    // The clock stands still here: what was signed is looked at after the last byte has come.
    let seen = answer
        .seen
        .await
        .map_err(|_| "its answer was not seen to end".to_owned())?;
    let verdict = tokio::time::timeout(SEAL_PATIENCE, line.verdict(&seen, &answer.asked)).await;
    let verdict = verdict.map_err(|_| "nobody signed its answer".to_owned())?;
    let (_, envelope) = verdict.map_err(|unproven| format!("its answer is not sealed: {unproven}"))?;
    Ok(Said::Message(bytes, arrived, Some(envelope.to_text())))
}

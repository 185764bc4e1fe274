//! One message to an executor and its answer, through a sealed session.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::Method;
use http::header::CONTENT_LENGTH;
use http_body_util::BodyExt as _;
use muster_process::error::Causes;
use muster_sealed_client::{SealedRequest, SealedSession, draw_nonce};
use tokio::time::Instant;

/// The number of bytes that are read of an error response.
const MAX_ERROR_BYTES: usize = 300;
/// The time limit for a response proof that arrives after its response.
const SEAL_TIMEOUT: Duration = Duration::from_secs(10);

/// The reply to one message.
#[derive(Debug)]
pub enum TransportReply {
    /// A whole message, the time of its last byte, and the session's signed response proof.
    Message(Vec<u8>, Instant, Option<String>),
    /// A message longer than any valid one: the bytes that were announced or received.
    Oversized(u64),
    /// No message, for this reason as text.
    Failed(String),
}

/// Carries messages to one executor.
pub trait Transport: Send + Sync {
    /// Sends one message and reads the reply. `begun` is called with the time of the first byte sent, before anything
    /// is read. It returns the number of bytes that may be read.
    fn send<'a>(
        &'a self,
        message: Bytes,
        begun: Box<dyn FnOnce(Instant) -> usize + Send + 'a>,
    ) -> BoxFuture<'a, TransportReply>;
}

/// Carries messages through a sealed session.
#[derive(Clone, Copy, Debug)]
pub struct SessionTransport<'a> {
    /// The sealed session with the executor.
    pub line: &'a SealedSession,
    /// The path at which the executor takes challenges.
    pub path: &'static str,
}

impl Transport for SessionTransport<'_> {
    fn send<'a>(
        &'a self,
        message: Bytes,
        begun: Box<dyn FnOnce(Instant) -> usize + Send + 'a>,
    ) -> BoxFuture<'a, TransportReply> {
        Box::pin(async move {
            match send_through(*self, message, begun).await {
                Ok(said) => said,
                Err(words) => TransportReply::Failed(words),
            }
        })
    }
}

async fn send_through(
    way: SessionTransport<'_>,
    message: Bytes,
    begun: Box<dyn FnOnce(Instant) -> usize + Send + '_>,
) -> Result<TransportReply, String> {
    let line = way.line;
    let question = SealedRequest {
        method: Method::POST,
        path: way.path.to_owned(),
        body: message,
        client: None,
        client_nonce: None,
        gateway_nonce: draw_nonce().map_err(|error| error.to_string())?,
    };
    // Drops the time that an earlier question left.
    let _ = line.take_first_write();
    let handed_over = Instant::now();
    let answer = line.send(&question).await;
    let most = begun(line.take_first_write().unwrap_or(handed_over));
    let answer = answer.map_err(|error| Causes(&error).to_string())?;
    let status = answer.response.status();
    let length = answer.response.headers().get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let bound = if status.is_success() {
        most
    } else {
        MAX_ERROR_BYTES
    };
    let too_much = |bytes: u64| bytes > u64::try_from(bound).unwrap_or(u64::MAX);
    if status.is_success()
        && let Some(length) = length.filter(|length| too_much(*length))
    {
        return Ok(TransportReply::Oversized(length));
    }
    let mut body = answer.response.into_body();
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| format!("its answer broke off: {error}"))?;
        let Ok(data) = frame.into_data() else { continue };
        let came = bytes.len().saturating_add(data.len());
        if came > bound {
            if status.is_success() {
                return Ok(TransportReply::Oversized(u64::try_from(came).unwrap_or(u64::MAX)));
            }
            break;
        }
        bytes.extend_from_slice(&data);
    }
    let arrived = Instant::now();
    if !status.is_success() {
        let words = String::from_utf8_lossy(&bytes);
        return Ok(TransportReply::Failed(format!(
            "its program answered {status}: {words}"
        )));
    }
    drop(body);
    // The clock has stopped with the last byte, so checking the signature costs the executor no time.
    let seen = answer
        .received
        .await
        .map_err(|_| "its answer was not seen to end".to_owned())?;
    let verdict = tokio::time::timeout(SEAL_TIMEOUT, line.check_proof(&seen, &answer.sent)).await;
    let verdict = verdict.map_err(|_| "nobody signed its answer".to_owned())?;
    let (_, envelope) = verdict.map_err(|unproven| format!("its answer is not sealed: {unproven}"))?;
    Ok(TransportReply::Message(bytes, arrived, Some(envelope.to_text())))
}

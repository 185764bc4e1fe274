//! WebSockets pass through: both directions as bytes, each hashed, the two signed as one exchange when it ends.
//!
//! Input is what the client sent after the upgrade, output what the engine did; nobody looks at frames. The proof is fetched
//! from `/.well-known/muster/proofs`, since nothing of ours may stand between a websocket's bytes.

use std::io;
use std::pin::pin;

use bytes::Bytes;
use http::header::{CONNECTION, UPGRADE};
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use muster_protocol::Digest;
use muster_response_proof::StreamEnd;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep_until, timeout};

use crate::answer::Answer;
use crate::exchange::Line;
use crate::headers::{end_to_end, signed_content_type, to_engine, upgrades_to};
use crate::limits::Limits;
use crate::open::Open;
use crate::seal::{Client, Seal};
use muster_openai::BodyKind;

/// Bytes that wait, of each direction.
const BUFFER: usize = 16 * 1024;

/// Asks the engine for the same upgrade, and joins the two connections if it agrees.
pub(crate) async fn answer(seal: &Seal, mut head: Parts, open: Open) -> Response<Answer> {
    let client = head.extensions.remove::<OnUpgrade>();
    to_engine(&mut head.headers);
    head.headers
        .insert(CONNECTION, HeaderValue::from_static("upgrade"));
    head.headers
        .insert(UPGRADE, HeaderValue::from_static("websocket"));
    let request = Request::from_parts(head, Full::<Bytes>::default());
    let answered = match seal.ask(request).await {
        Ok(answered) => answered,
        Err(unanswered) => return seal.fail(open, &unanswered),
    };
    let agreed =
        answered.status() == StatusCode::SWITCHING_PROTOCOLS && upgrades_to(answered.headers(), "websocket");
    let Some(client) = client.filter(|_| agreed) else {
        // Whatever it says instead is an answer like any other.
        let client = Client {
            http2: false,
            trailers: false,
        };
        return seal.pass_on(answered, open, client).await;
    };
    let (mut head, engine) = answered.into_parts();
    end_to_end(&mut head.headers);
    head.headers
        .insert(CONNECTION, HeaderValue::from_static("upgrade"));
    head.headers
        .insert(UPGRADE, HeaderValue::from_static("websocket"));
    let mut open = open;
    let content_type = signed_content_type(&mut head.headers);
    open.head(head.status.as_u16(), content_type, BodyKind::Other);
    let limits = *seal.limits();
    seal.tasks().spawn("websocket", async move {
        let (Ok(client), Some(engine)) = (client.await, engine.into_upgraded()) else {
            // Dropping it signs that the client went away.
            return;
        };
        join(client, engine, open, &limits).await;
    });
    Response::from_parts(head, Answer::from(Full::default()))
}

/// Passes bytes both ways until one side ends.
async fn join(client: Upgraded, (engine, said): (Line, Bytes), open: Open, limits: &Limits) {
    let (from_client, to_client) = tokio::io::split(TokioIo::new(client));
    let (from_engine, to_engine) = tokio::io::split(engine);
    let from_engine = said.as_ref().chain(from_engine);
    let sealer = std::sync::Arc::clone(open.sealer());
    let heard = Mutex::new(Instant::now());
    let mut input = Sha256::new();
    let open = Mutex::new(open);
    let end = {
        let up = pin!(copy(from_client, to_engine, limits, |bytes| {
            input.update(bytes);
            hear(&heard);
        }));
        let down = pin!(copy(from_engine, to_client, limits, |bytes| {
            open.lock().pass(bytes);
            hear(&heard);
        }));
        tokio::select! {
            biased;
            done = down => match done {
                Ok(()) => StreamEnd::Completed,
                Err(Side::From) => StreamEnd::EngineFailed,
                Err(Side::To) => StreamEnd::ClientGone,
            },
            done = up => match done {
                Ok(()) | Err(Side::From) => StreamEnd::ClientGone,
                Err(Side::To) => StreamEnd::EngineFailed,
            },
            () = sealer.closing().cancelled() => StreamEnd::SessionClosed,
            () = silence(&heard, limits) => StreamEnd::EngineSilent,
        }
    };
    let mut open = open.into_inner();
    open.input(Digest::from_bytes(input.finalize().into()));
    open.finish(end);
}

fn hear(heard: &Mutex<Instant>) {
    *heard.lock() = Instant::now();
}

/// Ends once neither side has said anything for too long.
async fn silence(heard: &Mutex<Instant>, limits: &Limits) {
    loop {
        let deadline = *heard.lock() + limits.silence;
        if deadline <= Instant::now() {
            return;
        }
        sleep_until(deadline).await;
    }
}

/// On which side a direction broke.
enum Side {
    From,
    To,
}

async fn copy<R, W>(mut from: R, mut to: W, limits: &Limits, mut each: impl FnMut(&[u8])) -> Result<(), Side>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = from.read(&mut buffer).await.map_err(|_| Side::From)?;
        let bytes = buffer.get(..length).unwrap_or_default();
        if bytes.is_empty() {
            // The other side is to hear of it; it may have gone already.
            let _ = to.shutdown().await;
            return Ok(());
        }
        each(bytes);
        let written = timeout(limits.stall, to.write_all(bytes)).await;
        written
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|_| Side::To)?;
    }
}

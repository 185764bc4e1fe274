//! WebSockets: both directions pass as bytes, each is hashed, and the two are signed as one exchange at the end.
//!
//! The input is what the client sent after the upgrade, the output is what the engine sent; frames are not read. The
//! client fetches the proof from `/.well-known/muster/proofs`, as nothing may be inserted between a WebSocket's bytes.

use std::io;
use std::pin::pin;

use bytes::Bytes;
use http::header::{CONNECTION, UPGRADE};
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use muster_http::http1::ByteStream;
use muster_openai::BodyKind;
use muster_protocol::Digest;
use muster_response_proof::headers::{
    prepare_for_engine, remove_hop_by_hop, take_signed_content_type, upgrades_to,
};
use muster_response_proof::{Limits, StreamEnd};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep_until, timeout};

use crate::client_body::SealedBody;
use crate::pending_response::PendingResponse;
use crate::proxy::{ClientFeatures, SealingProxy};

/// Bytes of the buffer of each direction.
const BUFFER: usize = 16 * 1024;

/// Requests the same upgrade of the engine, and joins the two connections if the engine agrees.
pub(crate) async fn answer(
    proxy: &SealingProxy,
    mut head: Parts,
    mut response: PendingResponse,
) -> Response<SealedBody> {
    let client = head.extensions.remove::<OnUpgrade>();
    prepare_for_engine(&mut head.headers);
    head.headers
        .insert(CONNECTION, HeaderValue::from_static("upgrade"));
    head.headers
        .insert(UPGRADE, HeaderValue::from_static("websocket"));
    let request = Request::from_parts(head, Full::<Bytes>::default());
    let answered = match proxy.send_to_engine(request).await {
        Ok(answered) => answered,
        Err(failure) => return proxy.sign_failure(response, &failure),
    };
    let agreed =
        answered.status() == StatusCode::SWITCHING_PROTOCOLS && upgrades_to(answered.headers(), "websocket");
    let Some(client) = client.filter(|_| agreed) else {
        // Another response of the engine is passed on like any other.
        let client = ClientFeatures {
            http2: false,
            trailers: false,
            hides_usage: false,
        };
        return proxy.pass_response(answered, response, client).await;
    };
    let (mut head, engine) = answered.into_parts();
    remove_hop_by_hop(&mut head.headers);
    head.headers
        .insert(CONNECTION, HeaderValue::from_static("upgrade"));
    head.headers
        .insert(UPGRADE, HeaderValue::from_static("websocket"));
    let content_type = take_signed_content_type(&mut head.headers);
    response.set_head(head.status.as_u16(), content_type, BodyKind::Other);
    let limits = *proxy.limits();
    proxy.tasks().spawn("websocket", async move {
        let (Ok(client), Some(engine)) = (client.await, engine.into_upgraded()) else {
            // Dropping the response signs that the client went away.
            return;
        };
        join(client, engine, response, &limits).await;
    });
    Response::from_parts(head, SealedBody::from(Full::default()))
}

/// Passes bytes both ways until one side ends.
async fn join(
    client: Upgraded,
    (engine, first): (ByteStream, Bytes),
    response: PendingResponse,
    limits: &Limits,
) {
    let (from_client, to_client) = tokio::io::split(TokioIo::new(client));
    let (from_engine, to_engine) = tokio::io::split(engine);
    let from_engine = first.as_ref().chain(from_engine);
    let signer = std::sync::Arc::clone(response.signer());
    let last_read = Mutex::new(Instant::now());
    let mut input = Sha256::new();
    let response = Mutex::new(response);
    let end = {
        let up = pin!(copy(from_client, to_engine, limits, |bytes| {
            input.update(bytes);
            note_read(&last_read);
        }));
        let down = pin!(copy(from_engine, to_client, limits, |bytes| {
            response.lock().pass(bytes);
            note_read(&last_read);
        }));
        tokio::select! {
            biased;
            done = down => match done {
                Ok(()) => StreamEnd::Completed,
                Err(BrokenSide::From) => StreamEnd::EngineFailed,
                Err(BrokenSide::To) => StreamEnd::ClientGone,
            },
            done = up => match done {
                Ok(()) | Err(BrokenSide::From) => StreamEnd::ClientGone,
                Err(BrokenSide::To) => StreamEnd::EngineFailed,
            },
            () = signer.closing().cancelled() => StreamEnd::SessionClosed,
            () = wait_silence(&last_read, limits) => StreamEnd::EngineSilent,
        }
    };
    let mut response = response.into_inner();
    response.set_input(Digest::from_bytes(input.finalize().into()));
    response.finish(end);
}

fn note_read(last_read: &Mutex<Instant>) {
    *last_read.lock() = Instant::now();
}

/// Waits until neither side has sent anything for as long as the limit.
async fn wait_silence(last_read: &Mutex<Instant>, limits: &Limits) {
    loop {
        let deadline = *last_read.lock() + limits.silence;
        if deadline <= Instant::now() {
            return;
        }
        sleep_until(deadline).await;
    }
}

/// The side on which a direction broke.
enum BrokenSide {
    From,
    To,
}

/// Copies one direction to its end. `each` gets every piece before it is written.
async fn copy<R, W>(
    mut from: R,
    mut to: W,
    limits: &Limits,
    mut each: impl FnMut(&[u8]),
) -> Result<(), BrokenSide>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = from.read(&mut buffer).await.map_err(|_| BrokenSide::From)?;
        let bytes = buffer.get(..length).unwrap_or_default();
        if bytes.is_empty() {
            // The receiver learns of the end, unless it has gone.
            let _ = to.shutdown().await;
            return Ok(());
        }
        each(bytes);
        let written = timeout(limits.stall, to.write_all(bytes)).await;
        written
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|_| BrokenSide::To)?;
    }
}

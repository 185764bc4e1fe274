//! `GET /health` and `POST /v1/grade`, over HTTP/1.1.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use muster_hardware_proof::prover::{Prover, ProverError};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::{JoinSet, spawn_blocking};

use crate::{Answer, Grader, Refused};

/// No message of a validator's is longer.
const MOST_BYTES: usize = 4_096;

/// Serves on a Unix socket for ever. A file that an earlier process left there goes first.
///
/// # Errors
/// The socket cannot be made, or fails.
pub async fn on_socket<P>(path: &Path, grader: Arc<Grader<P>>) -> std::io::Result<()>
where
    P: Prover + Send + 'static,
{
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let listener = UnixListener::bind(path)?;
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await?;
        take(&mut connections, stream, &grader);
    }
}

/// Serves on a port for ever.
///
/// # Errors
/// The listener failed.
pub async fn on_port<P>(listener: TcpListener, grader: Arc<Grader<P>>) -> std::io::Result<()>
where
    P: Prover + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await?;
        // A commitment is small, and its time is measured.
        stream.set_nodelay(true)?;
        take(&mut connections, stream, &grader);
    }
}

fn take<P, S>(connections: &mut JoinSet<()>, stream: S, grader: &Arc<Grader<P>>)
where
    P: Prover + Send + 'static,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // Those that have ended.
    while connections.try_join_next().is_some() {}
    let grader = Arc::clone(grader);
    let service = service_fn(move |request| {
        let grader = Arc::clone(&grader);
        async move { Ok::<_, Infallible>(answer(request, grader).await) }
    });
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    connections.spawn(async move {
        // Who broke off gets no answer; the seal says so in its proof.
        let _ = connection.await;
    });
}

async fn answer<P>(request: Request<Incoming>, grader: Arc<Grader<P>>) -> Response<Full<Bytes>>
where
    P: Prover + Send + 'static,
{
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/health") => said(StatusCode::OK, &json!({"status": "ok"})),
        (&Method::POST, "/v1/grade") => match Limited::new(request.into_body(), MOST_BYTES).collect().await {
            Ok(body) => grade(body.to_bytes(), grader).await,
            Err(_) => failed(
                StatusCode::PAYLOAD_TOO_LARGE,
                &format!("a message is whole and of at most {MOST_BYTES} bytes"),
            ),
        },
        (_, "/health" | "/v1/grade") => failed(StatusCode::METHOD_NOT_ALLOWED, "GET /health, POST /v1/grade"),
        (_, _) => failed(StatusCode::NOT_FOUND, "there are GET /health and POST /v1/grade"),
    }
}

/// Dropped when the response is no longer waited for: the work ends soon after.
struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

async fn grade<P>(message: Bytes, grader: Arc<Grader<P>>) -> Response<Full<Bytes>>
where
    P: Prover + Send + 'static,
{
    let waiting = Waiting(Arc::default());
    let called_off = Arc::clone(&waiting.0);
    let work = spawn_blocking(move || grader.answer(&message, &called_off));
    let answered = work.await;
    drop(waiting);
    match answered {
        Ok(Ok(Answer::Message(bytes))) => {
            let mut response = Response::new(Full::from(bytes));
            let kind = HeaderValue::from_static("application/octet-stream");
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        }
        Ok(Ok(Answer::Judged(_))) => {
            let mut response = Response::new(Full::default());
            *response.status_mut() = StatusCode::NO_CONTENT;
            response
        }
        Ok(Err(refused)) => failed(status(&refused), &refused.to_string()),
        Err(_) => failed(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the prover has a defect; its message is in the job's output",
        ),
    }
}

fn status(refused: &Refused) -> StatusCode {
    match refused {
        Refused::Conversation(_) => StatusCode::BAD_REQUEST,
        Refused::Busy => StatusCode::CONFLICT,
        Refused::Prover(ProverError::TooLarge(_)) => StatusCode::INSUFFICIENT_STORAGE,
        Refused::Prover(ProverError::Cancelled | ProverError::OutOfOrder(_)) => StatusCode::CONFLICT,
        Refused::Prover(ProverError::Device(_)) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn failed(status: StatusCode, reason: &str) -> Response<Full<Bytes>> {
    said(status, &json!({"error": reason}))
}

fn said(status: StatusCode, body: &serde_json::Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body.to_string()));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

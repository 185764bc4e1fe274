//! Serves `GET /health` and `POST /v1/grade` over HTTP/1.1.

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

use crate::{GraderRejection, GraderReply, GraderService};

/// The longest message of a validator, in bytes.
const MAX_MESSAGE_BYTES: usize = 4_096;

/// Serves on a Unix socket without end. Removes a file that an earlier process left there.
///
/// # Errors
/// The socket cannot be created, or fails.
pub async fn serve_socket<P>(path: &Path, grader: Arc<GraderService<P>>) -> std::io::Result<()>
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
        spawn_connection(&mut connections, stream, &grader);
    }
}

/// Serves on a port without end.
///
/// # Errors
/// The listener fails.
pub async fn serve_port<P>(listener: TcpListener, grader: Arc<GraderService<P>>) -> std::io::Result<()>
where
    P: Prover + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await?;
        // A commitment is small and its time is measured, so it must not wait for more data.
        stream.set_nodelay(true)?;
        spawn_connection(&mut connections, stream, &grader);
    }
}

fn spawn_connection<P, S>(connections: &mut JoinSet<()>, stream: S, grader: &Arc<GraderService<P>>)
where
    P: Prover + Send + 'static,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // Drops the connections that have ended.
    while connections.try_join_next().is_some() {}
    let grader = Arc::clone(grader);
    let service = service_fn(move |request| {
        let grader = Arc::clone(&grader);
        async move { Ok::<_, Infallible>(route_request(request, grader).await) }
    });
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    connections.spawn(async move {
        // A client that broke off gets no answer. The sealing proxy records that in its response proof.
        let _ = connection.await;
    });
}

async fn route_request<P>(request: Request<Incoming>, grader: Arc<GraderService<P>>) -> Response<Full<Bytes>>
where
    P: Prover + Send + 'static,
{
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/health") => json_response(StatusCode::OK, &json!({"status": "ok"})),
        (&Method::POST, "/v1/grade") => match Limited::new(request.into_body(), MAX_MESSAGE_BYTES)
            .collect()
            .await
        {
            Ok(body) => grade_message(body.to_bytes(), grader).await,
            Err(_) => error_response(
                StatusCode::PAYLOAD_TOO_LARGE,
                &format!("a message must be whole and have at most {MAX_MESSAGE_BYTES} bytes"),
            ),
        },
        (_, "/health" | "/v1/grade") => {
            error_response(StatusCode::METHOD_NOT_ALLOWED, "GET /health, POST /v1/grade")
        }
        (_, _) => error_response(
            StatusCode::NOT_FOUND,
            "this service has GET /health and POST /v1/grade",
        ),
    }
}

/// Cancels the work when the response is no longer waited for, because the request's future is dropped then.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

async fn grade_message<P>(message: Bytes, grader: Arc<GraderService<P>>) -> Response<Full<Bytes>>
where
    P: Prover + Send + 'static,
{
    let waiting = CancelOnDrop(Arc::default());
    let called_off = Arc::clone(&waiting.0);
    let work = spawn_blocking(move || grader.handle_message(&message, &called_off));
    let answered = work.await;
    drop(waiting);
    match answered {
        Ok(Ok(GraderReply::Message(bytes))) => {
            let mut response = Response::new(Full::from(bytes));
            let kind = HeaderValue::from_static("application/octet-stream");
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        }
        Ok(Ok(GraderReply::Judged(_))) => {
            let mut response = Response::new(Full::default());
            *response.status_mut() = StatusCode::NO_CONTENT;
            response
        }
        Ok(Err(refused)) => error_response(status_of(&refused), &refused.to_string()),
        Err(_) => error_response(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the prover has a defect; its panic message is in the job's output",
        ),
    }
}

fn status_of(refused: &GraderRejection) -> StatusCode {
    match refused {
        GraderRejection::Conversation(_) => StatusCode::BAD_REQUEST,
        GraderRejection::Busy => StatusCode::CONFLICT,
        GraderRejection::Prover(ProverError::TooLarge(_)) => StatusCode::INSUFFICIENT_STORAGE,
        GraderRejection::Prover(ProverError::Cancelled | ProverError::OutOfOrder(_)) => StatusCode::CONFLICT,
        GraderRejection::Prover(ProverError::Device(_)) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn error_response(status: StatusCode, reason: &str) -> Response<Full<Bytes>> {
    json_response(status, &json!({"error": reason}))
}

fn json_response(status: StatusCode, body: &serde_json::Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body.to_string()));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

//! The requests below a signed URL of blocks: which are missing, one to write, one to read.

use std::mem;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{post, put};
use axum::{Json, Router};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use muster_checkpoints::BLOCK_BYTES;
use muster_checkpoints::manifest::MAX_MANIFEST_BYTES;
use muster_process::SharedClock;
use muster_process::error::Causes;
use muster_protocol::rest::Detail;
use muster_protocol::wire::checkpoints::{BlockList, MAX_BLOCK_LIST};
use muster_protocol::{Digest, JobId};

use crate::checkpoint_blocks::block_grant::BlockQuery;
use crate::checkpoint_blocks::service::{BlockStoreError, CheckpointService, PermittedRequest};
use crate::checkpoint_blocks::upload_permits::{TooSlow, UploadPace};

/// The longest body: a block, or a manifest, which is stored as one.
const MAX_BODY: usize = {
    assert!(MAX_MANIFEST_BYTES as u64 == BLOCK_BYTES);
    MAX_MANIFEST_BYTES
};

/// The pieces in which a block is received.
const PIECE_BYTES: usize = 64 * 1024;

type Service = Arc<CheckpointService>;

/// The routes `/blocks/{job}/missing` and `/blocks/{job}/{block}`.
pub fn router(service: Service) -> Router {
    Router::new()
        .route("/blocks/{job}/missing", post(missing))
        .route("/blocks/{job}/{block}", put(write).get(read))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(service)
}

async fn permitted(
    service: &Service,
    job: &str,
    query: Result<Query<BlockQuery>, QueryRejection>,
    writes: bool,
) -> Result<PermittedRequest, BlockStoreError> {
    let job: JobId = job.parse().map_err(|_| BlockStoreError::NotFound)?;
    let Query(query) = query.map_err(|_| BlockStoreError::NotPermitted)?;
    service.find_permitted(job, &query, writes).await
}

fn read_digest(text: &str) -> Result<Digest, BlockStoreError> {
    let mut bytes = [0; 32];
    hex::decode_to_slice(text, &mut bytes).map_err(|_| BlockStoreError::NotFound)?;
    Ok(Digest::from_bytes(bytes))
}

async fn missing(
    State(service): State<Service>,
    job: Result<Path<String>, PathRejection>,
    query: Result<Query<BlockQuery>, QueryRejection>,
    asked: Result<Json<BlockList>, JsonRejection>,
) -> Result<Response, BlockStoreError> {
    let Path(job) = job.map_err(|_| BlockStoreError::NotFound)?;
    let request = permitted(&service, &job, query, true).await?;
    let Json(asked) = match asked {
        Ok(asked) if asked.blocks.len() <= MAX_BLOCK_LIST => asked,
        Ok(_) | Err(_) => {
            let detail = format!("ask for at most {MAX_BLOCK_LIST} blocks at a time, by their SHA-256");
            return Ok((StatusCode::BAD_REQUEST, Json(Detail { detail })).into_response());
        }
    };
    let blocks = service.find_missing(request.job, &asked.blocks).await?;
    Ok(Json(BlockList { blocks }).into_response())
}

async fn write(
    State(service): State<Service>,
    path: Result<Path<(String, String)>, PathRejection>,
    query: Result<Query<BlockQuery>, QueryRejection>,
    request: Request,
) -> Result<Response, BlockStoreError> {
    let Path((job, block)) = path.map_err(|_| BlockStoreError::NotFound)?;
    let block = read_digest(&block)?;
    let permitted = permitted(&service, &job, query, true).await?;
    // Before the body is read: the permits bound the blocks in memory.
    let _permit = service.uploads.acquire(&permitted.account).await;
    let content = receive(&service.clock, request.into_body()).await?;
    service.put(&permitted, block, content).await?;
    Ok(StatusCode::CREATED.into_response())
}

/// Reads the body of an upload, no slower than uploads may be. It comes in pieces of [`PIECE_BYTES`], the last one
/// shorter: one buffer that grows takes up to twice the memory of a block, and the pieces of the connection hold the
/// larger buffers that they were read into.
async fn receive(clock: &SharedClock, body: Body) -> Result<Vec<Bytes>, BlockStoreError> {
    let mut pieces = body.into_data_stream();
    let mut content = Vec::new();
    let mut filling = BytesMut::new();
    let mut received = 0_usize;
    let mut pace = UploadPace::new(clock.now());
    let mut judged = clock.sleep_until(pace.judged_at());
    loop {
        let piece = tokio::select! {
            // Bytes that have arrived count before the upload is judged.
            biased;
            piece = pieces.next() => piece,
            () = &mut judged => {
                pace.judge(clock.now())
                    .map_err(|TooSlow| BlockStoreError::TooSlow)?;
                judged = clock.sleep_until(pace.judged_at());
                continue;
            }
        };
        let Some(piece) = piece else {
            content.push(filling.freeze());
            return Ok(content);
        };
        let mut piece = piece.map_err(|error| BlockStoreError::Broken(Causes(&error).to_string()))?;
        pace.note(piece.len());
        received = received.saturating_add(piece.len());
        if received > MAX_BODY {
            return Err(BlockStoreError::TooLong);
        }
        while !piece.is_empty() {
            if filling.len() == PIECE_BYTES {
                content.push(mem::take(&mut filling).freeze());
            }
            if filling.is_empty() {
                filling.reserve(PIECE_BYTES);
            }
            let room = PIECE_BYTES.saturating_sub(filling.len()).min(piece.len());
            filling.extend_from_slice(&piece.split_to(room));
        }
    }
}

async fn read(
    State(service): State<Service>,
    path: Result<Path<(String, String)>, PathRejection>,
    query: Result<Query<BlockQuery>, QueryRejection>,
) -> Result<Response, BlockStoreError> {
    let Path((job, block)) = path.map_err(|_| BlockStoreError::NotFound)?;
    let block = read_digest(&block)?;
    let request = permitted(&service, &job, query, false).await?;
    let content = service.get(request.job, block).await?;
    let headers = [
        (
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/octet-stream"),
        ),
        (
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ),
    ];
    Ok((headers, content).into_response())
}

impl BlockStoreError {
    /// The HTTP status of the answer.
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::NotPermitted => StatusCode::FORBIDDEN,
            Self::Ended | Self::AttemptEnded => StatusCode::GONE,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::OtherContent(_) | Self::FalseLength(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Full | Self::AttemptFull(_) | Self::TooLong => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::Throttled(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::NoCheckpoint(..) | Self::Broken(_) => StatusCode::BAD_REQUEST,
            Self::BeingDropped | Self::Store(_) | Self::Storage(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl IntoResponse for BlockStoreError {
    fn into_response(self) -> Response {
        let detail = match &self {
            Self::Store(_) | Self::Storage(_) => {
                tracing::error!(error = %Causes(&self), "a request about a block failed");
                "The facilitator's file store does not answer; try again.".to_owned()
            }
            Self::NotPermitted
            | Self::Ended
            | Self::AttemptEnded
            | Self::NotFound
            | Self::OtherContent(_)
            | Self::FalseLength(_)
            | Self::Full
            | Self::AttemptFull(_)
            | Self::TooSlow
            | Self::TooLong
            | Self::Broken(_)
            | Self::BeingDropped
            | Self::Throttled(_)
            | Self::NoCheckpoint(..) => self.to_string(),
        };
        (self.status(), Json(Detail { detail })).into_response()
    }
}

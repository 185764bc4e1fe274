//! Asks a file store for blocks, and sends it blocks, below a signed URL.
//!
//! The URL is `{facilitator}/blocks/{job}?Expires=…&Signature=…`. A block lies at `…/blocks/{job}/{sha256}`, and
//! `POST …/blocks/{job}/missing` returns which of some blocks the store lacks.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use muster_process::backoff::Retryable;
use muster_process::{Backoff, SharedClock};
use muster_protocol::Digest;
use muster_protocol::wire::checkpoints::{BlockList, MAX_BLOCK_LIST};
use parking_lot::Mutex;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, Method, Response, StatusCode};
use url::Url;

/// How long a request may take, its block included: eight mebibytes at 35 KiB/s.
const REQUEST_LIMIT: Duration = Duration::from_secs(240);

/// How often a block is asked for again whose content was another one: an intermediary may have spoilt it on the way.
const OTHER_CONTENT_RETRIES: u32 = 2;

/// The longest answer to a question about blocks, in bytes.
const MAX_ANSWER: usize = 256 * 1024;

/// A file store could not be asked, or refused.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// The signed URL cannot have paths below it.
    #[error("the address of the checkpoint's blocks is not valid")]
    Address,
    /// The store cannot be reached, or broke off.
    #[error("the file store does not answer")]
    Unreachable(#[source] reqwest::Error),
    /// The store refused for good.
    #[error("the file store refused with {status}: {detail}")]
    Refused {
        /// The HTTP status.
        status: StatusCode,
        /// The store's own words, shortened.
        detail: String,
    },
    /// The store sent something else than the block.
    #[error("the file store sent another content than that of block {0}")]
    OtherContent(Digest),
    /// The store's answer cannot be read.
    #[error("the file store's answer cannot be read")]
    Answer,
}

/// Makes a client for the store's address as it is now; `None` if the address cannot be used now.
pub type ClientMaker = Arc<dyn Fn() -> BoxFuture<'static, Option<Client>> + Send + Sync>;

/// The blocks of one job in a file store.
#[derive(Clone)]
pub struct BlockClient {
    /// Clones share it, so that one of them finds a moved store for all.
    client: Arc<Mutex<Client>>,
    renew: Option<ClientMaker>,
    base: Url,
    pauses: Backoff,
    clock: SharedClock,
}

impl fmt::Debug for BlockClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The query is a permission.
        f.debug_struct("BlockClient")
            .field("path", &self.base.path())
            .finish_non_exhaustive()
    }
}

/// The answer that a request wants.
#[derive(Clone, Copy, Debug)]
struct WantedAnswer {
    /// The most bytes.
    limit: usize,
    /// The digest of the content; `None` for an answer that is no block.
    block: Option<Digest>,
}

impl BlockClient {
    /// The blocks below a signed URL. `client` decides which addresses may be reached.
    ///
    /// # Errors
    /// The URL cannot have paths below it.
    pub fn new(client: Client, base: Url, clock: SharedClock) -> Result<Self, BlockError> {
        if base.cannot_be_a_base() || !matches!(base.scheme(), "http" | "https") {
            return Err(BlockError::Address);
        }
        Ok(Self {
            client: Arc::new(Mutex::new(client)),
            renew: None,
            base,
            pauses: Backoff::OUTAGE,
            clock,
        })
    }

    /// Replaces the pauses between tries.
    #[must_use]
    pub fn with_pauses(self, pauses: Backoff) -> Self {
        Self { pauses, ..self }
    }

    /// Makes a new client after each failure to reach the store, for a client that is bound to one address.
    #[must_use]
    pub fn with_renewal(self, renew: ClientMaker) -> Self {
        Self {
            renew: Some(renew),
            ..self
        }
    }

    /// Those of the blocks that the store lacks, in the order given.
    ///
    /// # Errors
    /// See [`BlockError`].
    pub async fn find_missing(&self, blocks: &[Digest]) -> Result<Vec<Digest>, BlockError> {
        let mut missing = Vec::new();
        for chunk in blocks.chunks(MAX_BLOCK_LIST) {
            let asked = BlockList {
                blocks: chunk.to_vec(),
            };
            let body = Bytes::from(serde_json::to_vec(&asked).map_err(|_| BlockError::Answer)?);
            let answer = self
                .send(Method::POST, "missing", body, WantedAnswer::SHORT)
                .await?;
            let lacking: BlockList = serde_json::from_slice(&answer).map_err(|_| BlockError::Answer)?;
            missing.extend(lacking.blocks.into_iter().filter(|block| chunk.contains(block)));
        }
        Ok(missing)
    }

    /// Stores a block.
    ///
    /// # Errors
    /// See [`BlockError`].
    pub async fn put(&self, block: Digest, content: Bytes) -> Result<(), BlockError> {
        let answer = self
            .send(Method::PUT, &block.hex(), content, WantedAnswer::SHORT)
            .await;
        answer.map(drop)
    }

    /// Reads a block of at most `limit` bytes, and checks that it is the one.
    ///
    /// # Errors
    /// See [`BlockError`].
    pub async fn get(&self, block: Digest, limit: u64) -> Result<Bytes, BlockError> {
        let wanted = WantedAnswer {
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
            block: Some(block),
        };
        self.send(Method::GET, &block.hex(), Bytes::new(), wanted).await
    }

    /// Makes a request, and repeats it after failures that pass.
    async fn send(
        &self,
        method: Method,
        name: &str,
        body: Bytes,
        wanted: WantedAnswer,
    ) -> Result<Bytes, BlockError> {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| BlockError::Address)?
            .pop_if_empty()
            .push(name);
        let store_lost = AtomicBool::new(false);
        let attempt = || async {
            if let (true, Some(renew)) = (store_lost.load(Ordering::Relaxed), &self.renew)
                && let Some(client) = renew().await
            {
                *self.client.lock() = client;
            }
            let answer = self
                .try_once(&method, url.clone(), body.clone(), wanted.limit)
                .await;
            let unreachable = matches!(answer, Err(BlockError::Unreachable(_)));
            store_lost.store(unreachable, Ordering::Relaxed);
            match (answer?, wanted.block) {
                (content, Some(block)) if Digest::of(&content) != block => {
                    Err(BlockError::OtherContent(block))
                }
                (content, _) => Ok(content),
            }
        };
        self.pauses
            .retry(&self.clock, "exchange blocks with the file store", attempt)
            .await
    }

    async fn try_once(
        &self,
        method: &Method,
        url: Url,
        body: Bytes,
        limit: usize,
    ) -> Result<Bytes, BlockError> {
        let client = self.client.lock().clone();
        let request = client.request(method.clone(), url).timeout(REQUEST_LIMIT);
        let request = match *method {
            Method::GET => request,
            Method::POST => request.header(CONTENT_TYPE, "application/json").body(body),
            _ => request.body(body),
        };
        let answer = request.send().await.map_err(unreachable)?;
        let status = answer.status();
        if status.is_success() {
            return read_bounded(answer, limit).await;
        }
        let detail = read_bounded(answer, 4_096).await.unwrap_or_default();
        let detail = String::from_utf8_lossy(&detail);
        let printable = detail.chars().filter(|letter| !letter.is_control());
        Err(BlockError::Refused {
            status,
            detail: printable.take(300).collect(),
        })
    }
}

impl Retryable for BlockError {
    fn retries(&self) -> u32 {
        match self {
            Self::Unreachable(_) => Backoff::OUTAGE_RETRIES,
            Self::OtherContent(_) => OTHER_CONTENT_RETRIES,
            Self::Refused { status, .. } => match status.as_u16() {
                408 | 425 | 429 | 500 | 502 | 503 | 504 => Backoff::OUTAGE_RETRIES,
                _ => 0,
            },
            Self::Address | Self::Answer => 0,
        }
    }
}

impl WantedAnswer {
    const SHORT: Self = Self {
        limit: MAX_ANSWER,
        block: None,
    };
}

/// The error without its URL, whose query is a permission.
fn unreachable(error: reqwest::Error) -> BlockError {
    BlockError::Unreachable(error.without_url())
}

/// The body of an answer of at most `limit` bytes.
async fn read_bounded(answer: Response, limit: usize) -> Result<Bytes, BlockError> {
    let mut body = answer.bytes_stream();
    let mut read = BytesMut::new();
    while let Some(piece) = body.next().await {
        let piece = piece.map_err(unreachable)?;
        if read.len().saturating_add(piece.len()) > limit {
            return Err(BlockError::Answer);
        }
        read.extend_from_slice(&piece);
    }
    Ok(read.freeze())
}

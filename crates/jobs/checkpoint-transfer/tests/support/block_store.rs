//! A store of blocks in memory, as a facilitator serves it, which fails as often as a test prescribes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Path as UrlPath, State};
use axum::http::StatusCode;
use axum::routing::{post, put};
use axum::{Json, Router};
use bytes::Bytes;
use muster_checkpoint_transfer::BlockClient;
use muster_checkpoints::CheckpointManifest;
use muster_process::{Backoff, SharedClock, SystemClock, Tasks};
use muster_protocol::Digest;
use muster_protocol::wire::checkpoints::{BlockList, CheckpointNotice};
use parking_lot::Mutex;
use tokio::sync::RwLock;

/// A store of blocks in memory that fails as often as it is set to.
#[derive(Clone, Default)]
pub(crate) struct BlockStore {
    pub(crate) blocks: Arc<Mutex<BTreeMap<Digest, Bytes>>>,
    pub(crate) failures: Arc<AtomicU32>,
    pub(crate) puts: Arc<AtomicU32>,
    /// Reads that give another content than the block's.
    pub(crate) spoilt: Arc<AtomicU32>,
    /// Blocks wait while a test holds this for writing.
    pub(crate) gate: Arc<RwLock<()>>,
    /// Blocks that have come as far as the gate.
    pub(crate) arrived: Arc<AtomicU32>,
}

/// Takes one of what is left, if any is.
fn use_up(left: &AtomicU32) -> bool {
    let used = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
    used.is_ok()
}

impl BlockStore {
    fn fails(&self) -> bool {
        use_up(&self.failures)
    }

    /// Serves the store. Returns the URL below which its blocks are.
    pub(crate) async fn listen(&self, tasks: &Tasks) -> String {
        async fn missing(
            State(store): State<BlockStore>,
            Json(asked): Json<BlockList>,
        ) -> Result<Json<BlockList>, StatusCode> {
            if store.fails() {
                return Err(StatusCode::SERVICE_UNAVAILABLE);
            }
            let known = store.blocks.lock();
            let blocks = asked
                .blocks
                .into_iter()
                .filter(|block| !known.contains_key(block))
                .collect();
            Ok(Json(BlockList { blocks }))
        }
        async fn write(
            State(store): State<BlockStore>,
            UrlPath(block): UrlPath<String>,
            content: Bytes,
        ) -> StatusCode {
            store.arrived.fetch_add(1, Ordering::SeqCst);
            drop(store.gate.read().await);
            if store.fails() {
                return StatusCode::SERVICE_UNAVAILABLE;
            }
            let digest = Digest::of(&content);
            if digest.hex() != block {
                return StatusCode::UNPROCESSABLE_ENTITY;
            }
            store.puts.fetch_add(1, Ordering::SeqCst);
            store.blocks.lock().insert(digest, content);
            StatusCode::CREATED
        }
        async fn read(
            State(store): State<BlockStore>,
            UrlPath(block): UrlPath<String>,
        ) -> Result<Bytes, StatusCode> {
            if use_up(&store.spoilt) {
                return Ok(Bytes::from_static(b"spoilt"));
            }
            let known = store.blocks.lock();
            let found = known.iter().find(|(digest, _)| digest.hex() == block);
            found
                .map(|(_, content)| content.clone())
                .ok_or(StatusCode::NOT_FOUND)
        }
        let router = Router::new()
            .route("/blocks/j/missing", post(missing))
            .route("/blocks/j/{block}", put(write).get(read))
            .layer(DefaultBodyLimit::max(16 << 20))
            .with_state(self.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!(
            "http://{}/blocks/j?Expires=1&Signature=2",
            listener.local_addr().unwrap()
        );
        drop(tasks.spawn("store", async move { axum::serve(listener, router).await }));
        base
    }

    /// Serves the store to a client that is not patient.
    pub(crate) async fn serve(&self, tasks: &Tasks) -> BlockClient {
        let base = self.listen(tasks).await;
        let clock: SharedClock = Arc::new(SystemClock::default());
        muster_process::tls::install_provider();
        BlockClient::new(reqwest::Client::new(), base.parse().unwrap(), clock)
            .unwrap()
            .with_pauses(Backoff {
                base: Duration::from_millis(1),
                max: Duration::from_millis(2),
            })
    }

    fn manifest(&self, notice: &CheckpointNotice) -> CheckpointManifest {
        CheckpointManifest::read(&self.blocks.lock()[&notice.manifest]).unwrap()
    }

    /// The content of a file of a checkpoint.
    pub(crate) fn content(&self, notice: &CheckpointNotice, path: &str) -> Vec<u8> {
        let manifest = self.manifest(notice);
        let entry = manifest
            .entries()
            .iter()
            .find(|entry| entry.path.as_str() == path)
            .unwrap();
        let blocks = &entry.file.as_ref().unwrap().blocks;
        let known = self.blocks.lock();
        blocks.iter().flat_map(|block| known[block].to_vec()).collect()
    }
}

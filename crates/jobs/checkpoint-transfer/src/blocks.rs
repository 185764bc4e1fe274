//! The blocks of a checkpoint: each is read once, hashed, and sent if the file store lacks it, while the next are read.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use muster_checkpoints::manifest::FileBlocks;
use muster_checkpoints::{BLOCK_BYTES, CheckpointManifest, FileTree, ManifestEntry, ManifestError};
use muster_protocol::Digest;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;

use crate::block_client::{BlockClient, BlockError};
use crate::source::CheckpointSource;

/// Blocks that are sent at one time.
const SENT_AT_ONCE: usize = 3;

/// Blocks that one question to the store names at most. It names fewer while reading is slower than asking.
const ASKED_TOGETHER: usize = 4;

/// Questions to the store that wait for their answer at one time.
const ASKED_AT_ONCE: usize = 2;

/// Blocks that are hashed at one time.
const HASHED_AT_ONCE: usize = 2;

/// Blocks in memory at one time: read, and neither sent nor found in the store. 64 MiB.
const HELD_AT_ONCE: usize = 8;

/// A checkpoint could not be sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// A file of it cannot be read.
    #[error("the checkpoint cannot be read")]
    Read(#[from] io::Error),
    /// It cannot have a manifest.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The file store did not take it.
    #[error(transparent)]
    Store(#[from] BlockError),
    /// The work on it was broken off.
    #[error("the work on the checkpoint was broken off")]
    Interrupted,
}

/// A checkpoint whose blocks are in the store. Without its manifest nobody finds them there.
#[derive(Clone, Debug)]
pub struct SentBlocks {
    /// The files and blocks that were read.
    pub manifest: CheckpointManifest,
    /// The bytes that the store lacked.
    pub sent: u64,
}

/// A block that was read.
struct ReadBlock {
    content: Bytes,
    /// Goes back with the content, so that the reader may read on.
    _place: OwnedSemaphorePermit,
}

/// A block that was read and hashed, and is not in the store yet.
struct HeldBlock {
    digest: Digest,
    read: ReadBlock,
}

/// Reads the files of `tree` out of `source`, and sends the blocks that the store lacks.
///
/// # Errors
/// See [`SendError`].
pub async fn send_blocks(
    source: Arc<CheckpointSource>,
    tree: Arc<FileTree>,
    store: &BlockClient,
) -> Result<SentBlocks, SendError> {
    let (sender, held) = unbounded_channel();
    let mut reader = BlockReader {
        places: Arc::new(Semaphore::new(HELD_AT_ONCE)),
        runtime: Handle::current(),
        held: sender,
        seen: HashSet::new(),
    };
    let reading = spawn_blocking(move || reader.read_all(&source, &tree));
    let sent = stream::unfold(held, |mut held| async move {
        let block: HeldBlock = held.recv().await?;
        Some((block, held))
    })
    .ready_chunks(ASKED_TOGETHER)
    .map(|blocks| keep_missing(store, blocks))
    .buffered(ASKED_AT_ONCE)
    .map_ok(|missing| stream::iter(missing.into_iter().map(Ok)))
    .try_flatten()
    .map_ok(|block| send_block(store, block))
    .try_buffer_unordered(SENT_AT_ONCE)
    .try_fold(0_u64, |sum, bytes| async move { Ok(sum.saturating_add(bytes)) })
    .await?;
    let manifest = reading.await.map_err(|_| SendError::Interrupted)??;
    Ok(SentBlocks { manifest, sent })
}

/// Those of the blocks that the store lacks.
async fn keep_missing(store: &BlockClient, blocks: Vec<HeldBlock>) -> Result<Vec<HeldBlock>, SendError> {
    let asked: Vec<Digest> = blocks.iter().map(|block| block.digest).collect();
    let missing = store.find_missing(&asked).await?;
    let missing = blocks.into_iter().filter(|block| missing.contains(&block.digest));
    Ok(missing.collect())
}

/// Sends one block, and returns its length.
async fn send_block(store: &BlockClient, block: HeldBlock) -> Result<u64, SendError> {
    let content = &block.read.content;
    store.put(block.digest, content.clone()).await?;
    Ok(u64::try_from(content.len()).unwrap_or(u64::MAX))
}

/// Reads a checkpoint on a thread of its own, no faster than its blocks are sent.
struct BlockReader {
    places: Arc<Semaphore>,
    runtime: Handle,
    held: UnboundedSender<HeldBlock>,
    /// The blocks that were handed over; one that comes again, for example of zeros, is not.
    seen: HashSet<Digest>,
}

impl BlockReader {
    fn read_all(
        &mut self,
        source: &CheckpointSource,
        tree: &FileTree,
    ) -> Result<CheckpointManifest, SendError> {
        let mut entries = Vec::with_capacity(tree.entries().len());
        for (number, entry) in tree.entries().iter().enumerate() {
            let file = match entry.is_folder {
                true => None,
                false => Some(self.read_file(source.file(number, entry)?, entry.size)?),
            };
            entries.push(ManifestEntry {
                path: entry.path.clone(),
                mode: entry.mode,
                file,
            });
        }
        Ok(CheckpointManifest::new(entries)?)
    }

    /// Reads a file to the end that it had when it was looked at: it may grow meanwhile.
    fn read_file(&mut self, mut file: File, size: u64) -> Result<FileBlocks, SendError> {
        let mut found = FileBlocks::default();
        loop {
            let read = self.read_blocks(&mut file, size.saturating_sub(found.size))?;
            if read.is_empty() {
                return Ok(found);
            }
            let digests = digest_each(&read)?;
            for (block, digest) in read.into_iter().zip(digests) {
                let bytes = u64::try_from(block.content.len()).unwrap_or(u64::MAX);
                found.size = found.size.saturating_add(bytes);
                found.blocks.push(digest);
                if self.seen.insert(digest) {
                    let block = HeldBlock { digest, read: block };
                    // Nobody receives any more once sending has failed.
                    self.held.send(block).map_err(|_| SendError::Interrupted)?;
                }
            }
        }
    }

    /// Reads the next blocks of a file that has `left` more bytes, as many as are hashed at one time.
    fn read_blocks(&self, file: &mut File, left: u64) -> Result<Vec<ReadBlock>, SendError> {
        let mut read = Vec::new();
        let mut left = left;
        while left > 0 && read.len() < HASHED_AT_ONCE {
            // Blocks that were seen are not handed over, so a file of holes would be read to its end for nobody.
            if self.held.is_closed() {
                return Err(SendError::Interrupted);
            }
            let wanted = BLOCK_BYTES.min(left);
            left -= wanted;
            let place = Arc::clone(&self.places).acquire_owned();
            let place = self.runtime.block_on(place);
            let place = place.map_err(|_| SendError::Interrupted)?;
            let mut content = Vec::with_capacity(usize::try_from(wanted).unwrap_or_default());
            file.by_ref().take(wanted).read_to_end(&mut content)?;
            if content.is_empty() {
                // It is shorter than it was.
                break;
            }
            read.push(ReadBlock {
                content: content.into(),
                _place: place,
            });
        }
        Ok(read)
    }
}

/// The digests of some blocks, each computed by a thread of its own: where the processor has no instructions for
/// SHA-256, one thread hashes less than a disk reads.
fn digest_each(blocks: &[ReadBlock]) -> Result<Vec<Digest>, SendError> {
    let Some((last, others)) = blocks.split_last() else {
        return Ok(Vec::new());
    };
    std::thread::scope(|scope| {
        let hashing: Vec<_> = others
            .iter()
            .map(|block| scope.spawn(|| Digest::of(&block.content)))
            .collect();
        let last = Digest::of(&last.content);
        let hashed = hashing.into_iter().map(std::thread::ScopedJoinHandle::join);
        let digests = hashed.chain(std::iter::once(Ok(last))).collect::<Result<_, _>>();
        digests.map_err(|_| SendError::Interrupted)
    })
}

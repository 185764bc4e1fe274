//! The blocks of a copied checkpoint: their digests, their manifest, and their way into the file store.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use muster_checkpoints::manifest::FileBlocks;
use muster_checkpoints::{BLOCK_BYTES, CheckpointManifest, FileTree, ManifestEntry, ManifestError};
use muster_protocol::Digest;
use tokio::task::spawn_blocking;

use crate::block_client::{BlockClient, BlockError};

/// Blocks that are sent at one time.
const SENT_AT_ONCE: usize = 3;

/// A checkpoint could not be sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// Its copy cannot be read.
    #[error("the copy of the checkpoint cannot be read")]
    Copy(#[from] io::Error),
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

/// The place of a block in a copied checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BlockPlace {
    path: PathBuf,
    offset: u64,
    length: u64,
}

/// A copied checkpoint with its manifest.
#[derive(Clone, Debug)]
pub struct PackedCheckpoint {
    /// Its files and blocks.
    pub manifest: CheckpointManifest,
    /// The places of its blocks; a block that stands in several places is read from the first.
    places: BTreeMap<Digest, BlockPlace>,
}

impl PackedCheckpoint {
    /// Reads a copied checkpoint, and makes its manifest. `tree` is the look that was copied. Blocks.
    ///
    /// # Errors
    /// A file cannot be read, or the checkpoint is too large for a manifest.
    pub fn read(copy: &Path, tree: &FileTree) -> Result<Self, SendError> {
        let mut places = BTreeMap::new();
        let mut entries = Vec::with_capacity(tree.entries().len());
        for entry in tree.entries() {
            let path = copy.join(entry.path.as_str());
            let file = match entry.is_folder {
                true => None,
                false => Some(read_file(&path, &mut places)?),
            };
            entries.push(ManifestEntry {
                path: entry.path.clone(),
                mode: entry.mode,
                file,
            });
        }
        let manifest = CheckpointManifest::new(entries)?;
        Ok(Self { manifest, places })
    }

    /// Sends what the store lacks, and last the manifest. The checkpoint is whole there once this has succeeded.
    ///
    /// Returns the bytes that were sent.
    ///
    /// # Errors
    /// See [`SendError`].
    pub async fn send(&self, store: &BlockClient) -> Result<u64, SendError> {
        let all: Vec<Digest> = self.places.keys().copied().collect();
        let missing = store.find_missing(&all).await?;
        let mut sending = Vec::with_capacity(missing.len());
        for block in missing {
            if let Some(place) = self.places.get(&block) {
                sending.push(send_block(store.clone(), block, place.clone()));
            }
        }
        let sent = stream::iter(sending)
            .buffer_unordered(SENT_AT_ONCE)
            .try_fold(0_u64, |sum, length| async move { Ok(sum.saturating_add(length)) })
            .await?;
        let manifest = Bytes::from(self.manifest.to_bytes());
        store.put(Digest::of(&manifest), manifest).await?;
        Ok(sent)
    }
}

/// Sends one block, and returns its length.
async fn send_block(store: BlockClient, block: Digest, place: BlockPlace) -> Result<u64, SendError> {
    let length = place.length;
    let reading = spawn_blocking(move || place.read());
    let content = reading.await.map_err(|_| SendError::Interrupted)??;
    store.put(block, content).await?;
    Ok(length)
}

impl BlockPlace {
    fn read(&self) -> io::Result<Bytes> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.offset))?;
        let mut content = Vec::new();
        file.take(self.length).read_to_end(&mut content)?;
        Ok(content.into())
    }
}

fn read_file(path: &Path, places: &mut BTreeMap<Digest, BlockPlace>) -> io::Result<FileBlocks> {
    let mut file = File::open(path)?;
    let mut found = FileBlocks::default();
    let mut content = Vec::new();
    loop {
        content.clear();
        let read = file.by_ref().take(BLOCK_BYTES).read_to_end(&mut content)?;
        if read == 0 {
            return Ok(found);
        }
        let (block, length) = (Digest::of(&content), u64::try_from(read).unwrap_or(u64::MAX));
        places.entry(block).or_insert_with(|| BlockPlace {
            path: path.to_owned(),
            offset: found.size,
            length,
        });
        found.blocks.push(block);
        found.size = found.size.saturating_add(length);
    }
}

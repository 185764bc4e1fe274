//! Lays a checkpoint out: fetches its manifest and its blocks, and checks each of them before anything uses it.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use muster_checkpoints::manifest::MAX_MANIFEST_BYTES;
use muster_checkpoints::{BLOCK_BYTES, CheckpointManifest, ManifestEntry, ManifestError, TreeLimits};
use muster_protocol::Digest;
use reqwest::StatusCode;
use rustix::fs::statvfs;
use tokio::task::spawn_blocking;

use crate::block_client::{BlockClient, BlockError};

/// Blocks that are fetched at one time.
const FETCHED_AT_ONCE: usize = 3;

/// A checkpoint could not be laid out.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The store does not give a block, or gives another content.
    #[error("the checkpoint cannot be fetched")]
    Store(#[from] BlockError),
    /// The manifest is no manifest.
    #[error("the checkpoint's manifest is damaged")]
    Manifest(#[from] ManifestError),
    /// The checkpoint is larger than this machine takes.
    #[error("the checkpoint has {bytes} bytes in {entries} files and folders, more than this machine takes")]
    TooLarge {
        /// The bytes of all files.
        bytes: u64,
        /// Files and folders.
        entries: usize,
    },
    /// The manifest is that of a checkpoint of another name.
    #[error("the checkpoint's manifest names {found}, and not {wanted}")]
    OtherName {
        /// The name in the manifest.
        found: String,
        /// The name that the job's list of checkpoints states.
        wanted: String,
    },
    /// The disk cannot be written.
    #[error("the checkpoint cannot be written to this machine's disk")]
    Disk(#[from] io::Error),
    /// The work was broken off.
    #[error("laying out the checkpoint was broken off")]
    Interrupted,
}

/// The reader of a checkpoint that is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreReader<'a> {
    /// A job that has not started, whose folder nobody else reaches. Every user in the job may read and write, since
    /// the user that wrote the checkpoint may be another one there.
    Job,
    /// The user of this machine, who alone may write. The checkpoint has this name.
    User(&'a str),
}

/// The permission bits that a reader needs and may have, on top of those that an entry had when it was taken.
#[derive(Clone, Copy, Debug)]
struct ModeRule {
    allowed: u32,
    folder: u32,
    file: u32,
}

impl RestoreReader<'_> {
    const fn modes(self) -> ModeRule {
        match self {
            Self::Job => ModeRule {
                allowed: 0o777,
                folder: 0o777,
                file: 0o666,
            },
            Self::User(_) => ModeRule {
                allowed: 0o755,
                folder: 0o700,
                file: 0o600,
            },
        }
    }
}

/// A checkpoint that lies in its folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredCheckpoint {
    /// Its name in the folder.
    pub name: String,
    /// The bytes of all its files.
    pub bytes: u64,
}

impl RestoreError {
    /// Whether the data itself is damaged or gone, so that another machine cannot lay it out either.
    pub fn is_damaged_data(&self) -> bool {
        match self {
            Self::Store(BlockError::OtherContent(_)) | Self::Manifest(_) => true,
            Self::Store(BlockError::Refused { status, .. }) => *status == StatusCode::NOT_FOUND,
            Self::Store(_)
            | Self::TooLarge { .. }
            | Self::OtherName { .. }
            | Self::Disk(_)
            | Self::Interrupted => false,
        }
    }
}

/// Lays the checkpoint with this manifest out in `folder`. `reserve` bytes of the disk stay free.
///
/// # Errors
/// See [`RestoreError`]. Something may be left in the folder.
pub async fn restore(
    store: &BlockClient,
    manifest: Digest,
    reader: RestoreReader<'_>,
    folder: &Path,
    limits: TreeLimits,
    reserve: u64,
) -> Result<RestoredCheckpoint, RestoreError> {
    let longest = u64::try_from(MAX_MANIFEST_BYTES).unwrap_or(u64::MAX);
    let manifest = CheckpointManifest::read(&store.get(manifest, longest).await?)?;
    let (bytes, entries) = (manifest.bytes(), manifest.entries().len());
    if bytes > limits.bytes || entries > limits.entries {
        return Err(RestoreError::TooLarge { bytes, entries });
    }
    let name = manifest.name().to_owned();
    if let RestoreReader::User(wanted) = reader
        && wanted != name
    {
        return Err(RestoreError::OtherName {
            found: name,
            wanted: wanted.to_owned(),
        });
    }
    let (target, modes) = (folder.to_owned(), reader.modes());
    let laying = spawn_blocking(move || lay_out(&manifest, &target, modes, bytes, reserve));
    let files = laying.await.map_err(|_| RestoreError::Interrupted)??;
    let mut fetching = Vec::with_capacity(files.len());
    for block in files {
        fetching.push(fetch_block(store.clone(), block));
    }
    stream::iter(fetching)
        .buffer_unordered(FETCHED_AT_ONCE)
        .try_collect::<()>()
        .await?;
    Ok(RestoredCheckpoint { name, bytes })
}

struct WantedBlock {
    path: PathBuf,
    digest: Digest,
    offset: u64,
    length: u64,
}

/// Fetches one block, and writes it to its place.
async fn fetch_block(store: BlockClient, block: WantedBlock) -> Result<(), RestoreError> {
    let content = store.get(block.digest, block.length).await?;
    if u64::try_from(content.len()) != Ok(block.length) {
        return Err(BlockError::OtherContent(block.digest).into());
    }
    let writing = spawn_blocking(move || {
        let file = File::options().write(true).open(&block.path)?;
        file.write_all_at(&content, block.offset)
    });
    writing.await.map_err(|_| RestoreError::Interrupted)??;
    Ok(())
}

/// Makes the folders and the empty files, and lists the blocks that they want.
fn lay_out(
    manifest: &CheckpointManifest,
    folder: &Path,
    modes: ModeRule,
    bytes: u64,
    reserve: u64,
) -> io::Result<Vec<WantedBlock>> {
    let disk = statvfs(folder)?;
    if disk.f_bavail.saturating_mul(disk.f_frsize) < bytes.saturating_add(reserve) {
        return Err(io::Error::new(
            io::ErrorKind::StorageFull,
            "it would leave too little of the disk free",
        ));
    }
    let mut wanted = Vec::new();
    for entry in manifest.entries() {
        let path = folder.join(entry.path.as_str());
        make_entry(entry, &path, modes)?;
        let Some(file) = &entry.file else { continue };
        let mut offset = 0_u64;
        for (index, digest) in file.blocks.iter().enumerate() {
            let length = file.block_length(index).unwrap_or_default();
            wanted.push(WantedBlock {
                path: path.clone(),
                digest: *digest,
                offset,
                length,
            });
            offset = offset.saturating_add(BLOCK_BYTES);
        }
    }
    Ok(wanted)
}

fn make_entry(entry: &ManifestEntry, path: &Path, modes: ModeRule) -> io::Result<()> {
    let needed = match &entry.file {
        None => {
            fs::create_dir(path)?;
            modes.folder
        }
        Some(file) => {
            let mut created = File::options().write(true).create_new(true).open(path)?;
            created.set_len(file.size)?;
            created.flush()?;
            modes.file
        }
    };
    let mode = (entry.mode & modes.allowed) | needed;
    fs::set_permissions(path, Permissions::from_mode(mode))
}

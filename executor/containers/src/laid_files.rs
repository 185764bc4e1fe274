//! Lays files of an image into a folder of a job, from the engine's archive of them, with owners, permission bits,
//! times and links; and gives a job's own folders to the user of its image.

mod archived_folder;
mod owner_rules;

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bollard::query_parameters::DownloadFromContainerOptions;
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use self::archived_folder::unpack;
use self::owner_rules::OwnerRules;
use crate::docker_engine::{ContainerEngine, EngineError, LocalImage, operation_failed};
use crate::host_files::MOUNTED_FILES;
use crate::image_folders::{FolderContent, FolderMount, ImageFolders, look_body};
use crate::image_user::OwnerIds;
use crate::sandbox::{Root, RunAs, is_system_folder};
use crate::sized_disk;

/// The most bytes of a home that are copied for each job. A larger home stays as the image has it, read-only.
const MAX_HOME: u64 = 1 << 30;
/// Pieces of an archive that wait between the engine and the disk. Each has at most some ten KiB.
const WAITING_PIECES: usize = 64;

/// The files of an image cannot be laid out for a job.
#[derive(Debug, thiserror::Error)]
pub enum LayError {
    /// The engine failed to give them.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// They take more than the job's disk, or are too many.
    #[error(
        "the image keeps files in {path}, which is a volume or a folder that jobs write to, so each job gets a copy \
         of them on its own disk; its disk of {mib} MiB has no room for them, or they are too many"
    )]
    NoRoom {
        /// The path in the container.
        path: String,
        /// The size of the job's disk, in MiB.
        mib: u64,
    },
    /// The job's own folders cannot be given to the user of its image.
    #[error("the job's folders cannot be given to the user that its image names")]
    Give(#[source] io::Error),
    /// The job's folder cannot be written, or the engine's archive cannot be read.
    #[error("the files that the image keeps in {path} cannot be copied for the job")]
    Copy {
        /// The path in the container.
        path: String,
        /// The error of the disk, or of the archive.
        source: io::Error,
    },
}

/// A job's place for the files of its image.
#[derive(Clone, Debug)]
pub struct LayPlace {
    /// The folder in which a folder is made for each path. It is made, too.
    pub folder: PathBuf,
    /// The bytes that may be laid there.
    pub bytes: u64,
}

/// The folder inside the job's place at which the files of `path` are laid.
pub fn laid_at(folder: &Path, path: &str) -> PathBuf {
    // A path of 4,096 bytes is no file name; its order among the mounts would change with them.
    folder.join(muster_protocol::Digest::of(path.as_bytes()).to_string())
}

/// Lays the files of an image for a job, in each place where `mounts` of its folders has them. `name` and `labels` are
/// those of a container by which the image is read, if it has to be. Returns the paths that were left out because they
/// hold too much to be copied: at most the home.
///
/// # Errors
/// The engine failed, or the job's disk is full.
pub async fn lay(
    engine: &ContainerEngine,
    image: &LocalImage,
    folders: &ImageFolders,
    (root, run_as): (Root, RunAs),
    place: &LayPlace,
    (name, labels): (&str, HashMap<String, String>),
) -> Result<Vec<String>, LayError> {
    let mounts = folders.mounts(image, root, run_as);
    let laid = mounts.into_iter().filter_map(|(path, mount)| match mount {
        FolderMount::Laid { .. } => Some(path),
        FolderMount::Tmpfs { .. } => None,
    });
    let laid: Vec<String> = laid.collect();
    if laid.is_empty() {
        return Ok(Vec::new());
    }
    let own_disk = place.folder.parent().is_some_and(|above| {
        let job = above.parent();
        job.and_then(sized_disk::find).as_deref() == Some(above)
    });
    let rules = OwnerRules::of(engine, own_disk).await?;
    fs::create_dir_all(&place.folder).map_err(|source| LayError::Copy {
        path: place.folder.display().to_string(),
        source,
    })?;
    let kept: BTreeMap<&String, Option<Bytes>> = laid
        .iter()
        .map(|path| match folders.content(path) {
            FolderContent::Filled { archive, .. } => (path, archive.clone()),
            FolderContent::Absent | FolderContent::Empty { .. } | FolderContent::Uncovered => (path, None),
        })
        .collect();
    let reads = kept.values().any(Option::is_none);
    if reads {
        engine.create(name, look_body(image, labels)).await?;
    }
    let done = lay_each(engine, image, folders, place, kept, (name, rules)).await;
    if reads {
        engine.remove(name).await?;
    }
    done
}

async fn lay_each(
    engine: &ContainerEngine,
    image: &LocalImage,
    folders: &ImageFolders,
    place: &LayPlace,
    kept: BTreeMap<&String, Option<Bytes>>,
    (name, rules): (&str, OwnerRules),
) -> Result<Vec<String>, LayError> {
    let mut room = place.bytes;
    let mut too_large = Vec::new();
    for (path, archive) in kept {
        let target = laid_at(&place.folder, path);
        let is_home = folders.is_home(image, path);
        let bound = if is_home { room.min(MAX_HOME) } else { room };
        let unpacked = match archive {
            Some(archive) => spawn_blocking(move || unpack(archive.as_ref(), &target, rules, bound)).await,
            None => {
                let (pieces, reader) = ArchiveReader::channel();
                let unpacking = spawn_blocking(move || unpack(reader, &target, rules, bound));
                let path = format!("{path}/.");
                let (unpacked, sent) = tokio::join!(unpacking, engine.send_archive(name, &path, pieces));
                sent?;
                unpacked
            }
        };
        match unpacked.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(bytes) => {
                room = room.saturating_sub(bytes);
                if is_system_folder(path) {
                    add_mount_points(&laid_at(&place.folder, path), path).map_err(|source| {
                        LayError::Copy {
                            path: path.clone(),
                            source,
                        }
                    })?;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::StorageFull && is_home => {
                tracing::info!(
                    path,
                    "the home of the image's user is too large to be copied, and stays read-only"
                );
                let target = laid_at(&place.folder, path);
                let removed = spawn_blocking(move || crate::folder_removal::remove_folder(&target)).await;
                removed
                    .unwrap_or_else(|error| Err(io::Error::other(error)))
                    .map_err(|source| LayError::Copy {
                        path: path.clone(),
                        source,
                    })?;
                too_large.push(path.clone());
            }
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                return Err(LayError::NoRoom {
                    path: path.clone(),
                    mib: place.bytes >> 20,
                });
            }
            Err(source) => {
                return Err(LayError::Copy {
                    path: path.clone(),
                    source,
                });
            }
        }
    }
    Ok(too_large)
}

/// Adds the files over which the executor's own are mounted: nothing can be made in a folder that is mounted read-only.
fn add_mount_points(folder: &Path, path: &str) -> io::Result<()> {
    for file in MOUNTED_FILES {
        let Some(name) = file.strip_prefix(path).and_then(|rest| rest.strip_prefix('/')) else {
            continue;
        };
        match File::create_new(folder.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.map(drop)?,
        }
    }
    Ok(())
}

/// The reading end of an archive that arrives in pieces. Reading blocks.
struct ArchiveReader {
    pieces: mpsc::Receiver<Bytes>,
    piece: Bytes,
}

// === impl ArchiveReader ===

impl ArchiveReader {
    fn channel() -> (mpsc::Sender<Bytes>, Self) {
        let (sender, pieces) = mpsc::channel(WAITING_PIECES);
        let piece = Bytes::new();
        (sender, Self { pieces, piece })
    }
}

impl Read for ArchiveReader {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let length = self.piece.len().min(to.len());
        let read = self.piece.split_to(length);
        io::Cursor::new(read).read(to)
    }
}

impl ContainerEngine {
    /// Sends the pieces of a tar archive of the files at `path` in a container, running or not. A receiver that is gone
    /// ends it early, without an error.
    ///
    /// # Errors
    /// The engine failed.
    async fn send_archive(&self, name: &str, path: &str, to: mpsc::Sender<Bytes>) -> Result<(), EngineError> {
        let options = DownloadFromContainerOptions {
            path: path.to_owned(),
        };
        let mut pieces = Box::pin(self.docker().download_from_container(name, Some(options)));
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(operation_failed("read files of a container"))?;
            if to.send(piece).await.is_err() {
                break;
            }
        }
        Ok(())
    }

    /// The user and the group on this machine that root is in the engine's containers; `None` if the engine maps users
    /// and does not state how. The engine is asked once.
    ///
    /// # Errors
    /// The engine failed.
    pub(crate) async fn first_ids(&self) -> Result<Option<OwnerIds>, EngineError> {
        let ask = async || {
            let asked = self.docker().info().await;
            let info = asked.map_err(operation_failed("ask the engine about itself"))?;
            let options = info.security_options.unwrap_or_default();
            if !options.iter().any(|option| option.starts_with("name=userns")) {
                return Ok(Some(OwnerIds::default()));
            }
            // The engine keeps the files of each mapping in a folder that is named by its first ids.
            let folder = info.docker_root_dir.unwrap_or_default();
            let named = folder.rsplit('/').next().and_then(|name| name.split_once('.'));
            Ok(named.and_then(|(user, group)| {
                Some(OwnerIds {
                    user: user.parse().ok()?,
                    group: group.parse().ok()?,
                })
            }))
        };
        self.first_ids.get_or_try_init(ask).await.copied()
    }
}

/// Gives folders of a job, with everything in them, to the user that runs its program. Where this process may not give
/// files away, everybody may use them: no other user reaches the folders above. A folder that is missing is no error.
///
/// # Errors
/// The engine failed, or a file cannot be given away.
pub async fn give_folders(
    engine: &ContainerEngine,
    user: OwnerIds,
    folders: Vec<PathBuf>,
) -> Result<(), LayError> {
    let rules = OwnerRules::of(engine, true).await?;
    let giving = spawn_blocking(move || folders.iter().try_for_each(|folder| rules.give(folder, user)));
    let given = giving.await.unwrap_or_else(|error| Err(io::Error::other(error)));
    given.map_err(LayError::Give)
}

//! Lays files of an image into a folder of a job, from the engine's archive of them, with owners, permission bits, times
//! and links.
//!
//! The archive is written by the engine from folders of the image, and is read as a stranger's all the same: a name
//! leads nowhere but into folders that this archive has made before, so no link is ever followed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, lchown, symlink};
use std::path::{Component, Path, PathBuf};

use bollard::query_parameters::DownloadFromContainerOptions;
use bytes::Bytes;
use futures_util::StreamExt as _;
use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{Mode, UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{geteuid, mkfifo};
use tar::Entry;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::task::spawn_blocking;
use tokio_util::io::SyncIoBridge;

use crate::docker_engine::{ContainerEngine, EngineError, LocalImage, operation_failed};
use crate::host_files::MOUNTED_FILES;
use crate::image_folders::{FolderContent, FolderMount, ImageFolders, look_body, owner_of};
use crate::image_user::OwnerIds;
use crate::sandbox::{Root, RunAs, is_system_folder};
use crate::sized_disk;

/// The most bytes of a home that are copied for each job. A larger home stays as the image has it, read-only.
const MAX_HOME: u64 = 1 << 30;
/// Bytes that a file or folder takes at least.
const BLOCK: u64 = 4_096;
/// Bytes of an archive that wait between the engine and the disk.
const PIPE: usize = 1 << 20;
const SET_IDS: u32 = 0o6_000;

/// The files of an image cannot be laid out for a job.
#[derive(Debug, thiserror::Error)]
pub enum LayError {
    /// The engine failed to give them.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// They take more than the job's disk.
    #[error(
        "the image keeps files in {path}, which is a volume or a folder that jobs write to, so each job gets a copy \
         of them on its own disk; its disk of {mib} MiB has no room for them"
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
        /// The failure.
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

/// By which rules files get their owner and their permission bits.
#[derive(Clone, Copy, Debug)]
struct OwnerRules {
    /// The first user and group of the engine's containers on this machine; `None` where this process may not give files
    /// away: then everybody may use them.
    first: Option<OwnerIds>,
    /// Whether the bits that lend a file's owner are kept. A disk of the job's own gives them no effect.
    keeps_set_ids: bool,
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
                let (reader, writer) = tokio::io::duplex(PIPE);
                let reader = SyncIoBridge::new(reader);
                let unpacking = spawn_blocking(move || unpack(reader, &target, rules, bound));
                let path = format!("{path}/.");
                let (unpacked, sent) = tokio::join!(unpacking, engine.send_archive(name, &path, writer));
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

impl ContainerEngine {
    /// Writes a tar archive of the files at `path` in a container, running or not. A writer that takes no more ends it
    /// early, without an error.
    ///
    /// # Errors
    /// The engine failed.
    pub(crate) async fn send_archive(
        &self,
        name: &str,
        path: &str,
        mut to: impl AsyncWrite + Unpin,
    ) -> Result<(), EngineError> {
        let options = DownloadFromContainerOptions {
            path: path.to_owned(),
        };
        let mut pieces = Box::pin(self.docker().download_from_container(name, Some(options)));
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(operation_failed("read files of a container"))?;
            if to.write_all(&piece).await.is_err() {
                break;
            }
        }
        // The reader sees the end of the archive in any case.
        let _ = to.shutdown().await;
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

/// A folder's traits, which are set once it is filled.
struct FolderTraits {
    path: PathBuf,
    mode: u32,
    owner: OwnerIds,
    modified: i64,
}

/// Unpacks an archive of one folder, which becomes `target`. Returns the bytes that its files take. Blocks.
fn unpack(archive: impl Read, target: &Path, rules: OwnerRules, bound: u64) -> io::Result<u64> {
    let mut archive = tar::Archive::new(archive);
    let mut made = HashSet::new();
    let mut folders = Vec::new();
    let mut taken = 0_u64;
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = inside(&entry.path()?, target)?;
        let is_top = path == target;
        if !is_top && !path.parent().is_some_and(|above| made.contains(above)) {
            return Err(invalid("a name outside the folders of the archive"));
        }
        taken = taken.saturating_add(entry.size().next_multiple_of(BLOCK).max(BLOCK));
        if taken > bound {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let kind = entry.header().entry_type();
        let mode = entry.header().mode()? & 0o7777;
        let owner = owner_of(entry.header()).ok_or_else(|| invalid("an owner that is no number"))?;
        let modified = i64::try_from(entry.header().mtime()?).unwrap_or_default();
        if kind.is_dir() {
            fs::create_dir(&path)?;
            made.insert(path.clone());
            folders.push(FolderTraits {
                path,
                mode,
                owner,
                modified,
            });
            continue;
        }
        if is_top {
            return Err(invalid("no folder"));
        }
        if kind.is_hard_link() {
            let original = inside(&link_of(&entry)?, target)?;
            if !original.parent().is_some_and(|above| made.contains(above)) {
                return Err(invalid("a link to outside the folders of the archive"));
            }
            // Owner and bits are those of the file.
            fs::hard_link(original, &path)?;
            continue;
        }
        if kind.is_symlink() {
            symlink(link_of(&entry)?, &path)?;
            rules.own_link(&path, owner)?;
            set_time(&path, modified)?;
            continue;
        }
        if kind.is_fifo() {
            mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)?;
        } else if kind.is_file() || kind.is_contiguous() || kind.is_gnu_sparse() {
            write_file(&mut entry, &path)?;
        } else {
            // A sandbox opens no devices. The other kinds are the archive's own.
            continue;
        }
        rules.own(&path, owner, mode, false)?;
        set_time(&path, modified)?;
    }
    if folders.is_empty() {
        return Err(invalid("nothing"));
    }
    // Inner folders first: a folder's time changes with its entries, and its bits may close it to this process.
    for folder in folders.into_iter().rev() {
        rules.own(&folder.path, folder.owner, folder.mode, true)?;
        set_time(&folder.path, folder.modified)?;
    }
    Ok(taken)
}

/// The place of an entry: its name without the first component, which is the archived folder itself.
fn inside(name: &Path, target: &Path) -> io::Result<PathBuf> {
    let mut parts = name.components();
    match parts.next() {
        Some(Component::Normal(_) | Component::CurDir) => {}
        Some(Component::Prefix(_) | Component::RootDir | Component::ParentDir) | None => {
            return Err(invalid("a name that is no plain path"));
        }
    }
    let mut path = target.to_owned();
    for part in parts {
        match part {
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            Component::Prefix(_) | Component::RootDir | Component::ParentDir => {
                return Err(invalid("a name that is no plain path"));
            }
        }
    }
    Ok(path)
}

/// The target of a link.
fn link_of(entry: &Entry<'_, impl Read>) -> io::Result<PathBuf> {
    let link = entry.link_name()?;
    link.map(std::borrow::Cow::into_owned)
        .ok_or_else(|| invalid("a link without a target"))
}

fn write_file(entry: &mut Entry<'_, impl Read>, path: &Path) -> io::Result<()> {
    let mut file: File = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    io::copy(entry, &mut file).map(drop)
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

// === impl OwnerRules ===

impl OwnerRules {
    async fn of(engine: &ContainerEngine, keeps_set_ids: bool) -> Result<Self, EngineError> {
        let first = match geteuid().is_root() {
            true => engine.first_ids().await?,
            false => None,
        };
        Ok(Self { first, keeps_set_ids })
    }

    /// Gives a folder and everything in it to a user. Its permission bits stay where its owner can change.
    fn give(self, folder: &Path, user: OwnerIds) -> io::Result<()> {
        let mine = OwnerIds::default();
        if self.first.is_some_and(|first| user.shifted(first) == Some(mine)) {
            return Ok(());
        }
        let mut waiting = vec![folder.to_owned()];
        while let Some(path) = waiting.pop() {
            let found = match fs::symlink_metadata(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                found => found?,
            };
            let mode = found.permissions().mode() & 0o7777;
            if found.is_symlink() {
                self.own_link(&path, user)?;
            } else {
                self.own(&path, user, mode, found.is_dir())?;
            }
            if found.is_dir() {
                for entry in fs::read_dir(&path)? {
                    waiting.push(entry?.path());
                }
            }
        }
        Ok(())
    }

    /// Gives a file or a folder its owner and its permission bits.
    fn own(self, path: &Path, owner: OwnerIds, mode: u32, is_folder: bool) -> io::Result<()> {
        let mode = if is_folder || self.keeps_set_ids {
            mode
        } else {
            mode & !SET_IDS
        };
        let mode = match self.first {
            Some(_) => mode,
            // The owner that the image names is somebody else here.
            None if is_folder || mode & 0o111 != 0 => mode | 0o777,
            None => mode | 0o666,
        };
        self.own_link(path, owner)?;
        // After the owner: a change of the owner takes bits away.
        fs::set_permissions(path, Permissions::from_mode(mode))
    }

    fn own_link(self, path: &Path, owner: OwnerIds) -> io::Result<()> {
        let Some(first) = self.first else {
            return Ok(());
        };
        let owner = owner
            .shifted(first)
            .ok_or_else(|| invalid("an owner beyond the engine's users"))?;
        lchown(path, Some(owner.user), Some(owner.group))
    }
}

fn set_time(path: &Path, seconds: i64) -> io::Result<()> {
    let time = TimeSpec::new(seconds, 0);
    utimensat(AT_FDCWD, path, &time, &time, UtimensatFlags::NoFollowSymlink).map_err(io::Error::from)
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the engine's archive holds {reason}"),
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use tar::{Builder, EntryType, Header};

    use super::*;

    const ROOT: OwnerIds = OwnerIds { user: 0, group: 0 };
    const OWNED: OwnerRules = OwnerRules {
        first: Some(ROOT),
        keeps_set_ids: true,
    };

    struct Packed(Builder<Vec<u8>>);

    impl Packed {
        fn new() -> Self {
            Self(Builder::new(Vec::new()))
        }

        fn add(mut self, path: &str, kind: EntryType, mode: u32, content: &str) -> Self {
            let mut header = Header::new_gnu();
            header.set_entry_type(kind);
            header.set_mode(mode);
            header.set_uid(1000);
            header.set_gid(1001);
            header.set_mtime(1_000_000);
            if kind == EntryType::Symlink || kind == EntryType::Link {
                header.set_size(0);
                header.set_link_name(content).unwrap();
                header.as_mut_bytes()[..100].fill(0);
                header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
                header.set_cksum();
                self.0.append(&header, io::empty()).unwrap();
            } else {
                header.set_size(content.len() as u64);
                // Also names that the library refuses to write.
                header.as_mut_bytes()[..100].fill(0);
                header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
                header.set_cksum();
                self.0.append(&header, content.as_bytes()).unwrap();
            }
            self
        }

        fn unpack(self, rules: OwnerRules, bound: u64) -> (tempfile::TempDir, io::Result<u64>) {
            let folder = tempfile::tempdir().unwrap();
            let bytes = self.0.into_inner().unwrap();
            let done = unpack(bytes.as_slice(), &folder.path().join("laid"), rules, bound);
            (folder, done)
        }
    }

    fn tree() -> Packed {
        let (folder, file) = (EntryType::Directory, EntryType::Regular);
        Packed::new()
            .add("data/", folder, 0o2750, "")
            .add("data/weights", file, 0o4640, "weights")
            .add("data/closed/", folder, 0o500, "")
            .add("data/closed/inner", file, 0o444, "x")
            .add("data/last", EntryType::Symlink, 0o777, "../../etc/passwd")
            .add("data/same", EntryType::Link, 0o640, "data/weights")
            .add("data/pipe", EntryType::Fifo, 0o622, "")
            .add("data/device", EntryType::Char, 0o666, "")
    }

    #[test]
    fn files_are_laid_with_owner_bits_times_and_links() {
        let (folder, done) = tree().unpack(OWNED, 1 << 20);
        assert_eq!(done.unwrap(), 8 * BLOCK);
        let at = |name: &str| folder.path().join("laid").join(name);
        let traits = |name: &str| {
            let found = fs::symlink_metadata(at(name)).unwrap();
            (found.mode() & 0o7777, found.uid(), found.gid(), found.mtime())
        };
        for (name, mode) in [
            ("", 0o2750),
            ("weights", 0o4640),
            ("closed", 0o500),
            ("closed/inner", 0o444),
            ("pipe", 0o622),
        ] {
            assert_eq!(
                traits(name),
                (mode, 1000, 1001, 1_000_000),
                "{name}: this test needs root"
            );
        }
        assert_eq!(fs::read_to_string(at("weights")).unwrap(), "weights");
        assert_eq!(fs::read_link(at("last")).unwrap(), Path::new("../../etc/passwd"));
        assert_eq!(traits("last").1, 1000);
        assert_eq!(
            fs::metadata(at("same")).unwrap().ino(),
            fs::metadata(at("weights")).unwrap().ino()
        );
        assert!(!at("device").exists());
        let mapped = OwnerRules {
            first: Some(OwnerIds {
                user: 100_000,
                group: 200_000,
            }),
            keeps_set_ids: false,
        };
        let (folder, done) = tree().unpack(mapped, 1 << 20);
        done.unwrap();
        let found = fs::metadata(folder.path().join("laid/weights")).unwrap();
        assert_eq!(
            (found.uid(), found.gid(), found.mode() & 0o7777),
            (101_000, 201_001, 0o640)
        );
    }

    #[test]
    fn files_that_cannot_be_given_away_are_everybodys() {
        let rules = OwnerRules {
            first: None,
            keeps_set_ids: false,
        };
        let (folder, done) = tree().unpack(rules, 1 << 20);
        done.unwrap();
        let mode = |name: &str| {
            fs::metadata(folder.path().join("laid").join(name))
                .unwrap()
                .mode()
                & 0o7777
        };
        assert_eq!(
            [mode(""), mode("weights"), mode("closed/inner")],
            [0o2777, 0o666, 0o666]
        );
        assert_eq!(
            fs::metadata(folder.path().join("laid")).unwrap().uid(),
            geteuid().as_raw()
        );
    }

    #[test]
    fn folders_of_a_job_are_given_to_its_user_without_following_links() {
        let folder = tempfile::tempdir().unwrap();
        let (volume, outside) = (folder.path().join("volume"), folder.path().join("outside"));
        fs::create_dir_all(volume.join("inner")).unwrap();
        for file in [&outside, &volume.join("inner/x")] {
            fs::write(file, "x").unwrap();
            fs::set_permissions(file, Permissions::from_mode(0o640)).unwrap();
        }
        symlink(&outside, volume.join("link")).unwrap();
        let user = OwnerIds {
            user: 1000,
            group: 1001,
        };
        let traits = |path: &Path| {
            let found = fs::symlink_metadata(path).unwrap();
            (found.uid(), found.mode() & 0o777)
        };
        OWNED.give(&volume, OwnerIds::default()).unwrap();
        assert_eq!(
            traits(&volume.join("inner/x")),
            (0, 0o640),
            "it is root's already"
        );
        OWNED.give(&volume, user).unwrap();
        OWNED.give(&folder.path().join("missing"), user).unwrap();
        assert_eq!(traits(&volume.join("inner/x")), (1000, 0o640));
        assert_eq!((traits(&volume).0, traits(&volume.join("link")).0), (1000, 1000));
        assert_eq!(traits(&outside), (0, 0o640));
        let widened = OwnerRules {
            first: None,
            keeps_set_ids: true,
        };
        widened.give(&volume, user).unwrap();
        assert_eq!(traits(&volume.join("inner/x")), (1000, 0o666));
        assert_eq!(
            (traits(&volume.join("inner")).1, traits(&outside).1),
            (0o777, 0o640)
        );
    }

    #[test]
    fn an_archive_that_leads_elsewhere_or_is_too_large_is_refused() {
        let (folder, file, link) = (EntryType::Directory, EntryType::Regular, EntryType::Symlink);
        let top = || Packed::new().add("data/", folder, 0o755, "");
        for (what, hostile) in [
            ("a name above", top().add("data/../../out", file, 0o644, "x")),
            ("an absolute name", top().add("/out", file, 0o644, "x")),
            (
                "a name through a link",
                top()
                    .add("data/up", link, 0o777, "../..")
                    .add("data/up/out", file, 0o644, "x"),
            ),
            (
                "a folder over a link",
                top()
                    .add("data/up", link, 0o777, "../..")
                    .add("data/up/", folder, 0o755, ""),
            ),
            (
                "a link to above",
                top().add("data/x", EntryType::Link, 0o644, "data/../../out"),
            ),
            ("no folder", Packed::new().add("data", file, 0o644, "x")),
            (
                "a device alone",
                Packed::new().add("data", EntryType::Char, 0o644, ""),
            ),
        ] {
            let (folder, done) = hostile.unpack(OWNED, 1 << 20);
            let error = done.unwrap_err();
            assert_ne!(error.kind(), io::ErrorKind::StorageFull, "{what}: {error}");
            let beside: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
            assert!(
                beside.iter().all(|entry| entry.file_name() == "laid"),
                "{what}: {beside:?}"
            );
        }
        let (_folder, done) = tree().unpack(OWNED, 8 * BLOCK - 1);
        assert_eq!(done.unwrap_err().kind(), io::ErrorKind::StorageFull);
        let bytes = tree().0.into_inner().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let cut = unpack(&bytes[..700], &folder.path().join("laid"), OWNED, 1 << 20);
        assert!(cut.is_err(), "an archive that is cut short");
    }
}

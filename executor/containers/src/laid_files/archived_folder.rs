//! Unpacks the engine's archive of one folder.
//!
//! The archive is written by the engine from folders of the image, and is read as a stranger's all the same: a name
//! leads nowhere but into folders that this archive has made before, so no link is ever followed.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{Mode, UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::mkfifo;
use tar::Entry;

use super::owner_rules::OwnerRules;
use crate::image_folders::owner_of;
use crate::image_user::OwnerIds;

/// Bytes that a file or folder takes at least.
const BLOCK: u64 = 4_096;
/// Bytes that are written to a file at once.
const PIECE: usize = 256 * 1024;
/// Files, folders and links of one archive.
const MAX_ENTRIES: u64 = 1_000_000;
/// Folders of one archive, whose traits are kept in memory until all of them are filled.
const MAX_FOLDERS: u64 = 100_000;
/// Bytes of the paths of these folders together.
const MAX_FOLDER_PATHS: u64 = 64 << 20;

/// The room that is left for an archive.
#[derive(Clone, Copy)]
struct ArchiveRoom {
    bytes: u64,
    entries: u64,
    folders: u64,
    folder_paths: u64,
}

impl ArchiveRoom {
    /// Takes the room of an entry; `folder` is its path if it is a folder.
    fn take(&mut self, bytes: u64, folder: Option<&Path>) -> io::Result<()> {
        let take = |left: &mut u64, taken: u64| {
            *left = left.checked_sub(taken).ok_or(io::ErrorKind::StorageFull)?;
            Ok::<(), io::Error>(())
        };
        take(&mut self.bytes, bytes)?;
        take(&mut self.entries, 1)?;
        if let Some(path) = folder {
            take(&mut self.folders, 1)?;
            take(&mut self.folder_paths, path.as_os_str().len() as u64)?;
        }
        Ok(())
    }
}

/// A folder's traits, which are set once it is filled.
struct FolderTraits {
    path: Arc<Path>,
    mode: u32,
    owner: OwnerIds,
    modified: i64,
}

/// Unpacks an archive of one folder, which becomes `target`. Returns the bytes that its files take. Blocks.
///
/// # Errors
/// `StorageFull` if the files take more than `bound` bytes, are more than 1,000,000 with their folders and links, or
/// lie in more than 100,000 folders or in folders whose paths take more than 64 MiB; and the errors of the archive and
/// the disk.
pub(super) fn unpack(archive: impl Read, target: &Path, rules: OwnerRules, bound: u64) -> io::Result<u64> {
    let room = ArchiveRoom {
        bytes: bound,
        entries: MAX_ENTRIES,
        folders: MAX_FOLDERS,
        folder_paths: MAX_FOLDER_PATHS,
    };
    unpack_within(archive, target, rules, room)
}

fn unpack_within(
    archive: impl Read,
    target: &Path,
    rules: OwnerRules,
    mut room: ArchiveRoom,
) -> io::Result<u64> {
    let bound = room.bytes;
    let mut archive = tar::Archive::new(archive);
    let mut made: HashSet<Arc<Path>> = HashSet::new();
    let mut folders = Vec::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = inside(&entry.path()?, target)?;
        let is_top = path == target;
        if !is_top && !path.parent().is_some_and(|above| made.contains(above)) {
            return Err(invalid("a name outside the folders of the archive"));
        }
        let kind = entry.header().entry_type();
        let blocks = entry.size().checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX);
        room.take(blocks.max(BLOCK), kind.is_dir().then_some(path.as_path()))?;
        let mode = entry.header().mode()? & 0o7777;
        let owner = owner_of(entry.header()).ok_or_else(|| invalid("an owner that is no number"))?;
        let modified = i64::try_from(entry.header().mtime()?).unwrap_or_default();
        if kind.is_dir() {
            fs::create_dir(&path)?;
            let path: Arc<Path> = path.into();
            made.insert(Arc::clone(&path));
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
    Ok(bound.saturating_sub(room.bytes))
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
    let file: File = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    // The copy goes through this buffer, so that a large file costs few calls of the kernel.
    let mut file = BufWriter::with_capacity(PIECE, file);
    io::copy(entry, &mut file)?;
    file.flush()
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

    use nix::unistd::geteuid;
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
    fn an_archive_with_too_many_entries_or_folders_has_no_room() {
        let enough = ArchiveRoom {
            bytes: 8 * BLOCK,
            entries: 8,
            folders: 2,
            folder_paths: 2 * 4_096,
        };
        let unpacked = |room: ArchiveRoom| {
            let folder = tempfile::tempdir().unwrap();
            let bytes = tree().0.into_inner().unwrap();
            unpack_within(bytes.as_slice(), &folder.path().join("laid"), OWNED, room)
        };
        assert_eq!(unpacked(enough).unwrap(), 8 * BLOCK);
        for scarce in [
            ArchiveRoom { entries: 7, ..enough },
            ArchiveRoom { folders: 1, ..enough },
            ArchiveRoom {
                folder_paths: 9,
                ..enough
            },
        ] {
            assert_eq!(unpacked(scarce).unwrap_err().kind(), io::ErrorKind::StorageFull);
        }
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

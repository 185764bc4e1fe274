//! A copy of a checkpoint that its program cannot change any more.
//!
//! Where the file system can, the copy shares the blocks of the original until one of them is written. A hard link
//! would not do: the program would go on writing into the copy.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use muster_checkpoints::{FileTree, TreeEntry};
use rustix::fs::{Mode, OFlags, ResolveFlags, ioctl_ficlone, openat2, statvfs};

/// The reason why a checkpoint could not be copied.
#[derive(Debug, thiserror::Error)]
pub enum CloneError {
    /// The disk would have less room left than its operator keeps free.
    #[error("the machine's disk has no room for a copy of {0} bytes")]
    NoRoom(u64),
    /// A file is not what the look before has found.
    #[error("the file changed while it was copied")]
    Changed,
    /// A file could not be read or written.
    #[error("the file cannot be copied")]
    Io(#[from] io::Error),
}

impl From<rustix::io::Errno> for CloneError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Io(error.into())
    }
}

/// Copies everything in `tree` from the open `folder` into the empty folder `into`. Leaves `reserve` bytes of the disk
/// free. Blocks.
///
/// # Errors
/// See [`CloneError`]. Something may be left in `into`.
pub fn clone_tree(folder: &OwnedFd, tree: &FileTree, into: &Path, reserve: u64) -> Result<(), CloneError> {
    for entry in tree.entries() {
        let target = into.join(entry.path.as_str());
        if entry.is_folder {
            fs::create_dir(&target)?;
        } else {
            clone_file(folder, entry, &target, into, reserve)?;
        }
    }
    Ok(())
}

fn clone_file(
    folder: &OwnedFd,
    entry: &TreeEntry,
    target: &Path,
    into: &Path,
    reserve: u64,
) -> Result<(), CloneError> {
    let source = open_file(folder, entry)?;
    let mut copy = File::options().write(true).create_new(true).open(target)?;
    if ioctl_ficlone(&copy, &source).is_ok() {
        return match copy.metadata()?.len() == entry.size {
            true => Ok(()),
            false => Err(CloneError::Changed),
        };
    }
    let disk = statvfs(into)?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free < entry.size.saturating_add(reserve) {
        return Err(CloneError::NoRoom(entry.size));
    }
    let copied = io::copy(&mut source.take(entry.size), &mut copy)?;
    copy.flush()?;
    match copied == entry.size {
        true => Ok(()),
        false => Err(CloneError::Changed),
    }
}

/// Opens a file of the tree, through no link, and only if it is the one that was looked at.
pub(crate) fn open_file(folder: &OwnedFd, entry: &TreeEntry) -> Result<File, CloneError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let opened = openat2(folder, entry.path.as_str(), flags, Mode::empty(), resolve);
    let file = File::from(opened.map_err(|_| CloneError::Changed)?);
    let facts = file.metadata()?;
    match facts.is_file() && facts.ino() == entry.inode && facts.len() == entry.size {
        true => Ok(file),
        false => Err(CloneError::Changed),
    }
}

#[cfg(test)]
mod tests {
    use muster_checkpoints::TreeLimits;

    use super::*;
    use crate::folder_scan::{look_at, open_folder};

    #[test]
    fn a_copy_has_the_bytes_and_a_later_write_does_not_reach_it() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("c/sub")).unwrap();
        fs::write(folder.path().join("c/w"), "weights").unwrap();
        let fd = open_folder(folder.path()).unwrap();
        let tree = look_at(&fd, "c", TreeLimits::default()).unwrap();
        let into = tempfile::tempdir().unwrap();
        clone_tree(&fd, &tree, into.path(), 0).unwrap();
        let mut open = File::options()
            .write(true)
            .open(folder.path().join("c/w"))
            .unwrap();
        open.write_all(b"WEIGHTS").unwrap();
        assert_eq!(fs::read(into.path().join("c/w")).unwrap(), b"weights");
        assert!(into.path().join("c/sub").is_dir());
    }

    #[test]
    fn a_file_replaced_by_a_link_or_another_file_is_not_copied() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("c")).unwrap();
        fs::write(folder.path().join("c/w"), "12345").unwrap();
        let fd = open_folder(folder.path()).unwrap();
        let tree = look_at(&fd, "c", TreeLimits::default()).unwrap();
        let clone = || {
            let into = tempfile::tempdir().unwrap();
            clone_tree(&fd, &tree, into.path(), 0)
        };
        fs::remove_file(folder.path().join("c/w")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("c/w")).unwrap();
        assert!(matches!(clone(), Err(CloneError::Changed)));
        fs::remove_dir_all(folder.path().join("c")).unwrap();
        std::os::unix::fs::symlink("/etc", folder.path().join("c")).unwrap();
        assert!(
            matches!(clone(), Err(CloneError::Changed)),
            "nor through a folder that became one"
        );
    }

    #[test]
    fn a_disk_keeps_its_reserve() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        fs::write(folder.path().join("c"), "12345").unwrap();
        let fd = open_folder(folder.path()).unwrap();
        let tree = look_at(&fd, "c", TreeLimits::default()).unwrap();
        let into = tempfile::tempdir().unwrap();
        let refused = clone_tree(&fd, &tree, into.path(), u64::MAX);
        assert!(matches!(refused, Err(CloneError::NoRoom(5))), "{refused:?}");
    }
}

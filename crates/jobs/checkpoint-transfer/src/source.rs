//! The files that a checkpoint is read from while it is sent: the program's own, or a copy.
//!
//! A copy on a file system that cannot share blocks writes every byte of the checkpoint once more, on the disk that the
//! program also writes to. So the program's own files are read where that is safe: they are held open, which keeps what
//! the program removes or replaces, and they are looked at again once everything was read. A program that writes into
//! the files of its checkpoint while they are sent shows by that look, and gets copies from then on.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use muster_checkpoints::{FileTree, TreeEntry};
use rustix::fs::ioctl_ficlone;
use tempfile::TempDir;

use crate::clone::{CloneError, clone_tree, open_file};

/// The most files that are held open. A checkpoint of more is copied.
pub const MAX_OPEN_FILES: usize = 256;

/// The files of a checkpoint, held so that they can be read until its blocks are sent.
#[derive(Debug)]
pub enum CheckpointSource {
    /// A copy that no program changes.
    Copy(TempDir),
    /// The program's own files, in the order of the tree; `None` for a folder.
    InPlace(Vec<Option<File>>),
}

/// The place where the files may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadingPlace {
    /// The program's folder, unless a copy costs nothing.
    InPlace,
    /// A copy: the program has changed a checkpoint while it was read.
    Copy,
}

impl CheckpointSource {
    /// Opens what the look `tree` of the open `folder` has found, or copies it into the empty folder `copy`. A copy
    /// leaves `reserve` bytes of its disk free. Blocks.
    ///
    /// # Errors
    /// See [`CloneError`].
    pub fn open(
        folder: &OwnedFd,
        tree: &FileTree,
        copy: TempDir,
        reserve: u64,
        place: ReadingPlace,
    ) -> Result<Self, CloneError> {
        let files = tree.entries().iter().filter(|entry| !entry.is_folder).count();
        let may_stay = place == ReadingPlace::InPlace && files <= MAX_OPEN_FILES;
        if may_stay && !shares_blocks(folder, tree, copy.path())? {
            let opened = tree.entries().iter().map(|entry| match entry.is_folder {
                true => Ok(None),
                false => open_file(folder, entry).map(Some),
            });
            return Ok(Self::InPlace(opened.collect::<Result<_, _>>()?));
        }
        clone_tree(folder, tree, copy.path(), reserve)?;
        Ok(Self::Copy(copy))
    }

    /// The file of this entry, the one of this number in the tree, to be read from its beginning. Each file can be read
    /// once.
    ///
    /// # Errors
    /// The copy cannot be opened, or the entry is no file of the checkpoint.
    pub fn file(&self, number: usize, entry: &TreeEntry) -> io::Result<File> {
        match self {
            Self::Copy(folder) => File::open(folder.path().join(entry.path.as_str())),
            Self::InPlace(files) => match files.get(number) {
                Some(Some(file)) => file.try_clone(),
                _ => Err(io::ErrorKind::NotFound.into()),
            },
        }
    }

    /// Whether everything that was read is what the look `tree` has found. Blocks.
    ///
    /// A file that the program has removed or replaced is as it was: it was held open.
    pub fn is_unchanged(&self, tree: &FileTree) -> bool {
        let Self::InPlace(files) = self else { return true };
        let mut held = files.iter().zip(tree.entries());
        held.all(|(file, entry)| {
            let file = file.as_ref();
            file.is_none_or(|file| is_as_looked_at(file, entry).unwrap_or(false))
        })
    }
}

/// Whether a copy in the folder `into` shares blocks with the files of the tree. Tries it with the first of them.
fn shares_blocks(folder: &OwnedFd, tree: &FileTree, into: &Path) -> Result<bool, CloneError> {
    let Some(first) = tree.entries().iter().find(|entry| !entry.is_folder) else {
        return Ok(false);
    };
    let source = open_file(folder, first)?;
    let tried = into.join("tried");
    let shares = ioctl_ficlone(File::create_new(&tried)?, &source).is_ok();
    fs::remove_file(tried)?;
    Ok(shares)
}

fn is_as_looked_at(file: &File, entry: &TreeEntry) -> io::Result<bool> {
    let facts = file.metadata()?;
    let nanos = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    let is_written =
        facts.len() != entry.size || nanos(facts.mtime(), facts.mtime_nsec()) != entry.modified_ns;
    // The removal of its last name changes a file's attributes, and nothing else about it.
    let is_touched = nanos(facts.ctime(), facts.ctime_nsec()) != entry.changed_ns && facts.nlink() > 0;
    Ok(!is_written && !is_touched)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use muster_checkpoints::TreeLimits;

    use super::*;
    use crate::folder_scan::{look_at, open_folder};

    /// A checkpoint of two files, `c/a` and `c/b`, held in the program's folder.
    fn held() -> (TempDir, FileTree, CheckpointSource) {
        // No file system of memory shares blocks.
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        fs::create_dir(folder.path().join("c")).unwrap();
        fs::write(folder.path().join("c/a"), "weights").unwrap();
        fs::write(folder.path().join("c/b"), "optimiser").unwrap();
        let fd = open_folder(folder.path()).unwrap();
        let tree = look_at(&fd, "c", TreeLimits::default()).unwrap();
        let copy = tempfile::tempdir_in("/dev/shm").unwrap();
        let source = CheckpointSource::open(&fd, &tree, copy, u64::MAX, ReadingPlace::InPlace).unwrap();
        assert!(matches!(source, CheckpointSource::InPlace(_)), "{source:?}");
        (folder, tree, source)
    }

    fn read(source: &CheckpointSource, tree: &FileTree) -> Vec<String> {
        let files = tree.entries().iter().enumerate();
        let read = files
            .filter(|(_, entry)| !entry.is_folder)
            .map(|(number, entry)| {
                let mut text = String::new();
                source
                    .file(number, entry)
                    .unwrap()
                    .read_to_string(&mut text)
                    .unwrap();
                text
            });
        read.collect()
    }

    #[test]
    fn held_files_stay_though_the_program_removes_or_replaces_them() {
        let (folder, tree, source) = held();
        fs::write(folder.path().join("new"), "WEIGHTS").unwrap();
        fs::rename(folder.path().join("new"), folder.path().join("c/a")).unwrap();
        fs::remove_file(folder.path().join("c/b")).unwrap();
        assert_eq!(read(&source, &tree), ["weights", "optimiser"]);
        assert!(source.is_unchanged(&tree));
    }

    #[test]
    fn writes_into_held_files_are_seen() {
        let changes: [fn(&Path); 3] = [
            |path| fs::write(path, "WEIGHTS").unwrap(),
            |path| {
                let mut file = File::options().append(true).open(path).unwrap();
                file.write_all(b"more").unwrap();
            },
            |path| {
                // A program can set the time of a file's content, and no more.
                let before = fs::metadata(path).unwrap().modified().unwrap();
                fs::write(path, "WEIGHTS").unwrap();
                File::open(path).unwrap().set_modified(before).unwrap();
            },
        ];
        for change in changes {
            let (folder, tree, source) = held();
            let path = folder.path().join("c/a");
            let before = fs::metadata(&path).unwrap().ctime_nsec();
            // The clock of file times is coarse.
            while fs::metadata(&path).unwrap().ctime_nsec() == before {
                change(&path);
            }
            assert!(!source.is_unchanged(&tree));
        }
    }

    #[test]
    fn a_checkpoint_of_many_files_is_copied_and_so_is_one_that_was_changed_before() {
        for (files, place) in [
            (MAX_OPEN_FILES + 1, ReadingPlace::InPlace),
            (1, ReadingPlace::Copy),
        ] {
            let folder = tempfile::tempdir_in("/dev/shm").unwrap();
            fs::create_dir(folder.path().join("c")).unwrap();
            for number in 0..files {
                fs::write(folder.path().join(format!("c/{number}")), "1").unwrap();
            }
            let fd = open_folder(folder.path()).unwrap();
            let tree = look_at(&fd, "c", TreeLimits::default()).unwrap();
            let copy = tempfile::tempdir_in("/dev/shm").unwrap();
            let source = CheckpointSource::open(&fd, &tree, copy, 0, place).unwrap();
            assert!(matches!(source, CheckpointSource::Copy(_)), "{source:?}");
            fs::remove_dir_all(folder.path().join("c")).unwrap();
            assert_eq!(read(&source, &tree), vec!["1"; files]);
            assert!(source.is_unchanged(&tree));
        }
    }
}

//! Folders that belong to living processes, and how those of dead processes are found.
//!
//! An executor holds a lock on its job's folder for as long as its process lives, and the kernel releases the lock
//! however that process ends. A folder of an executor whose lock is free is therefore abandoned ([`find_abandoned`]).
//! The lock is on the folder itself, not on a file in it, so it outlasts the contents while they are removed.

use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use muster_protocol::AttemptId;
use tempfile::TempDir;

/// The locked folder of one attempt. Dropping it removes the folder; [`ClaimedFolder::remove`] also returns an error
/// if the removal failed.
#[derive(Debug)]
pub struct ClaimedFolder {
    root: TempDir,
    /// Dropped last: the folder stays locked until it is removed.
    _lock: File,
}

/// The folder of a job whose executor is dead, locked so that no other process finds it abandoned.
#[derive(Debug)]
pub struct AbandonedFolder {
    path: PathBuf,
    _lock: File,
}

/// A folder cannot be created or removed.
#[derive(Debug, thiserror::Error)]
#[error("the job's folder in {path} cannot be {operation}; work_dir must be writable by the executor")]
pub struct FolderError {
    path: PathBuf,
    operation: &'static str,
    source: io::Error,
}

// === impl ClaimedFolder ===

impl ClaimedFolder {
    /// Creates a folder for an attempt under `work_dir`, with access for this user alone. Its path is canonical.
    ///
    /// # Errors
    /// The disk is full, or `work_dir` is not writable.
    pub fn new(work_dir: &Path, attempt: AttemptId) -> Result<Self, FolderError> {
        let failed = |source| FolderError::new(work_dir, "made", source);
        // The mode keeps other users of this machine out; the engine, which mounts the folders inside, is not
        // affected.
        let mut private = DirBuilder::new();
        private.recursive(true).mode(0o700);
        private.create(work_dir).map_err(failed)?;
        // The container's label holds the path, so the path must have one spelling only.
        let work_dir = &work_dir.canonicalize().map_err(failed)?;
        let gate = lock_work_dir(work_dir).map_err(failed)?;
        let root = tempfile::Builder::new()
            .prefix(&format!("{attempt}-"))
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(work_dir)
            .map_err(failed)?;
        let lock = File::open(root.path()).map_err(failed)?;
        lock.try_lock().map_err(|error| failed(error.into()))?;
        drop(gate);
        Ok(Self { root, _lock: lock })
    }

    /// The canonical path of the folder.
    pub fn path(&self) -> &Path {
        self.root.path()
    }

    /// Removes the folder and everything in it. The job's container must be gone first.
    ///
    /// # Errors
    /// Something is left, for example files of another user where the executor is not root.
    pub fn remove(self) -> Result<(), FolderError> {
        let path = self.root.path().to_owned();
        self.root
            .close()
            .map_err(|source| FolderError::new(&path, "removed", source))
    }

    /// Releases the lock and keeps the files, as if this process were killed: the next [`find_abandoned`] finds the
    /// folder.
    pub fn abandon(self) {
        let path = self.root.keep();
        tracing::debug!(path = %path.display(), "left for the next executor");
    }
}

impl FolderError {
    /// An operation on the folder at `path` that failed.
    pub fn new(path: &Path, operation: &'static str, source: io::Error) -> Self {
        Self {
            path: path.to_owned(),
            operation,
            source,
        }
    }
}

// === impl AbandonedFolder ===

impl AbandonedFolder {
    /// The path of the folder, equal to the label of its container.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the folder. Its container must be gone first.
    ///
    /// # Errors
    /// Same as for [`ClaimedFolder::remove`].
    pub fn remove(self) -> Result<(), FolderError> {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(FolderError {
                path: self.path,
                operation: "removed",
                source: error,
            }),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// Finds the folders in `work_dir` that dead executors left, and locks them. Considers only folders whose names
/// [`ClaimedFolder::new`] could have given and that this user may open. Blocks, but never for long.
///
/// # Errors
/// `work_dir` cannot be read. A missing `work_dir` is no error.
pub fn find_abandoned(work_dir: &Path) -> Result<Vec<AbandonedFolder>, FolderError> {
    try_find_abandoned(work_dir).map_err(|source| FolderError {
        path: work_dir.to_owned(),
        operation: "looked for",
        source,
    })
}

fn try_find_abandoned(work_dir: &Path) -> io::Result<Vec<AbandonedFolder>> {
    let work_dir = match work_dir.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        found => found?,
    };
    // The gate excludes folders that are created but not yet locked.
    let _gate = lock_work_dir(&work_dir)?;
    let mut found = Vec::new();
    for entry in fs::read_dir(&work_dir)? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() || !is_ours(&entry.file_name().to_string_lossy()) {
            continue;
        }
        let path = entry.path();
        // The folder belongs to another user, or was removed meanwhile.
        let Ok(lock) = File::open(&path) else { continue };
        match lock.try_lock() {
            Ok(()) => found.push(AbandonedFolder { path, _lock: lock }),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(found)
}

/// Whether a name has the form `{attempt}-…` that [`ClaimedFolder::new`] gives.
fn is_ours(name: &str) -> bool {
    let attempt = name.rsplit_once('-').map(|(attempt, _)| attempt);
    attempt.is_some_and(|attempt| attempt.parse::<AttemptId>().is_ok())
}

/// Locks `work_dir` against the creation of folders. Held only while folders are created or examined, never during
/// other work.
fn lock_work_dir(work_dir: &Path) -> io::Result<File> {
    let gate = File::open(work_dir)?;
    gate.lock()?;
    Ok(gate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt() -> AttemptId {
        "11111111-2222-4333-8444-555555555555".parse().unwrap()
    }

    #[test]
    fn only_folders_of_the_dead_are_abandoned() {
        let parent = tempfile::tempdir().unwrap();
        let work_dir = parent.path();
        assert!(find_abandoned(&work_dir.join("none")).unwrap().is_empty());
        let alive = ClaimedFolder::new(work_dir, attempt()).unwrap();
        let dead = ClaimedFolder::new(work_dir, attempt()).unwrap();
        let root = dead.path().to_owned();
        dead.abandon();
        fs::create_dir(work_dir.join("somebody-else")).unwrap();
        fs::write(work_dir.join(format!("{}-file", attempt())), "").unwrap();
        let link = work_dir.join(format!("{}-link", attempt()));
        std::os::unix::fs::symlink(&root, link).unwrap();

        let mut found = find_abandoned(work_dir).unwrap();
        assert_eq!(
            found.iter().map(AbandonedFolder::path).collect::<Vec<_>>(),
            [&root]
        );
        assert!(
            find_abandoned(work_dir).unwrap().is_empty(),
            "its lock is free, so it can be removed now"
        );
        found.pop().unwrap().remove().unwrap();
        assert!(!root.exists() && alive.path().exists());
        assert_eq!(fs::read_dir(work_dir).unwrap().count(), 4);
    }

    #[test]
    fn a_place_that_is_not_a_folder_is_an_error() {
        let parent = tempfile::tempdir().unwrap();
        fs::write(parent.path().join("file"), "").unwrap();
        assert!(ClaimedFolder::new(&parent.path().join("file/x"), attempt()).is_err());
    }
}

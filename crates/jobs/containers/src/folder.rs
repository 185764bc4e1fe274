//! Folders that belong to living processes, and how those of dead ones are told from them.
//!
//! For as long as its process lives an executor holds a lock on its job's folder, and the kernel takes the lock away
//! however that process ends: a folder of ours whose lock can be had is nobody's ([`abandoned`]). Folders are locked
//! themselves, not a file in them, so that the lock outlasts their contents while they are removed.

use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use muster_protocol::AttemptId;
use tempfile::TempDir;

/// A folder of one attempt that is ours while this lives. Dropping it removes the folder; [`Claimed::remove`] also says
/// if that failed.
#[derive(Debug)]
pub struct Claimed {
    root: TempDir,
    /// Goes last: until the folder is removed it is ours.
    _lock: File,
}

/// The folder of a job whose executor is dead. It belongs to whoever holds this: nobody else finds it abandoned.
#[derive(Debug)]
pub struct Abandoned {
    path: PathBuf,
    _lock: File,
}

/// Folders that cannot be made or removed.
#[derive(Debug, thiserror::Error)]
#[error("the job's folder in {path} cannot be {operation}; work_dir must be writable by the executor")]
pub struct FolderError {
    path: PathBuf,
    operation: &'static str,
    source: io::Error,
}

// === impl Claimed ===

impl Claimed {
    /// Makes a folder for an attempt under `work_dir` that nobody else may enter. Its path is its one spelling.
    ///
    /// # Errors
    /// The disk is full or not ours.
    pub fn new(work_dir: &Path, attempt: AttemptId) -> Result<Self, FolderError> {
        let failed = |source| FolderError::new(work_dir, "made", source);
        // Other users of this machine do not come in, while the engine mounts what lies inside.
        let mut private = DirBuilder::new();
        private.recursive(true).mode(0o700);
        private.create(work_dir).map_err(failed)?;
        // One spelling: it is also the label by which the job's container is found.
        let work_dir = &work_dir.canonicalize().map_err(failed)?;
        let gate = gate(work_dir).map_err(failed)?;
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

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.root.path()
    }

    /// Removes everything. A container that still runs must be gone first.
    ///
    /// # Errors
    /// Something is left, for example files of another user where the executor is not root.
    pub fn remove(self) -> Result<(), FolderError> {
        let path = self.root.path().to_owned();
        self.root
            .close()
            .map_err(|source| FolderError::new(&path, "removed", source))
    }

    /// Gives everything up as it stands, as if this process were killed: the next [`abandoned`] finds it.
    pub fn leave(self) {
        let path = self.root.keep();
        tracing::debug!(path = %path.display(), "left for the next executor");
    }
}

impl FolderError {
    /// What could not be done to a job's folder.
    pub fn new(path: &Path, operation: &'static str, source: io::Error) -> Self {
        Self {
            path: path.to_owned(),
            operation,
            source,
        }
    }
}

// === impl Abandoned ===

impl Abandoned {
    /// The folder, as its container's label names it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it. Its container must be gone first.
    ///
    /// # Errors
    /// As for [`Claimed::remove`].
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

/// The folders in `work_dir` that dead executors left. Only what [`Claimed::new`] could have made there is looked at,
/// and only what this user may open. Blocks, but never for long.
///
/// # Errors
/// `work_dir` cannot be read. That there is none is no error.
pub fn abandoned(work_dir: &Path) -> Result<Vec<Abandoned>, FolderError> {
    found_abandoned(work_dir).map_err(|source| FolderError {
        path: work_dir.to_owned(),
        operation: "looked for",
        source,
    })
}

fn found_abandoned(work_dir: &Path) -> io::Result<Vec<Abandoned>> {
    let work_dir = match work_dir.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        found => found?,
    };
    // No folder is between being made and being locked now.
    let _gate = gate(&work_dir)?;
    let mut found = Vec::new();
    for entry in fs::read_dir(&work_dir)? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() || !is_ours(&entry.file_name().to_string_lossy()) {
            continue;
        }
        let path = entry.path();
        // Another user's, or removed meanwhile.
        let Ok(lock) = File::open(&path) else { continue };
        match lock.try_lock() {
            Ok(()) => found.push(Abandoned { path, _lock: lock }),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(found)
}

/// `{attempt}-…`, as [`Claimed::new`] names folders.
fn is_ours(name: &str) -> bool {
    let attempt = name.rsplit_once('-').map(|(attempt, _)| attempt);
    attempt.is_some_and(|attempt| attempt.parse::<AttemptId>().is_ok())
}

/// Held only while folders are made or judged, never while work is done.
fn gate(work_dir: &Path) -> io::Result<File> {
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
        assert!(abandoned(&work_dir.join("none")).unwrap().is_empty());
        let alive = Claimed::new(work_dir, attempt()).unwrap();
        let dead = Claimed::new(work_dir, attempt()).unwrap();
        let root = dead.path().to_owned();
        dead.leave();
        fs::create_dir(work_dir.join("somebody-else")).unwrap();
        fs::write(work_dir.join(format!("{}-file", attempt())), "").unwrap();
        let link = work_dir.join(format!("{}-link", attempt()));
        std::os::unix::fs::symlink(&root, link).unwrap();

        let mut found = abandoned(work_dir).unwrap();
        assert_eq!(found.iter().map(Abandoned::path).collect::<Vec<_>>(), [&root]);
        assert!(
            abandoned(work_dir).unwrap().is_empty(),
            "it is ours to remove now"
        );
        found.pop().unwrap().remove().unwrap();
        assert!(!root.exists() && alive.path().exists());
        assert_eq!(fs::read_dir(work_dir).unwrap().count(), 4);
    }

    #[test]
    fn a_place_that_is_not_a_folder_is_an_error() {
        let parent = tempfile::tempdir().unwrap();
        fs::write(parent.path().join("file"), "").unwrap();
        assert!(Claimed::new(&parent.path().join("file/x"), attempt()).is_err());
    }
}

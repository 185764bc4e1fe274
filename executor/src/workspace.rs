//! The folders of one job on this machine: made for it, bounded while it runs, gone after it.
//!
//! For as long as its process lives an executor holds a lock on its job's folder, and the kernel takes the lock away
//! however that process ends: a folder of ours whose lock can be had is nobody's ([`abandoned`]). Folders are locked
//! themselves, not a file in them, so that the lock outlasts their contents while they are removed.

use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use muster_protocol::AttemptId;
use tempfile::TempDir;

use crate::sandbox::JobFolders;

/// A walk through a job's folders gives up here: that many files are over any limit.
const MAX_WALKED: u64 = 5_000_000;

/// The folders of a job. Dropping it removes them; [`Workspace::remove`] also says if that failed.
#[derive(Debug)]
pub struct Workspace {
    root: TempDir,
    folders: JobFolders,
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
pub struct WorkspaceError {
    path: PathBuf,
    operation: &'static str,
    source: io::Error,
}

impl Workspace {
    /// Makes the folders of an attempt under `work_dir`, except for the one of its inputs.
    ///
    /// # Errors
    /// The disk is full or not ours.
    pub fn new(work_dir: &Path, attempt: AttemptId) -> Result<Self, WorkspaceError> {
        let failed = |source| WorkspaceError {
            path: work_dir.to_owned(),
            operation: "made",
            source,
        };
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
        let folders = JobFolders::under(root.path());
        for folder in [&folders.output, &folders.specs, &folders.artifacts] {
            fs::create_dir(folder).map_err(failed)?;
            // The image's user, whoever that is, writes here.
            fs::set_permissions(folder, Permissions::from_mode(0o777)).map_err(failed)?;
        }
        Ok(Self {
            root,
            folders,
            _lock: lock,
        })
    }

    /// Where everything is.
    pub fn folders(&self) -> &JobFolders {
        &self.folders
    }

    /// Puts the job's script in place.
    ///
    /// # Errors
    /// The disk.
    pub fn write_script(&self, script: &str) -> Result<(), WorkspaceError> {
        let path = &self.folders.script;
        let failed = |source| WorkspaceError {
            path: path.clone(),
            operation: "made",
            source,
        };
        fs::write(path, script).map_err(failed)?;
        fs::set_permissions(path, Permissions::from_mode(0o644)).map_err(failed)
    }

    /// Removes everything. A container that still runs must be gone first.
    ///
    /// # Errors
    /// Something is left, for example files of another user where the executor is not root.
    pub fn remove(self) -> Result<(), WorkspaceError> {
        let path = self.root.path().to_owned();
        self.root.close().map_err(|source| WorkspaceError {
            path,
            operation: "removed",
            source,
        })
    }

    /// Gives everything up as it stands, as if this process were killed: the next [`abandoned`] finds it.
    pub fn leave(self) {
        let path = self.root.keep();
        tracing::debug!(path = %path.display(), "left for the next executor");
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
    /// As for [`Workspace::remove`].
    pub fn remove(self) -> Result<(), WorkspaceError> {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(WorkspaceError {
                path: self.path,
                operation: "removed",
                source: error,
            }),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// The folders in `work_dir` that dead executors left. Only what [`Workspace::new`] could have made there is looked at,
/// and only what this user may open. Blocks, but never for long.
///
/// # Errors
/// `work_dir` cannot be read. That there is none is no error.
pub fn abandoned(work_dir: &Path) -> Result<Vec<Abandoned>, WorkspaceError> {
    found_abandoned(work_dir).map_err(|source| WorkspaceError {
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

/// `{attempt}-…`, as [`Workspace::new`] names folders.
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

/// Bytes on disk under `folder`. What cannot be looked at, because it vanishes meanwhile, counts nothing; no link is
/// followed. Blocks.
pub fn used(folder: &Path) -> u64 {
    let mut folders = vec![folder.to_owned()];
    let (mut bytes, mut walked) = (0_u64, 0_u64);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            walked = walked.saturating_add(1);
            if walked > MAX_WALKED {
                return u64::MAX;
            }
            // Sparse files count what they occupy.
            bytes = bytes.saturating_add(metadata.blocks().saturating_mul(512));
            if metadata.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt() -> AttemptId {
        "11111111-2222-4333-8444-555555555555".parse().unwrap()
    }

    #[test]
    fn a_workspace_is_private_and_leaves_nothing() {
        let parent = tempfile::tempdir().unwrap();
        let work_dir = parent.path().join("made/here");
        let workspace = Workspace::new(&work_dir, attempt()).unwrap();
        let other = Workspace::new(&work_dir, attempt()).unwrap();
        assert_ne!(workspace.folders(), other.folders());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&workspace.folders().root), 0o700);
        assert_eq!(mode(&workspace.folders().output), 0o777);
        assert!(!workspace.folders().volume.exists());
        workspace.write_script("print(1)").unwrap();
        workspace.remove().unwrap();
        drop(other);
        assert_eq!(fs::read_dir(&work_dir).unwrap().count(), 0);
    }

    #[test]
    fn only_folders_of_the_dead_are_abandoned() {
        let parent = tempfile::tempdir().unwrap();
        let work_dir = parent.path();
        assert!(abandoned(&work_dir.join("none")).unwrap().is_empty());
        let alive = Workspace::new(work_dir, attempt()).unwrap();
        let dead = Workspace::new(work_dir, attempt()).unwrap();
        let root = dead.folders().root.clone();
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
        assert!(!root.exists() && alive.folders().root.exists());
        assert_eq!(fs::read_dir(work_dir).unwrap().count(), 4);
    }

    #[test]
    fn a_place_that_is_not_a_folder_is_an_error() {
        let parent = tempfile::tempdir().unwrap();
        fs::write(parent.path().join("file"), "").unwrap();
        assert!(Workspace::new(&parent.path().join("file/x"), attempt()).is_err());
    }

    #[test]
    fn what_is_used_is_counted_without_following_links() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("sub")).unwrap();
        fs::write(folder.path().join("sub/file"), vec![1; 1 << 20]).unwrap();
        std::os::unix::fs::symlink("/", folder.path().join("root")).unwrap();
        let bytes = used(folder.path());
        assert!((1 << 20..2 << 20).contains(&bytes), "{bytes}");
        assert_eq!(used(Path::new("/nonexistent")), 0);
    }
}

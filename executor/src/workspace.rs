//! The folders of one job on this machine: made for it, bounded while it runs, gone after it.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
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
        fs::create_dir_all(work_dir).map_err(failed)?;
        // Other users of this machine do not come in, while the engine mounts what lies inside.
        let root = tempfile::Builder::new()
            .prefix(&format!("{attempt}-"))
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(work_dir)
            .map_err(failed)?;
        let folders = JobFolders::under(root.path());
        for folder in [&folders.output, &folders.specs, &folders.artifacts] {
            fs::create_dir(folder).map_err(failed)?;
            // The image's user, whoever that is, writes here.
            fs::set_permissions(folder, Permissions::from_mode(0o777)).map_err(failed)?;
        }
        Ok(Self { root, folders })
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

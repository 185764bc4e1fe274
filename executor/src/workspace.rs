//! The folders of one job on this machine, which are made for the job and removed after it.
//! [`muster_containers::owned_folders`] records which process owns them.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use muster_containers::owned_folders::ClaimedFolder;
pub use muster_containers::owned_folders::FolderError as WorkspaceError;
use muster_containers::sized_disk::{self, DiskMethod};
use muster_process::error::Causes;
use muster_protocol::AttemptId;

use crate::job_sandbox::JobFolders;

/// The folders of a job. Dropping this removes them; [`Workspace::remove`] also reports an error.
#[derive(Debug)]
pub struct Workspace {
    root: ClaimedFolder,
    folders: JobFolders,
}

impl Workspace {
    /// Makes the folders of an attempt below `work_dir`, except for that of its inputs: on a file system of `size`
    /// bytes if there is a size and this machine can make one.
    ///
    /// # Errors
    /// A folder cannot be made.
    pub fn new(work_dir: &Path, attempt: AttemptId, size: Option<u64>) -> Result<Self, WorkspaceError> {
        let failed = |source| WorkspaceError::new(work_dir, "made", source);
        let root = ClaimedFolder::new(work_dir, attempt)?;
        if let Some(size) = size
            && let Err(error) = sized_disk::make(root.path(), size)
        {
            tracing::warn!(error = %Causes(&error), "the job's folders are watched: it gets no disk of a fixed size");
        }
        let folders = lay_out(root.path());
        for folder in [
            &folders.output,
            &folders.specs,
            &folders.artifacts,
            &folders.report,
        ] {
            make_writable(folder).map_err(failed)?;
        }
        fs::create_dir(&folders.logs).map_err(failed)?;
        folders.host_files.write().map_err(failed)?;
        Ok(Self { root, folders })
    }

    /// Makes the folders before their job is known: also an empty folder for inputs, and an empty script if `script`.
    ///
    /// # Errors
    /// As for [`Workspace::new`].
    pub fn new_ahead(
        work_dir: &Path,
        attempt: AttemptId,
        script: bool,
        size: Option<u64>,
    ) -> Result<Self, WorkspaceError> {
        let workspace = Self::new(work_dir, attempt, size)?;
        let volume = &workspace.folders.volume;
        fs::create_dir(volume).map_err(|source| WorkspaceError::new(volume, "made", source))?;
        if script {
            workspace.write_script("")?;
        }
        Ok(workspace)
    }

    /// How the job's use of the disk is bounded.
    pub fn disk_method(folders: &JobFolders) -> DiskMethod {
        if folders.data == folders.root {
            DiskMethod::Watched
        } else {
            DiskMethod::Sized
        }
    }

    /// The paths of the folders.
    pub fn folders(&self) -> &JobFolders {
        &self.folders
    }

    /// Makes the folder in which a streaming job puts its socket.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn make_sockets(&self) -> Result<(), WorkspaceError> {
        let path = &self.folders.sockets;
        make_writable(path).map_err(|source| WorkspaceError::new(path, "made", source))
    }

    /// Makes the folder in which the job leaves checkpoints.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn make_checkpoint_folder(&self) -> Result<(), WorkspaceError> {
        let path = &self.folders.checkpoint;
        make_writable(path).map_err(|source| WorkspaceError::new(path, "made", source))
    }

    /// Writes the job's script.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_script(&self, script: &str) -> Result<(), WorkspaceError> {
        let path = &self.folders.script;
        let failed = |source| WorkspaceError::new(path, "made", source);
        fs::write(path, script).map_err(failed)?;
        fs::set_permissions(path, Permissions::from_mode(0o644)).map_err(failed)
    }

    /// The folders of a job that another process began, as this process's own.
    pub fn take_over(root: ClaimedFolder) -> Self {
        let folders = lay_out(root.path());
        Self {
            root: root.take_over(),
            folders,
        }
    }

    /// Marks the folders: if this process ends, another may take the job over for `limit`.
    ///
    /// # Errors
    /// The mark cannot be written.
    pub fn mark_adoptable(&self, limit: Duration) -> Result<(), WorkspaceError> {
        self.root.mark_adoptable(limit)
    }

    /// Removes everything. A container that still runs must be gone first.
    ///
    /// # Errors
    /// Something is left, for example files of another user where the executor is not root.
    pub fn remove(self) -> Result<(), WorkspaceError> {
        self.root.remove()
    }

    /// Gives everything up for the next executor to remove.
    pub fn give_up(self) {
        self.root.give_up();
    }

    /// Gives everything up as it stands, as if this process were killed: the next executor finds it.
    pub fn abandon(self) {
        self.root.abandon();
    }
}

/// Makes a folder in which the program of a job may write: the user that its image names may have any id.
fn make_writable(folder: &Path) -> io::Result<()> {
    fs::create_dir(folder)?;
    fs::set_permissions(folder, Permissions::from_mode(0o777))
}

/// The folders of a job whose root exists.
fn lay_out(root: &Path) -> JobFolders {
    match sized_disk::find(root) {
        Some(data) => JobFolders::with_data(root, &data),
        None => JobFolders::under(root),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_on_a_disk_of_its_own_is_found_again_and_leaves_nothing() {
        let attempt = "11111111-2222-4333-8444-555555555555".parse().unwrap();
        let parent = tempfile::tempdir().unwrap();
        let workspace = Workspace::new(parent.path(), attempt, Some(64 << 20)).unwrap();
        let folders = workspace.folders().clone();
        let method = Workspace::disk_method(&folders);
        assert_eq!(
            method,
            DiskMethod::Sized,
            "this test needs root, mkfs.ext4 and loop devices"
        );
        fs::write(folders.output.join("x"), "x").unwrap();
        workspace.mark_adoptable(Duration::from_secs(60)).unwrap();
        workspace.abandon();
        let found = muster_containers::owned_folders::find_orphans(parent.path(), |_| Some(())).unwrap();
        let again = found
            .into_iter()
            .next()
            .map(|(root, ())| Workspace::take_over(root))
            .unwrap();
        assert_eq!(again.folders(), &folders);
        again.remove().unwrap();
        assert!(!folders.root.exists());
        let watched = Workspace::new(parent.path(), attempt, None).unwrap();
        assert_eq!(Workspace::disk_method(watched.folders()), DiskMethod::Watched);
    }

    #[test]
    fn a_workspace_is_private_and_leaves_nothing() {
        let attempt = "11111111-2222-4333-8444-555555555555".parse().unwrap();
        let parent = tempfile::tempdir().unwrap();
        let work_dir = parent.path().join("made/here");
        let workspace = Workspace::new(&work_dir, attempt, None).unwrap();
        let other = Workspace::new(&work_dir, attempt, None).unwrap();
        assert_ne!(workspace.folders(), other.folders());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&workspace.folders().root), 0o700);
        assert_eq!(mode(&workspace.folders().output), 0o777);
        assert!(!workspace.folders().volume.exists());
        workspace.write_script("print(1)").unwrap();
        workspace.remove().unwrap();
        let ahead = Workspace::new_ahead(&work_dir, attempt, true, None).unwrap();
        let file = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
        let (volume, script) = (file(&ahead.folders().volume), file(&ahead.folders().script));
        ahead.write_script("print(1)").unwrap();
        assert_eq!(
            (volume, script),
            (file(&ahead.folders().volume), file(&ahead.folders().script)),
            "a container that has them mounted sees what comes"
        );
        ahead.remove().unwrap();
        drop(other);
        assert_eq!(fs::read_dir(&work_dir).unwrap().count(), 0);
    }
}

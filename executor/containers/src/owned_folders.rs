//! Folders that belong to living processes, and how those of dead processes are found.
//!
//! An executor holds a lock on its job's folder for as long as its process lives, and the kernel releases the lock
//! however that process ends. A folder of an executor whose lock is free is therefore abandoned ([`find_abandoned`]),
//! unless it is marked: then its container may run on for a while, and another process may take it over
//! ([`find_orphans`]).
//! The lock is on the folder itself, not on a file in it, so it outlasts the contents while they are removed.

use std::fs::{self, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_process::private_folder;
use muster_protocol::{AttemptId, Timestamp};

use crate::folder_removal::remove_folder;

/// The file that marks a folder whose container another process may take over. It holds the limit in seconds.
const ADOPTABLE: &str = "adoptable";
/// The file that notes when a marked folder was first found without a process, in microseconds.
const ORPHANED: &str = "orphaned";

/// The locked folder of one attempt. Dropping it removes the folder; [`ClaimedFolder::remove`] also returns an error
/// if the removal failed.
#[derive(Debug)]
pub struct ClaimedFolder {
    path: PathBuf,
    /// Whether the folder goes with this value.
    removes: bool,
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
        private_folder::create(work_dir).map_err(failed)?;
        // The container's label holds the path, so the path must have one spelling only.
        let work_dir = &work_dir.canonicalize().map_err(failed)?;
        let gate = lock_work_dir(work_dir).map_err(failed)?;
        let made = tempfile::Builder::new()
            .prefix(&format!("{attempt}-"))
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(work_dir)
            .map_err(failed)?;
        let lock = File::open(made.path()).map_err(failed)?;
        lock.try_lock().map_err(|error| failed(error.into()))?;
        drop(gate);
        Ok(Self {
            path: made.keep(),
            removes: true,
            _lock: lock,
        })
    }

    /// The canonical path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Marks the folder: if this process ends without removing it, its container may run on for `limit`, counted from
    /// when another process first notices.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn mark_adoptable(&self, limit: Duration) -> Result<(), FolderError> {
        let failed = |source| FolderError::new(&self.path, "marked", source);
        remove_file(&self.path.join(ORPHANED)).map_err(failed)?;
        fs::write(self.path.join(ADOPTABLE), limit.as_secs().to_string()).map_err(failed)
    }

    /// Releases the lock and keeps the files, for the next [`find_abandoned`] to remove at once: nobody takes this job
    /// over.
    pub fn give_up(self) {
        if let Err(error) = remove_file(&self.path.join(ADOPTABLE)) {
            tracing::warn!(%error, path = %self.path.display(), "a folder of no use stays for a while");
        }
        self.abandon();
    }

    /// A folder of [`find_orphans`] as this process's own.
    #[must_use]
    pub fn take_over(mut self) -> Self {
        self.removes = true;
        self
    }

    /// Removes the folder and everything in it. The job's container must be gone first.
    ///
    /// # Errors
    /// Something is left, for example files of another user where the executor is not root.
    pub fn remove(mut self) -> Result<(), FolderError> {
        self.removes = false;
        remove_folder(&self.path).map_err(|source| FolderError::new(&self.path, "removed", source))
    }

    /// Releases the lock and keeps the files, as if this process were killed: the next [`find_abandoned`] finds the
    /// folder.
    pub fn abandon(mut self) {
        self.removes = false;
        tracing::debug!(path = %self.path.display(), "left for the next executor");
    }
}

impl Drop for ClaimedFolder {
    fn drop(&mut self) {
        if self.removes {
            // `remove` is for those who want the error.
            let _ = remove_folder(&self.path);
        }
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
        match remove_folder(&self.path) {
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
/// [`ClaimedFolder::new`] could have given and that this user may open. A marked folder is left alone until its limit
/// has passed at `now`. Blocks, but never for long.
///
/// # Errors
/// `work_dir` cannot be read. A missing `work_dir` is no error.
pub fn find_abandoned(work_dir: &Path, now: Timestamp) -> Result<Vec<AbandonedFolder>, FolderError> {
    let found = claim_free(work_dir, |path| {
        let waiting = is_waiting(path, now).unwrap_or_else(|error| {
            // A full disk, for example: the other folders are to go all the same.
            tracing::warn!(%error, path = %path.display(), "whether a job is taken over cannot be found out; its folder stays");
            true
        });
        (!waiting).then_some(())
    });
    let found = found.map_err(|source| FolderError::new(work_dir, "looked for", source))?;
    let abandoned = found
        .into_iter()
        .map(|(path, lock, ())| AbandonedFolder { path, _lock: lock });
    Ok(abandoned.collect())
}

/// Finds the marked folders in `work_dir` whose processes are gone, and claims those for which `examine` returns
/// something. Every other folder is free again before another process may look. `examine` gets the path and must not
/// take long. A claimed folder that is not taken over must be given up again with [`ClaimedFolder::abandon`]. Blocks,
/// but never for long.
///
/// # Errors
/// As for [`find_abandoned`].
pub fn find_orphans<T>(
    work_dir: &Path,
    mut examine: impl FnMut(&Path) -> Option<T>,
) -> Result<Vec<(ClaimedFolder, T)>, FolderError> {
    let found = claim_free(work_dir, |path| {
        let marked = path.join(ADOPTABLE).exists();
        marked.then(|| examine(path)).flatten()
    });
    let found = found.map_err(|source| FolderError::new(work_dir, "looked for", source))?;
    let claimed = found.into_iter().map(|(path, lock, examined)| {
        let folder = ClaimedFolder {
            path,
            removes: false,
            _lock: lock,
        };
        (folder, examined)
    });
    Ok(claimed.collect())
}

/// Whether another process may still take a folder over. The first look notes the time.
fn is_waiting(path: &Path, now: Timestamp) -> io::Result<bool> {
    let Some(limit) = read_number(&path.join(ADOPTABLE))? else {
        return Ok(false);
    };
    let noted = path.join(ORPHANED);
    let since = match read_number(&noted)?.and_then(|micros| i64::try_from(micros).ok()) {
        Some(micros) => Timestamp::from_micros(micros),
        None => {
            fs::write(&noted, now.micros().to_string())?;
            now
        }
    };
    Ok(now < since.plus(Duration::from_secs(limit)))
}

/// The number in a file; `None` if there is no file, or something else in it.
fn read_number(path: &Path) -> io::Result<Option<u64>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().parse().ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The folders in `work_dir` whose locks are free and for which `examine` returns something, with their locks. The
/// gate is held throughout, so nobody who looks later finds a folder locked only because it was examined here.
fn claim_free<T>(
    work_dir: &Path,
    mut examine: impl FnMut(&Path) -> Option<T>,
) -> io::Result<Vec<(PathBuf, File, T)>> {
    let work_dir = match work_dir.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        found => found?,
    };
    // The gate also excludes folders that are created but not yet locked.
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
            Ok(()) => {
                if let Some(examined) = examine(&path) {
                    found.push((path, lock, examined));
                }
            }
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

    fn now() -> Timestamp {
        Timestamp::from_secs(1_767_225_600)
    }

    fn attempt() -> AttemptId {
        "11111111-2222-4333-8444-555555555555".parse().unwrap()
    }

    #[test]
    fn only_folders_of_the_dead_are_abandoned() {
        let parent = tempfile::tempdir().unwrap();
        let work_dir = parent.path();
        assert!(find_abandoned(&work_dir.join("none"), now()).unwrap().is_empty());
        let alive = ClaimedFolder::new(work_dir, attempt()).unwrap();
        let dead = ClaimedFolder::new(work_dir, attempt()).unwrap();
        let root = dead.path().to_owned();
        dead.abandon();
        fs::create_dir(work_dir.join("somebody-else")).unwrap();
        fs::write(work_dir.join(format!("{}-file", attempt())), "").unwrap();
        let link = work_dir.join(format!("{}-link", attempt()));
        std::os::unix::fs::symlink(&root, link).unwrap();

        let mut found = find_abandoned(work_dir, now()).unwrap();
        assert_eq!(
            found.iter().map(AbandonedFolder::path).collect::<Vec<_>>(),
            [&root]
        );
        assert!(
            find_abandoned(work_dir, now()).unwrap().is_empty(),
            "its lock is free, so it can be removed now"
        );
        found.pop().unwrap().remove().unwrap();
        assert!(!root.exists() && alive.path().exists());
        assert_eq!(fs::read_dir(work_dir).unwrap().count(), 4);
    }

    #[test]
    fn a_marked_folder_waits_for_another_process_and_not_for_ever() {
        let parent = tempfile::tempdir().unwrap();
        let work_dir = parent.path();
        let limit = Duration::from_secs(120);
        let folder = ClaimedFolder::new(work_dir, attempt()).unwrap();
        folder.mark_adoptable(limit).unwrap();
        let orphans = || find_orphans(work_dir, |_| Some(())).unwrap();
        assert_eq!(orphans().len(), 0, "its process lives");
        folder.abandon();
        let dead = |at: Timestamp| find_abandoned(work_dir, at).unwrap().len();
        assert_eq!(dead(now()), 0);
        let late = now().plus(limit);
        assert_eq!(dead(Timestamp::from_micros(late.micros() - 1)), 0);
        let orphans = orphans();
        assert_eq!(
            (orphans.len(), dead(late)),
            (1, 0),
            "the one who takes it over holds its lock"
        );
        for (orphan, ()) in orphans {
            // Taken over: the time counts from the next end.
            orphan.mark_adoptable(limit).unwrap();
            orphan.abandon();
        }
        assert_eq!(dead(late), 0);
        assert_eq!(dead(late.plus(limit)), 1);
    }

    #[test]
    fn a_folder_that_cannot_be_examined_keeps_no_other_from_going() {
        let parent = tempfile::tempdir().unwrap();
        let work_dir = parent.path();
        let [broken, dead] = [(); 2].map(|()| {
            let folder = ClaimedFolder::new(work_dir, attempt()).unwrap();
            let path = folder.path().to_owned();
            folder.abandon();
            path
        });
        fs::create_dir(broken.join(ADOPTABLE)).unwrap();
        let found = find_abandoned(work_dir, now()).unwrap();
        let paths: Vec<_> = found.iter().map(AbandonedFolder::path).collect();
        assert_eq!(paths, [dead]);
    }

    #[test]
    fn a_folder_is_claimed_by_the_process_it_belongs_to_and_by_no_other() {
        let parent = tempfile::tempdir().unwrap();
        let work_dir = parent.path();
        let mut of_two =
            [attempt(), "22222222-2222-4333-8444-555555555555".parse().unwrap()].map(|attempt| {
                let folder = ClaimedFolder::new(work_dir, attempt).unwrap();
                folder.mark_adoptable(Duration::from_secs(120)).unwrap();
                let path = folder.path().to_owned();
                folder.abandon();
                path
            });
        of_two.sort();
        let [mine, theirs] = &of_two;
        let of = |wanted: &Path| find_orphans(work_dir, |path| (path == wanted).then_some(())).unwrap();
        let claimed = of(mine);
        assert_eq!(
            claimed
                .iter()
                .map(|(folder, ())| folder.path())
                .collect::<Vec<_>>(),
            [mine]
        );
        let waiting = find_abandoned(work_dir, now()).unwrap();
        assert_eq!(waiting.len(), 0, "both may still be taken over");
        // Both looks above still hold what they returned.
        let others = of(theirs);
        assert_eq!(others.len(), 1, "a folder that somebody only looked at is free");
        assert_eq!(of(mine).len(), 0, "a claimed one is not");
    }

    #[test]
    fn a_place_that_is_not_a_folder_is_an_error() {
        let parent = tempfile::tempdir().unwrap();
        fs::write(parent.path().join("file"), "").unwrap();
        assert!(ClaimedFolder::new(&parent.path().join("file/x"), attempt()).is_err());
    }
}

//! Measures the disk space that a job uses, and reports when it exceeds its bound.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::query_parameters::InspectContainerOptions;
use muster_process::SharedClock;
use muster_process::error::Causes;
use nix::errno::Errno;
use nix::fcntl::openat;
use nix::sys::stat::Mode;
use tokio::sync::Semaphore;

use crate::docker_engine::{ContainerEngine, EngineError, operation_failed};
use crate::folder_removal::{flags, list};
use crate::sized_disk;

/// Upper bound on the number of files that one measurement visits. A job with more files is over any limit.
const MAX_WALKED: u64 = 5_000_000;
/// Upper bound on the depth of folders, each of which is open during a measurement. Deeper ones are over any limit.
const MAX_DEPTH: usize = 128;
/// Upper bound on the folders whose names wait during a measurement. A job with more is over any limit.
const MAX_WAITING: usize = 500_000;
/// Shortest interval between two measurements of a job's folders.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// Measuring takes at most one part in this many of the time, however many files there are.
const WATCH_SHARE: u32 = 20;
/// Measurements at once in this process: each holds up to [`MAX_DEPTH`] open folders.
static WALKS: Semaphore = Semaphore::const_new(2);

/// A job's disk is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskEnd {
    /// The job has written more than it may, or something that cannot be measured.
    Limit,
    /// The machine's disk has less than its reserve left. Which job took it is not known.
    Reserve,
}

/// Completes when `folder` has grown by more than `limit` bytes, or the disk below it has less than `reserve` bytes
/// left. The present content of `counted`, a folder below it, counts as grown. Where the job has a file system of its
/// own, that is what is measured.
pub async fn watch(
    folder: PathBuf,
    counted: PathBuf,
    limit: u64,
    reserve: u64,
    clock: SharedClock,
) -> DiskEnd {
    let start = measure(&folder).await.saturating_sub(measure(&counted).await);
    let mut pause = WATCH_EVERY;
    loop {
        if lacks_reserve(&folder, reserve) {
            return DiskEnd::Reserve;
        }
        clock.sleep(pause).await;
        let began = clock.now();
        if measure(&folder).await.saturating_sub(start) > limit {
            return DiskEnd::Limit;
        }
        pause = WATCH_EVERY.max(clock.now().since(began) * WATCH_SHARE);
    }
}

/// Whether the disk below `folder` has less than `reserve` bytes left. A disk that cannot be measured has enough.
pub fn lacks_reserve(folder: &Path, reserve: u64) -> bool {
    sized_disk::free(folder).is_ok_and(|free| free < reserve)
}

/// Completes when the container `name` has written more than `limit` bytes into its own root. The engine adds up the
/// files of the layer for each answer, so the pause between two requests is at least 20 times the duration of the
/// answer. A container that is gone counts as having written nothing.
pub async fn watch_root(engine: ContainerEngine, name: String, limit: u64, clock: SharedClock) {
    let mut pause = WATCH_EVERY;
    loop {
        clock.sleep(pause).await;
        let began = clock.now();
        match engine.measure_root(&name).await {
            Ok(bytes) if bytes > limit => return,
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(container = name, error = %Causes(&error), "the container's root could not be measured")
            }
        }
        pause = WATCH_EVERY.max(clock.now().since(began) * WATCH_SHARE);
    }
}

async fn measure(folder: &Path) -> u64 {
    if let Some(mount) = sized_disk::find(folder)
        && let Ok(used) = sized_disk::measure(&mount)
    {
        return used;
    }
    let Ok(_turn) = WALKS.acquire().await else {
        return u64::MAX;
    };
    let folder = folder.to_owned();
    let measured = tokio::task::spawn_blocking(move || disk_usage(&folder)).await;
    measured.unwrap_or_else(|error| {
        tracing::error!(%error, "measuring the job's folders was interrupted");
        0
    })
}

impl ContainerEngine {
    /// The number of bytes that a container has written into its own root.
    ///
    /// # Errors
    /// The engine failed.
    pub async fn measure_root(&self, name: &str) -> Result<u64, EngineError> {
        let options = InspectContainerOptions { size: true };
        let found = self
            .docker()
            .inspect_container(name, Some(options))
            .await
            .map_err(operation_failed("measure a container"))?;
        let bytes = found.size_rw.unwrap_or_default();
        Ok(u64::try_from(bytes).unwrap_or_default())
    }
}

/// The number of bytes on disk under `folder`. Files that vanish during the walk count nothing, and links are not
/// followed. [`u64::MAX`] for a folder that cannot be measured: too deep, too many files, or closed to this process.
/// Blocks.
pub fn disk_usage(folder: &Path) -> u64 {
    match nix::fcntl::open(folder, flags(), Mode::empty()) {
        Ok(top) => walk(top, MAX_WALKED).unwrap_or(u64::MAX),
        Err(Errno::ENOENT) => 0,
        Err(_) => u64::MAX,
    }
}

/// A folder that is open, and its folders that have not been visited.
struct OpenFolder {
    folder: OwnedFd,
    waiting: Vec<std::ffi::OsString>,
}

/// The bytes below a folder; `None` if they cannot be counted.
fn walk(top: OwnedFd, max_walked: u64) -> Option<u64> {
    let (mut bytes, mut walked, mut waiting) = (0_u64, 0_u64, 0_usize);
    let mut count = |folder: OwnedFd, waiting: &mut usize| -> io::Result<OpenFolder> {
        let mut inner = Vec::new();
        for entry in list(&folder)? {
            let entry = entry?;
            let metadata = match entry.metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                metadata => metadata?,
            };
            walked = walked.saturating_add(1);
            if metadata.is_dir() {
                inner.push(entry.file_name());
                *waiting += 1;
            }
            if walked > max_walked || *waiting > MAX_WAITING {
                return Err(io::Error::other("too many files"));
            }
            // Sparse files count the blocks they occupy.
            bytes = bytes.saturating_add(metadata.blocks().saturating_mul(512));
        }
        Ok(OpenFolder {
            folder,
            waiting: inner,
        })
    };
    let mut open = vec![count(top, &mut waiting).ok()?];
    while let Some(last) = open.last_mut() {
        let Some(name) = last.waiting.pop() else {
            open.pop();
            continue;
        };
        waiting -= 1;
        match openat(&last.folder, name.as_os_str(), flags(), Mode::empty()) {
            Ok(_) if open.len() >= MAX_DEPTH => return None,
            Ok(next) => open.push(count(next, &mut waiting).ok()?),
            // It went, or became something else, since it was listed.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => {}
            Err(_) => return None,
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use muster_process::clock::TokioClock;
    use muster_protocol::Timestamp;

    use super::*;
    use crate::folder_removal::tests::nest;

    #[test]
    fn disk_use_is_counted_without_following_links() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("sub")).unwrap();
        fs::write(folder.path().join("sub/file"), vec![1; 1 << 20]).unwrap();
        std::os::unix::fs::symlink("/", folder.path().join("root")).unwrap();
        let bytes = disk_usage(folder.path());
        assert!((1 << 20..2 << 20).contains(&bytes), "{bytes}");
        assert_eq!(disk_usage(Path::new("/nonexistent")), 0);
    }

    #[test]
    fn a_folder_that_cannot_be_measured_is_over_every_limit() {
        let folder = tempfile::tempdir().unwrap();
        nest(folder.path(), 100);
        let bytes = disk_usage(folder.path());
        assert!(
            (4_096..1 << 20).contains(&bytes),
            "beyond the longest path: {bytes}"
        );
        let deep = tempfile::tempdir().unwrap();
        nest(deep.path(), MAX_DEPTH + 1);
        assert_eq!(disk_usage(deep.path()), u64::MAX);
        for number in 0..20 {
            fs::write(folder.path().join(number.to_string()), "").unwrap();
        }
        let open = |path: &Path| nix::fcntl::open(path, flags(), Mode::empty()).unwrap();
        assert_eq!(walk(open(folder.path()), 10), None);
        for path in [folder, deep] {
            crate::folder_removal::remove_folder(&path.keep()).unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_falls_below_its_reserve_ends_the_job() {
        let folder = tempfile::tempdir().unwrap();
        let clock: SharedClock = Arc::new(TokioClock::new(Timestamp::from_secs(0)));
        let ended = watch(
            folder.path().to_owned(),
            PathBuf::new(),
            u64::MAX,
            u64::MAX,
            Arc::clone(&clock),
        )
        .await;
        assert_eq!(ended, DiskEnd::Reserve);
        assert!(!lacks_reserve(folder.path(), 0));
        let watching = watch(folder.path().to_owned(), PathBuf::new(), 1 << 20, 0, clock);
        let writing = async {
            tokio::time::sleep(WATCH_EVERY / 2).await;
            fs::write(folder.path().join("large"), vec![1; 3 << 20]).unwrap();
            std::future::pending::<()>().await;
        };
        let ended = tokio::select! {
            ended = watching => ended,
            () = writing => unreachable!("it never ends"),
        };
        assert_eq!(ended, DiskEnd::Limit);
    }
}

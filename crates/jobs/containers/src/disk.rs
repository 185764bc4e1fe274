//! Measures the disk space that a job uses, and reports when it exceeds its bound.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::query_parameters::InspectContainerOptions;
use muster_process::SharedClock;
use muster_process::error::Causes;

use crate::engine::{ContainerEngine, EngineError, operation_failed};

/// Upper bound on the number of files that one measurement visits. A job with more files is over any limit.
const MAX_WALKED: u64 = 5_000_000;
/// Shortest interval between two measurements of a job's folders.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// Measuring takes at most one part in this many of the time, however many files there are.
const WATCH_SHARE: u32 = 20;

/// Completes when `folder` has grown by more than `limit` bytes.
pub async fn watch(folder: PathBuf, limit: u64, clock: SharedClock) {
    let start = measure(&folder).await;
    let mut pause = WATCH_EVERY;
    loop {
        clock.sleep(pause).await;
        let began = clock.now();
        if measure(&folder).await.saturating_sub(start) > limit {
            return;
        }
        pause = WATCH_EVERY.max(clock.now().since(began) * WATCH_SHARE);
    }
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
/// followed. Blocks.
pub fn disk_usage(folder: &Path) -> u64 {
    let mut folders = vec![folder.to_owned()];
    let (mut bytes, mut walked) = (0_u64, 0_u64);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            walked = walked.saturating_add(1);
            if walked > MAX_WALKED {
                return u64::MAX;
            }
            // Sparse files count the blocks they occupy.
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

    #[test]
    fn what_is_used_is_counted_without_following_links() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("sub")).unwrap();
        fs::write(folder.path().join("sub/file"), vec![1; 1 << 20]).unwrap();
        std::os::unix::fs::symlink("/", folder.path().join("root")).unwrap();
        let bytes = disk_usage(folder.path());
        assert!((1 << 20..2 << 20).contains(&bytes), "{bytes}");
        assert_eq!(disk_usage(Path::new("/nonexistent")), 0);
    }
}

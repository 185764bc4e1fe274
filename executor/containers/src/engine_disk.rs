//! Watches the disk of the engine while an image arrives there: a few compressed bytes may unpack to a full disk.

use std::path::PathBuf;
use std::time::Duration;

use muster_process::SharedClock;

use crate::docker_engine::ContainerEngine;
use crate::image_settings::PullBounds;
use crate::pull_error::PullError;
use crate::sized_disk::free;

/// How often the disk is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Bytes that other jobs and other pulls may write to the engine's disk meanwhile. The disk does not show which of its
/// writers took its bytes, so a smaller loss blames no image. An image within this distance of its bound is measured
/// when it has arrived.
const OTHER_WRITERS: u64 = 1 << 30;

/// The end of a pull by the engine's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskFilled {
    /// The disk has lost more than an image may have unpacked, and more than other writers explain.
    Unpacked,
    /// The disk has less than its reserve left.
    Reserve,
}

impl DiskFilled {
    /// The pull's failure.
    pub(crate) fn error(self, image: String, bounds: PullBounds) -> PullError {
        match self {
            Self::Unpacked => PullError::TooLarge {
                image,
                max_bytes: bounds.max_unpacked,
            },
            Self::Reserve => PullError::DiskFull {
                image,
                words: format!("less than its reserve of {} MiB is left", bounds.reserve >> 20),
            },
        }
    }
}

/// The judgement of one look: bytes free at the beginning and now.
fn judge(start: u64, now: u64, bounds: PullBounds) -> Option<DiskFilled> {
    if now < bounds.reserve {
        Some(DiskFilled::Reserve)
    } else if start.saturating_sub(now) > bounds.max_unpacked.saturating_add(OTHER_WRITERS) {
        Some(DiskFilled::Unpacked)
    } else {
        None
    }
}

/// A future that ends once the engine's disk is too full. It never ends for an engine whose disk this process does not
/// see. The first look is made when the future is polled first.
pub(crate) async fn watch_engine_disk(
    engine: &ContainerEngine,
    bounds: PullBounds,
    clock: &SharedClock,
) -> impl Future<Output = DiskFilled> + use<> {
    let folder = engine.data_folder().await;
    let clock = SharedClock::clone(clock);
    async move {
        match folder {
            Some(folder) => watch(folder, bounds, clock).await,
            None => std::future::pending().await,
        }
    }
}

async fn watch(folder: PathBuf, bounds: PullBounds, clock: SharedClock) -> DiskFilled {
    let mut start = None;
    loop {
        if let Ok(now) = free(&folder)
            && let Some(filled) = judge(*start.get_or_insert(now), now, bounds)
        {
            return filled;
        }
        clock.sleep(LOOK_EVERY).await;
    }
}

impl ContainerEngine {
    /// The folder in which the engine keeps images, if this process sees it.
    async fn data_folder(&self) -> Option<PathBuf> {
        let info = self.docker().info().await.ok()?;
        info.docker_root_dir
            .map(PathBuf::from)
            .filter(|folder| folder.is_dir())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_shrinks_ends_a_pull_by_its_own_bounds() {
        let bounds = PullBounds {
            stall: Duration::ZERO,
            max_bytes: 0,
            max_unpacked: 1_000,
            reserve: 500,
        };
        let start = OTHER_WRITERS + 5_000;
        assert_eq!(
            judge(start, 4_000, bounds),
            None,
            "other writers may have taken it"
        );
        assert_eq!(judge(start, 3_999, bounds), Some(DiskFilled::Unpacked));
        assert_eq!(judge(600, 499, bounds), Some(DiskFilled::Reserve));
        assert_eq!(judge(400, 9_000, bounds), None, "room was made meanwhile");
        let image = || "x:1".to_owned();
        let blamed = DiskFilled::Unpacked.error(image(), bounds);
        assert!(
            matches!(blamed, PullError::TooLarge { max_bytes: 1_000, .. }),
            "{blamed}"
        );
        let ours = DiskFilled::Reserve.error(image(), bounds);
        assert!(matches!(ours, PullError::DiskFull { .. }), "{ours}");
    }
}

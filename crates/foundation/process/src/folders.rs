//! The sizes of a role's folders on disk, as metrics.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::SharedClock;

/// The most files that one measurement visits.
const MAX_WALKED: u64 = 1_000_000;

/// The size of a folder with all folders in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FolderSize {
    /// The number of files in it and in its folders, links among them.
    pub files: u64,
    /// Bytes on disk, in whole blocks.
    pub bytes: u64,
}

/// Measures a folder, at most its first million files; a folder that is missing is empty. Links are not followed. This
/// blocks.
pub fn measure_folder(folder: &Path) -> FolderSize {
    let mut size = FolderSize::default();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries.flatten() {
            if size.files >= MAX_WALKED {
                return size;
            }
            // A file that was removed meanwhile takes no space.
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if metadata.is_dir() {
                folders.push(entry.path());
            } else {
                size.files += 1;
                size.bytes = size.bytes.saturating_add(metadata.blocks().saturating_mul(512));
            }
        }
    }
    size
}

/// Sets the metrics `muster_folder_files` and `muster_folder_bytes` of each folder, again and again, until its task is
/// dropped. A folder's name is the key of the configuration that names its path.
#[expect(clippy::cast_precision_loss, reason = "a metric is a float")]
pub async fn report_folders(
    role: &'static str,
    folders: Vec<(&'static str, PathBuf)>,
    every: Duration,
    clock: SharedClock,
) {
    loop {
        for (name, path) in &folders {
            let path = path.clone();
            let measured = tokio::task::spawn_blocking(move || measure_folder(&path)).await;
            // A measurement that was interrupted leaves the last figures.
            if let Ok(size) = measured {
                metrics::gauge!("muster_folder_files", "role" => role, "folder" => *name)
                    .set(size.files as f64);
                metrics::gauge!("muster_folder_bytes", "role" => role, "folder" => *name)
                    .set(size.bytes as f64);
            }
        }
        clock.sleep(every).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_measured_with_all_that_is_in_them() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(
            measure_folder(&root.path().join("missing")),
            FolderSize::default()
        );
        fs::create_dir(root.path().join("deep")).unwrap();
        fs::write(root.path().join("a"), [7; 10_000]).unwrap();
        fs::write(root.path().join("deep/b"), [7; 100]).unwrap();
        std::os::unix::fs::symlink("/", root.path().join("link")).unwrap();
        let size = measure_folder(root.path());
        assert_eq!(size.files, 3);
        assert!((10_100..100_000).contains(&size.bytes), "{size:?}");
    }
}

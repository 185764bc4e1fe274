//! Records the use of images on this machine: one small file per image, in a folder that all executors of the machine
//! share.
//!
//! A lease is a shared lock on the image's file: any number of executors may hold one, and the kernel releases it when
//! the process ends. The holder of the exclusive lock may remove the image. The file's modification time is the time
//! of the last use. Its content is the names under which executors got the image: an image with any other name also
//! belongs to another program. Images without a file are never removed.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_process::{SharedClock, private_folder};
use muster_protocol::{Digest, ImageId, Timestamp};

/// Upper bound on the size of a file of names, in bytes. A name that is missing from it only keeps the image from
/// being removed.
const MAX_NAMES: u64 = 64 * 1024;
const SUFFIX: &str = ".image";
/// The file whose modification time is the beginning of the last collection.
const COLLECTION_MARK: &str = "collected";

/// Keeps an image from being removed while this value lives.
#[derive(Debug)]
pub struct Lease {
    image: ImageId,
    file: File,
    clock: SharedClock,
}

/// The right to remove an image: the exclusive lock, under which no lease exists and none can begin.
#[derive(Debug)]
pub struct RemovalRight {
    path: PathBuf,
    names: BTreeSet<String>,
    _lock: File,
}

/// An image that executors of this machine have used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageUse {
    /// The image's id.
    pub image: ImageId,
    /// The time at which a lease of it last began or ended.
    pub last: Timestamp,
}

/// The folder of leases cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the use of images cannot be recorded in {path}; cache_dir must be writable by the executor")]
pub struct LeaseError {
    path: PathBuf,
    source: io::Error,
}

// === impl Lease ===

impl Lease {
    /// Leases an image and records the name under which it was got.
    ///
    /// # Errors
    /// The disk is full, or the folder is not writable.
    pub fn take(folder: &Path, image: ImageId, name: &str, clock: &SharedClock) -> Result<Self, LeaseError> {
        take(folder, image, name, clock).map_err(|source| LeaseError {
            path: folder.to_owned(),
            source,
        })
    }

    /// The id of the leased image.
    pub fn image(&self) -> ImageId {
        self.image
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Without the new time the image only looks older than it is.
        let _ = touch(&self.file, self.clock.now());
    }
}

fn take(folder: &Path, image: ImageId, name: &str, clock: &SharedClock) -> io::Result<Lease> {
    private_folder::create(folder)?;
    let path = path_of(folder, image);
    loop {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .read(true)
            .open(&path)?;
        file.lock_shared()?;
        if !is_same_file(&file, &path)? {
            // The file was removed between being opened and being locked.
            continue;
        }
        // Two processes that add the same name at once write it twice, which does no harm: one append is atomic.
        if !read_names(&file)?.contains(name) && file.metadata()?.len() < MAX_NAMES {
            (&file).write_all(format!("{name}\n").as_bytes())?;
        }
        touch(&file, clock.now())?;
        return Ok(Lease {
            image,
            file,
            clock: clock.clone(),
        });
    }
}

/// The names under which executors of this machine got an image; `None` for an image that none of them got.
///
/// # Errors
/// The disk failed.
pub fn names_of(folder: &Path, image: ImageId) -> Result<Option<BTreeSet<String>>, LeaseError> {
    let path = path_of(folder, image);
    let read = match File::open(&path) {
        Ok(file) => read_names(&file).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    read.map_err(|source| LeaseError { path, source })
}

/// All images that were leased here and not removed.
///
/// # Errors
/// The folder cannot be read. A missing folder is no error.
pub fn list_uses(folder: &Path) -> Result<Vec<ImageUse>, LeaseError> {
    let listed = || -> io::Result<Vec<ImageUse>> {
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            entries => entries?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let digits = name.to_str().and_then(|name| name.strip_suffix(SUFFIX));
            let digest = digits.and_then(|digits| format!("sha256:{digits}").parse::<Digest>().ok());
            let (Some(digest), Ok(metadata)) = (digest, entry.metadata()) else {
                continue;
            };
            found.push(ImageUse {
                image: ImageId(digest),
                last: Timestamp::from_secs(metadata.mtime()),
            });
        }
        Ok(found)
    };
    listed().map_err(|source| LeaseError {
        path: folder.to_owned(),
        source,
    })
}

/// Whether a collection is due. If so, it counts as begun, so that only one executor of the machine collects.
///
/// # Errors
/// The disk failed.
pub(crate) fn begin_collection(folder: &Path, every: Duration, now: Timestamp) -> Result<bool, LeaseError> {
    let begun = || -> io::Result<bool> {
        private_folder::create(folder)?;
        let path = folder.join(COLLECTION_MARK);
        let first = !path.exists();
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let last = Timestamp::from_secs(file.metadata()?.mtime());
        // A time in the future was written under a wrong clock.
        let due = first || now < last || now.since(last) >= every;
        if due {
            touch(&file, now)?;
        }
        Ok(due)
    };
    begun().map_err(|source| LeaseError {
        path: folder.to_owned(),
        source,
    })
}

// === impl RemovalRight ===

impl RemovalRight {
    /// Takes the right to remove an image; `None` while a process uses it.
    ///
    /// # Errors
    /// The disk failed.
    pub fn take(folder: &Path, image: ImageId) -> Result<Option<Self>, LeaseError> {
        let path = path_of(folder, image);
        let locked = || -> io::Result<Option<Self>> {
            let file = match File::open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                file => file?,
            };
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            if !is_same_file(&file, &path)? {
                return Ok(None);
            }
            let names = read_names(&file)?;
            Ok(Some(Self {
                path: path.clone(),
                names,
                _lock: file,
            }))
        };
        locked().map_err(|source| LeaseError {
            path: path.clone(),
            source,
        })
    }

    /// The names under which executors got the image.
    pub fn names(&self) -> &BTreeSet<String> {
        &self.names
    }

    /// Removes the record after the image has been removed.
    pub fn finish(self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "the record of a removed image stays");
        }
    }
}

fn path_of(folder: &Path, image: ImageId) -> PathBuf {
    folder.join(format!("{}{SUFFIX}", image.0.hex()))
}

/// Whether the path still leads to the open file.
fn is_same_file(file: &File, path: &Path) -> io::Result<bool> {
    let open = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((open.dev(), open.ino()) == (there.dev(), there.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn read_names(mut file: &File) -> io::Result<BTreeSet<String>> {
    let mut text = String::new();
    file.rewind()?;
    file.take(2 * MAX_NAMES).read_to_string(&mut text)?;
    Ok(text.lines().map(str::to_owned).collect())
}

fn touch(file: &File, now: Timestamp) -> io::Result<()> {
    file.set_modified(now.to_chrono().into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_process::{Clock, TestClock};

    use super::*;

    fn image(text: &str) -> ImageId {
        ImageId(Digest::of(text.as_bytes()))
    }

    #[test]
    fn leased_image_cannot_be_removed_and_its_last_use_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let test = Arc::new(TestClock::new(Timestamp::from_secs(1_000)));
        let clock: SharedClock = test.clone();
        let id = image("a");
        assert!(
            RemovalRight::take(folder, id).unwrap().is_none(),
            "never used: not ours"
        );
        let one = Lease::take(folder, id, "x/a:1", &clock).unwrap();
        let two = Lease::take(folder, id, "x/a:2", &clock).unwrap();
        assert!(RemovalRight::take(folder, id).unwrap().is_none());
        let names = names_of(folder, id).unwrap().unwrap();
        assert!(names.contains("x/a:1") && !names.contains("x/a:3"));
        assert_eq!(names_of(folder, image("other")).unwrap(), None);
        drop(one);
        test.advance(Duration::from_secs(50));
        assert!(RemovalRight::take(folder, id).unwrap().is_none());
        drop(two);
        assert_eq!(
            list_uses(folder).unwrap(),
            [ImageUse {
                image: id,
                last: test.now()
            }]
        );
        let removal = RemovalRight::take(folder, id).unwrap().unwrap();
        assert_eq!(
            removal.names().iter().map(String::as_str).collect::<Vec<_>>(),
            ["x/a:1", "x/a:2"]
        );
        removal.finish();
        assert_eq!(list_uses(folder).unwrap(), []);
    }

    #[test]
    fn leases_and_removals_at_once_never_both_succeed() {
        let folder = tempfile::tempdir().unwrap();
        let clock: SharedClock = Arc::new(TestClock::new(Timestamp::from_secs(1)));
        let id = image("b");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let lease = Lease::take(folder.path(), id, "n", &clock).unwrap();
                        assert!(RemovalRight::take(folder.path(), id).unwrap().is_none());
                        assert!(path_of(folder.path(), lease.image()).exists());
                    }
                });
            }
            scope.spawn(|| {
                for _ in 0..100 {
                    if let Some(removal) = RemovalRight::take(folder.path(), id).unwrap() {
                        removal.finish();
                    }
                }
            });
        });
    }

    #[test]
    fn image_collection_is_due_after_its_interval() {
        let folder = tempfile::tempdir().unwrap();
        let due = |now| {
            let hour = Duration::from_secs(3_600);
            begin_collection(&folder.path().join("new"), hour, Timestamp::from_secs(now)).unwrap()
        };
        assert!(due(10_000));
        assert!(!due(10_001) && !due(13_599));
        assert!(due(13_600) && !due(13_601));
        assert!(due(5_000), "a clock that was set back");
    }

    #[test]
    fn lease_folder_ignores_other_files() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(list_uses(&folder.path().join("none")).unwrap(), []);
        for name in ["x.image", "README", &format!("{}.other", image("c").0.hex())] {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        assert_eq!(list_uses(folder.path()).unwrap(), []);
        fs::write(folder.path().join("file"), "").unwrap();
        let clock: SharedClock = Arc::new(TestClock::new(Timestamp::from_secs(1)));
        assert!(Lease::take(&folder.path().join("file"), image("c"), "n", &clock).is_err());
    }
}

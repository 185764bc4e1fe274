//! Caches inputs for later jobs by their digest, in one folder for all executors of a machine.
//!
//! ```text
//! blobs/<sha256>     content; a reader holds a shared lock on the file, a removal needs the exclusive lock
//! urls/<sha256>      the digest and the entity tag of a URL's content: JSON
//! incoming/*         downloads in progress, each under a shared lock of its process
//! ```
//!
//! The kernel releases the locks of a process however it ends, so a dead process keeps nothing in use. Content is
//! hashed again for each use: a damaged file is noticed and fetched again. Everything here blocks.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use muster_process::private_folder;
use muster_protocol::{Digest, Timestamp};
use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tempfile::NamedTempFile;

/// Upper bound on the size of one index entry, in bytes.
const MAX_INDEX: u64 = 4_096;
/// A file younger than this may not be locked by its creator yet, so it is not removed as abandoned.
const MIN_ABANDONED_AGE: Duration = Duration::from_secs(600);
const BLOCK: usize = 256 * 1024;

/// Upper bounds on the cache, set by the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Total size of all content, in bytes. Content in use is not removed even above it.
    pub bytes: u64,
    /// Longest time since the last use.
    pub age: Duration,
}

/// The cached inputs of a machine.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
    limits: CacheLimits,
}

/// Content in use, which is not removed while this value lives.
#[derive(Debug)]
pub struct CachedFile {
    /// The locked file, positioned at its beginning.
    pub(crate) file: File,
    pub(crate) len: u64,
}

/// The content that a URL had when it was last fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CachedResource {
    pub(crate) etag: String,
    pub(crate) sha256: Digest,
}

/// A download in progress.
#[derive(Debug)]
pub(crate) struct IncomingFile {
    pub(crate) file: NamedTempFile,
}

/// The result of one collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InputCollectionCounts {
    /// Number of files removed.
    pub removed: usize,
    /// Their total size in bytes.
    pub bytes: u64,
}

struct Blob {
    path: PathBuf,
    len: u64,
    used: SystemTime,
}

impl CachedFile {
    /// A file outside the cache, which is deleted after its use.
    pub(crate) fn uncached(file: NamedTempFile, len: u64) -> io::Result<Self> {
        let mut file = file.into_file();
        file.seek(SeekFrom::Start(0))?;
        Ok(Self { file, len })
    }
}

impl Cache {
    /// Opens the cache and creates its folders, with access for this user alone.
    ///
    /// # Errors
    /// The disk failed.
    pub fn open(root: &Path, limits: CacheLimits) -> io::Result<Self> {
        private_folder::create(root)?;
        for part in ["blobs", "urls", "incoming"] {
            private_folder::create(&root.join(part))?;
        }
        Ok(Self {
            root: root.to_owned(),
            limits,
        })
    }

    /// Whether content of this length is cached. Content above half of the cache's size is not: it would evict most of
    /// the rest.
    pub(crate) fn accepts(&self, len: u64) -> bool {
        len <= self.limits.bytes / 2
    }

    pub(crate) fn begin_download(&self) -> io::Result<IncomingFile> {
        let file = NamedTempFile::new_in(self.root.join("incoming"))?;
        file.as_file().lock_shared()?;
        Ok(IncomingFile { file })
    }

    /// The recorded content of a URL.
    pub(crate) fn look_up(&self, resource: &str) -> Option<CachedResource> {
        let mut text = Vec::new();
        let file = File::open(self.index(resource)).ok()?;
        file.take(MAX_INDEX).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Locks content for use, if it is present and matches its digest.
    pub(crate) fn open_content(&self, sha256: Digest) -> io::Result<Option<CachedFile>> {
        let path = self.blob(sha256);
        let mut file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        file.lock_shared()?;
        // The file may have been removed between opening and locking.
        if !is_at(&file, &path) {
            return Ok(None);
        }
        let (len, found) = hash(&mut file)?;
        if found != sha256 {
            tracing::warn!(path = %path.display(), "a cached input is damaged and is fetched again");
            fs::remove_file(&path)?;
            return Ok(None);
        }
        file.seek(SeekFrom::Start(0))?;
        // The last use decides the order of removal. A failure to record it is not worth an error.
        let _ = utimensat(
            AT_FDCWD,
            &path,
            &TimeSpec::UTIME_NOW,
            &TimeSpec::UTIME_NOW,
            UtimensatFlags::NoFollowSymlink,
        );
        Ok(Some(CachedFile { file, len }))
    }

    /// Adds a download to the cache, and records its URL.
    pub(crate) fn insert(
        &self,
        incoming: IncomingFile,
        sha256: Digest,
        resource: Option<(&str, &str)>,
    ) -> io::Result<CachedFile> {
        let len = incoming.file.as_file().metadata()?.len();
        // The lock is on the file, not on its name, so the file is locked throughout the rename.
        let file = match incoming.file.persist_noclobber(self.blob(sha256)) {
            Ok(file) => file,
            // Another process fetched the same content at the same time: this copy is used once and deleted.
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => error.file.into_file(),
            Err(error) => return Err(error.error),
        };
        if let Some((resource, etag)) = resource {
            let known = CachedResource {
                etag: etag.to_owned(),
                sha256,
            };
            let mut entry = NamedTempFile::new_in(self.root.join("incoming"))?;
            serde_json::to_writer(&mut entry, &known)?;
            entry.persist(self.index(resource)).map_err(|error| error.error)?;
        }
        let mut file = file;
        file.seek(SeekFrom::Start(0))?;
        Ok(CachedFile { file, len })
    }

    /// Removes content that has not been used for too long, then the longest unused until the rest is small enough,
    /// then the downloads of dead processes and the index entries of removed content. Content in use is not removed.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn collect(&self, now: Timestamp) -> io::Result<InputCollectionCounts> {
        let now = SystemTime::from(now.to_chrono());
        let age = |used: SystemTime| now.duration_since(used).unwrap_or_default();
        let mut done = InputCollectionCounts::default();
        let mut blobs = list_files(&self.root.join("blobs"))?;
        blobs.sort_by_key(|blob| blob.used);
        let mut total = blobs.iter().map(|blob| blob.len).fold(0, u64::saturating_add);
        for blob in &blobs {
            if (age(blob.used) > self.limits.age || total > self.limits.bytes) && remove_unused(&blob.path)? {
                total = total.saturating_sub(blob.len);
                done.removed += 1;
                done.bytes = done.bytes.saturating_add(blob.len);
            }
        }
        for left in list_files(&self.root.join("incoming"))? {
            if age(left.used) > MIN_ABANDONED_AGE {
                remove_unused(&left.path)?;
            }
        }
        for entry in list_files(&self.root.join("urls"))? {
            let known = fs::read(&entry.path)
                .ok()
                .and_then(|text| serde_json::from_slice::<CachedResource>(&text).ok());
            if known.is_none_or(|known| !self.blob(known.sha256).exists()) {
                remove_unused(&entry.path)?;
            }
        }
        Ok(done)
    }

    fn blob(&self, sha256: Digest) -> PathBuf {
        self.root.join("blobs").join(sha256.hex())
    }

    fn index(&self, resource: &str) -> PathBuf {
        self.root.join("urls").join(Digest::of(resource.as_bytes()).hex())
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let (ours, there) = (file.metadata().map(id), fs::symlink_metadata(path).map(id));
    matches!((ours, there), (Ok(ours), Ok(there)) if ours == there)
}

fn hash(file: &mut File) -> io::Result<(u64, Digest)> {
    let mut sha256 = Sha256::new();
    let (mut len, mut block) = (0_u64, vec![0; BLOCK]);
    loop {
        let read = file.read(&mut block)?;
        let Some(data) = block.get(..read).filter(|data| !data.is_empty()) else {
            return Ok((len, Digest::from_bytes(sha256.finalize().into())));
        };
        sha256.update(data);
        len = len.saturating_add(data.len() as u64);
    }
}

fn list_files(folder: &Path) -> io::Result<Vec<Blob>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // The file was removed by another process.
        let Ok(metadata) = entry.metadata() else { continue };
        found.push(Blob {
            path: entry.path(),
            len: metadata.len(),
            used: metadata.modified()?,
        });
    }
    Ok(found)
}

/// Removes a file unless a process has it locked.
fn remove_unused(path: &Path) -> io::Result<bool> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        removed => removed.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use muster_process::{Clock, SystemClock};

    use super::*;

    const LIMITS: CacheLimits = CacheLimits {
        bytes: 100,
        age: Duration::from_secs(3_600),
    };

    fn keep(cache: &Cache, content: &[u8], url: Option<(&str, &str)>) -> CachedFile {
        let mut incoming = cache.begin_download().unwrap();
        incoming.file.write_all(content).unwrap();
        cache.insert(incoming, Digest::of(content), url).unwrap()
    }

    fn read(held: &mut CachedFile) -> Vec<u8> {
        let mut content = Vec::new();
        held.file.read_to_end(&mut content).unwrap();
        content
    }

    /// Sets the time of last use. The seconds count from the time at which the test runs, because the kernel sets the
    /// times of files.
    fn used(cache: &Cache, content: &[u8], secs: u64) {
        let file = File::options()
            .write(true)
            .open(cache.blob(Digest::of(content)))
            .unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(secs))
            .unwrap();
    }

    #[test]
    fn cached_content_is_found_by_digest_and_by_url() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::open(&root.path().join("a/b"), LIMITS).unwrap();
        assert_eq!(
            read(&mut keep(&cache, b"one", Some(("http://x/", "\"1\"")))),
            b"one"
        );
        let known = cache.look_up("http://x/").unwrap();
        assert_eq!((known.etag.as_str(), known.sha256), ("\"1\"", Digest::of(b"one")));
        let mut held = cache.open_content(known.sha256).unwrap().unwrap();
        assert_eq!((read(&mut held), held.len), (b"one".to_vec(), 3));
        assert!(cache.look_up("http://y/").is_none());
        assert!(cache.open_content(Digest::of(b"two")).unwrap().is_none());
        keep(&cache, b"two", Some(("http://x/", "\"2\"")));
        assert_eq!(cache.look_up("http://x/").unwrap().etag, "\"2\"");
        let mode = fs::metadata(root.path().join("a/b/blobs")).unwrap().mode() & 0o777;
        assert_eq!(mode, 0o700);
        assert_eq!(fs::read_dir(root.path().join("a/b/incoming")).unwrap().count(), 0);
    }

    #[test]
    fn damaged_content_is_not_used() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::open(root.path(), LIMITS).unwrap();
        drop(keep(&cache, b"content", None));
        fs::write(cache.blob(Digest::of(b"content")), b"c0ntent").unwrap();
        assert!(cache.open_content(Digest::of(b"content")).unwrap().is_none());
        keep(&cache, b"content", None);
        assert!(cache.open_content(Digest::of(b"content")).unwrap().is_some());
    }

    #[test]
    fn the_old_and_the_surplus_go_and_what_is_in_use_stays() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::open(root.path(), LIMITS).unwrap();
        let content = |letter: u8| vec![letter; 40];
        for (letter, secs) in [(b'a', 10), (b'b', 20), (b'c', 30), (b'd', 40)] {
            let url = format!("http://x/{letter}");
            drop(keep(&cache, &content(letter), Some((&url, "\"e\""))));
            used(&cache, &content(letter), secs);
        }
        let other = Cache::open(root.path(), LIMITS).unwrap();
        let mut in_use = other.open_content(Digest::of(&content(b'a'))).unwrap().unwrap();
        used(&cache, &content(b'a'), 10);
        // 160 bytes of 100: a is the oldest but in use, so b and c go.
        let collected = cache.collect(Timestamp::from_secs(50)).unwrap();
        assert_eq!(
            collected,
            InputCollectionCounts {
                removed: 2,
                bytes: 80
            }
        );
        assert_eq!(read(&mut in_use), content(b'a'));
        let there = |letter| cache.blob(Digest::of(&content(letter))).exists();
        assert_eq!([b'a', b'b', b'c', b'd'].map(there), [true, false, false, true]);
        assert!(cache.look_up("http://x/98").is_none() && cache.look_up("http://x/100").is_some());
        drop(in_use);
        // An hour later everything is too old.
        let collected = cache.collect(Timestamp::from_secs(40 + 3_601)).unwrap();
        assert_eq!(collected.removed, 2);
    }

    #[test]
    fn leftovers_of_the_dead_go_and_those_of_the_living_stay() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::open(root.path(), LIMITS).unwrap();
        let living = cache.begin_download().unwrap();
        let dead = root.path().join("incoming/dead");
        fs::write(&dead, "half").unwrap();
        let later = Timestamp::from_secs(40_000_000_000);
        cache.collect(later).unwrap();
        assert!(living.file.path().exists() && !dead.exists());
    }

    #[test]
    fn the_same_content_from_two_at_once_is_kept_once() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::open(root.path(), LIMITS).unwrap();
        let (mut first, mut second) = (keep(&cache, b"same", None), keep(&cache, b"same", None));
        assert_eq!(
            (read(&mut first), read(&mut second)),
            (b"same".to_vec(), b"same".to_vec())
        );
        assert_eq!(fs::read_dir(root.path().join("blobs")).unwrap().count(), 1);
        assert_eq!(fs::read_dir(root.path().join("incoming")).unwrap().count(), 0);
    }

    #[test]
    fn many_at_once_never_lose_what_they_hold() {
        let root = tempfile::tempdir().unwrap();
        let limits = CacheLimits { bytes: 64, ..LIMITS };
        let work = |worker: u8| {
            let cache = Cache::open(root.path(), limits).unwrap();
            for round in 0..60_u8 {
                let content = vec![round % 5; 30];
                let mut held = match cache.open_content(Digest::of(&content)).unwrap() {
                    Some(held) => held,
                    None => keep(&cache, &content, Some(("http://x/", &format!("\"{worker}\"")))),
                };
                cache.collect(SystemClock::default().now()).unwrap();
                assert_eq!(read(&mut held), content);
            }
        };
        std::thread::scope(|scope| {
            for worker in 0..4 {
                scope.spawn(move || work(worker));
            }
        });
    }
}

//! The bytes of a download that have come, kept beside its place until they are all there. A later process goes on
//! where an earlier one was interrupted.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use muster_protocol::Digest;
use muster_protocol::rest::FileView;
use sha2::{Digest as _, Sha256};

const BLOCK: usize = 256 * 1024;
/// Digits of the content's digest in the name of a part.
const MARK_DIGITS: usize = 8;
/// The bytes of a file's name, at most.
const MAX_NAME_BYTES: usize = 255;
/// The owner writes a part, whatever the mode of the whole file is.
const OWNER_WRITES: u32 = 0o600;

/// A download under way.
pub(crate) struct PartFile {
    path: PathBuf,
    file: File,
    mode: u32,
    hasher: Sha256,
    received: u64,
}

/// The place of a part: `NAME.MARK.part` beside `to`, where the mark stands for the content. So no part is another
/// content's, and none is a file of the user's.
pub(crate) fn part_path(to: &Path, file: &FileView) -> PathBuf {
    let mark = file.sha256.as_ref().unwrap_or(&file.id);
    // The facilitator chose both.
    let mark: String = mark
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(MARK_DIGITS)
        .collect();
    let ending = format!(".{mark}.part");
    let name = to.file_name().unwrap_or_default().as_bytes();
    let room = MAX_NAME_BYTES.saturating_sub(ending.len());
    let mut part = name.get(..room).unwrap_or(name).to_vec();
    part.extend(ending.bytes());
    to.with_file_name(OsString::from_vec(part))
}

impl PartFile {
    /// Opens the part at `path`, or makes it. The whole file gets these permission bits, of which the umask takes its
    /// part. Bytes that an earlier process left are kept if `keeps` and if they are no more than `most`.
    pub(crate) fn open(path: PathBuf, mode: u32, keeps: bool, most: Option<u64>) -> io::Result<Self> {
        match path.symlink_metadata() {
            Ok(found) if !found.is_file() => return Err(io::Error::other("it is no regular file")),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(mode | OWNER_WRITES)
            .open(&path)?;
        // A file system without locks is used without them.
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            return Err(io::Error::other("another command fetches it at this moment"));
        }
        let mut part = Self {
            path,
            file,
            mode,
            hasher: Sha256::new(),
            received: 0,
        };
        let found = part.file.metadata()?.len();
        if keeps && most.is_none_or(|most| found <= most) {
            part.read_again()?;
        } else {
            part.restart()?;
        }
        Ok(part)
    }

    fn read_again(&mut self) -> io::Result<()> {
        let mut block = vec![0; BLOCK];
        loop {
            let read = self.file.read(&mut block)?;
            if read == 0 {
                return Ok(());
            }
            self.hasher.update(block.get(..read).unwrap_or_default());
            self.received += read as u64;
        }
    }

    /// Forgets what has come.
    pub(crate) fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.hasher = Sha256::new();
        self.received = 0;
        Ok(())
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.hasher.update(bytes);
        self.received += bytes.len() as u64;
        Ok(())
    }

    /// The bytes that have come.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn digest(&self) -> Digest {
        Digest::from_bytes(self.hasher.clone().finalize().into())
    }

    /// Gives the whole file its mode, and closes it.
    pub(crate) fn finish(self) -> io::Result<PathBuf> {
        let made = self.file.metadata()?.permissions().mode();
        self.file
            .set_permissions(Permissions::from_mode(made & self.mode))?;
        Ok(self.path)
    }

    /// Removes what has come.
    pub(crate) fn discard(self) {
        // A part that stays is found out by its digest.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::Timestamp;

    use super::*;

    fn file(sha256: Option<&str>) -> FileView {
        FileView {
            id: "11111111-2222-4333-8444-555555555555".to_owned(),
            name: "n".to_owned(),
            size: None,
            received: 0,
            complete: true,
            sha256: sha256.map(str::to_owned),
            upload_url: String::new(),
            download_url: String::new(),
            expires_at: Timestamp::from_secs(0),
            created_at: Timestamp::from_secs(0),
        }
    }

    #[test]
    fn a_part_is_named_by_its_place_and_its_content() {
        let of = |to: &str, sha256| part_path(Path::new(to), &file(sha256));
        let digest = "ab".repeat(32);
        assert_eq!(of("d/a.bin", Some(&digest)), Path::new("d/a.bin.abababab.part"));
        assert_eq!(of("a.bin", None), Path::new("a.bin.11111111.part"));
        assert_eq!(of("d/a", Some("../../b")), Path::new("d/a.b.part"));
        let long = of(&"n".repeat(250), Some(&digest));
        assert_eq!(long.as_os_str().len(), MAX_NAME_BYTES);
    }

    #[test]
    fn an_earlier_part_is_kept_unless_it_cannot_be_of_this_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.part");
        let open = |keeps, most| PartFile::open(path.clone(), 0o444, keeps, most);
        let mut part = open(true, Some(6)).unwrap();
        part.add(b"abc").unwrap();
        assert!(open(true, Some(6)).is_err(), "another command has it open");
        drop(part);
        let mut part = open(true, Some(6)).unwrap();
        assert_eq!(part.received(), 3);
        part.add(b"def").unwrap();
        assert_eq!(part.digest(), Digest::of(b"abcdef"));
        drop(part);
        assert_eq!(open(true, Some(5)).unwrap().received(), 0, "more than the whole");
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(open(false, None).unwrap().received(), 0);
    }

    #[test]
    fn a_whole_file_has_its_mode_and_its_part_can_be_written_before() {
        let folder = tempfile::tempdir().unwrap();
        let part = PartFile::open(folder.path().join("x.part"), 0o555, true, None).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(part.path()) & OWNER_WRITES, OWNER_WRITES);
        let path = part.finish().unwrap();
        assert_eq!(mode(&path) & 0o700, 0o500);
        std::os::unix::fs::symlink("x.part", folder.path().join("link")).unwrap();
        assert!(PartFile::open(folder.path().join("link"), 0o644, true, None).is_err());
    }
}

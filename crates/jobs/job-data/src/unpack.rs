//! Writes files into a job's folder. Archives are untrusted: nothing is written outside the folder, and only plain
//! files and folders are created. Everything here blocks.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufReader, Read, Seek, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::libc::O_NOFOLLOW;
use tokio_util::sync::CancellationToken;
use zip::read::ZipFile;

use crate::error::VolumeError;
use crate::safe_names::{base_path, plain_path, shown};
use crate::zip_directory::{DirectoryError, open_archive};

const BLOCK: usize = 256 * 1024;
/// The bits of a Unix mode that distinguish files, folders, links and devices.
const KIND: u32 = 0o170_000;
const FOLDER: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
/// Upper bound on the ratio of unpacked to packed size. Real data does not pack better.
const MAX_RATIO: u64 = 250;
/// Unpacked size from which the ratio counts, in bytes: small files of zeros are harmless.
const RATIO_FROM: u64 = 64 << 20;

/// Upper bounds on the inputs of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnpackLimits {
    /// Total size of all files, in bytes.
    pub bytes: u64,
    /// Number of files and folders of all volumes together.
    pub entries: usize,
}

/// Whether the path is an empty folder, not a link to one.
fn is_empty_folder(path: &Path) -> bool {
    let folder = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir());
    folder && fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

/// The folder of a job's inputs while it is filled.
#[derive(Debug)]
pub(crate) struct InputFolder {
    target: PathBuf,
    limits: UnpackLimits,
    bytes: u64,
    entries: usize,
    /// Position of the volume that is being unpacked, from 0.
    pub(crate) index: usize,
    called_off: CancellationToken,
}

impl InputFolder {
    /// Creates the folder.
    pub(crate) fn create(
        target: &Path,
        limits: UnpackLimits,
        called_off: CancellationToken,
    ) -> Result<Self, VolumeError> {
        match fs::create_dir(target) {
            Ok(()) => {}
            // The folder was created before, for a container that has it mounted already.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_empty_folder(target) => {}
            Err(error) => return Err(VolumeError::Disk(error)),
        }
        let room = Self {
            target: target.to_owned(),
            limits,
            bytes: 0,
            entries: 0,
            index: 0,
            called_off,
        };
        room.set_folder_mode(target)?;
        Ok(room)
    }

    /// Number of bytes that may still be written.
    pub(crate) fn remaining(&self) -> u64 {
        self.limits.bytes.saturating_sub(self.bytes)
    }

    /// The limits of this folder.
    pub(crate) fn limits(&self) -> UnpackLimits {
        self.limits
    }

    /// Unpacks an archive of `packed` bytes below `base`.
    pub(crate) fn unpack_archive(
        &mut self,
        reader: impl Read + Seek,
        packed: u64,
        base: Option<&str>,
    ) -> Result<(), VolumeError> {
        let index = self.index;
        let broken = |source| VolumeError::Zip { index, source };
        let hostile = |reason| VolumeError::Hostile { index, reason };
        let base = base_path(base).map_err(|reason| self.name_error(base.unwrap_or_default(), reason))?;
        self.create_folders(&base)?;
        let room = self.limits.entries.saturating_sub(self.entries);
        let mut archive = open_archive(reader, room).map_err(|error| match error {
            DirectoryError::TooMany => VolumeError::TooMany {
                index,
                limit: self.limits.entries,
            },
            DirectoryError::TooLarge => hostile("has a directory of more than 64 MiB"),
            DirectoryError::Zip(source) => broken(source),
        })?;
        self.count_entries(archive.len())?;
        if archive.has_duplicate_names() {
            return Err(hostile("names a file twice"));
        }
        let before = self.bytes;
        for position in 0..archive.len() {
            let mut entry = archive.by_index(position).map_err(broken)?;
            let name = entry.name().map_err(broken)?.into_owned();
            let path = base.join(self.check_name(name.strip_suffix('/').unwrap_or(&name))?);
            if self.is_folder(&entry, &name)? {
                self.create_folders(&path)?;
                continue;
            }
            let executable = entry.unix_mode().is_some_and(|mode| mode & 0o111 != 0);
            self.write_file(&mut entry, &path, &name, executable, broken_read)?;
            let unpacked = self.bytes.saturating_sub(before);
            if unpacked > RATIO_FROM && unpacked / MAX_RATIO > packed {
                return Err(hostile("unpacks to more than 250 times its size"));
            }
        }
        Ok(())
    }

    /// Copies one file into the folder. Its name is untrusted.
    pub(crate) fn copy_file(&mut self, source: File, name: &str) -> Result<(), VolumeError> {
        let path = self.check_name(name)?;
        self.count_entries(1)?;
        if let Some(above) = path.parent() {
            self.create_folders(above)?;
        }
        let unreadable = |_: usize, error| VolumeError::Disk(error);
        self.write_file(
            &mut BufReader::with_capacity(BLOCK, source),
            &path,
            name,
            false,
            unreadable,
        )
    }

    /// The same as [`InputFolder::copy_file`] for a file on the same disk that nothing else uses: it is moved.
    pub(crate) fn move_file(&mut self, source: &Path, len: u64, name: &str) -> Result<(), VolumeError> {
        let path = self.check_name(name)?;
        self.count_entries(1)?;
        self.count_bytes(len)?;
        if let Some(above) = path.parent() {
            self.create_folders(above)?;
        }
        let full = self.target.join(&path);
        if full.is_dir() {
            return Err(self.name_error(name, "is a file here and a folder elsewhere"));
        }
        fs::set_permissions(source, Permissions::from_mode(0o644)).map_err(VolumeError::Disk)?;
        fs::rename(source, full).map_err(VolumeError::Disk)
    }

    /// Whether an entry is a folder; anything but a folder or a regular file is refused.
    fn is_folder<R: Read>(&self, entry: &ZipFile<'_, R>, name: &str) -> Result<bool, VolumeError> {
        let kind = entry.unix_mode().map_or(0, |mode| mode & KIND);
        match (name.ends_with('/'), kind) {
            (true, 0 | FOLDER) => Ok(true),
            (false, 0 | REGULAR) if !entry.is_symlink() => Ok(false),
            _ => Err(self.name_error(name, "is neither a regular file nor a folder")),
        }
    }

    fn write_file(
        &mut self,
        source: &mut impl Read,
        path: &Path,
        name: &str,
        executable: bool,
        unreadable: fn(usize, io::Error) -> VolumeError,
    ) -> Result<(), VolumeError> {
        if let Some(above) = path.parent() {
            self.create_folders(above)?;
        }
        let full = self.target.join(path);
        let opened = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(O_NOFOLLOW)
            .open(&full);
        let mut file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                return Err(self.name_error(name, "is a file here and a folder elsewhere"));
            }
            Err(error) => return Err(VolumeError::Disk(error)),
        };
        let mut block = vec![0; BLOCK];
        loop {
            if self.called_off.is_cancelled() {
                return Err(VolumeError::CalledOff);
            }
            let read = source
                .read(&mut block)
                .map_err(|error| unreadable(self.index, error))?;
            let Some(data) = block.get(..read).filter(|data| !data.is_empty()) else {
                break;
            };
            // The sizes in an archive's headers are not trusted; the unpacked bytes count.
            self.count_bytes(data.len() as u64)?;
            file.write_all(data).map_err(VolumeError::Disk)?;
        }
        let mode = if executable { 0o755 } else { 0o644 };
        file.set_permissions(Permissions::from_mode(mode))
            .map_err(VolumeError::Disk)
    }

    /// Creates the folders of a relative path, readable by any user that the image runs as.
    fn create_folders(&self, path: &Path) -> Result<(), VolumeError> {
        let mut full = self.target.clone();
        for part in path.components() {
            full.push(part);
            match fs::create_dir(&full) {
                Ok(()) => self.set_folder_mode(&full)?,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && full.is_dir() => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    return Err(
                        self.name_error(&path.to_string_lossy(), "is a folder here and a file elsewhere")
                    );
                }
                Err(error) => return Err(VolumeError::Disk(error)),
            }
        }
        Ok(())
    }

    /// Sets the mode explicitly, because the process's umask may restrict it.
    fn set_folder_mode(&self, path: &Path) -> Result<(), VolumeError> {
        fs::set_permissions(path, Permissions::from_mode(0o755)).map_err(VolumeError::Disk)
    }

    fn count_bytes(&mut self, more: u64) -> Result<(), VolumeError> {
        self.bytes = self.bytes.saturating_add(more);
        if self.bytes > self.limits.bytes {
            return Err(VolumeError::TooLarge {
                index: self.index,
                limit: self.limits.bytes,
            });
        }
        Ok(())
    }

    fn count_entries(&mut self, more: usize) -> Result<(), VolumeError> {
        self.entries = self.entries.saturating_add(more);
        if self.entries > self.limits.entries {
            return Err(VolumeError::TooMany {
                index: self.index,
                limit: self.limits.entries,
            });
        }
        Ok(())
    }

    /// A relative path of ordinary names.
    fn check_name(&self, name: &str) -> Result<PathBuf, VolumeError> {
        plain_path(name).map_err(|reason| self.name_error(name, reason))
    }

    pub(crate) fn name_error(&self, name: &str, reason: &'static str) -> VolumeError {
        VolumeError::Name {
            index: self.index,
            name: shown(name),
            reason,
        }
    }
}

fn broken_read(index: usize, error: io::Error) -> VolumeError {
    VolumeError::Zip {
        index,
        source: error.into(),
    }
}

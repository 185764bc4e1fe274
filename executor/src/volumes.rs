//! Puts a job's inputs in place. Archives come from strangers: nothing is written outside the job's folder, nothing but
//! plain files and folders is made, and what is refused leaves nothing behind.
//!
//! This executor unpacks inline archives. It fetches nothing from the network: volumes that name a URL or a repository
//! are refused with a message that says so.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Cursor, Read, Seek, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_kit::Coded;
use muster_protocol::volume::{InlineVolume, VolumePart};
use muster_protocol::{ErrorCode, Volume};
use nix::libc::O_NOFOLLOW;
use tokio_util::sync::CancellationToken;
use zip::ZipArchive;
use zip::read::ZipFile;

const MAX_COMPONENT: usize = 255;
const MAX_PATH: usize = 1_024;
const MAX_DEPTH: usize = 64;
const BLOCK: usize = 128 * 1024;
/// The bits of a Unix mode that tell files, folders, links and devices apart.
const KIND: u32 = 0o170_000;
const FOLDER: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;

/// Why inputs could not be put in place.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// A kind that needs the network.
    #[error(
        "volume {index}: this executor does not fetch volumes of type {kind}; send the files as an inline volume"
    )]
    NotFetched {
        /// Position among the job's volumes, from 0.
        index: usize,
        /// Its `volume_type`.
        kind: &'static str,
    },
    /// The offer and the job both brought inputs.
    #[error("the job's volume was sent twice, with the offer and with the request")]
    Twice,
    /// Not base64.
    #[error("volume {index}: the contents are not base64")]
    Base64 {
        /// Position among the job's volumes.
        index: usize,
        /// Where it goes wrong.
        source: base64::DecodeError,
    },
    /// Not a zip archive, or one that is damaged or encrypted.
    #[error("volume {index}: the archive cannot be read")]
    Zip {
        /// Position among the job's volumes.
        index: usize,
        /// What is wrong with it.
        source: zip::result::ZipError,
    },
    /// A name that does not belong inside a folder.
    #[error("volume {index}: {name:?} {reason}")]
    Name {
        /// Position among the job's volumes.
        index: usize,
        /// The entry, shortened.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Too many entries in all volumes together.
    #[error("volume {index}: more than {limit} files and folders")]
    TooMany {
        /// Position among the job's volumes.
        index: usize,
        /// How many are allowed.
        limit: usize,
    },
    /// Too many bytes in all volumes together, counted as they were unpacked.
    #[error("volume {index}: more than {limit} bytes unpacked")]
    TooLarge {
        /// Position among the job's volumes.
        index: usize,
        /// How many are allowed.
        limit: u64,
    },
    /// The time allowed for inputs is over, or the job was called off.
    #[error("unpacking was called off")]
    CalledOff,
    /// This machine's disk.
    #[error("the inputs cannot be written on this machine")]
    Disk(#[source] io::Error),
}

impl VolumeError {
    /// Whether the inputs are at fault rather than this machine.
    pub fn is_users_fault(&self) -> bool {
        match self {
            Self::NotFetched { .. }
            | Self::Twice
            | Self::Base64 { .. }
            | Self::Zip { .. }
            | Self::Name { .. }
            | Self::TooMany { .. }
            | Self::TooLarge { .. } => true,
            Self::CalledOff | Self::Disk(_) => false,
        }
    }
}

impl Coded for VolumeError {
    fn code(&self) -> Option<ErrorCode> {
        self.is_users_fault().then_some(ErrorCode::VolumeRefused)
    }
}

/// How much may be unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnpackLimits {
    /// Bytes of all files together.
    pub bytes: u64,
    /// Files and folders of all volumes together.
    pub entries: usize,
}

/// The volume of a job: it comes with the offer or with the request.
///
/// # Errors
/// [`VolumeError::Twice`].
pub fn only_one(offered: Option<Volume>, requested: Option<Volume>) -> Result<Vec<VolumePart>, VolumeError> {
    match (offered, requested) {
        (Some(_), Some(_)) => Err(VolumeError::Twice),
        (volume, None) | (None, volume) => Ok(volume.map(Volume::into_parts).unwrap_or_default()),
    }
}

/// Makes `target` and unpacks every part into it. A later volume replaces files of an earlier one. Blocks: run it where
/// blocking is allowed. `called_off` is looked at between blocks.
///
/// # Errors
/// The first thing that is wrong; `target` is then gone again.
pub fn place(
    parts: &[VolumePart],
    target: &Path,
    limits: UnpackLimits,
    called_off: &CancellationToken,
) -> Result<(), VolumeError> {
    fs::create_dir(target).map_err(VolumeError::Disk)?;
    let mut unpacker = Unpacker {
        target,
        limits,
        bytes: 0,
        entries: 0,
        index: 0,
        called_off,
    };
    let mut outcome = unpacker.folder_mode(target);
    for (index, part) in parts.iter().enumerate() {
        unpacker.index = index;
        outcome = outcome.and_then(|()| unpacker.part(part));
    }
    if outcome.is_err()
        && let Err(error) = fs::remove_dir_all(target)
    {
        tracing::warn!(%error, "the folder of a refused volume cannot be removed");
    }
    outcome
}

struct Unpacker<'a> {
    target: &'a Path,
    limits: UnpackLimits,
    bytes: u64,
    entries: usize,
    index: usize,
    called_off: &'a CancellationToken,
}

impl Unpacker<'_> {
    fn part(&mut self, part: &VolumePart) -> Result<(), VolumeError> {
        let index = self.index;
        let not_fetched = |kind| Err(VolumeError::NotFetched { index, kind });
        match part {
            VolumePart::Inline(volume) => self.inline(volume),
            VolumePart::ZipUrl(_) => not_fetched("zip_url"),
            VolumePart::SingleFile(_) => not_fetched("single_file"),
            VolumePart::HuggingfaceVolume(_) => not_fetched("huggingface_volume"),
        }
    }

    fn inline(&mut self, volume: &InlineVolume) -> Result<(), VolumeError> {
        let index = self.index;
        let packed: String = volume.contents.split_ascii_whitespace().collect();
        let bytes = STANDARD
            .decode(packed)
            .map_err(|source| VolumeError::Base64 { index, source })?;
        let base = match volume
            .relative_path
            .as_deref()
            .map(|path| path.trim_end_matches('/'))
        {
            None | Some("" | ".") => PathBuf::new(),
            Some(path) => self.plain(path)?,
        };
        self.folders(&base)?;
        self.archive(Cursor::new(bytes), &base)
    }

    fn archive(&mut self, reader: impl Read + Seek, base: &Path) -> Result<(), VolumeError> {
        let index = self.index;
        let broken = |source| VolumeError::Zip { index, source };
        let mut archive = ZipArchive::new(reader).map_err(broken)?;
        self.count(archive.len())?;
        for position in 0..archive.len() {
            let mut entry = archive.by_index(position).map_err(broken)?;
            let name = entry.name().map_err(broken)?.into_owned();
            let path = base.join(self.plain(name.strip_suffix('/').unwrap_or(&name))?);
            if self.is_folder(&entry, &name)? {
                self.folders(&path)?;
            } else {
                if let Some(above) = path.parent() {
                    self.folders(above)?;
                }
                let executable = entry.unix_mode().is_some_and(|mode| mode & 0o111 != 0);
                self.file(&mut entry, &path, &name, executable)?;
            }
        }
        Ok(())
    }

    /// Whether an entry is a folder; anything but a folder or a regular file is refused.
    fn is_folder<R: Read>(&self, entry: &ZipFile<'_, R>, name: &str) -> Result<bool, VolumeError> {
        let kind = entry.unix_mode().map_or(0, |mode| mode & KIND);
        match (name.ends_with('/'), kind) {
            (true, 0 | FOLDER) => Ok(true),
            (false, 0 | REGULAR) if !entry.is_symlink() => Ok(false),
            _ => Err(self.name(name, "is neither a regular file nor a folder")),
        }
    }

    fn file<R: Read>(
        &mut self,
        entry: &mut ZipFile<'_, R>,
        path: &Path,
        name: &str,
        executable: bool,
    ) -> Result<(), VolumeError> {
        let index = self.index;
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
                return Err(self.name(name, "is a file here and a folder elsewhere"));
            }
            Err(error) => return Err(VolumeError::Disk(error)),
        };
        let mut block = vec![0; BLOCK];
        loop {
            if self.called_off.is_cancelled() {
                return Err(VolumeError::CalledOff);
            }
            let read = entry.read(&mut block).map_err(|source| VolumeError::Zip {
                index,
                source: source.into(),
            })?;
            let Some(data) = block.get(..read).filter(|data| !data.is_empty()) else {
                break;
            };
            // What an archive says about its sizes is not believed; what comes out of it counts.
            self.bytes = self.bytes.saturating_add(data.len() as u64);
            if self.bytes > self.limits.bytes {
                return Err(VolumeError::TooLarge {
                    index,
                    limit: self.limits.bytes,
                });
            }
            file.write_all(data).map_err(VolumeError::Disk)?;
        }
        let mode = if executable { 0o755 } else { 0o644 };
        file.set_permissions(Permissions::from_mode(mode))
            .map_err(VolumeError::Disk)
    }

    /// Makes the folders of a relative path, readable by whatever user the image runs as.
    fn folders(&self, path: &Path) -> Result<(), VolumeError> {
        let mut full = self.target.to_owned();
        for part in path.components() {
            full.push(part);
            match fs::create_dir(&full) {
                Ok(()) => self.folder_mode(&full)?,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && full.is_dir() => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    return Err(self.name(&path.to_string_lossy(), "is a folder here and a file elsewhere"));
                }
                Err(error) => return Err(VolumeError::Disk(error)),
            }
        }
        Ok(())
    }

    /// Explicitly, whatever the process's umask is.
    fn folder_mode(&self, path: &Path) -> Result<(), VolumeError> {
        fs::set_permissions(path, Permissions::from_mode(0o755)).map_err(VolumeError::Disk)
    }

    fn count(&mut self, more: usize) -> Result<(), VolumeError> {
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
    fn plain(&self, name: &str) -> Result<PathBuf, VolumeError> {
        plain_path(name).map_err(|reason| self.name(name, reason))
    }

    fn name(&self, name: &str, reason: &'static str) -> VolumeError {
        VolumeError::Name {
            index: self.index,
            name: name.chars().take(120).collect(),
            reason,
        }
    }
}

fn plain_path(name: &str) -> Result<PathBuf, &'static str> {
    if name.starts_with('/') {
        return Err("is an absolute path");
    }
    if name.len() > MAX_PATH {
        return Err("is longer than 1024 bytes");
    }
    if name.contains('\0') {
        return Err("holds a NUL");
    }
    if name.contains('\\') {
        return Err("holds a backslash; paths in archives are written with '/'");
    }
    let parts: Vec<&str> = name.split('/').collect();
    if parts.len() > MAX_DEPTH {
        return Err("lies more than 64 folders deep");
    }
    for part in &parts {
        match *part {
            "" => return Err("has an empty component"),
            "." | ".." => return Err("has a component '.' or '..'"),
            part if part.len() > MAX_COMPONENT => return Err("has a component longer than 255 bytes"),
            _ => {}
        }
    }
    Ok(parts.iter().collect())
}

#[cfg(test)]
mod tests;

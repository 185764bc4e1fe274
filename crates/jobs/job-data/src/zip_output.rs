//! Packs a folder of outputs into one archive on disk. Blocks.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tokio_util::sync::CancellationToken;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use crate::error::UploadError;
use crate::output_folder::{Folder, OmittedFiles, WalkError};
use crate::safe_names::shown;

const BLOCK: usize = 256 * 1024;
const MAX_FILES: usize = 100_000;
/// Bytes of all names together. An archive has each name twice, beside the bytes that the limit covers, and its writer
/// keeps them in memory.
const MAX_NAME_BYTES: usize = 32 << 20;
/// Size from which an entry needs zip64, in bytes.
const LARGE: u64 = 0xFFFF_0000;

/// A finished archive.
#[derive(Debug)]
pub(crate) struct PackedFolder {
    pub(crate) len: u64,
    pub(crate) omitted: OmittedFiles,
}

/// The failure of a walk: the disk's, or a bound.
enum Stop {
    Disk(io::Error),
    Bound(UploadError),
}

impl From<WalkError> for Stop {
    fn from(error: WalkError) -> Self {
        match error {
            WalkError::Disk(error) => Self::Disk(error),
            WalkError::TooMany(limit) => Self::Bound(UploadError::TooMany {
                what: "output files and folders",
                limit,
            }),
        }
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

/// Packs every regular file except the named ones, up to `limit` unpacked bytes.
pub(crate) fn zip_folder(
    folder: &Folder,
    without: &[PathBuf],
    into: &File,
    limit: u64,
    called_off: &CancellationToken,
) -> Result<PackedFolder, UploadError> {
    let mut zip = ZipWriter::new(BufWriter::with_capacity(BLOCK, into));
    let (mut files, mut name_bytes, mut bytes) = (0_usize, 0_usize, 0_u64);
    let mut block = vec![0; BLOCK];
    let mut visit = |path: &Path, file: File, len: u64| -> Result<(), Stop> {
        if without.iter().any(|left_out| left_out == path) {
            return Ok(());
        }
        let name = path.to_string_lossy();
        let too_large = || UploadError::TooLarge {
            name: shown(&name),
            limit,
        };
        files += 1;
        if files > MAX_FILES {
            return Err(Stop::Bound(UploadError::TooMany {
                what: "output files",
                limit: MAX_FILES,
            }));
        }
        name_bytes = name_bytes.saturating_add(name.len());
        if name_bytes > MAX_NAME_BYTES {
            return Err(Stop::Bound(UploadError::TooMany {
                what: "bytes in the names of output files",
                limit: MAX_NAME_BYTES,
            }));
        }
        if bytes.saturating_add(len) > limit {
            return Err(Stop::Bound(too_large()));
        }
        let mode = if file.metadata()?.permissions().mode() & 0o111 == 0 {
            0o644
        } else {
            0o755
        };
        let options = SimpleFileOptions::default()
            .unix_permissions(mode)
            .large_file(len >= LARGE);
        zip.start_file(name.as_ref(), options).map_err(io::Error::from)?;
        // Bytes that are appended from now on are not part of the archive.
        let mut rest = file.take(len);
        loop {
            if called_off.is_cancelled() {
                return Err(Stop::Bound(UploadError::CalledOff));
            }
            let read = rest.read(&mut block)?;
            let Some(data) = block.get(..read).filter(|data| !data.is_empty()) else {
                return Ok(());
            };
            bytes = bytes.saturating_add(data.len() as u64);
            zip.write_all(data)?;
        }
    };
    let omitted = folder.walk(&mut visit).map_err(|stop| match stop {
        Stop::Disk(error) => UploadError::Disk(error),
        Stop::Bound(error) => error,
    })?;
    let mut writer = zip.finish().map_err(|error| UploadError::Disk(error.into()))?;
    writer.flush().map_err(UploadError::Disk)?;
    let len = into.metadata().map_err(UploadError::Disk)?.len();
    Ok(PackedFolder { len, omitted })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use zip::ZipArchive;

    use super::*;

    fn packed(limit: u64) -> Result<(Vec<String>, PackedFolder), UploadError> {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("sub")).unwrap();
        fs::write(root.path().join("sub/a.txt"), "A".repeat(1_000)).unwrap();
        fs::write(root.path().join("own.bin"), "B").unwrap();
        fs::write(root.path().join("stdout.txt"), "out").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", root.path().join("link")).unwrap();
        let file = tempfile::tempfile().unwrap();
        let folder = Folder::open(root.path()).unwrap();
        let without = [PathBuf::from("own.bin")];
        let zipped = zip_folder(&folder, &without, &file, limit, &CancellationToken::new())?;
        assert_eq!(zipped.len, file.metadata().unwrap().len());
        let archive = ZipArchive::new(file).unwrap();
        Ok((
            archive
                .file_names()
                .map(|name| name.unwrap().into_owned())
                .collect(),
            zipped,
        ))
    }

    #[test]
    fn regular_files_are_packed_and_links_are_said() {
        let (names, zipped) = packed(2_000).unwrap();
        assert_eq!(names, ["stdout.txt", "sub/a.txt"]);
        assert_eq!(zipped.omitted.named, ["link"]);
        assert!(zipped.len < 1_000, "{}", zipped.len);
    }

    #[test]
    fn empty_files_with_long_names_end_at_a_bound() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join(format!("{}/", "n".repeat(250)).repeat(14));
        fs::create_dir_all(&deep).unwrap();
        for number in 0..MAX_NAME_BYTES / 3_500 {
            File::create(deep.join(number.to_string())).unwrap();
        }
        let file = tempfile::tempfile().unwrap();
        let folder = Folder::open(root.path()).unwrap();
        let error = zip_folder(&folder, &[], &file, 1_000, &CancellationToken::new()).unwrap_err();
        assert!(
            error.to_string().ends_with("bytes in the names of output files"),
            "{error}"
        );
    }

    #[test]
    fn an_output_that_is_too_large_is_named() {
        let error = packed(500).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("\"sub/a.txt\" has more than the 500 bytes"),
            "{error}"
        );
    }
}

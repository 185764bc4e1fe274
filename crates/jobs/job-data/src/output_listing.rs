//! The listing of a job's output files with their digests, for the completion report.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use muster_protocol::Digest;
use muster_protocol::job::{MAX_LISTED_OUTPUTS, MAX_OUTPUT_PATH_BYTES, OutputFile};
use sha2::{Digest as _, Sha256};

use crate::output_folder::{Folder, WalkError};

/// Bytes of output files that are read for one listing. The time for it is the job's, so it is bounded.
pub const MAX_DIGESTED_BYTES: u64 = 4 << 30;

const PERMISSIONS: u32 = 0o777;

/// The output files of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputListing {
    /// The files in the order of their paths.
    pub files: Vec<OutputFile>,
    /// The number of files that are not listed.
    pub unlisted: u64,
}

impl OutputListing {
    /// Lists the regular files below `folder` with their digests, but those at the paths `except`. No link is followed.
    /// A listing reads [`MAX_DIGESTED_BYTES`] and names [`MAX_LISTED_OUTPUTS`] files at most, folder by folder in the
    /// order of names, so two runs with the same files have the same listing. A folder of more than 200,000 names has
    /// the listing of the files that came before.
    ///
    /// # Errors
    /// The folder or a file cannot be read.
    pub fn read(folder: &Path, except: &[&str]) -> io::Result<Self> {
        Self::read_within(folder, except, MAX_DIGESTED_BYTES)
    }

    fn read_within(folder: &Path, except: &[&str], max_bytes: u64) -> io::Result<Self> {
        let (mut listing, mut room) = (Self::default(), max_bytes);
        let walked = Folder::open(folder)?.walk(&mut |path, file, _| {
            let path = path.to_string_lossy();
            if !except.contains(&&*path) {
                listing.add(&path, file, &mut room)?;
            }
            Ok(())
        });
        match walked {
            Ok(omitted) => listing.unlisted += omitted.count(),
            Err(WalkError::TooMany(names)) => listing.unlisted += names as u64,
            Err(WalkError::Disk(error)) => return Err(error),
        }
        listing.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(listing)
    }

    fn add(&mut self, path: &str, file: File, room: &mut u64) -> Result<(), WalkError> {
        let has_place = self.files.len() < MAX_LISTED_OUTPUTS && path.len() <= MAX_OUTPUT_PATH_BYTES;
        // The length that is read counts: another process may still write.
        let mode = file.metadata()?.permissions().mode() & PERMISSIONS;
        let digested = if has_place { digest(file, *room)? } else { None };
        let Some((sha256, bytes)) = digested else {
            self.unlisted += 1;
            return Ok(());
        };
        *room -= bytes;
        self.files.push(OutputFile {
            path: path.to_owned(),
            sha256,
            bytes,
            mode: Some(mode),
        });
        Ok(())
    }
}

/// The digest and the length of a file; `None` for a file of more than `most` bytes.
fn digest(file: File, most: u64) -> io::Result<Option<(Digest, u64)>> {
    if file.metadata()?.len() > most {
        return Ok(None);
    }
    let mut hasher = Sha256::new();
    let bytes = io::copy(&mut file.take(most), &mut hasher)?;
    Ok(Some((Digest::from_bytes(hasher.finalize().into()), bytes)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn file(path: &str, contents: &str) -> OutputFile {
        OutputFile {
            path: path.to_owned(),
            sha256: Digest::of(contents.as_bytes()),
            bytes: contents.len() as u64,
            mode: Some(0o644),
        }
    }

    #[test]
    fn regular_files_are_listed_by_path_and_the_rest_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("a/deep")).unwrap();
        fs::write(at("a/deep/x"), "x").unwrap();
        fs::write(at("a.txt"), "text").unwrap();
        fs::write(at("empty"), "").unwrap();
        fs::write(at("stdout.txt"), "printed at 12:00").unwrap();
        std::os::unix::fs::symlink("/etc/hostname", at("link")).unwrap();
        std::os::unix::fs::symlink("/etc", at("folder")).unwrap();
        fs::write(at("tool"), "run").unwrap();
        fs::set_permissions(at("tool"), fs::Permissions::from_mode(0o4750)).unwrap();
        let listing = OutputListing::read(folder.path(), &["stdout.txt"]).unwrap();
        let mut tool = file("tool", "run");
        tool.mode = Some(0o750);
        let wanted = [
            file("a.txt", "text"),
            file("a/deep/x", "x"),
            file("empty", ""),
            tool,
        ];
        assert_eq!((listing.files.as_slice(), listing.unlisted), (&wanted[..], 2));
    }

    #[test]
    fn a_listing_is_bounded_in_files_and_in_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("a"), "12345").unwrap();
        fs::write(at("b"), "123456").unwrap();
        fs::write(at("c"), "1234").unwrap();
        let listing = OutputListing::read_within(folder.path(), &[], 10).unwrap();
        let wanted = [file("a", "12345"), file("c", "1234")];
        assert_eq!((listing.files.as_slice(), listing.unlisted), (&wanted[..], 1));
        for number in 0..MAX_LISTED_OUTPUTS {
            fs::write(at(&format!("n{number:04}")), "").unwrap();
        }
        let listing = OutputListing::read(folder.path(), &[]).unwrap();
        assert_eq!((listing.files.len(), listing.unlisted), (MAX_LISTED_OUTPUTS, 3));
        assert!(OutputListing::read(&at("none"), &[]).is_err());
    }
}

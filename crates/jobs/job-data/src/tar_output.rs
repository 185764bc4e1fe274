//! Packs a folder of outputs into a tar archive on disk: files and folders with their modes and names as they are, and
//! the links that stay inside. An archive has no name that a folder may not have. Blocks.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use muster_protocol::upload::MAX_MATCHING;
use nix::errno::Errno;
use nix::fcntl::readlinkat;
use tar::{Builder, EntryType, Header};
use tokio_util::sync::CancellationToken;

use crate::error::UploadError;
use crate::linked_path::inner_target;
use crate::output_folder::{Folder, FolderEntry, MAX_DEPTH, MAX_KEPT, OmittedFiles};
use crate::output_pattern::visit_matching;
use crate::safe_names::shown;

const BLOCK: usize = 256 * 1024;
const PERMISSIONS: u32 = 0o777;
/// Bytes that the headers of an archive may take beyond the limit of its contents: some 30,000 short names. Without
/// this bound, empty files and long names would fill a disk that is not the job's.
const HEADER_ROOM: u64 = 16 << 20;

/// A folder to be packed.
#[derive(Debug)]
pub(crate) struct PackedTree<'a> {
    pub(crate) folder: &'a Folder,
    /// Its path below `/output`, empty for all of it.
    pub(crate) root: &'a Path,
    /// Paths in it that are left out without a notice.
    pub(crate) without: &'a [PathBuf],
    /// The most bytes of all files together. The archive may have [`HEADER_ROOM`] more.
    pub(crate) limit: u64,
}

/// A finished archive.
#[derive(Debug)]
pub(crate) struct TreeArchive {
    pub(crate) len: u64,
    /// A line for people about entries that were left out.
    pub(crate) notice: Option<String>,
}

/// An archive under way.
struct TreeWriter<'a> {
    tree: &'a PackedTree<'a>,
    tar: Builder<BoundedWriter<'a>>,
    omitted: OmittedFiles,
    bytes: u64,
    kept: usize,
    called_off: &'a CancellationToken,
}

/// Packs a folder into `into`.
pub(crate) fn pack_tree(
    tree: &PackedTree<'_>,
    into: &File,
    called_off: &CancellationToken,
) -> Result<TreeArchive, UploadError> {
    let mut writer = TreeWriter::new(tree, into, called_off);
    writer.add_folder(tree.folder, Path::new(""), 0)?;
    writer.finish(into)
}

/// Packs a file that stands where a folder was asked for, as the one entry of an archive.
pub(crate) fn pack_file(
    tree: &PackedTree<'_>,
    file: File,
    len: u64,
    into: &File,
    called_off: &CancellationToken,
) -> Result<TreeArchive, UploadError> {
    let name = tree.root.file_name().unwrap_or_default();
    let mut writer = TreeWriter::new(tree, into, called_off);
    writer.add_file(Path::new(name), file, len)?;
    writer.finish(into)
}

/// Packs the files whose paths in the folder match `pattern`; `None` if there is none.
pub(crate) fn pack_matching(
    tree: &PackedTree<'_>,
    pattern: &str,
    into: &File,
    called_off: &CancellationToken,
) -> Result<Option<TreeArchive>, UploadError> {
    let mut writer = TreeWriter::new(tree, into, called_off);
    let mut files = 0;
    visit_matching(tree.folder, pattern, &mut |path, file, len| {
        if tree.without.iter().any(|left_out| left_out == path) {
            return Ok(());
        }
        files += 1;
        if files > MAX_MATCHING {
            return Err(UploadError::TooMany {
                what: "files match an output's pattern",
                limit: MAX_MATCHING,
            });
        }
        writer.add_file(path, file, len)
    })?;
    match files {
        0 => Ok(None),
        _ => writer.finish(into).map(Some),
    }
}

impl<'a> TreeWriter<'a> {
    fn new(tree: &'a PackedTree<'a>, into: &'a File, called_off: &'a CancellationToken) -> Self {
        Self {
            tree,
            tar: Builder::new(BoundedWriter {
                into: BufWriter::with_capacity(BLOCK, into),
                left: tree.limit.saturating_add(HEADER_ROOM),
            }),
            omitted: OmittedFiles::default(),
            bytes: 0,
            kept: 0,
            called_off,
        }
    }

    fn finish(self, into: &File) -> Result<TreeArchive, UploadError> {
        let Self { mut tar, omitted, .. } = self;
        // The two empty blocks at the end of an archive always have room.
        tar.get_mut().left = u64::MAX;
        let mut writer = tar.into_inner().map_err(UploadError::Disk)?;
        writer.flush().map_err(UploadError::Disk)?;
        let len = into.metadata().map_err(UploadError::Disk)?.len();
        let reason = "not among the delivered files, since they are links that lead out of the folder, no regular files, \
                      or cannot be read";
        let notice = omitted.notice(reason);
        Ok(TreeArchive { len, notice })
    }

    fn add_folder(&mut self, folder: &Folder, below: &Path, depth: usize) -> Result<(), UploadError> {
        let names = self.list(folder)?;
        let listed = names.len();
        for name in names {
            if self.called_off.is_cancelled() {
                return Err(UploadError::CalledOff);
            }
            let path = below.join(&name);
            if !self.tree.without.contains(&path) {
                self.add(folder, &name, &path, depth)?;
            }
        }
        self.kept -= listed;
        Ok(())
    }

    fn add(
        &mut self,
        folder: &Folder,
        name: &OsString,
        path: &Path,
        depth: usize,
    ) -> Result<(), UploadError> {
        match folder.file(Path::new(name)) {
            Ok(FolderEntry::File(file, len)) => return self.add_file(path, file, len),
            Ok(FolderEntry::Nothing) => return Ok(()),
            Ok(FolderEntry::Other) => {}
            Err(error) => return Err(UploadError::Disk(error)),
        }
        match readlinkat(folder, name.as_os_str()) {
            Ok(target) => return self.add_link(path, Path::new(&target)),
            Err(Errno::EINVAL) => {}
            Err(Errno::EACCES) => {
                self.omitted.add(path);
                return Ok(());
            }
            Err(error) => return Err(UploadError::Disk(error.into())),
        }
        match folder.folder(Path::new(name)) {
            Ok(Some(inner)) if depth < MAX_DEPTH => {
                let found = inner.metadata().map_err(UploadError::Disk)?;
                let mut header = header_of(EntryType::Directory, found.mode(), found.mtime());
                self.tar
                    .append_data(&mut header, path, io::empty())
                    .map_err(|error| self.failed(path, error))?;
                self.add_folder(&inner, path, depth + 1)
            }
            Ok(_) => {
                self.omitted.add(path);
                Ok(())
            }
            Err(error) => Err(UploadError::Disk(error)),
        }
    }

    fn add_file(&mut self, path: &Path, file: File, len: u64) -> Result<(), UploadError> {
        self.bytes = self.bytes.saturating_add(len);
        if self.bytes > self.tree.limit {
            return Err(self.too_large(path));
        }
        let found = file.metadata().map_err(UploadError::Disk)?;
        let mut header = header_of(EntryType::Regular, found.mode(), found.mtime());
        header.set_size(len);
        // Bytes that are appended from now on are not part of the archive.
        let contents = WholeFile {
            file: io::BufReader::with_capacity(BLOCK, file),
            left: len,
            called_off: self.called_off,
        };
        self.tar
            .append_data(&mut header, path, contents)
            .map_err(|error| self.failed(path, error))
    }

    fn too_large(&self, path: &Path) -> UploadError {
        UploadError::TooLarge {
            name: shown(&self.tree.root.join(path).to_string_lossy()),
            limit: self.tree.limit,
        }
    }

    /// Why an entry was not written.
    fn failed(&self, path: &Path, error: io::Error) -> UploadError {
        if self.called_off.is_cancelled() {
            UploadError::CalledOff
        } else if error.kind() == io::ErrorKind::FileTooLarge {
            self.too_large(path)
        } else {
            UploadError::Disk(error)
        }
    }

    fn add_link(&mut self, path: &Path, target: &Path) -> Result<(), UploadError> {
        let Some(target) = inner_target(self.tree.root, path, target) else {
            self.omitted.add(path);
            return Ok(());
        };
        let mut header = header_of(EntryType::Symlink, PERMISSIONS, 0);
        self.tar
            .append_link(&mut header, path, target)
            .map_err(|error| self.failed(path, error))
    }

    /// The names in a folder, in their order.
    fn list(&mut self, folder: &Folder) -> Result<Vec<OsString>, UploadError> {
        // The standard library can list an open folder only through this path.
        let listing =
            fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd())).map_err(UploadError::Disk)?;
        let mut names = Vec::new();
        for entry in listing {
            names.push(entry.map_err(UploadError::Disk)?.file_name());
            self.kept += 1;
            if self.kept > MAX_KEPT {
                return Err(UploadError::TooMany {
                    what: "output files and folders at once",
                    limit: MAX_KEPT,
                });
            }
        }
        names.sort();
        Ok(names)
    }
}

fn header_of(kind: EntryType, mode: u32, modified: i64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode & PERMISSIONS);
    header.set_mtime(u64::try_from(modified).unwrap_or_default());
    header.set_size(0);
    header
}

/// An archive's file that takes a bounded number of bytes.
struct BoundedWriter<'a> {
    into: BufWriter<&'a File>,
    left: u64,
}

impl Write for BoundedWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(left) = self.left.checked_sub(bytes.len() as u64) else {
            return Err(io::ErrorKind::FileTooLarge.into());
        };
        let written = self.into.write(bytes)?;
        self.left = left.saturating_add((bytes.len() - written) as u64);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.into.flush()
    }
}

/// A file as long as it was when it was opened; a shorter one is an error, because its header is written already.
struct WholeFile<'a> {
    file: io::BufReader<File>,
    left: u64,
    called_off: &'a CancellationToken,
}

impl Read for WholeFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Ok(0);
        }
        if self.called_off.is_cancelled() {
            return Err(io::Error::other("the upload was cancelled"));
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read(buffer.get_mut(..most).unwrap_or_default())?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::OsStr;
    use std::io::Seek as _;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn pack(
        folder: &Path,
        root: &str,
        limit: u64,
    ) -> Result<(BTreeMap<PathBuf, String>, Option<String>), UploadError> {
        let opened = Folder::open(folder).unwrap();
        let tree = PackedTree {
            folder: &opened,
            root: Path::new(root),
            without: &[PathBuf::from("stdout.txt")],
            limit,
        };
        let mut file = tempfile::tempfile().unwrap();
        let packed = pack_tree(&tree, &file, &CancellationToken::new())?;
        assert_eq!(packed.len, file.metadata().unwrap().len());
        file.rewind().unwrap();
        let mut found = BTreeMap::new();
        for entry in tar::Archive::new(file).entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().into_owned();
            let mut text = format!(
                "{:?} {:o} ",
                entry.header().entry_type(),
                entry.header().mode().unwrap()
            );
            if let Some(target) = entry.link_name().unwrap() {
                text.push_str(&target.to_string_lossy());
            }
            entry.read_to_string(&mut text).unwrap();
            found.insert(path, text);
        }
        Ok((found, packed.notice))
    }

    #[test]
    fn a_folder_is_packed_with_modes_links_empty_folders_and_every_name() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        let long = format!("{0}/{0}", "n".repeat(200));
        fs::create_dir_all(at(&long)).unwrap();
        fs::create_dir(at("empty")).unwrap();
        fs::set_permissions(at("empty"), fs::Permissions::from_mode(0o750)).unwrap();
        for (name, mode) in [("run", 0o4755), ("a\\b", 0o600), ("stdout.txt", 0o644)] {
            fs::write(at(name), "x").unwrap();
            fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::write(root.path().join(OsStr::from_bytes(b"r\xe9")), "latin").unwrap();
        symlink("run", at("last")).unwrap();
        symlink("/output/results/run", at("empty/absolute")).unwrap();
        symlink("/etc/passwd", at("out")).unwrap();
        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let (found, notice) = pack(root.path(), "results", 100).unwrap();
        let has = |path: &str, text: &str| assert_eq!(found[Path::new(path)], text, "{path}");
        has("run", "Regular 755 x");
        has("a\\b", "Regular 600 x");
        has("empty", "Directory 750 ");
        has("last", "Symlink 777 run");
        has("empty/absolute", "Symlink 777 ../run");
        assert_eq!(found[Path::new(OsStr::from_bytes(b"r\xe9"))], "Regular 644 latin");
        assert!(found[Path::new(&long)].starts_with("Directory"));
        assert_eq!(found.len(), 8, "{found:?}");
        assert!(notice.unwrap().ends_with(": out, pipe"));
    }

    #[test]
    fn a_folder_over_the_limit_is_named_by_the_file_that_reaches_it() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("a"), "12345").unwrap();
        fs::write(root.path().join("b"), "12345").unwrap();
        assert!(pack(root.path(), "r", 10).is_ok());
        let error = pack(root.path(), "r", 9).unwrap_err().to_string();
        assert!(error.contains("\"r/b\" has more than the 9 bytes"), "{error}");
    }

    #[test]
    fn empty_files_with_long_paths_end_at_the_bound_of_the_archive() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join(format!("{}/", "n".repeat(250)).repeat(12));
        fs::create_dir_all(&deep).unwrap();
        // Each takes more than 3,000 bytes of the archive, and none has contents.
        for number in 0..HEADER_ROOM / 3_000 {
            File::create(deep.join(number.to_string())).unwrap();
        }
        assert!(matches!(
            pack(root.path(), "r", 0),
            Err(UploadError::TooLarge { limit: 0, .. })
        ));
        assert!(pack(root.path(), "r", HEADER_ROOM).is_ok());
    }
}

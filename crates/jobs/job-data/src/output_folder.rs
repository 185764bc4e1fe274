//! Reads the output folder of a job, which may hold anything. The folder is a handle, files are opened below it
//! component by component, and no link is followed. The type of a file is checked after it is opened, so a job cannot
//! swap it for a link.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Component, Path};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

/// Upper bound on the depth of folders, the same as ComputeHorde's.
pub(crate) const MAX_DEPTH: usize = 100;
/// Upper bound on the number of files and folders whose names are kept at once. Links and special files count for
/// nothing: they are counted and forgotten.
pub(crate) const MAX_KEPT: usize = 200_000;
/// Upper bound on the number of omitted files that are named.
const MAX_NAMED: usize = 20;

/// A handle of an open folder.
#[derive(Debug)]
pub(crate) struct Folder(OwnedFd);

/// The object under a name.
#[derive(Debug)]
pub(crate) enum FolderEntry {
    /// A regular file, open for reading, and its length in bytes.
    File(File, u64),
    Nothing,
    /// A folder, a link, a device, or a path that goes through a link, has too long a name or may not be read.
    Other,
}

/// The files that a walk left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OmittedFiles {
    pub(crate) named: Vec<String>,
    pub(crate) more: usize,
}

/// The failure of a walk.
#[derive(Debug)]
pub(crate) enum WalkError {
    /// The folder cannot be read.
    Disk(io::Error),
    /// There are more files and folders than this.
    TooMany(usize),
}

impl From<io::Error> for WalkError {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

/// A walk under way.
struct Walk<'a, V> {
    visit: &'a mut V,
    omitted: OmittedFiles,
    kept: usize,
    max_kept: usize,
}

impl OmittedFiles {
    pub(crate) fn add(&mut self, path: &Path) {
        if self.named.len() < MAX_NAMED {
            self.named.push(path.to_string_lossy().escape_debug().to_string());
        } else {
            self.more += 1;
        }
    }

    /// The number of files that were left out.
    pub(crate) fn count(&self) -> u64 {
        (self.named.len() + self.more) as u64
    }

    /// A line for people with the reason, if any file was left out.
    pub(crate) fn notice(&self, reason: &str) -> Option<String> {
        let more = match self.more {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        (!self.named.is_empty()).then(|| {
            let named = self.named.join(", ");
            format!("muster: {reason}: {named}{more}")
        })
    }
}

impl From<OwnedFd> for Folder {
    fn from(folder: OwnedFd) -> Self {
        Self(folder)
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Folder {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Folder {
    pub(crate) fn metadata(&self) -> io::Result<Metadata> {
        File::from(self.0.try_clone()?).metadata()
    }

    /// Opens the folder at a relative path of ordinary names, to which no link leads; `None` if none is there that
    /// may be read.
    pub(crate) fn folder(&self, relative: &Path) -> io::Result<Option<Self>> {
        let mut found: Option<OwnedFd> = None;
        for part in relative.components() {
            let Component::Normal(name) = part else {
                return Ok(None);
            };
            let at = found.as_ref().unwrap_or(&self.0);
            match openat(at, name, folder_flags(), Mode::empty()) {
                Ok(next) => found = Some(next),
                Err(Errno::ENOENT | Errno::ELOOP | Errno::ENOTDIR | Errno::ENAMETOOLONG | Errno::EACCES) => {
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(found.map(Self))
    }

    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(nix::fcntl::open(path, folder_flags(), Mode::empty())?))
    }

    /// Opens the file at a relative path of ordinary names.
    pub(crate) fn file(&self, relative: &Path) -> io::Result<FolderEntry> {
        let mut above: Option<OwnedFd> = None;
        let mut parts = relative.components().peekable();
        while let Some(part) = parts.next() {
            let Component::Normal(name) = part else {
                return Ok(FolderEntry::Other);
            };
            let at = above.as_ref().unwrap_or(&self.0);
            if parts.peek().is_none() {
                return file_at(at, name);
            }
            match openat(at, name, folder_flags(), Mode::empty()) {
                Ok(next) => above = Some(next),
                Err(Errno::ENOENT) => return Ok(FolderEntry::Nothing),
                Err(Errno::ELOOP | Errno::ENOTDIR | Errno::ENAMETOOLONG | Errno::EACCES) => {
                    return Ok(FolderEntry::Other);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(FolderEntry::Other)
    }

    /// Visits every regular file below the folder, in the order of their names. Other objects are left out and
    /// recorded. The names of at most [`MAX_KEPT`] objects are kept at once.
    pub(crate) fn walk<E: From<WalkError>>(
        &self,
        visit: &mut impl FnMut(&Path, File, u64) -> Result<(), E>,
    ) -> Result<OmittedFiles, E> {
        self.walk_within(MAX_KEPT, visit)
    }

    fn walk_within<E: From<WalkError>>(
        &self,
        max_kept: usize,
        visit: &mut impl FnMut(&Path, File, u64) -> Result<(), E>,
    ) -> Result<OmittedFiles, E> {
        let mut walk = Walk {
            visit,
            omitted: OmittedFiles::default(),
            kept: 0,
            max_kept,
        };
        walk.folder(&self.0, Path::new(""), 0)?;
        walk.omitted.named.sort();
        Ok(walk.omitted)
    }
}

fn folder_flags() -> OFlag {
    OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC
}

fn file_at(folder: &OwnedFd, name: &OsStr) -> io::Result<FolderEntry> {
    // Non-blocking, because opening a fifo would wait for a writer.
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let file = match openat(folder, name, flags, Mode::empty()) {
        Ok(opened) => File::from(opened),
        Err(Errno::ENOENT) => return Ok(FolderEntry::Nothing),
        // A link or a socket, or the job's own choice of a name or a mode.
        Err(Errno::ELOOP | Errno::ENXIO | Errno::ENODEV | Errno::ENAMETOOLONG | Errno::EACCES) => {
            return Ok(FolderEntry::Other);
        }
        Err(error) => return Err(error.into()),
    };
    let metadata = file.metadata()?;
    if metadata.is_file() {
        Ok(FolderEntry::File(file, metadata.len()))
    } else {
        Ok(FolderEntry::Other)
    }
}

impl<V> Walk<'_, V> {
    fn folder<E: From<WalkError>>(&mut self, folder: &OwnedFd, below: &Path, depth: usize) -> Result<(), E>
    where
        V: FnMut(&Path, File, u64) -> Result<(), E>,
    {
        let disk = |error: io::Error| E::from(WalkError::Disk(error));
        let entries = self.list(folder, below)?;
        let listed = entries.len();
        for (name, is_folder) in entries {
            let path = below.join(&name);
            if is_folder {
                match openat(folder, name.as_os_str(), folder_flags(), Mode::empty()) {
                    Ok(next) if depth < MAX_DEPTH => self.folder(&next, &path, depth + 1)?,
                    Ok(_) | Err(Errno::ELOOP | Errno::ENOTDIR | Errno::EACCES) => self.omitted.add(&path),
                    Err(error) => return Err(disk(error.into())),
                }
            } else {
                match file_at(folder, &name).map_err(disk)? {
                    FolderEntry::File(file, len) => (self.visit)(&path, file, len)?,
                    FolderEntry::Nothing => {}
                    FolderEntry::Other => self.omitted.add(&path),
                }
            }
        }
        self.kept -= listed;
        Ok(())
    }

    /// The files and folders in a folder, in the order of their names; for each, whether it is a folder.
    fn list(&mut self, folder: &OwnedFd, below: &Path) -> Result<Vec<(OsString, bool)>, WalkError> {
        // The standard library can list an open folder only through this path.
        let listing = fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()))?;
        let mut entries = Vec::new();
        for entry in listing {
            let entry = entry?;
            let (name, kind) = (entry.file_name(), entry.file_type()?);
            if name.to_str().is_none() || !(kind.is_dir() || kind.is_file()) {
                self.omitted.add(&below.join(&name));
                continue;
            }
            self.kept += 1;
            if self.kept > self.max_kept {
                return Err(WalkError::TooMany(self.max_kept));
            }
            entries.push((name, kind.is_dir()));
        }
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn kind(folder: &Folder, path: &str) -> &'static str {
        match folder.file(Path::new(path)).unwrap() {
            FolderEntry::File(..) => "file",
            FolderEntry::Nothing => "nothing",
            FolderEntry::Other => "else",
        }
    }

    #[test]
    fn only_regular_files_are_opened_and_no_link_is_followed() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir_all(at("out/sub")).unwrap();
        fs::write(at("out/sub/a"), "A").unwrap();
        fs::write(at("secret"), "S").unwrap();
        symlink(at("secret"), at("out/link")).unwrap();
        symlink(at("out/sub"), at("out/linked")).unwrap();
        symlink("/", at("out/root")).unwrap();
        nix::unistd::mkfifo(&at("out/pipe"), Mode::S_IRWXU).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("out/socket")).unwrap();
        let folder = Folder::open(&at("out")).unwrap();
        assert_eq!(kind(&folder, "sub/a"), "file");
        for path in [
            "link",
            "linked/a",
            "root/etc/hostname",
            "pipe",
            "socket",
            "sub",
            "../secret",
            "/etc/hostname",
            "",
        ] {
            assert_eq!(kind(&folder, path), "else", "{path}");
        }
        for path in ["none", "none/a", "sub/b"] {
            assert_eq!(kind(&folder, path), "nothing", "{path}");
        }
        assert!(Folder::open(&at("out/linked")).is_err());

        let mut seen = Vec::new();
        let omitted = folder
            .walk::<WalkError>(&mut |path, _, len| {
                seen.push((path.to_owned(), len));
                Ok(())
            })
            .unwrap();
        assert_eq!(seen, [("sub/a".into(), 1)]);
        assert_eq!(omitted.named, ["link", "linked", "pipe", "root", "socket"]);
        assert!(
            omitted
                .notice("left out")
                .unwrap()
                .contains("left out: link, linked, pipe")
        );
    }

    #[test]
    fn a_folder_that_is_swapped_for_a_link_leads_nowhere_else() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir_all(at("out/sub")).unwrap();
        fs::create_dir(at("elsewhere")).unwrap();
        fs::write(at("elsewhere/a"), "secret").unwrap();
        let folder = Folder::open(&at("out")).unwrap();
        std::thread::scope(|scope| {
            let swapping = scope.spawn(|| {
                for _ in 0..2_000 {
                    fs::remove_dir(at("out/sub")).unwrap();
                    symlink(at("elsewhere"), at("out/sub")).unwrap();
                    fs::remove_file(at("out/sub")).unwrap();
                    fs::create_dir(at("out/sub")).unwrap();
                }
            });
            while !swapping.is_finished() {
                let found = folder.file(Path::new("sub/a")).unwrap();
                assert!(!matches!(found, FolderEntry::File(..)), "a link was followed");
                let outcome = folder.walk::<WalkError>(&mut |path, _, _| {
                    panic!("{} was visited through a link", path.display());
                });
                // A file that vanishes between listing and opening causes an error, which is correct.
                let vanished = |error: &WalkError| match error {
                    WalkError::Disk(error) => error.kind() == io::ErrorKind::NotFound,
                    WalkError::TooMany(_) => false,
                };
                assert!(outcome.is_ok() || outcome.as_ref().is_err_and(vanished));
            }
        });
    }

    #[test]
    fn links_are_not_kept_and_too_many_files_end_the_walk() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: String| root.path().join(name);
        for number in 0..50 {
            symlink("/nowhere", at(format!("link{number:02}"))).unwrap();
        }
        for folder in 0..4 {
            fs::create_dir(at(format!("d{folder}"))).unwrap();
            for file in 0..6 {
                fs::write(at(format!("d{folder}/{file}")), "").unwrap();
            }
        }
        let folder = Folder::open(root.path()).unwrap();
        let walked = |max_kept| {
            let mut seen = 0;
            let outcome = folder.walk_within::<WalkError>(max_kept, &mut |_, _, _| {
                seen += 1;
                Ok(())
            });
            outcome.map(|omitted| (seen, omitted.named.len() + omitted.more))
        };
        // Four folders, and the six files of one at a time.
        assert_eq!(walked(10).unwrap(), (24, 50));
        assert!(matches!(walked(9), Err(WalkError::TooMany(9))));
    }

    /// The most memory that this process has had resident since the last reset, in KiB.
    fn peak_kib() -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    #[test]
    #[ignore = "soak: five million links take a minute or more to make"]
    fn five_million_links_need_no_more_memory_than_a_few() {
        const LINKS: usize = 5_000_000;
        let root = tempfile::tempdir().unwrap();
        for number in 0..LINKS {
            symlink("x", root.path().join(format!("link{number}"))).unwrap();
        }
        fs::write(root.path().join("result"), "R").unwrap();
        let folder = Folder::open(root.path()).unwrap();
        // This resets the peak to the memory of now.
        fs::write("/proc/self/clear_refs", "5").unwrap();
        let before = peak_kib();
        let mut seen = 0;
        let walked = folder.walk::<WalkError>(&mut |_, _, _| {
            seen += 1;
            Ok(())
        });
        let omitted = walked.unwrap();
        let grown = peak_kib() - before;
        println!("the walk over {LINKS} links took {grown} KiB more than the {before} KiB before it");
        assert_eq!((seen, omitted.named.len() + omitted.more), (1, LINKS));
        assert!(grown < 16 * 1024, "{grown} KiB");
    }

    #[test]
    fn countless_oddities_are_counted() {
        let mut omitted = OmittedFiles::default();
        assert_eq!(omitted.notice("x"), None);
        for number in 0..50 {
            omitted.add(Path::new(&format!("l{number}\n")));
        }
        let notice = omitted.notice("x").unwrap();
        assert!(
            notice.contains("and 30 more") && !notice.contains('\n'),
            "{notice}"
        );
    }
}

//! Reads the output folder of a job, which may hold anything. The folder is a handle, files are opened below it
//! component by component, and no link is followed. The type of a file is checked after it is opened, so a job cannot
//! swap it for a link.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

/// Upper bound on the depth of folders.
const MAX_DEPTH: usize = 64;
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
    /// A folder, a link, a device, or a path through a link.
    Other,
}

/// The files that a walk left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OmittedFiles {
    pub(crate) named: Vec<String>,
    pub(crate) more: usize,
}

impl OmittedFiles {
    fn add(&mut self, path: &Path) {
        if self.named.len() < MAX_NAMED {
            self.named.push(path.to_string_lossy().escape_debug().to_string());
        } else {
            self.more += 1;
        }
    }

    /// A line for people, if any file was left out.
    pub(crate) fn notice(&self) -> Option<String> {
        let more = match self.more {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        (!self.named.is_empty()).then(|| {
            let named = self.named.join(", ");
            format!("muster: not in the uploaded archive, since they are not regular files: {named}{more}")
        })
    }
}

impl Folder {
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
                Err(Errno::ELOOP | Errno::ENOTDIR) => return Ok(FolderEntry::Other),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(FolderEntry::Other)
    }

    /// Visits every regular file below the folder, in the order of their names. Other objects are left out and
    /// recorded.
    pub(crate) fn walk<E: From<io::Error>>(
        &self,
        visit: &mut impl FnMut(&Path, File, u64) -> Result<(), E>,
    ) -> Result<OmittedFiles, E> {
        let mut omitted = OmittedFiles::default();
        walk(&self.0, Path::new(""), 0, visit, &mut omitted)?;
        Ok(omitted)
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
        // A link or a socket.
        Err(Errno::ELOOP | Errno::ENXIO | Errno::ENODEV) => return Ok(FolderEntry::Other),
        Err(error) => return Err(error.into()),
    };
    let metadata = file.metadata()?;
    if metadata.is_file() {
        Ok(FolderEntry::File(file, metadata.len()))
    } else {
        Ok(FolderEntry::Other)
    }
}

fn walk<E: From<io::Error>>(
    folder: &OwnedFd,
    below: &Path,
    depth: usize,
    visit: &mut impl FnMut(&Path, File, u64) -> Result<(), E>,
    omitted: &mut OmittedFiles,
) -> Result<(), E> {
    // The standard library can list an open folder only through this path.
    let listing = fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd())).map_err(E::from)?;
    let mut entries = Vec::new();
    for entry in listing {
        let entry = entry.map_err(E::from)?;
        entries.push((entry.file_name(), entry.file_type().map_err(E::from)?));
    }
    entries.sort_by(|(a, _), (b, _)| a.cmp(b));
    for (name, kind) in entries {
        let path = below.join(&name);
        if name.to_str().is_none() {
            omitted.add(&path);
        } else if kind.is_dir() {
            match openat(folder, name.as_os_str(), folder_flags(), Mode::empty()) {
                Ok(next) if depth < MAX_DEPTH => walk(&next, &path, depth + 1, visit, omitted)?,
                Ok(_) | Err(Errno::ELOOP | Errno::ENOTDIR) => omitted.add(&path),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        } else if kind.is_file() {
            match file_at(folder, &name).map_err(E::from)? {
                FolderEntry::File(file, len) => visit(&path, file, len)?,
                FolderEntry::Nothing => {}
                FolderEntry::Other => omitted.add(&path),
            }
        } else {
            omitted.add(&path);
        }
    }
    Ok(())
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
            .walk::<io::Error>(&mut |path, _, len| {
                seen.push((path.to_owned(), len));
                Ok(())
            })
            .unwrap();
        assert_eq!(seen, [("sub/a".into(), 1)]);
        assert_eq!(omitted.named, ["link", "linked", "pipe", "root", "socket"]);
        assert!(omitted.notice().unwrap().contains("link, linked, pipe"));
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
                let outcome = folder.walk::<io::Error>(&mut |path, _, _| {
                    panic!("{} was visited through a link", path.display());
                });
                // A file that vanishes between listing and opening causes an error, which is correct.
                assert!(outcome.is_ok() || outcome.unwrap_err().kind() == io::ErrorKind::NotFound);
            }
        });
    }

    #[test]
    fn countless_oddities_are_counted() {
        let mut omitted = OmittedFiles::default();
        assert_eq!(omitted.notice(), None);
        for number in 0..50 {
            omitted.add(Path::new(&format!("l{number}\n")));
        }
        let notice = omitted.notice().unwrap();
        assert!(
            notice.contains("and 30 more") && !notice.contains('\n'),
            "{notice}"
        );
    }
}

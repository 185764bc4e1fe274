//! Opens an output behind links of the job's that stay below `/output`. The kernel keeps every step below the folder;
//! only the links that name it by its path in the container are followed here.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2, readlinkat};

use crate::output_folder::{Folder, FolderEntry};

/// The folder of outputs in a job's container.
pub(crate) const OUTPUT_MOUNT: &str = "/output";
/// Links on the way to one output, as many as the kernel follows.
const MAX_LINKS: usize = 40;
/// Tries to open a path while other processes of this machine rename or mount something: the kernel then asks for
/// another try of a path with `..`.
const MAX_TRIES: usize = 20;

/// The object behind a path.
#[derive(Debug)]
pub(crate) enum LinkedEntry {
    /// A regular file, open for reading, and its length in bytes.
    File(File, u64),
    Folder(Folder),
    Nothing,
    /// A device, a pipe or a socket, or a path that leads out of the folder, has too long a name or may not be read.
    Other,
}

/// Opens what `relative` leads to, if that lies below the folder.
pub(crate) fn open_linked(folder: &Folder, relative: &Path) -> io::Result<LinkedEntry> {
    let mut path = relative.to_owned();
    for _ in 0..MAX_LINKS {
        match open_below(folder.as_fd(), &path, OFlag::O_RDONLY) {
            Ok(opened) => return classify(opened),
            Err(Errno::ENOENT) => return Ok(LinkedEntry::Nothing),
            // A socket, or a device without a driver; or the job chose names or modes with which nobody gets on.
            Err(
                Errno::ENXIO
                | Errno::ENODEV
                | Errno::ELOOP
                | Errno::ENOTDIR
                | Errno::ENAMETOOLONG
                | Errno::EACCES,
            ) => return Ok(LinkedEntry::Other),
            // An absolute link, or one that leads out.
            Err(Errno::EXDEV) => match replace_first_link(folder, &path)? {
                Some(next) => path = next,
                None => return Ok(LinkedEntry::Other),
            },
            // This machine's kernel, or its sandbox, does not know the call.
            Err(Errno::ENOSYS | Errno::EPERM) => return open_unlinked(folder, relative),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(LinkedEntry::Other)
}

fn open_below(folder: BorrowedFd<'_>, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    // Non-blocking, because opening a fifo would wait for a writer.
    let flags = flags | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let open = || openat2(folder, path, OpenHow::new().flags(flags).resolve(resolve));
    for _ in 1..MAX_TRIES {
        match open() {
            Err(Errno::EAGAIN) => {}
            opened => return opened,
        }
    }
    open()
}

fn classify(opened: OwnedFd) -> io::Result<LinkedEntry> {
    let file = File::from(opened);
    let found = file.metadata()?;
    Ok(if found.is_file() {
        LinkedEntry::File(file, found.len())
    } else if found.is_dir() {
        LinkedEntry::Folder(Folder::from(OwnedFd::from(file)))
    } else {
        LinkedEntry::Other
    })
}

/// The path with its first link replaced by the link's target; `None` if the target lies elsewhere in the container.
/// The result is only a path to try: whatever it leads to, the kernel opens it below the folder or not at all.
fn replace_first_link(folder: &Folder, path: &Path) -> io::Result<Option<PathBuf>> {
    let mut before = PathBuf::new();
    let mut parts = path.components();
    while let Some(part) = parts.next() {
        let link = before.join(part);
        match read_link(folder, &before, part.as_os_str()) {
            Ok(target) => {
                let target = match target.strip_prefix(OUTPUT_MOUNT) {
                    Ok(inside) => inside.to_owned(),
                    Err(_) if target.is_absolute() => return Ok(None),
                    Err(_) => before.join(target),
                };
                let rest = parts.as_path();
                let whole: PathBuf = target.components().chain(rest.components()).collect();
                let is_root = whole.as_os_str().is_empty();
                return Ok(Some(if is_root { ".".into() } else { whole }));
            }
            // No link.
            Err(Errno::EINVAL) => before = link,
            Err(
                Errno::ENOENT
                | Errno::ENOTDIR
                | Errno::EXDEV
                | Errno::ELOOP
                | Errno::ENAMETOOLONG
                | Errno::EACCES,
            ) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

fn read_link(folder: &Folder, before: &Path, name: &OsStr) -> nix::Result<PathBuf> {
    if before.as_os_str().is_empty() {
        return readlinkat(folder, name).map(PathBuf::from);
    }
    let parent = open_below(folder.as_fd(), before, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
    readlinkat(parent, name).map(PathBuf::from)
}

/// Opens without following any link.
fn open_unlinked(folder: &Folder, path: &Path) -> io::Result<LinkedEntry> {
    match folder.file(path)? {
        FolderEntry::File(file, len) => Ok(LinkedEntry::File(file, len)),
        FolderEntry::Nothing => Ok(LinkedEntry::Nothing),
        FolderEntry::Other => Ok(match folder.folder(path)? {
            Some(found) => LinkedEntry::Folder(found),
            None => LinkedEntry::Other,
        }),
    }
}

/// The target of a link at the path `at` below a folder that lies at `root` below `/output`, as the same link is
/// written in a copy of the folder; `None` for one that leads out of it.
pub(crate) fn inner_target(root: &Path, at: &Path, target: &Path) -> Option<PathBuf> {
    let depth = at.components().count().saturating_sub(1);
    if let Ok(inside) = target.strip_prefix(Path::new(OUTPUT_MOUNT).join(root)) {
        let up: PathBuf = std::iter::repeat_n("..", depth).collect();
        let rewritten = up.join(inside);
        let is_whole = rewritten.as_os_str().is_empty();
        return stays_inside(depth, &rewritten).then(|| if is_whole { ".".into() } else { rewritten });
    }
    (!target.as_os_str().is_empty() && target.is_relative() && stays_inside(depth, target))
        .then(|| target.to_owned())
}

/// Whether a relative target never leaves a folder, from `depth` levels below it. One with `..` behind a name counts
/// as leaving: the name may be a link's, and clients refuse a whole archive for it.
fn stays_inside(depth: usize, target: &Path) -> bool {
    let mut level = depth;
    let mut has_name = false;
    for name in target.as_os_str().as_bytes().split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." if level == 0 || has_name => return false,
            b".." => level -= 1,
            _ => has_name = true,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read as _;
    use std::os::unix::fs::symlink;

    use super::*;

    fn contents(folder: &Folder, path: &str) -> String {
        match open_linked(folder, Path::new(path)).unwrap() {
            LinkedEntry::File(mut file, _) => {
                let mut text = String::new();
                file.read_to_string(&mut text).unwrap();
                text
            }
            LinkedEntry::Folder(_) => "a folder".to_owned(),
            LinkedEntry::Nothing => "nothing".to_owned(),
            LinkedEntry::Other => "something else".to_owned(),
        }
    }

    #[test]
    fn links_that_stay_below_the_outputs_are_followed_and_no_others() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir_all(at("out/run/3")).unwrap();
        fs::write(at("out/run/3/m"), "M").unwrap();
        fs::write(at("secret"), "S").unwrap();
        let long = "n".repeat(300);
        let long_absolute = format!("/output/{long}/m");
        for (target, link) in [
            ("run/3/m", "last"),
            ("last", "again"),
            ("/output/run/3/m", "absolute"),
            ("/output/run/latest", "newest"),
            ("3", "run/latest"),
            ("../absolute", "run/up"),
            ("../../secret", "run/out"),
            ("/etc/hostname", "etc"),
            ("/output/../etc/hostname", "sly"),
            ("/", "root"),
            ("self", "self"),
            ("/output/loop", "loop"),
            ("nowhere", "dangling"),
            ("/proc/self/fd/0", "magic"),
            ("/output", "whole"),
            (long.as_str(), "long"),
            (long_absolute.as_str(), "run/long"),
        ] {
            symlink(target, at("out").join(link)).unwrap();
        }
        nix::unistd::mkfifo(&at("out/pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let folder = Folder::open(&at("out")).unwrap();
        for path in [
            "last",
            "again",
            "absolute",
            "newest/m",
            "run/latest/m",
            "run/up",
            "run/3/m",
            "whole/last",
        ] {
            assert_eq!(contents(&folder, path), "M", "{path}");
        }
        for path in [
            "run/out",
            "etc",
            "sly",
            "root/etc/hostname",
            "self",
            "loop",
            "magic",
            "pipe",
            "last/x",
            "long",
            "run/long",
        ] {
            assert_eq!(contents(&folder, path), "something else", "{path}");
        }
        assert_eq!(contents(&folder, "newest"), "a folder");
        assert_eq!(contents(&folder, "dangling"), "nothing");
        assert_eq!(contents(&folder, "none/m"), "nothing");
    }

    #[test]
    fn the_target_of_a_link_stays_in_a_copy_of_its_folder_or_is_none() {
        let inner = |root: &str, at: &str, target: &str| {
            inner_target(Path::new(root), Path::new(at), Path::new(target))
                .map(|target| target.to_string_lossy().into_owned())
        };
        assert_eq!(inner("", "last", "run/m").as_deref(), Some("run/m"));
        assert_eq!(inner("", "a/b/last", "../../m").as_deref(), Some("../../m"));
        assert_eq!(inner("", "a/last", "../../m"), None);
        assert_eq!(inner("", "last", "nowhere/yet").as_deref(), Some("nowhere/yet"));
        assert_eq!(inner("", "a/last", "/output/m").as_deref(), Some("../m"));
        assert_eq!(inner("run", "last", "/output/run/3/m").as_deref(), Some("3/m"));
        assert_eq!(inner("run", "last", "/output/m"), None);
        assert_eq!(inner("run", "last", "/output/runner"), None);
        assert_eq!(inner("", "whole", "/output").as_deref(), Some("."));
        for out in ["..", "/etc", "x/../..", "x/../y", "/output/..", ""] {
            assert_eq!(inner("", "last", out), None, "{out}");
        }
    }
}

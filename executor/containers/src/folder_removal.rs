//! Removes a folder that a job filled: any depth, any number of entries, with two open folders and no recursion. Every
//! step is relative to an open folder, so no path is too long and no link is followed.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::sized_disk;

/// The beginning of the names under which deep folders wait at the top for their removal.
const RAISED: &str = ".muster-removal-";

/// Removes `folder` and everything in it, and the file system of a job that is mounted in it. Blocks.
///
/// # Errors
/// Something is left, for example files of another user where this process is not root.
pub(crate) fn remove_folder(folder: &Path) -> io::Result<()> {
    sized_disk::release(folder)?;
    let top = nix::fcntl::open(folder, flags(), Mode::empty())?;
    let mut raised = 0_u64;
    while empty_once(&top, &mut |name| remove_subfolder(&top, name, &mut raised))? {}
    drop(top);
    fs::remove_dir(folder)
}

/// Removes the files of a folder once and hands each of its folders to `remove`. Returns whether it had any entry.
fn empty_once(folder: &OwnedFd, remove: &mut impl FnMut(&OsStr) -> io::Result<()>) -> io::Result<bool> {
    let mut any = false;
    for entry in list(folder)? {
        let entry = entry?;
        any = true;
        let name = entry.file_name();
        if entry.file_type()?.is_dir() {
            remove(&name)?;
        } else {
            ignore_missing(unlinkat(folder, name.as_os_str(), UnlinkatFlags::NoRemoveDir))?;
        }
    }
    Ok(any)
}

/// Removes a folder at the top. Its own folders that are not empty go to the top first.
fn remove_subfolder(top: &OwnedFd, name: &OsStr, raised: &mut u64) -> io::Result<()> {
    let folder = match openat(top, name, flags(), Mode::empty()) {
        Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::EACCES) => {
            // A job may take even its own user's rights away.
            fchmodat(top, name, Mode::S_IRWXU, FchmodatFlags::FollowSymlink)?;
            openat(top, name, flags(), Mode::empty())?
        }
        opened => opened?,
    };
    empty_once(&folder, &mut |inner| raise(&folder, inner, top, raised))?;
    match unlinkat(top, name, UnlinkatFlags::RemoveDir) {
        // The listing of a folder that changes may miss entries: the next round sees them.
        Ok(()) | Err(Errno::ENOENT | Errno::ENOTEMPTY) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Removes an empty folder inside `folder`, or moves a full one to the top.
fn raise(folder: &OwnedFd, name: &OsStr, top: &OwnedFd, raised: &mut u64) -> io::Result<()> {
    match unlinkat(folder, name, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::ENOTEMPTY | Errno::EEXIST) => {}
        Err(error) => return Err(error.into()),
    }
    loop {
        *raised += 1;
        let target = format!("{RAISED}{raised}");
        match renameat(folder, name, top, target.as_str()) {
            Ok(()) => return Ok(()),
            // The job has a folder or a file of this name.
            Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOTDIR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn ignore_missing(outcome: nix::Result<()>) -> io::Result<()> {
    match outcome {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn flags() -> OFlag {
    OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC
}

/// Lists an open folder. The standard library can do that only through this path.
pub(crate) fn list(folder: &impl AsFd) -> io::Result<fs::ReadDir> {
    fs::read_dir(format!("/proc/self/fd/{}", folder.as_fd().as_raw_fd()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Makes folders inside one another, as a job does that changes into each of them.
    pub(crate) fn nest(top: &Path, depth: usize) {
        let name = "n".repeat(100);
        let mut at = nix::fcntl::open(top, flags(), Mode::empty()).unwrap();
        for _ in 0..depth {
            nix::sys::stat::mkdirat(&at, name.as_str(), Mode::S_IRWXU).unwrap();
            at = openat(&at, name.as_str(), flags(), Mode::empty()).unwrap();
        }
        let file = openat(&at, "deepest", OFlag::O_CREAT | OFlag::O_WRONLY, Mode::S_IRWXU).unwrap();
        nix::unistd::write(&file, &[7; 4_096]).unwrap();
    }

    #[test]
    fn folders_of_any_depth_and_width_go_and_nothing_else_does() {
        let parent = tempfile::tempdir().unwrap();
        let outside = parent.path().join("outside");
        fs::write(&outside, "stays").unwrap();
        let folder = parent.path().join("job");
        fs::create_dir(&folder).unwrap();
        nest(&folder, 5_000);
        for number in 0..300 {
            fs::create_dir_all(folder.join(format!("wide/{number}/x"))).unwrap();
            std::os::unix::fs::symlink(parent.path(), folder.join(format!("wide/{number}/up"))).unwrap();
        }
        // Names that the removal itself would use.
        fs::create_dir_all(folder.join(format!("{RAISED}1/full"))).unwrap();
        fs::write(folder.join(format!("{RAISED}2")), "").unwrap();
        let closed = folder.join("wide/closed");
        fs::create_dir_all(closed.join("inner")).unwrap();
        fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o0)).unwrap();
        remove_folder(&folder).unwrap();
        assert!(!folder.exists());
        assert_eq!(fs::read_to_string(&outside).unwrap(), "stays");
        assert_eq!(
            remove_folder(&folder).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }
}

//! Puts something that was fetched at its place on this machine. Something of the user's that is there already stays,
//! under another name.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tempfile::TempDir;

/// The most names that are tried for what was there before.
const MAX_NAMES: u32 = 100_000;
const BLOCK: usize = 64 * 1024;

/// A new folder in `folder`, on whose disk something is fetched before it is put at its place.
///
/// # Errors
/// This machine cannot make it.
pub(crate) fn scratch_in(folder: &Path) -> anyhow::Result<TempDir> {
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    tempfile::Builder::new()
        .prefix(".muster-")
        .tempdir_in(folder)
        .with_context(|| format!("cannot write into {}", folder.display()))
}

/// Moves `from` to `to` on the same disk. Returns the new name of what was at `to`, unless that had the same contents.
///
/// # Errors
/// This machine cannot move one of the two.
pub(crate) fn put_at(from: &Path, to: &Path) -> io::Result<Option<PathBuf>> {
    let kept = match to.symlink_metadata() {
        Ok(found) if !(found.is_file() || found.is_dir() || found.is_symlink()) => {
            return Err(io::Error::other("it is a pipe, a socket or a device"));
        }
        Ok(_) if has_same_contents(from, to)? => None,
        Ok(_) => Some(set_aside(to)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    fs::rename(from, to)?;
    Ok(kept)
}

/// Gives what is at `path` the first free name of `PATH.~1~`, `PATH.~2~` and so on, as `cp --backup=numbered` does.
fn set_aside(path: &Path) -> io::Result<PathBuf> {
    for number in 1..=MAX_NAMES {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".~{number}~"));
        let free = PathBuf::from(name);
        match free.symlink_metadata() {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::rename(path, &free)?;
                return Ok(free);
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Whether both are regular files of the same bytes.
fn has_same_contents(one: &Path, other: &Path) -> io::Result<bool> {
    let (first, second) = (one.symlink_metadata()?, other.symlink_metadata()?);
    if !first.is_file() || !second.is_file() || first.len() != second.len() {
        return Ok(false);
    }
    let (Ok(one), Ok(other)) = (File::open(one), File::open(other)) else {
        return Ok(false);
    };
    let (mut one, mut other) = (io::BufReader::new(one), io::BufReader::new(other));
    let (mut block, mut beside) = (vec![0; BLOCK], vec![0; BLOCK]);
    loop {
        let read = one.read(&mut block)?;
        if read == 0 {
            return Ok(true);
        }
        let (Some(block), Some(beside)) = (block.get(..read), beside.get_mut(..read)) else {
            return Ok(false);
        };
        other.read_exact(beside)?;
        if *block != *beside {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_file_keeps_its_contents_under_a_numbered_name() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let put = |contents: &str| {
            fs::write(at("new"), contents).unwrap();
            put_at(&at("new"), &at("a.txt")).unwrap()
        };
        let text = |name: &str| fs::read_to_string(at(name)).unwrap();
        assert_eq!(put("one"), None);
        assert_eq!(put("one"), None, "the same contents");
        assert_eq!(put("two"), Some(at("a.txt.~1~")));
        assert_eq!(put("six"), Some(at("a.txt.~2~")));
        assert_eq!(
            (text("a.txt"), text("a.txt.~1~"), text("a.txt.~2~")),
            ("six".into(), "one".into(), "two".into())
        );
    }

    #[test]
    fn a_folder_and_a_link_are_set_aside_whole() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("results")).unwrap();
        fs::write(at("results/mine"), "mine").unwrap();
        fs::write(at("new"), "x").unwrap();
        assert_eq!(
            put_at(&at("new"), &at("results")).unwrap(),
            Some(at("results.~1~"))
        );
        assert_eq!(fs::read_to_string(at("results.~1~/mine")).unwrap(), "mine");
        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        fs::write(at("new"), "x").unwrap();
        assert!(put_at(&at("new"), &at("pipe")).is_err());
        fs::write(at("target"), "x").unwrap();
        std::os::unix::fs::symlink("target", at("link")).unwrap();
        fs::write(at("new"), "y").unwrap();
        assert_eq!(put_at(&at("new"), &at("link")).unwrap(), Some(at("link.~1~")));
        assert_eq!(fs::read_to_string(at("target")).unwrap(), "x");
    }
}

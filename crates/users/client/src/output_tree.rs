//! A folder of a job's outputs, laid out from the archive in which it was delivered. The archive is another party's:
//! nothing is written outside the new folder, no link leads out of it, and no mode has more than permission bits.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, symlink};
use std::path::{Component, Path, PathBuf};

use tar::{Archive, Entry};

/// The mode of a file or a folder of which nobody has told one.
const USUAL_FOLDER: u32 = 0o777;
/// The folders of a path; a job's outputs are not so deep.
const MAX_NAMES: usize = 200;

/// An archive of outputs cannot be laid out.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// The archive has an entry that no folder of outputs has.
    #[error("the archive's entry {path:?} {reason}")]
    Entry {
        /// The path of the entry, as the archive has it.
        path: PathBuf,
        /// The mistake, as a predicate whose subject is the entry.
        reason: &'static str,
    },
    /// The archive is damaged, or this machine's disk failed.
    #[error("the archive cannot be unpacked")]
    Io(#[from] io::Error),
}

/// The permission bits with which a file of a job is made here, before the umask takes its part: those that it had
/// there, with writing for everybody who may read if its owner may write. So a usual file gets what the umask gives, a
/// private one stays private, and one that may be run may be run.
pub const fn permissions_here(mode: u32) -> u32 {
    let kept = mode & 0o555;
    if mode & 0o200 == 0 {
        kept
    } else {
        kept | 0o200 | ((mode & 0o444) >> 1)
    }
}

/// Makes the folder `into` and lays out the archive's files, folders and links in it. Returns the bytes of the files.
///
/// # Errors
/// The archive is damaged or has an entry of another kind, or this machine cannot keep it. Everything that was laid out
/// stays.
pub fn unpack_tree(archive: impl Read, into: &Path) -> Result<u64, TreeError> {
    DirBuilder::new().mode(USUAL_FOLDER).create(into)?;
    let mut bytes = 0_u64;
    // Links come last, so that no path leads through one.
    let mut links = Vec::new();
    for entry in Archive::new(archive).entries()? {
        let mut entry = entry?;
        let path = plain_path(&entry)?;
        let kind = entry.header().entry_type();
        if kind.is_dir() {
            make_folder(into, &path, entry.header().mode()?)?;
        } else if kind.is_file() {
            bytes = bytes.saturating_add(write_file(into, &path, &mut entry)?);
        } else if kind.is_symlink() {
            links.push((link_target(&entry, &path)?, path));
        } else {
            return Err(wrong(&entry, "is no file, no folder and no link"));
        }
    }
    for (target, path) in links {
        make_real_parents(into, &path)?;
        symlink(target, into.join(path))?;
    }
    Ok(bytes)
}

fn wrong<R: Read>(entry: &Entry<'_, R>, reason: &'static str) -> TreeError {
    let path = entry.path().map(std::borrow::Cow::into_owned).unwrap_or_default();
    TreeError::Entry { path, reason }
}

/// The path of an entry, if it consists of names alone.
fn plain_path<R: Read>(entry: &Entry<'_, R>) -> Result<PathBuf, TreeError> {
    let path = entry.path()?;
    let mut names = 0;
    for part in path.components() {
        names += 1;
        match part {
            Component::Normal(_) if names <= MAX_NAMES => {}
            Component::Normal(_) => return Err(wrong(entry, "lies too deep")),
            Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => {
                return Err(wrong(entry, "leaves the folder"));
            }
        }
    }
    if names == 0 {
        return Err(wrong(entry, "has no name"));
    }
    Ok(path.into_owned())
}

/// The target of a link, if it stays inside. It may have `..` at its start only: that part is counted from the link's
/// own folder, and every name after it leads into the tree or through a link of the same kind.
fn link_target<R: Read>(entry: &Entry<'_, R>, path: &Path) -> Result<PathBuf, TreeError> {
    let target = entry.link_name()?.unwrap_or_default().into_owned();
    let mut level = path.components().count().saturating_sub(1);
    let mut has_name = false;
    if target.as_os_str().is_empty() || target.is_absolute() {
        return Err(wrong(entry, "is a link that leads out of the folder"));
    }
    for name in target.as_os_str().as_bytes().split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." if level == 0 => return Err(wrong(entry, "is a link that leads out of the folder")),
            // The name may be a link's, and then its text does not tell where `..` leads.
            b".." if has_name => return Err(wrong(entry, "is a link with `..` behind a name")),
            b".." => level -= 1,
            _ => has_name = true,
        }
    }
    Ok(target)
}

/// Makes a folder, or does nothing if it is there. Its owner may always fill and empty it.
fn make_folder(into: &Path, path: &Path, mode: u32) -> Result<(), TreeError> {
    make_parents(into, path)?;
    let full = into.join(path);
    let made = DirBuilder::new()
        .mode(permissions_here(mode) | 0o700)
        .create(&full);
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && full.is_dir() => Ok(()),
        made => Ok(made?),
    }
}

fn make_parents(into: &Path, path: &Path) -> io::Result<()> {
    match path.parent().filter(|above| !above.as_os_str().is_empty()) {
        Some(above) => DirBuilder::new()
            .recursive(true)
            .mode(USUAL_FOLDER)
            .create(into.join(above)),
        None => Ok(()),
    }
}

/// Makes the folders above a link, one by one. None may be a link that was made before it: such a path would lie
/// elsewhere in the tree, where its target leads out.
fn make_real_parents(into: &Path, path: &Path) -> Result<(), TreeError> {
    let mut above = into.to_owned();
    for part in path.parent().unwrap_or(Path::new("")).components() {
        above.push(part);
        match above.symlink_metadata() {
            Ok(found) if found.is_dir() => {}
            Ok(_) => {
                return Err(TreeError::Entry {
                    path: path.to_owned(),
                    reason: "lies below a link or a file",
                });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                DirBuilder::new().mode(USUAL_FOLDER).create(&above)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn write_file<R: Read>(into: &Path, path: &Path, entry: &mut Entry<'_, R>) -> Result<u64, TreeError> {
    make_parents(into, path)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(permissions_here(entry.header().mode()?))
        .open(into.join(path))?;
    let promised = entry.size();
    let written = io::copy(entry, &mut file)?;
    if written != promised {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use proptest::prelude::*;
    use tar::{Builder, EntryType, Header};

    use super::*;

    /// An archive with an entry: its path, kind, mode, and contents or target. The path is written as it is.
    fn archive(entries: &[(&str, EntryType, u32, &str)]) -> Vec<u8> {
        let mut tar = Builder::new(Vec::new());
        for (path, kind, mode, text) in entries {
            let mut header = Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(*mode);
            let name = &mut header.as_old_mut().name;
            name[..path.len()].copy_from_slice(path.as_bytes());
            if *kind == EntryType::Symlink {
                header.set_link_name_literal(text).unwrap();
                header.set_size(0);
                header.set_cksum();
                tar.append(&header, io::empty()).unwrap();
            } else {
                header.set_size(text.len() as u64);
                header.set_cksum();
                tar.append(&header, text.as_bytes()).unwrap();
            }
        }
        tar.into_inner().unwrap()
    }

    fn unpack(bytes: &[u8]) -> (tempfile::TempDir, Result<u64, TreeError>) {
        let dir = tempfile::tempdir().unwrap();
        let unpacked = unpack_tree(bytes, &dir.path().join("tree"));
        (dir, unpacked)
    }

    #[test]
    fn a_tree_has_its_files_modes_links_and_empty_folders() {
        let (dir, unpacked) = unpack(&archive(&[
            ("run", EntryType::Regular, 0o4755, "#!"),
            ("key", EntryType::Regular, 0o600, "k"),
            ("empty", EntryType::Directory, 0o500, ""),
            ("a/b/c", EntryType::Regular, 0o644, "abc"),
            ("a/last", EntryType::Symlink, 0o777, "../run"),
            ("dangling", EntryType::Symlink, 0o777, "none"),
        ]));
        assert_eq!(unpacked.unwrap(), 6);
        let at = |name: &str| dir.path().join("tree").join(name);
        let mode = |name: &str| fs::metadata(at(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("run") & 0o4700, mode("key")), (0o700, 0o600));
        assert_eq!(mode("empty") & 0o700, 0o700);
        assert_eq!(fs::read_to_string(at("a/b/c")).unwrap(), "abc");
        assert_eq!(fs::read_link(at("a/last")).unwrap(), Path::new("../run"));
        assert_eq!(fs::read_link(at("dangling")).unwrap(), Path::new("none"));
    }

    #[test]
    fn nothing_is_written_outside_the_folder() {
        let long = "x/".repeat(49);
        for entries in [
            vec![("../out", EntryType::Regular, 0o644, "x")],
            vec![("/tmp/muster-out", EntryType::Regular, 0o644, "x")],
            vec![("a/../../out", EntryType::Regular, 0o644, "x")],
            vec![("l", EntryType::Symlink, 0o777, "..")],
            vec![("a/l", EntryType::Symlink, 0o777, "../../out")],
            vec![("l", EntryType::Symlink, 0o777, "/etc")],
            vec![("dev", EntryType::Char, 0o644, "")],
            vec![("pipe", EntryType::Fifo, 0o644, "")],
            vec![("hard", EntryType::Link, 0o644, "")],
            vec![
                ("a", EntryType::Regular, 0o644, "x"),
                ("a", EntryType::Regular, 0o644, "y"),
            ],
            vec![
                ("a", EntryType::Regular, 0o644, "x"),
                ("a/b", EntryType::Regular, 0o644, "y"),
            ],
            vec![
                ("a", EntryType::Symlink, 0o777, "b"),
                ("a/x", EntryType::Regular, 0o644, "y"),
            ],
            // The middle link lies in the root of the tree if the first one is followed.
            vec![
                ("p/q/r", EntryType::Symlink, 0o777, "../.."),
                ("p/q/r/x", EntryType::Symlink, 0o777, ".."),
                ("p/q/r/x/out", EntryType::Symlink, 0o777, "anything"),
            ],
            vec![
                ("d/e", EntryType::Symlink, 0o777, ".."),
                ("x", EntryType::Symlink, 0o777, "d/e/../../y"),
            ],
            vec![
                (long.as_str(), EntryType::Symlink, 0o777, "x"),
                (long.as_str(), EntryType::Symlink, 0o777, "x"),
            ],
        ] {
            let (dir, unpacked) = unpack(&archive(&entries));
            assert!(unpacked.is_err(), "{entries:?}");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "{entries:?}");
        }
    }

    #[test]
    fn a_cut_archive_is_an_error() {
        let whole = archive(&[("a", EntryType::Regular, 0o644, &"x".repeat(2_000))]);
        assert!(unpack(&whole[..1_000]).1.is_err());
    }

    #[test]
    fn permissions_here_are_those_of_the_umask_for_usual_files_only() {
        for (there, here) in [
            (0o644, 0o666),
            (0o664, 0o666),
            (0o755, 0o777),
            (0o600, 0o600),
            (0o700, 0o700),
            (0o640, 0o660),
            (0o444, 0o444),
            (0o555, 0o555),
            (0o711, 0o711),
            (0o4755, 0o777),
            (0, 0),
        ] {
            assert_eq!(permissions_here(there), here, "{there:o}");
        }
    }

    proptest! {
        #[test]
        fn damaged_archives_stay_inside_the_folder(at in 0_usize..4_000, byte: u8, cut in 0_usize..5_000) {
            let mut bytes = archive(&[
                ("a/b", EntryType::Regular, 0o644, "abc"),
                ("a/l", EntryType::Symlink, 0o777, "b"),
                ("d", EntryType::Directory, 0o755, ""),
            ]);
            let at = at % bytes.len();
            bytes[at] = byte;
            bytes.truncate(cut.max(512));
            let (dir, _) = unpack(&bytes);
            prop_assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        }
    }
}

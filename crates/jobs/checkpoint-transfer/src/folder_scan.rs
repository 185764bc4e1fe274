//! One look at the folder of checkpoints.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use muster_checkpoints::{FileTree, ObservedChild, PlainPath, TreeEntry, TreeFlaw, TreeLimits};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, openat, statat};

/// The most names that one look reads at the top of the folder. Names behind them are not seen.
pub const MAX_TOP_NAMES: usize = 2_000;

/// The most files and folders that one look reads in all children together. The children that changed last are looked
/// at first.
pub const MAX_LOOK_ENTRIES: usize = 200_000;

/// The result of one look at the folder.
#[derive(Debug, Default)]
pub struct FolderLook {
    /// The children that may be checkpoints.
    pub children: Vec<ObservedChild>,
    /// The children that cannot be checkpoints, with the reason.
    pub flawed: Vec<(String, TreeFlaw)>,
}

/// Opens the folder itself.
///
/// # Errors
/// It is gone, or no folder.
pub fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

/// Looks at every child of the folder. Blocks.
///
/// # Errors
/// The folder itself cannot be read.
pub fn look(path: &Path, limits: TreeLimits) -> io::Result<FolderLook> {
    look_within(path, limits, MAX_LOOK_ENTRIES)
}

/// Looks at the children of the folder until `most` files and folders were read.
fn look_within(path: &Path, limits: TreeLimits, most: usize) -> io::Result<FolderLook> {
    let folder = open_folder(path)?;
    let mut found = FolderLook::default();
    let mut left = most;
    for name in newest_names(&folder)? {
        let narrowed = TreeLimits {
            entries: limits.entries.min(left),
            ..limits
        };
        let mut tree = FileTree::default();
        let looked = collect(&folder, &name, narrowed, &mut tree);
        // A folder that was cut has used up what it was allowed.
        left -= match &looked {
            Err(LookError::Flaw(TreeFlaw::TooMany(_))) => narrowed.entries,
            Ok(()) | Err(_) => tree.entries().len().clamp(1, left),
        };
        let looked = looked.and_then(|()| Ok(tree.complete()?));
        match looked {
            Ok(tree) => found.children.push(ObservedChild { name, tree }),
            // Gone, or changed its kind, while it was looked at.
            Err(LookError::Io(_)) => {}
            Err(LookError::Flaw(TreeFlaw::TooMany(_))) if narrowed.entries < limits.entries => {
                found.flawed.push((name, TreeFlaw::TooManyTogether(most)));
            }
            Err(LookError::Flaw(flaw)) => found.flawed.push((name, flaw)),
        }
        if left == 0 {
            break;
        }
    }
    Ok(found)
}

/// The names at the top of the folder that may be those of checkpoints; those that changed last come first.
fn newest_names(folder: &OwnedFd) -> io::Result<Vec<String>> {
    let mut dated = Vec::new();
    for name in names(folder, MAX_TOP_NAMES)?.0 {
        let Ok(name) = name else { continue };
        if muster_checkpoints::candidates::is_never_whole(&name) {
            continue;
        }
        if let Ok(found) = statat(folder, name.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
            dated.push((found.st_ctime, found.st_ctime_nsec, name));
        }
    }
    dated.sort_unstable_by(|one, other| other.cmp(one));
    Ok(dated.into_iter().map(|(.., name)| name).collect())
}

/// The reason why a child could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// It is no checkpoint.
    #[error(transparent)]
    Flaw(#[from] TreeFlaw),
    /// It could not be read, for example because it is gone.
    #[error("the folder cannot be read")]
    Io(#[from] io::Error),
}

impl From<rustix::io::Errno> for LookError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Io(error.into())
    }
}

/// Looks at one child of the folder. Blocks.
///
/// # Errors
/// See [`LookError`].
pub fn look_at(folder: &OwnedFd, name: &str, limits: TreeLimits) -> Result<FileTree, LookError> {
    let mut tree = FileTree::default();
    collect(folder, name, limits, &mut tree)?;
    Ok(tree.complete()?)
}

/// Adds one child of the folder with everything in it to `tree`.
fn collect(folder: &OwnedFd, name: &str, limits: TreeLimits, tree: &mut FileTree) -> Result<(), LookError> {
    let path: PlainPath = name.parse().map_err(TreeFlaw::from)?;
    if path.names().count() > 1 {
        return Err(TreeFlaw::from(muster_checkpoints::PathFlaw::OddName).into());
    }
    let found = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    add(folder, OsStr::new(name), path, &found, limits, tree)
}

/// Adds an entry, and everything below it if it is a folder.
fn add(
    parent: &OwnedFd,
    name: &OsStr,
    path: PlainPath,
    found: &Stat,
    limits: TreeLimits,
    tree: &mut FileTree,
) -> Result<(), LookError> {
    let kind = FileType::from_raw_mode(found.st_mode);
    if !matches!(kind, FileType::Directory | FileType::RegularFile) {
        return Err(TreeFlaw::NotPlain(path.to_string()).into());
    }
    let is_folder = kind == FileType::Directory;
    tree.add(entry(path.clone(), is_folder, found), limits)?;
    if !is_folder {
        return Ok(());
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    let folder = openat(parent, name, flags, Mode::empty())?;
    let room = limits.entries.saturating_sub(tree.entries().len());
    let (names, is_cut) = names(&folder, room)?;
    if is_cut {
        return Err(TreeFlaw::TooMany(limits.entries).into());
    }
    for name in names {
        let name = name.map_err(|()| TreeFlaw::NotUtf8)?;
        let below = path.join(&name).map_err(TreeFlaw::from)?;
        let found = statat(&folder, name.as_str(), AtFlags::SYMLINK_NOFOLLOW)?;
        add(&folder, OsStr::new(&name), below, &found, limits, tree)?;
    }
    Ok(())
}

fn entry(path: PlainPath, is_folder: bool, found: &Stat) -> TreeEntry {
    let nanos = |seconds: i64, nanos: i128| i128::from(seconds) * 1_000_000_000 + nanos;
    TreeEntry {
        path,
        is_folder,
        mode: found.st_mode & 0o777,
        size: match is_folder {
            true => 0,
            false => u64::try_from(found.st_size).unwrap_or_default(),
        },
        inode: found.st_ino,
        modified_ns: nanos(found.st_mtime, found.st_mtime_nsec.into()),
        changed_ns: nanos(found.st_ctime, found.st_ctime_nsec.into()),
    }
}

/// Up to `most` names of a folder, each of them an error if it is not UTF-8, and whether there are more.
fn names(folder: &impl AsFd, most: usize) -> io::Result<(Vec<Result<String, ()>>, bool)> {
    let mut names = Vec::new();
    for item in Dir::read_from(folder)? {
        let item = item?;
        let bytes = item.file_name().to_bytes();
        if matches!(bytes, b"." | b"..") {
            continue;
        }
        if names.len() >= most {
            return Ok((names, true));
        }
        let name = OsStr::from_bytes(bytes).to_str();
        names.push(name.map(str::to_owned).ok_or(()));
    }
    Ok((names, false))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const LIMITS: TreeLimits = TreeLimits {
        entries: 100,
        bytes: 1 << 20,
    };

    fn flaw_of(look: &FolderLook, name: &str) -> TreeFlaw {
        let found = look.flawed.iter().find(|(flawed, _)| flawed == name);
        found
            .unwrap_or_else(|| panic!("{name} is not flawed: {look:?}"))
            .1
            .clone()
    }

    #[test]
    fn folders_and_files_are_seen_and_nothing_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("good/sub/empty")).unwrap();
        fs::write(at("good/a"), "12345").unwrap();
        fs::write(at("good/sub/b"), "12").unwrap();
        fs::write(at("single"), "1").unwrap();
        fs::write(at("half.tmp"), "1").unwrap();
        fs::write(at(".hidden"), "1").unwrap();
        std::os::unix::fs::symlink("/etc", at("link")).unwrap();
        fs::create_dir(at("inside")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", at("inside/link")).unwrap();
        fs::create_dir(at("piped")).unwrap();
        rustix::fs::mknodat(CWD, at("piped/p"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        fs::create_dir(at("nothing")).unwrap();
        let sparse = fs::File::create(at("sparse")).unwrap();
        sparse.set_len(1 << 40).unwrap();
        fs::create_dir(at("many")).unwrap();
        for number in 0..200 {
            fs::write(at(&format!("many/{number}")), "1").unwrap();
        }
        fs::create_dir(at("odd")).unwrap();
        fs::write(at("odd").join(OsStr::from_bytes(b"\xff")), "1").unwrap();

        let look = look(folder.path(), LIMITS).unwrap();
        let mut names: Vec<_> = look.children.iter().map(|child| child.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["good", "single"]);
        let good = look.children.iter().find(|child| child.name == "good").unwrap();
        let paths: Vec<_> = good
            .tree
            .entries()
            .iter()
            .map(|entry| entry.path.as_str())
            .collect();
        assert_eq!(
            paths,
            ["good", "good/a", "good/sub", "good/sub/b", "good/sub/empty"]
        );
        assert_eq!(good.tree.bytes(), 7);
        assert_eq!(flaw_of(&look, "link"), TreeFlaw::NotPlain("link".to_owned()));
        assert_eq!(
            flaw_of(&look, "inside"),
            TreeFlaw::NotPlain("inside/link".to_owned())
        );
        assert_eq!(flaw_of(&look, "piped"), TreeFlaw::NotPlain("piped/p".to_owned()));
        assert_eq!(flaw_of(&look, "nothing"), TreeFlaw::Empty);
        assert_eq!(flaw_of(&look, "sparse"), TreeFlaw::TooLarge(1 << 20));
        assert_eq!(flaw_of(&look, "many"), TreeFlaw::TooMany(100));
        assert_eq!(flaw_of(&look, "odd"), TreeFlaw::NotUtf8);
    }

    #[test]
    fn one_look_is_bounded_over_all_children_and_sees_the_newest_first() {
        let folder = tempfile::tempdir().unwrap();
        let changed = |name: &str| {
            let found = statat(CWD, folder.path().join(name), AtFlags::SYMLINK_NOFOLLOW).unwrap();
            (found.st_ctime, found.st_ctime_nsec)
        };
        let children = ["c1", "c2", "c3"];
        for (number, child) in children.into_iter().enumerate() {
            fs::create_dir(folder.path().join(child)).unwrap();
            for file in 0..9 {
                fs::write(folder.path().join(format!("{child}/{file}")), "1").unwrap();
            }
            // The clock of file times is coarse.
            while number > 0 && changed(child) <= changed(children[number - 1]) {
                fs::write(folder.path().join(child).join("8"), "1").unwrap();
                fs::remove_file(folder.path().join(child).join("8")).unwrap();
                fs::write(folder.path().join(child).join("8"), "1").unwrap();
            }
        }
        let names = |look: &FolderLook| -> Vec<String> {
            look.children.iter().map(|child| child.name.clone()).collect()
        };
        assert_eq!(
            names(&look_within(folder.path(), LIMITS, 30).unwrap()),
            ["c3", "c2", "c1"]
        );
        let bounded = look_within(folder.path(), LIMITS, 25).unwrap();
        assert_eq!(names(&bounded), ["c3", "c2"]);
        assert_eq!(flaw_of(&bounded, "c1"), TreeFlaw::TooManyTogether(25));
        let exact = look_within(folder.path(), LIMITS, 20).unwrap();
        assert_eq!(
            (names(&exact), exact.flawed.len()),
            (vec!["c3".to_owned(), "c2".to_owned()], 0)
        );
    }

    #[test]
    fn a_folder_deeper_than_a_path_may_be_is_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let deep = vec!["d"; 80].join("/");
        fs::create_dir_all(folder.path().join(&deep)).unwrap();
        let look = look(folder.path(), LIMITS).unwrap();
        assert!(matches!(flaw_of(&look, "d"), TreeFlaw::Path(_)));
        look_at(&open_folder(folder.path()).unwrap(), "d/d", LIMITS).unwrap_err();
    }

    #[test]
    fn a_write_changes_what_a_look_sees() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("c")).unwrap();
        fs::write(folder.path().join("c/w"), "12345").unwrap();
        let fd = open_folder(folder.path()).unwrap();
        let before = look_at(&fd, "c", LIMITS).unwrap();
        assert_eq!(look_at(&fd, "c", LIMITS).unwrap(), before);
        // Another file under the same name with the same length and the same times.
        fs::write(folder.path().join("new"), "54321").unwrap();
        fs::rename(folder.path().join("new"), folder.path().join("c/w")).unwrap();
        assert_ne!(look_at(&fd, "c", LIMITS).unwrap(), before);
    }
}

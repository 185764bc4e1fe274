//! Puts what was fetched at its place on this machine. A file of the user's with other contents is replaced only if the
//! user says so.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use muster_protocol::Digest;
use muster_protocol::rest::FileView;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

const BLOCK: usize = 64 * 1024;
/// The places that a message names.
const MAX_NAMED: usize = 10;
/// The reasons for which a place is taken, as predicates. Only files of the last two kinds are replaced, if the user
/// says so.
const IS_FOLDER: &str = "is a folder here";
const IS_SPECIAL: &str = "is a pipe, a socket or a device here";
const IS_HERE: &str = "is here already";
const HAS_OTHER_CONTENTS: &str = "is here already, with other contents";

/// Whether files of the user's with other contents are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Overwrite {
    Never,
    Forced,
}

/// The outcome of putting something that was fetched at its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Placed {
    /// At least a part of it was not here before, and nothing was replaced.
    New,
    /// It was here already with the same contents.
    Unchanged,
    /// At least one file with other contents was replaced.
    Replaced,
}

/// The kind of something that is to be fetched, as far as it is known.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Coming<'a> {
    /// This file of the store.
    File(&'a FileView),
    Folder,
    /// A file or a folder.
    Either,
}

/// Something is not put at its place.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaceError {
    /// Something of the user's is there.
    #[error("{0}")]
    Taken(TakenPlaces),
    /// This machine cannot write there.
    #[error("cannot write {}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// Places that something of the user's has.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TakenPlaces(Vec<TakenPlace>);

#[derive(Debug, PartialEq, Eq)]
struct TakenPlace {
    path: PathBuf,
    /// The reason, as a predicate.
    reason: &'static str,
}

/// The moves that put things at their places.
#[derive(Debug, Default)]
struct Moves {
    moves: Vec<Move>,
    taken: Vec<TakenPlace>,
}

#[derive(Debug)]
struct Move {
    from: PathBuf,
    to: PathBuf,
    /// Whether a file or a link is at `to`.
    replaces: bool,
}

impl Overwrite {
    /// By the option `--force`.
    pub(crate) fn by(force: bool) -> Self {
        match force {
            true => Self::Forced,
            false => Self::Never,
        }
    }
}

impl Placed {
    /// The words behind the size in a line for people.
    pub(crate) fn note(self) -> &'static str {
        match self {
            Self::New => "",
            Self::Unchanged => ", the same was here already",
            Self::Replaced => ", replaced what was here",
        }
    }
}

impl fmt::Display for TakenPlaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, place) in self.0.iter().take(MAX_NAMED).enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{} {}", place.path.display(), place.reason)?;
        }
        match self.0.len().saturating_sub(MAX_NAMED) {
            0 => Ok(()),
            more => write!(f, ", and {more} more"),
        }
    }
}

impl PlaceError {
    fn taken(path: &Path, reason: &'static str) -> Self {
        let path = path.to_owned();
        Self::Taken(TakenPlaces(vec![TakenPlace { path, reason }]))
    }

    fn io(path: &Path) -> impl Fn(io::Error) -> Self {
        |source| Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}

/// A new folder in `folder`, on whose disk something is laid out before it is put at its place.
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

/// Whether the file that is to come is at `to` already, with the same contents.
///
/// # Errors
/// Something else is there that stays, or this machine cannot look.
pub(crate) fn is_there(to: &Path, coming: Coming<'_>, overwrite: Overwrite) -> Result<bool, PlaceError> {
    let found = match to.symlink_metadata() {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(PlaceError::io(to)(error)),
    };
    let reason = match (to.is_dir(), coming) {
        (true, Coming::Folder | Coming::Either) => return Ok(false),
        (true, Coming::File(_)) => IS_FOLDER,
        (false, _) if !found.is_file() && !found.is_symlink() => IS_SPECIAL,
        (false, Coming::File(file)) => match &file.sha256 {
            // Compared once it has come.
            None => return Ok(false),
            Some(sha256) if has_digest(to, sha256, file.size).map_err(PlaceError::io(to))? => {
                return Ok(true);
            }
            Some(_) => HAS_OTHER_CONTENTS,
        },
        (false, Coming::Folder | Coming::Either) => IS_HERE,
    };
    let is_replaceable = [HAS_OTHER_CONTENTS, IS_HERE].contains(&reason);
    match overwrite {
        Overwrite::Forced if is_replaceable => Ok(false),
        Overwrite::Forced | Overwrite::Never => Err(PlaceError::taken(to, reason)),
    }
}

/// Moves `from` to `to` on the same disk, as [`put_all`] does.
///
/// # Errors
/// See [`put_all`].
pub(crate) fn put_at(from: &Path, to: &Path, overwrite: Overwrite) -> Result<Placed, PlaceError> {
    let placed = put_all(&[(from.to_owned(), to.to_owned())], overwrite)?;
    Ok(placed.into_iter().next().unwrap_or(Placed::Unchanged))
}

/// Puts a fetched file at its place. One that stays away leaves nothing behind.
///
/// # Errors
/// See [`put_all`].
pub(crate) fn put_fetched(from: &Path, to: &Path, overwrite: Overwrite) -> Result<Placed, PlaceError> {
    let placed = put_at(from, to, overwrite);
    if !matches!(placed, Ok(Placed::New | Placed::Replaced)) {
        // A part that stays is found by the next download of the same file.
        let _ = std::fs::remove_file(from);
    }
    placed
}

/// Moves each first path to the second one on the same disk. Folders are put into folders that are there, file by file.
///
/// # Errors
/// Something of the user's has one of the places, and then nothing is moved; or this machine cannot move something.
pub(crate) fn put_all(pairs: &[(PathBuf, PathBuf)], overwrite: Overwrite) -> Result<Vec<Placed>, PlaceError> {
    let mut all = Vec::new();
    let mut taken = Vec::new();
    for (from, to) in pairs {
        let mut moves = Moves::default();
        moves.plan(from, to, overwrite)?;
        taken.append(&mut moves.taken);
        all.push(moves.moves);
    }
    if !taken.is_empty() {
        return Err(PlaceError::Taken(TakenPlaces(taken)));
    }
    let mut placed = Vec::new();
    for moves in all {
        placed.push(if moves.iter().any(|one| one.replaces) {
            Placed::Replaced
        } else if moves.is_empty() {
            Placed::Unchanged
        } else {
            Placed::New
        });
        moves.iter().try_for_each(Move::carry_out)?;
    }
    Ok(placed)
}

impl Moves {
    fn plan(&mut self, from: &Path, to: &Path, overwrite: Overwrite) -> Result<(), PlaceError> {
        let new = from.symlink_metadata().map_err(PlaceError::io(from))?;
        let found = match to.symlink_metadata() {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.add(from, to, false);
                return Ok(());
            }
            Err(error) => return Err(PlaceError::io(to)(error)),
        };
        // A link of the user's to a folder is that folder.
        let is_folder = to.is_dir();
        if new.is_dir() && is_folder {
            let entries = fs::read_dir(from).map_err(PlaceError::io(from))?;
            let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
            let mut names: Vec<_> = names.collect::<io::Result<_>>().map_err(PlaceError::io(from))?;
            names.sort();
            return names
                .iter()
                .try_for_each(|name| self.plan(&from.join(name), &to.join(name), overwrite));
        }
        if is_same(from, to).map_err(PlaceError::io(to))? {
            return Ok(());
        }
        let reason = if is_folder {
            IS_FOLDER
        } else if found.is_file() || found.is_symlink() {
            HAS_OTHER_CONTENTS
        } else {
            IS_SPECIAL
        };
        if reason == HAS_OTHER_CONTENTS && overwrite == Overwrite::Forced {
            self.add(from, to, true);
        } else {
            let path = to.to_owned();
            self.taken.push(TakenPlace { path, reason });
        }
        Ok(())
    }

    fn add(&mut self, from: &Path, to: &Path, replaces: bool) {
        self.moves.push(Move {
            from: from.to_owned(),
            to: to.to_owned(),
            replaces,
        });
    }
}

impl Move {
    fn carry_out(&self) -> Result<(), PlaceError> {
        let Self { from, to, replaces } = self;
        let is_folder = from.is_dir() && !from.is_symlink();
        let moved = match (replaces, is_folder) {
            (false, false) => move_new(from, to),
            // The kernel moves a folder to no file, and into no folder that has anything in it.
            (false, true) => fs::rename(from, to),
            (true, false) => fs::rename(from, to),
            (true, true) => fs::remove_file(to).and_then(|()| fs::rename(from, to)),
        };
        moved.map_err(|error| match error.kind() == io::ErrorKind::AlreadyExists {
            true => PlaceError::taken(to, IS_HERE),
            false => PlaceError::io(to)(error),
        })
    }
}

/// Moves a file or a link to a place that was free, unless something has come there meanwhile.
fn move_new(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Ok(()) => fs::remove_file(from),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
        // The file system has no hard links.
        Err(_) => fs::rename(from, to),
    }
}

/// Whether both are links to the same target, or files of the same bytes, also behind links.
fn is_same(one: &Path, other: &Path) -> io::Result<bool> {
    if let (Ok(one), Ok(other)) = (one.read_link(), other.read_link())
        && one == other
    {
        return Ok(true);
    }
    let (Ok(first), Ok(second)) = (one.metadata(), other.metadata()) else {
        // A link that leads nowhere.
        return Ok(false);
    };
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

/// Whether the path leads to a regular file of this sha256 as hex digits.
fn has_digest(path: &Path, sha256: &str, size: Option<u64>) -> io::Result<bool> {
    let Ok(found) = path.metadata() else {
        return Ok(false);
    };
    if !found.is_file() || size.is_some_and(|size| size != found.len()) {
        return Ok(false);
    }
    let mut hasher = Sha256::new();
    io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok(Digest::from_bytes(hasher.finalize().into()).hex() == sha256)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use muster_protocol::Timestamp;

    use super::*;

    fn taken(placed: Result<Placed, PlaceError>) -> String {
        match placed.unwrap_err() {
            PlaceError::Taken(places) => places.to_string(),
            PlaceError::Io { source, .. } => panic!("{source}"),
        }
    }

    #[test]
    fn a_file_with_other_contents_stays_unless_the_user_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let put = |contents: &str, overwrite| {
            fs::write(at("new"), contents).unwrap();
            put_at(&at("new"), &at("a.txt"), overwrite)
        };
        let text = || fs::read_to_string(at("a.txt")).unwrap();
        assert_eq!(put("one", Overwrite::Never).unwrap(), Placed::New);
        assert_eq!(put("one", Overwrite::Never).unwrap(), Placed::Unchanged);
        assert_eq!(put("one", Overwrite::Forced).unwrap(), Placed::Unchanged);
        let reason = taken(put("two", Overwrite::Never));
        assert!(
            reason.ends_with("a.txt is here already, with other contents"),
            "{reason}"
        );
        assert_eq!(text(), "one");
        assert_eq!(put("two", Overwrite::Forced).unwrap(), Placed::Replaced);
        assert_eq!(text(), "two");
    }

    #[test]
    fn a_folder_is_put_into_a_folder_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let make = |files: &[(&str, &str)]| {
            let _ = fs::remove_dir_all(at("new"));
            for (name, contents) in files {
                let path = at("new").join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, contents).unwrap();
            }
        };
        fs::create_dir_all(at("results/deep")).unwrap();
        fs::write(at("results/mine"), "mine").unwrap();
        fs::write(at("results/deep/same"), "same").unwrap();
        fs::write(at("results/deep/b"), "b").unwrap();
        let put = |overwrite| put_at(&at("new"), &at("results"), overwrite);
        make(&[("a", "a"), ("deep/b", "other"), ("deep/same", "same")]);
        let reason = taken(put(Overwrite::Never));
        assert!(
            reason.ends_with("results/deep/b is here already, with other contents"),
            "{reason}"
        );
        assert!(!at("results/a").exists());
        assert_eq!(put(Overwrite::Forced).unwrap(), Placed::Replaced);
        let text = |name: &str| fs::read_to_string(at("results").join(name)).unwrap();
        assert_eq!([text("a"), text("mine"), text("deep/b")], ["a", "mine", "other"]);
        make(&[("deep/c", "c"), ("deep/same", "same")]);
        assert_eq!(put(Overwrite::Never).unwrap(), Placed::New);
        make(&[("deep/c", "c")]);
        assert_eq!(put(Overwrite::Never).unwrap(), Placed::Unchanged);
    }

    #[test]
    fn a_folder_and_a_device_are_replaced_by_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("folder")).unwrap();
        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        fs::write(at("new"), "x").unwrap();
        let put = |name: &str| taken(put_at(&at("new"), &at(name), Overwrite::Forced));
        assert!(put("folder").ends_with("folder is a folder here"));
        assert!(put("pipe").contains("a pipe, a socket or a device"));
    }

    #[test]
    fn a_link_stands_for_the_file_that_it_leads_to() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("target"), "x").unwrap();
        symlink("target", at("link")).unwrap();
        let put = |contents: &str, overwrite| {
            fs::write(at("new"), contents).unwrap();
            put_at(&at("new"), &at("link"), overwrite)
        };
        assert_eq!(put("x", Overwrite::Never).unwrap(), Placed::Unchanged);
        taken(put("y", Overwrite::Never));
        assert_eq!(put("y", Overwrite::Forced).unwrap(), Placed::Replaced);
        assert_eq!(fs::read_to_string(at("target")).unwrap(), "x");
        symlink("nowhere", at("dangling")).unwrap();
        symlink("nowhere", at("new-link")).unwrap();
        let same = put_at(&at("new-link"), &at("dangling"), Overwrite::Never);
        assert_eq!(same.unwrap(), Placed::Unchanged);
    }

    #[test]
    fn many_taken_places_are_named_in_part() {
        let place = |number: usize| TakenPlace {
            path: number.to_string().into(),
            reason: IS_HERE,
        };
        let text = TakenPlaces((0..12).map(place).collect()).to_string();
        assert!(
            text.starts_with("0 is here already, 1 is") && text.ends_with("9 is here already, and 2 more")
        );
    }

    #[test]
    fn a_place_is_looked_at_before_anything_is_fetched() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("folder")).unwrap();
        fs::write(at("file"), "abc").unwrap();
        let view = |contents: &str| FileView {
            id: String::new(),
            name: String::new(),
            size: Some(contents.len() as u64),
            received: 0,
            complete: true,
            sha256: Some(Digest::of(contents.as_bytes()).hex()),
            upload_url: String::new(),
            download_url: String::new(),
            expires_at: Timestamp::from_secs(0),
            created_at: Timestamp::from_secs(0),
        };
        let (same, other) = (view("abc"), view("xyz"));
        let look = |name: &str, coming, overwrite| is_there(&at(name), coming, overwrite).ok();
        let (never, forced) = (Overwrite::Never, Overwrite::Forced);
        for (name, coming, unforced, with_force) in [
            ("none", Coming::Either, Some(false), Some(false)),
            ("none", Coming::File(&same), Some(false), Some(false)),
            ("folder", Coming::Either, Some(false), Some(false)),
            ("folder", Coming::Folder, Some(false), Some(false)),
            ("folder", Coming::File(&same), None, None),
            ("file", Coming::Either, None, Some(false)),
            ("file", Coming::Folder, None, Some(false)),
            ("file", Coming::File(&same), Some(true), Some(true)),
            ("file", Coming::File(&other), None, Some(false)),
            ("file/below", Coming::Either, None, None),
        ] {
            let found = (look(name, coming, never), look(name, coming, forced));
            assert_eq!(found, (unforced, with_force), "{name} {coming:?}");
        }
    }
}

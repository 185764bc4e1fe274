//! A look into a folder that is an input: every entry is sent, named as left out, or the reason why the folder cannot
//! be an input.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use muster_protocol::relative_path::check_relative_path;

use super::{Input, InputSource};

/// A folder with more in it is packed better by hand.
const MAX_ENTRIES: usize = 100_000;
/// Names in one notice, and in one error.
const MAX_NAMED: usize = 10;

/// The entries of a folder.
#[derive(Debug, Default)]
pub(super) struct FolderWalk {
    pub(super) inputs: Vec<Input>,
    /// Lines for the user, at most one a kind of entry.
    pub(super) notices: Vec<String>,
    seen: usize,
    /// By the notice, the entries of which it is.
    remarks: BTreeMap<&'static str, Vec<String>>,
    /// Entries that can neither be sent nor left out.
    flaws: Vec<String>,
    /// The folders that the walk is in, by device and inode.
    above: Vec<(u64, u64)>,
}

impl FolderWalk {
    /// Looks into `folder`, whose entries are to lie below the path `under`. Links are followed.
    ///
    /// # Errors
    /// The folder cannot be read or is too large, or has entries that no job could be given under their names.
    pub(super) fn read(folder: &Path, under: &str) -> anyhow::Result<Self> {
        let mut walk = Self::default();
        let found = std::fs::metadata(folder).with_context(|| format!("cannot read {}", folder.display()))?;
        walk.enter(folder, under, &found)?;
        if !walk.flaws.is_empty() {
            bail!(
                "the folder {} cannot be an input, and nothing was sent: {}",
                folder.display(),
                name_some(&walk.flaws)
            );
        }
        walk.notices = walk
            .remarks
            .iter()
            .map(|(notice, names)| format!("{notice}: {}", name_some(names)))
            .collect();
        Ok(walk)
    }

    fn enter(&mut self, folder: &Path, under: &str, found: &Metadata) -> anyhow::Result<()> {
        let entries = list_folder(folder)?;
        if entries.is_empty() {
            let (path, source) = (under.to_owned(), InputSource::EmptyFolder);
            self.inputs.push(Input { path, source });
        }
        self.above.push((found.dev(), found.ino()));
        for (name, path) in entries {
            self.seen += 1;
            if self.seen > MAX_ENTRIES {
                bail!("a folder of more than {MAX_ENTRIES} entries: pack it into an archive");
            }
            let Some(name) = name.to_str() else {
                self.flaw(&path, "has a name that is not UTF-8");
                continue;
            };
            let under = format!("{under}/{name}");
            if let Err(reason) = check_relative_path(&under) {
                self.flaw(&path, reason);
                continue;
            }
            let own = std::fs::symlink_metadata(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            if own.is_symlink() {
                self.follow(path, under)?;
            } else {
                self.add(path, under, &own)?;
            }
        }
        self.above.pop();
        Ok(())
    }

    /// Adds what a link leads to.
    fn follow(&mut self, path: PathBuf, under: String) -> anyhow::Result<()> {
        match std::fs::metadata(&path) {
            Ok(found) if self.above.contains(&(found.dev(), found.ino())) => {
                self.remark("left out, since the link leads to a folder around it", &path);
                Ok(())
            }
            Ok(found) => {
                self.remark("links, sent as what they lead to", &path);
                self.add(path, under, &found)
            }
            Err(_) => {
                self.remark("left out, since the link leads nowhere", &path);
                Ok(())
            }
        }
    }

    fn add(&mut self, path: PathBuf, under: String, found: &Metadata) -> anyhow::Result<()> {
        if found.is_dir() {
            return self.enter(&path, &under, found);
        }
        if found.is_file() {
            self.inputs.push(Input::file(under, path));
        } else {
            self.remark("left out, since it is a pipe, a socket or a device", &path);
        }
        Ok(())
    }

    fn flaw(&mut self, path: &Path, reason: &str) {
        self.flaws.push(format!("{} {reason}", shown(path)));
    }

    fn remark(&mut self, notice: &'static str, path: &Path) {
        self.remarks.entry(notice).or_default().push(shown(path));
    }
}

/// The first of some names, and the number of the others.
fn name_some(names: &[String]) -> String {
    let mut text = names
        .iter()
        .take(MAX_NAMED)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    let more = names.len().saturating_sub(MAX_NAMED);
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

/// A path for a message, in one line.
fn shown(path: &Path) -> String {
    path.to_string_lossy().escape_debug().to_string()
}

/// The entries of a folder, by name.
pub(super) fn list_folder(folder: &Path) -> anyhow::Result<Vec<(OsString, PathBuf)>> {
    let cannot = || format!("cannot list {}", folder.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(cannot)? {
        let entry = entry.with_context(cannot)?;
        found.push((entry.file_name(), entry.path()));
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::symlink;

    use super::*;

    fn paths(walk: &FolderWalk) -> Vec<&str> {
        walk.inputs.iter().map(|input| input.path.as_str()).collect()
    }

    #[test]
    fn empty_folders_and_what_links_lead_to_are_inputs() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("empty/er")).unwrap();
        std::fs::create_dir(at("sub")).unwrap();
        std::fs::write(at("sub/a"), "a").unwrap();
        symlink("sub", at("linked")).unwrap();
        symlink("sub/a", at("file")).unwrap();
        let walk = FolderWalk::read(dir.path(), "d").unwrap();
        assert_eq!(paths(&walk), ["d/empty/er", "d/file", "d/linked/a", "d/sub/a"]);
        assert_eq!(walk.inputs[0].source, InputSource::EmptyFolder);
        let [notice] = walk.notices.as_slice() else {
            panic!("{:?}", walk.notices)
        };
        assert!(
            notice.starts_with("links, sent as what they lead to: "),
            "{notice}"
        );
        assert!(
            notice.contains("/file, ") && notice.ends_with("/linked"),
            "{notice}"
        );
        let walk = FolderWalk::read(&at("empty/er"), "d").unwrap();
        assert_eq!(paths(&walk), ["d"]);
    }

    #[test]
    fn entries_without_contents_are_left_out_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("sub")).unwrap();
        symlink("..", at("sub/up")).unwrap();
        symlink("nowhere", at("dangling")).unwrap();
        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        let walk = FolderWalk::read(dir.path(), "d").unwrap();
        assert_eq!(paths(&walk), Vec::<&str>::new());
        let all = walk.notices.join("\n");
        for words in [
            "/sub/up",
            "nowhere: ",
            "/dangling",
            "device: ",
            "/pipe, ",
            "/socket",
        ] {
            assert!(all.contains(words), "{words}: {all}");
        }
    }

    #[test]
    fn names_that_no_job_can_have_refuse_the_folder() {
        for name in [b"a\\b".as_slice(), b"r\xe9sultat"] {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("good"), "").unwrap();
            std::fs::write(dir.path().join(OsStr::from_bytes(name)), "content").unwrap();
            let error = FolderWalk::read(dir.path(), "d").unwrap_err().to_string();
            assert!(error.contains("nothing was sent: "), "{error}");
            assert!(
                error.contains("backslash") || error.contains("not UTF-8"),
                "{error}"
            );
        }
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join(["x"; 100].join("/"));
        std::fs::create_dir_all(deep).unwrap();
        let error = FolderWalk::read(dir.path(), "d").unwrap_err().to_string();
        assert!(error.contains("folders deep"), "{error}");
    }
}

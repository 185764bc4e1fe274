//! The artifacts of a job: small files that travel inside its result, bounded in number and size.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use indexmap::IndexMap;
use nix::libc::{O_NOFOLLOW, O_NONBLOCK};

/// A file inside a result is smaller than this many bytes (ComputeHorde's number).
const MAX_ARTIFACT: u64 = 1_000_000;
/// At most this many entries of the artifacts folder are read, in the order of their names.
pub const MAX_ENTRIES: usize = 1_000;
/// At most this many omitted files are named.
const MAX_NAMED: usize = 20;
/// Bytes of the longest form of a character in JSON: `\u001f`.
pub const LONGEST_IN_JSON: usize = 6;

/// The artifacts that go into a result, and notices about those that do not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Artifacts {
    /// From `{artifacts_dir}/{name}` to contents in base64, in the order of names.
    pub files: IndexMap<String, String>,
    /// One line for each file that was left out, with the reason.
    pub omitted: Vec<String>,
    /// How many more files were left out unread.
    pub unread: usize,
}

/// The entry at a path of the artifacts folder.
enum ArtifactEntry {
    Contents(Vec<u8>),
    Folder,
    NotRegular,
    /// The size in bytes.
    TooLarge(u64),
    OverTotal,
}

// === impl Artifacts ===

impl Artifacts {
    /// Reads the regular files at the top of `folder`, which was the container's `artifacts_dir`. No link is
    /// followed, and only a regular file is opened. Names count towards `max_total` bytes like contents, in the form
    /// they have in JSON.
    ///
    /// # Errors
    /// The folder itself cannot be read.
    pub fn collect(folder: &Path, artifacts_dir: &str, max_total: u64) -> io::Result<Self> {
        let mut found = Self::default();
        // A job may make more names than fit into memory.
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(folder)? {
            names.insert(entry?.file_name());
            if names.len() > MAX_ENTRIES {
                names.pop_last();
                found.unread += 1;
            }
        }
        let mut left = max_total;
        for name in names {
            let key = format!("{artifacts_dir}/{}", name.to_string_lossy());
            let named = json_len(&key);
            // Without room for its name a file has none for its contents either, even if there are none.
            let room = left.checked_sub(named);
            match read_entry(&folder.join(&name), room.unwrap_or_default()) {
                Ok(ArtifactEntry::Contents(_)) if room.is_none() => found.omit_over_total(&key, max_total),
                Ok(ArtifactEntry::Contents(bytes)) if name.to_str().is_some() => {
                    left = left.saturating_sub(named.saturating_add(bytes.len() as u64));
                    found.files.insert(key, STANDARD.encode(bytes));
                }
                Ok(ArtifactEntry::Contents(_)) => found.omit(&key, "its name is not utf-8"),
                Ok(ArtifactEntry::Folder) => {
                    found.omit(&key, "only files at the top of the folder are returned")
                }
                Ok(ArtifactEntry::NotRegular) => found.omit(&key, "it is a link or a special file"),
                Ok(ArtifactEntry::TooLarge(size)) => {
                    found.omit(
                        &key,
                        &format!(
                            "it has {size} bytes, a file inside a result must have fewer than {MAX_ARTIFACT}"
                        ),
                    );
                }
                Ok(ArtifactEntry::OverTotal) => found.omit_over_total(&key, max_total),
                Err(error) => found.omit(&key, &format!("it cannot be read: {error}")),
            }
        }
        Ok(found)
    }

    fn omit_over_total(&mut self, key: &str, max_total: u64) {
        let reason = format!("all files inside a result may have {max_total} bytes together, names included");
        self.omit(key, &reason);
    }

    fn omit(&mut self, key: &str, reason: &str) {
        self.omitted.push(format!(
            "muster: artifact {} was not returned: {reason}",
            key.escape_debug()
        ));
    }

    /// Lines for the job's stderr, so that no file is left out without a notice.
    pub fn notice(&self) -> String {
        let mut lines: Vec<_> = self.omitted.iter().take(MAX_NAMED).cloned().collect();
        let more = self.omitted.len().saturating_sub(MAX_NAMED);
        if more > 0 {
            lines.push(format!("muster: and {more} more artifacts"));
        }
        if self.unread > 0 {
            lines.push(format!(
                "muster: and {} more artifacts: a result holds at most {MAX_ENTRIES}",
                self.unread
            ));
        }
        lines.iter().map(|line| format!("{line}\n")).collect()
    }
}

/// An upper bound of the bytes of a text in JSON, without its quotes.
fn json_len(text: &str) -> u64 {
    let of = |letter: char| match letter {
        '"' | '\\' => 2,
        // Some of them have a short form; the long one is the bound.
        control if u32::from(control) < 0x20 => LONGEST_IN_JSON,
        other => other.len_utf8(),
    };
    text.chars()
        .map(of)
        .fold(0, |sum, len| sum.saturating_add(len as u64))
}

fn read_entry(path: &Path, left: u64) -> io::Result<ArtifactEntry> {
    // The type is read before the file is opened: a fifo or a device may react to being opened.
    let found = fs::symlink_metadata(path)?;
    if found.is_dir() {
        return Ok(ArtifactEntry::Folder);
    }
    if !found.is_file() {
        return Ok(ArtifactEntry::NotRegular);
    }
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(O_NOFOLLOW | O_NONBLOCK)
        .open(path)?;
    // The path may lead to another file by now: the file that was opened counts.
    let opened = file.metadata()?;
    if !opened.is_file() {
        return Ok(ArtifactEntry::NotRegular);
    }
    if opened.len() >= MAX_ARTIFACT {
        return Ok(ArtifactEntry::TooLarge(opened.len()));
    }
    if opened.len() > left {
        return Ok(ArtifactEntry::OverTotal);
    }
    let mut bytes = Vec::new();
    file.take(MAX_ARTIFACT.min(left)).read_to_end(&mut bytes)?;
    Ok(ArtifactEntry::Contents(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_regular_files_come_back_and_the_rest_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("b.txt"), "hello").unwrap();
        fs::write(at("a.bin"), [0, 255]).unwrap();
        fs::write(at("large"), vec![0; 1_000_000]).unwrap();
        fs::write(at("fits"), vec![0; 999_999]).unwrap();
        fs::write(at("z"), "z").unwrap();
        fs::create_dir(at("folder")).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", at("link")).unwrap();
        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        // Three names and their contents reach the total.
        let total = "/artifacts/a.bin/artifacts/b.txt/artifacts/fits".len() as u64 + 1_000_006;
        let found = Artifacts::collect(folder.path(), "/artifacts", total).unwrap();
        let keys: Vec<_> = found.files.keys().map(String::as_str).collect();
        assert_eq!(keys, ["/artifacts/a.bin", "/artifacts/b.txt", "/artifacts/fits"]);
        assert_eq!(found.files["/artifacts/a.bin"], "AP8=");
        let notice = found.notice();
        for words in [
            "/artifacts/z was not returned: all files",
            "/artifacts/large was not returned: it has 1000000 bytes",
            "/artifacts/folder was not returned: only files",
            "/artifacts/link was not returned: it is a link",
            "/artifacts/pipe was not returned: it is a link or a special file",
        ] {
            assert!(notice.contains(words), "{words}: {notice}");
        }
    }

    #[test]
    fn countless_artifacts_with_long_names_are_bounded_and_counted() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..MAX_ENTRIES + 7 {
            let name = format!("{number:06}{}", "\u{1}".repeat(200));
            fs::write(folder.path().join(name), "").unwrap();
        }
        let found = Artifacts::collect(folder.path(), "/a", 8 << 20).unwrap();
        assert_eq!((found.files.len(), found.unread), (MAX_ENTRIES, 7));
        assert!(
            found
                .notice()
                .contains("and 7 more artifacts: a result holds at most 1000")
        );
        // Names alone reach the total: two bytes of folder, six digits, 200 control characters.
        let room = 2 * (3 + 6 + 200 * LONGEST_IN_JSON as u64);
        let found = Artifacts::collect(folder.path(), "/a", room).unwrap();
        assert_eq!(found.files.len(), 2);
        let notice = found.notice();
        assert!(notice.contains("names included") && notice.contains("and 978 more artifacts"));
        assert!(notice.len() < 64 << 10, "{}", notice.len());
    }

    #[test]
    fn the_length_of_a_name_in_json_is_never_underestimated() {
        for letter in (0..=0x10_FFFF)
            .step_by(7)
            .chain(0..0x100)
            .filter_map(char::from_u32)
        {
            let text = letter.to_string();
            let real = serde_json::to_string(&text).unwrap().len() as u64 - 2;
            assert!(json_len(&text) >= real, "{letter:?}");
        }
    }
}

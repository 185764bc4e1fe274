//! What a job printed and what it left in its artifacts folder, bounded on every side.
//!
//! Output is taken from the streams attached before the container starts: nothing is lost to a rotating log file, and
//! the engine keeps no copy. However much a job prints, a fixed amount of memory holds its beginning and its end.

use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bollard::container::LogOutput;
use indexmap::IndexMap;
use nix::libc::{O_NOFOLLOW, O_NONBLOCK};

/// A text of more characters than this is cut in the middle.
const MAX_CHARS: usize = 1_000_000;
/// What remains on either side of the cut.
const HALF_CHARS: usize = 500_000;
const CUT: &str = " ... ";
/// The longest UTF-8 form of [`MAX_CHARS`] characters: whatever is longer has more characters.
const HEAD_BYTES: usize = MAX_CHARS * 4;
/// The longest UTF-8 form of [`HALF_CHARS`] characters, after the rest of one that was cut.
const TAIL_BYTES: usize = HALF_CHARS * 4 + 3;
/// A file inside a result is smaller than this (ComputeHorde's number).
const MAX_ARTIFACT: u64 = 1_000_000;
/// How many omitted files are named.
const MAX_NAMED: usize = 20;

/// One stream, held within fixed memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

/// Both streams of a job, filled while it runs and readable at any moment. Clones are one.
#[derive(Clone, Debug, Default)]
pub struct Capture(Arc<Mutex<(Captured, Captured)>>);

/// Texts as they travel in a final message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Printed {
    /// Cut in the middle if long.
    pub stdout: String,
    /// Likewise.
    pub stderr: String,
}

/// Small files, and words about those that were not taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Artifacts {
    /// `{artifacts_dir}/{name}` to base64, in the order of names.
    pub files: IndexMap<String, String>,
    /// What was left out and why, one line each.
    pub omitted: Vec<String>,
}

// === impl Captured ===

impl Captured {
    /// Adds what was printed next.
    pub fn push(&mut self, bytes: &[u8]) {
        self.total = self.total.saturating_add(bytes.len() as u64);
        let room = HEAD_BYTES.saturating_sub(self.head.len()).min(bytes.len());
        let (first, rest) = bytes.split_at(room);
        self.head.extend_from_slice(first);
        // The end of everything so far: what the head took last belongs to it too if the rest is short.
        let rest = rest
            .get(rest.len().saturating_sub(TAIL_BYTES)..)
            .unwrap_or_default();
        self.tail.extend(rest);
        let surplus = self.tail.len().saturating_sub(TAIL_BYTES);
        self.tail.drain(..surplus);
    }

    /// The whole text, or its first and last 500 000 characters with ` ... ` between. Bytes that are not UTF-8 become
    /// replacement characters.
    pub fn text(&self) -> String {
        if self.tail.is_empty() {
            return shortened(&String::from_utf8_lossy(&self.head));
        }
        // Together they hold every byte, or the head alone has more than the characters that are kept of it.
        let missing = self
            .total
            .saturating_sub((self.head.len() + self.tail.len()) as u64);
        let (front, back) = self.tail.as_slices();
        if missing == 0 {
            return shortened(&String::from_utf8_lossy(&[&self.head, front, back].concat()));
        }
        let tail = [front, back].concat();
        let broken = tail
            .iter()
            .take(3)
            .take_while(|byte| **byte & 0xC0 == 0x80)
            .count();
        let head = String::from_utf8_lossy(&self.head);
        let tail = String::from_utf8_lossy(tail.get(broken..).unwrap_or_default());
        join(&head, &tail)
    }
}

/// Cuts a text in the middle if it has more than a million characters.
pub fn shortened(text: &str) -> String {
    // Fewer bytes than characters are impossible.
    if text.len() <= MAX_CHARS || text.chars().count() <= MAX_CHARS {
        text.to_owned()
    } else {
        join(text, text)
    }
}

fn join(head: &str, tail: &str) -> String {
    let end = head
        .char_indices()
        .nth(HALF_CHARS)
        .map_or(head.len(), |(at, _)| at);
    let start = tail
        .char_indices()
        .rev()
        .nth(HALF_CHARS - 1)
        .map_or(0, |(at, _)| at);
    [
        head.get(..end).unwrap_or_default(),
        CUT,
        tail.get(start..).unwrap_or_default(),
    ]
    .concat()
}

// === impl Capture ===

impl Capture {
    /// Adds a piece of either stream.
    pub fn push(&self, piece: &LogOutput) {
        let mut streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match piece {
            LogOutput::StdErr { message } => streams.1.push(message),
            LogOutput::StdOut { message } | LogOutput::StdIn { message } | LogOutput::Console { message } => {
                streams.0.push(message);
            }
        }
    }

    /// What was printed so far.
    pub fn printed(&self) -> Printed {
        let streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Printed {
            stdout: streams.0.text(),
            stderr: streams.1.text(),
        }
    }
}

// === impl Artifacts ===

impl Artifacts {
    /// Reads the regular files at the top of `folder`, which the container's `artifacts_dir` was. No link is followed,
    /// nothing but a regular file is opened for reading.
    ///
    /// # Errors
    /// The folder itself cannot be read.
    pub fn collect(folder: &Path, artifacts_dir: &str, max_total: u64) -> io::Result<Self> {
        let mut names = Vec::new();
        for entry in fs::read_dir(folder)? {
            names.push(entry?.file_name());
        }
        names.sort();
        let mut found = Self::default();
        let mut left = max_total;
        for name in names {
            let key = format!("{artifacts_dir}/{}", name.to_string_lossy());
            match read_small(&folder.join(&name), left) {
                Ok(Small::Contents(bytes)) if name.to_str().is_some() => {
                    left = left.saturating_sub(bytes.len() as u64);
                    found.files.insert(key, STANDARD.encode(bytes));
                }
                Ok(Small::Contents(_)) => found.omit(&key, "its name is not utf-8"),
                Ok(Small::Folder) => found.omit(&key, "only files at the top of the folder are returned"),
                Ok(Small::NotRegular) => found.omit(&key, "it is a link or a special file"),
                Ok(Small::TooLarge(size)) => {
                    found.omit(
                        &key,
                        &format!(
                            "it has {size} bytes, a file inside a result must have fewer than {MAX_ARTIFACT}"
                        ),
                    );
                }
                Ok(Small::OverTotal) => {
                    found.omit(
                        &key,
                        &format!("all files inside a result may have {max_total} bytes together"),
                    );
                }
                Err(error) => found.omit(&key, &format!("it cannot be read: {error}")),
            }
        }
        Ok(found)
    }

    fn omit(&mut self, key: &str, reason: &str) {
        self.omitted.push(format!(
            "muster: artifact {} was not returned: {reason}",
            key.escape_debug()
        ));
    }

    /// Lines for the job's stderr: a file that does not come back must not vanish without a word.
    pub fn notice(&self) -> String {
        let mut lines: Vec<_> = self.omitted.iter().take(MAX_NAMED).cloned().collect();
        let more = self.omitted.len().saturating_sub(MAX_NAMED);
        if more > 0 {
            lines.push(format!("muster: and {more} more artifacts"));
        }
        lines.iter().map(|line| format!("{line}\n")).collect()
    }
}

enum Small {
    Contents(Vec<u8>),
    Folder,
    NotRegular,
    TooLarge(u64),
    OverTotal,
}

fn read_small(path: &Path, left: u64) -> io::Result<Small> {
    // A first look without opening: a fifo or a device may react to being opened.
    let seen = fs::symlink_metadata(path)?;
    if seen.is_dir() {
        return Ok(Small::Folder);
    }
    if !seen.is_file() {
        return Ok(Small::NotRegular);
    }
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(O_NOFOLLOW | O_NONBLOCK)
        .open(path)?;
    // What counts is the file that was opened.
    let opened = file.metadata()?;
    if !opened.is_file() {
        return Ok(Small::NotRegular);
    }
    if opened.len() >= MAX_ARTIFACT {
        return Ok(Small::TooLarge(opened.len()));
    }
    if opened.len() > left {
        return Ok(Small::OverTotal);
    }
    let mut bytes = Vec::new();
    file.take(MAX_ARTIFACT.min(left)).read_to_end(&mut bytes)?;
    Ok(Small::Contents(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn captured(pieces: &[&[u8]]) -> String {
        let mut captured = Captured::default();
        pieces.iter().for_each(|piece| captured.push(piece));
        captured.text()
    }

    #[test]
    fn a_short_text_stays_whole() {
        assert_eq!(captured(&[]), "");
        assert_eq!(
            captured(&[b"a\xc3", b"\xa4"]),
            "aä",
            "a character may be split between pieces"
        );
        assert_eq!(captured(&[b"\xff!"]), "\u{FFFD}!");
        assert_eq!(shortened(&"ä".repeat(1_000_000)).chars().count(), 1_000_000);
    }

    #[test]
    fn a_long_text_is_cut_in_the_middle_as_computehorde_does() {
        let text = format!("{}{}", "a".repeat(600_000), "b".repeat(400_001));
        let cut = shortened(&text);
        assert_eq!(
            cut,
            format!(
                "{} ... {}{}",
                "a".repeat(500_000),
                "a".repeat(99_999),
                "b".repeat(400_001)
            )
        );
        assert_eq!(captured(&[text.as_bytes()]), cut);
    }

    #[test]
    fn an_endless_text_needs_no_more_memory_and_gives_the_same_cut() {
        for letter in ["x", "ä", "😀"] {
            let text = format!("begin{}end", letter.repeat(8_000_003));
            let mut streamed = Captured::default();
            text.as_bytes()
                .chunks(65_537)
                .for_each(|piece| streamed.push(piece));
            assert!(streamed.head.len() <= HEAD_BYTES && streamed.tail.len() <= TAIL_BYTES);
            assert_eq!(streamed.text(), shortened(&text), "{letter}");
        }
    }

    #[test]
    fn just_over_the_head_nothing_is_lost() {
        let text = "😀".repeat(1_000_000) + "z";
        assert_eq!(captured(&[text.as_bytes()]), shortened(&text));
        assert!(captured(&[text.as_bytes()]).ends_with("😀z"));
    }

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
        let found = Artifacts::collect(folder.path(), "/artifacts", 1_000_006).unwrap();
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
}

//! What a job printed and what it left in its artifacts folder, bounded on every side.
//!
//! Output is taken from the streams attached before the container starts: nothing is lost to a rotating log file, and
//! the engine keeps no copy. However much a job prints, a fixed amount of memory holds its beginning and its end.
//!
//! A result travels in one frame, which has a largest size ([`muster_websocket::Limits::miner`]). What counts there is the JSON
//! form: a control character has six bytes in it, a file a third more than on disk, and names count too. The bounds here
//! and in [`crate::config`] add up to less than a frame whatever a job does.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bollard::container::LogOutput;
use indexmap::IndexMap;
use muster_protocol::wire::executor::LogStream;
use muster_websocket::Limits;
use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use parking_lot::{Mutex, MutexGuard};

use crate::config::MAX_ARTIFACTS_MIB;
use crate::live_updates::Live;

/// The copies of both streams.
pub const STDOUT_FILE: &str = "stdout.txt";
/// See [`STDOUT_FILE`].
pub const STDERR_FILE: &str = "stderr.txt";

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
/// So many entries of the artifacts folder are looked at, in the order of their names.
const MAX_ENTRIES: usize = 1_000;
/// How many omitted files are named.
const MAX_NAMED: usize = 20;
/// The longest form of a character in JSON: `\u001f`.
const LONGEST_IN_JSON: usize = 6;

/// A thousand uploads whose answers have no room any more: their paths, and what is left of each answer.
const LONGEST_KEYS: usize = 1_000 * (1_024 * 2 + 64);

/// The largest result: both texts, files in base64 with their names, what servers answered to uploads, and what holds
/// them together.
const LARGEST_RESULT: usize = {
    let texts = 2 * (MAX_CHARS + CUT.len()) * LONGEST_IN_JSON;
    let files = (MAX_ARTIFACTS_MIB as usize) * 1024 * 1024 / 3 * 4;
    texts + files + MAX_ENTRIES * 16 + muster_job_data::results::MAX_RESULTS + LONGEST_KEYS + 4_096
};
const _: () = assert!(LARGEST_RESULT <= Limits::miner().max_frame);

/// One stream, held within fixed memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

/// Both streams of a job, filled while it runs and readable at any moment. Clones are one.
#[derive(Clone, Debug, Default)]
pub struct Capture(Arc<Mutex<Streams>>);

#[derive(Debug, Default)]
struct Streams {
    stdout: Stream,
    stderr: Stream,
    live: Option<Live>,
}

#[derive(Debug, Default)]
struct Stream {
    captured: Captured,
    kept: Option<Kept>,
}

/// A stream's copy on disk, whole up to a limit.
#[derive(Debug)]
struct Kept {
    file: File,
    room: u64,
}

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
    /// How many more were left out without a look.
    pub unseen: usize,
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
        join(&head, &tail, HALF_CHARS)
    }
}

/// Cuts a text in the middle if it has more than a million characters.
pub fn shortened(text: &str) -> String {
    shortened_to(text, MAX_CHARS)
}

/// Cuts a text in the middle if it has more than `max` characters; half as many remain on either side.
pub fn shortened_to(text: &str, max: usize) -> String {
    // Fewer bytes than characters are impossible.
    if text.len() <= max || text.chars().count() <= max {
        text.to_owned()
    } else {
        join(text, text, max / 2)
    }
}

fn join(head: &str, tail: &str, half: usize) -> String {
    let end = head.char_indices().nth(half).map_or(head.len(), |(at, _)| at);
    let start = tail
        .char_indices()
        .rev()
        .nth(half.saturating_sub(1))
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
    /// One that tells what is printed as it comes, if somebody listens.
    pub(crate) fn new(live: Option<Live>) -> Self {
        Self(Arc::new(Mutex::new(Streams {
            live,
            ..Streams::default()
        })))
    }

    /// Keeps what is printed from now on in `folder` too, as `stdout.txt` and `stderr.txt`, up to `limit` bytes each. A disk
    /// that fails costs this copy and nothing else.
    pub fn keep_in(&self, folder: &Path, limit: u64) {
        if limit == 0 {
            return;
        }
        let make = |name: &str| {
            let made = File::create(folder.join(name));
            if let Err(error) = &made {
                tracing::warn!(%error, name, "what the job prints is not kept on disk");
            }
            made.ok().map(|file| Kept { file, room: limit })
        };
        let mut streams = self.lock();
        streams.stdout.kept = make(STDOUT_FILE);
        streams.stderr.kept = make(STDERR_FILE);
    }

    /// Adds a piece of either stream.
    pub fn push(&self, piece: &LogOutput) {
        let mut streams = self.lock();
        let streams = &mut *streams;
        let (name, stream, bytes) = match piece {
            LogOutput::StdErr { message } => (LogStream::Stderr, &mut streams.stderr, message),
            LogOutput::StdOut { message } | LogOutput::StdIn { message } | LogOutput::Console { message } => {
                (LogStream::Stdout, &mut streams.stdout, message)
            }
        };
        stream.push(bytes);
        if let Some(live) = &streams.live {
            live.print(name, bytes);
        }
    }

    /// What was printed so far.
    pub fn printed(&self) -> Printed {
        let streams = self.lock();
        Printed {
            stdout: streams.stdout.captured.text(),
            stderr: streams.stderr.captured.text(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Streams> {
        self.0.lock()
    }
}

impl Stream {
    fn push(&mut self, bytes: &[u8]) {
        self.captured.push(bytes);
        let Some(kept) = &mut self.kept else { return };
        let length = bytes.len().min(usize::try_from(kept.room).unwrap_or(usize::MAX));
        let written = kept.file.write_all(bytes.get(..length).unwrap_or_default());
        kept.room = kept.room.saturating_sub(length as u64);
        if let Err(error) = &written {
            tracing::warn!(%error, "what the job prints is no longer kept on disk");
        }
        if written.is_err() || kept.room == 0 {
            self.kept = None;
        }
    }
}

// === impl Artifacts ===

impl Artifacts {
    /// Reads the regular files at the top of `folder`, which the container's `artifacts_dir` was. No link is followed,
    /// nothing but a regular file is opened for reading. Names count towards `max_total` like contents, in the form they
    /// have in JSON.
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
                found.unseen += 1;
            }
        }
        let mut left = max_total;
        for name in names {
            let key = format!("{artifacts_dir}/{}", name.to_string_lossy());
            let named = json_len(&key);
            // Without room for its name a file has none for its contents either, even if there are none.
            let room = left.checked_sub(named);
            match read_small(&folder.join(&name), room.unwrap_or_default()) {
                Ok(Small::Contents(_)) if room.is_none() => found.omit_over_total(&key, max_total),
                Ok(Small::Contents(bytes)) if name.to_str().is_some() => {
                    left = left.saturating_sub(named.saturating_add(bytes.len() as u64));
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
                Ok(Small::OverTotal) => found.omit_over_total(&key, max_total),
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

    /// Lines for the job's stderr: a file that does not come back must not vanish without a word.
    pub fn notice(&self) -> String {
        let mut lines: Vec<_> = self.omitted.iter().take(MAX_NAMED).cloned().collect();
        let more = self.omitted.len().saturating_sub(MAX_NAMED);
        if more > 0 {
            lines.push(format!("muster: and {more} more artifacts"));
        }
        if self.unseen > 0 {
            lines.push(format!(
                "muster: and {} more artifacts: a result holds at most {MAX_ENTRIES}",
                self.unseen
            ));
        }
        lines.iter().map(|line| format!("{line}\n")).collect()
    }
}

/// Bytes of a text in JSON, without its quotes.
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
    fn both_streams_are_kept_whole_up_to_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let capture = Capture::default();
        capture.keep_in(folder.path(), 10);
        let out = |text: &'static str| LogOutput::StdOut { message: text.into() };
        for text in ["12345", "678", "9abc", "def"] {
            capture.push(&out(text));
        }
        capture.push(&LogOutput::StdErr { message: "e".into() });
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(
            (read(STDOUT_FILE), read(STDERR_FILE)),
            ("123456789a".into(), "e".into())
        );
        assert_eq!(capture.printed().stdout, "123456789abcdef");
        // A disk that is not there costs the copy only.
        let capture = Capture::default();
        capture.keep_in(Path::new("/nonexistent"), 10);
        capture.push(&out("x"));
        assert_eq!(capture.printed().stdout, "x");
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
        // Four names that are looked at before the total is reached, and their contents.
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
        assert_eq!((found.files.len(), found.unseen), (MAX_ENTRIES, 7));
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

//! The printed output of a job, captured within fixed memory.
//!
//! Output is taken from the streams attached before the container starts, so nothing is lost to a rotating log file. A
//! fixed amount of memory holds the beginning and the end, however much a job prints. A process that takes the place of
//! a dead one goes on where the copy on disk ends, with the engine's copy.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bollard::container::LogOutput;
use muster_job_metrics::ProgramFollower;
use muster_protocol::job::OutputShortfall;
use muster_protocol::wire::executor::LogStream;
use parking_lot::{Mutex, MutexGuard};

use crate::collector::{CollectionEnd, OutputPlace};
use crate::live_updates::{LiveUpdates, MAX_UNSENT};

/// The names of the copies on disk.
pub(crate) const STDOUT_FILE: &str = "stdout.txt";
pub(crate) const STDERR_FILE: &str = "stderr.txt";

/// A text of more characters than this is cut in the middle.
pub(crate) const MAX_CHARS: usize = 1_000_000;
/// The characters that remain on either side of the cut.
const HALF_CHARS: usize = 500_000;
/// The bytes by which the beginning of a stream is recognised.
pub(crate) const BEGINNING: usize = 1024;
/// Stands in the output where some of it was lost.
const GAP: &str = "\n[muster: output is missing here, because the executor's process was replaced]\n";
/// Stands in place of what was cut.
pub(crate) const CUT: &str = " ... ";
/// The longest UTF-8 form of [`MAX_CHARS`] characters: a text of more bytes has more characters.
const HEAD_BYTES: usize = MAX_CHARS * 4;
/// The longest UTF-8 form of [`HALF_CHARS`] characters, after the rest of one that was cut.
const TAIL_BYTES: usize = HALF_CHARS * 4 + 3;

/// The beginning and the end of one stream, within fixed memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct StreamBuffer {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

/// Both streams of a job, filled while it runs and readable at any moment. Clones share the streams.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutputCapture(Arc<Mutex<CapturedStreams>>);

#[derive(Debug, Default)]
struct CapturedStreams {
    stdout: CapturedStream,
    stderr: CapturedStream,
    /// Also gets everything printed, if the miner wants it while the job runs.
    live: Option<LiveUpdates>,
    /// Also gets the standard output, if the program's own report is followed.
    follower: Option<ProgramFollower>,
    /// Lines of the executor's own, which the program did not print.
    notes: Vec<String>,
}

/// The most lines of the executor's own.
const MAX_NOTES: usize = 32;

#[derive(Debug, Default)]
struct CapturedStream {
    buffer: StreamBuffer,
    /// `None` before the job runs, and where none is wanted or its file could not be made.
    copy: Option<DiskCopy>,
    /// The file of the process that collects the stream; `None` where this process copies it itself.
    collected: Option<CollectedCopy>,
}

/// The file of a stream that another process writes.
#[derive(Debug)]
struct CollectedCopy {
    path: PathBuf,
    /// Whether the engine was away meanwhile, so that bytes may be missing although the stream seems to end well.
    is_doubtful: bool,
    /// Once it is written: the reason why it lacks bytes of the stream, if it does.
    end: Option<Option<OutputShortfall>>,
}

/// The copy of a stream on disk at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CopiedStream {
    /// The bytes that the program has printed.
    pub(crate) total: u64,
    /// The bytes from the beginning of the stream that the file holds.
    pub(crate) copied: u64,
    /// The reason why the file takes no more of the stream.
    pub(crate) end: Option<OutputShortfall>,
}

/// The output that another process had captured of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CapturedBefore {
    pub(crate) stdout: StreamBefore,
    pub(crate) stderr: StreamBefore,
}

/// The part of one stream that another process had captured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamBefore {
    /// Its length in bytes.
    pub(crate) length: u64,
    /// Its first bytes.
    pub(crate) beginning: Vec<u8>,
    /// Its last bytes, of which that process may not have sent all; at most [`MAX_UNSENT`].
    pub(crate) ending: Vec<u8>,
}

impl CapturedBefore {
    /// Counts a piece of the engine's copy. Bytes without a whole frame are of neither stream, and are not counted.
    pub(crate) fn add(&mut self, piece: &LogOutput) {
        let (stream, bytes) = match piece {
            LogOutput::StdErr { message } => (&mut self.stderr, message),
            LogOutput::StdOut { message } | LogOutput::StdIn { message } => (&mut self.stdout, message),
            LogOutput::Console { .. } => return,
        };
        let room = BEGINNING.saturating_sub(stream.beginning.len());
        stream.beginning.extend(bytes.iter().take(room));
        stream.length += bytes.len() as u64;
    }

    /// Whether this copy has everything that was captured `before`, from the beginning on.
    pub(crate) fn continues(&self, before: &Self) -> bool {
        let of = |kept: &StreamBefore, before: &StreamBefore| {
            kept.length >= before.length && kept.beginning.starts_with(&before.beginning)
        };
        of(&self.stdout, &before.stdout) && of(&self.stderr, &before.stderr)
    }
}

/// A stream's copy on disk, byte for byte as the program printed it up to its end.
#[derive(Debug)]
pub(crate) struct DiskCopy {
    file: File,
    /// Bytes that were written.
    length: u64,
    /// Bytes that may still be written.
    room: u64,
    /// The reason why it takes no more: nothing is written behind a gap.
    end: Option<OutputShortfall>,
}

/// Both texts as they travel in a final message, each cut in the middle if it is long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrintedOutput {
    /// Everything printed to stdout.
    pub stdout: String,
    /// Everything printed to stderr.
    pub stderr: String,
}

// === impl StreamBuffer ===

impl StreamBuffer {
    /// Appends bytes to the stream.
    fn push(&mut self, bytes: &[u8]) {
        self.total = self.total.saturating_add(bytes.len() as u64);
        let room = HEAD_BYTES.saturating_sub(self.head.len()).min(bytes.len());
        let (first, rest) = bytes.split_at(room);
        self.head.extend_from_slice(first);
        // The head keeps its bytes: where the rest is short, the end of the text begins in the head.
        let rest = rest
            .get(rest.len().saturating_sub(TAIL_BYTES)..)
            .unwrap_or_default();
        self.tail.extend(rest);
        let surplus = self.tail.len().saturating_sub(TAIL_BYTES);
        self.tail.drain(..surplus);
    }

    /// The whole text, or its first and last 500 000 characters with ` ... ` between. Bytes that are not UTF-8 become
    /// replacement characters.
    fn text(&self) -> String {
        if self.tail.is_empty() {
            return shorten(&String::from_utf8_lossy(&self.head));
        }
        // If nothing is missing, head and tail together are the whole text. Otherwise the head alone has more
        // characters than are kept of it.
        let missing = self
            .total
            .saturating_sub((self.head.len() + self.tail.len()) as u64);
        let (front, back) = self.tail.as_slices();
        if missing == 0 {
            return shorten(&String::from_utf8_lossy(&[&self.head, front, back].concat()));
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

/// Whether the text of a result holds these bytes as they are, also behind lines of the executor's own.
pub(crate) fn is_shown_whole(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| text.chars().count() <= HALF_CHARS)
}

/// Cuts a text in the middle if it has more than a million characters.
pub(crate) fn shorten(text: &str) -> String {
    shorten_to(text, MAX_CHARS)
}

/// Cuts a text in the middle if it has more than `max` characters; half as many remain on either side.
pub(crate) fn shorten_to(text: &str, max: usize) -> String {
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

// === impl OutputCapture ===

impl OutputCapture {
    /// A capture that passes everything on to `live` as it is printed.
    pub(crate) fn new(live: Option<LiveUpdates>) -> Self {
        Self(Arc::new(Mutex::new(CapturedStreams {
            live,
            ..CapturedStreams::default()
        })))
    }

    /// Also copies what is printed from now on into `folder`, as `stdout.txt` and `stderr.txt`, up to `limit` bytes
    /// each. A disk that fails costs this copy and nothing else.
    fn copy_to(&self, folder: &Path, limit: u64) {
        if limit == 0 {
            return;
        }
        let make = |name: &str| {
            let made = File::create(folder.join(name));
            if let Err(error) = &made {
                tracing::warn!(%error, name, "the job's printed output is not copied to disk");
            }
            made.ok().map(|file| DiskCopy::new(file, 0, limit))
        };
        let mut streams = self.lock();
        streams.stdout.copy = make(STDOUT_FILE);
        streams.stderr.copy = make(STDERR_FILE);
    }

    /// The program is about to start: its output is copied to its place, by a process that collects it, or by this one.
    pub(crate) fn begin(&self, place: &OutputPlace, is_collected: bool) {
        match is_collected {
            true => self.leave_to_collector(&place.logs),
            false => self.copy_to(&place.logs, place.limit),
        }
    }

    /// Leaves the copies in `folder` to a process that collects the output.
    fn leave_to_collector(&self, folder: &Path) {
        let of = |name: &str| {
            let path = folder.join(name);
            Some(CollectedCopy {
                path,
                is_doubtful: false,
                end: None,
            })
        };
        let mut streams = self.lock();
        streams.stdout.collected = of(STDOUT_FILE);
        streams.stderr.collected = of(STDERR_FILE);
    }

    /// The process that collects the output has ended, and said how the output did; `None` if it was killed.
    pub(crate) fn end_collection(&self, end: Option<CollectionEnd>) {
        let killed = CollectionEnd {
            stdout: Some(OutputShortfall::Collector),
            stderr: Some(OutputShortfall::Collector),
        };
        let CollectionEnd { stdout, stderr } = end.unwrap_or(killed);
        let mut streams = self.lock();
        let streams = &mut *streams;
        for (stream, end) in [(&mut streams.stdout, stdout), (&mut streams.stderr, stderr)] {
            if let Some(collected) = &mut stream.collected {
                let doubt = collected.is_doubtful.then_some(OutputShortfall::Collector);
                collected.end = Some(end.or(doubt));
            }
        }
    }

    /// The engine was away while a process collected the output: it may lack bytes that the process knows nothing of.
    pub(crate) fn doubt_collection(&self) {
        let mut streams = self.lock();
        let streams = &mut *streams;
        for stream in [&mut streams.stdout, &mut streams.stderr] {
            if let Some(collected) = &mut stream.collected {
                collected.is_doubtful = true;
            }
        }
    }

    /// Whether a process collects the output.
    pub(crate) fn is_collected(&self) -> bool {
        self.lock().stdout.collected.is_some()
    }

    /// The program did not start: what was collected are words of the program that holds a warm container.
    pub(crate) fn forget_collection(&self) {
        let mut streams = self.lock();
        streams.stdout.collected = None;
        streams.stderr.collected = None;
    }

    /// Goes on with a capture of another process, from its copies in `folder`, which a process still collects, or has
    /// collected, if `is_collected`. Returns how much there was of each stream, and how each stream began. Blocks.
    pub(crate) fn resume(&self, folder: &Path, limit: u64, is_collected: bool) -> CapturedBefore {
        if is_collected {
            self.leave_to_collector(folder);
        }
        let mut streams = self.lock();
        let stdout = streams.stdout.resume(&folder.join(STDOUT_FILE), limit);
        let stderr = streams.stderr.resume(&folder.join(STDERR_FILE), limit);
        if let Some(live) = &streams.live {
            live.resume((stdout.length, &stdout.ending), (stderr.length, &stderr.ending));
        }
        CapturedBefore { stdout, stderr }
    }

    /// How much there is of each stream, and how each began.
    pub(crate) fn captured(&self) -> CapturedBefore {
        let streams = self.lock();
        let of = |stream: &CapturedStream| StreamBefore {
            length: stream.buffer.total,
            beginning: stream.buffer.head.iter().take(BEGINNING).copied().collect(),
            ending: Vec::new(),
        };
        CapturedBefore {
            stdout: of(&streams.stdout),
            stderr: of(&streams.stderr),
        }
    }

    /// Adds a line to the end of stderr, once the program has ended.
    pub(crate) fn note(&self, line: &str) {
        let mut streams = self.lock();
        if streams.notes.len() < MAX_NOTES {
            streams.notes.push(format!("muster: {line}\n"));
        }
    }

    /// Output comes from the engine's copy from now on. That copy is for people: it drops and adds ends of lines, and
    /// replaces bytes that are no text. The copy on disk takes nothing of it, and ends here: the lengths of such a copy
    /// do not tell whether bytes are missing.
    pub(crate) fn note_reread(&self) {
        self.lock().end_copies();
    }

    /// Live pieces of the engine's copy, which has `kept` now, stand behind a gap, since their place in the stream is
    /// not known: a reader who prints no piece behind a gap prints none of them.
    pub(crate) fn break_live(&self, kept: &CapturedBefore) {
        if let Some(live) = &self.lock().live {
            live.break_off(kept.stdout.length, kept.stderr.length);
        }
    }

    /// The copy of a stream on disk as it is now.
    pub(crate) fn copied(&self, stream: LogStream) -> CopiedStream {
        let streams = self.lock();
        match stream {
            LogStream::Stderr => streams.stderr.copied(),
            LogStream::Stdout | LogStream::Unknown => streams.stdout.copied(),
        }
    }

    /// Marks in the output that some of it is missing here.
    pub(crate) fn note_gap(&self) {
        self.push(&LogOutput::StdErr {
            message: GAP.as_bytes().into(),
        });
    }

    /// Appends a piece of either stream.
    pub(crate) fn push(&self, piece: &LogOutput) {
        let mut streams = self.lock();
        let streams = &mut *streams;
        let (name, stream, bytes) = match piece {
            LogOutput::StdErr { message } => (LogStream::Stderr, &mut streams.stderr, message),
            LogOutput::StdOut { message } | LogOutput::StdIn { message } => {
                (LogStream::Stdout, &mut streams.stdout, message)
            }
            // Bytes without a whole frame: no container of a job has a terminal, so the connection was cut within one.
            LogOutput::Console { .. } => {
                streams.end_copies();
                return;
            }
        };
        stream.push(bytes);
        if let Some(live) = &streams.live {
            live.add_output(name, bytes);
        }
        if let Some(follower) = streams.follower.as_ref().filter(|_| name == LogStream::Stdout) {
            follower.read_stdout(bytes);
        }
    }

    /// Passes the standard output on to a follower from now on.
    pub(crate) fn feed(&self, follower: ProgramFollower) {
        self.lock().follower = Some(follower);
    }

    /// Everything printed so far.
    pub(crate) fn printed(&self) -> PrintedOutput {
        let streams = self.lock();
        let mut stderr = streams.stderr.buffer.text();
        if !streams.notes.is_empty() {
            if !stderr.is_empty() && !stderr.ends_with('\n') {
                stderr.push('\n');
            }
            stderr = shorten(&(stderr + &streams.notes.concat()));
        }
        PrintedOutput {
            stdout: streams.stdout.buffer.text(),
            stderr,
        }
    }

    fn lock(&self) -> MutexGuard<'_, CapturedStreams> {
        self.0.lock()
    }
}

impl CapturedStreams {
    /// Nothing more is written to disk: what comes next may stand behind a gap.
    fn end_copies(&mut self) {
        for stream in [&mut self.stdout, &mut self.stderr] {
            if let Some(copy) = &mut stream.copy {
                copy.end.get_or_insert(OutputShortfall::Collector);
            }
        }
    }
}

impl CapturedStream {
    fn resume(&mut self, copy: &Path, limit: u64) -> StreamBefore {
        let mut before = StreamBefore::default();
        let mut resume = || -> std::io::Result<File> {
            let mut file = OpenOptions::new()
                .read(true)
                .append(true)
                .create(true)
                .open(copy)?;
            let mut chunk = vec![0; 64 * 1024];
            loop {
                let length = file.read(&mut chunk)?;
                let Some(bytes) = chunk.get(..length).filter(|bytes| !bytes.is_empty()) else {
                    return Ok(file);
                };
                if before.beginning.is_empty() {
                    before.beginning = bytes.iter().take(BEGINNING).copied().collect();
                }
                before.length += bytes.len() as u64;
                before.ending.extend(bytes);
                let surplus = before.ending.len().saturating_sub(MAX_UNSENT);
                before.ending.drain(..surplus);
                self.buffer.push(bytes);
            }
        };
        match resume() {
            Ok(file) => {
                let room = limit.saturating_sub(before.length);
                self.copy =
                    (limit > 0 && self.collected.is_none()).then(|| DiskCopy::new(file, before.length, room));
            }
            Err(error) => tracing::warn!(%error, "the output so far cannot be read"),
        }
        before
    }

    fn push(&mut self, bytes: &[u8]) {
        self.buffer.push(bytes);
        if let Some(copy) = &mut self.copy {
            copy.push(bytes);
        }
    }

    fn copied(&self) -> CopiedStream {
        let total = self.buffer.total;
        if let Some(collected) = &self.collected {
            let copied = std::fs::metadata(&collected.path).map_or(0, |file| file.len());
            return match collected.end {
                Some(None) => CopiedStream {
                    total: copied,
                    copied,
                    end: None,
                },
                // A process whose end nobody has read may have lacked anything.
                None | Some(Some(_)) => CopiedStream {
                    total: total.max(copied),
                    copied,
                    end: collected.end.flatten().or(Some(OutputShortfall::Collector)),
                },
            };
        }
        match &self.copy {
            Some(copy) => CopiedStream {
                total,
                copied: copy.length,
                end: copy.end,
            },
            None => CopiedStream {
                total,
                copied: 0,
                end: (total > 0).then_some(OutputShortfall::Bound),
            },
        }
    }
}

impl DiskCopy {
    pub(crate) const fn new(file: File, length: u64, room: u64) -> Self {
        Self {
            file,
            length,
            room,
            end: None,
        }
    }

    /// The reason why it takes no more.
    pub(crate) const fn end(&self) -> Option<OutputShortfall> {
        self.end
    }

    /// Adds what comes next, as far as there is room.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.end.is_some() || bytes.is_empty() {
            return;
        }
        let length = bytes.len().min(usize::try_from(self.room).unwrap_or(usize::MAX));
        if let Err(error) = self.file.write_all(bytes.get(..length).unwrap_or_default()) {
            tracing::warn!(%error, "the job's printed output is no longer copied to disk");
            self.end = Some(OutputShortfall::Disk);
            return;
        }
        self.length = self.length.saturating_add(length as u64);
        self.room = self.room.saturating_sub(length as u64);
        if length < bytes.len() {
            self.end = Some(OutputShortfall::Bound);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn captured(pieces: &[&[u8]]) -> String {
        let mut captured = StreamBuffer::default();
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
        assert_eq!(shorten(&"ä".repeat(1_000_000)).chars().count(), 1_000_000);
    }

    #[test]
    fn a_long_text_is_cut_in_the_middle_as_computehorde_does() {
        let text = format!("{}{}", "a".repeat(600_000), "b".repeat(400_001));
        let cut = shorten(&text);
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
            let mut streamed = StreamBuffer::default();
            text.as_bytes()
                .chunks(65_537)
                .for_each(|piece| streamed.push(piece));
            assert!(streamed.head.len() <= HEAD_BYTES && streamed.tail.len() <= TAIL_BYTES);
            assert_eq!(streamed.text(), shorten(&text), "{letter}");
        }
    }

    #[test]
    fn just_over_the_head_nothing_is_lost() {
        let text = "😀".repeat(1_000_000) + "z";
        assert_eq!(captured(&[text.as_bytes()]), shorten(&text));
        assert!(captured(&[text.as_bytes()]).ends_with("😀z"));
    }

    #[test]
    fn both_streams_are_kept_whole_up_to_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let capture = OutputCapture::default();
        capture.copy_to(folder.path(), 10);
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
        // A folder that does not exist costs the copy only.
        let capture = OutputCapture::default();
        capture.copy_to(Path::new("/nonexistent"), 10);
        capture.push(&out("x"));
        assert_eq!(capture.printed().stdout, "x");
    }

    #[test]
    fn a_frame_that_was_cut_off_is_not_written_and_ends_the_copies() {
        let folder = tempfile::tempdir().unwrap();
        let capture = OutputCapture::default();
        capture.copy_to(folder.path(), 10);
        capture.push(&LogOutput::StdOut { message: "a".into() });
        capture.push(&LogOutput::Console {
            message: "\u{1}".into(),
        });
        capture.push(&LogOutput::StdOut { message: "b".into() });
        assert_eq!(fs::read(folder.path().join(STDOUT_FILE)).unwrap(), b"a");
        assert_eq!(capture.printed().stdout, "ab");
        let end = Some(OutputShortfall::Collector);
        let copied = [LogStream::Stdout, LogStream::Stderr].map(|stream| capture.copied(stream).end);
        assert_eq!(copied, [end, end]);
    }

    #[test]
    fn collected_output_is_whole_only_if_its_end_was_read_and_the_engine_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let capture = OutputCapture::default();
        let end = || capture.copied(LogStream::Stdout).end;
        capture.leave_to_collector(folder.path());
        assert_eq!(end(), Some(OutputShortfall::Collector), "nobody has read its end");
        capture.end_collection(Some(CollectionEnd::default()));
        assert_eq!(end(), None);
        capture.leave_to_collector(folder.path());
        capture.doubt_collection();
        capture.end_collection(Some(CollectionEnd::default()));
        assert_eq!(end(), Some(OutputShortfall::Collector), "the engine was away");
    }
}

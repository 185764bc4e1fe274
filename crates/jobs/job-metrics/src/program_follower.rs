//! Follows what a job's program reports of itself: the lines of its progress file, and the metrics in its output.
//!
//! The file lies in a folder that the program may fill as it likes. Only a plain file is read, never one behind a link,
//! and never so much that a program could hold up its executor.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use muster_process::SharedClock;
use muster_protocol::Timestamp;
use muster_protocol::job::{MetricName, MetricValue, ProgramReport};
use nix::fcntl::OFlag;
use parking_lot::Mutex;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::program_watch::ProgramWatch;

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The time between two reports, but for the first and the last one.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// Bytes of the file that one look reads. A program that writes more is read from there on.
const MAX_READ: u64 = 1 << 20;

/// A program that is followed. Clones follow the same one.
#[derive(Clone)]
pub struct ProgramFollower {
    watch: Arc<Mutex<ProgramWatch>>,
    /// The newest of the checkpoints that were taken, by the number that it is announced with.
    newest_checkpoint: Arc<AtomicU64>,
    clock: SharedClock,
}

impl ProgramFollower {
    /// A follower of a program whose file and output `watch` has not seen.
    pub fn new(watch: ProgramWatch, clock: SharedClock) -> Self {
        Self {
            watch: Arc::new(Mutex::new(watch)),
            newest_checkpoint: Arc::default(),
            clock,
        }
    }

    /// Takes the next bytes of the standard output.
    pub fn read_stdout(&self, bytes: &[u8]) {
        self.watch.lock().read_stdout(bytes, self.clock.now());
    }

    /// How often the program has named this checkpoint.
    pub fn times_named(&self, checkpoint: &str) -> u32 {
        self.watch.lock().times_named(checkpoint)
    }

    /// See [`ProgramWatch::place_of`].
    pub fn place_of(
        &self,
        checkpoint: &str,
        metric: Option<&MetricName>,
    ) -> (Option<u64>, Option<u64>, Option<MetricValue>) {
        self.watch.lock().place_of(checkpoint, metric)
    }

    /// Notes that a checkpoint was taken, whose number is the first one or larger than those before: a program that
    /// saves makes progress.
    pub fn note_checkpoint(&self, number: u64) {
        self.newest_checkpoint.fetch_max(number, Ordering::Relaxed);
    }

    /// Waits until the program has made no progress for so long. Progress is what [`ProgramWatch::moves`] counts, and a
    /// new checkpoint. Time in which this process stands still does not count, nor does a jump of the clock.
    pub async fn wait_for_stall(self, limit: Duration) {
        let progress = || {
            let moves = self.watch.lock().moves();
            (moves, self.newest_checkpoint.load(Ordering::Relaxed))
        };
        let (mut seen, mut quiet) = (progress(), Duration::ZERO);
        while quiet < limit {
            self.clock.sleep(LOOK_EVERY).await;
            let now = progress();
            quiet = if now == seen {
                quiet.saturating_add(LOOK_EVERY)
            } else {
                Duration::ZERO
            };
            seen = now;
        }
    }

    /// Reads the file as it grows and passes each report on with its time, until the program is `over`. The last look
    /// comes after that.
    pub async fn follow(
        self,
        file: PathBuf,
        over: CancellationToken,
        mut report_to: impl FnMut(Timestamp, ProgramReport) + Send,
    ) {
        let (mut read, mut reported_at): (u64, Option<Timestamp>) = (0, None);
        loop {
            let is_over = tokio::select! {
                () = over.cancelled() => true,
                () = self.clock.sleep(LOOK_EVERY) => false,
            };
            let path = file.clone();
            let piece = spawn_blocking(move || read_from(&path, read)).await;
            let now = self.clock.now();
            let mut watch = self.watch.lock();
            match piece {
                Ok(Ok(Some((bytes, end)))) => {
                    watch.read_file(&bytes, now);
                    read = end;
                }
                Ok(Ok(None)) => {}
                // The program's own doing, and no fault that it must know of.
                Ok(Err(error)) => tracing::debug!(%error, "the job's progress file is not read"),
                Err(error) => tracing::warn!(%error, "reading the job's progress file was interrupted"),
            }
            let is_due = reported_at.is_none_or(|at| now.since(at) >= REPORT_EVERY);
            if (is_due || is_over)
                && let Some(report) = watch.take_report(now)
            {
                report_to(now, report);
                reported_at = Some(now);
            }
            if is_over {
                if watch.ignored_lines() > 0 {
                    tracing::info!(
                        lines = watch.ignored_lines(),
                        "lines of the job's progress file were not read"
                    );
                }
                return;
            }
        }
    }
}

impl fmt::Debug for ProgramFollower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProgramFollower")
    }
}

/// The bytes of a file after the first `read`, and where they end; `None` if there are no more. A file that became
/// shorter is read from its beginning; of one that grew by more than a look reads, the newest bytes are taken. Blocks.
fn read_from(path: &Path, read: u64) -> std::io::Result<Option<(Vec<u8>, u64)>> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path);
    let mut file = match opened {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let facts = file.metadata()?;
    if !facts.is_file() {
        return Err(std::io::Error::other("it is no plain file"));
    }
    let length = facts.len();
    let begin = if length < read { 0 } else { read };
    let begin = begin.max(length.saturating_sub(MAX_READ));
    if begin == length {
        return Ok(None);
    }
    file.seek(SeekFrom::Start(begin))?;
    let mut bytes = Vec::new();
    file.take(MAX_READ).read_to_end(&mut bytes)?;
    let end = begin.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
    Ok(Some((bytes, end)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use muster_process::Tasks;
    use muster_process::clock::TokioClock;

    use super::*;
    use crate::metric_rules::MetricRules;

    #[test]
    fn a_file_is_read_as_it_grows_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("progress.jsonl");
        assert_eq!(read_from(&path, 0).unwrap(), None);
        fs::write(&path, "one\n").unwrap();
        assert_eq!(read_from(&path, 0).unwrap(), Some((b"one\n".to_vec(), 4)));
        assert_eq!(read_from(&path, 4).unwrap(), None);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"two\n").unwrap();
        assert_eq!(read_from(&path, 4).unwrap(), Some((b"two\n".to_vec(), 8)));
        fs::write(&path, "new\n").unwrap();
        assert_eq!(
            read_from(&path, 8).unwrap(),
            Some((b"new\n".to_vec(), 4)),
            "it became shorter"
        );
        let sparse = fs::File::create(&path).unwrap();
        sparse.set_len(1 << 40).unwrap();
        let (bytes, end) = read_from(&path, 4).unwrap().unwrap();
        assert_eq!(
            (bytes.len(), end),
            (1 << 20, 1 << 40),
            "a terabyte of holes costs one look"
        );

        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
        read_from(&link, 0).unwrap_err();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        read_from(&pipe, 0).unwrap_err();
        read_from(folder.path(), 0).unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_stalls_once_nothing_new_was_said_or_saved_for_so_long() {
        let clock: SharedClock = Arc::new(TokioClock::new(Timestamp::from_secs(1_000)));
        let watch = ProgramWatch::new(MetricRules::default(), clock.now());
        let follower = ProgramFollower::new(watch, Arc::clone(&clock));
        let stalling = follower.clone().wait_for_stall(Duration::from_secs(20));
        let stalled = CancellationToken::new();
        let stall = stalled.clone();
        let tasks = Tasks::new();
        tasks.spawn("stall", async move {
            stalling.await;
            stall.cancel();
        });
        let say = |line: &str| follower.watch.lock().read_file(line.as_bytes(), clock.now());
        for line in [
            "{\"step\":1}\n",
            "{\"step\":2}\n",
            "{\"metrics\":{\"loss\":0.5}}\n",
        ] {
            clock.sleep(Duration::from_secs(15)).await;
            say(line);
        }
        clock.sleep(Duration::from_secs(15)).await;
        follower.note_checkpoint(1);
        clock.sleep(Duration::from_secs(15)).await;
        assert!(!stalled.is_cancelled());
        // The same again is no progress.
        say("{\"step\":2,\"metrics\":{\"loss\":0.5}}\n");
        follower.note_checkpoint(1);
        let before = clock.now();
        stalled.cancelled().await;
        assert!(clock.now().since(before) <= Duration::from_secs(7));
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_report_comes_at_once_the_others_in_time_and_the_last_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("progress.jsonl");
        let clock: SharedClock = Arc::new(TokioClock::new(Timestamp::from_secs(1_000)));
        let watch = ProgramWatch::new(MetricRules::default(), clock.now());
        let follower = ProgramFollower::new(watch, Arc::clone(&clock));
        let over = CancellationToken::new();
        let (sender, mut reports) = tokio::sync::mpsc::unbounded_channel();
        let following = Tasks::new().spawn(
            "follower",
            follower.follow(path.clone(), over.clone(), move |_, report| {
                sender.send((report.step, report.elapsed_s)).unwrap();
            }),
        );
        let mut report = move || reports.try_recv().ok();
        let write = |step: u32| {
            let mut file = OpenOptions::new().create(true).append(true).open(&path).unwrap();
            writeln!(file, "{{\"step\":{step}}}").unwrap();
        };
        let until = async |second: i64| {
            while clock.now() < Timestamp::from_secs(second) {
                clock.sleep(Duration::from_millis(100)).await;
            }
        };
        write(1);
        until(1_002).await;
        let (step, at) = report().unwrap();
        assert!(step == Some(1) && at <= 2, "{at}");
        write(2);
        until(1_008).await;
        assert_eq!(report(), None, "not before its time");
        until(1_013).await;
        assert_eq!(report().unwrap().0, Some(2));
        write(3);
        over.cancel();
        following.join().await.unwrap();
        assert_eq!(report().unwrap().0, Some(3));
    }
}

//! Sends a Muster miner what a job prints and how far it has come, while it runs.
//!
//! The job never waits for this: unsent output is kept in bounded memory, and the oldest bytes are dropped if the
//! miner does not keep up. The offset of the next message shows the gap. The result holds the whole output.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use muster_containers::image_pull::{PullProgress, PullState};
use muster_process::SharedClock;
use muster_protocol::job::ProgramReport;
use muster_protocol::wire::executor::{
    JobLog, JobMetrics, JobProgress, LayerCount, LogBytes, LogStream, MAX_LOG_BYTES, ProgressOf,
};
use muster_protocol::wire::executor_socket::ExecutorToMiner;
use muster_protocol::{AttemptId, Timestamp};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::miner_link::MinerOutlet;

/// Bytes of each stream that are kept until they are sent.
pub(crate) const MAX_UNSENT: usize = 4 * MAX_LOG_BYTES;
/// The pause between two messages: a reader follows no more than ten a second.
const PAUSE: Duration = Duration::from_millis(100);

/// The updates of one attempt that were not sent yet. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct LiveUpdates(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    unsent: Mutex<UnsentUpdates>,
    added: Notify,
}

#[derive(Debug, Default)]
struct UnsentUpdates {
    stdout: UnsentOutput,
    stderr: UnsentOutput,
    progress: IndexMap<ProgressOf, Progress>,
    /// The newest report of the program. A newer one replaces one that was not sent.
    report: Option<(Timestamp, ProgramReport)>,
    /// Which of stdout, stderr, progress and report was sent last. They take turns, so that none starves another.
    turn: u8,
}

/// The part of a stream that was not sent yet.
#[derive(Debug, Default)]
struct UnsentOutput {
    /// Where in the stream it begins, in bytes.
    offset: u64,
    bytes: VecDeque<u8>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    done: u64,
    total: Option<u64>,
    layers: Option<LayerCount>,
    sent: bool,
}

impl LiveUpdates {
    /// Adds what the job printed.
    pub(crate) fn add_output(&self, stream: LogStream, bytes: &[u8]) {
        let mut unsent = self.unsent();
        match stream {
            LogStream::Stdout => unsent.stdout.push(bytes),
            LogStream::Stderr | LogStream::Unknown => unsent.stderr.push(bytes),
        }
        drop(unsent);
        self.0.added.notify_one();
    }

    /// Goes on with the output of another process, given as the length of each stream and its last bytes. Nobody knows
    /// how much of them was sent, so they are sent again: readers know a piece by its offset.
    pub(crate) fn resume(&self, stdout: (u64, &[u8]), stderr: (u64, &[u8])) {
        let mut unsent = self.unsent();
        unsent.stdout.resume(stdout);
        unsent.stderr.resume(stderr);
        drop(unsent);
        self.0.added.notify_one();
    }

    /// Both streams go on with the engine's copy, whose bytes may be others: the next pieces stand behind a gap, beyond
    /// everything that was sent. The arguments are the lengths of the engine's copy so far, in bytes. Pieces that were
    /// not sent are dropped.
    pub(crate) fn break_off(&self, stdout: u64, stderr: u64) {
        let mut unsent = self.unsent();
        unsent.stdout.break_off(stdout);
        unsent.stderr.break_off(stderr);
    }

    /// Replaces the progress of one kind of work.
    pub(crate) fn set_progress(&self, of: ProgressOf, done: u64, total: Option<u64>) {
        let progress = Progress {
            done,
            total,
            ..Progress::default()
        };
        self.replace_progress(of, progress);
    }

    /// Replaces the report of the program.
    pub(crate) fn set_report(&self, at: Timestamp, report: ProgramReport) {
        self.unsent().report = Some((at, report));
        self.0.added.notify_one();
    }

    /// The report that was not sent, as a message about this attempt.
    pub(crate) fn take_report(&self, attempt: AttemptId) -> Option<ExecutorToMiner> {
        self.unsent().take_report(attempt)
    }

    /// Sends the progress of one kind of work again, though nothing has moved.
    pub(crate) fn repeat_progress(&self, of: ProgressOf) {
        self.unsent().progress.entry(of).or_default().sent = false;
        self.0.added.notify_one();
    }

    fn replace_progress(&self, of: ProgressOf, progress: Progress) {
        self.unsent().progress.insert(of, progress);
        self.0.added.notify_one();
    }

    /// A callback that sets the progress of an image.
    pub(crate) fn image_progress_sink(&self) -> PullProgress {
        let live = self.clone();
        Arc::new(move |state: PullState| {
            let progress = Progress {
                done: state.done,
                total: state.total,
                layers: Some(state.layers),
                sent: false,
            };
            live.replace_progress(ProgressOf::ImagePull, progress);
        })
    }

    /// A callback that sets the progress of one kind of work.
    pub(crate) fn progress_sink(&self, of: ProgressOf) -> Arc<dyn Fn(u64, Option<u64>) + Send + Sync> {
        let live = self.clone();
        Arc::new(move |done, total| live.set_progress(of, done, total))
    }

    /// Sends updates as they come, until the attempt ends. While there is no connection, updates wait.
    pub(crate) async fn send_all(self, attempt: AttemptId, mut miner: MinerOutlet, clock: SharedClock) {
        loop {
            self.0.added.notified().await;
            while let Some(message) = self.take_message(attempt) {
                if miner.send(&message).await.is_err() {
                    return;
                }
                clock.sleep(PAUSE).await;
            }
        }
    }

    fn take_message(&self, attempt: AttemptId) -> Option<ExecutorToMiner> {
        let mut unsent = self.unsent();
        for _ in 0..4 {
            unsent.turn = (unsent.turn + 1) % 4;
            let found = match unsent.turn {
                0 => unsent.stdout.take(attempt, LogStream::Stdout),
                1 => unsent.stderr.take(attempt, LogStream::Stderr),
                2 => unsent.take_progress(attempt),
                _ => unsent.take_report(attempt),
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }

    fn unsent(&self) -> MutexGuard<'_, UnsentUpdates> {
        self.0.unsent.lock()
    }
}

impl UnsentUpdates {
    fn take_progress(&mut self, attempt: AttemptId) -> Option<ExecutorToMiner> {
        let (of, progress) = self.progress.iter_mut().find(|(_, progress)| !progress.sent)?;
        progress.sent = true;
        Some(ExecutorToMiner::MusterJobProgress(JobProgress {
            job_uuid: attempt,
            of: *of,
            done: progress.done,
            total: progress.total,
            layers: progress.layers,
        }))
    }

    fn take_report(&mut self, attempt: AttemptId) -> Option<ExecutorToMiner> {
        let (at, report) = self.report.take()?;
        Some(ExecutorToMiner::MusterJobMetrics(Box::new(JobMetrics {
            job_uuid: attempt,
            at,
            report,
        })))
    }
}

impl UnsentOutput {
    fn resume(&mut self, (length, ending): (u64, &[u8])) {
        self.offset = length.saturating_sub(ending.len() as u64);
        self.push(ending);
    }

    /// Another process may have sent more than this one knows of, but hardly more than the engine's copy has: that one
    /// lacks a byte of 16 KiB at the most.
    fn break_off(&mut self, copied: u64) {
        let end = self.offset.saturating_add(self.bytes.len() as u64);
        self.offset = end.max(copied).saturating_add(MAX_UNSENT as u64);
        self.bytes.clear();
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        let surplus = self.bytes.len().saturating_sub(MAX_UNSENT);
        self.bytes.drain(..surplus);
        self.offset += surplus as u64;
    }

    fn take(&mut self, attempt: AttemptId, stream: LogStream) -> Option<ExecutorToMiner> {
        let length = self.bytes.len().min(MAX_LOG_BYTES);
        let data = LogBytes::new(self.bytes.drain(..length).collect()).filter(|_| length > 0)?;
        let offset = self.offset;
        self.offset += length as u64;
        Some(ExecutorToMiner::MusterJobLog(Box::new(JobLog {
            job_uuid: attempt,
            stream,
            offset,
            data,
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt() -> AttemptId {
        "11111111-2222-4333-8444-555555555555".parse().unwrap()
    }

    fn log(message: ExecutorToMiner) -> JobLog {
        let ExecutorToMiner::MusterJobLog(log) = message else {
            panic!("{message:?}")
        };
        *log
    }

    #[test]
    fn a_gap_shows_by_its_offset_and_memory_is_bounded() {
        let live = LiveUpdates::default();
        live.add_output(LogStream::Stdout, b"begin");
        for _ in 0..100 {
            live.add_output(LogStream::Stdout, &[b'x'; MAX_LOG_BYTES]);
        }
        let first = log(live.take_message(attempt()).unwrap());
        assert_eq!(first.offset, 5 + 96 * MAX_LOG_BYTES as u64);
        let mut next = first.offset + first.data.as_bytes().len() as u64;
        for _ in 0..3 {
            let piece = log(live.take_message(attempt()).unwrap());
            assert_eq!((piece.offset, piece.stream), (next, LogStream::Stdout));
            next += piece.data.as_bytes().len() as u64;
        }
        assert_eq!(next, 5 + 100 * MAX_LOG_BYTES as u64);
        assert_eq!(live.take_message(attempt()), None);
    }

    #[test]
    fn output_that_another_process_may_not_have_sent_is_sent_again_by_its_offset() {
        let live = LiveUpdates::default();
        live.resume((1_000, b"tick 9\n"), (0, b""));
        live.add_output(LogStream::Stdout, b"tick 10\n");
        let piece = log(live.take_message(attempt()).unwrap());
        assert_eq!(
            (piece.offset, piece.data.as_bytes()),
            (993, &b"tick 9\ntick 10\n"[..])
        );
    }

    #[test]
    fn output_of_the_engines_copy_stands_behind_a_gap_beyond_everything_that_was_sent() {
        let live = LiveUpdates::default();
        live.resume((1_000, b"tick 9\n"), (0, b""));
        live.break_off(5_000, 0);
        live.add_output(LogStream::Stdout, b"tick 40\n");
        live.add_output(LogStream::Stderr, b"e");
        let pieces = [(); 2].map(|()| log(live.take_message(attempt()).unwrap()));
        let gap = MAX_UNSENT as u64;
        for (stream, offset, bytes) in [
            (LogStream::Stdout, 5_000 + gap, &b"tick 40\n"[..]),
            (LogStream::Stderr, gap, b"e"),
        ] {
            let piece = pieces.iter().find(|piece| piece.stream == stream).unwrap();
            assert_eq!((piece.offset, piece.data.as_bytes()), (offset, bytes));
        }
        assert_eq!(live.take_message(attempt()), None);
    }

    #[test]
    fn only_the_newest_report_is_sent_and_each_once() {
        let live = LiveUpdates::default();
        for second in 1..=3 {
            let report = ProgramReport {
                elapsed_s: second,
                ..ProgramReport::default()
            };
            live.set_report(Timestamp::from_secs(9), report);
        }
        let Some(ExecutorToMiner::MusterJobMetrics(sent)) = live.take_message(attempt()) else {
            panic!("no report")
        };
        assert_eq!((sent.report.elapsed_s, sent.at), (3, Timestamp::from_secs(9)));
        assert_eq!(live.take_message(attempt()), None);
    }

    #[test]
    fn streams_and_progress_take_turns_and_only_the_last_progress_counts() {
        let live = LiveUpdates::default();
        live.add_output(LogStream::Stdout, &[0; 3 * MAX_LOG_BYTES]);
        live.add_output(LogStream::Stderr, b"e");
        for done in 0..1_000 {
            live.set_progress(ProgressOf::Download, done, Some(1_000));
        }
        let sent: Vec<_> = std::iter::from_fn(|| live.take_message(attempt())).collect();
        assert_eq!(sent.len(), 5);
        let progress = |message: &ExecutorToMiner| {
            if let ExecutorToMiner::MusterJobProgress(progress) = message {
                Some(progress.done)
            } else {
                None
            }
        };
        assert_eq!(sent.iter().take(3).find_map(progress), Some(999));
    }
}

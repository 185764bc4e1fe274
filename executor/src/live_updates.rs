//! What a job prints and how far it is, told to a Muster miner while it happens.
//!
//! Nothing waits for this: pieces wait in bounded memory, and where the miner does not keep up the oldest are dropped. The
//! offset of the next one shows the gap. The whole is in the result.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use muster_process::SharedClock;
use muster_protocol::AttemptId;
use muster_protocol::wire::executor::{JobLog, JobProgress, LogBytes, LogStream, MAX_LOG_BYTES, ProgressOf};
use muster_protocol::wire::miner::FromMiner;
use muster_websocket::session::Sender;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::lease_connection::Miner;

/// Bytes of each stream that may wait.
const MAX_WAITING: usize = 4 * MAX_LOG_BYTES;
/// Between two messages: ten a second are enough for any eye.
const PAUSE: Duration = Duration::from_millis(100);

/// What waits to be told. Clones are one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Live(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    woken: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    stdout: Piece,
    stderr: Piece,
    progress: IndexMap<ProgressOf, Progress>,
    /// Whose turn it is: both streams and the progress in a circle, so that none starves another.
    turn: u8,
}

/// The part of a stream that has not been told.
#[derive(Debug, Default)]
struct Piece {
    /// Where in the stream it begins.
    offset: u64,
    bytes: VecDeque<u8>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    done: u64,
    total: Option<u64>,
    told: bool,
}

impl Live {
    /// The job has printed something.
    pub(crate) fn print(&self, stream: LogStream, bytes: &[u8]) {
        let mut waiting = self.waiting();
        match stream {
            LogStream::Stdout => waiting.stdout.push(bytes),
            LogStream::Stderr | LogStream::Unknown => waiting.stderr.push(bytes),
        }
        drop(waiting);
        self.0.woken.notify_one();
    }

    /// Something has come further.
    pub(crate) fn progress(&self, of: ProgressOf, done: u64, total: Option<u64>) {
        let told = false;
        self.waiting().progress.insert(of, Progress { done, total, told });
        self.0.woken.notify_one();
    }

    /// For those who do the work.
    pub(crate) fn sink(&self, of: ProgressOf) -> Arc<dyn Fn(u64, Option<u64>) + Send + Sync> {
        let live = self.clone();
        Arc::new(move |done, total| live.progress(of, done, total))
    }

    /// Tells a miner until it cannot be told any more.
    pub(crate) async fn tell(self, attempt: AttemptId, miner: Sender<Miner>, clock: SharedClock) {
        loop {
            self.0.woken.notified().await;
            while let Some(message) = self.next(attempt) {
                if miner.send(&message).await.is_err() {
                    return;
                }
                clock.sleep(PAUSE).await;
            }
        }
    }

    fn next(&self, attempt: AttemptId) -> Option<FromMiner> {
        let mut waiting = self.waiting();
        for _ in 0..3 {
            waiting.turn = (waiting.turn + 1) % 3;
            let found = match waiting.turn {
                0 => waiting.stdout.take(attempt, LogStream::Stdout),
                1 => waiting.stderr.take(attempt, LogStream::Stderr),
                _ => waiting.progress(attempt),
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.waiting.lock()
    }
}

impl Waiting {
    fn progress(&mut self, attempt: AttemptId) -> Option<FromMiner> {
        let (of, progress) = self.progress.iter_mut().find(|(_, progress)| !progress.told)?;
        progress.told = true;
        Some(FromMiner::MusterJobProgress(JobProgress {
            job_uuid: attempt,
            of: *of,
            done: progress.done,
            total: progress.total,
        }))
    }
}

impl Piece {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        let surplus = self.bytes.len().saturating_sub(MAX_WAITING);
        self.bytes.drain(..surplus);
        self.offset += surplus as u64;
    }

    fn take(&mut self, attempt: AttemptId, stream: LogStream) -> Option<FromMiner> {
        let length = self.bytes.len().min(MAX_LOG_BYTES);
        let data = LogBytes::new(self.bytes.drain(..length).collect()).filter(|_| length > 0)?;
        let offset = self.offset;
        self.offset += length as u64;
        Some(FromMiner::MusterJobLog(Box::new(JobLog {
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

    fn log(message: FromMiner) -> JobLog {
        let FromMiner::MusterJobLog(log) = message else {
            panic!("{message:?}")
        };
        *log
    }

    #[test]
    fn a_gap_shows_by_its_offset_and_memory_is_bounded() {
        let live = Live::default();
        live.print(LogStream::Stdout, b"begin");
        for _ in 0..100 {
            live.print(LogStream::Stdout, &[b'x'; MAX_LOG_BYTES]);
        }
        let first = log(live.next(attempt()).unwrap());
        assert_eq!(first.offset, 5 + 96 * MAX_LOG_BYTES as u64);
        let mut next = first.offset + first.data.as_bytes().len() as u64;
        for _ in 0..3 {
            let piece = log(live.next(attempt()).unwrap());
            assert_eq!((piece.offset, piece.stream), (next, LogStream::Stdout));
            next += piece.data.as_bytes().len() as u64;
        }
        assert_eq!(next, 5 + 100 * MAX_LOG_BYTES as u64);
        assert_eq!(live.next(attempt()), None);
    }

    #[test]
    fn streams_and_progress_take_turns_and_only_the_last_progress_counts() {
        let live = Live::default();
        live.print(LogStream::Stdout, &[0; 3 * MAX_LOG_BYTES]);
        live.print(LogStream::Stderr, b"e");
        for done in 0..1_000 {
            live.progress(ProgressOf::Download, done, Some(1_000));
        }
        let told: Vec<_> = std::iter::from_fn(|| live.next(attempt())).collect();
        assert_eq!(told.len(), 5);
        let progress = |message: &FromMiner| {
            if let FromMiner::MusterJobProgress(progress) = message {
                Some(progress.done)
            } else {
                None
            }
        };
        assert_eq!(told.iter().take(3).find_map(progress), Some(999));
    }
}

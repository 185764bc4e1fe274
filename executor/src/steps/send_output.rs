//! The step that sends both printed streams, whole, to the file store of the job's facilitator.
//!
//! A full block goes as soon as it is there, while the program runs. The rest goes after the program's end, but for a
//! stream that the text of the result holds whole: that one is not sent at all.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use bytes::Bytes;
use muster_checkpoint_transfer::{BlockClient, BlockError};
use muster_protocol::job::{OutputShortfall, PrintedStream, PrintedStreams, StoredStream};
use muster_protocol::wire::executor::LogStream;
use muster_protocol::{Digest, Timestamp};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::checkpoint_blocks::open_blocks;
use super::job::PlacedJob;
use crate::context::AttemptContext;
use crate::job_sandbox::output_order;
use crate::output_capture::{OutputCapture, STDERR_FILE, STDOUT_FILE, is_shown_whole};

/// The pause between two looks for a full block.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_millis(500);

/// The phase of a program, as far as its output depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutputPhase {
    /// It may print more.
    Printing,
    /// It has ended.
    Over,
    /// It has ended, and its result waits for nothing but its output until this time.
    Awaited(Timestamp),
}

/// Speaks to the step that sends the output of a job.
#[derive(Debug)]
pub(crate) struct OutputHandle(watch::Sender<OutputPhase>);

impl OutputHandle {
    /// The program prints no more.
    pub(crate) fn end_program(&self) {
        self.0.send_replace(OutputPhase::Over);
    }

    /// The result waits for the output until `deadline`, and names the bytes that the store does not have then.
    pub(crate) fn await_until(&self, deadline: Timestamp) {
        self.0.send_replace(OutputPhase::Awaited(deadline));
    }
}

/// Sends what a job prints, for as long as it prints. Nothing of it fails the job. `None` for a job without an order.
pub(crate) fn send_output(
    job: &PlacedJob,
    context: &AttemptContext,
    capture: OutputCapture,
) -> Option<(OutputHandle, impl Future<Output = PrintedStreams> + Send + use<>)> {
    let order = output_order(&job.request.job)?;
    let (sender, phase) = watch::channel(OutputPhase::Printing);
    let logs = job.workspace.folders().logs.clone();
    let of = |stream, name| StreamSender {
        stream,
        path: logs.join(name),
        capture: capture.clone(),
        context: context.clone(),
        url: order.blocks.clone(),
        store: None,
        hasher: Sha256::new(),
        blocks: Vec::new(),
        stored: 0,
        failed: None,
        phase: phase.clone(),
    };
    let stdout = of(LogStream::Stdout, STDOUT_FILE);
    let stderr = of(LogStream::Stderr, STDERR_FILE);
    let sending = async move {
        let (stdout, stderr) = tokio::join!(stdout.run(), stderr.run());
        PrintedStreams { stdout, stderr }
    };
    Some((OutputHandle(sender), sending))
}

/// Sends one stream.
struct StreamSender {
    stream: LogStream,
    /// The stream's copy on disk.
    path: PathBuf,
    capture: OutputCapture,
    context: AttemptContext,
    /// The signed URL below which the blocks lie.
    url: String,
    /// `None` until the first block is sent.
    store: Option<BlockClient>,
    /// The SHA-256 of the stream up to the end of `blocks`.
    hasher: Sha256,
    /// The digest of each block, from the beginning.
    blocks: Vec<Digest>,
    /// The number of blocks from the beginning that the store has.
    stored: usize,
    /// The reason why nothing is sent any more.
    failed: Option<OutputShortfall>,
    phase: watch::Receiver<OutputPhase>,
}

impl StreamSender {
    async fn run(mut self) -> PrintedStream {
        loop {
            let is_over = *self.phase.borrow_and_update() != OutputPhase::Printing;
            let copied = self.capture.copied(self.stream).copied;
            if copied.saturating_sub(self.hashed()) >= StoredStream::BLOCK_BYTES {
                let phase = *self.phase.borrow();
                if is_too_late(phase, self.context.clock().now()) {
                    return self.cut_short();
                }
                if let Err(reason) = self.take_block(StoredStream::BLOCK_BYTES).await {
                    return self.unreadable(reason);
                }
            } else if is_over {
                return self.finish().await;
            } else {
                let clock = self.context.clock().clone();
                tokio::select! {
                    // The handle goes with the attempt.
                    changed = self.phase.changed() => if changed.is_err() {
                        return self.unreadable(OutputShortfall::Store);
                    },
                    () = clock.sleep(LOOK_EVERY) => {}
                }
            }
        }
    }

    /// The bytes from the beginning that were hashed.
    fn hashed(&self) -> u64 {
        let blocks = u64::try_from(self.blocks.len()).unwrap_or(u64::MAX);
        blocks.saturating_mul(StoredStream::BLOCK_BYTES)
    }

    /// Reads, hashes and sends the next block.
    async fn take_block(&mut self, length: u64) -> Result<(), OutputShortfall> {
        let (content, digest) = self.read_next(length).await?;
        self.blocks.push(digest);
        if self.failed.is_none() {
            match self.put(digest, content).await {
                Ok(()) => self.stored = self.blocks.len(),
                Err(reason) => self.failed = Some(reason),
            }
        }
        Ok(())
    }

    /// Reads and hashes what follows the last block.
    async fn read_next(&mut self, length: u64) -> Result<(Bytes, Digest), OutputShortfall> {
        let (path, start) = (self.path.clone(), self.hashed());
        let mut hasher = self.hasher.clone();
        let reading = spawn_blocking(move || {
            let content = read_at(&path, start, length)?;
            hasher.update(&content);
            let digest = Digest::of(&content);
            Ok::<_, std::io::Error>((content, digest, hasher))
        });
        match reading.await {
            Ok(Ok((content, digest, hasher))) => {
                self.hasher = hasher;
                Ok((content, digest))
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "the job's printed output cannot be read");
                Err(OutputShortfall::Disk)
            }
            Err(_) => Err(OutputShortfall::Disk),
        }
    }

    /// The result waits no longer, and more than a block of the stream was not read yet: what was read is stated. No
    /// store has the list of its blocks.
    fn cut_short(self) -> PrintedStream {
        let (total, kept) = (self.capture.copied(self.stream).total, self.hashed());
        PrintedStream {
            bytes: total,
            sha256: Some(Digest::from_bytes(self.hasher.finalize().into())),
            kept: (kept < total).then_some(kept),
            stored: None,
            shortfall: Some(self.failed.unwrap_or(OutputShortfall::Store)),
        }
    }

    /// The stream is over: the rest of it goes, and the list of its blocks.
    async fn finish(mut self) -> PrintedStream {
        let copied = self.capture.copied(self.stream);
        let rest = match self.read_next(copied.copied.saturating_sub(self.hashed())).await {
            Ok(rest) => rest,
            Err(reason) => return self.unreadable(reason),
        };
        let (content, digest) = rest;
        let printed = PrintedStream {
            bytes: copied.total,
            sha256: Some(Digest::from_bytes(self.hasher.clone().finalize().into())),
            kept: (copied.copied < copied.total).then_some(copied.copied),
            stored: None,
            shortfall: copied.end,
        };
        if self.blocks.is_empty() && is_shown_whole(&content) {
            return printed;
        }
        if self.failed == Some(OutputShortfall::Store) {
            // It may be back.
            self.failed = None;
        }
        if !content.is_empty() {
            self.blocks.push(digest);
            if self.failed.is_none() {
                match self.put(digest, content).await {
                    Ok(()) => self.stored = self.blocks.len(),
                    Err(reason) => self.failed = Some(reason),
                }
            }
        }
        let stored = self.complete(copied.copied).await;
        PrintedStream {
            stored,
            shortfall: copied.end.or(self.failed),
            ..printed
        }
    }

    /// Sends the blocks that the store lacks, since it was away or a sweep has dropped them meanwhile, and then the
    /// list of the blocks. Where the store took only the first of them, the list names these.
    async fn complete(&mut self, length: u64) -> Option<StoredStream> {
        if self.failed.is_none() {
            match self.send_missing(length).await {
                Ok(()) => self.stored = self.blocks.len(),
                Err(reason) => self.failed = Some(reason),
            }
        }
        let blocks = self.blocks.get(..self.stored)?;
        let list = Bytes::from(
            blocks
                .iter()
                .flat_map(|block| *block.as_bytes())
                .collect::<Vec<u8>>(),
        );
        let whole = self.stored == self.blocks.len();
        let full = u64::try_from(self.stored)
            .ok()?
            .saturating_mul(StoredStream::BLOCK_BYTES);
        let digest = Digest::of(&list);
        if self.stored == 0 {
            return None;
        }
        if let Err(reason) = self.put(digest, list).await {
            self.failed.get_or_insert(reason);
            return None;
        }
        Some(StoredStream {
            bytes: if whole { length } else { full },
            blocks: digest,
        })
    }

    async fn send_missing(&mut self, length: u64) -> Result<(), OutputShortfall> {
        let store = self.store().await?;
        let missing = self.bounded(store.find_missing(&self.blocks)).await?;
        for (number, block) in self.blocks.clone().into_iter().enumerate() {
            if !missing.contains(&block) {
                continue;
            }
            let start = u64::try_from(number)
                .unwrap_or(u64::MAX)
                .saturating_mul(StoredStream::BLOCK_BYTES);
            let size = length.saturating_sub(start).min(StoredStream::BLOCK_BYTES);
            let path = self.path.clone();
            let read = spawn_blocking(move || read_at(&path, start, size)).await;
            let sent = match read {
                Ok(Ok(content)) => self.put(block, content).await,
                Ok(Err(_)) | Err(_) => Err(OutputShortfall::Disk),
            };
            if let Err(reason) = sent {
                // The list names no block that the store lacks.
                self.stored = number;
                return Err(reason);
            }
        }
        Ok(())
    }

    /// Stores a block.
    async fn put(&mut self, block: Digest, content: Bytes) -> Result<(), OutputShortfall> {
        let store = self.store().await?;
        self.bounded(store.put(block, content)).await
    }

    /// The store, found at the first use.
    async fn store(&mut self) -> Result<BlockClient, OutputShortfall> {
        if let Some(store) = &self.store {
            return Ok(store.clone());
        }
        let opened = tokio::select! {
            opened = open_blocks(&self.context, &self.url) => opened,
            () = self.too_late() => return Err(OutputShortfall::Store),
        };
        let opened = opened.map_err(|reason| {
            tracing::warn!(reason, "the job's printed output cannot be sent");
            OutputShortfall::Store
        })?;
        self.store = Some(opened.clone());
        Ok(opened)
    }

    /// Waits until the time for requests is over.
    async fn too_late(&self) {
        let mut phase = self.phase.clone();
        let awaited = phase
            .wait_for(|phase| matches!(phase, OutputPhase::Awaited(_)))
            .await;
        let deadline = awaited.map_or(OutputPhase::Over, |phase| *phase);
        if let OutputPhase::Awaited(deadline) = deadline {
            self.context.clock().sleep_until(deadline).await;
        }
    }

    /// Makes a request until the time for it is over.
    async fn bounded<T>(
        &self,
        request: impl Future<Output = Result<T, BlockError>>,
    ) -> Result<T, OutputShortfall> {
        let answer = tokio::select! {
            answer = request => answer,
            () = self.too_late() => return Err(OutputShortfall::Store),
        };
        answer.map_err(|error| {
            tracing::warn!(%error, "the job's printed output cannot be sent");
            shortfall_of(&error)
        })
    }

    /// The stream whose copy cannot be read.
    fn unreadable(&self, reason: OutputShortfall) -> PrintedStream {
        PrintedStream {
            bytes: self.capture.copied(self.stream).total,
            kept: Some(0),
            shortfall: Some(reason),
            ..PrintedStream::default()
        }
    }
}

/// Whether the time for the rest of the output is over.
fn is_too_late(phase: OutputPhase, now: Timestamp) -> bool {
    match phase {
        OutputPhase::Printing | OutputPhase::Over => false,
        OutputPhase::Awaited(deadline) => now >= deadline,
    }
}

/// The reason for a block that the store did not take.
const fn shortfall_of(error: &BlockError) -> OutputShortfall {
    match error {
        BlockError::Refused { status, .. } if status.as_u16() == 413 => OutputShortfall::Room,
        BlockError::Refused { .. }
        | BlockError::Address
        | BlockError::Unreachable(_)
        | BlockError::OtherContent(_)
        | BlockError::Answer => OutputShortfall::Store,
    }
}

/// `length` bytes of a file from `start` on. Blocks.
fn read_at(path: &std::path::Path, start: u64, length: u64) -> std::io::Result<Bytes> {
    if length == 0 {
        return Ok(Bytes::new());
    }
    let mut content = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    File::open(path)?.read_exact_at(&mut content, start)?;
    Ok(content.into())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use muster_process::{SharedClock, Tasks, TestClock};
    use muster_protocol::wire::checkpoints::BlockList;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::collector::{CollectionEnd, OutputPlace};
    use crate::config::Config;
    use crate::context::ProcessContext;
    use crate::engine_cache::EngineCache;
    use crate::live_updates::LiveUpdates;

    fn now() -> Timestamp {
        Timestamp::from_secs(1_000)
    }

    fn context(clock: SharedClock) -> AttemptContext {
        let uuid = "11111111-2222-4333-8444-555555555555";
        let tasks = Tasks::new();
        let mut config = Config::default();
        config.transfer.allow = vec!["127.0.0.1".to_owned()];
        AttemptContext {
            process: ProcessContext {
                config: Arc::new(config),
                cache: EngineCache::default(),
                warm: None,
                shutdown: tasks.token(),
                clock,
                tasks,
            },
            token: format!("{uuid}-{uuid}").parse().unwrap(),
            live: LiveUpdates::default(),
            called_off: CancellationToken::new(),
        }
    }

    /// The sender of a standard output of this many full blocks in `folder`.
    fn sender(folder: &Path, blocks: u64, phase: watch::Receiver<OutputPhase>) -> StreamSender {
        let length = blocks * StoredStream::BLOCK_BYTES;
        let path = folder.join(STDOUT_FILE);
        File::create(&path).unwrap().set_len(length).unwrap();
        let capture = OutputCapture::default();
        let place = OutputPlace {
            program: None,
            engine: String::new(),
            logs: folder.to_owned(),
            limit: length,
            longest: None,
        };
        capture.begin(&place, true);
        capture.end_collection(Some(CollectionEnd::default()));
        StreamSender {
            stream: LogStream::Stdout,
            path,
            capture,
            context: context(Arc::new(TestClock::new(now()))),
            url: String::new(),
            store: None,
            hasher: Sha256::new(),
            blocks: Vec::new(),
            stored: 0,
            failed: None,
            phase,
        }
    }

    #[tokio::test]
    async fn a_result_that_waits_no_longer_states_the_bytes_that_were_read_until_then() {
        let folder = tempfile::tempdir().unwrap();
        let (_handle, phase) = watch::channel(OutputPhase::Awaited(now()));
        let expected = PrintedStream {
            bytes: 2 * StoredStream::BLOCK_BYTES,
            sha256: Some(Digest::of(b"")),
            kept: Some(0),
            stored: None,
            shortfall: Some(OutputShortfall::Store),
        };
        assert_eq!(sender(folder.path(), 2, phase).run().await, expected);
    }

    #[tokio::test]
    async fn the_end_names_no_block_that_the_store_has_dropped_and_does_not_get_again() {
        let (first, dropped) = (Digest::of(b"first"), Digest::of(b"dropped"));
        let lacking = serde_json::to_string(&BlockList {
            blocks: vec![dropped],
        })
        .unwrap();
        let app = axum::Router::new()
            .route(
                "/blocks/j/missing",
                axum::routing::post(move || std::future::ready(lacking.clone())),
            )
            .fallback(|| std::future::ready(""));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tasks = Tasks::new();
        drop(tasks.spawn("store", async move { axum::serve(listener, app).await.unwrap() }));
        let folder = tempfile::tempdir().unwrap();
        let (_handle, phase) = watch::channel(OutputPhase::Over);
        // The second block cannot be read any more.
        let mut sender = sender(folder.path(), 1, phase);
        sender.url = format!("http://{address}/blocks/j?Expires=1&Signature=2");
        sender.blocks = vec![first, dropped];
        sender.stored = 2;
        let stored = sender.complete(2 * StoredStream::BLOCK_BYTES).await;
        let expected = StoredStream {
            bytes: StoredStream::BLOCK_BYTES,
            blocks: Digest::of(first.as_bytes()),
        };
        assert_eq!(stored, Some(expected));
        assert_eq!(sender.failed, Some(OutputShortfall::Disk));
    }
}

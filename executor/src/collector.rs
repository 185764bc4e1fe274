//! The process that writes down what a container prints. It outlives its executor, so that no byte is lost with it, and
//! ends a container that nobody else has ended at its job's limit.
//!
//! An executor starts one for each job (`muster executor collect`), tells it the container, and waits until it has
//! attached. It runs in a session of its own and ends with the container's output; then a file says how the output
//! ended. The executor that takes the job over reads the files by offset: the engine's own copy is for people and
//! changes bytes.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Stdio;
use std::time::Duration;

use bollard::container::LogOutput;
use bollard::errors::Error as ApiError;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::{Either, select};
use futures_util::stream::{self, BoxStream};
use muster_containers::docker_engine::{ContainerEngine, EngineError};
use muster_process::SharedClock;
use muster_protocol::job::OutputShortfall;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::spawn_blocking;

use crate::config::Config;
use crate::output_capture::{DiskCopy, STDERR_FILE, STDOUT_FILE};

/// The lock that a collector holds for as long as it lives.
const LOCK_FILE: &str = "collector.lock";
/// How the output ended, once it has.
const END_FILE: &str = "collected.json";
/// The line by which a collector says that no byte of a container passes it by from then on.
const READY: &str = "ready\n";

/// How long a collector may take until it has attached, and after the container's end until it has written everything.
const COLLECTOR_LIMIT: Duration = Duration::from_secs(10);
/// How long a program gets to end by itself when its collector stops it.
const STOP_GRACE: Duration = Duration::from_secs(3);
/// The pause between two requests to stop a container.
const STOP_AGAIN: Duration = Duration::from_secs(10);
/// The pause between two looks into the files of a collector that another executor started.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The looks for a container's end after that of its output.
const END_LOOKS: usize = 10;
/// The bytes that are read at a time.
const CHUNK: u64 = 256 * 1024;

/// The container whose output a collector writes down, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CollectionOrder {
    /// The engine's address, as in the configuration.
    pub(crate) engine: String,
    /// The name of the container, which is not started yet.
    pub(crate) container: String,
    /// The folder of the two files.
    pub(crate) logs: PathBuf,
    /// The bytes of each stream that are written at most.
    pub(crate) limit: u64,
    /// The same as [`LifeOrder`], for a container that is made for its job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) longest_s: Option<u64>,
}

/// The time that the program of a warm container has, once there is a job. It begins when the order arrives: before the
/// program's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LifeOrder {
    longest_s: u64,
}

/// The place of the output of one container, and the program that collects it there.
#[derive(Clone, Debug)]
pub(crate) struct OutputPlace {
    /// The program; `None` where this process copies the output itself.
    pub(crate) program: Option<PathBuf>,
    /// The engine's address, as in the configuration.
    pub(crate) engine: String,
    /// The folder of the copies of both streams.
    pub(crate) logs: PathBuf,
    /// The bytes of each copy.
    pub(crate) limit: u64,
    /// The time after which the container is stopped although no executor stops it; `None` before there is a job.
    pub(crate) longest: Option<Duration>,
}

impl OutputPlace {
    /// The place in these folders of a job of an executor with this configuration.
    pub(crate) fn of(config: &Config, logs: &Path, limit: u64) -> Self {
        Self {
            program: config.collector.clone(),
            engine: config.engine.clone(),
            logs: logs.to_owned(),
            limit,
            longest: None,
        }
    }

    /// Has the collector of a warm container stop it once the job's time is over, before the job's program starts.
    pub(crate) async fn bound_life(&self, collector: &mut Option<OutputCollector>) {
        let (Some(collector), Some(longest)) = (collector, self.longest) else {
            return;
        };
        if let Err(error) = collector.bound_life(longest).await {
            tracing::warn!(%error, "only this executor ends the container at its limit");
        }
    }

    /// Starts the process that will collect the output; `None` where there is none.
    pub(crate) fn start(&self) -> Option<OutputCollector> {
        let program = self.program.as_ref()?;
        OutputCollector::start(program)
            .inspect_err(|error| tracing::warn!(%error, "the process that collects output cannot be started"))
            .ok()
    }

    /// Has it collect the output of a container that was created and not started. `None` where it does not.
    pub(crate) async fn attach(
        &self,
        collector: Option<OutputCollector>,
        container: &str,
        clock: &SharedClock,
    ) -> Option<OutputCollector> {
        let mut collector = collector?;
        let order = CollectionOrder {
            engine: self.engine.clone(),
            container: container.to_owned(),
            logs: self.logs.clone(),
            limit: self.limit,
            longest_s: self.longest.map(|longest| longest.as_secs()),
        };
        let Err(error) = collector.attach(&order, clock).await else {
            return Some(collector);
        };
        tracing::warn!(%error, "the output is copied by the executor itself");
        collector.abandon();
        None
    }
}

/// How the output of a container ended: each stream's reason for lacking bytes, if it lacks any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CollectionEnd {
    pub(crate) stdout: Option<OutputShortfall>,
    pub(crate) stderr: Option<OutputShortfall>,
}

/// A collector that this process has started.
#[derive(Debug)]
pub(crate) struct OutputCollector {
    child: Child,
    order: ChildStdin,
    told: BufReader<ChildStdout>,
}

impl OutputCollector {
    /// Starts a collector. It waits for its order.
    ///
    /// # Errors
    /// The program cannot be started.
    fn start(program: &Path) -> io::Result<Self> {
        let mut child = Command::new(program)
            .args(["executor", "collect"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(order), Some(told)) => Ok(Self {
                child,
                order,
                told: BufReader::new(told),
            }),
            (None, _) | (_, None) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Has it attach to a container that was created and not started.
    ///
    /// # Errors
    /// It did not attach in time.
    async fn attach(&mut self, order: &CollectionOrder, clock: &SharedClock) -> io::Result<()> {
        let line = serde_json::to_string(order)? + "\n";
        let attaching = async {
            self.order.write_all(line.as_bytes()).await?;
            self.order.flush().await?;
            let mut told = String::new();
            while !told.ends_with(READY) {
                told.clear();
                if self.told.read_line(&mut told).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            Ok(())
        };
        tokio::select! {
            attached = attaching => attached,
            () = clock.sleep(COLLECTOR_LIMIT) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Has it stop the container once this time is over, with or without an executor.
    ///
    /// # Errors
    /// It has ended.
    pub(crate) async fn bound_life(&mut self, longest: Duration) -> io::Result<()> {
        let order = LifeOrder {
            longest_s: longest.as_secs(),
        };
        let line = serde_json::to_string(&order)? + "\n";
        self.order.write_all(line.as_bytes()).await?;
        self.order.flush().await
    }

    /// Ends it: its container is never started.
    pub(crate) fn abandon(mut self) {
        // It may have ended by itself.
        let _ = self.child.start_kill();
    }

    /// Waits until it has written everything, and not much longer.
    pub(crate) async fn finish(self, clock: &SharedClock) {
        let Self { mut child, order, .. } = self;
        // A collector that waits for another order waits for the end of them.
        drop(order);
        tokio::select! {
            ended = child.wait() => drop(ended),
            () = clock.sleep(COLLECTOR_LIMIT) => {
                tracing::warn!("the process that collects a job's output does not end");
            }
        }
    }
}

/// How the output in these files ended; `None` while a collector writes it, and for one that was killed.
pub(crate) fn read_end(logs: &Path) -> Option<CollectionEnd> {
    serde_json::from_slice(&fs::read(logs.join(END_FILE)).ok()?).ok()
}

/// Whether a collector that is still alive writes these files.
pub(crate) fn is_collected(logs: &Path) -> bool {
    let locked = File::open(logs.join(LOCK_FILE)).map(|lock| lock.try_lock_shared());
    matches!(locked, Ok(Err(fs::TryLockError::WouldBlock)))
}

/// The output that a collector of an earlier executor writes, from these offsets of both streams to its end. It breaks
/// where the collector was killed.
pub(crate) fn follow(
    logs: PathBuf,
    from: (u64, u64),
    clock: SharedClock,
) -> BoxStream<'static, Result<LogOutput, ApiError>> {
    let state = Some((logs, from, clock));
    stream::unfold(state, |state| async move {
        let (logs, mut from, clock) = state?;
        loop {
            let reading = {
                let logs = logs.clone();
                spawn_blocking(move || look(&logs, from))
            };
            let broken = |source: io::Error| (Err(ApiError::IOError { err: source }), None);
            match reading.await {
                Ok(Ok(CollectedPiece::Stdout(message))) => {
                    from.0 = from.0.saturating_add(message.len() as u64);
                    return Some((Ok(LogOutput::StdOut { message }), Some((logs, from, clock))));
                }
                Ok(Ok(CollectedPiece::Stderr(message))) => {
                    from.1 = from.1.saturating_add(message.len() as u64);
                    return Some((Ok(LogOutput::StdErr { message }), Some((logs, from, clock))));
                }
                Ok(Ok(CollectedPiece::NotYet)) => clock.sleep(LOOK_EVERY).await,
                Ok(Ok(CollectedPiece::Over)) => return None,
                Ok(Ok(CollectedPiece::Killed)) => return Some(broken(io::ErrorKind::BrokenPipe.into())),
                Ok(Err(error)) => return Some(broken(error)),
                Err(_) => return Some(broken(io::ErrorKind::Interrupted.into())),
            }
        }
    })
    .boxed()
}

/// The content of a collector's files behind two offsets.
enum CollectedPiece {
    Stdout(Bytes),
    Stderr(Bytes),
    /// Nothing, while the collector is alive.
    NotYet,
    /// Nothing, and nothing will come.
    Over,
    /// Nothing, and the collector is gone without having said how the output ended.
    Killed,
}

/// Looks into the files. Blocks.
fn look(logs: &Path, from: (u64, u64)) -> io::Result<CollectedPiece> {
    // In this order: what is written before the end is read.
    let (is_alive, end) = (is_collected(logs), read_end(logs));
    let stdout = read_from(&logs.join(STDOUT_FILE), from.0)?;
    if !stdout.is_empty() {
        return Ok(CollectedPiece::Stdout(stdout));
    }
    let stderr = read_from(&logs.join(STDERR_FILE), from.1)?;
    Ok(match (stderr.is_empty(), end, is_alive) {
        (false, _, _) => CollectedPiece::Stderr(stderr),
        (true, Some(_), _) => CollectedPiece::Over,
        (true, None, true) => CollectedPiece::NotYet,
        (true, None, false) => CollectedPiece::Killed,
    })
}

fn read_from(path: &Path, start: u64) -> io::Result<Bytes> {
    let mut file = File::open(path)?;
    file.seek(io::SeekFrom::Start(start))?;
    let mut piece = Vec::new();
    file.take(CHUNK).read_to_end(&mut piece)?;
    Ok(piece.into())
}

/// The output of a container cannot be collected.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// The first line of standard input is no order.
    #[error("the order cannot be read: only an executor starts this")]
    Order(#[from] serde_json::Error),
    /// A file of the output, or standard input or output, cannot be used.
    #[error("the output cannot be written down")]
    Files(#[from] io::Error),
    /// Another process collects the output.
    #[error("another process collects this output")]
    Locked(#[from] fs::TryLockError),
    /// The engine does not give the output.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Writes down what a container prints: the whole life of the process `muster executor collect`. The order is the first
/// line of standard input. It bounds the life of the container, or a second line does once a warm one has a job;
/// without either the container has no limit here.
///
/// # Errors
/// The order cannot be read, another process writes the files, or the engine does not attach.
pub async fn collect() -> Result<(), CollectError> {
    // The end of the executor's session does not end this process. A process that leads a group already stays in it.
    let _ = nix::unistd::setsid();
    let mut orders = BufReader::new(tokio::io::stdin().take(64 * 1024)).lines();
    let line = orders.next_line().await?.unwrap_or_default();
    let order: CollectionOrder = serde_json::from_str(&line)?;
    let engine = ContainerEngine::connect(&order.engine).await?;
    let output = engine.attach(&order.container).await?;
    // From here on the container may be started: no byte of it passes this process by.
    let lock = File::create(order.logs.join(LOCK_FILE))?;
    lock.try_lock()?;
    let open =
        |name: &str| File::create(order.logs.join(name)).map(|file| DiskCopy::new(file, 0, order.limit));
    let copies = (open(STDOUT_FILE)?, open(STDERR_FILE)?);
    io::stdout().write_all(READY.as_bytes())?;
    io::stdout().flush()?;
    let ending = async {
        let longest_s = match order.longest_s {
            Some(longest_s) => Some(longest_s),
            // A warm container waits for its job. Without an executor none comes.
            None => {
                let line = orders.next_line().await.ok().flatten();
                let life = line.and_then(|line| serde_json::from_str::<LifeOrder>(&line).ok());
                life.map(|life| life.longest_s)
            }
        };
        let Some(longest_s) = longest_s else {
            return std::future::pending().await;
        };
        stop_after(&engine, &order.container, longest_s).await;
    };
    let writing = write_down(output, copies);
    let mut end = match select(pin!(writing), pin!(ending)).await {
        Either::Left((end, _)) => end,
        Either::Right(((), writing)) => writing.await,
    };
    if !has_ended(&engine, &order.container).await {
        // An engine that goes away closes its connections as if the container had ended.
        end.stdout.get_or_insert(OutputShortfall::Collector);
        end.stderr.get_or_insert(OutputShortfall::Collector);
    }
    let fresh = order.logs.join("collected.new");
    fs::write(&fresh, serde_json::to_vec(&end)?)?;
    fs::rename(fresh, order.logs.join(END_FILE))?;
    Ok(())
}

/// Stops a container once this time is over, again and again until its output ends: an engine may fail, and an executor
/// that takes the job over may start the container only then.
async fn stop_after(engine: &ContainerEngine, container: &str, longest_s: u64) {
    tokio::time::sleep(Duration::from_secs(longest_s)).await;
    loop {
        if let Err(error) = engine.stop(container, STOP_GRACE).await {
            tracing::warn!(%error, "a container is not stopped at its limit");
        }
        tokio::time::sleep(STOP_AGAIN).await;
    }
}

/// Whether a container whose output has just ended has ended, too. An engine that was restarted may have kept it.
async fn has_ended(engine: &ContainerEngine, container: &str) -> bool {
    // An engine may close the output a moment before it notes the end.
    for _ in 0..END_LOOKS {
        match engine.find_running(container).await {
            Ok(None) => return true,
            Ok(Some(_)) => tokio::time::sleep(LOOK_EVERY).await,
            Err(_) => return false,
        }
    }
    false
}

/// Copies both streams until they end or break.
async fn write_down(
    mut output: BoxStream<'_, Result<LogOutput, ApiError>>,
    (mut stdout, mut stderr): (DiskCopy, DiskCopy),
) -> CollectionEnd {
    let mut broken = None;
    while let Some(piece) = output.next().await {
        match piece {
            Ok(LogOutput::StdErr { message }) => stderr.push(&message),
            Ok(LogOutput::StdOut { message } | LogOutput::StdIn { message }) => stdout.push(&message),
            // Bytes without a whole frame: no container of a job has a terminal, so the connection was cut within one.
            Ok(LogOutput::Console { .. }) => {
                broken = Some(OutputShortfall::Collector);
                break;
            }
            Err(error) => {
                tracing::warn!(%error, "the output of a container broke off");
                broken = Some(OutputShortfall::Collector);
                break;
            }
        }
    }
    CollectionEnd {
        stdout: stdout.end().or(broken),
        stderr: stderr.end().or(broken),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_process::SystemClock;

    use super::*;

    fn out(bytes: &'static [u8]) -> Result<LogOutput, ApiError> {
        Ok(LogOutput::StdOut {
            message: Bytes::from_static(bytes),
        })
    }

    fn broken() -> Result<LogOutput, ApiError> {
        Err(ApiError::IOError {
            err: io::ErrorKind::ConnectionReset.into(),
        })
    }

    fn copies(folder: &Path, limit: u64) -> (DiskCopy, DiskCopy) {
        let open = |name: &str| DiskCopy::new(File::create(folder.join(name)).unwrap(), 0, limit);
        (open(STDOUT_FILE), open(STDERR_FILE))
    }

    #[tokio::test]
    async fn streams_are_written_byte_for_byte_up_to_the_limit_and_a_break_is_noted() {
        let folder = tempfile::tempdir().unwrap();
        let output = stream::iter([out(b"a\xff\n"), out(b"bc")]).boxed();
        let end = write_down(output, copies(folder.path(), 4)).await;
        assert_eq!(fs::read(folder.path().join(STDOUT_FILE)).unwrap(), b"a\xff\nb");
        let expected = CollectionEnd {
            stdout: Some(OutputShortfall::Bound),
            stderr: None,
        };
        assert_eq!(end, expected);
        let output = stream::iter([out(b"a"), broken(), out(b"b")]).boxed();
        let end = write_down(output, copies(folder.path(), 4)).await;
        assert_eq!(fs::read(folder.path().join(STDOUT_FILE)).unwrap(), b"a");
        let lost = Some(OutputShortfall::Collector);
        assert_eq!((end.stdout, end.stderr), (lost, lost));
        let cut = Ok(LogOutput::Console {
            message: Bytes::from_static(&[1, 0, 0, 0, 0, 0, 0, 9, b'b']),
        });
        let output = stream::iter([out(b"a"), cut]).boxed();
        let end = write_down(output, copies(folder.path(), 4)).await;
        assert_eq!(fs::read(folder.path().join(STDOUT_FILE)).unwrap(), b"a");
        assert_eq!((end.stdout, end.stderr), (lost, lost));
        let output = stream::iter([out(b"a")]).boxed();
        let end = write_down(output, copies(folder.path(), 0)).await;
        assert_eq!(
            (end.stdout, end.stderr),
            (Some(OutputShortfall::Bound), None),
            "a bound of nothing"
        );
    }

    /// The bytes that a follower reads from these offsets, and whether it ended well.
    async fn followed(folder: &Path, from: (u64, u64)) -> (Vec<u8>, Vec<u8>, bool) {
        let clock: SharedClock = Arc::new(SystemClock::new());
        let mut pieces = follow(folder.to_owned(), from, clock);
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        while let Some(piece) = muster_testbed::within("the end of the output", pieces.next()).await {
            match piece {
                Ok(LogOutput::StdErr { message }) => stderr.extend(message),
                Ok(piece) => stdout.extend(piece.into_bytes()),
                Err(_) => return (stdout, stderr, false),
            }
        }
        (stdout, stderr, true)
    }

    #[tokio::test]
    async fn follower_reads_each_byte_once_to_the_end_and_breaks_where_the_collector_was_killed() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(STDOUT_FILE), b"one two").unwrap();
        fs::write(folder.path().join(STDERR_FILE), b"err").unwrap();
        let lock = File::create(folder.path().join(LOCK_FILE)).unwrap();
        lock.try_lock().unwrap();
        assert!(is_collected(folder.path()) && read_end(folder.path()).is_none());
        drop(lock);
        assert!(!is_collected(folder.path()));
        let killed = followed(folder.path(), (4, 0)).await;
        assert_eq!(killed, (b"two".to_vec(), b"err".to_vec(), false));
        let end = serde_json::to_vec(&CollectionEnd::default()).unwrap();
        fs::write(folder.path().join(END_FILE), end).unwrap();
        let whole = followed(folder.path(), (0, 3)).await;
        assert_eq!(whole, (b"one two".to_vec(), Vec::new(), true));
    }
}

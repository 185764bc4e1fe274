//! The only place where tasks are spawned: each has a name, shutdown waits for all of them, and a panic is logged.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::task::{AbortHandle, JoinHandle};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

/// Spawns tasks and waits for them. Clones are one spawner.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    shared: Arc<TasksState>,
}

#[derive(Debug, Default)]
struct TasksState {
    tracker: TaskTracker,
    token: CancellationToken,
    /// Why they stop, for the peers whose connections end with them; unset for an ordinary stop.
    reason: OnceLock<&'static str>,
    panics: AtomicU64,
    running: Mutex<BTreeMap<&'static str, usize>>,
}

/// A task ended without a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    /// It panicked; the log has the message.
    #[error("task {0} panicked, which is a defect of this program; its message is in the log")]
    Panicked(&'static str),
    /// It was aborted, or its runtime ended.
    #[error("task {0} was stopped before it ended")]
    Stopped(&'static str),
}

/// Tasks that did not end in time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("shutdown: after {grace:?} these tasks are still running: {}", names.join(", "))]
pub struct StillRunning {
    /// The time they were given.
    pub grace: Duration,
    /// Their names, in order.
    pub names: Vec<&'static str>,
}

/// A task that was spawned. Dropping this lets it run on.
#[derive(Debug)]
pub struct Task<T> {
    name: &'static str,
    handle: JoinHandle<Option<T>>,
}

impl<T> Task<T> {
    /// Waits for its result.
    ///
    /// # Errors
    /// It panicked or was stopped.
    pub async fn join(self) -> Result<T, TaskError> {
        match self.handle.await {
            Ok(Some(value)) => Ok(value),
            Ok(None) => Err(TaskError::Panicked(self.name)),
            Err(_) => Err(TaskError::Stopped(self.name)),
        }
    }

    /// Stops it at its next await. Prefer the token of [`Tasks::token`], which lets it tidy up.
    pub fn abort(&self) {
        self.handle.abort();
    }

    /// A handle that stops it from another place.
    pub fn abort_handle(&self) -> AbortHandle {
        self.handle.abort_handle()
    }

    /// Whether it has ended in any way.
    pub fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }
}

impl Tasks {
    /// A spawner with a token of its own.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs `future` in the background. `name` is the field `task` of its span, and names it in [`StillRunning`].
    pub fn spawn<F>(&self, name: &'static str, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let guarded = guard(Running::new(name, Arc::clone(&self.shared)), future);
        // Not `name`: in a JSON log line that field is the span's own name.
        let span = tracing::info_span!("task", task = name);
        let handle = self.shared.tracker.spawn(guarded.instrument(span));
        Task { name, handle }
    }

    /// Cancelled when the process is to stop. Long-lived tasks select on it.
    pub fn token(&self) -> CancellationToken {
        self.shared.token.clone()
    }

    /// Asks every task to stop. Returns at once; see [`Tasks::wait`].
    pub fn shutdown(&self) {
        self.shared.token.cancel();
        self.shared.tracker.close();
    }

    /// Asks every task to stop, and keeps the reason for the peers whose connections end; the first reason stays.
    pub fn shutdown_because(&self, reason: &'static str) {
        let _ = self.shared.reason.set(reason);
        self.shutdown();
    }

    /// Why the tasks stop, in a few words for a peer; empty for an ordinary stop.
    pub fn stop_reason(&self) -> &'static str {
        self.shared.reason.get().copied().unwrap_or_default()
    }

    /// Waits until every task has ended, at most for `grace`.
    ///
    /// # Errors
    /// Some tasks still run; the error names them. They are not aborted: the caller ends the process or waits again.
    pub async fn wait(&self, grace: Duration) -> Result<(), StillRunning> {
        self.shared.tracker.close();
        let ended = tokio::time::timeout(grace, self.shared.tracker.wait()).await;
        ended.map_err(|_| StillRunning {
            grace,
            names: self.running(),
        })
    }

    /// The number of tasks that have panicked so far.
    pub fn panics(&self) -> u64 {
        self.shared.panics.load(Ordering::Relaxed)
    }

    /// Names of the tasks that run now, each once, in order.
    pub fn running(&self) -> Vec<&'static str> {
        let running = self.shared.running.lock();
        running.keys().copied().collect()
    }
}

/// The future with its panic counted and logged. Not an `async` block around it, which would reserve room for the
/// future twice: once as its argument and once as what it awaits.
fn guard<F: Future>(running: Running, future: F) -> impl Future<Output = Option<F::Output>> {
    AssertUnwindSafe(future)
        .catch_unwind()
        .map(move |outcome| match outcome {
            Ok(value) => Some(value),
            Err(panic) => {
                let name = running.name;
                running.shared.panics.fetch_add(1, Ordering::Relaxed);
                metrics::counter!("muster_task_panics_total", "task" => name).increment(1);
                tracing::error!(task = name, panic = panic_text(&*panic), "task panicked");
                None
            }
        })
}

/// Tasks that run in this process, of every spawner.
static RUNNING: AtomicU64 = AtomicU64::new(0);

/// The number of tasks that run in this process.
pub(crate) fn running_tasks() -> u64 {
    RUNNING.load(Ordering::Relaxed)
}

/// Keeps a task's name in the list for as long as its future exists, aborted or not.
struct Running {
    name: &'static str,
    shared: Arc<TasksState>,
}

impl Running {
    fn new(name: &'static str, shared: Arc<TasksState>) -> Self {
        *shared.running.lock().entry(name).or_default() += 1;
        RUNNING.fetch_add(1, Ordering::Relaxed);
        Self { name, shared }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::Relaxed);
        let mut running = self.shared.running.lock();
        if let Some(count) = running.get_mut(self.name) {
            *count -= 1;
            if *count == 0 {
                running.remove(self.name);
            }
        }
    }
}

/// The message of a panic, if it has one.
fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&'static str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_hands_back_its_result() {
        let tasks = Tasks::new();
        assert_eq!(tasks.spawn("sum", async { 1 + 1 }).join().await, Ok(2));
        assert_eq!(tasks.running(), Vec::<&str>::new());
    }

    #[test]
    fn a_task_is_little_larger_than_what_it_runs() {
        let large = async {
            let held = [1_u8; 4_096];
            tokio::task::yield_now().await;
            held.len()
        };
        let own = size_of_val(&large);
        let guarded = guard(Running::new("large", Arc::default()), large);
        assert!(
            (4_096..own + 64).contains(&size_of_val(&guarded)),
            "{own}: {}",
            size_of_val(&guarded)
        );
    }

    #[tokio::test]
    async fn a_panic_is_counted_and_hurts_nobody_else() {
        let tasks = Tasks::new();
        let bad = tasks.spawn("bad", async { panic!("on purpose") });
        assert_eq!(bad.join().await, Err::<(), _>(TaskError::Panicked("bad")));
        let bad = tasks.spawn("bad", async { std::panic::panic_any(7_u8) });
        assert_eq!(bad.join().await, Err::<(), _>(TaskError::Panicked("bad")));
        assert_eq!(tasks.panics(), 2);
        assert_eq!(tasks.spawn("good", async {}).join().await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_reaches_every_task_and_names_those_that_stay() {
        let tasks = Tasks::new();
        let token = tasks.token();
        tasks.spawn("polite", async move { token.cancelled().await });
        let stubborn = tasks.spawn("stubborn", std::future::pending::<()>());
        tasks.shutdown();
        let grace = Duration::from_secs(5);
        let error = tasks.wait(grace).await.unwrap_err();
        assert_eq!(error.names, ["stubborn"]);
        assert!(running_tasks() >= 1);
        assert_eq!(
            error.to_string(),
            "shutdown: after 5s these tasks are still running: stubborn"
        );
        stubborn.abort();
        assert_eq!(tasks.wait(grace).await, Ok(()));
        assert_eq!(stubborn.join().await, Err(TaskError::Stopped("stubborn")));
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_spawned_while_stopping_are_waited_for_too() {
        let tasks = Tasks::new();
        let (inner, token) = (tasks.clone(), tasks.token());
        tasks.spawn("outer", async move {
            token.cancelled().await;
            inner.spawn("inner", tokio::time::sleep(Duration::from_secs(2)));
        });
        tasks.shutdown();
        let error = tasks.wait(Duration::from_secs(1)).await.unwrap_err();
        assert_eq!(error.names, ["inner"]);
        assert_eq!(tasks.wait(Duration::from_secs(5)).await, Ok(()));
    }
}

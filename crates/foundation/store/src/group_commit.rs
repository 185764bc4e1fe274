//! Group commit: concurrent writes of one process share one transaction, and so one flush to disk.
//!
//! A [`Writer`] lends the transaction to one write at a time. The caller runs statements through a [`Write`] and then
//! commits it; the commit ends when the write is durable. Writes that were asked for meanwhile go into the same
//! transaction, one after the other, and all are answered after its one commit. No write waits for company: a lone
//! write is committed at once, and others gather while the disk is busy with it.
//!
//! A write that is known in full beforehand is handed over as a [`Script`] with [`Writer::run_script`], and the
//! writer's task runs it. That spares two task switches for each write, which cost more than most statements.
//!
//! Each write succeeds or fails by itself. One that fails, or whose caller goes away before it asked for the commit, is
//! undone to a savepoint, and its neighbours stay. If the caller goes away afterwards, its write is committed as a
//! whole or not at all. Only a failed commit fails all writes of its transaction, and each caller gets the error.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::any::{Any, AnyArguments};
use sqlx::pool::PoolConnection;
use sqlx::query::Query;
use sqlx::{AnyConnection, AnyPool, Executor as _, Transaction};
use tokio::sync::{Mutex, OwnedMutexGuard, mpsc, oneshot};
use tokio::time::Instant;

use crate::error::{BEGIN, commit_error};
use crate::{During as _, Script, StoreError, begin, begin_statement};
use muster_process::Tasks;

/// Writes that wait for the transaction; further ones wait for room in the queue.
const QUEUE: usize = 1_024;

/// A script that runs at the head of every shared transaction, before the first write. If it writes no row, the
/// transaction is given up: a process that has lost its right to write finds out here.
#[derive(Clone, Debug)]
pub struct TransactionGuard {
    /// Runs first; an empty script guards nothing.
    pub script: Script,
    /// Makes the error that each caller gets if the script writes no row.
    pub refusal: fn() -> StoreError,
}

/// The size of one shared transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimits {
    /// Writes in one transaction, at most.
    pub writes: usize,
    /// For how long further writes are taken in. A commit that took longer extends it to its own duration: then at
    /// least half of the time goes into writing, and no write waits for much more than two commits.
    pub open_for: Duration,
}

/// Lets one write after another into shared transactions. Clones share the queue.
#[derive(Clone)]
pub struct Writer {
    pool: AnyPool,
    mode: WriterMode,
    counters: Arc<CommitCounters>,
}

#[derive(Clone)]
enum WriterMode {
    /// In shared transactions, one after another. The lock is held from making a script to queueing it, so that scripts
    /// run in the order in which they were made.
    Grouped(mpsc::Sender<QueuedWrite>, Arc<parking_lot::Mutex<()>>),
    /// Each write has a transaction and a connection of its own.
    Separate,
}

/// The numbers of writes and commits so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteCounts {
    /// Writes that are durable.
    pub writes: u64,
    /// Commits that made them durable.
    pub commits: u64,
}

#[derive(Debug, Default)]
struct CommitCounters {
    writes: AtomicU64,
    commits: AtomicU64,
}

/// A write in progress; derefs to the connection. Dropped without [`Write::commit`], its statements are undone.
///
/// Ask the pool for nothing while you hold one; see the crate's documentation.
pub struct Write(WriteTarget);

enum WriteTarget {
    Shared(OwnedMutexGuard<OpenTransaction>),
    Own(Transaction<'static, Any>, Arc<CommitCounters>),
}

/// A write that waits for the transaction.
enum QueuedWrite {
    /// The caller runs its statements itself.
    Interactive(TransactionLoan),
    /// The writer's task runs the caller's script.
    Scripted(ScriptedWrite),
}

type TransactionLoan = oneshot::Sender<Result<OwnedMutexGuard<OpenTransaction>, StoreError>>;

/// A write that is known in full, as a script.
struct ScriptedWrite {
    script: Script,
    /// If the script writes fewer rows, it is undone.
    rows: u64,
    operation: &'static str,
    done: CommitReply,
}

/// Notifies the caller that waits for a commit whether its write is in it.
type CommitReply = oneshot::Sender<Result<bool, StoreError>>;

/// Run before each write but the first: the write before it stays, and the next one can be undone by itself.
const SAVEPOINT: &[&str] = &["RELEASE SAVEPOINT write", "SAVEPOINT write"];

/// An open transaction, and the callers that wait for its commit.
struct OpenTransaction {
    connection: PoolConnection<Any>,
    /// The statement that begins the transaction and its guard; `None` once it has begun.
    head: Option<(&'static str, TransactionGuard)>,
    /// Callers whose writes are in the transaction, in order, each with its operation as text.
    waiting: Vec<(&'static str, CommitReply)>,
    /// Callers whose scripts changed too few rows. They are answered after the commit, when the rows that they met are
    /// durable.
    missed: Vec<(&'static str, CommitReply)>,
    /// Whether the last write has a savepoint before it.
    has_savepoint: bool,
}

/// The task behind a [`Writer`].
struct GroupCommitter {
    pool: AnyPool,
    guard: TransactionGuard,
    limits: GroupLimits,
    /// The duration of the last commit.
    last: Duration,
    counters: Arc<CommitCounters>,
}

/// Why a script was not run.
enum ScriptFailure {
    /// The guard wrote no row.
    Refused(StoreError),
    Engine(sqlx::Error),
}

/// The state of the transaction after a write.
enum TransactionState {
    /// It holds one more write.
    Written,
    /// It holds what it held before.
    Nothing,
    /// It cannot go on.
    Broken(sqlx::Error),
}

// === impl Writer ===

impl Default for TransactionGuard {
    /// An empty script, which guards nothing.
    fn default() -> Self {
        Self {
            script: Script::default(),
            refusal: || StoreError::Superseded,
        }
    }
}

impl Default for GroupLimits {
    fn default() -> Self {
        Self {
            writes: 256,
            open_for: Duration::from_millis(2),
        }
    }
}

impl Writer {
    /// Writes to `pool` as suits its engine. On SQLite all writes share commits: there is one connection. On PostgreSQL
    /// each has a transaction of its own: concurrent transactions share flushes of the log already, and none holds
    /// another's rows.
    ///
    /// Needs a runtime.
    pub fn new(pool: &AnyPool) -> Self {
        match begin_statement(pool) {
            crate::SQLITE_BEGIN => Self::in_order(pool, GroupLimits::default(), None),
            _ => Self {
                pool: pool.clone(),
                mode: WriterMode::Separate,
                counters: Arc::default(),
            },
        }
    }

    /// Writes one after another on either engine, for a store whose writes have an order and whose only writer is this
    /// process. `guard` runs at the head of each transaction.
    ///
    /// Needs a runtime.
    pub fn in_order(pool: &AnyPool, limits: GroupLimits, guard: Option<TransactionGuard>) -> Self {
        let (turns, queue) = mpsc::channel(QUEUE);
        let counters = Arc::default();
        let clerk = GroupCommitter {
            pool: pool.clone(),
            guard: guard.unwrap_or_default(),
            limits,
            last: Duration::ZERO,
            counters: Arc::clone(&counters),
        };
        // The task ends with the last clone of this writer; no caller waits for what is open then.
        drop(Tasks::new().spawn("store writer", clerk.work(queue)));
        Self {
            pool: pool.clone(),
            mode: WriterMode::Grouped(turns, Arc::default()),
            counters,
        }
    }

    /// Waits until the transaction is free for this write.
    ///
    /// # Errors
    /// The transaction cannot be begun, or the guard refuses it.
    pub async fn begin(&self) -> Result<Write, StoreError> {
        let turns = match &self.mode {
            WriterMode::Grouped(turns, _) => turns,
            WriterMode::Separate => {
                return Ok(Write(WriteTarget::Own(
                    begin(&self.pool).await?,
                    Arc::clone(&self.counters),
                )));
            }
        };
        let (turn, ours) = oneshot::channel();
        // The task ends only with the runtime.
        let gone = || closed(BEGIN);
        turns
            .send(QueuedWrite::Interactive(turn))
            .await
            .map_err(|_| gone())?;
        Ok(Write(WriteTarget::Shared(ours.await.map_err(|_| gone())??)))
    }

    /// Runs one statement as a write of its own, and returns the number of rows it wrote. `operation` completes the
    /// sentence "cannot …".
    ///
    /// # Errors
    /// The statement fails, the guard refuses the transaction, or the commit fails. See [`Write::commit`].
    pub async fn execute(
        &self,
        operation: &'static str,
        statement: Query<'_, Any, AnyArguments>,
    ) -> Result<u64, StoreError> {
        let mut write = self.begin().await?;
        let done = statement.execute(&mut *write).await.during(operation)?;
        write.commit(operation).await?;
        Ok(done.rows_affected())
    }

    /// Runs the script that `make` returns, as a whole or not at all, and ends when it is durable. `operation`
    /// completes the sentence "cannot …". `make` is called once there is room in the queue. Scripts run in the order in
    /// which they are made, so `make` may number the rows.
    ///
    /// `make` also returns a number of rows: a script that would write fewer is undone, and the result is `false`.
    ///
    /// # Errors
    /// A statement fails, the guard refuses the transaction, or the commit fails. See [`Write::commit`].
    pub async fn run_script(
        &self,
        operation: &'static str,
        make: impl FnOnce() -> (Script, u64) + Send,
    ) -> Result<bool, StoreError> {
        let (turns, order) = match &self.mode {
            WriterMode::Grouped(turns, order) => (turns, order),
            WriterMode::Separate => {
                let mut transaction = begin(&self.pool).await?;
                let (mut script, rows) = make();
                if script.run(&mut transaction).await.during(operation)? < rows {
                    transaction.rollback().await.during(operation)?;
                    return Ok(false);
                }
                let committed = transaction.commit().await;
                committed.map_err(|error| commit_error(operation, Arc::new(error)))?;
                self.counters.committed(1);
                return Ok(true);
            }
        };
        let (done, committed) = oneshot::channel();
        let place = turns.reserve().await.map_err(|_| closed(operation))?;
        {
            let _order = order.lock();
            let (script, rows) = make();
            place.send(QueuedWrite::Scripted(ScriptedWrite {
                script,
                rows,
                operation,
                done,
            }));
        }
        committed.await.map_err(|_| closed(operation))?
    }

    /// Closes the connections that write; every further write fails. Committed writes are durable already.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    /// The numbers of writes and commits so far.
    pub fn counts(&self) -> WriteCounts {
        WriteCounts {
            writes: self.counters.writes.load(Ordering::Relaxed),
            commits: self.counters.commits.load(Ordering::Relaxed),
        }
    }
}

fn closed(operation: &'static str) -> StoreError {
    StoreError::Query {
        operation,
        source: sqlx::Error::PoolClosed,
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Writer").field(&self.counts()).finish()
    }
}

// === impl Write ===

impl Write {
    /// Ends when the write is durable. `operation` completes the sentence "cannot …".
    ///
    /// # Errors
    /// The commit failed; [`StoreError::Unknown`] if its answer did not come, since the write may be durable then.
    pub async fn commit(self, operation: &'static str) -> Result<(), StoreError> {
        match self.0 {
            WriteTarget::Shared(mut batch) => {
                let (done, committed) = oneshot::channel();
                batch.waiting.push((operation, done));
                drop(batch);
                committed.await.map_err(|_| closed(operation))?.map(|_| ())
            }
            WriteTarget::Own(transaction, counters) => {
                let committed = transaction.commit().await;
                committed.map_err(|error| commit_error(operation, Arc::new(error)))?;
                counters.committed(1);
                Ok(())
            }
        }
    }
}

impl Deref for Write {
    type Target = AnyConnection;

    fn deref(&self) -> &AnyConnection {
        match &self.0 {
            WriteTarget::Shared(batch) => &batch.connection,
            WriteTarget::Own(transaction, _) => transaction,
        }
    }
}

impl DerefMut for Write {
    fn deref_mut(&mut self) -> &mut AnyConnection {
        match &mut self.0 {
            WriteTarget::Shared(batch) => &mut batch.connection,
            WriteTarget::Own(transaction, _) => transaction,
        }
    }
}

impl fmt::Debug for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Write")
    }
}

impl CommitCounters {
    fn committed(&self, writes: usize) {
        let writes = u64::try_from(writes).unwrap_or(u64::MAX);
        self.writes.fetch_add(writes, Ordering::Relaxed);
        self.commits.fetch_add(1, Ordering::Relaxed);
        metrics::counter!("muster_store_writes_total").increment(writes);
        metrics::counter!("muster_store_commits_total").increment(1);
    }
}

// === impl GroupCommitter ===

impl GroupCommitter {
    async fn work(mut self, mut queue: mpsc::Receiver<QueuedWrite>) {
        while let Some(turn) = queue.recv().await {
            match self.open().await {
                Ok(batch) => self.fill(batch, turn, &mut queue).await,
                Err(error) => turn.refuse(error),
            }
        }
    }

    async fn open(&self) -> Result<OpenTransaction, StoreError> {
        Ok(OpenTransaction {
            connection: self.pool.acquire().await.during(BEGIN)?,
            head: Some((begin_statement(&self.pool), self.guard.clone())),
            waiting: Vec::new(),
            missed: Vec::new(),
            has_savepoint: false,
        })
    }

    /// Takes the first write and those that are waiting into one transaction, and commits it.
    async fn fill(
        &mut self,
        batch: OpenTransaction,
        first: QueuedWrite,
        queue: &mut mpsc::Receiver<QueuedWrite>,
    ) {
        let until = Instant::now() + self.limits.open_for.max(self.last);
        let batch = Arc::new(Mutex::new(batch));
        let mut next = Some(first);
        while let Some(turn) = next {
            let left = match turn {
                QueuedWrite::Interactive(turn) => lend(&batch, turn).await,
                QueuedWrite::Scripted(scripted) => batch.lock().await.run_scripted(scripted).await,
            };
            let mut batch = batch.lock().await;
            match left {
                TransactionState::Written => {}
                // The first write has no savepoint before it, so the transaction cannot be used any more.
                TransactionState::Nothing if batch.waiting.is_empty() => return batch.give_up().await,
                TransactionState::Nothing => {}
                TransactionState::Broken(error) => return batch.fail(error).await,
            }
            let room = batch.waiting.len() < self.limits.writes && Instant::now() < until;
            drop(batch);
            // Tasks that are ready to queue a write get the chance to.
            tokio::task::yield_now().await;
            next = if room { queue.try_recv().ok() } else { None };
        }
        let began = Instant::now();
        batch.lock().await.commit(&self.counters).await;
        self.last = began.elapsed();
    }
}

/// Lends the transaction to one caller, and waits until it is back.
async fn lend(batch: &Arc<Mutex<OpenTransaction>>, turn: TransactionLoan) -> TransactionState {
    let mut held = Arc::clone(batch).lock_owned().await;
    let before = held.waiting.len();
    match held.run(Script::default()).await {
        Ok(_) => {}
        Err(ScriptFailure::Refused(error)) => {
            drop(turn.send(Err(error)));
            return TransactionState::Nothing;
        }
        Err(ScriptFailure::Engine(source)) if before == 0 => {
            let operation = BEGIN;
            drop(turn.send(Err(StoreError::Query { operation, source })));
            return TransactionState::Nothing;
        }
        // The caller's channel is dropped, which it sees as a closed pool.
        Err(ScriptFailure::Engine(error)) => return TransactionState::Broken(error),
    }
    // If the caller is gone, the transaction comes back in the error and is dropped.
    drop(turn.send(Ok(held)));
    let mut held = batch.lock().await;
    if held.waiting.len() > before {
        return TransactionState::Written;
    }
    if before > 0
        && let Err(error) = held.roll_back_to_savepoint().await
    {
        // The engine has undone more than this one write.
        return TransactionState::Broken(error);
    }
    TransactionState::Nothing
}

// === impl QueuedWrite ===

impl QueuedWrite {
    /// Answers with the error, if the caller still waits.
    fn refuse(self, error: StoreError) {
        match self {
            Self::Interactive(turn) => drop(turn.send(Err(error))),
            Self::Scripted(scripted) => drop(scripted.done.send(Err(error))),
        }
    }
}

// === impl OpenTransaction ===

impl OpenTransaction {
    /// Runs a caller's script.
    async fn run_scripted(&mut self, scripted: ScriptedWrite) -> TransactionState {
        let ScriptedWrite {
            script,
            rows,
            operation,
            done,
        } = scripted;
        let alone = self.waiting.is_empty();
        match self.run(script).await {
            Ok(written) if written >= rows => {
                self.waiting.push((operation, done));
                return TransactionState::Written;
            }
            Ok(_) => self.missed.push((operation, done)),
            Err(ScriptFailure::Refused(error)) => drop(done.send(Err(error))),
            Err(ScriptFailure::Engine(source)) => {
                drop(done.send(Err(StoreError::Query { operation, source })))
            }
        }
        if !alone && let Err(error) = self.roll_back_to_savepoint().await {
            return TransactionState::Broken(error);
        }
        TransactionState::Nothing
    }

    /// Runs a script behind the beginning of the transaction, or behind a savepoint up to which it can be undone by
    /// itself. Returns the number of rows it wrote.
    async fn run(&mut self, mut script: Script) -> Result<u64, ScriptFailure> {
        let nothing = Script::default();
        let Some((begin, guard)) = self.head.take() else {
            // PostgreSQL refuses the release if a statement of the last write failed and its caller ignored that.
            let marks = match SAVEPOINT {
                [_, rest @ ..] if !self.has_savepoint => rest,
                all => all,
            };
            self.has_savepoint = true;
            let done = script.run_behind(marks, &nothing, &mut self.connection).await;
            return done.map(|(_, rows)| rows).map_err(ScriptFailure::Engine);
        };
        let done = script
            .run_behind(&[begin], &guard.script, &mut self.connection)
            .await;
        match done.map_err(ScriptFailure::Engine)? {
            (0, _) if !guard.script.is_empty() => Err(ScriptFailure::Refused((guard.refusal)())),
            (_, rows) => Ok(rows),
        }
    }

    /// Undoes everything since the savepoint.
    async fn roll_back_to_savepoint(&mut self) -> Result<(), sqlx::Error> {
        self.connection
            .execute("ROLLBACK TO SAVEPOINT write")
            .await
            .map(|_| ())
    }

    async fn commit(&mut self, counters: &CommitCounters) {
        let statement = if self.has_savepoint {
            "RELEASE SAVEPOINT write; COMMIT"
        } else {
            "COMMIT"
        };
        match self.connection.execute(sqlx::raw_sql(statement)).await {
            Ok(_) => {
                counters.committed(self.waiting.len());
                for (_, done) in self.waiting.drain(..) {
                    // The caller may be gone.
                    let _ = done.send(Ok(true));
                }
                self.answer_missed();
            }
            Err(error) => self.fail_with(error, commit_error).await,
        }
    }

    /// Undoes the transaction, which was not asked to commit, and answers all callers with the error.
    async fn fail(&mut self, error: sqlx::Error) {
        let undone = |operation, source| StoreError::Commit { operation, source };
        self.fail_with(error, undone).await;
    }

    async fn fail_with(
        &mut self,
        error: sqlx::Error,
        name: impl Fn(&'static str, Arc<sqlx::Error>) -> StoreError,
    ) {
        self.undo().await;
        let source = Arc::new(error);
        // The rows that the scripts of `missed` met are gone as well, so they get the error too.
        for (operation, done) in self.waiting.drain(..).chain(self.missed.drain(..)) {
            let _ = done.send(Err(name(operation, Arc::clone(&source))));
        }
    }

    /// Undoes a transaction without writes. The rows that the scripts of `missed` met were durable before it.
    async fn give_up(&mut self) {
        self.undo().await;
        self.answer_missed();
    }

    fn answer_missed(&mut self) {
        for (_, done) in self.missed.drain(..) {
            let _ = done.send(Ok(false));
        }
    }

    async fn undo(&mut self) {
        if self.connection.execute("ROLLBACK").await.is_err() {
            // The state of the connection is unknown, so it does not go back to the pool.
            self.connection.close_on_drop();
        }
    }
}

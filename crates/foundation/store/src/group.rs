//! Group commit: writes of one process that meet share one transaction, and so one flush to disk.
//!
//! A [`Writer`] gives turns. Whoever has the turn runs statements through a [`Write`] and then commits it, which ends when the
//! write is durable. Writes that asked for their turn meanwhile go into the same transaction, one behind the other, and all are
//! answered after its one commit. Nobody waits for company: a write that is alone is committed at once, and others gather while
//! the disk is busy with it.
//!
//! A write that is known in full beforehand need not be given its turn: [`Writer::carry`] hands its [`Script`] over, and whoever
//! gives the turns carries it out. That spares two changes of task for each write, which cost more than most statements.
//!
//! Each write stands or falls by itself. One that fails, or whose caller goes away before it asked for the commit, is undone to
//! a savepoint and its neighbours stay. A caller that goes away afterwards gets no answer; its write is committed or not, whole.
//! Only if the commit itself fails do all of its writes fail, and each is told.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::any::Any;
use sqlx::pool::PoolConnection;
use sqlx::{AnyConnection, AnyPool, Executor as _, Transaction};
use tokio::sync::{Mutex, OwnedMutexGuard, mpsc, oneshot};
use tokio::time::Instant;

use super::{During as _, Script, StoreError, begin, begin_statement};
use crate::task::Tasks;

/// Writers that wait for their turn; further ones wait to be let into the queue.
const QUEUE: usize = 1_024;

/// What is carried out at the head of every shared transaction, before its first write. Unless it writes a row, nothing else is
/// written.
#[derive(Clone, Debug)]
pub struct Opening {
    /// The statements.
    pub script: Script,
    /// What whoever wanted to write is told if they write no row.
    pub refusal: fn() -> StoreError,
}

/// How much goes into one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Writes at most.
    pub writes: usize,
    /// How long further writes are taken in, or as long as the last commit took if that was longer: then at least half of the
    /// time goes into writing, and nobody waits for much more than two commits.
    pub open_for: Duration,
}

/// Gives turns to write. Clones give turns of the same queue.
#[derive(Clone)]
pub struct Writer {
    way: Way,
    tally: Arc<Counts>,
}

#[derive(Clone)]
enum Way {
    /// In shared transactions, one after another. Locked from making a script to queueing it, so that what is made later stands
    /// behind what was made before.
    Together(mpsc::Sender<Turn>, Arc<parking_lot::Mutex<()>>),
    /// Each in a transaction and on a connection of its own.
    Apart(AnyPool),
}

/// How often something was written so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Writes that are durable.
    pub writes: u64,
    /// Commits that made them so.
    pub commits: u64,
}

#[derive(Debug, Default)]
struct Counts {
    writes: AtomicU64,
    commits: AtomicU64,
}

/// A turn to write: derefs to the connection. Dropped without [`Write::commit`], what it wrote is undone.
///
/// Ask the pool for nothing while you hold one; see the module above.
pub struct Write(Held);

enum Held {
    Shared(OwnedMutexGuard<Batch>),
    Own(Transaction<'static, Any>, Arc<Counts>),
}

/// Who waits for its turn.
enum Turn {
    /// It writes itself.
    Lent(Lent),
    /// It has said all there is to write.
    Carried(Carried),
}

type Lent = oneshot::Sender<Result<OwnedMutexGuard<Batch>, StoreError>>;

/// A write that is known in full.
struct Carried {
    script: Script,
    /// If fewer rows are written, none are.
    rows: u64,
    operation: &'static str,
    done: Done,
}

/// Who waits for a commit: whether its write stands.
type Done = oneshot::Sender<Result<bool, StoreError>>;

/// What stands before a write that is not the first: what the one before has written stays, and what comes can be undone.
const SAVEPOINT: &[&str] = &["RELEASE SAVEPOINT write", "SAVEPOINT write"];

/// A transaction that is open, and who waits for its commit.
struct Batch {
    connection: PoolConnection<Any>,
    /// What the transaction begins with, until it has begun.
    head: Option<(&'static str, Opening)>,
    /// In the order of their writes, each with what it does in words.
    waiting: Vec<(&'static str, Done)>,
    /// Who has written nothing after all, and hears so once it is durable what its write met.
    missed: Vec<(&'static str, Done)>,
    /// Whether there is a savepoint that the last write stands behind.
    marked: bool,
}

/// The task behind a [`Writer`].
struct Clerk {
    pool: AnyPool,
    opening: Opening,
    bounds: Bounds,
    /// How long the last commit took.
    last: Duration,
    tally: Arc<Counts>,
}

/// Why nothing was handed over.
enum Failed {
    /// The opening wrote nothing.
    Refused(StoreError),
    Engine(sqlx::Error),
}

/// What a turn left.
enum Left {
    /// One more write.
    Written,
    /// Nothing; what was written before stands.
    Nothing,
    /// A transaction that cannot go on.
    Broken(sqlx::Error),
}

/// Completes the sentence "cannot …".
const BEGIN: &str = "begin a transaction";

// === impl Opening, Bounds, Writer ===

impl Default for Opening {
    /// Nothing.
    fn default() -> Self {
        Self {
            script: Script::default(),
            refusal: || StoreError::Superseded,
        }
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            writes: 256,
            open_for: Duration::from_millis(2),
        }
    }
}

impl Writer {
    /// Turns on `pool` as suits its engine. On SQLite all writes share commits: there is one connection. On PostgreSQL each
    /// has a transaction of its own: side by side they share flushes of its log already, and none holds another's rows.
    ///
    /// Needs a runtime.
    pub fn new(pool: &AnyPool) -> Self {
        match begin_statement(pool) {
            super::SQLITE_BEGIN => Self::in_order(pool, Bounds::default(), None),
            _ => Self {
                way: Way::Apart(pool.clone()),
                tally: Arc::default(),
            },
        }
    }

    /// Turns one after another on either engine, for a store whose writes have an order and whose only writer this process
    /// is. `opening` is done at the head of each transaction.
    ///
    /// Needs a runtime.
    pub fn in_order(pool: &AnyPool, bounds: Bounds, opening: Option<Opening>) -> Self {
        let (turns, queue) = mpsc::channel(QUEUE);
        let tally = Arc::default();
        let clerk = Clerk {
            pool: pool.clone(),
            opening: opening.unwrap_or_default(),
            bounds,
            last: Duration::ZERO,
            tally: Arc::clone(&tally),
        };
        // It ends with the last clone of this writer; what is open then is waited for by nobody.
        drop(Tasks::new().spawn("store writer", clerk.work(queue)));
        Self {
            way: Way::Together(turns, Arc::default()),
            tally,
        }
    }

    /// Waits for a turn.
    ///
    /// # Errors
    /// The engine's, or the opening's.
    pub async fn begin(&self) -> Result<Write, StoreError> {
        let turns = match &self.way {
            Way::Together(turns, _) => turns,
            Way::Apart(pool) => return Ok(Write(Held::Own(begin(pool).await?, Arc::clone(&self.tally)))),
        };
        let (turn, ours) = oneshot::channel();
        // The clerk goes only when the runtime does.
        let gone = || closed(BEGIN);
        turns.send(Turn::Lent(turn)).await.map_err(|_| gone())?;
        Ok(Write(Held::Shared(ours.await.map_err(|_| gone())??)))
    }

    /// Writes what `make` says, all of it or nothing, and ends when it is durable. `operation` completes the sentence
    /// "cannot …". `make` is called once there is room in the queue: of two scripts, the one that is made later is carried out
    /// later, so it may number what it writes.
    ///
    /// `false`, and nothing of it is written, if it would write fewer than `rows` rows.
    ///
    /// # Errors
    /// The engine's, the opening's, or the commit failed. See [`Write::commit`].
    pub async fn carry(
        &self,
        operation: &'static str,
        make: impl FnOnce() -> (Script, u64) + Send,
    ) -> Result<bool, StoreError> {
        let (turns, order) = match &self.way {
            Way::Together(turns, order) => (turns, order),
            Way::Apart(pool) => {
                let mut transaction = begin(pool).await?;
                let (mut script, rows) = make();
                if script.run(&mut transaction).await.during(operation)? < rows {
                    transaction.rollback().await.during(operation)?;
                    return Ok(false);
                }
                transaction.commit().await.during(operation)?;
                self.tally.committed(1);
                return Ok(true);
            }
        };
        let (done, committed) = oneshot::channel();
        let place = turns.reserve().await.map_err(|_| closed(operation))?;
        {
            let _order = order.lock();
            let (script, rows) = make();
            place.send(Turn::Carried(Carried {
                script,
                rows,
                operation,
                done,
            }));
        }
        committed.await.map_err(|_| closed(operation))?
    }

    /// How often something was written so far.
    pub fn tally(&self) -> Tally {
        Tally {
            writes: self.tally.writes.load(Ordering::Relaxed),
            commits: self.tally.commits.load(Ordering::Relaxed),
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
        f.debug_tuple("Writer").field(&self.tally()).finish()
    }
}

// === impl Write ===

impl Write {
    /// Ends when what was written is durable. `operation` completes the sentence "cannot …".
    ///
    /// # Errors
    /// The commit failed. Whether anything of it is durable is not known if the engine went away meanwhile.
    pub async fn commit(self, operation: &'static str) -> Result<(), StoreError> {
        match self.0 {
            Held::Shared(mut batch) => {
                let (done, committed) = oneshot::channel();
                batch.waiting.push((operation, done));
                drop(batch);
                committed.await.map_err(|_| closed(operation))?.map(|_| ())
            }
            Held::Own(transaction, tally) => {
                transaction.commit().await.during(operation)?;
                tally.committed(1);
                Ok(())
            }
        }
    }
}

impl Deref for Write {
    type Target = AnyConnection;

    fn deref(&self) -> &AnyConnection {
        match &self.0 {
            Held::Shared(batch) => &batch.connection,
            Held::Own(transaction, _) => transaction,
        }
    }
}

impl DerefMut for Write {
    fn deref_mut(&mut self) -> &mut AnyConnection {
        match &mut self.0 {
            Held::Shared(batch) => &mut batch.connection,
            Held::Own(transaction, _) => transaction,
        }
    }
}

impl fmt::Debug for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Write")
    }
}

impl Counts {
    fn committed(&self, writes: usize) {
        let writes = u64::try_from(writes).unwrap_or(u64::MAX);
        self.writes.fetch_add(writes, Ordering::Relaxed);
        self.commits.fetch_add(1, Ordering::Relaxed);
        metrics::counter!("muster_store_writes_total").increment(writes);
        metrics::counter!("muster_store_commits_total").increment(1);
    }
}

// === impl Clerk ===

impl Clerk {
    async fn work(mut self, mut queue: mpsc::Receiver<Turn>) {
        while let Some(turn) = queue.recv().await {
            match self.open().await {
                Ok(batch) => self.fill(batch, turn, &mut queue).await,
                Err(error) => turn.refuse(error),
            }
        }
    }

    async fn open(&self) -> Result<Batch, StoreError> {
        Ok(Batch {
            connection: self.pool.acquire().await.during(BEGIN)?,
            head: Some((begin_statement(&self.pool), self.opening.clone())),
            waiting: Vec::new(),
            missed: Vec::new(),
            marked: false,
        })
    }

    /// Takes writes into one transaction, the first one and whoever is waiting, and commits.
    async fn fill(&mut self, batch: Batch, first: Turn, queue: &mut mpsc::Receiver<Turn>) {
        let until = Instant::now() + self.bounds.open_for.max(self.last);
        let batch = Arc::new(Mutex::new(batch));
        let mut next = Some(first);
        while let Some(turn) = next {
            let left = match turn {
                Turn::Lent(turn) => lend(&batch, turn).await,
                Turn::Carried(carried) => batch.lock().await.carry(carried).await,
            };
            let mut batch = batch.lock().await;
            match left {
                Left::Written => {}
                // With nothing before it there was no savepoint: the transaction is worth nothing.
                Left::Nothing if batch.waiting.is_empty() => return batch.give_up().await,
                Left::Nothing => {}
                Left::Broken(error) => return batch.fail(error).await,
            }
            let room = batch.waiting.len() < self.bounds.writes && Instant::now() < until;
            drop(batch);
            // Whoever is about to ask, and only has to run for it, still gets in.
            tokio::task::yield_now().await;
            next = if room { queue.try_recv().ok() } else { None };
        }
        let began = Instant::now();
        batch.lock().await.commit(&self.tally).await;
        self.last = began.elapsed();
    }
}

/// Gives one turn, and waits until it is over.
async fn lend(batch: &Arc<Mutex<Batch>>, turn: Lent) -> Left {
    let mut held = Arc::clone(batch).lock_owned().await;
    let before = held.waiting.len();
    match held.hand(Script::default()).await {
        Ok(_) => {}
        Err(Failed::Refused(error)) => {
            drop(turn.send(Err(error)));
            return Left::Nothing;
        }
        Err(Failed::Engine(source)) if before == 0 => {
            let operation = BEGIN;
            drop(turn.send(Err(StoreError::Query { operation, source })));
            return Left::Nothing;
        }
        // Dropped, the turn fails as a commit that did not come.
        Err(Failed::Engine(error)) => return Left::Broken(error),
    }
    // One whose caller is gone comes back in the error, and is over.
    drop(turn.send(Ok(held)));
    let mut held = batch.lock().await;
    if held.waiting.len() > before {
        return Left::Written;
    }
    if before > 0
        && let Err(error) = held.unmark().await
    {
        // The engine has undone more than this one write.
        return Left::Broken(error);
    }
    Left::Nothing
}

// === impl Turn ===

impl Turn {
    /// If whoever waits is gone there is nobody to tell.
    fn refuse(self, error: StoreError) {
        match self {
            Self::Lent(turn) => drop(turn.send(Err(error))),
            Self::Carried(carried) => drop(carried.done.send(Err(error))),
        }
    }
}

// === impl Batch ===

impl Batch {
    /// Writes what somebody else said.
    async fn carry(&mut self, carried: Carried) -> Left {
        let Carried {
            script,
            rows,
            operation,
            done,
        } = carried;
        let alone = self.waiting.is_empty();
        match self.hand(script).await {
            Ok(written) if written >= rows => {
                self.waiting.push((operation, done));
                return Left::Written;
            }
            Ok(_) => self.missed.push((operation, done)),
            Err(Failed::Refused(error)) => drop(done.send(Err(error))),
            Err(Failed::Engine(source)) => drop(done.send(Err(StoreError::Query { operation, source }))),
        }
        if !alone && let Err(error) = self.unmark().await {
            return Left::Broken(error);
        }
        Left::Nothing
    }

    /// Hands a script over behind what has to stand before it: the beginning of the transaction, or a mark up to which what is
    /// written from here on can be undone by itself. How many rows it wrote.
    async fn hand(&mut self, mut script: Script) -> Result<u64, Failed> {
        let nothing = Script::default();
        let Some((begin, opening)) = self.head.take() else {
            // PostgreSQL refuses the release if a statement of the last write failed and its writer did not mind.
            let marks = match SAVEPOINT {
                [_, rest @ ..] if !self.marked => rest,
                all => all,
            };
            self.marked = true;
            let done = script.run_behind(marks, &nothing, &mut self.connection).await;
            return done.map(|(_, rows)| rows).map_err(Failed::Engine);
        };
        let done = script
            .run_behind(&[begin], &opening.script, &mut self.connection)
            .await;
        match done.map_err(Failed::Engine)? {
            (0, _) if !opening.script.is_empty() => Err(Failed::Refused((opening.refusal)())),
            (_, rows) => Ok(rows),
        }
    }

    /// Undoes what was written since.
    async fn unmark(&mut self) -> Result<(), sqlx::Error> {
        self.connection
            .execute("ROLLBACK TO SAVEPOINT write")
            .await
            .map(|_| ())
    }

    async fn commit(&mut self, tally: &Counts) {
        let statement = if self.marked {
            "RELEASE SAVEPOINT write; COMMIT"
        } else {
            "COMMIT"
        };
        match self.connection.execute(sqlx::raw_sql(statement)).await {
            Ok(_) => {
                tally.committed(self.waiting.len());
                for (_, done) in self.waiting.drain(..) {
                    // Who is gone does not want to know.
                    let _ = done.send(Ok(true));
                }
                self.tell_missed();
            }
            Err(error) => self.fail(error).await,
        }
    }

    /// Nothing of it is kept, and everybody is told why.
    async fn fail(&mut self, error: sqlx::Error) {
        self.undo().await;
        let source = Arc::new(error);
        // What was met by those who missed is gone as well.
        for (operation, done) in self.waiting.drain(..).chain(self.missed.drain(..)) {
            let source = Arc::clone(&source);
            let _ = done.send(Err(StoreError::Commit { operation, source }));
        }
    }

    /// Nothing was written. What its writes met was there before.
    async fn give_up(&mut self) {
        self.undo().await;
        self.tell_missed();
    }

    fn tell_missed(&mut self) {
        for (_, done) in self.missed.drain(..) {
            let _ = done.send(Ok(false));
        }
    }

    async fn undo(&mut self) {
        if self.connection.execute("ROLLBACK").await.is_err() {
            // Whatever state it is in, nobody else gets it.
            self.connection.close_on_drop();
        }
    }
}

//! What a validator must not forget: jobs, attempts, receipts, status updates, scored cycles.
//!
//! Everything is here before it is acknowledged or sent. One process writes; its writes follow one another, which keeps the
//! order of status updates, and those that meet share a commit. Who opens the store takes it over: what a process that was
//! killed had on its way to the database is there before the first look, or never.

mod attempts;
mod cycles;
mod gathered;
mod jobs;
mod outbox;
mod receipts;

use std::sync::atomic::AtomicI64;

use muster_chain::BlockNumber;
use muster_process::store::group::{Bounds, Opening, Tally};
use muster_process::store::{self as kit, Script, StoreError, Writer, begin, migrate, open};
use muster_protocol::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::any::AnyRow;
use sqlx::migrate::Migrator;
use sqlx::{Any, AnyPool, Row};
use tokio::sync::watch;

pub use attempts::{Beginning, KeptRoute, Past, Step, StoredAttempt};
pub use cycles::{CycleState, StoredCycle};
pub use gathered::{Harvest, RefusedView};
pub use jobs::{AttemptView, JobView, OpenJob, OpenPage, OutcomeView, Place, StoredJob, Taken};
pub use outbox::Update;
pub use receipts::{OwnReceipt, ReceiptView};

/// The tables, as files beside this crate's source.
pub static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");

type Result<T> = std::result::Result<T, StoreError>;

/// The store of one validator.
#[derive(Debug)]
pub struct Store {
    pool: AnyPool,
    /// The chain whose blocks and cycles are meant: another chain counts its own.
    chain: Mutex<ChainOf>,
    /// Gives turns to write.
    writer: Writer,
    /// The last sequence number of the outbox, counted on by whoever has the turn.
    sequence: AtomicI64,
    /// Counts the writes to the outbox, so that the facilitator link need not poll.
    outbox: watch::Sender<u64>,
}

/// Which chain the blocks are of.
#[derive(Clone, Debug)]
struct ChainOf {
    /// Its genesis hash; the last one seen until a chain has answered, empty if none ever has.
    genesis: String,
    /// The head when it answered first in this process.
    head: Option<BlockNumber>,
}

/// What is to be written in one turn, as it is put together, with the right to number status updates: drafts are carried out
/// in the order in which they are made.
struct Draft<'a> {
    script: Script,
    chain: ChainOf,
    sequence: &'a AtomicI64,
    /// Whether the outbox has something new.
    reported: bool,
}

/// A turn to write, for whoever has to read in between.
struct Write {
    tx: kit::Write,
    chain: ChainOf,
}

impl Store {
    /// Opens and migrates the store at `url` (`sqlite:PATH` or `postgres://…`). See [`Self::for_chain`].
    ///
    /// # Errors
    /// The database does not open or does not migrate.
    pub async fn open(url: &str) -> Result<Self> {
        Self::over(open(url).await?).await
    }

    /// Migrates and uses a pool that is open already.
    ///
    /// # Errors
    /// The database does not migrate.
    pub async fn over(pool: AnyPool) -> Result<Self> {
        migrate(&pool, &MIGRATIONS).await?;
        let epoch = take_over(&pool).await?;
        let row = sqlx::query("SELECT COALESCE(MAX(sequence), 0) AS last FROM outbox")
            .fetch_one(&pool)
            .await
            .map_err(failed("read the outbox"))?;
        let last = column(&row, "last")?;
        let row = sqlx::query("SELECT genesis FROM chains ORDER BY seen_at DESC LIMIT 1")
            .fetch_optional(&pool)
            .await
            .map_err(failed("read which chain was seen last"))?;
        let genesis = row.map(|row| column(&row, "genesis")).transpose()?;
        let chain = ChainOf {
            genesis: genesis.unwrap_or_default(),
            head: None,
        };
        // What a write of this process shows at its head; a later process has a higher one.
        Ok(Self {
            writer: Writer::in_order(&pool, Bounds::default(), Some(still_held(epoch))),
            pool,
            chain: Mutex::new(chain),
            sequence: AtomicI64::new(last),
            outbox: watch::Sender::new(0),
        })
    }

    /// The chain has answered: this is its genesis hash, and its head.
    ///
    /// Receipts that were written before, after the chain of that genesis was last seen or before any was, get their block
    /// now: they count in the present cycle.
    ///
    /// # Errors
    /// The database's.
    pub async fn for_chain(&self, genesis: &str, head: BlockNumber, now: Timestamp) -> Result<()> {
        self.carry("note which chain answers", |draft| {
            draft.script.add(
                "INSERT INTO chains (genesis, seen_at) VALUES ($1, $2) \
                 ON CONFLICT (genesis) DO UPDATE SET seen_at = excluded.seen_at",
                [genesis.into(), now.micros().into()],
            );
            draft.place_receipts(genesis, head);
            // Every later draft sees this chain; if this one fails the process ends.
            *self.chain.lock() = ChainOf {
                genesis: genesis.to_owned(),
                head: Some(head),
            };
        })
        .await
    }

    fn chain(&self) -> ChainOf {
        self.chain.lock().clone()
    }

    async fn write(&self) -> Result<Write> {
        Ok(Write {
            tx: self.writer.begin().await?,
            chain: self.chain(),
        })
    }

    /// Writes what `make` puts into a draft. `operation` completes the sentence "cannot …".
    async fn carry(&self, operation: &'static str, make: impl FnOnce(&mut Draft<'_>) + Send) -> Result<()> {
        self.carried(operation, make, |_| 0).await.map(|_| ())
    }

    /// Likewise, if each of its statements writes a row; else nothing of it is written, and this is `false`.
    async fn carry_whole(
        &self,
        operation: &'static str,
        make: impl FnOnce(&mut Draft<'_>) + Send,
    ) -> Result<bool> {
        self.carried(operation, make, Script::statements).await
    }

    async fn carried(
        &self,
        operation: &'static str,
        make: impl FnOnce(&mut Draft<'_>) + Send,
        rows: impl FnOnce(&Script) -> u64 + Send,
    ) -> Result<bool> {
        let mut reported = false;
        let make = || {
            let mut draft = Draft {
                script: Script::default(),
                chain: self.chain(),
                sequence: &self.sequence,
                reported: false,
            };
            make(&mut draft);
            reported = draft.reported;
            let rows = rows(&draft.script);
            (draft.script, rows)
        };
        let done = self.writer.carry(operation, make).await?;
        if done && reported {
            self.outbox.send_modify(|writes| *writes = writes.wrapping_add(1));
        }
        Ok(done)
    }

    /// Its connections, for the gateway's part of the database.
    pub fn pool(&self) -> AnyPool {
        self.pool.clone()
    }

    /// How much was written, and with how many commits.
    pub fn tally(&self) -> Tally {
        self.writer.tally()
    }

    /// Gives the connections back. What is written is on disk already.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

/// Counts on. A transaction of a process before this one holds the row, and is waited for; the next one finds it changed.
async fn take_over(pool: &AnyPool) -> Result<i64> {
    const OPERATION: &str = "take the store over";
    let mut tx = begin(pool).await?;
    sqlx::query(
        "INSERT INTO owner (one, epoch) VALUES (1, 1) ON CONFLICT (one) DO UPDATE SET epoch = owner.epoch + 1",
    )
    .execute(&mut *tx)
    .await
    .map_err(failed(OPERATION))?;
    let row = sqlx::query("SELECT epoch FROM owner WHERE one = 1")
        .fetch_one(&mut *tx)
        .await
        .map_err(failed(OPERATION))?;
    let epoch = column(&row, "epoch")?;
    tx.commit().await.map_err(failed(OPERATION))?;
    Ok(epoch)
}

/// Refuses to write once a later process has taken the store over.
fn still_held(epoch: i64) -> Opening {
    let mut script = Script::default();
    script.add(
        "UPDATE owner SET epoch = epoch WHERE one = 1 AND epoch = $1",
        [epoch.into()],
    );
    Opening {
        script,
        refusal: || StoreError::Superseded,
    }
}

impl Write {
    async fn commit(self, operation: &'static str) -> Result<()> {
        self.tx.commit(operation).await
    }
}

fn failed(operation: &'static str) -> impl FnOnce(sqlx::Error) -> StoreError {
    move |source| StoreError::Query { operation, source }
}

fn column<'r, T>(row: &'r AnyRow, name: &'static str) -> Result<T>
where
    T: sqlx::Decode<'r, Any> + sqlx::Type<Any>,
{
    row.try_get(name).map_err(|error| corrupt(name, &error))
}

fn corrupt(column: &'static str, reason: &dyn std::fmt::Display) -> StoreError {
    StoreError::corrupt(column, reason.to_string())
}

/// Reads a value through its text form.
fn parsed<T>(row: &AnyRow, name: &'static str) -> Result<T>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    let text: String = column(row, name)?;
    text.parse().map_err(|error| corrupt(name, &error))
}

/// Reads a value that was stored as JSON.
fn json<T: DeserializeOwned>(row: &AnyRow, name: &'static str) -> Result<T> {
    let text: String = column(row, name)?;
    serde_json::from_str(&text).map_err(|error| corrupt(name, &error))
}

/// Likewise, where there may be none.
fn json_option<T: DeserializeOwned>(row: &AnyRow, name: &'static str) -> Result<Option<T>> {
    let text: Option<String> = column(row, name)?;
    text.map(|text| serde_json::from_str(&text).map_err(|error| corrupt(name, &error)))
        .transpose()
}

fn time(row: &AnyRow, name: &'static str) -> Result<Timestamp> {
    column(row, name).map(Timestamp::from_micros)
}

fn time_option(row: &AnyRow, name: &'static str) -> Result<Option<Timestamp>> {
    let micros: Option<i64> = column(row, name)?;
    Ok(micros.map(Timestamp::from_micros))
}

/// The JSON text of a value of ours, all of which have one.
fn text_of<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// A number of blocks or the like as the database counts.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

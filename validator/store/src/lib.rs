//! The validator's store: jobs, attempts, receipts, status updates and scored cycles, in SQLite or PostgreSQL.
//!
//! Every fact is stored before it is acknowledged or sent. Only one process writes, and its writes follow one another,
//! which keeps the order of status updates; writes that come together share a commit. At its start a guard transaction
//! takes the store over from an earlier process: a write that a killed process had sent to the database is applied
//! before the first read, or never.
//!
//! The tables of the gateway, of grading, of spot checks and of cross-checks lie in the same database. Their crates get
//! [`Store::pool`], which only reads, and [`Store::writer`], so no write passes the guard by.

mod attempts;
mod audits;
mod burns;
mod capacity_statements;
mod checkpoints;
mod collateral;
mod cycles;
mod epochs;
mod final_report;
mod gathered_receipts;
mod header_notes;
mod job_views;
mod jobs;
mod lease;
mod ledger;
mod main_hotkeys;
mod open_jobs;
mod outbox;
mod queue;
mod receipt_lines;
mod receipts;
pub mod retention;
mod sightings;
mod snapshots;
mod verdict_exchange;

use std::sync::LazyLock;
use std::sync::atomic::AtomicI64;

use muster_chain::BlockNumber;
use muster_protocol::Timestamp;
use muster_store::columns::read_column;
use muster_store::group_commit::{GroupLimits, TransactionGuard, WriteCounts};
use muster_store::{Script, StoreError, Write, Writer, begin, migrate, migrator, open, read_only};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::AnyPool;
use sqlx::any::AnyRow;
use sqlx::migrate::Migrator;
use tokio::sync::watch;

pub use attempts::{
    AttemptChange, AttemptGroup, EndedOffers, EndedWork, NewAttempt, OfferCount, RouteView, StoredAttempt,
};
pub use audits::{AdoptedAudit, AuditOrigin, EndedConviction, StandingConviction};
pub use burns::BurnedTransfer;
pub use capacity_statements::StoredStatement;
pub use checkpoints::{AttemptBeginning, StoredCheckpoint};
pub use collateral::{BookedTransfers, SlashState, StoredBalance, StoredBook, StoredSlash};
pub use cycles::{CycleState, StoredCycle};
pub use epochs::NamedBlocks;
pub use final_report::ended_attempts;
pub use gathered_receipts::{GatheredFinish, GatheredPage, PlacedReceipt, RefusedView};
pub use header_notes::{HeaderReading, ReadHeader, SecondHeader};
pub use job_views::{AttemptView, JobView, OutcomeView};
pub use jobs::{JobAdmission, OwnJobRestart, StoredJob};
pub use lease::{LEASE, LeaseState, LeaseView, Standby};
pub use ledger::{RestoredMiners, restore_ledger};
pub use muster_job_messages::IssuedReceipt;
pub use muster_subnet_view::burn_reading::BlockRun;
pub use open_jobs::{JobCursor, OpenJob, OpenPage};
pub use outbox::{Acknowledgement, StatusUpdate};
pub use queue::StoredWaitingJob;
pub use receipt_lines::ReceiptPage;
pub use receipts::{ReceiptView, SessionWork};
pub use sightings::{Contradiction, SeenStatement};
pub use snapshots::genesis_digest;
pub use verdict_exchange::{
    AuditOffer, AuthorTally, OfferState, OfferedVerdict, StoredEndorsement, StoredSelfTest,
};

/// The schema, from the files in `migrations`.
pub static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| {
    migrator(&[
        (1, "initial", include_str!("../migrations/0001_initial.sql")),
        (
            2,
            "chains and excuses",
            include_str!("../migrations/0002_chains_and_excuses.sql"),
        ),
        (3, "reveals", include_str!("../migrations/0003_reveals.sql")),
        (
            4,
            "routing and receipts",
            include_str!("../migrations/0004_routing_and_receipts.sql"),
        ),
        (5, "sessions", include_str!("../migrations/0005_sessions.sql")),
        (6, "grading", include_str!("../migrations/0006_grading.sql")),
        (
            7,
            "sessions of jobs",
            include_str!("../migrations/0007_sessions_of_jobs.sql"),
        ),
        (8, "queue", include_str!("../migrations/0008_queue.sql")),
        (10, "retention", include_str!("../migrations/0010_retention.sql")),
        (
            20,
            "account budgets",
            include_str!("../migrations/0020_account_budgets.sql"),
        ),
        (
            21,
            "scoring snapshots",
            include_str!("../migrations/0021_scoring_snapshots.sql"),
        ),
        (22, "epochs", include_str!("../migrations/0022_epochs.sql")),
        (
            23,
            "collateral",
            include_str!("../migrations/0023_collateral.sql"),
        ),
        (24, "pay", include_str!("../migrations/0024_pay.sql")),
        (25, "excuses", include_str!("../migrations/0025_excuses.sql")),
        (
            26,
            "audit verdicts",
            include_str!("../migrations/0026_audit_verdicts.sql"),
        ),
        (
            27,
            "answer log",
            include_str!("../migrations/0027_answer_log.sql"),
        ),
        (
            28,
            "spot checks",
            include_str!("../migrations/0028_spot_checks.sql"),
        ),
        (
            29,
            "checkpoints",
            include_str!("../migrations/0029_checkpoints.sql"),
        ),
        (31, "false ids", include_str!("../migrations/0031_false_ids.sql")),
        (
            32,
            "missing answers",
            include_str!("../migrations/0032_missing_answers.sql"),
        ),
        (
            33,
            "audit indexes",
            include_str!("../migrations/0033_audit_indexes.sql"),
        ),
        (
            34,
            "buckets by time",
            include_str!("../migrations/0034_buckets_by_time.sql"),
        ),
        (
            35,
            "own prompts and news",
            include_str!("../migrations/0035_own_prompts_and_news.sql"),
        ),
        (
            36,
            "receipt quotas",
            include_str!("../migrations/0036_receipt_quotas.sql"),
        ),
        (
            37,
            "life of convictions",
            include_str!("../migrations/0037_life_of_convictions.sql"),
        ),
        (
            38,
            "request pseudonyms",
            include_str!("../migrations/0038_request_pseudonyms.sql"),
        ),
        (
            39,
            "settled convictions",
            include_str!("../migrations/0039_settled_convictions.sql"),
        ),
        (
            40,
            "own checks",
            include_str!("../migrations/0040_own_checks.sql"),
        ),
        (
            41,
            "read bodies",
            include_str!("../migrations/0041_read_bodies.sql"),
        ),
        (
            42,
            "header notes",
            include_str!("../migrations/0042_header_notes.sql"),
        ),
        (43, "own lists", include_str!("../migrations/0043_own_lists.sql")),
        (
            44,
            "lease and calls on their way",
            include_str!("../migrations/0044_lease_and_calls_on_their_way.sql"),
        ),
    ])
});

type Result<T> = std::result::Result<T, StoreError>;

/// The store of one validator.
#[derive(Debug)]
pub struct Store {
    /// Connections that only read. The writer alone has one that writes.
    pool: AnyPool,
    /// The number of this process among those that have led the store.
    epoch: i64,
    /// The chain that the stored blocks and cycles belong to.
    chain: Mutex<ChainIdentity>,
    /// Orders the writes and groups them into commits.
    writer: Writer,
    /// The last sequence number of the outbox. Only the draft that has the turn counts on.
    sequence: AtomicI64,
    /// Counts the writes to the outbox, so that the link to the facilitator need not poll.
    outbox: watch::Sender<u64>,
}

/// The chain that blocks are counted on.
#[derive(Clone, Debug)]
struct ChainIdentity {
    /// The chain's genesis hash. Until a chain has answered, that of the last one seen; empty if none ever answered.
    genesis: String,
    /// The head at the chain's first answer in this process.
    head: Option<BlockNumber>,
}

/// The statements of one write while they are put together, with the right to number status updates: drafts are carried
/// out in the order in which they are made.
struct Draft<'a> {
    script: Script,
    chain: ChainIdentity,
    sequence: &'a AtomicI64,
    /// Whether the draft adds to the outbox.
    reported: bool,
}

/// A transaction, for writes that read in between.
struct Transaction {
    tx: Write,
    chain: ChainIdentity,
}

impl Store {
    /// Opens and migrates the store at `url` (`sqlite:PATH` or `postgres://…`), and takes it over at once, whoever leads
    /// it: for a store that one process has. A validator in PostgreSQL leads by [`Standby::lead`]. See
    /// [`Self::note_chain`].
    ///
    /// # Errors
    /// The database does not open or does not migrate.
    pub async fn open(url: &str) -> Result<Self> {
        Self::with_pool(open(url).await?).await
    }

    /// Migrates, and writes through a pool that is open already.
    ///
    /// # Errors
    /// The database does not migrate, or is in memory.
    pub async fn with_pool(owner: AnyPool) -> Result<Self> {
        let pool = read_only(&owner)?;
        migrate(&owner, &MIGRATIONS).await?;
        let epoch = take_over(&owner).await?;
        Self::of_epoch(&owner, pool, epoch).await
    }

    /// The store of the process that has taken `epoch`. `owner` writes and `pool` only reads.
    async fn of_epoch(owner: &AnyPool, pool: AnyPool, epoch: i64) -> Result<Self> {
        let row = sqlx::query("SELECT COALESCE(MAX(sequence), 0) AS last FROM outbox")
            .fetch_one(&pool)
            .await
            .map_err(query_error("read the outbox"))?;
        let last = read_column(&row, "last")?;
        let row = sqlx::query("SELECT genesis FROM chains ORDER BY seen_at DESC LIMIT 1")
            .fetch_optional(&pool)
            .await
            .map_err(query_error("read which chain was seen last"))?;
        let genesis = row.map(|row| read_column(&row, "genesis")).transpose()?;
        let chain = ChainIdentity {
            genesis: genesis.unwrap_or_default(),
            head: None,
        };
        // Every write of this process begins by checking its epoch; a later process has a higher one.
        Ok(Self {
            writer: Writer::in_order(owner, GroupLimits::default(), Some(ownership_check(epoch))),
            pool,
            epoch,
            chain: Mutex::new(chain),
            sequence: AtomicI64::new(last),
            outbox: watch::Sender::new(0),
        })
    }

    /// Notes that the chain has answered, with its genesis hash and head.
    ///
    /// Receipts that were written while no chain had answered get their block now, unless they belong to another chain:
    /// they count in the present cycle.
    ///
    /// # Errors
    /// The database fails.
    pub async fn note_chain(&self, genesis: &str, head: BlockNumber, now: Timestamp) -> Result<()> {
        self.write("note which chain answers", |draft| {
            draft.script.add(
                "INSERT INTO chains (genesis, seen_at) VALUES ($1, $2) \
                 ON CONFLICT (genesis) DO UPDATE SET seen_at = excluded.seen_at",
                [genesis.into(), now.micros().into()],
            );
            draft.place_receipts(genesis, head);
            // Every later draft sees this chain; if this write fails the process ends.
            *self.chain.lock() = ChainIdentity {
                genesis: genesis.to_owned(),
                head: Some(head),
            };
        })
        .await
    }

    fn chain(&self) -> ChainIdentity {
        self.chain.lock().clone()
    }

    async fn begin(&self) -> Result<Transaction> {
        Ok(Transaction {
            tx: self.writer.begin().await?,
            chain: self.chain(),
        })
    }

    /// Writes what `make` puts into a draft. `operation` completes the sentence "cannot …".
    async fn write(&self, operation: &'static str, make: impl FnOnce(&mut Draft<'_>) + Send) -> Result<()> {
        self.write_draft(operation, make, |_| 0).await.map(|_| ())
    }

    /// Writes what `make` puts into a draft, if each of its statements changes a row; otherwise writes nothing and
    /// returns `false`.
    async fn write_whole(
        &self,
        operation: &'static str,
        make: impl FnOnce(&mut Draft<'_>) + Send,
    ) -> Result<bool> {
        self.write_draft(operation, make, Script::statements).await
    }

    async fn write_draft(
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
        let done = self.writer.run_script(operation, make).await?;
        if done && reported {
            self.outbox.send_modify(|writes| *writes = writes.wrapping_add(1));
        }
        Ok(done)
    }

    /// Connections on which the engine refuses every write, for the tables of the gateway, of grading, of spot checks
    /// and of cross-checks.
    pub fn pool(&self) -> AnyPool {
        self.pool.clone()
    }

    /// The writer, for the same tables and for the janitor. Its writes fail once a later process has taken the store
    /// over.
    pub fn writer(&self) -> Writer {
        self.writer.clone()
    }

    /// The number of writes and of commits so far.
    pub fn tally(&self) -> WriteCounts {
        self.writer.counts()
    }

    /// Closes the connections. Every write is on disk already.
    pub async fn close(&self) {
        self.pool.close().await;
        self.writer.close().await;
    }
}

/// Takes the store over: raises the epoch of its owner, and returns it. Waits for a transaction of an earlier process,
/// which holds the row; that process's next transaction fails.
async fn take_over(pool: &AnyPool) -> Result<i64> {
    const OPERATION: &str = "take the store over";
    let mut tx = begin(pool).await?;
    sqlx::query(
        "INSERT INTO owner (one, epoch) VALUES (1, 1) \
         ON CONFLICT (one) DO UPDATE SET epoch = owner.epoch + 1, holder = NULL, until = NULL",
    )
    .execute(&mut *tx)
    .await
    .map_err(query_error(OPERATION))?;
    let row = sqlx::query("SELECT epoch FROM owner WHERE one = 1")
        .fetch_one(&mut *tx)
        .await
        .map_err(query_error(OPERATION))?;
    let epoch = read_column(&row, "epoch")?;
    tx.commit().await.map_err(query_error(OPERATION))?;
    Ok(epoch)
}

/// The statement at the head of every write, which fails once a later process has taken the store over.
fn ownership_check(epoch: i64) -> TransactionGuard {
    let mut script = Script::default();
    script.add(
        "UPDATE owner SET epoch = epoch WHERE one = 1 AND epoch = $1",
        [epoch.into()],
    );
    TransactionGuard {
        script,
        refusal: || StoreError::Superseded,
    }
}

impl Transaction {
    async fn commit(self, operation: &'static str) -> Result<()> {
        self.tx.commit(operation).await
    }
}

fn query_error(operation: &'static str) -> impl FnOnce(sqlx::Error) -> StoreError {
    move |source| StoreError::Query { operation, source }
}

fn corrupt(column: &'static str, reason: &dyn std::fmt::Display) -> StoreError {
    StoreError::corrupt(column, reason.to_string())
}

/// Reads a value that was stored as JSON, or NULL.
fn parse_json_option<T: DeserializeOwned>(row: &AnyRow, name: &'static str) -> Result<Option<T>> {
    let text: Option<String> = read_column(row, name)?;
    text.map(|text| serde_json::from_str(&text).map_err(|error| corrupt(name, &error)))
        .transpose()
}

/// The JSON text of a value. Serializing the types of the store cannot fail.
fn text_of<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_migration_is_listed() {
        let folder = muster_store::testing::migrations_in("migrations");
        let list = muster_store::testing::list_migrations;
        assert_eq!(list(&MIGRATIONS), list(&folder));
        let contractions = muster_store::testing::contractions(&MIGRATIONS, 43);
        assert_eq!(contractions, Vec::<String>::new());
    }
}

//! The durable state: leases with the histories owed to their validators, receipts, used greetings.

mod memory;
mod page_line;
mod retention;
#[cfg(test)]
mod soak;

use std::collections::HashMap;
use std::sync::LazyLock;

use muster_audit_check::AuditCheckStore;
use muster_protocol::wire::encode;
use muster_protocol::wire::validator_socket::MinerToValidator;
use muster_protocol::{AttemptId, Receipt, ReceiptKind, Signature, Timestamp, ValidatorKey};
use muster_store::retention::Keep;
use muster_store::{During as _, StoreError, Writer, json, migrator};
use sqlx::any::AnyRow;
use sqlx::migrate::Migrator;
use sqlx::{Any, AnyConnection, AnyPool, Row as _};

use crate::lease_table::{HeldLease, LeaseRecord, LeaseStatus, LeaseWrite};
use memory::MemoryStore;
pub use page_line::PageLine;
pub use retention::{GREETED_DAYS, MinerRetention, RECEIPTS_NEEDED_SECS, oldest_kept_page};

/// The tables of a miner.
pub static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| {
    migrator(&[
        (
            1,
            "leases receipts greetings",
            include_str!("../migrations/0001_leases_receipts_greetings.sql"),
        ),
        (
            2,
            "held leases",
            include_str!("../migrations/0002_held_leases.sql"),
        ),
        (3, "audits", include_str!("../migrations/0003_audits.sql")),
        (
            4,
            "greeted validators",
            include_str!("../migrations/0004_greeted_validators.sql"),
        ),
    ])
});

/// A miner's store. Clones are one store.
#[derive(Clone, Debug)]
pub struct Store(StoreBackend);

/// The place where the store keeps its rows.
#[derive(Clone, Debug)]
enum StoreBackend {
    Engine(AnyPool, Writer),
    Memory(MemoryStore),
}

impl Store {
    /// Opens the store at `url` and brings its tables up to date.
    ///
    /// # Errors
    /// The engine cannot be reached, or the tables belong to a newer version.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        let pool = muster_store::open(url).await?;
        muster_store::migrate(&pool, &MIGRATIONS).await?;
        Ok(Self::on(pool))
    }

    /// A store that is gone with the process, for simulations.
    pub fn memory() -> Self {
        Self(StoreBackend::Memory(MemoryStore::default()))
    }

    /// A store on a pool whose tables are up to date.
    pub fn on(pool: AnyPool) -> Self {
        let writer = Writer::new(&pool);
        Self(StoreBackend::Engine(pool, writer))
    }

    /// The tables of validators' spot checks; `None` for a store in memory.
    pub fn audit_check(&self) -> Option<AuditCheckStore> {
        match &self.0 {
            StoreBackend::Engine(pool, _) => Some(AuditCheckStore::new(pool.clone())),
            StoreBackend::Memory(_) => None,
        }
    }

    /// The rules by which receipts go, and the writer for the janitor; `None` for a store in memory.
    pub fn retention(&self, receipts: Keep) -> Option<(MinerRetention, Writer)> {
        match &self.0 {
            StoreBackend::Engine(pool, writer) => {
                let pool = pool.clone();
                Some((MinerRetention { pool, receipts }, writer.clone()))
            }
            StoreBackend::Memory(_) => None,
        }
    }

    /// Ends every connection, which lets SQLite fold its journal into the one file of the store.
    pub async fn close(&self) {
        match &self.0 {
            StoreBackend::Engine(pool, _) => pool.close().await,
            StoreBackend::Memory(_) => {}
        }
    }

    /// Every attempt that is remembered.
    ///
    /// # Errors
    /// The engine failed, or a row was not written by this program.
    pub async fn records(&self) -> Result<Vec<LeaseRecord>, StoreError> {
        let pool = match &self.0 {
            StoreBackend::Engine(pool, _) => pool,
            StoreBackend::Memory(memory) => return Ok(memory.records()),
        };
        let rows = sqlx::query("SELECT attempt, validator, standing, at, held FROM leases ORDER BY attempt")
            .fetch_all(pool)
            .await
            .during("read the leases")?;
        let held =
            sqlx::query("SELECT r.attempt, r.kind FROM receipts r JOIN leases l ON l.attempt = r.attempt")
                .fetch_all(pool)
                .await
                .during("read the kinds of receipts")?;
        let mut kinds = HashMap::<String, Vec<ReceiptKind>>::new();
        for row in held {
            let kind = read_kind(&text(&row, "kind")?)?;
            kinds.entry(text(&row, "attempt")?).or_default().push(kind);
        }
        let mut receipts = open_receipts(pool).await?;
        let record = |row: &AnyRow| -> Result<LeaseRecord, StoreError> {
            let attempt = text(row, "attempt")?;
            let status = read_status(&text(row, "standing")?)?;
            let held = match (status, text(row, "held")?) {
                (LeaseStatus::Open, held) if !held.is_empty() => {
                    read_held(&held, receipts.remove(&attempt).unwrap_or_default())?
                }
                (
                    LeaseStatus::Open | LeaseStatus::Owed | LeaseStatus::Settled | LeaseStatus::Cancelled,
                    _,
                ) => None,
            };
            Ok(LeaseRecord {
                held,
                receipts: kinds.remove(&attempt).unwrap_or_default(),
                attempt: json::parse("leases.attempt", &attempt)?,
                validator: json::parse("leases.validator", &text(row, "validator")?)?,
                status,
                at: Timestamp::from_micros(row.try_get("at").during("read a lease")?),
            })
        };
        rows.iter().map(record).collect()
    }

    /// Makes a batch durable, all of it or nothing. Receipts go to page `page`; those that are new come back as lines,
    /// in order.
    ///
    /// # Errors
    /// The engine failed; then nothing is written.
    pub async fn commit(&self, writes: &[LeaseWrite], page: i64) -> Result<Vec<PageLine>, StoreError> {
        let writer = match &self.0 {
            StoreBackend::Engine(_, writer) => writer,
            StoreBackend::Memory(memory) => return memory.commit(writes, page),
        };
        let mut turn = writer.begin().await?;
        let mut lines = Vec::new();
        for write in writes {
            lines.extend(apply(&mut turn, write, page).await?);
        }
        turn.commit("commit a batch").await?;
        Ok(lines)
    }

    /// The messages owed to the validator of an ended lease, as frames; empty if it is not, or no longer, known.
    ///
    /// # Errors
    /// The engine failed, or a row was not written by this program.
    pub async fn history(&self, attempt: AttemptId) -> Result<Vec<String>, StoreError> {
        let pool = match &self.0 {
            StoreBackend::Engine(pool, _) => pool,
            StoreBackend::Memory(memory) => return Ok(memory.history(attempt)),
        };
        let row = sqlx::query("SELECT story FROM leases WHERE attempt = $1")
            .bind(attempt.to_string())
            .fetch_optional(pool)
            .await
            .during("read a history")?;
        let Some(row) = row else {
            return Ok(vec![]);
        };
        let history = text(&row, "story")?;
        if history.is_empty() {
            return Ok(vec![]);
        }
        let messages: Vec<MinerToValidator> = json::decode("leases.story", &history)?;
        Ok(messages.iter().map(encode).collect())
    }

    /// One receipt of an attempt.
    ///
    /// # Errors
    /// The engine failed, or a row was not written by this program.
    pub async fn receipt(
        &self,
        attempt: AttemptId,
        kind: ReceiptKind,
    ) -> Result<Option<Receipt>, StoreError> {
        let pool = match &self.0 {
            StoreBackend::Engine(pool, _) => pool,
            StoreBackend::Memory(memory) => return Ok(memory.receipt(attempt, kind)),
        };
        let row = sqlx::query("SELECT line FROM receipts WHERE attempt = $1 AND kind = $2")
            .bind(attempt.to_string())
            .bind(kind.as_str())
            .fetch_optional(pool)
            .await
            .during("read a receipt")?;
        row.map(|row| json::decode("receipts.line", &text(&row, "line")?))
            .transpose()
    }

    /// Every line of the pages from `first` on, page by page, in order.
    ///
    /// # Errors
    /// The engine failed.
    pub async fn lines_since(&self, first: i64) -> Result<Vec<PageLine>, StoreError> {
        let pool = match &self.0 {
            StoreBackend::Engine(pool, _) => pool,
            StoreBackend::Memory(memory) => return Ok(memory.lines_since(first)),
        };
        let rows = sqlx::query("SELECT page, line FROM receipts WHERE page >= $1 ORDER BY page, seq")
            .bind(first)
            .fetch_all(pool)
            .await
            .during("read the receipt pages")?;
        let line = |row: &AnyRow| -> Result<PageLine, StoreError> {
            let page = row.try_get("page").during("read a receipt page")?;
            Ok(PageLine {
                page,
                line: text(row, "line")?,
            })
        };
        rows.iter().map(line).collect()
    }

    /// Notes that a greeting was used; false if it was used before. It may be forgotten from `expires` on.
    ///
    /// # Errors
    /// The engine failed; then the greeting must not be accepted.
    pub async fn first_use(&self, greeting: &Signature, expires: Timestamp) -> Result<bool, StoreError> {
        const OPERATION: &str = "note a greeting";
        let writer = match &self.0 {
            StoreBackend::Engine(_, writer) => writer,
            StoreBackend::Memory(memory) => return Ok(memory.first_use(greeting, expires)),
        };
        let mut turn = writer.begin().await?;
        let done =
            sqlx::query("INSERT INTO greetings (signature, expires) VALUES ($1, $2) ON CONFLICT DO NOTHING")
                .bind(greeting.to_prefixed_hex())
                .bind(expires.micros())
                .execute(&mut *turn)
                .await
                .during(OPERATION)?;
        turn.commit(OPERATION).await?;
        Ok(done.rows_affected() == 1)
    }

    /// Notes that a validator has greeted this miner at `now`.
    ///
    /// # Errors
    /// The engine failed.
    pub async fn note_greeted(&self, validator: ValidatorKey, now: Timestamp) -> Result<(), StoreError> {
        let pool = match &self.0 {
            StoreBackend::Engine(pool, _) => pool,
            StoreBackend::Memory(memory) => {
                memory.note_greeted(validator, now);
                return Ok(());
            }
        };
        let statement = "INSERT INTO greeted_validators (validator, greeted_at) VALUES ($1, $2) \
                         ON CONFLICT (validator) DO UPDATE SET greeted_at = excluded.greeted_at";
        sqlx::query(statement)
            .bind(validator.to_string())
            .bind(now.micros())
            .execute(pool)
            .await
            .during("note a validator that greeted")?;
        Ok(())
    }

    /// The validators that have greeted this miner, each with the time of its newest greeting.
    ///
    /// # Errors
    /// The engine failed, or a row was not written by this program.
    pub async fn greeted_validators(&self) -> Result<Vec<(ValidatorKey, Timestamp)>, StoreError> {
        const OPERATION: &str = "read the validators that greeted";
        let pool = match &self.0 {
            StoreBackend::Engine(pool, _) => pool,
            StoreBackend::Memory(memory) => return Ok(memory.greeted_validators()),
        };
        let rows = sqlx::query("SELECT validator, greeted_at FROM greeted_validators")
            .fetch_all(pool)
            .await
            .during(OPERATION)?;
        let read = |row: &AnyRow| {
            let validator = json::parse("greeted_validators.validator", &text(row, "validator")?)?;
            let at: i64 = row.try_get("greeted_at").during(OPERATION)?;
            Ok((validator, Timestamp::from_micros(at)))
        };
        rows.iter().map(read).collect()
    }

    /// Forgets greetings that are too old to be accepted, at most a thousand at a time; the janitor deletes the rest.
    ///
    /// # Errors
    /// The engine failed.
    pub async fn forget_greetings(&self, now: Timestamp) -> Result<(), StoreError> {
        let pool = match &self.0 {
            StoreBackend::Engine(pool, _) => pool,
            StoreBackend::Memory(memory) => {
                memory.forget_greetings(now);
                return Ok(());
            }
        };
        let statement = "DELETE FROM greetings WHERE signature IN \
                         (SELECT signature FROM greetings WHERE expires <= $1 LIMIT 1000)";
        sqlx::query(statement)
            .bind(now.micros())
            .execute(pool)
            .await
            .during("forget old greetings")?;
        Ok(())
    }
}

async fn apply(
    connection: &mut AnyConnection,
    write: &LeaseWrite,
    page: i64,
) -> Result<Option<PageLine>, StoreError> {
    match write {
        LeaseWrite::Opened {
            attempt,
            validator,
            at,
        } => {
            let insert =
                "INSERT INTO leases (attempt, validator, standing, at, story) VALUES ($1, $2, $3, $4, '')";
            let query = sqlx::query::<Any>(insert)
                .bind(attempt.to_string())
                .bind(validator.to_string())
                .bind(LeaseStatus::Open.as_str())
                .bind(at.micros());
            query.execute(connection).await.during("open a lease")?;
            Ok(None)
        }
        LeaseWrite::Held { attempt, snapshot } => {
            let query = sqlx::query("UPDATE leases SET held = $1 WHERE attempt = $2")
                .bind(json::encode("leases.held", snapshot)?)
                .bind(attempt.to_string());
            query.execute(connection).await.during("hold a lease")?;
            Ok(None)
        }
        LeaseWrite::Ended {
            attempt,
            status,
            history,
            at,
        } => {
            let query = sqlx::query(
                "UPDATE leases SET standing = $1, story = $2, at = $3, held = '' WHERE attempt = $4",
            )
            .bind(status.as_str())
            .bind(json::encode("leases.story", history)?)
            .bind(at.micros())
            .bind(attempt.to_string());
            query.execute(connection).await.during("end a lease")?;
            Ok(None)
        }
        LeaseWrite::Settled(attempt) => {
            let query = sqlx::query("UPDATE leases SET standing = $1 WHERE attempt = $2")
                .bind(LeaseStatus::Settled.as_str())
                .bind(attempt.to_string());
            query.execute(connection).await.during("settle a lease")?;
            Ok(None)
        }
        LeaseWrite::Receipt(receipt) => insert_receipt(connection, receipt, page).await,
        LeaseWrite::Forgotten(attempts) => {
            for attempt in attempts {
                let query = sqlx::query("DELETE FROM leases WHERE attempt = $1").bind(attempt.to_string());
                query.execute(&mut *connection).await.during("forget a lease")?;
            }
            Ok(None)
        }
    }
}

async fn insert_receipt(
    connection: &mut AnyConnection,
    receipt: &Receipt,
    page: i64,
) -> Result<Option<PageLine>, StoreError> {
    let line = encode(receipt);
    // `WHERE TRUE` shows SQLite's parser that the ON CONFLICT is not a join's.
    let insert = "INSERT INTO receipts (seq, attempt, kind, page, line) \
                  SELECT COALESCE(MAX(seq), 0) + 1, CAST($1 AS TEXT), CAST($2 AS TEXT), CAST($3 AS BIGINT), \
                  CAST($4 AS TEXT) FROM receipts WHERE TRUE ON CONFLICT (attempt, kind) DO NOTHING";
    let done = sqlx::query(insert)
        .bind(receipt.payload.attempt().to_string())
        .bind(receipt.payload.kind().as_str())
        .bind(page)
        .bind(line.as_str())
        .execute(connection)
        .await
        .during("store a receipt")?;
    Ok((done.rows_affected() == 1).then_some(PageLine { page, line }))
}

/// The receipts of open leases, by attempt.
async fn open_receipts(pool: &AnyPool) -> Result<HashMap<String, Vec<Receipt>>, StoreError> {
    let query = "SELECT r.attempt, r.line FROM receipts r JOIN leases l ON l.attempt = r.attempt WHERE l.standing = $1";
    let rows = sqlx::query(query)
        .bind(LeaseStatus::Open.as_str())
        .fetch_all(pool)
        .await
        .during("read the receipts of open leases")?;
    let mut found = HashMap::<String, Vec<Receipt>>::new();
    for row in rows {
        let receipt = json::decode("receipts.line", &text(&row, "line")?)?;
        found.entry(text(&row, "attempt")?).or_default().push(receipt);
    }
    Ok(found)
}

/// A held lease with its receipts; `None` if its started receipt is missing, which no commit leaves so.
fn read_held(snapshot: &str, receipts: Vec<Receipt>) -> Result<Option<HeldLease>, StoreError> {
    let (mut started, mut accepted) = (None, None);
    for receipt in receipts {
        match receipt.payload.kind() {
            ReceiptKind::Started => started = Some(receipt),
            ReceiptKind::Accepted => accepted = Some(receipt),
            ReceiptKind::Finished => {}
        }
    }
    let Some(started) = started else {
        return Ok(None);
    };
    Ok(Some(HeldLease {
        snapshot: Box::new(json::decode("leases.held", snapshot)?),
        started,
        accepted,
    }))
}

fn text(row: &AnyRow, column: &'static str) -> Result<String, StoreError> {
    row.try_get(column).during("read a text column")
}

fn read_status(word: &str) -> Result<LeaseStatus, StoreError> {
    let found = LeaseStatus::ALL
        .into_iter()
        .find(|status| status.as_str() == word);
    found.ok_or_else(|| StoreError::corrupt("leases.standing", format!("unknown standing {word:?}")))
}

fn read_kind(word: &str) -> Result<ReceiptKind, StoreError> {
    ReceiptKind::from_wire(word)
        .ok_or_else(|| StoreError::corrupt("receipts.kind", format!("unknown kind {word:?}")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use muster_protocol::Hotkey;
    use muster_store::testing::{TestStore, stores};
    use muster_testbed::{Cut, DatabaseRelay};
    use uuid::Uuid;

    use super::*;
    use crate::testing::{miner_pair, offer, validator_pair};

    #[test]
    fn every_migration_is_listed() {
        let folder = muster_store::testing::migrations_in("migrations");
        let list = muster_store::testing::list_migrations;
        assert_eq!(list(&MIGRATIONS), list(&folder));
        let contractions = muster_store::testing::contractions(&MIGRATIONS, 4);
        assert_eq!(contractions, Vec::<String>::new());
    }

    fn attempt(n: u128) -> AttemptId {
        AttemptId::from_uuid(Uuid::from_u128(n))
    }

    fn now() -> Timestamp {
        Timestamp::from_secs(1_767_225_600)
    }

    fn validator() -> ValidatorKey {
        ValidatorKey(validator_pair().hotkey())
    }

    fn started(n: u128) -> Receipt {
        crate::validator_session::complete_started_receipt(
            &miner_pair(),
            &offer(attempt(n)),
            validator(),
            now(),
        )
        .unwrap()
    }

    fn opened(n: u128) -> LeaseWrite {
        LeaseWrite::Opened {
            attempt: attempt(n),
            validator: validator(),
            at: now(),
        }
    }

    fn ended(n: u128, history: Vec<MinerToValidator>) -> LeaseWrite {
        LeaseWrite::Ended {
            attempt: attempt(n),
            status: LeaseStatus::Owed,
            history,
            at: now(),
        }
    }

    /// A store under test: one of an engine, or the one in memory.
    enum Case {
        Engine(TestStore),
        Memory(Store),
    }

    impl Case {
        async fn all() -> Vec<Self> {
            let engines = stores(&MIGRATIONS).await.unwrap().into_iter().map(Self::Engine);
            engines.chain([Self::Memory(Store::memory())]).collect()
        }

        fn store(&self) -> Store {
            match self {
                Self::Engine(test) => Store::on(test.pool.clone()),
                Self::Memory(store) => store.clone(),
            }
        }

        /// As a later process has it.
        async fn reopened(&self) -> Store {
            match self {
                Self::Engine(test) => Store::open(&test.url).await.unwrap(),
                Self::Memory(store) => store.clone(),
            }
        }

        fn name(&self) -> String {
            match self {
                Self::Engine(test) => test.engine.to_string(),
                Self::Memory(_) => "memory".to_owned(),
            }
        }
    }

    #[tokio::test]
    async fn leases_and_their_stories_survive() {
        for test in Case::all().await {
            let store = test.store();
            let history = vec![MinerToValidator::V0AcceptJobRequest(
                muster_protocol::wire::miner::AttemptNotice { job_uuid: attempt(1) },
            )];
            let writes = [
                opened(1),
                LeaseWrite::Receipt(Box::new(started(1))),
                opened(2),
                ended(1, history.clone()),
            ];
            store.commit(&writes, 7).await.unwrap();
            drop(store);
            let store = test.reopened().await;
            let records = store.records().await.unwrap();
            let statuses: Vec<_> = records
                .iter()
                .map(|record| (record.attempt, record.status))
                .collect();
            assert_eq!(
                statuses,
                [(attempt(1), LeaseStatus::Owed), (attempt(2), LeaseStatus::Open)],
                "{}",
                test.name()
            );
            assert_eq!(records[0].receipts, [ReceiptKind::Started]);
            assert_eq!(store.history(attempt(1)).await.unwrap(), [encode(&history[0])]);
            assert_eq!(store.history(attempt(2)).await.unwrap(), Vec::<String>::new());
            assert_eq!(store.history(attempt(3)).await.unwrap(), Vec::<String>::new());

            store
                .commit(
                    &[
                        LeaseWrite::Settled(attempt(1)),
                        LeaseWrite::Forgotten(vec![attempt(2)]),
                    ],
                    7,
                )
                .await
                .unwrap();
            let records = store.records().await.unwrap();
            assert_eq!(records.len(), 1);
            assert_eq!(records[0].status, LeaseStatus::Settled);
        }
    }

    #[tokio::test]
    async fn a_batch_whose_commit_is_not_answered_is_unknown_and_the_next_process_finds_it_or_not() {
        let engines = stores(&MIGRATIONS).await.unwrap();
        let postgres = engines.iter().find(|test| test.engine == "postgres").unwrap();
        let (relay, url) = DatabaseRelay::start(&postgres.url).unwrap();
        for (cut, lease, there) in [(Cut::AfterCommit, 1, true), (Cut::BeforeCommit, 2, false)] {
            let store = Store::open(&url).await.unwrap();
            relay.cut(cut, 0);
            let lost = store.commit(&[opened(lease)], 7).await;
            assert!(
                matches!(lost, Err(StoreError::Unknown { .. })),
                "{cut:?}: {lost:?}"
            );
            let records = Store::open(&url).await.unwrap().records().await.unwrap();
            let found = records.iter().any(|record| record.attempt == attempt(lease));
            assert_eq!(found, there, "{cut:?}");
        }
        assert_eq!(relay.cuts(), 2);
    }

    #[tokio::test]
    async fn a_receipt_is_stored_once_and_pages_keep_its_order() {
        for test in Case::all().await {
            let store = test.store();
            let write = |n| LeaseWrite::Receipt(Box::new(started(n)));
            let first = store.commit(&[write(2), write(1)], 7).await.unwrap();
            assert_eq!(first.len(), 2);
            // The same attempt and kind again, though signed anew, adds nothing.
            let again = store.commit(&[write(1), write(3)], 8).await.unwrap();
            assert_eq!(again.len(), 1);
            let lines = store.lines_since(0).await.unwrap();
            assert_eq!(lines, [first, again].concat(), "{}", test.name());
            assert_eq!(store.lines_since(8).await.unwrap().len(), 1);
            let read = store
                .receipt(attempt(2), ReceiptKind::Started)
                .await
                .unwrap()
                .unwrap();
            assert_eq!(encode(&read), lines[0].line);
            assert_eq!(
                store.receipt(attempt(2), ReceiptKind::Finished).await.unwrap(),
                None
            );
        }
    }

    #[tokio::test]
    async fn a_batch_is_durable_as_a_whole_or_not_at_all() {
        for test in Case::all().await {
            let store = test.store();
            store.commit(&[opened(1)], 7).await.unwrap();
            // The second opening of one attempt breaks the primary key.
            assert!(store.commit(&[opened(2), opened(1)], 7).await.is_err());
            assert_eq!(store.records().await.unwrap().len(), 1, "{}", test.name());
        }
    }

    #[tokio::test]
    async fn a_greeting_is_used_once_until_it_is_forgotten() {
        for test in Case::all().await {
            let store = test.store();
            let greeting = Signature::from_bytes([7; 64]);
            let expires = now().plus(Duration::from_secs(22));
            assert!(store.first_use(&greeting, expires).await.unwrap());
            assert!(
                !test.reopened().await.first_use(&greeting, expires).await.unwrap(),
                "{}",
                test.name()
            );
            store.forget_greetings(now()).await.unwrap();
            assert!(!store.first_use(&greeting, expires).await.unwrap());
            store.forget_greetings(expires).await.unwrap();
            assert!(store.first_use(&greeting, expires).await.unwrap());
        }
    }

    #[tokio::test]
    async fn the_newest_greeting_of_each_validator_outlives_a_restart() {
        for test in Case::all().await {
            let store = test.store();
            let [one, other] = [1, 2].map(|seed| ValidatorKey(Hotkey::from_bytes([seed; 32])));
            let later = now().plus(Duration::from_secs(60));
            for (validator, at) in [(one, now()), (other, now()), (one, later)] {
                store.note_greeted(validator, at).await.unwrap();
            }
            let mut greeted = test.reopened().await.greeted_validators().await.unwrap();
            greeted.sort_unstable();
            assert_eq!(greeted, [(one, later), (other, now())], "{}", test.name());
        }
    }
}

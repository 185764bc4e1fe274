//! The facilitator's store: secrets, used nonces, accounts, jobs with their statuses and output, and validators.
//!
//! The SQL is portable; SQLite and PostgreSQL run the same statements. Races are decided by primary keys, never by
//! locks, so that several facilitators can share one store.

mod account_deletion;
mod answer_reports;
mod api_keys;
mod audit;
mod checks;
mod jobs;
mod live_output;
mod miner_reports;
mod open_work;
mod program_reports;
mod queue_places;
mod quota;
mod replica_messages;
mod reports;
mod retention;
mod settings;
mod usage;
mod validators;
mod web_sessions;
mod webhooks;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use muster_protocol::Timestamp;
use muster_store::group_commit::WriteCounts;
use muster_store::{During as _, StoreError, Writer, migrate, migrator, open};
use parking_lot::Mutex;
use sqlx::AnyPool;
use sqlx::migrate::Migrator;
use uuid::Uuid;

pub use account_deletion::{AccountDeletion, PendingDeletion, deletions_of};
pub use answer_reports::DueAnswerReport;
pub use api_keys::{KeyCreation, KeyOwner, NewKey};
pub use audit::{Actor, AuditAction};
pub use checks::RefundedUsage;
pub use jobs::{
    CancellationOutcome, JobCreation, JobListing, JobSubmission, MAX_PAGE_BYTES, StoredJob, StoredJobPage,
    UpdateOutcome,
};
pub use live_output::{LiveMessage, LogPiece};
pub use miner_reports::StoredMinerReport;
pub use open_work::OpenWork;
pub use queue_places::StoredPlace;
pub use quota::{JobQuota, QuotaExceeded};
pub use replica_messages::{ReplicaListener, ReplicaMessage};
pub use reports::StoredCheatReport;
pub use retention::{FacilitatorRetention, RetentionCutoffs};
pub use settings::{FacilitatorRetentionConfig, LiveConfig};
pub use usage::{DayUsage, TokenPair, TokensExhausted, UsageReservation};
pub use validators::{AnnouncedCapacity, GatewayRecord, REPLICA_BEAT, ValidatorRecord};
pub use web_sessions::{NewWebSession, WebSession, WebSessionEntry, WebSignIn};

/// Every version of the schema, applied in order.
static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| {
    migrator(&[
        (1, "jobs", include_str!("../migrations/0001_jobs.sql")),
        (
            2,
            "accounts and live",
            include_str!("../migrations/0002_accounts_and_live.sql"),
        ),
        (10, "files", include_str!("../migrations/0010_files.sql")),
        (11, "gateways", include_str!("../migrations/0011_gateways.sql")),
        (12, "features", include_str!("../migrations/0012_features.sql")),
        (
            13,
            "image layers",
            include_str!("../migrations/0013_image_layers.sql"),
        ),
        (
            14,
            "queue places",
            include_str!("../migrations/0014_queue_places.sql"),
        ),
        (15, "capacity", include_str!("../migrations/0015_capacity.sql")),
        (
            16,
            "results webhooks machines",
            include_str!("../migrations/0016_results_webhooks_machines.sql"),
        ),
        (
            17,
            "account deletions",
            include_str!("../migrations/0017_account_deletions.sql"),
        ),
        (
            18,
            "token quota",
            include_str!("../migrations/0018_token_quota.sql"),
        ),
        (
            20,
            "gateway times",
            include_str!("../migrations/0020_gateway_times.sql"),
        ),
        (
            21,
            "key rights",
            include_str!("../migrations/0021_key_rights.sql"),
        ),
        (
            22,
            "stored bytes",
            include_str!("../migrations/0022_stored_bytes.sql"),
        ),
        (
            23,
            "web sessions",
            include_str!("../migrations/0023_web_sessions.sql"),
        ),
        (
            24,
            "program reports",
            include_str!("../migrations/0024_program_reports.sql"),
        ),
        (
            25,
            "checks and refunds",
            include_str!("../migrations/0025_checks_and_refunds.sql"),
        ),
        (
            26,
            "checkpoints",
            include_str!("../migrations/0026_checkpoints.sql"),
        ),
        (
            28,
            "answer reports",
            include_str!("../migrations/0028_answer_reports.sql"),
        ),
        (
            29,
            "used bytes",
            include_str!("../migrations/0029_used_bytes.sql"),
        ),
        (
            30,
            "session keys",
            include_str!("../migrations/0030_session_keys.sql"),
        ),
        (
            31,
            "attempt blocks",
            include_str!("../migrations/0031_attempt_blocks.sql"),
        ),
        (32, "jobs name", include_str!("../migrations/0032_jobs_name.sql")),
    ])
});

/// The name of the secret that signs nonces and tokens.
const TOKEN_SECRET: &str = "token";

/// The name of the secret that is the seed of the facilitator's own key.
const SIGNING_SECRET: &str = "signing";

/// The facilitator's store. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Store {
    pool: AnyPool,
    /// Groups concurrent writes into one commit.
    writer: Writer,
    /// The address of the database, for the connection that listens to the other facilitators.
    url: Arc<str>,
    /// The id of this process among those that share the store.
    replica: Arc<str>,
    /// PostgreSQL's channel to the other facilitators; `None` with SQLite, where there are none.
    channel: Option<Arc<str>>,
    /// How many more refunds of each validator are taken before its refunds are counted again.
    refunds_until_recount: Arc<Mutex<HashMap<String, u32>>>,
}

// === impl Store ===

impl Store {
    /// Opens `url` (`sqlite:PATH` or `postgres://…`) and brings its schema up to date.
    ///
    /// # Errors
    /// The database cannot be reached or written, or its schema is of a newer version.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        Self::over(open(url).await?).await
    }

    /// Brings the schema behind `pool` up to date.
    ///
    /// # Errors
    /// See [`Self::open`].
    pub async fn over(pool: AnyPool) -> Result<Self, StoreError> {
        migrate(&pool, &MIGRATIONS).await?;
        let options = pool.connect_options();
        let url = Arc::from(options.database_url.as_str());
        let channel = match options.database_url.scheme() {
            "sqlite" => {
                // SQLite serves one process, so every connection recorded before ended with the last process.
                sqlx::query("UPDATE validators SET replica = ''")
                    .execute(&pool)
                    .await
                    .during("take over the validators")?;
                None
            }
            _ => Some(Arc::from(replica_messages::channel(&pool).await?)),
        };
        Ok(Self {
            writer: Writer::new(&pool),
            pool,
            url,
            replica: Arc::from(Uuid::new_v4().simple().to_string()),
            channel,
            refunds_until_recount: Arc::default(),
        })
    }

    /// The secret of the facilitator's tokens: the stored one, or `drawn`, which is then stored.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn token_secret(&self, drawn: [u8; 32]) -> Result<Vec<u8>, StoreError> {
        self.secret(TOKEN_SECRET, drawn).await
    }

    /// The seed of the facilitator's own key: the stored one, or `drawn`, which is then stored.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn signing_seed(&self, drawn: [u8; 32]) -> Result<[u8; 32], StoreError> {
        let seed = self.secret(SIGNING_SECRET, drawn).await?;
        seed.try_into()
            .map_err(|_| StoreError::corrupt("secrets.value", "a seed has 32 bytes"))
    }

    /// The secret with this name: the stored one, or `drawn`, which is then stored.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn secret(&self, name: &str, drawn: [u8; 32]) -> Result<Vec<u8>, StoreError> {
        sqlx::query("INSERT INTO secrets (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING")
            .bind(name)
            .bind(hex::encode(drawn))
            .execute(&self.pool)
            .await
            .during("store a secret")?;
        let (value,): (String,) = sqlx::query_as("SELECT value FROM secrets WHERE name = $1")
            .bind(name)
            .fetch_one(&self.pool)
            .await
            .during("read a secret")?;
        hex::decode(value).map_err(|error| StoreError::corrupt("secrets.value", error))
    }

    /// Marks a nonce that expires at `end` as used. Returns `false` if it was used before. The check of a nonce's text
    /// rejects an expired one, so the janitor deletes those that have expired.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn use_nonce(&self, nonce: &str, end: Timestamp) -> Result<bool, StoreError> {
        let mut write = self.writer.begin().await?;
        let done = sqlx::query(
            "INSERT INTO used_nonces (nonce, expires_at) VALUES ($1, $2) ON CONFLICT (nonce) DO NOTHING",
        )
        .bind(nonce)
        .bind(end.micros())
        .execute(&mut *write)
        .await
        .during("use a nonce")?;
        write.commit("use a nonce").await?;
        Ok(done.rows_affected() == 1)
    }

    /// The number of grouped writes and of their commits.
    pub fn tally(&self) -> WriteCounts {
        self.writer.counts()
    }

    /// The writer, for the janitor.
    pub fn writer(&self) -> Writer {
        self.writer.clone()
    }

    /// The connections, for the file store's tables in the same database.
    pub fn pool(&self) -> AnyPool {
        self.pool.clone()
    }

    /// Checks that the database answers.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn ping(&self) -> Result<(), StoreError> {
        sqlx::query("SELECT 1")
            .execute(&self.pool)
            .await
            .during("answer a health check")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_migration_is_listed() {
        let folder = muster_store::testing::migrations_in("migrations");
        let list = muster_store::testing::list_migrations;
        assert_eq!(list(&MIGRATIONS), list(&folder));
        let contractions = muster_store::testing::contractions(&MIGRATIONS, 32);
        assert_eq!(contractions, Vec::<String>::new());
    }
}

//! What must survive the process: the key of the tokens, used nonces, signs of life, jobs and their statuses.
//!
//! The SQL is portable; SQLite and PostgreSQL run the same statements. Whoever must be first says so with a primary key,
//! never with a lock, so that several facilitators can share one store.

mod api_keys;
mod jobs;
mod live_output;
mod replica_messages;
mod reports;
mod validators;

use std::sync::Arc;

use muster_process::store::group::Tally;
use muster_process::store::{During as _, StoreError, Writer, migrate, open};
use muster_protocol::Timestamp;
use sqlx::AnyPool;
use sqlx::migrate::Migrator;
use uuid::Uuid;

pub use api_keys::{Actor, AuditAction, DayUsage, JobQuota, QuotaExceeded};
pub use jobs::{
    CancellationOutcome, JobCreation, JobListing, JobSubmission, MAX_PAGE_BYTES, Page, StoredJob,
    UpdateOutcome,
};
pub use live_output::{LiveMessage, LogPiece};
pub use replica_messages::{ReplicaListener, ReplicaMessage};
pub use validators::{AnnouncedGateway, REPLICA_BEAT, ValidatorRecord};

/// Every version of the schema, applied in order.
static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");

/// The secret that signs nonces and tokens.
const TOKEN_SECRET: &str = "token";

/// The secret that this facilitator's own key is made of.
const SIGNING_SECRET: &str = "signing";

/// The facilitator's store. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Store {
    pool: AnyPool,
    /// Gives turns to write, so that requests that meet share a commit.
    writer: Writer,
    /// Where it is, for the one connection that listens.
    url: Arc<str>,
    /// The name of this process among those that share the store.
    replica: Arc<str>,
    /// Where PostgreSQL tells the others; `None` where there can be no others.
    channel: Option<Arc<str>>,
}

// === impl Store ===

impl Store {
    /// Opens `url` (`sqlite:PATH` or `postgres://…`) and brings its schema up to date.
    ///
    /// # Errors
    /// It cannot be reached, written, or is of a newer version.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        Self::over(open(url).await?).await
    }

    /// Brings the schema behind `pool` up to date.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn over(pool: AnyPool) -> Result<Self, StoreError> {
        migrate(&pool, &MIGRATIONS).await?;
        let options = pool.connect_options();
        let url = Arc::from(options.database_url.as_str());
        let channel = match options.database_url.scheme() {
            "sqlite" => {
                // A store of one process: whoever held a connection before has died with it.
                sqlx::query("UPDATE validators SET replica = ''")
                    .execute(&pool)
                    .await
                    .during("take the validators over")?;
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
        })
    }

    /// The secret of this facilitator's tokens: `drawn` if nobody has stored one before, the same for all ever after.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn token_secret(&self, drawn: [u8; 32]) -> Result<Vec<u8>, StoreError> {
        self.secret(TOKEN_SECRET, drawn).await
    }

    /// The seed of this facilitator's own key: `drawn` if nobody has stored one before.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn signing_seed(&self, drawn: [u8; 32]) -> Result<[u8; 32], StoreError> {
        let seed = self.secret(SIGNING_SECRET, drawn).await?;
        seed.try_into()
            .map_err(|_| StoreError::corrupt("secrets.value", "a seed has 32 bytes"))
    }

    /// A secret of this facilitator: `drawn` if nobody has stored one of that name before, the same for all ever after.
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

    /// Uses up a nonce that ends at `end`. `false` if it has been used before.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn use_nonce(&self, nonce: &str, end: Timestamp, now: Timestamp) -> Result<bool, StoreError> {
        let mut write = self.writer.begin().await?;
        // A nonce past its end is refused by its own text and need not be remembered.
        sqlx::query("DELETE FROM used_nonces WHERE expires_at < $1")
            .bind(now.micros())
            .execute(&mut *write)
            .await
            .during("forget old nonces")?;
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

    /// How much was written in turns, and with how many commits.
    pub fn tally(&self) -> Tally {
        self.writer.tally()
    }

    /// Its connections, for the tables that a crate of its own keeps in the same database.
    pub fn pool(&self) -> AnyPool {
        self.pool.clone()
    }

    /// Whether the store answers at all.
    ///
    /// # Errors
    /// It does not.
    pub async fn ping(&self) -> Result<(), StoreError> {
        sqlx::query("SELECT 1")
            .execute(&self.pool)
            .await
            .during("answer a health check")?;
        Ok(())
    }
}

//! What must survive the process: the key of the tokens, used nonces, signs of life, jobs and their statuses.
//!
//! The SQL is portable; SQLite and PostgreSQL run the same statements. Whoever must be first says so with a primary key,
//! never with a lock, so that several facilitators can share one store.

mod jobs;

use muster_kit::store::{During as _, StoreError, migrate, open};
use muster_protocol::{Timestamp, ValidatorKey};
use sqlx::AnyPool;
use sqlx::migrate::Migrator;

pub use jobs::{Listed, MAX_PAGE_BYTES, Page, Recorded, StoredJob};

/// Every version of the schema, applied in order.
static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");

/// The secret that signs nonces and tokens.
const TOKEN_SECRET: &str = "token";

/// The facilitator's store. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Store {
    pool: AnyPool,
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
        Ok(Self { pool })
    }

    /// The secret of this facilitator's tokens: `drawn` if nobody has stored one before, the same for all ever after.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn token_secret(&self, drawn: [u8; 32]) -> Result<Vec<u8>, StoreError> {
        self.secret(TOKEN_SECRET, drawn).await
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
        // A nonce past its end is refused by its own text and need not be remembered.
        sqlx::query("DELETE FROM used_nonces WHERE expires_at < $1")
            .bind(now.micros())
            .execute(&self.pool)
            .await
            .during("forget old nonces")?;
        let done = sqlx::query(
            "INSERT INTO used_nonces (nonce, expires_at) VALUES ($1, $2) ON CONFLICT (nonce) DO NOTHING",
        )
        .bind(nonce)
        .bind(end.micros())
        .execute(&self.pool)
        .await
        .during("use a nonce")?;
        Ok(done.rows_affected() == 1)
    }

    /// Notes a validator's sign of life.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn saw(&self, validator: ValidatorKey, now: Timestamp) -> Result<(), StoreError> {
        let statement = "INSERT INTO validators (hotkey, seen_at) VALUES ($1, $2) \
                         ON CONFLICT (hotkey) DO UPDATE SET seen_at = excluded.seen_at";
        sqlx::query(statement)
            .bind(validator.to_string())
            .bind(now.micros())
            .execute(&self.pool)
            .await
            .during("note a heartbeat")?;
        Ok(())
    }

    /// When a validator last gave a sign of life; `None` if it never did.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn last_seen(&self, validator: ValidatorKey) -> Result<Option<Timestamp>, StoreError> {
        let row: Option<(i64,)> = sqlx::query_as("SELECT seen_at FROM validators WHERE hotkey = $1")
            .bind(validator.to_string())
            .fetch_optional(&self.pool)
            .await
            .during("read a heartbeat")?;
        Ok(row.map(|(seen_at,)| Timestamp::from_micros(seen_at)))
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

//! Stores: SQLite with no setup, PostgreSQL beyond one machine, the same SQL on both.
//!
//! # SQL that both engines understand
//!
//! * Columns are `TEXT` and `BIGINT` only. Times are microseconds in `BIGINT`; ids, keys and JSON are `TEXT`, so that
//!   the order of a signed object's keys survives. A flag is a `BIGINT` of 0 or 1.
//! * Placeholders are `$1`, `$2`, …
//! * Upserts are `INSERT … ON CONFLICT (…) DO NOTHING` or `DO UPDATE SET x = excluded.x`; ask `rows_affected()` who won.
//! * A sum is a `NUMERIC` in PostgreSQL: write `CAST(SUM(x) AS BIGINT)`. `COUNT(*)` is a `BIGINT` already.
//! * There is no `AUTOINCREMENT`: ids are our own, or `COALESCE(MAX(seq), 0) + 1` inside the transaction that inserts.
//! * An expression whose type only its parameter decides needs `CAST($1 AS BIGINT)` or `CAST($1 AS TEXT)`.
//!
//! # Transactions
//!
//! [`begin`] opens one that may read and then write. On SQLite it takes the write lock at once, so whoever is inside
//! is alone. On PostgreSQL others run beside it at READ COMMITTED: never read a value, compute, and write it back, but
//! say the condition in the statement (`UPDATE … WHERE id = $1 AND state = $2`) and look at `rows_affected()`.
//!
//! A SQLite store belongs to one process and has **one** connection, which makes "database is locked" impossible within a process. Therefore
//! never ask the pool for anything while holding a transaction or a stream of rows from it: it would wait for itself
//! until the pool's time-out. Pass `&mut *transaction` down instead.
//!
//! Where many write at once, take turns of a [`group::Writer`] in place of [`begin`]: they share commits.

mod engine;
mod error;
pub mod group;
pub mod json;
mod script;
pub mod testing;

use std::time::Duration;

use sqlx::any::{Any, AnyPoolOptions, install_default_drivers};
use sqlx::migrate::Migrator;
use sqlx::{AnyConnection, AnyPool, Connection as _, Executor as _, Transaction};

use engine::Engine;
pub use error::{During, StoreError};
pub use group::{Write, Writer};
pub use script::{Script, Value};

/// Connections to PostgreSQL of one role. Each role is one process with short statements.
const POSTGRES_CONNECTIONS: u32 = 10;
/// Longer than any statement of ours; a wait of this length is a connection held where it must not be.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(15);

/// Durable once committed, also through a power cut; readers of other processes do not disturb the writer.
const SQLITE_PRAGMAS: &str = "PRAGMA busy_timeout = 5000; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; \
                              PRAGMA foreign_keys = ON;";

/// Opens the store at `url`: `sqlite:PATH` (made if it is missing, its folder too) or `postgres://…`.
///
/// Roles that share one PostgreSQL database each take a schema of their own: `…/muster?options[search_path]=miner`.
///
/// # Errors
/// The URL is neither, or the engine cannot be reached.
pub async fn open(url: &str) -> Result<AnyPool, StoreError> {
    install_default_drivers();
    let engine = Engine::of(url)?;
    engine.make_folder()?;
    let connections = match engine {
        Engine::Sqlite { .. } => 1,
        Engine::Postgres { .. } => POSTGRES_CONNECTIONS,
    };
    let url = engine.connection_url();
    let failed = |source| StoreError::Open {
        store: engine.to_string(),
        source,
    };
    // The pool tries again and again and then only says that time ran out; one connection says why.
    let probed = tokio::time::timeout(ACQUIRE_TIMEOUT, probe(&url)).await;
    probed
        .map_err(|_| sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()))
        .flatten()
        .map_err(failed)?;
    AnyPoolOptions::new()
        .max_connections(connections)
        // A file does not go away as a server may; asking it first would cost as much as the question itself.
        .test_before_acquire(matches!(engine, Engine::Postgres { .. }))
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .after_connect(|connection, _| Box::pin(prepare(connection)))
        .connect(&url)
        .await
        .map_err(failed)
}

async fn probe(url: &str) -> Result<(), sqlx::Error> {
    let mut connection = AnyConnection::connect(url).await?;
    prepare(&mut connection).await?;
    connection.close().await
}

async fn prepare(connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
    if connection.backend_name() == "SQLite" {
        connection.execute(sqlx::raw_sql(SQLITE_PRAGMAS)).await?;
    }
    Ok(())
}

/// Brings the tables up to date. Processes that start together on one PostgreSQL database wait for one another.
///
/// # Errors
/// A migration fails, or one that ran before has been changed since.
pub async fn migrate(pool: &AnyPool, migrator: &Migrator) -> Result<(), StoreError> {
    migrator.run(pool).await.map_err(StoreError::Migrate)
}

/// Begins a transaction that may write. Dropping it without `commit` undoes it.
///
/// # Errors
/// The engine is gone, or the pool's connections are all held.
pub async fn begin(pool: &AnyPool) -> Result<Transaction<'static, Any>, StoreError> {
    pool.begin_with(begin_statement(pool))
        .await
        .during("begin a transaction")
}

/// A plain BEGIN in SQLite takes the write lock at its first write, which fails if another process wrote meanwhile.
const SQLITE_BEGIN: &str = "BEGIN IMMEDIATE";

fn begin_statement(pool: &AnyPool) -> &'static str {
    match pool.connect_options().database_url.scheme() {
        "sqlite" => SQLITE_BEGIN,
        _ => "BEGIN",
    }
}

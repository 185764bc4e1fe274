//! Stores: SQLite with no setup, PostgreSQL beyond one machine, the same SQL on both.
//!
//! # SQL that both engines understand
//!
//! * Columns are `TEXT` and `BIGINT` only. Times are microseconds in `BIGINT`; ids, keys and JSON are `TEXT`, so that
//!   the order of a signed object's keys survives. A flag is a `BIGINT` of 0 or 1.
//! * Placeholders are `$1`, `$2`, …
//! * Upserts are `INSERT … ON CONFLICT (…) DO NOTHING` or `DO UPDATE SET x = excluded.x`; `rows_affected()` shows
//!   whether the row is new.
//! * A sum is a `NUMERIC` in PostgreSQL: write `CAST(SUM(x) AS BIGINT)`. `COUNT(*)` is a `BIGINT` already.
//! * There is no `AUTOINCREMENT`: ids are our own, or `COALESCE(MAX(seq), 0) + 1` inside the transaction that inserts.
//! * An expression whose type only its parameter decides needs `CAST($1 AS BIGINT)` or `CAST($1 AS TEXT)`.
//!
//! # Transactions and connections
//!
//! [`begin`] opens one that may read and then write. On SQLite it takes the write lock at once, so it runs alone. On
//! PostgreSQL others run beside it at READ COMMITTED: never read a value, compute, and write it back, but put the
//! condition into the statement (`UPDATE … WHERE id = $1 AND state = $2`) and look at `rows_affected()`.
//!
//! A SQLite store belongs to one process and has **one** connection that writes, which makes "database is locked"
//! impossible within a process. Therefore never ask its pool for anything while holding a transaction or a stream of
//! rows from it: the call would wait for itself until the pool's time-out. Pass `&mut *transaction` down instead.
//!
//! Where many tasks write at once, use a [`group_commit::Writer`] in place of [`begin`]: its writes share commits.
//!
//! A store that only one process may write to gives its parts a [`Writer`], whose guard refuses a superseded process,
//! and [`read_only`] connections, on which the engine refuses every write. On SQLite these read beside the one
//! connection of the writer and see what was committed.

pub mod backup;
pub mod columns;
mod error;
pub mod group_commit;
pub mod json;
mod migrations;
pub mod retention;
pub mod size;
mod statement_batch;
mod store_url;
pub mod testing;

use std::time::Duration;

use sqlx::any::{Any, AnyPoolOptions, install_default_drivers};
use sqlx::error::DatabaseError;
use sqlx::migrate::Migrator;
use sqlx::{AnyConnection, AnyPool, Connection as _, Executor as _, Transaction};

pub use error::{During, StoreError};
pub use group_commit::{Write, Writer};
pub use migrations::migrator;
pub use statement_batch::{Script, Value};
use store_url::StoreUrl;

/// Connections to PostgreSQL of one role. Each role is one process with short statements.
const POSTGRES_CONNECTIONS: u32 = 10;
/// Connections to a SQLite file that read beside the one that writes.
const SQLITE_READERS: u32 = 4;
/// Longer than any statement of ours: a wait of this length means that a connection is held where it must not be.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(15);

/// Durable once committed, also through a power cut; readers of other processes do not disturb the writer.
const SQLITE_PRAGMAS: &str = "PRAGMA busy_timeout = 5000; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; \
                              PRAGMA foreign_keys = ON;";
/// A reader waits for a lock as the writer does, and writes nothing.
const SQLITE_READER_PRAGMAS: &str = "PRAGMA busy_timeout = 5000; PRAGMA query_only = ON;";
/// Holds for every transaction of the connection, and for every statement outside of one.
const POSTGRES_READER_SETTING: &str = "SET default_transaction_read_only = on";
/// The server undoes a transaction whose client has gone without a word, and frees the rows that it held: a successor
/// waits for them. No transaction of ours waits for anything but its own statements. The numbers are milliseconds and
/// seconds; a server without `tcp_user_timeout` (before PostgreSQL 12) is not supported.
const POSTGRES_SETTINGS: &str = "SET idle_in_transaction_session_timeout = 10000; SET tcp_user_timeout = 10000; \
                                 SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3;";

/// Opens the store at `url`: `sqlite:PATH` (created with its folder if it is missing) or `postgres://…`.
///
/// Roles that share one PostgreSQL database each take a schema of their own: `…/muster?options[search_path]=miner`.
///
/// # Errors
/// The URL has another form, or the engine cannot be reached.
pub async fn open(url: &str) -> Result<AnyPool, StoreError> {
    install_default_drivers();
    let store = StoreUrl::parse(url)?;
    store.make_private_file()?;
    let (connections, is_file) = match store {
        StoreUrl::Sqlite { .. } => (1, true),
        StoreUrl::Postgres { .. } => (POSTGRES_CONNECTIONS, false),
    };
    let options = pool_options(connections, is_file);
    connect(
        &store,
        options.after_connect(|connection, _| Box::pin(prepare(connection))),
    )
    .await
}

/// Opens the store at `url` for a process that only reads: it makes no file, and the engine refuses every write.
///
/// # Errors
/// [`StoreError::Missing`] if there is none; else as [`open`].
pub async fn open_reader(url: &str) -> Result<AnyPool, StoreError> {
    install_default_drivers();
    check_existing(url)?;
    let store = StoreUrl::parse(url)?;
    let (connections, is_file) = match store {
        StoreUrl::Sqlite { .. } => (SQLITE_READERS, true),
        StoreUrl::Postgres { .. } => (POSTGRES_CONNECTIONS, false),
    };
    let options = pool_options(connections, is_file);
    connect(
        &store,
        options.after_connect(|connection, _| Box::pin(prepare_reader(connection))),
    )
    .await
}

async fn connect(store: &StoreUrl, options: AnyPoolOptions) -> Result<AnyPool, StoreError> {
    let url = store.connection_url();
    let failed = |source| StoreError::Open {
        store: store.to_string(),
        source,
    };
    // The pool retries and then reports only that time ran out; a single connection reports why.
    let probed = tokio::time::timeout(ACQUIRE_TIMEOUT, probe(&url)).await;
    probed
        .map_err(|_| sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()))
        .flatten()
        .map_err(failed)?;
    options.connect(&url).await.map_err(failed)
}

/// Opens a store that is there, for a command beside its role: it makes no file and no folder.
///
/// # Errors
/// [`StoreError::Missing`] if there is none; else as [`open`].
pub async fn open_existing(url: &str) -> Result<AnyPool, StoreError> {
    check_existing(url)?;
    open(url).await
}

/// Checks that the file of a SQLite store is there. A store in PostgreSQL is asked when it is opened.
///
/// # Errors
/// [`StoreError::Missing`]; the URL has another form.
pub fn check_existing(url: &str) -> Result<(), StoreError> {
    match StoreUrl::parse(url)? {
        StoreUrl::Sqlite { path: Some(path) } if !path.exists() => {
            let path = std::path::absolute(&path).unwrap_or(path);
            Err(StoreError::Missing { path })
        }
        StoreUrl::Sqlite { .. } | StoreUrl::Postgres { .. } => Ok(()),
    }
}

fn pool_options(connections: u32, is_file: bool) -> AnyPoolOptions {
    AnyPoolOptions::new()
        .max_connections(connections)
        // A server may go away, a file does not; testing the connection to a file would cost as much as the statement.
        .test_before_acquire(!is_file)
        .acquire_timeout(ACQUIRE_TIMEOUT)
}

/// Further connections to the store of `pool`, on which the engine refuses every write. They open when they are needed,
/// and see what is committed.
///
/// # Errors
/// The store is in memory, where each connection has a store of its own.
pub fn read_only(pool: &AnyPool) -> Result<AnyPool, StoreError> {
    let options = pool.connect_options();
    let connections = match options.database_url.as_str() {
        store_url::SQLITE_MEMORY => {
            return Err(StoreError::Url(
                "a store in memory has one connection, and this role reads beside its writer; name a file",
            ));
        }
        _ if is_sqlite(pool) => SQLITE_READERS,
        _ => POSTGRES_CONNECTIONS,
    };
    Ok(pool_options(connections, is_sqlite(pool))
        .after_connect(|connection, _| Box::pin(prepare_reader(connection)))
        .connect_lazy_with((*options).clone()))
}

async fn probe(url: &str) -> Result<(), sqlx::Error> {
    let mut connection = AnyConnection::connect(url).await?;
    prepare(&mut connection).await?;
    connection.close().await
}

async fn prepare(connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
    let settings = match connection.backend_name() {
        "SQLite" => SQLITE_PRAGMAS,
        _ => POSTGRES_SETTINGS,
    };
    connection.execute(sqlx::raw_sql(settings)).await?;
    Ok(())
}

async fn prepare_reader(connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
    let settings = match connection.backend_name() {
        "SQLite" => SQLITE_READER_PRAGMAS,
        _ => POSTGRES_READER_SETTING,
    };
    connection.execute(sqlx::raw_sql(settings)).await?;
    Ok(())
}

/// Brings the tables up to date. Processes that start together on one PostgreSQL database migrate one after another.
///
/// # Errors
/// A migration fails, or a migration that has run was changed since; the store is of a newer version of this program.
pub async fn migrate(pool: &AnyPool, migrator: &Migrator) -> Result<(), StoreError> {
    let known = newest_known(migrator);
    let found = newest_migration(pool, migrator).await?;
    migrator.run(pool).await.map_err(StoreError::Migrate)?;
    if let Some(found) = found.filter(|found| *found < known) {
        tracing::info!(
            from = found,
            to = known,
            "the store was migrated; an older version of this program refuses it from now on"
        );
    }
    Ok(())
}

/// The newest migration that the store has had; `None` for a store without tables.
///
/// # Errors
/// The engine does not answer; the store is of a newer version of this program, which knows `migrator`.
pub async fn newest_migration(pool: &AnyPool, migrator: &Migrator) -> Result<Option<i64>, StoreError> {
    const OPERATION: &str = "read which migrations the store has had";
    let newest = "SELECT MAX(version) FROM _sqlx_migrations";
    let found: Option<i64> = match sqlx::query_scalar(newest).fetch_one(pool).await {
        Ok(found) => found,
        // A store that is new has no such table; any other failure is the engine's.
        Err(sqlx::Error::Database(error)) if is_missing_table(&*error) => None,
        Err(source) => {
            return Err(StoreError::Query {
                operation: OPERATION,
                source,
            });
        }
    };
    let known = newest_known(migrator);
    match found {
        Some(found) if found > known => Err(StoreError::Newer { found, known }),
        found => Ok(found),
    }
}

/// PostgreSQL's `undefined_table`, and SQLite's words for it, which has no code of its own.
fn is_missing_table(error: &dyn DatabaseError) -> bool {
    error.code().as_deref() == Some("42P01") || error.message().contains("no such table")
}

/// The newest migration of `migrator`, which this program brings a store to.
pub fn newest_known(migrator: &Migrator) -> i64 {
    let known = migrator.iter().map(|migration| migration.version).max();
    known.unwrap_or_default()
}

/// Begins a transaction that may write. It is undone if it is dropped without `commit`.
///
/// # Errors
/// The engine does not answer, or all connections of the pool are in use.
pub async fn begin(pool: &AnyPool) -> Result<Transaction<'static, Any>, StoreError> {
    pool.begin_with(begin_statement(pool)).await.during(error::BEGIN)
}

/// Waits until no other transaction holds the lock of this name, and holds it to the end of this transaction. From
/// then on it sees all that earlier holders wrote. A transaction that may write is alone on SQLite, so there it waits
/// for nothing.
///
/// # Errors
/// The engine does not answer.
pub async fn lock_name(connection: &mut AnyConnection, name: &str) -> Result<(), StoreError> {
    if connection.backend_name() == "SQLite" {
        return Ok(());
    }
    sqlx::query("SELECT CAST(pg_advisory_xact_lock(hashtextextended($1, 0)) AS TEXT)")
        .bind(name)
        .execute(connection)
        .await
        .during("wait for a lock")?;
    Ok(())
}

/// Whether the store at `url` is in PostgreSQL, which several processes of one role may share.
///
/// # Errors
/// The URL has another form.
pub fn is_shared(url: &str) -> Result<bool, StoreError> {
    Ok(matches!(StoreUrl::parse(url)?, StoreUrl::Postgres { .. }))
}

/// A plain BEGIN in SQLite takes the write lock at its first write, which fails if another process wrote meanwhile.
const SQLITE_BEGIN: &str = "BEGIN IMMEDIATE";

fn begin_statement(pool: &AnyPool) -> &'static str {
    if is_sqlite(pool) { SQLITE_BEGIN } else { "BEGIN" }
}

fn is_sqlite(pool: &AnyPool) -> bool {
    pool.connect_options().database_url.scheme() == "sqlite"
}

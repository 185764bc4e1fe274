//! Fresh stores for tests, one for each engine: every role runs the same tests on all of them.

pub mod soak;

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::migrate::{Migration, Migrator};
use sqlx::{AnyPool, AssertSqlSafe};
use tempfile::TempDir;

use crate::migrations::new_migration;
use crate::{During as _, StoreError, Writer, migrate, open};

/// The variable with the URL of a PostgreSQL database for tests; each test makes a schema in it. `cargo xtask test`
/// sets it.
pub const POSTGRES_VARIABLE: &str = "MUSTER_TEST_POSTGRES_URL";

/// An empty, migrated store. Keep it for as long as its pool is used: dropping it removes a SQLite store's folder.
#[derive(Debug)]
pub struct TestStore {
    /// Connections to the store.
    pub pool: AnyPool,
    /// `sqlite` or `postgres`, for the messages of assertions.
    pub engine: &'static str,
    /// The URL with which a restarted process would open the same store.
    pub url: String,
    _folder: Option<TempDir>,
}

impl TestStore {
    /// A writer without a guard.
    pub fn writer(&self) -> Writer {
        Writer::new(&self.pool)
    }
}

/// The migrations in a folder, read when the test runs.
///
/// # Panics
/// The folder cannot be read, or a file is not called `<number>_<description>.sql`.
#[expect(clippy::panic, reason = "a test without its schema tests nothing")]
pub fn migrations_in(folder: impl AsRef<Path>) -> Migrator {
    let folder = folder.as_ref();
    match read_migrations(folder) {
        Ok(migrations) => Migrator::with_migrations(migrations),
        Err(error) => panic!("the migrations in {}: {error}", folder.display()),
    }
}

fn read_migrations(folder: &Path) -> io::Result<Vec<Migration>> {
    let mut migrations = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str());
        let (number, words) = name
            .and_then(|name| name.split_once('_'))
            .ok_or(ErrorKind::InvalidFilename)?;
        let number = number.parse().map_err(io::Error::other)?;
        let sql = AssertSqlSafe(std::fs::read_to_string(&path)?);
        migrations.push(new_migration(number, words.replace('_', " ").into(), sql));
    }
    Ok(migrations)
}

/// The number, description and checksum of each migration, to compare a role's list with its folder.
pub fn list_migrations(migrator: &Migrator) -> Vec<(i64, String, Vec<u8>)> {
    let entry = |migration: &Migration| {
        (
            migration.version,
            migration.description.to_string(),
            migration.checksum.to_vec(),
        )
    };
    migrator.iter().map(entry).collect()
}

/// The statements of the migrations after `after` that a program of the release before may not survive: those that drop
/// or rename, and columns that must be given. A release only adds. The old form goes in the release after it, by a
/// migration that says so in a line `-- Contracts: …`.
pub fn contractions(migrator: &Migrator, after: i64) -> Vec<String> {
    let later = migrator.iter().filter(|migration| migration.version > after);
    let told = later.filter(|migration| !migration.sql.as_str().contains("-- Contracts: "));
    let statements = told.flat_map(|migration| {
        let version = migration.version;
        let statements = migration.sql.as_str().split(';').map(str::trim);
        statements.map(move |statement| (version, statement.to_uppercase()))
    });
    statements
        .filter(|(_, statement)| contracts(statement))
        .map(|(version, statement)| format!("{version}: {statement}"))
        .collect()
}

fn contracts(statement: &str) -> bool {
    let must_be_given =
        statement.contains("ADD COLUMN") && statement.contains("NOT NULL") && !statement.contains("DEFAULT");
    must_be_given || ["DROP ", "RENAME "].iter().any(|word| statement.contains(word))
}

/// A SQLite store and a PostgreSQL store.
///
/// # Errors
/// A store cannot be made or migrated.
///
/// # Panics
/// [`POSTGRES_VARIABLE`] is not set: a test that did not run on one of the engines did not pass.
#[expect(clippy::panic, reason = "a test that could not run did not pass")]
pub async fn stores(migrator: &Migrator) -> Result<Vec<TestStore>, StoreError> {
    let Ok(server) = std::env::var(POSTGRES_VARIABLE) else {
        panic!("this test needs PostgreSQL: `cargo xtask test` starts one and sets {POSTGRES_VARIABLE}");
    };
    Ok(vec![sqlite(migrator).await?, postgres(&server, migrator).await?])
}

/// A SQLite store in a folder of its own.
///
/// # Errors
/// It cannot be made or migrated.
pub async fn sqlite(migrator: &Migrator) -> Result<TestStore, StoreError> {
    let folder = tempfile::tempdir().map_err(|source| StoreError::File {
        store: "of a test".to_owned(),
        source,
    })?;
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    let pool = open(&url).await?;
    migrate(&pool, migrator).await?;
    Ok(TestStore {
        pool,
        engine: "sqlite",
        url,
        _folder: Some(folder),
    })
}

/// A store in a schema of its own on `server`. The schema stays: the server is thrown away after the tests.
async fn postgres(server: &str, migrator: &Migrator) -> Result<TestStore, StoreError> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let random = getrandom::u64().map_err(|error| StoreError::corrupt("a random name", error))?;
    let schema = format!("test_{random:016x}_{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let admin = open(server).await?;
    // The name is made of digits and letters above.
    let create = format!("CREATE SCHEMA {schema}");
    sqlx::query(AssertSqlSafe(create))
        .execute(&admin)
        .await
        .during("make a schema for a test")?;
    admin.close().await;
    let separator = if server.contains('?') { '&' } else { '?' };
    let url = format!("{server}{separator}options[search_path]={schema}");
    let pool = open(&url).await?;
    migrate(&pool, migrator).await?;
    Ok(TestStore {
        pool,
        engine: "postgres",
        url,
        _folder: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_migration_that_drops_or_renames_or_demands_contracts_unless_it_says_so() {
        let contracted = |sql: &'static str| {
            let migration = new_migration(2, "test".into(), AssertSqlSafe(sql.to_owned()));
            contractions(&Migrator::with_migrations(vec![migration]), 1).len()
        };
        assert_eq!(
            contracted("ALTER TABLE a ADD COLUMN b BIGINT; CREATE TABLE c (d TEXT NOT NULL);"),
            0
        );
        assert_eq!(
            contracted("ALTER TABLE a ADD COLUMN b BIGINT NOT NULL DEFAULT 0;"),
            0
        );
        assert_eq!(contracted("ALTER TABLE a ADD COLUMN b BIGINT NOT NULL;"), 1);
        assert_eq!(
            contracted("ALTER TABLE a DROP COLUMN b; alter table a rename to c;"),
            2
        );
        assert_eq!(
            contracted("-- Contracts: the release before reads c.\nDROP TABLE a;"),
            0
        );
    }
}

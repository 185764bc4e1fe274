//! Copies of a store that is in use.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use sqlx::{AnyConnection, Connection as _};

use crate::store_url::StoreUrl;
use crate::{During as _, StoreError, prepare};

/// The file of the SQLite store at `url`; `None` for a store in PostgreSQL or in memory.
///
/// # Errors
/// The text is no store's URL.
pub fn sqlite_file(url: &str) -> Result<Option<PathBuf>, StoreError> {
    match StoreUrl::parse(url)? {
        StoreUrl::Sqlite { path } => Ok(path),
        StoreUrl::Postgres { .. } => Ok(None),
    }
}

/// Copies the SQLite store in `file` as it is at one moment into the new file `to`. The role that uses the store goes
/// on meanwhile: the copy reads on a connection of its own and holds no lock that a writer waits for.
///
/// # Errors
/// The store cannot be read, or `to` exists or cannot be written.
pub async fn copy_sqlite(file: &Path, to: &Path) -> Result<(), StoreError> {
    const OPERATION: &str = "copy the store";
    let url = StoreUrl::Sqlite {
        path: Some(file.to_owned()),
    };
    let path_error = || StoreError::corrupt("the path of the copy", "it is not UTF-8");
    let target = to.to_str().ok_or_else(path_error)?;
    // SQLite takes a new file that is empty as it is, and would make one that everybody may read.
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options.open(to).map_err(|source| StoreError::File {
        store: target.to_owned(),
        source,
    })?;
    sqlx::any::install_default_drivers();
    let mut connection = AnyConnection::connect(&url.connection_url())
        .await
        .during(OPERATION)?;
    prepare(&mut connection).await.during(OPERATION)?;
    sqlx::query("VACUUM INTO $1")
        .bind(target)
        .execute(&mut connection)
        .await
        .during(OPERATION)?;
    connection.close().await.during(OPERATION)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::testing::sqlite;
    use crate::{Writer, migrator};

    #[tokio::test]
    async fn a_copy_is_of_one_moment_while_the_store_is_written() {
        let schema = migrator(&[(
            1,
            "pairs",
            "CREATE TABLE a (n BIGINT PRIMARY KEY NOT NULL);\nCREATE TABLE b (n BIGINT PRIMARY KEY NOT NULL);",
        )]);
        let test = sqlite(&schema).await.unwrap();
        let file = sqlite_file(&test.url).unwrap().unwrap();
        let writer = Writer::new(&test.pool);
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let writing = muster_process::Tasks::new().spawn("writer", async move {
            let mut n = 0_i64;
            while !stopping.load(Ordering::Relaxed) {
                n += 1;
                let mut write = writer.begin().await.unwrap();
                for statement in ["INSERT INTO a (n) VALUES ($1)", "INSERT INTO b (n) VALUES ($1)"] {
                    sqlx::query(statement).bind(n).execute(&mut *write).await.unwrap();
                }
                write.commit("write a pair").await.unwrap();
            }
            n
        });
        let folder = tempfile::tempdir().unwrap();
        let mut last = 0;
        for copy in 0..5 {
            // Each copy is made in the middle of the writes.
            let written = async || {
                let row: (i64,) = sqlx::query_as("SELECT COUNT(*) FROM a")
                    .fetch_one(&test.pool)
                    .await
                    .unwrap();
                row.0
            };
            while written().await < last + 20 {
                tokio::task::yield_now().await;
            }
            let to = folder.path().join(format!("{copy}.db"));
            copy_sqlite(&file, &to).await.unwrap();
            let pool = crate::open(&format!("sqlite:{}", to.display())).await.unwrap();
            let (a, b): (i64, i64) = sqlx::query_as(
                "SELECT (SELECT COALESCE(MAX(n), 0) FROM a), (SELECT COALESCE(MAX(n), 0) FROM b)",
            )
            .fetch_one(&pool)
            .await
            .unwrap();
            assert!(a == b && a >= last + 20, "{a} and {b} after {last}");
            last = a;
            assert!(copy_sqlite(&file, &to).await.is_err(), "nothing is overwritten");
            pool.close().await;
        }
        stop.store(true, Ordering::Relaxed);
        assert!(writing.join().await.unwrap() >= last);
    }

    #[test]
    fn only_sqlite_stores_have_a_file() {
        assert_eq!(sqlite_file("sqlite:a/b.db").unwrap(), Some("a/b.db".into()));
        assert_eq!(sqlite_file("sqlite::memory:").unwrap(), None);
        assert_eq!(sqlite_file("postgres://db/muster").unwrap(), None);
        assert!(sqlite_file("b.db").is_err());
    }
}

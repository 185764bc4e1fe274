//! The promises of the crate's documentation about both engines, each promise tested on both.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::os::unix::fs::PermissionsExt as _;
use std::sync::LazyLock;

use muster_process::Coded;
use muster_process::error::Causes;
use muster_protocol::ErrorCode;
use muster_store::testing::{TestStore, migrations_in, stores};
use muster_store::{StoreError, Writer, begin, json, migrate, open, read_only};
use sqlx::migrate::Migrator;
use sqlx::{AnyPool, Row as _};

static MIGRATOR: LazyLock<Migrator> = LazyLock::new(|| migrations_in("tests/migrations"));

async fn all() -> Vec<TestStore> {
    stores(&MIGRATOR).await.unwrap()
}

async fn insert(pool: &AnyPool, id: &str, made_at: i64, note: Option<&str>) -> u64 {
    sqlx::query("INSERT INTO parents (id, made_at, note) VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING")
        .bind(id)
        .bind(made_at)
        .bind(note)
        .execute(pool)
        .await
        .unwrap()
        .rows_affected()
}

async fn count(pool: &AnyPool) -> i64 {
    sqlx::query_scalar("SELECT COUNT(*) FROM parents")
        .fetch_one(pool)
        .await
        .unwrap()
}

#[tokio::test]
async fn values_come_back_as_they_went_in() {
    for TestStore { pool, engine, .. } in &all().await {
        assert_eq!(insert(pool, "a", i64::MAX, None).await, 1, "{engine}");
        assert_eq!(insert(pool, "b", -1, Some("żółw\n'$1")).await, 1, "{engine}");
        assert_eq!(insert(pool, "a", 5, None).await, 0, "{engine}");
        let rows = sqlx::query("SELECT id, made_at, note FROM parents ORDER BY id")
            .fetch_all(pool)
            .await
            .unwrap();
        let read = |row: &sqlx::any::AnyRow| -> (String, i64, Option<String>) {
            (row.get(0), row.get("made_at"), row.get(2))
        };
        assert_eq!(read(&rows[0]), ("a".to_owned(), i64::MAX, None), "{engine}");
        assert_eq!(
            read(&rows[1]),
            ("b".to_owned(), -1, Some("żółw\n'$1".to_owned())),
            "{engine}"
        );
    }
}

#[tokio::test]
async fn upserts_sums_and_repeated_placeholders() {
    for TestStore { pool, engine, .. } in &all().await {
        let upsert = "INSERT INTO parents (id, made_at) VALUES ($1, $2) \
                      ON CONFLICT (id) DO UPDATE SET made_at = excluded.made_at WHERE parents.made_at < excluded.made_at";
        for (made_at, changed) in [(5_i64, 1), (3, 0), (7, 1)] {
            let done = sqlx::query(upsert)
                .bind("a")
                .bind(made_at)
                .execute(pool)
                .await
                .unwrap();
            assert_eq!(done.rows_affected(), changed, "{engine} {made_at}");
        }
        insert(pool, "b", 10, None).await;
        let sum: i64 = sqlx::query_scalar(
            "SELECT CAST(SUM(made_at) AS BIGINT) FROM parents WHERE made_at >= $1 AND made_at + $1 > 0",
        )
        .bind(1_i64)
        .fetch_one(pool)
        .await
        .unwrap();
        assert_eq!(sum, 17, "{engine}");
        let none: Option<i64> =
            sqlx::query_scalar("SELECT CAST(SUM(made_at) AS BIGINT) FROM parents WHERE id = $1")
                .bind("nobody")
                .fetch_one(pool)
                .await
                .unwrap();
        assert_eq!(none, None, "{engine}");
        let page: Vec<String> =
            sqlx::query_scalar("SELECT id FROM parents ORDER BY made_at DESC LIMIT $1 OFFSET $2")
                .bind(1_i64)
                .bind(1_i64)
                .fetch_all(pool)
                .await
                .unwrap();
        assert_eq!(page, ["a"], "{engine}");
    }
}

#[tokio::test]
async fn a_transaction_is_all_or_nothing() {
    for TestStore { pool, engine, .. } in &all().await {
        let insert = "INSERT INTO parents (id, made_at) VALUES ($1, 0)";
        let mut dropped = begin(pool).await.unwrap();
        sqlx::query(insert)
            .bind("a")
            .execute(&mut *dropped)
            .await
            .unwrap();
        drop(dropped);
        assert_eq!(count(pool).await, 0, "{engine}");

        let mut kept = begin(pool).await.unwrap();
        sqlx::query(insert).bind("a").execute(&mut *kept).await.unwrap();
        sqlx::query("INSERT INTO children (parent, seq, body) VALUES ($1, 1, $2)")
            .bind("a")
            .bind("{}")
            .execute(&mut *kept)
            .await
            .unwrap();
        kept.commit().await.unwrap();
        assert_eq!(count(pool).await, 1, "{engine}");
    }
}

#[tokio::test]
async fn numbers_drawn_in_transactions_side_by_side_are_all_different() {
    for TestStore { pool, engine, .. } in &all().await {
        insert(pool, "a", 0, None).await;
        let tasks = muster_process::Tasks::new();
        let draws: Vec<_> = (0..8).map(|_| tasks.spawn("draw", draw(pool.clone()))).collect();
        let mut drawn = Vec::new();
        for draw in draws {
            drawn.push(draw.join().await.unwrap());
        }
        drawn.sort_unstable();
        assert_eq!(drawn, (1..=8).collect::<Vec<i64>>(), "{engine}");
    }
}

/// Takes the next `seq`. Correct on both engines: the row of the parent is locked by being written.
async fn draw(pool: AnyPool) -> i64 {
    let mut transaction = begin(&pool).await.unwrap();
    sqlx::query("UPDATE parents SET made_at = made_at + 1 WHERE id = $1")
        .bind("a")
        .execute(&mut *transaction)
        .await
        .unwrap();
    let seq: i64 = sqlx::query_scalar(
        "INSERT INTO children (parent, seq, body) SELECT $1, COALESCE(MAX(seq), 0) + 1, $2 FROM children WHERE parent = $1 RETURNING seq",
    )
    .bind("a").bind("{}").fetch_one(&mut *transaction).await.unwrap();
    transaction.commit().await.unwrap();
    seq
}

#[tokio::test]
async fn references_and_uniqueness_are_enforced() {
    for TestStore { pool, engine, .. } in &all().await {
        let orphan = sqlx::query("INSERT INTO children (parent, seq, body) VALUES ('nobody', 1, '{}')")
            .execute(pool)
            .await;
        let error = orphan.unwrap_err();
        assert!(
            error.as_database_error().unwrap().is_foreign_key_violation(),
            "{engine}: {error}"
        );
        insert(pool, "a", 0, None).await;
        let twice = sqlx::query("INSERT INTO parents (id, made_at) VALUES ('a', 0)")
            .execute(pool)
            .await;
        assert!(
            twice
                .unwrap_err()
                .as_database_error()
                .unwrap()
                .is_unique_violation(),
            "{engine}"
        );
    }
}

#[tokio::test]
async fn committed_rows_survive_a_restart() {
    for store in all().await {
        let TestStore {
            pool, engine, url, ..
        } = &store;
        insert(pool, "a", 1, None).await;
        pool.close().await;
        let again = open(url).await.unwrap();
        migrate(&again, &MIGRATOR).await.unwrap();
        assert_eq!(count(&again).await, 1, "{engine}");
    }
}

#[tokio::test]
async fn sqlite_is_durable_and_a_second_process_may_write_too() {
    let store = muster_store::testing::sqlite(&MIGRATOR).await.unwrap();
    for (pragma, expected) in [
        ("PRAGMA synchronous", 2_i64),
        ("PRAGMA foreign_keys", 1),
        ("PRAGMA busy_timeout", 5000),
    ] {
        let value: i64 = sqlx::query_scalar(pragma).fetch_one(&store.pool).await.unwrap();
        assert_eq!(value, expected, "{pragma}");
    }
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode")
        .fetch_one(&store.pool)
        .await
        .unwrap();
    assert_eq!(mode, "wal");

    // A second pool stands for a second process. Both read, then write: the second waits for the first.
    let other = open(&store.url).await.unwrap();
    let mut first = begin(&store.pool).await.unwrap();
    let tasks = muster_process::Tasks::new();
    let second = tasks.spawn("second", async move { insert(&other, "b", 0, None).await });
    sqlx::query("INSERT INTO parents (id, made_at) VALUES ('a', 0)")
        .execute(&mut *first)
        .await
        .unwrap();
    first.commit().await.unwrap();
    assert_eq!(second.join().await.unwrap(), 1);
    assert_eq!(count(&store.pool).await, 2);
}

#[tokio::test]
async fn stores_that_cannot_be_opened_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(
        &file,
        "this is no database, it is only a text that is long enough",
    )
    .unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let bad = format!("sqlite:{}", file.display());
    let below = format!("sqlite:{}", file.join("below/store.db").display());
    for (url, reason) in [
        (bad.as_str(), "not a database"),
        (below.as_str(), "Not a directory"),
        ("mysql://x/y", "sqlite:PATH"),
        ("postgres://nobody:secret@127.0.0.1:1/none", "refused"),
    ] {
        let error = open(url).await.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::StoreFailed));
        let text = Causes(&error).to_string();
        assert!(text.contains(reason) && !text.contains("secret"), "{text}");
    }
}

#[tokio::test]
async fn a_changed_migration_is_refused_and_so_is_the_store_of_a_newer_version() {
    for store in all().await {
        sqlx::query("UPDATE _sqlx_migrations SET version = version - 99")
            .execute(&store.pool)
            .await
            .unwrap();
        let error = migrate(&store.pool, &MIGRATOR).await.unwrap_err();
        assert!(matches!(error, StoreError::Migrate(_)), "{error:?}");
        sqlx::query("UPDATE _sqlx_migrations SET version = version + 198")
            .execute(&store.pool)
            .await
            .unwrap();
        let error = migrate(&store.pool, &MIGRATOR).await.unwrap_err();
        assert!(
            matches!(error, StoreError::Newer { found: 100, known: 1 }),
            "{}: {error:?}",
            store.engine
        );
        assert!(error.to_string().contains("`muster restore`"), "{error}");
    }
}

#[test]
fn json_columns_keep_the_order_of_keys() {
    let text = r#"{"z":1,"a":{"y":2,"b":3}}"#;
    let value: serde_json::Value = json::decode("parents.note", text).unwrap();
    assert_eq!(json::encode("parents.note", &value).unwrap(), text);
    let error = json::decode::<u8>("parents.note", "x").unwrap_err();
    assert!(error.to_string().contains("parents.note"), "{error}");
    assert!(json::parse::<std::net::IpAddr>("parents.note", "x").is_err());
}

#[tokio::test]
async fn connections_that_only_read_refuse_every_write_and_read_beside_an_open_one() {
    for TestStore { pool, engine, .. } in &all().await {
        insert(pool, "a", 1, None).await;
        let reads = read_only(pool).unwrap();
        for statement in [
            "INSERT INTO parents (id, made_at) VALUES ('b', 1)",
            "UPDATE parents SET made_at = 2",
            "DELETE FROM parents",
            "CREATE TABLE c (id TEXT)",
            "DROP TABLE children",
        ] {
            assert!(
                sqlx::query(statement).execute(&reads).await.is_err(),
                "{engine}: {statement}"
            );
        }
        let taken = sqlx::query("DELETE FROM parents RETURNING id")
            .fetch_all(&reads)
            .await;
        assert!(taken.is_err(), "{engine}: what gives rows may write too");
        let mut tx = reads.begin().await.unwrap();
        let within = sqlx::query("UPDATE parents SET made_at = 2")
            .execute(&mut *tx)
            .await;
        assert!(within.is_err(), "{engine}");
        tx.rollback().await.unwrap();
        let writer = Writer::new(pool);
        let mut write = writer.begin().await.unwrap();
        sqlx::query("UPDATE parents SET made_at = 2")
            .execute(&mut *write)
            .await
            .unwrap();
        let made_at = async || -> i64 {
            let row = sqlx::query_scalar("SELECT made_at FROM parents");
            row.fetch_one(&reads).await.unwrap()
        };
        assert_eq!(made_at().await, 1, "{engine}: the write is open");
        write.commit("write").await.unwrap();
        assert_eq!(made_at().await, 2, "{engine}: the write is committed");
        assert_eq!(count(&reads).await, 1, "{engine}");
        reads.close().await;
        writer.close().await;
        assert!(writer.begin().await.is_err(), "{engine}: it is closed");
    }
}

#[tokio::test]
async fn a_store_in_memory_gives_no_further_connections() {
    let pool = open("sqlite::memory:").await.unwrap();
    assert!(matches!(read_only(&pool), Err(StoreError::Url(_))));
}

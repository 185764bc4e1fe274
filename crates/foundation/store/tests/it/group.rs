//! Writes that share a commit, on both engines: all of them are kept, each stands or falls by itself, and what was
//! acknowledged survives `kill -9`.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
use muster_process::{Coded as _, Tasks};
use muster_protocol::ErrorCode;
use muster_store::group_commit::{GroupLimits, TransactionGuard};
use muster_store::testing::{TestStore, migrations_in, sqlite, stores};
use muster_store::{During as _, Script, StoreError, Writer, open};
use sqlx::migrate::Migrator;
use sqlx::{AnyPool, Executor as _};

static MIGRATOR: LazyLock<Migrator> = LazyLock::new(|| migrations_in("tests/migrations"));

/// The variable with the store to which the child process of the last test writes until it is killed.
const CHILD: &str = "MUSTER_TEST_GROUP_CHILD";

/// So long that no machine is too slow for the tests that count commits.
const PATIENT: GroupLimits = GroupLimits {
    writes: 256,
    open_for: Duration::from_secs(600),
};

async fn all() -> Vec<TestStore> {
    stores(&MIGRATOR).await.unwrap()
}

async fn insert(writer: &Writer, id: &str) -> Result<(), StoreError> {
    const OPERATION: &str = "insert a parent";
    let mut write = writer.begin().await?;
    sqlx::query("INSERT INTO parents (id, made_at) VALUES ($1, 0)")
        .bind(id)
        .execute(&mut *write)
        .await
        .during(OPERATION)?;
    write.commit(OPERATION).await
}

async fn ids(pool: &AnyPool) -> Vec<String> {
    sqlx::query_scalar("SELECT id FROM parents ORDER BY id")
        .fetch_all(pool)
        .await
        .unwrap()
}

/// Queues writes while another one holds the transaction.
async fn behind_one<T>(writer: &Writer, others: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut first = writer.begin().await.unwrap();
    first
        .execute("INSERT INTO parents (id, made_at) VALUES ('first', 0)")
        .await
        .unwrap();
    // All others are polled, and so in the queue, before the first one goes on.
    let (done, committed) = tokio::join!(join_all(others), first.commit("insert the first"));
    committed.unwrap();
    done
}

async fn children(pool: &AnyPool) -> i64 {
    sqlx::query_scalar("SELECT COUNT(*) FROM children")
        .fetch_one(pool)
        .await
        .unwrap()
}

#[tokio::test]
async fn writes_that_meet_share_one_commit() {
    for TestStore { pool, engine, .. } in &all().await {
        let writer = Writer::in_order(pool, PATIENT, None);
        let names: Vec<_> = (0..20).map(|n| format!("n{n:02}")).collect();
        let done = behind_one(&writer, names.iter().map(|id| insert(&writer, id)).collect()).await;
        assert!(done.iter().all(Result::is_ok), "{engine}: {done:?}");
        assert_eq!(ids(pool).await.len(), 21, "{engine}");
        let tally = writer.counts();
        assert_eq!((tally.writes, tally.commits), (21, 1), "{engine}");
    }
}

#[tokio::test]
async fn a_transaction_takes_no_more_than_its_bounds() {
    for TestStore { pool, engine, .. } in &all().await {
        let narrow = GroupLimits { writes: 4, ..PATIENT };
        let writer = Writer::in_order(pool, narrow, None);
        let names: Vec<_> = (0..11).map(|n| format!("n{n:02}")).collect();
        behind_one(&writer, names.iter().map(|id| insert(&writer, id)).collect()).await;
        assert_eq!(ids(pool).await.len(), 12, "{engine}");
        assert_eq!(writer.counts().commits, 3, "{engine}");
    }
}

#[tokio::test]
async fn a_write_that_fails_leaves_its_neighbours_alone() {
    for TestStore { pool, engine, .. } in &all().await {
        let writer = Writer::in_order(pool, PATIENT, None);
        // Every second row exists already.
        let names = ["a", "first", "b", "first", "c", "a"];
        let done = behind_one(&writer, names.iter().map(|id| insert(&writer, id)).collect()).await;
        let kept: Vec<_> = done.iter().map(Result::is_ok).collect();
        assert_eq!(kept, [true, false, true, false, true, false], "{engine}");
        let Err(StoreError::Query { source, .. }) = &done[1] else {
            panic!("{engine}: {done:?}");
        };
        assert!(source.as_database_error().unwrap().is_unique_violation());
        assert_eq!(ids(pool).await, ["a", "b", "c", "first"], "{engine}");
        assert_eq!(writer.counts().commits, 1, "{engine}");
    }
}

#[tokio::test]
async fn the_first_write_may_fail_too() {
    for TestStore { pool, engine, .. } in &all().await {
        let writer = Writer::in_order(pool, PATIENT, None);
        insert(&writer, "a").await.unwrap();
        assert!(insert(&writer, "a").await.is_err(), "{engine}");
        insert(&writer, "b").await.unwrap();
        assert_eq!(ids(pool).await, ["a", "b"], "{engine}");
    }
}

/// Inserts a parent, unless it exists, and a child: both or neither.
async fn carry(writer: &Writer, id: &str) -> Result<bool, StoreError> {
    let make = || {
        let mut script = Script::default();
        script.add(
            "INSERT INTO children (parent, seq, body) VALUES ('first', $1, $2)",
            [1.into(), id.into()],
        );
        script.add(
            "INSERT INTO parents (id, made_at) VALUES ($1, 0) ON CONFLICT DO NOTHING",
            [id.into()],
        );
        let rows = script.statements();
        (script, rows)
    };
    writer.run_script("insert a parent and a child", make).await
}

#[tokio::test]
async fn a_script_is_carried_out_whole_or_not_at_all() {
    for TestStore { pool, engine, .. } in &all().await {
        let writer = Writer::in_order(pool, PATIENT, None);
        // Of two writes with one child the second conflicts; with an existing parent one row too few is written.
        insert(&writer, "first").await.unwrap();
        assert!(
            !carry(&writer, "first").await.unwrap(),
            "{engine}: also if it is alone"
        );
        assert_eq!(children(pool).await, 0, "{engine}");
        let before = writer.counts();
        let (a, lent, again, b) = (
            carry(&writer, "a"),
            insert(&writer, "c"),
            carry(&writer, "first"),
            carry(&writer, "b"),
        );
        let (a, lent, again, b) = tokio::join!(a, lent, again, b);
        assert!(a.unwrap(), "{engine}");
        lent.unwrap();
        let Err(StoreError::Query { source, .. }) = b else {
            panic!("{engine}: {b:?}");
        };
        assert!(
            source.as_database_error().unwrap().is_unique_violation(),
            "{engine}"
        );
        assert!(again.is_err(), "{engine}: its child is in the way too");
        assert_eq!(ids(pool).await, ["a", "c", "first"], "{engine}");
        assert_eq!(children(pool).await, 1, "{engine}");
        assert_eq!(writer.counts().writes - before.writes, 2, "{engine}");
    }
}

#[tokio::test]
async fn a_script_that_misses_leaves_its_neighbours_alone() {
    for TestStore { pool, engine, .. } in &all().await {
        let writer = Writer::in_order(pool, PATIENT, None);
        let note = |id: &'static str| {
            writer.run_script("note", move || {
                let mut script = Script::default();
                script.add("UPDATE parents SET note = $1 WHERE id = 'first'", [id.into()]);
                script.add("UPDATE parents SET note = 'b' WHERE id = $1", [id.into()]);
                (script, 2)
            })
        };
        insert(&writer, "a").await.unwrap();
        assert!(!note("nobody").await.unwrap(), "{engine}: alone");
        let around = ["nobody", "a", "nobody", "a", "nobody"];
        let done = behind_one(&writer, around.iter().map(|id| note(id)).collect()).await;
        let kept: Vec<_> = done.into_iter().map(Result::unwrap).collect();
        assert_eq!(kept, [false, true, false, true, false], "{engine}");
        let notes: Vec<Option<String>> = sqlx::query_scalar("SELECT note FROM parents ORDER BY id")
            .fetch_all(pool)
            .await
            .unwrap();
        assert_eq!(notes[0].as_deref(), Some("b"), "{engine}: {notes:?}");
        assert!(
            notes[1..].iter().flatten().all(|note| note == "a"),
            "{engine}: {notes:?}"
        );
    }
}

#[tokio::test]
async fn scripts_are_carried_out_in_the_order_in_which_they_are_made() {
    for TestStore { pool, engine, .. } in &all().await {
        let narrow = GroupLimits { writes: 7, ..PATIENT };
        let (writer, numbers) = (Writer::in_order(pool, narrow, None), Arc::new(AtomicI64::new(0)));
        insert(&writer, "first").await.unwrap();
        let tasks = Tasks::new();
        let writes: Vec<_> = (0..200)
            .map(|_| {
                let (writer, numbers) = (writer.clone(), Arc::clone(&numbers));
                tasks.spawn("write", async move {
                    let make = move || {
                        let mut script = Script::default();
                        // Its number is the number of rows before it.
                        script.add(
                            "INSERT INTO children (parent, seq, body) \
                             SELECT 'first', $1, CAST(COUNT(*) AS TEXT) FROM children",
                            [numbers.fetch_add(1, Ordering::SeqCst).into()],
                        );
                        (script, 1)
                    };
                    writer.run_script("number", make).await
                })
            })
            .collect();
        for write in writes {
            assert!(write.join().await.unwrap().unwrap(), "{engine}");
        }
        let in_order: i64 =
            sqlx::query_scalar("SELECT COUNT(*) FROM children WHERE CAST(seq AS TEXT) = body")
                .fetch_one(pool)
                .await
                .unwrap();
        assert_eq!(in_order, 200, "{engine}");
    }
}

#[tokio::test]
async fn a_write_whose_caller_goes_away_is_whole_or_not_at_all() {
    async fn pair(writer: &Writer, id: &str) -> Result<(), StoreError> {
        let mut write = writer.begin().await?;
        for id in [format!("{id}1"), format!("{id}2")] {
            sqlx::query("INSERT INTO parents (id, made_at) VALUES ($1, 0)")
                .bind(id)
                .execute(&mut *write)
                .await
                .during("insert a pair")?;
        }
        write.commit("insert a pair").await
    }
    for TestStore { pool, engine, .. } in &all().await {
        let writer = Writer::in_order(pool, PATIENT, None);
        for polls in 0..12_usize {
            let id = format!("p{polls:02}");
            let mut cut = Box::pin(pair(&writer, &id));
            // The future is dropped after this many polls, wherever it is.
            let mut left = polls;
            poll_fn(|context| {
                let over = left == 0 || cut.as_mut().poll(context).is_ready() || left == 1;
                left -= usize::from(!over);
                if over { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            let neighbour = format!("q{polls:02}");
            let beside = insert(&writer, &neighbour);
            drop(cut);
            beside.await.unwrap();
        }
        let kept: BTreeSet<_> = ids(pool).await.into_iter().collect();
        for polls in 0..12 {
            assert!(
                kept.contains(&format!("q{polls:02}")),
                "{engine} {polls}: {kept:?}"
            );
            let halves = [1, 2].map(|half| kept.contains(&format!("p{polls:02}{half}")));
            assert_eq!(halves[0], halves[1], "{engine} {polls}: {kept:?}");
        }
        assert!(!kept.contains("p001"), "{engine}: it was never even begun");
    }
}

#[tokio::test]
async fn a_commit_that_fails_fails_everybody_and_the_next_one_goes_on() {
    // Only SQLite can put a reference off until the commit.
    let store = sqlite(&MIGRATOR).await.unwrap();
    let writer = Writer::in_order(&store.pool, PATIENT, None);
    let orphan = async {
        let mut write = writer.begin().await?;
        for statement in [
            "PRAGMA defer_foreign_keys = ON",
            "INSERT INTO children (parent, seq, body) VALUES ('nobody', 1, '')",
        ] {
            write.execute(statement).await.during("insert an orphan")?;
        }
        write.commit("insert an orphan").await
    };
    let (one, two) = tokio::join!(insert(&writer, "a"), orphan);
    for failed in [one.unwrap_err(), two.unwrap_err()] {
        assert!(matches!(failed, StoreError::Commit { .. }), "{failed:?}");
        assert_eq!(failed.code(), Some(ErrorCode::StoreFailed));
    }
    insert(&writer, "b").await.unwrap();
    assert_eq!(ids(&store.pool).await, ["b"]);
}

#[tokio::test]
async fn the_opening_is_done_once_a_transaction_and_may_refuse() {
    for TestStore { pool, engine, .. } in &all().await {
        let unopened = Writer::in_order(pool, PATIENT, None);
        insert(&unopened, "opened").await.unwrap();
        let mut script = Script::default();
        script.add(
            "UPDATE parents SET made_at = made_at + 1 WHERE id = 'opened' AND made_at < $1",
            [3.into()],
        );
        let opening = TransactionGuard {
            script,
            refusal: || StoreError::Superseded,
        };
        let writer = Writer::in_order(pool, PATIENT, Some(opening));
        behind_one(&writer, vec![insert(&writer, "a"), insert(&writer, "b")]).await;
        insert(&writer, "c").await.unwrap();
        // The rows that the guard writes do not count for the script behind it.
        let one_row = || {
            let mut script = Script::default();
            script.add("UPDATE parents SET note = 'x' WHERE id = 'nobody'", []);
            (script, 1)
        };
        assert!(!writer.run_script("note", one_row).await.unwrap(), "{engine}");
        assert!(
            writer.run_script("note", || (one_row().0, 0)).await.unwrap(),
            "{engine}"
        );
        for refused in [
            insert(&writer, "d").await,
            writer.run_script("note", one_row).await.map(|_| ()),
        ] {
            assert!(
                matches!(refused, Err(StoreError::Superseded)),
                "{engine}: {refused:?}"
            );
        }
        let opened: i64 = sqlx::query_scalar("SELECT made_at FROM parents WHERE id = 'opened'")
            .fetch_one(pool)
            .await
            .unwrap();
        assert_eq!(opened, 3, "{engine}: once for a, b, c and what was carried");
        assert_eq!(ids(pool).await, ["a", "b", "c", "first", "opened"], "{engine}");
    }
}

#[tokio::test]
async fn acknowledged_writes_survive_a_kill() {
    if let Ok(url) = std::env::var(CHILD) {
        return write_until_killed(&url).await;
    }
    for TestStore {
        pool, engine, url, ..
    } in &all().await
    {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "group::acknowledged_writes_survive_a_kill",
                "--nocapture",
            ])
            .env(CHILD, url)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut told = lines
            .map_while(Result::ok)
            .filter_map(|line| line.strip_prefix("durable ").map(str::to_owned));
        let mut acknowledged: BTreeSet<_> = told.by_ref().take(200).collect();
        assert_eq!(acknowledged.len(), 200, "{engine}");
        child.kill().unwrap();
        child.wait().unwrap();
        // Lines that it wrote before it died and that were not read yet.
        acknowledged.extend(told);
        let again = open(url).await.unwrap();
        let kept: BTreeSet<_> = ids(&again).await.into_iter().collect();
        let lost: Vec<_> = acknowledged.difference(&kept).collect();
        assert!(lost.is_empty(), "{engine}: acknowledged and lost: {lost:?}");
        again.close().await;
        pool.close().await;
    }
}

/// Many writers at once; each prints its row as soon as the row is durable.
#[expect(clippy::print_stdout, reason = "its parent reads what it was told")]
async fn write_until_killed(url: &str) {
    let pool = open(url).await.unwrap();
    let writer = Writer::in_order(&pool, GroupLimits::default(), None);
    let tasks = Tasks::new();
    let writing: Vec<_> = (0..16)
        .map(|task| {
            let writer = writer.clone();
            tasks.spawn("writing", async move {
                for n in 0_u64.. {
                    let id = format!("{task}-{n}");
                    insert(&writer, &id).await.unwrap();
                    println!("durable {id}");
                }
            })
        })
        .collect();
    for task in writing {
        task.join().await.unwrap();
    }
}

//! Small durable writes of many tasks at once: sharing commits against a transaction each, on SQLite and on PostgreSQL.
//!
//! Wants `MUSTER_TEST_POSTGRES_URL` for PostgreSQL. `MUSTER_BENCH_WRITES` (default 2000) is how many writes there are
//! in a round.

use anyhow::Context as _;
use muster_bench::{Direction, Report, Row, take_turns};
use muster_process::{Clock as _, SystemClock, Tasks};
use muster_store::group_commit::GroupLimits;
use muster_store::{Writer, begin, open};
use sqlx::{AnyPool, AssertSqlSafe};
use uuid::Uuid;

const ROUNDS: usize = 5;
const WRITES: usize = 2_000;
/// Tasks that write side by side, each its next row once the last is durable.
const AT_ONCE: usize = 64;

/// How a task writes.
#[derive(Clone)]
enum CommitMode {
    Together(Writer),
    Apart(AnyPool),
}

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let writes = std::env::var("MUSTER_BENCH_WRITES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(WRITES);
    let folder = tempfile::tempdir()?;
    let mut stores = vec![(
        "SQLite",
        format!("sqlite:{}", folder.path().join("store.db").display()),
    )];
    let mut notes = vec![format!(
        "{writes} rows a round by {AT_ONCE} tasks; on PostgreSQL those apart have ten connections"
    )];
    match std::env::var("MUSTER_TEST_POSTGRES_URL") {
        Ok(server) => stores.push(("PostgreSQL", server)),
        Err(_) => notes.push("SQLite only: MUSTER_TEST_POSTGRES_URL is not set".to_owned()),
    }
    let mut rows = Vec::new();
    for (engine, url) in stores {
        let (pool, writer) = runtime.block_on(async {
            let pool = open(&url).await?;
            sqlx::query("CREATE TABLE IF NOT EXISTS bench_rows (id TEXT PRIMARY KEY, body TEXT NOT NULL)")
                .execute(&pool)
                .await?;
            anyhow::Ok((
                pool.clone(),
                Writer::in_order(&pool, GroupLimits::default(), None),
            ))
        })?;
        let turns = take_turns(
            ROUNDS,
            || runtime.block_on(rate(&CommitMode::Together(writer.clone()), writes)),
            || runtime.block_on(rate(&CommitMode::Apart(pool.clone()), writes)),
        )?;
        let tally = writer.counts();
        notes.push(format!(
            "{engine}: {} writes took {} commits",
            tally.writes, tally.commits
        ));
        let what = format!("durable writes that share commits, {engine}");
        rows.push(Row::against(
            &what,
            "1/s",
            Direction::HigherIsBetter,
            "a commit each",
            turns,
        ));
        runtime.block_on(async {
            sqlx::query(AssertSqlSafe("DROP TABLE bench_rows".to_owned()))
                .execute(&pool)
                .await
        })?;
    }
    Report { rows, notes }.print()
}

/// Durable rows a second.
async fn rate(way: &CommitMode, writes: usize) -> anyhow::Result<f64> {
    let (clock, tasks) = (SystemClock::new(), Tasks::new());
    let began = clock.now();
    let writing: Vec<_> = (0..AT_ONCE)
        .map(|task| {
            let (way, share) = (way.clone(), (task..writes).step_by(AT_ONCE));
            tasks.spawn("write", async move {
                for _ in share {
                    way.write().await?;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for task in writing {
        task.join().await.context("a writer")??;
    }
    #[expect(clippy::cast_precision_loss, reason = "nobody writes so many rows")]
    Ok(writes as f64 / clock.now().since(began).as_secs_f64())
}

impl CommitMode {
    async fn write(&self) -> anyhow::Result<()> {
        const INSERT: &str = "INSERT INTO bench_rows (id, body) VALUES ($1, $2)";
        let query = sqlx::query(INSERT)
            .bind(Uuid::new_v4().to_string())
            .bind("x".repeat(200));
        match self {
            Self::Together(writer) => {
                let mut write = writer.begin().await?;
                query.execute(&mut *write).await?;
                write.commit("write a row").await?;
            }
            Self::Apart(pool) => {
                let mut transaction = begin(pool).await?;
                query.execute(&mut *transaction).await?;
                transaction.commit().await?;
            }
        }
        Ok(())
    }
}

//! Retention: rows that have had their time are deleted in small steps, beside the work of the role.
//!
//! A role states which rows may go at a time ([`RetentionRules`]); its decisions are pure functions over [`cutoff`].
//! [`sweep`] carries the deletions out. Each step is one transaction with a bounded number of rows, and between two
//! steps the writer is free, so no request waits for a sweep. [`run_janitor`] sweeps at intervals and reports the size
//! of every table.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_process::config::Problem;
use muster_process::error::Causes;
use muster_process::{Clock, SharedClock};
use muster_protocol::Timestamp;
use serde::Deserialize;
use sqlx::{AnyPool, AssertSqlSafe, Row as _};

use crate::size::{TableSize, measure_tables, report_tables};
use crate::statement_batch::bind;
use crate::{During as _, StoreError, Value, Writer};

/// The pause between two transactions of a sweep, in which other writes go first.
const PAUSE: Duration = Duration::from_millis(20);

const DAY_MICROS: i64 = 86_400_000_000;

/// How long rows of a table stay, and how many of them: one entry of a role's `[retention]`, written
/// `{ days = 30, rows = 1000000, mib = 4096 }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keep {
    /// Days after which a row may go; at least 1.
    pub days: u32,
    /// Rows beyond this number may go before their time, the oldest first; at least 1.
    pub rows: u64,
    /// While the table and what belongs to its rows take more MiB than this, rows may go before their time, the oldest
    /// first; at least 1.
    pub mib: u64,
}

/// The keys of `[retention]` that every role has: the pace of its janitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PaceSettings {
    /// Seconds between two sweeps; at least 1.
    pub interval_s: u64,
    /// The most rows that one transaction deletes; 1 to 10,000.
    pub step_rows: u32,
    /// Seconds between two measurements of the tables; at least 1.
    pub measure_s: u64,
}

/// The rows of one table that go by one column alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgedRows {
    /// The table, for logs and metrics too.
    pub table: &'static str,
    /// The columns of its primary key, with commas.
    pub key: &'static str,
    /// The column that grows with time: a row goes when this is below a bound.
    pub age: &'static str,
    /// Whether one step takes the oldest rows, or any that are due.
    pub oldest_first: bool,
}

/// Rows that are due. Only the number of rows in one step is left open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// Rows of one table below a bound.
    Aged {
        /// The table and the column that is compared.
        rows: AgedRows,
        /// The bound, in the unit of their column.
        before: i64,
    },
    /// Rows of one table.
    Rows {
        /// The table, for logs and metrics.
        table: &'static str,
        /// A `DELETE` whose last parameter is the most rows.
        statement: &'static str,
        /// The parameters before that one.
        values: Vec<Value>,
    },
    /// Rows with all rows that belong to them, in one transaction.
    Tree {
        /// The table of the rows themselves, for logs and metrics.
        table: &'static str,
        /// A `SELECT` of the keys as the column `id`, whose last parameter is the most keys.
        find: &'static str,
        /// The parameters before that one.
        values: Vec<Value>,
        /// The tables to delete from, in this order, each with its column that holds the key.
        parts: &'static [(&'static str, &'static str)],
    },
}

/// The size and speed of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The most rows, or rows with all that belongs to them, of one transaction.
    pub step_rows: u32,
    /// The pause between two transactions.
    pub pause: Duration,
    /// The pause between two sweeps.
    pub interval: Duration,
    /// The time after which the tables are measured again.
    pub measure: Duration,
}

/// Rows that were deleted, by table.
pub type Deleted = BTreeMap<&'static str, u64>;

/// The rules of one role: which of its rows may go.
pub trait RetentionRules: Send + Sync + 'static {
    /// The deletions that are due at `now`, in the order in which they must happen. `sizes` were measured lately.
    fn due(
        &self,
        now: Timestamp,
        sizes: &[TableSize],
    ) -> impl Future<Output = Result<Vec<Deletion>, StoreError>> + Send;

    /// Called after each sweep that carried out everything that was due.
    fn swept(&self, _now: Timestamp) -> impl Future<Output = Result<(), StoreError>> + Send {
        async { Ok(()) }
    }
}

/// The store that a janitor keeps small.
#[derive(Clone, Debug)]
pub struct JanitorStore {
    /// The role, for metrics.
    pub role: &'static str,
    /// The store's URL, for the connection that measures it.
    pub url: String,
    /// The writer that the role's own writes go through.
    pub writer: Writer,
}

impl Default for PaceSettings {
    fn default() -> Self {
        Self {
            interval_s: 60,
            step_rows: 200,
            measure_s: 3_600,
        }
    }
}

impl PaceSettings {
    /// All problems of the settings. `table` is the name of their table in the configuration.
    pub fn problems(&self, table: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (key, number) in [("interval_s", self.interval_s), ("measure_s", self.measure_s)] {
            if number == 0 {
                problems.push(Problem::at(format!("{table}.{key}"), "must be at least 1 second"));
            }
        }
        if !(1..=10_000).contains(&self.step_rows) {
            let path = format!("{table}.step_rows");
            problems.push(Problem::at(path, "must be 1 to 10000"));
        }
        problems
    }

    /// The pace that they mean.
    pub const fn pace(&self) -> Pace {
        Pace {
            step_rows: self.step_rows,
            pause: PAUSE,
            interval: Duration::from_secs(self.interval_s),
            measure: Duration::from_secs(self.measure_s),
        }
    }
}

impl Keep {
    /// All problems of the entry at `path` of a configuration, whose days must be at least `least_days`.
    pub fn problems(&self, path: &str, least_days: u32) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.days < least_days {
            let reason = format!("must be at least {least_days}");
            problems.push(Problem::at(format!("{path}.days"), reason));
        }
        for (key, number) in [("rows", self.rows), ("mib", self.mib)] {
            if number == 0 {
                problems.push(Problem::at(format!("{path}.{key}"), "must be at least 1"));
            }
        }
        problems
    }

    /// The time before which rows are old at `now`.
    pub fn oldest(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_micros(
            now.micros()
                .saturating_sub(i64::from(self.days).saturating_mul(DAY_MICROS)),
        )
    }

    /// How many rows may stay by the bounds on rows and bytes. The first of `tables` has the rows, the others have what
    /// belongs to them; `sizes` were measured lately.
    pub fn most_rows(&self, tables: &[&str], sizes: &[TableSize]) -> u64 {
        let of = |name: &&str| sizes.iter().find(|size| size.table == **name);
        let rows = tables.first().and_then(of).map_or(0, |size| size.rows);
        let bytes: u64 = tables.iter().filter_map(of).map(|size| size.bytes).sum();
        let most = self.mib.saturating_mul(1 << 20);
        if bytes <= most {
            return self.rows;
        }
        let share = u128::from(rows) * u128::from(most) / u128::from(bytes);
        self.rows.min(u64::try_from(share).unwrap_or(u64::MAX))
    }
}

/// The time before which rows may go at `now`, by their age and by the bounds on rows and bytes. The first of `tables`
/// has the rows, the others have what belongs to them; `newest` is as for [`newest_beyond`]. A table that was measured
/// within its bounds is not read.
///
/// # Errors
/// The store fails.
pub async fn read_cutoff(
    pool: &AnyPool,
    keep: Keep,
    tables: &[&str],
    newest: &'static str,
    now: Timestamp,
    sizes: &[TableSize],
) -> Result<Timestamp, StoreError> {
    let most = keep.most_rows(tables, sizes);
    let measured = sizes
        .iter()
        .find(|size| tables.first() == Some(&size.table.as_str()));
    let beyond = match measured {
        Some(size) if size.rows <= most => None,
        Some(_) | None => newest_beyond(pool, newest, most).await?,
    };
    Ok(cutoff(now, keep, beyond))
}

/// The time before which rows may go at `now`: the old ones, and those beyond a number. `newest_beyond` is the time of
/// the newest row beyond that number, if there is one.
pub fn cutoff(now: Timestamp, keep: Keep, newest_beyond: Option<Timestamp>) -> Timestamp {
    let by_number = newest_beyond.map_or(i64::MIN, |newest| newest.micros().saturating_add(1));
    keep.oldest(now).max(Timestamp::from_micros(by_number))
}

/// The time of the newest row beyond the first `rows`, newest first. `statement` selects the times, newest first; its
/// parameter is the number of rows to skip.
///
/// # Errors
/// The store fails.
pub async fn newest_beyond(
    pool: &AnyPool,
    statement: &'static str,
    rows: u64,
) -> Result<Option<Timestamp>, StoreError> {
    const OPERATION: &str = "look for rows beyond the bound of a table";
    let row = sqlx::query(statement)
        .bind(i64::try_from(rows).unwrap_or(i64::MAX))
        .fetch_optional(pool)
        .await
        .during(OPERATION)?;
    let micros = row
        .map(|row| row.try_get::<i64, _>(0).during(OPERATION))
        .transpose()?;
    Ok(micros.map(Timestamp::from_micros))
}

/// Carries out all deletions, step by step, and returns how many rows of each table went. A `Tree` counts the rows of
/// its own table.
///
/// # Errors
/// The store fails. The steps before stay done, and the next sweep goes on.
pub async fn sweep(
    writer: &Writer,
    deletions: &[Deletion],
    pace: Pace,
    clock: &dyn Clock,
) -> Result<Deleted, StoreError> {
    let mut deleted = Deleted::new();
    for deletion in deletions {
        loop {
            let rows = deletion.step(writer, pace.step_rows).await?;
            *deleted.entry(deletion.table()).or_default() += rows;
            if rows < u64::from(pace.step_rows) {
                break;
            }
            if !pace.pause.is_zero() {
                clock.sleep(pace.pause).await;
            }
        }
    }
    deleted.retain(|_, rows| *rows > 0);
    Ok(deleted)
}

/// Sweeps at intervals and reports the sizes of the tables, until its task is dropped. A store that fails is tried
/// again at the next interval.
pub async fn run_janitor<R: RetentionRules>(rules: R, store: JanitorStore, pace: Pace, clock: SharedClock) {
    let mut sizes = Vec::new();
    let mut measure_at = clock.now();
    loop {
        if clock.now() >= measure_at {
            measure_at = clock.now().plus(pace.measure);
            match measure_tables(&store.url).await {
                Ok(measured) => {
                    report_tables(store.role, &measured);
                    sizes = measured;
                }
                Err(error) => tracing::warn!(error = %Causes(&error), "the tables cannot be measured"),
            }
        }
        match sweep_once(&rules, &store.writer, &sizes, pace, &*clock).await {
            Ok(deleted) => {
                for (table, rows) in &deleted {
                    metrics::counter!("muster_store_deleted_rows_total", "role" => store.role, "table" => *table)
                        .increment(*rows);
                }
                if !deleted.is_empty() {
                    tracing::info!(?deleted, "deleted rows that have had their time");
                }
            }
            Err(error) => {
                tracing::warn!(error = %Causes(&error), "old rows stay; the next sweep goes on");
            }
        }
        clock.sleep(pace.interval).await;
    }
}

/// One sweep of everything that is due now.
///
/// # Errors
/// The store fails. The next sweep goes on.
pub async fn sweep_once<R: RetentionRules>(
    rules: &R,
    writer: &Writer,
    sizes: &[TableSize],
    pace: Pace,
    clock: &dyn Clock,
) -> Result<Deleted, StoreError> {
    let due = rules.due(clock.now(), sizes).await?;
    let deleted = sweep(writer, &due, pace, clock).await?;
    rules.swept(clock.now()).await?;
    Ok(deleted)
}

// === impl AgedRows ===

impl AgedRows {
    /// The rows of `table` with the primary key `key` that go by the column `age`, in any order.
    pub const fn new(table: &'static str, key: &'static str, age: &'static str) -> Self {
        Self {
            table,
            key,
            age,
            oldest_first: false,
        }
    }

    /// As [`Self::new`], the oldest first.
    pub const fn oldest_first(table: &'static str, key: &'static str, age: &'static str) -> Self {
        Self {
            oldest_first: true,
            ..Self::new(table, key, age)
        }
    }

    /// Those whose column is below `bound`.
    pub const fn before(self, bound: i64) -> Deletion {
        Deletion::Aged {
            rows: self,
            before: bound,
        }
    }

    /// A `DELETE` whose parameters are the bound and the most rows.
    fn statement(self) -> String {
        let Self { table, key, age, .. } = self;
        let columns = match key.contains(',') {
            true => format!("({key})"),
            false => key.to_owned(),
        };
        let order = match self.oldest_first {
            true => format!(" ORDER BY {age}"),
            false => String::new(),
        };
        format!(
            "DELETE FROM {table} WHERE {columns} IN (SELECT {key} FROM {table} WHERE {age} < $1{order} LIMIT $2)"
        )
    }
}

// === impl Deletion ===

impl Deletion {
    /// The table whose rows go.
    pub const fn table(&self) -> &'static str {
        match self {
            Self::Aged { rows, .. } => rows.table,
            Self::Rows { table, .. } | Self::Tree { table, .. } => table,
        }
    }

    /// Deletes at most `rows` rows in one transaction, and returns how many.
    async fn step(&self, writer: &Writer, rows: u32) -> Result<u64, StoreError> {
        const OPERATION: &str = "delete old rows";
        let limit = [Value::from(i64::from(rows))];
        let mut write = writer.begin().await?;
        let deleted = match self {
            Self::Aged { rows, before } => {
                let query = sqlx::query(AssertSqlSafe(rows.statement()));
                let query = bind(query, [Value::from(*before)].into_iter().chain(limit));
                let done = query.execute(&mut *write).await.during(OPERATION)?;
                done.rows_affected()
            }
            Self::Rows {
                statement, values, ..
            } => {
                let query = bind(sqlx::query(*statement), values.iter().chain(&limit).cloned());
                let done = query.execute(&mut *write).await.during(OPERATION)?;
                done.rows_affected()
            }
            Self::Tree {
                find, values, parts, ..
            } => {
                let query = bind(sqlx::query(*find), values.iter().chain(&limit).cloned());
                let found = query.fetch_all(&mut *write).await.during(OPERATION)?;
                let keys = found
                    .iter()
                    .map(|row| row.try_get("id").during(OPERATION))
                    .collect::<Result<Vec<String>, _>>()?;
                if !keys.is_empty() {
                    let names: Vec<_> = (1..=keys.len()).map(|number| format!("${number}")).collect();
                    let names = names.join(", ");
                    for (table, column) in *parts {
                        let statement = format!("DELETE FROM {table} WHERE {column} IN ({names})");
                        let values = keys.iter().map(|key| Value::from(key.as_str()));
                        let query = bind(sqlx::query(AssertSqlSafe(statement)), values);
                        query.execute(&mut *write).await.during(OPERATION)?;
                    }
                }
                u64::try_from(keys.len()).unwrap_or(u64::MAX)
            }
        };
        if deleted > 0 {
            write.commit(OPERATION).await?;
        }
        Ok(deleted)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_process::{SystemClock, TestClock};

    use super::*;
    use crate::testing::stores;
    use crate::{migrator, size};

    const SECS: fn(i64) -> Timestamp = Timestamp::from_secs;

    #[test]
    fn rows_go_by_age_and_beyond_their_number() {
        let keep = Keep {
            days: 1,
            rows: 10,
            mib: 1,
        };
        let now = SECS(200_000);
        assert_eq!(cutoff(now, keep, None), SECS(113_600));
        assert_eq!(cutoff(now, keep, Some(SECS(5))), SECS(113_600));
        let beyond = cutoff(now, keep, Some(SECS(150_000)));
        assert_eq!(
            beyond.micros(),
            SECS(150_000).micros() + 1,
            "the row itself may go"
        );
        let ages = Keep {
            days: u32::MAX,
            ..keep
        };
        assert_eq!(cutoff(now, ages, None), SECS(0), "no overflow");
    }

    #[test]
    fn rows_beyond_the_bytes_go_in_proportion() {
        let keep = Keep {
            days: 1,
            rows: 1_000,
            mib: 3,
        };
        let size = |table: &str, rows, mib: u64| TableSize {
            table: table.to_owned(),
            rows,
            bytes: mib << 20,
        };
        let sizes = [
            size("jobs", 900, 1),
            size("statuses", 5_000, 8),
            size("other", 1, 99),
        ];
        assert_eq!(keep.most_rows(&["jobs", "statuses"], &sizes), 300);
        assert_eq!(keep.most_rows(&["jobs"], &sizes), 1_000);
        assert_eq!(keep.most_rows(&["jobs"], &[]), 1_000, "not measured yet");
    }

    #[test]
    fn aged_rows_are_selected_by_their_key_and_deleted_by_it() {
        let plain = AgedRows::new("capacity_evidence", "digest", "written_at");
        assert_eq!(
            plain.statement(),
            "DELETE FROM capacity_evidence WHERE digest IN \
             (SELECT digest FROM capacity_evidence WHERE written_at < $1 LIMIT $2)"
        );
        let ordered = AgedRows::oldest_first("routes", "job_id, ordinal", "decided_at");
        assert_eq!(
            ordered.statement(),
            "DELETE FROM routes WHERE (job_id, ordinal) IN \
             (SELECT job_id, ordinal FROM routes WHERE decided_at < $1 ORDER BY decided_at LIMIT $2)"
        );
    }

    /// Deletes what is older than a minute; fails while the clock stands at its start.
    struct MinuteRules {
        start: Timestamp,
    }

    impl RetentionRules for MinuteRules {
        async fn due(&self, now: Timestamp, _sizes: &[TableSize]) -> Result<Vec<Deletion>, StoreError> {
            if now == self.start {
                return Err(StoreError::Superseded);
            }
            let oldest = now.minus(Duration::from_secs(60));
            Ok(vec![
                AgedRows::oldest_first("notes", "at", "at").before(oldest.micros()),
            ])
        }
    }

    #[tokio::test]
    async fn the_janitor_goes_on_after_a_failure_and_reports_what_it_finds_and_deletes() {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let shown = recorder.handle();
        let _installed = metrics::set_default_local_recorder(&recorder);
        let schema = migrator(&[(1, "notes", "CREATE TABLE notes (at BIGINT PRIMARY KEY NOT NULL);")]);
        let test = crate::testing::sqlite(&schema).await.unwrap();
        let start = SECS(1_000_000);
        let clock = TestClock::new(start);
        for n in 0..30 {
            sqlx::query("INSERT INTO notes (at) VALUES ($1)")
                .bind(SECS(start.secs() + n).micros())
                .execute(&test.pool)
                .await
                .unwrap();
        }
        let rules = MinuteRules { start };
        let store = JanitorStore {
            role: "tester",
            url: test.url.clone(),
            writer: Writer::new(&test.pool),
        };
        let pace = Pace {
            step_rows: 4,
            pause: Duration::ZERO,
            interval: Duration::from_secs(70),
            measure: Duration::from_secs(140),
        };
        let janitor = run_janitor(rules, store, pace, Arc::new(clock.clone()));
        let watching = async {
            for sweep in 1..=4 {
                // Each sweep ends with the sleep until the next one.
                let next = start.plus(pace.interval * sweep);
                clock.wait_for_sleepers_until(next, 1).await;
                if sweep < 4 {
                    clock.advance_to(next);
                }
            }
        };
        tokio::select! {
            () = janitor => unreachable!("it does not end"),
            () = watching => {}
        }
        let shown = shown.render();
        for line in [
            // Measured at the start and after 140 s, when the ten rows of the first sweep had gone.
            "muster_store_rows{role=\"tester\",table=\"notes\"} 20",
            "muster_store_deleted_rows_total{role=\"tester\",table=\"notes\"} 30",
        ] {
            assert!(shown.contains(line), "{line} in {shown}");
        }
        assert!(
            shown.contains("muster_store_bytes{role=\"tester\",table=\"notes\"} "),
            "{shown}"
        );
    }

    #[tokio::test]
    async fn each_step_is_bounded_and_a_tree_goes_as_a_whole() {
        let schema = migrator(&[(
            1,
            "sample",
            "CREATE TABLE parents (id TEXT PRIMARY KEY NOT NULL, at BIGINT NOT NULL);\n\
             CREATE TABLE parts (parent TEXT NOT NULL REFERENCES parents (id), n BIGINT NOT NULL);",
        )]);
        for test in stores(&schema).await.unwrap() {
            let writer = Writer::new(&test.pool);
            for n in 0..25_i64 {
                let mut write = writer.begin().await.unwrap();
                sqlx::query("INSERT INTO parents (id, at) VALUES ($1, $2)")
                    .bind(format!("p{n:02}"))
                    .bind(n)
                    .execute(&mut *write)
                    .await
                    .unwrap();
                for part in 0..3_i64 {
                    sqlx::query("INSERT INTO parts (parent, n) VALUES ($1, $2)")
                        .bind(format!("p{n:02}"))
                        .bind(part)
                        .execute(&mut *write)
                        .await
                        .unwrap();
                }
                write.commit("fill").await.unwrap();
            }
            let beyond = newest_beyond(
                &test.pool,
                "SELECT at FROM parents ORDER BY at DESC LIMIT 1 OFFSET $1",
                20,
            );
            assert_eq!(beyond.await.unwrap(), Some(Timestamp::from_micros(4)));
            let tree = Deletion::Tree {
                table: "parents",
                find: "SELECT id FROM parents WHERE at < $1 ORDER BY at LIMIT $2",
                values: vec![12.into()],
                parts: &[("parts", "parent"), ("parents", "id")],
            };
            assert_eq!(tree.step(&writer, 5).await.unwrap(), 5, "{}", test.engine);
            let before = writer.counts().commits;
            let pace = Pace {
                step_rows: 5,
                pause: Duration::ZERO,
                ..PaceSettings::default().pace()
            };
            let clock = Arc::new(SystemClock::default());
            let deleted = sweep(&writer, std::slice::from_ref(&tree), pace, &*clock)
                .await
                .unwrap();
            assert_eq!(deleted, Deleted::from([("parents", 7)]), "{}", test.engine);
            assert_eq!(writer.counts().commits - before, 2, "five, then two");
            let rows = Deletion::Rows {
                table: "parts",
                statement: "DELETE FROM parts WHERE (parent, n) IN \
                            (SELECT parent, n FROM parts WHERE n >= $1 ORDER BY parent, n LIMIT $2)",
                values: vec![1.into()],
            };
            let deleted = sweep(&writer, &[rows, tree], pace, &*clock).await.unwrap();
            assert_eq!(deleted, Deleted::from([("parts", 26)]), "{}", test.engine);
            let sizes = size::measure_tables(&test.url).await.unwrap();
            let counted: Vec<_> = sizes
                .iter()
                .map(|size| (size.table.as_str(), size.rows))
                .collect();
            assert_eq!(counted, [("parents", 13), ("parts", 13)], "{}", test.engine);
            assert!(sizes.iter().all(|size| size.bytes > 0), "{sizes:?}");
        }
    }
}

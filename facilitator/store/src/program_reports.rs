//! The reports of jobs' programs: the newest one of each, and its metrics as series within a bound.

use muster_protocol::job::{MAX_METRICS, MetricName, MetricValue, ProgramReport};
use muster_protocol::rest::{MetricPoint, MetricSeries, NonFinitePoint, ReportedState};
use muster_protocol::wire::encode;
use muster_protocol::{JobId, Timestamp};
use muster_store::{During as _, StoreError};
use sqlx::AnyConnection;

use super::Store;

/// The most points of a series. One that has more loses every second point.
const MAX_POINTS: i64 = 2_000;

muster_store::row! {
    struct PointRow {
        name: String,
        at: i64,
        step: i64,
        value: String,
    }
}

impl Store {
    /// The newest report of a job's program; `None` if it has reported nothing.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn program_report(&self, job: JobId) -> Result<Option<ReportedState>, StoreError> {
        let row: Option<(i64, String)> =
            sqlx::query_as("SELECT at, report FROM program_reports WHERE job = $1")
                .bind(job.to_string())
                .fetch_optional(&self.pool)
                .await
                .during("read a program's report")?;
        row.map(|(at, report)| {
            let report = serde_json::from_str(&report)
                .map_err(|error| StoreError::corrupt("program_reports.report", error))?;
            let at = Timestamp::from_micros(at);
            Ok(ReportedState { at, report })
        })
        .transpose()
    }

    /// The series of a job's metrics, sorted by name, each from its oldest point on.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn metric_series(&self, job: JobId) -> Result<Vec<MetricSeries>, StoreError> {
        let rows: Vec<PointRow> = sqlx::query_as(
            "SELECT name, at, step, value FROM metric_points WHERE job = $1 ORDER BY name, at",
        )
        .bind(job.to_string())
        .fetch_all(&self.pool)
        .await
        .during("read a job's metrics")?;
        let mut series = Vec::<MetricSeries>::new();
        for row in rows {
            let name: MetricName = row
                .name
                .parse()
                .map_err(|error| StoreError::corrupt("metric_points.name", error))?;
            if series.last().is_none_or(|series| series.name != name) {
                series.push(MetricSeries {
                    name,
                    points: Vec::new(),
                    non_finite: Vec::new(),
                });
            }
            if let Some(series) = series.last_mut() {
                row.add_to(series)?;
            }
        }
        Ok(series)
    }
}

/// Stores the newest report of a job, and a point of each of its metrics. Names beyond the bound of a report are left
/// out, whatever the reports before it named.
pub(super) async fn store_report(
    connection: &mut AnyConnection,
    job: &str,
    report: &ProgramReport,
    now: Timestamp,
) -> Result<(), StoreError> {
    const OPERATION: &str = "store a program's report";
    let statement = "INSERT INTO program_reports (job, at, report) VALUES ($1, $2, $3) \
                     ON CONFLICT (job) DO UPDATE SET at = excluded.at, report = excluded.report";
    sqlx::query(statement)
        .bind(job)
        .bind(now.micros())
        .bind(encode(report))
        .execute(&mut *connection)
        .await
        .during(OPERATION)?;
    let known: Vec<(String,)> = sqlx::query_as("SELECT name FROM metric_series WHERE job = $1")
        .bind(job)
        .fetch_all(&mut *connection)
        .await
        .during(OPERATION)?;
    let mut room = MAX_METRICS.saturating_sub(known.len());
    let step = report
        .step
        .and_then(|step| i64::try_from(step).ok())
        .unwrap_or(-1);
    let finite = report
        .metrics
        .iter()
        .map(|(name, value)| (name, value.to_string()));
    let others = report
        .non_finite
        .iter()
        .map(|(name, value)| (name, value.to_string()));
    for (name, value) in finite.chain(others) {
        let name = name.as_str();
        if !known.iter().any(|(known,)| known == name) {
            match room.checked_sub(1) {
                Some(left) => room = left,
                None => continue,
            }
        }
        insert_point(connection, (job, name), now, step, value).await?;
    }
    halve_long_series(connection, job).await
}

async fn insert_point(
    connection: &mut AnyConnection,
    (job, name): (&str, &str),
    at: Timestamp,
    step: i64,
    value: String,
) -> Result<(), StoreError> {
    const OPERATION: &str = "store a metric";
    let statement = "INSERT INTO metric_points (job, name, at, step, value) VALUES ($1, $2, $3, $4, $5) \
                     ON CONFLICT (job, name, at) DO NOTHING";
    let inserted = sqlx::query(statement)
        .bind(job)
        .bind(name)
        .bind(at.micros())
        .bind(step)
        .bind(value)
        .execute(&mut *connection)
        .await
        .during(OPERATION)?;
    if inserted.rows_affected() == 0 {
        return Ok(());
    }
    let statement = "INSERT INTO metric_series (job, name, points) VALUES ($1, $2, 1) \
                     ON CONFLICT (job, name) DO UPDATE SET points = metric_series.points + 1";
    sqlx::query(statement)
        .bind(job)
        .bind(name)
        .execute(connection)
        .await
        .during(OPERATION)?;
    Ok(())
}

/// Deletes every second point of the series of a job that have more than [`MAX_POINTS`].
async fn halve_long_series(connection: &mut AnyConnection, job: &str) -> Result<(), StoreError> {
    const OPERATION: &str = "halve a job's metrics";
    let long: Vec<(String,)> =
        sqlx::query_as("SELECT name FROM metric_series WHERE job = $1 AND points > $2")
            .bind(job)
            .bind(MAX_POINTS)
            .fetch_all(&mut *connection)
            .await
            .during(OPERATION)?;
    for (name,) in long {
        let statement = "DELETE FROM metric_points WHERE job = $1 AND name = $2 AND at IN (SELECT at FROM \
                         (SELECT at, ROW_NUMBER() OVER (ORDER BY at) AS place FROM metric_points \
                         WHERE job = $1 AND name = $2) AS placed WHERE place % 2 = 0)";
        let deleted = sqlx::query(statement)
            .bind(job)
            .bind(&name)
            .execute(&mut *connection)
            .await
            .during(OPERATION)?;
        sqlx::query("UPDATE metric_series SET points = points - $3 WHERE job = $1 AND name = $2")
            .bind(job)
            .bind(&name)
            .bind(i64::try_from(deleted.rows_affected()).unwrap_or(i64::MAX))
            .execute(&mut *connection)
            .await
            .during(OPERATION)?;
    }
    Ok(())
}

impl PointRow {
    fn add_to(self, series: &mut MetricSeries) -> Result<(), StoreError> {
        let number: f64 = self
            .value
            .parse()
            .map_err(|error| StoreError::corrupt("metric_points.value", error))?;
        let (at, step) = (Timestamp::from_micros(self.at), u64::try_from(self.step).ok());
        match MetricValue::classify(number) {
            Ok(value) => series.points.push(MetricPoint { at, step, value }),
            Err(value) => series.non_finite.push(NonFinitePoint { at, step, value }),
        }
        Ok(())
    }
}

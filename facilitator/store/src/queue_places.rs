//! The places of jobs that wait for an executor, as their validators last reported them.

use std::collections::{BTreeMap, HashMap};

use muster_facilitator_core::credentials::Account;
use muster_protocol::rest::{QueueEvent, QueuedJob};
use muster_protocol::wire::muster::LiveQueuePlace;
use muster_protocol::{ExecutorClass, JobId, Timestamp, ValidatorKey};
use muster_store::columns::storable_text;
use muster_store::{During as _, StoreError};
use sqlx::{AnyConnection, AssertSqlSafe};

use super::Store;

/// The most characters of the reason that are stored.
const MAX_WHY: usize = 500;

/// The condition that a row of `queue_places` is about a job that waits still. A place is of the past once the job has
/// ended, or once its validator has reported an attempt after it reported the place.
pub(super) const IS_WAITING: &str = "queue_places.waiting > 0 \
    AND EXISTS (SELECT 1 FROM jobs AS held WHERE held.uuid = queue_places.job AND held.ended_at = 0) \
    AND NOT EXISTS (SELECT 1 FROM statuses AS later WHERE later.job = queue_places.job \
        AND later.status NOT IN ('sent', 'received', 'unknown') AND later.created_at >= queue_places.told_at)";

/// The place of a job that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPlace {
    /// The place as its validator reported it.
    pub told: QueueEvent,
    /// When the message came.
    pub told_at: Timestamp,
}

/// A row of `queue_places`: the job, the class, the jobs ahead and in all, the estimate in seconds or -1, the reason,
/// and the time at which it was reported.
type QueuePlaceRow = (String, String, i64, i64, i64, String, i64);

const COLUMNS: &str = "job, class, ahead, waiting, estimate_s, why, told_at";

// === impl StoredPlace ===

impl StoredPlace {
    /// The place as the view of a job shows it.
    pub fn to_view(&self) -> QueuedJob {
        QueuedJob::new(&self.told, self.told_at)
    }

    /// A class that only a newer facilitator knows makes a row that this one does not show.
    fn read(row: QueuePlaceRow) -> Option<(String, Self)> {
        let (job, class, ahead, waiting, estimate_s, why, told_at) = row;
        let told = QueueEvent {
            class: class.parse().ok()?,
            ahead: u64::try_from(ahead).unwrap_or_default(),
            waiting: u64::try_from(waiting).unwrap_or_default(),
            estimate_s: u64::try_from(estimate_s).ok(),
            why,
        };
        let told_at = Timestamp::from_micros(told_at);
        Some((job, Self { told, told_at }))
    }
}

// === impl Store ===

impl Store {
    /// The last known place of a job; `None` if the job does not wait, or its validator has reported no place.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn queue_place(&self, job: JobId) -> Result<Option<StoredPlace>, StoreError> {
        let job = job.to_string();
        let mut places = self.queue_places(std::slice::from_ref(&job)).await?;
        Ok(places.remove(&job))
    }

    /// The last known places of those of the jobs that wait, by the job's id.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn queue_places(&self, jobs: &[String]) -> Result<HashMap<String, StoredPlace>, StoreError> {
        if jobs.is_empty() {
            return Ok(HashMap::new());
        }
        let names: Vec<_> = (1..=jobs.len()).map(|number| format!("${number}")).collect();
        let statement = format!(
            "SELECT {COLUMNS} FROM queue_places WHERE job IN ({}) AND {IS_WAITING}",
            names.join(", ")
        );
        let mut query = sqlx::query_as(AssertSqlSafe(statement));
        for job in jobs {
            query = query.bind(job.as_str());
        }
        let rows: Vec<QueuePlaceRow> = query
            .fetch_all(&self.pool)
            .await
            .during("read the places of jobs")?;
        Ok(rows.into_iter().filter_map(StoredPlace::read).collect())
    }

    /// Jobs of the account that wait at the validator, by class.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn count_waiting(
        &self,
        account: &Account,
        validator: ValidatorKey,
    ) -> Result<BTreeMap<ExecutorClass, usize>, StoreError> {
        let statement = format!(
            "SELECT queue_places.class, CAST(COUNT(*) AS BIGINT) FROM queue_places \
             JOIN jobs ON jobs.uuid = queue_places.job \
             WHERE jobs.account = $1 AND jobs.ended_at = 0 AND jobs.validator = $2 AND {IS_WAITING} \
             GROUP BY queue_places.class"
        );
        let rows: Vec<(String, i64)> = sqlx::query_as(AssertSqlSafe(statement))
            .bind(account.to_string())
            .bind(validator.to_string())
            .fetch_all(&self.pool)
            .await
            .during("count waiting jobs")?;
        let read = |(class, count): (String, i64)| {
            let count = usize::try_from(count).unwrap_or_default();
            class.parse().ok().map(|class| (class, count))
        };
        Ok(rows.into_iter().filter_map(read).collect())
    }
}

/// Stores the place of a waiting job that was reported at `told_at`, unless a newer one is stored.
pub(super) async fn store_place(
    connection: &mut AnyConnection,
    place: &LiveQueuePlace,
    told_at: Timestamp,
) -> Result<(), StoreError> {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let statement = "INSERT INTO queue_places (job, class, ahead, waiting, estimate_s, why, told_at) \
                     VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (job) DO UPDATE SET \
                     class = excluded.class, ahead = excluded.ahead, waiting = excluded.waiting, \
                     estimate_s = excluded.estimate_s, why = excluded.why, told_at = excluded.told_at \
                     WHERE queue_places.told_at <= excluded.told_at";
    sqlx::query(statement)
        .bind(place.uuid.to_string())
        .bind(place.class.as_str())
        .bind(number(place.ahead))
        .bind(number(place.waiting))
        .bind(place.estimate_s.map_or(-1, number))
        .bind(storable_text(place.why.chars().take(MAX_WHY).collect::<String>()))
        .bind(told_at.micros())
        .execute(connection)
        .await
        .during("store the place of a job")?;
    Ok(())
}

/// Stores that a job does not wait any more, although its history has not changed: a further attempt repeats the
/// statuses of the one before.
pub(super) async fn end_place(
    connection: &mut AnyConnection,
    job: JobId,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let done =
        sqlx::query("UPDATE queue_places SET waiting = 0, told_at = $1 WHERE job = $2 AND waiting > 0")
            .bind(now.micros())
            .bind(job.to_string())
            .execute(connection)
            .await
            .during("store that a job waits no more")?;
    Ok(done.rows_affected() > 0)
}

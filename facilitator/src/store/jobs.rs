//! Jobs and their statuses in the store.

use std::collections::HashMap;

use muster_identity::Verified;
use muster_kit::store::{During as _, StoreError, begin, json};
use muster_protocol::volume::{Volume, VolumePart};
use muster_protocol::wire::encode;
use muster_protocol::wire::facilitator::{JobRequest, JobStatusUpdate, StatusMetadata, UserSignature};
use muster_protocol::{JobId, JobStatus, Timestamp, UserKey, ValidatorKey};
use sqlx::{AnyConnection, FromRow};

use super::Store;
use muster_porter::jobs::{History, Step, UpdateRefused};

/// How often an update is tried against another facilitator that writes to the same job.
const MAX_RACES: usize = 16;

/// A job as stored.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredJob {
    /// Who asked for it.
    pub user: UserKey,
    /// Who holds it.
    pub validator: ValidatorKey,
    /// The frame for the validator.
    pub request: JobRequest,
    /// Its statuses.
    pub history: History,
}

/// What became of a validator's update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// Durable.
    Yes,
    /// There is no such job, or it is not this validator's: it is not told which.
    NoSuchJob,
    /// It does not fit the job's history.
    Refused(UpdateRefused),
}

/// One page of a user's jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// How many jobs the user has.
    pub count: u64,
    /// The jobs of this page, newest first, each without the contents of its inline volumes.
    pub jobs: Vec<StoredJob>,
}

/// What became of a request for a page.
#[derive(Clone, Debug, PartialEq)]
pub enum Listed {
    /// Here it is.
    Page(Page),
    /// It would be longer than [`MAX_PAGE_BYTES`].
    TooLong,
}

/// A page's requests, without inline contents, and results together, in bytes.
pub const MAX_PAGE_BYTES: usize = 64 * 1024 * 1024;

/// Requests longer than this are read one at a time, so that a page never holds the inline inputs of all its jobs.
const MAX_LISTED_REQUEST: i64 = 64 * 1024;

#[derive(FromRow)]
struct JobRow {
    uuid: String,
    user_key: String,
    validator: String,
    request: String,
}

#[derive(FromRow)]
struct StatusRow {
    job: String,
    status: String,
    metadata: String,
    created_at: i64,
}

impl Store {
    /// Stores a job with its first status, `sent`, unless the same signature has made one already.
    ///
    /// Returns the uuid of the job that the signature names: the new one, or the one of the first time.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn create(
        &self,
        validator: ValidatorKey,
        request: &Verified<JobRequest>,
        now: Timestamp,
    ) -> Result<JobId, StoreError> {
        let mut transaction = begin(&self.pool).await?;
        let statement = "INSERT INTO jobs (uuid, user_key, validator, timestamp_ns, signature, request, created_at) \
                         VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (user_key, timestamp_ns, signature) DO NOTHING";
        let done = sqlx::query(statement)
            .bind(request.uuid.to_string())
            .bind(request.signature.signatory.to_string())
            .bind(validator.to_string())
            .bind(request.signature.timestamp_ns)
            .bind(request.signature.signature.to_base64())
            .bind(encode::<JobRequest>(request))
            .bind(now.micros())
            .execute(&mut *transaction)
            .await
            .during("store a job")?;
        if done.rows_affected() == 1 {
            let sent = Step {
                status: JobStatus::Sent,
                metadata: None,
                at: now,
            };
            append(&mut transaction, request.uuid, 0, &sent).await?;
        }
        transaction.commit().await.during("store a job")?;
        let stored = self.job_of(&request.signature).await?;
        stored.ok_or_else(|| StoreError::corrupt("jobs", "a job vanished after it was stored"))
    }

    /// The job that a signature has made, if it has.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn job_of(&self, signature: &UserSignature) -> Result<Option<JobId>, StoreError> {
        let statement = "SELECT uuid FROM jobs WHERE user_key = $1 AND timestamp_ns = $2 AND signature = $3";
        let row: Option<(String,)> = sqlx::query_as(statement)
            .bind(signature.signatory.to_string())
            .bind(signature.timestamp_ns)
            .bind(signature.signature.to_base64())
            .fetch_optional(&self.pool)
            .await
            .during("look for a repeated request")?;
        row.map(|(uuid,)| json::parse("jobs.uuid", &uuid)).transpose()
    }

    /// One job with its history.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn job(&self, uuid: JobId) -> Result<Option<StoredJob>, StoreError> {
        let row: Option<JobRow> =
            sqlx::query_as("SELECT uuid, user_key, validator, request FROM jobs WHERE uuid = $1")
                .bind(uuid.to_string())
                .fetch_optional(&self.pool)
                .await
                .during("read a job")?;
        let Some(row) = row else { return Ok(None) };
        let history = self.history(uuid).await?;
        row.into_job(history).map(Some)
    }

    /// The jobs of `user`, newest first.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn jobs_of(&self, user: UserKey, limit: u32, offset: u64) -> Result<Listed, StoreError> {
        let (count,): (i64,) = sqlx::query_as("SELECT COUNT(*) FROM jobs WHERE user_key = $1")
            .bind(user.to_string())
            .fetch_one(&self.pool)
            .await
            .during("count jobs")?;
        let offset = i64::try_from(offset).unwrap_or(i64::MAX);
        let statement = "SELECT COALESCE(CAST(SUM(LENGTH(metadata)) AS BIGINT), 0) FROM statuses WHERE job IN (\
                         SELECT uuid FROM jobs WHERE user_key = $1 ORDER BY created_at DESC, uuid DESC LIMIT $2 OFFSET $3)";
        let (results,): (i64,) = sqlx::query_as(statement)
            .bind(user.to_string())
            .bind(i64::from(limit))
            .bind(offset)
            .fetch_one(&self.pool)
            .await
            .during("measure statuses")?;
        let mut left = MAX_PAGE_BYTES.checked_sub(usize::try_from(results).unwrap_or(usize::MAX));
        let statement = "SELECT uuid, user_key, validator, \
                         CASE WHEN LENGTH(request) <= $4 THEN request ELSE '' END AS request \
                         FROM jobs WHERE user_key = $1 ORDER BY created_at DESC, uuid DESC LIMIT $2 OFFSET $3";
        let mut rows: Vec<JobRow> = sqlx::query_as(statement)
            .bind(user.to_string())
            .bind(i64::from(limit))
            .bind(offset)
            .bind(MAX_LISTED_REQUEST)
            .fetch_all(&self.pool)
            .await
            .during("list jobs")?;
        let mut requests = Vec::new();
        for row in &mut rows {
            if row.request.is_empty() {
                row.request = self.request(&row.uuid).await?;
            }
            let request = without_contents(json::decode("jobs.request", &std::mem::take(&mut row.request))?);
            left = left.and_then(|left| left.checked_sub(encode(&request).len()));
            if left.is_none() {
                return Ok(Listed::TooLong);
            }
            requests.push(request);
        }
        let statement = "SELECT job, status, metadata, created_at FROM statuses WHERE job IN (\
                         SELECT uuid FROM jobs WHERE user_key = $1 ORDER BY created_at DESC, uuid DESC LIMIT $2 OFFSET $3) \
                         ORDER BY job, position";
        let statuses: Vec<StatusRow> = sqlx::query_as(statement)
            .bind(user.to_string())
            .bind(i64::from(limit))
            .bind(offset)
            .fetch_all(&self.pool)
            .await
            .during("list statuses")?;
        let mut histories: HashMap<String, History> = HashMap::new();
        for row in statuses {
            let (job, step) = row.into_step()?;
            histories.entry(job).or_default().push(step);
        }
        let jobs = rows
            .into_iter()
            .zip(requests)
            .map(|(row, request)| {
                let history = histories.remove(&row.uuid).unwrap_or_default();
                row.with(request, history)
            })
            // A job made between the two statements has pushed another off the page and has no history here yet.
            .filter(|job| !matches!(job, Ok(job) if job.history.is_empty()))
            .collect::<Result<_, _>>()?;
        let count = u64::try_from(count).unwrap_or_default();
        Ok(Listed::Page(Page { count, jobs }))
    }

    /// The text of one job's request.
    async fn request(&self, uuid: &str) -> Result<String, StoreError> {
        let (request,) = sqlx::query_as("SELECT request FROM jobs WHERE uuid = $1")
            .bind(uuid)
            .fetch_one(&self.pool)
            .await
            .during("read a job's request")?;
        Ok(request)
    }

    /// The jobs of `validator` about which it has not said anything yet, oldest first.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn unanswered(&self, validator: ValidatorKey) -> Result<Vec<JobId>, StoreError> {
        let statement =
            "SELECT uuid FROM jobs WHERE validator = $1 AND answered = 0 ORDER BY created_at, uuid";
        let rows: Vec<(String,)> = sqlx::query_as(statement)
            .bind(validator.to_string())
            .fetch_all(&self.pool)
            .await
            .during("list jobs to deliver")?;
        rows.into_iter()
            .map(|(uuid,)| json::parse("jobs.uuid", &uuid))
            .collect()
    }

    /// Makes an update of the validator that holds the job durable, if it fits the job's history.
    ///
    /// # Errors
    /// The store failed; nothing is known about whether the update was taken.
    pub async fn record(
        &self,
        validator: ValidatorKey,
        update: &JobStatusUpdate,
        now: Timestamp,
    ) -> Result<Recorded, StoreError> {
        let holder: Option<(String,)> = sqlx::query_as("SELECT validator FROM jobs WHERE uuid = $1")
            .bind(update.uuid.to_string())
            .fetch_optional(&self.pool)
            .await
            .during("look for a job")?;
        if holder.is_none_or(|(holder,)| holder != validator.to_string()) {
            return Ok(Recorded::NoSuchJob);
        }
        let step = Step {
            status: update.status,
            metadata: update.metadata.clone(),
            at: now,
        };
        for _ in 0..MAX_RACES {
            let history = self.history(update.uuid).await?;
            if let Err(refused) = history.admits(update) {
                return Ok(Recorded::Refused(refused));
            }
            let mut transaction = begin(&self.pool).await?;
            if append(&mut transaction, update.uuid, history.len(), &step).await? {
                sqlx::query("UPDATE jobs SET answered = 1 WHERE uuid = $1")
                    .bind(update.uuid.to_string())
                    .execute(&mut *transaction)
                    .await
                    .during("store a status")?;
                transaction.commit().await.during("store a status")?;
                return Ok(Recorded::Yes);
            }
        }
        Err(StoreError::corrupt(
            "statuses",
            "a job's history changes faster than it can be read",
        ))
    }

    async fn history(&self, job: JobId) -> Result<History, StoreError> {
        let statement =
            "SELECT job, status, metadata, created_at FROM statuses WHERE job = $1 ORDER BY position";
        let rows: Vec<StatusRow> = sqlx::query_as(statement)
            .bind(job.to_string())
            .fetch_all(&self.pool)
            .await
            .during("read a job's history")?;
        let steps = rows.into_iter().map(|row| row.into_step().map(|(_, step)| step));
        Ok(History::new(steps.collect::<Result<_, _>>()?))
    }
}

/// Writes a step at `position`; `false` if another facilitator has written one there.
async fn append(
    connection: &mut AnyConnection,
    job: JobId,
    position: usize,
    step: &Step,
) -> Result<bool, StoreError> {
    let statement = "INSERT INTO statuses (job, position, status, metadata, created_at) VALUES ($1, $2, $3, $4, $5) \
                     ON CONFLICT (job, position) DO NOTHING";
    let done = sqlx::query(statement)
        .bind(job.to_string())
        .bind(i64::try_from(position).unwrap_or(i64::MAX))
        .bind(step.status.as_str())
        .bind(encode(&step.metadata))
        .bind(step.at.micros())
        .execute(connection)
        .await
        .during("store a status")?;
    Ok(done.rows_affected() == 1)
}

// === impl JobRow, StatusRow ===

impl JobRow {
    fn into_job(self, history: History) -> Result<StoredJob, StoreError> {
        let request = json::decode("jobs.request", &self.request)?;
        self.with(request, history)
    }

    fn with(self, request: JobRequest, history: History) -> Result<StoredJob, StoreError> {
        Ok(StoredJob {
            user: json::parse("jobs.user_key", &self.user_key)?,
            validator: json::parse("jobs.validator", &self.validator)?,
            request,
            history,
        })
    }
}

/// Lists leave out what only the job's own page shows: inline inputs, up to 16 MiB a job.
fn without_contents(mut request: JobRequest) -> JobRequest {
    let inline = |part: &mut VolumePart| match part {
        VolumePart::Inline(inline) => inline.contents = String::new(),
        VolumePart::ZipUrl(_) | VolumePart::SingleFile(_) | VolumePart::HuggingfaceVolume(_) => {}
    };
    match &mut request.volume {
        Some(Volume::Inline(inline)) => inline.contents = String::new(),
        Some(Volume::MultiVolume(multi)) => multi.volumes.iter_mut().for_each(inline),
        Some(Volume::ZipUrl(_) | Volume::SingleFile(_) | Volume::HuggingfaceVolume(_)) | None => {}
    }
    request
}

impl StatusRow {
    fn into_step(self) -> Result<(String, Step), StoreError> {
        let metadata: Option<StatusMetadata> = json::decode("statuses.metadata", &self.metadata)?;
        let step = Step {
            status: JobStatus::from_wire(&self.status),
            metadata,
            at: Timestamp::from_micros(self.created_at),
        };
        Ok((self.job, step))
    }
}

//! Jobs and their statuses in the store.

use std::collections::HashMap;

use muster_facilitator_core::account::Account;
use muster_facilitator_core::history::{HistoryEntry, JobHistory, UpdateRejection};
use muster_facilitator_core::page::JobFilter;
use muster_identity::Verified;
use muster_process::store::{During as _, StoreError, json};
use muster_protocol::volume::{Volume, VolumePart};
use muster_protocol::wire::encode;
use muster_protocol::wire::facilitator::{
    JobRequest, JobStatusUpdate, RejectionDetails, StatusMetadata, UserSignature,
};
use muster_protocol::{JobId, JobRejectionReason, JobStatus, ParticipantType, Timestamp, ValidatorKey};
use sqlx::{AnyConnection, AssertSqlSafe, FromRow};

use crate::store::Store;
use crate::store::api_keys::{Actor, AuditAction, JobQuota, QuotaExceeded, count_job, note};

/// How often an update is tried against another facilitator that writes to the same job.
const MAX_RACES: usize = 16;

/// A job as stored.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredJob {
    /// Whose it is.
    pub account: Account,
    /// Who holds it.
    pub validator: ValidatorKey,
    /// The frame for the validator.
    pub request: JobRequest,
    /// Its statuses.
    pub history: JobHistory,
    /// Whether its user no longer wants it.
    pub cancelled: bool,
}

/// A job on its way in.
#[derive(Clone, Copy, Debug)]
pub struct JobSubmission<'a> {
    /// Who asks.
    pub actor: &'a Actor,
    /// Who is to hold it.
    pub validator: ValidatorKey,
    /// The frame for the validator.
    pub request: &'a Verified<JobRequest>,
    /// The client's own name for this request, by which a repetition is known.
    pub idempotency: Option<&'a str>,
    /// How many jobs the account may make.
    pub quota: JobQuota,
}

/// What became of a job on its way in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobCreation {
    /// It is durable.
    New,
    /// The same request has made this job before.
    Existing(JobId),
    /// The account may not make more.
    QuotaExceeded(QuotaExceeded),
}

/// What became of the wish that a job stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancellationOutcome {
    /// It had not begun, and has ended.
    Ended,
    /// Its validator is to stop it.
    Requested,
    /// It had ended before.
    TooLate(JobStatus),
}

/// What became of a validator's update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpdateOutcome {
    /// Durable.
    Recorded,
    /// There is no such job, or it is not this validator's: it is not told which.
    NoSuchJob,
    /// Another facilitator holds the connection over which this validator's jobs go.
    HeldElsewhere,
    /// It does not fit the job's history.
    Rejected(UpdateRejection),
}

/// One page of a user's jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// How many jobs the account has that pass the filter.
    pub count: u64,
    /// The jobs of this page, newest first, each without the contents of its inline volumes.
    pub jobs: Vec<StoredJob>,
}

/// What became of a request for a page.
#[derive(Clone, Debug, PartialEq)]
pub enum JobListing {
    /// Here it is.
    Page(Page),
    /// It would be longer than [`MAX_PAGE_BYTES`].
    TooLong,
}

/// A page's requests, without inline contents, and results together, in bytes.
pub const MAX_PAGE_BYTES: usize = 64 * 1024 * 1024;

/// Requests longer than this are read one at a time, so that a page never holds the inline inputs of all its jobs.
const MAX_LISTED_REQUEST: i64 = 64 * 1024;

/// The columns of a [`JobRow`], but for the request.
const JOB_COLUMNS: &str = "uuid, account, validator, cancelled_at";

#[derive(FromRow)]
struct JobRow {
    uuid: String,
    account: String,
    validator: String,
    cancelled_at: i64,
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
    /// Stores a job with its first status, `sent`, unless the same signature, or the same request of a client that names
    /// its requests, has made one already.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn create(&self, job: JobSubmission<'_>, now: Timestamp) -> Result<JobCreation, StoreError> {
        let (request, account) = (job.request, job.actor.account.to_string());
        let mut transaction = self.writer.begin().await?;
        let statement = "INSERT INTO jobs (uuid, user_key, validator, timestamp_ns, signature, request, created_at, account, idempotency) \
                         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT DO NOTHING";
        let done = sqlx::query(statement)
            .bind(request.uuid.to_string())
            .bind(request.signature.signatory.to_string())
            .bind(job.validator.to_string())
            .bind(request.signature.timestamp_ns)
            .bind(request.signature.signature.to_base64())
            .bind(encode::<JobRequest>(request))
            .bind(now.micros())
            .bind(&account)
            .bind(job.idempotency)
            .execute(&mut *transaction)
            .await
            .during("store a job")?;
        if done.rows_affected() == 0 {
            drop(transaction);
            let known = self.repeated(job).await?;
            let vanished = || StoreError::corrupt("jobs", "a job vanished after it was stored");
            return known.map(JobCreation::Existing).ok_or_else(vanished);
        }
        if let Err(over) = count_job(&mut transaction, &account, job.quota, now).await? {
            return Ok(JobCreation::QuotaExceeded(over));
        }
        let sent = HistoryEntry {
            status: JobStatus::Sent,
            metadata: None,
            at: now,
        };
        append(&mut transaction, request.uuid, 0, &sent).await?;
        let subject = request.uuid.to_string();
        note(
            &mut transaction,
            job.actor,
            AuditAction::JobCreated,
            &subject,
            now,
        )
        .await?;
        transaction.commit("store a job").await?;
        Ok(JobCreation::New)
    }

    /// The job that the same request has made before, if it has.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn repeated(&self, job: JobSubmission<'_>) -> Result<Option<JobId>, StoreError> {
        if let Some(known) = self.job_of(&job.request.signature).await? {
            return Ok(Some(known));
        }
        let Some(name) = job.idempotency else {
            return Ok(None);
        };
        let row: Option<(String,)> =
            sqlx::query_as("SELECT uuid FROM jobs WHERE account = $1 AND idempotency = $2")
                .bind(job.actor.account.to_string())
                .bind(name)
                .fetch_optional(&self.pool)
                .await
                .during("look for a repeated request")?;
        row.map(|(uuid,)| json::parse("jobs.uuid", &uuid)).transpose()
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
        let statement = format!("SELECT {JOB_COLUMNS}, request FROM jobs WHERE uuid = $1");
        let row: Option<JobRow> = sqlx::query_as(AssertSqlSafe(statement))
            .bind(uuid.to_string())
            .fetch_optional(&self.pool)
            .await
            .during("read a job")?;
        let Some(row) = row else { return Ok(None) };
        let history = self.history(uuid).await?;
        row.into_job(history).map(Some)
    }

    /// Whose a job is and who holds it, without reading all of it.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn owner(&self, uuid: JobId) -> Result<Option<(Account, ValidatorKey)>, StoreError> {
        let row: Option<(String, String)> =
            sqlx::query_as("SELECT account, validator FROM jobs WHERE uuid = $1")
                .bind(uuid.to_string())
                .fetch_optional(&self.pool)
                .await
                .during("look for a job's owner")?;
        row.map(|(account, validator)| {
            Ok((
                json::parse("jobs.account", &account)?,
                json::parse("jobs.validator", &validator)?,
            ))
        })
        .transpose()
    }

    /// The jobs of `account` that pass `filter`, newest first.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn jobs_of(
        &self,
        account: &Account,
        filter: &JobFilter,
        limit: u32,
        offset: u64,
    ) -> Result<JobListing, StoreError> {
        if filter.labelled {
            return Ok(JobListing::Page(Page {
                count: 0,
                jobs: Vec::new(),
            }));
        }
        let (count, uuids) = self.uuids_of(account, filter, limit, offset).await?;
        if uuids.is_empty() {
            return Ok(JobListing::Page(Page {
                count,
                jobs: Vec::new(),
            }));
        }
        // A page's jobs by name: the list is long, the page is not.
        let names = placeholders(1, uuids.len());
        let statement = format!(
            "SELECT COALESCE(CAST(SUM(LENGTH(metadata)) AS BIGINT), 0) FROM statuses WHERE job IN ({names})"
        );
        let mut query = sqlx::query_as(AssertSqlSafe(statement));
        for uuid in &uuids {
            query = query.bind(uuid.as_str());
        }
        let (results,): (i64,) = query.fetch_one(&self.pool).await.during("measure statuses")?;
        let mut left = MAX_PAGE_BYTES.checked_sub(usize::try_from(results).unwrap_or(usize::MAX));
        let names = placeholders(2, uuids.len());
        let statement = format!(
            "SELECT {JOB_COLUMNS}, CASE WHEN LENGTH(request) <= $1 THEN request ELSE '' END AS request \
             FROM jobs WHERE uuid IN ({names}) ORDER BY created_at DESC, uuid DESC"
        );
        let mut query = sqlx::query_as(AssertSqlSafe(statement)).bind(MAX_LISTED_REQUEST);
        for uuid in &uuids {
            query = query.bind(uuid.as_str());
        }
        let mut rows: Vec<JobRow> = query.fetch_all(&self.pool).await.during("list jobs")?;
        let mut requests = Vec::new();
        for row in &mut rows {
            if row.request.is_empty() {
                row.request = self.request(&row.uuid).await?;
            }
            let request = without_contents(json::decode("jobs.request", &std::mem::take(&mut row.request))?);
            left = left.and_then(|left| left.checked_sub(encode(&request).len()));
            if left.is_none() {
                return Ok(JobListing::TooLong);
            }
            requests.push(request);
        }
        let mut histories = self.histories(&uuids).await?;
        let jobs = rows
            .into_iter()
            .zip(requests)
            .map(|(row, request)| {
                let history = histories.remove(&row.uuid).unwrap_or_default();
                row.with(request, history)
            })
            .collect::<Result<_, _>>()?;
        Ok(JobListing::Page(Page { count, jobs }))
    }

    /// How many jobs pass, and the names of those on one page, newest first.
    async fn uuids_of(
        &self,
        account: &Account,
        filter: &JobFilter,
        limit: u32,
        offset: u64,
    ) -> Result<(u64, Vec<String>), StoreError> {
        let which = match filter.uuids.len() {
            0 => String::new(),
            some => format!("AND uuid IN ({})", placeholders(4, some)),
        };
        // The first three are in both statements, so that the rest have the same numbers.
        let counting = format!(
            "SELECT COUNT(*) FROM jobs WHERE account = $1 AND CAST($2 AS BIGINT) >= 0 AND CAST($3 AS BIGINT) >= 0 {which}"
        );
        let listing = format!(
            "SELECT uuid FROM jobs WHERE account = $1 {which} ORDER BY created_at DESC, uuid DESC LIMIT $2 OFFSET $3"
        );
        let offset = i64::try_from(offset).unwrap_or(i64::MAX);
        let mut count = sqlx::query_as(AssertSqlSafe(counting))
            .bind(account.to_string())
            .bind(i64::from(limit))
            .bind(offset);
        let mut page = sqlx::query_as(AssertSqlSafe(listing))
            .bind(account.to_string())
            .bind(i64::from(limit))
            .bind(offset);
        for uuid in &filter.uuids {
            count = count.bind(uuid.to_string());
            page = page.bind(uuid.to_string());
        }
        let (count,): (i64,) = count.fetch_one(&self.pool).await.during("count jobs")?;
        let uuids: Vec<(String,)> = page.fetch_all(&self.pool).await.during("list jobs")?;
        let uuids = uuids.into_iter().map(|(uuid,)| uuid).collect();
        Ok((u64::try_from(count).unwrap_or_default(), uuids))
    }

    async fn histories(&self, uuids: &[String]) -> Result<HashMap<String, JobHistory>, StoreError> {
        let names = placeholders(1, uuids.len());
        let statement = format!(
            "SELECT job, status, metadata, created_at FROM statuses WHERE job IN ({names}) ORDER BY job, position"
        );
        let mut query = sqlx::query_as(AssertSqlSafe(statement));
        for uuid in uuids {
            query = query.bind(uuid.as_str());
        }
        let statuses: Vec<StatusRow> = query.fetch_all(&self.pool).await.during("list statuses")?;
        let mut histories: HashMap<String, JobHistory> = HashMap::new();
        for row in statuses {
            let (job, step) = row.into_step()?;
            histories.entry(job).or_default().push(step);
        }
        Ok(histories)
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
    ) -> Result<UpdateOutcome, StoreError> {
        // Everything in one turn: a question outside of it would wait for whatever is being committed.
        let mut transaction = self.writer.begin().await?;
        let statement = "SELECT jobs.validator, COALESCE(validators.replica, '') FROM jobs \
                         LEFT JOIN validators ON validators.hotkey = jobs.validator WHERE uuid = $1";
        let holder: Option<(String, String)> = sqlx::query_as(statement)
            .bind(update.uuid.to_string())
            .fetch_optional(&mut *transaction)
            .await
            .during("look for a job")?;
        match holder {
            Some((holder, replica)) if holder == validator.to_string() => {
                if !replica.is_empty() && replica != *self.replica {
                    return Ok(UpdateOutcome::HeldElsewhere);
                }
            }
            Some(_) | None => return Ok(UpdateOutcome::NoSuchJob),
        }
        let step = HistoryEntry {
            status: update.status,
            metadata: update.metadata.clone(),
            at: now,
        };
        for _ in 0..MAX_RACES {
            let history = read_history(&mut transaction, update.uuid).await?;
            if let Err(refused) = history.check(update) {
                return Ok(UpdateOutcome::Rejected(refused));
            }
            if append(&mut transaction, update.uuid, history.len(), &step).await? {
                answered(&mut transaction, update.uuid, &step).await?;
                transaction.commit("store a status").await?;
                return Ok(UpdateOutcome::Recorded);
            }
        }
        Err(StoreError::corrupt(
            "statuses",
            "a job's history changes faster than it can be read",
        ))
    }

    /// The user no longer wants the job. If no validator has answered it, it ends here and now; else the wish is durable
    /// and its validator is to be told.
    ///
    /// # Errors
    /// The store failed; nothing is known about whether the wish was taken.
    pub async fn cancel(
        &self,
        actor: &Actor,
        job: JobId,
        now: Timestamp,
    ) -> Result<CancellationOutcome, StoreError> {
        let message = "cancelled by its user before a validator had taken it";
        let (cancelled, changed) = match self.end_unanswered(job, message, now).await? {
            Some(done) => (done, true),
            None => {
                let statement =
                    "UPDATE jobs SET cancelled_at = $1 WHERE uuid = $2 AND cancelled_at = 0 AND ended_at = 0";
                let done = sqlx::query(statement)
                    .bind(now.micros())
                    .bind(job.to_string())
                    .execute(&self.pool)
                    .await
                    .during("cancel a job")?;
                let history = self.history(job).await?;
                let shown = history.visible_status();
                let cancelled = if shown.is_terminal() {
                    CancellationOutcome::TooLate(shown)
                } else {
                    CancellationOutcome::Requested
                };
                (cancelled, done.rows_affected() > 0)
            }
        };
        if changed {
            self.audit(actor, AuditAction::JobCancelled, &job.to_string(), now)
                .await?;
        }
        Ok(cancelled)
    }

    /// Ends jobs that no validator has answered since `before`. Returns them.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn expire(&self, before: Timestamp, now: Timestamp) -> Result<Vec<JobId>, StoreError> {
        let statement =
            "SELECT uuid FROM jobs WHERE ended_at = 0 AND answered = 0 AND created_at < $1 LIMIT 256";
        let rows: Vec<(String,)> = sqlx::query_as(statement)
            .bind(before.micros())
            .fetch_all(&self.pool)
            .await
            .during("look for jobs that nobody takes")?;
        let mut ended = Vec::new();
        for (uuid,) in rows {
            let job = json::parse("jobs.uuid", &uuid)?;
            let message = "its validator has not taken it in time; send it to another one";
            if self.end_unanswered(job, message, now).await?.is_some() {
                ended.push(job);
            }
        }
        Ok(ended)
    }

    /// Ends a job as rejected by the facilitator, unless its validator has said anything about it.
    async fn end_unanswered(
        &self,
        job: JobId,
        message: &str,
        now: Timestamp,
    ) -> Result<Option<CancellationOutcome>, StoreError> {
        let history = self.history(job).await?;
        // The first step is our own; any further one is somebody's answer.
        if history.len() != 1 {
            return Ok(None);
        }
        let details = RejectionDetails {
            rejected_by: ParticipantType::Facilitator,
            reason: JobRejectionReason::Unknown,
            message: message.to_owned(),
            context: None,
        };
        let step = HistoryEntry {
            status: JobStatus::Rejected,
            metadata: Some(StatusMetadata {
                job_rejection_details: Some(details),
                ..StatusMetadata::default()
            }),
            at: now,
        };
        let mut transaction = self.writer.begin().await?;
        if !append(&mut transaction, job, history.len(), &step).await? {
            return Ok(None);
        }
        sqlx::query("UPDATE jobs SET cancelled_at = $1 WHERE uuid = $2")
            .bind(now.micros())
            .bind(job.to_string())
            .execute(&mut *transaction)
            .await
            .during("end a job")?;
        answered(&mut transaction, job, &step).await?;
        transaction.commit("end a job").await?;
        Ok(Some(CancellationOutcome::Ended))
    }

    /// Jobs of `validator` that run and that their users no longer want.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn to_cancel(&self, validator: ValidatorKey) -> Result<Vec<JobId>, StoreError> {
        let statement = "SELECT uuid FROM jobs WHERE validator = $1 AND ended_at = 0 AND cancelled_at > 0 ORDER BY cancelled_at, uuid";
        let rows: Vec<(String,)> = sqlx::query_as(statement)
            .bind(validator.to_string())
            .fetch_all(&self.pool)
            .await
            .during("list jobs to cancel")?;
        rows.into_iter()
            .map(|(uuid,)| json::parse("jobs.uuid", &uuid))
            .collect()
    }

    /// Whether the user no longer wants the job.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn is_cancelled(&self, job: JobId) -> Result<bool, StoreError> {
        let row: Option<(i64,)> = sqlx::query_as("SELECT cancelled_at FROM jobs WHERE uuid = $1")
            .bind(job.to_string())
            .fetch_optional(&self.pool)
            .await
            .during("look whether a job is cancelled")?;
        Ok(row.is_some_and(|(at,)| at > 0))
    }

    /// A job's statuses, oldest first.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn history(&self, job: JobId) -> Result<JobHistory, StoreError> {
        let mut connection = self.pool.acquire().await.during("read a job's history")?;
        read_history(&mut connection, job).await
    }
}

async fn read_history(connection: &mut AnyConnection, job: JobId) -> Result<JobHistory, StoreError> {
    let statement = "SELECT job, status, metadata, created_at FROM statuses WHERE job = $1 ORDER BY position";
    let rows: Vec<StatusRow> = sqlx::query_as(statement)
        .bind(job.to_string())
        .fetch_all(connection)
        .await
        .during("read a job's history")?;
    let steps = rows.into_iter().map(|row| row.into_step().map(|(_, step)| step));
    Ok(JobHistory::new(steps.collect::<Result<_, _>>()?))
}

/// Writes a step at `position`; `false` if another facilitator has written one there.
async fn append(
    connection: &mut AnyConnection,
    job: JobId,
    position: usize,
    step: &HistoryEntry,
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

/// Somebody has said something about the job; the last that is said ends it.
async fn answered(connection: &mut AnyConnection, job: JobId, step: &HistoryEntry) -> Result<(), StoreError> {
    let ended = if step.status.is_terminal() {
        step.at.micros()
    } else {
        0
    };
    sqlx::query("UPDATE jobs SET answered = 1, ended_at = $1 WHERE uuid = $2")
        .bind(ended)
        .bind(job.to_string())
        .execute(connection)
        .await
        .during("store a status")?;
    Ok(())
}

/// `$first, $second, …`: so many parameters.
fn placeholders(first: usize, count: usize) -> String {
    let names: Vec<_> = (first..first.saturating_add(count))
        .map(|number| format!("${number}"))
        .collect();
    names.join(", ")
}

// === impl JobRow, StatusRow ===

impl JobRow {
    fn into_job(self, history: JobHistory) -> Result<StoredJob, StoreError> {
        let request = json::decode("jobs.request", &self.request)?;
        self.with(request, history)
    }

    fn with(self, request: JobRequest, history: JobHistory) -> Result<StoredJob, StoreError> {
        Ok(StoredJob {
            account: json::parse("jobs.account", &self.account)?,
            validator: json::parse("jobs.validator", &self.validator)?,
            request,
            history,
            cancelled: self.cancelled_at > 0,
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
    fn into_step(self) -> Result<(String, HistoryEntry), StoreError> {
        let metadata: Option<StatusMetadata> = json::decode("statuses.metadata", &self.metadata)?;
        let step = HistoryEntry {
            status: JobStatus::from_wire(&self.status),
            metadata,
            at: Timestamp::from_micros(self.created_at),
        };
        Ok((self.job, step))
    }
}

//! Jobs and their histories: creating and reading them. [`list`] reads pages of jobs, [`updates`] changes histories.

mod list;
mod updates;

use muster_facilitator_core::credentials::Account;
use muster_facilitator_core::history::{self, HistoryEntry, JobHistory};
use muster_identity::Verified;
use muster_protocol::rest::JobView;
use muster_protocol::wire::encode;
use muster_protocol::wire::facilitator::{StatusMetadata, UserJobRequest, UserSignature};
use muster_protocol::{JobId, JobStatus, Timestamp, ValidatorKey};
use muster_store::{During as _, StoreError, json};
use muster_webhooks::store::{add_message, make_due};
use sqlx::{AnyConnection, AssertSqlSafe};

use super::Store;
use super::audit::{Actor, AuditAction, write_audit_entry};
use super::quota::{JobQuota, QuotaExceeded, count_job};

/// Everything that goes with a job. Its live output has gone before.
pub(crate) const JOB_PARTS: &[(&str, &str)] = &[
    ("statuses", "job"),
    ("progress", "job"),
    ("queue_places", "job"),
    ("program_reports", "job"),
    ("metric_points", "job"),
    ("metric_series", "job"),
    ("feedback", "job"),
    ("cheat_reports", "job"),
    ("job_checks", "job"),
    ("job_checkpoints", "job"),
    ("webhook_messages", "job"),
    ("jobs", "uuid"),
];

pub use list::{JobListing, MAX_PAGE_BYTES, StoredJobPage};
pub use updates::{CancellationOutcome, UpdateOutcome};

/// A job as stored.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredJob {
    /// The account that owns the job.
    pub account: Account,
    /// The validator that the job is for.
    pub validator: ValidatorKey,
    /// The frame for the validator.
    pub request: UserJobRequest,
    /// Its statuses, oldest first.
    pub history: JobHistory,
    /// Whether the user has cancelled it.
    pub cancelled: bool,
    /// Whether its live output is all the output that there is.
    pub keeps_output: bool,
    /// The user's label; empty for a job without one.
    pub tag: String,
}

impl StoredJob {
    /// The job as its user sees it.
    #[must_use]
    pub fn view(&self) -> JobView {
        JobView {
            tag: self.tag.clone(),
            ..history::job_view(&self.request, self.validator, &self.history)
        }
    }
}

/// A new job, before it is stored.
#[derive(Clone, Copy, Debug)]
pub struct JobSubmission<'a> {
    /// The actor that submits the job.
    pub actor: &'a Actor,
    /// The validator that the job is for.
    pub validator: ValidatorKey,
    /// The frame for the validator.
    pub request: &'a Verified<UserJobRequest>,
    /// The client's name for this request, which a repetition has too.
    pub idempotency: Option<&'a str>,
    /// The quotas of the account.
    pub quota: JobQuota,
    /// The URL that is notified of the job's end; the account's own if absent.
    pub webhook: Option<&'a str>,
    /// The user's label; empty for a job without one.
    pub tag: &'a str,
}

/// The outcome of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobCreation {
    /// The job is new and durable.
    New,
    /// The same request has created this job before.
    Existing(JobId),
    /// The job would exceed a quota.
    QuotaExceeded(QuotaExceeded),
}

/// The columns of a [`JobRow`], but for the request.
const JOB_COLUMNS: &str = "uuid, account, validator, cancelled_at, keeps_output, tag";

muster_store::row! {
    struct JobRow {
        uuid: String,
        account: String,
        validator: String,
        cancelled_at: i64,
        keeps_output: i64,
        tag: String,
        request: String,
    }
}

muster_store::row! {
    struct StatusRow {
        job: String,
        status: String,
        metadata: String,
        created_at: i64,
    }
}

impl Store {
    /// Stores a job with its first status, `sent`, unless the same signature, or the same `Idempotency-Key` of the
    /// account, has created one already.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn create(&self, job: JobSubmission<'_>, now: Timestamp) -> Result<JobCreation, StoreError> {
        let (request, account) = (job.request, job.actor.account.to_string());
        let mut transaction = self.writer.begin().await?;
        let statement = "INSERT INTO jobs (uuid, user_key, validator, timestamp_ns, signature, request, created_at, account, idempotency, tag) \
                         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT DO NOTHING";
        let done = sqlx::query(statement)
            .bind(request.uuid.to_string())
            .bind(request.signature.signatory.to_string())
            .bind(job.validator.to_string())
            .bind(request.signature.timestamp_ns)
            .bind(request.signature.signature.to_base64())
            .bind(encode::<UserJobRequest>(request))
            .bind(now.micros())
            .bind(&account)
            .bind(job.idempotency)
            .bind(job.tag)
            .execute(&mut *transaction)
            .await
            .during("store a job")?;
        if done.rows_affected() == 0 {
            drop(transaction);
            let known = self.find_repeated(job).await?;
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
        add_message(&mut transaction, request.uuid, &account, job.webhook, now).await?;
        let subject = request.uuid.to_string();
        write_audit_entry(
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

    /// The job that the same request has created before, if there is one.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn find_repeated(&self, job: JobSubmission<'_>) -> Result<Option<JobId>, StoreError> {
        if let Some(known) = self.find_job_by_signature(&job.request.signature).await? {
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

    /// The job that a signature has created, if there is one.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn find_job_by_signature(
        &self,
        signature: &UserSignature,
    ) -> Result<Option<JobId>, StoreError> {
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

    /// A job with its history; `None` if there is no such job.
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

    /// The account and the validator of a job, without its request.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn find_owner(&self, uuid: JobId) -> Result<Option<(Account, ValidatorKey)>, StoreError> {
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

    /// The jobs that `validator` has not answered yet, oldest first.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn unanswered_jobs(&self, validator: ValidatorKey) -> Result<Vec<JobId>, StoreError> {
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

    /// The running jobs of `validator` that their users have cancelled.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn jobs_to_cancel(&self, validator: ValidatorKey) -> Result<Vec<JobId>, StoreError> {
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

    /// Whether the user has cancelled the job.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn is_cancelled(&self, job: JobId) -> Result<bool, StoreError> {
        let row: Option<(i64,)> = sqlx::query_as("SELECT cancelled_at FROM jobs WHERE uuid = $1")
            .bind(job.to_string())
            .fetch_optional(&self.pool)
            .await
            .during("read whether a job is cancelled")?;
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
    let entries = rows
        .into_iter()
        .map(|row| row.into_entry().map(|(_, entry)| entry));
    Ok(JobHistory::new(entries.collect::<Result<_, _>>()?))
}

/// Writes an entry at `position`. Returns `false` if another facilitator has written one there.
async fn append(
    connection: &mut AnyConnection,
    job: JobId,
    position: usize,
    entry: &HistoryEntry,
) -> Result<bool, StoreError> {
    let statement = "INSERT INTO statuses (job, position, status, metadata, created_at) VALUES ($1, $2, $3, $4, $5) \
                     ON CONFLICT (job, position) DO NOTHING";
    let done = sqlx::query(statement)
        .bind(job.to_string())
        .bind(i64::try_from(position).unwrap_or(i64::MAX))
        .bind(entry.status.as_str())
        .bind(encode(&entry.metadata))
        .bind(entry.at.micros())
        .execute(connection)
        .await
        .during("store a status")?;
    Ok(done.rows_affected() == 1)
}

/// Marks the job as answered by its validator, and as ended if the status is terminal.
async fn mark_answered(
    connection: &mut AnyConnection,
    job: JobId,
    entry: &HistoryEntry,
) -> Result<(), StoreError> {
    let ended = if entry.status.is_terminal() {
        entry.at.micros()
    } else {
        0
    };
    sqlx::query("UPDATE jobs SET answered = 1, ended_at = $1, keeps_output = $2 WHERE uuid = $3")
        .bind(ended)
        .bind(i64::from(entry.lacks_output()))
        .bind(job.to_string())
        .execute(&mut *connection)
        .await
        .during("store a status")?;
    if entry.status.is_terminal() {
        make_due(connection, job, entry.at).await?;
    }
    Ok(())
}

// === impl JobRow, StatusRow ===

impl JobRow {
    fn into_job(self, history: JobHistory) -> Result<StoredJob, StoreError> {
        let request = json::decode("jobs.request", &self.request)?;
        self.with_request(request, history)
    }

    fn with_request(self, request: UserJobRequest, history: JobHistory) -> Result<StoredJob, StoreError> {
        Ok(StoredJob {
            account: json::parse("jobs.account", &self.account)?,
            validator: json::parse("jobs.validator", &self.validator)?,
            request,
            history,
            cancelled: self.cancelled_at > 0,
            keeps_output: self.keeps_output > 0,
            tag: self.tag,
        })
    }
}

impl StatusRow {
    fn into_entry(self) -> Result<(String, HistoryEntry), StoreError> {
        let metadata: Option<StatusMetadata> = json::decode("statuses.metadata", &self.metadata)?;
        let entry = HistoryEntry {
            status: JobStatus::from_wire(&self.status),
            metadata,
            at: Timestamp::from_micros(self.created_at),
        };
        Ok((self.job, entry))
    }
}

//! Jobs: admitted or refused, called off, and closed once with their outcome.

use muster_protocol::job::Outcome;
use muster_protocol::wire::facilitator::{CheatReport, StatusMetadata, UserJobRequest, UserSignature};
use muster_protocol::{JobId, JobStatus, Timestamp};
use muster_routing::admission::PriorRequest;
use muster_routing::budget::{AccountUse, BudgetedAccount};

use super::attempts::{NewAttempt, StoredAttempt};
use super::{Draft, Result, Store, StoreError, corrupt, parse_json_option, query_error, text_of};
use muster_store::columns::{parse_column, read_column, time_column, time_column_option};

/// A stored job.
#[derive(Clone, Debug)]
pub struct StoredJob {
    /// The user's request.
    pub request: UserJobRequest,
    /// When the job arrived.
    pub created_at: Timestamp,
    /// When the job ended for its user; `None` if it is open.
    pub closed_at: Option<Timestamp>,
    /// The job's attempts, oldest first.
    pub attempts: Vec<StoredAttempt>,
}

/// The fate of an open job of the validator's own when the validator starts again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnJobRestart {
    /// It is called off.
    CalledOff,
    /// It goes on, as a user's does.
    GoesOn,
}

impl OwnJobRestart {
    /// The value of the column `own`, which is 0 for users' jobs.
    const fn stored(self) -> i64 {
        match self {
            Self::CalledOff => 1,
            Self::GoesOn => 2,
        }
    }
}

/// The result of storing a new job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobAdmission {
    /// The job is stored, with its first attempt if it has one.
    New,
    /// The job, its signature or its id was known; nothing is written.
    Known(PriorRequest),
}

impl Store {
    /// The reason why a job with this id and signature cannot be stored as a new one; `None` if there is none.
    ///
    /// # Errors
    /// The database fails.
    pub async fn find_prior(&self, job: JobId, signature: &UserSignature) -> Result<Option<PriorRequest>> {
        const OPERATION: &str = "look a job up";
        let known = sqlx::query("SELECT job_id FROM jobs WHERE job_id = $1")
            .bind(job.to_string())
            .fetch_optional(&self.pool)
            .await
            .map_err(query_error(OPERATION))?;
        if known.is_some() {
            return Ok(Some(PriorRequest::Job));
        }
        let used = sqlx::query("SELECT job_id FROM signatures WHERE signatory = $1 AND timestamp_ns = $2")
            .bind(signature.signatory.to_string())
            .bind(signature.timestamp_ns)
            .fetch_optional(&self.pool)
            .await
            .map_err(query_error(OPERATION))?;
        if used.is_some() {
            return Ok(Some(PriorRequest::Signature));
        }
        if self.is_below_horizon(signature.timestamp_ns).await? {
            return Ok(Some(PriorRequest::Forgotten));
        }
        let attempt = sqlx::query(
            "SELECT 1 FROM attempts WHERE attempt_id = $1 UNION ALL SELECT 1 FROM receipts WHERE attempt_id = $1 LIMIT 1",
        )
        .bind(job.to_string())
        .fetch_optional(&self.pool)
        .await
        .map_err(query_error(OPERATION))?;
        Ok(attempt.map(|_| PriorRequest::Attempt))
    }

    /// As [`Self::find_prior`], for a job that could not be stored, or that runs or waits already. Retention may have
    /// deleted the reason meanwhile.
    ///
    /// # Errors
    /// The database fails.
    pub async fn known_prior(&self, job: JobId, signature: &UserSignature) -> Result<PriorRequest> {
        let prior = self.find_prior(job, signature).await?;
        Ok(prior.unwrap_or(PriorRequest::Forgotten))
    }

    /// Stores a job with its status `received` and its first attempt, if a miner was found at once. Stores nothing if
    /// the job, its signature or an attempt with its id is known, or if such old signatures may have been forgotten.
    /// One round trip to the database.
    ///
    /// # Errors
    /// The database fails.
    pub async fn admit(
        &self,
        request: &UserJobRequest,
        frame: &str,
        now: Timestamp,
        first: Option<&NewAttempt>,
    ) -> Result<JobAdmission> {
        let is_new = self
            .write_whole("take a job", |draft| {
                draft.put_user_job(request, frame, now);
                if let Some(first) = first {
                    draft.put_attempt(request.uuid, first);
                }
            })
            .await?;
        self.admission(request, is_new).await
    }

    /// The result of storing a job.
    pub(super) async fn admission(&self, request: &UserJobRequest, is_new: bool) -> Result<JobAdmission> {
        if is_new {
            return Ok(JobAdmission::New);
        }
        let prior = self.known_prior(request.uuid, &request.signature).await?;
        Ok(JobAdmission::Known(prior))
    }

    /// The jobs that an account behind a facilitator has here, and those of all the facilitator's accounts. `day` is
    /// the time from which jobs count as taken within a day.
    ///
    /// # Errors
    /// The database fails.
    pub async fn account_use(&self, budgeted: BudgetedAccount<'_>, day: Timestamp) -> Result<AccountUse> {
        let statement = "SELECT \
             (SELECT COUNT(*) FROM jobs WHERE facilitator = $1 AND facilitator <> '' AND closed_at IS NULL \
             AND account = $2) AS account_open, \
             (SELECT COUNT(*) FROM jobs WHERE facilitator = $1 AND facilitator <> '' AND account = $2 \
             AND created_at > $3) AS account_daily, \
             (SELECT COUNT(*) FROM jobs WHERE facilitator = $1 AND facilitator <> '' AND closed_at IS NULL) \
             AS facilitator_open";
        let row = sqlx::query(statement)
            .bind(budgeted.facilitator.to_string())
            .bind(budgeted.account)
            .bind(day.micros())
            .fetch_one(&self.pool)
            .await
            .map_err(query_error("count the jobs of an account"))?;
        let count = |name: &'static str| {
            Ok::<_, StoreError>(u64::try_from(read_column::<i64>(&row, name)?).unwrap_or_default())
        };
        Ok(AccountUse {
            account_open: count("account_open")?,
            account_daily: count("account_daily")?,
            facilitator_open: count("facilitator_open")?,
        })
    }

    /// Stores a job of the validator's own, without a status update. Returns `false` if it is known.
    ///
    /// # Errors
    /// The database fails.
    pub async fn admit_own(
        &self,
        request: &UserJobRequest,
        frame: &str,
        restart: OwnJobRestart,
        now: Timestamp,
    ) -> Result<bool> {
        self.write_whole("take a job of one's own", |draft| {
            draft.put_job(request.uuid, frame, JobStatus::Received, now);
            draft.script.add(
                "UPDATE jobs SET own = $1 WHERE job_id = $2",
                [restart.stored().into(), request.uuid.to_string().into()],
            );
        })
        .await
    }

    /// The jobs of the validator's own that have not ended and that a restart calls off.
    ///
    /// # Errors
    /// The database fails.
    pub async fn open_own_jobs(&self) -> Result<Vec<JobId>> {
        let rows = sqlx::query("SELECT job_id FROM jobs WHERE closed_at IS NULL AND own = 1 ORDER BY job_id")
            .fetch_all(&self.pool)
            .await
            .map_err(query_error("list the open jobs of one's own"))?;
        rows.iter().map(|row| parse_column(row, "job_id")).collect()
    }

    /// Stores a refused job, closed from the beginning. A job that is known stays as it is.
    ///
    /// # Errors
    /// The database fails.
    pub async fn refuse(&self, job: JobId, frame: &str, outcome: &Outcome, now: Timestamp) -> Result<()> {
        let make = |draft: &mut Draft<'_>| {
            draft.put_job(job, frame, JobStatus::Sent, now);
            draft.close_job(job, outcome, &outcome.metadata(), now);
        };
        self.write_whole("refuse a job", make).await.map(|_| ())
    }

    /// Stores the end of a job, with its terminal status in the outbox.
    ///
    /// # Errors
    /// The database fails.
    pub async fn close_job(
        &self,
        job: JobId,
        outcome: &Outcome,
        metadata: &StatusMetadata,
        now: Timestamp,
    ) -> Result<()> {
        self.write("close a job", |draft| {
            draft.close_job(job, outcome, metadata, now)
        })
        .await
    }

    /// The jobs that have not ended, oldest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn open_jobs(&self) -> Result<Vec<JobId>> {
        let rows = sqlx::query("SELECT job_id FROM jobs WHERE closed_at IS NULL ORDER BY created_at, job_id")
            .fetch_all(&self.pool)
            .await
            .map_err(query_error("list the open jobs"))?;
        rows.iter().map(|row| parse_column(row, "job_id")).collect()
    }

    /// Stores that a job was called off, so that no further attempt begins. Returns `false` if the job has ended, is
    /// unknown, or was called off before.
    ///
    /// # Errors
    /// The database fails.
    pub async fn cancel(&self, job: JobId, reason: &str) -> Result<bool> {
        self.write_whole("call a job off", |draft| {
            draft.script.add(
                "UPDATE jobs SET cancelled = $1 WHERE job_id = $2 AND closed_at IS NULL AND cancelled IS NULL",
                [reason.into(), job.to_string().into()],
            );
        })
        .await
    }

    /// The status that was last sent to a job's user; `None` if the job is unknown.
    ///
    /// # Errors
    /// The database fails.
    pub async fn last_status(&self, job: JobId) -> Result<Option<JobStatus>> {
        let row = sqlx::query("SELECT status FROM jobs WHERE job_id = $1")
            .bind(job.to_string())
            .fetch_optional(&self.pool)
            .await
            .map_err(query_error("read a job's status"))?;
        let status = row.map(|row| read_column::<String>(&row, "status")).transpose()?;
        Ok(status.map(|status| JobStatus::from_wire(&status)))
    }

    /// A job with its attempts; `None` if the job is unknown.
    ///
    /// # Errors
    /// The database fails, or the stored request cannot be parsed.
    pub async fn job(&self, job: JobId) -> Result<Option<StoredJob>> {
        let row = sqlx::query("SELECT request, created_at, closed_at FROM jobs WHERE job_id = $1")
            .bind(job.to_string())
            .fetch_optional(&self.pool)
            .await
            .map_err(query_error("read a job"))?;
        let Some(row) = row else { return Ok(None) };
        let frame: String = read_column(&row, "request")?;
        let request = serde_json::from_str(&frame).map_err(|error| corrupt("request", &error))?;
        Ok(Some(StoredJob {
            request,
            created_at: time_column(&row, "created_at")?,
            closed_at: time_column_option(&row, "closed_at")?,
            attempts: self.attempts_of(job).await?,
        }))
    }

    /// How a job ended, the time at which it did, and the job; `None` if it has not ended.
    ///
    /// # Errors
    /// The database fails, or the stored request cannot be parsed.
    pub async fn end_of(&self, job: JobId) -> Result<Option<(Outcome, Timestamp, StoredJob)>> {
        let Some(outcome) = self.outcome(job).await? else {
            return Ok(None);
        };
        let ended = self.job(job).await?;
        Ok(ended.and_then(|ended| Some((outcome, ended.closed_at?, ended))))
    }

    pub(super) async fn outcome(&self, job: JobId) -> Result<Option<Outcome>> {
        let row = sqlx::query("SELECT outcome FROM jobs WHERE job_id = $1")
            .bind(job.to_string())
            .fetch_optional(&self.pool)
            .await
            .map_err(query_error("read how a job ended"))?;
        row.map_or(Ok(None), |row| parse_json_option(&row, "outcome"))
    }

    /// Stores a user's report of cheating, and that the jobs it names are disputed. A repeated report changes nothing.
    ///
    /// # Errors
    /// The database fails.
    pub async fn keep_cheat_report(&self, report: &CheatReport, now: Timestamp) -> Result<()> {
        self.write("keep a report of cheating", |draft| {
            draft.script.add(
                "INSERT INTO cheat_reports (signatory, timestamp_ns, report, received_at) VALUES ($1, $2, $3, $4) \
                 ON CONFLICT DO NOTHING",
                [
                    report.signature.signatory.to_string().into(),
                    report.signature.timestamp_ns.into(),
                    text_of(report).into(),
                    now.micros().into(),
                ],
            );
            for job in [&report.job_uuid, &report.trusted_job_uuid] {
                draft.script.add(
                    "INSERT INTO disputes (job_id, reported_at) VALUES ($1, $2) ON CONFLICT DO NOTHING",
                    [job.as_str().into(), now.micros().into()],
                );
            }
        })
        .await
    }
}

impl Draft<'_> {
    pub(super) fn put_job(&mut self, job: JobId, frame: &str, status: JobStatus, now: Timestamp) {
        self.script.add(
            "INSERT INTO jobs (job_id, request, status, created_at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
            [
                job.to_string().into(),
                frame.into(),
                status.as_str().into(),
                now.micros().into(),
            ],
        );
    }

    pub(super) fn close_job(
        &mut self,
        job: JobId,
        outcome: &Outcome,
        metadata: &StatusMetadata,
        now: Timestamp,
    ) {
        self.report(job, outcome.status(), Some(metadata), now);
        self.script.add(
            "UPDATE jobs SET outcome = $1, closed_at = $2 WHERE job_id = $3 AND closed_at IS NULL",
            [
                text_of(outcome).into(),
                now.micros().into(),
                job.to_string().into(),
            ],
        );
    }
}

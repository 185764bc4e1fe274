//! Jobs: taken or refused, closed once with their outcome, and as people see them.

use std::collections::HashMap;
use std::fmt;

use muster_protocol::job::{Fault, Outcome};
use muster_protocol::wire::facilitator::{CheatReport, JobRequest, StatusMetadata, UserSignature};
use muster_protocol::{AttemptId, JobId, JobRejectionReason, JobStatus, MinerKey, Timestamp};
use muster_routing::Mark;
use muster_routing::admission::Seen;
use serde::Serialize;
use serde_json::Value;
use sqlx::any::AnyRow;

use super::attempts::{self, Beginning, StoredAttempt};
use super::receipts::{self, OwnReceipt};
use super::{Draft, Result, Store, column, corrupt, failed, json_option, parsed, text_of, time, time_option};
use crate::report::{fault, in_words};

/// A job that was taken.
#[derive(Clone, Debug)]
pub struct StoredJob {
    /// What its user asked for.
    pub request: JobRequest,
    /// Whether it has ended for its user.
    pub closed: bool,
    /// Its attempts, oldest first.
    pub attempts: Vec<StoredAttempt>,
}

/// A job that has not ended, with all that its driver needs to take it up.
#[derive(Clone, Debug)]
pub struct OpenJob {
    /// What its user asked for.
    pub request: JobRequest,
    /// Why its user called it off, if that is so.
    pub cancelled: Option<String>,
    /// Its attempts, oldest first.
    pub attempts: Vec<StoredAttempt>,
    /// The receipts of the last of them, in the order of its life.
    pub receipts: Vec<OwnReceipt>,
}

/// Open jobs as the database has them.
pub struct OpenPage {
    jobs: Vec<AnyRow>,
    attempts: Vec<AnyRow>,
    receipts: Vec<AnyRow>,
}

/// What became of a job that was to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is durable, and so is its first attempt, if there is one.
    New,
    /// It was known, as the store has it; nothing is written.
    Before(Seen),
}

/// A place in the order of all open jobs: when a job was handed over, and its id as text.
pub type Place = (i64, String);

/// Open jobs that are read at a time: few enough to be held, many enough that the database is asked seldom.
const AT_A_TIME: i64 = 1_000;

/// A job as its operator sees it.
#[derive(Clone, Debug, Serialize)]
pub struct JobView {
    /// Its id.
    pub job: JobId,
    /// What its user was told last.
    pub status: JobStatus,
    /// How it ended.
    pub outcome: Option<OutcomeView>,
    /// Whose fault that was.
    pub fault: Option<Fault>,
    /// When it was handed over.
    pub created_at: Timestamp,
    /// When it ended for its user.
    pub closed_at: Option<Timestamp>,
    /// Its attempts, oldest first.
    pub attempts: Vec<AttemptView>,
}

/// An outcome as its operator sees it: what its user's program made is the user's, and large.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OutcomeView {
    /// The status it ends with, the reason, the message, in a line.
    pub summary: String,
    /// What the reporter adds, unless it is long.
    pub context: Option<Value>,
    /// Bytes of what the program printed.
    pub stdout_bytes: usize,
    /// Likewise.
    pub stderr_bytes: usize,
    /// Files that were returned with the result.
    pub artifacts: usize,
    /// Their bytes, in base64.
    pub artifacts_bytes: usize,
}

/// The longest context and summary that are shown.
const MAX_SHOWN: usize = 4_096;

impl From<&Outcome> for OutcomeView {
    fn from(outcome: &Outcome) -> Self {
        let mut view = Self {
            summary: in_words(outcome).chars().take(MAX_SHOWN).collect(),
            context: None,
            stdout_bytes: 0,
            stderr_bytes: 0,
            artifacts: 0,
            artifacts_bytes: 0,
        };
        let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let context = match outcome {
            Outcome::Completed(response) => {
                view.stdout_bytes = response.docker_process_stdout.len();
                view.stderr_bytes = response.docker_process_stderr.len();
                let artifacts = response.artifacts.iter().flat_map(|artifacts| artifacts.values());
                for artifact in artifacts {
                    view.artifacts += 1;
                    view.artifacts_bytes += artifact.len();
                }
                &None
            }
            Outcome::Rejected(details) => &details.context,
            Outcome::Failed(details) => {
                view.stdout_bytes = length(&details.docker_process_stdout);
                view.stderr_bytes = length(&details.docker_process_stderr);
                &details.context
            }
            Outcome::HordeFailed(details) => &details.context,
        };
        view.context = context
            .clone()
            .filter(|context| context.to_string().len() <= MAX_SHOWN);
        view
    }
}

/// An attempt as its operator sees it.
#[derive(Clone, Debug, Serialize)]
pub struct AttemptView {
    /// Its id on the wire.
    pub attempt: AttemptId,
    /// Who runs it.
    pub miner: MinerKey,
    /// The miner's uid at the time.
    pub uid: u16,
    /// How far it is.
    pub state: &'static str,
    /// When it began.
    pub started_at: Timestamp,
}

impl Store {
    /// Whether the job, or its user's signature, was seen before.
    ///
    /// # Errors
    /// The database's.
    pub async fn seen(&self, job: JobId, signature: &UserSignature) -> Result<Seen> {
        const OPERATION: &str = "look a job up";
        let known = sqlx::query("SELECT job_id FROM jobs WHERE job_id = $1")
            .bind(job.to_string())
            .fetch_optional(&self.pool)
            .await
            .map_err(failed(OPERATION))?;
        if known.is_some() {
            return Ok(Seen::Job);
        }
        let used = sqlx::query("SELECT job_id FROM signatures WHERE signatory = $1 AND timestamp_ns = $2")
            .bind(signature.signatory.to_string())
            .bind(signature.timestamp_ns)
            .fetch_optional(&self.pool)
            .await
            .map_err(failed(OPERATION))?;
        Ok(if used.is_some() {
            Seen::Signature
        } else {
            Seen::Never
        })
    }

    /// Takes a job, unless it, or its signature, was taken before: it and its status `received` are durable from here on,
    /// and with them its first attempt, if a miner was found at once. One question to the database; nothing else is done
    /// while it is this job's turn.
    ///
    /// # Errors
    /// The database's.
    pub async fn admit(
        &self,
        request: &JobRequest,
        frame: &str,
        now: Timestamp,
        first: Option<&Beginning>,
    ) -> Result<Taken> {
        let taken = self
            .carry_whole("take a job", |draft| {
                draft.put_job(request.uuid, frame, JobStatus::Received, now);
                draft.script.add(
                    "INSERT INTO signatures (signatory, timestamp_ns, job_id) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
                    [
                        request.signature.signatory.to_string().into(),
                        request.signature.timestamp_ns.into(),
                        request.uuid.to_string().into(),
                    ],
                );
                draft.tell(request.uuid, JobStatus::Received, None, now);
                if let Some(beginning) = first {
                    draft.put_attempt(request.uuid, beginning);
                }
            })
            .await?;
        if taken {
            return Ok(Taken::New);
        }
        Ok(Taken::Before(self.seen(request.uuid, &request.signature).await?))
    }

    /// Takes a job of the validator's own: nobody is told of it. `false` if it was taken before.
    ///
    /// # Errors
    /// The database's.
    pub async fn admit_own(&self, request: &JobRequest, frame: &str, now: Timestamp) -> Result<bool> {
        self.carry_whole("take a job of one's own", |draft| {
            draft.put_job(request.uuid, frame, JobStatus::Received, now);
            draft.script.add(
                "UPDATE jobs SET own = 1 WHERE job_id = $1",
                [request.uuid.to_string().into()],
            );
        })
        .await
    }

    /// The jobs of the validator's own that have not ended.
    ///
    /// # Errors
    /// The database's.
    pub async fn open_own(&self) -> Result<Vec<JobId>> {
        let rows = sqlx::query("SELECT job_id FROM jobs WHERE closed_at IS NULL AND own = 1 ORDER BY job_id")
            .fetch_all(&self.pool)
            .await
            .map_err(failed("list the open jobs of one's own"))?;
        rows.iter().map(|row| parsed(row, "job_id")).collect()
    }

    /// Refuses a job: it is closed before it began.
    ///
    /// # Errors
    /// The database's.
    pub async fn refuse(&self, job: JobId, frame: &str, outcome: &Outcome, now: Timestamp) -> Result<()> {
        let make = |draft: &mut Draft<'_>| {
            draft.put_job(job, frame, JobStatus::Sent, now);
            draft.close_job(job, outcome, &outcome.metadata(), now);
        };
        // One that is known stays as it is.
        self.carry_whole("refuse a job", make).await.map(|_| ())
    }

    /// The job has ended for its user. Its terminal status is durable from here on.
    ///
    /// # Errors
    /// The database's.
    pub async fn close_job(
        &self,
        job: JobId,
        outcome: &Outcome,
        metadata: &StatusMetadata,
        now: Timestamp,
    ) -> Result<()> {
        self.carry("close a job", |draft| {
            draft.close_job(job, outcome, metadata, now)
        })
        .await
    }

    /// The jobs that have not ended, oldest first.
    ///
    /// # Errors
    /// The database's.
    pub async fn open_jobs(&self) -> Result<Vec<JobId>> {
        let rows = sqlx::query("SELECT job_id FROM jobs WHERE closed_at IS NULL ORDER BY created_at, job_id")
            .fetch_all(&self.pool)
            .await
            .map_err(failed("list the open jobs"))?;
        rows.iter().map(|row| parsed(row, "job_id")).collect()
    }

    /// The next open jobs behind `after`, oldest first; none at the end. A thousand at a time, in three questions. They are as
    /// the database has them: reading the next ones and making sense of these can go on side by side.
    ///
    /// # Errors
    /// The database's.
    pub async fn open_after(&self, after: Option<Place>) -> Result<OpenPage> {
        const OPERATION: &str = "read the open jobs";
        let (time, id) = after.unwrap_or((i64::MIN, String::new()));
        let asked = |query: &'static str| sqlx::query(query).bind(time).bind(id.clone()).bind(AT_A_TIME);
        let jobs = asked(
            "SELECT job_id, request, cancelled, created_at FROM jobs \
             WHERE closed_at IS NULL AND (created_at, job_id) > ($1, $2) ORDER BY created_at, job_id LIMIT $3",
        );
        let attempts = asked(
            "SELECT a.job_id, a.attempt_id, a.ordinal, a.miner, a.uid, a.address, a.machine, a.started_at \
             FROM attempts a JOIN (SELECT job_id FROM jobs WHERE closed_at IS NULL AND (created_at, job_id) > ($1, $2) \
             ORDER BY created_at, job_id LIMIT $3) page ON page.job_id = a.job_id ORDER BY a.job_id, a.ordinal",
        );
        let receipts = asked(
            "SELECT r.attempt_id, r.payload, r.validator_signature, r.miner_signature \
             FROM receipts r JOIN attempts a ON a.attempt_id = r.attempt_id \
             JOIN (SELECT job_id FROM jobs WHERE closed_at IS NULL AND (created_at, job_id) > ($1, $2) \
             ORDER BY created_at, job_id LIMIT $3) page ON page.job_id = a.job_id",
        );
        Ok(OpenPage {
            jobs: jobs.fetch_all(&self.pool).await.map_err(failed(OPERATION))?,
            attempts: attempts.fetch_all(&self.pool).await.map_err(failed(OPERATION))?,
            receipts: receipts.fetch_all(&self.pool).await.map_err(failed(OPERATION))?,
        })
    }

    /// Its user calls a job off: no further attempt begins from here on. `false` if it has ended, was never handed over, or
    /// was called off before.
    ///
    /// # Errors
    /// The database's.
    pub async fn cancel(&self, job: JobId, reason: &str) -> Result<bool> {
        self.carry_whole("call a job off", |draft| {
            draft.script.add(
                "UPDATE jobs SET cancelled = $1 WHERE job_id = $2 AND closed_at IS NULL AND cancelled IS NULL",
                [reason.into(), job.to_string().into()],
            );
        })
        .await
    }

    /// What a job's user was told last; `None` if it was never handed over.
    ///
    /// # Errors
    /// The database's.
    pub async fn told(&self, job: JobId) -> Result<Option<JobStatus>> {
        let row = sqlx::query("SELECT status FROM jobs WHERE job_id = $1")
            .bind(job.to_string())
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("read a job's status"))?;
        let status = row.map(|row| column::<String>(&row, "status")).transpose()?;
        Ok(status.map(|status| JobStatus::from_wire(&status)))
    }

    /// A job with its attempts; `None` if it was never handed over.
    ///
    /// # Errors
    /// The database's, or a request that cannot be read back.
    pub async fn job(&self, job: JobId) -> Result<Option<StoredJob>> {
        let row = sqlx::query("SELECT request, closed_at FROM jobs WHERE job_id = $1")
            .bind(job.to_string())
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("read a job"))?;
        let Some(row) = row else { return Ok(None) };
        let frame: String = column(&row, "request")?;
        let request = serde_json::from_str(&frame).map_err(|error| corrupt("request", &error))?;
        let closed = time_option(&row, "closed_at")?.is_some();
        Ok(Some(StoredJob {
            request,
            closed,
            attempts: self.attempts_of(job).await?,
        }))
    }

    /// The newest jobs, newest first.
    ///
    /// # Errors
    /// The database's.
    pub async fn jobs(&self, limit: u32) -> Result<Vec<JobView>> {
        let rows = sqlx::query(
            "SELECT job_id, status, created_at, closed_at FROM jobs ORDER BY created_at DESC, job_id LIMIT $1",
        )
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(failed("list jobs"))?;
        let mut jobs = Vec::with_capacity(rows.len());
        for row in &rows {
            let job = parsed(row, "job_id")?;
            let status: String = column(row, "status")?;
            // One at a time: results are large.
            let outcome = self.outcome(job).await?;
            jobs.push(JobView {
                job,
                status: JobStatus::from_wire(&status),
                fault: outcome.as_ref().map(fault),
                outcome: outcome.as_ref().map(OutcomeView::from),
                created_at: time(row, "created_at")?,
                closed_at: time_option(row, "closed_at")?,
                attempts: self.attempt_views(job).await?,
            });
        }
        Ok(jobs)
    }

    /// How a job ended, and its attempts; `None` if it has not ended.
    ///
    /// # Errors
    /// The database's.
    pub async fn end_of(&self, job: JobId) -> Result<Option<(Outcome, Vec<StoredAttempt>)>> {
        match self.outcome(job).await? {
            Some(outcome) => Ok(Some((outcome, self.attempts_of(job).await?))),
            None => Ok(None),
        }
    }

    /// Whether a job ended because its miner was busy and showed it: its attempt's mark speaks against nobody.
    ///
    /// # Errors
    /// The database's.
    pub async fn refusal_is_backed(&self, job: JobId) -> Result<bool> {
        let Some(Outcome::Rejected(details)) = self.outcome(job).await? else {
            return Ok(false);
        };
        let row = sqlx::query("SELECT mark FROM attempts WHERE job_id = $1 ORDER BY ordinal DESC LIMIT 1")
            .bind(job.to_string())
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("read what a refusal stood on"))?;
        let mark: Option<String> = row.map_or(Ok(None), |row| column(&row, "mark"))?;
        Ok(details.reason == JobRejectionReason::Busy && mark.as_deref() == Some(Mark::Clean.as_str()))
    }

    async fn outcome(&self, job: JobId) -> Result<Option<Outcome>> {
        let row = sqlx::query("SELECT outcome FROM jobs WHERE job_id = $1")
            .bind(job.to_string())
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("read how a job ended"))?;
        row.map_or(Ok(None), |row| json_option(&row, "outcome"))
    }

    async fn attempt_views(&self, job: JobId) -> Result<Vec<AttemptView>> {
        let attempts = self.attempts_of(job).await?;
        let view = |attempt: StoredAttempt| AttemptView {
            attempt: attempt.id,
            miner: attempt.miner,
            uid: attempt.uid.0,
            state: attempt.machine.state().name(),
            started_at: attempt.started_at,
        };
        Ok(attempts.into_iter().map(view).collect())
    }

    /// Keeps a user's report of cheating. A repetition changes nothing.
    ///
    /// # Errors
    /// The database's.
    pub async fn keep_cheat_report(&self, report: &CheatReport, now: Timestamp) -> Result<()> {
        self.carry("keep a report of cheating", |draft| {
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
        })
        .await
    }
}

impl fmt::Debug for OpenPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenPage({} jobs)", self.jobs.len())
    }
}

impl OpenPage {
    /// The place of the last of them; `None` if there are none, and so no further ones.
    ///
    /// # Errors
    /// Something that cannot be read back.
    pub fn last(&self) -> Result<Option<Place>> {
        let place = |row| Ok((column(row, "created_at")?, column(row, "job_id")?));
        self.jobs.last().map(place).transpose()
    }

    /// The jobs, oldest first.
    ///
    /// # Errors
    /// Something that cannot be read back.
    pub fn read(&self) -> Result<Vec<OpenJob>> {
        let mut jobs = Vec::with_capacity(self.jobs.len());
        let mut places = HashMap::with_capacity(self.jobs.len());
        for row in &self.jobs {
            let frame: String = column(row, "request")?;
            places.insert(column::<String>(row, "job_id")?, jobs.len());
            jobs.push(OpenJob {
                request: serde_json::from_str(&frame).map_err(|error| corrupt("request", &error))?,
                cancelled: column(row, "cancelled")?,
                attempts: Vec::new(),
                receipts: Vec::new(),
            });
        }
        let mut owners = HashMap::with_capacity(self.attempts.len());
        for row in &self.attempts {
            let job: String = column(row, "job_id")?;
            let attempt = attempts::read(row)?;
            let Some(place) = places.get(&job).copied() else {
                continue;
            };
            owners.insert(attempt.id, place);
            if let Some(open) = jobs.get_mut(place) {
                open.attempts.push(attempt);
            }
        }
        for row in &self.receipts {
            let attempt: AttemptId = parsed(row, "attempt_id")?;
            if let Some(open) = owners.get(&attempt).and_then(|at| jobs.get_mut(*at))
                && open.attempts.last().is_some_and(|last| last.id == attempt)
            {
                open.receipts.push(receipts::read(row)?);
            }
        }
        for open in &mut jobs {
            open.receipts.sort_by_key(OwnReceipt::kind);
        }
        Ok(jobs)
    }
}

impl Draft<'_> {
    fn put_job(&mut self, job: JobId, frame: &str, status: JobStatus, now: Timestamp) {
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

    fn close_job(&mut self, job: JobId, outcome: &Outcome, metadata: &StatusMetadata, now: Timestamp) {
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

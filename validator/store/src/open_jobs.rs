//! Open jobs that do not wait in the queue, as a starting validator reads them to resume them.

use std::collections::HashMap;
use std::fmt;

use muster_job_messages::IssuedReceipt;
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::{AttemptId, Timestamp};
use muster_store::columns::{parse_column, read_column, time_column};
use sqlx::any::AnyRow;

use super::attempts::{self, StoredAttempt};
use super::{Result, Store, corrupt, query_error, receipts};

/// A job that has not ended and does not wait, with all that a driver needs to resume it.
#[derive(Clone, Debug)]
pub struct OpenJob {
    /// The user's request.
    pub request: UserJobRequest,
    /// The user's reason, if the job was called off.
    pub cancelled: Option<String>,
    /// When the job was admitted.
    pub created_at: Timestamp,
    /// The job's attempts, oldest first.
    pub attempts: Vec<StoredAttempt>,
    /// The receipts of the last attempt, in the order in which they are issued.
    pub receipts: Vec<IssuedReceipt>,
}

/// A page of open jobs, as rows that are not parsed yet.
pub struct OpenPage {
    jobs: Vec<AnyRow>,
    attempts: Vec<AnyRow>,
    receipts: Vec<AnyRow>,
}

/// A place in the order of open jobs: when a job was admitted, in microseconds since 1970, and its id as text.
pub type JobCursor = (i64, String);

/// Open jobs that are read at a time: few enough to hold in memory, many enough to keep the number of queries small.
const JOBS_PER_PAGE: i64 = 1_000;

impl Store {
    /// The next open jobs after `after` that do not wait, oldest first, a thousand at a time; an empty page at the end.
    /// Three queries. The rows are parsed by [`OpenPage::read`], so that the next page can be read meanwhile.
    ///
    /// # Errors
    /// The database fails.
    pub async fn open_after(&self, after: Option<JobCursor>) -> Result<OpenPage> {
        const OPERATION: &str = "read the open jobs";
        let (time, id) = after.unwrap_or((i64::MIN, String::new()));
        let page = |query: &'static str| sqlx::query(query).bind(time).bind(id.clone()).bind(JOBS_PER_PAGE);
        let jobs = page(
            "SELECT job_id, request, cancelled, created_at FROM jobs \
             WHERE closed_at IS NULL AND (created_at, job_id) > ($1, $2) \
             AND NOT EXISTS (SELECT 1 FROM queue WHERE queue.job_id = jobs.job_id) ORDER BY created_at, job_id LIMIT $3",
        );
        let attempts = page(
            "SELECT a.job_id, a.attempt_id, a.ordinal, a.miner, a.uid, a.address, a.machine, a.started_at, a.kept \
             FROM attempts a JOIN (SELECT job_id FROM jobs WHERE closed_at IS NULL AND (created_at, job_id) > ($1, $2) \
             AND NOT EXISTS (SELECT 1 FROM queue WHERE queue.job_id = jobs.job_id) \
             ORDER BY created_at, job_id LIMIT $3) page ON page.job_id = a.job_id ORDER BY a.job_id, a.ordinal",
        );
        let receipts = page(
            "SELECT r.attempt_id, r.payload, r.validator_signature, r.miner_signature \
             FROM receipts r JOIN attempts a ON a.attempt_id = r.attempt_id \
             JOIN (SELECT job_id FROM jobs WHERE closed_at IS NULL AND (created_at, job_id) > ($1, $2) \
             AND NOT EXISTS (SELECT 1 FROM queue WHERE queue.job_id = jobs.job_id) \
             ORDER BY created_at, job_id LIMIT $3) page ON page.job_id = a.job_id",
        );
        Ok(OpenPage {
            jobs: jobs.fetch_all(&self.pool).await.map_err(query_error(OPERATION))?,
            attempts: attempts
                .fetch_all(&self.pool)
                .await
                .map_err(query_error(OPERATION))?,
            receipts: receipts
                .fetch_all(&self.pool)
                .await
                .map_err(query_error(OPERATION))?,
        })
    }
}

impl fmt::Debug for OpenPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenPage({} jobs)", self.jobs.len())
    }
}

impl OpenPage {
    /// The place of the last job; `None` if the page is empty, so that there are no further ones.
    ///
    /// # Errors
    /// A row cannot be parsed.
    pub fn last(&self) -> Result<Option<JobCursor>> {
        let place = |row| Ok((read_column(row, "created_at")?, read_column(row, "job_id")?));
        self.jobs.last().map(place).transpose()
    }

    /// Parses the jobs, oldest first.
    ///
    /// # Errors
    /// A row cannot be parsed.
    pub fn read(&self) -> Result<Vec<OpenJob>> {
        let mut jobs = Vec::with_capacity(self.jobs.len());
        let mut places = HashMap::with_capacity(self.jobs.len());
        for row in &self.jobs {
            let frame: String = read_column(row, "request")?;
            places.insert(read_column::<String>(row, "job_id")?, jobs.len());
            jobs.push(OpenJob {
                request: serde_json::from_str(&frame).map_err(|error| corrupt("request", &error))?,
                cancelled: read_column(row, "cancelled")?,
                created_at: time_column(row, "created_at")?,
                attempts: Vec::new(),
                receipts: Vec::new(),
            });
        }
        let mut owners = HashMap::with_capacity(self.attempts.len());
        for row in &self.attempts {
            let job: String = read_column(row, "job_id")?;
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
            let attempt: AttemptId = parse_column(row, "attempt_id")?;
            if let Some(open) = owners.get(&attempt).and_then(|at| jobs.get_mut(*at))
                && open.attempts.last().is_some_and(|last| last.id == attempt)
            {
                open.receipts.push(receipts::read(row)?);
            }
        }
        for open in &mut jobs {
            open.receipts.sort_by_key(IssuedReceipt::kind);
        }
        Ok(jobs)
    }
}

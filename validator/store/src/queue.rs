//! The queue of waiting jobs: a row for each job that waits, and the last turn of each account. The column `class`
//! holds the name of a line, which for the miners of the subnet is the class's own.

use std::collections::HashMap;

use muster_job_queue::{ExecutorLine, QueueAccount, QueueTicket, WaitingJob};
use muster_protocol::job::{Outcome, Priority};
use muster_protocol::wire::facilitator::{StatusMetadata, UserJobRequest};
use muster_protocol::{JobId, JobStatus, Timestamp};
use muster_routing::RouteDecision;
use muster_routing::budget::BudgetedAccount;
use muster_store::columns::{parse_column, read_column, time_column, to_unsigned};
use sqlx::any::AnyRow;

use super::attempts::{self, NewAttempt, StoredAttempt};
use super::{Draft, JobAdmission, Result, Store, corrupt, query_error};

/// A waiting job as a starting validator reads it.
#[derive(Clone, Debug)]
pub struct StoredWaitingJob {
    /// The job's place.
    pub waiting: WaitingJob,
    /// The user's reason, if the job was called off.
    pub cancelled: Option<String>,
}

/// Waiting jobs that are read at a time.
const JOBS_PER_PAGE: i64 = 10_000;

impl Store {
    /// Stores a job with its status `received` and its place in the queue. Stores nothing if the job, its signature or
    /// an attempt with its id is known. One round trip to the database.
    ///
    /// # Errors
    /// The database fails.
    pub async fn admit_waiting(
        &self,
        request: &UserJobRequest,
        frame: &str,
        waiting: &WaitingJob,
    ) -> Result<JobAdmission> {
        let is_new = self
            .write_whole("take a job that waits", |draft| {
                draft.put_user_job(request, frame, waiting.since);
                draft.put_waiting(waiting);
            })
            .await?;
        self.admission(request, is_new).await
    }

    /// Stores the first or a further attempt of a waiting job, which waits no more, and the turn of its account.
    ///
    /// # Errors
    /// The database fails.
    pub async fn begin_waiting_attempt(
        &self,
        waiting: &WaitingJob,
        turn: QueueTicket,
        new: &NewAttempt,
    ) -> Result<()> {
        let begun = self
            .write_whole("begin an attempt of a waiting job", |draft| {
                draft.remove_waiting(waiting.job);
                draft.script.add(
                    "INSERT INTO queue_turns (class, account, ticket) VALUES ($1, $2, $3) \
                     ON CONFLICT (class, account) DO UPDATE SET ticket = excluded.ticket",
                    [
                        waiting.line.to_string().into(),
                        waiting.account.as_str().into(),
                        turn.0.into(),
                    ],
                );
                draft.put_attempt(waiting.job, new);
            })
            .await?;
        if begun {
            Ok(())
        } else {
            Err(corrupt(
                "attempt_id",
                &"a job began that does not wait, or an attempt has an id that was used before",
            ))
        }
    }

    /// Stores that a job waits, which was admitted before, with the decision that found no miner for its attempt number
    /// `ordinal`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn wait_again(
        &self,
        waiting: &WaitingJob,
        ordinal: u32,
        decision: &RouteDecision,
        now: Timestamp,
    ) -> Result<()> {
        self.write("let a job wait", |draft| {
            draft.put_waiting(waiting);
            draft.keep_route(waiting.job, ordinal, decision, now);
        })
        .await
    }

    /// Stores the end of a waiting job, with its terminal status in the outbox.
    ///
    /// # Errors
    /// The database fails.
    pub async fn close_waiting(
        &self,
        job: JobId,
        outcome: &Outcome,
        metadata: &StatusMetadata,
        now: Timestamp,
    ) -> Result<()> {
        self.write("close a waiting job", |draft| {
            draft.remove_waiting(job);
            draft.close_job(job, outcome, metadata, now);
        })
        .await
    }

    /// The waiting jobs that arrived after `after`, in the order of their arrival, ten thousand at a time; none at the
    /// end.
    ///
    /// # Errors
    /// The database fails, or a row cannot be parsed.
    pub async fn waiting_after(&self, after: Option<QueueTicket>) -> Result<Vec<StoredWaitingJob>> {
        let rows = sqlx::query(
            "SELECT q.job_id, q.account, q.class, q.priority, q.ticket, q.since, q.deadline, j.cancelled \
             FROM queue q JOIN jobs j ON j.job_id = q.job_id WHERE q.ticket > $1 ORDER BY q.ticket LIMIT $2",
        )
        .bind(after.map_or(i64::MIN, |after| after.0))
        .bind(JOBS_PER_PAGE)
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("read the queue"))?;
        rows.iter().map(read_waiting).collect()
    }

    /// The attempts of the waiting jobs, by job.
    ///
    /// # Errors
    /// The database fails, or a row cannot be parsed.
    pub async fn attempts_of_waiting(&self) -> Result<HashMap<JobId, Vec<StoredAttempt>>> {
        let rows = sqlx::query(
            "SELECT a.job_id, a.attempt_id, a.ordinal, a.miner, a.uid, a.address, a.machine, a.started_at, a.kept \
             FROM attempts a JOIN queue q ON q.job_id = a.job_id ORDER BY a.job_id, a.ordinal",
        )
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("read the attempts of waiting jobs"))?;
        let mut attempts = HashMap::<_, Vec<_>>::new();
        for row in &rows {
            let job = parse_column(row, "job_id")?;
            attempts.entry(job).or_default().push(attempts::read(row)?);
        }
        Ok(attempts)
    }

    /// The last turns of the accounts that have waiting jobs. Those of other accounts decide nothing any more and are
    /// deleted.
    ///
    /// # Errors
    /// The database fails, or a row cannot be parsed.
    pub async fn read_turns(&self) -> Result<Vec<(ExecutorLine, QueueAccount, QueueTicket)>> {
        self.write("delete old turns", |draft| {
            draft.script.add(
                "DELETE FROM queue_turns WHERE NOT EXISTS (SELECT 1 FROM queue \
                 WHERE queue.class = queue_turns.class AND queue.account = queue_turns.account)",
                [],
            );
        })
        .await?;
        let rows = sqlx::query("SELECT class, account, ticket FROM queue_turns")
            .fetch_all(&self.pool)
            .await
            .map_err(query_error("read the turns of accounts"))?;
        let turn = |row| {
            let account: String = read_column(row, "account")?;
            Ok((
                parse_column(row, "class")?,
                QueueAccount::new(&account),
                QueueTicket(read_column(row, "ticket")?),
            ))
        };
        rows.iter().map(turn).collect()
    }
}

fn read_waiting(row: &AnyRow) -> Result<StoredWaitingJob> {
    let account: String = read_column(row, "account")?;
    let priority = u8::try_from(to_unsigned(read_column(row, "priority")?))
        .map_err(|error| corrupt("priority", &error))?;
    Ok(StoredWaitingJob {
        waiting: WaitingJob {
            job: parse_column(row, "job_id")?,
            account: QueueAccount::new(&account),
            line: parse_column(row, "class")?,
            priority: Priority::try_from(priority).map_err(|error| corrupt("priority", &error))?,
            ticket: QueueTicket(read_column(row, "ticket")?),
            since: time_column(row, "since")?,
            deadline: time_column(row, "deadline")?,
        },
        cancelled: read_column(row, "cancelled")?,
    })
}

impl Draft<'_> {
    /// Adds a user's job with its signature and its status `received`. The signature writes no row if it is known, if
    /// it is so old that it may have been forgotten, or if the job's id is that of an attempt, because the job's first
    /// attempt will bear the same id.
    pub(super) fn put_user_job(&mut self, request: &UserJobRequest, frame: &str, now: Timestamp) {
        self.put_job(request.uuid, frame, JobStatus::Received, now);
        self.script.add(
            "INSERT INTO signatures (signatory, timestamp_ns, job_id) \
             SELECT CAST($1 AS TEXT), CAST($2 AS BIGINT), CAST($3 AS TEXT) WHERE NOT EXISTS \
             (SELECT 1 FROM horizons WHERE name = 'signatures' AND at > CAST($2 AS BIGINT)) AND NOT EXISTS \
             (SELECT 1 FROM attempts WHERE attempt_id = CAST($3 AS TEXT)) AND NOT EXISTS \
             (SELECT 1 FROM receipts WHERE attempt_id = CAST($3 AS TEXT)) ON CONFLICT DO NOTHING",
            [
                request.signature.signatory.to_string().into(),
                request.signature.timestamp_ns.into(),
                request.uuid.to_string().into(),
            ],
        );
        if let Some(BudgetedAccount { facilitator, account }) = BudgetedAccount::of(request) {
            self.script.add(
                "UPDATE jobs SET facilitator = $1, account = $2 WHERE job_id = $3",
                [
                    facilitator.to_string().into(),
                    account.into(),
                    request.uuid.to_string().into(),
                ],
            );
        }
        self.put_status(request.uuid, JobStatus::Received, None, now);
    }

    fn put_waiting(&mut self, waiting: &WaitingJob) {
        self.script.add(
            "INSERT INTO queue (job_id, account, class, priority, ticket, since, deadline) \
             VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING",
            [
                waiting.job.to_string().into(),
                waiting.account.as_str().into(),
                waiting.line.to_string().into(),
                i64::from(waiting.priority.get()).into(),
                waiting.ticket.0.into(),
                waiting.since.micros().into(),
                waiting.deadline.micros().into(),
            ],
        );
    }

    fn remove_waiting(&mut self, job: JobId) {
        self.script
            .add("DELETE FROM queue WHERE job_id = $1", [job.to_string().into()]);
    }
}

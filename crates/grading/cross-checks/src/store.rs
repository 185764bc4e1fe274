//! The tables of cross-checks in the validator's database. The validator's migrations create them.

use std::time::Duration;

use muster_identity::ProvenOutput;
use muster_protocol::job::Outcome;
use muster_protocol::wire::checks::{CheckOrigin, CheckState, CheckedOutput, JobCheck, MAX_CHECKED_OUTPUTS};
use muster_protocol::wire::facilitator::{JobRequest, ToFacilitator};
use muster_protocol::wire::{decode, encode};
use muster_protocol::{AttemptId, Digest, Hotkey, JobId, MinerKey, ReceiptKind, ReceiptPayload, Timestamp};
use muster_store::{During as _, StoreError, begin};
use serde::Serialize;
use sqlx::any::AnyRow;
use sqlx::{Any, AnyConnection, AnyPool, Decode, Row as _, Type};

use crate::evidence::CheckedJob;
use crate::outputs::JobOutputs;
use crate::verdict::CheckVerdict;

pub(crate) type StoreResult<T> = Result<T, StoreError>;

/// Jobs that are read at once.
const PAGE: i64 = 256;

/// How far back jobs are read again: longer than two commits are apart that take their times in another order.
const OVERLAP: Duration = Duration::from_secs(10);

/// Rows of evidence that a standing rests on, at most: the newest ones.
const MAX_EVIDENCE: i64 = 100_000;

/// A check as everybody may see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckView {
    /// The user's job.
    pub job: JobId,
    /// Why it was run again.
    pub origin: CheckOrigin,
    /// `waiting`, `undrawn`, `pending`, `agrees`, `differs` or `unproven`.
    pub state: String,
    /// The reason in words.
    pub reason: String,
    /// The miner that ran the job.
    pub miner: Option<MinerKey>,
    /// The owner of that miner when the job ended.
    pub coldkey: Option<Hotkey>,
    /// The attempt that the user got.
    pub attempt: Option<AttemptId>,
    /// The digest of the attempt's finished receipt, by which the job is drawn.
    pub receipt: Option<Digest>,
    /// The block whose hash draws.
    pub draw_block: Option<u64>,
    /// The hash of that block.
    pub block_hash: Option<Digest>,
    /// The proof of the draw, in hex.
    pub draw: Option<String>,
    /// The comparison of the outputs, those that differ first.
    pub compared: Vec<CheckedOutput>,
    /// Runs on the validator's own miner that have completed.
    pub runs: u64,
    /// When the user's job ended.
    pub ended_at: Timestamp,
    /// When the check last changed.
    pub changed_at: Timestamp,
}

/// A deterministic job that has ended.
#[derive(Clone, Debug)]
pub(crate) struct EndedJob {
    pub(crate) request: JobRequest,
    pub(crate) outputs: JobOutputs,
    pub(crate) miner: MinerKey,
    pub(crate) attempt: AttemptId,
    pub(crate) receipt: ReceiptPayload,
    /// The block in which the receipt was written; `None` before the chain had answered.
    pub(crate) block: Option<u64>,
    pub(crate) ended_at: Timestamp,
}

/// A job that waits for its draw.
#[derive(Clone, Debug)]
pub(crate) struct UndrawnJob {
    pub(crate) job: JobId,
    pub(crate) receipt: Digest,
    pub(crate) draw_block: u64,
}

/// A check that is to be carried out.
#[derive(Clone, Debug)]
pub(crate) struct DueCheck {
    pub(crate) job: JobId,
    pub(crate) origin: CheckOrigin,
    pub(crate) coldkey: Option<Hotkey>,
    pub(crate) attempt: Option<AttemptId>,
    /// The model of a reported session.
    pub(crate) model: Option<String>,
    pub(crate) outputs: Option<JobOutputs>,
    pub(crate) runs: Vec<JobOutputs>,
    pub(crate) tries: u64,
    pub(crate) created_at: Timestamp,
}

/// A new row.
#[derive(Clone, Debug)]
pub(crate) struct NewCheck {
    pub(crate) job: JobId,
    pub(crate) origin: CheckOrigin,
    pub(crate) account: String,
    pub(crate) ended: Option<EndedJob>,
    pub(crate) coldkey: Option<Hotkey>,
    pub(crate) model: Option<String>,
    /// The block whose hash draws; `None` for a reported job, which is not drawn.
    pub(crate) draw_block: Option<u64>,
}

/// Reads and writes the tables. Clones share the connections.
#[derive(Clone, Debug)]
pub struct CheckStore {
    pub(crate) pool: AnyPool,
}

impl CheckStore {
    /// Uses the validator's database, which must be migrated.
    pub const fn new(pool: AnyPool) -> Self {
        Self { pool }
    }

    /// The deterministic jobs of users that have completed since, oldest first, and the time from which to read on.
    pub(crate) async fn ended_since(&self, since: Timestamp) -> StoreResult<(Vec<EndedJob>, Timestamp)> {
        let rows = sqlx::query(
            "SELECT j.request, j.outcome, j.closed_at, a.attempt_id, a.miner, r.payload, r.block FROM jobs j \
             JOIN attempts a ON a.job_id = j.job_id \
             JOIN receipts r ON r.attempt_id = a.attempt_id AND r.kind = $1 \
             WHERE j.own = 0 AND j.closed_at >= $2 AND j.request LIKE '%\"deterministic\"%' \
             AND NOT EXISTS (SELECT 1 FROM cross_checks c WHERE c.job_id = j.job_id) \
             AND a.ordinal = (SELECT MAX(b.ordinal) FROM attempts b WHERE b.job_id = j.job_id) \
             ORDER BY j.closed_at, j.job_id LIMIT $3",
        )
        .bind(ReceiptKind::Finished.as_str())
        .bind(since.micros())
        .bind(PAGE)
        .fetch_all(&self.pool)
        .await
        .during("list deterministic jobs that have ended")?;
        let next = match rows.last() {
            None => since,
            Some(row) => {
                let last = read_column(row, "closed_at").map(Timestamp::from_micros)?;
                // Commits that share a moment may come out of their order; a full page must not be read for ever.
                let is_full = i64::try_from(rows.len()).unwrap_or(PAGE) >= PAGE;
                if is_full {
                    last
                } else {
                    last.minus(OVERLAP).max(since)
                }
            }
        };
        let mut ended = Vec::new();
        for row in &rows {
            ended.extend(read_ended(row)?);
        }
        Ok((ended, next))
    }

    /// A job of a user's that has completed; `None` if there is none with this id, or it has not completed.
    pub(crate) async fn ended_job(&self, job: JobId) -> StoreResult<Option<EndedJob>> {
        let row = sqlx::query(
            "SELECT j.request, j.outcome, j.closed_at, a.attempt_id, a.miner, r.payload, r.block FROM jobs j \
             JOIN attempts a ON a.job_id = j.job_id \
             JOIN receipts r ON r.attempt_id = a.attempt_id AND r.kind = $1 \
             WHERE j.own = 0 AND j.closed_at IS NOT NULL AND j.job_id = $2 \
             AND a.ordinal = (SELECT MAX(b.ordinal) FROM attempts b WHERE b.job_id = j.job_id)",
        )
        .bind(ReceiptKind::Finished.as_str())
        .bind(job.to_string())
        .fetch_optional(&self.pool)
        .await
        .during("read a job that has ended")?;
        row.map_or(Ok(None), |row| read_ended(&row))
    }

    /// The miner and the model of a session that ran as this job; `None` if none did.
    pub(crate) async fn session_of(&self, job: JobId) -> StoreResult<Option<(MinerKey, String)>> {
        let row =
            sqlx::query("SELECT miner, model FROM sessions WHERE job_id = $1 ORDER BY opened_at LIMIT 1")
                .bind(job.to_string())
                .fetch_optional(&self.pool)
                .await
                .during("look for the session of a job")?;
        row.map(|row| Ok((parse_column(&row, "miner")?, read_column(&row, "model")?)))
            .transpose()
    }

    /// Stores a new check, unless there is one about its job. A job that waits for its draw, or was not drawn, becomes
    /// one that was reported. Returns whether anything changed.
    pub(crate) async fn insert(&self, check: &NewCheck, now: Timestamp) -> StoreResult<bool> {
        const OPERATION: &str = "store a job that may be run again";
        let state = match check.origin {
            CheckOrigin::Drawn => "waiting",
            CheckOrigin::Reported | CheckOrigin::Unknown => CheckState::Pending.as_str(),
        };
        let ended = check.ended.as_ref();
        let done = sqlx::query(
            "INSERT INTO cross_checks (job_id, origin, state, account, miner, coldkey, attempt_id, model, receipt, \
             draw_block, outputs, next_try_at, ended_at, created_at, changed_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $12, $12) \
             ON CONFLICT (job_id) DO UPDATE SET origin = excluded.origin, state = excluded.state, \
             account = excluded.account, next_try_at = excluded.next_try_at, created_at = excluded.created_at, \
             changed_at = excluded.changed_at \
             WHERE excluded.origin = 'reported' AND cross_checks.state IN ('waiting', 'undrawn')",
        )
        .bind(check.job.to_string())
        .bind(check.origin.as_str())
        .bind(state)
        .bind(check.account.clone())
        .bind(ended.map(|ended| ended.miner.to_string()))
        .bind(check.coldkey.map(|key| key.to_string()))
        .bind(ended.map(|ended| ended.attempt.to_string()))
        .bind(check.model.clone())
        .bind(ended.map(|ended| crate::draw::drawn_digest(&ended.receipt).to_string()))
        .bind(check.draw_block.map(to_signed))
        .bind(ended.map(|ended| encode(&ended.outputs)))
        .bind(now.micros())
        .bind(ended.map_or(now, |ended| ended.ended_at).micros())
        .execute(&self.pool)
        .await
        .during(OPERATION)?;
        Ok(done.rows_affected() > 0)
    }

    /// The jobs whose draw block is at most this one.
    pub(crate) async fn undrawn(&self, head: u64) -> StoreResult<Vec<UndrawnJob>> {
        let rows = sqlx::query(
            "SELECT job_id, receipt, draw_block FROM cross_checks WHERE state = 'waiting' AND draw_block <= $1 \
             ORDER BY draw_block, job_id LIMIT $2",
        )
        .bind(to_signed(head))
        .bind(PAGE)
        .fetch_all(&self.pool)
        .await
        .during("list jobs that wait for their draw")?;
        rows.iter()
            .map(|row| {
                Ok(UndrawnJob {
                    job: parse_column(row, "job_id")?,
                    receipt: parse_column(row, "receipt")?,
                    draw_block: unsigned_column(row, "draw_block")?,
                })
            })
            .collect()
    }

    /// Stores the draw of a job.
    pub(crate) async fn put_draw(
        &self,
        job: JobId,
        is_drawn: bool,
        block_hash: &Digest,
        proof: &ProvenOutput,
        now: Timestamp,
    ) -> StoreResult<()> {
        let state = if is_drawn {
            CheckState::Pending.as_str()
        } else {
            "undrawn"
        };
        sqlx::query(
            "UPDATE cross_checks SET state = $1, block_hash = $2, draw = $3, next_try_at = $4, created_at = $4, \
             changed_at = $4 WHERE job_id = $5 AND state = 'waiting'",
        )
        .bind(state)
        .bind(block_hash.to_string())
        .bind(proof.to_string())
        .bind(now.micros())
        .bind(job.to_string())
        .execute(&self.pool)
        .await
        .during("store the draw of a job")?;
        Ok(())
    }

    /// The check that has waited longest and is due now.
    pub(crate) async fn next_due(&self, now: Timestamp) -> StoreResult<Option<DueCheck>> {
        let row = sqlx::query(
            "SELECT job_id, origin, coldkey, attempt_id, model, outputs, runs, tries, created_at FROM cross_checks \
             WHERE state = 'pending' AND next_try_at <= $1 ORDER BY next_try_at, job_id LIMIT 1",
        )
        .bind(now.micros())
        .fetch_optional(&self.pool)
        .await
        .during("look for a job to run again")?;
        row.map(|row| {
            let outputs: Option<String> = read_column(&row, "outputs")?;
            Ok(DueCheck {
                job: parse_column(&row, "job_id")?,
                origin: origin_of(&row)?,
                coldkey: parse_optional(&row, "coldkey")?,
                attempt: parse_optional(&row, "attempt_id")?,
                model: read_column(&row, "model")?,
                outputs: outputs.map(|text| read_json("outputs", &text)).transpose()?,
                runs: json_column(&row, "runs")?,
                tries: unsigned_column(&row, "tries")?,
                created_at: read_column(&row, "created_at").map(Timestamp::from_micros)?,
            })
        })
        .transpose()
    }

    /// Stores the outputs of the runs so far.
    pub(crate) async fn put_runs(&self, job: JobId, runs: &[JobOutputs]) -> StoreResult<()> {
        sqlx::query("UPDATE cross_checks SET runs = $1, tries = 0 WHERE job_id = $2")
            .bind(encode(&runs))
            .bind(job.to_string())
            .execute(&self.pool)
            .await
            .during("store the outputs of a run")?;
        Ok(())
    }

    /// Notes that a run is to be tried again at this time.
    pub(crate) async fn put_try(
        &self,
        job: JobId,
        tries: u64,
        next: Timestamp,
        reason: &str,
    ) -> StoreResult<()> {
        sqlx::query("UPDATE cross_checks SET tries = $1, next_try_at = $2, reason = $3 WHERE job_id = $4")
            .bind(to_signed(tries))
            .bind(next.micros())
            .bind(reason)
            .bind(job.to_string())
            .execute(&self.pool)
            .await
            .during("store when a run is tried again")?;
        Ok(())
    }

    /// Stores the verdict about a job with the message for the facilitator. A difference refunds the attempt.
    pub(crate) async fn put_verdict(
        &self,
        check: &DueCheck,
        verdict: &CheckVerdict,
        now: Timestamp,
    ) -> StoreResult<()> {
        const OPERATION: &str = "store the verdict about a job that was run again";
        let mut tx = begin(&self.pool).await?;
        sqlx::query(
            "UPDATE cross_checks SET state = $1, reason = $2, compared = $3, changed_at = $4 WHERE job_id = $5",
        )
        .bind(verdict.state.as_str())
        .bind(verdict.reason.clone())
        .bind(encode(&verdict.outputs))
        .bind(now.micros())
        .bind(check.job.to_string())
        .execute(&mut *tx)
        .await
        .during(OPERATION)?;
        if let (CheckState::Differs, Some(attempt)) = (verdict.state, check.attempt) {
            let evidence = encode(&(check.job, attempt, &check.outputs, &check.runs));
            sqlx::query(
                "INSERT INTO refunded_attempts (attempt_id, evidence, marked_at) VALUES ($1, $2, $3) \
                 ON CONFLICT (attempt_id) DO NOTHING",
            )
            .bind(attempt.to_string())
            .bind(Digest::of(evidence.as_bytes()).to_string())
            .bind(now.micros())
            .execute(&mut *tx)
            .await
            .during(OPERATION)?;
        }
        put_notice(&mut tx, notice(check, verdict, now), now).await?;
        tx.commit().await.during(OPERATION)
    }

    /// Stores the message that a job is being run again.
    pub(crate) async fn put_pending(
        &self,
        job: JobId,
        origin: CheckOrigin,
        now: Timestamp,
    ) -> StoreResult<()> {
        let mut tx = begin(&self.pool).await?;
        let notice = JobCheck {
            uuid: job,
            origin,
            state: CheckState::Pending,
            reason: String::new(),
            outputs: Vec::new(),
            at: now,
        };
        put_notice(&mut tx, notice, now).await?;
        tx.commit().await.during("store that a job is run again")
    }

    /// Stores the message that a reported job is not run again. A verdict that there is stays.
    pub(crate) async fn put_refusal(&self, job: JobId, reason: &str, now: Timestamp) -> StoreResult<()> {
        const OPERATION: &str = "store why a reported job is not run again";
        let known = sqlx::query("SELECT 1 AS one FROM check_news WHERE subject = $1")
            .bind(subject_of(job))
            .fetch_optional(&self.pool)
            .await
            .during(OPERATION)?;
        if known.is_some() {
            return Ok(());
        }
        let notice = JobCheck {
            uuid: job,
            origin: CheckOrigin::Reported,
            state: CheckState::Unproven,
            reason: reason.to_owned(),
            outputs: Vec::new(),
            at: now,
        };
        let mut tx = begin(&self.pool).await?;
        put_notice(&mut tx, notice, now).await?;
        tx.commit().await.during(OPERATION)
    }

    /// The reported jobs of an account since a time.
    pub(crate) async fn count_reports(&self, account: &str, since: Timestamp) -> StoreResult<u64> {
        let row = sqlx::query(
            "SELECT COUNT(*) AS many FROM cross_checks WHERE account = $1 AND origin = 'reported' AND created_at > $2",
        )
        .bind(account)
        .bind(since.micros())
        .fetch_one(&self.pool)
        .await
        .during("count an account's reports")?;
        unsigned_column(&row, "many")
    }

    /// The messages for the facilitator behind this number, in their order, at most `limit`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn news_after(
        &self,
        sequence: i64,
        since: Timestamp,
        limit: u32,
    ) -> StoreResult<Vec<(i64, ToFacilitator)>> {
        let rows = sqlx::query(
            "SELECT sequence, message FROM check_news WHERE sequence > $1 AND written_at >= $2 \
             ORDER BY sequence LIMIT $3",
        )
        .bind(sequence)
        .bind(since.micros())
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .during("read the news of checks")?;
        rows.iter()
            .map(|row| {
                let text: String = read_column(row, "message")?;
                let message = decode(&text).map_err(|error| StoreError::corrupt("message", error.reason))?;
                Ok((read_column(row, "sequence")?, message))
            })
            .collect()
    }

    /// The newest checks, newest first, at most `limit`. Jobs that wait for their draw or were not drawn are left out.
    ///
    /// # Errors
    /// The database fails.
    pub async fn list(&self, limit: u32) -> StoreResult<Vec<CheckView>> {
        let rows = sqlx::query(
            "SELECT * FROM cross_checks WHERE state NOT IN ('waiting', 'undrawn') \
             ORDER BY changed_at DESC, job_id LIMIT $1",
        )
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .during("list checks")?;
        rows.iter().map(view_of).collect()
    }

    /// The drawn jobs with a verdict since a time, in the order of their ends: the evidence of the sequential rule.
    ///
    /// # Errors
    /// The database fails.
    pub async fn evidence_since(&self, since: Timestamp) -> StoreResult<Vec<CheckedJob>> {
        let rows = sqlx::query(
            "SELECT coldkey, account, state, ended_at FROM cross_checks WHERE origin = 'drawn' \
             AND state IN ('agrees', 'differs') AND coldkey IS NOT NULL AND ended_at >= $1 \
             ORDER BY ended_at DESC, job_id DESC LIMIT $2",
        )
        .bind(since.micros())
        .bind(MAX_EVIDENCE)
        .fetch_all(&self.pool)
        .await
        .during("read the evidence of cross-checks")?;
        let mut jobs = rows
            .iter()
            .map(|row| {
                let state: String = read_column(row, "state")?;
                Ok(CheckedJob {
                    coldkey: parse_column(row, "coldkey")?,
                    account: read_column(row, "account")?,
                    differs: state == CheckState::Differs.as_str(),
                    at: read_column(row, "ended_at").map(Timestamp::from_micros)?,
                })
            })
            .collect::<StoreResult<Vec<_>>>()?;
        jobs.reverse();
        Ok(jobs)
    }

    /// Deletes what has had its time: jobs that were not drawn, and news that no facilitator is told any more.
    pub(crate) async fn forget(&self, undrawn_before: Timestamp, before: Timestamp) -> StoreResult<()> {
        const OPERATION: &str = "delete old checks";
        sqlx::query("DELETE FROM cross_checks WHERE state = 'undrawn' AND changed_at < $1")
            .bind(undrawn_before.micros())
            .execute(&self.pool)
            .await
            .during(OPERATION)?;
        sqlx::query(
            "DELETE FROM cross_checks WHERE changed_at < $1 AND state IN ('agrees', 'differs', 'unproven')",
        )
        .bind(before.micros())
        .execute(&self.pool)
        .await
        .during(OPERATION)?;
        // Its receipt is scored no more.
        sqlx::query(
            "DELETE FROM refunded_attempts WHERE marked_at < $1 AND NOT EXISTS \
             (SELECT 1 FROM receipts r WHERE r.attempt_id = refunded_attempts.attempt_id)",
        )
        .bind(before.micros())
        .execute(&self.pool)
        .await
        .during(OPERATION)?;
        sqlx::query("DELETE FROM check_news WHERE written_at < $1")
            .bind(before.micros())
            .execute(&self.pool)
            .await
            .during(OPERATION)?;
        Ok(())
    }
}

/// The message that tells a verdict.
fn notice(check: &DueCheck, verdict: &CheckVerdict, now: Timestamp) -> JobCheck {
    JobCheck {
        uuid: check.job,
        origin: check.origin,
        state: verdict.state,
        reason: verdict.reason.clone(),
        outputs: verdict
            .outputs
            .iter()
            .take(MAX_CHECKED_OUTPUTS)
            .cloned()
            .collect(),
        at: now,
    }
}

/// The subject of the news about a job.
fn subject_of(job: JobId) -> String {
    format!("job {job}")
}

async fn put_notice(connection: &mut AnyConnection, notice: JobCheck, now: Timestamp) -> StoreResult<()> {
    let subject = subject_of(notice.uuid);
    put_news(
        connection,
        &subject,
        &ToFacilitator::MusterJobCheck(Box::new(notice)),
        now,
    )
    .await
}

/// Stores a message for the facilitator in place of the one before about its subject.
pub(crate) async fn put_news(
    connection: &mut AnyConnection,
    subject: &str,
    message: &ToFacilitator,
    now: Timestamp,
) -> StoreResult<()> {
    sqlx::query(
        "INSERT INTO check_news (subject, sequence, message, written_at) \
         VALUES ($1, (SELECT COALESCE(MAX(sequence), 0) + 1 FROM check_news), $2, $3) \
         ON CONFLICT (subject) DO UPDATE SET sequence = excluded.sequence, message = excluded.message, \
         written_at = excluded.written_at",
    )
    .bind(subject.to_owned())
    .bind(encode(message))
    .bind(now.micros())
    .execute(connection)
    .await
    .during("store news of a check")?;
    Ok(())
}

/// A completed job in a row of jobs, attempts and receipts; `None` if the job has not completed, or is not one that can
/// be run again.
fn read_ended(row: &AnyRow) -> StoreResult<Option<EndedJob>> {
    let outcome: Option<String> = read_column(row, "outcome")?;
    let Some(outcome) = outcome else { return Ok(None) };
    let outcome: Outcome = read_json("outcome", &outcome)?;
    let Outcome::Completed(response) = &outcome else {
        return Ok(None);
    };
    let request: JobRequest = json_column(row, "request")?;
    let block: i64 = read_column(row, "block")?;
    Ok(Some(EndedJob {
        outputs: JobOutputs::of(response),
        request,
        miner: parse_column(row, "miner")?,
        attempt: parse_column(row, "attempt_id")?,
        receipt: json_column(row, "payload")?,
        block: u64::try_from(block).ok(),
        ended_at: read_column(row, "closed_at").map(Timestamp::from_micros)?,
    }))
}

fn view_of(row: &AnyRow) -> StoreResult<CheckView> {
    let runs: Vec<JobOutputs> = json_column(row, "runs")?;
    let block: Option<i64> = read_column(row, "draw_block")?;
    Ok(CheckView {
        job: parse_column(row, "job_id")?,
        origin: origin_of(row)?,
        state: read_column(row, "state")?,
        reason: read_column(row, "reason")?,
        miner: parse_optional(row, "miner")?,
        coldkey: parse_optional(row, "coldkey")?,
        attempt: parse_optional(row, "attempt_id")?,
        receipt: parse_optional(row, "receipt")?,
        draw_block: block.and_then(|block| u64::try_from(block).ok()),
        block_hash: parse_optional(row, "block_hash")?,
        draw: read_column(row, "draw")?,
        compared: json_column(row, "compared")?,
        runs: u64::try_from(runs.len()).unwrap_or(u64::MAX),
        ended_at: read_column(row, "ended_at").map(Timestamp::from_micros)?,
        changed_at: read_column(row, "changed_at").map(Timestamp::from_micros)?,
    })
}

fn origin_of(row: &AnyRow) -> StoreResult<CheckOrigin> {
    read_column(row, "origin").map(|name: String| CheckOrigin::from_wire(&name))
}

pub(crate) fn read_column<'r, T: Decode<'r, Any> + Type<Any>>(
    row: &'r AnyRow,
    name: &'static str,
) -> StoreResult<T> {
    row.try_get(name)
        .map_err(|error| StoreError::corrupt(name, error.to_string()))
}

pub(crate) fn parse_column<T>(row: &AnyRow, name: &'static str) -> StoreResult<T>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    let text: String = read_column(row, name)?;
    text.parse()
        .map_err(|error: T::Err| StoreError::corrupt(name, error.to_string()))
}

pub(crate) fn parse_optional<T>(row: &AnyRow, name: &'static str) -> StoreResult<Option<T>>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    let text: Option<String> = read_column(row, name)?;
    text.map(|text| {
        text.parse()
            .map_err(|error: T::Err| StoreError::corrupt(name, error.to_string()))
    })
    .transpose()
}

fn json_column<T: serde::de::DeserializeOwned>(row: &AnyRow, name: &'static str) -> StoreResult<T> {
    let text: String = read_column(row, name)?;
    read_json(name, &text)
}

fn read_json<T: serde::de::DeserializeOwned>(name: &'static str, text: &str) -> StoreResult<T> {
    serde_json::from_str(text).map_err(|error| StoreError::corrupt(name, error.to_string()))
}

pub(crate) fn unsigned_column(row: &AnyRow, name: &'static str) -> StoreResult<u64> {
    read_column(row, name).map(|number: i64| u64::try_from(number).unwrap_or(0))
}

pub(crate) fn to_signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

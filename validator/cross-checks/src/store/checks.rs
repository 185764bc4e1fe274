//! A check from its row to its verdict.

use muster_identity::ProvenOutput;
use muster_protocol::wire::checks::{CheckOrigin, CheckState};
use muster_protocol::wire::encode;
use muster_protocol::{AttemptId, Digest, Hotkey, JobId, Timestamp};
use muster_response_proof::ReportedAnswer;
use muster_store::columns::{
    json_column, parse_column, parse_column_option, read_column, storable_text, time_column, to_signed,
    unsigned_column,
};
use muster_store::{During as _, json};

use super::image_marks::mark_image;
use super::news::{notice, pending_notice, put_notice};
use super::{CheckStore, EndedJob, PAGE, StoreResult, origin_of};
use crate::image_marks::CheckEffect;
use crate::outputs::JobOutputs;

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
    /// The reported answer of the session.
    pub(crate) answer: Option<ReportedAnswer>,
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
    /// The reported answer of a session.
    pub(crate) answer: Option<ReportedAnswer>,
    /// The block whose hash draws; `None` for a reported job, which is not drawn.
    pub(crate) draw_block: Option<u64>,
}

impl CheckStore {
    /// Stores a new check, unless there is one about its job. A job that waits for its draw, or was not drawn, becomes
    /// one that was reported, and the facilitator is notified that it runs again. Returns whether anything changed.
    pub(crate) async fn insert(&self, check: &NewCheck, now: Timestamp) -> StoreResult<bool> {
        const OPERATION: &str = "store a job that may be run again";
        let state = match check.origin {
            CheckOrigin::Drawn => "waiting",
            CheckOrigin::Reported | CheckOrigin::Unknown => CheckState::Pending.as_str(),
        };
        let ended = check.ended.as_ref();
        let mut tx = self.writer.begin().await?;
        let done = sqlx::query(
            "INSERT INTO cross_checks (job_id, origin, state, account, miner, coldkey, attempt_id, model, receipt, \
             draw_block, outputs, next_try_at, ended_at, created_at, changed_at, answer) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $12, $12, $14) \
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
        .bind(ended.map(|ended| crate::job_draw::drawn_digest(&ended.receipt).to_string()))
        .bind(check.draw_block.map(to_signed))
        .bind(ended.map(|ended| encode(&ended.outputs)))
        .bind(now.micros())
        .bind(ended.map_or(now, |ended| ended.ended_at).micros())
        .bind(check.answer.as_ref().map(encode))
        .execute(&mut *tx)
        .await
        .during(OPERATION)?;
        let is_new = done.rows_affected() > 0;
        if is_new && check.origin == CheckOrigin::Reported {
            put_notice(&mut tx, pending_notice(check.job, check.origin, now), now).await?;
        }
        tx.commit(OPERATION).await?;
        Ok(is_new)
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

    /// Stores the draw of a job. The facilitator is notified of one that runs again.
    pub(crate) async fn put_draw(
        &self,
        job: JobId,
        is_drawn: bool,
        block_hash: &Digest,
        proof: &ProvenOutput,
        now: Timestamp,
    ) -> StoreResult<()> {
        const OPERATION: &str = "store the draw of a job";
        let state = if is_drawn {
            CheckState::Pending.as_str()
        } else {
            "undrawn"
        };
        let mut tx = self.writer.begin().await?;
        let done = sqlx::query(
            "UPDATE cross_checks SET state = $1, block_hash = $2, draw = $3, next_try_at = $4, created_at = $4, \
             changed_at = $4 WHERE job_id = $5 AND state = 'waiting'",
        )
        .bind(state)
        .bind(block_hash.to_string())
        .bind(proof.to_string())
        .bind(now.micros())
        .bind(job.to_string())
        .execute(&mut *tx)
        .await
        .during(OPERATION)?;
        if is_drawn && done.rows_affected() > 0 {
            put_notice(&mut tx, pending_notice(job, CheckOrigin::Drawn, now), now).await?;
        }
        tx.commit(OPERATION).await
    }

    /// The check that has waited longest and is due now.
    pub(crate) async fn next_due(&self, now: Timestamp) -> StoreResult<Option<DueCheck>> {
        let row = sqlx::query(
            "SELECT job_id, origin, coldkey, attempt_id, model, answer, outputs, runs, tries, created_at FROM cross_checks \
             WHERE state = 'pending' AND next_try_at <= $1 ORDER BY next_try_at, job_id LIMIT 1",
        )
        .bind(now.micros())
        .fetch_optional(&self.pool)
        .await
        .during("look for a job to run again")?;
        row.map(|row| {
            let outputs: Option<String> = read_column(&row, "outputs")?;
            let answer: Option<String> = read_column(&row, "answer")?;
            Ok(DueCheck {
                job: parse_column(&row, "job_id")?,
                origin: origin_of(&row)?,
                coldkey: parse_column_option(&row, "coldkey")?,
                attempt: parse_column_option(&row, "attempt_id")?,
                model: read_column(&row, "model")?,
                answer: answer.map(|text| json::decode("answer", &text)).transpose()?,
                outputs: outputs.map(|text| json::decode("outputs", &text)).transpose()?,
                runs: json_column(&row, "runs")?,
                tries: unsigned_column(&row, "tries")?,
                created_at: time_column(&row, "created_at")?,
            })
        })
        .transpose()
    }

    /// Stores the outputs of the runs so far.
    pub(crate) async fn put_runs(&self, job: JobId, runs: &[JobOutputs]) -> StoreResult<()> {
        let statement = sqlx::query("UPDATE cross_checks SET runs = $1, tries = 0 WHERE job_id = $2")
            .bind(encode(&runs))
            .bind(job.to_string());
        self.writer
            .execute("store the outputs of a run", statement)
            .await?;
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
        let statement = sqlx::query(
            "UPDATE cross_checks SET tries = $1, next_try_at = $2, reason = $3 WHERE job_id = $4",
        )
        .bind(to_signed(tries))
        .bind(next.micros())
        .bind(storable_text(reason))
        .bind(job.to_string());
        self.writer
            .execute("store when a run is tried again", statement)
            .await?;
        Ok(())
    }

    /// Stores the verdict about a job with the message for the facilitator. A difference that refunds marks the image,
    /// too.
    pub(crate) async fn put_verdict(
        &self,
        check: &DueCheck,
        effect: &CheckEffect,
        image: Option<&str>,
        now: Timestamp,
    ) -> StoreResult<()> {
        const OPERATION: &str = "store the verdict about a job that was run again";
        let verdict = &effect.verdict;
        let mut tx = self.writer.begin().await?;
        sqlx::query(
            "UPDATE cross_checks SET state = $1, reason = $2, compared = $3, changed_at = $4, answer = NULL \
             WHERE job_id = $5",
        )
        .bind(verdict.state.as_str())
        .bind(storable_text(&*verdict.reason))
        .bind(encode(&verdict.outputs))
        .bind(now.micros())
        .bind(check.job.to_string())
        .execute(&mut *tx)
        .await
        .during(OPERATION)?;
        if let Some(image) = image.filter(|_| effect.refunds) {
            mark_image(&mut tx, image, check.job, now).await?;
        }
        if let Some(attempt) = check.attempt.filter(|_| effect.refunds) {
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
        tx.commit(OPERATION).await
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

    /// Whether an audit of a model's answers by this coldkey was ordered by a report since a time.
    pub(crate) async fn has_session_report(
        &self,
        coldkey: &Hotkey,
        model: &str,
        since: Timestamp,
    ) -> StoreResult<bool> {
        let row = sqlx::query(
            "SELECT COUNT(*) AS many FROM cross_checks WHERE coldkey = $1 AND model = $2 AND origin = 'reported' \
             AND created_at > $3",
        )
        .bind(coldkey.to_string())
        .bind(model.to_owned())
        .bind(since.micros())
        .fetch_one(&self.pool)
        .await
        .during("look for reports about a model's answers")?;
        Ok(unsigned_column(&row, "many")? > 0)
    }

    /// Deletes what has had its time: jobs that were not drawn, and news that no facilitator receives any more.
    pub(crate) async fn forget(&self, undrawn_before: Timestamp, before: Timestamp) -> StoreResult<()> {
        const OPERATION: &str = "delete old checks";
        let statement = sqlx::query("DELETE FROM cross_checks WHERE state = 'undrawn' AND changed_at < $1")
            .bind(undrawn_before.micros());
        self.writer.execute(OPERATION, statement).await?;
        let statement = sqlx::query(
            "DELETE FROM cross_checks WHERE changed_at < $1 AND state IN ('agrees', 'differs', 'unproven')",
        )
        .bind(before.micros());
        self.writer.execute(OPERATION, statement).await?;
        // Its receipt is scored no more.
        let statement = sqlx::query(
            "DELETE FROM refunded_attempts WHERE marked_at < $1 AND NOT EXISTS \
             (SELECT 1 FROM receipts r WHERE r.attempt_id = refunded_attempts.attempt_id)",
        )
        .bind(before.micros());
        self.writer.execute(OPERATION, statement).await?;
        let statement = sqlx::query("DELETE FROM check_news WHERE written_at < $1").bind(before.micros());
        self.writer.execute(OPERATION, statement).await?;
        Ok(())
    }
}

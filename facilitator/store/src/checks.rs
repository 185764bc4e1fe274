//! Validators' words about jobs that they ran again, and about answers that they refund.

use muster_protocol::wire::checks::{JobCheck, RefundNotice};
use muster_protocol::wire::encode;
use muster_protocol::{Digest, JobId, Timestamp, ValidatorKey};
use muster_store::columns::{storable_text, to_signed, to_unsigned};
use muster_store::{During as _, StoreError, json};
use serde::Serialize;
use utoipa::ToSchema;

use super::Store;

const DAY_MICROS: i64 = 86_400_000_000;

/// The most refunds of one validator that are kept.
const MAX_REFUNDS: i64 = 1_000_000;
/// Refunds of a validator that are taken between two counts of them.
const RECOUNT: u32 = 10_000;

/// Answers of a model that are refunded to an account, of one day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct RefundedUsage {
    /// Days since 1970-01-01, UTC.
    pub day: i64,
    /// The model's id.
    pub model: String,
    /// The number of refunded answers.
    pub requests: u64,
    /// The tokens of their requests together.
    pub input_tokens: u64,
    /// The tokens of these answers together.
    pub output_tokens: u64,
    /// The digest of the bundle of evidence that convicts their miner.
    pub bundle: String,
}

// === impl Store ===

impl Store {
    /// Stores what a validator found by running one of its jobs again. Word about another validator's job is ignored;
    /// returns whether it was stored.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn record_check(
        &self,
        validator: ValidatorKey,
        notice: &JobCheck,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        // A parameter in a list of results has no type of its own in PostgreSQL.
        let statement = "INSERT INTO job_checks (job, notice, told_at) \
                         SELECT uuid, CAST($1 AS TEXT), CAST($2 AS BIGINT) FROM jobs WHERE uuid = $3 AND validator = $4 \
                         ON CONFLICT (job) DO UPDATE SET notice = excluded.notice, told_at = excluded.told_at";
        let done = sqlx::query(statement)
            .bind(encode(notice))
            .bind(now.micros())
            .bind(notice.uuid.to_string())
            .bind(validator.to_string())
            .execute(&self.pool)
            .await
            .during("store what running a job again showed")?;
        let is_reported = self.record_answer_check(validator, notice).await?;
        Ok(done.rows_affected() > 0 || is_reported)
    }

    /// The finding of a job's validator by running it again; `None` if it has reported none.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn job_check(&self, job: JobId) -> Result<Option<JobCheck>, StoreError> {
        let row: Option<(String,)> = sqlx::query_as("SELECT notice FROM job_checks WHERE job = $1")
            .bind(job.to_string())
            .fetch_optional(&self.pool)
            .await
            .during("read what running a job again showed")?;
        row.map(|(notice,)| json::decode("job_checks.notice", &notice))
            .transpose()
    }

    /// Stores that a validator refunds an answer, or takes the refund back. Beyond the bound on a validator's refunds
    /// nothing is stored.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn record_refund(
        &self,
        validator: ValidatorKey,
        notice: &RefundNotice,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        const OPERATION: &str = "store a refund";
        let validator = validator.to_string();
        let Some(bundle) = notice.bundle else {
            sqlx::query("DELETE FROM refunds WHERE validator = $1 AND response = $2")
                .bind(validator)
                .bind(storable_text(&*notice.response))
                .execute(&self.pool)
                .await
                .during(OPERATION)?;
            return Ok(());
        };
        if !self.has_room_for_refund(&validator).await? {
            return Ok(());
        }
        sqlx::query(
            "INSERT INTO refunds (validator, response, client, model, day, input_tokens, output_tokens, bundle, told_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (validator, response) DO UPDATE SET \
             bundle = excluded.bundle, told_at = excluded.told_at",
        )
        .bind(validator)
        .bind(storable_text(&*notice.response))
        .bind(notice.client.to_string())
        .bind(storable_text(&*notice.model))
        .bind(notice.answered_at.micros().div_euclid(DAY_MICROS))
        .bind(to_signed(notice.input_tokens))
        .bind(to_signed(notice.output_tokens))
        .bind(bundle.to_string())
        .bind(now.micros())
        .execute(&self.pool)
        .await
        .during(OPERATION)?;
        Ok(())
    }

    /// Whether a validator may report another refund. The rows are counted once for many notices: a conviction refunds
    /// thousands of answers at once. So the bound may be exceeded by [`RECOUNT`] for each process.
    async fn has_room_for_refund(&self, validator: &str) -> Result<bool, StoreError> {
        if let Some(left) = self.refunds_until_recount.lock().get_mut(validator)
            && let Some(fewer) = left.checked_sub(1)
        {
            *left = fewer;
            return Ok(true);
        }
        let (kept,): (i64,) = sqlx::query_as("SELECT COUNT(*) FROM refunds WHERE validator = $1")
            .bind(validator)
            .fetch_one(&self.pool)
            .await
            .during("count the refunds of a validator")?;
        let has_room = kept < MAX_REFUNDS;
        if has_room {
            self.refunds_until_recount
                .lock()
                .insert(validator.to_owned(), RECOUNT);
        }
        Ok(has_room)
    }

    /// The refunded answers of the client with this pseudonym, the newest days first, at most `rows` entries.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn list_refunds(&self, client: &Digest, rows: i64) -> Result<Vec<RefundedUsage>, StoreError> {
        let rows: Vec<(i64, String, String, i64, i64, i64)> = sqlx::query_as(
            "SELECT day, model, bundle, COUNT(*), CAST(SUM(input_tokens) AS BIGINT), CAST(SUM(output_tokens) AS BIGINT) \
             FROM refunds WHERE client = $1 GROUP BY day, model, bundle ORDER BY day DESC, model, bundle LIMIT $2",
        )
        .bind(client.to_string())
        .bind(rows)
        .fetch_all(&self.pool)
        .await
        .during("list refunds")?;
        let read = |(day, model, bundle, requests, input, output)| RefundedUsage {
            day,
            model,
            requests: to_unsigned(requests),
            input_tokens: to_unsigned(input),
            output_tokens: to_unsigned(output),
            bundle,
        };
        Ok(rows.into_iter().map(read).collect())
    }
}

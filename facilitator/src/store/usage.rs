//! The use of models: requests and tokens by account, day and model.

use muster_facilitator_core::account::Account;
use muster_protocol::Timestamp;
use muster_store::{During as _, StoreError};
use serde::Serialize;
use utoipa::ToSchema;

use super::Store;

/// An account's use of a model on one day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct DayUsage {
    /// Days since 1970-01-01, UTC.
    pub day: i64,
    /// The model's id.
    pub model: String,
    /// The number of answered requests.
    pub requests: u64,
    /// The tokens of the requests together.
    pub input_tokens: u64,
    /// The tokens of the answers together.
    pub output_tokens: u64,
}

const DAY_MICROS: i64 = 86_400_000_000;

// === impl Store ===

impl Store {
    /// Adds one answered request, with its input and output tokens, to an account's use of a model.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn count_usage(
        &self,
        account: &Account,
        model: &str,
        tokens: (u64, u64),
        now: Timestamp,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO model_usage (account, day, model, requests, input_tokens, output_tokens) \
             VALUES ($1, $2, $3, 1, $4, $5) ON CONFLICT (account, day, model) DO UPDATE SET \
             requests = model_usage.requests + 1, \
             input_tokens = model_usage.input_tokens + excluded.input_tokens, \
             output_tokens = model_usage.output_tokens + excluded.output_tokens",
        )
        .bind(account.to_string())
        .bind(day(now))
        .bind(model.to_owned())
        .bind(signed(tokens.0))
        .bind(signed(tokens.1))
        .execute(&self.pool)
        .await
        .during("count usage")?;
        Ok(())
    }

    /// The tokens that an account has used today (UTC), input and output together.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn tokens_today(&self, account: &Account, now: Timestamp) -> Result<u64, StoreError> {
        let row: (i64,) = sqlx::query_as(
            "SELECT CAST(COALESCE(SUM(input_tokens + output_tokens), 0) AS BIGINT) FROM model_usage \
             WHERE account = $1 AND day = $2",
        )
        .bind(account.to_string())
        .bind(day(now))
        .fetch_one(&self.pool)
        .await
        .during("sum up today's usage")?;
        Ok(u64::try_from(row.0).unwrap_or(0))
    }

    /// An account's use of models, the newest days first, at most `rows` entries.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn list_usage(&self, account: &Account, rows: i64) -> Result<Vec<DayUsage>, StoreError> {
        let rows: Vec<(i64, String, i64, i64, i64)> = sqlx::query_as(
            "SELECT day, model, requests, input_tokens, output_tokens FROM model_usage WHERE account = $1 \
             ORDER BY day DESC, model LIMIT $2",
        )
        .bind(account.to_string())
        .bind(rows)
        .fetch_all(&self.pool)
        .await
        .during("list usage")?;
        let unsigned = |number: i64| u64::try_from(number).unwrap_or(0);
        let read = |(day, model, requests, input, output)| DayUsage {
            day,
            model,
            requests: unsigned(requests),
            input_tokens: unsigned(input),
            output_tokens: unsigned(output),
        };
        Ok(rows.into_iter().map(read).collect())
    }
}

fn day(now: Timestamp) -> i64 {
    now.micros().div_euclid(DAY_MICROS)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

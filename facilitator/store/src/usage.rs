//! The use of models: requests and tokens by account, day and model.

use muster_facilitator_core::credentials::Account;
use muster_protocol::Timestamp;
use muster_store::columns::{to_signed, to_unsigned};
use muster_store::{During as _, StoreError};
use serde::Serialize;
use sqlx::AnyConnection;
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

/// Tokens of a request and of its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenPair {
    /// Tokens of the request.
    pub input: u64,
    /// Tokens of the answer.
    pub output: u64,
}

impl TokenPair {
    /// The tokens of request and answer together; `u64::MAX` if they are more.
    pub fn sum(self) -> u64 {
        self.input.saturating_add(self.output)
    }
}

/// A request that is counted and not settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageReservation {
    account: String,
    model: String,
    day: i64,
    tokens: TokenPair,
    counts_towards_quota: bool,
}

/// A request may use more tokens than its account has left today.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokensExhausted {
    /// Tokens that the account has used today, and those that its requests under way may use.
    pub used: u64,
    /// Tokens that the request may use.
    pub wanted: u64,
}

const DAY_MICROS: i64 = 86_400_000_000;

// === impl Store ===

impl Store {
    /// Counts a request of a model before it is forwarded, with the most tokens that it may use. If `limit` is set, the
    /// account's tokens of today (UTC) must not exceed it, together with those of all requests under way: of two
    /// concurrent requests only one gets the last tokens.
    ///
    /// A request that is never settled, because its facilitator was killed, stays counted with these tokens.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn reserve_usage(
        &self,
        account: &Account,
        model: &str,
        tokens: TokenPair,
        limit: Option<u64>,
        now: Timestamp,
    ) -> Result<Result<UsageReservation, TokensExhausted>, StoreError> {
        let reservation = UsageReservation {
            account: account.to_string(),
            model: model.to_owned(),
            day: day(now),
            tokens,
            counts_towards_quota: limit.is_some(),
        };
        let mut write = self.writer.begin().await?;
        if let Some(limit) = limit {
            let wanted = tokens.sum();
            let reserved = wanted <= limit && reserve_tokens(&mut write, &reservation, limit).await?;
            if !reserved {
                drop(write);
                let used = self.tokens_today(account, now).await?;
                return Ok(Err(TokensExhausted { used, wanted }));
            }
        }
        add_usage(
            &mut write,
            &reservation,
            1,
            (to_signed(tokens.input), to_signed(tokens.output)),
        )
        .await?;
        write.commit("reserve tokens").await?;
        Ok(Ok(reservation))
    }

    /// Replaces the tokens of a reservation by those that were used; `None` for a request that was not answered, which
    /// then does not count at all.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn settle_usage(
        &self,
        reservation: &UsageReservation,
        used: Option<TokenPair>,
    ) -> Result<(), StoreError> {
        let requests = if used.is_some() { 0 } else { -1 };
        let used = used.unwrap_or_default();
        let reserved = reservation.tokens;
        let change = |used: u64, reserved: u64| to_signed(used).saturating_sub(to_signed(reserved));
        let (input, output) = (
            change(used.input, reserved.input),
            change(used.output, reserved.output),
        );
        let mut write = self.writer.begin().await?;
        if reservation.counts_towards_quota {
            sqlx::query("UPDATE quotas SET tokens = tokens + $1 WHERE account = $2 AND day = $3")
                .bind(input.saturating_add(output))
                .bind(reservation.account.clone())
                .bind(reservation.day)
                .execute(&mut *write)
                .await
                .during("settle tokens")?;
        }
        add_usage(&mut write, reservation, requests, (input, output)).await?;
        write.commit("settle tokens").await
    }

    /// The tokens that an account has used or reserved today (UTC), input and output together.
    async fn tokens_today(&self, account: &Account, now: Timestamp) -> Result<u64, StoreError> {
        let row: Option<(i64,)> = sqlx::query_as("SELECT tokens FROM quotas WHERE account = $1 AND day = $2")
            .bind(account.to_string())
            .bind(day(now))
            .fetch_optional(&self.pool)
            .await
            .during("read today's tokens")?;
        Ok(row.map_or(0, |(tokens,)| u64::try_from(tokens).unwrap_or_default()))
    }

    /// An account's use of models, the newest days first, at most `rows` entries.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn list_usage(&self, account: &Account, rows: i64) -> Result<Vec<DayUsage>, StoreError> {
        let rows: Vec<(i64, String, i64, i64, i64)> = sqlx::query_as(
            "SELECT day, model, requests, input_tokens, output_tokens FROM model_usage WHERE account = $1 \
             AND requests > 0 ORDER BY day DESC, model LIMIT $2",
        )
        .bind(account.to_string())
        .bind(rows)
        .fetch_all(&self.pool)
        .await
        .during("list usage")?;
        let read = |(day, model, requests, input, output)| DayUsage {
            day,
            model,
            requests: to_unsigned(requests),
            input_tokens: to_unsigned(input),
            output_tokens: to_unsigned(output),
        };
        Ok(rows.into_iter().map(read).collect())
    }
}

/// Adds a reservation's tokens to its account's row of the day, unless they would exceed the limit. The statement locks
/// the row.
async fn reserve_tokens(
    connection: &mut AnyConnection,
    reservation: &UsageReservation,
    limit: u64,
) -> Result<bool, StoreError> {
    let done = sqlx::query(
        "INSERT INTO quotas (account, day, jobs, tokens) VALUES ($1, $2, 0, $3) ON CONFLICT (account) DO UPDATE SET \
         tokens = CASE WHEN quotas.day = excluded.day THEN quotas.tokens + excluded.tokens ELSE excluded.tokens END, \
         jobs = CASE WHEN quotas.day = excluded.day THEN quotas.jobs ELSE 0 END, day = excluded.day \
         WHERE quotas.day <> excluded.day OR quotas.tokens + excluded.tokens <= $4",
    )
    .bind(reservation.account.clone())
    .bind(reservation.day)
    .bind(to_signed(reservation.tokens.sum()))
    .bind(to_signed(limit))
    .execute(connection)
    .await
    .during("reserve tokens")?;
    Ok(done.rows_affected() == 1)
}

/// Adds to an account's use of a model, or takes from it.
async fn add_usage(
    connection: &mut AnyConnection,
    reservation: &UsageReservation,
    requests: i64,
    tokens: (i64, i64),
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO model_usage (account, day, model, requests, input_tokens, output_tokens) \
         VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (account, day, model) DO UPDATE SET \
         requests = model_usage.requests + excluded.requests, \
         input_tokens = model_usage.input_tokens + excluded.input_tokens, \
         output_tokens = model_usage.output_tokens + excluded.output_tokens",
    )
    .bind(reservation.account.clone())
    .bind(reservation.day)
    .bind(reservation.model.clone())
    .bind(requests)
    .bind(tokens.0)
    .bind(tokens.1)
    .execute(connection)
    .await
    .during("count usage")?;
    Ok(())
}

fn day(now: Timestamp) -> i64 {
    now.micros().div_euclid(DAY_MICROS)
}

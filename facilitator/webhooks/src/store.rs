//! Accounts' secrets and URLs, and the messages about jobs' ends, which outlive restarts. The tables are in the
//! facilitator's store.

use std::time::Duration;

use muster_protocol::rest::{WebhookDelivery, WebhookState};
use muster_protocol::{JobId, Timestamp};
use muster_store::{During as _, StoreError, json};
use sqlx::{AnyConnection, AnyPool};

use crate::message::{NextStep, WebhookSecret};

/// The time after which another facilitator may send a message that this one began to send. It is longer than an
/// attempt.
const CLAIM: Duration = Duration::from_secs(60);

/// The most accounts whose messages are sent in one round.
const MAX_ACCOUNTS: i64 = 64;

/// The webhooks of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountWebhook {
    /// The secret that signs the account's messages.
    pub secret: WebhookSecret,
    /// The URL for jobs that name none.
    pub url: Option<String>,
    /// The time of the last change.
    pub changed_at: Timestamp,
}

/// A message that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueMessage {
    /// The job that has ended.
    pub job: JobId,
    /// The account that owns the job.
    pub account: String,
    /// The URL that gets the message.
    pub url: String,
    /// The attempts so far.
    pub attempts: u32,
    /// When it is due. A claim of the message names it, so that one facilitator alone sends the message.
    pub next_at: Timestamp,
}

muster_store::row! {
    struct DueRow {
        job: String,
        account: String,
        url: String,
        attempts: i64,
        next_at: i64,
    }
}

muster_store::row! {
    struct MessageRow {
        url: String,
        state: String,
        attempts: i64,
        next_at: i64,
        error: String,
        changed_at: i64,
    }
}

/// The webhooks in the facilitator's database. Clones share its connections.
#[derive(Clone, Debug)]
pub struct WebhookStore {
    pool: AnyPool,
}

// === impl WebhookStore ===

impl WebhookStore {
    /// A store in the database behind `pool`, whose migrations have been applied.
    pub const fn new(pool: AnyPool) -> Self {
        Self { pool }
    }

    /// The webhooks of an account; `None` if it has no secret.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn account_webhook(&self, account: &str) -> Result<Option<AccountWebhook>, StoreError> {
        let row: Option<(String, String, i64)> =
            sqlx::query_as("SELECT secret, url, changed_at FROM webhook_accounts WHERE account = $1")
                .bind(account)
                .fetch_optional(&self.pool)
                .await
                .during("read an account's webhook")?;
        row.map(|(secret, url, changed_at)| {
            Ok(AccountWebhook {
                secret: json::parse("webhook_accounts.secret", &secret)?,
                url: Some(url).filter(|url| !url.is_empty()),
                changed_at: Timestamp::from_micros(changed_at),
            })
        })
        .transpose()
    }

    /// Messages that are due, the longest due accounts first, at most `per_account` of each.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn due_messages(
        &self,
        per_account: u32,
        now: Timestamp,
    ) -> Result<Vec<DueMessage>, StoreError> {
        let accounts = "SELECT account FROM webhook_messages WHERE state = 'due' AND next_at <= $1 \
                        GROUP BY account ORDER BY MIN(next_at) LIMIT $2";
        let accounts: Vec<(String,)> = sqlx::query_as(accounts)
            .bind(now.micros())
            .bind(MAX_ACCOUNTS)
            .fetch_all(&self.pool)
            .await
            .during("look for due messages")?;
        let mut due = Vec::new();
        for (account,) in accounts {
            let statement = "SELECT job, account, url, attempts, next_at FROM webhook_messages \
                             WHERE state = 'due' AND account = $1 AND next_at <= $2 ORDER BY next_at, job LIMIT $3";
            let rows: Vec<DueRow> = sqlx::query_as(statement)
                .bind(account)
                .bind(now.micros())
                .bind(i64::from(per_account))
                .fetch_all(&self.pool)
                .await
                .during("look for due messages")?;
            for row in rows {
                due.push(row.into_message()?);
            }
        }
        Ok(due)
    }

    /// Counts an attempt and takes the message for this facilitator, for a minute. Returns `false` if another one has
    /// it.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn claim_message(&self, message: &DueMessage, now: Timestamp) -> Result<bool, StoreError> {
        let statement = "UPDATE webhook_messages SET attempts = attempts + 1, next_at = $1 \
                         WHERE job = $2 AND state = 'due' AND next_at = $3";
        let done = sqlx::query(statement)
            .bind(now.plus(CLAIM).micros())
            .bind(message.job.to_string())
            .bind(message.next_at.micros())
            .execute(&self.pool)
            .await
            .during("claim a message")?;
        Ok(done.rows_affected() == 1)
    }

    /// Stores what follows from an attempt.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn note_attempt(&self, job: JobId, step: &NextStep, now: Timestamp) -> Result<(), StoreError> {
        let (state, next_at, error) = match step {
            NextStep::Delivered => ("delivered", now, ""),
            NextStep::Retry(pause, reason) => ("due", now.plus(*pause), reason.as_str()),
            NextStep::GiveUp(reason) => ("failed", now, reason.as_str()),
        };
        let statement = "UPDATE webhook_messages SET state = $1, next_at = $2, error = $3, changed_at = $4 \
                         WHERE job = $5 AND state = 'due'";
        sqlx::query(statement)
            .bind(state)
            .bind(next_at.micros())
            .bind(error)
            .bind(now.micros())
            .bind(job.to_string())
            .execute(&self.pool)
            .await
            .during("store an attempt to send a message")?;
        Ok(())
    }

    /// Where the message about a job's end stands; `None` for a job without a webhook.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn webhook_delivery(&self, job: JobId) -> Result<Option<WebhookDelivery>, StoreError> {
        let statement =
            "SELECT url, state, attempts, next_at, error, changed_at FROM webhook_messages WHERE job = $1";
        let row: Option<MessageRow> = sqlx::query_as(statement)
            .bind(job.to_string())
            .fetch_optional(&self.pool)
            .await
            .during("read a job's webhook")?;
        Ok(row.map(MessageRow::into_delivery))
    }
}

/// Sets an account's URL, and its secret if it has none yet or if `replace` asks for a new one. Returns whether the
/// drawn secret is the account's now.
///
/// # Errors
/// See [`StoreError`].
pub async fn set_account(
    connection: &mut AnyConnection,
    account: &str,
    url: Option<&str>,
    drawn: &WebhookSecret,
    replace: bool,
    now: Timestamp,
) -> Result<bool, StoreError> {
    // The stored secret stays unless a new one is asked for.
    let statement = "INSERT INTO webhook_accounts (account, secret, url, changed_at) VALUES ($1, $2, $3, $4) \
                     ON CONFLICT (account) DO UPDATE SET url = excluded.url, changed_at = excluded.changed_at, \
                     secret = CASE WHEN CAST($5 AS BIGINT) = 1 THEN excluded.secret ELSE webhook_accounts.secret END";
    sqlx::query(statement)
        .bind(account)
        .bind(drawn.reveal())
        .bind(url.unwrap_or_default())
        .bind(now.micros())
        .bind(i64::from(replace))
        .execute(&mut *connection)
        .await
        .during("store an account's webhook")?;
    let (kept,): (String,) = sqlx::query_as("SELECT secret FROM webhook_accounts WHERE account = $1")
        .bind(account)
        .fetch_one(connection)
        .await
        .during("read an account's webhook")?;
    Ok(kept == drawn.reveal())
}

/// Removes an account's webhook with its secret. Messages that are not delivered yet are given up. Returns `false` if
/// there was none.
///
/// # Errors
/// See [`StoreError`].
pub async fn remove_account(
    connection: &mut AnyConnection,
    account: &str,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let done = sqlx::query("DELETE FROM webhook_accounts WHERE account = $1")
        .bind(account)
        .execute(&mut *connection)
        .await
        .during("remove an account's webhook")?;
    if done.rows_affected() == 0 {
        return Ok(false);
    }
    let statement = "UPDATE webhook_messages SET state = 'failed', error = $1, changed_at = $2 \
                     WHERE account = $3 AND state IN ('waiting', 'due')";
    sqlx::query(statement)
        .bind("the account's webhook was removed")
        .bind(now.micros())
        .bind(account)
        .execute(connection)
        .await
        .during("give up an account's messages")?;
    Ok(true)
}

/// Adds the message about a new job's end: to the job's own URL, or to that of its account if there is one.
///
/// # Errors
/// See [`StoreError`].
pub async fn add_message(
    connection: &mut AnyConnection,
    job: JobId,
    account: &str,
    own_url: Option<&str>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let statement = "INSERT INTO webhook_messages (job, account, url, state, attempts, next_at, error, changed_at) \
                     SELECT CAST($1 AS TEXT), account, CASE WHEN CAST($2 AS TEXT) <> '' THEN CAST($2 AS TEXT) ELSE url END, \
                     'waiting', 0, 0, '', CAST($3 AS BIGINT) FROM webhook_accounts \
                     WHERE account = $4 AND (url <> '' OR CAST($2 AS TEXT) <> '')";
    sqlx::query(statement)
        .bind(job.to_string())
        .bind(own_url.unwrap_or_default())
        .bind(now.micros())
        .bind(account)
        .execute(connection)
        .await
        .during("store a job's webhook")?;
    Ok(())
}

/// Makes the message about a job's end due, in the transaction of the end.
///
/// # Errors
/// See [`StoreError`].
pub async fn make_due(connection: &mut AnyConnection, job: JobId, now: Timestamp) -> Result<(), StoreError> {
    let statement = "UPDATE webhook_messages SET state = 'due', next_at = $1, changed_at = $1 \
                     WHERE job = $2 AND state = 'waiting'";
    sqlx::query(statement)
        .bind(now.micros())
        .bind(job.to_string())
        .execute(connection)
        .await
        .during("make a message due")?;
    Ok(())
}

// === impl DueRow, MessageRow ===

impl DueRow {
    fn into_message(self) -> Result<DueMessage, StoreError> {
        Ok(DueMessage {
            job: json::parse("webhook_messages.job", &self.job)?,
            account: self.account,
            url: self.url,
            attempts: u32::try_from(self.attempts).unwrap_or(u32::MAX),
            next_at: Timestamp::from_micros(self.next_at),
        })
    }
}

impl MessageRow {
    fn into_delivery(self) -> WebhookDelivery {
        let state = WebhookState::from_wire(&self.state);
        let next_at = Timestamp::from_micros(self.next_at);
        WebhookDelivery {
            url: self.url,
            state,
            attempts: u32::try_from(self.attempts).unwrap_or(u32::MAX),
            error: Some(self.error).filter(|error| !error.is_empty()),
            next_at: Some(next_at).filter(|_| state == WebhookState::Due),
            changed_at: Timestamp::from_micros(self.changed_at),
        }
    }
}

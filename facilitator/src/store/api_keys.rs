//! API keys, the audit log, and how many jobs an account has made.

use muster_facilitator_core::account::{Account, ApiKeySecret, Credential, KeyId};
use muster_process::store::{During as _, StoreError, json};
use muster_protocol::rest::{ApiKey, AuditEntry};
use muster_protocol::{Timestamp, UserKey};
use serde::Serialize;
use sqlx::{AnyConnection, FromRow};
use utoipa::ToSchema;
use uuid::Uuid;

use super::Store;

/// The most API keys that an account may have at a time.
const MAX_KEYS: i64 = 1000;

/// What was done, as the audit log names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditAction {
    /// A hotkey has logged in.
    Login,
    /// An API key was made.
    KeyCreated,
    /// An API key was revoked.
    KeyRevoked,
    /// A job was taken in.
    JobCreated,
    /// A job's user no longer wants it.
    JobCancelled,
    /// A job was reported as cheated.
    CheatReported,
    /// A user said what they think of a result.
    FeedbackGiven,
}

/// Who does something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// Whose account it is.
    pub account: Account,
    /// By what they were let in.
    pub credential: Credential,
}

/// How many jobs an account may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobQuota {
    /// Jobs that have not ended; 0 for no limit.
    pub open: u32,
    /// Jobs a day, UTC; 0 for no limit.
    pub daily: u32,
}

/// A quota that is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaExceeded {
    /// Too many jobs have not ended.
    Open,
    /// Too many jobs were made today; how long it lasts.
    Daily {
        /// Seconds until midnight, UTC.
        resets_in_s: u64,
    },
}

/// What an account had from a model on one day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct DayUsage {
    /// Days since 1970-01-01, UTC.
    pub day: i64,
    /// The model.
    pub model: String,
    /// Requests that were answered.
    pub requests: u64,
    /// Tokens of what was asked.
    pub input_tokens: u64,
    /// Tokens of what was answered.
    pub output_tokens: u64,
}

#[derive(FromRow)]
struct KeyRow {
    id: String,
    account: String,
    name: String,
    created_at: i64,
}

#[derive(FromRow)]
struct AuditRow {
    id: String,
    at: i64,
    account: String,
    credential: String,
    action: String,
    subject: String,
}

const DAY_MICROS: i64 = 86_400_000_000;

// === impl AuditAction, Actor, JobQuota ===

impl AuditAction {
    /// The word in the log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Login => "login",
            Self::KeyCreated => "key.created",
            Self::KeyRevoked => "key.revoked",
            Self::JobCreated => "job.created",
            Self::JobCancelled => "job.cancelled",
            Self::CheatReported => "cheat.reported",
            Self::FeedbackGiven => "feedback.given",
        }
    }
}

impl Actor {
    /// Somebody with a hotkey who has logged in.
    pub fn user(key: UserKey) -> Self {
        Self {
            account: Account::Hotkey(key),
            credential: Credential::Hotkey,
        }
    }
}

impl JobQuota {
    /// No limits.
    pub const NONE: Self = Self { open: 0, daily: 0 };
}

// === impl Store ===

impl Store {
    /// An account has had something from a model.
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
        .during("count what was used")?;
        Ok(())
    }

    /// Tokens that an account has had today, UTC.
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
        .during("add up what was used today")?;
        Ok(u64::try_from(row.0).unwrap_or(0))
    }

    /// What an account has used, the newest days first.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn usage_of(&self, account: &Account, rows: i64) -> Result<Vec<DayUsage>, StoreError> {
        let rows: Vec<(i64, String, i64, i64, i64)> = sqlx::query_as(
            "SELECT day, model, requests, input_tokens, output_tokens FROM model_usage WHERE account = $1 \
             ORDER BY day DESC, model LIMIT $2",
        )
        .bind(account.to_string())
        .bind(rows)
        .fetch_all(&self.pool)
        .await
        .during("list what was used")?;
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

    /// Writes one line of the audit log.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn audit(
        &self,
        actor: &Actor,
        action: AuditAction,
        subject: &str,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let mut connection = self.pool.acquire().await.during("write the audit log")?;
        note(&mut connection, actor, action, subject, now).await
    }

    /// One page of the audit log, newest first: of one account, or all of it.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn audit_log(
        &self,
        account: Option<&Account>,
        limit: u32,
        offset: u64,
    ) -> Result<(u64, Vec<AuditEntry>), StoreError> {
        const COLUMNS: &str = "SELECT id, at, account, credential, action, subject FROM audit";
        const ORDER: &str = "ORDER BY at DESC, id DESC LIMIT $1 OFFSET $2";
        let whose = account.map(ToString::to_string);
        let limit = i64::from(limit);
        let offset = i64::try_from(offset).unwrap_or(i64::MAX);
        let count = match &whose {
            Some(whose) => {
                sqlx::query_as("SELECT COUNT(*) FROM audit WHERE account = $1").bind(whose.clone())
            }
            None => sqlx::query_as("SELECT COUNT(*) FROM audit"),
        };
        let (count,): (i64,) = count.fetch_one(&self.pool).await.during("count the audit log")?;
        let rows: Vec<AuditRow> = match whose {
            Some(whose) => {
                let statement = format!("{COLUMNS} WHERE account = $3 {ORDER}");
                let query = sqlx::query_as(sqlx::AssertSqlSafe(statement));
                query
                    .bind(limit)
                    .bind(offset)
                    .bind(whose)
                    .fetch_all(&self.pool)
                    .await
            }
            None => {
                let statement = format!("{COLUMNS} {ORDER}");
                let query = sqlx::query_as(sqlx::AssertSqlSafe(statement));
                query.bind(limit).bind(offset).fetch_all(&self.pool).await
            }
        }
        .during("read the audit log")?;
        let entries = rows.into_iter().map(AuditRow::into_entry).collect();
        Ok((u64::try_from(count).unwrap_or_default(), entries))
    }

    /// Stores a new API key for `account`; `None` if the account has too many already.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn create_key(
        &self,
        actor: &Actor,
        account: &Account,
        name: &str,
        secret: &ApiKeySecret,
        now: Timestamp,
    ) -> Result<Option<ApiKey>, StoreError> {
        let id = KeyId::from_uuid(Uuid::new_v4()).to_string();
        let (held,): (i64,) =
            sqlx::query_as("SELECT COUNT(*) FROM api_keys WHERE account = $1 AND revoked_at = 0")
                .bind(account.to_string())
                .fetch_one(&self.pool)
                .await
                .during("count API keys")?;
        if held >= MAX_KEYS {
            return Ok(None);
        }
        let mut transaction = self.writer.begin().await?;
        let statement =
            "INSERT INTO api_keys (id, hash, account, name, created_at) VALUES ($1, $2, $3, $4, $5)";
        sqlx::query(statement)
            .bind(&id)
            .bind(secret.hash().hex())
            .bind(account.to_string())
            .bind(name)
            .bind(now.micros())
            .execute(&mut *transaction)
            .await
            .during("store an API key")?;
        note(&mut transaction, actor, AuditAction::KeyCreated, &id, now).await?;
        transaction.commit("store an API key").await?;
        Ok(Some(ApiKey {
            id,
            name: name.to_owned(),
            account: account.to_string(),
            key: Some(secret.reveal()),
            created_at: now,
        }))
    }

    /// The account that an API key opens, if it holds.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn key_owner(&self, secret: &ApiKeySecret) -> Result<Option<(Account, KeyId)>, StoreError> {
        let row: Option<(String, String)> =
            sqlx::query_as("SELECT account, id FROM api_keys WHERE hash = $1 AND revoked_at = 0")
                .bind(secret.hash().hex())
                .fetch_optional(&self.pool)
                .await
                .during("look for an API key")?;
        row.map(|(account, id)| {
            Ok((
                json::parse("api_keys.account", &account)?,
                json::parse("api_keys.id", &id)?,
            ))
        })
        .transpose()
    }

    /// The keys of `account` that hold, newest first.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn keys_of(&self, account: &Account) -> Result<Vec<ApiKey>, StoreError> {
        let statement = "SELECT id, account, name, created_at FROM api_keys WHERE account = $1 AND revoked_at = 0 \
                         ORDER BY created_at DESC, id DESC";
        let rows: Vec<KeyRow> = sqlx::query_as(statement)
            .bind(account.to_string())
            .fetch_all(&self.pool)
            .await
            .during("list API keys")?;
        Ok(rows.into_iter().map(KeyRow::into_key).collect())
    }

    /// Revokes a key: of `account`, or of whomever if that is `None`. `false` if there is none that holds.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn revoke_key(
        &self,
        actor: &Actor,
        account: Option<&Account>,
        id: KeyId,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let mut transaction = self.writer.begin().await?;
        let statement = "UPDATE api_keys SET revoked_at = $1 \
                         WHERE id = $2 AND revoked_at = 0 AND (account = $3 OR CAST($4 AS BIGINT) = 1)";
        let done = sqlx::query(statement)
            .bind(now.micros())
            .bind(id.to_string())
            .bind(account.map(ToString::to_string).unwrap_or_default())
            .bind(i64::from(account.is_none()))
            .execute(&mut *transaction)
            .await
            .during("revoke an API key")?;
        if done.rows_affected() == 0 {
            return Ok(false);
        }
        note(
            &mut transaction,
            actor,
            AuditAction::KeyRevoked,
            &id.to_string(),
            now,
        )
        .await?;
        transaction.commit("revoke an API key").await?;
        Ok(true)
    }
}

/// Writes one line of the audit log beside what it is about.
pub(super) async fn note(
    connection: &mut AnyConnection,
    actor: &Actor,
    action: AuditAction,
    subject: &str,
    now: Timestamp,
) -> Result<(), StoreError> {
    let statement =
        "INSERT INTO audit (id, at, account, credential, action, subject) VALUES ($1, $2, $3, $4, $5, $6)";
    sqlx::query(statement)
        .bind(Uuid::new_v4().to_string())
        .bind(now.micros())
        .bind(actor.account.to_string())
        .bind(actor.credential.to_string())
        .bind(action.as_str())
        .bind(subject)
        .execute(connection)
        .await
        .during("write the audit log")?;
    Ok(())
}

/// Counts one more job of `account`, or says which quota is used up: then the transaction is not to be committed.
///
/// The account's row is locked by the first statement, so that two requests at once cannot both be the last.
pub(super) async fn count_job(
    connection: &mut AnyConnection,
    account: &str,
    quota: JobQuota,
    now: Timestamp,
) -> Result<Result<(), QuotaExceeded>, StoreError> {
    if quota == JobQuota::NONE {
        return Ok(Ok(()));
    }
    let (day, into_day) = (now.micros() / DAY_MICROS, now.micros() % DAY_MICROS);
    let most = if quota.daily == 0 {
        i64::MAX
    } else {
        i64::from(quota.daily)
    };
    let statement = "INSERT INTO quotas (account, day, jobs) VALUES ($1, $2, 1) ON CONFLICT (account) DO UPDATE \
                     SET jobs = CASE WHEN quotas.day = excluded.day THEN quotas.jobs + 1 ELSE 1 END, day = excluded.day \
                     WHERE quotas.day <> excluded.day OR quotas.jobs < $3";
    let done = sqlx::query(statement)
        .bind(account)
        .bind(day)
        .bind(most)
        .execute(&mut *connection)
        .await
        .during("count a job")?;
    if done.rows_affected() == 0 {
        let resets_in_s = u64::try_from((DAY_MICROS - into_day) / 1_000_000).unwrap_or_default();
        return Ok(Err(QuotaExceeded::Daily {
            resets_in_s: resets_in_s.max(1),
        }));
    }
    if quota.open > 0 {
        // The job at hand is among them.
        let statement = "SELECT COUNT(*) FROM (SELECT 1 AS one FROM jobs WHERE account = $1 AND ended_at = 0 LIMIT $2) AS open";
        let (open,): (i64,) = sqlx::query_as(statement)
            .bind(account)
            .bind(i64::from(quota.open).saturating_add(1))
            .fetch_one(connection)
            .await
            .during("count open jobs")?;
        if open > i64::from(quota.open) {
            return Ok(Err(QuotaExceeded::Open));
        }
    }
    Ok(Ok(()))
}

// === impl KeyRow, AuditRow ===

impl KeyRow {
    fn into_key(self) -> ApiKey {
        ApiKey {
            id: self.id,
            name: self.name,
            account: self.account,
            key: None,
            created_at: Timestamp::from_micros(self.created_at),
        }
    }
}

impl AuditRow {
    fn into_entry(self) -> AuditEntry {
        AuditEntry {
            id: self.id,
            at: Timestamp::from_micros(self.at),
            account: self.account,
            credential: self.credential,
            action: self.action,
            subject: self.subject,
        }
    }
}

fn day(now: Timestamp) -> i64 {
    now.micros().div_euclid(DAY_MICROS)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

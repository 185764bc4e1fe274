//! The audit log: which account did what, and with which credential.

use muster_facilitator_core::credentials::{Account, Credential};
use muster_protocol::account_api::AuditEntry;
use muster_protocol::{Timestamp, UserKey};
use muster_store::{During as _, StoreError};
use sqlx::AnyConnection;
use uuid::Uuid;

use super::Store;

/// An action that the audit log records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditAction {
    /// A hotkey logged in.
    Login,
    /// A browser was signed in.
    BrowserLogin,
    /// An API key was created.
    KeyCreated,
    /// An API key was revoked.
    KeyRevoked,
    /// A job was accepted.
    JobCreated,
    /// A user cancelled a job.
    JobCancelled,
    /// A user reported cheating.
    CheatReported,
    /// A user gave feedback on a result.
    FeedbackGiven,
    /// An account's webhook was set or removed.
    WebhookChanged,
    /// An account was deleted.
    AccountDeleted,
}

/// The account that acts, and the credential that it used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// The account that the action is recorded for.
    pub account: Account,
    /// The credential that the request was authenticated with.
    pub credential: Credential,
}

muster_store::row! {
    struct AuditRow {
        id: String,
        at: i64,
        account: String,
        credential: String,
        action: String,
        subject: String,
    }
}

// === impl AuditAction, Actor ===

impl AuditAction {
    /// The action's name in the log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Login => "login",
            Self::BrowserLogin => "login.browser",
            Self::KeyCreated => "key.created",
            Self::KeyRevoked => "key.revoked",
            Self::JobCreated => "job.created",
            Self::JobCancelled => "job.cancelled",
            Self::CheatReported => "cheat.reported",
            Self::FeedbackGiven => "feedback.given",
            Self::WebhookChanged => "webhook.changed",
            Self::AccountDeleted => "account.deleted",
        }
    }
}

impl Actor {
    /// The actor behind a token of the login.
    pub fn user(key: UserKey) -> Self {
        Self {
            account: Account::Hotkey(key),
            credential: Credential::Hotkey,
        }
    }
}

// === impl Store ===

impl Store {
    /// Writes one entry of the audit log.
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
        write_audit_entry(&mut connection, actor, action, subject, now).await
    }

    /// One page of the audit log, newest first, of one account or of all. The first value is the number of all entries.
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
}

/// Writes one entry of the audit log in the transaction of the action itself.
pub(super) async fn write_audit_entry(
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

// === impl AuditRow ===

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

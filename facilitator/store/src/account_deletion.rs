//! Deleting an account: its keys and its browsers' sessions stop at once, its rows go in small steps.

use muster_facilitator_core::credentials::Account;
use muster_protocol::account_api::AccountView;
use muster_protocol::{Digest, Timestamp};
use muster_store::retention::Deletion;
use muster_store::{During as _, StoreError, lock_name};

use super::Store;
use super::api_keys::keys_of;
use super::audit::{Actor, AuditAction, write_audit_entry};

const DAY_MICROS: i64 = 86_400_000_000;

/// The outcome of a request to delete an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccountDeletion {
    /// The keys are revoked, the browsers are signed out, and the rows go.
    Begun,
    /// This many jobs of the account have not ended.
    OpenJobs(u64),
    /// The account was deleted today already. Its limits of the day hold until midnight, UTC.
    DeletedToday,
}

/// An account whose rows from before a time go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingDeletion {
    /// The account's name in the tables.
    pub account: String,
    /// Only rows from before this time go: the account may have begun anew.
    pub requested_at: Timestamp,
}

// === impl Store ===

impl Store {
    /// Begins to delete an account: revokes its keys, signs its browsers out, and notes that its rows from before
    /// `now` go. `client` is the pseudonym under which gateways know the account: what was refunded to it goes at once.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn delete_account(
        &self,
        actor: &Actor,
        client: &Digest,
        now: Timestamp,
    ) -> Result<AccountDeletion, StoreError> {
        const OPERATION: &str = "delete an account";
        let account = actor.account.to_string();
        let mut transaction = self.writer.begin().await?;
        lock_name(&mut transaction, &keys_of(&account)).await?;
        let (open,): (i64,) = sqlx::query_as("SELECT COUNT(*) FROM jobs WHERE account = $1 AND ended_at = 0")
            .bind(&account)
            .fetch_one(&mut *transaction)
            .await
            .during(OPERATION)?;
        if open > 0 {
            return Ok(AccountDeletion::OpenJobs(u64::try_from(open).unwrap_or_default()));
        }
        // One deletion a day: otherwise deleting the account would reset its limits of the day.
        let statement = "INSERT INTO account_deletions (account, requested_at, finished_at) VALUES ($1, $2, 0) \
                         ON CONFLICT (account) DO UPDATE SET requested_at = excluded.requested_at, finished_at = 0 \
                         WHERE account_deletions.finished_at > 0 AND account_deletions.requested_at < $3";
        let midnight = now.micros().div_euclid(DAY_MICROS).saturating_mul(DAY_MICROS);
        let noted = sqlx::query(statement)
            .bind(&account)
            .bind(now.micros())
            .bind(midnight)
            .execute(&mut *transaction)
            .await
            .during(OPERATION)?;
        if noted.rows_affected() == 0 {
            return Ok(AccountDeletion::DeletedToday);
        }
        sqlx::query("UPDATE api_keys SET revoked_at = $1 WHERE account = $2 AND revoked_at = 0")
            .bind(now.micros())
            .bind(&account)
            .execute(&mut *transaction)
            .await
            .during(OPERATION)?;
        for (statement, name) in [
            ("DELETE FROM web_links WHERE account = $1", &account),
            ("DELETE FROM web_sessions WHERE account = $1", &account),
            ("DELETE FROM refunds WHERE client = $1", &client.to_string()),
        ] {
            sqlx::query(statement)
                .bind(name)
                .execute(&mut *transaction)
                .await
                .during(OPERATION)?;
        }
        write_audit_entry(
            &mut transaction,
            actor,
            AuditAction::AccountDeleted,
            &account,
            now,
        )
        .await?;
        transaction.commit(OPERATION).await?;
        Ok(AccountDeletion::Begun)
    }

    /// The numbers of an account's jobs, files and keys.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn account_view(&self, account: &Account, now: Timestamp) -> Result<AccountView, StoreError> {
        let account = account.to_string();
        let statement = "SELECT \
                         (SELECT COUNT(*) FROM jobs WHERE account = $1), \
                         (SELECT COUNT(*) FROM jobs WHERE account = $1 AND ended_at = 0), \
                         (SELECT COUNT(*) FROM files WHERE account = $1), \
                         (SELECT COUNT(*) FROM api_keys WHERE account = $1 AND revoked_at = 0 \
                         AND (expires_at = 0 OR expires_at > $2))";
        let (jobs, open_jobs, files, keys): (i64, i64, i64, i64) = sqlx::query_as(statement)
            .bind(&account)
            .bind(now.micros())
            .fetch_one(&self.pool)
            .await
            .during("count what an account holds")?;
        let count = |number: i64| u64::try_from(number).unwrap_or_default();
        Ok(AccountView {
            account,
            jobs: count(jobs),
            open_jobs: count(open_jobs),
            files: count(files),
            keys: count(keys),
        })
    }

    /// The account's deletion, if it is under way.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn open_deletion_of(&self, account: &Account) -> Result<Option<PendingDeletion>, StoreError> {
        let open = self.open_account_deletions().await?;
        let account = account.to_string();
        Ok(open.into_iter().find(|deletion| deletion.account == account))
    }

    /// The deletions of accounts that are under way, at most a thousand.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn open_account_deletions(&self) -> Result<Vec<PendingDeletion>, StoreError> {
        let statement = "SELECT account, requested_at FROM account_deletions WHERE finished_at = 0 \
                         ORDER BY requested_at, account LIMIT 1000";
        let rows: Vec<(String, i64)> = sqlx::query_as(statement)
            .fetch_all(&self.pool)
            .await
            .during("list the accounts to delete")?;
        let pending = |(account, requested_at)| PendingDeletion {
            account,
            requested_at: Timestamp::from_micros(requested_at),
        };
        Ok(rows.into_iter().map(pending).collect())
    }

    /// Notes which deletions of accounts have come to their end: those with no job left from before.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn finish_account_deletions(&self, now: Timestamp) -> Result<(), StoreError> {
        let statement = "UPDATE account_deletions SET finished_at = $1 WHERE finished_at = 0 AND NOT EXISTS \
                         (SELECT 1 FROM jobs WHERE jobs.account = account_deletions.account \
                         AND jobs.created_at <= account_deletions.requested_at)";
        sqlx::query(statement)
            .bind(now.micros())
            .execute(&self.pool)
            .await
            .during("note that an account is deleted")?;
        Ok(())
    }
}

/// The deletions that remove an account's rows. The bytes of its files go with the next sweep of the file store.
pub fn deletions_of(deletion: &PendingDeletion) -> Vec<Deletion> {
    let of = |table, statement, bound: i64| Deletion::Rows {
        table,
        statement,
        values: vec![deletion.account.as_str().into(), bound.into()],
    };
    let at = deletion.requested_at.micros();
    let day = at.div_euclid(DAY_MICROS);
    vec![
        of(
            "logs",
            "DELETE FROM logs WHERE (job, seq) IN (SELECT job, seq FROM logs WHERE job IN (SELECT uuid FROM jobs \
             WHERE account = $1 AND ended_at > 0 AND created_at <= $2) LIMIT $3)",
            at,
        ),
        Deletion::Tree {
            table: "jobs",
            find: "SELECT uuid AS id FROM jobs WHERE account = $1 AND ended_at > 0 AND created_at <= $2 \
                   AND NOT EXISTS (SELECT 1 FROM logs WHERE logs.job = jobs.uuid) ORDER BY created_at, uuid LIMIT $3",
            values: vec![deletion.account.as_str().into(), at.into()],
            parts: super::jobs::JOB_PARTS,
        },
        of(
            "answer_reports",
            "DELETE FROM answer_reports WHERE (job, account) IN (SELECT job, account FROM answer_reports \
             WHERE account = $1 AND reported_at <= $2 LIMIT $3)",
            at,
        ),
        of(
            "files",
            "DELETE FROM files WHERE id IN (SELECT id FROM files WHERE account = $1 AND created_at <= $2 LIMIT $3)",
            at,
        ),
        of(
            "api_keys",
            "DELETE FROM api_keys WHERE id IN (SELECT id FROM api_keys WHERE account = $1 AND created_at <= $2 \
             AND revoked_at > 0 LIMIT $3)",
            at,
        ),
        of(
            "webhook_accounts",
            "DELETE FROM webhook_accounts WHERE account IN (SELECT account FROM webhook_accounts WHERE account = $1 \
             AND changed_at <= $2 LIMIT $3)",
            at,
        ),
        of(
            "model_usage",
            "DELETE FROM model_usage WHERE (account, day, model) IN (SELECT account, day, model FROM model_usage \
             WHERE account = $1 AND day <= $2 LIMIT $3)",
            day,
        ),
        of(
            "audit",
            "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE account = $1 AND at < $2 LIMIT $3)",
            at,
        ),
    ]
}

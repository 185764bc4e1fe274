//! API keys: creating, finding, listing and revoking them.

use muster_facilitator_core::account::{Account, ApiKeySecret, KeyId};
use muster_protocol::Timestamp;
use muster_protocol::rest::ApiKey;
use muster_store::{During as _, StoreError, json};
use uuid::Uuid;

use super::Store;
use super::audit::{Actor, AuditAction, write_audit_entry};

/// The most valid API keys of an account.
const MAX_KEYS: i64 = 1000;

muster_store::row! {
    struct KeyRow {
        id: String,
        account: String,
        name: String,
        created_at: i64,
    }
}

// === impl Store ===

impl Store {
    /// Stores a new API key for `account`. Returns `None` if the account has too many.
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
        write_audit_entry(&mut transaction, actor, AuditAction::KeyCreated, &id, now).await?;
        transaction.commit("store an API key").await?;
        Ok(Some(ApiKey {
            id,
            name: name.to_owned(),
            account: account.to_string(),
            key: Some(secret.reveal()),
            created_at: now,
        }))
    }

    /// The account and the id of a valid API key.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn find_key_owner(
        &self,
        secret: &ApiKeySecret,
    ) -> Result<Option<(Account, KeyId)>, StoreError> {
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

    /// The valid keys of `account`, newest first.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn list_keys(&self, account: &Account) -> Result<Vec<ApiKey>, StoreError> {
        let statement = "SELECT id, account, name, created_at FROM api_keys WHERE account = $1 AND revoked_at = 0 \
                         ORDER BY created_at DESC, id DESC";
        let rows: Vec<KeyRow> = sqlx::query_as(statement)
            .bind(account.to_string())
            .fetch_all(&self.pool)
            .await
            .during("list API keys")?;
        Ok(rows.into_iter().map(KeyRow::into_key).collect())
    }

    /// Revokes a key of `account`, or of any account if that is `None`. Returns `false` if there is no such valid key.
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
        write_audit_entry(
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

// === impl KeyRow ===

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

//! API keys: creating, finding, listing and revoking them.

use muster_facilitator_core::credentials::{Account, ApiKeySecret, Credential, KeyId};
use muster_facilitator_core::granted_rights::{Authority, KeyRights};
use muster_protocol::Timestamp;
use muster_protocol::account_api::ApiKey;
use muster_store::{During as _, StoreError, json, lock_name};
use sqlx::AnyConnection;
use uuid::Uuid;

use super::Store;
use super::audit::{Actor, AuditAction, write_audit_entry};

/// The most valid API keys of an account.
const MAX_KEYS: i64 = 1000;

/// A new API key.
#[derive(Clone, Debug)]
pub struct NewKey<'a> {
    /// The account that it opens.
    pub account: &'a Account,
    /// The owner's name for it.
    pub name: &'a str,
    /// The key itself; its hash is stored.
    pub secret: &'a ApiKeySecret,
    /// Its rights and its end.
    pub authority: &'a Authority,
}

/// The owner of a valid API key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyOwner {
    /// The account that the key opens.
    pub account: Account,
    /// The key's id.
    pub id: KeyId,
    /// Its rights and its end.
    pub authority: Authority,
}

/// The result of storing a new API key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyCreation {
    /// The key is stored; it is shown this once.
    Created(ApiKey),
    /// The account has too many keys.
    TooMany,
    /// The key or the browser's session that makes it has ended.
    MakerEnded,
}

muster_store::row! {
    struct KeyRow {
        id: String,
        account: String,
        name: String,
        created_at: i64,
        rights: String,
        expires_at: i64,
    }
}

/// The name of the lock under which an account's keys are made and all revoked together.
pub(crate) fn keys_of(account: &str) -> String {
    format!("keys of {account}")
}

// === impl Store ===

impl Store {
    /// Stores a new API key. A key that a key or a browser's session makes is revoked with it.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn create_key(
        &self,
        actor: &Actor,
        new: NewKey<'_>,
        now: Timestamp,
    ) -> Result<KeyCreation, StoreError> {
        const OPERATION: &str = "store an API key";
        let id = KeyId::from_uuid(Uuid::new_v4()).to_string();
        let account = new.account.to_string();
        let mut transaction = self.writer.begin().await?;
        // Neither a deletion of the account nor another key comes between what is read here and the new key.
        lock_name(&mut transaction, &keys_of(&account)).await?;
        let (held,): (i64,) = sqlx::query_as(
            "SELECT COUNT(*) FROM api_keys WHERE account = $1 AND revoked_at = 0 \
             AND (expires_at = 0 OR expires_at > $2)",
        )
        .bind(&account)
        .bind(now.micros())
        .fetch_one(&mut *transaction)
        .await
        .during("count API keys")?;
        if held >= MAX_KEYS {
            return Ok(KeyCreation::TooMany);
        }
        // These lock the row of the maker: its end comes before this key, or sees it.
        let (parent, maker) = match &actor.credential {
            Credential::Hotkey => (String::new(), None),
            Credential::ApiKey(id) => {
                let lock = "UPDATE api_keys SET revoked_at = 0 WHERE id = $1 AND revoked_at = 0 \
                            AND (expires_at = 0 OR expires_at > $2)";
                (id.to_string(), Some((lock, id.to_string())))
            }
            Credential::Browser(id) => {
                let lock =
                    "UPDATE web_sessions SET expires_at = expires_at WHERE hash = $1 AND expires_at > $2";
                (id.to_string(), Some((lock, id.hash().hex())))
            }
        };
        if let Some((lock, maker)) = maker {
            let held = sqlx::query(lock)
                .bind(maker)
                .bind(now.micros())
                .execute(&mut *transaction)
                .await
                .during(OPERATION)?;
            if held.rows_affected() == 0 {
                return Ok(KeyCreation::MakerEnded);
            }
        }
        let end = new.authority.expires_at;
        let statement = "INSERT INTO api_keys (id, hash, account, name, created_at, rights, expires_at, parent) \
                         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
        sqlx::query(statement)
            .bind(&id)
            .bind(new.secret.hash().hex())
            .bind(&account)
            .bind(new.name)
            .bind(now.micros())
            .bind(new.authority.rights.to_string())
            .bind(end.map_or(0, Timestamp::micros))
            .bind(parent)
            .execute(&mut *transaction)
            .await
            .during(OPERATION)?;
        write_audit_entry(&mut transaction, actor, AuditAction::KeyCreated, &id, now).await?;
        transaction.commit(OPERATION).await?;
        Ok(KeyCreation::Created(ApiKey {
            id,
            name: new.name.to_owned(),
            account,
            key: Some(new.secret.reveal()),
            created_at: now,
            rights: new.authority.rights.iter().collect(),
            expires_at: end,
        }))
    }

    /// The owner of an API key that is valid at `now`.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn find_key_owner(
        &self,
        secret: &ApiKeySecret,
        now: Timestamp,
    ) -> Result<Option<KeyOwner>, StoreError> {
        let row: Option<(String, String, String, i64)> = sqlx::query_as(
            "SELECT account, id, rights, expires_at FROM api_keys WHERE hash = $1 AND revoked_at = 0 \
             AND (expires_at = 0 OR expires_at > $2)",
        )
        .bind(secret.hash().hex())
        .bind(now.micros())
        .fetch_optional(&self.pool)
        .await
        .during("look for an API key")?;
        row.map(|(account, id, rights, expires_at)| {
            Ok(KeyOwner {
                account: json::parse("api_keys.account", &account)?,
                id: json::parse("api_keys.id", &id)?,
                authority: Authority {
                    rights: json::parse("api_keys.rights", &rights)?,
                    expires_at: read_end(expires_at),
                },
            })
        })
        .transpose()
    }

    /// The keys of `account` that are valid at `now`, newest first.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn list_keys(&self, account: &Account, now: Timestamp) -> Result<Vec<ApiKey>, StoreError> {
        let statement = "SELECT id, account, name, created_at, rights, expires_at FROM api_keys \
                         WHERE account = $1 AND revoked_at = 0 AND (expires_at = 0 OR expires_at > $2) \
                         ORDER BY created_at DESC, id DESC";
        let rows: Vec<KeyRow> = sqlx::query_as(statement)
            .bind(account.to_string())
            .bind(now.micros())
            .fetch_all(&self.pool)
            .await
            .during("list API keys")?;
        rows.into_iter().map(KeyRow::into_key).collect()
    }

    /// Revokes a key of `account`, or of any account if that is `None`, and all keys that it has made. Returns the
    /// account of the key; `None` if there is no such valid key.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn revoke_key(
        &self,
        actor: &Actor,
        account: Option<&Account>,
        id: KeyId,
        now: Timestamp,
    ) -> Result<Option<Account>, StoreError> {
        const OPERATION: &str = "revoke an API key";
        let mut transaction = self.writer.begin().await?;
        let statement = "UPDATE api_keys SET revoked_at = $1 \
                         WHERE id = $2 AND revoked_at = 0 AND (account = $3 OR CAST($4 AS BIGINT) = 1) \
                         RETURNING account";
        let revoked: Option<(String,)> = sqlx::query_as(statement)
            .bind(now.micros())
            .bind(id.to_string())
            .bind(account.map(ToString::to_string).unwrap_or_default())
            .bind(i64::from(account.is_none()))
            .fetch_optional(&mut *transaction)
            .await
            .during(OPERATION)?;
        let Some((account,)) = revoked else {
            return Ok(None);
        };
        let id = id.to_string();
        write_audit_entry(&mut transaction, actor, AuditAction::KeyRevoked, &id, now).await?;
        revoke_keys_of(&mut transaction, actor, &id, now).await?;
        transaction.commit(OPERATION).await?;
        json::parse("api_keys.account", &account).map(Some)
    }
}

/// Revokes the keys that a maker has made, and those that these have made. The maker is a key or a browser's session,
/// which has ended in the same transaction, so that it makes no more.
pub(super) async fn revoke_keys_of(
    connection: &mut AnyConnection,
    actor: &Actor,
    maker: &str,
    now: Timestamp,
) -> Result<(), StoreError> {
    // A key that was being made meanwhile is seen by the next statement.
    let statement = "UPDATE api_keys SET revoked_at = $1 WHERE revoked_at = 0 AND id IN (\
                         WITH RECURSIVE made (id) AS (SELECT id FROM api_keys WHERE parent = $2 \
                         UNION SELECT k.id FROM api_keys AS k JOIN made ON k.parent = made.id) \
                         SELECT id FROM made) RETURNING id";
    loop {
        let made: Vec<(String,)> = sqlx::query_as(statement)
            .bind(now.micros())
            .bind(maker)
            .fetch_all(&mut *connection)
            .await
            .during("revoke the keys that have been made")?;
        if made.is_empty() {
            return Ok(());
        }
        for (id,) in made {
            write_audit_entry(connection, actor, AuditAction::KeyRevoked, &id, now).await?;
        }
    }
}

/// The end of a key; 0 is stored for a key without an end.
fn read_end(micros: i64) -> Option<Timestamp> {
    (micros > 0).then(|| Timestamp::from_micros(micros))
}

// === impl KeyRow ===

impl KeyRow {
    fn into_key(self) -> Result<ApiKey, StoreError> {
        let rights: KeyRights = json::parse("api_keys.rights", &self.rights)?;
        Ok(ApiKey {
            id: self.id,
            name: self.name,
            account: self.account,
            key: None,
            created_at: Timestamp::from_micros(self.created_at),
            rights: rights.iter().collect(),
            expires_at: read_end(self.expires_at),
        })
    }
}

//! Sign-ins of browsers: links that work once, and sessions. Both are stored by their hashes, and both are bounded in
//! number and age.

use muster_facilitator_core::credentials::{Account, Credential, KeyId};
use muster_facilitator_core::granted_rights::Authority;
use muster_facilitator_core::web_session::WebSecret;
use muster_protocol::Timestamp;
use muster_store::{During as _, StoreError, json};

use super::Store;
use super::audit::{Actor, AuditAction, write_audit_entry};

/// The most links of an account that have not been used. The oldest goes first.
const MAX_LINKS: i64 = 8;

/// The most sessions of an account. The oldest goes first.
const MAX_SESSIONS: i64 = 16;

/// The most characters of a browser's description that are kept.
const MAX_BROWSER: usize = 200;

/// The words that are stored for a login with the hotkey. Every other text is the id of an API key.
const HOTKEY: &str = "hotkey";

/// A browser that is signed in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSession {
    /// The account and the credential that its requests act with.
    pub actor: Actor,
    /// Its rights: those of the API key that signed it in, or those of a login with the hotkey.
    pub authority: Authority,
    /// The time at which it ends.
    pub expires_at: Timestamp,
}

/// One line in the list of an account's sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSessionEntry {
    /// The credential that signed in: `hotkey`, or the id of an API key.
    pub credential: String,
    /// The browser as it describes itself.
    pub browser: String,
    /// The time of the sign-in.
    pub created_at: Timestamp,
    /// The time at which it ends.
    pub expires_at: Timestamp,
    /// Whether it is the session that asks.
    pub is_own: bool,
}

/// A new session, before it is stored.
#[derive(Clone, Copy, Debug)]
pub struct NewWebSession<'a> {
    /// The secret in the browser's cookie; its hash is stored.
    pub secret: &'a WebSecret,
    /// The browser as it describes itself.
    pub browser: &'a str,
    /// The time at which it ends.
    pub expires_at: Timestamp,
}

// === impl Store ===

impl Store {
    /// Stores a link that signs a browser in once, before `expires_at`.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn create_web_link(
        &self,
        actor: &Actor,
        secret: &WebSecret,
        expires_at: Timestamp,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        const OPERATION: &str = "store a link for a browser";
        let account = actor.account.to_string();
        let mut transaction = self.writer.begin().await?;
        let statement = "INSERT INTO web_links (hash, account, credential, created_at, expires_at) \
                         VALUES ($1, $2, $3, $4, $5)";
        sqlx::query(statement)
            .bind(secret.hash().hex())
            .bind(&account)
            .bind(credential_text(&actor.credential))
            .bind(now.micros())
            .bind(expires_at.micros())
            .execute(&mut *transaction)
            .await
            .during(OPERATION)?;
        let statement = "DELETE FROM web_links WHERE hash IN (SELECT hash FROM web_links WHERE account = $1 \
                         ORDER BY created_at DESC, hash LIMIT 1000 OFFSET $2)";
        sqlx::query(statement)
            .bind(&account)
            .bind(MAX_LINKS)
            .execute(&mut *transaction)
            .await
            .during(OPERATION)?;
        transaction.commit(OPERATION).await?;
        Ok(())
    }

    /// The account that a link is for, if the link can still be used. This does not use it.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn find_web_link(
        &self,
        secret: &WebSecret,
        now: Timestamp,
    ) -> Result<Option<Account>, StoreError> {
        let row: Option<(String,)> =
            sqlx::query_as("SELECT account FROM web_links WHERE hash = $1 AND expires_at > $2")
                .bind(secret.hash().hex())
                .bind(now.micros())
                .fetch_optional(&self.pool)
                .await
                .during("look for a link")?;
        row.map(|(account,)| json::parse("web_links.account", &account))
            .transpose()
    }

    /// Uses a link: returns the actor that it signs in, once. Of two uses at once, one gets it.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn use_web_link(
        &self,
        secret: &WebSecret,
        now: Timestamp,
    ) -> Result<Option<Actor>, StoreError> {
        let mut write = self.writer.begin().await?;
        let row: Option<(String, String)> = sqlx::query_as(
            "DELETE FROM web_links WHERE hash = $1 AND expires_at > $2 RETURNING account, credential",
        )
        .bind(secret.hash().hex())
        .bind(now.micros())
        .fetch_optional(&mut *write)
        .await
        .during("use a link")?;
        write.commit("use a link").await?;
        row.map(|(account, credential)| read_actor(&account, &credential))
            .transpose()
    }

    /// Stores a session. The account's oldest sessions end if it has too many.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn create_web_session(
        &self,
        actor: &Actor,
        new: NewWebSession<'_>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        const OPERATION: &str = "store a session of a browser";
        let account = actor.account.to_string();
        let credential = credential_text(&actor.credential);
        let mut transaction = self.writer.begin().await?;
        let statement = "INSERT INTO web_sessions (hash, account, credential, browser, created_at, expires_at) \
                         VALUES ($1, $2, $3, $4, $5, $6)";
        sqlx::query(statement)
            .bind(new.secret.hash().hex())
            .bind(&account)
            .bind(&credential)
            .bind(new.browser.chars().take(MAX_BROWSER).collect::<String>())
            .bind(now.micros())
            .bind(new.expires_at.micros())
            .execute(&mut *transaction)
            .await
            .during(OPERATION)?;
        let statement = "DELETE FROM web_sessions WHERE hash IN (SELECT hash FROM web_sessions WHERE account = $1 \
                         ORDER BY created_at DESC, hash LIMIT 1000 OFFSET $2)";
        sqlx::query(statement)
            .bind(&account)
            .bind(MAX_SESSIONS)
            .execute(&mut *transaction)
            .await
            .during(OPERATION)?;
        write_audit_entry(&mut transaction, actor, AuditAction::BrowserLogin, &account, now).await?;
        transaction.commit(OPERATION).await?;
        Ok(())
    }

    /// The session with this cookie, if it has not ended. A session ends with the API key that signed it in.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn find_web_session(
        &self,
        secret: &WebSecret,
        now: Timestamp,
    ) -> Result<Option<WebSession>, StoreError> {
        let row: Option<(String, String, i64, String, i64)> = sqlx::query_as(
            "SELECT s.account, s.credential, s.expires_at, COALESCE(k.rights, ''), COALESCE(k.expires_at, 0) \
             FROM web_sessions AS s LEFT JOIN api_keys AS k ON k.id = s.credential \
             WHERE s.hash = $1 AND s.expires_at > $2 AND (s.credential = 'hotkey' OR \
             (k.revoked_at = 0 AND (k.expires_at = 0 OR k.expires_at > $2)))",
        )
        .bind(secret.hash().hex())
        .bind(now.micros())
        .fetch_optional(&self.pool)
        .await
        .during("look for a session of a browser")?;
        row.map(|(account, credential, expires_at, rights, key_end)| {
            let actor = read_actor(&account, &credential)?;
            let authority = match &actor.credential {
                Credential::ApiKey(_) => Authority {
                    rights: json::parse("api_keys.rights", &rights)?,
                    expires_at: (key_end > 0).then(|| Timestamp::from_micros(key_end)),
                },
                Credential::Browser | Credential::Hotkey => Authority::login(),
            };
            Ok(WebSession {
                actor,
                authority,
                expires_at: Timestamp::from_micros(expires_at),
            })
        })
        .transpose()
    }

    /// The account's sessions that have not ended, newest first. `own` is the cookie of the browser that asks.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn list_web_sessions(
        &self,
        account: &Account,
        own: &WebSecret,
        now: Timestamp,
    ) -> Result<Vec<WebSessionEntry>, StoreError> {
        let rows: Vec<(String, String, String, i64, i64)> = sqlx::query_as(
            "SELECT s.hash, s.credential, s.browser, s.created_at, s.expires_at FROM web_sessions AS s \
             LEFT JOIN api_keys AS k ON k.id = s.credential WHERE s.account = $1 AND s.expires_at > $2 \
             AND (s.credential = 'hotkey' OR (k.revoked_at = 0 AND (k.expires_at = 0 OR k.expires_at > $2))) \
             ORDER BY s.created_at DESC, s.hash",
        )
        .bind(account.to_string())
        .bind(now.micros())
        .fetch_all(&self.pool)
        .await
        .during("list sessions of browsers")?;
        let own = own.hash().hex();
        let entry = |(hash, credential, browser, created_at, expires_at)| WebSessionEntry {
            credential,
            browser,
            created_at: Timestamp::from_micros(created_at),
            expires_at: Timestamp::from_micros(expires_at),
            is_own: own == hash,
        };
        Ok(rows.into_iter().map(entry).collect())
    }

    /// Ends one session.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn end_web_session(&self, secret: &WebSecret) -> Result<(), StoreError> {
        let mut write = self.writer.begin().await?;
        sqlx::query("DELETE FROM web_sessions WHERE hash = $1")
            .bind(secret.hash().hex())
            .execute(&mut *write)
            .await
            .during("end a session of a browser")?;
        write.commit("end a session of a browser").await?;
        Ok(())
    }

    /// Ends every session of an account, and its links. Returns the number of ended sessions.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn end_all_web_sessions(&self, account: &Account) -> Result<u64, StoreError> {
        const OPERATION: &str = "end the sessions of an account";
        let mut write = self.writer.begin().await?;
        sqlx::query("DELETE FROM web_links WHERE account = $1")
            .bind(account.to_string())
            .execute(&mut *write)
            .await
            .during(OPERATION)?;
        let done = sqlx::query("DELETE FROM web_sessions WHERE account = $1")
            .bind(account.to_string())
            .execute(&mut *write)
            .await
            .during(OPERATION)?;
        write.commit(OPERATION).await?;
        Ok(done.rows_affected())
    }
}

/// The stored form of the credential that signs in.
fn credential_text(credential: &Credential) -> String {
    match credential {
        Credential::ApiKey(id) => id.to_string(),
        Credential::Hotkey | Credential::Browser => HOTKEY.to_owned(),
    }
}

/// The actor of a session: a login with the hotkey becomes the credential of a browser, which cannot sign.
fn read_actor(account: &str, credential: &str) -> Result<Actor, StoreError> {
    let credential = if credential == HOTKEY {
        Credential::Browser
    } else {
        Credential::ApiKey(json::parse::<KeyId>("web_sessions.credential", credential)?)
    };
    Ok(Actor {
        account: json::parse("web_sessions.account", account)?,
        credential,
    })
}

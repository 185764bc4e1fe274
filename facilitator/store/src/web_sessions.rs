//! Sign-ins of browsers: links that work once, and sessions. Both are stored by their hashes, and both are bounded in
//! number and age.

use muster_facilitator_core::credentials::{Account, Credential, KeyId};
use muster_facilitator_core::granted_rights::Authority;
use muster_facilitator_core::web_session::WebSecret;
use muster_protocol::Timestamp;
use muster_store::{During as _, StoreError, json};
use sqlx::AnyConnection;

use super::Store;
use super::api_keys::revoke_keys_of;
use super::audit::{Actor, AuditAction, write_audit_entry};

/// The most links of an account that have not been used. The oldest goes first.
const MAX_LINKS: i64 = 8;

/// The most sessions of an account. The oldest goes first.
const MAX_SESSIONS: i64 = 16;

/// The most characters of a browser's description that are kept.
const MAX_BROWSER: usize = 200;

/// The words that are stored for a login with the hotkey. Every other text is the id of an API key.
const HOTKEY: &str = "hotkey";

/// The account and the proof that a link signs a browser in with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSignIn {
    /// The account, and the credential that drew the link: the hotkey, or an API key.
    pub actor: Actor,
    /// The time at which the account's hotkey signed; `None` if an API key drew the link.
    pub signed_at: Option<Timestamp>,
}

/// A browser that is signed in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSession {
    /// The account and the credential that its requests act with.
    pub actor: Actor,
    /// Its rights: those of the API key that signed it in, or those of a login with the hotkey. They end with the
    /// session.
    pub authority: Authority,
    /// The time at which it ends: its own end, or that of the API key that signed it in.
    pub expires_at: Timestamp,
    /// The time at which the account's hotkey signed for it; `None` if an API key signed it in.
    pub signed_at: Option<Timestamp>,
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
    /// The time at which the account's hotkey signed for it; `None` if an API key signs it in.
    pub signed_at: Option<Timestamp>,
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
        sign_in: &WebSignIn,
        secret: &WebSecret,
        expires_at: Timestamp,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        const OPERATION: &str = "store a link for a browser";
        let account = sign_in.actor.account.to_string();
        let mut transaction = self.writer.begin().await?;
        let statement = "INSERT INTO web_links (hash, account, credential, created_at, expires_at, signed_at) \
                         VALUES ($1, $2, $3, $4, $5, $6)";
        sqlx::query(statement)
            .bind(secret.hash().hex())
            .bind(&account)
            .bind(credential_text(&sign_in.actor.credential))
            .bind(now.micros())
            .bind(expires_at.micros())
            .bind(stored_time(sign_in.signed_at))
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

    /// Uses a link: returns what it signs in with, once. Of two uses at once, one gets it.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn use_web_link(
        &self,
        secret: &WebSecret,
        now: Timestamp,
    ) -> Result<Option<WebSignIn>, StoreError> {
        let mut write = self.writer.begin().await?;
        let row: Option<(String, String, i64)> = sqlx::query_as(
            "DELETE FROM web_links WHERE hash = $1 AND expires_at > $2 RETURNING account, credential, signed_at",
        )
        .bind(secret.hash().hex())
        .bind(now.micros())
        .fetch_optional(&mut *write)
        .await
        .during("use a link")?;
        write.commit("use a link").await?;
        row.map(|(account, credential, signed_at)| {
            Ok(WebSignIn {
                actor: read_actor(&account, &credential, Credential::Hotkey)?,
                signed_at: read_time(signed_at),
            })
        })
        .transpose()
    }

    /// Stores a session. The account's oldest sessions end if it has too many, with the keys that they have made.
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
        let actor = match &actor.credential {
            Credential::ApiKey(_) => actor.clone(),
            Credential::Hotkey | Credential::Browser(_) => Actor {
                account: actor.account.clone(),
                credential: Credential::Browser(new.secret.session_id()),
            },
        };
        let mut transaction = self.writer.begin().await?;
        let statement = "INSERT INTO web_sessions \
                         (hash, account, credential, browser, created_at, expires_at, signed_at) \
                         VALUES ($1, $2, $3, $4, $5, $6, $7)";
        sqlx::query(statement)
            .bind(new.secret.hash().hex())
            .bind(&account)
            .bind(&credential)
            .bind(new.browser.chars().take(MAX_BROWSER).collect::<String>())
            .bind(now.micros())
            .bind(new.expires_at.micros())
            .bind(stored_time(new.signed_at))
            .execute(&mut *transaction)
            .await
            .during(OPERATION)?;
        let statement = "DELETE FROM web_sessions WHERE hash IN (SELECT hash FROM web_sessions WHERE account = $1 \
                         ORDER BY created_at DESC, hash LIMIT 1000 OFFSET $2) RETURNING hash";
        let ended: Vec<(String,)> = sqlx::query_as(statement)
            .bind(&account)
            .bind(MAX_SESSIONS)
            .fetch_all(&mut *transaction)
            .await
            .during(OPERATION)?;
        revoke_keys_of_sessions(&mut transaction, &actor, ended, now).await?;
        write_audit_entry(&mut transaction, &actor, AuditAction::BrowserLogin, &account, now).await?;
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
        let row: Option<(String, String, i64, i64, String, i64)> = sqlx::query_as(
            "SELECT s.account, s.credential, s.expires_at, s.signed_at, COALESCE(k.rights, ''), COALESCE(k.expires_at, 0) \
             FROM web_sessions AS s LEFT JOIN api_keys AS k ON k.id = s.credential \
             WHERE s.hash = $1 AND s.expires_at > $2 AND (s.credential = 'hotkey' OR \
             (k.revoked_at = 0 AND (k.expires_at = 0 OR k.expires_at > $2)))",
        )
        .bind(secret.hash().hex())
        .bind(now.micros())
        .fetch_optional(&self.pool)
        .await
        .during("look for a session of a browser")?;
        row.map(|(account, credential, end, signed_at, rights, key_end)| {
            let own = Credential::Browser(secret.session_id());
            let actor = read_actor(&account, &credential, own)?;
            let rights = match &actor.credential {
                Credential::ApiKey(_) => json::parse("api_keys.rights", &rights)?,
                Credential::Browser(_) | Credential::Hotkey => Authority::login().rights,
            };
            let end = Timestamp::from_micros(end);
            let expires_at = read_time(key_end).map_or(end, |key_end| key_end.min(end));
            Ok(WebSession {
                actor,
                authority: Authority {
                    rights,
                    expires_at: Some(expires_at),
                },
                expires_at,
                signed_at: read_time(signed_at),
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

    /// Ends the session with this cookie, and revokes the keys that it has made.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn end_web_session(
        &self,
        actor: &Actor,
        secret: &WebSecret,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        const OPERATION: &str = "end a session of a browser";
        let mut write = self.writer.begin().await?;
        let ended: Vec<(String,)> = sqlx::query_as("DELETE FROM web_sessions WHERE hash = $1 RETURNING hash")
            .bind(secret.hash().hex())
            .fetch_all(&mut *write)
            .await
            .during(OPERATION)?;
        revoke_keys_of_sessions(&mut write, actor, ended, now).await?;
        write.commit(OPERATION).await?;
        Ok(())
    }

    /// Ends every session of the actor's account and its links, and revokes the keys that browsers have made. Returns
    /// the number of ended sessions.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn end_all_web_sessions(&self, actor: &Actor, now: Timestamp) -> Result<usize, StoreError> {
        const OPERATION: &str = "end the sessions of an account";
        let account = actor.account.to_string();
        let mut write = self.writer.begin().await?;
        sqlx::query("DELETE FROM web_links WHERE account = $1")
            .bind(&account)
            .execute(&mut *write)
            .await
            .during(OPERATION)?;
        let ended: Vec<(String,)> =
            sqlx::query_as("DELETE FROM web_sessions WHERE account = $1 RETURNING hash")
                .bind(&account)
                .fetch_all(&mut *write)
                .await
                .during(OPERATION)?;
        let count = ended.len();
        revoke_keys_of_sessions(&mut write, actor, ended, now).await?;
        // Keys from before sessions were recorded as their makers.
        revoke_keys_of(&mut write, actor, &format!("browsers of {account}"), now).await?;
        write.commit(OPERATION).await?;
        Ok(count)
    }
}

impl Store {
    /// Ends the sessions of every account, its links, and the keys that browsers have made, as after the store was
    /// restored from a backup: some of them ended after it. Returns the number of accounts that had any. The audit log
    /// names each account itself.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn end_restored_sessions(&self, now: Timestamp) -> Result<usize, StoreError> {
        let accounts: Vec<(String,)> =
            sqlx::query_as("SELECT account FROM web_sessions UNION SELECT account FROM web_links")
                .fetch_all(&self.pool)
                .await
                .during("list the accounts with sessions")?;
        for (account,) in &accounts {
            let actor = read_actor(account, HOTKEY, Credential::Hotkey)?;
            self.end_all_web_sessions(&actor, now).await?;
        }
        Ok(accounts.len())
    }
}

/// Revokes the keys that ended sessions have made. The sessions are given by their hashes.
async fn revoke_keys_of_sessions(
    connection: &mut AnyConnection,
    actor: &Actor,
    ended: Vec<(String,)>,
    now: Timestamp,
) -> Result<(), StoreError> {
    for (hash,) in ended {
        revoke_keys_of(connection, actor, &format!("web_{hash}"), now).await?;
    }
    Ok(())
}

/// A time as it is stored; 0 for none.
fn stored_time(time: Option<Timestamp>) -> i64 {
    time.map_or(0, Timestamp::micros)
}

fn read_time(micros: i64) -> Option<Timestamp> {
    (micros > 0).then(|| Timestamp::from_micros(micros))
}

/// The stored form of the credential that signs in.
fn credential_text(credential: &Credential) -> String {
    match credential {
        Credential::ApiKey(id) => id.to_string(),
        Credential::Hotkey | Credential::Browser(_) => HOTKEY.to_owned(),
    }
}

/// The actor of a link or a session; `of_login` is its credential if a login with the hotkey stands behind it.
fn read_actor(account: &str, credential: &str, of_login: Credential) -> Result<Actor, StoreError> {
    let credential = if credential == HOTKEY {
        of_login
    } else {
        Credential::ApiKey(json::parse::<KeyId>("web_sessions.credential", credential)?)
    };
    Ok(Actor {
        account: json::parse("web_sessions.account", account)?,
        credential,
    })
}

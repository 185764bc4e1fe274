//! Changes of an account's webhook, with their entries in the audit log; `muster-webhooks` has the rest.

use muster_protocol::Timestamp;
use muster_store::StoreError;
use muster_webhooks::message::WebhookSecret;
use muster_webhooks::store::{WebhookStore, remove_account, set_account};

use super::Store;
use super::audit::{Actor, AuditAction, write_audit_entry};

// === impl Store ===

impl Store {
    /// The webhooks in the same database.
    pub fn webhooks(&self) -> WebhookStore {
        WebhookStore::new(self.pool())
    }

    /// Sets an account's URL, and its secret if it has none yet or if `replace` asks for a new one. Returns the secret
    /// if it is new.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn set_account_webhook(
        &self,
        actor: &Actor,
        url: Option<&str>,
        drawn: &WebhookSecret,
        replace: bool,
        now: Timestamp,
    ) -> Result<Option<WebhookSecret>, StoreError> {
        let account = actor.account.to_string();
        let mut transaction = self.writer.begin().await?;
        let is_new = set_account(&mut transaction, &account, url, drawn, replace, now).await?;
        write_audit_entry(
            &mut transaction,
            actor,
            AuditAction::WebhookChanged,
            &account,
            now,
        )
        .await?;
        transaction.commit("store an account's webhook").await?;
        Ok(is_new.then(|| drawn.clone()))
    }

    /// Removes an account's webhook with its secret. Returns `false` if there was none.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn remove_account_webhook(&self, actor: &Actor, now: Timestamp) -> Result<bool, StoreError> {
        let account = actor.account.to_string();
        let mut transaction = self.writer.begin().await?;
        if !remove_account(&mut transaction, &account, now).await? {
            return Ok(false);
        }
        write_audit_entry(
            &mut transaction,
            actor,
            AuditAction::WebhookChanged,
            &account,
            now,
        )
        .await?;
        transaction.commit("remove an account's webhook").await?;
        Ok(true)
    }
}

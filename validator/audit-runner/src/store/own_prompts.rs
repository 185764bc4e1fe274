//! The lists of own prompts, and which of their prompts were sent and answered.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_audit::{Canary, CanaryList};
use muster_protocol::{Digest, Timestamp};
use muster_store::columns::{parse_column, read_column, to_signed, unsigned_column};
use muster_store::{During as _, StoreError};
use sqlx::any::AnyRow;

use crate::store::audit_store::{AuditStore, Result};

/// A list of own prompts, and the place of the next one.
#[derive(Clone, Debug)]
pub(crate) struct PromptList {
    pub(crate) list: CanaryList,
    pub(crate) next: u64,
}

impl AuditStore {
    /// Stores a new list of own prompts.
    pub(crate) async fn insert_list(&self, list: &CanaryList, now: Timestamp) -> Result<()> {
        const OPERATION: &str = "store a list of own prompts";
        let root = list.root().to_string();
        let mut tx = self.writer.begin().await?;
        for position in 0_u64.. {
            let Some(canary) = list.next(position) else { break };
            sqlx::query(
                "INSERT INTO canaries (list, position, salt, request, made_at) VALUES ($1, $2, $3, $4, $5)",
            )
            .bind(root.clone())
            .bind(to_signed(position))
            .bind(hex::encode(canary.salt))
            .bind(STANDARD.encode(&canary.request))
            .bind(now.micros())
            .execute(&mut *tx)
            .await
            .during(OPERATION)?;
        }
        tx.commit(OPERATION).await
    }

    /// A list of own prompts; empty if none has this root.
    pub(crate) async fn read_list(&self, root: &Digest) -> Result<PromptList> {
        let rows =
            sqlx::query("SELECT salt, request, sent_at FROM canaries WHERE list = $1 ORDER BY position")
                .bind(root.to_string())
                .fetch_all(&self.pool)
                .await
                .during("read a list of own prompts")?;
        let mut next = 0;
        let mut canaries = Vec::new();
        for (position, row) in (1_u64..).zip(&rows) {
            let sent: Option<i64> = read_column(row, "sent_at")?;
            if sent.is_some() {
                next = position;
            }
            canaries.push(canary_from(row)?);
        }
        let list = CanaryList::new(canaries);
        Ok(PromptList { list, next })
    }

    /// Notes that a prompt is being sent: it is used once, whatever becomes of it.
    pub(crate) async fn note_sent(&self, root: &Digest, position: u64, now: Timestamp) -> Result<()> {
        let statement = sqlx::query("UPDATE canaries SET sent_at = $1 WHERE list = $2 AND position = $3")
            .bind(now.micros())
            .bind(root.to_string())
            .bind(to_signed(position));
        self.writer.execute("note a prompt as sent", statement).await?;
        Ok(())
    }

    /// Notes the answer to a prompt. The first answer stands: another one to the same prompt is no evidence.
    pub(crate) async fn note_answer(&self, root: &Digest, position: u64, answer: &str) -> Result<()> {
        let statement = sqlx::query(
            "UPDATE canaries SET response_id = $1 WHERE list = $2 AND position = $3 AND response_id IS NULL",
        )
        .bind(answer.to_owned())
        .bind(root.to_string())
        .bind(to_signed(position));
        self.writer
            .execute("note the answer to a prompt", statement)
            .await?;
        Ok(())
    }

    /// The lists and places of own prompts that were answered since, by the ids of the answers.
    pub(crate) async fn answered_prompts(&self, since: Timestamp) -> Result<BTreeMap<String, (Digest, u64)>> {
        let rows = sqlx::query(
            "SELECT response_id, list, position FROM canaries WHERE response_id IS NOT NULL AND sent_at >= $1",
        )
        .bind(since.micros())
        .fetch_all(&self.pool)
        .await
        .during("list answered prompts")?;
        rows.iter()
            .map(|row| {
                let place = (parse_column(row, "list")?, unsigned_column(row, "position")?);
                Ok((read_column(row, "response_id")?, place))
            })
            .collect()
    }
}

fn canary_from(row: &AnyRow) -> Result<Canary> {
    let (salt, request): (String, String) = (read_column(row, "salt")?, read_column(row, "request")?);
    let mut bytes = [0; 32];
    hex::decode_to_slice(salt, &mut bytes).map_err(|error| StoreError::corrupt("salt", error.to_string()))?;
    let request = STANDARD
        .decode(request)
        .map_err(|error| StoreError::corrupt("request", error.to_string()))?;
    Ok(Canary { salt: bytes, request })
}

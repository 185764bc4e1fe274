//! The lists of own prompts, and which of their prompts were sent and answered.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_audit::{Canary, CanaryList};
use muster_protocol::{Digest, Timestamp};
use muster_store::columns::{parse_column, read_column, storable_text, to_signed, unsigned_column};
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

    /// Keeps the text of the answer to a prompt, so that a later prompt may go on with it.
    pub(crate) async fn put_reply(&self, answer: &str, reply: &str) -> Result<()> {
        let statement = sqlx::query("UPDATE canaries SET reply = $1 WHERE response_id = $2")
            .bind(storable_text(reply))
            .bind(answer.to_owned());
        self.writer
            .execute("keep the answer to a prompt", statement)
            .await?;
        Ok(())
    }

    /// Takes requests of own prompts to a model with the texts of the answers to them, the newest ones first, at most
    /// `most`. Nobody takes them again.
    pub(crate) async fn take_replies(
        &self,
        model: &str,
        since: Timestamp,
        most: u32,
    ) -> Result<Vec<(Vec<u8>, String)>> {
        const OPERATION: &str = "take answers to prompts";
        let mut write = self.writer.begin().await?;
        let rows = sqlx::query(
            "SELECT c.list, c.position, c.request, c.reply FROM canaries c \
             JOIN responses r ON r.response_id = c.response_id \
             WHERE c.reply IS NOT NULL AND r.model = $1 AND r.ended_at >= $2 \
             ORDER BY r.ended_at DESC, c.response_id LIMIT $3",
        )
        .bind(model.to_owned())
        .bind(since.micros())
        .bind(i64::from(most))
        .fetch_all(&mut *write)
        .await
        .during(OPERATION)?;
        let mut taken = Vec::new();
        for row in &rows {
            let (list, position): (String, i64) = (read_column(row, "list")?, read_column(row, "position")?);
            sqlx::query("UPDATE canaries SET reply = NULL WHERE list = $1 AND position = $2")
                .bind(list)
                .bind(position)
                .execute(&mut *write)
                .await
                .during(OPERATION)?;
            taken.push((request_column(row)?, read_column(row, "reply")?));
        }
        write.commit(OPERATION).await?;
        Ok(taken)
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
    let salt: String = read_column(row, "salt")?;
    let mut bytes = [0; 32];
    hex::decode_to_slice(salt, &mut bytes).map_err(|error| StoreError::corrupt("salt", error.to_string()))?;
    Ok(Canary {
        salt: bytes,
        request: request_column(row)?,
    })
}

fn request_column(row: &AnyRow) -> Result<Vec<u8>> {
    let request: String = read_column(row, "request")?;
    STANDARD
        .decode(request)
        .map_err(|error| StoreError::corrupt("request", error.to_string()))
}

#[cfg(test)]
mod tests {
    use muster_store::Writer;
    use muster_store::testing::stores;
    use muster_validator_store::MIGRATIONS;

    use super::*;

    #[tokio::test]
    async fn the_answer_to_a_prompt_is_taken_once_and_for_its_model() {
        for test in stores(&MIGRATIONS).await.unwrap() {
            let store = AuditStore::new(test.pool.clone(), Writer::new(&test.pool));
            let canary = |number: u8| Canary {
                salt: [number; 32],
                request: vec![number],
            };
            let list = CanaryList::new((0..4).map(canary).collect());
            store.insert_list(&list, Timestamp::from_secs(1)).await.unwrap();
            let session = "INSERT INTO sessions (session_id, job_id, miner, model, address, attestation, opened_at) \
                           VALUES ('s', 's', 'm', 'tiny', '', '', 1)";
            sqlx::query(session).execute(&test.pool).await.unwrap();
            for (position, model, ended_at) in
                [(0, "tiny", 20), (1, "tiny", 30), (2, "other", 30), (3, "tiny", 5)]
            {
                let answer = format!("answer {position}");
                let row = sqlx::query(
                    "INSERT INTO responses (response_id, session_id, client, model, asked_at, ended_at, status, \
                     how_ended, verdict, bytes, input_tokens, output_tokens, earned) \
                     VALUES ($1, 's', 'c', $2, 1, $3, 200, 'completed', 'proven', 1, 0, 0, 0)",
                );
                let row = row.bind(answer.clone()).bind(model).bind(i64::from(ended_at));
                row.execute(&test.pool).await.unwrap();
                store.note_answer(&list.root(), position, &answer).await.unwrap();
                store.put_reply(&answer, "a\0reply").await.unwrap();
            }
            let take = async |most| {
                let since = Timestamp::from_micros(10);
                store.take_replies("tiny", since, most).await.unwrap()
            };
            assert_eq!(
                take(1).await,
                [(vec![1], "a\u{fffd}reply".to_owned())],
                "{}: PostgreSQL holds no U+0000, which a miner may answer",
                test.engine
            );
            assert_eq!(take(9).await, [(vec![0], "a\u{fffd}reply".to_owned())]);
            assert_eq!(take(9).await, []);
            assert_eq!(
                store.read_list(&list.root()).await.unwrap().list,
                list,
                "the list stays"
            );
        }
    }
}

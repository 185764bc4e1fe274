//! The forms in which users ask, and the prompts that models have written.

use std::collections::BTreeMap;

use muster_audit::own_prompts::RequestForm;
use muster_protocol::{Digest, Timestamp};
use muster_store::columns::{read_column, unsigned_column};
use muster_store::{During as _, StoreError};

use crate::store::audit_store::{AuditStore, Result};

/// Forms of one model that are looked at, the newest ones.
const MAX_FORMS: u32 = 4_096;
/// Forms of one client that count: a client that asks often is not all users.
const MAX_FORMS_OF_CLIENT: usize = 4;
/// Fewer clients are no crowd in which a prompt could hide, and their forms could be one person's.
const MIN_CLIENTS: usize = 8;

impl AuditStore {
    /// Keeps the form of a user's request.
    pub(crate) async fn put_form(
        &self,
        answer: &str,
        model: &str,
        client: &Digest,
        form: &RequestForm,
        now: Timestamp,
    ) -> Result<()> {
        let text =
            serde_json::to_string(form).map_err(|error| StoreError::corrupt("form", error.to_string()))?;
        let statement = sqlx::query(
            "INSERT INTO request_forms (response_id, model, client, form, seen_at) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT (response_id) DO NOTHING",
        )
        .bind(answer.to_owned())
        .bind(model.to_owned())
        .bind(client.to_string())
        .bind(text)
        .bind(now.micros());
        self.writer
            .execute("keep the form of a request", statement)
            .await?;
        Ok(())
    }

    /// The forms in which users have asked a model since a time, a few of each client; none if the clients are too few.
    pub(crate) async fn forms(&self, model: &str, since: Timestamp) -> Result<Vec<RequestForm>> {
        let rows = sqlx::query(
            "SELECT client, form FROM request_forms WHERE model = $1 AND seen_at >= $2 \
             ORDER BY seen_at DESC, response_id LIMIT $3",
        )
        .bind(model.to_owned())
        .bind(since.micros())
        .bind(i64::from(MAX_FORMS))
        .fetch_all(&self.pool)
        .await
        .during("read the forms of requests")?;
        let mut of_clients: BTreeMap<String, usize> = BTreeMap::new();
        let mut forms = Vec::new();
        for row in &rows {
            let count = of_clients.entry(read_column(row, "client")?).or_default();
            *count += 1;
            if *count <= MAX_FORMS_OF_CLIENT {
                let text: String = read_column(row, "form")?;
                let form = serde_json::from_str(&text)
                    .map_err(|error| StoreError::corrupt("form", error.to_string()))?;
                forms.push(form);
            }
        }
        if of_clients.len() < MIN_CLIENTS {
            forms.clear();
        }
        Ok(forms)
    }

    /// Keeps a prompt that a model has written.
    pub(crate) async fn put_written(&self, model: &str, prompt: &str, now: Timestamp) -> Result<()> {
        let statement = sqlx::query(
            "INSERT INTO written_prompts (model, prompt, written_at) VALUES ($1, $2, $3) \
             ON CONFLICT (model, prompt) DO NOTHING",
        )
        .bind(model.to_owned())
        .bind(prompt.to_owned())
        .bind(now.micros());
        self.writer
            .execute("keep a prompt that a model has written", statement)
            .await?;
        Ok(())
    }

    /// The number of prompts that a model has written and nobody took.
    pub(crate) async fn count_written(&self, model: &str) -> Result<u64> {
        let row = sqlx::query("SELECT COUNT(*) AS many FROM written_prompts WHERE model = $1")
            .bind(model.to_owned())
            .fetch_one(&self.pool)
            .await
            .during("count the prompts that a model has written")?;
        unsigned_column(&row, "many")
    }

    /// Takes prompts that a model has written, the oldest ones, at most `most`. Nobody takes them again.
    pub(crate) async fn take_written(&self, model: &str, most: usize) -> Result<Vec<String>> {
        const OPERATION: &str = "take prompts that a model has written";
        let mut tx = self.writer.begin().await?;
        let rows = sqlx::query(
            "DELETE FROM written_prompts WHERE model = $1 AND prompt IN \
             (SELECT w.prompt FROM written_prompts AS w WHERE w.model = $1 ORDER BY w.written_at, w.prompt LIMIT $2) \
             RETURNING prompt",
        )
        .bind(model.to_owned())
        .bind(i64::try_from(most).unwrap_or(i64::MAX))
        .fetch_all(&mut *tx)
        .await
        .during(OPERATION)?;
        tx.commit(OPERATION).await?;
        rows.iter().map(|row| read_column(row, "prompt")).collect()
    }
}

#[cfg(test)]
mod tests {
    use muster_store::testing::stores;
    use muster_validator_store::MIGRATIONS;

    use super::*;

    #[tokio::test]
    async fn forms_are_those_of_a_crowd_and_no_client_is_most_of_it() {
        for test in stores(&MIGRATIONS).await.unwrap() {
            let store = AuditStore::new(test.pool.clone(), test.writer());
            let form = RequestForm::read(br#"{"model":"tiny","prompt":"x"}"#, false).unwrap();
            let put = async |answer: String, client: u8, second| {
                let client = Digest::from_bytes([client; 32]);
                let now = Timestamp::from_secs(second);
                store
                    .put_form(&answer, "tiny", &client, &form, now)
                    .await
                    .unwrap();
            };
            let count = async |since| {
                let forms = store.forms("tiny", Timestamp::from_secs(since)).await.unwrap();
                forms.len()
            };
            for number in 0..20 {
                put(format!("loud {number}"), 0, 5).await;
            }
            assert_eq!(count(0).await, 0, "one client is no crowd, {}", test.engine);
            for client in 1..8 {
                put(format!("of {client}"), client, 5).await;
                put(format!("of {client}"), client, 5).await;
            }
            assert_eq!(count(0).await, MAX_FORMS_OF_CLIENT + 7);
            assert_eq!(count(6).await, 0, "older ones do not count");
        }
    }

    #[tokio::test]
    async fn a_prompt_that_a_model_has_written_is_taken_once() {
        for test in stores(&MIGRATIONS).await.unwrap() {
            let store = AuditStore::new(test.pool.clone(), test.writer());
            for (prompt, second) in [("a first one", 1), ("a second one", 2), ("a first one", 3)] {
                let now = Timestamp::from_secs(second);
                store.put_written("tiny", prompt, now).await.unwrap();
            }
            store
                .put_written("other", "a first one", Timestamp::from_secs(1))
                .await
                .unwrap();
            assert_eq!(store.count_written("tiny").await.unwrap(), 2, "{}", test.engine);
            assert_eq!(store.take_written("tiny", 1).await.unwrap(), ["a first one"]);
            assert_eq!(store.take_written("tiny", 9).await.unwrap(), ["a second one"]);
            assert!(store.take_written("tiny", 9).await.unwrap().is_empty());
            assert_eq!(store.count_written("other").await.unwrap(), 1);
        }
    }
}

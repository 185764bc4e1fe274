//! The text of answers that may be published.

use std::collections::BTreeMap;

use muster_audit::OpenedText;
use muster_protocol::Timestamp;
use muster_store::columns::read_column;
use muster_store::{During as _, StoreError};
use sqlx::any::AnyRow;

use crate::store::audit_store::{AuditStore, Result};

impl AuditStore {
    /// Stores the text of an answer that may be published. A response that comes later is added to the ids.
    pub(crate) async fn put_opened_text(
        &self,
        answer: &str,
        words: &OpenedText,
        now: Timestamp,
    ) -> Result<()> {
        let statement = sqlx::query(
            "INSERT INTO answer_ids (response_id, prompt, output, request, kept_at, response) \
             VALUES ($1, $2, $3, $4, $5, $6) \
             ON CONFLICT (response_id) DO UPDATE SET response = COALESCE(excluded.response, answer_ids.response)",
        )
        .bind(answer.to_owned())
        .bind(id_list(&words.prompt))
        .bind(id_list(&words.output))
        .bind(words.request.clone())
        .bind(now.micros())
        .bind(words.response.clone());
        self.writer
            .execute("store the words of an answer", statement)
            .await?;
        Ok(())
    }

    /// The text of a model's answers since a time that may be published, by the ids of the answers.
    pub(crate) async fn opened_text(
        &self,
        model: &str,
        since: Timestamp,
    ) -> Result<BTreeMap<String, OpenedText>> {
        let rows = sqlx::query(
            "SELECT a.response_id, a.prompt, a.output, a.request, a.response FROM answer_ids a \
             JOIN responses r ON r.response_id = a.response_id WHERE r.model = $1 AND r.ended_at >= $2",
        )
        .bind(model.to_owned())
        .bind(since.micros())
        .fetch_all(&self.pool)
        .await
        .during("read the words of answers")?;
        let read = |row: &AnyRow| {
            let words = OpenedText {
                prompt: id_column(row, "prompt")?,
                output: id_column(row, "output")?,
                request: read_column(row, "request")?,
                response: read_column(row, "response")?,
            };
            Ok((read_column(row, "response_id")?, words))
        };
        rows.iter().map(read).collect()
    }
}

/// A JSON list of ids.
fn id_list(ids: &[u32]) -> String {
    // A list of numbers always has a JSON form.
    serde_json::to_string(ids).unwrap_or_default()
}

fn id_column(row: &AnyRow, name: &'static str) -> Result<Vec<u32>> {
    let text: String = read_column(row, name)?;
    serde_json::from_str(&text).map_err(|error| StoreError::corrupt(name, error.to_string()))
}

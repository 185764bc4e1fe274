//! The snapshots by which cycles were scored, by their digests.

use muster_protocol::Digest;

use super::{Result, Store, Transaction, column, query_error};

impl Store {
    /// The canonical text of a snapshot; `None` if there is none with this digest, or no more.
    ///
    /// # Errors
    /// The database fails.
    pub async fn scoring_snapshot(&self, digest: Digest) -> Result<Option<String>> {
        let row = sqlx::query("SELECT body FROM scoring_snapshots WHERE digest = $1")
            .bind(digest.to_string())
            .fetch_optional(&self.pool)
            .await
            .map_err(query_error("read a scoring snapshot"))?;
        row.map(|row| column(&row, "body")).transpose()
    }

    /// The genesis hash of the chain that the cycles belong to; empty if no chain ever answered.
    pub fn genesis(&self) -> String {
        self.chain().genesis
    }
}

impl Transaction {
    /// Stores a snapshot, unless it is there already.
    pub(super) async fn put_snapshot(&mut self, digest: Digest, body: &str) -> Result<()> {
        sqlx::query("INSERT INTO scoring_snapshots (digest, body) VALUES ($1, $2) ON CONFLICT DO NOTHING")
            .bind(digest.to_string())
            .bind(body.to_owned())
            .execute(&mut *self.tx)
            .await
            .map_err(query_error("write a scoring snapshot"))?;
        Ok(())
    }
}

//! The snapshots by which cycles were scored, by their digests.

use muster_protocol::Digest;

use super::{Result, Store, Transaction, query_error};
use muster_store::columns::{read_column, to_signed, to_unsigned};

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
        row.map(|row| read_column(&row, "body")).transpose()
    }

    /// The length of a snapshot's text in bytes; `None` if there is none with this digest, or no more.
    ///
    /// # Errors
    /// The database fails.
    pub async fn scoring_snapshot_length(&self, digest: Digest) -> Result<Option<u64>> {
        let statement =
            "SELECT CAST(OCTET_LENGTH(body) AS BIGINT) AS bytes FROM scoring_snapshots WHERE digest = $1";
        let row = sqlx::query(statement)
            .bind(digest.to_string())
            .fetch_optional(&self.pool)
            .await
            .map_err(query_error("read the length of a scoring snapshot"))?;
        row.map(|row| read_column(&row, "bytes").map(to_unsigned))
            .transpose()
    }

    /// At most `most` bytes of a snapshot's text from the byte `from` on; `None` if there is none with this digest, or
    /// no more. The text is ASCII, so its letters are its bytes. On SQLite the database reads the whole text for a
    /// moment to cut a part out of it.
    ///
    /// # Errors
    /// The database fails.
    pub async fn scoring_snapshot_part(
        &self,
        digest: Digest,
        from: u64,
        most: u64,
    ) -> Result<Option<String>> {
        let statement = "SELECT SUBSTR(body, CAST($2 AS INTEGER), CAST($3 AS INTEGER)) AS part \
                         FROM scoring_snapshots WHERE digest = $1";
        let row = sqlx::query(statement)
            .bind(digest.to_string())
            .bind(to_signed(from.saturating_add(1)))
            .bind(to_signed(most))
            .fetch_optional(&self.pool)
            .await
            .map_err(query_error("read a part of a scoring snapshot"))?;
        row.map(|row| read_column(&row, "part")).transpose()
    }

    /// The genesis hash of the chain that the cycles belong to; empty if no chain ever answered.
    pub fn genesis(&self) -> String {
        self.chain().genesis
    }

    /// The bytes of this hash; `None` if no chain ever answered.
    pub fn genesis_digest(&self) -> Option<Digest> {
        genesis_digest(&self.genesis())
    }
}

/// The bytes of a genesis hash that is written with its prefix `0x`; `None` if the text is none.
pub fn genesis_digest(text: &str) -> Option<Digest> {
    format!("sha256:{}", text.strip_prefix("0x")?).parse().ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_genesis_hash_has_a_prefix_and_64_digits() {
        let digits = "ab".repeat(32);
        let read = genesis_digest(&format!("0x{digits}"));
        assert_eq!(read, Some(Digest::from_bytes([0xab; 32])));
        for text in [
            "",
            "0x",
            "0x00",
            &digits,
            &format!("0x{digits}00"),
            &format!("0x{}", "zz".repeat(32)),
        ] {
            assert_eq!(genesis_digest(text), None, "{text}");
        }
    }
}

//! The snapshots by which cycles were scored, by their digests. A text lies in pieces.

use muster_protocol::Digest;

use super::{Result, Store, Transaction, query_error};
use muster_store::columns::{read_column, to_unsigned};

impl Store {
    /// A piece of a snapshot's canonical text, counted from 0; `None` if there is no snapshot with this digest, or no
    /// more, and behind its last piece.
    ///
    /// # Errors
    /// The database fails.
    pub async fn snapshot_piece(&self, digest: Digest, piece: u32) -> Result<Option<String>> {
        let row = match piece {
            0 => {
                sqlx::query("SELECT body FROM scoring_snapshots WHERE digest = $1")
                    .bind(digest.to_string())
                    .fetch_optional(&self.pool)
                    .await
            }
            piece => {
                sqlx::query("SELECT body FROM scoring_snapshot_pieces WHERE digest = $1 AND piece = $2")
                    .bind(digest.to_string())
                    .bind(i64::from(piece))
                    .fetch_optional(&self.pool)
                    .await
            }
        };
        row.map_err(query_error("read a scoring snapshot"))?
            .map(|row| read_column(&row, "body"))
            .transpose()
    }

    /// The length of a snapshot's text in bytes; `None` if there is none with this digest, or no more.
    ///
    /// # Errors
    /// The database fails.
    pub async fn scoring_snapshot_length(&self, digest: Digest) -> Result<Option<u64>> {
        let statement = "SELECT CAST(SUM(piece.bytes) AS BIGINT) AS bytes FROM (\
                         SELECT OCTET_LENGTH(body) AS bytes FROM scoring_snapshots WHERE digest = $1 \
                         UNION ALL \
                         SELECT OCTET_LENGTH(body) AS bytes FROM scoring_snapshot_pieces WHERE digest = $1) piece";
        let row = sqlx::query(statement)
            .bind(digest.to_string())
            .fetch_one(&self.pool)
            .await
            .map_err(query_error("read the length of a scoring snapshot"))?;
        let bytes: Option<i64> = read_column(&row, "bytes")?;
        Ok(bytes.map(to_unsigned))
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
    /// Stores the pieces of a snapshot's text, unless it is there already. An engine bounds the length of one value,
    /// and one piece at a time is in memory.
    pub(super) async fn put_snapshot(
        &mut self,
        digest: Digest,
        pieces: impl IntoIterator<Item = String, IntoIter: Send>,
    ) -> Result<()> {
        const OPERATION: &str = "write a scoring snapshot";
        let mut pieces = pieces.into_iter();
        let written = sqlx::query(
            "INSERT INTO scoring_snapshots (digest, body) VALUES ($1, $2) ON CONFLICT DO NOTHING",
        )
        .bind(digest.to_string())
        .bind(pieces.next().unwrap_or_default())
        .execute(&mut *self.tx)
        .await
        .map_err(query_error(OPERATION))?;
        if written.rows_affected() == 0 {
            return Ok(());
        }
        for (number, piece) in (1_i64..).zip(pieces) {
            sqlx::query("INSERT INTO scoring_snapshot_pieces (digest, piece, body) VALUES ($1, $2, $3)")
                .bind(digest.to_string())
                .bind(number)
                .bind(piece)
                .execute(&mut *self.tx)
                .await
                .map_err(query_error(OPERATION))?;
        }
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

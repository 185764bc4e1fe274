//! The first blocks of the periods whose keys gave nonces.

use muster_audit::NoncePeriod;
use muster_protocol::{Digest, Timestamp};
use muster_store::During as _;
use muster_store::columns::{parse_column, to_signed};

use crate::store::audit_store::{AuditStore, Result};

impl AuditStore {
    /// Keeps the hash of a period's first block. A period that is known keeps its hash.
    pub(crate) async fn put_nonce_period(
        &self,
        period: NoncePeriod,
        block_hash: &Digest,
        now: Timestamp,
    ) -> Result<()> {
        let statement = sqlx::query(
            "INSERT INTO nonce_periods (period, block_hash, began_at) VALUES ($1, $2, $3) \
             ON CONFLICT (period) DO NOTHING",
        )
        .bind(to_signed(period.0))
        .bind(block_hash.to_string())
        .bind(now.micros());
        self.writer
            .execute("keep the first block of a period of nonces", statement)
            .await?;
        Ok(())
    }

    /// The hash of a period's first block; `None` if no nonce of the period was made by its key.
    pub(crate) async fn nonce_period(&self, period: NoncePeriod) -> Result<Option<Digest>> {
        let row = sqlx::query("SELECT block_hash FROM nonce_periods WHERE period = $1")
            .bind(to_signed(period.0))
            .fetch_optional(&self.pool)
            .await
            .during("read the first block of a period of nonces")?;
        row.map(|row| parse_column(&row, "block_hash")).transpose()
    }
}

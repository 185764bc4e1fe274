//! The newest message of each validator about each miner.

use std::time::Duration;

use muster_protocol::wire::encode;
use muster_protocol::wire::machines::MinerNotice;
use muster_protocol::{MinerKey, Timestamp, ValidatorKey};
use muster_store::{During as _, StoreError};

use super::Store;

/// The most miners that one validator's messages are kept of. A subnet has fewer.
const MAX_MINERS: i64 = 4_096;

/// The age at which a report is deleted.
pub(super) const KEPT: Duration = Duration::from_secs(24 * 3_600);

/// The newest message of one validator about a miner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredMinerReport {
    /// The validator that sent it.
    pub validator: ValidatorKey,
    /// When the message came.
    pub told_at: Timestamp,
    /// The validator's proofs and the miner's claims.
    pub notice: MinerNotice,
}

// === impl Store ===

impl Store {
    /// Stores a validator's message about a miner. Beyond the bound on a validator's miners nothing is stored.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn record_miner(
        &self,
        validator: ValidatorKey,
        notice: &MinerNotice,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let (validator, miner) = (validator.to_string(), notice.miner.to_string());
        let others = "SELECT COUNT(*) FROM miner_reports WHERE validator = $1 AND miner <> $2";
        let (others,): (i64,) = sqlx::query_as(others)
            .bind(&validator)
            .bind(&miner)
            .fetch_one(&self.pool)
            .await
            .during("count a validator's miners")?;
        if others >= MAX_MINERS {
            return Ok(());
        }
        let statement = "INSERT INTO miner_reports (validator, miner, report, told_at) VALUES ($1, $2, $3, $4) \
                         ON CONFLICT (validator, miner) DO UPDATE SET report = excluded.report, told_at = excluded.told_at";
        sqlx::query(statement)
            .bind(validator)
            .bind(miner)
            .bind(encode(notice))
            .bind(now.micros())
            .execute(&self.pool)
            .await
            .during("store a miner's report")?;
        Ok(())
    }

    /// The newest messages about a miner, by the validators' addresses. A text that only another version of this
    /// program can read is left out: the validator sends it again.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn miner_reports(&self, miner: MinerKey) -> Result<Vec<StoredMinerReport>, StoreError> {
        let statement =
            "SELECT validator, told_at, report FROM miner_reports WHERE miner = $1 ORDER BY validator";
        let rows: Vec<(String, i64, String)> = sqlx::query_as(statement)
            .bind(miner.to_string())
            .fetch_all(&self.pool)
            .await
            .during("read the reports about a miner")?;
        let mut found = Vec::new();
        for (validator, told_at, report) in rows {
            let validator = validator
                .parse()
                .map_err(|error| StoreError::corrupt("miner_reports.validator", error))?;
            let Ok(notice) = serde_json::from_str(&report) else {
                tracing::debug!(%validator, "the stored report about a miner cannot be read");
                continue;
            };
            found.push(StoredMinerReport {
                validator,
                told_at: Timestamp::from_micros(told_at),
                notice,
            });
        }
        Ok(found)
    }
}

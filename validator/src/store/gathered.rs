//! Receipts of all validators, as miners serve them, how far their pages were read, and what was refused.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_chain::BlockNumber;
use muster_identity::Verified;
use muster_protocol::{Digest, MinerKey, Receipt, ReceiptKind, ReceiptPayload, Timestamp, ValidatorKey};
use muster_receipts::judge::digest;
use muster_receipts::{Cursor, Key, Refusal, Refused, key_of};
use muster_scoring::Paid;
use serde::Serialize;

use super::{Result, Store, column, failed, json, json_option, parsed, signed, text_of, time, unsigned};

/// How long gathered receipts and decisions are kept. Longer than a receipt is taken for, or it would count twice.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// What one reading of one page of one miner brought.
#[derive(Debug)]
pub struct Harvest {
    /// Whose page.
    pub miner: MinerKey,
    /// Which.
    pub page: i64,
    /// Where it stands now.
    pub cursor: Cursor,
    /// New receipts and the block that each counts in.
    pub good: Vec<(Verified<Receipt>, BlockNumber)>,
    /// What was refused.
    pub refused: Vec<Refusal>,
}

/// How much of a miner's pages was refused for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefusedView {
    /// Whose pages.
    pub miner: MinerKey,
    /// Why.
    pub reason: String,
    /// How many lines.
    pub refused: u64,
    /// When the last.
    pub last_at: Timestamp,
    /// The beginning of the last.
    pub example: String,
}

impl Store {
    /// How far the pages of each miner were read.
    ///
    /// # Errors
    /// The database's.
    pub async fn pages_read(&self) -> Result<BTreeMap<MinerKey, BTreeMap<i64, Cursor>>> {
        let rows = sqlx::query("SELECT miner, page, next_byte, settled FROM pages_read")
            .fetch_all(&self.pool)
            .await
            .map_err(failed("read how far receipt pages were read"))?;
        let mut pages = BTreeMap::<MinerKey, BTreeMap<i64, Cursor>>::new();
        for row in &rows {
            let cursor = Cursor {
                offset: unsigned(column(row, "next_byte")?),
                settled: column::<i64>(row, "settled")? != 0,
            };
            pages
                .entry(parsed(row, "miner")?)
                .or_default()
                .insert(column(row, "page")?, cursor);
        }
        Ok(pages)
    }

    /// Which of these receipts were read before, with the digest of what was.
    ///
    /// # Errors
    /// The database's.
    pub async fn known_receipts(&self, receipts: &[Receipt]) -> Result<BTreeMap<Key, Digest>> {
        const OPERATION: &str = "look receipts up";
        let mut known = BTreeMap::new();
        // One connection for all of them: hundreds of little questions, each by the primary key.
        let mut connection = self.pool.acquire().await.map_err(failed(OPERATION))?;
        for receipt in receipts {
            let key = key_of(receipt);
            let row = sqlx::query(
                "SELECT digest FROM gathered WHERE validator = $1 AND attempt_id = $2 AND kind = $3",
            )
            .bind(key.0.to_string())
            .bind(key.1.to_string())
            .bind(key.2.as_str())
            .fetch_optional(&mut *connection)
            .await
            .map_err(failed(OPERATION))?;
            if let Some(row) = row {
                known.insert(key, parsed(&row, "digest")?);
            }
        }
        Ok(known)
    }

    /// Keeps what a reading brought, all of it or nothing, with the place to read on from. Receipts of this validator's own
    /// that wait for their miner's signature have it from here on.
    ///
    /// # Errors
    /// The database's.
    pub async fn reap(&self, me: ValidatorKey, harvest: &Harvest, now: Timestamp) -> Result<()> {
        const OPERATION: &str = "keep gathered receipts";
        let mut write = self.write().await?;
        let chain = write.chain.genesis.clone();
        for (receipt, block) in &harvest.good {
            let payload = &receipt.payload;
            if payload.validator() == me {
                sqlx::query(
                    "UPDATE receipts SET miner_signature = $1 \
                     WHERE attempt_id = $2 AND kind = $3 AND payload = $4 AND miner_signature IS NULL",
                )
                .bind(receipt.miner_signature.to_prefixed_hex())
                .bind(payload.attempt().to_string())
                .bind(payload.kind().as_str())
                .bind(text_of(payload))
                .execute(&mut *write.tx)
                .await
                .map_err(failed(OPERATION))?;
            }
            sqlx::query(
                "INSERT INTO gathered (validator, attempt_id, kind, miner, payload, digest, validator_signature, \
                 miner_signature, written_at, chain, block) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) \
                 ON CONFLICT DO NOTHING",
            )
            .bind(payload.validator().to_string())
            .bind(payload.attempt().to_string())
            .bind(payload.kind().as_str())
            .bind(payload.miner().to_string())
            .bind(text_of(payload))
            .bind(digest(receipt).to_string())
            .bind(receipt.validator_signature.to_prefixed_hex())
            .bind(receipt.miner_signature.to_prefixed_hex())
            .bind(payload.timestamp().micros())
            .bind(chain.clone())
            .bind(signed(block.0))
            .execute(&mut *write.tx)
            .await
            .map_err(failed(OPERATION))?;
        }
        for (why, (count, example)) in counted(&harvest.refused) {
            sqlx::query(
                "INSERT INTO refused_receipts (miner, reason, refused, last_at, example) VALUES ($1, $2, $3, $4, $5) \
                 ON CONFLICT (miner, reason) DO UPDATE SET refused = refused_receipts.refused + excluded.refused, \
                 last_at = excluded.last_at, example = excluded.example",
            )
            .bind(harvest.miner.to_string())
            .bind(why.as_str())
            .bind(count)
            .bind(now.micros())
            .bind(example.to_owned())
            .execute(&mut *write.tx)
            .await
            .map_err(failed(OPERATION))?;
        }
        sqlx::query(
            "INSERT INTO pages_read (miner, page, next_byte, settled) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (miner, page) DO UPDATE SET next_byte = excluded.next_byte, settled = excluded.settled",
        )
        .bind(harvest.miner.to_string())
        .bind(harvest.page)
        .bind(signed(harvest.cursor.offset))
        .bind(i64::from(harvest.cursor.settled))
        .execute(&mut *write.tx)
        .await
        .map_err(failed(OPERATION))?;
        write.commit(OPERATION).await
    }

    /// Forgets what is too old to matter: gathered receipts and decisions, and places in pages before `oldest_page`.
    ///
    /// # Errors
    /// The database's.
    pub async fn forget(&self, oldest_page: i64, now: Timestamp) -> Result<()> {
        const OPERATION: &str = "forget what is old";
        let kept = i64::try_from(KEPT.as_micros()).unwrap_or(i64::MAX);
        let before = now.micros().saturating_sub(kept);
        let mut write = self.write().await?;
        for (statement, bound) in [
            ("DELETE FROM gathered WHERE written_at < $1", before),
            ("DELETE FROM routes WHERE decided_at < $1", before),
            ("DELETE FROM pages_read WHERE page < $1", oldest_page),
        ] {
            sqlx::query(statement)
                .bind(bound)
                .execute(&mut *write.tx)
                .await
                .map_err(failed(OPERATION))?;
        }
        write.commit(OPERATION).await
    }

    /// What was refused, the latest first.
    ///
    /// # Errors
    /// The database's.
    pub async fn refused_receipts(&self, limit: u32) -> Result<Vec<RefusedView>> {
        let rows = sqlx::query(
            "SELECT miner, reason, refused, last_at, example FROM refused_receipts \
             ORDER BY last_at DESC, miner, reason LIMIT $1",
        )
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(failed("read what was refused"))?;
        let view = |row| {
            Ok(RefusedView {
                miner: parsed(row, "miner")?,
                reason: column(row, "reason")?,
                refused: unsigned(column(row, "refused")?),
                last_at: time(row, "last_at")?,
                example: column(row, "example")?,
            })
        };
        rows.iter().map(view).collect()
    }

    /// How many receipts of all validators are kept.
    ///
    /// # Errors
    /// The database's.
    pub async fn gathered_count(&self) -> Result<u64> {
        let row = sqlx::query("SELECT COUNT(*) AS kept FROM gathered")
            .fetch_one(&self.pool)
            .await
            .map_err(failed("count gathered receipts"))?;
        column(&row, "kept").map(unsigned)
    }

    pub(super) async fn others_finished_between(
        &self,
        first: BlockNumber,
        last: BlockNumber,
    ) -> Result<Vec<Paid>> {
        let rows = sqlx::query(
            "SELECT f.payload, s.payload AS start FROM gathered f LEFT JOIN gathered s \
             ON s.validator = f.validator AND s.attempt_id = f.attempt_id AND s.kind = $5 \
             WHERE f.kind = $1 AND f.block >= $2 AND f.block <= $3 AND f.chain = $4 \
             AND NOT EXISTS (SELECT 1 FROM receipts r WHERE r.attempt_id = f.attempt_id AND r.kind = f.kind AND r.payload = f.payload) \
             ORDER BY f.block, f.validator, f.attempt_id",
        )
        .bind(ReceiptKind::Finished.as_str())
        .bind(signed(first.0))
        .bind(signed(last.0))
        .bind(self.chain().genesis)
        .bind(ReceiptKind::Started.as_str())
        .fetch_all(&self.pool)
        .await
        .map_err(failed("read the receipts of a cycle"))?;
        let paid = |row| {
            let class = match json_option(row, "start")? {
                Some(ReceiptPayload::Started(started)) => Some(started.executor_class),
                Some(ReceiptPayload::Accepted(_) | ReceiptPayload::Finished(_)) | None => None,
            };
            Ok(Paid {
                receipt: json(row, "payload")?,
                class,
            })
        };
        rows.iter().map(paid).collect()
    }
}

fn counted(refused: &[Refusal]) -> BTreeMap<Refused, (i64, &str)> {
    let mut counted = BTreeMap::<Refused, (i64, &str)>::new();
    for refusal in refused {
        let entry = counted.entry(refusal.why).or_default();
        *entry = (entry.0.saturating_add(1), &refusal.example);
    }
    counted
}

//! Receipts of all validators that were gathered from miners' pages, how far each page was read, and which lines were
//! refused.

use std::collections::BTreeMap;

use muster_chain::BlockNumber;
use muster_identity::Verified;
use muster_protocol::{Digest, Receipt, ReceiptKind, ReceiptPayload, Timestamp, ValidatorKey};
use muster_receipts::page_check::digest;
use muster_receipts::{PageCursor, PageSource, ReceiptKey, ReceiptRejection, RejectionReason, key_of};
use muster_scoring::PaidReceipt;
use muster_store::columns::{json_column, parse_column, read_column, time_column, to_signed, to_unsigned};
use serde::Serialize;

use super::{Result, Store, parse_json_option, query_error, text_of};

/// The result of reading on in one page of one party.
#[derive(Debug)]
pub struct GatheredPage {
    /// The party that serves the page.
    pub source: PageSource,
    /// The number of the page.
    pub page: i64,
    /// Where the next reading of the page begins.
    pub cursor: PageCursor,
    /// New receipts, each with the block in which it counts.
    pub good: Vec<(Verified<Receipt>, BlockNumber)>,
    /// The refused lines.
    pub refused: Vec<ReceiptRejection>,
    /// The page of this validator's own on which its receipts among these are shown, if it serves pages.
    pub own_page: Option<i64>,
}

/// The lines of a party's pages that were refused for one reason, as the operator sees them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefusedView {
    /// The miner that serves the pages, or the validator.
    #[serde(rename = "miner")]
    pub source: PageSource,
    /// The reason of the refusal.
    pub reason: String,
    /// The number of refused lines.
    pub refused: u64,
    /// When the last line was refused.
    pub last_at: Timestamp,
    /// The beginning of the last refused line.
    pub example: String,
}

impl Store {
    /// How far each page of each party was read.
    ///
    /// # Errors
    /// The database fails.
    pub async fn page_cursors(&self) -> Result<BTreeMap<PageSource, BTreeMap<i64, PageCursor>>> {
        let rows = sqlx::query("SELECT miner, page, next_byte, settled FROM pages_read")
            .fetch_all(&self.pool)
            .await
            .map_err(query_error("read how far receipt pages were read"))?;
        let mut pages = BTreeMap::<PageSource, BTreeMap<i64, PageCursor>>::new();
        for row in &rows {
            let cursor = PageCursor {
                offset: to_unsigned(read_column(row, "next_byte")?),
                settled: read_column::<i64>(row, "settled")? != 0,
            };
            pages
                .entry(parse_column(row, "miner")?)
                .or_default()
                .insert(read_column(row, "page")?, cursor);
        }
        Ok(pages)
    }

    /// Which of these receipts were gathered before, each with the digest of what was stored.
    ///
    /// # Errors
    /// The database fails.
    pub async fn known_receipts(&self, receipts: &[Receipt]) -> Result<BTreeMap<ReceiptKey, Digest>> {
        const OPERATION: &str = "look receipts up";
        let mut known = BTreeMap::new();
        // One connection for all of them: hundreds of small queries, each by the primary key.
        let mut connection = self.pool.acquire().await.map_err(query_error(OPERATION))?;
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
            .map_err(query_error(OPERATION))?;
            if let Some(row) = row {
                known.insert(key, parse_column(&row, "digest")?);
            }
        }
        Ok(known)
    }

    /// Stores the receipts, refusals and cursor of a page, all or none. A receipt of this validator's own that lacks
    /// the miner's signature gets it.
    ///
    /// # Errors
    /// The database fails.
    pub async fn store_gathered(
        &self,
        own_key: ValidatorKey,
        page: &GatheredPage,
        now: Timestamp,
    ) -> Result<()> {
        const OPERATION: &str = "keep gathered receipts";
        let mut transaction = self.begin().await?;
        let chain = transaction.chain.genesis.clone();
        for (receipt, block) in &page.good {
            let payload = &receipt.payload;
            if payload.validator() == own_key {
                if let Some(own_page) = page.own_page {
                    transaction.put_line(receipt, own_page).await?;
                }
                sqlx::query(
                    "UPDATE receipts SET miner_signature = $1 \
                     WHERE attempt_id = $2 AND kind = $3 AND payload = $4 AND miner_signature IS NULL",
                )
                .bind(receipt.miner_signature.to_prefixed_hex())
                .bind(payload.attempt().to_string())
                .bind(payload.kind().as_str())
                .bind(text_of(payload))
                .execute(&mut *transaction.tx)
                .await
                .map_err(query_error(OPERATION))?;
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
            .bind(to_signed(block.0))
            .execute(&mut *transaction.tx)
            .await
            .map_err(query_error(OPERATION))?;
        }
        for (why, (count, example)) in count_refusals(&page.refused) {
            sqlx::query(
                "INSERT INTO refused_receipts (miner, reason, refused, last_at, example) VALUES ($1, $2, $3, $4, $5) \
                 ON CONFLICT (miner, reason) DO UPDATE SET refused = refused_receipts.refused + excluded.refused, \
                 last_at = excluded.last_at, example = excluded.example",
            )
            .bind(page.source.to_string())
            .bind(why.as_str())
            .bind(count)
            .bind(now.micros())
            .bind(example.to_owned())
            .execute(&mut *transaction.tx)
            .await
            .map_err(query_error(OPERATION))?;
        }
        sqlx::query(
            "INSERT INTO pages_read (miner, page, next_byte, settled) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (miner, page) DO UPDATE SET next_byte = excluded.next_byte, settled = excluded.settled",
        )
        .bind(page.source.to_string())
        .bind(page.page)
        .bind(to_signed(page.cursor.offset))
        .bind(i64::from(page.cursor.settled))
        .execute(&mut *transaction.tx)
        .await
        .map_err(query_error(OPERATION))?;
        transaction.commit(OPERATION).await
    }

    /// The refused lines by miner and reason, the latest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn refused_receipts(&self, limit: u32) -> Result<Vec<RefusedView>> {
        let rows = sqlx::query(
            "SELECT miner, reason, refused, last_at, example FROM refused_receipts \
             ORDER BY last_at DESC, miner, reason LIMIT $1",
        )
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("read what was refused"))?;
        let view = |row| {
            Ok(RefusedView {
                source: parse_column(row, "miner")?,
                reason: read_column(row, "reason")?,
                refused: to_unsigned(read_column(row, "refused")?),
                last_at: time_column(row, "last_at")?,
                example: read_column(row, "example")?,
            })
        };
        rows.iter().map(view).collect()
    }

    /// The number of gathered receipts that are kept.
    ///
    /// # Errors
    /// The database fails.
    pub async fn gathered_count(&self) -> Result<u64> {
        let row = sqlx::query("SELECT COUNT(*) AS kept FROM gathered")
            .fetch_one(&self.pool)
            .await
            .map_err(query_error("count gathered receipts"))?;
        read_column(&row, "kept").map(to_unsigned)
    }

    pub(super) async fn others_finished_between(
        &self,
        first: BlockNumber,
        last: BlockNumber,
    ) -> Result<Vec<PaidReceipt>> {
        let rows = sqlx::query(
            "SELECT f.payload, s.payload AS start FROM gathered f LEFT JOIN gathered s \
             ON s.validator = f.validator AND s.attempt_id = f.attempt_id AND s.kind = $5 \
             WHERE f.kind = $1 AND f.block >= $2 AND f.block <= $3 AND f.chain = $4 \
             AND NOT EXISTS (SELECT 1 FROM receipts r WHERE r.attempt_id = f.attempt_id AND r.kind = f.kind AND r.payload = f.payload) \
             ORDER BY f.block, f.validator, f.attempt_id",
        )
        .bind(ReceiptKind::Finished.as_str())
        .bind(to_signed(first.0))
        .bind(to_signed(last.0))
        .bind(self.chain().genesis)
        .bind(ReceiptKind::Started.as_str())
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("read the receipts of a cycle"))?;
        let paid = |row| {
            let class = match parse_json_option(row, "start")? {
                Some(ReceiptPayload::Started(started)) => Some(started.executor_class),
                Some(ReceiptPayload::Accepted(_) | ReceiptPayload::Finished(_)) | None => None,
            };
            Ok(PaidReceipt {
                receipt: json_column(row, "payload")?,
                class,
            })
        };
        rows.iter().map(paid).collect()
    }
}

fn count_refusals(refused: &[ReceiptRejection]) -> BTreeMap<RejectionReason, (i64, &str)> {
    let mut counted = BTreeMap::<RejectionReason, (i64, &str)>::new();
    for refusal in refused {
        let entry = counted.entry(refusal.why).or_default();
        *entry = (entry.0.saturating_add(1), &refusal.example);
    }
    counted
}

//! Receipts of all validators that were gathered from miners' pages, the amount that each pair has, how far each page
//! was read, and which lines were refused.

use std::collections::BTreeMap;

use futures_util::TryStreamExt as _;
use muster_chain::BlockNumber;
use muster_identity::Verified;
use muster_protocol::{Digest, MinerKey, Receipt, ReceiptKind, ReceiptPayload, Timestamp, ValidatorKey};
use muster_receipts::page_check::digest;
use muster_receipts::{
    PageCursor, PageSource, PairCycle, ReceiptAmount, ReceiptKey, ReceiptRejection, ReceiptTally,
    RejectionReason, key_of, payload_bytes,
};
use muster_scoring::PaidReceipt;
use muster_store::columns::{parse_column, read_column, time_column, to_signed, to_unsigned};
use serde::Serialize;

use super::{Result, Store, Transaction, corrupt, parse_json_option, query_error, text_of};

/// The example of receipts that were read before they were left out.
const LEFT_OUT: &str = "stored receipts that a cycle is scored without";

/// The result of reading on in one page of one party.
#[derive(Debug)]
pub struct GatheredPage {
    /// The party that serves the page.
    pub source: PageSource,
    /// The number of the page.
    pub page: i64,
    /// Where the next reading of the page begins.
    pub cursor: PageCursor,
    /// New receipts, each with its place.
    pub good: Vec<PlacedReceipt>,
    /// The refused lines.
    pub refused: Vec<ReceiptRejection>,
    /// The page of this validator's own on which its receipts among these are shown, if it serves pages.
    pub own_page: Option<i64>,
}

/// A gathered receipt with its place in the chain's blocks.
#[derive(Debug)]
pub struct PlacedReceipt {
    /// The receipt, with both signatures checked.
    pub receipt: Verified<Receipt>,
    /// The block in which it counts.
    pub block: BlockNumber,
    /// The first block of the cycle in which it was signed; the quota of its pair counts by it.
    pub cycle: u64,
}

/// A gathered finished receipt that is about to be read for the scores of a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatheredFinish {
    /// The validator that signed the receipt.
    pub validator: ValidatorKey,
    /// The miner that signed it, too.
    pub miner: MinerKey,
    /// When the validator signed it.
    pub signed_at: Timestamp,
    /// The bytes of its payload.
    pub bytes: u64,
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
        let mut added = BTreeMap::new();
        for placed in &page.good {
            let (receipt, payload) = (&placed.receipt, &placed.receipt.payload);
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
            let inserted = sqlx::query(
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
            .bind(to_signed(placed.block.0))
            .execute(&mut *transaction.tx)
            .await
            .map_err(query_error(OPERATION))?;
            if inserted.rows_affected() > 0 {
                let pair = PairCycle {
                    cycle: placed.cycle,
                    validator: payload.validator(),
                    miner: payload.miner(),
                };
                added
                    .entry(pair)
                    .or_insert_with(ReceiptAmount::default)
                    .add(payload_bytes(payload));
            }
        }
        for (pair, amount) in added {
            transaction.add_amount(&pair, amount, now).await?;
        }
        for (why, (count, example)) in count_refusals(&page.refused) {
            transaction
                .count_refused(&page.source, why, count, example, now)
                .await?;
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

    /// The amounts that are kept of the pairs of this party, for receipts that were signed in these cycles, both ends
    /// included and named by their first blocks.
    ///
    /// # Errors
    /// The database fails.
    pub async fn gathered_amounts(&self, party: &PageSource, first: u64, last: u64) -> Result<ReceiptTally> {
        let query = match party {
            PageSource::Miner(_) => {
                "SELECT cycle, validator, miner, receipts, bytes FROM gathered_amounts \
                 WHERE chain = $1 AND miner = $2 AND cycle >= $3 AND cycle <= $4"
            }
            PageSource::Validator(_) => {
                "SELECT cycle, validator, miner, receipts, bytes FROM gathered_amounts \
                 WHERE chain = $1 AND validator = $2 AND cycle >= $3 AND cycle <= $4"
            }
        };
        let rows = sqlx::query(query)
            .bind(self.chain().genesis)
            .bind(party.hotkey().to_string())
            .bind(to_signed(first))
            .bind(to_signed(last))
            .fetch_all(&self.pool)
            .await
            .map_err(query_error("read how many receipts were gathered"))?;
        let amount = |row| {
            let pair = PairCycle {
                cycle: to_unsigned(read_column(row, "cycle")?),
                validator: parse_column(row, "validator")?,
                miner: parse_column(row, "miner")?,
            };
            let amount = ReceiptAmount {
                receipts: to_unsigned(read_column(row, "receipts")?),
                bytes: to_unsigned(read_column(row, "bytes")?),
            };
            Ok((pair, amount))
        };
        rows.iter()
            .map(amount)
            .collect::<Result<_>>()
            .map(ReceiptTally::new)
    }

    /// Counts gathered receipts that were left out of a cycle's scores, by miner and reason.
    ///
    /// # Errors
    /// The database fails.
    pub async fn count_left_out(
        &self,
        left_out: &BTreeMap<(MinerKey, RejectionReason), u64>,
        now: Timestamp,
    ) -> Result<()> {
        let mut transaction = self.begin().await?;
        for ((miner, why), count) in left_out {
            let count = i64::try_from(*count).unwrap_or(i64::MAX);
            transaction
                .count_refused(&PageSource::Miner(*miner), *why, count, LEFT_OUT, now)
                .await?;
        }
        transaction.commit("count receipts that were left out").await
    }

    /// Adds the finished receipts of others that count in these blocks, as far as `admit` takes them.
    pub(super) async fn add_others_finished(
        &self,
        paid: &mut Vec<PaidReceipt>,
        first: BlockNumber,
        last: BlockNumber,
        admit: &mut (dyn FnMut(&GatheredFinish) -> bool + Send),
    ) -> Result<()> {
        const OPERATION: &str = "read the receipts of a cycle";
        let mut rows = sqlx::query(
            "SELECT f.validator, f.miner, f.written_at, f.payload, s.payload AS start FROM gathered f \
             LEFT JOIN gathered s \
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
        .fetch(&self.pool);
        while let Some(row) = rows.try_next().await.map_err(query_error(OPERATION))? {
            let payload: String = read_column(&row, "payload")?;
            let finish = GatheredFinish {
                validator: parse_column(&row, "validator")?,
                miner: parse_column(&row, "miner")?,
                signed_at: time_column(&row, "written_at")?,
                bytes: u64::try_from(payload.len()).unwrap_or(u64::MAX),
            };
            if !admit(&finish) {
                continue;
            }
            let class = match parse_json_option(&row, "start")? {
                Some(ReceiptPayload::Started(started)) => Some(started.executor_class),
                Some(ReceiptPayload::Accepted(_) | ReceiptPayload::Finished(_)) | None => None,
            };
            paid.push(PaidReceipt {
                receipt: serde_json::from_str(&payload).map_err(|error| corrupt("payload", &error))?,
                class,
            });
        }
        Ok(())
    }
}

impl Transaction {
    /// Adds to what is kept of a pair in a cycle.
    async fn add_amount(&mut self, pair: &PairCycle, amount: ReceiptAmount, now: Timestamp) -> Result<()> {
        sqlx::query(
            "INSERT INTO gathered_amounts (chain, validator, miner, cycle, receipts, bytes, written_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (chain, validator, miner, cycle) DO UPDATE SET \
             receipts = gathered_amounts.receipts + excluded.receipts, \
             bytes = gathered_amounts.bytes + excluded.bytes, written_at = excluded.written_at",
        )
        .bind(self.chain.genesis.clone())
        .bind(pair.validator.to_string())
        .bind(pair.miner.to_string())
        .bind(to_signed(pair.cycle))
        .bind(to_signed(amount.receipts))
        .bind(to_signed(amount.bytes))
        .bind(now.micros())
        .execute(&mut *self.tx)
        .await
        .map_err(query_error("count gathered receipts"))?;
        Ok(())
    }

    /// Adds to the number of refused lines of a party's pages.
    async fn count_refused(
        &mut self,
        source: &PageSource,
        why: RejectionReason,
        count: i64,
        example: &str,
        now: Timestamp,
    ) -> Result<()> {
        sqlx::query(
            "INSERT INTO refused_receipts (miner, reason, refused, last_at, example) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT (miner, reason) DO UPDATE SET refused = refused_receipts.refused + excluded.refused, \
             last_at = excluded.last_at, example = excluded.example",
        )
        .bind(source.to_string())
        .bind(why.as_str())
        .bind(count)
        .bind(now.micros())
        .bind(example.to_owned())
        .execute(&mut *self.tx)
        .await
        .map_err(query_error("count refused receipts"))?;
        Ok(())
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

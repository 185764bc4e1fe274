//! The lines of this validator's own receipt pages: its receipts with both signatures, in the order in which they were
//! complete. A page only grows, so a reader's offset into it stays right.

use muster_protocol::{MinerKey, Receipt, Timestamp, ValidatorKey};

use super::{Draft, Result, Store, Transaction, query_error, text_of};
use muster_store::columns::{read_column, to_signed, to_unsigned};

/// A part of one of this validator's receipt pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiptPage {
    /// Bytes of the whole page.
    pub size: u64,
    /// Whole lines, each with its end of line. They begin at `first`.
    pub lines: String,
    /// The place of the first line in the page, in bytes.
    pub first: u64,
}

/// Adds a receipt's line to a page, if the receipt lacks the miner's signature so far: the line is added once.
const ADD_LINE: &str = "INSERT INTO receipt_lines (page, first, length, line) \
    SELECT $1, COALESCE((SELECT MAX(first + length) FROM receipt_lines WHERE page = $1), 0), $2, $3 FROM receipts \
    WHERE attempt_id = $4 AND kind = $5 AND payload = $6 AND miner_signature IS NULL";

impl Draft<'_> {
    /// Adds the line of a receipt that gets its second signature in this write.
    pub(super) fn put_line(&mut self, receipt: &Receipt, page: i64) {
        let payload = &receipt.payload;
        let line = format!("{}\n", text_of(receipt));
        self.script.add(
            ADD_LINE,
            [
                page.into(),
                i64::try_from(line.len()).unwrap_or(i64::MAX).into(),
                line.into(),
                payload.attempt().to_string().into(),
                payload.kind().as_str().into(),
                text_of(payload).into(),
            ],
        );
    }
}

impl Transaction {
    /// Adds the line of a receipt that gets its second signature in this transaction.
    pub(super) async fn put_line(&mut self, receipt: &Receipt, page: i64) -> Result<()> {
        let payload = &receipt.payload;
        let line = format!("{}\n", text_of(receipt));
        sqlx::query(ADD_LINE)
            .bind(page)
            .bind(i64::try_from(line.len()).unwrap_or(i64::MAX))
            .bind(line)
            .bind(payload.attempt().to_string())
            .bind(payload.kind().as_str())
            .bind(text_of(payload))
            .execute(&mut *self.tx)
            .await
            .map_err(query_error("add to a receipt page"))?;
        Ok(())
    }
}

impl Store {
    /// The lines of a page that end after the byte `from`, at most `limit` of them; `None` if there is no such page.
    ///
    /// # Errors
    /// The database fails.
    pub async fn receipt_page(&self, page: i64, from: u64, limit: u32) -> Result<Option<ReceiptPage>> {
        const OPERATION: &str = "read a receipt page";
        let row =
            sqlx::query("SELECT COALESCE(MAX(first + length), 0) AS size FROM receipt_lines WHERE page = $1")
                .bind(page)
                .fetch_one(&self.pool)
                .await
                .map_err(query_error(OPERATION))?;
        let size = to_unsigned(read_column(&row, "size")?);
        if size == 0 {
            return Ok(None);
        }
        let rows = sqlx::query(
            "SELECT first, line FROM receipt_lines WHERE page = $1 AND first + length > $2 AND first + length <= $3 \
             ORDER BY first LIMIT $4",
        )
        .bind(page)
        .bind(to_signed(from))
        .bind(to_signed(size))
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(query_error(OPERATION))?;
        let mut part = ReceiptPage {
            size,
            lines: String::new(),
            first: from.min(size),
        };
        for (place, row) in rows.iter().enumerate() {
            if place == 0 {
                part.first = to_unsigned(read_column(row, "first")?);
            }
            part.lines.push_str(&read_column::<String>(row, "line")?);
        }
        Ok(Some(part))
    }

    /// The number of started receipts that a validator and a miner signed within a span of time, as they were gathered.
    ///
    /// # Errors
    /// The database fails.
    pub async fn count_started(
        &self,
        validator: ValidatorKey,
        miner: MinerKey,
        from: Timestamp,
        until: Timestamp,
    ) -> Result<u64> {
        let row = sqlx::query(
            "SELECT COUNT(*) AS started FROM gathered WHERE validator = $1 AND miner = $2 \
             AND kind = 'JobStartedReceipt' AND written_at >= $3 AND written_at <= $4",
        )
        .bind(validator.to_string())
        .bind(miner.to_string())
        .bind(from.micros())
        .bind(until.micros())
        .fetch_one(&self.pool)
        .await
        .map_err(query_error("count started receipts"))?;
        read_column(&row, "started").map(to_unsigned)
    }
}

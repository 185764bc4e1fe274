//! The subnet at the first block of each epoch, and the blocks that this validator's receipts named.

use muster_chain::BlockNumber;
use muster_protocol::receipt::FinishedReceipt;
use muster_protocol::{ExecutorClass, MinerKey, ReceiptKind};
use muster_scoring::EpochFacts;

use super::{Result, Store, query_error, text_of};
use muster_store::columns::{json_column, parse_column, read_column, to_signed, to_unsigned};

/// The blocks that one of this validator's receipts named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedBlocks {
    /// The miner of the receipt.
    pub miner: MinerKey,
    /// The class of its attempt.
    pub class: ExecutorClass,
    /// The numbers of the blocks.
    pub blocks: Vec<u64>,
}

impl Store {
    /// Stores an epoch, or what has been agreed on since about one.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put_epoch(&self, facts: &EpochFacts) -> Result<()> {
        self.write("write an epoch", |draft| {
            draft.script.add(
                "INSERT INTO epochs (chain, first_block, first_ms, block_ms, permitted, proven) \
                 VALUES ($1, $2, $3, $4, $5, $6) \
                 ON CONFLICT (chain, first_block) DO UPDATE SET proven = excluded.proven",
                [
                    draft.chain.genesis.clone().into(),
                    to_signed(facts.first_block).into(),
                    to_signed(facts.first_ms).into(),
                    to_signed(facts.block_ms).into(),
                    text_of(&facts.permitted).into(),
                    text_of(&facts.proven).into(),
                ],
            );
        })
        .await
    }

    /// The epochs from the one on that holds block `first`, with the one before it, up to the one that holds block
    /// `last`; oldest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn epochs_between(&self, first: u64, last: u64) -> Result<Vec<EpochFacts>> {
        let rows = sqlx::query(
            "SELECT first_block, first_ms, block_ms, permitted, proven FROM epochs WHERE chain = $1 \
             AND first_block <= $3 AND first_block >= COALESCE((SELECT MIN(first_block) FROM (SELECT first_block \
             FROM epochs WHERE chain = $1 AND first_block <= $2 ORDER BY first_block DESC LIMIT 2) AS before), 0) \
             ORDER BY first_block",
        )
        .bind(self.chain().genesis)
        .bind(to_signed(first))
        .bind(to_signed(last))
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("read the epochs"))?;
        let facts = |row| {
            Ok(EpochFacts {
                first_block: to_unsigned(read_column(row, "first_block")?),
                first_ms: to_unsigned(read_column(row, "first_ms")?),
                block_ms: to_unsigned(read_column(row, "block_ms")?),
                permitted: json_column(row, "permitted")?,
                proven: json_column(row, "proven")?,
            })
        };
        rows.iter().map(facts).collect()
    }

    /// The blocks that this validator's receipts have named since block `first`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn blocks_named_since(&self, first: BlockNumber) -> Result<Vec<NamedBlocks>> {
        let rows = sqlx::query(
            "SELECT r.payload, a.class FROM receipts r JOIN attempts a ON a.attempt_id = r.attempt_id \
             WHERE r.kind = $1 AND r.block >= $2 AND r.chain = $3",
        )
        .bind(ReceiptKind::Finished.as_str())
        .bind(to_signed(first.0))
        .bind(self.chain().genesis)
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("read which blocks receipts named"))?;
        let named = |row| {
            let receipt: FinishedReceipt = json_column(row, "payload")?;
            Ok(NamedBlocks {
                miner: receipt.miner_hotkey,
                class: parse_column(row, "class")?,
                blocks: receipt.block_numbers,
            })
        };
        rows.iter().map(named).collect()
    }
}

//! The transfers to a burn account, as they were read block by block from the chain.

use muster_chain::BlockNumber;
use muster_protocol::{Hotkey, Rao, Timestamp};
use muster_store::columns::{parse_column, read_column, to_signed, to_unsigned};
use muster_subnet_view::burn_reading::BlockRun;

use super::{Result, Store, query_error};

/// The rao that an account paid into the burn account in one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurnedTransfer {
    /// The block of the transfers.
    pub block: BlockNumber,
    /// The account that paid.
    pub payer: Hotkey,
    /// The sum of its transfers in the block.
    pub amount: Rao,
}

impl Store {
    /// The blocks whose transfers to `account` were read; `None` if none were.
    ///
    /// # Errors
    /// The database fails.
    pub async fn burns_read(&self, account: Hotkey) -> Result<Option<BlockRun>> {
        let row = sqlx::query(
            "SELECT first_block, last_block FROM burn_readings WHERE genesis = $1 AND account = $2",
        )
        .bind(self.chain().genesis)
        .bind(account.to_string())
        .fetch_optional(&self.pool)
        .await
        .map_err(query_error("read how far burns were read"))?;
        row.map(|row| {
            Ok(BlockRun {
                first: BlockNumber(to_unsigned(read_column(&row, "first_block")?)),
                last: BlockNumber(to_unsigned(read_column(&row, "last_block")?)),
            })
        })
        .transpose()
    }

    /// Stores the transfers to `account` of a run of blocks, and that `read` is the run that has been read by now.
    /// Blocks outside of it count as unread again.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put_burns(
        &self,
        account: Hotkey,
        read: BlockRun,
        transfers: &[BurnedTransfer],
        now: Timestamp,
    ) -> Result<()> {
        self.write("write burns", |draft| {
            let genesis = draft.chain.genesis.clone();
            let (first, last) = (to_signed(read.first.0), to_signed(read.last.0));
            draft.script.add(
                "INSERT INTO burn_readings (genesis, account, first_block, last_block) VALUES ($1, $2, $3, $4) \
                 ON CONFLICT (genesis, account) DO UPDATE SET \
                 first_block = excluded.first_block, last_block = excluded.last_block",
                [
                    genesis.as_str().into(),
                    account.to_string().into(),
                    first.into(),
                    last.into(),
                ],
            );
            draft.script.add(
                "DELETE FROM burned_transfers WHERE genesis = $1 AND account = $2 AND (block < $3 OR block > $4)",
                [
                    genesis.as_str().into(),
                    account.to_string().into(),
                    first.into(),
                    last.into(),
                ],
            );
            for transfer in transfers {
                draft.script.add(
                    "INSERT INTO burned_transfers (genesis, account, block, payer, amount, read_at) \
                     VALUES ($1, $2, $3, $4, $5, $6) \
                     ON CONFLICT (genesis, account, block, payer) DO UPDATE SET amount = excluded.amount",
                    [
                        genesis.as_str().into(),
                        account.to_string().into(),
                        to_signed(transfer.block.0).into(),
                        transfer.payer.to_string().into(),
                        to_signed(transfer.amount.0).into(),
                        now.micros().into(),
                    ],
                );
            }
        })
        .await
    }

    /// The transfers to `account` in these blocks, by block and payer.
    ///
    /// # Errors
    /// The database fails.
    pub async fn burns_in(&self, account: Hotkey, blocks: BlockRun) -> Result<Vec<BurnedTransfer>> {
        let rows = sqlx::query(
            "SELECT block, payer, amount FROM burned_transfers WHERE genesis = $1 AND account = $2 \
             AND block >= $3 AND block <= $4 ORDER BY block, payer",
        )
        .bind(self.chain().genesis)
        .bind(account.to_string())
        .bind(to_signed(blocks.first.0))
        .bind(to_signed(blocks.last.0))
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("read the burns of a cycle"))?;
        let burned = |row| {
            Ok(BurnedTransfer {
                block: BlockNumber(to_unsigned(read_column(row, "block")?)),
                payer: parse_column(row, "payer")?,
                amount: Rao(to_unsigned(read_column(row, "amount")?)),
            })
        };
        rows.iter().map(burned).collect()
    }
}

//! The burns of validators: the transfers to the configured account, read from finalised blocks as they come, since
//! most nodes forget a block's state within the hour.

use std::collections::BTreeMap;

use muster_chain::BlockNumber;
use muster_process::error::Causes;
use muster_protocol::{Hotkey, Rao};
use muster_store::StoreError;
use muster_subnet_view::burn_reading::{BlockRun, next_reading, sum_payments};

use super::WeightSetter;
use crate::store::{BurnedTransfer, CycleState};
use muster_subnet_view::cycle_duties::BlockSpan;

/// Pieces that are read at one block of the chain, so that a long reading does not delay what else is due.
const PIECES_AT_ONCE: usize = 8;

/// Blocks between two readings at most.
pub(super) const READ_EVERY: u64 = 16;

impl WeightSetter {
    /// The account into which validators burn; `None` if a second of work has no price.
    pub(super) fn burn_account(&self) -> Option<Hotkey> {
        let config = &self.state.config.scoring;
        config.burn_account.filter(|_| config.burn_per_second > 0)
    }

    /// Reads on the transfers to the burn account through block `head`. A chain that does not show them is asked again
    /// at the next block, and no cycle is scored meanwhile.
    pub(super) async fn read_burns(&self, span: BlockSpan, head: BlockNumber) -> Result<(), StoreError> {
        let Some(account) = self.burn_account() else {
            return Ok(());
        };
        let needed = self.scored_runs(span).await?;
        let first = needed.iter().map(|run| run.first).min().unwrap_or(span.first);
        for _ in 0..PIECES_AT_ONCE {
            let read = self.state.store.burns_read(account).await?;
            let Some(piece) = next_reading(read, first, head) else {
                return Ok(());
            };
            let through = piece.run.last;
            let transfers = match self
                .state
                .subnet
                .chain()
                .transfers_after(piece.after, through, &account)
                .await
            {
                Ok(transfers) => transfers,
                Err(error) => {
                    tracing::warn!(%account, after = %piece.after, error = %Causes(&error), "the burns of validators cannot be read; cycles wait for them");
                    return Ok(());
                }
            };
            let payments = sum_payments(&transfers, &account).into_iter();
            let burned: Vec<_> = payments
                .map(|((block, payer), rao)| BurnedTransfer {
                    block,
                    payer,
                    amount: Rao(rao),
                })
                .collect();
            let now = self.state.clock.now();
            self.state
                .store
                .put_burns(account, piece.run, &burned, now)
                .await?;
        }
        Ok(())
    }

    /// The rao that each account has burned in the blocks that are scored with a span; `None` while some of these
    /// blocks are not read. Without a price nothing is burned.
    pub(super) async fn burned_in(
        &self,
        span: BlockSpan,
    ) -> Result<Option<BTreeMap<Hotkey, u64>>, StoreError> {
        let mut paid = BTreeMap::<Hotkey, u64>::new();
        let Some(account) = self.burn_account() else {
            return Ok(Some(paid));
        };
        let store = &self.state.store;
        let Some(read) = store.burns_read(account).await? else {
            return Ok(None);
        };
        for run in self.scored_runs(span).await? {
            if !read.holds(run) {
                return Ok(None);
            }
            for transfer in store.burns_in(account, run).await? {
                let sum = paid.entry(transfer.payer).or_default();
                *sum = sum.saturating_add(transfer.amount.0);
            }
        }
        Ok(Some(paid))
    }

    /// The blocks whose work is scored with a span: its own, and those of cycles whose weights were lost. The chain's
    /// first block holds no transfer.
    async fn scored_runs(&self, span: BlockSpan) -> Result<Vec<BlockRun>, StoreError> {
        let run = |first: BlockNumber, last: BlockNumber| BlockRun {
            first: first.max(BlockNumber(1)),
            last: last.max(BlockNumber(1)),
        };
        let mut runs = vec![run(span.first, span.last)];
        for lost in self.state.store.cycles_in(CycleState::Expired).await? {
            if lost.last_block < span.first.0 {
                runs.push(run(BlockNumber(lost.first_block), BlockNumber(lost.last_block)));
            }
        }
        Ok(runs)
    }
}

//! The loop over the chain's finalised blocks, and what is due at each of them.

use futures_util::StreamExt;
use muster_chain::weights_window::Window;
use muster_chain::{BlockNumber, ChainError};
use muster_process::backoff::{Backoff, random_jitter};
use muster_process::error::Causes;
use muster_store::StoreError;

use super::burns::READ_EVERY;
use super::chain_snapshot::ChainSnapshot;
use super::epochs::restore_allowance;
use super::{AdvanceError, BlockTimes, WeightSetter};
use crate::Error;
use crate::chain::Blocks;
use crate::store::{CycleState, StoredCycle};
use muster_subnet_view::cycle_duties::{CycleAction, CycleProgress, next_action, span_to_score};

impl WeightSetter {
    /// Follows the chain until the validator stops.
    pub(crate) async fn run(self) -> Result<(), StoreError> {
        let stop = self.state.tasks.token();
        tokio::select! {
            () = stop.cancelled() => Ok(()),
            followed = self.follow() => followed,
        }
    }

    async fn follow(&self) -> Result<(), StoreError> {
        let mut failures = 0;
        let mut next_block = BlockNumber(0);
        loop {
            match self.subscribe().await {
                Ok(mut blocks) => loop {
                    match blocks.next().await {
                        Some(Ok(block)) => {
                            failures = 0;
                            self.state.subnet.note_block(block);
                            if block >= next_block {
                                next_block = self.on_block(block).await?;
                            }
                        }
                        Some(Err(error)) => {
                            self.state
                                .subnet
                                .note_failure(&error, "the connection to the chain was lost; weights wait");
                            break;
                        }
                        None => break,
                    }
                },
                Err(AdvanceError::Store(error)) => return Err(error),
                Err(AdvanceError::Chain(error @ ChainError::Address { .. })) => {
                    self.state.fail(Error::Chain(error));
                    return Ok(());
                }
                Err(AdvanceError::Chain(error)) => self.state.subnet.note_failure(
                    &error,
                    "the chain does not answer; open jobs go on, new ones and weights wait",
                ),
            }
            self.state
                .clock
                .sleep(Backoff::PEERS.delay(failures, random_jitter()))
                .await;
            failures = failures.saturating_add(1);
        }
    }

    /// The chain's blocks. Before the first of them is noted, the store learns which chain it is.
    async fn subscribe(&self) -> Result<Blocks, AdvanceError> {
        let subnet = self.state.subnet.chain();
        if self.state.subnet.head().is_none() {
            let genesis = subnet.genesis().await?;
            let metagraph = subnet.metagraph().await?;
            let now = self.state.clock.now();
            self.state
                .store
                .note_chain(&genesis, metagraph.block, now)
                .await?;
            tracing::info!(genesis, block = %metagraph.block, "the chain answers");
            let head = metagraph.block;
            self.state.subnet.note_first_metagraph(metagraph).await;
            // No job waits for this: an empty book names no blocks.
            restore_allowance(&self.state, head).await?;
        }
        Ok(subnet.blocks().await?)
    }

    /// Does what is due at a block; returns the next block at which something may be due.
    async fn on_block(&self, block: BlockNumber) -> Result<BlockNumber, StoreError> {
        // After a failure the next block is the time of the next try.
        let next = BlockNumber(block.0.saturating_add(1));
        match self.advance(block).await {
            Ok(Some(then)) => Ok(self.read_again_by(block, then).max(next)),
            Ok(None) => Ok(next),
            Err(AdvanceError::Store(error)) => Err(error),
            Err(AdvanceError::Chain(error)) => {
                tracing::warn!(%block, error = %Causes(&error), "the scoring cycle waits for the chain");
                Ok(next)
            }
        }
    }

    /// The next block at which something is due: the transfers of blocks have to be read before nodes forget them.
    fn read_again_by(&self, block: BlockNumber, then: BlockNumber) -> BlockNumber {
        match self.burn_account() {
            Some(_) => then.min(BlockNumber(block.0.saturating_add(READ_EVERY))),
            None => then,
        }
    }

    /// Advances the cycle at a block. Returns the block before which nothing more is due, or `None` if that may be the
    /// next one.
    async fn advance(&self, block: BlockNumber) -> Result<Option<BlockNumber>, AdvanceError> {
        let subnet = self.state.subnet.chain();
        let metagraph = subnet.metagraph().await?;
        let chain = ChainSnapshot {
            block,
            window: Window::at(metagraph.tempo, metagraph.last_epoch, block),
            rules: subnet.weight_rules().await?,
            last_set: metagraph
                .find(&self.state.keypair.hotkey())
                .map(|own| own.last_update),
            metagraph,
        };
        if let Some(schedule) = &chain.rules.schedule {
            self.gate.set_block_times(BlockTimes {
                block: schedule.block,
                time_ms: schedule.time_ms,
                block_ms: schedule.block_ms,
            });
        }
        self.record_epoch(&chain).await?;
        self.gate.set_cycle(chain.window.cycle);
        let waits_for_reveal = self.check_reveals(&chain).await?;
        let settled = self.state.store.settled_through().await?;
        let Some(span) = span_to_score(&chain.window, settled) else {
            return Ok(Some(chain.window.end));
        };
        self.settle_missed_windows(&chain, span).await?;
        self.read_burns(span, block).await?;
        let stored = self.state.store.cycle(span.last).await?;
        let progress = stored.as_ref().map_or(CycleProgress::Untouched, progress_of);
        let limit = chain.rules.hyperparameters.weights_rate_limit;
        match (
            next_action(&chain.window, block, chain.last_set, limit, progress),
            stored,
        ) {
            (CycleAction::Wait(then), _) => Ok(Some(then).filter(|_| !waits_for_reveal)),
            (CycleAction::Confirm, Some(cycle)) => {
                if let Some(set) = chain.last_set {
                    self.confirm(&chain, cycle, set).await?;
                }
                Ok(None)
            }
            (CycleAction::Score, _) => {
                let Some(burned) = self.burned_in(span).await? else {
                    tracing::warn!(cycle = %span.cycle, "the cycle is scored once the burns of its blocks are read");
                    return Ok(None);
                };
                let scored = self.score_cycle(span, &chain, &burned).await?;
                if let Some(cycle) = scored.filter(|cycle| cycle.state == CycleState::Pending) {
                    self.submit_weights(cycle, &chain).await?;
                }
                Ok(None)
            }
            (CycleAction::Send, Some(cycle)) => {
                self.submit_weights(cycle, &chain).await?;
                Ok(None)
            }
            (CycleAction::Again, Some(cycle)) => {
                let cycle = self.reopen(&chain, cycle).await?;
                self.submit_weights(cycle, &chain).await?;
                Ok(None)
            }
            (CycleAction::Confirm | CycleAction::Send | CycleAction::Again, None) => Ok(None),
        }
    }
}

/// The progress that a stored cycle means.
fn progress_of(cycle: &StoredCycle) -> CycleProgress {
    match cycle.state {
        CycleState::Pending => CycleProgress::Pending {
            on_its_way: cycle.on_its_way.map(BlockNumber),
        },
        CycleState::Committed | CycleState::Set => CycleProgress::Sent(BlockNumber(cycle.at_block)),
        CycleState::Kept | CycleState::Expired | CycleState::Missed => CycleProgress::Settled,
    }
}

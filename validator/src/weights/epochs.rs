//! Records the subnet at the first block of each epoch: the stakes, by which the blocks that receipts name are worth
//! something, and the capacity that was agreed on.

use std::collections::HashSet;

use muster_chain::{BlockNumber, Metagraph, TimedSubnet};
use muster_process::error::Causes;
use muster_protocol::ValidatorKey;
use muster_protocol::job::MAX_JOB_SECS;
use muster_scoring::{
    AllowanceBook, AllowanceInputs, CapacityInputs, EpochFacts, GradedExecutors, LOOKBACK_BLOCKS,
    PaidReceipt, ProvenExecutors, ScoringSnapshot, SpentBlocks, proven_executors,
};
use muster_store::StoreError;

use super::chain_snapshot::ChainSnapshot;
use super::{BlockTimes, WeightSetter};
use crate::validator_state::ValidatorState;
use muster_subnet_view::cycle_duties::{BlockSpan, span_to_score};

impl WeightSetter {
    /// Records the epoch that holds the head, unless it is recorded.
    pub(super) async fn record_epoch(&self, chain: &ChainSnapshot) -> Result<(), StoreError> {
        let first = BlockNumber(chain.window.cycle.0);
        if self.state.allowance.lock().knows(first.0) {
            return self.restore_proven(chain).await;
        }
        let subnet = match self.state.subnet.chain().subnet_at(first).await {
            Ok(Some(subnet)) => subnet,
            Ok(None) => return Ok(()),
            Err(error) => {
                // The stakes of this epoch stay unknown if no endpoint keeps the state of its first block any more.
                tracing::debug!(block = %first, error = %Causes(&error), "the stakes at the begin of an epoch cannot be read");
                return Ok(());
            }
        };
        let mut facts = epoch_facts(first, &subnet);
        self.note_epoch(&facts).await?;
        let settled = self.state.store.settled_through().await?;
        if let Some(span) = span_to_score(&chain.window, settled) {
            let netuid = chain.metagraph.netuid.0;
            self.state_capacity(span, netuid).await?;
            // The others' statements are not known yet.
            let inputs = self.capacity_votes(span, netuid).await?;
            facts.proven = self.note_proven(span, inputs.as_ref());
            self.note_epoch(&facts).await?;
        }
        tracing::info!(block = %first, permitted = facts.permitted.len(), proven = facts.proven.len(), "epoch recorded");
        Ok(())
    }

    /// Looks up the executors that count in the present cycle, after a restart within it.
    async fn restore_proven(&self, chain: &ChainSnapshot) -> Result<(), StoreError> {
        if self.state.knows_proven() {
            return Ok(());
        }
        let settled = self.state.store.settled_through().await?;
        if let Some(span) = span_to_score(&chain.window, settled) {
            let inputs = self.capacity_votes(span, chain.metagraph.netuid.0).await?;
            self.note_proven(span, inputs.as_ref());
        }
        Ok(())
    }

    /// Notes the capacity that counts in a cycle that is scored: later cycles value the blocks of its epoch by it.
    pub(super) async fn agree_on_epoch(
        &self,
        span: BlockSpan,
        snapshot: &ScoringSnapshot,
    ) -> Result<(), StoreError> {
        let first = span.cycle.0;
        let epochs = self.state.store.epochs_between(first, first).await?;
        let (Some(epoch), Some(inputs)) = (epochs.last(), &snapshot.capacity) else {
            return Ok(());
        };
        if epoch.first_block != first {
            return Ok(());
        }
        let proven = self.note_proven(span, Some(inputs));
        let epoch = EpochFacts {
            proven,
            ..epoch.clone()
        };
        self.note_epoch(&epoch).await
    }

    /// Notes the executors that count in the cycle of a span, so that no more jobs are given than they have room for.
    fn note_proven(&self, span: BlockSpan, inputs: Option<&CapacityInputs>) -> Vec<ProvenExecutors> {
        let (me, cycle) = (self.state.key(), span.cycle.0);
        let graded = inputs.map(|inputs| GradedExecutors::agree(inputs, me, cycle));
        self.state.set_proven(graded.unwrap_or_default());
        *self.state.stakes.lock() = inputs.map(|inputs| inputs.stakes.clone()).unwrap_or_default();
        inputs.map_or_else(Vec::new, |inputs| proven_executors(inputs, me, cycle))
    }

    /// Stores an epoch, and values this validator's own blocks by it.
    pub(super) async fn note_epoch(&self, facts: &EpochFacts) -> Result<(), StoreError> {
        self.state.store.put_epoch(facts).await?;
        let mut book = self.state.allowance.lock();
        book.note_epoch(facts);
        book.forget_before(oldest_block(facts.first_block, facts.block_ms));
        Ok(())
    }

    /// The stakes by which the receipts of a cycle are checked; `None` while fewer than two epochs are recorded.
    pub(super) async fn allowance_inputs(
        &self,
        span: BlockSpan,
        receipts: &[PaidReceipt],
        spent: Vec<SpentBlocks>,
    ) -> Result<Option<AllowanceInputs>, StoreError> {
        let first = match self.gate.block_times() {
            Some(times) => oldest_named(receipts, times).min(span.first),
            None => span.first,
        };
        let first = first.0.saturating_sub(LOOKBACK_BLOCKS);
        let mut epochs = self.state.store.epochs_between(first, span.last.0).await?;
        if epochs.len() < 2 {
            return Ok(None);
        }
        // Of the proven executors, only those matter whose attempts are paid.
        let paid: HashSet<_> = receipts
            .iter()
            .filter_map(|paid| Some((paid.receipt.miner_hotkey, paid.class?)))
            .collect();
        for epoch in &mut epochs {
            epoch
                .proven
                .retain(|proven| paid.contains(&(proven.miner, proven.class)));
        }
        Ok(Some(AllowanceInputs { epochs, spent }))
    }
}

/// Fills the book of this validator's own allowance from the store.
pub(super) async fn restore_allowance(state: &ValidatorState, head: BlockNumber) -> Result<(), StoreError> {
    let epochs = state.store.epochs_between(0, head.0).await?;
    let block_ms = epochs.last().map_or(u64::MAX, |epoch| epoch.block_ms);
    let named = state
        .store
        .blocks_named_since(BlockNumber(oldest_block(head.0, block_ms)))
        .await?;
    let mut book = AllowanceBook::new(state.key());
    for facts in &epochs {
        book.note_epoch(facts);
    }
    for named in &named {
        book.note_named(named.miner, named.class, &named.blocks);
    }
    *state.allowance.lock() = book;
    Ok(())
}

/// The oldest block that a receipt of the longest attempt may name at `head`.
fn oldest_block(head: u64, block_ms: u64) -> u64 {
    let longest = (MAX_JOB_SECS * 1_000) / block_ms.max(1);
    head.saturating_sub(LOOKBACK_BLOCKS.saturating_add(longest))
}

/// The head when the first of these attempts began.
fn oldest_named(receipts: &[PaidReceipt], times: BlockTimes) -> BlockNumber {
    let began = receipts
        .iter()
        .map(|paid| times.block_at(paid.receipt.time_started));
    began.min().unwrap_or(times.block)
}

fn epoch_facts(first: BlockNumber, subnet: &TimedSubnet) -> EpochFacts {
    EpochFacts {
        first_block: first.0,
        first_ms: subnet.pace.time_ms,
        block_ms: subnet.pace.block_ms,
        permitted: stakes(&subnet.metagraph).collect(),
        proven: Vec::new(),
    }
}

/// The stakes of everybody with a permit.
fn stakes(metagraph: &Metagraph) -> impl Iterator<Item = (ValidatorKey, u64)> {
    let permitted = metagraph.neurons.iter().filter(|neuron| neuron.permit);
    permitted.map(|neuron| (ValidatorKey(neuron.hotkey), neuron.stake))
}

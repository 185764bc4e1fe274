//! Scores a cycle: the receipts, sessions and proven executors of its blocks become scores and weights.

use muster_chain::{BlockNumber, Metagraph, Uid};
use muster_grading::batch_settlement::Capacity;
use muster_protocol::ValidatorKey;
use muster_scoring::{
    Neuron, PaidReceipt, ProvenExecutors, ScoringSnapshot, StreamedSession, score_and_weigh,
};
use muster_store::StoreError;

use super::WeightSetter;
use super::block_loop::ChainSnapshot;
use super::cycle::BlockSpan;
use crate::config::{BATCHES_BACK, ScoringConfig};
use crate::store::{CycleState, StoredCycle};

impl WeightSetter {
    /// Scores the work of a span of blocks and stores the cycle. The cycle is pending if it has weights to set.
    pub(super) async fn score_cycle(
        &self,
        span: BlockSpan,
        chain: &ChainSnapshot,
    ) -> Result<StoredCycle, StoreError> {
        let _gate = self.gate.lock().await;
        let store = &self.state.store;
        let mut receipts = store.finished_between(span.first, span.last).await?;
        let mut streamed = store.streamed_between(span.first, span.last).await?;
        // The work of lost commits is scored again, if later work was settled already.
        for lost in store.cycles_in(CycleState::Expired).await? {
            if lost.last_block < span.first.0 {
                let (first, last) = (BlockNumber(lost.first_block), BlockNumber(lost.last_block));
                receipts.extend(store.finished_between(first, last).await?);
                streamed.extend(store.streamed_between(first, last).await?);
            }
        }
        let (count, sessions) = (receipts.len(), streamed.len());
        let back = self
            .state
            .config
            .grading
            .every_blocks
            .saturating_mul(BATCHES_BACK);
        let first_batch = span.first.0.saturating_sub(back);
        let proven = self
            .grading
            .store()
            .capacities_between(first_batch, span.last.0)
            .await?;
        let work = CycleWork {
            receipts,
            streamed,
            proven,
        };
        let snapshot = take_snapshot(
            self.state.key(),
            &chain.metagraph,
            &self.state.config.scoring,
            work,
        );
        let min_entries = chain.rules.hyperparameters.min_allowed_weights;
        let (scores, weights) = score_and_weigh(&snapshot, min_entries);
        for (attempt, reason) in &scores.dropped {
            tracing::debug!(%attempt, %reason, "a receipt or a session does not count");
        }
        for faulty in &scores.faults {
            let (attempt, miner, unproven) = (&faulty.attempt, &faulty.miner, faulty.unproven);
            tracing::warn!(%attempt, %miner, unproven, fault = ?faulty.fault, "answers of a session are not proven and pay nothing");
        }
        let state = if weights.is_empty() {
            CycleState::Kept
        } else {
            CycleState::Pending
        };
        tracing::info!(cycle = %span.cycle, receipts = count, sessions, miners = scores.scores.len(), ?state, "cycle scored");
        let cycle = StoredCycle {
            number: span.cycle.0,
            first_block: span.first.0,
            last_block: span.last.0,
            state,
            scores,
            weights: to_numbers(&weights),
            reveal: None,
            error: None,
            at_block: chain.block.0,
            changed_at: self.state.clock.now(),
        };
        store.begin_cycle(&cycle).await?;
        Ok(cycle)
    }
}

/// The paid work of a cycle.
struct CycleWork {
    /// Finished receipts, of all validators.
    receipts: Vec<PaidReceipt>,
    /// Sealed sessions of this validator's own gateway.
    streamed: Vec<StreamedSession>,
    /// The executors that each miner's last batch proved.
    proven: Vec<Capacity>,
}

/// Everything that the scores of this work depend on. Receipts of every validator with a permit in the subnet count.
fn take_snapshot(
    own_key: ValidatorKey,
    metagraph: &Metagraph,
    config: &ScoringConfig,
    work: CycleWork,
) -> ScoringSnapshot {
    let permitted = metagraph.neurons.iter().filter(|neuron| neuron.permit);
    let proven = work.proven.iter().map(|capacity| ProvenExecutors {
        miner: capacity.miner,
        class: capacity.class,
        executors: capacity.proven.saturating_add(capacity.excused),
    });
    ScoringSnapshot {
        me: own_key,
        validators: permitted.map(|neuron| ValidatorKey(neuron.hotkey)).collect(),
        neurons: scored_neurons(metagraph),
        class_weights: config.class_weights.clone(),
        receipts: work.receipts,
        streaming_weight: config.streaming_weight,
        streamed: work.streamed,
        proven: proven.collect(),
        capacity_percent: config.capacity_percent,
    }
}

/// The neurons of a subnet, as far as scoring needs them.
pub(super) fn scored_neurons(metagraph: &Metagraph) -> Vec<Neuron> {
    let neuron = |neuron: &muster_chain::Neuron| Neuron {
        uid: neuron.uid,
        hotkey: neuron.hotkey,
        coldkey: neuron.coldkey,
    };
    metagraph.neurons.iter().map(neuron).collect()
}

/// The weights as the store keeps them.
pub(super) fn to_numbers(weights: &[(Uid, u16)]) -> Vec<(u16, u16)> {
    weights.iter().map(|(uid, weight)| (uid.0, *weight)).collect()
}

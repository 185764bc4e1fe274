//! Scores a cycle: the receipts, sessions and proven executors of its blocks become a snapshot, and the snapshot
//! becomes scores and weights.

use muster_chain::{BlockNumber, Metagraph, Uid};
use muster_protocol::ValidatorKey;
use muster_scoring::{
    DeferredWork, Neuron, PaidReceipt, PastCycle, PastPoints, SNAPSHOT_FORMAT, Score, ScoredSpan,
    ScoringRules, ScoringSnapshot, StreamedSession, VESTING_CYCLES, score_cycle, unspend,
};
use muster_store::StoreError;

use super::WeightSetter;
use super::block_loop::ChainSnapshot;
use super::cycle::BlockSpan;
use crate::config::ScoringConfig;
use crate::store::{CycleState, StoredCycle};

/// The duration of a block where the chain does not tell it, in milliseconds: Bittensor's.
const BLOCK_MS: u64 = 12_000;

impl WeightSetter {
    /// Scores the work of a span of blocks and stores the cycle with its snapshot. The cycle is pending if it has
    /// weights to set.
    pub(super) async fn score_cycle(
        &self,
        span: BlockSpan,
        chain: &ChainSnapshot,
    ) -> Result<StoredCycle, StoreError> {
        let _gate = self.gate.lock().await;
        let snapshot = self.take_snapshot(span, chain).await?;
        self.agree_on_epoch(span, &snapshot).await?;
        let (count, sessions) = (snapshot.receipts.len(), snapshot.streamed.len());
        // A cycle may hold a million receipts, which takes too long for a thread that serves sockets.
        let scoring = tokio::task::spawn_blocking(move || {
            let text = snapshot.to_text();
            let digest = ScoringSnapshot::digest_of(&text);
            (score_cycle(&snapshot), text, digest)
        });
        let ((scores, weights), text, digest) = match scoring.await {
            Ok(scored) => scored,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The process stops, and this task with it.
                Err(_) => std::future::pending().await,
            },
        };
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
        tracing::info!(cycle = %span.cycle, snapshot = %digest, receipts = count, sessions, miners = scores.scores.len(), ?state, "cycle scored");
        let cycle = StoredCycle {
            number: span.cycle.0,
            first_block: span.first.0,
            last_block: span.last.0,
            state,
            scores,
            weights: to_numbers(&weights),
            reveal: None,
            error: None,
            snapshot: Some(digest),
            at_block: chain.block.0,
            changed_at: self.state.clock.now(),
        };
        self.state.store.begin_cycle(&cycle, &text).await?;
        Ok(cycle)
    }

    /// Everything that the scores of a span of blocks depend on.
    async fn take_snapshot(
        &self,
        span: BlockSpan,
        chain: &ChainSnapshot,
    ) -> Result<ScoringSnapshot, StoreError> {
        let store = &self.state.store;
        let mut work = CycleWork {
            receipts: store.finished_between(span.first, span.last).await?,
            streamed: store.streamed_between(span.first, span.last).await?,
            first: span.first,
            blocks: block_count(span.first, span.last),
        };
        let mut again = Vec::new();
        // The work of lost commits is scored again, if later work was settled already.
        for lost in store.cycles_in(CycleState::Expired).await? {
            if lost.last_block < span.first.0 {
                let (first, last) = (BlockNumber(lost.first_block), BlockNumber(lost.last_block));
                again.extend(store.finished_between(first, last).await?);
                work.streamed.extend(store.streamed_between(first, last).await?);
                work.first = work.first.min(first);
                work.blocks = work.blocks.saturating_add(block_count(first, last));
            }
        }
        let before = store
            .settled_before(span.first, VESTING_CYCLES.saturating_sub(1))
            .await?;
        let spent = before.first().map(|cycle| unspend(&cycle.scores.spent, &again));
        work.receipts.extend(again);
        let spent = spent.unwrap_or_default();
        let allowance = self.allowance_inputs(span, &work.receipts, spent).await?;
        let capacity = self.capacity_inputs(span, chain.metagraph.netuid.0).await?;
        let me = self.state.key();
        let config = &self.state.config.scoring;
        Ok(ScoringSnapshot {
            format: SNAPSHOT_FORMAT.to_owned(),
            genesis: store.genesis(),
            netuid: chain.metagraph.netuid.0,
            span: self.scored_span(span, &work, chain),
            me,
            neurons: scored_neurons(&chain.metagraph),
            validators: permitted(&chain.metagraph).collect(),
            rules: scoring_rules(config, chain.rules.hyperparameters.min_allowed_weights),
            receipts: work.receipts,
            streamed: work.streamed,
            capacity,
            allowance,
            history: before.iter().map(past_cycle).collect(),
            convictions: Vec::new(),
            quality: Vec::new(),
            main_hotkeys: Vec::new(),
            deferred: before.first().map(deferred_by).unwrap_or_default(),
            burned: [].into(),
        })
    }

    fn scored_span(&self, span: BlockSpan, work: &CycleWork, chain: &ChainSnapshot) -> ScoredSpan {
        let times = self.gate.block_times();
        let block_ms = times.map_or(BLOCK_MS, |times| times.block_ms);
        let cycle = chain.window.end.0.saturating_sub(chain.window.cycle.0);
        let earliest = BlockNumber(work.first.0.saturating_sub(cycle));
        ScoredSpan {
            cycle: span.cycle.0,
            first_block: span.first.0,
            last_block: span.last.0,
            duration_ms: work.blocks.saturating_mul(block_ms),
            earliest: times.map(|times| times.time_of(earliest)),
        }
    }
}

/// The paid work of a cycle, and the blocks in which it was paid.
struct CycleWork {
    /// Finished receipts, of all validators.
    receipts: Vec<PaidReceipt>,
    /// Sealed sessions of this validator's own gateway.
    streamed: Vec<StreamedSession>,
    /// The first block.
    first: BlockNumber,
    /// The number of blocks.
    blocks: u64,
}

fn block_count(first: BlockNumber, last: BlockNumber) -> u64 {
    last.0.saturating_sub(first.0).saturating_add(1)
}

fn permitted(metagraph: &Metagraph) -> impl Iterator<Item = ValidatorKey> {
    let permitted = metagraph.neurons.iter().filter(|neuron| neuron.permit);
    permitted.map(|neuron| ValidatorKey(neuron.hotkey))
}

fn scoring_rules(config: &ScoringConfig, min_entries: u16) -> ScoringRules {
    ScoringRules {
        class_weights: config.class_weights.clone(),
        streaming_weight: config.streaming_weight,
        capacity_per_mille: u16::from(config.capacity_percent).saturating_mul(10),
        burn_per_second: config.burn_per_second,
        burn_hotkey: config.burn_hotkey,
        bonus_per_mille: 0,
        min_entries,
    }
}

/// The points of an earlier cycle. A cycle of an earlier release, whose points were paid at once, has none.
fn past_cycle(cycle: &StoredCycle) -> PastCycle {
    let row = |score: &Score| {
        let coldkey = score.coldkey?;
        let neuron = Neuron {
            uid: score.uid,
            hotkey: score.miner.0,
            coldkey,
            registered: score.registered,
        };
        let points = score.points;
        (points > 0).then_some(PastPoints { neuron, points })
    };
    PastCycle {
        cycle: cycle.number,
        rows: cycle.scores.scores.iter().filter_map(row).collect(),
    }
}

fn deferred_by(cycle: &StoredCycle) -> Vec<DeferredWork> {
    cycle.scores.deferred.clone()
}

/// The neurons of a subnet, as far as scoring needs them.
pub(super) fn scored_neurons(metagraph: &Metagraph) -> Vec<Neuron> {
    let neuron = |neuron: &muster_chain::Neuron| Neuron {
        uid: neuron.uid,
        hotkey: neuron.hotkey,
        coldkey: neuron.coldkey,
        registered: neuron.registered.0,
    };
    metagraph.neurons.iter().map(neuron).collect()
}

/// The weights as the store keeps them.
pub(super) fn to_numbers(weights: &[(Uid, u16)]) -> Vec<(u16, u16)> {
    weights.iter().map(|(uid, weight)| (uid.0, *weight)).collect()
}

//! Scores a cycle: the receipts and proven executors of its blocks become a snapshot, and the snapshot
//! becomes scores and weights.

use std::collections::{BTreeMap, BTreeSet};

use muster_audit_runner::consequences;
use muster_chain::{BlockNumber, Epoch, Metagraph, Uid};
use muster_cross_checks::quality_factors;
use muster_process::error::Causes;
use muster_protocol::{ErrorCode, Hotkey, ValidatorKey};
use muster_receipts::ReceiptTally;
use muster_scoring::{
    DeferredWork, MainHotkey, Neuron, OnchainWeight, PaidReceipt, PastCycle, PastPoints, SNAPSHOT_FORMAT,
    Score, ScoredSpan, ScoringRules, ScoringSnapshot, VESTING_CYCLES, agree_main_hotkeys, credit_burns,
    score_cycle, score_with_attempts, unspend,
};
use muster_store::StoreError;
use muster_verdict_exchange::review_convictions;

use super::capacity_votes::settle_waiting;
use super::chain_snapshot::ChainSnapshot;
use super::{BlockTimes, WeightSetter};
use crate::config::ScoringConfig;
use crate::receipt_bounds::ReceiptBounds;
use crate::store::{CycleState, GatheredFinish, StoredCycle};
use muster_subnet_view::cycle_duties::BlockSpan;

/// Excuses that are settled in one cycle; further ones wait for the next.
const MAX_EXCUSES: usize = 100_000;

impl WeightSetter {
    /// Scores the work of a span of blocks and stores the cycle with its snapshot. The cycle is pending if it has
    /// weights to set. `burned` is the rao that each account has burned in these blocks. `None` if the store refuses a
    /// value of the cycle: then there is no cycle, and a later block is the time of the next try.
    pub(super) async fn score_cycle(
        &self,
        span: BlockSpan,
        chain: &ChainSnapshot,
        burned: &BTreeMap<Hotkey, u64>,
    ) -> Result<Option<StoredCycle>, StoreError> {
        let _gate = self.gate.lock().await;
        let snapshot = self.take_snapshot(span, chain, burned).await?;
        self.agree_on_epoch(span, &snapshot).await?;
        let count = snapshot.receipts.len();
        let waiting = self.grading.store().waiting_excuses(MAX_EXCUSES).await?;
        // A cycle may hold a million receipts, which takes too long for a thread that serves sockets.
        let scoring = tokio::task::spawn_blocking(move || {
            let digest = snapshot.digest();
            let (scores, weights, settled) = if waiting.is_empty() {
                let (scores, weights) = score_cycle(&snapshot);
                (scores, weights, Vec::new())
            } else {
                let (scores, weights, attempts) = score_with_attempts(&snapshot);
                (
                    scores,
                    weights,
                    settle_waiting(waiting, &attempts, snapshot.span.earliest),
                )
            };
            (scores, weights, settled, snapshot, digest)
        });
        let (scores, weights, settled, snapshot, digest) = match scoring.await {
            Ok(scored) => scored,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The process stops, and this task with it.
                Err(_) => std::future::pending().await,
            },
        };
        // A process that ends here settles them again.
        self.grading.store().settle_excuses(&settled).await?;
        for (attempt, reason) in &scores.dropped {
            tracing::debug!(%attempt, %reason, "a receipt does not count");
        }
        let state = if weights.is_empty() {
            CycleState::Kept
        } else {
            CycleState::Pending
        };
        tracing::info!(cycle = %span.cycle, snapshot = %digest, receipts = count, miners = scores.scores.len(), ?state, "cycle scored");
        let error = unburnable(&scores.unburned);
        if state == CycleState::Pending && scores.is_renewal() {
            tracing::warn!(cycle = %span.cycle, "the cycle pays nobody; the earlier weights are set again without neurons that may not keep theirs, whose weights are burned");
        }
        let cycle = StoredCycle {
            number: span.cycle.0,
            first_block: span.first.0,
            last_block: span.last.0,
            state,
            scores,
            weights: to_numbers(&weights),
            reveal: None,
            on_its_way: None,
            error,
            snapshot: Some(digest),
            at_block: chain.block.0,
            changed_at: self.state.clock.now(),
        };
        match self.state.store.begin_cycle(&cycle, snapshot.pieces()).await {
            Ok(_) => Ok(Some(cycle)),
            Err(refused) if refused.is_refused_value() => {
                let code = ErrorCode::WeightsNotSet;
                tracing::error!(%code, cycle = %span.cycle, error = %Causes(&refused), "the store refuses the scores of this cycle, so its weights are not set; the next block is the next try");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Everything that the scores of a span of blocks depend on.
    async fn take_snapshot(
        &self,
        span: BlockSpan,
        chain: &ChainSnapshot,
        burned: &BTreeMap<Hotkey, u64>,
    ) -> Result<ScoringSnapshot, StoreError> {
        let store = &self.state.store;
        let (mut work, again) = self.read_work(span, chain).await?;
        let before = store
            .settled_before(span.first, VESTING_CYCLES.saturating_sub(1))
            .await?;
        let spent = before.first().map(|cycle| unspend(&cycle.scores.spent, &again));
        work.receipts.extend(again);
        let spent = spent.unwrap_or_default();
        let allowance = self.allowance_inputs(span, &work.receipts, spent).await?;
        let capacity = self.capacity_votes(span, chain.metagraph.netuid.0).await?;
        let me = self.state.key();
        let neurons = scored_neurons(&chain.metagraph);
        let validators: BTreeSet<_> = permitted(&chain.metagraph).collect();
        let mut paying = validators.clone();
        paying.insert(me);
        let burned = credit_burns(burned, &neurons, &paying);
        let main_hotkeys = self.main_hotkeys(chain, &neurons).await?;
        review_convictions(store, &chain.metagraph, me, &self.state.clock).await?;
        let (convictions, quality) = consequences(&store.counting_audits().await?);
        let quality = quality_factors(store, quality, &neurons, self.state.clock.now()).await?;
        let config = &self.state.config.scoring;
        Ok(ScoringSnapshot {
            format: SNAPSHOT_FORMAT.to_owned(),
            genesis: store.genesis(),
            netuid: chain.metagraph.netuid.0,
            span: self.scored_span(span, &work, chain),
            me,
            neurons,
            validators,
            rules: scoring_rules(config, chain.rules.hyperparameters.min_allowed_weights),
            receipts: work.receipts,
            capacity,
            allowance,
            history: before.iter().map(past_cycle).collect(),
            convictions,
            quality,
            main_hotkeys,
            deferred: before.first().map(deferred_by).unwrap_or_default(),
            burned,
            standing: before.iter().find_map(onchain_after).unwrap_or_default(),
            owner: chain.rules.owner,
        })
    }

    /// The work of a span of blocks, without that of lost commits, which comes as a list of its own: it is scored again
    /// if later work was settled already. Of others' receipts, those beyond their bounds are left out and counted.
    async fn read_work(
        &self,
        span: BlockSpan,
        chain: &ChainSnapshot,
    ) -> Result<(CycleWork, Vec<PaidReceipt>), StoreError> {
        let store = &self.state.store;
        let expired = store.cycles_in(CycleState::Expired).await?;
        let lost: Vec<_> = expired
            .iter()
            .filter(|lost| lost.last_block < span.first.0)
            .map(|lost| (BlockNumber(lost.first_block), BlockNumber(lost.last_block)))
            .collect();
        let oldest = lost
            .iter()
            .fold(span.first, |oldest, (first, _)| oldest.min(*first));
        let times = self.gate.block_times();
        let bounds = ReceiptBounds::of_scoring(&self.state, &chain.metagraph, times, oldest).await?;
        let (mut tally, mut left_out) = (ReceiptTally::default(), BTreeMap::new());
        let mut admit = |finish: &GatheredFinish| match bounds.admit(&mut tally, finish) {
            Ok(()) => true,
            Err(reason) => {
                let count: &mut u64 = left_out.entry((finish.miner, reason)).or_default();
                *count = count.saturating_add(1);
                false
            }
        };
        let mut work = CycleWork {
            receipts: store.finished_between(span.first, span.last, &mut admit).await?,
            first: oldest,
            blocks: block_count(span.first, span.last),
        };
        let mut again = Vec::new();
        for (first, last) in lost {
            again.extend(store.finished_between(first, last, &mut admit).await?);
            work.blocks = work.blocks.saturating_add(block_count(first, last));
        }
        if !left_out.is_empty() {
            for ((miner, reason), receipts) in &left_out {
                tracing::warn!(cycle = %span.cycle, %miner, %reason, receipts, "the cycle is scored without receipts that are beyond their bounds");
            }
            store.count_left_out(&left_out, self.state.clock.now()).await?;
        }
        Ok((work, again))
    }

    /// The main hotkeys that miners named in the cycle of the window, with those of the cycle before.
    async fn main_hotkeys(
        &self,
        chain: &ChainSnapshot,
        neurons: &[Neuron],
    ) -> Result<Vec<MainHotkey>, StoreError> {
        let (store, window) = (&self.state.store, &chain.window);
        let length = window.end.0.saturating_sub(window.cycle.0);
        let before = Epoch(window.cycle.0.saturating_sub(length));
        let (now, before) = (
            store.main_hotkeys_of(window.cycle).await?,
            store.main_hotkeys_of(before).await?,
        );
        Ok(agree_main_hotkeys(&now, &before, neurons))
    }

    fn scored_span(&self, span: BlockSpan, work: &CycleWork, chain: &ChainSnapshot) -> ScoredSpan {
        let times = self.gate.block_times();
        let block_ms = times.map_or(BlockTimes::USUAL_BLOCK_MS, |times| times.block_ms);
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
        capacity_per_mille: u16::from(config.capacity_percent).saturating_mul(10),
        burn_per_second: config.burn_per_second,
        burn_hotkey: config.burn_hotkey,
        bonus_per_mille: u16::from(config.bonus_percent).saturating_mul(10),
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

/// The weights that the chain has after a settled cycle; `None` if the cycle does not name any.
fn onchain_after(cycle: &StoredCycle) -> Option<Vec<OnchainWeight>> {
    // The weights of its scores were never set if all their miners left before.
    let kept_all = cycle.state == CycleState::Kept && !cycle.scores.is_renewal();
    if kept_all {
        None
    } else {
        cycle.scores.onchain_after()
    }
}

/// The error of a cycle in which weights of these uids are to be burned and nothing burns them; `None` without any.
pub(super) fn unburnable(uids: &[Uid]) -> Option<String> {
    if uids.is_empty() {
        return None;
    }
    let uids: Vec<_> = uids.iter().map(Uid::to_string).collect();
    let uids = uids.join(", ");
    let code = ErrorCode::WeightsNotSet;
    tracing::error!(%code, uids, "weights of neurons that may not keep them are to be burned, and no neuron of the subnet burns: the weights stay on the chain");
    Some(format!(
        "the weights of uids {uids} are to be burned: neither scoring.burn_hotkey nor the subnet's owner has a uid"
    ))
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

//! The loop over the chain's finalised blocks: when a cycle's window opens, score the work before it and set weights.
//!
//! A scored cycle is written down before its weights are sent, so that a restart sends the same weights or learns from
//! the chain that they are there; the chain is never asked twice in one window once it has taken them. Where the subnet
//! wants weights committed first, what reveals them is written down before the commit is handed in. A cycle in which
//! nobody earned anything sets nothing: the weights on the chain stay as they are.

use std::sync::Arc;

use futures_util::StreamExt;
use muster_chain::commit::{Committed, Loss, OnChain, RevealedBy, Salt, Standing, standing};
use muster_chain::window::Window;
use muster_chain::{
    BlockNumber, ChainError, Metagraph, Method, PendingReveal, Refusal, Uid, WeightRules, WeightsCall,
    timelock,
};
use muster_grading::settlement::Capacity;
use muster_process::backoff::{Backoff, random_jitter};
use muster_process::error::Causes;
use muster_process::store::StoreError;
use muster_protocol::{ErrorCode, ValidatorKey};
use muster_scoring::{Neuron, Paid, Proven, Snapshot, Streamed, follow_uids, score_and_weigh, weights_of};

use crate::Error;
use crate::chain::Blocks;
use crate::config::ScoringConfig;
use crate::cycle::{Progress, Span, Todo, scored_in, todo};
use crate::shared::{Anchor, Shared};
use crate::store::{CycleState, StoredCycle};

/// How many times the blocks between two batches a miner's last batch may lie before a cycle and still count in it.
const BATCHES_BACK: u64 = 4;

/// Why a block did not bring the cycle forward.
enum Trouble {
    Chain(ChainError),
    Store(StoreError),
}

impl From<ChainError> for Trouble {
    fn from(error: ChainError) -> Self {
        Self::Chain(error)
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Meets the chain and follows it until the validator stops.
pub(crate) async fn run(shared: Arc<Shared>) -> Result<(), StoreError> {
    let stop = shared.tasks.token();
    tokio::select! {
        () = stop.cancelled() => Ok(()),
        followed = follow(&shared) => followed,
    }
}

async fn follow(shared: &Shared) -> Result<(), StoreError> {
    let mut failures = 0;
    let mut next_look = BlockNumber(0);
    loop {
        match blocks(shared).await {
            Ok(mut blocks) => loop {
                match blocks.next().await {
                    Some(Ok(block)) => {
                        failures = 0;
                        shared.outlook.saw(block);
                        if block >= next_look {
                            next_look = on_block(shared, block).await?;
                        }
                    }
                    Some(Err(error)) => {
                        shared.outlook.lost(&error, "the chain was lost; weights wait");
                        break;
                    }
                    None => break,
                }
            },
            Err(Trouble::Store(error)) => return Err(error),
            Err(Trouble::Chain(error @ ChainError::Address { .. })) => {
                shared.fail(Error::Chain(error));
                return Ok(());
            }
            Err(Trouble::Chain(error)) => shared.outlook.lost(
                &error,
                "the chain does not answer; open jobs go on, new ones and weights wait",
            ),
        }
        shared
            .clock
            .sleep(Backoff::PEERS.delay(failures, random_jitter()))
            .await;
        failures = failures.saturating_add(1);
    }
}

/// The chain's blocks. At first the store learns which chain it is, before any block of it is noted.
async fn blocks(shared: &Shared) -> Result<Blocks, Trouble> {
    let chain = shared.outlook.chain();
    if shared.outlook.head().is_none() {
        let genesis = chain.genesis().await?;
        let metagraph = chain.metagraph().await?;
        let now = shared.clock.now();
        shared.store.for_chain(&genesis, metagraph.block, now).await?;
        tracing::info!(genesis, block = %metagraph.block, "the chain answers");
        shared.outlook.met(metagraph).await;
    }
    Ok(chain.blocks().await?)
}

/// Does what is due; the first block at which to look again.
async fn on_block(shared: &Shared, block: BlockNumber) -> Result<BlockNumber, StoreError> {
    // Whatever stood in the way, the next block is the natural moment for the next try.
    let next = BlockNumber(block.0.saturating_add(1));
    match advance(shared, block).await {
        Ok(Some(then)) => Ok(then.max(next)),
        Ok(None) => Ok(next),
        Err(Trouble::Store(error)) => Err(error),
        Err(Trouble::Chain(error)) => {
            tracing::warn!(%block, error = %Causes(&error), "the scoring cycle waits for the chain");
            Ok(next)
        }
    }
}

/// What a block is decided by, all of it read just now.
struct Look {
    block: BlockNumber,
    metagraph: Metagraph,
    rules: WeightRules,
    window: Window,
    /// The block at which the chain last took weights or a commit of ours.
    last_set: Option<BlockNumber>,
}

async fn advance(shared: &Shared, block: BlockNumber) -> Result<Option<BlockNumber>, Trouble> {
    let chain = shared.outlook.chain();
    let metagraph = chain.metagraph().await?;
    let look = Look {
        block,
        window: Window::at(metagraph.tempo, metagraph.last_epoch, block),
        rules: chain.weight_rules().await?,
        last_set: metagraph.find(&shared.keypair.hotkey()).map(|me| me.last_update),
        metagraph,
    };
    if let Some(schedule) = &look.rules.schedule {
        shared.anchor.send_replace(Some(Anchor {
            block: schedule.block,
            time_ms: schedule.time_ms,
            block_ms: schedule.block_ms,
        }));
    }
    let revealing = reveal_due(shared, &look).await?;
    let settled = shared.store.settled_through().await?;
    let Some(span) = scored_in(&look.window, settled) else {
        return Ok(Some(look.window.end));
    };
    settle_old(shared, &look, span).await?;
    let stored = shared.store.cycle(span.last).await?;
    let progress = stored.as_ref().map_or(Progress::Untouched, |cycle| {
        cycle.state.progress(BlockNumber(cycle.at_block))
    });
    let limit = look.rules.hyperparameters.weights_rate_limit;
    match (todo(&look.window, block, look.last_set, limit, progress), stored) {
        (Todo::Wait(then), _) => Ok(Some(then).filter(|_| !revealing)),
        (Todo::Confirm, Some(cycle)) => {
            if let Some(set) = look.last_set {
                confirm(shared, &look, cycle, set).await?;
            }
            Ok(None)
        }
        (Todo::Score, _) => {
            let cycle = score_cycle(shared, span, &look).await?;
            if cycle.state == CycleState::Pending {
                send(shared, cycle, &look).await?;
            }
            Ok(None)
        }
        (Todo::Send, Some(cycle)) => {
            send(shared, cycle, &look).await?;
            Ok(None)
        }
        (Todo::Again, Some(cycle)) => {
            let cycle = taken_back(shared, &look, cycle).await?;
            send(shared, cycle, &look).await?;
            Ok(None)
        }
        (Todo::Confirm | Todo::Send | Todo::Again, None) => Ok(None),
    }
}

/// Cycles whose window has passed: what the chain took before anyone noted it is noted now, the rest was missed.
async fn settle_old(shared: &Shared, look: &Look, span: Span) -> Result<(), Trouble> {
    let old = shared.store.cycles_in(CycleState::Pending).await?;
    let newest = old.into_iter().rev().find(|cycle| cycle.last_block < span.last.0);
    if let (Some(cycle), Some(set)) = (newest, look.last_set)
        && set.0 >= cycle.at_block
        && set < BlockNumber(look.window.cycle.0)
    {
        // Nothing else sets weights with this key, and each later cycle would have a row of its own.
        confirm(shared, look, cycle, set).await?;
    }
    let missed = shared
        .store
        .miss_cycles_before(span.last, shared.clock.now())
        .await?;
    if missed > 0 {
        let code = ErrorCode::WeightsNotSet;
        tracing::error!(%code, windows = missed, "a window passed before the chain took its weights; its work is scored again in this one");
    }
    Ok(())
}

/// The chain took a pending cycle's weights, or a commit to them, at block `set`; our note of that was lost.
async fn confirm(
    shared: &Shared,
    look: &Look,
    mut cycle: StoredCycle,
    set: BlockNumber,
) -> Result<(), Trouble> {
    cycle.state = CycleState::Set;
    cycle.error = None;
    if let Some(mut reveal) = cycle.reveal.take() {
        let schedule = look.rules.schedule.as_ref();
        reveal.committed = Some(Committed {
            block: set.0,
            epoch: schedule.and_then(|schedule| schedule.epoch_of(set)),
        });
        cycle.reveal = Some(reveal);
        cycle.state = CycleState::Committed;
    }
    note(shared, &cycle, CycleState::Pending, set).await
}

/// The chain showed weights or a commit of this window and shows them no more: its block was taken back.
async fn taken_back(shared: &Shared, look: &Look, mut cycle: StoredCycle) -> Result<StoredCycle, Trouble> {
    let code = ErrorCode::WeightsNotSet;
    tracing::warn!(%code, cycle = cycle.number, "the chain took back the block that held the weights; sending them again");
    let from = cycle.state;
    cycle.state = CycleState::Pending;
    if let Some(reveal) = &mut cycle.reveal {
        reveal.committed = None;
    }
    note(shared, &cycle, from, look.block).await?;
    Ok(cycle)
}

/// Looks after every commit that waits for its reveal; whether there still is one.
async fn reveal_due(shared: &Shared, look: &Look) -> Result<bool, Trouble> {
    let committed = shared.store.cycles_in(CycleState::Committed).await?;
    if committed.is_empty() {
        return Ok(false);
    }
    let shown = shared.outlook.chain().shown().await?;
    let mut waiting = false;
    for cycle in committed {
        waiting |= look_after(shared, look, &shown, cycle).await?;
    }
    Ok(waiting)
}

/// Does what is due about one commit; whether it still waits.
async fn look_after(
    shared: &Shared,
    look: &Look,
    shown: &OnChain,
    mut cycle: StoredCycle,
) -> Result<bool, Trouble> {
    let hash = cycle
        .reveal
        .as_ref()
        .and_then(|reveal| reveal.hash(&shared.keypair.hotkey(), look.metagraph.netuid));
    // A row without what reveals it can only have been written by hand.
    let state = cycle
        .reveal
        .as_ref()
        .map_or(Standing::Lost(Loss::Vanished), |reveal| {
            standing(reveal, hash, shown)
        });
    match state {
        Standing::Wait => return Ok(true),
        Standing::Reveal => return reveal(shared, cycle).await,
        Standing::Revealed => {
            tracing::info!(cycle = cycle.number, weights = ?cycle.weights, "weights revealed");
            cycle.state = CycleState::Set;
            cycle.error = None;
        }
        Standing::Lost(Loss::Vanished) if cycle.number == look.window.cycle.0 => {
            // The window may be open still: what the chain shows of our last weights decides.
            taken_back(shared, look, cycle).await?;
            return Ok(false);
        }
        Standing::Lost(loss) => {
            let code = ErrorCode::WeightsNotSet;
            tracing::error!(%code, cycle = cycle.number, %loss, "committed weights never came to be in force; their work is scored again");
            cycle.state = CycleState::Expired;
            cycle.error = Some(loss.to_string());
        }
    }
    note(shared, &cycle, CycleState::Committed, look.block).await?;
    Ok(false)
}

/// Reveals a salted commit; whether it still waits.
async fn reveal(shared: &Shared, mut cycle: StoredCycle) -> Result<bool, Trouble> {
    let Some(PendingReveal {
        by: RevealedBy::Us { salt },
        version_key,
        ..
    }) = cycle.reveal.clone()
    else {
        return Ok(true);
    };
    let call = WeightsCall::Reveal {
        weights: cycle
            .reveal
            .as_ref()
            .map(PendingReveal::weights)
            .unwrap_or_default(),
        salt,
        version_key,
    };
    match shared.outlook.chain().submit(&call).await {
        Ok(at) => {
            tracing::info!(cycle = cycle.number, weights = ?cycle.weights, "weights revealed");
            cycle.state = CycleState::Set;
            cycle.error = None;
            note(shared, &cycle, CycleState::Committed, BlockNumber(at.block)).await?;
            Ok(false)
        }
        Err(ChainError::Refused {
            refusal: Refusal::RevealTooEarly | Refusal::NotRevealTime,
            ..
        }) => Ok(true),
        Err(error) => {
            let text = Causes(&error).to_string();
            let code = ErrorCode::WeightsNotSet;
            if cycle.error.as_ref() == Some(&text) {
                tracing::debug!(%code, cycle = cycle.number, error = text, "weights not revealed; trying again");
            } else {
                tracing::error!(%code, cycle = cycle.number, error = text, "weights not revealed; trying again while the epoch lasts");
                cycle.error = Some(text);
                let at = BlockNumber(cycle.at_block);
                note(shared, &cycle, CycleState::Committed, at).await?;
            }
            Ok(true)
        }
    }
}

/// Writes down what has become of a cycle that was `from`.
async fn note(
    shared: &Shared,
    cycle: &StoredCycle,
    from: CycleState,
    at: BlockNumber,
) -> Result<(), Trouble> {
    let now = shared.clock.now();
    Ok(shared.store.move_cycle(cycle, from, at, now).await?)
}

async fn score_cycle(shared: &Shared, span: Span, look: &Look) -> Result<StoredCycle, StoreError> {
    let _alone = shared.scoring.lock().await;
    let mut receipts = shared.store.finished_between(span.first, span.last).await?;
    let mut streamed = shared.store.streamed_between(span.first, span.last).await?;
    // Work that was paid for by a commit that was lost, where later work was settled already.
    for lost in shared.store.cycles_in(CycleState::Expired).await? {
        if lost.last_block < span.first.0 {
            let (first, last) = (BlockNumber(lost.first_block), BlockNumber(lost.last_block));
            receipts.extend(shared.store.finished_between(first, last).await?);
            streamed.extend(shared.store.streamed_between(first, last).await?);
        }
    }
    let (count, sessions) = (receipts.len(), streamed.len());
    let proven = match shared.roll_call.get() {
        Some(roll_call) => {
            let back = shared.config.grading.every_blocks.saturating_mul(BATCHES_BACK);
            let first = span.first.0.saturating_sub(back);
            roll_call.book().capacities_between(first, span.last.0).await?
        }
        None => Vec::new(),
    };
    let work = CycleWork {
        receipts,
        streamed,
        proven,
    };
    let snapshot = take_snapshot(shared.me(), &look.metagraph, &shared.config.scoring, work);
    let least = look.rules.hyperparameters.min_allowed_weights;
    let (scores, weights) = score_and_weigh(&snapshot, least);
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
        weights: plain(&weights),
        reveal: None,
        error: None,
        at_block: look.block.0,
        changed_at: shared.clock.now(),
    };
    shared.store.begin_cycle(&cycle).await?;
    Ok(cycle)
}

/// The paid work of a cycle.
struct CycleWork {
    /// Finished receipts, of all validators.
    receipts: Vec<Paid>,
    /// Sealed sessions of this validator's own gateway.
    streamed: Vec<Streamed>,
    /// The executors that each miner's last batch proved.
    proven: Vec<Capacity>,
}

/// Everything that the scores of this work depend on. Receipts of every validator with a permit in the subnet count.
fn take_snapshot(
    me: ValidatorKey,
    metagraph: &Metagraph,
    config: &ScoringConfig,
    work: CycleWork,
) -> Snapshot {
    let permitted = metagraph.neurons.iter().filter(|neuron| neuron.permit);
    let proven = work.proven.iter().map(|capacity| Proven {
        miner: capacity.miner,
        class: capacity.class,
        executors: capacity.proven.saturating_add(capacity.excused),
    });
    Snapshot {
        me,
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
fn scored_neurons(metagraph: &Metagraph) -> Vec<Neuron> {
    let neuron = |neuron: &muster_chain::Neuron| Neuron {
        uid: neuron.uid,
        hotkey: neuron.hotkey,
        coldkey: neuron.coldkey,
    };
    metagraph.neurons.iter().map(neuron).collect()
}

fn plain(weights: &[(Uid, u16)]) -> Vec<(u16, u16)> {
    weights.iter().map(|(uid, weight)| (uid.0, *weight)).collect()
}

/// What is to be handed in for a cycle, and what reveals it. A commit that may be on its way already is made again as it
/// was, so that it is the same commit.
fn prepared(
    shared: &Shared,
    cycle: &StoredCycle,
    weights: Vec<(Uid, u16)>,
    rules: &WeightRules,
) -> Result<(WeightsCall, Option<PendingReveal>), ChainError> {
    let version_key = rules.hyperparameters.weights_version_key;
    let pending = |by| PendingReveal {
        by,
        weights: plain(&weights),
        version_key,
        committed: None,
    };
    match (rules.method(), rules.round(), &rules.beacon) {
        (Method::Plain, _, _) => Ok((WeightsCall::Set { weights, version_key }, None)),
        (Method::Timelocked, Some(round), Some(beacon)) => {
            let payload = timelock::Payload {
                hotkey: shared.keypair.hotkey(),
                weights: weights.clone(),
                version_key,
            };
            let ciphertext = timelock::seal(beacon, round, &payload.encode(), random()?)?;
            let reveal = pending(RevealedBy::Chain { round });
            Ok((WeightsCall::CommitTimelocked { ciphertext, round }, Some(reveal)))
        }
        (Method::Salted | Method::Timelocked, _, _) => {
            let reveal = match &cycle.reveal {
                Some(known)
                    if matches!(known.by, RevealedBy::Us { .. }) && known.weights == plain(&weights) =>
                {
                    known.clone()
                }
                Some(_) | None => pending(RevealedBy::Us {
                    salt: salt(random()?),
                }),
            };
            let hash = reveal.hash(&shared.keypair.hotkey(), shared.config.chain.netuid);
            let call = WeightsCall::Commit {
                hash: hash.unwrap_or_default(),
            };
            Ok((call, Some(reveal)))
        }
    }
}

fn random() -> Result<[u8; 32], ChainError> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|_| ChainError::Timelock(timelock::TimelockError::Randomness))?;
    Ok(seed)
}

fn salt(seed: [u8; 32]) -> Salt {
    let mut salt = Salt::default();
    for (number, pair) in salt.iter_mut().zip(seed.chunks_exact(2)) {
        *number = pair.iter().fold(0, |number, byte| number << 8 | u16::from(*byte));
    }
    salt
}

async fn send(shared: &Shared, mut cycle: StoredCycle, look: &Look) -> Result<(), StoreError> {
    let rules = &look.rules;
    // Since it was scored a uid may have passed to somebody else, who has not earned its weight.
    let neurons = scored_neurons(&look.metagraph);
    let moved = follow_uids(&cycle.scores.scores, &neurons);
    let least = rules.hyperparameters.min_allowed_weights;
    let weights = weights_of(&moved, &neurons, least);
    if moved != cycle.scores.scores {
        tracing::warn!(
            cycle = cycle.number,
            "a miner lost or changed its uid since the cycle was scored; its weight went with it"
        );
    }
    if weights.is_empty() {
        cycle.state = CycleState::Kept;
        let now = shared.clock.now();
        return shared
            .store
            .move_cycle(&cycle, CycleState::Pending, look.block, now)
            .await;
    }
    let sent = match prepared(shared, &cycle, weights.clone(), rules) {
        Ok((call, reveal)) => {
            cycle.weights = plain(&weights);
            cycle.reveal = reveal;
            shared
                .store
                .plan_cycle(cycle.last_block, &cycle.weights, cycle.reveal.as_ref())
                .await?;
            shared.outlook.chain().submit(&call).await
        }
        Err(error) => Err(error),
    };
    let at = match sent {
        Ok(committed) => {
            cycle.error = None;
            cycle.state = match &mut cycle.reveal {
                Some(reveal) => {
                    reveal.committed = Some(committed);
                    tracing::info!(cycle = cycle.number, block = committed.block, "weights committed");
                    CycleState::Committed
                }
                None => {
                    tracing::info!(cycle = cycle.number, weights = ?cycle.weights, "weights set");
                    CycleState::Set
                }
            };
            BlockNumber(committed.block)
        }
        Err(error) => {
            let error = Causes(&error).to_string();
            let code = ErrorCode::WeightsNotSet;
            // The same refusal at every block of a window is said aloud once.
            if cycle.error.as_ref() == Some(&error) {
                tracing::debug!(%code, cycle = cycle.number, error, "weights not set; trying again");
            } else {
                tracing::error!(%code, cycle = cycle.number, error, "weights not set; trying again while the window is open");
            }
            cycle.error = Some(error);
            look.block
        }
    };
    let now = shared.clock.now();
    shared
        .store
        .move_cycle(&cycle, CycleState::Pending, at, now)
        .await
}

//! The loop over the chain's finalised blocks: when a cycle's window opens, score the work before it and set weights.
//!
//! A scored cycle is written down before its weights are sent, so that a restart sends the same weights or learns from
//! the chain that they are there; the chain is never asked twice in one window once it has taken them. A cycle in which
//! nobody earned anything sets nothing: the weights on the chain stay as they are.

use std::sync::Arc;

use futures_util::StreamExt;
use muster_chain::window::Window;
use muster_chain::{BlockNumber, ChainError, Hyperparameters, Metagraph, Uid};
use muster_kit::backoff::{Backoff, random_jitter};
use muster_kit::error::Causes;
use muster_kit::store::StoreError;
use muster_protocol::ErrorCode;

use crate::Error;
use crate::chain::Blocks;
use crate::cycle::{Progress, Span, Todo, scored_in, todo};
use crate::scoring::{score, weights};
use crate::shared::Shared;
use crate::store::{CycleState, StoredCycle};

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

async fn advance(shared: &Shared, block: BlockNumber) -> Result<Option<BlockNumber>, Trouble> {
    let chain = shared.outlook.chain();
    let metagraph = chain.metagraph().await?;
    let rules = chain.hyperparameters().await?;
    let window = Window::at(metagraph.tempo, metagraph.last_epoch, block);
    let settled = shared.store.settled_through().await?;
    let Some(span) = scored_in(&window, settled) else {
        return Ok(Some(window.end));
    };
    let now = shared.clock.now();
    let missed = shared.store.miss_cycles_before(span.last, now).await?;
    if missed > 0 {
        let code = ErrorCode::WeightsNotSet;
        tracing::error!(%code, windows = missed, "a window passed before the chain took its weights; its work is scored again in this one");
    }
    let stored = shared.store.cycle(span.last).await?;
    let progress = stored
        .as_ref()
        .map_or(Progress::Untouched, |cycle| cycle.state.progress());
    let last_set = metagraph.find(&shared.keypair.hotkey()).map(|me| me.last_update);
    match todo(&window, block, last_set, rules.weights_rate_limit, progress) {
        Todo::Wait(then) => Ok(Some(then)),
        Todo::Confirm => {
            shared
                .store
                .note_cycle(span.last.0, CycleState::Set, None, block, now)
                .await?;
            Ok(None)
        }
        Todo::Score => {
            let cycle = score_cycle(shared, span, &metagraph, &rules, block).await?;
            match cycle.state {
                CycleState::Pending => send(shared, &cycle, &rules, block).await?,
                CycleState::Set | CycleState::Kept | CycleState::Missed => {}
            }
            Ok(None)
        }
        Todo::Send => {
            if let Some(cycle) = stored {
                send(shared, &cycle, &rules, block).await?;
            }
            Ok(None)
        }
    }
}

async fn score_cycle(
    shared: &Shared,
    span: Span,
    metagraph: &Metagraph,
    rules: &Hyperparameters,
    block: BlockNumber,
) -> Result<StoredCycle, StoreError> {
    let receipts = shared.store.finished_between(span.first, span.last).await?;
    let scores = score(&receipts, metagraph);
    let weights = weights(&scores.scores, metagraph, rules.min_allowed_weights);
    for (attempt, reason) in &scores.dropped {
        tracing::debug!(%attempt, %reason, "a receipt does not count");
    }
    let state = if weights.is_empty() {
        CycleState::Kept
    } else {
        CycleState::Pending
    };
    tracing::info!(cycle = %span.cycle, receipts = receipts.len(), miners = scores.scores.len(), ?state, "cycle scored");
    let cycle = StoredCycle {
        number: span.cycle.0,
        first_block: span.first.0,
        last_block: span.last.0,
        state,
        scores,
        weights: weights.into_iter().map(|(uid, weight)| (uid.0, weight)).collect(),
        error: None,
        at_block: block.0,
        changed_at: shared.clock.now(),
    };
    shared.store.begin_cycle(&cycle).await?;
    Ok(cycle)
}

async fn send(
    shared: &Shared,
    cycle: &StoredCycle,
    rules: &Hyperparameters,
    block: BlockNumber,
) -> Result<(), StoreError> {
    let weights: Vec<_> = cycle
        .weights
        .iter()
        .map(|(uid, weight)| (Uid(*uid), *weight))
        .collect();
    let sent = shared
        .outlook
        .chain()
        .set_weights(&weights, rules.weights_version_key)
        .await;
    let (state, error) = match sent {
        Ok(()) => {
            tracing::info!(cycle = cycle.number, weights = ?cycle.weights, "weights set");
            (CycleState::Set, None)
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
            (CycleState::Pending, Some(error))
        }
    };
    let now = shared.clock.now();
    shared
        .store
        .note_cycle(cycle.last_block, state, error.as_deref(), block, now)
        .await
}

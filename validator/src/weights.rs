//! Weights: follow the chain's blocks, score the work before a cycle once the cycle's window opens, and set the
//! weights.
//!
//! [`block_loop`] decides at each block what is due, by the rules in [`muster_subnet_view::cycle_duties`];
//! [`score_cycle`] scores a cycle, with the capacity that validators state ([`capacity_votes`], without those that
//! contradict themselves: [`contradictions`]), the stakes that [`epochs`] recorded, and the [`burns`] of validators;
//! [`submission`] submits its weights and looks after commits until they are revealed.
//!
//! A scored cycle is stored before its weights are sent, so that a restart sends the same weights or learns from the
//! chain that they are there. Once the chain has taken the weights of a window, it is not asked again in that window.
//! Where the subnet wants weights committed first, the secret that reveals them is stored before the commit is
//! submitted. A cycle in which no miner earned anything sets nothing, unless there is a burn hotkey: the weights on the
//! chain stay as they are. Only weights of neurons that may not keep theirs are burned in it, by setting the others
//! again.

mod block_loop;
mod burns;
mod capacity_votes;
mod chain_snapshot;
mod contradictions;
mod epochs;
mod score_cycle;
mod submission;

use std::sync::Arc;

use muster_chain::ChainError;
use muster_grading_runner::GradingRunner;
use muster_store::StoreError;

pub(crate) use muster_subnet_view::{BlockTimes, ScoringGate};

use crate::validator_state::ValidatorState;

/// Scores cycles and sets their weights.
pub(crate) struct WeightSetter {
    pub(crate) state: Arc<ValidatorState>,
    pub(crate) grading: GradingRunner,
    pub(crate) gate: Arc<ScoringGate>,
}

/// Why a cycle did not advance at a block.
enum AdvanceError {
    Chain(ChainError),
    Store(StoreError),
}

impl From<ChainError> for AdvanceError {
    fn from(error: ChainError) -> Self {
        Self::Chain(error)
    }
}

impl From<StoreError> for AdvanceError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

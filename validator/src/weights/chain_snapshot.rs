//! The chain's state at one block.

use muster_chain::weights_window::Window;
use muster_chain::{BlockNumber, Metagraph, WeightRules};

/// The chain's state at one block, on which all decisions at that block rest.
pub(super) struct ChainSnapshot {
    pub(super) block: BlockNumber,
    pub(super) metagraph: Metagraph,
    pub(super) rules: WeightRules,
    pub(super) window: Window,
    /// The block at which the chain last took weights or a commit of this validator's.
    pub(super) last_set: Option<BlockNumber>,
}

//! A validator's view of its subnet.
//!
//! [`Chain`] is the chain as a validator uses it, and [`Subnet`] its one real implementation. [`SubnetView`] keeps the
//! last good reading. [`BlockTimes`] converts times to blocks, [`ScoringGate`] gives them to those who place receipts,
//! and [`cycle_duties`] decides which blocks are scored together and what is due about their weights at a block;
//! [`burn_reading`] which blocks are read for burns.

mod block_times;
pub mod burn_reading;
mod chain;
pub mod cycle_duties;
mod link_state;
mod scoring_gate;
mod view;

pub use block_times::BlockTimes;
pub use chain::{BlockWithHash, Blocks, Chain, Subnet};
pub use link_state::LinkState;
pub use scoring_gate::ScoringGate;
pub use view::{SubnetView, reachable_miners};

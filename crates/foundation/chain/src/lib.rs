//! The chain, as far as a subnet needs it: registered neurons and their addresses, a subnet's rules, blocks, weights
//! and registrations.
//!
//! [`ChainClient`] is the entry point. Every payload is dynamic, read and written by name against the metadata that the
//! endpoint itself serves, so that the client survives a change of the chain's layout. A local devchain and the public
//! network differ only in their address. [`window`], [`schedule`], [`commit`], [`timelock`] and [`changes::diff`] are
//! pure.

mod answer;
pub mod blocks;
mod calls;
pub mod changes;
pub mod client;
pub mod commit;
mod commitment;
mod endpoint;
pub mod error;
mod failure;
#[cfg(test)]
mod hostile_answers;
mod link;
pub mod metagraph;
pub mod money;
pub mod rejection;
mod roster;
mod rules;
pub mod schedule;
mod submit;
pub mod timelock;
pub mod types;
mod value;
mod watch;
pub mod weights;
pub mod window;
mod write;

pub use blocks::Blocks;
pub use changes::{MetagraphEvent, diff};
pub use client::ChainClient;
pub use commit::PendingReveal;
pub use endpoint::ChainTimeouts;
pub use error::ChainError;
pub use metagraph::{Metagraph, Neuron};
pub use muster_protocol::{BlockNumber, Epoch, Netuid, Rao, Uid};
pub use rejection::CallRejection;
pub use rules::{WeightRules, WeightsMethod};
pub use types::Hyperparameters;
pub use watch::MetagraphWatch;
pub use weights::WeightsCall;
pub use window::{Window, WindowStatus};
pub use write::AxonAnnouncement;

//! The chain, as far as a subnet needs it: who is registered and where, what the rules are, and setting weights.
//!
//! [`ChainClient`] is the way in. Every payload is dynamic, read and written by name against the metadata that the endpoint
//! itself serves, so that a change of the chain's layout is survived; a local devchain and the public network are told apart
//! by nothing but the address. [`weights`], [`window`], [`schedule`], [`commit`],
//! [`timelock`] and [`changes::diff`] are pure.

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
mod link;
pub mod metagraph;
pub mod money;
pub mod refusal;
mod roster;
pub mod schedule;
pub mod secret;
mod submit;
pub mod timelock;
pub mod types;
mod value;
pub mod weights;
pub mod window;
mod write;

pub use blocks::Blocks;
pub use changes::{MetagraphEvent, Watch, diff};
pub use client::{ChainClient, Hyperparameters};
pub use commit::{Method, PendingReveal, WeightRules};
pub use endpoint::Patience;
pub use error::ChainError;
pub use metagraph::{Metagraph, Neuron};
pub use money::Rao;
pub use refusal::Refusal;
pub use secret::WeightsCall;
pub use types::{BlockNumber, Epoch, Netuid, Uid};
pub use window::{Due, Window};
pub use write::Announced;

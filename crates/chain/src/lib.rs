//! The chain, as far as a subnet needs it: who is registered and where, what the rules are, and setting weights.
//!
//! [`ChainClient`] is the way in. Every payload is dynamic, read and written by name against the metadata that the endpoint
//! itself serves, so that a change of the chain's layout is survived; a local devchain and the public network are told apart
//! by nothing but the address. [`weights`] and [`window`] are pure.

pub mod blocks;
mod calls;
pub mod client;
mod commitment;
mod endpoint;
pub mod error;
pub mod metagraph;
pub mod refusal;
mod signer;
mod submit;
pub mod types;
mod value;
pub mod weights;
pub mod window;
mod write;

pub use blocks::Blocks;
pub use client::{ChainClient, Hyperparameters};
pub use endpoint::Patience;
pub use error::ChainError;
pub use metagraph::{Metagraph, Neuron};
pub use refusal::Refusal;
pub use types::{BlockNumber, Epoch, Netuid, Uid};
pub use window::{Due, Window};
pub use write::Announced;

//! The chain, as far as a subnet needs it: registered neurons and their addresses, a subnet's rules, blocks, weights
//! and registrations.
//!
//! [`ChainClient`] is the entry point. Every payload is dynamic, read and written by name against the metadata that the
//! endpoint itself serves, so that the client survives a change of the chain's layout. A local devchain and the public
//! network differ only in their address. [`weights_window`], [`epoch_schedule`], [`weights_commit`], [`timelock`] and
//! [`subnet_changes::diff`] are pure.

mod answer_decoding;
mod block_pace;
pub mod blocks;
mod call_encoding;
pub mod call_rejection;
mod certificates;
pub mod chain_reader;
mod commitment_text;
mod dial_endpoint;
mod endpoint_choice;
mod endpoint_pool;
pub mod epoch_schedule;
pub mod error;
mod evm;
#[cfg(test)]
mod hostile_answers;
pub mod hyperparameters;

pub mod metagraph;
mod metagraph_watch;
pub mod money;
mod pages_commitment;
mod scale_value;
mod submit;
pub mod subnet_changes;
mod subnet_maps;
mod subxt_errors;
pub mod timelock;
mod transfers;
mod unpaid_calls;
pub mod weights;
pub mod weights_commit;
mod weights_method;
pub mod weights_window;

pub use block_pace::{BlockPace, TimedSubnet};
pub use blocks::Blocks;
pub use call_rejection::CallRejection;
pub use chain_reader::ChainClient;
pub use endpoint_pool::ChainTimeouts;
pub use error::ChainError;
pub use evm::EvmAssociation;
pub use hyperparameters::Hyperparameters;
pub use metagraph::{Metagraph, Neuron};
pub use metagraph_watch::MetagraphWatch;
pub use muster_protocol::{BlockNumber, Epoch, Netuid, Rao, Uid};
pub use subnet_changes::{MetagraphEvent, diff};
pub use transfers::{AccountTransfer, TRANSFER_BLOCKS_AT_ONCE, next_transfer_piece};
pub use unpaid_calls::AxonAnnouncement;
pub use weights::WeightsCall;
pub use weights_commit::PendingReveal;
pub use weights_method::{WeightRules, WeightsMethod};
pub use weights_window::{Window, WindowStatus};

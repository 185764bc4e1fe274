//! The services that spot checks need from the validator.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use muster_chain::Metagraph;
use muster_protocol::Digest;
use muster_session_pool::Service;

/// The validator, as spot checks use it.
pub trait AuditBackend: Send + Sync + 'static {
    /// The subnet as the chain last showed it; `None` before the chain has answered.
    fn metagraph(&self) -> Option<Arc<Metagraph>>;

    /// Waits for the first block after this one, and returns its number.
    fn next_block(&self, block: u64) -> BoxFuture<'_, u64>;

    /// The hash of a finalised block; `None` if it is not known, or not yet.
    fn block_hash(&self, block: u64) -> BoxFuture<'_, Option<Digest>>;

    /// The whitelisted services.
    fn services(&self) -> Vec<Service>;

    /// The models that have a session now.
    fn served_models(&self) -> BoxFuture<'_, Vec<String>>;

    /// Asks a chat completion through the gateway as a client with this pseudonym would. Returns the answer's id once
    /// the answer is stored; the error is text for the log.
    fn ask(&self, body: Bytes, client: Digest) -> BoxFuture<'_, Result<String, String>>;
}

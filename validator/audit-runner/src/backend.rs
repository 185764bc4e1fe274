//! The services that spot checks need from the validator.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use muster_chain::Metagraph;
use muster_gateway::logged_session::{OnAnswer, OwnQuestion};
use muster_protocol::{Digest, MinerKey};
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

    /// The miners that get no sessions for clients from now on, by model.
    fn bar_sessions(&self, barred: BTreeMap<String, BTreeSet<MinerKey>>);

    /// Opens a session of a model with a miner, asks the questions in it, and closes it. `answered` gets the place of
    /// each question with the id of its answer once that is stored. Returns how many were answered; the error is text
    /// for the log.
    fn ask_miner<'a>(
        &'a self,
        miner: MinerKey,
        model: &'a str,
        questions: Vec<OwnQuestion>,
        answered: OnAnswer<'a>,
    ) -> BoxFuture<'a, Result<usize, String>>;

    /// Asks a question through the gateway as a client with its pseudonym would. Returns the answer's id once the
    /// answer is stored; the error is text for the log.
    fn ask(&self, question: OwnQuestion) -> BoxFuture<'_, Result<String, String>>;
}

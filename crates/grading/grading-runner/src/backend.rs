//! What grading needs of the validator that runs it.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use muster_gateway::host::Order;
use muster_gateway::sealed::Line;
use muster_grading::plan::{Announced, BlockHash, Silent};
use muster_protocol::{JobId, ValidatorKey};

/// The validator.
pub trait Host: Send + Sync + 'static {
    /// Its key.
    fn me(&self) -> ValidatorKey;

    /// The next block after this one, with its hash; waits for it.
    fn block_after(&self, block: u64) -> BoxFuture<'_, (u64, BlockHash)>;

    /// What every miner of the subnet says that it has, and which of them do not say it in time.
    fn announced(&self) -> BoxFuture<'_, Roll>;

    /// The sessions that serve users of this validator now.
    fn serving(&self) -> BoxFuture<'_, Vec<Arc<Line>>>;

    /// Hands a job to the miner that its order names. Its news begin to come once this has returned.
    fn begin(&self, order: Order) -> BoxFuture<'_, Result<(), String>>;

    /// Ends a job, if it has not ended. It is not paid: what is proven is.
    fn end(&self, job: JobId, why: &'static str) -> BoxFuture<'_, ()>;

    /// Whether the refusal that ended a job stood on receipts of work that is under way.
    fn backed(&self, job: JobId) -> BoxFuture<'_, bool>;
}

/// Who answered when the miners of the subnet were asked what they have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roll {
    /// What they said.
    pub announced: Vec<Announced>,
    /// Who said nothing in time.
    pub silent: Vec<Silent>,
}

//! The services that grading needs from the validator.

use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use muster_gateway::backend::StreamingJobOrder;
use muster_grading::batch_plan::{Announcement, BlockHash, SilentMiner};
use muster_protocol::{JobId, ValidatorKey};
use muster_sealed_client::SealedSession;

/// The validator, as grading uses it.
pub trait GradingBackend: Send + Sync + 'static {
    /// The key of the validator that runs the batches.
    fn validator_key(&self) -> ValidatorKey;

    /// Whether a session may be dialled at this address, which its miner gave as `host`.
    fn permits_address(&self, host: &str, address: SocketAddr) -> bool;

    /// Waits for the first block after this one. Returns its number and its hash.
    fn next_block(&self, block: u64) -> BoxFuture<'_, (u64, BlockHash)>;

    /// Asks every miner of the subnet for its executors.
    fn collect_announcements(&self) -> BoxFuture<'_, Announcements>;

    /// The sessions that serve users of this validator at present.
    fn serving_sessions(&self) -> BoxFuture<'_, Vec<Arc<SealedSession>>>;

    /// Sends a job to the miner that its order names. News of the job follow after this has returned.
    fn begin_job(&self, order: StreamingJobOrder) -> BoxFuture<'_, Result<(), String>>;

    /// Ends a job that has not ended yet. Such a job is not paid; proven capacity is.
    fn end_job(&self, job: JobId, why: &'static str) -> BoxFuture<'_, ()>;

    /// Whether the refusal that ended a job was backed by receipts of work under way.
    fn is_backed_by_receipts(&self, job: JobId) -> BoxFuture<'_, bool>;
}

/// The answers of the subnet's miners about their executors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announcements {
    /// The announcements that arrived in time.
    pub announced: Vec<Announcement>,
    /// The miners that announced nothing in time.
    pub silent: Vec<SilentMiner>,
}

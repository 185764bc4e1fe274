//! Everything that the messages of an attempt's miner, and its end, may change.

use std::sync::Arc;

use muster_facilitator_link::live_output::LiveOutput;
use muster_own_jobs::OwnJobRegistry;

use super::miner_channels::MinerChannels;
use super::miner_records::MinerRecords;
use super::queue_in_memory::WaitingJobs;
use crate::validator_state::ValidatorState;

/// The parts of the validator that an attempt changes.
#[derive(Debug)]
pub(super) struct AttemptDeps {
    pub(super) state: Arc<ValidatorState>,
    pub(super) records: Arc<MinerRecords>,
    /// The jobs that get the executor when the attempt gives it back.
    pub(super) waiting: Arc<WaitingJobs>,
    /// The listeners to the news of the validator's own jobs.
    pub(super) own_jobs: Arc<OwnJobRegistry>,
    pub(super) live_output: Arc<LiveOutput>,
    /// The way to the miner of an earlier attempt whose pay is known only now.
    pub(super) channels: Arc<MinerChannels>,
}

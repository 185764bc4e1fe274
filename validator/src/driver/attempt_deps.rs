//! Everything that the messages of an attempt's miner, and its end, may change.

use std::sync::Arc;

use muster_facilitator_link::live_output::LiveOutput;
use muster_own_jobs::OwnJobRegistry;
use muster_protocol::MinerKey;
use muster_protocol::job::Outcome;
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_routing::MarkedJob;
use muster_routing::start_claims::ProgramKey;

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

impl AttemptDeps {
    /// A job as far as it decides what its failure at a miner is worth.
    pub(super) fn marked_job(&self, request: &UserJobRequest, miner: MinerKey) -> MarkedJob {
        let state = &self.state;
        if state.is_trial(request) {
            let is_last_chance = self.records.is_last_chance(miner);
            return MarkedJob::Trial { is_last_chance };
        }
        if state.is_own(request) {
            return MarkedJob::Own;
        }
        // The trusted miner is not of the subnet, and is benched by nothing.
        let is_tried = state.config.routing.has_trials() && !request.on_trusted_miner;
        MarkedJob::Users { is_tried }
    }

    /// Whether the miner of another owner than that of `miner` lately started the program of an attempt that ended so.
    pub(super) fn is_started_elsewhere(
        &self,
        request: &UserJobRequest,
        miner: MinerKey,
        outcome: &Outcome,
    ) -> bool {
        let owner = self.state.owner_of(miner);
        let program = program_of(request, outcome);
        program.is_some_and(|program| self.records.is_started_elsewhere(program, owner))
    }
}

/// The program of an attempt by its image's content, as its miner reports it; `None` if the miner does not, or if no
/// other miner's start of the job shows anything about it.
pub(super) fn program_of(request: &UserJobRequest, outcome: &Outcome) -> Option<ProgramKey> {
    ProgramKey::of_job(outcome.ran_image()?, request)
}

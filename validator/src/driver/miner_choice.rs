//! The assignment of a miner to a job: route by the metagraph and the ledger, and create the attempt.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_chain::Metagraph;
use muster_gateway::backend::NoRoom;
use muster_job_queue::ExecutorLine;
use muster_job_queue::estimate_wait;
use muster_own_jobs::OwnJobRegistry;
use muster_protocol::job::Outcome;
use muster_protocol::status::JobStage;
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::{ErrorCode, ExecutorClass, Hotkey, JobId, MinerKey};
use muster_routing::availability::{
    Availability, ClassCapacity, availability, availability_of_others, class_capacities, may_ask_others,
};
use muster_routing::earlier_attempts::{AskedFor, asked_miners, avoided_owners, tried_miners};
use muster_routing::{
    CacheKey, Candidate, JobRequirements, MinerStats, Route, RouteDecision, RoutingPolicy, note_proven, route,
};
use muster_store::StoreError;
use uuid::Uuid;

use super::checkpoint_record::earlier_attempts;
use super::executor_need::ExecutorNeed;
use super::miner_pool::{MinerPool, line_of};
use super::miner_records::MinerRecords;
use super::new_attempt::{lasts_s, new_attempt, next_ordinal, reserved_us};
use super::no_miner::{no_chain, no_miner_fits};
use super::running_jobs::CancelSignal;
use crate::store::{NewAttempt, StoredAttempt};
use crate::validator_state::ValidatorState;

/// The result of looking for a miner.
pub(super) enum Assignment {
    /// A miner was found, and the attempt is in the store.
    Attempt(Box<NewAttempt>),
    /// No miner may be asked now, and at least one may be later. The outcome is for a job that does not wait.
    Later(Box<RouteDecision>, Outcome),
    /// No miner can take the job, or its user called it off. The outcome is for the user if there was no attempt
    /// before.
    NoMiner(Outcome),
    /// The validator stops.
    Stopped,
}

/// Chooses miners for jobs.
#[derive(Debug)]
pub(super) struct MinerChooser {
    pub(super) state: Arc<ValidatorState>,
    pub(super) records: Arc<MinerRecords>,
    pub(super) own_jobs: Arc<OwnJobRegistry>,
}

impl MinerChooser {
    /// Assigns a miner to a new job without waiting: `None` if the metagraph at hand is too old or names no miner for
    /// it.
    ///
    /// The ledger counts the attempt from here on, so the job must be driven or the attempt withdrawn.
    pub(super) fn assign_at_once(&self, request: &UserJobRequest) -> Option<NewAttempt> {
        let state = &*self.state;
        let metagraph = state.subnet.fresh_metagraph()?;
        Some(*self.assign_waiting(request, &[], &metagraph).ok()?)
    }

    /// Assigns a miner to a user's job by this metagraph.
    ///
    /// # Errors
    /// No miner may be asked now, for these reasons.
    ///
    /// The ledger counts the attempt from here on, so the job must be driven or the attempt withdrawn.
    pub(super) fn assign_waiting(
        &self,
        request: &UserJobRequest,
        earlier: &[StoredAttempt],
        metagraph: &Metagraph,
    ) -> Result<Box<NewAttempt>, Availability> {
        let state = &*self.state;
        let avoided = owners_to_avoid(earlier, metagraph);
        let tried = tried_miners(&earlier_attempts(earlier), request.on_trusted_miner);
        let requirements = requirements(state, request, tried, avoided);
        let pool = self.pool_of(request);
        let (found, chosen) = self.choose(pool, &requirements, metagraph, &policy(state, false));
        let decision = found.decision(requirements.class, metagraph.block.0);
        let chosen = chosen.ok_or_else(|| availability(&found))?;
        Ok(Box::new(new_attempt(state, request, earlier, chosen, decision)))
    }

    /// Assigns a miner to a job that does not wait in the queue, and stores the attempt. While the chain has not
    /// answered since the start no miner is known, and the job waits for it, for `chain.wait_s` at most.
    pub(super) async fn assign(
        &self,
        request: &UserJobRequest,
        earlier: &[StoredAttempt],
        cancel: &mut CancelSignal,
    ) -> Result<Assignment, StoreError> {
        let state = &*self.state;
        let stop = state.tasks.token();
        let metagraph = tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(Assignment::Stopped),
            reason = cancel.wait() => {
                return Ok(Assignment::NoMiner(Outcome::cancelled(JobStage::ExecutorStartup, &reason)));
            }
            metagraph = state.subnet.metagraph() => metagraph,
            () = state.clock.sleep(Duration::from_secs(state.config.chain.wait_s)) => {
                let code = ErrorCode::ChainUnreachable;
                tracing::warn!(%code, job = %request.uuid, "the chain has not answered yet, so no miner is known for a job");
                return Ok(Assignment::NoMiner(no_chain()));
            }
        };
        let is_own = state.is_own(request);
        let job = AskedFor {
            is_own,
            on_trusted_miner: request.on_trusted_miner,
        };
        let asked = asked_miners(&earlier_attempts(earlier), job);
        let pool = self.pool_of(request);
        let avoided = owners_to_avoid(earlier, &metagraph);
        let (requirements, policy) = (
            requirements(state, request, asked, avoided),
            policy(state, state.is_openly_own(request)),
        );
        let mut used = Arc::clone(&metagraph);
        let (mut found, mut chosen) = self.choose(pool, &requirements, &metagraph, &policy);
        // A miner may have announced itself since the metagraph was read, so look at a newer one before turning the
        // user away.
        if chosen.is_none()
            && let Some(newer) = state.subnet.read_newer_than(&metagraph).await
        {
            (found, chosen) = self.choose(pool, &requirements, &newer, &policy);
            used = newer;
        }
        let decision = found.decision(requirements.class, used.block.0);
        let Some(chosen) = chosen else {
            let need = ExecutorNeed::of_job(request);
            let outcome = self.explain_refusal(need, &found, &used);
            let unaskable = unaskable_miners(need.line, earlier, Some(&used));
            if is_own {
                self.note_no_room(request, &unaskable, &used);
            }
            if !is_own && may_ask_others(self.route_need(need, 0, &used), &unaskable) {
                return Ok(Assignment::Later(Box::new(decision), outcome));
            }
            tracing::warn!(code = %ErrorCode::NoMiner, job = %request.uuid, class = %requirements.class, excluded = %found.explain(), "no miner for a job");
            let (ordinal, now) = (next_ordinal(earlier), state.clock.now());
            state
                .store
                .keep_decision(request.uuid, ordinal, &decision, now)
                .await?;
            return Ok(Assignment::NoMiner(outcome));
        };
        let attempt = new_attempt(state, request, earlier, chosen, decision);
        state.store.begin_attempt(request.uuid, &attempt).await?;
        Ok(Assignment::Attempt(Box::new(attempt)))
    }

    /// Notes of a job of the validator's own that any miner may run whether one may run it later, or a shorter one now.
    fn note_no_room(&self, request: &UserJobRequest, unaskable: &BTreeSet<MinerKey>, metagraph: &Metagraph) {
        if self.own_jobs.pinned_miner(request.uuid).is_some() {
            return;
        }
        let (need, lasts_s) = (ExecutorNeed::of_job(request), lasts_s(&self.state, request));
        let found = self.route_need(need, lasts_s, metagraph);
        let Availability::Later(reasons) = availability_of_others(found, unaskable) else {
            return;
        };
        let capacities = self.capacities(MinerPool::of_line(need.line), metagraph);
        let executors = capacities.get(&need.line.class).map_or(0, ClassCapacity::usable);
        let record = self.records.waiting.lock().durations(need.line);
        let back_in = reasons
            .until
            .filter(|_| reasons.failing > 0)
            .map(|at| at.since(self.state.clock.now()));
        let shorter_by = (reasons.too_long > 0).then(|| lasts_s.saturating_sub(reasons.longest_s));
        let no_room = NoRoom {
            shorter_by: shorter_by.map(Duration::from_secs),
            expected: estimate_wait(0, executors, back_in, &record),
        };
        self.own_jobs.note_no_room(request.uuid, no_room);
    }

    /// The route of a user's job with this need and of `lasts_s` executor-seconds that no miner was asked for yet, by
    /// what the ledger knows now.
    pub(super) fn route_need(&self, need: ExecutorNeed, lasts_s: u64, metagraph: &Metagraph) -> Route {
        let class = need.line.class;
        let requirements = JobRequirements {
            job: JobId::from_uuid(Uuid::nil()),
            class,
            private_image: need.private_image,
            image: CacheKey::image(""),
            inputs: BTreeSet::new(),
            tried: BTreeSet::new(),
            avoided_owners: BTreeSet::new(),
            reserved_us: 0,
            lasts_s,
        };
        let pool = MinerPool::of_line(need.line);
        let neurons = pool.neurons(&self.state, metagraph, Some(class));
        let miners = neurons.iter().map(|neuron| neuron.miner);
        let now = self.state.clock.now();
        let mut stats = self.records.ledger().stats(miners, &BTreeSet::new(), now);
        complete_stats(&self.state, pool, class, &mut stats);
        route(&requirements, &neurons, &stats, &policy(&self.state, false))
    }

    /// The offers of some miners by class.
    pub(super) fn capacities(
        &self,
        pool: MinerPool,
        metagraph: &Metagraph,
    ) -> BTreeMap<ExecutorClass, ClassCapacity> {
        let neurons = pool.neurons(&self.state, metagraph, None);
        let miners = neurons.iter().map(|neuron| neuron.miner);
        let now = self.state.clock.now();
        let stats = self.records.ledger().stats(miners, &BTreeSet::new(), now);
        class_capacities(&neurons, &stats, &policy(&self.state, false))
    }

    /// The outcome of a job with this need that no miner may be asked for, by the route that was found.
    pub(super) fn explain_refusal(
        &self,
        need: ExecutorNeed,
        found: &Route,
        metagraph: &Metagraph,
    ) -> Outcome {
        let offered = self.capacities(MinerPool::of_line(need.line), metagraph);
        let keeps_trusted = self.state.config.trusted_miner.miner().is_some();
        no_miner_fits(need, found, &offered, keeps_trusted)
    }

    /// The miners that a job may be offered to.
    fn pool_of(&self, request: &UserJobRequest) -> MinerPool {
        match self.own_jobs.pinned_miner(request.uuid) {
            Some(miner) if self.state.is_disguised(request) => MinerPool::Disguised(miner),
            Some(miner) if !request.on_trusted_miner => MinerPool::Pinned(miner),
            Some(_) | None => MinerPool::of_line(line_of(request)),
        }
    }

    /// Routes the job, and notes the attempt in the ledger before the lock is released, so that the next job sees it.
    fn choose(
        &self,
        pool: MinerPool,
        requirements: &JobRequirements,
        metagraph: &Metagraph,
        policy: &RoutingPolicy,
    ) -> (Route, Option<Candidate>) {
        let subjects = pool.neurons(&self.state, metagraph, Some(requirements.class));
        let mut images_and_inputs = requirements.inputs.clone();
        images_and_inputs.insert(requirements.image);
        let now = self.state.clock.now();
        let is_disguised = matches!(pool, MinerPool::Disguised(_));
        let is_pinned = self.own_jobs.pinned_miner(requirements.job).is_some() && !is_disguised;
        let mut ledger = self.records.ledger();
        // A pinned miner is asked whatever its record: if it has nothing free, it has to show why.
        let recorded = subjects.iter().map(|subject| subject.miner);
        let recorded = recorded.filter(|_| !is_pinned);
        let mut stats = ledger.stats(recorded, &images_and_inputs, now);
        complete_stats(&self.state, pool, requirements.class, &mut stats);
        let found = route(requirements, &subjects, &stats, policy);
        let chosen = found.candidates.first().copied();
        if let Some(chosen) = chosen {
            ledger.open_attempt(chosen.miner, requirements.class);
            ledger.record_offer(chosen.miner, now);
        }
        (found, chosen)
    }
}

/// The owners whose miners are not asked again for a job, as the chain states the owners.
fn owners_to_avoid(earlier: &[StoredAttempt], metagraph: &Metagraph) -> BTreeSet<Hotkey> {
    let owner_of = |miner: MinerKey| metagraph.find(&miner.0).map(|neuron| neuron.coldkey);
    avoided_owners(&earlier_attempts(earlier), owner_of)
}

/// The facts about a job that decide its route, with the miners and the owners that must not be asked.
fn requirements(
    state: &ValidatorState,
    request: &UserJobRequest,
    mut tried: BTreeSet<MinerKey>,
    avoided_owners: BTreeSet<Hotkey>,
) -> JobRequirements {
    // Spot checks accuse some miners: they get no sessions for clients.
    if let Some(service) = state.gateway_service(request)
        && let Some(barred) = state.barred.lock().get(&service.model)
    {
        tried.extend(barred);
    }
    JobRequirements {
        avoided_owners,
        reserved_us: reserved_us(state, request),
        lasts_s: lasts_s(state, request),
        job: request.uuid,
        class: request.executor_class,
        private_image: request.has_private_image(),
        image: CacheKey::image(&request.docker_image),
        inputs: CacheKey::inputs(request.volume.as_ref()),
        tried,
    }
}

/// The miners that must not be asked again for a job: those that were tried, and the others of an owner whose miner did
/// not get the job's image in time.
pub(super) fn unaskable_miners(
    line: ExecutorLine,
    earlier: &[StoredAttempt],
    metagraph: Option<&Metagraph>,
) -> BTreeSet<MinerKey> {
    let mut miners = tried_miners(&earlier_attempts(earlier), line.on_trusted_miner);
    if let Some(metagraph) = metagraph {
        let owners = owners_to_avoid(earlier, metagraph);
        let theirs = metagraph
            .neurons
            .iter()
            .filter(|neuron| owners.contains(&neuron.coldkey));
        miners.extend(theirs.map(|neuron| MinerKey(neuron.hotkey)));
    }
    miners
}

/// The operator's rules. A miner that has not shown its executors gets one attempt of a user's job at a time, while the
/// other jobs wait for its answer; jobs of the validator's own do not wait, but for disguised checks.
fn policy(state: &ValidatorState, is_own: bool) -> RoutingPolicy {
    let most_unproven = if is_own { u32::MAX } else { 1 };
    state.config.routing.policy(state.keypair.hotkey(), most_unproven)
}

/// Adds the executors that validators agree are proven to what the ledger knows, where they bound the jobs. Of the
/// trusted miner the manifest counts, and no incident: the ledger lets its jobs wait after each failure.
fn complete_stats(
    state: &ValidatorState,
    pool: MinerPool,
    class: ExecutorClass,
    stats: &mut BTreeMap<MinerKey, MinerStats>,
) {
    match pool {
        MinerPool::Subnet | MinerPool::Pinned(_) | MinerPool::Disguised(_) => {
            if state.config.routing.proven_only {
                let proven = state.proven();
                note_proven(stats, class, |miner| proven.of(miner, class));
            }
        }
        MinerPool::Trusted => {
            for miner in stats.values_mut() {
                (miner.incidents, miner.incidents_until) = (0, None);
            }
        }
    }
}

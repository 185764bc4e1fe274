//! The assignment of a miner to a job: route by the metagraph and the ledger, and create the attempt.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_chain::{Metagraph, Uid};
use muster_job_messages::outgoing::OutgoingMessages;
use muster_job_queue::ExecutorLine;
use muster_protocol::job::{Attempt, AttemptPlan, ImageClock, Outcome};
use muster_protocol::status::{JobRejectionReason, JobStage, ParticipantType};
use muster_protocol::wire::facilitator::{RejectionDetails, UserJobRequest};
use muster_protocol::wire::miner::ExecutorTiming;
use muster_protocol::{AttemptId, ErrorCode, ExecutorClass, FeatureSet, Hotkey, JobId, MinerKey};
use muster_routing::availability::{
    Availability, ClassCapacity, availability, class_capacities, describe_collateral, describe_offers,
    describe_private_offers,
};
use muster_routing::{
    CacheKey, Candidate, JobRequirements, MinerStats, Route, RouteDecision, RoutingPolicy, note_proven, route,
};
use muster_store::StoreError;
use serde_json::{Value, json};
use uuid::Uuid;

use super::JobDrivers;
use super::miner_pool::{MinerPool, line_of};
use crate::config::TimingConfig;
use crate::driver::checkpoint_record::{may_return, since_progress};
use crate::driver::running_jobs::CancelSignal;
use crate::state::ValidatorState;
use crate::store::{NewAttempt, StoredAttempt};

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

/// Assigns a miner to a new job without waiting: `None` if the metagraph at hand is too old or names no miner for it.
///
/// The ledger counts the attempt from here on, so the job must be driven or the attempt withdrawn.
pub(super) fn assign_at_once(drivers: &JobDrivers, request: &UserJobRequest) -> Option<NewAttempt> {
    let state = &*drivers.state;
    let metagraph = state.subnet.fresh_metagraph()?;
    Some(*assign_waiting(drivers, request, &[], &metagraph)?)
}

/// Assigns a miner to a user's job by this metagraph. `None` if no miner may be asked now.
///
/// The ledger counts the attempt from here on, so the job must be driven or the attempt withdrawn.
pub(super) fn assign_waiting(
    drivers: &JobDrivers,
    request: &UserJobRequest,
    earlier: &[StoredAttempt],
    metagraph: &Metagraph,
) -> Option<Box<NewAttempt>> {
    let state = &*drivers.state;
    let avoided = avoided_owners(earlier, metagraph);
    let requirements = requirements(state, request, tried_miners(line_of(request), earlier), avoided);
    let pool = pool_of(drivers, request);
    let (found, chosen) = choose(drivers, pool, &requirements, metagraph, &policy(state, false));
    let decision = found.decision(requirements.class, metagraph.block.0);
    Some(Box::new(new_attempt(state, request, earlier, chosen?, decision)))
}

/// The kind of executor that a job waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExecutorNeed {
    pub(super) line: ExecutorLine,
    /// Whether the executor must take an image from an archive or with a login.
    pub(super) private_image: bool,
}

impl ExecutorNeed {
    /// The kind of executor for a job that everybody may read the image of.
    pub(super) fn of_line(line: ExecutorLine) -> Self {
        Self {
            line,
            private_image: false,
        }
    }

    /// The kind of executor that this job needs.
    pub(super) fn of_job(request: &UserJobRequest) -> Self {
        Self {
            line: line_of(request),
            private_image: request.has_private_image(),
        }
    }
}

/// The miners that a job may be offered to.
fn pool_of(drivers: &JobDrivers, request: &UserJobRequest) -> MinerPool {
    match drivers.own_jobs.pinned_miner(request.uuid) {
        Some(miner) if !request.on_trusted_miner => MinerPool::Pinned(miner),
        Some(_) | None => MinerPool::of_line(line_of(request)),
    }
}

/// The route of a user's job with this need that no miner was asked for yet, by what the ledger knows now.
pub(super) fn route_need(drivers: &JobDrivers, need: ExecutorNeed, metagraph: &Metagraph) -> Route {
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
    };
    let pool = MinerPool::of_line(need.line);
    let neurons = pool.neurons(&drivers.state, metagraph, Some(class));
    let miners = neurons.iter().map(|neuron| neuron.miner);
    let now = drivers.state.clock.now();
    let mut stats = drivers.ledger().stats(miners, &BTreeSet::new(), now);
    complete_stats(&drivers.state, pool, class, &mut stats);
    route(&requirements, &neurons, &stats, &policy(&drivers.state, false))
}

/// Whether a miner that is not among these may run a job with this need, now or later.
fn may_be_asked_later(
    drivers: &JobDrivers,
    need: ExecutorNeed,
    tried: &BTreeSet<MinerKey>,
    metagraph: &Metagraph,
) -> bool {
    let mut found = route_need(drivers, need, metagraph);
    found
        .candidates
        .retain(|candidate| !tried.contains(&candidate.miner));
    found.excluded.retain(|excluded| !tried.contains(&excluded.miner));
    match availability(&found) {
        Availability::Now(_) | Availability::Later(_) => true,
        Availability::Never => false,
    }
}

/// The offers of some miners by class.
pub(super) fn capacities(
    drivers: &JobDrivers,
    pool: MinerPool,
    metagraph: &Metagraph,
) -> BTreeMap<ExecutorClass, ClassCapacity> {
    let neurons = pool.neurons(&drivers.state, metagraph, None);
    let miners = neurons.iter().map(|neuron| neuron.miner);
    let now = drivers.state.clock.now();
    let stats = drivers.ledger().stats(miners, &BTreeSet::new(), now);
    class_capacities(&neurons, &stats, &policy(&drivers.state, false))
}

/// Assigns a miner to a job that does not wait in the queue, and stores the attempt. While the chain has not answered
/// since the start no miner is known, and the job waits for it, for `chain.wait_s` at most.
pub(super) async fn assign(
    drivers: &JobDrivers,
    request: &UserJobRequest,
    earlier: &[StoredAttempt],
    cancel: &mut CancelSignal,
) -> Result<Assignment, StoreError> {
    let state = &*drivers.state;
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
    // None that was asked before: a miner that was busy is asked again only after the job has waited. No
    // other miner stands in for the trusted one; the ledger remembers that it was busy.
    let asked = since_progress(earlier).filter(|attempt| !may_return(attempt));
    let asked = asked.map(|attempt| attempt.miner);
    let asked = asked.filter(|_| is_own || !request.on_trusted_miner).collect();
    let pool = pool_of(drivers, request);
    let avoided = avoided_owners(earlier, &metagraph);
    let (requirements, policy) = (
        requirements(state, request, asked, avoided),
        policy(state, is_own),
    );
    let mut used = Arc::clone(&metagraph);
    let (mut found, mut chosen) = choose(drivers, pool, &requirements, &metagraph, &policy);
    // A miner may have announced itself since the metagraph was read, so look at a newer one before turning the user
    // away.
    if chosen.is_none()
        && let Some(newer) = state.subnet.read_newer_than(&metagraph).await
    {
        (found, chosen) = choose(drivers, pool, &requirements, &newer, &policy);
        used = newer;
    }
    let decision = found.decision(requirements.class, used.block.0);
    let Some(chosen) = chosen else {
        let need = ExecutorNeed::of_job(request);
        let outcome = no_miner_fits(drivers, need, &found, &used);
        let unaskable = unaskable_miners(need.line, earlier, Some(&used));
        if !is_own && may_be_asked_later(drivers, need, &unaskable, &used) {
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

/// The owners whose miners are not asked again, because one of them did not get the job's image in time.
fn avoided_owners(earlier: &[StoredAttempt], metagraph: &Metagraph) -> BTreeSet<Hotkey> {
    earlier
        .iter()
        .filter(|attempt| attempt.image_failure().is_some())
        .filter_map(|attempt| metagraph.find(&attempt.miner.0))
        .map(|neuron| neuron.coldkey)
        .collect()
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
        job: request.uuid,
        class: request.executor_class,
        private_image: request.has_private_image(),
        image: CacheKey::image(&request.docker_image),
        inputs: CacheKey::inputs(request.volume.as_ref()),
        tried,
    }
}

/// The executor-microseconds that a job may be paid. A sealed session is paid for the time that it lasts, which nobody
/// knows when it begins.
fn reserved_us(state: &ValidatorState, request: &UserJobRequest) -> u64 {
    let details = request.streaming_details.as_ref();
    if details.is_some_and(|details| details.muster.is_some()) {
        return 0;
    }
    let plan = plan(&state.config.timing, request);
    plan.executor_seconds().saturating_mul(1_000_000)
}

/// The miners that have had their attempt at a job: all but those that only said that they were busy. The trusted miner
/// may be asked again, because no other miner runs its jobs.
fn tried_miners(line: ExecutorLine, earlier: &[StoredAttempt]) -> BTreeSet<MinerKey> {
    let real = since_progress(earlier).filter(|attempt| !attempt.was_declined_as_busy());
    let real = real.filter(|attempt| !line.on_trusted_miner && !may_return(attempt));
    real.map(|attempt| attempt.miner).collect()
}

/// The miners that must not be asked again for a job: those that were tried, and the others of an owner whose miner did
/// not get the job's image in time.
pub(super) fn unaskable_miners(
    line: ExecutorLine,
    earlier: &[StoredAttempt],
    metagraph: Option<&Metagraph>,
) -> BTreeSet<MinerKey> {
    let mut miners = tried_miners(line, earlier);
    if let Some(metagraph) = metagraph {
        let owners = avoided_owners(earlier, metagraph);
        let theirs = metagraph
            .neurons
            .iter()
            .filter(|neuron| owners.contains(&neuron.coldkey));
        miners.extend(theirs.map(|neuron| MinerKey(neuron.hotkey)));
    }
    miners
}

/// The operator's rules. A miner that has not shown its executors gets one attempt of a user's job at a time, while the
/// other jobs wait for its answer; jobs of the validator's own do not wait.
fn policy(state: &ValidatorState, is_own: bool) -> RoutingPolicy {
    let most_unproven = if is_own { u32::MAX } else { 1 };
    state.config.routing.policy(state.keypair.hotkey(), most_unproven)
}

/// The number of the attempt after these; the first is 1.
pub(super) fn next_ordinal(earlier: &[StoredAttempt]) -> u32 {
    u32::try_from(earlier.len()).unwrap_or(u32::MAX).saturating_add(1)
}

/// Routes the job, and notes the attempt in the ledger before the lock is released, so that the next job sees it.
fn choose(
    drivers: &JobDrivers,
    pool: MinerPool,
    requirements: &JobRequirements,
    metagraph: &Metagraph,
    policy: &RoutingPolicy,
) -> (Route, Option<Candidate>) {
    let subjects = pool.neurons(&drivers.state, metagraph, Some(requirements.class));
    let mut images_and_inputs = requirements.inputs.clone();
    images_and_inputs.insert(requirements.image);
    let now = drivers.state.clock.now();
    let is_pinned = drivers.own_jobs.pinned_miner(requirements.job).is_some();
    let mut ledger = drivers.ledger();
    // A pinned miner is asked whatever its record says: if it has nothing free, it has to show why.
    let recorded = subjects.iter().map(|subject| subject.miner);
    let recorded = recorded.filter(|_| !is_pinned);
    let mut standings = ledger.stats(recorded, &images_and_inputs, now);
    complete_stats(&drivers.state, pool, requirements.class, &mut standings);
    let found = route(requirements, &subjects, &standings, policy);
    let chosen = found.candidates.first().copied();
    if let Some(chosen) = chosen {
        ledger.open_attempt(chosen.miner, requirements.class);
        ledger.record_offer(chosen.miner, now);
    }
    (found, chosen)
}

/// Adds the executors that validators agree are proven to what the ledger knows. Of the trusted miner the manifest
/// counts, and no incident: the ledger lets its jobs wait after each failure.
fn complete_stats(
    state: &ValidatorState,
    pool: MinerPool,
    class: ExecutorClass,
    stats: &mut BTreeMap<MinerKey, MinerStats>,
) {
    match pool {
        MinerPool::Subnet | MinerPool::Pinned(_) => {
            let proven = state.proven();
            note_proven(stats, class, |miner| proven.of(miner, class));
        }
        MinerPool::Trusted => {
            for miner in stats.values_mut() {
                (miner.incidents, miner.incidents_until) = (0, None);
            }
        }
    }
}

/// A new attempt on the chosen miner, with its signed started receipt.
fn new_attempt(
    state: &ValidatorState,
    request: &UserJobRequest,
    earlier: &[StoredAttempt],
    chosen: Candidate,
    decision: RouteDecision,
) -> NewAttempt {
    // The first attempt carries the job's own id on the wire, so that ComputeHorde's peers see one job as one uuid.
    let id = match earlier {
        [] => AttemptId::first_of(request.uuid),
        [..] => AttemptId::from_uuid(Uuid::new_v4()),
    };
    let now = state.clock.now();
    let plan = plan(&state.config.timing, request);
    let messages = OutgoingMessages {
        keypair: &state.keypair,
        attempt: id,
        miner: chosen.miner,
        request,
        plan: &plan,
        features: FeatureSet::NONE,
        checkpoints: None,
    };
    NewAttempt {
        receipt: messages.started_receipt(now),
        attempt: StoredAttempt {
            id,
            ordinal: next_ordinal(earlier),
            miner: chosen.miner,
            uid: Uid(chosen.uid),
            address: chosen.address,
            machine: Attempt::new(plan, now),
            started_at: now,
            has_checkpoint: false,
        },
        decision,
        block: state.subnet.head(),
    }
}

fn plan(timing: &TimingConfig, request: &UserJobRequest) -> AttemptPlan {
    AttemptPlan {
        class: request.executor_class,
        streaming: request.streaming_details.is_some(),
        timing: ExecutorTiming {
            allowed_leeway: timing.leeway_s,
            download_time_limit: request.download_time_limit,
            execution_time_limit: request.execution_time_limit,
            upload_time_limit: request.upload_time_limit,
            streaming_start_time_limit: request.streaming_start_time_limit,
        },
        dial: Duration::from_secs(timing.dial_s),
        reservation: Duration::from_secs(timing.reservation_s),
        startup: Duration::from_secs(timing.startup_s),
        reconnect: timing.reconnect(),
        image: Some(ImageClock {
            limit: Duration::from_secs(request.terms().image_secs()),
            silence: Duration::from_secs(timing.image_silence_s),
        }),
    }
}

/// The outcome of a job that no miner may be asked for. It says what would fit.
pub(super) fn no_miner_fits(
    drivers: &JobDrivers,
    need: ExecutorNeed,
    found: &Route,
    metagraph: &Metagraph,
) -> Outcome {
    let offered = capacities(drivers, MinerPool::of_line(need.line), metagraph);
    let class = need.line.class;
    let image = if need.private_image {
        " with a private image"
    } else {
        ""
    };
    let message = match availability(found) {
        Availability::Later(reasons) => {
            let nobody = if need.line.on_trusted_miner {
                "this validator's trusted miner cannot"
            } else {
                "no miner can"
            };
            format!("{nobody} take a job of class {class}{image} now: {reasons}")
        }
        Availability::Now(_) | Availability::Never => {
            let (nobody, mut offers) = if need.line.on_trusted_miner {
                let offers = describe_trusted_offers(&drivers.state, &offered);
                ("this validator's trusted miner cannot", offers)
            } else {
                ("no miner of this subnet can", describe_offers(&offered))
            };
            if need.private_image && !offered.is_empty() {
                offers = format!("{offers}; {}", describe_private_offers(&offered));
            }
            if let Some(short) = describe_collateral(found) {
                offers = format!("{offers}; {short}");
            }
            format!("{nobody} take a job of class {class}{image}: {offers}")
        }
    };
    let count = |of: fn(&ClassCapacity) -> u32| -> BTreeMap<_, _> {
        let counts = offered
            .iter()
            .map(|(class, capacity)| (class.as_str(), of(capacity)));
        counts.collect()
    };
    let mut context = json!({
        "excluded": found.explain(),
        "offered": count(|capacity| capacity.executors),
    });
    if need.private_image
        && let Some(context) = context.as_object_mut()
    {
        let takers = json!(count(|capacity| capacity.private_images));
        context.insert("private_images".to_owned(), takers);
    }
    no_miner(&message, context)
}

/// The classes that the trusted miner offers, as a user reads them.
fn describe_trusted_offers(
    state: &ValidatorState,
    offered: &BTreeMap<ExecutorClass, ClassCapacity>,
) -> String {
    if state.config.trusted_miner.miner().is_none() {
        return "this validator keeps none any more; submit the job without on_trusted_miner".to_owned();
    }
    if offered.is_empty() {
        return "it has not shown its executors".to_owned();
    }
    describe_offers(offered)
}

/// The outcome of a job for which no miner is known, because the chain has not answered since the start.
pub(super) fn no_chain() -> Outcome {
    let message = "the chain does not answer, so no miner is known; submit the job again later";
    no_miner(message, Value::Null)
}

pub(super) fn no_miner(message: &str, context: Value) -> Outcome {
    Outcome::Rejected(RejectionDetails {
        rejected_by: ParticipantType::Validator,
        reason: JobRejectionReason::NoMinerForJob,
        message: message.to_owned(),
        context: Some(context).filter(|context| !context.is_null()),
    })
}

//! The assignment of a miner to a job: route by the metagraph and the ledger, and create the attempt.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_chain::{Metagraph, Uid};
use muster_job_messages::outgoing::OutgoingMessages;
use muster_protocol::job::{Attempt, AttemptPlan, ImageClock, Outcome};
use muster_protocol::status::{JobRejectionReason, JobStage, ParticipantType};
use muster_protocol::wire::facilitator::{JobRequest, RejectionDetails};
use muster_protocol::wire::miner::ExecutorTiming;
use muster_protocol::{AttemptId, ErrorCode, ExecutorClass, Hotkey, JobId, MinerKey};
use muster_routing::availability::{
    Availability, ClassCapacity, availability, class_capacities, describe_collateral, describe_offers,
    describe_private_offers,
};
use muster_routing::{
    CacheKey, Candidate, CollateralVerdict, JobRequirements, MinerStats, RoutableNeuron, Route,
    RouteDecision, RoutingPolicy, note_proven, route,
};
use muster_store::StoreError;
use serde_json::{Value, json};
use uuid::Uuid;

use super::JobDrivers;
use super::cancellation::CancelSignal;
use crate::config::TimingConfig;
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
pub(super) fn assign_at_once(drivers: &JobDrivers, request: &JobRequest) -> Option<NewAttempt> {
    let state = &*drivers.state;
    let metagraph = state.subnet.fresh_metagraph()?;
    Some(*assign_waiting(drivers, request, &[], &metagraph)?)
}

/// Assigns a miner to a user's job by this metagraph. `None` if no miner may be asked now.
///
/// The ledger counts the attempt from here on, so the job must be driven or the attempt withdrawn.
pub(super) fn assign_waiting(
    drivers: &JobDrivers,
    request: &JobRequest,
    earlier: &[StoredAttempt],
    metagraph: &Metagraph,
) -> Option<Box<NewAttempt>> {
    let state = &*drivers.state;
    let avoided = avoided_owners(earlier, metagraph);
    let requirements = requirements(state, request, tried_miners(earlier), avoided);
    let (found, chosen) = choose(drivers, &requirements, metagraph, &policy(state, false));
    let decision = found.decision(requirements.class, metagraph.block.0);
    Some(Box::new(new_attempt(state, request, earlier, chosen?, decision)))
}

/// The kind of executor that a job waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExecutorNeed {
    pub(super) class: ExecutorClass,
    /// Whether the executor must take an image from an archive or with a login.
    pub(super) private_image: bool,
}

impl ExecutorNeed {
    /// The kind of executor for a job that everybody may read the image of.
    pub(super) fn of_class(class: ExecutorClass) -> Self {
        Self {
            class,
            private_image: false,
        }
    }

    /// The kind of executor that this job needs.
    pub(super) fn of_job(request: &JobRequest) -> Self {
        Self {
            class: request.executor_class,
            private_image: request.has_private_image(),
        }
    }
}

/// The route of a user's job with this need that no miner was asked for yet, by what the ledger knows now.
pub(super) fn route_class(drivers: &JobDrivers, need: ExecutorNeed, metagraph: &Metagraph) -> Route {
    let requirements = JobRequirements {
        job: JobId::from_uuid(Uuid::nil()),
        class: need.class,
        private_image: need.private_image,
        image: CacheKey::image(""),
        inputs: BTreeSet::new(),
        tried: BTreeSet::new(),
        avoided_owners: BTreeSet::new(),
        reserved_us: 0,
    };
    let neurons = routable_neurons(&drivers.state, metagraph, Some(need.class), None);
    let miners = neurons.iter().map(|neuron| neuron.miner);
    let now = drivers.state.clock.now();
    let mut stats = drivers.ledger().stats(miners, &BTreeSet::new(), now);
    add_proven(&drivers.state, need.class, &mut stats);
    route(&requirements, &neurons, &stats, &policy(&drivers.state, false))
}

/// Whether a miner that is not among these may run a job with this need, now or later.
fn may_be_asked_later(
    drivers: &JobDrivers,
    need: ExecutorNeed,
    tried: &BTreeSet<MinerKey>,
    metagraph: &Metagraph,
) -> bool {
    let mut found = route_class(drivers, need, metagraph);
    found
        .candidates
        .retain(|candidate| !tried.contains(&candidate.miner));
    found.excluded.retain(|excluded| !tried.contains(&excluded.miner));
    match availability(&found) {
        Availability::Now(_) | Availability::Later(_) => true,
        Availability::Never => false,
    }
}

/// The subnet's offers by class.
pub(super) fn capacities(
    drivers: &JobDrivers,
    metagraph: &Metagraph,
) -> BTreeMap<ExecutorClass, ClassCapacity> {
    let neurons = routable_neurons(&drivers.state, metagraph, None, None);
    let miners = neurons.iter().map(|neuron| neuron.miner);
    let now = drivers.state.clock.now();
    let stats = drivers.ledger().stats(miners, &BTreeSet::new(), now);
    class_capacities(&neurons, &stats, &policy(&drivers.state, false))
}

/// Assigns a miner to a job that does not wait in the queue, and stores the attempt. While the chain has not answered
/// since the start no miner is known, and the job waits for it, for `chain.wait_s` at most.
pub(super) async fn assign(
    drivers: &JobDrivers,
    request: &JobRequest,
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
    // None that was asked before: a miner that was busy is asked again only after the job has waited.
    let asked = earlier.iter().map(|attempt| attempt.miner).collect();
    let avoided = avoided_owners(earlier, &metagraph);
    let (requirements, policy) = (
        requirements(state, request, asked, avoided),
        policy(state, is_own),
    );
    let mut used = Arc::clone(&metagraph);
    let (mut found, mut chosen) = choose(drivers, &requirements, &metagraph, &policy);
    // A miner may have announced itself since the metagraph was read, so look at a newer one before turning the user
    // away.
    if chosen.is_none()
        && let Some(newer) = state.subnet.read_newer_than(&metagraph).await
    {
        (found, chosen) = choose(drivers, &requirements, &newer, &policy);
        used = newer;
    }
    let decision = found.decision(requirements.class, used.block.0);
    let Some(chosen) = chosen else {
        let need = ExecutorNeed::of_job(request);
        let outcome = no_miner_fits(drivers, need, &found, &used);
        if !is_own && may_be_asked_later(drivers, need, &unaskable_miners(earlier, Some(&used)), &used) {
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
    request: &JobRequest,
    tried: BTreeSet<MinerKey>,
    avoided_owners: BTreeSet<Hotkey>,
) -> JobRequirements {
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
fn reserved_us(state: &ValidatorState, request: &JobRequest) -> u64 {
    let details = request.streaming_details.as_ref();
    if details.is_some_and(|details| details.muster.is_some()) {
        return 0;
    }
    let plan = plan(&state.config.timing, request);
    plan.executor_seconds().saturating_mul(1_000_000)
}

/// The miners that have had their attempt at a job: all but those that only said that they were busy.
fn tried_miners(earlier: &[StoredAttempt]) -> BTreeSet<MinerKey> {
    let real = earlier.iter().filter(|attempt| !was_declined_as_busy(attempt));
    real.map(|attempt| attempt.miner).collect()
}

/// The miners that must not be asked again for a job: those that were tried, and the others of an owner whose miner did
/// not get the job's image in time.
pub(super) fn unaskable_miners(
    earlier: &[StoredAttempt],
    metagraph: Option<&Metagraph>,
) -> BTreeSet<MinerKey> {
    let mut miners = tried_miners(earlier);
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

/// How the last attempt ended that was more than a miner's word that it is busy.
pub(super) fn last_failure(attempts: &[StoredAttempt]) -> Option<Outcome> {
    let mut real = attempts
        .iter()
        .rev()
        .filter(|attempt| !was_declined_as_busy(attempt));
    real.find_map(|attempt| attempt.machine.outcome().cloned())
}

/// Whether the miner declined the attempt because it was busy.
pub(super) fn was_declined_as_busy(attempt: &StoredAttempt) -> bool {
    match attempt.machine.outcome() {
        Some(Outcome::Rejected(details)) => details.reason == JobRejectionReason::Busy,
        Some(Outcome::Completed(_) | Outcome::Failed(_) | Outcome::HordeFailed(_)) | None => false,
    }
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
    requirements: &JobRequirements,
    metagraph: &Metagraph,
    policy: &RoutingPolicy,
) -> (Route, Option<Candidate>) {
    let pinned = drivers.own_jobs.pinned_miner(requirements.job);
    let subjects = routable_neurons(&drivers.state, metagraph, Some(requirements.class), pinned);
    let mut images_and_inputs = requirements.inputs.clone();
    images_and_inputs.insert(requirements.image);
    let now = drivers.state.clock.now();
    let mut ledger = drivers.ledger();
    // A pinned miner is asked whatever its record says: if it has nothing free, it has to show why.
    let recorded = subjects.iter().map(|subject| subject.miner);
    let recorded = recorded.filter(|_| pinned.is_none());
    let mut standings = ledger.stats(recorded, &images_and_inputs, now);
    add_proven(&drivers.state, requirements.class, &mut standings);
    let found = route(requirements, &subjects, &standings, policy);
    let chosen = found.candidates.first().copied();
    if let Some(chosen) = chosen {
        ledger.open_attempt(chosen.miner, requirements.class);
        ledger.record_offer(chosen.miner, now);
    }
    (found, chosen)
}

/// Adds the executors that validators agree are proven to what the ledger knows.
fn add_proven(state: &ValidatorState, class: ExecutorClass, stats: &mut BTreeMap<MinerKey, MinerStats>) {
    let proven = state.proven();
    note_proven(stats, class, |miner| proven.of(miner, class));
}

/// The neurons of the subnet as routing needs them; only that of `pinned`, if not `None`.
fn routable_neurons(
    state: &ValidatorState,
    metagraph: &Metagraph,
    class: Option<ExecutorClass>,
    pinned: Option<MinerKey>,
) -> Vec<RoutableNeuron> {
    let neurons = metagraph.neurons.iter();
    // Grading leases what a miner says that it has, and pays nothing.
    let class = class.filter(|_| pinned.is_none());
    let (allowance, head) = (state.allowance.lock(), state.subnet.head());
    neurons
        .filter(|neuron| pinned.is_none_or(|miner| miner.0 == neuron.hotkey))
        .map(|neuron| RoutableNeuron {
            uid: neuron.uid.0,
            miner: MinerKey(neuron.hotkey),
            owner: neuron.coldkey,
            axon: neuron.axon,
            allowance_us: class
                .zip(head)
                .and_then(|(class, head)| allowance.left(MinerKey(neuron.hotkey), class, head.0)),
            collateral: match pinned {
                // Grading finds out what a miner has, and asks for no deposit.
                Some(_) => CollateralVerdict::NotRequired,
                None => state.collateral.verdict(MinerKey(neuron.hotkey)),
            },
        })
        .collect()
}

/// A new attempt on the chosen miner, with its signed started receipt.
fn new_attempt(
    state: &ValidatorState,
    request: &JobRequest,
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
        image_clock: false,
        traced: false,
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
        },
        decision,
        block: state.subnet.head(),
    }
}

fn plan(timing: &TimingConfig, request: &JobRequest) -> AttemptPlan {
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
    let offered = capacities(drivers, metagraph);
    let class = need.class;
    let image = if need.private_image {
        " with a private image"
    } else {
        ""
    };
    let message = match availability(found) {
        Availability::Later(reasons) => {
            format!("no miner can take a job of class {class}{image} now: {reasons}")
        }
        Availability::Now(_) | Availability::Never => {
            let mut offers = describe_offers(&offered);
            if need.private_image && !offered.is_empty() {
                offers = format!("{offers}; {}", describe_private_offers(&offered));
            }
            if let Some(short) = describe_collateral(found) {
                offers = format!("{offers}; {short}");
            }
            format!("no miner of this subnet can take a job of class {class}{image}: {offers}")
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

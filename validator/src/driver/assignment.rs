//! The assignment of a miner to a job: route by the metagraph and the ledger, and create the attempt.

use std::time::Duration;

use muster_chain::{Metagraph, Uid};
use muster_job_messages::outgoing::OutgoingMessages;
use muster_protocol::job::{Attempt, AttemptPlan, ImageClock, Outcome};
use muster_protocol::status::{JobRejectionReason, JobStage, ParticipantType};
use muster_protocol::wire::facilitator::{JobRequest, RejectionDetails};
use muster_protocol::wire::miner::ExecutorTiming;
use muster_protocol::{AttemptId, ErrorCode, MinerKey};
use muster_routing::{
    CacheKey, Candidate, JobRequirements, RoutableNeuron, Route, RouteDecision, RoutingPolicy, route,
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
    let (requirements, policy) = (requirements(request, &[], &metagraph), policy(state));
    let (found, chosen) = choose(drivers, &requirements, &metagraph, &policy);
    let decision = found.decision(requirements.class, metagraph.block.0);
    Some(new_attempt(state, request, &[], chosen?, decision))
}

/// Assigns a miner to a job and stores the attempt. While the chain has not answered since the start no miner is known,
/// and the job waits for it, for `chain.wait_s` at most.
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
            let message = "the chain does not answer, so no miner is known; submit the job again later";
            return Ok(Assignment::NoMiner(no_miner(message, Value::Null)));
        }
    };
    let (requirements, policy) = (requirements(request, earlier, &metagraph), policy(state));
    let mut block = metagraph.block;
    let (mut found, mut chosen) = choose(drivers, &requirements, &metagraph, &policy);
    // A miner may have announced itself since the metagraph was read, so look at a newer one before turning the user
    // away.
    if chosen.is_none()
        && let Some(newer) = state.subnet.read_newer_than(&metagraph).await
    {
        block = newer.block;
        (found, chosen) = choose(drivers, &requirements, &newer, &policy);
    }
    let decision = found.decision(requirements.class, block.0);
    let Some(chosen) = chosen else {
        let (ordinal, now) = (next_ordinal(earlier), state.clock.now());
        state
            .store
            .keep_decision(request.uuid, ordinal, &decision, now)
            .await?;
        return Ok(Assignment::NoMiner(no_miner_fits(request, &found)));
    };
    let attempt = new_attempt(state, request, earlier, chosen, decision);
    state.store.begin_attempt(request.uuid, &attempt).await?;
    Ok(Assignment::Attempt(Box::new(attempt)))
}

fn requirements(request: &JobRequest, earlier: &[StoredAttempt], metagraph: &Metagraph) -> JobRequirements {
    let avoided = earlier
        .iter()
        .filter(|attempt| attempt.image_failure().is_some())
        .filter_map(|attempt| metagraph.find(&attempt.miner.0));
    JobRequirements {
        avoided_owners: avoided.map(|neuron| neuron.coldkey).collect(),
        job: request.uuid,
        class: request.executor_class,
        image: CacheKey::image(&request.docker_image),
        inputs: CacheKey::inputs(request.volume.as_ref()),
        tried: earlier.iter().map(|attempt| attempt.miner).collect(),
    }
}

fn policy(state: &ValidatorState) -> RoutingPolicy {
    state.config.routing.policy(state.keypair.hotkey())
}

/// The number of the attempt after these; the first is 1.
fn next_ordinal(earlier: &[StoredAttempt]) -> u32 {
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
    let neurons = metagraph.neurons.iter();
    let subjects: Vec<_> = neurons
        .filter(|neuron| pinned.is_none_or(|miner| miner.0 == neuron.hotkey))
        .map(|neuron| RoutableNeuron {
            uid: neuron.uid.0,
            miner: MinerKey(neuron.hotkey),
            owner: neuron.coldkey,
            axon: neuron.axon,
        })
        .collect();
    let mut images_and_inputs = requirements.inputs.clone();
    images_and_inputs.insert(requirements.image);
    let now = drivers.state.clock.now();
    let mut ledger = drivers.ledger();
    // A pinned miner is asked whatever its record says: if it has nothing free, it has to show why.
    let recorded = subjects.iter().map(|subject| subject.miner);
    let recorded = recorded.filter(|_| pinned.is_none());
    let standings = ledger.stats(recorded, &images_and_inputs, now);
    let found = route(requirements, &subjects, &standings, policy);
    let chosen = found.candidates.first().copied();
    if let Some(chosen) = chosen {
        ledger.open_attempt(chosen.miner, requirements.class);
        ledger.record_offer(chosen.miner, now);
    }
    (found, chosen)
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

fn no_miner_fits(request: &JobRequest, route: &Route) -> Outcome {
    let code = ErrorCode::NoMiner;
    tracing::warn!(%code, job = %request.uuid, class = %request.executor_class, excluded = %route.explain(), "no miner for a job");
    let message = format!("no miner can take a job of class {} now", request.executor_class);
    no_miner(&message, json!({ "excluded": route.explain() }))
}

fn no_miner(message: &str, context: Value) -> Outcome {
    Outcome::Rejected(RejectionDetails {
        rejected_by: ParticipantType::Validator,
        reason: JobRejectionReason::NoMinerForJob,
        message: message.to_owned(),
        context: Some(context).filter(|context| !context.is_null()),
    })
}

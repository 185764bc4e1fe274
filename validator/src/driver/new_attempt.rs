//! A new attempt on a chosen miner: its id, its times and its started receipt.

use std::time::Duration;

use muster_chain::Uid;
use muster_job_messages::outgoing::OutgoingMessages;
use muster_protocol::job::{Attempt, AttemptPlan, ImageClock};
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::wire::miner::ExecutorTiming;
use muster_protocol::{AttemptId, FeatureSet};
use muster_routing::{Candidate, RouteDecision};
use uuid::Uuid;

use crate::config::TimingConfig;
use crate::store::{NewAttempt, StoredAttempt};
use crate::validator_state::ValidatorState;

/// The number of the attempt after these; the first is 1.
pub(super) fn next_ordinal(earlier: &[StoredAttempt]) -> u32 {
    u32::try_from(earlier.len()).unwrap_or(u32::MAX).saturating_add(1)
}

/// A new attempt on the chosen miner, with its signed started receipt.
pub(super) fn new_attempt(
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
        output: None,
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

/// The executor-microseconds that a job may be paid. A sealed session is paid for the time that it lasts, which nobody
/// knows when it begins.
pub(super) fn reserved_us(state: &ValidatorState, request: &UserJobRequest) -> u64 {
    let details = request.streaming_details.as_ref();
    if details.is_some_and(|details| details.muster.is_some()) {
        return 0;
    }
    lasts_s(state, request).saturating_mul(1_000_000)
}

/// The executor-seconds that a job may take, by the limits of its times.
pub(super) fn lasts_s(state: &ValidatorState, request: &UserJobRequest) -> u64 {
    plan(&state.config.timing, request).executor_seconds()
}

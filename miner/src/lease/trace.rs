//! The stages of a lease as they are sent to its validator with the end, if its offer had the context of a trace.

use muster_protocol::trace::TRACE_KEY;
use muster_protocol::wire::validator_socket::MinerToValidator;
use muster_protocol::{
    AttemptId, JobTrace, ParticipantType, StageTime, Timestamp, TraceParent, TraceStage, context_below,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{FetchStage, LeaseStage, LeaseState};

/// The most stages that an executor is believed: twice as many as there are.
const MAX_TOLD: usize = 24;

/// The part of a lease's trace that outlives the miner's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedLease {
    /// The context that the validator gave.
    pub parent: TraceParent,
    /// When the miner accepted the offer.
    pub began: Timestamp,
}

/// The trace of one lease.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LeaseTrace {
    pub(super) kept: TracedLease,
    /// When the lease came to its stages. Empty for a lease of an earlier process, whose stages are not known.
    reached: Vec<(TraceStage, Timestamp)>,
    /// The time of the event that is being applied.
    now: Timestamp,
}

impl LeaseTrace {
    /// The trace of a lease that was just accepted.
    pub(super) fn new(parent: TraceParent, now: Timestamp) -> Self {
        Self {
            kept: TracedLease { parent, began: now },
            reached: vec![(TraceStage::Start, now)],
            now,
        }
    }

    /// The trace of a lease that an earlier process accepted.
    pub(super) fn restored(kept: TracedLease, now: Timestamp) -> Self {
        Self {
            kept,
            reached: Vec::new(),
            now,
        }
    }

    /// The context under which the executor works.
    pub(super) fn for_executor(&self, attempt: AttemptId) -> TraceParent {
        let (parent, attempt) = (self.kept.parent, attempt.as_uuid());
        context_below(parent, attempt, ParticipantType::Miner, TraceStage::Lease)
    }

    pub(super) fn begin_event(&mut self, now: Timestamp) {
        self.now = now;
    }

    /// Notes the state after an event.
    pub(super) fn note(&mut self, state: LeaseState) {
        let Some(stage) = stage_of(state) else { return };
        let is_new = self.reached.last().is_some_and(|(last, _)| *last != stage);
        if is_new {
            self.reached.push((stage, self.now));
        }
    }

    /// The miner's stages until now, the whole lease last.
    fn stages(&self) -> Vec<StageTime> {
        let ends = self.reached.iter().skip(1).map(|(_, at)| *at).chain([self.now]);
        let role = ParticipantType::Miner;
        let passed = self.reached.iter().zip(ends);
        let mut stages: Vec<_> = passed
            .map(|((stage, began), ended)| StageTime::new(role, *stage, *began, ended))
            .collect();
        stages.push(StageTime::new(role, TraceStage::Lease, self.kept.began, self.now));
        stages
    }
}

/// The stage of a state; `None` once the lease has ended.
fn stage_of(state: LeaseState) -> Option<TraceStage> {
    Some(match state {
        LeaseState::WaitingForExecutor => TraceStage::Start,
        LeaseState::Preparing => TraceStage::Image,
        LeaseState::Fetching(FetchStage::Waiting) => TraceStage::FetchWait,
        LeaseState::Fetching(FetchStage::Granted) => TraceStage::Pull,
        LeaseState::Fetching(FetchStage::Arrived) => TraceStage::Queue,
        LeaseState::WaitingForPayload => TraceStage::Handover,
        LeaseState::Running(LeaseStage::Fetching) => TraceStage::Volumes,
        LeaseState::Running(LeaseStage::Executing) => TraceStage::Run,
        LeaseState::Running(LeaseStage::Serving) => TraceStage::Serve,
        LeaseState::Running(LeaseStage::Delivering) => TraceStage::Collect,
        LeaseState::Ended(_) => return None,
    })
}

/// Puts the lease's trace into its last message, in place of the executor's: the executor's own stages stay. Without a
/// trace the validator gets none.
pub(super) fn add_trace(trace: Option<&LeaseTrace>, message: &mut MinerToValidator) {
    let merge = |told: Option<JobTrace>| {
        let trace = trace?;
        let mut merged = JobTrace::new(trace.kept.parent);
        merged.stages = trace.stages();
        let told = told.filter(|told| told.traceparent.trace == merged.traceparent.trace);
        let executors = told.into_iter().flat_map(|told| told.stages);
        let executors = executors.filter(|time| time.role == ParticipantType::Executor);
        merged.stages.extend(executors.take(MAX_TOLD));
        Some(merged)
    };
    let context = if let MinerToValidator::V0JobFinishedRequest(finished) = message {
        finished.trace = merge(finished.trace.take().map(|told| *told)).map(Box::new);
        return;
    } else if let MinerToValidator::V0JobFailedRequest(failed) = message {
        &mut failed.context
    } else if let MinerToValidator::V0HordeFailedRequest(failed) = message {
        &mut failed.context
    } else {
        return;
    };
    let fields = context.as_mut().and_then(Value::as_object_mut);
    if let Some(merged) = merge(fields.and_then(JobTrace::take_from)) {
        let context = context.get_or_insert_with(|| Value::Object(Map::new()));
        if let Some(fields) = context.as_object_mut() {
            fields.insert(TRACE_KEY.to_owned(), json!(merged));
        }
    }
}

/// The trace in the last message of a lease.
pub(crate) fn read_trace(last: &MinerToValidator) -> Option<JobTrace> {
    let in_context = |context: &Option<Value>| context.as_ref()?.get(TRACE_KEY).and_then(JobTrace::read);
    if let MinerToValidator::V0JobFinishedRequest(finished) = last {
        finished.trace.as_deref().cloned()
    } else if let MinerToValidator::V0JobFailedRequest(failed) = last {
        in_context(&failed.context)
    } else if let MinerToValidator::V0HordeFailedRequest(failed) = last {
        in_context(&failed.context)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::horde_failed;
    use super::*;
    use muster_protocol::wire::miner::JobFinished;
    use muster_protocol::{HordeFailureReason, JobId, context_for_validator};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    fn attempt() -> AttemptId {
        "11111111-2222-4333-8444-555555555555".parse().unwrap()
    }

    fn traced() -> LeaseTrace {
        let job = JobId::from_uuid(*attempt().as_uuid());
        let mut trace = LeaseTrace::new(context_for_validator(None, job), at(10));
        for (second, state) in [
            (12, LeaseState::Preparing),
            (12, LeaseState::Preparing),
            (15, LeaseState::Running(LeaseStage::Executing)),
        ] {
            trace.begin_event(at(second));
            trace.note(state);
        }
        trace.begin_event(at(20));
        trace
    }

    fn finished(told: Option<JobTrace>) -> MinerToValidator {
        MinerToValidator::V0JobFinishedRequest(JobFinished {
            job_uuid: attempt(),
            docker_process_stdout: String::new(),
            docker_process_stderr: String::new(),
            artifacts: None,
            upload_results: None,
            image: None,
            trace: told.map(Box::new),
            completion: None,
        })
    }

    #[test]
    fn the_miners_stages_stand_beside_those_of_its_executor() {
        let trace = traced();
        let mut told = JobTrace::new(trace.for_executor(attempt()));
        let stage = |role| StageTime::new(role, TraceStage::Run, at(15), at(19));
        told.stages = vec![
            stage(ParticipantType::Executor),
            stage(ParticipantType::Validator),
        ];
        let mut message = finished(Some(told));
        add_trace(Some(&trace), &mut message);
        let seen = read_trace(&message).unwrap();
        assert_eq!(seen.traceparent, trace.kept.parent);
        let names: Vec<_> = seen
            .stages
            .iter()
            .map(|time| format!("{} {} {}", time.role, time.stage, time.took_us / 1_000_000))
            .collect();
        assert_eq!(
            names,
            [
                "miner start 2",
                "miner image 3",
                "miner run 5",
                "miner lease 10",
                "executor run 4"
            ]
        );
        // An executor of another trace is not believed.
        let other = context_for_validator(None, JobId::from_uuid(uuid::Uuid::from_u128(7)));
        let mut told = JobTrace::new(other);
        told.stages = vec![stage(ParticipantType::Executor)];
        let mut message = finished(Some(told));
        add_trace(Some(&trace), &mut message);
        assert_eq!(read_trace(&message).unwrap().stages.len(), 4);
    }

    #[test]
    fn a_failure_has_the_stages_in_its_context_and_a_lease_without_a_trace_tells_none() {
        let reason = HordeFailureReason::ExecutorDisconnected;
        let mut message = horde_failed(attempt(), ParticipantType::Miner, reason, "lost".to_owned());
        add_trace(Some(&traced()), &mut message);
        assert_eq!(read_trace(&message).unwrap().stages.len(), 4);
        let mut stranger = finished(read_trace(&message));
        add_trace(None, &mut stranger);
        assert_eq!(read_trace(&stranger), None);
        if let MinerToValidator::V0HordeFailedRequest(failed) = &mut message {
            failed.context = Some(json!("free in form"));
        }
        add_trace(None, &mut message);
        assert_eq!(read_trace(&message), None);
    }

    #[test]
    fn a_lease_of_an_earlier_process_tells_its_whole_time() {
        let trace = LeaseTrace::restored(traced().kept, at(30));
        let [whole] = trace.stages().try_into().unwrap();
        assert_eq!(
            (whole.stage, whole.began(), whole.ended()),
            (TraceStage::Lease, at(10), at(30))
        );
    }
}

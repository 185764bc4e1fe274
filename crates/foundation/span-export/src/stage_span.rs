//! Stages of jobs as spans: each with its id and the span above it. Pure.

use muster_protocol::trace::span_id;
use muster_protocol::trace_context::{SpanId, TraceId};
use muster_protocol::{AttemptId, JobTrace, ParticipantType, StageTime, Timestamp, TraceStage};
use uuid::Uuid;

/// A stage as a span of its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageSpan {
    /// The trace that the span belongs to.
    pub trace: TraceId,
    /// The span's own id.
    pub id: SpanId,
    /// The span above it; `None` at the top of a trace.
    pub parent: Option<SpanId>,
    /// The stage and its time.
    pub time: StageTime,
}

/// Whether the stage is its role's whole part of the job or of an attempt.
pub fn is_root(time: &StageTime) -> bool {
    let root = match time.role {
        ParticipantType::Facilitator => TraceStage::Request,
        ParticipantType::Validator => TraceStage::Job,
        ParticipantType::Miner => TraceStage::Lease,
        ParticipantType::Executor => TraceStage::Attempt,
        ParticipantType::Sdk | ParticipantType::Unknown => return false,
    };
    time.stage == root
}

/// The facilitator's stages of a job, by the times at which it recorded the job's statuses, oldest first: the whole
/// request, and its delivery to the validator.
pub fn facilitator_stages(statuses: &[Timestamp]) -> Vec<StageTime> {
    let (Some(sent), Some(last)) = (statuses.first(), statuses.last()) else {
        return Vec::new();
    };
    let stage = |stage, ended: &Timestamp| StageTime::new(ParticipantType::Facilitator, stage, *sent, *ended);
    let delivery = statuses
        .get(1)
        .map(|received| stage(TraceStage::Delivery, received));
    [Some(stage(TraceStage::Request, last)), delivery]
        .into_iter()
        .flatten()
        .collect()
}

/// The stages of `role` as spans. `owner` is the job, or for miners and executors the attempt; `above` is the span
/// above the role's root.
pub fn spans_of(
    trace: &JobTrace,
    role: ParticipantType,
    owner: &Uuid,
    above: Option<SpanId>,
) -> Vec<StageSpan> {
    let id = trace.traceparent.trace;
    let id_of = |owner: &Uuid, stage| span_id(id, owner, role, stage);
    let own = trace.stages.iter().filter(|time| time.role == role);
    own.map(|time| {
        let of = time.attempt.as_ref().map_or(owner, AttemptId::as_uuid);
        let parent = match (role, time.stage) {
            _ if is_root(time) => above,
            (ParticipantType::Facilitator, _) => Some(id_of(owner, TraceStage::Request)),
            (ParticipantType::Validator, TraceStage::Attempt | TraceStage::Queue) => {
                Some(id_of(owner, TraceStage::Job))
            }
            (ParticipantType::Miner, _) => Some(id_of(of, TraceStage::Lease)),
            (ParticipantType::Validator | ParticipantType::Executor, _) => {
                Some(id_of(of, TraceStage::Attempt))
            }
            (ParticipantType::Sdk | ParticipantType::Unknown, _) => None,
        };
        StageSpan {
            trace: id,
            id: id_of(of, time.stage),
            parent,
            time: *time,
        }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use muster_protocol::{JobId, context_for_validator};

    use super::*;

    fn job() -> JobId {
        "11111111-2222-4333-8444-555555555555".parse().unwrap()
    }

    #[test]
    fn stages_become_spans_under_the_root_of_their_role() {
        let attempt = AttemptId::first_of(job());
        let parent = context_for_validator(None, job());
        let at = Timestamp::from_secs;
        let time = |role, stage| StageTime::new(role, stage, at(10), at(12));
        let validator = ParticipantType::Validator;
        let mut trace = JobTrace::new(parent);
        trace.stages = vec![
            time(validator, TraceStage::Job),
            StageTime {
                attempt: Some(attempt),
                ..time(validator, TraceStage::Attempt)
            },
            StageTime {
                attempt: Some(attempt),
                ..time(validator, TraceStage::Run)
            },
            time(ParticipantType::Miner, TraceStage::Lease),
        ];
        let spans = spans_of(&trace, validator, job().as_uuid(), Some(parent.span));
        let parents: Vec<_> = spans.iter().map(|span| span.parent).collect();
        assert_eq!(parents, [Some(parent.span), Some(spans[0].id), Some(spans[1].id)]);
        let miners = spans_of(
            &trace,
            ParticipantType::Miner,
            attempt.as_uuid(),
            Some(spans[1].id),
        );
        assert_eq!((miners.len(), miners[0].parent), (1, Some(spans[1].id)));
        assert_eq!(spans[0].time.ended(), at(12));
    }
}

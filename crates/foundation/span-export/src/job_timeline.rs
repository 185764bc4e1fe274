//! The way of one job across the roles, as its facilitator knows it, in the order in which people read it.

use muster_protocol::rest::JobView;
use muster_protocol::{
    AttemptId, JobTrace, ParticipantType, StageTime, Timestamp, TraceStage, context_for_validator,
};

use crate::stage_span::{facilitator_stages, is_root};

/// The whole trace of a job, as its facilitator knows it: its own stages, and those that came with the job's end.
pub fn trace_of(view: &JobView) -> JobTrace {
    let told = view.status_history.iter().rev().find_map(|entry| {
        let extension = entry.metadata.as_ref()?.muster.as_ref()?;
        extension.trace.as_deref().cloned()
    });
    let mut trace = told.unwrap_or_else(|| JobTrace::new(context_for_validator(None, view.uuid)));
    // A validator does not speak for the facilitator.
    trace
        .stages
        .retain(|time| time.role != ParticipantType::Facilitator);
    let times: Vec<_> = view.status_history.iter().map(|entry| entry.created_at).collect();
    trace.stages.splice(0..0, facilitator_stages(&times));
    trace
}

/// The stages with their depths: a role's whole time, then its stages by their begin, then the role behind it.
pub fn order_stages(stages: &[StageTime]) -> Vec<(usize, StageTime)> {
    let mut attempts: Vec<(Timestamp, Option<AttemptId>)> = Vec::new();
    for time in stages.iter().filter(|time| time.attempt.is_some()) {
        match attempts.iter_mut().find(|(_, attempt)| *attempt == time.attempt) {
            Some((began, _)) => *began = time.began().min(*began),
            None => attempts.push((time.began(), time.attempt)),
        }
    }
    attempts.sort();
    let mut ordered = Vec::with_capacity(stages.len());
    for role in [ParticipantType::Facilitator, ParticipantType::Validator] {
        push(&mut ordered, stages, |time| {
            time.role == role && time.attempt.is_none()
        });
    }
    for (_, attempt) in attempts {
        for role in [
            ParticipantType::Validator,
            ParticipantType::Miner,
            ParticipantType::Executor,
        ] {
            push(&mut ordered, stages, |time| {
                time.role == role && time.attempt == attempt
            });
        }
    }
    ordered
}

/// Adds the stages that `is_wanted`, the root of their role first.
fn push(ordered: &mut Vec<(usize, StageTime)>, stages: &[StageTime], is_wanted: impl Fn(&StageTime) -> bool) {
    let mut wanted: Vec<_> = stages.iter().filter(|time| is_wanted(time)).copied().collect();
    wanted.sort_by_key(|time| (rank(time), time.began()));
    ordered.extend(wanted.into_iter().map(|time| (depth(&time), time)));
}

/// The order of a role's stages: the wait before an attempt, the whole, and its parts.
fn rank(time: &StageTime) -> u8 {
    match (time.role, time.stage) {
        _ if is_root(time) => 0,
        (ParticipantType::Validator, TraceStage::Queue) => 1,
        (ParticipantType::Validator, TraceStage::Attempt) => 2,
        _ => 3,
    }
}

/// How deep a stage stands below the request.
fn depth(time: &StageTime) -> usize {
    let root = match (time.role, time.stage) {
        (ParticipantType::Facilitator | ParticipantType::Sdk | ParticipantType::Unknown, _) => 0,
        (ParticipantType::Validator, TraceStage::Job) => 1,
        (ParticipantType::Validator, TraceStage::Queue | TraceStage::Attempt) => return 2,
        (ParticipantType::Validator, _) => 2,
        (ParticipantType::Miner, _) => 3,
        (ParticipantType::Executor, _) => 4,
    };
    if is_root(time) {
        root
    } else {
        root.saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_stands_below_the_one_that_asked_it() {
        use ParticipantType::{Executor, Facilitator, Miner, Validator};
        let at = |seconds: i64| Timestamp::from_secs(1_769_000_000 + seconds);
        let attempt: Option<AttemptId> = "11111111-2222-4333-8444-555555555555".parse().ok();
        let time = |role, stage, began, ended, attempt| StageTime {
            attempt,
            ..StageTime::new(role, stage, at(began), at(ended))
        };
        let stages = [
            time(Executor, TraceStage::Run, 4, 8, attempt),
            time(Miner, TraceStage::Lease, 3, 9, attempt),
            time(Validator, TraceStage::Attempt, 2, 9, attempt),
            time(Validator, TraceStage::Job, 1, 9, None),
            time(Facilitator, TraceStage::Request, 0, 10, None),
        ];
        let way = order_stages(&stages);
        let roles: Vec<_> = way.iter().map(|(_, time)| time.role).collect();
        assert_eq!(roles, [Facilitator, Validator, Validator, Miner, Executor]);
        let depths: Vec<_> = way.iter().map(|(depth, _)| *depth).collect();
        assert!(depths.is_sorted(), "{depths:?}");
    }
}

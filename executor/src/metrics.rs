//! The metrics of attempts: their stages and their ends.

use std::time::Duration;

use muster_protocol::job::Fault;
use muster_protocol::{JobTrace, ParticipantType, StageTime, Timestamp, TraceParent, TraceStage};

use crate::attempt_state::{AttemptFailure, AttemptState, Conclusion, FailureKind};

/// The clock of an attempt's stages.
#[derive(Debug)]
pub(crate) struct StageClock {
    began: Timestamp,
    stage: Option<AttemptStageName>,
    since: Timestamp,
    /// The stages that have ended, each once.
    passed: Vec<StageTime>,
}

/// A stage by its name in metrics, and in traces.
type AttemptStageName = (&'static str, TraceStage);

impl StageClock {
    /// The clock of an attempt that begins at `now` in `state`.
    pub(crate) fn new(state: AttemptState, now: Timestamp) -> Self {
        Self {
            began: now,
            stage: stage_of(state),
            since: now,
            passed: Vec::new(),
        }
    }

    /// The clock of an attempt whose job another process of this machine began.
    pub(crate) fn resumed(state: AttemptState, job_since: Timestamp, started: Timestamp) -> Self {
        Self {
            began: job_since,
            ..Self::new(state, started)
        }
    }

    /// The attempt's stages until now, under the context of its offer.
    pub(crate) fn trace(&self, context: TraceParent, now: Timestamp) -> JobTrace {
        let executor = ParticipantType::Executor;
        let mut trace = JobTrace::new(context);
        trace.stages.clone_from(&self.passed);
        let open = self.stage.map(|(_, stage)| stage);
        let open = open.filter(|stage| trace.stages.iter().all(|passed| passed.stage != *stage));
        trace
            .stages
            .extend(open.map(|stage| StageTime::new(executor, stage, self.since, now)));
        trace
            .stages
            .push(StageTime::new(executor, TraceStage::Attempt, self.began, now));
        trace
    }

    /// Records the time of the stage that has ended, if `state` is of another one.
    pub(crate) fn note(&mut self, state: AttemptState, now: Timestamp) {
        if let Some(((stage, traced), took)) = self.turn(state, now) {
            if self.passed.iter().all(|passed| passed.stage != traced) {
                let began = now.minus(took);
                self.passed
                    .push(StageTime::new(ParticipantType::Executor, traced, began, now));
            }
            metrics::histogram!("muster_executor_stage_seconds", "stage" => stage).record(took.as_secs_f64());
        }
    }

    fn turn(&mut self, state: AttemptState, now: Timestamp) -> Option<(AttemptStageName, Duration)> {
        let next = stage_of(state);
        if next == self.stage {
            return None;
        }
        let ended = self.stage.map(|stage| (stage, now.since(self.since)));
        (self.stage, self.since) = (next, now);
        ended
    }
}

/// The stage of a state; `None` once the attempt is over.
fn stage_of(state: AttemptState) -> Option<AttemptStageName> {
    match state {
        AttemptState::AwaitingOffer => Some(("offer", TraceStage::Offer)),
        AttemptState::PreparingImage(_) => Some(("image", TraceStage::Image)),
        AttemptState::AwaitingFetch(_) => Some(("fetch_wait", TraceStage::FetchWait)),
        AttemptState::PullingImage(_) | AttemptState::FetchingImage(..) => Some(("pull", TraceStage::Pull)),
        AttemptState::AwaitingJob(_) => Some(("job", TraceStage::Handover)),
        AttemptState::PlacingVolumes(_) => Some(("volumes", TraceStage::Volumes)),
        AttemptState::Running(_) | AttemptState::Starting(_) => Some(("run", TraceStage::Run)),
        AttemptState::Serving(_) | AttemptState::Closing(_) => Some(("serve", TraceStage::Serve)),
        AttemptState::Stopping(_) => Some(("stop", TraceStage::Stop)),
        AttemptState::Collecting | AttemptState::Salvaging => Some(("collect", TraceStage::Collect)),
        AttemptState::Over => None,
    }
}

/// Counts the end of an attempt.
pub(crate) fn count_end(conclusion: &Conclusion) {
    let (outcome, fault) = end_of(conclusion);
    let fault = fault.name();
    // The span of the attempt has its id.
    tracing::info!(outcome, fault, "attempt over");
    metrics::counter!("muster_executor_jobs_ended_total", "outcome" => outcome, "fault" => fault)
        .increment(1);
}

fn end_of(conclusion: &Conclusion) -> (&'static str, Fault) {
    match conclusion {
        Conclusion::Finished => ("finished", Fault::Nobody),
        Conclusion::Failed(failure) => ("failed", fault_of(failure)),
        Conclusion::Abandoned(_) => ("abandoned", Fault::Nobody),
    }
}

/// The party at fault: the user's program fails by the user's own fault.
fn fault_of(failure: &AttemptFailure) -> Fault {
    match failure.kind {
        FailureKind::Job { .. } => Fault::User,
        FailureKind::Horde(_) => failure.fault,
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::{HordeFailureReason, JobFailureReason, JobStage, context_for_validator};

    use super::*;
    use crate::attempt_state::Abandonment;

    #[test]
    fn a_stage_is_recorded_once_when_the_next_one_begins() {
        let at = Timestamp::from_secs;
        let mut clock = StageClock::new(AttemptState::AwaitingOffer, at(10));
        assert_eq!(clock.turn(AttemptState::AwaitingOffer, at(11)), None);
        assert_eq!(
            clock.turn(AttemptState::Collecting, at(14)),
            Some((("offer", TraceStage::Offer), Duration::from_secs(4)))
        );
        assert_eq!(
            clock.turn(AttemptState::Salvaging, at(15)),
            None,
            "the same stage"
        );
        assert_eq!(
            clock.turn(AttemptState::Over, at(17)),
            Some((("collect", TraceStage::Collect), Duration::from_secs(3)))
        );
        assert_eq!(clock.turn(AttemptState::Over, at(20)), None);
    }

    #[test]
    fn a_trace_has_each_stage_once_and_the_whole_attempt() {
        let at = Timestamp::from_secs;
        let mut clock = StageClock::new(AttemptState::AwaitingOffer, at(10));
        clock.note(AttemptState::Collecting, at(12));
        clock.note(AttemptState::AwaitingOffer, at(13));
        clock.note(AttemptState::Collecting, at(14));
        let job = muster_protocol::JobId::from_uuid(uuid::Uuid::from_u128(1));
        let trace = clock.trace(context_for_validator(None, job), at(20));
        let seen: Vec<_> = trace
            .stages
            .iter()
            .map(|time| (time.stage.as_str(), time.began().secs(), time.ended().secs()))
            .collect();
        assert_eq!(
            seen,
            [("offer", 10, 12), ("collect", 12, 13), ("attempt", 10, 20)]
        );
        let taken_over = StageClock::resumed(AttemptState::Collecting, at(1), at(5));
        let trace = taken_over.trace(context_for_validator(None, job), at(9));
        assert_eq!((trace.stages[0].began(), trace.stages[1].began()), (at(5), at(1)));
    }

    #[test]
    fn a_failure_counts_against_the_party_at_fault() {
        let own = AttemptFailure::job(JobFailureReason::NonzeroReturnCode, JobStage::Execution, "exit 3");
        assert_eq!(end_of(&Conclusion::Failed(own)), ("failed", Fault::User));
        let horde = AttemptFailure::horde(HordeFailureReason::GenericError, JobStage::Execution, "gone");
        let horde = horde.blame(Fault::Network);
        assert_eq!(end_of(&Conclusion::Failed(horde)), ("failed", Fault::Network));
        let abandoned = Conclusion::Abandoned(Abandonment::NoOffer);
        assert_eq!(end_of(&abandoned), ("abandoned", Fault::Nobody));
    }
}

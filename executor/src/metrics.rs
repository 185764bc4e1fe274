//! The executor's metrics: the stages and the ends of attempts, and the state of a persistent executor.

use std::sync::Arc;
use std::time::Duration;

use muster_attempt_state::{AttemptFailure, AttemptState, Conclusion, FailureKind};
use muster_containers::ContainerEngine;
use muster_protocol::Timestamp;
use muster_protocol::job::Fault;

use crate::persistent::PersistentExecutor;

/// How often a persistent executor is measured.
const MEASURE_EVERY: Duration = Duration::from_secs(5);
/// The time that the engine has for its answer.
const ENGINE_LIMIT: Duration = Duration::from_secs(3);

/// The clock of an attempt's stage.
#[derive(Debug)]
pub(crate) struct StageClock {
    stage: Option<&'static str>,
    since: Timestamp,
}

impl StageClock {
    /// The clock of an attempt that begins at `now` in `state`.
    pub(crate) fn new(state: AttemptState, now: Timestamp) -> Self {
        Self {
            stage: stage_of(state),
            since: now,
        }
    }

    /// Records the time of the stage that has ended, if `state` is of another one.
    pub(crate) fn note(&mut self, state: AttemptState, now: Timestamp) {
        if let Some((stage, took)) = self.turn(state, now) {
            metrics::histogram!("muster_executor_stage_seconds", "stage" => stage).record(took.as_secs_f64());
        }
    }

    fn turn(&mut self, state: AttemptState, now: Timestamp) -> Option<(&'static str, Duration)> {
        let next = stage_of(state);
        if next == self.stage {
            return None;
        }
        let ended = self.stage.map(|stage| (stage, now.since(self.since)));
        (self.stage, self.since) = (next, now);
        ended
    }
}

/// The name of a state's stage; `None` once the attempt is over.
fn stage_of(state: AttemptState) -> Option<&'static str> {
    match state {
        AttemptState::AwaitingOffer => Some("offer"),
        AttemptState::PreparingImage(_) => Some("image"),
        AttemptState::AwaitingFetch(_) => Some("fetch_wait"),
        AttemptState::PullingImage(_) | AttemptState::FetchingImage(..) => Some("pull"),
        AttemptState::AwaitingJob(_) => Some("job"),
        AttemptState::PlacingVolumes(_) => Some("volumes"),
        AttemptState::Running(_) | AttemptState::Starting(_) => Some("run"),
        AttemptState::Serving(_) | AttemptState::Closing(_) => Some("serve"),
        AttemptState::Stopping(_) => Some("stop"),
        AttemptState::Collecting | AttemptState::Salvaging => Some("collect"),
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

/// Sets the gauges of a persistent executor until its task is dropped.
pub(crate) async fn measure(executor: Arc<PersistentExecutor>) {
    loop {
        let reachable = is_engine_reachable(&executor).await;
        metrics::gauge!("muster_executor_engine_reachable").set(u32::from(reachable));
        metrics::gauge!("muster_executor_miner_connected").set(u32::from(executor.is_connected()));
        metrics::gauge!("muster_executor_leases").set(executor.count_leases());
        metrics::gauge!("muster_executor_draining").set(u32::from(executor.is_draining()));
        executor.process.clock.sleep(MEASURE_EVERY).await;
    }
}

async fn is_engine_reachable(executor: &PersistentExecutor) -> bool {
    let asking = async {
        match executor.process.cache.last_engine() {
            Some(engine) => engine.ping().await.is_ok(),
            None => ContainerEngine::connect(&executor.process.config.engine)
                .await
                .is_ok(),
        }
    };
    tokio::time::timeout(ENGINE_LIMIT, asking).await.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use muster_attempt_state::Abandonment;
    use muster_protocol::{HordeFailureReason, JobFailureReason, JobStage};

    use super::*;

    #[test]
    fn a_stage_is_recorded_once_when_the_next_one_begins() {
        let at = Timestamp::from_secs;
        let mut clock = StageClock::new(AttemptState::AwaitingOffer, at(10));
        assert_eq!(clock.turn(AttemptState::AwaitingOffer, at(11)), None);
        assert_eq!(
            clock.turn(AttemptState::Collecting, at(14)),
            Some(("offer", Duration::from_secs(4)))
        );
        assert_eq!(
            clock.turn(AttemptState::Salvaging, at(15)),
            None,
            "the same stage"
        );
        assert_eq!(
            clock.turn(AttemptState::Over, at(17)),
            Some(("collect", Duration::from_secs(3)))
        );
        assert_eq!(clock.turn(AttemptState::Over, at(20)), None);
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

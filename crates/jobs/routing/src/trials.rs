//! When a validator runs a trial at a miner: its own small known image, after a failure that a user's job may have
//! provoked. Pure, and bounded by the number of miners.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_protocol::job::Outcome;
use muster_protocol::{ExecutorClass, MinerKey, Timestamp};

use crate::attempt_mark::AttemptMark;

/// The least time between the beginnings of two trials of one miner.
pub const TRIAL_REST: Duration = Duration::from_secs(60);

/// The longest time between two trials of a miner that fails all of them. It is shorter than the default window of
/// incidents, so that a miner stays benched for as long as it fails.
const MAX_REST: Duration = Duration::from_secs(480);

/// Failed trials in a row from which a miner is benched. A user's program may break one of them, since it may run
/// beside it.
const FAILURES_TO_BENCH: u32 = 2;

/// The most trials that run at a time.
const AT_ONCE: usize = 16;

/// The verdict of a trial about its miner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialVerdict {
    /// The miner ran the known image.
    Passed,
    /// The miner failed it by its own fault.
    Failed,
    /// Nothing: the miner was busy, the image did not come, or the job itself failed.
    Unclear,
}

impl TrialVerdict {
    /// The verdict of a trial that ended with this outcome and left this mark.
    pub fn of(outcome: &Outcome, mark: AttemptMark) -> Self {
        match (outcome, mark) {
            (Outcome::Completed(_), _) => Self::Passed,
            (_, AttemptMark::Incident | AttemptMark::FailedTrial) => Self::Failed,
            (
                Outcome::Failed(_) | Outcome::Rejected(_) | Outcome::HordeFailed(_),
                AttemptMark::Done
                | AttemptMark::Clean
                | AttemptMark::NoSlot
                | AttemptMark::Unexcused
                | AttemptMark::Excuse
                | AttemptMark::Suspect,
            ) => Self::Unclear,
        }
    }
}

/// The miners that are under suspicion, and their trials.
#[derive(Clone, Debug)]
pub struct TrialSchedule {
    /// How long a suspicion and a failed trial count.
    window: Duration,
    miners: BTreeMap<MinerKey, TriedMiner>,
}

#[derive(Clone, Copy, Debug, Default)]
struct TriedMiner {
    /// The newest failure that no trial has answered yet.
    suspected: Option<Suspicion>,
    began: Option<Timestamp>,
    is_running: bool,
    /// Failed trials in a row.
    failures: u32,
}

#[derive(Clone, Copy, Debug)]
struct Suspicion {
    class: ExecutorClass,
    at: Timestamp,
}

impl TriedMiner {
    /// The time from the beginning of a trial to that of the next: it doubles once the miner is benched.
    fn rest(&self) -> Duration {
        let doubled = 2_u32.saturating_pow(self.failures.saturating_sub(1));
        TRIAL_REST.saturating_mul(doubled).min(MAX_REST)
    }

    /// When the next trial is due; `None` if none is, or while one runs.
    fn due(&self, window: Duration, now: Timestamp) -> Option<Timestamp> {
        let suspicion = self.suspected.filter(|_| !self.is_running)?;
        if now.since(suspicion.at) >= window {
            return None;
        }
        let rested = self.began.map(|began| began.plus(self.rest()));
        Some(rested.map_or(suspicion.at, |rested| rested.max(suspicion.at)))
    }

    /// Whether the miner may be forgotten.
    fn is_over(&self, window: Duration, now: Timestamp) -> bool {
        let rests = self.began.is_some_and(|began| now.since(began) < self.rest());
        !self.is_running && !rests && self.due(window, now).is_none()
    }
}

impl TrialSchedule {
    /// A schedule without miners. A suspicion counts for `window`.
    pub fn new(window: Duration) -> Self {
        Self {
            window,
            miners: BTreeMap::new(),
        }
    }

    /// Notes that a user's job failed at a miner, and may have provoked that. All such failures before the next trial
    /// share it.
    pub fn note_suspect(&mut self, miner: MinerKey, class: ExecutorClass, at: Timestamp) {
        let suspected = &mut self.miners.entry(miner).or_default().suspected;
        if suspected.is_none_or(|known| known.at <= at) {
            *suspected = Some(Suspicion { class, at });
        }
    }

    /// Notes what an earlier process stored of a miner: it failed a trial at `at` and was benched. Its next trial rests
    /// as that one did.
    pub fn restore_bench(&mut self, miner: MinerKey, class: ExecutorClass, at: Timestamp) {
        self.note_suspect(miner, class, at);
        let tried = self.miners.entry(miner).or_default();
        tried.failures = FAILURES_TO_BENCH;
        tried.began = tried.began.max(Some(at));
    }

    /// Whether one more failed trial benches the miner.
    pub fn is_last_chance(&self, miner: MinerKey) -> bool {
        let failures = self.miners.get(&miner).map_or(0, |tried| tried.failures);
        failures.saturating_add(1) >= FAILURES_TO_BENCH
    }

    /// The trials that begin now: the miners with the classes of the jobs that brought them under suspicion, those that
    /// are due for the longest time first.
    pub fn begin_due(&mut self, now: Timestamp) -> Vec<(MinerKey, ExecutorClass)> {
        let window = self.window;
        self.miners.retain(|_, tried| !tried.is_over(window, now));
        let running = self.miners.values().filter(|tried| tried.is_running).count();
        let mut due: Vec<_> = self
            .miners
            .iter()
            .filter_map(|(miner, tried)| Some((tried.due(window, now)?, *miner)))
            .filter(|(at, _)| *at <= now)
            .collect();
        due.sort_unstable();
        due.truncate(AT_ONCE.saturating_sub(running));
        let mut begun = Vec::new();
        for (_, miner) in due {
            if let Some(tried) = self.miners.get_mut(&miner)
                && let Some(suspicion) = tried.suspected
            {
                (tried.began, tried.is_running) = (Some(now), true);
                begun.push((miner, suspicion.class));
            }
        }
        begun
    }

    /// When the next trial is due; `None` if no miner waits for one. One that is due already may wait for the end of
    /// others.
    pub fn next_due(&self, now: Timestamp) -> Option<Timestamp> {
        let running = self.miners.values().filter(|tried| tried.is_running).count();
        if running >= AT_ONCE {
            return None;
        }
        let tried = self.miners.values();
        tried.filter_map(|tried| tried.due(self.window, now)).min()
    }

    /// Notes what a trial showed. A failure that came after its beginning waits for another trial.
    pub fn note_verdict(&mut self, miner: MinerKey, verdict: TrialVerdict, now: Timestamp) {
        let Some(tried) = self.miners.get_mut(&miner) else {
            return;
        };
        match verdict {
            TrialVerdict::Passed => {
                tried.failures = 0;
                let began = tried.began;
                tried.suspected = tried
                    .suspected
                    .filter(|suspicion| began.is_none_or(|began| suspicion.at > began));
            }
            TrialVerdict::Failed => {
                tried.failures = tried.failures.saturating_add(1);
                if let Some(suspicion) = &mut tried.suspected {
                    suspicion.at = now;
                }
            }
            TrialVerdict::Unclear => {}
        }
    }

    /// Notes that the job of a trial is over, whatever it showed.
    pub fn end(&mut self, miner: MinerKey) {
        if let Some(tried) = self.miners.get_mut(&miner) {
            tried.is_running = false;
        }
    }

    /// Forgets miners outside the subnet. `keep` returns whether a miner is in it.
    pub fn forget(&mut self, keep: impl Fn(&MinerKey) -> bool) {
        self.miners.retain(|miner, tried| tried.is_running || keep(miner));
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::Hotkey;
    use muster_protocol::job::{BROKEN_IMAGE_KEY, IMAGE_FETCH_KEY};
    use muster_protocol::status::{
        HordeFailureReason, JobFailureReason, JobRejectionReason, JobStage, ParticipantType,
    };
    use muster_protocol::wire::facilitator::{FailureDetails, HordeFailureDetails, RejectionDetails};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::{MarkEvidence, MarkedJob, mark_attempt};

    const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;
    const NOW: fn(i64) -> Timestamp = Timestamp::from_secs;

    fn miner(seed: u8) -> MinerKey {
        MinerKey(Hotkey::from_bytes([seed; 32]))
    }

    fn schedule() -> TrialSchedule {
        TrialSchedule::new(Duration::from_secs(600))
    }

    /// Begins the trial that is due at `now`, and ends it with this verdict.
    fn run(schedule: &mut TrialSchedule, now: i64, verdict: TrialVerdict) -> usize {
        let begun = schedule.begin_due(NOW(now));
        for (miner, _) in &begun {
            schedule.note_verdict(*miner, verdict, NOW(now));
            schedule.end(*miner);
        }
        begun.len()
    }

    #[test]
    fn several_suspects_share_a_trial_and_a_passed_one_answers_them() {
        let mut schedule = schedule();
        assert_eq!(schedule.next_due(NOW(0)), None);
        for at in [0, 1, 2] {
            schedule.note_suspect(miner(1), CLASS, NOW(at));
        }
        assert_eq!(schedule.next_due(NOW(2)), Some(NOW(2)));
        assert_eq!(schedule.begin_due(NOW(3)), [(miner(1), CLASS)]);
        assert_eq!(schedule.begin_due(NOW(3)), [], "one trial at a time");
        schedule.note_verdict(miner(1), TrialVerdict::Passed, NOW(4));
        schedule.end(miner(1));
        assert_eq!(schedule.next_due(NOW(4)), None);
        assert_eq!(schedule.begin_due(NOW(1_000)), []);
        assert!(schedule.miners.is_empty(), "it is forgotten");
    }

    #[test]
    fn a_suspect_during_a_trial_waits_for_the_next_a_minute_later() {
        let mut schedule = schedule();
        schedule.note_suspect(miner(1), CLASS, NOW(0));
        schedule.begin_due(NOW(0));
        schedule.note_suspect(miner(1), CLASS, NOW(1));
        schedule.note_verdict(miner(1), TrialVerdict::Passed, NOW(2));
        schedule.end(miner(1));
        assert_eq!(schedule.next_due(NOW(2)), Some(NOW(60)));
        assert_eq!(run(&mut schedule, 59, TrialVerdict::Passed), 0);
        assert_eq!(run(&mut schedule, 60, TrialVerdict::Passed), 1);
        assert_eq!(schedule.next_due(NOW(60)), None);
    }

    #[test]
    fn the_second_failed_trial_in_a_row_benches_and_further_ones_are_rarer() {
        let mut schedule = schedule();
        schedule.note_suspect(miner(1), CLASS, NOW(0));
        assert!(!schedule.is_last_chance(miner(1)));
        assert_eq!(run(&mut schedule, 0, TrialVerdict::Failed), 1);
        assert!(schedule.is_last_chance(miner(1)));
        let mut now = 0;
        for rest in [60, 120, 240, 480, 480] {
            assert_eq!(run(&mut schedule, now + rest - 1, TrialVerdict::Failed), 0);
            now += rest;
            assert_eq!(run(&mut schedule, now, TrialVerdict::Failed), 1, "after {rest} s");
        }
        schedule.note_suspect(miner(1), CLASS, NOW(now));
        assert_eq!(run(&mut schedule, now + 480, TrialVerdict::Passed), 1);
        assert!(!schedule.is_last_chance(miner(1)), "a passed trial ends the row");
    }

    #[test]
    fn a_miner_that_never_answers_clearly_is_tried_once_a_minute_until_the_window_is_over() {
        let mut schedule = schedule();
        schedule.note_suspect(miner(1), CLASS, NOW(0));
        let tried: usize = (0..2_000)
            .map(|now| run(&mut schedule, now, TrialVerdict::Unclear))
            .sum();
        assert_eq!(tried, 10);
        assert!(!schedule.is_last_chance(miner(1)));
        assert!(schedule.miners.is_empty());
    }

    #[test]
    fn a_bench_of_an_earlier_process_is_tried_again() {
        let mut schedule = schedule();
        schedule.restore_bench(miner(1), CLASS, NOW(100));
        assert!(schedule.is_last_chance(miner(1)));
        assert_eq!(schedule.next_due(NOW(150)), Some(NOW(220)));
        assert_eq!(run(&mut schedule, 220, TrialVerdict::Passed), 1);
        assert_eq!(schedule.next_due(NOW(220)), None);
    }

    #[test]
    fn only_so_many_trials_run_at_a_time() {
        let mut schedule = schedule();
        for seed in 0..40 {
            schedule.note_suspect(miner(seed), CLASS, NOW(i64::from(seed)));
        }
        let first = schedule.begin_due(NOW(100));
        assert_eq!(first.len(), AT_ONCE);
        assert_eq!(
            first.first(),
            Some(&(miner(0), CLASS)),
            "the longest due is first"
        );
        assert_eq!(schedule.next_due(NOW(100)), None, "an end wakes the validator");
        schedule.end(miner(0));
        assert_eq!(schedule.begin_due(NOW(100)).len(), 1);
        schedule.forget(|_| false);
        assert_eq!(schedule.miners.len(), AT_ONCE, "those that run");
    }

    #[test]
    fn only_a_failure_by_the_miners_fault_fails_a_trial() {
        let horde = |reported_by, reason, context: Value| {
            Outcome::HordeFailed(HordeFailureDetails {
                reported_by,
                reason,
                message: String::new(),
                context: Some(context),
            })
        };
        let failed = |reason, context: Value| {
            Outcome::Failed(Box::new(FailureDetails {
                reason,
                stage: JobStage::Execution,
                message: String::new(),
                context: Some(context),
                docker_process_exit_status: None,
                docker_process_stdout: None,
                docker_process_stderr: None,
            }))
        };
        let busy = Outcome::Rejected(RejectionDetails {
            rejected_by: ParticipantType::Miner,
            reason: JobRejectionReason::Busy,
            message: String::new(),
            context: None,
        });
        let generic = HordeFailureReason::GenericError;
        let broken = json!({ BROKEN_IMAGE_KEY: true });
        for (outcome, expected) in [
            (Outcome::Completed(Box::default()), TrialVerdict::Passed),
            (busy, TrialVerdict::Unclear),
            (
                horde(
                    ParticipantType::Miner,
                    generic,
                    json!({ IMAGE_FETCH_KEY: "no_slot" }),
                ),
                TrialVerdict::Unclear,
            ),
            (
                horde(
                    ParticipantType::Executor,
                    generic,
                    json!({ IMAGE_FETCH_KEY: "no_such_image" }),
                ),
                TrialVerdict::Unclear,
            ),
            (
                horde(ParticipantType::Executor, generic, json!({ "fault": "user" })),
                TrialVerdict::Unclear,
            ),
            (
                failed(JobFailureReason::NonzeroReturnCode, json!({})),
                TrialVerdict::Unclear,
            ),
            (failed(JobFailureReason::Unknown, broken), TrialVerdict::Unclear),
            (
                horde(
                    ParticipantType::Executor,
                    HordeFailureReason::ExecutorSpinupFailed,
                    json!({}),
                ),
                TrialVerdict::Failed,
            ),
            (
                horde(
                    ParticipantType::Validator,
                    HordeFailureReason::MinerConnectionFailed,
                    json!({}),
                ),
                TrialVerdict::Failed,
            ),
            (
                horde(
                    ParticipantType::Validator,
                    HordeFailureReason::ExecutionTimedOut,
                    json!({}),
                ),
                TrialVerdict::Failed,
            ),
        ] {
            for is_last_chance in [false, true] {
                let evidence = MarkEvidence {
                    job: MarkedJob::Trial { is_last_chance },
                    ..MarkEvidence::default()
                };
                let mark = mark_attempt(&outcome, evidence);
                assert_eq!(TrialVerdict::of(&outcome, mark), expected, "{outcome:?}");
                let benches = expected == TrialVerdict::Failed && is_last_chance;
                assert_eq!(mark == AttemptMark::FailedTrial, benches, "{outcome:?}");
                assert_ne!(mark, AttemptMark::Done, "a trial earns no record");
            }
        }
    }

    fn any_verdict() -> impl Strategy<Value = TrialVerdict> {
        prop_oneof![
            Just(TrialVerdict::Passed),
            Just(TrialVerdict::Failed),
            Just(TrialVerdict::Unclear),
        ]
    }

    proptest! {
        #[test]
        fn a_miner_has_at_most_one_trial_a_minute_whatever_users_and_miners_do(
            window in 1_u64..900,
            steps in proptest::collection::vec((0_u8..3, 0_i64..40, any_verdict(), any::<bool>()), 1..200),
        ) {
            let mut schedule = TrialSchedule::new(Duration::from_secs(window));
            let (mut now, mut last, mut running) = (0, BTreeMap::new(), BTreeMap::new());
            for (seed, pause, verdict, ends) in steps {
                now += pause;
                schedule.note_suspect(miner(seed), CLASS, NOW(now));
                if ends && running.remove(&miner(seed)).is_some() {
                    schedule.note_verdict(miner(seed), verdict, NOW(now));
                    schedule.end(miner(seed));
                }
                for (begun, _) in schedule.begin_due(NOW(now)) {
                    prop_assert_eq!(running.insert(begun, now), None, "one at a time");
                    if let Some(earlier) = last.insert(begun, now) {
                        prop_assert!(now - earlier >= 60, "{} after {}", now, earlier);
                    }
                }
            }
        }
    }
}

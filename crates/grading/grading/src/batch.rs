//! One batch as a state machine: executors are leased, wait at the barrier until all are ready, and are challenged at
//! one instant, trial by trial.
//!
//! The conversations run outside, one per executor (`muster_hardware_proof::conversation`), so no executor can delay
//! the clock of another one. The caller reports how each conversation ended. Executors are numbered by their places in
//! the plan.
//!
//! The executors of an unannounced batch are challenged at an instant that is fixed when the leases are requested.

mod events;

use std::collections::BTreeMap;

use muster_hardware_proof::ProofVerdict;
use muster_protocol::ExecutorClass;
use muster_scoring::ObservationKind;

use crate::batch_plan::Participant;
use crate::batch_settlement::{ProvenBefore, settle};
use crate::fingerprints::Fingerprints;
use crate::grade_spec::{GradeSpec, is_below_threshold};
use crate::judgement::{Absence, Judgement};
use crate::trial_result::{TrialResult, collect_fingerprints, judge_participant};

pub use events::{BatchAction, BatchEvent, BatchRules};

/// Time for a round beyond the limits of its conversations. Executors that are still unreported then are void.
const SLACK_US: u64 = 60_000_000;
/// Time to take and judge the openings of a round. A lease lasts no longer than this beyond its trials. Executors that
/// are not judged then are void.
pub const JUDGING_US: u64 = 600_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParticipantState {
    /// Its lease is requested later, so that it does not wait at the barrier longer than necessary.
    Waiting,
    Leasing,
    /// It waits at the barrier.
    AtBarrier,
    Proving,
    /// Its clock has stopped; clocks of others still run.
    Committed,
    Judging,
    Released,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatchPhase {
    Gathering,
    Round { trial: usize, attempt: u8 },
    Over,
}

/// The state of one batch.
#[derive(Clone, Debug)]
pub struct Batch {
    participants: Vec<Participant>,
    grade_specs: BTreeMap<ExecutorClass, GradeSpec>,
    /// The grade specifications of executors that are challenged in sessions that they serve, by place.
    session_specs: BTreeMap<usize, GradeSpec>,
    states: Vec<ParticipantState>,
    /// Whether the executor's lease was requested and not yet released, by place.
    leased: Vec<bool>,
    results: Vec<Vec<TrialResult>>,
    absences: BTreeMap<usize, Absence>,
    /// The time at which the leases of each class are requested.
    lease_at: BTreeMap<ExecutorClass, u64>,
    phase: BatchPhase,
    until_us: u64,
    kind: ObservationKind,
}

impl Batch {
    /// Begins a batch with these executors at `now_us`, on a monotonic clock of the caller. A class without a grade
    /// specification is not challenged.
    pub fn new(
        participants: Vec<Participant>,
        grade_specs: impl IntoIterator<Item = GradeSpec>,
        rules: BatchRules,
        now_us: u64,
    ) -> Self {
        let grade_specs: BTreeMap<_, _> = grade_specs
            .into_iter()
            .map(|grade_spec| (grade_spec.class(), grade_spec))
            .collect();
        let micros =
            |class: ExecutorClass| u64::try_from(class.spin_up_time().as_micros()).unwrap_or(u64::MAX);
        let longest = participants
            .iter()
            .map(|participant| micros(participant.class))
            .max()
            .unwrap_or(0);
        let lease_at = participants
            .iter()
            .map(|participant| {
                let early = longest.saturating_sub(micros(participant.class));
                (participant.class, now_us.saturating_add(early))
            })
            .collect();
        let mut batch = Self {
            states: vec![ParticipantState::Waiting; participants.len()],
            leased: vec![false; participants.len()],
            results: vec![Vec::new(); participants.len()],
            absences: BTreeMap::new(),
            lease_at,
            phase: BatchPhase::Gathering,
            until_us: now_us.saturating_add(longest).saturating_add(rules.gather_us),
            kind: rules.kind,
            participants,
            grade_specs,
            session_specs: BTreeMap::new(),
        };
        for place in 0..batch.participants.len() {
            if batch.grade_spec(place).is_none() {
                let said = "the validator has no grade specification for its class".to_owned();
                batch.remove(place, Some(Absence::Void { said }));
            }
        }
        batch
    }

    /// Marks executors that are challenged in the sessions that they serve. They prove less and are not leased.
    #[must_use]
    pub fn with_sessions(mut self, places: impl IntoIterator<Item = usize>) -> Self {
        for place in places {
            if let Some(grade_spec) = self.grade_spec(place).map(GradeSpec::for_session) {
                self.session_specs.insert(place, grade_spec);
            }
        }
        self
    }

    /// The executors of the batch, by place.
    pub fn participants(&self) -> &[Participant] {
        &self.participants
    }

    /// The grade specification of one executor.
    pub fn grade_spec(&self, place: usize) -> Option<&GradeSpec> {
        if let Some(beside) = self.session_specs.get(&place) {
            return Some(beside);
        }
        self.grade_specs.get(&self.participants.get(place)?.class)
    }

    /// The time at which [`Self::tick`] is due.
    pub fn deadline_us(&self) -> Option<u64> {
        match self.phase {
            BatchPhase::Over => None,
            BatchPhase::Round { .. } => Some(self.until_us),
            BatchPhase::Gathering => {
                let waiting = self.places_in(ParticipantState::Waiting);
                let leases = waiting.filter_map(|place| self.lease_time(place));
                Some(leases.min().unwrap_or(u64::MAX).min(self.until_us))
            }
        }
    }

    /// Acts on the time `now_us`.
    pub fn tick(&mut self, now_us: u64) -> Vec<BatchAction> {
        let mut actions = Vec::new();
        if self.phase == BatchPhase::Gathering {
            let due: Vec<_> = self
                .places_in(ParticipantState::Waiting)
                .filter(|place| self.lease_time(*place).is_some_and(|at| at <= now_us))
                .collect();
            for place in &due {
                self.set_state(*place, ParticipantState::Leasing);
                if let Some(held) = self.leased.get_mut(*place) {
                    *held = true;
                }
            }
            if !due.is_empty() {
                actions.push(BatchAction::Lease(due));
            }
        }
        if now_us >= self.until_us {
            self.give_up_overdue(&mut actions);
        }
        self.advance(now_us, &mut actions);
        actions
    }

    /// Takes an event of one executor. An event that does not fit the executor's state is ignored.
    pub fn apply(&mut self, place: usize, event: BatchEvent, now_us: u64) -> Vec<BatchAction> {
        let mut actions = Vec::new();
        match (self.states.get(place).copied(), event) {
            (Some(ParticipantState::Leasing), BatchEvent::Ready) => {
                self.set_state(place, ParticipantState::AtBarrier)
            }
            (Some(ParticipantState::Leasing), BatchEvent::Absent(absence)) => {
                self.remove(place, Some(absence));
                self.release(vec![place], &mut actions);
            }
            (Some(ParticipantState::AtBarrier), BatchEvent::Lost(said)) => {
                // An executor that has no trials left keeps its results.
                let absence = self
                    .has_trials_left(place)
                    .then_some(Absence::LeftBarrier { said });
                self.remove(place, absence);
                self.release(vec![place], &mut actions);
            }
            (
                Some(
                    ParticipantState::Leasing
                    | ParticipantState::AtBarrier
                    | ParticipantState::Proving
                    | ParticipantState::Committed
                    | ParticipantState::Judging,
                ),
                BatchEvent::EndedByValidator(said),
            ) => {
                self.remove(place, Some(Absence::Void { said }));
                self.release(vec![place], &mut actions);
            }
            (Some(ParticipantState::Proving), BatchEvent::Committed) => {
                self.set_state(place, ParticipantState::Committed)
            }
            (Some(ParticipantState::Judging), BatchEvent::Judged(result)) => {
                self.set_state(place, ParticipantState::AtBarrier);
                if let Some(all) = self.results.get_mut(place) {
                    all.push(*result);
                }
            }
            // The executor was given up, or the event is a repetition.
            (Some(_) | None, _) => return actions,
        }
        self.advance(now_us, &mut actions);
        actions
    }

    /// The judgements of all executors, and the fingerprints by which copies were found. `None` before the end.
    pub fn judgements(&self, before: &ProvenBefore) -> Option<(Vec<Judgement>, Fingerprints)> {
        if self.phase != BatchPhase::Over {
            return None;
        }
        let fingerprints = collect_fingerprints(&self.results);
        let judged = self.results.iter().enumerate().filter_map(|(place, results)| {
            let grade_spec = self.grade_spec(place)?;
            let told = !results.is_empty() && !self.absences.contains_key(&place);
            let serves = self.session_specs.contains_key(&place);
            told.then(|| {
                (
                    place,
                    judge_participant(place, grade_spec, results, &fingerprints).for_session(serves),
                )
            })
        });
        let judged = judged.collect();
        Some((
            settle(&self.participants, &self.absences, &judged, before),
            fingerprints,
        ))
    }

    /// The executors that were not challenged, each with the reason, by place.
    pub fn absences(&self) -> &BTreeMap<usize, Absence> {
        &self.absences
    }

    /// Gives up the executors whose time limit has passed.
    fn give_up_overdue(&mut self, actions: &mut Vec<BatchAction>) {
        let mut given_up = Vec::new();
        for place in 0..self.participants.len() {
            let absence = match (self.phase, self.states.get(place)) {
                (BatchPhase::Gathering, Some(ParticipantState::Waiting | ParticipantState::Leasing)) => {
                    Absence::NotReady {
                        said: "its session was not up when the barrier closed".to_owned(),
                    }
                }
                (BatchPhase::Round { .. }, Some(ParticipantState::Proving)) => Absence::Void {
                    said: "the end of its conversation was not reported in time".to_owned(),
                },
                (BatchPhase::Round { .. }, Some(ParticipantState::Judging)) => Absence::Void {
                    said: "its proof was not judged in time".to_owned(),
                },
                (BatchPhase::Gathering | BatchPhase::Round { .. } | BatchPhase::Over, _) => continue,
            };
            self.remove(place, Some(absence));
            given_up.push(place);
        }
        self.release(given_up, actions);
    }

    /// Takes the next steps that need not wait for an event.
    fn advance(&mut self, now_us: u64, actions: &mut Vec<BatchAction>) {
        if !self.states.contains(&ParticipantState::Proving) {
            let committed: Vec<_> = self.places_in(ParticipantState::Committed).collect();
            for place in &committed {
                self.set_state(*place, ParticipantState::Judging);
            }
            if !committed.is_empty() {
                self.until_us = now_us.saturating_add(JUDGING_US);
                actions.push(BatchAction::Judge(committed));
            }
        }
        let busy = |state: &ParticipantState| match (self.phase, state) {
            (BatchPhase::Gathering, ParticipantState::Waiting | ParticipantState::Leasing)
            | (
                BatchPhase::Round { .. },
                ParticipantState::Proving | ParticipantState::Committed | ParticipantState::Judging,
            ) => true,
            (BatchPhase::Gathering | BatchPhase::Round { .. } | BatchPhase::Over, _) => false,
        };
        if self.states.iter().any(busy) {
            return;
        }
        match self.phase {
            BatchPhase::Over => {}
            BatchPhase::Gathering if self.kind == ObservationKind::Unannounced && now_us < self.until_us => {}
            BatchPhase::Gathering => self.challenge_from(0, now_us, actions),
            BatchPhase::Round { trial, attempt: 0 } if self.kind == ObservationKind::Announced => {
                let (again, lost) = self.split_unpassed(trial);
                self.dismiss(lost, actions);
                if again.is_empty() {
                    self.challenge_from(trial.saturating_add(1), now_us, actions);
                } else {
                    self.challenge(trial, 1, again, now_us, actions);
                }
            }
            BatchPhase::Round { trial, .. } => {
                let (again, lost) = self.split_unpassed(trial);
                self.dismiss(again.into_iter().chain(lost).collect(), actions);
                self.challenge_from(trial.saturating_add(1), now_us, actions);
            }
        }
    }

    /// The executors at the barrier that did not pass this trial: those that may try again, and those with a wrong
    /// proof.
    fn split_unpassed(&self, trial: usize) -> (Vec<usize>, Vec<usize>) {
        let (mut again, mut wrong) = (Vec::new(), Vec::new());
        for place in self.places_in(ParticipantState::AtBarrier) {
            let results = self.results.get(place).and_then(|all| all.last());
            let Some(last) = results.filter(|last| last.trial == trial) else {
                continue;
            };
            let thresholds = self.grade_spec(place).map(|grade_spec| grade_spec.thresholds);
            match last.verdict {
                ProofVerdict::Zero(reason) if reason.is_wrong() => wrong.push(place),
                ProofVerdict::Zero(_) => again.push(place),
                ProofVerdict::Passed(measured)
                    if thresholds.is_some_and(|thresholds| is_below_threshold(&thresholds, &measured)) =>
                {
                    again.push(place);
                }
                ProofVerdict::Passed(_) => {}
            }
        }
        (again, wrong)
    }

    /// Whether an executor still has a trial to pass.
    fn has_trials_left(&self, place: usize) -> bool {
        let (Some(grade_spec), Some(results)) = (self.grade_spec(place), self.results.get(place)) else {
            return false;
        };
        let last = results.last().map(|last| (last.trial, last.verdict));
        match last {
            None => true,
            Some((_, ProofVerdict::Zero(reason))) => !reason.is_wrong(),
            Some((trial, ProofVerdict::Passed(measured))) => {
                trial.saturating_add(1) < grade_spec.rounds()
                    || is_below_threshold(&grade_spec.thresholds, &measured)
            }
        }
    }

    /// Releases executors that cannot pass any more.
    fn dismiss(&mut self, places: Vec<usize>, actions: &mut Vec<BatchAction>) {
        for place in &places {
            self.remove(*place, None);
        }
        self.release(places, actions);
    }

    /// Begins the first round, from this one on, in which an executor has a proof to give. Releases the executors that
    /// have none left. Those whose proofs come later wait.
    fn challenge_from(&mut self, round: usize, now_us: u64, actions: &mut Vec<BatchAction>) {
        let standing: Vec<_> = self.places_in(ParticipantState::AtBarrier).collect();
        let (waiting, done): (Vec<_>, Vec<_>) = standing.into_iter().partition(|place| {
            self.grade_spec(*place)
                .is_some_and(|grade_spec| grade_spec.rounds() > round)
        });
        self.dismiss(done, actions);
        let first_round = |place: &usize| Some(self.grade_spec(*place)?.first_round().max(round));
        match waiting.iter().filter_map(first_round).min() {
            None => {
                self.phase = BatchPhase::Over;
                actions.push(BatchAction::Finish);
            }
            Some(round) => {
                let asked = |place: &usize| {
                    self.grade_spec(*place)
                        .is_some_and(|spec| spec.trial_in(round).is_some())
                };
                let asked = waiting.into_iter().filter(asked).collect();
                self.challenge(round, 0, asked, now_us, actions);
            }
        }
    }

    fn challenge(
        &mut self,
        trial: usize,
        attempt: u8,
        participants: Vec<usize>,
        now_us: u64,
        actions: &mut Vec<BatchAction>,
    ) {
        let longest = participants
            .iter()
            .filter_map(|place| Some(self.grade_spec(*place)?.trial_in(trial)?.longest_us()));
        let longest = longest.max().unwrap_or(0);
        self.until_us = now_us.saturating_add(longest).saturating_add(SLACK_US);
        for place in &participants {
            self.set_state(*place, ParticipantState::Proving);
        }
        self.phase = BatchPhase::Round { trial, attempt };
        actions.push(BatchAction::Challenge {
            trial,
            attempt,
            participants,
        });
    }

    fn lease_time(&self, place: usize) -> Option<u64> {
        self.lease_at.get(&self.participants.get(place)?.class).copied()
    }

    fn places_in(&self, wanted: ParticipantState) -> impl Iterator<Item = usize> + '_ {
        let states = self.states.iter().enumerate();
        states.filter_map(move |(place, state)| (*state == wanted).then_some(place))
    }

    fn set_state(&mut self, place: usize, next: ParticipantState) {
        if let Some(state) = self.states.get_mut(place) {
            *state = next;
        }
    }

    fn remove(&mut self, place: usize, absence: Option<Absence>) {
        self.set_state(place, ParticipantState::Released);
        if let Some(absence) = absence {
            self.absences.insert(place, absence);
        }
    }

    /// Releases the leases of these executors, each once.
    fn release(&mut self, places: Vec<usize>, actions: &mut Vec<BatchAction>) {
        let held = places.into_iter().filter(|place| {
            let held = self.leased.get_mut(*place);
            held.is_some_and(std::mem::take)
        });
        let held: Vec<_> = held.collect();
        if !held.is_empty() {
            actions.push(BatchAction::Release(held));
        }
    }
}

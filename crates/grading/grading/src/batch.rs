//! One batch as a machine: executors are leased so that all are there together, wait at the barrier, and are challenged at one
//! instant, trial by trial.
//!
//! The conversations themselves are `muster_hardware_proof::session`'s, one for each executor, on whoever holds the connection: nobody's
//! silence, slowness or flood is in the way of another's clock. This machine is told how they ended.

use std::collections::BTreeMap;

use muster_hardware_proof::grade::Floors;
use muster_hardware_proof::{Measured, Verdict};
use muster_protocol::ExecutorClass;

use crate::course::Course;
use crate::fingerprints::Marks;
use crate::judgement::{Absence, Judgement};
use crate::plan::Seat;
use crate::settlement::{ProvenBefore, settle};
use crate::trial_result::{Tried, judge};

/// Given to a round beyond the limits of its conversations, after which the validator has lost track of those that are missing.
const SLACK_US: u64 = 60_000_000;

/// How long executors are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// To come to the barrier, beyond the time that the slowest class in the batch may take to appear.
    pub gather_us: u64,
}

/// What happened to one executor.
#[derive(Clone, Debug)]
pub enum Event {
    /// It is leased, its session is up and well: it stands at the barrier.
    Ready,
    /// It will not come.
    Absent(Absence),
    /// It stood at the barrier, and its session is gone.
    Lost(String),
    /// The validator itself ended the session that it was challenged in.
    Ours(String),
    /// Its clock has stopped: it has committed, or its conversation is over.
    Committed,
    /// What it comes to.
    Judged(Box<Tried>),
}

/// What is to be done. Places are those of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Lease these.
    Lease(Vec<usize>),
    /// Challenge these, now and together.
    Fire {
        /// With which trial of each one's course.
        trial: usize,
        /// 0, or 1 for the retry.
        attempt: u8,
        /// Whom.
        seats: Vec<usize>,
    },
    /// Nobody's clock runs any longer: draw, let them open, judge. Until then nothing is verified, so that no verification is in
    /// the way of a clock; and since they may be opened a few at a time, what they send need not be held all at once.
    Judge(Vec<usize>),
    /// These are needed no more.
    Release(Vec<usize>),
    /// The batch is over.
    Finish,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its lease is asked for later, so that it does not wait at the barrier longer than it must.
    Waiting,
    Leasing,
    /// At the barrier.
    Standing,
    Proving,
    /// Its clock has stopped, others' run on.
    Committed,
    Judging,
    Out,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Gathering,
    Round { trial: usize, attempt: u8 },
    Over,
}

/// A batch under way.
#[derive(Clone, Debug)]
pub struct Batch {
    seats: Vec<Seat>,
    courses: BTreeMap<ExecutorClass, Course>,
    /// What is asked of those that are challenged in sessions that they serve, by place.
    beside: BTreeMap<usize, Course>,
    states: Vec<State>,
    /// Whether there is something to give back.
    held: Vec<bool>,
    tried: Vec<Vec<Tried>>,
    absent: BTreeMap<usize, Absence>,
    /// When each class's leases are asked for.
    lease_at: BTreeMap<ExecutorClass, u64>,
    phase: Phase,
    until_us: u64,
}

impl Batch {
    /// Begins a batch with these executors at `now_us`, a monotonic clock of the caller's. A class without a course is not
    /// challenged.
    pub fn new(
        seats: Vec<Seat>,
        courses: impl IntoIterator<Item = Course>,
        rules: Rules,
        now_us: u64,
    ) -> Self {
        let courses: BTreeMap<_, _> = courses
            .into_iter()
            .map(|course| (course.class(), course))
            .collect();
        let micros =
            |class: ExecutorClass| u64::try_from(class.spin_up_time().as_micros()).unwrap_or(u64::MAX);
        let longest = seats.iter().map(|seat| micros(seat.class)).max().unwrap_or(0);
        let lease_at = seats
            .iter()
            .map(|seat| {
                let early = longest.saturating_sub(micros(seat.class));
                (seat.class, now_us.saturating_add(early))
            })
            .collect();
        let mut batch = Self {
            states: vec![State::Waiting; seats.len()],
            held: vec![false; seats.len()],
            tried: vec![Vec::new(); seats.len()],
            absent: BTreeMap::new(),
            lease_at,
            phase: Phase::Gathering,
            until_us: now_us.saturating_add(longest).saturating_add(rules.gather_us),
            seats,
            courses,
            beside: BTreeMap::new(),
        };
        for place in 0..batch.seats.len() {
            if batch.course(place).is_none() {
                let said = "the validator has no course for its class".to_owned();
                batch.out(place, Some(Absence::Void { said }));
            }
        }
        batch
    }

    /// These are challenged in sessions that they serve: with less, and not leased for it.
    #[must_use]
    pub fn in_sessions(mut self, places: impl IntoIterator<Item = usize>) -> Self {
        for place in places {
            if let Some(course) = self.course(place).map(Course::beside) {
                self.beside.insert(place, course);
            }
        }
        self
    }

    /// Who takes part, by place.
    pub fn seats(&self) -> &[Seat] {
        &self.seats
    }

    /// The course of one of them.
    pub fn course(&self, place: usize) -> Option<&Course> {
        if let Some(beside) = self.beside.get(&place) {
            return Some(beside);
        }
        self.courses.get(&self.seats.get(place)?.class)
    }

    /// When [`Self::tick`] is due.
    pub fn deadline_us(&self) -> Option<u64> {
        match self.phase {
            Phase::Over => None,
            Phase::Round { .. } => Some(self.until_us),
            Phase::Gathering => {
                let waiting = self.places(State::Waiting);
                let leases = waiting.filter_map(|place| self.lease_time(place));
                Some(leases.min().unwrap_or(u64::MAX).min(self.until_us))
            }
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now_us: u64) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.phase == Phase::Gathering {
            let due: Vec<_> = self
                .places(State::Waiting)
                .filter(|place| self.lease_time(*place).is_some_and(|at| at <= now_us))
                .collect();
            for place in &due {
                self.enter(*place, State::Leasing);
                if let Some(held) = self.held.get_mut(*place) {
                    *held = true;
                }
            }
            if !due.is_empty() {
                actions.push(Action::Lease(due));
            }
        }
        if now_us >= self.until_us {
            self.overdue(&mut actions);
        }
        self.advance(now_us, &mut actions);
        actions
    }

    /// Something happened to one executor. What comes out of its turn changes nothing.
    pub fn apply(&mut self, place: usize, event: Event, now_us: u64) -> Vec<Action> {
        let mut actions = Vec::new();
        match (self.states.get(place).copied(), event) {
            (Some(State::Leasing), Event::Ready) => self.enter(place, State::Standing),
            (Some(State::Leasing), Event::Absent(absence)) => {
                self.out(place, Some(absence));
                self.release(vec![place], &mut actions);
            }
            (Some(State::Standing), Event::Lost(said)) => {
                // Whoever has shown all, or something wrong, leaves with that.
                let absence = self.owes(place).then_some(Absence::LeftBarrier { said });
                self.out(place, absence);
                self.release(vec![place], &mut actions);
            }
            (
                Some(State::Leasing | State::Standing | State::Proving | State::Committed | State::Judging),
                Event::Ours(said),
            ) => {
                self.out(place, Some(Absence::Void { said }));
                self.release(vec![place], &mut actions);
            }
            (Some(State::Proving), Event::Committed) => self.enter(place, State::Committed),
            (Some(State::Judging), Event::Judged(tried)) => {
                self.enter(place, State::Standing);
                if let Some(all) = self.tried.get_mut(place) {
                    all.push(*tried);
                }
            }
            // It was given up, or says again what is known.
            (Some(_) | None, _) => return actions,
        }
        self.advance(now_us, &mut actions);
        actions
    }

    /// What the batch comes to, and the facts by which copies were told. Before the end it says nothing.
    pub fn judgements(&self, before: &ProvenBefore) -> Option<(Vec<Judgement>, Marks)> {
        if self.phase != Phase::Over {
            return None;
        }
        let marks = marks(&self.tried);
        let judged = self.tried.iter().enumerate().filter_map(|(place, tried)| {
            let course = self.course(place)?;
            let told = !tried.is_empty() && !self.absent.contains_key(&place);
            let serves = self.beside.contains_key(&place);
            told.then(|| (place, judge(place, course, tried, &marks).seen(serves)))
        });
        let judged = judged.collect();
        Some((settle(&self.seats, &self.absent, &judged, before), marks))
    }

    /// Why those were not challenged that were not, by place.
    pub fn absent(&self) -> &BTreeMap<usize, Absence> {
        &self.absent
    }

    /// Whoever the validator waited for in vain.
    fn overdue(&mut self, actions: &mut Vec<Action>) {
        let mut given_up = Vec::new();
        for place in 0..self.seats.len() {
            let absence = match (self.phase, self.states.get(place)) {
                (Phase::Gathering, Some(State::Waiting | State::Leasing)) => Absence::NotReady {
                    said: "its session was not up when the barrier closed".to_owned(),
                },
                (Phase::Round { .. }, Some(State::Proving)) => Absence::Void {
                    said: "the validator did not hear how its conversation ended".to_owned(),
                },
                (Phase::Gathering | Phase::Round { .. } | Phase::Over, _) => continue,
            };
            self.out(place, Some(absence));
            given_up.push(place);
        }
        self.release(given_up, actions);
    }

    /// Goes on where nobody is waited for.
    fn advance(&mut self, now_us: u64, actions: &mut Vec<Action>) {
        if !self.states.contains(&State::Proving) {
            let committed: Vec<_> = self.places(State::Committed).collect();
            for place in &committed {
                self.enter(*place, State::Judging);
            }
            if !committed.is_empty() {
                actions.push(Action::Judge(committed));
            }
        }
        let busy = |state: &State| match (self.phase, state) {
            (Phase::Gathering, State::Waiting | State::Leasing)
            | (Phase::Round { .. }, State::Proving | State::Committed | State::Judging) => true,
            (Phase::Gathering | Phase::Round { .. } | Phase::Over, _) => false,
        };
        if self.states.iter().any(busy) {
            return;
        }
        match self.phase {
            Phase::Over => {}
            Phase::Gathering => self.fire_from(0, now_us, actions),
            Phase::Round { trial, attempt: 0 } => {
                let (again, lost) = self.short_of(trial);
                self.dismiss(lost, actions);
                if again.is_empty() {
                    self.fire_from(trial.saturating_add(1), now_us, actions);
                } else {
                    self.fire(trial, 1, again, now_us, actions);
                }
            }
            Phase::Round { trial, .. } => {
                let (again, lost) = self.short_of(trial);
                self.dismiss(again.into_iter().chain(lost).collect(), actions);
                self.fire_from(trial.saturating_add(1), now_us, actions);
            }
        }
    }

    /// Those at the barrier who have this trial behind them and not passed: who may try again, and who showed a wrong proof.
    fn short_of(&self, trial: usize) -> (Vec<usize>, Vec<usize>) {
        let (mut again, mut wrong) = (Vec::new(), Vec::new());
        for place in self.places(State::Standing) {
            let tried = self.tried.get(place).and_then(|all| all.last());
            let Some(last) = tried.filter(|last| last.trial == trial) else {
                continue;
            };
            let floors = self.course(place).map(|course| course.floors);
            match last.verdict {
                Verdict::Zero(reason) if reason.is_wrong() => wrong.push(place),
                Verdict::Zero(_) => again.push(place),
                Verdict::Passed(measured) if floors.is_some_and(|floors| below(&floors, &measured)) => {
                    again.push(place);
                }
                Verdict::Passed(_) => {}
            }
        }
        (again, wrong)
    }

    /// Whether an executor has yet to prove something.
    fn owes(&self, place: usize) -> bool {
        let (Some(course), Some(tried)) = (self.course(place), self.tried.get(place)) else {
            return false;
        };
        let last = tried.last().map(|last| (last.trial, last.verdict));
        match last {
            None => true,
            Some((_, Verdict::Zero(reason))) => !reason.is_wrong(),
            Some((trial, Verdict::Passed(measured))) => {
                trial.saturating_add(1) < course.trials.len() || below(&course.floors, &measured)
            }
        }
    }

    /// Those who have nothing more to win.
    fn dismiss(&mut self, places: Vec<usize>, actions: &mut Vec<Action>) {
        for place in &places {
            self.out(*place, None);
        }
        self.release(places, actions);
    }

    /// Fires the first trial from this one on that anybody has, and lets those go who have none left.
    fn fire_from(&mut self, trial: usize, now_us: u64, actions: &mut Vec<Action>) {
        let standing: Vec<_> = self.places(State::Standing).collect();
        let (on, done): (Vec<_>, Vec<_>) = standing.into_iter().partition(|place| {
            self.course(*place)
                .is_some_and(|course| course.trials.len() > trial)
        });
        self.dismiss(done, actions);
        if on.is_empty() {
            self.phase = Phase::Over;
            actions.push(Action::Finish);
        } else {
            self.fire(trial, 0, on, now_us, actions);
        }
    }

    fn fire(&mut self, trial: usize, attempt: u8, seats: Vec<usize>, now_us: u64, actions: &mut Vec<Action>) {
        let longest = seats.iter().filter_map(|place| {
            let trial = self.course(*place)?.trials.get(trial)?;
            Some(trial.longest_us())
        });
        let longest = longest.max().unwrap_or(0);
        self.until_us = now_us.saturating_add(longest).saturating_add(SLACK_US);
        for place in &seats {
            self.enter(*place, State::Proving);
        }
        self.phase = Phase::Round { trial, attempt };
        actions.push(Action::Fire {
            trial,
            attempt,
            seats,
        });
    }

    fn lease_time(&self, place: usize) -> Option<u64> {
        self.lease_at.get(&self.seats.get(place)?.class).copied()
    }

    fn places(&self, wanted: State) -> impl Iterator<Item = usize> + '_ {
        let states = self.states.iter().enumerate();
        states.filter_map(move |(place, state)| (*state == wanted).then_some(place))
    }

    fn enter(&mut self, place: usize, next: State) {
        if let Some(state) = self.states.get_mut(place) {
            *state = next;
        }
    }

    fn out(&mut self, place: usize, absence: Option<Absence>) {
        self.enter(place, State::Out);
        if let Some(absence) = absence {
            self.absent.insert(place, absence);
        }
    }

    /// Gives back what is held of these, each once.
    fn release(&mut self, places: Vec<usize>, actions: &mut Vec<Action>) {
        let held = places.into_iter().filter(|place| {
            let held = self.held.get_mut(*place);
            held.is_some_and(std::mem::take)
        });
        let held: Vec<_> = held.collect();
        if !held.is_empty() {
            actions.push(Action::Release(held));
        }
    }
}

/// The facts of every proof, by place.
pub(crate) fn marks(tried: &[Vec<Tried>]) -> Marks {
    let all = tried.iter().enumerate().filter(|(_, tried)| !tried.is_empty());
    all.map(|(place, tried)| (place, tried.iter().map(|tried| tried.facts).collect()))
        .collect()
}

/// Whether a proof that is right is less than its class asks for.
fn below(floors: &Floors, measured: &Measured) -> bool {
    use muster_hardware_proof::spec::Numbers;
    let least = &floors.least;
    match measured {
        Measured::Chain {
            numbers: Numbers::Int8,
            rate,
            ..
        } => *rate < least.int8,
        Measured::Chain {
            numbers: Numbers::Fp16,
            rate,
            ..
        } => *rate < least.fp16,
        Measured::Walk { rate, .. } => *rate < least.bandwidth,
    }
}

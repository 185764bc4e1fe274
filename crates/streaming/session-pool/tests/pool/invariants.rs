//! The invariants of the pool under random events.

use std::collections::{BTreeMap, BTreeSet};

use muster_session_pool::{Effect, Event, Limits, RequestNumber, SessionNumber, SessionPool};
use proptest::prelude::*;

use crate::{LIMITS, arrived, at, user};

/// The state that a gateway knows from the effects alone.
#[derive(Default)]
struct PoolModel {
    open: BTreeMap<SessionNumber, OpenSession>,
    requests: BTreeMap<RequestNumber, (u8, RequestState)>,
    asked: u64,
    /// When a session last failed a request.
    failed: Option<i64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OpenSession {
    Starting,
    Sealed { until: i64 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RequestState {
    Waiting,
    With(SessionNumber, bool),
    Answered,
}

#[derive(Clone, Debug)]
enum PoolStep {
    Ask(u8),
    AskOne(u8, usize),
    Leave(usize),
    First(usize),
    Serve(usize),
    Break(usize),
    Ready(usize, i64),
    Unusable(usize),
    NoRoom(usize, Option<i64>),
    TooLong(usize),
    Room,
    JobsWait(bool),
    Die(usize),
    Health(usize, bool),
    Drain(usize),
    Wait(i64),
}

fn moves() -> impl Strategy<Value = PoolStep> {
    let which = 0_usize..8;
    prop_oneof![
        6 => (0_u8..4).prop_map(PoolStep::Ask),
        2 => (0_u8..4, which.clone()).prop_map(|(from, session)| PoolStep::AskOne(from, session)),
        1 => which.clone().prop_map(PoolStep::Leave),
        3 => which.clone().prop_map(PoolStep::First),
        4 => which.clone().prop_map(PoolStep::Serve),
        1 => which.clone().prop_map(PoolStep::Break),
        4 => (which.clone(), 40_i64..400).prop_map(|(session, lives)| PoolStep::Ready(session, lives)),
        1 => which.clone().prop_map(PoolStep::Unusable),
        1 => (which.clone(), proptest::option::of(0_i64..400))
            .prop_map(|(session, expected)| PoolStep::NoRoom(session, expected)),
        1 => which.clone().prop_map(PoolStep::TooLong),
        1 => Just(PoolStep::Room),
        1 => any::<bool>().prop_map(PoolStep::JobsWait),
        1 => which.clone().prop_map(PoolStep::Die),
        1 => which.clone().prop_map(PoolStep::Drain),
        1 => (which, any::<bool>()).prop_map(|(session, well)| PoolStep::Health(session, well)),
        3 => (0_i64..90).prop_map(PoolStep::Wait),
    ]
}

impl PoolModel {
    fn pick(&self, at: usize, wanted: impl Fn(&RequestState) -> bool) -> Option<RequestNumber> {
        let all: Vec<_> = self
            .requests
            .iter()
            .filter(|(_, (_, place))| wanted(place))
            .collect();
        all.get(at % all.len().max(1)).map(|(number, _)| **number)
    }

    fn session(&self, at: usize) -> Option<SessionNumber> {
        let all: Vec<_> = self.open.keys().copied().collect();
        all.get(at % all.len().max(1)).copied()
    }

    /// The event of a move, after this model has taken it into account.
    fn event(&mut self, step: &PoolStep, now: &mut i64) -> Option<Event> {
        let served = |place: &RequestState| matches!(place, RequestState::With(..));
        match step {
            PoolStep::Ask(from) => {
                let request = RequestNumber(self.asked);
                self.asked += 1;
                self.requests.insert(request, (*from, RequestState::Waiting));
                Some(Event::Arrived {
                    request,
                    user: user(*from),
                    patience: LIMITS.max_wait,
                })
            }
            PoolStep::AskOne(from, index) => {
                let session = self.session(*index)?;
                let request = RequestNumber(self.asked);
                self.asked += 1;
                self.requests.insert(request, (*from, RequestState::Waiting));
                Some(Event::ArrivedFor {
                    request,
                    user: user(*from),
                    session,
                })
            }
            PoolStep::Leave(index) => {
                let request = self.pick(*index, |place| *place != RequestState::Answered)?;
                self.requests.get_mut(&request)?.1 = RequestState::Answered;
                Some(Event::Left(request))
            }
            PoolStep::First(index) => {
                let request = self.pick(*index, served)?;
                let (_, RequestState::With(session, begun)) = self.requests.get_mut(&request)? else {
                    return None;
                };
                // It may have left the session at the moment at which the session was presumed dead.
                *begun = true;
                Some(Event::FirstByte(request, *session))
            }
            PoolStep::Serve(index) => {
                let request = self.pick(*index, served)?;
                let place = &mut self.requests.get_mut(&request)?.1;
                let RequestState::With(session, _) = *place else {
                    return None;
                };
                *place = RequestState::Answered;
                Some(Event::Served(request, session))
            }
            PoolStep::Break(index) => {
                let request = self.pick(*index, served)?;
                let (_, place) = self.requests.get_mut(&request)?;
                let RequestState::With(session, begun) = *place else {
                    return None;
                };
                if !begun {
                    *place = RequestState::Waiting;
                }
                self.failed = Some(*now);
                Some(Event::Failed(request, session))
            }
            PoolStep::Ready(index, lives) => {
                let session = self.session(*index)?;
                let open = self.open.get_mut(&session)?;
                if *open == OpenSession::Starting {
                    *open = OpenSession::Sealed { until: *now + lives };
                }
                Some(Event::Ready(session, at(*now + lives)))
            }
            PoolStep::Unusable(index) => Some(Event::Unusable(self.session(*index)?, "no".to_owned())),
            PoolStep::NoRoom(index, expected) => Some(Event::NoRoom {
                session: self.session(*index)?,
                why: "all are at work".to_owned(),
                expected: expected.map(|seconds| at(*now + seconds)),
            }),
            PoolStep::TooLong(index) => Some(Event::TooLong(self.session(*index)?)),
            PoolStep::Room => Some(Event::Room),
            PoolStep::JobsWait(jobs_wait) => Some(Event::JobsWait(*jobs_wait)),
            PoolStep::Die(index) => {
                let session = self.session(*index)?;
                self.open.remove(&session);
                Some(Event::Died(session))
            }
            PoolStep::Health(index, well) => Some(Event::Health(self.session(*index)?, *well)),
            PoolStep::Drain(index) => Some(Event::Drain(self.session(*index)?)),
            PoolStep::Wait(secs) => {
                *now += secs;
                Some(Event::Tick)
            }
        }
    }

    /// Takes the effects into account, or names the invariant that they break.
    fn follow(&mut self, effects: &[Effect], now: i64) -> Result<(), String> {
        for effect in effects {
            match effect {
                Effect::Start(session) => {
                    if self.open.insert(*session, OpenSession::Starting).is_some() {
                        return Err(format!("{session:?} is started twice"));
                    }
                }
                Effect::Close(session, _) => {
                    self.open.remove(session);
                }
                Effect::Route(request, session) => {
                    match self.open.get(session) {
                        Some(OpenSession::Sealed { until }) if now < *until => {}
                        other => return Err(format!("nothing unsealed serves: {session:?} is {other:?}")),
                    }
                    let (_, place) = self.requests.get_mut(request).ok_or("routed from nowhere")?;
                    match place {
                        RequestState::With(_, true) => {
                            return Err(format!("{request:?} had begun and moves"));
                        }
                        RequestState::Answered => {
                            return Err(format!("{request:?} was answered and is routed"));
                        }
                        RequestState::Waiting | RequestState::With(_, false) => {
                            *place = RequestState::With(*session, false)
                        }
                    }
                }
                Effect::Refuse(request, _) => {
                    let (_, place) = self.requests.get_mut(request).ok_or("refused from nowhere")?;
                    match place {
                        RequestState::Waiting | RequestState::With(_, false) => {
                            *place = RequestState::Answered
                        }
                        RequestState::With(_, true) => {
                            return Err(format!("{request:?} had begun: a status is too late"));
                        }
                        RequestState::Answered => return Err(format!("{request:?} is answered twice")),
                    }
                }
                Effect::BreakOff(request) => {
                    let (_, place) = self.requests.get_mut(request).ok_or("broken off from nowhere")?;
                    if !matches!(place, RequestState::With(_, true)) {
                        return Err(format!("{request:?} is broken off as {place:?}"));
                    }
                    *place = RequestState::Answered;
                }
            }
        }
        Ok(())
    }
}

fn check_invariants(world: &PoolModel, pool: &SessionPool, limits: &Limits, now: i64) -> Result<(), String> {
    let counts = pool.counts();
    let open = counts.starting + counts.live + counts.draining;
    if open > limits.max + 1 {
        return Err(format!("never more than the maximum: {counts:?}"));
    }
    if open != world.open.len() {
        return Err(format!(
            "every session is known: {counts:?}, the world has {:?}",
            world.open
        ));
    }
    let of = |wanted: fn(&RequestState) -> bool| {
        world.requests.values().filter(|(_, place)| wanted(place)).count()
    };
    let waiting = of(|place| *place == RequestState::Waiting);
    let serving = of(|place| matches!(place, RequestState::With(..)));
    if waiting + serving != counts.waiting + counts.bound + counts.serving {
        return Err(format!(
            "no request is lost: {waiting} wait and {serving} are served, the pool knows {counts:?}"
        ));
    }
    if counts.bound > limits.queue {
        return Err(format!("requests for one session are bounded: {counts:?}"));
    }
    if counts.waiting > limits.queue + limits.max * limits.per_session + limits.per_session {
        return Err(format!("the queue is bounded: {counts:?}"));
    }
    let may_rest = world
        .failed
        .is_some_and(|failed| at(now) < at(failed).plus(limits.rest));
    if counts.waiting > 0
        && !may_rest
        && counts.live > 0
        && counts.serving < counts.live * limits.per_session
        && counts.draining == 0
    {
        return Err(format!("nothing idles while somebody waits: {counts:?}"));
    }
    if counts.waiting + counts.bound > 0 && pool.wake(at(now)).is_none() {
        return Err(format!("a request that waits is looked at again: {counts:?}"));
    }
    let nobody_comes = counts.starting + counts.live == 0 && counts.waiting > 0;
    if nobody_comes && open < limits.max && pool.wake(at(now)).is_none() {
        return Err(format!(
            "every request that waits is served or refused: {counts:?}"
        ));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn the_pools_promises_hold_under_any_events(
        steps in proptest::collection::vec(moves(), 1..120), min in 0_usize..2, max in 1_usize..4,
        per_session in 1_usize..4,
    ) {
        let limits = Limits { min, max, per_session, ..LIMITS };
        let (mut pool, mut world, mut now) = (SessionPool::new(limits), PoolModel::default(), 0);
        for (place, step) in steps.iter().enumerate() {
            let Some(event) = world.event(step, &mut now) else { continue };
            let effects = pool.apply(event, at(now));
            let followed = world.follow(&effects, now).and_then(|()| check_invariants(&world, &pool, &limits, now));
            prop_assert!(followed.is_ok(), "step {place}, {step:?}: {}", followed.unwrap_err());
        }
        // Everything that is left is answered once nothing starts any more and time passes.
        let effects = pool.apply(Event::Stop, at(now));
        prop_assert_eq!(world.follow(&effects, now), Ok(()));
        now += 1_000;
        let effects = pool.apply(Event::Tick, at(now));
        prop_assert_eq!(world.follow(&effects, now), Ok(()));
        let left: Vec<_> = world.requests.iter().filter(|(_, (_, place))| *place != RequestState::Answered).collect();
        prop_assert!(left.is_empty(), "no request is lost: {left:?}");
        prop_assert!(pool.is_over() && world.open.is_empty());
    }

    /// With one place that is given away again and again, no user who waits is passed over twice.
    #[test]
    fn nobody_starves(first in 0_u8..3, more in proptest::collection::vec(0_u8..3, 0..30)) {
        let limits = Limits { max: 1, per_session: 1, queue: 100, queue_of_one: 100, ..LIMITS };
        let mut pool = SessionPool::new(limits);
        let mut owners = BTreeMap::new();
        for (number, from) in std::iter::once(first).chain(more).enumerate() {
            let number = u64::try_from(number).unwrap();
            owners.insert(RequestNumber(number), from);
            pool.apply(arrived(number, from), at(0));
        }
        let mut order = Vec::new();
        let mut effects = pool.apply(Event::Ready(SessionNumber(0), at(100_000)), at(1));
        while let Some(Effect::Route(request, session)) = effects.first().cloned() {
            order.push(owners[&request]);
            effects = pool.apply(Event::Served(request, session), at(1));
        }
        prop_assert_eq!(order.len(), owners.len());
        for (place, served) in order.iter().enumerate() {
            let again = order.iter().skip(place + 1).position(|next| next == served);
            let Some(again) = again else { continue };
            let between: BTreeSet<_> = order[place + 1..place + 1 + again].iter().collect();
            let waits: BTreeSet<_> = order[place + 1..].iter().filter(|next| *next != served).collect();
            prop_assert_eq!(between, waits, "everybody who waits has a turn before the same one has two");
        }
    }
}

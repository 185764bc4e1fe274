//! The pool: its effects step by step, and its invariants under random events.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_openai::OpenAiError;
use muster_protocol::{Digest, Timestamp};
use muster_session_pool::pool::PoolCounts;
use muster_session_pool::{CloseReason, Effect, Event, Limits, RequestNumber, SessionNumber, SessionPool};
use proptest::prelude::*;

const LIMITS: Limits = Limits {
    min: 0,
    max: 2,
    per_session: 2,
    queue: 6,
    queue_of_one: 3,
    max_wait: Duration::from_secs(60),
    idle: Duration::from_secs(100),
    replace: Duration::from_secs(120),
    drain: Duration::from_secs(30),
    max_misses: 1,
    max_tries: 2,
    backoff: Duration::from_secs(4),
};

fn at(secs: i64) -> Timestamp {
    Timestamp::from_secs(secs)
}

fn user(byte: u8) -> Digest {
    Digest::from_bytes([byte; 32])
}

fn arrived(request: u64, from: u8) -> Event {
    Event::Arrived {
        request: RequestNumber(request),
        user: user(from),
    }
}

const fn route(request: u64, session: u64) -> Effect {
    Effect::Route(RequestNumber(request), SessionNumber(session))
}

#[test]
fn the_first_client_waits_for_a_session_and_the_last_idle_one_goes() {
    let mut pool = SessionPool::new(LIMITS);
    assert_eq!(pool.apply(Event::Tick, at(0)), []);
    assert_eq!(
        pool.apply(arrived(1, 1), at(1)),
        [Effect::Start(SessionNumber(0))]
    );
    assert_eq!(
        pool.apply(arrived(2, 1), at(2)),
        [],
        "two fit into the session that starts"
    );
    assert_eq!(
        pool.apply(arrived(3, 1), at(3)),
        [Effect::Start(SessionNumber(1))]
    );
    let ready = Event::Ready(SessionNumber(0), at(10_000));
    assert_eq!(pool.apply(ready, at(5)), [route(1, 0), route(2, 0)]);
    let ready = Event::Ready(SessionNumber(1), at(10_000));
    assert_eq!(pool.apply(ready, at(6)), [route(3, 1)]);
    for (request, session) in [(1, 0), (2, 0), (3, 1)] {
        let (request, session) = (RequestNumber(request), SessionNumber(session));
        assert_eq!(pool.apply(Event::FirstByte(request, session), at(7)), []);
        assert_eq!(pool.apply(Event::Served(request, session), at(8)), []);
    }
    assert_eq!(pool.wake(at(8)), Some(at(108)));
    let closed = |number| Effect::Close(SessionNumber(number), CloseReason::Idle);
    assert_eq!(pool.apply(Event::Tick, at(108)), [closed(0), closed(1)]);
    assert_eq!(pool.counts(), PoolCounts::default());
}

#[test]
fn before_the_first_byte_another_session_takes_over_and_after_it_the_client_is_told() {
    let mut pool = SessionPool::new(LIMITS);
    pool.apply(arrived(1, 1), at(0));
    pool.apply(arrived(2, 2), at(0));
    pool.apply(Event::Ready(SessionNumber(0), at(10_000)), at(1));
    pool.apply(Event::FirstByte(RequestNumber(1), SessionNumber(0)), at(2));
    let effects = pool.apply(Event::Died(SessionNumber(0)), at(3));
    assert_eq!(
        effects,
        [
            Effect::BreakOff(RequestNumber(1)),
            Effect::Start(SessionNumber(1))
        ]
    );
    assert_eq!(
        pool.apply(Event::Failed(RequestNumber(2), SessionNumber(0)), at(3)),
        [],
        "known already"
    );
    assert_eq!(
        pool.apply(Event::Ready(SessionNumber(1), at(10_000)), at(4)),
        [route(2, 1)]
    );
    let effects = pool.apply(Event::Failed(RequestNumber(2), SessionNumber(1)), at(5));
    let refused = OpenAiError::UpstreamFailed("2 sessions failed before they answered".to_owned());
    assert_eq!(effects, [Effect::Refuse(RequestNumber(2), refused)]);
}

#[test]
fn an_answer_that_begins_while_its_session_is_taken_for_dead_needs_no_other_place() {
    // Whether another session has a place for it by then or not.
    for sessions in [1, 2] {
        let mut pool = SessionPool::new(Limits {
            min: sessions,
            ..LIMITS
        });
        pool.apply(arrived(1, 1), at(0));
        for number in 0..sessions {
            pool.apply(Event::Ready(SessionNumber(number as u64), at(10_000)), at(1));
        }
        let effects = pool.apply(Event::Died(SessionNumber(0)), at(2));
        assert_eq!(effects.contains(&route(1, 1)), sessions == 2, "{effects:?}");
        let begun = Event::FirstByte(RequestNumber(1), SessionNumber(0));
        assert_eq!(pool.apply(begun, at(2)), [Effect::BreakOff(RequestNumber(1))]);
        let census = pool.counts();
        assert_eq!((census.waiting, census.serving), (0, 0));
        assert_eq!(
            pool.apply(Event::Served(RequestNumber(1), SessionNumber(0)), at(3)),
            []
        );
    }
}

#[test]
fn one_user_cannot_fill_the_queue_and_turns_are_taken() {
    let mut pool = SessionPool::new(LIMITS);
    for request in 0..3 {
        pool.apply(arrived(request, 1), at(0));
    }
    let effects = pool.apply(arrived(3, 1), at(0));
    let [Effect::Refuse(RequestNumber(3), refusal)] = effects.as_slice() else {
        panic!("{effects:?}")
    };
    assert_eq!(
        (refusal.status().as_u16(), refusal.retry_after()),
        (429, Some(15))
    );
    for request in 10..13 {
        assert_eq!(pool.apply(arrived(request, 2), at(0)), []);
    }
    let effects = pool.apply(arrived(20, 3), at(0));
    assert!(matches!(
        effects.as_slice(),
        [Effect::Refuse(_, OpenAiError::QueueFull { .. })]
    ));
    let effects = pool.apply(Event::Ready(SessionNumber(0), at(10_000)), at(1));
    assert_eq!(effects, [route(0, 0), route(10, 0)], "one of each");
}

#[test]
fn a_session_that_cannot_seal_serves_nobody_and_clients_learn_why() {
    let mut pool = SessionPool::new(LIMITS);
    pool.apply(arrived(1, 1), at(0));
    let why = "the miner cannot seal".to_owned();
    let effects = pool.apply(Event::Unusable(SessionNumber(0), why.clone()), at(1));
    assert_eq!(effects, [Effect::Close(SessionNumber(0), CloseReason::Unusable)]);
    assert_eq!(
        pool.wake(at(1)),
        Some(at(5)),
        "another one is tried after a while"
    );
    assert_eq!(pool.apply(Event::Tick, at(5)), [Effect::Start(SessionNumber(1))]);
    let effects = pool.apply(Event::Unusable(SessionNumber(1), why), at(6));
    let [Effect::Close(..), Effect::Refuse(RequestNumber(1), refusal)] = effects.as_slice() else {
        panic!("{effects:?}")
    };
    assert_eq!(
        refusal.to_string(),
        "no session could be started: the miner cannot seal"
    );
    assert_eq!(refusal.status().as_u16(), 503);
    assert_eq!(
        pool.wake(at(6)),
        Some(at(14)),
        "and twice as long after the second failure"
    );
}

#[test]
fn a_session_is_replaced_before_it_ends() {
    let mut pool = SessionPool::new(Limits { max: 1, ..LIMITS });
    pool.apply(arrived(1, 1), at(0));
    pool.apply(Event::Ready(SessionNumber(0), at(1_000)), at(1));
    pool.apply(Event::FirstByte(RequestNumber(1), SessionNumber(0)), at(2));
    assert_eq!(pool.wake(at(2)), Some(at(880)));
    assert_eq!(
        pool.apply(Event::Tick, at(880)),
        [Effect::Start(SessionNumber(1))]
    );
    assert_eq!(
        pool.apply(arrived(2, 1), at(881)),
        [route(2, 0)],
        "meanwhile the old one serves"
    );
    pool.apply(Event::Served(RequestNumber(2), SessionNumber(0)), at(882));
    assert_eq!(pool.apply(Event::Ready(SessionNumber(1), at(2_000)), at(890)), []);
    assert_eq!(
        pool.apply(arrived(3, 1), at(891)),
        [route(3, 1)],
        "the old one gets nothing new"
    );
    let effects = pool.apply(Event::Served(RequestNumber(1), SessionNumber(0)), at(900));
    assert_eq!(effects, [Effect::Close(SessionNumber(0), CloseReason::Drained)]);
}

#[test]
fn a_sick_session_is_given_up() {
    let mut pool = SessionPool::new(Limits { min: 1, ..LIMITS });
    assert_eq!(pool.apply(Event::Tick, at(0)), [Effect::Start(SessionNumber(0))]);
    pool.apply(Event::Ready(SessionNumber(0), at(10_000)), at(1));
    assert_eq!(pool.apply(Event::Health(SessionNumber(0), false), at(2)), []);
    assert_eq!(pool.apply(Event::Health(SessionNumber(0), true), at(3)), []);
    assert_eq!(pool.apply(Event::Health(SessionNumber(0), false), at(4)), []);
    let effects = pool.apply(Event::Health(SessionNumber(0), false), at(5));
    let closed = Effect::Close(SessionNumber(0), CloseReason::Unhealthy);
    assert_eq!(effects, [closed, Effect::Start(SessionNumber(1))]);
}

#[test]
fn patience_ends_and_so_does_everything() {
    let mut pool = SessionPool::new(LIMITS);
    pool.apply(arrived(1, 1), at(0));
    assert_eq!(pool.wake(at(0)), Some(at(60)));
    let effects = pool.apply(Event::Tick, at(60));
    let [Effect::Refuse(RequestNumber(1), refusal)] = effects.as_slice() else {
        panic!("{effects:?}")
    };
    assert_eq!(refusal.to_string(), "no session had a place for it within 60 s");
    pool.apply(arrived(2, 1), at(61));
    let effects = pool.apply(Event::Stop, at(62));
    assert!(matches!(
        effects.as_slice(),
        [
            Effect::Close(SessionNumber(0), _),
            Effect::Refuse(RequestNumber(2), _)
        ]
    ));
    assert!(pool.is_over());
    assert!(matches!(
        pool.apply(arrived(3, 1), at(63)).as_slice(),
        [Effect::Refuse(..)]
    ));
}

// === invariants under random events ===

/// The state that a gateway knows from the effects alone.
#[derive(Default)]
struct PoolModel {
    open: BTreeMap<SessionNumber, OpenSession>,
    requests: BTreeMap<RequestNumber, (u8, RequestState)>,
    asked: u64,
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
    Leave(usize),
    First(usize),
    Serve(usize),
    Break(usize),
    Ready(usize, i64),
    Unusable(usize),
    Die(usize),
    Health(usize, bool),
    Wait(i64),
}

fn moves() -> impl Strategy<Value = PoolStep> {
    let which = 0_usize..8;
    prop_oneof![
        6 => (0_u8..4).prop_map(PoolStep::Ask),
        1 => which.clone().prop_map(PoolStep::Leave),
        3 => which.clone().prop_map(PoolStep::First),
        4 => which.clone().prop_map(PoolStep::Serve),
        1 => which.clone().prop_map(PoolStep::Break),
        4 => (which.clone(), 40_i64..400).prop_map(|(session, lives)| PoolStep::Ready(session, lives)),
        1 => which.clone().prop_map(PoolStep::Unusable),
        1 => which.clone().prop_map(PoolStep::Die),
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
                })
            }
            PoolStep::Leave(at) => {
                let request = self.pick(*at, |place| *place != RequestState::Answered)?;
                self.requests.get_mut(&request)?.1 = RequestState::Answered;
                Some(Event::Left(request))
            }
            PoolStep::First(at) => {
                let request = self.pick(*at, served)?;
                let (_, RequestState::With(session, begun)) = self.requests.get_mut(&request)? else {
                    return None;
                };
                // It may have left the session at the moment at which the session was presumed dead.
                *begun = true;
                Some(Event::FirstByte(request, *session))
            }
            PoolStep::Serve(at) => {
                let request = self.pick(*at, served)?;
                let place = &mut self.requests.get_mut(&request)?.1;
                let RequestState::With(session, _) = *place else {
                    return None;
                };
                *place = RequestState::Answered;
                Some(Event::Served(request, session))
            }
            PoolStep::Break(at) => {
                let request = self.pick(*at, served)?;
                let (_, place) = self.requests.get_mut(&request)?;
                let RequestState::With(session, begun) = *place else {
                    return None;
                };
                if !begun {
                    *place = RequestState::Waiting;
                }
                Some(Event::Failed(request, session))
            }
            PoolStep::Ready(at, lives) => {
                let session = self.session(*at)?;
                let standing = self.open.get_mut(&session)?;
                if *standing == OpenSession::Starting {
                    *standing = OpenSession::Sealed { until: *now + lives };
                }
                Some(Event::Ready(session, at_secs(*now + lives)))
            }
            PoolStep::Unusable(at) => Some(Event::Unusable(self.session(*at)?, "no".to_owned())),
            PoolStep::Die(at) => {
                let session = self.session(*at)?;
                self.open.remove(&session);
                Some(Event::Died(session))
            }
            PoolStep::Health(at, well) => Some(Event::Health(self.session(*at)?, *well)),
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

fn at_secs(secs: i64) -> Timestamp {
    Timestamp::from_secs(secs)
}

fn check_invariants(world: &PoolModel, pool: &SessionPool, limits: &Limits, now: i64) -> Result<(), String> {
    let census = pool.counts();
    let open = census.starting + census.live + census.draining;
    if open > limits.max + 1 {
        return Err(format!("never more than the maximum: {census:?}"));
    }
    if open != world.open.len() {
        return Err(format!(
            "every session is known: {census:?}, the world has {:?}",
            world.open
        ));
    }
    let of = |wanted: fn(&RequestState) -> bool| {
        world.requests.values().filter(|(_, place)| wanted(place)).count()
    };
    let waiting = of(|place| *place == RequestState::Waiting);
    let serving = of(|place| matches!(place, RequestState::With(..)));
    if waiting + serving != census.waiting + census.serving {
        return Err(format!(
            "no request is lost: {waiting} wait and {serving} are served, the pool knows {census:?}"
        ));
    }
    if census.waiting > limits.queue + limits.max * limits.per_session + limits.per_session {
        return Err(format!("the queue is bounded: {census:?}"));
    }
    if census.waiting > 0
        && census.live > 0
        && census.serving < census.live * limits.per_session
        && census.draining == 0
    {
        return Err(format!("nothing idles while somebody waits: {census:?}"));
    }
    let nobody_comes = census.starting + census.live == 0 && census.waiting > 0;
    if nobody_comes && open < limits.max && pool.wake(at_secs(now)).is_none() {
        return Err(format!(
            "every request that waits is served or refused: {census:?}"
        ));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens(
        steps in proptest::collection::vec(moves(), 1..120), min in 0_usize..2, max in 1_usize..4,
        per_session in 1_usize..4,
    ) {
        let limits = Limits { min, max, per_session, ..LIMITS };
        let (mut pool, mut world, mut now) = (SessionPool::new(limits), PoolModel::default(), 0);
        for (place, step) in steps.iter().enumerate() {
            let Some(event) = world.event(step, &mut now) else { continue };
            let effects = pool.apply(event, at_secs(now));
            let followed = world.follow(&effects, now).and_then(|()| check_invariants(&world, &pool, &limits, now));
            prop_assert!(followed.is_ok(), "step {place}, {step:?}: {}", followed.unwrap_err());
        }
        // Everything that is left is answered once nothing starts any more and time passes.
        let effects = pool.apply(Event::Stop, at_secs(now));
        prop_assert_eq!(world.follow(&effects, now), Ok(()));
        now += 1_000;
        let effects = pool.apply(Event::Tick, at_secs(now));
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

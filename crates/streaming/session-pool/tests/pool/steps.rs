//! The effects of the pool, step by step.

use muster_openai::OpenAiError;
use muster_session_pool::pool::PoolCounts;
use muster_session_pool::{
    CloseReason, Effect, Event, Limits, RequestNumber, SessionNumber, SessionPool, WaitingFor, WaitingPlace,
};

use crate::{LIMITS, arrived, at, route, user};

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
fn a_request_for_one_session_takes_a_free_place_there_and_no_other() {
    let mut pool = SessionPool::new(Limits { min: 2, ..LIMITS });
    pool.apply(Event::Tick, at(0));
    for number in 0..2 {
        pool.apply(Event::Ready(SessionNumber(number), at(10_000)), at(1));
    }
    let bound = |request: u64, session: u64| Event::ArrivedFor {
        request: RequestNumber(request),
        user: user(7),
        session: SessionNumber(session),
    };
    let refuses = |effects: &[Effect]| matches!(effects, [Effect::Refuse(..)]);
    assert_eq!(pool.apply(bound(1, 1), at(2)), [route(1, 1)]);
    assert_eq!(pool.apply(bound(2, 1), at(2)), [route(2, 1)]);
    assert!(
        refuses(&pool.apply(bound(4, 9), at(2))),
        "there is no such session"
    );
    assert_eq!(pool.apply(bound(3, 1), at(2)), [], "two are its places");
    assert_eq!(
        pool.apply(Event::Served(RequestNumber(1), SessionNumber(1)), at(3)),
        [route(3, 1)]
    );
    // It goes before those that any session may serve, which have waited longer.
    for request in 5..9 {
        pool.apply(arrived(request, 1), at(4));
    }
    assert_eq!(pool.apply(bound(9, 1), at(5)), []);
    assert_eq!(
        pool.apply(Event::Served(RequestNumber(2), SessionNumber(1)), at(6)),
        [route(9, 1)]
    );
    // Its session fails: nobody else serves it.
    let failed = pool.apply(Event::Failed(RequestNumber(9), SessionNumber(1)), at(7));
    assert!(
        failed
            .iter()
            .any(|effect| matches!(effect, Effect::Refuse(RequestNumber(9), _))),
        "{failed:?}"
    );
    assert_eq!(pool.apply(bound(10, 1), at(7)), [], "it rests");
    let drained = pool.apply(Event::Drain(SessionNumber(1)), at(7));
    assert!(refuses(&drained), "{drained:?}");
    assert_eq!(pool.apply(Event::Left(RequestNumber(10)), at(7)), []);
}

#[test]
fn a_session_that_is_held_is_not_closed_as_idle_and_own_requests_do_not_count_as_its_use() {
    let mut pool = SessionPool::new(LIMITS);
    pool.apply(arrived(1, 1), at(0));
    pool.apply(Event::Ready(SessionNumber(0), at(10_000)), at(1));
    pool.apply(Event::Served(RequestNumber(1), SessionNumber(0)), at(2));
    assert!(pool.is_used(SessionNumber(0), at(101)));
    pool.apply(Event::Hold(SessionNumber(0), at(300)), at(50));
    assert_eq!(pool.apply(Event::Tick, at(102)), [], "it is held");
    assert!(!pool.is_used(SessionNumber(0), at(102)) && pool.is_live(SessionNumber(0)));
    assert_eq!(pool.wake(at(102)), Some(at(300)));
    let bound = Event::ArrivedFor {
        request: RequestNumber(2),
        user: user(7),
        session: SessionNumber(0),
    };
    assert_eq!(pool.apply(bound, at(290)), [route(2, 0)]);
    assert_eq!(pool.apply(Event::Tick, at(300)), [], "it serves");
    let closed = Effect::Close(SessionNumber(0), CloseReason::Idle);
    assert_eq!(
        pool.apply(Event::Served(RequestNumber(2), SessionNumber(0)), at(310)),
        [closed]
    );
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
        let counts = pool.counts();
        assert_eq!((counts.waiting, counts.serving), (0, 0));
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
    assert_eq!(
        refusal.to_string(),
        "no session had a place for it within 60 s; this request had place 1 of the waiting list while the model starts"
    );
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

#[test]
fn a_drained_session_ends_with_its_last_answer_and_the_next_one_waits_for_a_pause() {
    let mut pool = SessionPool::new(LIMITS);
    pool.apply(arrived(1, 1), at(0));
    pool.apply(Event::Ready(SessionNumber(0), at(10_000)), at(1));
    pool.apply(Event::FirstByte(RequestNumber(1), SessionNumber(0)), at(2));
    assert_eq!(pool.apply(Event::Drain(SessionNumber(0)), at(10)), []);
    assert_eq!(pool.apply(arrived(2, 1), at(11)), [], "it takes no more");
    let served = Event::Served(RequestNumber(1), SessionNumber(0));
    let closed = Effect::Close(SessionNumber(0), CloseReason::Drained);
    assert_eq!(pool.apply(served, at(12)), [closed]);
    let later = pool.wake(at(12)).unwrap();
    assert_eq!(later, at(10).plus(LIMITS.backoff * 8));
    assert_eq!(pool.apply(Event::Tick, later), [Effect::Start(SessionNumber(1))]);
    assert_eq!(
        pool.apply(Event::Drain(SessionNumber(0)), later),
        [],
        "it is over"
    );
    assert_eq!(
        pool.apply(Event::Drain(SessionNumber(1)), later),
        [],
        "it has not begun"
    );
}

#[test]
fn a_session_rests_after_a_failure_and_others_come_first_until_an_answer_begins_there() {
    let mut pool = SessionPool::new(Limits {
        min: 2,
        max_tries: 3,
        ..LIMITS
    });
    pool.apply(Event::Tick, at(0));
    pool.apply(Event::Ready(SessionNumber(0), at(10_000)), at(1));
    assert_eq!(pool.apply(arrived(1, 1), at(1)), [route(1, 0)]);
    let failed = |request, session| Event::Failed(RequestNumber(request), SessionNumber(session));
    assert_eq!(
        pool.apply(failed(1, 0), at(2)),
        [],
        "the only session has just failed"
    );
    assert_eq!(pool.wake(at(2)), Some(at(3)), "its rest is over then");
    assert_eq!(pool.apply(Event::Tick, at(3)), [route(1, 0)]);
    pool.apply(Event::Ready(SessionNumber(1), at(10_000)), at(4));
    assert_eq!(
        pool.apply(failed(1, 0), at(4)),
        [route(1, 1)],
        "another session takes it at once"
    );
    assert_eq!(
        pool.apply(arrived(2, 1), at(10)),
        [route(2, 1)],
        "a session without a failure comes first, although it has more to do"
    );
    assert_eq!(pool.apply(arrived(3, 1), at(10)), [route(3, 0)]);
    pool.apply(Event::FirstByte(RequestNumber(3), SessionNumber(0)), at(11));
    assert_eq!(
        pool.apply(arrived(4, 1), at(11)),
        [route(4, 0)],
        "it has answered, so the load decides again"
    );
}

/// No executor is free for a session; one is likely to be at this second.
fn no_room(session: u64, expected: Option<i64>) -> Event {
    Event::NoRoom {
        session: SessionNumber(session),
        why: "all executors are at work".to_owned(),
        expected: expected.map(at),
    }
}

#[test]
fn requests_wait_for_an_executor_as_long_as_their_patience_and_are_served_once_one_is_free() {
    let mut pool = SessionPool::new(LIMITS);
    let closed = |number| Effect::Close(SessionNumber(number), CloseReason::NoRoom);
    let started = |number| Effect::Start(SessionNumber(number));
    pool.apply(arrived(1, 1), at(0));
    // However often no executor is free: that says nothing about the model.
    let mut now = 0;
    for (number, pause) in [(0, 4), (1, 8), (2, 16)] {
        assert_eq!(pool.apply(no_room(number, None), at(now)), [closed(number)]);
        assert_eq!(pool.wake(at(now)), Some(at(now + pause)), "attempt {number}");
        now += pause;
        assert_eq!(pool.apply(Event::Tick, at(now)), [started(number + 1)]);
    }
    assert_eq!(pool.apply(no_room(3, None), at(now)), [closed(3)]);
    // A decline that is taken for room is not followed by the next one at once.
    assert_eq!(pool.apply(Event::Room, at(now)), []);
    assert_eq!(pool.wake(at(now)), Some(at(now).plus(LIMITS.backoff / 8)));
    now += 1;
    assert_eq!(
        pool.apply(Event::Room, at(now)),
        [started(4)],
        "an executor is free"
    );
    assert_eq!(
        pool.apply(Event::Ready(SessionNumber(4), at(10_000)), at(now)),
        [route(1, 4)]
    );
    // Once a session has started, the pauses are short again.
    pool.apply(Event::Served(RequestNumber(1), SessionNumber(4)), at(now));
    pool.apply(Event::Died(SessionNumber(4)), at(now));
    pool.apply(arrived(2, 1), at(now));
    pool.apply(no_room(5, None), at(now));
    assert_eq!(pool.wake(at(now)), Some(at(now + 4)));
    let patience = LIMITS.max_wait.as_secs();
    let effects = pool.apply(Event::Tick, at(now).plus(LIMITS.max_wait));
    let Some(Effect::Refuse(_, OpenAiError::Unavailable { message, .. })) = effects.first() else {
        panic!("{effects:?}")
    };
    assert!(
        message.contains(&format!("within {patience} s: all executors are at work"))
            && message.contains("place 1 of the waiting list"),
        "{message}"
    );
}

#[test]
fn room_shortens_no_pause_after_a_start_that_failed() {
    let mut pool = SessionPool::new(LIMITS);
    pool.apply(arrived(1, 1), at(0));
    pool.apply(no_room(0, None), at(0));
    pool.apply(Event::Tick, at(4));
    pool.apply(
        Event::Unusable(SessionNumber(1), "it cannot seal".to_owned()),
        at(5),
    );
    let wake = pool.wake(at(5));
    assert_eq!(wake, Some(at(9)));
    pool.apply(Event::Room, at(6));
    assert_eq!(pool.wake(at(6)), wake, "an executor does not mend an image");
}

#[test]
fn a_session_that_is_too_long_is_started_anew_at_once() {
    let mut pool = SessionPool::new(LIMITS);
    pool.apply(arrived(1, 1), at(0));
    assert_eq!(
        pool.apply(Event::TooLong(SessionNumber(0)), at(0)),
        [
            Effect::Close(SessionNumber(0), CloseReason::NoRoom),
            Effect::Start(SessionNumber(1))
        ]
    );
}

#[test]
fn a_request_that_waits_knows_its_place_and_how_long_it_is_likely_to_wait() {
    let limits = Limits {
        max: 1,
        per_session: 1,
        queue: 100,
        queue_of_one: 100,
        ..LIMITS
    };
    let mut pool = SessionPool::new(limits);
    let place = |pool: &SessionPool, request, now| pool.waiting_place(RequestNumber(request), at(now));
    let waits = |place, waits_for, seconds: Option<u64>| {
        Some(WaitingPlace {
            place,
            waits_for,
            expected: seconds.map(std::time::Duration::from_secs),
        })
    };
    for request in 1..=3 {
        pool.apply(arrived(request, 1), at(0));
    }
    assert_eq!(
        place(&pool, 1, 0),
        waits(1, WaitingFor::Start, None),
        "nothing is known yet"
    );
    pool.apply(no_room(0, Some(9)), at(0));
    assert_eq!(place(&pool, 1, 2), waits(1, WaitingFor::Executor, Some(7)));
    assert_eq!(
        place(&pool, 2, 2),
        waits(2, WaitingFor::Executor, None),
        "no answer has ended"
    );
    pool.apply(Event::Tick, at(4));
    pool.apply(Event::Ready(SessionNumber(1), at(10_000)), at(10));
    assert_eq!(place(&pool, 1, 10), None, "it is served");
    assert_eq!(place(&pool, 2, 10), waits(1, WaitingFor::Place, None));
    pool.apply(Event::FirstByte(RequestNumber(1), SessionNumber(1)), at(12));
    pool.apply(Event::Served(RequestNumber(1), SessionNumber(1)), at(30));
    // An answer takes 20 s.
    assert_eq!(place(&pool, 3, 30), waits(1, WaitingFor::Place, Some(20)));
    // A request that would wait longer than its patience is refused at once, with its place.
    let hopeless = Event::Arrived {
        request: RequestNumber(4),
        user: user(1),
        patience: std::time::Duration::from_secs(39),
    };
    let effects = pool.apply(hopeless, at(30));
    let [Effect::Refuse(_, OpenAiError::Unavailable { message, retry_after })] = effects.as_slice() else {
        panic!("{effects:?}")
    };
    assert!(
        message.contains("place 2 of the waiting list, about 40 s"),
        "{message}"
    );
    assert_eq!(retry_after.as_secs(), 40);
    let patient = Event::Arrived {
        request: RequestNumber(5),
        user: user(1),
        patience: std::time::Duration::from_secs(40),
    };
    assert_eq!(pool.apply(patient, at(30)), []);
    // The next start is as long as the last one, of which a part has passed. The second request lost its session.
    pool.apply(Event::Died(SessionNumber(1)), at(31));
    assert_eq!(place(&pool, 2, 33), waits(1, WaitingFor::Start, Some(4)));
    assert_eq!(place(&pool, 3, 33), waits(2, WaitingFor::Start, Some(24)));
}

#[test]
fn an_unused_session_is_closed_sooner_while_jobs_wait_for_its_executor() {
    let mut pool = SessionPool::new(LIMITS);
    pool.apply(arrived(1, 1), at(0));
    pool.apply(Event::Ready(SessionNumber(0), at(10_000)), at(1));
    assert_eq!(pool.apply(Event::JobsWait(true), at(2)), [], "it serves");
    pool.apply(Event::Served(RequestNumber(1), SessionNumber(0)), at(10));
    assert_eq!(pool.wake(at(10)), Some(at(30)));
    assert_eq!(pool.apply(Event::JobsWait(false), at(20)), []);
    assert_eq!(pool.wake(at(20)), Some(at(110)));
    assert_eq!(
        pool.apply(Event::Tick, at(30)),
        [],
        "the jobs have their executors"
    );
    let closed = Effect::Close(SessionNumber(0), CloseReason::Idle);
    assert_eq!(pool.apply(Event::JobsWait(true), at(31)), [closed]);
    assert_eq!(
        pool.apply(Event::Tick, at(200)),
        [],
        "no other one is started for nobody"
    );
}

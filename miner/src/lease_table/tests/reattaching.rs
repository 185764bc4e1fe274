//! Executors that come back to their leases, to this process of the miner and to a later one.

use muster_protocol::wire::executor::{ExecutorUp, OneTimeSecret};
use muster_protocol::wire::executor_socket::MinerToExecutor;
use muster_protocol::wire::miner::JobRequest;
use muster_protocol::wire::muster::OfferExtension;

use super::*;
use crate::lease::{LeaseStage, ReturningExecutor};
use crate::store::Store;

const REATTACH: Duration = Duration::from_secs(150);

fn holding() -> LeaseRules {
    let mut rules = rules();
    rules.patience.reattach = REATTACH;
    rules
}

fn holding_book() -> LeaseTable {
    LeaseTable::open(holding(), vec![], start()).0
}

fn secret(n: u8) -> OneTimeSecret {
    OneTimeSecret::from_bytes([n; 32])
}

fn back(dial: u64, n: u128, shown: u8, next: u8, job_age: Option<Duration>) -> Event {
    Event::Reattached {
        dial: DialId(dial),
        attempt: attempt(n),
        back: ReturningExecutor {
            shown: secret(shown),
            next: secret(next),
            job_age,
        },
    }
}

fn gone(dial: u64, n: u128) -> Event {
    Event::ExecutorGone {
        dial: DialId(dial),
        attempt: attempt(n),
    }
}

fn payload(connection: u64, n: u128) -> Event {
    Event::Payload {
        connection: ConnectionId(connection),
        request: Box::new(job(attempt(n))),
    }
}

fn order(effect: &Effect) -> Option<&MinerToExecutor> {
    match effect {
        Effect::Order { message, .. } => Some(message),
        Effect::Write(_)
        | Effect::Tell { .. }
        | Effect::Live { .. }
        | Effect::Retell { .. }
        | Effect::RepeatReceipt { .. }
        | Effect::Start { .. }
        | Effect::Resume { .. }
        | Effect::Admit { .. }
        | Effect::Dismiss { .. }
        | Effect::Shelve(_)
        | Effect::StopExecutor { .. } => None,
    }
}

fn orders(effects: &[Effect]) -> Vec<&MinerToExecutor> {
    effects.iter().filter_map(order).collect()
}

fn state(book: &LeaseTable, n: u128) -> LeaseState {
    book.active[&attempt(n)].lease.state()
}

/// A book whose attempt 1 runs on dial 1.
fn running() -> LeaseTable {
    let mut book = holding_book();
    let events = [
        joined(1),
        offered(1, 1),
        dialled(1, 1),
        said(1, 1, ExecutorReport::Ready),
        payload(1, 1),
        said(1, 1, ExecutorReport::VolumesReady),
    ];
    apply(&mut book, events);
    book
}

#[test]
fn an_executor_whose_connection_is_lost_comes_back_and_repeats_itself_without_effect() {
    let mut book = running();
    assert_eq!(
        apply(&mut book, [gone(1, 1)]),
        vec![],
        "the validator is told nothing"
    );
    assert_eq!(book.working_leases(), 1, "the lease keeps its executor meanwhile");
    let age = Some(Duration::from_secs(5));
    let effects = apply(&mut book, [back(2, 1, 1, 2, age)]);
    assert!(
        matches!(effects[0], Effect::Admit { dial: DialId(2), .. }),
        "{effects:?}"
    );
    assert!(
        matches!(&effects[1], Effect::Write(LeaseWrite::Held { .. })),
        "durable before it is told"
    );
    let [MinerToExecutor::MusterLeaseHeld(held)] = orders(&effects)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((held.epoch, &held.secret, held.reattach_s), (2, &secret(2), 150));

    let repeated = [
        said(2, 1, ExecutorReport::Ready),
        said(2, 1, ExecutorReport::VolumesReady),
    ];
    assert_eq!(apply(&mut book, repeated), vec![]);
    let late = apply(&mut book, [said(1, 1, ExecutorReport::ExecutionDone)]);
    assert!(
        matches!(late[..], [Effect::Dismiss { dial: DialId(1), .. }]),
        "the old connection counts no more"
    );
    assert_eq!(apply(&mut book, [gone(1, 1)]), vec![], "nor does its end");

    let ended = apply(
        &mut book,
        [said(2, 1, ExecutorReport::ExecutionDone), said(2, 1, result(1))],
    );
    assert_eq!(
        told(&ended, 1),
        ["V0ExecutionDoneRequest", "V0JobFinishedRequest"]
    );
    assert!(matches!(
        orders(&ended)[..],
        [MinerToExecutor::MusterEndStored(_)]
    ));
    let late = apply(&mut book, [back(3, 1, 2, 3, age)]);
    assert!(
        matches!(late[..], [Effect::Dismiss { dial: DialId(3), .. }]),
        "the lease has ended: {late:?}"
    );
}

#[test]
fn a_spent_or_foreign_secret_admits_nobody() {
    let mut book = running();
    for shown in [0, 9] {
        let refused = apply(&mut book, [back(7, 1, shown, 5, None)]);
        assert!(matches!(refused[..], [Effect::Dismiss { .. }]), "{refused:?}");
    }
    apply(&mut book, [back(2, 1, 1, 2, None), back(3, 1, 2, 3, None)]);
    let spent = apply(&mut book, [back(4, 1, 1, 4, None)]);
    assert!(matches!(spent[..], [Effect::Dismiss { .. }]), "{spent:?}");
}

#[test]
fn an_executor_that_stays_away_is_lost_and_a_cancelled_one_is_told_when_it_comes() {
    let mut book = running();
    apply(&mut book, [gone(1, 1)]);
    assert_eq!(book.next_tick(), start().plus(REATTACH).min(book.next_tick()));
    let lost = book.apply(Event::Tick, start().plus(REATTACH));
    assert_eq!(told(&lost, 1), ["V0HordeFailedRequest"]);

    let mut book = running();
    let cancel = muster_protocol::wire::muster::CancelJob {
        job_uuid: attempt(1),
        reason: "the user changed their mind".to_owned(),
    };
    let cancelled = Event::Cancelled {
        connection: ConnectionId(1),
        cancel,
    };
    apply(&mut book, [gone(1, 1), cancelled]);
    assert_eq!(book.open_leases(), 0);
    let refused = apply(&mut book, [back(2, 1, 1, 2, None)]);
    assert!(matches!(refused[..], [Effect::Dismiss { .. }]), "{refused:?}");
}

#[test]
fn an_order_that_was_lost_with_the_connection_is_sent_again() {
    let mut book = holding_book();
    apply(&mut book, [joined(1), offered(1, 1), dialled(1, 1), gone(1, 1)]);
    let effects = apply(&mut book, [back(2, 1, 1, 2, None)]);
    assert!(matches!(
        orders(&effects)[..],
        [
            MinerToExecutor::MusterLeaseHeld(_),
            MinerToExecutor::V0InitialJobRequest(_)
        ]
    ));
    apply(
        &mut book,
        [said(2, 1, ExecutorReport::Ready), payload(1, 1), gone(2, 1)],
    );
    let effects = apply(&mut book, [back(3, 1, 2, 3, None)]);
    assert!(matches!(
        orders(&effects)[..],
        [
            MinerToExecutor::MusterLeaseHeld(_),
            MinerToExecutor::V0JobRequest(_)
        ]
    ));
    apply(&mut book, [gone(3, 1)]);
    let effects = apply(&mut book, [back(4, 1, 3, 4, Some(Duration::ZERO))]);
    assert!(
        matches!(orders(&effects)[..], [MinerToExecutor::MusterLeaseHeld(_)]),
        "it has the job"
    );
}

/// The events' writes in a store, read again as a later process of the miner does.
async fn restarted(store: &Store, effects: &[Effect], now: Timestamp) -> LeaseTable {
    let writes: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Write(write) => Some(write.clone()),
            Effect::Order { .. }
            | Effect::Tell { .. }
            | Effect::Live { .. }
            | Effect::Retell { .. }
            | Effect::RepeatReceipt { .. }
            | Effect::Start { .. }
            | Effect::Resume { .. }
            | Effect::Admit { .. }
            | Effect::Dismiss { .. }
            | Effect::Shelve(_)
            | Effect::StopExecutor { .. } => None,
        })
        .collect();
    store.commit(&writes, 1).await.unwrap();
    let (table, effects) = LeaseTable::open(holding(), store.records().await.unwrap(), now);
    assert!(
        matches!(&effects[..], [Effect::Resume { token, .. }] if token.attempt() == attempt(1)),
        "{effects:?}"
    );
    table
}

#[tokio::test]
async fn a_restarted_miner_goes_on_with_a_job_that_its_executor_has() {
    let store = Store::memory();
    let mut book = holding_book();
    let events = [
        joined(1),
        offered(1, 1),
        dialled(1, 1),
        said(1, 1, ExecutorReport::Ready),
        payload(1, 1),
        said(1, 1, ExecutorReport::VolumesReady),
    ];
    let effects = apply(&mut book, events);
    let mut later = restarted(&store, &effects, start()).await;
    assert_eq!(later.working_leases(), 1, "capacity is not oversold");

    // The validator is first: it is notified that the attempt is accepted, and sends the job again.
    let greeted = apply(&mut later, [joined(9), payload(9, 1)]);
    assert_eq!(
        told(&greeted, 9),
        ["V0ExecutorManifestRequest", "V0AcceptJobRequest"]
    );
    assert_eq!(
        orders(&greeted),
        Vec::<&MinerToExecutor>::new(),
        "nobody has it to order yet"
    );
    let effects = apply(&mut later, [back(5, 1, 1, 2, Some(Duration::from_secs(40)))]);
    assert!(matches!(
        orders(&effects)[..],
        [MinerToExecutor::MusterLeaseHeld(_)]
    ));
    let repeated = apply(
        &mut later,
        [
            said(5, 1, ExecutorReport::Ready),
            said(5, 1, ExecutorReport::VolumesReady),
        ],
    );
    assert_eq!(
        told(&repeated, 9),
        ["V0ExecutorReadyRequest", "V0VolumesReadyRequest"]
    );
    assert_eq!(
        orders(&repeated),
        Vec::<&MinerToExecutor>::new(),
        "the job is not sent twice"
    );
    assert_eq!(state(&later, 1), LeaseState::Running(LeaseStage::Executing));
    let whole = book.active[&attempt(1)].lease.deadline();
    let left = later.active[&attempt(1)].lease.deadline();
    assert_eq!(
        left.plus(Duration::from_secs(40)),
        whole,
        "the job's clock went on counting"
    );
    let ended = apply(
        &mut later,
        [said(5, 1, ExecutorReport::ExecutionDone), said(5, 1, result(1))],
    );
    assert_eq!(
        told(&ended, 9),
        ["V0ExecutionDoneRequest", "V0JobFinishedRequest"]
    );
}

fn up(n: u128) -> ExecutorReport {
    ExecutorReport::Up(ExecutorUp {
        job_uuid: attempt(n),
        registry: "registry".to_owned(),
        image_s: 600,
    })
}

fn offered_with_image_limit(connection: u64, n: u128) -> Event {
    let mut event = offered(connection, n);
    if let Event::Offered { offer, .. } = &mut event {
        offer.request.muster = Some(Box::new(OfferExtension {
            image_time_limit: Some(500),
            ..OfferExtension::default()
        }));
    }
    event
}

#[tokio::test]
async fn a_restored_job_keeps_its_executor_while_the_fetch_of_its_image_is_repeated() {
    let store = Store::memory();
    let mut book = holding_book();
    let events = [
        joined(1),
        offered_with_image_limit(1, 1),
        dialled(1, 1),
        said(1, 1, up(1)),
        said(1, 1, ExecutorReport::Ready),
        payload(1, 1),
    ];
    let effects = apply(&mut book, events);
    let mut later = restarted(&store, &effects, start()).await;
    later.rules.manifest = Manifest::new([(ExecutorClass::AlwaysOnTest, 1)]);
    let age = Some(Duration::from_secs(5));
    apply(&mut later, [joined(9), back(5, 1, 1, 2, age), said(5, 1, up(1))]);
    assert_eq!(later.working_leases(), 1);
    let newcomer = apply(&mut later, [offered(9, 2)]);
    assert_eq!(told(&newcomer, 9), ["V0DeclineJobRequest"]);
    let ready = apply(&mut later, [said(5, 1, ExecutorReport::Ready)]);
    assert_eq!(told(&ready, 9), ["V0ExecutorReadyRequest"]);
    assert_eq!(state(&later, 1), LeaseState::Running(LeaseStage::Fetching));
}

#[test]
fn an_executor_that_comes_back_keeps_its_place_among_those_that_fetch() {
    let mut book = holding_book();
    apply(&mut book, [joined(1)]);
    for n in [1, 2] {
        let dial = u64::try_from(n).unwrap();
        apply(
            &mut book,
            [
                offered_with_image_limit(1, n),
                dialled(dial, n),
                said(dial, n, up(n)),
            ],
        );
    }
    let number = |book: &LeaseTable, n| book.active[&attempt(n)].fetch_number;
    let before = number(&book, 1);
    apply(&mut book, [gone(1, 1), back(3, 1, 1, 2, None), said(3, 1, up(1))]);
    assert_eq!(number(&book, 1), before);
    assert!(number(&book, 1) < number(&book, 2));
}

#[tokio::test]
async fn a_restarted_miner_hands_over_a_job_that_its_executor_never_got() {
    let store = Store::memory();
    let mut book = holding_book();
    let effects = apply(&mut book, [joined(1), offered(1, 1), dialled(1, 1)]);
    let mut later = restarted(&store, &effects, start()).await;
    apply(&mut later, [joined(9), payload(9, 1), back(5, 1, 1, 2, None)]);
    let ready = apply(&mut later, [said(5, 1, ExecutorReport::Ready)]);
    let jobs = |effects: &[Effect]| -> Vec<JobRequest> {
        let jobs = orders(effects).into_iter().filter_map(|order| {
            if let MinerToExecutor::V0JobRequest(job) = order {
                Some((**job).clone())
            } else {
                None
            }
        });
        jobs.collect()
    };
    assert_eq!(
        jobs(&ready).len(),
        1,
        "the job that the validator sent before the executor came back"
    );
    assert_eq!(state(&later, 1), LeaseState::Running(LeaseStage::Fetching));
}

#[tokio::test]
async fn a_restarted_miner_gives_up_executors_that_do_not_come_back_and_those_that_cannot() {
    let store = Store::memory();
    let mut book = holding_book();
    let effects = apply(&mut book, [joined(1), offered(1, 1), dialled(1, 1)]);
    let mut later = restarted(&store, &effects, start()).await;
    let lost = later.apply(Event::Tick, start().plus(REATTACH));
    assert!(matches!(
        lost[0],
        Effect::Write(LeaseWrite::Ended {
            status: LeaseStatus::Owed,
            ..
        })
    ));

    // An executor that has not dialled in is not held: its token is gone with the process.
    let store = Store::memory();
    let mut book = holding_book();
    let effects = apply(&mut book, [joined(1), offered(1, 1)]);
    let writes: Vec<_> = effects
        .into_iter()
        .filter_map(|effect| {
            if let Effect::Write(write) = effect {
                Some(write)
            } else {
                None
            }
        })
        .collect();
    store.commit(&writes, 1).await.unwrap();
    let (later, effects) = LeaseTable::open(holding(), store.records().await.unwrap(), start());
    assert_eq!((later.open_leases(), effects.len()), (0, 1));
}

#[test]
fn a_process_that_ends_while_its_container_runs_gets_a_successor() {
    let exited = || Event::ExecutorExited {
        attempt: attempt(1),
        how: "its process ended with signal 9".to_owned(),
    };
    // Whichever is noticed first.
    for events in [[gone(1, 1), exited()], [exited(), gone(1, 1)]] {
        let mut book = running();
        let effects = apply(&mut book, events);
        assert!(matches!(&effects[..], [Effect::Start { token, .. }] if token.attempt() == attempt(1)));
        let effects = apply(&mut book, [back(2, 1, 1, 2, Some(Duration::ZERO))]);
        assert!(matches!(effects[0], Effect::Admit { .. }));
    }
    // Successors that end as well are replaced a few times only: each ends at once while another process takes the
    // container over.
    let mut book = running();
    apply(&mut book, [gone(1, 1)]);
    let mut starts = 0;
    loop {
        let effects = apply(&mut book, [exited()]);
        if told(&effects, 1) == ["V0HordeFailedRequest"] {
            break;
        }
        starts += 1;
    }
    assert_eq!(starts, 8);
    // Without a container there is nothing to take over.
    let mut book = holding_book();
    let events = [
        joined(1),
        offered(1, 1),
        dialled(1, 1),
        said(1, 1, ExecutorReport::Ready),
        payload(1, 1),
        gone(1, 1),
        exited(),
    ];
    let effects = apply(&mut book, events);
    assert_eq!(told(&effects, 1).last().unwrap(), "V0HordeFailedRequest");
}

#[test]
fn a_miner_that_stops_leaves_its_executors_at_work() {
    let mut book = running();
    apply(&mut book, [offered(1, 2)]);
    let effects = apply(&mut book, [Event::Stop]);
    let ended: Vec<_> = effects
        .iter()
        .filter_map(|effect| {
            if let Effect::Write(LeaseWrite::Ended { attempt, .. }) = effect {
                Some(*attempt)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(
        ended,
        [attempt(2)],
        "only the lease whose executor cannot come back ends"
    );
    assert_eq!(book.open_leases(), 1);
}

//! The book's promises, by example and by random schedules.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use muster_identity::{countersign, offer_receipt};
use muster_protocol::receipt::{AcceptedReceipt, AcceptedTag, FinishedReceipt, FinishedTag};
use muster_protocol::wire::executor::OneTimeSecret;
use muster_protocol::wire::executor_socket::MinerToExecutor;
use muster_protocol::wire::miner::{InitialJobRequest, JobFinished};
use muster_protocol::wire::muster::CancelJob;
use muster_protocol::wire::validator_socket::MinerToValidator;
use muster_protocol::{Feature, MinerKey, ReceiptKind, ReceiptPayload};
use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::lease::ExecutorReport;
use crate::testing::{job, miner_pair, offer, validator_pair};
use crate::validator_shares::shares::ValidatorStakes;
use crate::validator_shares::unpaid::UnpaidRules;

const COUNT: u32 = 2;

mod fetching;
mod listing;
mod live_reports;
mod reattaching;
mod sharing;

fn start() -> Timestamp {
    Timestamp::from_secs(1_767_225_600)
}

fn rules() -> LeaseRules {
    LeaseRules {
        manifest: Manifest::new([(ExecutorClass::AlwaysOnTest, COUNT)]),
        patience: LeaseTimeouts {
            startup: Duration::from_secs(30),
            prepare: Duration::from_secs(100),
            image: Duration::from_secs(1_000),
            payload: Duration::from_secs(600),
            margin: Duration::from_secs(60),
            skew: Duration::from_secs(2),
            reattach: Duration::ZERO,
            lend: None,
        },
        memory: Duration::from_secs(24 * 3600),
        fetch: FetchRules {
            slots: 2,
            per_account: 1,
            per_registry: 2,
            waiting: 1,
        },
        shares: ShareRules {
            floor: 1,
            beyond: Duration::from_secs(3_600),
        },
        unpaid: UnpaidRules {
            course: Duration::from_secs(600),
            percent: 5,
            window: Duration::from_secs(86_400),
        },
    }
}

fn validator() -> ValidatorKey {
    static KEY: LazyLock<ValidatorKey> = LazyLock::new(|| ValidatorKey(validator_pair().hotkey()));
    *KEY
}

fn miner() -> MinerKey {
    static KEY: LazyLock<MinerKey> = LazyLock::new(|| MinerKey(miner_pair().hotkey()));
    *KEY
}

fn attempt(n: u128) -> AttemptId {
    AttemptId::from_uuid(Uuid::from_u128(n))
}

fn token(n: u128) -> ExecutorToken {
    ExecutorToken::new(attempt(n), Uuid::from_u128(1000 + n))
}

/// Signing is slow and random schedules repeat themselves: each receipt is signed once.
fn completed(payload: ReceiptPayload) -> Receipt {
    static SIGNED: LazyLock<Mutex<HashMap<Vec<u8>, Receipt>>> = LazyLock::new(Mutex::default);
    let mut signed = SIGNED.lock().unwrap();
    let sign = || {
        let offered = offer_receipt(&validator_pair(), payload.clone()).unwrap();
        countersign(&miner_pair(), offered).unwrap().into_inner()
    };
    signed.entry(payload.signed_bytes()).or_insert_with(sign).clone()
}

fn request(n: u128) -> Box<InitialJobRequest> {
    static OFFERS: LazyLock<Mutex<HashMap<u128, InitialJobRequest>>> = LazyLock::new(Mutex::default);
    Box::new(
        OFFERS
            .lock()
            .unwrap()
            .entry(n)
            .or_insert_with(|| offer(attempt(n)))
            .clone(),
    )
}

fn offered(connection: u64, n: u128) -> Event {
    offered_with(connection, n, start())
}

/// An offer whose started receipt is dated `written`.
fn offered_with(connection: u64, n: u128, written: Timestamp) -> Event {
    let mut request = request(n);
    request.job_started_receipt_payload.timestamp = written;
    let receipt = completed(ReceiptPayload::Started(
        request.job_started_receipt_payload.clone(),
    ));
    let offer = Box::new(JobOffer {
        request,
        receipt: Ok(receipt),
        served: true,
        stakes: ValidatorStakes::default(),
        unaffordable: None,
    });
    Event::Offered {
        connection: ConnectionId(connection),
        offer,
        token: token(n),
    }
}

fn accepted_receipt(n: u128) -> Box<Receipt> {
    Box::new(completed(ReceiptPayload::Accepted(AcceptedReceipt {
        job_uuid: attempt(n),
        miner_hotkey: miner(),
        validator_hotkey: validator(),
        timestamp: start(),
        receipt_type: AcceptedTag,
        time_accepted: start(),
        ttl: 100,
    })))
}

fn finished_receipt(n: u128) -> Box<Receipt> {
    Box::new(completed(ReceiptPayload::Finished(FinishedReceipt {
        job_uuid: attempt(n),
        miner_hotkey: miner(),
        validator_hotkey: validator(),
        timestamp: start(),
        receipt_type: FinishedTag,
        time_started: start(),
        time_took_us: 5,
        score_str: "20.000000".to_owned(),
        block_numbers: vec![],
    })))
}

fn joined(connection: u64) -> Event {
    Event::Joined {
        connection: ConnectionId(connection),
        validator: validator(),
        muster: true,
        features: FeatureSet::ours(),
    }
}

fn dialled(dial: u64, n: u128) -> Event {
    Event::Dialled {
        dial: DialId(dial),
        token: token(n),
        executor_ip: None,
        apart: true,
        features: FeatureSet::ours(),
        secret: OneTimeSecret::from_bytes([1; 32]),
    }
}

fn said(dial: u64, n: u128, report: ExecutorReport) -> Event {
    Event::Said {
        dial: DialId(dial),
        attempt: attempt(n),
        report: Box::new(report),
    }
}

fn result(n: u128) -> ExecutorReport {
    ExecutorReport::Finished(Box::new(JobFinished {
        job_uuid: attempt(n),
        docker_process_stdout: String::new(),
        docker_process_stderr: String::new(),
        artifacts: None,
        upload_results: None,
        image: None,
        trace: None,
        completion: None,
    }))
}

fn open() -> LeaseTable {
    LeaseTable::open(rules(), vec![], start()).0
}

fn apply(book: &mut LeaseTable, events: impl IntoIterator<Item = Event>) -> Vec<Effect> {
    events
        .into_iter()
        .flat_map(|event| book.apply(event, start()))
        .collect()
}

/// The messages sent on a connection.
fn heard(effects: &[Effect], connection: u64) -> impl Iterator<Item = &MinerToValidator> {
    let connection = ConnectionId(connection);
    effects.iter().filter_map(move |effect| {
        if let Effect::Tell { to, message } = effect {
            to.contains(&connection).then_some(&**message)
        } else {
            None
        }
    })
}

/// The types of the messages to one connection.
fn told(effects: &[Effect], connection: u64) -> Vec<String> {
    let kind = |message: &MinerToValidator| {
        serde_json::to_value(message).unwrap()["message_type"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    heard(effects, connection).map(kind).collect()
}

/// Everything up to the result of attempt `n`, offered on connection `connection`.
fn whole_job(connection: u64, n: u128) -> Vec<Event> {
    let dial = u64::try_from(n).unwrap();
    vec![
        offered(connection, n),
        dialled(dial, n),
        said(dial, n, ExecutorReport::Ready),
        Event::Payload {
            connection: ConnectionId(connection),
            request: Box::new(job(attempt(n))),
        },
        said(dial, n, ExecutorReport::VolumesReady),
        said(dial, n, ExecutorReport::ExecutionDone),
        said(dial, n, result(n)),
    ]
}

#[test]
fn a_job_runs_and_its_result_is_owed_until_the_finished_receipt() {
    let mut book = open();
    apply(&mut book, [joined(1)]);
    let effects = apply(&mut book, whole_job(1, 7));
    assert_eq!(
        told(&effects, 1),
        [
            "V0AcceptJobRequest",
            "MusterReceiptCountersigned",
            "V0ExecutorReadyRequest",
            "V0VolumesReadyRequest",
            "V0ExecutionDoneRequest",
            "V0JobFinishedRequest",
        ]
    );
    assert_eq!(book.open_leases(), 0);

    let again = apply(&mut book, [joined(2)]);
    assert_eq!(
        again[1..],
        [Effect::Retell {
            to: ConnectionId(2),
            attempt: attempt(7)
        }]
    );

    let receipt = Event::ReceiptOffered {
        connection: ConnectionId(2),
        receipt: finished_receipt(7),
    };
    let settled = apply(&mut book, [receipt.clone()]);
    assert!(settled.contains(&Effect::Write(LeaseWrite::Settled(attempt(7)))));
    assert_eq!(told(&settled, 2), ["MusterReceiptCountersigned"]);
    // Nothing is owed any more, and the same receipt again is answered from the store.
    assert_eq!(apply(&mut book, [joined(3)]).len(), 1);
    let repeated = Effect::RepeatReceipt {
        to: ConnectionId(2),
        attempt: attempt(7),
        kind: ReceiptKind::Finished,
    };
    assert_eq!(apply(&mut book, [receipt]), [repeated]);
    // The attempt is never run again.
    let retold = Effect::Retell {
        to: ConnectionId(3),
        attempt: attempt(7),
    };
    assert_eq!(apply(&mut book, [offered(3, 7)]), [retold]);
}

#[test]
fn an_emptied_miner_asks_programs_to_leave_and_one_that_closes_lets_them_go_on() {
    let drained = |effects: &[Effect]| {
        let drains = effects.iter().filter(|effect| {
            matches!(effect, Effect::Order { message, .. } if matches!(**message, MinerToExecutor::MusterDrain(_)))
        });
        drains.count()
    };
    let running = || {
        let mut book = open();
        apply(&mut book, [joined(1)]);
        apply(&mut book, whole_job(1, 7).into_iter().take(5));
        book
    };
    let mut emptied = running();
    assert_eq!(drained(&apply(&mut emptied, [Event::Drain(true)])), 1);
    let mut closing = running();
    assert_eq!(apply(&mut closing, [Event::Closing]), []);
    assert_eq!(closing.open_leases(), 1);
    let refused = apply(&mut closing, [offered(1, 8)]);
    assert_eq!(
        told(&refused, 1),
        ["V0DeclineJobRequest"],
        "it takes no more jobs"
    );
}

#[test]
fn a_new_connection_hears_the_story_so_far_and_what_follows() {
    let mut book = open();
    apply(&mut book, [joined(1)]);
    apply(&mut book, whole_job(1, 7).into_iter().take(3));
    let effects = apply(&mut book, [joined(2)]);
    assert_eq!(
        told(&effects, 2),
        [
            "V0ExecutorManifestRequest",
            "V0AcceptJobRequest",
            "V0ExecutorReadyRequest"
        ]
    );
    // Both receive until one of them sends; then it is that one's.
    let speaks = Event::Payload {
        connection: ConnectionId(2),
        request: Box::new(job(attempt(7))),
    };
    let effects = apply(&mut book, [speaks, said(7, 7, ExecutorReport::VolumesReady)]);
    assert_eq!(told(&effects, 2), ["V0VolumesReadyRequest"]);
    assert_eq!(told(&effects, 1), Vec::<String>::new());
}

#[test]
fn messages_of_a_dead_connection_do_not_silence_its_successor() {
    let mut book = open();
    // The validator was killed and came back as 2; what it had sent over 1 is read last, then 1 is found dead.
    apply(&mut book, [joined(2), joined(1), offered(2, 7), offered(1, 7)]);
    let missed = apply(&mut book, whole_job(1, 7).into_iter().skip(1).take(2));
    assert_eq!(told(&missed, 2), Vec::<String>::new());
    let effects = apply(&mut book, [Event::Left(ConnectionId(1))]);
    assert_eq!(
        told(&effects, 2),
        ["V0AcceptJobRequest", "V0ExecutorReadyRequest"]
    );
    let speaks = Event::Payload {
        connection: ConnectionId(2),
        request: Box::new(job(attempt(7))),
    };
    let effects = apply(&mut book, [speaks, said(7, 7, ExecutorReport::VolumesReady)]);
    assert_eq!(told(&effects, 2), ["V0VolumesReadyRequest"]);
    // With nobody left, the next one to come receives all of it.
    assert_eq!(apply(&mut book, [Event::Left(ConnectionId(2))]), []);
}

#[test]
fn a_full_miner_shows_a_muster_validator_the_receipts_that_cover_its_jobs() {
    let mut book = open();
    let other = Event::Joined {
        connection: ConnectionId(2),
        validator: validator(),
        muster: false,
        features: FeatureSet::NONE,
    };
    apply(&mut book, [joined(1), other, offered(1, 1), offered(1, 2)]);
    let accepted = Event::ReceiptOffered {
        connection: ConnectionId(1),
        receipt: accepted_receipt(2),
    };
    apply(&mut book, [accepted]);
    let mut shown = |connection| {
        let effects = apply(&mut book, [offered(connection, 3)]);
        let Some(MinerToValidator::V0DeclineJobRequest(decline)) = heard(&effects, connection).last() else {
            panic!("not declined: {effects:?}")
        };
        let receipts = decline.receipts.iter();
        let receipts = receipts.map(|receipt| (receipt.payload.attempt(), receipt.payload.kind()));
        receipts.collect::<Vec<_>>()
    };
    let started = [1, 2].map(|n| (attempt(n), ReceiptKind::Started));
    assert_eq!(
        shown(2),
        started,
        "ComputeHorde's validators are shown what its miners show"
    );
    assert_eq!(
        shown(1),
        [started[0], started[1], (attempt(2), ReceiptKind::Accepted)]
    );
}

#[test]
fn a_full_miner_declines_with_proof_that_it_is_busy() {
    let mut book = open();
    let effects = apply(
        &mut book,
        [joined(1), offered(1, 1), offered(1, 2), offered(1, 3)],
    );
    let Some(MinerToValidator::V0DeclineJobRequest(decline)) = heard(&effects, 1).last() else {
        panic!("not declined: {effects:?}")
    };
    assert_eq!(decline.job_uuid, attempt(3));
    let proofs: Vec<_> = decline
        .receipts
        .iter()
        .map(|receipt| receipt.payload.attempt())
        .collect();
    assert_eq!(proofs, [attempt(1), attempt(2)]);
    // A lease that has ended excuses nothing.
    let cancel = CancelJob {
        job_uuid: attempt(1),
        reason: "enough".to_owned(),
    };
    apply(
        &mut book,
        [Event::Cancelled {
            connection: ConnectionId(1),
            cancel,
        }],
    );
    assert_eq!(book.open_leases(), 1);
    assert_eq!(
        told(&apply(&mut book, [offered(1, 3)]), 1)[0],
        "V0AcceptJobRequest"
    );
}

#[test]
fn a_validator_that_is_not_muster_is_never_sent_what_is_ours() {
    let mut book = open();
    let joined = Event::Joined {
        connection: ConnectionId(1),
        validator: validator(),
        muster: false,
        features: FeatureSet::NONE,
    };
    let receipt = |receipt| Event::ReceiptOffered {
        connection: ConnectionId(1),
        receipt,
    };
    let mut events = vec![joined];
    events.extend(whole_job(1, 7));
    events.extend([accepted_receipt(7), finished_receipt(7), finished_receipt(7)].map(receipt));
    let effects = apply(&mut book, events);
    let stored = |effect: &&Effect| matches!(effect, Effect::Write(LeaseWrite::Receipt(_)));
    assert_eq!(effects.iter().filter(stored).count(), 3);
    assert!(told(&effects, 1).iter().all(|kind| !kind.starts_with("Muster")));
    assert!(
        !effects
            .iter()
            .any(|effect| matches!(effect, Effect::RepeatReceipt { .. }))
    );
}

#[test]
fn a_token_admits_once_and_only_its_own() {
    let mut book = open();
    apply(&mut book, [joined(1), offered(1, 1)]);
    let details = |effects: Vec<Effect>| {
        let [Effect::Dismiss { details, .. }] = effects.as_slice() else {
            panic!("not dismissed: {effects:?}")
        };
        details.clone()
    };
    let guessed = ExecutorToken::new(attempt(1), Uuid::from_u128(1));
    let dial = Event::Dialled {
        dial: DialId(9),
        token: guessed.clone(),
        executor_ip: None,
        apart: true,
        features: FeatureSet::ours(),
        secret: OneTimeSecret::from_bytes([1; 32]),
    };
    assert_eq!(
        details(book.apply(dial, start())),
        format!("No job waiting for token {guessed}")
    );
    assert!(book.apply(dialled(1, 1), start()).contains(&Effect::Admit {
        dial: DialId(1),
        attempt: attempt(1)
    }));
    let twice = details(book.apply(dialled(2, 1), start()));
    assert_eq!(
        twice,
        format!("Job with token {} is not waiting for an executor", token(1))
    );
    // Nor may the second one speak for the first.
    details(book.apply(said(2, 1, ExecutorReport::Ready), start()));
    assert_eq!(
        book.apply(
            Event::ExecutorGone {
                dial: DialId(2),
                attempt: attempt(1)
            },
            start()
        ),
        []
    );
    assert_eq!(book.open_leases(), 1);
}

#[test]
fn receipts_for_attempts_that_never_ran_here_are_refused() {
    let mut book = open();
    let stranger = Event::Joined {
        connection: ConnectionId(2),
        validator: validator(),
        muster: false,
        features: FeatureSet::NONE,
    };
    apply(&mut book, [joined(1), stranger]);
    // Only a Muster validator gets the attempt in a field of its own.
    for (connection, named) in [(1, Some(attempt(5))), (2, None)] {
        let receipt = Event::ReceiptOffered {
            connection: ConnectionId(connection),
            receipt: finished_receipt(5),
        };
        let effects = apply(&mut book, [receipt]);
        let complaints: Vec<_> = heard(&effects, connection).collect();
        assert!(
            matches!(complaints[..], [MinerToValidator::GenericError(error)] if error.job_uuid == named),
            "{complaints:?}"
        );
    }
}

#[test]
fn a_restart_ends_what_was_open_and_keeps_what_is_owed() {
    let record = |n, status| LeaseRecord {
        attempt: attempt(n),
        validator: validator(),
        status,
        held: None,
        receipts: vec![ReceiptKind::Started],
        at: start(),
    };
    let records = vec![
        record(1, LeaseStatus::Open),
        record(2, LeaseStatus::Owed),
        record(3, LeaseStatus::Settled),
    ];
    let (mut book, pending) = LeaseTable::open(rules(), records, start());
    let [
        Effect::Write(LeaseWrite::Ended {
            attempt: ended,
            status: LeaseStatus::Owed,
            history,
            ..
        }),
    ] = pending.as_slice()
    else {
        panic!("{pending:?}")
    };
    assert_eq!(*ended, attempt(1));
    let Some(MinerToValidator::V0HordeFailedRequest(failure)) = history.last() else {
        panic!()
    };
    assert_eq!(failure.reason, HordeFailureReason::ExecutorDisconnected);
    let effects = apply(&mut book, [joined(1)]);
    let retold = |n| Effect::Retell {
        to: ConnectionId(1),
        attempt: attempt(n),
    };
    assert_eq!(effects[1..], [retold(1), retold(2)]);
    // Its time over, an attempt is forgotten, and an offer that old is not taken again.
    let late = start().plus(rules().memory);
    let forgotten = book.apply(Event::Tick, late);
    assert!(matches!(&forgotten[..], [Effect::Write(LeaseWrite::Forgotten(old))] if old.len() == 3));
    assert_eq!(told(&book.apply(offered(1, 2), late), 1), ["V0DeclineJobRequest"]);
}

/// One step of a random schedule over four attempts, two connections and four dials.
fn any_event() -> impl Strategy<Value = Event> {
    let n = 1_u128..5;
    let c = 1_u64..3;
    let report = |n| {
        prop_oneof![
            Just(ExecutorReport::Ready),
            Just(ExecutorReport::VolumesReady),
            Just(ExecutorReport::ExecutionDone),
            Just(result(n)),
            Just(ExecutorReport::Error("broken".to_owned())),
        ]
    };
    prop_oneof![
        c.clone().prop_map(joined),
        c.clone().prop_map(|c| Event::Left(ConnectionId(c))),
        (c.clone(), n.clone()).prop_map(|(c, n)| offered(c, n)),
        (c.clone(), n.clone()).prop_map(|(c, n)| Event::Payload {
            connection: ConnectionId(c),
            request: Box::new(job(attempt(n)))
        }),
        (c.clone(), n.clone()).prop_map(|(c, n)| Event::Cancelled {
            connection: ConnectionId(c),
            cancel: CancelJob {
                job_uuid: attempt(n),
                reason: String::new()
            }
        }),
        (c.clone(), n.clone(), any::<bool>()).prop_map(|(c, n, finished)| Event::ReceiptOffered {
            connection: ConnectionId(c),
            receipt: if finished {
                finished_receipt(n)
            } else {
                accepted_receipt(n)
            }
        }),
        (1_u64..5, n.clone()).prop_map(|(d, n)| dialled(d, n)),
        (1_u64..5, n.clone())
            .prop_flat_map(move |(d, n)| report(n).prop_map(move |report| said(d, n, report))),
        (1_u64..5, n.clone()).prop_map(|(dial, n)| Event::ExecutorGone {
            dial: DialId(dial),
            attempt: attempt(n)
        }),
        n.prop_map(|n| Event::ExecutorExited {
            attempt: attempt(n),
            how: String::new()
        }),
        Just(Event::Tick),
    ]
}

#[test]
fn no_receipt_outlives_the_memory_of_its_attempt() {
    let hour = Duration::from_secs(3600);
    for ahead in [Duration::ZERO, hour / 2, hour] {
        let (mut book, _) = LeaseTable::open(rules(), vec![], start());
        let offer = || offered_with(1, 1, start().plus(ahead));
        book.apply(joined(1), start());
        assert_eq!(told(&book.apply(offer(), start()), 1)[0], "V0AcceptJobRequest");
        let cancel = CancelJob {
            job_uuid: attempt(1),
            reason: String::new(),
        };
        let connection = ConnectionId(1);
        book.apply(Event::Cancelled { connection, cancel }, start());
        // Every half hour, until well after it is forgotten.
        for halves in 1..60 {
            let now = start().plus(hour * halves / 2);
            book.apply(Event::Tick, now);
            assert_eq!(
                told(&book.apply(offer(), now), 1),
                ["V0DeclineJobRequest"],
                "{ahead:?} {now}"
            );
        }
    }
    let (mut book, _) = LeaseTable::open(rules(), vec![], start());
    book.apply(joined(1), start());
    let early = offered_with(1, 1, start().plus(hour + Duration::from_secs(1)));
    assert_eq!(told(&book.apply(early, start()), 1), ["V0DeclineJobRequest"]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]
    #[test]
    fn the_lease_tables_promises_hold_under_any_events(
        events in prop::collection::vec((any_event(), 0_u64..20), 1..80),
    ) {
        let mut book = open();
        let mut now = start();
        let mut count = HashMap::<(&str, AttemptId), u32>::new();
        for event in [joined(1), joined(2)] {
            book.apply(event, now);
        }
        for (event, pause) in events {
            now = now.plus(Duration::from_secs(pause));
            for effect in book.apply(event, now) {
                let what = match &effect {
                    Effect::Start { token, .. } => Some(("start", token.attempt())),
                    Effect::Write(LeaseWrite::Opened { attempt, .. }) => Some(("open", *attempt)),
                    Effect::Write(LeaseWrite::Ended { attempt, .. }) => Some(("end", *attempt)),
                    Effect::Write(LeaseWrite::Settled(attempt)) => Some(("settle", *attempt)),
                    Effect::Admit { attempt, .. } => Some(("admit", *attempt)),
                    Effect::Tell { message, .. } => {
                        let ended = message.attempt().is_some_and(|id| count.contains_key(&("final", id)));
                        let progress = matches!(
                            **message,
                            MinerToValidator::V0AcceptJobRequest(_)
                                | MinerToValidator::V0ExecutorReadyRequest(_)
                                | MinerToValidator::V0VolumesReadyRequest(_)
                                | MinerToValidator::V0ExecutionDoneRequest(_)
                        );
                        prop_assert!(!(ended && progress), "progress after the end: {message:?}");
                        let is_final = matches!(
                            **message,
                            MinerToValidator::V0JobFinishedRequest(_) | MinerToValidator::V0HordeFailedRequest(_)
                        );
                        message.attempt().filter(|_| is_final).map(|id| ("final", id))
                    }
                    Effect::Write(LeaseWrite::Receipt(_) | LeaseWrite::Forgotten(_) | LeaseWrite::Held { .. })
                    | Effect::Live { .. }
                    | Effect::Resume { .. }
                    | Effect::Retell { .. }
                    | Effect::RepeatReceipt { .. }
                    | Effect::Dismiss { .. }
                    | Effect::Order { .. }
                    | Effect::Shelve(_)
                    | Effect::StopExecutor { .. } => None,
                };
                if let Some(key) = what {
                    let times = count.entry(key).or_default();
                    *times += 1;
                    prop_assert_eq!(*times, 1, "{:?} happened twice", key);
                }
            }
            prop_assert!(book.count_leases(ExecutorClass::AlwaysOnTest) <= COUNT);
        }
        for n in 1..5 {
            let times = |what| count.get(&(what, attempt(n))).copied().unwrap_or_default();
            prop_assert_eq!(times("open"), times("start"));
            prop_assert!(times("end") <= times("open"));
            let open = book.active.contains_key(&attempt(n));
            prop_assert_eq!(times("open"), times("end") + u32::from(open));
        }
    }
}

#[test]
fn persistent_executors_are_capacity_and_only_muster_is_told_at_once() {
    let (mut book, now) = (open(), start());
    const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;
    for (connection, muster, features) in [
        (ConnectionId(71), false, FeatureSet::NONE),
        (ConnectionId(72), true, FeatureSet::ours()),
        (ConnectionId(73), true, [Feature::Terms].into_iter().collect()),
    ] {
        let validator = validator();
        book.apply(
            Event::Joined {
                connection,
                validator,
                muster,
                features,
            },
            now,
        );
    }
    let more = ExecutorCapacity {
        all: Manifest::new([(CLASS, 3)]),
        private_images: Manifest::new([(CLASS, 1)]),
    };
    let effects = book.apply(Event::Capacity(more.clone()), now);
    let told = effects.iter().map(|effect| {
        let Effect::Tell { to, message } = effect else {
            panic!("{effect:?}")
        };
        let MinerToValidator::V0ExecutorManifestRequest(told) = &**message else {
            panic!("{message:?}")
        };
        let private = told.private_images.as_ref();
        let private = private.map(|executors| executors.count(CLASS));
        (to.clone(), told.manifest.count(CLASS), private)
    });
    // A validator of an older version receives the terms that it knows.
    assert_eq!(
        told.collect::<Vec<_>>(),
        [
            (vec![ConnectionId(72)], COUNT + 3, Some(COUNT + 1)),
            (vec![ConnectionId(73)], COUNT + 3, None),
        ]
    );
    assert_eq!(book.apply(Event::Capacity(more), now), [], "nothing has changed");
}

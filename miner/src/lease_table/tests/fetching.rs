//! Leases whose images are fetched: they keep no executor, and neither an account nor a registry delays others.

use muster_protocol::JobRejectionReason;
use muster_protocol::job::{ProgramStart, RegistryCredentials, take_slot_leases};
use muster_protocol::wire::executor::ExecutorUp;
use muster_protocol::wire::executor_socket::MinerToExecutor;
use muster_protocol::wire::muster::OfferExtension;
use muster_protocol::wire::validator_socket::MinerToValidator;

use super::*;

/// An offer of an account whose image has a time limit.
fn offered_by(connection: u64, n: u128, account: &str) -> Event {
    let mut event = offered(connection, n);
    if let Event::Offered { offer, .. } = &mut event {
        offer.request.muster = Some(Box::new(OfferExtension {
            image_time_limit: Some(500),
            account: Some(account.to_owned()),
            ..OfferExtension::default()
        }));
    }
    event
}

fn up(n: u128, registry: &str) -> Event {
    let dial = u64::try_from(n).unwrap();
    let up = ExecutorUp {
        job_uuid: attempt(n),
        registry: registry.to_owned(),
        image_s: 3_600,
    };
    said(dial, n, ExecutorReport::Up(up))
}

/// An attempt from its offer to the report that its image has to be fetched.
fn fetching(n: u128, account: &str, registry: &str) -> [Event; 3] {
    let dial = u64::try_from(n).unwrap();
    [offered_by(1, n, account), dialled(dial, n), up(n, registry)]
}

fn ready(n: u128) -> Event {
    said(u64::try_from(n).unwrap(), n, ExecutorReport::Ready)
}

/// The attempts whose executors may fetch.
fn granted(effects: &[Effect]) -> Vec<AttemptId> {
    let grant = |effect: &Effect| match effect {
        Effect::Order { attempt, message } => {
            matches!(**message, MinerToExecutor::MusterFetchImage(_)).then_some(*attempt)
        }
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
    };
    effects.iter().filter_map(grant).collect()
}

#[test]
fn a_fetch_keeps_no_executor_and_waits_for_one_when_it_is_over() {
    let mut book = open();
    apply(&mut book, [joined(1)]);
    let effects = apply(&mut book, fetching(1, "alice", "slow"));
    assert_eq!(
        told(&effects, 1),
        [
            "V0AcceptJobRequest",
            "MusterReceiptCountersigned",
            "MusterExecutorUp"
        ]
    );
    assert_eq!(granted(&effects), [attempt(1)]);
    assert_eq!((book.open_leases(), book.working_leases()), (1, 0));
    // Both executors take other jobs meanwhile.
    apply(&mut book, [offered(1, 2), dialled(2, 2), ready(2)]);
    apply(&mut book, [offered(1, 3), dialled(3, 3), ready(3)]);
    assert_eq!(book.working_leases(), 2);
    let arrived = apply(&mut book, [ready(1)]);
    assert_eq!(told(&arrived, 1), Vec::<String>::new(), "no executor is free");
    // A newcomer does not overtake the job whose image is there.
    let cancel = |n| Event::Cancelled {
        connection: ConnectionId(1),
        cancel: CancelJob {
            job_uuid: attempt(n),
            reason: "enough".to_owned(),
        },
    };
    let freed = apply(&mut book, [cancel(2)]);
    assert_eq!(told(&freed, 1), ["V0ExecutorReadyRequest"]);
    let late = apply(&mut book, [offered(1, 4)]);
    assert_eq!(told(&late, 1), ["V0DeclineJobRequest"]);
    let effects = apply(
        &mut book,
        [
            Event::Payload {
                connection: ConnectionId(1),
                request: Box::new(job(attempt(1))),
            },
            said(1, 1, ExecutorReport::VolumesReady),
        ],
    );
    assert_eq!(told(&effects, 1), ["V0VolumesReadyRequest"]);
}

#[test]
fn neither_an_account_nor_a_registry_takes_all_slots() {
    let mut book = open();
    apply(&mut book, [joined(1)]);
    let first = apply(&mut book, fetching(1, "mallory", "tarpit"));
    assert_eq!(granted(&first), [attempt(1)]);
    // One slot an account: the second of mallory's waits, and bob's passes it.
    let second = apply(&mut book, fetching(2, "mallory", "elsewhere"));
    assert_eq!(granted(&second), []);
    let third = apply(&mut book, fetching(3, "bob", "elsewhere"));
    assert_eq!(granted(&third), [attempt(3)]);
    assert_eq!(book.working_leases(), 0);
    // Two slots and one place to wait: a further one keeps its executor while it waits.
    let fourth = apply(&mut book, fetching(4, "carol", "elsewhere"));
    assert_eq!((granted(&fourth), book.working_leases()), (vec![], 1));
    // A slot that becomes free goes to the one that waited longest and may have it.
    let freed = apply(&mut book, [ready(3)]);
    assert_eq!(told(&freed, 1), ["V0ExecutorReadyRequest"]);
    assert_eq!(granted(&freed), [attempt(4)]);
}

#[test]
fn an_executor_that_a_fetching_lease_keeps_is_not_given_to_another() {
    let mut book = open();
    book.rules.manifest = Manifest::new([(ExecutorClass::AlwaysOnTest, 1)]);
    apply(&mut book, [joined(1)]);
    for (n, account) in [(1, "alice"), (2, "bob"), (3, "carol")] {
        apply(&mut book, fetching(n, account, "elsewhere"));
    }
    apply(&mut book, [offered_by(1, 4, "dave"), dialled(4, 4)]);
    // An image arrives while the only executor is taken, and the lease that has it begins to fetch and keeps it.
    let effects = apply(&mut book, [ready(1), up(4, "elsewhere")]);
    assert!(!told(&effects, 1).contains(&"V0ExecutorReadyRequest".to_owned()));
    assert_eq!(book.working_leases(), 1);
    let late = apply(&mut book, [offered(1, 5)]);
    assert_eq!(told(&late, 1), ["V0DeclineJobRequest"]);
}

#[test]
fn an_image_that_does_not_come_ends_its_lease_and_blames_nobody() {
    let mut book = open();
    apply(&mut book, [joined(1)]);
    apply(&mut book, fetching(1, "alice", "slow"));
    // The job's limit is shorter than the miner's; the miner allows its validator's clock to come first.
    let limit = start()
        .plus(Duration::from_secs(500))
        .plus(rules().patience.margin);
    assert_eq!(
        book.apply(Event::Tick, Timestamp::from_micros(limit.micros() - 1)),
        []
    );
    let effects = book.apply(Event::Tick, limit);
    let Some(MinerToValidator::V0HordeFailedRequest(failed)) = heard(&effects, 1).next() else {
        panic!("{effects:?}")
    };
    let context = failed.context.as_ref().unwrap();
    assert_eq!(context["image_fetch"], "timed_out");
    assert_eq!(book.open_leases(), 0);
}

#[test]
fn an_image_that_came_while_no_executor_was_free_is_named_so_before_the_validators_clock_runs_out() {
    let mut book = open();
    apply(&mut book, [joined(1)]);
    apply(&mut book, fetching(1, "alice", "slow"));
    // Both executors take other jobs meanwhile, and wait longer for their validator than the image may take.
    for n in [2, 3] {
        apply(
            &mut book,
            [offered(1, n), dialled(u64::try_from(n).unwrap(), n), ready(n)],
        );
    }
    apply(&mut book, [ready(1)]);
    // The image's own limit, without the margin after which the validator's clock would have ended the attempt.
    let limit = start().plus(Duration::from_secs(500));
    let before = book.apply(Event::Tick, Timestamp::from_micros(limit.micros() - 1));
    assert!(heard(&before, 1).all(|message| message.attempt() != Some(attempt(1))));
    let effects = book.apply(Event::Tick, limit);
    let failure = heard(&effects, 1).find_map(|message| {
        let MinerToValidator::V0HordeFailedRequest(failed) = message else {
            return None;
        };
        (failed.job_uuid == attempt(1)).then(|| failed.clone())
    });
    let failed = failure.unwrap();
    assert_eq!(failed.context.as_ref().unwrap()["image_fetch"], "no_executor");
}

#[test]
fn a_lease_that_gets_no_slot_ends_by_that_name_before_the_validators_clock_runs_out() {
    let mut book = open();
    apply(&mut book, [joined(1)]);
    // An account has one slot at a time.
    assert_eq!(
        granted(&apply(&mut book, fetching(1, "alice", "slow"))),
        [attempt(1)]
    );
    assert_eq!(granted(&apply(&mut book, fetching(2, "alice", "slow"))), []);
    let limit = start().plus(Duration::from_secs(500));
    let before = book.apply(Event::Tick, Timestamp::from_micros(limit.micros() - 1));
    assert_eq!(heard(&before, 1).count(), 0);
    let effects = book.apply(Event::Tick, limit);
    let failures = heard(&effects, 1).filter_map(|message| {
        let MinerToValidator::V0HordeFailedRequest(failed) = message else {
            return None;
        };
        Some(failed.clone())
    });
    let [mut failed] = <[_; 1]>::try_from(failures.collect::<Vec<_>>()).unwrap();
    assert_eq!(failed.job_uuid, attempt(2));
    assert!(
        failed.message.contains("fetches of other jobs in its slots: 1"),
        "{}",
        failed.message
    );
    let shown = take_slot_leases(&mut failed.context);
    let shown: Vec<_> = shown
        .iter()
        .map(|receipt| (receipt.payload.attempt(), receipt.payload.kind()))
        .collect();
    assert_eq!(
        shown,
        [(attempt(1), ReceiptKind::Started)],
        "the lease that holds the slot"
    );
    assert_eq!(
        failed.context,
        Some(serde_json::json!({ "image_fetch": "no_slot" }))
    );
    // The lease that has a slot goes on until the validator's clock has run out, too.
    let later = limit.plus(rules().patience.margin);
    let effects = book.apply(Event::Tick, later);
    let Some(MinerToValidator::V0HordeFailedRequest(failed)) = heard(&effects, 1).last() else {
        panic!("{effects:?}")
    };
    assert_eq!(failed.job_uuid, attempt(1));
    assert_eq!(failed.context.as_ref().unwrap()["image_fetch"], "timed_out");
}

#[test]
fn a_validator_without_the_feature_is_told_nothing_and_keeps_its_executor() {
    let mut book = open();
    let effects = apply(
        &mut book,
        [joined(1), offered(1, 1), dialled(1, 1), up(1, "slow")],
    );
    assert!(!told(&effects, 1).contains(&"MusterExecutorUp".to_owned()));
    assert_eq!((granted(&effects), book.working_leases()), (vec![attempt(1)], 1));
    assert_eq!(told(&apply(&mut book, [ready(1)]), 1), ["V0ExecutorReadyRequest"]);
}

/// An executor elsewhere takes no more jobs because one of them fetches.
#[test]
fn a_persistent_executor_keeps_its_place_and_needs_a_slot_all_the_same() {
    let mut book = open();
    apply(&mut book, [joined(1), offered_by(1, 1, "alice")]);
    let dial = Event::Dialled {
        dial: DialId(1),
        token: token(1),
        executor_ip: None,
        apart: false,
        features: FeatureSet::ours(),
        secret: OneTimeSecret::from_bytes([1; 32]),
    };
    let effects = apply(&mut book, [dial, up(1, "slow")]);
    assert_eq!((granted(&effects), book.working_leases()), (vec![attempt(1)], 1));
    assert_eq!(told(&apply(&mut book, [ready(1)]), 1), ["V0ExecutorReadyRequest"]);
}

/// The messages for executors.
fn orders(effects: &[Effect]) -> impl Iterator<Item = &MinerToExecutor> {
    effects.iter().filter_map(|effect| {
        let Effect::Order { message, .. } = effect else {
            return None;
        };
        Some(&**message)
    })
}

/// An offer whose image comes with a login.
fn offered_with_login(n: u128) -> Event {
    let mut event = offered(1, n);
    if let Event::Offered { offer, .. } = &mut event {
        offer.request.muster = Some(Box::new(OfferExtension {
            credentials: Some(RegistryCredentials {
                username: "me".to_owned(),
                password: "secret".to_owned(),
            }),
            ..OfferExtension::default()
        }));
    }
    event
}

#[test]
fn an_executor_without_the_feature_gets_no_private_image_and_its_lease_says_why() {
    let mut book = open();
    apply(&mut book, [joined(1), offered_with_login(1)]);
    let old = Event::Dialled {
        dial: DialId(1),
        token: token(1),
        executor_ip: None,
        apart: true,
        features: [Feature::Fetching].into_iter().collect(),
        secret: OneTimeSecret::from_bytes([1; 32]),
    };
    let effects = apply(&mut book, [old]);
    assert!(
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::Dismiss { .. })),
        "{effects:?}"
    );
    assert!(
        !orders(&effects).any(|order| matches!(order, MinerToExecutor::V0InitialJobRequest(_))),
        "it is not told the job"
    );
    let Some(MinerToValidator::V0HordeFailedRequest(failed)) = heard(&effects, 1).last() else {
        panic!("{effects:?}")
    };
    assert!(
        failed.message.contains("does not know private-images"),
        "{failed:?}"
    );
    assert_eq!(book.open_leases(), 0);
}

#[test]
fn an_executor_without_the_feature_gets_no_job_that_says_how_its_program_starts() {
    let offer = || {
        let mut event = offered(1, 1);
        if let Event::Offered { offer, .. } = &mut event {
            offer.request.muster = Some(Box::new(OfferExtension {
                start: Some(ProgramStart {
                    workdir: Some("/w".to_owned()),
                    ..ProgramStart::default()
                }),
                ..OfferExtension::default()
            }));
        }
        event
    };
    let dial = |features: FeatureSet| Event::Dialled {
        dial: DialId(1),
        token: token(1),
        executor_ip: None,
        apart: true,
        features,
        secret: OneTimeSecret::from_bytes([1; 32]),
    };
    let gets_offer = |effects: &[Effect]| {
        orders(effects).any(|order| matches!(order, MinerToExecutor::V0InitialJobRequest(_)))
    };
    let mut book = open();
    apply(&mut book, [joined(1), offer()]);
    let before = [Feature::Fetching, Feature::PrivateImages];
    let effects = apply(&mut book, [dial(before.into_iter().collect())]);
    assert!(
        !gets_offer(&effects),
        "it would start another program: {effects:?}"
    );
    let Some(MinerToValidator::V0HordeFailedRequest(failed)) = heard(&effects, 1).last() else {
        panic!("{effects:?}")
    };
    assert!(
        failed.message.contains("does not know program-start"),
        "{failed:?}"
    );
    let mut book = open();
    apply(&mut book, [joined(1), offer()]);
    let effects = apply(&mut book, [dial(FeatureSet::ours())]);
    assert!(gets_offer(&effects), "{effects:?}");
}

#[test]
fn a_lease_forgets_the_login_once_its_executor_has_it() {
    let mut book = open();
    apply(&mut book, [joined(1), offered_with_login(1)]);
    let effects = apply(&mut book, [dialled(1, 1)]);
    let told = format!("{effects:?}");
    assert!(told.contains("V0InitialJobRequest"), "{told}");
    let order = orders(&effects).next().map(muster_protocol::wire::encode);
    assert!(order.unwrap().contains("secret"), "the executor gets the login");
    let lease = &book.active[&attempt(1)].lease;
    assert!(!lease.holds_offer(), "the offer is gone with the login");
    assert!(lease.has_private_image());
}

#[test]
fn no_more_private_images_are_taken_than_executors_take_them() {
    let mut book = open();
    book.rules.manifest = Manifest::default();
    let persistent = ExecutorCapacity {
        all: Manifest::new([(ExecutorClass::AlwaysOnTest, 3)]),
        private_images: Manifest::new([(ExecutorClass::AlwaysOnTest, 1)]),
    };
    apply(&mut book, [joined(1), Event::Capacity(persistent)]);
    let first = apply(&mut book, [offered_with_login(1)]);
    let started = first.iter().any(|effect| {
        matches!(
            effect,
            Effect::Start {
                private_image: true,
                ..
            }
        )
    });
    assert!(started, "{first:?}");
    let second = apply(&mut book, [offered_with_login(2)]);
    assert_eq!(told(&second, 1), ["V0DeclineJobRequest"]);
    let everybodys = apply(&mut book, [offered(1, 3)]);
    assert_eq!(told(&everybodys, 1)[0], "V0AcceptJobRequest");
    let none = ExecutorCapacity {
        private_images: Manifest::default(),
        ..book.persistent.clone()
    };
    apply(&mut book, [Event::Capacity(none)]);
    let effects = apply(&mut book, [offered_with_login(4)]);
    let Some(MinerToValidator::V0DeclineJobRequest(declined)) = heard(&effects, 1).next() else {
        panic!("{effects:?}")
    };
    assert_eq!(declined.reason, JobRejectionReason::NoMinerForJob);
}

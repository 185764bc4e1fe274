//! Properties of routing: no excluded miner is asked, work is spread, and the same facts give the same answer.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use muster_protocol::{
    ExecutorClass, Feature, FeatureSet, Hotkey, JobId, Manifest, MinerKey, Rao, Timestamp,
};
use muster_routing::availability::{Availability, availability};
use muster_routing::{
    AttemptMark, CacheKey, CollateralVerdict, Exclusion, JobRequirements, LedgerWindows, LengthLimit,
    MinerLedger, MinerStats, RoutableNeuron, Route, RoutingPolicy, route,
};
use proptest::prelude::*;
use uuid::Uuid;

const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;

fn hotkey(seed: u8) -> Hotkey {
    Hotkey::from_bytes([seed; 32])
}

fn miner(seed: u8) -> MinerKey {
    MinerKey(hotkey(seed))
}

fn wish(seed: u128) -> JobRequirements {
    JobRequirements {
        job: JobId::from_uuid(Uuid::from_u128(seed)),
        class: CLASS,
        image: CacheKey::image("image"),
        inputs: BTreeSet::new(),
        tried: BTreeSet::new(),
        avoided_owners: BTreeSet::new(),
        private_image: false,
        reserved_us: 0,
        lasts_s: 0,
    }
}

fn policy() -> RoutingPolicy {
    RoutingPolicy {
        me: hotkey(0),
        max_incidents: 3,
        blacklist: BTreeSet::new(),
        most_unproven: u32::MAX,
        prices: RoutingPolicy::PRICES,
    }
}

fn subject(seed: u8, port: Option<u16>) -> RoutableNeuron {
    RoutableNeuron {
        uid: u16::from(seed),
        miner: miner(seed),
        owner: hotkey(seed),
        axon: port.map(|port| SocketAddr::from(([127, 0, 0, 1], port))),
        collateral: CollateralVerdict::NotRequired,
        allowance_us: None,
    }
}

fn order(route: &Route) -> Vec<u16> {
    route.candidates.iter().map(|candidate| candidate.uid).collect()
}

#[test]
fn executors_on_paper_attract_no_jobs_once_capacity_is_proven() {
    let stats = |announced, given, proven: Option<u32>| MinerStats {
        manifest: Some(Manifest::new([(CLASS, announced)])),
        given,
        open: [(CLASS, 1)].into(),
        proven: proven.map(|proven| (CLASS, proven)).into_iter().collect(),
        ..MinerStats::default()
    };
    let neurons = [subject(1, Some(1)), subject(2, Some(1))];
    let with = |paper| {
        let known = [
            (miner(1), stats(2, 3, Some(2))),
            (miner(2), stats(1_000_000, 4, paper)),
        ]
        .into();
        order(&route(&wish(1), &neurons, &known, &policy()))
    };
    assert_eq!(with(None), [2, 1], "by its manifest alone it has next to no work");
    assert_eq!(with(Some(2)), [1, 2], "two proven executors are two");
    assert_eq!(with(Some(1)), [1], "its one proven executor is at work");
    assert_eq!(with(Some(0)), [1], "a newcomer gets one job at a time");
}

#[test]
fn every_exclusion_names_its_reason() {
    let of = |count| Some(Manifest::new([(CLASS, count)]));
    let stats = [
        (
            miner(4),
            MinerStats {
                open: [(CLASS, 2)].into(),
                manifest: of(2),
                ..MinerStats::default()
            },
        ),
        (
            miner(5),
            MinerStats {
                manifest: Some(Manifest::new([(ExecutorClass::AlwaysOnLlmA6000, 2)])),
                ..MinerStats::default()
            },
        ),
        (
            miner(6),
            MinerStats {
                incidents: 3,
                ..MinerStats::default()
            },
        ),
        (
            miner(8),
            MinerStats {
                full: [(CLASS, Timestamp::from_secs(1_005))].into(),
                ..MinerStats::default()
            },
        ),
    ]
    .into();
    let subjects = [
        subject(0, Some(1)),
        subject(1, None),
        subject(2, Some(0)),
        subject(3, Some(1)),
        subject(4, Some(1)),
        subject(5, Some(1)),
        subject(6, Some(1)),
        subject(7, Some(7)),
        subject(8, Some(1)),
        subject(9, Some(1)),
    ];
    let mut wish = wish(1);
    wish.tried.insert(miner(3));
    let mut policy = policy();
    policy.blacklist.insert(miner(9));
    let route = route(&wish, &subjects, &stats, &policy);
    let reasons: Vec<_> = route.excluded.iter().map(|e| (e.uid, e.reason)).collect();
    assert_eq!(
        reasons,
        [
            (0, Exclusion::OwnHotkey),
            (1, Exclusion::NoAxon),
            (2, Exclusion::BadAxon),
            (3, Exclusion::AlreadyTried),
            (4, Exclusion::Busy { open: 2, capacity: 2 }),
            (5, Exclusion::ClassNotOffered),
            (6, Exclusion::LostLately { incidents: 3 }),
            (8, Exclusion::FullLately),
            (9, Exclusion::Blacklisted),
        ]
    );
    assert_eq!(order(&route), [7]);
    assert_eq!(route.explain()[1]["reason"], "no axon on the chain");
    let decision = route.decision(CLASS, 12);
    assert_eq!((decision.chosen, decision.more), (Some(miner(7)), 0));
    assert_eq!(
        decision
            .excluded
            .iter()
            .map(|passed| passed.uids.len())
            .sum::<usize>(),
        9
    );
    let text = serde_json::to_string(&decision).unwrap();
    assert_eq!(
        serde_json::from_str::<muster_routing::RouteDecision>(&text).unwrap(),
        decision
    );
    // The step for the user names the miner that was asked, and no other one.
    let told = decision.tell();
    assert_eq!((told.miner, told.candidates), (Some(miner(7)), 1));
    assert_eq!(told.drawbacks, ["the image is not known to be there"]);
    assert_eq!(
        told.excluded.iter().map(|excluded| excluded.miners).sum::<u32>(),
        8
    );
    let text = serde_json::to_string(&told).unwrap();
    assert!(!text.contains(&miner(4).to_string()), "{text}");
    assert!(
        text.contains(r#"{"reason":"no axon on the chain","miners":1}"#),
        "{text}"
    );
}

#[test]
fn a_miner_that_takes_only_short_jobs_now_is_asked_for_those() {
    let limit = LengthLimit {
        longest_s: 3_600,
        until: Timestamp::from_secs(9),
    };
    let limited = MinerStats {
        length_limits: [(CLASS, limit)].into(),
        manifest: Some(Manifest::new([(CLASS, 2)])),
        ..MinerStats::default()
    };
    let stats = [(miner(1), limited)].into();
    let lasting = |lasts_s| {
        let wish = JobRequirements { lasts_s, ..wish(1) };
        route(&wish, &[subject(1, Some(1))], &stats, &policy())
    };
    assert_eq!(order(&lasting(3_600)), [1]);
    let long = lasting(3_601);
    assert_eq!(order(&long), [] as [u16; 0]);
    let [excluded] = long.excluded.as_slice() else {
        panic!("{long:?}")
    };
    assert_eq!(
        (excluded.reason, excluded.until),
        (
            Exclusion::TooLongLately { longest_s: 3_600 },
            Some(Timestamp::from_secs(9))
        )
    );
    let Availability::Later(reasons) = availability(&long) else {
        panic!("it passes")
    };
    assert_eq!((reasons.too_long, reasons.longest_s), (1, 3_600));
}

#[test]
fn each_drawback_has_its_price() {
    let one = |stats: MinerStats| {
        let wish = JobRequirements {
            inputs: [CacheKey::image("input"), CacheKey::image("more")].into(),
            ..wish(1)
        };
        let stats = [(miner(1), stats)].into();
        route(
            &wish,
            &[subject(1, Some(1)), subject(2, Some(1))],
            &stats,
            &policy(),
        )
        .candidates
        .into_iter()
        .find(|candidate| candidate.uid == 1)
        .unwrap()
        .cost
    };
    let nothing = one(MinerStats::default());
    assert_eq!(
        (
            nothing.record,
            nothing.load,
            nothing.image,
            nothing.inputs,
            nothing.fairness
        ),
        (0, 0, 300, 200, 0)
    );
    let warm = one(MinerStats {
        warm: [CacheKey::image("image"), CacheKey::image("input")].into(),
        ..MinerStats::default()
    });
    assert_eq!((warm.image, warm.inputs), (0, 100));
    assert_eq!(
        one(MinerStats {
            incidents: 1,
            ..MinerStats::default()
        })
        .record,
        333
    );
    assert_eq!(
        one(MinerStats {
            incidents: 1,
            done: 194,
            ..MinerStats::default()
        })
        .record,
        10
    );
    assert_eq!(
        one(MinerStats {
            excuses: 1,
            ..MinerStats::default()
        })
        .record,
        200
    );
    let half = MinerStats {
        open: [(CLASS, 2)].into(),
        manifest: Some(Manifest::new([(CLASS, 4)])),
        ..MinerStats::default()
    };
    assert_eq!(one(half).load, 200);
    assert_eq!(
        one(MinerStats {
            given: 3,
            ..MinerStats::default()
        })
        .fairness,
        500,
        "it was given most"
    );
}

#[test]
fn the_reliable_come_before_the_full_of_excuses() {
    let stats = [
        (
            miner(1),
            MinerStats {
                incidents: 2,
                ..MinerStats::default()
            },
        ),
        (
            miner(4),
            MinerStats {
                excuses: 99,
                ..MinerStats::default()
            },
        ),
    ]
    .into();
    let subjects: Vec<_> = (1..=4).map(|seed| subject(seed, Some(u16::from(seed)))).collect();
    let route = route(&wish(9), &subjects, &stats, &policy());
    assert_eq!(order(&route)[2..], [1, 4], "and excuses leave nobody out");
}

#[test]
fn equals_share_the_work_over_many_jobs_even_if_nothing_is_remembered() {
    let subjects: Vec<_> = (1..=4).map(|seed| subject(seed, Some(1))).collect();
    let mut first = BTreeMap::<u16, u32>::new();
    for seed in 0..400 {
        let route = route(&wish(seed), &subjects, &BTreeMap::new(), &policy());
        *first.entry(order(&route)[0]).or_default() += 1;
    }
    assert!(first.values().all(|count| (50..150).contains(count)), "{first:?}");
}

/// Routes short jobs one after another, all of which succeed; returns the number that each miner got.
fn many(executors: &[u32], jobs: u32, same_image: bool) -> Vec<u32> {
    let hour = Duration::from_secs(3_600);
    let mut ledger = MinerLedger::new(LedgerWindows {
        record: hour,
        given: hour,
        manifest: hour,
        full: hour,
        warm: hour,
    });
    let now = Timestamp::from_secs(1_000);
    let subjects: Vec<_> = (1..=u8::try_from(executors.len()).unwrap())
        .map(|seed| subject(seed, Some(1)))
        .collect();
    for (subject, count) in subjects.iter().zip(executors) {
        ledger.record_manifest(subject.miner, Manifest::new([(CLASS, *count)]), now);
    }
    let mut got = vec![0; executors.len()];
    for job in 0..jobs {
        let mut wish = wish(u128::from(job));
        if !same_image {
            wish.image = CacheKey::image(&job.to_string());
        }
        let about = [wish.image].into();
        let stats = ledger.stats(subjects.iter().map(|subject| subject.miner), &about, now);
        let chosen = route(&wish, &subjects, &stats, &policy()).candidates[0];
        ledger.record_offer(chosen.miner, now);
        ledger.record_cached(chosen.miner, about, now);
        ledger.record_mark(chosen.miner, AttemptMark::Done, now);
        got[usize::from(chosen.uid) - 1] += 1;
    }
    got
}

#[test]
fn an_image_at_hand_is_worth_a_lead_and_not_all_the_work() {
    let got = many(&[1, 1, 1, 1], 1_000, true);
    assert!(got.iter().all(|count| *count >= 100), "{got:?}");
}

fn any_stats() -> impl Strategy<Value = MinerStats> {
    (
        (0u32..4, 0u32..9, 0u32..5, 0u32..9, 0u32..50),
        proptest::option::of(0u32..4),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(
            |((open, done, incidents, excuses, given), manifest, full, warm)| MinerStats {
                open: [(CLASS, open)].into(),
                done,
                incidents,
                excuses,
                given,
                manifest: manifest.map(|count| Manifest::new([(CLASS, count)])),
                incidents_until: None,
                last_manifest: None,
                full: full
                    .then_some((CLASS, Timestamp::from_secs(5)))
                    .into_iter()
                    .collect(),
                warm: warm.then(|| CacheKey::image("image")).into_iter().collect(),
                ..MinerStats::default()
            },
        )
}

proptest! {
    #[test]
    fn nobody_who_must_be_left_out_is_asked_and_everyone_is_placed_once(
        ports in proptest::collection::vec(proptest::option::of(0u16..3), 0..12),
        known in proptest::collection::vec(any_stats(), 12),
        tried in proptest::collection::btree_set(0u8..12, 0..4),
        banned in proptest::collection::btree_set(0u8..12, 0..3),
        seed in any::<u128>(),
    ) {
        let mut subjects: Vec<_> = (0u8..).zip(&ports).map(|(seed, port)| subject(seed, *port)).collect();
        let stats: BTreeMap<_, _> = (0u8..).zip(known).map(|(seed, stats)| (miner(seed), stats)).collect();
        let mut wish = wish(seed);
        wish.tried = tried.iter().map(|seed| miner(*seed)).collect();
        let mut policy = policy();
        policy.blacklist = banned.iter().map(|seed| miner(*seed)).collect();
        let one = route(&wish, &subjects, &stats, &policy);
        subjects.reverse();
        let two = route(&wish, &subjects, &stats, &policy);
        prop_assert_eq!(&one, &two, "the order in which miners are looked at decides nothing");
        prop_assert_eq!(one.candidates.len() + one.excluded.len(), subjects.len());
        for candidate in &one.candidates {
            let stats = &stats[&candidate.miner];
            prop_assert!(candidate.miner != miner(0) && candidate.address.port() != 0);
            prop_assert!(!wish.tried.contains(&candidate.miner) && !policy.blacklist.contains(&candidate.miner));
            prop_assert!(stats.incidents < 3 && stats.full.is_empty());
            if let Some(manifest) = &stats.manifest {
                prop_assert!(stats.open[&CLASS] < manifest.count(CLASS));
            }
        }
        prop_assert!(one.candidates.windows(2).all(|pair| pair[0].cost.total() <= pair[1].cost.total()));
        prop_assert!(one.excluded.windows(2).all(|pair| pair[0].uid < pair[1].uid));
    }

    #[test]
    fn worse_facts_about_a_miner_never_move_it_forward(
        known in proptest::collection::vec(any_stats(), 5), seed in any::<u128>(), worse in 0usize..3,
    ) {
        let subjects: Vec<_> = (1u8..=5).map(|seed| subject(seed, Some(1))).collect();
        let mut stats: BTreeMap<_, _> = (1u8..).zip(known).map(|(seed, stats)| (miner(seed), stats)).collect();
        let place = |stats: &_| {
            let route = route(&wish(seed), &subjects, stats, &policy());
            order(&route).iter().position(|uid| *uid == 1).unwrap_or(usize::MAX)
        };
        let before = place(&stats);
        let one = stats.get_mut(&miner(1)).unwrap();
        match worse {
            0 => one.incidents += 1,
            1 => one.excuses += 1,
            _ => one.warm.clear(),
        }
        prop_assert!(place(&stats) >= before);
    }

    #[test]
    fn over_many_jobs_each_executor_gets_the_same(executors in proptest::collection::vec(1u32..5, 1..6)) {
        let all: u32 = executors.iter().sum();
        let got = many(&executors, all * 20, false);
        for (count, has) in got.iter().zip(&executors) {
            prop_assert!(count.abs_diff(has * 20) <= has + 1, "{:?} of {:?}", got, executors);
        }
    }
}

#[test]
fn a_miner_without_enough_collateral_is_not_asked_and_the_reason_says_which_case_it_is() {
    let required = Rao(10_000_000);
    let with = |seed: u8, collateral| RoutableNeuron {
        collateral,
        ..subject(seed, Some(1))
    };
    let held = Rao(5_000_000);
    let neurons = [
        with(1, CollateralVerdict::Enough),
        with(2, CollateralVerdict::TooLittle { held, required }),
        with(3, CollateralVerdict::NoAccount { required }),
        with(4, CollateralVerdict::Unknown { age_s: None }),
        with(5, CollateralVerdict::Unknown { age_s: Some(4_000) }),
        with(6, CollateralVerdict::NotRequired),
    ];
    let found = route(&wish(1), &neurons, &BTreeMap::new(), &policy());
    let mut asked = order(&found);
    asked.sort_unstable();
    assert_eq!(asked, [1, 6]);
    let reasons: Vec<_> = found.excluded.iter().map(|excluded| excluded.reason).collect();
    let expected = [
        Exclusion::CollateralTooLow { held, required },
        Exclusion::NoCollateralAccount { required },
        Exclusion::CollateralUnknown { age_s: None },
        Exclusion::CollateralUnknown { age_s: Some(4_000) },
    ];
    assert_eq!(reasons, expected);
    // Only an unknown state may end while a job waits.
    assert_eq!(
        reasons
            .iter()
            .map(|reason| reason.is_passing())
            .collect::<Vec<_>>(),
        [false, false, true, true]
    );
    let told = expected.map(|reason| reason.to_string());
    assert_eq!(
        told[0],
        "it has deposited 0.005000000 TAO as collateral, and 0.010000000 TAO is required"
    );
    assert!(told[3].contains("4000 s ago"), "{}", told[3]);
    let stored = serde_json::to_value(expected[0]).unwrap();
    assert_eq!(
        stored,
        serde_json::json!({ "why": "collateral_too_low", "held": 5_000_000, "required": 10_000_000 })
    );
    assert_eq!(serde_json::from_value::<Exclusion>(stored).unwrap(), expected[0]);
}

#[test]
fn a_slow_image_is_tried_by_a_miner_of_another_owner() {
    let owned = |seed: u8, owner: u8| RoutableNeuron {
        owner: hotkey(owner),
        ..subject(seed, Some(1))
    };
    let neurons = [owned(1, 100), owned(2, 100), owned(3, 101)];
    let mut wish = wish(1);
    wish.tried = [miner(1)].into();
    wish.avoided_owners = [hotkey(100)].into();
    let found = route(&wish, &neurons, &BTreeMap::new(), &policy());
    assert_eq!(order(&found), [3]);
    let reasons: Vec<_> = found.excluded.iter().map(|excluded| excluded.reason).collect();
    assert_eq!(reasons, [Exclusion::AlreadyTried, Exclusion::SameOwner]);
}

#[test]
fn an_image_at_another_miner_is_known_while_it_is_remembered() {
    let (at, image) = (
        |secs: i64| Timestamp::from_secs(1_000_000 + secs),
        CacheKey::image("image"),
    );
    let window = Duration::from_secs(100);
    let mut ledger = MinerLedger::new(LedgerWindows {
        record: window,
        given: window,
        manifest: window,
        full: window,
        warm: window,
    });
    ledger.record_cached(miner(1), [image], at(0));
    assert!(ledger.is_elsewhere(image, miner(2), at(50)));
    assert!(!ledger.is_elsewhere(image, miner(1), at(50)), "only its own word");
    assert!(!ledger.is_elsewhere(image, miner(2), at(100)));
}

#[test]
fn a_miner_that_has_not_shown_its_executors_gets_few_attempts_at_a_time() {
    let subjects = [subject(1, Some(1))];
    let limited = RoutingPolicy {
        most_unproven: 1,
        ..policy()
    };
    let with = |open, last: Option<u32>| {
        let stats = MinerStats {
            open: [(CLASS, open)].into(),
            last_manifest: last.map(|count| Manifest::new([(CLASS, count)])),
            ..MinerStats::default()
        };
        let route = route(&wish(1), &subjects, &[(miner(1), stats)].into(), &limited);
        route.excluded.first().map(|excluded| excluded.reason)
    };
    assert_eq!(with(0, None), None);
    let busy = |open, capacity| Some(Exclusion::Busy { open, capacity });
    assert_eq!(with(1, None), busy(1, 1));
    // An old manifest says how many it may have, and never that it may have none.
    assert_eq!((with(2, Some(3)), with(3, Some(3))), (None, busy(3, 3)));
    assert_eq!((with(0, Some(0)), with(1, Some(0))), (None, busy(1, 1)));
}

#[test]
fn a_job_with_a_private_image_passes_over_those_that_do_not_know_it_by_name() {
    let known = |features: Option<FeatureSet>, private: Option<u32>| MinerStats {
        manifest: Some(Manifest::new([(CLASS, 2)])),
        last_manifest: Some(Manifest::new([(CLASS, 2)])),
        features,
        private_images: private.map(|count| Manifest::new([(CLASS, count)])),
        ..MinerStats::default()
    };
    let knows = Some([Feature::PrivateImages].into_iter().collect());
    let stats = BTreeMap::from([
        // Nothing is known of the first: it is asked, and shows its features before it gets the offer.
        (miner(1), known(None, None)),
        (miner(2), known(Some(FeatureSet::NONE), None)),
        (miner(3), known(knows, Some(0))),
        (miner(4), known(knows, Some(1))),
        (miner(5), known(knows, None)),
    ]);
    let neurons: Vec<_> = (1..=5).map(|seed| subject(seed, Some(1))).collect();
    let mut wish = wish(1);
    let everybody = route(&wish, &neurons, &stats, &policy());
    assert_eq!(everybody.candidates.len(), 5, "an image that everybody may read");
    wish.private_image = true;
    let found = route(&wish, &neurons, &stats, &policy());
    let mut asked = order(&found);
    asked.sort_unstable();
    assert_eq!(asked, [1, 4, 5]);
    let reasons: Vec<_> = found
        .excluded
        .iter()
        .map(|excluded| (excluded.uid, excluded.reason))
        .collect();
    assert_eq!(
        reasons,
        [(2, Exclusion::NoPrivateImages), (3, Exclusion::NoPrivateExecutor)]
    );
    // These reasons hold, so a job that only such miners could run is refused at once.
    let old: Vec<_> = [2, 3].map(|seed| subject(seed, Some(1))).into();
    assert_eq!(
        availability(&route(&wish, &old, &stats, &policy())),
        Availability::Never
    );
}

#[test]
fn no_more_jobs_are_given_than_proven_executors_have_room_for() {
    let (wish, policy) = (wish(1), policy());
    let asked = |proven: Option<u32>, open: u32| {
        let neurons = [subject(1, Some(1))];
        let stats = MinerStats {
            proven: proven.map(|executors| (CLASS, executors)).into_iter().collect(),
            open: [(CLASS, open)].into(),
            manifest: Some(Manifest::new([(CLASS, 9)])),
            ..MinerStats::default()
        };
        let found = route(&wish, &neurons, &[(miner(1), stats)].into(), &policy);
        found.excluded.first().map(|excluded| excluded.reason)
    };
    assert_eq!(asked(None, 8), None, "nobody grades the class");
    assert_eq!(asked(Some(3), 2), None);
    let busy = |open, capacity| Some(Exclusion::Busy { open, capacity });
    assert_eq!(asked(Some(3), 3), busy(3, 3));
    assert_eq!(asked(Some(0), 0), None, "a newcomer gets one job at a time");
    assert_eq!(asked(Some(0), 1), busy(1, 1));
    assert_eq!(asked(Some(20), 9), busy(9, 9), "the manifest bounds as well");
}

#[test]
fn newcomers_get_a_twentieth_of_the_attempts_and_one_job_an_owner() {
    let stats = |proven, given, open| MinerStats {
        proven: [(CLASS, proven)].into(),
        manifest: Some(Manifest::new([(CLASS, 4)])),
        open: [(CLASS, open)].into(),
        given,
        ..MinerStats::default()
    };
    let neurons = [subject(1, Some(1)), subject(2, Some(1)), subject(3, Some(1))];
    let with = |one, two, three| {
        let known = [(miner(1), one), (miner(2), two), (miner(3), three)].into();
        route(&wish(1), &neurons, &known, &policy())
    };
    // Miner 1 has proven four executors; the others are new and idle.
    let fresh = with(stats(4, 39, 0), stats(0, 1, 0), stats(0, 0, 0));
    assert_eq!(order(&fresh).first(), Some(&3), "a new miner may show itself");
    let served = with(stats(4, 37, 3), stats(0, 3, 0), stats(0, 0, 0));
    assert_eq!(
        order(&served).first(),
        Some(&1),
        "newcomers have had three of forty"
    );
    assert_eq!(served.candidates[1].cost.newcomer, RoutingPolicy::PRICES.newcomer);
    let full = with(stats(4, 37, 4), stats(0, 3, 0), stats(0, 0, 0));
    assert_eq!(
        order(&full).len(),
        2,
        "where nobody else has room, they are asked"
    );

    let one_owner = [
        subject(1, Some(1)),
        RoutableNeuron {
            owner: hotkey(1),
            ..subject(2, Some(1))
        },
    ];
    let known = [(miner(1), stats(0, 0, 1)), (miner(2), stats(0, 0, 0))].into();
    let found = route(&wish(1), &one_owner, &known, &policy());
    let busy = Exclusion::Busy { open: 1, capacity: 1 };
    let reasons: Vec<_> = found.excluded.iter().map(|excluded| excluded.reason).collect();
    assert_eq!(
        reasons,
        [busy, busy],
        "the second hotkey of an owner gets no second job"
    );
}

#[test]
fn a_job_that_would_not_be_paid_is_not_offered() {
    let asked = |left_s: Option<u64>, open: u32| {
        let wish = JobRequirements {
            reserved_us: 60_000_000,
            ..wish(1)
        };
        let neurons = [RoutableNeuron {
            allowance_us: left_s.map(|left| left * 1_000_000),
            ..subject(1, Some(1))
        }];
        let stats = MinerStats {
            open: [(CLASS, open)].into(),
            manifest: Some(Manifest::new([(CLASS, 9)])),
            ..MinerStats::default()
        };
        let found = route(&wish, &neurons, &[(miner(1), stats)].into(), &policy());
        found.excluded.first().map(|excluded| excluded.reason)
    };
    assert_eq!(asked(None, 5), None, "nothing is known of the stakes");
    assert_eq!(asked(Some(60), 0), None);
    let thin = |left_s, needed_s| Some(Exclusion::AllowanceTooThin { left_s, needed_s });
    assert_eq!(asked(Some(59), 0), thin(59, 60));
    assert_eq!(
        asked(Some(119), 1),
        thin(119, 120),
        "the job under way has its time"
    );
}

//! Whole batches in memory: every executor behaves as the test prescribes and gets the right judgement.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "helpers of tests fail as tests do"
)]

mod world;

use std::collections::{BTreeMap, BTreeSet};

use muster_grading::batch::{Batch, BatchAction, BatchEvent, JUDGING_US};
use muster_grading::batch_file::BatchFile;
use muster_grading::batch_plan::draw_batch;
use muster_grading::batch_settlement::{Capacity, count_capacities};
use muster_grading::fingerprints::ProofFingerprint;
use muster_grading::grade_spec::GradeSpec;
use muster_grading::judgement::{Absence, Judgement, Why};
use muster_grading::replay::replay;
use muster_grading::trial_result::TrialResult;
use muster_hardware_proof::{InstructionSet, ProofVerdict, ZeroReason};
use muster_protocol::{ExecutorClass, MinerKey, ValidatorKey};
use muster_scoring::ObservationKind;
use proptest::prelude::*;

use world::{CLASS, Does, RULES, Went, is_proven, job, key, reasons, run, run_kind, run_with};

#[test]
fn an_honest_executor_passes_beside_every_cheat_and_each_cheat_has_its_name() {
    type Named = fn(&Why) -> bool;
    let cheats: [(Does, Named); 16] = [
        (Does::Smaller, |why| matches!(why, Why::WrongOpening { .. })),
        (Does::Copies(0), |why| *why == Why::CopiedRoot { of: 0 }),
        (Does::Foreign(0), |why| *why == Why::Foreign { of: 0 }),
        (Does::Replays, |why| *why == Why::Replayed),
        (Does::Late, |why| matches!(why, Why::Late { .. })),
        (Does::Early, |why| *why == Why::OutOfTurn { kind: 6 }),
        (Does::Oversized, |why| {
            matches!(
                why,
                Why::Oversized {
                    length: 0x100_0000_0000,
                    ..
                }
            )
        }),
        (Does::Malformed, |why| {
            matches!(why, Why::OutOfTurn { .. } | Why::Malformed { .. })
        }),
        (Does::WrongOpening, |why| matches!(why, Why::WrongOpening { .. })),
        (Does::LeavesAtBarrier, |why| {
            matches!(why, Why::VanishedAtBarrier { .. })
        }),
        (Does::LeavesBetween, |why| {
            matches!(why, Why::VanishedAtBarrier { .. })
        }),
        (Does::LeavesBefore, |why| matches!(why, Why::Gone { .. })),
        (Does::LeavesAfter, |why| *why == Why::VanishedAfterCommitment),
        (Does::Declines(false), |why| {
            matches!(why, Why::NeverLeased { .. })
        }),
        (Does::Declines(true), |why| {
            *why == Why::ExcuseBeyondProven { proven: 0 }
        }),
        (Does::NeverReady, |why| matches!(why, Why::NotAtBarrier { .. })),
    ];
    let does: Vec<_> = [Does::Honest]
        .into_iter()
        .chain(cheats.iter().map(|(does, _)| *does))
        .chain([Does::LeavesAtEnd, Does::LateOnce])
        .collect();
    let went = run(&does);
    let judgements = &went.file.judgements;
    let (first, last) = (&judgements[0], &judgements[does.len() - 2..does.len()]);
    assert!(is_proven(first) && last.iter().all(is_proven), "{first} {last:?}");
    for ((does, named), judgement) in cheats.iter().zip(&judgements[1..]) {
        let why = reasons(judgement);
        assert!(why.iter().any(named), "{does:?}: {judgement}");
    }
    let proven = Capacity {
        miner: MinerKey(key(1)),
        class: CLASS,
        proven: 3,
        serving: 0,
        excuses: vec![],
        announced: u32::try_from(does.len()).unwrap(),
        credit: 3_000,
    };
    let counted = count_capacities(&draw_again(&went), judgements, &went.file.head.grade_specs);
    assert_eq!(counted, [proven]);
    // Every lease is released once, and a wrong proof is not tried again.
    assert!(
        went.released.values().all(|times| *times == 1),
        "{:?}",
        went.released
    );
    assert_eq!((went.fired[&1], went.fired[&0]), (2, 2));
    assert_eq!(went.fired[&(does.len() - 1)], 3, "late once, then two trials");

    // A second WALK fills another memory, and the products are bound to that one.
    let refilled = run(&[Does::Honest, Does::FillsLateOnce]);
    assert!(
        is_proven(&refilled.file.judgements[1]),
        "{}",
        refilled.file.judgements[1]
    );
    assert_eq!(refilled.fired[&1], 3, "the memory twice, then the products");
    let replayed = replay(&refilled.file, InstructionSet::best(), &muster_identity::verify).unwrap();
    assert_eq!(replayed.differences, Vec::<String>::new());

    // The same batch without the cheat passes.
    let honest = run(&[Does::Honest; 3]);
    assert!(honest.file.judgements[..3].iter().all(is_proven));
}

fn draw_again(went: &Went) -> Vec<muster_grading::Participant> {
    let head = &went.file.head;
    draw_batch(
        head.kind,
        &head.hash,
        head.validator,
        &head.announced,
        head.bounds,
    )
    .participants
}

#[test]
fn a_file_says_the_same_to_everybody_and_a_changed_one_is_found_out() {
    let went = run(&[
        Does::Honest,
        Does::Smaller,
        Does::Copies(0),
        Does::LeavesAfter,
        Does::Declines(false),
        Does::Foreign(0),
    ]);
    let text = serde_json::to_string(&went.file).unwrap();
    let file: BatchFile = serde_json::from_str(&text).unwrap();
    assert_eq!(file, went.file);
    for engine in InstructionSet::available() {
        let replayed = replay(&file, engine, &muster_identity::verify).unwrap();
        assert_eq!(replayed.differences, Vec::<String>::new());
        let stated: Vec<_> = file.judgements.iter().collect();
        assert_eq!(replayed.judgements.values().collect::<Vec<_>>(), stated);
    }
    // The evidence about some executors gives the same judgements, because the fingerprints show the copies.
    let mut some = file.clone();
    some.participants.retain(|place, _| *place == 2);
    let replayed = replay(&some, InstructionSet::best(), &muster_identity::verify).unwrap();
    assert_eq!((replayed.differences.len(), replayed.judgements.len()), (0, 1));

    type Change = fn(&mut BatchFile);
    let changes: [(&str, Change); 8] = [
        ("a pass for a cheat", |file| {
            file.judgements[1] = file.judgements[0].clone()
        }),
        ("a zero for an honest one", |file| {
            file.judgements[0] = file.judgements[1].clone()
        }),
        ("another block's hash", |file| file.head.hash = [6; 32]),
        ("a course that is easier", |file| {
            file.head.grade_specs[0].trials[0].commit_us += 1
        }),
        ("another's evidence", |file| {
            let other = file.participants[&1].clone();
            file.participants.insert(0, other);
        }),
        ("products that are bound to no memory of this batch", |file| {
            file.participants.get_mut(&0).unwrap().proofs.remove(0);
        }),
        ("marks that hide a copy", |file| {
            file.fingerprints.remove(&0);
        }),
        ("fewer announced", |file| file.head.announced[0].count = 2),
    ];
    for (what, change) in changes {
        let mut changed = file.clone();
        change(&mut changed);
        let replayed = replay(&changed, InstructionSet::best(), &muster_identity::verify).unwrap();
        assert!(!replayed.differences.is_empty(), "{what}");
    }
    let mut torn = file;
    torn.participants.get_mut(&0).unwrap().proofs[0]
        .evidence
        .truncate(100);
    replay(&torn, InstructionSet::best(), &muster_identity::verify).unwrap_err();
}

#[test]
fn receipts_excuse_no_more_executors_than_were_ever_proven_at_once() {
    let does = [
        Does::Honest,
        Does::Declines(true),
        Does::Declines(true),
        Does::Declines(true),
    ];
    for (before, excused) in [(0, 0), (1, 0), (2, 1), (3, 2), (4, 3), (9, 3)] {
        let went = run_with(&does, before, 0);
        let count = went
            .file
            .judgements
            .iter()
            .filter(|judged| matches!(judged, Judgement::Excused { .. }))
            .count();
        assert_eq!(count, excused, "{before} proven before");
        assert!(is_proven(&went.file.judgements[0]));
        assert_eq!(
            replay(&went.file, InstructionSet::best(), &muster_identity::verify)
                .unwrap()
                .differences,
            Vec::<String>::new()
        );
    }
}

#[test]
fn every_excuse_needs_an_attempt_of_its_own() {
    let went = run_with(
        &[Does::Honest, Does::Shows(2), Does::Shows(1), Does::Shows(2)],
        9,
        0,
    );
    let judged = &went.file.judgements;
    let by = |judged: &Judgement| match judged {
        Judgement::Excused { by, .. } => by.map(|by| by.attempt.as_uuid().as_u128()),
        _ => None,
    };
    assert_eq!(
        judged.iter().map(by).collect::<Vec<_>>()[..4],
        [None, Some(1), Some(2), None]
    );
    assert_eq!(reasons(&judged[3]), [Why::ExcuseMissing { shown: 2 }]);
    let counted = count_capacities(&draw_again(&went), judged, &went.file.head.grade_specs);
    assert_eq!(
        (counted[0].proven, counted[0].excuses.len(), counted[0].credit),
        (1, 2, 1_000)
    );
    let replayed = replay(&went.file, InstructionSet::best(), &muster_identity::verify).unwrap();
    assert_eq!(replayed.differences, Vec::<String>::new());
    // The file of an earlier release has no attempts, and its excuses stand.
    let mut old = went.file;
    for kept in old.participants.values_mut() {
        if let Some(Absence::NotLeased { at_work, .. }) = &mut kept.absence {
            at_work.clear();
        }
    }
    for place in 1..4 {
        let said = "busy".to_owned();
        old.judgements[place] = Judgement::Excused { said, by: None };
    }
    let text = serde_json::to_string(&old).unwrap();
    assert!(!text.contains("at_work") && !text.contains("\"by\""), "{text}");
    let replayed = replay(
        &serde_json::from_str(&text).unwrap(),
        InstructionSet::best(),
        &muster_identity::verify,
    );
    assert_eq!(replayed.unwrap().differences, Vec::<String>::new());
}

#[test]
fn an_unannounced_batch_challenges_at_its_instant_and_once() {
    let kind = ObservationKind::Unannounced;
    let does = [Does::Honest, Does::NeverReady, Does::LateOnce];
    let went = run_kind(kind, &does, 0, 0);
    let judged = &went.file.judgements;
    assert!(is_proven(&judged[0]), "{judged:?}");
    assert!(
        matches!(reasons(&judged[1])[..], [Why::NotAtBarrier { .. }]),
        "{judged:?}"
    );
    assert!(
        matches!(reasons(&judged[2])[..], [Why::Late { .. }, ..]),
        "no second try: {judged:?}"
    );
    let spin_up = u64::try_from(CLASS.spin_up_time().as_micros()).unwrap();
    assert_eq!(went.first_challenge_us, Some(spin_up + RULES.gather_us));
    let early = run_kind(kind, &[Does::Honest], 0, 0);
    assert_eq!(
        early.first_challenge_us, went.first_challenge_us,
        "not before its instant"
    );
    for file in [&went.file, &early.file] {
        let replayed = replay(file, InstructionSet::best(), &muster_identity::verify).unwrap();
        assert_eq!(replayed.differences, Vec::<String>::new());
    }
    let announced = run(&[Does::Honest, Does::LateOnce]);
    assert_eq!(announced.first_challenge_us, Some(0), "as soon as all are there");
    assert!(is_proven(&announced.file.judgements[1]), "a second try");
    // The same block draws other challenges for the other kind.
    let mut file = went.file;
    file.head.kind = ObservationKind::Announced;
    let replayed = replay(&file, InstructionSet::best(), &muster_identity::verify).unwrap();
    assert!(!replayed.differences.is_empty());
}

#[test]
fn a_miner_that_does_not_say_what_it_has_is_worth_nothing_and_the_file_says_why() {
    let mut went = run(&[Does::Honest]);
    let silent = went.file.judgements.last().unwrap().clone();
    assert_eq!(
        silent.to_string(),
        "zero: its miner did not announce its executors: no manifest came within 5 s"
    );
    let replayed = replay(&went.file, InstructionSet::best(), &muster_identity::verify).unwrap();
    assert_eq!(replayed.differences, Vec::<String>::new());
    assert_eq!(replayed.judgements[&1], silent);
    // The evidence about this miner alone gives the same judgement.
    went.file.participants.remove(&0);
    let replayed = replay(&went.file, InstructionSet::best(), &muster_identity::verify).unwrap();
    assert_eq!((replayed.differences.len(), replayed.judgements.len()), (0, 1));

    type Change = fn(&mut BatchFile);
    let changes: [(&str, Change); 4] = [
        ("it is said to have passed", |file| {
            file.judgements[1] = file.judgements[0].clone()
        }),
        ("it was not silent", |file| {
            file.head.silent[0].miner = file.head.announced[0].miner
        }),
        ("for another reason", |file| {
            file.head.silent[0].said = "it laughed".to_owned()
        }),
        ("it is left out", |file| file.head.silent.clear()),
    ];
    for (what, change) in changes {
        let mut changed = went.file.clone();
        change(&mut changed);
        let replayed = replay(&changed, InstructionSet::best(), &muster_identity::verify).unwrap();
        assert!(!replayed.differences.is_empty(), "{what}");
    }
}

#[test]
fn executors_that_serve_are_challenged_where_they_serve() {
    let is_serving = |judged: &Judgement| matches!(judged, Judgement::Serving { .. });
    // Four executors, the last two in sessions; four were proven in an earlier batch.
    let went = run_with(&[Does::Honest; 4], 4, 2);
    let judged = &went.file.judgements;
    assert!(judged[..2].iter().all(is_proven), "{judged:?}");
    assert!(judged[2..4].iter().all(is_serving), "{judged:?}");
    // Executors that serve have one trial instead of two, together with the products of the others.
    assert_eq!((went.fired[&0], went.fired[&3]), (2, 1));
    let rounds = |place: usize| {
        let proofs = &went.file.participants[&place].proofs;
        proofs.iter().map(|proof| proof.trial).collect::<Vec<_>>()
    };
    assert_eq!((rounds(0), rounds(3)), (vec![0, 1], vec![1]));
    let counted = count_capacities(&draw_again(&went), judged, &went.file.head.grade_specs);
    let capacity = Capacity {
        miner: MinerKey(key(1)),
        class: CLASS,
        proven: 2,
        serving: 2,
        excuses: vec![],
        announced: 4,
        credit: counted[0].credit,
    };
    assert_eq!(counted, std::slice::from_ref(&capacity));
    assert!(
        (2_000..=4_000).contains(&capacity.credit),
        "executors that serve are credited what they show"
    );
    let replayed = replay(&went.file, InstructionSet::best(), &muster_identity::verify).unwrap();
    assert_eq!(replayed.differences, Vec::<String>::new());

    // Serving executors count up to the number that was fully proven in one batch, before any receipts.
    let does = [Does::Honest, Does::Declines(true), Does::Honest, Does::Honest];
    let went = run_with(&does, 2, 2);
    let judged = &went.file.judgements;
    assert!(is_proven(&judged[0]));
    assert_eq!(reasons(&judged[1]), [Why::ExcuseBeyondProven { proven: 2 }]);
    assert!(is_serving(&judged[2]));
    assert_eq!(reasons(&judged[3]), [Why::ServesBeyondProven { proven: 2 }]);
    let replayed = replay(&went.file, InstructionSet::best(), &muster_identity::verify).unwrap();
    assert_eq!(replayed.differences, Vec::<String>::new());

    // A batch of sessions alone has no round for the memory.
    let went = run_with(&[Does::Honest; 2], 2, 2);
    assert!(
        went.file.judgements[..2].iter().all(is_serving),
        "{:?}",
        went.file.judgements
    );
    let replayed = replay(&went.file, InstructionSet::best(), &muster_identity::verify).unwrap();
    assert_eq!(replayed.differences, Vec::<String>::new());

    // Cheats in a session get the same reasons.
    type Named = fn(&Why) -> bool;
    let cheats: [(Does, Named); 6] = [
        (Does::Smaller, |why| matches!(why, Why::WrongOpening { .. })),
        (Does::Copies(0), |why| *why == Why::CopiedRoot { of: 0 }),
        (Does::Late, |why| matches!(why, Why::Late { .. })),
        (Does::LeavesBefore, |why| matches!(why, Why::Gone { .. })),
        (Does::LeavesAfter, |why| *why == Why::VanishedAfterCommitment),
        (Does::NeverReady, |why| matches!(why, Why::NotAtBarrier { .. })),
    ];
    for (does, named) in cheats {
        let went = run_with(&[Does::Honest, does], 2, 1);
        let judged = &went.file.judgements;
        assert!(is_proven(&judged[0]));
        assert!(reasons(&judged[1]).iter().any(named), "{does:?}: {}", judged[1]);
        let replayed = replay(&went.file, InstructionSet::best(), &muster_identity::verify).unwrap();
        assert_eq!(replayed.differences, Vec::<String>::new(), "{does:?}");
    }

    // A session that the validator itself ends gives no zero.
    let went = run_with(&[Does::Honest, Does::IsLetGo], 2, 1);
    assert!(matches!(&went.file.judgements[1], Judgement::Void { said } if said == "it was drained"));
    assert!(is_proven(&went.file.judgements[0]));

    // A pass in a session does not count as a full pass, nor the reverse, nor as a pass in another session.
    let went = run_with(&[Does::Honest; 2], 2, 1);
    type Change = fn(&mut BatchFile);
    let changes: [(&str, Change); 4] = [
        ("it serves nobody", |file| file.head.serving.clear()),
        ("another session", |file| file.head.serving[0].job = job(5)),
        ("a whole pass", |file| {
            file.judgements[1] = file.judgements[0].clone()
        }),
        ("answered by another job", |file| {
            file.participants.get_mut(&1).unwrap().job = Some(job(5).to_string());
        }),
    ];
    for (what, change) in changes {
        let mut changed = went.file.clone();
        change(&mut changed);
        let replayed = replay(&changed, InstructionSet::best(), &muster_identity::verify).unwrap();
        assert!(!replayed.differences.is_empty(), "{what}");
    }
}

/// Alters one byte of the encoded bytes, counted from their end.
fn bent(text: &str, from_the_end: usize) -> String {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    let mut bytes = STANDARD.decode(text).unwrap();
    let place = bytes.len() - from_the_end;
    bytes[place] ^= 1;
    STANDARD.encode(bytes)
}

#[test]
fn unsigned_changes_of_a_batch_file_are_named() {
    let went = run_with(&[Does::Honest, Does::Smaller, Does::Honest], 3, 1);
    type Change = fn(&mut BatchFile);
    let changes: [(&str, Change); 12] = [
        ("executor 0: miner 5", |file| {
            let participant = file.participants.get_mut(&0).unwrap();
            participant.attestation = Some(bent(participant.attestation.as_ref().unwrap(), 1));
        }),
        ("executor 1: its attestation cannot be read", |file| {
            file.participants.get_mut(&1).unwrap().attestation = Some("word of honour".to_owned());
        }),
        ("executor 0: the session of its proofs is not attested", |file| {
            file.participants.get_mut(&0).unwrap().attestation = None;
        }),
        ("executor 0: its attestation is of another job", |file| {
            let other = file.participants[&1].attestation.clone();
            file.participants.get_mut(&0).unwrap().attestation = other;
        }),
        (
            "executor 0: its attestation was made for another validator",
            |file| {
                file.head.validator = ValidatorKey(key(3));
            },
        ),
        (
            "executor 0: proof 0: the seal of answer 2: the session key did not sign",
            |file| {
                let seal = &mut file.participants.get_mut(&0).unwrap().proofs[0].seals[2];
                *seal = bent(seal, 1);
            },
        ),
        (
            "executor 2: proof 0: the seal of answer 0: the session key did not sign",
            |file| {
                // One bit of the statement is altered, in the time when the answer ended.
                let seal = &mut file.participants.get_mut(&2).unwrap().proofs[0].seals[0];
                *seal = bent(seal, 68);
            },
        ),
        (
            "executor 0: proof 0: the seal of answer 0: the session key did not sign",
            |file| {
                let other = file.participants[&1].proofs[0].seals[0].clone();
                file.participants.get_mut(&0).unwrap().proofs[0].seals[0] = other;
            },
        ),
        (
            "executor 0: proof 0: the seal of answer 0 is for another question",
            |file| {
                file.participants.get_mut(&0).unwrap().proofs[0].seals.reverse();
            },
        ),
        ("executor 1: proof 0: 1 of its answers have no seal", |file| {
            file.participants.get_mut(&1).unwrap().proofs[0].seals.pop();
        }),
        (
            "executor 0: proof 0: answer 3 is sealed, but there was no question",
            |file| {
                let seals = &mut file.participants.get_mut(&0).unwrap().proofs;
                let more = seals[1].seals.remove(0);
                seals[0].seals.push(more);
            },
        ),
        (
            "executor 0: proof 0: the seal of answer 2 covers other bytes",
            |file| {
                let proof = &mut file.participants.get_mut(&0).unwrap().proofs[0];
                let bytes = bent(&proof.evidence, 200);
                proof.evidence = bytes;
            },
        ),
    ];
    for (named, change) in changes {
        let mut changed = went.file.clone();
        change(&mut changed);
        let replayed = replay(&changed, InstructionSet::best(), &muster_identity::verify).unwrap();
        assert!(
            replayed.differences.iter().any(|said| said.starts_with(named)),
            "{named}: {:?}",
            replayed.differences
        );
    }
}

/// The roots of one executor are wrong for every other one, because their keys are different.
#[test]
fn no_two_executors_of_a_batch_have_an_answer_in_common() {
    let went = run(&[Does::Honest; 4]);
    let fingerprints: Vec<_> = went.file.fingerprints.values().flatten().collect();
    let sessions: BTreeSet<_> = fingerprints
        .iter()
        .map(|fingerprint| fingerprint.challenge_id)
        .collect();
    let roots: BTreeSet<_> = fingerprints
        .iter()
        .filter_map(|fingerprint| fingerprint.roots)
        .collect();
    assert_eq!((sessions.len(), roots.len()), (8, 8));
}

/// The result of a trial whose executor had gone.
fn gone(trial: usize) -> TrialResult {
    TrialResult {
        trial,
        verdict: ProofVerdict::Zero(ZeroReason::Gone),
        trouble: None,
        fingerprint: ProofFingerprint {
            challenge_id: [0; 32],
            roots: None,
            named_challenge: None,
        },
    }
}

#[test]
fn an_executor_that_is_never_judged_holds_no_batch_up() {
    let participant = |index| muster_grading::Participant {
        miner: MinerKey(key(1)),
        class: CLASS,
        index,
    };
    let participants: Vec<_> = (0..2).map(participant).collect();
    let mut batch = Batch::new(participants, GradeSpec::for_class(CLASS), RULES, 0);
    batch.tick(0);
    for place in 0..2 {
        batch.apply(place, BatchEvent::Ready, 1);
    }
    batch.apply(0, BatchEvent::Committed, 2);
    let judging = batch.apply(1, BatchEvent::Committed, 3);
    assert_eq!(judging, [BatchAction::Judge(vec![0, 1])]);
    batch.apply(0, BatchEvent::Judged(Box::new(gone(0))), 4);
    let end = 3 + JUDGING_US;
    assert_eq!(batch.deadline_us(), Some(end));
    let actions = batch.tick(end);
    let again = BatchAction::Challenge {
        trial: 0,
        attempt: 1,
        participants: vec![0],
    };
    assert_eq!(actions, [BatchAction::Release(vec![1]), again]);
    assert!(matches!(batch.absences().get(&1), Some(Absence::Void { .. })));
    assert!(
        batch.deadline_us() > Some(end),
        "the next round has a time of its own"
    );
}

/// Any event of any executor, in any order and any number.
fn event() -> impl Strategy<Value = (usize, u8)> {
    (0usize..6, 0u8..8)
}

proptest! {
    #[test]
    fn a_batch_ends_with_a_judgement_for_everybody_in_any_order_of_events(
        events in proptest::collection::vec(event(), 0..200), spin in any::<bool>(),
    ) {
        let classes = if spin { [CLASS, ExecutorClass::SpinUpGpu24Gb] } else { [CLASS, CLASS] };
        let participant = |index: u32| muster_grading::Participant {
            miner: MinerKey(key(1)), class: classes[index as usize % 2], index,
        };
        let participants: Vec<_> = (0..6).map(participant).collect();
        let grade_specs = [CLASS, ExecutorClass::SpinUpGpu24Gb].map(|class| GradeSpec::for_class(class).unwrap());
        let mut batch = Batch::new(participants.clone(), grade_specs, RULES, 0);
        let mut now = 0;
        let (mut leased, mut released, mut fired) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut proving = BTreeSet::new();
        let mut finished = 0;
        let mut take = |actions: Vec<BatchAction>| -> Result<(), TestCaseError> {
            for action in actions {
                match action {
                    BatchAction::Lease(places) => for place in places { prop_assert!(leased.insert(place)); },
                    BatchAction::Release(places) => for place in places {
                        proving.remove(&place);
                        prop_assert!(leased.contains(&place) && released.insert(place));
                    },
                    BatchAction::Challenge { trial, attempt, participants } => for place in participants {
                        prop_assert!(leased.contains(&place) && !released.contains(&place));
                        prop_assert!(fired.insert((place, trial, attempt)) && proving.insert(place));
                    },
                    BatchAction::Judge(places) => {
                        for place in places {
                            prop_assert!(proving.remove(&place), "each challenge is judged once");
                        }
                        prop_assert!(proving.is_empty(), "nothing is verified while a clock runs");
                    }
                    BatchAction::Finish => { finished += 1; prop_assert_eq!(&leased, &released); }
                }
            }
            Ok(())
        };
        for (place, what) in events {
            let event = match what {
                0 => BatchEvent::Ready,
                1 => BatchEvent::Absent(Absence::NotReady { said: String::new() }),
                2 => BatchEvent::Lost(String::new()),
                3 => BatchEvent::Committed,
                4 => BatchEvent::Judged(Box::new(gone(0))),
                5 => BatchEvent::EndedByValidator(String::new()),
                _ => {
                    now += u64::from(what) * 1_000_000;
                    take(batch.tick(now))?;
                    continue;
                }
            };
            take(batch.apply(place, event, now))?;
        }
        // After that, the only events are the ends of conversations.
        for _ in 0..100 {
            for place in 0..6 {
                take(batch.apply(place, BatchEvent::Committed, now))?;
                for trial in 0..3 {
                    take(batch.apply(place, BatchEvent::Judged(Box::new(gone(trial))), now))?;
                }
            }
            let Some(deadline) = batch.deadline_us() else { break };
            now = deadline;
            take(batch.tick(now))?;
        }
        prop_assert_eq!(finished, 1);
        let (judgements, _) = batch.judgements(&BTreeMap::new()).unwrap();
        prop_assert_eq!(judgements.len(), 6);
        for judgement in judgements {
            if let Judgement::Zero { reasons } = judgement { prop_assert!(!reasons.is_empty()); }
        }
    }
}

//! Grading batches in the validator's store, on every database at hand: a batch counts as a whole or not at all, and is
//! read back as it was stored.

use std::collections::BTreeMap;

use muster_grading::batch_file::{BatchHead, ParticipantEvidence, ProofEvidence, ProvenCount};
use muster_grading::batch_plan::{Announcement, BatchBounds, BatchPlan, SilentMiner, draw_batch};
use muster_grading::batch_settlement::{count_capacities, judge_silent_miner};
use muster_grading::grade_spec::GradeSpec;
use muster_grading::judgement::{Absence, Judgement, Why};
use muster_grading_runner::store::GradingStore;
use muster_protocol::receipt::AttemptAtWork;
use muster_protocol::{AttemptId, ExecutorClass, ValidatorKey};
use muster_scoring::{ExcuseState, ObservationKind};
use uuid::Uuid;

use super::{NOW, each, hotkey, miner};

const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;
const ANNOUNCED: ObservationKind = ObservationKind::Announced;

pub(super) fn drawn(block: u64, counts: &[(u8, u32)]) -> (BatchHead, BatchPlan) {
    let announced = counts.iter().map(|(of, count)| Announcement {
        miner: miner(*of),
        class: CLASS,
        count: *count,
    });
    let head = BatchHead {
        validator: ValidatorKey(hotkey(255)),
        kind: ANNOUNCED,
        block,
        hash: [u8::try_from(block).unwrap(); 32],
        announced: announced.collect(),
        silent: vec![],
        serving: vec![],
        bounds: BatchBounds::default(),
        grade_specs: GradeSpec::for_class(CLASS).into_iter().collect(),
        proven_before: vec![],
    };
    let plan = draw_batch(
        head.kind,
        &head.hash,
        head.validator,
        &head.announced,
        head.bounds,
    );
    (head, plan)
}

fn proven() -> Judgement {
    Judgement::Proven {
        measured: muster_hardware_proof::grade::Components::default(),
        provisional: true,
    }
}

fn zero() -> Judgement {
    Judgement::Zero {
        reasons: vec![Why::NeverLeased {
            said: "busy".to_owned(),
        }],
    }
}

#[tokio::test]
async fn a_batch_that_nobody_finished_is_void_and_counts_for_nothing() {
    for (test, store) in each().await {
        let book = GradingStore::new(store.pool(), store.writer());
        let (head, plan) = drawn(5, &[(1, 2)]);
        assert!(book.begin_batch(&plan.id, &head, NOW(10)).await.unwrap());
        let again = book.begin_batch(&plan.id, &head, NOW(10)).await.unwrap();
        assert!(
            !again,
            "{}: a restart within the block begins it once",
            test.engine
        );
        let proof = ProofEvidence {
            trial: 0,
            sent_us: 0,
            evidence: String::new(),
            trouble: None,
            seals: vec![],
        };
        book.insert_proof(&plan.id, 0, 0, &proof).await.unwrap();
        // The process ends, and the next one begins.
        let later = GradingStore::new(store.pool(), store.writer());
        assert_eq!(
            later.void_unfinished(NOW(20)).await.unwrap(),
            1,
            "{}",
            test.engine
        );
        assert_eq!(later.void_unfinished(NOW(21)).await.unwrap(), 0);
        let rows = later.batches(10).await.unwrap();
        assert_eq!(
            (rows.len(), rows[0].state.as_str(), rows[0].ended_at),
            (1, "void", Some(NOW(20)))
        );
        assert!(rows[0].grades.is_empty());
        assert!(
            later
                .capacities_between(ANNOUNCED, 0, 100)
                .await
                .unwrap()
                .is_empty()
        );
        assert!(later.proven_before(&plan.participants).await.unwrap().is_empty());
        let id = hex_of(&plan);
        assert_eq!(later.batch_file(&id, None).await.unwrap(), None);
    }
}

#[tokio::test]
async fn a_finished_batch_is_read_as_it_was_stored() {
    for (test, store) in each().await {
        let book = GradingStore::new(store.pool(), store.writer());
        let (mut head, plan) = drawn(7, &[(1, 2), (2, 1)]);
        head.silent.push(SilentMiner {
            miner: miner(3),
            said: "no manifest came within 5 s".to_owned(),
        });
        book.begin_batch(&plan.id, &head, NOW(10)).await.unwrap();
        let proof = |trial| ProofEvidence {
            trial,
            sent_us: 12,
            evidence: "eA==".to_owned(),
            trouble: Some("it stumbled".to_owned()),
            seals: vec!["eA==".to_owned()],
        };
        let of_one = |of: u8| {
            plan.participants
                .iter()
                .position(|seat| seat.miner == miner(of))
                .unwrap()
        };
        for trial in 0..2 {
            let number = u32::try_from(trial).unwrap();
            book.insert_proof(&plan.id, of_one(1), number, &proof(trial))
                .await
                .unwrap();
        }
        let judgements: Vec<_> = plan
            .participants
            .iter()
            .map(|seat| if seat.miner == miner(1) { proven() } else { zero() })
            .chain(head.silent.iter().map(judge_silent_miner))
            .collect();
        let absent = ParticipantEvidence {
            absence: Some(Absence::NotLeased {
                said: "busy".to_owned(),
                backed: false,
                at_work: vec![],
            }),
            ..ParticipantEvidence::default()
        };
        let kept = ParticipantEvidence {
            job: Some("a job".to_owned()),
            attestation: Some("eA==".to_owned()),
            ..ParticipantEvidence::default()
        };
        let seats: BTreeMap<_, _> = [(of_one(1), kept.clone()), (of_one(2), absent.clone())].into();
        let counted = count_capacities(&plan.participants, &judgements, &head.grade_specs);
        let marks = BTreeMap::new();
        book.finish_batch(&plan, &head, &marks, &judgements, &seats, &counted, NOW(30))
            .await
            .unwrap();

        let id = hex_of(&plan);
        let rows = book.batches(10).await.unwrap();
        assert_eq!(
            rows[0].grades,
            [("proven".to_owned(), 2), ("zero".to_owned(), 2)].into()
        );
        let file = book.batch_file(&id, None).await.unwrap().unwrap();
        assert_eq!(
            (&file.head, &file.judgements),
            (&head, &judgements),
            "{}",
            test.engine
        );
        let whole = ParticipantEvidence {
            proofs: vec![proof(0), proof(1)],
            ..kept
        };
        assert_eq!(file.participants[&of_one(1)], whole);
        assert_eq!(file.participants[&of_one(2)], absent);
        // The file about one miner holds every judgement, but only that miner's evidence.
        let some = book.batch_file(&id, Some(miner(2))).await.unwrap().unwrap();
        assert_eq!(some.judgements.len(), 4);
        assert_eq!(some.participants.keys().collect::<Vec<_>>(), [&of_one(2)]);

        let grades = book.grades_of(miner(2), 10).await.unwrap();
        assert_eq!((grades.len(), grades[0].block), (1, 7));
        assert!(
            grades[0].said.contains("could not be leased: busy"),
            "{}",
            grades[0].said
        );

        let silent = book.grades_of(miner(3), 10).await.unwrap();
        assert_eq!((silent.len(), silent[0].class), (1, None));
        assert!(
            silent[0].said.contains("no manifest came within 5 s"),
            "{}",
            silent[0].said
        );
        let alone = book.batch_file(&id, Some(miner(3))).await.unwrap().unwrap();
        assert_eq!(alone.participants, [(3, ParticipantEvidence::default())].into());

        // Every batch counts; excused executors are bounded by the most that one of the last eight batches proved.
        let (head, plan) = drawn(9, &[(1, 1)]);
        book.begin_batch(&plan.id, &head, NOW(40)).await.unwrap();
        let counted = count_capacities(&plan.participants, &[zero()], &head.grade_specs);
        book.finish_batch(
            &plan,
            &head,
            &marks,
            &[zero()],
            &BTreeMap::new(),
            &counted,
            NOW(50),
        )
        .await
        .unwrap();
        let counts = |last| {
            let book = book.clone();
            async move {
                let found = book.capacities_between(ANNOUNCED, 0, last).await.unwrap();
                found
                    .iter()
                    .map(|count| (count.at.micros(), count.miner, count.proven, count.credit))
                    .collect::<Vec<_>>()
            }
        };
        let first = counts(8).await;
        assert_eq!(
            first
                .iter()
                .map(|count| (count.1, count.2, count.3))
                .collect::<Vec<_>>(),
            [(miner(1), 2, 2_000), (miner(2), 0, 0)]
        );
        let both = counts(9).await;
        assert_eq!(both[..2], first, "the oldest first");
        assert_eq!(both[2], (NOW(40).micros(), miner(1), 0, 0));
        let before = book.proven_before(&plan.participants).await.unwrap();
        let most = ProvenCount {
            miner: miner(1),
            class: CLASS,
            proven: 2,
        };
        assert_eq!(before, [most]);
        book.forget_evidence_before(NOW(35)).await.unwrap();
        assert!(book.grades_of(miner(2), 10).await.unwrap().is_empty());
        assert_eq!(
            book.proven_before(&plan.participants).await.unwrap(),
            [most],
            "proven executors stay proven for eight batches"
        );
    }
}

#[tokio::test]
async fn excuses_wait_in_the_store_until_they_are_settled() {
    for (test, store) in each().await {
        let book = GradingStore::new(store.pool(), store.writer());
        let attempt = |number: u128| AttemptAtWork {
            attempt: AttemptId::from_uuid(Uuid::from_u128(number)),
            shown_at: NOW(20),
            until: NOW(400),
            is_organic: true,
        };
        let excused = |number| Judgement::Excused {
            said: "busy".to_owned(),
            by: Some(attempt(number)),
        };
        let run = async |kind, block, judgements: Vec<Judgement>| {
            let (head, _) = drawn(block, &[(1, 3)]);
            let head = BatchHead { kind, ..head };
            let plan = draw_batch(kind, &head.hash, head.validator, &head.announced, head.bounds);
            book.begin_batch(&plan.id, &head, NOW(10)).await.unwrap();
            let counted = count_capacities(&plan.participants, &judgements, &head.grade_specs);
            let (marks, kept) = (BTreeMap::new(), BTreeMap::new());
            book.finish_batch(&plan, &head, &marks, &judgements, &kept, &counted, NOW(30))
                .await
                .unwrap();
            hex_of(&plan)
        };
        let batch = run(ANNOUNCED, 5, vec![proven(), excused(1), excused(2)]).await;
        // The same block begins a probe as well; it has an id and observations of its own.
        run(ObservationKind::Unannounced, 5, vec![proven(), proven(), zero()]).await;
        let seen = async |kind| {
            let seen = book.capacities_between(kind, 5, 5).await.unwrap();
            let [seen] = seen.as_slice() else {
                panic!("one observation: {seen:?}")
            };
            (seen.announced, seen.shown, seen.credit, seen.excuses.clone())
        };
        let (waiting, covered, failed) = (ExcuseState::Waiting, ExcuseState::Covered, ExcuseState::Failed);
        assert_eq!(
            seen(ANNOUNCED).await,
            (3, 1, 1_000, vec![waiting, waiting]),
            "{}",
            test.engine
        );
        assert_eq!(seen(ObservationKind::Unannounced).await, (3, 2, 2_000, vec![]));

        let found = book.waiting_excuses(10).await.unwrap();
        let [one, two] = found.as_slice() else {
            panic!("two wait: {found:?}")
        };
        assert_eq!((&one.batch, one.at, one.until), (&batch, NOW(20), NOW(400)));
        assert_eq!(book.waiting_excuses(1).await.unwrap(), found[..1]);
        book.settle_excuses(&[(one.clone(), covered)]).await.unwrap();
        assert_eq!(book.waiting_excuses(10).await.unwrap(), found[1..]);
        book.settle_excuses(&[(two.clone(), failed)]).await.unwrap();
        assert_eq!(seen(ANNOUNCED).await.3, [covered, failed], "{}", test.engine);
        let before = book
            .proven_before(&drawn(6, &[(1, 1)]).1.participants)
            .await
            .unwrap();
        assert_eq!(
            before.iter().map(|count| count.proven).collect::<Vec<_>>(),
            [2],
            "of either kind"
        );
    }
}

fn hex_of(plan: &BatchPlan) -> String {
    plan.id.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

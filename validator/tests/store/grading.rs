//! Grading batches in the validator's store, on every database at hand: a batch counts as a whole or not at all, and is
//! read back as it was stored.

use std::collections::BTreeMap;

use muster_grading::course::Course;
use muster_grading::evidence::{Before, Head, ProofFile, SeatFile};
use muster_grading::judgement::{Absence, Judgement, Why};
use muster_grading::plan::{Announced, Bounds, Plan, Silent, draw};
use muster_grading::settlement::{capacities, silence};
use muster_grading_runner::book::Book;
use muster_protocol::{ExecutorClass, ValidatorKey};

use super::{NOW, each, hotkey, miner};

const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;

fn drawn(block: u64, counts: &[(u8, u32)]) -> (Head, Plan) {
    let announced = counts.iter().map(|(of, count)| Announced {
        miner: miner(*of),
        class: CLASS,
        count: *count,
    });
    let head = Head {
        validator: ValidatorKey(hotkey(255)),
        block,
        hash: [u8::try_from(block).unwrap(); 32],
        announced: announced.collect(),
        silent: vec![],
        serving: vec![],
        bounds: Bounds::default(),
        courses: Course::of(CLASS).into_iter().collect(),
        before: vec![],
    };
    let plan = draw(&head.hash, head.validator, &head.announced, head.bounds);
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
        let book = Book::new(store.pool());
        let (head, plan) = drawn(5, &[(1, 2)]);
        book.begin(&plan.id, &head, NOW(10)).await.unwrap();
        let proof = ProofFile {
            trial: 0,
            sent_us: 0,
            evidence: String::new(),
            trouble: None,
            seals: vec![],
        };
        book.keep_proof(&plan.id, 0, 0, &proof).await.unwrap();
        // The process ends, and the next one begins.
        let later = Book::new(store.pool());
        assert_eq!(later.void_open(NOW(20)).await.unwrap(), 1, "{}", test.engine);
        assert_eq!(later.void_open(NOW(21)).await.unwrap(), 0);
        let rows = later.batches(10).await.unwrap();
        assert_eq!(
            (rows.len(), rows[0].state.as_str(), rows[0].ended_at),
            (1, "void", Some(NOW(20)))
        );
        assert!(rows[0].grades.is_empty());
        assert!(later.capacities_between(0, 100).await.unwrap().is_empty());
        assert!(later.proven_before(&plan.seats).await.unwrap().is_empty());
        let id = hex_of(&plan);
        assert_eq!(later.file(&id, None).await.unwrap(), None);
    }
}

#[tokio::test]
async fn what_came_of_a_batch_is_read_as_it_was_kept() {
    for (test, store) in each().await {
        let book = Book::new(store.pool());
        let (mut head, plan) = drawn(7, &[(1, 2), (2, 1)]);
        head.silent.push(Silent {
            miner: miner(3),
            said: "no manifest came within 5 s".to_owned(),
        });
        book.begin(&plan.id, &head, NOW(10)).await.unwrap();
        let proof = |trial| ProofFile {
            trial,
            sent_us: 12,
            evidence: "eA==".to_owned(),
            trouble: Some("it stumbled".to_owned()),
            seals: vec!["eA==".to_owned()],
        };
        let of_one = |of: u8| {
            plan.seats
                .iter()
                .position(|seat| seat.miner == miner(of))
                .unwrap()
        };
        for trial in 0..2 {
            let number = u32::try_from(trial).unwrap();
            book.keep_proof(&plan.id, of_one(1), number, &proof(trial))
                .await
                .unwrap();
        }
        let judgements: Vec<_> = plan
            .seats
            .iter()
            .map(|seat| if seat.miner == miner(1) { proven() } else { zero() })
            .chain(head.silent.iter().map(silence))
            .collect();
        let absent = SeatFile {
            absence: Some(Absence::NotLeased {
                said: "busy".to_owned(),
                backed: false,
            }),
            ..SeatFile::default()
        };
        let kept = SeatFile {
            job: Some("a job".to_owned()),
            attestation: Some("eA==".to_owned()),
            ..SeatFile::default()
        };
        let seats: BTreeMap<_, _> = [(of_one(1), kept.clone()), (of_one(2), absent.clone())].into();
        let counted = capacities(&plan.seats, &judgements);
        let marks = BTreeMap::new();
        book.finish(&plan, &head, &marks, &judgements, &seats, &counted, NOW(30))
            .await
            .unwrap();

        let id = hex_of(&plan);
        let rows = book.batches(10).await.unwrap();
        assert_eq!(
            rows[0].grades,
            [("proven".to_owned(), 2), ("zero".to_owned(), 2)].into()
        );
        let file = book.file(&id, None).await.unwrap().unwrap();
        assert_eq!(
            (&file.head, &file.judgements),
            (&head, &judgements),
            "{}",
            test.engine
        );
        let whole = SeatFile {
            proofs: vec![proof(0), proof(1)],
            ..kept
        };
        assert_eq!(file.seats[&of_one(1)], whole);
        assert_eq!(file.seats[&of_one(2)], absent);
        // The file about one miner holds every judgement, but only that miner's evidence.
        let some = book.file(&id, Some(miner(2))).await.unwrap().unwrap();
        assert_eq!(some.judgements.len(), 4);
        assert_eq!(some.seats.keys().collect::<Vec<_>>(), [&of_one(2)]);

        let grades = book.grades_of(miner(2), 10).await.unwrap();
        assert_eq!((grades.len(), grades[0].block), (1, 7));
        assert!(
            grades[0].said.contains("never to be had: busy"),
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
        let alone = book.file(&id, Some(miner(3))).await.unwrap().unwrap();
        assert_eq!(alone.seats, [(3, SeatFile::default())].into());

        // The newest batch of each miner counts; excused executors are bounded by the most that were ever proven at
        // once.
        let (head, plan) = drawn(9, &[(1, 1)]);
        book.begin(&plan.id, &head, NOW(40)).await.unwrap();
        let counted = capacities(&plan.seats, &[zero()]);
        book.finish(
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
                let found = book.capacities_between(0, last).await.unwrap();
                found
                    .iter()
                    .map(|count| (count.miner, count.proven))
                    .collect::<Vec<_>>()
            }
        };
        assert_eq!(counts(8).await, [(miner(1), 2), (miner(2), 0)]);
        assert_eq!(counts(9).await, [(miner(1), 0), (miner(2), 0)]);
        let before = book.proven_before(&plan.seats).await.unwrap();
        let most = Before {
            miner: miner(1),
            class: CLASS,
            proven: 2,
        };
        assert_eq!(before, [most]);
        book.forget(NOW(35)).await.unwrap();
        assert!(book.grades_of(miner(2), 10).await.unwrap().is_empty());
        assert_eq!(
            book.proven_before(&plan.seats).await.unwrap(),
            [most],
            "proven executors stay proven"
        );
    }
}

fn hex_of(plan: &Plan) -> String {
    plan.id.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

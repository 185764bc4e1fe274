//! Epochs, statements of capacity and their evidence in the store, on every database at hand.

use std::time::Duration;

use muster_chain::{BlockNumber, Epoch};
use muster_protocol::job::{Attempt, Event};
use muster_protocol::receipt::OfferedReceipt;
use muster_protocol::status::{HordeFailureReason, ParticipantType};
use muster_protocol::wire::facilitator::HordeFailureDetails;
use muster_protocol::{Digest, ExecutorClass, ReceiptPayload, Signature, ValidatorKey};
use muster_routing::{AttemptMark, LedgerWindows};
use muster_scoring::{CapacityStatement, EpochFacts, ProvenExecutors};
use muster_validator::store::{AttemptChange, IssuedReceipt, restore_ledger};

use super::{NOW, attempt, beginning, each, finished, hotkey, job, miner, request};

fn epoch(first_block: u64, executors: u32) -> EpochFacts {
    EpochFacts {
        first_block,
        first_ms: first_block * 12_000,
        block_ms: 12_000,
        permitted: [(ValidatorKey(hotkey(1)), first_block)].into(),
        proven: vec![ProvenExecutors {
            miner: miner(2),
            class: ExecutorClass::AlwaysOnTest,
            executors,
        }],
    }
}

#[tokio::test]
async fn the_epochs_of_a_window_come_with_the_one_before() {
    for (test, store) in each().await {
        store.note_chain("one", BlockNumber(500), NOW(1)).await.unwrap();
        for first in [100, 200, 300, 400] {
            store.put_epoch(&epoch(first, 1)).await.unwrap();
        }
        store.put_epoch(&epoch(300, 5)).await.unwrap();
        let between = async |first, last| -> Vec<(u64, u32)> {
            let epochs = store.epochs_between(first, last).await.unwrap();
            let pair = |epoch: &EpochFacts| (epoch.first_block, epoch.proven[0].executors);
            epochs.iter().map(pair).collect()
        };
        assert_eq!(
            between(350, 500).await,
            [(200, 1), (300, 5), (400, 1)],
            "{}",
            test.engine
        );
        assert_eq!(between(300, 399).await, [(200, 1), (300, 5)]);
        assert_eq!(between(199, 250).await, [(100, 1), (200, 1)]);
        assert_eq!(between(5, 150).await, [(100, 1)]);
        let whole = store.epochs_between(100, 100).await.unwrap();
        assert_eq!(whole, [epoch(100, 1)]);
        store.note_chain("two", BlockNumber(500), NOW(1)).await.unwrap();
        assert_eq!(store.epochs_between(0, 500).await.unwrap(), [], "another chain");
    }
}

#[tokio::test]
async fn a_validator_that_contradicts_itself_is_kept_with_two_statements() {
    for (_test, store) in each().await {
        store.note_chain("one", BlockNumber(500), NOW(1)).await.unwrap();
        let me = ValidatorKey(hotkey(1));
        let stated = |validator| CapacityStatement {
            validator,
            cycle: 361,
            rows: vec![],
        };
        for (second, body) in [(1, "first"), (2, "second"), (2, "second"), (3, "third")] {
            store.put_statement(&stated(me), body, NOW(second)).await.unwrap();
        }
        let other = ValidatorKey(hotkey(2));
        store
            .put_statement(&stated(other), "first", NOW(9))
            .await
            .unwrap();
        let kept = store.statements_for(Epoch(361)).await.unwrap();
        let of = |validator| -> Vec<&str> {
            let of_one = kept.iter().filter(|kept| kept.validator == validator);
            of_one.map(|kept| kept.body.as_str()).collect()
        };
        assert_eq!((of(me), of(other)), (vec!["first", "second"], vec!["first"]));
        assert_eq!(
            store.statement_of(me, Epoch(361)).await.unwrap().as_deref(),
            Some("first")
        );
        assert_eq!(store.statement_of(me, Epoch(362)).await.unwrap(), None);
        let digest = Digest::of(b"x");
        assert_eq!(store.evidence(digest).await.unwrap(), None);
        store.put_evidence(digest, "x", NOW(1)).await.unwrap();
        store.put_evidence(digest, "x", NOW(2)).await.unwrap();
        assert_eq!(store.evidence(digest).await.unwrap().as_deref(), Some("x"));
    }
}

#[tokio::test]
async fn blocks_that_receipts_named_and_offers_that_miners_refused_are_counted() {
    for (_test, store) in each().await {
        store.note_chain("one", BlockNumber(5), NOW(1)).await.unwrap();
        let (one, frame) = request(job(1), 5);
        store.admit(&one, &frame, NOW(1), None).await.unwrap();
        let begun = attempt(1, 1);
        store
            .begin_attempt(one.uuid, &beginning(begun.clone()))
            .await
            .unwrap();
        assert_eq!(store.offers_since(NOW(0)).await.unwrap(), [], "it has not ended");
        let mut receipt = finished(1, 2, "9.000000");
        receipt.block_numbers = vec![3, 4];
        let offered = OfferedReceipt {
            payload: ReceiptPayload::Finished(receipt),
            validator_signature: Signature::from_bytes([3; 64]),
        };
        let change = AttemptChange {
            worked: None,
            job: one.uuid,
            attempt: begun.id,
            machine: begun.machine,
            mark: Some(AttemptMark::Unexcused),
            receipts: vec![IssuedReceipt {
                offered,
                miner_signature: None,
            }],
            reports: vec![],
            block: Some(BlockNumber(7)),
            now: NOW(11),
        };
        store.save(&change).await.unwrap();
        let named = store.blocks_named_since(BlockNumber(0)).await.unwrap();
        let [named] = named.as_slice() else {
            panic!("one receipt: {named:?}");
        };
        assert_eq!((named.miner, named.blocks.as_slice()), (miner(2), &[3, 4][..]));
        assert_eq!(store.blocks_named_since(BlockNumber(8)).await.unwrap(), []);
        let offers = store.offers_since(NOW(0)).await.unwrap();
        let counts: Vec<_> = offers
            .iter()
            .map(|count| (count.miner, count.offers, count.refused))
            .collect();
        assert_eq!(counts, [(miner(2), 1, 1)]);
        assert_eq!(store.offers_since(NOW(100_000)).await.unwrap(), []);
    }
}

#[tokio::test]
async fn free_ends_without_a_slot_are_known_after_a_restart() {
    let hour = Duration::from_secs(3_600);
    let windows = LedgerWindows {
        record: hour,
        given: hour,
        manifest: hour,
        full: hour,
        warm: hour,
    };
    for (test, store) in each().await {
        let (one, frame) = request(job(1), 5);
        store.admit(&one, &frame, NOW(1), None).await.unwrap();
        let begun = attempt(1, 1);
        store
            .begin_attempt(one.uuid, &beginning(begun.clone()))
            .await
            .unwrap();
        let day = 24 * 3_600;
        let is_free = async |now| {
            let ledger = restore_ledger(&store, windows, NOW(now)).await.unwrap();
            ledger.ledger.has_free_no_slot(miner(2), NOW(now))
        };
        assert!(is_free(day).await, "{}", test.engine);
        let change = AttemptChange {
            worked: None,
            job: one.uuid,
            attempt: begun.id,
            machine: ended_without_a_slot(&begun.machine),
            mark: Some(AttemptMark::NoSlot),
            receipts: vec![],
            reports: vec![],
            block: None,
            now: NOW(day),
        };
        store.save(&change).await.unwrap();
        let counted = store.ended_offers(NOW(0)).await.unwrap();
        let [counted] = counted.as_slice() else {
            panic!("one hour: {counted:?}");
        };
        assert_eq!(
            (counted.miner, counted.offers, counted.no_slots),
            (miner(2), 1, 1)
        );
        assert!(!is_free(day + 1).await);
        // Longer than the window of marks, and within a week.
        assert!(!is_free(7 * day).await);
        assert!(is_free(9 * day).await, "it is forgotten");
    }
}

fn ended_without_a_slot(machine: &Attempt) -> Attempt {
    let failure = HordeFailureDetails {
        reported_by: ParticipantType::Miner,
        reason: HordeFailureReason::GenericError,
        message: String::new(),
        context: Some(serde_json::json!({ "image_fetch": "no_slot" })),
    };
    let offered = machine.clone().assume_offered(NOW(10));
    offered.apply(Event::HordeFailed(failure), NOW(11)).unwrap().0
}

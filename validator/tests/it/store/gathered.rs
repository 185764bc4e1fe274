//! Gathered receipts and refused lines in the store, on every database at hand.

use std::collections::BTreeSet;

use muster_chain::BlockNumber;
use muster_identity::{Keypair, countersign, offer_receipt, verify_receipts};
use muster_process::TestClock;
use muster_protocol::receipt::{FinishedReceipt, StartedReceipt, StartedTag};
use muster_protocol::{AttemptId, ExecutorClass, MinerKey, Receipt, ReceiptPayload, ValidatorKey};
use muster_receipts::{
    PageCursor, PageSource, PairCycle, ReceiptAmount, ReceiptRejection, ReceiptTally, RejectionReason,
    key_of, payload_bytes,
};
use muster_scoring::Scores;
use muster_store::retention::{PaceSettings, sweep};
use muster_validator::store::retention::ValidatorRetentionConfig;
use muster_validator::store::{CycleState, GatheredPage, PlacedReceipt, StoredCycle};

use super::retention::bounds;
use super::{NOW, each, finished, job};

/// A receipt with both signatures, and the block in which it counts.
fn gathered(
    validator: &Keypair,
    attempt: u128,
    payload: fn(AttemptId, MinerKey, ValidatorKey) -> ReceiptPayload,
) -> Receipt {
    let miner = Keypair::from_seed([2; 32]);
    let payload = payload(
        AttemptId::first_of(job(attempt)),
        MinerKey(miner.hotkey()),
        ValidatorKey(validator.hotkey()),
    );
    countersign(&miner, offer_receipt(validator, payload).unwrap())
        .unwrap()
        .into_inner()
}

fn an_end(job_uuid: AttemptId, miner_hotkey: MinerKey, validator_hotkey: ValidatorKey) -> ReceiptPayload {
    ReceiptPayload::Finished(FinishedReceipt {
        job_uuid,
        miner_hotkey,
        validator_hotkey,
        timestamp: NOW(1_769_000_000),
        time_started: NOW(1_769_000_000),
        ..finished(1, 2, "3.000000")
    })
}

fn a_start(job_uuid: AttemptId, miner_hotkey: MinerKey, validator_hotkey: ValidatorKey) -> ReceiptPayload {
    ReceiptPayload::Started(StartedReceipt {
        job_uuid,
        miner_hotkey,
        validator_hotkey,
        timestamp: NOW(1_769_000_000),
        receipt_type: StartedTag,
        executor_class: ExecutorClass::AlwaysOnCpu8c16Gb,
        is_organic: true,
        ttl: 7,
    })
}

#[tokio::test]
async fn gathered_receipts_are_kept_once_with_the_place_to_read_on_from() {
    for (test, store) in each().await {
        let now = NOW(1_769_000_001);
        let (me, other) = (Keypair::from_seed([1; 32]), Keypair::from_seed([3; 32]));
        let receipts = vec![
            gathered(&other, 1, a_start),
            gathered(&other, 1, an_end),
            // The same attempt id of another validator is another receipt.
            gathered(&me, 1, an_end),
        ];
        let keys: Vec<_> = receipts.iter().map(key_of).collect();
        assert!(store.known_receipts(&receipts).await.unwrap().is_empty());
        let good = verify_receipts(receipts.clone(), now)
            .into_iter()
            .map(|receipt| PlacedReceipt {
                receipt: receipt.unwrap(),
                block: BlockNumber(7),
                cycle: 5,
            });
        let miner = receipts[0].payload.miner();
        let refusal = |why| ReceiptRejection {
            why,
            example: "x".to_owned(),
        };
        let mut harvest = GatheredPage {
            source: PageSource::Miner(miner),
            page: 5,
            cursor: PageCursor {
                offset: 100,
                settled: false,
            },
            good: good.collect(),
            refused: vec![
                refusal(RejectionReason::Future),
                refusal(RejectionReason::Future),
                refusal(RejectionReason::Stale),
            ],
            own_page: None,
        };
        let my_key = ValidatorKey(me.hotkey());
        store.store_gathered(my_key, &harvest, now).await.unwrap();
        harvest.cursor.settled = true;
        harvest.refused.truncate(1);
        store.store_gathered(my_key, &harvest, now).await.unwrap();
        assert_eq!(store.gathered_count().await.unwrap(), 3, "{}", test.engine);
        let known = store.known_receipts(&receipts).await.unwrap();
        assert_eq!(
            known.keys().copied().collect::<BTreeSet<_>>(),
            keys.into_iter().collect()
        );
        let pages = store.page_cursors().await.unwrap();
        assert_eq!(
            pages[&PageSource::Miner(miner)][&5],
            PageCursor {
                offset: 100,
                settled: true
            }
        );
        let refused = store.refused_receipts(9).await.unwrap();
        let counts: Vec<_> = refused
            .iter()
            .map(|view| (view.reason.as_str(), view.refused))
            .collect();
        assert_eq!(counts, [("future", 3), ("stale", 1)]);

        let between = async |first, last| {
            store
                .finished_between(BlockNumber(first), BlockNumber(last), &mut |_| true)
                .await
                .unwrap()
        };
        let mut paid = between(7, 7).await;
        paid.sort_by_key(|paid| paid.class.is_none());
        assert_eq!(paid.len(), 2);
        assert_eq!(
            paid[0].class,
            Some(ExecutorClass::AlwaysOnCpu8c16Gb),
            "its start was gathered too"
        );
        assert_eq!(paid[1].class, None);
        assert!(between(8, 99).await.is_empty());
        let mut seen = Vec::new();
        let none = store
            .finished_between(BlockNumber(7), BlockNumber(7), &mut |finish| {
                seen.push((finish.validator, finish.miner, finish.signed_at));
                false
            })
            .await
            .unwrap();
        assert!(none.is_empty(), "receipts that are not admitted: {none:?}");
        let signed = NOW(1_769_000_000);
        let other_key = ValidatorKey(other.hotkey());
        assert_eq!(
            seen.into_iter().collect::<BTreeSet<_>>(),
            [(other_key, miner, signed), (my_key, miner, signed)].into()
        );

        // Each pair's amount counts what was stored once, and a party sees its own pairs only.
        let amounts = async |party: PageSource| store.gathered_amounts(&party, 5, 5).await.unwrap();
        let bytes = |at: usize| payload_bytes(&receipts[at].payload);
        let amount = |receipts, bytes| ReceiptAmount { receipts, bytes };
        let pair = |validator| PairCycle {
            cycle: 5,
            validator,
            miner,
        };
        let of_other = (pair(other_key), amount(2, bytes(0) + bytes(1)));
        let of_me = (pair(my_key), amount(1, bytes(2)));
        assert_eq!(
            amounts(PageSource::Miner(miner)).await,
            ReceiptTally::new([of_other, of_me].into())
        );
        assert_eq!(
            amounts(PageSource::Validator(other_key)).await,
            ReceiptTally::new([of_other].into())
        );
        let other_cycles = store.gathered_amounts(&PageSource::Miner(miner), 6, 9).await;
        assert_eq!(other_cycles.unwrap(), ReceiptTally::default());
        let left_out = [((miner, RejectionReason::OverQuota), 4)].into();
        store.count_left_out(&left_out, now).await.unwrap();
        let refused = store.refused_receipts(9).await.unwrap();
        let over = refused.iter().find(|view| view.reason == "over_quota");
        assert_eq!(over.map(|view| view.refused), Some(4), "{}", test.engine);
        // A later cycle is settled, and so is one after it: the chain cannot open the first one again.
        for (first_block, last_block) in [(0, 7), (8, 9)] {
            store
                .begin_cycle(
                    &StoredCycle {
                        number: last_block,
                        first_block,
                        last_block,
                        state: CycleState::Kept,
                        scores: Scores::default(),
                        snapshot: None,
                        weights: vec![],
                        reveal: None,
                        on_its_way: None,
                        error: None,
                        at_block: last_block,
                        changed_at: now,
                    },
                    None,
                )
                .await
                .unwrap();
        }
        let sweep_after = async |days: u64| {
            let then = now.plus(std::time::Duration::from_secs(days * 24 * 3600));
            let config = ValidatorRetentionConfig::default();
            let due = store.due_deletions(&config, bounds(), then, &[]).await.unwrap();
            let pace = PaceSettings::default().pace();
            sweep(&store.writer(), &due, pace, &TestClock::new(then))
                .await
                .unwrap();
            store.gathered_count().await.unwrap()
        };
        assert_eq!(sweep_after(6).await, 3);
        assert_eq!(sweep_after(8).await, 0);
        assert!(store.page_cursors().await.unwrap().is_empty());
        assert_eq!(amounts(PageSource::Miner(miner)).await, ReceiptTally::default());
    }
}

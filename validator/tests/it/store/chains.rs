//! The chain that blocks and receipts belong to.

use muster_chain::BlockNumber;
use muster_protocol::receipt::OfferedReceipt;
use muster_protocol::{ReceiptPayload, Signature};
use muster_scoring::Scores;
use muster_validator::store::{CycleState, IssuedReceipt, Store, StoredCycle};

use super::{NOW, each, finished};

#[tokio::test]
async fn the_blocks_of_another_chain_are_not_ours() {
    for (test, store) in each().await {
        let cycle = StoredCycle {
            number: 22,
            first_block: 11,
            last_block: 21,
            state: CycleState::Kept,
            scores: Scores::default(),
            snapshot: None,
            weights: Vec::new(),
            reveal: None,
            on_its_way: None,
            error: None,
            at_block: 30,
            changed_at: NOW(1),
        };
        assert!(store.begin_cycle(&cycle, None).await.unwrap());
        let other = Store::with_pool(test.pool.clone()).await.unwrap();
        assert_eq!(
            other.settled_through().await.unwrap(),
            Some(BlockNumber(21)),
            "the last chain is meant until one answers"
        );
        other
            .note_chain("another chain", BlockNumber(30), NOW(2))
            .await
            .unwrap();
        assert_eq!(other.settled_through().await.unwrap(), None);
        assert_eq!(other.cycle(BlockNumber(21)).await.unwrap(), None);
        assert_eq!(other.cycles(9).await.unwrap(), []);
        assert!(
            other.begin_cycle(&cycle, None).await.unwrap(),
            "its own cycle of that block"
        );
        assert_eq!(store.settled_through().await.unwrap(), Some(BlockNumber(21)));
    }
}

#[tokio::test]
async fn receipts_of_a_time_without_a_chain_count_once_it_answers() {
    for (test, _) in each().await {
        let payload = |attempt| ReceiptPayload::Finished(finished(attempt, 2, "3.000000"));
        let receipt = |attempt| IssuedReceipt {
            offered: OfferedReceipt {
                payload: payload(attempt),
                validator_signature: Signature::from_bytes([3; 64]),
            },
            miner_signature: None,
        };
        let all = async |store: &Store| {
            let (first, last) = (BlockNumber(0), BlockNumber(u64::MAX));
            let paid = store.finished_between(first, last, &mut |_| true).await;
            paid.unwrap().len()
        };
        let store = Store::with_pool(test.pool.clone()).await.unwrap();
        store.keep_receipt(&receipt(1), None).await.unwrap();
        assert_eq!(all(&store).await, 0);
        store
            .note_chain("another chain", BlockNumber(5), NOW(2))
            .await
            .unwrap();
        assert_eq!(
            all(&store).await,
            0,
            "it was written for the chain that was known"
        );

        let store = Store::with_pool(test.pool.clone()).await.unwrap();
        store.keep_receipt(&receipt(2), None).await.unwrap();
        store.note_chain("chain", BlockNumber(7), NOW(3)).await.unwrap();
        // A writer that read the head before the chain answered.
        store.keep_receipt(&receipt(3), None).await.unwrap();
        let at = async |block| {
            store
                .finished_between(BlockNumber(block), BlockNumber(block), &mut |_| true)
                .await
                .unwrap()
                .len()
        };
        assert_eq!((at(7).await, all(&store).await), (2, 2), "{}", test.engine);
        store
            .note_chain("another chain", BlockNumber(9), NOW(4))
            .await
            .unwrap();
        assert_eq!((at(9).await, all(&store).await), (1, 1), "{}", test.engine);
    }
}

//! Scored cycles, from their weights to the reveal of their commit.

use muster_chain::weights_commit::{CommitPosition, Revealer};
use muster_chain::{BlockNumber, PendingReveal};
use muster_protocol::Digest;
use muster_scoring::Scores;
use muster_store::StoreError;
use muster_validator::store::{CycleState, Store, StoredCycle};

use super::{NOW, each, refuse_rows, snapshot_text};

#[tokio::test]
async fn a_cycle_is_settled_once() {
    for (_test, store) in each().await {
        let cycle = StoredCycle {
            number: 3,
            first_block: 66,
            last_block: 87,
            state: CycleState::Pending,
            scores: Scores::default(),
            snapshot: None,
            weights: vec![(2, 65_535)],
            reveal: None,
            on_its_way: None,
            error: None,
            at_block: 99,
            changed_at: NOW(5),
        };
        assert!(store.begin_cycle(&cycle, None).await.unwrap());
        assert_eq!(store.settled_through().await.unwrap(), None, "it is pending");
        assert!(
            !store
                .begin_cycle(
                    &StoredCycle {
                        weights: vec![],
                        ..cycle.clone()
                    },
                    None
                )
                .await
                .unwrap()
        );
        assert_eq!(store.cycle(BlockNumber(87)).await.unwrap(), Some(cycle));
        store
            .note_cycle(
                87,
                CycleState::Pending,
                Some("no permit"),
                BlockNumber(100),
                NOW(6),
            )
            .await
            .unwrap();
        assert_eq!(
            store.cycles(9).await.unwrap()[0].error.as_deref(),
            Some("no permit")
        );
        assert_eq!(
            store.miss_cycles_before(BlockNumber(87), NOW(7)).await.unwrap(),
            0
        );
        store
            .note_cycle(87, CycleState::Set, None, BlockNumber(101), NOW(7))
            .await
            .unwrap();
        assert_eq!(
            store.miss_cycles_before(BlockNumber(200), NOW(8)).await.unwrap(),
            0,
            "it is set"
        );
        assert_eq!(store.settled_through().await.unwrap(), Some(BlockNumber(87)));
        store
            .note_cycle(87, CycleState::Missed, None, BlockNumber(102), NOW(9))
            .await
            .unwrap();
        let settled = &store.cycles(9).await.unwrap()[0];
        assert_eq!(
            (settled.state, settled.at_block, settled.error.as_deref()),
            (CycleState::Set, 101, None)
        );
    }
}

fn cycle(last_block: u64, reveal: Option<PendingReveal>) -> StoredCycle {
    StoredCycle {
        number: last_block + 1,
        first_block: last_block - 10,
        last_block,
        state: CycleState::Pending,
        scores: Scores::default(),
        snapshot: None,
        weights: vec![(2, 65_535)],
        reveal,
        on_its_way: None,
        error: None,
        at_block: last_block + 5,
        changed_at: NOW(5),
    }
}

#[tokio::test]
async fn the_secret_of_a_commit_is_kept_until_the_reveal_and_lost_work_is_scored_again() {
    for (test, store) in each().await {
        let salted = PendingReveal {
            by: Revealer::Us { salt: [7; 8] },
            weights: vec![(2, 65_535)],
            version_key: 3,
            committed: None,
        };
        assert!(store.begin_cycle(&cycle(10, None), None).await.unwrap());
        // Stored before the commit is submitted.
        let plan = StoredCycle {
            weights: vec![(2, 9)],
            on_its_way: Some(79),
            ..cycle(10, Some(salted.clone()))
        };
        store.plan_cycle(&plan).await.unwrap();
        let planned = store.cycle(BlockNumber(10)).await.unwrap().unwrap();
        assert_eq!(
            (&planned.reveal, &planned.weights, planned.on_its_way),
            (&Some(salted.clone()), &vec![(2, 9)], Some(79))
        );
        assert_eq!(
            store.cycles_in(CycleState::Pending).await.unwrap(),
            std::slice::from_ref(&planned)
        );

        // Committed; a later process finds the secret that reveals it.
        let committed = CommitPosition {
            block: 16,
            epoch: Some(1),
        };
        let mut moved = planned;
        moved.state = CycleState::Committed;
        moved.on_its_way = None;
        moved.reveal = Some(PendingReveal {
            committed: Some(committed),
            ..salted
        });
        store
            .move_cycle(&moved, CycleState::Pending, BlockNumber(16), NOW(6))
            .await
            .unwrap();
        store.plan_cycle(&cycle(10, None)).await.unwrap();
        let later = Store::open(&test.url).await.unwrap();
        let found = later.cycles_in(CycleState::Committed).await.unwrap();
        assert_eq!(found.len(), 1, "{}", test.engine);
        assert_eq!(
            (&found[0].reveal, found[0].at_block),
            (&moved.reveal, 16),
            "a plan that came late changes nothing"
        );
        assert_eq!(later.settled_through().await.unwrap(), Some(BlockNumber(10)));
        // A cycle is moved only from the state that it is in.
        moved.state = CycleState::Set;
        later
            .move_cycle(&moved, CycleState::Pending, BlockNumber(20), NOW(7))
            .await
            .unwrap();
        assert_eq!(
            later.cycle(BlockNumber(10)).await.unwrap().unwrap().state,
            CycleState::Committed
        );

        // A lost commit settles nothing, and its work is scored again with the next cycle.
        moved.state = CycleState::Expired;
        later
            .move_cycle(&moved, CycleState::Committed, BlockNumber(30), NOW(8))
            .await
            .unwrap();
        assert_eq!(later.settled_through().await.unwrap(), None);
        assert_eq!(later.scored_through().await.unwrap(), Some(BlockNumber(10)));
        assert!(later.begin_cycle(&cycle(21, None), None).await.unwrap());
        assert!(later.cycles_in(CycleState::Expired).await.unwrap().is_empty());
        assert_eq!(
            later.cycle(BlockNumber(10)).await.unwrap().unwrap().state,
            CycleState::Missed
        );

        // The chain reveals a timelocked commit, so only its round is kept.
        let timelocked = PendingReveal {
            by: Revealer::Chain { round: 77 },
            weights: vec![(2, 65_535)],
            version_key: 3,
            committed: Some(committed),
        };
        assert!(
            later
                .begin_cycle(&cycle(32, Some(timelocked.clone())), None)
                .await
                .unwrap()
        );
        assert_eq!(
            later.cycle(BlockNumber(32)).await.unwrap().unwrap().reveal,
            Some(timelocked)
        );
        later.close().await;
    }
}

#[tokio::test]
async fn a_snapshot_is_stored_with_its_cycle_and_found_by_its_digest() {
    for (test, store) in each().await {
        store.note_chain("chain", BlockNumber(1), NOW(1)).await.unwrap();
        assert_eq!(store.genesis(), "chain");
        let body = "{\"format\":\"muster/scoring-snapshot/2\"}";
        let digest = Digest::of(body.as_bytes());
        let cycle = |last_block, state, snapshot| StoredCycle {
            number: last_block,
            first_block: last_block,
            last_block,
            state,
            scores: Scores::default(),
            snapshot,
            weights: vec![],
            reveal: None,
            on_its_way: None,
            error: None,
            at_block: last_block,
            changed_at: NOW(1),
        };
        let scored = cycle(10, CycleState::Set, Some(digest));
        assert!(store.begin_cycle(&scored, Some(body.to_owned())).await.unwrap());
        // Two cycles of one snapshot share its text.
        assert!(
            store
                .begin_cycle(&cycle(11, CycleState::Kept, Some(digest)), Some(body.to_owned()))
                .await
                .unwrap()
        );
        assert!(
            store
                .begin_cycle(&cycle(12, CycleState::Pending, None), None)
                .await
                .unwrap()
        );
        assert_eq!(snapshot_text(&store, digest).await.as_deref(), Some(body));
        assert_eq!(snapshot_text(&store, Digest::of(b"")).await, None);
        let before = store.settled_before(BlockNumber(12), 5).await.unwrap();
        let numbers: Vec<_> = before
            .iter()
            .map(|cycle| (cycle.number, cycle.snapshot))
            .collect();
        assert_eq!(
            numbers,
            [(11, Some(digest)), (10, Some(digest))],
            "{}",
            test.engine
        );
        assert_eq!(
            store.settled_before(BlockNumber(13), 1).await.unwrap().len(),
            1,
            "a pending one is not settled"
        );
        store.close().await;
    }
}

#[tokio::test]
async fn a_snapshot_of_many_pieces_is_read_back_and_a_refused_value_leaves_no_cycle() {
    for (test, store) in each().await {
        store.note_chain("chain", BlockNumber(1), NOW(1)).await.unwrap();
        let pieces: Vec<String> = (0..5).map(|piece| piece.to_string().repeat(1_000)).collect();
        let digest = Digest::of(pieces.concat().as_bytes());
        let scored = |last_block| StoredCycle {
            number: last_block,
            first_block: last_block,
            last_block,
            state: CycleState::Pending,
            scores: Scores::default(),
            snapshot: Some(digest),
            weights: vec![],
            reveal: None,
            on_its_way: None,
            error: None,
            at_block: last_block,
            changed_at: NOW(1),
        };
        assert!(store.begin_cycle(&scored(10), pieces.clone()).await.unwrap());
        assert_eq!(snapshot_text(&store, digest).await, Some(pieces.concat()));
        // The engine itself refuses what is longer than a field may be; the schema of a test does so earlier.
        refuse_rows(&test.pool, test.engine, "cycles").await;
        let refused = store.begin_cycle(&scored(11), None).await.unwrap_err();
        assert!(refused.is_refused_value(), "{}: {refused:?}", test.engine);
        assert_eq!(store.cycle(BlockNumber(11)).await.unwrap(), None);
        assert!(!StoreError::Superseded.is_refused_value());
        // The store goes on.
        store.miss_cycles_before(BlockNumber(11), NOW(2)).await.unwrap();
        let missed = store.cycle(BlockNumber(10)).await.unwrap().unwrap();
        assert_eq!(missed.state, CycleState::Missed, "{}", test.engine);
    }
}

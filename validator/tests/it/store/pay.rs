//! Inputs of pay and votes in the store, on every database at hand: how long the same work took, main hotkeys, burns,
//! and the statements that were seen.

use muster_chain::{BlockNumber, Epoch};
use muster_job_messages::pay::WorkedAttempt;
use muster_protocol::{Digest, Rao, ValidatorKey};
use muster_routing::AttemptMark;
use muster_scoring::NamedMain;
use muster_validator::store::{
    AttemptChange, BlockRun, BurnedTransfer, EndedWork, SeenStatement, Store, StoredAttempt,
};

use super::{NOW, attempt, beginning, each, hotkey, job, miner, request};

/// Stores an attempt that ended at a second, and worked for as many microseconds as its number, if it worked.
async fn ended(store: &Store, number: u128, at: i64, work: Option<Digest>) -> StoredAttempt {
    let (one, frame) = request(job(number), i64::try_from(number).unwrap());
    store.admit(&one, &frame, NOW(1), None).await.unwrap();
    let begun = attempt(number, 1);
    store
        .begin_attempt(one.uuid, &beginning(begun.clone()))
        .await
        .unwrap();
    let cancelled = muster_protocol::job::Event::Cancelled("enough".to_owned());
    let machine = begun.machine.clone().apply(cancelled, NOW(at)).unwrap().0;
    let worked = work.map(|work| EndedWork {
        work,
        attempt: WorkedAttempt {
            coldkey: hotkey(9),
            took_us: u64::try_from(number).unwrap(),
        },
    });
    let change = AttemptChange {
        worked,
        job: one.uuid,
        attempt: begun.id,
        machine,
        mark: Some(AttemptMark::Excuse),
        receipts: vec![],
        reports: vec![],
        block: None,
        now: NOW(at),
    };
    store.save(&change).await.unwrap();
    begun
}

#[tokio::test]
async fn the_newest_twenty_attempts_at_the_same_work_are_read_newest_first() {
    for (test, store) in each().await {
        let (same, other) = (Digest::of(b"same"), Digest::of(b"other"));
        for number in 1..=25 {
            ended(&store, number, 100 + i64::try_from(number).unwrap(), Some(same)).await;
        }
        ended(&store, 30, 900, Some(other)).await;
        ended(&store, 31, 901, None).await;
        let times: Vec<_> = store
            .attempts_at(same)
            .await
            .unwrap()
            .iter()
            .map(|attempt| attempt.took_us)
            .collect();
        assert_eq!(times, (6..=25).rev().collect::<Vec<_>>(), "{}", test.engine);
        let others = store.attempts_at(other).await.unwrap();
        let [only] = others.as_slice() else {
            panic!("one attempt: {others:?}");
        };
        assert_eq!((only.coldkey, only.took_us), (hotkey(9), 30));
        assert_eq!(store.attempts_at(Digest::of(b"none")).await.unwrap(), []);
        // The index finds them, however many attempts there are. PostgreSQL's plan depends on the size of the table.
        if test.engine == "sqlite" {
            let statement = "EXPLAIN QUERY PLAN SELECT coldkey, worked_us FROM attempts \
                             WHERE work = 'x' AND work IS NOT NULL ORDER BY ended_at DESC, attempt_id LIMIT 20";
            let rows = sqlx::query(statement).fetch_all(&test.pool).await.unwrap();
            let text: Vec<String> = rows
                .iter()
                .map(|row| sqlx::Row::try_get(row, "detail").unwrap())
                .collect();
            assert!(text.join(" ").contains("attempts_of_work"), "{text:?}");
        }
    }
}

#[tokio::test]
async fn an_excuse_is_forgiven_once() {
    for (_test, store) in each().await {
        let begun = ended(&store, 1, 77, None).await;
        assert_eq!(store.forgive_excuse(begun.id).await.unwrap(), Some(NOW(77)));
        assert_eq!(store.forgive_excuse(begun.id).await.unwrap(), None);
    }
}

#[tokio::test]
async fn the_first_answer_of_a_miner_in_a_cycle_is_its_main_hotkey() {
    for (_test, store) in each().await {
        let named = |of, main| NamedMain {
            miner: miner(of),
            main: hotkey(main),
        };
        let (first, second) = (Epoch(11), Epoch(22));
        store
            .put_main_hotkeys(first, &[named(1, 1), named(2, 1)], NOW(1))
            .await
            .unwrap();
        store
            .put_main_hotkeys(first, &[named(1, 5)], NOW(2))
            .await
            .unwrap();
        store
            .put_main_hotkeys(second, &[named(1, 5)], NOW(3))
            .await
            .unwrap();
        store.put_main_hotkeys(second, &[], NOW(3)).await.unwrap();
        let mut answers = store.main_hotkeys_of(first).await.unwrap();
        answers.sort_by_key(|answer| answer.miner);
        assert_eq!(answers, [named(1, 1), named(2, 1)]);
        assert_eq!(store.main_hotkeys_of(second).await.unwrap(), [named(1, 5)]);
        store.note_chain("two", BlockNumber(1), NOW(1)).await.unwrap();
        assert_eq!(store.main_hotkeys_of(first).await.unwrap(), [], "another chain");
    }
}

#[tokio::test]
async fn burns_are_known_for_a_run_of_blocks_and_forgotten_outside_of_it() {
    for (_test, store) in each().await {
        let run = |first, last| BlockRun {
            first: BlockNumber(first),
            last: BlockNumber(last),
        };
        let burned = |block, payer, rao| BurnedTransfer {
            block: BlockNumber(block),
            payer: hotkey(payer),
            amount: Rao(rao),
        };
        let account = hotkey(50);
        assert_eq!(store.burns_read(account).await.unwrap(), None);
        store
            .put_burns(account, run(5, 20), &[burned(5, 1, 7), burned(20, 1, 8)], NOW(1))
            .await
            .unwrap();
        // The same blocks again, and further ones: nothing counts twice.
        store
            .put_burns(account, run(5, 30), &[burned(20, 1, 8), burned(30, 2, 9)], NOW(2))
            .await
            .unwrap();
        assert_eq!(store.burns_read(account).await.unwrap(), Some(run(5, 30)));
        let all = [burned(5, 1, 7), burned(20, 1, 8), burned(30, 2, 9)];
        assert_eq!(store.burns_in(account, run(1, 40)).await.unwrap(), all);
        assert_eq!(store.burns_in(account, run(6, 29)).await.unwrap(), all[1..2]);
        assert_eq!(
            store.burns_in(hotkey(51), run(1, 40)).await.unwrap(),
            [],
            "another account"
        );
        store.put_burns(account, run(21, 40), &[], NOW(3)).await.unwrap();
        assert_eq!(store.burns_in(account, run(1, 40)).await.unwrap(), all[2..]);
    }
}

#[tokio::test]
async fn two_statements_of_one_validator_are_a_contradiction_and_take_its_vote() {
    for (_test, store) in each().await {
        let [liar, honest, peer] = [1, 2, 3].map(|seed| ValidatorKey(hotkey(seed)));
        let cycle = Epoch(361);
        let seen = |validator, body: &str, source| SeenStatement {
            validator,
            cycle,
            digest: Digest::of(body.as_bytes()),
            body: body.to_owned(),
            source,
        };
        for (validator, body) in [(liar, "a"), (honest, "h")] {
            let stated = muster_scoring::CapacityStatement {
                validator,
                cycle: cycle.0,
                rows: vec![],
            };
            store.put_statement(&stated, body, NOW(1)).await.unwrap();
            let first = seen(validator, body, None);
            assert!(!store.put_sighting(&first, NOW(1)).await.unwrap());
            assert!(
                !store.put_sighting(&first, NOW(2)).await.unwrap(),
                "the same one again"
            );
        }
        assert_eq!(store.statements_for(cycle).await.unwrap().len(), 2);
        assert_eq!(store.contradictions(9).await.unwrap(), []);
        let second = seen(liar, "b", Some(peer));
        assert!(store.put_sighting(&second, NOW(5)).await.unwrap());
        assert!(
            !store
                .put_sighting(&seen(liar, "c", Some(peer)), NOW(6))
                .await
                .unwrap()
        );
        let kept = store.sightings_of(liar, cycle).await.unwrap();
        assert_eq!(
            kept,
            [seen(liar, "a", None), second.clone()],
            "a third one adds nothing"
        );
        assert_eq!(store.sightings_in(cycle).await.unwrap().len(), 3);
        assert_eq!(store.sighting(second.digest).await.unwrap().as_deref(), Some("b"));
        let found = store.contradictions(9).await.unwrap();
        let [found] = found.as_slice() else {
            panic!("one contradiction: {found:?}");
        };
        assert_eq!(
            (found.validator, found.cycle, found.found_at),
            (liar, 361, NOW(5))
        );
        let mut digests = found.digests.clone();
        digests.sort();
        let mut expected = vec![Digest::of(b"a"), Digest::of(b"b")];
        expected.sort();
        assert_eq!(digests, expected);
        let votes = store.statements_for(cycle).await.unwrap();
        assert_eq!(
            votes.iter().map(|vote| vote.validator).collect::<Vec<_>>(),
            [honest]
        );
    }
}

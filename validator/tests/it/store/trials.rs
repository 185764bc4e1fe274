//! The records of miners after a restart, with their trials.

use std::time::Duration;

use muster_protocol::job::Event;
use muster_protocol::status::{HordeFailureReason, ParticipantType};
use muster_protocol::wire::facilitator::HordeFailureDetails;
use muster_routing::{AttemptMark, LedgerWindows};
use muster_validator::store::{AttemptChange, Store, restore_ledger};

use super::{NOW, attempt, beginning, each, job, miner, request};

const MINUTES: fn(u64) -> Duration = |minutes| Duration::from_secs(60 * minutes);

/// Stores a job's only attempt, at miner 2, as failed at `at` with this mark.
async fn fail(store: &Store, number: u128, mark: AttemptMark, at: i64) {
    let (request, frame) = request(job(number), i64::try_from(number).unwrap());
    store.admit(&request, &frame, NOW(1), None).await.unwrap();
    let begun = attempt(number, 1);
    store
        .begin_attempt(request.uuid, &beginning(begun.clone()))
        .await
        .unwrap();
    let (machine, _) = begun.machine.clone().apply(Event::Connected, NOW(11)).unwrap();
    let (machine, _) = machine.apply(Event::Accepted, NOW(11)).unwrap();
    let lost = HordeFailureDetails {
        reported_by: ParticipantType::Miner,
        reason: HordeFailureReason::ExecutorDisconnected,
        message: String::new(),
        context: None,
    };
    let (machine, _) = machine.apply(Event::HordeFailed(lost), NOW(at)).unwrap();
    let change = AttemptChange {
        worked: None,
        job: request.uuid,
        attempt: begun.id,
        machine,
        mark: Some(mark),
        receipts: vec![],
        reports: vec![],
        block: None,
        now: NOW(at),
    };
    store.save(&change).await.unwrap();
}

#[tokio::test]
async fn a_bench_and_a_suspicion_outlive_a_restart_and_a_passed_trial_ends_the_bench() {
    let windows = LedgerWindows {
        record: MINUTES(10),
        given: MINUTES(60),
        manifest: MINUTES(5),
        full: MINUTES(1),
        warm: MINUTES(60),
    };
    for (_test, store) in each().await {
        let restored = async || restore_ledger(&store, windows, NOW(20)).await.unwrap();
        fail(&store, 1, AttemptMark::Suspect, 12).await;
        let (suspect, known) = (restored().await, [miner(2)]);
        assert_eq!(suspect.trials.next_due(NOW(20)), Some(NOW(12)));
        assert!(!suspect.trials.is_last_chance(miner(2)));
        fail(&store, 2, AttemptMark::FailedTrial, 13).await;
        let benched = restored().await;
        assert_eq!(
            benched.trials.next_due(NOW(20)),
            Some(NOW(133)),
            "two failures, two minutes"
        );
        let stats = async || {
            let ledger = restored().await.ledger;
            ledger.stats(known, &[].into(), NOW(20))[&miner(2)].clone()
        };
        assert_eq!(stats().await.failed_trial_until, Some(NOW(613)));
        store.end_bench(miner(1), NOW(0)).await.unwrap();
        store.end_bench(miner(2), NOW(14)).await.unwrap();
        assert!(
            stats().await.failed_trial_until.is_some(),
            "another miner, too late"
        );
        store.end_bench(miner(2), NOW(13)).await.unwrap();
        let freed = stats().await;
        assert_eq!((freed.failed_trial_until, freed.incidents), (None, 1));
    }
}

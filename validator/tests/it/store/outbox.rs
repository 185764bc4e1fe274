//! New jobs and the outbox of status updates.

use muster_job_queue::{QueueAccount, QueueTicket, WaitingJob};
use muster_protocol::JobStatus;
use muster_protocol::job::{Outcome, Priority};
use muster_routing::admission::PriorRequest;
use muster_validator::store::{JobAdmission, StatusUpdate, Store};
use sqlx::Row as _;

use super::{NOW, attempt, beginning, each, job, rejected, request};

/// The oldest update that is not acknowledged.
async fn next_update(store: &Store) -> Option<StatusUpdate> {
    store.next_updates(None, 1).await.unwrap().pop()
}

#[tokio::test]
async fn a_job_is_taken_with_its_first_attempt_in_one_write() {
    for (test, store) in each().await {
        let (one, frame) = request(job(1), 5);
        let first = beginning(attempt(1, 1));
        let before = store.tally();
        let taken = store.admit(&one, &frame, NOW(1), Some(&first)).await.unwrap();
        assert_eq!(taken, JobAdmission::New, "{}", test.engine);
        assert_eq!(store.tally().commits, before.commits + 1);
        assert_eq!(
            store.last_status(one.uuid).await.unwrap(),
            Some(JobStatus::Received)
        );
        let kept = store.job(one.uuid).await.unwrap().unwrap().attempts;
        assert_eq!(kept.len(), 1);
        // A process that resumes the attempt must assume that the miner has the offer.
        assert_eq!(kept[0].machine.state().name(), "offered");
        assert_eq!(
            (kept[0].id, kept[0].miner),
            (first.attempt.id, first.attempt.miner)
        );
        assert_eq!(
            store.receipts_of(first.attempt.id).await.unwrap(),
            std::slice::from_ref(&first.receipt)
        );
        assert_eq!(store.routes_of(one.uuid).await.unwrap().len(), 1);
        assert_eq!(next_update(&store).await.unwrap().status, JobStatus::Received);
        // Admitted again, with a miner that was found meanwhile: nothing is written.
        let mut second = first.clone();
        second.attempt.uid = muster_chain::Uid(first.attempt.uid.0 + 1);
        let taken = store.admit(&one, &frame, NOW(2), Some(&second)).await.unwrap();
        assert_eq!(taken, JobAdmission::Known(PriorRequest::Job), "{}", test.engine);
        let (two, _) = request(job(2), 5);
        let elsewhere = beginning(attempt(2, 1));
        let taken = store.admit(&two, &frame, NOW(2), Some(&elsewhere)).await.unwrap();
        assert_eq!(
            taken,
            JobAdmission::Known(PriorRequest::Signature),
            "{}",
            test.engine
        );
        assert!(store.job(two.uuid).await.unwrap().is_none());
        assert_eq!(store.job(one.uuid).await.unwrap().unwrap().attempts, kept);
        assert_eq!(store.updates_waiting().await.unwrap(), 1);
        let again = store.begin_attempt(one.uuid, &second).await;
        assert!(again.is_err(), "an attempt's id is its own");
    }
}

/// Such a job was neither stored nor answered, or stopped the validator when its turn in the queue came.
#[tokio::test]
async fn a_job_with_the_id_of_another_jobs_attempt_is_known_and_can_be_refused() {
    for (test, store) in each().await {
        let (one, frame) = request(job(1), 5);
        let first = beginning(attempt(2, 1));
        store.admit(&one, &frame, NOW(1), Some(&first)).await.unwrap();
        let (two, frame) = request(job(2), 6);
        let known = JobAdmission::Known(PriorRequest::Attempt);
        let own = beginning(attempt(2, 1));
        let taken = store.admit(&two, &frame, NOW(2), Some(&own)).await.unwrap();
        assert_eq!(taken, known, "{}", test.engine);
        let waiting = WaitingJob {
            job: two.uuid,
            account: QueueAccount::new("alice"),
            line: two.executor_class.into(),
            priority: Priority::default(),
            ticket: QueueTicket(1),
            since: NOW(2),
            deadline: NOW(9),
        };
        let taken = store.admit_waiting(&two, &frame, &waiting).await.unwrap();
        assert_eq!(taken, known, "{}", test.engine);
        assert!(store.job(two.uuid).await.unwrap().is_none());
        store.refuse(two.uuid, &frame, &rejected(), NOW(3)).await.unwrap();
        assert_eq!(
            store.last_status(two.uuid).await.unwrap(),
            Some(JobStatus::Rejected),
            "{}",
            test.engine
        );
    }
}

#[tokio::test]
async fn jobs_that_come_together_are_taken_with_few_commits() {
    for (test, store) in each().await {
        let jobs: Vec<_> = (1..=40)
            .map(|n| request(job(n), i64::try_from(n).unwrap()))
            .collect();
        let before = store.tally();
        let taking = jobs
            .iter()
            .map(|(request, frame)| store.admit(request, frame, NOW(1), None));
        for taken in futures_util::future::join_all(taking).await {
            assert_eq!(taken.unwrap(), JobAdmission::New, "{}", test.engine);
        }
        let after = store.tally();
        assert_eq!(after.writes - before.writes, 40);
        assert!(after.commits - before.commits < 40, "{}: {after:?}", test.engine);
        let updates = store.next_updates(None, 64).await.unwrap();
        assert_eq!(updates.len(), 40);
        assert!(updates.is_sorted_by(|one, two| one.sequence < two.sequence));
    }
}

#[tokio::test]
async fn updates_go_out_in_order_until_acknowledged_and_never_backwards() {
    for (test, store) in each().await {
        let (one, frame) = request(job(1), 5);
        let mut writes = store.outbox_writes();
        store.admit(&one, &frame, NOW(1), None).await.unwrap();
        assert!(writes.has_changed().unwrap());
        writes.borrow_and_update();
        let outcome = rejected();
        store
            .close_job(one.uuid, &outcome, &outcome.metadata(), NOW(2))
            .await
            .unwrap();
        store
            .close_job(one.uuid, &outcome, &outcome.metadata(), NOW(3))
            .await
            .unwrap();
        assert_eq!(
            store.updates_waiting().await.unwrap(),
            2,
            "a terminal status is told once"
        );
        let first = next_update(&store).await.unwrap();
        assert_eq!((first.job, first.status), (one.uuid, JobStatus::Received));
        assert_eq!(
            next_update(&store).await.unwrap(),
            first,
            "until it is acknowledged"
        );
        store
            .acknowledge(&[(first.sequence, None)], NOW(4))
            .await
            .unwrap();
        let second = next_update(&store).await.unwrap();
        assert_eq!(second.status, JobStatus::Rejected);
        assert_eq!(
            second.metadata.unwrap().job_rejection_details.unwrap().message,
            "none"
        );
        store
            .acknowledge(&[(second.sequence, Some("job.not_found".to_owned()))], NOW(5))
            .await
            .unwrap();
        assert!(next_update(&store).await.is_none());
        let kept = sqlx::query("SELECT COUNT(*) AS kept FROM outbox WHERE metadata IS NOT NULL")
            .fetch_one(&test.pool)
            .await
            .unwrap();
        assert_eq!(kept.get::<i64, _>("kept"), 0, "a result is not kept twice");
        store.repeat(one.uuid, Some(&outcome.metadata())).await.unwrap();
        let again = next_update(&store).await.unwrap();
        assert!(
            again.sequence > second.sequence,
            "a reader that has passed it sees it"
        );
        assert_eq!(again.metadata, Some(outcome.metadata()));
        store.repeat(one.uuid, Some(&outcome.metadata())).await.unwrap();
        assert_eq!(
            next_update(&store).await.unwrap(),
            again,
            "it is on its way anyhow"
        );
        assert!(store.open_jobs().await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn a_long_result_leaves_the_outbox_by_itself() {
    for (test, store) in each().await {
        for n in 1..=3 {
            let (one, frame) = request(job(n), i64::try_from(n).unwrap());
            store.admit(&one, &frame, NOW(1), None).await.unwrap();
            let Outcome::Rejected(mut details) = rejected() else {
                panic!("it is a rejection");
            };
            details.message = "long".repeat(20_000);
            let outcome = Outcome::Rejected(details);
            store
                .close_job(one.uuid, &outcome, &outcome.metadata(), NOW(2))
                .await
                .unwrap();
        }
        // None of them is answered yet: a long update does not hide the updates after it.
        let (mut seen, mut last) = (Vec::new(), None);
        loop {
            let updates = store.next_updates(last, 64).await.unwrap();
            let Some(newest) = updates.last() else { break };
            last = Some(newest.sequence);
            seen.push(updates.len());
            for update in &updates {
                let long = update
                    .metadata
                    .as_ref()
                    .is_some_and(|metadata| metadata.job_rejection_details.is_some());
                assert_eq!(long, update.status == JobStatus::Rejected, "{}", test.engine);
            }
        }
        assert_eq!(seen, [1; 6], "{}", test.engine);
        assert_eq!(store.updates_waiting().await.unwrap(), 6);
    }
}

#[tokio::test]
async fn sequence_numbers_go_on_after_a_restart() {
    for (test, store) in each().await {
        let (one, frame) = request(job(1), 5);
        store.admit(&one, &frame, NOW(1), None).await.unwrap();
        let again = Store::open(&test.url).await.unwrap();
        let (two, frame) = request(job(2), 6);
        again.admit(&two, &frame, NOW(2), None).await.unwrap();
        let first = next_update(&again).await.unwrap();
        again
            .acknowledge(&[(first.sequence, None)], NOW(3))
            .await
            .unwrap();
        let second = next_update(&again).await.unwrap();
        assert_eq!((first.job, second.job), (job(1), job(2)), "{}", test.engine);
        assert!(second.sequence > first.sequence);
        again.close().await;
    }
}

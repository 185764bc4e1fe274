//! Creating jobs, updating and cancelling them.

use super::*;

#[tokio::test]
async fn a_signature_names_one_job_and_what_is_stored_comes_back_whole() {
    for (test, store) in engines().await {
        let validator = validator_key("Validator");
        let first = job("User", 1);
        assert_eq!(store.find_job_by_signature(&first.signature).await.unwrap(), None);
        assert_eq!(create(&store, validator, &first, at(0)).await, first.uuid);
        let mut again = first.clone().into_inner();
        again.uuid = JobId::from_uuid(uuid::Uuid::new_v4());
        let again = verify_job(&again).unwrap();
        assert_eq!(create(&store, validator, &again, at(1)).await, first.uuid);
        assert_eq!(store.job(again.uuid).await.unwrap(), None);

        // A second process reads the same.
        let other = Store::open(&test.url).await.unwrap();
        let stored = other.job(first.uuid).await.unwrap().unwrap();
        assert_eq!(stored.request, *first);
        assert_eq!(stored.request.env.keys().collect::<Vec<_>>(), ["B", "A"]);
        assert_eq!(stored.account, account("User"));
        assert_eq!(
            (stored.history.len(), stored.history.visible_status()),
            (1, JobStatus::Sent)
        );
    }
}

#[tokio::test]
async fn updates_are_taken_from_the_holder_in_order_only() {
    for (_test, store) in engines().await {
        let validator = validator_key("Validator");
        let job = job("User", 1);
        create(&store, validator, &job, at(0)).await;
        assert_eq!(store.unanswered_jobs(validator).await.unwrap(), [job.uuid]);
        let stranger = store
            .record(
                validator_key("Other"),
                &update(job.uuid, JobStatus::Received),
                at(1),
            )
            .await;
        assert_eq!(stranger.unwrap(), UpdateOutcome::NoSuchJob);
        assert_eq!(store.unanswered_jobs(validator).await.unwrap(), [job.uuid]);

        let record = async |status| {
            store
                .record(validator, &update(job.uuid, status), at(2))
                .await
                .unwrap()
        };
        assert_eq!(record(JobStatus::Accepted).await, UpdateOutcome::Recorded);
        assert!(store.unanswered_jobs(validator).await.unwrap().is_empty());
        let repeated = UpdateOutcome::Rejected(UpdateRejection::Repeated(JobStatus::Accepted));
        assert_eq!(record(JobStatus::Accepted).await, repeated);
        assert!(matches!(
            record(JobStatus::Received).await,
            UpdateOutcome::Rejected(UpdateRejection::Backwards { .. })
        ));
        // Unknown statuses are stored, up to the limit.
        for n in 0..100 {
            let mut odd = update(job.uuid, JobStatus::Unknown);
            odd.metadata = Some(muster_protocol::wire::decode(&format!("{{\"n\":\"\\u0000{n}\"}}")).unwrap());
            store.record(validator, &odd, at(3)).await.unwrap();
        }
        let stored = store.job(job.uuid).await.unwrap().unwrap();
        assert_eq!(
            (stored.history.len(), stored.history.visible_status()),
            (64, JobStatus::Accepted)
        );
    }
}

#[tokio::test]
async fn updates_that_race_leave_one_history() {
    for (test, store) in engines().await {
        let validator = validator_key("Validator");
        let job = job("User", 1);
        create(&store, validator, &job, at(0)).await;
        let other = Store::open(&test.url).await.unwrap();
        let received = update(job.uuid, JobStatus::Received);
        let (a, b, c) = tokio::join!(
            store.record(validator, &received, at(1)),
            other.record(validator, &received, at(1)),
            store.record(validator, &received, at(1)),
        );
        let taken = [a, b, c]
            .into_iter()
            .filter(|recorded| matches!(recorded, Ok(UpdateOutcome::Recorded)))
            .count();
        assert_eq!(taken, 1, "{}", test.engine);
        assert_eq!(store.job(job.uuid).await.unwrap().unwrap().history.len(), 2);
    }
}

#[tokio::test]
async fn a_job_is_cancelled_at_once_or_through_its_validator() {
    for (_test, store) in engines().await {
        let validator = validator_key("Validator");
        let (fresh, running, over) = (job("User", 1), job("User", 2), job("User", 3));
        for job in [&fresh, &running, &over] {
            create(&store, validator, job, at(0)).await;
        }
        let user = actor(&fresh);
        store
            .record(validator, &update(running.uuid, JobStatus::Accepted), at(1))
            .await
            .unwrap();
        store
            .record(validator, &update(over.uuid, JobStatus::Completed), at(1))
            .await
            .unwrap();
        assert_eq!(
            store.cancel(&user, fresh.uuid, at(2)).await.unwrap(),
            CancellationOutcome::Ended
        );
        assert_eq!(
            store.cancel(&user, running.uuid, at(2)).await.unwrap(),
            CancellationOutcome::Requested
        );
        assert_eq!(
            store.cancel(&user, running.uuid, at(3)).await.unwrap(),
            CancellationOutcome::Requested
        );
        let late = CancellationOutcome::TooLate(JobStatus::Completed);
        assert_eq!(store.cancel(&user, over.uuid, at(2)).await.unwrap(), late);
        assert!(store.unanswered_jobs(validator).await.unwrap().is_empty());
        assert_eq!(store.jobs_to_cancel(validator).await.unwrap(), [running.uuid]);
        assert!(
            store.is_cancelled(fresh.uuid).await.unwrap() && !store.is_cancelled(over.uuid).await.unwrap()
        );
        store
            .record(validator, &update(running.uuid, JobStatus::Failed), at(4))
            .await
            .unwrap();
        assert!(store.jobs_to_cancel(validator).await.unwrap().is_empty());
        let (count, log) = store.audit_log(Some(&user.account), 10, 0).await.unwrap();
        let cancelled: Vec<_> = log
            .iter()
            .filter(|entry| entry.action == "job.cancelled")
            .collect();
        assert_eq!(
            (count, cancelled.len()),
            (5, 2),
            "a repetition is not written again"
        );
        assert_eq!(cancelled[0].account, user.account.to_string());
    }
}

#[tokio::test]
async fn a_job_that_nobody_takes_ends() {
    for (_test, store) in engines().await {
        let validator = validator_key("Validator");
        let (old, taken, new) = (job("User", 1), job("User", 2), job("User", 3));
        for (job, when) in [(&old, 0), (&taken, 0), (&new, 50)] {
            create(&store, validator, job, at(when)).await;
        }
        store
            .record(validator, &update(taken.uuid, JobStatus::Received), at(1))
            .await
            .unwrap();
        assert_eq!(store.expire(at(40), at(100)).await.unwrap(), [old.uuid]);
        assert!(store.expire(at(40), at(101)).await.unwrap().is_empty());
        let history = store.job(old.uuid).await.unwrap().unwrap().history;
        assert_eq!(history.visible_status(), JobStatus::Rejected);
        assert_eq!(store.unanswered_jobs(validator).await.unwrap(), [new.uuid]);
    }
}

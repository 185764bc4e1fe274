//! API keys, quotas, and the names of requests.

use super::*;

#[tokio::test]
async fn a_clients_own_name_for_a_request_names_one_job() {
    for (_test, store) in engines().await {
        let validator = validator_key("Validator");
        let (first, second, others) = (job("User", 1), job("User", 2), job("Other", 3));
        let named = async |job| submit(&store, validator, job, Some("a"), JobQuota::NONE, at(0)).await;
        assert_eq!(named(&first).await, JobCreation::New);
        assert_eq!(named(&second).await, JobCreation::Existing(first.uuid));
        assert_eq!(named(&others).await, JobCreation::New);
        assert_eq!(create(&store, validator, &second, at(0)).await, second.uuid);
    }
}

#[tokio::test]
async fn quotas_hold_against_requests_that_race() {
    const DAY: i64 = 86_400;
    for (test, store) in engines().await {
        let validator = validator_key("Validator");
        let quota = JobQuota { open: 3, daily: 5 };
        let jobs: Vec<_> = (0..8).map(|n| job("User", n)).collect();
        let race = jobs
            .iter()
            .map(|job| submit(&store, validator, job, None, quota, at(0)));
        let made = futures_util::future::join_all(race).await;
        let new = made.iter().filter(|made| **made == JobCreation::New).count();
        assert_eq!(new, 3, "{}: {made:?}", test.engine);
        assert!(made.iter().all(|made| matches!(
            made,
            JobCreation::New | JobCreation::QuotaExceeded(QuotaExceeded::Open)
        )));
        // A repeated request creates no job, so the quota does not matter.
        let known = jobs
            .iter()
            .zip(&made)
            .find(|(_, made)| **made == JobCreation::New)
            .unwrap()
            .0;
        assert_eq!(
            submit(&store, validator, known, None, quota, at(0)).await,
            JobCreation::Existing(known.uuid)
        );
        for (job, made) in jobs.iter().zip(&made) {
            if *made == JobCreation::New {
                store
                    .record(validator, &update(job.uuid, JobStatus::Failed), at(1))
                    .await
                    .unwrap();
            }
        }
        for n in [10, 11] {
            assert_eq!(
                submit(&store, validator, &job("User", n), None, quota, at(2)).await,
                JobCreation::New
            );
        }
        let over = submit(&store, validator, &job("User", 12), None, quota, at(2)).await;
        assert!(
            matches!(over, JobCreation::QuotaExceeded(QuotaExceeded::Daily { resets_in_s }) if resets_in_s > 0 && resets_in_s <= 86_400)
        );
        assert_eq!(
            submit(&store, validator, &job("Other", 12), None, quota, at(2)).await,
            JobCreation::New
        );
        assert_eq!(
            submit(&store, validator, &job("User", 12), None, quota, at(DAY)).await,
            JobCreation::New
        );
    }
}

#[tokio::test]
async fn keys_open_their_account_until_they_are_revoked_and_are_stored_as_hashes() {
    for (test, store) in engines().await {
        let user = Actor::user(UserKey(key("User").hotkey()));
        let alice: Account = "alice".parse().unwrap();
        let (one, two) = (
            ApiKeySecret::from_bytes([1; 32]),
            ApiKeySecret::from_bytes([2; 32]),
        );
        let made = store
            .create_key(&user, &alice, "laptop", &one, at(0))
            .await
            .unwrap()
            .unwrap();
        store
            .create_key(&user, &user.account, "own", &two, at(1))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(made.key.as_deref(), Some(one.reveal().as_str()));
        let (account, id) = store.find_key_owner(&one).await.unwrap().unwrap();
        assert_eq!((&account, id.to_string()), (&alice, made.id.clone()));
        let listed = store.list_keys(&alice).await.unwrap();
        assert_eq!((listed.len(), listed[0].key.as_deref()), (1, None));
        let (hashes,): (String,) = sqlx::query_as("SELECT hash FROM api_keys WHERE name = 'laptop'")
            .fetch_one(&test.pool)
            .await
            .unwrap();
        assert_eq!(hashes, one.hash().hex());
        assert!(!one.reveal().contains(&hashes));

        assert!(
            !store
                .revoke_key(&user, Some(&user.account), id, at(2))
                .await
                .unwrap(),
            "another's"
        );
        assert!(store.revoke_key(&user, None, id, at(2)).await.unwrap());
        assert!(!store.revoke_key(&user, None, id, at(3)).await.unwrap());
        assert_eq!(store.find_key_owner(&one).await.unwrap(), None);
        assert!(store.list_keys(&alice).await.unwrap().is_empty());
        assert!(store.find_key_owner(&two).await.unwrap().is_some());
        store.audit(&user, AuditAction::Login, "", at(3)).await.unwrap();
        let (count, log) = store.audit_log(None, 2, 0).await.unwrap();
        let actions: Vec<_> = log.iter().map(|entry| entry.action.as_str()).collect();
        assert_eq!((count, actions), (4, vec!["login", "key.revoked"]));
    }
}

//! API keys, quotas, and the names of requests.

use super::*;
use muster_facilitator_store::AccountDeletion;
use muster_protocol::Digest;

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

/// A key of `account` with the usual rights for a year from `at(0)`.
async fn create_key(
    store: &Store,
    actor: &Actor,
    account: &Account,
    secret: &ApiKeySecret,
    authority: &Authority,
) -> KeyCreation {
    let new = NewKey {
        account,
        name: "laptop",
        secret,
        authority,
    };
    store.create_key(actor, new, at(1)).await.unwrap()
}

fn created(creation: KeyCreation) -> ApiKey {
    match creation {
        KeyCreation::Created(key) => key,
        other @ (KeyCreation::TooMany | KeyCreation::MakerEnded) => panic!("{other:?}"),
    }
}

fn holder(account: &Account, key: &ApiKey) -> Actor {
    Actor {
        account: account.clone(),
        credential: Credential::ApiKey(key.id.parse().unwrap()),
    }
}

#[tokio::test]
async fn keys_open_their_account_until_they_end_or_are_revoked_and_are_stored_as_hashes() {
    for (test, store) in engines().await {
        let user = Actor::user(UserKey(key("User").hotkey()));
        let alice: Account = "alice".parse().unwrap();
        let [one, two] = [1, 2].map(|n| ApiKeySecret::from_bytes([n; 32]));
        let year = Authority::login().grant(None, None, at(0)).unwrap();
        let day = Authority::login()
            .grant(Some(&[KeyRight::Read]), Some(1), at(0))
            .unwrap();
        let made = created(create_key(&store, &user, &alice, &one, &year).await);
        created(create_key(&store, &user, &user.account, &two, &day).await);
        assert_eq!(made.key.as_deref(), Some(one.reveal().as_str()));
        let owner = store.find_key_owner(&one, at(2)).await.unwrap().unwrap();
        assert_eq!((&owner.account, owner.id.to_string()), (&alice, made.id.clone()));
        assert_eq!(owner.authority, year);
        let listed = store.list_keys(&alice, at(2)).await.unwrap();
        assert_eq!((listed.len(), listed[0].key.as_deref()), (1, None));
        assert_eq!(
            (&listed[0].rights, listed[0].expires_at),
            (&made.rights, made.expires_at)
        );
        let (hashes,): (String,) = sqlx::query_as("SELECT hash FROM api_keys WHERE account = 'alice'")
            .fetch_one(&test.pool)
            .await
            .unwrap();
        assert_eq!(hashes, one.hash().hex());
        assert!(!one.reveal().contains(&hashes));

        let id = owner.id;
        let others = store.revoke_key(&user, Some(&user.account), id, at(2)).await;
        assert_eq!(others.unwrap(), None);
        let revoked = store.revoke_key(&user, None, id, at(2)).await.unwrap();
        assert_eq!(revoked.as_ref(), Some(&alice));
        assert_eq!(store.revoke_key(&user, None, id, at(3)).await.unwrap(), None);
        assert_eq!(store.find_key_owner(&one, at(3)).await.unwrap(), None);
        assert!(store.list_keys(&alice, at(3)).await.unwrap().is_empty());
        // The other key holds for a day.
        const DAY: i64 = 86_400;
        assert!(store.find_key_owner(&two, at(DAY - 1)).await.unwrap().is_some());
        assert_eq!(store.find_key_owner(&two, at(DAY)).await.unwrap(), None);
        assert!(store.list_keys(&user.account, at(DAY)).await.unwrap().is_empty());
        assert_eq!(
            store.account_view(&user.account, at(DAY - 1)).await.unwrap().keys,
            1
        );
        assert_eq!(store.account_view(&user.account, at(DAY)).await.unwrap().keys, 0);
        store.audit(&user, AuditAction::Login, "", at(3)).await.unwrap();
        let (count, log) = store.audit_log(None, 2, 0).await.unwrap();
        let actions: Vec<_> = log.iter().map(|entry| entry.action.as_str()).collect();
        assert_eq!((count, actions), (4, vec!["login", "key.revoked"]));
    }
}

#[tokio::test]
async fn a_revoked_key_takes_the_keys_along_that_it_has_made() {
    for (test, store) in engines().await {
        let user = Actor::user(UserKey(key("User").hotkey()));
        let account = &user.account;
        let all = Authority::login();
        let secrets: Vec<_> = (0..5).map(|n| ApiKeySecret::from_bytes([n; 32])).collect();
        // 0 makes 1, which makes 2; 3 stands beside them.
        let first = created(create_key(&store, &user, account, &secrets[0], &all).await);
        let second = created(create_key(&store, &holder(account, &first), account, &secrets[1], &all).await);
        let third = created(create_key(&store, &holder(account, &second), account, &secrets[2], &all).await);
        created(create_key(&store, &user, account, &secrets[3], &all).await);
        let valid = async || {
            let mut valid = Vec::new();
            for (n, secret) in secrets.iter().enumerate() {
                if store.find_key_owner(secret, at(2)).await.unwrap().is_some() {
                    valid.push(n);
                }
            }
            valid
        };
        assert_eq!(valid().await, [0, 1, 2, 3]);
        // A revoked key in the middle does not cut off those behind it.
        assert!(
            store
                .revoke_key(&user, Some(account), second.id.parse().unwrap(), at(2))
                .await
                .unwrap()
                .is_some()
        );
        assert_eq!(valid().await, [0, 3], "{}", test.engine);
        assert!(
            store
                .revoke_key(&user, Some(account), first.id.parse().unwrap(), at(2))
                .await
                .unwrap()
                .is_some()
        );
        assert_eq!(valid().await, [3], "{}", test.engine);
        let late = create_key(&store, &holder(account, &first), account, &secrets[4], &all).await;
        assert_eq!(late, KeyCreation::MakerEnded);
        let (_, log) = store.audit_log(None, 10, 0).await.unwrap();
        let revoked: std::collections::BTreeSet<_> = log
            .iter()
            .filter(|entry| entry.action == "key.revoked")
            .map(|entry| entry.subject.as_str())
            .collect();
        assert_eq!(
            revoked,
            [&*first.id, &*second.id, &*third.id].into(),
            "{}",
            test.engine
        );
    }
}

#[tokio::test]
async fn no_key_survives_the_revocation_of_the_key_that_makes_it_meanwhile() {
    for (test, store) in engines().await {
        let user = Actor::user(UserKey(key("User").hotkey()));
        let account = &user.account;
        let all = Authority::login();
        for round in 0..8_u8 {
            let secret = |n: u8| ApiKeySecret::from_bytes([round * 8 + n + 1; 32]);
            let first = created(create_key(&store, &user, account, &secret(0), &all).await);
            let maker = holder(account, &first);
            let makes = (1..8).map(|n| {
                let (store, maker, all, secret) = (&store, &maker, &all, secret(n));
                async move {
                    create_key(store, maker, account, &secret, all).await;
                }
            });
            let id = first.id.parse().unwrap();
            let (revoked, _) = futures_util::future::join(
                store.revoke_key(&user, Some(account), id, at(2)),
                futures_util::future::join_all(makes),
            )
            .await;
            assert!(revoked.unwrap().is_some());
            assert_eq!(
                store.list_keys(account, at(2)).await.unwrap(),
                [],
                "{}",
                test.engine
            );
        }
    }
}

#[tokio::test]
async fn no_key_survives_the_deletion_of_its_account_meanwhile() {
    for (test, store) in engines().await {
        let all = Authority::login();
        for round in 0..8_u8 {
            let user = Actor::user(UserKey(key(&format!("User {round}")).hotkey()));
            let account = &user.account;
            let secret = |n: u8| ApiKeySecret::from_bytes([round * 8 + n + 1; 32]);
            let first = created(create_key(&store, &user, account, &secret(0), &all).await);
            let maker = holder(account, &first);
            let makes = (1..8).map(|n| {
                let (store, maker, all, secret) = (&store, &maker, &all, secret(n));
                async move {
                    create_key(store, maker, account, &secret, all).await;
                }
            });
            let client = Digest::of(b"client");
            let (deleted, _) = futures_util::future::join(
                store.delete_account(&user, &client, at(2)),
                futures_util::future::join_all(makes),
            )
            .await;
            assert_eq!(deleted.unwrap(), AccountDeletion::Begun);
            let left = store.list_keys(account, at(2)).await.unwrap();
            assert_eq!(left, [], "{}", test.engine);
        }
    }
}

#[tokio::test]
async fn keys_from_before_rights_keep_what_they_had_but_make_no_keys() {
    for (test, store) in engines().await {
        let secret = ApiKeySecret::from_bytes([9; 32]);
        let id = KeyId::from_uuid(uuid::Uuid::from_u128(7));
        // As an older version wrote it.
        sqlx::query(
            "INSERT INTO api_keys (id, hash, account, name, created_at) VALUES ($1, $2, 'alice', 'old', 0)",
        )
        .bind(id.to_string())
        .bind(secret.hash().hex())
        .execute(&test.pool)
        .await
        .unwrap();
        let owner = store
            .find_key_owner(&secret, at(1_000_000_000))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(owner.authority.rights, KeyRight::USUAL.into_iter().collect());
        assert_eq!(owner.authority.expires_at, None);
        assert!(!owner.authority.rights.has(KeyRight::Keys));
    }
}

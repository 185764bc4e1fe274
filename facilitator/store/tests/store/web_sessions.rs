//! Sign-ins of browsers: links that work once, sessions that end.

use muster_facilitator_core::web_session::WebSecret;
use muster_facilitator_store::{FacilitatorRetention, FacilitatorRetentionConfig, NewWebSession};
use muster_protocol::Digest;
use muster_store::retention::RetentionRules as _;

use super::*;

fn secret(number: u8) -> WebSecret {
    WebSecret::from_bytes([number; 32])
}

fn user() -> Actor {
    Actor::user(UserKey(key("User").hotkey()))
}

async fn sign_in(store: &Store, actor: &Actor, number: u8, now: i64, end: i64) {
    let new = NewWebSession {
        secret: &secret(number),
        browser: "Browser/1",
        expires_at: at(end),
    };
    store.create_web_session(actor, new, at(now)).await.unwrap();
}

async fn is_signed_in(store: &Store, number: u8, now: i64) -> bool {
    store
        .find_web_session(&secret(number), at(now))
        .await
        .unwrap()
        .is_some()
}

#[tokio::test]
async fn a_sign_in_link_used_by_many_at_once_signs_in_one() {
    for (test, store) in engines().await {
        store
            .create_web_link(&user(), &secret(1), at(60), at(0))
            .await
            .unwrap();
        let one = secret(1);
        assert_eq!(
            store.find_web_link(&one, at(59)).await.unwrap(),
            Some(user().account)
        );
        assert_eq!(
            store.use_web_link(&one, at(60)).await.unwrap(),
            None,
            "it is too old"
        );
        let uses = (0..20).map(|_| store.use_web_link(&one, at(59)));
        let used = futures_util::future::join_all(uses).await;
        let got: Vec<_> = used.into_iter().filter_map(Result::unwrap).collect();
        assert_eq!(got.len(), 1, "{}", test.engine);
        assert_eq!(got[0].credential, Credential::Browser, "a browser cannot sign");
        assert_eq!(store.find_web_link(&one, at(1)).await.unwrap(), None);
        for number in 10..20 {
            let now = at(i64::from(number));
            store
                .create_web_link(&user(), &secret(number), at(99), now)
                .await
                .unwrap();
        }
        assert_eq!(
            store.use_web_link(&secret(11), at(20)).await.unwrap(),
            None,
            "eight links are kept"
        );
        assert!(store.use_web_link(&secret(12), at(20)).await.unwrap().is_some());
    }
}

#[tokio::test]
async fn a_session_of_a_key_is_the_key() {
    for (_test, store) in engines().await {
        let account = user().account;
        let authority = Authority::login()
            .grant(Some(&[KeyRight::Read]), Some(1), at(0))
            .unwrap();
        let new = NewKey {
            account: &account,
            name: "laptop",
            secret: &ApiKeySecret::from_bytes([1; 32]),
            authority: &authority,
        };
        let KeyCreation::Created(made) = store.create_key(&user(), new, at(0)).await.unwrap() else {
            panic!("no key");
        };
        let id: KeyId = made.id.parse().unwrap();
        let holder = Actor {
            account: account.clone(),
            credential: Credential::ApiKey(id),
        };
        sign_in(&store, &holder, 1, 1, 200_000).await;
        sign_in(&store, &user(), 2, 1, 200_000).await;
        let found = store.find_web_session(&secret(1), at(2)).await.unwrap().unwrap();
        assert_eq!((found.actor, found.authority), (holder, authority));
        assert!(!is_signed_in(&store, 1, 86_400).await, "the key has ended");
        assert_eq!(
            store
                .list_web_sessions(&account, &secret(2), at(2))
                .await
                .unwrap()
                .len(),
            2
        );
        assert!(
            store
                .revoke_key(&user(), Some(&account), id, at(3))
                .await
                .unwrap()
        );
        assert!(!is_signed_in(&store, 1, 4).await);
        let found = store.find_web_session(&secret(2), at(4)).await.unwrap().unwrap();
        assert_eq!(
            (found.actor.credential, found.authority),
            (Credential::Browser, Authority::login())
        );
        let left = store
            .list_web_sessions(&account, &secret(2), at(4))
            .await
            .unwrap();
        assert_eq!(
            (left.len(), left[0].is_own, left[0].browser.as_str()),
            (1, true, "Browser/1")
        );
    }
}

#[tokio::test]
async fn sessions_end_by_their_time_their_number_and_with_their_account() {
    for (test, store) in engines().await {
        let other = Actor::user(UserKey(key("Other").hotkey()));
        sign_in(&store, &other, 99, 0, 1_000).await;
        for number in 1..=17 {
            sign_in(&store, &user(), number, i64::from(number), 100).await;
        }
        assert!(
            !is_signed_in(&store, 1, 20).await,
            "{}: the oldest made room",
            test.engine
        );
        let rows: Vec<(String, String)> = sqlx::query_as("SELECT hash, browser FROM web_sessions")
            .fetch_all(&test.pool)
            .await
            .unwrap();
        let is_hash = |hash: &str| (1..100).all(|number| hash != secret(number).reveal());
        assert!(
            rows.iter().all(|(hash, _)| is_hash(hash)),
            "a store keeps no secret"
        );
        assert!(is_signed_in(&store, 2, 99).await && !is_signed_in(&store, 2, 100).await);
        store.end_web_session(&secret(2)).await.unwrap();
        assert!(!is_signed_in(&store, 2, 20).await && is_signed_in(&store, 3, 20).await);

        store
            .create_web_link(&user(), &secret(50), at(100), at(20))
            .await
            .unwrap();
        let rules = FacilitatorRetention::new(store.clone(), FacilitatorRetentionConfig::default());
        for (now, left) in [(99, 16), (100, 1)] {
            for deletion in rules.due(at(now), &[]).await.unwrap() {
                let tables = ["web_links", "web_sessions"];
                if let muster_store::retention::Deletion::Rows {
                    table,
                    statement,
                    values,
                } = deletion
                    && tables.contains(&table)
                {
                    assert!(statement.contains("expires_at <= $1"), "{statement}");
                    assert_eq!(values.len(), 1);
                    delete(&test, statement, at(now)).await;
                }
            }
            let (count,): (i64,) = sqlx::query_as("SELECT COUNT(*) FROM web_sessions")
                .fetch_one(&test.pool)
                .await
                .unwrap();
            assert_eq!(count, left, "{} at {now}", test.engine);
        }
        assert!(is_signed_in(&store, 99, 200).await);

        sign_in(&store, &user(), 70, 300, 1_000).await;
        store
            .create_web_link(&user(), &secret(71), at(1_000), at(300))
            .await
            .unwrap();
        store
            .delete_account(&user(), &Digest::of(b"client"), at(301))
            .await
            .unwrap();
        assert!(
            !is_signed_in(&store, 70, 302).await,
            "a deleted account is signed out"
        );
        assert_eq!(store.use_web_link(&secret(71), at(302)).await.unwrap(), None);
        sign_in(&store, &other, 98, 300, 1_000).await;
        assert_eq!(store.end_all_web_sessions(&other.account).await.unwrap(), 2);
        assert!(!is_signed_in(&store, 98, 302).await);
    }
}

async fn delete(test: &TestStore, statement: &'static str, now: Timestamp) {
    sqlx::query(statement)
        .bind(now.micros())
        .bind(1_000_i64)
        .execute(&test.pool)
        .await
        .unwrap();
}

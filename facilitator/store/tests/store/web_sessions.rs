//! Sign-ins of browsers: links that work once, sessions that end.

use muster_facilitator_core::web_session::WebSecret;
use muster_facilitator_store::{FacilitatorRetention, FacilitatorRetentionConfig, NewWebSession, WebSignIn};
use muster_protocol::Digest;
use muster_store::retention::RetentionRules as _;

use super::*;

fn secret(number: u8) -> WebSecret {
    WebSecret::from_bytes([number; 32])
}

fn user() -> Actor {
    Actor::user(UserKey(key("User").hotkey()))
}

/// The sign-in by a login with the hotkey.
fn login() -> WebSignIn {
    WebSignIn {
        actor: user(),
        signed_at: Some(at(0)),
    }
}

async fn sign_in(store: &Store, actor: &Actor, number: u8, now: i64, end: i64) {
    let new = NewWebSession {
        secret: &secret(number),
        browser: "Browser/1",
        signed_at: Some(at(now)),
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
            .create_web_link(&login(), &secret(1), at(60), at(0))
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
        assert_eq!(got[0], login());
        assert_eq!(store.find_web_link(&one, at(1)).await.unwrap(), None);
        for number in 10..20 {
            let now = at(i64::from(number));
            store
                .create_web_link(&login(), &secret(number), at(99), now)
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
                .is_some()
        );
        assert!(!is_signed_in(&store, 1, 4).await);
        let found = store.find_web_session(&secret(2), at(4)).await.unwrap().unwrap();
        assert_eq!(
            found.actor.credential,
            Credential::Browser(secret(2).session_id()),
            "a browser cannot sign"
        );
        assert_eq!(found.authority.rights, Authority::login().rights);
        assert_eq!(found.authority.expires_at, Some(at(200_000)));
        assert_eq!(found.signed_at, Some(at(1)));
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
        store.end_web_session(&user(), &secret(2), at(20)).await.unwrap();
        assert!(!is_signed_in(&store, 2, 20).await && is_signed_in(&store, 3, 20).await);

        store
            .create_web_link(&login(), &secret(50), at(100), at(20))
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
            .create_web_link(&login(), &secret(71), at(1_000), at(300))
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
        assert_eq!(store.end_all_web_sessions(&other, at(301)).await.unwrap(), 2);
        assert!(!is_signed_in(&store, 98, 302).await);
    }
}

/// The actor of the session with this number.
async fn browser(store: &Store, number: u8) -> Actor {
    let found = store.find_web_session(&secret(number), at(1)).await.unwrap();
    found.unwrap().actor
}

/// A key for everything that `maker` makes, or nothing if the maker has ended.
async fn make_key(store: &Store, maker: &Actor, number: u8) -> Option<KeyId> {
    let new = NewKey {
        account: &maker.account,
        name: "made",
        secret: &ApiKeySecret::from_bytes([number; 32]),
        authority: &Authority::login(),
    };
    match store.create_key(maker, new, at(1)).await.unwrap() {
        KeyCreation::Created(key) => Some(key.id.parse().unwrap()),
        KeyCreation::MakerEnded => None,
        KeyCreation::TooMany => panic!("too many keys"),
    }
}

/// The numbers of the keys that hold.
async fn valid_keys(store: &Store, numbers: std::ops::Range<u8>) -> Vec<u8> {
    let mut valid = Vec::new();
    for number in numbers {
        let secret = ApiKeySecret::from_bytes([number; 32]);
        if store.find_key_owner(&secret, at(2)).await.unwrap().is_some() {
            valid.push(number);
        }
    }
    valid
}

#[tokio::test]
async fn the_keys_of_a_session_end_with_it_however_it_ends() {
    for (test, store) in engines().await {
        for number in 1..=3 {
            sign_in(&store, &user(), number, i64::from(number) - 3, 1_000).await;
        }
        // 1 is of the hotkey, 2 to 4 of the sessions, and 5 of key 2.
        make_key(&store, &user(), 1).await.unwrap();
        let first = make_key(&store, &browser(&store, 1).await, 2).await.unwrap();
        make_key(&store, &browser(&store, 2).await, 3).await.unwrap();
        make_key(&store, &browser(&store, 3).await, 4).await.unwrap();
        let holder = Actor {
            credential: Credential::ApiKey(first),
            ..user()
        };
        make_key(&store, &holder, 5).await.unwrap();
        let ended = browser(&store, 2).await;
        store.end_web_session(&ended, &secret(2), at(1)).await.unwrap();
        assert_eq!(valid_keys(&store, 1..6).await, [1, 2, 4, 5], "{}", test.engine);
        assert_eq!(make_key(&store, &ended, 6).await, None, "it has ended");

        // With fifteen more there is no room for the oldest.
        for number in 10..25 {
            sign_in(&store, &user(), number, 1, 1_000).await;
        }
        assert_eq!(valid_keys(&store, 1..6).await, [1, 4], "{}", test.engine);
        let (_, log) = store.audit_log(None, 100, 0).await.unwrap();
        let revoked = log.iter().filter(|entry| entry.action == "key.revoked").count();
        assert_eq!(revoked, 3, "{}", test.engine);

        assert_eq!(store.end_all_web_sessions(&user(), at(1)).await.unwrap(), 16);
        assert_eq!(valid_keys(&store, 1..6).await, [1], "{}", test.engine);
    }
}

#[tokio::test]
async fn a_restored_store_signs_all_browsers_out_and_keeps_the_keys_that_no_browser_made() {
    for (_test, store) in engines().await {
        let other = Actor::user(UserKey(key("Other").hotkey()));
        sign_in(&store, &user(), 1, 0, 1_000).await;
        sign_in(&store, &other, 2, 0, 1_000).await;
        let first = browser(&store, 1).await;
        store
            .create_web_link(&login(), &secret(3), at(600), at(0))
            .await
            .unwrap();
        make_key(&store, &first, 1).await.unwrap();
        make_key(&store, &user(), 2).await.unwrap();
        assert_eq!(valid_keys(&store, 1..3).await, [1, 2]);
        assert_eq!(store.end_restored_sessions(at(5)).await.unwrap(), 2, "accounts");
        for number in [1, 2] {
            assert!(!is_signed_in(&store, number, 6).await, "{number}");
        }
        assert_eq!(store.find_web_link(&secret(3), at(6)).await.unwrap(), None);
        assert_eq!(valid_keys(&store, 1..3).await, [2]);
    }
}

#[tokio::test]
async fn no_key_survives_the_end_of_the_session_that_makes_it_meanwhile() {
    for (test, store) in engines().await {
        for round in 0..8_u8 {
            let number = round * 8;
            sign_in(&store, &user(), number + 1, 0, 1_000).await;
            let maker = browser(&store, number + 1).await;
            let makes = (1..8).map(|n| make_key(&store, &maker, number + n));
            let (ended, _) = futures_util::future::join(
                store.end_all_web_sessions(&maker, at(1)),
                futures_util::future::join_all(makes),
            )
            .await;
            assert_eq!(ended.unwrap(), 1);
            let left = store.list_keys(&maker.account, at(2)).await.unwrap();
            assert_eq!(left, [], "{}", test.engine);
        }
    }
}

#[tokio::test]
async fn keys_that_browsers_made_before_sessions_were_their_makers_end_when_all_are_signed_out() {
    const MIGRATION: &str = include_str!("../../migrations/0030_session_keys.sql");
    for (test, store) in engines().await {
        let other = Actor::user(UserKey(key("Other").hotkey()));
        for (number, maker) in [(1, user()), (2, user()), (3, other.clone())] {
            make_key(&store, &maker, number).await.unwrap();
        }
        // As an older version wrote them: a browser's key has no parent, but the log names the browser.
        for number in [2, 3] {
            let id = "(SELECT id FROM api_keys WHERE hash = $1)";
            let statement = format!("UPDATE audit SET credential = 'browser' WHERE subject = {id}");
            sqlx::query(sqlx::AssertSqlSafe(statement))
                .bind(ApiKeySecret::from_bytes([number; 32]).hash().hex())
                .execute(&test.pool)
                .await
                .unwrap();
        }
        let update = MIGRATION
            .split_inclusive(';')
            .find(|part| part.contains("UPDATE api_keys"));
        sqlx::query(update.unwrap()).execute(&test.pool).await.unwrap();
        store.end_all_web_sessions(&user(), at(1)).await.unwrap();
        assert_eq!(valid_keys(&store, 1..4).await, [1, 3], "{}", test.engine);
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

//! Tokens of models are reserved before a request is forwarded and settled afterwards.

use muster_facilitator_store::{DayUsage, TokenPair, TokensExhausted, UsageReservation};

use super::*;

const DAY: i64 = 86_400;

fn pair(input: u64, output: u64) -> TokenPair {
    TokenPair { input, output }
}

async fn reserve(
    store: &Store,
    tokens: TokenPair,
    limit: u64,
    secs: i64,
) -> Result<UsageReservation, TokensExhausted> {
    store
        .reserve_usage(&account("User"), "tiny", tokens, Some(limit), at(secs))
        .await
        .unwrap()
}

async fn used(store: &Store) -> Vec<DayUsage> {
    store.list_usage(&account("User"), 10).await.unwrap()
}

fn account(name: &str) -> Account {
    Account::Hotkey(UserKey(key(name).hotkey()))
}

#[tokio::test]
async fn requests_at_once_get_no_more_tokens_than_one_after_the_other() {
    for (test, store) in engines().await {
        let wanted = pair(10, 20);
        let asked = (0..20).map(|_| reserve(&store, wanted, 100, 0));
        let answers = futures_util::future::join_all(asked).await;
        let granted = answers.iter().filter(|answer| answer.is_ok()).count();
        assert_eq!(granted, 3, "{}: {answers:?}", test.engine);
        let refused = answers.into_iter().find_map(Result::err).unwrap();
        assert_eq!(refused.wanted, 30);
    }
}

#[tokio::test]
async fn tokens_that_a_request_did_not_use_are_given_back() {
    for (test, store) in engines().await {
        let reserved = reserve(&store, pair(50, 50), 100, 0).await.unwrap();
        let full = reserve(&store, pair(1, 1), 100, 1).await.unwrap_err();
        assert_eq!((full.used, full.wanted), (100, 2), "{}", test.engine);
        store.settle_usage(&reserved, Some(pair(7, 3))).await.unwrap();
        let one = &used(&store).await[0];
        assert_eq!((one.requests, one.input_tokens, one.output_tokens), (1, 7, 3));
        assert!(reserve(&store, pair(40, 50), 100, 2).await.is_ok(), "90 are left");
    }
}

#[tokio::test]
async fn a_request_without_an_answer_counts_nothing() {
    for (test, store) in engines().await {
        let reserved = reserve(&store, pair(50, 50), 100, 0).await.unwrap();
        store.settle_usage(&reserved, None).await.unwrap();
        assert_eq!(used(&store).await, [], "{}", test.engine);
        assert!(reserve(&store, pair(50, 50), 100, 1).await.is_ok());
    }
}

#[tokio::test]
async fn a_request_that_was_never_settled_stays_counted_until_the_next_day() {
    for (test, store) in engines().await {
        reserve(&store, pair(50, 50), 100, 0).await.unwrap();
        // Its facilitator was killed; the next one opens the same store.
        let next = Store::over(test.pool.clone()).await.unwrap();
        assert_eq!(used(&next).await[0].output_tokens, 50, "{}", test.engine);
        assert!(reserve(&next, pair(1, 0), 100, 1).await.is_err());
        assert!(reserve(&next, pair(50, 50), 100, DAY).await.is_ok());
    }
}

#[tokio::test]
async fn a_request_larger_than_the_limit_is_refused_and_counts_nothing() {
    for (test, store) in engines().await {
        let refused = reserve(&store, pair(100, 1), 100, 0).await.unwrap_err();
        assert_eq!((refused.used, refused.wanted), (0, 101), "{}", test.engine);
        assert_eq!(used(&store).await, []);
    }
}

#[tokio::test]
async fn without_a_limit_usage_is_counted_all_the_same() {
    for (test, store) in engines().await {
        let reserved = store
            .reserve_usage(&account("User"), "tiny", pair(u64::MAX, 1), None, at(0))
            .await
            .unwrap()
            .unwrap();
        store.settle_usage(&reserved, Some(pair(2, 3))).await.unwrap();
        assert_eq!(used(&store).await[0].output_tokens, 3, "{}", test.engine);
    }
}

//! Faults on purpose.

use crate::support::{Chain, Client, next, weights};
use jsonrpsee::core::client::Subscription;
use serde_json::{Value, json};
use sp_core::H256;
use sp_keyring::Sr25519Keyring::Alice;
use std::time::{Duration, Instant};

const WATCH: &str = "author_submitAndWatchExtrinsic";
const UNWATCH: &str = "author_unwatchExtrinsic";

async fn heads(client: &Client) -> (u64, u64) {
    let heads: Value = client.call("dev_heads", json!([])).await.unwrap();
    let number = |name: &str| heads[name]["number"].as_u64().unwrap();
    (number("best"), number("finalized"))
}

async fn finality(client: &Client, lag: Option<u32>, stalled: Option<bool>) {
    client
        .call::<Value>("dev_setFinality", json!([lag, stalled]))
        .await
        .unwrap();
}

async fn follow(client: &Client, which: &str) -> Subscription<Value> {
    let (begin, end) = (
        format!("chain_subscribe{which}"),
        format!("chain_unsubscribe{which}"),
    );
    client.subscribe(&begin, json!([]), &end).await.unwrap()
}

async fn hash_at(client: &Client, number: u32) -> H256 {
    client.call("chain_getBlockHash", json!([number])).await.unwrap()
}

fn number(header: &Value) -> u64 {
    let text = header["number"].as_str().unwrap();
    u64::from_str_radix(&text[2..], 16).unwrap()
}

#[tokio::test]
async fn finality_may_lag_and_stand_still() {
    let chain = Chain::start().await;
    let client = chain.client().await;
    let mut finals = follow(&client, "FinalizedHeads").await;
    assert_eq!(number(&next(&mut finals).await), 0);
    finality(&client, Some(2), None).await;
    client.seal(5).await;
    assert_eq!(heads(&client).await, (5, 3));
    let finalised: H256 = client.call("chain_getFinalizedHead", json!([])).await.unwrap();
    assert_eq!(finalised, hash_at(&client, 3).await);
    for n in 1..=3 {
        assert_eq!(number(&next(&mut finals).await), n);
    }
    finality(&client, None, Some(true)).await;
    client.seal(4).await;
    assert_eq!(heads(&client).await, (9, 3), "the head goes on alone");
    finality(&client, Some(0), Some(false)).await;
    assert_eq!(heads(&client).await, (9, 9));
    for n in 4..=9 {
        assert_eq!(number(&next(&mut finals).await), n);
    }
}

#[tokio::test]
async fn a_reorganisation_is_told_to_everybody() {
    let chain = Chain::start().await;
    let client = chain.client().await;
    finality(&client, Some(5), None).await;
    let transaction = chain.sign(Alice, 0, weights());
    let mut watch = client
        .subscribe(WATCH, json!([transaction]), UNWATCH)
        .await
        .unwrap();
    let old = client.seal(1).await;
    client.seal(1).await;
    let (mut best, mut all) = (
        follow(&client, "NewHeads").await,
        follow(&client, "AllHeads").await,
    );
    assert_eq!(
        (number(&next(&mut best).await), number(&next(&mut all).await)),
        (2, 2)
    );

    let after: Value = client.call("dev_reorg", json!([2])).await.unwrap();
    assert_eq!(after["best"]["number"], 3);
    let new = hash_at(&client, 1).await;
    assert_ne!(new, old);
    assert_eq!(number(&next(&mut best).await), 3, "lower ones were never best");
    for n in 1..=3 {
        assert_eq!(number(&next(&mut all).await), n);
    }
    let given_up: Value = client.call("chain_getHeader", json!([old])).await.unwrap();
    assert_eq!(
        number(&given_up),
        1,
        "a block that was given up can still be asked for"
    );

    client.seal(5).await;
    let told = [
        json!("ready"),
        json!({ "inBlock": old }),
        json!({ "retracted": old }),
        json!({ "inBlock": new }),
        json!({ "finalized": new }),
    ];
    for status in told {
        let mut seen = next(&mut watch).await;
        // It waits again between its two blocks, which may be reported once more.
        if seen == json!("ready") && status != json!("ready") {
            seen = next(&mut watch).await;
        }
        assert_eq!(seen, status);
    }
}

#[tokio::test]
async fn a_reorganisation_may_forget_transactions() {
    let chain = Chain::start().await;
    let client = chain.client().await;
    finality(&client, Some(5), None).await;
    let transaction = chain.sign(Alice, 0, weights());
    let mut watch = client
        .subscribe(WATCH, json!([transaction]), UNWATCH)
        .await
        .unwrap();
    let old = client.seal(1).await;
    client
        .call::<Value>("dev_reorg", json!([1, false]))
        .await
        .unwrap();
    let told = [
        json!("ready"),
        json!({ "inBlock": old }),
        json!({ "retracted": old }),
        json!("dropped"),
    ];
    for status in told {
        assert_eq!(next(&mut watch).await, status);
    }
    let account = Alice.to_account_id().to_string();
    let nonce: u32 = client.call("account_nextIndex", json!([account])).await.unwrap();
    assert_eq!(nonce, 0, "it never happened");
    // And it can be sent again.
    client
        .call::<H256>("author_submitExtrinsic", json!([transaction]))
        .await
        .unwrap();
}

#[tokio::test]
async fn final_blocks_are_not_given_up() {
    let chain = Chain::start().await;
    let client = chain.client().await;
    finality(&client, Some(3), None).await;
    client.seal(10).await;
    let before = hash_at(&client, 10).await;
    for depth in [0, 4, 1000] {
        let error = client
            .call::<Value>("dev_reorg", json!([depth]))
            .await
            .unwrap_err();
        assert_eq!(error.code(), -32602, "{error}");
    }
    assert_eq!(hash_at(&client, 10).await, before);
    // Branches of branches differ from one another.
    let mut seen = vec![before];
    for _ in 0..3 {
        client.call::<Value>("dev_reorg", json!([3])).await.unwrap();
        finality(&client, Some(4), None).await;
        let hash = hash_at(&client, 10).await;
        assert!(!seen.contains(&hash));
        seen.push(hash);
        if heads(&client).await.0 > 11 {
            break;
        }
    }
    assert!(seen.len() > 2);
}

#[tokio::test]
async fn connections_break_and_are_refused() {
    let chain = Chain::start().await;
    let (operator, victim) = (chain.client().await, chain.client().await);
    let mut heads = follow(&victim, "NewHeads").await;
    next(&mut heads).await;
    let broken: usize = operator
        .call("dev_dropConnections", json!([3_600_000]))
        .await
        .unwrap();
    assert_eq!(broken, 1);
    assert!(heads.next().await.is_none_or(|item| item.is_err()));
    assert!(!victim.is_connected());
    assert!(chain.try_client().await.is_err(), "new ones are refused");
    operator.seal(1).await;
    operator
        .call::<Value>("dev_clearFaults", json!([]))
        .await
        .unwrap();
    let again = chain.client().await;
    let mut heads = follow(&again, "NewHeads").await;
    assert_eq!(number(&next(&mut heads).await), 1);
}

#[tokio::test]
async fn answers_are_late_wrong_or_errors() {
    let chain = Chain::start().await;
    let client = chain.client().await;
    let set = async |method: &str, fault: Value| {
        client
            .call::<Value>("dev_setFault", json!([method, fault]))
            .await
            .unwrap();
    };
    set("system_health", json!({ "delay_ms": 150 })).await;
    let began = Instant::now();
    client.call::<Value>("system_health", json!([])).await.unwrap();
    assert!(began.elapsed() >= Duration::from_millis(150));

    set(
        "system_health",
        json!({ "error": { "code": -32000, "message": "busy" }, "times": 2 }),
    )
    .await;
    for _ in 0..2 {
        let error = client
            .call::<Value>("system_health", json!([]))
            .await
            .unwrap_err();
        assert_eq!((error.code(), error.message()), (-32000, "busy"));
    }
    client.call::<Value>("system_health", json!([])).await.unwrap();

    set("chain_getHeader", json!({ "result": { "number": [1, 2] } })).await;
    let header: Value = client.call("chain_getHeader", json!([])).await.unwrap();
    assert_eq!(header, json!({ "number": [1, 2] }));
    set("*", json!({ "error": { "code": 1, "message": "all" } })).await;
    assert_eq!(
        client
            .call::<Value>("system_name", json!([]))
            .await
            .unwrap_err()
            .code(),
        1
    );
    assert!(
        client
            .subscribe("chain_subscribeNewHeads", json!([]), "chain_unsubscribeNewHeads")
            .await
            .is_err()
    );
    // The client that set every fault can take them back.
    client.call::<Value>("dev_clearFaults", json!([])).await.unwrap();
    client.call::<Value>("system_name", json!([])).await.unwrap();
    let unknown = client
        .call::<Value>("dev_setFault", json!(["system_name", { "dealy": 1 }]))
        .await;
    assert_eq!(unknown.unwrap_err().code(), -32602);
}

#[tokio::test]
async fn time_is_moved_by_tests() {
    let chain = Chain::start().await;
    let client = chain.client().await;
    let time = async || {
        let heads: Value = client.call("dev_heads", json!([])).await.unwrap();
        heads["timestamp"].as_u64().unwrap()
    };
    client.seal(1).await;
    let first = time().await;
    client.seal(1).await;
    assert_eq!(time().await, first + 12_000);
    client
        .call::<Value>("dev_advance", json!([86_400_000]))
        .await
        .unwrap();
    client.seal(1).await;
    let later = first + 24_000 + 86_400_000;
    assert_eq!(time().await, later);
    client
        .call::<Value>("dev_setTime", json!([later + 7]))
        .await
        .unwrap();
    client.seal(2).await;
    assert_eq!(time().await, later + 7 + 12_000);
    let past = client
        .call::<Value>("dev_setTime", json!([later]))
        .await
        .unwrap_err();
    assert_eq!(past.code(), -32602, "{past}");
}

//! The pool: what is refused on arrival and with which number, and what becomes of the rest.

use crate::support::{Chain, next, weights};
use muster_devchain::spec::Spec;
use serde_json::{Value, json};
use sp_core::{Bytes, H256};
use sp_keyring::Sr25519Keyring::{Alice, Bob};

const SUBMIT: &str = "author_submitExtrinsic";
const WATCH: &str = "author_submitAndWatchExtrinsic";
const UNWATCH: &str = "author_unwatchExtrinsic";

#[tokio::test]
async fn garbage_is_not_a_transaction() {
    let chain = Chain::start().await;
    let client = chain.client().await;
    let good = chain.sign(Alice, 0, weights());
    let trailing = [&good[..], &[0]].concat();
    let truncated = good[..good.len() - 1].to_vec();
    let random: Vec<u8> = (0..200u16).map(|i| u8::try_from(i * 37 % 251).unwrap()).collect();
    for raw in [vec![], vec![0xff; 40], random, trailing, truncated] {
        let error = client
            .call::<Value>(SUBMIT, json!([Bytes(raw.clone())]))
            .await
            .unwrap_err();
        assert_eq!(error.code(), 1002, "{raw:?}: {error}");
        assert!(
            client
                .subscribe(WATCH, json!([Bytes(raw)]), UNWATCH)
                .await
                .is_err()
        );
    }
    assert_eq!(
        client
            .call::<Value>(SUBMIT, json!(["nonsense"]))
            .await
            .unwrap_err()
            .code(),
        -32602
    );
    client.call::<H256>(SUBMIT, json!([good])).await.unwrap();
}

#[tokio::test]
async fn refusals_have_their_numbers() {
    let spec = Spec {
        stake_threshold: 1,
        ..Spec::development().unwrap()
    };
    let chain = Chain::start_with(spec).await;
    let client = chain.client().await;
    let refused = async |transaction: Bytes, code: i32, data: &str| {
        let error = client
            .call::<Value>(SUBMIT, json!([transaction]))
            .await
            .unwrap_err();
        let seen = error
            .data()
            .map(|data| serde_json::from_str::<String>(data.get()).unwrap())
            .unwrap();
        assert_eq!(
            (error.code(), seen.contains(data)),
            (code, true),
            "{error}: {seen}"
        );
    };
    refused(chain.sign(Bob, 0, weights()), 1010, "Custom error: 1").await;
    let mut forged = chain.sign(Alice, 0, weights());
    // The signature begins after length, version, address kind, account and signature kind.
    forged.0[40] ^= 1;
    refused(forged, 1010, "bad signature").await;
    let good = chain.sign(Alice, 0, weights());
    client.call::<H256>(SUBMIT, json!([good])).await.unwrap();
    refused(good.clone(), 1013, "0x").await;
    client.seal(1).await;
    refused(chain.sign(Alice, 0, weights()), 1010, "outdated").await;
}

#[tokio::test]
async fn a_watched_transaction_is_followed_to_its_block() {
    let chain = Chain::start().await;
    let client = chain.client().await;
    let transaction = chain.sign(Alice, 0, weights());
    let mut watch = client
        .subscribe(WATCH, json!([transaction]), UNWATCH)
        .await
        .unwrap();
    assert_eq!(next(&mut watch).await, json!("ready"));
    let pending: Vec<Bytes> = client.call("author_pendingExtrinsics", json!([])).await.unwrap();
    assert_eq!(pending, std::slice::from_ref(&transaction));
    let account = Alice.to_account_id().to_string();
    assert_eq!(
        client
            .call::<u32>("account_nextIndex", json!([account]))
            .await
            .unwrap(),
        1
    );
    let block = client.seal(1).await;
    assert_eq!(next(&mut watch).await, json!({ "inBlock": block }));
    assert_eq!(next(&mut watch).await, json!({ "finalized": block }));
    let body: Value = client.call("chain_getBlock", json!([block])).await.unwrap();
    assert_eq!(body["block"]["extrinsics"][1], json!(transaction));
}

#[tokio::test]
async fn nonces_may_arrive_in_any_order() {
    let chain = Chain::start().await;
    let client = chain.client().await;
    for nonce in [2, 0] {
        client
            .call::<H256>(SUBMIT, json!([chain.sign(Alice, nonce, weights())]))
            .await
            .unwrap();
    }
    client.seal(1).await;
    // A transaction that waits for another is not among those that wait for a block.
    let pending: Vec<Bytes> = client.call("author_pendingExtrinsics", json!([])).await.unwrap();
    assert_eq!(pending, []);
    client
        .call::<H256>(SUBMIT, json!([chain.sign(Alice, 1, weights())]))
        .await
        .unwrap();
    let block = client.seal(1).await;
    let body: Value = client.call("chain_getBlock", json!([block])).await.unwrap();
    assert_eq!(
        body["block"]["extrinsics"].as_array().unwrap().len(),
        3,
        "the timestamp, nonces 1 and 2"
    );
    assert_eq!(
        client
            .call::<u32>("account_nextIndex", json!([Alice.to_account_id().to_string()]))
            .await
            .unwrap(),
        3
    );
}

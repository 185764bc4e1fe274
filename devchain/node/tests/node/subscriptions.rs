//! Subscribers see every block, each of them.

use crate::support::{Chain, next, weights};
use frame_support::storage::generator::StorageMap;
use muster_devchain_runtime::subtensor::LastUpdate;
use muster_devchain_runtime::types::{MechId, NetUid};
use muster_devchain_runtime::{Runtime, SPEC_VERSION};
use serde_json::json;
use sp_core::{Bytes, H256};
use sp_keyring::Sr25519Keyring::Alice;

#[tokio::test]
async fn two_subscribers_see_the_same_blocks() {
    let chain = Chain::start().await;
    let (one, two) = (chain.client().await, chain.client().await);
    let mut heads = one
        .subscribe("chain_subscribeNewHeads", json!([]), "chain_unsubscribeNewHeads")
        .await
        .unwrap();
    let end = "chain_unsubscribeFinalizedHeads";
    let mut finals = two
        .subscribe("chain_subscribeFinalizedHeads", json!([]), end)
        .await
        .unwrap();
    one.seal(3).await;
    for number in 0..=3 {
        let head = next(&mut heads).await;
        assert_eq!(head["number"], json!(format!("{number:#x}")));
        assert_eq!(next(&mut finals).await, head);
    }
    drop(heads);
    two.seal(1).await;
    assert_eq!(next(&mut finals).await["number"], "0x4");
}

#[tokio::test]
async fn a_slow_subscriber_misses_nothing() {
    let chain = Chain::start().await;
    let client = chain.client().await;
    let mut heads = client
        .subscribe("chain_subscribeAllHeads", json!([]), "chain_unsubscribeAllHeads")
        .await
        .unwrap();
    let mut numbers = vec![next(&mut heads).await["number"].clone()];
    for _ in 0..10 {
        client.seal(10).await;
        for _ in 0..10 {
            numbers.push(next(&mut heads).await["number"].clone());
        }
    }
    assert_eq!(
        numbers,
        (0..=100).map(|n| json!(format!("{n:#x}"))).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn storage_is_told_when_it_changes() {
    let chain = Chain::start().await;
    let client = chain.client().await;
    let key = Bytes(LastUpdate::<Runtime>::storage_map_final_key(
        NetUid(1).index(MechId(0)),
    ));
    let end = "state_unsubscribeStorage";
    let mut changes = client
        .subscribe("state_subscribeStorage", json!([[key]]), end)
        .await
        .unwrap();
    let first = next(&mut changes).await;
    assert_eq!(first["block"], json!(chain.node.genesis()));
    client.seal(2).await;
    client
        .call::<H256>("author_submitExtrinsic", json!([chain.sign(Alice, 0, weights())]))
        .await
        .unwrap();
    let block = client.seal(1).await;
    let second = next(&mut changes).await;
    assert_eq!(
        second["block"],
        json!(block),
        "blocks that change nothing are not told"
    );
    assert_ne!(second["changes"][0][1], first["changes"][0][1]);
    assert!(
        client
            .subscribe("state_subscribeStorage", json!([]), end)
            .await
            .is_err()
    );
}

#[tokio::test]
async fn the_runtime_version_is_told_once() {
    let chain = Chain::start().await;
    let client = chain.client().await;
    let end = "state_unsubscribeRuntimeVersion";
    let mut version = client
        .subscribe("state_subscribeRuntimeVersion", json!([]), end)
        .await
        .unwrap();
    assert_eq!(next(&mut version).await["specVersion"], SPEC_VERSION);
}

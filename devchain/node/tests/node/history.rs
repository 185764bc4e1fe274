//! Every block keeps its state.

use crate::support::{Chain, weights};
use codec::{Decode, Encode};
use frame_support::storage::generator::StorageDoubleMap;
use muster_devchain_runtime::Runtime;
use muster_devchain_runtime::subtensor::Weights;
use muster_devchain_runtime::types::{MechId, NetUid, NeuronInfo};
use serde_json::{Value, json};
use sp_core::{Bytes, H256};
use sp_keyring::Sr25519Keyring::Alice;

#[tokio::test]
async fn old_blocks_answer_as_they_did() {
    let chain = Chain::start().await;
    let client = chain.client().await;
    let before = client.seal(2).await;
    client
        .call::<H256>("author_submitExtrinsic", json!([chain.sign(Alice, 0, weights())]))
        .await
        .unwrap();
    let after = client.seal(1).await;
    client.seal(50).await;

    let key = Bytes(Weights::<Runtime>::storage_double_map_final_key(
        NetUid(1).index(MechId(0)),
        0u16,
    ));
    let row = Bytes(vec![(1u16, u16::MAX)].encode());
    let value = async |hash: H256| {
        client
            .call::<Option<Bytes>>("state_getStorage", json!([key, hash]))
            .await
            .unwrap()
    };
    assert_eq!(
        (value(before).await, value(after).await),
        (None, Some(row.clone()))
    );
    let size: Option<u64> = client
        .call("state_getStorageSize", json!([key, after]))
        .await
        .unwrap();
    assert_eq!(size, Some(u64::try_from(row.len()).unwrap()));

    let set: Value = client
        .call("state_queryStorageAt", json!([[key], before]))
        .await
        .unwrap();
    assert_eq!(set, json!([{ "block": before, "changes": [[key, null]] }]));

    let weights_at = async |hash: H256| {
        let params = json!([
            "NeuronInfoRuntimeApi_get_neurons",
            Bytes(NetUid(1).encode()),
            hash
        ]);
        let answer: Bytes = client.call("state_call", params).await.unwrap();
        Vec::<NeuronInfo>::decode(&mut &answer[..]).unwrap()[0]
            .weights
            .len()
    };
    assert_eq!((weights_at(before).await, weights_at(after).await), (0, 1));
}

#[tokio::test]
async fn keys_are_paged_in_order() {
    let chain = Chain::start().await;
    let client = chain.client().await;
    let all: Vec<Bytes> = client.call("state_getKeys", json!(["0x"])).await.unwrap();
    let (mut paged, mut start) = (Vec::new(), None::<Bytes>);
    loop {
        let page: Vec<Bytes> = client
            .call("state_getKeysPaged", json!(["0x", 7, start]))
            .await
            .unwrap();
        let Some(last) = page.last() else { break };
        start = Some(last.clone());
        paged.extend(page);
    }
    assert!(all.len() > 50 && all.is_sorted());
    assert_eq!(paged, all);
}

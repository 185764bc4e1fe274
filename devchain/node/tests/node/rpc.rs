//! Methods, parameters and errors.

use crate::support::Chain;
use codec::{Decode, Encode};
use muster_devchain_runtime::types::{Metagraph, NetUid};
use muster_devchain_runtime::{Header, SPEC_VERSION};
use serde_json::{Value, json};
use sp_core::{Bytes, H256};
use sp_keyring::Sr25519Keyring;

#[tokio::test]
async fn blocks_are_sealed_on_command() {
    let chain = Chain::start().await;
    let client = chain.client().await;
    let genesis: H256 = client.call("chain_getBlockHash", json!([0])).await.unwrap();
    assert_eq!(genesis, chain.node.genesis());
    let head = client.seal(3).await;
    let header: Header = client.call("chain_getHeader", json!([])).await.unwrap();
    assert_eq!((header.number, header.hash()), (3, head));
    let hashes: Vec<Option<H256>> = client
        .call("chain_getBlockHash", json!([[0, "0x2", 3, 4]]))
        .await
        .unwrap();
    assert_eq!(
        (hashes[0], hashes[1], hashes[2], hashes[3]),
        (Some(genesis), Some(header.parent_hash), Some(head), None)
    );
    let block: Value = client.call("chain_getBlock", json!([head])).await.unwrap();
    assert_eq!(
        block["block"]["extrinsics"].as_array().unwrap().len(),
        1,
        "the timestamp"
    );
    for n in [0, 100_001] {
        assert_eq!(
            client
                .call::<Value>("dev_seal", json!([n]))
                .await
                .unwrap_err()
                .code(),
            -32602
        );
    }
}

#[tokio::test]
async fn the_same_specification_gives_the_same_chain() {
    let (one, two) = (Chain::start().await, Chain::start().await);
    assert_eq!(one.client().await.seal(5).await, two.client().await.seal(5).await);
}

#[tokio::test]
async fn parameters_have_names_too() {
    let chain = Chain::start().await;
    let client = chain.client().await;
    let sealed: Value = client.call("dev_seal", json!({ "n": 2 })).await.unwrap();
    assert_eq!(sealed["number"], 2);
    let head = &sealed["hash"];
    let hash: Value = client
        .call("chain_getBlockHash", json!({ "hash": 2 }))
        .await
        .unwrap();
    assert_eq!(&hash, head);
    let netuid = Bytes(NetUid(1).encode());
    let api = "SubnetInfoRuntimeApi_get_metagraph";
    let answer: Bytes = client
        .call(
            "state_call",
            json!({ "name": api, "bytes": netuid, "hash": head }),
        )
        .await
        .unwrap();
    let metagraph = Option::<Metagraph>::decode(&mut &answer[..]).unwrap().unwrap();
    assert_eq!(
        metagraph.hotkeys,
        [
            Sr25519Keyring::Alice.to_account_id(),
            Sr25519Keyring::Bob.to_account_id()
        ]
    );
    let keys: Vec<Bytes> = client
        .call(
            "state_getKeysPaged",
            json!({ "prefix": "0x", "count": 2, "hash": head }),
        )
        .await
        .unwrap();
    for start in ["start_key", "startKey"] {
        let params = json!({ "prefix": "0x", "count": 1, start: keys[0] });
        assert_eq!(
            client
                .call::<Vec<Bytes>>("state_getKeysPaged", params)
                .await
                .unwrap(),
            keys[1..]
        );
    }
    let account = Sr25519Keyring::Alice.to_account_id().to_string();
    let nonce: u32 = client
        .call("system_accountNextIndex", json!({ "account": account }))
        .await
        .unwrap();
    assert_eq!(nonce, 0);
}

#[tokio::test]
async fn wrong_requests_are_told_what_is_wrong() {
    let chain = Chain::start().await;
    let client = chain.client().await;
    let cases = [
        ("chain_getNothing", json!([]), -32601),
        ("chain_getBlockHash", json!(["0xzz"]), -32602),
        ("chain_getHeader", json!(["0x12"]), -32602),
        ("state_getStorage", json!([]), -32602),
        ("state_getStorage", json!(["0x00", H256::repeat_byte(7)]), 4003),
        ("state_call", json!(["Nothing_at_all", "0x"]), 4003),
        ("state_getKeysPaged", json!(["0x", 1001]), -32602),
        ("system_accountNextIndex", json!(["5nonsense"]), -32602),
    ];
    for (method, params, code) in cases {
        let error = client.call::<Value>(method, params).await.unwrap_err();
        assert_eq!(error.code(), code, "{method}: {error}");
    }
}

#[tokio::test]
async fn a_panic_in_the_runtime_harms_nobody() {
    let chain = Chain::start().await;
    let client = chain.client().await;
    for _ in 0..3 {
        // The argument is missing, which makes the runtime panic.
        let call = client
            .call::<Value>("state_call", json!(["NeuronInfoRuntimeApi_get_neurons", "0x"]))
            .await;
        assert_eq!(call.unwrap_err().code(), 4003);
    }
    client.seal(1).await;
    let netuid = Bytes(NetUid(1).encode());
    client
        .call::<Bytes>("state_call", json!(["NeuronInfoRuntimeApi_get_neurons", netuid]))
        .await
        .unwrap();
}

#[tokio::test]
async fn every_method_that_clients_need_is_there() {
    let chain = Chain::start().await;
    let list: Value = chain.client().await.call("rpc_methods", json!([])).await.unwrap();
    let methods: Vec<&str> = list["methods"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m.as_str().unwrap())
        .collect();
    for needed in [
        "rpc_methods",
        "chain_getBlockHash",
        "chain_getHead",
        "chain_getFinalizedHead",
        "chain_getHeader",
        "chain_getBlock",
        "chain_subscribeNewHeads",
        "chain_subscribeFinalizedHeads",
        "chain_subscribeAllHeads",
        "state_getRuntimeVersion",
        "state_getMetadata",
        "state_call",
        "state_getStorage",
        "state_getStorageAt",
        "state_queryStorageAt",
        "state_getKeysPaged",
        "state_getKeys",
        "state_subscribeStorage",
        "state_subscribeRuntimeVersion",
        "author_submitExtrinsic",
        "author_submitAndWatchExtrinsic",
        "author_unwatchExtrinsic",
        "system_accountNextIndex",
        "account_nextIndex",
        "system_chain",
        "system_name",
        "system_version",
        "system_health",
        "system_properties",
    ] {
        assert!(methods.contains(&needed), "{needed}");
    }
}

#[tokio::test]
async fn the_runtime_tells_what_it_is() {
    let chain = Chain::start().await;
    let client = chain.client().await;
    let version: Value = client.call("state_getRuntimeVersion", json!([])).await.unwrap();
    assert_eq!(
        (&version["specName"], &version["specVersion"]),
        (&json!("node-subtensor"), &json!(SPEC_VERSION))
    );
    let metadata: Bytes = client.call("state_getMetadata", json!([])).await.unwrap();
    assert_eq!(metadata[..5], *b"meta\x0e");
    let properties: Value = client.call("system_properties", json!([])).await.unwrap();
    assert_eq!(properties["ss58Format"], 42);
}

//! Nobody gets more than there is.

use crate::support::{Chain, options, patience};
use codec::{Decode, Encode};
use muster_devchain::node::Options;
use muster_devchain::server::Limits;
use muster_devchain::spec::Spec;
use muster_devchain_runtime::AccountId;
use muster_devchain_runtime::types::{Metagraph, NetUid};
use serde_json::{Value, json};
use sp_core::crypto::Ss58Codec;
use sp_core::{Bytes, H256};

async fn limited(limits: Limits) -> Chain {
    Chain::start_limited(Spec::development().unwrap(), options(), limits).await
}

#[tokio::test]
async fn requests_have_a_size() {
    let chain = limited(Limits {
        request: 10_000,
        ..Limits::default()
    })
    .await;
    let client = chain.client().await;
    let key = Bytes(vec![1; 4_000]);
    client
        .call::<Value>("state_getStorage", json!([key]))
        .await
        .unwrap();
    let key = Bytes(vec![1; 6_000]);
    let error = client
        .attempt("state_getStorage", json!([key]))
        .await
        .unwrap_err();
    assert!(
        error.to_string().to_lowercase().contains("too big") || !client.is_connected(),
        "{error}"
    );
    // The node serves others.
    chain
        .client()
        .await
        .call::<Value>("system_health", json!([]))
        .await
        .unwrap();
}

#[tokio::test]
async fn connections_have_a_number() {
    let chain = limited(Limits {
        connections: 2,
        ..Limits::default()
    })
    .await;
    let (_one, two) = (chain.client().await, chain.client().await);
    assert!(chain.try_client().await.is_err());
    drop(two);
    // polls until the node has noticed that one is gone
    let place = async {
        while chain.try_client().await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(patience(), place)
        .await
        .expect("the node notices that one is gone");
}

#[tokio::test]
async fn subscriptions_have_a_number() {
    let chain = limited(Limits {
        subscriptions: 2,
        ..Limits::default()
    })
    .await;
    let client = chain.client().await;
    let heads = || client.subscribe("chain_subscribeNewHeads", json!([]), "chain_unsubscribeNewHeads");
    let (_one, _two) = (heads().await.unwrap(), heads().await.unwrap());
    let error = heads().await.unwrap_err().to_string();
    assert!(
        error.contains("-32006") || error.to_lowercase().contains("too many"),
        "{error}"
    );
}

#[tokio::test]
async fn states_are_forgotten_and_blocks_are_not() {
    let options = Options {
        states: 10,
        ..options()
    };
    let chain = Chain::start_limited(Spec::development().unwrap(), options, Limits::default()).await;
    let client = chain.client().await;
    client.seal(200).await;
    let hash = async |number: u32| {
        client
            .call::<H256>("chain_getBlockHash", json!([number]))
            .await
            .unwrap()
    };
    let (old, kept) = (hash(190).await, hash(191).await);
    for (method, params) in [
        ("state_getStorage", json!(["0x00", old])),
        ("state_getKeysPaged", json!(["0x", 1, null, old])),
        ("state_queryStorageAt", json!([["0x00"], old])),
        ("state_call", json!(["Core_version", "0x", old])),
        ("state_getMetadata", json!([old])),
    ] {
        let error = client.call::<Value>(method, params).await.unwrap_err();
        assert_eq!(error.code(), 4003, "{method}");
        let said = format!("State already discarded for {old:?}");
        assert!(error.message().contains(&said), "{method}: {error}");
    }
    client
        .call::<Value>("state_call", json!(["Core_version", "0x", kept]))
        .await
        .unwrap();
    // Headers and bodies come from the store, the first like the others.
    for number in [0, 1, 100, 200] {
        let named = hash(number).await;
        let block: Value = client.call("chain_getBlock", json!([named])).await.unwrap();
        assert_eq!(block["block"]["header"]["number"], format!("{number:#x}"));
    }
    assert_eq!(
        client
            .call::<Option<H256>>("chain_getBlockHash", json!([201]))
            .await
            .unwrap(),
        None
    );
}

#[tokio::test]
async fn metadata_comes_in_every_version_that_the_public_chain_has() {
    let chain = Chain::start().await;
    let client = chain.client().await;
    let call = async |method: &str, argument: Vec<u8>| {
        let params = json!([method, Bytes(argument)]);
        client.call::<Bytes>("state_call", params).await.unwrap().0
    };
    let versions = call("Metadata_metadata_versions", vec![]).await;
    assert_eq!(Vec::<u32>::decode(&mut &versions[..]).unwrap(), [14, 15, 16]);
    for version in [14u32, 15, 16] {
        let answer = call("Metadata_metadata_at_version", version.to_le_bytes().to_vec()).await;
        let metadata = Option::<Vec<u8>>::decode(&mut &answer[..]).unwrap().unwrap();
        assert_eq!(metadata[..4], *b"meta");
        assert_eq!(u32::from(metadata[4]), version);
    }
    let unknown = call("Metadata_metadata_at_version", 13u32.to_le_bytes().to_vec()).await;
    assert_eq!(unknown, [0]);
}

/// The largest resident size of this process so far, in KiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The most neurons that a test asks for: what the public chain's subnets have forty times over.
const NEURONS: u32 = 10_000;

#[tokio::test]
async fn ten_thousand_neurons_are_served_in_bounded_memory() {
    let mut spec = Spec::development().unwrap();
    spec.subnets[0].max_allowed_uids = u16::try_from(NEURONS).unwrap();
    spec.neurons.clear();
    for i in 0..NEURONS {
        let account = AccountId::from(sp_io::hashing::blake2_256(&i.to_le_bytes())).to_ss58check();
        let neuron = json!({ "netuid": 1, "hotkey": account, "coldkey": account, "stake": 1_000_000_000u64 });
        spec.neurons.push(serde_json::from_value(neuron).unwrap());
    }
    let chain = Chain::start_with(spec).await;
    let client = chain.client().await;
    client.seal(2).await;
    let read = async || {
        let params = json!(["SubnetInfoRuntimeApi_get_metagraph", Bytes(NetUid(1).encode())]);
        client.call::<Bytes>("state_call", params).await.unwrap()
    };
    let first = read().await;
    let metagraph = Option::<Metagraph>::decode(&mut &first[..]).unwrap().unwrap();
    assert_eq!(metagraph.hotkeys.len(), 10_000);
    let before = peak();
    let answers = tokio::join!(read(), read(), read(), read(), read(), read(), read(), read());
    let answers: [Bytes; 8] = answers.into();
    assert!(answers.iter().all(|answer| *answer == first));
    // Eight at once in the clients' hands take their own bytes, and those at work no more than there are processors.
    let rise = peak() - before;
    assert!(rise < 512 * 1024, "the peak rose by {rise} KiB");
    let unknown = client
        .call::<Bytes>(
            "state_call",
            json!(["SubnetInfoRuntimeApi_get_metagraph", Bytes(NetUid(77).encode())]),
        )
        .await
        .unwrap();
    assert_eq!(unknown.0, [0], "no such subnet");
}

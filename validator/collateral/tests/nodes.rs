//! The source in front of nodes that misbehave, on real sockets.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use axum::routing::post;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_chain::{BlockNumber, ChainError, EvmAssociation, Netuid, Uid};
use muster_collateral::{
    CollateralError, CollateralSource, Deposit, EvmAddress, EvmCollateral, EvmDirectory, EvmSettings,
    MinerAccount,
};
use muster_process::SystemClock;
use muster_protocol::{Hotkey, MinerKey, Rao};
use serde_json::{Value, json};

const MINER: MinerKey = MinerKey(Hotkey::from_bytes([1; 32]));

/// How a node behaves.
#[derive(Clone, Copy, Debug)]
enum Node {
    /// It serves chain 964 with a contract of subnet 1, in which everybody has 7 rao.
    Honest,
    /// As the honest one, of another chain.
    OtherChain,
    /// It has no code at the address.
    NoCode,
    /// It answers every call with bytes that are no number.
    Garbage,
    /// It answers with something else than JSON.
    NoJson,
    /// It sends bytes without end.
    Endless,
    /// It never answers.
    Silent,
    /// It fails with a status of HTTP.
    Failing,
}

fn reply(node: Node, body: &str) -> Value {
    let request: Value = serde_json::from_str(body).unwrap();
    let result = match request["method"].as_str().unwrap() {
        "eth_chainId" if matches!(node, Node::OtherChain) => json!("0x1"),
        "eth_chainId" => json!("0x3c4"),
        "eth_getCode" if matches!(node, Node::NoCode) => json!("0x"),
        "eth_getCode" => json!("0x6001"),
        _ if matches!(node, Node::Garbage) => json!("0x12"),
        _ => {
            let is_netuid = request["params"][0]["data"] == "0x06016f71";
            let number: u64 = if is_netuid { 1 } else { 7_000_000_000 };
            json!(format!("0x{number:064x}"))
        }
    };
    json!({ "jsonrpc": "2.0", "id": 1, "result": result })
}

async fn serve(node: Node) -> String {
    let handler = move |body: String| async move {
        let text = |text: String| Response::new(Body::from(text));
        match node {
            Node::NoJson => text("<html>".to_owned()),
            Node::Failing => Response::builder().status(503).body(Body::empty()).unwrap(),
            Node::Silent => std::future::pending().await,
            Node::Endless => Response::new(Body::from_stream(futures_util::stream::repeat_with(|| {
                Ok::<_, std::io::Error>(vec![b' '; 65_536])
            }))),
            Node::Honest | Node::OtherChain | Node::NoCode | Node::Garbage => {
                text(reply(node, &body).to_string())
            }
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/secret-key", listener.local_addr().unwrap());
    let router = Router::new().route("/secret-key", post(handler));
    #[expect(
        clippy::disallowed_methods,
        reason = "a server of this test's own, which ends with it"
    )]
    drop(tokio::spawn(async move { axum::serve(listener, router).await }));
    url
}

#[derive(Debug)]
struct Directory;

impl EvmDirectory for Directory {
    fn associations(&self) -> BoxFuture<'_, Result<BTreeMap<Uid, EvmAssociation>, ChainError>> {
        let association = EvmAssociation {
            address: [5; 20],
            block: BlockNumber(3),
        };
        async move { Ok([(Uid(0), association)].into()) }.boxed()
    }

    fn contract(&self) -> BoxFuture<'_, Result<Option<EvmAddress>, ChainError>> {
        async { Ok(Some(EvmAddress::from([6; 20]))) }.boxed()
    }
}

/// The time for one answer where no node is silent: no test reaches it.
const LONG: Duration = Duration::from_secs(600);

async fn read(
    urls: &[String],
    netuid: u16,
    request: Duration,
) -> Result<BTreeMap<MinerKey, Deposit>, CollateralError> {
    let settings = EvmSettings {
        rpc_urls: urls.iter().map(|url| url.parse().unwrap()).collect(),
        chain_id: 964,
        contract: None,
        key_file: None,
        max_fee: Rao(0),
        request,
        receipt: Duration::from_secs(1),
    };
    let clock = Arc::new(SystemClock::new());
    let source = EvmCollateral::new(settings, Netuid(netuid), Arc::new(Directory), clock)?;
    let miner = MinerAccount {
        uid: Uid(0),
        miner: MINER,
        owner: Hotkey::from_bytes([2; 32]),
        registered: BlockNumber(1),
    };
    source.read(&[miner]).await
}

#[tokio::test]
async fn a_node_that_misbehaves_is_an_error_and_never_a_reading() {
    for (node, words) in [
        (Node::OtherChain, "serves chain 1"),
        (Node::NoCode, "there is no contract"),
        (Node::Garbage, "not understood"),
        (Node::NoJson, "not JSON-RPC"),
        (Node::Endless, "longer than"),
        (Node::Silent, "no EVM node answers"),
        (Node::Failing, "503"),
    ] {
        let url = serve(node).await;
        // Silence is noticed by time alone.
        let request = if matches!(node, Node::Silent) {
            Duration::from_secs(2)
        } else {
            LONG
        };
        let error = read(std::slice::from_ref(&url), 1, request)
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(words), "{node:?}: {error}");
        assert!(!error.contains("secret-key"), "{node:?}: {error}");

        // Another node is asked in its place, and all of the reading comes from that one.
        let both = [url, serve(Node::Honest).await];
        let expected = Deposit::Held { amount: Rao(7) };
        // On a busy machine the other node may be later than a silent one is given.
        let reading = async || read(&both, 1, request).await.ok();
        let reading = muster_testbed::until("a reading of the other node", reading).await;
        assert_eq!(reading, [(MINER, expected)].into(), "{node:?}");
    }
}

#[tokio::test]
async fn a_contract_of_another_subnet_is_refused() {
    let url = serve(Node::Honest).await;
    let error = read(&[url], 2, LONG).await.unwrap_err();
    assert!(
        matches!(error, CollateralError::WrongSubnet { found: 1, .. }),
        "{error}"
    );
}

//! The client against a real chain: its reads, its writes, and every way in which a call is rejected.

#[cfg(test)]
mod endpoints;
#[cfg(test)]
mod money;
#[cfg(test)]
mod proxy;
#[cfg(test)]
mod secret;

use std::net::SocketAddr;
use std::time::Duration;

use muster_chain::{
    AxonAnnouncement, BlockNumber, CallRejection, ChainClient, ChainError, Netuid, Rao, Uid, Window,
    WindowStatus,
};
use muster_identity::Keypair;
use muster_protocol::{ErrorCode, ExecutorClass, Hotkey, Manifest};
use serde_json::{Value, json};

use crate::support::{Devchain, TAO, TIMEOUTS};

type Test = anyhow::Result<()>;

const OPEN: Netuid = Netuid(1);
const STRICT: Netuid = Netuid(2);
const COMMITTED: Netuid = Netuid(3);
const CLOSED: Netuid = Netuid(4);

#[cfg(test)]
fn key(name: &str) -> Keypair {
    Keypair::from_uri(&format!("//{name}")).unwrap()
}

fn account(name: &str) -> String {
    key(name).hotkey().to_string()
}

/// Alice is a validator, Bob and Charlie are miners, Dave has a permit and no stake; Eve is not registered.
fn spec() -> Value {
    let neuron = |netuid: Netuid, name: &str, stake: u64, permit: bool| {
        json!({"netuid": netuid.0, "hotkey": account(name), "coldkey": account(&format!("{name}//cold")),
               "stake": stake, "permit": permit})
    };
    let members = |netuid| {
        [
            neuron(netuid, "Alice", 1000 * TAO, true),
            neuron(netuid, "Bob", 10 * TAO, false),
            neuron(netuid, "Charlie", 10 * TAO, false),
            neuron(netuid, "Dave", 0, true),
        ]
    };
    let neurons: Vec<_> = [OPEN, STRICT, COMMITTED].into_iter().flat_map(members).collect();
    json!({
        "stake_threshold": TAO,
        "subnets": [
            {"netuid": OPEN.0, "tempo": 20},
            {"netuid": STRICT.0, "tempo": 30, "weights_rate_limit": 100_000, "weights_version_key": 7,
             "min_allowed_weights": 2, "max_weights_limit": 40_000, "serving_rate_limit": 100_000},
            {"netuid": COMMITTED.0, "commit_reveal": true},
            {"netuid": CLOSED.0, "registration_allowed": false},
        ],
        "balances": {account("Alice"): 100 * TAO, account("Eve"): 5 * TAO, account("Ferdie"): 1000},
        "neurons": neurons,
    })
}

#[tokio::test]
async fn a_metagraph_is_read_whole() -> Test {
    let chain = Devchain::start(&spec()).await?;
    let client = chain.client().await?;
    let graph = client.metagraph(OPEN).await?;
    assert_eq!((graph.netuid, graph.tempo, graph.neurons.len()), (OPEN, 20, 4));

    let alice = graph.find(&key("Alice").hotkey()).unwrap();
    assert_eq!((alice.uid, alice.stake, alice.permit), (Uid(0), 1000 * TAO, true));
    assert_eq!(alice.coldkey, key("Alice//cold").hotkey());
    assert_eq!(alice.axon, None);
    let bob = graph.get(Uid(1)).unwrap();
    assert_eq!(
        (bob.hotkey, bob.stake, bob.permit),
        (key("Bob").hotkey(), 10 * TAO, false)
    );
    assert_eq!(graph.find(&key("Eve").hotkey()), None);
    assert!(matches!(
        client.metagraph(Netuid(99)).await,
        Err(ChainError::NoSubnet(Netuid(99)))
    ));

    // Nobody is in the fourth subnet.
    assert_eq!(client.metagraph(CLOSED).await?.neurons, []);
    Ok(())
}

#[tokio::test]
async fn rules_heights_uids_and_balances_are_read() -> Test {
    let chain = Devchain::start(&spec()).await?;
    let client = chain.client().await?;
    let rules = client.hyperparameters(STRICT).await?;
    assert_eq!(
        (rules.tempo, rules.commit_reveal, rules.weights_rate_limit),
        (30, false, 100_000)
    );
    assert_eq!((rules.weights_version_key, rules.min_allowed_weights), (7, 2));
    assert!(client.hyperparameters(COMMITTED).await?.commit_reveal);
    assert!(matches!(
        client.hyperparameters(Netuid(99)).await,
        Err(ChainError::NoSubnet(_))
    ));

    let head = client.head().await?;
    let mut blocks = client.blocks().await?;
    let mut last = blocks.next().await?;
    assert!(last >= head);
    for _ in 0..5 {
        let next = blocks.next().await?;
        assert_eq!(next.0, last.0 + 1);
        last = next;
    }

    assert_eq!(client.uid_of(OPEN, &key("Charlie").hotkey()).await?, Uid(2));
    let nobody = client.uid_of(OPEN, &key("Eve").hotkey()).await.unwrap_err();
    assert_eq!(nobody.code(), Some(ErrorCode::NotRegistered));
    assert_eq!(client.balance(&key("Alice").hotkey()).await?, Rao(100 * TAO));
    assert_eq!(client.balance(&Hotkey::from_bytes([9; 32])).await?, Rao(0));
    assert!(client.genesis().starts_with("0x"));
    Ok(())
}

#[tokio::test]
async fn an_axon_is_announced_once() -> Test {
    let chain = Devchain::start(&spec()).await?;
    let client = chain.client().await?;
    let bob = key("Bob");
    for address in ["127.0.0.1:8091", "203.0.113.9:65535", "[2001:db8::7]:1"] {
        let address: SocketAddr = address.parse()?;
        assert_eq!(
            client.serve_axon(&bob, OPEN, address).await?,
            AxonAnnouncement::Now
        );
        assert_eq!(
            client.serve_axon(&bob, OPEN, address).await?,
            AxonAnnouncement::Before
        );
        assert_eq!(
            client.metagraph(OPEN).await?.find(&bob.hotkey()).unwrap().axon,
            Some(address)
        );
    }

    let here: SocketAddr = "127.0.0.1:8091".parse()?;
    let nobody = client.serve_axon(&key("Eve"), OPEN, here).await.unwrap_err();
    assert_eq!(nobody.code(), Some(ErrorCode::NotRegistered));
    for unroutable in ["0.0.0.0:80", "[::]:80", "1.2.3.4:0"] {
        let refused = client.serve_axon(&bob, OPEN, unroutable.parse()?).await;
        assert!(matches!(refused, Err(ChainError::Unroutable(_))), "{refused:?}");
    }
    assert_eq!(
        client.serve_axon(&bob, STRICT, here).await?,
        AxonAnnouncement::Now
    );
    let again = client.serve_axon(&bob, STRICT, "127.0.0.1:8092".parse()?).await;
    assert_refused(again, &CallRejection::ServingTooFast, None);
    let broadcast = client.serve_axon(&bob, OPEN, "255.255.255.255:80".parse()?).await;
    assert_refused(broadcast, &CallRejection::InvalidAddress, None);
    Ok(())
}

#[tokio::test]
async fn weights_are_set_and_read_back() -> Test {
    let chain = Devchain::start(&spec()).await?;
    let client = chain.client().await?;
    let alice = key("Alice");
    assert_eq!(client.weights_of(OPEN, Uid(0)).await?, []);

    let set = [(Uid(1), 65535), (Uid(2), 21845)];
    let before = client.head().await?;
    client.set_weights(&alice, OPEN, &set, 0).await?;
    assert_eq!(client.weights_of(OPEN, Uid(0)).await?, [(1, 65535), (2, 21845)]);
    let graph = client.metagraph(OPEN).await?;
    assert!(graph.find(&alice.hotkey()).unwrap().last_update > before);

    client.set_weights(&alice, OPEN, &[(Uid(2), 65535)], 0).await?;
    assert_eq!(client.weights_of(OPEN, Uid(0)).await?, [(2, 65535)]);
    Ok(())
}

#[tokio::test]
async fn calls_at_the_same_moment_wait_for_one_another() -> Test {
    let chain = Devchain::start(&spec()).await?;
    let client = chain.client().await?;
    let alice = key("Alice");
    let (one, two) = ([(Uid(1), 65535)], [(Uid(2), 65535)]);
    let (here, there) = ("127.0.0.1:1".parse()?, "127.0.0.1:2".parse()?);
    tokio::try_join!(
        client.set_weights(&alice, OPEN, &one, 0),
        client.set_weights(&alice, OPEN, &two, 0),
        async { client.serve_axon(&alice, OPEN, here).await.map(|_| ()) },
        async { client.serve_axon(&alice, OPEN, there).await.map(|_| ()) },
    )?;
    Ok(())
}

#[tokio::test]
async fn every_refusal_of_weights_has_its_name_and_page() -> Test {
    let chain = Devchain::start(&spec()).await?;
    let client = chain.client().await?;
    let full = |uids: &[u16]| uids.iter().map(|uid| (Uid(*uid), 65535)).collect::<Vec<_>>();
    let page = Some(ErrorCode::WeightsNotSet);
    let set = async |name: &str, netuid, uids: &[u16], version| {
        client.set_weights(&key(name), netuid, &full(uids), version).await
    };

    assert_refused(
        set("Bob", OPEN, &[0, 2], 0).await,
        &CallRejection::NoValidatorPermit,
        page,
    );
    // The pool finds the missing stake, before any block.
    assert_refused(
        set("Dave", OPEN, &[1], 0).await,
        &CallRejection::StakeTooLow,
        page,
    );
    assert_refused(
        set("Alice", OPEN, &[1, 77], 0).await,
        &CallRejection::InvalidUid,
        page,
    );
    assert_refused(
        set("Alice", OPEN, &[1, 1], 0).await,
        &CallRejection::InvalidUid,
        page,
    );
    assert_refused(
        set("Alice", COMMITTED, &[1], 0).await,
        &CallRejection::CommitRevealEnabled,
        page,
    );
    assert_refused(
        set("Alice", STRICT, &[1, 2], 6).await,
        &CallRejection::WeightVersionKey,
        page,
    );
    assert_refused(
        set("Alice", STRICT, &[1], 7).await,
        &CallRejection::TooFewWeights,
        page,
    );
    let lopsided = client
        .set_weights(&key("Alice"), STRICT, &[(Uid(1), 65535), (Uid(2), 1)], 7)
        .await;
    assert_refused(lopsided, &CallRejection::MaxWeightExceeded, page);
    set("Alice", STRICT, &[1, 2], 7).await?;
    assert_refused(
        set("Alice", STRICT, &[1, 2], 7).await,
        &CallRejection::WeightsTooFast,
        page,
    );
    Ok(())
}

#[tokio::test]
async fn a_subnet_or_a_hotkey_that_does_not_exist_is_named() -> Test {
    let chain = Devchain::start(&spec()).await?;
    let client = chain.client().await?;
    let one = [(Uid(1), 1)];
    let unknown = client.set_weights(&key("Alice"), Netuid(99), &one, 0).await;
    assert!(
        matches!(unknown, Err(ChainError::NoSubnet(Netuid(99)))),
        "{unknown:?}"
    );
    let stranger = client.set_weights(&key("Eve"), OPEN, &one, 0).await.unwrap_err();
    assert_eq!(stranger.code(), Some(ErrorCode::NotRegistered));
    Ok(())
}

#[tokio::test]
async fn a_manifest_is_stated_and_read() -> Test {
    let chain = Devchain::start(&spec()).await?;
    let client = chain.client().await?;
    let bob = key("Bob");
    assert_eq!(client.manifest_of(OPEN, &bob.hotkey()).await?, None);
    for count in [3, 0] {
        let manifest = Manifest::new(
            [(ExecutorClass::AlwaysOnTest, count)]
                .into_iter()
                .filter(|(_, count)| *count > 0),
        );
        assert_eq!(
            client.commit_manifest(&bob, OPEN, &manifest).await?,
            AxonAnnouncement::Now
        );
        assert_eq!(
            client.commit_manifest(&bob, OPEN, &manifest).await?,
            AxonAnnouncement::Before
        );
        assert_eq!(
            client.manifests(OPEN).await?,
            [(bob.hotkey(), manifest.clone())].into()
        );
        assert_eq!(client.manifest_of(OPEN, &bob.hotkey()).await?, Some(manifest));
    }
    let stranger = client
        .commit_manifest(&key("Eve"), OPEN, &Manifest::default())
        .await
        .unwrap_err();
    assert!(
        stranger.to_string().contains("AccountNotAllowedCommit"),
        "{stranger}"
    );
    Ok(())
}

#[tokio::test]
async fn windows_follow_the_chains_own_epochs() -> Test {
    let chain = Devchain::start(&spec()).await?;
    let client = chain.client().await?;
    let alice = key("Alice");
    let mut blocks = client.blocks().await?;
    let (mut cycles, mut sets) = (Vec::new(), 0);
    while cycles.len() < 3 {
        blocks.next().await?;
        let graph = client.metagraph(OPEN).await?;
        let last = graph.find(&alice.hotkey()).map(|neuron| neuron.last_update);
        let window = Window::at(graph.tempo, graph.last_epoch, graph.block);
        assert!(window.cycle.0 <= graph.block.0 && graph.block < window.end);
        match window.due(graph.block, last, 0) {
            WindowStatus::Now => {
                client.set_weights(&alice, OPEN, &[(Uid(1), 65535)], 0).await?;
                sets += 1;
                cycles.push(window.cycle);
            }
            WindowStatus::NotYet(_)
            | WindowStatus::Done(_)
            | WindowStatus::TooFast(_)
            | WindowStatus::Missed(_) => {}
        }
    }
    assert!(cycles.is_sorted_by(|a, b| a < b), "{cycles:?}");
    assert_eq!(sets, 3);
    Ok(())
}

#[tokio::test]
async fn an_endpoint_that_is_gone_is_named_and_found_again() -> Test {
    let mut chain = Devchain::start(&spec()).await?;
    let client = chain.client().await?;
    let mut blocks = client.blocks().await?;
    blocks.next().await?;

    chain.kill().await?;
    let gone = client.metagraph(OPEN).await.unwrap_err();
    assert!(gone.is_unreachable(), "{gone:?}");
    assert_eq!(gone.code(), Some(ErrorCode::ChainUnreachable));
    let gone = client
        .set_weights(&key("Alice"), OPEN, &[(Uid(1), 1)], 0)
        .await
        .unwrap_err();
    assert!(gone.is_unreachable(), "nothing was submitted: {gone:?}");

    chain.start_again().await?;
    let answered = async || {
        let graph = client.metagraph(OPEN).await;
        if let Err(error) = &graph {
            assert!(error.is_unreachable(), "{error:?}");
        }
        graph.ok()
    };
    let graph = muster_testbed::until("an answer of the chain that is back", answered).await;
    assert_eq!(graph.neurons.len(), 4);
    client.set_weights(&key("Alice"), OPEN, &[(Uid(1), 1)], 0).await?;
    assert_eq!(client.weights_of(OPEN, Uid(0)).await?, [(1, 65535)]);
    // The subscription works again as well.
    let next: BlockNumber = muster_testbed::within("the next block", blocks.next()).await?;
    assert!(next.0 > 0);
    Ok(())
}

#[tokio::test]
async fn an_address_without_a_chain_is_named() -> Test {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let timeouts = muster_chain::ChainTimeouts {
        read: Duration::from_millis(500),
        ..TIMEOUTS
    };
    for url in [format!("ws://{}", silent.local_addr()?), format!("ws://{nobody}")] {
        let error = ChainClient::connect_with(&url, timeouts).await.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::ChainUnreachable), "{error:?}");
    }
    for url in [
        "",
        "127.0.0.1:9944",
        "ws://chain.example:9944",
        "http://127.0.0.1:9944",
    ] {
        let error = ChainClient::connect_with(url, timeouts).await.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::ConfigInvalid), "{url}");
    }
    Ok(())
}

#[cfg(test)]
#[track_caller]
fn assert_refused<T: std::fmt::Debug>(
    result: Result<T, ChainError>,
    expected: &CallRejection,
    page: Option<ErrorCode>,
) {
    match result {
        Err(error @ ChainError::Refused { .. }) => {
            let ChainError::Refused { refusal, .. } = &error else {
                unreachable!()
            };
            assert_eq!(refusal, expected, "{error}");
            assert_eq!(error.code(), page, "{error}");
        }
        other => panic!("expected {expected:?}, got {other:?}"),
    }
}

//! Several endpoints, and the faults that each of them may have.

use std::sync::Arc;
use std::time::Duration;

use muster_chain::{ChainClient, ChainError, ChainTimeouts, MetagraphEvent, Rao, Uid};
use muster_process::clock::SystemClock;
use muster_protocol::ErrorCode;
use serde_json::json;

use super::proxy::{Proxy, Spoil};
use super::{OPEN, Test, account, key, spec};
use crate::support::{Devchain, TAO, TIMEOUTS};

/// Time-outs that strike while a test looks: silence and a head that stands still are noticed by time alone.
const QUICK: ChainTimeouts = ChainTimeouts {
    read: Duration::from_secs(2),
    finality: Duration::from_secs(20),
    stall: Duration::from_millis(500),
};

async fn connect(urls: &[&str], timeouts: ChainTimeouts) -> Result<Arc<ChainClient>, ChainError> {
    let urls: Vec<String> = urls.iter().map(|url| (*url).to_owned()).collect();
    ChainClient::connect_any(&urls, timeouts, Arc::new(SystemClock::new())).await
}

/// Waits until `done` accepts the state that the client reads.
async fn until(client: &ChainClient, mut done: impl FnMut(u64) -> bool) -> Test {
    let look = async || match client.head().await {
        Ok(head) => done(head.0).then_some(Ok(())),
        // A busy machine may be later than a short time-out of the client.
        Err(error) if error.is_unreachable() => None,
        Err(error) => Some(Err(error)),
    };
    Ok(muster_testbed::until("the head of the chain", look).await?)
}

#[tokio::test]
async fn one_endpoint_after_the_other_may_fail() -> Test {
    let chain = Devchain::start(&spec()).await?;
    let (one, two) = (Proxy::open(&chain.url).await?, Proxy::open(&chain.url).await?);
    let client = connect(&[&one.url, &two.url], TIMEOUTS).await?;
    let mut blocks = client.blocks().await?;
    let mut last = blocks.next().await?;
    let down = || Spoil {
        down: true,
        ..Spoil::default()
    };
    for (first, second) in [(down(), Spoil::default()), (Spoil::default(), down())] {
        one.spoil(first);
        two.spoil(second);
        for _ in 0..5 {
            let answered = async || blocks.next().await.ok();
            let next = muster_testbed::until("a block of the endpoint that is left", answered).await;
            assert_eq!(next.0, last.0 + 1, "no block is left out and none is told twice");
            last = next;
        }
        assert_eq!(client.metagraph(OPEN).await?.neurons.len(), 4);
        client
            .set_weights(&key("Alice"), OPEN, &[(Uid(1), 65535)], 0)
            .await?;
    }
    Ok(())
}

#[tokio::test]
async fn silence_and_a_head_that_stands_still_are_failures() -> Test {
    let chain = Devchain::start(&spec()).await?;
    let (one, two) = (Proxy::open(&chain.url).await?, Proxy::open(&chain.url).await?);
    let client = connect(&[&one.url, &two.url], QUICK).await?;
    let before = client.head().await?;
    one.spoil(Spoil {
        stalled: true,
        ..Spoil::default()
    });
    until(&client, |head| head > before.0 + 20).await?;

    // The second endpoint is asked from now on; then it stops answering, and the first one's head moves again.
    one.spoil(Spoil::default());
    two.spoil(Spoil {
        silent: true,
        ..Spoil::default()
    });
    let now = muster_testbed::until("a reading of the first endpoint", async || {
        client.metagraph(OPEN).await.ok()
    });
    assert!(now.await.block > before);
    Ok(())
}

#[tokio::test]
async fn another_chain_is_refused_and_named() -> Test {
    let chain = Devchain::start(&spec()).await?;
    let mut other = spec();
    other["balances"] = json!({account("Eve"): 7 * TAO});
    let other = Devchain::start(&other).await?;
    let one = Proxy::open(&chain.url).await?;
    let client = connect(&[&one.url, &other.url], QUICK).await?;
    one.spoil(Spoil {
        down: true,
        ..Spoil::default()
    });
    let look = async || {
        let error = client.metagraph(OPEN).await.unwrap_err();
        matches!(error, ChainError::WrongChain { .. }).then_some(error)
    };
    let error = muster_testbed::until("the wrong chain is named", look).await;
    let ChainError::WrongChain { url, expected, found } = &error else {
        panic!("{error:?}");
    };
    assert_eq!((url, expected), (&other.url, &client.genesis()));
    assert_ne!(expected, found);
    assert_eq!(error.code(), Some(ErrorCode::ConfigInvalid));
    // The right one comes back and is used.
    one.spoil(Spoil::default());
    until(&client, |_| true).await
}

#[tokio::test]
async fn a_newer_runtime_is_read_with_its_own_metadata() -> Test {
    let chain = Devchain::start(&spec()).await?;
    let proxy = Proxy::open(&chain.url).await?;
    let client = connect(&[&proxy.url], TIMEOUTS).await?;
    client.metagraph(OPEN).await?;
    let before = proxy.metadata();
    client.metagraph(OPEN).await?;
    assert_eq!(proxy.metadata(), before, "metadata is kept");
    proxy.spoil(Spoil {
        newer: 1,
        ..Spoil::default()
    });
    client.hyperparameters(OPEN).await?;
    assert!(
        proxy.metadata() > before,
        "a newer runtime has metadata of its own"
    );
    Ok(())
}

#[tokio::test]
async fn a_chain_of_another_kind_is_named() -> Test {
    let chain = Devchain::start(&spec()).await?;
    let proxy = Proxy::open(&chain.url).await?;
    proxy.spoil(Spoil {
        foreign: true,
        ..Spoil::default()
    });
    let client = connect(&[&proxy.url], TIMEOUTS).await?;
    let one = [(Uid(1), 1)];
    for error in [
        client.metagraph(OPEN).await.unwrap_err(),
        client.uid_of(OPEN, &key("Alice").hotkey()).await.unwrap_err(),
        client
            .set_weights(&key("Alice"), OPEN, &one, 0)
            .await
            .unwrap_err(),
        client.registration_price(OPEN).await.unwrap_err(),
    ] {
        let text = error.to_string();
        assert!(matches!(error, ChainError::Answer { .. }), "{error:?}");
        assert!(
            text.contains("another kind of chain") && text.contains("check the address"),
            "{text}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn garbage_is_an_error_that_names_the_endpoint_and_never_more() -> Test {
    let chain = Devchain::start(&spec()).await?;
    let proxy = Proxy::open(&chain.url).await?;
    let client = connect(&[&proxy.url], TIMEOUTS).await?;
    client.metagraph(OPEN).await?;
    let mut errors = 0;
    for seed in 0..60 {
        proxy.spoil(Spoil {
            garbage: Some(seed),
            ..Spoil::default()
        });
        let graph = client.metagraph(OPEN).await.map(|_| ());
        let rules = client.weight_rules(OPEN).await.map(|_| ());
        for error in [graph, rules].into_iter().filter_map(Result::err) {
            errors += 1;
            let text = error.to_string();
            assert!(
                text.contains("not understood") || text.contains("subnet") || text.contains("answers"),
                "{seed}: {text}"
            );
        }
    }
    assert!(errors > 20, "the garbage was noticed {errors} times");
    proxy.spoil(Spoil::default());
    assert_eq!(client.metagraph(OPEN).await?.neurons.len(), 4);
    Ok(())
}

#[tokio::test]
async fn changes_are_told_as_they_become_final() -> Test {
    let chain = Devchain::start(&spec()).await?;
    let client = chain.client().await?;
    let mut watch = client.watch(OPEN, Rao(u64::MAX)).await?;
    let bob = key("Bob");
    client.serve_axon(&bob, OPEN, "127.0.0.1:9".parse()?).await?;
    let new = key("Eve//hot").hotkey();
    client
        .burned_register(&key("Eve"), OPEN, &new, Rao(50 * TAO))
        .await?;
    let (mut axon, mut registered) = (false, false);
    while !(axon && registered) {
        let event = muster_testbed::within("a change", watch.next()).await?;
        match event {
            MetagraphEvent::AxonChanged { uid: Uid(1), to, .. } => axon = to == Some("127.0.0.1:9".parse()?),
            MetagraphEvent::Registered {
                uid: Uid(4), hotkey, ..
            } => registered = hotkey == new,
            MetagraphEvent::PermitGained(_) | MetagraphEvent::PermitLost(_) => {}
            // Epochs pay, and so stakes and permits move meanwhile; nothing else does.
            other @ (MetagraphEvent::AxonChanged { .. }
            | MetagraphEvent::Registered { .. }
            | MetagraphEvent::UidReused { .. }
            | MetagraphEvent::HotkeySwapped { .. }
            | MetagraphEvent::Deregistered { .. }
            | MetagraphEvent::StakeChanged { .. }
            | MetagraphEvent::RulesChanged { .. }) => panic!("{other:?}"),
        }
    }
    assert_eq!(watch.last().graph.neurons.len(), 5);
    Ok(())
}

//! A validator that signs two statements of capacity for one cycle, and shows each to another peer, over real HTTP.

use muster_identity::{Keypair, verify};
use muster_process::Clock as _;
use muster_protocol::{ExecutorClass, Hotkey, MinerKey, Timestamp, ValidatorKey, canonical};
use muster_scoring::capacity_statements::{
    CapacityEvidence, MinerObservations, ObservedMiner, SeenDigest, SeenList, SignedStatement,
    StatementContext, sign_statement,
};
use muster_scoring::{Observation, ObservationKind, ScoringSnapshot};
use serde_json::Value;

use crate::sockets::gathering::{about, write};
use crate::sockets::support::miner::Miner;
use crate::sockets::support::{World, while_time_passes};

/// The cycle of the tests: the blocks 11 to 21.
const CYCLE: u64 = 11;

/// The time of the first block.
fn begin() -> Timestamp {
    Timestamp::from_secs(1_770_000_012)
}

fn key(uri: &str) -> Hotkey {
    Keypair::from_uri(uri).unwrap().hotkey()
}

/// A statement of `//Liar` with its evidence: a miner of which `shown` executors showed themselves.
fn statement(shown: u32) -> (SignedStatement, CapacityEvidence) {
    let seen = ObservedMiner {
        observations: vec![Observation {
            kind: ObservationKind::Announced,
            at: begin(),
            announced: shown,
            shown,
            credit: u64::from(shown) * 1_000,
            excuses: vec![],
        }],
        offers: 0,
        refused: 0,
    };
    let place = (MinerKey(key("//Miner")), ExecutorClass::AlwaysOnTest);
    let evidence = CapacityEvidence::of(&MinerObservations::from([(place, seen)]));
    let liar = Keypair::from_uri("//Liar").unwrap();
    let context = StatementContext {
        genesis: format!("0x{}", "ab".repeat(32)),
        netuid: 1,
        validator: ValidatorKey(liar.hotkey()),
        cycle: CYCLE,
    };
    (sign_statement(&liar, context, &evidence), evidence)
}

/// Shows a statement and its evidence on a page, with a receipt of the lease behind it.
fn show(pages: &Miner, (statement, evidence): &(SignedStatement, CapacityEvidence)) {
    let path = format!("/capacity-evidence/{}", statement.evidence());
    pages.server.write(&path, evidence.to_text().as_bytes());
    let path = format!("/capacity/{CYCLE}");
    pages.server.write(&path, statement.to_text().as_bytes());
    let (liar, miner) = (
        Keypair::from_uri("//Liar").unwrap(),
        Keypair::from_uri("//Miner").unwrap(),
    );
    write(pages, begin(), &about(&liar, &miner, 1, "5.000000", begin())[..1]);
}

/// The world of one validator of two, `//A` and `//B`, that serves pages. `liar` is where it reads those of `//Liar`, a
/// third one with a permit.
async fn world(me: &str, other: &Miner, liar: &Miner, served: std::net::SocketAddr) -> World {
    let named = Miner::open("//Liar").await;
    let mut world = World::of(me, &[other, &named]).await;
    world.chain.permit(1);
    world.chain.permit(2);
    world.chain.remember();
    world.chain.without_axons();
    world.chain.state_pages(key("//Liar"), liar.server.address);
    world.config.receipts.gather = true;
    world.config.receipts.interval_s = 1;
    world.config.pages.bind = Some(served);
    world.test_clock.advance_to(begin());
    world
}

fn address() -> std::net::SocketAddr {
    muster_testbed::free_address().unwrap()
}

async fn state(world: &World, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    while_time_passes(&world.test_clock, what, world.until(what, is)).await
}

/// The statement that is served as evidence; its signature is the liar's.
async fn evidence(world: &World, digest: &str) -> SignedStatement {
    let served = world.get(&format!("/v0/capacity-statements/{digest}")).await;
    let statement: SignedStatement = serde_json::from_value(served.clone()).unwrap();
    assert_eq!(statement.digest().to_string(), digest);
    let mut signed = served;
    signed.as_object_mut().unwrap().remove("signature");
    let text = canonical::sorted_compact(&signed);
    assert!(verify(&key("//Liar"), text.as_bytes(), &statement.signature()));
    statement
}

#[tokio::test]
async fn a_liar_that_shows_two_peers_different_rows_is_found_by_both_and_has_no_vote() {
    let (first, second) = (statement(2), statement(3));
    let (to_a, to_b) = (Miner::open("//PagesA").await, Miner::open("//PagesB").await);
    show(&to_a, &first);
    show(&to_b, &second);
    let (a_pages, b_pages) = (address(), address());
    let mut a = world("//A", &Miner::open("//B").await, &to_a, a_pages).await;
    let mut b = world("//B", &Miner::open("//A").await, &to_b, b_pages).await;
    a.chain.state_pages(key("//B"), b_pages);
    b.chain.state_pages(key("//A"), a_pages);
    let digests: Vec<_> = [&first, &second]
        .map(|(statement, _)| statement.digest().to_string())
        .into();
    for world in [&mut a, &mut b] {
        world.start();
        world.facilitator.accept().await;
        world.chain.seal_to(11);
        world.seen(11).await;
    }
    for world in [&a, &b] {
        // Each was shown one of them by the liar, and the other by its peer.
        let (clock, other) = (
            world.test_clock.clone(),
            if std::ptr::eq(world, &a) { &b } else { &a },
        );
        other.test_clock.advance_to(clock.now());
        let found = async {
            loop {
                let view = world.state().await;
                if view["contradictions"]
                    .as_array()
                    .is_some_and(|found| !found.is_empty())
                {
                    return view["contradictions"][0].clone();
                }
                other.test_clock.advance(std::time::Duration::from_secs(1));
                crate::sockets::support::look_again().await;
            }
        };
        let found = while_time_passes(&clock, "the contradiction", found).await;
        assert_eq!(
            (&found["validator"], &found["cycle"]),
            (&key("//Liar").to_string().into(), &CYCLE.into())
        );
        let mut expected = digests.clone();
        expected.sort();
        assert_eq!(found["digests"], serde_json::json!(expected));
        for digest in &digests {
            evidence(world, digest).await;
        }
    }
    for world in [&mut a, &mut b] {
        world.chain.seal_to(17);
        let scored = state(world, "a scored cycle", |state| {
            state["cycles"][0]["number"] == CYCLE
        })
        .await;
        let path = format!(
            "/v0/scoring-snapshots/{}",
            scored["cycles"][0]["snapshot"].as_str().unwrap()
        );
        let snapshot = ScoringSnapshot::parse(&world.get(&path).await.to_string()).unwrap();
        assert_eq!(snapshot.capacity, None, "its statement was the only one");
        world.stop().await;
    }
}

#[tokio::test]
async fn a_statement_that_one_peer_was_shown_counts_and_a_forged_one_accuses_nobody() {
    let honest = statement(2);
    let (pages, peer) = (Miner::open("//Pages").await, Miner::open("//PagesB").await);
    show(&pages, &honest);
    let mut a = world("//A", &Miner::open("//B").await, &pages, address()).await;
    a.chain.state_pages(key("//B"), peer.server.address);
    // The peer lists a second statement, and serves one that it has changed.
    let (second, _) = statement(3);
    let mut forged: Value = serde_json::from_str(&second.to_text()).unwrap();
    forged["rows"][0]["executors"] = 50.into();
    let entry = SeenDigest::of(&serde_json::from_value(forged.clone()).unwrap());
    let path = format!("/capacity-statements/{}", entry.digest);
    peer.server
        .write(&path, canonical::sorted_compact(&forged).as_bytes());
    let list = SeenList {
        statements: vec![entry],
    };
    peer.server
        .write(&format!("/capacity-seen/{CYCLE}"), list.to_text().as_bytes());
    a.start();
    a.facilitator.accept().await;
    a.chain.seal_to(11);
    a.seen(11).await;
    // The statement counts in the round after the one in which the receipt of its lease was read.
    state(&a, "the receipt", |state| state["gathered"] == 1).await;
    // Answers of the validator are counted, and not seconds: on a busy machine its rounds take as much longer.
    let rounds = async {
        for _ in 0..80 {
            a.state().await;
            crate::sockets::support::look_again().await;
        }
    };
    while_time_passes(&a.test_clock, "rounds of gathering", rounds).await;
    a.chain.seal_to(17);
    let scored = state(&a, "a scored cycle", |state| {
        state["cycles"][0]["number"] == CYCLE
    })
    .await;
    assert_eq!(scored["contradictions"], serde_json::json!([]));
    let path = format!(
        "/v0/scoring-snapshots/{}",
        scored["cycles"][0]["snapshot"].as_str().unwrap()
    );
    let snapshot = ScoringSnapshot::parse(&a.get(&path).await.to_string()).unwrap();
    let stated = snapshot.capacity.unwrap().statements;
    assert_eq!(stated, [honest.0.stated()]);
    a.stop().await;
}

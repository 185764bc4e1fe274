//! Verdicts about streamed answers: the operator adopts a bundle, others read it, and the scores follow.

use muster_identity::Keypair;
use muster_process::operator_token::OperatorToken;
use muster_protocol::{Digest, Hotkey};
use muster_scoring::ScoringSnapshot;
use serde_json::{Value, json};

use crate::sockets::support::World;
use crate::sockets::support::miner::Miner;

/// A conviction of //Cheat, which belongs to //CheatOwner: eight answers of four-bit weights to the auditor's prompts.
const BUNDLE: &str = include_str!("../../../../tests/vectors/audit-bundle.json");

fn key(uri: &str) -> Hotkey {
    Keypair::from_uri(uri).unwrap().hotkey()
}

/// Sends a bundle; the status and the answer.
async fn adopt(world: &World, bundle: &str, as_operator: bool) -> (u16, Value) {
    let url = world.status_url("/v0/audits").await;
    let mut request = reqwest::Client::new().post(url).body(bundle.to_owned());
    if as_operator {
        let token = OperatorToken::read(&world.config.operator_token).unwrap();
        request = request.header("authorization", token.authorization());
    }
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

async fn snapshot(world: &World, cycle: u64) -> ScoringSnapshot {
    let scored = |state: &Value| {
        let cycles = state["cycles"].as_array().cloned().unwrap_or_default();
        cycles.into_iter().find(|row| row["number"] == cycle)
    };
    let state = world
        .until("a scored cycle", |state| scored(state).is_some())
        .await;
    let digest = scored(&state).unwrap()["snapshot"].as_str().unwrap().to_owned();
    let served = world.get(&format!("/v0/scoring-snapshots/{digest}")).await;
    ScoringSnapshot::parse(&served.to_string()).unwrap()
}

#[tokio::test]
async fn the_operator_adopts_a_conviction_and_the_next_cycle_is_scored_with_it() {
    let (one, cheat) = (Miner::open("//Miner").await, Miner::open("//Cheat").await);
    let mut world = World::new(&[&one, &cheat]).await;
    world.chain.own(2, key("//CheatOwner"));
    world.start();
    world.facilitator.accept().await;
    world.chain.seal_to(12);
    world.seen(12).await;
    assert_eq!(adopt(&world, BUNDLE, false).await.0, 401);
    let (status, refused) = adopt(&world, &BUNDLE.replace("\"netuid\":1", "\"netuid\":2"), true).await;
    assert_eq!(status, 409, "{refused}");
    assert!(
        refused["error"].as_str().unwrap().contains("of another subnet"),
        "{refused}"
    );
    assert_eq!(world.get("/v0/audits").await["audits"], json!([]));
    let (status, adopted) = adopt(&world, BUNDLE, true).await;
    assert_eq!(status, 200, "{adopted}");
    assert_eq!(adopted["verdict"], "convicted");
    let listed = world.get("/v0/audits").await;
    assert_eq!(listed["audits"], json!([adopted]));
    let digest = Digest::of(BUNDLE.as_bytes()).to_string();
    assert_eq!(adopted["digest"], digest);
    let url = world.status_url(&format!("/v0/audits/{digest}")).await;
    let served = reqwest::get(url).await.unwrap().text().await.unwrap();
    assert!(served == BUNDLE, "byte for byte");
    world.chain.seal_to(18);
    let snapshot = snapshot(&world, 11).await;
    let convicted: Vec<_> = snapshot
        .convictions
        .iter()
        .map(|one| (one.coldkey, one.hotkey))
        .collect();
    assert_eq!(convicted, [(key("//CheatOwner"), key("//Cheat"))]);
    world.stop().await;
}

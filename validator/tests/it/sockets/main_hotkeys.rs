//! Main hotkeys: each miner is asked once in a cycle, over a real socket, and the answers are inputs of the score.

use muster_identity::Keypair;
use muster_protocol::Hotkey;
use muster_protocol::wire::miner::MainHotkey;
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_scoring::ScoringSnapshot;

use crate::sockets::support::World;
use crate::sockets::support::miner::Miner;

fn key(uri: &str) -> Hotkey {
    Keypair::from_uri(uri).unwrap().hotkey()
}

/// Answers the question of one cycle, and hangs up.
async fn answer(miner: &mut Miner, main: Option<Hotkey>) {
    let mut session = miner.accept().await;
    let asked = session.receive().await;
    let ValidatorToMiner::V0MainHotkeyMessage(MainHotkey { main_hotkey: None }) = asked else {
        panic!("the question was due: {asked:?}");
    };
    let answer = MainHotkey { main_hotkey: main };
    session.send(MinerToValidator::V0MainHotkeyMessage(answer)).await;
}

async fn snapshot(world: &World, cycle: u64) -> ScoringSnapshot {
    let scored = |state: &serde_json::Value| {
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
async fn every_miner_is_asked_once_in_a_cycle_and_a_cycle_is_scored_with_its_answers_and_those_before() {
    let (mut one, mut two) = (Miner::open("//One").await, Miner::open("//Two").await);
    let mut silent = Miner::open("//Silent").await;
    let mut world = World::new(&[&one, &two, &silent]).await;
    world.config.scoring.ask_main_hotkeys = true;
    world.config.timing.dial_s = 600;
    let (owner, another) = (key("//Owner"), key("//Another"));
    world.chain.own(1, owner);
    world.chain.own(2, owner);
    world.chain.own(3, another);
    world.start();
    world.facilitator.accept().await;
    // In the first cycle both name the first, in the second both name the second; the third one names none.
    for (block, main) in [(1, key("//One")), (12, key("//Two"))] {
        world.chain.seal_to(block);
        let quiet = async {
            let _session = silent.accept().await;
        };
        tokio::join!(answer(&mut one, Some(main)), answer(&mut two, Some(main)), quiet);
        world.seen(block).await;
    }
    world.chain.seal_to(18);
    let snapshot = snapshot(&world, 11).await;
    let mains: Vec<_> = snapshot
        .main_hotkeys
        .iter()
        .map(|main| (main.coldkey, main.main, main.before))
        .collect();
    assert_eq!(mains, [(owner, key("//Two"), Some(key("//One")))]);
    assert_eq!(snapshot.rules.bonus_per_mille, 0);
    // Nobody is asked a second time in the cycle.
    assert_eq!(one.server.waiting(), 0);
    world.stop().await;
}

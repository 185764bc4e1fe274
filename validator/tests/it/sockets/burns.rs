//! Burned rao: with a price for a second, a cycle is scored by the transfers that were read, and never without them.

use muster_chain::{AccountTransfer, BlockNumber};
use muster_identity::Keypair;
use muster_protocol::{Hotkey, JobStatus, Rao};
use muster_scoring::ScoringSnapshot;

use crate::sockets::support::World;
use crate::sockets::support::facilitator::job;
use crate::sockets::support::miner::Miner;

fn key(uri: &str) -> Hotkey {
    Keypair::from_uri(uri).unwrap().hotkey()
}

/// A validator that has done nine seconds of work in the first cycle, for which it has to burn five rao a second.
async fn worked(miner: &mut Miner) -> World {
    let mut world = World::in_real_time(&[miner]).await;
    world.config.scoring.burn_per_second = 5;
    world.config.scoring.burn_account = Some(key("//Treasury"));
    world.chain.own(0, key("//Owner"));
    world.start();
    world.facilitator.accept().await;
    world.seen(1).await;
    world.facilitator.submit(&job("//User", 1)).await;
    let mut session = miner.accept().await;
    let id = session.begin().await;
    session.complete(id).await;
    session.paid().await;
    let (statuses, _) = world.facilitator.updates_to_the_end().await;
    assert_eq!(statuses.last(), Some(&JobStatus::Completed));
    world
}

fn transfer(block: u64, from: Hotkey, rao: u64) -> (BlockNumber, AccountTransfer) {
    let transfer = AccountTransfer {
        from,
        to: key("//Treasury"),
        amount: Rao(rao),
    };
    (BlockNumber(block), transfer)
}

async fn scored(world: &World) -> (serde_json::Value, ScoringSnapshot) {
    let is_scored = |state: &serde_json::Value| state["cycles"][0]["number"] == 11;
    let cycle = world.until("a scored cycle", is_scored).await["cycles"][0].clone();
    let path = format!("/v0/scoring-snapshots/{}", cycle["snapshot"].as_str().unwrap());
    let snapshot = ScoringSnapshot::parse(&world.get(&path).await.to_string()).unwrap();
    (cycle, snapshot)
}

#[tokio::test]
async fn work_counts_if_the_validators_keys_have_burned_for_it_within_the_cycle() {
    let me = key("//Validator");
    for (what, transfers, burned, counts) in [
        (
            "hotkey and coldkey",
            vec![transfer(3, me, 20), transfer(10, key("//Owner"), 25)],
            Some(45),
            true,
        ),
        ("one rao too little", vec![transfer(3, me, 44)], Some(44), false),
        (
            "somebody else",
            vec![transfer(3, key("//Friend"), 45)],
            None,
            false,
        ),
        ("in the next cycle", vec![transfer(11, me, 45)], None, false),
    ] {
        let mut miner = Miner::open("//Miner").await;
        let mut world = worked(&mut miner).await;
        world.chain.report_transfers(Some(transfers));
        world.chain.seal_to(16);
        let (cycle, snapshot) = scored(&world).await;
        let own = snapshot.burned.get(&muster_protocol::ValidatorKey(me)).copied();
        assert_eq!(own, burned, "{what}");
        if counts {
            assert_eq!(cycle["scores"][0]["micros"], 9_000_000, "{what}: {cycle}");
        } else {
            assert_eq!(cycle["dropped"][0][1], "not_burned", "{what}: {cycle}");
        }
        world.stop().await;
    }
}

#[tokio::test]
async fn a_cycle_whose_blocks_cannot_be_read_waits_for_them() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = worked(&mut miner).await;
    world.chain.report_transfers(None);
    world.chain.seal_to(16);
    world.seen(16).await;
    world.chain.seal_to(17);
    let state = world.seen(17).await;
    assert_eq!(
        state["cycles"],
        serde_json::json!([]),
        "nothing is scored without them"
    );
    assert!(world.chain.weights().is_empty());
    world
        .chain
        .report_transfers(Some(vec![transfer(4, key("//Validator"), 45)]));
    world.chain.seal_to(18);
    let (cycle, _) = scored(&world).await;
    assert_eq!(cycle["scores"][0]["micros"], 9_000_000, "{cycle}");
    world.stop().await;
}

//! Weights: once in each window, from the work before it, whatever the chain and restarts do.

use crate::support::facilitator::job;
use crate::support::miner::Miner;
use crate::support::{World, within};
use muster_protocol::JobStatus;
use tokio::task::yield_now;

/// One job for one miner, paid.
async fn work(world: &mut World, miner: &mut Miner, at: i64) {
    world.facilitator.submit(&job("//User", at)).await;
    let mut session = miner.accept().await;
    let id = session.begin().await;
    session.complete(id).await;
    session.paid().await;
    assert_eq!(
        world.facilitator.updates_to_the_end().await.0.last(),
        Some(&JobStatus::Completed)
    );
}

async fn cycle_is(world: &World, state: &str) -> serde_json::Value {
    within("a settled cycle", async {
        loop {
            let view = world.state().await;
            if view["cycles"][0]["state"] == state {
                return view["cycles"][0].clone();
            }
            yield_now().await;
        }
    })
    .await
}

#[tokio::test]
async fn work_becomes_weights_once_in_the_next_window() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
    world.chain.seal_to(3);
    world.start();
    world.facilitator.accept().await;
    world.seen(3).await;
    work(&mut world, &mut miner, 1).await;
    work(&mut world, &mut miner, 2).await;
    for block in 4..16 {
        world.chain.seal_to(block);
    }
    world.seen(15).await;
    assert!(world.chain.weights().is_empty(), "the window opens with block 16");
    world.chain.seal_to(16);
    let cycle = cycle_is(&world, "set").await;
    assert_eq!(cycle["scores"][0]["micros"], 18_000_000);
    for block in 17..22 {
        world.chain.seal_to(block);
        world.seen(block).await;
    }
    assert_eq!(world.chain.weights(), [(16, vec![(1, 65_535)])]);

    // A restart in the same window changes nothing.
    world.stop().await;
    world.start();
    world.facilitator.accept().await;
    world.chain.seal_to(21);
    world.seen(21).await;
    assert_eq!(world.chain.weights().len(), 1);

    // A cycle without work keeps the weights on the chain.
    for block in 22..32 {
        world.chain.seal_to(block);
    }
    cycle_is(&world, "kept").await;
    assert_eq!(world.chain.weights().len(), 1);
    world.stop().await;
}

#[tokio::test]
async fn a_chain_that_refuses_is_asked_again_within_the_window() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
    world.start();
    world.facilitator.accept().await;
    world.seen(1).await;
    work(&mut world, &mut miner, 1).await;
    world.chain.refuse(2);
    world.chain.seal_to(16);
    let pending = cycle_is(&world, "pending").await;
    assert_eq!(pending["weights"][0][1], 65_535);
    world.chain.seal_to(17);
    world.seen(17).await;
    world.chain.seal_to(18);
    cycle_is(&world, "set").await;
    assert_eq!(world.chain.weights().len(), 1);
    world.stop().await;
}

#[tokio::test]
async fn a_missed_window_costs_no_miner_its_pay() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
    world.start();
    world.facilitator.accept().await;
    world.seen(1).await;
    work(&mut world, &mut miner, 1).await;
    world.chain.refuse(u32::MAX);
    world.chain.seal_to(16);
    cycle_is(&world, "pending").await;
    world.chain.seal_to(25);
    world.seen(25).await;
    assert!(world.chain.weights().is_empty());
    world.chain.refuse(0);
    world.chain.seal_to(27);
    let cycle = cycle_is(&world, "set").await;
    assert_eq!(cycle["scores"][0]["micros"], 9_000_000);
    assert_eq!(world.state().await["cycles"][1]["state"], "missed");
    assert_eq!(world.chain.weights(), [(27, vec![(1, 65_535)])]);
    world.stop().await;
}

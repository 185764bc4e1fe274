//! Weights: set once in each window, from the work before it, in spite of restarts and chain failures.

use crate::sockets::support::facilitator::job;
use crate::sockets::support::miner::Miner;
use crate::sockets::support::{World, within};
use muster_chain::WeightsMethod;
use muster_protocol::{Hotkey, JobStatus};
use muster_scoring::ScoringSnapshot;
use tokio::task::yield_now;

/// Runs one paid job on one miner.
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
    let mut world = World::in_real_time(&[&miner]).await;
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
    // The snapshot is served under the digest of its bytes, and gives the same weights again.
    let path = format!("/v0/scoring-snapshots/{}", cycle["snapshot"].as_str().unwrap());
    let served = world.get(&path).await;
    let text = muster_protocol::canonical::sorted_compact(&served);
    assert_eq!(ScoringSnapshot::digest_of(&text).to_string(), cycle["snapshot"]);
    let snapshot = ScoringSnapshot::parse(&text).unwrap();
    assert_eq!(snapshot.receipts.len(), 2);
    let (_, weights) = muster_scoring::score_cycle(&snapshot);
    assert_eq!(serde_json::to_value(weights).unwrap(), cycle["weights"]);
    let unknown = format!("/v0/scoring-snapshots/sha256:{}", "0".repeat(64));
    assert!(world.get(&unknown).await["error"].is_string());
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
    let mut world = World::in_real_time(&[&miner]).await;
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
    let mut world = World::in_real_time(&[&miner]).await;
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

/// Runs a job in the first cycle, on a chain that takes weights by this method.
async fn worked(method: WeightsMethod) -> (Miner, World) {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::in_real_time(&[&miner]).await;
    world.chain.take(method);
    world.start_mortal();
    world.facilitator.accept().await;
    world.seen(1).await;
    work(&mut world, &mut miner, 1).await;
    (miner, world)
}

/// Waits until the chain has taken a commit, whatever its sender was answered. A cycle is pending before that.
async fn commit_is_taken(world: &World) {
    within("a commit", async {
        while world.chain.commits().1 == 0 {
            yield_now().await;
        }
    })
    .await;
}

/// Kills the validator and starts it again.
async fn killed(world: &mut World) {
    world.kill();
    world.start_mortal();
    world.facilitator.accept().await;
}

/// A validator whose call with weights is on its way, and which is killed then and started again.
async fn killed_with_a_call_on_its_way() -> (Miner, World) {
    let (miner, mut world) = worked(WeightsMethod::Plain).await;
    world.chain.hold_next();
    world.chain.seal_to(16);
    within("a call", async {
        while !world.chain.holds() {
            yield_now().await;
        }
    })
    .await;
    killed(&mut world).await;
    for block in 17..20 {
        world.chain.seal_to(block);
        world.seen(block).await;
    }
    (miner, world)
}

#[tokio::test]
async fn weights_that_a_process_before_may_have_sent_are_not_sent_again_while_the_chain_may_take_them() {
    let (_miner, mut world) = killed_with_a_call_on_its_way().await;
    assert!(world.chain.weights().is_empty());
    world.chain.take_held();
    world.chain.seal_to(20);
    cycle_is(&world, "set").await;
    assert_eq!(world.chain.weights(), [(19, vec![(1, 65_535)])]);
    world.kill();
}

#[tokio::test]
async fn work_of_a_call_that_never_arrived_is_scored_again_in_the_next_window() {
    let (_miner, mut world) = killed_with_a_call_on_its_way().await;
    world.chain.seal_to(27);
    cycle_is(&world, "set").await;
    assert_eq!(world.chain.weights(), [(27, vec![(1, 65_535)])]);
    assert_eq!(world.state().await["cycles"][1]["state"], "missed");
    world.kill();
}

#[tokio::test]
async fn salted_weights_survive_a_kill_between_commit_and_reveal() {
    let (_miner, mut world) = worked(WeightsMethod::Salted).await;
    world.chain.seal_to(16);
    let cycle = cycle_is(&world, "committed").await;
    assert!(cycle.get("reveal").is_none(), "nobody is shown the salt: {cycle}");
    assert_eq!(world.chain.commits(), (1, 1));
    killed(&mut world).await;
    for block in 17..22 {
        world.chain.seal_to(block);
        world.seen(block).await;
    }
    assert_eq!((world.chain.commits(), world.chain.weights()), ((1, 1), vec![]));
    killed(&mut world).await;
    world.chain.seal_to(23);
    cycle_is(&world, "set").await;
    assert_eq!(world.chain.weights(), [(23, vec![(1, 65_535)])]);
    assert_eq!(world.chain.commits(), (0, 1));
    world.kill();
}

#[tokio::test]
async fn a_commit_that_nobody_heard_of_is_not_made_twice() {
    for method in [WeightsMethod::Salted, WeightsMethod::Timelocked] {
        let (_miner, mut world) = worked(method).await;
        world.chain.be_vague();
        world.chain.seal_to(16);
        cycle_is(&world, "pending").await;
        commit_is_taken(&world).await;
        killed(&mut world).await;
        world.chain.seal_to(17);
        cycle_is(&world, "committed").await;
        world.chain.seal_to(20);
        world.seen(20).await;
        assert_eq!(world.chain.commits(), (1, 1));
        world.kill();
    }
}

#[tokio::test]
async fn a_commit_of_an_earlier_cycle_is_still_revealed() {
    let (_miner, mut world) = worked(WeightsMethod::Salted).await;
    world.chain.be_vague();
    world.chain.seal_to(16);
    cycle_is(&world, "pending").await;
    commit_is_taken(&world).await;
    world.kill();
    world.chain.seal_to(24);
    world.start_mortal();
    world.facilitator.accept().await;
    let cycle = within("the revealed cycle", async {
        loop {
            let view = world.state().await;
            let cycles = view["cycles"].as_array().unwrap().clone();
            if let Some(set) = cycles.into_iter().find(|cycle| cycle["state"] == "set") {
                return set;
            }
            world
                .chain
                .seal_to(view["block"].as_u64().unwrap_or(24).clamp(24, 27) + 1);
            yield_now().await;
        }
    })
    .await;
    assert_eq!(cycle["weights"][0][1], 65_535);
    assert_eq!(world.chain.commits(), (0, 1));
    world.kill();
}

#[tokio::test]
async fn a_reveal_that_was_missed_is_named_and_its_work_is_paid_later() {
    let (_miner, mut world) = worked(WeightsMethod::Salted).await;
    world.chain.seal_to(16);
    cycle_is(&world, "committed").await;
    world.kill();
    // The epoch of the reveal passes.
    world.chain.seal_to(34);
    world.start_mortal();
    world.facilitator.accept().await;
    let lost = cycle_is(&world, "expired").await;
    assert!(lost["error"].as_str().unwrap().contains("over"), "{lost}");
    world.chain.seal_to(39);
    let again = cycle_is(&world, "committed").await;
    assert_eq!(again["scores"][0]["micros"], 9_000_000);
    world.chain.seal_to(45);
    cycle_is(&world, "set").await;
    assert_eq!(world.chain.weights(), [(45, vec![(1, 65_535)])]);
    world.kill();
}

#[tokio::test]
async fn timelocked_weights_are_committed_once_and_seen_when_the_chain_opens_them() {
    let (_miner, mut world) = worked(WeightsMethod::Timelocked).await;
    world.chain.seal_to(16);
    cycle_is(&world, "committed").await;
    killed(&mut world).await;
    world.chain.seal_to(21);
    world.seen(21).await;
    assert_eq!(world.chain.commits(), (1, 1));
    world.chain.seal_to(22);
    world.chain.open(vec![(1, 65_535)]);
    world.chain.seal_to(23);
    cycle_is(&world, "set").await;
    world.kill();
}

#[tokio::test]
async fn weights_that_the_chain_took_back_are_set_again() {
    for (method, state) in [
        (WeightsMethod::Plain, "set"),
        (WeightsMethod::Salted, "committed"),
        (WeightsMethod::Timelocked, "committed"),
    ] {
        let (_miner, mut world) = worked(method).await;
        world.chain.seal_to(16);
        cycle_is(&world, state).await;
        world.chain.take_back();
        world.chain.seal_to(17);
        within("the second try", async {
            while world.chain.commits().0 == 0 && world.chain.weights().is_empty() {
                yield_now().await;
            }
        })
        .await;
        cycle_is(&world, state).await;
        world.chain.seal_to(20);
        world.seen(20).await;
        let sent = world.chain.commits().0 + world.chain.weights().len();
        assert_eq!(sent, 1, "{method:?}");
        world.kill();
    }
}

#[tokio::test]
async fn a_uid_that_passed_to_another_is_not_given_the_weight() {
    let (_miner, mut world) = worked(WeightsMethod::Plain).await;
    world.chain.refuse(1);
    world.chain.seal_to(16);
    cycle_is(&world, "pending").await;
    world.chain.replace(1, Hotkey::from_bytes([77; 32]));
    world.chain.seal_to(17);
    within("the second try", async {
        while world.chain.weights().is_empty() {
            let view = world.state().await;
            if view["cycles"][0]["state"] == "kept" {
                break;
            }
            yield_now().await;
        }
    })
    .await;
    assert!(
        world
            .chain
            .weights()
            .iter()
            .all(|(_, row)| row.iter().all(|(uid, _)| *uid != 1)),
        "{:?}",
        world.chain.weights()
    );
    world.kill();
}

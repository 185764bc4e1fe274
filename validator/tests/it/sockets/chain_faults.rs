//! A chain that does not answer: open jobs go on, and new ones are routed by the last good metagraph or wait.

use muster_protocol::status::{JobRejectionReason, JobStatus};
use serde_json::json;

use crate::sockets::faults::{Stage, bring_to};
use crate::sockets::organic::ALL;
use crate::sockets::support::facilitator::job;
use crate::sockets::support::miner::Miner;
use crate::sockets::support::{World, while_time_passes, within};

#[tokio::test]
async fn a_validator_whose_chain_is_away_resumes_its_jobs_and_lets_new_ones_wait() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::in_real_time(&[&miner]).await;
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job("//User", 1)).await;
    let mut session = miner.accept().await;
    let id = bring_to(Stage::VolumesReady, &mut world, &mut session).await;
    world.stop().await;
    session.closed().await;

    world.chain.silent(true);
    world.start();
    world.facilitator.accept().await;
    let mut session = miner.accept().await;
    session.finished(id).await;
    assert_eq!(session.paid().await, "9.000000");
    let (statuses, _) = world.facilitator.updates_to_the_end().await;
    assert_eq!(statuses.last(), Some(&JobStatus::Completed));
    let state = world.state().await;
    assert_eq!(
        (&state["block"], &state["chain"]["state"]),
        (&json!(null), &json!("lost"))
    );

    world.facilitator.submit(&job("//User", 2)).await;
    world.facilitator.expect(JobStatus::Received).await;
    world.chain.silent(false);
    world.chain.seal_to(5);
    let mut session = miner.accept().await;
    let id = session.begin().await;
    session.complete(id).await;
    session.paid().await;
    world.facilitator.updates_to_the_end().await;

    // Both are paid: work finished while the chain did not answer counts in the cycle in which it answered.
    world.chain.seal_to(16);
    let set = within("weights", async {
        loop {
            let state = world.state().await;
            if state["cycles"][0]["state"] == "set" {
                return state;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(set["cycles"][0]["scores"][0]["micros"], 18_000_000);
    assert_eq!(set["chain"]["state"], "connected");
}

#[tokio::test]
async fn a_job_does_not_wait_for_ever_for_a_chain() {
    let mut world = World::new(&[]).await;
    world.chain.silent(true);
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job("//User", 1)).await;
    world.facilitator.expect(JobStatus::Received).await;
    let end = while_time_passes(&world.test_clock, "the end", world.facilitator.take()).await;
    let details = end.metadata.unwrap().job_rejection_details.unwrap();
    assert_eq!(details.reason, JobRejectionReason::NoMinerForJob);
    assert!(
        details.message.contains("the chain does not answer"),
        "{}",
        details.message
    );
}

#[tokio::test]
async fn a_chain_that_is_gone_leaves_the_last_good_metagraph() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
    world.start();
    world.facilitator.accept().await;
    for (at, silent) in [(1, false), (2, true)] {
        world.chain.silent(silent);
        world.facilitator.submit(&job("//User", at)).await;
        let mut session = miner.accept().await;
        let id = session.begin().await;
        session.complete(id).await;
        session.paid().await;
        assert_eq!(world.facilitator.updates_to_the_end().await.0, ALL);
    }
}

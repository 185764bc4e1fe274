//! Collateral in a validator whose source does not answer.

use muster_protocol::status::{JobRejectionReason, JobStatus};
use muster_validator::CollateralKind;

use crate::sockets::support::facilitator::job;
use crate::sockets::support::miner::Miner;
use crate::sockets::support::{World, while_time_passes};

#[tokio::test]
async fn an_outage_of_the_source_lets_no_job_through_and_its_user_reads_why() {
    let miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
    world.config.collateral.source = CollateralKind::Evm;
    // Neither the node nor the chain with the miners' addresses answers the source.
    world.config.collateral.rpc_urls = vec!["http://127.0.0.1:9".to_owned()];
    world.config.chain.url = "ws://127.0.0.1:9".to_owned();
    world.config.queue.default_s = 30;
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job("//User", 1)).await;
    world.facilitator.expect(JobStatus::Received).await;
    let rejected = world.facilitator.expect(JobStatus::Rejected);
    let end = while_time_passes(&world.test_clock, "the end of the wait", rejected).await;
    let details = end.metadata.unwrap().job_rejection_details.unwrap();
    assert_eq!(details.reason, JobRejectionReason::NoMinerForJob);
    let why = "the collateral of 1 miner is not known now";
    assert!(details.message.ends_with(why), "{}", details.message);
    let context = details.context.unwrap();
    assert!(context["waited_s"].as_u64().unwrap() >= 30, "{context}");
    let reason = "its collateral is required and has not been read yet";
    let excluded = context["excluded"].as_array().unwrap();
    assert!(excluded.iter().any(|row| row["reason"] == reason), "{context}");
}

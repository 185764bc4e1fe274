//! Trials: after failures that users' jobs may have provoked the validator runs its known image at the miner, and only
//! what the miner does with that keeps it from jobs.

use muster_protocol::status::JobStatus;
use muster_protocol::wire::facilitator::StatusMetadata;
use muster_validator::TrialConfig;

use crate::sockets::faults::{Stage, bring_to};
use crate::sockets::support::facilitator::job;
use crate::sockets::support::miner::Miner;
use crate::sockets::support::{World, while_time_passes};

/// The known image.
const KNOWN: &str = "known@sha256:1";

/// The executors of the miner: a trial takes one beside the users' jobs.
const EXECUTORS: u32 = 4;

fn with_trials(mut world: World) -> World {
    world.config.queue.default_s = 0;
    world.config.timing.linger_s = 3_600;
    world.config.routing.trial = TrialConfig {
        image: Some(KNOWN.to_owned()),
        args: Vec::new(),
    };
    world
}

/// The reason for which the only miner is left out.
fn exclusion(end: StatusMetadata) -> serde_json::Value {
    let context = end.job_rejection_details.unwrap().context.unwrap();
    context["excluded"][1]["reason"].clone()
}

#[tokio::test]
async fn a_miner_that_is_lost_is_benched_by_its_failed_trials() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = with_trials(World::new(&[&miner]).await);
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job("//User", 1)).await;
    let mut session = miner.accept_with(EXECUTORS).await;
    bring_to(Stage::VolumesReady, &mut world, &mut session).await;
    miner.server.close();
    drop(session);

    let end = while_time_passes(&world.test_clock, "the end", world.facilitator.take()).await;
    assert_eq!(end.status, JobStatus::HordeFailed);
    let mut at = 1;
    let rejected = loop {
        at += 1;
        world.facilitator.submit(&job("//User", at)).await;
        world.facilitator.expect(JobStatus::Received).await;
        let end = while_time_passes(&world.test_clock, "an end", world.facilitator.take()).await;
        if end.status == JobStatus::Rejected {
            break end;
        }
        assert_eq!(end.status, JobStatus::HordeFailed);
    };
    let reason = exclusion(rejected.metadata.unwrap());
    assert_eq!(reason, "it failed this validator's own trials lately");
}

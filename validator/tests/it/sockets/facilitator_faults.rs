//! A facilitator that is slow, lost, or refuses: status updates are kept, sent in order, and sent again.

use std::time::Duration;

use muster_process::Clock as _;
use muster_protocol::FeatureSet;
use muster_protocol::status::JobStatus;
use muster_protocol::wire::facilitator::{Heartbeat, Response, ToFacilitator};

use crate::sockets::support::facilitator::job;
use crate::sockets::support::miner::Miner;
use crate::sockets::support::{World, while_time_passes, within};

#[tokio::test]
async fn a_job_that_ends_without_a_facilitator_is_told_when_it_is_back() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::in_real_time(&[&miner]).await;
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job("//User", 1)).await;
    assert_eq!(world.facilitator.update().await.status, JobStatus::Received);
    // The facilitator goes before it has acknowledged anything.
    world.facilitator.hang_up();
    let mut session = miner.accept().await;
    let id = session.begin().await;
    session.complete(id).await;
    session.paid().await;
    session.closed().await;

    world.facilitator.accept().await;
    let (statuses, _) = world.facilitator.updates_to_the_end().await;
    assert_eq!(
        statuses.first(),
        Some(&JobStatus::Received),
        "it was never acknowledged"
    );
    assert_eq!(statuses.last(), Some(&JobStatus::Completed));
    assert_eq!(statuses.len(), 6);
}

#[tokio::test]
async fn a_facilitator_that_has_forgotten_us_or_refuses_us_is_greeted_again() {
    let mut world = World::in_real_time(&[]).await;
    world.start();
    world.facilitator.connected().await;
    world
        .facilitator
        .answer(&Response::error("auth.validator_not_found", "who are you?", ""))
        .await;
    world.facilitator.accept().await;
    world.facilitator.submit(&job("//User", 1)).await;
    assert_eq!(world.facilitator.update().await.status, JobStatus::Received);
    world
        .facilitator
        .answer(&Response::error("auth.not_authenticated", "greet first", ""))
        .await;
    world.facilitator.accept().await;
    assert_eq!(
        world.facilitator.take().await.status,
        JobStatus::Received,
        "a status it never looked at is not lost"
    );
    world.facilitator.expect(JobStatus::Rejected).await;
}

#[tokio::test]
async fn the_facilitator_hears_a_heartbeat_every_minute() {
    let mut world = World::new(&[]).await;
    // A facilitator with the feature `capacity` receives more.
    world.facilitator.show_features(FeatureSet::NONE);
    world.start();
    world.facilitator.accept().await;
    assert_eq!(
        world.facilitator.receive().await,
        ToFacilitator::V0Heartbeat(Heartbeat {}),
        "one at once"
    );
    let start = world.test_clock.now();
    let next = while_time_passes(&world.test_clock, "a heartbeat", world.facilitator.receive()).await;
    assert_eq!(next, ToFacilitator::V0Heartbeat(Heartbeat {}));
    assert!(world.test_clock.now().since(start) >= Duration::from_secs(60));
}

/// A job that no miner can take gets two statuses: received and rejected.
async fn three_rejected(world: &mut World) {
    for n in 1..=3 {
        world.facilitator.submit(&job("//User", n)).await;
    }
    within("the end of three jobs", async {
        loop {
            let state = world.state().await;
            let jobs = state["jobs"].as_array().unwrap();
            if jobs.iter().filter(|job| job["status"] == "rejected").count() == 3 {
                break;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
}

async fn without_miners() -> World {
    let mut world = World::in_real_time(&[]).await;
    world.config.facilitator.heartbeat_s = 1;
    world.start();
    world
}

#[tokio::test]
async fn a_muster_facilitator_gets_updates_before_it_has_answered_the_first() {
    let mut world = without_miners().await;
    world.facilitator.accept().await;
    three_rejected(&mut world).await;
    let mut told = Vec::new();
    for _ in 0..6 {
        told.push(world.facilitator.update().await);
    }
    let last = told.iter().filter(|update| update.status == JobStatus::Rejected);
    assert_eq!(last.count(), 3, "{told:?}");
    // Answered updates are not sent again; unanswered ones are, in their order.
    for _ in 0..4 {
        world.facilitator.answer(&Response::success()).await;
    }
    world.updates_waiting(2).await;
    world.facilitator.hang_up();
    world.facilitator.accept().await;
    for update in &told[4..] {
        assert_eq!(world.facilitator.take().await, *update);
    }
}

#[tokio::test]
async fn any_other_facilitator_gets_the_next_update_once_it_has_answered_the_last() {
    let mut world = without_miners().await;
    world.facilitator.accept_plainly().await;
    three_rejected(&mut world).await;
    world.facilitator.update().await;
    // Between two heartbeats the link has checked everything that it may send.
    for _ in 0..2 {
        let next = world.facilitator.receive().await;
        assert!(matches!(next, ToFacilitator::V0Heartbeat(_)), "{next:?}");
    }
    for _ in 0..5 {
        world.facilitator.answer(&Response::success()).await;
        world.facilitator.update().await;
    }
}

#[tokio::test]
async fn a_refused_status_is_dropped_and_a_repeated_one_counts_as_taken() {
    let mut world = World::new(&[]).await;
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job("//User", 1)).await;
    assert_eq!(world.facilitator.update().await.status, JobStatus::Received);
    world
        .facilitator
        .answer(&Response::error(
            "job.integrity_error",
            "the same status twice",
            "",
        ))
        .await;
    assert_eq!(world.facilitator.update().await.status, JobStatus::Rejected);
    world
        .facilitator
        .answer(&Response::error("job.not_found", "no such job", ""))
        .await;
    world.facilitator.submit(&job("//User", 2)).await;
    assert_eq!(
        world.facilitator.update().await.status,
        JobStatus::Received,
        "neither was sent again"
    );
}

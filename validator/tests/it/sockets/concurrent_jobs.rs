//! Several jobs at a time: they share sessions with miners, and never an executor.

use muster_protocol::AttemptId;
use muster_protocol::status::JobStatus;

use crate::sockets::support::World;
use crate::sockets::support::facilitator::job;
use crate::sockets::support::miner::Miner;

#[tokio::test]
async fn two_jobs_at_once_do_not_take_one_executor() {
    let mut one = Miner::open("//One").await;
    let mut two = Miner::open("//Two").await;
    let mut world = World::new(&[&one, &two]).await;
    world.config.timing.linger_s = 60;
    world.start();
    world.facilitator.accept().await;
    // Both miners have announced one executor each.
    for at in 1..=2 {
        world.facilitator.submit(&job("//User", at)).await;
        world.facilitator.expect(JobStatus::Received).await;
    }
    let mut sessions = vec![one.accept().await, two.accept().await];
    for session in &mut sessions {
        let id = session.begin().await;
        session.complete(id).await;
        session.paid().await;
    }
    for _ in 0..10 {
        world.facilitator.take().await;
    }
    // While both work, a third job waits; it begins when one of them has ended.
    for at in 3..=4 {
        world.facilitator.submit(&job("//User", at)).await;
        world.facilitator.expect(JobStatus::Received).await;
    }
    let [mut first, mut second] = <[_; 2]>::try_from(sessions).ok().unwrap();
    let id = first.begin().await;
    second.begin().await;
    let third = job("//User", 5);
    world.facilitator.submit(&third).await;
    while world.facilitator.take().await.status != JobStatus::Received {}
    first.complete(id).await;
    first.paid().await;
    assert_eq!(first.offer().await.job_uuid, AttemptId::first_of(third.uuid));
}

#[tokio::test]
async fn jobs_on_one_miner_share_its_session_one_after_another_and_side_by_side() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
    world.config.timing.linger_s = 60;
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job("//User", 1)).await;
    let mut session = miner.accept_with(2).await;
    let id = session.begin().await;
    session.complete(id).await;
    session.paid().await;
    assert_eq!(
        world.facilitator.updates_to_the_end().await.0.last(),
        Some(&JobStatus::Completed)
    );

    world.facilitator.submit(&job("//User", 2)).await;
    let second = session.begin().await;
    world.facilitator.submit(&job("//User", 3)).await;
    let third = session.begin().await;
    for id in [third, second] {
        session.complete(id).await;
        assert_eq!(session.paid().await, "9.000000");
    }
    world
        .until("the last jobs to end", |state| {
            let jobs = state["jobs"].as_array().unwrap();
            jobs.len() == 3 && jobs.iter().all(|job| job["status"] == "completed")
        })
        .await;
    world.stop().await;
    session.closed().await;
}

#[tokio::test]
async fn a_validator_that_was_restarted_takes_all_its_jobs_up_over_one_session() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job("//User", 1)).await;
    let mut session = miner.accept_with(2).await;
    let one = session.begin().await;
    world.facilitator.submit(&job("//User", 2)).await;
    let two = session.begin().await;
    world.stop().await;
    session.closed().await;

    world.start();
    world.facilitator.accept().await;
    let mut session = miner.accept_with(2).await;
    // Sent as soon as the miner was greeted, before both drivers have run.
    for id in [two, one] {
        session.finished(id).await;
    }
    for _ in 0..2 {
        assert_eq!(session.paid().await, "9.000000");
    }
    world
        .until("the jobs to end", |state| {
            state["jobs"]
                .as_array()
                .unwrap()
                .iter()
                .all(|job| job["status"] == "completed")
        })
        .await;
}

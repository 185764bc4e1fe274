//! The trusted miner: it is in no metagraph, runs the jobs that ask for it, and no others.

use muster_identity::{Keypair, sign_job};
use muster_protocol::status::{JobRejectionReason, JobStatus};
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::{AttemptId, MinerKey};
use muster_validator::TrustedMinerConfig;

use crate::sockets::organic::ALL;
use crate::sockets::support::facilitator::job;
use crate::sockets::support::miner::{Miner, Session};
use crate::sockets::support::server::TestServer;
use crate::sockets::support::{World, while_time_passes, within};

/// A signed job for the trusted miner.
fn trusted_job(user: &str, at: i64) -> UserJobRequest {
    let mut job = job(user, at);
    job.on_trusted_miner = true;
    job.signature = sign_job(&Keypair::from_uri(user).unwrap(), &job.signed_fields(), at);
    job
}

/// The section that names this miner.
fn own(miner: &Miner) -> TrustedMinerConfig {
    TrustedMinerConfig {
        hotkey: Some(miner.key()),
        address: Some(miner.server.address),
        certificate: None,
    }
}

/// Completes the attempt that a session has begun, and waits for the end of its job.
async fn complete(world: &mut World, session: &mut Session, id: AttemptId) {
    session.complete(id).await;
    assert_eq!(
        session.paid().await,
        "0.000000",
        "the validator's operator pays for the trusted miner"
    );
    let (statuses, _) = world.facilitator.updates_to_the_end().await;
    assert_eq!(statuses.last(), Some(&JobStatus::Completed));
}

#[tokio::test]
async fn a_job_for_the_trusted_miner_runs_there_although_the_chain_does_not_know_it() {
    let (mut trusted, mut ordinary) = (Miner::open("//Trusted").await, Miner::open("//Miner").await);
    let mut world = World::new(&[&ordinary]).await;
    world.config.trusted_miner = own(&trusted);
    // The operator's own address is dialled although it is not public and not listed.
    world.config.dial.allow = vec![ordinary.server.address.to_string()];
    world.start();
    world.facilitator.accept().await;
    let job = trusted_job("//User", 1);
    world.facilitator.submit(&job).await;
    let mut session = trusted.accept().await;
    let id = session.begin().await;
    assert_eq!(id, AttemptId::first_of(job.uuid));
    session.complete(id).await;
    assert_eq!(session.paid().await, "0.000000");
    let (statuses, _) = world.facilitator.updates_to_the_end().await;
    assert_eq!(statuses, ALL);
    let state = world.state().await;
    assert_eq!(
        state["jobs"][0]["attempts"][0]["miner"],
        trusted.key().to_string(),
        "{state}"
    );
    // An ordinary job goes to the subnet.
    world
        .facilitator
        .submit(&crate::sockets::support::facilitator::job("//User", 2))
        .await;
    let mut session = ordinary.accept().await;
    let id = session.begin().await;
    session.complete(id).await;
    session.paid().await;
    world.facilitator.updates_to_the_end().await;
    world.stop().await;
}

#[tokio::test]
async fn a_registered_trusted_miner_gets_no_ordinary_job() {
    let trusted = Miner::open("//Trusted").await;
    let mut world = World::new(&[&trusted]).await;
    world.config.trusted_miner = own(&trusted);
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job("//User", 1)).await;
    let (statuses, end) = world.facilitator.updates_to_the_end().await;
    assert_eq!(statuses.last(), Some(&JobStatus::Rejected));
    let details = end.metadata.unwrap().job_rejection_details.unwrap();
    assert_eq!(details.reason, JobRejectionReason::NoMinerForJob);
    world.stop().await;
}

#[tokio::test]
async fn without_a_trusted_miner_such_a_job_is_refused_with_what_to_do() {
    let miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&trusted_job("//User", 1)).await;
    let (statuses, end) = world.facilitator.updates_to_the_end().await;
    assert_eq!(statuses.last(), Some(&JobStatus::Rejected));
    let details = end.metadata.unwrap().job_rejection_details.unwrap();
    assert_eq!(
        details.message,
        "this validator keeps no trusted miner; submit the job without on_trusted_miner"
    );
    world.stop().await;
}

#[tokio::test]
async fn jobs_for_the_trusted_miner_wait_in_a_line_of_their_own_that_outlives_the_validator() {
    let (mut trusted, mut ordinary) = (Miner::open("//Trusted").await, Miner::open("//Miner").await);
    let mut world = World::new(&[&ordinary]).await;
    world.config.trusted_miner = own(&trusted);
    world.config.timing.linger_s = 600;
    world.start_mortal();
    world.facilitator.accept().await;
    world.facilitator.submit(&trusted_job("//User", 1)).await;
    let mut session = trusted.accept().await;
    let held = session.begin().await;
    for status in [JobStatus::Received, JobStatus::Accepted, JobStatus::ExecutorReady] {
        world.facilitator.expect(status).await;
    }
    let waiting = trusted_job("//User", 2);
    world.facilitator.submit(&waiting).await;
    world.facilitator.expect(JobStatus::Received).await;
    let queue = world
        .until_queue("the line of the trusted miner", |queue| {
            queue["trusted_lines"][0]["why"].is_string()
        })
        .await;
    assert_eq!(queue["trusted_lines"][0]["waiting"], 1, "{queue}");
    assert_eq!(queue["trusted_lines"][0]["why"], "1 executor is at work");
    assert_eq!(queue["jobs"][0]["on_trusted_miner"], true, "{queue}");
    assert!(
        queue["lines"]
            .as_array()
            .unwrap()
            .iter()
            .all(|line| line["waiting"] == 0),
        "{queue}"
    );

    // An ordinary job of the same class does not wait behind it.
    world.facilitator.submit(&job("//User", 3)).await;
    let mut other = ordinary.accept().await;
    let id = other.begin().await;
    other.complete(id).await;
    other.paid().await;
    world.facilitator.updates_to_the_end().await;

    world.kill();
    drop((session, other));
    world.start_mortal();
    world.facilitator.accept().await;
    let mut session = trusted.accept().await;
    session.finished(held).await;
    assert_eq!(session.paid().await, "0.000000");
    world.facilitator.updates_to_the_end().await;
    let id = session.begin().await;
    assert_eq!(id, AttemptId::first_of(waiting.uuid));
    complete(&mut world, &mut session, id).await;
}

#[tokio::test]
async fn a_trusted_miner_that_fails_is_asked_again_since_no_other_runs_its_jobs() {
    let (mut trusted, ordinary) = (Miner::open("//Trusted").await, Miner::open("//Miner").await);
    let mut world = World::new(&[&ordinary]).await;
    world.config.trusted_miner = own(&trusted);
    world.config.timing.linger_s = 600;
    world.start();
    world.facilitator.accept().await;
    let job = trusted_job("//User", 1);
    world.facilitator.submit(&job).await;
    let mut session = trusted.accept().await;
    let first = session.begin().await;
    session.horde_failed(first).await;
    session.paid().await;
    let clock = world.test_clock.clone();
    let second = within("the second attempt", session.begin()).await;
    assert_ne!(second, first);
    session.complete(second).await;
    session.paid().await;
    let ending = world.facilitator.updates_to_the_end();
    let (statuses, _) = while_time_passes(&clock, "the end", ending).await;
    assert_eq!(statuses.last(), Some(&JobStatus::Completed));
}

#[tokio::test]
async fn a_job_waits_for_a_trusted_miner_that_is_away_longer_than_any_number_of_attempts() {
    let address = muster_testbed::free_address().unwrap();
    let key = Keypair::from_uri("//Trusted").unwrap().hotkey();
    let mut world = World::new(&[]).await;
    world.config.trusted_miner = TrustedMinerConfig {
        hotkey: Some(MinerKey(key)),
        address: Some(address),
        certificate: None,
    };
    world.config.timing.linger_s = 600;
    world.start();
    world.facilitator.accept().await;
    let job = trusted_job("//User", 1);
    world.facilitator.submit(&job).await;
    world.facilitator.expect(JobStatus::Received).await;
    let clock = world.test_clock.clone();
    let most = usize::try_from(world.config.routing.max_attempts).unwrap();
    let tried = world.until("more attempts than a job may have", |state| {
        state["jobs"][0]["attempts"]
            .as_array()
            .is_some_and(|attempts| attempts.len() > most)
    });
    while_time_passes(&clock, "attempts", tried).await;
    let queue = world.until_queue("the line to say why", |queue| {
        queue["trusted_lines"][0]["why"].is_string()
    });
    let queue = while_time_passes(&clock, "the reason", queue).await;
    assert_eq!(
        queue["trusted_lines"][0]["why"],
        "the trusted miner does not answer, or has no executor free"
    );

    let mut trusted = Miner::with_server("//Trusted", TestServer::open_at(address).await);
    let mut session = while_time_passes(&clock, "the miner to be asked", trusted.accept()).await;
    let id = while_time_passes(&clock, "the offer", session.begin()).await;
    complete(&mut world, &mut session, id).await;
}

//! A miner that shows no features, as ComputeHorde's, in a fleet: it gets ordinary jobs and none of our messages.

use muster_identity::{Keypair, sign_terms};
use muster_protocol::job::{CheckpointTerms, JobTerms, ProgramStart};
use muster_protocol::wire::checkpoints::CheckpointGrant;
use muster_protocol::wire::muster::JobExtension;
use muster_protocol::{AttemptId, Feature, FeatureSet};

use crate::sockets::organic::ALL;
use crate::sockets::support::World;
use crate::sockets::support::facilitator::job;
use crate::sockets::support::miner::Miner;

#[tokio::test]
async fn a_miner_without_features_runs_jobs_with_checkpoints_as_ordinary_ones() {
    let mut miner = Miner::open("//Miner").await;
    miner.server.show_features(FeatureSet::NONE);
    let mut world = World::new(&[&miner]).await;
    world.start();
    world.facilitator.accept().await;
    let mut job = job("//User", 1);
    let terms = JobTerms {
        checkpoints: Some(CheckpointTerms::default()),
        ..JobTerms::default()
    };
    let user = Keypair::from_uri("//User").unwrap();
    job.muster = Some(Box::new(JobExtension {
        signature: Some(sign_terms(&user, &terms, &job.signed_fields().digest(1))),
        terms: Some(terms),
        checkpoints: Some(CheckpointGrant {
            blocks: format!("http://127.0.0.1/blocks/{}", job.uuid),
            resume: None,
            attempt_urls: false,
        }),
        ..JobExtension::default()
    }));
    world.facilitator.submit(&job).await;
    let mut session = miner.accept().await;
    let offer = session.offer().await;
    assert_eq!(offer.muster, None);
    let id = offer.job_uuid;
    session.accept_job(id).await;
    session.accepted_receipt().await;
    session.executor_ready(id).await;
    // A message that is not ComputeHorde's would come before it.
    assert_eq!(session.job().await.muster, None);
    session.complete(id).await;
    session.paid().await;
    let (statuses, _) = world.facilitator.updates_to_the_end().await;
    assert_eq!(statuses, ALL);
    world.stop().await;
}

#[tokio::test]
async fn a_job_that_says_how_its_program_starts_goes_to_no_miner_that_does_not_know_it() {
    let mut job = job("//User", 1);
    let start = ProgramStart {
        entrypoint: Some("sh".to_owned()),
        ..ProgramStart::default()
    };
    let terms = JobTerms {
        start: Some(start.clone()),
        ..JobTerms::default()
    };
    let user = Keypair::from_uri("//User").unwrap();
    job.muster = Some(Box::new(JobExtension {
        signature: Some(sign_terms(&user, &terms, &job.signed_fields().digest(1))),
        terms: Some(terms),
        ..JobExtension::default()
    }));
    let (mut old, mut new) = (Miner::open("//Old").await, Miner::open("//New").await);
    let before = FeatureSet::ours()
        .iter()
        .filter(|feature| *feature != Feature::ProgramStart);
    old.server.show_features(before.collect());
    let mut world = World::new(&[&old]).await;
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job).await;
    let mut session = old.accept().await;
    let (_, last) = world.facilitator.updates_to_the_end().await;
    let told = serde_json::to_string(&last).unwrap();
    assert!(told.contains("does not know \\\"program-start\\\""), "{told}");
    world.stop().await;
    assert_eq!(session.next_message().await, None, "it is offered nothing");

    let mut world = World::new(&[&new]).await;
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job).await;
    let mut session = new.accept().await;
    let offer = session.offer().await;
    assert_eq!(offer.job_uuid, AttemptId::first_of(job.uuid));
    assert_eq!(offer.muster.and_then(|terms| terms.start), Some(start));
    session.accept_job(offer.job_uuid).await;
    session.accepted_receipt().await;
    session.executor_ready(offer.job_uuid).await;
    session.job().await;
    session.complete(offer.job_uuid).await;
    session.paid().await;
    let (statuses, _) = world.facilitator.updates_to_the_end().await;
    assert_eq!(statuses, ALL);
    world.stop().await;
}

//! The URLs of one attempt: its executor gets them, and the facilitator learns when it has ended.

use muster_checkpoints::attempt_url;
use muster_identity::{Keypair, sign_terms};
use muster_protocol::job::{CheckpointTerms, JobTerms};
use muster_protocol::wire::checkpoints::CheckpointGrant;
use muster_protocol::wire::facilitator::ToFacilitator;
use muster_protocol::wire::muster::JobExtension;

use crate::sockets::support::World;
use crate::sockets::support::facilitator::job;
use crate::sockets::support::miner::Miner;

#[tokio::test]
async fn the_facilitator_learns_that_an_attempt_has_ended_whose_executor_has_urls_of_its_own() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
    world.start();
    world.facilitator.accept().await;
    let mut job = job("//User", 1);
    let terms = JobTerms {
        checkpoints: Some(CheckpointTerms::default()),
        ..JobTerms::default()
    };
    let user = Keypair::from_uri("//User").unwrap();
    let blocks = format!(
        "http://127.0.0.1/blocks/{}?Expires=9&Signature={}",
        job.uuid,
        "5a".repeat(32)
    );
    job.muster = Some(Box::new(JobExtension {
        signature: Some(sign_terms(&user, &terms, &job.signed_fields().digest(1))),
        terms: Some(terms),
        checkpoints: Some(CheckpointGrant {
            blocks: blocks.clone(),
            resume: None,
            attempt_urls: true,
        }),
        ..JobExtension::default()
    }));
    world.facilitator.submit(&job).await;
    let mut session = miner.accept().await;
    let id = session.offer().await.job_uuid;
    session.accept_job(id).await;
    session.accepted_receipt().await;
    session.executor_ready(id).await;
    let order = session.job().await.muster.unwrap().checkpoints.unwrap();
    assert_eq!(Some(order.blocks), attempt_url(&blocks, 1));
    session.complete(id).await;
    let list = loop {
        if let ToFacilitator::MusterJobCheckpoints(list) = world.facilitator.live().await {
            break list;
        }
    };
    assert_eq!((list.uuid, list.ended_attempts), (job.uuid, 1));
    assert_eq!(list.kept, []);
    world.stop().await;
}

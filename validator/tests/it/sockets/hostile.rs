//! Hostile miners: they lie, repeat messages, mix up jobs, and flood the validator.

use muster_identity::{Keypair, countersign, offer_receipt};
use muster_protocol::receipt::{StartedReceipt, StartedTag};
use muster_protocol::status::{HordeFailureReason, JobStatus};
use muster_protocol::wire::miner::GenericError;
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::{AttemptId, ExecutorClass, JobId, Receipt, ReceiptPayload, ValidatorKey};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::sockets::organic::ALL;
use crate::sockets::support::facilitator::job;
use crate::sockets::support::miner::Miner;
use crate::sockets::support::{World, while_time_passes};

/// Submits a job that the miner refuses as busy, with these receipts, after it announced `executors` executors. Returns
/// the job.
async fn refused(
    world: &mut World,
    miner: &mut Miner,
    at: i64,
    executors: u32,
    receipts: Vec<Receipt>,
) -> JobId {
    let job = job("//User", at);
    world.facilitator.submit(&job).await;
    let mut session = miner.accept_with(executors).await;
    let id = session.offer().await.job_uuid;
    session.decline_with(id, receipts).await;
    let (statuses, _) = world.facilitator.updates_to_the_end().await;
    assert_eq!(statuses.last(), Some(&JobStatus::Rejected));
    job.uuid
}

async fn record(world: &World, job: JobId) -> Value {
    let told = world.get(&format!("/v0/jobs/{job}/route")).await;
    told["routes"][0]["candidates"][0]["cost"]["record"].clone()
}

#[tokio::test]
async fn a_miner_that_lies_about_its_capacity_falls_behind_its_equals() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::in_real_time(&[&miner]).await;
    world.config.routing.full_s = 0;
    // A job that finds no miner is refused at once, so that its end shows the reasons.
    world.config.queue.default_s = 0;
    world.start();
    world.facilitator.accept().await;
    let clean = refused(&mut world, &mut miner, 1, 9, vec![]).await;
    assert_eq!(record(&world, clean).await, 0);
    let once = refused(&mut world, &mut miner, 2, 9, vec![]).await;
    assert_eq!(
        record(&world, once).await,
        200,
        "nine executors, and nothing shows that one is at work"
    );
    let twice = refused(&mut world, &mut miner, 3, 9, vec![]).await;
    assert_eq!(record(&world, twice).await, 333);
}

#[tokio::test]
async fn a_miner_that_shows_its_work_is_believed_and_not_asked_again_at_once() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::in_real_time(&[&miner]).await;
    // A job that finds no miner is refused at once, so that its end shows the reasons.
    world.config.queue.default_s = 0;
    world.config.routing.full_s = 3_600;
    world.start();
    world.facilitator.accept().await;
    let payload = ReceiptPayload::Started(StartedReceipt {
        job_uuid: AttemptId::from_uuid(Uuid::from_u128(99)),
        miner_hotkey: miner.key(),
        validator_hotkey: ValidatorKey(world.keypair.hotkey()),
        timestamp: world.now(),
        receipt_type: StartedTag,
        executor_class: ExecutorClass::AlwaysOnTest,
        is_organic: true,
        ttl: 3_600,
    });
    let offered = offer_receipt(&world.keypair, payload).unwrap();
    let work = countersign(&miner.keypair, offered).unwrap().into_inner();
    refused(&mut world, &mut miner, 1, 1, vec![work]).await;
    let next = job("//User", 2);
    world.facilitator.submit(&next).await;
    let (_, end) = world.facilitator.updates_to_the_end().await;
    let context = end
        .metadata
        .unwrap()
        .job_rejection_details
        .unwrap()
        .context
        .unwrap();
    assert_eq!(
        context["excluded"][1]["reason"],
        "it said a moment ago that it has no executor of this class free"
    );
}

#[tokio::test]
async fn excuses_of_a_miners_own_making_excuse_nothing() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::in_real_time(&[&miner]).await;
    world.config.routing.full_s = 0;
    // A job that finds no miner is refused at once, so that its end shows the reasons.
    world.config.queue.default_s = 0;
    world.start();
    world.facilitator.accept().await;
    let accomplice = Keypair::from_uri("//Accomplice").unwrap();
    let payload = ReceiptPayload::Started(StartedReceipt {
        job_uuid: AttemptId::from_uuid(Uuid::from_u128(99)),
        miner_hotkey: miner.key(),
        validator_hotkey: ValidatorKey(accomplice.hotkey()),
        timestamp: world.now(),
        receipt_type: StartedTag,
        executor_class: ExecutorClass::AlwaysOnTest,
        is_organic: true,
        ttl: 60,
    });
    let offered = offer_receipt(&accomplice, payload).unwrap();
    let work = countersign(&miner.keypair, offered).unwrap().into_inner();
    refused(&mut world, &mut miner, 1, 1, vec![work]).await;
    let next = refused(&mut world, &mut miner, 2, 1, vec![]).await;
    assert_eq!(record(&world, next).await, 200);
}

#[tokio::test]
async fn a_miner_that_says_everything_twice_runs_one_job_and_is_paid_once() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::in_real_time(&[&miner]).await;
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job("//User", 1)).await;
    let mut session = miner.accept().await;
    let id = session.offer().await.job_uuid;
    for _ in 0..2 {
        session.accept_job(id).await;
    }
    session.accepted_receipt().await;
    for _ in 0..2 {
        session.executor_ready(id).await;
    }
    session.job().await;
    for _ in 0..2 {
        session.complete(id).await;
    }
    // A miner that reports ready twice may get the job twice; it gets the receipt once.
    loop {
        let message = session.receive().await;
        if let ValidatorToMiner::V0JobFinishedReceiptRequest(slip) = message {
            assert_eq!(slip.payload.score_str, "9.000000");
            break;
        }
        assert!(
            matches!(message, ValidatorToMiner::V0JobRequest(_)),
            "{message:?}"
        );
    }
    session.decline(id).await;
    session.horde_failed(id).await;
    let (statuses, _) = world.facilitator.updates_to_the_end().await;
    assert_eq!(statuses.len(), 6, "{statuses:?}");
    assert_eq!(statuses.last(), Some(&JobStatus::Completed));
    let state = world.state().await;
    let finished = state["receipts"].as_array().unwrap().iter();
    let finished = finished.filter(|receipt| receipt["payload"]["receipt_type"] == "JobFinishedReceipt");
    assert_eq!(finished.count(), 1);
}

#[tokio::test]
async fn a_miner_that_answers_for_another_job_moves_neither() {
    let (mut one, mut two) = (Miner::open("//One").await, Miner::open("//Two").await);
    let mut world = World::new(&[&one, &two]).await;
    world.start();
    world.facilitator.accept().await;
    for at in 1..=2 {
        world.facilitator.submit(&job("//User", at)).await;
        world.facilitator.expect(JobStatus::Received).await;
    }
    let (mut first, mut second) = (one.accept().await, two.accept().await);
    let (id, other) = (first.begin().await, second.begin().await);
    // The first miner finishes, refuses and fails the second miner's job.
    first.complete(other).await;
    first.decline(other).await;
    first.horde_failed(other).await;
    first.complete(id).await;
    assert_eq!(first.paid().await, "9.000000");
    second.complete(other).await;
    assert_eq!(second.paid().await, "9.000000");
    let mut ends = 0;
    while ends < 2 {
        let update = world.facilitator.take().await;
        if update.status.is_terminal() {
            assert_eq!(update.status, JobStatus::Completed, "{update:?}");
            ends += 1;
        }
    }
}

#[tokio::test]
async fn a_frame_of_fifty_megabytes_costs_its_sender_the_connection_and_nobody_the_job() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::in_real_time(&[&miner]).await;
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job("//User", 1)).await;
    let mut session = miner.accept().await;
    let id = session.begin().await;
    session.volumes_ready(id).await;
    // The validator may hang up before the miner has sent everything.
    session.try_text("x".repeat(52 << 20)).await;
    session.closed().await;
    let mut session = miner.accept().await;
    session.finished(id).await;
    assert_eq!(session.paid().await, "9.000000");
    let (statuses, _) = world.facilitator.updates_to_the_end().await;
    assert_eq!(statuses.last(), Some(&JobStatus::Completed));
}

#[tokio::test]
async fn results_after_the_lease_are_answered_with_a_receipt_of_nothing() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
    world.config.queue.default_s = 0;
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job("//User", 1)).await;
    let mut session = miner.accept().await;
    let id = session.begin().await;
    for status in [JobStatus::Received, JobStatus::Accepted, JobStatus::ExecutorReady] {
        world.facilitator.expect(status).await;
    }
    while_time_passes(&world.test_clock, "a cancellation", session.cancelled(id)).await;
    session.complete(id).await;
    assert_eq!(session.paid().await, "0.000000");
    let (_, end) = world.facilitator.updates_to_the_end().await;
    let details = end.metadata.unwrap().horde_failure_details.unwrap();
    assert_eq!(details.reason, HordeFailureReason::VolumesTimedOut);
    drop(session);
    // On a later session the miner tries again, and is answered with the old receipt.
    world.facilitator.submit(&job("//User", 2)).await;
    let mut session = miner.accept().await;
    let second = session.offer().await.job_uuid;
    session.finished(id).await;
    let slip = session.finished_receipt().await;
    assert_eq!(
        (slip.payload.job_uuid, slip.payload.score_str.as_str()),
        (id, "0.000000")
    );
    session.decline(second).await;
    let end = world.facilitator.updates_to_the_end();
    while_time_passes(&world.test_clock, "the end of the job", end).await;
}

#[tokio::test]
async fn a_facilitator_that_falls_silent_is_left_for_a_new_connection_and_nothing_is_lost() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job("//User", 1)).await;
    // The facilitator takes the first status and never answers it.
    assert_eq!(world.facilitator.update().await.status, JobStatus::Received);
    let mut session = miner.accept().await;
    let id = session.begin().await;
    session.complete(id).await;
    session.paid().await;
    while_time_passes(
        &world.test_clock,
        "another connection",
        world.facilitator.accept(),
    )
    .await;
    let (statuses, _) = world.facilitator.updates_to_the_end().await;
    assert_eq!(statuses.first(), Some(&JobStatus::Received), "{statuses:?}");
    assert_eq!(statuses.last(), Some(&JobStatus::Completed));
}

#[tokio::test]
async fn nonsense_from_both_sides_disturbs_no_job() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
    world.start();
    world.facilitator.accept().await;
    let deep = "[".repeat(100_000);
    for frame in [
        "",
        "{",
        "null",
        "{\"message_type\":\"V9\"}",
        "{\"message_type\":7}",
        deep.as_str(),
    ] {
        world.facilitator.send(frame.to_owned()).await;
    }
    // A job that cannot be read is refused under its id.
    let unreadable = uuid::Uuid::new_v4();
    world
        .facilitator
        .send(json!({ "message_type": "V2JobRequest", "uuid": unreadable }).to_string())
        .await;
    let end = world.facilitator.expect(JobStatus::Rejected).await;
    assert_eq!(end.uuid.as_uuid(), &unreadable);

    world.facilitator.submit(&job("//User", 1)).await;
    let mut session = miner.accept().await;
    let id = session.offer().await.job_uuid;
    for frame in [
        "",
        "{}",
        "{\"message_type\":\"V0JobFinishedRequest\",\"job_uuid\":\"x\"}",
        deep.as_str(),
    ] {
        session.send_text(frame).await;
    }
    let other = AttemptId::from_uuid(uuid::Uuid::new_v4());
    session.finished(other).await;
    session.finished(id).await;
    session
        .send(MinerToValidator::GenericError(GenericError {
            details: Some("I am confused".to_owned()),
            job_uuid: None,
        }))
        .await;
    session.accept_job(id).await;
    session.accepted_receipt().await;
    session.executor_ready(id).await;
    session.job().await;
    session.complete(id).await;
    session.paid().await;
    assert_eq!(world.facilitator.updates_to_the_end().await.0, ALL);
}

//! Slow, lost and killed parties: every job comes to one terminal status, sent once, and nothing is lost.

use std::time::Duration;

use muster_protocol::status::{HordeFailureReason, JobStatus, ParticipantType};
use muster_protocol::wire::miner::GenericError;
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use serde_json::json;

use crate::sockets::support::facilitator::job;
use crate::sockets::support::miner::{Miner, Session};
use crate::sockets::support::{World, while_time_passes};

/// The stage at which a miner stops answering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Offered,
    Accepted,
    Ready,
    VolumesReady,
    Executed,
}

const STAGES: [(Stage, HordeFailureReason); 5] = [
    (Stage::Offered, HordeFailureReason::InitialResponseTimedOut),
    (Stage::Accepted, HordeFailureReason::ExecutorReadinessTimedOut),
    (Stage::Ready, HordeFailureReason::VolumesTimedOut),
    (Stage::VolumesReady, HordeFailureReason::ExecutionTimedOut),
    (Stage::Executed, HordeFailureReason::FinalResponseTimedOut),
];

/// Brings a job as far as `stage`, and the facilitator with it.
pub(crate) async fn bring_to(
    stage: Stage,
    world: &mut World,
    session: &mut Session,
) -> muster_protocol::AttemptId {
    world.facilitator.expect(JobStatus::Received).await;
    let id = session.offer().await.job_uuid;
    if stage >= Stage::Accepted {
        session.accept_job(id).await;
        session.accepted_receipt().await;
        world.facilitator.expect(JobStatus::Accepted).await;
    }
    if stage >= Stage::Ready {
        session.executor_ready(id).await;
        session.job().await;
        world.facilitator.expect(JobStatus::ExecutorReady).await;
    }
    if stage >= Stage::VolumesReady {
        session.volumes_ready(id).await;
        world.facilitator.expect(JobStatus::VolumesReady).await;
    }
    if stage >= Stage::Executed {
        session.execution_done(id).await;
        world.facilitator.expect(JobStatus::ExecutionDone).await;
    }
    id
}

#[tokio::test]
async fn a_miner_that_falls_silent_is_given_up_by_the_clock_of_its_stage() {
    for (stage, reason) in STAGES {
        let mut miner = Miner::open("//Miner").await;
        let mut world = World::new(&[&miner]).await;
        world.start();
        world.facilitator.accept().await;
        world.facilitator.submit(&job("//User", 1)).await;
        let mut session = miner.accept().await;
        let id = bring_to(stage, &mut world, &mut session).await;

        let cancelled = while_time_passes(&world.test_clock, "a cancellation", session.receive()).await;
        assert!(
            matches!(&cancelled, ValidatorToMiner::MusterCancelJob(cancel) if cancel.job_uuid == id),
            "{cancelled:?}"
        );
        if stage > Stage::Offered {
            assert_eq!(session.paid().await, "0.000000");
        }
        let end = world.facilitator.expect(JobStatus::HordeFailed).await;
        let details = end.metadata.unwrap().horde_failure_details.unwrap();
        assert_eq!(
            (details.reason, details.reported_by),
            (reason, ParticipantType::Validator),
            "{stage:?}"
        );
        world.stop().await;
    }
}

#[tokio::test]
async fn a_cut_connection_that_comes_back_costs_nothing() {
    for (stage, _) in STAGES {
        let mut miner = Miner::open("//Miner").await;
        let mut world = World::in_real_time(&[&miner]).await;
        world.start();
        world.facilitator.accept().await;
        world.facilitator.submit(&job("//User", 1)).await;
        let mut session = miner.accept().await;
        let id = bring_to(stage, &mut world, &mut session).await;
        drop(session);

        let mut session = miner.accept().await;
        if stage == Stage::Offered {
            assert_eq!(session.offer().await.job_uuid, id, "the offer may have been lost");
            session.accept_job(id).await;
            session.accepted_receipt().await;
        }
        if stage <= Stage::Accepted {
            session.executor_ready(id).await;
            session.job().await;
        }
        // The messages in between were lost with the connection; the result implies them.
        session.finished(id).await;
        assert_eq!(session.paid().await, "9.000000", "{stage:?}");
        assert_eq!(
            world.facilitator.updates_to_the_end().await.0.last(),
            Some(&JobStatus::Completed),
            "{stage:?}"
        );
        world.stop().await;
    }
}

#[tokio::test]
async fn a_miner_that_never_comes_back_is_lost_and_left_out_for_a_while() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
    world.config.routing.max_incidents = 1;
    world.config.queue.default_s = 0;
    world.start();
    world.facilitator.accept().await;
    let mut one = job("//User", 1);
    one.execution_time_limit = 3_000;
    one.signature = muster_identity::sign_job(
        &muster_identity::Keypair::from_uri("//User").unwrap(),
        &one.signed_fields(),
        1,
    );
    world.facilitator.submit(&one).await;
    let mut session = miner.accept().await;
    bring_to(Stage::VolumesReady, &mut world, &mut session).await;
    miner.server.close();
    drop(session);

    let end = while_time_passes(&world.test_clock, "the end", world.facilitator.take()).await;
    let details = end.metadata.unwrap().horde_failure_details.unwrap();
    assert_eq!(
        (end.status, details.reason),
        (JobStatus::HordeFailed, HordeFailureReason::MinerConnectionFailed)
    );

    world.facilitator.submit(&job("//User", 2)).await;
    world.facilitator.expect(JobStatus::Received).await;
    let rejected = world.facilitator.expect(JobStatus::Rejected);
    let details = while_time_passes(&world.test_clock, "a rejection", rejected)
        .await
        .metadata
        .unwrap()
        .job_rejection_details
        .unwrap();
    assert_eq!(
        details.context.unwrap()["excluded"][1]["reason"],
        "it failed 1 attempts lately"
    );
}

#[tokio::test]
async fn a_miner_that_cannot_be_reached_is_replaced_by_another() {
    let gone = Miner::open("//Gone").await;
    let mut there = Miner::open("//There").await;
    gone.server.close();
    let mut world = World::new(&[&gone, &there]).await;
    // A second of the moved clock is short in real time, and a connected peer needs time to answer.
    world.config.timing.dial_s = 60;
    world.start();
    world.facilitator.accept().await;
    for at in 1..=4 {
        world.facilitator.submit(&job("//User", at)).await;
        world.facilitator.expect(JobStatus::Received).await;
        let mut session = while_time_passes(&world.test_clock, "a session", there.accept()).await;
        let id = session.begin().await;
        session.complete(id).await;
        session.paid().await;
        assert_eq!(
            world.facilitator.updates_to_the_end().await.0.last(),
            Some(&JobStatus::Completed)
        );
    }
}

#[tokio::test]
async fn a_validator_that_was_restarted_resumes_at_every_stage() {
    for (stage, _) in STAGES {
        let mut miner = Miner::open("//Miner").await;
        let mut world = World::new(&[&miner]).await;
        world.start();
        world.facilitator.accept().await;
        world.facilitator.submit(&job("//User", 1)).await;
        let mut session = miner.accept().await;
        let id = bring_to(stage, &mut world, &mut session).await;
        world.updates_waiting(0).await;
        world.stop().await;
        session.closed().await;

        world.start();
        world.facilitator.accept().await;
        let mut session = miner.accept().await;
        if stage == Stage::Offered {
            assert_eq!(session.offer().await.job_uuid, id);
            session.accept_job(id).await;
            session.accepted_receipt().await;
        }
        if stage <= Stage::Accepted {
            session.executor_ready(id).await;
            session.job().await;
        }
        session.complete(id).await;
        assert_eq!(session.paid().await, "9.000000", "{stage:?}");
        let (statuses, end) = world.facilitator.updates_to_the_end().await;
        assert_eq!(statuses.last(), Some(&JobStatus::Completed), "{stage:?}");
        assert!(
            !statuses.contains(&JobStatus::Received),
            "an acknowledged update is not sent again"
        );
        assert_eq!(
            end.metadata.unwrap().muster.unwrap().receipts.len(),
            3,
            "{stage:?}"
        );
        world.stop().await;
    }
}

#[tokio::test]
async fn a_validator_stopped_between_the_end_and_the_miners_signature_still_collects_it() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
    world.config.timing.receipt_wait_ms = 15_000;
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job("//User", 1)).await;
    let mut session = miner.accept().await;
    let id = bring_to(Stage::Executed, &mut world, &mut session).await;
    session.finished(id).await;
    session.finished_receipt().await;
    world.stop().await;

    world.start();
    world.facilitator.accept().await;
    let mut session = miner.accept().await;
    assert_eq!(
        session.paid().await,
        "9.000000",
        "the pay slip is delivered again"
    );
    let end = world.facilitator.expect(JobStatus::Completed).await;
    assert_eq!(end.metadata.unwrap().muster.unwrap().receipts.len(), 3);
}

#[tokio::test]
async fn a_deadline_that_passed_while_the_validator_was_away_does_not_cost_a_finished_result() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job("//User", 1)).await;
    let mut session = miner.accept().await;
    let id = bring_to(Stage::VolumesReady, &mut world, &mut session).await;
    world.stop().await;
    world.test_clock.advance(Duration::from_secs(3_600));

    world.start();
    world.facilitator.accept().await;
    let mut session = miner.accept().await;
    session.finished(id).await;
    assert_eq!(session.paid().await, "9.000000");
    assert_eq!(
        world.facilitator.updates_to_the_end().await.0.last(),
        Some(&JobStatus::Completed)
    );
}

#[tokio::test]
async fn a_miner_that_missed_our_last_word_gets_it_again_on_its_next_session() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::in_real_time(&[&miner]).await;
    world.config.timing.receipt_wait_ms = 1;
    // The refusal ends the second job.
    world.config.queue.default_s = 0;
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job("//User", 1)).await;
    let mut session = miner.accept().await;
    let first = session.begin().await;
    session.complete(first).await;
    world.facilitator.updates_to_the_end().await;
    drop(session);

    world.facilitator.submit(&job("//User", 2)).await;
    let mut session = miner.accept().await;
    let second = session.offer().await.job_uuid;
    session.finished(first).await;
    let slip = session.finished_receipt().await;
    assert_eq!(
        (slip.payload.job_uuid, slip.payload.score_str.as_str()),
        (first, "9.000000")
    );
    session.decline(second).await;
    world.facilitator.updates_to_the_end().await;
}

#[tokio::test]
async fn a_miner_that_hangs_up_with_a_reason_is_quoted() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
    // The miner's words come before, even on a busy machine.
    world.config.timing.reservation_s = 60;
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job("//User", 1)).await;
    world.facilitator.expect(JobStatus::Received).await;
    let mut session = miner.accept().await;
    session.offer().await;
    let details = Some("Unknown validator".to_owned());
    session
        .send(MinerToValidator::GenericError(GenericError {
            details,
            job_uuid: None,
        }))
        .await;
    let end = while_time_passes(&world.test_clock, "the end", world.facilitator.take()).await;
    let details = end.metadata.unwrap().horde_failure_details.unwrap();
    assert_eq!(details.reason, HordeFailureReason::InitialResponseTimedOut);
    assert_eq!(details.context.unwrap()["miner_said"], "Unknown validator");
}

/// Runs a job that the miner accepts and then fails; returns the party that the validator holds at fault.
async fn fail(
    world: &mut World,
    miner: &mut Miner,
    at: i64,
    reason: HordeFailureReason,
    context: Option<serde_json::Value>,
) -> serde_json::Value {
    world.facilitator.submit(&job("//User", at)).await;
    let mut session = miner.accept().await;
    let id = bring_to(Stage::Accepted, world, &mut session).await;
    session.horde_failed_by(id, reason, context).await;
    assert_eq!(session.paid().await, "0.000000");
    world.facilitator.expect(JobStatus::HordeFailed).await;
    world.state().await["jobs"][0]["fault"].clone()
}

#[tokio::test]
async fn mistakes_of_users_and_unknown_answers_leave_no_miner_out_and_its_own_failures_do() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::in_real_time(&[&miner]).await;
    world.config.queue.default_s = 0;
    world.start();
    world.facilitator.accept().await;
    for at in 1..=3 {
        let missing = json!({"code": "E0008", "stage": "executor_startup", "image": "helo", "fault": "user"});
        let reason = HordeFailureReason::GenericError;
        let fault = fail(&mut world, &mut miner, at, reason, Some(missing)).await;
        assert_eq!(fault, "user");
    }
    for at in 4..=6 {
        world.facilitator.submit(&job("//User", at)).await;
        let mut session = miner.accept().await;
        let id = bring_to(Stage::VolumesReady, &mut world, &mut session).await;
        session.job_failed(id).await;
        assert_eq!(session.paid().await, "9.000000");
        world.facilitator.expect(JobStatus::Failed).await;
        assert_eq!(world.state().await["jobs"][0]["fault"], "user");
    }
    for at in 7..=9 {
        // The miner cannot shift the fault to another party, and the user's image may have provoked the answer.
        let excuse = json!({"fault": "user"});
        let reason = HordeFailureReason::ExecutorDisconnected;
        let fault = fail(&mut world, &mut miner, at, reason, Some(excuse)).await;
        assert_eq!(fault, "miner");
    }
    world.facilitator.submit(&job("//User", 10)).await;
    let mut session = miner.accept().await;
    let id = session.begin().await;
    session.complete(id).await;
    assert_eq!(session.paid().await, "9.000000", "no miner is left out");
    world.facilitator.updates_to_the_end().await;
    for at in 11..=13 {
        world.facilitator.submit(&job("//User", at)).await;
        let mut session = miner.accept().await;
        let id = bring_to(Stage::Accepted, &mut world, &mut session).await;
        session
            .send(Session::horde_failure(id, "no executor starts"))
            .await;
        assert_eq!(session.paid().await, "0.000000");
        world.facilitator.expect(JobStatus::HordeFailed).await;
    }
    world.facilitator.submit(&job("//User", 14)).await;
    world.facilitator.expect(JobStatus::Received).await;
    let end = world.facilitator.expect(JobStatus::Rejected).await;
    let context = end
        .metadata
        .unwrap()
        .job_rejection_details
        .unwrap()
        .context
        .unwrap();
    assert_eq!(context["excluded"][1]["reason"], "it failed 3 attempts lately");
}

//! Slow, lost and killed parties: every job comes to one terminal status, sent once, and nothing is lost.

use std::time::Duration;

use crate::support::facilitator::job;
use crate::support::miner::{Miner, Session};
use crate::support::{World, while_time_passes, within};
use muster_process::Clock as _;
use muster_protocol::status::{HordeFailureReason, JobRejectionReason, JobStatus, ParticipantType};
use muster_protocol::wire::facilitator::{Heartbeat, Response, ToFacilitator};
use muster_protocol::wire::miner::{FromMiner, GenericError, ToMiner};
use serde_json::json;

/// The stage at which a miner stops answering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
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
async fn bring_to(stage: Stage, world: &mut World, session: &mut Session) -> muster_protocol::AttemptId {
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
        let mut world = World::timed(&[&miner]).await;
        world.start();
        world.facilitator.accept().await;
        world.facilitator.submit(&job("//User", 1)).await;
        let mut session = miner.accept().await;
        let id = bring_to(stage, &mut world, &mut session).await;

        let cancelled = while_time_passes(&world.test_clock, "a cancellation", session.receive()).await;
        assert!(
            matches!(&cancelled, ToMiner::MusterCancelJob(cancel) if cancel.job_uuid == id),
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
        let mut world = World::new(&[&miner]).await;
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
    let mut world = World::timed(&[&miner]).await;
    world.config.routing.max_incidents = 1;
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
    miner.door.close();
    drop(session);

    let end = while_time_passes(&world.test_clock, "the end", world.facilitator.take()).await;
    let details = end.metadata.unwrap().horde_failure_details.unwrap();
    assert_eq!(
        (end.status, details.reason),
        (JobStatus::HordeFailed, HordeFailureReason::MinerConnectionFailed)
    );

    world.facilitator.submit(&job("//User", 2)).await;
    world.facilitator.expect(JobStatus::Received).await;
    let details = world
        .facilitator
        .expect(JobStatus::Rejected)
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
    gone.door.close();
    let mut world = World::timed(&[&gone, &there]).await;
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
    let mut world = World::timed(&[&miner]).await;
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
async fn a_job_that_ends_without_a_facilitator_is_told_when_it_is_back() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
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
    let mut world = World::new(&[]).await;
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
async fn a_miner_that_missed_our_last_word_gets_it_again_on_its_next_session() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
    world.config.timing.receipt_wait_ms = 1;
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
    world.config.timing.reservation_s = 1;
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job("//User", 1)).await;
    world.facilitator.expect(JobStatus::Received).await;
    let mut session = miner.accept().await;
    session.offer().await;
    let details = Some("Unknown validator".to_owned());
    session
        .send(FromMiner::GenericError(GenericError { details }))
        .await;
    let end = world.facilitator.take().await;
    let details = end.metadata.unwrap().horde_failure_details.unwrap();
    assert_eq!(details.reason, HordeFailureReason::InitialResponseTimedOut);
    assert_eq!(details.context.unwrap()["miner_said"], "Unknown validator");
}

#[tokio::test]
async fn the_facilitator_hears_a_heartbeat_every_minute() {
    let mut world = World::timed(&[]).await;
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
async fn users_mistakes_leave_no_miner_out_and_its_own_failures_do() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
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
        assert_eq!(session.paid().await, "0.000000");
        world.facilitator.expect(JobStatus::Failed).await;
        assert_eq!(world.state().await["jobs"][0]["fault"], "user");
    }
    for at in 7..=9 {
        // The miner cannot shift the fault to another party.
        let excuse = json!({"fault": "user"});
        let reason = HordeFailureReason::ExecutorDisconnected;
        let fault = fail(&mut world, &mut miner, at, reason, Some(excuse)).await;
        assert_eq!(fault, "miner");
    }
    world.facilitator.submit(&job("//User", 10)).await;
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

#[tokio::test]
async fn a_validator_whose_chain_is_away_resumes_its_jobs_and_lets_new_ones_wait() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
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
    let mut world = World::timed(&[]).await;
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
    let mut world = World::new(&[]).await;
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

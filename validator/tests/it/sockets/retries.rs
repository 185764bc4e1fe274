//! Retries on another miner after a fault that is not the user's, cancellations, and the routes of a job.

use crate::sockets::support::facilitator::job;
use crate::sockets::support::miner::{Miner, Session};
use crate::sockets::support::{World, while_time_passes};
use muster_protocol::status::{HordeFailureReason, JobStatus};
use muster_protocol::wire::facilitator::{ToFacilitator, UserJobRequest};
use muster_protocol::wire::validator_socket::ValidatorToMiner;
use muster_protocol::{AttemptId, JobId};
use serde_json::json;

/// The miner of the two that gets the offer, and the other one.
async fn asked<'a>(one: &'a mut Miner, two: &'a mut Miner) -> (Session, &'a mut Miner) {
    tokio::select! {
        session = one.accept() => (session, two),
        session = two.accept() => (session, one),
    }
}

async fn submitted(world: &mut World) -> UserJobRequest {
    world.start();
    world.facilitator.accept().await;
    let job = job("//User", 1);
    world.facilitator.submit(&job).await;
    job
}

#[tokio::test]
async fn a_job_that_its_miner_fails_is_done_by_another_and_its_user_sees_one_job() {
    // Faults before the program ran, while it ran, and while its result was delivered.
    for stage in 0..3 {
        let (mut one, mut two) = (Miner::open("//One").await, Miner::open("//Two").await);
        let mut world = World::new(&[&one, &two]).await;
        let job = submitted(&mut world).await;
        let (mut session, other) = asked(&mut one, &mut two).await;
        let first = if stage == 0 {
            let id = session.offer().await.job_uuid;
            session.accept_job(id).await;
            session.accepted_receipt().await;
            id
        } else {
            session.begin().await
        };
        if stage == 2 {
            session.volumes_ready(first).await;
            session.execution_done(first).await;
        }
        session.horde_failed(first).await;
        assert_eq!(session.paid().await, "0.000000");

        let mut session = other.accept().await;
        let second = session.begin().await;
        assert_eq!(first, AttemptId::first_of(job.uuid));
        assert_ne!(second, first);
        session.complete(second).await;
        assert_eq!(session.paid().await, "9.000000");
        let (statuses, end) = world.facilitator.updates_to_the_end().await;
        assert_eq!(statuses.last(), Some(&JobStatus::Completed), "{stage}");
        for pair in statuses.windows(2) {
            assert!(pair[1].may_follow(pair[0]), "{stage}: {statuses:?}");
        }
        assert_eq!(end.metadata.unwrap().muster.unwrap().attempt, Some(second));
        let state = world.state().await;
        assert_eq!(state["jobs"][0]["attempts"].as_array().unwrap().len(), 2);
        world.stop().await;
    }
}

#[tokio::test]
async fn a_result_that_a_lost_miner_delivers_late_is_not_the_jobs() {
    let (mut one, mut two) = (Miner::open("//One").await, Miner::open("//Two").await);
    let mut world = World::new(&[&one, &two]).await;
    submitted(&mut world).await;
    let (mut session, other) = asked(&mut one, &mut two).await;
    let first = session.begin().await;
    for status in [JobStatus::Received, JobStatus::Accepted, JobStatus::ExecutorReady] {
        world.facilitator.expect(status).await;
    }
    let reason = while_time_passes(&world.test_clock, "a cancellation", session.cancelled(first)).await;
    assert_eq!(reason, "the time for it is over");
    let mut late = other.accept().await;
    let second = late.begin().await;
    // The first miner answers again.
    session.finished(first).await;
    late.complete(second).await;
    late.paid().await;
    let (_, end) = world.facilitator.updates_to_the_end().await;
    assert_eq!(end.status, JobStatus::Completed);
    let extension = end.metadata.unwrap().muster.unwrap();
    assert_eq!(extension.attempt, Some(second));
    assert!(
        extension
            .receipts
            .iter()
            .all(|receipt| receipt.payload.attempt() == second)
    );
    let receipts = world.state().await["receipts"].clone();
    let paid: Vec<_> = receipts
        .as_array()
        .unwrap()
        .iter()
        .filter(|receipt| receipt["payload"]["score_str"] == "9.000000")
        .collect();
    assert_eq!(paid.len(), 1, "work is paid once");
}

#[tokio::test]
async fn the_users_own_failure_is_tried_nowhere_else_and_nothing_is_tried_for_ever() {
    let (mut one, mut two) = (Miner::open("//One").await, Miner::open("//Two").await);
    let mut world = World::new(&[&one, &two]).await;
    world.config.routing.max_attempts = 2;
    submitted(&mut world).await;
    let (mut session, _) = asked(&mut one, &mut two).await;
    let id = session.begin().await;
    session.job_failed(id).await;
    session.paid().await;
    let (statuses, _) = world.facilitator.updates_to_the_end().await;
    assert_eq!(statuses.last(), Some(&JobStatus::Failed));

    let mut three = Miner::open("//Three").await;
    let mut world = World::new(&[&one, &two, &three]).await;
    world.config.routing.max_attempts = 2;
    submitted(&mut world).await;
    for _ in 0..2 {
        let mut session = tokio::select! {
            session = one.accept() => session,
            session = two.accept() => session,
            session = three.accept() => session,
        };
        let id = session.begin().await;
        session
            .horde_failed_by(id, HordeFailureReason::ExecutorDisconnected, None)
            .await;
        session.paid().await;
    }
    let (statuses, end) = world.facilitator.updates_to_the_end().await;
    assert_eq!(statuses.last(), Some(&JobStatus::HordeFailed));
    let context = end
        .metadata
        .unwrap()
        .horde_failure_details
        .unwrap()
        .context
        .unwrap();
    assert_eq!(
        context["attempts"].as_array().unwrap().len(),
        2,
        "and the third is not asked"
    );
}

/// The stage at which a user calls a job off.
const STAGES: [&str; 4] = ["offered", "accepted", "running", "delivering"];

#[tokio::test]
async fn a_job_that_its_user_calls_off_stops_at_its_miner_and_goes_to_no_other() {
    for stage in STAGES {
        let (mut one, mut two) = (Miner::open("//One").await, Miner::open("//Two").await);
        let mut world = World::in_real_time(&[&one, &two]).await;
        let job = submitted(&mut world).await;
        let (mut session, _other) = asked(&mut one, &mut two).await;
        let id = match stage {
            "running" | "delivering" => session.begin().await,
            _ => session.offer().await.job_uuid,
        };
        match stage {
            "accepted" => {
                session.accept_job(id).await;
                session.accepted_receipt().await;
            }
            "delivering" => {
                session.volumes_ready(id).await;
                session.execution_done(id).await;
                loop {
                    if world.facilitator.take().await.status == JobStatus::ExecutionDone {
                        break;
                    }
                }
            }
            _ => {}
        }
        world.facilitator.cancel(job.uuid, "changed my mind").await;
        assert_eq!(session.cancelled(id).await, "changed my mind", "{stage}");
        match stage {
            "offered" => {}
            "accepted" => assert_eq!(session.paid().await, "0.000000", "no executor was ready"),
            _ => assert_eq!(session.paid().await, "9.000000", "{stage}"),
        }
        let (_, end) = world.facilitator.updates_to_the_end().await;
        let details = end.metadata.clone().unwrap().job_failure_details.unwrap();
        assert_eq!(end.status, JobStatus::Failed, "{stage}");
        assert_eq!(details.context.unwrap()["cancelled"], true);
        let state = world.state().await;
        assert_eq!(
            state["jobs"][0]["attempts"].as_array().unwrap().len(),
            1,
            "{stage}"
        );
        assert_eq!(state["jobs"][0]["fault"], "user");

        // A repeated cancellation is answered with the last status again.
        world.facilitator.cancel(job.uuid, "again").await;
        assert_eq!(world.facilitator.take().await, end);
        world.stop().await;
    }
}

#[tokio::test]
async fn a_cancellation_survives_a_restart_and_a_miner_that_is_away() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::in_real_time(&[&miner]).await;
    let job = submitted(&mut world).await;
    let mut session = miner.accept().await;
    session.begin().await;
    world.stop().await;
    session.closed().await;
    // The job was called off while the validator was down; the facilitator sends the cancellation when it is back.
    world.start();
    world.facilitator.accept().await;
    world.facilitator.cancel(job.uuid, "too slow").await;
    let mut session = miner.accept().await;
    // The miner gets a cancellation message too if its connection stood before the cancellation.
    loop {
        let message = session.receive().await;
        if let ValidatorToMiner::V0JobFinishedReceiptRequest(slip) = message {
            assert_eq!(
                slip.payload.score_str, "9.000000",
                "the receipt tells the miner that it is over"
            );
            break;
        }
        let expected = matches!(
            message,
            ValidatorToMiner::MusterCancelJob(_) | ValidatorToMiner::V0JobAcceptedReceiptRequest(_)
        );
        assert!(expected, "{message:?}");
    }
    let (_, end) = world.facilitator.updates_to_the_end().await;
    assert_eq!(end.status, JobStatus::Failed);

    // The cancellation of an unknown job changes nothing.
    let unknown = JobId::from_uuid(uuid::Uuid::new_v4());
    world.facilitator.cancel(unknown, "what?").await;
    world
        .facilitator
        .submit(&crate::sockets::support::facilitator::job("//User", 2))
        .await;
    world.facilitator.expect(JobStatus::Received).await;
}

#[tokio::test]
async fn a_job_that_waits_for_the_chain_can_be_called_off() {
    let mut world = World::in_real_time(&[]).await;
    world.chain.silent(true);
    let job = submitted(&mut world).await;
    world.facilitator.expect(JobStatus::Received).await;
    world.facilitator.cancel(job.uuid, "never mind").await;
    world.facilitator.expect(JobStatus::Failed).await;
}

#[tokio::test]
async fn output_of_a_job_reaches_the_facilitator_while_it_runs() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
    let job = submitted(&mut world).await;
    let mut session = miner.accept().await;
    let id = session.begin().await;
    session.volumes_ready(id).await;
    // Output of another attempt is dropped.
    session
        .prints(AttemptId::from_uuid(uuid::Uuid::new_v4()), 0, b"not yours")
        .await;
    session.prints(id, 0, b"one\n").await;
    session.runs_for(id, 7).await;
    let ToFacilitator::MusterJobLog(piece) = world.facilitator.live().await else {
        panic!("a piece of output was due")
    };
    assert_eq!(
        (piece.uuid, piece.offset, piece.data.as_bytes()),
        (job.uuid, 0, b"one\n".as_slice())
    );
    let ToFacilitator::MusterJobProgress(progress) = world.facilitator.live().await else {
        panic!("progress was due")
    };
    assert_eq!((progress.uuid, progress.done), (job.uuid, 7));
    // Output over the attempt's rate is dropped, and the job ends normally.
    for n in 0..200 {
        session.prints(id, n, &[b'x'; 60_000]).await;
    }
    session.execution_done(id).await;
    session.finished(id).await;
    session.paid().await;
    let (statuses, _) = world.facilitator.updates_to_the_end().await;
    assert_eq!(statuses.last(), Some(&JobStatus::Completed));
    assert!(world.state().await["live_dropped"].as_u64().unwrap() > 100);
}

#[tokio::test]
async fn why_a_job_went_where_it_went_can_be_asked() {
    let (mut one, mut two) = (Miner::open("//One").await, Miner::open("//Two").await);
    let mut world = World::new(&[&one, &two]).await;
    let job = submitted(&mut world).await;
    let (mut session, other) = asked(&mut one, &mut two).await;
    let id = session.offer().await.job_uuid;
    session.decline(id).await;
    let mut session = other.accept().await;
    let second = session.begin().await;
    session.complete(second).await;
    session.paid().await;
    world.facilitator.updates_to_the_end().await;

    let told = world.get(&format!("/v0/jobs/{}/route", job.uuid)).await;
    let routes = told["routes"].as_array().unwrap();
    assert_eq!(routes.len(), 2);
    assert_eq!(routes[0]["candidates"].as_array().unwrap().len(), 2);
    assert_eq!(
        routes[0]["candidates"][0]["cost"]["image"], 300,
        "nobody is known to have it"
    );
    assert_eq!(
        routes[0]["excluded"],
        json!([{ "reason": { "why": "own_hotkey" }, "uids": [0] }])
    );
    assert_eq!(routes[1]["chosen"], json!(other.key()));
    let reasons: Vec<_> = routes[1]["excluded"]
        .as_array()
        .unwrap()
        .iter()
        .map(|passed| passed["reason"]["why"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(reasons, ["own_hotkey", "already_tried"]);
    let beginning = &job.uuid.to_string()[..8];
    let by_beginning = world.get(&format!("/v0/jobs/{beginning}/route")).await;
    assert_eq!(by_beginning, told);
    for (wrong, said) in [
        (uuid::Uuid::new_v4().to_string(), "remembers no route"),
        ("train".to_owned(), "hexadecimal"),
    ] {
        let refused = world.get(&format!("/v0/jobs/{wrong}/route")).await;
        assert!(refused["error"].as_str().unwrap().contains(said), "{refused}");
    }
}

//! Ends of attempts and their pay, over real sockets: the receipt that the miner gets to sign.

use std::time::Duration;

use muster_identity::{Keypair, sign_job};
use muster_protocol::status::{HordeFailureReason, JobStatus};
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_routing::AttemptMark;
use serde_json::json;

use crate::sockets::support::World;
use crate::sockets::support::miner::{Miner, Session};

/// A signed job that reserves an hour for each stage.
fn job(at: i64, args: &[&str]) -> UserJobRequest {
    let mut job = crate::sockets::support::facilitator::job("//User", at);
    job.args = args.iter().map(|arg| (*arg).to_owned()).collect();
    for limit in [
        &mut job.download_time_limit,
        &mut job.execution_time_limit,
        &mut job.upload_time_limit,
    ] {
        *limit = 3_600;
    }
    job.signature = sign_job(&Keypair::from_uri("//User").unwrap(), &job.signed_fields(), at);
    job
}

/// One of these miners that is asked for a job, and its session.
async fn asked(miners: &mut [Miner]) -> Session {
    let accepting = miners.iter_mut().map(|miner| Box::pin(miner.accept()));
    futures_util::future::select_all(accepting).await.0
}

async fn world(miners: &[&Miner]) -> World {
    let mut world = World::new(miners).await;
    // The clock moves by minutes while an answer of the facilitator is under way.
    world.config.facilitator.answer_s = 100_000;
    world.config.facilitator.heartbeat_s = 100_000;
    world.start();
    world.facilitator.accept().await;
    // The owners of the miners are known once the chain has answered.
    world.seen(1).await;
    world
}

/// How a miner ends an attempt.
#[derive(Clone, Copy, Debug)]
enum End {
    Completes,
    ProgramFails,
    ClaimsTheUsersFault,
    ClaimsTheValidatorsFault,
    LosesItsExecutor,
    FailsBeforeItIsReady,
    IsCalledOff,
    IsCalledOffBeforeItIsReady,
}

#[tokio::test]
async fn the_time_since_the_executor_was_ready_is_paid_if_the_job_was_done_or_its_user_is_at_fault() {
    for (end, paid) in [
        (End::Completes, "71.000000"),
        (End::ProgramFails, "71.000000"),
        (End::ClaimsTheUsersFault, "71.000000"),
        (End::ClaimsTheValidatorsFault, "0.000000"),
        (End::LosesItsExecutor, "0.000000"),
        (End::FailsBeforeItIsReady, "0.000000"),
        (End::IsCalledOff, "71.000000"),
        (End::IsCalledOffBeforeItIsReady, "0.000000"),
    ] {
        let mut miner = Miner::open("//Miner").await;
        let mut world = world(&[&miner]).await;
        let job = job(1, &["work"]);
        world.facilitator.submit(&job).await;
        let mut session = miner.accept().await;
        let id = session.offer().await.job_uuid;
        session.accept_job(id).await;
        session.accepted_receipt().await;
        // The time before the executor is ready is paid to nobody.
        world.test_clock.advance(Duration::from_secs(5));
        let ready = !matches!(end, End::FailsBeforeItIsReady | End::IsCalledOffBeforeItIsReady);
        if ready {
            session.executor_ready(id).await;
            session.job().await;
            world.test_clock.advance(Duration::from_micros(70_500_000));
        }
        let claim = |fault: &str| Some(json!({ "fault": fault }));
        match end {
            End::Completes => session.complete(id).await,
            End::ProgramFails => session.job_failed(id).await,
            End::ClaimsTheUsersFault => {
                let why = HordeFailureReason::GenericError;
                session.horde_failed_by(id, why, claim("user")).await;
            }
            End::ClaimsTheValidatorsFault => {
                let why = HordeFailureReason::GenericError;
                session.horde_failed_by(id, why, claim("validator")).await;
            }
            End::LosesItsExecutor | End::FailsBeforeItIsReady => {
                let why = HordeFailureReason::ExecutorDisconnected;
                session.horde_failed_by(id, why, claim("user")).await;
            }
            End::IsCalledOff | End::IsCalledOffBeforeItIsReady => {
                world.facilitator.cancel(job.uuid, "enough").await;
                session.cancelled(id).await;
            }
        }
        assert_eq!(session.paid().await, paid, "{end:?}");
    }
}

#[tokio::test]
async fn a_stalled_job_is_paid_twice_the_usual_time_of_the_same_work() {
    let mut miners = Vec::new();
    for uri in ["//One", "//Two", "//Three"] {
        miners.push(Miner::open(uri).await);
    }
    let mut world = world(&miners.iter().collect::<Vec<_>>()).await;
    // Three miners of three owners take twenty seconds each.
    let mut sessions = Vec::new();
    for at in 1..=3 {
        world.facilitator.submit(&job(at, &["work"])).await;
        let mut session = asked(&mut miners).await;
        let id = session.begin().await;
        sessions.push((session, id));
    }
    world.test_clock.advance(Duration::from_secs(20));
    for (session, id) in &mut sessions {
        session.complete(*id).await;
        assert_eq!(
            session.paid().await,
            "20.000000",
            "the usual time is not known yet"
        );
    }
    for _ in 0..3 {
        world.facilitator.updates_to_the_end().await;
    }
    for (at, args, paid) in [
        (4, &["work"][..], "40.000000"),
        (5, &["other", "work"][..], "1000.000000"),
    ] {
        world.facilitator.submit(&job(at, args)).await;
        let mut session = asked(&mut miners).await;
        let id = session.begin().await;
        world.test_clock.advance(Duration::from_secs(1_000));
        session.complete(id).await;
        assert_eq!(session.paid().await, paid, "{args:?}");
        world.facilitator.updates_to_the_end().await;
    }
}

#[tokio::test]
async fn an_image_that_comes_to_two_owners_miners_never_is_the_users_fault_and_marks_no_miner() {
    let mut miners = vec![Miner::open("//One").await, Miner::open("//Two").await];
    let mut world = world(&miners.iter().collect::<Vec<_>>()).await;
    // One of them had the image before, so that the first failure looks like the other miner's.
    world.facilitator.submit(&job(1, &["work"])).await;
    let mut session = asked(&mut miners).await;
    let id = session.begin().await;
    session.complete(id).await;
    session.paid().await;
    world.facilitator.updates_to_the_end().await;

    let stuck = job(2, &["work"]);
    world.facilitator.submit(&stuck).await;
    for _ in 0..2 {
        let mut session = asked(&mut miners).await;
        let id = session.offer().await.job_uuid;
        session.accept_job(id).await;
        session.accepted_receipt().await;
        let context = json!({ "image_fetch": "stalled" });
        session
            .horde_failed_by(id, HordeFailureReason::GenericError, Some(context))
            .await;
        assert_eq!(session.paid().await, "0.000000");
    }
    let (_, end) = world.facilitator.updates_to_the_end().await;
    assert_eq!(end.status, JobStatus::HordeFailed);
    let details = end.metadata.unwrap().horde_failure_details.unwrap();
    assert!(
        details.message.contains("came to none of 2 miners"),
        "{}",
        details.message
    );
    assert_eq!(details.context.unwrap()["reported"]["fault"], "user");
    // The marks are in the store; a validator that starts anew reads them there.
    world.stop().await;
    let store = muster_validator::store::Store::open(&world.config.store)
        .await
        .unwrap();
    let long_ago = muster_protocol::Timestamp::from_secs(0);
    let groups = store.history(long_ago, long_ago).await.unwrap();
    let marks: Vec<_> = groups
        .iter()
        .filter_map(|group| group.ended)
        .map(|(_, mark)| mark)
        .collect();
    store.close().await;
    let excuses = marks.iter().filter(|mark| **mark == AttemptMark::Excuse);
    assert_eq!(excuses.count(), 0, "{marks:?}");
}

//! Attempts that end before their job does: the miner leaves, cancels or cannot be reached, or the executor is stopped.

use muster_executor::{ContainerEngine, Error};
use muster_process::Coded;
use muster_process::task::Task;
use muster_protocol::ErrorCode;
use serde_json::json;

use crate::support::lease::{Job, Lease};
use crate::support::miner::{FakeMiner, Wire};
use crate::support::{engine, image};

/// Starts an executor with a job that sleeps, and waits until its container is there.
async fn start_sleeping(
    lease: &Lease,
    miner: &FakeMiner,
    engine: &ContainerEngine,
) -> (Task<Result<(), Error>>, Wire) {
    let (executor, mut wire) = lease.start(miner).await;
    lease
        .to_running(&mut wire, &Job::new(&["probe", "sleep", "3600"]))
        .await;
    lease.container_appears(engine).await;
    (executor, wire)
}

#[tokio::test]
async fn a_miner_that_leaves_takes_the_container_with_it() {
    let engine = engine().await;
    image::load(&engine).await;
    let (lease, miner) = (Lease::new(), FakeMiner::start().await);
    let (executor, wire) = start_sleeping(&lease, &miner, &engine).await;
    wire.close().await;
    let error = executor.join().await.unwrap().unwrap_err();
    assert!(matches!(error, Error::MinerLost(_)), "{error}");
    assert_eq!(error.code(), Some(ErrorCode::MinerLost));
    lease.assert_clean(&engine).await;
}

#[tokio::test]
async fn a_cancelled_job_is_removed_wherever_it_stands() {
    let engine = engine().await;
    image::load(&engine).await;
    // The job is cancelled right after the request for the container, and once the container is there.
    for wait in [false, true] {
        let (lease, miner) = (Lease::new(), FakeMiner::start().await);
        let (executor, mut wire) = lease.start(&miner).await;
        lease
            .to_running(&mut wire, &Job::new(&["probe", "sleep", "3600"]))
            .await;
        if wait {
            lease.container_appears(&engine).await;
        }
        let other = uuid::Uuid::new_v4().to_string();
        wire.send(&json!({"message_type": "MusterCancelJob", "job_uuid": other, "reason": "not this one"}))
            .await;
        let uuid = lease.token.attempt();
        wire.send(&json!({"message_type": "MusterCancelJob", "job_uuid": uuid, "reason": "enough"}))
            .await;
        wire.expect_end().await;
        let error = executor.join().await.unwrap().unwrap_err();
        assert!(
            matches!(&error, Error::Cancelled(reason) if reason == "enough"),
            "{error}"
        );
        lease.assert_clean(&engine).await;
    }
}

#[tokio::test]
async fn stopped_executor_leaves_nothing() {
    let engine = engine().await;
    image::load(&engine).await;
    let (lease, miner) = (Lease::new(), FakeMiner::start().await);
    let (executor, mut wire) = start_sleeping(&lease, &miner, &engine).await;
    lease.tasks.shutdown();
    wire.expect_end().await;
    assert!(matches!(executor.join().await.unwrap(), Err(Error::ShutDown)));
    lease.assert_clean(&engine).await;
}

#[tokio::test]
async fn a_lease_that_the_miner_does_not_know_is_given_up() {
    let miner = FakeMiner::start().await;
    let foreign = Lease::new();
    for (message, word) in [
        (
            json!({"message_type": "GenericError", "details": "No job waiting for token x"}),
            "No job waiting",
        ),
        (foreign.offer(&Job::new(&[])), "offers attempt"),
    ] {
        let lease = Lease::new();
        let (executor, mut wire) = lease.start(&miner).await;
        wire.send(&message).await;
        wire.expect_end().await;
        let error = executor.join().await.unwrap().unwrap_err();
        assert!(
            matches!(&error, Error::Refused(reason) if reason.contains(word)),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_job_that_cannot_be_read_fails_by_name() {
    let miner = FakeMiner::start().await;
    for text in [
        "",
        "{",
        "[]",
        "{\"message_type\":\"V9\"}",
        "{\"message_type\":\"V0InitialJobRequest\"}",
        &"[".repeat(10_000),
    ] {
        let lease = Lease::new();
        let (executor, mut wire) = lease.start(&miner).await;
        wire.send_text(text).await;
        let failed = wire.expect("V0HordeFailedRequest").await;
        assert!(
            failed["message"]
                .as_str()
                .unwrap()
                .contains("cannot read the job"),
            "{failed:#}"
        );
        wire.expect_end().await;
        executor.join().await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn unreachable_miner_is_an_error_of_its_own() {
    let lease = Lease::new();
    let invocation = muster_executor::Invocation {
        miner_address: "ws://127.0.0.1:1".into(),
        token: lease.token.clone(),
    };
    let clock = std::sync::Arc::new(muster_process::SystemClock::new());
    let error = muster_executor::run(lease.config.clone(), invocation, lease.tasks.clone(), clock)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Connect(_)), "{error}");
}

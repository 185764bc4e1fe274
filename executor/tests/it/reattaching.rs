//! A miner that is lost and comes back, or does not.

use muster_executor::Error;
use muster_process::Coded;
use muster_protocol::ErrorCode;
use serde_json::{Value, json};

use crate::support::lease::{Job, Lease};
use crate::support::miner::{FakeMiner, Wire};
use crate::support::{engine, image};

/// `MusterLeaseHeld` of an epoch, with a secret of its own.
pub(crate) fn held(lease: &Lease, epoch: u64) -> Value {
    held_for(lease, epoch, 150)
}

/// The same of a miner that keeps the lease for this many seconds.
fn held_for(lease: &Lease, epoch: u64, reattach_s: u64) -> Value {
    json!({
        "message_type": "MusterLeaseHeld",
        "job_uuid": lease.token.attempt(),
        "epoch": epoch,
        "secret": secret(epoch),
        "reattach_s": reattach_s,
    })
}

fn secret(epoch: u64) -> String {
    format!("{epoch:064x}")
}

/// Takes the executor back: it shows the secret of this epoch and gets that of the next.
pub(crate) async fn take_back(miner: &FakeMiner, lease: &Lease, epoch: u64) -> Wire {
    let mut wire = comes_back(miner, epoch).await;
    wire.send(&held(lease, epoch + 1)).await;
    wire
}

/// The connection of an executor that comes back with the secret of this epoch.
async fn comes_back(miner: &FakeMiner, epoch: u64) -> Wire {
    let mut wire = miner.accept().await;
    assert_eq!(wire.path, "/v0/reattach");
    let ticket = wire.expect("MusterReattach").await;
    assert_eq!(
        (&ticket["epoch"], &ticket["secret"]),
        (&json!(epoch), &json!(secret(epoch)))
    );
    assert!(ticket["job_ms"].is_u64(), "{ticket:#}");
    wire
}

/// Drives a lease that the miner keeps to a running job.
async fn to_running(lease: &Lease, wire: &mut Wire, job: &Job) {
    wire.send(&held(lease, 1)).await;
    wire.send(&lease.offer(job)).await;
    wire.expect_report("V0ExecutorReadyRequest").await;
    wire.send(&lease.request(job)).await;
    wire.expect_report("V0VolumesReadyRequest").await;
}

/// The reports about the program's end, and the result.
async fn expect_end(wire: &mut Wire) -> Value {
    wire.expect_report("V0ExecutionDoneRequest").await;
    wire.expect_report("V0MachineSpecsRequest").await;
    wire.expect_report("V0JobFinishedRequest").await
}

#[tokio::test]
async fn a_miner_that_does_not_come_back_is_waited_for_and_then_the_container_goes() {
    let engine = engine().await;
    image::load(&engine).await;
    let (mut lease, miner) = (Lease::new(), FakeMiner::reattaching().await);
    lease.config.orphan_s = 2;
    let (executor, mut wire) = lease.start(&miner).await;
    to_running(&lease, &mut wire, &Job::new(&["probe", "sleep", "3600"])).await;
    lease.container_appears(&engine).await;
    drop((wire, miner));
    let error = executor.join().await.unwrap().unwrap_err();
    assert!(
        matches!(&error, Error::MinerLost(reason) if reason.contains("did not take the job back within 2 s")),
        "{error}"
    );
    assert_eq!(error.code(), Some(ErrorCode::MinerLost));
    lease.assert_clean(&engine).await;
}

#[tokio::test]
async fn an_executor_goes_on_for_less_than_its_miner_keeps_the_lease() {
    let engine = engine().await;
    image::load(&engine).await;
    let (mut lease, miner) = (Lease::new(), FakeMiner::reattaching().await);
    lease.config.orphan_s = 3_600;
    let (executor, mut wire) = lease.start(&miner).await;
    wire.send(&held_for(&lease, 1, 3)).await;
    wire.send(&lease.offer(&Job::new(&["probe", "sleep", "3600"])))
        .await;
    wire.expect_report("V0ExecutorReadyRequest").await;
    wire.send(&lease.request(&Job::new(&["probe", "sleep", "3600"])))
        .await;
    wire.expect_report("V0VolumesReadyRequest").await;
    lease.container_appears(&engine).await;
    drop((wire, miner));
    let error = executor.join().await.unwrap().unwrap_err();
    assert!(
        matches!(&error, Error::MinerLost(reason) if reason.contains("did not take the job back within 2 s")),
        "{error}"
    );
    lease.assert_clean(&engine).await;
}

#[tokio::test]
async fn an_executor_that_comes_back_repeats_its_reports_until_the_end_is_stored() {
    let engine = engine().await;
    image::load(&engine).await;
    let (lease, miner) = (Lease::new(), FakeMiner::reattaching().await);
    let (executor, mut wire) = lease.start(&miner).await;
    to_running(&lease, &mut wire, &Job::new(&["probe", "sleep", "1"])).await;
    // The miner is killed while the program runs, and again before it has stored the end.
    drop(wire);
    let mut finished = Vec::new();
    for epoch in [1, 2] {
        let mut wire = take_back(&miner, &lease, epoch).await;
        wire.expect_report("V0ExecutorReadyRequest").await;
        wire.expect_report("V0VolumesReadyRequest").await;
        finished.push(expect_end(&mut wire).await);
    }
    assert_eq!(finished[0], finished[1]);
    let mut wire = take_back(&miner, &lease, 3).await;
    wire.expect_report("V0ExecutorReadyRequest").await;
    wire.expect_report("V0VolumesReadyRequest").await;
    expect_end(&mut wire).await;
    let uuid = lease.token.attempt();
    wire.send(&json!({"message_type": "MusterEndStored", "job_uuid": uuid}))
        .await;
    wire.expect_end().await;
    executor.join().await.unwrap().unwrap();
    lease.assert_clean(&engine).await;
}

#[tokio::test]
async fn an_executor_that_is_not_taken_back_removes_its_container() {
    let engine = engine().await;
    image::load(&engine).await;
    let (lease, miner) = (Lease::new(), FakeMiner::reattaching().await);
    let (executor, mut wire) = lease.start(&miner).await;
    to_running(&lease, &mut wire, &Job::new(&["probe", "sleep", "3600"])).await;
    lease.container_appears(&engine).await;
    drop(wire);
    let mut wire = comes_back(&miner, 1).await;
    let uuid = lease.token.attempt();
    wire.send(&json!({"message_type": "MusterCancelJob", "job_uuid": uuid, "reason": "it has ended"}))
        .await;
    let error = executor.join().await.unwrap().unwrap_err();
    assert!(
        matches!(&error, Error::Cancelled(reason) if reason == "it has ended"),
        "{error}"
    );
    lease.assert_clean(&engine).await;
}

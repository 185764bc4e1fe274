//! Executors that come back to their leases over `/v0/reattach`.

use std::time::Duration;

use muster_miner::Config;
use muster_process::Clock as _;
use muster_protocol::wire::executor::{LeaseHeld, OneTimeSecret, Reattach};
use muster_protocol::wire::executor_socket::{ExecutorToMiner, MinerToExecutor};
use muster_protocol::wire::miner::{AttemptNotice, ExecutorReady, JobFinished};
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::{AttemptId, HordeFailureReason};

use crate::harness::*;

/// How long the miner keeps a lease whose executor is away: shorter than anything else that it waits for.
const KEPT: Duration = Duration::from_secs(20);

fn keeps_leases(config: &mut Config) {
    config.executor.reattach_s = KEPT.as_secs();
}

/// The way back that the miner sends the executor next.
async fn held(executor: &mut Executor) -> LeaseHeld {
    let MinerToExecutor::MusterLeaseHeld(held) = executor.receive().await else {
        panic!("the way back comes next")
    };
    held
}

/// Dials back with this ticket, which has the job since a moment.
async fn come_back(miner: &Miner, ticket: &LeaseHeld) -> Executor {
    come_back_with(miner, ticket, Some(1)).await
}

async fn come_back_with(miner: &Miner, ticket: &LeaseHeld, job_ms: Option<u64>) -> Executor {
    let party = Party::dial(&format!("ws://{}/v0/reattach", miner.address)).await;
    let mut executor = Executor {
        party,
        attempt: ticket.job_uuid,
    };
    let back = Reattach {
        job_uuid: ticket.job_uuid,
        epoch: ticket.epoch,
        secret: ticket.secret.clone(),
        job_ms,
    };
    executor
        .send_message(&ExecutorToMiner::MusterReattach(back))
        .await;
    executor
}

/// Checks that the miner has no use for the executor, and returns its reason.
async fn sent_away(mut executor: Executor) -> String {
    let MinerToExecutor::MusterCancelJob(cancel) = executor.receive().await else {
        panic!("the executor is not sent away")
    };
    assert_eq!(cancel.job_uuid, executor.attempt);
    assert_eq!(executor.party.closed().await.code, 1000);
    cancel.reason
}

/// A validator, and an executor that runs the validator's job.
async fn running_job(miner: &mut Miner) -> (Validator, Executor, LeaseHeld) {
    let mut validator = Validator::connect(miner).await;
    let attempt = new_attempt();
    validator.offer(attempt).await;
    let mut executor = Executor::dial(&miner.wanted().await).await;
    let ticket = held(&mut executor).await;
    executor.ready().await;
    assert_eq!(validator.receive_kind().await, "V0ExecutorReadyRequest");
    validator
        .send_message(&ValidatorToMiner::V0JobRequest(Box::new(job(attempt))))
        .await;
    assert!(matches!(
        executor.receive().await,
        MinerToExecutor::V0JobRequest(_)
    ));
    repeat_reports(&mut executor, false).await;
    assert_eq!(validator.receive_kind().await, "V0VolumesReadyRequest");
    (validator, executor, ticket)
}

/// The reports of a job that runs, or that has finished.
async fn repeat_reports(executor: &mut Executor, finished: bool) {
    let notice = AttemptNotice {
        job_uuid: executor.attempt,
    };
    executor
        .send_message(&ExecutorToMiner::V0VolumesReadyRequest(notice))
        .await;
    if finished {
        executor
            .send_message(&ExecutorToMiner::V0ExecutionDoneRequest(notice))
            .await;
        let result = JobFinished {
            job_uuid: executor.attempt,
            docker_process_stdout: "42\n".to_owned(),
            docker_process_stderr: String::new(),
            artifacts: None,
            upload_results: None,
            image: None,
            trace: None,
            completion: None,
        };
        executor
            .send_message(&ExecutorToMiner::V0JobFinishedRequest(result))
            .await;
    }
}

/// Every report from the first on, to the end of the job.
async fn repeat_to_the_end(executor: &mut Executor) {
    let ready = ExecutorReady {
        job_uuid: executor.attempt,
        executor_token: None,
    };
    executor
        .send_message(&ExecutorToMiner::V0ExecutorReadyRequest(ready))
        .await;
    repeat_reports(executor, true).await;
}

async fn receives_the_end(validator: &mut Validator) {
    assert_eq!(validator.receive_kind().await, "V0ExecutionDoneRequest");
    let MinerToValidator::V0JobFinishedRequest(finished) = validator.receive().await else {
        panic!("the result comes next")
    };
    assert_eq!(finished.docker_process_stdout, "42\n");
}

/// The end is sent to the executor once it is durable.
async fn hears_that_the_end_is_stored(executor: &mut Executor) {
    let MinerToExecutor::MusterEndStored(stored) = executor.receive().await else {
        panic!("the end is stored next")
    };
    assert_eq!(stored.job_uuid, executor.attempt);
}

#[tokio::test]
async fn an_executor_whose_connection_was_cut_comes_back_and_nothing_is_told_twice() {
    let mut miner = Miner::start_with(keeps_leases).await;
    let (mut validator, executor, ticket) = running_job(&mut miner).await;
    drop(executor);
    let mut executor = come_back(&miner, &ticket).await;
    let next = held(&mut executor).await;
    assert_eq!((ticket.epoch, next.epoch), (1, 2));
    repeat_to_the_end(&mut executor).await;
    receives_the_end(&mut validator).await;
    hears_that_the_end_is_stored(&mut executor).await;
    assert!(miner.wants_nothing_more());
}

#[tokio::test]
async fn a_miner_that_was_killed_takes_its_executor_back() {
    let mut miner = Miner::start_with(keeps_leases).await;
    let (_, executor, ticket) = running_job(&mut miner).await;
    let mut miner = miner.killed_and_restarted_with(keeps_leases).await;
    drop(executor);
    let mut validator = Validator::connect(&miner).await;
    assert_eq!(validator.receive_kind().await, "V0AcceptJobRequest");
    let mut executor = come_back(&miner, &ticket).await;
    held(&mut executor).await;
    repeat_to_the_end(&mut executor).await;
    assert_eq!(validator.receive_kind().await, "V0ExecutorReadyRequest");
    assert_eq!(validator.receive_kind().await, "V0VolumesReadyRequest");
    receives_the_end(&mut validator).await;
    hears_that_the_end_is_stored(&mut executor).await;
    assert!(miner.wants_nothing_more());
}

#[tokio::test]
async fn the_newest_connection_serves_the_lease_and_the_older_one_is_fenced_off() {
    let mut miner = Miner::start_with(keeps_leases).await;
    let (mut validator, mut older, ticket) = running_job(&mut miner).await;
    // The miner has not noticed that the first connection is lost.
    let mut newer = come_back(&miner, &ticket).await;
    let next = held(&mut newer).await;
    assert_eq!(older.party.closed().await.code, 1000);
    // The answer that carried the newest secret may be lost, so the secret before it still works, once.
    let mut again = come_back(&miner, &ticket).await;
    let newest = held(&mut again).await;
    assert_eq!((next.epoch, newest.epoch), (2, 3));
    sent_away(come_back(&miner, &next).await).await;
    repeat_to_the_end(&mut again).await;
    receives_the_end(&mut validator).await;
}

#[tokio::test]
async fn an_executor_with_a_wrong_secret_or_without_a_lease_is_sent_away() {
    let mut miner = Miner::start_with(keeps_leases).await;
    let (mut validator, mut executor, ticket) = running_job(&mut miner).await;
    let foreign = LeaseHeld {
        secret: OneTimeSecret::from_bytes([7; 32]),
        ..ticket.clone()
    };
    let unknown = LeaseHeld {
        job_uuid: new_attempt(),
        ..ticket.clone()
    };
    for ticket in [foreign, unknown] {
        sent_away(come_back(&miner, &ticket).await).await;
    }
    // Neither of them cost the executor its lease.
    repeat_reports(&mut executor, true).await;
    receives_the_end(&mut validator).await;
    hears_that_the_end_is_stored(&mut executor).await;
    let reason = sent_away(come_back(&miner, &ticket).await).await;
    assert!(!reason.is_empty());
}

#[tokio::test]
async fn frames_that_are_no_way_back_are_refused_by_name() {
    let mut miner = Miner::start_with(keeps_leases).await;
    let (_validator, _executor, ticket) = running_job(&mut miner).await;
    let notice = AttemptNotice {
        job_uuid: ticket.job_uuid,
    };
    let other = muster_protocol::wire::encode(&ExecutorToMiner::V0VolumesReadyRequest(notice));
    for (frame, word) in [
        ("", "EOF"),
        ("{\"message_type\":\"MusterReattach\"}", "job_uuid"),
        (other.as_str(), "begins with MusterReattach"),
    ] {
        let mut executor = Executor {
            party: Party::dial(&format!("ws://{}/v0/reattach", miner.address)).await,
            attempt: ticket.job_uuid,
        };
        executor.party.send(frame.to_owned()).await;
        let details = executor.receive_error().await;
        assert!(details.contains(word), "{details}");
        assert_eq!(executor.party.closed().await.code, 1008);
    }
}

#[tokio::test]
async fn an_executor_that_stays_away_loses_its_lease_when_the_miners_time_is_over() {
    let mut miner = Miner::start_with(keeps_leases).await;
    let (mut validator, executor, ticket) = running_job(&mut miner).await;
    drop(executor);
    let deadline = miner.clock.now().plus(KEPT);
    soon(miner.clock.wait_for_sleepers_until(deadline, 1)).await;
    miner.clock.advance_to(deadline);
    let MinerToValidator::V0HordeFailedRequest(failure) = validator.receive().await else {
        panic!("the loss is told")
    };
    assert_eq!(failure.reason, HordeFailureReason::ExecutorDisconnected);
    sent_away(come_back(&miner, &ticket).await).await;
}

#[tokio::test]
async fn an_executor_that_missed_the_job_gets_it_again() {
    let mut miner = Miner::start_with(keeps_leases).await;
    let mut validator = Validator::connect(&miner).await;
    let attempt: AttemptId = new_attempt();
    validator.offer(attempt).await;
    let mut executor = Executor::dial(&miner.wanted().await).await;
    let ticket = held(&mut executor).await;
    executor.ready().await;
    assert_eq!(validator.receive_kind().await, "V0ExecutorReadyRequest");
    drop(executor);
    validator
        .send_message(&ValidatorToMiner::V0JobRequest(Box::new(job(attempt))))
        .await;
    let mut executor = come_back_with(&miner, &ticket, None).await;
    held(&mut executor).await;
    executor.run().await;
    assert_eq!(validator.receive_kind().await, "V0VolumesReadyRequest");
    assert_eq!(validator.receive_kind().await, "V0ExecutionDoneRequest");
}

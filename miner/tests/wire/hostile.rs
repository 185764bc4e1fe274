//! Peers that mean harm, or are broken: what they do costs nobody else anything.

use std::time::Duration;

use muster_protocol::wire::encode;
use muster_protocol::wire::executor_socket::ExecutorToMiner;
use muster_protocol::wire::miner::{AttemptNotice, InitialJobRequest, JobFinished};
use muster_protocol::wire::muster::CancelJob;
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::{AttemptId, JobRejectionReason};
use muster_websocket::{Limits, connect};

use crate::harness::*;

/// As many as a bad day brings. The socket of each has two ends in this process.
const SESSIONS: usize = 1000;

#[tokio::test]
async fn a_validator_that_opens_a_thousand_sessions_disturbs_nobody() {
    let mut miner = Miner::start().await;
    let mut working = Validator::connect(&miner).await;
    let attempt = new_attempt();
    working.offer(attempt).await;
    let started = miner.wanted().await;
    let mut executor = Executor::dial(&started).await;
    let mut sessions = Vec::with_capacity(SESSIONS);
    let opening = async {
        for _ in 0..SESSIONS {
            // Each receives the manifest, and the history of the job that is under way.
            let mut session = Validator::connect(&miner).await;
            assert_eq!(session.receive_kind().await, "V0AcceptJobRequest");
            sessions.push(session);
        }
    };
    // Both answer the miner's pings meanwhile, or the miner would take them for dead.
    tokio::select! {
        () = opening => {}
        frame = working.party.socket.recv() => panic!("{frame:?} before the executor was ready"),
        frame = executor.party.socket.recv() => panic!("{frame:?} before the job"),
    }
    executor.ready().await;
    assert_eq!(working.receive_kind().await, "V0ExecutorReadyRequest");
    working
        .send_message(&ValidatorToMiner::V0JobRequest(Box::new(job(attempt))))
        .await;
    executor.run().await;
    loop {
        if working.receive_kind().await == "V0JobFinishedRequest" {
            break;
        }
    }
    drop(sessions);
    // The result is acknowledged, the lease is free, and whoever comes next is served.
    working.finished(attempt).await;
    assert_eq!(working.receive_kind().await, "MusterReceiptCountersigned");
    let mut next = Validator::connect(&miner).await;
    next.offer(new_attempt()).await;
    miner.wanted().await;
}

#[tokio::test]
async fn a_frame_beyond_every_limit_is_refused_and_disturbs_nobody() {
    let mut miner = Miner::start().await;
    let mut good = Validator::connect(&miner).await;
    // Our own sockets do not send so much.
    let limits = Limits {
        max_frame: 64 << 20,
        ..Limits::miner()
    };
    let path = format!("v0.1/validator_interface/{}", validator_key().hotkey());
    let socket = connect(&miner.url(&path), &limits).await.unwrap();
    let mut bad = Validator {
        party: Party { socket },
        now: good.now,
    };
    bad.greet().await;
    assert_eq!(bad.receive_kind().await, "V0ExecutorManifestRequest");
    let mut huge = initial(new_attempt(), bad.now);
    huge.docker_image = Some("x".repeat(51 << 20));
    // The miner may close before it has read all of it.
    let _ = bad
        .party
        .socket
        .send(encode(&ValidatorToMiner::V0InitialJobRequest(Box::new(huge))))
        .await;
    // It is named to its sender, or ends its session; it is never half understood.
    if let Ok(Some(frame)) = soon(bad.party.socket.recv()).await {
        assert!(frame.contains("GenericError"), "{frame}");
    }
    assert!(miner.wants_nothing_more());
    good.offer(new_attempt()).await;
    miner.wanted().await;
}

fn result(attempt: AttemptId) -> ExecutorToMiner {
    ExecutorToMiner::V0JobFinishedRequest(JobFinished {
        job_uuid: attempt,
        docker_process_stdout: "late\n".to_owned(),
        docker_process_stderr: String::new(),
        artifacts: None,
        upload_results: None,
        image: None,
        trace: None,
        completion: None,
    })
}

#[tokio::test]
async fn a_result_that_comes_after_its_lease_is_nobodys() {
    let mut miner = Miner::start().await;
    let mut validator = Validator::connect(&miner).await;
    let attempt = new_attempt();
    validator.offer(attempt).await;
    let started = miner.wanted().await;
    let mut executor = Executor::dial(&started).await;
    executor.ready().await;
    assert_eq!(validator.receive_kind().await, "V0ExecutorReadyRequest");
    let cancel = CancelJob {
        job_uuid: attempt,
        reason: "nobody waits for it".to_owned(),
    };
    validator
        .send_message(&ValidatorToMiner::MusterCancelJob(cancel))
        .await;
    soon(started.stop.cancelled()).await;
    let notice = AttemptNotice { job_uuid: attempt };
    // It speaks on, as one does whose container nobody could stop.
    for message in [ExecutorToMiner::V0ExecutionDoneRequest(notice), result(attempt)] {
        let _ = executor.party.socket.send(encode(&message)).await;
    }
    // The next thing that its validator receives is the answer to the next offer.
    validator.offer(new_attempt()).await;
    miner.wanted().await;
    // And who connects anew is notified of the new lease alone.
    let mut again = Validator::connect(&miner).await;
    let MinerToValidator::V0AcceptJobRequest(accepted) = again.receive().await else {
        panic!("the story of the new lease comes first")
    };
    assert_ne!(accepted.job_uuid, attempt);
}

#[tokio::test]
async fn an_executor_that_answers_twice_is_heard_once() {
    let mut miner = Miner::start().await;
    let mut validator = Validator::connect(&miner).await;
    let attempt = new_attempt();
    validator.offer(attempt).await;
    let started = miner.wanted().await;
    let mut executor = Executor::dial(&started).await;
    executor.ready().await;
    // A repetition, as of an executor that came back.
    executor.ready().await;
    assert_eq!(validator.receive_kind().await, "V0ExecutorReadyRequest");
    validator
        .send_message(&ValidatorToMiner::V0JobRequest(Box::new(job(attempt))))
        .await;
    executor.run().await;
    let _ = executor.party.socket.send(encode(&result(attempt))).await;
    let mut finals = 0;
    while finals == 0 {
        if let MinerToValidator::V0JobFinishedRequest(heard) = validator.receive().await {
            assert_ne!(heard.docker_process_stdout, "late\n");
            finals += 1;
        }
    }
    validator.finished(attempt).await;
    assert_eq!(validator.receive_kind().await, "MusterReceiptCountersigned");
}

/// A receipt that lies in the future when it is offered, or so far back that the attempt may have been forgotten.
#[tokio::test]
async fn offers_from_another_time_are_declined() {
    let mut miner = Miner::start().await;
    let mut validator = Validator::connect(&miner).await;
    let hours = |count: u64| Duration::from_secs(count * 3600);
    let ahead = initial(new_attempt(), validator.now.plus(hours(2)));
    let micros = i64::try_from(hours(24).as_micros()).unwrap();
    let past = muster_protocol::Timestamp::from_micros(validator.now.micros() - micros);
    let behind = initial(new_attempt(), past);
    for offer in [ahead, behind] {
        let offer: Box<InitialJobRequest> = Box::new(offer);
        validator
            .send_message(&ValidatorToMiner::V0InitialJobRequest(offer))
            .await;
        let MinerToValidator::V0DeclineJobRequest(decline) = validator.receive().await else {
            panic!("it is declined")
        };
        assert_eq!(decline.reason, JobRejectionReason::InvalidReceipt);
    }
    assert!(miner.wants_nothing_more());
}

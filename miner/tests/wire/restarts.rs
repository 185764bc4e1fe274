//! Nothing is lost: not with a connection, not with the process.

use std::sync::Arc;

use muster_protocol::wire::executor_socket::MinerToExecutor;
use muster_protocol::wire::muster::{ListedImage, WhitelistNotice};
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::{AttemptId, Digest, HordeFailureReason, ImageId};

use crate::harness::*;
use crate::persistent::session_of;

async fn receive_all(validator: &mut Validator, kinds: &[&str]) {
    for kind in kinds {
        assert_eq!(validator.receive_kind().await, *kind);
    }
}

/// The whole history of a finished job, as a further connection receives it.
const STORY: [&str; 6] = [
    "V0AcceptJobRequest",
    "V0ExecutorReadyRequest",
    "V0VolumesReadyRequest",
    "V0ExecutionDoneRequest",
    "V0MachineSpecsRequest",
    "V0JobFinishedRequest",
];

/// A job whose executor is ready.
async fn ready_job(miner: &mut Miner) -> (Validator, Executor, AttemptId) {
    let mut validator = Validator::connect(miner).await;
    let attempt = new_attempt();
    validator.offer(attempt).await;
    let mut executor = Executor::dial(&miner.wanted().await).await;
    executor.ready().await;
    receive_all(&mut validator, &["V0ExecutorReadyRequest"]).await;
    (validator, executor, attempt)
}

#[tokio::test]
async fn a_validator_that_comes_back_goes_on_where_it_was() {
    let mut miner = Miner::start().await;
    let (validator, mut executor, attempt) = ready_job(&mut miner).await;
    drop(validator);
    let mut validator = Validator::connect(&miner).await;
    receive_all(&mut validator, &STORY[..2]).await;
    validator
        .send_message(&ValidatorToMiner::V0JobRequest(Box::new(job(attempt))))
        .await;
    executor.run().await;
    receive_all(&mut validator, &STORY[2..]).await;
}

#[tokio::test]
async fn a_result_is_told_on_every_connection_until_it_is_acknowledged() {
    let mut miner = Miner::start().await;
    let (mut validator, mut executor, attempt) = ready_job(&mut miner).await;
    validator
        .send_message(&ValidatorToMiner::V0JobRequest(Box::new(job(attempt))))
        .await;
    executor.run().await;
    receive_all(&mut validator, &STORY[2..]).await;
    drop(validator);
    for _ in 0..2 {
        receive_all(&mut Validator::connect(&miner).await, &STORY).await;
    }
    // Not even a kill loses it.
    let miner = miner.killed_and_restarted().await;
    let mut validator = Validator::connect(&miner).await;
    receive_all(&mut validator, &STORY).await;
    validator.finished(attempt).await;
    receive_all(&mut validator, &["MusterReceiptCountersigned"]).await;
    let miner = miner.killed_and_restarted().await;
    let mut validator = Validator::connect(&miner).await;
    validator.offer(new_attempt()).await;
}

#[tokio::test]
async fn a_kill_in_the_middle_of_a_job_is_told_as_a_lost_executor() {
    let mut miner = Miner::start().await;
    let (_validator, _executor, attempt) = ready_job(&mut miner).await;
    let mut miner = miner.killed_and_restarted().await;
    let mut validator = Validator::connect(&miner).await;
    receive_all(&mut validator, &["V0AcceptJobRequest"]).await;
    let MinerToValidator::V0HordeFailedRequest(failure) = validator.receive().await else {
        panic!()
    };
    assert_eq!(
        (failure.job_uuid, failure.reason),
        (attempt, HordeFailureReason::ExecutorDisconnected)
    );
    // Offered again, the attempt is reported again and not run again.
    validator
        .send_message(&ValidatorToMiner::V0InitialJobRequest(Box::new(initial(
            attempt,
            validator.now,
        ))))
        .await;
    receive_all(&mut validator, &["V0AcceptJobRequest", "V0HordeFailedRequest"]).await;
    assert!(miner.wants_nothing_more());
    validator.offer(new_attempt()).await;
}

#[tokio::test]
async fn a_miner_that_is_stopped_says_so_before_it_goes() {
    let mut miner = Miner::start().await;
    let folder = Arc::clone(&miner.folder);
    let (mut validator, mut executor, _) = ready_job(&mut miner).await;
    let farewell = async {
        let MinerToValidator::V0HordeFailedRequest(failure) = validator.receive().await else {
            panic!()
        };
        assert_eq!(failure.reason, HordeFailureReason::ExecutorDisconnected);
        assert_eq!(validator.party.closed().await.code, 1000);
        assert!(matches!(
            executor.receive().await,
            MinerToExecutor::MusterCancelJob(_)
        ));
        executor.party.closed().await;
    };
    tokio::join!(miner.stop(), farewell);
    // The store is one file again: its journal is folded in.
    assert!(folder.path().join("store.db").exists());
    assert!(!folder.path().join("store.db-wal").exists());
}

#[tokio::test]
async fn a_validators_whitelist_ends_with_the_process_and_returns_with_its_next_greeting() {
    let (listed, other) = (ImageId(Digest::of(b"listed")), ImageId(Digest::of(b"other")));
    let notice = ValidatorToMiner::MusterWhitelist(WhitelistNotice {
        images: vec![ListedImage {
            image: listed,
            reference: None,
            class: CLASS,
            model: "tiny".to_owned(),
            share: None,
        }],
    });
    let mut miner = Miner::start().await;
    // Before and after a kill: what comes first on a connection decides about what comes next.
    for _ in 0..2 {
        let mut validator = Validator::connect(&miner).await;
        validator.send_message(&notice).await;
        validator.send_message(&session_of(other, &validator)).await;
        receive_all(&mut validator, &["V0DeclineJobRequest"]).await;
        drop(validator);
        miner = miner.killed_and_restarted().await;
    }
    // An older validator lists nothing; and nothing that was listed is declined for not having been reported again.
    let mut validator = Validator::connect(&miner).await;
    validator.send_message(&session_of(listed, &validator)).await;
    receive_all(&mut validator, &["V0AcceptJobRequest"]).await;
}

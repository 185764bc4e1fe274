//! Jobs from offer to end, the good and the bad.

use std::time::Duration;

use muster_identity::{Keypair, sign_frame, sign_receipt, verify_streaming_ready};
use muster_protocol::wire::encode;
use muster_protocol::wire::executor_socket::{ExecutorToMiner, MinerToExecutor};
use muster_protocol::wire::miner::{
    AttemptNotice, GenericError, HordeFailed, StreamingDetails, StreamingJobReady,
};
use muster_protocol::wire::muster::CancelJob;
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::{ExecutorClass, HordeFailureReason, JobRejectionReason, MinerKey, ParticipantType};

use crate::harness::*;

async fn declined(validator: &mut Validator) -> (JobRejectionReason, usize) {
    let heard = validator.receive().await;
    let MinerToValidator::V0DeclineJobRequest(decline) = heard else {
        panic!("not declined: {heard:?}")
    };
    (decline.reason, decline.receipts.len())
}

async fn horde_failed(validator: &mut Validator) -> HordeFailed {
    let heard = validator.receive().await;
    let MinerToValidator::V0HordeFailedRequest(failure) = heard else {
        panic!("not failed: {heard:?}")
    };
    failure
}

#[tokio::test]
async fn a_job_in_its_whole_order() {
    let mut miner = Miner::start().await;
    let mut validator = Validator::connect(&miner).await;
    let attempt = new_attempt();
    validator.offer(attempt).await;
    validator.accepted(attempt).await;
    assert_eq!(validator.receive_kind().await, "MusterReceiptCountersigned");
    let started = miner.wanted().await;
    assert_eq!(started.order.class, CLASS);
    let mut executor = Executor::dial(&started).await;
    executor.ready().await;
    assert_eq!(validator.receive_kind().await, "V0ExecutorReadyRequest");
    validator
        .send_message(&ValidatorToMiner::V0JobRequest(Box::new(job(attempt))))
        .await;
    executor.run().await;
    for kind in [
        "V0VolumesReadyRequest",
        "V0ExecutionDoneRequest",
        "V0MachineSpecsRequest",
    ] {
        assert_eq!(validator.receive_kind().await, kind);
    }
    let MinerToValidator::V0JobFinishedRequest(result) = validator.receive().await else {
        panic!()
    };
    assert_eq!(result.docker_process_stdout, "42\n");
    soon(started.stop.cancelled()).await;
    validator.finished(attempt).await;
    assert_eq!(validator.receive_kind().await, "MusterReceiptCountersigned");
    // Nothing is owed any more.
    let mut next = Validator::connect(&miner).await;
    next.offer(new_attempt()).await;
    miner.stop().await;
}

#[tokio::test]
async fn a_busy_miner_and_a_class_it_has_not_are_declined() {
    let mut miner = Miner::start().await;
    let mut validator = Validator::connect(&miner).await;
    let first = new_attempt();
    validator.offer(first).await;
    miner.wanted().await;
    let second = initial(new_attempt(), validator.now);
    validator
        .send_message(&ValidatorToMiner::V0InitialJobRequest(Box::new(second)))
        .await;
    assert_eq!(declined(&mut validator).await, (JobRejectionReason::Busy, 1));

    let mut other = initial(new_attempt(), validator.now);
    other.executor_class = ExecutorClass::AlwaysOnLlmA6000;
    other.job_started_receipt_payload.executor_class = ExecutorClass::AlwaysOnLlmA6000;
    let payload = muster_protocol::ReceiptPayload::Started(other.job_started_receipt_payload.clone());
    other.job_started_receipt_signature = sign_receipt(&validator_key(), &payload);
    validator
        .send_message(&ValidatorToMiner::V0InitialJobRequest(Box::new(other)))
        .await;
    assert_eq!(
        declined(&mut validator).await,
        (JobRejectionReason::NoMinerForJob, 0)
    );

    // The same attempt again is reported again and starts nothing.
    validator
        .send_message(&ValidatorToMiner::V0InitialJobRequest(Box::new(initial(
            first,
            validator.now,
        ))))
        .await;
    assert_eq!(validator.receive_kind().await, "V0AcceptJobRequest");
    assert!(miner.wants_nothing_more());
}

#[tokio::test]
async fn forged_offers_are_declined() {
    let mut miner = Miner::start().await;
    let mut validator = Validator::connect(&miner).await;
    let stranger = Keypair::from_uri("//Stranger").unwrap();

    let mut forged = initial(new_attempt(), validator.now);
    let payload = muster_protocol::ReceiptPayload::Started(forged.job_started_receipt_payload.clone());
    forged.job_started_receipt_signature = sign_receipt(&stranger, &payload);
    validator
        .send_message(&ValidatorToMiner::V0InitialJobRequest(Box::new(forged)))
        .await;
    assert_eq!(
        declined(&mut validator).await.0,
        JobRejectionReason::InvalidReceipt
    );

    let future = initial(new_attempt(), validator.now.plus(Duration::from_secs(3700)));
    validator
        .send_message(&ValidatorToMiner::V0InitialJobRequest(Box::new(future)))
        .await;
    assert_eq!(
        declined(&mut validator).await.0,
        JobRejectionReason::InvalidReceipt
    );

    let offer = ValidatorToMiner::V0InitialJobRequest(Box::new(initial(new_attempt(), validator.now)));
    let frame = sign_frame(&stranger, &offer);
    validator.party.send(frame).await;
    assert_eq!(
        declined(&mut validator).await.0,
        JobRejectionReason::InvalidSignature
    );

    let frame = sign_frame(&validator_key(), &offer);
    validator.party.send(frame).await;
    assert_eq!(validator.receive_kind().await, "V0AcceptJobRequest");
    miner.wanted().await;
}

#[tokio::test]
async fn signatures_on_job_requests_can_be_required() {
    let miner = Miner::start_with(|config| config.require_validator_signature = true).await;
    let mut validator = Validator::connect(&miner).await;
    let offer = initial(new_attempt(), validator.now);
    validator
        .send_message(&ValidatorToMiner::V0InitialJobRequest(Box::new(offer)))
        .await;
    assert_eq!(
        declined(&mut validator).await.0,
        JobRejectionReason::InvalidSignature
    );
}

#[tokio::test]
async fn an_executor_that_vanishes_fails_the_job_and_frees_the_lease() {
    let mut miner = Miner::start().await;
    let mut validator = Validator::connect(&miner).await;
    validator.offer(new_attempt()).await;
    let started = miner.wanted().await;
    let executor = Executor::dial(&started).await;
    drop(executor);
    let failure = horde_failed(&mut validator).await;
    assert_eq!(failure.reason, HordeFailureReason::ExecutorDisconnected);
    assert_eq!(failure.reported_by, ParticipantType::Miner);
    soon(started.stop.cancelled()).await;
    validator.offer(new_attempt()).await;
}

#[tokio::test]
async fn an_executor_that_reports_an_error_fails_the_job() {
    let mut miner = Miner::start().await;
    let mut validator = Validator::connect(&miner).await;
    validator.offer(new_attempt()).await;
    let mut executor = Executor::dial(&miner.wanted().await).await;
    let error = GenericError {
        details: Some("no engine".to_owned()),
        job_uuid: None,
    };
    executor
        .party
        .send(encode(&ExecutorToMiner::GenericError(error)))
        .await;
    let failure = horde_failed(&mut validator).await;
    assert_eq!(
        (failure.reason, failure.reported_by),
        (HordeFailureReason::GenericError, ParticipantType::Executor)
    );
    assert_eq!(failure.message, "no engine");
}

#[tokio::test]
async fn an_executor_that_does_not_come_is_given_up() {
    let mut miner = Miner::start().await;
    let mut validator = Validator::connect(&miner).await;
    validator.offer(new_attempt()).await;
    let silent = miner.wanted().await;
    miner
        .clock
        .advance(CLASS.spin_up_time() + Duration::from_secs(30));
    let failure = horde_failed(&mut validator).await;
    assert_eq!(failure.reason, HordeFailureReason::ExecutorSpinupFailed);
    soon(silent.stop.cancelled()).await;

    validator.offer(new_attempt()).await;
    miner.wanted().await.exit("its process ended with exit status: 3");
    let failure = horde_failed(&mut validator).await;
    assert_eq!(failure.reason, HordeFailureReason::ExecutorSpinupFailed);
    assert!(failure.message.contains("exit status: 3"), "{}", failure.message);
}

#[tokio::test]
async fn a_cancelled_job_stops_its_executor_and_frees_the_lease() {
    let mut miner = Miner::start().await;
    let mut validator = Validator::connect(&miner).await;
    let attempt = new_attempt();
    validator.offer(attempt).await;
    let started = miner.wanted().await;
    let mut executor = Executor::dial(&started).await;
    let cancel = CancelJob {
        job_uuid: attempt,
        reason: "the user gave up".to_owned(),
    };
    validator
        .send_message(&ValidatorToMiner::MusterCancelJob(cancel.clone()))
        .await;
    assert_eq!(executor.receive().await, MinerToExecutor::MusterCancelJob(cancel));
    executor.party.closed().await;
    soon(started.stop.cancelled()).await;
    // The attempt is not run again, another is.
    validator
        .send_message(&ValidatorToMiner::V0InitialJobRequest(Box::new(initial(
            attempt,
            validator.now,
        ))))
        .await;
    assert_eq!(declined(&mut validator).await.0, JobRejectionReason::Unknown);
    validator.offer(new_attempt()).await;
}

#[tokio::test]
async fn a_streaming_address_is_filled_in_and_signed_by_the_miner() {
    let mut miner = Miner::start().await;
    let mut validator = Validator::connect(&miner).await;
    let attempt = new_attempt();
    let mut offer = initial(attempt, validator.now);
    let certificate = "-----BEGIN CERTIFICATE-----".to_owned();
    offer.streaming_details = Some(StreamingDetails {
        public_key: certificate.clone(),
        executor_ip: None,
        muster: None,
    });
    validator
        .send_message(&ValidatorToMiner::V0InitialJobRequest(Box::new(offer)))
        .await;
    assert_eq!(validator.receive_kind().await, "V0AcceptJobRequest");
    assert_eq!(validator.receive_kind().await, "MusterReceiptCountersigned");
    let mut executor = Executor::dial(&miner.wanted().await).await;
    executor.ready().await;
    assert_eq!(validator.receive_kind().await, "V0ExecutorReadyRequest");
    validator
        .send_message(&ValidatorToMiner::V0JobRequest(Box::new(job(attempt))))
        .await;
    assert!(matches!(
        executor.receive().await,
        MinerToExecutor::V0JobRequest(_)
    ));
    let notice = AttemptNotice { job_uuid: attempt };
    executor
        .send_message(&ExecutorToMiner::V0VolumesReadyRequest(notice))
        .await;
    let address = StreamingJobReady {
        job_uuid: attempt,
        executor_token: None,
        public_key: certificate,
        ip: None,
        port: 6006,
        miner_signature: None,
    };
    executor
        .send_message(&ExecutorToMiner::V0StreamingJobReadyRequest(address))
        .await;
    assert_eq!(validator.receive_kind().await, "V0VolumesReadyRequest");
    let MinerToValidator::V0StreamingJobReadyRequest(ready) = validator.receive().await else {
        panic!("the address comes next")
    };
    assert_eq!(ready.ip.as_deref(), Some("127.0.0.1"));
    verify_streaming_ready(ready, MinerKey(miner_key().hotkey())).unwrap();
}

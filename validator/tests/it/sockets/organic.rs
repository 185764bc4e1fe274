//! Jobs from their user's signature to their end, over real sockets.

use muster_identity::verify_receipt;
use muster_protocol::job::Fault;
use muster_protocol::status::{
    HordeFailureReason, JobFailureReason, JobRejectionReason, JobStatus, ParticipantType,
};
use muster_protocol::wire::encode;
use muster_protocol::wire::facilitator::CheatReport;
use muster_protocol::wire::miner::OptionsPreset;
use muster_protocol::wire::validator_socket::ValidatorToMiner;
use muster_protocol::{AttemptId, Receipt, Timestamp};
use serde_json::json;

use crate::sockets::support::World;
use crate::sockets::support::facilitator::{job, signed};
use crate::sockets::support::miner::Miner;

pub(crate) const ALL: [JobStatus; 6] = [
    JobStatus::Received,
    JobStatus::Accepted,
    JobStatus::ExecutorReady,
    JobStatus::VolumesReady,
    JobStatus::ExecutionDone,
    JobStatus::Completed,
];

fn receipts(update: &muster_protocol::wire::facilitator::JobStatusUpdate) -> Vec<Receipt> {
    update.metadata.clone().unwrap().muster.unwrap().receipts
}

#[tokio::test]
async fn a_job_goes_all_the_way_and_its_receipts_bear_both_signatures() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
    world.start();
    world.facilitator.accept().await;
    let job = job("//User", 1);
    world.facilitator.submit(&job).await;

    let mut session = miner.accept().await;
    let offer = session.offer().await;
    let id = offer.job_uuid;
    assert_eq!(
        id,
        AttemptId::first_of(job.uuid),
        "the first attempt carries the job's own id"
    );
    assert_eq!(offer.volume, job.volume, "the inputs travel with the offer");
    assert_eq!(offer.job_started_receipt_payload.ttl, 7);
    assert_eq!(offer.executor_timing.unwrap().execution_time_limit, 3);
    session.accept_job(id).await;
    session.accepted_receipt().await;
    session.executor_ready(id).await;
    let request = session.job().await;
    assert_eq!(
        request.docker_run_options_preset,
        OptionsPreset::None,
        "the class has no GPU"
    );
    assert_eq!(
        (request.docker_run_cmd, request.env, request.volume),
        (job.args.clone(), job.env.clone(), None)
    );
    session.complete(id).await;
    assert_eq!(
        session.paid().await,
        "9.000000",
        "download, execution and upload, in seconds"
    );

    let (statuses, end) = world.facilitator.updates_to_the_end().await;
    assert_eq!(statuses, ALL);
    let response = end.metadata.clone().unwrap().miner_response.unwrap();
    assert_eq!(response.docker_process_stdout, "hello\n");
    assert_eq!(
        response
            .artifacts
            .unwrap()
            .get("/artifacts/a")
            .map(String::as_str),
        Some("aGk=")
    );
    let kinds: Vec<_> = receipts(&end)
        .iter()
        .map(|receipt| receipt.payload.kind().as_str())
        .collect();
    assert_eq!(
        kinds,
        ["JobStartedReceipt", "JobAcceptedReceipt", "JobFinishedReceipt"]
    );
    for receipt in receipts(&end) {
        verify_receipt(receipt, Timestamp::from_secs(4_000_000_000)).unwrap();
    }
    session.closed().await;
    let state = world.state().await;
    assert_eq!(state["facilitator"]["state"], "connected");
    assert_eq!(state["jobs"][0]["status"], "completed");
    assert_eq!(state["jobs"][0]["fault"], json!(Fault::Nobody));
    assert_eq!(state["jobs"][0]["attempts"][0]["state"], "ended");
    let outcome = &state["jobs"][0]["outcome"];
    assert_eq!(outcome["summary"], "completed");
    assert_eq!(
        (&outcome["stdout_bytes"], &outcome["artifacts_bytes"]),
        (&json!(6), &json!(4))
    );
    assert!(
        !state.to_string().contains("aGk="),
        "the program's output is private to its user"
    );
    let receipts = state["receipts"].as_array().unwrap();
    assert_eq!(receipts.len(), 3);
    assert!(
        receipts
            .iter()
            .all(|receipt| receipt["miner_signature"].is_string()),
        "{receipts:?}"
    );
    world.stop().await;
}

#[tokio::test]
async fn an_end_that_was_acknowledged_is_told_again_with_the_result() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::in_real_time(&[&miner]).await;
    // The metagraph is at hand when a job comes, so its miner is chosen before the store reports whether the job is
    // new.
    world.config.chain.refresh_s = 3_600;
    world.start();
    world.facilitator.accept().await;
    let job = job("//User", 1);
    world.facilitator.submit(&job).await;
    let mut session = miner.accept().await;
    let id = session.begin().await;
    session.complete(id).await;
    session.paid().await;
    let (_, end) = world.facilitator.updates_to_the_end().await;
    world.facilitator.submit(&job).await;
    assert_eq!(world.facilitator.take().await, end);
    // The miner has one executor, and the repeated job has not taken it.
    let another = self::job("//User", 2);
    world.facilitator.submit(&another).await;
    let offer = loop {
        // A connection that was dialled before the job turned out to be repeated is closed unused.
        if let Some(ValidatorToMiner::V0InitialJobRequest(offer)) = miner.accept().await.next_message().await
        {
            break offer;
        }
    };
    assert_eq!(offer.job_uuid, AttemptId::first_of(another.uuid));
}

#[tokio::test]
async fn the_miner_of_computehorde_is_not_waited_for_longer_than_configured() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::in_real_time(&[&miner]).await;
    world.config.timing.receipt_wait_ms = 1;
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job("//User", 1)).await;
    let mut session = miner.accept().await;
    let id = session.begin().await;
    session.complete(id).await;
    session.finished_receipt().await;
    let (statuses, end) = world.facilitator.updates_to_the_end().await;
    assert_eq!(statuses, ALL);
    assert_eq!(
        receipts(&end).len(),
        2,
        "the finished receipt has one signature only and is kept in the store"
    );
}

#[tokio::test]
async fn a_user_who_may_not_submit_is_told_the_reason() {
    let mut world = World::new(&[]).await;
    world.config.users.allow_any = false;
    world.config.users.allow = [muster_protocol::UserKey(
        muster_identity::Keypair::from_uri("//Friend").unwrap().hotkey(),
    )]
    .into();
    world.start();
    world.facilitator.accept().await;
    let mut forged = job("//Friend", 1);
    forged.args.push("--more".to_owned());
    for (job, words) in [
        (job("//Stranger", 1), "does not take jobs"),
        (forged, "does not hold"),
    ] {
        world.facilitator.submit(&job).await;
        let end = world.facilitator.expect(JobStatus::Rejected).await;
        let details = end.metadata.unwrap().job_rejection_details.unwrap();
        assert_eq!(
            (end.uuid, details.reason),
            (job.uuid, JobRejectionReason::InvalidSignature)
        );
        assert_eq!(details.rejected_by, ParticipantType::Validator);
        assert!(details.message.contains(words), "{}", details.message);
    }
}

#[tokio::test]
async fn an_old_signature_is_refused_unless_its_job_is_known() {
    let mut world = World::in_real_time(&[]).await;
    world.config.users.signature_max_age_s = 3_600;
    world.start();
    world.facilitator.accept().await;
    let now_ns = world.now().micros() * 1_000;
    let hour_ns = 3_600_000_000_000;
    for (at, words) in [
        (
            now_ns - hour_ns - 1_000_000_000,
            "which is too long; sign it again",
        ),
        (now_ns + hour_ns, "ahead of the validator's clock"),
    ] {
        let old = job("//User", at);
        world.facilitator.submit(&old).await;
        let end = world.facilitator.expect(JobStatus::Rejected).await;
        let details = end.metadata.unwrap().job_rejection_details.unwrap();
        assert_eq!(
            (end.uuid, details.reason),
            (old.uuid, JobRejectionReason::InvalidSignature)
        );
        assert!(details.message.contains(words), "{}", details.message);
        // The facilitator repeats it: the job is known, and has ended.
        world.facilitator.submit(&old).await;
        let again = world.facilitator.expect(JobStatus::Rejected).await;
        assert_eq!(again.uuid, old.uuid);
    }
    world.facilitator.submit(&job("//User", now_ns)).await;
    world.facilitator.expect(JobStatus::Received).await;
}

#[tokio::test]
async fn a_signature_admits_one_job_and_a_repetition_is_answered_with_the_last_status() {
    let mut world = World::in_real_time(&[]).await;
    world.start();
    world.facilitator.accept().await;
    let job = job("//User", 7);
    world.facilitator.submit(&job).await;
    world.facilitator.expect(JobStatus::Received).await;
    let end = world.facilitator.expect(JobStatus::Rejected).await;
    assert_eq!(
        end.metadata.unwrap().job_rejection_details.unwrap().reason,
        JobRejectionReason::NoMinerForJob
    );

    world.facilitator.submit(&job).await;
    let again = world.facilitator.expect(JobStatus::Rejected).await;
    assert_eq!(again.uuid, job.uuid);

    let replay = signed("//User", 7, uuid::Uuid::new_v4());
    world.facilitator.submit(&replay).await;
    let end = world.facilitator.expect(JobStatus::Rejected).await;
    let details = end.metadata.unwrap().job_rejection_details.unwrap();
    assert_eq!(
        (end.uuid, details.reason),
        (replay.uuid, JobRejectionReason::InvalidSignature)
    );
    assert!(
        details.message.contains("used for another job"),
        "{}",
        details.message
    );
}

#[tokio::test]
async fn without_a_miner_the_user_sees_why_each_was_passed_over() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
    world.config.routing.max_attempts = 1;
    world.chain.without_axons();
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job("//User", 1)).await;
    world.facilitator.expect(JobStatus::Received).await;
    let details = world
        .facilitator
        .expect(JobStatus::Rejected)
        .await
        .metadata
        .unwrap()
        .job_rejection_details
        .unwrap();
    assert_eq!(details.reason, JobRejectionReason::NoMinerForJob);
    let excluded = details.context.unwrap()["excluded"].clone();
    assert_eq!(excluded[0]["reason"], "it is this validator's own hotkey");
    assert_eq!(excluded[1]["reason"], "no axon on the chain");
    assert_eq!(excluded[1]["miner"], json!(miner.key()));

    // One block later the miner has announced itself. The metagraph at hand is not old yet, but it is read again before
    // a job is rejected.
    world.chain.announce(&miner);
    world.chain.seal_to(2);
    world.seen(2).await;
    world.facilitator.submit(&job("//User", 2)).await;
    let mut session = miner.accept().await;
    let id = session.begin().await;
    session.complete(id).await;
    session.paid().await;
    assert_eq!(world.facilitator.updates_to_the_end().await.0, ALL);
}

#[tokio::test]
async fn a_job_that_is_declined_goes_to_the_next_miner_under_a_fresh_id() {
    let mut one = Miner::open("//One").await;
    let mut two = Miner::open("//Two").await;
    let mut world = World::new(&[&one, &two]).await;
    world.start();
    world.facilitator.accept().await;
    let job = job("//User", 1);
    world.facilitator.submit(&job).await;
    let (mut session, other) = tokio::select! {
        session = one.accept() => (session, &mut two),
        session = two.accept() => (session, &mut one),
    };
    let first = session.offer().await.job_uuid;
    session.decline(first).await;
    let mut session = other.accept().await;
    let second = session.offer().await.job_uuid;
    assert_eq!(first, AttemptId::first_of(job.uuid));
    assert_ne!(second, first, "receipts of two attempts never collide");
    session.accept_job(second).await;
    session.accepted_receipt().await;
    session.executor_ready(second).await;
    session.job().await;
    session.complete(second).await;
    session.paid().await;
    let (statuses, end) = world.facilitator.updates_to_the_end().await;
    assert_eq!(statuses, ALL, "the user sees one job and no refusal");
    assert_eq!(end.metadata.unwrap().muster.unwrap().attempt, Some(second));
}

#[tokio::test]
async fn when_every_miner_declines_the_user_sees_all_of_their_reasons() {
    let mut one = Miner::open("//One").await;
    let mut two = Miner::open("//Two").await;
    let mut world = World::in_real_time(&[&one, &two]).await;
    world.config.queue.default_s = 0;
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job("//User", 1)).await;
    for _ in 0..2 {
        let mut session = tokio::select! {
            session = one.accept() => session,
            session = two.accept() => session,
        };
        let id = session.offer().await.job_uuid;
        session.decline(id).await;
    }
    let (statuses, end) = world.facilitator.updates_to_the_end().await;
    assert_eq!(statuses, [JobStatus::Received, JobStatus::Rejected]);
    let details = end.metadata.unwrap().job_rejection_details.unwrap();
    assert_eq!(
        (details.rejected_by, details.reason),
        (ParticipantType::Miner, JobRejectionReason::Busy)
    );
    let attempts = details.context.unwrap()["attempts"].clone();
    assert_eq!(attempts.as_array().unwrap().len(), 2);
    assert_eq!(attempts[1]["ended"], "rejected: busy (all executors are at work)");
}

#[tokio::test]
async fn a_failed_job_is_its_users_failure_and_a_failed_subnet_is_not() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::new(&[&miner]).await;
    world.start();
    world.facilitator.accept().await;

    world.facilitator.submit(&job("//User", 1)).await;
    let mut session = miner.accept().await;
    let id = session.begin().await;
    session.job_failed(id).await;
    assert_eq!(session.paid().await, "9.000000");
    let (statuses, end) = world.facilitator.updates_to_the_end().await;
    assert_eq!(statuses.last(), Some(&JobStatus::Failed));
    let details = end.metadata.unwrap().job_failure_details.unwrap();
    assert_eq!(
        (details.reason, details.docker_process_exit_status),
        (JobFailureReason::NonzeroReturnCode, Some(3))
    );

    world.facilitator.submit(&job("//User", 2)).await;
    let mut session = miner.accept().await;
    let id = session.begin().await;
    session.horde_failed(id).await;
    assert_eq!(session.paid().await, "0.000000");
    let (statuses, end) = world.facilitator.updates_to_the_end().await;
    assert_eq!(statuses.last(), Some(&JobStatus::HordeFailed));
    let details = end.metadata.unwrap().horde_failure_details.unwrap();
    assert_eq!(details.reported_by, ParticipantType::Executor);
    assert_eq!(details.reason, HordeFailureReason::GenericError);
}

#[tokio::test]
async fn a_users_report_of_cheating_is_taken_and_changes_nothing_by_itself() {
    let mut world = World::new(&[]).await;
    world.start();
    world.facilitator.accept().await;
    let one = job("//User", 1);
    let report: CheatReport = serde_json::from_value(json!({
        "signature": one.signature, "job_uuid": one.uuid, "trusted_job_uuid": one.uuid, "details": null,
    }))
    .unwrap();
    world.facilitator.send(encode(&report)).await;
    world.facilitator.submit(&one).await;
    world.facilitator.expect(JobStatus::Received).await;
    world.facilitator.expect(JobStatus::Rejected).await;
}

//! Validators' sessions: authentication, delivery of jobs, and status updates.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use muster_identity::{sign_facilitator_auth, verify_job};
use muster_process::{Clock as _, TestClock};
use muster_protocol::JobStatus;
use muster_protocol::wire::decode;
use muster_protocol::wire::facilitator::{Heartbeat, MinerResponse, StatusMetadata, ToFacilitator};
use muster_testbed::within;
use muster_websocket::CloseCode;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::computehorde::ComputeHordeValidator;
use crate::facilitator::{Facilitator, key, until, validator_key};
use crate::user::{User, job_for};
use crate::validator::Validator;

#[tokio::test]
async fn strangers_and_forgers_are_told_why_and_closed() {
    let facilitator = Facilitator::start().await;
    let mut stranger = Validator::dial(&facilitator).await;
    let answer = stranger.authenticate("Stranger").await;
    assert_eq!(answer.errors[0].r#type, "auth.validator_not_found");
    assert_eq!(stranger.closed().await, 3001);

    let mut forger = Validator::dial(&facilitator).await;
    let mut auth = sign_facilitator_auth(&key("Stranger"));
    auth.public_key = sign_facilitator_auth(&key("Validator")).public_key;
    forger
        .send_message(&ToFacilitator::V0AuthenticationRequest(auth))
        .await;
    assert_eq!(forger.response().await.errors[0].r#type, "auth.signature_invalid");
    assert_eq!(forger.closed().await, 3000);

    let mut early = Validator::dial(&facilitator).await;
    let unknown = job_uuid();
    assert_eq!(
        early.report(unknown, JobStatus::Received).await,
        Err("auth.not_authenticated".to_owned())
    );
    assert!(early.authenticate("Validator").await.errors.is_empty());
    assert_eq!(
        early.report(unknown, JobStatus::Received).await,
        Err("job.not_found".to_owned())
    );
}

fn job_uuid() -> muster_protocol::JobId {
    "11111111-2222-4333-8444-555555555555".parse().unwrap()
}

#[tokio::test]
async fn a_job_reaches_its_validator_as_it_was_signed_and_its_result_comes_back() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let mut other = Validator::connect(&facilitator, "Other").await;
    let user = User::login(&facilitator, "User").await;
    let created = user
        .create(&job_for(validator_key("Validator")), facilitator.now_ns())
        .await;
    let job = validator.job().await;
    assert_eq!(job.uuid, created.uuid);
    assert_eq!(job.env.keys().collect::<Vec<_>>(), ["B", "A"]);
    assert!(verify_job(&job).is_ok());

    // Another validator neither receives the job nor may report on it.
    assert_eq!(
        other.report(job.uuid, JobStatus::Completed).await,
        Err("job.not_found".to_owned())
    );
    for status in [JobStatus::Received, JobStatus::Accepted, JobStatus::ExecutorReady] {
        assert_eq!(validator.report(job.uuid, status).await, Ok(()));
        assert_eq!(user.job(job.uuid).await.last_status(), status);
    }
    let integrity = Err("job.integrity_error".to_owned());
    assert_eq!(
        validator.report(job.uuid, JobStatus::ExecutorReady).await,
        integrity
    );
    assert_eq!(validator.report(job.uuid, JobStatus::Received).await, integrity);

    let result = StatusMetadata {
        miner_response: Some(MinerResponse {
            docker_process_stdout: "hi\n".to_owned(),
            artifacts: Some(
                [("/artifacts/x".to_owned(), "aGk=".to_owned())]
                    .into_iter()
                    .collect(),
            ),
            ..MinerResponse::default()
        }),
        ..StatusMetadata::default()
    };
    let completed = JobStatus::Completed;
    assert_eq!(
        validator.report_with(job.uuid, completed, Some(result)).await,
        Ok(())
    );
    let seen = user.job(job.uuid).await;
    assert_eq!(
        (seen.stdout.as_str(), seen.status.as_str()),
        ("hi\n", "Completed")
    );
    assert_eq!(seen.artifacts["/artifacts/x"], "aGk=");
    assert_eq!(validator.report(job.uuid, JobStatus::Failed).await, integrity);
    assert_eq!(user.job(job.uuid).await, seen);
}

#[tokio::test]
async fn bad_frames_are_answered_and_the_connection_stays() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    for (frame, kind) in [
        ("{", "json_invalid"),
        ("{\"message_type\":\"V0Teapot\"}", "union_tag_invalid"),
        (
            "{\"message_type\":\"V0JobStatusUpdate\",\"uuid\":1}",
            "value_error",
        ),
        ("{\"message_type\":\"V0Heartbeat\",\"more\":1}", "value_error"),
    ] {
        validator.socket.send(frame.to_owned()).await.unwrap();
        assert_eq!(validator.response().await.errors[0].r#type, kind, "{frame}");
    }
    // A heartbeat is not answered; the next response answers the next message.
    validator
        .send_message(&decode(r#"{"message_type":"V0Heartbeat"}"#).unwrap())
        .await;
    validator.is_idle().await;
}

#[tokio::test]
async fn an_unknown_status_survives_and_breaks_nothing() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let body = job_for(validator_key("Validator"));
    let uuid = user.create(&body, facilitator.now_ns()).await.uuid;
    validator.job().await;
    validator.report(uuid, JobStatus::Accepted).await.unwrap();
    let paused =
        json!({"message_type": "V0JobStatusUpdate", "uuid": uuid, "status": "paused", "metadata": null});
    validator.socket.send(paused.to_string()).await.unwrap();
    assert!(validator.response().await.errors.is_empty());
    assert_eq!(user.job(uuid).await.last_status(), JobStatus::Accepted);
    assert!(validator.report(uuid, JobStatus::Received).await.is_err());
    assert_eq!(validator.report(uuid, JobStatus::ExecutorReady).await, Ok(()));
}

#[tokio::test]
async fn a_job_waits_for_its_validator_and_comes_again_until_it_is_answered() {
    let facilitator = Facilitator::start().await;
    let user = User::login(&facilitator, "User").await;
    let body = job_for(validator_key("Validator"));
    drop(Validator::connect(&facilitator, "Validator").await);
    until(async || (facilitator.validators().await == 0).then_some(())).await;

    // The validator was connected a moment ago, so it may still get a job.
    let first = user.create(&body, facilitator.now_ns()).await.uuid;
    let second = user.create(&body, facilitator.now_ns()).await.uuid;
    let (mut validator, jobs) = Validator::connect_to_jobs(&facilitator, "Validator", 2).await;
    assert_eq!(
        jobs.iter().map(|job| job.uuid).collect::<Vec<_>>(),
        [first, second]
    );
    validator.report(first, JobStatus::Received).await.unwrap();
    drop(validator);

    let (validator, jobs) = Validator::connect_to_jobs(&facilitator, "Validator", 1).await;
    assert_eq!(jobs[0].uuid, second);
    drop(validator);

    let facilitator = facilitator.restart().await;
    let (mut validator, jobs) = Validator::connect_to_jobs(&facilitator, "Validator", 1).await;
    assert_eq!(jobs[0].uuid, second);
    validator.report(second, JobStatus::Rejected).await.unwrap();
    validator.report(first, JobStatus::Failed).await.unwrap();

    // The token and the history survive the restart too.
    let user = user.at(&facilitator);
    let history = user.job(first).await.status_history;
    let words: Vec<_> = history.iter().map(|entry| entry.status).collect();
    assert_eq!(words, [JobStatus::Sent, JobStatus::Received, JobStatus::Failed]);
    drop(validator);
    Validator::connect(&facilitator, "Validator").await;
}

#[tokio::test]
async fn a_validator_that_comes_back_holds_its_jobs_at_once() {
    let facilitator = Facilitator::start().await;
    let mut old = Validator::connect(&facilitator, "Validator").await;
    let mut new = Validator::connect(&facilitator, "Validator").await;
    assert_eq!(facilitator.validators().await, 1);
    let user = User::login(&facilitator, "User").await;
    let body = job_for(validator_key("Validator"));
    let first = user.create(&body, facilitator.now_ns()).await.uuid;
    assert_eq!(new.job().await.uuid, first);
    old.is_idle().await;
    let elsewhere = Err("auth.another_connection".to_owned());
    assert_eq!(old.report(first, JobStatus::Received).await, elsewhere);

    // When the newer connection closes, the older one takes over.
    new.socket.close(CloseCode::Normal, "bye").await;
    assert_eq!(old.job().await.uuid, first);
    assert_eq!(old.report(first, JobStatus::Received).await, Ok(()));
    let second = user.create(&body, facilitator.now_ns()).await.uuid;
    assert_eq!(old.job().await.uuid, second);
}

#[tokio::test]
async fn a_captured_greeting_is_worth_nothing_against_a_muster_validator() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let uuid = user
        .create(&job_for(validator_key("Validator")), facilitator.now_ns())
        .await
        .uuid;
    validator.job().await;

    // The captured greeting is rejected.
    let mut plain = ComputeHordeValidator::dial(&facilitator).await;
    assert_eq!(plain.greet("Validator").await, "auth.signature_invalid");

    // With Muster's header it is challenged, and another connection's answer to a challenge is not accepted.
    let greeting = ToFacilitator::V0AuthenticationRequest(sign_facilitator_auth(&key("Validator")));
    let mut elsewhere = Validator::dial(&facilitator).await;
    elsewhere.send_message(&greeting).await;
    let foreign = elsewhere.challenge().await;
    let mut copy = Validator::dial(&facilitator).await;
    copy.send_message(&greeting).await;
    assert_ne!(copy.challenge().await, foreign);
    assert_eq!(
        copy.report(uuid, JobStatus::Completed).await,
        Err("auth.not_authenticated".to_owned())
    );
    let refused = copy.prove("Validator", &foreign).await;
    assert_eq!(refused.errors[0].r#type, "auth.signature_invalid");
    assert_eq!(copy.closed().await, 3000);

    assert_eq!(validator.report(uuid, JobStatus::Received).await, Ok(()));
    assert_eq!(user.job(uuid).await.last_status(), JobStatus::Received);
}

#[tokio::test]
async fn a_second_claim_takes_nothing_from_a_computehorde_validator_that_beats() {
    let clock = TestClock::default();
    let facilitator = Facilitator::start_with(Arc::new(clock.clone()), |_| {}).await;
    let mut real = ComputeHordeValidator::dial(&facilitator).await;
    assert_eq!(real.greet("Validator").await, "success");
    real.settle().await;
    let mut copy = ComputeHordeValidator::dial(&facilitator).await;
    assert_eq!(copy.greet("Validator").await, "success");
    let user = User::login(&facilitator, "User").await;
    let body = job_for(validator_key("Validator"));
    let uuid = user.create(&body, facilitator.now_ns()).await.uuid;
    assert_eq!(real.next().await["uuid"], json!(uuid));

    for _ in 0..3 {
        clock.advance(Duration::from_secs(60));
        real.settle().await;
        assert_eq!(copy.report(uuid, "completed").await, "auth.another_connection");
    }
    assert_eq!(user.job(uuid).await.last_status(), JobStatus::Sent);
    assert_eq!(real.report(uuid, "received").await, "success");

    // After one and a half heartbeat intervals of silence the other connection takes over.
    let second = user.create(&body, facilitator.now_ns()).await.uuid;
    assert_eq!(real.next().await["uuid"], json!(second));
    clock.advance(Duration::from_secs(90));
    copy.send(r#"{"message_type":"V0Heartbeat"}"#).await;
    assert_eq!(copy.next().await["uuid"], json!(second));
    assert_eq!(copy.report(second, "received").await, "success");
}

#[tokio::test]
async fn a_strangers_first_frames_are_bounded_and_a_binary_one_is_answered() {
    let facilitator = Facilitator::start().await;
    let mut stranger = ComputeHordeValidator::dial(&facilitator).await;
    stranger.socket.send(Message::binary(vec![0])).await.unwrap();
    assert_eq!(stranger.next().await["errors"][0]["type"], "json_invalid");
    assert_eq!(stranger.greet("Validator").await, "success");
    stranger.socket.send(Message::binary(vec![0])).await.unwrap();
    assert_eq!(stranger.next().await["errors"][0]["type"], "json_invalid");

    let mut long = ComputeHordeValidator::dial(&facilitator).await;
    let frame = Message::text(format!("[{}0]", "0,".repeat(1 << 20)));
    drop(long.socket.send(frame).await);
    // The connection is cut off; the client sees a close frame or only the end.
    let end = within("the end of the connection", long.socket.next()).await;
    assert!(
        matches!(end, None | Some(Err(_) | Ok(Message::Close(_)))),
        "{end:?}"
    );

    // Permits of unauthenticated connections are few, but returned.
    let mut waiting = Vec::new();
    let refused = loop {
        match tokio_tungstenite::connect_async(facilitator.socket_url()).await {
            Ok((socket, _)) => waiting.push(socket),
            Err(tokio_tungstenite::tungstenite::Error::Http(answer)) => break answer.status(),
            Err(other) => panic!("{other}"),
        }
        // One address has less than all of them.
        assert!(waiting.len() <= 16);
    };
    assert_eq!(refused, 503);
    drop(waiting);
    let dial = async || {
        tokio_tungstenite::connect_async(facilitator.socket_url())
            .await
            .ok()
    };
    until(dial).await;
}

#[tokio::test]
async fn silence_costs_a_validator_its_jobs_and_then_its_connection() {
    let clock = TestClock::default();
    let facilitator = Facilitator::start_with(Arc::new(clock.clone()), |_| {}).await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let body = job_for(validator_key("Validator"));
    clock.advance(Duration::from_secs(179));
    assert_eq!(user.submit(&body, facilitator.now_ns()).await.status(), 201);
    validator.job().await;
    clock.advance(Duration::from_secs(1));
    assert_eq!(user.submit(&body, facilitator.now_ns()).await.status(), 400);
    validator
        .send_message(&decode(r#"{"message_type":"V0Heartbeat"}"#).unwrap())
        .await;
    validator.is_idle().await;
    assert_eq!(user.submit(&body, facilitator.now_ns()).await.status(), 201);
    validator.job().await;
    clock.advance(Duration::from_secs(600));
    assert_eq!(validator.closed().await, 1008);
}

#[tokio::test]
async fn stopping_says_goodbye_to_validators() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let (stopped, code) = tokio::join!(facilitator.stop(), validator.closed());
    drop(stopped);
    assert_eq!(code, 1001);
}

#[tokio::test]
async fn a_job_too_long_for_a_computehorde_validator_is_rejected_not_sent_for_ever() {
    let facilitator = Facilitator::start().await;
    let mut socket = ComputeHordeValidator::dial(&facilitator).await;
    assert_eq!(socket.greet("Validator").await, "success");

    let user = User::login(&facilitator, "User").await;
    let mut long = job_for(validator_key("Validator"));
    long["volumes"][0]["contents"] = json!("A".repeat(1024 * 1024));
    let submit = async || {
        let answer = user.submit(&long, facilitator.now_ns()).await;
        (answer.status() == 201).then_some(answer)
    };
    let uuid = until(submit).await.json::<Value>().await.unwrap()["uuid"].clone();
    let path = format!("/api/v1/jobs/{}/", uuid.as_str().unwrap());
    let job = until(async || {
        let job: Value = user.get(&path).send().await.unwrap().json().await.unwrap();
        (job["status"] == "Rejected").then_some(job)
    })
    .await;
    let details = &job["status_history"][1]["metadata"]["job_rejection_details"];
    assert_eq!(details["rejected_by"], "facilitator");
    assert!(
        details["message"].as_str().unwrap().contains("by URL"),
        "{details}"
    );

    // The next job is delivered over the same connection.
    let short = user
        .create(&job_for(validator_key("Validator")), facilitator.now_ns())
        .await;
    assert_eq!(socket.next().await["uuid"], json!(short.uuid));
}

#[tokio::test]
async fn heartbeats_beyond_their_pace_do_not_reach_the_store() {
    let clock = TestClock::default();
    let facilitator = Facilitator::start_with(Arc::new(clock.clone()), |_| {}).await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let store = facilitator.store().await;
    let seen = async || {
        let record = store.validator(validator_key("Validator")).await.unwrap();
        record.unwrap().seen
    };
    let begin = clock.now();
    for _ in 0..200 {
        validator
            .send_message(&ToFacilitator::V0Heartbeat(Heartbeat {}))
            .await;
    }
    validator.is_idle().await;
    // A tenth of a second is too short for another one, and a minute is not.
    for (pause, stored) in [
        (Duration::from_millis(100), false),
        (Duration::from_secs(60), true),
    ] {
        clock.advance(pause);
        validator
            .send_message(&ToFacilitator::V0Heartbeat(Heartbeat {}))
            .await;
        validator.is_idle().await;
        assert_eq!(seen().await > begin, stored, "after {pause:?}");
    }
}

//! Authentication of validators, and the words in which others are refused.

use muster_identity::{Keypair, sign_validator_auth};
use muster_miner::greeting::{GREETING_TIME, UNAUTHENTICATED};
use muster_process::Clock as _;
use muster_protocol::volume::InlineVolume;
use muster_protocol::wire::encode;
use muster_protocol::wire::executor_socket::{ExecutorToMiner, MinerToExecutor};
use muster_protocol::wire::miner::{MainHotkey, ValidatorAuth};
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::{MinerKey, ValidatorKey, Volume};

use crate::harness::*;

fn auth(miner: &Miner) -> ValidatorAuth {
    sign_validator_auth(
        &validator_key(),
        MinerKey(miner_key().hotkey()),
        miner.clock.now(),
    )
}

/// Sends a greeting and returns the refusal.
async fn refused(miner: &Miner, auth: ValidatorAuth) -> String {
    let mut validator = Validator::dial(miner).await;
    validator
        .send_message(&ValidatorToMiner::ValidatorAuthForMiner(auth))
        .await;
    let details = validator.receive_error().await;
    assert_eq!(validator.party.closed().await.code, 1000);
    let head = format!(
        "Validator {} not authenticated due to: ",
        validator_key().hotkey()
    );
    details.strip_prefix(&head).unwrap().to_owned()
}

#[tokio::test]
async fn a_validator_that_proves_its_key_gets_the_manifest_and_the_main_hotkey() {
    let miner = Miner::start().await;
    let mut validator = Validator::connect(&miner).await;
    assert!(validator.party.socket.is_muster());
    validator
        .send_message(&ValidatorToMiner::V0MainHotkeyMessage(MainHotkey {
            main_hotkey: None,
        }))
        .await;
    let answer = MainHotkey {
        main_hotkey: Some(miner_key().hotkey()),
    };
    assert_eq!(
        validator.receive().await,
        MinerToValidator::V0MainHotkeyMessage(answer)
    );
    miner.stop().await;
}

#[tokio::test]
async fn strangers_are_named_and_closed() {
    let miner = Miner::start().await;
    let stranger = Keypair::from_uri("//Stranger").unwrap().hotkey().to_string();
    for who in [stranger.as_str(), "nobody"] {
        let mut party = Party::dial(&miner.url(&format!("v0.1/validator_interface/{who}"))).await;
        let MinerToValidator::GenericError(error) = party.recv().await else {
            panic!()
        };
        assert_eq!(error.details.unwrap(), format!("Unknown validator: {who}"));
        assert_eq!(party.closed().await.code, 1000);
    }
}

#[tokio::test]
async fn a_validator_that_the_operator_excludes_is_let_in_by_no_list() {
    let key = ValidatorKey(validator_key().hotkey());
    let miner = Miner::start_with(|config| config.blacklist = vec![key]).await;
    let mut party = Party::dial(&miner.url(&format!("v0.1/validator_interface/{key}"))).await;
    let MinerToValidator::GenericError(error) = party.recv().await else {
        panic!()
    };
    let details = error.details.unwrap();
    assert!(
        details.starts_with(&format!("Blacklisted validator: {key}")),
        "{details}"
    );
    assert_eq!(party.closed().await.code, 1000);
}

#[tokio::test]
async fn each_fault_of_a_greeting_has_its_words() {
    let miner = Miner::start().await;
    let (now, me) = (miner.clock.now(), MinerKey(miner_key().hotkey()));
    let at = |secs| sign_validator_auth(&validator_key(), me, muster_protocol::Timestamp::from_secs(secs));
    assert_eq!(refused(&miner, at(now.secs() - 11)).await, "msg too old");
    assert_eq!(refused(&miner, at(now.secs() + 11)).await, "msg from the future");

    let elsewhere = MinerKey(Keypair::from_uri("//Other").unwrap().hotkey());
    let said = refused(&miner, sign_validator_auth(&validator_key(), elsewhere, now)).await;
    assert!(said.starts_with("wrong miner hotkey ("), "{said}");

    let stranger = Keypair::from_uri("//Stranger").unwrap();
    let said = refused(&miner, sign_validator_auth(&stranger, me, now)).await;
    assert!(said.starts_with("wrong validator hotkey ("), "{said}");

    let forged = ValidatorAuth {
        validator_hotkey: ValidatorKey(validator_key().hotkey()),
        ..sign_validator_auth(&stranger, me, now)
    };
    assert_eq!(refused(&miner, forged).await, "Signature mismatches");
}

#[tokio::test]
async fn a_greeting_admits_once_also_across_a_restart() {
    let miner = Miner::start().await;
    let auth = auth(&miner);
    let mut validator = Validator::dial(&miner).await;
    validator
        .send_message(&ValidatorToMiner::ValidatorAuthForMiner(auth.clone()))
        .await;
    assert_eq!(validator.receive_kind().await, "V0ExecutorManifestRequest");
    assert_eq!(refused(&miner, auth.clone()).await, "msg already used");
    let miner = miner.killed_and_restarted().await;
    assert_eq!(refused(&miner, auth).await, "msg already used");
}

#[tokio::test]
async fn a_validator_that_does_not_greet_in_time_is_refused() {
    let miner = Miner::start().await;
    let mut validator = Validator::dial(&miner).await;
    let deadline = miner.clock.now().plus(GREETING_TIME);
    soon(miner.clock.wait_for_sleepers_until(deadline, 1)).await;
    miner.clock.advance_to(deadline);
    let details = validator.receive_error().await;
    assert!(
        details.ends_with("no ValidatorAuthForMiner within 10 s"),
        "{details}"
    );
    assert_eq!(validator.party.closed().await.code, 1000);
}

#[tokio::test]
async fn a_validator_without_a_greeting_first_is_refused() {
    let mut miner = Miner::start().await;
    for of_another_socket in [false, true] {
        let mut early = Validator::dial(&miner).await;
        let offer = ValidatorToMiner::V0InitialJobRequest(Box::new(initial(new_attempt(), early.now)));
        let frame = if of_another_socket {
            ORDER.to_owned()
        } else {
            encode(&offer)
        };
        early.party.send(frame).await;
        let details = early.receive_error().await;
        assert!(
            details.ends_with("the first message was not ValidatorAuthForMiner"),
            "{details}"
        );
        assert_eq!(early.party.closed().await.code, 1000);
    }
    assert!(miner.wants_nothing_more());
}

/// A message that miners send to executors only.
const ORDER: &str =
    r#"{"message_type":"MusterFetchImage","job_uuid":"11111111-2222-4333-8444-555555555555"}"#;

#[tokio::test]
async fn message_of_another_socket_is_refused_by_name_and_its_sender_stays() {
    let mut miner = Miner::start().await;
    let mut validator = Validator::connect(&miner).await;
    validator.party.send(ORDER.to_owned()).await;
    let details = validator.receive_error().await;
    assert!(
        details.starts_with("Malformed message: ") && details.contains("MusterFetchImage"),
        "{details}"
    );
    validator.offer(new_attempt()).await;
    let mut executor = Executor::dial(&miner.wanted().await).await;
    let question = ValidatorToMiner::V0MainHotkeyMessage(MainHotkey { main_hotkey: None });
    executor.party.send(encode(&question)).await;
    let details = executor.receive_error().await;
    assert!(details.contains("V0MainHotkeyMessage"), "{details}");
    executor.ready().await;
    assert_eq!(validator.receive_kind().await, "V0ExecutorReadyRequest");
}

#[tokio::test]
async fn an_offer_of_many_megabytes_may_follow_the_greeting_at_once() {
    let mut miner = Miner::start().await;
    let mut validator = Validator::dial(&miner).await;
    let attempt = new_attempt();
    let mut offer = initial(attempt, validator.now);
    let contents = "x".repeat(8 * 1024 * 1024);
    let relative_path = None;
    offer.volume = Some(Volume::Inline(InlineVolume {
        contents,
        relative_path,
    }));
    validator.greet().await;
    validator
        .send_message(&ValidatorToMiner::V0InitialJobRequest(Box::new(offer)))
        .await;
    assert_eq!(validator.receive_kind().await, "V0ExecutorManifestRequest");
    assert_eq!(validator.receive_kind().await, "V0AcceptJobRequest");
    assert_eq!(miner.wanted().await.order.token.attempt(), attempt);
}

#[tokio::test]
async fn nothing_large_is_read_from_a_stranger() {
    let miner = Miner::start().await;
    // One frame that is large, and many small ones, none of them a message. The clock stands still: it is not the
    // deadline that ends them.
    for (frame, times) in [("x".repeat(40_000_000), 1), ("x".repeat(4000), 10_000)] {
        let mut stranger = Validator::dial(&miner).await.party.socket;
        let flood = async {
            for _ in 0..times {
                if stranger.send(frame.clone()).await.is_err() {
                    return;
                }
            }
            while let Ok(Some(_)) = stranger.recv().await {}
        };
        soon(flood).await;
    }
    Validator::connect(&miner).await;
}

#[tokio::test]
async fn connections_without_a_greeting_are_bounded() {
    let miner = Miner::start().await;
    let mut waiting = Vec::new();
    // All of them come from one address, which has less than all places.
    let places = UNAUTHENTICATED.per_address;
    for _ in 0..places {
        waiting.push(Validator::dial(&miner).await);
    }
    let deadline = miner.clock.now().plus(GREETING_TIME);
    soon(miner.clock.wait_for_sleepers_until(deadline, places)).await;
    let details = Validator::dial(&miner).await.receive_error().await;
    assert!(
        details.contains("too many connections have not greeted"),
        "{details}"
    );
    // A connection that greets, or leaves, makes room.
    let first = &mut waiting[0];
    first.greet().await;
    assert_eq!(first.receive_kind().await, "V0ExecutorManifestRequest");
    Validator::connect(&miner).await;
}

#[tokio::test]
async fn frames_that_are_no_messages_are_named_and_survived() {
    let miner = Miner::start().await;
    let mut validator = Validator::dial(&miner).await;
    let garbage = [
        "",
        "{",
        "[]",
        "null",
        r#"{"message_type":"V9"}"#,
        r#"{"message_type":"V0JobRequest","job_uuid":7}"#,
    ];
    for frame in garbage {
        validator.party.send(frame.to_owned()).await;
        assert!(validator.receive_error().await.starts_with("Malformed message: "));
    }
    validator.greet().await;
    assert_eq!(validator.receive_kind().await, "V0ExecutorManifestRequest");
    for frame in garbage {
        validator.party.send(frame.to_owned()).await;
        assert!(validator.receive_error().await.starts_with("Malformed message: "));
    }
    validator
        .send_message(&ValidatorToMiner::V0JobRequest(Box::new(job(new_attempt()))))
        .await;
    assert!(
        validator
            .receive_error()
            .await
            .starts_with("Received JobRequest for unknown job_uuid: ")
    );
}

#[tokio::test]
async fn executors_without_a_lease_are_sent_away() {
    let miner = Miner::start().await;
    for token in [format!("{}-{}", new_attempt(), new_attempt()), "guess".to_owned()] {
        let mut party = Party::dial(&miner.url(&format!("v0.1/executor_interface/{token}"))).await;
        let MinerToExecutor::GenericError(error) = party.recv().await else {
            panic!()
        };
        assert_eq!(
            error.details.unwrap(),
            format!("No job waiting for token {token}")
        );
        assert_eq!(party.closed().await.code, 1000);
    }
}

#[tokio::test]
async fn a_token_is_good_for_one_executor() {
    let mut miner = Miner::start().await;
    let mut validator = Validator::connect(&miner).await;
    validator.offer(new_attempt()).await;
    let started = miner.wanted().await;
    let mut first = Executor::dial(&started).await;
    let token = started.order.token.to_string();
    let mut second = Party::dial(&miner.url(&format!("v0.1/executor_interface/{token}"))).await;
    let MinerToExecutor::GenericError(error) = second.recv().await else {
        panic!()
    };
    assert_eq!(
        error.details.unwrap(),
        format!("Job with token {token} is not waiting for an executor")
    );
    // A message about another attempt is refused by name, and the lease continues.
    let other = new_attempt();
    let notice = muster_protocol::wire::miner::AttemptNotice { job_uuid: other };
    first
        .party
        .send(encode(&ExecutorToMiner::V0VolumesReadyRequest(notice)))
        .await;
    assert!(first.receive_error().await.contains(&other.to_string()));
    first.ready().await;
    assert_eq!(validator.receive_kind().await, "V0ExecutorReadyRequest");
}

#[tokio::test]
async fn version_and_health_answer() {
    muster_process::tls::install_provider();
    let miner = Miner::start().await;
    let get = async |path| {
        reqwest::get(miner.url(path))
            .await
            .unwrap()
            .json::<serde_json::Value>()
            .await
            .unwrap()
    };
    assert!(get("version").await["miner_version"].is_string());
    assert!(get("version").await["runner_version"].is_string());
    assert_eq!(get("health").await["status"], "ok");
}

//! Who may come in, and in which words the others are refused.

use std::time::Duration;

use muster_identity::{Keypair, validator_auth};
use muster_kit::Clock as _;
use muster_protocol::wire::encode;
use muster_protocol::wire::miner::{FromMiner, MainHotkey, ToMiner, ValidatorAuth};
use muster_protocol::{MinerKey, ValidatorKey};

use crate::harness::*;

fn auth(miner: &Miner) -> ValidatorAuth {
    validator_auth(
        &validator_key(),
        MinerKey(miner_key().hotkey()),
        miner.clock.now(),
    )
}

/// Sends a greeting and returns the refusal.
async fn refused(miner: &Miner, auth: ValidatorAuth) -> String {
    let mut validator = Validator::dial(miner).await;
    validator.say(&ToMiner::ValidatorAuthForMiner(auth)).await;
    let details = validator.hear_error().await;
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
        .say(&ToMiner::V0MainHotkeyMessage(MainHotkey { main_hotkey: None }))
        .await;
    let answer = MainHotkey {
        main_hotkey: Some(miner_key().hotkey()),
    };
    assert_eq!(validator.hear().await, FromMiner::V0MainHotkeyMessage(answer));
    miner.stop().await;
}

#[tokio::test]
async fn strangers_are_named_and_closed() {
    let miner = Miner::start().await;
    let stranger = Keypair::from_uri("//Stranger").unwrap().hotkey().to_string();
    for who in [stranger.as_str(), "nobody"] {
        let mut party = Party::dial(&miner.url(&format!("v0.1/validator_interface/{who}"))).await;
        let FromMiner::GenericError(error) = party.recv().await else {
            panic!()
        };
        assert_eq!(error.details.unwrap(), format!("Unknown validator: {who}"));
        assert_eq!(party.closed().await.code, 1000);
    }
}

#[tokio::test]
async fn each_fault_of_a_greeting_has_its_words() {
    let miner = Miner::start().await;
    let (now, me) = (miner.clock.now(), MinerKey(miner_key().hotkey()));
    let at = |secs| validator_auth(&validator_key(), me, muster_protocol::Timestamp::from_secs(secs));
    assert_eq!(refused(&miner, at(now.secs() - 11)).await, "msg too old");
    assert_eq!(refused(&miner, at(now.secs() + 11)).await, "msg from the future");

    let elsewhere = MinerKey(Keypair::from_uri("//Other").unwrap().hotkey());
    let said = refused(&miner, validator_auth(&validator_key(), elsewhere, now)).await;
    assert!(said.starts_with("wrong miner hotkey ("), "{said}");

    let stranger = Keypair::from_uri("//Stranger").unwrap();
    let said = refused(&miner, validator_auth(&stranger, me, now)).await;
    assert!(said.starts_with("wrong validator hotkey ("), "{said}");

    let forged = ValidatorAuth {
        validator_hotkey: ValidatorKey(validator_key().hotkey()),
        ..validator_auth(&stranger, me, now)
    };
    assert_eq!(refused(&miner, forged).await, "Signature mismatches");
}

#[tokio::test]
async fn a_greeting_opens_the_door_once_also_across_a_restart() {
    let miner = Miner::start().await;
    let auth = auth(&miner);
    let mut validator = Validator::dial(&miner).await;
    validator.say(&ToMiner::ValidatorAuthForMiner(auth.clone())).await;
    assert_eq!(validator.hear_kind().await, "V0ExecutorManifestRequest");
    assert_eq!(refused(&miner, auth.clone()).await, "msg already used");
    let miner = miner.killed_and_restarted().await;
    assert_eq!(refused(&miner, auth).await, "msg already used");
}

#[tokio::test]
async fn who_does_not_greet_is_sent_away() {
    let miner = Miner::start().await;
    let mut validator = Validator::dial(&miner).await;
    // The dispatcher's deadline and the greeting's.
    soon(miner.clock.wait_for_sleepers(2)).await;
    miner.clock.advance(Duration::from_secs(10));
    let details = validator.hear_error().await;
    assert!(
        details.ends_with("no ValidatorAuthForMiner within 10 s"),
        "{details}"
    );
    assert_eq!(validator.party.closed().await.code, 1000);
}

#[tokio::test]
async fn what_comes_before_the_greeting_waits_for_it_within_bounds() {
    let mut miner = Miner::start().await;
    let mut early = Validator::dial(&miner).await;
    let attempt = new_attempt();
    early
        .say(&ToMiner::V0InitialJobRequest(Box::new(initial(
            attempt, early.now,
        ))))
        .await;
    early.greet().await;
    assert_eq!(early.hear_kind().await, "V0ExecutorManifestRequest");
    assert_eq!(early.hear_kind().await, "V0AcceptJobRequest");
    assert_eq!(miner.wanted().await.order.token.attempt(), attempt);

    let mut flood = Validator::dial(&miner).await;
    for _ in 0..17 {
        flood
            .say(&ToMiner::V0MainHotkeyMessage(MainHotkey { main_hotkey: None }))
            .await;
    }
    assert!(flood.hear_error().await.contains("too much was sent before"));
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
        assert!(validator.hear_error().await.starts_with("Malformed message: "));
    }
    validator.greet().await;
    assert_eq!(validator.hear_kind().await, "V0ExecutorManifestRequest");
    for frame in garbage {
        validator.party.send(frame.to_owned()).await;
        assert!(validator.hear_error().await.starts_with("Malformed message: "));
    }
    validator
        .say(&ToMiner::V0JobRequest(Box::new(job(new_attempt()))))
        .await;
    assert!(
        validator
            .hear_error()
            .await
            .starts_with("Received JobRequest for unknown job_uuid: ")
    );
}

#[tokio::test]
async fn executors_without_a_lease_are_sent_away() {
    let miner = Miner::start().await;
    for token in [format!("{}-{}", new_attempt(), new_attempt()), "guess".to_owned()] {
        let mut party = Party::dial(&miner.url(&format!("v0.1/executor_interface/{token}"))).await;
        let ToMiner::GenericError(error) = party.recv().await else {
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
    let ToMiner::GenericError(error) = second.recv().await else {
        panic!()
    };
    assert_eq!(
        error.details.unwrap(),
        format!("Job with token {token} is not waiting for an executor")
    );
    // What speaks of another attempt is refused by name, and the lease goes on.
    let other = new_attempt();
    let notice = muster_protocol::wire::miner::AttemptNotice { job_uuid: other };
    first
        .party
        .send(encode(&FromMiner::V0VolumesReadyRequest(notice)))
        .await;
    assert!(first.hear_error().await.contains(&other.to_string()));
    first.ready().await;
    assert_eq!(validator.hear_kind().await, "V0ExecutorReadyRequest");
}

#[tokio::test]
async fn version_and_health_answer() {
    muster_kit::tls::install_provider();
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

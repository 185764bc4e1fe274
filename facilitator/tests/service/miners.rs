//! Messages of validators about miners: bounded, kept apart by validator, and only for those that take jobs.

use std::sync::Arc;

use muster_process::TestClock;
use muster_protocol::wire::facilitator::ToFacilitator;
use muster_protocol::wire::machines::{
    ClaimedOffer, ClaimedSpecs, MAX_MACHINE_TEXT, MinerClaims, MinerNotice, ProvenClass,
};
use muster_protocol::{ExecutorClass, MinerKey, Timestamp};
use serde_json::{Value, json};

use crate::facilitator::{Facilitator, key, until, validator_key};
use crate::user::{User, read_json};
use crate::validator::Validator;

const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;

fn miner() -> MinerKey {
    MinerKey(key("Miner").hotkey())
}

fn notice(cores: u64, letters: usize) -> ToFacilitator {
    let specs = ClaimedSpecs {
        class: CLASS,
        told_at: Timestamp::from_secs(1_769_000_000),
        cpu: format!("\u{1b}[31m{}", "x".repeat(letters)),
        cores,
        memory: 1,
        disk: 2,
        os: "Debian".to_owned(),
        gpus: vec!["2 x A6000".to_owned(); 1_000],
    };
    ToFacilitator::MusterMiner(Box::new(MinerNotice {
        miner: miner(),
        proven: vec![ProvenClass {
            class: CLASS,
            challenged: 2,
            proven: 1,
            block: 7,
        }],
        claims: MinerClaims {
            offers: vec![ClaimedOffer {
                class: CLASS,
                executors: 2,
            }],
            specs: vec![specs; 10],
            machines: vec![],
        },
    }))
}

async fn show(user: &User) -> (u16, Value) {
    let path = format!("/api/v1/miners/{}/", miner());
    read_json(user.get(&path).send().await.unwrap()).await
}

/// The answer once the first result claims `cores` cores.
async fn shown(user: &User, cores: u64) -> Value {
    until(async || {
        let (status, view) = show(user).await;
        (status == 200 && view["results"][0]["claims"]["specs"][0]["cores"] == cores).then_some(view)
    })
    .await
}

#[tokio::test]
async fn users_see_what_is_proven_beside_what_is_claimed_within_bounds() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    assert_eq!(show(&user).await.0, 404);
    validator.send_message(&notice(8, 100_000)).await;
    let view = shown(&user, 8).await;
    let result = &view["results"][0];
    assert_eq!(result["validator"], json!(validator_key("Validator")));
    assert_eq!(
        result["proven"],
        json!([{"class": "always_on.test", "challenged": 2, "proven": 1, "block": 7}])
    );
    let specs = result["claims"]["specs"].as_array().unwrap();
    let cpu = specs[0]["cpu"].as_str().unwrap();
    assert_eq!(
        (specs.len(), cpu.len(), specs[0]["gpus"].as_array().unwrap().len()),
        (1, MAX_MACHINE_TEXT, 8)
    );
    assert!(cpu.chars().all(|letter| !letter.is_control()));
    for path in ["/api/v1/miners/nobody/", "/api/v1/miners/%ff/"] {
        assert_eq!(
            user.get(path).send().await.unwrap().status().as_u16(),
            404,
            "{path}"
        );
    }
}

#[tokio::test]
async fn a_flood_is_held_to_its_rate_and_only_the_holder_of_the_jobs_tells() {
    // No time passes, however long the machine takes.
    let clock = Arc::new(TestClock::default());
    let facilitator = Facilitator::start_with(clock, |_| {}).await;
    let mut old = Validator::connect(&facilitator, "Validator").await;
    let mut new = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    old.send_message(&notice(1, 1)).await;
    // Of two hundred messages at one instant some are dropped, and the session goes on.
    for cores in 2..200 {
        new.send_message(&notice(cores, 1)).await;
    }
    new.is_idle().await;
    let (_, view) = show(&user).await;
    let cores = view["results"][0]["claims"]["specs"][0]["cores"]
        .as_u64()
        .unwrap();
    assert_eq!(cores, 121, "the hundred and twentieth message of the minute");
}

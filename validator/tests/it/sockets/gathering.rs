//! Receipts of all validators, gathered from the miners' pages: counted in scores, refused with a reason, read once.

use crate::sockets::support::facilitator::job;
use crate::sockets::support::miner::{Miner, whole};
use crate::sockets::support::{World, while_time_passes};
use muster_identity::{Keypair, countersign, offer_receipt};
use muster_process::Clock as _;
use muster_protocol::receipt::{FinishedReceipt, FinishedTag, StartedReceipt, StartedTag};
use muster_protocol::{
    AttemptId, ExecutorClass, MinerKey, Receipt, ReceiptPayload, Signature, Timestamp, ValidatorKey,
};
use serde_json::Value;
use uuid::Uuid;

/// The time of the first block of the tests' chain.
pub(crate) fn start() -> Timestamp {
    Timestamp::from_secs(1_770_000_012)
}

/// A validator that reads this miner's pages, and another validator, `//Other`, whose receipts count.
pub(crate) async fn world(miner: &Miner, other: &Miner) -> World {
    let mut world = World::new(&[miner, other]).await;
    world.chain.permit(2);
    world.config.receipts.gather = true;
    world.config.receipts.interval_s = 1;
    world.test_clock.advance_to(start());
    world
}

pub(crate) fn signed(validator: &Keypair, miner: &Keypair, payload: ReceiptPayload) -> Receipt {
    let offered = offer_receipt(validator, payload).unwrap();
    countersign(miner, offered).unwrap().into_inner()
}

/// The started and the finished receipt of one attempt, signed by a validator and a miner.
pub(crate) fn about(
    validator: &Keypair,
    miner: &Keypair,
    attempt: u128,
    amount: &str,
    at: Timestamp,
) -> [Receipt; 2] {
    let job_uuid = AttemptId::from_uuid(Uuid::from_u128(attempt));
    let (miner_hotkey, validator_hotkey) = (MinerKey(miner.hotkey()), ValidatorKey(validator.hotkey()));
    let started = ReceiptPayload::Started(StartedReceipt {
        job_uuid,
        miner_hotkey,
        validator_hotkey,
        timestamp: at,
        receipt_type: StartedTag,
        executor_class: ExecutorClass::AlwaysOnTest,
        is_organic: true,
        ttl: 7,
    });
    let finished = ReceiptPayload::Finished(FinishedReceipt {
        job_uuid,
        miner_hotkey,
        validator_hotkey,
        timestamp: at,
        receipt_type: FinishedTag,
        time_started: at,
        time_took_us: 1,
        score_str: amount.to_owned(),
        block_numbers: vec![],
    });
    [
        signed(validator, miner, started),
        signed(validator, miner, finished),
    ]
}

pub(crate) fn write(miner: &Miner, at: Timestamp, receipts: &[Receipt]) {
    let page = format!("{}.jsonl", muster_protocol::receipt::page_of(at));
    for receipt in receipts {
        let mut line = serde_json::to_vec(receipt).unwrap();
        line.push(b'\n');
        miner.server.write(&page, &line);
    }
}

pub(crate) async fn gathered(world: &World, count: u64) -> Value {
    let until = world.until("gathered receipts", |state| state["gathered"] == count);
    while_time_passes(&world.test_clock, "gathered receipts", until).await
}

#[tokio::test]
async fn receipts_of_other_validators_count_and_forged_ones_do_not() {
    let (miner, other) = (Miner::open("//Miner").await, Miner::open("//Other").await);
    let mut world = world(&miner, &other).await;
    let stranger = Keypair::from_uri("//Stranger").unwrap();
    let now = world.test_clock.now();
    let hour = std::time::Duration::from_secs(3_600);
    let honest = about(&other.keypair, &miner.keypair, 1, "5.000000", now);
    let mut raised = about(&other.keypair, &miner.keypair, 2, "5.000000", now)[1].clone();
    if let ReceiptPayload::Finished(finished) = &mut raised.payload {
        finished.score_str = "500.000000".to_owned();
    }
    let mut half = about(&other.keypair, &miner.keypair, 3, "5.000000", now)[1].clone();
    half.miner_signature = Signature::from_bytes([1; 64]);
    let future = about(&other.keypair, &miner.keypair, 4, "5.000000", now.plus(hour * 3))[1].clone();
    let strangers = about(&stranger, &miner.keypair, 5, "700.000000", now);
    let another = about(&other.keypair, &other.keypair, 6, "5.000000", now)[1].clone();
    write(&miner, now, &honest);
    write(&miner, now, &[raised, half, future, another, honest[1].clone()]);
    write(&miner, now, &strangers);
    world.start();
    world.facilitator.accept().await;
    let state = gathered(&world, 2).await;
    let mut reasons: Vec<_> = state["refused"]
        .as_array()
        .unwrap()
        .iter()
        .map(|refused| {
            (
                refused["reason"].as_str().unwrap().to_owned(),
                refused["refused"].as_u64(),
            )
        })
        .collect();
    reasons.sort();
    let once = |reason: &str| (reason.to_owned(), Some(1));
    assert_eq!(
        reasons,
        [
            once("forged_miner"),
            once("forged_validator"),
            once("future"),
            ("no_permit".to_owned(), Some(2)),
            once("other_miner"),
            once("repeated"),
        ]
    );
    world.chain.seal_to(16);
    let scored = world.until("weights", |state| state["cycles"][0]["state"] == "set");
    let cycle = while_time_passes(&world.test_clock, "weights", scored).await["cycles"][0].clone();
    assert_eq!(
        cycle["scores"][0]["micros"], 5_000_000,
        "a stranger's word does not count: {cycle}"
    );
    assert_eq!(cycle["scores"].as_array().unwrap().len(), 1);
    assert_eq!(cycle["dropped"].as_array().unwrap().len(), 0, "{cycle}");
    let zeros: Vec<_> = cycle["zeros"]
        .as_array()
        .unwrap()
        .iter()
        .map(|zero| (zero["uid"].as_u64(), zero["why"].clone()))
        .collect();
    assert_eq!(
        zeros,
        [(Some(0), "myself".into()), (Some(2), "no_receipts".into())],
        "every zero has a reason"
    );
}

#[tokio::test]
async fn a_receipt_that_its_miner_signs_on_its_pages_only_becomes_whole() {
    let (mut miner, other) = (Miner::open("//Miner").await, Miner::open("//Other").await);
    let mut world = world(&miner, &other).await;
    world.config.timing.receipt_wait_ms = 1;
    world.config.routing.blacklist = [other.key()].into();
    world.start();
    world.facilitator.accept().await;
    world.facilitator.submit(&job("//User", 1)).await;
    let mut session = miner.accept().await;
    let id = session.begin().await;
    session.complete(id).await;
    let slip = session.finished_receipt().await;
    while_time_passes(
        &world.test_clock,
        "the end",
        world.facilitator.updates_to_the_end(),
    )
    .await;
    let receipt = whole(
        &miner.keypair,
        ReceiptPayload::Finished(slip.payload),
        slip.signature,
    );
    write(&miner, world.test_clock.now(), &[receipt]);
    gathered(&world, 1).await;
    let receipts = world.state().await["receipts"].clone();
    let finished = receipts
        .as_array()
        .unwrap()
        .iter()
        .find(|receipt| receipt["payload"]["receipt_type"] == "JobFinishedReceipt");
    assert!(finished.unwrap()["miner_signature"].is_string());
    // A receipt seen in several places counts once.
    world.chain.seal_to(16);
    let scored = world.until("weights", |state| state["cycles"][0]["state"] == "set");
    let state = while_time_passes(&world.test_clock, "weights", scored).await;
    assert_eq!(state["cycles"][0]["scores"][0]["micros"], 9_000_000);
}

#[tokio::test]
async fn pages_are_caught_up_on_and_read_once_also_across_a_restart() {
    let (miner, other) = (Miner::open("//Miner").await, Miner::open("//Other").await);
    let mut world = world(&miner, &other).await;
    let now = world.test_clock.now();
    let minutes = |minutes: i64| Timestamp::from_secs(now.secs() - minutes * 60);
    for (attempt, ago) in [(1, 0), (2, 6), (3, 60), (4, 290)] {
        let at = minutes(ago);
        write(
            &miner,
            at,
            &about(&other.keypair, &miner.keypair, attempt, "1.000000", at),
        );
    }
    // Older than the five hours up to which pages are read.
    write(
        &miner,
        minutes(400),
        &about(&other.keypair, &miner.keypair, 5, "1.000000", minutes(400)),
    );
    world.start();
    world.facilitator.accept().await;
    gathered(&world, 8).await;
    world.stop().await;

    // A line that is cut off in the middle; its end follows after the restart.
    let at = world.test_clock.now();
    let line = serde_json::to_vec(&about(&other.keypair, &miner.keypair, 6, "1.000000", at)[1]).unwrap();
    let page = format!("{}.jsonl", muster_protocol::receipt::page_of(at));
    miner.server.write(&page, &line[..40]);
    world.start();
    world.facilitator.accept().await;
    miner.server.write(&page, &line[40..]);
    miner.server.write(&page, b"\n");
    let state = gathered(&world, 9).await;
    assert_eq!(
        state["refused"].as_array().unwrap().len(),
        0,
        "nothing is read twice: {state}"
    );
}

/// A finished receipt over five seconds at block 24 of the tests' chain, which names these blocks.
fn naming(validator: &Keypair, miner: &Keypair, attempt: u128, blocks: &[u64]) -> [Receipt; 2] {
    let at = start().plus(std::time::Duration::from_secs(12 * 23));
    let [started, finished] = about(validator, miner, attempt, "5.000000", at);
    let ReceiptPayload::Finished(mut finished) = finished.payload else {
        panic!("the second one is finished: {finished:?}");
    };
    finished.block_numbers = blocks.to_vec();
    [
        started,
        signed(validator, miner, ReceiptPayload::Finished(finished)),
    ]
}

#[tokio::test]
async fn a_receipt_counts_for_the_blocks_that_it_names() {
    let (miner, other) = (Miner::open("//Miner").await, Miner::open("//Other").await);
    let mut world = world(&miner, &other).await;
    world.chain.remember();
    world.start();
    world.facilitator.accept().await;
    // The stakes at two boundaries, and the time of the receipts.
    for block in [12, 23, 25] {
        world.chain.seal_to(block);
        world.seen(block).await;
    }
    world
        .test_clock
        .advance_to(start().plus(std::time::Duration::from_secs(12 * 24)));
    // A validator of the tests' chain that has half of the stake may use 24 s of a block.
    for (attempt, blocks) in [
        (1, &[23][..]),
        (2, &[]),
        (3, &[24]),
        (4, &[24]),
        (5, &[1_000]),
        (6, &[12]),
    ] {
        let at = world.test_clock.now();
        write(
            &miner,
            at,
            &naming(&other.keypair, &miner.keypair, attempt, blocks),
        );
    }
    gathered(&world, 12).await;
    world.chain.seal_to(39);
    let scored = world.until("weights", |state| {
        state["cycles"][0]["state"] == "set" && state["cycles"][0]["last_block"] == 32
    });
    let cycle = while_time_passes(&world.test_clock, "weights", scored).await["cycles"][0].clone();
    let mut dropped: Vec<_> = cycle["dropped"]
        .as_array()
        .unwrap()
        .iter()
        .map(|dropped| dropped[1].as_str().unwrap())
        .collect();
    dropped.sort_unstable();
    assert_eq!(
        dropped,
        [
            "future_block",
            "named_twice",
            "named_twice",
            "no_stake",
            "over_allowance"
        ],
        "{cycle}"
    );
    assert_eq!(cycle["scores"][0]["micros"], 5_000_000, "{cycle}");
}

#[tokio::test]
async fn a_validator_shows_the_receipts_that_a_miner_hides() {
    let (miner, other) = (Miner::open("//Miner").await, Miner::open("//Other").await);
    let mut world = world(&miner, &other).await;
    // The other validator's pages are served at another address than its axon.
    let pages = Miner::open("//Pages").await;
    world
        .chain
        .state_pages(other.keypair.hotkey(), pages.server.address);
    let now = world.test_clock.now();
    let hidden = about(&other.keypair, &miner.keypair, 1, "5.000000", now);
    let foreign = about(&world.keypair, &miner.keypair, 2, "5.000000", now);
    write(&pages, now, &hidden);
    write(&pages, now, &foreign[..1]);
    write(&miner, now, &hidden[..1]);
    world.start();
    world.facilitator.accept().await;
    let state = gathered(&world, 2).await;
    let refused = world.until("the refusal", |state| {
        state["refused"][0]["reason"] == "other_validator"
    });
    let refused = while_time_passes(&world.test_clock, "the refusal", refused).await;
    assert_eq!(
        refused["refused"][0]["miner"],
        format!("validator {}", other.keypair.hotkey()),
        "{state}"
    );
    assert_eq!(
        refused["refused"].as_array().unwrap().len(),
        1,
        "a receipt that two parties serve is no fault: {refused}"
    );
}

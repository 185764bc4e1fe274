//! A registered miner whose receipt pages are full of receipts of validators that do not exist.

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use muster_identity::wallet::{WalletPath, load_hotkey};
use muster_identity::{Keypair, countersign, offer_receipt};
use muster_process::{Clock as _, SystemClock};
use muster_protocol::receipt::{FinishedReceipt, FinishedTag, page_of};
use muster_protocol::{AttemptId, MinerKey, ReceiptPayload, Timestamp, ValidatorKey};
use muster_testbed::wait_for;
use muster_tests::RunningSubnet;
use serde_json::Value;
use uuid::Uuid;

/// Different receipts in the hostile miner's pages.
const RECEIPTS: u128 = 2_000;
/// How often they are repeated on each page, which has some thirty mebibytes.
const REPEATED: usize = 20;
/// The pages that still grow: the present one and the one before. The validator has found older ones empty.
const PAGES: i64 = 2;

/// Receipts of validators that nobody knows, with both signatures, a line for each.
fn made_up_lines(miner: &Keypair, at: Timestamp) -> Result<Vec<u8>> {
    let validators: Vec<Keypair> = (0..50).map(|_| Keypair::generate()).collect();
    let mut lines = Vec::new();
    for (attempt, validator) in (0..RECEIPTS).zip(validators.iter().cycle()) {
        let payload = ReceiptPayload::Finished(FinishedReceipt {
            job_uuid: AttemptId::from_uuid(Uuid::from_u128(attempt)),
            miner_hotkey: MinerKey(miner.hotkey()),
            validator_hotkey: ValidatorKey(validator.hotkey()),
            timestamp: at,
            receipt_type: FinishedTag,
            time_started: at.minus(Duration::from_secs(10)),
            time_took_us: 10_000_000,
            score_str: "10.000000".to_owned(),
            block_numbers: vec![],
        });
        let receipt = countersign(miner, offer_receipt(validator, payload)?)?;
        serde_json::to_writer(&mut lines, &*receipt)?;
        lines.push(b'\n');
    }
    Ok(lines)
}

/// Fills the pages of the second miner that still grow.
fn flood(subnet: &RunningSubnet) -> Result<()> {
    let wallets = subnet.folder().join("wallets");
    let miner = load_hotkey(&WalletPath::new(wallets, "miner-2", "default"))?;
    let now = SystemClock::new().now();
    let lines = made_up_lines(&miner, now)?;
    for back in 0..PAGES {
        let page = format!("data/receipts-2/{}.jsonl", page_of(now) - back);
        let path = subnet.folder().join(page);
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path)?;
        for _ in 0..REPEATED {
            file.write_all(&lines)?;
        }
    }
    Ok(())
}

/// The peak of the validator's memory in KiB.
fn peak_memory(subnet: &RunningSubnet) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", subnet.pid("validator")?))?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let peak = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(peak.context("no VmHWM")?.parse()?)
}

/// The number of the newest cycle in which the honest miner was paid for work and whose weights are set; 0 without one.
fn newest_paid(state: &Value, honest: &str) -> u64 {
    let cycles = state["cycles"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_paid = |cycle: &&Value| {
        let scores = cycle["scores"].as_array().map(Vec::as_slice).unwrap_or_default();
        let worked = |score: &Value| score["miner"] == honest && score["micros"].as_u64() > Some(0);
        cycle["state"] == "set" && scores.iter().any(worked)
    };
    let numbers = cycles
        .iter()
        .filter(is_paid)
        .filter_map(|cycle| cycle["number"].as_u64());
    numbers.max().unwrap_or(0)
}

fn refused(state: &Value, reason: &str) -> u64 {
    let views = state["refused"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of_reason = views.iter().filter(|view| view["reason"] == reason);
    of_reason.filter_map(|view| view["refused"].as_u64()).sum()
}

#[test]
fn a_hostile_miners_pages_stop_no_weights_and_cost_no_memory() {
    let subnet = RunningSubnet::start_with(&[
        "--miners",
        "2",
        "--executors",
        "1",
        "--tempo",
        "10",
        "--block-ms",
        "500",
    ])
    .unwrap();
    // A job goes to either miner; as many run as it takes until the honest one has done some.
    let honest = subnet.field("miner").unwrap().to_owned();
    let paid_after = |cycle: u64| {
        wait_for("weights for the honest miner's work", || {
            let ran = subnet.run_words()?;
            anyhow::ensure!(ran.code == Some(0), "{ran:?}");
            let state = subnet.validator_state()?;
            let newest = newest_paid(&state, &honest);
            anyhow::Ok((newest > cycle).then_some(newest))
        })
        .unwrap()
    };
    let before_flood = paid_after(0);
    let before = peak_memory(&subnet).unwrap();

    flood(&subnet).unwrap();
    let state = wait_for("the flood to be read", || {
        let state = subnet.validator_state()?;
        let lines = usize::try_from(PAGES)? * REPEATED * usize::try_from(RECEIPTS)?;
        let is_read = refused(&state, "no_permit") >= u64::try_from(lines)?;
        anyhow::Ok(is_read.then_some(state))
    })
    .unwrap();
    let number = state["cycles"][0]["number"].as_u64().unwrap_or(before_flood);
    paid_after(number);
    let after = peak_memory(&subnet).unwrap();
    assert!(
        after * 10 <= before * 12,
        "the peak of memory was {before} KiB, and is {after} KiB beside the hostile miner"
    );
}

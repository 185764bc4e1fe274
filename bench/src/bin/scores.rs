//! Scoring a cycle of a million receipts, and its snapshot as canonical text.
//!
//! `MUSTER_BENCH_RECEIPTS` (default 1000000) is how many receipts there are.

use anyhow::ensure;
use muster_bench::{Direction, Report, Row, take_turns, timed};
use muster_protocol::receipt::{FinishedReceipt, FinishedTag};
use muster_protocol::{AttemptId, ExecutorClass, Hotkey, MinerKey, Timestamp, Uid, ValidatorKey, canonical};
use muster_scoring::{
    AllowanceInputs, CAPACITY_PER_MILLE, CapacityInputs, CapacityRow, CapacityStatement, EpochFacts, Neuron,
    ObservationKind, PaidReceipt, ProvenExecutors, SNAPSHOT_FORMAT, ScoredSpan, ScoringRules,
    ScoringSnapshot, score_cycle,
};
use uuid::Uuid;

const ROUNDS: usize = 5;
const RECEIPTS: u64 = 1_000_000;
const MINERS: u64 = 256;
const VALIDATORS: u64 = 16;
const EXECUTORS: u32 = 256;
const CLASS: ExecutorClass = ExecutorClass::AlwaysOnGpu24Gb;
/// The end of the cycle, in seconds since 1970.
const NOW: i64 = 1_769_000_000;
const EPOCH_MS: u64 = 4_320_000;

fn main() -> anyhow::Result<()> {
    let receipts = std::env::var("MUSTER_BENCH_RECEIPTS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(RECEIPTS);
    let mut snapshot = snapshot(receipts);
    let unnamed = score(&snapshot)?;
    name_blocks(&mut snapshot);
    let named = score(&snapshot)?;
    let text = take_turns(
        3,
        || seconds(|| canonical::sorted_compact_of(&snapshot).map_or(0, |text| text.len())),
        || {
            seconds(|| {
                serde_json::to_value(&snapshot).map_or(0, |tree| canonical::sorted_compact(&tree).len())
            })
        },
    )?;
    let seconds = |what: &str, samples| Row::alone(what, "s", Direction::LowerIsBetter, samples).target(2.0);
    Report {
        rows: vec![
            seconds("scoring a cycle, no blocks named", unnamed),
            seconds("scoring a cycle, each receipt names a block", named),
            Row::against(
                "the snapshot's canonical text",
                "s",
                Direction::LowerIsBetter,
                "through a tree of JSON values",
                text,
            ),
        ],
        notes: vec![format!(
            "{} receipts of {VALIDATORS} validators about {MINERS} miners with {EXECUTORS} executors each; one thread",
            snapshot.receipts.len()
        )],
    }
    .print()
}

/// Seconds of each round. The first one warms up.
fn score(snapshot: &ScoringSnapshot) -> anyhow::Result<Vec<f64>> {
    let mut samples = Vec::new();
    for round in 0..=ROUNDS {
        let ((scores, weights), spent) = timed(|| score_cycle(snapshot));
        ensure!(
            scores.dropped.is_empty(),
            "a receipt does not count: {:?}",
            scores.dropped.first()
        );
        ensure!(weights.len() as u64 == MINERS, "{} weights", weights.len());
        if round > 0 {
            samples.push(spent.as_secs_f64());
        }
    }
    Ok(samples)
}

fn seconds(work: impl FnOnce() -> usize) -> anyhow::Result<f64> {
    let (length, spent) = timed(work);
    ensure!(length > 0, "a snapshot has no text");
    Ok(spent.as_secs_f64())
}

fn key(number: u64, salt: u8) -> Hotkey {
    let mut bytes = [salt; 32];
    let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    for (byte, of_number) in bytes.iter_mut().zip(scattered) {
        *byte = of_number;
    }
    Hotkey::from_bytes(bytes)
}

fn miner(number: u64) -> MinerKey {
    MinerKey(key(number, 1))
}

fn validator(number: u64) -> ValidatorKey {
    ValidatorKey(key(number, 3))
}

fn receipt(number: u64) -> PaidReceipt {
    // Begins are scattered over the cycle.
    let since = i64::try_from(number.wrapping_mul(2_654_435_761) % 4_000_000_000).unwrap_or(0);
    PaidReceipt {
        receipt: FinishedReceipt {
            job_uuid: AttemptId::from_uuid(Uuid::from_u64_pair(
                number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                number,
            )),
            miner_hotkey: miner(number / VALIDATORS % MINERS),
            validator_hotkey: validator(number % VALIDATORS),
            timestamp: Timestamp::from_secs(NOW),
            receipt_type: FinishedTag,
            time_started: Timestamp::from_micros(NOW * 1_000_000 - 4_320_000_000 + since),
            time_took_us: 15_000_000,
            score_str: "12.500000".to_owned(),
            block_numbers: Vec::new(),
        },
        class: Some(CLASS),
    }
}

fn snapshot(receipts: u64) -> ScoringSnapshot {
    let row = |number| CapacityRow {
        miner: miner(number),
        class: CLASS,
        kind: ObservationKind::Announced,
        executors: EXECUTORS,
        credit: u64::from(EXECUTORS) * 1_000,
        offers: 0,
        refused: 0,
    };
    let statement = |number| CapacityStatement {
        validator: validator(number),
        cycle: 7,
        rows: (0..MINERS).map(row).collect(),
    };
    let neuron = |number| Neuron {
        uid: Uid(u16::try_from(number).unwrap_or(u16::MAX)),
        hotkey: miner(number).0,
        coldkey: key(number, 2),
        registered: 1,
    };
    ScoringSnapshot {
        format: SNAPSHOT_FORMAT.to_owned(),
        genesis: "0x00".to_owned(),
        netuid: 1,
        span: ScoredSpan {
            cycle: 7,
            first_block: 7_560,
            last_block: 7_919,
            duration_ms: EPOCH_MS,
            earliest: None,
        },
        me: validator(0),
        neurons: (0..MINERS).map(neuron).collect(),
        validators: (0..VALIDATORS).map(validator).collect(),
        rules: ScoringRules {
            class_weights: [(CLASS, 1)].into(),
            capacity_per_mille: CAPACITY_PER_MILLE,
            burn_per_second: 0,
            burn_hotkey: None,
            bonus_per_mille: 0,
            min_entries: 0,
        },
        receipts: (0..receipts).map(receipt).collect(),
        capacity: Some(CapacityInputs {
            classes: [CLASS].into(),
            kinds: [ObservationKind::Announced].into(),
            stakes: (0..VALIDATORS).map(|number| (validator(number), 100)).collect(),
            statements: (0..VALIDATORS).map(statement).collect(),
        }),
        allowance: None,
        history: Vec::new(),
        convictions: Vec::new(),
        quality: Vec::new(),
        main_hotkeys: Vec::new(),
        deferred: Vec::new(),
        burned: std::collections::BTreeMap::new(),
        standing: Vec::new(),
        owner: None,
    }
}

/// Every receipt names one block of the epoch before, as far as there are any for its validator and miner.
fn name_blocks(snapshot: &mut ScoringSnapshot) {
    for (number, paid) in (0_u64..).zip(&mut snapshot.receipts) {
        let block = 7_200 + number / (VALIDATORS * MINERS) % 360;
        paid.receipt.block_numbers = vec![block];
    }
    let begin = u64::try_from(NOW).unwrap_or(0) * 1_000 - 3 * EPOCH_MS;
    let proven = |number| ProvenExecutors {
        miner: miner(number),
        class: CLASS,
        executors: EXECUTORS,
    };
    let epoch = |number: u64| EpochFacts {
        first_block: 6_840 + number * 360,
        first_ms: begin + number * EPOCH_MS,
        block_ms: 12_000,
        permitted: (0..VALIDATORS).map(|number| (validator(number), 100)).collect(),
        proven: (0..MINERS).map(proven).collect(),
    };
    snapshot.allowance = Some(AllowanceInputs {
        epochs: (0..3).map(epoch).collect(),
        spent: Vec::new(),
    });
}

//! Snapshots for tests: a small subnet, its receipts, its capacity, and what is read from its scores.

use std::collections::BTreeMap;

use muster_protocol::receipt::{FinishedReceipt, FinishedTag};
use muster_protocol::{AttemptId, ExecutorClass, Hotkey, MinerKey, Timestamp, Uid, ValidatorKey};
use muster_scoring::{
    AllowanceInputs, CAPACITY_PER_MILLE, CapacityInputs, CapacityRow, CapacityStatement, DropReason,
    EpochFacts, Neuron, ObservationKind, PaidReceipt, SNAPSHOT_FORMAT, ScoredSpan, Scores, ScoringRules,
    ScoringSnapshot, score_cycle,
};
use uuid::Uuid;

pub(crate) const TEST: ExecutorClass = ExecutorClass::AlwaysOnTest;
pub(crate) const CPU: ExecutorClass = ExecutorClass::AlwaysOnCpu8c16Gb;
pub(crate) const SPIN_UP: ExecutorClass = ExecutorClass::SpinUpGpu24Gb;
/// The time of every receipt, in seconds since 1970.
pub(crate) const NOW: i64 = 1_769_000_000;
pub(crate) const HOUR_US: u64 = 3_600_000_000;

pub(crate) fn hotkey(seed: u8) -> Hotkey {
    Hotkey::from_bytes([seed; 32])
}

pub(crate) fn miner(seed: u8) -> MinerKey {
    MinerKey(hotkey(seed))
}

pub(crate) fn validator(seed: u8) -> ValidatorKey {
    ValidatorKey(hotkey(seed))
}

/// A receipt of the scorer about an hour that a miner worked.
pub(crate) fn paid(attempt: u128, of: u8, amount: &str) -> PaidReceipt {
    PaidReceipt {
        receipt: FinishedReceipt {
            job_uuid: AttemptId::from_uuid(Uuid::from_u128(attempt)),
            miner_hotkey: miner(of),
            validator_hotkey: validator(0),
            timestamp: Timestamp::from_secs(NOW),
            receipt_type: FinishedTag,
            time_started: Timestamp::from_secs(NOW - 3_600),
            time_took_us: HOUR_US,
            score_str: amount.to_owned(),
            block_numbers: vec![],
        },
        class: Some(TEST),
    }
}

/// A subnet of these miners, each with its coldkey; the scorer is 0, and 50 is another validator.
pub(crate) fn snapshot(coldkeys: &[(u8, u8)], receipts: Vec<PaidReceipt>) -> ScoringSnapshot {
    let neuron = |(seed, cold): (u8, u8)| Neuron {
        uid: Uid(seed.into()),
        hotkey: hotkey(seed),
        coldkey: hotkey(cold),
        registered: u64::from(seed) + 1,
    };
    ScoringSnapshot {
        format: SNAPSHOT_FORMAT.to_owned(),
        genesis: "0x00".to_owned(),
        netuid: 1,
        span: ScoredSpan {
            cycle: 7,
            first_block: 100,
            last_block: 460,
            duration_ms: 4_320_000,
            earliest: Some(Timestamp::from_secs(NOW - 8_640)),
        },
        me: validator(0),
        neurons: [(0, 100)].iter().chain(coldkeys).copied().map(neuron).collect(),
        validators: [validator(50)].into(),
        rules: ScoringRules {
            class_weights: [(TEST, 1), (CPU, 3), (SPIN_UP, 1)].into(),
            capacity_per_mille: CAPACITY_PER_MILLE,
            burn_per_second: 0,
            burn_hotkey: None,
            bonus_per_mille: 0,
            min_entries: 0,
        },
        receipts,
        capacity: None,
        allowance: None,
        history: vec![],
        convictions: vec![],
        quality: vec![],
        main_hotkeys: vec![],
        deferred: vec![],
        burned: BTreeMap::new(),
        standing: vec![],
        owner: None,
    }
}

/// The scorer's own rows: these executors of each miner, in one class.
pub(crate) fn capacity(class: ExecutorClass, rows: &[(u8, u32)]) -> CapacityInputs {
    let row = |(of, executors): &(u8, u32)| CapacityRow {
        miner: miner(*of),
        class,
        kind: ObservationKind::Announced,
        executors: *executors,
        credit: u64::from(*executors) * 1_000,
        offers: 0,
        refused: 0,
    };
    CapacityInputs {
        classes: [TEST, class].into(),
        kinds: [ObservationKind::Announced].into(),
        stakes: BTreeMap::new(),
        statements: vec![CapacityStatement {
            validator: validator(0),
            cycle: 7,
            rows: rows.iter().map(row).collect(),
        }],
    }
}

pub(crate) fn scores(snapshot: &ScoringSnapshot) -> Scores {
    score_cycle(snapshot).0
}

/// Uid and points of this cycle.
pub(crate) fn points(snapshot: &ScoringSnapshot) -> Vec<(u16, u64)> {
    scores(snapshot)
        .scores
        .iter()
        .map(|s| (s.uid.0, s.points))
        .collect()
}

pub(crate) fn reasons(snapshot: &ScoringSnapshot) -> Vec<DropReason> {
    scores(snapshot)
        .dropped
        .iter()
        .map(|(_, reason)| *reason)
        .collect()
}

pub(crate) fn micros(snapshot: &ScoringSnapshot) -> Vec<(u16, u64)> {
    scores(snapshot)
        .scores
        .iter()
        .map(|s| (s.uid.0, s.micros))
        .collect()
}

/// Epochs of 360 blocks in which validator 50 has a tenth of the stake and the scorer the rest.
pub(crate) fn allowance() -> AllowanceInputs {
    let epoch = |number: u64| EpochFacts {
        first_block: number * 360,
        first_ms: u64::try_from(NOW).unwrap() * 1_000 - 3_600_000 + number * 360 * 12_000 - 4_320_000,
        block_ms: 12_000,
        permitted: [(validator(0), 900), (validator(50), 100)].into(),
        proven: vec![],
    };
    AllowanceInputs {
        epochs: (0..3).map(epoch).collect(),
        spent: vec![],
    }
}

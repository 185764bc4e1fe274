//! A program of another language, written from the documented format alone, computes the same weights from snapshots.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

use std::collections::BTreeMap;
use std::process::Command;

use muster_protocol::receipt::{FinishedReceipt, FinishedTag};
use muster_protocol::{AttemptId, ExecutorClass, Hotkey, MinerKey, Timestamp, Uid, ValidatorKey, canonical};
use muster_scoring::{
    AllowanceInputs, CapacityInputs, CapacityRow, CapacityStatement, Conviction, DeferredWork, EpochFacts,
    MainHotkey, Neuron, ObservationKind, OnchainWeight, POINTS, PaidReceipt, PastCycle, PastPoints,
    ProvenExecutors, QualityFactor, SNAPSHOT_FORMAT, ScoredSpan, ScoringRules, ScoringSnapshot, SpentBlocks,
    score_cycle,
};
use serde::Deserialize;
use uuid::Uuid;

const PROGRAM: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../../tests/python/recompute_weights.py"
);
/// The end of every cycle, in seconds since 1970.
const NOW: i64 = 1_769_000_000;

/// Numbers of a linear congruential generator, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn byte(&mut self, bound: u8) -> u8 {
        u8::try_from(self.below(bound.into())).unwrap()
    }

    fn often(&mut self) -> bool {
        self.below(4) > 0
    }

    fn class(&mut self) -> ExecutorClass {
        let place = usize::try_from(self.below(5)).unwrap();
        ExecutorClass::ALL[place]
    }

    fn number(&mut self, bound: u32) -> u32 {
        u32::try_from(self.below(bound.into())).unwrap()
    }
}

fn hotkey(seed: u8) -> Hotkey {
    Hotkey::from_bytes([seed.wrapping_mul(37); 32])
}

fn miner(seed: u8) -> MinerKey {
    MinerKey(hotkey(seed))
}

fn validator(seed: u8) -> ValidatorKey {
    ValidatorKey(hotkey(seed))
}

/// Neurons 0 to 11: validators are 0 to 2. Some share a coldkey.
fn neuron(seed: u8) -> Neuron {
    Neuron {
        uid: Uid(seed.into()),
        hotkey: hotkey(seed),
        coldkey: hotkey(100 + seed - seed % 2),
        registered: u64::from(seed) % 5,
    }
}

fn receipt(numbers: &mut Numbers, attempt: u64) -> PaidReceipt {
    let took = numbers.below(7_000);
    let began = NOW - i64::try_from(took + numbers.below(4_000)).unwrap();
    let first = 7_200 + numbers.below(900);
    PaidReceipt {
        receipt: FinishedReceipt {
            job_uuid: AttemptId::from_uuid(Uuid::from_u64_pair(
                attempt.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                attempt,
            )),
            miner_hotkey: miner(3 + numbers.byte(10)),
            validator_hotkey: validator(numbers.byte(4)),
            timestamp: Timestamp::from_secs(NOW - i64::try_from(numbers.below(20)).unwrap()),
            receipt_type: FinishedTag,
            time_started: Timestamp::from_micros(
                began * 1_000_000 + i64::try_from(numbers.below(3)).unwrap(),
            ),
            time_took_us: took * 1_000_000 + numbers.below(1_000_000),
            score_str: ["x", "0.000000", "3600", "9.5", "7000.1234567"]
                [usize::try_from(numbers.below(5)).unwrap()]
            .to_owned(),
            block_numbers: (first..first + numbers.below(60)).collect(),
        },
        class: numbers.often().then(|| numbers.class()),
    }
}

fn capacity(numbers: &mut Numbers) -> CapacityInputs {
    let mut row = || CapacityRow {
        miner: miner(3 + numbers.byte(10)),
        class: numbers.class(),
        kind: if numbers.often() {
            ObservationKind::Announced
        } else {
            ObservationKind::Unannounced
        },
        executors: numbers.number(6),
        credit: numbers.below(6_000),
        offers: numbers.number(40),
        refused: numbers.number(30),
    };
    let statement = |seed, rows: Vec<CapacityRow>| CapacityStatement {
        validator: validator(seed),
        cycle: 7,
        rows,
    };
    let rows: Vec<Vec<_>> = (0..3).map(|_| (0..30).map(|_| row()).collect()).collect();
    let mut statements: Vec<_> = rows
        .into_iter()
        .zip(0_u8..)
        .map(|(rows, seed)| statement(seed, rows))
        .collect();
    if !numbers.often() {
        // A contradiction.
        statements.push(statement(1, vec![]));
    }
    let kinds = match numbers.often() {
        true => [ObservationKind::Announced].into(),
        false => [ObservationKind::Announced, ObservationKind::Unannounced].into(),
    };
    CapacityInputs {
        classes: ExecutorClass::ALL
            .into_iter()
            .filter(|_| numbers.often())
            .collect(),
        kinds,
        stakes: (0..4).map(|seed| (validator(seed), numbers.below(100))).collect(),
        statements,
    }
}

fn allowance(numbers: &mut Numbers) -> AllowanceInputs {
    let mut epoch = |number: u64| EpochFacts {
        first_block: 7_200 + number * 360,
        first_ms: u64::try_from(NOW).unwrap() * 1_000 - 9_000_000 + number * 4_320_000,
        block_ms: 12_000,
        permitted: (0..4)
            .filter(|_| numbers.often())
            .map(|seed| (validator(seed), seed.into()))
            .collect(),
        proven: vec![ProvenExecutors {
            miner: miner(4),
            class: ExecutorClass::AlwaysOnTest,
            executors: 9,
        }],
    };
    let epochs = (0..3).map(&mut epoch).collect();
    let spent = SpentBlocks {
        validator: validator(1),
        miner: miner(4),
        class: ExecutorClass::AlwaysOnTest,
        first: 7_600,
        last: 7_700,
    };
    AllowanceInputs {
        epochs,
        spent: vec![spent],
    }
}

fn snapshot(seed: u64) -> ScoringSnapshot {
    let numbers = &mut Numbers(seed);
    let mut receipts: Vec<_> = (0..numbers.below(60))
        .map(|attempt| receipt(numbers, attempt))
        .collect();
    if let Some(first) = receipts.first().cloned() {
        let mut other = first.clone();
        other.receipt.time_took_us += numbers.below(2);
        receipts.push(other);
    }
    let past = |cycle, numbers: &mut Numbers| PastCycle {
        cycle,
        rows: (3..12)
            .map(|seed| PastPoints {
                neuron: neuron(seed),
                points: numbers.below(POINTS),
            })
            .collect(),
    };
    let history = (0..numbers.below(25)).map(|cycle| past(cycle, numbers)).collect();
    let some = numbers.often();
    ScoringSnapshot {
        format: SNAPSHOT_FORMAT.to_owned(),
        genesis: "0x00".to_owned(),
        netuid: 1,
        span: ScoredSpan {
            cycle: 7,
            first_block: 7_560,
            last_block: 8_000,
            duration_ms: 4_320_000,
            earliest: numbers
                .often()
                .then(|| Timestamp::from_micros(NOW * 1_000_000 - 15_000_000)),
        },
        me: validator(0),
        neurons: (0..12).map(neuron).collect(),
        validators: [validator(1), validator(2)].into(),
        rules: ScoringRules {
            class_weights: ExecutorClass::ALL
                .into_iter()
                .map(|class| (class, numbers.number(90)))
                .collect(),
            capacity_per_mille: if numbers.often() { 800 } else { 300 },
            burn_per_second: if numbers.often() { 0 } else { 3 },
            burn_hotkey: numbers.often().then(|| hotkey(11)),
            bonus_per_mille: if numbers.often() { 0 } else { 100 },
            min_entries: 4,
        },
        receipts,
        capacity: numbers.often().then(|| capacity(numbers)),
        allowance: (!numbers.often()).then(|| allowance(numbers)),
        history,
        convictions: (!some)
            .then(|| Conviction {
                coldkey: hotkey(104),
                hotkey: hotkey(9),
            })
            .into_iter()
            .collect(),
        quality: vec![QualityFactor {
            miner: miner(5),
            per_mille: 700,
        }],
        main_hotkeys: some
            .then(|| MainHotkey {
                coldkey: hotkey(106),
                main: hotkey(7),
                before: Some(hotkey(6)),
            })
            .into_iter()
            .collect(),
        deferred: vec![DeferredWork {
            miner: miner(3),
            class: ExecutorClass::AlwaysOnTest,
            ms: numbers.below(90_000_000),
        }],
        burned: BTreeMap::from([(validator(0), numbers.below(90_000))]),
        standing: standing(numbers),
        owner: numbers.often().then(|| hotkey(numbers.byte(14))),
    }
}

/// Weights that stand. Some of their neurons have other keys now, or another registration.
fn standing(numbers: &mut Numbers) -> Vec<OnchainWeight> {
    let rows = (3..14).filter(|_| numbers.often()).collect::<Vec<u8>>();
    rows.into_iter()
        .map(|seed| {
            let mut neuron = neuron(seed);
            if !numbers.often() {
                neuron.hotkey = hotkey(50 + seed);
            }
            if !numbers.often() {
                neuron.registered += 1;
            }
            let weight = u16::try_from(1 + numbers.below(65_535)).unwrap();
            OnchainWeight { neuron, weight }
        })
        .collect()
}

/// The same subnet in a cycle in which nobody earns anything.
fn quiet(mut snapshot: ScoringSnapshot, numbers: &mut Numbers) -> ScoringSnapshot {
    snapshot.receipts.clear();
    snapshot.deferred.clear();
    snapshot.capacity = None;
    // A burn hotkey that is registered earns something in such a cycle.
    snapshot.rules.burn_hotkey = numbers.often().then(|| hotkey(99));
    if numbers.often() {
        snapshot.history.clear();
    }
    snapshot
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Recomputed {
    snapshot: String,
    weights: Vec<(Uid, u16)>,
}

#[test]
fn a_program_of_another_language_computes_the_same_weights() {
    let folder = std::env::temp_dir().join(format!("muster-snapshots-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (mut files, mut expected) = (Vec::new(), Vec::new());
    for seed in 0..200 {
        let mut snapshot = snapshot(seed);
        if seed % 2 == 1 {
            snapshot = quiet(snapshot, &mut Numbers(seed));
        }
        let text = snapshot.to_text();
        // The text is that of the JSON tree, whose bytes are those of Python's `json.dumps`.
        let tree = serde_json::to_value(&snapshot).unwrap();
        assert_eq!(text, canonical::sorted_compact(&tree), "snapshot {seed}");
        assert_eq!(ScoringSnapshot::parse(&text).unwrap(), snapshot);
        let file = folder.join(format!("{seed}.json"));
        std::fs::write(&file, &text).unwrap();
        files.push(file);
        expected.push(Recomputed {
            snapshot: ScoringSnapshot::digest_of(&text).to_string(),
            weights: score_cycle(&snapshot).1,
        });
    }
    let output = Command::new("python3")
        .arg(PROGRAM)
        .args(&files)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let lines = String::from_utf8(output.stdout).unwrap();
    let recomputed: Vec<Recomputed> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for (seed, (theirs, ours)) in recomputed.iter().zip(&expected).enumerate() {
        assert_eq!(theirs, ours, "snapshot {seed}");
    }
    assert_eq!(recomputed.len(), expected.len());
    for (parity, what) in ["paid", "quiet"].iter().enumerate() {
        let weights = expected.iter().skip(parity).step_by(2).map(|one| &one.weights);
        let distinct: std::collections::BTreeSet<_> = weights.collect();
        assert!(
            distinct.len() > 50,
            "{what} cycles say something: {}",
            distinct.len()
        );
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

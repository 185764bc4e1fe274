//! The commands about scores and spot checks, without a network: their arguments, and what they answer as text.
//!
//! [`explain_miner`] names the terms of a miner's weight, [`audit`] computes the weights of a snapshot again, and
//! [`run_simulation`] lets strategies play. [`replay_bundle`] and [`run_curve`] do the sums of spot checks.
//! [`MinerEvidence`] has the commands of a miner's operator.
//! [`list_cycles`], [`find_cycle`] and [`check_snapshot`] read a validator's answers.

mod audit_answers;
mod miner_audits;
mod score_arguments;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{Cell, CellAlignment, Table};
use muster_audit::{CalibrationError, ReplayError};
use muster_identity::wallet::WalletError;
use muster_protocol::{MinerKey, canonical};
use muster_scoring::{ScoringSnapshot, SnapshotError, explain, score_cycle};
use muster_simulation::{
    Settings, StrategyOutcome, ValidatorOutcome, draw, known_strategies, simulate, simulate_validators,
};
use muster_store::StoreError;
use serde::Deserialize;
use serde_json::{Value, json};

pub use audit_answers::{replay_bundle, run_curve};
pub use miner_audits::{MinerAppeal, MinerAudits, MinerEvidence};
pub use score_arguments::{AuditCurve, AuditReplay, AuditScore, Score, ScoreExplain, ScoreList, Simulate};

/// A command about scores that failed.
#[derive(Debug, thiserror::Error)]
pub enum ScoreToolError {
    /// A file cannot be read or written.
    #[error("cannot use {file}")]
    File {
        /// The path of the file.
        file: PathBuf,
        /// The fault as the system states it.
        source: std::io::Error,
    },
    /// A text is no snapshot of this version.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// A text is no bundle of evidence, or something in it does not follow from what was signed.
    #[error("the bundle proves nothing")]
    Bundle(#[from] ReplayError),
    /// A text is no calibration of spot checks.
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
    /// A file holds no list of strategies.
    #[error("the file is no list of strategies")]
    Strategies(#[source] serde_json::Error),
    /// The miner has no uid in the cycle.
    #[error("{miner} was not registered in the subnet when cycle {cycle} was scored")]
    NotRegistered {
        /// The hotkey that was asked for.
        miner: MinerKey,
        /// The number of the cycle.
        cycle: u64,
    },
    /// The validator has no such cycle.
    #[error("the validator has no such scored cycle")]
    NoCycle,
    /// The cycle has no snapshot.
    #[error("the cycle was scored by a release that stored no snapshots")]
    NoSnapshot,
    /// The miner keeps no such bundle.
    #[error("this miner keeps no bundle with that digest: `muster miner audits` lists what it knows")]
    NoBundle,
    /// There is no appeal; the reason as text.
    #[error("{0}")]
    Appeal(String),
    /// The miner's wallet cannot be used.
    #[error("cannot use the miner's wallet")]
    Wallet(#[from] WalletError),
    /// The miner's store fails.
    #[error("the miner's store does not answer")]
    Store(#[from] StoreError),
    /// A text has another digest than the one that was asked for.
    #[error("the file has the digest {found}, not {expected}")]
    OtherDigest {
        /// The digest of the bytes.
        found: String,
        /// The digest that was asked for.
        expected: String,
    },
}

type Result<T> = std::result::Result<T, ScoreToolError>;

/// The text of a file.
///
/// # Errors
/// The file cannot be read.
pub fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).map_err(|source| in_file(file, source))
}

/// Writes a text to a file.
///
/// # Errors
/// The file cannot be written.
pub fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).map_err(|source| in_file(file, source))
}

fn in_file(file: &Path, source: std::io::Error) -> ScoreToolError {
    ScoreToolError::File {
        file: file.to_owned(),
        source,
    }
}

/// A scored cycle, as a validator lists it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ListedCycle {
    /// The number of the cycle.
    pub number: u64,
    /// The first block whose work is scored.
    #[serde(default)]
    pub first_block: u64,
    /// The last block whose work is scored.
    #[serde(default)]
    pub last_block: u64,
    /// The fate of its weights: `pending`, `committed`, `set`, `kept`, `expired` or `missed`.
    #[serde(default)]
    pub state: String,
    /// The weights: uid and weight.
    #[serde(default)]
    pub weights: Vec<(u16, u16)>,
    /// The chain's error at the last try to send the weights.
    #[serde(default)]
    pub error: Option<String>,
    /// The digest of the snapshot by which it was scored.
    pub snapshot: Option<String>,
    /// The block at which the state changed last.
    #[serde(default)]
    pub at_block: u64,
}

impl ListedCycle {
    /// The fate of the weights as a sentence for people.
    pub fn fate(&self) -> String {
        let block = self.at_block;
        match self.state.as_str() {
            "pending" => "to be sent".to_owned(),
            "committed" => format!("committed at block {block}, revealed in a later epoch"),
            "set" => format!("on the chain since block {block}"),
            "kept" => "nobody earned anything, so the chain keeps the weights that it has".to_owned(),
            "expired" => "the commit was lost, and the work is scored again".to_owned(),
            "missed" => "never reached the chain".to_owned(),
            other => other.to_owned(),
        }
    }
}

/// The scored cycles in a validator's answer to `GET /v0/state`, the newest first.
///
/// # Errors
/// The answer lists none.
pub fn list_cycles(state: &Value) -> Result<Vec<ListedCycle>> {
    let cycles = state.get("cycles").ok_or(ScoreToolError::NoCycle)?;
    Vec::deserialize(cycles).map_err(|_| ScoreToolError::NoCycle)
}

/// The cycle of this number. Without a number it is the newest whose weights are on the chain, or the newest of all if
/// none are.
///
/// # Errors
/// There is no such cycle.
pub fn find_cycle(cycles: &[ListedCycle], number: Option<u64>) -> Result<&ListedCycle> {
    let found = match number {
        Some(number) => cycles.iter().find(|cycle| cycle.number == number),
        None => cycles
            .iter()
            .find(|cycle| cycle.state == "set")
            .or_else(|| cycles.first()),
    };
    found.ok_or(ScoreToolError::NoCycle)
}

/// The scored cycles as a table for people.
pub fn cycle_rows(cycles: &[ListedCycle]) -> impl Iterator<Item = Vec<String>> {
    cycles.iter().map(|cycle| {
        let weights = cycle.weights.iter().filter(|(_, weight)| *weight > 0);
        let weights = match cycle.state.as_str() {
            // It sets none; the chain has those of an earlier cycle.
            "kept" => "kept".to_owned(),
            _ => weights.count().to_string(),
        };
        vec![
            cycle.number.to_string(),
            format!("{} to {}", cycle.first_block, cycle.last_block),
            weights,
            cycle.error.clone().unwrap_or_else(|| cycle.fate()),
        ]
    })
}

/// The canonical text of a snapshot that a validator answered.
///
/// # Errors
/// It is another one than the one with this digest.
pub fn check_snapshot(body: &Value, digest: &str) -> Result<String> {
    let text = canonical::sorted_compact(body);
    check_digest(&text, Some(digest))?;
    Ok(text)
}

fn check_digest(text: &str, expected: Option<&str>) -> Result<String> {
    let found = ScoringSnapshot::digest_of(text).to_string();
    match expected.filter(|expected| *expected != found) {
        Some(expected) => Err(ScoreToolError::OtherDigest {
            found,
            expected: expected.to_owned(),
        }),
        None => Ok(found),
    }
}

/// The terms of a miner's weight, from the text of a snapshot.
///
/// # Errors
/// The text is no snapshot, or the miner is not registered in it.
pub fn explain_miner(text: &str, miner: MinerKey, as_json: bool) -> Result<String> {
    let snapshot = ScoringSnapshot::parse(text)?;
    let cycle = snapshot.span.cycle;
    let explained = explain(&snapshot, miner).ok_or(ScoreToolError::NotRegistered { miner, cycle })?;
    Ok(match as_json {
        true => format!("{:#}\n", json!(explained)),
        false => explained.to_string(),
    })
}

/// The weights of a snapshot, computed again.
///
/// # Errors
/// The text is no snapshot, or not the one with the digest that is asked for.
pub fn audit(text: &str, digest: Option<&str>, as_json: bool) -> Result<String> {
    let digest = check_digest(text, digest)?;
    let snapshot = ScoringSnapshot::parse(text)?;
    let cycle = snapshot.span.cycle;
    let (scores, weights) = score_cycle(&snapshot);
    if as_json {
        let body = json!({ "snapshot": digest, "cycle": cycle, "weights": weights, "scores": scores });
        return Ok(format!("{body:#}\n"));
    }
    let mut answer = format!("snapshot {digest}, cycle {cycle}\n");
    // Writing to a String does not fail.
    for (uid, weight) in weights.iter().filter(|(_, weight)| *weight > 0) {
        let _ = writeln!(answer, "uid {uid}: {weight}");
    }
    for zero in &scores.zeros {
        let _ = writeln!(answer, "uid {}: 0, because {}", zero.uid, zero.why);
    }
    Ok(answer)
}

/// Simulates strategies and validators; returns the tables, and whether all of them stay within their bounds.
///
/// # Errors
/// A file cannot be read or written, or holds no strategies.
pub fn run_simulation(args: &Simulate) -> Result<(String, bool)> {
    let strategies = match &args.strategies {
        Some(file) => serde_json::from_str(&read(file)?).map_err(ScoreToolError::Strategies)?,
        None => known_strategies(),
    };
    let settings = Settings {
        epochs: args.epochs,
        miners: args.miners,
        executors: args.executors,
        organic: args.organic,
        job_secs: args.job_secs,
        worlds: args.worlds,
        validators: args.validators,
        seed: args.seed,
    };
    let outcomes = simulate(&settings, &strategies);
    let validators = match args.validators {
        0 => Vec::new(),
        _ => simulate_validators(&settings),
    };
    if let Some(file) = &args.svg {
        write(file, &draw(&outcomes))?;
    }
    let answer = if args.json {
        format!(
            "{:#}\n",
            json!({ "strategies": outcomes, "validators": validators })
        )
    } else if validators.is_empty() {
        format!("{}\n", table(&outcomes))
    } else {
        format!("{}\n\n{}\n", table(&outcomes), validator_table(&validators))
    };
    let hold = outcomes.iter().all(StrategyOutcome::holds);
    Ok((answer, hold && validators.iter().all(ValidatorOutcome::holds)))
}

fn table(outcomes: &[StrategyOutcome]) -> Table {
    let header = ["strategy", "money", "pay per money", "error", "bound", ""];
    let rows = outcomes.iter().map(|outcome| {
        [
            outcome.strategy.clone(),
            decimal(outcome.money),
            decimal(outcome.pay),
            decimal(outcome.error),
            decimal(outcome.bound),
            verdict(outcome.holds()),
        ]
    });
    lay_out(header, rows)
}

fn validator_table(outcomes: &[ValidatorOutcome]) -> Table {
    let header = [
        "validators",
        "vtrust",
        "L1 of weights",
        "bound",
        "a copier's pay",
        "bound",
        "",
    ];
    let rows = outcomes.iter().map(|outcome| {
        [
            outcome.scenario.clone(),
            decimal(outcome.trust),
            decimal(outcome.distance.div_ceil(1_000)),
            decimal(outcome.distance_bound.div_ceil(1_000)),
            decimal(outcome.copier),
            decimal(outcome.copier_bound),
            verdict(outcome.holds()),
        ]
    });
    lay_out(header, rows)
}

fn decimal(per_mille: u64) -> String {
    format!("{}.{:03}", per_mille / 1_000, per_mille % 1_000)
}

fn verdict(holds: bool) -> String {
    if holds { "holds" } else { "broken" }.to_owned()
}

/// A table whose numbers stand to the right: all columns but the first and the last.
fn lay_out<Header, Row>(header: Header, rows: impl Iterator<Item = Row>) -> Table
where
    Header: IntoIterator<Item: Into<Cell>>,
    Row: IntoIterator<Item: Into<Cell>>,
{
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY);
    table.set_header(header);
    for row in rows {
        table.add_row(row);
    }
    for column in 1..table.column_count().saturating_sub(1) {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_is_found_by_its_number_and_else_the_newest_whose_weights_are_on_the_chain() {
        let state = |state: [&str; 3]| {
            let cycle = |(number, state)| json!({ "number": number, "state": state, "snapshot": null });
            let cycles = [9, 8, 7].into_iter().zip(state).map(cycle);
            list_cycles(&json!({ "cycles": cycles.collect::<Vec<_>>() })).unwrap()
        };
        let found = |cycles: &[ListedCycle], number| find_cycle(cycles, number).map(|cycle| cycle.number);
        assert_eq!(found(&state(["pending", "set", "set"]), None).unwrap(), 8);
        assert_eq!(found(&state(["kept", "kept", "set"]), None).unwrap(), 7);
        assert_eq!(found(&state(["pending", "missed", "kept"]), None).unwrap(), 9);
        assert_eq!(found(&state(["pending", "set", "set"]), Some(9)).unwrap(), 9);
        assert!(matches!(
            found(&state(["set", "set", "set"]), Some(6)),
            Err(ScoreToolError::NoCycle)
        ));
        assert!(matches!(list_cycles(&json!({})), Err(ScoreToolError::NoCycle)));
    }

    #[test]
    fn a_list_of_cycles_says_what_became_of_each() {
        let cycles = list_cycles(&json!({ "cycles": [
            { "number": 9, "state": "kept", "snapshot": null, "first_block": 1, "last_block": 60, "weights": [] },
            { "number": 8, "state": "set", "snapshot": null, "at_block": 70, "weights": [[1, 65535], [2, 0]] },
            { "number": 7, "state": "pending", "snapshot": null, "error": "the chain does not answer" },
        ] }))
        .unwrap();
        let rows: Vec<_> = cycle_rows(&cycles).collect();
        assert_eq!(rows[0][1..3], ["1 to 60", "kept"]);
        assert!(rows[0][3].contains("the chain keeps the weights"), "{rows:?}");
        assert_eq!(rows[1][2..], ["1", "on the chain since block 70"]);
        assert_eq!(rows[2][3], "the chain does not answer");
    }

    #[test]
    fn a_snapshot_of_another_digest_is_refused() {
        let body = json!({ "b": 1, "a": [true] });
        let digest = ScoringSnapshot::digest_of("{\"a\":[true],\"b\":1}").to_string();
        assert_eq!(check_snapshot(&body, &digest).unwrap(), "{\"a\":[true],\"b\":1}");
        let error = check_snapshot(&body, "sha256:0").unwrap_err().to_string();
        assert!(error.contains(&digest), "{error}");
        assert!(matches!(
            audit("{}", None, false),
            Err(ScoreToolError::Snapshot(_))
        ));
        assert!(matches!(
            audit("{}", Some(&digest), false),
            Err(ScoreToolError::OtherDigest { .. })
        ));
    }

    #[test]
    fn the_outcomes_are_shown_as_a_table() {
        let outcome = StrategyOutcome {
            strategy: "washing".to_owned(),
            pay: 1_084,
            error: 1,
            bound: 1_080,
            money: 1_000,
        };
        let shown = table(&[outcome]).to_string();
        assert!(shown.contains("1.084") && shown.contains("broken"), "{shown}");
        let validators = ValidatorOutcome {
            scenario: "own probes".to_owned(),
            trust: 982,
            distance: 195_417,
            distance_bound: 425_438,
            agree: true,
            copier: 1_015,
            copier_bound: 1_016,
        };
        let shown = validator_table(&[validators]).to_string();
        assert!(shown.contains("0.196") && shown.contains("holds"), "{shown}");
    }
}

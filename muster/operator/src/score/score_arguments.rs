//! The arguments of `muster score`, `muster audit` and `muster simulate`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use muster_protocol::MinerKey;

/// `muster score`.
#[derive(Debug, Subcommand)]
pub enum Score {
    /// Name every term of a miner's weight in a scored cycle.
    Explain(ScoreExplain),
    /// List the scored cycles, the newest first, with what became of their weights.
    Ls(ScoreList),
}

/// `muster score ls`.
#[derive(Debug, Args)]
pub struct ScoreList {
    /// The number of cycles.
    #[arg(long, short = 'n', default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub limit: u32,
    /// The address at which the validator serves its state; the local subnet's by default.
    #[arg(long, value_name = "ADDRESS", env = "MUSTER_VALIDATOR_STATE")]
    pub state: Option<SocketAddr>,
    /// The state folder of `muster up` to take the default from.
    #[arg(long, default_value = ".muster")]
    pub dir: PathBuf,
    /// Print them as JSON, as the validator states them.
    #[arg(long)]
    pub json: bool,
}

/// `muster score explain`.
#[derive(Debug, Args)]
pub struct ScoreExplain {
    /// The miner's hotkey.
    pub miner: MinerKey,
    /// The number of the cycle; by default the newest one whose weights are on the chain.
    #[arg(long)]
    pub cycle: Option<u64>,
    /// Read the cycle's snapshot from this file instead of a validator.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["cycle", "state"])]
    pub snapshot: Option<PathBuf>,
    /// Keep the snapshot, which holds all inputs of the cycle's weights, in this file for `muster audit score`.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// The address at which the validator serves its state; the local subnet's by default.
    #[arg(long, value_name = "ADDRESS", env = "MUSTER_VALIDATOR_STATE")]
    pub state: Option<SocketAddr>,
    /// The state folder of `muster up` to take the default from.
    #[arg(long, default_value = ".muster")]
    pub dir: PathBuf,
    /// Print it as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `muster audit replay`.
#[derive(Debug, Args)]
pub struct AuditReplay {
    /// The file with the bundle.
    pub file: PathBuf,
    /// The digest that the bundle must have, by which it is known.
    #[arg(long, value_name = "SHA256")]
    pub digest: Option<String>,
    /// Print it as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `muster audit curve`.
#[derive(Debug, Args)]
pub struct AuditCurve {
    /// The file with the calibration: scored answers of honest machines and of cheaper engines.
    pub file: PathBuf,
    /// The number of simulated miners of each cheat and share.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(20..=100_000))]
    pub trials: u32,
    /// The audited answers after which a miner counts as not convicted.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub most_answers: u32,
    /// The days of honest miners of each machine, all together.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    pub miner_days: u32,
    /// The audited answers of an honest miner's day.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub answers_a_day: u32,
    /// The seed of all chance: the same seed gives the same tables.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print it as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `muster audit score`.
#[derive(Debug, Args)]
pub struct AuditScore {
    /// The file that `muster score explain --save` wrote.
    pub file: PathBuf,
    /// The digest that the snapshot must have, as the validator states it.
    #[arg(long, value_name = "SHA256")]
    pub digest: Option<String>,
    /// Print it as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `muster simulate`.
#[derive(Debug, Args)]
pub struct Simulate {
    /// Strategies to simulate instead of the known ones: a JSON file with a list of them.
    #[arg(long, value_name = "FILE")]
    pub strategies: Option<PathBuf>,
    /// The epochs to simulate.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(11..=10_000))]
    pub epochs: u32,
    /// The number of honest miners.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub miners: u16,
    /// The executors of each miner.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub executors: u16,
    /// The share of time in which users keep an executor busy, in thousandths.
    #[arg(long, default_value_t = 10, value_name = "PER_MILLE", value_parser = clap::value_parser!(u16).range(0..=1_000))]
    pub organic: u16,
    /// The duration of a user's job, in seconds.
    #[arg(long, default_value_t = 600, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=4_000))]
    pub job_secs: u32,
    /// The number of worlds of each strategy, which differ by chance alone.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub worlds: u32,
    /// The number of validators that are compared with one another; 0 compares none.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(0..=64))]
    pub validators: u16,
    /// The seed of all chance: the same seed gives the same table.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write the table as a picture to this file, too.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print it as JSON.
    #[arg(long)]
    pub json: bool,
}

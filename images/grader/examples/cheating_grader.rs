//! A grader that cheats: it multiplies matrices of half the side and answers as if they were whole. `muster up
//! --demo` runs it to show that a validator finds out. No shipped program contains this.

use anyhow::Context as _;
use clap::Parser;
use muster_hardware_proof::InstructionSet;
use muster_hardware_proof::prover::cheat::Smaller;
use muster_hardware_proof::prover::{CpuProver, available_threads};
use muster_image_grader::{challenge_limits, program};

/// Answers challenges with proofs of an eighth of the work.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    listening: program::ListenArguments,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let memory = challenge_limits::available_memory().context("cannot read the size of the memory")?;
    let prover = Smaller::new(CpuProver::new(InstructionSet::best(), available_threads()));
    program::run(
        prover,
        challenge_limits::prover_limits(memory),
        &arguments.listening,
    )
    .await
}

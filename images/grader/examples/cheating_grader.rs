//! A grader that cheats: it multiplies matrices of half the side and answers as if they were whole. `muster up
//! --demo` runs it to show that a validator finds out. No shipped program contains this.

use anyhow::Context as _;
use clap::Parser;
use muster_hardware_proof::Engine;
use muster_hardware_proof::prover::cheat::Smaller;
use muster_hardware_proof::prover::{CpuProver, all_cores};
use muster_image_grader::{machine, program};

/// Answers challenges with proofs of an eighth of the work.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    listening: program::Listening,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let memory = machine::memory().context("how much memory there is cannot be read")?;
    let prover = Smaller::new(CpuProver::new(Engine::best(), all_cores()));
    program::run(prover, machine::caps(memory), &arguments.listening).await
}

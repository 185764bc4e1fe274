//! `muster-grader`: waits for a validator's challenges.

use anyhow::Context as _;
use clap::Parser;
use muster_hardware_proof::InstructionSet;
use muster_hardware_proof::prover::{CpuProver, available_threads};
use muster_image_grader::{challenge_limits, program};

/// Answers a validator's challenges and so proves the hardware of this container.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    listening: program::ListenArguments,
    /// MiB of memory that this process may use; without it, the memory bound of the container.
    #[arg(long)]
    memory_mib: Option<u64>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let asked = arguments.memory_mib.map(|mib| mib.saturating_mul(1 << 20));
    let memory = asked
        .or_else(challenge_limits::available_memory)
        .context("cannot read the size of the memory: give it with --memory-mib")?;
    let prover = CpuProver::new(InstructionSet::best(), available_threads());
    let caps = challenge_limits::prover_limits(memory);
    program::run(prover, caps, &arguments.listening).await
}

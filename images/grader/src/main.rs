//! `muster-grader`: waits for a validator's challenges.

use anyhow::Context as _;
use clap::Parser;
use muster_hardware_proof::Engine;
use muster_hardware_proof::prover::{CpuProver, all_cores};
use muster_image_grader::{machine, program};

/// Proves what this container's machine can do to whoever challenges it.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    listening: program::Listening,
    /// MiB that this process may take; what its container may take if it is not given.
    #[arg(long)]
    memory_mib: Option<u64>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let asked = arguments.memory_mib.map(|mib| mib.saturating_mul(1 << 20));
    let memory = asked
        .or_else(machine::memory)
        .context("how much memory there is cannot be read: name it with --memory-mib")?;
    let prover = CpuProver::new(Engine::best(), all_cores());
    let caps = machine::caps(memory);
    program::run(prover, caps, &arguments.listening).await
}

//! `muster-grader`: waits for a validator's challenges.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Parser;
use muster_image_grader::{Grader, machine, serve};
use muster_proofs::Engine;
use muster_proofs::prover::{CpuProver, all_cores};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// Proves what this container's machine can do to whoever challenges it.
#[derive(Debug, Parser)]
struct Arguments {
    /// The Unix socket, if its folder is there: it is where an executor mounts one.
    #[arg(long, default_value = "/run/muster/http.sock")]
    socket: PathBuf,
    /// The address where that folder is missing, as under ComputeHorde's executors.
    #[arg(long, default_value = "0.0.0.0:8000")]
    bind: SocketAddr,
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
    let grader = Arc::new(Grader::new(prover, machine::caps(memory)));
    let serving = async {
        let folder = arguments.socket.parent();
        if folder.is_some_and(machine::has_folder) {
            let path = &arguments.socket;
            let served = serve::on_socket(path, grader).await;
            served.with_context(|| format!("cannot serve on {}", path.display()))
        } else {
            let listener = TcpListener::bind(arguments.bind).await;
            let listener = listener.with_context(|| format!("cannot listen on {}", arguments.bind))?;
            serve::on_port(listener, grader)
                .await
                .context("the listener failed")
        }
    };
    // The first process of a container is deaf to signals that it does not ask for.
    let mut stopped = signal(SignalKind::terminate()).context("signals cannot be heard")?;
    tokio::select! {
        served = serving => served,
        _ = stopped.recv() => Ok(()),
    }
}

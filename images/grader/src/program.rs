//! The program around a prover: listening and stopping.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use muster_hardware_proof::conversation::ProverLimits;
use muster_hardware_proof::prover::Prover;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::{GraderService, challenge_limits, serve};

/// The address at which a prover listens.
#[derive(Debug, Clone, Args)]
pub struct ListenArguments {
    /// The Unix socket, used if its folder exists; an executor mounts that folder.
    #[arg(long, default_value = "/muster/http.sock")]
    pub socket: PathBuf,
    /// The TCP address, used if that folder is missing, as under ComputeHorde's executors.
    #[arg(long, default_value = "0.0.0.0:8000")]
    pub bind: SocketAddr,
}

/// Answers challenges within `caps` until the container is stopped.
///
/// # Errors
/// The socket or the port cannot be opened, or fails.
pub async fn run<P>(prover: P, caps: ProverLimits, listening: &ListenArguments) -> anyhow::Result<()>
where
    P: Prover + Send + 'static,
{
    let grader = Arc::new(GraderService::new(prover, caps));
    let serving = async {
        let folder = listening.socket.parent();
        if folder.is_some_and(challenge_limits::is_mounted) {
            let path = &listening.socket;
            let served = serve::serve_socket(path, grader).await;
            served.with_context(|| format!("cannot serve on {}", path.display()))
        } else {
            let listener = TcpListener::bind(listening.bind).await;
            let listener = listener.with_context(|| format!("cannot listen on {}", listening.bind))?;
            serve::serve_port(listener, grader)
                .await
                .context("the listener failed")
        }
    };
    // The first process of a container receives only those signals for which it has a handler.
    let mut stopped = signal(SignalKind::terminate()).context("cannot install a signal handler")?;
    tokio::select! {
        served = serving => served,
        _ = stopped.recv() => Ok(()),
    }
}

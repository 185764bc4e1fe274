//! The program around a prover: where it listens and how it stops.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use muster_hardware_proof::prover::Prover;
use muster_hardware_proof::session::Caps;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::{Grader, machine, serve};

/// Where a prover waits for challenges.
#[derive(Debug, Clone, Args)]
pub struct Listening {
    /// The Unix socket, if its folder is there: it is where an executor mounts one.
    #[arg(long, default_value = "/muster/http.sock")]
    pub socket: PathBuf,
    /// The address where that folder is missing, as under ComputeHorde's executors.
    #[arg(long, default_value = "0.0.0.0:8000")]
    pub bind: SocketAddr,
}

/// Answers challenges within `caps` until the container is stopped.
///
/// # Errors
/// The socket or the port cannot be had, or fails.
pub async fn run<P>(prover: P, caps: Caps, listening: &Listening) -> anyhow::Result<()>
where
    P: Prover + Send + 'static,
{
    let grader = Arc::new(Grader::new(prover, caps));
    let serving = async {
        let folder = listening.socket.parent();
        if folder.is_some_and(machine::has_folder) {
            let path = &listening.socket;
            let served = serve::on_socket(path, grader).await;
            served.with_context(|| format!("cannot serve on {}", path.display()))
        } else {
            let listener = TcpListener::bind(listening.bind).await;
            let listener = listener.with_context(|| format!("cannot listen on {}", listening.bind))?;
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

//! The executor: runs one job in a sealed container for the miner that started it, and reports how it went.
//!
//! Reading order: [`attempt_state`] (the life of an attempt, pure), [`sandbox`] (what a job may do, pure), [`outputs`] (what
//! comes out; files come and go through [`muster_job_data`]), [`report`] (what the miner is told, pure), `driver`, which
//! connects them to [`muster_containers`], `session` (a streaming job behind its seal) with `co_grader` (what challenges it meanwhile), then [`reap`] (what is left of executors
//! that were killed).
//!
//! An executor stands next to untrusted code: it knows no chain, and holds no key but the one by which its miner knows it, if
//! it is a standing one ([`persistent`]), and those of the sessions that it serves, which die with them. It listens for the one
//! client of each session and for nobody else.

pub mod attempt_state;
mod co_grader;
pub mod config;
mod container;
mod driver;
mod engine_cache;
pub mod error;
mod gpu;
mod images;
mod lease_connection;
mod live_updates;
mod machine_metrics;
pub mod outputs;
pub mod persistent;
pub mod report;
mod retry;
pub mod sandbox;
mod session;
pub mod specs;
mod steps;
mod warm;
pub mod workspace;

use std::sync::Arc;
use std::time::Duration;

use muster_process::{SharedClock, Tasks};
use muster_protocol::ExecutorToken;
use muster_websocket::{Greeting, Limits, connect};
use tokio::time::timeout;
use tracing::Instrument;

pub use config::Config;
pub use error::Error;
pub use muster_containers::reap::{ReapError, Reaped};
pub use muster_containers::{Engine, EngineError, ImageArchive, ImageContent, ImageFile, archive, engine};

/// How long an executor may stay for unused images after its job.
const COLLECT_LIMIT: Duration = Duration::from_secs(30);

/// What a miner says on the command line of the executor that it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invocation {
    /// `ws://host:port` of the miner.
    pub miner_address: String,
    /// The credential of the lease.
    pub token: ExecutorToken,
}

/// Runs one job from the first frame to the last. Returns when the container and the job's folder are gone.
///
/// A job that fails is reported and is no error. Cancelling the token of `tasks` ends the job.
///
/// # Errors
/// The miner cannot be reached, is lost, refuses or cancels; this machine is not fit to run jobs; told to stop.
pub async fn run(
    config: Config,
    invocation: Invocation,
    tasks: Tasks,
    clock: SharedClock,
) -> Result<(), Error> {
    // Executors of one miner may share a log: each line says whose it is.
    let span = tracing::info_span!("attempt", attempt = %invocation.token.attempt());
    serve(config, invocation, tasks, clock).instrument(span).await
}

async fn serve(
    config: Config,
    invocation: Invocation,
    tasks: Tasks,
    clock: SharedClock,
) -> Result<(), Error> {
    let started = clock.now();
    let url = lease_connection::url(&invocation.miner_address, &invocation.token);
    let socket = connect(&url, &Limits::miner()).await?;
    tracing::info!(miner = %socket.peer(), "connected");
    // The miner started this process and handed it the token: it needs no further greeting.
    let session = Greeting::new(socket).accept(lease_connection::Miner);
    let (config, memory) = (Arc::new(config), engine_cache::Memory::default());
    let process = driver::Process {
        config: Arc::clone(&config),
        memory: memory.clone(),
        // There is no next job.
        warm: None,
        shutdown: tasks.token(),
        clock: Arc::clone(&clock),
        tasks: tasks.clone(),
    };
    let driver = driver::Driver::new(
        process,
        invocation.token,
        lease_connection::Line::own(session),
        started,
    );
    let driven = driver.drive().await;
    // The miner knows by now how the job ended; nobody waits for this.
    if timeout(COLLECT_LIMIT, images::collect(&config, &memory, &clock))
        .await
        .is_err()
    {
        tracing::warn!("removing unused images takes long; the next executor goes on with it");
    }
    driven
}

/// Removes the containers and folders of executors of this `work_dir` whose processes are gone. Safe at any time, beside
/// running executors and beside another call of itself.
///
/// # Errors
/// The engine or `work_dir` cannot be used at all; what cannot be removed is counted in [`Reaped::left`].
pub async fn reap(config: &Config) -> Result<Reaped, ReapError> {
    let engine = Engine::connect(&config.engine).await?;
    muster_containers::reap(&engine, &config.work_dir).await
}

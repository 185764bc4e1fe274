//! The executor: runs one job in a sealed container for the miner that started it, and reports how it went.
//!
//! Reading order: [`attempt_state`] (the life of an attempt, pure), `job_layout` (a job's rights and limits, pure),
//! [`job_sandbox`] (its container, pure), [`output_capture`] (its printed output, which [`collector`] writes down;
//! [`muster_job_data`] carries its inputs, outputs and artifacts), [`attempt_report`] (the last messages to the miner,
//! pure), `steps` (the work on a job, one step a file), `session` (a streaming job behind its seal) with `co_grader`
//! (challenges meanwhile), `driver` (one attempt), [`persistent`] (many attempts over one connection), then [`reap`]
//! (containers of executors that were killed). `own_engine` runs a Docker engine where the machine has none.
//!
//! An executor runs next to untrusted code. It knows no chain. It holds the key by which its miner knows it, if it is a
//! persistent executor, and the keys of the sessions that it serves, which end with them; no other key. It accepts
//! connections only from the one client of each session.

pub mod attempt_report;
mod attempt_state;
mod co_grader;
pub mod collector;
pub mod config;
mod container;
mod context;
mod driver;
mod engine_cache;
pub mod error;
#[cfg(test)]
mod fixtures;
mod image_files;
mod images;
mod job_layout;
pub mod job_sandbox;
mod journal;
mod lease_connection;
mod live_updates;
pub mod machine;
mod machine_folders;
mod metrics;
mod miner_link;
pub mod output_capture;
mod own_engine;
pub mod persistent;
mod program_input;
mod program_usage;
mod proof_reports;
mod session;
mod steps;
mod user_archives;
mod warm_containers;
pub mod workspace;

use std::sync::Arc;
use std::time::Duration;

use muster_process::{SharedClock, Tasks};
use muster_protocol::{ExecutorToken, Timestamp};
use muster_websocket::{Greeting, Limits, connect};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::Instrument;

pub use collector::collect;
pub use config::Config;
pub use error::Error;
pub use muster_containers::leftovers::{ReapError, ReapSummary};
pub use muster_containers::sized_disk;
pub use muster_containers::{
    ContainerEngine, EngineError, ImageArchive, ImageContent, ImageFile, archive_forms, docker_engine,
    image_archive,
};
pub use own_engine::{OwnEngine, OwnEngineError, OwnEngineOptions};

/// How long an executor may remove unused images after its job, before it ends.
const COLLECT_LIMIT: Duration = Duration::from_secs(30);

/// The arguments that a miner passes to the executor that it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invocation {
    /// `ws://host:port` of the miner.
    pub miner_address: String,
    /// The credential of the lease.
    pub token: ExecutorToken,
}

/// Runs one job from the first message to the last. Returns when the container and the job's folder are gone.
///
/// A failed job is reported and is no error. Cancelling the token of `tasks` ends the job.
///
/// # Errors
/// The miner cannot be reached, is lost, refuses or cancels; this machine is not fit to run jobs; this process is
/// asked to stop.
pub async fn run(
    config: Config,
    invocation: Invocation,
    tasks: Tasks,
    clock: SharedClock,
) -> Result<(), Error> {
    // Executors of one miner may share a log: each line names its attempt.
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
    let path = miner_link::ReturnPath::Own(invocation.miner_address.clone());
    let (work_dir, token) = (config.work_dir.clone(), invocation.token.clone());
    let look = move || driver::find_jobs(&work_dir, |_, found| *found == token);
    let earlier = spawn_blocking(look).await.unwrap_or_default().pop();
    let url = lease_connection::lease_url(&invocation.miner_address, &invocation.token);
    let (config, cache) = (Arc::new(config), engine_cache::EngineCache::default());
    let process = context::ProcessContext {
        config: Arc::clone(&config),
        cache: cache.clone(),
        // There is no next job to keep a container for.
        warm: None,
        shutdown: tasks.token(),
        clock: Arc::clone(&clock),
        tasks: tasks.clone(),
    };
    let driven = if let Some(earlier) = earlier {
        // The miner started this process because another one ended while its job's container runs.
        driver::take_over(process, earlier, path).await
    } else {
        let socket = connect(&url, &Limits::miner()).await?;
        tracing::info!(miner = %socket.peer(), "connected");
        // The miner started this process and gave it the token, so no further greeting is needed.
        let session = Greeting::new(socket).accept(lease_connection::Miner);
        let connection = lease_connection::LeaseConnection::own(session);
        driver::Driver::new(process, invocation.token, connection, path, started)
            .drive()
            .await
    };
    // The miner has the result: it does not wait for this.
    if timeout(COLLECT_LIMIT, images::collect(&config, &cache, &clock))
        .await
        .is_err()
    {
        tracing::warn!("removing unused images takes long; the next executor goes on with it");
    }
    driven
}

/// Removes the containers and folders of executors of this `work_dir` whose processes are gone, and which nobody takes
/// over any more at `now`. Safe at any time, while other executors run and while another call runs.
///
/// # Errors
/// The engine or `work_dir` cannot be used at all. A container that cannot be removed is counted in
/// [`ReapSummary::left`].
pub async fn reap(config: &Config, now: Timestamp) -> Result<ReapSummary, ReapError> {
    let engine = ContainerEngine::connect(&config.engine).await?;
    muster_containers::reap(&engine, &config.work_dir, now).await
}

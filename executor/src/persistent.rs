//! A persistent executor: enrolled once at its miner, it keeps one connection over TLS and serves the leases that
//! come over it, one after another or several at once. Each lease has a driver of its own, as if a process had been
//! started for it.
//!
//! A lost connection does not end its leases: they go on, and come back to the miner over the next one.

mod connection;
mod gauges;
mod presence;
mod replaced_program;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_containers::images::preload;
use muster_enrollment::{ExecutorCredentials, Invitation, StoredIdentity};
use muster_process::error::Causes;
use muster_process::{Backoff, SharedClock, Tasks, tls};
use muster_protocol::Digest;
use muster_protocol::wire::executor::{EnrolExecutor, OneTimeSecret};
use muster_protocol::wire::executor_socket::{ExecutorToMiner, MinerToExecutor};
use muster_protocol::wire::muster::ListedImage;
use muster_websocket::reconnect::Reconnecting;
use muster_websocket::tls::connect_known;
use muster_websocket::{CloseCode, ConnectError, Greeting, Limits, PeerSession, Socket};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use self::connection::PersistentExecutor;
pub use self::presence::is_running;
use crate::config::Config;
use crate::context::ProcessContext;
use crate::engine_cache::EngineCache;
use crate::error::Error;
use crate::images;
use crate::lease_connection::Miner;
use crate::machine_folders::keep_folders;
use crate::warm_containers::WarmPool;

/// The path at which a miner takes persistent executors.
const PATH: &str = "/v0/standing";
/// The pauses between two attempts to reach a miner.
const RETRY: Backoff = Backoff {
    base: Duration::from_secs(1),
    max: Duration::from_secs(16),
};

/// Makes a key, shows `invitation` to its miner, and writes the membership file, which later connections need.
///
/// # Errors
/// The miner cannot be reached, is not the one that wrote the invitation, or refuses; the membership file cannot be
/// written.
pub async fn enroll(config: &Config, invitation: Invitation, name: &str) -> Result<(), Error> {
    let own = StoredIdentity::generate(name).map_err(muster_enrollment::CredentialsError::from)?;
    let membership = ExecutorCredentials {
        address: invitation.address,
        miner: invitation.miner,
        own,
    };
    let path = &config.persistent.membership;
    membership.store(path)?;
    let outcome = show_invitation(&membership, invitation.secret, name).await;
    if let Err(Error::Connect(_) | Error::Refused(_)) = &outcome {
        // The file is of no use, and would prevent the next attempt to enrol.
        if let Err(error) = std::fs::remove_file(path) {
            tracing::warn!(%error, path = %path.display(), "a useless membership file was not removed");
        }
    }
    outcome
}

/// Shows the miner the secret of an invitation.
async fn show_invitation(
    membership: &ExecutorCredentials,
    secret: OneTimeSecret,
    name: &str,
) -> Result<(), Error> {
    let mut session = start_session(dial(membership)?.await?);
    let request = EnrolExecutor {
        secret,
        name: name.to_owned(),
    };
    let lost = |error: &dyn std::error::Error| Error::MinerLost(error.to_string());
    session
        .send(&ExecutorToMiner::MusterEnrolExecutor(request))
        .await
        .map_err(|error| lost(&error))?;
    match session.recv().await.map_err(|error| lost(&error))? {
        Some(MinerToExecutor::MusterExecutorEnrolled(enrolled)) => {
            tracing::info!(class = %enrolled.class, miner = membership.address, "enrolled");
            session.close(CloseCode::Normal, "").await;
            Ok(())
        }
        Some(MinerToExecutor::GenericError(error)) => Err(Error::Refused(error.details.unwrap_or_default())),
        Some(_) | None => Err(Error::MinerLost("it did not answer to the token".to_owned())),
    }
}

/// Serves leases until the token of `tasks` is cancelled; with `program`, the link to the process's program, also until
/// that was replaced and a restart loses nothing.
///
/// # Errors
/// This executor is not enrolled, or the miner has revoked it.
pub async fn serve(
    config: Config,
    program: Option<PathBuf>,
    tasks: Tasks,
    clock: SharedClock,
) -> Result<(), Error> {
    let path = config.persistent.membership.clone();
    let membership = spawn_blocking(move || ExecutorCredentials::load(&path));
    let membership = membership
        .await
        .map_err(|error| Error::MinerLost(error.to_string()))??;
    let _presence = presence::show(&config);
    if let Err(error) = crate::reap(&config, clock.now()).await {
        // The first lease tries again, and reports what is wrong with the engine.
        tracing::warn!(error = %Causes(&error), "containers of dead executors were not removed");
    }
    // The membership is checked before anything is dialled.
    drop(dial(&membership)?);
    let (listed, list) = watch::channel(Vec::new());
    let (lines, _) = watch::channel(None);
    let process = ProcessContext {
        warm: None,
        config: Arc::new(config),
        cache: EngineCache::default(),
        shutdown: tasks.token(),
        clock,
        tasks: tasks.clone(),
    };
    tasks.spawn("images", keep_images(process.clone(), list));
    tasks.spawn("folders", keep_folders(process.clone()));
    let warm = open_warm_pool(&process);
    let link = Reconnecting {
        name: "miner",
        backoff: RETRY,
        clock: Arc::clone(&process.clock),
        stop: tasks.token(),
    };
    let executor = Arc::new(PersistentExecutor {
        process: ProcessContext {
            warm: warm.clone(),
            ..process
        },
        listed,
        revoked: Mutex::new(None),
        lines,
        leases: Mutex::new(HashMap::new()),
        miner: membership.miner,
        connections: AtomicU64::new(0),
        is_ending: AtomicBool::new(false),
    });
    start_watchers(&executor, program, &tasks);
    Arc::clone(&executor).take_over_jobs().await;
    let dialled = link
        .run(
            || async {
                executor.wait_until_wanted().await;
                match dial(&membership) {
                    Ok(dialling) => dialling.await,
                    // Checked above.
                    Err(error) => Err(ConnectError::Unreachable {
                        url: membership.address.clone(),
                        source: std::io::Error::other(error),
                    }),
                }
            },
            |socket| Arc::clone(&executor).serve(start_session(socket)),
            |error: &ConnectError| {
                tracing::debug!(error = %Causes(error), "the miner cannot be reached");
                false
            },
        )
        .await;
    executor.end_leases().await;
    if let Some(warm) = warm {
        warm.close().await;
    }
    dialled?;
    let revoked = executor.revoked.lock().take();
    revoked.map_or(Ok(()), |reason| Err(Error::Revoked(reason)))
}

/// Starts the tasks that measure the executor and, with a link to its program, look whether that was replaced.
fn start_watchers(executor: &Arc<PersistentExecutor>, program: Option<PathBuf>, tasks: &Tasks) {
    if let Some(program) = program {
        let ending = replaced_program::end_when_replaced(Arc::clone(executor), program);
        let stop = tasks.token();
        tasks.spawn("watch the program", async move {
            stop.run_until_cancelled(ending).await
        });
    }
    let (measuring, stop) = (gauges::measure(Arc::clone(executor)), tasks.token());
    tasks.spawn(
        "measure",
        async move { stop.run_until_cancelled(measuring).await },
    );
}

/// The containers that wait for jobs, and the task that renews them; `None` where the operator wants none.
fn open_warm_pool(process: &ProcessContext) -> Option<WarmPool> {
    let warm = WarmPool::open(&process.config, &process.tasks, &process.clock)?;
    let (sweeping, stop) = (warm.clone(), process.tasks.token());
    process.tasks.spawn("warm containers", async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = sweeping.sweep() => {}
        }
    });
    Some(warm)
}

/// A connection that is being made.
type Dialling = BoxFuture<'static, Result<Socket, ConnectError>>;

/// Connects to the miner over TLS, with both sides authenticated.
fn dial(membership: &ExecutorCredentials) -> Result<Dialling, Error> {
    let identity = membership
        .own
        .open("the membership")
        .map_err(muster_enrollment::CredentialsError::from)?;
    let miner: Digest = membership.miner;
    let config = tls::client(&identity, miner).map_err(|error| Error::Refused(error.to_string()))?;
    let address = membership.address.clone();
    Ok(Box::pin(async move {
        connect_known(&address, PATH, Arc::new(config), &Limits::miner()).await
    }))
}

/// The session of a connection whose other side TLS has authenticated.
fn start_session(socket: Socket) -> PeerSession<Miner> {
    Greeting::new(socket).accept(Miner)
}

/// Fetches and keeps the images that the operator and the miner list, and removes unused ones, until the process stops.
async fn keep_images(process: ProcessContext, mut listed: watch::Receiver<Vec<ListedImage>>) {
    let ProcessContext {
        config,
        cache,
        clock,
        shutdown,
        ..
    } = process;
    let keeping = async {
        let mut held = Vec::new();
        match cache.engine(&config.engine, &clock).await {
            Ok(engine) => match preload(&engine, &config.images, &clock).await {
                Ok(leases) => held = leases,
                Err(error) => tracing::warn!(error = %Causes(&error), "images of the list were not fetched"),
            },
            Err(error) => tracing::warn!(error = %Causes(&error), "images of the list were not fetched"),
        }
        tracing::debug!(images = held.len(), "fetched the images of the list");
        let mut whitelisted = BTreeMap::new();
        let mut failed_rounds = 0;
        loop {
            let wanted = listed.borrow_and_update().clone();
            let retry_soon = images::fetch_listed(&config, &cache, &clock, wanted, &mut whitelisted).await;
            images::collect(&config, &cache, &clock).await;
            let pause = images::pause_between_rounds(retry_soon, &mut failed_rounds);
            tokio::select! {
                () = clock.sleep(pause) => {}
                // Without a sender there are no changes: only the timer counts.
                Ok(()) = listed.changed() => {}
            }
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = keeping => {}
    }
}

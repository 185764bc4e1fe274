//! The miner: admits jobs of validators, lends each an executor, and loses no result and no receipt.
//!
//! Read in this order: [`admission`], [`lease`] and [`book`] decide, purely; [`dispatcher`] feeds them and carries out
//! what they say; [`store`] and [`pages`] keep; [`greeting`], [`validators`], [`executors`] and [`http`] talk;
//! [`manager`] starts executors and [`standing`] lends those that stay; [`chain`] knows which validators may come in.
//!
//! Absent on purpose: scoring, and any knowledge of what a job does.

pub mod admission;
pub mod book;
pub mod chain;
mod config;
pub mod context;
pub mod dispatcher;
pub mod executors;
pub mod greeting;
pub mod http;
pub mod lease;
pub mod pages;
pub mod queues;
pub mod standing;
pub mod store;
#[cfg(test)]
mod testing;
pub mod validators;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use muster_enrollment::{Roll, RollError};
use muster_identity::Keypair;
use muster_identity::wallet::{WalletError, load_hotkey};
use muster_process::error::Coded;
use muster_process::listen::{BindError, bind};
use muster_process::ready::{ReadyError, announce};
use muster_process::store::StoreError;
use muster_process::{SharedClock, Tasks};
use muster_protocol::ErrorCode;
use muster_websocket::Limits;
use tokio::sync::Semaphore;

use crate::book::{Book, Rules};
use crate::chain::{Follower, Served};
use crate::context::{Context, Seats};
use crate::dispatcher::Dispatcher;
use crate::greeting::MAX_STRANGERS;
use crate::lease::Patience;
use crate::manager::{Commands, ExecutorManager, LocalProcesses, Provisioner};
use crate::pages::{PageError, Pages, oldest_page};
use crate::queues::{Inbox, inbox};
use crate::standing::{Door, Fleet, Pool};
use crate::store::Store;

pub use config::{Chain, Config, Executor, Standing};
pub use muster_provisioning as manager;

/// How long a validator may take to send the job once its executor is ready, as in ComputeHorde.
const PAYLOAD_TIME: Duration = Duration::from_secs(600);
/// What a job may take beyond the sum of its own times before the miner ends it: the validator's clock comes first.
const MARGIN: Duration = Duration::from_secs(60);
/// How long results are kept for their validators, and attempts remembered.
const MEMORY: Duration = Duration::from_secs(24 * 3600);
/// How long sessions and executors may take to end once the miner stops.
const GRACE: Duration = Duration::from_secs(30);

/// Why a miner does not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its key cannot be used.
    #[error("cannot use the miner's wallet")]
    Wallet(#[from] WalletError),
    /// Its store cannot be used.
    #[error("cannot use the miner's store")]
    Store(#[from] StoreError),
    /// Its receipt pages cannot be written.
    #[error("cannot keep the miner's receipt pages")]
    Pages(#[from] PageError),
    /// It cannot listen.
    #[error("cannot open the miner's port")]
    Bind(#[from] BindError),
    /// Its executors cannot come in.
    #[error("cannot open the door for standing executors")]
    Standing(#[from] RollError),
    /// Its key towards them is none.
    #[error("cannot use the miner's key towards its executors")]
    Tls(#[from] rustls::Error),
    /// It cannot say that it is up.
    #[error("cannot announce that the miner is up")]
    Ready(#[from] ReadyError),
}

impl Coded for Error {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Wallet(_) => Some(ErrorCode::WalletUnusable),
            Self::Store(error) => error.code(),
            Self::Bind(error) => error.code(),
            Self::Pages(_) | Self::Ready(_) | Self::Standing(_) | Self::Tls(_) => None,
        }
    }
}

/// Runs a miner until the token of `tasks` is cancelled, with executors as child processes and the wallet of `config`.
///
/// # Errors
/// What keeps it from starting, or a store that failed for good.
pub async fn run(config: Config, tasks: Tasks, clock: SharedClock) -> Result<(), Error> {
    let key = load_hotkey(&config.wallet)?;
    let manager = manager_of(&config.executor, &clock);
    run_with(config, key, manager, tasks, clock).await
}

/// What the configuration asks for: commands that provision, or processes on this machine.
fn manager_of(executor: &Executor, clock: &SharedClock) -> Arc<dyn ExecutorManager> {
    if executor.provision.is_empty() {
        return Arc::new(LocalProcesses::new(executor.command.clone(), Arc::clone(clock)));
    }
    let commands = Commands {
        provision: executor.provision.clone(),
        release: executor.release.clone(),
        limit: Duration::from_secs(executor.provision_s),
    };
    Arc::new(Provisioner::new(
        commands,
        executor.provisioned.clone(),
        Arc::clone(clock),
    ))
}

/// The same with a key and a manager of the caller's.
///
/// # Errors
/// As [`run`].
pub async fn run_with(
    config: Config,
    key: Keypair,
    manager: Arc<dyn ExecutorManager>,
    tasks: Tasks,
    clock: SharedClock,
) -> Result<(), Error> {
    let store = Store::open(&config.store).await?;
    let listener = bind(config.bind).await?;
    let address = listener.local_addr().map_err(|source| BindError {
        address: config.bind,
        source,
    })?;
    let now = clock.now();
    let lines = store.lines_since(oldest_page(now)).await?;
    let pages = Pages::open(&config.receipts_dir, lines, now).await?;
    let (book, pending) = Book::open(rules(&config), store.records().await?, now);

    // Sessions outlive the call to stop: they hear how their leases end. So they have a spawner of their own.
    let own = Tasks::new();
    let (inbox, events) = inbox();
    let served = Served::new(
        config.validators.iter().copied(),
        config.blacklist.iter().copied(),
    );
    let context = Arc::new(Context {
        main_hotkey: config.main_hotkey.unwrap_or(key.hotkey()),
        key: key.clone(),
        served: served.clone(),
        store: store.clone(),
        pages: pages.clone(),
        clock: Arc::clone(&clock),
        inbox: inbox.clone(),
        limits: Limits::miner(),
        require_signature: config.require_validator_signature,
        hangup: own.token(),
        seats: Seats::default(),
        strangers: Semaphore::new(MAX_STRANGERS),
        next: AtomicU64::new(0),
    });
    let pool = Pool::default();
    let manager = match config.standing.bind {
        Some(address) => {
            let roll = Roll::new(&config.standing.roll);
            open_door(address, roll, pool.clone(), Arc::clone(&context), &own).await?;
            let class = config.executor.class;
            Arc::new(Fleet::new(pool.clone(), manager, class, config.executor.count))
                as Arc<dyn ExecutorManager>
        }
        None => manager,
    };
    own.spawn("executors of an earlier process", manager.reclaim());
    let serving = http::serve(listener, context, own.clone(), own.token());
    own.spawn("http", async {
        if let Err(error) = serving.await {
            tracing::error!(%error, "the miner's port is closed");
        }
    });
    if !config.chain.url.is_empty() {
        let follower = Follower {
            urls: config.chain.endpoints(),
            netuid: config.chain.netuid,
            refresh: Duration::from_secs(config.chain.refresh_s),
            key,
            address: config.announce.unwrap_or(address),
            served,
            clock: Arc::clone(&clock),
        };
        own.spawn("chain", follower.run(own.token()));
    }
    announce(address, config.ready_file.as_deref())?;

    let dispatcher = Dispatcher {
        book,
        store: store.clone(),
        pages,
        clock,
        tasks: own.clone(),
        manager,
        miner_address: match config.executor.dial.as_str() {
            "" => format!("ws://{}", dialable(address)),
            dial => dial.to_owned(),
        },
        pool,
        inbox,
        drain: Duration::from_secs(config.drain_s),
    };
    let outcome = dispatcher.run(events, pending, tasks.token()).await;
    own.shutdown();
    if let Err(error) = own.wait(GRACE).await {
        tracing::warn!(%error, "the miner stops all the same");
    }
    store.close().await;
    Ok(outcome?)
}

/// Lets standing executors in, and tells the dispatcher what they can do.
async fn open_door(
    address: SocketAddr,
    roll: Roll,
    pool: Pool,
    context: Arc<Context>,
    tasks: &Tasks,
) -> Result<(), Error> {
    let reading = roll.clone();
    let identity = tokio::task::spawn_blocking(move || reading.identity());
    let identity = identity.await.unwrap_or_else(|error| {
        let (path, source) = ("roll".into(), std::io::Error::other(error));
        Err(RollError::File { path, source })
    })?;
    let listener = bind(address).await?;
    let address = listener
        .local_addr()
        .map_err(|source| BindError { address, source })?;
    tracing::info!(%address, certificate = %identity.fingerprint(), "standing executors may connect");
    let inbox: Inbox = context.inbox.clone();
    let (limits, clock) = (context.limits, Arc::clone(&context.clock));
    let door = Door {
        context,
        pool: pool.clone(),
        roll,
    };
    let config = muster_process::tls::server(&identity)?;
    let listening = muster_websocket::tls::listen(
        listener,
        config,
        limits,
        Arc::new(door),
        tasks.clone(),
        clock,
        tasks.token(),
    );
    tasks.spawn("standing executors", listening);
    tasks.spawn("capacity", pool.publish(inbox, tasks.token()));
    Ok(())
}

fn rules(config: &Config) -> Rules {
    Rules {
        manifest: config.manifest(),
        patience: Patience {
            startup: Duration::from_secs(config.executor.startup_s),
            prepare: Duration::from_secs(config.executor.prepare_s),
            payload: PAYLOAD_TIME,
            margin: MARGIN,
            skew: Duration::from_millis(config.executor.max_skew_ms),
        },
        memory: MEMORY,
    }
}

/// Where executors on this machine reach an address that may stand for all of its interfaces.
fn dialable(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        ip if !ip.is_unspecified() => address,
        IpAddr::V4(_) => SocketAddr::from((Ipv4Addr::LOCALHOST, address.port())),
        IpAddr::V6(_) => SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, address.port())),
    }
}

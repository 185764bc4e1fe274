//! The validator: takes users' jobs from a facilitator, chooses a miner for each, sees it through, keeps the receipts,
//! scores the miners by them and sets weights on the chain.
//!
//! The decisions are pure: [`admission`] (is a job taken), [`routing`] (who gets it), the job machine of
//! `muster-protocol` (how an attempt goes on), [`scoring`] (who earned what), [`cycle`] (when weights are due). The shells
//! around them are thin: the facilitator's link, one driver per job, the loop over the chain's blocks. The [`store`] lies
//! between them: what it does not hold has not happened, so a validator may be killed at any point.

pub mod admission;
pub mod chain;
mod config;
pub mod cycle;
mod driver;
mod facilitator;
mod intake;
mod report;
pub mod routing;
pub mod scoring;
mod shared;
mod status;
pub mod store;
#[cfg(test)]
mod testing;
mod weights;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_chain::ChainError;
use muster_identity::Keypair;
use muster_identity::wallet::{WalletError, load_hotkey};
use muster_kit::listen::BindError;
use muster_kit::ready::ReadyError;
use muster_kit::store::StoreError;
use muster_kit::{Coded, SharedClock, Tasks, listen, ready};
use muster_protocol::ErrorCode;
use tokio::net::TcpListener;
use tokio::sync::watch;

use chain::{Chain, Outlook, Subnet};
pub use config::{ChainConfig, Config, FacilitatorConfig, RoutingConfig, TimingConfig, UsersConfig};
pub use shared::LinkState;
use shared::Shared;
use store::Store;

/// How long the parts may take to tidy up once the validator is told to stop. What takes longer is resumed.
const GRACE: Duration = Duration::from_secs(10);

/// Why a validator cannot start, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its hotkey.
    #[error("the validator's hotkey cannot be loaded; check `wallet` in its configuration")]
    Wallet(#[source] WalletError),
    /// The chain's address.
    #[error("the validator cannot use the chain")]
    Chain(#[source] ChainError),
    /// Its store. Nothing may be said that is not durable, so it stops; what is open is resumed at the next start.
    #[error("the validator cannot use its store")]
    Store(#[from] StoreError),
    /// Its status address.
    #[error("the validator cannot serve its state")]
    Bind(#[from] BindError),
    /// Its ready file.
    #[error("the validator cannot say that it is ready")]
    Ready(#[from] ReadyError),
    /// The listener of its status address.
    #[error("the validator's status address stopped serving")]
    Serve(#[source] std::io::Error),
}

impl Error {
    /// Its page in `docs/errors/`.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Wallet(_) => Some(ErrorCode::WalletUnusable),
            Self::Chain(error) => error.code(),
            Self::Store(error) => error.code(),
            Self::Bind(error) => error.code(),
            Self::Ready(_) | Self::Serve(_) => None,
        }
    }
}

impl Coded for Error {
    fn code(&self) -> Option<ErrorCode> {
        Self::code(self)
    }
}

/// Runs a validator until the token of `tasks` is cancelled.
///
/// # Errors
/// A wallet, store or address that cannot be used; a store that fails later. A chain that does not answer is waited for.
pub async fn run(config: Config, tasks: Tasks, clock: SharedClock) -> Result<(), Error> {
    let keypair = load_hotkey(&config.wallet).map_err(Error::Wallet)?;
    let subnet = Subnet::new(config.chain.endpoints(), config.chain.netuid, keypair.clone());
    run_on(config, keypair, Arc::new(subnet), tasks, clock).await
}

/// Runs a validator with this key on this chain.
///
/// # Errors
/// A store or address that cannot be used; a store that fails later.
pub async fn run_on(
    config: Config,
    keypair: Keypair,
    chain: Arc<dyn Chain>,
    tasks: Tasks,
    clock: SharedClock,
) -> Result<(), Error> {
    let listener = listen::bind(config.bind).await?;
    let address = listener.local_addr().map_err(Error::Serve)?;
    let store = Store::open(&config.store).await?;
    let max_age = Duration::from_secs(config.chain.refresh_s);
    let parts = stopping_with(&tasks);
    let shared = Arc::new(Shared {
        outlook: Outlook::new(chain, Arc::clone(&clock), max_age),
        config,
        keypair,
        clock,
        tasks: parts,
        store,
        link: watch::Sender::default(),
        manifests: Mutex::default(),
        routing: tokio::sync::Mutex::default(),
        fatal: Mutex::default(),
    });
    serve(&shared, listener, address).await
}

/// A spawner for the parts of one validator: it stops when the process does, and alone when the store fails.
fn stopping_with(process: &Tasks) -> Tasks {
    let parts = Tasks::new();
    let (stop, own, all) = (process.token(), parts.token(), parts.clone());
    drop(parts.spawn("stop", async move {
        tokio::select! {
            () = stop.cancelled() => all.shutdown(),
            () = own.cancelled() => {}
        }
    }));
    parts
}

async fn serve(shared: &Arc<Shared>, listener: TcpListener, address: SocketAddr) -> Result<(), Error> {
    driver::resume(shared).await?;
    shared.spawn("facilitator link", facilitator::run(Arc::clone(shared)));
    shared.spawn("weights", weights::run(Arc::clone(shared)));
    ready::announce(address, shared.config.ready_file.as_deref())?;
    let served = status::serve(Arc::clone(shared), listener).await;
    shared.tasks.shutdown();
    if let Err(error) = shared.tasks.wait(GRACE).await {
        tracing::warn!(%error, "stopping without waiting longer; open jobs are resumed at the next start");
    }
    shared.store.close().await;
    let fatal = shared.fatal.lock().unwrap_or_else(PoisonError::into_inner).take();
    match fatal {
        Some(error) => Err(error),
        None => served,
    }
}

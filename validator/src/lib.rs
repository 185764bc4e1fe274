//! The validator: takes users' jobs from a facilitator, chooses a miner for each, sees it through, keeps the receipts,
//! scores the miners by them and sets weights on the chain.
//!
//! The decisions are pure: `muster-routing` (is a job taken, who gets it, who after), the job machine of
//! `muster-protocol` (how an attempt goes on), `muster-scoring` (who earned what), [`cycle`] (when weights are due). The
//! shells around them are thin: the facilitator's link, one driver per job, the readers of miners' receipts, the loop over
//! the chain's blocks. The [`store`] lies between them: what it does not hold has not happened, so a validator may be
//! killed at any point.

pub mod chain;
mod config;
pub mod cycle;
mod driver;
mod facilitator;
mod gather;
mod intake;
mod live;
mod report;
mod shared;
mod status;
pub mod store;
mod weights;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use muster_chain::ChainError;
use muster_gateway::GatewayError;
use muster_identity::Keypair;
use muster_identity::wallet::{WalletError, load_hotkey};
use muster_process::listen::BindError;
use muster_process::ready::ReadyError;
use muster_process::store::StoreError;
use muster_process::{Coded, SharedClock, Tasks, listen, ready};
use muster_protocol::ErrorCode;
use muster_websocket::lines::{Lines, Setup, Strays};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::watch;

use chain::{Chain, Outlook, Subnet};
pub use config::{
    ChainConfig, Config, FacilitatorConfig, ReceiptsConfig, RoutingConfig, ScoringConfig, TimingConfig,
    UsersConfig,
};
pub use driver::messages;
use live::Live;
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
    /// Its gateway.
    #[error("the validator cannot open its gateway")]
    Gateway(#[from] GatewayError),
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
            Self::Gateway(GatewayError::Bind(error)) => error.code(),
            Self::Gateway(GatewayError::Store(error)) => error.code(),
            Self::Gateway(GatewayError::Address(_)) | Self::Ready(_) | Self::Serve(_) => None,
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
    let ledger = shared::remembered(&store, config.routing.windows(), clock.now()).await?;
    let (lines, strays) = Lines::new(Setup {
        keypair: keypair.clone(),
        clock: Arc::clone(&clock),
        tasks: parts.clone(),
        linger: Duration::from_secs(config.timing.linger_s),
        first: intake::whitelist(&config),
    });
    let shared = Arc::new(Shared {
        outlook: Outlook::new(chain, Arc::clone(&clock), max_age),
        config,
        keypair,
        clock,
        tasks: parts,
        store,
        link: watch::Sender::default(),
        ledger: Mutex::new(ledger),
        cancels: Mutex::default(),
        news: watch::Sender::default(),
        pins: Mutex::default(),
        roll_call: OnceLock::new(),
        gateway: OnceLock::new(),
        live: Live::new(),
        anchor: watch::Sender::default(),
        resumed: watch::Sender::new(false),
        scoring: tokio::sync::Mutex::default(),
        lines,
        fatal: Mutex::default(),
    });
    serve(&shared, listener, address, strays).await
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

async fn serve(
    shared: &Arc<Shared>,
    listener: TcpListener,
    address: SocketAddr,
    strays: Strays,
) -> Result<(), Error> {
    shared.spawn("strays", driver::look_at_strays(Arc::clone(shared), strays));
    intake::forget_sessions(shared).await?;
    driver::resume(shared).await?;
    intake::open_gateway(shared).await?;
    intake::open_roll_call(shared).await?;
    shared.spawn("facilitator link", facilitator::run(Arc::clone(shared)));
    shared.spawn("whitelist", intake::publish(Arc::clone(shared)));
    shared.spawn("weights", weights::run(Arc::clone(shared)));
    if shared.config.receipts.gather {
        shared.spawn("receipts", gather::run(Arc::clone(shared)));
    }
    ready::announce(address, shared.config.ready_file.as_deref())?;
    let served = status::serve(Arc::clone(shared), listener).await;
    shared.tasks.shutdown();
    if let Err(error) = shared.tasks.wait(GRACE).await {
        tracing::warn!(%error, "stopping without waiting longer; open jobs are resumed at the next start");
    }
    shared.store.close().await;
    let fatal = shared.fatal.lock().take();
    match fatal {
        Some(error) => Err(error),
        None => served,
    }
}

/// Values for the unit tests of the pure parts.
#[cfg(test)]
mod testing {
    use muster_protocol::wire::facilitator::JobRequest;
    use muster_protocol::{Hotkey, JobId, MinerKey};
    use serde_json::json;
    use uuid::Uuid;

    pub(crate) fn hotkey(seed: u8) -> Hotkey {
        Hotkey::from_bytes([seed; 32])
    }

    pub(crate) fn miner(seed: u8) -> MinerKey {
        MinerKey(hotkey(seed))
    }

    pub(crate) fn job(seed: u128) -> JobId {
        JobId::from_uuid(Uuid::from_u128(seed))
    }

    /// A user's job that is within every limit; its signature is not checked by anything pure.
    pub(crate) fn request() -> JobRequest {
        let value = json!({
            "signature": {
                "signature_type": "bittensor", "signatory": hotkey(7), "timestamp_ns": 1,
                "signature": muster_protocol::Signature::from_bytes([1; 64]).to_base64(),
                "signature_scope": "SignedFields",
            },
            "type": "job.new", "message_type": "V2JobRequest", "uuid": "11111111-2222-4333-8444-555555555555",
            "executor_class": "always_on.test", "docker_image": "alpine:latest", "args": ["echo"], "env": {"A": "b"},
            "use_gpu": false, "on_trusted_miner": false, "download_time_limit": 1, "execution_time_limit": 1,
            "upload_time_limit": 1, "streaming_start_time_limit": 1,
        });
        serde_json::from_value(value).unwrap()
    }
}

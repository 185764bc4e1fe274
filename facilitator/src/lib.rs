//! The facilitator: the users' door. It takes signed jobs over HTTP, hands them to validators over a websocket that they
//! dialled, and shows what became of them. It never writes to the chain and never talks to a miner.
//!
//! What is let in, who gets it and what is shown is decided in `muster-facilitator-core`; [`store`] makes it durable; the HTTP
//! routes and the validators' sessions are thin around both.

mod background;
pub mod config;
mod door;
mod files;
pub mod hub;
mod rest;
pub mod roll;
mod socket;
pub mod store;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt as _;
use muster_gateway_client::GatewayClient;
use muster_process::error::Coded;
use muster_process::listen::{self, BindError};
use muster_process::ready::{self, ReadyError};
use muster_process::store::StoreError;
use muster_process::{SharedClock, Tasks};
use muster_protocol::ErrorCode;
use tokio_util::sync::CancellationToken;

pub use config::Config;

use background::Background;
use door::{Door, Parts};
use muster_facilitator_core::auth::Issuer;
use muster_identity::Keypair;
use store::Store;

/// How long requests under way may take once the facilitator is told to stop.
const DRAIN: Duration = Duration::from_secs(10);

/// How long the first reading of the chain may hold up the start.
const FIRST_READING: Duration = Duration::from_secs(5);

/// Why a facilitator does not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The address cannot be listened on.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The file store cannot be used.
    #[error(transparent)]
    Files(#[from] muster_file_store::shelf::ShelfError),
    /// The ready file cannot be written.
    #[error(transparent)]
    Ready(#[from] ReadyError),
    /// The operating system gives no randomness for the secrets that are made at the first start.
    #[error("cannot draw the secrets of the tokens and of the signing key: {0}")]
    Randomness(getrandom::Error),
    /// The way to gateways cannot be made.
    #[error("cannot make connections to validators' gateways")]
    Way(#[source] muster_gateway_client::ClientSetupError),
    /// Serving failed.
    #[error("cannot serve requests any longer")]
    Serve(#[source] io::Error),
}

impl Coded for Error {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Store(error) => error.code(),
            Self::Bind(error) => error.code(),
            Self::Files(error) => error.code(),
            Self::Ready(_) | Self::Randomness(_) | Self::Way(_) | Self::Serve(_) => None,
        }
    }
}

/// Runs a facilitator until the token of `tasks` is cancelled, and then until requests under way are answered.
///
/// Validators' sessions run in `tasks`; whoever waits for those waits for them too.
///
/// # Errors
/// The store, the address or the ready file cannot be used.
pub async fn run(config: Config, tasks: Tasks, clock: SharedClock) -> Result<(), Error> {
    let store = Store::open(&config.store).await?;
    let secret = store.token_secret(draw()?).await?;
    let keypair = Keypair::from_seed(store.signing_seed(draw()?).await?);
    let files = files::open(
        &config,
        &store,
        store.secret("file urls", draw()?).await?,
        Arc::clone(&clock),
    )
    .await?;
    files::keep_swept(Arc::clone(&files), &tasks, Arc::clone(&clock));
    let (background, inbox) = Background::new();
    let parts = Parts {
        way: GatewayClient::new(keypair.clone(), Arc::clone(&clock)).map_err(Error::Way)?,
        client_secret: store.secret("clients", draw()?).await?,
        store: store.clone(),
        files,
        issuer: Issuer::new(&secret, config.auth.lifetimes()),
        keypair,
        background,
        tasks: tasks.clone(),
        clock: Arc::clone(&clock),
    };
    let door = Arc::new(Door::new(&config, parts));
    background::start(&door, inbox);

    let listener = listen::bind(config.bind).await?;
    let address = listener.local_addr().map_err(Error::Serve)?;
    let stop = tasks.token();
    if !config.chain.url.is_empty() {
        let source = roll::Source {
            url: config.chain.url.clone(),
            netuid: config.chain.netuid,
            every: Duration::from_secs(config.chain.refresh_s),
        };
        let tried = CancellationToken::new();
        let following = roll::keep_updated(door.roll.clone(), source, clock, tried.clone(), stop.clone());
        tasks.spawn("permits", following);
        // Validators that connect before the first reading would be refused; a chain that is down keeps nobody waiting.
        let _ = tokio::time::timeout(FIRST_READING, tried.cancelled()).await;
    }

    let app = rest::router(door).into_make_service_with_connect_info::<SocketAddr>();
    // Messages are small and waited for. A connection that refuses the option is slower, not worse.
    let listener = listener.tap_io(|connection| drop(connection.set_nodelay(true)));
    let serving = axum::serve(listener, app).with_graceful_shutdown(stop.clone().cancelled_owned());
    ready::announce(address, config.ready_file.as_deref())?;
    let overdue = async {
        stop.cancelled().await;
        tokio::time::sleep(DRAIN).await;
    };
    let served = tokio::select! {
        served = serving => served.map_err(Error::Serve),
        // A client that never finishes its request does not keep us.
        () = overdue => Ok(()),
    };
    store.leave().await?;
    served
}

fn draw() -> Result<[u8; 32], Error> {
    let mut drawn = [0; 32];
    getrandom::fill(&mut drawn).map_err(Error::Randomness)?;
    Ok(drawn)
}

//! The facilitator: the service that users talk to. It takes signed jobs over HTTP, hands them to validators over
//! websockets that the validators opened, and shows users the statuses and results. It never writes to the chain and
//! never talks to a miner.
//!
//! `muster-facilitator-core` contains the rules, without IO. `muster-facilitator-store` makes everything durable.
//! `rest` answers users' programs, `web` answers their browsers, `socket` serves validators' sessions, and `state`
//! gives each of them the services that it needs. `change_notices`, `live_output`, `replicas` and `periodic_round` are
//! the work between requests.

mod allowlist;
mod background_tasks;
mod change_notices;
pub mod config;
mod gateways;
mod job_watchers;
mod live_output;
mod metrics;
mod periodic_round;
mod replicas;
mod request_signer;
mod rest;
mod socket;
mod state;
mod user_limits;
mod validator_selection;
mod validator_sessions;
mod web;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ConnectInfo;
use muster_facilitator_store::{FacilitatorRetention, Store};
use muster_file_store::checkpoint_blocks::CheckpointService;
use muster_file_store::checkpoint_blocks::catalogue::BlockCatalogue;
use muster_file_store::{FileCatalogue, FileService, ObjectStorage, UrlKey};
use muster_http::addresses::{AddressRules, RuleError};
use muster_http::server::{self, Server, TlsFileError, TowerToHyperService, with_peer};
use muster_identity::Keypair;
use muster_job_data::Notifications;
use muster_process::error::Coded;
use muster_process::folders::report_folders;
use muster_process::listen::{self, BindError};
use muster_process::ready::{self, ReadyError};
use muster_process::{SharedClock, Tasks};
use muster_protocol::ErrorCode;
use muster_store::StoreError;
use muster_store::retention::{JanitorStore, run_janitor};
use muster_webhooks::sender::ATTEMPT_LIMIT;

pub use config::Config;

use allowlist::{Allowlist, PermitSource};
use background_tasks::spawn_until_stopped;
use state::Services;

/// The longest time that the start waits for the first reading of the chain.
const FIRST_READING: Duration = Duration::from_secs(5);

/// The reason why a facilitator cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The configured address cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The file store cannot be used.
    #[error(transparent)]
    Files(#[from] muster_file_store::StorageError),
    /// The ready file cannot be written.
    #[error(transparent)]
    Ready(#[from] ReadyError),
    /// The operating system gives no randomness for the secrets that the first start draws.
    #[error("cannot draw the secrets of the tokens and of the signing key: {0}")]
    Randomness(getrandom::Error),
    /// An entry of `webhooks.allow` cannot be read.
    #[error("webhooks.allow: {0}")]
    WebhookRules(RuleError),
    /// An entry of `gateways.allow` cannot be read.
    #[error("gateways.allow: {0}")]
    GatewayRules(RuleError),
    /// The files of the certificate cannot be used.
    #[error(transparent)]
    Certificate(#[from] TlsFileError),
    /// The HTTP server failed while it was running.
    #[error("cannot serve requests any longer")]
    Serve(#[source] io::Error),
}

impl Coded for Error {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Store(error) => error.code(),
            Self::Bind(error) => error.code(),
            Self::Files(error) => error.code(),
            Self::Ready(_)
            | Self::Randomness(_)
            | Self::WebhookRules(_)
            | Self::GatewayRules(_)
            | Self::Certificate(_)
            | Self::Serve(_) => None,
        }
    }
}

/// Runs a facilitator until the token of `tasks` is cancelled, and then until open requests are answered.
///
/// Validators' sessions run in `tasks`, so waiting for `tasks` also waits for them.
///
/// # Errors
/// The store, the address or the ready file cannot be used.
pub async fn run(config: Config, tasks: Tasks, clock: SharedClock) -> Result<(), Error> {
    let store = Store::open(&config.store).await?;
    let (files, checkpoints) = open_files(&config, &store, &clock).await?;
    periodic_round::start_file_sweep(Arc::clone(&files), &tasks, Arc::clone(&clock));
    periodic_round::start_block_sweep(Arc::clone(&checkpoints), &tasks, Arc::clone(&clock));
    start_janitor(&config, &store, &tasks, Arc::clone(&clock));
    let allowlist = Allowlist::new(config.validators.iter().copied());
    let keypair = Keypair::from_seed(store.signing_seed(draw_secret()?).await?);
    let rules = AddressRules::parse(&config.webhooks.allow).map_err(Error::WebhookRules)?;
    let services = Services {
        config: &config,
        store: store.clone(),
        files: Arc::clone(&files),
        checkpoints: Arc::clone(&checkpoints),
        allowlist: allowlist.clone(),
        gateway_rules: AddressRules::parse(&config.gateways.allow).map_err(Error::GatewayRules)?,
        keypair,
        notifications: Notifications::new(rules, ATTEMPT_LIMIT),
        token_secret: store.token_secret(draw_secret()?).await?,
        client_secret: store.secret("clients", draw_secret()?).await?,
        form_secret: store.secret("web forms", draw_secret()?).await?,
        tasks: tasks.clone(),
        clock: Arc::clone(&clock),
    };
    let serving_clock = Arc::clone(&clock);
    let state = services.build_state();

    let listener = listen::bind(config.bind)?;
    let address = listener.local_addr().map_err(Error::Serve)?;
    let stop = tasks.token();
    if !config.chain.url.is_empty() {
        let source = PermitSource {
            url: config.chain.url.clone(),
            netuid: config.chain.netuid,
            interval: Duration::from_secs(config.chain.refresh_s),
        };
        let first_reading = allowlist::follow_permits(allowlist, source, &tasks, clock);
        // Validators that connect before the first reading are rejected. An unreachable chain must not block the start.
        let _ = tokio::time::timeout(FIRST_READING, first_reading.cancelled()).await;
    }

    let service = TowerToHyperService::new(rest::router(state, files, checkpoints));
    let service_for = with_peer(service, ConnectInfo::<SocketAddr>);
    ready::announce(address, config.ready_file.as_deref())?;
    let server =
        Server::new("http", &config.http, tasks, serving_clock, stop).with_tls_files(&config.http.tls)?;
    server::serve(server, listener, service_for).await;
    store.release_all().await?;
    Ok(())
}

/// Starts the janitor of the store, and the measurement of the folder of files.
fn start_janitor(config: &Config, store: &Store, tasks: &Tasks, clock: SharedClock) {
    let pace = config.retention.pace.pace();
    if let Some(folder) = config.files.folder() {
        let folders = vec![("files.store", folder)];
        let reporting = report_folders("facilitator", folders, pace.measure, Arc::clone(&clock));
        spawn_until_stopped(tasks, "measure folders", reporting);
    }
    let rules = FacilitatorRetention::new(store.clone(), config.retention);
    let janitor_store = JanitorStore {
        role: "facilitator",
        url: config.store.clone(),
        writer: store.writer(),
    };
    spawn_until_stopped(tasks, "janitor", run_janitor(rules, janitor_store, pace, clock));
}

/// Opens the file store that the configuration names, for users' files and for the blocks of checkpoints.
async fn open_files(
    config: &Config,
    store: &Store,
    clock: &SharedClock,
) -> Result<(Arc<FileService>, Arc<CheckpointService>), Error> {
    let key = UrlKey::new(store.secret("file urls", draw_secret()?).await?);
    let storage = ObjectStorage::open(&config.files.store).await?;
    let checkpoints = CheckpointService::new(
        BlockCatalogue::new(store.pool()),
        storage.clone(),
        key.clone(),
        config.files.clone(),
        Arc::clone(clock),
    );
    let catalogue = FileCatalogue::new(store.pool());
    let files = FileService::new(catalogue, storage, key, config.files.clone(), Arc::clone(clock));
    Ok((Arc::new(files), Arc::new(checkpoints)))
}

fn draw_secret() -> Result<[u8; 32], Error> {
    let mut drawn = [0; 32];
    getrandom::fill(&mut drawn).map_err(Error::Randomness)?;
    Ok(drawn)
}

//! The validator: takes users' jobs from a facilitator, assigns a miner to each, drives it to its end, keeps the
//! receipts, scores the miners by them and sets weights on the chain.
//!
//! The decisions are pure: `muster-routing` (is a job admitted, which miner gets it, which one next), the job machine
//! of `muster-protocol` (how an attempt goes on), `muster-scoring` (which miner earned what), `weights::cycle` (when
//! weights are due). The code around them is thin. The [`store`] lies between the parts: a fact that is not stored has
//! not happened, so a validator may be killed at any point.
//!
//! # The way of a user's job
//!
//! ```text
//! facilitator ──▶ muster-facilitator-link     reads the frame
//!                        │ FacilitatorOrder
//!                        ▼
//!                  intake::orders             takes the orders in their order
//!                        │ take
//!                        ▼
//!                  intake::jobs               decides, and stores the job with its first attempt
//!                        │ prepare, start
//!                        ▼
//!                  driver                     one task a job: assigns a miner, again after a failure
//!                        │ run, settle
//!                        ▼
//!                  driver::attempt_runner     one attempt: messages in, state machine, messages out ◀──▶ miner
//!                        │ save, close_job
//!                        ▼
//!                  store                      attempt, receipts, and the outbox of status updates
//!                        │ next_updates
//!                        ▼
//!                  muster-facilitator-link    sends each update until it is acknowledged ──▶ facilitator
//! ```
//!
//! Each part calls only the parts below it. A cancellation takes the same way; live output goes from the attempt runner
//! straight to the link, through a queue that drops what does not fit. The validator's own jobs (sessions of its
//! gateway, challenges of its grading, trials of miners, checks on its trusted miner) enter through `muster_own_jobs`
//! and take the same way from there, without an outbox. [`open_parts`] opens the parts that order them.
//!
//! Beside it, `collateral` reads what miners have deposited, `weights` follows the chain, scores each cycle
//! and sets weights, `receipt_gatherer` reads other validators' receipts, and `status_page` serves the operator's view.
//! `validator_state::ValidatorState` holds what every part needs.

mod collateral;
pub mod config;
mod driver;
mod facilitator;
mod intake;
mod janitor;
mod leadership;
mod metrics;
mod miner_poll;
mod miner_reports;
mod open_parts;
mod operator;
mod outcome_counts;
mod peers;
mod receipt_bounds;
mod receipt_gatherer;
mod snapshot_body;
mod status_page;
mod trials;
mod validator_state;
mod weights;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use muster_audit_runner::AuditRunner;
use muster_chain::ChainError;
use muster_collateral::CollateralError;
use muster_facilitator_link::live_output::LiveOutput;
use muster_gateway::{Gateway, GatewayError};
use muster_http::addresses::{AddressRules, RuleError};
use muster_identity::Keypair;
use muster_identity::wallet::{WalletError, load_hotkey};
use muster_own_jobs::cancel_earlier_sessions;
use muster_process::listen::BindError;
use muster_process::operator_token::{OperatorToken, OperatorTokenError};
use muster_process::ready::ReadyError;
use muster_process::{Coded, SharedClock, Tasks, listen, ready};
use muster_protocol::{ErrorCode, ValidatorKey};
use muster_scoring::AllowanceBook;
use muster_store::StoreError;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use chain::{Chain, Subnet, SubnetView};
use driver::JobDrivers;
use facilitator::FacilitatorNews;
use intake::own_jobs::open_own_jobs;
use intake::whitelist::{publish_whitelist, whitelist_frame};
use leadership::{LeaseKeeper, StandbyParts};
pub use muster_subnet_view as chain;
pub use muster_subnet_view::LinkState;
pub use muster_validator_store as store;
use peers::announcement::announce_pages;
use peers::{PeerValidators, pages_router};
use receipt_gatherer::ReceiptGatherer;
use status_page::StatusSources;
use store::Store;
use validator_state::ValidatorState;
use weights::{ScoringGate, WeightSetter};

use crate::collateral::{CollateralView, ViewSubject};

pub use crate::collateral::{CollateralConfig, CollateralKind, CollateralLedgerConfig};
pub use crate::config::{
    BudgetConfig, ChainConfig, Config, FacilitatorConfig, OperatorConfig, PagesConfig, QueueConfig,
    ReceiptsConfig, RoutingConfig, ScoringConfig, TimingConfig, TrialConfig, TrustedMinerConfig, UsersConfig,
};

/// How long the parts may take to end once the validator is stopped. Jobs of parts that take longer are resumed at
/// the next start.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// The same once another process of this validator leads.
const SUPERSEDED_GRACE: Duration = Duration::from_millis(200);

/// Why a validator cannot start, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The hotkey in the configured wallet cannot be loaded.
    #[error("the validator's hotkey cannot be loaded; check `wallet` in its configuration")]
    Wallet(#[source] WalletError),
    /// The chain's address is malformed.
    #[error("the validator cannot use the chain")]
    Chain(#[source] ChainError),
    /// The store fails. A message whose facts are not durable must not be sent, so the validator stops; open jobs are
    /// resumed at the next start.
    #[error("the validator cannot use its store")]
    Store(#[from] StoreError),
    /// The status address cannot be bound.
    #[error("the validator cannot serve its state")]
    Bind(#[from] BindError),
    /// The gateway cannot be opened.
    #[error("the validator cannot open its gateway")]
    Gateway(#[from] GatewayError),
    /// An entry of `dial.allow` cannot be read.
    #[error("dial.allow: {0}")]
    DialRules(RuleError),
    /// The source of collateral cannot be used.
    #[error("the validator cannot use its source of collateral")]
    Collateral(#[source] CollateralError),
    /// The operator's token cannot be used.
    #[error(transparent)]
    OperatorToken(#[from] OperatorTokenError),
    /// The ready file cannot be written.
    #[error("the validator cannot say that it is ready")]
    Ready(#[from] ReadyError),
    /// The listener of the status address failed.
    #[error("the validator's status address stopped serving")]
    Serve(#[source] std::io::Error),
}

impl Error {
    /// The code of the error's page in `docs/errors/`.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Wallet(_) => Some(ErrorCode::WalletUnusable),
            Self::Chain(error) => error.code(),
            Self::Store(error) => error.code(),
            Self::Bind(error) => error.code(),
            Self::Gateway(error) => error.code(),
            Self::Collateral(_)
            | Self::OperatorToken(_)
            | Self::DialRules(_)
            | Self::Ready(_)
            | Self::Serve(_) => None,
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
/// The wallet, the store or an address cannot be used, or the store fails later. A chain that does not answer is no
/// error: the validator waits for it.
pub async fn run(config: Config, tasks: Tasks, clock: SharedClock) -> Result<(), Error> {
    let keypair = load_hotkey(&config.wallet).map_err(Error::Wallet)?;
    let subnet = Subnet::new(config.chain.endpoints(), config.chain.netuid, keypair.clone());
    run_on(config, keypair, Arc::new(subnet), tasks, clock).await
}

/// Runs a validator with this key on this chain.
///
/// # Errors
/// The store or an address cannot be used, or the store fails later.
pub async fn run_on(
    config: Config,
    keypair: Keypair,
    chain: Arc<dyn Chain>,
    tasks: Tasks,
    clock: SharedClock,
) -> Result<(), Error> {
    let listener = listen::bind(config.bind)?;
    let address = listener.local_addr().map_err(Error::Serve)?;
    // An address that cannot be used is found now, and not when this process begins to lead.
    let later = [config.pages.bind, config.operator.bind, config.gateway.bind];
    for bind in later.into_iter().flatten() {
        drop(listen::bind(bind)?);
    }
    let waiting = StandbyParts {
        config: &config,
        chain: &chain,
        clock: &clock,
        tasks: &tasks,
        address,
    };
    let Some(led) = leadership::open_store(waiting, listener).await? else {
        return Ok(());
    };
    let store = Arc::new(led.store);
    let gateway = Arc::new(OnceLock::new());
    let own_tasks = tasks_stopping_with(&tasks, Arc::clone(&gateway));
    let state = new_state(config, keypair, chain, own_tasks, clock, Arc::clone(&store));
    let (ended, is_quiet) = match state {
        Ok(state) => {
            let keeper = LeaseKeeper::start(&state, led.since);
            let ended = lead(&state, (led.listener, address), &gateway).await;
            keeper.stop();
            ended
        }
        Err(error) => (Err(error), true),
    };
    leadership::give_back(&store, is_quiet).await;
    ended
}

fn new_state(
    config: Config,
    keypair: Keypair,
    chain: Arc<dyn Chain>,
    tasks: Tasks,
    clock: SharedClock,
    store: Arc<Store>,
) -> Result<Arc<ValidatorState>, Error> {
    let max_age = Duration::from_secs(config.chain.refresh_s);
    let rules = Arc::new(AddressRules::parse(&config.dial.allow).map_err(Error::DialRules)?);
    let subnet = Arc::new(SubnetView::new(
        chain,
        Arc::clone(&clock),
        max_age,
        Arc::clone(&rules),
    ));
    let subject = ViewSubject {
        endpoints: config.chain.endpoints(),
        netuid: config.chain.netuid,
        validator: keypair.hotkey(),
    };
    let (own_store, own_clock) = (Arc::clone(&store), Arc::clone(&clock));
    let collateral = CollateralView::new(&config.collateral, subject, own_store, own_clock);
    let collateral = collateral.map_err(Error::Collateral)?;
    let allowance = Mutex::new(AllowanceBook::new(ValidatorKey(keypair.hotkey())));
    Ok(Arc::new(ValidatorState {
        config,
        keypair,
        clock,
        tasks,
        store,
        subnet,
        collateral,
        rules,
        allowance,
        proven: Mutex::default(),
        barred: Arc::default(),
        broken_images: Mutex::default(),
        stakes: Arc::default(),
        fatal: Mutex::default(),
        superseded: CancellationToken::new(),
    }))
}

/// Serves until the validator stops, and waits for its tasks. Once another process leads, nothing is waited for.
/// Returns the reason of the end, and whether every task has ended.
async fn lead(
    state: &Arc<ValidatorState>,
    (status, address): (TcpListener, SocketAddr),
    gateway: &OnceLock<Gateway>,
) -> (Result<(), Error>, bool) {
    let serving = async {
        let bind = |address: Option<SocketAddr>| address.map(listen::bind).transpose();
        let listeners = Listeners {
            status,
            address,
            pages: bind(state.config.pages.bind)?,
            operator: bind(state.config.operator.bind)?,
        };
        serve(state, listeners, gateway).await
    };
    let served = tokio::select! {
        served = serving => served,
        () = state.superseded.cancelled() => Ok(()),
    };
    state.tasks.shutdown();
    let superseded = async {
        state.superseded.cancelled().await;
        tokio::time::sleep(SUPERSEDED_GRACE).await;
    };
    let is_quiet = tokio::select! {
        ended = state.tasks.wait(STOP_GRACE) => match ended {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, "stopping without waiting longer; open jobs are resumed at the next start");
                false
            }
        },
        () = superseded => false,
    };
    match state.take_fatal_error() {
        Some(error) => (Err(error), is_quiet),
        None => (served, is_quiet),
    }
}

/// The tasks of one validator. They stop when the process does, after the answers that its gateway has under way, and
/// by themselves when the validator fails.
fn tasks_stopping_with(process: &Tasks, gateway: Arc<OnceLock<Gateway>>) -> Tasks {
    let own = Tasks::new();
    let (stop, own_stop, all) = (process.token(), own.token(), own.clone());
    let stopping = async move {
        stop.cancelled().await;
        if let Some(gateway) = gateway.get() {
            gateway.drain().await;
        }
        all.shutdown();
    };
    drop(own.spawn("stop", async move {
        tokio::select! {
            () = stopping => {}
            () = own_stop.cancelled() => {}
        }
    }));
    own
}

/// Reads the miners' collateral until the validator stops.
async fn follow_collateral(state: Arc<ValidatorState>) -> Result<(), StoreError> {
    let reading = async {
        while state.collateral.is_required() {
            let metagraph = state.subnet.metagraph().await;
            state.collateral.read_and_rest(&metagraph).await;
        }
    };
    state.tasks.token().run_until_cancelled(reading).await;
    Ok(())
}

/// The sockets on which the validator listens.
struct Listeners {
    status: TcpListener,
    /// The address of the status page.
    address: SocketAddr,
    /// For other validators.
    pages: Option<TcpListener>,
    /// For the operator's browser.
    operator: Option<TcpListener>,
}

/// Starts the operator's pages, where they have an address, and the metrics.
fn start_observers(
    state: &Arc<ValidatorState>,
    sources: &StatusSources,
    operator_listener: Option<TcpListener>,
) {
    if let Some(listener) = operator_listener {
        let (calls, token) = (status_page::router(sources.clone()), sources.operator.clone());
        let serving = operator::serve(Arc::clone(state), calls, token, listener);
        state.tasks.spawn("operator's pages", serving);
    }
    let (measuring, stop) = (metrics::measure(sources.clone()), state.tasks.token());
    state.spawn("measure", async move {
        stop.run_until_cancelled(measuring).await;
        Ok(())
    });
}

/// Begins to gather others' receipts, statements and bundles of audit evidence, if the configuration asks for it.
fn start_gathering(
    state: &Arc<ValidatorState>,
    drivers: &Arc<JobDrivers>,
    gate: Arc<ScoringGate>,
    audits: Option<AuditRunner>,
) {
    if !state.config.receipts.gather {
        return;
    }
    let peers = Arc::new(PeerValidators::new(Arc::clone(state), Arc::clone(&gate)));
    if let Some(exchange) = open_parts::verdict_exchange(state, audits, peers.subscribe_addresses()) {
        state.spawn("verdict exchange", exchange.run());
    }
    let gatherer = ReceiptGatherer {
        state: Arc::clone(state),
        drivers: Arc::clone(drivers),
        gate,
        peers,
    };
    state.spawn("receipts", gatherer.run());
}

/// Starts every part and serves the status page until the validator stops.
async fn serve(
    state: &Arc<ValidatorState>,
    listeners: Listeners,
    drained_at_stop: &OnceLock<Gateway>,
) -> Result<(), Error> {
    let Listeners {
        status: listener,
        address,
        pages,
        operator: operator_listener,
    } = listeners;
    let operator = OperatorToken::open(&state.config.operator_token)?;
    let live_output = Arc::new(LiveOutput::default());
    let greeting = whitelist_frame(&state.config);
    let drivers = JobDrivers::new(Arc::clone(state), Arc::clone(&live_output), greeting).await?;
    cancel_earlier_sessions(&state.store).await?;
    drivers.resume().await?;
    let own_jobs = open_own_jobs(state, &drivers);
    let gateway = open_parts::open_gateway(state, own_jobs.clone()).await?;
    if let Some(gateway) = &gateway {
        let _ = drained_at_stop.set(gateway.clone());
    }
    let trusted = open_parts::trusted_sessions(state, own_jobs.clone());
    let audits = open_parts::open_audits(state, gateway.as_ref(), trusted.clone()).await?;
    let checks = open_parts::cross_checks(state, own_jobs.clone(), audits.clone());
    state.spawn("cross-checks", checks.clone().run(state.tasks.token()));
    let trials = trials::run(Arc::clone(state), Arc::clone(&drivers.records), own_jobs.clone());
    state.spawn("trials", trials);
    let grading = open_parts::open_grading(state, &drivers, own_jobs, gateway.clone()).await?;
    let gate = Arc::new(ScoringGate::default());
    let news = FacilitatorNews {
        drivers: Arc::clone(&drivers),
        live_output: Arc::clone(&live_output),
        gateway: gateway.clone(),
        grading: grading.store().clone(),
        checks: checks.clone(),
    };
    let link = facilitator::start(state, news);
    let publishing = publish_whitelist(Arc::clone(state), Arc::clone(&drivers));
    state.spawn("whitelist", publishing);
    state.spawn("collateral", follow_collateral(Arc::clone(state)));
    state.spawn("janitor", janitor::run(Arc::clone(state)));
    let weights = WeightSetter {
        state: Arc::clone(state),
        grading: grading.clone(),
        gate: Arc::clone(&gate),
    };
    state.spawn("weights", weights.run());
    let polling = miner_poll::follow_cycles(Arc::clone(state), Arc::clone(&drivers), Arc::clone(&gate));
    state.spawn("miner poll", polling);
    start_gathering(state, &drivers, gate, audits.clone());
    if let Some(pages) = pages {
        state.spawn("pages", pages_router::serve(Arc::clone(state), pages));
    }
    if let Some(announce) = state.config.pages.announce {
        state.spawn("announcement", announce_pages(Arc::clone(state), announce));
    }
    ready::announce(address, state.config.ready_file.as_deref())?;
    let sources = StatusSources {
        state: Arc::clone(state),
        link,
        live_output,
        gateway,
        audits,
        checks,
        grading,
        drivers,
        operator,
        trusted,
    };
    start_observers(state, &sources, operator_listener);
    status_page::serve(sources, listener).await;
    Ok(())
}

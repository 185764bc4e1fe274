//! The miner: admits jobs of validators, lends each an executor, and loses no result and no receipt.
//!
//! Read in this order: [`admission`], [`lease`] and [`lease_table`] decide, purely; [`dispatcher`] feeds them and
//! carries out their effects; [`store`] and [`receipt_pages`] keep state; [`greeting`], [`validator_session`],
//! [`executor_session`] and [`public_port`] talk; [`manager`] starts executors and [`persistent`] lends those that stay
//! connected; [`chain`] knows the validators to serve.
//!
//! Absent on purpose: scoring, and any knowledge of what a job does.

pub mod admission;
pub mod certificate;
pub mod chain;
pub mod config;
pub mod dispatcher;
pub mod drain;
pub mod executor_pools;
pub mod executor_session;
pub mod fleet;
pub mod greeting;
pub mod lease;
pub mod lease_table;
pub mod machine_board;
mod metrics;
pub mod miner_state;
pub mod operator;
pub mod persistent;
pub mod public_port;
mod published_grades;
pub mod receipt_pages;
pub mod session_queues;
pub mod store;
#[cfg(test)]
mod testing;
pub mod validator_session;
pub mod validator_shares;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use muster_audit_check::AuditCheck;
use muster_enrollment::{ExecutorRegistry, RegistryError};
use muster_http::addresses::{AddressRules, RuleError};
use muster_identity::Keypair;
use muster_identity::wallet::{WalletError, load_hotkey};
use muster_process::connections::ConnectionCounts;
use muster_process::error::Coded;
use muster_process::folders::report_folders;
use muster_process::listen::{BindError, bind, local_address};
use muster_process::operator_token::{OperatorToken, OperatorTokenError};
use muster_process::ready::{ReadyError, announce};
use muster_process::{SharedClock, Tasks};
use muster_protocol::{ErrorCode, Manifest, MinerKey};
use muster_receipts::{FetchError, Fetcher};
use muster_store::StoreError;
use muster_store::retention::{JanitorStore, run_janitor};
use muster_websocket::Limits;

use crate::certificate::{CertificateError, MinerCertificate};
use crate::chain::{ChainFollower, MinerStatement, ServedValidators};
use crate::dispatcher::Dispatcher;
use crate::executor_pools::{OpenPoolError, Pool, PoolOwner, Pools};
use crate::fleet::Fleet;
use crate::greeting::UNAUTHENTICATED;
use crate::lease::LeaseTimeouts;
use crate::lease_table::{FetchRules, LeaseRules, LeaseTable};
use crate::manager::{Commands, ExecutorManager, LocalProcesses, Provisioner};
use crate::miner_state::{LeaseGauge, MinerState, SessionLimiter};
use crate::operator::{OperatorBoard, OperatorSources};
use crate::persistent::{ExecutorPool, PersistentServer};
use crate::published_grades::GradeReader;
use crate::receipt_pages::{PageError, Pages, oldest_page};
use crate::session_queues::inbox;
use crate::store::Store;
use crate::validator_shares::shares::ShareRules;
use crate::validator_shares::unpaid::UnpaidRules;

pub use crate::config::{
    ChainConfig, Config, ExecutorConfig, MinerRetentionConfig, OperatorConfig, PersistentConfig,
    SharesConfig, TlsConfig,
};
pub use muster_provisioning as manager;

/// How long a validator may take to send the job once its executor is ready, as in ComputeHorde.
const PAYLOAD_TIME: Duration = Duration::from_secs(600);
/// The time beyond the sum of a job's own limits after which the miner ends it: the validator's clock comes first.
const MARGIN: Duration = Duration::from_secs(60);
/// How long the miner waits at its start for the engines of its pools.
const SETTLE: Duration = Duration::from_secs(10);
/// How long sessions and executors may take to end once the miner stops.
const GRACE: Duration = Duration::from_secs(30);

/// The reason for which a miner does not run.
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
    /// Its registry of persistent executors cannot be used.
    #[error("cannot use the registry of persistent executors")]
    Registry(#[from] RegistryError),
    /// Its key towards persistent executors is invalid.
    #[error("cannot use the miner's key towards its executors")]
    Tls(#[from] rustls::Error),
    /// Its certificate cannot be served.
    #[error("cannot serve the miner's certificate")]
    Certificate(#[from] CertificateError),
    /// The operator's token cannot be used.
    #[error(transparent)]
    OperatorToken(#[from] OperatorTokenError),
    /// The addresses of validators' pages that its operator allows cannot be read.
    #[error("cannot use operator.dial_allow")]
    DialRules(#[source] RuleError),
    /// The client that reads validators' pages cannot be made.
    #[error("cannot make the client that reads validators' pages")]
    Fetcher(#[from] FetchError),
    /// A pool of executors cannot be used.
    #[error("cannot open the miner's pools of executors")]
    Pool(#[from] OpenPoolError),
    /// It cannot write its ready file.
    #[error("cannot announce that the miner is up")]
    Ready(#[from] ReadyError),
}

impl Coded for Error {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Wallet(_) => Some(ErrorCode::WalletUnusable),
            Self::Store(error) => error.code(),
            Self::Bind(error) => error.code(),
            Self::Pages(_)
            | Self::Pool(_)
            | Self::Ready(_)
            | Self::Registry(_)
            | Self::Tls(_)
            | Self::Certificate(_)
            | Self::OperatorToken(_)
            | Self::DialRules(_)
            | Self::Fetcher(_) => None,
        }
    }
}

/// Runs a miner until the token of `tasks` is cancelled, with executors as child processes and the wallet of `config`.
///
/// # Errors
/// The miner cannot start, or its store failed for good.
pub async fn run(config: Config, tasks: Tasks, clock: SharedClock) -> Result<(), Error> {
    let key = load_hotkey(&config.wallet)?;
    let manager = manager_of(&config.executor, &clock);
    run_with(config, key, manager, tasks, clock).await
}

/// The manager in the configuration: commands that provision, or processes on this machine.
fn manager_of(executor: &ExecutorConfig, clock: &SharedClock) -> Arc<dyn ExecutorManager> {
    if executor.provision.is_empty() {
        return Arc::new(LocalProcesses::new(executor.command.clone(), Arc::clone(clock)));
    }
    let commands = Commands {
        provision: executor.provision.clone(),
        release: executor.release.clone(),
        limit: Duration::from_secs(executor.provision_s),
        daily: (executor.daily_machine_s > 0).then(|| Duration::from_secs(executor.daily_machine_s)),
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
    let listener = bind(config.bind)?;
    let address = listener.local_addr().map_err(|source| BindError {
        address: config.bind,
        source,
    })?;
    let now = clock.now();
    let lines = store.lines_since(oldest_page(now)).await?;
    let board = Arc::new(OperatorBoard::default());
    board.add_receipts(lines.iter().map(|line| line.line.as_str()));
    let pages = Pages::open(&config.receipts_dir, lines, now).await?;
    // Sessions outlive the call to stop, because they must learn the end of their leases. So they have their own
    // spawner.
    let own = Tasks::new();
    let pools = open_pools(&config, manager, &MinerKey(key.hotkey()), &own, &clock).await?;
    let rules = rules(&config, pools.fixed());
    let (leases, pending) = LeaseTable::open(rules, store.records().await?, now);
    let (inbox, events) = inbox();
    let served = ServedValidators::new(
        config.validators.iter().copied(),
        config.blacklist.iter().copied(),
        Duration::from_secs(config.shares.rivals_days.saturating_mul(24 * 3_600)),
    );
    for (validator, at) in store.greeted_validators().await? {
        served.note_greeted(validator, at);
    }
    let gauge = Arc::new(LeaseGauge::default());
    let me = MinerKey(key.hotkey());
    let audit_check = store
        .audit_check()
        .map(|kept| AuditCheck::new(kept, me, Arc::clone(&clock)));
    let context = Arc::new(MinerState {
        main_hotkey: config.main_hotkey.unwrap_or(key.hotkey()),
        key,
        served,
        store: store.clone(),
        pages: pages.clone(),
        clock: Arc::clone(&clock),
        inbox: inbox.clone(),
        limits: Limits::miner(),
        require_signature: config.require_validator_signature,
        pools: pools.clone(),
        machines: machine_board::MachineBoard::default(),
        hangup: own.token(),
        seats: SessionLimiter::default(),
        strangers: ConnectionCounts::new(UNAUTHENTICATED),
        gauge: Arc::clone(&gauge),
        audit_check,
        board: Arc::clone(&board),
        next: AtomicU64::new(0),
    });
    let pool = ExecutorPool::default();
    let certificate = MinerCertificate::open(&config.tls, &own, &clock)?;
    let digest = certificate.as_ref().map(|certificate| certificate.digest.clone());
    let fleet = Fleet::new(pool.clone(), pools.clone(), digest.clone(), own.token());
    start_fleet(&config, &fleet, &pool, &context, &own).await?;
    let manifest = fleet.manifest();
    let manager: Arc<dyn ExecutorManager> = Arc::new(fleet);
    own.spawn(
        "executors of an earlier process",
        manager.reclaim(leases.open_attempts()),
    );
    let port = public_port::MinerPort {
        settings: config.http.clone(),
        tls: certificate.as_ref().map(|certificate| certificate.tls.clone()),
        refuses_plain: config.tls.refuse_plain,
    };
    let serving = public_port::serve(listener, port, Arc::clone(&context), own.clone(), own.token());
    own.spawn("http", serving);
    open_operator_pages(&config, &context, &pool, &own).await?;
    start_janitor(&config, &store, &own, &clock);
    let measuring = metrics::measure(Arc::clone(&context), pool.clone());
    let stopped = own.token();
    own.spawn(
        "measure",
        async move { stopped.run_until_cancelled(measuring).await },
    );
    let statement = MinerStatement {
        address: config.announce.unwrap_or(address),
        certificate: digest,
        manifest,
    };
    follow_chain(&config, &context, statement, &own)?;
    announce(address, config.ready_file.as_deref())?;

    let dispatcher = Dispatcher {
        leases,
        store: store.clone(),
        pages,
        clock,
        tasks: own.clone(),
        manager,
        miner_address: match config.executor.dial.as_str() {
            "" => format!("ws://{}", local_address(address)),
            dial => dial.to_owned(),
        },
        pool,
        inbox,
        drain: Duration::from_secs(config.drain_s),
        gauge,
        board,
    };
    let outcome = dispatcher.run(events, pending, tasks.token()).await;
    own.shutdown();
    if let Err(error) = own.wait(GRACE).await {
        tracing::warn!(%error, "the miner stops all the same");
    }
    store.close().await;
    Ok(outcome?)
}

/// Serves the operator's pages, where the configuration has an address for them.
async fn open_operator_pages(
    config: &Config,
    context: &Arc<MinerState>,
    pool: &ExecutorPool,
    tasks: &Tasks,
) -> Result<(), Error> {
    let Some(address) = config.operator.bind else {
        return Ok(());
    };
    let token = OperatorToken::open(&config.operator.token)?;
    let listener = bind(address)?;
    let sources = OperatorSources {
        state: Arc::clone(context),
        pool: pool.clone(),
    };
    tracing::info!(%address, "the operator's pages are served");
    let serving = operator::open(sources, token, listener, config.http.clone(), tasks.clone());
    tasks.spawn("operator's pages", serving);
    Ok(())
}

/// Starts the janitor of the store and the measurement of the folders, until the miner stops.
fn start_janitor(config: &Config, store: &Store, tasks: &Tasks, clock: &SharedClock) {
    let pace = config.retention.pace.pace();
    let folders = vec![
        ("receipts_dir", config.receipts_dir.clone()),
        ("executor.provisioned", config.executor.provisioned.clone()),
        ("standing.roll", config.persistent.roll.clone()),
    ];
    let reporting = report_folders("miner", folders, pace.measure, Arc::clone(clock));
    let stop = tasks.token();
    tasks.spawn("measure folders", async move {
        stop.run_until_cancelled(reporting).await
    });
    let Some((rules, writer)) = store.retention(config.retention.receipts) else {
        return;
    };
    let janitor_store = JanitorStore {
        role: "miner",
        url: config.store.clone(),
        writer,
    };
    let janitor = run_janitor(rules, janitor_store, pace, Arc::clone(clock));
    let stop = tasks.token();
    tasks.spawn("janitor", async move { stop.run_until_cancelled(janitor).await });
}

/// Announces the miner's address on the chain and keeps the served validators fresh, where a chain is configured.
fn follow_chain(
    config: &Config,
    context: &MinerState,
    statement: MinerStatement,
    tasks: &Tasks,
) -> Result<(), Error> {
    if !config.follows_chain() {
        return Ok(());
    }
    let grades = match config.operator.bind {
        Some(_) => Some((grade_reader(config, context)?, Arc::clone(&context.board))),
        None => None,
    };
    let follower = ChainFollower {
        urls: config.chain.endpoints(),
        netuid: config.chain.netuid,
        refresh: Duration::from_secs(config.chain.refresh_s),
        key: context.key.clone(),
        statement,
        served: context.served.clone(),
        inbox: context.inbox.clone(),
        clock: Arc::clone(&context.clock),
        audit_check: context.audit_check.clone(),
        grades,
    };
    tasks.spawn("chain", follower.run(tasks.token()));
    Ok(())
}

/// Reads validators' statements for the operator's pages.
fn grade_reader(config: &Config, context: &MinerState) -> Result<GradeReader, Error> {
    Ok(GradeReader {
        me: context.me(),
        netuid: config.chain.netuid,
        rules: AddressRules::parse(&config.operator.dial_allow).map_err(Error::DialRules)?,
        fetcher: Fetcher::new()?,
        pause: Duration::from_secs(config.operator.grades_s),
        clock: Arc::clone(&context.clock),
    })
}

/// Opens the pools of the configuration, the first of which is `manager`.
async fn open_pools(
    config: &Config,
    manager: Arc<dyn ExecutorManager>,
    me: &MinerKey,
    tasks: &Tasks,
    clock: &SharedClock,
) -> Result<Pools, Error> {
    // The lease table decides which processes may run jobs; those that fetch are there beside them. A machine that was
    // provisioned for a lease costs too much to do nothing else.
    let fetching = config.fetch.slots.saturating_add(config.fetch.waiting);
    let name = me.to_string();
    let owner = PoolOwner {
        name: &name,
        provisioned: &config.executor.provisioned,
        fetching,
    };
    let own = config.executor.own_pool();
    let fetching = if config.executor.provision.is_empty() {
        fetching
    } else {
        0
    };
    let mut pools = vec![Pool::new(&own, manager, fetching)];
    for further in &config.executor.pools {
        pools.push(crate::executor_pools::open(further, owner, tasks, clock).await?);
    }
    let pools = Pools::new(pools);
    // Validators that connect first would be sent none.
    tokio::select! {
        () = pools.settled() => {}
        () = clock.sleep(SETTLE) => tracing::warn!("an engine of a pool has not answered yet; the miner starts without its executors"),
    }
    Ok(pools)
}

/// Serves persistent executors, where the configuration has a port for them, reports the fleet's capacity to the
/// dispatcher, and follows the operator's wish to empty the miner or hosts.
async fn start_fleet(
    config: &Config,
    fleet: &Fleet,
    pool: &ExecutorPool,
    context: &Arc<MinerState>,
    tasks: &Tasks,
) -> Result<(), Error> {
    let (inbox, clock) = (context.inbox.clone(), Arc::clone(&context.clock));
    if let Some(address) = config.persistent.bind {
        let roll = ExecutorRegistry::new(&config.persistent.roll);
        serve_persistent(address, roll, pool.clone(), Arc::clone(context), tasks).await?;
    }
    let publishing = fleet
        .clone()
        .publish(inbox.clone(), Arc::clone(&clock), tasks.token());
    tasks.spawn("capacity", publishing);
    let wish = drain::DrainWish::of(config);
    tasks.spawn(
        "drain",
        drain::watch(wish, fleet.clone(), inbox, clock, tasks.token()),
    );
    Ok(())
}

/// Opens the port of persistent executors, and reports their capacity to the dispatcher.
async fn serve_persistent(
    address: SocketAddr,
    roll: ExecutorRegistry,
    pool: ExecutorPool,
    context: Arc<MinerState>,
    tasks: &Tasks,
) -> Result<(), Error> {
    let reading = roll.clone();
    let identity = tokio::task::spawn_blocking(move || reading.identity());
    let identity = identity.await.unwrap_or_else(|error| {
        let (path, source) = ("roll".into(), std::io::Error::other(error));
        Err(RegistryError::File { path, source })
    })?;
    let listener = bind(address)?;
    let address = listener
        .local_addr()
        .map_err(|source| BindError { address, source })?;
    tracing::info!(%address, certificate = %identity.fingerprint(), "persistent executors may connect");
    let (limits, clock) = (context.limits, Arc::clone(&context.clock));
    let server = PersistentServer { context, pool, roll };
    let config = muster_process::tls::server(&identity)?;
    let listening = muster_websocket::tls::listen(
        listener,
        config,
        limits,
        Arc::new(server),
        tasks.clone(),
        clock,
        tasks.token(),
    );
    tasks.spawn("persistent executors", listening);
    Ok(())
}

fn rules(config: &Config, manifest: Manifest) -> LeaseRules {
    LeaseRules {
        manifest,
        patience: LeaseTimeouts {
            startup: Duration::from_secs(config.executor.startup_s),
            prepare: Duration::from_secs(config.executor.prepare_s),
            image: Duration::from_secs(config.fetch.image_s),
            payload: PAYLOAD_TIME,
            margin: MARGIN,
            skew: Duration::from_millis(config.executor.max_skew_ms),
            reattach: Duration::from_secs(config.executor.reattach_s),
            lend: Some(Duration::from_secs(config.executor.lend_s)).filter(|lend| !lend.is_zero()),
        },
        memory: Duration::from_secs(config.retention.results_s),
        fetch: FetchRules {
            slots: config.fetch.slots,
            per_account: config.fetch.per_account,
            per_registry: config.fetch.per_registry,
            waiting: config.fetch.waiting,
        },
        unpaid: UnpaidRules {
            course: Duration::from_secs(config.shares.unpaid_course_s),
            percent: config.shares.unpaid_percent,
            window: Duration::from_secs(config.retention.results_s),
        },
        shares: ShareRules {
            floor: config.shares.floor,
            beyond: Duration::from_secs(config.shares.beyond_s),
        },
    }
}

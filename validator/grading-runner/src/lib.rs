//! Runs grading batches for a validator. All decisions are made in `muster-grading`; this crate carries them out.
//!
//! A validator opens a [`GradingRunner`]. The runner waits for a block whose hash begins a batch, or for a request of
//! the operator (`schedule`). It leases every executor as a streaming job with the grader's image, opens the sealed
//! sessions, waits at the barrier, challenges all executors at once, and stores the evidence. `batch_run` runs one
//! batch, `executor_run` one executor in it, [`conversation`] measures the time, [`transport`] carries the messages,
//! [`store`] holds the tables.

mod announcements;
mod batch_run;
pub mod conversation;
mod executor_run;
mod judging_permits;
mod runner_state;
mod schedule;
mod settings;
pub mod store;
pub mod transport;

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use muster_gateway::Gateway;
use muster_http::addresses::AddressRules;
use muster_own_jobs::OwnJobs;
use muster_process::{SharedClock, Tasks};
use muster_protocol::ValidatorKey;
use muster_scoring::ObservationKind;
use muster_store::{StoreError, Writer};
use muster_subnet_view::SubnetView;
use parking_lot::Mutex;
use sqlx::AnyPool;
use tokio::sync::{mpsc, oneshot};

pub use announcements::Announcements;
use judging_permits::JudgingPermits;
pub use runner_state::BatchRejection;
use runner_state::RunnerState;
pub use settings::{GraderImage, Settings};
use store::GradingStore;
pub use transport::Transport;

/// The number of operator requests that may wait for their batch.
const MAX_WAITING_REQUESTS: usize = 4;

/// Asks every miner of the subnet for its executors, and returns the answers.
pub type PollMiners = Box<dyn Fn() -> BoxFuture<'static, Announcements> + Send + Sync>;

/// The dependencies of a [`GradingRunner`].
pub struct GradingDeps {
    /// The validator that runs the batches.
    pub validator: ValidatorKey,
    /// The validator's own jobs, which lease the executors.
    pub own_jobs: OwnJobs,
    /// The gateway, whose sessions are challenged while they serve; `None` if the validator has none.
    pub gateway: Option<Gateway>,
    /// The chain, whose blocks begin batches.
    pub subnet: Arc<SubnetView>,
    /// The addresses at which a session may be dialled.
    pub rules: Arc<AddressRules>,
    /// The stakes in rao by which receipts are valued at present; empty before they are known.
    pub stakes: Arc<Mutex<BTreeMap<ValidatorKey, u64>>>,
    /// Asks every miner of the subnet for its executors.
    pub poll_miners: PollMiners,
    /// Connections that read the validator's database, whose migrations have been applied.
    pub pool: AnyPool,
    /// Writes to the same database.
    pub writer: Writer,
    /// The clock of the validator.
    pub clock: SharedClock,
    /// The task group of the runner. Its token stops the runner.
    pub tasks: Tasks,
    /// Called when the store fails. The validator cannot go on then.
    pub on_store_failure: Box<dyn Fn(StoreError) + Send + Sync>,
}

/// Runs batches. Clones share one runner.
#[derive(Clone)]
pub struct GradingRunner {
    state: Arc<RunnerState>,
    requests: mpsc::Sender<BatchRequest>,
}

impl std::fmt::Debug for GradingRunner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GradingRunner")
            .field("settings", &self.state.settings)
            .finish_non_exhaustive()
    }
}

/// An operator's request for a batch.
struct BatchRequest {
    kind: ObservationKind,
    result: oneshot::Sender<Result<String, BatchRejection>>,
}

impl GradingRunner {
    /// Voids the batches that an earlier process did not finish, and begins to wait for blocks.
    ///
    /// # Errors
    /// The store fails.
    pub async fn open(settings: Settings, deps: GradingDeps) -> Result<Self, StoreError> {
        let store = GradingStore::new(deps.pool, deps.writer);
        let voided = store.void_unfinished(deps.clock.now()).await?;
        if voided > 0 {
            tracing::warn!(
                voided,
                "a batch that an earlier process did not finish is void: none of it counts"
            );
        }
        let grade_specs = settings.grade_specs().unwrap_or_else(|why| {
            // The file was right when the configuration was checked, so it has changed since.
            tracing::error!(why, "the file of floors is missing or wrong: no class is graded until it is right and the validator is restarted");
            Vec::new()
        });
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        let state = Arc::new(RunnerState {
            settings,
            grade_specs,
            validator: deps.validator,
            own_jobs: deps.own_jobs,
            gateway: deps.gateway,
            subnet: deps.subnet,
            rules: deps.rules,
            stakes: deps.stakes,
            poll_miners: deps.poll_miners,
            polled: Mutex::new(None),
            store,
            clock: deps.clock,
            tasks: deps.tasks,
            judging_permits: JudgingPermits::new(cores.saturating_mul(2)),
            on_store_failure: deps.on_store_failure,
        });
        let (requests, incoming) = mpsc::channel(MAX_WAITING_REQUESTS);
        let running = Arc::clone(&state);
        drop(state.tasks.spawn("grading", async move {
            schedule::run_batches(&running, incoming).await
        }));
        Ok(Self { state, requests })
    }

    /// Runs a batch of this kind with the next block, whatever its hash. Returns its id once all its executors are
    /// judged.
    ///
    /// # Errors
    /// There is no batch, for one of the reasons of [`BatchRejection`].
    pub async fn run_now(&self, kind: ObservationKind) -> Result<String, BatchRejection> {
        if self.state.settings.images.is_empty() {
            return Err(BatchRejection::NoGrader);
        }
        let (result, batch) = oneshot::channel();
        self.requests
            .try_send(BatchRequest { kind, result })
            .map_err(|_| BatchRejection::QueueFull)?;
        batch.await.unwrap_or(Err(BatchRejection::Stopping))
    }

    /// The store of all batches.
    pub fn store(&self) -> &GradingStore {
        &self.state.store
    }
}

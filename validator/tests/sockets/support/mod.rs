//! A validator in this process between a scripted facilitator, scripted miners and a chain that a test seals by hand.
//!
//! Sockets, frames, store and signatures are the real ones. Nothing sleeps: a test waits for a frame, with a deadline
//! that only a defect reaches, and moves the clock where time matters.

pub(crate) mod chain;
pub(crate) mod door;
pub(crate) mod facilitator;
pub(crate) mod fleet;
pub(crate) mod miner;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_identity::Keypair;
use muster_process::task::Task;
use muster_process::{SharedClock, SystemClock, Tasks, TestClock};
use muster_validator::{Config, Error, run_on};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use chain::TestChain;
use facilitator::Facilitator;
use miner::Miner;

/// Longer than anything a healthy validator takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Waits for `what`, at most as long as patience lasts.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

/// Everything around one validator. It is stopped and its folder removed when this is dropped.
pub(crate) struct World {
    pub(crate) chain: Arc<TestChain>,
    pub(crate) facilitator: Facilitator,
    pub(crate) config: Config,
    pub(crate) keypair: Keypair,
    /// The clock that the test moves; unused where the system's is taken.
    pub(crate) test_clock: TestClock,
    clock: SharedClock,
    running: Option<Running>,
    folder: TempDir,
}

struct Running {
    tasks: Tasks,
    validator: Task<Result<(), Error>>,
    /// Where a validator runs that is going to be killed.
    runtime: Option<Runtime>,
}

impl World {
    /// A world with these miners in real time.
    pub(crate) async fn new(miners: &[&Miner]) -> Self {
        Self::with_clock(miners, Arc::new(SystemClock::new()), TestClock::default()).await
    }

    /// A world with these miners whose time the test moves.
    pub(crate) async fn timed(miners: &[&Miner]) -> Self {
        let clock = TestClock::default();
        Self::with_clock(miners, Arc::new(clock.clone()), clock).await
    }

    async fn with_clock(miners: &[&Miner], clock: SharedClock, test_clock: TestClock) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let keypair = Keypair::from_uri("//Validator").unwrap();
        let facilitator = Facilitator::open().await;
        let mut config = Config {
            bind: SocketAddr::from(([127, 0, 0, 1], 0)),
            ready_file: Some(folder.path().join("ready.json")),
            store: format!("sqlite:{}", folder.path().join("validator.db").display()),
            ..Config::default()
        };
        config.facilitator.url = facilitator.url();
        config.users.allow_any = true;
        config.chain.refresh_s = 0;
        // The tests of gathering switch it on.
        config.receipts.gather = false;
        // Most tests look at one job's session, and wait for its end. Those of shared sessions say otherwise.
        config.timing.linger_s = 0;
        let chain = TestChain::new(&keypair, miners);
        Self {
            chain: Arc::new(chain),
            facilitator,
            config,
            keypair,
            test_clock,
            clock,
            running: None,
            folder,
        }
    }

    /// Starts the validator.
    pub(crate) fn start(&mut self) {
        self.start_in(None);
    }

    /// Starts the validator in a runtime of its own, so that it can be killed.
    pub(crate) fn start_mortal(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        self.start_in(Some(runtime));
    }

    /// Ends the validator at whichever await each of its tasks has come to. Nothing of it tidies up.
    pub(crate) fn kill(&mut self) {
        let running = self.running.take().expect("a validator runs");
        let runtime = running.runtime.expect("a mortal validator");
        // A runtime waits for its threads when it is dropped, which must not be done within another.
        std::thread::spawn(move || drop(runtime)).join().unwrap();
        let _ = std::fs::remove_file(self.folder.path().join("ready.json"));
    }

    fn start_in(&mut self, runtime: Option<Runtime>) {
        let entered = runtime.as_ref().map(Runtime::enter);
        let tasks = Tasks::new();
        let chain = Arc::clone(&self.chain);
        let run = run_on(
            self.config.clone(),
            self.keypair.clone(),
            chain,
            tasks.clone(),
            Arc::clone(&self.clock),
        );
        let validator = Tasks::new().spawn("validator", run);
        drop(entered);
        self.running = Some(Running {
            tasks,
            validator,
            runtime,
        });
    }

    /// Stops the validator and waits for its end. What it has not stored is gone.
    pub(crate) async fn stop(&mut self) {
        let running = self.running.take().expect("a validator runs");
        running.tasks.shutdown();
        within("the validator's end", running.validator.join())
            .await
            .unwrap()
            .unwrap();
        let _ = std::fs::remove_file(self.folder.path().join("ready.json"));
    }

    /// The validator's state once it has seen this block.
    pub(crate) async fn seen(&self, block: u64) -> serde_json::Value {
        within("a block", async {
            loop {
                let state = self.state().await;
                if state["block"].as_u64().is_some_and(|seen| seen >= block) {
                    return state;
                }
                tokio::task::yield_now().await;
            }
        })
        .await
    }

    /// Waits until the validator's state is as `is` says.
    pub(crate) async fn until(
        &self,
        what: &str,
        is: impl Fn(&serde_json::Value) -> bool,
    ) -> serde_json::Value {
        within(what, async {
            loop {
                let state = self.state().await;
                if is(&state) {
                    return state;
                }
                tokio::task::yield_now().await;
            }
        })
        .await
    }

    /// `GET /v0/state`.
    pub(crate) async fn state(&self) -> serde_json::Value {
        self.get("/v0/state").await
    }

    /// Waits until so many updates are not acknowledged: an answer is on its way for a moment, and then it is written down.
    pub(crate) async fn updates_waiting(&self, count: u64) {
        within("answers to be written down", async {
            while self.state().await["updates_waiting"] != count {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// Whatever the validator tells there.
    pub(crate) async fn get(&self, path: &str) -> serde_json::Value {
        self.ask(reqwest::Method::GET, path).await
    }

    /// Whatever the validator is asked to do there.
    pub(crate) async fn ask(&self, method: reqwest::Method, path: &str) -> serde_json::Value {
        let file = self.config.ready_file.clone().unwrap();
        let address = within("the ready file", async {
            loop {
                if let Some(address) = muster_process::ready::read(&file).unwrap() {
                    return address;
                }
                tokio::task::yield_now().await;
            }
        })
        .await;
        muster_process::tls::install_provider();
        reqwest::Client::new()
            .request(method, format!("http://{address}{path}"))
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap()
    }
}

/// How long a second of the moved clock takes, so that sockets and disks keep up with it.
const A_SECOND: Duration = Duration::from_millis(25);

/// Moves the clock second by second until `future` ends.
pub(crate) async fn while_time_passes<T>(
    clock: &TestClock,
    what: &str,
    future: impl Future<Output = T>,
) -> T {
    tokio::pin!(future);
    for _ in 0..800 {
        if let Ok(done) = tokio::time::timeout(A_SECOND, &mut future).await {
            return done;
        }
        clock.advance(Duration::from_secs(1));
    }
    panic!("waited in vain for {what}")
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.tasks.shutdown();
            if let Some(runtime) = running.runtime {
                runtime.shutdown_background();
            }
        }
    }
}

//! A validator in this process, with a scripted facilitator, scripted miners, and a chain whose blocks a test makes.
//!
//! Sockets, frames, store and signatures are real. No test sleeps: it waits for a frame, with the patience of the test
//! bed, and moves the validator's clock where time matters. That clock stands still otherwise, so no time-out of the
//! validator strikes because a machine is slow.

pub(crate) mod audit_check;
pub(crate) mod chain;
pub(crate) mod facilitator;
pub(crate) mod fleet;
pub(crate) mod miner;
pub(crate) mod model;
pub(crate) mod server;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_identity::Keypair;
use muster_process::error::Causes;
use muster_process::operator_token::OperatorToken;
use muster_process::task::Task;
use muster_process::{SharedClock, SystemClock, Tasks, TestClock};
use muster_protocol::Timestamp;
use muster_validator::{Config, Error, run_on};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use chain::TestChain;
use facilitator::Facilitator;
use miner::Miner;

pub(crate) use muster_testbed::within;

/// The pause before a test looks again at what it waits for: looking without a pause keeps a core busy.
pub(crate) async fn look_again() {
    tokio::time::sleep(Duration::from_millis(10)).await; // polls until its condition holds; the caller has the patience
}

/// One validator and everything around it. Dropping this stops the validator and removes its folder.
pub(crate) struct World {
    pub(crate) chain: Arc<TestChain>,
    pub(crate) facilitator: Facilitator,
    pub(crate) config: Config,
    pub(crate) keypair: Keypair,
    /// The clock that the test moves; unused in a world in real time.
    pub(crate) test_clock: TestClock,
    clock: SharedClock,
    running: Option<Running>,
    folder: TempDir,
}

struct Running {
    tasks: Tasks,
    validator: Task<Result<(), Error>>,
    /// The runtime of a validator that is going to be killed.
    runtime: Option<Runtime>,
}

impl World {
    /// A world with these miners on a clock that stands still until the test moves it.
    pub(crate) async fn new(miners: &[&Miner]) -> Self {
        Self::of("//Validator", miners).await
    }

    /// The world of a validator with this key, on a clock that stands still until the test moves it.
    pub(crate) async fn of(validator: &str, miners: &[&Miner]) -> Self {
        let clock = TestClock::default();
        Self::with_key(validator, miners, Arc::new(clock.clone()), clock).await
    }

    /// A world with these miners in real time: for what measures it, for what the validator tries again after a pause,
    /// for what follows the order of times, and for seals that have a clock of their own. Its time-outs are an hour, so
    /// that none strikes on a slow machine.
    pub(crate) async fn in_real_time(miners: &[&Miner]) -> Self {
        Self::in_real_time_of("//Validator", miners).await
    }

    /// The world of a validator with this key in real time.
    pub(crate) async fn in_real_time_of(validator: &str, miners: &[&Miner]) -> Self {
        let clock = Arc::new(SystemClock::new());
        let mut world = Self::with_key(validator, miners, clock, TestClock::default()).await;
        world.be_patient();
        world
    }

    /// Makes every time-out of the validator that could strike on a busy machine an hour.
    pub(crate) fn be_patient(&mut self) {
        let timing = &mut self.config.timing;
        for limit in [
            &mut timing.leeway_s,
            &mut timing.dial_s,
            &mut timing.reservation_s,
            &mut timing.startup_s,
            &mut timing.image_silence_s,
            &mut timing.reconnect_s,
            &mut timing.reattach_s,
            &mut self.config.facilitator.answer_s,
            &mut self.config.chain.wait_s,
        ] {
            *limit = 3_600;
        }
    }

    async fn with_key(uri: &str, miners: &[&Miner], clock: SharedClock, test_clock: TestClock) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let keypair = Keypair::from_uri(uri).unwrap();
        let facilitator = Facilitator::open().await;
        let mut config = Config {
            bind: SocketAddr::from(([127, 0, 0, 1], 0)),
            ready_file: Some(folder.path().join("ready.json")),
            operator_token: folder.path().join("operator.token"),
            store: format!("sqlite:{}", folder.path().join("validator.db").display()),
            ..Config::default()
        };
        config.facilitator.url = facilitator.url();
        config.dial.allow = vec!["127.0.0.1".to_owned()];
        config.users.allow_any = true;
        // The tests number their signatures instead of timing them.
        config.users.signature_max_age_s = u64::MAX;
        config.chain.refresh_s = 0;
        // The tests of receipt gathering switch it on.
        config.receipts.gather = false;
        // The test of main hotkeys switches it on; in the others, every connection to a miner is about a job.
        config.scoring.ask_main_hotkeys = false;
        // Most tests look at the session of one job and wait for its end. The tests of shared sessions change this.
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

    /// The time of the validator's clock.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
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

    /// Kills the validator: each task ends at the await that it has reached, and nothing is cleaned up.
    pub(crate) fn kill(&mut self) {
        let running = self.running.take().expect("a validator runs");
        let runtime = running.runtime.expect("a mortal validator");
        // Dropping a runtime waits for its threads, which is not allowed inside another runtime.
        std::thread::spawn(move || drop(runtime)).join().unwrap();
        let _ = std::fs::remove_file(self.folder.path().join("ready.json"));
    }

    /// Waits until the validator has ended by itself.
    pub(crate) async fn ended(&mut self) -> Result<(), Error> {
        let running = self.running.take().expect("a validator runs");
        let ended = within("the validator's end", running.validator.join()).await;
        if let Some(runtime) = running.runtime {
            runtime.shutdown_background();
        }
        let _ = std::fs::remove_file(self.folder.path().join("ready.json"));
        ended.unwrap()
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
        let validator = Tasks::new().spawn("validator", async {
            let ended = run.await;
            if let Err(error) = &ended {
                // A test that waits for something of it fails without this reason.
                eprintln!("the validator ended: {}", Causes(error));
            }
            ended
        });
        drop(entered);
        self.running = Some(Running {
            tasks,
            validator,
            runtime,
        });
    }

    /// Stops the validator and waits for its end. Only stored state survives.
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
                look_again().await;
            }
        })
        .await
    }

    /// Waits until `is` holds for the validator's state.
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
                look_again().await;
            }
        })
        .await
    }

    /// Waits until `is` holds for the queue.
    pub(crate) async fn until_queue(
        &self,
        what: &str,
        is: impl Fn(&serde_json::Value) -> bool,
    ) -> serde_json::Value {
        within(what, async {
            loop {
                let queue = self.get("/v0/queue").await;
                if is(&queue) {
                    return queue;
                }
                look_again().await;
            }
        })
        .await
    }

    /// `GET /v0/state`.
    pub(crate) async fn state(&self) -> serde_json::Value {
        self.get("/v0/state").await
    }

    /// Waits until `count` updates are not acknowledged. Answers are stored after a moment of the validator's clock,
    /// which passes here.
    pub(crate) async fn updates_waiting(&self, count: u64) {
        within("answers to be written down", async {
            while self.state().await["updates_waiting"] != count {
                self.test_clock.advance(Duration::from_millis(10));
                look_again().await;
            }
        })
        .await;
    }

    /// Gets a page of the status address.
    pub(crate) async fn get(&self, path: &str) -> serde_json::Value {
        self.ask(reqwest::Method::GET, path).await
    }

    /// Sends a request of the operator to the status address.
    pub(crate) async fn ask(&self, method: reqwest::Method, path: &str) -> serde_json::Value {
        let url = self.status_url(path).await;
        let token = OperatorToken::read(&self.config.operator_token).unwrap();
        let request = reqwest::Client::new().request(method, url);
        let request = request.header("authorization", token.authorization());
        request.send().await.unwrap().json().await.unwrap()
    }

    /// The URL of a path at the status address.
    pub(crate) async fn status_url(&self, path: &str) -> String {
        let file = self.config.ready_file.clone().unwrap();
        let address = within("the ready file", async {
            loop {
                if let Some(address) = muster_process::ready::read(&file).unwrap() {
                    return address;
                }
                look_again().await;
            }
        })
        .await;
        muster_process::tls::install_provider();
        format!("http://{address}{path}")
    }
}

/// The real time for one second of the moved clock, so that sockets and disks keep up.
const A_SECOND: Duration = Duration::from_millis(25);

/// Moves the clock second by second until `future` ends.
pub(crate) async fn while_time_passes<T>(
    clock: &TestClock,
    what: &str,
    future: impl Future<Output = T>,
) -> T {
    let moving = async {
        tokio::pin!(future);
        loop {
            tokio::select! {
                biased;
                done = &mut future => return done,
                () = tokio::time::sleep(A_SECOND) => clock.advance(Duration::from_secs(1)), // polls until the future ends
            }
        }
    };
    within(what, moving).await
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

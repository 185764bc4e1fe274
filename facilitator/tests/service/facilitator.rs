//! A facilitator under test: its own port, folder and clock.

use std::net::SocketAddr;
use std::sync::Arc;

use muster_facilitator::{Config, Error, run};
use muster_identity::Keypair;
use muster_process::task::Task;
use muster_process::{SharedClock, SystemClock, Tasks, ready};
use muster_protocol::ValidatorKey;
use muster_testbed::patience;
use tempfile::TempDir;

/// The key of a scripted party: `//User`, `//Validator` and so on.
pub(crate) fn key(name: &str) -> Keypair {
    Keypair::from_uri(&format!("//{name}")).unwrap()
}

/// The key of the scripted validator with this name.
pub(crate) fn validator_key(name: &str) -> ValidatorKey {
    ValidatorKey(key(name).hotkey())
}

/// A running facilitator that serves `//Validator` and `//Other`.
pub(crate) struct Facilitator {
    pub(crate) address: SocketAddr,
    pub(crate) clock: SharedClock,
    config: Config,
    tasks: Tasks,
    running: Task<Result<(), Error>>,
    folder: TempDir,
}

impl Facilitator {
    pub(crate) async fn start() -> Self {
        Self::start_with(Arc::new(SystemClock::new()), |_| {}).await
    }

    pub(crate) async fn start_with(clock: SharedClock, change: impl FnOnce(&mut Config)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config {
            bind: SocketAddr::from(([127, 0, 0, 1], 0)),
            ready_file: Some(folder.path().join("ready.json")),
            store: format!("sqlite:{}", folder.path().join("store.db").display()),
            validators: vec![validator_key("Validator"), validator_key("Other")],
            files: muster_file_store::Settings {
                store: format!("file:{}", folder.path().join("files").display()),
                ..muster_file_store::Settings::default()
            },
            ..Config::default()
        };
        // Scripted gateways are on this machine.
        config.gateways.allow = vec!["127.0.0.0/8".to_owned()];
        change(&mut config);
        Self::boot(config, clock, folder).await
    }

    async fn boot(config: Config, clock: SharedClock, folder: TempDir) -> Self {
        muster_process::tls::install_provider();
        let tasks = Tasks::new();
        let serving = run(config.clone(), tasks.clone(), Arc::clone(&clock));
        let running = tasks.spawn("facilitator", serving);
        let path = config.ready_file.clone().unwrap();
        let address = until(async || {
            assert!(!running.is_finished(), "the facilitator stopped at once");
            ready::read(&path).unwrap()
        })
        .await;
        std::fs::remove_file(&path).unwrap();
        Self {
            address,
            clock,
            config,
            tasks,
            running,
            folder,
        }
    }

    /// Stops the facilitator as a signal would.
    pub(crate) async fn stop(self) -> (Config, SharedClock, TempDir) {
        self.tasks.shutdown();
        self.tasks.wait(patience()).await.unwrap();
        self.running.join().await.unwrap().unwrap();
        assert_eq!(self.tasks.panics(), 0);
        (self.config, self.clock, self.folder)
    }

    /// Stops the facilitator and starts another one over the same store.
    pub(crate) async fn restart(self) -> Self {
        self.restart_with(|_| {}).await
    }

    /// Restarts with a changed configuration.
    pub(crate) async fn restart_with(self, change: impl FnOnce(&mut Config)) -> Self {
        let (mut config, clock, folder) = self.stop().await;
        change(&mut config);
        Self::boot(config, clock, folder).await
    }

    /// A second view of its store, for what no route shows.
    pub(crate) async fn store(&self) -> muster_facilitator_store::Store {
        muster_facilitator_store::Store::open(&self.config.store)
            .await
            .unwrap()
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn socket_url(&self) -> String {
        format!("ws://{}/ws/v0/", self.address)
    }

    /// The time of the facilitator's clock in Unix nanoseconds.
    pub(crate) fn now_ns(&self) -> i64 {
        self.clock.now().micros() * 1000
    }

    /// The number of connected validators, as `/health` reports it.
    pub(crate) async fn validators(&self) -> u64 {
        let health: serde_json::Value = reqwest::get(self.url("/health"))
            .await
            .unwrap()
            .json()
            .await
            .unwrap();
        health["validators"].as_u64().unwrap()
    }
}

/// Calls `ask` until it returns a value.
pub(crate) async fn until<T>(ask: impl AsyncFnMut() -> Option<T>) -> T {
    muster_testbed::until("the condition of the test", ask).await
}

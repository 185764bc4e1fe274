//! A gateway over the test's subnet, and requests to it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muster_gateway::store::GatewayStore;
use muster_gateway::{Gateway, GatewayDeps, Settings};
use muster_http::server::HttpSettings;
use muster_identity::Keypair;
use muster_process::{SharedClock, SystemClock, Tasks};
use muster_protocol::{Digest, ExecutorClass, ImageId};
use muster_response_proof::SessionId;
use muster_session_pool::Service;
use muster_store::testing::{TestStore, migrations_in, stores};
use sqlx::migrate::Migrator;

use crate::engine::Pace;
use crate::subnet::{Subnet, TestBackend};

/// The validator's migrations create the gateway's tables.
pub(crate) static MIGRATIONS: LazyLock<Migrator> =
    LazyLock::new(|| migrations_in("../../../validator/store/migrations"));

pub(crate) const KEY: &str = "a key of the validator's own client";

pub(crate) struct World {
    pub(crate) gateway: Gateway,
    pub(crate) subnet: Arc<Subnet>,
    pub(crate) http: reqwest::Client,
    pub(crate) base: String,
    pub(crate) tasks: Tasks,
    /// Whether the gateway has reported that its store has failed.
    pub(crate) has_failed: Arc<AtomicBool>,
    pub(crate) database: TestStore,
}

pub(crate) fn service() -> Service {
    serde_json::from_value(serde_json::json!({
        "model": "tiny", "image": ImageId(Digest::of(b"image")), "class": ExecutorClass::AlwaysOnTest,
        "input_price": 1_000_000, "output_price": 2_000_000,
        "input_tokens_per_s": 1_000, "output_tokens_per_s": 50,
    }))
    .unwrap()
}

pub(crate) fn settings() -> Settings {
    Settings {
        keys: [("me".to_owned(), Digest::of(KEY.as_bytes()))].into(),
        facilitators: BTreeSet::from([facilitator().hotkey()]),
        services: vec![service()],
        max_sessions: 1,
        per_session: 4,
        // No test is about a session that starts too late.
        start_s: 600,
        health_s: 1,
        ..Settings::default()
    }
}

pub(crate) fn facilitator() -> Keypair {
    Keypair::from_seed([5; 32])
}

/// Polls a condition until it holds.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut condition: impl FnMut() -> F,
) -> T {
    let waiting = async {
        loop {
            if let Some(met) = condition().await {
                return met;
            }
            // Many conditions move a clock, so the looks do not come less and less often.
            tokio::time::sleep(Duration::from_millis(5)).await; // polls until the condition holds
        }
    };
    muster_testbed::within(what, waiting).await
}

impl World {
    pub(crate) async fn new(change: impl FnOnce(&mut Settings)) -> Self {
        Self::at(Arc::new(SystemClock::new()), change).await
    }

    /// A world whose gateway and sessions use this clock.
    pub(crate) async fn at(clock: SharedClock, change: impl FnOnce(&mut Settings)) -> Self {
        muster_process::tls::install_provider();
        let mut settings = settings();
        change(&mut settings);
        let tasks = Tasks::new();
        let store = stores(&MIGRATIONS).await.unwrap().swap_remove(0);
        let subnet = Arc::new(Subnet::new(&clock, &tasks));
        let has_failed = Arc::new(AtomicBool::new(false));
        let (stopping, failing) = (tasks.clone(), Arc::clone(&has_failed));
        let parts = GatewayDeps {
            // A test that stops the gateway ends its answers first.
            http: HttpSettings {
                drain_s: 600,
                ..HttpSettings::default()
            },
            backend: Arc::new(TestBackend(Arc::clone(&subnet))),
            pool: store.pool.clone(),
            writer: store.writer(),
            clock,
            tasks: tasks.clone(),
            on_store_failure: Box::new(move |error| {
                failing.store(true, Ordering::SeqCst);
                stopping.shutdown();
                panic!("the store failed: {error}")
            }),
        };
        let bind = "127.0.0.1:0".parse().unwrap();
        let gateway = Gateway::open(bind, settings, parts).await.unwrap();
        Self {
            base: format!("http://{}", gateway.address()),
            gateway,
            subnet,
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
            tasks,
            has_failed,
            database: store,
        }
    }

    pub(crate) fn post(&self, path: &str) -> reqwest::RequestBuilder {
        self.http
            .post(format!("{}{path}", self.base))
            .bearer_auth(KEY)
            .header("content-type", "application/json")
    }

    /// A request for a chat completion of `words` words.
    pub(crate) fn chat(&self, words: usize, stream: bool) -> reqwest::RequestBuilder {
        let body = serde_json::json!({
            "model": "tiny", "stream": stream, "max_tokens": words,
            "messages": [{"role": "user", "content": "say words"}],
        });
        self.post("/v1/chat/completions").body(body.to_string())
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, serde_json::Value) {
        let request = self.http.get(format!("{}{path}", self.base)).bearer_auth(KEY);
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    /// The proof of an answer, once the gateway has stored it.
    pub(crate) async fn proof(&self, id: &str) -> serde_json::Value {
        until("the proof", || async {
            let (status, body) = self.get(&format!("/v1/proofs/{id}")).await;
            (status == 200).then_some(body)
        })
        .await
    }

    /// The first session that takes requests.
    pub(crate) async fn live_session(&self) -> SessionId {
        let live = || async { Some(self.gateway.list_live_sessions().await.first()?.id()) };
        until("a session", live).await
    }

    pub(crate) fn store(&self) -> &GatewayStore {
        self.gateway.store()
    }

    pub(crate) fn pace(&self) -> &Pace {
        &self.subnet.engine.pace
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.tasks.shutdown();
    }
}

/// Reads a stream until `enough` of it has come.
pub(crate) async fn read_until(response: &mut reqwest::Response, enough: &str) -> String {
    let mut read = String::new();
    let reading = async {
        while !read.contains(enough) {
            let piece = response
                .chunk()
                .await
                .unwrap()
                .unwrap_or_else(|| panic!("it ended with {read:?}"));
            read.push_str(&String::from_utf8_lossy(&piece));
        }
    };
    muster_testbed::within("enough of the stream", reading).await;
    read
}

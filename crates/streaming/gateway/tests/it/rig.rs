//! The subnet, as far as a gateway sees it: jobs that become sealed sessions in front of an engine of the test's.

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream;
use muster_gateway::backend::{JobNews, StreamingJobOrder, ValidatorBackend};
use muster_gateway::store::GatewayStore;
use muster_gateway::{Gateway, GatewayDeps, Settings};
use muster_identity::{Keypair, sign_streaming_ready};
use muster_process::store::testing::{TestStore, stores};
use muster_process::{SharedClock, SystemClock, Tasks, certificate};
use muster_protocol::wire::miner::StreamingJobReady;
use muster_protocol::{AttemptId, Digest, ExecutorClass, ImageId, JobId, MinerKey, Timestamp, ValidatorKey};
use muster_response_proof::{Attestation, Envelope, SessionId, Text};
use muster_sealing_proxy::socket::{JobSocket, Listener};
use muster_sealing_proxy::{Endpoint, EngineAddress, Limits, Seal, Sealer, Upstream};
use muster_session_pool::Service;
use sqlx::migrate::Migrator;
use tempfile::TempDir;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use uuid::Uuid;

/// A database has one history, and it is the validator's.
pub(crate) static MIGRATIONS: Migrator = sqlx::migrate!("../../../validator/migrations");

pub(crate) const KEY: &str = "a key of the validator's own client";
/// No test waits longer for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What becomes of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// A sealed session.
    Seals,
    /// An endpoint that knows no seal: every path is the engine's.
    CannotSeal,
    /// Somebody else's attestation.
    Forged,
    /// An executor whose clock is so many seconds ahead.
    ClockAhead(i64),
    /// Another image than the whitelisted one.
    OtherImage,
    /// The miner did not sign where the job answers.
    Unsigned,
    /// The job ends before it is up.
    Fails,
}

pub(crate) struct Subnet {
    pub(crate) fates: Mutex<Vec<Fate>>,
    /// Jobs wait until this is true.
    pub(crate) open: watch::Sender<bool>,
    pub(crate) begun: AtomicUsize,
    pub(crate) ended: Mutex<Vec<(JobId, &'static str)>>,
    running: Mutex<HashMap<JobId, Running>>,
    engine: Engine,
    clock: SharedClock,
    tasks: Tasks,
}

struct Running {
    news: mpsc::Sender<JobNews>,
    /// Dropped when the job dies, with everything that is under way.
    endpoint: Option<Endpoint>,
    tasks: Tasks,
}

/// An engine on a Unix socket, which the test leads.
pub(crate) struct Engine {
    folder: TempDir,
    pub(crate) pace: Arc<Pace>,
}

/// How far the engine may go.
pub(crate) struct Pace {
    /// Words of a stream that may be said.
    pub(crate) words: watch::Sender<usize>,
    pub(crate) asked: AtomicUsize,
}

pub(crate) struct World {
    pub(crate) gateway: Gateway,
    pub(crate) subnet: Arc<Subnet>,
    pub(crate) http: reqwest::Client,
    pub(crate) base: String,
    pub(crate) tasks: Tasks,
    _store: TestStore,
}

pub(crate) fn validator() -> Keypair {
    Keypair::from_seed([3; 32])
}

pub(crate) fn miner() -> Keypair {
    Keypair::from_seed([4; 32])
}

pub(crate) fn service() -> Service {
    serde_json::from_value(serde_json::json!({
        "model": "tiny", "image": ImageId(Digest::of(b"image")), "class": ExecutorClass::AlwaysOnTest,
        "input_price": 1_000_000, "output_price": 2_000_000,
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
        start_s: 30,
        health_s: 1,
        sample_percent: 100,
        ..Settings::default()
    }
}

pub(crate) fn facilitator() -> Keypair {
    Keypair::from_seed([5; 32])
}

/// Waits for a condition that something else brings about.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut condition: impl FnMut() -> F,
) -> T {
    let waiting = async {
        loop {
            if let Some(met) = condition().await {
                return met;
            }
            tokio::time::sleep(Duration::from_millis(5)).await; // polls until the condition holds
        }
    };
    timeout(PATIENCE, waiting)
        .await
        .unwrap_or_else(|_| panic!("never came: {what}"))
}

impl World {
    pub(crate) async fn new(change: impl FnOnce(&mut Settings)) -> Self {
        Self::at(Arc::new(SystemClock::new()), change).await
    }

    /// One that goes by this clock, its gateway as its sessions.
    pub(crate) async fn at(clock: SharedClock, change: impl FnOnce(&mut Settings)) -> Self {
        muster_process::tls::install_provider();
        let mut settings = settings();
        change(&mut settings);
        let tasks = Tasks::new();
        let store = stores(&MIGRATIONS).await.unwrap().swap_remove(0);
        let subnet = Arc::new(Subnet {
            fates: Mutex::default(),
            open: watch::Sender::new(true),
            begun: AtomicUsize::new(0),
            ended: Mutex::default(),
            running: Mutex::default(),
            engine: Engine::new(&tasks),
            clock: Arc::clone(&clock),
            tasks: tasks.clone(),
        });
        let parts = GatewayDeps {
            backend: Arc::new(Jobs(Arc::clone(&subnet))),
            pool: store.pool.clone(),
            clock,
            tasks: tasks.clone(),
            on_store_failure: Box::new(|error| panic!("the store failed: {error}")),
        };
        let bind = "127.0.0.1:0".parse().unwrap();
        let gateway = Gateway::open(bind, settings, parts).await.unwrap();
        Self {
            base: format!("http://{}", gateway.address()),
            gateway,
            subnet,
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
            tasks,
            _store: store,
        }
    }

    pub(crate) fn post(&self, path: &str) -> reqwest::RequestBuilder {
        self.http
            .post(format!("{}{path}", self.base))
            .bearer_auth(KEY)
            .header("content-type", "application/json")
    }

    /// Asks for a chat; `words` of it.
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

    /// What the gateway keeps of an answer.
    pub(crate) async fn proof(&self, id: &str) -> serde_json::Value {
        until("the proof", || async {
            let (status, body) = self.get(&format!("/v1/proofs/{id}")).await;
            (status == 200).then_some(body)
        })
        .await
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
    timeout(PATIENCE, reading).await.unwrap();
    read
}

pub(crate) struct Jobs(Arc<Subnet>);

impl ValidatorBackend for Jobs {
    fn validator(&self) -> ValidatorKey {
        ValidatorKey(validator().hotkey())
    }

    fn start_job(&self, order: StreamingJobOrder) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            self.0.begun.fetch_add(1, Ordering::SeqCst);
            let subnet = Arc::clone(&self.0);
            self.0.tasks.spawn("job", async move { subnet.run(order).await });
            Ok(())
        })
    }

    fn end_job(&self, job: JobId, why: &'static str, _is_closed: bool) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.0.ended.lock().unwrap().push((job, why));
            let running = self.0.running.lock().unwrap().remove(&job);
            drop(running);
        })
    }
}

impl Subnet {
    async fn run(&self, order: StreamingJobOrder) {
        self.open.subscribe().wait_for(|open| *open).await.unwrap();
        let fate = {
            let mut fates = self.fates.lock().unwrap();
            if fates.is_empty() {
                Fate::Seals
            } else {
                fates.remove(0)
            }
        };
        if fate == Fate::Fails {
            order
                .news
                .send(JobNews::Ended("no miner took it".to_owned()))
                .await
                .unwrap();
            return;
        }
        let tasks = Tasks::new();
        let (ready, endpoint) = self.endpoint(&order, fate, &tasks).await;
        let miner = MinerKey(miner().hotkey());
        let running = Running {
            news: order.news.clone(),
            endpoint,
            tasks,
        };
        self.running.lock().unwrap().insert(order.job, running);
        let ready = Box::new(ready);
        order.news.send(JobNews::Ready { miner, ready }).await.unwrap();
    }

    async fn endpoint(
        &self,
        order: &StreamingJobOrder,
        fate: Fate,
        tasks: &Tasks,
    ) -> (StreamingJobReady, Option<Endpoint>) {
        let ahead = match fate {
            Fate::ClockAhead(secs) => secs,
            Fate::Seals
            | Fate::CannotSeal
            | Fate::Forged
            | Fate::OtherImage
            | Fate::Unsigned
            | Fate::Fails => 0,
        };
        let clock: SharedClock = Arc::new(Ahead(Arc::clone(&self.clock), ahead));
        let server = certificate::make_self_signed(&["localhost".to_owned()]).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let attempt = AttemptId::first_of(order.job);
        let client = certificate::digest_of_pem(&order.certificate).unwrap();
        let session = Keypair::generate();
        let now = clock.now();
        let attestation = Attestation {
            session: SessionId(Uuid::new_v4()),
            session_key: session.hotkey(),
            job: order.job,
            attempt,
            miner: MinerKey(miner().hotkey()),
            audience: ValidatorKey(validator().hotkey()),
            server_certificate: server.identity.fingerprint(),
            client_certificate: client,
            executor: Text::new("executor").unwrap(),
            address: Text::new(address.to_string()).unwrap(),
            image: if fate == Fate::OtherImage {
                ImageId(Digest::of(b"another"))
            } else {
                order.service.image
            },
            model: None,
            scheme: order.service.scheme,
            price: order.service.price(),
            not_before: now,
            not_after: now.plus(order.lifetime),
        };
        let signer = if fate == Fate::Forged {
            Keypair::generate()
        } else {
            miner()
        };
        let envelope = Envelope::new(&attestation, |bytes| signer.sign(bytes));
        let socket = JobSocket::new(self.engine.folder.path(), "http.sock", Listener::Trusted).unwrap();
        let limits = Limits::default();
        let endpoint = if fate == Fate::CannotSeal {
            let tls = muster_process::tls::server(&server.identity).unwrap();
            tasks.spawn("plain proxy", plain(listener, Arc::new(tls)));
            None
        } else {
            let sealer = Sealer::new(session, envelope, Arc::clone(&clock)).unwrap();
            let upstream = Upstream::new(EngineAddress::Socket(socket), &limits, tasks);
            let seal = Seal::new(sealer, upstream, limits, tasks.clone());
            Some(Endpoint::open(listener, &server.identity, client, seal, clock).unwrap())
        };
        let by = if fate == Fate::Unsigned {
            Keypair::generate()
        } else {
            miner()
        };
        let ip = address.ip().to_string();
        let signature = sign_streaming_ready(&by, attempt, &ip, address.port(), &server.pem);
        let ready = StreamingJobReady {
            job_uuid: attempt,
            executor_token: None,
            public_key: server.pem,
            ip: Some(ip),
            port: address.port(),
            miner_signature: Some(signature),
        };
        (ready, endpoint)
    }

    /// The sessions that run sign an answer each that never reaches the gateway: it stopped waiting as it came.
    pub(crate) async fn answer_nobody(&self) {
        let seals: Vec<_> = {
            let running = self.running.lock().unwrap();
            let endpoints = running.values().filter_map(|running| running.endpoint.as_ref());
            endpoints.map(|endpoint| Arc::clone(endpoint.seal())).collect()
        };
        for seal in seals {
            let request = http::Request::get("/health").body(http_body_util::Full::<Bytes>::default());
            let answered = seal.answer(request.unwrap()).await;
            assert_eq!((answered.status().as_u16(), seal.sealer().under_way()), (200, 0));
        }
    }

    /// Every session closes of itself, is gone, and its miner passes its last word on, as `change` leaves it.
    pub(crate) async fn close_all(&self, change: impl Fn(String) -> String) {
        let running: Vec<_> = self.running.lock().unwrap().drain().collect();
        for (_, mut running) in running {
            let endpoint = running.endpoint.take().unwrap();
            let sealer = Arc::clone(endpoint.seal().sealer());
            endpoint.close(Duration::from_secs(1)).await;
            running.tasks.shutdown();
            let close = change(sealer.close().to_text());
            running.news.send(JobNews::Closed(close)).await.unwrap();
            let over = JobNews::Ended("the job is done".to_owned());
            running.news.send(over).await.unwrap();
        }
    }

    /// What the sessions that run have signed.
    pub(crate) fn signed(&self) -> u64 {
        let running = self.running.lock().unwrap();
        let endpoints = running.values().filter_map(|running| running.endpoint.as_ref());
        endpoints.map(|endpoint| endpoint.seal().sealer().signed()).sum()
    }

    /// Word comes that every session's machine is gone, and the word is wrong.
    pub(crate) fn declare_dead(&self) {
        for running in self.running.lock().unwrap().values() {
            let over = JobNews::Ended("the machine is gone".to_owned());
            running.news.try_send(over).unwrap();
        }
    }

    /// Every session's machine goes up in smoke.
    pub(crate) fn kill_all(&self) {
        let running: Vec<_> = self.running.lock().unwrap().drain().collect();
        for (_, running) in running {
            running.tasks.shutdown();
            running
                .news
                .try_send(JobNews::Ended("the machine is gone".to_owned()))
                .unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tasks.shutdown();
    }
}

/// What ComputeHorde's proxy is to a gateway: TLS, and an engine that knows nothing of seals.
async fn plain(listener: TcpListener, tls: Arc<rustls::ServerConfig>) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let acceptor = tokio_rustls::TlsAcceptor::from(tls);
    while let Ok((stream, _)) = listener.accept().await {
        let Ok(mut stream) = acceptor.accept(stream).await else {
            continue;
        };
        let mut head = [0; 4096];
        let _ = stream.read(&mut head).await;
        let answer = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        stream.write_all(answer).await.unwrap();
        let _ = stream.shutdown().await;
    }
}

/// A clock that is off.
#[derive(Debug)]
struct Ahead(SharedClock, i64);

impl muster_process::Clock for Ahead {
    fn now(&self) -> Timestamp {
        let now = self.0.now();
        Timestamp::from_micros(now.micros() + self.1 * 1_000_000)
    }

    fn sleep_until(&self, deadline: Timestamp) -> muster_process::clock::Sleep {
        self.0
            .sleep_until(Timestamp::from_micros(deadline.micros() - self.1 * 1_000_000))
    }
}

impl Engine {
    fn new(tasks: &Tasks) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("http.sock")).unwrap();
        let pace = Arc::new(Pace {
            words: watch::Sender::new(usize::MAX),
            asked: AtomicUsize::new(0),
        });
        let router = Router::new()
            .route("/health", get(async || "ok"))
            .route("/v1/chat/completions", post(chat))
            .route("/v1/embeddings", post(embeddings))
            .with_state(Arc::clone(&pace));
        tasks.spawn(
            "engine",
            async move { axum::serve(listener, router).await.unwrap() },
        );
        Self { folder, pace }
    }
}

async fn chat(State(pace): State<Arc<Pace>>, body: Bytes) -> Response {
    pace.asked.fetch_add(1, Ordering::SeqCst);
    let asked: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let words = usize::try_from(asked["max_tokens"].as_u64().unwrap()).unwrap();
    let usage = serde_json::json!({"prompt_tokens": 5, "completion_tokens": words});
    if asked["stream"] != true {
        let text = "word ".repeat(words);
        let token =
            serde_json::json!({"token": "word ", "logprob": -0.5, "bytes": [119], "top_logprobs": []});
        let sure = vec![token; words];
        let logprobs = (asked["logprobs"] == true).then(|| serde_json::json!({"content": sure}));
        let answer = serde_json::json!({
            "id": "c", "object": "chat.completion", "created": 0, "model": "tiny", "usage": usage,
            "choices": [{"index": 0, "finish_reason": "stop", "logprobs": logprobs, "message": {"role": "assistant", "content": text}}],
        });
        return axum::Json(answer).into_response();
    }
    // A client that reads no further lets the engine read no further.
    let said = stream::unfold(0, move |said| {
        let (pace, usage) = (Arc::clone(&pace), usage.clone());
        async move {
            if said > words {
                return None;
            }
            pace.words
                .subscribe()
                .wait_for(|allowed| *allowed > said)
                .await
                .unwrap();
            let event = if said == words {
                let last = event(&serde_json::json!([]), Some(&usage));
                format!("{last}data: [DONE]\n\n")
            } else {
                let delta = serde_json::json!({"content": format!("word{said} ")});
                event(&serde_json::json!([{"index": 0, "delta": delta}]), None)
            };
            Some((Ok::<_, Infallible>(Bytes::from(event)), said + 1))
        }
    });
    let kind = [("content-type", "text/event-stream")];
    (kind, Body::from_stream(said)).into_response()
}

fn event(choices: &serde_json::Value, usage: Option<&serde_json::Value>) -> String {
    let chunk = serde_json::json!({
        "id": "c", "object": "chat.completion.chunk", "created": 0, "model": "tiny", "choices": choices, "usage": usage,
    });
    format!("data: {chunk}\n\n")
}

async fn embeddings() -> Response {
    let answer = serde_json::json!({
        "object": "list", "model": "tiny", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    });
    axum::Json(answer).into_response()
}

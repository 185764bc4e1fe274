//! The facilitator's REST API: jobs made durable in a second and how long each takes, a list of 100,000 jobs, the
//! memory of 1,000 idle watchers; on SQLite and on PostgreSQL, against a minimal FastAPI endpoint on the same
//! PostgreSQL.
//!
//! Wants `MUSTER_TEST_POSTGRES_URL`, and for the peer `MUSTER_BENCH_FASTAPI_PYTHON` (fastapi, uvicorn, asyncpg, uvloop,
//! httptools). Each server is a process of its own; the load comes from this one. `MUSTER_BENCH_JOBS` and
//! `MUSTER_BENCH_LISTED` make it small.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use muster_bench::{Direction, Report, Row, Turns, median};
use muster_facilitator::Config;
use muster_identity::{Keypair, answer_challenge, sign_facilitator_auth, sign_job};
use muster_process::{SharedClock, SystemClock, Tasks, ready, tls};
use muster_protocol::rest::{CreateJob, JobPage, Token, headers};
use muster_protocol::wire::facilitator::{FromFacilitator, ToFacilitator};
use muster_protocol::wire::muster::ChallengeResponse;
use muster_protocol::wire::{decode, encode};
use muster_protocol::{Hotkey, ValidatorKey};
use muster_websocket::{Limits, Socket};
use serde_json::{Value, json};
use tokio::task::JoinSet;

const ROUNDS: usize = 5;
const JOBS: usize = 1_000;
const AT_ONCE: usize = 16;
const LISTED: u64 = 100_000;
const PAGE: u64 = 256;
const WATCHERS: usize = 1_000;
/// Raised for a thousand connections.
const OPEN_FILES: u32 = 8_192;
const RAISED: &str = "MUSTER_BENCH_DOOR_RAISED";

fn main() -> anyhow::Result<()> {
    tls::install_provider();
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("serve"), Some(config)) => serve(Path::new(&config)),
        (None, _) if std::env::var_os(RAISED).is_none() => Err(raise().into()),
        (None, _) => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            runtime.block_on(measure())
        }
        (Some(other), _) => bail!("unknown word {other:?}"),
    }
}

/// Starts itself again with a higher limit of open files. Comes back only if that fails.
fn raise() -> std::io::Error {
    let own = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("door"));
    Command::new("sh")
        .arg("-c")
        .arg(format!("ulimit -n {OPEN_FILES}; exec \"$0\""))
        .arg(own)
        .env(RAISED, "1")
        .exec()
}

/// The facilitator itself, in its own process.
fn serve(config: &Path) -> anyhow::Result<()> {
    let config: Config = muster_process::config::parse(&std::fs::read_to_string(config)?, "bench")?;
    let clock: SharedClock = Arc::new(SystemClock::new());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    Ok(runtime.block_on(muster_facilitator::run(config, Tasks::new(), clock))?)
}

async fn measure() -> anyhow::Result<()> {
    let jobs = number("MUSTER_BENCH_JOBS").map_or(JOBS, |jobs| usize::try_from(jobs).unwrap_or(JOBS));
    let listed = number("MUSTER_BENCH_LISTED").unwrap_or(LISTED);
    let watchers = WATCHERS.min(jobs);
    let folder = tempfile::tempdir()?;
    let sqlite = format!("sqlite:{}", folder.path().join("door.db").display());
    let mut ours = vec![(
        "SQLite",
        DoorServer::start(folder.path(), "sqlite", &sqlite).await?,
    )];
    let mut peer = None;
    let mut notes = vec![format!(
        "{jobs} jobs a round, {AT_ONCE} at a time, signed and checked, delivered to a connected validator; the peer checks and delivers nothing"
    )];
    match std::env::var("MUSTER_TEST_POSTGRES_URL") {
        Ok(server) => {
            let url = schema(&server).await?;
            ours.push((
                "PostgreSQL",
                DoorServer::start(folder.path(), "postgres", &url).await?,
            ));
            match std::env::var("MUSTER_BENCH_FASTAPI_PYTHON") {
                Ok(python) => peer = Some(Peer::start(&python, &server).await?),
                Err(_) => notes.push("no peer: MUSTER_BENCH_FASTAPI_PYTHON is not set".to_owned()),
            }
        }
        Err(_) => notes.push("SQLite only: MUSTER_TEST_POSTGRES_URL is not set".to_owned()),
    }
    let contest = Contest { ours, peer };
    let mut report = Report::default();
    report.rows.extend(contest.create(jobs).await?);
    report.rows.extend(contest.list(listed).await?);
    report.rows.extend(contest.watch(watchers).await?);
    report.notes = notes;
    report.print()
}

/// The stores of ours and the peer, measured in turns.
struct Contest {
    ours: Vec<(&'static str, DoorServer)>,
    peer: Option<Peer>,
}

impl Contest {
    /// The peer's name in the report; empty without one.
    fn peer_name(&self) -> &'static str {
        if self.peer.is_some() {
            "FastAPI + asyncpg"
        } else {
            ""
        }
    }

    /// Rates and times of creating jobs.
    async fn create(&self, jobs: usize) -> anyhow::Result<Vec<Row>> {
        let (ours, peer, peer_name) = (&self.ours, &self.peer, self.peer_name());
        let mut rows = Vec::new();
        // In turns: every store of ours, then the peer, and again.
        let mut rates: Vec<Rates> = ours.iter().map(|_| Rates::default()).collect();
        let mut theirs = Rates::default();
        for round in 0..=ROUNDS {
            for ((_, door), rates) in ours.iter().zip(&mut rates) {
                let load = door.create(jobs).await?;
                rates.take(round, &load);
            }
            if let Some(peer) = peer {
                theirs.take(round, &peer.create(jobs).await?);
            }
        }
        for ((engine, _), rates) in ours.iter().zip(rates) {
            let row = |what: &str, unit: &str, direction, ours: Vec<f64>, peer: &Vec<f64>| {
                let turns = Turns {
                    ours,
                    peer: peer.clone(),
                };
                Row::against(&format!("{what}, {engine}"), unit, direction, peer_name, turns)
            };
            let (higher, lower) = (Direction::HigherIsBetter, Direction::LowerIsBetter);
            rows.push(row(
                "jobs created, durable",
                "1/s",
                higher,
                rates.rate,
                &theirs.rate,
            ));
            rows.push(row("a job created, P50", "ms", lower, rates.p50, &theirs.p50));
            rows.push(row("a job created, P99", "ms", lower, rates.p99, &theirs.p99));
        }

        Ok(rows)
    }

    /// Times of the first and the last page of a long list.
    async fn list(&self, listed: u64) -> anyhow::Result<Vec<Row>> {
        let (ours, peer, peer_name) = (&self.ours, &self.peer, self.peer_name());
        let mut rows = Vec::new();
        for (_, door) in ours {
            door.seed(listed).await?;
        }
        if let Some(peer) = peer {
            peer.seed(listed).await?;
        }
        for (what, page) in [("first", 1), ("last", listed.div_ceil(PAGE))] {
            let mut samples: Vec<Vec<f64>> = ours.iter().map(|_| Vec::new()).collect();
            let mut theirs = Vec::new();
            for _ in 0..ROUNDS {
                for ((_, door), samples) in ours.iter().zip(&mut samples) {
                    samples.push(door.page(page, listed).await?);
                }
                if let Some(peer) = peer {
                    theirs.push(peer.page(page, listed).await?);
                }
            }
            for ((engine, _), ours) in ours.iter().zip(samples) {
                let what = format!("the {what} page of {PAGE} in a list of {listed} jobs, {engine}");
                let turns = Turns {
                    ours,
                    peer: theirs.clone(),
                };
                rows.push(Row::against(
                    &what,
                    "ms",
                    Direction::LowerIsBetter,
                    peer_name,
                    turns,
                ));
            }
        }

        Ok(rows)
    }

    /// The memory of idle watchers of events.
    async fn watch(&self, watchers: usize) -> anyhow::Result<Vec<Row>> {
        let (ours, peer, peer_name) = (&self.ours, &self.peer, self.peer_name());
        let mut rows = Vec::new();
        let theirs = match peer {
            Some(peer) => vec![peer.watch(watchers).await?],
            None => Vec::new(),
        };
        for (engine, door) in ours {
            let what = format!("memory of {watchers} idle watchers of events, {engine}");
            let turns = Turns {
                ours: vec![door.watch(watchers).await?],
                peer: theirs.clone(),
            };
            rows.push(Row::against(
                &what,
                "MiB",
                Direction::LowerIsBetter,
                peer_name,
                turns,
            ));
        }
        Ok(rows)
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// A schema of its own on the server.
async fn schema(server: &str) -> anyhow::Result<String> {
    let name = format!("bench_{}", uuid::Uuid::new_v4().simple());
    let pool = muster_store::open(server).await?;
    sqlx::query(sqlx::AssertSqlSafe(format!("CREATE SCHEMA {name}")))
        .execute(&pool)
        .await?;
    let separator = if server.contains('?') { '&' } else { '?' };
    Ok(format!("{server}{separator}options[search_path]={name}"))
}

/// The time of one round of jobs.
struct Load {
    rate: f64,
    /// The time of each job in milliseconds, sorted.
    each: Vec<f64>,
}

#[derive(Default)]
struct Rates {
    rate: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
}

impl Rates {
    /// The first round warms up.
    fn take(&mut self, round: usize, load: &Load) {
        if round > 0 {
            self.rate.push(load.rate);
            self.p50.push(median(&load.each).unwrap_or_default());
            self.p99.push(
                load.each
                    .get(load.each.len() * 99 / 100)
                    .copied()
                    .unwrap_or_default(),
            );
        }
    }
}

/// Sends the requests, some at a time, each client on a connection of its own.
async fn load(requests: Vec<reqwest::Request>) -> anyhow::Result<Load> {
    let count = requests.len();
    let mut shares: Vec<Vec<reqwest::Request>> = (0..AT_ONCE).map(|_| Vec::new()).collect();
    for (request, share) in requests.into_iter().zip((0..AT_ONCE).cycle()) {
        if let Some(share) = shares.get_mut(share) {
            share.push(request);
        }
    }
    let clock = SystemClock::new();
    let started = muster_process::Clock::now(&clock);
    let mut clients = JoinSet::new();
    for share in shares {
        clients.spawn(async move {
            let (http, clock) = (reqwest::Client::new(), SystemClock::new());
            let mut each = Vec::new();
            for request in share {
                let began = muster_process::Clock::now(&clock);
                let answer = http.execute(request).await?;
                let status = answer.status();
                let body = answer.text().await?;
                ensure!(status == 201, "{status}: {body}");
                each.push(muster_process::Clock::now(&clock).since(began).as_secs_f64() * 1e3);
            }
            Ok(each)
        });
    }
    let mut each = Vec::new();
    while let Some(done) = clients.join_next().await {
        each.extend(done??);
    }
    let spent = muster_process::Clock::now(&clock).since(started).as_secs_f64();
    each.sort_by(f64::total_cmp);
    Ok(Load {
        rate: count as f64 / spent,
        each,
    })
}

fn body(validator: ValidatorKey) -> Value {
    json!({
        "target_validator_hotkey": validator, "executor_class": "always_on.test", "docker_image": "alpine",
        "args": ["sh", "-c", "true"], "env": {"B": "1", "A": "2"}, "use_gpu": true, "artifacts_dir": "/artifacts",
        "on_trusted_miner": false, "download_time_limit": 5, "execution_time_limit": 5, "streaming_start_time_limit": 5,
        "upload_time_limit": 5,
    })
}

/// A process that is killed with its owner.
struct Server {
    child: Child,
    base: String,
}

impl Server {
    /// Resident memory in MiB.
    fn memory(&self) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib: f64 = line.context("no VmRSS")?.trim().trim_end_matches(" kB").parse()?;
        Ok(kib / 1024.0)
    }

    /// By how much the process grows with so many open streams.
    async fn watched(
        &self,
        request: impl Fn() -> reqwest::RequestBuilder,
        watchers: usize,
    ) -> anyhow::Result<f64> {
        let before = self.memory()?;
        let mut open = Vec::new();
        for _ in 0..watchers {
            let mut answer = request().send().await?.error_for_status()?;
            // The first event is there: the watcher waits from now on.
            answer.chunk().await?.context("no event")?;
            open.push(answer);
        }
        Ok(self.memory()? - before)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A facilitator with a user and a validator.
struct DoorServer {
    server: Server,
    store: String,
    user: Keypair,
    token: String,
    validator: ValidatorKey,
    _reading: tokio::task::JoinHandle<()>,
}

impl DoorServer {
    async fn start(folder: &Path, name: &str, store: &str) -> anyhow::Result<Self> {
        let (user, keys) = (Keypair::from_uri("//User")?, Keypair::from_uri("//Validator")?);
        let validator = ValidatorKey(keys.hotkey());
        let ready = folder.join(format!("{name}.ready"));
        let config = folder.join(format!("{name}.toml"));
        let files = format!("file:{}", folder.join(format!("{name}.files")).display());
        let text = format!(
            "bind = \"127.0.0.1:0\"\nready_file = {ready:?}\nstore = {store:?}\nvalidators = [\"{validator}\"]\n\
             [http]\nconnections = 65536\nconnections_per_address = 65536\n\
             [limits]\nrequests_per_minute = 0\nstrangers_per_minute = 0\nopen_jobs = 0\nwatchers = 0\n\
             [auth]\nsignature_max_age_s = 3600\n[files]\nstore = {files:?}\n"
        );
        std::fs::write(&config, text)?;
        let child = Command::new(std::env::current_exe()?)
            .arg("serve")
            .arg(&config)
            .stdout(Stdio::null())
            .spawn()?;
        let address = soon(async || Ok(ready::read(&ready)?)).await?;
        let base = format!("http://{address}");
        let server = Server { child, base };
        let http = reqwest::Client::new();
        let answer: Value = http
            .get(format!("{}/auth/nonce", server.base))
            .send()
            .await?
            .json()
            .await?;
        let nonce = answer
            .get("nonce")
            .and_then(Value::as_str)
            .context("no nonce")?
            .to_owned();
        let login = json!({"hotkey": user.hotkey(), "nonce": nonce, "signature": user.sign(nonce.as_bytes()).to_bare_hex()});
        let answer = http
            .post(format!("{}/auth/login", server.base))
            .json(&login)
            .send()
            .await?;
        let Token { token } = answer.error_for_status()?.json().await?;
        let mut socket = connect(&format!("ws://{address}/ws/v0/"), &keys).await?;
        #[expect(clippy::disallowed_methods, reason = "a bench has no shutdown to wait for")]
        let reading = tokio::spawn(async move { while let Ok(Some(_)) = socket.recv().await {} });
        Ok(Self {
            server,
            store: store.to_owned(),
            user,
            token,
            validator,
            _reading: reading,
        })
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.server.base)
    }

    async fn create(&self, jobs: usize) -> anyhow::Result<Load> {
        let http = reqwest::Client::new();
        let body = body(self.validator);
        let job: CreateJob = serde_json::from_value(body.clone())?;
        let fields = job.signed_fields();
        let now = muster_process::Clock::now(&SystemClock::new()).micros() * 1000;
        let mut requests = Vec::new();
        for n in 0..jobs {
            let signature = sign_job(&self.user, &fields, now + i64::try_from(n)?);
            let request = http
                .post(self.url("/api/v1/job-docker/"))
                .bearer_auth(&self.token)
                .header(headers::SIGNATURE_TYPE, "bittensor")
                .header(headers::SIGNATORY, signature.signatory.to_string())
                .header(headers::TIMESTAMP_NS, signature.timestamp_ns)
                .header(headers::SIGNATURE, signature.signature.to_base64())
                .header(headers::SIGNATURE_SCOPE, "SignedFields")
                .json(&body);
            requests.push(request.build()?);
        }
        load(requests).await
    }

    /// Fills the list of another account, straight in the store.
    async fn seed(&self, count: u64) -> anyhow::Result<()> {
        let account = self.lister();
        let pool = muster_store::open(&self.store).await?;
        let numbers =
            format!("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})");
        let uuid = "'00000000-0000-4000-8000-' || CAST(100000000000 + i AS TEXT)";
        let request = json!({
            "signature": {
                "signature_type": "bittensor", "signatory": account, "timestamp_ns": 1,
                "signature": format!("{}Q==", "A".repeat(85)), "signature_scope": "SignedFields",
            },
            "uuid": "UUID", "executor_class": "always_on.test", "docker_image": "alpine", "args": [],
            "env": {"B": "1", "A": "2"}, "use_gpu": true, "download_time_limit": 1, "execution_time_limit": 2,
            "upload_time_limit": 3, "streaming_start_time_limit": 4,
        });
        let request = request.to_string();
        let (head, tail) = request.split_once("UUID").context("no place for the uuid")?;
        let validator = self.validator;
        for statement in [
            format!(
                "INSERT INTO jobs (uuid, user_key, validator, timestamp_ns, signature, request, created_at, answered, account, ended_at) \
                 {numbers} SELECT {uuid}, '{account}', '{validator}', i, 's', '{head}' || {uuid} || '{tail}', i, 1, '{account}', 1 FROM n"
            ),
            format!(
                "INSERT INTO statuses (job, position, status, metadata, created_at) \
                 {numbers} SELECT {uuid}, 0, 'sent', 'null', i FROM n"
            ),
        ] {
            sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&pool).await?;
        }
        pool.close().await;
        Ok(())
    }

    fn lister(&self) -> Hotkey {
        self.user.hotkey()
    }

    /// Milliseconds for one page. The user's own jobs of the rounds before stand at its head.
    async fn page(&self, page: u64, least: u64) -> anyhow::Result<f64> {
        let request = reqwest::Client::new()
            .get(self.url(&format!("/api/v1/jobs/?page={page}&page_size={PAGE}")))
            .bearer_auth(&self.token);
        let (answer, spent) =
            clocked(async { Ok(request.send().await?.error_for_status()?.bytes().await?) }).await?;
        let page: JobPage = serde_json::from_slice(&answer)?;
        ensure!(
            page.count >= least && !page.results.is_empty(),
            "a short list: {}",
            page.count
        );
        Ok(spent)
    }

    async fn watch(&self, watchers: usize) -> anyhow::Result<f64> {
        let list: Value = reqwest::Client::new()
            .get(self.url("/api/v1/jobs/?page_size=1"))
            .bearer_auth(&self.token)
            .send()
            .await?
            .json()
            .await?;
        let job = list
            .pointer("/results/0/uuid")
            .and_then(Value::as_str)
            .context("no job")?
            .to_owned();
        let request = || {
            let path = format!("/api/v1/jobs/{job}/events/");
            reqwest::Client::new()
                .get(self.url(&path))
                .bearer_auth(&self.token)
        };
        self.server.watched(request, watchers).await
    }
}

/// Connects as a Muster validator.
async fn connect(url: &str, keys: &Keypair) -> anyhow::Result<Socket> {
    let mut socket = muster_websocket::connect(url, &Limits::facilitator()).await?;
    socket
        .send(encode(&ToFacilitator::V0AuthenticationRequest(
            sign_facilitator_auth(keys),
        )))
        .await?;
    let frame = socket.recv().await?.context("closed")?;
    let FromFacilitator::Challenge(challenge) = decode(&frame)? else {
        bail!("no challenge: {frame}")
    };
    let signature = answer_challenge(keys, &challenge.nonce);
    socket
        .send(encode(&ToFacilitator::MusterChallengeResponse(
            ChallengeResponse { signature },
        )))
        .await?;
    let accepted = socket.recv().await?.context("closed")?;
    ensure!(accepted.contains("success"), "{accepted}");
    Ok(socket)
}

/// The FastAPI endpoint.
struct Peer {
    server: Server,
}

impl Peer {
    async fn start(python: &str, database: &str) -> anyhow::Result<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
        let port = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
            listener.local_addr()?.port()
        };
        let child = Command::new(python)
            .args([
                "-m",
                "uvicorn",
                "door_fastapi:app",
                "--log-level",
                "warning",
                "--port",
            ])
            .arg(port.to_string())
            .arg("--app-dir")
            .arg(folder)
            .env("DOOR_DATABASE", database)
            .stdout(Stdio::null())
            .spawn()?;
        let base = format!("http://127.0.0.1:{port}");
        let server = Server { child, base };
        let health = format!("{}/health", server.base);
        soon(async || Ok(reqwest::get(&health).await.ok().map(drop))).await?;
        Ok(Self { server })
    }

    async fn create(&self, jobs: usize) -> anyhow::Result<Load> {
        let http = reqwest::Client::new();
        let body = body(ValidatorKey(Keypair::from_uri("//Validator")?.hotkey()));
        let url = format!("{}/jobs", self.server.base);
        let requests = (0..jobs).map(|_| http.post(&url).json(&body).build());
        load(requests.collect::<Result<_, _>>()?).await
    }

    async fn seed(&self, count: u64) -> anyhow::Result<()> {
        let url = format!("{}/seed/{count}", self.server.base);
        reqwest::Client::new()
            .post(url)
            .send()
            .await?
            .error_for_status()?;
        Ok(())
    }

    async fn page(&self, page: u64, least: u64) -> anyhow::Result<f64> {
        let request =
            reqwest::Client::new().get(format!("{}/jobs?page={page}&page_size={PAGE}", self.server.base));
        let (answer, spent) =
            clocked(async { Ok(request.send().await?.error_for_status()?.bytes().await?) }).await?;
        let page: Value = serde_json::from_slice(&answer)?;
        let count = page.get("count").and_then(Value::as_u64);
        ensure!(
            count.is_some_and(|count| count >= least),
            "a short list: {count:?}"
        );
        Ok(spent)
    }

    async fn watch(&self, watchers: usize) -> anyhow::Result<f64> {
        let url = format!("{}/events", self.server.base);
        self.server
            .watched(|| reqwest::Client::new().get(&url), watchers)
            .await
    }
}

/// The result of some work and its time in milliseconds.
async fn clocked<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<(T, f64)> {
    let clock = SystemClock::new();
    let began = muster_process::Clock::now(&clock);
    let done = work.await?;
    let spent = muster_process::Clock::now(&clock).since(began).as_secs_f64() * 1e3;
    Ok((done, spent))
}

/// Asks until there is an answer.
async fn soon<T>(ask: impl AsyncFn() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
    let asking = async {
        loop {
            if let Some(answer) = ask().await? {
                return Ok(answer);
            }
            tokio::time::sleep(Duration::from_millis(20)).await; // polls until the server answers
        }
    };
    tokio::time::timeout(Duration::from_secs(60), asking).await?
}

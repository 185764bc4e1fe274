//! The facilitator's REST API: jobs made durable in a second and how long each takes, a list of 100,000 jobs, by the
//! command line too, the memory of 1,000 idle watchers; on SQLite and on PostgreSQL, against a minimal FastAPI endpoint
//! on the same PostgreSQL.
//!
//! Wants `MUSTER_TEST_POSTGRES_URL`, and for the peer `MUSTER_BENCH_FASTAPI_PYTHON` (fastapi, uvicorn, asyncpg, uvloop,
//! httptools). Each server is a process of its own; the load comes from this one. `MUSTER_BENCH_JOBS` and
//! `MUSTER_BENCH_LISTED` make it small.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::ensure;
use muster_bench::command_line;
use muster_bench::facilitator_server::{self, FacilitatorServer, Server, clocked, job_body, soon};
use muster_bench::{Direction, Report, Row, Turns, median};
use muster_identity::Keypair;
use muster_process::SystemClock;
use muster_protocol::ValidatorKey;
use muster_protocol::rest::JobPage;
use serde_json::Value;
use tokio::task::JoinSet;

const ROUNDS: usize = 5;
const JOBS: usize = 1_000;
const AT_ONCE: usize = 16;
const LISTED: u64 = 100_000;
const PAGE: u64 = 256;
const WATCHERS: usize = 1_000;

fn main() -> anyhow::Result<()> {
    facilitator_server::run(measure)
}

async fn measure() -> anyhow::Result<()> {
    let jobs = number("MUSTER_BENCH_JOBS").map_or(JOBS, |jobs| usize::try_from(jobs).unwrap_or(JOBS));
    let listed = number("MUSTER_BENCH_LISTED").unwrap_or(LISTED);
    let watchers = WATCHERS.min(jobs);
    let folder = tempfile::tempdir()?;
    let sqlite = format!("sqlite:{}", folder.path().join("facilitator.db").display());
    let mut ours = vec![(
        "SQLite",
        FacilitatorServer::start(folder.path(), "sqlite", &sqlite).await?,
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
                FacilitatorServer::start(folder.path(), "postgres", &url).await?,
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
    if let Some((_, server)) = contest.ours.first() {
        report
            .rows
            .extend(command_line::measure(server, folder.path(), listed).await?);
    }
    report.rows.extend(contest.watch(watchers).await?);
    report.notes = notes;
    report.print()
}

/// The stores of ours and the peer, measured in turns.
struct Contest {
    ours: Vec<(&'static str, FacilitatorServer)>,
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
            for ((_, server), rates) in ours.iter().zip(&mut rates) {
                let load = create_jobs(server, jobs).await?;
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
        for (_, server) in ours {
            server.seed(listed).await?;
        }
        if let Some(peer) = peer {
            peer.seed(listed).await?;
        }
        for (what, page) in [("first", 1), ("last", listed.div_ceil(PAGE))] {
            let mut samples: Vec<Vec<f64>> = ours.iter().map(|_| Vec::new()).collect();
            let mut theirs = Vec::new();
            for _ in 0..ROUNDS {
                for ((_, server), samples) in ours.iter().zip(&mut samples) {
                    samples.push(read_page(server, page, listed).await?);
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
        for (engine, server) in ours {
            let what = format!("memory of {watchers} idle watchers of events, {engine}");
            let turns = Turns {
                ours: vec![server.watch(watchers).await?],
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

/// Creates signed jobs of the server's user.
async fn create_jobs(server: &FacilitatorServer, jobs: usize) -> anyhow::Result<Load> {
    let http = reqwest::Client::new();
    let now = muster_process::Clock::now(&SystemClock::new()).micros() * 1000;
    let mut requests = Vec::new();
    for n in 0..jobs {
        requests.push(server.job_request(&http, now + i64::try_from(n)?)?.build()?);
    }
    load(requests).await
}

/// Milliseconds for one page. The user's own jobs of the rounds before stand at its head.
async fn read_page(server: &FacilitatorServer, page: u64, least: u64) -> anyhow::Result<f64> {
    let path = format!("/api/v1/jobs/?page={page}&page_size={PAGE}");
    let request = server.asked(&reqwest::Client::new(), reqwest::Method::GET, &path);
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
                "facilitator_fastapi:app",
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
        let body = job_body(ValidatorKey(Keypair::from_uri("//Validator")?.hotkey()));
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

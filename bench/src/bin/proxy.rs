//! The sealing proxy beside nginx: processor time of each relayed event, events in a second, what it adds to the first
//! byte and to each event, memory of a stream that waits, two thousand streams at once. Both speak TLS 1.3 with the
//! same certificate to the same client and HTTP/1.1 over a Unix socket to the same engine; ours also wants the client's
//! certificate, hashes and signs.
//!
//! The proxy under test has a core for itself, everything else the other. `MUSTER_BENCH_NGINX` names nginx (else the
//! one on the path); `MUSTER_BENCH_LITELLM` a `litellm` command, for its time to the first byte; `MUSTER_BENCH_ROUNDS`
//! (default 5) and `MUSTER_BENCH_STREAMS` (default 2000) make it small.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures_util::future::try_join_all;
use http_body_util::BodyExt as _;
use muster_bench::plot::{Curve, distributions};
use muster_bench::process::{
    CORE_OF_OTHERS, CORE_OF_PROXY, ENGINE, Process, raise, read_identity, soon, write_address, write_identity,
};
use muster_bench::streams::{
    CALM, CALM_STREAMS, SHORT, StreamObservation, StreamParameters, hear, now_us, quantile, request,
    serve_engine,
};
use muster_bench::{Direction, Report, Row, Turns};
use muster_identity::Keypair;
use muster_process::{SharedClock, SystemClock, Tasks, tls};
use muster_protocol::{AttemptId, Digest, ImageId, JobId, MinerKey, Timestamp, ValidatorKey};
use muster_response_proof::{Attestation, HashScheme, Price, SessionId, Text};
use muster_sealed_client::{ResponseBody, SealedClient, SealedPeer};
use muster_sealing_proxy::socket::{JobSocket, SocketOwner};
use muster_sealing_proxy::{Endpoint, EngineAddress, Limits, ProofSigner, SealingProxy, Upstream};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use uuid::Uuid;

const PATH: &str = "/v1/chat/completions";

/// As fast as it goes, many at once.
const FAST: StreamParameters = StreamParameters::new(2_000, 0);
const FAST_STREAMS: usize = 64;
/// Each event by itself, as many at once.
const PACED: StreamParameters = StreamParameters::new(300, 5_000);
const SHORT_STREAMS: usize = 200;
/// One event, then nothing for a while.
const WAITING: StreamParameters = StreamParameters::new(2, 60_000_000);
/// Many at once.
const CROWD: StreamParameters = StreamParameters::new(20, 200_000);

fn main() -> Result<()> {
    tls::install_provider();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("engine"), Some(folder)) => runtime.block_on(serve_engine(Path::new(&folder))),
        (Some("seal"), Some(folder)) => runtime.block_on(seal(Path::new(&folder))),
        (None, _) => {
            raise()?;
            measure(&runtime)
        }
        (Some(other), _) => bail!("unknown word {other:?}"),
    }
}

// === the processes ===

async fn seal(folder: &Path) -> Result<()> {
    let (tasks, limits) = (Tasks::new(), limits());
    let clock: SharedClock = Arc::new(SystemClock::new());
    let server = read_identity(folder, "server")?;
    let client = read_identity(folder, "client")?;
    let key = Keypair::from_seed([7; 32]);
    let stated = attestation(&key, clock.now(), server.fingerprint(), client.fingerprint())?;
    let envelope = muster_response_proof::seal(&stated, &Keypair::from_seed([8; 32]));
    let sealer = ProofSigner::new(key, envelope, Arc::clone(&clock))?;
    let socket = JobSocket::new(folder, ENGINE, SocketOwner::Trusted)?;
    let upstream = Upstream::new(EngineAddress::Socket(socket), &limits, &tasks);
    let seal = SealingProxy::new(sealer, upstream, limits, tasks.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = Endpoint::open(listener, &server, client.fingerprint(), seal, clock)?;
    write_address(folder, "seal", &endpoint.address().to_string())?;
    std::future::pending::<()>().await;
    drop(endpoint);
    Ok(())
}

fn limits() -> Limits {
    Limits {
        in_flight: 8_192,
        connections: 8_192,
        ..Limits::default()
    }
}

fn attestation(key: &Keypair, now: Timestamp, server: Digest, client: Digest) -> Result<Attestation> {
    Ok(Attestation {
        session: SessionId(Uuid::from_u128(1)),
        session_key: key.hotkey(),
        job: JobId::from_uuid(Uuid::from_u128(2)),
        attempt: AttemptId::from_uuid(Uuid::from_u128(2)),
        miner: MinerKey(Keypair::from_seed([8; 32]).hotkey()),
        audience: ValidatorKey(Keypair::from_seed([9; 32]).hotkey()),
        server_certificate: server,
        client_certificate: client,
        executor: Text::new("bench")?,
        address: Text::new("127.0.0.1:1")?,
        image: ImageId(Digest::of(b"image")),
        model: None,
        scheme: HashScheme::RawHttp,
        price: Price::default(),
        not_before: now,
        not_after: now.plus(Duration::from_secs(86_400)),
    })
}

// === the clients ===

/// The server under load.
#[derive(Clone)]
enum Target {
    /// Ours or nginx.
    Tls(SealedClient, String),
    /// The engine itself.
    Direct(Upstream),
    /// A gateway without TLS.
    Plain(Upstream, String),
}

impl Target {
    fn tls(folder: &Path, address: &str, tasks: &Tasks) -> Result<Self> {
        let peer = SealedPeer {
            address: address.to_owned(),
            certificate: read_identity(folder, "server")?.fingerprint(),
        };
        let client = SealedClient::new(peer, &read_identity(folder, "client")?, &limits(), tasks)?;
        Ok(Self::Tls(client, address.to_owned()))
    }

    async fn stream(&self, parameters: StreamParameters, timed: bool) -> Result<StreamObservation> {
        let sent = now_us();
        hear(self.open(parameters).await?, sent, timed).await
    }

    async fn open(&self, parameters: StreamParameters) -> Result<ResponseBody> {
        let response = match self {
            Self::Tls(client, host) => client.send(request(PATH, host, parameters)?).await?,
            Self::Direct(upstream) => upstream.send(request(PATH, "engine", parameters)?).await?,
            Self::Plain(upstream, host) => upstream.send(request(PATH, host, parameters)?).await?,
        };
        if !response.status().is_success() {
            bail!("a proxy answered {}", response.status());
        }
        Ok(response.into_body())
    }

    async fn many(
        &self,
        count: usize,
        parameters: StreamParameters,
        timed: bool,
    ) -> Result<Vec<StreamObservation>> {
        let all = try_join_all((0..count).map(|_| self.stream(parameters, timed))).await?;
        let short = all
            .iter()
            .find(|heard| heard.events != u64::from(parameters.events));
        match short {
            Some(heard) => bail!("a stream had {} events of {}", heard.events, parameters.events),
            None => Ok(all),
        }
    }

    async fn first_bytes(&self) -> Result<Vec<f64>> {
        let mut firsts = Vec::new();
        for _ in 0..SHORT_STREAMS {
            firsts.push(self.stream(SHORT, false).await?.first_us);
        }
        Ok(firsts)
    }
}

// === what is measured ===

/// One proxy under measurement.
struct Side {
    name: &'static str,
    process: Process,
    target: Target,
    found: Found,
}

/// The samples of one proxy, one a round.
#[derive(Clone, Default)]
struct Found {
    per_event_us: Vec<f64>,
    per_event_in_bulk_us: Vec<f64>,
    events_per_s: Vec<f64>,
    first_us: Vec<f64>,
    late_p50_us: Vec<f64>,
    late_p99_us: Vec<f64>,
    end_us: Vec<f64>,
    crowd_p99_us: Vec<f64>,
    idle_kib: Vec<f64>,
    all_late: Vec<f64>,
}

fn measure(runtime: &Runtime) -> Result<()> {
    let number = |name: &str, default| {
        let set = std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<usize>().ok());
        set.unwrap_or(default)
    };
    let (rounds, crowd) = (
        number("MUSTER_BENCH_ROUNDS", 5),
        number("MUSTER_BENCH_STREAMS", 2_000),
    );
    let folder = tempfile::tempdir()?;
    let (folder, tasks) = (folder.path(), Tasks::new());
    write_identity(folder, "server")?;
    write_identity(folder, "client")?;
    let engine = Process::own(folder, "engine", CORE_OF_OTHERS)?;
    let direct = {
        let socket = JobSocket::new(folder, ENGINE, SocketOwner::Trusted)?;
        Target::Direct(Upstream::new(EngineAddress::Socket(socket), &limits(), &tasks))
    };
    let side = |name, process: Process| -> Result<Side> {
        let target = Target::tls(folder, &process.address, &tasks)?;
        Ok(Side {
            name,
            process,
            target,
            found: Found::default(),
        })
    };
    let mut sides = vec![
        side(
            "Muster, TLS, sealed",
            Process::own(folder, "seal", CORE_OF_PROXY)?,
        )?,
        side("nginx, TLS", Process::nginx(folder)?)?,
    ];
    if let Ok(program) = std::env::var("MUSTER_BENCH_ENVOY") {
        sides.push(side("envoy, TLS", Process::envoy(folder, &program)?)?);
    }
    let _context = runtime.enter();
    let mut direct_late = Vec::new();
    for side in &mut sides {
        soon(side.name, || {
            runtime.block_on(side.target.stream(SHORT, false)).ok()
        })?;
        let each = runtime.block_on(waiting(&side.process, &side.target, crowd))?;
        side.found.idle_kib.push(each);
    }
    for round in 0..=rounds {
        let base = runtime.block_on(async {
            let firsts = direct.first_bytes().await?;
            let calm = direct.many(CALM_STREAMS, CALM, true).await?;
            let late: Vec<f64> = calm.into_iter().flat_map(|heard| heard.late_us).collect();
            anyhow::Ok((firsts, late))
        })?;
        for side in &mut sides {
            let one = runtime.block_on(sample(&side.process, &side.target, &base, crowd))?;
            // The first round warms up.
            if round > 0 {
                side.found.add(one);
            }
        }
        direct_late.extend(base.1);
    }
    draw(direct_late, &sides)?;
    let mut report = rows(&sides, crowd);
    if let (Ok(program), Some(ours)) = (std::env::var("MUSTER_BENCH_LITELLM"), sides.first()) {
        let gateway = Process::litellm(folder, &program, &engine.address)?;
        // Earlier results are not lost with it.
        match beside_litellm(runtime, &gateway, &ours.target, &direct, &tasks) {
            Ok(row) => report.rows.push(row),
            Err(error) => report.notes.push(format!("LiteLLM: {error:#}")),
        }
    }
    report.print()
}

fn draw(direct: Vec<f64>, sides: &[Side]) -> Result<()> {
    let mut lines = vec![Curve {
        name: "no proxy".to_owned(),
        samples: direct,
    }];
    lines.extend(sides.iter().map(|side| Curve {
        name: side.name.to_owned(),
        samples: side.found.all_late.clone(),
    }));
    let picture = distributions(
        "How late an event arrives, 16 streams of 100 events a second",
        "microseconds",
        &lines,
    );
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/proxy-latency.svg");
    fs::write(&docs, picture).with_context(|| format!("cannot write {}", docs.display()))
}

async fn sample(
    process: &Process,
    target: &Target,
    base: &(Vec<f64>, Vec<f64>),
    crowd: usize,
) -> Result<Found> {
    let mut found = Found::default();
    let (before, started) = (process.processor()?, now_us());
    let fast = target.many(FAST_STREAMS, FAST, false).await?;
    let spent = seconds(now_us() - started);
    found
        .per_event_in_bulk_us
        .push((process.processor()? - before) * 1e6 / events(&fast));
    found.events_per_s.push(events(&fast) / spent);
    let before = process.processor()?;
    let paced = target.many(FAST_STREAMS, PACED, false).await?;
    found
        .per_event_us
        .push((process.processor()? - before) * 1e6 / events(&paced));

    let middle = |samples: &[f64], share| quantile(samples, share).unwrap_or_default();
    let firsts = target.first_bytes().await?;
    found.first_us.push(middle(&firsts, 0.5) - middle(&base.0, 0.5));

    let calm = target.many(CALM_STREAMS, CALM, true).await?;
    found.end_us.push(middle(
        &calm.iter().map(|heard| heard.end_us).collect::<Vec<_>>(),
        0.5,
    ));
    let late: Vec<f64> = calm.into_iter().flat_map(|heard| heard.late_us).collect();
    found.late_p50_us.push(middle(&late, 0.5) - middle(&base.1, 0.5));
    found
        .late_p99_us
        .push(middle(&late, 0.99) - middle(&base.1, 0.99));
    found.all_late = late;

    let together = target.many(crowd, CROWD, true).await?;
    let late: Vec<f64> = together.into_iter().flat_map(|heard| heard.late_us).collect();
    found.crowd_p99_us.push(middle(&late, 0.99));
    Ok(found)
}

/// KiB that each of `crowd` streams adds that have begun and send nothing. Of a process that has served nobody yet.
async fn waiting(process: &Process, target: &Target, crowd: usize) -> Result<f64> {
    let before = process.resident()?;
    let mut open = Vec::new();
    for _ in 0..crowd {
        let mut body = target.open(WAITING).await?;
        body.frame().await.context("a stream without an event")??;
        open.push(body);
    }
    let after = process.resident()?;
    Ok((after - before) / f64::from(u32::try_from(open.len()).unwrap_or(u32::MAX)))
}

impl Found {
    fn add(&mut self, one: Self) {
        self.per_event_us.extend(one.per_event_us);
        self.per_event_in_bulk_us.extend(one.per_event_in_bulk_us);
        self.events_per_s.extend(one.events_per_s);
        self.first_us.extend(one.first_us);
        self.late_p50_us.extend(one.late_p50_us);
        self.late_p99_us.extend(one.late_p99_us);
        self.end_us.extend(one.end_us);
        self.crowd_p99_us.extend(one.crowd_p99_us);
        self.idle_kib.extend(one.idle_kib);
        self.all_late.extend(one.all_late);
    }
}

fn events(streams: &[StreamObservation]) -> f64 {
    streams.iter().map(|heard| heard.events as f64).sum()
}

fn seconds(micros: i64) -> f64 {
    micros as f64 / 1e6
}

/// Ours, which is the first, against each of the others; targets are of nginx, the second.
fn rows(sides: &[Side], crowd: usize) -> Report {
    let mut report = Report {
        rows: Vec::new(),
        notes: vec![
            "TLS 1.3 to the client, HTTP/1.1 over a Unix socket to the engine, events of about 240 bytes; ours pins the client's certificate, hashes and signs".to_owned(),
            "the proxy on core 0, engine and clients on core 1; what is added is the difference to the engine asked directly in the same round".to_owned(),
        ],
    };
    let Some((ours, others)) = sides.split_first() else {
        return report;
    };
    for (number, other) in others.iter().enumerate() {
        let peer = other.name.split(',').next().unwrap_or(other.name);
        let rows = against(&ours.found, &other.found, peer, crowd).into_iter();
        report.rows.extend(rows.map(|(row, target)| match target {
            Some(target) if number == 0 => row.target(target),
            Some(_) | None => row,
        }));
    }
    report
}

fn against(ours: &Found, theirs: &Found, peer: &str, crowd: usize) -> Vec<(Row, Option<f64>)> {
    use Direction::{HigherIsBetter, LowerIsBetter};
    let row = |what: &str, unit: &str, direction, of: fn(&Found) -> &Vec<f64>| {
        let turns = Turns {
            ours: of(ours).clone(),
            peer: of(theirs).clone(),
        };
        Row::against(what, unit, direction, peer, turns)
    };
    let us = |what: &str, of| row(what, "us", LowerIsBetter, of);
    let at_once = format!("{crowd} streams at once, 5 events a second each: an event's way, P99");
    vec![
        (
            us(
                "processor time of a relayed event, 64 streams of 200 a second",
                |found| &found.per_event_us,
            ),
            Some(1.0),
        ),
        (
            us(
                "processor time of a relayed event, 64 streams as fast as they go",
                |found| &found.per_event_in_bulk_us,
            ),
            None,
        ),
        (
            row(
                "events relayed, 64 streams",
                "per second",
                HigherIsBetter,
                |found| &found.events_per_s,
            ),
            Some(1.0),
        ),
        (
            us("added to the first byte, P50", |found| &found.first_us),
            Some(1.2),
        ),
        (
            us("added to an event's way, P50", |found| &found.late_p50_us),
            None,
        ),
        (
            us("added to an event's way, P99", |found| &found.late_p99_us),
            None,
        ),
        (
            us("from the last event to the end of the body, P50", |found| {
                &found.end_us
            }),
            None,
        ),
        (us(&at_once, |found| &found.crowd_p99_us), None),
        (
            row(
                "memory that a waiting stream adds",
                "KiB",
                LowerIsBetter,
                |found| &found.idle_kib,
            ),
            None,
        ),
    ]
}

fn beside_litellm(
    runtime: &Runtime,
    gateway: &Process,
    ours: &Target,
    direct: &Target,
    tasks: &Tasks,
) -> Result<Row> {
    let address = gateway.address.parse()?;
    let plain = Upstream::new(EngineAddress::Address(address), &limits(), tasks);
    let target = Target::Plain(plain, gateway.address.clone());
    soon("LiteLLM", || runtime.block_on(target.stream(SHORT, false)).ok())?;
    let mut turns = Turns::default();
    for _ in 0..3 {
        let middle = |target: &Target| -> Result<f64> {
            let firsts = runtime.block_on(target.first_bytes())?;
            Ok(quantile(&firsts, 0.5).unwrap_or_default())
        };
        let base = middle(direct)?;
        turns.ours.push(middle(ours)? - base);
        turns.peer.push(middle(&target)? - base);
    }
    let what = "added to the first byte, P50";
    Ok(Row::against(what, "us", Direction::LowerIsBetter, "LiteLLM", turns).target(0.05))
}

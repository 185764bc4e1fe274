//! The whole way of a user's stream, beside one hop of nginx: client, facilitator's `/v1`, validator's gateway, sealed
//! endpoint, engine. It measures the time that the way adds to the first byte and to each event, and the processor time
//! of all hops per event.
//!
//! The facilitator is a process of its own, gateway and endpoint share one; the processes that pass streams on have a
//! core for themselves, the engine and all clients the other. `MUSTER_BENCH_ROUNDS` (default 5) makes it small;
//! `MUSTER_BENCH_NGINX` as for `proxy`.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::future::{BoxFuture, try_join_all};
use hyper::header::{AUTHORIZATION, HeaderValue};
use muster_bench::plot::{Curve, distributions};
use muster_bench::process::{
    CORE_OF_OTHERS, CORE_OF_PROXY, ENGINE, Process, raise, read_identity, soon, write_address, write_identity,
};
use muster_bench::streams::{
    CALM, CALM_STREAMS, SHORT, StreamObservation, StreamParameters, hear, now_us, quantile, request,
    serve_engine,
};
use muster_bench::{Direction, Report, Row, Turns};
use muster_facilitator::Config;
use muster_gateway::backend::{JobNews, StreamingJobOrder, ValidatorBackend};
use muster_gateway::{Gateway, GatewayDeps, Settings};
use muster_http::server::HttpSettings;
use muster_identity::{Keypair, answer_challenge, sign_facilitator_auth, sign_login, sign_streaming_ready};
use muster_process::{SharedClock, SystemClock, Tasks, certificate, ready, tls};
use muster_protocol::account_api::{LoginRequest, Token};
use muster_protocol::wire::facilitator::{FromFacilitator, ToFacilitator};
use muster_protocol::wire::miner::StreamingJobReady;
use muster_protocol::wire::muster::{ChallengeResponse, GatewayNotice};
use muster_protocol::wire::{decode, encode};
use muster_protocol::{AttemptId, Digest, ExecutorClass, Hotkey, ImageId, JobId, MinerKey, ValidatorKey};
use muster_response_proof::{Attestation, SessionId, Text, seal};
use muster_sealed_client::{SealedClient, SealedPeer};
use muster_sealing_proxy::socket::{JobSocket, SocketOwner};
use muster_sealing_proxy::{Endpoint, EngineAddress, Limits, ProofSigner, SealingProxy, Upstream};
use muster_store::{Writer, migrate, read_only};
use muster_validator::store::MIGRATIONS;
use muster_websocket::Socket;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use uuid::Uuid;

/// The facilitator's key, for the gateway.
const VOUCHES: &str = "facilitator.hotkey";
const PATH: &str = "/v1/chat/completions";
const SHORT_STREAMS: usize = 100;
/// Each event by itself, many at once.
const PACED: StreamParameters = StreamParameters::new(200, 10_000);
const PACED_STREAMS: usize = 64;
/// As fast as it goes, many at once.
const FAST: StreamParameters = StreamParameters::new(500, 0);

fn main() -> Result<()> {
    tls::install_provider();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("engine"), Some(folder)) => runtime.block_on(serve_engine(Path::new(&folder))),
        (Some("gateway"), Some(folder)) => runtime.block_on(gateway(Path::new(&folder))),
        (Some("facilitator"), Some(folder)) => runtime.block_on(facilitator(Path::new(&folder))),
        (None, _) => {
            raise()?;
            measure(&runtime)
        }
        (Some(other), _) => bail!("unknown word {other:?}"),
    }
}

fn keys(name: &str) -> Result<Keypair> {
    Ok(Keypair::from_uri(name)?)
}

fn limits() -> Limits {
    Limits {
        in_flight: 8_192,
        connections: 8_192,
        ..Limits::default()
    }
}

// === the gateway ===

/// Jobs that become sealed endpoints in front of the folder's engine, in this process.
struct Jobs {
    socket: JobSocket,
    validator: Keypair,
    miner: Keypair,
    clock: SharedClock,
    tasks: Tasks,
    /// For as long as the process lives.
    open: Mutex<Vec<(Endpoint, tokio::sync::mpsc::Sender<JobNews>)>>,
}

async fn gateway(folder: &Path) -> Result<()> {
    let (tasks, clock): (_, SharedClock) = (Tasks::new(), Arc::new(SystemClock::new()));
    let store = format!("sqlite:{}", folder.join("gateway.db").display());
    let pool = muster_store::open(&store).await?;
    migrate(&pool, &MIGRATIONS).await?;
    let jobs = Jobs {
        socket: JobSocket::new(folder, ENGINE, SocketOwner::Trusted)?,
        validator: keys("//Validator")?,
        miner: keys("//Miner")?,
        clock: Arc::clone(&clock),
        tasks: tasks.clone(),
        open: Mutex::default(),
    };
    let service = json!({
        "model": "bench", "image": ImageId(Digest::of(b"image")), "class": ExecutorClass::AlwaysOnTest,
        "input_price": 1_000_000, "output_price": 2_000_000,
        "input_tokens_per_s": 1_000, "output_tokens_per_s": 1_000,
    });
    let settings = Settings {
        facilitators: [fs::read_to_string(folder.join(VOUCHES))?.parse()?].into(),
        services: vec![serde_json::from_value(service)?],
        min_sessions: 1,
        max_sessions: 1,
        per_session: 4_096,
        queue_of_one: 4_096,
        ..Settings::default()
    };
    let parts = GatewayDeps {
        http: HttpSettings::default(),
        backend: Arc::new(jobs),
        pool: read_only(&pool)?,
        writer: Writer::new(&pool),
        clock,
        tasks,
        // Requests fail with it, and the bench with them.
        on_store_failure: Box::new(drop),
    };
    let gateway = Gateway::open(([127, 0, 0, 1], 0).into(), settings, parts).await?;
    write_address(folder, "gateway", &serde_json::to_string(&gateway.notice())?)?;
    std::future::pending::<()>().await;
    drop(gateway);
    Ok(())
}

impl ValidatorBackend for Jobs {
    fn validator(&self) -> ValidatorKey {
        ValidatorKey(self.validator.hotkey())
    }

    fn permits_address(&self, _: &str, _: SocketAddr) -> bool {
        true
    }

    fn owner_of(&self, miner: MinerKey) -> Hotkey {
        miner.0
    }

    fn start_job(&self, order: StreamingJobOrder) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let begun = self.run(order).await;
            begun.map_err(|error| format!("{error:#}"))
        })
    }

    fn room_changes(&self) -> watch::Receiver<()> {
        watch::Sender::default().subscribe()
    }

    fn waiting_jobs(&self) -> watch::Receiver<BTreeSet<ExecutorClass>> {
        watch::Sender::default().subscribe()
    }

    fn end_job(&self, _job: JobId, _why: &'static str, _is_closed: bool) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

impl Jobs {
    async fn run(&self, order: StreamingJobOrder) -> Result<()> {
        let server = certificate::make_self_signed(&["localhost".to_owned()])?;
        let client = certificate::digest_of_pem(&order.certificate)?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (session, now) = (Keypair::generate(), self.clock.now());
        let attempt = AttemptId::first_of(order.job);
        let stated = Attestation {
            session: SessionId(Uuid::new_v4()),
            session_key: session.hotkey(),
            job: order.job,
            attempt,
            miner: MinerKey(self.miner.hotkey()),
            audience: self.validator(),
            server_certificate: server.identity.fingerprint(),
            client_certificate: client,
            executor: Text::new("bench")?,
            address: Text::new(address.to_string())?,
            image: order.service.image,
            model: None,
            scheme: order.service.scheme,
            price: order.service.price(),
            not_before: now,
            not_after: now.plus(order.lifetime),
        };
        let envelope = seal(&stated, &self.miner);
        let sealer = ProofSigner::new(session, envelope, Arc::clone(&self.clock))?;
        let upstream = Upstream::new(EngineAddress::Socket(self.socket.clone()), &limits(), &self.tasks);
        let seal = SealingProxy::new(sealer, upstream, limits(), self.tasks.clone());
        let clock = Arc::clone(&self.clock);
        let endpoint = Endpoint::open(listener, &server.identity, client, seal, clock)?;
        let ip = address.ip().to_string();
        let signature = sign_streaming_ready(&self.miner, attempt, &ip, address.port(), &server.pem);
        let ready = StreamingJobReady {
            job_uuid: attempt,
            executor_token: None,
            public_key: server.pem,
            ip: Some(ip),
            port: address.port(),
            miner_signature: Some(signature),
        };
        let miner = MinerKey(self.miner.hotkey());
        let news = JobNews::Ready {
            miner,
            ready: Box::new(ready),
        };
        order
            .news
            .try_send(news)
            .ok()
            .context("nobody hears of the job")?;
        let mut open = self.open.lock();
        open.push((endpoint, order.news));
        Ok(())
    }
}

// === the facilitator ===

async fn facilitator(folder: &Path) -> Result<()> {
    let text = fs::read_to_string(folder.join("facilitator.toml"))?;
    let config: Config = muster_process::config::parse(&text, "bench")?;
    let clock: SharedClock = Arc::new(SystemClock::new());
    Ok(muster_facilitator::run(config, Tasks::new(), clock).await?)
}

fn configure(folder: &Path) -> Result<()> {
    let at = folder.display();
    let validator = keys("//Validator")?.hotkey();
    let text = format!(
        "bind = \"127.0.0.1:0\"\nready_file = \"{at}/facilitator.address\"\nstore = \"sqlite:{at}/facilitator.db\"\nvalidators = [\"{validator}\"]\n\
         [http]\nconnections = 65536\nconnections_per_address = 65536\n\
         [limits]\nrequests_per_minute = 0\nstrangers_per_minute = 0\nopen_jobs = 0\nwatchers = 0\n\
         [files]\nstore = \"file:{at}/files\"\n"
    );
    Ok(fs::write(folder.join("facilitator.toml"), text)?)
}

/// The key by which the facilitator vouches for its clients.
async fn vouches(address: &str) -> Result<String> {
    let about: Value = reqwest::get(format!("http://{address}/health"))
        .await?
        .json()
        .await?;
    let hotkey = about.get("hotkey").and_then(Value::as_str);
    Ok(hotkey.context("no hotkey")?.to_owned())
}

/// A token of a user who logs in.
async fn login(address: &str) -> Result<String> {
    let (http, user) = (reqwest::Client::new(), keys("//User")?);
    let answer: Value = http
        .get(format!("http://{address}/auth/nonce"))
        .send()
        .await?
        .json()
        .await?;
    let nonce = answer.get("nonce").and_then(Value::as_str).context("no nonce")?;
    let nonce = nonce.parse()?;
    let login = LoginRequest::new(user.hotkey(), sign_login(&user, &nonce, None), &nonce);
    let answer = http
        .post(format!("http://{address}/auth/login"))
        .json(&login)
        .send()
        .await?;
    let Token { token } = answer.error_for_status()?.json().await?;
    Ok(token)
}

/// Connects as the validator and announces its gateway.
async fn announce(address: &str, notice: GatewayNotice) -> Result<Socket> {
    let keys = keys("//Validator")?;
    let url = format!("ws://{address}/ws/v0/");
    let mut socket = muster_websocket::connect(&url, &muster_websocket::Limits::facilitator()).await?;
    let greeting = ToFacilitator::V0AuthenticationRequest(sign_facilitator_auth(&keys));
    socket.send(encode(&greeting)).await?;
    let frame = socket.recv().await?.context("closed")?;
    let FromFacilitator::Challenge(challenge) = decode(&frame)? else {
        bail!("no challenge: {frame}")
    };
    let signature = answer_challenge(&keys, &challenge.nonce);
    let answer = ToFacilitator::MusterChallengeResponse(ChallengeResponse { signature });
    socket.send(encode(&answer)).await?;
    let accepted = socket.recv().await?.context("closed")?;
    ensure!(accepted.contains("success"), "{accepted}");
    let notice = ToFacilitator::MusterGateway(Box::new(notice));
    socket.send(encode(&notice)).await?;
    Ok(socket)
}

/// Keeps the validator's connection, with a sign of life now and then.
async fn keep(mut socket: Socket, notice: GatewayNotice) {
    let again = encode(&ToFacilitator::MusterGateway(Box::new(notice)));
    loop {
        tokio::select! {
            heard = socket.recv() => if !matches!(heard, Ok(Some(_))) {
                return;
            },
            () = tokio::time::sleep(Duration::from_secs(20)) => if socket.send(again.clone()).await.is_err() {
                return;
            },
        }
    }
}

// === the clients ===

/// The server under load.
enum Target {
    /// The engine itself, or the facilitator with a token.
    Plain(Upstream, Option<HeaderValue>),
    Nginx(SealedClient),
}

impl Target {
    async fn stream(&self, parameters: StreamParameters, timed: bool) -> Result<StreamObservation> {
        let (sent, mut request) = (now_us(), request(PATH, "bench", parameters)?);
        let response = match self {
            Self::Plain(upstream, token) => {
                if let Some(token) = token {
                    request.headers_mut().insert(AUTHORIZATION, token.clone());
                }
                upstream.send(request).await?
            }
            Self::Nginx(client) => client.send(request).await?,
        };
        ensure!(response.status().is_success(), "answered {}", response.status());
        let heard = hear(response.into_body(), sent, timed).await?;
        ensure!(
            heard.events == u64::from(parameters.events),
            "{} events of {}",
            heard.events,
            parameters.events
        );
        Ok(heard)
    }

    async fn many(
        &self,
        count: usize,
        parameters: StreamParameters,
        timed: bool,
    ) -> Result<Vec<StreamObservation>> {
        try_join_all((0..count).map(|_| self.stream(parameters, timed))).await
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

#[derive(Default)]
struct Found {
    first_us: Vec<f64>,
    late_p50_us: Vec<f64>,
    late_p99_us: Vec<f64>,
    per_event_us: Vec<f64>,
    per_event_in_bulk_us: Vec<f64>,
    all_late: Vec<f64>,
}

fn measure(runtime: &Runtime) -> Result<()> {
    let rounds = std::env::var("MUSTER_BENCH_ROUNDS").ok();
    let rounds = rounds.and_then(|text| text.parse().ok()).unwrap_or(5_usize);
    let folder = tempfile::tempdir()?;
    let (folder, tasks) = (folder.path(), Tasks::new());
    let _context = runtime.enter();
    write_identity(folder, "server")?;
    write_identity(folder, "client")?;
    configure(folder)?;
    let _engine = Process::own(folder, "engine", CORE_OF_OTHERS)?;
    let facilitator = Process::own(folder, "facilitator", CORE_OF_PROXY)?;
    let served = soon("the facilitator", || {
        ready::read(&folder.join("facilitator.address")).ok().flatten()
    })?;
    let address = served.to_string();
    fs::write(folder.join(VOUCHES), runtime.block_on(vouches(&address))?)?;
    let gateway = Process::own(folder, "gateway", CORE_OF_PROXY)?;
    let nginx = Process::nginx(folder)?;
    let notice: GatewayNotice = serde_json::from_str(&gateway.address)?;
    let socket = runtime.block_on(announce(&address, notice.clone()))?;
    drop(tasks.spawn("validator", keep(socket, notice)));
    let token = runtime.block_on(login(&address))?;
    let plain = |address| Upstream::new(address, &limits(), &tasks);
    let socket = JobSocket::new(folder, ENGINE, SocketOwner::Trusted)?;
    let direct = Target::Plain(plain(EngineAddress::Socket(socket)), None);
    let bearer = HeaderValue::try_from(format!("Bearer {token}"))?;
    let ours = Target::Plain(plain(EngineAddress::Address(address.parse()?)), Some(bearer));
    let peer = SealedPeer {
        address: nginx.address.clone(),
        certificate: read_identity(folder, "server")?.fingerprint(),
    };
    let identity = read_identity(folder, "client")?;
    let theirs = Target::Nginx(SealedClient::new(peer, &identity, &limits(), &tasks)?);
    let sides = [(vec![&gateway, &facilitator], ours), (vec![&nginx], theirs)];
    for (_, target) in &sides {
        soon("a way", || runtime.block_on(target.stream(SHORT, false)).ok())?;
    }
    let (mut found, mut direct_late) = ([Found::default(), Found::default()], Vec::new());
    for round in 0..=rounds {
        let firsts = runtime.block_on(direct.first_bytes())?;
        let late = lateness(runtime.block_on(direct.many(CALM_STREAMS, CALM, true))?);
        for ((processes, target), found) in sides.iter().zip(&mut found) {
            // The first round warms up.
            let mut warming = Found::default();
            let found = if round == 0 { &mut warming } else { found };
            runtime.block_on(found.sample(processes, target, &firsts, &late))?;
        }
        direct_late.extend(late);
    }
    let [ours, nginx] = found;
    draw(direct_late, &nginx, &ours)?;
    rows(ours, nginx).print()
}

fn draw(direct: Vec<f64>, nginx: &Found, ours: &Found) -> Result<()> {
    let line = |name: &str, samples: Vec<f64>| Curve {
        name: name.to_owned(),
        samples,
    };
    let picture = distributions(
        "How late an event arrives, 16 streams of 100 events a second",
        "microseconds",
        &[
            line("no proxy", direct),
            line("one hop: nginx, TLS", nginx.all_late.clone()),
            line("three hops: facilitator, gateway, seal", ours.all_late.clone()),
        ],
    );
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/timeline-latency.svg");
    fs::write(&docs, picture).with_context(|| format!("cannot write {}", docs.display()))
}

fn lateness(heard: Vec<StreamObservation>) -> Vec<f64> {
    heard.into_iter().flat_map(|heard| heard.late_us).collect()
}

impl Found {
    async fn sample(
        &mut self,
        processes: &[&Process],
        target: &Target,
        firsts: &[f64],
        late: &[f64],
    ) -> Result<()> {
        let added = |with: &[f64], without: &[f64], share| {
            quantile(with, share).unwrap_or_default() - quantile(without, share).unwrap_or_default()
        };
        self.first_us
            .push(added(&target.first_bytes().await?, firsts, 0.5));
        let calm = lateness(target.many(CALM_STREAMS, CALM, true).await?);
        self.late_p50_us.push(added(&calm, late, 0.5));
        self.late_p99_us.push(added(&calm, late, 0.99));
        self.all_late.extend(calm);
        self.per_event_us.push(cost(processes, target, PACED).await?);
        self.per_event_in_bulk_us
            .push(cost(processes, target, FAST).await?);
        Ok(())
    }
}

/// Microseconds of processor time of these processes for each event.
async fn cost(processes: &[&Process], target: &Target, parameters: StreamParameters) -> Result<f64> {
    let spent = || {
        processes
            .iter()
            .map(|process| process.processor())
            .sum::<Result<f64>>()
    };
    let before = spent()?;
    let heard = target.many(PACED_STREAMS, parameters, false).await?;
    let events: f64 = heard.iter().map(|heard| heard.events as f64).sum();
    Ok((spent()? - before) * 1e6 / events)
}

fn rows(ours: Found, nginx: Found) -> Report {
    let row = |what: &str, ours, peer| {
        let turns = Turns { ours, peer };
        Row::against(what, "us", Direction::LowerIsBetter, "one hop of nginx", turns)
    };
    Report {
        rows: vec![
            row("added to the first byte, P50", ours.first_us, nginx.first_us).target(3.5),
            row("added to an event's way, P50", ours.late_p50_us, nginx.late_p50_us),
            row("added to an event's way, P99", ours.late_p99_us, nginx.late_p99_us),
            row(
                "processor time of an event, 64 streams of 100 a second",
                ours.per_event_us,
                nginx.per_event_us,
            ),
            row(
                "processor time of an event, 64 streams as fast as they go",
                ours.per_event_in_bulk_us,
                nginx.per_event_in_bulk_us,
            ),
        ],
        notes: vec![
            "client, facilitator's /v1 (HTTP), gateway (HTTP), sealed endpoint (TLS 1.3, client's certificate pinned, hashed and signed, checked by the gateway), engine; nginx: TLS 1.3, one hop".to_owned(),
            "the processes that pass streams on are on core 0, engine and clients on core 1; processor time is of all hops together".to_owned(),
        ],
    }
}

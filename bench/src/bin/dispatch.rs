//! A job's way through a validator, from the frame that brings it to the offer on the wire, durable in between, against
//! a task's way through Celery and Redis, once with a Redis that keeps nothing and once with one that flushes as ours
//! does. Then what a thousand sessions of a validator cost a miner, and how often a miner and a validator wake up while
//! nothing happens.
//!
//! The validator is the real one with its store on disk, and another one with its store where a flush costs nothing;
//! around each stand a facilitator and a miner that answer at once, and a chain that stands still.
//! `MUSTER_BENCH_CELERY_PYTHON` names a Python with celery and redis (`bench/peers/celery_dispatch.py`); without it our
//! figures stand alone. `MUSTER_BENCH_JOBS` (default 2000) is how many jobs are handed over at once,
//! `MUSTER_BENCH_ROUNDS` (default 5) how many rounds there are.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use muster_bench::stage::{
    CLASS, DeclinedOffer, DecliningMiner, Listener, StillChain, metagraph, now, open, proc_status, resident,
};
use muster_bench::{Direction, Report, Row, Turns, median, timed};
use muster_identity::{Keypair, sign_job, sign_validator_auth};
use muster_process::{SystemClock, Tasks, ready, tls};
use muster_protocol::wire::encode;
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::wire::validator_socket::ValidatorToMiner;
use muster_protocol::{Hotkey, JobId, MinerKey, Signature, Timestamp, ValidatorKey, context_for_validator};
use muster_scoring::{AllowanceBook, EpochFacts, ProvenExecutors};
use muster_span_export::SpanBatch;
use muster_websocket::{Limits, connect};
use parking_lot::Mutex;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use uuid::Uuid;

/// Jobs one after another in a round of latencies.
const ONE_BY_ONE: usize = 100;
const SESSIONS: usize = 1_000;
/// Where files are memory.
const MEMORY: &str = "/dev/shm";
/// How long nothing happens while wake-ups are counted.
const IDLE: Duration = Duration::from_secs(10);
/// The argument by which this program is a miner for itself.
const AS_MINER: &str = "miner";

fn main() -> Result<()> {
    tls::install_provider();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, folder] = arguments.as_slice()
        && role == AS_MINER
    {
        return be_miner(Path::new(folder));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (disk, memory) = (tempfile::tempdir()?, tempfile::tempdir_in(MEMORY)?);
    let mut stages = [
        runtime.block_on(Stage::set(disk.path()))?,
        runtime.block_on(Stage::set(memory.path()))?,
    ];
    let mut peers = [Celery::start(Redis::OnDisk)?, Celery::start(Redis::InMemory)?];
    let (jobs, rounds) = (
        number("MUSTER_BENCH_JOBS", 2_000),
        number("MUSTER_BENCH_ROUNDS", 5),
    );
    let (mut latencies, mut rates) = (Sides::default(), Sides::default());
    // The first round warms up.
    for round in 0..=rounds {
        for ((stage, peer), side) in stages.iter_mut().zip(&mut peers).zip(0..) {
            let ours = [stage.latency(&runtime)?, stage.rate(&runtime, jobs)?];
            let theirs = match peer {
                Some(peer) => Some([peer.ask("latency", ONE_BY_ONE)?, peer.ask("rate", jobs)?]),
                None => None,
            };
            if round > 0 {
                latencies.add(side, ours[0], theirs.map(|theirs| theirs[0]));
                rates.add(side, ours[1], theirs.map(|theirs| theirs[1]));
            }
        }
    }
    let name = peers[0].as_ref().map_or("", |peer| peer.name.as_str());
    let mut rows = vec![Row::alone(
        "one flush of this disk, with nothing else to do",
        "ms",
        Direction::LowerIsBetter,
        flushes(disk.path())?,
    )];
    let (span, rate) = (
        "from a job's frame to its offer on the wire, median",
        "jobs taken, stored and offered",
    );
    rows.extend(allowance_rows(&latencies));
    rows.extend(trace_rows(&latencies));
    rows.extend(latencies.rows(span, "ms", Direction::LowerIsBetter, name, 1.0));
    rows.extend(rates.rows(rate, "1/s", Direction::HigherIsBetter, name, 10.0));
    let [stage, other] = stages;
    stage.settled(&runtime)?;
    other.settled(&runtime)?;
    runtime.block_on(other.ended());
    drop(peers);
    let quiet = wakeups(std::process::id(), &runtime)?;
    rows.push(Row::alone(
        "wake-ups of a validator that has nothing to do",
        "1/s",
        Direction::LowerIsBetter,
        vec![quiet],
    ));
    rows.extend(sessions(&runtime)?);
    let report = Report {
        rows,
        notes: vec![
            format!("{jobs} jobs at once, {ONE_BY_ONE} one after another, {rounds} rounds; one miner that declines at once"),
            "ours: a signature verified, two made and one durable write for each job, which shares its commit with those of others, all \
             jobs over one session with the miner; Celery: a list in Redis, no result kept"
                .to_owned(),
            "on disk: an answer stands for what has been flushed (SQLite's log; Redis with appendfsync always); in memory: the same \
             files where a flush costs nothing, and a Redis that writes none"
                .to_owned(),
        ],
    };
    report.print()?;
    Ok(())
}

/// The times of one operation, on disk and in memory.
#[derive(Default)]
struct Sides([Turns; 2]);

impl Sides {
    fn add(&mut self, side: usize, ours: f64, theirs: Option<f64>) {
        if let Some(turns) = self.0.get_mut(side) {
            turns.ours.push(ours);
            turns.peer.extend(theirs);
        }
    }

    /// Like against like; before it what is asked for: ours on disk beside a peer that may forget.
    fn rows(self, what: &str, unit: &str, direction: Direction, peer: &str, target: f64) -> Vec<Row> {
        let Self([disk, memory]) = self;
        let across = Turns {
            ours: disk.ours.clone(),
            peer: memory.peer.clone(),
        };
        let row =
            |place: &str, turns| Row::against(&format!("{what}: {place}"), unit, direction, peer, turns);
        let asked = row("ours on disk, theirs in memory", across);
        let asked = if peer.is_empty() {
            asked
        } else {
            asked.target(target)
        };
        vec![asked, row("both on disk", disk), row("both in memory", memory)]
    }
}

fn allowance_rows(latencies: &Sides) -> [Row; 2] {
    let looks = allowance_looks();
    let dispatch = Row::against(
        "a job's dispatch in memory, with its look at the allowance",
        "ms",
        Direction::LowerIsBetter,
        "without",
        with_calls(latencies, &looks),
    );
    let look = "one miner's allowance, looked up for an offer";
    [
        Row::alone(look, "ms", Direction::LowerIsBetter, looks),
        dispatch.target(1.02),
    ]
}

/// The calls for traces of a job at a validator whose export is off: the context that its trace has, and a span of each
/// stage offered to the exporter.
fn trace_rows(latencies: &Sides) -> [Row; 2] {
    const STAGES: usize = 12;
    let calls: Vec<f64> = (0..ONE_BY_ONE)
        .map(|_| {
            let job = JobId::from_uuid(Uuid::new_v4());
            let (context, spent) = timed(|| {
                for _ in 0..STAGES {
                    muster_span_export::export(SpanBatch::default);
                }
                context_for_validator(None, job)
            });
            std::hint::black_box(context);
            spent.as_secs_f64() * 1e3
        })
        .collect();
    let dispatch = Row::against(
        "a job's dispatch in memory, with the calls of traces that are off",
        "ms",
        Direction::LowerIsBetter,
        "without",
        with_calls(latencies, &calls),
    );
    let call = "the calls of traces for one job, traces off";
    [
        Row::alone(call, "ms", Direction::LowerIsBetter, calls),
        dispatch.target(1.02),
    ]
}

/// The times in memory, and the same with the median time of further calls. Those of the allowance are not made by the
/// stage's validator: its chain stands still, so it knows no epochs. Those of traces are made by both, so they count
/// twice.
fn with_calls(latencies: &Sides, calls: &[f64]) -> Turns {
    let Sides([_, memory]) = latencies;
    let call = median(calls).unwrap_or_default();
    Turns {
        ours: memory.ours.iter().map(|took| took + call).collect(),
        peer: memory.ours.clone(),
    }
}

/// The milliseconds of one look at a miner's allowance, in a book as a busy validator has it: a day of epochs, 256
/// miners, and a block named out of every twelve.
fn allowance_looks() -> Vec<f64> {
    const EPOCH_BLOCKS: u64 = 361;
    const EPOCHS: u64 = 24;
    const MINERS: u8 = 255;
    let key = |seed| Hotkey::from_bytes([seed; 32]);
    let me = ValidatorKey(key(0));
    let miners: Vec<MinerKey> = (0..=MINERS).map(|seed| MinerKey(key(seed))).collect();
    let proven: Vec<_> = miners
        .iter()
        .map(|miner| ProvenExecutors {
            miner: *miner,
            class: CLASS,
            executors: 8,
        })
        .collect();
    let mut book = AllowanceBook::new(me);
    for number in 0..EPOCHS {
        book.note_epoch(&EpochFacts {
            first_block: number * EPOCH_BLOCKS,
            first_ms: number * EPOCH_BLOCKS * 12_000,
            block_ms: 12_000,
            permitted: [(me, 1_000), (ValidatorKey(key(1)), 9_000)].into(),
            proven: proven.clone(),
        });
    }
    let head = EPOCHS * EPOCH_BLOCKS;
    let named: Vec<u64> = (0..head).step_by(12).collect();
    for miner in &miners {
        book.note_named(*miner, CLASS, &named);
    }
    (0..ONE_BY_ONE)
        .map(|_| {
            let look = || {
                let known = |miner: &&MinerKey| book.left(**miner, CLASS, head).is_some();
                miners.iter().filter(known).count()
            };
            let (_, spent) = timed(look);
            spent.as_secs_f64() * 1e3 / miners.len() as f64
        })
        .collect()
}

/// How long flushes of a file take that nobody else writes to.
fn flushes(folder: &Path) -> Result<Vec<f64>> {
    let mut file = std::fs::File::create(folder.join("flushed"))?;
    let mut one = || {
        let (done, spent) = timed(|| file.write_all(&[1; 4_096]).and_then(|()| file.sync_data()));
        done.map(|()| spent.as_secs_f64() * 1e3)
    };
    Ok((0..ONE_BY_ONE).map(|_| one()).collect::<std::io::Result<_>>()?)
}

fn number(variable: &str, usual: usize) -> usize {
    std::env::var(variable)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(usual)
}

// === the validator, and who stands around it ===

/// Everybody but the peer.
struct Stage {
    facilitator: mpsc::UnboundedSender<UserJobRequest>,
    offers: mpsc::UnboundedReceiver<DeclinedOffer>,
    user: Keypair,
    signed: i64,
    folder: PathBuf,
    tasks: Tasks,
}

impl Stage {
    async fn set(folder: &Path) -> Result<Self> {
        let tasks = Tasks::new();
        let key = |uri: &str| Keypair::from_uri(uri).map_err(anyhow::Error::msg);
        let (validator, miner, user) = (key("//Validator")?, key("//Miner")?, key("//User")?);
        let (offer, offers) = mpsc::unbounded_channel();
        let (facilitator, jobs) = mpsc::unbounded_channel();
        let declining = DecliningMiner {
            executors: 1_000_000,
            offers: offer,
            answers: None,
        };
        let miner_address = open(&tasks, Listener::Miner(declining)).await?;
        let served = open(&tasks, Listener::Facilitator(Arc::new(Mutex::new(Some(jobs))))).await?;
        let mut config = muster_validator::Config {
            bind: SocketAddr::from(([127, 0, 0, 1], 0)),
            ready_file: Some(folder.join("validator.ready")),
            operator_token: folder.join("validator.token"),
            store: format!("sqlite:{}", folder.join("validator.db").display()),
            ..muster_validator::Config::default()
        };
        config.dial.allow = vec!["127.0.0.1".to_owned()];
        config.facilitator.url = format!("ws://{served}/ws/v0/");
        config.users.allow_any = true;
        config.users.signature_max_ahead_s = u64::MAX;
        config.routing.max_attempts = 1;
        config.routing.max_incidents = u32::MAX;
        let chain = StillChain {
            metagraph: metagraph(&validator, &miner, miner_address),
        };
        let running = tasks.clone();
        tasks.spawn("validator", async move {
            let clock = Arc::new(SystemClock::new());
            muster_validator::run_on(config, validator, Arc::new(chain), running, clock).await
        });
        Ok(Self {
            facilitator,
            offers,
            user,
            signed: 1_800_000_000_000_000_000,
            folder: folder.to_owned(),
            tasks,
        })
    }

    fn job(&mut self) -> Result<UserJobRequest> {
        self.signed += 1;
        let mut request: UserJobRequest = serde_json::from_value(json!({
            "signature": {
                "signature_type": "bittensor", "signatory": self.user.hotkey(), "timestamp_ns": 0,
                "signature": Signature::from_bytes([1; 64]).to_base64(), "signature_scope": "SignedFields",
            },
            "message_type": "V2JobRequest", "uuid": Uuid::new_v4(), "executor_class": CLASS, "docker_image": "hello@sha256:1",
            "args": [], "env": {}, "use_gpu": false,
            "download_time_limit": 2, "execution_time_limit": 3, "upload_time_limit": 4, "streaming_start_time_limit": 1,
        }))?;
        request.signature = sign_job(&self.user, &request.signed_fields(), self.signed);
        Ok(request)
    }

    /// One job after another: from handing it over to its offer.
    fn latency(&mut self, runtime: &Runtime) -> Result<f64> {
        let mut spans = Vec::with_capacity(ONE_BY_ONE);
        for _ in 0..ONE_BY_ONE {
            let job = self.job()?;
            let sent = now();
            self.facilitator.send(job)?;
            let offer = self.next(runtime)?;
            spans.push(offer.came.duration_since(sent).as_secs_f64() * 1e3);
        }
        median(&spans).context("no samples")
    }

    /// Many at once: how many are offered in a second, the last one included.
    fn rate(&mut self, runtime: &Runtime, jobs: usize) -> Result<f64> {
        let made: Vec<_> = (0..jobs).map(|_| self.job()).collect::<Result<_>>()?;
        let sent = now();
        for job in made {
            self.facilitator.send(job)?;
        }
        let mut last = sent;
        for _ in 0..jobs {
            last = self.next(runtime)?.came.max(last);
        }
        #[expect(clippy::cast_precision_loss, reason = "nobody hands over so many jobs")]
        Ok(jobs as f64 / last.duration_since(sent).as_secs_f64())
    }

    /// Ends it, so that only one is left whose rest can be counted.
    async fn ended(self) {
        self.tasks.shutdown();
        // A job that does not end in time is counted with the others.
        let _ = self.tasks.wait(Duration::from_secs(20)).await;
    }

    /// Waits until every job has ended and the facilitator knows it: what comes after an offer goes on for a while.
    fn settled(&self, runtime: &Runtime) -> Result<()> {
        let file = self.folder.join("validator.ready");
        let address = ready::read(&file)?.context("the validator is not up")?;
        let url = format!("http://{address}/v0/state?limit=1000");
        runtime.block_on(async {
            for _ in 0..600 {
                let state: serde_json::Value = reqwest::get(&url).await?.json().await?;
                let waiting = state.get("updates_waiting").and_then(serde_json::Value::as_u64);
                let jobs = state.get("jobs").and_then(serde_json::Value::as_array);
                let open =
                    |job: &serde_json::Value| job.get("closed_at").is_none_or(serde_json::Value::is_null);
                if waiting == Some(0) && jobs.is_some_and(|jobs| !jobs.iter().any(open)) {
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            bail!("the validator does not come to rest")
        })
    }

    fn next(&mut self, runtime: &Runtime) -> Result<DeclinedOffer> {
        let offers = &mut self.offers;
        let offered =
            runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), offers.recv()).await });
        offered
            .context("no offer within a minute")?
            .context("the miner is gone")
    }
}

// === the peer ===

/// The point at which the peer's Redis acknowledges a write.
#[derive(Clone, Copy)]
enum Redis {
    /// Once it is in memory.
    InMemory,
    /// Once it is flushed to disk.
    OnDisk,
}

/// Celery, in a process of its own that takes its turns.
struct Celery {
    name: String,
    process: Child,
    say: Option<ChildStdin>,
    hear: BufReader<ChildStdout>,
}

impl Celery {
    fn start(redis: Redis) -> Result<Option<Self>> {
        let Some(python) = std::env::var_os("MUSTER_BENCH_CELERY_PYTHON") else {
            return Ok(None);
        };
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/celery_dispatch.py");
        let mut process = Command::new(python)
            .arg(script)
            .args(match redis {
                Redis::InMemory => None,
                Redis::OnDisk => Some("durable"),
            })
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start Celery")?;
        let say = process.stdin.take();
        let mut hear = BufReader::new(process.stdout.take().context("its output")?);
        let mut name = String::new();
        hear.read_line(&mut name)?;
        if name.is_empty() {
            bail!("Celery did not come up; is redis-server on the path?");
        }
        Ok(Some(Self {
            name: name.trim().to_owned(),
            process,
            say,
            hear,
        }))
    }

    fn ask(&mut self, what: &str, count: usize) -> Result<f64> {
        writeln!(self.say.as_mut().context("its input")?, "{what} {count}")?;
        let mut line = String::new();
        self.hear.read_line(&mut line)?;
        line.trim()
            .parse()
            .with_context(|| format!("Celery answered {line:?}"))
    }
}

impl Drop for Celery {
    fn drop(&mut self) {
        // It stops its Redis when its input ends; killed, it could not.
        self.say = None;
        let _ = self.process.wait();
    }
}

// === a miner with many sessions ===

/// A miner in a process of its own, so that its memory is its own.
fn be_miner(folder: &Path) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let key = |uri: &str| Keypair::from_uri(uri).map_err(anyhow::Error::msg);
    let (validator, miner) = (key("//Validator")?, key("//Miner")?);
    let mut config = muster_miner::Config {
        bind: SocketAddr::from(([127, 0, 0, 1], 0)),
        ready_file: Some(folder.join("miner.ready")),
        store: format!("sqlite:{}", folder.join("miner.db").display()),
        receipts_dir: folder.join("receipts"),
        validators: vec![ValidatorKey(validator.hotkey())],
        ..muster_miner::Config::default()
    };
    config.chain.url = String::new();
    config.tls.certificate = folder.join("tls/port.pem");
    let clock: muster_process::SharedClock = Arc::new(SystemClock::new());
    let manager = muster_miner::manager::LocalProcesses::new(vec!["true".to_owned()], Arc::clone(&clock));
    runtime.block_on(muster_miner::run_with(
        config,
        miner,
        Arc::new(manager),
        Tasks::new(),
        clock,
    ))?;
    Ok(())
}

struct MinerProcess {
    process: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Drop for MinerProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn start_miner(runtime: &Runtime) -> Result<MinerProcess> {
    let folder = tempfile::tempdir()?;
    let process = Command::new(std::env::current_exe()?)
        .args([Path::new(AS_MINER), folder.path()])
        .spawn()?;
    let file: PathBuf = folder.path().join("miner.ready");
    let address = runtime.block_on(async {
        for _ in 0..1_000 {
            if let Some(address) = ready::read(&file)? {
                return Ok(address);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bail!("the miner did not come up")
    })?;
    Ok(MinerProcess {
        process,
        address,
        _folder: folder,
    })
}

/// Memory and wake-ups of a miner without and with a thousand sessions of one validator.
fn sessions(runtime: &Runtime) -> Result<Vec<Row>> {
    let miner = start_miner(runtime)?;
    let pid = miner.process.id();
    let before = resident(pid)?;
    let alone = wakeups(pid, runtime)?;
    let key = Keypair::from_uri("//Validator").map_err(anyhow::Error::msg)?;
    let me = Keypair::from_uri("//Miner").map_err(anyhow::Error::msg)?.hotkey();
    let held = runtime.block_on(async {
        let mut held = Vec::with_capacity(SESSIONS);
        for _ in 0..SESSIONS {
            let url = format!("ws://{}/v0.1/validator_interface/{}", miner.address, key.hotkey());
            let mut socket = connect(&url, &Limits::miner()).await?;
            let auth = sign_validator_auth(&key, MinerKey(me), clock_now());
            socket
                .send(encode(&ValidatorToMiner::ValidatorAuthForMiner(auth)))
                .await?;
            socket.recv().await?.context("the miner hung up")?;
            held.push(socket);
        }
        anyhow::Ok(held)
    })?;
    let after = resident(pid)?;
    let busy = wakeups(pid, runtime)?;
    drop(held);
    #[expect(clippy::cast_precision_loss, reason = "a thousand")]
    let each = (after - before) / SESSIONS as f64;
    let row = |what: &str, unit: &str, figure| Row::alone(what, unit, Direction::LowerIsBetter, vec![figure]);
    Ok(vec![
        row("memory of a miner without a session", "KiB", before),
        row("memory that each of a thousand sessions adds", "KiB", each),
        row("wake-ups of a miner without a session", "1/s", alone),
        row("wake-ups of a miner with a thousand idle sessions", "1/s", busy),
    ])
}

fn clock_now() -> Timestamp {
    use muster_process::Clock as _;
    SystemClock::new().now()
}

/// How often all threads of a process gave the processor up by themselves, which is once for each time one was woken.
fn switches(pid: u32) -> Result<f64> {
    let mut sum = 0.0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        sum += proc_status(&thread?.path().join("status"), "voluntary_ctxt_switches").unwrap_or_default();
    }
    Ok(sum)
}

/// Wake-ups a second of a process that is left alone. A process that polls shows here.
fn wakeups(pid: u32, runtime: &Runtime) -> Result<f64> {
    let before = switches(pid)?;
    // A runtime that sleeps is woken once for it.
    runtime.block_on(async { tokio::time::sleep(IDLE).await });
    Ok((switches(pid)? - before) / IDLE.as_secs_f64())
}

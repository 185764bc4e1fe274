//! A checkpoint of 4 GiB from a job's folder into the file store, whole and with a tenth of it changed, against rclone
//! and restic; and the steps of a training program beside it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures_util::FutureExt as _;
use muster_bench::{Direction, Report, Row, Turns, median, timed};
use muster_checkpoint_transfer::{BlockClient, CheckpointKeeper, KeeperHandle, KeeperSetup, ReportedPlace};
use muster_checkpoints::TreeLimits;
use muster_facilitator_store::Store;
use muster_file_store::checkpoint_blocks::catalogue::BlockCatalogue;
use muster_file_store::checkpoint_blocks::{BlockAccess, BlockGrant, CheckpointService, block_routes};
use muster_file_store::{ObjectStorage, Settings, UrlKey};
use muster_process::{SharedClock, SystemClock};
use muster_protocol::job::MetricValue;
use muster_protocol::wire::checkpoints::CheckpointNotice;
use muster_protocol::{AttemptId, JobId};
use sqlx::AssertSqlSafe;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use uuid::Uuid;

/// Rounds that count.
const ROUNDS: usize = 3;
const KEY: [u8; 32] = [7; 32];
/// The checkpoint, a file in the folder of checkpoints.
const NAME: &str = "step-1";
/// Steps of the training program that are timed without and with uploads beside them.
const STEPS: usize = 60;

fn main() -> anyhow::Result<()> {
    let mib: u64 = match std::env::var("MUSTER_BENCH_MIB") {
        Ok(text) => text.parse().context("MUSTER_BENCH_MIB is a number of MiB")?,
        Err(_) => 4_096,
    };
    // On the disk: the store and the checkpoint of a job lie there, too.
    let root = tempfile::tempdir_in("/var/tmp")?;
    let bench = Bench::start(&root.path().join("free"), None)?;
    let [
        mut first_rclone,
        mut first_restic,
        mut changed_rclone,
        mut changed_restic,
    ] = [(); 4].map(|()| Turns::default());
    for round in 0..=ROUNDS {
        let mut keeper = bench.begin_job(round)?;
        let peers = root.path().join(format!("peers-{round}"));
        fs::create_dir(&peers)?;
        let staged = root.path().join(format!("staged-{round}"));
        fs::create_dir(&staged)?;
        let file = staged.join(NAME);
        write_noise(&file, mib)?;
        restic(&["init"], &peers)?;
        let mut take_turns = || -> anyhow::Result<[f64; 3]> {
            let (mut ours, mut by_rclone, mut by_restic) = (0.0, 0.0, 0.0);
            let mut order = [Tool::Ours, Tool::Rclone, Tool::Restic];
            if round % 2 == 1 {
                order.reverse();
            }
            for tool in order {
                touch_memory(mib)?;
                match tool {
                    Tool::Ours => ours = keeper.take(&file)?,
                    Tool::Rclone => by_rclone = rclone(&staged, &peers)?,
                    Tool::Restic => by_restic = backup(&staged, &peers)?,
                }
            }
            Ok([ours, by_rclone, by_restic])
        };
        let first = take_turns()?;
        change_tenth(&file, mib)?;
        let changed = take_turns()?;
        if round > 0 {
            for ([ours, rclone, restic], of_rclone, of_restic) in [
                (first, &mut first_rclone, &mut first_restic),
                (changed, &mut changed_rclone, &mut changed_restic),
            ] {
                of_rclone.ours.push(ours);
                of_rclone.peer.push(rclone);
                of_restic.ours.push(ours);
                of_restic.peer.push(restic);
            }
        }
        fs::remove_dir_all(&peers)?;
        fs::remove_dir_all(&staged)?;
    }
    let rows = vec![
        row("a first checkpoint", mib, "rclone copy", first_rclone),
        row("a first checkpoint", mib, "restic backup", first_restic),
        row("a tenth changed", mib, "rclone copy", changed_rclone),
        row("a tenth changed", mib, "restic backup", changed_restic),
        step_times(&Bench::start(&root.path().join("pinned"), Some(1))?, mib)?,
    ];
    Report {
        rows,
        notes: vec![
            "all of them into a folder of the same disk, which is flushed at the end of each; ours over HTTP to the file \
             store of a facilitator in the same process, which checks each block's digest"
                .to_owned(),
            "each begins with memory that the machine has; the order is reversed in every other round".to_owned(),
            "ours counts from the line that names the checkpoint to the message to the miner, with up to a second until \
             the executor looks"
                .to_owned(),
            "steps: a loop over 32 MiB on one core; the executor's part and the store on the other one".to_owned(),
        ],
    }
    .print()
}

/// The seconds of a checkpoint of `mib` MiB against a peer.
fn row(what: &str, mib: u64, peer: &str, turns: Turns) -> Row {
    let what = format!("{what} of {mib} MiB");
    Row::against(&what, "s", Direction::LowerIsBetter, peer, turns).target(1.0)
}

/// The programs that are compared.
enum Tool {
    Ours,
    Rclone,
    Restic,
}

/// Touches as much memory as a copy fills, and a quarter more, and gives it back. A virtual machine gets its memory
/// from its host page by page, which takes ten times as long as a write; the first of each round would pay for the
/// others.
fn touch_memory(mib: u64) -> anyhow::Result<()> {
    let bytes = usize::try_from(mib + mib / 4)? << 20;
    std::hint::black_box(vec![1_u8; bytes]);
    Ok(())
}

/// A file store that serves blocks over HTTP.
struct Bench {
    runtime: Runtime,
    store: Store,
    root: PathBuf,
    base: String,
    clock: SharedClock,
}

/// A keeper that watches the folder of one job.
struct Job<'a> {
    bench: &'a Bench,
    folder: PathBuf,
    named: Arc<Named>,
    notices: UnboundedReceiver<CheckpointNotice>,
    handle: KeeperHandle,
}

/// How often the program has named its checkpoint.
#[derive(Default)]
struct Named(AtomicU32);

impl ReportedPlace for Named {
    fn times_named(&self, child: &str) -> u32 {
        if child == NAME {
            self.0.load(Ordering::Relaxed)
        } else {
            0
        }
    }

    fn place_of(&self, _child: &str) -> (Option<u64>, Option<u64>, Option<MetricValue>) {
        (None, None, None)
    }
}

impl Bench {
    /// Starts one whose threads keep to this core, if one is named.
    fn start(root: &Path, core: Option<usize>) -> anyhow::Result<Self> {
        fs::create_dir(root)?;
        muster_process::tls::install_provider();
        let runtime = Builder::new_multi_thread()
            .enable_all()
            .on_thread_start(move || {
                // A machine of one core has no other; the step's time then shows it.
                let _ = core.map(pin_to);
            })
            .build()?;
        let clock: SharedClock = Arc::new(SystemClock::default());
        let url = format!("sqlite:{}", root.join("facilitator.db").display());
        let pool = runtime.block_on(muster_store::open(&url))?;
        let store = runtime.block_on(Store::over(pool.clone()))?;
        let storage = format!("file:{}", root.join("files").display());
        let service = CheckpointService::new(
            BlockCatalogue::new(pool),
            runtime.block_on(ObjectStorage::open(&storage))?,
            UrlKey::new(KEY),
            Settings::default(),
            Arc::clone(&clock),
        );
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
        let base = format!("http://{}", listener.local_addr()?);
        let router = block_routes::router(Arc::new(service));
        runtime.spawn(async move { axum::serve(listener, router).await });
        Ok(Self {
            runtime,
            store,
            root: root.to_owned(),
            base,
            clock,
        })
    }

    /// A job with an empty folder, whose checkpoints are taken from now on.
    fn begin_job(&self, number: usize) -> anyhow::Result<Job<'_>> {
        let job = JobId::from_uuid(Uuid::new_v4());
        let statement = format!(
            "INSERT INTO jobs (uuid, user_key, validator, timestamp_ns, signature, request, created_at, account) \
             VALUES ('{job}', 'u', 'v', {number}, '{job}', '', 1, 'bench')"
        );
        let pool = self.store.pool();
        self.runtime
            .block_on(sqlx::query(AssertSqlSafe(statement)).execute(&pool))?;
        let (folder, scratch) = (
            self.root.join(format!("job-{number}")),
            self.root.join(format!("scratch-{number}")),
        );
        fs::create_dir(&folder)?;
        fs::create_dir(&scratch)?;
        let until = self.clock.now().plus(Duration::from_secs(86_400));
        let until = muster_protocol::Timestamp::from_secs(until.secs());
        let grant = BlockGrant {
            access: BlockAccess::Write,
            job,
            until,
        };
        let url = grant.url(&UrlKey::new(KEY), &self.base).parse()?;
        let named = Arc::new(Named::default());
        let (sender, notices) = unbounded_channel();
        let (handle, pending) = CheckpointKeeper::prepare();
        let keeper = pending.start(KeeperSetup {
            attempt: AttemptId::first_of(job),
            folder: folder.clone(),
            scratch,
            reserve: 0,
            limits: TreeLimits::default(),
            store: BlockClient::new(reqwest::Client::new(), url, Arc::clone(&self.clock))?,
            place: Arc::<Named>::clone(&named),
            announce: Arc::new(move |notice| {
                let _ = sender.send(notice);
                std::future::ready(()).boxed()
            }),
            explain: Arc::new(|_| {}),
            clock: Arc::clone(&self.clock),
        });
        self.runtime.spawn(keeper.run());
        Ok(Job {
            bench: self,
            folder,
            named,
            notices,
            handle,
        })
    }
}

impl Job<'_> {
    /// Seconds from the line that names the checkpoint until it is announced to the miner. The file is in the job's
    /// folder for that time only, since the keeper takes what has rested there.
    fn take(&mut self, file: &Path) -> anyhow::Result<f64> {
        let checkpoint = self.folder.join(NAME);
        fs::rename(file, &checkpoint)?;
        let (notice, took) = timed(|| {
            self.named.0.fetch_add(1, Ordering::Relaxed);
            self.bench.runtime.block_on(self.notices.recv())
        });
        let notice = notice.context("the keeper ended")?;
        self.handle.note_kept(notice.number);
        fs::rename(&checkpoint, file)?;
        Ok(took.as_secs_f64())
    }
}

/// The time of a training program's step while checkpoints are taken, against steps without.
fn step_times(bench: &Bench, mib: u64) -> anyhow::Result<Row> {
    let mut turns = Turns::default();
    for round in 0..=ROUNDS {
        let mut job = bench.begin_job(round)?;
        let file = bench.root.join(NAME);
        write_noise(&file, mib)?;
        let alone = Training::begin();
        let alone = alone.end()?;
        let beside = Training::begin();
        job.take(&file)?;
        let beside = beside.end()?;
        if round > 0 {
            turns.ours.push(beside);
            turns.peer.push(alone);
        }
        fs::remove_file(&file)?;
    }
    Ok(Row::against(
        "a training step while a checkpoint is sent",
        "ms",
        Direction::LowerIsBetter,
        "the same step alone",
        turns,
    )
    .target(1.03))
}

/// A training program in a thread of its own.
struct Training {
    over: Arc<AtomicBool>,
    steps: std::thread::JoinHandle<anyhow::Result<Vec<f64>>>,
}

impl Training {
    fn begin() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        Self {
            over,
            steps: std::thread::spawn(move || train(&told)),
        }
    }

    /// The milliseconds of its median step. It makes at least [`STEPS`].
    fn end(self) -> anyhow::Result<f64> {
        self.over.store(true, Ordering::Relaxed);
        let steps = self.steps.join();
        let steps = steps.map_err(|_| anyhow::anyhow!("the steps broke off"))??;
        median(&steps).context("no steps")
    }
}

/// The milliseconds of each step of a loop over memory on the first core, until `over`, and at least [`STEPS`].
fn train(over: &AtomicBool) -> anyhow::Result<Vec<f64>> {
    pin_to(0)?;
    let mut weights = vec![1.0_f32; 8 << 20];
    let mut steps = Vec::new();
    while steps.len() < STEPS || !over.load(Ordering::Relaxed) {
        let ((), took) = timed(|| {
            for weight in &mut weights {
                *weight = weight.mul_add(0.999, 0.001);
            }
        });
        steps.push(took.as_secs_f64() * 1_000.0);
    }
    ensure!(
        weights.iter().all(|weight| weight.is_finite()),
        "the weights are numbers"
    );
    Ok(steps)
}

/// Keeps this thread to one core.
fn pin_to(core: usize) -> anyhow::Result<()> {
    let mut cores = nix::sched::CpuSet::new();
    cores.set(core)?;
    Ok(nix::sched::sched_setaffinity(
        nix::unistd::Pid::from_raw(0),
        &cores,
    )?)
}

/// A file of bytes that no compression makes smaller.
fn write_noise(path: &Path, mib: u64) -> anyhow::Result<()> {
    let mut file = File::create(path)?;
    for block in 0..mib {
        file.write_all(&noise(block))?;
    }
    Ok(file.sync_all()?)
}

/// Writes other bytes into a tenth of the file, in one piece, as an optimiser's state or one layer would change.
fn change_tenth(path: &Path, mib: u64) -> anyhow::Result<()> {
    let mut file = File::options().write(true).open(path)?;
    let begin = mib / 3;
    file.seek(SeekFrom::Start(begin << 20))?;
    for block in 0..mib / 10 {
        file.write_all(&noise((1 << 40) + begin + block))?;
    }
    Ok(file.sync_all()?)
}

fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(1 << 20);
    while bytes.len() < 1 << 20 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes
}

/// Seconds that rclone takes for a copy of the folder, flushed.
fn rclone(folder: &Path, peers: &Path) -> anyhow::Result<f64> {
    let target = peers.join("rclone");
    let mut command = Command::new("rclone");
    command.arg("copy").arg(folder).arg(&target);
    flushed(&mut command, peers)
}

/// Seconds that restic takes for a snapshot of the folder, flushed.
fn backup(folder: &Path, peers: &Path) -> anyhow::Result<f64> {
    flushed(restic_command(&["backup"], peers).arg(folder), peers)
}

fn restic(arguments: &[&str], peers: &Path) -> anyhow::Result<()> {
    let made = restic_command(arguments, peers).output()?;
    ensure!(made.status.success(), "restic failed: {made:?}");
    Ok(())
}

fn restic_command(arguments: &[&str], peers: &Path) -> Command {
    let environment = BTreeMap::from([
        ("RESTIC_REPOSITORY", peers.join("restic")),
        ("RESTIC_CACHE_DIR", peers.join("cache")),
        ("RESTIC_PASSWORD", PathBuf::from("bench")),
    ]);
    let mut command = Command::new("restic");
    command.args(arguments).envs(environment);
    command
}

/// Seconds of a command and of the flush of what it wrote.
fn flushed(command: &mut Command, written: &Path) -> anyhow::Result<f64> {
    let (done, took) = timed(|| -> anyhow::Result<()> {
        let done = command.output()?;
        ensure!(done.status.success(), "{command:?} failed: {done:?}");
        let flushed = Command::new("sync").arg("--file-system").arg(written).status()?;
        ensure!(flushed.success(), "the disk was not flushed");
        Ok(())
    });
    done?;
    Ok(took.as_secs_f64())
}

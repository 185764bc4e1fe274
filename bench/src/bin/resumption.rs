//! A program with a large checkpoint is killed: from the kill until it trains again, on a whole subnet, against a bare
//! download of the same bytes followed by a bare start of the same container.
//!
//! Wants an engine and Debian's `busybox-static`, `rclone` and `curl`; builds `muster` in the release profile.
//! `MUSTER_BENCH_MIB` sets how large the checkpoint is.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use muster_bench::process::soon;
use muster_bench::stage::now;
use muster_bench::{Direction, Report, Row, Turns};
use muster_executor::{ContainerEngine, ImageArchive, ImageContent, ImageFile};
use tokio::runtime::Runtime;

/// Rounds that count. The first one before them brings the files into the machine's cache.
const ROUNDS: usize = 5;
const IMAGE: &str = "muster/resumption-bench:1";
const BUSYBOX: &str = "/bin/busybox";
/// The program prints this once it has read its checkpoint, and then the number of its attempt.
const TRAINS: &str = "trains again";

fn main() -> anyhow::Result<()> {
    muster_process::tls::install_provider();
    let mib: u64 = match std::env::var("MUSTER_BENCH_MIB") {
        Ok(text) => text.parse().context("MUSTER_BENCH_MIB is a number of MiB")?,
        Err(_) => 4_096,
    };
    let root = tempfile::tempdir_in("/var/tmp")?;
    let root = root.path();
    load_image(&Runtime::new()?)?;
    let subnet = Subnet::start(root)?;
    let peer = Peer::start(root, mib)?;
    let mut turns = Turns::default();
    for round in 0..=ROUNDS {
        let job = subnet.start_training(mib)?;
        let ours = subnet.kill_and_wait(&job)?;
        subnet.cancel(&job)?;
        let theirs = peer.download_and_start(&root.join(format!("peer-{round}")))?;
        if round > 0 {
            turns.ours.push(ours);
            turns.peer.push(theirs);
        }
    }
    let lower = Direction::LowerIsBetter;
    let what = format!("a program with a checkpoint of {mib} MiB: from its kill until it trains again");
    Report {
        rows: vec![
            Row::against(&what, "s", lower, "curl, then docker run", turns).target(1.1),
        ],
        notes: vec![
            "ours: the container is killed; the end of the attempt, the choice of a miner, the offer, the download of the blocks from the facilitator's file store, the check of each digest, the start and the program's reading are in the time, and the way of the program's line to its user".to_owned(),
            "the peer downloads from rclone's HTTP server on the same machine, checks nothing, and knows at once what to do".to_owned(),
        ],
    }
    .print()
}

fn load_image(runtime: &Runtime) -> anyhow::Result<()> {
    let archive = ImageArchive::new(&ImageContent {
        tag: IMAGE.to_owned(),
        files: vec![ImageFile {
            path: BUSYBOX.to_owned(),
            mode: 0o755,
            contents: std::fs::read(BUSYBOX).context("busybox-static is not installed")?,
        }],
        entrypoint: vec![BUSYBOX.to_owned(), "sh".to_owned()],
        ..ImageContent::default()
    })?;
    runtime.block_on(async {
        let engine = ContainerEngine::connect("").await?;
        engine.load(archive.bytes).await?;
        Ok(())
    })
}

/// The program: it saves once, or reads what it saved, and then trains for an hour.
fn script(mib: u64) -> String {
    format!(
        "b={BUSYBOX}; f=$MUSTER_CHECKPOINT_DIR/step-1; \
         if [ -n \"$MUSTER_RESUME\" ]; then $b cat $MUSTER_RESUME > /dev/null; echo {TRAINS} ${{MUSTER_ATTEMPT:-0}}; \
         else $b dd if=/dev/urandom of=$f.tmp bs=1M count={mib} 2> /dev/null; $b mv $f.tmp $f; \
         echo '{{\"step\":1,\"checkpoint\":\"step-1\"}}' >> $MUSTER_PROGRESS; fi; \
         $b sleep 3600"
    )
}

/// A command whose output is read while it runs. It is killed with this value.
struct Follower(Child);

impl Follower {
    fn start(command: &mut Command) -> anyhow::Result<Self> {
        Ok(Self(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?))
    }

    /// Waits until this line is printed.
    fn wait_for_line(&mut self, wanted: &str) -> anyhow::Result<()> {
        for line in BufReader::new(self.0.stdout.as_mut().context("no output")?).lines() {
            if line?.trim_end() == wanted {
                return Ok(());
            }
        }
        bail!("the output ended before the line {wanted:?}")
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// === ours ===

/// `muster up` with two miners.
struct Subnet {
    program: PathBuf,
    folder: PathBuf,
    up: Child,
}

impl Subnet {
    fn start(root: &Path) -> anyhow::Result<Self> {
        let program = build_muster()?;
        let folder = root.join("subnet");
        std::fs::create_dir(&folder)?;
        let log = File::create(root.join("up.log"))?;
        let up = Command::new(&program)
            .args([
                "up",
                "--miners",
                "2",
                "--executors",
                "1",
                "--grade-every",
                "0",
                "--dir",
            ])
            .arg(&folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let mut subnet = Self { program, folder, up };
        // The first start builds the local chain, which takes minutes.
        while !subnet.folder.join("subnet.json").exists() {
            ensure!(subnet.up.try_wait()?.is_none(), "muster up ended early");
            std::thread::park_timeout(Duration::from_millis(100));
        }
        Ok(subnet)
    }

    fn muster(&self, words: [&str; 2], rest: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).arg("--dir").arg(&self.folder).args(rest);
        command
    }

    /// Runs a job until its checkpoint is kept. Returns its id.
    fn start_training(&self, mib: u64) -> anyhow::Result<String> {
        let script = script(mib);
        let terms = [
            "-d",
            "--checkpoint",
            "--timeout",
            "2h",
            IMAGE,
            "--",
            "-c",
            &script,
        ];
        let ran = self.muster(["job", "run"], &terms).output()?;
        ensure!(ran.status.success(), "muster job run: {ran:?}");
        let job = String::from_utf8(ran.stdout)?.trim().to_owned();
        soon("a checkpoint that is kept", || {
            // The facilitator throttles who asks all the time.
            std::thread::park_timeout(Duration::from_secs(1));
            let listed = self.muster(["job", "checkpoints"], &[&job]).output().ok()?;
            String::from_utf8(listed.stdout)
                .ok()?
                .contains("step-1")
                .then_some(())
        })?;
        Ok(job)
    }

    /// Kills the program. Returns the seconds until its user sees that it trains again, in the second attempt.
    fn kill_and_wait(&self, job: &str) -> anyhow::Result<f64> {
        let running = soon("the program", || {
            let listed = Command::new("docker")
                .args(["ps", "--quiet", "--filter", "label=muster.attempt"])
                .args(["--filter", &format!("ancestor={IMAGE}")])
                .output()
                .ok()?;
            let text = String::from_utf8(listed.stdout).ok()?;
            text.lines().next().map(str::to_owned)
        })?;
        let mut follower = Follower::start(&mut self.muster(["job", "logs"], &[job, "--follow"]))?;
        let killed = now();
        let ran = Command::new("docker").args(["kill", &running]).output()?;
        ensure!(ran.status.success(), "docker kill: {ran:?}");
        follower.wait_for_line(&format!("{TRAINS} 2"))?;
        Ok(killed.elapsed().as_secs_f64())
    }

    fn cancel(&self, job: &str) -> anyhow::Result<()> {
        let ran = self.muster(["job", "cancel"], &[job]).output()?;
        ensure!(ran.status.success(), "muster job cancel: {ran:?}");
        Ok(())
    }
}

impl Drop for Subnet {
    fn drop(&mut self) {
        // Its roles and executors end with it.
        let _ = Command::new("kill")
            .arg("-INT")
            .arg(self.up.id().to_string())
            .status();
        let _ = self.up.wait();
    }
}

/// Builds the one binary of this checkout in the release profile.
fn build_muster() -> anyhow::Result<PathBuf> {
    let built = Command::new("cargo")
        .args("build --quiet --release --package muster --bin muster".split(' '))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()?;
    ensure!(built.success(), "muster does not build");
    let own = std::env::current_exe()?;
    Ok(own.parent().context("a program lies in a folder")?.join("muster"))
}

// === the peer ===

/// The same number of random bytes behind rclone's HTTP server.
struct Peer {
    address: String,
    _server: Follower,
}

impl Peer {
    fn start(root: &Path, mib: u64) -> anyhow::Result<Self> {
        let folder = root.join("served");
        std::fs::create_dir(&folder)?;
        let made = Command::new("dd")
            .args(["if=/dev/urandom", "bs=1M", "status=none"])
            .arg(format!("count={mib}"))
            .arg(format!("of={}", folder.join("step-1").display()))
            .status()?;
        ensure!(made.success(), "no bytes for the peer");
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let server = Follower::start(
            Command::new("rclone")
                .args(["serve", "http", "--addr", &address])
                .arg(&folder),
        )?;
        soon("rclone's server", || std::net::TcpStream::connect(&address).ok())?;
        Ok(Self {
            address,
            _server: server,
        })
    }

    /// Seconds of the download and of the start, until the program trains again.
    fn download_and_start(&self, folder: &Path) -> anyhow::Result<f64> {
        std::fs::create_dir(folder)?;
        let began = now();
        let fetched = Command::new("curl")
            .args(["--silent", "--fail", "--output"])
            .arg(folder.join("step-1"))
            .arg(format!("http://{}/step-1", self.address))
            .status()?;
        ensure!(fetched.success(), "curl: {fetched}");
        let name = format!("muster-resumption-bench-{}", std::process::id());
        let mut follower = Follower::start(
            Command::new("docker")
                .args(["run", "--rm", "--network", "none", "--name", &name])
                .args(["--env", "MUSTER_RESUME=/checkpoint/step-1", "--volume"])
                .arg(format!("{}:/checkpoint", folder.display()))
                .args([IMAGE, "-c", &script(0)]),
        )?;
        follower.wait_for_line(&format!("{TRAINS} 0"))?;
        let took = began.elapsed().as_secs_f64();
        let removed = Command::new("docker").args(["rm", "--force", &name]).output()?;
        ensure!(removed.status.success(), "docker rm: {removed:?}");
        std::fs::remove_dir_all(folder)?;
        Ok(took)
    }
}

//! A job's standard output into a pipe, against `docker run | cat` of the same program on the same engine.
//!
//! Wants a subnet that runs (`muster up`): `MUSTER_BENCH_MUSTER` names the binary, and `MUSTER_BENCH_DIR` the folder of
//! its state. `MUSTER_BENCH_MIB` (default 1,024) is how much the program prints, in lines of 80 bytes and in writes of
//! 64 KiB without lines, and `MUSTER_BENCH_ROUNDS` (default 3) how many rounds of each there are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use muster_bench::stage::proc_status;
use muster_bench::{Direction, Report, Row, take_turns, timed};

const IMAGE: &str = "muster/hello:latest";
/// The last line of the program.
const LAST: u64 = 4;
/// The pause between two looks at the memory of short-lived processes.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Jobs that print one line, before the others: what a process takes for any job.
const SHORT_JOBS: usize = 3;
/// The peer of both rows.
const PEER: &str = "docker run | cat";

/// How the program prints: the probe's name, the bytes that it writes at a time, and the words for it.
const FORMS: [(&str, u64, &str); 2] = [
    ("print", 80, "lines of 80 bytes"),
    ("blocks", 64 << 10, "writes of 64 KiB without lines"),
];

/// The peak of the resident memory of each kind of process, in MiB.
type Peaks = BTreeMap<String, f64>;

fn main() -> Result<()> {
    let number = |name: &str, usual: u64| -> u64 {
        let given = std::env::var(name).ok();
        given.and_then(|text| text.parse().ok()).unwrap_or(usual)
    };
    let folder = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .with_context(|| format!("set {name}"))
    };
    let subnet = Subnet {
        muster: folder("MUSTER_BENCH_MUSTER")?.canonicalize()?,
        state: folder("MUSTER_BENCH_DIR")?,
    };
    let (mib, rounds) = (
        number("MUSTER_BENCH_MIB", 1_024),
        number("MUSTER_BENCH_ROUNDS", 3),
    );
    let watch = PeakWatch::start(subnet.muster.clone());
    for _ in 0..SHORT_JOBS {
        subnet.job("print", 0)?;
    }
    let before = subnet.peaks(watch)?;

    let watch = PeakWatch::start(subnet.muster.clone());
    let mut rows = Vec::new();
    for (probe, unit, form) in FORMS {
        // With its last line the output stays within the bound of a stream that executors have by default.
        let printed = (mib << 20).saturating_sub(LAST) / unit * unit;
        let turns = take_turns(
            usize::try_from(rounds)?,
            || subnet.job(probe, printed),
            || {
                let mut run = Command::new("docker");
                run.args(["run", "--rm", "--network", "none", "--log-driver", "local", IMAGE]);
                into_cat(run.args(["probe", probe, &printed.to_string()]), printed + LAST)
            },
        )?;
        let what = format!("{mib} MiB of standard output in {form}");
        rows.push(Row::against(&what, "s", Direction::LowerIsBetter, PEER, turns).target(2.0));
    }
    for (kind, after) in subnet.peaks(watch)? {
        let before = before.get(&kind).copied().unwrap_or_default();
        let what = format!("peak memory of the {kind} beyond that of jobs that print a line");
        rows.push(Row::alone(&what, "MiB", Direction::LowerIsBetter, vec![after - before]).target(64.0));
    }
    Report {
        rows,
        notes: vec![
            "both with the engine's log driver `local`, which sandboxes use; ours from the command's start to its end"
                .to_owned(),
        ],
    }
    .print()
}

/// A subnet that runs.
struct Subnet {
    /// The program of every role.
    muster: PathBuf,
    /// The folder of its state.
    state: PathBuf,
}

impl Subnet {
    /// Seconds of a job that prints so many bytes and the last line.
    fn job(&self, probe: &str, printed: u64) -> Result<f64> {
        let mut job = Command::new(&self.muster);
        job.args(["job", "run", "--dir"]).arg(&self.state);
        job.args([
            "--timeout",
            "1h",
            IMAGE,
            "--",
            "probe",
            probe,
            &printed.to_string(),
        ]);
        into_cat(&mut job, printed + LAST)
    }

    /// The peaks of the roles since their start, and those of the processes that the watch saw.
    fn peaks(&self, watch: PeakWatch) -> Result<Peaks> {
        let mut peaks = watch.end()?;
        for entry in std::fs::read_dir(self.state.join("run"))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "pid") {
                let role = path.file_stem().unwrap_or_default().to_string_lossy();
                let pid = std::fs::read_to_string(&path)?;
                let status = PathBuf::from(format!("/proc/{}/status", pid.trim()));
                peaks.insert(role.into_owned(), proc_status(&status, "VmHWM")? / 1_024.0);
            }
        }
        peaks.remove("chain");
        Ok(peaks)
    }
}

/// Seconds until `cat` has read everything that a command prints, and the command has ended well.
fn into_cat(command: &mut Command, expected: u64) -> Result<f64> {
    let (read, spent) = timed(|| -> Result<u64> {
        let mut printing = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let from = printing.stdout.take().context("no standard output")?;
        let counted = Command::new("sh")
            .args(["-c", "cat | wc -c"])
            .stdin(from)
            .output()?;
        ensure!(printing.wait()?.success(), "{command:?} failed");
        Ok(String::from_utf8(counted.stdout)?.trim().parse()?)
    });
    let read = read?;
    ensure!(read == expected, "{read} of {expected} bytes came");
    Ok(spent.as_secs_f64())
}

/// A thread that notes the peaks of processes of a job: the executor, the collector and the command.
struct PeakWatch {
    end: mpsc::Sender<()>,
    thread: JoinHandle<Peaks>,
}

impl PeakWatch {
    fn start(muster: PathBuf) -> Self {
        let (end, ended) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut peaks = Peaks::new();
            while ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                look(&muster, &mut peaks);
            }
            peaks
        });
        Self { end, thread }
    }

    fn end(self) -> Result<Peaks> {
        drop(self.end);
        self.thread.join().ok().context("the watch of memory panicked")
    }
}

/// Notes the peaks of the processes that run now. One that ends meanwhile is passed over.
fn look(muster: &Path, peaks: &mut Peaks) {
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let process = entry.path();
        if std::fs::read_link(process.join("exe")).ok().as_deref() != Some(muster) {
            continue;
        }
        let line = std::fs::read(process.join("cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0).skip(1);
        let kind = match (words.next(), words.next()) {
            (Some(b"executor"), Some(b"collect")) => "collector",
            (Some(b"executor"), _) => "executor",
            (Some(b"job"), _) => "command",
            (Some(_) | None, _) => continue,
        };
        if let Ok(peak) = proc_status(&process.join("status"), "VmHWM") {
            let noted = peaks.entry(kind.to_owned()).or_default();
            *noted = noted.max(peak / 1_024.0);
        }
    }
}

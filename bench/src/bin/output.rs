//! A job's standard output into a pipe, against `docker run | cat` of the same program on the same engine.
//!
//! Wants a subnet that runs (`muster up`): `MUSTER_BENCH_MUSTER` names the binary, and `MUSTER_BENCH_DIR` the folder of
//! its state. `MUSTER_BENCH_MIB` (default 1,024) is how much the program prints, in lines of 80 bytes, and
//! `MUSTER_BENCH_ROUNDS` (default 3) how many rounds there are.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use muster_bench::stage::proc_status;
use muster_bench::{Direction, Report, Row, take_turns, timed};

const IMAGE: &str = "muster/hello:latest";
/// The last line of the program.
const LAST: u64 = 4;

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
    let (muster, state) = (folder("MUSTER_BENCH_MUSTER")?, folder("MUSTER_BENCH_DIR")?);
    let (mib, rounds) = (
        number("MUSTER_BENCH_MIB", 1_024),
        number("MUSTER_BENCH_ROUNDS", 3),
    );
    let printed = (mib << 20) / 80 * 80;
    let program = ["probe".to_owned(), "print".to_owned(), printed.to_string()];
    let before = peaks(&state)?;
    let turns = take_turns(
        usize::try_from(rounds)?,
        || {
            let mut job = Command::new(&muster);
            job.args(["job", "run", "--dir"])
                .arg(&state)
                .args([IMAGE, "--"])
                .args(&program);
            into_cat(&mut job, printed + LAST)
        },
        || {
            let mut run = Command::new("docker");
            run.args(["run", "--rm", "--network", "none", "--log-driver", "local", IMAGE])
                .args(&program);
            into_cat(&mut run, printed + LAST)
        },
    )?;
    let row = Row::against(
        &format!("{mib} MiB of standard output in lines of 80 bytes"),
        "s",
        Direction::LowerIsBetter,
        "docker run | cat",
        turns,
    );
    let grown: Vec<String> = peaks(&state)?
        .into_iter()
        .zip(before)
        .map(|((role, after), (_, before))| format!("{role} {:.0}", (after - before) / 1_024.0))
        .collect();
    Report {
        rows: vec![row.target(2.0)],
        notes: vec![format!(
            "peak memory of each role beyond what it was before, in MiB: {}",
            grown.join(", ")
        )],
    }
    .print()
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

/// The peak of the resident memory of each role of the subnet, in KiB.
fn peaks(state: &Path) -> Result<Vec<(String, f64)>> {
    let mut peaks = Vec::new();
    for entry in std::fs::read_dir(state.join("run"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "pid") {
            let role = path
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let pid = std::fs::read_to_string(&path)?;
            let status = PathBuf::from(format!("/proc/{}/status", pid.trim()));
            peaks.push((role, proc_status(&status, "VmHWM")?));
        }
    }
    peaks.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(peaks)
}

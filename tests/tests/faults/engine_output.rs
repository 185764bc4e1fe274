//! An engine that is killed while a job prints: the file of `muster job run IMAGE -- COMMAND > FILE` has neither a hole
//! nor a byte twice, and the command says where it ends.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use muster_testbed::wait_for;
use muster_tests::{
    BUSYBOX, Dockerd, Output, RunningSubnet, held_limit_s, muster, run, shell_image, while_held,
};
use tempfile::NamedTempFile;
use tokio::runtime::Runtime;

/// The digits of a line: the engine's own copy loses the ends of such long ones.
const DIGITS: usize = 20_000;
/// The lines that the program prints once it is released.
const AFTER: usize = 20;

/// The lines with these numbers.
fn lines(numbers: std::ops::RangeInclusive<usize>) -> Vec<u8> {
    let lines = numbers.map(|number| format!("{number:0DIGITS$}\n"));
    lines.collect::<String>().into_bytes()
}

/// A command that runs a job, and what it prints.
struct PrintingJob {
    command: Child,
    stdout: NamedTempFile,
    stderr: NamedTempFile,
}

impl PrintingJob {
    /// Starts a job that prints lines until it is held, and waits until they have been collected and the engine knows
    /// that its container runs: killed before that, it could never start or end it. The command may have printed none
    /// of the lines yet: its live view begins with a gap where the first pieces were too many.
    fn start(subnet: &RunningSubnet, engine: &Dockerd, image: &str, before: usize) -> Self {
        let hold = while_held(":;");
        let script = format!(
            "number=0; until_line() {{ while [ $number -lt $1 ]; do number=$((number+1)); \
             printf '%0{DIGITS}d\\n' $number; done; }}; until_line {before}; {hold} until_line {}",
            before + AFTER
        );
        let (stdout, stderr) = (NamedTempFile::new().unwrap(), NamedTempFile::new().unwrap());
        let limit = format!("{}s", held_limit_s());
        let command = Command::new(muster().unwrap())
            .args(["job", "run", "--dir"])
            .arg(subnet.folder())
            .args(["--timeout", &limit, image, "--", "-c", &script])
            .stdin(Stdio::null())
            .stdout(stdout.reopen().unwrap())
            .stderr(stderr.reopen().unwrap())
            .spawn()
            .unwrap();
        let mut job = Self {
            command,
            stdout,
            stderr,
        };
        let length = lines(1..=before).len() as u64;
        wait_for("the output before the kill", || {
            if let Some(ended) = job.command.try_wait()? {
                anyhow::bail!("the job is over ({ended}): {}", job.told());
            }
            let collected = size_of(&subnet.folder().join("data/executor"), "stdout.txt");
            let known = !running_containers(engine)?.is_empty();
            anyhow::Ok((known && collected == Some(length)).then_some(()))
        })
        .unwrap();
        job
    }

    /// Lets the program end wherever it runs, and waits for the end of the command.
    fn end(&mut self, engine: &Dockerd) -> ExitStatus {
        wait_for("the end of the command", || {
            for container in running_containers(engine)?.lines() {
                docker(engine, &["exec", container, BUSYBOX, "touch", "/tmp/released"])?;
            }
            anyhow::Ok(self.command.try_wait()?)
        })
        .unwrap()
    }

    /// The words of the command beside the output.
    fn told(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.stderr.path()).unwrap()).into_owned()
    }
}

/// Runs docker against an engine.
fn docker(engine: &Dockerd, arguments: &[&str]) -> anyhow::Result<Output> {
    run(Command::new("docker")
        .args(["--host", &engine.address()])
        .args(arguments))
}

/// The ids of the running containers of jobs, each in a line; none while the engine is away.
fn running_containers(engine: &Dockerd) -> anyhow::Result<String> {
    let listed = docker(engine, &["ps", "--quiet", "--filter", "label=muster.attempt"])?;
    Ok(listed.stdout)
}

/// The size of the file of this name somewhere below a folder.
fn size_of(folder: &Path, name: &str) -> Option<u64> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().find_map(|entry| {
        let path = entry.path();
        match path.is_dir() && !path.is_symlink() {
            true => size_of(&path, name),
            false if entry.file_name() == name => Some(entry.metadata().ok()?.len()),
            false => None,
        }
    })
}

fn image_on(engine: &Dockerd) -> &'static str {
    Runtime::new()
        .unwrap()
        .block_on(shell_image(&engine.address()))
        .unwrap()
}

fn subnet_on(engine: &Dockerd) -> RunningSubnet {
    let address = engine.address();
    RunningSubnet::start_among(&["--executors", "1"], &[("DOCKER_HOST", Path::new(&address))]).unwrap()
}

#[test]
fn output_of_a_container_that_outlives_its_engine_ends_where_the_engine_was_killed() {
    let mut engine = Dockerd::start_with_live_restore().unwrap();
    let image = image_on(&engine);
    let subnet = subnet_on(&engine);
    // Of few lines the live view has each byte; of many it drops some, and the rest comes from the store.
    for before in [5, 150] {
        let mut job = PrintingJob::start(&subnet, &engine, image, before);
        engine.kill().unwrap();
        engine.begin().unwrap();
        let ended = job.end(&engine);
        let (told, printed) = (job.told(), std::fs::read(job.stdout.path()).unwrap());
        assert_eq!(ended.code(), Some(125), "{told}");
        assert!(
            printed == lines(1..=before),
            "{} bytes of {}: {told}",
            printed.len(),
            lines(1..=before).len()
        );
        let expected = format!("output incomplete from byte {}", printed.len());
        assert!(told.contains(&expected), "{told}");
    }
}

#[test]
fn output_of_a_container_that_ends_with_its_engine_is_whole_or_a_beginning() {
    let mut engine = Dockerd::start().unwrap();
    let image = image_on(&engine);
    let subnet = subnet_on(&engine);
    let before = 150;
    let mut job = PrintingJob::start(&subnet, &engine, image, before);
    engine.kill().unwrap();
    engine.begin().unwrap();
    let ended = job.end(&engine);
    let (told, printed) = (job.told(), std::fs::read(job.stdout.path()).unwrap());
    let all = lines(1..=before + AFTER);
    match ended.code() {
        // The job ran again and printed the same.
        Some(0) => assert!(printed == all, "{} of {} bytes: {told}", printed.len(), all.len()),
        _ => assert!(
            all.starts_with(&printed),
            "{ended}, {} bytes: {told}",
            printed.len()
        ),
    }
}

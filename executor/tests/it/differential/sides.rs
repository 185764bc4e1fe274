//! The three ways in which a command runs.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;

use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::Mutex;

use super::corpus::Command;
use crate::support::lease::{Job, Lease, inline_volume};
use crate::support::miner::FakeMiner;

/// The system calls that a job may make.
const SECCOMP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/containers/seccomp.json");

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) code: i64,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

// === impl Ended ===

impl Ended {
    /// The first difference from how it ended elsewhere.
    pub(super) fn difference_from(&self, other: &Self) -> Option<String> {
        if self.code != other.code {
            let errors = [&self.stderr, &other.stderr].map(|text| text.lines().last().unwrap_or_default());
            return Some(format!(
                "code {} instead of {}; {errors:?}",
                self.code, other.code
            ));
        }
        let streams = [
            ("stdout", &self.stdout, &other.stdout),
            ("stderr", &self.stderr, &other.stderr),
        ];
        streams.into_iter().find_map(|(name, ours, theirs)| {
            let (ours, theirs) = (ours.split_inclusive('\n'), theirs.split_inclusive('\n'));
            let (mut ours, mut theirs, mut number) = (ours.fuse(), theirs.fuse(), 0);
            loop {
                number += 1;
                match (ours.next(), theirs.next()) {
                    (None, None) => return None,
                    (one, another) if one == another => {}
                    (one, another) => {
                        let shown =
                            |line: Option<&str>| line.map(|line| line.chars().take(200).collect::<String>());
                        let (one, another) = (shown(one), shown(another));
                        return Some(format!(
                            "line {number} of {name} is {one:?} instead of {another:?}"
                        ));
                    }
                }
            }
        })
    }
}

/// A folder for `/output`, which everybody may write to.
fn output_folder() -> TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

async fn docker_run(options: &[&str], output: &Path, image: &str, command: &Command) -> Ended {
    let mut docker = tokio::process::Command::new("docker");
    docker
        .args(["run", "--rm", "--network", "none", "--volume"])
        .arg(format!("{}:/output", output.display()))
        .args(options)
        .args(command.docker_options())
        .arg(image)
        .args(&command.run)
        .stdin(if command.stdin.is_some() {
            Stdio::piped()
        } else {
            Stdio::null()
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut docker = docker.spawn().unwrap();
    if let (Some(text), Some(mut stdin)) = (&command.stdin, docker.stdin.take()) {
        // A program may end before it has read everything.
        let _ = stdin.write_all(text.as_bytes()).await;
    }
    let ran = docker.wait_with_output().await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let stderr = text(ran.stderr);
    Ended {
        code: ran.status.code().unwrap().into(),
        stdout: text(ran.stdout),
        // A program that cannot be started prints nothing: the client tells the engine's answer.
        stderr: match stderr.starts_with("docker: Error response") {
            true => String::new(),
            false => stderr,
        },
    }
}

/// `docker run --network none`.
pub(super) async fn run_by_plain_docker(image: &str, command: &Command) -> Ended {
    let output = output_folder();
    docker_run(&[], output.path(), image, command).await
}

/// The same with the bounds of a job, as docs/security.md lists them. The files of the image in its home folder stay
/// there, and the program may write beside them. The `new_volumes` are those that the image declares and does not have.
pub(super) async fn run_by_bounded_docker(image: &str, command: &Command, new_volumes: &[&str]) -> Ended {
    let output = output_folder();
    let (seccomp, home) = (format!("seccomp={SECCOMP}"), home_of(image).await);
    let mut options = vec![
        "--hostname=job",
        "--add-host=job:127.0.0.1",
        "--read-only",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        "--security-opt",
        &seccomp,
        "--ipc=private",
        "--ulimit=core=0",
        "--pids-limit=4096",
        "--no-healthcheck",
        "--env=MUSTER_PROGRESS=/muster/progress.jsonl",
        // A fresh volume begins with what the image holds, with owner and mode.
        "--volume=/tmp",
        "--volume=/var/tmp",
        "--volume=/run",
    ];
    // A job has what the image does not have all the same, in its memory.
    let in_memory = |path: &str| format!("--tmpfs={path}:exec,mode=1777");
    let mut folders: Vec<_> = new_volumes.iter().map(|path| in_memory(path)).collect();
    folders.extend(home.map(|home| match home.is_in_image {
        true => format!("--volume={}", home.path),
        false => in_memory(&home.path),
    }));
    options.extend(folders.iter().map(String::as_str));
    // Engines before 26 take `::1` from the loopback of a container without a network.
    if Path::new("/proc/sys/net/ipv6/conf/all/disable_ipv6").exists() {
        options.push("--sysctl=net.ipv6.conf.all.disable_ipv6=0");
    }
    docker_run(&options, output.path(), image, command).await
}

/// The home folder of an image's user, which the image's file /etc/passwd names.
#[derive(Clone)]
struct Home {
    path: String,
    is_in_image: bool,
}

/// The homes of images, by their names.
static HOMES: Mutex<BTreeMap<String, Option<Home>>> = Mutex::const_new(BTreeMap::new());

/// The home of an image, which one container tells for each image; `None` if it is the root folder.
async fn home_of(image: &str) -> Option<Home> {
    let mut homes = HOMES.lock().await;
    if let Some(home) = homes.get(image) {
        return home.clone();
    }
    let home = "printf %s \"${HOME:-/}\"; [ -d \"$HOME\" ]";
    let run = ["run", "--rm", "--network", "none", "--entrypoint", "sh"];
    let asked = tokio::process::Command::new("docker")
        .args(run)
        .args([image, "-c", home])
        .output()
        .await
        .unwrap();
    let path = String::from_utf8(asked.stdout).unwrap();
    let is_in_image = asked.status.success();
    let home = path.starts_with('/').then_some(Home { path, is_in_image });
    let home = home.filter(|home| home.path.len() > 1);
    homes.insert(image.to_owned(), home.clone());
    home
}

/// An executor, whose miner is this test.
pub(super) async fn run_by_executor(image: &str, command: &Command) -> Ended {
    let (lease, miner) = (Lease::new(), FakeMiner::start().await);
    let args: Vec<_> = command.run.iter().map(String::as_str).collect();
    let job = Job {
        image: image.to_owned(),
        start: command.start(),
        volume: match &command.stdin {
            Some(text) => inline_volume(&[("stdin", text)]),
            None => serde_json::Value::Null,
        },
        ..Job::new(&args)
    };
    let (executor, mut wire) = lease.start(&miner).await;
    wire.send(&lease.offer(&job)).await;
    let first = wire.recv().await.unwrap();
    if first["message_type"] == "V0ExecutorReadyRequest" {
        let mut request = lease.request(&job);
        request["env"] = serde_json::json!({});
        wire.send(&request).await;
    }
    let last = wire.last().await;
    executor.join().await.unwrap().unwrap();
    let last = if last.is_null() { first } else { last };
    let text = |name: &str| last[name].as_str().unwrap_or_default().to_owned();
    let has_finished = last["message_type"] == "V0JobFinishedRequest";
    let code = last["docker_process_exit_status"]
        .as_i64()
        .or(has_finished.then_some(0));
    match code {
        Some(code) => Ended {
            code,
            stdout: text("docker_process_stdout"),
            stderr: text("docker_process_stderr"),
        },
        // It failed in another way; the message is shown in place of what it printed.
        None => Ended {
            code: -1,
            stdout: String::new(),
            stderr: last.to_string(),
        },
    }
}

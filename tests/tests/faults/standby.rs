//! A validator with a standby on one PostgreSQL, as real processes: the leader is stopped, killed and told to end under
//! a running job. Each time the standby leads, the job goes on, and its program runs once.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use muster_process::{Clock as _, SystemClock, tls};
use muster_protocol::{JobId, JobStatus, Timestamp};
use muster_testbed::{free_address, wait_for};
use muster_tests::{
    BUSYBOX, Cluster, Layout, Parts, Role, User, held_limit_s, muster, release, shell_image, while_held,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::runtime::Runtime;

/// Another process of the subnet's validator, on another address.
struct Replica {
    child: Child,
    address: SocketAddr,
    log: PathBuf,
}

impl Replica {
    /// Starts a process with the configuration of the subnet's validator, but for its own address and files.
    fn start(parts: &Parts, name: &str) -> Self {
        let text = std::fs::read_to_string(parts.config_file(Role::Validator)).unwrap();
        let mut config: toml::Table = text.parse().unwrap();
        let (address, folder) = (free_address().unwrap(), parts.folder());
        let file = |extension: &str| folder.join(name).with_extension(extension);
        let text_of = |path: PathBuf| toml::Value::String(path.to_str().unwrap().to_owned());
        config.insert("bind".to_owned(), toml::Value::String(address.to_string()));
        config.insert("ready_file".to_owned(), text_of(file("ready")));
        config.insert("operator_token".to_owned(), text_of(file("token")));
        std::fs::write(file("toml"), config.to_string()).unwrap();
        let log = file("log");
        let child = Command::new(muster().unwrap())
            .args(["validator", "--lifeline", "--config"])
            .arg(file("toml"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Self { child, address, log }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// Waits until the process has ended by itself.
    fn ended(&mut self) -> ExitStatus {
        let child = &mut self.child;
        wait_for("the end of a process", || anyhow::Ok(child.try_wait()?)).unwrap()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = kill(
            Pid::from_raw(i32::try_from(self.child.id()).unwrap_or_default()),
            Signal::SIGCONT,
        );
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn now() -> Timestamp {
    SystemClock::default().now()
}

/// A subnet whose validator has several processes, with a job that runs until it is released.
struct Story {
    runtime: Runtime,
    http: reqwest::Client,
    parts: Parts,
    user: User,
    job: JobId,
    // Dropped last: the processes store in it.
    _cluster: Cluster,
}

impl Story {
    fn start() -> Self {
        tls::install_provider();
        let runtime = Runtime::new().unwrap();
        let cluster = Cluster::start().unwrap();
        let layout = Layout {
            executors: 1,
            store: Some(cluster.stores(&["facilitator", "validator", "miner"]).unwrap()),
            ..Layout::default()
        };
        let image = runtime.block_on(shell_image("")).unwrap();
        let parts = Parts::start(&layout).unwrap();
        let key = parts.keys().user.clone();
        let login = User::login(parts.address(Role::Facilitator), key);
        let user = runtime.block_on(login).unwrap();
        let script = format!(
            "{} {BUSYBOX} echo over",
            while_held(&format!("{BUSYBOX} echo tick $beat;"))
        );
        let job = parts.shell_job(image, &script, held_limit_s()).unwrap();
        let job = user.submit(&job, now());
        let job = runtime.block_on(job).unwrap();
        let story = Self {
            runtime,
            http: reqwest::Client::new(),
            parts,
            user,
            job,
            _cluster: cluster,
        };
        story.wait_for_status("the program", JobStatus::VolumesReady);
        story
    }

    fn wait_for_status(&self, what: &str, status: JobStatus) {
        wait_for(what, || {
            let history = self.runtime.block_on(self.user.history(self.job));
            let history = history.unwrap_or_default();
            anyhow::Ok(history.iter().any(|seen| seen == status.as_str()).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:#}\n{}", self.parts.logs()));
    }

    /// The status and the answer of a process at a path of its status address.
    fn ask(&self, process: SocketAddr, path: &str) -> Option<(u16, Value)> {
        let url = format!("http://{process}{path}");
        self.runtime.block_on(async {
            let answer = self.http.get(url).send().await.ok()?;
            Some((answer.status().as_u16(), answer.json().await.ok()?))
        })
    }

    /// Waits until a process answers that it leads, or that it does not.
    fn wait_until(&self, process: SocketAddr, leads: bool) -> Value {
        let wanted = if leads { 200 } else { 503 };
        let what = if leads {
            "a process that leads"
        } else {
            "a process that stands by"
        };
        wait_for(what, || {
            let answer = self.ask(process, "/v0/leader");
            anyhow::Ok(
                answer
                    .filter(|(status, _)| *status == wanted)
                    .map(|(_, view)| view),
            )
        })
        .unwrap_or_else(|error| panic!("{error:#}\n{}", self.parts.logs()))
    }

    /// Waits until a process drives the job, with the facilitator connected.
    fn wait_until_it_drives(&self, process: SocketAddr) {
        let job = self.job.to_string();
        wait_for("a leader that drives the job", || {
            let state = self.ask(process, "/v0/state").map(|(_, state)| state);
            let drives = state.is_some_and(|state| {
                let known = state["jobs"].as_array().is_some_and(|jobs| {
                    jobs.iter()
                        .any(|known| known["job"].as_str() == Some(&job) && known["status"] != "failed")
                });
                known && state["facilitator"].to_string().contains("connected")
            });
            anyhow::Ok(drives.then_some(()))
        })
        .unwrap();
    }
}

#[test]
fn a_standby_leads_when_the_leader_is_stopped_killed_or_ends_and_the_job_runs_once() {
    let story = Story::start();
    let first = story.parts.address(Role::Validator);
    let view = story.wait_until(first, true);
    let leader = view["leader"].as_str().unwrap().to_owned();

    // Two stand by. They know who leads, and say so to whoever asks them for more.
    let mut second = Replica::start(&story.parts, "second");
    let third = Replica::start(&story.parts, "third");
    for standby in [&second, &third] {
        let view = story.wait_until(standby.address, false);
        assert_eq!(view["leader"].as_str(), Some(leader.as_str()), "{view}");
        let (status, state) = story.ask(standby.address, "/v0/state").unwrap();
        let told = state["error"].as_str().unwrap_or_default();
        assert!(
            status == 503 && told.contains("stands by") && told.contains(&leader),
            "{told}"
        );
        let (status, health) = story.ask(standby.address, "/health").unwrap();
        assert!(status == 200 && health["status"] == "standby", "{health}");
    }

    // The leader is stopped: one of the two leads. Once it goes on it ends itself, and says why.
    story.parts.signal(Role::Validator, Signal::SIGSTOP).unwrap();
    let since = now();
    let leads = |address: SocketAddr| matches!(story.ask(address, "/v0/leader"), Some((200, _)));
    let next = wait_for("one of two standbys that leads", || {
        anyhow::Ok(
            [second.address, third.address]
                .into_iter()
                .find(|address| leads(*address)),
        )
    })
    .unwrap();
    eprintln!(
        "a standby leads {:.1} s after the leader was stopped",
        now().since(since).as_secs_f64()
    );
    assert!(
        !(leads(second.address) && leads(third.address)),
        "two processes lead"
    );
    story.wait_until_it_drives(next);
    let pid = story.parts.pid(Role::Validator).unwrap();
    story.parts.signal(Role::Validator, Signal::SIGCONT).unwrap();
    let since = now();
    wait_for("the end of the process that led", || {
        let running = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        anyhow::Ok((running.is_empty() || running.contains(") Z ")).then_some(()))
    })
    .unwrap();
    eprintln!(
        "it ended {:.1} s after it went on",
        now().since(since).as_secs_f64()
    );
    let log = story.parts.log(Role::Validator);
    assert!(log.contains("E0057"), "{log}");

    // The leader is killed: of the two others, the one that its supervisor started again stands by like the other.
    let (mut killed, mut other) = if next == second.address {
        (second, third)
    } else {
        (third, second)
    };
    killed.signal(Signal::SIGKILL);
    let since = now();
    killed.ended();
    story.wait_until(other.address, true);
    eprintln!(
        "a standby leads {:.1} s after the leader was killed",
        now().since(since).as_secs_f64()
    );
    story.wait_until_it_drives(other.address);

    // The leader is told to end: the next one need not wait for the lease.
    second = Replica::start(&story.parts, "fourth");
    story.wait_until(second.address, false);
    other.signal(Signal::SIGTERM);
    assert!(other.ended().success(), "{}", other.log());
    let since = now();
    story.wait_until(second.address, true);
    eprintln!(
        "a standby leads {:.1} s after the leader has ended",
        now().since(since).as_secs_f64()
    );
    story.wait_until_it_drives(second.address);

    assert_eq!(
        release("", &story.job.to_string()).unwrap(),
        1,
        "one program is at work"
    );
    story.wait_for_status("the end of the job", JobStatus::Completed);
    let view = story.runtime.block_on(story.user.job(story.job)).unwrap();
    let history = view["status_history"].as_array().unwrap();
    let end = &history.last().unwrap()["metadata"];
    let printed = end["miner_response"]["docker_process_stdout"]
        .as_str()
        .unwrap_or_default();
    let ticks: Vec<_> = printed.lines().filter(|line| line.starts_with("tick ")).collect();
    let expected: Vec<_> = (1..=ticks.len()).map(|tick| format!("tick {tick}")).collect();
    assert_eq!(ticks, expected, "the program ran once");
    assert!(printed.ends_with("over\n"), "{printed}");
}

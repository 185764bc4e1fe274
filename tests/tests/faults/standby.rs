//! A validator of three processes on one PostgreSQL: the leader is stopped, killed and told to end under a running job.
//! Each time another process leads, the job goes on, and its program runs once.
//!
//! A leader that the machine does not let run for six seconds loses its lease and ends, as it should. So the test
//! starts what has ended again, as a unit would, and asks who leads instead of knowing it.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

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

/// A process of the subnet's validator, on an address of its own.
struct Replica {
    child: Child,
    address: SocketAddr,
    config: PathBuf,
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
        let (config, log) = (file("toml"), file("log"));
        Self {
            child: Self::spawn(&config, &log),
            address,
            config,
            log,
        }
    }

    fn spawn(config: &Path, log: &Path) -> Child {
        let log = OpenOptions::new().create(true).append(true).open(log).unwrap();
        Command::new(muster().unwrap())
            .args(["validator", "--lifeline", "--config"])
            .arg(config)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// Waits until the process has ended by itself.
    fn ended(&mut self) -> ExitStatus {
        let child = &mut self.child;
        wait_for("the end of a process", || anyhow::Ok(child.try_wait()?)).unwrap()
    }

    /// Starts the process again if it has ended, as its unit would.
    fn revive(&mut self) {
        if self.child.try_wait().unwrap().is_some() {
            self.child = Self::spawn(&self.config, &self.log);
        }
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

/// A subnet whose validator has three processes, with a job that runs until it is released.
struct Story {
    runtime: Runtime,
    http: reqwest::Client,
    replicas: Vec<Replica>,
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
        let mut story = Self {
            runtime,
            http: reqwest::Client::new(),
            replicas: Vec::new(),
            parts,
            user,
            job,
            _cluster: cluster,
        };
        story.wait_for_status("the program", JobStatus::VolumesReady);
        // From here on the processes of the test are the validator.
        story.parts.kill(Role::Validator).unwrap();
        let names = ["first", "second", "third"];
        story.replicas = names
            .map(|name| Replica::start(&story.parts, name))
            .into_iter()
            .collect();
        story
    }

    /// The logs of all processes.
    fn logs(&self) -> String {
        let replicas: String = self.replicas.iter().map(Replica::log).collect();
        format!("{}\n{replicas}", self.parts.logs())
    }

    fn wait_for_status(&self, what: &str, status: JobStatus) {
        wait_for(what, || {
            let history = self.runtime.block_on(self.user.history(self.job));
            let history = history.unwrap_or_default();
            anyhow::Ok(history.iter().any(|seen| seen == status.as_str()).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:#}\n{}", self.logs()));
    }

    /// The status and the answer of a process at a path of its status address.
    fn ask(&self, process: SocketAddr, path: &str) -> Option<(u16, Value)> {
        let url = format!("http://{process}{path}");
        self.runtime.block_on(async {
            let answer = self.http.get(url).send().await.ok()?;
            Some((answer.status().as_u16(), answer.json().await.ok()?))
        })
    }

    /// Whether a process answers that it leads, and the name of the leader that it knows.
    fn leads(&self, replica: &Replica) -> Option<(bool, String)> {
        let (status, view) = self.ask(replica.address, "/v0/leader")?;
        Some((status == 200, view["leader"].as_str()?.to_owned()))
    }

    /// Waits until this holds. A process that has ended meanwhile starts again, but for `but`.
    fn wait<T>(&mut self, what: &str, but: Option<usize>, holds: impl Fn(&Self) -> Option<T>) -> T {
        let waited = wait_for(what, || {
            let others = self.replicas.iter_mut().enumerate();
            for (_, replica) in others.filter(|(index, _)| Some(*index) != but) {
                replica.revive();
            }
            anyhow::Ok(holds(self))
        });
        waited.unwrap_or_else(|error| panic!("{error:#}\n{}", self.logs()))
    }

    /// Waits until one process leads, and the two others stand by, know its name and say so. Returns its place.
    fn settle(&mut self) -> usize {
        self.wait("a leader and two that stand by", None, |story| {
            let views: Vec<_> = story
                .replicas
                .iter()
                .map(|replica| story.leads(replica))
                .collect::<Option<_>>()?;
            let leader = views.iter().position(|(leads, _)| *leads)?;
            let name = &views[leader].1;
            let agree = views.iter().enumerate().all(|(index, (leads, named))| {
                *leads == (index == leader)
                    && named == name
                    && (*leads || story.stands_by(&story.replicas[index], name))
            });
            agree.then_some(leader)
        })
    }

    /// Whether a process answers everything as one that stands by, and names the leader.
    fn stands_by(&self, replica: &Replica, leader: &str) -> bool {
        let state = self.ask(replica.address, "/v0/state");
        let health = self.ask(replica.address, "/health");
        let told = state.is_some_and(|(status, state)| {
            let told = state["error"].as_str().unwrap_or_default();
            status == 503 && told.contains("stands by") && told.contains(leader)
        });
        told && health.is_some_and(|(status, health)| status == 200 && health["status"] == "standby")
    }

    /// Waits until another process than `gone` leads, drives the job, and the facilitator is connected to it. Returns
    /// how long it took until it led.
    fn wait_for_another(&mut self, gone: usize) -> Duration {
        let since = now();
        let leader = |story: &Self| {
            let others = story.replicas.iter().enumerate();
            let mut others = others.filter(|(index, _)| *index != gone);
            let leading = others.find(|(_, replica)| matches!(story.leads(replica), Some((true, _))));
            leading.map(|(_, replica)| replica.address)
        };
        self.wait("another process that leads", Some(gone), leader);
        let waited = now().since(since);
        let job = self.job.to_string();
        self.wait("a leader that drives the job", Some(gone), |story| {
            let (_, state) = story.ask(leader(story)?, "/v0/state")?;
            let known = state["jobs"]
                .as_array()?
                .iter()
                .any(|known| known["job"].as_str() == Some(&job) && known["status"] != "failed");
            (known && state["facilitator"].to_string().contains("connected")).then_some(())
        });
        waited
    }

    /// The process has ended because another one leads or may lead.
    fn ended_for_another(&mut self, place: usize) {
        self.replicas[place].ended();
        let log = self.replicas[place].log();
        assert!(log.contains("E0057"), "{log}");
    }
}

#[test]
fn a_standby_leads_when_the_leader_is_stopped_killed_or_ends_and_the_job_runs_once() {
    let mut story = Story::start();

    // The leader is stopped. Once it goes on it ends itself, and says why.
    let stopped = story.settle();
    story.replicas[stopped].signal(Signal::SIGSTOP);
    let waited = story.wait_for_another(stopped).as_secs_f64();
    eprintln!("another process leads {waited:.1} s after the leader was stopped");
    story.replicas[stopped].signal(Signal::SIGCONT);
    let since = now();
    story.ended_for_another(stopped);
    eprintln!(
        "it ended {:.1} s after it went on",
        now().since(since).as_secs_f64()
    );

    let killed = story.settle();
    story.replicas[killed].signal(Signal::SIGKILL);
    story.replicas[killed].ended();
    let waited = story.wait_for_another(killed).as_secs_f64();
    eprintln!("another process leads {waited:.1} s after the leader was killed");

    // The leader is told to end: the next one need not wait for the lease.
    let ended = story.settle();
    story.replicas[ended].signal(Signal::SIGTERM);
    if !story.replicas[ended].ended().success() {
        // It lost its lease at that moment.
        story.ended_for_another(ended);
    }
    let waited = story.wait_for_another(ended).as_secs_f64();
    eprintln!("another process leads {waited:.1} s after the leader has ended");

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

//! A Docker engine of the executor's own, where the machine has none: in a pod on a node whose containers run without
//! Docker. It has the executor's mounts, processes and network, so jobs have disks of a fixed size and sessions see
//! who listens, as on a bare machine.
//!
//! The engine outlives no executor: the container that holds both ends with the executor. An engine that ends by itself
//! is started again. Its containers go on meanwhile (`--live-restore`), and the executor asks again for half a minute.

mod control_groups;
mod loop_devices;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use muster_containers::ContainerEngine;
use muster_process::error::Causes;
use muster_process::task::Task;
use muster_process::{Backoff, SharedClock, Tasks};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

use crate::config::Config;

/// Longest time from the start of the engine until it answers.
const READY: Duration = Duration::from_mins(2);
/// Time between two questions whether it answers.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The time that the engine has to end before it is killed.
const GRACE: Duration = Duration::from_secs(15);
/// The pauses before an engine that ended is started again.
const RESTART: Backoff = Backoff {
    base: Duration::from_millis(500),
    max: Duration::from_secs(16),
};
/// An engine that has run for this long did not end because of its start.
const STEADY: Duration = Duration::from_mins(1);
/// The engine needs no network: jobs have none. Without a bridge it leaves the firewall of its network alone.
const ARGUMENTS: [&str; 5] = [
    "--live-restore",
    "--bridge=none",
    "--iptables=false",
    "--ip-forward=false",
    "--ip-masq=false",
];
/// The variables of this process that the engine gets: where it finds programs, and its way to registries. It gets no
/// token of a lease.
const VARIABLES: [&str; 7] = [
    "PATH",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];
/// Files in the engine's folder by which one that was killed is taken for a running one: its process id, and the one
/// and the socket of its containerd.
const STALE: [&str; 3] = [
    "docker.pid",
    "exec/containerd/containerd.pid",
    "exec/containerd/containerd.sock",
];
/// The program of an engine, and the places that it uses.
#[derive(Clone, Debug)]
pub struct OwnEngineOptions {
    /// The program; one without a folder is looked for on the path.
    pub program: PathBuf,
    /// The socket on which the engine answers.
    pub socket: PathBuf,
    /// The folder of its process ids and of its containerd.
    pub state: PathBuf,
}

impl Default for OwnEngineOptions {
    /// `dockerd`, with the socket on which Docker's own commands look for it.
    fn default() -> Self {
        Self {
            program: "dockerd".into(),
            socket: "/var/run/docker.sock".into(),
            state: "/run/muster-engine".into(),
        }
    }
}

/// The engine of an executor's own cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum OwnEngineError {
    /// The configuration names another engine.
    #[error("`engine` names the engine at {0}; leave it empty for an engine of the executor's own")]
    OtherEngine(String),
    /// An engine is there already. A second one would take its socket and its network away.
    #[error("an engine answers at {0} already; leave out --with-engine to use it")]
    Taken(String),
    /// The program cannot be started.
    #[error("cannot start {program}, the executor's own Docker engine; install Debian's docker.io beside it")]
    Start {
        /// The program, as [`OwnEngineOptions::program`] names it.
        program: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A folder or file that it needs cannot be made.
    #[error("cannot prepare {path} for the executor's own Docker engine; its container must be privileged")]
    Prepare {
        /// The path of the folder or file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// It ended before it answered.
    #[error(
        "the executor's own Docker engine ended with {0} before it answered; its reason is in the lines above"
    )]
    Ended(ExitStatus),
    /// This process was asked to stop meanwhile.
    #[error("told to stop while the executor's own Docker engine started")]
    Stopped,
    /// It runs and does not answer.
    #[error("the executor's own Docker engine did not answer within {0:?}; its reason is in the lines above")]
    Silent(Duration),
}

/// A running engine of the executor's own. It ends by [`Self::stop`].
pub struct OwnEngine {
    stop: CancellationToken,
    supervised: Task<()>,
}

impl OwnEngine {
    /// Starts an engine, waits until it answers, and names it in `config`. From then on it is started again whenever it
    /// ends by itself.
    ///
    /// # Errors
    /// `config` names another engine, or one answers already; the engine cannot be started, ends, or does not answer.
    pub async fn start(
        options: OwnEngineOptions,
        config: &mut Config,
        tasks: &Tasks,
        clock: &SharedClock,
    ) -> Result<Self, OwnEngineError> {
        let address = format!("unix://{}", options.socket.display());
        if !config.engine.is_empty() && config.engine != address {
            return Err(OwnEngineError::OtherEngine(config.engine.clone()));
        }
        if UnixStream::connect(&options.socket).is_ok() {
            return Err(OwnEngineError::Taken(address));
        }
        let groups = fs::read_to_string(control_groups::OWN)
            .and_then(|own| control_groups::nest(Path::new(control_groups::ROOT), &own));
        let group = groups.map_err(prepare_failed(control_groups::ROOT))?;
        loop_devices::make(Path::new("/dev")).map_err(prepare_failed("/dev"))?;
        let program = EngineProgram { options, group };
        let mut engine = program.begin()?;
        let begun = clock.now();
        while ContainerEngine::connect(&address).await.is_err() {
            if let Ok(Some(status)) = engine.try_wait() {
                return Err(OwnEngineError::Ended(status));
            }
            let late = (clock.now().since(begun) >= READY).then_some(OwnEngineError::Silent(READY));
            let stopped = tasks.token().is_cancelled().then_some(OwnEngineError::Stopped);
            if let Some(error) = stopped.or(late) {
                end(engine, clock).await;
                return Err(error);
            }
            clock.sleep(LOOK_EVERY).await;
        }
        tracing::info!(
            program = %program.options.program.display(),
            address,
            ms = clock.now().since(begun).as_millis(),
            "the executor's own Docker engine answers"
        );
        config.engine = address;
        let stop = CancellationToken::new();
        let supervising = supervise(engine, program, stop.clone(), SharedClock::clone(clock));
        Ok(Self {
            stop,
            supervised: tasks.spawn("the executor's own engine", supervising),
        })
    }

    /// Ends the engine.
    pub async fn stop(self) {
        self.stop.cancel();
        if let Err(error) = self.supervised.join().await {
            tracing::warn!(error = %Causes(&error), "the executor's own Docker engine was not ended");
        }
    }
}

/// Starts the engine again whenever it ends, until `stop`.
async fn supervise(mut engine: Child, program: EngineProgram, stop: CancellationToken, clock: SharedClock) {
    let mut ends = 0;
    loop {
        let begun = clock.now();
        let Some(ended) = stop.run_until_cancelled(engine.wait()).await else {
            return end(engine, &clock).await;
        };
        if clock.now().since(begun) >= STEADY {
            ends = 0;
        }
        let mut how = match ended {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        engine = loop {
            let pause = RESTART.full_delay(ends);
            tracing::warn!(
                how,
                ?pause,
                "the executor's own Docker engine ended; starting it again"
            );
            ends = ends.saturating_add(1);
            if stop.run_until_cancelled(clock.sleep(pause)).await.is_none() {
                return;
            }
            match program.begin() {
                Ok(engine) => break engine,
                Err(error) => how = Causes(&error).to_string(),
            }
        };
    }
}

/// The program with what it is started with.
struct EngineProgram {
    options: OwnEngineOptions,
    /// The control group below which the containers of jobs belong; `None` for the engine's own choice.
    group: Option<String>,
}

impl EngineProgram {
    /// Starts it. Its output goes where this process's log goes.
    fn begin(&self) -> Result<Child, OwnEngineError> {
        let OwnEngineOptions {
            program,
            socket,
            state,
        } = &self.options;
        fs::create_dir_all(state).map_err(prepare_failed(state))?;
        for stale in STALE {
            match fs::remove_file(state.join(stale)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(prepare_failed(state.join(stale))(error)),
            }
        }
        let kept = VARIABLES
            .iter()
            .filter_map(|name| Some((name, std::env::var_os(name)?)));
        let mut address = OsString::from("unix://");
        address.push(socket);
        let mut command = Command::new(program);
        command.args(ARGUMENTS).arg("--host").arg(address);
        command.arg("--exec-root").arg(state.join("exec"));
        command.arg("--pidfile").arg(state.join("docker.pid"));
        if let Some(group) = &self.group {
            command.args(["--cgroup-parent", group]);
        }
        command
            .env_clear()
            .envs(kept)
            .stdin(Stdio::null())
            .stdout(io::stderr())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| OwnEngineError::Start {
                program: program.clone(),
                source,
            })
    }
}

/// Asks the engine to end, and kills it if it does not.
async fn end(mut engine: Child, clock: &SharedClock) {
    let id = engine.id().and_then(|id| i32::try_from(id).ok());
    if let Some(id) = id
        && let Err(error) = kill(Pid::from_raw(id), Signal::SIGTERM)
    {
        tracing::debug!(%error, "the executor's own Docker engine had ended");
    }
    tokio::select! {
        _ = engine.wait() => {}
        () = clock.sleep(GRACE) => {
            tracing::warn!(grace = ?GRACE, "the executor's own Docker engine does not end; it is killed");
            // A process that cannot be killed ends with its container.
            let _ = engine.kill().await;
        }
    }
}

fn prepare_failed(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> OwnEngineError {
    let path = path.into();
    move |source| OwnEngineError::Prepare { path, source }
}

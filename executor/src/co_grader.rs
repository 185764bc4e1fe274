//! A grader beside a session: brought up when the validator challenges this executor while it serves somebody, and removed once it
//! has not been asked for a while. It runs in a container of its own with the session's processors and GPUs, and sees nothing of the
//! session's files.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::Method;
use http::uri::PathAndQuery;
use indexmap::IndexMap;
use muster_containers::images::{Resolved, ensure};
use muster_containers::pull::Progress;
use muster_containers::sandbox::Allowance;
use muster_process::error::Causes;
use muster_process::{SharedClock, Tasks};
use muster_protocol::wire::miner::{GraderTerms, JobRequest, OptionsPreset};
use muster_protocol::{AttemptId, ExecutorClass, Timestamp};
use muster_sealing_proxy::socket::{JobSocket, Listener};
use muster_sealing_proxy::{Beside, EngineAddress, Limits, Upstream};
use tokio::sync::Mutex;

use crate::config::{Config, Policy};
use crate::engine::Engine;
use crate::sandbox::{JobFolders, Sealed};

/// Where a grader takes messages.
const MESSAGES: &str = "/v1/grade";
/// How long it may take to come up.
const START_LIMIT: Duration = Duration::from_secs(120);
/// Between two looks whether it has.
const PAUSE: Duration = Duration::from_millis(50);
/// How long it may take over one look at its health.
const PROBE_LIMIT: Duration = Duration::from_secs(5);
/// A grader that was not asked for so long goes: longer than the longest answer that the seal waits for.
const LINGER: Duration = Duration::from_secs(660);
/// The part of the session's memory that it gets beside it, and the least.
const PART: i64 = 4;
const LEAST_MEMORY: i64 = 512 << 20;
/// What it gets of shared memory and of each tmpfs: it needs neither.
const SCRATCH: i64 = 16 << 20;

/// What it is made of.
pub(crate) struct Plan {
    pub(crate) engine: Engine,
    pub(crate) config: Arc<Config>,
    pub(crate) terms: GraderTerms,
    pub(crate) attempt: AttemptId,
    pub(crate) class: ExecutorClass,
    /// The session's container.
    pub(crate) container: String,
    /// The session's folders: its own lie in there.
    pub(crate) folders: JobFolders,
    pub(crate) policy: Policy,
    pub(crate) gpus: Vec<String>,
    pub(crate) clock: SharedClock,
    pub(crate) tasks: Tasks,
}

/// One that can be asked. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Grader(Arc<Inner>);

struct Inner {
    plan: Plan,
    state: Mutex<State>,
    used: parking_lot::Mutex<Timestamp>,
}

enum State {
    Away,
    Up {
        upstream: Upstream,
        /// The engine's own name for its container.
        id: String,
        /// Its image stays meanwhile.
        _image: Box<Resolved>,
    },
    /// The session is over: it does not come up again.
    Closed,
}

/// The name of its container.
pub(crate) fn name(container: &str) -> String {
    format!("{container}-grader")
}

impl Grader {
    pub(crate) fn new(plan: Plan) -> Self {
        let used = parking_lot::Mutex::new(plan.clock.now());
        Self(Arc::new(Inner {
            plan,
            state: Mutex::new(State::Away),
            used,
        }))
    }

    /// Removes it whenever nobody has asked it for long. Never ends.
    pub(crate) async fn rest(&self) {
        let clock = &self.0.plan.clock;
        loop {
            clock.sleep(LINGER / 4).await;
            let used = *self.0.used.lock();
            if clock.now().since(used) < LINGER {
                continue;
            }
            let mut state = self.0.state.lock().await;
            if matches!(*state, State::Up { .. }) {
                *state = State::Away;
                self.0.remove().await;
            }
        }
    }

    /// The session is over.
    pub(crate) async fn close(&self) {
        let mut state = self.0.state.lock().await;
        if matches!(*state, State::Up { .. }) {
            self.0.remove().await;
        }
        *state = State::Closed;
    }
}

impl std::fmt::Debug for Grader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Grader({})", self.0.plan.terms.image)
    }
}

impl Beside for Grader {
    fn upstream(&self) -> BoxFuture<'_, Result<Upstream, String>> {
        let inner = Arc::clone(&self.0);
        // On a task of its own: whoever asked may go, and what is being made then must not be lost sight of.
        let coming = self.0.plan.tasks.spawn("grader beside a session", async move {
            let up = inner.up().await;
            *inner.used.lock() = inner.plan.clock.now();
            up
        });
        Box::pin(async move {
            let came = coming.join().await;
            came.unwrap_or_else(|error| Err(error.to_string()))
        })
    }

    fn path(&self, method: &Method) -> PathAndQuery {
        let messages = || PathAndQuery::from_static(MESSAGES);
        if method == Method::GET {
            let health = PathAndQuery::try_from(self.0.plan.terms.health.as_str());
            return health.unwrap_or_else(|_| messages());
        }
        messages()
    }
}

impl Inner {
    async fn up(&self) -> Result<Upstream, String> {
        let mut state = self.state.lock().await;
        match &*state {
            State::Closed => return Err("the session is over".to_owned()),
            State::Away => {}
            State::Up { upstream, id, .. } => {
                let running = self.plan.engine.running(&name(&self.plan.container)).await;
                if matches!(running, Ok(Some(running)) if running.id == *id) {
                    return Ok(upstream.clone());
                }
            }
        }
        *state = State::Away;
        let coming = self.bring_up();
        let came = tokio::select! {
            came = coming => came,
            () = self.plan.clock.sleep(START_LIMIT) => {
                Err(format!("the grader did not answer within {} s", START_LIMIT.as_secs()))
            }
        };
        match came {
            Ok((upstream, id, image)) => {
                tracing::info!(image = %self.plan.terms.image, "a grader stands beside the session");
                let (copy, image) = (upstream.clone(), Box::new(image));
                *state = State::Up {
                    upstream,
                    id,
                    _image: image,
                };
                Ok(copy)
            }
            Err(why) => {
                self.remove().await;
                Err(why)
            }
        }
    }

    async fn bring_up(&self) -> Result<(Upstream, String, Resolved), String> {
        let plan = &self.plan;
        let said = |error: &(dyn std::error::Error + 'static)| Causes(error).to_string();
        let unwatched: Progress = Arc::new(|_, _| {});
        let image = ensure(
            &plan.engine,
            &plan.config.images,
            &plan.terms.docker_image,
            &unwatched,
            &plan.clock,
        )
        .await
        .map_err(|error| said(&error))?;
        if image.image.id != plan.terms.image {
            return Err(format!(
                "the grader is to be the image {}, and {} is here by that name",
                plan.terms.image, image.image.id
            ));
        }
        let folders = self.folders().map_err(|error| said(&error))?;
        let job = self.job();
        let sealed = Sealed {
            job: &job,
            image: &image.image,
            bare_home: None,
            policy: Policy {
                allowance: beside(plan.policy.allowance),
                ..plan.policy
            },
            gpus: &plan.gpus,
            folders: &folders,
            runtime: &plan.config.runtime,
            streaming: true,
        };
        let body = sealed.container().map_err(|error| said(&error))?;
        let container = name(&plan.container);
        // One that ended, or that a call before this one gave up.
        plan.engine
            .remove(&container)
            .await
            .map_err(|error| said(&error))?;
        plan.engine
            .create(&container, body)
            .await
            .map_err(|error| said(&error))?;
        plan.engine
            .start(&container)
            .await
            .map_err(|error| said(&error))?;
        let running = loop {
            let running = plan.engine.running(&container).await;
            if let Some(running) = running.map_err(|error| said(&error))? {
                break running;
            }
            plan.clock.sleep(PAUSE).await;
        };
        let listener = Listener::Container(running.id.clone());
        let socket = JobSocket::new(&folders.sockets, &plan.terms.socket, listener);
        let address = EngineAddress::Socket(socket.map_err(|error| said(&error))?);
        let upstream = Upstream::new(address, &Limits::default(), &plan.tasks);
        loop {
            let seen = upstream.probe(&plan.terms.health, PROBE_LIMIT).await;
            if seen.is_ok_and(|status| status.is_success()) {
                return Ok((upstream, running.id, image));
            }
            plan.clock.sleep(PAUSE).await;
        }
    }

    /// What it reads and writes: nothing of the session's.
    fn folders(&self) -> io::Result<JobFolders> {
        let root = self.plan.folders.root.join("grader");
        let folders = JobFolders {
            // By this one the next executor finds the container of a killed one.
            root: self.plan.folders.root.clone(),
            ..JobFolders::under(&root)
        };
        for folder in [&folders.volume, &folders.output, &folders.specs, &folders.sockets] {
            make(folder)?;
        }
        Ok(folders)
    }

    fn job(&self) -> JobRequest {
        let plan = &self.plan;
        JobRequest {
            job_uuid: plan.attempt,
            executor_class: plan.class,
            docker_image: plan.terms.docker_image.clone(),
            raw_script: None,
            docker_run_options_preset: if plan.gpus.is_empty() {
                OptionsPreset::None
            } else {
                OptionsPreset::NvidiaAll
            },
            docker_run_cmd: plan.terms.args.clone(),
            env: IndexMap::new(),
            volume: None,
            output_upload: None,
            artifacts_dir: None,
        }
    }

    async fn remove(&self) {
        if let Err(error) = self.plan.engine.remove(&name(&self.plan.container)).await {
            tracing::warn!(error = %Causes(&error), "the grader beside the session stays for now");
        }
    }
}

/// A folder that the image's user may write into.
fn make(folder: &PathBuf) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    fs::set_permissions(folder, Permissions::from_mode(0o777))
}

/// What it may use beside a session that may use this. The processors are the session's: how fast they are is what is asked.
fn beside(session: Allowance) -> Allowance {
    let scratch = session.shm.min(SCRATCH);
    Allowance {
        memory: (session.memory / PART).max(LEAST_MEMORY).min(session.memory),
        shm: scratch,
        tmpfs: session.tmpfs.min(u64::try_from(scratch).unwrap_or(0)),
        ..session
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_a_part_of_the_sessions_memory_and_all_of_its_processors() {
        let session = Allowance {
            nano_cpus: 8_000_000_000,
            memory: 16 << 30,
            shm: 1 << 30,
            tmpfs: 1 << 30,
            pids: 512,
            disk: 1 << 30,
        };
        let got = beside(session);
        assert_eq!((got.memory, got.nano_cpus), (4 << 30, session.nano_cpus));
        assert!(got.shm + got.memory < session.memory);
        let small = Allowance {
            memory: 256 << 20,
            ..session
        };
        assert_eq!(
            beside(small).memory,
            256 << 20,
            "never more than the session itself"
        );
    }
}

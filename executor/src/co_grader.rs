//! The co-grader of a session: a grader that answers the validator's challenges while this executor serves a user. It
//! is started by the first challenge, and removed when no challenge came for a while. It runs in a container of its
//! own with the session's processors and GPUs, and sees none of the session's files.

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
use muster_containers::docker_engine::ContainerEngine;
use muster_containers::image_folders::UNSEEN;
use muster_containers::image_pull::unwatched;
use muster_containers::images::{LeasedImage, ensure};
use muster_containers::sandbox::ResourceLimits;
use muster_process::error::Causes;
use muster_process::{SharedClock, Tasks};
use muster_protocol::wire::miner::{GraderTerms, JobRequest, OptionsPreset};
use muster_protocol::{AttemptId, ExecutorClass, Timestamp};
use muster_sealing_proxy::socket::{JobSocket, SocketOwner};
use muster_sealing_proxy::{EngineAddress, GraderBackend, Limits, Upstream};
use tokio::sync::Mutex;

use crate::config::{Config, Policy};
use crate::job_sandbox::{JobContainer, JobFolders};

/// The path at which a grader takes challenges.
const MESSAGES: &str = "/v1/grade";
/// How long a grader may take to start.
const START_LIMIT: Duration = Duration::from_secs(120);
/// The pause between two looks whether it has started.
const PAUSE: Duration = Duration::from_millis(50);
/// How long it may take over one health check.
const PROBE_LIMIT: Duration = Duration::from_secs(5);
/// A grader is removed after this long without a challenge: longer than the longest answer that the seal waits for.
const IDLE_LIMIT: Duration = Duration::from_secs(660);
/// The grader gets this fraction of the session's memory, but at least [`LEAST_MEMORY`] bytes.
const MEMORY_DIVISOR: i64 = 4;
const LEAST_MEMORY: i64 = 512 << 20;
/// Bytes of shared memory and of each tmpfs: a grader needs neither.
const SCRATCH: i64 = 16 << 20;

/// The facts with which a co-grader is started.
pub(crate) struct CoGraderSpec {
    pub(crate) engine: ContainerEngine,
    pub(crate) config: Arc<Config>,
    pub(crate) terms: GraderTerms,
    pub(crate) attempt: AttemptId,
    pub(crate) class: ExecutorClass,
    /// The name of the session's container.
    pub(crate) container: String,
    /// The session's folders; the grader's own lie below their root.
    pub(crate) folders: JobFolders,
    pub(crate) policy: Policy,
    pub(crate) gpus: Vec<String>,
    pub(crate) clock: SharedClock,
    pub(crate) tasks: Tasks,
}

/// A grader that is started when it is needed. Clones share it.
#[derive(Clone)]
pub(crate) struct CoGrader(Arc<Inner>);

struct Inner {
    spec: CoGraderSpec,
    state: Mutex<CoGraderState>,
    /// When the last challenge came.
    used: parking_lot::Mutex<Timestamp>,
}

enum CoGraderState {
    Stopped,
    Running {
        upstream: Upstream,
        /// The engine's id of its container.
        id: String,
        /// Keeps the image on this machine.
        _image: Box<LeasedImage>,
    },
    /// The session is over: the grader does not start again.
    Closed,
}

/// The name of the co-grader's container, from that of the session's.
fn grader_container(container: &str) -> String {
    format!("{container}-grader")
}

impl CoGrader {
    pub(crate) fn new(spec: CoGraderSpec) -> Self {
        let used = parking_lot::Mutex::new(spec.clock.now());
        Self(Arc::new(Inner {
            spec,
            state: Mutex::new(CoGraderState::Stopped),
            used,
        }))
    }

    /// Removes the grader whenever it had no challenge for long. Never ends.
    pub(crate) async fn remove_when_idle(&self) {
        let clock = &self.0.spec.clock;
        loop {
            clock.sleep(IDLE_LIMIT / 4).await;
            let used = *self.0.used.lock();
            if clock.now().since(used) < IDLE_LIMIT {
                continue;
            }
            let mut state = self.0.state.lock().await;
            if matches!(*state, CoGraderState::Running { .. }) {
                *state = CoGraderState::Stopped;
                self.0.remove().await;
            }
        }
    }

    /// Removes the grader for good.
    pub(crate) async fn close(&self) {
        let mut state = self.0.state.lock().await;
        if matches!(*state, CoGraderState::Running { .. }) {
            self.0.remove().await;
        }
        *state = CoGraderState::Closed;
    }
}

impl std::fmt::Debug for CoGrader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CoGrader({})", self.0.spec.terms.image)
    }
}

impl GraderBackend for CoGrader {
    fn start(&self) -> BoxFuture<'_, Result<Upstream, String>> {
        let inner = Arc::clone(&self.0);
        // On a task of its own: the client may go away, and a container that is being made then must not be forgotten.
        let starting = self.0.spec.tasks.spawn("co-grader", async move {
            let upstream = inner.ensure_running().await;
            *inner.used.lock() = inner.spec.clock.now();
            upstream
        });
        Box::pin(async move {
            let started = starting.join().await;
            started.unwrap_or_else(|error| Err(error.to_string()))
        })
    }

    fn path_for(&self, method: &Method) -> PathAndQuery {
        let messages = || PathAndQuery::from_static(MESSAGES);
        if method == Method::GET {
            let health = PathAndQuery::try_from(self.0.spec.terms.health.as_str());
            return health.unwrap_or_else(|_| messages());
        }
        messages()
    }
}

impl Inner {
    /// Starts the grader unless it runs already.
    async fn ensure_running(&self) -> Result<Upstream, String> {
        let mut state = self.state.lock().await;
        match &*state {
            CoGraderState::Closed => return Err("the session is over".to_owned()),
            CoGraderState::Stopped => {}
            CoGraderState::Running { upstream, id, .. } => {
                let running = self
                    .spec
                    .engine
                    .find_running(&grader_container(&self.spec.container))
                    .await;
                if matches!(running, Ok(Some(running)) if running.id == *id) {
                    return Ok(upstream.clone());
                }
            }
        }
        *state = CoGraderState::Stopped;
        let started = tokio::select! {
            started = self.start() => started,
            () = self.spec.clock.sleep(START_LIMIT) => {
                Err(format!("the grader did not answer within {} s", START_LIMIT.as_secs()))
            }
        };
        match started {
            Ok((upstream, id, image)) => {
                tracing::info!(image = %self.spec.terms.image, "started a co-grader for the session");
                let (copy, image) = (upstream.clone(), Box::new(image));
                *state = CoGraderState::Running {
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

    /// Starts a container and waits until the grader answers. Returns also the id of the container, and the image,
    /// which must stay on this machine.
    async fn start(&self) -> Result<(Upstream, String, LeasedImage), String> {
        let spec = &self.spec;
        let describe = |error: &(dyn std::error::Error + 'static)| Causes(error).to_string();
        let image = ensure(
            &spec.engine,
            &spec.config.images,
            &spec.terms.docker_image,
            &unwatched(),
            &spec.clock,
        )
        .await
        .map_err(|error| describe(&error))?;
        if image.image.id != spec.terms.image {
            return Err(format!(
                "the grader must be the image {}, and its name stands for {} here",
                spec.terms.image, image.image.id
            ));
        }
        let folders = self.make_folders().map_err(|error| describe(&error))?;
        let job = self.job();
        let container_spec = JobContainer {
            resumed: None,
            start: None,
            job: &job,
            image: &image.image,
            image_folders: &UNSEEN,
            policy: Policy {
                allowance: grader_allowance(spec.policy.allowance),
                ..spec.policy
            },
            gpus: &spec.gpus,
            folders: &folders,
            runtime: &spec.config.runtime,
            streaming: true,
        };
        let body = container_spec.body().map_err(|error| describe(&error))?;
        let container = grader_container(&spec.container);
        // A container of a grader that ended, or of a start that was given up.
        spec.engine
            .remove(&container)
            .await
            .map_err(|error| describe(&error))?;
        spec.engine
            .create(&container, body)
            .await
            .map_err(|error| describe(&error))?;
        spec.engine
            .start(&container)
            .await
            .map_err(|error| describe(&error))?;
        let running = loop {
            let running = spec.engine.find_running(&container).await;
            if let Some(running) = running.map_err(|error| describe(&error))? {
                break running;
            }
            spec.clock.sleep(PAUSE).await;
        };
        let listener = SocketOwner::Container(running.id.clone());
        let socket = JobSocket::new(&folders.sockets, &spec.terms.socket, listener);
        let address = EngineAddress::Socket(socket.map_err(|error| describe(&error))?);
        let upstream = Upstream::new(address, &Limits::default(), &spec.tasks);
        loop {
            let health = upstream.probe(&spec.terms.health, PROBE_LIMIT).await;
            if health.is_ok_and(|status| status.is_success()) {
                return Ok((upstream, running.id, image));
            }
            spec.clock.sleep(PAUSE).await;
        }
    }

    /// Makes the folders that the grader reads and writes. It sees none of the session's.
    fn make_folders(&self) -> io::Result<JobFolders> {
        let root = self.spec.folders.data.join("grader");
        let folders = JobFolders {
            // The next executor finds the container of a killed executor by this folder.
            root: self.spec.folders.root.clone(),
            host_files: self.spec.folders.host_files.clone(),
            ..JobFolders::under(&root)
        };
        for folder in [&folders.volume, &folders.output, &folders.specs, &folders.sockets] {
            make_writable(folder)?;
        }
        Ok(folders)
    }

    /// The job whose sandbox the grader runs in.
    fn job(&self) -> JobRequest {
        let spec = &self.spec;
        JobRequest {
            muster: None,
            job_uuid: spec.attempt,
            executor_class: spec.class,
            docker_image: spec.terms.docker_image.clone(),
            raw_script: None,
            docker_run_options_preset: if spec.gpus.is_empty() {
                OptionsPreset::None
            } else {
                OptionsPreset::NvidiaAll
            },
            docker_run_cmd: spec.terms.args.clone(),
            env: IndexMap::new(),
            volume: None,
            output_upload: None,
            artifacts_dir: None,
        }
    }

    async fn remove(&self) {
        if let Err(error) = self
            .spec
            .engine
            .remove(&grader_container(&self.spec.container))
            .await
        {
            tracing::warn!(error = %Causes(&error), "the co-grader could not be removed");
        }
    }
}

/// Makes a folder in which the image's user may write.
fn make_writable(folder: &PathBuf) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    fs::set_permissions(folder, Permissions::from_mode(0o777))
}

/// The allowance of a grader, from that of its session. It shares all the session's processors, because challenges
/// measure their speed.
fn grader_allowance(session: ResourceLimits) -> ResourceLimits {
    let scratch = session.shm.min(SCRATCH);
    ResourceLimits {
        memory: (session.memory / MEMORY_DIVISOR)
            .max(LEAST_MEMORY)
            .min(session.memory),
        shm: scratch,
        tmpfs: session.tmpfs.min(u64::try_from(scratch).unwrap_or(0)),
        ..session
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn co_grader_gets_part_of_the_sessions_memory_and_all_its_processors() {
        let session = ResourceLimits {
            nano_cpus: 8_000_000_000,
            memory: 16 << 30,
            shm: 1 << 30,
            tmpfs: 1 << 30,
            pids: 512,
            disk: 1 << 30,
        };
        let got = grader_allowance(session);
        assert_eq!((got.memory, got.nano_cpus), (4 << 30, session.nano_cpus));
        assert!(got.shm + got.memory < session.memory);
        let small = ResourceLimits {
            memory: 256 << 20,
            ..session
        };
        assert_eq!(
            grader_allowance(small).memory,
            256 << 20,
            "never more than the session itself"
        );
    }
}

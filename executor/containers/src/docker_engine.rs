//! The client of the Docker engine, as far as an executor needs one. Each error names the operation that failed.

use std::collections::HashMap;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bollard::container::{AttachContainerResults, LogOutput};
use bollard::errors::Error as ApiError;
use bollard::models::{
    ContainerCreateBody, ContainerStateStatusEnum, ImageConfig, SystemInfo, SystemInfoCgroupVersionEnum,
};
use bollard::query_parameters::{
    AttachContainerOptions, CreateContainerOptions, DownloadFromContainerOptions, ImportImageOptions,
    KillContainerOptions, ListContainersOptions, LogsOptions, RemoveContainerOptions, StatsOptions,
    StopContainerOptions, WaitContainerOptions,
};
use bollard::{BollardRequest, Docker, body_full};
use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use hyper::header::HeaderValue;
use muster_protocol::ImageId;
use tokio::io::AsyncWrite;
use tokio::sync::OnceCell;
use tokio_util::io::{ReaderStream, SyncIoBridge};

pub use crate::engine_error::EngineError;
use crate::engine_error::{CREATE, START};
use crate::image_archive::{ArchiveError, without_tags};
use crate::image_user::OwnerIds;
use crate::podman_body::PodmanBodies;
use crate::sized_disk::engine_process;

/// Timeout of loading an image archive: a large image takes minutes, longer than the client library's default.
const LOAD_LIMIT: Duration = Duration::from_secs(1_800);
/// A connection to an engine. Clones share it.
#[derive(Clone, Debug)]
pub struct ContainerEngine {
    docker: Docker,
    version: String,
    /// Rewrites what podman takes in another form; `None` for Docker.
    podman: Option<Arc<PodmanBodies>>,
    /// The user and the group on this machine that root is in the containers, once they were asked for.
    pub(crate) first_ids: Arc<OnceCell<Option<OwnerIds>>>,
    platform: Option<String>,
}

/// An image that the engine has.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalImage {
    /// The image's id.
    pub id: ImageId,
    /// The user that runs the program; empty for root.
    pub user: String,
    /// The image's environment variables, each as `NAME=value`.
    pub environment: Vec<String>,
    /// Paths that the image declares as volumes.
    pub volumes: Vec<String>,
    /// The program that the image starts, with its first arguments.
    pub entrypoint: Vec<String>,
    /// The default arguments, which a job's own arguments replace.
    pub command: Vec<String>,
    /// The image's digests in registries, each as `registry/repository@sha256:…`.
    pub manifests: Vec<String>,
    /// Size in bytes.
    pub size: u64,
}

impl LocalImage {
    /// An image of which only the id is known: its user is root, and it has no variables and no volumes.
    pub fn default_for(id: ImageId) -> Self {
        Self {
            id,
            user: String::new(),
            environment: vec![],
            volumes: vec![],
            entrypoint: vec![],
            command: vec![],
            manifests: vec![],
            size: 0,
        }
    }
}

/// A running container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningContainer {
    /// The id that the engine gave it.
    pub id: String,
    /// The id of its first process in the host's process namespace.
    pub pid: i32,
}

/// A part of the engine's copy of a container's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptOutput {
    /// From the earliest piece that the engine still has, to now.
    SoFar,
    /// From the earliest piece that the engine still has, to the container's end.
    Whole,
    /// From now to the container's end.
    FromNow,
}

/// How far a container has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerStage {
    /// There is none of this name.
    Absent,
    /// It was created and never started.
    Created,
    /// It runs, or has ended.
    Started,
}

/// The end of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerExit {
    /// Exit code; 128 + signal if it was killed.
    pub code: i64,
    /// Whether the kernel killed it for using too much memory.
    pub oom_killed: bool,
}

/// The use of the machine by a running container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerUsage {
    /// The processor time since its start, of all cores together.
    pub cpu: Duration,
    /// Its memory in bytes, without the cache of files.
    pub memory: u64,
}

/// The output of a container as it arrives, stdout and stderr apart.
pub type OutputStream = BoxStream<'static, Result<LogOutput, ApiError>>;
/// The standard input of a container.
pub type InputSink = Pin<Box<dyn AsyncWrite + Send>>;

impl ContainerEngine {
    /// Connects and agrees on a version of the API. `address` is `unix://…` or `tcp://…`; empty for `DOCKER_HOST` or
    /// the usual socket.
    ///
    /// # Errors
    /// [`EngineError::Unreachable`], whose text has the commands that install an engine; [`EngineError::Unlimited`].
    pub async fn connect(address: &str) -> Result<Self, EngineError> {
        let named = match address {
            "" => std::env::var("DOCKER_HOST").unwrap_or_else(|_| "unix:///var/run/docker.sock".to_owned()),
            given => given.to_owned(),
        };
        let unreachable = |source| EngineError::Unreachable {
            address: named.clone(),
            source,
        };
        let docker = Docker::connect_with_host(&named)
            .map_err(unreachable)?
            .with_request_modifier(reencode_credentials);
        let docker = docker.negotiate_version().await.map_err(unreachable)?;
        let about = docker.version().await.map_err(unreachable)?;
        let components = about.components.unwrap_or_default();
        let is_podman = components.iter().any(|part| part.name.starts_with("Podman"));
        // Docker without root has it, and podman may be without root.
        let may_lack_root = is_podman || components.iter().any(|part| part.name == "rootlesskit");
        if may_lack_root {
            let user = engine_process(&named).map(|process| process.uid());
            if has_no_limits(&docker.info().await.map_err(unreachable)?, user) {
                return Err(EngineError::Unlimited(named));
            }
        }
        let version = about.version.ok_or(EngineError::Incomplete("its version"))?;
        let platform = about.os.zip(about.arch).map(|(os, arch)| format!("{os}/{arch}"));
        Ok(Self {
            docker,
            version,
            podman: is_podman.then(Arc::default),
            platform,
            first_ids: Arc::default(),
        })
    }

    pub(crate) fn docker(&self) -> &Docker {
        &self.docker
    }

    /// The version of the engine, for example `20.10.24`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The operating system and the architecture of the engine's containers, for example `linux/amd64`; `None` if it
    /// did not tell.
    pub fn platform(&self) -> Option<&str> {
        self.platform.as_deref()
    }

    /// Whether the engine knows images by the digests of their manifests alone, as the image store of containerd does
    /// (the default of new engines from version 29 on). No image is found there by the digest of its config, which is
    /// an image's id everywhere else.
    ///
    /// # Errors
    /// The engine failed.
    pub async fn names_images_by_manifest(&self) -> Result<bool, EngineError> {
        let about = self.docker.info().await;
        let about = about.map_err(operation_failed("ask the engine about itself"))?;
        Ok(is_containerd_store(&about.driver_status.unwrap_or_default()))
    }

    /// Whether the engine is podman, which speaks Docker's API.
    pub fn is_podman(&self) -> bool {
        self.podman.is_some()
    }

    /// Whether the engine unpacks layers that are compressed by zstd: Docker from version 23 on, and podman.
    pub fn reads_zstd(&self) -> bool {
        let major = self
            .version
            .split('.')
            .next()
            .and_then(|major| major.parse::<u32>().ok());
        self.is_podman() || major.is_none_or(|major| major >= 23)
    }

    /// Checks that the engine still answers.
    ///
    /// # Errors
    /// The engine does not answer.
    pub async fn ping(&self) -> Result<(), EngineError> {
        self.docker
            .ping()
            .await
            .map(|_| ())
            .map_err(operation_failed("answer a ping"))
    }

    /// Looks up an image by name or `sha256:` id; `None` if the engine does not have it.
    ///
    /// # Errors
    /// The engine failed with anything but "no such image".
    pub async fn find_image(&self, name: &str) -> Result<Option<LocalImage>, EngineError> {
        if !is_image_name(name) {
            // Any other text could change the path of the request.
            return Ok(None);
        }
        let found = match self.docker.inspect_image(name).await {
            Ok(found) => found,
            Err(ApiError::DockerResponseServerError { status_code: 404, .. }) => return Ok(None),
            Err(error) => return Err(operation_failed("look for an image")(error)),
        };
        let id = found
            .id
            .and_then(|id| id.parse().ok())
            .ok_or(EngineError::Incomplete("the image's id"))?;
        let config = found.config.unwrap_or_else(ImageConfig::default);
        Ok(Some(LocalImage {
            id,
            user: config.user.unwrap_or_default(),
            environment: config.env.unwrap_or_default(),
            volumes: config.volumes.unwrap_or_default(),
            entrypoint: config.entrypoint.unwrap_or_default(),
            command: config.cmd.unwrap_or_default(),
            manifests: found.repo_digests.unwrap_or_default(),
            size: found
                .size
                .and_then(|size| u64::try_from(size).ok())
                .unwrap_or_default(),
        }))
    }

    /// Loads an archive from memory, for example one written by [`crate::image_archive`].
    ///
    /// # Errors
    /// The engine failed.
    pub async fn load(&self, archive: impl Into<Bytes>) -> Result<(), EngineError> {
        let docker = self.docker.clone().with_timeout(LOAD_LIMIT);
        let answers = docker.import_image(ImportImageOptions::default(), body_full(archive.into()), None);
        answers
            .try_for_each(|_| async { Ok(()) })
            .await
            .map_err(operation_failed("load an image archive"))
    }

    /// Streams an archive from disk into the engine without its tags, which could rename an image that other programs
    /// on the machine use.
    ///
    /// # Errors
    /// The file cannot be read, or the engine failed.
    pub async fn load_untagged(&self, path: &Path) -> Result<(), EngineError> {
        let unreadable = |source| EngineError::Archive {
            path: path.display().to_string(),
            source,
        };
        let file = std::fs::File::open(path).map_err(|error| unreadable(error.into()))?;
        let (reader, writer) = tokio::io::duplex(1 << 20);
        let writer = SyncIoBridge::new(writer);
        let rewriting = tokio::task::spawn_blocking(move || without_tags(file, writer));
        let docker = self.docker.clone().with_timeout(LOAD_LIMIT);
        let answers =
            docker.import_image_stream(ImportImageOptions::default(), ReaderStream::new(reader), None);
        let loaded = answers.try_for_each(|_| async { Ok(()) }).await;
        match rewriting.await {
            Ok(Ok(())) => loaded.map_err(operation_failed("load an image archive")),
            // The engine closed the connection first: its own error has the reason.
            Ok(Err(ArchiveError::Io(error))) if error.kind() == std::io::ErrorKind::BrokenPipe => {
                loaded.map_err(operation_failed("load an image archive"))
            }
            Ok(Err(error)) => Err(unreadable(error)),
            Err(_) => Err(EngineError::Incomplete("the whole archive")),
        }
    }

    /// Creates a container.
    ///
    /// # Errors
    /// The engine failed.
    pub async fn create(&self, name: &str, mut body: ContainerCreateBody) -> Result<(), EngineError> {
        if let Some(podman) = &self.podman {
            let rewritten = podman.rewrite(&mut body);
            rewritten.map_err(|err| operation_failed(CREATE)(ApiError::IOError { err }))?;
        }
        let options = CreateContainerOptions {
            name: Some(name.to_owned()),
            ..CreateContainerOptions::default()
        };
        let created = self
            .docker
            .create_container(Some(options), body)
            .await
            .map_err(operation_failed(CREATE))?;
        for warning in created.warnings {
            tracing::warn!(
                container = name,
                warning,
                "the engine gave a warning about a new container"
            );
        }
        Ok(())
    }

    /// The output of a container from its start on. Call it before [`ContainerEngine::start`].
    ///
    /// # Errors
    /// The engine failed.
    pub async fn attach(&self, name: &str) -> Result<OutputStream, EngineError> {
        let options = AttachContainerOptions {
            stdout: true,
            stderr: true,
            stream: true,
            ..AttachContainerOptions::default()
        };
        let attached = self.docker.attach_container(name, Some(options)).await;
        let AttachContainerResults { output, input: _ } =
            attached.map_err(operation_failed("attach to a container"))?;
        Ok(output.boxed())
    }

    /// The same as [`ContainerEngine::attach`], with the container's standard input.
    ///
    /// # Errors
    /// The engine failed.
    pub async fn attach_with_input(&self, name: &str) -> Result<(OutputStream, InputSink), EngineError> {
        let options = AttachContainerOptions {
            stdin: true,
            stdout: true,
            stderr: true,
            stream: true,
            ..AttachContainerOptions::default()
        };
        let attached = self.docker.attach_container(name, Some(options)).await;
        let AttachContainerResults { output, input } =
            attached.map_err(operation_failed("attach to a container"))?;
        Ok((output.boxed(), input))
    }

    /// The engine's copy of what a container prints.
    /// The stream has the errors of reading.
    pub fn read_output(&self, name: &str, wanted: KeptOutput) -> BoxStream<'_, Result<LogOutput, ApiError>> {
        let options = LogsOptions {
            follow: wanted != KeptOutput::SoFar,
            stdout: true,
            stderr: true,
            tail: match wanted {
                KeptOutput::SoFar | KeptOutput::Whole => "all".to_owned(),
                KeptOutput::FromNow => "0".to_owned(),
            },
            ..LogsOptions::default()
        };
        self.docker.logs(name, Some(options)).boxed()
    }

    /// Whether a container of this name exists, and whether it was ever started.
    ///
    /// # Errors
    /// The engine failed.
    pub async fn find_stage(&self, name: &str) -> Result<ContainerStage, EngineError> {
        let inspected = match self.docker.inspect_container(name, None).await {
            Ok(inspected) => inspected,
            Err(ApiError::DockerResponseServerError { status_code: 404, .. }) => {
                return Ok(ContainerStage::Absent);
            }
            Err(error) => return Err(operation_failed("inspect a container")(error)),
        };
        let state = inspected.state.and_then(|state| state.status);
        Ok(if state == Some(ContainerStateStatusEnum::CREATED) {
            ContainerStage::Created
        } else {
            ContainerStage::Started
        })
    }

    /// Whether the engine's containers go on while the engine itself is away.
    ///
    /// # Errors
    /// The engine failed.
    pub async fn keeps_containers(&self) -> Result<bool, EngineError> {
        let info = self
            .docker
            .info()
            .await
            .map_err(operation_failed("ask the engine about itself"))?;
        Ok(info.live_restore_enabled.unwrap_or_default())
    }

    /// Starts a container.
    ///
    /// # Errors
    /// The engine failed; [`EngineError::answer`] shows whose fault it is.
    pub async fn start(&self, name: &str) -> Result<(), EngineError> {
        self.docker
            .start_container(name, None)
            .await
            .map_err(operation_failed(START))
    }

    /// Waits until a container ends and returns its exit code, which may be any number.
    ///
    /// # Errors
    /// The engine failed.
    pub async fn wait(&self, name: &str) -> Result<i64, EngineError> {
        let mut answers = Box::pin(self.docker.wait_container(name, None::<WaitContainerOptions>));
        match answers.next().await {
            Some(Ok(ended)) => Ok(ended.status_code),
            Some(Err(ApiError::DockerContainerWaitError { code, .. })) => Ok(code),
            Some(Err(error)) => Err(operation_failed("wait for a container")(error)),
            None => Err(EngineError::HungUp("wait for a container")),
        }
    }

    /// How a container ended. Call it once [`ContainerEngine::wait`] has returned.
    ///
    /// # Errors
    /// The engine failed.
    pub async fn inspect_exit(&self, name: &str) -> Result<ContainerExit, EngineError> {
        let inspected = self
            .docker
            .inspect_container(name, None)
            .await
            .map_err(operation_failed("inspect a container"))?;
        let state = inspected
            .state
            .ok_or(EngineError::Incomplete("the container's state"))?;
        Ok(ContainerExit {
            code: state.exit_code.ok_or(EngineError::Incomplete("an exit code"))?,
            oom_killed: state.oom_killed.unwrap_or_default(),
        })
    }

    /// The use of the machine by the running container of this name; `None` for one that does not run.
    ///
    /// # Errors
    /// The engine failed.
    pub async fn usage(&self, name: &str) -> Result<Option<ContainerUsage>, EngineError> {
        // One sample, without the pause after which the engine could report a difference.
        let options = StatsOptions {
            stream: false,
            one_shot: true,
        };
        let mut answers = Box::pin(self.docker.stats(name, Some(options)));
        let stats = match answers.next().await {
            Some(Ok(stats)) => stats,
            Some(Err(ApiError::DockerResponseServerError { status_code: 404, .. })) | None => {
                return Ok(None);
            }
            Some(Err(error)) => return Err(operation_failed("measure a container")(error)),
        };
        let cpu = stats.cpu_stats.and_then(|cpu| cpu.cpu_usage?.total_usage);
        let memory = stats.memory_stats.unwrap_or_default();
        let cache = memory.stats.as_ref().and_then(|stats| {
            // cgroup v2, and v1.
            let inactive = stats
                .get("inactive_file")
                .or_else(|| stats.get("total_inactive_file"));
            inactive.copied()
        });
        Ok(memory.usage.map(|used| ContainerUsage {
            cpu: Duration::from_nanos(cpu.unwrap_or_default()),
            memory: used.saturating_sub(cache.unwrap_or_default()),
        }))
    }

    /// The running container of this name, if there is one.
    ///
    /// # Errors
    /// The engine failed.
    pub async fn find_running(&self, name: &str) -> Result<Option<RunningContainer>, EngineError> {
        let inspected = match self.docker.inspect_container(name, None).await {
            Ok(inspected) => inspected,
            Err(ApiError::DockerResponseServerError { status_code: 404, .. }) => return Ok(None),
            Err(error) => return Err(operation_failed("inspect a container")(error)),
        };
        let state = inspected.state.unwrap_or_default();
        let pid = state
            .pid
            .and_then(|pid| i32::try_from(pid).ok())
            .filter(|pid| *pid > 0);
        let running = state.running.unwrap_or_default();
        Ok(match (inspected.id, pid) {
            (Some(id), Some(pid)) if running => Some(RunningContainer { id, pid }),
            (Some(_) | None, Some(_) | None) => None,
        })
    }

    /// Sends a signal to the program of a container. A container that is gone or has ended is no error.
    ///
    /// # Errors
    /// The engine failed.
    pub async fn signal(&self, name: &str, signal: &str) -> Result<(), EngineError> {
        let options = KillContainerOptions {
            signal: format!("SIG{signal}"),
        };
        let sent = self.docker.kill_container(name, Some(options)).await;
        match sent {
            // It has ended meanwhile.
            Err(ApiError::DockerResponseServerError { status_code: 409, .. }) => Ok(()),
            sent => ignore_absent(sent, "signal a container"),
        }
    }

    /// Asks a container to end and kills it after `grace`. A container that is gone or has ended is no error.
    ///
    /// # Errors
    /// The engine failed.
    pub async fn stop(&self, name: &str, grace: Duration) -> Result<(), EngineError> {
        let seconds = i32::try_from(grace.as_secs()).unwrap_or(i32::MAX);
        let options = StopContainerOptions {
            t: Some(seconds),
            ..StopContainerOptions::default()
        };
        ignore_absent(
            self.docker.stop_container(name, Some(options)).await,
            "stop a container",
        )
    }

    /// Kills and removes a container and its anonymous volumes. A container that is gone is no error.
    ///
    /// # Errors
    /// The engine failed.
    pub async fn remove(&self, name: &str) -> Result<(), EngineError> {
        let options = RemoveContainerOptions {
            v: true,
            force: true,
            link: false,
        };
        ignore_absent(
            self.docker.remove_container(name, Some(options)).await,
            "remove a container",
        )
    }

    /// A tar archive of the files at `path` in a container, running or not; `None` if there are none. Reading stops
    /// once more than `limit` bytes have come, so a longer archive is truncated.
    ///
    /// # Errors
    /// The engine failed.
    pub async fn read_archive(
        &self,
        name: &str,
        path: &str,
        limit: usize,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let options = DownloadFromContainerOptions {
            path: path.to_owned(),
        };
        let mut pieces = Box::pin(self.docker.download_from_container(name, Some(options)));
        let mut archive = Vec::new();
        while let Some(piece) = pieces.next().await {
            match piece {
                Ok(piece) => archive.extend_from_slice(&piece),
                Err(ApiError::DockerResponseServerError { status_code: 404, .. }) => return Ok(None),
                Err(error) => return Err(operation_failed("read files of a container")(error)),
            }
            if archive.len() > limit {
                break;
            }
        }
        Ok(Some(archive))
    }

    /// Names of all containers, running or not, that carry `label` (`name` or `name=value`).
    ///
    /// # Errors
    /// The engine failed.
    pub async fn list_labelled(&self, label: &str) -> Result<Vec<String>, EngineError> {
        let filters = HashMap::from([("label".to_owned(), vec![label.to_owned()])]);
        let options = ListContainersOptions {
            all: true,
            filters: Some(filters),
            ..ListContainersOptions::default()
        };
        let found = self
            .docker
            .list_containers(Some(options))
            .await
            .map_err(operation_failed("list containers"))?;
        let names = found
            .into_iter()
            .filter_map(|container| container.names?.into_iter().next());
        Ok(names
            .map(|name| name.trim_start_matches('/').to_owned())
            .collect())
    }
}

/// Re-encodes the credentials of a request: the engine reads them in the URL-safe alphabet of base64, but the client
/// library writes the standard one. A password whose encodings differ would be misread.
fn reencode_credentials(mut request: BollardRequest) -> BollardRequest {
    if let Some(credentials) = request.headers_mut().get_mut("X-Registry-Auth") {
        let translated: Vec<u8> = credentials
            .as_bytes()
            .iter()
            .map(|byte| match byte {
                b'+' => b'-',
                b'/' => b'_',
                other => *other,
            })
            .collect();
        if let Ok(translated) = HeaderValue::from_bytes(&translated) {
            *credentials = translated;
        }
    }
    request
}

/// Whether an engine cannot bound what a container uses: it has no root, and version 1 of control groups gives it none.
/// Docker says that it has no root, and podman 4.3 does not: the `user` whose process listens on its socket shows it.
fn has_no_limits(about: &SystemInfo, user: Option<u32>) -> bool {
    let mut options = about.security_options.iter().flatten();
    let lacks_root =
        options.any(|option| option.starts_with("name=rootless")) || user.is_some_and(|user| user != 0);
    lacks_root && about.cgroup_version == Some(SystemInfoCgroupVersionEnum::_1)
}

/// Whether the engine's images lie in containerd's store, by the lines in which it describes its storage driver.
fn is_containerd_store(driver_status: &[Vec<String>]) -> bool {
    let is_snapshotter = |line: &Vec<String>| {
        let [name, value] = line.as_slice() else {
            return false;
        };
        name == "driver-type" && value.starts_with("io.containerd.snapshotter.")
    };
    driver_status.iter().any(is_snapshotter)
}

/// Whether a text can be the name or id of an image. Stricter than the engine's own grammar only in the length.
pub fn is_image_name(text: &str) -> bool {
    let ordinary = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte);
    (1..=512).contains(&text.len())
        && text.bytes().all(ordinary)
        && text.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

pub(crate) fn operation_failed(operation: &'static str) -> impl FnOnce(ApiError) -> EngineError {
    move |source| EngineError::Failed { operation, source }
}

fn ignore_absent(answer: Result<(), ApiError>, operation: &'static str) -> Result<(), EngineError> {
    match answer {
        // 304: the container has ended already; 404: there is none; 409: its removal is already under way.
        Ok(())
        | Err(ApiError::DockerResponseServerError {
            status_code: 304 | 404 | 409,
            ..
        }) => Ok(()),
        Err(error) => Err(operation_failed(operation)(error)),
    }
}

#[cfg(test)]
mod tests {
    use muster_process::Coded as _;
    use muster_protocol::ErrorCode;

    use super::*;

    #[test]
    fn an_engine_without_root_has_no_limits_on_control_groups_of_version_1() {
        let about = |option: &str, version| SystemInfo {
            security_options: Some(vec!["name=seccomp,profile=default".to_owned(), option.to_owned()]),
            cgroup_version: Some(version),
            ..SystemInfo::default()
        };
        use SystemInfoCgroupVersionEnum::{_1 as FIRST, _2 as SECOND};
        assert!(has_no_limits(&about("name=rootless", FIRST), None));
        assert!(!has_no_limits(&about("name=rootless", SECOND), Some(1000)));
        // podman 4.3 as a user's and as root's.
        assert!(has_no_limits(&about("name=apparmor", FIRST), Some(1000)));
        assert!(!has_no_limits(&about("name=apparmor", FIRST), Some(0)));
        assert!(!has_no_limits(&SystemInfo::default(), Some(1000)));
    }

    #[test]
    fn names_that_would_change_the_request_are_not_names() {
        for good in [
            "alpine",
            "alpine:3.19",
            "ghcr.io/a/b@sha256:00",
            "sha256:abc",
            "localhost:5000/x_y-z",
        ] {
            assert!(is_image_name(good), "{good}");
        }
        let long = "a".repeat(513);
        for bad in [
            "",
            "a b",
            "a?x=1",
            "../containers/json",
            "a/../b",
            "a//b",
            "/a",
            "a%2e",
            "ä",
            "a\n",
            &long,
        ] {
            assert!(!is_image_name(bad), "{bad}");
        }
    }

    #[test]
    fn the_store_of_containerd_is_known_by_its_driver() {
        let line = |name: &str, value: &str| vec![name.to_owned(), value.to_owned()];
        assert!(is_containerd_store(&[line(
            "driver-type",
            "io.containerd.snapshotter.v1"
        )]));
        let overlay2 = [
            line("Backing Filesystem", "extfs"),
            line("Supports d_type", "true"),
            line("Native Overlay Diff", "true"),
            line("userxattr", "false"),
        ];
        assert!(!is_containerd_store(&overlay2));
        assert!(!is_containerd_store(&[]));
    }

    #[tokio::test]
    async fn an_engine_that_is_not_there_says_how_to_get_one() {
        let error = ContainerEngine::connect("unix:///nonexistent/docker.sock")
            .await
            .unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::EngineUnreachable));
        let text = error.to_string();
        let page = ErrorCode::EngineUnreachable.page();
        for command in [
            "sudo apt-get install -y docker.io containerd runc iptables",
            "sudo systemctl start docker",
            "sudo usermod -aG docker \"$USER\"",
        ] {
            assert!(
                text.contains(command) && page.contains(command),
                "{command}: {text}"
            );
        }
    }
}

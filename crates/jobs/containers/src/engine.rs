//! The Docker engine, as far as an executor needs it. Every call names what it was doing when it fails.

use std::collections::HashMap;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use bollard::container::{AttachContainerResults, LogOutput};
use bollard::errors::Error as ApiError;
use bollard::models::{ContainerCreateBody, ImageConfig};
use bollard::query_parameters::{
    AttachContainerOptions, CreateContainerOptions, DownloadFromContainerOptions, ImportImageOptions,
    ListContainersOptions, RemoveContainerOptions, StopContainerOptions, WaitContainerOptions,
};
use bollard::{BollardRequest, Docker, body_full};
use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use hyper::header::HeaderValue;
use muster_process::Coded;
use muster_protocol::{ErrorCode, ImageId};
use tokio::io::AsyncWrite;
use tokio_util::io::{ReaderStream, SyncIoBridge};

use crate::archive::{ArchiveError, without_tags};

/// A large image takes its time; nothing else does.
const LOAD_LIMIT: Duration = Duration::from_secs(1_800);
/// How to get an engine, as on the page of E0001.
const HOW_TO_GET_ONE: &str = "sudo apt-get install -y docker.io containerd runc iptables; \
    sudo systemctl start docker (without systemd: sudo dockerd &); sudo usermod -aG docker \"$USER\", then log in again";

/// What the engine could not do.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// It does not answer.
    #[error("no docker engine answers at {address}; to get one: {HOW_TO_GET_ONE}")]
    Unreachable {
        /// Where it was looked for.
        address: String,
        /// Why not.
        source: ApiError,
    },
    /// It answered, but not with what was asked for.
    #[error("the docker engine could not {operation}")]
    Failed {
        /// What was asked for.
        operation: &'static str,
        /// Its answer.
        source: ApiError,
    },
    /// An archive that cannot be read.
    #[error("image archive {path} cannot be loaded")]
    Archive {
        /// Where it should be.
        path: String,
        /// Why not.
        source: ArchiveError,
    },
    /// It ended the connection in the middle of an answer.
    #[error("the docker engine hung up when asked to {0}")]
    HungUp(&'static str),
    /// An answer that lacks what the API promises.
    #[error("the docker engine answered without {0}")]
    Incomplete(&'static str),
}

impl EngineError {
    /// The engine's own words where it refused the request itself (4xx): usually the fault of what was asked.
    pub fn refusal(&self) -> Option<&str> {
        match self {
            Self::Failed {
                source: ApiError::DockerResponseServerError { status_code, message },
                ..
            } if (400..500).contains(status_code) => Some(message),
            Self::Failed { .. }
            | Self::Unreachable { .. }
            | Self::Archive { .. }
            | Self::HungUp(_)
            | Self::Incomplete(_) => None,
        }
    }
}

impl Coded for EngineError {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Unreachable { .. } => Some(ErrorCode::EngineUnreachable),
            Self::Failed { .. } | Self::Archive { .. } | Self::HungUp(_) | Self::Incomplete(_) => None,
        }
    }
}

/// A connection to an engine. Clones share it.
#[derive(Clone, Debug)]
pub struct Engine {
    docker: Docker,
    version: String,
}

/// An image that the engine has.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalImage {
    /// Its id by the engine.
    pub id: ImageId,
    /// Who runs it; empty for root.
    pub user: String,
    /// `NAME=value`.
    pub environment: Vec<String>,
    /// Folders it declares as volumes.
    pub volumes: Vec<String>,
    /// The program that it always starts, with its first arguments.
    pub entrypoint: Vec<String>,
    /// The arguments that a job's own replace.
    pub command: Vec<String>,
    /// The digests it has in registries, as `registry/repository@sha256:…`.
    pub manifests: Vec<String>,
    /// Bytes that it takes.
    pub size: u64,
}

impl LocalImage {
    /// An image of which nothing but the id is known: run by root, no variables, no volumes.
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

/// A container that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// The engine's own name for it.
    pub id: String,
    /// Its first process, as this machine counts them.
    pub pid: i32,
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Exit code; 128 + signal if it was killed.
    pub code: i64,
    /// The kernel killed it for using too much memory.
    pub oom_killed: bool,
}

/// What a container prints, as it comes: stdout and stderr apart.
pub type OutputStream = BoxStream<'static, Result<LogOutput, ApiError>>;
/// Where a container reads from.
pub type InputSink = Pin<Box<dyn AsyncWrite + Send>>;

impl Engine {
    /// Connects and agrees on a version of the API. `address` is `unix://…` or `tcp://…`; empty for `DOCKER_HOST` or
    /// the usual socket.
    ///
    /// # Errors
    /// [`EngineError::Unreachable`], with the commands that get one.
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
            .with_request_modifier(in_the_engines_alphabet);
        let docker = docker.negotiate_version().await.map_err(unreachable)?;
        let version = docker.version().await.map_err(unreachable)?.version;
        let version = version.ok_or(EngineError::Incomplete("its version"))?;
        Ok(Self { docker, version })
    }

    pub(crate) fn docker(&self) -> &Docker {
        &self.docker
    }

    /// The engine's own version, for example `20.10.24`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether it still answers.
    ///
    /// # Errors
    /// It does not.
    pub async fn ping(&self) -> Result<(), EngineError> {
        self.docker
            .ping()
            .await
            .map(|_| ())
            .map_err(failed("answer a ping"))
    }

    /// An image by name or `sha256:` id; `None` if the engine does not have it.
    ///
    /// # Errors
    /// Anything but a plain "no such image".
    pub async fn image(&self, name: &str) -> Result<Option<LocalImage>, EngineError> {
        if !is_image_name(name) {
            // Such a text would be part of the request's path.
            return Ok(None);
        }
        let found = match self.docker.inspect_image(name).await {
            Ok(found) => found,
            Err(ApiError::DockerResponseServerError { status_code: 404, .. }) => return Ok(None),
            Err(error) => return Err(failed("look for an image")(error)),
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

    /// Loads an archive from memory, for example one written by [`crate::archive`].
    ///
    /// # Errors
    /// The engine's.
    pub async fn load(&self, archive: impl Into<Bytes>) -> Result<(), EngineError> {
        let docker = self.docker.clone().with_timeout(LOAD_LIMIT);
        let answers = docker.import_image(ImportImageOptions::default(), body_full(archive.into()), None);
        answers
            .try_for_each(|_| async { Ok(()) })
            .await
            .map_err(failed("load an image archive"))
    }

    /// Loads an archive from disk without holding it in memory, and without its tags: they could give a name that others
    /// use to another image.
    ///
    /// # Errors
    /// The file's or the engine's.
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
            Ok(Ok(())) => loaded.map_err(failed("load an image archive")),
            // The engine hung up first: its own reason says more.
            Ok(Err(ArchiveError::Io(error))) if error.kind() == std::io::ErrorKind::BrokenPipe => {
                loaded.map_err(failed("load an image archive"))
            }
            Ok(Err(error)) => Err(unreadable(error)),
            Err(_) => Err(EngineError::Incomplete("the whole archive")),
        }
    }

    /// Creates a container.
    ///
    /// # Errors
    /// The engine's.
    pub async fn create(&self, name: &str, body: ContainerCreateBody) -> Result<(), EngineError> {
        let options = CreateContainerOptions {
            name: Some(name.to_owned()),
            ..CreateContainerOptions::default()
        };
        let created = self
            .docker
            .create_container(Some(options), body)
            .await
            .map_err(failed("create a container"))?;
        for warning in created.warnings {
            tracing::warn!(container = name, warning, "the engine warns");
        }
        Ok(())
    }

    /// What the container prints from its start on. To be called before [`Engine::start`].
    ///
    /// # Errors
    /// The engine's.
    pub async fn attach(&self, name: &str) -> Result<OutputStream, EngineError> {
        let options = AttachContainerOptions {
            stdout: true,
            stderr: true,
            stream: true,
            ..AttachContainerOptions::default()
        };
        let attached = self.docker.attach_container(name, Some(options)).await;
        let AttachContainerResults { output, input: _ } =
            attached.map_err(failed("attach to a container"))?;
        Ok(output.boxed())
    }

    /// Likewise, with its standard input.
    ///
    /// # Errors
    /// The engine's.
    pub async fn attach_with_input(&self, name: &str) -> Result<(OutputStream, InputSink), EngineError> {
        let options = AttachContainerOptions {
            stdin: true,
            stdout: true,
            stderr: true,
            stream: true,
            ..AttachContainerOptions::default()
        };
        let attached = self.docker.attach_container(name, Some(options)).await;
        let AttachContainerResults { output, input } = attached.map_err(failed("attach to a container"))?;
        Ok((output.boxed(), input))
    }

    /// Starts it.
    ///
    /// # Errors
    /// The engine's; [`EngineError::refusal`] where the image's program cannot be run.
    pub async fn start(&self, name: &str) -> Result<(), EngineError> {
        self.docker
            .start_container(name, None)
            .await
            .map_err(failed("start a container"))
    }

    /// Waits until it ends. Another exit code than 0 is a result like any other.
    ///
    /// # Errors
    /// The engine's.
    pub async fn wait(&self, name: &str) -> Result<i64, EngineError> {
        let mut answers = Box::pin(self.docker.wait_container(name, None::<WaitContainerOptions>));
        match answers.next().await {
            Some(Ok(ended)) => Ok(ended.status_code),
            Some(Err(ApiError::DockerContainerWaitError { code, .. })) => Ok(code),
            Some(Err(error)) => Err(failed("wait for a container")(error)),
            None => Err(EngineError::HungUp("wait for a container")),
        }
    }

    /// How it ended, once it has.
    ///
    /// # Errors
    /// The engine's.
    pub async fn ended(&self, name: &str) -> Result<Ended, EngineError> {
        let inspected = self
            .docker
            .inspect_container(name, None)
            .await
            .map_err(failed("inspect a container"))?;
        let state = inspected
            .state
            .ok_or(EngineError::Incomplete("the container's state"))?;
        Ok(Ended {
            code: state.exit_code.ok_or(EngineError::Incomplete("an exit code"))?,
            oom_killed: state.oom_killed.unwrap_or_default(),
        })
    }

    /// Which container of this name runs now, if one does.
    ///
    /// # Errors
    /// The engine's.
    pub async fn running(&self, name: &str) -> Result<Option<Running>, EngineError> {
        let inspected = match self.docker.inspect_container(name, None).await {
            Ok(inspected) => inspected,
            Err(ApiError::DockerResponseServerError { status_code: 404, .. }) => return Ok(None),
            Err(error) => return Err(failed("inspect a container")(error)),
        };
        let state = inspected.state.unwrap_or_default();
        let pid = state
            .pid
            .and_then(|pid| i32::try_from(pid).ok())
            .filter(|pid| *pid > 0);
        let running = state.running.unwrap_or_default();
        Ok(match (inspected.id, pid) {
            (Some(id), Some(pid)) if running => Some(Running { id, pid }),
            (Some(_) | None, Some(_) | None) => None,
        })
    }

    /// Asks it to end and kills it after `grace`. A container that is gone or has ended is no error.
    ///
    /// # Errors
    /// The engine's.
    pub async fn stop(&self, name: &str, grace: Duration) -> Result<(), EngineError> {
        let seconds = i32::try_from(grace.as_secs()).unwrap_or(i32::MAX);
        let options = StopContainerOptions {
            t: Some(seconds),
            ..StopContainerOptions::default()
        };
        absent_is_fine(
            self.docker.stop_container(name, Some(options)).await,
            "stop a container",
        )
    }

    /// Kills and removes it with the volumes it made. A container that is gone is no error.
    ///
    /// # Errors
    /// The engine's.
    pub async fn remove(&self, name: &str) -> Result<(), EngineError> {
        let options = RemoveContainerOptions {
            v: true,
            force: true,
            link: false,
        };
        absent_is_fine(
            self.docker.remove_container(name, Some(options)).await,
            "remove a container",
        )
    }

    /// A tar archive of what lies at `path` in a container, running or not; `None` if nothing does. Reading stops once
    /// more than `limit` bytes have come, so that an answer longer than that is cut somewhere.
    ///
    /// # Errors
    /// The engine's.
    pub async fn archive_of(
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
                Err(error) => return Err(failed("read files of a container")(error)),
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
    /// The engine's.
    pub async fn labelled(&self, label: &str) -> Result<Vec<String>, EngineError> {
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
            .map_err(failed("list containers"))?;
        let names = found
            .into_iter()
            .filter_map(|container| container.names?.into_iter().next());
        Ok(names
            .map(|name| name.trim_start_matches('/').to_owned())
            .collect())
    }
}

/// The engine reads credentials in the alphabet of base64 that is made for addresses, the client library writes them in
/// the other: a password would be lost wherever the two differ.
fn in_the_engines_alphabet(mut request: BollardRequest) -> BollardRequest {
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

/// Whether a text can be the name or id of an image. Narrower than the engine's own grammar in length only.
pub fn is_image_name(text: &str) -> bool {
    let ordinary = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte);
    (1..=512).contains(&text.len())
        && text.bytes().all(ordinary)
        && text.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

pub(crate) fn failed(operation: &'static str) -> impl FnOnce(ApiError) -> EngineError {
    move |source| EngineError::Failed { operation, source }
}

fn absent_is_fine(answer: Result<(), ApiError>, operation: &'static str) -> Result<(), EngineError> {
    match answer {
        // 304: it has ended already; 404: there is none; 409: its removal is already under way.
        Ok(())
        | Err(ApiError::DockerResponseServerError {
            status_code: 304 | 404 | 409,
            ..
        }) => Ok(()),
        Err(error) => Err(failed(operation)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[tokio::test]
    async fn an_engine_that_is_not_there_says_how_to_get_one() {
        let error = Engine::connect("unix:///nonexistent/docker.sock")
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

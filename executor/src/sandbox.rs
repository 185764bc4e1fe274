//! From a job to the container that holds it: a pure function, so that what a job may do can be read in one place.
//!
//! What a job gets: no network but its own loopback, no capability, no new privileges, a read-only root, tmpfs where
//! programs expect to write, bounded memory, processors and processes, no devices, the system calls of `seccomp.json`.
//! What it shares with the machine: its own folders under the executor's `work_dir`, and GPUs for GPU classes.
//!
//! A tmpfs hides what the image has at its place. `/tmp`, `/var/tmp`, `/run` and the folders that an image declares as
//! volumes always start empty. The home folder of the image's user starts empty only where the image keeps nothing in it
//! (see `home.rs`); where it keeps anything, say a model in `~/.cache`, the job finds that there and cannot write beside
//! it. Such a job points its programs elsewhere, for example with `HOME=/tmp`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use bollard::models::{
    ContainerCreateBody, DeviceRequest, HealthConfig, HostConfig, HostConfigLogConfig, Mount, MountType,
    ResourcesUlimits,
};
use indexmap::IndexMap;
use muster_protocol::wire::miner::{JobRequest, OptionsPreset};
use muster_protocol::{AttemptId, ExecutorClass, ExecutorToken, ImageId};

use crate::config::Allowance;
use crate::engine::LocalImage;

/// The label that names the attempt a container serves.
pub const LABEL_ATTEMPT: &str = "muster.attempt";
/// The label every container of an executor carries; its value is the folder of the job.
pub const LABEL_EXECUTOR: &str = "muster.executor";

/// The system calls a job may make, in the structure that Docker documents for `--security-opt seccomp=`.
const SECCOMP: &str = include_str!("../seccomp.json");
const SCRIPT: &str = "/script.py";
/// Where programs expect to be able to write.
const SCRATCH: [&str; 3] = ["/tmp", "/var/tmp", "/run"];
/// Folders that must not be covered by a mount of the job's choosing.
const SYSTEM: [&str; 9] = [
    "/proc", "/sys", "/dev", "/bin", "/sbin", "/lib", "/lib64", "/usr", "/etc",
];

/// Why a job cannot be put into a container: its user's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    /// A folder that cannot be mounted.
    #[error(
        "artifacts_dir {0:?} must be an absolute path of plain components outside the system's own folders"
    )]
    ArtifactsDir(String),
    /// A name that cannot stand in an environment.
    #[error(
        "the environment variable {0:?} has a name that is empty or holds '=' or NUL, or a value that holds NUL"
    )]
    Environment(String),
}

/// The folders of one job on the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFolders {
    /// The root of the others.
    pub root: PathBuf,
    /// Mounted at `/volume`.
    pub volume: PathBuf,
    /// Mounted at `/output`.
    pub output: PathBuf,
    /// Mounted at `/specs`, as ComputeHorde's jobs expect.
    pub specs: PathBuf,
    /// Mounted at the job's `artifacts_dir`.
    pub artifacts: PathBuf,
    /// The job's script, if it brought one.
    pub script: PathBuf,
}

/// Everything a container is made of.
#[derive(Clone, Copy, Debug)]
pub struct Sealed<'a> {
    /// The credential of the lease; the container's name is made of it, as ComputeHorde's tools expect.
    pub token: &'a ExecutorToken,
    /// What to run.
    pub job: &'a JobRequest,
    /// The image, by content: a tag may change under a running job.
    pub image: &'a LocalImage,
    /// The home folder of the image's user, if the image keeps nothing there.
    pub bare_home: Option<&'a str>,
    /// The class offered.
    pub class: ExecutorClass,
    /// What it may use.
    pub allowance: Allowance,
    /// Where it reads and writes.
    pub folders: &'a JobFolders,
    /// The runtime of jobs without a GPU; empty for the engine's default.
    pub runtime: &'a str,
}

/// The name of the container of a lease.
pub fn container_name(token: &ExecutorToken) -> String {
    format!("ch-{token}-job")
}

impl JobFolders {
    /// The folders under `root`. Nothing is made.
    pub fn under(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            volume: root.join("volume"),
            output: root.join("output"),
            specs: root.join("specs"),
            artifacts: root.join("artifacts"),
            script: root.join("script.py"),
        }
    }
}

/// The job's `artifacts_dir` as a plain absolute path; `None` if it has none.
///
/// # Errors
/// A path that is relative, climbs, or covers a folder of the system.
pub fn artifacts_dir(job: &JobRequest) -> Result<Option<String>, SandboxError> {
    let Some(text) = job.artifacts_dir.as_deref().filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let refused = || SandboxError::ArtifactsDir(text.chars().take(200).collect());
    let trimmed = text.trim_end_matches('/');
    let parts = trimmed.strip_prefix('/').ok_or_else(refused)?;
    let plain =
        |part: &str| !matches!(part, "" | "." | "..") && part.len() <= 255 && !part.contains(['\0', '\n']);
    let system = SYSTEM.iter().any(|folder| within(trimmed, folder));
    if !parts.split('/').all(plain) || trimmed.len() > 1_024 || system {
        return Err(refused());
    }
    Ok(Some(trimmed.to_owned()))
}

/// Whether a folder is one of the job's other mounts itself, so that its artifacts lie in there.
pub fn artifacts_folder<'a>(folders: &'a JobFolders, artifacts_dir: &str) -> &'a Path {
    match artifacts_dir {
        "/volume" => &folders.volume,
        "/output" => &folders.output,
        "/specs" => &folders.specs,
        _ => &folders.artifacts,
    }
}

impl Sealed<'_> {
    /// The container.
    ///
    /// # Errors
    /// What the job asks for cannot be put into one.
    pub fn container(&self) -> Result<ContainerCreateBody, SandboxError> {
        Ok(ContainerCreateBody {
            image: Some(self.image.id.to_string()),
            hostname: Some("job".to_owned()),
            cmd: self.command(),
            env: Some(environment(&self.job.env)?),
            labels: Some(labels(self.job.job_uuid, &self.folders.root)),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            network_disabled: Some(true),
            // A health check would be a second program, started by the engine for as long as the job runs.
            healthcheck: Some(HealthConfig {
                test: Some(vec!["NONE".to_owned()]),
                ..HealthConfig::default()
            }),
            host_config: Some(self.host()?),
            ..ContainerCreateBody::default()
        })
    }

    fn host(&self) -> Result<HostConfig, SandboxError> {
        let mounts = self.mounts()?;
        let gpu = self.has_gpu();
        let runtime = if gpu { "nvidia" } else { self.runtime };
        let limits = self.allowance;
        Ok(HostConfig {
            network_mode: Some("none".to_owned()),
            ipc_mode: Some("private".to_owned()),
            cap_drop: Some(vec!["ALL".to_owned()]),
            security_opt: Some(vec![
                "no-new-privileges:true".to_owned(),
                format!("seccomp={SECCOMP}"),
            ]),
            privileged: Some(false),
            readonly_rootfs: Some(true),
            tmpfs: Some(self.scratch(&mounts)),
            mounts: Some(mounts),
            memory: Some(limits.memory),
            // The same number: no swap.
            memory_swap: Some(limits.memory),
            nano_cpus: Some(limits.nano_cpus),
            pids_limit: Some(limits.pids),
            shm_size: Some(limits.shm.min(limits.memory)),
            ulimits: Some(vec![no_core_dumps()]),
            // Output is taken from the attached streams; the engine keeps no copy that could fill the disk.
            log_config: Some(HostConfigLogConfig {
                typ: Some("none".to_owned()),
                config: None,
            }),
            runtime: (!runtime.is_empty()).then(|| runtime.to_owned()),
            device_requests: gpu.then(|| vec![every_gpu()]),
            ..HostConfig::default()
        })
    }

    fn has_gpu(&self) -> bool {
        match self.job.docker_run_options_preset {
            OptionsPreset::NvidiaAll => self.class.has_gpu(),
            OptionsPreset::None | OptionsPreset::Unknown => false,
        }
    }

    /// `None` leaves the image's own command in force.
    fn command(&self) -> Option<Vec<String>> {
        match (self.job.docker_run_cmd.is_empty(), &self.job.raw_script) {
            (false, _) => Some(self.job.docker_run_cmd.clone()),
            (true, Some(_)) => Some(vec!["python".to_owned(), SCRIPT.to_owned()]),
            (true, None) => None,
        }
    }

    fn mounts(&self) -> Result<Vec<Mount>, SandboxError> {
        let folders = self.folders;
        // Writable, as in ComputeHorde, whose jobs unpack and cache beside their inputs. The copy is this attempt's own.
        let mut mounts = vec![
            bind(&folders.volume, "/volume"),
            bind(&folders.output, "/output"),
            bind(&folders.specs, "/specs"),
        ];
        if let Some(target) = artifacts_dir(self.job)? {
            let source = artifacts_folder(folders, &target);
            if source == folders.artifacts {
                mounts.push(bind(source, &target));
            }
        }
        if self.job.raw_script.is_some() {
            mounts.push(Mount {
                read_only: Some(true),
                ..bind(&folders.script, SCRIPT)
            });
        }
        Ok(mounts)
    }

    /// tmpfs by path. Counted as the job's memory.
    fn scratch(&self, mounts: &[Mount]) -> HashMap<String, String> {
        let options = format!("rw,exec,nosuid,nodev,mode=1777,size={}", self.allowance.tmpfs);
        let taken = |path: &str| mounts.iter().any(|mount| mount.target.as_deref() == Some(path));
        // A volume that the image declares would be an unbounded folder on the engine's disk.
        let declared = self
            .image
            .volumes
            .iter()
            .filter(|path| path.starts_with('/'))
            .cloned();
        let paths = SCRATCH
            .map(str::to_owned)
            .into_iter()
            .chain(self.bare_home.map(str::to_owned))
            .chain(declared);
        paths
            .filter(|path| !taken(path))
            .map(|path| (path, options.clone()))
            .collect()
    }
}

/// By which a container is found again.
pub(crate) fn labels(attempt: AttemptId, folder: &Path) -> HashMap<String, String> {
    HashMap::from([
        (LABEL_ATTEMPT.to_owned(), attempt.to_string()),
        (LABEL_EXECUTOR.to_owned(), folder.display().to_string()),
    ])
}

/// The home folder of the image's user, as far as it can be told without looking into the image.
pub(crate) fn home_of(image: &LocalImage) -> Option<String> {
    let declared = image
        .environment
        .iter()
        .find_map(|line| line.strip_prefix("HOME="));
    let user = image.user.split(':').next().unwrap_or_default();
    let home = match (declared, user) {
        (Some(home), _) => home.trim_end_matches('/').to_owned(),
        (None, "" | "root" | "0") => "/root".to_owned(),
        (None, number) if number.bytes().all(|byte| byte.is_ascii_digit()) => return None,
        (None, name) => format!("/home/{name}"),
    };
    let plain = home.starts_with('/')
        && home
            .split('/')
            .skip(1)
            .all(|part| !matches!(part, "" | "." | ".."));
    let system = SYSTEM.iter().any(|folder| within(&home, folder));
    (plain && !system).then_some(home)
}

fn within(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn environment(given: &IndexMap<String, String>) -> Result<Vec<String>, SandboxError> {
    let line = |(name, value): (&String, &String)| {
        let refused = name.is_empty() || name.contains(['=', '\0']) || value.contains('\0');
        if refused {
            Err(SandboxError::Environment(name.chars().take(100).collect()))
        } else {
            Ok(format!("{name}={value}"))
        }
    };
    given.iter().map(line).collect()
}

fn bind(source: &Path, target: &str) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(source.display().to_string()),
        target: Some(target.to_owned()),
        read_only: Some(false),
        ..Mount::default()
    }
}

fn no_core_dumps() -> ResourcesUlimits {
    ResourcesUlimits {
        name: Some("core".to_owned()),
        soft: Some(0),
        hard: Some(0),
    }
}

fn every_gpu() -> DeviceRequest {
    DeviceRequest {
        count: Some(-1),
        capabilities: Some(vec![vec!["gpu".to_owned()]]),
        ..DeviceRequest::default()
    }
}

/// The name of an image as its id says it, for messages.
pub fn image_label(name: &str, id: ImageId) -> String {
    if name == id.to_string() {
        name.to_owned()
    } else {
        format!("{name} ({id})")
    }
}

#[cfg(test)]
mod tests;

//! Builds a job's container from the job's requirements: a pure function, so that all permissions of a job can be read
//! in one place.
//!
//! A job has no network but its own loopback, no capability, no new privileges, a read-only root, tmpfs for scratch
//! space, bounded memory, processors and processes, no devices, and the system calls of `seccomp.json`. It shares with
//! the machine only the folders that are bound into it, and GPUs for GPU classes.
//!
//! The files of an image stay in the folders that its jobs may write to (`/tmp`, `/var/tmp`, `/run`, the home of its
//! user, and the folders that it declares as volumes): see [`crate::image_folders`].
//!
//! A class may give organic jobs a writable root: a layer of the engine that is removed with the container, whose size
//! [`crate::disk::watch_root`] bounds. Whitelisted images run as a fixed user that owns nothing on the machine.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use bollard::models::{
    ContainerCreateBody, DeviceRequest, HealthConfig, HostConfig, HostConfigLogConfig, Mount, MountType,
    ResourcesUlimits,
};
use muster_protocol::AttemptId;
use serde::Deserialize;

use crate::docker_engine::LocalImage;
use crate::host_files::{HOST_NAME, HostFiles};
use crate::image_folders::{FolderMount, ImageFolders};
use crate::laid_files::laid_at;

/// The label with the attempt that a container serves.
pub const LABEL_ATTEMPT: &str = "muster.attempt";
/// The label that every container of an executor carries; its value is the path of the job's folder.
pub const LABEL_EXECUTOR: &str = "muster.executor";

/// The system calls a job may make, in the structure that Docker documents for `--security-opt seccomp=`.
const SECCOMP: &str = include_str!("../seccomp.json");
/// User and group of whitelisted images.
const NOBODY: &str = "65532:65532";
/// Folders that a mount chosen by the job must not cover.
const SYSTEM: [&str; 9] = [
    "/proc", "/sys", "/dev", "/bin", "/sbin", "/lib", "/lib64", "/usr", "/etc",
];
/// Folders of the kernel, in which an image keeps nothing.
const KERNEL: [&str; 3] = ["/proc", "/sys", "/dev"];
/// The most volumes of an image: each is looked at, and mounted.
const MAX_VOLUMES: usize = 128;
/// The longest name of a file on Linux, in bytes.
const MAX_NAME: usize = 255;
/// The longest path on Linux, in bytes (`PATH_MAX`, without the zero at its end).
const MAX_PATH: usize = 4_095;

/// A job that cannot be put into a container: its user's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    /// The job's `artifacts_dir` cannot be mounted.
    #[error(
        "artifacts_dir {0:?} must be an absolute path of plain components outside the system's own folders"
    )]
    ArtifactsDir(String),
    /// A variable's name or value is not possible in an environment.
    #[error(
        "the environment variable {0:?} has a name that is empty or holds '=' or NUL, or a value that holds NUL"
    )]
    Environment(String),
    /// The image declares its whole root as a volume.
    #[error(
        "the image declares / as a volume, with which no engine starts a container; take VOLUME / out of it"
    )]
    RootVolume,
    /// The image declares very many volumes.
    #[error("the image declares {0} volumes; {MAX_VOLUMES} are taken")]
    Volumes(usize),
    /// The image declares a volume whose path no file system has.
    #[error(
        "the image declares a volume with too long a path: {0:?}…; a name may have {MAX_NAME} bytes, a path {MAX_PATH}"
    )]
    LongVolume(String),
}

/// The resource limits of one job, in the engine's units; computed by the executor from the job's class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceLimits {
    /// Processor time, in billionths of a processor.
    pub nano_cpus: i64,
    /// Memory in bytes, tmpfs and shared memory included.
    pub memory: i64,
    /// Shared memory, in bytes.
    pub shm: i64,
    /// Size of each tmpfs, in bytes.
    pub tmpfs: u64,
    /// Number of processes and threads.
    pub pids: i64,
    /// Disk space, in bytes.
    pub disk: u64,
}

/// A folder or file of the machine that is mounted into a job's container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// Absolute path on the engine's machine.
    pub source: PathBuf,
    /// Absolute path in the container.
    pub target: String,
    /// Whether the job may write to it.
    pub writable: bool,
}

/// The engine's copy of a job's output: its files, and the MiB of each. Older output is gone.
const LOG_FILES: u32 = 2;
const LOG_FILE_MIB: u32 = 32;

/// The user that runs the job's program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunAs {
    /// The image's user: often root, but without root's capabilities.
    #[default]
    Image,
    /// A user and group without any files or processes on the machine; for whitelisted images.
    Nobody,
}

/// Whether the job may write to the root of its container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// The root is read-only.
    ReadOnly,
    /// The root is a layer that is removed with the container. Its size must be watched.
    Writable,
}

/// The GPUs of the machine that a job gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gpus<'a> {
    /// The job gets no GPU.
    None,
    /// All GPUs that the engine finds.
    All,
    /// The GPUs with these UUIDs (`GPU-…` as the driver writes them), and no other device node.
    Selected(&'a [String]),
}

/// All properties of a job's container.
#[derive(Clone, Debug)]
pub struct Sandbox<'a> {
    /// The image, by id, because a tag may change while the job runs.
    pub image: &'a LocalImage,
    /// The job's arguments; `None` for the image's default arguments.
    pub command: Option<Vec<String>>,
    /// Names and values of the job's variables.
    pub environment: Vec<(&'a str, &'a str)>,
    /// The folders and files that the job shares with the machine.
    pub binds: Vec<Bind>,
    /// The files at `/etc/hosts` and `/etc/hostname`, which must exist.
    pub host_files: &'a HostFiles,
    /// The labels by which the executor finds the container again.
    pub labels: HashMap<String, String>,
    /// The image's folders that the job may write to.
    pub image_folders: &'a ImageFolders,
    /// The folder into which files of the image were laid for this job.
    pub image_files: &'a Path,
    /// The resource limits.
    pub allowance: ResourceLimits,
    /// The OCI runtime; empty for the engine's default.
    pub runtime: &'a str,
    /// The GPUs that the job gets.
    pub gpus: Gpus<'a>,
    /// The user that runs the job's program.
    pub run_as: RunAs,
    /// Whether the root is writable.
    pub root: Root,
}

// === impl Sandbox ===

impl Sandbox<'_> {
    /// The request that creates the container.
    ///
    /// # Errors
    /// A variable of the job or a volume of the image is not possible in a container.
    pub fn container(&self) -> Result<ContainerCreateBody, SandboxError> {
        check_volumes(self.image)?;
        Ok(ContainerCreateBody {
            image: Some(self.image.id.to_string()),
            hostname: Some(HOST_NAME.to_owned()),
            cmd: self.command.clone(),
            env: Some(self.environment()?),
            user: match self.run_as {
                RunAs::Image => None,
                RunAs::Nobody => Some(NOBODY.to_owned()),
            },
            labels: Some(self.labels.clone()),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            network_disabled: Some(true),
            // A health check would be a second program, which the engine starts again and again while the job runs.
            healthcheck: Some(HealthConfig {
                test: Some(vec!["NONE".to_owned()]),
                ..HealthConfig::default()
            }),
            host_config: Some(self.host()),
            ..ContainerCreateBody::default()
        })
    }

    fn host(&self) -> HostConfig {
        let limits = self.allowance;
        HostConfig {
            network_mode: Some("none".to_owned()),
            ipc_mode: Some("private".to_owned()),
            cap_drop: Some(vec!["ALL".to_owned()]),
            security_opt: Some(vec![
                "no-new-privileges:true".to_owned(),
                format!("seccomp={SECCOMP}"),
            ]),
            privileged: Some(false),
            readonly_rootfs: Some(self.root == Root::ReadOnly),
            tmpfs: Some(self.scratch()),
            mounts: Some(self.mounts()),
            memory: Some(limits.memory),
            // The same number as the memory: no swap.
            memory_swap: Some(limits.memory),
            nano_cpus: Some(limits.nano_cpus),
            pids_limit: Some(limits.pids),
            shm_size: Some(limits.shm.min(limits.memory)),
            ulimits: Some(vec![no_core_dumps()]),
            // The output comes from the attached streams. The engine keeps a bounded copy for an executor that takes
            // the place of a dead one.
            log_config: Some(HostConfigLogConfig {
                typ: Some("local".to_owned()),
                config: Some(HashMap::from([
                    ("max-size".to_owned(), format!("{LOG_FILE_MIB}m")),
                    ("max-file".to_owned(), LOG_FILES.to_string()),
                    ("compress".to_owned(), "false".to_owned()),
                ])),
            }),
            runtime: (!self.runtime.is_empty()).then(|| self.runtime.to_owned()),
            device_requests: self.device_request().map(|request| vec![request]),
            ..HostConfig::default()
        }
    }

    /// The variables in the engine's form. Variables that steer the GPU toolkit's hook or the loader are taken out
    /// beside a GPU: the user's are dropped, the image's are unset by a name without a value.
    fn environment(&self) -> Result<Vec<String>, SandboxError> {
        let gpu = self.gpus != Gpus::None;
        let kept: Vec<_> = self
            .environment
            .iter()
            .filter(|(name, value)| !(gpu && steers_gpus(name, value)))
            .copied()
            .collect();
        let mut lines = environment(&kept)?;
        if gpu {
            let of_image = self
                .image
                .environment
                .iter()
                .filter_map(|line| line.split_once('='));
            let steering = of_image.filter(|(name, value)| steers_gpus(name, value));
            lines.extend(steering.map(|(name, _)| name.to_owned()));
        }
        let home = |(name, _): &(&str, &str)| *name == "HOME";
        if self.run_as == RunAs::Nobody && !self.environment.iter().any(home) {
            // The image's home folder, if there is one, belongs to the image's user.
            lines.push("HOME=/tmp".to_owned());
        }
        Ok(lines)
    }

    /// The request for GPUs. Given UUIDs, the engine's hook makes the nodes of these GPUs and no others. The `nvidia`
    /// runtime is not used: it would take the devices from the job's variables.
    fn device_request(&self) -> Option<DeviceRequest> {
        let (count, device_ids) = match self.gpus {
            Gpus::None => return None,
            Gpus::All => (Some(-1), None),
            Gpus::Selected(uuids) => (None, Some(uuids.to_vec())),
        };
        Some(DeviceRequest {
            driver: Some("nvidia".to_owned()),
            count,
            device_ids,
            capabilities: Some(vec![["gpu", "compute", "utility"].map(str::to_owned).to_vec()]),
            ..DeviceRequest::default()
        })
    }

    /// The places in the container at which nothing but the image's own folders may be mounted.
    fn image_mounts(&self) -> impl Iterator<Item = (String, FolderMount)> {
        let host_files = self.host_files.binds().map(|bind| bind.target);
        let mounts = self.image_folders.mounts(self.image, self.root, self.run_as);
        let free = move |path: &str| {
            self.binds.iter().all(|bind| bind.target != path) && !host_files.iter().any(|file| file == path)
        };
        // The engine compares the paths of mounts and volumes as they are, after it has cleaned those of volumes.
        mounts.into_iter().filter(move |(path, _)| free(path))
    }

    /// Options of the tmpfs mounts by path. They count as the job's memory.
    fn scratch(&self) -> HashMap<String, String> {
        let size = self.allowance.tmpfs;
        let tmpfs = self.image_mounts().filter_map(|(path, mount)| match mount {
            FolderMount::Tmpfs { owner, mode } => {
                let owner = match (owner.user, owner.group) {
                    (0, 0) => String::new(),
                    (user, group) => format!(",uid={user},gid={group}"),
                };
                let options = format!("rw,exec,nosuid,nodev,mode={mode:o},size={size}{owner}");
                Some((path, options))
            }
            FolderMount::Laid { .. } => None,
        });
        tmpfs.collect()
    }

    /// The mounts of folders and files.
    fn mounts(&self) -> Vec<Mount> {
        let laid = self.image_mounts().filter_map(|(path, mount)| match mount {
            FolderMount::Tmpfs { .. } => None,
            FolderMount::Laid { writable } => Some(Bind {
                source: laid_at(self.image_files, &path),
                target: path,
                writable,
            }),
        });
        let binds = self.binds.iter().cloned().chain(self.host_files.binds());
        binds.chain(laid).map(|bind| mount(&bind)).collect()
    }
}

/// Whether the engine can mount the volumes of an image.
pub(crate) fn check_volumes(image: &LocalImage) -> Result<(), SandboxError> {
    if image
        .volumes
        .iter()
        .any(|path| path.starts_with('/') && clean(path).is_none())
    {
        return Err(SandboxError::RootVolume);
    }
    let mut cleaned = image.volumes.iter().filter_map(|path| clean(path));
    if let Some(long) = cleaned.find(|path| is_too_long(path)) {
        return Err(SandboxError::LongVolume(long.chars().take(40).collect()));
    }
    match image.volumes.len() {
        0..=MAX_VOLUMES => Ok(()),
        more => Err(SandboxError::Volumes(more)),
    }
}

/// An absolute path without `.`, `..` and repeated slashes, as the engine reads the paths of volumes. `None` for the
/// root and for a relative path, neither of which the engine takes as a volume.
pub(crate) fn clean(path: &str) -> Option<String> {
    let mut parts = Vec::new();
    for part in path.strip_prefix('/')?.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    (!parts.is_empty()).then(|| format!("/{}", parts.join("/")))
}

/// Whether no file system of Linux can have this path.
pub(crate) fn is_too_long(path: &str) -> bool {
    path.len() > MAX_PATH || path.split('/').any(|name| name.len() > MAX_NAME)
}

/// The labels by which a job's container is found again: its attempt and its folder.
pub fn labels(attempt: AttemptId, folder: &Path) -> HashMap<String, String> {
    HashMap::from([
        (LABEL_ATTEMPT.to_owned(), attempt.to_string()),
        (LABEL_EXECUTOR.to_owned(), folder.display().to_string()),
    ])
}

/// Whether a path lies in one of the system's folders, which no job may cover.
pub fn is_system(path: &str) -> bool {
    SYSTEM.iter().any(|folder| lies_in(path, folder))
}

/// Whether a path is one of the system's folders itself.
pub(crate) fn is_system_folder(path: &str) -> bool {
    SYSTEM.contains(&path)
}

/// Whether a path lies in one of the kernel's folders.
pub(crate) fn is_kernel_folder(path: &str) -> bool {
    KERNEL.iter().any(|folder| lies_in(path, folder))
}

fn lies_in(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn environment(given: &[(&str, &str)]) -> Result<Vec<String>, SandboxError> {
    let line = |&(name, value): &(&str, &str)| {
        let refused = name.is_empty() || name.contains(['=', '\0']) || value.contains('\0');
        if refused {
            Err(SandboxError::Environment(name.chars().take(100).collect()))
        } else {
            Ok(format!("{name}={value}"))
        }
    };
    given.iter().map(line).collect()
}

fn mount(bind: &Bind) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(bind.source.display().to_string()),
        target: Some(bind.target.clone()),
        read_only: Some(!bind.writable),
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

/// Whether a variable steers the container toolkit or the dynamic loader. Hooks of the toolkit run on the machine, some
/// of them with the container's variables and with the image's root as their working folder, so a list of libraries'
/// folders passes only if each of them is one of the system's own: images for CUDA have such lists.
fn steers_gpus(name: &str, value: &str) -> bool {
    match name {
        "LD_LIBRARY_PATH" => !value.split([':', ';']).all(is_library_folder),
        "GLIBC_TUNABLES" => true,
        name => ["NVIDIA_", "CUDA_MPS_", "LD_"]
            .iter()
            .any(|family| name.starts_with(family)),
    }
}

/// Whether a path lies in a folder of libraries that only the machine's administrator may change.
fn is_library_folder(path: &str) -> bool {
    let plain = !path.contains('$') && path.split('/').all(|part| part != "..");
    let folders = ["/usr", "/lib", "/lib64", "/opt"];
    let inside = folders.iter().any(|folder| {
        path.strip_prefix(folder)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    });
    plain && inside
}

#[cfg(test)]
mod tests;

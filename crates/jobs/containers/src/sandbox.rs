//! From what a job asks for to the container that holds it: a pure function, so that what a job may do can be read in one
//! place.
//!
//! What a job gets: no network but its own loopback, no capability, no new privileges, a read-only root, tmpfs where
//! programs expect to write, bounded memory, processors and processes, no devices, the system calls of `seccomp.json`.
//! What it shares with the machine: the folders it is given, and GPUs for GPU classes.
//!
//! A tmpfs hides what the image has at its place. `/tmp`, `/var/tmp`, `/run` and the folders that an image declares as
//! volumes always start empty. The home folder of the image's user starts empty only where the image keeps nothing in it
//! (see [`crate::home`]); where it keeps anything, say a model in `~/.cache`, the job finds that there and cannot write
//! beside it. Such a job points its programs elsewhere, for example with `HOME=/tmp`.
//!
//! A class may give organic jobs a root they can write: a layer of the engine that goes with the container, whose size
//! [`crate::disk::watch_root`] bounds. Whitelisted images run as a fixed user who is nobody on the machine.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use bollard::models::{
    ContainerCreateBody, DeviceRequest, HealthConfig, HostConfig, HostConfigLogConfig, Mount, MountType,
    ResourcesUlimits,
};
use muster_protocol::AttemptId;
use serde::Deserialize;

use crate::engine::LocalImage;

/// The label that names the attempt a container serves.
pub const LABEL_ATTEMPT: &str = "muster.attempt";
/// The label every container of an executor carries; its value is the folder of the job.
pub const LABEL_EXECUTOR: &str = "muster.executor";

/// The system calls a job may make, in the structure that Docker documents for `--security-opt seccomp=`.
const SECCOMP: &str = include_str!("../seccomp.json");
/// User and group of whitelisted images.
const NOBODY: &str = "65532:65532";
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

/// What one job may use, in the engine's units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Billionths of a processor.
    pub nano_cpus: i64,
    /// Bytes, tmpfs and shared memory included.
    pub memory: i64,
    /// Bytes.
    pub shm: i64,
    /// Bytes, each.
    pub tmpfs: u64,
    /// Processes and threads.
    pub pids: i64,
    /// Bytes.
    pub disk: u64,
}

/// A folder or file of the machine that a job sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// Where it is on the engine's machine.
    pub source: PathBuf,
    /// Where the job finds it.
    pub target: String,
    /// Whether the job may change it.
    pub writable: bool,
}

/// Who runs the job's program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunAs {
    /// Who the image says: root, as often as not, without any of root's powers.
    #[default]
    Image,
    /// A user and group that nobody else has; for whitelisted images.
    Nobody,
}

/// Whether the job may write where the image lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// It may not.
    ReadOnly,
    /// It may, into a layer that goes with the container. Its size must be watched.
    Writable,
}

/// Which of the machine's GPUs a job gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gpus<'a> {
    /// None.
    None,
    /// All that the engine finds.
    All,
    /// Those with these UUIDs, `GPU-…` as the driver writes them, and no other device node.
    These(&'a [String]),
}

/// Everything a job's container is made of.
#[derive(Clone, Debug)]
pub struct Sandbox<'a> {
    /// The image, by content: a tag may change under a running job.
    pub image: &'a LocalImage,
    /// Arguments; `None` leaves the image's own in force.
    pub command: Option<Vec<String>>,
    /// Names and values of the job's variables.
    pub environment: Vec<(&'a str, &'a str)>,
    /// What it shares with the machine.
    pub binds: Vec<Bind>,
    /// By which it is found again.
    pub labels: HashMap<String, String>,
    /// The home folder of the image's user, if the image keeps nothing there.
    pub bare_home: Option<&'a str>,
    /// What it may use.
    pub allowance: Allowance,
    /// The OCI runtime; empty for the engine's default.
    pub runtime: &'a str,
    /// Which GPUs it gets.
    pub gpus: Gpus<'a>,
    /// Who runs its program.
    pub run_as: RunAs,
    /// Whether it may write into its root.
    pub root: Root,
}

// === impl Sandbox ===

impl Sandbox<'_> {
    /// The container.
    ///
    /// # Errors
    /// What the job asks for cannot be put into one.
    pub fn container(&self) -> Result<ContainerCreateBody, SandboxError> {
        Ok(ContainerCreateBody {
            image: Some(self.image.id.to_string()),
            hostname: Some("job".to_owned()),
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
            // A health check would be a second program, started by the engine for as long as the job runs.
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
            mounts: Some(self.binds.iter().map(mount).collect()),
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
            runtime: (!self.runtime.is_empty()).then(|| self.runtime.to_owned()),
            device_requests: self.device_request().map(|request| vec![request]),
            ..HostConfig::default()
        }
    }

    /// The variables, in the engine's form. Next to a GPU those go that the toolkit's hook or the loader would obey: the
    /// user's are dropped, the image's are taken away by a name without a value.
    fn environment(&self) -> Result<Vec<String>, SandboxError> {
        let gpu = self.gpus != Gpus::None;
        let kept: Vec<_> = self
            .environment
            .iter()
            .filter(|(name, _)| !(gpu && steers_gpus(name)))
            .copied()
            .collect();
        let mut lines = environment(&kept)?;
        if gpu {
            let names = self
                .image
                .environment
                .iter()
                .filter_map(|line| line.split('=').next());
            lines.extend(names.filter(|name| steers_gpus(name)).map(str::to_owned));
        }
        let home = |(name, _): &(&str, &str)| *name == "HOME";
        if self.run_as == RunAs::Nobody && !self.environment.iter().any(home) {
            // The image's home, if there is one, belongs to the image's user.
            lines.push("HOME=/tmp".to_owned());
        }
        Ok(lines)
    }

    /// By UUID the engine's hook makes the nodes of these GPUs and no others. The `nvidia` runtime is not used: it would
    /// ask the job's variables what to make.
    fn device_request(&self) -> Option<DeviceRequest> {
        let (count, device_ids) = match self.gpus {
            Gpus::None => return None,
            Gpus::All => (Some(-1), None),
            Gpus::These(uuids) => (None, Some(uuids.to_vec())),
        };
        Some(DeviceRequest {
            driver: Some("nvidia".to_owned()),
            count,
            device_ids,
            capabilities: Some(vec![["gpu", "compute", "utility"].map(str::to_owned).to_vec()]),
            ..DeviceRequest::default()
        })
    }

    /// tmpfs by path. Counted as the job's memory.
    fn scratch(&self) -> HashMap<String, String> {
        let options = format!("rw,exec,nosuid,nodev,mode=1777,size={}", self.allowance.tmpfs);
        let taken = |path: &str| self.binds.iter().any(|bind| bind.target == path);
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

/// By which a job's container is found again: its attempt and its folder.
pub fn labels(attempt: AttemptId, folder: &Path) -> HashMap<String, String> {
    HashMap::from([
        (LABEL_ATTEMPT.to_owned(), attempt.to_string()),
        (LABEL_EXECUTOR.to_owned(), folder.display().to_string()),
    ])
}

/// The home folder of the image's user, as far as it can be told without looking into the image.
pub fn home_of(image: &LocalImage) -> Option<String> {
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
    (plain && !is_system(&home)).then_some(home)
}

/// Whether a path lies in one of the folders that a system is made of, which no job may cover.
pub fn is_system(path: &str) -> bool {
    SYSTEM.iter().any(|folder| {
        path.strip_prefix(folder)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
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

/// Variables that the container toolkit or the loader of programs takes orders from.
fn steers_gpus(name: &str) -> bool {
    name.starts_with("NVIDIA_") || name.starts_with("CUDA_MPS_") || matches!(name, "LD_PRELOAD" | "LD_AUDIT")
}

#[cfg(test)]
mod tests;

//! An executor's configuration and what a class of jobs may use of the machine.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use indexmap::IndexMap;
use muster_containers::gpu::is_uuid;
use muster_containers::images::ImageSettings;
use muster_containers::sandbox::{Allowance, Root, RunAs};
use muster_job_data::Settings;
use muster_process::config::{Problem, RoleConfig};
use muster_protocol::{ExecutorClass, ImageId};
use serde::Deserialize;

use crate::attempt_state::Patience;

const MIB: u64 = 1024 * 1024;
/// The most that [`ArtifactLimits::max_total_mib`] may be: a result travels in one frame.
pub const MAX_ARTIFACTS_MIB: u64 = 16;

/// How an executor reaches its engine and what it allows a job.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The engine's address; empty for `DOCKER_HOST` or the usual socket.
    pub engine: String,
    /// Where the folders of running jobs are made.
    pub work_dir: PathBuf,
    /// Where images come from and how long they stay.
    pub images: ImageSettings,
    /// Images that run as a user of no rights (65532), whoever they say.
    pub whitelist: Vec<ImageId>,
    /// Which of the machine's GPUs jobs get.
    pub gpus: GpuSettings,
    /// Seconds for the miner to offer the job.
    pub startup_s: u64,
    /// Seconds an image may take to get ready, however it comes.
    pub pull_s: u64,
    /// Seconds a job has between being asked to stop and being killed.
    pub stop_grace_s: u64,
    /// The OCI runtime of jobs without a GPU; empty for the engine's default.
    pub runtime: String,
    /// What a job may use, whatever its class.
    pub limits: Limits,
    /// Other limits for some classes.
    pub class: IndexMap<ExecutorClass, Limits>,
    /// How large inputs may be.
    pub volumes: VolumeLimits,
    /// How much of a job's output travels inside its result.
    pub artifacts: ArtifactLimits,
    /// Inputs that are fetched and outputs that are uploaded.
    pub transfer: Settings,
    /// How much of what a job prints is kept on disk, of either stream, in MiB; 0 keeps nothing.
    pub log_mib: u64,
    /// Jobs that answer requests while they run.
    pub streaming: StreamingSettings,
    /// For an executor that stays connected.
    pub standing: Standing,
}

/// Where and for how long jobs that answer requests are reached.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StreamingSettings {
    /// The address of this machine that sessions listen on.
    pub address: IpAddr,
    /// The first of the ports that they take, one each; 0 for any that is free.
    pub first_port: u16,
    /// The last.
    pub last_port: u16,
    /// Seconds without a request after which a sealed session is over; 0 for none.
    pub idle_s: u64,
    /// Requests of one session at once.
    pub max_requests: usize,
    /// A socket that answers instead of the job's program. No file can set it: it is for showing that a validator finds out.
    #[serde(skip)]
    pub impostor: Option<PathBuf>,
}

/// What a standing executor is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Standing {
    /// The file that enrolling makes: its own key, and which miner is its.
    pub membership: PathBuf,
    /// Its class.
    pub class: ExecutorClass,
    /// Jobs at once.
    pub capacity: u32,
    /// Containers that wait for jobs.
    pub warm: Warm,
}

/// What one job may use.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Processors; 0 for all.
    pub cpus: f64,
    /// Memory in MiB, tmpfs included; 0 for four fifths of the machine's.
    pub memory_mib: u64,
    /// Shared memory in MiB, inside the above.
    pub shm_mib: u64,
    /// Each tmpfs in MiB, inside the above.
    pub tmpfs_mib: u64,
    /// Processes and threads.
    pub pids: i64,
    /// Everything it writes into `/volume`, `/output` and its artifacts, in MiB; and likewise into a root that it may write.
    pub disk_mib: u64,
    /// Whether it may write where its image lies, into a layer that goes with its container.
    pub writable_root: bool,
    /// Who runs its program.
    pub run_as: RunAs,
}

/// Which of the machine's GPUs jobs get.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GpuSettings {
    /// Their UUIDs; empty for all that the driver knows.
    pub devices: Vec<String>,
    /// How many a job gets; 0 for all of them.
    pub per_job: usize,
    /// Where the executors of this machine record who has which.
    pub claims_dir: PathBuf,
}

/// Containers that a standing executor starts before a job asks for them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Warm {
    /// How many at most; 0 for none.
    pub containers: usize,
    /// The program that keeps them; empty for `muster-hold` beside this program.
    pub holder: PathBuf,
    /// Seconds after which one that no job came for is removed.
    pub keep_s: u64,
}

/// How large inputs may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VolumeLimits {
    /// All files together, unpacked, in MiB.
    pub max_mib: u64,
    /// Files and folders.
    pub max_entries: usize,
}

/// How much output travels inside a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ArtifactLimits {
    /// All files together, in MiB before encoding, names included; at most [`MAX_ARTIFACTS_MIB`]. Each must also be smaller
    /// than 1 000 000 bytes.
    pub max_total_mib: u64,
}

/// What a job may do: from its class, its image and the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What it may use.
    pub allowance: Allowance,
    /// Who runs its program.
    pub run_as: RunAs,
    /// Whether it may write into its root.
    pub root: Root,
}

/// What this machine has, as far as limits depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Processors.
    pub cpus: u64,
    /// Memory in bytes.
    pub memory: u64,
}

// === impl Config ===

impl Default for Config {
    fn default() -> Self {
        Self {
            engine: String::new(),
            work_dir: PathBuf::from("/var/tmp/muster-executor"),
            images: ImageSettings::default(),
            whitelist: Vec::new(),
            gpus: GpuSettings::default(),
            startup_s: 300,
            pull_s: 1_200,
            stop_grace_s: 3,
            runtime: String::new(),
            limits: Limits::default(),
            class: IndexMap::new(),
            volumes: VolumeLimits::default(),
            artifacts: ArtifactLimits::default(),
            transfer: Settings::default(),
            log_mib: 256,
            streaming: StreamingSettings::default(),
            standing: Standing::default(),
        }
    }
}

impl Default for StreamingSettings {
    fn default() -> Self {
        Self {
            address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            first_port: 0,
            last_port: 0,
            idle_s: 3_600,
            max_requests: 1_024,
            impostor: None,
        }
    }
}

impl Default for Standing {
    fn default() -> Self {
        Self {
            membership: PathBuf::from("executor-membership.json"),
            class: ExecutorClass::AlwaysOnTest,
            capacity: 1,
            warm: Warm::default(),
        }
    }
}

impl Default for GpuSettings {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            per_job: 0,
            claims_dir: PathBuf::from("/var/tmp/muster-executor-gpus"),
        }
    }
}

impl Default for Warm {
    fn default() -> Self {
        Self {
            containers: 1,
            holder: PathBuf::new(),
            keep_s: 600,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            cpus: 0.0,
            memory_mib: 0,
            shm_mib: 1_024,
            tmpfs_mib: 1_024,
            pids: 4_096,
            disk_mib: 20_480,
            writable_root: false,
            run_as: RunAs::Image,
        }
    }
}

impl Default for VolumeLimits {
    fn default() -> Self {
        Self {
            max_mib: 2_048,
            max_entries: 100_000,
        }
    }
}

impl Default for ArtifactLimits {
    fn default() -> Self {
        Self { max_total_mib: 8 }
    }
}

impl Config {
    /// The limits of a class.
    pub fn limits_of(&self, class: ExecutorClass) -> Limits {
        self.class.get(&class).copied().unwrap_or(self.limits)
    }

    /// What a job of a class made of an image may do on this machine.
    pub fn policy(&self, class: ExecutorClass, image: ImageId, machine: Machine) -> Policy {
        let limits = self.limits_of(class);
        Policy {
            allowance: limits.on(machine),
            run_as: if self.whitelist.contains(&image) {
                RunAs::Nobody
            } else {
                limits.run_as
            },
            root: if limits.writable_root {
                Root::Writable
            } else {
                Root::ReadOnly
            },
        }
    }

    /// How long an attempt waits for what is not the job's own time.
    pub const fn patience(&self) -> Patience {
        Patience {
            offer: Duration::from_secs(self.startup_s),
            image: Duration::from_secs(self.pull_s),
            grace: self.stop_grace(),
        }
    }

    /// Between being asked to stop and being killed.
    pub const fn stop_grace(&self) -> Duration {
        Duration::from_secs(self.stop_grace_s)
    }
}

impl RoleConfig for Config {
    const COMMENTED_DEFAULT: &'static str = r#"# An executor runs one job in a sealed container. Every key may be left out; these are the defaults.

# The Docker engine: "unix:///path" or "tcp://host:port". Empty: DOCKER_HOST, or /var/run/docker.sock.
engine = ""

# Where the folders of running jobs are made. Absolute, on a disk with room for disk_mib; emptied after every job.
work_dir = "/var/tmp/muster-executor"

# Images (their ids, sha256:...) that run as a user of no rights (65532), whoever they say.
whitelist = []

# Seconds for the miner to offer the job; then, for the image to get ready, however it comes.
startup_s = 300
pull_s = 1200

# Seconds a job has between being asked to stop and being killed.
stop_grace_s = 3

# What a job prints, kept on disk while it runs, MiB of either stream; 0 keeps nothing. Results hold 1 000 000 characters.
log_mib = 256

# The OCI runtime of jobs without a GPU, for example "runsc". Empty: the engine's default.
runtime = ""

# What one job may use.
[limits]
# Processors; 0 for all of the machine's.
cpus = 0.0
# Memory in MiB, shared memory and tmpfs included; 0 for four fifths of the machine's. There is no swap.
memory_mib = 0
# /dev/shm in MiB.
shm_mib = 1024
# Each of /tmp, /var/tmp, /run and the home of the image's user, in MiB.
tmpfs_mib = 1024
# Processes and threads.
pids = 4096
# What it may write into /volume, /output and its artifacts, in MiB; and again as much into a root that it may write.
disk_mib = 20480
# Whether it may write where its image lies, into a layer that goes with its container.
writable_root = false
# Who runs its program: "image", whom the image names, or "nobody", user 65532.
run_as = "image"

# Other limits for a class; keys left out have the defaults above.
# [class."always_on.llm.a6000"]
# shm_mib = 16384

# Images.
[images]
# Archives (as `docker save` writes them) to load where a job's image is missing. Their tags are not taken over.
preload = []
# Names of images that a standing executor pulls before any job asks for them, and keeps.
prefetch = []
# Whether missing images are pulled from the registry that their name leads to.
pull = true
# A file that `docker login` has written, for registries not named below. Its credential helpers are not started.
docker_config = ""
# Where all executors of this machine record which images they use. Absolute.
cache_dir = "/var/tmp/muster-executor-images"
# Images that no executor has used for so many days are removed,
keep_days = 30
# and the longest unused of the rest once they take more MiB together.
keep_mib = 204800

# Who this executor is to a registry.
# [images.registries."ghcr.io"]
# username = "somebody"
# password = "a token that may read packages"

# For classes with GPUs.
[gpus]
# UUIDs as `nvidia-smi -L` lists them; empty for all that the driver knows.
devices = []
# How many a job gets; 0 for all of them.
per_job = 0
# Where all executors of this machine record who has which. Absolute.
claims_dir = "/var/tmp/muster-executor-gpus"

# Inputs.
[volumes]
# All files together, unpacked, in MiB.
max_mib = 2048
# Files and folders.
max_entries = 100000

# Small output files that travel inside the result.
[artifacts]
# All together in MiB, names included; at most 16. Each must also be smaller than 1 000 000 bytes; at most 1000 are taken.
max_total_mib = 8

# Inputs that are fetched and outputs that are uploaded.
[transfer]
# Hosts, addresses (127.0.0.1:8090 for one port only) and networks (CIDR) that jobs may reach although they are not on the
# public Internet.
allow = []
# Where inputs are kept for the next job, for all executors of this machine. Absolute.
cache_dir = "/var/tmp/muster-inputs"
# How much is kept, in MiB (0: nothing), and for how many hours after its last use.
cache_mib = 20480
cache_hours = 336
# The hub that huggingface_volume means, and its token for volumes that bring none: every user can read with it.
hub = "https://huggingface.co"
hub_token = ""
# All outputs of a job together, in MiB.
max_upload_mib = 2048

# Jobs that answer requests while they run. Each is served to one client, whose certificate came with the job.
[streaming]
# The address of this machine that they are reached at, and the ports, one for each; 0 takes any that is free.
address = "0.0.0.0"
first_port = 0
last_port = 0
# Seconds without a request after which a sealed session is over; 0 for none.
idle_s = 3600
# Requests of one session at once.
max_requests = 1024

# For muster executor --standing, which stays connected and takes one job after another.
[standing]
# The file that --enrol makes: this executor's key, and which miner is its. Nobody else may read it.
membership = "executor-membership.json"
# Its class, as the miner enrolled it, and how many jobs it runs at once.
class = "always_on.test"
capacity = 1

# Containers that a standing executor starts before a job asks: of the image, class and folders of its last job, held by a
# program of ours until the next job's own begins. None serves two jobs.
[standing.warm]
# How many at most; 0 for none.
containers = 1
# The program that holds them, static; empty for `muster-hold` beside this program. Where there is none, none is held.
holder = ""
# Seconds after which one that no job came for is removed.
keep_s = 600
"#;

    fn validate(&self) -> Vec<Problem> {
        let mut problems = self.limits.problems("limits");
        for (class, limits) in &self.class {
            problems.extend(limits.problems(&format!("class.\"{class}\"")));
        }
        let mut check = |fine: bool, path: &str, reason: &str| {
            if !fine {
                problems.push(Problem::at(path, reason));
            }
        };
        let address = self.engine.as_str();
        let known = ["unix://", "tcp://", "http://"]
            .iter()
            .any(|scheme| address.starts_with(scheme));
        check(
            address.is_empty() || known,
            "engine",
            "must be empty or begin with unix:// or tcp://",
        );
        check(
            self.work_dir.is_absolute(),
            "work_dir",
            "must be an absolute path: the engine mounts folders from it",
        );
        check(self.startup_s > 0, "startup_s", "must be at least 1");
        check(self.pull_s > 0, "pull_s", "must be at least 1");
        // The engine is given two minutes to answer.
        check(self.stop_grace_s <= 100, "stop_grace_s", "must be at most 100");
        check(self.log_mib <= 1 << 20, "log_mib", "must be at most 1048576");
        check(
            (1..=64).contains(&self.standing.capacity),
            "standing.capacity",
            "must be 1 to 64",
        );
        check(
            self.volumes.max_entries > 0,
            "volumes.max_entries",
            "must be at least 1",
        );
        check(
            self.artifacts.max_total_mib <= MAX_ARTIFACTS_MIB,
            "artifacts.max_total_mib",
            "must be at most 16: a result travels in one frame of 50 MiB",
        );
        check(
            self.gpus.claims_dir.is_absolute(),
            "gpus.claims_dir",
            "must be an absolute path, the same for all executors of this machine",
        );
        check(
            self.gpus.devices.iter().all(|uuid| is_uuid(uuid)),
            "gpus.devices",
            "must be UUIDs of GPUs as `nvidia-smi -L` lists them",
        );
        let known = self.gpus.devices.len();
        check(
            known == 0 || self.gpus.per_job <= known,
            "gpus.per_job",
            "must be at most as many as gpus.devices names",
        );
        check(
            self.standing.warm.containers <= 64,
            "standing.warm.containers",
            "must be at most 64",
        );
        check(
            self.standing.warm.keep_s > 0,
            "standing.warm.keep_s",
            "must be at least 1",
        );
        problems.extend(self.images.problems("images"));
        problems.extend(self.transfer.problems("transfer"));
        problems
    }
}

// === impl Limits ===

impl Limits {
    /// The smallest memory the engine accepts is 6 MiB.
    const LEAST_MEMORY_MIB: u64 = 16;

    fn problems(&self, table: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut check = |fine: bool, key: &str, reason: &str| {
            if !fine {
                problems.push(Problem::at(format!("{table}.{key}"), reason));
            }
        };
        check(
            self.cpus == 0.0 || (0.01..=4_096.0).contains(&self.cpus),
            "cpus",
            "must be 0 (all) or at least 0.01",
        );
        let memory = self.memory_mib == 0 || (Self::LEAST_MEMORY_MIB..=1 << 30).contains(&self.memory_mib);
        check(
            memory,
            "memory_mib",
            "must be 0 (four fifths of the machine's) or at least 16",
        );
        check(
            (1..=1 << 30).contains(&self.shm_mib),
            "shm_mib",
            "must be at least 1",
        );
        check(
            (1..=1 << 30).contains(&self.tmpfs_mib),
            "tmpfs_mib",
            "must be at least 1",
        );
        check(
            self.pids >= 1,
            "pids",
            "must be at least 1: a job without a limit can stop the machine",
        );
        check(
            (1..=1 << 30).contains(&self.disk_mib),
            "disk_mib",
            "must be at least 1",
        );
        problems
    }

    /// In the engine's units. A machine smaller than the limit gives what it has.
    pub fn on(&self, machine: Machine) -> Allowance {
        let share = machine.memory / 5 * 4;
        let memory = if self.memory_mib == 0 {
            share
        } else {
            self.memory_mib.saturating_mul(MIB)
        };
        let machine_nanos = machine.cpus.max(1).saturating_mul(1_000_000_000);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "validated to lie in 0..=4096"
        )]
        let asked_nanos = (self.cpus * 1e9) as u64;
        let nanos = if asked_nanos == 0 {
            machine_nanos
        } else {
            asked_nanos.min(machine_nanos)
        };
        Allowance {
            nano_cpus: signed(nanos),
            memory: signed(memory.max(Self::LEAST_MEMORY_MIB.saturating_mul(MIB))),
            shm: signed(self.shm_mib.saturating_mul(MIB)),
            tmpfs: self.tmpfs_mib.saturating_mul(MIB),
            pids: self.pids,
            disk: self.disk_mib.saturating_mul(MIB),
        }
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use muster_process::config::{commented_default, parse};

    use super::*;

    #[test]
    fn the_commented_defaults_are_the_defaults() {
        assert_eq!(commented_default::<Config>().unwrap(), Config::default());
    }

    #[test]
    fn everything_wrong_is_said_at_once() {
        let text = "engine = \"ssh://x\"\nwork_dir = \"relative\"\n[gpus]\ndevices = [\"0\"]\nclaims_dir = \"x\"\n\
            [images]\ncache_dir = \"x\"\nprefetch = [\"A B\"]\n[class.\"always_on.test\"]\npids = 0\ncpus = -1.0\n[artifacts]\nmax_total_mib = 17\n";
        let errors = parse::<Config>(text, "executor.toml").unwrap_err().to_string();
        for named in [
            "engine",
            "work_dir",
            "artifacts.max_total_mib",
            "gpus.devices",
            "gpus.claims_dir",
            "images.cache_dir",
            "images.prefetch",
            "class.\"always_on.test\".pids",
            "class.\"always_on.test\".cpus",
        ] {
            assert!(errors.contains(named), "{named} missing in {errors}");
        }
    }

    #[test]
    fn what_is_said_of_images_is_what_the_engine_says() {
        assert!(Config::COMMENTED_DEFAULT.contains(ImageSettings::COMMENTED));
    }

    #[test]
    fn a_class_may_write_its_root_and_whitelisted_images_run_as_nobody() {
        let id = ImageId(muster_protocol::Digest::of(b"known"));
        let text = format!(
            "whitelist = [\"{id}\"]\n[class.\"always_on.llm.a6000\"]\nwritable_root = true\n[class.\"always_on.cpu.8c.16gb\"]\nrun_as = \"nobody\"\n"
        );
        let config = parse::<Config>(&text, "executor.toml").unwrap();
        let other = ImageId(muster_protocol::Digest::of(b"other"));
        let machine = Machine {
            cpus: 2,
            memory: 1_000 * MIB,
        };
        let policy = |class, image| {
            let policy = config.policy(class, image, machine);
            (policy.run_as, policy.root)
        };
        let (test, gpu) = (ExecutorClass::AlwaysOnTest, ExecutorClass::AlwaysOnLlmA6000);
        assert_eq!(policy(test, other), (RunAs::Image, Root::ReadOnly));
        assert_eq!(policy(test, id), (RunAs::Nobody, Root::ReadOnly));
        assert_eq!(policy(gpu, other), (RunAs::Image, Root::Writable));
        let cpu = ExecutorClass::AlwaysOnCpu8c16Gb;
        assert_eq!(policy(cpu, other), (RunAs::Nobody, Root::ReadOnly));
    }

    #[test]
    fn a_class_has_its_own_limits_and_the_machine_bounds_them() {
        let text = "[limits]\ncpus = 1.5\n[class.\"always_on.llm.a6000\"]\ncpus = 64.0\nmemory_mib = 100\n";
        let config = parse::<Config>(text, "executor.toml").unwrap();
        let machine = Machine {
            cpus: 2,
            memory: 1_000 * MIB,
        };
        let test = config.limits_of(ExecutorClass::AlwaysOnTest).on(machine);
        assert_eq!((test.nano_cpus, test.memory), (1_500_000_000, signed(800 * MIB)));
        let gpu = config.limits_of(ExecutorClass::AlwaysOnLlmA6000).on(machine);
        assert_eq!((gpu.nano_cpus, gpu.memory), (2_000_000_000, signed(100 * MIB)));
    }
}

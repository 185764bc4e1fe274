//! The configuration of an executor.

mod config_tables;
mod limits;

use std::path::{Path, PathBuf};
use std::time::Duration;

use indexmap::IndexMap;
use muster_containers::gpu::is_uuid;
use muster_containers::image_settings::ImageSettings;
use muster_containers::sandbox::{Root, RunAs};
use muster_containers::sized_disk;
use muster_job_data::Settings;
use muster_process::config::{ConfigFolder, Problem, RoleConfig};
use muster_process::private_folder;
use muster_protocol::{ExecutorClass, ImageId};
use serde::Deserialize;

pub use self::config_tables::{
    ArtifactLimits, MAX_ARTIFACTS_MIB, PersistentSettings, StreamingSettings, VolumeLimits, WarmSettings,
};
use self::limits::MAX_OUTPUT_MIB;
pub use self::limits::{Limits, Policy};
use crate::attempt_state::WaitLimits;
pub use crate::machine::gpu::GpuSettings;
pub use crate::machine::specs::MachineSize;

/// The configuration of an executor.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The folder from which relative paths count; empty for the folder of the configuration file.
    pub state_dir: PathBuf,
    /// The address of the Docker engine; empty for `DOCKER_HOST` or the usual socket.
    pub engine: String,
    /// The folder in which the folders of running jobs are made.
    pub work_dir: PathBuf,
    /// How a job's use of the disk is bounded.
    pub disk_bound: DiskBound,
    /// MiB that stay free on the disk of `work_dir`; with less, no job begins and running jobs are stopped.
    pub disk_reserve_mib: u64,
    /// Where images come from and how long they stay.
    pub images: ImageSettings,
    /// Images that run as a user without rights (65532), whatever user they name.
    pub whitelist: Vec<ImageId>,
    /// Which of the machine's GPUs jobs get.
    pub gpus: GpuSettings,
    /// Seconds in which the miner must offer the job.
    pub startup_s: u64,
    /// The most seconds for an image to be pulled or loaded.
    pub pull_s: u64,
    /// How long a job goes on without its miner, in seconds.
    pub orphan_s: u64,
    /// Seconds a job has between being asked to stop and being killed.
    pub stop_grace_s: u64,
    /// The OCI runtime of jobs without a GPU; empty for the engine's default.
    pub runtime: String,
    /// The program that collects the output of a container as `PROGRAM executor collect`; `None` where this process
    /// collects it itself. No key of the configuration: the binary sets itself.
    #[serde(skip)]
    pub collector: Option<PathBuf>,
    /// The limits of a job, unless `class` says otherwise.
    pub limits: Limits,
    /// Limits of single classes.
    pub class: IndexMap<ExecutorClass, Limits>,
    /// How large inputs may be.
    pub volumes: VolumeLimits,
    /// How much of a job's output travels inside its result.
    pub artifacts: ArtifactLimits,
    /// Fetching inputs and uploading outputs.
    pub transfer: Settings,
    /// The older name of [`Limits::output_mib`], for all classes; `None` in configurations of today.
    pub log_mib: Option<u64>,
    /// Streaming jobs, which answer requests while they run.
    pub streaming: StreamingSettings,
    /// For a persistent executor. The table keeps its older name `standing`.
    #[serde(rename = "standing", alias = "persistent")]
    pub persistent: PersistentSettings,
}

/// How jobs' use of the disk is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskBound {
    /// By a file system of a fixed size for each job where the machine allows it, else by measuring.
    Auto,
    /// By measuring the job's folders every second.
    Watched,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            state_dir: PathBuf::new(),
            engine: String::new(),
            work_dir: private_folder::usual_place("executor"),
            disk_bound: DiskBound::Auto,
            disk_reserve_mib: 1_024,
            images: ImageSettings::default(),
            whitelist: Vec::new(),
            gpus: GpuSettings::default(),
            startup_s: 300,
            pull_s: 3_600,
            orphan_s: 120,
            stop_grace_s: 3,
            runtime: String::new(),
            collector: None,
            limits: Limits::default(),
            class: IndexMap::new(),
            volumes: VolumeLimits::default(),
            artifacts: ArtifactLimits::default(),
            transfer: Settings::default(),
            log_mib: None,
            streaming: StreamingSettings::default(),
            persistent: PersistentSettings::default(),
        }
    }
}

impl Config {
    /// The limits of a class.
    pub fn limits_of(&self, class: ExecutorClass) -> Limits {
        self.class.get(&class).copied().unwrap_or(self.limits)
    }

    /// While this file is there, a persistent executor takes no more jobs.
    pub fn drain_file(&self) -> PathBuf {
        self.work_dir.join("drain")
    }

    /// Where an executor that takes no more jobs writes how many it still has.
    pub fn drained_file(&self) -> PathBuf {
        self.work_dir.join("drained")
    }

    /// The folders of this machine that no message to a user names, as absolute paths.
    pub fn own_folders(&self) -> Vec<String> {
        let named = [
            &self.work_dir,
            &self.images.cache_dir,
            &self.images.docker_config,
            &self.transfer.cache_dir,
            &self.persistent.membership,
        ];
        let folders = named.into_iter().chain(&self.images.preload);
        let set = folders.filter(|folder| !folder.as_os_str().is_empty());
        set.filter_map(|folder| std::path::absolute(folder).ok())
            .map(|folder| folder.display().to_string())
            .filter(|folder| folder != "/")
            .collect()
    }

    /// The policy for a job of this class and image on this machine.
    pub fn policy(&self, class: ExecutorClass, image: ImageId, machine: MachineSize) -> Policy {
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
            output: self.log_mib.unwrap_or(limits.output_mib).saturating_mul(1 << 20),
        }
    }

    /// The bytes of the file system of a job with this policy: beside what the job may write, its inputs lie there,
    /// packed and unpacked, and both printed streams. `None` where jobs have none.
    pub fn job_disk(&self, policy: &Policy) -> Option<u64> {
        let inputs = self.volumes.max_mib.saturating_mul(2 << 20);
        let own = inputs.saturating_add(policy.output.saturating_mul(2));
        let sized = self.disk_bound == DiskBound::Auto && sized_disk::shares_mounts(&self.engine);
        sized.then(|| policy.allowance.disk.saturating_add(own))
    }

    /// The bytes that stay free on the disk of `work_dir`.
    pub const fn disk_reserve(&self) -> u64 {
        self.disk_reserve_mib.saturating_mul(1 << 20)
    }

    /// The time limits that the operator sets.
    pub const fn wait_limits(&self) -> WaitLimits {
        WaitLimits {
            offer: Duration::from_secs(self.startup_s),
            image: Duration::from_secs(self.pull_s),
            grace: self.stop_grace(),
        }
    }

    /// The time that a program has between being asked to stop and being killed.
    pub const fn stop_grace(&self) -> Duration {
        Duration::from_secs(self.stop_grace_s)
    }
}

impl RoleConfig for Config {
    const COMMENTED_DEFAULT: &'static str = include_str!("config/default.toml");

    fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    // The other paths must be absolute.
    fn place_paths(&mut self, folder: &mut ConfigFolder) {
        for path in &mut self.images.preload {
            folder.place(path);
        }
        folder.place(&mut self.images.docker_config);
        folder.place_state("standing.membership", &mut self.persistent.membership);
        folder.place(&mut self.persistent.warm.holder);
    }

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
        // The engine must answer within two minutes, and it waits this long before it does.
        check(self.stop_grace_s <= 100, "stop_grace_s", "must be at most 100");
        check(self.orphan_s <= 3600, "orphan_s", "must be at most 3600");
        check(
            self.log_mib.unwrap_or_default() <= MAX_OUTPUT_MIB,
            "log_mib",
            "must be at most 1048576; its name is limits.output_mib now",
        );
        check(
            (1..=64).contains(&self.persistent.capacity),
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
            self.persistent.warm.containers <= 64,
            "standing.warm.containers",
            "must be at most 64",
        );
        check(
            self.persistent.warm.keep_s > 0,
            "standing.warm.keep_s",
            "must be at least 1",
        );
        problems.extend(self.images.problems("images"));
        problems.extend(self.transfer.problems("transfer"));
        problems
    }
}

#[cfg(test)]
mod tests {
    use muster_process::config::{commented_default, parse};

    use super::*;

    const MIB: u64 = 1024 * 1024;

    #[test]
    fn the_commented_defaults_are_the_defaults() {
        assert_eq!(commented_default::<Config>().unwrap(), Config::default());
    }

    #[test]
    fn all_faults_of_a_configuration_are_named_at_once() {
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
    fn the_text_on_images_is_that_of_the_crate_that_reads_it() {
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
        let machine = MachineSize {
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
        let machine = MachineSize {
            cpus: 2,
            memory: 1_000 * MIB,
        };
        let test = config.limits_of(ExecutorClass::AlwaysOnTest).on(machine);
        assert_eq!((test.nano_cpus, test.memory), (1_500_000_000, 800 << 20));
        let gpu = config.limits_of(ExecutorClass::AlwaysOnLlmA6000).on(machine);
        assert_eq!((gpu.nano_cpus, gpu.memory), (2_000_000_000, 100 << 20));
    }

    #[test]
    fn output_limit_has_an_older_name_and_counts_twice_in_the_jobs_disk() {
        let machine = MachineSize {
            cpus: 2,
            memory: 1_000 * MIB,
        };
        let policy = |text: &str, class| {
            let config = parse::<Config>(text, "executor.toml").unwrap();
            let policy = config.policy(class, ImageId(muster_protocol::Digest::of(b"x")), machine);
            (policy.output, config.job_disk(&policy))
        };
        let (test, gpu) = (ExecutorClass::AlwaysOnTest, ExecutorClass::AlwaysOnLlmA6000);
        let (usual, disk) = policy("", test);
        assert_eq!(usual, 1_024 * MIB);
        let (less, smaller) = policy("[limits]\noutput_mib = 24\n", test);
        assert_eq!(less, 24 * MIB);
        assert_eq!(disk.map(|disk| disk - 2_000 * MIB), smaller);
        assert_eq!(
            policy("log_mib = 24\n", gpu),
            policy("[limits]\noutput_mib = 24\n", gpu)
        );
        let of_class = "[class.\"always_on.llm.a6000\"]\noutput_mib = 7\n";
        assert_eq!(
            (policy(of_class, gpu).0, policy(of_class, test).0),
            (7 * MIB, usual)
        );
    }

    #[test]
    fn the_table_of_a_persistent_executor_has_two_names() {
        let by =
            |table: &str| parse::<Config>(&format!("[{table}]\ncapacity = 3\n"), "executor.toml").unwrap();
        assert_eq!(by("standing"), by("persistent"));
        assert_eq!(by("persistent").persistent.capacity, 3);
    }
}

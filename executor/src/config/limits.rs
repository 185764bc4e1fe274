//! The limits of one job on its machine.

use muster_containers::sandbox::{ResourceLimits, Root, RunAs};
use muster_process::config::Problem;
use serde::Deserialize;

use crate::machine::specs::MachineSize;

const MIB: u64 = 1024 * 1024;

/// The most that [`Limits::output_mib`] may be.
pub(super) const MAX_OUTPUT_MIB: u64 = 1 << 20;

/// The limits of one job. The operator sets them, for all classes or for one.
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
    /// MiB that the job may write into `/volume`, `/output` and its artifacts together, and again into a writable
    /// root.
    pub disk_mib: u64,
    /// MiB of each printed stream that are kept whole; 0 keeps nothing.
    pub output_mib: u64,
    /// Whether the job may write into its root file system, in a layer that is removed with its container.
    pub writable_root: bool,
    /// The user that runs the job's program.
    pub run_as: RunAs,
}

/// The rights of a job, by its class, its image and the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Resources that the job may use.
    pub allowance: ResourceLimits,
    /// The user that runs the job's program.
    pub run_as: RunAs,
    /// Whether the job may write into its root file system.
    pub root: Root,
    /// The bytes of each printed stream that are kept whole.
    pub output: u64,
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
            output_mib: 1_024,
            writable_root: false,
            run_as: RunAs::Image,
        }
    }
}

impl Limits {
    /// The smallest memory the engine accepts is 6 MiB.
    const LEAST_MEMORY_MIB: u64 = 16;

    pub(super) fn problems(&self, table: &str) -> Vec<Problem> {
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
        check(
            self.output_mib <= MAX_OUTPUT_MIB,
            "output_mib",
            "must be at most 1048576",
        );
        problems
    }

    /// The limits in the engine's units. No job gets more processors than the machine has.
    pub fn on(&self, machine: MachineSize) -> ResourceLimits {
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
        ResourceLimits {
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

//! Miners' machines, as miners claim them and as grading proved them: from miner to validator, and from validator to
//! facilitator.
//!
//! Every message is lossy: any of them may be dropped, and the newest one holds. Sizes are bounded by
//! [`MinerClaims::bound`] and [`MachinesNotice::bound`], which every receiver applies to what a peer wrote.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::executor::{ExecutorMetrics, MAX_GPUS};
use crate::class::ExecutorClass;
use crate::keys::MinerKey;
use crate::time::Timestamp;

/// The most machines of one miner that a sender lists and a receiver reads.
pub const MAX_MACHINES: usize = 64;

/// The most kinds of GPU of one machine.
pub const MAX_GPU_KINDS: usize = 8;

/// The most characters of a name; the rest is cut off.
pub const MAX_MACHINE_TEXT: usize = 64;

/// `MusterMachines`, miner to validator: the load of the miner's persistent executors. Not answered. Sent only to
/// validators that showed the feature `machines`: after the greeting, and not more often than twice a minute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachinesNotice {
    /// The machines, in the order of their names; [`MAX_MACHINES`] at most.
    pub machines: Vec<MachineLoad>,
}

/// The load of one executor's machine, as the executor measured it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MachineLoad {
    /// The executor's name, which its operator chose.
    pub name: String,
    /// The class of executor.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub class: ExecutorClass,
    /// The time of the measurement by the executor's clock.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub at: Timestamp,
    /// Processor load, in thousandths of all processors together.
    pub cpu_permille: u32,
    /// Main memory of the machine, in bytes.
    pub memory_total: u64,
    /// Main memory in use, in bytes.
    pub memory_used: u64,
    /// Size of the disk that holds the jobs, in bytes.
    pub disk_total: u64,
    /// Space in use on that disk, in bytes.
    pub disk_used: u64,
    /// GPUs of the machine.
    pub gpus: u32,
    /// Mean load of the GPUs, in percent; 0 without one.
    pub gpu_percent: u32,
    /// Memory of all GPUs together, in bytes.
    pub gpu_memory_total: u64,
    /// Memory in use of all GPUs together, in bytes.
    pub gpu_memory_used: u64,
}

/// `MusterMiner`, validator to facilitator: one miner of the subnet. Not answered. Sent only to facilitators that
/// showed the feature `machines`: when the miner's data has changed, but not more often than every twenty seconds for
/// each miner, and every five minutes if it has not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MinerNotice {
    /// The hotkey of the miner.
    pub miner: MinerKey,
    /// The facts that the validator proved by its own challenges.
    pub proven: Vec<ProvenClass>,
    /// The miner's own word, which nobody has checked.
    pub claims: MinerClaims,
}

/// The result of the newest batch in which a miner's executors of one class were graded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ProvenClass {
    /// The class of executor.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub class: ExecutorClass,
    /// Executors that were challenged.
    pub challenged: u32,
    /// Those of them that proved the hardware of the class.
    pub proven: u32,
    /// The number of the block from which the batch was drawn.
    pub block: u64,
}

/// The claims of a miner about its machines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MinerClaims {
    /// The executors that the miner offers, by class.
    pub offers: Vec<ClaimedOffer>,
    /// The specs of the machine that ran the last attempt of each class.
    pub specs: Vec<ClaimedSpecs>,
    /// The load of persistent executors.
    pub machines: Vec<MachineLoad>,
}

/// The executors of one class that a miner offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ClaimedOffer {
    /// The class of executor.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub class: ExecutorClass,
    /// Executors of the class.
    pub executors: u32,
}

/// The specs of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ClaimedSpecs {
    /// The class of executor that the machine served as.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub class: ExecutorClass,
    /// The time at which the validator learned of them.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub told_at: Timestamp,
    /// The model of the processor; empty if it is not told.
    pub cpu: String,
    /// Processors; 0 if their number is not told.
    pub cores: u64,
    /// Main memory, in bytes; 0 if it is not told.
    pub memory: u64,
    /// Size of the disk, in bytes; 0 if it is not told.
    pub disk: u64,
    /// The operating system; empty if it is not told.
    pub os: String,
    /// The kinds of GPU, as `2 x NVIDIA A6000`; [`MAX_GPU_KINDS`] at most.
    pub gpus: Vec<String>,
}

impl MachineLoad {
    /// The load that an executor's measurement shows.
    pub fn new(name: &str, class: ExecutorClass, metrics: &ExecutorMetrics) -> Self {
        let gpus = || metrics.gpus.iter().take(MAX_GPUS);
        let sum = |of: fn(&super::executor::GpuMetrics) -> u64| gpus().map(of).fold(0, u64::saturating_add);
        let count = u32::try_from(gpus().count()).unwrap_or(u32::MAX);
        let percent = sum(|gpu| u64::from(gpu.utilisation_percent));
        let mean = percent.checked_div(u64::from(count)).unwrap_or(0);
        Self {
            name: plain(name),
            class,
            at: metrics.at,
            cpu_permille: metrics.cpu_permille,
            memory_total: metrics.memory_total,
            memory_used: metrics.memory_used,
            disk_total: metrics.disk_total,
            disk_used: metrics.disk_used,
            gpus: count,
            gpu_percent: u32::try_from(mean).unwrap_or(u32::MAX),
            gpu_memory_total: sum(|gpu| gpu.memory_total),
            gpu_memory_used: sum(|gpu| gpu.memory_used),
        }
    }

    fn bound(self) -> Self {
        Self {
            name: plain(&self.name),
            ..self
        }
    }
}

impl MachinesNotice {
    /// The notice within its bounds.
    #[must_use]
    pub fn bound(self) -> Self {
        let machines = self.machines.into_iter().take(MAX_MACHINES);
        Self {
            machines: machines.map(MachineLoad::bound).collect(),
        }
    }
}

impl MinerNotice {
    /// The notice within its bounds, with each class once.
    #[must_use]
    pub fn bound(self) -> Self {
        let mut seen = BTreeSet::new();
        let mut proven = self.proven;
        proven.retain(|proven| seen.insert(proven.class));
        Self {
            miner: self.miner,
            proven,
            claims: self.claims.bound(),
        }
    }
}

impl MinerClaims {
    /// The claims within their bounds, with each class once.
    #[must_use]
    pub fn bound(self) -> Self {
        let Self {
            mut offers,
            mut specs,
            machines,
        } = self;
        let mut seen = BTreeSet::new();
        offers.retain(|offer| seen.insert(offer.class));
        let mut seen = BTreeSet::new();
        specs.retain(|specs| seen.insert(specs.class));
        Self {
            offers,
            specs: specs.into_iter().map(ClaimedSpecs::bound).collect(),
            machines: MachinesNotice { machines }.bound().machines,
        }
    }
}

impl ClaimedSpecs {
    fn bound(self) -> Self {
        let gpus = self.gpus.iter().take(MAX_GPU_KINDS);
        Self {
            cpu: plain(&self.cpu),
            os: plain(&self.os),
            gpus: gpus.map(|kind| plain(kind)).collect(),
            ..self
        }
    }
}

/// A peer's text on one line, cut to its bound: it is printed on terminals.
pub fn plain(text: &str) -> String {
    let letters = text.chars().filter(|letter| !letter.is_control());
    letters.take(MAX_MACHINE_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::executor::GpuMetrics;

    const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;

    fn metrics(gpus: usize) -> ExecutorMetrics {
        let gpu = GpuMetrics {
            utilisation_percent: 50,
            memory_total: u64::MAX,
            memory_used: 3,
            ..GpuMetrics::default()
        };
        ExecutorMetrics {
            at: Timestamp::from_secs(1),
            cpu_permille: 250,
            memory_total: 4,
            memory_used: 3,
            disk_total: 2,
            disk_used: 1,
            network_received: 5,
            network_sent: 6,
            gpus: vec![gpu; gpus],
        }
    }

    #[test]
    fn a_measurement_is_summed_over_its_gpus() {
        let load = MachineLoad::new("box\n-7\u{1b}[31m", CLASS, &metrics(2));
        assert_eq!(load.name, "box-7[31m");
        assert_eq!((load.gpus, load.gpu_percent, load.gpu_memory_used), (2, 50, 6));
        assert_eq!(load.gpu_memory_total, u64::MAX, "it saturates");
        assert_eq!(MachineLoad::new("", CLASS, &metrics(0)).gpu_percent, 0);
        assert_eq!(MachineLoad::new("", CLASS, &metrics(1_000)).gpus, 64);
    }

    #[test]
    fn claimed_specs_of_a_peer_are_bounded() {
        let long = "x".repeat(10_000);
        let specs = ClaimedSpecs {
            class: CLASS,
            told_at: Timestamp::from_secs(1),
            cpu: long.clone(),
            cores: 1,
            memory: 1,
            disk: 1,
            os: long.clone(),
            gpus: vec![long.clone(); 20],
        };
        let claims = MinerClaims {
            offers: vec![
                ClaimedOffer {
                    class: CLASS,
                    executors: 1
                };
                1_000
            ],
            specs: vec![specs; 20],
            machines: vec![MachineLoad::new(&long, CLASS, &metrics(0)); 100],
        };
        let proven = ProvenClass {
            class: CLASS,
            challenged: 2,
            proven: 1,
            block: 3,
        };
        let notice = MinerNotice {
            miner: MinerKey(crate::keys::Hotkey::from_bytes([1; 32])),
            proven: vec![proven; 1_000],
            claims,
        };
        let bounded = notice.bound();
        assert_eq!((bounded.proven.len(), bounded.claims.offers.len()), (1, 1));
        assert_eq!(
            (bounded.claims.specs.len(), bounded.claims.machines.len()),
            (1, MAX_MACHINES)
        );
        let text = serde_json::to_string(&bounded).unwrap();
        assert!(text.len() < 40_000, "{}", text.len());
        assert_eq!(bounded.clone().bound(), bounded);
    }
}

//! The thresholds of a class: stated from published figures, or measured on honest machines.

use std::collections::BTreeMap;

use muster_protocol::class::ExecutorClass;
use serde::{Deserialize, Serialize};

use super::tolerance;
use super::{Component, Components};

/// Honest runs of one machine. The threshold of memory is always stated, so there are no runs of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineRuns {
    /// The name of the machine, set by the operator. Runs of one machine under two names would count as two machines.
    pub machine: String,
    /// Measured rates of [`Component::Int8`].
    #[serde(default)]
    pub int8: Vec<u64>,
    /// Measured rates of [`Component::Fp16`].
    #[serde(default)]
    pub fp16: Vec<u64>,
    /// Measured rates of [`Component::Bandwidth`].
    #[serde(default)]
    pub bandwidth: Vec<u64>,
}

/// The calibration of one class, as it is stored in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// The calibrated class.
    pub class: ExecutorClass,
    /// The thresholds until there are runs of enough machines, from published figures. The threshold of memory always
    /// holds.
    pub stated: Components,
    /// The honest runs, machine by machine.
    #[serde(default)]
    pub machines: Vec<MachineRuns>,
}

/// The thresholds of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassThresholds {
    /// The calibrated class.
    pub class: ExecutorClass,
    /// The smallest values that pass.
    pub least: Components,
    /// Whether at least one threshold is only stated, because too few machines have been measured.
    pub provisional: bool,
}

/// Selects the runs of one component.
type Runs = fn(&MachineRuns) -> &Vec<u64>;

impl Calibration {
    /// The thresholds of the class: a tolerance bound where there are runs of enough machines, else the stated value.
    pub fn thresholds(&self) -> ClassThresholds {
        let mut least = self.stated;
        let mut provisional = false;
        let columns: [(Component, Runs); 3] = [
            (Component::Int8, |runs| &runs.int8),
            (Component::Fp16, |runs| &runs.fp16),
            (Component::Bandwidth, |runs| &runs.bandwidth),
        ];
        for (component, runs) in columns {
            // Entries of the same name are of one machine, even if the file lists them apart.
            let mut by_name: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
            for machine in &self.machines {
                by_name.entry(&machine.machine).or_default().extend(runs(machine));
            }
            let machines: Vec<Vec<u64>> = by_name.into_values().collect();
            match tolerance::tolerance_bound(&machines) {
                Some(floor) => *least.get_mut(component) = floor,
                None => provisional |= least.get(component) > 0,
            }
        }
        ClassThresholds {
            class: self.class,
            least,
            provisional,
        }
    }
}

/// The stated calibrations of all classes, without runs, so every class is provisional. They are 0.3 of the published
/// rates and half of the published bandwidth of the slowest common card of the class (L4 for 24 GB, A6000 for 48 GB).
pub fn stated_calibrations() -> Vec<Calibration> {
    let of = |class, int8, fp16, memory, bandwidth| Calibration {
        class,
        stated: Components {
            int8,
            fp16,
            memory,
            bandwidth,
        },
        machines: Vec::new(),
    };
    vec![
        of(
            ExecutorClass::SpinUpGpu24Gb,
            72_000_000,
            36_000_000,
            20 << 10,
            150_000,
        ),
        of(
            ExecutorClass::AlwaysOnGpu24Gb,
            72_000_000,
            36_000_000,
            20 << 10,
            150_000,
        ),
        of(
            ExecutorClass::AlwaysOnLlmA6000,
            92_000_000,
            46_000_000,
            42 << 10,
            384_000,
        ),
        of(ExecutorClass::AlwaysOnCpu8c16Gb, 200_000, 0, 8 << 10, 1_000),
        of(ExecutorClass::AlwaysOnTest, 1, 0, 1, 1),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_provisional_until_enough_machines_have_run() -> Result<(), serde_json::Error> {
        let mut calibration: Calibration = serde_json::from_str(
            r#"{"class": "always_on.test", "stated": {"int8": 7, "fp16": 0, "memory": 9, "bandwidth": 0},
                "machines": [{"machine": "a", "int8": [1000, 1001, 1002]}]}"#,
        )?;
        assert!(calibration.thresholds().provisional);
        assert_eq!(calibration.thresholds().least, calibration.stated);
        calibration.machines = vec![calibration.machines.swap_remove(0); 5];
        assert!(
            calibration.thresholds().provisional,
            "five times the same machine"
        );
        for (machine, name) in calibration.machines.iter_mut().zip(["a", "b", "c", "d", "e"]) {
            machine.machine = name.to_owned();
        }
        let thresholds = calibration.thresholds();
        assert!(!thresholds.provisional);
        assert_eq!(
            thresholds.least,
            Components {
                int8: 944,
                memory: 9,
                ..Components::default()
            }
        );
        let text = serde_json::to_string(&calibration)?;
        assert_eq!(serde_json::from_str::<Calibration>(&text)?, calibration);
        assert!(
            stated_calibrations()
                .iter()
                .all(|calibration| calibration.thresholds().provisional)
        );
        Ok(())
    }
}

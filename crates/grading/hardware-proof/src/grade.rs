//! Grades a claimed class: verdicts give four components, which are compared with the thresholds of the class.

mod class_thresholds;
pub mod tolerance;

use muster_protocol::class::ExecutorClass;
use serde::{Deserialize, Serialize};

use crate::proof_verdict::{Measurement, ProofVerdict, ZeroReason};
use crate::spec::NumberFormat;

pub use class_thresholds::{Calibration, ClassThresholds, MachineRuns, stated_calibrations};

/// The number of proofs of one kind that count: the first one and one retry.
pub const COUNTED_ATTEMPTS: usize = 2;

/// A property of a machine that is proven.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Component {
    /// The rate of MATMUL with int8, in 10⁶ operations per second.
    Int8,
    /// The rate of MATMUL with nine-bit integers, in 10⁶ operations per second.
    Fp16,
    /// The size of WALK's memory, in MiB.
    Memory,
    /// The rate of WALK's reads, in 10⁶ bytes per second.
    Bandwidth,
}

impl Component {
    /// All components, in the order in which shortfalls are listed.
    pub const ALL: [Self; 4] = [Self::Int8, Self::Fp16, Self::Memory, Self::Bandwidth];
}

/// One whole number per component. As a threshold, 0 means that nothing is required.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Components {
    /// See [`Component::Int8`].
    pub int8: u64,
    /// See [`Component::Fp16`].
    pub fp16: u64,
    /// See [`Component::Memory`].
    pub memory: u64,
    /// See [`Component::Bandwidth`].
    pub bandwidth: u64,
}

impl Components {
    /// The value of one component.
    pub fn get(&self, component: Component) -> u64 {
        match component {
            Component::Int8 => self.int8,
            Component::Fp16 => self.fp16,
            Component::Memory => self.memory,
            Component::Bandwidth => self.bandwidth,
        }
    }

    fn get_mut(&mut self, component: Component) -> &mut u64 {
        match component {
            Component::Int8 => &mut self.int8,
            Component::Fp16 => &mut self.fp16,
            Component::Memory => &mut self.memory,
            Component::Bandwidth => &mut self.bandwidth,
        }
    }
}

/// The reason why a claim is worth nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Shortfall {
    /// A proof was wrong. There is no retry after that.
    #[error("a proof was wrong")]
    Wrong(#[source] ZeroReason),
    /// No proof of this component passed. The reason is that of the last proof.
    #[error("no proof of {0:?} passed")]
    Failed(Component, #[source] ZeroReason),
    /// No proof of this component was made.
    #[error("{0:?} was not proven")]
    Unproven(Component),
    /// The best proof, the retry included, is below the threshold.
    #[error("{component:?} is {measured}, but the class requires {threshold}")]
    Below {
        /// The component that is too small.
        component: Component,
        /// The best measured value, in the unit of the component.
        measured: u64,
        /// The threshold of the class, in the unit of the component.
        threshold: u64,
    },
    /// There are no thresholds for the class.
    #[error("the class has no thresholds")]
    UnknownClass,
}

/// The result of grading a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grade {
    /// The machine is of its class.
    Proven {
        /// The claimed class.
        class: ExecutorClass,
        /// The measured values.
        measured: Components,
        /// Whether the thresholds are provisional, see [`ClassThresholds::provisional`].
        provisional: bool,
    },
    /// The claim is worth nothing, for these reasons.
    Zero(Vec<Shortfall>),
}

/// One requested proof and its verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProofAttempt {
    /// The kind of the proof. A WALK proves both memory and bandwidth.
    pub kind: ProofKind,
    /// The verdict on the proof.
    pub verdict: ProofVerdict,
}

/// The kind of a proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProofKind {
    /// A MATMUL with entries of this format.
    Matmul(NumberFormat),
    /// A WALK, which proves memory and bandwidth.
    Walk,
}

/// Grades a claim. The best of the first [`COUNTED_ATTEMPTS`] proofs of each kind counts. One wrong proof makes the
/// whole claim a zero.
pub fn grade(claim: ExecutorClass, thresholds: &[ClassThresholds], attempts: &[ProofAttempt]) -> Grade {
    let Some(thresholds) = thresholds.iter().find(|thresholds| thresholds.class == claim) else {
        return Grade::Zero(vec![Shortfall::UnknownClass]);
    };
    let wrong = attempts.iter().find_map(|attempt| match attempt.verdict {
        ProofVerdict::Zero(reason) if reason.is_wrong() => Some(reason),
        ProofVerdict::Zero(_) | ProofVerdict::Passed(_) => None,
    });
    if let Some(reason) = wrong {
        return Grade::Zero(vec![Shortfall::Wrong(reason)]);
    }
    let mut measured = Components::default();
    let mut short = Vec::new();
    for component in Component::ALL {
        let threshold = thresholds.least.get(component);
        match best_measurement(component, attempts) {
            Ok(value) => {
                *measured.get_mut(component) = value;
                if value < threshold {
                    short.push(Shortfall::Below {
                        component,
                        measured: value,
                        threshold,
                    });
                }
            }
            Err(shortfall) if threshold > 0 => short.push(shortfall),
            Err(_) => {}
        }
    }
    if short.is_empty() {
        Grade::Proven {
            class: claim,
            measured,
            provisional: thresholds.provisional,
        }
    } else {
        Grade::Zero(short)
    }
}

fn best_measurement(component: Component, attempts: &[ProofAttempt]) -> Result<u64, Shortfall> {
    let challenged = match component {
        Component::Int8 => ProofKind::Matmul(NumberFormat::Int8),
        Component::Fp16 => ProofKind::Matmul(NumberFormat::Fp16),
        Component::Memory | Component::Bandwidth => ProofKind::Walk,
    };
    let tried = attempts
        .iter()
        .filter(|attempt| attempt.kind == challenged)
        .take(COUNTED_ATTEMPTS);
    let mut found = Err(Shortfall::Unproven(component));
    for attempt in tried {
        match (attempt.verdict, &mut found) {
            (ProofVerdict::Passed(measured), Ok(best)) => {
                *best = component_value(component, &measured).max(*best)
            }
            (ProofVerdict::Passed(measured), Err(_)) => found = Ok(component_value(component, &measured)),
            (ProofVerdict::Zero(_), Ok(_)) => {}
            (ProofVerdict::Zero(reason), Err(_)) => found = Err(Shortfall::Failed(component, reason)),
        }
    }
    found
}

fn component_value(component: Component, measured: &Measurement) -> u64 {
    match (component, measured) {
        (
            Component::Int8,
            Measurement::Matmul {
                numbers: NumberFormat::Int8,
                rate,
                ..
            },
        )
        | (
            Component::Fp16,
            Measurement::Matmul {
                numbers: NumberFormat::Fp16,
                rate,
                ..
            },
        )
        | (Component::Bandwidth, Measurement::Walk { rate, .. }) => *rate,
        (Component::Memory, Measurement::Walk { bytes, .. }) => bytes >> 20,
        (Component::Int8 | Component::Fp16 | Component::Memory | Component::Bandwidth, _) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;

    fn thresholds() -> Vec<ClassThresholds> {
        let least = Components {
            int8: 100,
            fp16: 0,
            memory: 4,
            bandwidth: 50,
        };
        vec![ClassThresholds {
            class: CLASS,
            least,
            provisional: true,
        }]
    }

    fn chain(rate: u64) -> ProofAttempt {
        let measured = Measurement::Matmul {
            numbers: NumberFormat::Int8,
            rate,
            elapsed_us: 1,
        };
        ProofAttempt {
            kind: ProofKind::Matmul(NumberFormat::Int8),
            verdict: ProofVerdict::Passed(measured),
        }
    }

    fn walk(bytes: u64, rate: u64) -> ProofAttempt {
        let measured = Measurement::Walk {
            bytes,
            rate,
            elapsed_us: 1,
        };
        ProofAttempt {
            kind: ProofKind::Walk,
            verdict: ProofVerdict::Passed(measured),
        }
    }

    fn zero(reason: ZeroReason) -> ProofAttempt {
        ProofAttempt {
            kind: ProofKind::Matmul(NumberFormat::Int8),
            verdict: ProofVerdict::Zero(reason),
        }
    }

    #[test]
    fn floors_are_one_sided_and_the_better_of_two_attempts_counts() {
        let late = zero(ZeroReason::NotCommitted { limit_us: 1 });
        for attempts in [
            vec![chain(100), walk(4 << 20, 50)],
            vec![chain(u64::MAX), walk(1 << 60, u64::MAX)],
            vec![chain(1), chain(100), walk(4 << 20, 50)],
            vec![late, chain(100), walk(4 << 20, 50)],
        ] {
            assert!(matches!(
                grade(CLASS, &thresholds(), &attempts),
                Grade::Proven {
                    provisional: true,
                    ..
                }
            ));
        }
        // The third attempt does not count.
        let below = Shortfall::Below {
            component: Component::Int8,
            measured: 99,
            threshold: 100,
        };
        let attempts = [chain(98), chain(99), chain(100), walk(4 << 20, 50)];
        assert_eq!(grade(CLASS, &thresholds(), &attempts), Grade::Zero(vec![below]));
    }

    #[test]
    fn every_zero_has_its_reasons() {
        let walk_only = grade(CLASS, &thresholds(), &[walk(3 << 20, 49)]);
        let expected = vec![
            Shortfall::Unproven(Component::Int8),
            Shortfall::Below {
                component: Component::Memory,
                measured: 3,
                threshold: 4,
            },
            Shortfall::Below {
                component: Component::Bandwidth,
                measured: 49,
                threshold: 50,
            },
        ];
        assert_eq!(walk_only, Grade::Zero(expected));
        let failed = grade(CLASS, &thresholds(), &[zero(ZeroReason::Gone), walk(4 << 20, 50)]);
        assert_eq!(
            failed,
            Grade::Zero(vec![Shortfall::Failed(Component::Int8, ZeroReason::Gone)])
        );
        // A wrong proof is not mended by a right one after it.
        let wrong = ZeroReason::WrongEntry {
            draw: 1,
            expected: 2,
            found: 3,
        };
        for reason in [wrong, ZeroReason::Vanished] {
            let attempts = [zero(reason), chain(100), walk(4 << 20, 50)];
            assert_eq!(
                grade(CLASS, &thresholds(), &attempts),
                Grade::Zero(vec![Shortfall::Wrong(reason)])
            );
        }
        assert_eq!(grade(CLASS, &[], &[]), Grade::Zero(vec![Shortfall::UnknownClass]));
    }
}

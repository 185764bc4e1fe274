//! What a class has to prove, and how long it may take over it.

use muster_hardware_proof::Limits;
use muster_hardware_proof::chain::{ChainShape, ChainSpec};
use muster_hardware_proof::grade::{Challenged, Component, Components, Floors, stated};
use muster_hardware_proof::keys::Identity;
use muster_hardware_proof::message::Spec;
use muster_hardware_proof::spec::{Numbers, SpecError};
use muster_hardware_proof::walk::{WalkShape, WalkSpec};
use muster_protocol::ExecutorClass;
use serde::{Deserialize, Serialize};

/// Taken off every measured time, the same for everybody. A measured round trip is never subtracted: who delays pings would be
/// paid for it.
pub const ALLOWANCE_US: u64 = 150_000;

/// The part of its class's rate that an executor must show while it serves somebody.
const BESIDE_SHARE: u64 = 4;

/// One proof that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "proof", rename_all = "snake_case", deny_unknown_fields)]
pub enum Shape {
    /// CHAIN with full-range bytes.
    Int8 {
        /// log₂ of the side of the matrices.
        log2_n: u8,
        /// Products.
        rounds: u16,
        /// Entries that are drawn.
        entries: u16,
    },
    /// CHAIN with nine-bit integers.
    Fp16 {
        /// log₂ of the side of the matrices.
        log2_n: u8,
        /// Products.
        rounds: u16,
        /// Entries that are drawn.
        entries: u16,
    },
    /// WALK.
    Walk {
        /// KiB of memory.
        blocks: u64,
        /// Applications of the one-way function per word.
        work: u32,
        /// log₂ of the walks side by side.
        log2_walks: u8,
        /// log₂ of the leaves that each commits.
        log2_leaves: u8,
        /// Steps that are drawn.
        draws: u16,
    },
}

/// A proof and its limits, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    /// What is asked.
    pub shape: Shape,
    /// To fill the memory; unused by a CHAIN.
    pub fill_us: u64,
    /// From the challenge, or the seed, to the commitment.
    pub commit_us: u64,
    /// From the draw to the opening.
    pub open_us: u64,
}

/// What a class has to prove.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Course {
    /// What is the least.
    pub floors: Floors,
    /// One after the other, each begun by all together.
    pub trials: Vec<Trial>,
}

impl Shape {
    /// What a verdict on it counts for.
    pub fn challenged(&self) -> Challenged {
        match self {
            Self::Int8 { .. } => Challenged::Chain(Numbers::Int8),
            Self::Fp16 { .. } => Challenged::Chain(Numbers::Fp16),
            Self::Walk { .. } => Challenged::Walk,
        }
    }

    /// The challenge of one executor.
    ///
    /// # Errors
    /// The shape is outside what can be asked.
    pub fn spec(&self, identity: Identity) -> Result<Spec, SpecError> {
        let chain = |numbers, log2_n, rounds, entries| {
            let shape = ChainShape {
                numbers,
                log2_n,
                rounds,
                entries,
            };
            ChainSpec::new(identity, shape, None).map(Spec::Chain)
        };
        match *self {
            Self::Int8 {
                log2_n,
                rounds,
                entries,
            } => chain(Numbers::Int8, log2_n, rounds, entries),
            Self::Fp16 {
                log2_n,
                rounds,
                entries,
            } => chain(Numbers::Fp16, log2_n, rounds, entries),
            Self::Walk {
                blocks,
                work,
                log2_walks,
                log2_leaves,
                draws,
            } => {
                let shape = WalkShape {
                    blocks,
                    work,
                    log2_walks,
                    log2_leaves,
                    draws,
                };
                WalkSpec::new(identity, shape).map(Spec::Walk)
            }
        }
    }

    /// The rate that it measures.
    pub fn component(&self) -> Component {
        match self {
            Self::Int8 { .. } => Component::Int8,
            Self::Fp16 { .. } => Component::Fp16,
            Self::Walk { .. } => Component::Bandwidth,
        }
    }

    /// Operations, or bytes that are read.
    pub fn amount(&self) -> u128 {
        match *self {
            Self::Int8 { log2_n, rounds, .. } | Self::Fp16 { log2_n, rounds, .. } => {
                (2u128 << (3 * u32::from(log2_n.min(16)))).saturating_mul(u128::from(rounds))
            }
            Self::Walk {
                log2_walks,
                log2_leaves,
                ..
            } => 1u128 << (15 + u32::from(log2_walks.min(20)) + u32::from(log2_leaves.min(20))),
        }
    }
}

impl Trial {
    /// A proof that may take twice as long as at the least rate that passes, and some seconds.
    fn at_floor(shape: Shape, floor: u64, fill_s: u64) -> Self {
        let at_floor = shape.amount() / u128::from(floor.max(1));
        let commit_us = u64::try_from(at_floor.saturating_mul(2)).unwrap_or(u64::MAX);
        Self {
            shape,
            fill_us: fill_s.saturating_mul(1_000_000),
            commit_us: commit_us.saturating_add(5_000_000),
            open_us: 20_000_000,
        }
    }

    /// As the conversation takes them.
    pub fn limits(&self) -> Limits {
        Limits {
            fill_us: self.fill_us,
            commit_us: self.commit_us,
            open_us: self.open_us,
            allowance_us: ALLOWANCE_US,
        }
    }

    /// The longest that the whole conversation can take.
    pub fn longest_us(&self) -> u64 {
        let fill_us = match self.shape {
            Shape::Walk { .. } => self.fill_us,
            Shape::Int8 { .. } | Shape::Fp16 { .. } => 0,
        };
        fill_us
            .saturating_add(self.commit_us)
            .saturating_add(self.open_us)
    }
}

impl Course {
    /// The course of a class, with the floors that are stated until there are honest runs of enough machines.
    pub fn of(class: ExecutorClass) -> Option<Self> {
        let floors = stated()
            .iter()
            .find(|calibration| calibration.class == class)?
            .floors();
        Some(Self::with(floors))
    }

    /// The course that measures against these floors.
    pub fn with(floors: Floors) -> Self {
        let least = floors.least;
        let chain = |log2_n, rounds| (log2_n, rounds, 256u16);
        let (int8, fp16, walk) = match floors.class {
            // 2 · 32,768³ operations a product: one second at 72 · 10¹² a second.
            ExecutorClass::SpinUpGpu24Gb
            | ExecutorClass::AlwaysOnGpu24Gb
            | ExecutorClass::AlwaysOnLlmA6000 => (chain(15, 16), chain(15, 8), (256, 16, 10, 128)),
            ExecutorClass::AlwaysOnCpu8c16Gb => (chain(13, 4), chain(12, 4), (16, 10, 7, 128)),
            // Judged by what is opened: two cores say nothing about speed.
            ExecutorClass::AlwaysOnTest => ((9, 4, 64), (8, 2, 16), (16, 4, 3, 32)),
        };
        let test = floors.class == ExecutorClass::AlwaysOnTest;
        let blocks = if test {
            2_048
        } else {
            least.memory.saturating_mul(1_024)
        };
        let (work, log2_walks, log2_leaves, draws) = walk;
        let of_chain = |fp16: bool, (log2_n, rounds, entries)| match fp16 {
            false => Shape::Int8 {
                log2_n,
                rounds,
                entries,
            },
            true => Shape::Fp16 {
                log2_n,
                rounds,
                entries,
            },
        };
        let walk = Shape::Walk {
            blocks,
            work,
            log2_walks,
            log2_leaves,
            draws,
        };
        let wanted = [
            (least.int8, of_chain(false, int8)),
            (least.fp16, of_chain(true, fp16)),
            (least.memory.max(least.bandwidth), walk),
        ];
        let trials = wanted.into_iter().filter(|(floor, _)| *floor > 0);
        let trials = trials.map(|(_, shape)| match test {
            true => Trial {
                shape,
                fill_us: 60_000_000,
                commit_us: 60_000_000,
                open_us: 60_000_000,
            },
            false => Trial::at_floor(shape, least.get(shape.component()), 120),
        });
        Self {
            trials: trials.collect(),
            floors,
        }
    }

    /// What is asked of an executor that serves somebody meanwhile: CHAIN alone, small enough to stand beside an engine that has the
    /// memory, and a part of the rate, since whoever is served is served on the same processors.
    #[must_use]
    pub fn beside(&self) -> Self {
        let int8 = (self.floors.least.int8 / BESIDE_SHARE).max(1);
        let least = Components {
            int8,
            ..Components::default()
        };
        let (log2_n, rounds, entries) = match self.class() {
            ExecutorClass::SpinUpGpu24Gb
            | ExecutorClass::AlwaysOnGpu24Gb
            | ExecutorClass::AlwaysOnLlmA6000 => (13, 128, 256),
            ExecutorClass::AlwaysOnCpu8c16Gb => (12, 8, 256),
            ExecutorClass::AlwaysOnTest => (9, 4, 64),
        };
        let shape = Shape::Int8 {
            log2_n,
            rounds,
            entries,
        };
        let trial = if self.class() == ExecutorClass::AlwaysOnTest {
            Trial {
                shape,
                fill_us: 60_000_000,
                commit_us: 60_000_000,
                open_us: 60_000_000,
            }
        } else {
            Trial::at_floor(shape, int8, 0)
        };
        Self {
            floors: Floors { least, ..self.floors },
            trials: vec![trial],
        }
    }

    /// The class.
    pub fn class(&self) -> ExecutorClass {
        self.floors.class
    }
}

#[cfg(test)]
mod tests {
    use muster_hardware_proof::keys::{BatchId, ExecutorName, Nonce};

    use super::*;

    #[test]
    fn every_class_has_a_course_that_can_be_asked_and_measures_every_floor() {
        let identity = Identity {
            batch: BatchId([1; 16]),
            executor: ExecutorName([2; 32]),
            nonce: Nonce([3; 32]),
        };
        for class in ExecutorClass::ALL {
            let course = Course::of(class).unwrap();
            assert_eq!(course.class(), class);
            for trial in &course.trials {
                let spec = trial.shape.spec(identity).unwrap();
                let amount = match spec {
                    Spec::Chain(chain) => chain.operations(),
                    Spec::Walk(walk) => walk.bytes_read(),
                };
                assert_eq!(trial.shape.amount(), amount, "{class} {trial:?}");
                // At the floor it takes seconds, and less than it may.
                let floor = course.floors.least.get(trial.shape.component());
                let at_floor = u64::try_from(amount / u128::from(floor)).unwrap();
                if class != ExecutorClass::AlwaysOnTest {
                    assert!(
                        (3_000_000..90_000_000).contains(&at_floor),
                        "{class} {trial:?} {at_floor}"
                    );
                    assert!(trial.commit_us > at_floor);
                }
            }
            let proven = |component| {
                course
                    .trials
                    .iter()
                    .any(|trial| trial.shape.component() == component)
            };
            for component in Component::ALL {
                let floor = course.floors.least.get(component);
                let by = if component == Component::Memory {
                    Component::Bandwidth
                } else {
                    component
                };
                assert!(floor == 0 || proven(by), "{class} {component:?}");
            }
            let beside = course.beside();
            let [trial] = beside.trials.as_slice() else {
                panic!("one proof beside a session")
            };
            trial.shape.spec(identity).unwrap();
            let at_floor = trial.shape.amount() / u128::from(beside.floors.least.int8);
            if class != ExecutorClass::AlwaysOnTest {
                assert!((3_000_000..90_000_000).contains(&at_floor), "{class} {at_floor}");
                assert!(u128::from(trial.commit_us) > at_floor);
            }
        }
    }
}

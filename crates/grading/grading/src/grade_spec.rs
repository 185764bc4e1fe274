//! The proofs that a class must give, with their sizes and time limits.

use muster_hardware_proof::challenge_keys::ChallengeIdentity;
use muster_hardware_proof::challenge_message::ProofSpec;
use muster_hardware_proof::grade::{ClassThresholds, Component, Components, ProofKind, stated_calibrations};
use muster_hardware_proof::matmul::{MatmulShape, MatmulSpec, MemoryBinding};
use muster_hardware_proof::memory_walk::{WalkShape, WalkSpec};
use muster_hardware_proof::merkle::LEAF;
use muster_hardware_proof::spec::{NumberFormat, SpecError, WalkMemory};
use muster_hardware_proof::{Limits, Measurement};
use muster_protocol::ExecutorClass;
use serde::{Deserialize, Serialize};

/// Subtracted from every measured time, the same for every executor. A measured round trip is never subtracted, because
/// an executor could gain by delaying its replies to pings.
pub const ALLOWANCE_US: u64 = 150_000;

/// Blocks of the proven memory that are XORed over each row of a product's left matrix. The executor that multiplies
/// has the memory at hand: at n = 32,768 a product reads 134 MB of it at random (2.6 GB/s on a card that multiplies
/// such matrices twenty times a second), and each block that is missing costs sixteen long computations.
const BOUND_BLOCKS: u16 = 4;

/// An executor that serves a session must show the rate of its class divided by this number.
const BESIDE_SHARE: u64 = 4;

/// The size of one proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "proof", rename_all = "snake_case", deny_unknown_fields)]
pub enum ProofShape {
    /// MATMUL with full-range signed bytes.
    Int8 {
        /// log₂ of the side of the matrices, 8 to 16.
        log2_n: u8,
        /// The number of products, 1 to 256.
        rounds: u16,
        /// The number of drawn entries, from `rounds` to 1,024.
        entries: u16,
        /// The blocks of memory that are XORed over each row of the left matrices; 0 for products that are bound to no
        /// memory. The memory is that of the executor's last WALK in the batch.
        #[serde(default, skip_serializing_if = "is_unbound")]
        blocks_per_row: u16,
    },
    /// MATMUL with nine-bit integers.
    Fp16 {
        /// log₂ of the side of the matrices, 8 to 16.
        log2_n: u8,
        /// The number of products, 1 to 256.
        rounds: u16,
        /// The number of drawn entries, from `rounds` to 1,024.
        entries: u16,
        /// The blocks of memory that are XORed over each row of the left matrices; 0 for products that are bound to no
        /// memory. The memory is that of the executor's last WALK in the batch.
        #[serde(default, skip_serializing_if = "is_unbound")]
        blocks_per_row: u16,
    },
    /// WALK over a filled memory.
    Walk {
        /// The size of the memory in KiB.
        blocks: u64,
        /// Applications of the one-way function per word of memory.
        work: u32,
        /// log₂ of the number of walks.
        log2_walks: u8,
        /// log₂ of the number of leaves to which each walk commits.
        log2_leaves: u8,
        /// The number of drawn steps.
        draws: u16,
    },
}

fn is_unbound(blocks_per_row: &u16) -> bool {
    *blocks_per_row == 0
}

/// One proof and its time limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    /// The size of the proof.
    pub shape: ProofShape,
    /// Microseconds to fill the memory. A MATMUL does not use it.
    pub fill_us: u64,
    /// Microseconds from the challenge (MATMUL) or the seed (WALK) to the commitment.
    pub commit_us: u64,
    /// Microseconds from the draw to the opening.
    pub open_us: u64,
}

/// The proofs and thresholds of one class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GradeSpec {
    /// The smallest values that pass.
    #[serde(rename = "floors")]
    pub thresholds: ClassThresholds,
    /// The proofs, in order. All executors of a batch begin each of them together. A WALK comes before the products
    /// that are bound to its memory.
    pub trials: Vec<Trial>,
    /// The round of a batch in which the first proof is asked for, from 0. An executor that serves a session joins in
    /// the round of its class's int8 products, so that no card multiplies for a session while it walks for a lease.
    #[serde(skip)]
    first_round: usize,
}

impl ProofShape {
    /// The kind of the proof.
    pub fn proof_kind(&self) -> ProofKind {
        match self {
            Self::Int8 { .. } => ProofKind::Matmul(NumberFormat::Int8),
            Self::Fp16 { .. } => ProofKind::Matmul(NumberFormat::Fp16),
            Self::Walk { .. } => ProofKind::Walk,
        }
    }

    /// The challenge to one executor. `memory` is that of the executor's last WALK in the batch, to which products of
    /// this shape may be bound.
    ///
    /// # Errors
    /// A value of the shape is outside its range, or its products are bound and no WALK came before.
    pub fn challenge_spec(
        &self,
        identity: ChallengeIdentity,
        memory: Option<WalkMemory>,
    ) -> Result<ProofSpec, SpecError> {
        let chain = |shape, blocks_per_row| {
            let binding = match (blocks_per_row, memory) {
                (0, _) => None,
                (_, None) => return Err(SpecError("memory of bound products")),
                (blocks_per_row, Some(memory)) => Some(MemoryBinding {
                    blocks_per_row,
                    memory,
                }),
            };
            MatmulSpec::new(identity, shape, binding).map(ProofSpec::Matmul)
        };
        match *self {
            Self::Int8 {
                log2_n,
                rounds,
                entries,
                blocks_per_row,
            } => {
                let numbers = NumberFormat::Int8;
                let shape = MatmulShape {
                    numbers,
                    log2_n,
                    rounds,
                    entries,
                };
                chain(shape, blocks_per_row)
            }
            Self::Fp16 {
                log2_n,
                rounds,
                entries,
                blocks_per_row,
            } => {
                let numbers = NumberFormat::Fp16;
                let shape = MatmulShape {
                    numbers,
                    log2_n,
                    rounds,
                    entries,
                };
                chain(shape, blocks_per_row)
            }
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
                WalkSpec::new(identity, shape).map(ProofSpec::Walk)
            }
        }
    }

    /// The component that the proof measures as a rate.
    pub fn component(&self) -> Component {
        match self {
            Self::Int8 { .. } => Component::Int8,
            Self::Fp16 { .. } => Component::Fp16,
            Self::Walk { .. } => Component::Bandwidth,
        }
    }

    /// The amount of work: operations of a MATMUL, bytes read by a WALK.
    pub fn work_amount(&self) -> u128 {
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
    /// A trial that may take twice as long as at the threshold rate, plus five seconds.
    fn at_threshold(shape: ProofShape, threshold: u64, fill_s: u64) -> Self {
        let at_threshold = shape.work_amount() / u128::from(threshold.max(1));
        let commit_us = u64::try_from(at_threshold.saturating_mul(2)).unwrap_or(u64::MAX);
        Self {
            shape,
            fill_us: fill_s.saturating_mul(1_000_000),
            commit_us: commit_us.saturating_add(5_000_000),
            open_us: 20_000_000,
        }
    }

    /// The time limits in the form that a conversation takes.
    pub fn limits(&self) -> Limits {
        Limits {
            fill_us: self.fill_us,
            commit_us: self.commit_us,
            open_us: self.open_us,
            allowance_us: ALLOWANCE_US,
        }
    }

    /// The longest time in microseconds that the whole conversation can take.
    pub fn longest_us(&self) -> u64 {
        let fill_us = match self.shape {
            ProofShape::Walk { .. } => self.fill_us,
            ProofShape::Int8 { .. } | ProofShape::Fp16 { .. } => 0,
        };
        fill_us
            .saturating_add(self.commit_us)
            .saturating_add(self.open_us)
    }
}

impl GradeSpec {
    /// The grade specification of a class with its stated thresholds.
    pub fn for_class(class: ExecutorClass) -> Option<Self> {
        let thresholds = stated_calibrations()
            .iter()
            .find(|calibration| calibration.class == class)?
            .thresholds();
        Some(Self::from_thresholds(thresholds))
    }

    /// The grade specification that measures against these thresholds.
    pub fn from_thresholds(thresholds: ClassThresholds) -> Self {
        let least = thresholds.least;
        let chain = |log2_n, rounds| (log2_n, rounds, 256u16);
        let (int8, fp16, walk) = match thresholds.class {
            // 2 · 32,768³ operations a product: one second at 72 · 10¹² a second.
            ExecutorClass::SpinUpGpu24Gb
            | ExecutorClass::AlwaysOnGpu24Gb
            | ExecutorClass::AlwaysOnLlmA6000 => (chain(15, 16), chain(15, 8), (256, 16, 10, 128)),
            ExecutorClass::AlwaysOnCpu8c16Gb => (chain(13, 4), chain(12, 4), (16, 10, 7, 128)),
            // The test class is judged by its openings only, because its machines are too small to measure speed.
            // A row of its products holds one block.
            ExecutorClass::AlwaysOnTest => ((10, 2, 64), (9, 2, 16), (16, 4, 3, 32)),
        };
        let test = thresholds.class == ExecutorClass::AlwaysOnTest;
        let blocks = if test {
            2_048
        } else {
            least.memory.saturating_mul(1_024)
        };
        let (work, log2_walks, log2_leaves, draws) = walk;
        let proves_memory = least.memory.max(least.bandwidth) > 0;
        let bound_blocks = |log2_n: u8, format: NumberFormat| match proves_memory {
            false => 0,
            true => BOUND_BLOCKS.min(blocks_in_row(log2_n, format)),
        };
        let of_chain = |fp16: bool, (log2_n, rounds, entries)| match fp16 {
            false => ProofShape::Int8 {
                log2_n,
                rounds,
                entries,
                blocks_per_row: bound_blocks(log2_n, NumberFormat::Int8),
            },
            true => ProofShape::Fp16 {
                log2_n,
                rounds,
                entries,
                blocks_per_row: bound_blocks(log2_n, NumberFormat::Fp16),
            },
        };
        let walk = ProofShape::Walk {
            blocks,
            work,
            log2_walks,
            log2_leaves,
            draws,
        };
        let wanted = [
            (least.memory.max(least.bandwidth), walk),
            (least.int8, of_chain(false, int8)),
            (least.fp16, of_chain(true, fp16)),
        ];
        let trials = wanted.into_iter().filter(|(threshold, _)| *threshold > 0);
        let trials = trials.map(|(_, shape)| match test {
            true => Trial {
                shape,
                fill_us: 60_000_000,
                commit_us: 60_000_000,
                open_us: 60_000_000,
            },
            false => Trial::at_threshold(shape, least.get(shape.component()), 120),
        });
        Self {
            trials: trials.collect(),
            thresholds,
            first_round: 0,
        }
    }

    /// The grade specification for an executor that serves a session meanwhile: one MATMUL, small enough to fit beside
    /// a model that fills the memory, and a part of the rate, because the session uses the same processors.
    #[must_use]
    pub fn for_session(&self) -> Self {
        let int8 = (self.thresholds.least.int8 / BESIDE_SHARE).max(1);
        let least = Components {
            int8,
            ..Components::default()
        };
        let (log2_n, rounds, entries) = match self.class() {
            ExecutorClass::SpinUpGpu24Gb
            | ExecutorClass::AlwaysOnGpu24Gb
            | ExecutorClass::AlwaysOnLlmA6000 => (13, 128, 256),
            ExecutorClass::AlwaysOnCpu8c16Gb => (12, 8, 256),
            ExecutorClass::AlwaysOnTest => (10, 2, 64),
        };
        let shape = ProofShape::Int8 {
            log2_n,
            rounds,
            entries,
            // The model has the memory.
            blocks_per_row: 0,
        };
        let trial = if self.class() == ExecutorClass::AlwaysOnTest {
            Trial {
                shape,
                fill_us: 60_000_000,
                commit_us: 60_000_000,
                open_us: 60_000_000,
            }
        } else {
            Trial::at_threshold(shape, int8, 0)
        };
        let is_int8 = |trial: &Trial| trial.shape.component() == Component::Int8;
        Self {
            thresholds: ClassThresholds {
                least,
                ..self.thresholds
            },
            trials: vec![trial],
            first_round: self.trials.iter().position(is_int8).unwrap_or(0),
        }
    }

    /// The proof that is asked for in this round of a batch, from 0.
    pub fn trial_in(&self, round: usize) -> Option<&Trial> {
        self.trials.get(round.checked_sub(self.first_round)?)
    }

    /// The number of rounds up to the last proof.
    pub fn rounds(&self) -> usize {
        self.first_round.saturating_add(self.trials.len())
    }

    /// The round of the first proof, from 0.
    pub const fn first_round(&self) -> usize {
        self.first_round
    }

    /// The class of the thresholds.
    pub fn class(&self) -> ExecutorClass {
        self.thresholds.class
    }
}

/// Whole blocks of memory in a row of the left matrix.
fn blocks_in_row(log2_n: u8, format: NumberFormat) -> u16 {
    let bytes = format.width() << log2_n.min(16);
    u16::try_from(bytes / LEAF).unwrap_or(u16::MAX)
}

/// Whether a correct proof measured less than the threshold of its class.
pub(crate) fn is_below_threshold(thresholds: &ClassThresholds, measured: &Measurement) -> bool {
    let least = &thresholds.least;
    match measured {
        Measurement::Matmul {
            numbers: NumberFormat::Int8,
            rate,
            ..
        } => *rate < least.int8,
        Measurement::Matmul {
            numbers: NumberFormat::Fp16,
            rate,
            ..
        } => *rate < least.fp16,
        Measurement::Walk { rate, .. } => *rate < least.bandwidth,
    }
}

#[cfg(test)]
mod tests {
    use muster_hardware_proof::challenge_keys::{BatchId, ChallengeNonce, ExecutorName};

    use super::*;

    #[test]
    fn every_class_has_a_course_that_can_be_asked_and_measures_every_floor() {
        let identity = ChallengeIdentity {
            batch: BatchId([1; 16]),
            executor: ExecutorName([2; 32]),
            nonce: ChallengeNonce([3; 32]),
        };
        for class in ExecutorClass::ALL {
            let grade_spec = GradeSpec::for_class(class).unwrap();
            assert_eq!(grade_spec.class(), class);
            let mut memory = None;
            for trial in &grade_spec.trials {
                let spec = trial.shape.challenge_spec(identity, memory).unwrap();
                let amount = match spec {
                    ProofSpec::Matmul(chain) => {
                        let bound = chain.binding().map(|binding| binding.memory);
                        assert_eq!(
                            bound, memory,
                            "{class} products are bound to the memory that was walked"
                        );
                        assert!(bound.is_some(), "{class}");
                        chain.operations()
                    }
                    ProofSpec::Walk(walk) => {
                        memory = Some(walk.memory());
                        walk.bytes_read()
                    }
                };
                assert_eq!(trial.shape.work_amount(), amount, "{class} {trial:?}");
                // At the threshold, the proof takes some seconds and less than its limit.
                let threshold = grade_spec.thresholds.least.get(trial.shape.component());
                let at_threshold = u64::try_from(amount / u128::from(threshold)).unwrap();
                if class != ExecutorClass::AlwaysOnTest {
                    assert!(
                        (3_000_000..90_000_000).contains(&at_threshold),
                        "{class} {trial:?} {at_threshold}"
                    );
                    assert!(trial.commit_us > at_threshold);
                }
            }
            let proven = |component| {
                grade_spec
                    .trials
                    .iter()
                    .any(|trial| trial.shape.component() == component)
            };
            for component in Component::ALL {
                let threshold = grade_spec.thresholds.least.get(component);
                let by = if component == Component::Memory {
                    Component::Bandwidth
                } else {
                    component
                };
                assert!(threshold == 0 || proven(by), "{class} {component:?}");
            }
            let beside = grade_spec.for_session();
            let [trial] = beside.trials.as_slice() else {
                panic!("one proof beside a session")
            };
            trial.shape.challenge_spec(identity, None).unwrap();
            let at_threshold = trial.shape.work_amount() / u128::from(beside.thresholds.least.int8);
            if class != ExecutorClass::AlwaysOnTest {
                assert!(
                    (3_000_000..90_000_000).contains(&at_threshold),
                    "{class} {at_threshold}"
                );
                assert!(u128::from(trial.commit_us) > at_threshold);
            }
        }
    }
}

//! The interface of a prover on any device, and the order in which its parts are called.

mod cpu;
mod parallel;

use std::num::NonZeroUsize;

pub use cpu::{CpuProver, MatrixProduct};

use crate::challenge_keys;
use crate::challenge_message::DrawnPositions;
use crate::conversation::{ProverOutput, ProverTask};
use crate::matmul::{EntryPosition, MatmulSpec, MatrixGenerator};
use crate::memory_walk::{StepPosition, WalkSpec};
use crate::merkle::Hash;
use crate::simd::InstructionSet;

/// A part of a prover's work, for reports of its progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProverPhase {
    /// Generating and preparing the matrix B.
    Prepare,
    /// Computing the rounds of a MATMUL.
    Rounds,
    /// Filling the blocks of a WALK's memory.
    Fill,
    /// Running the walks.
    Walks,
    /// Opening the drawn positions.
    Open,
}

/// Observes the work of a prover and may cancel it. Called from the worker threads.
pub trait WorkObserver: Sync {
    /// Reports that `done` of `total` pieces of this part are done.
    fn report_progress(&self, _part: ProverPhase, _done: u64, _total: u64) {}

    /// Whether the prover must stop. Called at least once per band of rows, run of blocks and leaf of a walk.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Observes nothing and never cancels.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl WorkObserver for NoObserver {}

/// The reason why a prover did not finish.
#[derive(Debug, thiserror::Error)]
pub enum ProverError {
    /// [`WorkObserver::is_cancelled`] asked it to stop.
    #[error("the work was cancelled")]
    Cancelled,
    /// The parts were called in another order than a conversation has.
    #[error("{0} was requested before the work that must come first")]
    OutOfOrder(&'static str),
    /// The machine has no room for this part of the challenge.
    #[error("this machine has no room for the {0} of the challenge: offer a smaller class")]
    TooLarge(&'static str),
    /// The device failed.
    #[error("the device of the prover failed")]
    Device(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The kernels of a prover on some device. All provers give the same bits as [`CpuProver`].
///
/// Between two calls, a prover keeps what an opening needs. It may compute a row of C, or a walk, again instead of
/// keeping it.
pub trait Prover {
    /// Generates and keeps B. Drops the state of an earlier MATMUL.
    ///
    /// # Errors
    /// The work was cancelled, there is no room, or the device failed.
    fn start_matmul(&mut self, spec: &MatmulSpec, watch: &dyn WorkObserver) -> Result<(), ProverError>;

    /// Computes `C_round` from the root of the round before (zeros for round 0) and returns its root.
    ///
    /// # Errors
    /// The work was cancelled, there is no room, no MATMUL was started, its bound memory is not filled, or the device
    /// failed.
    fn compute_round(
        &mut self,
        round: u32,
        previous: &Hash,
        watch: &dyn WorkObserver,
    ) -> Result<Hash, ProverError>;

    /// Appends the opening of each entry to `out`: its position, its leaf, its path.
    ///
    /// # Errors
    /// The same as for a round; also a position outside the products.
    fn open_entries(
        &mut self,
        places: &[EntryPosition],
        out: &mut Vec<u8>,
        watch: &dyn WorkObserver,
    ) -> Result<(), ProverError>;

    /// Fills the memory of a WALK. Drops an earlier memory.
    ///
    /// # Errors
    /// The work was cancelled, there is no room, or the device failed.
    fn fill_memory(&mut self, spec: &WalkSpec, watch: &dyn WorkObserver) -> Result<(), ProverError>;

    /// Runs all walks from `seed` and returns the root over their states.
    ///
    /// # Errors
    /// The work was cancelled, no memory is filled, or the device failed.
    fn run_walks(&mut self, seed: &[u8; 32], watch: &dyn WorkObserver) -> Result<Hash, ProverError>;

    /// Appends the opening of each step to `out`.
    ///
    /// # Errors
    /// The same as for the walks; also a step outside of them.
    fn open_steps(
        &mut self,
        places: &[StepPosition],
        out: &mut Vec<u8>,
        watch: &dyn WorkObserver,
    ) -> Result<(), ProverError>;
}

/// Does one task of an [`crate::conversation::ExecutorConversation`].
///
/// # Errors
/// The prover's error.
pub fn perform_task(
    prover: &mut dyn Prover,
    task: &ProverTask,
    watch: &dyn WorkObserver,
) -> Result<ProverOutput, ProverError> {
    match task {
        ProverTask::Matmul(spec) => {
            prover.start_matmul(spec, watch)?;
            let rounds = u32::from(spec.shape().rounds);
            let mut roots = Vec::new();
            let mut previous = [0; 32];
            for round in 0..rounds {
                previous = prover.compute_round(round, &previous, watch)?;
                roots.push(previous);
                watch.report_progress(ProverPhase::Rounds, u64::from(round) + 1, u64::from(rounds));
            }
            Ok(ProverOutput::Committed(
                MatrixGenerator::new(*spec, InstructionSet::PORTABLE).key_confirmation(),
                roots,
            ))
        }
        ProverTask::Fill(spec) => {
            prover.fill_memory(spec, watch)?;
            Ok(ProverOutput::Filled(challenge_keys::key_confirmation(
                &spec.challenge_id(),
                &spec.memory().label_key(),
            )))
        }
        ProverTask::Walk(spec, seed) => {
            let root = prover.run_walks(seed, watch)?;
            Ok(ProverOutput::Committed(
                challenge_keys::key_confirmation(&spec.challenge_id(), &spec.start_key(seed)),
                vec![root],
            ))
        }
        ProverTask::Open(places) => {
            let mut out = Vec::new();
            match places {
                DrawnPositions::Matmul(places) => prover.open_entries(places, &mut out, watch)?,
                DrawnPositions::Walk(places) => prover.open_steps(places, &mut out, watch)?,
            }
            Ok(ProverOutput::Opened(out))
        }
    }
}

/// The number of threads that this process may use.
pub fn available_threads() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// A dishonest prover for tests and demonstrations. A validator must find it out.
pub mod cheat {
    use super::{Prover, ProverError, WorkObserver};
    use crate::matmul::{EntryPosition, MatmulShape, MatmulSpec};
    use crate::memory_walk::{StepPosition, WalkSpec};
    use crate::merkle::Hash;

    /// Multiplies matrices of half the side, which is an eighth of the work, and answers as if they were whole. Every
    /// message has the form of an honest one. The memory is proven honestly.
    #[derive(Debug)]
    pub struct Smaller<P> {
        inner: P,
        asked: Option<MatmulSpec>,
    }

    impl<P: Prover> Smaller<P> {
        /// Cheats with this prover.
        pub fn new(inner: P) -> Self {
            Self { inner, asked: None }
        }
    }

    impl<P: Prover> Prover for Smaller<P> {
        fn start_matmul(&mut self, spec: &MatmulSpec, watch: &dyn WorkObserver) -> Result<(), ProverError> {
            let shape = MatmulShape {
                log2_n: spec.shape().log2_n.saturating_sub(1),
                ..*spec.shape()
            };
            let smaller = MatmulSpec::new(*spec.identity(), shape, None);
            let smaller = smaller.map_err(|_| ProverError::TooLarge("half of the smallest matrix"))?;
            self.asked = Some(*spec);
            self.inner.start_matmul(&smaller, watch)
        }

        fn compute_round(
            &mut self,
            round: u32,
            previous: &Hash,
            watch: &dyn WorkObserver,
        ) -> Result<Hash, ProverError> {
            self.inner.compute_round(round, previous, watch)
        }

        fn open_entries(
            &mut self,
            places: &[EntryPosition],
            out: &mut Vec<u8>,
            watch: &dyn WorkObserver,
        ) -> Result<(), ProverError> {
            let asked = self.asked.ok_or(ProverError::OutOfOrder("a chain"))?;
            for place in places {
                let half = EntryPosition {
                    row: place.row / 2,
                    column: place.column / 2,
                    ..*place
                };
                let mut opened = Vec::new();
                self.inner.open_entries(&[half], &mut opened, watch)?;
                // The drawn position, the leaf of another one, and a path of the right length.
                for part in [place.round, place.row, place.column] {
                    out.extend(part.to_le_bytes());
                }
                let end = out.len().saturating_add(asked.opening_bytes()).saturating_sub(12);
                out.extend(opened.get(12..).unwrap_or_default());
                out.resize(end, 0);
            }
            Ok(())
        }

        fn fill_memory(&mut self, spec: &WalkSpec, watch: &dyn WorkObserver) -> Result<(), ProverError> {
            self.inner.fill_memory(spec, watch)
        }

        fn run_walks(&mut self, seed: &[u8; 32], watch: &dyn WorkObserver) -> Result<Hash, ProverError> {
            self.inner.run_walks(seed, watch)
        }

        fn open_steps(
            &mut self,
            places: &[StepPosition],
            out: &mut Vec<u8>,
            watch: &dyn WorkObserver,
        ) -> Result<(), ProverError> {
            self.inner.open_steps(places, out, watch)
        }
    }
}

//! The interface of a prover on any device, and the order in which its parts are called.

mod cpu;
mod par;

use std::num::NonZeroUsize;

pub use cpu::{CpuProver, Product};

use crate::chain::{ChainSpec, Generator, Place};
use crate::keys;
use crate::merkle::Hash;
use crate::message::Places;
use crate::session::{Output, Task};
use crate::simd::Engine;
use crate::walk::{StepPlace, WalkSpec};

/// A part of a prover's work, for reports of its progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
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
pub trait Watch: Sync {
    /// Reports that `done` of `total` pieces of this part are done.
    fn progress(&self, _part: Part, _done: u64, _total: u64) {}

    /// Whether the prover must stop. Called at least once per band of rows, run of blocks and leaf of a walk.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Observes nothing and never cancels.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unwatched;

impl Watch for Unwatched {}

/// The reason why a prover did not finish.
#[derive(Debug, thiserror::Error)]
pub enum ProverError {
    /// [`Watch::cancelled`] asked it to stop.
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
/// Between two calls, a prover keeps what an opening needs. It may compute a row of C, or a walk, again instead of keeping it.
pub trait Prover {
    /// Generates and keeps B. Drops the state of an earlier MATMUL.
    ///
    /// # Errors
    /// The work was cancelled, there is no room, or the device failed.
    fn chain_start(&mut self, spec: &ChainSpec, watch: &dyn Watch) -> Result<(), ProverError>;

    /// Computes `C_round` from the root of the round before (zeros for round 0) and returns its root.
    ///
    /// # Errors
    /// The work was cancelled, there is no room, no MATMUL was started, its bound memory is not filled, or the device failed.
    fn chain_round(&mut self, round: u32, previous: &Hash, watch: &dyn Watch) -> Result<Hash, ProverError>;

    /// Appends the opening of each entry to `out`: its position, its leaf, its path.
    ///
    /// # Errors
    /// The same as for a round; also a position outside the products.
    fn chain_open(
        &mut self,
        places: &[Place],
        out: &mut Vec<u8>,
        watch: &dyn Watch,
    ) -> Result<(), ProverError>;

    /// Fills the memory of a WALK. Drops an earlier memory.
    ///
    /// # Errors
    /// The work was cancelled, there is no room, or the device failed.
    fn fill(&mut self, spec: &WalkSpec, watch: &dyn Watch) -> Result<(), ProverError>;

    /// Runs all walks from `seed` and returns the root over their states.
    ///
    /// # Errors
    /// The work was cancelled, no memory is filled, or the device failed.
    fn walk(&mut self, seed: &[u8; 32], watch: &dyn Watch) -> Result<Hash, ProverError>;

    /// Appends the opening of each step to `out`.
    ///
    /// # Errors
    /// The same as for the walks; also a step outside of them.
    fn walk_open(
        &mut self,
        places: &[StepPlace],
        out: &mut Vec<u8>,
        watch: &dyn Watch,
    ) -> Result<(), ProverError>;
}

/// Does one task of an [`crate::session::Executor`].
///
/// # Errors
/// The prover's error.
pub fn perform(prover: &mut dyn Prover, task: &Task, watch: &dyn Watch) -> Result<Output, ProverError> {
    match task {
        Task::Chain(spec) => {
            prover.chain_start(spec, watch)?;
            let rounds = u32::from(spec.shape().rounds);
            let mut roots = Vec::new();
            let mut previous = [0; 32];
            for round in 0..rounds {
                previous = prover.chain_round(round, &previous, watch)?;
                roots.push(previous);
                watch.progress(Part::Rounds, u64::from(round) + 1, u64::from(rounds));
            }
            Ok(Output::Committed(
                Generator::new(*spec, Engine::PORTABLE).print(),
                roots,
            ))
        }
        Task::Fill(spec) => {
            prover.fill(spec, watch)?;
            Ok(Output::Filled(keys::print(
                &spec.session(),
                &spec.memory().label_key(),
            )))
        }
        Task::Walk(spec, seed) => {
            let root = prover.walk(seed, watch)?;
            Ok(Output::Committed(
                keys::print(&spec.session(), &spec.start_key(seed)),
                vec![root],
            ))
        }
        Task::Open(places) => {
            let mut out = Vec::new();
            match places {
                Places::Chain(places) => prover.chain_open(places, &mut out, watch)?,
                Places::Walk(places) => prover.walk_open(places, &mut out, watch)?,
            }
            Ok(Output::Opened(out))
        }
    }
}

/// The number of threads that this process may use.
pub fn all_cores() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// A dishonest prover for tests and demonstrations. A validator must find it out.
pub mod cheat {
    use super::{Prover, ProverError, Watch};
    use crate::chain::{ChainShape, ChainSpec, Place};
    use crate::merkle::Hash;
    use crate::walk::{StepPlace, WalkSpec};

    /// Multiplies matrices of half the side, which is an eighth of the work, and answers as if they were whole. Every message has
    /// the form of an honest one. The memory is proven honestly.
    #[derive(Debug)]
    pub struct Smaller<P> {
        inner: P,
        asked: Option<ChainSpec>,
    }

    impl<P: Prover> Smaller<P> {
        /// Cheats with this prover.
        pub fn new(inner: P) -> Self {
            Self { inner, asked: None }
        }
    }

    impl<P: Prover> Prover for Smaller<P> {
        fn chain_start(&mut self, spec: &ChainSpec, watch: &dyn Watch) -> Result<(), ProverError> {
            let shape = ChainShape {
                log2_n: spec.shape().log2_n.saturating_sub(1),
                ..*spec.shape()
            };
            let smaller = ChainSpec::new(*spec.identity(), shape, None);
            let smaller = smaller.map_err(|_| ProverError::TooLarge("half of the smallest matrix"))?;
            self.asked = Some(*spec);
            self.inner.chain_start(&smaller, watch)
        }

        fn chain_round(
            &mut self,
            round: u32,
            previous: &Hash,
            watch: &dyn Watch,
        ) -> Result<Hash, ProverError> {
            self.inner.chain_round(round, previous, watch)
        }

        fn chain_open(
            &mut self,
            places: &[Place],
            out: &mut Vec<u8>,
            watch: &dyn Watch,
        ) -> Result<(), ProverError> {
            let asked = self.asked.ok_or(ProverError::OutOfOrder("a chain"))?;
            for place in places {
                let half = Place {
                    row: place.row / 2,
                    column: place.column / 2,
                    ..*place
                };
                let mut opened = Vec::new();
                self.inner.chain_open(&[half], &mut opened, watch)?;
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

        fn fill(&mut self, spec: &WalkSpec, watch: &dyn Watch) -> Result<(), ProverError> {
            self.inner.fill(spec, watch)
        }

        fn walk(&mut self, seed: &[u8; 32], watch: &dyn Watch) -> Result<Hash, ProverError> {
            self.inner.walk(seed, watch)
        }

        fn walk_open(
            &mut self,
            places: &[StepPlace],
            out: &mut Vec<u8>,
            watch: &dyn Watch,
        ) -> Result<(), ProverError> {
            self.inner.walk_open(places, out, watch)
        }
    }
}

//! What a prover does, whatever it runs on, and the order in which it is asked.

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

/// Which part of the work is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Generating and preparing B.
    Prepare,
    /// The rounds of a CHAIN.
    Rounds,
    /// The blocks of a WALK's memory.
    Fill,
    /// The walks.
    Walks,
    /// What was drawn.
    Open,
}

/// Who watches the work. Called from the worker threads.
pub trait Watch: Sync {
    /// `done` of `total` of this part are done.
    fn progress(&self, _part: Part, _done: u64, _total: u64) {}

    /// Whether to stop. Asked at least once per band of rows, run of blocks and leaf of a walk.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Nobody watches.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unwatched;

impl Watch for Unwatched {}

/// Why a prover did not finish.
#[derive(Debug, thiserror::Error)]
pub enum ProverError {
    /// It was asked to stop.
    #[error("the work was cancelled")]
    Cancelled,
    /// The parts were asked for in another order than a conversation has.
    #[error("the caller asked for {0} before what must come first")]
    OutOfOrder(&'static str),
    /// A shape that this machine cannot hold.
    #[error("this machine has no room for the {0} of the challenge: offer a smaller class")]
    TooLarge(&'static str),
    /// The device failed.
    #[error("the device that computes failed")]
    Device(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The kernels of a prover. One on the CPU is here; others give the same bits.
///
/// Between two calls a prover keeps what an opening needs and as little more as it likes: a row of C, or a walk, can be
/// computed again.
pub trait Prover {
    /// Generates and keeps B. Forgets an earlier chain.
    ///
    /// # Errors
    /// Cancelled, no room, the device.
    fn chain_start(&mut self, spec: &ChainSpec, watch: &dyn Watch) -> Result<(), ProverError>;

    /// Computes `C_round` from the root before it (zeros for round 0) and returns its root.
    ///
    /// # Errors
    /// Cancelled, no room, no chain started, the memory it is bound to not filled, the device.
    fn chain_round(&mut self, round: u32, previous: &Hash, watch: &dyn Watch) -> Result<Hash, ProverError>;

    /// Appends the opening of each place: the place, its leaf, its path.
    ///
    /// # Errors
    /// As for a round; a place outside the chain.
    fn chain_open(
        &mut self,
        places: &[Place],
        out: &mut Vec<u8>,
        watch: &dyn Watch,
    ) -> Result<(), ProverError>;

    /// Fills the memory. Forgets an earlier one.
    ///
    /// # Errors
    /// Cancelled, no room, the device.
    fn fill(&mut self, spec: &WalkSpec, watch: &dyn Watch) -> Result<(), ProverError>;

    /// Walks from `seed` and returns the root over all states.
    ///
    /// # Errors
    /// Cancelled, no memory filled, the device.
    fn walk(&mut self, seed: &[u8; 32], watch: &dyn Watch) -> Result<Hash, ProverError>;

    /// Appends the opening of each step.
    ///
    /// # Errors
    /// As for the walk; a step outside it.
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
/// What the prover says.
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

/// As many threads as this process may use.
pub fn all_cores() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// What a dishonest prover would do, for tests and demonstrations: a validator that cannot tell it from an honest one is none.
pub mod cheat {
    use super::{Prover, ProverError, Watch};
    use crate::chain::{ChainShape, ChainSpec, Place};
    use crate::merkle::Hash;
    use crate::walk::{StepPlace, WalkSpec};

    /// Multiplies matrices of half the side, an eighth of the work, and answers as if they were whole: every message has the form
    /// of an honest one. Memory is proven honestly.
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
                // The place that was drawn, the leaf of another, and a path as long as it should be.
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

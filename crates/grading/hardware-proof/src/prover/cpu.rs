//! The prover on the CPU: for machines without a GPU, for tests, and as the reference for provers on other devices.

mod matmul;
mod memory;

use std::num::NonZeroUsize;

use super::parallel::run_numbered;
use super::{Prover, ProverError, ProverPhase, WorkObserver};
use crate::matmul::{EntryPosition, MatmulSpec, MatrixGenerator};
use crate::memory_walk::{StepPosition, WalkSpec};
use crate::merkle::{self, Hash, LEAF, MerkleStack, MerkleTree};
use crate::simd::gemm::PreparedColumns;
use crate::simd::{self, InstructionSet};
pub use matmul::MatrixProduct;
use matmul::{BandBuffers, ROWS_PER_BAND, StartedMatmul, hash_leaves};
use memory::FilledMemory;

/// Blocks of memory in one piece of work.
const BLOCKS_PER_RUN: usize = 64;

/// A prover on this machine's processor.
pub struct CpuProver {
    engine: InstructionSet,
    threads: NonZeroUsize,
    matmul: Option<StartedMatmul>,
    memory: Option<FilledMemory>,
}

impl CpuProver {
    /// A prover that uses these instructions on this many threads.
    pub fn new(engine: InstructionSet, threads: NonZeroUsize) -> Self {
        Self {
            engine,
            threads,
            matmul: None,
            memory: None,
        }
    }
}

impl Prover for CpuProver {
    fn start_matmul(&mut self, spec: &MatmulSpec, watch: &dyn WorkObserver) -> Result<(), ProverError> {
        self.matmul = None;
        let generator = MatrixGenerator::new(*spec, self.engine);
        let (n, row_bytes) = (spec.n(), spec.row_bytes());
        let bands = run_numbered(
            self.threads,
            (n / ROWS_PER_BAND) as u64,
            (ProverPhase::Prepare, watch),
            || (),
            |(), band| {
                let mut columns = vec![0; ROWS_PER_BAND * row_bytes];
                for (column, place) in
                    (band as u32 * ROWS_PER_BAND as u32..).zip(columns.chunks_exact_mut(row_bytes))
                {
                    generator.fill_column(column, place);
                }
                Ok(columns)
            },
        )?;
        let right = PreparedColumns::new(self.engine, spec.shape().numbers, n, bands.concat());
        self.matmul = Some(StartedMatmul {
            spec: *spec,
            generator,
            right,
            rounds: Vec::new(),
        });
        Ok(())
    }

    fn compute_round(
        &mut self,
        round: u32,
        previous: &Hash,
        watch: &dyn WorkObserver,
    ) -> Result<Hash, ProverError> {
        let memory = self.memory.as_ref();
        let chain = self.matmul.as_mut().ok_or(ProverError::OutOfOrder("a round"))?;
        if chain.rounds.len() != round as usize {
            return Err(ProverError::OutOfOrder("a round"));
        }
        let n = chain.spec.n();
        let bands = (n / ROWS_PER_BAND) as u64;
        let band = BandBuffers::default;
        // Progress is reported per round, so a band reports none.
        let quiet = CancellationOnly(watch);
        let roots = run_numbered(
            self.threads,
            bands,
            (ProverPhase::Rounds, &quiet),
            band,
            |band, number| {
                chain.compute_rows(
                    memory,
                    round,
                    previous,
                    (number as u32 * ROWS_PER_BAND as u32, ROWS_PER_BAND),
                    band,
                )?;
                Ok(band
                    .sums
                    .chunks_exact(n)
                    .map(|sums| MerkleTree::build(hash_leaves(sums)).root())
                    .collect::<Vec<_>>())
            },
        )?;
        let tree = MerkleTree::build(roots.concat());
        let root = tree.root();
        chain.rounds.push((*previous, tree));
        Ok(root)
    }

    fn open_entries(
        &mut self,
        places: &[EntryPosition],
        out: &mut Vec<u8>,
        watch: &dyn WorkObserver,
    ) -> Result<(), ProverError> {
        let memory = self.memory.as_ref();
        let chain = self
            .matmul
            .as_ref()
            .ok_or(ProverError::OutOfOrder("an opening"))?;
        let count = places.len() as u64;
        let band = BandBuffers::default;
        let opened = run_numbered(
            self.threads,
            count,
            (ProverPhase::Open, watch),
            band,
            |band, number| {
                let place = places
                    .get(number as usize)
                    .ok_or(ProverError::OutOfOrder("an opening"))?;
                chain.open_entry(memory, *place, band)
            },
        )?;
        out.extend(opened.concat());
        Ok(())
    }

    fn fill_memory(&mut self, spec: &WalkSpec, watch: &dyn WorkObserver) -> Result<(), ProverError> {
        self.memory = None;
        let count = usize::try_from(spec.shape().blocks).map_err(|_| ProverError::TooLarge("memory"))?;
        let mut blocks: Vec<[u8; LEAF]> = Vec::new();
        blocks
            .try_reserve_exact(count)
            .map_err(|_| ProverError::TooLarge("memory"))?;
        blocks.resize(count, [0; LEAF]);
        let (key, work) = (spec.memory().label_key(), spec.shape().work);
        // Each piece locks its own run of blocks. No other piece uses that lock.
        let runs: Vec<_> = blocks
            .chunks_mut(BLOCKS_PER_RUN)
            .map(parking_lot::Mutex::new)
            .collect();
        run_numbered(
            self.threads,
            runs.len() as u64,
            (ProverPhase::Fill, watch),
            || (),
            |(), number| {
                let run = runs
                    .get(number as usize)
                    .ok_or(ProverError::OutOfOrder("a run of blocks"))?;
                let mut run = run.lock();
                for (index, block) in (number * BLOCKS_PER_RUN as u64..).zip(run.iter_mut()) {
                    simd::compute_label_block(self.engine, &key, index, work, block);
                }
                Ok(())
            },
        )?;
        drop(runs);
        self.memory = Some(FilledMemory {
            spec: *spec,
            blocks,
            walked: None,
        });
        Ok(())
    }

    fn run_walks(&mut self, seed: &[u8; 32], watch: &dyn WorkObserver) -> Result<Hash, ProverError> {
        let memory = self.memory.as_mut().ok_or(ProverError::OutOfOrder("a walk"))?;
        let key = memory.spec.start_key(seed);
        let walks = u64::from(memory.spec.walks());
        let roots = run_numbered(
            self.threads,
            walks,
            (ProverPhase::Walks, watch),
            || (),
            |(), walk| {
                let mut stack = MerkleStack::default();
                memory.run_walk(&key, walk as u32, watch, |leaf| {
                    stack.push(merkle::hash_leaf(leaf))
                })?;
                stack.root().ok_or(ProverError::OutOfOrder("a walk"))
            },
        )?;
        let tree = MerkleTree::build(roots);
        let root = tree.root();
        memory.walked = Some((key, tree));
        Ok(root)
    }

    fn open_steps(
        &mut self,
        places: &[StepPosition],
        out: &mut Vec<u8>,
        watch: &dyn WorkObserver,
    ) -> Result<(), ProverError> {
        let memory = self
            .memory
            .as_ref()
            .ok_or(ProverError::OutOfOrder("an opening"))?;
        let opened = run_numbered(
            self.threads,
            places.len() as u64,
            (ProverPhase::Open, watch),
            || (),
            |(), number| {
                let place = places
                    .get(number as usize)
                    .ok_or(ProverError::OutOfOrder("an opening"))?;
                memory.open_step(*place, watch)
            },
        )?;
        out.extend(opened.concat());
        Ok(())
    }
}

/// Passes on cancellation and drops reports of progress.
struct CancellationOnly<'a>(&'a dyn WorkObserver);

impl WorkObserver for CancellationOnly<'_> {
    fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }
}

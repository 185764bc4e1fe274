//! The prover on the CPU: for machines without a GPU, for tests, and as the reference for provers on other devices.

use std::num::NonZeroUsize;

use super::par::numbered;
use super::{Part, Prover, ProverError, Watch};
use crate::chacha::Key;
use crate::chain::{ChainSpec, Generator, LEAF_ENTRIES, Place, xor};
use crate::merkle::{self, Hash, LEAF, Stack, Tree};
use crate::simd::gemm::{Right, Scratch};
use crate::simd::{self, Engine};
use crate::spec::Numbers;
use crate::walk::{LEAF_STATES, StepPlace, WalkSpec, WalkState, address_bits, start, step};

/// Rows of A in one piece of work. The rows of a band and their sums mostly stay in the second-level cache.
const BAND: usize = 128;
/// Blocks of memory in one piece of work.
const RUN: usize = 64;

/// A prover on this machine's processor.
pub struct CpuProver {
    engine: Engine,
    threads: NonZeroUsize,
    chain: Option<Chain>,
    memory: Option<Filled>,
}

struct Chain {
    spec: ChainSpec,
    generator: Generator,
    right: Right,
    /// For every round: the root of the round before, and the tree over the roots of its rows.
    rounds: Vec<(Hash, Tree)>,
}

struct Filled {
    spec: WalkSpec,
    blocks: Vec<[u8; LEAF]>,
    walked: Option<(Key, Tree)>,
}

struct Band {
    rows: Vec<u8>,
    sums: Vec<i32>,
    scratch: Scratch,
}

impl CpuProver {
    /// A prover that uses these instructions on this many threads.
    pub fn new(engine: Engine, threads: NonZeroUsize) -> Self {
        Self {
            engine,
            threads,
            chain: None,
            memory: None,
        }
    }
}

impl Prover for CpuProver {
    fn chain_start(&mut self, spec: &ChainSpec, watch: &dyn Watch) -> Result<(), ProverError> {
        self.chain = None;
        let generator = Generator::new(*spec, self.engine);
        let (n, row_bytes) = (spec.n(), spec.row_bytes());
        let bands = numbered(
            self.threads,
            (n / BAND) as u64,
            (Part::Prepare, watch),
            || (),
            |(), band| {
                let mut columns = vec![0; BAND * row_bytes];
                for (column, place) in (band as u32 * BAND as u32..).zip(columns.chunks_exact_mut(row_bytes))
                {
                    generator.column(column, place);
                }
                Ok(columns)
            },
        )?;
        let right = Right::new(self.engine, spec.shape().numbers, n, bands.concat());
        self.chain = Some(Chain {
            spec: *spec,
            generator,
            right,
            rounds: Vec::new(),
        });
        Ok(())
    }

    fn chain_round(&mut self, round: u32, previous: &Hash, watch: &dyn Watch) -> Result<Hash, ProverError> {
        let memory = self.memory.as_ref();
        let chain = self.chain.as_mut().ok_or(ProverError::OutOfOrder("a round"))?;
        if chain.rounds.len() != round as usize {
            return Err(ProverError::OutOfOrder("a round"));
        }
        let n = chain.spec.n();
        let bands = (n / BAND) as u64;
        let band = || Band {
            rows: vec![],
            sums: vec![],
            scratch: Scratch::default(),
        };
        // Progress is reported per round, so a band reports none.
        let quiet = Quiet(watch);
        let roots = numbered(
            self.threads,
            bands,
            (Part::Rounds, &quiet),
            band,
            |band, number| {
                chain.rows(memory, round, previous, (number as u32 * BAND as u32, BAND), band)?;
                Ok(band
                    .sums
                    .chunks_exact(n)
                    .map(|sums| Tree::over(leaf_hashes(sums)).root())
                    .collect::<Vec<_>>())
            },
        )?;
        let tree = Tree::over(roots.concat());
        let root = tree.root();
        chain.rounds.push((*previous, tree));
        Ok(root)
    }

    fn chain_open(
        &mut self,
        places: &[Place],
        out: &mut Vec<u8>,
        watch: &dyn Watch,
    ) -> Result<(), ProverError> {
        let memory = self.memory.as_ref();
        let chain = self.chain.as_ref().ok_or(ProverError::OutOfOrder("an opening"))?;
        let count = places.len() as u64;
        let band = || Band {
            rows: vec![],
            sums: vec![],
            scratch: Scratch::default(),
        };
        let opened = numbered(self.threads, count, (Part::Open, watch), band, |band, number| {
            let place = places
                .get(number as usize)
                .ok_or(ProverError::OutOfOrder("an opening"))?;
            chain.open(memory, *place, band)
        })?;
        out.extend(opened.concat());
        Ok(())
    }

    fn fill(&mut self, spec: &WalkSpec, watch: &dyn Watch) -> Result<(), ProverError> {
        self.memory = None;
        let count = usize::try_from(spec.shape().blocks).map_err(|_| ProverError::TooLarge("memory"))?;
        let mut blocks: Vec<[u8; LEAF]> = Vec::new();
        blocks
            .try_reserve_exact(count)
            .map_err(|_| ProverError::TooLarge("memory"))?;
        blocks.resize(count, [0; LEAF]);
        let (key, work) = (spec.memory().label_key(), spec.shape().work);
        // Each piece locks its own run of blocks. No other piece uses that lock.
        let runs: Vec<_> = blocks.chunks_mut(RUN).map(parking_lot::Mutex::new).collect();
        numbered(
            self.threads,
            runs.len() as u64,
            (Part::Fill, watch),
            || (),
            |(), number| {
                let run = runs
                    .get(number as usize)
                    .ok_or(ProverError::OutOfOrder("a run of blocks"))?;
                let mut run = run.lock();
                for (index, block) in (number * RUN as u64..).zip(run.iter_mut()) {
                    simd::label_block(self.engine, &key, index, work, block);
                }
                Ok(())
            },
        )?;
        drop(runs);
        self.memory = Some(Filled {
            spec: *spec,
            blocks,
            walked: None,
        });
        Ok(())
    }

    fn walk(&mut self, seed: &[u8; 32], watch: &dyn Watch) -> Result<Hash, ProverError> {
        let memory = self.memory.as_mut().ok_or(ProverError::OutOfOrder("a walk"))?;
        let key = memory.spec.start_key(seed);
        let walks = u64::from(memory.spec.walks());
        let roots = numbered(
            self.threads,
            walks,
            (Part::Walks, watch),
            || (),
            |(), walk| {
                let mut stack = Stack::default();
                memory.states(&key, walk as u32, watch, |leaf| {
                    stack.push(merkle::leaf_hash(leaf))
                })?;
                stack.root().ok_or(ProverError::OutOfOrder("a walk"))
            },
        )?;
        let tree = Tree::over(roots);
        let root = tree.root();
        memory.walked = Some((key, tree));
        Ok(root)
    }

    fn walk_open(
        &mut self,
        places: &[StepPlace],
        out: &mut Vec<u8>,
        watch: &dyn Watch,
    ) -> Result<(), ProverError> {
        let memory = self
            .memory
            .as_ref()
            .ok_or(ProverError::OutOfOrder("an opening"))?;
        let opened = numbered(
            self.threads,
            places.len() as u64,
            (Part::Open, watch),
            || (),
            |(), number| {
                let place = places
                    .get(number as usize)
                    .ok_or(ProverError::OutOfOrder("an opening"))?;
                memory.open(*place, watch)
            },
        )?;
        out.extend(opened.concat());
        Ok(())
    }
}

impl Chain {
    /// Generates rows of A and multiplies them by B.
    fn rows(
        &self,
        memory: Option<&Filled>,
        round: u32,
        previous: &Hash,
        (first, count): (u32, usize),
        band: &mut Band,
    ) -> Result<(), ProverError> {
        let (n, row_bytes) = (self.spec.n(), self.spec.row_bytes());
        band.rows.resize(count * row_bytes, 0);
        band.sums.resize(count * n, 0);
        let key = self.generator.a_key(round, previous);
        for (row, bytes) in (first..).zip(band.rows.chunks_exact_mut(row_bytes)) {
            self.generator.row(&key, row, bytes);
            let pieces = bytes.as_chunks_mut::<LEAF>().0;
            for (piece, address) in pieces
                .iter_mut()
                .zip(self.generator.bound_blocks(round, previous, row))
            {
                xor(piece, self.bound(memory, address)?);
            }
        }
        self.right.multiply(&band.rows, &mut band.sums, &mut band.scratch);
        Ok(())
    }

    fn bound<'a>(&self, memory: Option<&'a Filled>, address: u64) -> Result<&'a [u8; LEAF], ProverError> {
        let bound = self.spec.binding().map(|binding| binding.memory);
        let filled = memory.filter(|filled| Some(filled.spec.memory()) == bound);
        filled
            .and_then(|filled| filled.blocks.get(address as usize))
            .ok_or(ProverError::OutOfOrder("a bound chain"))
    }

    /// Opens one entry. Its row is computed again; the tree over the rows was kept.
    fn open(&self, memory: Option<&Filled>, place: Place, band: &mut Band) -> Result<Vec<u8>, ProverError> {
        let round = self
            .rounds
            .get(place.round as usize)
            .ok_or(ProverError::OutOfOrder("an opening"))?;
        let (previous, tree) = round;
        self.rows(memory, place.round, previous, (place.row, 1), band)?;
        let leaf = u64::from(place.column / LEAF_ENTRIES);
        let row = Tree::over(leaf_hashes(&band.sums));
        let entries = band
            .sums
            .chunks_exact(LEAF_ENTRIES as usize)
            .nth(leaf as usize)
            .unwrap_or_default();
        let mut out = Vec::with_capacity(self.spec.opening_bytes());
        for number in [place.round, place.row, place.column] {
            out.extend(number.to_le_bytes());
        }
        out.extend(leaf_bytes(entries));
        out.extend(row.path(leaf).as_flattened());
        out.extend(tree.path(u64::from(place.row)).as_flattened());
        Ok(out)
    }
}

impl Filled {
    /// Runs one walk and passes every full leaf of states to `leaf_done`.
    fn states(
        &self,
        key: &Key,
        walk: u32,
        watch: &dyn Watch,
        mut leaf_done: impl FnMut(&[u8; LEAF]),
    ) -> Result<(), ProverError> {
        let memory = self.spec.memory();
        let mut leaf = [0; LEAF];
        let mut state: WalkState = start(key, walk);
        for first in (0..self.spec.steps()).step_by(LEAF_STATES as usize) {
            if watch.cancelled() {
                return Err(ProverError::Cancelled);
            }
            for (number, place) in (first..).zip(leaf.as_chunks_mut::<32>().0) {
                let address = memory.address(address_bits(&state)) as usize;
                let block = self
                    .blocks
                    .get(address)
                    .ok_or(ProverError::OutOfOrder("a walk"))?;
                state = step(walk, number, &state, block);
                *place = state;
            }
            leaf_done(&leaf);
        }
        Ok(())
    }

    /// Opens one step. Its walk is run again.
    fn open(&self, place: StepPlace, watch: &dyn Watch) -> Result<Vec<u8>, ProverError> {
        let (key, tree) = self
            .walked
            .as_ref()
            .ok_or(ProverError::OutOfOrder("an opening"))?;
        let wanted = place.step / LEAF_STATES;
        let (mut hashes, mut kept) = (Vec::new(), Vec::new());
        self.states(key, place.walk, watch, |leaf| {
            let number = hashes.len() as u64;
            if number == wanted || number + 1 == wanted {
                kept.push(*leaf);
            }
            hashes.push(merkle::leaf_hash(leaf));
        })?;
        let own = Tree::over(hashes);
        let mut out = Vec::with_capacity(self.spec.opening_bytes(&place));
        out.extend(place.walk.to_le_bytes());
        out.extend(place.step.to_le_bytes());
        let leaves = (0..=wanted)
            .rev()
            .zip(kept.iter().rev())
            .take(1 + usize::from(place.needs_leaf_before()));
        for (number, leaf) in leaves {
            out.extend(leaf);
            out.extend(own.path(number).as_flattened());
            out.extend(tree.path(u64::from(place.walk)).as_flattened());
        }
        Ok(out)
    }
}

/// Encodes the 256 entries of a leaf, little-endian.
fn leaf_bytes(entries: &[i32]) -> [u8; LEAF] {
    let mut leaf = [0; LEAF];
    for (bytes, entry) in leaf.as_chunks_mut::<4>().0.iter_mut().zip(entries) {
        *bytes = entry.to_le_bytes();
    }
    leaf
}

fn leaf_hashes(sums: &[i32]) -> Vec<Hash> {
    sums.chunks_exact(LEAF_ENTRIES as usize)
        .map(|entries| merkle::leaf_hash(&leaf_bytes(entries)))
        .collect()
}

/// Passes on cancellation and drops reports of progress.
struct Quiet<'a>(&'a dyn Watch);

impl Watch for Quiet<'_> {
    fn cancelled(&self) -> bool {
        self.0.cancelled()
    }
}

/// A matrix product without a challenge, for measurements.
pub struct Product {
    right: Right,
    row_bytes: usize,
    n: usize,
}

impl Product {
    /// Prepares `columns`: n columns of keystream bytes, where n is a multiple of 128.
    pub fn new(engine: Engine, numbers: Numbers, n: usize, columns: Vec<u8>) -> Self {
        Self {
            right: Right::new(engine, numbers, n, columns),
            row_bytes: n * numbers.width(),
            n,
        }
    }

    /// Computes `out = rows · B` on one thread, in bands like the prover.
    pub fn multiply(&self, rows: &[u8], out: &mut [i32]) {
        let mut scratch = Scratch::default();
        for (rows, out) in rows
            .chunks(BAND * self.row_bytes)
            .zip(out.chunks_mut(BAND * self.n))
        {
            self.right.multiply(rows, out, &mut scratch);
        }
    }
}

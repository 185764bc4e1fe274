//! The matrix products of the prover on the CPU.

use crate::matmul::{EntryPosition, LEAF_ENTRIES, MatmulSpec, MatrixGenerator, xor_leaf};
use crate::merkle::{self, Hash, LEAF, MerkleTree};
use crate::prover::ProverError;
use crate::simd::InstructionSet;
use crate::simd::gemm::{PreparedColumns, Scratch};
use crate::spec::NumberFormat;

use super::memory::FilledMemory;

/// Rows of A in one piece of work. The rows of a band and their sums mostly stay in the second-level cache.
pub(super) const ROWS_PER_BAND: usize = 128;

/// A MATMUL that has been started.
pub(super) struct StartedMatmul {
    pub(super) spec: MatmulSpec,
    pub(super) generator: MatrixGenerator,
    pub(super) right: PreparedColumns,
    /// For every round: the root of the round before, and the tree over the roots of its rows.
    pub(super) rounds: Vec<(Hash, MerkleTree)>,
}

/// The buffers of one thread: rows of A and their sums.
#[derive(Default)]
pub(super) struct BandBuffers {
    pub(super) rows: Vec<u8>,
    pub(super) sums: Vec<i32>,
    pub(super) scratch: Scratch,
}

impl StartedMatmul {
    /// Generates rows of A and multiplies them by B.
    pub(super) fn compute_rows(
        &self,
        memory: Option<&FilledMemory>,
        round: u32,
        previous: &Hash,
        (first, count): (u32, usize),
        band: &mut BandBuffers,
    ) -> Result<(), ProverError> {
        let (n, row_bytes) = (self.spec.n(), self.spec.row_bytes());
        band.rows.resize(count * row_bytes, 0);
        band.sums.resize(count * n, 0);
        let key = self.generator.a_key(round, previous);
        for (row, bytes) in (first..).zip(band.rows.chunks_exact_mut(row_bytes)) {
            self.generator.fill_row(&key, row, bytes);
            let pieces = bytes.as_chunks_mut::<LEAF>().0;
            for (piece, address) in pieces
                .iter_mut()
                .zip(self.generator.bound_blocks(round, previous, row))
            {
                xor_leaf(piece, self.bound_block(memory, address)?);
            }
        }
        self.right.multiply(&band.rows, &mut band.sums, &mut band.scratch);
        Ok(())
    }

    fn bound_block<'a>(
        &self,
        memory: Option<&'a FilledMemory>,
        address: u64,
    ) -> Result<&'a [u8; LEAF], ProverError> {
        let bound = self.spec.binding().map(|binding| binding.memory);
        let filled = memory.filter(|filled| Some(filled.spec.memory()) == bound);
        filled
            .and_then(|filled| filled.blocks.get(address as usize))
            .ok_or(ProverError::OutOfOrder("a bound chain"))
    }

    /// Opens one entry. Its row is computed again; the tree over the rows was kept.
    pub(super) fn open_entry(
        &self,
        memory: Option<&FilledMemory>,
        place: EntryPosition,
        band: &mut BandBuffers,
    ) -> Result<Vec<u8>, ProverError> {
        let round = self
            .rounds
            .get(place.round as usize)
            .ok_or(ProverError::OutOfOrder("an opening"))?;
        let (previous, tree) = round;
        self.compute_rows(memory, place.round, previous, (place.row, 1), band)?;
        let leaf = u64::from(place.column / LEAF_ENTRIES);
        let row = MerkleTree::build(hash_leaves(&band.sums));
        let entries = band
            .sums
            .chunks_exact(LEAF_ENTRIES as usize)
            .nth(leaf as usize)
            .unwrap_or_default();
        let mut out = Vec::with_capacity(self.spec.opening_bytes());
        for number in [place.round, place.row, place.column] {
            out.extend(number.to_le_bytes());
        }
        out.extend(encode_leaf(entries));
        out.extend(row.path(leaf).as_flattened());
        out.extend(tree.path(u64::from(place.row)).as_flattened());
        Ok(out)
    }
}

/// Encodes the 256 entries of a leaf, little-endian.
fn encode_leaf(entries: &[i32]) -> [u8; LEAF] {
    let mut leaf = [0; LEAF];
    for (bytes, entry) in leaf.as_chunks_mut::<4>().0.iter_mut().zip(entries) {
        *bytes = entry.to_le_bytes();
    }
    leaf
}

pub(super) fn hash_leaves(sums: &[i32]) -> Vec<Hash> {
    sums.chunks_exact(LEAF_ENTRIES as usize)
        .map(|entries| merkle::hash_leaf(&encode_leaf(entries)))
        .collect()
}

/// A matrix product without a challenge, for measurements.
pub struct MatrixProduct {
    right: PreparedColumns,
    row_bytes: usize,
    n: usize,
}

impl MatrixProduct {
    /// Prepares `columns`: n columns of keystream bytes, where n is a multiple of 128.
    pub fn new(engine: InstructionSet, numbers: NumberFormat, n: usize, columns: Vec<u8>) -> Self {
        Self {
            right: PreparedColumns::new(engine, numbers, n, columns),
            row_bytes: n * numbers.width(),
            n,
        }
    }

    /// Computes `out = rows · B` on one thread, in bands like the prover.
    pub fn multiply(&self, rows: &[u8], out: &mut [i32]) {
        let mut scratch = Scratch::default();
        for (rows, out) in rows
            .chunks(ROWS_PER_BAND * self.row_bytes)
            .zip(out.chunks_mut(ROWS_PER_BAND * self.n))
        {
            self.right.multiply(rows, out, &mut scratch);
        }
    }
}

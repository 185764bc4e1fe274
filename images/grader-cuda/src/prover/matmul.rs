//! MATMUL on a device: bands of rows in two lanes, so that one band is hashed while the next is multiplied.

use std::collections::BTreeMap;

use muster_hardware_proof::InstructionSet;
use muster_hardware_proof::chacha::Key;
use muster_hardware_proof::challenge_keys::{self, KeyPurpose};
use muster_hardware_proof::matmul::{EntryPosition, LEAF_ENTRIES, MatmulSpec, MatrixGenerator};
use muster_hardware_proof::merkle::{Hash, LEAF, MerkleTree};
use muster_hardware_proof::prover::{ProverError, ProverPhase, WorkObserver};
use muster_hardware_proof::spec::NumberFormat;

use super::memory_walk::FilledMemory;
use super::{LaunchSizes, allocate, build_trees, device_error, read_hashes, stop_if_cancelled};
use crate::device_interface::{Device, Lane, TILE_ROWS};
use crate::kernels::{BoundMemory, HASH, Kernels, RowSpan};

/// The state of a MATMUL that has been started.
pub(super) struct StartedMatmul<D: Device> {
    spec: MatmulSpec,
    generator: MatrixGenerator,
    /// The number of rows of a band.
    band: u32,
    b: D::Memory,
    lanes: [LaneBuffers<D>; 2],
    /// The roots of all rows of the round, and the levels of the tree above them.
    roots: D::Memory,
    between: D::Memory,
    top: D::Memory,
    rounds: Vec<KeptRound>,
}

/// The memories of one lane.
struct LaneBuffers<D: Device> {
    a: D::Memory,
    c: D::Memory,
    leaves: D::Memory,
    between: D::Memory,
}

/// The parts of a round that an opening needs. The rest is computed again.
struct KeptRound {
    previous: Hash,
    row_roots: Vec<Hash>,
}

impl<D: Device> StartedMatmul<D> {
    /// Allocates all memory of a MATMUL and generates B.
    pub(super) fn start(
        kernels: &Kernels<D>,
        spec: &MatmulSpec,
        sizes: &LaunchSizes,
    ) -> Result<Self, ProverError> {
        let n = spec.n() as u64;
        let rows = (sizes.panel_bytes / (4 * n)).clamp(u64::from(TILE_ROWS), n);
        let rows = rows - rows % u64::from(TILE_ROWS);
        let take = |bytes| allocate(kernels, bytes, "matrices");
        let row_bytes = spec.row_bytes() as u64;
        let band = || {
            Ok(LaneBuffers {
                a: take(rows * row_bytes)?,
                c: take(rows * n * 4)?,
                leaves: take(rows * leaves_per_row(spec) * HASH)?,
                between: take(rows * leaves_per_row(spec) * HASH)?,
            })
        };
        let matmul = Self {
            spec: *spec,
            generator: MatrixGenerator::new(*spec, InstructionSet::best()),
            band: rows as u32,
            b: take(n * row_bytes)?,
            lanes: [band()?, band()?],
            roots: take(n * HASH)?,
            between: take(n * HASH)?,
            top: take(HASH)?,
            rounds: Vec::new(),
        };
        let span = RowSpan {
            key: *matmul.generator.b_key(),
            bound: Key([0; 32]),
            first: 0,
        };
        let shape = (spec.shape().numbers, n, n as u32);
        kernels
            .rows(Lane::Even, &span, shape, None, &matmul.b)
            .and_then(|()| kernels.0.wait(Lane::Even))
            .map_err(device_error)?;
        Ok(matmul)
    }

    /// Computes a round and keeps the parts that its opening needs.
    pub(super) fn round(
        &mut self,
        kernels: &Kernels<D>,
        memory: Option<&FilledMemory<D>>,
        round: u32,
        previous: &Hash,
        watch: &dyn WorkObserver,
    ) -> Result<Hash, ProverError> {
        if self.rounds.len() != round as usize {
            return Err(ProverError::OutOfOrder("a round"));
        }
        let n = self.spec.n() as u64;
        let outcome = self.bands(kernels, memory, round, previous, watch);
        // Waits even after an error, because the next call writes to the same memories.
        let waited = Lane::BOTH.map(|lane| kernels.0.wait(lane));
        outcome?;
        waited
            .into_iter()
            .collect::<Result<(), _>>()
            .map_err(device_error)?;
        let levels = u32::from(self.spec.shape().log2_n);
        let from = (&self.roots, 0);
        kernels
            .climb(Lane::Even, from, (n, levels), &self.between, (&self.top, 0))
            .map_err(device_error)?;
        let root = read_hashes(kernels, &self.top, 0, 1)?.pop().unwrap_or_default();
        self.rounds.push(KeptRound {
            previous: *previous,
            row_roots: read_hashes(kernels, &self.roots, 0, n)?,
        });
        Ok(root)
    }

    fn bands(
        &self,
        kernels: &Kernels<D>,
        memory: Option<&FilledMemory<D>>,
        round: u32,
        previous: &Hash,
        watch: &dyn WorkObserver,
    ) -> Result<(), ProverError> {
        let bound = self.bound(memory)?;
        let n = self.spec.n() as u64;
        for number in 0..n / u64::from(self.band) {
            stop_if_cancelled(watch)?;
            let (lane, first) = (Lane::of(number), number * u64::from(self.band));
            let band = self.of_lane(lane);
            let span = self.span(round, previous, first);
            let shape = (self.numbers(), n, self.band);
            // Waits for the band before last, which used the same memories.
            kernels
                .0
                .wait(lane)
                .and_then(|()| kernels.rows(lane, &span, shape, bound.as_ref(), &band.a))
                .and_then(|()| kernels.product(lane, shape, &band.a, &self.b, &band.c))
                .map_err(device_error)?;
            self.row_roots(kernels, lane, (&self.roots, first))?;
        }
        Ok(())
    }

    /// Hashes a band of C up to the roots of its rows.
    fn row_roots(&self, kernels: &Kernels<D>, lane: Lane, to: (&D::Memory, u64)) -> Result<(), ProverError> {
        let band = self.of_lane(lane);
        let count = u64::from(self.band) * leaves_per_row(&self.spec);
        let levels = leaves_per_row(&self.spec).ilog2();
        if levels == 0 {
            return kernels.leaves(lane, &band.c, count, to).map_err(device_error);
        }
        kernels
            .leaves(lane, &band.c, count, (&band.leaves, 0))
            .and_then(|()| kernels.climb(lane, (&band.leaves, 0), (count, levels), &band.between, to))
            .map_err(device_error)
    }

    /// Appends the openings of `places` to `out`.
    ///
    /// Their rows of A form one band, even if they are of different rounds. The band is generated, multiplied and
    /// hashed like any other.
    pub(super) fn open(
        &self,
        kernels: &Kernels<D>,
        memory: Option<&FilledMemory<D>>,
        places: &[EntryPosition],
        out: &mut Vec<u8>,
        watch: &dyn WorkObserver,
    ) -> Result<(), ProverError> {
        let trees = self.round_trees(places)?;
        let bound = self.bound(memory)?;
        let n = self.spec.n() as u64;
        let (lane, band) = (Lane::Even, self.of_lane(Lane::Even));
        let per_row = leaves_per_row(&self.spec);
        let spans = allocate(kernels, u64::from(self.band) * RowSpan::BYTES as u64, "openings")?;
        let mut done = 0;
        for drawn in places.chunks(self.band as usize) {
            stop_if_cancelled(watch)?;
            let rows = (drawn.len() as u32).next_multiple_of(TILE_ROWS);
            let shape = (self.numbers(), n, rows);
            kernels
                .0
                .write(&spans, 0, &self.spans(drawn, rows)?)
                .map_err(device_error)?;
            kernels
                .drawn_rows(lane, &spans, shape, bound.as_ref(), &band.a)
                .and_then(|()| kernels.product(lane, shape, &band.a, &self.b, &band.c))
                .and_then(|()| kernels.leaves(lane, &band.c, u64::from(rows) * per_row, (&band.leaves, 0)))
                .map_err(device_error)?;
            let leaf_hashes = read_hashes(kernels, &band.leaves, 0, drawn.len() as u64 * per_row)?;
            for (number, (place, bottom)) in (0..).zip(drawn.iter().zip(leaf_hashes.chunks(per_row as usize)))
            {
                let leaf = u64::from(place.column / LEAF_ENTRIES);
                let mut entries = [0; LEAF];
                let at = number * n * 4 + leaf * LEAF as u64;
                kernels.0.read(&band.c, at, &mut entries).map_err(device_error)?;
                let tree = trees
                    .get(&place.round)
                    .ok_or(ProverError::OutOfOrder("an opening"))?;
                for number in [place.round, place.row, place.column] {
                    out.extend(number.to_le_bytes());
                }
                out.extend(entries);
                out.extend(MerkleTree::build(bottom.to_vec()).path(leaf).as_flattened());
                out.extend(tree.path(u64::from(place.row)).as_flattened());
            }
            done += drawn.len() as u64;
            watch.report_progress(ProverPhase::Open, done, places.len() as u64);
        }
        Ok(())
    }

    /// Builds the trees over the rows of all opened rounds.
    fn round_trees(&self, places: &[EntryPosition]) -> Result<BTreeMap<u32, MerkleTree>, ProverError> {
        let mut wanted: Vec<u32> = places.iter().map(|place| place.round).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let bottoms: Option<Vec<_>> = wanted
            .iter()
            .map(|round| Some(self.rounds.get(*round as usize)?.row_roots.clone()))
            .collect();
        let bottoms = bottoms.ok_or(ProverError::OutOfOrder("an opening"))?;
        Ok(wanted.into_iter().zip(build_trees(bottoms)).collect())
    }

    /// Encodes a span for each position, and repeats the last one up to `rows`, because a block computes whole tiles.
    fn spans(&self, drawn: &[EntryPosition], rows: u32) -> Result<Vec<u8>, ProverError> {
        let n = self.spec.n() as u32;
        let mut bytes = Vec::with_capacity(rows as usize * RowSpan::BYTES);
        for place in drawn {
            let round = self.rounds.get(place.round as usize);
            let round = round
                .filter(|_| place.row < n && place.column < n)
                .ok_or(ProverError::OutOfOrder("an opening"))?;
            bytes.extend(
                self.span(place.round, &round.previous, u64::from(place.row))
                    .to_bytes(),
            );
        }
        let last = bytes
            .last_chunk::<{ RowSpan::BYTES }>()
            .copied()
            .unwrap_or([0; RowSpan::BYTES]);
        for _ in drawn.len()..rows as usize {
            bytes.extend(last);
        }
        Ok(bytes)
    }

    fn span(&self, round: u32, previous: &Hash, first: u64) -> RowSpan {
        RowSpan {
            key: self.generator.a_key(round, previous),
            bound: challenge_keys::derive_key(
                &self.spec.challenge_id(),
                KeyPurpose::BoundBlocks,
                round,
                previous,
            ),
            first,
        }
    }

    /// The memory to which the products are bound, if any. Fails if another memory is filled.
    fn bound<'a>(
        &self,
        memory: Option<&'a FilledMemory<D>>,
    ) -> Result<Option<BoundMemory<'a, D::Memory>>, ProverError> {
        let Some(binding) = self.spec.binding() else {
            return Ok(None);
        };
        let filled = memory.and_then(|filled| filled.of(&binding.memory));
        let memory = filled.ok_or(ProverError::OutOfOrder("a bound product"))?;
        Ok(Some(BoundMemory {
            memory,
            blocks: binding.memory.blocks,
            per_row: u32::from(binding.blocks_per_row),
        }))
    }

    fn numbers(&self) -> NumberFormat {
        self.spec.shape().numbers
    }

    fn of_lane(&self, lane: Lane) -> &LaneBuffers<D> {
        let [even, odd] = &self.lanes;
        match lane {
            Lane::Even => even,
            Lane::Odd => odd,
        }
    }
}

fn leaves_per_row(spec: &MatmulSpec) -> u64 {
    spec.n() as u64 / u64::from(LEAF_ENTRIES)
}

//! CHAIN on a device: bands of rows in two lanes, so that one band is hashed while the next is multiplied.

use std::collections::BTreeMap;

use muster_hardware_proof::Engine;
use muster_hardware_proof::chacha::Key;
use muster_hardware_proof::chain::{ChainSpec, Generator, LEAF_ENTRIES, Place};
use muster_hardware_proof::keys::{self, Purpose};
use muster_hardware_proof::merkle::{Hash, LEAF, Tree};
use muster_hardware_proof::prover::{Part, ProverError, Watch};
use muster_hardware_proof::spec::Numbers;

use super::walk::Filled;
use super::{Pace, failed, hashes, room, stop, trees};
use crate::device::{Device, Lane, TILE_ROWS};
use crate::kernels::{Bound, HASH, Kernels, Span};

/// A chain that has been started.
pub(super) struct Chain<D: Device> {
    spec: ChainSpec,
    generator: Generator,
    /// Rows of a band.
    band: u32,
    b: D::Memory,
    lanes: [Band<D>; 2],
    /// The roots of all rows of the round, and what is climbed from there.
    roots: D::Memory,
    between: D::Memory,
    top: D::Memory,
    rounds: Vec<Round>,
}

/// What one lane works with.
struct Band<D: Device> {
    a: D::Memory,
    c: D::Memory,
    leaves: D::Memory,
    between: D::Memory,
}

/// What an opening needs of a round; everything else is computed again.
struct Round {
    previous: Hash,
    row_roots: Vec<Hash>,
}

impl<D: Device> Chain<D> {
    /// Takes all memory that the chain needs, and generates B.
    pub(super) fn start(kernels: &Kernels<D>, spec: &ChainSpec, pace: &Pace) -> Result<Self, ProverError> {
        let n = spec.n() as u64;
        let rows = (pace.panel_bytes / (4 * n)).clamp(u64::from(TILE_ROWS), n);
        let rows = rows - rows % u64::from(TILE_ROWS);
        let take = |bytes| room(kernels, bytes, "matrices");
        let row_bytes = spec.row_bytes() as u64;
        let band = || {
            Ok(Band {
                a: take(rows * row_bytes)?,
                c: take(rows * n * 4)?,
                leaves: take(rows * leaves_per_row(spec) * HASH)?,
                between: take(rows * leaves_per_row(spec) * HASH)?,
            })
        };
        let chain = Self {
            spec: *spec,
            generator: Generator::new(*spec, Engine::best()),
            band: rows as u32,
            b: take(n * row_bytes)?,
            lanes: [band()?, band()?],
            roots: take(n * HASH)?,
            between: take(n * HASH)?,
            top: take(HASH)?,
            rounds: Vec::new(),
        };
        let span = Span {
            key: *chain.generator.b_key(),
            bound: Key([0; 32]),
            first: 0,
        };
        let shape = (spec.shape().numbers, n, n as u32);
        kernels
            .rows(Lane::Even, &span, shape, None, &chain.b)
            .and_then(|()| kernels.0.wait(Lane::Even))
            .map_err(failed)?;
        Ok(chain)
    }

    /// Computes a round and keeps what its opening needs.
    pub(super) fn round(
        &mut self,
        kernels: &Kernels<D>,
        memory: Option<&Filled<D>>,
        round: u32,
        previous: &Hash,
        watch: &dyn Watch,
    ) -> Result<Hash, ProverError> {
        if self.rounds.len() != round as usize {
            return Err(ProverError::OutOfOrder("a round"));
        }
        let n = self.spec.n() as u64;
        let outcome = self.bands(kernels, memory, round, previous, watch);
        // Also after an error: the next call writes to the same memories.
        let waited = Lane::BOTH.map(|lane| kernels.0.wait(lane));
        outcome?;
        waited.into_iter().collect::<Result<(), _>>().map_err(failed)?;
        let levels = u32::from(self.spec.shape().log2_n);
        let from = (&self.roots, 0);
        kernels
            .climb(Lane::Even, from, (n, levels), &self.between, (&self.top, 0))
            .map_err(failed)?;
        let root = hashes(kernels, &self.top, 0, 1)?.pop().unwrap_or_default();
        self.rounds.push(Round {
            previous: *previous,
            row_roots: hashes(kernels, &self.roots, 0, n)?,
        });
        Ok(root)
    }

    fn bands(
        &self,
        kernels: &Kernels<D>,
        memory: Option<&Filled<D>>,
        round: u32,
        previous: &Hash,
        watch: &dyn Watch,
    ) -> Result<(), ProverError> {
        let bound = self.bound(memory)?;
        let n = self.spec.n() as u64;
        for number in 0..n / u64::from(self.band) {
            stop(watch)?;
            let (lane, first) = (Lane::of(number), number * u64::from(self.band));
            let band = self.of_lane(lane);
            let span = self.span(round, previous, first);
            let shape = (self.numbers(), n, self.band);
            // The band before last, whose memories these are.
            kernels
                .0
                .wait(lane)
                .and_then(|()| kernels.rows(lane, &span, shape, bound.as_ref(), &band.a))
                .and_then(|()| kernels.product(lane, shape, &band.a, &self.b, &band.c))
                .map_err(failed)?;
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
            return kernels.leaves(lane, &band.c, count, to).map_err(failed);
        }
        kernels
            .leaves(lane, &band.c, count, (&band.leaves, 0))
            .and_then(|()| kernels.climb(lane, (&band.leaves, 0), (count, levels), &band.between, to))
            .map_err(failed)
    }

    /// Appends the openings of `places`.
    ///
    /// Their rows of A, of whatever rounds, are one band: they are generated again, multiplied and hashed like any other.
    pub(super) fn open(
        &self,
        kernels: &Kernels<D>,
        memory: Option<&Filled<D>>,
        places: &[Place],
        out: &mut Vec<u8>,
        watch: &dyn Watch,
    ) -> Result<(), ProverError> {
        let trees = self.round_trees(places)?;
        let bound = self.bound(memory)?;
        let n = self.spec.n() as u64;
        let (lane, band) = (Lane::Even, self.of_lane(Lane::Even));
        let per_row = leaves_per_row(&self.spec);
        let spans = room(kernels, u64::from(self.band) * Span::BYTES as u64, "openings")?;
        let mut done = 0;
        for drawn in places.chunks(self.band as usize) {
            stop(watch)?;
            let rows = (drawn.len() as u32).next_multiple_of(TILE_ROWS);
            let shape = (self.numbers(), n, rows);
            kernels
                .0
                .write(&spans, 0, &self.spans(drawn, rows)?)
                .map_err(failed)?;
            kernels
                .drawn_rows(lane, &spans, shape, bound.as_ref(), &band.a)
                .and_then(|()| kernels.product(lane, shape, &band.a, &self.b, &band.c))
                .and_then(|()| kernels.leaves(lane, &band.c, u64::from(rows) * per_row, (&band.leaves, 0)))
                .map_err(failed)?;
            let leaf_hashes = hashes(kernels, &band.leaves, 0, drawn.len() as u64 * per_row)?;
            for (number, (place, bottom)) in (0..).zip(drawn.iter().zip(leaf_hashes.chunks(per_row as usize)))
            {
                let leaf = u64::from(place.column / LEAF_ENTRIES);
                let mut entries = [0; LEAF];
                let at = number * n * 4 + leaf * LEAF as u64;
                kernels.0.read(&band.c, at, &mut entries).map_err(failed)?;
                let tree = trees
                    .get(&place.round)
                    .ok_or(ProverError::OutOfOrder("an opening"))?;
                for number in [place.round, place.row, place.column] {
                    out.extend(number.to_le_bytes());
                }
                out.extend(entries);
                out.extend(Tree::over(bottom.to_vec()).path(leaf).as_flattened());
                out.extend(tree.path(u64::from(place.row)).as_flattened());
            }
            done += drawn.len() as u64;
            watch.progress(Part::Open, done, places.len() as u64);
        }
        Ok(())
    }

    /// The trees over the rows of all rounds that are opened.
    fn round_trees(&self, places: &[Place]) -> Result<BTreeMap<u32, Tree>, ProverError> {
        let mut wanted: Vec<u32> = places.iter().map(|place| place.round).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let bottoms: Option<Vec<_>> = wanted
            .iter()
            .map(|round| Some(self.rounds.get(*round as usize)?.row_roots.clone()))
            .collect();
        let bottoms = bottoms.ok_or(ProverError::OutOfOrder("an opening"))?;
        Ok(wanted.into_iter().zip(trees(bottoms)).collect())
    }

    /// A span for each place, the last one again up to `rows`: a part of a product has no half.
    fn spans(&self, drawn: &[Place], rows: u32) -> Result<Vec<u8>, ProverError> {
        let n = self.spec.n() as u32;
        let mut bytes = Vec::with_capacity(rows as usize * Span::BYTES);
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
            .last_chunk::<{ Span::BYTES }>()
            .copied()
            .unwrap_or([0; Span::BYTES]);
        for _ in drawn.len()..rows as usize {
            bytes.extend(last);
        }
        Ok(bytes)
    }

    fn span(&self, round: u32, previous: &Hash, first: u64) -> Span {
        Span {
            key: self.generator.a_key(round, previous),
            bound: keys::derive(&self.spec.session(), Purpose::BoundBlocks, round, previous),
            first,
        }
    }

    /// The memory that lies over the rows, if this chain is bound to one: it must be that one.
    fn bound<'a>(&self, memory: Option<&'a Filled<D>>) -> Result<Option<Bound<'a, D::Memory>>, ProverError> {
        let Some(binding) = self.spec.binding() else {
            return Ok(None);
        };
        let filled = memory.and_then(|filled| filled.of(&binding.memory));
        let memory = filled.ok_or(ProverError::OutOfOrder("a bound chain"))?;
        Ok(Some(Bound {
            memory,
            blocks: binding.memory.blocks,
            per_row: u32::from(binding.blocks_per_row),
        }))
    }

    fn numbers(&self) -> Numbers {
        self.spec.shape().numbers
    }

    fn of_lane(&self, lane: Lane) -> &Band<D> {
        let [even, odd] = &self.lanes;
        match lane {
            Lane::Even => even,
            Lane::Odd => odd,
        }
    }
}

fn leaves_per_row(spec: &ChainSpec) -> u64 {
    spec.n() as u64 / u64::from(LEAF_ENTRIES)
}

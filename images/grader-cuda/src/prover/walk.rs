//! WALK on a device: a thread for every word, then a thread for every walk.

use muster_hardware_proof::chacha::Key;
use muster_hardware_proof::merkle::{Hash, LEAF, Tree};
use muster_hardware_proof::prover::{Part, ProverError, Watch};
use muster_hardware_proof::spec::{self, WORDS};
use muster_hardware_proof::walk::{LEAF_STATES, StepPlace, WalkSpec};

use super::{Pace, failed, hashes, room, stop, trees};
use crate::device::{Device, Lane};
use crate::kernels::{DrawnWalks, HASH, Kernels};

/// There is only one thing to do at a time.
const LANE: Lane = Lane::Even;

/// A memory that has been filled.
pub(super) struct Filled<D: Device> {
    spec: WalkSpec,
    memory: D::Memory,
    walked: Option<Walked>,
}

/// What an opening needs of the walks.
struct Walked {
    key: Key,
    tree: Tree,
}

/// What came of a walk that was walked again.
struct Again {
    /// The tree over its leaves.
    own: Tree,
    /// The leaf before the one wanted, and that one.
    kept: [[u8; LEAF]; 2],
}

impl<D: Device> Filled<D> {
    /// Takes the memory and fills it.
    pub(super) fn fill(
        kernels: &Kernels<D>,
        spec: &WalkSpec,
        pace: &Pace,
        watch: &dyn Watch,
    ) -> Result<Self, ProverError> {
        let memory = room(kernels, spec.bytes(), "memory")?;
        let (key, work) = (spec.memory().label_key(), spec.shape().work);
        let words = spec.shape().blocks * WORDS;
        let most = (pace.applications / u64::from(work)).max(WORDS);
        let mut first = 0;
        while first < words {
            stop(watch)?;
            let count = most.min(words - first);
            kernels
                .labels(LANE, &key, (first, count), work, &memory)
                .and_then(|()| kernels.0.wait(LANE))
                .map_err(failed)?;
            first += count;
            watch.progress(Part::Fill, first, words);
        }
        Ok(Self {
            spec: *spec,
            memory,
            walked: None,
        })
    }

    /// The memory, if it is the one described.
    pub(super) fn of(&self, memory: &spec::Memory) -> Option<&D::Memory> {
        (self.spec.memory() == *memory).then_some(&self.memory)
    }

    /// Walks all walks.
    pub(super) fn walk(
        &mut self,
        kernels: &Kernels<D>,
        pace: &Pace,
        seed: &[u8; 32],
        watch: &dyn Watch,
    ) -> Result<Hash, ProverError> {
        self.walked = None;
        let key = self.spec.start_key(seed);
        let (walks, levels) = (self.spec.walks(), u32::from(self.spec.shape().log2_leaves));
        let all = u64::from(walks) * HASH;
        let states = room(kernels, all, "states")?;
        let stack = room(kernels, all * u64::from(levels + 1), "states")?;
        kernels
            .walk_start(LANE, &key, None, walks, &states)
            .map_err(failed)?;
        let leaf_bytes = u64::from(walks) * LEAF_STATES * LEAF as u64;
        let most = (pace.bytes_read / leaf_bytes).clamp(1, 1 << levels) as u32;
        let shape = (walks, levels);
        self.in_pieces(kernels, most, watch, |piece| {
            let memory = (&self.memory, self.spec.shape().blocks);
            kernels
                .walk(LANE, memory, shape, piece, &states, &stack)
                .map_err(failed)
        })?;
        let roots = hashes(kernels, &stack, all * u64::from(levels), u64::from(walks))?;
        let tree = Tree::over(roots);
        let root = tree.root();
        self.walked = Some(Walked { key, tree });
        Ok(root)
    }

    /// Does `work` for runs of at most `most` leaves, waiting after each.
    fn in_pieces(
        &self,
        kernels: &Kernels<D>,
        most: u32,
        watch: &dyn Watch,
        work: impl Fn((u32, u32)) -> Result<(), ProverError>,
    ) -> Result<(), ProverError> {
        let leaves = self.leaves();
        let mut first = 0;
        while first < leaves {
            stop(watch)?;
            let count = most.min(leaves - first);
            work((first, count))?;
            kernels.0.wait(LANE).map_err(failed)?;
            first += count;
            watch.progress(Part::Walks, u64::from(first), u64::from(leaves));
        }
        Ok(())
    }

    fn leaves(&self) -> u32 {
        1 << self.spec.shape().log2_leaves
    }

    /// Appends the openings of `places`; their walks are walked again.
    pub(super) fn open(
        &self,
        kernels: &Kernels<D>,
        pace: &Pace,
        places: &[StepPlace],
        out: &mut Vec<u8>,
        watch: &dyn Watch,
    ) -> Result<(), ProverError> {
        let walked = self
            .walked
            .as_ref()
            .ok_or(ProverError::OutOfOrder("an opening"))?;
        let outside = |place: &StepPlace| place.walk >= self.spec.walks() || place.step >= self.spec.steps();
        if places.iter().any(outside) {
            return Err(ProverError::OutOfOrder("an opening"));
        }
        let at_once = (pace.panel_bytes / (u64::from(self.leaves()) * HASH)).clamp(1, 1024);
        for drawn in places.chunks(at_once as usize) {
            let again = self.again(kernels, pace, &walked.key, drawn, watch)?;
            for (place, Again { own, kept }) in drawn.iter().zip(again) {
                let wanted = place.step / LEAF_STATES;
                out.extend(place.walk.to_le_bytes());
                out.extend(place.step.to_le_bytes());
                let [before, leaf] = kept;
                let leaves = [(wanted, leaf), (wanted.saturating_sub(1), before)];
                for (number, leaf) in leaves.iter().take(1 + usize::from(place.needs_leaf_before())) {
                    out.extend(leaf);
                    out.extend(own.path(*number).as_flattened());
                    out.extend(walked.tree.path(u64::from(place.walk)).as_flattened());
                }
            }
        }
        Ok(())
    }

    /// Walks the walks of `drawn` again.
    fn again(
        &self,
        kernels: &Kernels<D>,
        pace: &Pace,
        key: &Key,
        drawn: &[StepPlace],
        watch: &dyn Watch,
    ) -> Result<Vec<Again>, ProverError> {
        let (count, leaves) = (drawn.len() as u32, self.leaves());
        let all = u64::from(count);
        let take = |bytes| room(kernels, bytes, "openings");
        let (walks, wanted) = (take(all * 4)?, take(all * 4)?);
        let (states, all_hashes) = (take(all * HASH)?, take(all * u64::from(leaves) * HASH)?);
        let kept = take(all * 2 * LEAF as u64)?;
        let numbers = |of: fn(&StepPlace) -> u32| {
            drawn
                .iter()
                .flat_map(|place| of(place).to_le_bytes())
                .collect::<Vec<_>>()
        };
        kernels
            .0
            .write(&walks, 0, &numbers(|place| place.walk))
            .and_then(|()| {
                kernels
                    .0
                    .write(&wanted, 0, &numbers(|place| (place.step / LEAF_STATES) as u32))
            })
            .and_then(|()| kernels.walk_start(LANE, key, Some(&walks), count, &states))
            .map_err(failed)?;
        let walks = DrawnWalks {
            count,
            leaves,
            walks: &walks,
            wanted: &wanted,
            states: &states,
            hashes: &all_hashes,
            kept: &kept,
        };
        let memory = (&self.memory, self.spec.shape().blocks);
        self.in_pieces(kernels, pace.leaves_again, watch, |piece| {
            kernels.walk_again(LANE, memory, &walks, piece).map_err(failed)
        })?;
        let bottoms = hashes(kernels, &all_hashes, 0, all * u64::from(leaves))?;
        let own = trees(bottoms.chunks(leaves as usize).map(<[Hash]>::to_vec).collect());
        let mut states = vec![[[0; LEAF]; 2]; drawn.len()];
        kernels
            .0
            .read(&kept, 0, states.as_flattened_mut().as_flattened_mut())
            .map_err(failed)?;
        Ok(own
            .into_iter()
            .zip(states)
            .map(|(own, kept)| Again { own, kept })
            .collect())
    }
}

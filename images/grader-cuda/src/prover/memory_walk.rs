//! WALK on a device: the fill uses a thread for every word, the walks use a thread for every walk.

use muster_hardware_proof::chacha::Key;
use muster_hardware_proof::memory_walk::{LEAF_STATES, StepPosition, WalkSpec};
use muster_hardware_proof::merkle::{Hash, LEAF, MerkleTree};
use muster_hardware_proof::prover::{ProverError, ProverPhase, WorkObserver};
use muster_hardware_proof::spec::{self, WORDS_PER_BLOCK};

use super::{LaunchSizes, allocate, build_trees, device_error, read_hashes, stop_if_cancelled};
use crate::device_interface::{Device, Lane};
use crate::kernels::{DrawnWalks, HASH, Kernels};

/// The only lane in use, because a WALK has no work to overlap.
const LANE: Lane = Lane::Even;

/// A filled memory on the device.
pub(super) struct FilledMemory<D: Device> {
    spec: WalkSpec,
    memory: D::Memory,
    walked: Option<FinishedWalks>,
}

/// The parts of the walks that an opening needs.
struct FinishedWalks {
    key: Key,
    tree: MerkleTree,
}

/// The result of running one walk again.
struct ReplayedWalk {
    /// The tree over the leaves of the walk.
    own: MerkleTree,
    /// The leaf before the wanted one, and the wanted one.
    kept: [[u8; LEAF]; 2],
}

impl<D: Device> FilledMemory<D> {
    /// Allocates the memory and fills it.
    pub(super) fn fill(
        kernels: &Kernels<D>,
        spec: &WalkSpec,
        sizes: &LaunchSizes,
        watch: &dyn WorkObserver,
    ) -> Result<Self, ProverError> {
        let memory = allocate(kernels, spec.bytes(), "memory")?;
        let (key, work) = (spec.memory().label_key(), spec.shape().work);
        let words = spec.shape().blocks * WORDS_PER_BLOCK;
        let most = (sizes.applications / u64::from(work)).max(WORDS_PER_BLOCK);
        let mut first = 0;
        while first < words {
            stop_if_cancelled(watch)?;
            let count = most.min(words - first);
            kernels
                .labels(LANE, &key, (first, count), work, &memory)
                .and_then(|()| kernels.0.wait(LANE))
                .map_err(device_error)?;
            first += count;
            watch.report_progress(ProverPhase::Fill, first, words);
        }
        Ok(Self {
            spec: *spec,
            memory,
            walked: None,
        })
    }

    /// The memory on the device, if it has these parameters.
    pub(super) fn of(&self, memory: &spec::WalkMemory) -> Option<&D::Memory> {
        (self.spec.memory() == *memory).then_some(&self.memory)
    }

    /// Runs all walks.
    pub(super) fn walk(
        &mut self,
        kernels: &Kernels<D>,
        sizes: &LaunchSizes,
        seed: &[u8; 32],
        watch: &dyn WorkObserver,
    ) -> Result<Hash, ProverError> {
        self.walked = None;
        let key = self.spec.start_key(seed);
        let (walks, levels) = (self.spec.walks(), u32::from(self.spec.shape().log2_leaves));
        let all = u64::from(walks) * HASH;
        let states = allocate(kernels, all, "states")?;
        let stack = allocate(kernels, all * u64::from(levels + 1), "states")?;
        kernels
            .walk_start(LANE, &key, None, walks, &states)
            .map_err(device_error)?;
        let leaf_bytes = u64::from(walks) * LEAF_STATES * LEAF as u64;
        let most = (sizes.bytes_read / leaf_bytes).clamp(1, 1 << levels) as u32;
        let shape = (walks, levels);
        self.in_pieces(kernels, most, watch, |piece| {
            let memory = (&self.memory, self.spec.shape().blocks);
            kernels
                .walk(LANE, memory, shape, piece, &states, &stack)
                .map_err(device_error)
        })?;
        let roots = read_hashes(kernels, &stack, all * u64::from(levels), u64::from(walks))?;
        let tree = MerkleTree::build(roots);
        let root = tree.root();
        self.walked = Some(FinishedWalks { key, tree });
        Ok(root)
    }

    /// Does `work` for runs of at most `most` leaves and waits after each run.
    fn in_pieces(
        &self,
        kernels: &Kernels<D>,
        most: u32,
        watch: &dyn WorkObserver,
        work: impl Fn((u32, u32)) -> Result<(), ProverError>,
    ) -> Result<(), ProverError> {
        let leaves = self.leaves();
        let mut first = 0;
        while first < leaves {
            stop_if_cancelled(watch)?;
            let count = most.min(leaves - first);
            work((first, count))?;
            kernels.0.wait(LANE).map_err(device_error)?;
            first += count;
            watch.report_progress(ProverPhase::Walks, u64::from(first), u64::from(leaves));
        }
        Ok(())
    }

    fn leaves(&self) -> u32 {
        1 << self.spec.shape().log2_leaves
    }

    /// Appends the openings of `places` to `out`. Their walks are run again.
    pub(super) fn open(
        &self,
        kernels: &Kernels<D>,
        sizes: &LaunchSizes,
        places: &[StepPosition],
        out: &mut Vec<u8>,
        watch: &dyn WorkObserver,
    ) -> Result<(), ProverError> {
        let walked = self
            .walked
            .as_ref()
            .ok_or(ProverError::OutOfOrder("an opening"))?;
        let outside =
            |place: &StepPosition| place.walk >= self.spec.walks() || place.step >= self.spec.steps();
        if places.iter().any(outside) {
            return Err(ProverError::OutOfOrder("an opening"));
        }
        let at_once = (sizes.panel_bytes / (u64::from(self.leaves()) * HASH)).clamp(1, 1024);
        for drawn in places.chunks(at_once as usize) {
            let again = self.again(kernels, sizes, &walked.key, drawn, watch)?;
            for (place, ReplayedWalk { own, kept }) in drawn.iter().zip(again) {
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

    /// Runs the walks of `drawn` again.
    fn again(
        &self,
        kernels: &Kernels<D>,
        sizes: &LaunchSizes,
        key: &Key,
        drawn: &[StepPosition],
        watch: &dyn WorkObserver,
    ) -> Result<Vec<ReplayedWalk>, ProverError> {
        let (count, leaves) = (drawn.len() as u32, self.leaves());
        let all = u64::from(count);
        let take = |bytes| allocate(kernels, bytes, "openings");
        let (walks, wanted) = (take(all * 4)?, take(all * 4)?);
        let (states, all_hashes) = (take(all * HASH)?, take(all * u64::from(leaves) * HASH)?);
        let kept = take(all * 2 * LEAF as u64)?;
        let numbers = |of: fn(&StepPosition) -> u32| {
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
            .map_err(device_error)?;
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
        self.in_pieces(kernels, sizes.leaves_again, watch, |piece| {
            kernels
                .walk_again(LANE, memory, &walks, piece)
                .map_err(device_error)
        })?;
        let bottoms = read_hashes(kernels, &all_hashes, 0, all * u64::from(leaves))?;
        let own = build_trees(bottoms.chunks(leaves as usize).map(<[Hash]>::to_vec).collect());
        let mut states = vec![[[0; LEAF]; 2]; drawn.len()];
        kernels
            .0
            .read(&kept, 0, states.as_flattened_mut().as_flattened_mut())
            .map_err(device_error)?;
        Ok(own
            .into_iter()
            .zip(states)
            .map(|(own, kept)| ReplayedWalk { own, kept })
            .collect())
    }
}

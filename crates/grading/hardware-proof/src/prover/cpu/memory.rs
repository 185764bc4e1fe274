//! The filled memory and the walks of the prover on the CPU.

use crate::chacha::Key;
use crate::memory_walk::{
    LEAF_STATES, StepPosition, WalkSpec, WalkState, address_bits, next_state, start_state,
};
use crate::merkle::{self, LEAF, MerkleTree};
use crate::prover::{ProverError, WorkObserver};

/// A filled memory, and the walks over it.
pub(super) struct FilledMemory {
    pub(super) spec: WalkSpec,
    pub(super) blocks: Vec<[u8; LEAF]>,
    pub(super) walked: Option<(Key, MerkleTree)>,
}

impl FilledMemory {
    /// Runs one walk and passes every full leaf of states to `leaf_done`.
    pub(super) fn run_walk(
        &self,
        key: &Key,
        walk: u32,
        watch: &dyn WorkObserver,
        mut leaf_done: impl FnMut(&[u8; LEAF]),
    ) -> Result<(), ProverError> {
        let memory = self.spec.memory();
        let mut leaf = [0; LEAF];
        let mut state: WalkState = start_state(key, walk);
        for first in (0..self.spec.steps()).step_by(LEAF_STATES as usize) {
            if watch.is_cancelled() {
                return Err(ProverError::Cancelled);
            }
            for (number, place) in (first..).zip(leaf.as_chunks_mut::<32>().0) {
                let address = memory.address(address_bits(&state)) as usize;
                let block = self
                    .blocks
                    .get(address)
                    .ok_or(ProverError::OutOfOrder("a walk"))?;
                state = next_state(walk, number, &state, block);
                *place = state;
            }
            leaf_done(&leaf);
        }
        Ok(())
    }

    /// Opens one step. Its walk is run again.
    pub(super) fn open_step(
        &self,
        place: StepPosition,
        watch: &dyn WorkObserver,
    ) -> Result<Vec<u8>, ProverError> {
        let (key, tree) = self
            .walked
            .as_ref()
            .ok_or(ProverError::OutOfOrder("an opening"))?;
        let wanted = place.step / LEAF_STATES;
        let (mut hashes, mut kept) = (Vec::new(), Vec::new());
        self.run_walk(key, place.walk, watch, |leaf| {
            let number = hashes.len() as u64;
            if number == wanted || number + 1 == wanted {
                kept.push(*leaf);
            }
            hashes.push(merkle::hash_leaf(leaf));
        })?;
        let own = MerkleTree::build(hashes);
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

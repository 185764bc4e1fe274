//! Checks the steps that a WALK prover opened.

use crate::chacha::Key;
use crate::codec::Reader;
use crate::memory_walk::{
    LEAF_STATES, StepPosition, WalkSpec, WalkState, address_bits, next_state, start_state,
};
use crate::merkle::{self, Hash, LEAF};
use crate::proof_verdict::ZeroReason;
use crate::simd::{self, InstructionSet};
use crate::spec::WalkMemory;

struct StepChecker<'a> {
    spec: &'a WalkSpec,
    engine: InstructionSet,
    memory: WalkMemory,
    labels: Key,
    start: Key,
    root: &'a Hash,
}

/// Checks every opened step against the root and stops at the first fault.
///
/// # Errors
/// The first fault, with the number of its draw.
pub(crate) fn check_openings(
    spec: &WalkSpec,
    engine: InstructionSet,
    seed: &[u8; 32],
    root: &Hash,
    places: &[StepPosition],
    body: &[u8],
) -> Result<(), ZeroReason> {
    let memory = spec.memory();
    let checker = StepChecker {
        spec,
        engine,
        memory,
        labels: memory.label_key(),
        start: spec.start_key(seed),
        root,
    };
    let mut reader = Reader::new(body);
    for (draw, place) in places.iter().enumerate() {
        if (StepPosition {
            walk: reader.u32()?,
            step: reader.u64()?,
        }) != *place
        {
            return Err(ZeroReason::OtherPlace { draw });
        }
        checker.check_step(draw, place, &mut reader)?;
    }
    Ok(reader.finish()?)
}

impl StepChecker<'_> {
    fn check_step(
        &self,
        draw: usize,
        place: &StepPosition,
        reader: &mut Reader<'_>,
    ) -> Result<(), ZeroReason> {
        let leaf = reader.take::<LEAF>()?;
        let path = reader.hashes(self.spec.depth())?;
        let states = leaf.as_chunks::<32>().0;
        let within = (place.step % LEAF_STATES) as usize;
        let before = if place.needs_leaf_before() {
            let earlier = reader.take::<LEAF>()?;
            let earlier_path = reader.hashes(self.spec.depth())?;
            if !self.is_in_tree(place.walk, place.step - 1, earlier, earlier_path) {
                return Err(ZeroReason::AlteredPath { draw });
            }
            earlier.as_chunks::<32>().0.last()
        } else {
            within.checked_sub(1).and_then(|i| states.get(i))
        };
        let before = before
            .copied()
            .unwrap_or_else(|| start_state(&self.start, place.walk));
        if states.get(within) != Some(&self.replay_step(place.walk, place.step, &before)) {
            return Err(ZeroReason::WrongStep { draw });
        }
        if self.is_in_tree(place.walk, place.step, leaf, path) {
            return Ok(());
        }
        // The opening is wrong either way. Replaying the leaf's steps shows whether the leaf or its path was altered.
        let first = place.step - within as u64;
        let honest = states
            .array_windows::<2>()
            .zip(first + 1..)
            .all(|([a, b], number)| self.replay_step(place.walk, number, a) == *b);
        Err(if honest {
            ZeroReason::AlteredPath { draw }
        } else {
            ZeroReason::AlteredLeaf { draw }
        })
    }

    fn is_in_tree(&self, walk: u32, number: u64, leaf: &[u8; LEAF], path: &[Hash]) -> bool {
        let index = self.spec.leaf_index(walk, number);
        merkle::root_from_path(merkle::hash_leaf(leaf), index, path) == *self.root
    }

    fn replay_step(&self, walk: u32, number: u64, before: &WalkState) -> WalkState {
        let address = self.memory.address(address_bits(before));
        let mut block = [0; LEAF];
        simd::compute_label_block(self.engine, &self.labels, address, self.memory.work, &mut block);
        next_state(walk, number, before, &block)
    }
}

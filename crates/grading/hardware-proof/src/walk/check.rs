//! Checks the steps that a WALK prover opened.

use crate::chacha::Key;
use crate::codec::Reader;
use crate::merkle::{self, Hash, LEAF};
use crate::simd::{self, Engine};
use crate::spec::Memory;
use crate::verdict::Reason;
use crate::walk::{LEAF_STATES, StepPlace, WalkSpec, WalkState, address_bits, start, step};

struct Checker<'a> {
    spec: &'a WalkSpec,
    engine: Engine,
    memory: Memory,
    labels: Key,
    start: Key,
    root: &'a Hash,
}

/// Checks every opened step against the root and stops at the first fault.
///
/// # Errors
/// The first fault, with the number of its draw.
pub(crate) fn openings(
    spec: &WalkSpec,
    engine: Engine,
    seed: &[u8; 32],
    root: &Hash,
    places: &[StepPlace],
    body: &[u8],
) -> Result<(), Reason> {
    let memory = spec.memory();
    let checker = Checker {
        spec,
        engine,
        memory,
        labels: memory.label_key(),
        start: spec.start_key(seed),
        root,
    };
    let mut reader = Reader::new(body);
    for (draw, place) in places.iter().enumerate() {
        if (StepPlace {
            walk: reader.u32()?,
            step: reader.u64()?,
        }) != *place
        {
            return Err(Reason::OtherPlace { draw });
        }
        checker.one(draw, place, &mut reader)?;
    }
    Ok(reader.finish()?)
}

impl Checker<'_> {
    fn one(&self, draw: usize, place: &StepPlace, reader: &mut Reader<'_>) -> Result<(), Reason> {
        let leaf = reader.take::<LEAF>()?;
        let path = reader.hashes(self.spec.depth())?;
        let states = leaf.as_chunks::<32>().0;
        let within = (place.step % LEAF_STATES) as usize;
        let before = if place.needs_leaf_before() {
            let earlier = reader.take::<LEAF>()?;
            let earlier_path = reader.hashes(self.spec.depth())?;
            if !self.holds(place.walk, place.step - 1, earlier, earlier_path) {
                return Err(Reason::AlteredPath { draw });
            }
            earlier.as_chunks::<32>().0.last()
        } else {
            within.checked_sub(1).and_then(|i| states.get(i))
        };
        let before = before.copied().unwrap_or_else(|| start(&self.start, place.walk));
        if states.get(within) != Some(&self.next(place.walk, place.step, &before)) {
            return Err(Reason::WrongStep { draw });
        }
        if self.holds(place.walk, place.step, leaf, path) {
            return Ok(());
        }
        // The opening is wrong either way. Replaying the leaf's steps tells whether the leaf or its path was altered.
        let first = place.step - within as u64;
        let honest = states
            .array_windows::<2>()
            .zip(first + 1..)
            .all(|([a, b], number)| self.next(place.walk, number, a) == *b);
        Err(if honest {
            Reason::AlteredPath { draw }
        } else {
            Reason::AlteredLeaf { draw }
        })
    }

    fn holds(&self, walk: u32, number: u64, leaf: &[u8; LEAF], path: &[Hash]) -> bool {
        let index = self.spec.leaf_index(walk, number);
        merkle::climb(merkle::leaf_hash(leaf), index, path) == *self.root
    }

    fn next(&self, walk: u32, number: u64, before: &WalkState) -> WalkState {
        let address = self.memory.address(address_bits(before));
        let mut block = [0; LEAF];
        simd::label_block(self.engine, &self.labels, address, self.memory.work, &mut block);
        step(walk, number, before, &block)
    }
}

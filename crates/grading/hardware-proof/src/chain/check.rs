//! Checks the entries that a MATMUL prover opened.

use crate::chain::{ChainSpec, Generator, LEAF_ENTRIES, Place};
use crate::codec::Reader;
use crate::merkle::{self, Hash, LEAF};
use crate::simd::Engine;
use crate::verdict::Reason;

/// Checks every opened entry against the roots and stops at the first fault.
///
/// # Errors
/// The first fault, with the number of its draw.
pub(crate) fn openings(
    spec: &ChainSpec,
    engine: Engine,
    roots: &[Hash],
    places: &[Place],
    body: &[u8],
) -> Result<(), Reason> {
    let generator = Generator::new(*spec, engine);
    let mut reader = Reader::new(body);
    for (draw, place) in places.iter().enumerate() {
        let found = Place {
            round: reader.u32()?,
            row: reader.u32()?,
            column: reader.u32()?,
        };
        if found.round != place.round {
            return Err(Reason::OtherRound {
                draw,
                expected: place.round,
                found: found.round,
            });
        }
        if found != *place {
            return Err(Reason::OtherPlace { draw });
        }
        let leaf = reader.take::<LEAF>()?;
        let path = reader.hashes(spec.depth())?;
        entry(&generator, roots, *place, leaf, path).map_err(|fault| fault.at(draw))?;
    }
    Ok(reader.finish()?)
}

/// A fault in the opening of one entry.
enum Fault {
    Entry { expected: i32, found: i32 },
    Leaf,
    Path,
}

impl Fault {
    fn at(self, draw: usize) -> Reason {
        match self {
            Self::Entry { expected, found } => Reason::WrongEntry {
                draw,
                expected,
                found,
            },
            Self::Leaf => Reason::AlteredLeaf { draw },
            Self::Path => Reason::AlteredPath { draw },
        }
    }
}

fn entry(
    generator: &Generator,
    roots: &[Hash],
    place: Place,
    leaf: &[u8; LEAF],
    path: &[Hash],
) -> Result<(), Fault> {
    let round = place.round as usize;
    let previous = round
        .checked_sub(1)
        .and_then(|before| roots.get(before))
        .copied()
        .unwrap_or([0; 32]);
    let entries = leaf.as_chunks::<4>().0;
    let within = (place.column % LEAF_ENTRIES) as usize;
    let found = entries
        .get(within)
        .copied()
        .map(i32::from_le_bytes)
        .unwrap_or_default();
    let expected = generator.entry(place, &previous);
    if found != expected {
        return Err(Fault::Entry { expected, found });
    }
    let per_row = (generator.spec.n() / LEAF_ENTRIES as usize) as u64;
    let index = u64::from(place.row) * per_row + u64::from(place.column / LEAF_ENTRIES);
    if roots.get(round) == Some(&merkle::climb(merkle::leaf_hash(leaf), index, path)) {
        return Ok(());
    }
    // The opening is wrong either way. Recomputing the leaf tells whether the leaf or its path was altered.
    let honest = generator
        .leaf(place, &previous)
        .iter()
        .zip(entries)
        .all(|(sum, bytes)| sum.to_le_bytes() == *bytes);
    Err(if honest { Fault::Path } else { Fault::Leaf })
}

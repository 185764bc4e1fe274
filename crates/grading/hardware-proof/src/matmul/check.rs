//! Checks the entries that a MATMUL prover opened.

use crate::codec::Reader;
use crate::matmul::{EntryPosition, LEAF_ENTRIES, MatmulSpec, MatrixGenerator};
use crate::merkle::{self, Hash, LEAF};
use crate::proof_verdict::ZeroReason;
use crate::simd::InstructionSet;

/// Checks every opened entry against the roots and stops at the first fault.
///
/// # Errors
/// The first fault, with the number of its draw.
pub(crate) fn check_openings(
    spec: &MatmulSpec,
    engine: InstructionSet,
    roots: &[Hash],
    places: &[EntryPosition],
    body: &[u8],
) -> Result<(), ZeroReason> {
    let generator = MatrixGenerator::new(*spec, engine);
    let mut reader = Reader::new(body);
    for (draw, place) in places.iter().enumerate() {
        let found = EntryPosition {
            round: reader.u32()?,
            row: reader.u32()?,
            column: reader.u32()?,
        };
        if found.round != place.round {
            return Err(ZeroReason::OtherRound {
                draw,
                expected: place.round,
                found: found.round,
            });
        }
        if found != *place {
            return Err(ZeroReason::OtherPlace { draw });
        }
        let leaf = reader.take::<LEAF>()?;
        let path = reader.hashes(spec.depth())?;
        check_entry(&generator, roots, *place, leaf, path).map_err(|fault| fault.into_reason(draw))?;
    }
    Ok(reader.finish()?)
}

/// A fault in the opening of one entry.
enum OpeningFault {
    Entry { expected: i32, found: i32 },
    Leaf,
    Path,
}

impl OpeningFault {
    fn into_reason(self, draw: usize) -> ZeroReason {
        match self {
            Self::Entry { expected, found } => ZeroReason::WrongEntry {
                draw,
                expected,
                found,
            },
            Self::Leaf => ZeroReason::AlteredLeaf { draw },
            Self::Path => ZeroReason::AlteredPath { draw },
        }
    }
}

fn check_entry(
    generator: &MatrixGenerator,
    roots: &[Hash],
    place: EntryPosition,
    leaf: &[u8; LEAF],
    path: &[Hash],
) -> Result<(), OpeningFault> {
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
    let expected = generator.compute_entry(place, &previous);
    if found != expected {
        return Err(OpeningFault::Entry { expected, found });
    }
    let per_row = (generator.spec.n() / LEAF_ENTRIES as usize) as u64;
    let index = u64::from(place.row) * per_row + u64::from(place.column / LEAF_ENTRIES);
    if roots.get(round) == Some(&merkle::root_from_path(merkle::hash_leaf(leaf), index, path)) {
        return Ok(());
    }
    // The opening is wrong either way. Recomputing the leaf shows whether the leaf or its path was altered.
    let honest = generator
        .compute_leaf(place, &previous)
        .iter()
        .zip(entries)
        .all(|(sum, bytes)| sum.to_le_bytes() == *bytes);
    Err(if honest {
        OpeningFault::Path
    } else {
        OpeningFault::Leaf
    })
}

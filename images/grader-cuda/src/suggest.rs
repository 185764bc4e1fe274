//! Suggests the size of a WALK for a card from its measured rates.

use muster_hardware_proof::memory_walk::{LEAF_STATES, WalkShape};
use muster_hardware_proof::merkle::LEAF;
use muster_hardware_proof::spec::WORDS_PER_BLOCK;

/// Bytes that the context, the matrices of a bound MATMUL and the states of the walks need in addition to a WALK's
/// memory.
pub const RESERVE: u64 = 2 << 30;

/// The time for the fill, in seconds. Recomputing costs more with a longer fill, but an honest machine also waits
/// longer.
const FILL_S: f64 = 10.0;
/// The shortest time for the walks, in seconds (docs/proofs.md, section 1).
const WALK_S: f64 = 3.0;
/// The average number of reads of each block. With 100, a missing percent costs as much as the whole fill.
const READS: f64 = 100.0;
/// log₂ of the number of walks, which is twice the number of threads of the largest present cards.
const LOG2_WALKS: u8 = 17;
const DRAWS: u16 = 128;

/// The measured rates of a card.
#[derive(Debug, Clone, Copy)]
pub struct CardRates {
    /// Bytes of memory that can be allocated.
    pub free: u64,
    /// Applications of the one-way function per second.
    pub applications: f64,
    /// Bytes that walks read per second.
    pub read: f64,
}

/// A suggested WALK and its expected times.
#[derive(Debug, Clone, Copy)]
pub struct WalkSuggestion {
    /// The size of the WALK.
    pub shape: WalkShape,
    /// Seconds for the fill.
    pub fill_s: f64,
    /// Seconds for the walks.
    pub walk_s: f64,
    /// Additional seconds for a prover that lacks one percent of the memory.
    pub extra_s: f64,
}

/// Suggests a WALK for a card of these rates. It fills all memory but [`RESERVE`], in whole GiB, and at least 1 MiB.
pub fn suggest_walk(rates: &CardRates) -> WalkSuggestion {
    let whole = (rates.free.saturating_sub(RESERVE) >> 30) << 30;
    let blocks = whole.max(1 << 20) / LEAF as u64;
    let words = (blocks * WORDS_PER_BLOCK) as f64;
    let work = power_below(FILL_S * rates.applications / words).clamp(1 << 4, 1 << 12) as u32;
    let least = WALK_S * rates.read / LEAF as f64;
    let reads = (READS * blocks as f64).max(least);
    let leaves = power_near(
        reads / f64::from(1u32 << LOG2_WALKS) / LEAF_STATES as f64,
        least,
        LOG2_WALKS,
    );
    let shape = WalkShape {
        blocks,
        work,
        log2_walks: LOG2_WALKS,
        log2_leaves: leaves,
        draws: DRAWS,
    };
    let reads = ((LEAF_STATES << leaves) << LOG2_WALKS) as f64;
    let fill_s = words * f64::from(work) / rates.applications;
    WalkSuggestion {
        shape,
        fill_s,
        walk_s: reads * LEAF as f64 / rates.read,
        extra_s: 0.01 * reads / blocks as f64 * fill_s,
    }
}

/// The largest power of two that is at most `x`, and at least 1.
fn power_below(x: f64) -> u64 {
    1 << x.max(1.0).log2().floor().clamp(0.0, 62.0) as u32
}

/// log₂ of the power of two that is nearest to `x` and gives at least `least` reads.
fn power_near(x: f64, least: f64, log2_walks: u8) -> u8 {
    let mut power = x.max(1.0).log2().round().clamp(0.0, 20.0) as u8;
    while power < 20 && ((LEAF_STATES << power) << log2_walks) as f64 + 1.0 < least {
        power += 1;
    }
    power
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rates that docs/proofs.md estimates for an H100 must give about the WALK in its table.
    #[test]
    fn an_estimated_h100_gets_the_walk_of_the_table() {
        let found = suggest_walk(&CardRates {
            free: 79 << 30,
            applications: 3.5e10,
            read: 2.4e12,
        });
        assert_eq!(found.shape.blocks, 77 << 20);
        assert_eq!(found.shape.work, 256);
        assert!((5.0..=10.5).contains(&found.fill_s), "{found:?}");
        assert!((3.0..6.0).contains(&found.walk_s), "{found:?}");
        assert!(found.extra_s > 5.0, "{found:?}");
    }

    #[test]
    fn walks_last_long_enough_on_a_small_fast_memory_and_every_shape_is_lawful() {
        for (free, applications, read) in [
            (8u64 << 30, 1e10, 1e12),
            (3 << 30, 1e9, 5e12),
            (0, 1e3, 1e6),
            (192 << 30, 1e11, 8e12),
        ] {
            let found = suggest_walk(&CardRates {
                free,
                applications,
                read,
            });
            assert!(found.walk_s >= 2.99, "{found:?}");
            assert!(
                found.shape.log2_leaves <= 20 && (16..=4096).contains(&found.shape.work),
                "{found:?}"
            );
        }
    }
}

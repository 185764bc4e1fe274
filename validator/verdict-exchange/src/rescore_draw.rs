//! The draw of the pairs that a validator's own reference scores again. The bundle's author cannot foresee it.

use muster_audit::{RescorablePair, Verdict};
use muster_identity::{Keypair, VrfInput};
use muster_protocol::Digest;
use muster_validator_store::AuditOffer;
use sha2::{Digest as _, Sha256};

const DRAW_DOMAIN: &str = "muster/audit-rescore/1";
const ORDER_TAG: &str = "muster/rescore/1";

/// Pairs without whose scores a bundle is not adopted.
pub const LEAST_RESCORED: usize = 3;
/// Pairs that are drawn: two may fail.
pub const MOST_RESCORED: usize = 5;

/// The block whose hash draws a bundle's pairs: the first after the one at which it was read.
pub(crate) const fn draw_block(offer: &AuditOffer) -> u64 {
    offer.seen_block.saturating_add(1)
}

/// The output that draws from one bundle for one validator.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RescoreDraw([u8; 32]);

impl std::fmt::Debug for RescoreDraw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RescoreDraw")
    }
}

impl RescoreDraw {
    /// The validator's draw from a bundle. `block_hash` is of a block that did not exist when the bundle was read.
    pub fn prove(
        validator: &Keypair,
        (genesis, netuid): (Digest, u16),
        bundle: &Digest,
        block_hash: &Digest,
    ) -> Self {
        let message = [
            genesis.as_bytes().as_slice(),
            &netuid.to_be_bytes(),
            bundle.as_bytes(),
            block_hash.as_bytes(),
        ]
        .concat();
        let (output, _) = validator.prove_output(&VrfInput {
            domain: DRAW_DOMAIN,
            message: &message,
        });
        Self(output)
    }

    /// The pairs that are scored again, at most [`MOST_RESCORED`]. A conviction is checked by answers that speak
    /// against the miner, since those are the ones whose scores its author would forge.
    pub fn choose(&self, pairs: Vec<RescorablePair>, verdict: Verdict) -> Vec<RescorablePair> {
        let mut candidates = pairs;
        match verdict {
            Verdict::Convicted => candidates.retain(|pair| pair.speaks_against),
            Verdict::Consistent | Verdict::Suspect | Verdict::Weak | Verdict::Unproven(_) => {}
        }
        candidates.sort_by_cached_key(|pair| self.order_of(&pair.digest));
        candidates.truncate(MOST_RESCORED);
        candidates
    }

    fn order_of(&self, pair: &Digest) -> [u8; 32] {
        Sha256::new()
            .chain_update(ORDER_TAG)
            .chain_update(self.0)
            .chain_update(pair.as_bytes())
            .finalize()
            .into()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn draw(seed: u8, bundle: &str, block: &str) -> RescoreDraw {
        RescoreDraw::prove(
            &Keypair::from_seed([seed; 32]),
            (Digest::of(b"genesis"), 1),
            &Digest::of(bundle.as_bytes()),
            &Digest::of(block.as_bytes()),
        )
    }

    #[test]
    fn the_draw_depends_on_the_validator_the_bundle_and_the_block() {
        assert_eq!(draw(1, "a", "1"), draw(1, "a", "1"));
        let other = [draw(2, "a", "1"), draw(1, "b", "1"), draw(1, "a", "2")];
        assert!(other.iter().all(|other| *other != draw(1, "a", "1")));
        // Over many blocks every pair leads now and then.
        let pairs: Vec<Digest> = (0_u8..8).map(|pair| Digest::of(&[pair])).collect();
        let first = |block: usize| {
            let draw = draw(1, "a", &block.to_string());
            pairs.iter().min_by_key(|pair| draw.order_of(pair)).copied()
        };
        let leading: BTreeSet<_> = (0..60).map(first).collect();
        assert_eq!(leading.len(), pairs.len());
    }
}

//! Whether the blocks that a bundle names are the chain's: draws, keys of nonces and pseudonyms of own prompts follow
//! from their hashes, so an author that could choose them could choose what is drawn.

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt as _};
use muster_audit::{AuditBundle, NoncePeriod};
use muster_protocol::Digest;
use muster_response_proof::{BucketHeader, Envelope};

/// Hashes that are asked of the chain at a time.
const ASKED_AT_ONCE: usize = 8;

/// The reason why the blocks of a bundle are not confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockFault {
    /// A header cannot be read, so nobody knows which block it means.
    #[error("a header in it cannot be read")]
    Unreadable,
    /// The bundle names two hashes for one block, or another one than the chain.
    #[error("the hash of block {block} in it is not the chain's")]
    OtherHash {
        /// The number of the block.
        block: u64,
    },
    /// The chain does not return the hash: the block is not final yet, or the endpoint has forgotten it.
    #[error(
        "the chain's endpoint does not tell the hash of block {block}, which a draw or a nonce follows from"
    )]
    Unknown {
        /// The number of the block.
        block: u64,
    },
}

/// The hashes of blocks that a bundle states: of each draw block of a bucket or a commitment, and of the first block of
/// each period whose key it shows.
fn stated_blocks(bundle: &AuditBundle) -> Result<BTreeMap<u64, Digest>, BlockFault> {
    let draw_block = |header: &str| {
        let header = Envelope::<BucketHeader>::from_text(header)
            .ok()?
            .statement()
            .ok()?;
        Some(header.bucket.draw_block())
    };
    let buckets = bundle.buckets.iter().map(|one| (&one.header, one.block_hash));
    let commitments = bundle
        .commitments
        .iter()
        .filter_map(|one| Some((&one.header, one.block_hash?)));
    let drawn = buckets
        .chain(commitments)
        .map(|(header, hash)| (draw_block(header), hash));
    let keys = bundle
        .nonce_keys
        .iter()
        .map(|key| (Some(NoncePeriod(key.period).first_block()), key.block_hash));
    let mut stated = BTreeMap::new();
    for (block, hash) in drawn.chain(keys) {
        let block = block.ok_or(BlockFault::Unreadable)?;
        if *stated.entry(block).or_insert(hash) != hash {
            return Err(BlockFault::OtherHash { block });
        }
    }
    Ok(stated)
}

/// Compares the hashes of all blocks that a bundle names with the chain's. `hash_of` asks the chain.
///
/// # Errors
/// The first hash that is not the chain's, or that the chain does not return.
pub async fn check_blocks<'a>(
    bundle: &AuditBundle,
    hash_of: impl Fn(u64) -> BoxFuture<'a, Option<Digest>>,
) -> Result<(), BlockFault> {
    let compare = |(block, stated): (u64, Digest)| {
        let asked = hash_of(block);
        async move {
            match asked.await {
                Some(hash) if hash == stated => Ok(()),
                Some(_) => Err(BlockFault::OtherHash { block }),
                None => Err(BlockFault::Unknown { block }),
            }
        }
    };
    let asked: Vec<_> = stated_blocks(bundle)?.into_iter().map(compare).collect();
    let mut compared = stream::iter(asked).buffered(ASKED_AT_ONCE);
    while let Some(one) = compared.next().await {
        one?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const BUNDLE: &str = include_str!("../../../tests/vectors/audit-bundle.json");

    /// The chain of the bundle of the documentation, without the blocks from `end` on.
    fn check(bundle: &AuditBundle, end: u64) -> Result<(), BlockFault> {
        let hash_of = |block: u64| {
            let hash = (block < end).then(|| Digest::of(&block.to_be_bytes()));
            async move { hash }.boxed()
        };
        check_blocks(bundle, hash_of).now_or_never().unwrap()
    }

    #[test]
    fn every_block_that_a_bundle_names_has_the_chains_hash() {
        let bundle: AuditBundle = serde_json::from_str(BUNDLE).unwrap();
        assert_eq!(check(&bundle, u64::MAX), Ok(()));
        // The list is committed to in bucket 3,999, and the answers stand in the two after it.
        assert_eq!(
            check(&bundle, 100_012),
            Err(BlockFault::Unknown { block: 100_012 })
        );
        assert_eq!(
            check(&bundle, 100_013),
            Err(BlockFault::Unknown { block: 100_037 })
        );
        let luckier = Digest::of(b"a luckier block");
        let mut forged = bundle.clone();
        forged.buckets[1].block_hash = luckier;
        assert_eq!(
            check(&forged, u64::MAX),
            Err(BlockFault::OtherHash { block: 100_062 })
        );
        let mut forged = bundle.clone();
        forged.commitments[0].block_hash = Some(luckier);
        assert_eq!(
            check(&forged, u64::MAX),
            Err(BlockFault::OtherHash { block: 100_012 })
        );
        let mut forged = bundle.clone();
        forged.buckets[0].header.clear();
        assert_eq!(check(&forged, u64::MAX), Err(BlockFault::Unreadable));
    }
}

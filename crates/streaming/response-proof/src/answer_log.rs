//! The log of proven answers: one leaf for each, one signed header for the leaves of 25 blocks.
//!
//! The header is signed before the block that draws from it exists, so the validator cannot leave answers out once it
//! knows the draw, and cannot add any. A miner that gets the header and the paths of its own leaves sees omissions,
//! since sessions number their proofs without gaps.

use muster_protocol::{Digest, Hotkey, MinerKey, ValidatorKey};

use crate::attestation::SessionId;
#[cfg(doc)]
use crate::client_key::ClientOpening;
use crate::codec::{LayoutError, Reader, Text, Writer};
use crate::envelope::Sealable;
use crate::tree::hash_chunk;

/// Blocks whose answers one header covers.
pub const BUCKET_BLOCKS: u64 = 25;
/// Buckets of a day of 7,200 blocks.
pub const DAY_BUCKETS: u64 = 288;
/// The share of everything, in millionths.
pub const MAX_SHARE_PPM: u32 = 1_000_000;
/// Blocks after the end of a bucket until the one that draws from it.
const DRAW_DELAY: u64 = 12;

/// The number of a bucket. Bucket k is closed after block 25k + 24, and has the proven answers that stand in no earlier
/// bucket: those of the blocks 25k to 25k + 24, and older ones that were not logged in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketNumber(pub u64);

impl BucketNumber {
    /// The last of the bucket's blocks.
    pub const fn last_block(self) -> u64 {
        self.0
            .saturating_mul(BUCKET_BLOCKS)
            .saturating_add(BUCKET_BLOCKS - 1)
    }

    /// The bucket whose blocks this block is one of.
    pub const fn of_block(block: u64) -> Self {
        Self(block / BUCKET_BLOCKS)
    }

    /// The block whose hash draws from the bucket.
    pub const fn draw_block(self) -> u64 {
        self.0
            .saturating_add(1)
            .saturating_mul(BUCKET_BLOCKS)
            .saturating_add(DRAW_DELAY)
    }

    /// The day of the bucket, counted in days of 7,200 blocks.
    pub const fn day(self) -> u64 {
        self.0 / DAY_BUCKETS
    }
}

/// One proven answer in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerLeaf {
    /// The session that answered.
    pub session: SessionId,
    /// The number of the answer's proof in the session.
    pub sequence: u64,
    /// Digest of the proof's signed bytes.
    pub proof: Digest,
    /// Tokens of the answer, by the gateway's count.
    pub output_tokens: u64,
    /// The miner's earnings from the answer, in rao.
    pub earned: u64,
    /// The commitment to the client, of which [`ClientOpening`] is the content: it is opened if the answer is audited.
    /// At most four users' answers of one client and day are tested. In leaves that earlier releases logged it is the
    /// pseudonym that the proof states.
    pub stratum: Digest,
}

impl AnswerLeaf {
    /// The leaf's bytes, of which the tree has the hash.
    pub fn bytes(&self) -> Vec<u8> {
        Writer::new("muster/answer-leaf/1")
            .raw(self.session.0.as_bytes())
            .u64(self.sequence)
            .digest(&self.proof)
            .u64(self.output_tokens)
            .u64(self.earned)
            .digest(&self.stratum)
            .done()
    }

    /// The leaf in the tree of its bucket.
    pub fn hash(&self) -> Digest {
        hash_chunk(&self.bytes())
    }
}

/// The share of a miner's answers from one model that is audited, as a header commits to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditShare {
    /// The miner that answers.
    pub miner: MinerKey,
    /// The model by its name in the whitelist.
    pub model: Text,
    /// The share in millionths: at most [`MAX_SHARE_PPM`].
    pub ppm: u32,
}

impl AuditShare {
    /// The bytes of the share, of which the tree of shares has the hash.
    pub fn bytes(&self) -> Vec<u8> {
        Writer::new("muster/audit-share/1")
            .raw(self.miner.0.as_bytes())
            .text(&self.model)
            .u32(self.ppm)
            .done()
    }

    /// The leaf in the tree of shares.
    pub fn hash(&self) -> Digest {
        hash_chunk(&self.bytes())
    }
}

/// The statement about the proven answers of one bucket, signed by the validator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketHeader {
    /// The chain's genesis hash.
    pub genesis: Digest,
    /// The number of the subnet.
    pub netuid: u16,
    /// The validator that logs and signs.
    pub validator: ValidatorKey,
    /// The number of the bucket, which fixes the blocks of its answers.
    pub bucket: BucketNumber,
    /// The number of leaves.
    pub answers: u64,
    /// The Merkle root over the hashes of the leaves, in the order in which verdicts became durable.
    pub root: Digest,
    /// Digest of the signed bytes of the validator's header before this one; of nothing for its first.
    pub previous: Digest,
    /// The number of shares.
    pub shares: u64,
    /// The Merkle root over the hashes of the shares that are audited, one for each miner and model.
    pub share_root: Digest,
    /// The root of the list from which the validator takes its own prompts.
    pub canaries: Digest,
}

impl Sealable for BucketHeader {
    const TAG: &'static str = "muster/audit-bucket/1";

    fn signed_bytes(&self) -> Vec<u8> {
        Writer::new(Self::TAG)
            .digest(&self.genesis)
            .u16(self.netuid)
            .raw(self.validator.0.as_bytes())
            .u64(self.bucket.0)
            .u64(self.answers)
            .digest(&self.root)
            .digest(&self.previous)
            .u64(self.shares)
            .digest(&self.share_root)
            .digest(&self.canaries)
            .done()
    }

    fn read(bytes: &[u8]) -> Result<Self, LayoutError> {
        let mut reader = Reader::new(Self::TAG, bytes)?;
        let read = Self {
            genesis: reader.digest("the genesis hash")?,
            netuid: reader.u16("the subnet")?,
            validator: ValidatorKey(Hotkey::from_bytes(reader.array("the validator")?)),
            bucket: BucketNumber(reader.u64("the bucket")?),
            answers: reader.u64("the number of answers")?,
            root: reader.digest("the root of answers")?,
            previous: reader.digest("the header before")?,
            shares: reader.u64("the number of shares")?,
            share_root: reader.digest("the root of shares")?,
            canaries: reader.digest("the root of own prompts")?,
        };
        reader.done()?;
        Ok(read)
    }
}

impl BucketHeader {
    /// The bytes whose verifiable random output draws from the bucket. The root is no part of them: the validator could
    /// add leaves until a draw pleases it.
    pub fn draw_message(&self, block_hash: &Digest) -> Vec<u8> {
        Writer::new("")
            .digest(&self.genesis)
            .u16(self.netuid)
            .u64(self.bucket.0)
            .digest(block_hash)
            .done()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_drawn_from_twelve_blocks_after_its_end() {
        assert_eq!(BucketNumber::of_block(0), BucketNumber(0));
        assert_eq!(BucketNumber::of_block(24), BucketNumber(0));
        assert_eq!(BucketNumber::of_block(25), BucketNumber(1));
        assert_eq!(BucketNumber(0).draw_block(), 37);
        assert_eq!(BucketNumber(3).draw_block(), 112);
        assert_eq!((BucketNumber(287).day(), BucketNumber(288).day()), (0, 1));
        assert_eq!(BucketNumber(u64::MAX).draw_block(), u64::MAX);
    }
}

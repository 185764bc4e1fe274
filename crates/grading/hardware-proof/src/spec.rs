//! The vocabulary that both kinds of challenge share: kinds of numbers, the memory, the error of an impossible shape,
//! and the byte layout of an identity.

use crate::chacha::{self, Key};
use crate::challenge_keys::{
    self, BatchId, ChallengeId, ChallengeIdentity, ChallengeNonce, ExecutorName, KeyPurpose,
};
use crate::codec::{DecodeError, Reader};

/// Words of 64 bytes in a block.
pub const WORDS_PER_BLOCK: u64 = 16;

/// The format of the entries of A and B.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NumberFormat {
    /// Full-range signed bytes. One level of a fast matrix product needs nine bits and no longer fits.
    Int8,
    /// Nine-bit integers in [-256, 255], the top bits of 16-bit words. They are exact in fp16 and bf16 and their sums
    /// of 4,096 products are exact in fp32 (docs/proofs.md); they do not fit int8.
    Fp16,
}

impl NumberFormat {
    /// Bytes of the keystream per entry.
    pub const fn width(self) -> usize {
        match self {
            Self::Int8 => 1,
            Self::Fp16 => 2,
        }
    }
}

/// The parameters from which anybody can recompute the contents of a memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WalkMemory {
    /// The id of the WALK challenge that filled the memory.
    pub challenge_id: ChallengeId,
    /// Blocks of 1 KiB, 1 to 2³².
    pub blocks: u64,
    /// Applications of the one-way function per word (t), 1 to 65,536.
    pub work: u32,
}

impl WalkMemory {
    /// Checks that both numbers are in their ranges.
    ///
    /// # Errors
    /// Names the value outside its range.
    pub fn validate(&self) -> Result<(), SpecError> {
        if !(1..=1 << 32).contains(&self.blocks) {
            return Err(SpecError("number of blocks"));
        }
        if !(1..=65_536).contains(&self.work) {
            return Err(SpecError("work per word"));
        }
        Ok(())
    }

    /// The key from which all words are computed.
    pub fn label_key(&self) -> Key {
        challenge_keys::derive_key(&self.challenge_id, KeyPurpose::Labels, 0, &[0; 32])
    }

    /// Maps 64 random bits to a block: the high half of the product. With at most 2³² blocks no block's share is off by
    /// more than 2⁻³².
    pub fn address(&self, random: u64) -> u64 {
        ((u128::from(random) * u128::from(self.blocks)) >> 64) as u64
    }
}

/// Computes word `index` of a memory. The vectorised versions in `simd` must give the same bytes.
pub fn compute_label(key: &Key, index: u64, work: u32) -> [u8; chacha::BLOCK] {
    let mut state = chacha::initial_state(key, index, 0);
    for _ in 0..work {
        chacha::apply_block_function(&mut state);
    }
    chacha::state_to_bytes(&state)
}

/// A shape with a value outside its range. The caller or the peer chose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the challenge's {0} is outside its range: choose it as docs/proofs.md says")]
pub struct SpecError(pub &'static str);

pub(crate) fn push_identity(out: &mut Vec<u8>, identity: &ChallengeIdentity) {
    out.extend(identity.batch.0);
    out.extend(identity.executor.0);
    out.extend(identity.nonce.0);
}

pub(crate) fn read_identity(reader: &mut Reader<'_>) -> Result<ChallengeIdentity, DecodeError> {
    Ok(ChallengeIdentity {
        batch: BatchId(*reader.take()?),
        executor: ExecutorName(*reader.take()?),
        nonce: ChallengeNonce(*reader.take()?),
    })
}

//! The identity of a challenge, the derivation of all its keys, and unbiased draws of bounded numbers.

use sha2::{Digest as _, Sha256};

use crate::chacha::{self, Key};
use crate::merkle::Hash;

/// Separates these hashes from all others of Muster. It also names the version of the specifications and of the hashes.
pub const DOMAIN: [u8; 16] = *b"muster-proofs/1\0";

/// The id of a batch: executors that are challenged at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BatchId(pub [u8; 16]);

/// The name under which an executor is graded: a SHA-256 digest chosen by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExecutorName(pub [u8; 32]);

/// Thirty-two random bytes that the validator draws for every executor and every attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChallengeNonce(pub [u8; 32]);

/// The values that distinguish one challenge from every other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChallengeIdentity {
    /// The batch to which the challenge belongs.
    pub batch: BatchId,
    /// The executor that is challenged.
    pub executor: ExecutorName,
    /// The validator's randomness for this challenge alone.
    pub nonce: ChallengeNonce,
}

/// The digest of a specification, which covers identity, shape and version. Every message carries it and every key
/// depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChallengeId(pub Hash);

/// The purpose of a key. Its number is hashed into the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPurpose {
    /// The columns of MATMUL's B.
    MatrixB = 1,
    /// The rows of MATMUL's A in one round.
    MatrixA = 2,
    /// The addresses of the WALK blocks that are mixed into the rows of A.
    BoundBlocks = 3,
    /// The words of a WALK's memory.
    Labels = 4,
    /// The first states of all walks.
    WalkStart = 5,
    /// The positions that the prover must open.
    Draw = 6,
    /// The confirmation by which a prover shows that it derived the same keys.
    Confirmation = 7,
}

/// Derives the key for `purpose` in `round`, after the root (or the seed) `previous`.
pub fn derive_key(challenge_id: &ChallengeId, purpose: KeyPurpose, round: u32, previous: &Hash) -> Key {
    let mut hash = Sha256::new();
    hash.update(DOMAIN);
    hash.update((purpose as u32).to_le_bytes());
    hash.update(challenge_id.0);
    hash.update(round.to_le_bytes());
    hash.update(previous);
    Key(hash.finalize().into())
}

/// Derives the key of the draw from the commitment and from randomness that the validator draws after it.
pub fn derive_draw_key(challenge_id: &ChallengeId, commitment: &Hash, entropy: &[u8; 32]) -> Key {
    let both: Hash = Sha256::new()
        .chain_update(commitment)
        .chain_update(entropy)
        .finalize()
        .into();
    derive_key(challenge_id, KeyPurpose::Draw, 0, &both)
}

/// Computes sixteen bytes that are equal if two sides derived the same key. They reveal nothing else about the key.
pub fn key_confirmation(challenge_id: &ChallengeId, key: &Key) -> [u8; 16] {
    let Key(full) = derive_key(challenge_id, KeyPurpose::Confirmation, 0, &key.0);
    let (head, _) = full.as_chunks::<16>();
    head.first().copied().unwrap_or_default()
}

/// A stream of 32-bit words from which bounded numbers are drawn by rejection.
#[derive(Debug, Clone)]
pub struct Draws {
    key: Key,
    block: [u8; chacha::BLOCK],
    counter: u64,
    used: usize,
}

impl Draws {
    /// Starts at the first word of stream 0.
    pub fn new(key: Key) -> Self {
        Self {
            key,
            block: chacha::keystream_block(&key, 0, 0),
            counter: 0,
            used: 0,
        }
    }

    fn next_word(&mut self) -> u32 {
        loop {
            if let Some(word) = self.block.as_chunks::<4>().0.get(self.used) {
                self.used += 1;
                return u32::from_le_bytes(*word);
            }
            self.counter += 1;
            self.block = chacha::keystream_block(&self.key, self.counter, 0);
            self.used = 0;
        }
    }

    /// Draws a number below `bound`, each with the same probability: words from the last whole multiple of `bound` on
    /// are skipped. A bound of 0 is taken as 1.
    pub fn draw_below(&mut self, bound: u32) -> u32 {
        let bound = u64::from(bound.max(1));
        let whole = ((1u64 << 32) / bound) * bound;
        loop {
            let word = u64::from(self.next_word());
            if word < whole {
                return (word % bound) as u32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_quarters_of_the_range_would_be_biased_by_a_plain_remainder() {
        // With x mod 3·2^30 the lowest third comes up twice as often: 1/2 instead of 1/3.
        let bound = 3 << 30;
        let mut draws = Draws::new(Key([1; 32]));
        let low = (0..30_000).filter(|_| draws.draw_below(bound) < 1 << 30).count();
        assert!((9_700..10_300).contains(&low), "{low}");
    }

    #[test]
    fn every_value_below_the_bound_occurs() {
        let mut draws = Draws::new(Key([2; 32]));
        let mut seen = [0u32; 7];
        for _ in 0..7_000 {
            seen[draws.draw_below(7) as usize] += 1;
        }
        let chi: f64 = seen
            .iter()
            .map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0)
            .sum();
        assert!(chi < 22.5, "χ² with 6 degrees of freedom, p = 0.001: {chi}");
        assert_eq!(draws.draw_below(0), 0);
        assert_eq!(draws.draw_below(1), 0);
    }

    #[test]
    fn every_part_of_a_key_matters() {
        let challenge_id = ChallengeId([1; 32]);
        let base = derive_key(&challenge_id, KeyPurpose::MatrixA, 3, &[2; 32]);
        assert_eq!(base, derive_key(&challenge_id, KeyPurpose::MatrixA, 3, &[2; 32]));
        assert_ne!(
            base,
            derive_key(&ChallengeId([0; 32]), KeyPurpose::MatrixA, 3, &[2; 32])
        );
        assert_ne!(base, derive_key(&challenge_id, KeyPurpose::MatrixB, 3, &[2; 32]));
        assert_ne!(base, derive_key(&challenge_id, KeyPurpose::MatrixA, 4, &[2; 32]));
        assert_ne!(base, derive_key(&challenge_id, KeyPurpose::MatrixA, 3, &[3; 32]));
        assert_ne!(
            derive_draw_key(&challenge_id, &[1; 32], &[2; 32]),
            derive_draw_key(&challenge_id, &[2; 32], &[1; 32])
        );
    }
}

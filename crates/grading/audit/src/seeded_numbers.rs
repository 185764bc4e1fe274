//! Numbers that follow from a seed, for resampling and simulation: SHA-256 of the seed and a counter.

use sha2::{Digest as _, Sha256};

/// An endless sequence of numbers, the same for the same seed in every language: the n-th (from 0) is the first eight
/// bytes, little-endian, of SHA-256(seed ‖ n as eight bytes, little-endian).
#[derive(Clone, Debug)]
pub struct SeededNumbers {
    seed: [u8; 32],
    next: u64,
}

impl SeededNumbers {
    /// The sequence of the purpose `tag` and these bytes; its seed is SHA-256(tag ‖ bytes).
    pub fn new(tag: &str, bytes: &[u8]) -> Self {
        let seed = Sha256::new().chain_update(tag).chain_update(bytes).finalize();
        Self {
            seed: seed.into(),
            next: 0,
        }
    }

    /// The next number of 64 bits.
    pub fn draw(&mut self) -> u64 {
        let digest = Sha256::new()
            .chain_update(self.seed)
            .chain_update(self.next.to_le_bytes())
            .finalize();
        self.next = self.next.wrapping_add(1);
        first_number(&digest)
    }

    /// The next number modulo `bound`, which is at least 1.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound.max(1)).unwrap_or(u64::MAX);
        usize::try_from(self.draw() % bound).unwrap_or(0)
    }
}

/// The first eight bytes of a digest as a little-endian number.
pub(crate) fn first_number(digest: &[u8]) -> u64 {
    digest.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_hashlib() {
        let mut numbers = SeededNumbers::new("muster/test/1", b"bytes");
        let drawn: Vec<u64> = (0..3).map(|_| numbers.draw()).collect();
        let expected = [
            4_167_746_382_337_600_969,
            17_168_967_483_160_782_489,
            2_140_777_305_850_357_378,
        ];
        assert_eq!(drawn, expected);
        assert!((0..1_000).all(|_| numbers.below(7) < 7));
    }
}

//! Damages inputs for tests of parsers: a fixed sequence from a seed, the same on every machine and in every run.

/// Makes damaged variants of well-formed inputs.
pub(crate) struct Mutator {
    state: u64,
}

impl Mutator {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self { state: seed }
    }

    /// One of `samples`, damaged one to four times. Parts of other samples may be inserted.
    pub(crate) fn next_from(&mut self, samples: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = samples[self.below(samples.len())].clone();
        for _ in 0..=self.below(4) {
            match self.below(6) {
                0 => self.flip(&mut bytes),
                1 => self.overwrite(&mut bytes),
                2 => bytes.truncate(self.below(bytes.len() + 1)),
                3 => self.cut(&mut bytes),
                4 => self.repeat(&mut bytes),
                _ => {
                    let other = self.below(samples.len());
                    self.splice(&mut bytes, &samples[other]);
                }
            }
        }
        bytes
    }

    /// A number from 0 up to but not including `end`; 0 if `end` is 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        // SplitMix64.
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((mixed ^ (mixed >> 31)) % end.max(1) as u64).unwrap()
    }

    /// A range of at most 64 bytes.
    fn piece(&mut self, bytes: &[u8]) -> std::ops::Range<usize> {
        let start = self.below(bytes.len() + 1);
        start..start + self.below((bytes.len() - start).min(64) + 1)
    }

    fn flip(&mut self, bytes: &mut [u8]) {
        for _ in 0..=self.below(8) {
            let (at, bit) = (self.below(bytes.len()), self.below(8));
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << bit;
            }
        }
    }

    /// Overwrites bytes with boundary values of lengths and offsets.
    fn overwrite(&mut self, bytes: &mut [u8]) {
        let value = [0, 1, 0x7F, 0x80, 0xFE, 0xFF, b'.', b'/'][self.below(8)];
        let piece = self.piece(bytes);
        bytes[piece].fill(value);
    }

    fn cut(&mut self, bytes: &mut Vec<u8>) {
        let piece = self.piece(bytes);
        bytes.drain(piece);
    }

    fn repeat(&mut self, bytes: &mut Vec<u8>) {
        let piece = self.piece(bytes);
        let copy = bytes[piece.clone()].to_vec();
        bytes.splice(piece.start..piece.start, copy);
    }

    fn splice(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        let (from, into) = (self.below(other.len() + 1), self.below(bytes.len() + 1));
        if self.below(2) == 0 {
            // The end of another sample.
            bytes.truncate(into);
            bytes.extend_from_slice(&other[from..]);
        } else {
            let piece = self.piece(other);
            bytes.splice(into..into, other[piece].iter().copied());
        }
    }
}

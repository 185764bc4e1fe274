//! Chance that is the same in every run of one seed.

/// SplitMix64, by Steele, Lea and Flood.
#[derive(Clone, Debug)]
pub(crate) struct Numbers(u64);

impl Numbers {
    /// The numbers of one world of a seed.
    pub(crate) fn new(seed: u64, world: u32) -> Self {
        let mut numbers = Self(seed);
        for _ in 0..world {
            numbers.0 = numbers.draw();
        }
        numbers
    }

    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 if that is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.draw().checked_rem(bound).unwrap_or(0)
    }

    /// Whether something happens that has this chance, in thousandths.
    pub(crate) fn happens(&mut self, per_mille: u16) -> bool {
        self.below(1_000) < u64::from(per_mille)
    }
}

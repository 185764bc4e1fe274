//! A share: a number with 32 binary digits before the point and 32 behind it, the width that the public chain computes
//! with. Everything rounds down, and stops at the bounds.

use core::iter::Sum;

/// A share: mostly of one, and of nothing below zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Share(u64);

/// Binary digits behind the point.
const FRACTION: u32 = 32;

impl Share {
    /// The share zero.
    pub const ZERO: Self = Self(0);
    /// All of it.
    pub const ONE: Self = Self(1 << FRACTION);

    /// The share with these bits.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The 64 bits, 32 of them fractional.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// A whole number; those that do not fit are the largest share.
    #[must_use]
    pub fn whole(value: u64) -> Self {
        Self::narrow(u128::from(value) << FRACTION)
    }

    /// The whole number below it.
    #[must_use]
    pub const fn floor(self) -> u64 {
        self.0 >> FRACTION
    }

    /// A part of a whole; nothing where the whole is nothing.
    #[must_use]
    pub fn part(part: u64, whole: u128) -> Self {
        Self::narrow((u128::from(part) << FRACTION).checked_div(whole).unwrap_or(0))
    }

    /// A quotient; nothing where the divisor is nothing.
    #[must_use]
    pub fn over(self, whole: Self) -> Self {
        Self::part(self.0, whole.0.into())
    }

    /// The product, rounded down.
    #[must_use]
    pub fn times(self, factor: Self) -> Self {
        Self::narrow(u128::from(self.0).saturating_mul(factor.0.into()) >> FRACTION)
    }

    /// The sum, saturating.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// A difference, of nothing at least.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    fn narrow(bits: u128) -> Self {
        Self(u64::try_from(bits).unwrap_or(u64::MAX))
    }
}

impl Sum for Share {
    fn sum<I: Iterator<Item = Self>>(shares: I) -> Self {
        shares.fold(Self::ZERO, Self::plus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_rounds_down_and_stops_at_its_bounds() {
        let third = Share::part(1, 3);
        assert_eq!(third.times(Share::whole(3)), Share::from_bits((1 << 32) - 1));
        assert_eq!(Share::ONE.over(Share::whole(3)), third);
        assert_eq!(Share::whole(7).floor(), 7);
        assert_eq!(Share::whole(u64::MAX), Share::from_bits(u64::MAX));
        assert_eq!(
            Share::whole(u64::MAX).times(Share::whole(2)),
            Share::from_bits(u64::MAX)
        );
        assert_eq!(Share::ZERO.minus(Share::ONE), Share::ZERO);
        assert_eq!(
            Share::from_bits(u64::MAX).plus(Share::ONE),
            Share::from_bits(u64::MAX)
        );
        assert_eq!(Share::ONE.over(Share::ZERO), Share::ZERO);
    }
}

//! Continuous decay in whole numbers.

/// One, with 32 fractional bits.
const ONE: u128 = 1 << 32;

/// The factor per block, with 32 fractional bits, whose `half_life`-th power is a half: the largest one that does not
/// exceed it. A half-life of 0 keeps everything.
#[must_use]
pub fn half_life_factor(half_life: u16) -> u128 {
    if half_life == 0 {
        return ONE;
    }
    let (mut low, mut high) = (0, ONE);
    while high.saturating_sub(low) > 1 {
        let middle = low.midpoint(high);
        if power(middle, half_life) > ONE / 2 {
            high = middle;
        } else {
            low = middle;
        }
    }
    low
}

/// A power of a factor with 32 fractional bits, each step rounded down.
fn power(factor: u128, exponent: u16) -> u128 {
    let (mut result, mut base, mut left) = (ONE, factor, exponent);
    while left > 0 {
        if left & 1 == 1 {
            result = result.saturating_mul(base) >> 32;
        }
        base = base.saturating_mul(base) >> 32;
        left >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_half_is_left_after_a_half_life() {
        assert_eq!(half_life_factor(0), ONE);
        assert_eq!(half_life_factor(1), ONE / 2);
        for half_life in [2, 7, 100, 360, u16::MAX] {
            let factor = half_life_factor(half_life);
            assert!(power(factor, half_life) <= ONE / 2, "{half_life}");
            assert!(power(factor + 1, half_life) > ONE / 2, "{half_life}");
        }
    }
}

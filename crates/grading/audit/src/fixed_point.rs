//! Logarithms and powers of two in integers, so that a program of any language computes the same evidence.
//!
//! `Qn` is an integer in units of 2⁻ⁿ. Everything rounds down: evidence against a miner is never rounded up.

/// One in Q32.
pub const ONE: u128 = 1 << 32;
/// One in Q62, the precision within [`exp2`].
const ONE_Q62: u64 = 1 << 62;
/// The binary digits of a logarithm behind the point.
const DIGITS: u32 = 32;

/// log₂(n) in Q32, rounded down; `n` is at least 1.
pub fn log2(n: u64) -> i64 {
    let whole = n.max(1).ilog2();
    // A number in [1, 2) in Q63, squared once for each digit.
    let mut mantissa = u128::from(n.max(1)) << (63 - whole);
    let mut digits = 0_i64;
    for _ in 0..DIGITS {
        mantissa = (mantissa * mantissa) >> 63;
        let digit = i64::from(mantissa >> 64 != 0);
        mantissa >>= digit;
        digits = (digits << 1) | digit;
    }
    (i64::from(whole) << DIGITS) | digits
}

/// A lower bound of log₂(numerator/denominator) in Q32, at most three units below it.
pub fn log2_ratio(numerator: u64, denominator: u64) -> i64 {
    log2(numerator) - log2(denominator) - 2
}

/// 2^x in Q32, rounded down; `x` is Q32 and at most 63.
pub fn exp2(x: i64) -> u128 {
    let whole = x >> DIGITS;
    let mut power = u128::from(ONE_Q62);
    // 2^(1/2), 2^(1/4) and so on in Q62, from the highest digit to the lowest.
    let mut root = u128::from(ONE_Q62) << 1;
    for digit in (0..DIGITS).rev() {
        root = (root << 62).isqrt();
        if (x >> digit) & 1 == 1 {
            power = (power * root) >> 62;
        }
    }
    match u32::try_from(whole) {
        Ok(up) => (power << up.min(63)) >> 30,
        Err(_) => power
            .checked_shr(u32::try_from(30 - whole).unwrap_or(u32::MAX))
            .unwrap_or(0),
    }
}

/// a·b of two numbers in Q32, rounded down.
pub fn multiply(a: u128, b: u128) -> u128 {
    (a * b) >> 32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[expect(clippy::cast_precision_loss, reason = "tests compare with floating point")]
    fn near(ours: i128, theirs: f64, tolerance: f64) -> bool {
        (ours as f64 / 4_294_967_296.0 - theirs).abs() <= tolerance
    }

    #[test]
    fn powers_of_two_are_exact() {
        for power in 0..64 {
            assert_eq!(log2(1 << power), i64::from(power) << 32);
        }
        assert_eq!(
            (exp2(0), exp2(3 << 32), exp2(-(2 << 32))),
            (ONE, 8 * ONE, ONE / 4)
        );
        assert_eq!(exp2(-(40 << 32)), 0);
        assert_eq!(exp2(i64::MIN), 0);
    }

    proptest! {
        #[test]
        fn logarithms_are_rounded_down(n in 1_u64..) {
            #[expect(clippy::cast_precision_loss, reason = "tests compare with floating point")]
            let exact = (n as f64).log2();
            prop_assert!(near(log2(n).into(), exact, 1e-9), "{}", n);
        }

        #[test]
        fn a_ratio_and_its_inverse_lose_a_little(a in 1_u64.., b in 1_u64..) {
            let lost = log2_ratio(a, b) + log2_ratio(b, a);
            prop_assert!((-6..0).contains(&lost), "{}", lost);
        }

        #[test]
        fn powers_never_exceed_the_exact_value(x in -(20_i64 << 32)..(12_i64 << 32)) {
            #[expect(clippy::cast_precision_loss, reason = "tests compare with floating point")]
            let exact = (x as f64 / 4_294_967_296.0).exp2();
            let ours = i128::try_from(exp2(x)).unwrap();
            prop_assert!(near(ours, exact, exact * 1e-12 + 3e-10), "{}", x);
            #[expect(clippy::cast_precision_loss, reason = "tests compare with floating point")]
            let above = ours as f64 / 4_294_967_296.0 - exact;
            prop_assert!(above <= exact * 1e-15, "{}", x);
        }
    }
}

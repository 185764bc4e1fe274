//! The seeded noise and the few functions that the sampler needs, in integers: the same bits on every machine.
//!
//! docs/proofs.md, "Audit: the seeded sampler", is the specification; `reference/sampler.py` is its second implementation.
//! Q24 means units of 2⁻²⁴, and so on. No floating point, hence no rounding mode, no fused multiplication, no maths library.

use std::sync::LazyLock;

use sha2::{Digest as _, Sha256};

/// One in Q24.
pub const ONE: i64 = 1 << 24;
/// floor(log₂(e)·2⁴⁰).
const LOG2E_40: u128 = 1_586_259_972_792;
/// floor(log₂(e)·2⁶²).
const LOG2E_62: u128 = 6_653_256_548_922_161_245;
/// floor(ln(2)·2⁶²).
const LN2_62: i128 = 3_196_577_161_300_663_914;
const HALF: u64 = 1 << 63;

/// What the noise of one choice of one response is drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub [u8; 32]);

impl Seed {
    /// The seed that stands for OpenAI's `seed`.
    #[must_use]
    pub fn of_openai(number: i64) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"muster/sampler/openai-seed/v1\0");
        hash.update(number.to_le_bytes());
        Self(hash.finalize().into())
    }

    /// The seed of the `choice`-th answer to a request.
    #[must_use]
    pub fn choice(&self, choice: u32) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"muster/sampler/choice/v1\0");
        hash.update(self.0);
        hash.update(choice.to_le_bytes());
        Self(hash.finalize().into())
    }
}

/// The noise at one position: a random word for every token.
pub struct Position {
    key: [u32; 2],
    counter: [u32; 3],
    block: Option<(u32, [u64; 2])>,
}

impl Position {
    /// `position` counts the tokens of the answer from 0.
    #[must_use]
    pub fn new(seed: &Seed, position: u32) -> Self {
        let [a, b, c, d, ..] = words(&seed.0);
        Self {
            key: [a, b],
            counter: [position, c, d],
            block: None,
        }
    }

    /// 64 random bits of a token. Neighbours share a block, so ask in order.
    pub fn word(&mut self, token: u32) -> u64 {
        let index = token >> 1;
        let [even, odd] = match self.block {
            Some((at, pair)) if at == index => pair,
            Some(_) | None => {
                let [position, c, d] = self.counter;
                let [w, x, y, z] = philox([index, position, c, d], self.key);
                let pair = [
                    u64::from(w) | u64::from(x) << 32,
                    u64::from(y) | u64::from(z) << 32,
                ];
                self.block = Some((index, pair));
                pair
            }
        };
        if token & 1 == 0 { even } else { odd }
    }
}

fn words(bytes: &[u8; 32]) -> [u32; 8] {
    let mut words = [0; 8];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = chunk
            .iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u32::from(*byte));
    }
    words
}

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..10 {
        let a = 0xD251_1F53_u64 * u64::from(c0);
        let b = 0xCD9E_8D57_u64 * u64::from(c2);
        let (a_high, a_low) = ((a >> 32) as u32, a as u32);
        let (b_high, b_low) = ((b >> 32) as u32, b as u32);
        (c0, c1, c2, c3) = (b_high ^ c1 ^ k0, b_low, a_high ^ c3 ^ k1, a_low);
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    [c0, c1, c2, c3]
}

/// −ln(−ln u) in Q24, rounded down to within one unit, for u = (word | 1)/2⁶⁴.
#[must_use]
pub fn gumbel(word: u64) -> i64 {
    let n = word | 1;
    // 1 − u, never zero because n is odd.
    let m = n.wrapping_neg();
    let q48 = if m < 1 << 52 {
        // −ln u = m + m²/2 + m³/3 …: near 1 the logarithm of u has too few digits left, that of 1 − u has all of them.
        let log = (((64_i128 << 48) - i128::from(log2(m))) * LN2_62) >> 62;
        let squared = (u128::from(m) * u128::from(m)) >> 64;
        let rest = (u128::from(m >> 1) + squared * 5 / 24) >> 16;
        log - rest as i128
    } else {
        let e = (((64_i128 << 48) - i128::from(log2(n))) * LN2_62) >> 62;
        (((48_i128 << 48) - i128::from(log2(e as u64))) * LN2_62) >> 62
    };
    (q48 >> 24) as i64
}

/// An upper bound of `gumbel(word)` in Q24 that costs next to nothing: −ln u ≥ 1 − u.
#[must_use]
pub fn gumbel_at_most(word: u64) -> i64 {
    const LN2_ABOVE: i64 = 11_629_081; // ln(2)·2²⁴, rounded up
    (i64::from((word | 1).wrapping_neg().leading_zeros()) + 1) * LN2_ABOVE
}

/// exp(−distance/temperature) in Q40; both in Q24, `temperature` above 0, `distance` not below.
#[must_use]
pub fn weight(distance: i64, temperature: i64) -> u64 {
    let (distance, temperature) = (distance.unsigned_abs(), temperature.unsigned_abs().max(1));
    // Beyond e⁻⁶⁴ nothing is left of 2⁴⁰.
    if distance >> 6 >= temperature {
        return 0;
    }
    let e = (u128::from(distance) << 24) / u128::from(temperature);
    let b = ((e * LOG2E_40) >> 40) as u64;
    let (whole, part) = (b >> 24, b & 0xFF_FFFF);
    if whole > 40 {
        return 0;
    }
    let mut product = HALF;
    for (table, shift) in TABLES.powers.iter().zip([16, 8, 0]) {
        let factor = table.get((part >> shift & 255) as usize).copied().unwrap_or(HALF);
        product = ((u128::from(product) * u128::from(factor)) >> 63) as u64;
    }
    product >> (23 + whole)
}

/// log₂(n) in Q48 for n ≥ 1.
fn log2(n: u64) -> u64 {
    let exponent = 63 - n.leading_zeros();
    let x = n << n.leading_zeros();
    let (r, first) = TABLES
        .first
        .get((x >> 55 & 255) as usize)
        .copied()
        .unwrap_or((HALF, 0));
    let y = ((u128::from(x) * u128::from(r)) >> 63) as u64;
    let (r, second) = TABLES
        .second
        .get(((y - HALF) >> 47 & 255) as usize)
        .copied()
        .unwrap_or((HALF, 0));
    let f = u128::from(((u128::from(y) * u128::from(r)) >> 63) as u64 - HALF);
    let rest = (((f - ((f * f) >> 64)) * LOG2E_62) >> 63) as u64;
    (u64::from(exponent) << 48) + ((first + second + rest) >> 14)
}

struct Tables {
    /// Reciprocals of 1 + i/256 in Q63, rounded up, and minus their logarithms in Q62.
    first: Vec<(u64, u64)>,
    /// The same of 1 + i/65536.
    second: Vec<(u64, u64)>,
    /// 2^(−i/2⁸), 2^(−i/2¹⁶), 2^(−i/2²⁴) in Q63.
    powers: [Vec<u64>; 3],
}

static TABLES: LazyLock<Tables> = LazyLock::new(|| {
    // 2^(−1/2^k) by repeated square roots.
    let mut roots = vec![1_u64 << 62];
    for _ in 0..24 {
        let last = roots.last().copied().unwrap_or(HALF);
        roots.push((u128::from(last) << 63).isqrt() as u64);
    }
    let power = |shift: usize| {
        (0..256_u64)
            .map(|i| {
                (0..8_usize)
                    .rev()
                    .filter(|bit| i >> bit & 1 == 1)
                    .fold(HALF, |product, bit| {
                        let root = roots.get(24 - shift - bit).copied().unwrap_or(HALF);
                        ((u128::from(product) * u128::from(root)) >> 63) as u64
                    })
            })
            .collect()
    };
    Tables {
        first: reciprocals(256, 71),
        second: reciprocals(65_536, 79),
        powers: [power(16), power(8), power(0)],
    }
});

fn reciprocals(unit: u128, scale: u32) -> Vec<(u64, u64)> {
    (0..256)
        .map(|i| {
            let r = (1_u128 << scale).div_ceil(unit + i) as u64;
            let log = if r == HALF {
                0
            } else {
                (1 << 62) - slow_log2(r << 1)
            };
            (r, log)
        })
        .collect()
}

/// log₂(v/2⁶³) in Q62, one bit after the other.
fn slow_log2(v: u64) -> u64 {
    let mut v = u128::from(v);
    let mut bits = 0;
    for _ in 0..62 {
        v = (v * v) >> 63;
        let over = v >> 64 != 0;
        bits = bits << 1 | u64::from(over);
        if over {
            v >>= 1;
        }
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_is_the_published_one() {
        // Known answers of the authors' Random123 library.
        assert_eq!(
            philox([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
    }

    #[test]
    fn the_noise_has_the_moments_of_a_gumbel_variable() {
        let mut position = Position::new(&Seed::of_openai(3), 5);
        let n = 200_000;
        let (mut sum, mut squares) = (0.0, 0.0);
        for token in 0..n {
            let word = position.word(token);
            let g = gumbel(word);
            assert!(g <= gumbel_at_most(word));
            let g = g as f64 / ONE as f64;
            sum += g;
            squares += g * g;
        }
        let mean = sum / f64::from(n);
        let variance = squares / f64::from(n) - mean * mean;
        assert!((mean - 0.577_216).abs() < 0.01, "{mean}");
        assert!(
            (variance - std::f64::consts::PI.powi(2) / 6.0).abs() < 0.03,
            "{variance}"
        );
    }

    #[test]
    fn the_noise_never_falls_where_the_word_rises() {
        let edge = (1 << 63) | 0x7ff0_0000_0000_0000;
        for at in [
            1_u64,
            1 << 20,
            1 << 40,
            HALF,
            edge,
            u64::MAX - (1 << 53),
            u64::MAX - (1 << 52) - 2_000,
            u64::MAX - 5_000,
        ] {
            for step in 0..2_000 {
                let word = at + 2 * step;
                assert!(gumbel(word) <= gumbel(word + 2) + 1, "{word:x}");
            }
        }
    }
}

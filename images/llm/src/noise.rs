//! The seeded noise and the few functions that the sampler needs, in integers: the same bits on every machine.
//!
//! docs/proofs.md, "Audit: the seeded sampler", is the specification; `reference/sampler.py` is its second
//! implementation. Q24 means units of 2⁻²⁴, and so on. No floating point, hence no rounding mode, no fused
//! multiplication, no maths library.

use std::sync::LazyLock;

use sha2::{Digest as _, Sha256};

/// The version of vLLM's noise that is replayed: its newer runner for GPUs, as it was in that month.
pub const VLLM_VERSION: &str = "2026-11";

/// One in Q24.
pub const ONE: i64 = 1 << 24;
/// The constant floor(log₂(e)·2⁴⁰).
const LOG2E_40: u128 = 1_586_259_972_792;
/// The constant floor(log₂(e)·2⁶²).
const LOG2E_62: u128 = 6_653_256_548_922_161_245;
/// The constant floor(ln(2)·2⁶²).
const LN2_62: i128 = 3_196_577_161_300_663_914;
const HALF: u64 = 1 << 63;

/// The seed of the noise of one response.
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

/// Blocks of random words, of two each, that are made side by side where all are wanted.
const BLOCKS: usize = 64;

/// The source of the noise at one position of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noise {
    /// Ours: the seed of the answer, and the number of its tokens so far.
    Muster(Seed, u32),
    /// vLLM's: the seed of the request, and the position of the last token of the text so far, the prompt's included.
    Vllm(i64, u64),
}

/// The noise at one position: a random word for every token.
pub struct Position {
    words: Words,
    made: Made,
}

/// The key and the counters from which the words of a position follow.
#[derive(Clone, Copy)]
enum Words {
    Muster { key: [u32; 2], counter: [u32; 3] },
    Vllm { key: u32 },
}

/// The last block of noise: its number, and its words.
enum Made {
    One(Option<(u32, [u64; 2])>),
    Stretch(Option<u32>, Box<[u64; 2 * BLOCKS]>),
}

impl Position {
    /// `position` counts the tokens of the answer from 0. For whoever wants the words of a few tokens.
    #[must_use]
    pub fn new(seed: &Seed, position: u32) -> Self {
        Self::at(&Noise::Muster(*seed, position))
    }

    /// The same words, for whoever wants those of nearly all tokens in order.
    #[must_use]
    pub fn of_all(seed: &Seed, position: u32) -> Self {
        Self::all_at(&Noise::Muster(*seed, position))
    }

    /// The words of a few tokens.
    #[must_use]
    pub fn at(noise: &Noise) -> Self {
        let words = match noise {
            Noise::Muster(seed, position) => {
                let [a, b, c, d, ..] = words(&seed.0);
                Words::Muster {
                    key: [a, b],
                    counter: [*position, c, d],
                }
            }
            Noise::Vllm(seed, position) => Words::Vllm {
                key: vllm_key(*seed, *position),
            },
        };
        Self {
            words,
            made: Made::One(None),
        }
    }

    /// The same words, for whoever wants those of nearly all tokens in order.
    #[must_use]
    pub fn all_at(noise: &Noise) -> Self {
        Self {
            made: Made::Stretch(None, Box::new([0; 2 * BLOCKS])),
            ..Self::at(noise)
        }
    }

    /// 64 random bits of a token. Neighbours are made together, so ask in order.
    pub fn word(&mut self, token: u32) -> u64 {
        let words = self.words;
        match &mut self.made {
            Made::One(last) => {
                let index = token >> 1;
                let [even, odd] = match last {
                    Some((at, pair)) if *at == index => *pair,
                    Some(_) | None => {
                        let pair = words.pair(index);
                        *last = Some((index, pair));
                        pair
                    }
                };
                if token & 1 == 0 { even } else { odd }
            }
            Made::Stretch(last, made) => {
                let (stretch, place) = (token / (2 * BLOCKS) as u32, token as usize % (2 * BLOCKS));
                if *last != Some(stretch) {
                    words.fill(stretch, made);
                    *last = Some(stretch);
                }
                made.get(place).copied().unwrap_or_default()
            }
        }
    }
}

/// The tokens whose words are made side by side.
pub(crate) const STRETCH: usize = 2 * BLOCKS;

/// Fills `made` with the words of the tokens `number·STRETCH` and on.
pub(crate) fn fill_stretch(noise: &Noise, number: u32, made: &mut [u64; STRETCH]) {
    Position::at(noise).words.fill(number, made);
}

impl Words {
    /// The words of tokens `2·index` and `2·index + 1`.
    fn pair(self, index: u32) -> [u64; 2] {
        match self {
            Self::Muster {
                key,
                counter: [position, c, d],
            } => {
                let [[w], [x], [y], [z]] = philox([[index], [position], [c], [d]], key);
                [joined(w, x), joined(y, z)]
            }
            Self::Vllm { key } => {
                let token = index << 1;
                let [made, ..] = philox([[token, token | 1], [0; 2], [0; 2], [0; 2]], [key, 0]);
                made.map(vllm_word)
            }
        }
    }

    /// The words of all tokens of a stretch.
    fn fill(self, stretch: u32, made: &mut [u64; 2 * BLOCKS]) {
        match self {
            Self::Muster {
                key,
                counter: [position, c, d],
            } => {
                let first = stretch * BLOCKS as u32;
                let indices = std::array::from_fn(|i| first + i as u32);
                let [w, x, y, z] = philox([indices, [position; BLOCKS], [c; BLOCKS], [d; BLOCKS]], key);
                let pairs = made.as_chunks_mut::<2>().0.iter_mut();
                for ((pair, (w, x)), (y, z)) in pairs.zip(w.into_iter().zip(x)).zip(y.into_iter().zip(z)) {
                    *pair = [joined(w, x), joined(y, z)];
                }
            }
            Self::Vllm { key } => {
                let first = stretch * 2 * BLOCKS as u32;
                let tokens = std::array::from_fn(|i| first + i as u32);
                let zeros = [0; 2 * BLOCKS];
                let [random, ..] = philox([tokens, zeros, zeros, zeros], [key, 0]);
                *made = random.map(vllm_word);
            }
        }
    }
}

/// The key of all tokens' noise at a position: Triton's `randint` of a 64-bit seed at a 64-bit offset.
fn vllm_key(seed: i64, position: u64) -> u32 {
    let (seed, high) = (seed.cast_unsigned(), (position >> 32) as u32);
    let [[random], ..] = philox(
        [[position as u32], [high], [0], [0]],
        [seed as u32, (seed >> 32) as u32],
    );
    random
}

/// The word whose [`gumbel`] is vLLM's noise. Triton's `rand` makes u = k·2⁻³¹ of 32 random bits, k the smaller of them
/// and their complement; vLLM takes at least one for k, and the noise −ln(−ln(1 − u)).
fn vllm_word(random: u32) -> u64 {
    let k = u64::from(random.min(!random)).max(1);
    ((1 << 31) - k) << 33
}

/// Whether vLLM's noise has the numbers that Triton gave, so that a replay may be believed.
pub(crate) fn vllm_self_test() -> bool {
    // Seed, position, token, and the word that follows from Triton's number (tests/python/triton_noise.py).
    const KNOWN: [(i64, u64, u32, u64); 8] = [
        (0, 0, 5, 0xEE11_F900_0000_0000),
        (1, 0, 5, 0xF13F_1256_0000_0000),
        (1, 1, 5, 0x28FF_1B82_0000_0000),
        (7, 300, 5, 0xD5B7_C2BE_0000_0000),
        (-1, 12, 5, 0xD2C2_8116_0000_0000),
        (i64::MAX, 99_999, 5, 0xB7AF_F1DC_0000_0000),
        (i64::MIN, 5, 5, 0x9602_FA8E_0000_0000),
        (123_456_789_012_345, 8_589_934_599, 5, 0x3F2F_07EA_0000_0000),
    ];
    KNOWN.iter().all(|(seed, position, token, word)| {
        let noise = Noise::Vllm(*seed, *position);
        Position::at(&noise).word(*token) == *word && Position::all_at(&noise).word(*token) == *word
    })
}

fn joined(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
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

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), of `N` counters side by side.
fn philox<const N: usize>(mut counters: [[u32; N]; 4], key: [u32; 2]) -> [[u32; N]; 4] {
    let [mut k0, mut k1] = key;
    for _ in 0..10 {
        let [c0, c1, c2, c3] = &mut counters;
        for (((c0, c1), c2), c3) in c0.iter_mut().zip(c1).zip(c2).zip(c3) {
            let a = 0xD251_1F53_u64 * u64::from(*c0);
            let b = 0xCD9E_8D57_u64 * u64::from(*c2);
            let (a_high, a_low) = ((a >> 32) as u32, a as u32);
            let (b_high, b_low) = ((b >> 32) as u32, b as u32);
            (*c0, *c1, *c2, *c3) = (b_high ^ *c1 ^ k0, b_low, a_high ^ *c3 ^ k1, a_low);
        }
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    counters
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
            philox([[0]; 4], [0; 2]),
            [[0x6627_e8d5], [0xe169_c58d], [0xbc57_ac4c], [0x9b00_dbd8]]
        );
        assert_eq!(
            philox([[u32::MAX]; 4], [u32::MAX; 2]),
            [[0x408f_276d], [0x41c8_3b0e], [0xa20b_c7c6], [0x6d54_51fd]]
        );
    }

    #[test]
    fn words_are_the_same_one_by_one_and_side_by_side() {
        let seed = Seed::of_openai(9);
        let (mut one, mut all) = (Position::new(&seed, 7), Position::of_all(&seed, 7));
        for token in (0..1_000).chain([5, 4_000, 4_001, u32::MAX]) {
            assert_eq!(one.word(token), all.word(token), "{token}");
        }
        let noise = Noise::Vllm(-3, 1 << 40);
        let (mut one, mut all) = (Position::at(&noise), Position::all_at(&noise));
        for token in (0..1_000).chain([5, 4_000, 4_001, u32::MAX]) {
            assert_eq!(one.word(token), all.word(token), "{token}");
        }
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
    fn the_noise_of_vllm_is_its_formula() {
        for random in [
            0,
            1,
            2,
            77_777,
            1 << 30,
            i32::MAX as u32,
            1 << 31,
            u32::MAX - 9,
            u32::MAX,
        ] {
            let k = f64::from(random.min(!random)).max(1.0);
            let exact = -(-(-k / f64::from(1_u32 << 31)).ln_1p()).ln();
            let noise = gumbel(vllm_word(random)) as f64 / ONE as f64;
            assert!((noise - exact).abs() < 2e-7, "{random}: {noise}, {exact}");
        }
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

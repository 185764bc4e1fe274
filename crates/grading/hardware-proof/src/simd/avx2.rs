//! ChaCha8 in eight lanes and exact inner products with AVX2.
//!
//! `vpmaddubsw` is not used: it saturates at 16 bits, and two products of -128 make 32,768. Entries are widened to 16
//! bits and multiplied by `vpmaddwd`, which is exact.
#![expect(
    clippy::indexing_slicing,
    reason = "sixteen registers addressed by constants below sixteen"
)]

use std::arch::x86_64::*;

use crate::chacha::{self, Key};
use crate::merkle::LEAF;
use crate::spec::NumberFormat;

/// Word `w` of eight blocks side by side.
type Lanes = [__m256i; 16];

#[inline]
#[target_feature(enable = "avx2")]
fn quarter(v: &mut Lanes, a: usize, b: usize, c: usize, d: usize) {
    let rot16 = _mm256_setr_epi8(
        2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15,
        12, 13,
    );
    let rot8 = _mm256_setr_epi8(
        3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14, 3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12,
        13, 14,
    );
    v[a] = _mm256_add_epi32(v[a], v[b]);
    v[d] = _mm256_shuffle_epi8(_mm256_xor_si256(v[d], v[a]), rot16);
    v[c] = _mm256_add_epi32(v[c], v[d]);
    let x = _mm256_xor_si256(v[b], v[c]);
    v[b] = _mm256_or_si256(_mm256_slli_epi32::<12>(x), _mm256_srli_epi32::<20>(x));
    v[a] = _mm256_add_epi32(v[a], v[b]);
    v[d] = _mm256_shuffle_epi8(_mm256_xor_si256(v[d], v[a]), rot8);
    v[c] = _mm256_add_epi32(v[c], v[d]);
    let y = _mm256_xor_si256(v[b], v[c]);
    v[b] = _mm256_or_si256(_mm256_slli_epi32::<7>(y), _mm256_srli_epi32::<25>(y));
}

#[inline]
#[target_feature(enable = "avx2")]
fn forward(v: &mut Lanes) {
    let before = *v;
    for _ in 0..4 {
        quarter(v, 0, 4, 8, 12);
        quarter(v, 1, 5, 9, 13);
        quarter(v, 2, 6, 10, 14);
        quarter(v, 3, 7, 11, 15);
        quarter(v, 0, 5, 10, 15);
        quarter(v, 1, 6, 11, 12);
        quarter(v, 2, 7, 8, 13);
        quarter(v, 3, 4, 9, 14);
    }
    for i in 0..16 {
        v[i] = _mm256_add_epi32(v[i], before[i]);
    }
}

/// The states of blocks `counter` to `counter + 7`; `counter` is a multiple of 8, so the lanes never carry.
#[inline]
#[target_feature(enable = "avx2")]
fn initial(key: &Key, counter: u64, stream: u64) -> Lanes {
    let words = chacha::initial_state(key, counter, stream);
    let mut v = [_mm256_setzero_si256(); 16];
    for i in 0..16 {
        v[i] = _mm256_set1_epi32(words[i].cast_signed());
    }
    v[12] = _mm256_add_epi32(v[12], _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    v
}

/// Turns eight words of eight lanes into eight halves of blocks.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose(v: &[__m256i; 8]) -> [__m256i; 8] {
    let mut t = *v;
    for i in 0..4 {
        t[2 * i] = _mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
    }
    let mut u = t;
    for i in 0..2 {
        u[4 * i] = _mm256_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 1] = _mm256_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 2] = _mm256_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        u[4 * i + 3] = _mm256_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    let mut out = u;
    for j in 0..4 {
        out[j] = _mm256_permute2x128_si256::<0x20>(u[j], u[j + 4]);
        out[j + 4] = _mm256_permute2x128_si256::<0x31>(u[j], u[j + 4]);
    }
    out
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(v: &Lanes, out: &mut [u8; 512]) {
    let (low, high) = v.as_chunks::<8>().0.split_at(1);
    let halves = [transpose(&low[0]), transpose(&high[0])];
    for (i, place) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        // SAFETY: `place` is 32 writable bytes; the store needs no alignment.
        unsafe { _mm256_storeu_si256(place.as_mut_ptr().cast(), halves[i % 2][i / 2]) };
    }
}

#[target_feature(enable = "avx2")]
pub(super) fn fill(key: &Key, stream: u64, out: &mut [[u8; 512]]) {
    for (i, piece) in out.iter_mut().enumerate() {
        let mut v = initial(key, 8 * i as u64, stream);
        forward(&mut v);
        store(&v, piece);
    }
}

#[target_feature(enable = "avx2")]
pub(super) fn labels(key: &Key, first: u64, work: u32, out: &mut [u8; LEAF]) {
    for (half, place) in out.as_chunks_mut::<512>().0.iter_mut().enumerate() {
        let mut v = initial(key, first + 8 * half as u64, 0);
        for _ in 0..work {
            forward(&mut v);
        }
        store(&v, place);
    }
}

/// Eight 32-bit sums of products of the entries in two registers of generator bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn products(numbers: NumberFormat, a: __m256i, b: __m256i) -> __m256i {
    match numbers {
        NumberFormat::Int8 => {
            // Even bytes are shifted to the top of their 16 bits and back with their sign. Odd bytes are at the top
            // already.
            let even = _mm256_madd_epi16(
                _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(a)),
                _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(b)),
            );
            let odd = _mm256_madd_epi16(_mm256_srai_epi16::<8>(a), _mm256_srai_epi16::<8>(b));
            _mm256_add_epi32(even, odd)
        }
        NumberFormat::Fp16 => _mm256_madd_epi16(_mm256_srai_epi16::<7>(a), _mm256_srai_epi16::<7>(b)),
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn sum(v: __m256i) -> i32 {
    let lanes = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
    let pairs = _mm_add_epi32(lanes, _mm_shuffle_epi32::<0b01_00_11_10>(lanes));
    _mm_cvtsi128_si32(_mm_add_epi32(pairs, _mm_shuffle_epi32::<0b10_11_00_01>(pairs)))
}

/// Both streams stay in lane order, because an inner product does not depend on the order of its terms.
#[target_feature(enable = "avx2")]
pub(super) fn stream_dot(numbers: NumberFormat, a: (&Key, u64), b: (&Key, u64), pieces: usize) -> i32 {
    let mut total = _mm256_setzero_si256();
    for counter in (0..8 * pieces as u64).step_by(8) {
        let (mut left, mut right) = (initial(a.0, counter, a.1), initial(b.0, counter, b.1));
        forward(&mut left);
        forward(&mut right);
        for i in 0..16 {
            total = _mm256_add_epi32(total, products(numbers, left[i], right[i]));
        }
    }
    sum(total)
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(entries: &[i16; 16]) -> __m256i {
    // SAFETY: 32 readable bytes; the load needs no alignment.
    unsafe { _mm256_loadu_si256(entries.as_ptr().cast()) }
}

/// Computes `out[r][c] = ⟨rows[r], columns[c]⟩` of entries widened to 16 bits.
#[target_feature(enable = "avx2")]
pub(super) fn tile<const R: usize, const C: usize>(
    rows: [&[[i16; 16]]; R],
    columns: [&[[i16; 16]]; C],
) -> [[i32; C]; R] {
    let mut sums = [[_mm256_setzero_si256(); C]; R];
    for k in 0..rows[0].len() {
        let mut b = [_mm256_setzero_si256(); C];
        for c in 0..C {
            b[c] = load(&columns[c][k]);
        }
        for r in 0..R {
            let a = load(&rows[r][k]);
            for c in 0..C {
                sums[r][c] = _mm256_add_epi32(sums[r][c], _mm256_madd_epi16(a, b[c]));
            }
        }
    }
    let mut out = [[0; C]; R];
    for r in 0..R {
        for c in 0..C {
            out[r][c] = sum(sums[r][c]);
        }
    }
    out
}

//! ChaCha8 in sixteen lanes and inner products with AVX-512 VNNI.
#![expect(
    clippy::indexing_slicing,
    reason = "sixteen registers addressed by constants below sixteen"
)]

use std::arch::x86_64::*;

use crate::chacha::{self, Key};
use crate::merkle::LEAF;
use crate::spec::NumberFormat;

/// Word `w` of sixteen blocks side by side.
type Lanes = [__m512i; 16];

#[inline]
#[target_feature(enable = "avx512f")]
fn quarter(v: &mut Lanes, a: usize, b: usize, c: usize, d: usize) {
    v[a] = _mm512_add_epi32(v[a], v[b]);
    v[d] = _mm512_rol_epi32::<16>(_mm512_xor_si512(v[d], v[a]));
    v[c] = _mm512_add_epi32(v[c], v[d]);
    v[b] = _mm512_rol_epi32::<12>(_mm512_xor_si512(v[b], v[c]));
    v[a] = _mm512_add_epi32(v[a], v[b]);
    v[d] = _mm512_rol_epi32::<8>(_mm512_xor_si512(v[d], v[a]));
    v[c] = _mm512_add_epi32(v[c], v[d]);
    v[b] = _mm512_rol_epi32::<7>(_mm512_xor_si512(v[b], v[c]));
}

#[inline]
#[target_feature(enable = "avx512f")]
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
        v[i] = _mm512_add_epi32(v[i], before[i]);
    }
}

/// The states of blocks `counter` to `counter + 15`; `counter` is a multiple of 16, so the lanes never carry.
#[inline]
#[target_feature(enable = "avx512f")]
fn initial(key: &Key, counter: u64, stream: u64) -> Lanes {
    let words = chacha::initial_state(key, counter, stream);
    let mut v = [_mm512_setzero_si512(); 16];
    for i in 0..16 {
        v[i] = _mm512_set1_epi32(words[i].cast_signed());
    }
    v[12] = _mm512_add_epi32(
        v[12],
        _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
    );
    v
}

/// Turns sixteen words of sixteen lanes into sixteen blocks.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose(v: &Lanes) -> Lanes {
    let mut t = *v;
    for i in 0..8 {
        t[2 * i] = _mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
    }
    let mut u = t;
    for i in 0..4 {
        let [a, b, c, d] = [t[4 * i], t[4 * i + 1], t[4 * i + 2], t[4 * i + 3]];
        u[4 * i] = _mm512_unpacklo_epi64(a, c);
        u[4 * i + 1] = _mm512_unpackhi_epi64(a, c);
        u[4 * i + 2] = _mm512_unpacklo_epi64(b, d);
        u[4 * i + 3] = _mm512_unpackhi_epi64(b, d);
    }
    // Each u[4i + j] holds words 4i..4i+3 of blocks j, j+4, j+8, j+12.
    let mut out = u;
    for j in 0..4 {
        let [a, b, c, d] = [u[j], u[4 + j], u[8 + j], u[12 + j]];
        let (ab_low, ab_high) = (
            _mm512_shuffle_i32x4::<0x44>(a, b),
            _mm512_shuffle_i32x4::<0xee>(a, b),
        );
        let (cd_low, cd_high) = (
            _mm512_shuffle_i32x4::<0x44>(c, d),
            _mm512_shuffle_i32x4::<0xee>(c, d),
        );
        out[j] = _mm512_shuffle_i32x4::<0x88>(ab_low, cd_low);
        out[j + 4] = _mm512_shuffle_i32x4::<0xdd>(ab_low, cd_low);
        out[j + 8] = _mm512_shuffle_i32x4::<0x88>(ab_high, cd_high);
        out[j + 12] = _mm512_shuffle_i32x4::<0xdd>(ab_high, cd_high);
    }
    out
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(v: &Lanes, out: &mut [u8; LEAF]) {
    for (block, place) in transpose(v).into_iter().zip(out.as_chunks_mut::<64>().0) {
        // SAFETY: `place` is 64 writable bytes; the store needs no alignment.
        unsafe { _mm512_storeu_si512(place.as_mut_ptr().cast(), block) };
    }
}

#[target_feature(enable = "avx512f")]
pub(super) fn fill(key: &Key, stream: u64, out: &mut [[u8; LEAF]]) {
    for (i, piece) in out.iter_mut().enumerate() {
        let mut v = initial(key, 16 * i as u64, stream);
        forward(&mut v);
        store(&v, piece);
    }
}

#[target_feature(enable = "avx512f")]
pub(super) fn labels(key: &Key, first: u64, work: u32, out: &mut [u8; LEAF]) {
    let mut v = initial(key, first, 0);
    for _ in 0..work {
        forward(&mut v);
    }
    store(&v, out);
}

/// Both streams stay in lane order, because an inner product does not depend on the order of its terms.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) fn stream_dot(numbers: NumberFormat, a: (&Key, u64), b: (&Key, u64), pieces: usize) -> i32 {
    let mut sums = [_mm512_setzero_si512(); 2];
    for counter in (0..16 * pieces as u64).step_by(16) {
        let (mut left, mut right) = (initial(a.0, counter, a.1), initial(b.0, counter, b.1));
        forward(&mut left);
        forward(&mut right);
        for i in 0..16 {
            sums = multiply_add(numbers, sums, left[i], right[i]);
        }
    }
    _mm512_reduce_add_epi32(_mm512_sub_epi32(sums[0], sums[1]))
}

/// Adds products to the first sum. The caller subtracts the second sum, the bias, from it at the end.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn multiply_add(numbers: NumberFormat, [sum, bias]: [__m512i; 2], a: __m512i, b: __m512i) -> [__m512i; 2] {
    match numbers {
        NumberFormat::Int8 => {
            // The instruction multiplies unsigned by signed: (a + 128)·b goes to the sum, 128·b to the bias. Neither
            // saturates.
            let half = _mm512_set1_epi8(-128);
            [
                _mm512_dpbusd_epi32(sum, _mm512_xor_si512(a, half), b),
                _mm512_dpbusd_epi32(bias, half, b),
            ]
        }
        NumberFormat::Fp16 => {
            let product = _mm512_madd_epi16(_mm512_srai_epi16::<7>(a), _mm512_srai_epi16::<7>(b));
            [_mm512_add_epi32(sum, product), bias]
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: 64 readable bytes; the load needs no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// Computes `out[r][c] = ⟨rows[r], columns[c]⟩` for up to four rows and six columns of int8 keystream bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) fn tile<const R: usize, const C: usize>(
    rows: [&[[u8; 64]]; R],
    columns: [&[[u8; 64]]; C],
) -> [[i32; C]; R] {
    let half = _mm512_set1_epi8(-128);
    let mut sums = [[_mm512_setzero_si512(); C]; R];
    let mut bias = [_mm512_setzero_si512(); C];
    for k in 0..rows[0].len() {
        let mut a = [half; R];
        for r in 0..R {
            a[r] = _mm512_xor_si512(load(&rows[r][k]), half);
        }
        for c in 0..C {
            let b = load(&columns[c][k]);
            bias[c] = _mm512_dpbusd_epi32(bias[c], half, b);
            for r in 0..R {
                sums[r][c] = _mm512_dpbusd_epi32(sums[r][c], a[r], b);
            }
        }
    }
    let mut out = [[0; C]; R];
    for r in 0..R {
        for c in 0..C {
            out[r][c] = _mm512_reduce_add_epi32(_mm512_sub_epi32(sums[r][c], bias[c]));
        }
    }
    out
}

//! The inner loops, once per instruction set. This module holds all `unsafe` code of the crate.
//!
//! Every function here is safe to call: an [`InstructionSet`] exists only for instructions that this processor has, and
//! lengths are checked before a pointer is made. All instruction sets give the same bits; tests compare them with each
//! other and with the Python reference.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod gemm;

use crate::chacha::{self, Key};
use crate::merkle::LEAF;
use crate::spec::NumberFormat;

/// The vector instructions in use. Made by [`InstructionSet::best`], [`InstructionSet::available`] and
/// [`InstructionSet::PORTABLE`] only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstructionSet(Level);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Level {
    Portable,
    Avx2,
    Avx512,
    Amx,
}

impl InstructionSet {
    /// Plain Rust, on every processor.
    pub const PORTABLE: Self = Self(Level::Portable);

    /// All instruction sets of this processor, the fastest one last.
    pub fn available() -> Vec<Self> {
        let mut levels = vec![Self::PORTABLE];
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if has!("avx2") {
                levels.push(Self(Level::Avx2));
                if has!("avx512f") && has!("avx512bw") && has!("avx512vnni") {
                    levels.push(Self(Level::Avx512));
                    if amx::is_permitted() {
                        levels.push(Self(Level::Amx));
                    }
                }
            }
        }
        levels
    }

    /// The fastest instruction set of this processor.
    pub fn best() -> Self {
        static BEST: std::sync::OnceLock<InstructionSet> = std::sync::OnceLock::new();
        *BEST.get_or_init(|| Self::available().pop().unwrap_or(Self::PORTABLE))
    }

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Portable => "portable",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512-vnni",
            Level::Amx => "amx-int8",
        }
    }
}

/// Fills `out` with the first bytes of stream `stream`.
pub(crate) fn fill_keystream(engine: InstructionSet, key: &Key, stream: u64, out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    let (out, counter) = match engine.0 {
        Level::Portable => (out, 0),
        Level::Avx2 => {
            let whole = out.len() / 512 * 512;
            let (head, tail) = out.split_at_mut(whole);
            // SAFETY: this instruction set exists only where avx2 was detected.
            unsafe { avx2::fill(key, stream, head.as_chunks_mut().0) };
            (tail, whole / chacha::BLOCK)
        }
        Level::Avx512 | Level::Amx => {
            let whole = out.len() / 1024 * 1024;
            let (head, tail) = out.split_at_mut(whole);
            // SAFETY: these instruction sets exist only where avx512f was detected.
            unsafe { avx512::fill(key, stream, head.as_chunks_mut().0) };
            (tail, whole / chacha::BLOCK)
        }
    };
    #[cfg(not(target_arch = "x86_64"))]
    let (counter, _) = (0, engine);
    for (i, chunk) in out.chunks_mut(chacha::BLOCK).enumerate() {
        for (place, byte) in chunk
            .iter_mut()
            .zip(chacha::keystream_block(key, (counter + i) as u64, stream))
        {
            *place = byte;
        }
    }
}

/// Computes block `index` of a memory: sixteen words of `work` applications of the one-way function each.
pub(crate) fn compute_label_block(
    engine: InstructionSet,
    key: &Key,
    index: u64,
    work: u32,
    out: &mut [u8; LEAF],
) {
    let first = index * crate::spec::WORDS_PER_BLOCK;
    match engine.0 {
        Level::Portable => {
            for (word, place) in (first..).zip(out.as_chunks_mut::<{ chacha::BLOCK }>().0) {
                *place = crate::spec::compute_label(key, word, work);
            }
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: this instruction set exists only where avx2 was detected.
        Level::Avx2 => unsafe { avx2::labels(key, first, work, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: these instruction sets exist only where avx512f was detected.
        Level::Avx512 | Level::Amx => unsafe { avx512::labels(key, first, work, out) },
        #[cfg(not(target_arch = "x86_64"))]
        Level::Avx2 | Level::Avx512 | Level::Amx => {
            compute_label_block(InstructionSet::PORTABLE, key, index, work, out)
        }
    }
}

/// Computes the inner product, modulo 2³², of `n` entries of two keystreams without storing them.
pub(crate) fn dot_streams(
    engine: InstructionSet,
    numbers: NumberFormat,
    a: (&Key, u64),
    b: (&Key, u64),
    n: usize,
) -> i32 {
    let bytes = n * numbers.width();
    match engine.0 {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 if bytes.is_multiple_of(512) => {
            // SAFETY: this instruction set exists only where avx2 was detected.
            unsafe { avx2::stream_dot(numbers, a, b, bytes / 512) }
        }
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 | Level::Amx if bytes.is_multiple_of(1024) => {
            // SAFETY: these instruction sets exist only where avx512f, avx512bw and avx512vnni were detected.
            unsafe { avx512::stream_dot(numbers, a, b, bytes / 1024) }
        }
        Level::Portable | Level::Avx2 | Level::Avx512 | Level::Amx => (0..(bytes / chacha::BLOCK) as u64)
            .fold(0i32, |sum, counter| {
                let (left, right) = (
                    chacha::keystream_block(a.0, counter, a.1),
                    chacha::keystream_block(b.0, counter, b.1),
                );
                sum.wrapping_add(dot(numbers, &left, &right))
            }),
    }
}

/// Computes the inner product, modulo 2³², of two rows of keystream bytes.
pub(crate) fn dot(numbers: NumberFormat, a: &[u8], b: &[u8]) -> i32 {
    match numbers {
        NumberFormat::Int8 => a.iter().zip(b).fold(0i32, |sum, (x, y)| {
            sum.wrapping_add(i32::from(x.cast_signed()) * i32::from(y.cast_signed()))
        }),
        NumberFormat::Fp16 => {
            let pairs = a.as_chunks::<2>().0.iter().zip(b.as_chunks::<2>().0);
            pairs.fold(0i32, |sum, (x, y)| {
                sum.wrapping_add(nine_bits(*x) * nine_bits(*y))
            })
        }
    }
}

/// The entry that two keystream bytes encode: the top nine bits of a little-endian word, signed.
fn nine_bits(bytes: [u8; 2]) -> i32 {
    i32::from(i16::from_le_bytes(bytes) >> 7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_engines_generate_the_same_bytes() {
        let key = Key(std::array::from_fn(|i| i as u8));
        for engine in InstructionSet::available() {
            for length in [0, 63, 64, 500, 512, 1024, 1100, 4096 + 64] {
                let (mut ours, mut reference) = (vec![0; length], vec![0; length]);
                fill_keystream(engine, &key, u64::MAX - 5, &mut ours);
                chacha::fill_keystream(&key, u64::MAX - 5, &mut reference);
                assert_eq!(ours, reference, "{} {length}", engine.name());
            }
        }
    }

    #[test]
    fn all_engines_compute_the_same_labels() {
        let key = Key([9; 32]);
        for engine in InstructionSet::available() {
            // The last block of the largest memory: its word numbers need more than 32 bits.
            for (index, work) in [(0, 1), (5, 16), ((1 << 32) - 1, 3)] {
                let (mut ours, mut reference) = ([0; LEAF], [0; LEAF]);
                compute_label_block(engine, &key, index, work, &mut ours);
                compute_label_block(InstructionSet::PORTABLE, &key, index, work, &mut reference);
                assert_eq!(ours, reference, "{} {index} {work}", engine.name());
            }
        }
    }

    #[test]
    fn all_engines_find_the_same_inner_products() {
        let (a, b) = (Key([1; 32]), Key([2; 32]));
        for numbers in [NumberFormat::Int8, NumberFormat::Fp16] {
            for n in [256, 512, 1024, 8192] {
                let (mut left, mut right) = (vec![0; n * numbers.width()], vec![0; n * numbers.width()]);
                chacha::fill_keystream(&a, 7, &mut left);
                chacha::fill_keystream(&b, 8, &mut right);
                let expected = dot(numbers, &left, &right);
                for engine in InstructionSet::available() {
                    let found = dot_streams(engine, numbers, (&a, 7), (&b, 8), n);
                    assert_eq!(found, expected, "{} {numbers:?} {n}", engine.name());
                }
            }
        }
    }
}

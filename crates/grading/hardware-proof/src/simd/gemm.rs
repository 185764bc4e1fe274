//! Multiplies bands of rows by a fixed matrix, exactly modulo 2³².
#![expect(
    clippy::indexing_slicing,
    reason = "bands and columns of shapes that `multiply` checks"
)]

use super::{InstructionSet, Level, dot};
use crate::spec::NumberFormat;

/// The columns of B, arranged for many products.
pub(crate) struct PreparedColumns {
    n: usize,
    numbers: NumberFormat,
    layout: ColumnLayout,
}

enum ColumnLayout {
    /// Keystream bytes, column after column.
    Bytes(Vec<u8>),
    /// Entries widened to 16 bits, column after column.
    #[cfg(target_arch = "x86_64")]
    Wide(Vec<[i16; 16]>),
    /// Keystream bytes, column after column, in pieces of one register.
    #[cfg(target_arch = "x86_64")]
    Registers(Vec<[u8; 64]>),
    /// Tiles for AMX.
    #[cfg(target_arch = "x86_64")]
    Tiles(Vec<super::amx::TileRow>),
}

/// Buffers that a thread keeps between products.
#[derive(Default)]
pub(crate) struct Scratch {
    #[cfg(target_arch = "x86_64")]
    wide: Vec<[i16; 16]>,
    #[cfg(target_arch = "x86_64")]
    amx: super::amx::Scratch,
}

impl PreparedColumns {
    /// Arranges `columns`, the keystream bytes of n columns of n entries. n is a multiple of 64.
    pub(crate) fn new(engine: InstructionSet, numbers: NumberFormat, n: usize, columns: Vec<u8>) -> Self {
        assert!(
            n.is_multiple_of(64) && columns.len() == n * n * numbers.width(),
            "shapes do not fit"
        );
        let layout = match (engine.0, numbers) {
            (Level::Portable, _) => ColumnLayout::Bytes(columns),
            #[cfg(target_arch = "x86_64")]
            (Level::Amx, NumberFormat::Int8) => ColumnLayout::Tiles(super::amx::pack_columns(&columns, n)),
            #[cfg(target_arch = "x86_64")]
            (Level::Avx512, NumberFormat::Int8) => ColumnLayout::Registers(columns.as_chunks().0.to_vec()),
            #[cfg(target_arch = "x86_64")]
            (Level::Avx2, _) | (Level::Avx512 | Level::Amx, NumberFormat::Fp16) => {
                let mut wide = Vec::new();
                widen(numbers, &columns, &mut wide);
                ColumnLayout::Wide(wide)
            }
            #[cfg(not(target_arch = "x86_64"))]
            (Level::Avx2 | Level::Avx512 | Level::Amx, _) => ColumnLayout::Bytes(columns),
        };
        Self { n, numbers, layout }
    }

    /// Computes `out = rows · B`. `rows` holds the keystream bytes of whole rows, `out` has n sums for each row.
    pub(crate) fn multiply(&self, rows: &[u8], out: &mut [i32], scratch: &mut Scratch) {
        let (n, row_bytes) = (self.n, self.n * self.numbers.width());
        assert!(
            rows.len().is_multiple_of(row_bytes) && out.len() * row_bytes == rows.len() * n,
            "shapes do not fit"
        );
        match &self.layout {
            ColumnLayout::Bytes(columns) => {
                for (row, sums) in rows.chunks_exact(row_bytes).zip(out.chunks_exact_mut(n)) {
                    for (column, sum) in columns.chunks_exact(row_bytes).zip(sums) {
                        *sum = dot(self.numbers, row, column);
                    }
                }
                _ = scratch;
            }
            #[cfg(target_arch = "x86_64")]
            ColumnLayout::Wide(columns) => {
                widen(self.numbers, rows, &mut scratch.wide);
                wide_blocks(&scratch.wide, columns, n, out);
            }
            #[cfg(target_arch = "x86_64")]
            ColumnLayout::Registers(columns) => line_blocks(rows.as_chunks().0, columns, n, out),
            #[cfg(target_arch = "x86_64")]
            ColumnLayout::Tiles(tiles) => super::amx::multiply(rows, tiles, n, out, &mut scratch.amx),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn widen(numbers: NumberFormat, bytes: &[u8], out: &mut Vec<[i16; 16]>) {
    out.clear();
    match numbers {
        NumberFormat::Int8 => {
            out.extend(
                bytes
                    .as_chunks::<16>()
                    .0
                    .iter()
                    .map(|piece| piece.map(|byte| i16::from(byte.cast_signed()))),
            );
        }
        NumberFormat::Fp16 => out.extend(bytes.as_chunks::<32>().0.iter().map(|piece| {
            let mut entries = [0; 16];
            for (entry, pair) in entries.iter_mut().zip(piece.as_chunks::<2>().0) {
                *entry = i16::from_le_bytes(*pair) >> 7;
            }
            entries
        })),
    }
}

/// Defines a function that computes a product in tiles of R rows and C columns, and entry by entry at the edges.
macro_rules! blocks {
    ($name:ident, $piece:ty, $entries:literal, $tile:path, $rows:literal, $columns:literal) => {
        #[cfg(target_arch = "x86_64")]
        fn $name(rows: &[$piece], columns: &[$piece], n: usize, out: &mut [i32]) {
            let pieces = n / $entries;
            let row = |r: usize| &rows[r * pieces..][..pieces];
            let column = |c: usize| &columns[c * pieces..][..pieces];
            let count = rows.len() / pieces;
            let (whole_rows, whole_columns) = (count / $rows * $rows, n / $columns * $columns);
            for c in (0..whole_columns).step_by($columns) {
                let b: [_; $columns] = std::array::from_fn(|i| column(c + i));
                for r in (0..whole_rows).step_by($rows) {
                    // SAFETY: columns in this layout are made only for instructions that were detected.
                    let sums = unsafe { $tile(std::array::from_fn::<_, $rows, _>(|i| row(r + i)), b) };
                    for (i, sums) in sums.iter().enumerate() {
                        out[(r + i) * n + c..][..$columns].copy_from_slice(sums);
                    }
                }
            }
            let edge = (0..count).flat_map(|r| {
                let from = if r < whole_rows { whole_columns } else { 0 };
                (from..n).map(move |c| (r, c))
            });
            for (r, c) in edge {
                // SAFETY: as above.
                out[r * n + c] = unsafe { $tile([row(r)], [column(c)]) }[0][0];
            }
        }
    };
}

blocks!(wide_blocks, [i16; 16], 16, super::avx2::tile, 3, 4);
blocks!(line_blocks, [u8; 64], 64, super::avx512::tile, 4, 5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chacha::{self, Key};

    fn agree(numbers: NumberFormat, n: usize, rows: &[u8], columns: &[u8]) {
        let count = rows.len() / (n * numbers.width());
        let mut expected = vec![0; count * n];
        PreparedColumns::new(InstructionSet::PORTABLE, numbers, n, columns.to_vec()).multiply(
            rows,
            &mut expected,
            &mut Scratch::default(),
        );
        for engine in InstructionSet::available() {
            let mut out = vec![1; count * n];
            PreparedColumns::new(engine, numbers, n, columns.to_vec()).multiply(
                rows,
                &mut out,
                &mut Scratch::default(),
            );
            assert!(out == expected, "{} {numbers:?} {n} {count}", engine.name());
        }
    }

    #[test]
    fn all_engines_multiply_alike() {
        for numbers in [NumberFormat::Int8, NumberFormat::Fp16] {
            for (n, count) in [(64, 3), (256, 1), (256, 37), (1088, 33)] {
                let (mut rows, mut columns) = (
                    vec![0; count * n * numbers.width()],
                    vec![0; n * n * numbers.width()],
                );
                chacha::fill_keystream(&Key([5; 32]), 0, &mut rows);
                chacha::fill_keystream(&Key([6; 32]), 0, &mut columns);
                agree(numbers, n, &rows, &columns);
            }
        }
    }

    /// All -128: the corner at which saturating instructions give 32,767 in the place of 32,768.
    #[test]
    fn nothing_saturates() {
        let n = 256;
        let (rows, columns) = (vec![0x80; 32 * n], vec![0x80; n * n]);
        agree(NumberFormat::Int8, n, &rows, &columns);
        for engine in InstructionSet::available() {
            let mut out = vec![0; 32 * n];
            PreparedColumns::new(engine, NumberFormat::Int8, n, columns.clone()).multiply(
                &rows,
                &mut out,
                &mut Scratch::default(),
            );
            assert!(
                out.iter().all(|&sum| sum == 16_384 * n as i32),
                "{}",
                engine.name()
            );
        }
        // -256 everywhere: the most negative nine-bit entry.
        agree(
            NumberFormat::Fp16,
            n,
            &[0x00, 0x80].repeat(8 * n),
            &[0x00, 0x80].repeat(n * n),
        );
        // Opposite corners.
        agree(NumberFormat::Int8, n, &vec![0x80; 32 * n], &vec![0x7f; n * n]);
    }
}

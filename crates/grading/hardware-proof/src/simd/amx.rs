//! Products of int8 tiles with AMX. In assembly, because Rust's intrinsics for AMX are not stable.
#![expect(
    clippy::indexing_slicing,
    reason = "panel and tile numbers below the shapes checked by the caller"
)]

use std::arch::asm;

/// One row of a tile, which is one cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(super) struct TileRow(pub(super) [u8; 64]);

/// Rows and columns of the sums that one call of [`multiply_panels`] computes.
const SIDE: usize = 32;
/// Tile rows of two tiles side by side: 32 rows (or columns) of 64 entries.
const PAIR: usize = 32;
/// Steps of 64 entries after which the sums are stored, so that the panel of B stays in the first-level cache.
const STEPS: usize = 16;

/// The tile configuration: eight tiles of 16 rows of 64 bytes.
const CONFIG: TileRow = {
    let mut bytes = [0; 64];
    bytes[0] = 1;
    let mut tile = 0;
    while tile < 8 {
        bytes[16 + 2 * tile] = 64;
        bytes[48 + tile] = 16;
        tile += 1;
    }
    TileRow(bytes)
};

/// Whether this processor has AMX for int8 and the kernel lets this process use its registers.
#[cfg(target_os = "linux")]
pub(super) fn is_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    static ANSWER: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *ANSWER.get_or_init(|| {
        // CPUID leaf 7: bit 24 of EDX is AMX-TILE, bit 25 is AMX-INT8. Leaf 0 shows whether leaf 7 exists.
        let present = std::arch::x86_64::__cpuid(0).eax >= 7
            && std::arch::x86_64::__cpuid_count(7, 0).edx >> 24 & 0b11 == 0b11;
        // SAFETY: this call changes nothing but which registers the process may use.
        present
            && unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) } == 0
    })
}

/// Other systems than Linux have no call that permits AMX.
#[cfg(not(target_os = "linux"))]
pub(super) fn is_permitted() -> bool {
    false
}

/// Arranges columns of B as tiles: for each 32 columns and each 64 entries, two tiles whose row `r` holds entries
/// `4r … 4r+3` of 16 columns.
pub(super) fn pack_columns(columns: &[u8], n: usize) -> Vec<TileRow> {
    let mut lines = vec![TileRow([0; 64]); columns.len() / 64];
    for (i, line) in lines.iter_mut().enumerate() {
        let (row, half, k, panel) = (i % 16, i / 16 % 2, i / PAIR % (n / 64), i / PAIR / (n / 64));
        for (c, group) in line.0.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let start = (panel * SIDE + half * 16 + c) * n + k * 64 + 4 * row;
            group.copy_from_slice(&columns[start..start + 4]);
        }
    }
    lines
}

/// Arranges rows of A as tiles. Zero rows are added up to a multiple of 32.
fn pack_rows(rows: &[u8], n: usize, lines: &mut Vec<TileRow>) {
    let count = rows.len() / n;
    lines.clear();
    lines.resize(count.next_multiple_of(SIDE) * (n / 64), TileRow([0; 64]));
    for (r, row) in rows.chunks_exact(n).enumerate() {
        for (k, piece) in row.as_chunks::<64>().0.iter().enumerate() {
            lines[((r / SIDE) * (n / 64) + k) * PAIR + r % SIDE] = TileRow(*piece);
        }
    }
}

/// Buffers that a thread keeps between products.
#[derive(Default)]
pub(super) struct Scratch {
    left: Vec<TileRow>,
    sums: Vec<[[i32; SIDE]; SIDE]>,
}

/// Computes `out = rows · B`, with rows of n int8 entries and B packed by [`pack_columns`].
///
/// The caller must have checked [`is_permitted`].
pub(super) fn multiply(rows: &[u8], right: &[TileRow], n: usize, out: &mut [i32], scratch: &mut Scratch) {
    let count = rows.len() / n;
    assert!(
        n.is_multiple_of(64) && right.len() == n * n / 64 && out.len() == count * n,
        "shapes do not fit"
    );
    pack_rows(rows, n, &mut scratch.left);
    let steps = n / 64;
    let panels = count.div_ceil(SIDE);
    scratch.sums.resize(panels, [[0; SIDE]; SIDE]);
    // SAFETY: the configuration is 64 bytes and valid; the caller has checked `is_permitted`.
    unsafe { asm!("ldtilecfg [{0}]", in(reg) &CONFIG, options(nostack, readonly)) };
    for q in 0..n / SIDE {
        for k in (0..steps).step_by(STEPS) {
            let length = STEPS.min(steps - k);
            let b = &right[(q * steps + k) * PAIR..][..length * PAIR];
            for (p, sums) in scratch.sums.iter_mut().enumerate() {
                let a = &scratch.left[(p * steps + k) * PAIR..][..length * PAIR];
                multiply_panels(a, b, sums, k == 0);
            }
        }
        for (r, row) in out.chunks_exact_mut(n).enumerate() {
            row[q * SIDE..][..SIDE].copy_from_slice(&scratch.sums[r / SIDE][r % SIDE]);
        }
    }
    // SAFETY: releases the tile registers, whose contents are no longer used.
    unsafe { asm!("tilerelease", options(nomem, nostack)) };
}

/// Adds the product of 32 rows and 32 columns to `sums`, or stores it there if `first`. The tiles must be configured.
fn multiply_panels(a: &[TileRow], b: &[TileRow], sums: &mut [[i32; SIDE]; SIDE], first: bool) {
    assert!(
        a.len() == b.len() && a.len().is_multiple_of(PAIR) && !a.is_empty(),
        "panels do not fit"
    );
    if first {
        *sums = [[0; SIDE]; SIDE];
    }
    let top = sums.as_mut_ptr().cast::<u8>();
    // SAFETY: `a` and `b` are `a.len()` lines of 64 bytes, read in pairs of tiles (32 lines) as often as there are
    // pairs; `sums` is 32 rows of 128 bytes, of which each of four tiles reads and writes 16 rows of 64 bytes.
    unsafe {
        asm!(
            "tileloadd tmm0, [{c} + {two}*1]",
            "tileloadd tmm1, [{c} + {two}*1 + 64]",
            "tileloadd tmm2, [{d} + {two}*1]",
            "tileloadd tmm3, [{d} + {two}*1 + 64]",
            "2:",
            "tileloadd tmm4, [{a} + {one}*1]",
            "tileloadd tmm6, [{b} + {one}*1]",
            "tdpbssd tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b} + {one}*1 + 1024]",
            "tdpbssd tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{a} + {one}*1 + 1024]",
            "tdpbssd tmm2, tmm5, tmm6",
            "tdpbssd tmm3, tmm5, tmm7",
            "add {a}, 2048",
            "add {b}, 2048",
            "dec {count}",
            "jnz 2b",
            "tilestored [{c} + {two}*1], tmm0",
            "tilestored [{c} + {two}*1 + 64], tmm1",
            "tilestored [{d} + {two}*1], tmm2",
            "tilestored [{d} + {two}*1 + 64], tmm3",
            a = inout(reg) a.as_ptr() => _,
            b = inout(reg) b.as_ptr() => _,
            c = in(reg) top,
            d = in(reg) top.add(16 * 128),
            one = in(reg) 64usize,
            two = in(reg) 128usize,
            count = inout(reg) a.len() / PAIR => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

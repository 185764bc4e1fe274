// C = A · B in exact integers on tensor cores: docs/proofs.md, section 3.
//
// A lies row by row and B column by column, so both are read along k and no fragment is ever transposed. The two kinds differ in
// the instruction and in what its sums are; everything is counted in bytes along k, of which every instruction takes 32.
//
// A block of 256 threads computes 128 rows by COLUMNS columns, eight warps 2 by 4 over it. Pieces of 64 bytes along k come
// through four stages of shared memory. There a row has four chunks of 16 bytes, chunk c of row r in place c ^ (r / 2 mod 4):
// eight rows of one chunk then lie in eight different groups of banks.
#pragma once
#include "words.cuh"

#ifdef __CUDACC__
INLINE u32 shared_address(const u8 *at) { return (u32)__cvta_generic_to_shared(at); }

/// Four 8 by 8 matrices of 16-bit elements: lane 8 i + r gives the address of row r of matrix i.
INLINE void load_matrices(u32 (&to)[4], const u8 *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

INLINE void copy_async(u8 *shared, const u8 *global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global) : "memory");
}

INLINE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most `LEFT` of this thread's groups are under way.
template <int LEFT> INLINE void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

INLINE void block_barrier() { __syncthreads(); }

INLINE void multiply(int (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

INLINE void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

const u32 TILE_ROWS = 128;
const u32 PIECE = 64;
const u32 STAGES = 4;
/// Rows of blocks that are computed side by side, so that they share what they read of B.
const u32 GROUP = 16;

/// Neighbours in a row of C.
struct __attribute__((aligned(8))) Pair {
    int left, right;
};

INLINE u32 swizzled(u32 row, u32 chunk) { return row * PIECE + ((chunk ^ ((row >> 1) & 3)) << 4); }

/// int8: the instruction's sums are the result.
struct Int8 {
    typedef int Sum;
    static const u32 COLUMNS = 256;
    /// Every how many pieces the sums are moved out of the instruction's registers; never.
    static const u32 FOLD = 0;
};

/// fp16: sums of 1,024 products of nine-bit integers stay below 2²³ by twelve standard deviations, where fp32 is exact in
/// whatever order and however the unit aligns its addends. Then they go to integers.
struct Fp16 {
    typedef float Sum;
    static const u32 COLUMNS = 128;
    static const u32 FOLD = 2 * 1024 / PIECE;
};

/// Copies 64 bytes along k of `COUNT` rows: four chunks a row, each thread as many.
template <u32 COUNT> INLINE void fetch(u8 *shared, const u8 *from, u64 stride) {
#pragma unroll
    for (u32 part = 0; part < COUNT * 4 / 256; part++) {
        const u32 row = part * 64 + threadIdx.x / 4, chunk = threadIdx.x % 4;
        copy_async(shared + swizzled(row, chunk), from + row * stride + chunk * 16);
    }
}

template <typename Kind> INLINE void product(const u8 *a, const u8 *b, int *c, u32 row_bytes, u32 n, u32 tile_rows, u8 *shared) {
    typedef typename Kind::Sum Sum;
    const u32 COLUMNS = Kind::COLUMNS, NARROW = COLUMNS / 4 / 8;
    const u32 STAGE = (TILE_ROWS + COLUMNS) * PIECE;

    const u32 tile_columns = n / COLUMNS, wide = GROUP * tile_columns;
    const u32 group = blockIdx.x / wide * GROUP, within = blockIdx.x % wide;
    const u32 high = tile_rows - group < GROUP ? tile_rows - group : GROUP;
    const u32 first_row = (group + within % high) * TILE_ROWS, first_column = within / high * COLUMNS;
    const u8 *a_from = a + (u64)first_row * row_bytes, *b_from = b + (u64)first_column * row_bytes;

    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 warp_row = warp / 4 * 64, warp_column = warp % 4 * (COLUMNS / 4);

    Sum sums[4][NARROW][4];
    // Modulo 2³², as the result is.
    u32 whole[Kind::FOLD ? 4 : 1][Kind::FOLD ? NARROW : 1][4];
#pragma unroll
    for (u32 i = 0; i < 4; i++)
#pragma unroll
        for (u32 j = 0; j < NARROW; j++)
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                sums[i][j][k] = 0;
                if (Kind::FOLD) whole[i][j][k] = 0;
            }

    const u32 pieces = row_bytes / PIECE;
#pragma unroll
    for (u32 piece = 0; piece < STAGES - 1; piece++) {
        if (piece < pieces) {
            u8 *stage = shared + piece * STAGE;
            fetch<TILE_ROWS>(stage, a_from + piece * PIECE, row_bytes);
            fetch<COLUMNS>(stage + TILE_ROWS * PIECE, b_from + piece * PIECE, row_bytes);
        }
        copies_commit();
    }
#pragma unroll 1
    for (u32 piece = 0; piece < pieces; piece++) {
        copies_wait<STAGES - 2>();
        // What was copied is everybody's, and nobody reads any more from the stage that is written next.
        block_barrier();
        const u32 next = piece + STAGES - 1;
        if (next < pieces) {
            u8 *stage = shared + next % STAGES * STAGE;
            fetch<TILE_ROWS>(stage, a_from + (u64)next * PIECE, row_bytes);
            fetch<COLUMNS>(stage + TILE_ROWS * PIECE, b_from + (u64)next * PIECE, row_bytes);
        }
        copies_commit();

        const u8 *a_stage = shared + piece % STAGES * STAGE, *b_stage = a_stage + TILE_ROWS * PIECE;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            u32 left[4][4], right[NARROW / 2][4];
            // Matrices 0 to 3 of A: rows 0-7 and 8-15 of the first 16 bytes, then of the second.
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                load_matrices(left[i], a_stage + swizzled(warp_row + i * 16 + lane % 16, half * 2 + lane / 16));
            // Of B: both chunks of columns 0-7, then of columns 8-15.
#pragma unroll
            for (u32 j = 0; j < NARROW / 2; j++)
                load_matrices(right[j], b_stage + swizzled(warp_column + j * 16 + lane / 16 * 8 + lane % 8, half * 2 + lane / 8 % 2));
#pragma unroll
            for (u32 i = 0; i < 4; i++)
#pragma unroll
                for (u32 j = 0; j < NARROW; j++) multiply(sums[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
        }

        if (Kind::FOLD && ((piece + 1) % (Kind::FOLD ? Kind::FOLD : 1) == 0 || piece + 1 == pieces)) {
#pragma unroll
            for (u32 i = 0; i < 4; i++)
#pragma unroll
                for (u32 j = 0; j < NARROW; j++)
#pragma unroll
                    for (u32 k = 0; k < 4; k++) {
                        whole[i][j][k] += (u32)(int)sums[i][j][k];
                        sums[i][j][k] = 0;
                    }
        }
    }

    // Lane 4 g + t holds columns 2 t and 2 t + 1 of rows g and g + 8 of each 16 by 8.
#pragma unroll
    for (u32 i = 0; i < 4; i++)
#pragma unroll
        for (u32 j = 0; j < NARROW; j++) {
            const u32 row = first_row + warp_row + i * 16 + lane / 4;
            const u32 column = first_column + warp_column + j * 8 + lane % 4 * 2;
#pragma unroll
            for (u32 k = 0; k < 4; k += 2) {
                Pair *place = (Pair *)(c + (u64)(row + k / 2 * 8) * n + column);
                *place = Kind::FOLD ? Pair{(int)whole[i][j][k], (int)whole[i][j][k + 1]}
                                    : Pair{(int)sums[i][j][k], (int)sums[i][j][k + 1]};
            }
        }
}

KERNEL(256, 1) product_int8(const u8 *a, const u8 *b, int *c, u32 row_bytes, u32 n, u32 tile_rows) {
    SHARED(shared);
    product<Int8>(a, b, c, row_bytes, n, tile_rows, shared);
}

KERNEL(256, 1) product_fp16(const u8 *a, const u8 *b, int *c, u32 row_bytes, u32 n, u32 tile_rows) {
    SHARED(shared);
    product<Fp16>(a, b, c, row_bytes, n, tile_rows, shared);
}

// Rows of A and columns of B: docs/proofs.md, section 3.
#pragma once
#include "chacha.cuh"

/// Rows that follow one another under one key. 72 bytes, written by the host.
struct Span {
    u32 key[8];
    /// The key of the addresses of bound blocks.
    u32 bound[8];
    /// The stream of the first row.
    u64 first;
};

/// The top nine bits of a 16-bit word, signed, as half precision holds them: exactly.
INLINE u32 half_of(u32 word) {
    const int value = (int)(word << 16) >> 23;
    const u32 size = value < 0 ? -value : value;
    if (size == 0) return 0;
#ifdef __CUDACC__
    const u32 exponent = 31 - __clz(size);
#else
    const u32 exponent = 31 - __builtin_clz(size);
#endif
    return ((word & 0x8000) | ((15 + exponent) << 10)) | ((size << (10 - exponent)) & 0x3ff);
}

/// The address of the bound block `number` of the row `stream`.
INLINE u64 bound_block(const Span &span, u64 stream, u32 number, u64 blocks) {
    u32 s[16];
    initial(s, span.bound, number / 8, stream);
    forward(s);
    u64 random = 0;
    // By masks: an index that only this thread knows would put the whole state into memory.
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        const u64 mask = 0 - (u64)(i == number % 8);
        random |= (s[2 * i] | ((u64)s[2 * i + 1] << 32)) & mask;
    }
    return high_half(random, blocks);
}

/// The memory whose blocks lie over the beginning of every row; none if `bytes` is 0.
struct Bound {
    const u8 *memory;
    u64 blocks;
    u32 bytes;
};

/// One thread generates 64 bytes: block `block` of the row of `stream`, as they are or as halves.
INLINE void row_block(const Span &span, u64 stream, u32 block, const Bound &bound, u32 halves, u8 *out) {
    u32 s[16];
    initial(s, span.key, block, stream);
    forward(s);
    if (block * 64 < bound.bytes) {
        const u8 *label = bound.memory + bound_block(span, stream, block / 16, bound.blocks) * 1024 + block % 16 * 64;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const Quad quad = load_constant(label + 16 * i);
            s[4 * i] ^= quad.x, s[4 * i + 1] ^= quad.y, s[4 * i + 2] ^= quad.z, s[4 * i + 3] ^= quad.w;
        }
    }
    if (halves) {
#pragma unroll
        for (int i = 0; i < 16; i++) s[i] = half_of(s[i] & 0xffff) | (half_of(s[i] >> 16) << 16);
    }
    store16((u32 *)out, s);
}

/// Rows that follow one another, `blocks_per_row` times 64 bytes each: of a whole matrix or of a band.
KERNEL(256, 2) rows(Span span, u32 count, u32 blocks_per_row, u32 halves, const u8 *memory, u64 blocks, u32 bound_bytes, u8 *out) {
    const u64 number = thread_number();
    const u64 row = number / blocks_per_row;
    if (row >= count) return;
    const Bound bound = {memory, blocks, bound_bytes};
    row_block(span, span.first + row, (u32)(number % blocks_per_row), bound, halves, out + number * 64);
}

/// Rows from anywhere, each with its own keys: what was drawn.
KERNEL(256, 2) drawn_rows(const Span *spans, u32 count, u32 blocks_per_row, u32 halves, const u8 *memory, u64 blocks, u32 bound_bytes,
                          u8 *out) {
    const u64 number = thread_number();
    const u64 row = number / blocks_per_row;
    if (row >= count) return;
    const Span span = spans[row];
    const Bound bound = {memory, blocks, bound_bytes};
    row_block(span, span.first, (u32)(number % blocks_per_row), bound, halves, out + number * 64);
}

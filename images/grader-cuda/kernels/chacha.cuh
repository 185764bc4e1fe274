// ChaCha8 in Bernstein's layout: docs/proofs.md, section 2.
#pragma once
#include "words.cuh"

INLINE void quarter(u32 &a, u32 &b, u32 &c, u32 &d) {
    a += b, d = rotate_left(d ^ a, 16);
    c += d, b = rotate_left(b ^ c, 12);
    a += b, d = rotate_left(d ^ a, 8);
    c += d, b = rotate_left(b ^ c, 7);
}

INLINE void column_round(u32 (&s)[16]) {
    quarter(s[0], s[4], s[8], s[12]);
    quarter(s[1], s[5], s[9], s[13]);
    quarter(s[2], s[6], s[10], s[14]);
    quarter(s[3], s[7], s[11], s[15]);
}

INLINE void diagonal_round(u32 (&s)[16]) {
    quarter(s[0], s[5], s[10], s[15]);
    quarter(s[1], s[6], s[11], s[12]);
    quarter(s[2], s[7], s[8], s[13]);
    quarter(s[3], s[4], s[9], s[14]);
}

INLINE void initial(u32 (&s)[16], const u32 (&key)[8], u64 counter, u64 stream) {
    s[0] = 0x61707865, s[1] = 0x3320646e, s[2] = 0x79622d32, s[3] = 0x6b206574;
#pragma unroll
    for (int i = 0; i < 8; i++) s[4 + i] = key[i];
    s[12] = (u32)counter, s[13] = (u32)(counter >> 32);
    s[14] = (u32)stream, s[15] = (u32)(stream >> 32);
}

/// Eight rounds and the feed-forward that makes them one-way.
INLINE void forward(u32 (&s)[16]) {
    u32 before[16];
#pragma unroll
    for (int i = 0; i < 16; i++) before[i] = s[i];
#pragma unroll
    for (int i = 0; i < 4; i++) column_round(s), diagonal_round(s);
#pragma unroll
    for (int i = 0; i < 16; i++) s[i] += before[i];
}

// SHA-256 of a tag byte and whole blocks after it: the leaves and nodes of docs/proofs.md's trees.
//
// The tag shifts the whole message by one byte. Words are joined from two neighbours, so the message is never written anywhere.
#pragma once
#include "words.cuh"

TABLE const u32 ROUND_CONSTANTS[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

INLINE u32 rotate_right(u32 x, int by) { return rotate_left(x, 32 - by); }

struct Sha {
    u32 h[8];
    /// The word before, of which one byte is still to be hashed.
    u32 last;
};

/// v holds a … h; they are renamed by the unrolled loops around it, not moved.
INLINE void sha_round(u32 (&v)[8], int at, u32 word_and_constant) {
    u32 &a = v[(0 - at) & 7], &b = v[(1 - at) & 7], &c = v[(2 - at) & 7], &d = v[(3 - at) & 7];
    u32 &e = v[(4 - at) & 7], &f = v[(5 - at) & 7], &g = v[(6 - at) & 7], &h = v[(7 - at) & 7];
    h += word_and_constant + (rotate_right(e, 6) ^ rotate_right(e, 11) ^ rotate_right(e, 25)) + ((e & f) ^ (~e & g));
    d += h;
    h += (rotate_right(a, 2) ^ rotate_right(a, 13) ^ rotate_right(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
}

INLINE void compress(Sha &sha, u32 (&w)[16]) {
    u32 v[8];
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = sha.h[i];
#pragma unroll
    for (int i = 0; i < 16; i++) sha_round(v, i & 7, w[i] + ROUND_CONSTANTS[i]);
#pragma unroll 1
    for (int t = 16; t < 64; t += 16) {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const u32 far = w[(i + 1) & 15], near = w[(i + 14) & 15];
            w[i] += (rotate_right(far, 7) ^ rotate_right(far, 18) ^ (far >> 3)) + w[(i + 9) & 15] +
                    (rotate_right(near, 17) ^ rotate_right(near, 19) ^ (near >> 10));
            sha_round(v, i & 7, w[i] + ROUND_CONSTANTS[t + i]);
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) sha.h[i] += v[i];
}

INLINE void sha_begin(Sha &sha, u32 tag) {
    sha.h[0] = 0x6a09e667, sha.h[1] = 0xbb67ae85, sha.h[2] = 0x3c6ef372, sha.h[3] = 0xa54ff53a;
    sha.h[4] = 0x510e527f, sha.h[5] = 0x9b05688c, sha.h[6] = 0x1f83d9ab, sha.h[7] = 0x5be0cd19;
    sha.last = tag;
}

/// Takes 64 bytes as little-endian words.
INLINE void sha_absorb(Sha &sha, const u32 (&words)[16]) {
    u32 w[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const u32 word = swap_bytes(words[i]);
        w[i] = (sha.last << 24) | (word >> 8);
        sha.last = word;
    }
    compress(sha, w);
}

/// Ends a message of one byte and `blocks` blocks; the hash as little-endian words.
INLINE void sha_end(Sha &sha, u32 blocks, u32 (&hash)[8]) {
    u32 w[16];
    w[0] = (sha.last << 24) | 0x00800000;
#pragma unroll
    for (int i = 1; i < 15; i++) w[i] = 0;
    w[15] = 8 + 512 * blocks;
    compress(sha, w);
#pragma unroll
    for (int i = 0; i < 8; i++) hash[i] = swap_bytes(sha.h[i]);
}

/// An inner node over two hashes.
INLINE void node(const u32 (&left)[8], const u32 (&right)[8], u32 (&hash)[8]) {
    u32 both[16];
#pragma unroll
    for (int i = 0; i < 8; i++) both[i] = left[i], both[8 + i] = right[i];
    Sha sha;
    sha_begin(sha, 1);
    sha_absorb(sha, both);
    sha_end(sha, 1, hash);
}

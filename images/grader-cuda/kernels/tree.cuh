// Leaves and levels of trees. Trees are perfect, so a whole level is one array and its pairs are neighbours.
#pragma once
#include "sha256.cuh"

/// hashes[i] = leaf(data[1024 i ..]): one thread a leaf.
KERNEL(128, 4) leaves(const u8 *data, u64 count, u32 *hashes) {
    const u64 number = thread_number();
    if (number >= count) return;
    const u8 *from = data + number * 1024;
    Sha sha;
    sha_begin(sha, 0);
#pragma unroll 1
    for (int block = 0; block < 16; block++, from += 64) {
        u32 words[16];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const Quad quad = load_constant(from + 16 * i);
            words[4 * i] = quad.x, words[4 * i + 1] = quad.y, words[4 * i + 2] = quad.z, words[4 * i + 3] = quad.w;
        }
        sha_absorb(sha, words);
    }
    u32 hash[8];
    sha_end(sha, 16, hash);
    store8(hashes + number * 8, hash);
}

/// above[i] = node(below[2 i], below[2 i + 1]).
KERNEL(128, 4) nodes(const u32 *below, u64 count, u32 *above) {
    const u64 number = thread_number();
    if (number >= count) return;
    u32 left[8], right[8], hash[8];
    load8(left, below + number * 16);
    load8(right, below + number * 16 + 8);
    node(left, right, hash);
    store8(above + number * 8, hash);
}

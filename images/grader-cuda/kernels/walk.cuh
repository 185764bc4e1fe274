// The words of a WALK's memory and the walks over it: docs/proofs.md, section 4.
#pragma once
#include "chacha.cuh"
#include "sha256.cuh"

/// Words first … first + count - 1, each iterated `work` times: one thread a word.
KERNEL(256, 2) labels(Key key, u64 first, u64 count, u32 work, u8 *memory) {
    const u64 number = thread_number();
    if (number >= count) return;
    u32 s[16];
    initial(s, key.words, first + number, 0);
#pragma unroll 1
    for (u32 i = 0; i < work; i++) forward(s);
    store16((u32 *)(memory + (first + number) * 64), s);
}

/// One step: sixteen times a row of the block and one round, then the one-way function.
///
/// The next two rows are on their way while two are mixed.
INLINE void step(u32 (&state)[8], u32 walk, u64 number, const u8 *memory, u64 blocks) {
    const u8 *block = memory + high_half(state[0] | ((u64)state[1] << 32), blocks) * 1024;
    Quad ahead[8];
#pragma unroll
    for (int i = 0; i < 8; i++) ahead[i] = load_constant(block + 16 * i);
    u32 s[16];
    initial(s, state, walk, number);
#pragma unroll 1
    for (int pair = 1; pair <= 8; pair++) {
        Quad rows[8];
#pragma unroll
        for (int i = 0; i < 8; i++) rows[i] = ahead[i];
        if (pair < 8) {
#pragma unroll
            for (int i = 0; i < 8; i++) ahead[i] = load_constant(block + 128 * pair + 16 * i);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[4 * i] ^= rows[i].x, s[4 * i + 1] ^= rows[i].y, s[4 * i + 2] ^= rows[i].z, s[4 * i + 3] ^= rows[i].w;
        column_round(s);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[4 * i] ^= rows[4 + i].x, s[4 * i + 1] ^= rows[4 + i].y;
            s[4 * i + 2] ^= rows[4 + i].z, s[4 * i + 3] ^= rows[4 + i].w;
        }
        diagonal_round(s);
    }
    forward(s);
#pragma unroll
    for (int i = 0; i < 8; i++) state[i] = s[i];
}

/// Thirty-two steps and the hash of their leaf. `kept`, where it is not null, takes the states themselves.
INLINE void walk_leaf(u32 (&state)[8], u32 walk, u64 leaf, const u8 *memory, u64 blocks, u32 *kept, u32 (&hash)[8]) {
    Sha sha;
    sha_begin(sha, 0);
    u32 both[16];
#pragma unroll 1
    for (u32 number = 0; number < 32; number++) {
        step(state, walk, leaf * 32 + number, memory, blocks);
        if (kept) store8(kept + number * 8, state);
#pragma unroll
        for (int i = 0; i < 8; i++) both[i] = both[8 + i], both[8 + i] = state[i];
        if (number % 2) sha_absorb(sha, both);
    }
    sha_end(sha, 16, hash);
}

/// The first states.
KERNEL(128, 4) walk_start(Key key, const u32 *walks, u32 count, u32 *states) {
    const u64 number = thread_number();
    if (number >= count) return;
    u32 s[16], state[8];
    initial(s, key.words, 0, walks ? walks[number] : number);
    forward(s);
#pragma unroll
    for (int i = 0; i < 8; i++) state[i] = s[i];
    store8(states + number * 8, state);
}

/// Leaves first … first + count - 1 of every walk: one thread a walk.
///
/// `stack` holds one hash per level and walk, level by level: after leaf m, level i is taken where bit i of m + 1 is set. The
/// last leaf leaves the walk's root on the highest level.
KERNEL(128, 4) walk(const u8 *memory, u64 blocks, u32 walks, u32 first, u32 count, u32 *states, u32 *stack) {
    const u64 number = thread_number();
    if (number >= walks) return;
    u32 state[8];
    load8(state, states + number * 8);
#pragma unroll 1
    for (u32 leaf = first; leaf < first + count; leaf++) {
        u32 hash[8];
        walk_leaf(state, (u32)number, leaf, memory, blocks, 0, hash);
        u32 *level = stack + number * 8;
#pragma unroll 1
        for (u32 full = leaf; full & 1; full >>= 1, level += (u64)walks * 8) {
            u32 left[8], joined[8];
            load8(left, level);
            node(left, hash, joined);
#pragma unroll
            for (int i = 0; i < 8; i++) hash[i] = joined[i];
        }
        store8(level, hash);
    }
    store8(states + number * 8, state);
}

/// Walks single walks again: one thread a drawn step. Keeps the hashes of all leaves, and the states of the leaf that is wanted
/// and of the one before it (`kept`: 1 KiB each, the one before first).
KERNEL(32, 4) walk_again(const u8 *memory, u64 blocks, const u32 *walks, const u32 *wanted, u32 draws, u32 all, u32 first, u32 count,
                         u32 *states, u32 *hashes, u32 *kept) {
    const u64 number = thread_number();
    if (number >= draws) return;
    u32 state[8];
    load8(state, states + number * 8);
#pragma unroll 1
    for (u32 leaf = first; leaf < first + count; leaf++) {
        u32 hash[8];
        u32 *place = 0;
        if (leaf == wanted[number]) place = kept + number * 512 + 256;
        if (leaf + 1 == wanted[number]) place = kept + number * 512;
        walk_leaf(state, walks[number], leaf, memory, blocks, place, hash);
        store8(hashes + (number * all + leaf) * 8, hash);
    }
    store8(states + number * 8, state);
}

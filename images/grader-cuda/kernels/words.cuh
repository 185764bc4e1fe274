// Words and what they are made of, on a device and, in tests, on a processor.
//
// The kernels are written once. nvcc makes PTX of them; `emulator.cpp` compiles the same text for a processor and gives the
// few things that only a device has (threads, shared memory, tensor cores) a meaning there, so that every line of arithmetic
// and every index below is held against the golden vectors without a device.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef __CUDACC__
#define INLINE __device__ __forceinline__
#define TABLE __constant__
#define KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define SHARED(name) extern __shared__ __align__(128) u8 name[]
#else
#include "emulator.h"
#endif

struct __attribute__((aligned(16))) Quad {
    u32 x, y, z, w;
};

/// A key by value: eight little-endian words.
struct Key {
    u32 words[8];
};

INLINE u32 rotate_left(u32 x, int by) {
#ifdef __CUDACC__
    return __funnelshift_l(x, x, by);
#else
    return (x << by) | (x >> (32 - by));
#endif
}

INLINE u32 swap_bytes(u32 x) {
#ifdef __CUDACC__
    return __byte_perm(x, 0, 0x0123);
#else
    return __builtin_bswap32(x);
#endif
}

/// The high half of the product: maps 64 random bits to a number below `bound`.
INLINE u64 high_half(u64 x, u64 bound) {
#ifdef __CUDACC__
    return __umul64hi(x, bound);
#else
    return (u64)(((unsigned __int128)x * bound) >> 64);
#endif
}

/// This thread's number in the whole grid.
INLINE u64 thread_number() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }

INLINE Quad load(const u32 *from) { return *(const Quad *)from; }

/// A load of what no kernel writes while this one runs.
INLINE Quad load_constant(const u8 *from) {
#ifdef __CUDACC__
    const uint4 found = __ldg((const uint4 *)from);
    return Quad{found.x, found.y, found.z, found.w};
#else
    return *(const Quad *)from;
#endif
}

INLINE void store(u32 *to, u32 x, u32 y, u32 z, u32 w) { *(Quad *)to = Quad{x, y, z, w}; }

INLINE void load8(u32 (&words)[8], const u32 *from) {
    const Quad low = load(from), high = load(from + 4);
    words[0] = low.x, words[1] = low.y, words[2] = low.z, words[3] = low.w;
    words[4] = high.x, words[5] = high.y, words[6] = high.z, words[7] = high.w;
}

INLINE void store8(u32 *to, const u32 (&words)[8]) {
    store(to, words[0], words[1], words[2], words[3]);
    store(to + 4, words[4], words[5], words[6], words[7]);
}

INLINE void store16(u32 *to, const u32 (&words)[16]) {
#pragma unroll
    for (int i = 0; i < 16; i += 4) store(to + i, words[i], words[i + 1], words[i + 2], words[i + 3]);
}

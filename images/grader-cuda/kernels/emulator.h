// The features of a device, for a processor: synchronised threads, shared memory, asynchronous copies, tensor cores.
//
// Written from the PTX manual's description of each instruction, independently of the kernels.
#pragma once
#include <cstddef>

#define INLINE static inline
#define TABLE static
#define KERNEL(threads, blocks) static void
#define SHARED(name) u8 *name = emulator::shared_memory

struct Index {
    u32 x;
};
static thread_local Index threadIdx, blockIdx, blockDim;

namespace emulator {
static thread_local u8 *shared_memory;
void block_barrier();
void copies_wait(int left);
} // namespace emulator

static void load_matrices(u32 (&to)[4], const u8 *row);
static void copy_async(u8 *shared, const u8 *global);
static void copies_commit();
template <int LEFT> static void copies_wait() { emulator::copies_wait(LEFT); }
static void block_barrier() { emulator::block_barrier(); }
static void multiply(int (&d)[4], const u32 (&a)[4], u32 b0, u32 b1);
static void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1);

// Runs the kernels on a processor, for tests.
//
// Kernels whose threads do not synchronise run thread after thread. The products run with a fiber for each thread. At an
// instruction of a whole warp, a fiber waits until all 32 lanes have arrived, and the instruction runs once for all of
// them. Warps run one after the other, each as far as possible. So a product fails if it writes a stage that another warp
// has not read yet.
#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <tuple>
#include <utility>

#include "kernels.cu"

namespace emulator {

const u32 LANES = 32, MOST_THREADS = 256, MOST_COPIES = 256, STACK = 64 << 10;

enum Waiting { NOTHING, MATRICES, INTEGERS, FLOATS, BARRIER };

struct Copy {
    u8 *to;
    const u8 *from;
    int group;
};

struct Thread {
    ucontext_t context;
    bool done;
    Waiting waiting;
    const u8 *row;
    u32 a[4], b[2];
    u32 loaded[4];
    int integers[4];
    float floats[4];
    Copy copies[MOST_COPIES];
    u32 pending;
    int groups;
};

struct Block {
    ucontext_t scheduler;
    u32 current;
    Thread threads[MOST_THREADS];
    u8 stacks[MOST_THREADS][STACK];
};

static thread_local Block *block;
/// Whether asynchronous copies happen as early as possible, or as late as possible.
static thread_local bool eager;
static thread_local const char *name;
/// Takes a launch that is deferred: the function that runs it, and its argument, allocated by malloc.
static void (*later)(void (*run)(void *), void *launch);

[[noreturn]] static void fail(const char *what) {
    fprintf(stderr, "%s: %s (block %u, thread %u)\n", name, what, blockIdx.x, threadIdx.x);
    abort();
}

static Thread &self() { return block->threads[block->current]; }

static void wait(Waiting what) {
    Thread &thread = self();
    thread.waiting = what;
    swapcontext(&thread.context, &block->scheduler);
    threadIdx.x = block->current;
}

void block_barrier() { wait(BARRIER); }

void copies_wait(int left) {
    Thread &thread = self();
    u32 kept = 0;
    for (u32 i = 0; i < thread.pending; i++) {
        const Copy copy = thread.copies[i];
        if (copy.group < thread.groups - left)
            memcpy(copy.to, copy.from, 16);
        else
            thread.copies[kept++] = copy;
    }
    thread.pending = kept;
}

/// ldmatrix .x4: lane 8 i + r names row r of matrix i; of every row lane 4 r + t gets bytes 4 t to 4 t + 3.
static void do_matrices(Thread *lanes) {
    for (u32 lane = 0; lane < LANES; lane++)
        for (u32 i = 0; i < 4; i++) memcpy(&lanes[lane].loaded[i], lanes[8 * i + lane / 4].row + lane % 4 * 4, 4);
}

/// mma m16n8k32, s8: registers hold four elements along k.
static void do_integers(Thread *lanes) {
    int a[16][32], b[32][8];
    for (u32 lane = 0; lane < LANES; lane++) {
        const u32 g = lane / 4, t = lane % 4;
        for (u32 j = 0; j < 4; j++) {
            for (u32 i = 0; i < 4; i++) a[g + i % 2 * 8][i / 2 * 16 + t * 4 + j] = (signed char)(lanes[lane].a[i] >> (8 * j));
            for (u32 i = 0; i < 2; i++) b[i * 16 + t * 4 + j][g] = (signed char)(lanes[lane].b[i] >> (8 * j));
        }
    }
    for (u32 lane = 0; lane < LANES; lane++)
        for (u32 i = 0; i < 4; i++) {
            u32 sum = (u32)lanes[lane].integers[i];
            for (u32 k = 0; k < 32; k++) sum += (u32)(a[lane / 4 + i / 2 * 8][k] * b[k][lane % 4 * 2 + i % 2]);
            lanes[lane].integers[i] = (int)sum;
        }
}

static double value_of(u32 half) {
    const u32 exponent = half >> 10 & 31, fraction = half & 0x3ff;
    const double size = exponent ? ldexp(1024 + fraction, (int)exponent - 25) : ldexp(fraction, -24);
    return half & 0x8000 ? -size : size;
}

/// mma m16n8k16, f16 with f32 sums: registers hold two elements along k. A sum that fp32 cannot hold exactly ends the test.
static void do_floats(Thread *lanes) {
    double a[16][16], b[16][8];
    for (u32 lane = 0; lane < LANES; lane++) {
        const u32 g = lane / 4, t = lane % 4;
        for (u32 j = 0; j < 2; j++) {
            for (u32 i = 0; i < 4; i++) a[g + i % 2 * 8][i / 2 * 8 + t * 2 + j] = value_of(lanes[lane].a[i] >> (16 * j) & 0xffff);
            for (u32 i = 0; i < 2; i++) b[i * 8 + t * 2 + j][g] = value_of(lanes[lane].b[i] >> (16 * j) & 0xffff);
        }
    }
    for (u32 lane = 0; lane < LANES; lane++)
        for (u32 i = 0; i < 4; i++) {
            double sum = lanes[lane].floats[i];
            for (u32 k = 0; k < 16; k++) sum += a[lane / 4 + i / 2 * 8][k] * b[k][lane % 4 * 2 + i % 2];
            if (fabs(sum) >= 8388608.0) fail("a sum beyond 2^23");
            lanes[lane].floats[i] = (float)sum;
        }
}

/// Runs the fibers of one warp until all of them wait for the whole block or have ended.
template <typename Body> static void run_warp(u32 first) {
    Thread *lanes = block->threads + first;
    for (;;) {
        for (u32 lane = 0; lane < LANES; lane++) {
            if (lanes[lane].done || lanes[lane].waiting != NOTHING) continue;
            block->current = threadIdx.x = first + lane;
            swapcontext(&block->scheduler, &lanes[lane].context);
        }
        for (u32 lane = 1; lane < LANES; lane++)
            if (lanes[lane].waiting != lanes[0].waiting || lanes[lane].done != lanes[0].done) fail("lanes of a warp went different ways");
        if (lanes[0].done || lanes[0].waiting == BARRIER) return;
        if (lanes[0].waiting == MATRICES) do_matrices(lanes);
        if (lanes[0].waiting == INTEGERS) do_integers(lanes);
        if (lanes[0].waiting == FLOATS) do_floats(lanes);
        for (u32 lane = 0; lane < LANES; lane++) lanes[lane].waiting = NOTHING;
    }
}

template <typename Body> struct Fiber {
    static thread_local const Body *body;
    static void run() {
        (*body)();
        self().done = true;
        swapcontext(&self().context, &block->scheduler);
    }
};
template <typename Body> thread_local const Body *Fiber<Body>::body;

template <typename Body> static void meeting(const Body &body, u32 blocks, u32 threads, u32 shared) {
    if (threads != MOST_THREADS) fail("another number of threads than expected");
    block = (Block *)calloc(1, sizeof(Block));
    shared_memory = (u8 *)aligned_alloc(128, shared);
    Fiber<Body>::body = &body;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
        memset(shared_memory, 0xa5, shared);
        for (u32 i = 0; i < threads; i++) {
            Thread &thread = block->threads[i];
            thread.done = false, thread.waiting = NOTHING, thread.pending = 0, thread.groups = 0;
            getcontext(&thread.context);
            thread.context.uc_stack.ss_sp = block->stacks[i];
            thread.context.uc_stack.ss_size = STACK;
            thread.context.uc_link = 0;
            makecontext(&thread.context, Fiber<Body>::run, 0);
        }
        for (bool done = false; !done;) {
            done = true;
            for (u32 warp = 0; warp < threads / LANES; warp++) run_warp<Body>(warp * LANES);
            for (u32 i = 0; i < threads; i++) {
                if (block->threads[i].done != block->threads[0].done) fail("not all threads came to the barrier");
                done = done && block->threads[i].done;
                block->threads[i].waiting = NOTHING;
            }
        }
    }
    free(shared_memory);
    free(block);
}

template <typename Body> static void one_by_one(const Body &body, u32 blocks, u32 threads) {
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) body();
}

template <typename T> static T argument(const void *from) {
    T value;
    memcpy(&value, from, sizeof(T));
    return value;
}

/// A launch with copies of its arguments, because the caller may free its own.
template <typename... A> struct Launch {
    void (*kernel)(A...);
    std::tuple<A...> arguments;
    const char *name;
    u32 blocks, threads, shared;
    bool eager;

    static void run(void *from) {
        const Launch &launch = *(Launch *)from;
        emulator::name = launch.name, emulator::eager = launch.eager;
        blockDim.x = launch.threads;
        const auto body = [&] { std::apply(launch.kernel, launch.arguments); };
        if (launch.shared)
            meeting(body, launch.blocks, launch.threads, launch.shared);
        else
            one_by_one(body, launch.blocks, launch.threads);
        free(from);
    }
};

template <typename... A, size_t... I>
static void launch(void (*kernel)(A...), const char *name, void **from, std::index_sequence<I...>, u32 blocks, u32 threads, u32 shared,
                   bool eager) {
    void *place = malloc(sizeof(Launch<A...>));
    new (place) Launch<A...>{kernel, std::tuple<A...>(argument<A>(from[I])...), name, blocks, threads, shared, eager};
    if (later)
        later(Launch<A...>::run, place);
    else
        Launch<A...>::run(place);
}

template <typename... A>
static void launch(void (*kernel)(A...), const char *name, void **from, u32 blocks, u32 threads, u32 shared, bool eager) {
    launch(kernel, name, from, std::index_sequence_for<A...>(), blocks, threads, shared, eager);
}

} // namespace emulator

using emulator::self;

static void load_matrices(u32 (&to)[4], const u8 *row) {
    if ((size_t)row % 16) emulator::fail("a row that is not aligned");
    self().row = row;
    emulator::wait(emulator::MATRICES);
    memcpy(to, self().loaded, sizeof to);
}

static void copy_async(u8 *shared, const u8 *global) {
    emulator::Thread &thread = self();
    if ((size_t)shared % 16 || (size_t)global % 16) emulator::fail("a copy that is not aligned");
    if (emulator::eager)
        memcpy(shared, global, 16);
    else if (thread.pending == emulator::MOST_COPIES)
        emulator::fail("too many copies under way");
    else
        thread.copies[thread.pending++] = {shared, global, thread.groups};
}

static void copies_commit() { self().groups++; }

template <typename Sum> static void multiply_as(emulator::Waiting what, Sum (&d)[4], Sum (&own)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    memcpy(self().a, a, sizeof a);
    self().b[0] = b0, self().b[1] = b1;
    memcpy(own, d, sizeof d);
    emulator::wait(what);
    memcpy(d, own, sizeof d);
}

static void multiply(int (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    multiply_as(emulator::INTEGERS, d, self().integers, a, b0, b1);
}

static void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    multiply_as(emulator::FLOATS, d, self().floats, a, b0, b1);
}

/// Runs or defers a kernel. Returns 0, or 1 if there is no kernel of that name.
extern "C" int muster_emulate(const char *name, u32 blocks, u32 threads, u32 shared, int eager, void **arguments) {
#define CASE(kernel) \
    if (!strcmp(name, #kernel)) return emulator::launch(kernel, #kernel, arguments, blocks, threads, shared, eager), 0;
    CASE(rows)
    CASE(drawn_rows)
    CASE(product_int8)
    CASE(product_fp16)
    CASE(leaves)
    CASE(nodes)
    CASE(labels)
    CASE(walk_start)
    CASE(walk)
    CASE(walk_again)
    return 1;
}

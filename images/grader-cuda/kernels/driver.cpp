// A CUDA driver whose only card is the emulator. It is preloaded over a libcuda without a device, for tests of the program.
//
// It is stricter than a real driver, which may be lenient or crash. A call that needs a context needs one that is current
// on the calling thread. A copy must be inside one allocation. A launch must name a function of the loaded text and the
// shared memory that was permitted. A launch runs only when its stream is waited for. So a program that forgets to wait
// for a stream reads memory that was never written, and a copy or a free during a launch is reported.
#include "emulator.cpp"

#include <pthread.h>

namespace driver {

enum Result { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NOT_FOUND = 500 };

const u64 ROOM = 4ull << 30;
const u32 MOST = 64;

struct Allocation {
    u8 *start;
    u64 bytes;
};

struct Function {
    char name[64];
    u32 permitted;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Allocation allocations[MOST];
static Function functions[MOST];
static char card;
static thread_local void *current;

/// Launches of a stream, in order.
struct Stream {
    struct Pending {
        void (*run)(void *);
        void *launch;
    } pending[MOST];
    u32 count;
};

static Stream *streams[MOST];
static thread_local Stream *launching;

static void put_off(void (*run)(void *), void *launch) {
    if (launching->count == MOST) emulator::fail("more launches under way than are expected");
    launching->pending[launching->count++] = {run, launch};
}

static void finish(Stream *stream) {
    for (u32 i = 0; i < stream->count; i++) stream->pending[i].run(stream->pending[i].launch);
    stream->count = 0;
}

static bool idle() {
    for (const Stream *each : streams)
        if (each && each->count) return false;
    return true;
}

static bool within(const void *at, u64 bytes) {
    bool found = false;
    pthread_mutex_lock(&lock);
    for (const Allocation &each : allocations)
        found = found || (each.start && (u8 *)at >= each.start && (u8 *)at + bytes <= each.start + each.bytes);
    pthread_mutex_unlock(&lock);
    return found && current && idle();
}

} // namespace driver

using namespace driver;

extern "C" {

Result cuInit(u32) { return SUCCESS; }

Result cuDeviceGet(int *device, int ordinal) { return ordinal == 0 ? *device = 0, SUCCESS : (Result)101; }

Result cuDeviceGetName(char *name, int length, int) { return snprintf(name, (size_t)length, "emulated card"), SUCCESS; }

/// Compute capability 8.0.
Result cuDeviceGetAttribute(int *value, int attribute, int) { return *value = attribute == 75 ? 8 : 0, SUCCESS; }

Result cuDevicePrimaryCtxRetain(void **context, int) { return *context = &card, SUCCESS; }

Result cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }

Result cuCtxSetCurrent(void *context) { return current = context, SUCCESS; }

Result cuCtxSynchronize() { return current && idle() ? SUCCESS : INVALID_CONTEXT; }

Result cuMemGetInfo_v2(size_t *free, size_t *total) { return *free = *total = ROOM, current ? SUCCESS : INVALID_CONTEXT; }

Result cuMemAlloc_v2(u64 *at, size_t bytes) {
    if (!current) return INVALID_CONTEXT;
    if (bytes > ROOM) return OUT_OF_MEMORY;
    Result result = OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    for (Allocation &each : allocations) {
        if (each.start) continue;
        each.bytes = bytes, each.start = (u8 *)aligned_alloc(256, (bytes + 255) / 256 * 256);
        memset(each.start, 0x55, bytes);
        *at = (u64)each.start, result = SUCCESS;
        break;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

Result cuMemFree_v2(u64 at) {
    if (!current) return INVALID_CONTEXT;
    emulator::name = "cuMemFree";
    if (!idle()) emulator::fail("memory is given back under a launch");
    Result result = INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (Allocation &each : allocations)
        if (each.start == (u8 *)at) free(each.start), each.start = 0, result = SUCCESS;
    pthread_mutex_unlock(&lock);
    return result;
}

Result cuMemcpyHtoD_v2(u64 to, const void *from, size_t bytes) {
    return within((void *)to, bytes) ? memcpy((void *)to, from, bytes), SUCCESS : INVALID_VALUE;
}

Result cuMemcpyDtoH_v2(void *to, u64 from, size_t bytes) {
    return within((void *)from, bytes) ? memcpy(to, (void *)from, bytes), SUCCESS : INVALID_VALUE;
}

Result cuMemcpyDtoD_v2(u64 to, u64 from, size_t bytes) {
    return within((void *)to, bytes) && within((void *)from, bytes) ? memmove((void *)to, (void *)from, bytes), SUCCESS : INVALID_VALUE;
}

Result cuModuleLoadDataEx(void **module, const void *image, u32, void *, void *) {
    if (!current) return INVALID_CONTEXT;
    if (!strstr((const char *)image, ".target sm_80")) return INVALID_IMAGE;
    // A module is represented by its text.
    return *module = strdup((const char *)image), SUCCESS;
}

Result cuModuleUnload(void *module) { return free(module), SUCCESS; }

Result cuModuleGetFunction(void **function, void *module, const char *name) {
    char entry[128];
    snprintf(entry, sizeof entry, ".visible .entry %s(", name);
    if (!current || !strstr((const char *)module, entry)) return NOT_FOUND;
    for (Function &each : functions) {
        if (each.name[0] && strcmp(each.name, name)) continue;
        if (!each.name[0]) snprintf(each.name, sizeof each.name, "%s", name), each.permitted = 48 << 10;
        return *function = &each, SUCCESS;
    }
    return NOT_FOUND;
}

Result cuFuncSetAttribute(void *function, int attribute, int value) {
    if (attribute != 8 || value > 99 << 10) return INVALID_VALUE;
    return ((Function *)function)->permitted = (u32)value, SUCCESS;
}

Result cuStreamCreateWithPriority(void **stream, u32, int) {
    if (!current) return INVALID_CONTEXT;
    for (Stream *&each : streams) {
        if (each) continue;
        emulator::later = put_off;
        return *stream = each = (Stream *)calloc(1, sizeof(Stream)), SUCCESS;
    }
    return OUT_OF_MEMORY;
}

Result cuStreamSynchronize(void *stream) {
    if (!current || !stream) return INVALID_CONTEXT;
    return finish((Stream *)stream), SUCCESS;
}

Result cuStreamDestroy_v2(void *stream) {
    for (Stream *&each : streams)
        if (each == stream) free(each), each = 0;
    return SUCCESS;
}

Result cuLaunchKernel(void *function, u32 x, u32 y, u32 z, u32 threads, u32 threads_y, u32 threads_z, u32 shared, void *stream,
                      void **arguments, void **) {
    const Function &called = *(Function *)function;
    if (!current || !stream) return INVALID_CONTEXT;
    if (x == 0 || y * z * threads_y * threads_z != 1 || shared > called.permitted) return INVALID_VALUE;
    launching = (Stream *)stream;
    return muster_emulate(called.name, x, threads, shared, 0, arguments) ? NOT_FOUND : SUCCESS;
}

} // extern "C"

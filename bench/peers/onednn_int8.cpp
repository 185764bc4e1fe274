// The peer of the bench `proofs`: oneDNN's int8 matrix product, signed by signed to 32 bits, weights packed beforehand.
//
//     g++ -O2 -std=c++17 -I$INCLUDE bench/peers/onednn_int8.cpp -L$LIB -ldnnl -Wl,-rpath,$LIB -o onednn_int8
//
// Reads "n\n" and answers with the processor seconds of one product of n x n matrices; "0\n" answers with the version.
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <map>
#include <vector>
#include <sys/syscall.h>
#include <unistd.h>
#include "oneapi/dnnl/dnnl.hpp"

using namespace dnnl;
using Tag = memory::format_tag;
using Type = memory::data_type;

struct Product {
    matmul primitive;
    memory a, b, c;
};

static Product prepare(engine &device, stream &queue, int64_t n) {
    memory::desc a({n, n}, Type::s8, Tag::ab), any({n, n}, Type::s8, Tag::any), plain({n, n}, Type::s8, Tag::ab);
    memory::desc c({n, n}, Type::s32, Tag::ab);
#if DNNL_VERSION_MAJOR >= 3
    matmul::primitive_desc desc(device, a, any, c);
#else
    matmul::primitive_desc desc(matmul::desc(a, any, c), device);
#endif
    Product made{matmul(desc), memory(a, device), memory(desc.weights_desc(), device), memory(c, device)};
    memory source(plain, device);
    auto *left = static_cast<int8_t *>(made.a.get_data_handle());
    auto *right = static_cast<int8_t *>(source.get_data_handle());
    uint32_t x = 1;
    for (int64_t i = 0; i < n * n; i++) {
        x = x * 1664525 + 1013904223;
        left[i] = x >> 24;
        right[i] = x >> 16;
    }
    reorder(source, made.b).execute(queue, source, made.b);
    queue.wait();
    std::fprintf(stderr, "%s\n", desc.impl_info_str());
    return made;
}

int main() {
    // Ask the kernel for the tile registers (ARCH_REQ_XCOMP_PERM, XTILEDATA), before any thread is made.
    syscall(SYS_arch_prctl, 0x1023, 18);
    engine device(engine::kind::cpu, 0);
    stream queue(device);
    std::map<int64_t, Product> products;
    long long n;
    while (std::scanf("%lld", &n) == 1) {
        if (n == 0) {
            const auto *v = dnnl_version();
            std::printf("%d.%d.%d\n", v->major, v->minor, v->patch);
        } else {
            auto found = products.find(n);
            if (found == products.end()) found = products.emplace(n, prepare(device, queue, n)).first;
            auto &p = found->second;
            std::clock_t start = std::clock(), spent = 0;
            int done = 0;
            for (; spent < CLOCKS_PER_SEC / 4; spent = std::clock() - start, done++) {
                p.primitive.execute(queue, {{DNNL_ARG_SRC, p.a}, {DNNL_ARG_WEIGHTS, p.b}, {DNNL_ARG_DST, p.c}});
                queue.wait();
            }
            std::printf("%.9f\n", double(spent) / CLOCKS_PER_SEC / done);
        }
        std::fflush(stdout);
    }
}

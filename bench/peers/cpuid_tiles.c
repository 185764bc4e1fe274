// Some virtual machines have AMX and hide CPUID leaves 0x1D and 0x1E, which describe its tiles; oneDNN then configures
// none and dies of an illegal instruction. Preloaded, this answers the two leaves as every processor with AMX does.
//
//     gcc -O1 -shared -fPIC -o cpuid_tiles.so bench/peers/cpuid_tiles.c
#define _GNU_SOURCE
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { ARCH_SET_CPUID = 0x1012 };

static void answer(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    greg_t *g = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *code = (const unsigned char *)g[REG_RIP];
    if (code[0] != 0x0f || code[1] != 0xa2) {
        signal(SIGSEGV, SIG_DFL);
        return;
    }
    unsigned leaf = g[REG_RAX], part = g[REG_RCX], a, b, c, d;
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 1);
    __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(leaf), "c"(part));
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0);
    if (leaf == 0x1d) a = part ? 0x04002000 : 1, b = part ? 0x00080040 : 0, c = part ? 16 : 0, d = 0;
    if (leaf == 0x1e) a = 0, b = 0x4010, c = 0, d = 0;
    g[REG_RAX] = a, g[REG_RBX] = b, g[REG_RCX] = c, g[REG_RDX] = d, g[REG_RIP] += 2;
}

__attribute__((constructor(101))) static void start(void) {
    struct sigaction action = {0};
    action.sa_sigaction = answer;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, 0);
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0);
}

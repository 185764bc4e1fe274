/* The program of the tests' executors: without an argument it runs until it is told to end, and with a number it ends
 * at once with that exit code. It fails without the variables of an executor. */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static void leave(int signal) {
    (void)signal;
    _exit(0);
}

int main(int count, char **words) {
    if (!getenv("MINER_ADDRESS") || !getenv("EXECUTOR_TOKEN"))
        return 99;
    if (count > 1)
        return atoi(words[1]);
    signal(SIGTERM, leave);
    for (;;)
        pause();
}

/* Kills the process at the N-th call that changes a file: at a write after half of the bytes, before any other.
 *
 * Loaded with LD_PRELOAD. `kill_at(N)` arms it and counts from 1 again, `calls()` tells how many were seen; standard
 * output, pipes and the like are not counted. Nothing is synced in truth: what a killed process wrote stays. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static long seen, wanted;

void kill_at(long number) { seen = 0; wanted = number; }
long calls(void) { return seen; }

static int due(int file) {
    struct stat about;
    if (fstat(file, &about) || !(S_ISREG(about.st_mode) || S_ISDIR(about.st_mode))) return 0;
    return ++seen == wanted;
}

static void die(void) { kill(getpid(), SIGKILL); }

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t write(int file, const void *data, size_t size) {
    REAL(write);
    if (due(file)) { real(file, data, size / 2); die(); }
    return real(file, data, size);
}
ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
    REAL(pwrite);
    if (due(file)) { real(file, data, size / 2, at); die(); }
    return real(file, data, size, at);
}
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    REAL(pwrite64);
    if (due(file)) { real(file, data, size / 2, at); die(); }
    return real(file, data, size, at);
}
int fsync(int file) { if (due(file)) die(); return 0; }
int fdatasync(int file) { if (due(file)) die(); return 0; }
int ftruncate(int file, off_t size) { REAL(ftruncate); if (due(file)) die(); return real(file, size); }
int ftruncate64(int file, off64_t size) { REAL(ftruncate64); if (due(file)) die(); return real(file, size); }
int rename(const char *from, const char *to) { REAL(rename); if (++seen == wanted) die(); return real(from, to); }
int unlink(const char *path) { REAL(unlink); if (++seen == wanted) die(); return real(path); }

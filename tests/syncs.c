/* Notes each fsync and fdatasync of a file, and may delay it.
 *
 * Preloaded into a server, and into the broker whose server it is. SYNCS names the file of notes. Each sync has a line
 * "begin inode size" and, if it succeeded, a line "end inode size" with the size at its begin: that much of the file
 * is on disk. SYNC_DELAY_MS is how long each sync takes in addition.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void note(const char *what, const struct stat *file) {
    char line[64];
    int length = snprintf(line, sizeof line, "%s %llu %lld\n", what, (unsigned long long)file->st_ino,
                          (long long)file->st_size);
    int out = open(getenv("SYNCS"), O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (out < 0 || write(out, line, length) != length) abort();
    close(out);
}

static int noted(const char *name, int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    struct stat before;
    if (getenv("SYNCS") == NULL || fstat(fd, &before) != 0 || !S_ISREG(before.st_mode)) return real(fd);
    note("begin", &before);
    const char *delay = getenv("SYNC_DELAY_MS");
    if (delay != NULL) usleep(1000 * (useconds_t)atoi(delay));
    int result = real(fd);
    if (result == 0) note("end", &before);
    return result;
}

int fsync(int fd) { return noted("fsync", fd); }
int fdatasync(int fd) { return noted("fdatasync", fd); }

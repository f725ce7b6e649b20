/* Notes how much of each file was on disk for sure: its size when the last sync of it that succeeded had begun.
 *
 * Preloaded into a server. SYNCED names the file of notes, a line "inode size" for each sync.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int noted(const char *name, int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    struct stat before;
    int is_file = fstat(fd, &before) == 0 && S_ISREG(before.st_mode);
    int result = real(fd);
    const char *notes = getenv("SYNCED");
    if (result == 0 && is_file && notes != NULL) {
        char line[64];
        int length = snprintf(line, sizeof line, "%llu %lld\n", (unsigned long long)before.st_ino,
                              (long long)before.st_size);
        int out = open(notes, O_WRONLY | O_APPEND | O_CREAT, 0600);
        if (out < 0 || write(out, line, length) != length) abort();
        close(out);
    }
    return result;
}

int fsync(int fd) { return noted("fsync", fd); }
int fdatasync(int fd) { return noted("fdatasync", fd); }

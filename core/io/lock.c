/* lock.c - one holder at a time, in one process or several.
 *
 * flock belongs to the open file, so that a second opening in the same process is refused as well,
 * and closing it, which the kernel does for a process that dies, is all that gives it back. The
 * file is never removed: whoever had just opened it would then hold a file that nobody else sees. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "../base/memory.h"
#include "../moonstill.h"

struct ms_lock {
  int fd;
};

static int32_t read_holder(int fd) {
  char text[16];
  ssize_t n = pread(fd, text, sizeof text - 1, 0);
  if (n <= 0) return 0;
  text[n] = 0;
  return (int32_t)strtol(text, NULL, 10);
}

/* The number is for messages only, so that it may fail. */
static void write_holder(int fd) {
  char text[16];
  int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
  if (ftruncate(fd, 0) || pwrite(fd, text, (size_t)n, 0) != n) return;
}

ms_status ms_lock_open(const char *path, ms_lock **out, int32_t *holder) {
  void *p;
  ms_status st = MS_OK;
  *out = NULL;
  *holder = 0;
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return MS_FAIL(MS_EIO, "%s: cannot open: %s", path, strerror(errno));
  /* Other errors are of file systems without locks, where there is nothing to take. */
  if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
    *holder = read_holder(fd);
    goto fail;
  }
  MS_TRY_OR(fail, ms_alloc(sizeof **out, "lock", &p));
  write_holder(fd);
  *out = p;
  (*out)->fd = fd;
  return MS_OK;
fail:
  close(fd);
  return st;
}

void ms_lock_close(ms_lock *lock) {
  if (!lock) return;
  close(lock->fd);
  ms_free(lock);
}

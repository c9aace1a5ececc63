/* lock.c - one holder at a time, in one process or several.
 *
 * flock belongs to the open file, so that a second opening in the same process is refused as well,
 * and closing it, which the kernel does for a process that dies, is all that gives it back. We
 * never remove the file: whoever had just opened it would then hold a file that nobody else sees.
 * Others may, so that the holder looks from time to time whether it is still there. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../base/file.h"
#include "../base/log.h"
#include "../base/memory.h"
#include "../moonstill.h"

enum { TRIES = 16 };

struct ms_lock {
  int fd;
  char *path;
};

static int32_t read_holder(int fd) {
  char text[16];
  ssize_t n = pread(fd, text, sizeof text - 1, 0);
  if (n <= 0) return 0;
  text[n] = 0;
  return (int32_t)strtol(text, NULL, 10);
}

/* Puts our process's number into the file, for the messages of others: no matter if that fails. */
static void write_holder(int fd) {
  char text[16];
  int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
  if (ftruncate(fd, 0) || pwrite(fd, text, (size_t)n, 0) != n) return;
}

/* An error unless the file is empty or has a process's number: no other is written to. */
static ms_status check_ours(int fd, const char *path) {
  char text[16];
  struct stat info;
  if (fstat(fd, &info)) return MS_FAIL(MS_EIO, "%s: %s", path, strerror(errno));
  ssize_t n = S_ISREG(info.st_mode) ? pread(fd, text, sizeof text, 0) : (ssize_t)sizeof text;
  if (n < 0) return MS_FAIL(MS_EIO, "%s: cannot read: %s", path, strerror(errno));
  if (n < (ssize_t)sizeof text) {
    text[n] = 0;
    if (strspn(text, "0123456789\n") == (size_t)n) return MS_OK;
  }
  return MS_FAIL(MS_EIO, "%s: is there and is no lock of moonstill's: it is left as it is", path);
}

/* *same: whether the open file is still the one at `path`, which may be missing or another. */
static ms_status is_at(int fd, const char *path, int *same) {
  struct stat a, b;
  *same = 0;
  if (lstat(path, &a))
    return errno == ENOENT ? MS_OK : MS_FAIL(MS_EIO, "%s: %s", path, strerror(errno));
  if (fstat(fd, &b)) return MS_FAIL(MS_EIO, "%s: %s", path, strerror(errno));
  *same = a.st_dev == b.st_dev && a.st_ino == b.st_ino;
  return MS_OK;
}

static void say_no_locks(const char *path) {
  ms_log(MS_LOG_WARNING,
         "%s: cannot be locked: %s: a second process in the same place would not be noticed", path,
         strerror(errno));
}

/* Opens the file and locks it. *fd is -1 when there is another holder, or, with *again, when the
 * file was removed meanwhile. */
static ms_status try_take(const char *path, int *fd, int32_t *holder, int *again) {
  int same = 0;
  *again = 0;
  *fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
  if (*fd < 0)
    return MS_FAIL(
        MS_EIO, "%s: cannot open: %s", path,
        errno == ELOOP ? "it is a link, and what that names is left as it is" : strerror(errno));
  ms_status st = check_ours(*fd, path);
  if (st == MS_OK) {
    ms_lock_state state = ms_lock_take(*fd);
    if (state == MS_LOCK_NONE) say_no_locks(path);
    if (state == MS_LOCK_BUSY) *holder = read_holder(*fd);
    if (state != MS_LOCK_BUSY) st = is_at(*fd, path, &same);
    if (state != MS_LOCK_BUSY && st == MS_OK) *again = !same;
  }
  if (same) {
    write_holder(*fd);
    return MS_OK;
  }
  close(*fd);
  *fd = -1;
  return st;
}

static ms_status take(const char *path, int *fd, int32_t *holder) {
  int again = 1;
  *holder = 0;
  for (int i = 0; again && i < TRIES; i++) MS_TRY(try_take(path, fd, holder, &again));
  return again ? MS_FAIL(MS_EIO, "%s: is removed all the time", path) : MS_OK;
}

ms_status ms_lock_open(const char *path, ms_lock **out, int32_t *holder) {
  MS_REQUIRE(path, "lock: no path");
  void *p;
  int fd;
  *out = NULL;
  *holder = 0;
  MS_TRY(ms_alloc(sizeof **out, "lock", &p));
  ms_lock *lock = p;
  ms_status st = ms_text_copy(path, strlen(path), &lock->path);
  if (st == MS_OK) st = take(path, &fd, holder);
  if (st == MS_OK && fd >= 0) {
    lock->fd = fd;
    *out = lock;
    return MS_OK;
  }
  ms_text_free(lock->path);
  ms_free(lock);
  return st;
}

ms_status ms_lock_keep(ms_lock *lock, int32_t *kept, int32_t *holder) {
  int same, fd;
  *kept = MS_LOCK_KEPT;
  *holder = 0;
  MS_TRY(is_at(lock->fd, lock->path, &same));
  if (same) return MS_OK;
  MS_TRY(take(lock->path, &fd, holder));
  *kept = fd < 0 ? MS_LOCK_LOST : MS_LOCK_ANEW;
  if (fd < 0) return MS_OK;
  close(lock->fd);
  lock->fd = fd;
  return MS_OK;
}

void ms_lock_close(ms_lock *lock) {
  if (!lock) return;
  close(lock->fd);
  ms_text_free(lock->path);
  ms_free(lock);
}

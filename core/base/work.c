/* work.c - private folders beside a path, and what killed processes left of theirs. */
#include "work.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../moonstill.h"
#include "file.h"
#include "log.h"
#include "memory.h"

#define PREFIX ".moonstill-"
#define MARKER "owner"
#define NEW "new"
#define OLD "old"
enum { DIGITS = 32, TRIES = 16 };

/* ---- names and markers ---- */

ms_status ms_unique(char **text) {
  unsigned char random[DIGITS / 2];
  char digits[DIGITS + 1];
  ssize_t n;
  do n = getrandom(random, sizeof random, 0);
  while (n < 0 && errno == EINTR);
  if (n != (ssize_t)sizeof random)
    return MS_FAIL(MS_EIO, "no random number from the system: %s", strerror(errno));
  for (size_t i = 0; i < sizeof random; i++) sprintf(digits + 2 * i, "%02x", random[i]);
  return ms_text_copy(digits, DIGITS, text);
}

static int is_name(const char *name) {
  size_t n = strlen(PREFIX);
  return !strncmp(name, PREFIX, n) && strlen(name) == n + DIGITS &&
         strspn(name + n, "0123456789abcdef") == DIGITS;
}

static const char *last_part(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

/* The marker's text; the name that it is for comes last, for it may have any byte. One without a lock
 * has another first line, by which nobody takes it for that of a process that is gone. */
static ms_status write_marker(int fd, const ms_work *w, int locked) {
  char *text, host[256] = "";
  gethostname(host, sizeof host - 1);
  MS_TRY(ms_text_format(&text, "moonstill's temporary %s%s\nof process %ld on %s, for\n%s",
                        last_part(w->folder) + strlen(PREFIX), locked ? "" : ", without a lock",
                        (long)getpid(), host, last_part(w->path)));
  size_t bytes = strlen(text);
  ssize_t n;
  do n = write(fd, text, bytes);
  while (n < 0 && errno == EINTR);
  ms_text_free(text);
  if (n == (ssize_t)bytes) return MS_OK;
  return MS_FAIL(MS_EIO, "%s: cannot write beside it: %s", w->path,
                 n < 0 ? strerror(errno) : "no room");
}

/* The name that the temporary called `name` is for, in `text`; NULL when this is not its marker. */
static const char *read_marker(int fd, const char *name, char *text, size_t room) {
  char want[64];
  ssize_t n = pread(fd, text, room - 1, 0);
  if (n <= 0) return NULL;
  text[n] = 0;
  snprintf(want, sizeof want, "moonstill's temporary %s\n", name + strlen(PREFIX));
  if (strncmp(text, want, strlen(want))) return NULL;
  const char *line = strchr(text + strlen(want), '\n');
  return line && line[1] ? line + 1 : NULL;
}

/* ---- what killed processes left ---- */

static int is_there(int dir, const char *name) {
  struct stat info;
  return !fstatat(dir, name, &info, AT_SYMLINK_NOFOLLOW);
}

/* Removes the content of a temporary but for its marker. */
static ms_status remove_content(int parent, int dir, const char *target, const char *full) {
  if (is_there(dir, OLD) && !is_there(parent, target))
    return MS_FAIL(MS_EIO, "%s/" OLD ": is all there is of %s", full, target);
  MS_TRY(ms_remove_at(dir, NEW, full));
  return ms_remove_at(dir, OLD, full);
}

/* The marker goes last: what is left of a removal that is cut off still has it. It is closed before,
 * since network file systems keep the name of an open file. */
static void remove_marker(int parent, int dir, int lock, const char *name) {
  close(lock);
  unlinkat(dir, MARKER, 0);
  unlinkat(parent, name, AT_REMOVEDIR);
}

static void remove_dead(int parent, int dir, int lock, const char *name, const char *full) {
  char text[PATH_MAX + 512];
  struct stat info;
  const char *target = read_marker(lock, name, text, sizeof text);
  if (!fstat(lock, &info) && !info.st_size) {
    /* Of a process that came no further. Should it live, it finds its marker locked or gone, and
     * takes another name; so the marker goes while we hold it. */
    unlinkat(dir, MARKER, 0);
    close(lock);
    unlinkat(parent, name, AT_REMOVEDIR);
  } else if (!target) {
    close(lock);
  } else if (remove_content(parent, dir, target, full) != MS_OK) {
    ms_log(MS_LOG_WARNING, "%s: left by a process that was killed, and kept: %s", full,
           ms_last_error());
    close(lock);
  } else {
    remove_marker(parent, dir, lock, name);
    ms_log(MS_LOG_INFO, "%s: removed, left by a process that was killed", full);
  }
}

static void say_no_locks(const char *full) {
  static int said;
  if (!said++)
    ms_log(MS_LOG_WARNING,
           "%s: left by a process that may be gone; this file system has no locks to tell, so it "
           "stays",
           full);
}

static void clean_one(int parent, const char *name, const char *full) {
  struct stat info;
  int dir = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (dir < 0) return;
  int fd = openat(dir, MARKER, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT) unlinkat(parent, name, AT_REMOVEDIR); /* only an empty one goes */
  } else {
    int regular = !fstat(fd, &info) && S_ISREG(info.st_mode);
    ms_lock_state state = regular ? ms_lock_take(fd) : MS_LOCK_BUSY;
    if (state == MS_LOCK_NONE) say_no_locks(full);
    if (state == MS_LOCK_TAKEN)
      remove_dead(parent, dir, fd, name, full);
    else
      close(fd);
  }
  close(dir);
}

void ms_dir_clean(const char *path) {
  if (!(path)) return;
  char full[PATH_MAX + NAME_MAX + 2];
  DIR *dir = opendir(path);
  if (!dir) return;
  for (struct dirent *e; (e = readdir(dir));) {
    if (!is_name(e->d_name)) continue;
    snprintf(full, sizeof full, "%s/%s", path, e->d_name);
    clean_one(dirfd(dir), e->d_name, full);
  }
  closedir(dir);
}

/* ---- ours ---- */

static void close_own(ms_work *w) {
  if (w->dir >= 0) close(w->dir);
  if (w->lock >= 0) close(w->lock);
  ms_text_free(w->folder);
  w->folder = NULL;
  w->dir = w->lock = -1;
}

static void forget(ms_work *w) {
  close_own(w);
  if (w->parent >= 0) close(w->parent);
  ms_text_free(w->path);
  w->path = NULL;
  w->parent = -1;
}

/* The marker of a new folder, locked. *made is 0 when another process was quicker to clean up the
 * empty folder, and there is to be another try with another name. */
static ms_status make_marker(ms_work *w, int *made) {
  struct stat info;
  w->dir = open(w->folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (w->dir >= 0)
    w->lock = openat(w->dir, MARKER, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (w->lock < 0 && errno == ENOENT) return MS_OK;
  if (w->lock < 0)
    return MS_FAIL(MS_EIO, "%s: cannot create beside it: %s", w->path, strerror(errno));
  ms_lock_state state = ms_lock_take(w->lock);
  if (state == MS_LOCK_BUSY || fstat(w->lock, &info) || !info.st_nlink) return MS_OK;
  MS_TRY(write_marker(w->lock, w, state == MS_LOCK_TAKEN));
  *made = 1;
  return MS_OK;
}

static ms_status try_begin(const char *parent, ms_work *w, int *made) {
  char *unique;
  close_own(w);
  MS_TRY(ms_unique(&unique));
  ms_status st = ms_text_format(&w->folder, "%s/" PREFIX "%s", parent, unique);
  ms_text_free(unique);
  MS_TRY(st);
  if (mkdir(w->folder, 0700)) {
    if (errno == EEXIST) return MS_OK;
    return MS_FAIL(MS_EIO, "%s: cannot make a folder beside it: %s", w->path, strerror(errno));
  }
  st = make_marker(w, made);
  if (st != MS_OK) {
    if (w->lock >= 0) unlinkat(w->dir, MARKER, 0);
    rmdir(w->folder);
  }
  return st;
}

ms_status ms_work_begin(const char *path, ms_work *out) {
  char *parent = NULL;
  struct stat info;
  int made = 0;
  ms_status st;
  *out = (ms_work){.parent = -1, .dir = -1, .lock = -1};
  MS_TRY_OR(end, ms_text_copy(path, strlen(path), &out->path));
  MS_TRY_OR(end, ms_path_parent(path, &parent));
  out->parent = open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (out->parent < 0) {
    st = MS_FAIL(MS_EIO, "%s: cannot open folder: %s", parent, strerror(errno));
    goto end;
  }
  if (fstatat(out->parent, last_part(path), &info, AT_SYMLINK_NOFOLLOW) && errno != ENOENT) {
    st = MS_FAIL(MS_EIO, "%s: cannot be there: %s", path, strerror(errno));
    goto end;
  }
  ms_dir_clean(parent);
  for (int i = 0; i < TRIES && !made && st == MS_OK; i++) st = try_begin(parent, out, &made);
  if (st == MS_OK && !made)
    st = MS_FAIL(MS_EIO, "%s: no temporary folder beside it in %d tries", path, TRIES);
end:
  ms_text_free(parent);
  if (st != MS_OK) forget(out);
  return st;
}

ms_status ms_work_new(const ms_work *work, char **out) {
  return ms_text_format(out, "%s/" NEW, work->folder);
}

ms_status ms_work_of(const char *parent, const char *name, char **out) {
  return ms_text_format(out, "%s/%s/" NEW, parent, name);
}

ms_status ms_work_old(const ms_work *work, char **out) {
  return ms_text_format(out, "%s/" OLD, work->folder);
}

void ms_work_end(ms_work *w) {
  char message[2048];
  if (!w->folder) return;
  snprintf(message, sizeof message, "%s", ms_last_error());
  if (remove_content(w->parent, w->dir, last_part(w->path), w->folder) == MS_OK) {
    remove_marker(w->parent, w->dir, w->lock, last_part(w->folder));
    w->lock = -1;
  } else {
    ms_log(MS_LOG_WARNING, "%s: stays: %s", w->folder, ms_last_error());
    MS_FAIL(MS_EIO, "%s", message); /* the first stays */
  }
  forget(w);
}

void ms_work_leave(ms_work *w) {
  if (w->folder) unlinkat(w->dir, MARKER, 0);
  forget(w);
}

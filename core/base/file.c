/* file.c - whole files and folders. */
#include "file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include "../moonstill.h"
#include "memory.h"
#include "work.h"

ms_status ms_file_read(const char *path, size_t limit, char **text, size_t *bytes) {
  struct stat info;
  void *p = NULL;
  ms_status st = MS_OK;

  *text = NULL;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe is refused, not waited for */
  if (fd < 0) return MS_FAIL(MS_EIO, "%s: cannot open: %s", path, strerror(errno));
  if (fstat(fd, &info) || !S_ISREG(info.st_mode)) {
    st = MS_FAIL(MS_EIO, "%s: not a file", path);
    goto end;
  }
  if ((size_t)info.st_size > limit) {
    st = MS_FAIL(MS_EIO, "%s: %lld bytes, limit %zu", path, (long long)info.st_size, limit);
    goto end;
  }
  MS_TRY_OR(end, ms_alloc_undefined((size_t)info.st_size + 1, path, &p));
  size_t have = 0;
  while (have < (size_t)info.st_size) {
    ssize_t n = read(fd, (char *)p + have, (size_t)info.st_size - have);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      st = MS_FAIL(MS_EIO, "%s: read ended at byte %zu of %lld: %s", path, have,
                   (long long)info.st_size, n ? strerror(errno) : "file is shorter");
      goto end;
    }
    have += (size_t)n;
  }
  ((char *)p)[have] = 0;
  *text = p;
  *bytes = have;
  p = NULL;
end:
  ms_free(p);
  close(fd);
  return st;
}

static ms_status write_all(int fd, const char *path, const char *data, int64_t bytes) {
  while (bytes > 0) {
    ssize_t n = write(fd, data, (size_t)(bytes < 1 << 30 ? bytes : 1 << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return MS_FAIL(MS_EIO, "%s: cannot write: %s", path, strerror(errno));
    data += n;
    bytes -= n;
  }
  return MS_OK;
}

ms_lock_state ms_lock_take(int fd) {
  int bad;
  do bad = flock(fd, LOCK_EX | LOCK_NB);
  while (bad && errno == EINTR);
  return !bad ? MS_LOCK_TAKEN : errno == EWOULDBLOCK ? MS_LOCK_BUSY : MS_LOCK_NONE;
}

/* ---- writing ---- */

ms_status ms_path_resolve(const char *path, size_t length, char **out) {
  char found[PATH_MAX];
  struct stat info;
  MS_TRY(ms_text_copy(path, length, out));
  if (lstat(*out, &info) || !S_ISLNK(info.st_mode)) return MS_OK;
  ms_status st = realpath(*out, found)
                     ? MS_OK
                     : MS_FAIL(MS_EIO, "%s: a link to nothing: %s", *out, strerror(errno));
  ms_text_free(*out);
  *out = NULL;
  return st == MS_OK ? ms_text_copy(found, strlen(found), out) : st;
}

/* A rename would put a file in the place of a device or a pipe: of /dev/null, for all processes. */
static ms_status check_replaceable(const char *path) {
  struct stat info;
  if (stat(path, &info) || S_ISREG(info.st_mode) || S_ISDIR(info.st_mode)) return MS_OK;
  return MS_FAIL(MS_EIO, "%s: is there and is not a file: it is not replaced", path);
}

int ms_file_open_new(const char *path) {
  return open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
}

ms_status ms_file_create(const char *path, const char *name, const void *data, int64_t bytes) {
  int fd = ms_file_open_new(path);
  if (fd < 0) return MS_FAIL(MS_EIO, "%s: cannot create: %s", name, strerror(errno));
  ms_status st = write_all(fd, name, data, bytes);
  if (st == MS_OK && fsync(fd)) st = MS_FAIL(MS_EIO, "%s: fsync: %s", name, strerror(errno));
  if (close(fd) && st == MS_OK) st = MS_FAIL(MS_EIO, "%s: close: %s", name, strerror(errno));
  if (st != MS_OK) unlink(path);
  return st;
}

static ms_status replace_file(const ms_work *work, const void *data, int64_t bytes) {
  char *tmp;
  MS_TRY(ms_work_new(work, &tmp));
  ms_status st = ms_file_create(tmp, work->path, data, bytes);
  if (st == MS_OK && rename(tmp, work->path))
    st = MS_FAIL(MS_EIO, "%s: cannot replace: %s", work->path, strerror(errno));
  ms_text_free(tmp);
  return st;
}

ms_status ms_file_write(const char *path, const void *data, int64_t bytes) {
  char *real;
  ms_work work;
  MS_REQUIRE(path && (data || !bytes) && bytes >= 0, "file write: no path or no data");
  MS_TRY(ms_path_resolve(path, strlen(path), &real));
  ms_status st = check_replaceable(real);
  if (st == MS_OK) st = ms_work_begin(real, &work);
  if (st == MS_OK) {
    st = replace_file(&work, data, bytes);
    ms_work_end(&work);
  }
  ms_text_free(real);
  return st;
}

static ms_status hash_all(int fd, const char *path, void *buffer, size_t room,
                          XXH3_state_t *state) {
  for (;;) {
    ssize_t n = read(fd, buffer, room);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return MS_FAIL(MS_EIO, "%s: cannot read: %s", path, strerror(errno));
    if (!n) return MS_OK;
    XXH3_128bits_update(state, buffer, (size_t)n);
  }
}

static ms_status hash_text(XXH128_hash_t h, char **text) {
  return ms_text_format(text, "%016llx%016llx", (unsigned long long)h.high64,
                        (unsigned long long)h.low64);
}

ms_status ms_file_hash(const char *path, char **text) {
  MS_REQUIRE(path, "file hash: no path");
  enum { CHUNK = 1 << 20 };
  void *buffer = NULL;
  ms_status st;
  XXH3_state_t *state = NULL;
  *text = NULL;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return MS_FAIL(MS_EIO, "%s: cannot open: %s", path, strerror(errno));
  MS_TRY_OR(end, ms_alloc_undefined(CHUNK, "file hash", &buffer));
  state = XXH3_createState();
  if (!state) {
    st = MS_FAIL(MS_ENOMEM, "%s: no memory to hash", path);
    goto end;
  }
  XXH3_128bits_reset(state);
  MS_TRY_OR(end, hash_all(fd, path, buffer, CHUNK, state));
  st = hash_text(XXH3_128bits_digest(state), text);
end:
  if (state) XXH3_freeState(state);
  ms_free(buffer);
  close(fd);
  return st;
}

ms_status ms_hash(const void *data, int64_t bytes, char **text) {
  MS_REQUIRE(data || !bytes, "hash: no data");
  return hash_text(XXH3_128bits(data, (size_t)bytes), text);
}

int ms_path_kind(const char *path) {
  struct stat info;
  if (!path) return 0;
  /* What cannot be looked at may be there: whoever opens it gets the reason. */
  if (stat(path, &info)) return errno != ENOENT && errno != ENOTDIR && errno != ENAMETOOLONG;
  return S_ISDIR(info.st_mode) ? 2 : 1;
}

ms_status ms_path_real(const char *path, char **text) {
  MS_REQUIRE(path, "path: none");
  char found[PATH_MAX], *part;
  *text = NULL;
  size_t n = strlen(path);
  MS_TRY(ms_text_copy(path, n, &part));
  /* the longest part that is there; "." when nothing is */
  while (n && !realpath(part, found)) {
    while (n && part[n - 1] == '/') n--;
    while (n && part[n - 1] != '/') n--;
    part[n] = 0;
  }
  ms_text_free(part);
  if (!n && !realpath(".", found))
    return MS_FAIL(MS_EIO, "%s: no folder to begin from: %s", path, strerror(errno));
  const char *rest = path + n + strspn(path + n, "/");
  return ms_text_format(text, "%s%s%s", found, *rest && strcmp(found, "/") ? "/" : "", rest);
}

int ms_path_writable(const char *path) {
  if (!(path)) return 0;
  return !access(path, ms_path_kind(path) == 2 ? W_OK | X_OK : W_OK);
}

int64_t ms_disk_free(const char *path) {
  if (!(path)) return -1;
  struct statvfs info;
  if (statvfs(path, &info) || !info.f_blocks) return -1;
  fsblkcnt_t blocks = geteuid() ? info.f_bavail : info.f_bfree; /* some are kept for root */
  return (int64_t)blocks * (int64_t)info.f_frsize;
}

int64_t ms_file_limit(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur == RLIM_INFINITY) return -1;
  return limit.rlim_cur > INT64_MAX ? INT64_MAX : (int64_t)limit.rlim_cur;
}

ms_status ms_dir_make(const char *path) {
  char *part;
  ms_status st = MS_OK;
  MS_REQUIRE(path, "folder: no path");
  MS_TRY(ms_text_copy(path, strlen(path), &part));
  for (char *p = part + 1; st == MS_OK; p++) {
    if (*p && *p != '/') continue;
    char c = *p;
    *p = 0;
    if (mkdir(part, 0777) && errno != EEXIST)
      st = MS_FAIL(MS_EIO, "%s: cannot make folder: %s", part, strerror(errno));
    else if (!c && ms_path_kind(part) != 2)
      st = MS_FAIL(MS_EIO, "%s: exists and is no folder", part);
    *p = c;
    if (!c) break;
  }
  ms_text_free(part);
  return st;
}

ms_status ms_path_parent(const char *path, char **out) {
  const char *slash = strrchr(path, '/');
  if (!slash) return ms_text_copy(".", 1, out);
  return ms_text_copy(path, slash == path ? 1 : (size_t)(slash - path), out);
}

/* A rename that replaces nothing: EEXIST. */
static int rename_new(const char *from, const char *to) {
  struct stat info;
  if (!renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE)) return 0;
  if (errno != EINVAL && errno != ENOSYS) return -1; /* the file system cannot do it at once */
  if (lstat(to, &info)) return rename(from, to);
  errno = EEXIST;
  return -1;
}

ms_status ms_path_rename_aside(const char *from, const char *to, char **where) {
  MS_TRY(ms_text_format(where, "%s.old", to));
  for (int i = 1; rename_new(from, *where); i++) {
    ms_status st = MS_OK;
    if (errno != EEXIST)
      st = MS_FAIL(MS_EIO, "%s: cannot rename to %s: %s", from, *where, strerror(errno));
    ms_text_free(*where);
    *where = NULL;
    MS_TRY(st);
    MS_TRY(ms_text_format(where, "%s.old.%d", to, i));
  }
  return MS_OK;
}

ms_status ms_path_set_aside(const char *path, char **where) {
  MS_REQUIRE(path, "path: none");
  return ms_path_rename_aside(path, path, where);
}

int ms_path_same(const char *a, const char *b) {
  if (!(a && b)) return 0;
  struct stat x, y;
  return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

ms_status ms_dir_list(const char *path, char **text) {
  struct dirent **entry = NULL;
  size_t room = 1;
  *text = NULL;
  MS_REQUIRE(path, "folder list: no path");
  int n = scandir(path, &entry, NULL, alphasort);
  if (n < 0) return MS_FAIL(MS_EIO, "%s: cannot list: %s", path, strerror(errno));
  for (int i = 0; i < n; i++) room += strlen(entry[i]->d_name) + 1;
  void *p;
  ms_status st = ms_alloc(room, "folder list", &p);
  char *at = p;
  for (int i = 0; i < n; i++) {
    const char *name = entry[i]->d_name;
    if (st == MS_OK && strcmp(name, ".") && strcmp(name, "..")) at += sprintf(at, "%s\n", name);
    free(entry[i]);
  }
  free(entry);
  if (st == MS_OK) *text = p;
  return st;
}

ms_status ms_remove_at(int parent, const char *name, const char *path) {
  if (!unlinkat(parent, name, 0) || errno == ENOENT) return MS_OK;
  if (errno != EISDIR && errno != EPERM)
    return MS_FAIL(MS_EIO, "%s: cannot remove: %s", path, strerror(errno));
  int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  DIR *dir = fd < 0 ? NULL : fdopendir(fd);
  if (!dir) return MS_FAIL(MS_EIO, "%s: cannot open folder: %s", path, strerror(errno));
  ms_status st = MS_OK;
  for (struct dirent *e; st == MS_OK && (e = readdir(dir));)
    if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) st = ms_remove_at(fd, e->d_name, path);
  closedir(dir);
  if (st == MS_OK && unlinkat(parent, name, AT_REMOVEDIR))
    st = MS_FAIL(MS_EIO, "%s: cannot remove folder: %s", path, strerror(errno));
  return st;
}

ms_status ms_dir_remove(const char *path) {
  MS_REQUIRE(path, "folder remove: no path");
  return ms_remove_at(AT_FDCWD, path, path);
}

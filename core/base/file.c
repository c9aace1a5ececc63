/* file.c - whole files and folders. */
#include "file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "log.h"
#include "memory.h"

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
  MS_TRY_OR(end, ms_alloc((size_t)info.st_size + 1, path, &p));
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

/* ---- what killed processes left ---- */

/* After ".PID" of a process that is gone; NULL where that is not what stands there. */
static const char *skip_dead(const char *s) {
  char *end;
  if (s[0] != '.' || s[1] < '1' || s[1] > '9') return NULL;
  errno = 0;
  long pid = strtol(s + 1, &end, 10);
  if (errno || pid > INT_MAX || pid == getpid()) return NULL;
  return kill((pid_t)pid, 0) && errno == ESRCH ? end : NULL;
}

/* Whether `s` is what follows the path in the name of a temporary (a checkpoint's is itself the
 * path of a model's: PATH.PID.tmp.PID.tmp), or with `old` of a folder that was replaced. */
static int is_stale(const char *s, int old) {
  do {
    if (!(s = skip_dead(s))) return 0;
    if (old && !strcmp(s, ".old")) return 1;
    if (strncmp(s, ".tmp", 4)) return 0;
    s += 4;
  } while (*s);
  return 1;
}

void ms_stale_remove(const char *path) {
  char parent[PATH_MAX], full[2 * PATH_MAX];
  const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
  size_t n = strlen(base);
  snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
  DIR *dir = n ? opendir(parent) : NULL;
  if (!dir) return;
  for (struct dirent *e; (e = readdir(dir));) {
    if (strncmp(e->d_name, base, n) || !is_stale(e->d_name + n, ms_path_kind(path))) continue;
    snprintf(full, sizeof full, "%s/%s", parent, e->d_name);
    if (ms_dir_remove(full) == MS_OK)
      ms_log(MS_LOG_INFO, "%s: removed, left by a process that was killed", full);
  }
  closedir(dir);
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

static ms_status replace_file(const char *path, const char *tmp, const void *data, int64_t bytes) {
  int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return MS_FAIL(MS_EIO, "%s: cannot create: %s", path, strerror(errno));
  ms_status st = write_all(fd, path, data, bytes);
  if (fsync(fd) && st == MS_OK) st = MS_FAIL(MS_EIO, "%s: fsync: %s", path, strerror(errno));
  if (close(fd) && st == MS_OK) st = MS_FAIL(MS_EIO, "%s: close: %s", path, strerror(errno));
  if (st == MS_OK && rename(tmp, path))
    st = MS_FAIL(MS_EIO, "%s: cannot replace: %s", path, strerror(errno));
  if (st != MS_OK) unlink(tmp);
  return st;
}

ms_status ms_file_write(const char *path, const void *data, int64_t bytes) {
  char *real, *tmp;
  MS_TRY(ms_path_resolve(path, strlen(path), &real));
  ms_status st = check_replaceable(real);
  if (st == MS_OK) st = ms_text_format(&tmp, "%s.%ld.tmp", real, (long)getpid());
  if (st == MS_OK) {
    ms_stale_remove(real);
    st = replace_file(real, tmp, data, bytes);
    ms_text_free(tmp);
  }
  ms_text_free(real);
  return st;
}

ms_status ms_file_hash(const char *path, char **text) {
  enum { CHUNK = 1 << 20 };
  void *buffer = NULL;
  ms_status st = MS_OK;
  XXH3_state_t *state = NULL;
  *text = NULL;
  FILE *f = fopen(path, "rb");
  if (!f) return MS_FAIL(MS_EIO, "%s: cannot open: %s", path, strerror(errno));
  MS_TRY_OR(end, ms_alloc(CHUNK, "file hash", &buffer));
  state = XXH3_createState();
  if (!state) {
    st = MS_FAIL(MS_ENOMEM, "%s: no memory to hash", path);
    goto end;
  }
  XXH3_128bits_reset(state);
  for (size_t n; (n = fread(buffer, 1, CHUNK, f)) > 0;) XXH3_128bits_update(state, buffer, n);
  if (ferror(f)) {
    st = MS_FAIL(MS_EIO, "%s: cannot read: %s", path, strerror(errno));
    goto end;
  }
  XXH128_hash_t h = XXH3_128bits_digest(state);
  st = ms_text_format(text, "%016llx%016llx", (unsigned long long)h.high64,
                      (unsigned long long)h.low64);
end:
  if (state) XXH3_freeState(state);
  ms_free(buffer);
  fclose(f);
  return st;
}

ms_status ms_hash(const void *data, int64_t bytes, char **text) {
  XXH128_hash_t h = XXH3_128bits(data, (size_t)bytes);
  return ms_text_format(text, "%016llx%016llx", (unsigned long long)h.high64,
                        (unsigned long long)h.low64);
}

int ms_path_kind(const char *path) {
  struct stat info;
  if (stat(path, &info)) return 0;
  return S_ISDIR(info.st_mode) ? 2 : 1;
}

ms_status ms_dir_make(const char *path) {
  char *part;
  ms_status st = MS_OK;
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

ms_status ms_dir_list(const char *path, char **text) {
  struct dirent **entry = NULL;
  size_t room = 1;
  *text = NULL;
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

static ms_status remove_at(int parent, const char *name, const char *path) {
  if (!unlinkat(parent, name, 0) || errno == ENOENT) return MS_OK;
  if (errno != EISDIR && errno != EPERM)
    return MS_FAIL(MS_EIO, "%s: cannot remove: %s", path, strerror(errno));
  int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  DIR *dir = fd < 0 ? NULL : fdopendir(fd);
  if (!dir) return MS_FAIL(MS_EIO, "%s: cannot open folder: %s", path, strerror(errno));
  ms_status st = MS_OK;
  for (struct dirent *e; st == MS_OK && (e = readdir(dir));)
    if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) st = remove_at(fd, e->d_name, path);
  closedir(dir);
  if (st == MS_OK && unlinkat(parent, name, AT_REMOVEDIR))
    st = MS_FAIL(MS_EIO, "%s: cannot remove folder: %s", path, strerror(errno));
  return st;
}

ms_status ms_dir_remove(const char *path) { return remove_at(AT_FDCWD, path, path); }

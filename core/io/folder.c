/* folder.c - folders that appear as a whole or not at all. */
#include "folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../base/file.h"
#include "../base/log.h"
#include "../base/memory.h"

/* `path` without the slashes at its end, which would put the temporary inside it. */
static size_t trimmed(const char *path) {
  size_t n = strlen(path);
  while (n > 1 && path[n - 1] == '/') n--;
  return n;
}

/* The folder that holds `path`: "." for a bare name. */
static ms_status parent_of(const char *path, char **out) {
  const char *slash = strrchr(path, '/');
  if (!slash) return ms_text_copy(".", 1, out);
  return ms_text_copy(path, slash == path ? 1 : (size_t)(slash - path), out);
}

ms_status ms_folder_begin(const char *path, ms_folder *out) {
  char *parent = NULL;
  ms_status st;
  memset(out, 0, sizeof *out);
  MS_REQUIRE(path && *path, "folder: no path");
  MS_TRY_OR(fail, ms_path_resolve(path, trimmed(path), &out->path));
  MS_TRY_OR(fail, parent_of(out->path, &parent));
  MS_TRY_OR(fail, ms_dir_make(parent));
  ms_stale_remove(out->path);
  MS_TRY_OR(fail, ms_text_format(&out->tmp, "%s.%ld.tmp", out->path, (long)getpid()));
  int bad = mkdir(out->tmp, 0777);
  if (bad && errno == EEXIST) { /* of a process that had our number and was killed */
    MS_TRY_OR(fail, ms_dir_remove(out->tmp));
    bad = mkdir(out->tmp, 0777);
  }
  if (bad) {
    st = MS_FAIL(MS_EIO, "%s: cannot make folder: %s", out->tmp, strerror(errno));
    goto fail;
  }
  ms_text_free(parent);
  return MS_OK;
fail:
  ms_text_free(parent);
  ms_text_free(out->path);
  ms_text_free(out->tmp);
  memset(out, 0, sizeof *out);
  return st;
}

ms_status ms_folder_file(const ms_folder *folder, const char *name, char **out) {
  return ms_text_format(out, "%s/%s", folder->tmp, name);
}

static ms_status copy_bytes(int from, int to, const char *path) {
  void *buffer;
  enum { CHUNK = 1 << 20 };
  MS_TRY(ms_alloc(CHUNK, "file copy", &buffer));
  ms_status st = MS_OK;
  while (st == MS_OK) {
    ssize_t n = read(from, buffer, CHUNK);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) st = MS_FAIL(MS_EIO, "%s: cannot read: %s", path, strerror(errno));
    if (n <= 0) break;
    for (ssize_t done = 0; done < n && st == MS_OK;) {
      ssize_t k = write(to, (char *)buffer + done, (size_t)(n - done));
      if (k < 0 && errno == EINTR) continue;
      if (k < 0) st = MS_FAIL(MS_EIO, "%s: cannot copy: %s", path, strerror(errno));
      done += k;
    }
  }
  ms_free(buffer);
  return st;
}

ms_status ms_folder_copy(const ms_folder *folder, const char *from, const char *name) {
  char *path;
  ms_status st;
  MS_TRY(ms_folder_file(folder, name, &path));
  int a = open(from, O_RDONLY | O_CLOEXEC);
  int b = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (a < 0 || b < 0)
    st = MS_FAIL(MS_EIO, "%s: cannot copy to %s: %s", from, path, strerror(errno));
  else
    st = copy_bytes(a, b, from);
  if (a >= 0) close(a);
  if (b >= 0 && close(b) && st == MS_OK)
    st = MS_FAIL(MS_EIO, "%s: close: %s", path, strerror(errno));
  ms_text_free(path);
  return st;
}

static ms_status sync_path(const char *path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return MS_FAIL(MS_EIO, "%s: cannot open: %s", path, strerror(errno));
  ms_status st = MS_OK;
  /* EINVAL: a file system that cannot flush folders */
  if (fsync(fd) && errno != EINVAL) st = MS_FAIL(MS_EIO, "%s: fsync: %s", path, strerror(errno));
  close(fd);
  return st;
}

/* Flushes the files of a folder (no folders below), then the folder. */
static ms_status sync_folder(const char *path) {
  char *names, *file;
  MS_TRY(ms_dir_list(path, &names));
  ms_status st = MS_OK;
  for (char *name = names, *end; st == MS_OK && (end = strchr(name, '\n')); name = end + 1) {
    st = ms_text_format(&file, "%s/%.*s", path, (int)(end - name), name);
    if (st != MS_OK) break;
    st = sync_path(file);
    ms_text_free(file);
  }
  ms_text_free(names);
  return st == MS_OK ? sync_path(path) : st;
}

/* Puts `tmp` at `path`; whatever was there is at `old` afterwards, which may be `tmp` itself. */
static ms_status put_in_place(const ms_folder *f, char **old) {
  MS_TRY(ms_text_format(old, "%s.%ld.old", f->path, (long)getpid()));
  if (!ms_path_kind(f->path)) {
    if (!rename(f->tmp, f->path)) return MS_OK;
    return MS_FAIL(MS_EIO, "%s: cannot rename to %s: %s", f->tmp, f->path, strerror(errno));
  }
  if (!renameat2(AT_FDCWD, f->tmp, AT_FDCWD, f->path, RENAME_EXCHANGE)) {
    if (!rename(f->tmp, *old)) return MS_OK;
    return MS_FAIL(MS_EIO, "%s: cannot rename to %s: %s", f->tmp, *old, strerror(errno));
  }
  if (rename(f->path, *old))
    return MS_FAIL(MS_EIO, "%s: cannot rename to %s: %s", f->path, *old, strerror(errno));
  if (!rename(f->tmp, f->path)) return MS_OK;
  ms_status st = MS_FAIL(MS_EIO, "%s: cannot rename to %s: %s", f->tmp, f->path, strerror(errno));
  if (rename(*old, f->path)) return MS_FAIL(MS_EIO, "%s: is now at %s", f->path, *old);
  return st;
}

ms_status ms_folder_commit(ms_folder *folder) {
  char *old = NULL, *parent = NULL;
  ms_status st;
  MS_TRY_OR(end, sync_folder(folder->tmp));
  MS_TRY_OR(end, parent_of(folder->path, &parent));
  MS_TRY_OR(end, put_in_place(folder, &old));
  MS_TRY_OR(end, sync_path(parent));
  ms_log(MS_LOG_INFO, "%s: written", folder->path);
  MS_TRY_OR(end, ms_dir_remove(old));
end:
  ms_text_free(old);
  ms_text_free(parent);
  ms_folder_abort(folder);
  return st;
}

void ms_folder_abort(ms_folder *folder) {
  char message[2048];
  if (folder->tmp) {
    snprintf(message, sizeof message, "%s", ms_last_error());
    if (ms_dir_remove(folder->tmp) != MS_OK) MS_FAIL(MS_EIO, "%s", message); /* the first stays */
  }
  ms_text_free(folder->path);
  ms_text_free(folder->tmp);
  memset(folder, 0, sizeof *folder);
}

/* folder.c - folders that appear as a whole or not at all. */
#include "folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../moonstill.h"
#include "../base/file.h"
#include "../base/log.h"
#include "../base/memory.h"

/* The length of a path without slashes at its end: with them, what is beside it would be in it. */
static size_t trimmed(const char *path) {
  size_t n = strlen(path);
  while (n > 1 && path[n - 1] == '/') n--;
  return n;
}

static ms_status begin(const char *path, ms_folder *out) {
  char *parent;
  MS_TRY(ms_path_resolve(path, trimmed(path), &out->path));
  MS_TRY(ms_path_parent(out->path, &parent));
  ms_status st = ms_dir_make(parent);
  ms_text_free(parent);
  MS_TRY(st);
  MS_TRY(ms_work_begin(out->path, &out->work));
  MS_TRY(ms_work_new(&out->work, &out->tmp));
  if (mkdir(out->tmp, 0777))
    return MS_FAIL(MS_EIO, "%s: cannot make folder: %s", out->tmp, strerror(errno));
  return MS_OK;
}

ms_status ms_folder_begin(const char *path, ms_folder *out) {
  memset(out, 0, sizeof *out);
  MS_REQUIRE(path && *path, "folder: no path");
  ms_status st = begin(path, out);
  if (st != MS_OK) ms_folder_abort(out);
  return st;
}

const char *ms_folder_name(const ms_folder *f) { return strrchr(f->work.folder, '/') + 1; }

static ms_status join(const char *path, const char *name, ms_folder *out) {
  char *parent;
  MS_TRY(ms_path_resolve(path, trimmed(path), &out->path));
  MS_TRY(ms_path_parent(out->path, &parent));
  ms_status st = ms_work_of(parent, name, &out->tmp);
  if (st == MS_OK && ms_path_kind(out->tmp) != 2)
    st =
        MS_FAIL(MS_EIO,
                "%s: the first rank has begun a folder there that this one does not see: all ranks "
                "write a part of what is saved, so it must be on a file system that they share",
                parent);
  ms_text_free(parent);
  return st;
}

ms_status ms_folder_join(const char *path, const char *name, ms_folder *out) {
  memset(out, 0, sizeof *out);
  ms_status st = join(path, name, out);
  if (st != MS_OK) ms_folder_abort(out);
  return st;
}

ms_status ms_folder_file(const ms_folder *folder, const char *name, char **out) {
  return ms_text_format(out, "%s/%s", folder->tmp, name);
}

ms_status ms_folder_put(const ms_folder *folder, const char *name, const char *text) {
  char *path;
  MS_TRY(ms_folder_file(folder, name, &path));
  ms_status st = ms_file_create(path, path, text, (int64_t)strlen(text));
  ms_text_free(path);
  return st;
}

static ms_status copy_bytes(int from, int to, const char *path) {
  void *buffer;
  enum { CHUNK = 1 << 20 };
  MS_TRY(ms_alloc_undefined(CHUNK, "file copy", &buffer));
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
  int b = ms_file_open_new(path);
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

/* Puts `tmp` at `path`. What was there is now at *was in the work folder; NULL for nothing. */
static ms_status put_in_place(const ms_folder *f, const char *old, const char **was) {
  *was = NULL;
  if (ms_path_kind(f->path)) {
    if (!renameat2(AT_FDCWD, f->tmp, AT_FDCWD, f->path, RENAME_EXCHANGE)) {
      *was = f->tmp;
      return MS_OK;
    }
    if (rename(f->path, old))
      return MS_FAIL(MS_EIO, "%s: cannot rename to %s: %s", f->path, old, strerror(errno));
    *was = old;
  }
  if (!rename(f->tmp, f->path)) return MS_OK;
  ms_status st = MS_FAIL(MS_EIO, "%s: cannot rename to %s: %s", f->tmp, f->path, strerror(errno));
  if (*was && rename(old, f->path)) return MS_FAIL(MS_EIO, "%s: is now at %s", f->path, old);
  *was = NULL;
  return st;
}

/* Renames what stands or stood in the folder's place, and is at `at`, to PATH.old. */
static ms_status put_aside(const ms_folder *f, const char *at) {
  char *where;
  ms_log(MS_LOG_WARNING, "what was there is kept: %s", ms_last_error());
  MS_TRY(ms_path_rename_aside(at, f->path, &where));
  ms_log(MS_LOG_WARNING, "%s: what was there is now %s", f->path, where);
  ms_text_free(where);
  return MS_OK;
}

/* What stands in the place is looked at twice: before it is replaced, so that it is still there if
 * the look fails for want of memory; and once it is in the work folder, where nobody else can add
 * to it. */
static ms_status commit(ms_folder *folder, const char *old, ms_folder_is_ours is_ours) {
  char *parent;
  const char *was;
  MS_TRY(sync_folder(folder->tmp));
  MS_TRY(ms_path_parent(folder->path, &parent));
  ms_status st = ms_path_kind(folder->path) ? is_ours(folder->path) : MS_OK;
  if (st != MS_OK && st != MS_ENOMEM) st = put_aside(folder, folder->path);
  if (st == MS_OK) st = put_in_place(folder, old, &was);
  if (st == MS_OK && was && is_ours(was) != MS_OK) {
    st = put_aside(folder, was);
    if (st != MS_OK)
      ms_work_leave(&folder->work); /* it stays there if no other place can be made for it */
  }
  if (st == MS_OK) st = sync_path(parent);
  ms_text_free(parent);
  return st;
}

ms_status ms_folder_commit(ms_folder *folder, ms_folder_is_ours is_ours) {
  char *old;
  ms_status st = ms_work_old(&folder->work, &old);
  if (st == MS_OK) {
    st = commit(folder, old, is_ours);
    ms_text_free(old);
  }
  if (st == MS_OK) ms_log(MS_LOG_INFO, "%s: written", folder->path);
  ms_folder_abort(folder);
  return st;
}

void ms_folder_abort(ms_folder *folder) {
  ms_work_end(&folder->work);
  ms_text_free(folder->path);
  ms_text_free(folder->tmp);
  memset(folder, 0, sizeof *folder);
}

ms_status ms_folder_discard(const char *path) {
  char *gone;
  ms_work work;
  MS_TRY(ms_work_begin(path, &work));
  ms_status st = ms_work_new(&work, &gone);
  if (st == MS_OK) {
    if (rename(path, gone)) st = MS_FAIL(MS_EIO, "%s: cannot remove: %s", path, strerror(errno));
    ms_text_free(gone);
  }
  ms_work_end(&work);
  return st;
}

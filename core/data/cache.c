/* cache.c - folders of files that grow side by side and appear together.
 *
 * A folder is filled in a private one beside its place (core/io/folder.h): killed at any moment, the
 * place holds nothing or a whole folder, and what is left of the private one is removed by the next
 * process that writes there. Several processes may fill one place at once: what they write is equal,
 * and each keeps what it has opened. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "../base/error.h"
#include "../base/file.h"
#include "../base/memory.h"
#include "../io/folder.h"
#include "../moonstill.h"

#define ABOUT "about"
#define FIRST_LINE "moonstill's cache\n"
enum { MAX_FILES = 16, ROOM = 1 << 18 };

typedef struct grown {
  int fd, in; /* for writing, and for reading what was written, also once its name is gone */
  int64_t bytes, written; /* added; of those in the file, which may have more after a failure */
  char *buffer;           /* ROOM bytes, of which bytes - written are waiting */
  XXH3_state_t *hash;
} grown;

struct ms_cache {
  ms_folder folder;
  int files;
  grown file[MAX_FILES];
};

static ms_status check_file(const ms_cache *c, int32_t file, const char *what) {
  MS_REQUIRE(c && file >= 0 && file < c->files, "cache: %s file %d of %d", what, file,
             c ? c->files : 0);
  return MS_OK;
}

/* ---- filling ---- */

static ms_status open_file(ms_cache *c, int i) {
  char *path, name[16];
  void *p;
  grown *g = &c->file[i];
  snprintf(name, sizeof name, "%d", i);
  MS_TRY(ms_alloc_undefined(ROOM, "cache", &p));
  g->buffer = p;
  g->hash = XXH3_createState();
  if (!g->hash) return MS_FAIL(MS_ENOMEM, "cache: no memory to hash");
  XXH3_128bits_reset(g->hash);
  MS_TRY(ms_folder_file(&c->folder, name, &path));
  int fd = ms_file_open_new(path);
  ms_status st = fd < 0 ? MS_FAIL(MS_EIO, "%s: cannot create: %s", path, strerror(errno)) : MS_OK;
  if (st == MS_OK) {
    g->fd = fd;
    g->in = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (g->in < 0) st = MS_FAIL(MS_EIO, "%s: cannot open: %s", path, strerror(errno));
  }
  ms_text_free(path);
  return st;
}

ms_status ms_cache_begin(const char *path, int32_t files, ms_cache **out) {
  void *p;
  *out = NULL;
  MS_REQUIRE(path && *path && files > 0 && files <= MAX_FILES, "cache: %d files in %s", files,
             path ? path : "no folder");
  MS_TRY(ms_alloc(sizeof(ms_cache), "cache", &p));
  ms_cache *c = p;
  c->files = files;
  for (int i = 0; i < files; i++) c->file[i].fd = c->file[i].in = -1;
  ms_status st = ms_folder_begin(path, &c->folder);
  for (int i = 0; i < files && st == MS_OK; i++) st = open_file(c, i);
  if (st == MS_OK)
    *out = c;
  else
    ms_cache_abort(c);
  return st;
}

/* Writes what waits. After a failure that waits which is not written. */
static ms_status flush(grown *g, const char *path) {
  int64_t waiting = g->bytes - g->written, done = 0;
  ms_status st = MS_OK;
  while (done < waiting && st == MS_OK) {
    ssize_t n = write(g->fd, g->buffer + done, (size_t)(waiting - done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      st = MS_FAIL(MS_EIO, "%s: cannot write: %s", path, strerror(errno));
    else
      done += n;
  }
  g->written += done;
  memmove(g->buffer, g->buffer + done, (size_t)(waiting - done));
  return st;
}

ms_status ms_cache_add(ms_cache *c, int32_t file, const void *data, int64_t bytes) {
  MS_TRY(check_file(c, file, "add to"));
  MS_REQUIRE(bytes >= 0 && (data || !bytes), "cache: %lld bytes", (long long)bytes);
  grown *g = &c->file[file];
  const char *from = data;
  for (int64_t left = bytes; left > 0;) {
    int64_t room = ROOM - (g->bytes - g->written), n = left < room ? left : room;
    if (!n) {
      MS_TRY(flush(g, c->folder.path));
      continue;
    }
    memcpy(g->buffer + (g->bytes - g->written), from, (size_t)n);
    g->bytes += n;
    from += n;
    left -= n;
  }
  XXH3_128bits_update(g->hash, data, (size_t)bytes);
  return MS_OK;
}

static ms_status read_back(const grown *g, char *to, int64_t bytes) {
  for (int64_t done = 0; done < bytes;) {
    ssize_t n = pread(g->in, to + done, (size_t)(bytes - done), (off_t)done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return MS_FAIL(MS_EIO, "cache: cannot read byte %lld of %lld: %s", (long long)done,
                     (long long)bytes, n ? strerror(errno) : "the file is shorter");
    done += n;
  }
  return MS_OK;
}

ms_status ms_cache_read(const ms_cache *c, int32_t file, void *to, int64_t bytes) {
  MS_TRY(check_file(c, file, "read"));
  const grown *g = &c->file[file];
  MS_REQUIRE(bytes >= 0 && bytes <= g->bytes && (to || !bytes), "cache: %lld bytes of %lld",
             (long long)bytes, (long long)g->bytes);
  int64_t stored = bytes < g->written ? bytes : g->written;
  MS_TRY(read_back(g, to, stored));
  if (bytes > stored) memcpy((char *)to + stored, g->buffer, (size_t)(bytes - stored));
  return MS_OK;
}

ms_status ms_cache_hash(const ms_cache *c, int32_t file, char **text) {
  *text = NULL;
  MS_TRY(check_file(c, file, "hash"));
  XXH128_hash_t h = XXH3_128bits_digest(c->file[file].hash);
  return ms_text_format(text, "%016llx%016llx", (unsigned long long)h.high64,
                        (unsigned long long)h.low64);
}

/* ---- whole folders ---- */

/* MS_OK for a folder that `commit` made and in which nothing else has been put. */
static ms_status is_ours(const char *path) {
  char *names, *about, head[sizeof FIRST_LINE] = "";
  MS_TRY(ms_dir_list(path, &names));
  ms_status st = MS_OK;
  for (char *name = names, *end; (end = strchr(name, '\n')) && st == MS_OK; name = end + 1) {
    *end = 0;
    int digits = strlen(name) < 3 && strspn(name, "0123456789") == strlen(name);
    if (!digits && strcmp(name, ABOUT))
      st = MS_FAIL(MS_EIO, "%s: holds %s, which no cache has", path, name);
  }
  ms_text_free(names);
  MS_TRY(st);
  MS_TRY(ms_text_format(&about, "%s/" ABOUT, path));
  int fd = open(about, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  ssize_t n = fd < 0 ? -1 : read(fd, head, strlen(FIRST_LINE));
  if (n != (ssize_t)strlen(FIRST_LINE) || memcmp(head, FIRST_LINE, (size_t)n))
    st = MS_FAIL(MS_EIO, "%s: is no cache", path);
  if (fd >= 0) close(fd);
  ms_text_free(about);
  return st;
}

ms_status ms_cache_commit(ms_cache *c, const char *about) {
  char *text;
  MS_REQUIRE(c && about, "cache: nothing to commit");
  for (int i = 0; i < c->files; i++) MS_TRY(flush(&c->file[i], c->folder.path));
  MS_TRY(ms_text_format(&text, FIRST_LINE "%s", about));
  ms_status st = ms_folder_put(&c->folder, ABOUT, text);
  ms_text_free(text);
  return st == MS_OK ? ms_folder_commit(&c->folder, is_ours) : st;
}

ms_status ms_cache_about(const char *path, char **text) {
  char *file, *all;
  size_t bytes;
  enum { MOST = 1 << 26 };
  *text = NULL;
  MS_REQUIRE(path, "cache: no path");
  MS_TRY(ms_text_format(&file, "%s/" ABOUT, path));
  ms_status st = ms_file_read(file, MOST, &all, &bytes);
  ms_text_free(file);
  MS_TRY(st);
  size_t n = strlen(FIRST_LINE);
  if (bytes < n || memcmp(all, FIRST_LINE, n) || strlen(all) != bytes)
    st = MS_FAIL(MS_EIO, "%s: is no cache", path);
  else
    st = ms_text_copy(all + n, bytes - n, text);
  ms_free(all);
  return st;
}

void ms_cache_abort(ms_cache *c) {
  if (!c) return;
  for (int i = 0; i < c->files; i++) {
    if (c->file[i].fd >= 0) close(c->file[i].fd);
    if (c->file[i].in >= 0) close(c->file[i].in);
    if (c->file[i].hash) XXH3_freeState(c->file[i].hash);
    ms_free(c->file[i].buffer);
  }
  ms_folder_abort(&c->folder);
  ms_free(c);
}

ms_status ms_cache_remove(const char *path) {
  MS_REQUIRE(path, "cache: no path");
  MS_TRY(is_ours(path));
  return ms_folder_discard(path);
}

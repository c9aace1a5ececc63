/* stream.c - files read from their beginning to their end: plain, or decompressed on the way.
 *
 * What a file is compressed with is told by its first bytes, whatever its name. A gzip file is one or
 * more members, a zstd file one or more frames, which follow each other without anything between;
 * zeros behind the last member are padding, as tapes have it. Memory is one buffer and what the
 * library needs, which zstd's own limit on windows (128 MiB) bounds. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "../base/memory.h"
#include "../moonstill.h"

enum { ROOM = 1 << 17 };
typedef enum stream_kind { PLAIN, GZIP, ZSTD } stream_kind;

struct ms_stream {
  char *path;
  int fd;
  stream_kind kind;
  unsigned char *in; /* what was read of the file: in[at .. have) is still to be taken */
  size_t at, have;
  int64_t taken;     /* bytes of the file before in[0] */
  int ended, inside; /* the file is; in the middle of a member or a frame */
  int opened;        /* the library's state is there */
  z_stream gzip;
  ZSTD_DStream *zstd;
};

static ms_status fill(ms_stream *s) {
  ssize_t n;
  if (s->ended || s->at < s->have) return MS_OK;
  s->taken += (int64_t)s->have;
  s->at = s->have = 0;
  do n = read(s->fd, s->in, ROOM);
  while (n < 0 && errno == EINTR);
  if (n < 0) return MS_FAIL(MS_EIO, "%s: cannot read: %s", s->path, strerror(errno));
  s->have = (size_t)n;
  s->ended = n == 0;
  return MS_OK;
}

/* ---- what it is compressed with ---- */

/* The first bytes may come one by one, as those of a pipe do. */
static ms_status read_magic(ms_stream *s) {
  while (s->have < 4) {
    ssize_t n = read(s->fd, s->in + s->have, ROOM - s->have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return MS_FAIL(MS_EIO, "%s: cannot read: %s", s->path, strerror(errno));
    s->have += (size_t)n;
    if (!n) {
      s->ended = 1;
      break;
    }
  }
  return MS_OK;
}

static stream_kind kind_of(const unsigned char *in, size_t have) {
  if (have >= 2 && in[0] == 0x1f && in[1] == 0x8b) return GZIP;
  if (have < 4) return PLAIN;
  if (!memcmp(in, "\x28\xb5\x2f\xfd", 4)) return ZSTD;
  /* a frame to be skipped, which may be the first */
  return (in[0] & 0xf0) == 0x50 && !memcmp(in + 1, "\x2a\x4d\x18", 3) ? ZSTD : PLAIN;
}

static void *take_memory(void *unused, unsigned count, unsigned size) {
  void *p;
  return ms_alloc_undefined((size_t)count * size, "gzip", &p) == MS_OK ? p : NULL;
}

static void give_memory(void *unused, void *p) { ms_free(p); }

static ms_status open_library(ms_stream *s) {
  if (s->kind == GZIP) {
    s->gzip.zalloc = take_memory;
    s->gzip.zfree = give_memory;
    s->opened = inflateInit2(&s->gzip, 15 + 16) == Z_OK;
  } else if (s->kind == ZSTD) {
    s->zstd = ZSTD_createDStream();
    s->opened = s->zstd && !ZSTD_isError(ZSTD_initDStream(s->zstd));
  }
  if (s->kind == PLAIN || s->opened) return MS_OK;
  return MS_FAIL(MS_ENOMEM, "%s: no memory to decompress it", s->path);
}

ms_status ms_stream_open(const char *path, ms_stream **out) {
  void *p;
  *out = NULL;
  MS_REQUIRE(path, "stream: no path");
  MS_TRY(ms_alloc(sizeof(ms_stream), "stream", &p));
  ms_stream *s = p;
  ms_status st;
  s->fd = -1;
  MS_TRY_OR(fail, ms_text_copy(path, strlen(path), &s->path));
  MS_TRY_OR(fail, ms_alloc_undefined(ROOM, "stream", &p));
  s->in = p;
  s->fd = open(path, O_RDONLY | O_CLOEXEC);
  if (s->fd < 0) {
    st = MS_FAIL(MS_EIO, "%s: cannot open: %s", path, strerror(errno));
    goto fail;
  }
  MS_TRY_OR(fail, read_magic(s));
  s->kind = kind_of(s->in, s->have);
  MS_TRY_OR(fail, open_library(s));
  *out = s;
  return MS_OK;
fail:
  ms_stream_close(s);
  return st;
}

void ms_stream_close(ms_stream *s) {
  if (!s) return;
  if (s->kind == GZIP && s->opened) inflateEnd(&s->gzip);
  ZSTD_freeDStream(s->zstd);
  if (s->fd >= 0) close(s->fd);
  ms_free(s->in);
  ms_text_free(s->path);
  ms_free(s);
}

const char *ms_stream_kind(const ms_stream *s) {
  static const char *const names[] = {[PLAIN] = "", [GZIP] = "gzip", [ZSTD] = "zstd"};
  return names[s->kind];
}

/* ---- reading ---- */

static ms_status damaged(const ms_stream *s, const char *why) {
  return MS_FAIL(MS_EIO,
                 "%s: the %s data are damaged before byte %lld: %s: copy or download it again",
                 s->path, ms_stream_kind(s), (long long)(s->taken + (int64_t)s->at), why);
}

static ms_status cut_off(const ms_stream *s) {
  return MS_FAIL(MS_EIO,
                 "%s: ends after %lld bytes in the middle of its %s data: was its download or copy "
                 "cut off?",
                 s->path, (long long)(s->taken + (int64_t)s->have), ms_stream_kind(s));
}

static ms_status read_plain(ms_stream *s, unsigned char *to, size_t bytes, size_t *got) {
  size_t n = s->have - s->at;
  if (n > bytes) n = bytes;
  memcpy(to, s->in + s->at, n);
  s->at += n;
  *got = n;
  return MS_OK;
}

static ms_status read_gzip(ms_stream *s, unsigned char *to, size_t bytes, size_t *got) {
  z_stream *z = &s->gzip;
  *got = 0;
  if (!s->inside) { /* behind a member: padding, or the next one */
    while (s->at < s->have && !s->in[s->at]) s->at++;
    if (s->at == s->have) return MS_OK;
    inflateReset(z);
    s->inside = 1;
  }
  z->next_in = s->in + s->at;
  z->avail_in = (unsigned)(s->have - s->at);
  z->next_out = to;
  z->avail_out = (unsigned)bytes;
  int result = inflate(z, Z_NO_FLUSH);
  s->at = s->have - z->avail_in;
  *got = bytes - z->avail_out;
  if (result == Z_STREAM_END) s->inside = 0;
  if (result == Z_OK || result == Z_STREAM_END || result == Z_BUF_ERROR) return MS_OK;
  if (result == Z_MEM_ERROR) return MS_FAIL(MS_ENOMEM, "%s: no memory to decompress it", s->path);
  return damaged(s, z->msg ? z->msg : "not understood");
}

static ms_status fail_zstd(const ms_stream *s, size_t result) {
  switch (ZSTD_getErrorCode(result)) {
    case ZSTD_error_memory_allocation:
      return MS_FAIL(MS_ENOMEM, "%s: no memory to decompress it", s->path);
    case ZSTD_error_frameParameter_windowTooLarge:
      return MS_FAIL(MS_EIO, "%s: needs a window of more than 128 MiB: compress it without --long",
                     s->path);
    case ZSTD_error_dictionary_wrong:
      return MS_FAIL(MS_EIO, "%s: was compressed with a dictionary: compress it without one",
                     s->path);
    default: return damaged(s, ZSTD_getErrorName(result));
  }
}

static ms_status read_zstd(ms_stream *s, unsigned char *to, size_t bytes, size_t *got) {
  ZSTD_inBuffer in = {s->in, s->have, s->at};
  ZSTD_outBuffer out = {to, bytes, 0};
  *got = 0;
  if (!s->inside && s->at == s->have) return MS_OK;
  size_t result = ZSTD_decompressStream(s->zstd, &out, &in);
  s->at = in.pos;
  *got = out.pos;
  if (ZSTD_isError(result)) return fail_zstd(s, result);
  s->inside = result != 0;
  return MS_OK;
}

ms_status ms_stream_read(ms_stream *s, void *data, int64_t bytes, int64_t *count) {
  static ms_status (*const readers[])(ms_stream *, unsigned char *, size_t, size_t *) = {
      [PLAIN] = read_plain, [GZIP] = read_gzip, [ZSTD] = read_zstd};
  size_t got = 0;
  *count = 0;
  MS_REQUIRE(s && data && bytes > 0 && bytes <= 1 << 30, "stream: %lld bytes to read",
             (long long)bytes);
  while (!got) {
    size_t before;
    MS_TRY(fill(s));
    before = s->at;
    MS_TRY(readers[s->kind](s, data, (size_t)bytes, &got));
    if (got || s->at != before || !s->ended) continue;
    if (s->inside) return cut_off(s);
    break; /* the end */
  }
  *count = (int64_t)got;
  return MS_OK;
}

/* no_memory.c - memory that ends inside libraries that have no allocator of their own to replace
 * (libyaml, xxHash, zstd, the C library): this program's malloc fails on demand. Each request in turn fails;
 * the call must fail too, or give the same result as if nothing had been. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

#include "core/moonstill.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "tests/support/test.h"

static long fail_in; /* 0: never */
static int failed;

/* A sanitizer has a malloc of its own; there, what asks our memory is all that can fail. */
#if defined(__SANITIZE_ADDRESS__)
#define LEAST(n) 0
#else
#define LEAST(n) n
static int must_fail(void) {
  if (!fail_in || --fail_in) return 0;
  failed = 1;
  errno = ENOMEM;
  return 1;
}
#pragma GCC visibility push(default) /* for the libraries to find */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);
void *malloc(size_t bytes) { return must_fail() ? NULL : __libc_malloc(bytes); }
void *calloc(size_t n, size_t bytes) { return must_fail() ? NULL : __libc_calloc(n, bytes); }
void *realloc(void *p, size_t bytes) { return must_fail() ? NULL : __libc_realloc(p, bytes); }
#pragma GCC visibility pop
#endif

static char folder[] = "/tmp/moonstill-test.XXXXXX", path[64], compressed[64], yaml[4096];

/* Sums up what there is to compare. */
static ms_status read_yaml(uint64_t *sum) {
  ms_doc *doc;
  int64_t count;
  ms_status st = ms_doc_parse_yaml("yaml", yaml, (int64_t)strlen(yaml), &doc);
  if (st != MS_OK) return st;
  const ms_node *n = ms_doc_nodes(doc, &count);
  for (int64_t i = 0; i < count; i++) {
    *sum = *sum * 31 + (uint64_t)n[i].kind * 7 + (uint64_t)n[i].count;
    for (int64_t k = 0; k < n[i].bytes; k++) *sum = *sum * 31 + (unsigned char)n[i].text[k];
  }
  ms_doc_free(doc);
  return MS_OK;
}

static ms_status add_text(ms_status st, char *text, uint64_t *sum) {
  for (const char *c = st == MS_OK ? text : ""; *c; c++) *sum = *sum * 31 + (unsigned char)*c;
  ms_text_free(text);
  return st;
}

static ms_status read_json(uint64_t *sum) {
  static const char text[] =
      "{\"a long key of an object\": [1, 2.5, \"and a long value, longer than"
      " the reader's first buffer\", {\"b\": null}]}";
  ms_doc *doc;
  int64_t count;
  ms_status st = ms_doc_parse_json("json", text, (int64_t)strlen(text), &doc);
  if (st != MS_OK) return st;
  const ms_node *n = ms_doc_nodes(doc, &count);
  for (int64_t i = 0; i < count; i++) *sum = *sum * 31 + (uint64_t)n[i].bytes;
  ms_doc_free(doc);
  return MS_OK;
}

static ms_status hash_file(uint64_t *sum) {
  char *text = NULL;
  ms_status st = ms_file_hash(path, &text);
  return add_text(st, text, sum);
}

static ms_status list(uint64_t *sum) {
  char *text = NULL;
  ms_status st = ms_dir_list(folder, &text);
  return add_text(st, text, sum);
}

static ms_status write_file(uint64_t *sum) { return ms_file_write(path, "1234", 4); }

static ms_status read_zstd(uint64_t *sum) {
  char piece[64];
  int64_t n = 1;
  ms_stream *s;
  ms_status st = ms_stream_open(compressed, &s);
  if (st != MS_OK) return st;
  while (st == MS_OK && n) {
    st = ms_stream_read(s, piece, sizeof piece, &n);
    for (int64_t i = 0; i < n; i++) *sum = *sum * 31 + (unsigned char)piece[i];
  }
  ms_stream_close(s);
  return st;
}

static void walk(const char *name, long least, ms_status (*call)(uint64_t *)) {
  TEST(name);
  uint64_t want = 0;
  CHECK(call(&want) == MS_OK);
  for (long n = 1; n < 100000; n++) {
    uint64_t sum = 0;
    int64_t live = ms_test_live();
    failed = 0;
    fail_in = n;
    ms_status st = call(&sum);
    fail_in = 0;
    CHECK(ms_test_live() == live);
    if (st == MS_OK) CHECK(sum == want);
    if (st != MS_OK) CHECK(st == MS_ENOMEM || strstr(ms_last_error(), strerror(ENOMEM)));
    if (failed) continue;
    CHECK(n > least);
    return;
  }
  CHECK(!"an end");
}

int main(void) {
  for (int i = 0; i < 40;
       i++) /* tokens, states, anchors and texts beyond the first room for them */
    sprintf(yaml + strlen(yaml), "%*s%c%d: &x%d [1, {b: 'a long text, %d'}, *x%d, \"\\u00e9\"]\n",
            0, "", 'a' + i % 26, i, i, i, i ? i - 1 : 0);
  memcpy(strstr(yaml, "*x0"), "123", 3);
  if (!mkdtemp(folder)) return 1;
  snprintf(path, sizeof path, "%s/f", folder);
  ms_file_write(path, "1234", 4);
  snprintf(compressed, sizeof compressed, "%s/f.zst", folder);
  char frame[4096];
  size_t bytes = ZSTD_compress(frame, sizeof frame, yaml, strlen(yaml), 3);
  ms_file_write(compressed, frame, (int64_t)bytes);
  walk("YAML without memory", LEAST(100), read_yaml);
  walk("JSON without memory", LEAST(10), read_json);
  walk("a hash without memory", LEAST(1), hash_file);
  walk("a list without memory", LEAST(2), list);
  walk("a file written without memory", LEAST(0), write_file);
  walk("zstd without memory", LEAST(2), read_zstd);
  ms_dir_remove(folder);
  return test_end();
}

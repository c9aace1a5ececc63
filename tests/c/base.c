/* base.c - the base layer's inner promises: memory, errors, whole files, numbers at random. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/moonstill.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/memory.h"
#include "core/base/random.h"
#include "tests/support/test.h"

static int all_zero(const unsigned char *p, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (p[i]) return 0;
  return 1;
}

static void memory(void) {
  void *p, *q;
  int64_t live = ms_test_live();
  TEST("ms_alloc: aligned, zeroed, counted");
  for (size_t n = 0; n < 3000; n += 7) {
    CHECK(ms_alloc(n, "test", &p) == MS_OK && p);
    CHECK((uintptr_t)p % 64 == 0 && all_zero(p, n));
    memset(p, 255, n);
    CHECK(ms_test_live() == live + 1);
    ms_free(p);
  }
  ms_free(NULL);
  CHECK(ms_test_live() == live);

  TEST("what is undefined is not by chance 0 in the debug build");
#ifdef MS_POISON
  for (int kind = 0; kind < 3; kind++) {
    if (kind < 2) CHECK((kind ? ms_scratch : ms_alloc_undefined)(1000, "test", &p) == MS_OK);
    if (kind == 2) CHECK(ms_grow(&p, 0, 1000, "test") == MS_OK);
    for (int i = 0; i < 1000; i++) CHECK(((unsigned char *)p)[i] == 255);
    if (kind == 1)
      p = NULL; /* the thread's */
    else
      ms_free(p);
    if (kind == 0) p = NULL;
  }
#endif

  TEST("ms_grow keeps the content");
  CHECK(ms_alloc(5, "test", &p) == MS_OK);
  memcpy(p, "1234", 5);
  CHECK(ms_grow(&p, 5, 100000, "test") == MS_OK && !strcmp(p, "1234"));
  ms_free(p);
  p = NULL;
  CHECK(ms_grow(&p, 0, 10, "test") == MS_OK && p);
  ms_free(p);

  TEST("the n-th allocation fails on demand, and only that");
  ms_test_fail_alloc(2);
  CHECK(ms_alloc(10, "first", &p) == MS_OK);
  CHECK(ms_alloc(11, "second", &q) == MS_ENOMEM && !q);
  CHECK(strstr(ms_last_error(), "second") && strstr(ms_last_error(), "11"));
  CHECK(ms_alloc(10, "third", &q) == MS_OK);
  ms_free(p);
  ms_free(q);
  CHECK(ms_test_live() == live);

  TEST("a size that cannot be had is an error");
  CHECK(ms_alloc(SIZE_MAX / 2, "too much", &p) == MS_ENOMEM && !p);
  CHECK(ms_alloc(SIZE_MAX - 5, "far too much", &p) == MS_ENOMEM && !p);
}

static void files(void) {
  char folder[] = "/tmp/moonstill-test.XXXXXX", path[64], *text;
  size_t bytes;
  TEST("files: written as a whole, read with a limit");
  CHECK(mkdtemp(folder) != NULL);
  snprintf(path, sizeof path, "%s/f", folder);
  CHECK(ms_file_read(path, 10, &text, &bytes) == MS_EIO && strstr(ms_last_error(), path));
  CHECK(ms_file_write(path, "a\0b", 3) == MS_OK);
  CHECK(ms_file_read(path, 3, &text, &bytes) == MS_OK && bytes == 3 && !memcmp(text, "a\0b", 4));
  ms_free(text);
  CHECK(ms_file_read(path, 2, &text, &bytes) == MS_EIO && !text);
  CHECK(ms_file_read(folder, 2, &text, &bytes) == MS_EIO && !text);
  CHECK(ms_file_write("/no/such/folder/f", "x", 1) == MS_EIO);
  CHECK(ms_dir_list(folder, &text) == MS_OK && !strcmp(text, "f\n")); /* no temporary left */
  ms_text_free(text);
  CHECK(ms_dir_remove(folder) == MS_OK && ms_path_kind(folder) == 0);
}

static void random_numbers(void) {
  uint32_t word[4];
  float one[64], part[64];
  TEST("Philox4x32-10: the published vectors");
  ms_philox(0, 0, 0, word);
  CHECK(word[0] == 0x6627e8d5 && word[1] == 0xe169c58d && word[2] == 0xbc57ac4c &&
        word[3] == 0x9b00dbd8);
  ms_philox(UINT64_MAX, UINT64_MAX, UINT64_MAX, word);
  CHECK(word[0] == 0x408f276d && word[1] == 0x41c83b0e && word[2] == 0xa20bc7c6 &&
        word[3] == 0x6d5451fd);

  TEST("normals: any part alone equals the whole; moments");
  ms_normal(one, 64, 0, 5, 9);
  for (uint64_t first = 0; first < 60; first++) {
    ms_normal(part, 4, first, 5, 9);
    CHECK(!memcmp(part, one + first, 4 * sizeof *part));
  }
  double sum = 0, squares = 0;
  enum { BLOCKS = 1000 };
  for (int i = 0; i < BLOCKS; i++) {
    ms_normal(one, 64, (uint64_t)i * 64, 1, 2);
    for (int j = 0; j < 64; j++) sum += one[j], squares += one[j] * one[j];
  }
  /* four standard deviations: of the mean 1/sqrt(n), of the mean square sqrt(2/n) */
  CHECK(fabs(sum / (64 * BLOCKS)) < 4 / sqrt(64 * BLOCKS));
  CHECK(fabs(squares / (64 * BLOCKS) - 1) < 4 * sqrt(2.0 / (64 * BLOCKS)));
}

static void json(void) {
  json_t *value;
  char *deep = malloc(10001);
  TEST("JSON: depth, duplicates, rubbish are errors that name the text");
  memset(deep, '[', 10000);
  deep[10000] = 0;
  CHECK(ms_json_parse("deep", deep, 10000, &value) == MS_EIO && !value);
  CHECK(strstr(ms_last_error(), "deep: line 1"));
  CHECK(ms_json_parse("twice", "{\"a\":1,\"a\":2}", 13, &value) == MS_EIO && !value);
  CHECK(ms_json_parse("rest", "1 2", 3, &value) == MS_EIO && !value);
  CHECK(ms_json_parse("none", "", 0, &value) == MS_EIO && !value);
  CHECK(ms_json_parse("fine", "[1]", 3, &value) == MS_OK && value);
  json_decref(value);
  free(deep);
}

int main(void) {
  memory();
  files();
  random_numbers();
  json();
  return test_end();
}

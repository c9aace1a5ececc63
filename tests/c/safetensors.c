/* safetensors.c - the writer and reader as the core uses them: mixed types, scalars, metadata. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/io/safetensors.h"
#include "tests/support/test.h"

static const char path[] = "safetensors-test.tmp", link_path[] = "safetensors-test.link";
static ms_device *dev;

/* A tensor and what it has. */
typedef struct given {
  ms_storing tensor;
  const void *data;
  int held;
} given;

#define GIVEN(name, data, held, dtype, ...) \
  { {name, dtype, __VA_ARGS__, 0}, data, held }

static ms_status put_all(const char *to, int n, const given *list, ms_storing *tensor,
                         const char *key, const char *value) {
  ms_writing *w;
  ms_status st = MS_OK;
  MS_TRY(ms_safetensors_join(to, n, tensor, key, value, &w));
  for (int i = 0; i < n && st == MS_OK; i++) {
    ms_rows all = {.rows = 1, .cols = 1};
    for (int k = 0; k < tensor[i].rank; k++) all.cols *= tensor[i].shape[k];
    all.stride = all.cols;
    st = ms_safetensors_put(w, &tensor[i], &all, dev, list[i].data, list[i].held);
  }
  return ms_safetensors_end(w, st);
}

/* Writes whole tensors. */
static ms_status write_all(const char *to, int n, const given *list, const char *key,
                           const char *value) {
  ms_storing tensor[8];
  for (int i = 0; i < n; i++) tensor[i] = list[i].tensor;
  MS_TRY(ms_safetensors_create(to, n, tensor, key, value));
  ms_status st = put_all(to, n, list, tensor, key, value);
  if (st != MS_OK) unlink(to);
  return st;
}

static const float floats[] = {1, -2, 0.5f};
static const int64_t longs[] = {1, INT64_MIN};
static const uint8_t bytes[] = {1, 2, 3, 4, 5};

static void mixed(void) {
  given list[] = {GIVEN("bytes", bytes, MS_U8, MS_U8, 1, {5}),
                  GIVEN("floats", floats, MS_F32, MS_F32, 2, {3, 1}),
                  GIVEN("half", floats, MS_F32, MS_BF16, 1, {3}),
                  GIVEN("longs", longs, MS_I64, MS_I64, 1, {2}),
                  GIVEN("scalar", floats, MS_F32, MS_F32, 0, {0}),
                  GIVEN("none", floats, MS_F32, MS_F32, 2, {0, 3})};
  ms_safetensors *f;
  TEST("every tensor is aligned to its element, whatever is before it");
  CHECK(write_all(path, 6, list, "key", "value") == MS_OK);
  CHECK(ms_safetensors_open(path, &f) == MS_OK);
  if (!f) return;
  CHECK(f->tensors == 6 && !strcmp(f->tensor[0].name, "longs"));
  for (int i = 0; i < 6; i++) {
    const ms_stored *t = &f->tensor[i];
    CHECK(t->offset % ms_dtype_size(t->dtype) == 0);
    CHECK((size_t)t->count * ms_dtype_size(t->dtype) == t->bytes);
  }
  TEST("what was written is read");
  const ms_stored *t = ms_safetensors_find(f, "longs");
  CHECK(t && t->dtype == MS_I64 && !memcmp(t->data, longs, sizeof longs));
  t = ms_safetensors_find(f, "bytes");
  CHECK(t && t->bytes == 5 && !memcmp(t->data, bytes, 5));
  t = ms_safetensors_find(f, "scalar");
  CHECK(t && t->rank == 0 && t->count == 1);
  float y[3] = {0};
  t = ms_safetensors_find(f, "half");
  CHECK(t && t->dtype == MS_BF16 && ms_safetensors_read(f, t, dev, y, MS_F32) == MS_OK);
  CHECK(!memcmp(y, floats, sizeof y));
  t = ms_safetensors_find(f, "none");
  CHECK(t && t->count == 0 && t->bytes == 0);
  TEST("names are found exactly");
  CHECK(!ms_safetensors_find(f, "") && !ms_safetensors_find(f, "half ") &&
        !ms_safetensors_find(f, "hal") && !ms_safetensors_find(f, "__metadata__"));
  TEST("metadata");
  CHECK(!strcmp(ms_safetensors_metadata(f, "key"), "value"));
  CHECK(!strcmp(ms_safetensors_metadata(f, "format"), "pt"));
  CHECK(!ms_safetensors_metadata(f, "other"));
  TEST("integers are not converted");
  t = ms_safetensors_find(f, "longs");
  CHECK(ms_safetensors_read(f, t, dev, y, MS_F32) == MS_EUNSUPPORTED);
  CHECK(strstr(ms_last_error(), "tensor 'longs' (at byte "));
  ms_safetensors_close(f);
}

static void refused(void) {
  given twice[] = {GIVEN("a", floats, MS_F32, MS_F32, 1, {3}),
                   GIVEN("a", floats, MS_F32, MS_F32, 1, {3})};
  given bad_name[] = {GIVEN("a\xff", floats, MS_F32, MS_F32, 1, {3})};
  given bad_type[] = {GIVEN("a", floats, MS_F32, 9, 1, {3})};
  TEST("nothing is written over, not even through a link");
  CHECK(write_all(path, 1, twice, NULL, NULL) == MS_EIO);
  CHECK(!symlink("no-such-file", link_path));
  CHECK(write_all(link_path, 1, twice, NULL, NULL) == MS_EIO);
  CHECK(!unlink(link_path) && access("no-such-file", F_OK));
  ms_safetensors *f;
  CHECK(ms_safetensors_open(path, &f) == MS_OK && f && f->tensors == 6);
  ms_safetensors_close(f);
  TEST("what cannot be read again is not written");
  unlink(path);
  CHECK(write_all(path, 2, twice, NULL, NULL) == MS_EINVAL);
  CHECK(strstr(ms_last_error(), "'a' given twice"));
  CHECK(write_all(path, 1, bad_name, NULL, NULL) == MS_EINVAL);
  CHECK(write_all(path, 1, bad_type, NULL, NULL) == MS_EINVAL);
  static const float huge[] = {1, 70000};
  given too_large[] = {GIVEN("a", huge, MS_F32, MS_F16, 1, {2})};
  CHECK(write_all(path, 1, too_large, NULL, NULL) == MS_EINVAL);
  CHECK(strstr(ms_last_error(), "f16 cannot hold"));
  CHECK(access(path, F_OK) != 0);
  ms_safetensors_close(NULL);
  CHECK(write_all("no-such-folder/x", 1, twice, NULL, NULL) == MS_EIO);
}

/* More elements than go through the buffer at once, so that the parts must fit together. */
static void large(void) {
  enum { N = (1 << 20) + 77 };
  float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
  ms_safetensors *f;
  TEST("a tensor in parts: converted out and in");
  for (int i = 0; i < N; i++) x[i] = (float)(i % 251); /* exact in bf16 */
  given list[] = {GIVEN("x", x, MS_F32, MS_BF16, 1, {N})};
  CHECK(write_all(path, 1, list, NULL, NULL) == MS_OK);
  CHECK(ms_safetensors_open(path, &f) == MS_OK);
  CHECK(ms_safetensors_read(f, &f->tensor[0], dev, y, MS_F32) == MS_OK);
  CHECK(!memcmp(x, y, N * sizeof *x));
  ms_safetensors_close(f);
  free(x);
  free(y);
}

/* Two processes that put parts of a matrix, as rows and as columns, make the file that one makes. */
static void by_parts(void) {
  enum { ROWS = 7, COLS = 5, CUT = 2 };
  static const char whole[] = "safetensors-test.whole";
  float x[ROWS * COLS], left[ROWS * CUT], right[ROWS * (COLS - CUT)];
  ms_storing t[] = {{"rows", MS_BF16, 2, {ROWS, COLS}, 0}, {"cols", MS_F32, 2, {ROWS, COLS}, 0}};
  ms_writing *a, *b;
  TEST("parts of tensors, put in any order by several, are the file that one writes");
  for (int i = 0; i < ROWS * COLS; i++) {
    int r = i / COLS, c = i % COLS;
    x[i] = (float)i;
    if (c < CUT)
      left[r * CUT + c] = x[i];
    else
      right[r * (COLS - CUT) + c - CUT] = x[i];
  }
  given list[] = {{t[0], x, MS_F32}, {t[1], x, MS_F32}};
  unlink(path);
  unlink(whole);
  CHECK(write_all(whole, 2, list, "key", "value") == MS_OK);
  CHECK(ms_safetensors_create(path, 2, t, "key", "value") == MS_OK);
  CHECK(ms_safetensors_join(path, 2, t, "key", "value", &a) == MS_OK);
  CHECK(ms_safetensors_join(path, 2, t, "key", "value", &b) == MS_OK);
  ms_rows last = {4 * COLS, 1, 3 * COLS, 3 * COLS}, first = {0, 1, 4 * COLS, 4 * COLS};
  CHECK(ms_safetensors_put(b, &t[0], &last, dev, x + 4 * COLS, MS_F32) == MS_OK);
  CHECK(ms_safetensors_put(a, &t[0], &first, dev, x, MS_F32) == MS_OK);
  ms_rows columns = {CUT, ROWS, COLS - CUT, COLS}, others = {0, ROWS, CUT, COLS};
  CHECK(ms_safetensors_put(b, &t[1], &columns, dev, right, MS_F32) == MS_OK);
  CHECK(ms_safetensors_put(a, &t[1], &others, dev, left, MS_F32) == MS_OK);
  CHECK(ms_safetensors_end(b, MS_OK) == MS_OK && ms_safetensors_end(a, MS_OK) == MS_OK);
  CHECK(!system("cmp safetensors-test.tmp safetensors-test.whole"));
  TEST("a file of another size is not taken for the one that was made");
  CHECK(ms_safetensors_join(path, 1, t, "key", "value", &a) == MS_EIO && !a);
  CHECK(strstr(ms_last_error(), "but what is to be written takes"));
  CHECK(ms_safetensors_join("no-such-folder/x", 1, t, NULL, NULL, &a) == MS_EIO && !a);
  unlink(whole);
}

int main(void) {
  if (ms_device_open("cpu", &dev) != MS_OK) return 1;
  mixed();
  refused();
  large();
  by_parts();
  unlink(path);
  TEST("nothing stays behind");
  ms_device_close(dev);
  CHECK(ms_test_live() == 0);
  return test_end();
}

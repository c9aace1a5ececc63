/* safetensors.c - the writer and reader as the core uses them: mixed types, scalars, metadata. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/io/safetensors.h"
#include "tests/support/test.h"

static const char path[] = "safetensors-test.tmp", link_path[] = "safetensors-test.link";
static ms_device *dev;

static const float floats[] = {1, -2, 0.5f};
static const int64_t longs[] = {1, INT64_MIN};
static const uint8_t bytes[] = {1, 2, 3, 4, 5};

static void mixed(void) {
  ms_storing list[] = {{"bytes", dev, bytes, MS_U8, MS_U8, 1, {5}},
                       {"floats", dev, floats, MS_F32, MS_F32, 2, {3, 1}},
                       {"half", dev, floats, MS_F32, MS_BF16, 1, {3}},
                       {"longs", dev, longs, MS_I64, MS_I64, 1, {2}},
                       {"scalar", dev, floats, MS_F32, MS_F32, 0, {0}},
                       {"none", dev, floats, MS_F32, MS_F32, 2, {0, 3}}};
  ms_safetensors *f;
  TEST("every tensor is aligned to its element, whatever is before it");
  CHECK(ms_safetensors_write(path, 6, list, "key", "value") == MS_OK);
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
  ms_storing twice[] = {{"a", dev, floats, MS_F32, MS_F32, 1, {3}},
                        {"a", dev, floats, MS_F32, MS_F32, 1, {3}}};
  ms_storing bad_name[] = {{"a\xff", dev, floats, MS_F32, MS_F32, 1, {3}}};
  ms_storing bad_type[] = {{"a", dev, floats, MS_F32, 9, 1, {3}}};
  TEST("nothing is written over, not even through a link");
  CHECK(ms_safetensors_write(path, 1, twice, NULL, NULL) == MS_EIO);
  CHECK(!symlink("no-such-file", link_path));
  CHECK(ms_safetensors_write(link_path, 1, twice, NULL, NULL) == MS_EIO);
  CHECK(!unlink(link_path) && access("no-such-file", F_OK));
  ms_safetensors *f;
  CHECK(ms_safetensors_open(path, &f) == MS_OK && f && f->tensors == 6);
  ms_safetensors_close(f);
  TEST("what cannot be read again is not written");
  unlink(path);
  CHECK(ms_safetensors_write(path, 2, twice, NULL, NULL) == MS_EINVAL);
  CHECK(strstr(ms_last_error(), "'a' given twice"));
  CHECK(ms_safetensors_write(path, 1, bad_name, NULL, NULL) == MS_EINVAL);
  CHECK(ms_safetensors_write(path, 1, bad_type, NULL, NULL) == MS_EINVAL);
  static const float huge[] = {1, 70000};
  ms_storing too_large[] = {{"a", dev, huge, MS_F32, MS_F16, 1, {2}}};
  CHECK(ms_safetensors_write(path, 1, too_large, NULL, NULL) == MS_EINVAL);
  CHECK(strstr(ms_last_error(), "f16 cannot hold"));
  CHECK(access(path, F_OK) != 0);
  ms_safetensors_close(NULL);
  CHECK(ms_safetensors_write("no-such-folder/x", 1, twice, NULL, NULL) == MS_EIO);
}

/* More elements than go through the buffer at once, so that the parts must fit together. */
static void large(void) {
  enum { N = (1 << 20) + 77 };
  float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
  ms_safetensors *f;
  TEST("a tensor in parts: converted out and in");
  for (int i = 0; i < N; i++) x[i] = (float)(i % 251); /* exact in bf16 */
  ms_storing list[] = {{"x", dev, x, MS_F32, MS_BF16, 1, {N}}};
  CHECK(ms_safetensors_write(path, 1, list, NULL, NULL) == MS_OK);
  CHECK(ms_safetensors_open(path, &f) == MS_OK);
  CHECK(ms_safetensors_read(f, &f->tensor[0], dev, y, MS_F32) == MS_OK);
  CHECK(!memcmp(x, y, N * sizeof *x));
  ms_safetensors_close(f);
  free(x);
  free(y);
}

int main(void) {
  if (ms_device_open("cpu", &dev) != MS_OK) return 1;
  mixed();
  refused();
  large();
  unlink(path);
  TEST("nothing stays behind");
  ms_device_close(dev);
  CHECK(ms_test_live() == 0);
  return test_end();
}

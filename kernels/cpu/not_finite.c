/* not_finite.c - the first NaN or infinity among weights, found while they are read once. */
#include <stdint.h>

#include "cpu.h"

/* Blocks of this many elements are looked at as a whole; the place is looked for in one that has one. */
enum { BLOCK = 1 << 14 };

/* An exponent of all ones is NaN or infinity. */
static int is_bad32(uint32_t bits) { return (bits & 0x7f800000) == 0x7f800000; }
static int is_bad16(uint16_t bits) { return (bits & 0x7f80) == 0x7f80; }

static int64_t first32(const uint32_t *x, int64_t n) {
  int bad = 0;
  for (int64_t i = 0; i < n; i++) bad |= is_bad32(x[i]);
  for (int64_t i = 0; bad && i < n; i++)
    if (is_bad32(x[i])) return i;
  return -1;
}

static int64_t first16(const uint16_t *x, int64_t n) {
  int bad = 0;
  for (int64_t i = 0; i < n; i++) bad |= is_bad16(x[i]);
  for (int64_t i = 0; bad && i < n; i++)
    if (is_bad16(x[i])) return i;
  return -1;
}

ms_status MS_KERNEL(not_finite)(ms_stream *s, int64_t *at, const void *x, int dtype, int64_t n) {
  int64_t first = INT64_MAX;
#pragma omp parallel for schedule(static) reduction(min : first) if (n > MS_SERIAL)
  for (int64_t i = 0; i < n; i += BLOCK) {
    int64_t m = ms_min(BLOCK, n - i);
    int64_t k = dtype == MS_BF16 ? first16((const uint16_t *)x + i, m)
                                 : first32((const uint32_t *)x + i, m);
    if (k >= 0) first = ms_min(first, i + k);
  }
  *at = first == INT64_MAX ? -1 : first;
  return MS_OK;
}

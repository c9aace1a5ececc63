/* linear_few.c - a few rows against a whole weight matrix, as in decoding.
 *
 * The weights are read once, from memory, and that is all the time there is: no packing, bf16
 * widened in registers. A block is OUTS weight rows by up to ROWS rows of x. */
#include "cpu.h"
#include "simd.h"

enum { OUTS = 4, ROWS = 4 };

/* sum[o][r] = x[r] . w[o]; `rows` and `dtype` are constants where this is inlined. */
VF_INLINE void dot_block(float sum[OUTS][ROWS], const float *x, const void *w, int dtype, int rows,
                         int64_t in) {
  vf acc[OUTS][ROWS] = {};
  for (int64_t i = 0; i < in; i += VF_LANES) {
    int64_t n = in - i < VF_LANES ? in - i : VF_LANES;
    vf xs[ROWS];
    for (int r = 0; r < rows; r++)
      xs[r] = n == VF_LANES ? vf_load(x + r * in + i) : vf_load_n(x + r * in + i, n);
    for (int o = 0; o < OUTS; o++) {
      vf v = vf_load_weight(w, dtype, o * in + i, n);
      for (int r = 0; r < rows; r++) acc[o][r] = vf_fma(v, xs[r], acc[o][r]);
    }
  }
  for (int o = 0; o < OUTS; o++)
    for (int r = 0; r < rows; r++) sum[o][r] = vf_sum(acc[o][r]);
}

static void dots(float sum[OUTS][ROWS], const float *x, const void *w, int dtype, int rows,
                 int64_t in) {
#define CASE(R)                             \
  case R:                                   \
    if (dtype == MS_F32)                    \
      dot_block(sum, x, w, MS_F32, R, in);  \
    else                                    \
      dot_block(sum, x, w, MS_BF16, R, in); \
    break;
  switch (rows) { CASE(1) CASE(2) CASE(3) CASE(4) }
#undef CASE
}

/* The same for fewer than OUTS weight rows. */
static void dots_tail(float sum[OUTS][ROWS], const float *x, const void *w, int dtype, int rows,
                      int64_t in, int outs) {
  size_t size = dtype == MS_F32 ? 4 : 2;
  for (int o = 0; o < outs; o++)
    for (int r = 0; r < rows; r++) {
      vf acc = {};
      for (int64_t i = 0; i < in; i += VF_LANES) {
        int64_t n = in - i < VF_LANES ? in - i : VF_LANES;
        vf v = vf_load_weight((const char *)w + (size_t)(o * in) * size, dtype, i, n);
        acc = vf_fma(v, vf_load_n(x + r * in + i, n), acc);
      }
      sum[o][r] = vf_sum(acc);
    }
}

ms_status MS_KERNEL(linear_few)(float *y, const float *x, const void *w, int w_dtype, int64_t rows,
                                int64_t in, int64_t out, int add) {
  size_t size = w_dtype == MS_F32 ? 4 : 2;
#pragma omp parallel for schedule(static) if (in * out > MS_SERIAL)
  for (int64_t o0 = 0; o0 < out; o0 += OUTS)
    for (int64_t r0 = 0; r0 < rows; r0 += ROWS) {
      float sum[OUTS][ROWS];
      int outs = out - o0 < OUTS ? (int)(out - o0) : OUTS;
      int n = rows - r0 < ROWS ? (int)(rows - r0) : ROWS;
      const void *part = (const char *)w + (size_t)(o0 * in) * size;
      if (outs == OUTS)
        dots(sum, x + r0 * in, part, w_dtype, n, in);
      else
        dots_tail(sum, x + r0 * in, part, w_dtype, n, in, outs);
      for (int r = 0; r < n; r++)
        for (int o = 0; o < outs; o++) {
          float *p = y + (r0 + r) * out + o0 + o;
          *p = add ? *p + sum[o][r] : sum[o][r];
        }
    }
  return MS_OK;
}

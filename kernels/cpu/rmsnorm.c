/* rmsnorm.c - root-mean-square norm of rows, forward and backward. */
#include <math.h>
#include <string.h>

#include "../../core/base/memory.h"
#include "cpu.h"
#include "simd.h"

/* sum over c of a[c] b[c] (w[c] + offset), w NULL meaning 1. */
static inline float dot3(const float *a, const float *b, const void *w, int w_dtype, int64_t cols,
                         float offset) {
  vf sum[4] = {};
  int64_t c = 0;
  for (; c + 4 * VF_LANES <= cols; c += 4 * VF_LANES)
    for (int u = 0; u < 4; u++) {
      int64_t i = c + u * VF_LANES;
      vf x = vf_load(a + i);
      if (w) x *= vf_load_weight(w, w_dtype, i, VF_LANES) + offset;
      sum[u] = vf_fma(x, vf_load(b + i), sum[u]);
    }
  for (; c < cols; c += VF_LANES) {
    int64_t n = cols - c < VF_LANES ? cols - c : VF_LANES;
    vf x = vf_load_n(a + c, n);
    if (w) x *= vf_load_weight(w, w_dtype, c, n) + offset;
    sum[0] = vf_fma(x, vf_load_n(b + c, n), sum[0]);
  }
  return vf_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* `sum` of the squares of a whole row, of which `width` is the length. */
static void forward_row(float *y, float *rstd, const float *x, const void *w, int w_dtype,
                        int64_t cols, float eps, float offset, float sum, int64_t width) {
  float scale = 1.0f / sqrtf(sum / (float)width + eps);
  int64_t c = 0;
  for (; c + VF_LANES <= cols; c += VF_LANES)
    vf_store(y + c, vf_load(x + c) * scale * (vf_load_weight(w, w_dtype, c, VF_LANES) + offset));
  if (c < cols)
    vf_store_n(
        y + c,
        vf_load_n(x + c, cols - c) * scale * (vf_load_weight(w, w_dtype, c, cols - c) + offset),
        cols - c);
  if (rstd) *rstd = scale;
}

ms_status MS_KERNEL(rmsnorm)(ms_stream *s, ms_act y, float *rstd, ms_act x, const void *w,
                             int w_dtype, int64_t rows, int64_t cols, float eps, float offset,
                             const ms_norm_part *part) {
  MS_TAKES_F32("rmsnorm", y, x);
#pragma omp parallel for schedule(static) if (rows * cols > MS_SERIAL)
  for (int64_t r = 0; r < rows; r++) {
    const float *row = f32(x) + r * cols;
    float sum = part ? part->sum[r] : dot3(row, row, NULL, MS_F32, cols, 0);
    forward_row(f32(y) + r * cols, rstd ? rstd + r : NULL, row, w, w_dtype, cols, eps, offset, sum,
                part ? part->width : cols);
  }
  return MS_OK;
}

/* With n = x rstd and v = w + offset: dx = rstd (v dy - n mean(v dy n)), dw += dy n, of the columns from
 * `c` up to `end`. */
static void backward_cols(float *dx, float *dw, const float *dy, const float *x, float rstd,
                          float mean, const void *w, int w_dtype, int64_t c, int64_t end,
                          float offset, int add) {
  for (; c < end; c += VF_LANES) {
    int64_t n = end - c < VF_LANES ? end - c : VF_LANES;
    vf g = vf_load_n(dy + c, n), norm = vf_load_n(x + c, n) * rstd;
    vf d = vf_fnma(norm, vf_set(mean), g * (vf_load_weight(w, w_dtype, c, n) + offset)) * rstd;
    if (dw) vf_store_n(dw + c, vf_fma(g, norm, vf_load_n(dw + c, n)), n);
    if (add) d += vf_load_n(dx + c, n);
    vf_store_n(dx + c, d, n);
  }
}

/* dw is summed over blocks of rows, and the blocks' sums in order. */
enum { BLOCK = 64 };

static void add_partials(float *dw, const float *part, int64_t blocks, int64_t cols) {
  for (int64_t b = 0; b < blocks; b++)
    for (int64_t c = 0; c < cols; c++) dw[c] += part[b * cols + c];
}

ms_status MS_KERNEL(rmsnorm_backward)(ms_stream *s, ms_act dx, float *dw, ms_act dy, ms_act x,
                                      const float *rstd, const void *w, int w_dtype, int64_t rows,
                                      int64_t cols, float offset, int add,
                                      const ms_norm_part *part) {
  MS_TAKES_F32("rmsnorm_backward", dx, dy, x);
  int64_t blocks = (rows + BLOCK - 1) / BLOCK, copied = part ? part->copied : 0;
  size_t bytes = (size_t)(blocks * cols) * sizeof(float);
  void *sums = NULL;
  if (dw) {
    MS_TRY(ms_scratch(bytes, "rmsnorm backward", &sums));
    memset(sums, 0, bytes);
  }
#pragma omp parallel for schedule(static) if (rows * cols > MS_SERIAL)
  for (int64_t b = 0; b < blocks; b++) {
    int64_t end = (b + 1) * BLOCK < rows ? (b + 1) * BLOCK : rows;
    for (int64_t r = b * BLOCK; r < end; r++) {
      float *to = f32(dx) + r * cols, *to_dw = dw ? (float *)sums + b * cols : NULL;
      const float *d = f32(dy) + r * cols, *row = f32(x) + r * cols;
      float sum = part ? part->sum[r] : dot3(d, row, w, w_dtype, cols, offset);
      float mean = sum * rstd[r] / (float)(part ? part->width : cols);
      backward_cols(to, to_dw, d, row, rstd[r], 0, w, w_dtype, 0, copied, offset, add);
      backward_cols(to, to_dw, d, row, rstd[r], mean, w, w_dtype, copied, cols, offset, add);
    }
  }
  if (dw) add_partials(dw, sums, blocks, cols);
  return MS_OK;
}

/* The sums that whole rows make for themselves, of columns from `from` on. */
ms_status MS_KERNEL(row_dot)(ms_stream *s, float *sum, ms_act a, ms_act b, const void *w,
                             int w_dtype, int64_t rows, int64_t cols, int64_t from, float offset) {
  MS_TAKES_F32("row_dot", a, b);
  const char *weight = w ? (const char *)w + from * (w_dtype == MS_BF16 ? 2 : 4) : NULL;
#pragma omp parallel for schedule(static) if (rows * cols > MS_SERIAL)
  for (int64_t r = 0; r < rows; r++) {
    int64_t at = r * cols + from;
    sum[r] = dot3(f32(a) + at, f32(b) + at, weight, w_dtype, cols - from, offset);
  }
  return MS_OK;
}

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

static void forward_row(float *y, float *rstd, const float *x, const void *w, int w_dtype,
                        int64_t cols, float eps, float offset) {
  float scale = 1.0f / sqrtf(dot3(x, x, NULL, MS_F32, cols, 0) / (float)cols + eps);
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
                             int w_dtype, int64_t rows, int64_t cols, float eps, float offset) {
  MS_TAKES_F32("rmsnorm", y, x);
#pragma omp parallel for schedule(static) if (rows * cols > MS_SERIAL)
  for (int64_t r = 0; r < rows; r++)
    forward_row(f32(y) + r * cols, rstd ? rstd + r : NULL, f32(x) + r * cols, w, w_dtype, cols, eps,
                offset);
  return MS_OK;
}

/* With n = x rstd and v = w + offset: dx = rstd (v dy - n mean(v dy n)), dw += dy n. */
static void backward_row(float *dx, float *dw, const float *dy, const float *x, float rstd,
                         const void *w, int w_dtype, int64_t cols, float offset, int add) {
  float mean = dot3(dy, x, w, w_dtype, cols, offset) * rstd / (float)cols;
  for (int64_t c = 0; c < cols; c += VF_LANES) {
    int64_t n = cols - c < VF_LANES ? cols - c : VF_LANES;
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
                                      int64_t cols, float offset, int add) {
  MS_TAKES_F32("rmsnorm_backward", dx, dy, x);
  int64_t blocks = (rows + BLOCK - 1) / BLOCK;
  size_t bytes = (size_t)(blocks * cols) * sizeof(float);
  void *part = NULL;
  if (dw) {
    MS_TRY(ms_scratch(bytes, "rmsnorm backward", &part));
    memset(part, 0, bytes);
  }
#pragma omp parallel for schedule(static) if (rows * cols > MS_SERIAL)
  for (int64_t b = 0; b < blocks; b++) {
    int64_t end = (b + 1) * BLOCK < rows ? (b + 1) * BLOCK : rows;
    for (int64_t r = b * BLOCK; r < end; r++)
      backward_row(f32(dx) + r * cols, dw ? (float *)part + b * cols : NULL, f32(dy) + r * cols,
                   f32(x) + r * cols, rstd[r], w, w_dtype, cols, offset, add);
  }
  if (dw) add_partials(dw, part, blocks, cols);
  return MS_OK;
}

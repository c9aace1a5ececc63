/* linear_few.c - a few rows against a whole weight matrix, as in decoding.
 *
 * The weights are read once, from memory, and that is all the time there is: no packing, bf16
 * widened in registers. Forward, a block is as many weight rows as make VF_LANES sums with up to
 * ROWS rows of x; backward, DEEP weight rows by all rows of dy, added to what is in dx. */
#include <omp.h>

#include "cpu.h"
#include "simd.h"

enum { ROWS = 4, DEEP = 4 };

/* Lane o * rows + r is x[r] . w[o], o < outs <= VF_LANES / rows. `rows`, and mostly `outs` and
 * `dtype`, are constants where this is inlined. */
VF_INLINE vf dots(const float *x, const void *w, int dtype, int rows, int64_t outs, int64_t in) {
  vf sum[VF_LANES] = {};
  for (int64_t i = 0; i < in; i += VF_LANES) {
    int64_t n = ms_min(in - i, VF_LANES);
    vf xs[ROWS];
    for (int r = 0; r < rows; r++)
      xs[r] = n == VF_LANES ? vf_load(x + r * in + i) : vf_load_n(x + r * in + i, n);
    for (int o = 0; o < outs; o++) {
      vf v = vf_load_weight(w, dtype, o * in + i, n);
      for (int r = 0; r < rows; r++) sum[o * rows + r] = vf_fma(v, xs[r], sum[o * rows + r]);
    }
  }
  vf_transpose(sum);
  for (int i = 1; i < VF_LANES; i++) sum[0] += sum[i];
  return sum[0];
}

/* y[0.. rows, 0.. outs] from one block. */
static void forward_part(float *y, const float *x, const void *w, int dtype, int64_t rows,
                         int64_t outs, int64_t in, int64_t out, int add) {
  vf sum;
#define DOTS(R, outs) \
  (dtype == MS_F32 ? dots(x, w, MS_F32, R, outs, in) : dots(x, w, MS_BF16, R, outs, in))
#define CASE(R)                                                       \
  case R:                                                             \
    sum = outs == VF_LANES / R      ? DOTS(R, VF_LANES / R)           \
          : outs == VF_LANES / ROWS ? DOTS(R, VF_LANES / ROWS)        \
                                    : dots(x, w, dtype, R, outs, in); \
    break;
  switch (rows) { CASE(1) CASE(2) CASE(3) default : CASE(4) }
#undef CASE
#undef DOTS
  if (rows == 1) {
    vf_store_n(y, add ? vf_load_n(y, outs) + sum : sum, outs);
    return;
  }
  for (int64_t o = 0; o < outs; o++)
    for (int64_t r = 0; r < rows; r++) {
      float value = sum[o * rows + r], *p = y + r * out + o;
      *p = add ? *p + value : value;
    }
}

/* y's columns o0 .. o0+VF_LANES, for all rows; weight rows stay in the cache for the second part. */
static void forward_block(float *y, const float *x, const void *w, int dtype, int64_t rows,
                          int64_t in, int64_t out, int64_t o0, int add) {
  int64_t end = ms_min(o0 + VF_LANES, out), step = VF_LANES / ms_min(rows, ROWS);
  for (int64_t o = o0; o < end; o += step)
    for (int64_t r = 0; r < rows; r += ROWS)
      forward_part(y + r * out + o, x + r * in, vf_weight_at(w, dtype, o * in), dtype,
                   ms_min(rows - r, ROWS), ms_min(end - o, step), in, out, add);
}

/* Even a parallel region of one thread costs as much as the smallest products. */
ms_status MS_KERNEL(linear_few)(float *y, const float *x, const void *w, int w_dtype, int64_t rows,
                                int64_t in, int64_t out, int add) {
  if (in * out <= MS_SERIAL) {
    for (int64_t o = 0; o < out; o += VF_LANES)
      forward_block(y, x, w, w_dtype, rows, in, out, o, add);
    return MS_OK;
  }
#pragma omp parallel for schedule(static)
  for (int64_t o = 0; o < out; o += VF_LANES)
    forward_block(y, x, w, w_dtype, rows, in, out, o, add);
  return MS_OK;
}

/* dx[r, i0.. i1] (+)= sum over DEEP weight rows, or fewer, of dy[r,o] w[o, ..]. `deep` and `dtype`
 * are constants where this is inlined. */
VF_INLINE void add_rows(float *dx, const float *dy, const void *w, int dtype, int deep,
                        int64_t rows, int64_t in, int64_t out, int64_t i0, int64_t i1, int add) {
  for (int64_t i = i0; i < i1; i += 2 * VF_LANES) {
    int64_t n0 = ms_min(i1 - i, VF_LANES), n1 = ms_min(i1 - i - n0, VF_LANES);
    vf v[DEEP][2];
    for (int o = 0; o < deep; o++) {
      __builtin_prefetch(vf_weight_at(w, dtype, (o + deep) * in + i));
      __builtin_prefetch(vf_weight_at(w, dtype, (o + deep) * in + i + VF_LANES));
      v[o][0] = vf_load_weight(w, dtype, o * in + i, n0);
      v[o][1] = n1 ? vf_load_weight(w, dtype, o * in + i + VF_LANES, n1) : vf_set(0);
    }
    for (int64_t r = 0; r < rows; r++) {
      float *p = dx + r * in + i, *q = p + VF_LANES;
      vf a = add ? vf_load_n(p, n0) : vf_set(0), b = add && n1 ? vf_load_n(q, n1) : vf_set(0);
      for (int o = 0; o < deep; o++) {
        vf d = vf_set(dy[r * out + o]);
        a = vf_fma(d, v[o][0], a);
        b = vf_fma(d, v[o][1], b);
      }
      vf_store_n(p, a, n0);
      if (n1) vf_store_n(q, b, n1);
    }
  }
}

/* dx's columns i0.. i1. */
static void backward_columns(float *dx, const float *dy, const void *w, int dtype, int64_t rows,
                             int64_t in, int64_t out, int64_t i0, int64_t i1, int add) {
  int64_t o = 0;
  if (dtype == MS_F32)
    for (; o + DEEP <= out; o += DEEP)
      add_rows(dx, dy + o, (const float *)w + o * in, MS_F32, DEEP, rows, in, out, i0, i1,
               add || o);
  else
    for (; o + DEEP <= out; o += DEEP)
      add_rows(dx, dy + o, (const uint16_t *)w + o * in, MS_BF16, DEEP, rows, in, out, i0, i1,
               add || o);
  for (; o < out; o++)
    add_rows(dx, dy + o, vf_weight_at(w, dtype, o * in), dtype, 1, rows, in, out, i0, i1, add || o);
}

ms_status MS_KERNEL(linear_dx_few)(float *dx, const float *dy, const void *w, int w_dtype,
                                   int64_t rows, int64_t in, int64_t out, int add) {
  if (in * out <= MS_SERIAL) {
    backward_columns(dx, dy, w, w_dtype, rows, in, out, 0, in, add);
    return MS_OK;
  }
#pragma omp parallel
  {
    int64_t unit = 2 * VF_LANES, units = (in + unit - 1) / unit;
    int64_t id = omp_get_thread_num(), threads = omp_get_num_threads();
    backward_columns(dx, dy, w, w_dtype, rows, in, out, units * id / threads * unit,
                     ms_min(in, units * (id + 1) / threads * unit), add);
  }
  return MS_OK;
}

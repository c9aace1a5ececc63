/* linear_few.c - a few rows against a whole weight matrix, as in decoding.
 *
 * The weights are read once, from memory, and that is all the time there is: no packing, bf16
 * widened in registers. Forward, a block is as many weight rows as make VF_LANES sums with up to
 * ROWS rows of x; backward, a tile of dx, HIGH rows by WIDE vectors, is summed in registers over a few
 * weight rows at a time. An element of dx is one sum over the weight rows, in order. */
#include <omp.h>

#include "cpu.h"
#include "simd.h"

enum {
  ROWS = 4,
  HIGH = VF_LANES == 16 ? 4 : 2, /* as many rows as there are registers for */
  WIDE = 4
};
/* Backward, so many weight rows are taken at a time: NEAR of a matrix that is in a cache; FAR of a larger
 * one, whose next FAR rows are prefetched meanwhile. */
enum { NEAR = 64, FAR = 32 };

/* Adds n columns' products of `rows` rows of x and `outs` of w. */
VF_INLINE void add_products(vf *sum, const float *x, const void *w, int dtype, int rows,
                            int64_t outs, int64_t in, int64_t n) {
  vf xs[ROWS];
  for (int r = 0; r < rows; r++) xs[r] = vf_load_weight(x, MS_F32, r * in, n);
#pragma GCC unroll 16
  for (int o = 0; o < VF_LANES / rows; o++)
    if (o < outs) {
      vf v = vf_load_weight(w, dtype, o * in, n);
      for (int r = 0; r < rows; r++) sum[o * rows + r] = vf_fma(v, xs[r], sum[o * rows + r]);
    }
}

/* Lane o * rows + r is x[r] . w[o], o < outs <= VF_LANES / rows. `rows`, and mostly `outs` and
 * `dtype`, are constants where this is inlined. */
VF_INLINE vf dots(const float *x, const void *w, int dtype, int rows, int64_t outs, int64_t in) {
  vf sum[VF_LANES];
  int64_t i = 0;
#pragma GCC unroll 16
  for (int o = 0; o < VF_LANES; o++) sum[o] = vf_set(0);
  for (; i + VF_LANES <= in; i += VF_LANES)
    add_products(sum, x + i, vf_weight_at(w, dtype, i), dtype, rows, outs, in, VF_LANES);
  if (i < in) add_products(sum, x + i, vf_weight_at(w, dtype, i), dtype, rows, outs, in, in - i);
  return vf_sums(sum);
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

/* dx[rows, in] (+)= dy[rows, out] w[out, in], by `deep` weight rows, NEAR or FAR. */
typedef struct backward {
  float *dx;
  const float *dy;
  const void *w;
  int dtype, add;
  int64_t rows, in, out, deep;
} backward;

/* A tile of dx: vector j, of `wide`, has VF_LANES columns, but the last one n. `rows` and `wide` are
 * constants where this is inlined. */
VF_INLINE void load_tile(int rows, int wide, vf sum[HIGH][WIDE], const float *dx, int64_t stride,
                         int64_t n) {
  for (int k = 0; k < rows; k++, dx += stride)
    for (int j = 0; j < wide; j++)
      sum[k][j] = vf_load_weight(dx, MS_F32, j * VF_LANES, j + 1 < wide ? VF_LANES : n);
}

VF_INLINE void store_tile(int rows, int wide, vf sum[HIGH][WIDE], float *dx, int64_t stride,
                          int64_t n) {
  for (int k = 0; k < rows; k++, dx += stride)
    for (int j = 0; j < wide; j++) {
      if (j + 1 < wide || n == VF_LANES)
        vf_store(dx + j * VF_LANES, sum[k][j]);
      else
        vf_store_n(dx + j * VF_LANES, sum[k][j], n);
    }
}

/* The weight rows o.. end for dx's rows r.. r+rows, columns from i on. dtype is a constant, too. */
VF_INLINE void add_tile(const backward *p, int rows, int wide, int dtype, int64_t r, int64_t i,
                        int64_t n, int64_t o, int64_t end) {
  float *dx = p->dx + r * p->in + i;
  const float *dy = p->dy + r * p->out;
  int ahead = r == 0 && p->deep == FAR;
  vf sum[HIGH][WIDE] = {}, v[WIDE];
  if (p->add || o) load_tile(rows, wide, sum, dx, p->in, n);
#pragma GCC unroll 4
  for (; o < end; o++) {
    for (int j = 0; j < wide; j++) {
      int64_t at = o * p->in + i + j * VF_LANES;
      if (ahead) __builtin_prefetch(vf_weight_at(p->w, dtype, at + FAR * p->in));
      v[j] = vf_load_weight(p->w, dtype, at, j + 1 < wide ? VF_LANES : n);
    }
    for (int k = 0; k < rows; k++) {
      vf d = vf_set(dy[k * p->out + o]);
      for (int j = 0; j < wide; j++) sum[k][j] = vf_fma(d, v[j], sum[k][j]);
    }
  }
  store_tile(rows, wide, sum, dx, p->in, n);
}

/* The same for all rows. */
VF_INLINE void add_stripe(const backward *p, int wide, int dtype, int64_t i, int64_t n, int64_t o,
                          int64_t end) {
#define CASE(R) \
  case R: add_tile(p, R, wide, dtype, r, i, n, o, end); break;
  for (int64_t r = 0; r < p->rows; r += HIGH) switch (ms_min(p->rows - r, HIGH)) {
      CASE(1)
      CASE(2)
#if VF_LANES == 16
      CASE(3)
      CASE(4)
#endif
    }
#undef CASE
}

/* dx's columns i0.. i1. */
VF_INLINE void backward_columns(const backward *p, int dtype, int64_t i0, int64_t i1) {
  for (int64_t o = 0; o < p->out; o += p->deep) {
    int64_t i = i0, end = ms_min(o + p->deep, p->out);
    for (; i + WIDE * VF_LANES <= i1; i += WIDE * VF_LANES)
      add_stripe(p, WIDE, dtype, i, VF_LANES, o, end);
    for (; i < i1; i += VF_LANES) add_stripe(p, 1, dtype, i, ms_min(VF_LANES, i1 - i), o, end);
  }
}

static void backward_part(const backward *p, int64_t i0, int64_t i1) {
  if (p->dtype == MS_F32)
    backward_columns(p, MS_F32, i0, i1);
  else
    backward_columns(p, MS_BF16, i0, i1);
}

ms_status MS_KERNEL(linear_dx_few)(float *dx, const float *dy, const void *w, int w_dtype,
                                   int64_t rows, int64_t in, int64_t out, int add) {
  backward p = {dx, dy, w, w_dtype, add, rows, in, out, NEAR};
  if (in * out <= MS_SERIAL) {
    backward_part(&p, 0, in);
    return MS_OK;
  }
  p.deep = FAR;
#pragma omp parallel
  {
    int64_t unit = WIDE * VF_LANES, units = (in + unit - 1) / unit;
    int64_t id = omp_get_thread_num(), threads = omp_get_num_threads();
    backward_part(&p, units * id / threads * unit, ms_min(in, units * (id + 1) / threads * unit));
  }
  return MS_OK;
}

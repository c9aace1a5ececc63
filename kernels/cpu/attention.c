/* attention.c - causal attention over packed segments, with an online softmax. */
#include <math.h>
#include <string.h>

#include "cpu.h"
#include "simd.h"

enum { KEYS = 64, MAX_DIM = 256 };

static inline float dot(const float *a, const float *b, int32_t n) {
  vf sum = {};
  int32_t i = 0;
  for (; i + VF_LANES <= n; i += VF_LANES) sum = vf_fma(vf_load(a + i), vf_load(b + i), sum);
  if (i < n) sum = vf_fma(vf_load_n(a + i, n - i), vf_load_n(b + i, n - i), sum);
  return vf_sum(sum);
}

static inline void add_scaled(float *y, float a, const float *x, int32_t n) {
  int32_t i = 0;
  for (; i + VF_LANES <= n; i += VF_LANES)
    vf_store(y + i, vf_fma(vf_set(a), vf_load(x + i), vf_load(y + i)));
  if (i < n)
    vf_store_n(y + i, vf_fma(vf_set(a), vf_load_n(x + i, n - i), vf_load_n(y + i, n - i)), n - i);
}

/* One query row over `n` keys, `stride` apart; returns the log-sum-exp. */
static float one_row(float *y, const float *q, const float *k, const float *v, int64_t n,
                     int64_t stride, int32_t dim, float scale) {
  float sum[MAX_DIM] = {0}, p[KEYS], top = -INFINITY, total = 0;
  for (int64_t j0 = 0; j0 < n; j0 += KEYS) {
    int m = (int)(n - j0 < KEYS ? n - j0 : KEYS);
    float block_top = top;
    for (int j = 0; j < m; j++) {
      p[j] = scale * dot(q, k + (j0 + j) * stride, dim);
      if (p[j] > block_top) block_top = p[j];
    }
    float shrink = expf(top - block_top);
    for (int32_t c = 0; c < dim; c++) sum[c] *= shrink;
    total *= shrink;
    top = block_top;
    for (int j = 0; j < m; j += VF_LANES) {
      int c = m - j < VF_LANES ? m - j : VF_LANES;
      vf_store_n(p + j, vf_exp(vf_load_n(p + j, c) - top), c);
    }
    for (int j = 0; j < m; j++) {
      total += p[j];
      add_scaled(sum, p[j], v + (j0 + j) * stride, dim);
    }
  }
  for (int32_t c = 0; c < dim; c++) y[c] = sum[c] / total;
  return top + logf(total);
}

static int64_t first_key(int64_t t, int64_t start, int32_t window) {
  return window && t - window + 1 > start ? t - window + 1 : start;
}

ms_status MS_KERNEL(attention)(ms_stream *s, float *y, float *lse, const float *q, const float *k,
                               const float *v, const int32_t *segment_start,
                               const ms_attention_shape *a) {
  int32_t group = a->heads / a->kv_heads, dim = a->head_dim;
  int64_t stride = (int64_t)a->kv_heads * dim;
  for (int64_t g = 0; g < a->segments; g++) {
    int64_t start = segment_start[g], end = segment_start[g + 1];
#pragma omp parallel for schedule(dynamic, 16) collapse(2)
    for (int32_t h = 0; h < a->heads; h++)
      for (int64_t t = start; t < end; t++) {
        int64_t at = t * a->heads + h, from = first_key(t, start, a->window);
        int64_t key = from * stride + (h / group) * dim;
        float l = one_row(y + at * dim, q + at * dim, k + key, v + key, t + 1 - from, stride, dim,
                          a->scale);
        if (lse) lse[at] = l;
      }
  }
  return MS_OK;
}

typedef struct gradients {
  float *dq, *dk, *dv;
  const float *dy, *y, *lse, *q, *k, *v;
} gradients;

/* One query row: dv_j += p_j dy; ds_j = p_j (dy v_j - dy y); dq += ds_j k_j; dk_j += ds_j q. */
static void backward_row(const gradients *b, int64_t at, int64_t key, int64_t n, int64_t stride,
                         float lse, const ms_attention_shape *a) {
  int32_t dim = a->head_dim;
  const float *dy = b->dy + at * dim, *q = b->q + at * dim;
  float delta = dot(dy, b->y + at * dim, dim), *dq = b->dq + at * dim;
  memset(dq, 0, (size_t)dim * 4);
  for (int64_t j = 0; j < n; j++, key += stride) {
    float p = expf(a->scale * dot(q, b->k + key, dim) - lse);
    float ds = a->scale * p * (dot(dy, b->v + key, dim) - delta);
    add_scaled(b->dv + key, p, dy, dim);
    add_scaled(b->dk + key, ds, q, dim);
    add_scaled(dq, ds, b->k + key, dim);
  }
}

ms_status MS_KERNEL(attention_backward)(ms_stream *s, float *dq, float *dk, float *dv,
                                        const float *dy, const float *y, const float *lse,
                                        const float *q, const float *k, const float *v,
                                        const int32_t *segment_start, const ms_attention_shape *a) {
  gradients b = {dq, dk, dv, dy, y, lse, q, k, v};
  int32_t group = a->heads / a->kv_heads;
  int64_t stride = (int64_t)a->kv_heads * a->head_dim;
  memset(dk, 0, (size_t)(a->tokens * stride) * 4);
  memset(dv, 0, (size_t)(a->tokens * stride) * 4);
#pragma omp parallel for schedule(dynamic) collapse(2)
  for (int64_t g = 0; g < a->segments; g++)
    for (int32_t h = 0; h < a->kv_heads; h++)
      for (int64_t t = segment_start[g]; t < segment_start[g + 1]; t++)
        for (int32_t i = h * group; i < (h + 1) * group; i++) {
          int64_t from = first_key(t, segment_start[g], a->window), at = t * a->heads + i;
          backward_row(&b, at, from * stride + h * a->head_dim, t + 1 - from, stride, lse[at], a);
        }
  return MS_OK;
}

ms_status MS_KERNEL(attention_cached)(ms_stream *s, float *y, const float *q, const float *k,
                                      const float *v, const int32_t *slot, const int32_t *first,
                                      const int32_t *length, int64_t rows, int64_t capacity,
                                      int32_t heads, int32_t kv_heads, int32_t head_dim,
                                      float scale) {
  int32_t group = heads / kv_heads;
  int64_t stride = (int64_t)kv_heads * head_dim;
#pragma omp parallel for schedule(dynamic) collapse(2)
  for (int64_t r = 0; r < rows; r++)
    for (int32_t h = 0; h < heads; h++) {
      int64_t key = (slot[r] * capacity + first[r]) * stride + (h / group) * head_dim;
      int64_t at = (r * heads + h) * head_dim;
      one_row(y + at, q + at, k + key, v + key, length[r], stride, head_dim, scale);
    }
  return MS_OK;
}

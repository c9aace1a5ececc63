/* attention_cached.c - decoding: single queries against a cache of keys and values. */
#include <math.h>

#include "cpu.h"
#include "softmax_math.h"

enum { KEYS = 64 };

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

static void cap_scores(float *p, int n, float cap) {
  for (int j = 0; j < n; j += VF_LANES) {
    int c = n - j < VF_LANES ? n - j : VF_LANES;
    vf slope;
    vf_store_n(p + j, soft_cap(vf_load_n(p + j, c), cap, &slope), c);
  }
}

/* One query row over `n` keys, `stride` apart. A block is summed by itself, so that over long
 * sequences errors grow with the number of blocks and not of keys. */
static void one_row(float *y, const float *q, const float *k, const float *v, int64_t n,
                    int64_t stride, const ms_attention_shape *a) {
  int32_t dim = a->head_dim;
  float sum[MS_MAX_HEAD_DIM] = {0}, p[KEYS], top = -INFINITY, total = 0;
  for (int64_t j0 = 0; j0 < n; j0 += KEYS) {
    int m = (int)(n - j0 < KEYS ? n - j0 : KEYS);
    float block_top = top;
    for (int j = 0; j < m; j++) p[j] = a->scale * dot(q, k + (j0 + j) * stride, dim);
    if (a->soft_cap > 0) cap_scores(p, m, a->soft_cap);
    for (int j = 0; j < m; j++)
      if (p[j] > block_top) block_top = p[j];
    float shrink = expf(top - block_top), part[MS_MAX_HEAD_DIM] = {0}, weight = 0;
    top = block_top;
    for (int j = 0; j < m; j += VF_LANES) {
      int c = m - j < VF_LANES ? m - j : VF_LANES;
      vf_store_n(p + j, vf_exp_weight(vf_load_n(p + j, c) - top), c);
    }
    for (int j = 0; j < m; j++) {
      weight += p[j];
      add_scaled(part, p[j], v + (j0 + j) * stride, dim);
    }
    for (int32_t c = 0; c < dim; c++) sum[c] = sum[c] * shrink + part[c];
    total = total * shrink + weight;
  }
  for (int32_t c = 0; c < dim; c++) y[c] = sum[c] / total;
}

ms_status MS_KERNEL(attention_cached)(ms_stream *s, ms_act y, ms_act q, ms_act k, ms_act v,
                                      const int32_t *slot, const int32_t *first,
                                      const int32_t *length, int64_t capacity,
                                      const ms_attention_shape *a) {
  MS_TAKES_F32("attention_cached", y, q, k, v);
  int64_t stride = (int64_t)a->kv_heads * a->head_dim, keys = 0;
  for (int64_t r = 0; r < a->tokens; r++) keys += length[r];
#pragma omp parallel for schedule(dynamic) \
    collapse(2) if (keys * a->heads * a->head_dim > MS_SERIAL)
  for (int64_t r = 0; r < a->tokens; r++)
    for (int32_t h = 0; h < a->heads; h++) {
      int64_t key = (slot[r] * capacity + first[r]) * stride + ms_kv_head(a, h) * a->head_dim;
      int64_t at = (r * a->heads + h) * a->head_dim;
      one_row(f32(y) + at, f32(q) + at, f32(k) + key, f32(v) + key, length[r], stride, a);
    }
  return MS_OK;
}

/* logsum.h - log-sum-exp of rows of logits, by blocks that stay in the first-level cache.
 *
 * Each block's exponentials are taken relative to the block's own maximum, so one pass over memory
 * gives maxima, sums and the exponentials themselves, and nothing that matters underflows. topk.c
 * and the head_*.c share these functions: equal rows give bitwise equal log-probabilities. */
#ifndef MS_CPU_LOGSUM_H
#define MS_CPU_LOGSUM_H
#include "../head.h"
#include "softmax_math.h"

/* Elements of a block, and how far ahead of it the row is fetched: measured, memory then works while
 * exponentials are made. */
enum { LOGSUM_BLOCK = 1024, LOGSUM_AHEAD = 4096 };

typedef ms_logsum logsum;

static inline logsum logsum_none(void) { return (logsum){-INFINITY, 0}; }

/* exp((z - max) inv_t), in double; 0 for z = -inf, also when max is. */
static inline double exp_above(float z, float max, float inv_t) {
  return z == -INFINITY ? 0 : exp(((double)z - max) * inv_t);
}

static inline void logsum_add(logsum *s, logsum x, float inv_t) {
  if (x.max == -INFINITY) return;
  if (x.max > s->max) {
    s->sum = s->sum * exp_above(s->max, x.max, inv_t) + x.sum;
    s->max = x.max;
  } else {
    s->sum += x.sum * exp_above(x.max, s->max, inv_t);
  }
}

/* Adds what other ids have: a sum that is not a number stays one, also where its part has no
 * largest number. */
static inline void logsum_join(logsum *s, logsum x, float inv_t) {
  logsum_add(s, x, inv_t);
  if (isnan(x.sum)) s->sum = NAN;
}

static inline double logsum_log(logsum s) { return log(s.sum); }

/* The log-probability of what has a finite logit: division by a small T must not make it -inf, which
 * means "not there". */
#define LOG_LEAST (-1e30f)
static inline float log_finite(double x) { return x < LOG_LEAST ? LOG_LEAST : (float)x; }

/* (z - max) inv_t - log sum, rounded to float once. */
static inline float logsum_logp(logsum s, double log_sum, float z, float inv_t) {
  return z == -INFINITY ? z : log_finite(((double)z - s.max) * inv_t - log_sum);
}

static inline float block_max(const float *z, int64_t n) {
  const float *end = z + n / VF_LANES * VF_LANES;
  vf a = vf_set(-INFINITY), b = a, c = a, d = a;
  for (; z + 4 * VF_LANES <= end; z += 4 * VF_LANES) {
    a = vf_max(vf_load(z), a);
    b = vf_max(vf_load(z + VF_LANES), b);
    c = vf_max(vf_load(z + 2 * VF_LANES), c);
    d = vf_max(vf_load(z + 3 * VF_LANES), d);
  }
  for (; z < end; z += VF_LANES) a = vf_max(vf_load(z), a);
  if (n % VF_LANES) b = vf_max(vf_load_fill(z, n % VF_LANES, -INFINITY), b);
  return vf_hmax(vf_max(vf_max(a, b), vf_max(c, d)));
}

/* The first index of `value` in a block that holds it. */
static inline int64_t block_find(const float *z, int64_t n, float value) {
  int64_t i = 0;
  while (i + 1 < n && z[i] != value) i++;
  return i;
}

/* sum of exp((z - max) inv_t); the terms go to `e` (NULL: not wanted), which may be z. */
static inline __attribute__((always_inline)) float block_exp_to(float *e, const float *z, int64_t n,
                                                                float max, float inv_t) {
  vf m = vf_set(max == -INFINITY ? 0.0f : max), a = vf_zero(), b = a;
  vf t = vf_set(inv_t * 1.44269504088896341f);
  int64_t i = 0;
  for (; i + 2 * VF_LANES <= n; i += 2 * VF_LANES) {
    vf x = exp2_negative((vf_load(z + i) - m) * t);
    vf y = exp2_negative((vf_load(z + i + VF_LANES) - m) * t);
    __builtin_prefetch(z + i + LOGSUM_AHEAD, 0, 3);
    __builtin_prefetch(z + i + LOGSUM_AHEAD + 16, 0, 3);
    a = a + x;
    b = b + y;
    if (e) vf_store(e + i, x), vf_store(e + i + VF_LANES, y);
  }
  for (; i < n; i += VF_LANES) {
    int64_t rest = n - i < VF_LANES ? n - i : VF_LANES;
    vf x = exp2_negative((vf_load_fill(z + i, rest, -INFINITY) - m) * t);
    a = a + x;
    if (e) vf_store_part(e + i, x, rest);
  }
  return vf_sum(a + b);
}

static inline float block_exp(float *e, const float *z, int64_t n, float max, float inv_t) {
  return e ? block_exp_to(e, z, n, max, inv_t) : block_exp_to(NULL, z, n, max, inv_t);
}

/* The sum over a list of such sums, in order; sum NULL: all 1. scale (NULL: not wanted) gets each
 * one's exp((max - the largest max) inv_t). */
static inline logsum logsum_list(float *scale, const float *max, const float *sum, int64_t n,
                                 float inv_t) {
  logsum all = {block_max(max, n), 0};
  vf m = vf_set(all.max == -INFINITY ? 0.0f : all.max);
  for (int64_t i = 0; i < n; i += VF_LANES) {
    vf e = exp_negative((vf_load_fill(max + i, n - i, -INFINITY) - m) * vf_set(inv_t));
    if (scale) vf_store_part(scale + i, e, n - i);
    float part[VF_LANES]; /* added in double: 1 + 1e-10 must not be 1 */
    vf_store(part, sum ? e * vf_load_fill(sum + i, n - i, 0) : e);
    for (int w = 0; w < VF_LANES; w++) all.sum += part[w];
  }
  return all;
}

/* The logits of a row after the head's scale and soft cap; the derivative of the cap goes to
 * `slope` (NULL: not wanted). */
static inline void cap_row(float *z, float *slope, int64_t n, float scale, float cap) {
  if (scale == 1 && cap == 0) return;
  for (int64_t i = 0; i < n; i += VF_LANES) {
    int64_t part = n - i < VF_LANES ? n - i : VF_LANES;
    vf x = vf_load_fill(z + i, part, 0) * vf_set(scale);
    if (cap > 0) {
      vf steep;
      x = soft_cap(x, cap, &steep);
      if (slope) vf_store_part(slope + i, steep, part);
    }
    vf_store_part(z + i, x, part);
  }
}

#endif

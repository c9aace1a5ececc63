/* topk.c - the k largest logits of each row with their log-probabilities and the leftover's. */
#include "../head.h"

#include <omp.h>

#include "../../core/base/memory.h"
#include "cpu.h"
#include "logsum.h"

/* A heap of the best k ids, the worst of them first: a smaller value, or the same with a larger
 * id, is worse. */
static inline int worse(const float *z, int32_t a, int32_t b) {
  return z[a] < z[b] || (z[a] == z[b] && a > b);
}

static void sift(const float *z, int32_t *heap, int64_t n, int64_t i) {
  for (int64_t c; (c = 2 * i + 1) < n; i = c) {
    if (c + 1 < n && worse(z, heap[c + 1], heap[c])) c++;
    if (!worse(z, heap[c], heap[i])) return;
    int32_t t = heap[i];
    heap[i] = heap[c];
    heap[c] = t;
  }
}

/* Sorts a heap, best first. */
static void heap_sort(const float *z, int32_t *heap, int64_t n) {
  while (--n > 0) {
    int32_t t = heap[0];
    heap[0] = heap[n];
    heap[n] = t;
    sift(z, heap, n, 0);
  }
}

/* Ids come in ascending order, so an equal value never displaces: ties go to the lower id. */
static void select_block(const float *z, int64_t from, int64_t to, int32_t *heap, int32_t k) {
  float least = z[heap[0]];
  if (!(block_max(z + from, to - from) > least)) return;
  for (int64_t i = from; i < to; i += VF_LANES) {
    int64_t n = to - i < VF_LANES ? to - i : VF_LANES;
    if (n == VF_LANES && !vi_any(vf_set(least) < vf_load(z + i))) continue;
    for (int64_t j = i; j < i + n; j++) {
      if (!(z[j] > least)) continue;
      heap[0] = (int32_t)j;
      sift(z, heap, k, 0);
      least = z[heap[0]];
    }
  }
}

/* max and sum: scratch, an element for each block. */
static void topk_row(const ms_topk_args *a, int64_t r, float *max, float *sum) {
  float *z = a->logits + r * a->stride, t = a->inv_t;
  int32_t *id = a->id + r * a->k;
  float *lp = a->log_p + r * a->k;
  cap_row(z, NULL, a->vocab, a->scale, a->soft_cap);

  for (int32_t j = 0; j < a->k; j++) id[j] = j;
  for (int64_t i = a->k / 2 - 1; i >= 0; i--) sift(z, id, a->k, i);
  for (int64_t i = a->k; i < a->vocab; i += LOGSUM_BLOCK)
    select_block(z, i, i + LOGSUM_BLOCK < a->vocab ? i + LOGSUM_BLOCK : a->vocab, id, a->k);
  heap_sort(z, id, a->k);

  for (int32_t j = 0; j < a->k; j++) {
    lp[j] = z[id[j]];
    z[id[j]] = -INFINITY;
  }
  int64_t blocks = 0;
  for (int64_t i = 0; i < a->vocab; i += LOGSUM_BLOCK, blocks++) {
    int64_t n = a->vocab - i < LOGSUM_BLOCK ? a->vocab - i : LOGSUM_BLOCK;
    max[blocks] = block_max(z + i, n);
    sum[blocks] = block_exp(NULL, z + i, n, max[blocks], t);
  }
  logsum rest = logsum_list(NULL, max, sum, blocks, t), all = rest;
  logsum_add(&all, logsum_list(NULL, lp, NULL, a->k, t), t);
  double log_sum = logsum_log(all);
  for (int32_t j = 0; j < a->k; j++) lp[j] = logsum_logp(all, log_sum, lp[j], t);
  a->log_rest[r] = rest.max == -INFINITY
                       ? -INFINITY
                       : log_finite(((double)rest.max - all.max) * t + logsum_log(rest) - log_sum);
}

ms_status MS_KERNEL(topk)(ms_stream *s, const ms_topk_args *args) {
  int64_t blocks = (args->vocab + LOGSUM_BLOCK - 1) / LOGSUM_BLOCK;
  void *scratch;
  size_t each = (size_t)(2 * blocks) * sizeof(float);
  MS_TRY(ms_scratch((size_t)omp_get_max_threads() * each, "topk: scratch", &scratch));
#pragma omp parallel for schedule(dynamic, 4)
  for (int64_t r = 0; r < args->rows; r++) {
    float *max = (float *)scratch + 2 * blocks * omp_get_thread_num();
    topk_row(args, r, max, max + blocks);
  }
  return MS_OK;
}

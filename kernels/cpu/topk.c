/* topk.c - the k largest logits of each row with their log-probabilities and the leftover's. */
#include "../head.h"

#include <omp.h>
#include <string.h>

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

/* The row's k best ids, best first. */
static void choose(const ms_topk_args *a, const float *z, int32_t *id, int32_t k) {
  for (int32_t j = 0; j < k; j++) id[j] = j;
  for (int64_t i = k / 2 - 1; i >= 0; i--) sift(z, id, k, i);
  for (int64_t i = k; i < a->vocab; i += LOGSUM_BLOCK)
    select_block(z, i, i + LOGSUM_BLOCK < a->vocab ? i + LOGSUM_BLOCK : a->vocab, id, k);
  heap_sort(z, id, k);
}

/* Over the ids that are left; max and sum: scratch, an element for each block. */
static logsum sum_rest(const ms_topk_args *a, const float *z, float *max, float *sum) {
  int64_t blocks = 0;
  for (int64_t i = 0; i < a->vocab; i += LOGSUM_BLOCK, blocks++) {
    int64_t n = a->vocab - i < LOGSUM_BLOCK ? a->vocab - i : LOGSUM_BLOCK;
    max[blocks] = block_max(z + i, n);
    sum[blocks] = block_exp(NULL, z + i, n, max[blocks], a->inv_t);
  }
  return logsum_list(NULL, max, sum, blocks, a->inv_t);
}

/* lp are logits, and become log-probabilities. */
static void finish_row(const ms_topk_args *a, int64_t r, logsum rest) {
  float *lp = a->log_p + r * a->k, t = a->inv_t;
  logsum all = rest;
  logsum_add(&all, logsum_list(NULL, lp, NULL, a->k, t), t);
  double log_sum = logsum_log(all);
  for (int32_t j = 0; j < a->k; j++) lp[j] = logsum_logp(all, log_sum, lp[j], t);
  a->log_rest[r] = rest.max == -INFINITY
                       ? -INFINITY
                       : log_finite(((double)rest.max - all.max) * t + logsum_log(rest) - log_sum);
}

/* ---- in parts ---- */

static ms_topk_candidate *candidates(const ms_topk_args *a, int32_t part, int64_t r) {
  return a->candidate + (part * a->rows + r) * a->k;
}

static void best_of_part(const ms_topk_args *a, int64_t r, const float *z) {
  ms_topk_candidate *own = candidates(a, a->part, r);
  int32_t *id = a->id + r * a->k, k = (int32_t)ms_min(a->k, a->vocab);
  if (k) choose(a, z, id, k);
  for (int32_t j = 0; j < a->k; j++)
    own[j] = j < k ? (ms_topk_candidate){z[id[j]], (int32_t)(a->first_id + id[j])}
                   : (ms_topk_candidate){-INFINITY, -1};
}

/* Of the first candidates that are left of each part, the best; parts are in order of ids. */
static ms_topk_candidate next_best(const ms_topk_args *a, int64_t r, int32_t *taken) {
  ms_topk_candidate best = {-INFINITY, -1};
  int32_t from = 0;
  for (int32_t p = 0; p < a->parts; p++) {
    if (taken[p] == a->k) continue;
    ms_topk_candidate c = candidates(a, p, r)[taken[p]];
    if (c.id < 0 || (best.id >= 0 && !(c.z > best.z))) continue;
    best = c;
    from = p;
  }
  taken[from]++;
  return best;
}

/* Takes the best ids out of this rank's row. */
static void best_of_all(const ms_topk_args *a, int64_t r, float *z, int32_t *taken) {
  memset(taken, 0, (size_t)a->parts * sizeof *taken);
  for (int32_t j = 0; j < a->k; j++) {
    ms_topk_candidate c = next_best(a, r, taken);
    int64_t own = c.id - a->first_id;
    a->id[r * a->k + j] = c.id;
    a->log_p[r * a->k + j] = c.z;
    if (own >= 0 && own < a->vocab) z[own] = -INFINITY;
  }
}

static logsum join_rest(const ms_topk_args *a, int64_t r) {
  logsum rest = logsum_none();
  for (int32_t p = 0; p < a->parts; p++) logsum_join(&rest, a->rest[p * a->rows + r], a->inv_t);
  return rest;
}

/* max and sum: scratch, an element for each block; taken: for each part. */
static void topk_row(const ms_topk_args *a, int64_t r, float *max, float *sum, int32_t *taken) {
  float *z = a->logits + r * a->stride;
  int32_t *id = a->id + r * a->k;
  if (a->phase <= MS_TOPK_BEST) cap_row(z, NULL, a->vocab, a->scale, a->soft_cap);
  switch (a->phase) {
    case MS_TOPK_WHOLE:
      choose(a, z, id, a->k);
      for (int32_t j = 0; j < a->k; j++) {
        a->log_p[r * a->k + j] = z[id[j]];
        z[id[j]] = -INFINITY;
      }
      finish_row(a, r, sum_rest(a, z, max, sum));
      break;
    case MS_TOPK_BEST: best_of_part(a, r, z); break;
    case MS_TOPK_REST:
      best_of_all(a, r, z, taken);
      a->rest[a->part * a->rows + r] = sum_rest(a, z, max, sum);
      break;
    default: finish_row(a, r, join_rest(a, r));
  }
}

ms_status MS_KERNEL(topk)(ms_stream *s, const ms_topk_args *args) {
  int64_t blocks = (args->vocab + LOGSUM_BLOCK - 1) / LOGSUM_BLOCK;
  void *scratch;
  size_t each = (size_t)(2 * blocks + args->parts) * sizeof(float);
  MS_TRY(ms_scratch((size_t)omp_get_max_threads() * each, "topk: scratch", &scratch));
#pragma omp parallel for schedule(dynamic, 4)
  for (int64_t r = 0; r < args->rows; r++) {
    float *max = (float *)((char *)scratch + each * (size_t)omp_get_thread_num());
    topk_row(args, r, max, max + blocks, (int32_t *)(max + 2 * blocks));
  }
  return MS_OK;
}

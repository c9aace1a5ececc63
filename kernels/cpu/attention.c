/* attention.c - causal attention over packed segments, with an online softmax. */
#include "attention.h"

#include <float.h>
#include <string.h>

#include "../../core/base/memory.h"

/* A thread's scratch; the arrays over head_dim have room for it rounded up to vectors. */
typedef struct forward_scratch {
  float top[TILE], sum[TILE], shrink[TILE]; /* of each query's softmax so far */
  float score[TILE * TILE];                 /* [key][query], then probabilities */
  float array[]; /* q [dim][query], y [dim][query], keys or values [key][dim] */
} forward_scratch;

typedef struct forward_call {
  float *y, *lse;
  const float *q, *k, *v;
  const ms_attention_shape *shape;
} forward_call;

static void mask_scores(float *score, int64_t t, int wide, int64_t k, int keys, int32_t window) {
  for (int j = 0; j < keys; j++)
    for (int c = 0; c < wide; c++) {
      float *p = score + j * TILE + c * VF_LANES;
      vi seen = visible(k + j, t + c * VF_LANES, window);
      vf_store(p, vf_select(seen, vf_load(p), vf_set(-INFINITY)));
    }
}

static void cap_scores(float *score, int wide, int keys, float cap) {
  for (int j = 0; j < keys; j++)
    for (int c = 0; c < wide; c++) {
      float *p = score + j * TILE + c * VF_LANES;
      vf slope;
      vf_store(p, soft_cap(vf_load(p), cap, &slope));
    }
}

/* Scores to exp(score - top) with the new top; `shrink` is what older sums are multiplied by. The
 * top starts at the lowest finite number, so that a block in which a query sees nothing leaves it
 * as it was. */
static void soften(forward_scratch *f, int wide, int keys) {
  for (int c = 0; c < wide; c++) {
    float *p = f->score + c * VF_LANES;
    vf old = vf_load(f->top + c * VF_LANES), top = old, sum = {};
    for (int j = 0; j < keys; j++) top = vf_max(vf_load(p + j * TILE), top);
    for (int j = 0; j < keys; j++) {
      vf e = vf_exp_weight(vf_load(p + j * TILE) - top);
      vf_store(p + j * TILE, e);
      sum += e;
    }
    vf shrink = vf_exp(old - top);
    vf_store(f->top + c * VF_LANES, top);
    vf_store(f->shrink + c * VF_LANES, shrink);
    vf_store(f->sum + c * VF_LANES, vf_fma(vf_load(f->sum + c * VF_LANES), shrink, sum));
  }
}

/* x[i][query] *= factor[query] */
static void scale_queries(float *x, const float *factor, int dim, int wide) {
  for (int c = 0; c < wide; c++) {
    vf s = vf_load(factor + c * VF_LANES);
    for (int i = 0; i < dim; i++) {
      float *p = x + i * TILE + c * VF_LANES;
      vf_store(p, vf_load(p) * s);
    }
  }
}

/* Queries t .. t+rows-1 of one head, in a segment that starts at `start`. */
static void forward_tile(const forward_call *f, forward_scratch *s, int64_t start, int64_t t,
                         int rows, int32_t head) {
  const ms_attention_shape *a = f->shape;
  int dim = a->head_dim, wide = (rows + VF_LANES - 1) / VF_LANES;
  int64_t at = (t * a->heads + head) * dim, row = (int64_t)a->heads * dim;
  int64_t key_row = (int64_t)a->kv_heads * dim, lane = ms_kv_head(a, head) * dim;
  float *q = s->array, *y = q + dim * TILE, *near = y + dim * TILE;

  transpose_in(q, f->q + at, row, rows, dim, a->scale);
  memset(y, 0, (size_t)(dim * TILE) * 4);
  for (int i = 0; i < TILE; i++) s->top[i] = -FLT_MAX, s->sum[i] = 0;
  for (int64_t k = first_key(t, start, a->window); k < t + rows; k += TILE) {
    int keys = t + rows - k < TILE ? (int)(t + rows - k) : TILE;
    int64_t step, at_key = k * key_row + lane;
    const float *key = near_rows(near, f->k + at_key, key_row, keys, dim, &step);
    multiply_tile(&(tile_product){.out = s->score,
                                  .out_row = TILE,
                                  .a = key,
                                  .a_row = step,
                                  .a_step = 1,
                                  .b = q,
                                  .b_row = TILE,
                                  .rows = keys,
                                  .inner = dim,
                                  .lanes = wide * VF_LANES});
    if (a->soft_cap > 0) cap_scores(s->score, wide, keys, a->soft_cap);
    if (needs_mask(t, rows, k, keys, a->window)) mask_scores(s->score, t, wide, k, keys, a->window);
    soften(s, wide, keys);
    scale_queries(y, s->shrink, dim, wide);
    const float *value = near_rows(near, f->v + at_key, key_row, keys, dim, &step);
    multiply_tile(&(tile_product){.out = y,
                                  .out_row = TILE,
                                  .a = value,
                                  .a_row = 1,
                                  .a_step = step,
                                  .b = s->score,
                                  .b_row = TILE,
                                  .rows = dim,
                                  .inner = keys,
                                  .lanes = wide * VF_LANES,
                                  .add = 1});
  }
  for (int i = 0; i < rows; i++) {
    if (f->lse) f->lse[(t + i) * a->heads + head] = s->top[i] + logf(s->sum[i]);
    s->shrink[i] = 1 / s->sum[i];
  }
  scale_queries(y, s->shrink, dim, wide);
  transpose_out(f->y + at, row, y, rows, dim);
}

/* A thread's share: of each segment the tiles it gets, the longest first. */
static ms_status forward_share(const forward_call *f, const int32_t *segment_start) {
  const ms_attention_shape *a = f->shape;
  void *scratch;
  ms_status st = ms_scratch(sizeof(forward_scratch) + (size_t)(3 * a->head_dim * TILE) * 4,
                            "attention", &scratch);
  for (int64_t g = 0; g < a->segments; g++) {
    int64_t start = segment_start[g], end = segment_start[g + 1];
    int64_t tiles = (end - start + TILE - 1) / TILE;
#pragma omp for schedule(dynamic) collapse(2) nowait
    for (int64_t i = 0; i < tiles; i++)
      for (int32_t h = 0; h < a->heads; h++) {
        int64_t t = start + (tiles - 1 - i) * TILE;
        if (st == MS_OK)
          forward_tile(f, scratch, start, t, end - t < TILE ? (int)(end - t) : TILE, h);
      }
  }
  return st;
}

ms_status MS_KERNEL(attention)(ms_stream *s, ms_act y, float *lse, ms_act q, ms_act k, ms_act v,
                               const int32_t *segment_start, const ms_attention_shape *a) {
  MS_TAKES_F32("attention", y, q, k, v);
  forward_call f = {f32(y), lse, f32(q), f32(k), f32(v), a};
  int failed = 0;
#pragma omp parallel if (a->tokens * a->heads * a->head_dim > MS_SERIAL / 4) reduction(| : failed)
  failed = forward_share(&f, segment_start) != MS_OK;
  return failed ? MS_FAIL(MS_ENOMEM, "attention: no memory for a thread's scratch") : MS_OK;
}

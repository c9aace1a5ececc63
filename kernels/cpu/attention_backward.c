/* attention_backward.c - attention's gradients, probabilities computed again from lse.
 *
 * With D = sum over c of dy y: dv_j += p_j dy; ds_j = scale p_j (dy v_j - D), times the derivative of
 * the soft cap where there is one; dq += ds_j k_j;
 * dk_j += ds_j q. Where segments and kv_heads are many, a task is one of each and walks its tiles in
 * order, adding to dk and dv as it goes. Where they are few, one task per tile of queries makes dq
 * and one per tile of keys makes dk and dv, at the cost of computing the scores twice. */
#include <string.h>

#include "../../core/base/memory.h"
#include "attention.h"

typedef struct backward_call {
  float *dq, *dk, *dv;
  const float *dy, *y, *lse, *q, *k, *v;
  const ms_attention_shape *shape;
} backward_call;

/* A tile of queries of one head, and a thread's scratch around it. */
typedef struct backward_tile {
  float lse[TILE], delta[TILE];
  float p[TILE * TILE], ds[TILE * TILE]; /* [key][query] */
  const float *q_rows, *dy_rows;         /* [query][dim], rows of whole vectors */
  int64_t rows_apart, t;
  int rows, head;
  float *q, *dy, *dq;             /* [dim][query] */
  float *q_copy, *dy_copy, *near; /* near: keys or values [key][dim] */
  float array[];
} backward_tile;

static int padded(int dim) { return (dim + VF_LANES - 1) / VF_LANES * VF_LANES; }

static ms_status new_tile(int dim, backward_tile **out) {
  size_t part = (size_t)(padded(dim) * TILE);
  void *p;
  *out = NULL;
  MS_TRY(ms_scratch(sizeof(backward_tile) + 6 * part * 4, "attention backward", &p));
  backward_tile *b = p;
  b->q = b->array;
  b->dy = b->q + part;
  b->dq = b->dy + part;
  b->q_copy = b->dq + part;
  b->dy_copy = b->q_copy + part;
  b->near = b->dy_copy + part;
  *out = b;
  return MS_OK;
}

/* Rows whose end is inside a vector are copied: the product reads whole vectors. */
static const float *whole_rows(float *copy, const float *x, int64_t x_row, int rows, int dim) {
  if (dim % VF_LANES == 0) return x;
  for (int i = 0; i < rows; i++) memcpy(copy + i * padded(dim), x + i * x_row, (size_t)dim * 4);
  return copy;
}

/* delta[query] = sum over c of y dy, in the order in which multiply_tile sums dy v. Where one key has
 * all of a query's weight, y is its value, and ds is exactly 0 and not the difference of two orders. */
static void dot_queries(float *delta, const float *y, const float *dy, int dim, int wide) {
  for (int c = 0; c < wide; c++) {
    vf sum = vf_set(0);
    for (int i = 0; i < dim; i++) {
      int64_t at = i * TILE + c * VF_LANES;
      sum = vf_fma(vf_load(y + at), vf_load(dy + at), sum);
    }
    vf_store(delta + c * VF_LANES, sum);
  }
}

static void load_queries(const backward_call *f, backward_tile *b, int64_t t, int rows, int head) {
  const ms_attention_shape *a = f->shape;
  int dim = a->head_dim;
  int64_t at = (t * a->heads + head) * dim, row = (int64_t)a->heads * dim;
  b->t = t, b->rows = rows, b->head = head;
  transpose_in(b->q, f->q + at, row, rows, dim, a->scale);
  transpose_in(b->dy, f->dy + at, row, rows, dim, 1);
  b->q_rows = whole_rows(b->q_copy, f->q + at, row, rows, dim);
  b->dy_rows = whole_rows(b->dy_copy, f->dy + at, row, rows, dim);
  b->rows_apart = dim % VF_LANES == 0 ? row : padded(dim);
  float *y = b->dq; /* which begins after this */
  transpose_in(y, f->y + at, row, rows, dim, 1);
  dot_queries(b->delta, y, b->dy, dim, (rows + VF_LANES - 1) / VF_LANES);
  for (int i = 0; i < rows; i++) b->lse[i] = f->lse[(t + i) * a->heads + head];
  for (int i = rows; i < TILE; i++) b->lse[i] = 0; /* lanes without a query */
}

/* From scores in p and dy v in ds: the probabilities and ds. */
static void soften_backward(backward_tile *b, int64_t k, int keys, int wide, int masked,
                            const ms_attention_shape *a) {
  for (int c = 0; c < wide; c++) {
    vf lse = vf_load(b->lse + c * VF_LANES), delta = vf_load(b->delta + c * VF_LANES);
    for (int j = 0; j < keys; j++) {
      float *p = b->p + j * TILE + c * VF_LANES, *ds = b->ds + j * TILE + c * VF_LANES;
      vf score = vf_load(p), slope = vf_set(a->scale);
      if (a->soft_cap > 0) {
        score = soft_cap(score, a->soft_cap, &slope);
        slope *= a->scale;
      }
      vf e = vf_exp_weight(score - lse);
      if (masked) e = vf_select(visible(k + j, b->t + c * VF_LANES, a->window), e, vf_set(0));
      vf_store(p, e);
      vf_store(ds, slope * e * (vf_load(ds) - delta));
    }
  }
}

enum { DQ = 1, DKV = 2 };

/* The tile's queries against keys k .. k+keys-1. */
static void backward_pair(const backward_call *f, backward_tile *b, int64_t k, int keys, int what) {
  const ms_attention_shape *a = f->shape;
  int dim = a->head_dim, wide = (b->rows + VF_LANES - 1) / VF_LANES, lanes = wide * VF_LANES;
  int64_t row = (int64_t)a->kv_heads * dim;
  int64_t at = k * row + ms_kv_head(a, b->head) * dim;
  int64_t step;
  const float *value = near_rows(b->near, f->v + at, row, keys, dim, &step);
  tile_product scores = {.out = b->ds,
                         .out_row = TILE,
                         .a = value,
                         .a_row = step,
                         .a_step = 1,
                         .b = b->dy,
                         .b_row = TILE,
                         .rows = keys,
                         .inner = dim,
                         .lanes = lanes};
  multiply_tile(&scores);
  const float *key = near_rows(b->near, f->k + at, row, keys, dim, &step);
  scores.out = b->p, scores.a = key, scores.b = b->q;
  multiply_tile(&scores);
  soften_backward(b, k, keys, wide, needs_mask(b->t, b->rows, k, keys, a->window), a);
  if (what & DQ)
    multiply_tile(&(tile_product){.out = b->dq,
                                  .out_row = TILE,
                                  .a = key,
                                  .a_row = 1,
                                  .a_step = step,
                                  .b = b->ds,
                                  .b_row = TILE,
                                  .rows = dim,
                                  .inner = keys,
                                  .lanes = lanes,
                                  .add = 1});
  if (what & DKV) {
    tile_product sums = {.out = f->dv + at,
                         .out_row = row,
                         .a = b->p,
                         .a_row = TILE,
                         .a_step = 1,
                         .b = b->dy_rows,
                         .b_row = b->rows_apart,
                         .rows = keys,
                         .inner = b->rows,
                         .lanes = dim,
                         .add = 1};
    multiply_tile(&sums);
    sums.out = f->dk + at, sums.a = b->ds, sums.b = b->q_rows;
    multiply_tile(&sums);
  }
}

static int count(int64_t from, int64_t end) { return end - from < TILE ? (int)(end - from) : TILE; }

/* One tile of queries against all its keys. */
static void backward_queries(const backward_call *f, backward_tile *b, int64_t start, int64_t end,
                             int64_t t, int head, int what) {
  const ms_attention_shape *a = f->shape;
  int rows = count(t, end);
  load_queries(f, b, t, rows, head);
  memset(b->dq, 0, (size_t)(a->head_dim * TILE) * 4);
  for (int64_t k = first_key(t, start, a->window); k < t + rows; k += TILE)
    backward_pair(f, b, k, count(k, t + rows), what);
  transpose_out(f->dq + (t * a->heads + head) * a->head_dim, (int64_t)a->heads * a->head_dim, b->dq,
                rows, a->head_dim);
}

/* The heads here that share a key/value head. */
static int first_head(const ms_attention_shape *a, int kv_head) {
  return kv_head ? kv_head * a->group - a->shift : 0;
}
static int end_head(const ms_attention_shape *a, int kv_head) {
  return kv_head + 1 < a->kv_heads ? first_head(a, kv_head + 1) : a->heads;
}

/* One tile of keys against all queries that see any of it, of all heads that share it. */
static void backward_keys(const backward_call *f, backward_tile *b, int64_t start, int64_t end,
                          int64_t k, int kv_head) {
  const ms_attention_shape *a = f->shape;
  int keys = count(k, end);
  int64_t last =
      a->window && k + keys - 2 + a->window < end - 1 ? k + keys - 2 + a->window : end - 1;
  for (int h = first_head(a, kv_head); h < end_head(a, kv_head); h++)
    for (int64_t t = start + (k - start) / TILE * TILE; t <= last; t += TILE) {
      load_queries(f, b, t, count(t, end), h);
      backward_pair(f, b, k, keys, DKV);
    }
}

/* A thread's share where tasks are segments and kv_heads. */
static void many_tasks(const backward_call *f, backward_tile *b, const int32_t *segment_start) {
  const ms_attention_shape *a = f->shape;
#pragma omp for schedule(dynamic) collapse(2) nowait
  for (int64_t g = 0; g < a->segments; g++)
    for (int32_t kv = 0; kv < a->kv_heads; kv++)
      for (int h = first_head(a, kv); b && h < end_head(a, kv); h++)
        for (int64_t t = segment_start[g]; t < segment_start[g + 1]; t += TILE)
          backward_queries(f, b, segment_start[g], segment_start[g + 1], t, h, DQ | DKV);
}

/* A thread's share where tasks are tiles. */
static void few_tasks(const backward_call *f, backward_tile *b, const int32_t *segment_start) {
  const ms_attention_shape *a = f->shape;
  for (int64_t g = 0; g < a->segments; g++) {
    int64_t start = segment_start[g], end = segment_start[g + 1];
    int64_t tiles = (end - start + TILE - 1) / TILE;
#pragma omp for schedule(dynamic) collapse(2) nowait
    for (int64_t i = 0; i < tiles; i++)
      for (int32_t kv = 0; kv < a->kv_heads; kv++)
        if (b) backward_keys(f, b, start, end, start + i * TILE, kv);
#pragma omp for schedule(dynamic) collapse(2) nowait
    for (int64_t i = tiles - 1; i >= 0; i--)
      for (int32_t h = 0; h < a->heads; h++)
        if (b) backward_queries(f, b, start, end, start + i * TILE, h, DQ);
  }
}

enum { MANY = 3 }; /* tasks that keep a few cores busy */

ms_status MS_KERNEL(attention_backward)(ms_stream *s, ms_act dq, ms_act dk, ms_act dv, ms_act dy,
                                        ms_act y, const float *lse, ms_act q, ms_act k, ms_act v,
                                        const int32_t *segment_start, const ms_attention_shape *a) {
  MS_TAKES_F32("attention_backward", dq, dk, dv, dy, y, q, k, v);
  backward_call f = {f32(dq), f32(dk), f32(dv), f32(dy), f32(y), lse, f32(q), f32(k), f32(v), a};
  size_t bytes = (size_t)(a->tokens * a->kv_heads * a->head_dim) * 4;
  int failed = 0;
  memset(f32(dk), 0, bytes);
  memset(f32(dv), 0, bytes);
#pragma omp parallel if (a->tokens * a->heads * a->head_dim > MS_SERIAL / 4) reduction(| : failed)
  {
    backward_tile *b;
    failed = new_tile(a->head_dim, &b) != MS_OK;
    if (a->segments * a->kv_heads >= MANY)
      many_tasks(&f, b, segment_start);
    else
      few_tasks(&f, b, segment_start);
  }
  return failed ? MS_FAIL(MS_ENOMEM, "attention: no memory for a thread's scratch") : MS_OK;
}

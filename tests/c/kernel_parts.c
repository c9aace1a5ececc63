/* kernel_parts.c - kernels on a part of a model's heads, ids or columns: parts put together are the whole,
 * bit for bit where each number is made in one part, and the definition, in double, where numbers of
 * several parts are added up. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/random.h"
#include "core/tensor/tensor.h"
#include "kernels/cpu/cpu.h"
#include "tests/support/test.h"

static const ms_ops *ops;

static float *made(int64_t n) {
  float *p = malloc((size_t)(n ? n : 1) * sizeof(float));
  if (!p) abort();
  return p;
}

/* Numbers of standard deviation 1. */
static float *drawn(int64_t n, uint64_t seed) {
  float *p = made(n);
  ms_normal(p, n, 0, seed, 0);
  return p;
}

static float *of(float value, int64_t n) {
  float *p = made(n);
  for (int64_t i = 0; i < n; i++) p[i] = value;
  return p;
}

/* Columns from .. from + n of rows of `width`. */
static float *columns(const float *x, int64_t rows, int64_t width, int64_t from, int64_t n) {
  float *p = made(rows * n);
  for (int64_t r = 0; r < rows; r++) memcpy(p + r * n, x + r * width + from, (size_t)n * sizeof *p);
  return p;
}

static int are_columns(const float *part, const float *x, int64_t rows, int64_t width, int64_t from,
                       int64_t n) {
  for (int64_t r = 0; r < rows; r++)
    if (memcmp(part + r * n, x + r * width + from, (size_t)n * sizeof *x)) return 0;
  return 1;
}

static void add_columns(double *sum, const float *part, int64_t rows, int64_t width, int64_t from,
                        int64_t n) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < n; c++) sum[r * width + from + c] += (double)part[r * n + c];
}

/* Whether no element is off by more than `share` of the largest; NaN is not close. */
static int is_close(const double *got, const double *want, int64_t n, double share) {
  double most = 0;
  for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(want[i]));
  for (int64_t i = 0; i < n; i++)
    if (!(fabs(got[i] - want[i]) <= share * most)) return 0;
  return 1;
}

static double *doubles(const float *x, int64_t n) {
  double *p = malloc((size_t)n * sizeof *p);
  for (int64_t i = 0; i < n; i++) p[i] = (double)x[i];
  return p;
}

/* ---- attention ---- */

typedef struct heads {
  int32_t heads, kv_heads, dim, window;
  float cap;
  int64_t segments;
  int32_t start[6];
} heads;

static int64_t tokens_of(const heads *h) { return h->start[h->segments]; }

static ms_attention_shape shape_of(const heads *h, int32_t first, int32_t n) {
  int32_t group = h->heads / h->kv_heads;
  ms_attention_shape a = {.tokens = tokens_of(h),
                          .segments = h->segments,
                          .heads = n,
                          .head_dim = h->dim,
                          .window = h->window,
                          .group = group,
                          .shift = first % group,
                          .scale = 1 / sqrtf((float)h->dim),
                          .soft_cap = h->cap};
  a.kv_heads = (first + n - 1) / group - first / group + 1;
  for (int64_t g = 0; g < h->segments; g++)
    a.longest =
        h->start[g + 1] - h->start[g] > a.longest ? h->start[g + 1] - h->start[g] : a.longest;
  return a;
}

/* What attention gives and takes, of all heads or of some. */
typedef struct attended {
  float *q, *k, *v, *dy, *y, *lse, *dq, *dk, *dv;
} attended;

static void free_attended(attended *a) {
  float *all[] = {a->q, a->k, a->v, a->dy, a->y, a->lse, a->dq, a->dk, a->dv};
  for (int i = 0; i < 9; i++) free(all[i]);
}

static void attend(attended *a, const heads *h, const ms_attention_shape *s) {
  int64_t n = s->tokens * s->heads, m = s->tokens * s->kv_heads;
  a->y = made(n * h->dim), a->lse = made(n);
  a->dq = made(n * h->dim), a->dk = made(m * h->dim), a->dv = made(m * h->dim);
  ms_act q = ms_act_f32(a->q), k = ms_act_f32(a->k), v = ms_act_f32(a->v), y = ms_act_f32(a->y);
  CHECK(ops->attention(NULL, y, a->lse, q, k, v, h->start, s) == MS_OK);
  CHECK(ops->attention_backward(NULL, ms_act_f32(a->dq), ms_act_f32(a->dk), ms_act_f32(a->dv),
                                ms_act_f32(a->dy), y, a->lse, q, k, v, h->start, s) == MS_OK);
}

static attended whole_of(const heads *h) {
  int64_t n = tokens_of(h) * h->heads * h->dim, m = tokens_of(h) * h->kv_heads * h->dim;
  attended a = {.q = drawn(n, 1), .k = drawn(m, 2), .v = drawn(m, 3), .dy = drawn(n, 4)};
  ms_attention_shape s = shape_of(h, 0, h->heads);
  attend(&a, h, &s);
  return a;
}

static attended part_of(const heads *h, const attended *whole, int32_t first, int32_t n) {
  ms_attention_shape s = shape_of(h, first, n);
  int64_t t = s.tokens, q = h->heads * h->dim, kv = h->kv_heads * h->dim, at = first * h->dim;
  int64_t at_kv = first / s.group * h->dim, held = s.kv_heads * h->dim;
  attended a = {.q = columns(whole->q, t, q, at, n * h->dim),
                .k = columns(whole->k, t, kv, at_kv, held),
                .v = columns(whole->v, t, kv, at_kv, held),
                .dy = columns(whole->dy, t, q, at, n * h->dim)};
  attend(&a, h, &s);
  return a;
}

/* Softmax of the scores of one query over the keys that it sees; returns the first of them. */
static int64_t weights_of(const heads *h, const attended *a, int64_t t, int32_t head, double *p) {
  int64_t first = 0, dim = h->dim, kv = head / (h->heads / h->kv_heads);
  double top = -INFINITY, sum = 0;
  for (int64_t g = 0; g < h->segments; g++)
    if (h->start[g] <= t) first = h->start[g];
  if (h->window && t - h->window + 1 > first) first = t - h->window + 1;
  for (int64_t k = first; k <= t; k++) {
    double s = 0;
    for (int64_t c = 0; c < dim; c++)
      s += (double)a->q[(t * h->heads + head) * dim + c] *
           (double)a->k[(k * h->kv_heads + kv) * dim + c];
    s /= sqrt((double)dim);
    p[k] = h->cap > 0 ? (double)h->cap * tanh(s / (double)h->cap) : s;
    top = fmax(top, p[k]);
  }
  for (int64_t k = first; k <= t; k++) sum += p[k] = exp(p[k] - top);
  for (int64_t k = first; k <= t; k++) p[k] /= sum;
  return first;
}

/* sum of dy y, y being attention as it is defined, in double. */
static double defined(const heads *h, const attended *a) {
  double *p = malloc((size_t)tokens_of(h) * sizeof *p), sum = 0;
  for (int64_t t = 0; t < tokens_of(h); t++)
    for (int32_t head = 0; head < h->heads; head++) {
      int64_t kv = head / (h->heads / h->kv_heads), at = (t * h->heads + head) * h->dim;
      for (int64_t k = weights_of(h, a, t, head, p); k <= t; k++)
        for (int32_t c = 0; c < h->dim; c++)
          sum += p[k] * (double)a->dy[at + c] * (double)a->v[(k * h->kv_heads + kv) * h->dim + c];
    }
  free(p);
  return sum;
}

/* Differences of `defined` along x, by steps that are exact in f32. */
static double *differences(const heads *h, const attended *a, float *x, int64_t n) {
  double *d = malloc((size_t)n * sizeof *d);
  for (int64_t i = 0; i < n; i++) {
    float was = x[i], up = was + 0x1p-10f, down = was - 0x1p-10f;
    x[i] = up;
    d[i] = defined(h, a);
    x[i] = down;
    d[i] = (d[i] - defined(h, a)) / ((double)up - (double)down);
    x[i] = was;
  }
  return d;
}

/* Gradients that several parts have a share of, added up. */
typedef struct sums {
  double *dq, *dk, *dv;
} sums;

/* What a part has alone is the whole's bit for bit; the rest goes to `sums`. */
static void check_part(const heads *h, const attended *whole, int32_t first, int32_t n, sums *to) {
  attended a = part_of(h, whole, first, n);
  ms_attention_shape s = shape_of(h, first, n);
  int64_t t = s.tokens, dim = h->dim, q = h->heads * dim, kv = h->kv_heads * dim;
  int32_t kv0 = first / s.group;
  CHECK(are_columns(a.y, whole->y, t, q, first * dim, n * dim));
  CHECK(are_columns(a.lse, whole->lse, t, h->heads, first, n));
  CHECK(are_columns(a.dq, whole->dq, t, q, first * dim, n * dim));
  for (int32_t i = 0; i < s.kv_heads; i++) {
    if ((kv0 + i) * s.group < first || (kv0 + i + 1) * s.group > first + n) continue;
    float *dk = columns(a.dk, t, s.kv_heads * dim, i * dim, dim);
    float *dv = columns(a.dv, t, s.kv_heads * dim, i * dim, dim);
    CHECK(are_columns(dk, whole->dk, t, kv, (kv0 + i) * dim, dim));
    CHECK(are_columns(dv, whole->dv, t, kv, (kv0 + i) * dim, dim));
    free(dk), free(dv);
  }
  if (to) {
    add_columns(to->dq, a.dq, t, q, first * dim, n * dim);
    add_columns(to->dk, a.dk, t, kv, kv0 * dim, s.kv_heads * dim);
    add_columns(to->dv, a.dv, t, kv, kv0 * dim, s.kv_heads * dim);
  }
  free_attended(&a);
}

/* The heads shared out over so many ranks, none of which need have whole groups. */
static sums added(const heads *h, const attended *whole, int32_t ranks) {
  size_t q = (size_t)(tokens_of(h) * h->heads * h->dim),
         kv = q / (size_t)h->heads * (size_t)h->kv_heads;
  sums s = {calloc(q, sizeof(double)), calloc(kv, sizeof(double)), calloc(kv, sizeof(double))};
  for (int32_t r = 0; r < ranks; r++) {
    int32_t first = h->heads * r / ranks, end = h->heads * (r + 1) / ranks;
    check_part(h, whole, first, end - first, &s);
  }
  return s;
}

static void free_sums(sums *s) { free(s->dq), free(s->dk), free(s->dv); }

/* Sums over keys or queries in f32 of the whole and of parts are rounded in other places: a few eps of the
 * largest. */
static void put_together(const heads *h) {
  attended whole = whole_of(h);
  int64_t kv = tokens_of(h) * h->kv_heads * h->dim;
  double *dk = doubles(whole.dk, kv), *dv = doubles(whole.dv, kv);
  for (int32_t ranks = 1; ranks <= h->heads; ranks++) {
    sums s = added(h, &whole, ranks);
    CHECK(is_close(s.dk, dk, kv, 2e-6) && is_close(s.dv, dv, kv, 2e-6));
    free_sums(&s);
  }
  for (int32_t first = 0; first < h->heads; first++)
    for (int32_t end = first + 1; end <= h->heads; end++)
      check_part(h, &whole, first, end - first, NULL);
  free(dk), free(dv);
  free_attended(&whole);
}

static void against_differences(const heads *h) {
  attended whole = whole_of(h);
  int64_t q = tokens_of(h) * h->heads * h->dim, kv = tokens_of(h) * h->kv_heads * h->dim;
  double *dq = differences(h, &whole, whole.q, q), *dk = differences(h, &whole, whole.k, kv);
  double *dv = differences(h, &whole, whole.v, kv);
  for (int32_t ranks = 1; ranks <= h->heads; ranks++) {
    sums s = added(h, &whole, ranks);
    /* steps of 1e-3 leave 1e-6 of the third derivative */
    CHECK(is_close(s.dq, dq, q, 5e-6) && is_close(s.dk, dk, kv, 5e-6) &&
          is_close(s.dv, dv, kv, 5e-6));
    free_sums(&s);
  }
  free(dq), free(dk), free(dv);
  free_attended(&whole);
}

/* Rows against caches that hold the keys and values of some heads. */
static void cached(const heads *h) {
  enum { ROWS = 3, CAPACITY = 90, SLOTS = 2 };
  const int32_t slot[ROWS] = {1, 0, 1}, from[ROWS] = {0, 5, 80}, length[ROWS] = {90, 70, 1};
  int64_t q_size = h->heads * h->dim, kv_size = h->kv_heads * h->dim, keys = SLOTS * CAPACITY;
  float *q = drawn(ROWS * q_size, 1), *y = made(ROWS * q_size);
  float *k = drawn(keys * kv_size, 2), *v = drawn(keys * kv_size, 3);
  ms_attention_shape s = shape_of(h, 0, h->heads);
  s.tokens = ROWS;
  CHECK(ops->attention_cached(NULL, ms_act_f32(y), ms_act_f32(q), ms_act_f32(k), ms_act_f32(v),
                              slot, from, length, CAPACITY, &s) == MS_OK);
  for (int32_t first = 0; first < h->heads; first++)
    for (int32_t end = first + 1; end <= h->heads; end++) {
      int64_t n = (end - first) * h->dim;
      s = shape_of(h, first, end - first);
      s.tokens = ROWS;
      int64_t at = first / s.group * h->dim, held = s.kv_heads * h->dim;
      float *one_q = columns(q, ROWS, q_size, first * h->dim, n), *one_y = made(ROWS * n);
      float *one_k = columns(k, keys, kv_size, at, held),
            *one_v = columns(v, keys, kv_size, at, held);
      CHECK(ops->attention_cached(NULL, ms_act_f32(one_y), ms_act_f32(one_q), ms_act_f32(one_k),
                                  ms_act_f32(one_v), slot, from, length, CAPACITY, &s) == MS_OK);
      CHECK(are_columns(one_y, y, ROWS, q_size, first * h->dim, n));
      free(one_q), free(one_y), free(one_k), free(one_v);
    }
  free(q), free(y), free(k), free(v);
}

static void attention(void) {
  static const heads large[] = {
      {9, 3, 16, 0, 0, 2, {0, 70, 150}},       {9, 3, 20, 33, 0, 1, {0, 140}},
      {6, 1, 64, 0, 0, 1, {0, 130}},           {8, 4, 7, 0, 2.5f, 4, {0, 1, 1, 65, 66}},
      {5, 5, 32, 10, 0, 3, {0, 64, 128, 131}}, {8, 2, 64, 0, 0, 1, {0, 80}},
  };
  static const heads small[] = {
      {6, 2, 3, 0, 0, 2, {0, 3, 8}}, {4, 1, 5, 3, 0, 1, {0, 6}}, {6, 3, 2, 0, 1.5f, 1, {0, 6}}};
  for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
    TEST("attention of parts of the heads is that of all");
    put_together(&large[i]);
    TEST("so it is against caches");
    cached(&large[i]);
  }
  for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
    TEST("attention's gradients of parts add up to differences of the definition");
    against_differences(&small[i]);
  }
}

/* ---- the embedding ---- */

enum { VOCAB = 29, WIDTH = 37, IDS = 60 };

/* The part of rank r: some have no id at all. */
static int64_t id_border(int32_t rank, int32_t ranks) {
  static const int64_t uneven[] = {0, 0, 1, 1, 28, VOCAB};
  return ranks == 5 ? uneven[rank] : VOCAB * rank / ranks;
}

static void embed_parts(int32_t ranks, int dtype) {
  int32_t token[IDS];
  size_t size = dtype == MS_BF16 ? 2 : 4;
  float *drawn_w = drawn(VOCAB * WIDTH, 1), *dy = drawn(IDS * WIDTH, 2);
  float *y = made(IDS * WIDTH), *dw = drawn(VOCAB * WIDTH, 3), *dw_parts = made(VOCAB * WIDTH);
  double *sum = calloc(IDS * WIDTH, sizeof *sum), *want;
  char *w = malloc(VOCAB * WIDTH * size);
  for (int i = 0; i < IDS; i++) token[i] = (i * i + 3 * i) % VOCAB;
  CHECK(ops->cast(NULL, w, dtype, drawn_w, MS_F32, VOCAB * WIDTH) == MS_OK);
  memcpy(dw_parts, dw, VOCAB * WIDTH * sizeof *dw);
  CHECK(ops->embed(NULL, ms_act_f32(y), token, w, dtype, IDS, WIDTH, 0, VOCAB, 1.7f) == MS_OK);
  CHECK(ops->embed_dw(NULL, dw, ms_act_f32(dy), token, IDS, WIDTH, 0, VOCAB, 1.7f) == MS_OK);
  for (int32_t r = 0; r < ranks; r++) {
    int64_t first = id_border(r, ranks), n = id_border(r + 1, ranks) - first, at = first * WIDTH;
    float *part = of(NAN, IDS * WIDTH);
    CHECK(ops->embed(NULL, ms_act_f32(part), token, n ? w + (size_t)at * size : NULL, dtype, IDS,
                     WIDTH, first, n, 1.7f) == MS_OK);
    CHECK(ops->embed_dw(NULL, dw_parts + at, ms_act_f32(dy), token, IDS, WIDTH, first, n, 1.7f) ==
          MS_OK);
    add_columns(sum, part, IDS, WIDTH, 0, WIDTH);
    free(part);
  }
  want = doubles(y, IDS * WIDTH);
  CHECK(is_close(sum, want, IDS * WIDTH, 0)); /* one number and zeros */
  CHECK(!memcmp(dw, dw_parts, VOCAB * WIDTH * sizeof *dw));
  free(drawn_w), free(dy), free(y), free(dw), free(dw_parts), free(sum), free(want), free(w);
}

/* ---- norms ---- */

enum { PARTS = 4 };
static const float eps = 1e-2f; /* large, so that a forgotten one shows */

/* A part's columns of a row: `held` of them from `from` on, of which the first `copied` are in the part
 * before as well. */
typedef struct span {
  int64_t from, held, copied;
} span;

typedef struct norm {
  int64_t rows, cols;
  int parts, dtype;
  float offset;
  span part[PARTS];
} norm;

/* What goes in, w rounded to its type; of a copied column each part has a share of dy. Sums are of whole
 * rows. */
typedef struct normed {
  float *x, *dy, *w, *squares, *dots;
  void *stored; /* w in its type */
  float *part_x[PARTS], *part_dy[PARTS];
} normed;

static const void *stored_at(const norm *n, const normed *d, int64_t col) {
  return (const char *)d->stored + col * (n->dtype == MS_BF16 ? 2 : 4);
}

/* What part of dy a holder of a column has. */
static float share_of(const norm *n, int64_t col, int part) {
  static const float share[][3] = {{1}, {1.5f, -0.5f}, {1.5f, -0.75f, 0.25f}};
  int holders = 0, before = 0;
  for (int p = 0; p < n->parts; p++) {
    int has = n->part[p].from <= col && col < n->part[p].from + n->part[p].held;
    holders += has;
    before += has && p < part;
  }
  return share[holders - 1][before];
}

static normed norm_inputs(const norm *n) {
  int64_t all = n->rows * n->cols;
  normed d = {drawn(all, 1),
              drawn(all, 3),
              drawn(n->cols, 2),
              of(0, n->rows),
              of(0, n->rows),
              made(n->cols),
              {0},
              {0}};
  CHECK(ops->cast(NULL, d.stored, n->dtype, d.w, MS_F32, n->cols) == MS_OK);
  CHECK(ops->cast(NULL, d.w, MS_F32, d.stored, n->dtype, n->cols) == MS_OK);
  for (int p = 0; p < n->parts; p++) {
    span s = n->part[p];
    d.part_x[p] = columns(d.x, n->rows, n->cols, s.from, s.held);
    d.part_dy[p] = columns(d.dy, n->rows, n->cols, s.from, s.held);
    for (int64_t i = 0; i < n->rows * s.held; i++)
      d.part_dy[p][i] *= share_of(n, s.from + i % s.held, p);
  }
  return d;
}

static void free_normed(normed *d) {
  free(d->x), free(d->dy), free(d->w), free(d->squares), free(d->dots), free(d->stored);
  for (int p = 0; p < PARTS; p++) free(d->part_x[p]), free(d->part_dy[p]);
}

/* As ranks would add them up: in f32, one after the other. */
static void sum_parts(const norm *n, normed *d) {
  float *sum = made(n->rows);
  for (int p = 0; p < n->parts; p++) {
    span s = n->part[p];
    ms_act x = ms_act_f32(d->part_x[p]), dy = ms_act_f32(d->part_dy[p]);
    const void *w = stored_at(n, d, s.from);
    CHECK(ops->row_dot(NULL, sum, x, x, NULL, MS_F32, n->rows, s.held, s.copied, 0) == MS_OK);
    for (int64_t r = 0; r < n->rows; r++) d->squares[r] += sum[r];
    CHECK(ops->row_dot(NULL, sum, dy, x, w, n->dtype, n->rows, s.held, 0, n->offset) == MS_OK);
    for (int64_t r = 0; r < n->rows; r++) d->dots[r] += sum[r];
  }
  free(sum);
}

/* Of a norm of whole rows, in double. */
typedef struct norm_results {
  double *y, *dx, *dw;
} norm_results;

static norm_results new_results(const norm *n) {
  size_t all = (size_t)(n->rows * n->cols + 1);
  return (norm_results){calloc(all, sizeof(double)), calloc(all, sizeof(double)),
                        calloc((size_t)n->cols, sizeof(double))};
}

static void free_results(norm_results *r) { free(r->y), free(r->dx), free(r->dw); }

/* Adds what part p makes; of a copied column its holders make the same y, of which one counts. */
static void norm_part(const norm *n, const normed *d, int p, norm_results *to) {
  span s = n->part[p];
  ms_norm_part squares = {d->squares, n->cols, s.copied}, dots = {d->dots, n->cols, s.copied};
  ms_act x = ms_act_f32(d->part_x[p]);
  const void *w = stored_at(n, d, s.from);
  float *y = made(n->rows * s.held), *rstd = made(n->rows);
  float *dx = of(2, n->rows * s.held), *dw = of(0, s.held);
  CHECK(ops->rmsnorm(NULL, ms_act_f32(y), rstd, x, w, n->dtype, n->rows, s.held, eps, n->offset,
                     &squares) == MS_OK);
  CHECK(ops->rmsnorm_backward(NULL, ms_act_f32(dx), dw, ms_act_f32(d->part_dy[p]), x, rstd, w,
                              n->dtype, n->rows, s.held, n->offset, 1, &dots) == MS_OK);
  for (int64_t i = 0; i < n->rows * s.held; i++) dx[i] -= 2; /* it was added to that */
  float *own = columns(y, n->rows, s.held, s.copied, s.held - s.copied);
  float *copy = columns(y, n->rows, s.held, 0, s.copied);
  add_columns(to->y, own, n->rows, n->cols, s.from + s.copied, s.held - s.copied);
  for (int64_t i = 0; i < n->rows * s.copied; i++)
    CHECK((float)to->y[i / s.copied * n->cols + s.from + i % s.copied] == copy[i]);
  add_columns(to->dx, dx, n->rows, n->cols, s.from, s.held);
  add_columns(to->dw, dw, 1, n->cols, s.from, s.held);
  free(y), free(rstd), free(dx), free(dw), free(own), free(copy);
}

/* The definition: y, and the gradients of sum dy y. */
static norm_results norm_definition(const norm *n, const normed *d) {
  norm_results to = new_results(n);
  for (int64_t r = 0; r < n->rows; r++) {
    const float *x = d->x + r * n->cols, *dy = d->dy + r * n->cols;
    double squares = 0, dot = 0, width = (double)n->cols;
    for (int64_t c = 0; c < n->cols; c++) {
      squares += (double)x[c] * (double)x[c];
      dot += (double)dy[c] * (double)x[c] * ((double)d->w[c] + (double)n->offset);
    }
    double rms = sqrt(squares / width + (double)eps);
    for (int64_t c = 0; c < n->cols; c++) {
      double w = (double)d->w[c] + (double)n->offset;
      to.y[r * n->cols + c] = (double)x[c] * w / rms;
      to.dx[r * n->cols + c] =
          (double)dy[c] * w / rms - (double)x[c] * dot / (width * rms * rms * rms);
      to.dw[c] += (double)dy[c] * (double)x[c] / rms;
    }
  }
  return to;
}

/* That its gradients are those: differences of y along every x. */
static int is_its_gradient(const norm *n, normed *d, const double *dx) {
  int good = 1;
  for (int64_t i = 0; i < n->rows * n->cols; i++) {
    double slope = 0;
    float was = d->x[i], at[] = {was + 0x1p-8f, was - 0x1p-8f};
    for (int side = 0; side < 2; side++) {
      d->x[i] = at[side];
      norm_results r = norm_definition(n, d);
      for (int64_t k = 0; k < n->rows * n->cols; k++)
        slope += (side ? -1 : 1) * r.y[k] * (double)d->dy[k];
      free_results(&r);
    }
    d->x[i] = was;
    good &= fabs(slope / ((double)at[0] - (double)at[1]) - dx[i]) <
            1e-3; /* the third derivative's part */
  }
  return good;
}

static void norm_parts(const norm *n) {
  normed d = norm_inputs(n);
  norm_results want = norm_definition(n, &d), got = new_results(n);
  sum_parts(n, &d);
  for (int p = 0; p < n->parts; p++) norm_part(n, &d, p, &got);
  CHECK(is_close(got.y, want.y, n->rows * n->cols, 1e-6));
  /* shares of 3/2 and less than 0, sums in f32 and the 2 that was there: some eps of numbers of that size */
  CHECK(is_close(got.dx, want.dx, n->rows * n->cols, 3e-6) &&
        is_close(got.dw, want.dw, n->cols, 3e-6));
  CHECK(is_its_gradient(n, &d, want.dx));
  free_results(&want);
  free_results(&got);
  free_normed(&d);
}

/* One part that is the whole: the same bits as without parts. */
static void norm_of_one(int64_t rows, int64_t cols) {
  float *x = drawn(rows * cols, 1), *w = drawn(cols, 2), *dy = drawn(rows * cols, 3);
  float *y[2], *rstd[2], *dx[2], *dw[2], *sum = made(rows);
  ms_norm_part part = {sum, cols, 0};
  ms_act xs = ms_act_f32(x), dys = ms_act_f32(dy);
  for (int i = 0; i < 2; i++) {
    y[i] = made(rows * cols), rstd[i] = made(rows), dx[i] = made(rows * cols), dw[i] = of(1, cols);
    if (i) CHECK(ops->row_dot(NULL, sum, xs, xs, NULL, MS_F32, rows, cols, 0, 0) == MS_OK);
    CHECK(ops->rmsnorm(NULL, ms_act_f32(y[i]), rstd[i], xs, w, MS_F32, rows, cols, eps, 1,
                       i ? &part : NULL) == MS_OK);
    if (i) CHECK(ops->row_dot(NULL, sum, dys, xs, w, MS_F32, rows, cols, 0, 1) == MS_OK);
    CHECK(ops->rmsnorm_backward(NULL, ms_act_f32(dx[i]), dw[i], dys, xs, rstd[i], w, MS_F32, rows,
                                cols, 1, 0, i ? &part : NULL) == MS_OK);
  }
  CHECK(are_columns(y[1], y[0], rows, cols, 0, cols) &&
        are_columns(dx[1], dx[0], rows, cols, 0, cols));
  CHECK(are_columns(dw[1], dw[0], 1, cols, 0, cols) &&
        are_columns(rstd[1], rstd[0], 1, rows, 0, rows));
  for (int i = 0; i < 2; i++) free(y[i]), free(rstd[i]), free(dx[i]), free(dw[i]);
  free(x), free(w), free(dy), free(sum);
}

static void norms(void) {
  static const norm cases[] = {
      {3, 36, 2, MS_F32, 0, {{0, 16, 0}, {16, 20, 0}}},
      {3, 36, 2, MS_BF16, 1, {{0, 24, 0}, {12, 24, 12}}},
      {70, 12, 3, MS_F32, 1, {{0, 8, 0}, {4, 4, 4}, {4, 8, 4}}},
      {2, 200, 4, MS_BF16, 0, {{0, 50, 0}, {50, 100, 0}, {100, 50, 50}, {150, 50, 0}}},
      {0, 8, 2, MS_F32, 0, {{0, 4, 0}, {4, 4, 0}}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    TEST("norms of rows that are cut are those of whole rows, and so are their gradients");
    norm_parts(&cases[i]);
  }
  TEST("a norm in one part has the same bits");
  norm_of_one(70, 37);
  norm_of_one(130, 1024);
}

/* A rank without rows makes the same calls: what is set becomes 0, what is added to stays. */
static void no_rows(void) {
  enum { COLS = 20 };
  float *x = of(1, COLS), *w = of(2, COLS * COLS), *d = of(3, COLS * COLS), *sum = of(4, COLS);
  const float *three = of(3, COLS * COLS), *zero = of(0, COLS * COLS);
  const int32_t *row = NULL;
  ms_act a = ms_act_f32(x);
  TEST("no rows");
  CHECK(ops->rmsnorm(NULL, a, sum, a, w, MS_F32, 0, COLS, eps, 0, NULL) == MS_OK);
  CHECK(ops->rmsnorm_backward(NULL, a, d, a, a, sum, w, MS_F32, 0, COLS, 0, 0, NULL) == MS_OK);
  CHECK(ops->row_dot(NULL, sum, a, a, w, MS_F32, 0, COLS, 0, 0) == MS_OK);
  CHECK(ops->bias(NULL, a, w, MS_F32, 0, COLS) == MS_OK);
  CHECK(ops->bias_db(NULL, d, a, 0, COLS) == MS_OK);
  CHECK(ops->add(NULL, a, a, 0, 1) == MS_OK);
  CHECK(ops->gather(NULL, a, a, row, 0, COLS) == MS_OK);
  CHECK(ops->scatter(NULL, a, a, row, 0, COLS) == MS_OK);
  CHECK(ops->linear(NULL, a, a, w, MS_F32, 0, COLS, COLS, 0) == MS_OK);
  CHECK(ops->linear_dx(NULL, a, a, w, MS_F32, 0, COLS, COLS, 0) == MS_OK);
  CHECK(ops->linear_dw(NULL, d, a, a, 0, COLS, COLS, 1) == MS_OK);
  CHECK(!memcmp(d, three, COLS * COLS * sizeof *d) && x[0] == 1 && sum[0] == 4);
  CHECK(ops->linear_dw(NULL, d, a, a, 0, COLS, COLS, 0) == MS_OK);
  CHECK(!memcmp(d, zero, COLS * COLS * sizeof *d));
  free(x), free(w), free(d), free(sum), free((void *)three), free((void *)zero);
}

int main(void) {
  ops = ms_cpu_backend(&ms_device_host);
  attention();
  TEST("parts of an embedding add up to it, and have the gradients of their rows");
  for (int32_t ranks = 1; ranks <= 5; ranks++) embed_parts(ranks, ranks % 2 ? MS_F32 : MS_BF16);
  norms();
  no_rows();
  return test_end();
}

/* head.c - the fused head: chunks of rows through product, loss pass and the products backward.
 *
 * One piece of memory holds a chunk: the student's logits, the logits of each teacher with a full
 * target, and what the loss pass reads of each row. Its size is the budget whatever the number of
 * rows. The loss pass looks at one row at a time, so a row's numbers depend on its chunk only as far
 * as the products' rounding does; the head's gradient, a sum over chunks, changes in its last bits
 * with their size. */
#include "head.h"

#include <math.h>
#include <string.h>

#include "../../kernels/head.h"
#include "../base/memory.h"
#include "../tensor/tensor.h"
#include "objective.h"

/* A full target and its place in the workspace. */
typedef struct source {
  const ms_target *target;
  float *logits;
  float *wide; /* a chunk of hidden states, widened or brought to the device */
} source;

/* A term's top-k rows, when they have to be brought to the device. */
typedef struct upload {
  int32_t *id;
  float *log_p, *log_rest;
} upload;

typedef struct space {
  const ms_head_call *call;
  int64_t size; /* rows of a chunk */
  /* on the device */
  float *logits;
  int32_t *label, *row[2]; /* row[on][r]: the row's place among those with weight, from the chunk's
                              first on; -1 without weight */
  float *weight[2];
  double *stats;
  /* host */
  int sources;
  source *source;
  upload *upload;
  ms_head_term *term;
  ms_head_source *kernel_source;
  int32_t *host_row;
  double *host_stats, *norm;
} space;

/* ---- checks ---- */

/* A hidden target's logits are computed now, with the head that its states were made for. */
static ms_status check_fresh(const ms_target *t, const char *name, int32_t i) {
  if (t->options.kind != MS_TARGET_HIDDEN || !t->head.changes) return MS_OK;
  MS_REQUIRE(atomic_load(t->head.changes) == t->made,
             "term %d (%s): the teacher's head has changed since its target was made (by a step, a "
             "checkpoint or a write), and a hidden target takes it as it is now: make the target "
             "again, or one of kind topk, which keeps what it was made of",
             i + 1, name);
  return MS_OK;
}

static ms_status check_kd(const ms_head_call *c, int32_t i) {
  const ms_term *t = &c->term[i];
  const ms_objective *o = ms_objective_get(t->objective);
  MS_REQUIRE(t->target, "term %d (kd): no target", i + 1);
  MS_REQUIRE(o, "term %d (kd): %d is no objective", i + 1, t->objective);
  const ms_target_options *to = &t->target->options;
  if (!isnan(t->parameter) && o->parameter)
    MS_REQUIRE(t->parameter >= 0 && (o->below_one ? t->parameter < 1 : t->parameter <= 1),
               "term %d (%s): %s = %g not in [0, 1%s", i + 1, o->name, o->parameter, t->parameter,
               o->below_one ? ")" : "]");
  MS_REQUIRE(t->tail == MS_TAIL_BUCKET || t->tail == MS_TAIL_RENORMALIZE, "term %d (%s): tail = %d",
             i + 1, o->name, t->tail);
  MS_REQUIRE(isnan(t->temperature) || ms_temperature_fits(t->temperature),
             "term %d (%s): temperature %g, not in %g..%g", i + 1, o->name, t->temperature,
             MS_MIN_TEMPERATURE, MS_MAX_TEMPERATURE);
  /* either may be NaN, and is no less than the other then */
  MS_REQUIRE(!(fabs(t->temperature - to->temperature) > 1e-9 * to->temperature),
             "term %d (%s): temperature %g, but its target was made at %g", i + 1, o->name,
             t->temperature, to->temperature);
  MS_REQUIRE(isnan(t->t_scale) || isfinite(t->t_scale), "term %d (%s): t_scale %g", i + 1, o->name,
             t->t_scale);
  MS_REQUIRE(to->on == t->on, "term %d (%s): on = %s, but its target covers %s", i + 1, o->name,
             t->on ? "all" : "response", to->on ? "all" : "response");
  MS_REQUIRE(to->vocab <= c->head.vocab,
             "term %d (%s): the target covers %lld ids, the student has %lld: ask the teacher for "
             "the shared ones (vocab)",
             i + 1, o->name, (long long)to->vocab, (long long)c->head.vocab);
  MS_REQUIRE(!t->target->dev || t->target->dev == c->dev,
             "term %d (%s): the target is on %s, the student on %s", i + 1, o->name,
             t->target->dev->spec, c->dev->spec);
  return check_fresh(t->target, o->name, i);
}

static ms_status check_term(const ms_head_call *c, int32_t i) {
  const ms_term *t = &c->term[i];
  MS_REQUIRE(t->on == MS_ON_RESPONSE || t->on == MS_ON_ALL, "term %d: on = %d", i + 1, t->on);
  MS_REQUIRE(isfinite(t->weight), "term %d: weight %g", i + 1, t->weight);
  MS_REQUIRE(!isnan(t->norm) && t->norm != INFINITY, "term %d: norm %g", i + 1, t->norm);
  MS_REQUIRE(t->kind == MS_TERM_CE || t->kind == MS_TERM_KD, "term %d: %d is no kind", i + 1,
             t->kind);
  if (t->kind == MS_TERM_KD) return check_kd(c, i);
  MS_REQUIRE(!t->target, "term %d (ce): it takes no target", i + 1);
  return MS_OK;
}

static ms_status check_rows(const ms_head_call *c, const int64_t *count) {
  for (int on = 0; on < 2; on++)
    for (int64_t r = 0; r < c->rows; r++)
      MS_REQUIRE(!c->weight[on] || (c->weight[on][r] >= 0 && isfinite(c->weight[on][r])),
                 "head: row %lld has weight %g", (long long)r, c->weight[on][r]);
  for (int64_t r = 0; c->label && r < c->rows; r++)
    MS_REQUIRE(c->label[r] >= 0 && c->label[r] < c->head.vocab,
               "head: row %lld has label %d, but the student has ids 0..%lld", (long long)r,
               c->label[r], (long long)c->head.vocab - 1);
  for (int32_t i = 0; i < c->terms; i++) {
    const ms_term *t = &c->term[i];
    MS_REQUIRE(t->kind != MS_TERM_CE || c->label, "term %d (ce): no labels", i + 1);
    MS_REQUIRE(t->kind != MS_TERM_KD || t->target->rows == count[t->on],
               "term %d (%s): the target has %lld rows, the batch %lld with a weight for \"%s\"",
               i + 1, ms_objective_get(t->objective)->name, (long long)t->target->rows,
               (long long)count[t->on], t->on ? "all" : "response");
  }
  return MS_OK;
}

/* A weight that is not given: none for the response, 1 for all, as in ms_batch_new. */
static float weight_of(const ms_head_call *c, int on, int64_t r) {
  return c->weight[on] ? c->weight[on][r] : (float)(on == MS_ON_ALL);
}

static void count_rows(const ms_head_call *c, int64_t *count, double *sum) {
  for (int on = 0; on < 2; on++) {
    count[on] = 0;
    sum[on] = 0;
    for (int64_t r = 0; r < c->rows; r++) {
      float a = weight_of(c, on, r);
      count[on] += a > 0;
      sum[on] += a;
    }
  }
}

/* ---- workspace ---- */

static void *cut(char *base, size_t *used, size_t bytes) {
  void *p = base ? base + *used : NULL;
  *used += (bytes + 63) / 64 * 64;
  return p;
}

static int is_full(const ms_term *t) {
  return t->kind == MS_TERM_KD && t->target->options.kind != MS_TARGET_TOPK;
}

/* Terms of one full target share its logits. */
static int source_of(space *w, const ms_target *target) {
  for (int i = 0; i < w->sources; i++)
    if (w->source[i].target == target) return i;
  w->source[w->sources].target = target;
  return w->sources++;
}

/* Hidden states that need a copy of their own on the way to the product. */
static int needs_wide(const ms_target *t) {
  return t->options.kind == MS_TARGET_HIDDEN && t->options.hidden_dtype != MS_F32;
}

/* The device's part for chunks of `size` rows; with `base` NULL only adds up. */
static size_t lay_device(space *w, char *base, int64_t size) {
  const ms_head_call *c = w->call;
  size_t u = 0, n = (size_t)size;
  w->logits = cut(base, &u, n * (size_t)c->head.vocab * 4);
  for (int i = 0; i < w->sources; i++) {
    source *s = &w->source[i];
    s->logits = cut(base, &u, n * (size_t)s->target->head.vocab * 4);
    s->wide = cut(base, &u, needs_wide(s->target) ? n * (size_t)s->target->head.width * 4 : 0);
  }
  for (int32_t i = 0; i < c->terms; i++) {
    const ms_term *t = &c->term[i];
    int host = t->kind == MS_TERM_KD && !is_full(t) && !t->target->dev;
    size_t k = host ? (size_t)t->target->options.k : 0;
    w->upload[i].id = cut(base, &u, n * k * 4);
    w->upload[i].log_p = cut(base, &u, n * k * 4);
    w->upload[i].log_rest = cut(base, &u, k ? n * 4 : 0);
  }
  w->label = cut(base, &u, n * 4);
  for (int on = 0; on < 2; on++) {
    w->row[on] = cut(base, &u, n * 4);
    w->weight[on] = cut(base, &u, n * 4);
  }
  w->stats = cut(base, &u, n * (size_t)c->terms * MS_HEAD_STATS * 8);
  return u;
}

static size_t lay_host(space *w, char *base, int64_t size) {
  size_t u = 0, n = (size_t)size, t = (size_t)w->call->terms;
  w->source = cut(base, &u, t * sizeof *w->source);
  w->upload = cut(base, &u, t * sizeof *w->upload);
  w->term = cut(base, &u, t * sizeof *w->term);
  w->kernel_source = cut(base, &u, t * sizeof *w->kernel_source);
  w->norm = cut(base, &u, t * sizeof *w->norm);
  w->host_row = cut(base, &u, n * 4);
  w->host_stats = cut(base, &u, n * t * MS_HEAD_STATS * 8);
  return u;
}

/* Rows of a chunk: what fits into the budget, in chunks of equal size. */
static int64_t chunk_size(space *w) {
  const ms_head_call *c = w->call;
  size_t budget = c->budget > 0 ? (size_t)c->budget : MS_HEAD_BUDGET;
  int64_t few = 64, most;
  size_t per_row = lay_device(w, NULL, 2 * few) - lay_device(w, NULL, few);
  per_row = (per_row + (size_t)few - 1) / (size_t)few;
  most = (int64_t)(budget / per_row);
  /* roundings to whole cache lines can make that a little too many */
  while (most > 1 && lay_device(w, NULL, most) > budget) most--;
  if (most < 1) most = 1;
  int64_t chunks = (c->rows + most - 1) / most;
  return chunks ? (c->rows + chunks - 1) / chunks : 1;
}

void ms_head_space_free(ms_head_space *s) {
  if (s->dev) ms_device_free(s->dev, s->data, s->bytes);
  memset(s, 0, sizeof *s);
}

static ms_status reserve(ms_head_space *s, ms_device *dev, size_t bytes) {
  if (s->dev == dev && s->bytes >= bytes) return MS_OK;
  ms_head_space_free(s);
  MS_TRY(ms_device_new(dev, bytes, &s->data));
  s->dev = dev;
  s->bytes = bytes;
  return MS_OK;
}

/* Lists the sources; w->source and the others that depend on terms only are in `small`. */
static ms_status plan_space(space *w, const ms_head_call *c, void **small) {
  memset(w, 0, sizeof *w);
  w->call = c;
  size_t bytes = lay_host(w, NULL, 0);
  MS_TRY(ms_alloc(bytes, "head: terms", small));
  lay_host(w, *small, 0);
  for (int32_t i = 0; i < c->terms; i++)
    if (is_full(&c->term[i])) source_of(w, c->term[i].target);
  w->size = chunk_size(w);
  return MS_OK;
}

int64_t ms_head_workspace(const ms_head_call *c) {
  space w;
  void *small;
  if (plan_space(&w, c, &small) != MS_OK) return 0;
  size_t bytes = lay_device(&w, NULL, w.size);
  ms_free(small);
  return (int64_t)bytes;
}

/* ---- chunks ---- */

/* The product's operand of a chunk of a full target, then its logits. */
static ms_status teacher_logits(const space *w, const source *s, int64_t from, int64_t n) {
  const ms_target *t = s->target;
  const ms_head_weights *h = &t->head;
  ms_device *dev = w->call->dev;
  if (!n) return MS_OK;
  if (t->options.kind == MS_TARGET_LOGITS) {
    const float *rows = t->logits + from * h->vocab;
    size_t bytes = (size_t)(n * h->vocab) * 4;
    return t->dev ? MS_OP(dev, copy, s->logits, rows, bytes)
                  : MS_OP(dev, write, s->logits, rows, bytes);
  }
  ms_act hidden = ms_act_at((ms_act){t->hidden, t->options.hidden_dtype}, from * h->width);
  if (needs_wide(t)) {
    MS_TRY(MS_OP(dev, cast, s->wide, MS_F32, hidden.at, hidden.dtype, n * h->width));
    hidden = ms_act_f32(s->wide);
  }
  return MS_OP(dev, linear, ms_act_f32(s->logits), hidden, h->w, h->dtype, n, h->width, h->vocab,
               0);
}

/* The rows of a top-k term, where the kernel finds them. */
static ms_status topk_rows(space *w, int32_t i, int64_t from, int64_t n) {
  const ms_target *t = w->call->term[i].target;
  ms_device *dev = w->call->dev;
  ms_head_term *k = &w->term[i];
  size_t count = (size_t)t->options.k;
  k->id = t->id + from * k->k;
  k->log_p = t->log_p + from * k->k;
  k->log_rest = t->log_rest + from;
  if (t->dev || !n) return MS_OK;
  MS_TRY(MS_OP(dev, write, w->upload[i].id, k->id, (size_t)n * count * 4));
  MS_TRY(MS_OP(dev, write, w->upload[i].log_p, k->log_p, (size_t)n * count * 4));
  MS_TRY(MS_OP(dev, write, w->upload[i].log_rest, k->log_rest, (size_t)n * 4));
  k->id = w->upload[i].id;
  k->log_p = w->upload[i].log_p;
  k->log_rest = w->upload[i].log_rest;
  return MS_OK;
}

/* The term's, or else its target's, or else 1: check_kd has seen that two agree. */
static double temperature_of(const ms_term *t) {
  if (!isnan(t->temperature)) return t->temperature;
  double given = t->target->options.temperature;
  return isnan(given) ? 1 : given;
}

/* What of a term is the same for all chunks. */
static void set_term(space *w, int32_t i, double sum) {
  const ms_term *t = &w->call->term[i];
  ms_head_term *k = &w->term[i];
  w->norm[i] = t->norm > 0 ? t->norm : sum;
  *k = (ms_head_term){.kind = t->kind,
                      .objective = t->objective,
                      .tail = t->tail,
                      .source = -1,
                      .vocab = w->call->head.vocab,
                      .inv_t = 1,
                      .inv_tt = 1,
                      .t_scale = 1,
                      .weight = w->weight[t->on],
                      .row = w->row[t->on]};
  if (t->kind == MS_TERM_KD) {
    const ms_objective *o = ms_objective_get(t->objective);
    const ms_target_options *to = &t->target->options;
    double temp = temperature_of(t);
    if (is_full(t)) k->source = source_of(w, t->target);
    k->vocab = to->vocab;
    k->k = is_full(t) ? 0 : to->k;
    k->inv_t = 1 / temp;
    k->inv_tt = 1 / (temp * to->teacher_temperature);
    k->parameter = isnan(t->parameter) ? o->normal : t->parameter;
    k->t_scale = isnan(t->t_scale) ? pow(temp, o->power) : t->t_scale;
    k->sign_width = 1e-5 * fmax(1, 1 / temp);
  }
  k->gradient = w->norm[i] > 0 ? t->weight * k->t_scale / w->norm[i] : 0;
}

/* Brings labels, weights and row numbers of a chunk to the device; count[on] is the number of rows
 * with weight in it. */
static ms_status load_rows(space *w, int64_t first, int64_t n, int64_t *count) {
  const ms_head_call *c = w->call;
  if (c->label) MS_TRY(MS_OP(c->dev, write, w->label, c->label + first, (size_t)n * 4));
  for (int on = 0; on < 2; on++) {
    float *weight = (float *)w->host_row;
    for (int64_t r = 0; r < n; r++) weight[r] = weight_of(c, on, first + r);
    MS_TRY(MS_OP(c->dev, write, w->weight[on], weight, (size_t)n * 4));
    count[on] = 0;
    for (int64_t r = 0; r < n; r++)
      w->host_row[r] = weight_of(c, on, first + r) > 0 ? (int32_t)count[on]++ : -1;
    MS_TRY(MS_OP(c->dev, write, w->row[on], w->host_row, (size_t)n * 4));
  }
  return MS_OK;
}

/* Puts a chunk's numbers into the results. */
static ms_status add_results(space *w, int64_t first, int64_t n) {
  const ms_head_call *c = w->call;
  size_t bytes = (size_t)n * (size_t)c->terms * MS_HEAD_STATS * sizeof(double);
  MS_TRY(MS_OP(c->dev, read, w->host_stats, w->stats, bytes));
  for (int64_t r = 0; r < n; r++)
    for (int32_t i = 0; i < c->terms; i++) {
      const double *s = w->host_stats + (r * c->terms + i) * MS_HEAD_STATS;
      double a = weight_of(c, c->term[i].on, first + r);
      ms_term_result *y = &c->result[i];
      if (!(a > 0)) continue;
      y->value += a * s[MS_HEAD_VALUE];
      y->weight += a;
      y->rows += 1;
      y->agree += a * s[MS_HEAD_AGREE];
      y->teacher_mass += a * s[MS_HEAD_TEACHER_MASS];
      y->student_mass += a * s[MS_HEAD_STUDENT_MASS];
      y->teacher_entropy += a * s[MS_HEAD_TEACHER_ENTROPY];
      y->student_entropy += a * s[MS_HEAD_STUDENT_ENTROPY];
    }
  return MS_OK;
}

/* The loss pass over a chunk whose logits are there. from[on]: rows with weight before it. */
static ms_status loss_pass(space *w, int64_t first, int64_t n, const int64_t *from) {
  const ms_head_call *c = w->call;
  int64_t count[2];
  MS_TRY(load_rows(w, first, n, count));
  for (int i = 0; i < w->sources; i++) {
    const source *s = &w->source[i];
    int on = s->target->options.on;
    MS_TRY(teacher_logits(w, s, from[on], count[on]));
    w->kernel_source[i] = (ms_head_source){s->logits, s->target->head.vocab, s->target->head.scale,
                                           s->target->head.soft_cap, w->row[on]};
  }
  for (int32_t i = 0; i < c->terms; i++)
    if (w->term[i].k) MS_TRY(topk_rows(w, i, from[c->term[i].on], count[c->term[i].on]));
  ms_head_args a = {.stats = w->stats,
                    .logits = w->logits,
                    .label = c->label ? w->label : NULL,
                    .rows = n,
                    .vocab = c->head.vocab,
                    .scale = c->head.scale,
                    .soft_cap = c->head.soft_cap,
                    .gradient = c->d_hidden.at != NULL,
                    .terms = c->terms,
                    .sources = w->sources,
                    .term = w->term,
                    .source = w->kernel_source};
  MS_TRY(MS_OP(c->dev, head_loss, &a));
  return add_results(w, first, n);
}

static ms_status run_chunk(space *w, int64_t first, int64_t n, const int64_t *from) {
  const ms_head_call *c = w->call;
  const ms_head_weights *h = &c->head;
  ms_act x = ms_act_at(c->hidden, first * h->width), logits = ms_act_f32(w->logits);
  MS_TRY(MS_OP(c->dev, linear, logits, x, h->w, h->dtype, n, h->width, h->vocab, 0));
  MS_TRY(loss_pass(w, first, n, from));
  if (!c->d_hidden.at) return MS_OK;
  MS_TRY(MS_OP(c->dev, linear_dx, ms_act_at(c->d_hidden, first * h->width), logits, h->w, h->dtype,
               n, h->width, h->vocab, 0));
  if (!c->d_head) return MS_OK;
  return MS_OP(c->dev, linear_dw, c->d_head, logits, x, n, h->width, h->vocab, 1);
}

static ms_status run_chunks(space *w, const double *sum) {
  const ms_head_call *c = w->call;
  int64_t from[2] = {0, 0};
  for (int32_t i = 0; i < c->terms; i++) set_term(w, i, sum[c->term[i].on]);
  for (int64_t first = 0; first < c->rows; first += w->size) {
    int64_t n = c->rows - first < w->size ? c->rows - first : w->size;
    MS_TRY(run_chunk(w, first, n, from));
    for (int on = 0; on < 2; on++)
      for (int64_t r = first; r < first + n; r++) from[on] += weight_of(c, on, r) > 0;
  }
  return MS_OK;
}

ms_status ms_head_learn(const ms_head_call *c) {
  space w;
  ms_head_space own = {NULL, NULL, 0}, *shared = c->space ? c->space : &own;
  void *small = NULL, *host = NULL;
  int64_t count[2];
  double sum[2];
  ms_status st;

  MS_REQUIRE(c->terms >= 0 && c->rows >= 0, "head: %d terms, %lld rows", c->terms,
             (long long)c->rows);
  MS_REQUIRE(c->d_hidden.at || !c->d_head,
             "head: the head's gradient needs that of the hidden states");
  for (int32_t i = 0; i < c->terms; i++) MS_TRY(check_term(c, i));
  count_rows(c, count, sum);
  MS_TRY(check_rows(c, count));
  memset(c->result, 0, (size_t)c->terms * sizeof *c->result);
  if (!c->rows) return MS_OK;

  MS_TRY(plan_space(&w, c, &small));
  space planned = w;
  MS_TRY_OR(end, ms_alloc(lay_host(&w, NULL, w.size), "head: rows", &host));
  lay_host(&w, host, w.size);
  memcpy(w.source, planned.source, (size_t)w.sources * sizeof *w.source);
  MS_TRY_OR(end, reserve(shared, c->dev, lay_device(&w, NULL, w.size)));
  lay_device(&w, shared->data, w.size);
  st = run_chunks(&w, sum);
end:
  ms_free(small);
  ms_free(host);
  ms_head_space_free(&own);
  return st;
}

/* ---- the head alone ---- */

static ms_status check_tensor(const char *name, const ms_tensor *t, const ms_tensor *hidden,
                              int64_t rows, int half) {
  char s[200];
  MS_REQUIRE(t->dev == hidden->dev, "head: %s is on %s, hidden on %s", name, t->dev->spec,
             hidden->dev->spec);
  MS_REQUIRE(t->rank == 2 && (rows < 0 || t->shape[0] == rows) && t->shape[1] == hidden->shape[1] &&
                 (t->dtype == MS_F32 || (half && t->dtype == MS_BF16)),
             "head: %s is %s %s, hidden %lld x %lld", name, ms_dtype_name(t->dtype),
             ms_shape_text(t->rank, t->shape, s), (long long)hidden->shape[0],
             (long long)hidden->shape[1]);
  return MS_OK;
}

/* The head of two tensors, checked. */
static ms_status head_of(const ms_tensor *hidden, const ms_tensor *head, double scale,
                         double soft_cap, ms_head_weights *out) {
  char s[200];
  MS_REQUIRE(hidden && head, "head: no hidden states or no head");
  MS_REQUIRE(hidden->rank == 2 && hidden->dtype == MS_F32, "head: hidden is %s %s",
             ms_dtype_name(hidden->dtype), ms_shape_text(hidden->rank, hidden->shape, s));
  MS_TRY(check_tensor("head", head, hidden, -1, 1));
  MS_REQUIRE(scale != 0 && isfinite(scale) && soft_cap >= 0 && isfinite(soft_cap),
             "head: scale %g, soft_cap %g", scale, soft_cap);
  *out = (ms_head_weights){head->data,   head->dtype,     head->shape[0], head->shape[1],
                           (float)scale, (float)soft_cap, head->changes};
  return MS_OK;
}

ms_status ms_head_run(const ms_tensor *hidden, const ms_tensor *head, double scale, double soft_cap,
                      const int32_t *label, const float *response, const float *all, int32_t terms,
                      const ms_term *term, int64_t budget, ms_tensor *d_hidden, ms_tensor *d_head,
                      ms_term_result *result) {
  ms_head_call call = {0};
  MS_TRY(head_of(hidden, head, scale, soft_cap, &call.head));
  if (d_hidden) MS_TRY(check_tensor("d_hidden", d_hidden, hidden, hidden->shape[0], 0));
  if (d_head) MS_TRY(check_tensor("d_head", d_head, hidden, head->shape[0], 0));
  call.dev = hidden->dev;
  call.rows = hidden->shape[0];
  call.hidden = ms_tensor_act(hidden);
  call.label = label;
  call.weight[MS_ON_RESPONSE] = response;
  call.weight[MS_ON_ALL] = all;
  call.terms = terms;
  call.term = term;
  call.budget = budget;
  if (d_hidden) call.d_hidden = ms_tensor_act(d_hidden);
  call.d_head = d_head ? d_head->data : NULL;
  call.result = result;
  return ms_head_learn(&call);
}

static void hold_tensor(void *owner, int by) {
  ms_tensor *t = owner;
  if (by > 0)
    atomic_fetch_add(&t->refs, 1);
  else
    ms_tensor_free(t);
}

ms_status ms_target_new(const ms_target_options *options, const ms_tensor *hidden, ms_tensor *head,
                        double scale, double soft_cap, int64_t budget, ms_target **out) {
  ms_head_weights w;
  *out = NULL;
  MS_TRY(head_of(hidden, head, scale, soft_cap, &w));
  return ms_target_make(hidden->dev, options, hidden->shape[0], ms_tensor_act(hidden), &w, budget,
                        hold_tensor, head, out);
}

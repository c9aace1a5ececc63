/* head.c - the fused head: chunks of rows through product, loss pass and the products backward.
 *
 * The workspace holds a chunk: the student's logits, and those of each teacher with a full target. Its size
 * is the budget whatever the number of rows. The loss pass looks at one row at a time, so a row's
 * numbers depend on its chunk only as far as the products' rounding does; the head's gradient, a sum
 * over chunks, changes in its last bits with their size. */
#include "head.h"

#include <math.h>
#include <string.h>

#include "head_call.h"
#include "objective.h"

static void count_rows(const ms_head_call *c, int64_t *count, double *sum) {
  for (int on = 0; on < 2; on++) {
    count[on] = 0;
    sum[on] = 0;
    for (int64_t r = 0; r < c->rows; r++) {
      float a = ms_head_weight(c, on, r);
      count[on] += a > 0;
      sum[on] += a;
    }
  }
}

/* ---- terms ---- */

/* The term's, or else its target's, or else 1: the checks have seen that two agree. */
static double temperature_of(const ms_term *t) {
  if (!isnan(t->temperature)) return t->temperature;
  double given = t->target->options.temperature;
  return isnan(given) ? 1 : given;
}

static void set_divergence(const ms_head_work *w, const ms_term *t, ms_head_term *k) {
  const ms_objective *o = ms_objective_get(t->objective);
  const ms_target_options *to = &t->target->options;
  double temp = temperature_of(t);
  if (ms_head_is_full(t)) k->source = ms_head_full_of(w, t->target);
  k->vocab = ms_head_below(&w->call->head, to->vocab);
  k->k = ms_head_is_full(t) ? 0 : to->k;
  k->leftover = k->k < to->vocab;
  k->inv_t = 1 / temp;
  k->inv_tt = 1 / (temp * to->teacher_temperature);
  k->parameter = isnan(t->parameter) ? o->normal : t->parameter;
  k->objective = ms_objective_resolve(t->objective, k->parameter);
  k->gaps = ms_objective_get(k->objective)->gaps;
  k->t_scale = isnan(t->t_scale) ? pow(temp, o->power) : t->t_scale;
  k->sign_width = 1e-5 * fmax(1, 1 / temp);
}

/* What of a term is the same for all chunks; `sum` of its rows' weights. */
static void set_term(ms_head_work *w, int32_t i, double sum) {
  const ms_term *t = &w->call->term[i];
  ms_head_term *k = &w->term[i];
  w->norm[i] = t->norm > 0 ? t->norm : sum;
  *k = (ms_head_term){.kind = t->kind,
                      .tail = t->tail,
                      .source = -1,
                      .vocab = w->call->head.vocab,
                      .inv_t = 1,
                      .inv_tt = 1,
                      .t_scale = 1};
  if (t->kind == MS_TERM_KD) set_divergence(w, t, k);
  k->gradient = w->norm[i] > 0 ? t->weight * k->t_scale / w->norm[i] : 0;
}

/* ---- rows ---- */

/* Labels, weights and row numbers of the whole call, to the device. */
static ms_status write_rows(ms_head_work *w) {
  const ms_head_call *c = w->call;
  size_t bytes = (size_t)c->rows * sizeof(float);
  if (c->label) MS_TRY(MS_OP(c->dev, write, w->label, c->label, bytes));
  for (int on = 0; on < 2; on++) {
    float *weight = w->host_row;
    int32_t *row = w->host_row, count = 0;
    for (int64_t r = 0; r < c->rows; r++) weight[r] = ms_head_weight(c, on, r);
    MS_TRY(MS_OP(c->dev, write, w->weight[on], weight, bytes));
    for (int64_t r = 0; r < c->rows; r++) row[r] = ms_head_weight(c, on, r) > 0 ? count++ : -1;
    MS_TRY(MS_OP(c->dev, write, w->row[on], row, bytes));
  }
  return MS_OP(c->dev, zero, w->total, (size_t)c->terms * MS_HEAD_TOTALS * sizeof *w->total);
}

/* The one time that the host waits. */
static ms_status read_totals(ms_head_work *w) {
  const ms_head_call *c = w->call;
  size_t bytes = (size_t)c->terms * MS_HEAD_TOTALS * sizeof *w->total;
  MS_TRY(MS_OP(c->dev, read, w->host_total, w->total, bytes));
  if (c->each) {
    bytes = (size_t)(c->rows * c->terms) * MS_HEAD_EACH * sizeof *c->each;
    MS_TRY(MS_OP(c->dev, read, c->each, w->each, bytes));
  }
  for (int32_t i = 0; i < c->terms; i++) {
    const double *sum = w->host_total + i * MS_HEAD_TOTALS;
    c->result[i] = (ms_term_result){.value = sum[MS_HEAD_VALUE],
                                    .weight = sum[MS_HEAD_WEIGHT],
                                    .rows = (int64_t)sum[MS_HEAD_ROWS],
                                    .agree = sum[MS_HEAD_AGREE],
                                    .teacher_mass = sum[MS_HEAD_TEACHER_MASS],
                                    .student_mass = sum[MS_HEAD_STUDENT_MASS],
                                    .teacher_entropy = sum[MS_HEAD_TEACHER_ENTROPY],
                                    .student_entropy = sum[MS_HEAD_STUDENT_ENTROPY]};
  }
  return MS_OK;
}

/* ---- chunks ---- */

/* n rows from `first` on; with weight for `on`, count[on] of them, and from[on] before them. */
typedef struct chunk {
  int64_t first, n, from[2], count[2];
} chunk;

/* The product's operand of a chunk of a full target, then its logits. */
static ms_status teacher_logits(const ms_head_work *w, const ms_head_full *f, int64_t from,
                                int64_t n) {
  const ms_target *t = f->target;
  const ms_head_weights *h = &t->head;
  ms_device *dev = w->call->dev;
  if (!n || !f->used) return MS_OK;
  if (t->options.kind == MS_TARGET_LOGITS) {
    const float *rows = t->logits + from * h->vocab;
    size_t bytes = (size_t)(n * h->vocab) * sizeof *rows;
    return t->dev ? MS_OP(dev, copy, f->logits, rows, bytes)
                  : MS_OP(dev, write, f->logits, rows, bytes);
  }
  ms_act hidden = ms_act_at((ms_act){t->hidden, t->options.hidden_dtype}, from * h->width);
  if (ms_head_needs_f32(t)) {
    MS_TRY(MS_OP(dev, cast, f->f32, MS_F32, hidden.at, hidden.dtype, n * h->width));
    hidden = ms_act_f32(f->f32);
  }
  const char *rows = (const char *)h->w + f->from * h->width * (int64_t)ms_dtype_size(h->dtype);
  return ms_head_product(dev, ms_act_f32(f->logits), hidden, rows, h->dtype, n, h->width,
                         f->stride);
}

/* Where a full target's logits are. */
static ms_head_source source_of(const ms_head_work *w, const ms_head_full *f, const chunk *part) {
  const ms_target *t = f->target;
  int on = t->options.on, copied = t->options.kind == MS_TARGET_LOGITS;
  return (ms_head_source){.logits = f->logits + (copied ? f->from : 0),
                          .stride = f->stride,
                          .vocab = f->used,
                          .scale = t->head.scale,
                          .soft_cap = t->head.soft_cap,
                          .row = w->row[on] + part->first,
                          .first = part->from[on]};
}

/* The rows of a top-k term, where the kernel finds them: all of the target's, or the chunk's. */
static ms_status topk_rows(ms_head_work *w, int32_t i, int64_t from, int64_t n) {
  const ms_target *t = w->call->term[i].target;
  const ms_head_upload *up = &w->upload[i];
  ms_device *dev = w->call->dev;
  ms_head_term *k = &w->term[i];
  size_t entries = (size_t)n * (size_t)k->k;
  k->first = t->dev ? 0 : from;
  k->id = t->dev ? t->id : up->id;
  k->log_p = t->dev ? t->log_p : up->log_p;
  k->log_rest = t->dev ? t->log_rest : up->log_rest;
  if (t->dev || !n) return MS_OK;
  MS_TRY(MS_OP(dev, write, up->id, t->id + from * k->k, entries * sizeof *t->id));
  MS_TRY(MS_OP(dev, write, up->log_p, t->log_p + from * k->k, entries * sizeof *t->log_p));
  return MS_OP(dev, write, up->log_rest, t->log_rest + from, (size_t)n * sizeof *t->log_rest);
}

/* The loss pass over a chunk whose logits are there. */
static ms_status loss_pass(ms_head_work *w, const chunk *part) {
  const ms_head_call *c = w->call;
  for (int i = 0; i < w->fulls; i++) {
    int on = w->full[i].target->options.on;
    MS_TRY(teacher_logits(w, &w->full[i], part->from[on], part->count[on]));
    w->source[i] = source_of(w, &w->full[i], part);
  }
  for (int32_t i = 0; i < c->terms; i++) {
    int on = c->term[i].on;
    w->term[i].weight = w->weight[on] + part->first;
    w->term[i].row = w->row[on] + part->first;
    if (w->term[i].k) MS_TRY(topk_rows(w, i, part->from[on], part->count[on]));
  }
  int64_t before = part->first * c->terms * MS_HEAD_EACH;
  ms_head_args a = {.total = w->total,
                    .each = c->each ? w->each + before : NULL,
                    .record = w->record,
                    .logits = w->logits,
                    .label = c->label ? w->label + part->first : NULL,
                    .rows = part->n,
                    .vocab = c->head.vocab,
                    .scale = c->head.scale,
                    .soft_cap = c->head.soft_cap,
                    .gradient = c->d_hidden.at != NULL,
                    .terms = c->terms,
                    .sources = w->fulls,
                    .term = w->term,
                    .source = w->source,
                    .first_id = ms_head_first(&c->head),
                    .parts = w->tp->size,
                    .own = w->tp->rank,
                    .part = w->part,
                    .support = w->support,
                    .bins = w->bins};
  return w->phases ? ms_head_phases(w, &a) : MS_OP(c->dev, head_loss, &a);
}

static ms_status backward(ms_head_work *w, const chunk *part, ms_act x) {
  const ms_head_call *c = w->call;
  const ms_head_weights *h = &c->head;
  ms_act dx = ms_act_at(c->d_hidden, part->first * h->width);
  if (!h->vocab) return MS_OP(c->dev, zero, dx.at, ms_act_bytes(dx, part->n * h->width));
  MS_TRY(MS_OP(c->dev, linear_dx, dx, w->logits, h->w, h->dtype, part->n, h->width, h->vocab, 0));
  if (!c->d_head) return MS_OK;
  return MS_OP(c->dev, linear_dw, c->d_head, w->logits, x, part->n, h->width, h->vocab, 1);
}

static ms_status run_chunk(ms_head_work *w, const chunk *part) {
  const ms_head_call *c = w->call;
  const ms_head_weights *h = &c->head;
  ms_act x = ms_act_at(c->hidden, part->first * h->width);
  MS_TRY(ms_head_product(c->dev, w->logits, x, h->w, h->dtype, part->n, h->width, h->vocab));
  MS_TRY(loss_pass(w, part));
  return c->d_hidden.at ? backward(w, part, x) : MS_OK;
}

static ms_status run_chunks(ms_head_work *w) {
  const ms_head_call *c = w->call;
  chunk part = {0};
  for (; part.first < c->rows; part.first += w->size) {
    part.n = c->rows - part.first < w->size ? c->rows - part.first : w->size;
    for (int on = 0; on < 2; on++) {
      part.from[on] += part.count[on];
      part.count[on] = 0;
      for (int64_t r = part.first; r < part.first + part.n; r++)
        part.count[on] += ms_head_weight(c, on, r) > 0;
    }
    MS_TRY(run_chunk(w, &part));
  }
  return MS_OK;
}

static ms_status run(const ms_head_call *c, ms_head_workspace *from, const double *sum) {
  ms_head_work w;
  MS_TRY(ms_head_work_begin(&w, c, from));
  for (int32_t i = 0; i < c->terms; i++) set_term(&w, i, sum[c->term[i].on]);
  MS_TRY(write_rows(&w));
  MS_TRY(run_chunks(&w));
  return read_totals(&w);
}

static ms_status check(const ms_head_call *c, double *sum) {
  int64_t count[2];
  MS_REQUIRE(c->terms >= 0 && c->rows >= 0, "head: %d terms, %lld rows", c->terms,
             (long long)c->rows);
  MS_REQUIRE(c->d_hidden.at || !c->d_head,
             "head: the head's gradient needs that of the hidden states");
  for (int32_t i = 0; i < c->terms; i++) MS_TRY(ms_head_check_term(c, i));
  count_rows(c, count, sum);
  return ms_head_check_rows(c, count);
}

ms_status ms_head_learn(const ms_head_call *c) {
  ms_head_workspace own = {0};
  double sum[2];
  MS_TRY(ms_head_agree(&c->head, check(c, sum)));
  memset(c->result, 0, (size_t)c->terms * sizeof *c->result);
  if (!c->rows) return MS_OK;
  ms_status st = run(c, c->workspace ? c->workspace : &own, sum);
  ms_head_workspace_free(&own);
  return st;
}

/* target.c - making, reading and freeing teacher targets. */
#include "target.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../kernels/head.h"
#include "../base/json.h"
#include "../base/memory.h"
#include "head_call.h"

static const char *const kinds[] = {"topk", "hidden", "logits"};

/* What every kind needs; `vocab` is the teacher's width, or 0 where only the options say it. */
static ms_status check_options(const ms_target_options *o, int64_t rows, int64_t vocab) {
  MS_REQUIRE(o, "target: no options");
  MS_REQUIRE(o->kind >= MS_TARGET_TOPK && o->kind <= MS_TARGET_LOGITS, "target: %d is no kind",
             o->kind);
  MS_REQUIRE(o->on == MS_ON_RESPONSE || o->on == MS_ON_ALL, "target: on = %d", o->on);
  MS_REQUIRE(isnan(o->temperature) || ms_temperature_fits(o->temperature),
             "target: temperature is %g, not in %g..%g", o->temperature, MS_MIN_TEMPERATURE,
             MS_MAX_TEMPERATURE);
  MS_REQUIRE(ms_temperature_fits(o->teacher_temperature),
             "target: teacher_temperature is %g, not in %g..%g", o->teacher_temperature,
             MS_MIN_TEMPERATURE, MS_MAX_TEMPERATURE);
  MS_REQUIRE(rows >= 0, "target: %lld rows", (long long)rows);
  MS_REQUIRE(o->vocab >= 0 && o->vocab <= INT32_MAX && (o->vocab || vocab),
             "target: %lld shared ids", (long long)o->vocab);
  MS_REQUIRE(!vocab || o->vocab <= vocab, "target: %lld shared ids, but the teacher has %lld",
             (long long)o->vocab, (long long)vocab);
  int64_t shared = o->vocab ? o->vocab : vocab;
  MS_REQUIRE(o->kind != MS_TARGET_TOPK || (o->k >= 1 && o->k <= shared),
             "target: k = %d not in 1..%lld", o->k, (long long)shared);
  MS_REQUIRE(o->kind != MS_TARGET_HIDDEN || o->hidden_dtype == MS_F32 || o->hidden_dtype == MS_BF16,
             "target: hidden_dtype %d is neither f32 nor bf16", o->hidden_dtype);
  return MS_OK;
}

/* The arrays of a kind, in one piece; with `base` NULL only adds up. */
static size_t lay_out(ms_target *t, char *base) {
  size_t rows = (size_t)t->rows, k = (size_t)t->options.k;
  switch (t->options.kind) {
    case MS_TARGET_TOPK:
      t->id = (int32_t *)base;
      t->log_p = base ? (float *)base + rows * k : NULL;
      t->log_rest = base ? t->log_p + rows * k : NULL;
      return rows * (k * (sizeof *t->id + sizeof *t->log_p) + sizeof *t->log_rest);
    case MS_TARGET_HIDDEN:
      t->hidden = base;
      return rows * (size_t)t->head.width * ms_dtype_size(t->options.hidden_dtype);
    default: t->logits = (float *)base; return rows * (size_t)t->head.vocab * sizeof *t->logits;
  }
}

/* A target with room for its arrays; head.vocab and head.width are set by the caller's `head`. */
static ms_status new_target(ms_device *dev, const ms_target_options *options, int64_t rows,
                            const ms_head_weights *head, ms_target **out) {
  void *p;
  MS_TRY(ms_alloc(sizeof(ms_target), "target", &p));
  ms_target *t = p;
  t->options = *options;
  t->rows = rows;
  t->head = *head;
  if (head->changes) t->made = atomic_load(head->changes);
  if (!t->options.vocab) t->options.vocab = ms_head_ids(head);
  if (options->kind == MS_TARGET_TOPK && isnan(options->temperature)) t->options.temperature = 1;
  t->bytes = lay_out(t, NULL);
  ms_status st =
      dev ? ms_device_new(dev, t->bytes, &p) : ms_alloc_undefined(t->bytes, "target", &p);
  if (st != MS_OK) {
    ms_free(t);
    return st;
  }
  t->dev = dev;
  if (dev) ms_device_retain(dev);
  t->data = p;
  lay_out(t, p);
  *out = t;
  return MS_OK;
}

static void keep_alive(ms_target *t, void (*refer)(void *owner, int by), void *owner) {
  if (t->options.kind != MS_TARGET_HIDDEN || !refer) return;
  refer(owner, 1);
  t->refer = refer;
  t->owner = owner;
}

ms_status ms_target_room(ms_device *dev, const ms_target_options *options, int64_t rows,
                         const ms_head_weights *head, void (*refer)(void *owner, int by),
                         void *owner, ms_target **out) {
  *out = NULL;
  MS_TRY(check_options(options, rows, 0));
  MS_TRY(new_target(dev, options, rows, head, out));
  keep_alive(*out, refer, owner);
  return MS_OK;
}

void ms_target_free(ms_target *t) {
  if (!t) return;
  if (t->refer) t->refer(t->owner, -1);
  if (t->dev)
    ms_device_free(t->dev, t->data, t->bytes);
  else
    ms_free(t->data);
  ms_device_close(t->dev);
  ms_free(t);
}

/* ---- from a teacher's hidden states ---- */

/* A chunk of logits, and what the ranks of a cut head tell each other of it. */
typedef struct topk_chunk {
  float *logits;
  ms_topk_candidate *candidate;
  ms_logsum *rest;
} topk_chunk;

static size_t lay_chunk(topk_chunk *c, const ms_target *t, char *base, int64_t rows) {
  const ms_head_weights *h = &t->head;
  size_t u = 0, n = (size_t)rows, told = (size_t)ms_head_parts(h) * n;
  c->logits = ms_cut(base, &u, n * (size_t)h->vocab * sizeof *c->logits);
  if (ms_head_parts(h) == 1) return u;
  c->candidate = ms_cut(base, &u, told * (size_t)t->options.k * sizeof *c->candidate);
  c->rest = ms_cut(base, &u, told * sizeof *c->rest);
  return u;
}

/* The phases of a cut head. */
static ms_status topk_parts(const ms_target *t, ms_topk_args *a) {
  ms_group *tp = t->head.tp;
  a->phase = MS_TOPK_BEST;
  MS_TRY(MS_OP(t->dev, topk, a));
  MS_TRY(ms_head_gather(t->dev, tp, a->candidate, (size_t)(a->rows * a->k) * sizeof *a->candidate));
  a->phase = MS_TOPK_REST;
  MS_TRY(MS_OP(t->dev, topk, a));
  MS_TRY(ms_head_gather(t->dev, tp, a->rest, (size_t)a->rows * sizeof *a->rest));
  a->phase = MS_TOPK_FINISH;
  return MS_OP(t->dev, topk, a);
}

static ms_status make_chunk(ms_target *t, ms_act hidden, const topk_chunk *c, int64_t first,
                            int64_t n) {
  const ms_head_weights *h = &t->head;
  const ms_target_options *o = &t->options;
  ms_topk_args a = {.id = t->id + first * o->k,
                    .log_p = t->log_p + first * o->k,
                    .log_rest = t->log_rest + first,
                    .logits = c->logits,
                    .rows = n,
                    .stride = h->vocab,
                    .vocab = ms_head_below(h, o->vocab),
                    .k = o->k,
                    .inv_t = (float)(1 / (o->temperature * o->teacher_temperature)),
                    .scale = h->scale,
                    .soft_cap = h->soft_cap,
                    .parts = ms_head_parts(h),
                    .part = h->tp ? h->tp->rank : 0,
                    .first_id = ms_head_first(h),
                    .candidate = c->candidate,
                    .rest = c->rest};
  MS_TRY(ms_head_product(t->dev, ms_act_f32(c->logits), ms_act_at(hidden, first * h->width), h->w,
                         h->dtype, n, h->width, h->vocab));
  return a.parts > 1 ? topk_parts(t, &a) : MS_OP(t->dev, topk, &a);
}

static ms_status make_topk(ms_target *t, ms_act hidden, int64_t budget,
                           ms_head_workspace *workspace) {
  topk_chunk c = {0};
  int64_t row_bytes = (int64_t)lay_chunk(&c, t, NULL, 64) / 64, rows = t->rows;
  int64_t most = (budget > 0 ? budget : MS_HEAD_BUDGET) / (row_bytes ? row_bytes : 1);
  if (!rows) return MS_OK;
  if (most < 1) most = 1;
  MS_TRY(ms_head_agree_size(&t->head, &most));
  int64_t chunks = (rows + most - 1) / most, size = (rows + chunks - 1) / chunks;
  size_t bytes = lay_chunk(&c, t, NULL, size);
  MS_TRY(ms_head_agree(&t->head, ms_head_workspace_reserve(workspace, t->dev, bytes)));
  lay_chunk(&c, t, workspace->data, size);
  for (int64_t r = 0; r < rows; r += size)
    MS_TRY(make_chunk(t, hidden, &c, r, rows - r < size ? rows - r : size));
  return MS_OK;
}

/* What each rank does on its own. */
static ms_status begin(ms_device *dev, const ms_target_options *options, int64_t rows,
                       const ms_head_weights *head, ms_target **out) {
  MS_TRY(check_options(options, rows, ms_head_ids(head)));
  return new_target(dev, options, rows, head, out);
}

static ms_status fill(ms_target *t, ms_act hidden, int64_t budget, ms_head_workspace *workspace) {
  const ms_head_weights *h = &t->head;
  if (t->options.kind == MS_TARGET_TOPK) return make_topk(t, hidden, budget, workspace);
  if (!t->rows) return MS_OK;
  if (t->options.kind == MS_TARGET_HIDDEN)
    return MS_OP(t->dev, cast, t->hidden, t->options.hidden_dtype, hidden.at, hidden.dtype,
                 t->rows * h->width);
  return ms_head_product(t->dev, ms_act_f32(t->logits), hidden, h->w, h->dtype, t->rows, h->width,
                         h->vocab);
}

ms_status ms_target_make(ms_device *dev, const ms_target_options *options, int64_t rows,
                         ms_act hidden, const ms_head_weights *head, int64_t budget,
                         ms_head_workspace *workspace, void (*refer)(void *owner, int by),
                         void *owner, ms_target **out) {
  ms_target *t = NULL;
  ms_head_workspace own = {0};
  *out = NULL;
  ms_status st = ms_head_agree(head, begin(dev, options, rows, head, &t));
  if (st == MS_OK) st = fill(t, hidden, budget, workspace ? workspace : &own);
  ms_head_workspace_free(&own);
  if (st != MS_OK) {
    ms_target_free(t);
    return st;
  }
  keep_alive(t, refer, owner);
  *out = t;
  return MS_OK;
}

/* ---- from values ---- */

static int by_id(const void *a, const void *b) {
  int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return x < y ? -1 : x > y;
}

/* The mass of a row must be 1 within what storing log-probabilities in 16 bits may cost. */
#define MASS_SLACK 0.02

static ms_status check_topk_row(const ms_target_options *o, int64_t r, const int32_t *id,
                                const float *log_p, float log_rest, int32_t *sorted) {
  double mass = exp(log_rest);
  for (int32_t j = 0; j < o->k; j++) {
    MS_REQUIRE(id[j] >= 0 && id[j] < o->vocab, "target: row %lld has id %d, not in 0..%lld",
               (long long)r, id[j], (long long)o->vocab - 1);
    mass += exp(log_p[j]);
    sorted[j] = id[j];
  }
  MS_REQUIRE(fabs(mass - 1) <= MASS_SLACK,
             "target: row %lld has mass %g with its leftover, not 1: log_p and log_rest must come "
             "from one softmax over all shared ids",
             (long long)r, mass);
  qsort(sorted, (size_t)o->k, sizeof *sorted, by_id);
  for (int32_t j = 1; j < o->k; j++)
    MS_REQUIRE(sorted[j] != sorted[j - 1], "target: row %lld has id %d twice", (long long)r,
               sorted[j]);
  return MS_OK;
}

static ms_status check_topk(const ms_target_options *o, int64_t rows, const int32_t *id,
                            const float *log_p, const float *log_rest) {
  void *sorted;
  MS_TRY(ms_alloc_undefined((size_t)o->k * sizeof(int32_t), "target", &sorted));
  ms_status st = MS_OK;
  for (int64_t r = 0; r < rows && st == MS_OK; r++)
    st = check_topk_row(o, r, id + r * o->k, log_p + r * o->k, log_rest[r], sorted);
  ms_free(sorted);
  return st;
}

ms_status ms_target_topk(const ms_target_options *options, int64_t rows, const int32_t *id,
                         const float *log_p, const float *log_rest, ms_target **out) {
  ms_head_weights none = {.scale = 1};
  *out = NULL;
  MS_TRY(check_options(options, rows, 0));
  MS_REQUIRE(options->kind == MS_TARGET_TOPK, "target: topk values for a %s target",
             kinds[options->kind]);
  MS_TRY(check_topk(options, rows, id, log_p, log_rest));
  MS_TRY(new_target(NULL, options, rows, &none, out));
  if (!rows) return MS_OK; /* the arrays may be NULL then, which memcpy may not be given */
  size_t n = (size_t)rows * (size_t)options->k;
  memcpy((*out)->id, id, n * sizeof *id);
  memcpy((*out)->log_p, log_p, n * sizeof *log_p);
  memcpy((*out)->log_rest, log_rest, (size_t)rows * sizeof *log_rest);
  return MS_OK;
}

ms_status ms_target_logits(const ms_target_options *options, int64_t rows, const float *logits,
                           ms_target **out) {
  *out = NULL;
  MS_TRY(check_options(options, rows, 0));
  MS_REQUIRE(options->kind == MS_TARGET_LOGITS, "target: logits for a %s target",
             kinds[options->kind]);
  for (int64_t i = 0; i < rows * options->vocab; i++)
    MS_REQUIRE(!isnan(logits[i]), "target: the logit of id %lld in row %lld is NaN",
               (long long)(i % options->vocab), (long long)(i / options->vocab));
  ms_head_weights head = {.vocab = options->vocab, .scale = 1};
  MS_TRY(new_target(NULL, options, rows, &head, out));
  if (rows) memcpy((*out)->logits, logits, (*out)->bytes);
  return MS_OK;
}

/* ---- reading ---- */

int64_t ms_target_rows(const ms_target *t) { return t->rows; }

ms_status ms_target_info(const ms_target *t, char **json) {
  const ms_target_options *o = &t->options;
  *json = NULL;
  json_t *j = json_pack("{s:s, s:I, s:I, s:s, s:f, s:I}", "kind", kinds[o->kind], "rows",
                        (json_int_t)t->rows, "vocab", (json_int_t)o->vocab, "on",
                        o->on == MS_ON_ALL ? "all" : "response", "teacher_temperature",
                        o->teacher_temperature, "bytes", (json_int_t)t->bytes);
  if (!j) return MS_FAIL(MS_ENOMEM, "target: no memory for its description");
  int bad = 0;
  if (!isnan(o->temperature))
    bad |= json_object_set_new(j, "temperature", json_real(o->temperature));
  if (o->kind == MS_TARGET_TOPK) bad |= json_object_set_new(j, "k", json_integer(o->k));
  if (o->kind == MS_TARGET_HIDDEN) {
    const char *dtype = o->hidden_dtype == MS_BF16 ? "bf16" : "f32";
    bad |= json_object_set_new(j, "width", json_integer(t->head.width));
    bad |= json_object_set_new(j, "dtype", json_string(dtype));
  }
  ms_status st =
      bad ? MS_FAIL(MS_ENOMEM, "target: no memory for its description") : ms_json_text(j, 0, json);
  json_decref(j);
  return st;
}

static ms_status read_array(const ms_target *t, void *to, const void *from, size_t bytes) {
  if (!to || !bytes) return MS_OK;
  if (t->dev) return MS_OP(t->dev, read, to, from, bytes);
  memcpy(to, from, bytes);
  return MS_OK;
}

ms_status ms_target_read(const ms_target *t, int32_t *id, float *log_p, float *log_rest) {
  size_t rows = (size_t)t->rows, n = rows * (size_t)t->options.k;
  MS_REQUIRE(t->options.kind == MS_TARGET_TOPK, "target: a %s target has no top-k to read",
             kinds[t->options.kind]);
  MS_TRY(read_array(t, id, t->id, n * sizeof *id));
  MS_TRY(read_array(t, log_p, t->log_p, n * sizeof *log_p));
  return read_array(t, log_rest, t->log_rest, rows * sizeof *log_rest);
}

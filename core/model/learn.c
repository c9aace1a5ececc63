/* learn.c - what a model does with a batch: targets, losses and gradients. All ranks of a cut model
 * do it together, with the same batch. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../base/memory.h"
#include "../group/group.h"
#include "../../kernels/head.h"
#include "../loss/head.h"
#include "batch.h"
#include "decoder.h"
#include "gradients.h"

static uint64_t mix(uint64_t hash, uint32_t x) {
  return (hash ^ x) * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u;
}

ms_status ms_batch_check(const ms_model *model, const ms_batch *batch) {
  const ms_config *c = &model->config;
  for (int64_t i = 0; i < batch->segments; i++) {
    int64_t start = batch->segment_start[i], length = batch->segment_start[i + 1] - start;
    MS_REQUIRE(length <= c->context,
               "batch: segment %lld has %lld tokens, the model's context %lld", (long long)i,
               (long long)length, (long long)c->context);
    for (int64_t t = start; t < start + length; t++)
      MS_REQUIRE(batch->token[t] < c->vocab,
                 "batch: token %d at position %lld (segment %lld, %lld) is outside the model's "
                 "vocabulary of %lld",
                 batch->token[t], (long long)t, (long long)i, (long long)(t - start),
                 (long long)c->vocab);
  }
  return MS_OK;
}

/* All that a pass is made of, as a number. */
static int64_t hash_batch(const ms_batch *batch) {
  uint64_t hash = (uint64_t)batch->tokens;
  for (int64_t i = 0; i < batch->segments; i++) hash = mix(hash, (uint32_t)batch->segment_start[i]);
  for (int64_t t = 0; t < batch->tokens; t++) {
    hash = mix(hash, (uint32_t)batch->token[t]);
    for (int on = 0; on < 2; on++) {
      uint32_t bits;
      memcpy(&bits, &batch->weight[on][t], sizeof bits);
      hash = mix(hash, bits);
    }
  }
  return (int64_t)(hash >> 1); /* its negative is there, too */
}

ms_status ms_batch_agree(const ms_model *model, const ms_batch *batch, ms_status st) {
  ms_group *g = model->share.group;
  if (g->size == 1) return st;
  MS_TRY(ms_group_agree(g, st));
  int64_t hash = hash_batch(batch), both[2] = {hash, -hash};
  MS_TRY(g->ops->all_reduce(g, NULL, both, MS_I64, 2, MS_MAX, NULL));
  MS_REQUIRE(both[0] == -both[1],
             "batch: the ranks over which the model is cut were given different ones: models that "
             "learn from each other lie over ranks alike, or whole on each");
  return MS_OK;
}

ms_pass ms_batch_pass(ms_model *model, const ms_batch *batch) {
  return (ms_pass){.model = model,
                   .tokens = batch->tokens,
                   .segments = batch->segments,
                   .token = batch->token,
                   .position = batch->position,
                   .segment_start = batch->segment_start,
                   .first = model->config.layers};
}

/* ---- targets ---- */

/* Where position t stands, for messages. */
static void place_of(const ms_batch *batch, int32_t t, char text[120]) {
  int64_t i = 0;
  while (batch->segment_start[i + 1] <= t) i++;
  snprintf(text, 120, "position %d of segment %lld (token %d)", t - batch->segment_start[i],
           (long long)i, batch->token[t]);
}

/* What a teacher says of rows, [rows, cols] on its device, must be finite: from a NaN the student
 * would learn nothing, and nobody would know whose it was. */
static ms_status check_said(const ms_model *teacher, const ms_batch *batch, const int32_t *row,
                            int64_t rows, ms_act x, int64_t cols, const char *what) {
  int64_t at;
  char place[120];
  MS_TRY(MS_OP(teacher->dev, not_finite, &at, x.at, x.dtype, rows * cols));
  if (at < 0) return MS_OK;
  place_of(batch, row[at / cols], place);
  return MS_FAIL(
      MS_EINVAL,
      "target: the teacher (%s) gives %s that are not finite at %s: nothing can be learnt "
      "from them; its weights are damaged, or too large",
      teacher->path ? teacher->path : "made in memory", what, place);
}

static ms_status check_target(const ms_model *teacher, const ms_batch *batch, const int32_t *row,
                              const ms_target *t) {
  if (t->options.kind == MS_TARGET_TOPK)
    return check_said(teacher, batch, row, t->rows, ms_act_f32(t->log_p), t->options.k,
                      "log-probabilities");
  if (t->options.kind == MS_TARGET_LOGITS)
    return check_said(teacher, batch, row, t->rows, ms_act_f32(t->logits), t->head.vocab, "logits");
  return MS_OK;
}

/* The rows that a target is about; *row is to be freed. */
static ms_status target_rows(const ms_model *teacher, const ms_batch *batch,
                             const ms_target_options *options, int32_t **row) {
  void *p;
  int64_t n = 0;
  MS_REQUIRE(options && (options->on == MS_ON_RESPONSE || options->on == MS_ON_ALL),
             "target: on is %d, neither response nor all", options ? options->on : -1);
  MS_TRY(ms_batch_check(teacher, batch));
  MS_TRY(ms_alloc_undefined((size_t)batch->rows[options->on] * 4, "target: rows", &p));
  *row = p;
  for (int64_t t = 0; t < batch->tokens; t++)
    if (batch->weight[options->on][t] > 0) (*row)[n++] = (int32_t)t;
  return MS_OK;
}

/* The pass has the rows of the target. */
static ms_status make_target(ms_pass *pass, const ms_batch *batch, const ms_target_options *options,
                             ms_target **out) {
  ms_model *teacher = pass->model;
  ms_head_weights head;
  ms_act hidden = {NULL, MS_F32};
  if (pass->rows) {
    MS_TRY(ms_pass_forward(pass, &hidden));
    MS_TRY(check_said(teacher, batch, pass->row, pass->rows, hidden, teacher->config.hidden_size,
                      "hidden states"));
  }
  ms_model_head(teacher, &head);
  MS_TRY(ms_target_make(teacher->dev, options, pass->rows, hidden, &head, teacher->head_bytes,
                        &teacher->head_workspace, ms_model_refer, teacher, out));
  return check_target(teacher, batch, pass->row, *out);
}

ms_status ms_model_target(ms_model *teacher, const ms_batch *batch,
                          const ms_target_options *options, ms_target **out) {
  int32_t *row = NULL;
  ms_target *target = NULL;
  ms_pass pass = ms_batch_pass(teacher, batch);

  *out = NULL;
  ms_status st = ms_batch_agree(teacher, batch, target_rows(teacher, batch, options, &row));
  if (st == MS_OK) {
    pass.row = row;
    pass.rows = batch->rows[options->on];
    st = ms_group_agree(teacher->share.group, make_target(&pass, batch, options, &target));
  }
  if (st == MS_OK) {
    target->labels = ms_batch_labels(batch, options->on);
    *out = target;
    target = NULL;
  }
  ms_pass_end(&pass);
  ms_target_free(target);
  ms_free(row);
  return st;
}

/* ---- losses ---- */

/* The supervised rows of a batch: where any term has weight. */
typedef struct supervised {
  int64_t rows;
  int32_t *row, *label; /* [rows] */
  float *weight[2];     /* [rows] */
  double *each;         /* [rows, terms, MS_HEAD_EACH], where it is asked for */
  void *memory;
} supervised;

static ms_status check_terms(const ms_batch *batch, int32_t terms, const ms_term *term) {
  MS_REQUIRE(terms >= 1 && term, "loss: %d terms", terms);
  for (int32_t i = 0; i < terms; i++) {
    const ms_term *t = &term[i];
    MS_REQUIRE(t->on == MS_ON_RESPONSE || t->on == MS_ON_ALL,
               "loss: term %d: on is %d, neither response nor all", i + 1, t->on);
    int64_t rows = t->target ? ms_target_rows(t->target) : batch->rows[t->on];
    MS_REQUIRE(rows == batch->rows[t->on],
               "loss: term %d: the target has %lld rows, the batch %lld supervised positions: "
               "another batch, or another `on`",
               i + 1, (long long)rows, (long long)batch->rows[t->on]);
    if (t->target && t->target->labels && t->target->options.on == t->on)
      MS_REQUIRE(t->target->labels == ms_batch_labels(batch, t->on),
                 "loss: term %d: the target is of another batch: the tokens at its supervised "
                 "positions are not this one's",
                 i + 1);
  }
  return MS_OK;
}

static int has_weight(const ms_batch *batch, const int used[2], int64_t t) {
  return (used[0] && batch->weight[0][t] > 0) || (used[1] && batch->weight[1][t] > 0);
}

static ms_status find_rows(const ms_batch *batch, int32_t terms, const ms_term *term, int each,
                           supervised *s) {
  int used[2] = {0, 0};
  int64_t n = 0;
  void *p;
  for (int32_t i = 0; i < terms; i++) used[term[i].on] = 1;
  for (int64_t t = 0; t < batch->tokens; t++) s->rows += has_weight(batch, used, t);
  MS_TRY(ms_alloc_undefined((size_t)s->rows * 16, "loss: rows", &s->memory));
  s->row = s->memory;
  s->label = s->row + s->rows;
  s->weight[0] = (float *)(s->label + s->rows);
  s->weight[1] = s->weight[0] + s->rows;
  for (int64_t t = 0; t < batch->tokens; t++) {
    if (!has_weight(batch, used, t)) continue;
    s->row[n] = (int32_t)t;
    /* a position with weight is never its segment's last */
    s->label[n] = batch->token[t + 1];
    s->weight[0][n] = batch->weight[0][t];
    s->weight[1][n] = batch->weight[1][t];
    n++;
  }
  if (!each || !s->rows) return MS_OK;
  size_t bytes = (size_t)(s->rows * terms) * MS_HEAD_EACH * sizeof *s->each;
  MS_TRY(ms_alloc(bytes, "loss: of each row", &p));
  s->each = p;
  return MS_OK;
}

/* Adds what was told of each row up over the segments. */
static void sum_segments(const ms_batch *batch, const supervised *s, int32_t terms,
                         const ms_term *term, ms_segment_result *part) {
  int64_t segment = 0;
  for (int64_t r = 0; r < s->rows; r++) {
    while (s->row[r] >= batch->segment_start[segment + 1]) segment++;
    for (int32_t i = 0; i < terms; i++) {
      ms_segment_result *to = &part[segment * terms + i];
      const double *of = s->each + (r * terms + i) * MS_HEAD_EACH;
      double a = s->weight[term[i].on][r];
      if (!(a > 0)) continue;
      to->value += a * of[MS_HEAD_EACH_VALUE];
      to->agree += a * of[MS_HEAD_EACH_AGREE];
      to->weight += a;
    }
  }
}

/* Forward, head, and with `learn` backward. */
static ms_status run_pass(ms_pass *pass, const supervised *s, int32_t terms, const ms_term *term,
                          int learn, ms_term_result *result) {
  ms_model *model = pass->model;
  ms_act hidden;
  MS_TRY(ms_pass_forward(pass, &hidden));
  ms_head_call call = {.dev = model->dev,
                       .rows = s->rows,
                       .hidden = hidden,
                       .label = s->label,
                       .weight = {s->weight[0], s->weight[1]},
                       .terms = terms,
                       .term = term,
                       .budget = model->head_bytes,
                       .d_hidden = learn ? ms_pass_d_hidden(pass) : (ms_act){NULL, MS_F32},
                       .d_head = learn ? model->head.g : NULL,
                       .result = result,
                       .each = s->each,
                       .workspace = &model->head_workspace};
  ms_model_head(model, &call.head);
  MS_TRY(ms_head_learn(&call));
  return learn ? ms_pass_backward(pass) : MS_OK;
}

static ms_status run_rows(ms_model *model, const ms_batch *batch, const supervised *s,
                          int32_t terms, const ms_term *term, int learn, ms_term_result *result) {
  ms_pass pass = ms_batch_pass(model, batch);
  pass.rows = s->rows;
  pass.row = s->row;
  if (learn) pass.first = ms_model_first(model);
  memset(result, 0, (size_t)terms * sizeof *result);
  ms_status st = s->rows ? run_pass(&pass, s, terms, term, learn, result) : MS_OK;
  ms_pass_end(&pass);
  return st;
}

static ms_status check(const ms_model *model, const ms_batch *batch, int32_t terms,
                       const ms_term *term) {
  MS_TRY(check_terms(batch, terms, term));
  return ms_batch_check(model, batch);
}

/* `part`: [segments, terms], or NULL. */
static ms_status run(ms_model *model, const ms_batch *batch, int32_t terms, const ms_term *term,
                     int learn, ms_term_result *result, ms_segment_result *part) {
  supervised s = {0};
  ms_status st = check(model, batch, terms, term);
  if (st == MS_OK) st = find_rows(batch, terms, term, part != NULL, &s);
  MS_TRY_OR(end, ms_batch_agree(model, batch, st));
  MS_TRY_OR(end, run_rows(model, batch, &s, terms, term, learn, result));
  if (!part) goto end;
  memset(part, 0, (size_t)(batch->segments * terms) * sizeof *part);
  sum_segments(batch, &s, terms, term, part);
end:
  ms_free(s.memory);
  ms_free(s.each);
  return st;
}

ms_status ms_model_learn(ms_model *model, const ms_batch *batch, int32_t terms, const ms_term *term,
                         ms_group *last, ms_term_result *result) {
  MS_REQUIRE(model->train, "learn: the model was opened without train");
  MS_TRY(ms_gradients_check(model));
  if (last) MS_TRY(ms_gradients_begin(model, last));
  ms_status st = run(model, batch, terms, term, 1, result, NULL);
  if (last && st != MS_OK) ms_gradients_failed(model);
  return st == MS_OK && last ? ms_gradients_finish(model) : st;
}

ms_status ms_model_evaluate(ms_model *model, const ms_batch *batch, int32_t terms,
                            const ms_term *term, ms_term_result *result) {
  return run(model, batch, terms, term, 0, result, NULL);
}

ms_status ms_model_evaluate_parts(ms_model *model, const ms_batch *batch, int32_t terms,
                                  const ms_term *term, ms_term_result *result,
                                  ms_segment_result *part) {
  return run(model, batch, terms, term, 0, result, part);
}

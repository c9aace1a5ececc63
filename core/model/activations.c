/* activations.c - memory of passes: one arena for each that is alive, laid out from the shape.
 *
 * Saved for each layer: the stream before each block, and what the blocks say (lay_saved). With
 * recomputation only the inputs of layers are saved and the layers share the rest; with nothing to save
 * they work in place on one stream. A model keeps the arenas of passes that have ended for the next. */
#include <math.h>
#include <string.h>

#include "../base/memory.h"
#include "../group/group.h"
#include "decoder.h"

static void *take_bytes(ms_cursor *c, size_t bytes) { return ms_cut(c->base, &c->used, bytes); }

ms_act ms_take(ms_cursor *c, int dtype, int64_t count) {
  ms_act x = {NULL, dtype};
  x.at = take_bytes(c, ms_act_bytes(x, count));
  return x;
}
float *ms_take_f32(ms_cursor *c, int64_t count) {
  return take_bytes(c, (size_t)count * sizeof(float));
}
static int32_t *take_i32(ms_cursor *c, int64_t count) {
  return take_bytes(c, (size_t)count * sizeof(int32_t));
}

int64_t ms_logit_rows(const ms_pass *pass) {
  const ms_model *m = pass->model;
  int64_t budget = m->head_bytes ? m->head_bytes : MS_HEAD_BUDGET;
  int64_t most = budget / (m->config.vocab * (int64_t)sizeof(float));
  return ms_equal_part(pass->rows, ms_max(most, 1));
}

/* ---- the layout ---- */

static size_t workspace_bytes(const ms_pass *pass) {
  ms_act d_hidden = {NULL, ms_pass_precision(pass)->stream};
  size_t hidden = ms_act_bytes(d_hidden, pass->rows * pass->model->config.hidden_size);
  return (size_t)ms_max((int64_t)ms_layer_workspace(pass), (int64_t)hidden);
}

/* A layer that saves nothing: in place on the stream, the rest in the workspace. */
static void lay_unsaved(const ms_cursor *at, const ms_pass *pass, int32_t l) {
  const struct ms_activations *a = pass->act;
  ms_saved *s = &a->layer[l];
  memset(s, 0, sizeof *s);
  s->x[MS_ATTENTION] = ms_has_backward(pass) ? a->layer[pass->first].x[MS_ATTENTION] : a->stream;
  s->x[MS_MLP] = ms_is_last(pass, l) ? a->final : s->x[MS_ATTENTION];
  if (at->base) ms_layer_lay_workspace(pass, s);
}

/* Numbers of the stream that this rank has. */
static int64_t stream_count(const ms_pass *pass) {
  return ms_span_all(pass, 0).own * pass->model->config.hidden_size;
}

static void lay_saved(ms_cursor *at, const ms_pass *pass, int32_t l) {
  ms_saved *layer = pass->act->layer;
  if (!pass->model->recompute || l == pass->first)
    ms_layer_lay_saved(at, pass, l, &layer[l]);
  else
    layer[l] = layer[pass->first];
  layer[l].x[MS_ATTENTION] = ms_take(at, ms_pass_precision(pass)->stream, stream_count(pass));
}

static void lay_inputs(ms_cursor *at, const ms_pass *pass) {
  struct ms_activations *a = pass->act;
  int64_t stepped = pass->step ? pass->tokens : 0;
  a->token = take_i32(at, pass->tokens);
  a->position = take_i32(at, pass->tokens);
  a->segment_start = take_i32(at, pass->segments + 1);
  a->row = take_i32(at, pass->rows);
  a->own_row = ms_is_cut(pass->model) ? take_i32(at, ms_span_all(pass, 1).own) : a->row;
  a->slot = take_i32(at, stepped);
  a->first = take_i32(at, stepped);
  a->length = take_i32(at, stepped);
}

static void lay(ms_cursor *at, const ms_pass *pass) {
  const ms_config *c = &pass->model->config;
  struct ms_activations *a = pass->act;
  const ms_precision *p = ms_pass_precision(pass);
  int64_t all = pass->tokens * c->hidden_size, rows = ms_span_all(pass, 1).own;
  lay_inputs(at, pass);
  a->final = ms_take(at, p->stream, rows * c->hidden_size);
  a->stream = ms_take(at, p->stream, stream_count(pass));
  a->d_stream = a->stream;
  a->normed = ms_take(at, p->stream, all);
  a->d_normed = ms_take(at, p->stream, ms_has_backward(pass) ? all : 0);
  a->output = ms_take(at, p->stream, ms_layer_needs_output(pass->model) ? all : 0);
  a->y_rows = ms_take(at, p->attention, pass->rows * ms_q_size(pass->model));
  a->dots = ms_take_f32(at, c->qk_norm && ms_is_cut(pass->model) ? 2 * pass->tokens : 0);
  a->final_rstd = ms_take_f32(at, rows);
  a->workspace = (ms_act){take_bytes(at, workspace_bytes(pass)), p->product};
  a->logits = ms_take_f32(at, pass->logits ? ms_logit_rows(pass) * c->vocab : 0);
  for (int32_t l = pass->first; l < c->layers; l++) lay_saved(at, pass, l);
  for (int32_t l = 0; l < pass->first; l++) lay_unsaved(at, pass, l);
}

/* ---- rope tables ---- */

/* An angle is the f32 product, as in the libraries that models are trained with: what it is rounded
 * to belongs to the model. Its cosine and sine are exact but for their own rounding. */
static void fill_rope(const ms_config *c, float *host, int64_t positions) {
  int half = c->rotary / 2;
  float *sine = host + positions * half;
  for (int64_t p = 0; p < positions; p++)
    for (int i = 0; i < half; i++) {
      float angle = (float)p * c->inv_freq[i];
      host[p * half + i] = (float)cos(angle) * c->rope_scale;
      sine[p * half + i] = (float)sin(angle) * c->rope_scale;
    }
}

/* Tables for every position below `need`; doubled, so that decoding seldom grows them. */
static ms_status grow_rope(ms_device *dev, const ms_config *c, ms_rope_tables *rope, int64_t need) {
  void *host = NULL, *p = NULL;
  int64_t positions = 256;
  while (positions < need) positions *= 2;
  if (positions > c->context) positions = ms_max(need, c->context);
  size_t half = (size_t)c->rotary / 2, bytes = 2 * half * (size_t)positions * sizeof(float);
  ms_status st = MS_OK;

  if (need <= rope->positions || !half) return MS_OK;
  MS_TRY(ms_alloc_undefined(bytes, "rope tables", &host));
  fill_rope(c, host, positions);
  MS_TRY_OR(end, ms_device_new(dev, bytes, &p));
  MS_TRY_OR(end, MS_OP(dev, write, p, host, bytes));
  ms_device_free(dev, rope->table, rope->bytes);
  *rope = (ms_rope_tables){p, bytes, positions};
  p = NULL;
end:
  ms_device_free(dev, p, bytes);
  ms_free(host);
  return st;
}

/* ---- the activations of a model ---- */

static ms_status new_activations(ms_model *m, struct ms_activations **out) {
  size_t ranks = (size_t)m->share.group->size, layers = (size_t)m->config.layers;
  void *p = NULL, *layer = NULL, *count = NULL;
  ms_status st;
  *out = NULL;
  MS_TRY_OR(fail, ms_alloc(layers * sizeof(ms_saved), "activations", &layer));
  MS_TRY_OR(fail, ms_alloc(ranks * sizeof(int64_t), "activations", &count));
  MS_TRY_OR(fail, ms_alloc(sizeof **out, "activations", &p));
  *out = p;
  (*out)->layer = layer;
  (*out)->count = count;
  (*out)->next = m->act;
  m->act = *out;
  return MS_OK;
fail:
  ms_free(layer);
  ms_free(count);
  return st;
}

/* Of those that no pass has the smallest with `bytes`, or else the largest; NULL when all are busy. */
static struct ms_activations *find_idle(const ms_model *m, size_t bytes) {
  struct ms_activations *best = NULL;
  for (struct ms_activations *a = m->act; a; a = a->next) {
    if (a->busy) continue;
    int fits = a->bytes >= bytes, better = best && best->bytes >= bytes;
    if (!best || (fits && (!better || a->bytes < best->bytes)) ||
        (!fits && !better && a->bytes > best->bytes))
      best = a;
  }
  return best;
}

static size_t measure(const ms_pass *pass) {
  ms_cursor at = {NULL, 0};
  lay(&at, pass);
  return at.used;
}

/* A pass that has none yet gets activations. */
static ms_status begin(ms_pass *pass) {
  ms_model *m = pass->model;
  if (pass->act) return MS_OK;
  pass->act = find_idle(m, 0);
  if (!pass->act) MS_TRY(new_activations(m, &pass->act));
  pass->act = find_idle(m, measure(pass));
  pass->act->busy = 1;
  return MS_OK;
}

/* The old arena goes first: its content is of no use and the two might not fit. */
static ms_status grow_arena(ms_device *dev, struct ms_activations *a, size_t bytes) {
  if (bytes <= a->bytes) return MS_OK;
  ms_device_free(dev, a->arena, a->bytes);
  a->arena = NULL;
  a->bytes = 0;
  MS_TRY(ms_device_alloc(dev, bytes, "activations",
                         "fewer tokens in a batch, or recompute = true, need less", &a->arena));
  a->bytes = bytes;
  return MS_OK;
}

/* The rows that are wanted of this rank's tokens, counted from the first one of these. */
static ms_status write_own_rows(const ms_pass *pass) {
  ms_span tokens = ms_span_all(pass, 0), rows = ms_span_all(pass, 1);
  size_t bytes = (size_t)rows.own * sizeof(int32_t);
  void *p;
  if (!ms_is_cut(pass->model) || !rows.own) return MS_OK;
  MS_TRY(ms_alloc_undefined(bytes, "rows", &p));
  int32_t *own = p;
  for (int64_t r = 0; r < rows.own; r++) own[r] = pass->row[rows.first + r] - (int32_t)tokens.first;
  ms_status st = MS_OP(pass->model->dev, write, pass->act->own_row, own, bytes);
  ms_free(p);
  return st;
}

static ms_status write_inputs(const ms_pass *pass) {
  ms_device *dev = pass->model->dev;
  struct ms_activations *a = pass->act;
  size_t n = (size_t)pass->tokens * sizeof(int32_t);
  MS_TRY(MS_OP(dev, write, a->token, pass->token, n));
  MS_TRY(MS_OP(dev, write, a->position, pass->position, n));
  MS_TRY(MS_OP(dev, write, a->segment_start, pass->segment_start,
               (size_t)(pass->segments + 1) * sizeof(int32_t)));
  if (pass->rows)
    MS_TRY(MS_OP(dev, write, a->row, pass->row, (size_t)pass->rows * sizeof(int32_t)));
  MS_TRY(write_own_rows(pass));
  return pass->step ? MS_OP(dev, write, a->slot, pass->slot, n) : MS_OK;
}

static ms_status prepare(ms_pass *pass) {
  ms_model *m = pass->model;
  int32_t last = 0;
  for (int64_t t = 0; t < pass->tokens; t++)
    if (pass->position[t] > last) last = pass->position[t];
  MS_TRY(grow_rope(m->dev, &m->config, &m->rope, (int64_t)last + 1));
  MS_TRY(begin(pass));
  MS_TRY(grow_arena(m->dev, pass->act, measure(pass)));
  ms_cursor at = {pass->act->arena, 0};
  lay(&at, pass);
  return write_inputs(pass);
}

ms_status ms_pass_prepare(ms_pass *pass) {
  return ms_group_agree(pass->model->share.group, prepare(pass));
}

void ms_pass_end(ms_pass *pass) {
  if (pass->act) pass->act->busy = 0;
  pass->act = NULL;
}

void ms_activations_free(ms_model *m) {
  for (struct ms_activations *a = m->act, *next; a; a = next) {
    next = a->next;
    ms_device_free(m->dev, a->arena, a->bytes);
    ms_free(a->layer);
    ms_free(a->count);
    ms_free(a);
  }
  ms_device_free(m->dev, m->rope.table, m->rope.bytes);
  ms_head_workspace_free(&m->head_workspace);
}

size_t ms_activations_bytes(const ms_model *m) {
  size_t bytes = m->rope.bytes + m->head_workspace.bytes;
  for (const struct ms_activations *a = m->act; a; a = a->next) bytes += a->bytes;
  return bytes;
}

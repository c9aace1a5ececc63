/* activations.c - the arena of a pass: one allocation, laid out from the shape.
 *
 * Kept for each layer: its input, q, k, v, attention's output with its log-sum-exps, the stream
 * between the halves, gate and up. What the norms and the MLP's product gave is computed again in
 * the backward pass, as it costs less than the memory. The last layer has less: only the rows that
 * are wanted go on after its attention. With recomputation only the inputs are kept
 * and the layers share the rest; with nothing to keep they work in place on one stream. */
#include <math.h>
#include <string.h>

#include "../base/memory.h"
#include "decoder.h"

/* With no base it only adds up. */
typedef struct cursor {
  char *base;
  size_t used;
} cursor;

static void *take_bytes(cursor *c, size_t bytes) {
  void *p = c->base ? c->base + c->used : NULL;
  c->used += (bytes + MS_ALIGN - 1) / MS_ALIGN * MS_ALIGN;
  return p;
}

static ms_act take(cursor *c, int dtype, int64_t count) {
  ms_act x = {NULL, dtype};
  x.at = take_bytes(c, ms_act_bytes(x, count));
  return x;
}
static float *take_f32(cursor *c, int64_t count) {
  return take_bytes(c, (size_t)count * sizeof(float));
}
static int32_t *take_i32(cursor *c, int64_t count) {
  return take_bytes(c, (size_t)count * sizeof(int32_t));
}

static int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

static const ms_precision *precision_of(const ms_pass *pass) {
  return &pass->model->dev->ops->precision;
}

/* Bytes of the scratch that steps use one after the other. */
static size_t wide_bytes(const ms_pass *pass) {
  const ms_config *c = &pass->model->config;
  const ms_precision *p = precision_of(pass);
  size_t stream = ms_dtype_size(p->stream), product = ms_dtype_size(p->product);
  int64_t n = pass->tokens, q = ms_q_width(c), kv = ms_kv_width(c), attention = 2 * (q + kv);
  int64_t last = pass->rows * max(q, c->width);
  /* backwards: rotated q and k where they are not kept; dy, dq, dk, dv */
  if (pass->first < c->layers && c->qk_norm) attention += q + kv;
  size_t attend = (size_t)(n * attention + last) * ms_dtype_size(p->attention);
  size_t mlp = (size_t)(3 * ms_mlp_most(pass) * c->inner) * product;
  size_t hidden = (size_t)(pass->rows * c->width) * stream;
  return (size_t)max((int64_t)attend, max((int64_t)mlp, (int64_t)hidden));
}

/* Everything of a layer but its input. */
static void lay_kept(cursor *at, const ms_pass *pass, int32_t l, ms_kept *k) {
  const ms_config *c = &pass->model->config;
  const ms_precision *p = precision_of(pass);
  int64_t n = pass->tokens, rows = ms_layer_rows(pass, l);
  k->mid = take(at, p->stream, rows * c->width);
  k->q = take(at, p->attention, n * ms_q_width(c));
  k->k = take(at, p->attention, n * ms_kv_width(c));
  k->v = take(at, p->attention, n * ms_kv_width(c));
  k->y = take(at, p->attention, n * ms_q_width(c));
  k->lse = take_f32(at, n * c->heads);
  k->gate = take(at, p->product, rows * c->inner);
  k->up = take(at, p->product, rows * c->inner);
  k->rstd1 = take_f32(at, n);
  k->rstd2 = take_f32(at, rows);
  k->rstd_q = c->qk_norm ? take_f32(at, n * c->heads) : NULL;
  k->rstd_k = c->qk_norm ? take_f32(at, n * c->kv_heads) : NULL;
}

/* A layer that keeps nothing: in place on the stream, the rest in scratch. */
static void lay_passing(cursor *at, const ms_pass *pass, int32_t l, ms_kept *k) {
  const ms_config *c = &pass->model->config;
  const struct ms_activations *a = pass->model->act;
  int64_t n = pass->tokens, q = n * ms_q_width(c), kv = n * ms_kv_width(c);
  memset(k, 0, sizeof *k);
  k->x = pass->first < c->layers ? a->layer[pass->first].x : a->out;
  k->mid = ms_is_last(pass, l) ? a->top : k->x;
  if (!at->base) return;
  k->q = ms_act_as(a->wide, precision_of(pass)->attention);
  k->y = ms_act_at(k->q, q);
  k->k = ms_act_at(k->y, q);
  k->v = ms_act_at(k->k, kv);
  k->y_rows = ms_is_last(pass, l) ? ms_act_at(k->v, kv) : k->y;
  k->gate = ms_act_as(a->wide, precision_of(pass)->product);
  k->up = ms_act_at(k->gate, ms_mlp_most(pass) * c->inner);
}

static void lay_inputs(cursor *at, const ms_pass *pass) {
  struct ms_activations *a = pass->model->act;
  a->token = take_i32(at, pass->tokens);
  a->position = take_i32(at, pass->tokens);
  a->segment_start = take_i32(at, pass->segments + 1);
  a->row = take_i32(at, pass->rows);
  a->slot = take_i32(at, pass->step ? pass->tokens : 0);
  a->first = take_i32(at, pass->step ? pass->tokens : 0);
  a->length = take_i32(at, pass->step ? pass->tokens : 0);
}

static void lay(cursor *at, const ms_pass *pass) {
  const ms_config *c = &pass->model->config;
  struct ms_activations *a = pass->model->act;
  const ms_precision *p = precision_of(pass);
  int64_t stream = pass->tokens * c->width;
  lay_inputs(at, pass);
  a->top = take(at, p->stream, pass->rows * c->width);
  a->out = take(at, p->stream, stream);
  a->norm = take(at, p->stream, stream);
  a->d_norm = take(at, p->stream, pass->first < c->layers ? stream : 0);
  a->rstd = take_f32(at, pass->rows);
  a->wide = (ms_act){take_bytes(at, wide_bytes(pass)), p->product};
  for (int32_t l = pass->first; l < c->layers; l++) {
    if (!pass->model->recompute || l == pass->first)
      lay_kept(at, pass, l, &a->layer[l]);
    else
      a->layer[l] = a->layer[pass->first];
    a->layer[l].x = take(at, p->stream, stream);
    a->layer[l].y_rows =
        ms_is_last(pass, l) ? take(at, p->attention, pass->rows * ms_q_width(c)) : a->layer[l].y;
  }
  for (int32_t l = 0; l < pass->first; l++) lay_passing(at, pass, l, &a->layer[l]);
}

/* The old arena goes first: its content is of no use and the two might not fit. */
static ms_status grow_arena(ms_device *dev, struct ms_activations *a, size_t bytes) {
  if (bytes <= a->arena_bytes) return MS_OK;
  ms_device_free(dev, a->arena, a->arena_bytes);
  a->arena = NULL;
  a->arena_bytes = 0;
  MS_TRY(ms_device_alloc(dev, bytes, "activations",
                         "fewer tokens in a batch, or recompute = true, need less", &a->arena));
  a->arena_bytes = bytes;
  return MS_OK;
}

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

/* Tables for every position this pass can meet; doubled, so that decoding seldom grows them. */
static ms_status grow_rope(ms_device *dev, const ms_config *c, struct ms_activations *a,
                           int64_t need) {
  void *host = NULL, *p = NULL;
  int64_t positions = 256;
  while (positions < need) positions *= 2;
  if (positions > c->context) positions = max(need, c->context);
  size_t half = (size_t)c->rotary / 2, bytes = 2 * half * (size_t)positions * 4;
  ms_status st = MS_OK;

  if (need <= a->positions || !half) return MS_OK;
  MS_TRY(ms_alloc_undefined(bytes, "rope tables", &host));
  fill_rope(c, host, positions);
  MS_TRY_OR(end, ms_device_new(dev, bytes, &p));
  MS_TRY_OR(end, MS_OP(dev, write, p, host, bytes));
  ms_device_free(dev, a->rope, a->rope_bytes);
  a->rope = p;
  a->rope_bytes = bytes;
  a->positions = positions;
  p = NULL;
end:
  ms_device_free(dev, p, bytes);
  ms_free(host);
  return st;
}

static ms_status new_activations(ms_model *model) {
  void *p, *layer;
  if (model->act) return MS_OK;
  MS_TRY(ms_alloc((size_t)model->config.layers * sizeof(ms_kept), "activations", &layer));
  ms_status st = ms_alloc(sizeof *model->act, "activations", &p);
  if (st != MS_OK) {
    ms_free(layer);
    return st;
  }
  model->act = p;
  model->act->layer = layer;
  return MS_OK;
}

static ms_status write_inputs(const ms_pass *pass) {
  ms_device *dev = pass->model->dev;
  struct ms_activations *a = pass->model->act;
  size_t n = (size_t)pass->tokens * 4;
  MS_TRY(MS_OP(dev, write, a->token, pass->token, n));
  MS_TRY(MS_OP(dev, write, a->position, pass->position, n));
  MS_TRY(
      MS_OP(dev, write, a->segment_start, pass->segment_start, (size_t)(pass->segments + 1) * 4));
  if (pass->rows) MS_TRY(MS_OP(dev, write, a->row, pass->row, (size_t)pass->rows * 4));
  if (pass->step) MS_TRY(MS_OP(dev, write, a->slot, pass->slot, n));
  return MS_OK;
}

ms_status ms_pass_prepare(const ms_pass *pass) {
  ms_model *model = pass->model;
  int32_t last = 0;
  MS_TRY(new_activations(model));
  for (int64_t t = 0; t < pass->tokens; t++)
    if (pass->position[t] > last) last = pass->position[t];
  MS_TRY(grow_rope(model->dev, &model->config, model->act, (int64_t)last + 1));
  cursor at = {NULL, 0};
  lay(&at, pass);
  MS_TRY(grow_arena(model->dev, model->act, at.used));
  at = (cursor){model->act->arena, 0};
  lay(&at, pass);
  return write_inputs(pass);
}

void ms_activations_free(ms_device *dev, struct ms_activations *act) {
  if (!act) return;
  ms_device_free(dev, act->arena, act->arena_bytes);
  ms_device_free(dev, act->rope, act->rope_bytes);
  ms_head_space_free(&act->head);
  ms_free(act->layer);
  ms_free(act);
}

size_t ms_activations_bytes(const struct ms_activations *act) {
  return act ? act->arena_bytes + act->rope_bytes + act->head.bytes : 0;
}

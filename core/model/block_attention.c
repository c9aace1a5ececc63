/* block_attention.c - attention: o(attend(rotated q(h), rotated k(h), v(h))).
 *
 * In the last layer only the rows that are wanted go through o. Saved are q, k, v, what attention gave
 * and its log-sum-exps. */
#include "decoder.h"

static ms_attention_shape shape_of(const ms_pass *pass, int32_t l) {
  const ms_config *c = &pass->model->config;
  int64_t longest = 0;
  for (int64_t i = 0; i < pass->segments; i++)
    longest = ms_max(longest, pass->segment_start[i + 1] - pass->segment_start[i]);
  return (ms_attention_shape){
      .tokens = pass->tokens,
      .segments = pass->segments,
      .longest = longest,
      .heads = c->heads,
      .kv_heads = c->kv_heads,
      .head_dim = c->head_dim,
      .window = c->window[l],
      .group = c->heads / c->kv_heads,
      .scale = c->attention_scale,
      .soft_cap = c->attention_cap,
  };
}

/* How many norms a token's q (or k) of that many heads goes through: one each, or one for all. */
static int64_t norms(const ms_config *c, int32_t heads) {
  return c->qk_norm == MS_QK_NORM_WHOLE ? 1 : heads;
}

/* ---- memory ---- */

static void lay_saved(ms_cursor *at, const ms_pass *pass, int32_t l, ms_saved *s) {
  (void)l;
  const ms_config *c = &pass->model->config;
  int64_t n = pass->tokens;
  int dtype = ms_pass_precision(pass)->attention;
  s->q = ms_take(at, dtype, n * ms_q_size(c));
  s->k = ms_take(at, dtype, n * ms_kv_size(c));
  s->v = ms_take(at, dtype, n * ms_kv_size(c));
  s->y = ms_take(at, dtype, n * ms_q_size(c));
  s->lse = ms_take_f32(at, n * c->heads);
  s->rstd_q = c->qk_norm ? ms_take_f32(at, n * norms(c, c->heads)) : NULL;
  s->rstd_k = c->qk_norm ? ms_take_f32(at, n * norms(c, c->kv_heads)) : NULL;
}

static void lay_workspace(const ms_pass *pass, ms_saved *s) {
  const ms_config *c = &pass->model->config;
  int64_t q = pass->tokens * ms_q_size(c), kv = pass->tokens * ms_kv_size(c);
  s->q = ms_act_as(pass->act->workspace, ms_pass_precision(pass)->attention);
  s->y = ms_act_at(s->q, q);
  s->k = ms_act_at(s->y, q);
  s->v = ms_act_at(s->k, kv);
}

/* Forwards without saving q, y, k, v; backwards dy, dq, dk, dv, and rotated q and k where they are not
 * saved. */
static size_t workspace(const ms_pass *pass) {
  const ms_config *c = &pass->model->config;
  int64_t q = ms_q_size(c), kv = ms_kv_size(c), each = 2 * (q + kv);
  if (ms_has_backward(pass) && c->qk_norm) each += q + kv;
  return (size_t)(pass->tokens * each) * ms_dtype_size(ms_pass_precision(pass)->attention);
}

static int64_t rows_at_once(int64_t rows) { return rows; }

static int trains_input(const ms_layer *w) {
  return ms_trained(w->q, w->q_bias) || ms_trained(w->k, w->k_bias) || ms_trained(w->v, w->v_bias);
}

static int trains_before_o(const ms_layer *w) {
  return trains_input(w) || w->q_norm.g || w->k_norm.g;
}

static int trains(const ms_layer *w) { return trains_before_o(w) || ms_trained(w->o, w->o_bias); }

/* ---- q and k ---- */

/* `sign` -1 turns back. */
static ms_status rope(const ms_pass *pass, ms_act x, int32_t heads, int sign) {
  const ms_model *m = pass->model;
  const ms_config *c = &m->config;
  const ms_rope_tables *r = &m->rope;
  if (!c->rotary) return MS_OK;
  return MS_OP(m->dev, rope, x, pass->act->position, r->table,
               r->table + r->positions * (c->rotary / 2), pass->tokens, heads, c->head_dim,
               c->rotary, sign);
}

/* q and k as attention sees them, from saved ones; into the first part of the workspace where they have
 * a norm of their own. */
static ms_status rotate(const ms_pass *pass, int32_t l, ms_act *q, ms_act *k) {
  const ms_model *m = pass->model;
  const ms_config *c = &m->config;
  const ms_layer *w = &m->layer[l];
  const ms_saved *saved = &pass->act->layer[l];
  int64_t n = pass->tokens;
  *q = saved->q;
  *k = saved->k;
  if (!c->qk_norm) return MS_OK;
  if (ms_is_saved(pass, l)) {
    *q = ms_act_as(pass->act->workspace, saved->q.dtype);
    *k = ms_act_at(*q, n * ms_q_size(c));
  }
  int64_t q_norms = norms(c, c->heads), k_norms = norms(c, c->kv_heads);
  MS_TRY(ms_norm(m, *q, saved->rstd_q, saved->q, w->q_norm, n * q_norms, ms_q_size(c) / q_norms));
  MS_TRY(ms_norm(m, *k, saved->rstd_k, saved->k, w->k_norm, n * k_norms, ms_kv_size(c) / k_norms));
  MS_TRY(rope(pass, *q, c->heads, 1));
  return rope(pass, *k, c->kv_heads, 1);
}

/* Through rotation and the norm of q (or k), in place: x is what was projected. */
static ms_status rotate_backward(const ms_pass *pass, ms_act dx, ms_act x, const float *rstd,
                                 ms_slice w, int32_t heads) {
  const ms_model *m = pass->model;
  const ms_config *c = &m->config;
  int64_t each = norms(c, heads);
  MS_TRY(rope(pass, dx, heads, -1));
  if (!c->qk_norm) return MS_OK;
  return ms_norm_backward(m, ms_set(dx), dx, x, rstd, w, pass->tokens * each,
                          heads * c->head_dim / each);
}

/* ---- the cache of a generation ---- */

/* Where slot `slot` of layer l begins in one half of the cache. */
static ms_act cache_at(const ms_pass *pass, ms_act half, int32_t l, int64_t slot) {
  const ms_cache *cache = pass->cache;
  return ms_act_at(half,
                   (l * cache->slots + slot) * cache->capacity * ms_kv_size(&pass->model->config));
}

/* Keys and values of each segment go to its slot, from the position of its first token on. */
static ms_status fill_cache(const ms_pass *pass, int32_t l, ms_act k, ms_act v) {
  int64_t kv = ms_kv_size(&pass->model->config);
  for (int64_t i = 0; i < pass->segments; i++) {
    int64_t start = pass->segment_start[i], at = pass->position[start] * kv;
    size_t bytes = ms_act_bytes(k, (pass->segment_start[i + 1] - start) * kv);
    ms_act to_k = ms_act_at(cache_at(pass, pass->cache->k, l, pass->slot[i]), at);
    ms_act to_v = ms_act_at(cache_at(pass, pass->cache->v, l, pass->slot[i]), at);
    MS_TRY(MS_OP(pass->model->dev, copy, to_k.at, ms_act_at(k, start * kv).at, bytes));
    MS_TRY(MS_OP(pass->model->dev, copy, to_v.at, ms_act_at(v, start * kv).at, bytes));
  }
  return MS_OK;
}

/* The keys each row sees; written again only where the window differs from the layer's before. */
static ms_status write_ranges(const ms_pass *pass, int32_t l) {
  const ms_model *m = pass->model;
  int32_t window = m->config.window[l], *first = pass->range, *length = first + pass->tokens;
  size_t bytes = (size_t)pass->tokens * sizeof *first;
  if (l > 0 && window == m->config.window[l - 1]) return MS_OK;
  for (int64_t t = 0; t < pass->tokens; t++) {
    int32_t seen = pass->position[t] + 1;
    length[t] = window && seen > window ? window : seen;
    first[t] = seen - length[t];
  }
  MS_TRY(MS_OP(m->dev, write, pass->act->first, first, bytes));
  return MS_OP(m->dev, write, pass->act->length, length, bytes);
}

static ms_status attend_cached(const ms_pass *pass, int32_t l, ms_act y, ms_act q) {
  const ms_model *m = pass->model;
  const struct ms_activations *a = pass->act;
  ms_attention_shape shape = shape_of(pass, l);
  MS_TRY(write_ranges(pass, l));
  return MS_OP(m->dev, attention_cached, y, q, cache_at(pass, pass->cache->k, l, 0),
               cache_at(pass, pass->cache->v, l, 0), a->slot, a->first, a->length,
               pass->cache->capacity, &shape);
}

/* ---- forward ---- */

/* What o multiplies: attention's y, of the rows that go on. */
static ms_act o_input(const ms_pass *pass, int32_t l) {
  return ms_is_last(pass, l) ? pass->act->y_rows : pass->act->layer[l].y;
}

static ms_status project_qkv(const ms_pass *pass, int32_t l, ms_act h) {
  const ms_model *m = pass->model;
  const ms_config *c = &m->config;
  const ms_layer *w = &m->layer[l];
  const ms_saved *saved = &pass->act->layer[l];
  int64_t n = pass->tokens, hidden = c->hidden_size, q = ms_q_size(c), kv = ms_kv_size(c);
  MS_TRY(ms_project(m, ms_set(saved->q), h, w->q, w->q_bias, n, hidden, q));
  MS_TRY(ms_project(m, ms_set(saved->k), h, w->k, w->k_bias, n, hidden, kv));
  MS_TRY(ms_project(m, ms_set(saved->v), h, w->v, w->v_bias, n, hidden, kv));
  if (c->qk_norm) return MS_OK;
  MS_TRY(rope(pass, saved->q, c->heads, 1));
  return rope(pass, saved->k, c->kv_heads, 1);
}

static ms_status attend(const ms_pass *pass, int32_t l) {
  const ms_model *m = pass->model;
  const ms_saved *saved = &pass->act->layer[l];
  ms_attention_shape shape = shape_of(pass, l);
  ms_act q, k;
  MS_TRY(rotate(pass, l, &q, &k));
  if (pass->cache) MS_TRY(fill_cache(pass, l, k, saved->v));
  if (pass->step) return attend_cached(pass, l, saved->y, q);
  return MS_OP(m->dev, attention, saved->y, saved->lse, q, k, saved->v, pass->act->segment_start,
               &shape);
}

static ms_status forward(const ms_pass *pass, int32_t l, int64_t row, int64_t rows, ms_act h,
                         ms_into out) {
  (void)row, (void)rows; /* all at once */
  const ms_model *m = pass->model;
  const ms_config *c = &m->config;
  const ms_layer *w = &m->layer[l];
  ms_act y = o_input(pass, l);
  MS_TRY(project_qkv(pass, l, h));
  MS_TRY(attend(pass, l));
  if (ms_is_last(pass, l))
    MS_TRY(
        MS_OP(m->dev, gather, y, pass->act->layer[l].y, pass->act->row, pass->rows, ms_q_size(c)));
  return ms_project(m, out, y, w->o, w->o_bias, ms_layer_rows(pass, l), ms_q_size(c),
                    c->hidden_size);
}

/* ---- backward ---- */

/* From d loss / d (q, k, v) to the block's input. */
static ms_status project_qkv_backward(const ms_pass *pass, int32_t l, ms_act d_h, ms_act dq,
                                      ms_act dk, ms_act dv, ms_act h) {
  const ms_model *m = pass->model;
  const ms_config *c = &m->config;
  const ms_layer *w = &m->layer[l];
  int64_t n = pass->tokens, hidden = c->hidden_size, kv = ms_kv_size(c);
  MS_TRY(ms_project_backward(m, ms_set(d_h), w->q, w->q_bias, dq, h, n, hidden, ms_q_size(c)));
  MS_TRY(ms_project_backward(m, ms_add_to(d_h), w->k, w->k_bias, dk, h, n, hidden, kv));
  return ms_project_backward(m, ms_add_to(d_h), w->v, w->v_bias, dv, h, n, hidden, kv);
}

/* In the last layer the gradient of y is of the rows that are wanted: it becomes one of all tokens. */
static ms_status spread_rows(const ms_pass *pass, ms_act dy, ms_act dy_rows) {
  const ms_model *m = pass->model;
  int64_t q_size = ms_q_size(&m->config);
  MS_TRY(MS_OP(m->dev, zero, dy.at, ms_act_bytes(dy, pass->tokens * q_size)));
  return MS_OP(m->dev, scatter, dy, dy_rows, pass->act->row, pass->rows, q_size);
}

static ms_status backward(const ms_pass *pass, int32_t l, int64_t row, int64_t rows, ms_act d_h,
                          ms_act d_out, ms_act h) {
  (void)row, (void)rows;
  const ms_model *m = pass->model;
  const ms_config *c = &m->config;
  const ms_layer *w = &m->layer[l];
  const ms_saved *saved = &pass->act->layer[l];
  int64_t q_size = ms_q_size(c), n_q = pass->tokens * q_size, n_kv = pass->tokens * ms_kv_size(c);
  ms_attention_shape shape = shape_of(pass, l);
  ms_act q, k, start = ms_act_as(pass->act->workspace, saved->q.dtype);
  ms_act dy = ms_act_at(start, c->qk_norm ? n_q + n_kv : 0); /* behind rotated q and k */
  ms_act dq = ms_act_at(dy, n_q), dk = ms_act_at(dq, n_q), dv = ms_act_at(dk, n_kv);
  ms_act dy_rows = ms_is_last(pass, l) ? dq : dy; /* dq comes later */
  int is_wanted = d_h.at || trains_before_o(w);

  MS_TRY(ms_project_backward(m, ms_set(is_wanted ? dy_rows : ms_no_act), w->o, w->o_bias, d_out,
                             o_input(pass, l), ms_layer_rows(pass, l), q_size, c->hidden_size));
  if (!is_wanted) return MS_OK;
  if (ms_is_last(pass, l)) MS_TRY(spread_rows(pass, dy, dy_rows));
  MS_TRY(rotate(pass, l, &q, &k));
  MS_TRY(MS_OP(m->dev, attention_backward, dq, dk, dv, dy, saved->y, saved->lse, q, k, saved->v,
               pass->act->segment_start, &shape));
  MS_TRY(rotate_backward(pass, dq, saved->q, saved->rstd_q, w->q_norm, c->heads));
  MS_TRY(rotate_backward(pass, dk, saved->k, saved->rstd_k, w->k_norm, c->kv_heads));
  return project_qkv_backward(pass, l, d_h, dq, dk, dv, h);
}

const ms_block ms_block_attention = {lay_saved, lay_workspace, workspace, rows_at_once,
                                     trains,    trains_input,  forward,   backward};

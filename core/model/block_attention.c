/* block_attention.c - attention: o(attend(rotated q(h), rotated k(h), v(h))).
 *
 * In the last layer only the rows that are wanted go through o. Saved are q, k, v, what attention gave
 * and its log-sum-exps. */
#include "decoder.h"

/* Query heads of the whole model for each key/value head. */
static int32_t group_of(const ms_config *c) { return c->heads / c->kv_heads; }

static ms_attention_shape shape_of(const ms_pass *pass, int32_t l) {
  const ms_config *c = &pass->model->config;
  const ms_share *share = &pass->model->share;
  int64_t longest = 0;
  for (int64_t i = 0; i < pass->segments; i++)
    longest = ms_max(longest, pass->segment_start[i + 1] - pass->segment_start[i]);
  return (ms_attention_shape){
      .tokens = pass->tokens,
      .segments = pass->segments,
      .longest = longest,
      .heads = share->heads,
      .kv_heads = share->kv_heads,
      .group = group_of(c),
      .shift = share->first_head % group_of(c),
      .head_dim = c->head_dim,
      .window = c->window[l],
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
  const ms_model *m = pass->model;
  const ms_config *c = &m->config;
  int64_t n = pass->tokens;
  int dtype = ms_pass_precision(pass)->attention;
  s->q = ms_take(at, dtype, n * ms_q_size(m));
  s->k = ms_take(at, dtype, n * ms_kv_size(m));
  s->v = ms_take(at, dtype, n * ms_kv_size(m));
  s->y = ms_take(at, dtype, n * ms_q_size(m));
  s->lse = ms_take_f32(at, n * m->share.heads);
  s->rstd_q = c->qk_norm ? ms_take_f32(at, n * norms(c, m->share.heads)) : NULL;
  s->rstd_k = c->qk_norm ? ms_take_f32(at, n * norms(c, m->share.kv_heads)) : NULL;
}

static void lay_workspace(const ms_pass *pass, ms_saved *s) {
  int64_t q = pass->tokens * ms_q_size(pass->model), kv = pass->tokens * ms_kv_size(pass->model);
  s->q = ms_act_as(pass->act->workspace, ms_pass_precision(pass)->attention);
  s->y = ms_act_at(s->q, q);
  s->k = ms_act_at(s->y, q);
  s->v = ms_act_at(s->k, kv);
}

/* Forwards without saving q, y, k, v; backwards dy, dq, dk, dv, and rotated q and k where they are not
 * saved. */
static size_t workspace(const ms_pass *pass) {
  const ms_model *m = pass->model;
  int64_t q = ms_q_size(m), kv = ms_kv_size(m), each = 2 * (q + kv);
  if (ms_has_backward(pass) && m->config.qk_norm) each += q + kv;
  return (size_t)(pass->tokens * each) * ms_dtype_size(ms_pass_precision(pass)->attention);
}

static int64_t parts(int64_t rows) {
  (void)rows; /* all at once */
  return 1;
}

static int trains_input(const ms_layer *w) {
  return ms_trained(w->q, w->q_bias) || ms_trained(w->k, w->k_bias) || ms_trained(w->v, w->v_bias);
}

static int trains_before_o(const ms_layer *w) {
  return trains_input(w) || w->q_norm.g || w->k_norm.g;
}

static int trains(const ms_layer *w) { return trains_before_o(w) || w->o.g; }

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

/* q or k, and the norm it has of its own. */
typedef struct side {
  ms_act x;    /* as projected */
  float *rstd; /* [tokens, each] */
  ms_slice w;
  int32_t heads;
  int64_t each, cols; /* norms a token; columns of one of them */
  float *dot; /* [tokens] sums over whole rows, where the heads of a norm are on several ranks */
  const ms_norm_part *in; /* NULL where they are not, or else: */
  ms_norm_part part;
} side;

static void set_side(const ms_pass *pass, int32_t l, int is_k, side *s) {
  const ms_model *m = pass->model;
  const ms_config *c = &m->config;
  const ms_saved *saved = &pass->act->layer[l];
  int copied = is_k && m->share.first_head % group_of(c); /* the rank before has it, too */
  *s = (side){.x = is_k ? saved->k : saved->q,
              .rstd = is_k ? saved->rstd_k : saved->rstd_q,
              .w = is_k ? m->layer[l].k_norm : m->layer[l].q_norm,
              .heads = is_k ? m->share.kv_heads : m->share.heads};
  s->each = norms(c, s->heads);
  s->cols = s->heads * c->head_dim / s->each;
  if (c->qk_norm != MS_QK_NORM_WHOLE || !ms_is_cut(m)) return;
  s->dot = pass->act->dots + (is_k ? pass->tokens : 0);
  s->part = (ms_norm_part){s->dot, (int64_t)(is_k ? c->kv_heads : c->heads) * c->head_dim,
                           copied ? c->head_dim : 0};
  s->in = &s->part;
}

/* What the ranks must know of whole rows of q and k: forwards the squares of x, of which a head that two
 * ranks have counts once; backwards the products of its gradient dx, of which each has a part. */
static ms_status add_up(const ms_pass *pass, side s[2], const ms_act *dx) {
  const ms_model *m = pass->model;
  ms_group *g = m->share.group;
  if (!s[0].in) return MS_OK;
  for (int i = 0; i < 2; i++)
    MS_TRY(MS_OP(m->dev, row_dot, s[i].dot, dx ? dx[i] : s[i].x, s[i].x, dx ? s[i].w.w : NULL,
                 m->dtype, pass->tokens, s[i].cols, dx ? 0 : s[i].part.copied,
                 dx ? m->config.norm_offset : 0));
  return g->ops->all_reduce(g, m->dev->stream, pass->act->dots, MS_F32, 2 * pass->tokens, MS_SUM,
                            NULL);
}

/* q and k as attention sees them, from saved ones; into the first part of the workspace where they have
 * a norm of their own. */
static ms_status rotate(const ms_pass *pass, int32_t l, ms_act y[2]) {
  const ms_model *m = pass->model;
  side s[2];
  for (int i = 0; i < 2; i++) set_side(pass, l, i, &s[i]), y[i] = s[i].x;
  if (!m->config.qk_norm) return MS_OK;
  if (ms_is_saved(pass, l)) {
    y[0] = ms_act_as(pass->act->workspace, s[0].x.dtype);
    y[1] = ms_act_at(y[0], pass->tokens * ms_q_size(m));
  }
  MS_TRY(add_up(pass, s, NULL));
  for (int i = 0; i < 2; i++) {
    MS_TRY(
        ms_norm(m, y[i], s[i].rstd, s[i].x, s[i].w, pass->tokens * s[i].each, s[i].cols, s[i].in));
    MS_TRY(rope(pass, y[i], s[i].heads, 1));
  }
  return MS_OK;
}

/* Through rotation and the norms of q and k, in place. */
static ms_status rotate_backward(const ms_pass *pass, int32_t l, const ms_act dx[2]) {
  const ms_model *m = pass->model;
  side s[2];
  for (int i = 0; i < 2; i++) {
    set_side(pass, l, i, &s[i]);
    MS_TRY(rope(pass, dx[i], s[i].heads, -1));
  }
  if (!m->config.qk_norm) return MS_OK;
  MS_TRY(add_up(pass, s, dx));
  for (int i = 0; i < 2; i++)
    MS_TRY(ms_norm_backward(m, ms_set(dx[i]), dx[i], s[i].x, s[i].rstd, s[i].w,
                            pass->tokens * s[i].each, s[i].cols, s[i].in));
  return MS_OK;
}

/* ---- the cache of a generation ---- */

/* Where slot `slot` of layer l begins in one half of the cache. */
static ms_act cache_at(const ms_pass *pass, ms_act half, int32_t l, int64_t slot) {
  const ms_cache *cache = pass->cache;
  return ms_act_at(half, (l * cache->slots + slot) * cache->capacity * ms_kv_size(pass->model));
}

/* Keys and values of each segment go to its slot, from the position of its first token on. */
static ms_status fill_cache(const ms_pass *pass, int32_t l, ms_act k, ms_act v) {
  int64_t kv = ms_kv_size(pass->model);
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
  const ms_layer *w = &m->layer[l];
  const ms_saved *saved = &pass->act->layer[l];
  int64_t n = pass->tokens, hidden = m->config.hidden_size, q = ms_q_size(m), kv = ms_kv_size(m);
  MS_TRY(ms_project(m, ms_set(saved->q), h, w->q, w->q_bias, n, hidden, q));
  MS_TRY(ms_project(m, ms_set(saved->k), h, w->k, w->k_bias, n, hidden, kv));
  MS_TRY(ms_project(m, ms_set(saved->v), h, w->v, w->v_bias, n, hidden, kv));
  if (m->config.qk_norm) return MS_OK;
  MS_TRY(rope(pass, saved->q, m->share.heads, 1));
  return rope(pass, saved->k, m->share.kv_heads, 1);
}

static ms_status attend(const ms_pass *pass, int32_t l) {
  const ms_model *m = pass->model;
  const ms_saved *saved = &pass->act->layer[l];
  ms_attention_shape shape = shape_of(pass, l);
  ms_act qk[2];
  MS_TRY(rotate(pass, l, qk));
  if (pass->cache) MS_TRY(fill_cache(pass, l, qk[1], saved->v));
  if (pass->step) return attend_cached(pass, l, saved->y, qk[0]);
  return MS_OP(m->dev, attention, saved->y, saved->lse, qk[0], qk[1], saved->v,
               pass->act->segment_start, &shape);
}

static ms_status forward(const ms_pass *pass, int32_t l, int64_t row, int64_t rows, ms_act h,
                         ms_into out) {
  (void)row, (void)rows; /* all at once */
  const ms_model *m = pass->model;
  const ms_layer *w = &m->layer[l];
  ms_act y = o_input(pass, l);
  MS_TRY(project_qkv(pass, l, h));
  MS_TRY(attend(pass, l));
  if (ms_is_last(pass, l))
    MS_TRY(
        MS_OP(m->dev, gather, y, pass->act->layer[l].y, pass->act->row, pass->rows, ms_q_size(m)));
  return ms_project(m, out, y, w->o, ms_no_slice, ms_layer_rows(pass, l), ms_q_size(m),
                    m->config.hidden_size);
}

/* ---- backward ---- */

/* From d loss / d (q, k, v) to the block's input. */
static ms_status project_qkv_backward(const ms_pass *pass, int32_t l, ms_act d_h, ms_act dq,
                                      ms_act dk, ms_act dv, ms_act h) {
  const ms_model *m = pass->model;
  const ms_layer *w = &m->layer[l];
  int64_t n = pass->tokens, hidden = m->config.hidden_size, kv = ms_kv_size(m);
  MS_TRY(ms_project_backward(m, ms_set(d_h), w->q, w->q_bias, dq, h, n, hidden, ms_q_size(m)));
  MS_TRY(ms_project_backward(m, ms_add_to(d_h), w->k, w->k_bias, dk, h, n, hidden, kv));
  return ms_project_backward(m, ms_add_to(d_h), w->v, w->v_bias, dv, h, n, hidden, kv);
}

/* In the last layer the gradient of y is of the rows that are wanted: it becomes one of all tokens. */
static ms_status spread_rows(const ms_pass *pass, ms_act dy, ms_act dy_rows) {
  const ms_model *m = pass->model;
  int64_t q_size = ms_q_size(m);
  MS_TRY(MS_OP(m->dev, zero, dy.at, ms_act_bytes(dy, pass->tokens * q_size)));
  return MS_OP(m->dev, scatter, dy, dy_rows, pass->act->row, pass->rows, q_size);
}

static ms_status backward(const ms_pass *pass, int32_t l, int64_t row, int64_t rows, ms_act d_h,
                          ms_act d_out, ms_act h) {
  (void)row, (void)rows;
  const ms_model *m = pass->model;
  const ms_layer *w = &m->layer[l];
  const ms_saved *saved = &pass->act->layer[l];
  int64_t q_size = ms_q_size(m), n_q = pass->tokens * q_size, n_kv = pass->tokens * ms_kv_size(m);
  ms_attention_shape shape = shape_of(pass, l);
  ms_act qk[2], start = ms_act_as(pass->act->workspace, saved->q.dtype);
  ms_act dy = ms_act_at(start, m->config.qk_norm ? n_q + n_kv : 0); /* behind rotated q and k */
  ms_act dq = ms_act_at(dy, n_q), dk = ms_act_at(dq, n_q), dv = ms_act_at(dk, n_kv);
  ms_act dy_rows = ms_is_last(pass, l) ? dq : dy; /* dq comes later */
  int is_wanted = d_h.at || trains_before_o(w);

  MS_TRY(ms_project_backward(m, ms_set(is_wanted ? dy_rows : ms_no_act), w->o, ms_no_slice, d_out,
                             o_input(pass, l), ms_layer_rows(pass, l), q_size,
                             m->config.hidden_size));
  if (!is_wanted) return MS_OK;
  if (ms_is_last(pass, l)) MS_TRY(spread_rows(pass, dy, dy_rows));
  MS_TRY(rotate(pass, l, qk));
  MS_TRY(MS_OP(m->dev, attention_backward, dq, dk, dv, dy, saved->y, saved->lse, qk[0], qk[1],
               saved->v, pass->act->segment_start, &shape));
  MS_TRY(rotate_backward(pass, l, (ms_act[]){dq, dk}));
  return project_qkv_backward(pass, l, d_h, dq, dk, dv, h);
}

const ms_block ms_block_attention = {lay_saved, lay_workspace, workspace, parts,
                                     trains,    trains_input,  forward,   backward};

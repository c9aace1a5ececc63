/* decoder.c - the forward pass: embedding, layers, final norm on the rows that are wanted. */
#include "decoder.h"

ms_attention_shape ms_layer_attention(const ms_pass *pass, int32_t l) {
  const ms_config *c = &pass->model->config;
  return (ms_attention_shape){
      .tokens = pass->tokens,
      .segments = pass->segments,
      .heads = c->heads,
      .kv_heads = c->kv_heads,
      .head_dim = c->head_dim,
      .window = c->window[l],
      .scale = (float)(1 / __builtin_sqrt((double)c->head_dim)),
  };
}

ms_act ms_pass_d_hidden(const ms_pass *pass) {
  return ms_act_as(pass->model->act->wide, pass->model->dev->ops->precision.stream);
}

/* y[rows, out] (+)= x[rows, in] w^T + bias */
static ms_status linear(const ms_model *m, ms_act y, ms_act x, ms_slice w, ms_slice bias,
                        int64_t rows, int64_t in, int64_t out, int add) {
  MS_TRY(MS_OP(m->dev, linear, y, x, w.w, m->dtype, rows, in, out, add));
  if (bias.w) MS_TRY(MS_OP(m->dev, bias, y, bias.w, m->dtype, rows, out));
  return MS_OK;
}

static ms_status norm(const ms_model *m, ms_act y, float *rstd, ms_act x, ms_slice w, int64_t rows,
                      int64_t cols) {
  return MS_OP(m->dev, rmsnorm, y, rstd, x, w.w, m->dtype, rows, cols, m->config.eps);
}

static ms_status rope(const ms_pass *pass, ms_act x, int32_t heads) {
  const ms_model *m = pass->model;
  const ms_config *c = &m->config;
  const struct ms_activations *a = m->act;
  if (!c->rotary) return MS_OK;
  return MS_OP(m->dev, rope, x, a->position, a->rope, a->rope + a->positions * (c->rotary / 2),
               pass->tokens, heads, c->head_dim, c->rotary, 1);
}

ms_status ms_layer_rotate(const ms_pass *pass, int32_t l, ms_act *q, ms_act *k) {
  const ms_model *m = pass->model;
  const ms_config *c = &m->config;
  const ms_layer *w = &m->layer[l];
  const ms_kept *kept = &m->act->layer[l];
  int64_t n = pass->tokens;
  *q = kept->q;
  *k = kept->k;
  if (!c->qk_norm) return MS_OK;
  if (ms_is_kept(pass, l)) {
    *q = ms_act_as(m->act->wide, kept->q.dtype);
    *k = ms_act_at(*q, n * ms_q_width(c));
  }
  MS_TRY(norm(m, *q, kept->rstd_q, kept->q, w->q_norm, n * c->heads, c->head_dim));
  MS_TRY(norm(m, *k, kept->rstd_k, kept->k, w->k_norm, n * c->kv_heads, c->head_dim));
  MS_TRY(rope(pass, *q, c->heads));
  return rope(pass, *k, c->kv_heads);
}

/* Where slot `slot` of layer l begins in one half of the cache. */
static ms_act cache_at(const ms_pass *pass, ms_act half, int32_t l, int64_t slot) {
  const ms_cache *cache = pass->cache;
  return ms_act_at(half,
                   (l * cache->slots + slot) * cache->capacity * ms_kv_width(&pass->model->config));
}

/* Keys and values of each segment go to its slot, from the position of its first token on. */
static ms_status fill_cache(const ms_pass *pass, int32_t l, ms_act k, ms_act v) {
  int64_t kv = ms_kv_width(&pass->model->config);
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
  size_t bytes = (size_t)pass->tokens * 4;
  if (l > 0 && window == m->config.window[l - 1]) return MS_OK;
  for (int64_t t = 0; t < pass->tokens; t++) {
    int32_t seen = pass->position[t] + 1;
    length[t] = window && seen > window ? window : seen;
    first[t] = seen - length[t];
  }
  MS_TRY(MS_OP(m->dev, write, m->act->first, first, bytes));
  return MS_OP(m->dev, write, m->act->length, length, bytes);
}

static ms_status attend_cached(const ms_pass *pass, int32_t l, ms_act y, ms_act q) {
  const ms_model *m = pass->model;
  const ms_config *c = &m->config;
  const struct ms_activations *a = m->act;
  MS_TRY(write_ranges(pass, l));
  return MS_OP(m->dev, attention_cached, y, q, cache_at(pass, pass->cache->k, l, 0),
               cache_at(pass, pass->cache->v, l, 0), a->slot, a->first, a->length, pass->tokens,
               pass->cache->capacity, c->heads, c->kv_heads, c->head_dim,
               ms_layer_attention(pass, l).scale);
}

/* From attention's output back onto the stream; in the last layer with the rows that are wanted. */
static ms_status leave_attention(const ms_pass *pass, int32_t l) {
  const ms_model *m = pass->model;
  const ms_config *c = &m->config;
  const ms_layer *w = &m->layer[l];
  const ms_kept *kept = &m->act->layer[l];
  int64_t rows = ms_layer_rows(pass, l), q_width = ms_q_width(c);
  if (ms_is_last(pass, l)) {
    const int32_t *row = m->act->row;
    MS_TRY(MS_OP(m->dev, gather, kept->y_rows, kept->y, row, rows, q_width));
    MS_TRY(MS_OP(m->dev, gather, kept->mid, kept->x, row, rows, c->width));
  } else if (kept->mid.at != kept->x.at) {
    MS_TRY(MS_OP(m->dev, copy, kept->mid.at, kept->x.at, ms_act_bytes(kept->x, rows * c->width)));
  }
  return linear(m, kept->mid, kept->y_rows, w->o, w->o_bias, rows, q_width, c->width, 1);
}

static ms_status attend(const ms_pass *pass, int32_t l) {
  const ms_model *m = pass->model;
  const ms_config *c = &m->config;
  const ms_layer *w = &m->layer[l];
  const ms_kept *kept = &m->act->layer[l];
  int64_t n = pass->tokens, q_width = ms_q_width(c), kv_width = ms_kv_width(c);
  ms_attention_shape shape = ms_layer_attention(pass, l);
  ms_act h = m->act->norm, q, k;

  MS_TRY(norm(m, h, kept->rstd1, kept->x, w->norm1, n, c->width));
  MS_TRY(linear(m, kept->q, h, w->q, w->q_bias, n, c->width, q_width, 0));
  MS_TRY(linear(m, kept->k, h, w->k, w->k_bias, n, c->width, kv_width, 0));
  MS_TRY(linear(m, kept->v, h, w->v, w->v_bias, n, c->width, kv_width, 0));
  if (!c->qk_norm) {
    MS_TRY(rope(pass, kept->q, c->heads));
    MS_TRY(rope(pass, kept->k, c->kv_heads));
  }
  MS_TRY(ms_layer_rotate(pass, l, &q, &k));
  if (pass->cache) MS_TRY(fill_cache(pass, l, k, kept->v));
  if (pass->step)
    MS_TRY(attend_cached(pass, l, kept->y, q));
  else
    MS_TRY(
        MS_OP(m->dev, attention, kept->y, kept->lse, q, k, kept->v, m->act->segment_start, &shape));
  return leave_attention(pass, l);
}

/* One block of the MLP's rows, from `row` on. `to` as in ms_layer_forward. */
static ms_status feed_rows(const ms_pass *pass, int32_t l, int64_t row, int64_t rows, ms_act to) {
  const ms_model *m = pass->model;
  const ms_config *c = &m->config;
  const ms_layer *w = &m->layer[l];
  const ms_kept *kept = &m->act->layer[l];
  int is_kept = ms_is_kept(pass, l);
  int64_t inner = c->inner, at = is_kept ? row * inner : 0;
  ms_act gate = ms_act_at(kept->gate, at), up = ms_act_at(kept->up, at), h = m->act->norm;
  ms_act product =
      ms_act_at(ms_act_as(m->act->wide, gate.dtype), is_kept ? 0 : 2 * ms_mlp_most(pass) * inner);
  float *rstd = is_kept ? kept->rstd2 + row : NULL;

  MS_TRY(norm(m, h, rstd, ms_act_at(kept->mid, row * c->width), w->norm2, rows, c->width));
  MS_TRY(linear(m, gate, h, w->gate, w->gate_bias, rows, c->width, inner, 0));
  MS_TRY(linear(m, up, h, w->up, w->up_bias, rows, c->width, inner, 0));
  if (!to.at) return MS_OK;
  MS_TRY(MS_OP(m->dev, swiglu, product, gate, up, rows * inner));
  return linear(m, ms_act_at(to, row * c->width), product, w->down, w->down_bias, rows, inner,
                c->width, 1);
}

ms_status ms_layer_forward(const ms_pass *pass, int32_t l, ms_act to) {
  const ms_model *m = pass->model;
  const ms_kept *kept = &m->act->layer[l];
  int64_t rows = ms_layer_rows(pass, l);
  MS_TRY(attend(pass, l));
  if (to.at && to.at != kept->mid.at)
    MS_TRY(MS_OP(m->dev, copy, to.at, kept->mid.at, ms_act_bytes(to, rows * m->config.width)));
  for (int64_t row = 0; row < rows; row += ms_mlp_block(rows))
    MS_TRY(feed_rows(pass, l, row, ms_mlp_rows(rows, row), to));
  return MS_OK;
}

ms_status ms_pass_forward(const ms_pass *pass, ms_act *hidden) {
  const ms_model *m = pass->model;
  const ms_config *c = &m->config;
  MS_TRY(ms_pass_prepare(pass));
  const struct ms_activations *a = m->act;
  MS_TRY(
      MS_OP(m->dev, embed, a->layer[0].x, a->token, m->embed.w, m->dtype, pass->tokens, c->width));
  for (int32_t l = 0; l < c->layers; l++)
    MS_TRY(ms_layer_forward(pass, l, ms_is_last(pass, l) ? a->top : a->layer[l + 1].x));
  *hidden = a->norm;
  return norm(m, *hidden, a->rstd, a->top, m->norm, pass->rows, c->width);
}

/* backward.c - the decoder's backward pass.
 *
 * `out` holds d loss / d stream, at first that of the rows that are wanted alone, one after
 * another; each half of a layer adds what flows through it. A matrix product
 * is made only where a parameter is trained or something below it is. Gate and up become their own
 * gradients in place; what norms and the MLP's product gave is computed again, in the forward
 * pass's own order of rows, so that it is the same bit for bit. */
#include "decoder.h"

/* What a layer has to do: which parts hold trained parameters, and whether anything below does. */
typedef struct needs {
  int mlp_in, attention, attention_in, below;
} needs;

static const ms_act none = {NULL, MS_F32};

static int trains(ms_slice w, ms_slice bias) { return w.g || bias.g; }

static int trains_mlp_in(const ms_layer *w) {
  return w->norm2.g || trains(w->gate, w->gate_bias) || trains(w->up, w->up_bias);
}

static int trains_attention_in(const ms_layer *w) {
  return w->norm1.g || trains(w->q, w->q_bias) || trains(w->k, w->k_bias) ||
         trains(w->v, w->v_bias) || w->q_norm.g || w->k_norm.g;
}

static int trains_layer(const ms_layer *w) {
  return trains_mlp_in(w) || trains(w->down, w->down_bias) || trains_attention_in(w) ||
         trains(w->o, w->o_bias);
}

int32_t ms_model_first(const ms_model *model) {
  if (!model->train || model->embed.g) return model->train ? 0 : model->config.layers;
  for (int32_t l = 0; l < model->config.layers; l++)
    if (trains_layer(&model->layer[l])) return l;
  return model->config.layers;
}

static needs layer_needs(const ms_pass *pass, int32_t l) {
  const ms_layer *w = &pass->model->layer[l];
  needs n;
  n.below = l > pass->first || pass->model->embed.g != NULL;
  n.attention_in = n.below || trains_attention_in(w);
  n.attention = n.attention_in || trains(w->o, w->o_bias);
  n.mlp_in = n.attention || trains_mlp_in(w);
  return n;
}

/* The gradients of y = x w^T + bias; no dx: not wanted. */
static ms_status linear_back(const ms_model *m, ms_act dx, int add, ms_slice w, ms_slice bias,
                             ms_act dy, ms_act x, int64_t rows, int64_t in, int64_t out) {
  if (w.g) MS_TRY(MS_OP(m->dev, linear_dw, w.g, dy, x, rows, in, out, 1));
  if (bias.g) MS_TRY(MS_OP(m->dev, bias_db, bias.g, dy, rows, out));
  if (dx.at) MS_TRY(MS_OP(m->dev, linear_dx, dx, dy, w.w, m->dtype, rows, in, out, add));
  return MS_OK;
}

static ms_status norm_back(const ms_model *m, ms_act dx, ms_act dy, ms_act x, const float *rstd,
                           ms_slice w, int64_t rows, int64_t cols, int add) {
  return MS_OP(m->dev, rmsnorm_backward, dx, w.g, dy, x, rstd, w.w, m->dtype, rows, cols, add);
}

/* One block of the MLP's rows, from `row` on. */
static ms_status feed_back(const ms_pass *pass, int32_t l, needs need, int64_t row, int64_t rows) {
  const ms_model *m = pass->model;
  const ms_config *c = &m->config;
  const ms_layer *w = &m->layer[l];
  const ms_kept *kept = &m->act->layer[l];
  int64_t width = c->width, inner = c->inner;
  ms_act gate = ms_act_at(kept->gate, row * inner), up = ms_act_at(kept->up, row * inner);
  ms_act wide = ms_act_as(m->act->wide, gate.dtype), h = m->act->norm;
  ms_act dx = ms_act_at(m->act->out, row * width), mid = ms_act_at(kept->mid, row * width);
  ms_act dh = need.attention || w->norm2.g ? m->act->d_norm : none;

  if (w->down.g) MS_TRY(MS_OP(m->dev, swiglu, wide, gate, up, rows * inner));
  MS_TRY(linear_back(m, none, 0, w->down, w->down_bias, dx, wide, rows, inner, width));
  if (!need.mlp_in) return MS_OK;
  MS_TRY(MS_OP(m->dev, linear_dx, wide, dx, w->down.w, m->dtype, rows, inner, width, 0));
  MS_TRY(MS_OP(m->dev, swiglu_backward, gate, up, wide, gate, up, rows * inner));
  if (w->gate.g || w->up.g)
    MS_TRY(MS_OP(m->dev, rmsnorm, h, NULL, mid, w->norm2.w, m->dtype, rows, width, c->eps));
  MS_TRY(linear_back(m, dh, 0, w->gate, w->gate_bias, gate, h, rows, width, inner));
  MS_TRY(linear_back(m, dh, 1, w->up, w->up_bias, up, h, rows, width, inner));
  return dh.at ? norm_back(m, dx, dh, mid, kept->rstd2 + row, w->norm2, rows, width, 1) : MS_OK;
}

static ms_status rope_back(const ms_pass *pass, ms_act x, int32_t heads) {
  const ms_model *m = pass->model;
  const ms_config *c = &m->config;
  const struct ms_activations *a = m->act;
  if (!c->rotary) return MS_OK;
  return MS_OP(m->dev, rope, x, a->position, a->rope, a->rope + a->positions * (c->rotary / 2),
               pass->tokens, heads, c->head_dim, c->rotary, -1);
}

/* Through rotation and the heads' norm, in place: x is what was projected. */
static ms_status rotate_back(const ms_pass *pass, ms_act dx, ms_act x, const float *rstd,
                             ms_slice w, int32_t heads) {
  const ms_model *m = pass->model;
  MS_TRY(rope_back(pass, dx, heads));
  if (!m->config.qk_norm) return MS_OK;
  return norm_back(m, dx, dx, x, rstd, w, pass->tokens * heads, m->config.head_dim, 0);
}

/* From d loss / d (q, k, v) to the layer's input. */
static ms_status project_back(const ms_pass *pass, int32_t l, needs need, ms_act dq, ms_act dk,
                              ms_act dv) {
  const ms_model *m = pass->model;
  const ms_config *c = &m->config;
  const ms_layer *w = &m->layer[l];
  const ms_kept *kept = &m->act->layer[l];
  int64_t n = pass->tokens, width = c->width, kv = ms_kv_width(c);
  ms_act h = m->act->norm, dh = need.below || w->norm1.g ? m->act->d_norm : none;

  if (w->q.g || w->k.g || w->v.g)
    MS_TRY(MS_OP(m->dev, rmsnorm, h, NULL, kept->x, w->norm1.w, m->dtype, n, width, c->eps));
  MS_TRY(linear_back(m, dh, 0, w->q, w->q_bias, dq, h, n, width, ms_q_width(c)));
  MS_TRY(linear_back(m, dh, 1, w->k, w->k_bias, dk, h, n, width, kv));
  MS_TRY(linear_back(m, dh, 1, w->v, w->v_bias, dv, h, n, width, kv));
  return dh.at ? norm_back(m, m->act->out, dh, kept->x, kept->rstd1, w->norm1, n, width, 1) : MS_OK;
}

/* In the last layer attention's gradient and the stream's are of the rows that are wanted: from
 * `dy_rows` and `out` to `dy` and `out` of all tokens. */
static ms_status spread_rows(const ms_pass *pass, ms_act dy, ms_act dy_rows) {
  const ms_model *m = pass->model;
  const struct ms_activations *a = m->act;
  int64_t n = pass->tokens, width = m->config.width, q_width = ms_q_width(&m->config);
  MS_TRY(MS_OP(m->dev, zero, dy.at, ms_act_bytes(dy, n * q_width)));
  MS_TRY(MS_OP(m->dev, scatter, dy, dy_rows, a->row, pass->rows, q_width));
  MS_TRY(MS_OP(m->dev, copy, a->d_norm.at, a->out.at, ms_act_bytes(a->out, pass->rows * width)));
  MS_TRY(MS_OP(m->dev, zero, a->out.at, ms_act_bytes(a->out, n * width)));
  return MS_OP(m->dev, scatter, a->out, a->d_norm, a->row, pass->rows, width);
}

static ms_status attend_back(const ms_pass *pass, int32_t l, needs need) {
  const ms_model *m = pass->model;
  const ms_config *c = &m->config;
  const ms_layer *w = &m->layer[l];
  const ms_kept *kept = &m->act->layer[l];
  int64_t n = pass->tokens, q_width = ms_q_width(c), kv_width = ms_kv_width(c);
  ms_attention_shape shape = ms_layer_attention(pass, l);
  ms_act q, k, wide = ms_act_as(m->act->wide, kept->q.dtype);
  ms_act dy = ms_act_at(wide, c->qk_norm ? n * (q_width + kv_width) : 0);
  ms_act dq = ms_act_at(dy, n * q_width), dk = ms_act_at(dq, n * q_width);
  ms_act dv = ms_act_at(dk, n * kv_width);
  ms_act dy_rows = ms_is_last(pass, l) ? dq : dy; /* dq comes later */

  MS_TRY(linear_back(m, need.attention_in ? dy_rows : none, 0, w->o, w->o_bias, m->act->out,
                     kept->y_rows, ms_layer_rows(pass, l), q_width, c->width));
  if (!need.attention_in) return MS_OK;
  if (dy_rows.at != dy.at) MS_TRY(spread_rows(pass, dy, dy_rows));
  MS_TRY(ms_layer_rotate(pass, l, &q, &k));
  MS_TRY(MS_OP(m->dev, attention_backward, dq, dk, dv, dy, kept->y, kept->lse, q, k, kept->v,
               m->act->segment_start, &shape));
  MS_TRY(rotate_back(pass, dq, kept->q, kept->rstd_q, w->q_norm, c->heads));
  MS_TRY(rotate_back(pass, dk, kept->k, kept->rstd_k, w->k_norm, c->kv_heads));
  return project_back(pass, l, need, dq, dk, dv);
}

static ms_status layer_back(const ms_pass *pass, int32_t l) {
  const ms_model *m = pass->model;
  needs need = layer_needs(pass, l);
  int64_t rows = ms_layer_rows(pass, l);
  /* the last layer's values are still there from the forward pass */
  if (m->recompute && !ms_is_last(pass, l)) MS_TRY(ms_layer_forward(pass, l, none));
  for (int64_t row = 0; row < rows; row += ms_mlp_block(rows))
    MS_TRY(feed_back(pass, l, need, row, ms_mlp_rows(rows, row)));
  return need.attention ? attend_back(pass, l, need) : MS_OK;
}

ms_status ms_pass_backward(const ms_pass *pass) {
  const ms_model *m = pass->model;
  const ms_config *c = &m->config;
  const struct ms_activations *a = m->act;
  if (pass->first == c->layers && !m->norm.g) return MS_OK;
  MS_TRY(norm_back(m, a->out, ms_pass_d_hidden(pass), a->top, a->rstd, m->norm, pass->rows,
                   c->width, 0));
  for (int32_t l = c->layers - 1; l >= pass->first; l--) MS_TRY(layer_back(pass, l));
  if (!m->embed.g) return MS_OK;
  return MS_OP(m->dev, embed_dw, m->embed.g, m->act->out, m->act->token, pass->tokens, c->width,
               c->vocab);
}

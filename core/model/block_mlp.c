/* block_mlp.c - the gated MLP: down(act(gate(h)) * up(h)).
 *
 * It runs in equal parts of the rows: its widest scratch does not grow with the batch. Gate and up are
 * saved; their product is computed again in the backward pass, where they become their own gradients
 * in place. */
#include "decoder.h"

enum { ROWS = 2048 };

static int64_t parts(int64_t rows) { return (rows + ROWS - 1) / ROWS; }

/* Columns of gate and up that this rank has. */
static int64_t size_of(const ms_pass *pass) { return pass->model->share.intermediate; }

/* The largest part of any layer: a first one is no smaller than those that follow. */
static int64_t most_rows(const ms_pass *pass) {
  return ms_max(ms_span_of(pass, 0, 0, parts(pass->tokens)).all,
                ms_span_of(pass, 1, 0, parts(pass->rows)).all);
}

static void lay_saved(ms_cursor *at, const ms_pass *pass, int32_t l, ms_saved *s) {
  const ms_precision *p = ms_pass_precision(pass);
  int64_t count = ms_layer_rows(pass, l) * size_of(pass);
  s->gate = ms_take(at, p->product, count);
  s->up = ms_take(at, p->product, count);
}

/* Gate, up and their product. */
static void lay_workspace(const ms_pass *pass, ms_saved *s) {
  s->gate = ms_act_as(pass->act->workspace, ms_pass_precision(pass)->product);
  s->up = ms_act_at(s->gate, most_rows(pass) * size_of(pass));
}

static size_t workspace(const ms_pass *pass) {
  return (size_t)(3 * most_rows(pass) * size_of(pass)) *
         ms_dtype_size(ms_pass_precision(pass)->product);
}

static int trains_input(const ms_layer *w) {
  return ms_trained(w->gate, w->gate_bias) || ms_trained(w->up, w->up_bias);
}

static int trains(const ms_layer *w) { return trains_input(w) || w->down.g; }

static ms_status forward(const ms_pass *pass, int32_t l, int64_t row, int64_t rows, ms_act h,
                         ms_into out) {
  const ms_model *m = pass->model;
  const ms_layer *w = &m->layer[l];
  const ms_saved *saved = &pass->act->layer[l];
  int is_saved = ms_is_saved(pass, l);
  int64_t hidden = m->config.hidden_size, size = size_of(pass);
  int64_t at = is_saved ? row * size : 0, product_at = is_saved ? 0 : 2 * most_rows(pass) * size;
  ms_act gate = ms_act_at(saved->gate, at), up = ms_act_at(saved->up, at);
  ms_act product = ms_act_at(ms_act_as(pass->act->workspace, gate.dtype), product_at);

  MS_TRY(ms_project(m, ms_set(gate), h, w->gate, w->gate_bias, rows, hidden, size));
  MS_TRY(ms_project(m, ms_set(up), h, w->up, w->up_bias, rows, hidden, size));
  if (!out.at.at) return MS_OK;
  MS_TRY(MS_OP(m->dev, glu, product, gate, up, rows * size, m->config.activation));
  return ms_project(m, out, product, w->down, ms_no_slice, rows, size, hidden);
}

static ms_status backward(const ms_pass *pass, int32_t l, int64_t row, int64_t rows, ms_act d_h,
                          ms_act d_out, ms_act h) {
  const ms_model *m = pass->model;
  const ms_layer *w = &m->layer[l];
  const ms_saved *saved = &pass->act->layer[l];
  int64_t hidden = m->config.hidden_size, size = size_of(pass);
  ms_act gate = ms_act_at(saved->gate, row * size), up = ms_act_at(saved->up, row * size);
  ms_act product = ms_act_as(pass->act->workspace, gate.dtype); /* then its gradient */

  if (w->down.g) MS_TRY(MS_OP(m->dev, glu, product, gate, up, rows * size, m->config.activation));
  MS_TRY(ms_project_backward(m, ms_set(ms_no_act), w->down, ms_no_slice, d_out, product, rows, size,
                             hidden));
  if (!d_h.at && !trains_input(w)) return MS_OK;
  MS_TRY(MS_OP(m->dev, linear_dx, product, d_out, w->down.w, m->dtype, rows, size, hidden, 0));
  MS_TRY(
      MS_OP(m->dev, glu_backward, gate, up, product, gate, up, rows * size, m->config.activation));
  MS_TRY(ms_project_backward(m, ms_set(d_h), w->gate, w->gate_bias, gate, h, rows, hidden, size));
  return ms_project_backward(m, ms_add_to(d_h), w->up, w->up_bias, up, h, rows, hidden, size);
}

const ms_block ms_block_mlp = {lay_saved, lay_workspace, workspace, parts,
                               trains,    trains_input,  forward,   backward};

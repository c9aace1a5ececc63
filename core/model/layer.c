/* layer.c - one layer: attention and the MLP, one after the other, and the stream between them.
 *
 * Forwards each block gets the norm of the stream and returns its output; `join` adds that to the stream.
 * Where nothing stands between a block's output and the stream, the block's last product adds to the
 * stream by itself, which saves a pass over memory. Backwards d_stream holds d loss / d stream, at first
 * that of the rows that are wanted alone, one after another; each block adds what flows through it. A
 * product is made only where a parameter is trained or something below it is. What norms gave is computed
 * again, in the forward pass's own order of rows, so that it is the same bit for bit. */
#include "decoder.h"

static const ms_block *const blocks[MS_BLOCKS] = {
    [MS_ATTENTION] = &ms_block_attention, [MS_MLP] = &ms_block_mlp};

/* ---- facts ---- */

/* Rows of the stream that a block of layer l reads. */
static int64_t rows_in(const ms_pass *pass, int32_t l, int b) {
  return b == MS_ATTENTION ? pass->tokens : ms_layer_rows(pass, l);
}

/* How many of them it gives for `rows` of those. */
static int64_t rows_out(const ms_pass *pass, int32_t l, int b, int64_t rows) {
  return b == MS_ATTENTION ? ms_layer_rows(pass, l) : rows;
}

/* Whether a block's output goes to the stream as it is. */
static int is_direct(const ms_model *m, const ms_layer *w, int b) {
  return !w->post_norm[b].w && m->config.residual_scale == 1;
}

static int block_trains(const ms_layer *w, int b) {
  return w->pre_norm[b].g || w->post_norm[b].g || blocks[b]->trains(w);
}

int ms_layer_trains(const ms_layer *w) {
  return block_trains(w, MS_ATTENTION) || block_trains(w, MS_MLP);
}

int ms_layer_needs_output(const ms_model *m) {
  return !is_direct(m, &m->layer[0], MS_ATTENTION) || !is_direct(m, &m->layer[0], MS_MLP);
}

/* Whether anything below block b of layer l is trained. */
static int trains_below(const ms_pass *pass, int32_t l, int b) {
  const ms_model *m = pass->model;
  return l > pass->first || m->embed.g || (b == MS_MLP && block_trains(&m->layer[l], MS_ATTENTION));
}

/* ---- memory ---- */

void ms_layer_lay_saved(ms_cursor *at, const ms_pass *pass, int32_t l, ms_saved *s) {
  const ms_model *m = pass->model;
  const ms_precision *p = ms_pass_precision(pass);
  int64_t rows = ms_layer_rows(pass, l), hidden = m->config.hidden_size;
  s->x[MS_MLP] = ms_take(at, p->stream, rows * hidden);
  for (int b = 0; b < MS_BLOCKS; b++) {
    int follows = m->layer[l].post_norm[b].w != NULL;
    blocks[b]->lay_saved(at, pass, l, s);
    s->rstd[b] = ms_take_f32(at, rows_in(pass, l, b));
    s->output[b] = ms_take(at, p->stream, follows ? rows * hidden : 0);
    s->output_rstd[b] = ms_take_f32(at, follows ? rows : 0);
  }
}

void ms_layer_lay_workspace(const ms_pass *pass, ms_saved *s) {
  for (int b = 0; b < MS_BLOCKS; b++) blocks[b]->lay_workspace(pass, s);
}

size_t ms_layer_workspace(const ms_pass *pass) {
  size_t bytes = 0;
  for (int b = 0; b < MS_BLOCKS; b++)
    bytes = (size_t)ms_max((int64_t)bytes, (int64_t)blocks[b]->workspace(pass));
  return bytes;
}

/* ---- forward ---- */

/* A block's input, from `row` on. */
static ms_status block_input(const ms_pass *pass, int32_t l, int b, int64_t row, int64_t rows,
                             float *rstd, ms_act *h) {
  const ms_model *m = pass->model;
  int64_t hidden = m->config.hidden_size;
  ms_slice w = m->layer[l].pre_norm[b];
  ms_act x = ms_act_at(pass->act->layer[l].x[b], row * hidden);
  *h = w.w ? pass->act->normed : x;
  return w.w ? ms_norm(m, *h, rstd, x, w, rows, hidden) : MS_OK;
}

/* Where the output of a block goes that is not direct. */
static ms_act output_at(const ms_pass *pass, int32_t l, int b, int64_t row) {
  const struct ms_activations *a = pass->act;
  if (!ms_is_saved(pass, l) || !pass->model->layer[l].post_norm[b].w) return a->output;
  return ms_act_at(a->layer[l].output[b], row * pass->model->config.hidden_size);
}

/* Adds a block's output to rows of the stream; nothing `to`: only what the backward pass needs. */
static ms_status join(const ms_pass *pass, int32_t l, int b, int64_t row, int64_t rows, ms_act to,
                      ms_act output) {
  const ms_model *m = pass->model;
  int64_t hidden = m->config.hidden_size;
  ms_slice w = m->layer[l].post_norm[b];
  float *rstd = ms_row_of(pass->act->layer[l].output_rstd[b], row);
  ms_act y = output;
  if (w.w) {
    y = pass->act->normed;
    MS_TRY(ms_norm(m, y, rstd, output, w, rows, hidden));
  }
  return to.at ? MS_OP(m->dev, add, to, y, rows * hidden, m->config.residual_scale) : MS_OK;
}

/* `to` is the stream after the block, with what was there before it. */
static ms_status block_forward(const ms_pass *pass, int32_t l, int b, ms_act to) {
  const ms_model *m = pass->model;
  const ms_layer *w = &m->layer[l];
  int64_t n = rows_in(pass, l, b), most = blocks[b]->rows_at_once(n);
  int joins = !is_direct(m, w, b) && (to.at || w->post_norm[b].w);
  for (int64_t row = 0; row < n; row += most) {
    int64_t rows = ms_part_rows(n, row, most);
    ms_act h, at = to.at ? ms_act_at(to, row * m->config.hidden_size) : to;
    ms_into out = joins ? ms_set(output_at(pass, l, b, row)) : ms_add_to(at);
    MS_TRY(block_input(pass, l, b, row, rows, ms_row_of(pass->act->layer[l].rstd[b], row), &h));
    MS_TRY(blocks[b]->forward(pass, l, row, rows, h, out));
    if (joins) MS_TRY(join(pass, l, b, row, rows_out(pass, l, b, rows), at, out.at));
  }
  return MS_OK;
}

/* The stream before block b goes on to `to`; from the last layer's attention the rows that are wanted. */
static ms_status carry_stream(const ms_pass *pass, int32_t l, int b, ms_act to) {
  const ms_model *m = pass->model;
  int64_t hidden = m->config.hidden_size, rows = ms_layer_rows(pass, l);
  ms_act x = pass->act->layer[l].x[b];
  if (b == MS_ATTENTION && ms_is_last(pass, l))
    return MS_OP(m->dev, gather, to, x, pass->act->row, rows, hidden);
  if (!to.at || to.at == x.at) return MS_OK;
  return MS_OP(m->dev, copy, to.at, x.at, ms_act_bytes(to, rows * hidden));
}

ms_status ms_layer_forward(const ms_pass *pass, int32_t l, ms_act to) {
  ms_act between = pass->act->layer[l].x[MS_MLP];
  MS_TRY(carry_stream(pass, l, MS_ATTENTION, between));
  MS_TRY(block_forward(pass, l, MS_ATTENTION, between));
  MS_TRY(carry_stream(pass, l, MS_MLP, to));
  return block_forward(pass, l, MS_MLP, to);
}

/* ---- backward ---- */

/* From the gradient of the stream to that of a block's output: what `join` did, backwards. */
static ms_status join_backward(const ms_pass *pass, int32_t l, int b, int64_t row, int64_t rows,
                               ms_act *d_out) {
  const ms_model *m = pass->model;
  const ms_saved *saved = &pass->act->layer[l];
  int64_t hidden = m->config.hidden_size;
  ms_slice w = m->layer[l].post_norm[b];
  ms_act dy = ms_act_at(pass->act->d_stream, row * hidden), place = pass->act->output;
  float scale = m->config.residual_scale;
  *d_out = dy;
  if (is_direct(m, &m->layer[l], b)) return MS_OK;
  *d_out = place;
  if (scale != 1) {
    MS_TRY(MS_OP(m->dev, zero, place.at, ms_act_bytes(place, rows * hidden)));
    MS_TRY(MS_OP(m->dev, add, place, dy, rows * hidden, scale));
    dy = place;
  }
  if (!w.w) return MS_OK;
  return ms_norm_backward(m, ms_set(place), dy, ms_act_at(saved->output[b], row * hidden),
                          saved->output_rstd[b] + row, w, rows, hidden);
}

/* The stream's gradient of the rows that are wanted becomes one of all tokens. */
static ms_status spread_stream(const ms_pass *pass) {
  const ms_model *m = pass->model;
  const struct ms_activations *a = pass->act;
  int64_t hidden = m->config.hidden_size;
  size_t bytes = ms_act_bytes(a->d_stream, pass->rows * hidden);
  MS_TRY(MS_OP(m->dev, copy, a->normed.at, a->d_stream.at, bytes));
  MS_TRY(MS_OP(m->dev, zero, a->d_stream.at, ms_act_bytes(a->d_stream, pass->tokens * hidden)));
  return MS_OP(m->dev, scatter, a->d_stream, a->normed, a->row, pass->rows, hidden);
}

/* Adds what flows through a block's input to the stream's gradient. */
static ms_status input_backward(const ms_pass *pass, int32_t l, int b, int64_t row, int64_t rows,
                                ms_act d_h) {
  const ms_model *m = pass->model;
  const ms_saved *saved = &pass->act->layer[l];
  int64_t hidden = m->config.hidden_size;
  ms_slice w = m->layer[l].pre_norm[b];
  ms_act dx = ms_act_at(pass->act->d_stream, row * hidden);
  if (b == MS_ATTENTION && ms_is_last(pass, l)) MS_TRY(spread_stream(pass));
  if (!w.w) return MS_OP(m->dev, add, dx, d_h, rows * hidden, 1);
  return ms_norm_backward(m, ms_add_to(dx), d_h, ms_act_at(saved->x[b], row * hidden),
                          saved->rstd[b] + row, w, rows, hidden);
}

static ms_status block_backward(const ms_pass *pass, int32_t l, int b) {
  const ms_model *m = pass->model;
  const ms_layer *w = &m->layer[l];
  int64_t n = rows_in(pass, l, b), most = blocks[b]->rows_at_once(n);
  int below = trains_below(pass, l, b);
  ms_act d_h = below || w->pre_norm[b].g ? pass->act->d_normed : ms_no_act;
  if (!below && !block_trains(w, b)) return MS_OK;
  for (int64_t row = 0; row < n; row += most) {
    int64_t rows = ms_part_rows(n, row, most);
    ms_act d_out, h = ms_no_act;
    MS_TRY(join_backward(pass, l, b, row, rows_out(pass, l, b, rows), &d_out));
    if (blocks[b]->trains_input(w)) MS_TRY(block_input(pass, l, b, row, rows, NULL, &h));
    MS_TRY(blocks[b]->backward(pass, l, row, rows, d_h, d_out, h));
    if (d_h.at) MS_TRY(input_backward(pass, l, b, row, rows, d_h));
  }
  return MS_OK;
}

ms_status ms_layer_backward(const ms_pass *pass, int32_t l) {
  /* the last layer's values are still there from the forward pass */
  if (pass->model->recompute && !ms_is_last(pass, l)) MS_TRY(ms_layer_forward(pass, l, ms_no_act));
  MS_TRY(block_backward(pass, l, MS_MLP));
  return block_backward(pass, l, MS_ATTENTION);
}

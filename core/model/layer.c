/* layer.c - one layer: attention and the MLP, one after the other, and the stream between them.
 *
 * Forwards each block gets the norm of the stream and returns its output; `join` adds that to the stream.
 * Where nothing stands between a block's output and the stream, the block's last product adds to the
 * stream by itself, which saves a pass over memory. Backwards d_stream holds d loss / d stream, at first
 * that of the rows that are wanted alone, one after another; each block adds what flows through it. A
 * product is made only where a parameter is trained or something below it is. What norms gave is computed
 * again, in the forward pass's own order of rows, so that it is the same bit for bit.
 *
 * A cut model's ranks add to their own rows of the stream. Before a block its input is gathered, after it
 * its output is summed to whom the rows belong; backwards the gradients, the other way round. Norms, biases of
 * outputs and what is added to the stream are of own rows, so each is counted once; gradients of their
 * weights are those of own rows alone, until gradients.c sums them. */
#include "decoder.h"

static const ms_block *const blocks[MS_BLOCKS] = {
    [MS_ATTENTION] = &ms_block_attention, [MS_MLP] = &ms_block_mlp};

/* ---- facts ---- */

/* The rows of part k that a block of layer l reads, and those that it gives. */
static ms_span span_in(const ms_pass *pass, int32_t l, int b, int64_t k, int64_t parts) {
  return ms_span_of(pass, b == MS_MLP && ms_is_last(pass, l), k, parts);
}
static ms_span span_out(const ms_pass *pass, int32_t l, int64_t k, int64_t parts) {
  return ms_span_of(pass, ms_is_last(pass, l), k, parts);
}

/* How many parts of its rows a block goes through one after the other. */
static int64_t parts_of(const ms_pass *pass, int32_t l, int b) {
  return blocks[b]->parts(b == MS_ATTENTION ? pass->tokens : ms_layer_rows(pass, l));
}

/* Whether a block's output goes to the stream as it is. */
static int is_direct(const ms_model *m, const ms_layer *w, int b) {
  return !w->post_norm[b].w && m->config.residual_scale == 1 && !ms_is_cut(m);
}

static int block_trains(const ms_layer *w, int b) {
  return w->pre_norm[b].g || w->post_norm[b].g || w->out_bias[b].g || blocks[b]->trains(w);
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
  int64_t rows = span_out(pass, l, 0, 1).own, hidden = m->config.hidden_size;
  s->x[MS_MLP] = ms_take(at, p->stream, rows * hidden);
  for (int b = 0; b < MS_BLOCKS; b++) {
    int follows = m->layer[l].post_norm[b].w != NULL;
    blocks[b]->lay_saved(at, pass, l, s);
    s->rstd[b] = ms_take_f32(at, span_in(pass, l, b, 0, 1).own);
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

static ms_status copy_rows(const ms_model *m, ms_act to, ms_act from, int64_t rows) {
  return MS_OP(m->dev, copy, to.at, from.at, ms_act_bytes(to, rows * m->config.hidden_size));
}

/* A block's input: its rows of all ranks. */
static ms_status block_input(const ms_pass *pass, int32_t l, int b, const ms_span *s, float *rstd,
                             ms_act *h) {
  const ms_model *m = pass->model;
  int64_t hidden = m->config.hidden_size;
  ms_slice w = m->layer[l].pre_norm[b];
  ms_act x = ms_act_at(pass->act->layer[l].x[b], s->at * hidden);
  ms_act own = ms_act_at(pass->act->normed, s->first * hidden);
  *h = w.w || ms_is_cut(m) ? pass->act->normed : x;
  if (w.w)
    MS_TRY(ms_norm(m, own, ms_row_of(rstd, s->at), x, w, s->own, hidden, NULL));
  else if (ms_is_cut(m))
    MS_TRY(copy_rows(m, own, x, s->own));
  return ms_span_gather(pass, s, *h, hidden);
}

/* Where own rows of a block's output are saved, for the norm that follows it; nowhere where it is not. */
static ms_act saved_output(const ms_pass *pass, int32_t l, int b, const ms_span *s) {
  if (!ms_is_saved(pass, l) || !pass->model->layer[l].post_norm[b].w) return ms_no_act;
  return ms_act_at(pass->act->layer[l].output[b], s->at * pass->model->config.hidden_size);
}

/* Where a block puts its output; nothing `to`: only what the backward pass needs. */
static ms_into output_of(const ms_pass *pass, int32_t l, int b, const ms_span *s, ms_act to) {
  const ms_model *m = pass->model;
  const ms_layer *w = &m->layer[l];
  ms_act saved = saved_output(pass, l, b, s);
  if (!to.at && !w->post_norm[b].w) return ms_set(ms_no_act);
  if (is_direct(m, w, b)) return ms_add_to(ms_act_at(to, s->at * m->config.hidden_size));
  return ms_set(saved.at && !ms_is_cut(m) ? saved : pass->act->output);
}

/* From a block's output to own rows of the stream. */
static ms_status join(const ms_pass *pass, int32_t l, int b, const ms_span *s, ms_act to,
                      ms_act output) {
  const ms_model *m = pass->model;
  const ms_layer *w = &m->layer[l];
  int64_t hidden = m->config.hidden_size;
  ms_act y = ms_act_at(output, s->first * hidden), saved = saved_output(pass, l, b, s);
  MS_TRY(ms_span_sum(pass, s, output, hidden));
  MS_TRY(ms_add_bias(m, y, w->out_bias[b], s->own, hidden));
  if (is_direct(m, w, b)) return MS_OK;
  if (w->post_norm[b].w) {
    float *rstd = ms_row_of(pass->act->layer[l].output_rstd[b], s->at);
    if (saved.at && saved.at != y.at) MS_TRY(copy_rows(m, saved, y, s->own));
    MS_TRY(ms_norm(m, pass->act->normed, rstd, y, w->post_norm[b], s->own, hidden, NULL));
    y = pass->act->normed;
  }
  if (!to.at) return MS_OK;
  return MS_OP(m->dev, add, ms_act_at(to, s->at * hidden), y, s->own * hidden,
               m->config.residual_scale);
}

/* `to` is the stream after the block, with what was there before it. */
static ms_status block_forward(const ms_pass *pass, int32_t l, int b, ms_act to) {
  int64_t parts = parts_of(pass, l, b);
  for (int64_t k = 0; k < parts; k++) {
    ms_span in = span_in(pass, l, b, k, parts), out = span_out(pass, l, k, parts);
    ms_into at = output_of(pass, l, b, &out, to);
    ms_act h;
    if (!in.all) continue;
    MS_TRY(block_input(pass, l, b, &in, pass->act->layer[l].rstd[b], &h));
    MS_TRY(blocks[b]->forward(pass, l, in.done, in.all, h, at));
    if (at.at.at) MS_TRY(join(pass, l, b, &out, to, at.at));
  }
  return MS_OK;
}

/* The stream before block b goes on to `to`; from the last layer's attention the rows that are wanted. */
static ms_status carry_stream(const ms_pass *pass, int32_t l, int b, ms_act to) {
  const ms_model *m = pass->model;
  int64_t rows = span_out(pass, l, 0, 1).own;
  ms_act x = pass->act->layer[l].x[b];
  if (b == MS_ATTENTION && ms_is_last(pass, l))
    return MS_OP(m->dev, gather, to, x, pass->act->own_row, rows, m->config.hidden_size);
  if (!to.at || to.at == x.at) return MS_OK;
  return copy_rows(m, to, x, rows);
}

ms_status ms_layer_forward(const ms_pass *pass, int32_t l, ms_act to) {
  ms_act between = pass->act->layer[l].x[MS_MLP];
  MS_TRY(carry_stream(pass, l, MS_ATTENTION, between));
  MS_TRY(block_forward(pass, l, MS_ATTENTION, between));
  MS_TRY(carry_stream(pass, l, MS_MLP, to));
  return block_forward(pass, l, MS_MLP, to);
}

/* ---- backward ---- */

/* From own rows of the stream's gradient to those of a block's output: what `join` did, backwards. `place`
 * is for those that are not the stream's itself. */
static ms_status output_backward(const ms_pass *pass, int32_t l, int b, const ms_span *s,
                                 ms_act place, ms_act *dy) {
  const ms_model *m = pass->model;
  const ms_saved *saved = &pass->act->layer[l];
  int64_t hidden = m->config.hidden_size, n = s->own * hidden;
  ms_slice w = m->layer[l].post_norm[b];
  float scale = m->config.residual_scale;
  *dy = ms_act_at(pass->act->d_stream, s->at * hidden);
  if (scale != 1) {
    MS_TRY(MS_OP(m->dev, zero, place.at, ms_act_bytes(place, n)));
    MS_TRY(MS_OP(m->dev, add, place, *dy, n, scale));
    *dy = place;
  }
  if (!w.w) return MS_OK;
  MS_TRY(ms_norm_backward(m, ms_set(place), *dy, ms_act_at(saved->output[b], s->at * hidden),
                          saved->output_rstd[b] + s->at, w, s->own, hidden, NULL));
  *dy = place;
  return MS_OK;
}

/* The gradient of a block's output, of all ranks' rows. */
static ms_status join_backward(const ms_pass *pass, int32_t l, int b, const ms_span *s,
                               ms_act *d_out) {
  const ms_model *m = pass->model;
  const ms_layer *w = &m->layer[l];
  int64_t hidden = m->config.hidden_size;
  ms_act dy, place = ms_act_at(pass->act->output, s->first * hidden);
  MS_TRY(output_backward(pass, l, b, s, place, &dy));
  MS_TRY(ms_add_bias_backward(m, w->out_bias[b], dy, s->own, hidden));
  *d_out = is_direct(m, w, b) ? dy : pass->act->output;
  if (!is_direct(m, w, b) && dy.at != place.at) MS_TRY(copy_rows(m, place, dy, s->own));
  return ms_span_gather(pass, s, *d_out, hidden);
}

/* The stream's gradient of the rows that are wanted becomes one of all tokens. */
static ms_status spread_stream(const ms_pass *pass) {
  const ms_model *m = pass->model;
  const struct ms_activations *a = pass->act;
  int64_t rows = ms_span_all(pass, 1).own, tokens = ms_span_all(pass, 0).own;
  int64_t hidden = m->config.hidden_size;
  MS_TRY(copy_rows(m, a->normed, a->d_stream, rows));
  MS_TRY(MS_OP(m->dev, zero, a->d_stream.at, ms_act_bytes(a->d_stream, tokens * hidden)));
  return MS_OP(m->dev, scatter, a->d_stream, a->normed, a->own_row, rows, hidden);
}

/* Adds what flows through a block's input to own rows of the stream's gradient. */
static ms_status input_backward(const ms_pass *pass, int32_t l, int b, const ms_span *s,
                                ms_act d_h) {
  const ms_model *m = pass->model;
  const ms_saved *saved = &pass->act->layer[l];
  int64_t hidden = m->config.hidden_size;
  ms_slice w = m->layer[l].pre_norm[b];
  ms_act dx = ms_act_at(pass->act->d_stream, s->at * hidden);
  ms_act own = ms_act_at(d_h, s->first * hidden);
  MS_TRY(ms_span_sum(pass, s, d_h, hidden));
  if (b == MS_ATTENTION && ms_is_last(pass, l)) MS_TRY(spread_stream(pass));
  if (!w.w) return MS_OP(m->dev, add, dx, own, s->own * hidden, 1);
  return ms_norm_backward(m, ms_add_to(dx), own, ms_act_at(saved->x[b], s->at * hidden),
                          saved->rstd[b] + s->at, w, s->own, hidden, NULL);
}

static ms_status block_backward(const ms_pass *pass, int32_t l, int b) {
  const ms_model *m = pass->model;
  const ms_layer *w = &m->layer[l];
  int64_t parts = parts_of(pass, l, b);
  int below = trains_below(pass, l, b);
  ms_act d_h = below || w->pre_norm[b].g ? pass->act->d_normed : ms_no_act;
  if (!below && !block_trains(w, b)) return MS_OK;
  for (int64_t k = 0; k < parts; k++) {
    ms_span in = span_in(pass, l, b, k, parts), out = span_out(pass, l, k, parts);
    ms_act d_out, h = ms_no_act;
    if (!in.all) continue;
    MS_TRY(join_backward(pass, l, b, &out, &d_out));
    if (blocks[b]->trains_input(w)) MS_TRY(block_input(pass, l, b, &in, NULL, &h));
    MS_TRY(blocks[b]->backward(pass, l, in.done, in.all, d_h, d_out, h));
    if (d_h.at) MS_TRY(input_backward(pass, l, b, &in, d_h));
  }
  return MS_OK;
}

ms_status ms_layer_backward(const ms_pass *pass, int32_t l) {
  /* the last layer's values are still there from the forward pass */
  if (pass->model->recompute && !ms_is_last(pass, l)) MS_TRY(ms_layer_forward(pass, l, ms_no_act));
  MS_TRY(block_backward(pass, l, MS_MLP));
  return block_backward(pass, l, MS_ATTENTION);
}

/* decoder.c - a pass through the decoder: embedding, layers, final norm on the rows that are wanted;
 * and back. */
#include "decoder.h"
#include "../group/group.h"
#include "gradients.h"

ms_act ms_pass_d_hidden(const ms_pass *pass) {
  return ms_act_as(pass->act->workspace, ms_pass_precision(pass)->stream);
}

int32_t ms_model_first(const ms_model *m) {
  if (!m->train || m->embed.g) return m->train ? 0 : m->config.layers;
  for (int32_t l = 0; l < m->config.layers; l++)
    if (ms_layer_trains(&m->layer[l])) return l;
  return m->config.layers;
}

/* Every rank looks up the ids that it has; of the others a row is zeros. */
static ms_status embed(const ms_pass *pass) {
  const ms_model *m = pass->model;
  const struct ms_activations *a = pass->act;
  int64_t hidden = m->config.hidden_size;
  ms_span s = ms_span_all(pass, 0);
  ms_act x = a->layer[0].x[MS_ATTENTION], all = ms_is_cut(m) ? a->output : x;
  MS_TRY(MS_OP(m->dev, embed, all, a->token, m->embed.w, m->dtype, pass->tokens, hidden,
               m->share.first_id, m->share.vocab, ms_embed_scale(m)));
  if (!ms_is_cut(m)) return MS_OK;
  MS_TRY(ms_span_sum(pass, &s, all, hidden));
  return MS_OP(m->dev, copy, x.at, ms_act_at(all, s.first * hidden).at,
               ms_act_bytes(x, s.own * hidden));
}

static ms_status embed_backward(const ms_pass *pass) {
  const ms_model *m = pass->model;
  const struct ms_activations *a = pass->act;
  int64_t hidden = m->config.hidden_size;
  ms_span s = ms_span_all(pass, 0);
  ms_act dy = a->d_stream;
  if (ms_is_cut(m)) {
    dy = a->output;
    MS_TRY(MS_OP(m->dev, copy, ms_act_at(dy, s.first * hidden).at, a->d_stream.at,
                 ms_act_bytes(dy, s.own * hidden)));
    MS_TRY(ms_span_gather(pass, &s, dy, hidden));
  }
  return MS_OP(m->dev, embed_dw, m->embed.g, dy, a->token, pass->tokens, hidden, m->share.first_id,
               m->share.vocab, ms_embed_scale(m));
}

ms_status ms_pass_forward(ms_pass *pass, ms_act *hidden) {
  const ms_model *m = pass->model;
  const ms_config *c = &m->config;
  MS_TRY(ms_pass_prepare(pass));
  const struct ms_activations *a = pass->act;
  ms_span rows = ms_span_all(pass, 1);
  MS_TRY(ms_weights_ready(m, -1));
  MS_TRY(embed(pass));
  for (int32_t l = 0; l < c->layers; l++) {
    MS_TRY(ms_weights_ready(m, l));
    ms_group_progress();
    MS_TRY(ms_layer_forward(pass, l,
                            ms_is_last(pass, l) ? a->final : a->layer[l + 1].x[MS_ATTENTION]));
  }
  MS_TRY(ms_weights_settle(m));
  *hidden = a->normed;
  MS_TRY(ms_norm(m, ms_act_at(*hidden, rows.first * c->hidden_size), a->final_rstd, a->final,
                 m->norm, rows.own, c->hidden_size, NULL));
  return ms_span_gather(pass, &rows, *hidden, c->hidden_size);
}

/* From what each rank's ids give of the gradient of the final states to the stream's. */
static ms_status final_backward(const ms_pass *pass) {
  const ms_model *m = pass->model;
  const struct ms_activations *a = pass->act;
  int64_t hidden = m->config.hidden_size;
  ms_span rows = ms_span_all(pass, 1);
  ms_act d_hidden = ms_pass_d_hidden(pass);
  MS_TRY(ms_span_sum(pass, &rows, d_hidden, hidden));
  return ms_norm_backward(m, ms_set(a->d_stream), ms_act_at(d_hidden, rows.first * hidden),
                          a->final, a->final_rstd, m->norm, rows.own, hidden, NULL);
}

ms_status ms_pass_backward(const ms_pass *pass) {
  const ms_model *m = pass->model;
  int32_t layers = m->config.layers;
  if (!ms_has_backward(pass) && !m->norm.g) return MS_OK;
  MS_TRY(final_backward(pass));
  MS_TRY(ms_gradients_ready(pass->model, layers));
  for (int32_t l = layers - 1; l >= pass->first; l--) {
    MS_TRY(ms_layer_backward(pass, l));
    ms_group_progress();
    MS_TRY(ms_gradients_ready(pass->model, l));
  }
  return m->embed.g ? embed_backward(pass) : MS_OK;
}

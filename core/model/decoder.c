/* decoder.c - a pass through the decoder: embedding, layers, final norm on the rows that are wanted;
 * and back. */
#include "decoder.h"
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

ms_status ms_pass_forward(ms_pass *pass, ms_act *hidden) {
  const ms_model *m = pass->model;
  const ms_config *c = &m->config;
  MS_TRY(ms_pass_prepare(pass));
  const struct ms_activations *a = pass->act;
  MS_TRY(ms_weights_ready(m, -1));
  MS_TRY(MS_OP(m->dev, embed, a->layer[0].x[MS_ATTENTION], a->token, m->embed.w, m->dtype,
               pass->tokens, c->hidden_size, 0, c->vocab, ms_embed_scale(m)));
  for (int32_t l = 0; l < c->layers; l++) {
    MS_TRY(ms_weights_ready(m, l));
    MS_TRY(ms_layer_forward(pass, l,
                            ms_is_last(pass, l) ? a->final : a->layer[l + 1].x[MS_ATTENTION]));
  }
  MS_TRY(ms_weights_settle(m));
  *hidden = a->normed;
  return ms_norm(m, *hidden, a->final_rstd, a->final, m->norm, pass->rows, c->hidden_size);
}

ms_status ms_pass_backward(const ms_pass *pass) {
  const ms_model *m = pass->model;
  const ms_config *c = &m->config;
  const struct ms_activations *a = pass->act;
  if (!ms_has_backward(pass) && !m->norm.g) return MS_OK;
  MS_TRY(ms_norm_backward(m, ms_set(a->d_stream), ms_pass_d_hidden(pass), a->final, a->final_rstd,
                          m->norm, pass->rows, c->hidden_size));
  MS_TRY(ms_gradients_ready(pass->model, c->layers));
  for (int32_t l = c->layers - 1; l >= pass->first; l--) {
    MS_TRY(ms_layer_backward(pass, l));
    MS_TRY(ms_gradients_ready(pass->model, l));
  }
  if (!m->embed.g) return MS_OK;
  return MS_OP(m->dev, embed_dw, m->embed.g, a->d_stream, a->token, pass->tokens, c->hidden_size, 0,
               c->vocab, ms_embed_scale(m));
}

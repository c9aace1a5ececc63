/* logits.c - a model's logits, on the host: for generation, tests and tools. Every rank of a cut model has
 * the whole rows. */
#include <math.h>
#include <string.h>

#include "../base/memory.h"
#include "../group/group.h"
#include "batch.h"
#include "decoder.h"

void ms_finish_logits(const ms_head_weights *head, float *z, int64_t n) {
  if (head->scale != 1)
    for (int64_t i = 0; i < n; i++) z[i] *= head->scale;
  if (head->soft_cap != 0)
    for (int64_t i = 0; i < n; i++) z[i] = head->soft_cap * tanhf(z[i] / head->soft_cap);
}

/* ---- parts of the ids ---- */

static ms_share share_of(const ms_model *m, int32_t rank) {
  return ms_share_of(&m->config, m->share.group, m->share.vocab_cut, rank);
}

/* z has room for `rows` of all ids and holds this rank's, one part behind the other: brings the others'. */
static ms_status gather(const ms_pass *pass, float *z, int64_t rows) {
  const ms_model *m = pass->model;
  ms_group *g = m->share.group;
  int64_t *count = pass->act->count;
  for (int32_t r = 0; r < g->size; r++) count[r] = rows * share_of(m, r).vocab;
  return g->ops->all_gather(g, m->dev->stream, z, MS_F32, count, NULL);
}

/* From parts, one behind the other, to rows of all ids. */
static void join(const ms_model *m, float *to, const float *parts, int64_t rows) {
  int64_t vocab = m->config.vocab;
  for (int32_t r = 0; r < m->share.group->size; r++) {
    ms_share s = share_of(m, r);
    for (int64_t i = 0; i < rows && s.vocab; i++, parts += s.vocab)
      memcpy(to + i * vocab + s.first_id, parts, (size_t)s.vocab * sizeof *to);
  }
}

/* ---- rows ---- */

/* Logits of `rows` rows, to the host; `parts`: room for them, where the head is cut. */
static ms_status make(const ms_pass *pass, ms_act hidden, int64_t rows, float *parts, float *to) {
  const ms_model *m = pass->model;
  size_t bytes = (size_t)(rows * m->config.vocab) * sizeof *to;
  float *z = pass->act->logits;
  ms_head_weights head;
  ms_model_head(m, &head);
  float *own = z + (parts ? rows * head.first_id : 0);
  if (head.vocab)
    MS_TRY(MS_OP(m->dev, linear, ms_act_f32(own), hidden, head.w, head.dtype, rows, head.width,
                 head.vocab, 0));
  if (parts) MS_TRY(gather(pass, z, rows));
  MS_TRY(MS_OP(m->dev, read, parts ? parts : to, z, bytes));
  if (parts) join(m, to, parts, rows);
  ms_finish_logits(&head, to, rows * m->config.vocab);
  return MS_OK;
}

static ms_status make_all(const ms_pass *pass, ms_act hidden, float *parts, float *logits) {
  const ms_config *c = &pass->model->config;
  int64_t most = ms_logit_rows(pass);
  for (int64_t row = 0; row < pass->rows; row += most)
    MS_TRY(make(pass, ms_act_at(hidden, row * c->hidden_size), ms_part_rows(pass->rows, row, most),
                parts, logits + row * c->vocab));
  return MS_OK;
}

ms_status ms_pass_logits(const ms_pass *pass, ms_act hidden, float *logits) {
  const ms_model *m = pass->model;
  size_t bytes = (size_t)(ms_logit_rows(pass) * m->config.vocab) * sizeof *logits;
  void *parts = NULL;
  if (ms_is_cut(m))
    MS_TRY(ms_group_agree(m->share.group, ms_alloc_undefined(bytes, "logits", &parts)));
  ms_status st = make_all(pass, hidden, parts, logits);
  ms_free(parts);
  return st;
}

/* ---- of a batch ---- */

static ms_status check(const ms_model *model, const ms_batch *batch, int64_t rows,
                       const int32_t *row) {
  MS_TRY(ms_batch_check(model, batch));
  MS_REQUIRE(rows >= 1 && rows <= batch->tokens, "logits: %lld rows of %lld positions",
             (long long)rows, (long long)batch->tokens);
  for (int64_t r = 0; r < rows; r++)
    MS_REQUIRE(row[r] >= 0 && row[r] < batch->tokens, "logits: row[%lld] is %d, not in 0..%lld",
               (long long)r, row[r], (long long)batch->tokens - 1);
  return MS_OK;
}

static ms_status run(ms_model *model, const ms_batch *batch, int64_t rows, const int32_t *row,
                     float *logits) {
  ms_act hidden;
  ms_pass pass = ms_batch_pass(model, batch);
  pass.rows = rows;
  pass.row = row;
  pass.logits = 1;
  ms_status st = ms_pass_forward(&pass, &hidden);
  if (st == MS_OK) st = ms_pass_logits(&pass, hidden, logits);
  ms_pass_end(&pass);
  return st;
}

ms_status ms_model_logits(ms_model *model, const ms_batch *batch, int64_t rows, const int32_t *row,
                          float *logits) {
  MS_TRY(ms_batch_agree(model, batch, check(model, batch, rows, row)));
  for (int64_t from = 0, end; from < rows; from = end) {
    /* the rows of a cut model's pass ascend */
    for (end = from + 1; end < rows && (!ms_is_cut(model) || row[end] >= row[end - 1]);) end++;
    MS_TRY(run(model, batch, end - from, row + from, logits + from * model->config.vocab));
  }
  return MS_OK;
}

/* gradients.c - sums of gradients over ranks.
 *
 * First over those that the model is cut over: of what several of them hold each has the part of the
 * gradient that comes from its own heads and rows. Then over those that learn from other batches. */
#include "gradients.h"

#include "../group/group.h"
#include "family.h"

/* ---- what several ranks of a model hold ---- */

/* All pieces of it in one buffer, the same on all ranks, with zeros where this one has nothing. */
typedef struct packing {
  const ms_model *m;
  float *at; /* NULL: it is only measured */
  int64_t used;
  int unpacks; /* back to where it came from */
} packing;

/* g NULL: this rank does not hold the piece. */
static ms_status pack(packing *k, float *g, int64_t n) {
  float *at = k->at ? k->at + k->used : NULL;
  size_t bytes = (size_t)n * sizeof *g;
  k->used += n;
  if (!at || (k->unpacks && !g)) return MS_OK;
  if (!g) return MS_OP(k->m->dev, zero, at, bytes);
  return MS_OP(k->m->dev, copy, k->unpacks ? g : at, k->unpacks ? at : g, bytes);
}

/* Of keys or values, whose gradient is at g here, the heads that several ranks hold. */
static ms_status pack_heads(packing *k, float *g, int64_t cols) {
  const ms_share *s = &k->m->share;
  int64_t n = k->m->config.head_dim * cols;
  int32_t head;
  for (int32_t i = 0; (head = ms_share_copied_head(k->m, i)) >= 0; i++) {
    int32_t at = head - s->first_kv_head;
    MS_TRY(pack(k, at >= 0 && at < s->kv_heads ? g + at * n : NULL, n));
  }
  return MS_OK;
}

static ms_status pack_parameter(packing *k, const ms_parameter *p) {
  const ms_weight *w = p->weight;
  int64_t cols = p->rank == 2 ? p->shape[1] : 1, row = 0;
  if (!w) return p->rank == 1 ? pack(k, p->g, p->count) : MS_OK; /* a norm; ids are cut */
  if (ms_share_is_cut(w->cols)) return MS_OK;
  for (const ms_part *part = w->part; part < w->part + MS_MAX_PARTS && part->rows; part++) {
    int64_t rows = ms_share_size(k->m, part->rows);
    if (!ms_share_is_cut(part->rows)) MS_TRY(pack(k, p->g + row * cols, rows * cols));
    if (part->rows == MS_DIM_KV) MS_TRY(pack_heads(k, p->g + row * cols, cols));
    row += rows;
  }
  return MS_OK;
}

static ms_status pack_all(packing *k) {
  k->used = 0;
  for (int32_t i = 0; i < k->m->parameters; i++)
    if (k->m->parameter[i].g) MS_TRY(pack_parameter(k, &k->m->parameter[i]));
  return MS_OK;
}

static ms_status sum_packed(packing *k, ms_group *group) {
  ms_device *dev = k->m->dev;
  MS_TRY(pack_all(k));
  MS_TRY(group->ops->all_reduce(group, dev->stream, k->at, MS_F32, k->used, MS_SUM, NULL));
  k->unpacks = 1;
  return pack_all(k);
}

static ms_status sum_over_parts(ms_model *m) {
  packing k = {.m = m};
  void *p;
  if (m->share.group->size == 1) return MS_OK;
  MS_TRY(pack_all(&k));
  if (!k.used) return MS_OK;
  size_t bytes = (size_t)k.used * sizeof(float);
  MS_TRY(ms_device_new(m->dev, bytes, &p));
  k.at = p;
  ms_status st = sum_packed(&k, m->share.group);
  ms_device_free(m->dev, p, bytes);
  return st;
}

/* ---- over all ---- */

ms_status ms_model_sum_gradients(ms_model *m, ms_group *group) {
  if (m->summed || !m->gradient_arena) return MS_OK;
  MS_TRY(sum_over_parts(m));
  MS_TRY(group->ops->all_reduce(group, m->dev->stream, m->gradient_arena, MS_F32,
                                (int64_t)(m->gradient_bytes / sizeof(float)), MS_SUM, NULL));
  m->summed = 1;
  return MS_OK;
}

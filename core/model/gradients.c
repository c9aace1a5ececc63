/* gradients.c - sums of gradients over ranks, and gathering of what ranks have updated.
 *
 * A bucket is summed first over the ranks that the model is cut over: of what several of them hold each
 * has the part of the gradient that comes from its own heads and rows. That happens at the same place of
 * the backward pass on all of them. Then it is summed over those that learn from other batches: begun in
 * the order of buckets, a few at once, and moved on whenever the backward pass comes by. */
#include "gradients.h"

#include "../base/memory.h"
#include "../group/group.h"
#include "family.h"
#include "layout.h"

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

static ms_status pack_all(packing *k, const ms_bucket *b) {
  k->used = 0;
  for (int32_t i = b->first; i < b->end; i++)
    if (k->m->parameter[i].g) MS_TRY(pack_parameter(k, &k->m->parameter[i]));
  return MS_OK;
}

static ms_status sum_packed(packing *k, const ms_bucket *b, ms_group *group) {
  ms_device *dev = k->m->dev;
  MS_TRY(pack_all(k, b));
  MS_TRY(group->ops->all_reduce(group, dev->stream, k->at, MS_F32, k->used, MS_SUM, NULL));
  k->unpacks = 1;
  return pack_all(k, b);
}

static ms_status sum_over_parts(const ms_model *m, const ms_bucket *b) {
  packing k = {.m = m};
  void *p;
  if (m->share.group->size == 1) return MS_OK;
  MS_TRY(pack_all(&k, b));
  if (!k.used) return MS_OK;
  size_t bytes = (size_t)k.used * sizeof(float);
  MS_TRY(ms_device_new(m->dev, bytes, &p));
  k.at = p;
  ms_status st = sum_packed(&k, b, m->share.group);
  ms_device_free(m->dev, p, bytes);
  return st;
}

/* ---- buckets ---- */

/* A bucket has at least so many bytes of gradients: what a message costs is then little beside it. */
enum { ENOUGH = 4 << 20 };

static int64_t place_of(const ms_model *m, const ms_parameter *p) {
  return p->g - m->gradient_arena;
}

static int64_t padded(int64_t n) { return (n + MS_ARENA_UNIT - 1) / MS_ARENA_UNIT * MS_ARENA_UNIT; }

/* The border between blocks of a parameter that is nearest to its element t. */
static int64_t nearest_block(const ms_model *m, int32_t i, int64_t t) {
  ms_run run[MS_MAX_RUNS];
  int n = ms_share_runs(m, i, run);
  for (int k = 0; k < n; k++) {
    int64_t from = run[k].held * run[k].cols, count = run[k].rows * run[k].cols;
    if (t >= from + count) continue;
    int64_t at = (t - from + MS_SQUARES_BLOCK / 2) / MS_SQUARES_BLOCK * MS_SQUARES_BLOCK;
    return from + (at < count ? at : count);
  }
  return m->parameter[i].count;
}

/* Where the part of `rank` begins: so that parts are as equal as blocks let them be. */
static int64_t border_of(const ms_model *m, const ms_bucket *b, int32_t rank, int32_t size) {
  int64_t t = b->from + b->total * rank / size;
  for (int32_t i = b->first; i < b->end; i++) {
    const ms_parameter *p = &m->parameter[i];
    if (!p->g || t >= place_of(m, p) + padded(p->count)) continue;
    int64_t at = nearest_block(m, i, t - place_of(m, p));
    return place_of(m, p) + (at < p->count ? at : padded(p->count));
  }
  return b->from + b->total;
}

/* Gradients of parameters first .. end - 1 on all ranks of a model: they cut it alike. */
static int64_t elements_of(const ms_model *m, int32_t first, int32_t end) {
  int64_t n = 0;
  for (int32_t i = first; i < end; i++) {
    const ms_parameter *p = &m->parameter[i];
    if (p->g) n += p->whole[0] * (p->whole[1] ? p->whole[1] : 1);
  }
  return n;
}

static void measure(const ms_model *m, ms_buckets *all, ms_bucket *b) {
  int32_t size = all->group->size, rank = all->group->rank;
  int64_t end = 0;
  b->from = -1;
  for (int32_t i = b->first; i < b->end; i++) {
    const ms_parameter *p = &m->parameter[i];
    if (!p->g) continue;
    if (b->from < 0) b->from = place_of(m, p);
    end = place_of(m, p) + padded(p->count);
  }
  b->total = end - b->from;
  for (int32_t r = 0; r < size; r++) {
    int64_t from = border_of(m, b, r, size);
    b->count[r] = (r + 1 < size ? border_of(m, b, r + 1, size) : end) - from;
    if (r == rank) b->own = from;
  }
  b->at = all->owned;
  all->owned += b->count[rank];
}

/* From the end of the model on; layer `layers` is what follows them, -1 what is before. */
static void cut(const ms_model *m, ms_buckets *all, int64_t enough) {
  int32_t end = m->parameters;
  for (int32_t l = m->config.layers; l >= -1; l--) {
    int32_t first = l < 0 ? 0 : ms_layout_index(m, l, 0);
    int64_t n = elements_of(m, first, end);
    if (!n || (n < enough && l >= 0)) continue;
    ms_bucket *b = &all->bucket[all->n];
    *b = (ms_bucket){.first = first, .end = end, .layer = l};
    b->count = all->counts + (int64_t)all->n++ * all->group->size;
    measure(m, all, b);
    end = first;
  }
}

static ms_status new_buckets(const ms_model *m, ms_group *group, int shard, ms_buckets **out) {
  size_t most = (size_t)m->config.layers + 2;
  void *p, *bucket = NULL, *counts = NULL;
  ms_status st;
  MS_TRY(ms_alloc(sizeof(ms_buckets), "buckets", &p));
  MS_TRY_OR(fail, ms_alloc(most * sizeof(ms_bucket), "buckets", &bucket));
  MS_TRY_OR(fail, ms_alloc(most * (size_t)group->size * sizeof(int64_t), "buckets", &counts));
  ms_buckets *all = *out = p;
  *all = (ms_buckets){.group = group, .shard = shard, .bucket = bucket, .counts = counts};
  int64_t bytes = m->bucket_bytes ? m->bucket_bytes : ENOUGH;
  cut(m, all, bytes / (int64_t)sizeof(float) * m->share.group->size);
  all->gathered = all->n;
  return MS_OK;
fail:
  ms_free(bucket);
  ms_free(p);
  return st;
}

static int is_busy(const ms_buckets *all) {
  for (int32_t k = 0; all && k < all->n; k++)
    if (all->bucket[k].work) return 1;
  return 0;
}

int ms_buckets_free(ms_model *m) {
  ms_buckets *all = m->buckets;
  if (is_busy(all)) return 1;
  m->buckets = NULL;
  if (!all) return 0;
  ms_free(all->bucket);
  ms_free(all->counts);
  ms_free(all);
  return 0;
}

static ms_status refuse_busy(const ms_model *m) {
  if (!is_busy(m->buckets)) return MS_OK;
  return MS_FAIL(MS_EGROUP,
                 "model: its gradients are being summed over ranks, and learning failed meanwhile: "
                 "begin again from a checkpoint");
}

ms_status ms_buckets_make(ms_model *m, ms_group *group, int shard) {
  ms_buckets *all = m->buckets;
  if (all && all->group == group && all->shard == shard) return MS_OK;
  MS_REQUIRE(
      !all || !all->users,
      "optimizer: another one of this model shares it out over %d ranks, by parts: free that "
      "first, or give both the same group and `shard`",
      all->group->size);
  MS_REQUIRE(
      !all || !m->summed || all->shard == MS_SHARD_NONE,
      "model: this rank has a part of the summed gradients: make the step, or zero them, first");
  MS_TRY(ms_weights_settle(m));
  MS_TRY(refuse_busy(m));
  MS_TRY(new_buckets(m, group, shard, &all));
  ms_buckets_free(m);
  m->buckets = all;
  return MS_OK;
}

void ms_buckets_part(const ms_model *m, const ms_parameter *p, int64_t *from, int64_t *count,
                     int64_t *at) {
  const ms_buckets *all = m->buckets;
  int32_t i = (int32_t)(p - m->parameter), k = 0;
  while (all->bucket[k].first > i) k++;
  const ms_bucket *b = &all->bucket[k];
  int64_t place = place_of(m, p), end = place + p->count;
  int64_t own = b->own, own_end = own + b->count[all->group->rank];
  int64_t first = place > own ? place : own, last = end < own_end ? end : own_end;
  *from = first < last ? first - place : 0;
  *count = first < last ? last - first : 0;
  *at = first < last ? b->at + first - own : b->at;
}

/* ---- sums ---- */

/* Sums under way at once: each needs memory as large as its bucket. */
enum { AT_ONCE = 4 };

static ms_status begin_sum(const ms_model *m, const ms_buckets *all, ms_bucket *b) {
  ms_group *g = all->group;
  float *x = m->gradient_arena + b->from;
  if (all->shard == MS_SHARD_NONE)
    return g->ops->all_reduce(g, m->dev->stream, x, MS_F32, b->total, MS_SUM, &b->work);
  return g->ops->reduce_scatter(g, m->dev->stream, x, MS_F32, b->count, MS_SUM, &b->work);
}

static ms_status wait_for(ms_bucket *b) {
  ms_work *work = b->work;
  MS_TRY(ms_work_wait(work)); /* after an error the memory is still the group's */
  b->work = NULL;
  return MS_OK;
}

/* Begins what may begin, and sees what is done. */
static ms_status move_on(const ms_model *m, ms_buckets *all) {
  int done = 1;
  while (done) {
    while (all->begun < all->ready && all->begun < all->done + AT_ONCE)
      MS_TRY(begin_sum(m, all, &all->bucket[all->begun++]));
    if (all->done == all->begun) return MS_OK;
    MS_TRY(ms_work_test(all->bucket[all->done].work, &done));
    if (done) MS_TRY(wait_for(&all->bucket[all->done++]));
  }
  return MS_OK;
}

static ms_status make_ready(const ms_model *m, ms_buckets *all, int32_t layer) {
  for (; all->ready < all->n && all->bucket[all->ready].layer >= layer; all->ready++)
    MS_TRY(sum_over_parts(m, &all->bucket[all->ready]));
  return move_on(m, all);
}

ms_status ms_gradients_check(const ms_model *m) {
  MS_REQUIRE(!m->summed,
             "learn: the step's last batch was learnt: its gradients are those of all ranks, and "
             "nothing may be added before the optimizer's step, or zero_gradients");
  MS_REQUIRE(!m->buckets || !m->buckets->sums,
             "model: learning failed in the step's last batch, and some of its gradients are those "
             "of all ranks: zero_gradients comes first");
  return MS_OK;
}

ms_status ms_gradients_begin(ms_model *m, ms_group *group) {
  if (!m->gradient_arena) return MS_OK;
  MS_TRY(ms_gradients_check(m));
  if (!m->buckets || m->buckets->group != group) MS_TRY(ms_buckets_make(m, group, MS_SHARD_NONE));
  ms_buckets *all = m->buckets;
  MS_TRY(ms_weights_settle(m));
  all->ready = all->begun = all->done = 0;
  all->sums = 1;
  return MS_OK;
}

void ms_gradients_failed(ms_model *m) {
  ms_buckets *all = m->buckets;
  if (all && !all->ready) all->sums = 0;
}

ms_status ms_gradients_forget(ms_model *m) {
  ms_buckets *all = m->buckets;
  m->summed = 0;
  if (!all || !all->sums) return MS_OK;
  MS_TRY(refuse_busy(m));
  all->sums = 0;
  return MS_OK;
}

ms_status ms_gradients_ready(ms_model *m, int32_t layer) {
  ms_buckets *all = m->buckets;
  return all && all->sums && !all->late ? make_ready(m, all, layer) : MS_OK;
}

ms_status ms_gradients_finish(ms_model *m) {
  ms_buckets *all = m->buckets;
  if (!m->gradient_arena) return MS_OK;
  MS_TRY(make_ready(m, all, -1));
  while (all->done < all->n) {
    MS_TRY(wait_for(&all->bucket[all->done++]));
    MS_TRY(move_on(m, all));
  }
  all->sums = 0;
  m->summed = 1;
  return MS_OK;
}

ms_status ms_model_sum_gradients(ms_model *m, ms_group *group) {
  if (m->summed || !m->gradient_arena) return MS_OK;
  MS_TRY(ms_gradients_begin(m, group));
  return ms_gradients_finish(m);
}

/* ---- weights ---- */

ms_status ms_weights_gather(ms_model *m) {
  ms_buckets *all = m->buckets;
  ms_group *g = all->group;
  size_t element = ms_dtype_size(m->dtype);
  if (all->shard == MS_SHARD_NONE) return MS_OK;
  all->gathered = 0;
  for (int32_t k = all->n - 1; k >= 0; k--) {
    ms_bucket *b = &all->bucket[k];
    char *x = (char *)m->weight_arena + (size_t)b->from * element;
    MS_TRY(g->ops->all_gather(g, m->dev->stream, x, m->dtype, b->count, &b->work));
  }
  return m->views ? ms_weights_settle(m) : MS_OK;
}

ms_status ms_weights_ready(const ms_model *m, int32_t layer) {
  ms_buckets *all = m->buckets;
  int done;
  if (!all) return MS_OK;
  for (; all->gathered < all->n; all->gathered++) {
    ms_bucket *b = &all->bucket[all->n - 1 - all->gathered];
    if (b->layer > layer) return ms_work_test(b->work, &done);
    MS_TRY(wait_for(b));
  }
  return MS_OK;
}

/* layout.c - what parameters a model has, where they lie, and the life of a model.
 *
 * All weights are in one arena and all gradients in another, every parameter at a multiple of 64
 * bytes. The list of parameters is made from the config and the family's table before anything is
 * allocated, so that sizes can be compared with files, and added up, first. */
#include "layout.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../base/json.h"
#include "../base/memory.h"
#include "../group/group.h"
#include "family.h"
#include "gradients.h"

/* ---- names and shapes ---- */

static int has_weight(const ms_config *c, const ms_weight *w) {
  switch (w->when) {
    case MS_ALWAYS: return 1;
    case MS_IF_QKV_BIAS: return c->qkv_bias;
    case MS_IF_O_BIAS: return c->o_bias;
    case MS_IF_MLP_BIAS: return c->mlp_bias;
    case MS_IF_QK_NORM: return c->qk_norm != 0;
  }
  return 0;
}

static int32_t weights_of_layer(const ms_config *c) {
  int32_t n = 0;
  for (const ms_weight *w = c->family->weight; w->name; w++) n += has_weight(c, w);
  return n;
}

/* A parameter of which the whole model has `whole` and this rank `shape`; cols 0: a vector. Takes `name`
 * over. */
static ms_parameter *add_parameter(ms_model *m, char *name, const int64_t whole[2],
                                   const int64_t shape[2]) {
  ms_parameter *p = &m->parameter[m->parameters++];
  p->name = name;
  p->rank = whole[1] ? 2 : 1;
  memcpy(p->whole, whole, sizeof p->whole);
  memcpy(p->shape, shape, sizeof p->shape);
  p->count = shape[0] * (shape[1] ? shape[1] : 1); /* config.c's bounds keep it below 2^57 */
  p->decay = whole[1] > 0;
  return p;
}

static ms_status add_outer(ms_model *m, const char *name, int64_t rows, int64_t held,
                           int64_t cols) {
  char *copy;
  MS_TRY(ms_text_copy(name, strlen(name), &copy));
  add_parameter(m, copy, (int64_t[]){rows, cols}, (int64_t[]){held, cols});
  return MS_OK;
}

static ms_status add_layer(ms_model *m, int32_t layer) {
  char *name;
  for (const ms_weight *w = m->config.family->weight; w->name; w++) {
    int64_t whole[2] = {0, ms_dim_size(&m->config, w->cols)};
    int64_t shape[2] = {0, ms_share_size(m, w->cols)};
    if (!has_weight(&m->config, w)) continue;
    for (int i = 0; i < MS_MAX_PARTS; i++) {
      whole[0] += ms_dim_size(&m->config, w->part[i].rows);
      shape[0] += ms_share_size(m, w->part[i].rows);
    }
    MS_TRY(ms_text_format(&name, "model.layers.%d.%s", layer, w->name));
    add_parameter(m, name, whole, shape)->weight = w;
  }
  return MS_OK;
}

/* The head alone is a tied model of no layers, whose one matrix has the head's name. */
static void keep_head(ms_model *m) {
  if (!m->config.tied) m->outer_name = MS_HEAD_NAME;
  m->config.tied = 1;
  m->config.layers = 0;
}

static ms_status add_parameters(ms_model *m) {
  const ms_config *c = &m->config;
  void *p;
  int32_t n = 3 + c->layers * weights_of_layer(c);
  MS_TRY(ms_alloc((size_t)n * sizeof *m->parameter, "parameters", &p));
  m->parameter = p;
  MS_TRY(add_outer(m, m->outer_name, c->vocab, m->share.vocab, c->hidden_size));
  for (int32_t i = 0; i < c->layers; i++) MS_TRY(add_layer(m, i));
  MS_TRY(add_outer(m, "model.norm.weight", c->hidden_size, c->hidden_size, 0));
  if (!c->tied) MS_TRY(add_outer(m, MS_HEAD_NAME, c->vocab, m->share.vocab, c->hidden_size));
  return MS_OK;
}

int32_t ms_layout_index(const ms_model *m, int32_t layer, int32_t k) {
  return 1 + layer * weights_of_layer(&m->config) + k;
}

/* ---- frozen parameters ---- */

/* Whether `name` matches a pattern with * and ?, in time linear in both but for one retry point. */
static int matches(const char *pattern, const char *end, const char *name) {
  const char *star = NULL, *retry = NULL;
  while (*name) {
    if (pattern < end && *pattern == '*') {
      star = ++pattern;
      retry = name;
    } else if (pattern < end && (*pattern == '?' || *pattern == *name)) {
      pattern++;
      name++;
    } else if (star) {
      pattern = star;
      name = ++retry;
    } else {
      return 0;
    }
  }
  while (pattern < end && *pattern == '*') pattern++;
  return pattern == end;
}

/* Marks in `frozen` what the patterns name; a pattern that names nothing is a mistake. */
static ms_status mark_frozen(const ms_model *m, const char *patterns, char *frozen) {
  for (const char *p = patterns; p && *p;) {
    size_t n = strcspn(p, " ");
    int hits = 0;
    for (int32_t i = 0; n && i < m->parameters; i++)
      if (matches(p, p + n, m->parameter[i].name)) frozen[i] = 1, hits++;
    MS_REQUIRE(!n || hits, "frozen: '%.*s' matches no parameter", (int)n, p);
    p += n + strspn(p + n, " ");
  }
  return MS_OK;
}

/* ---- arenas ---- */

/* Adds room for a parameter; `*elements` is where it begins until then. */
static ms_status add_elements(size_t *elements, int64_t count) {
  size_t n, unit = MS_ARENA_UNIT;
  if (__builtin_add_overflow((size_t)count, unit - 1, &n) ||
      __builtin_add_overflow(*elements, n / unit * unit, elements) ||
      *elements > SIZE_MAX / 2 / sizeof(float))
    return MS_FAIL(MS_ENOMEM, "model: the weights do not fit into an address space");
  return MS_OK;
}

/* Sets where each parameter begins: trained ones first, so that the arenas agree. */
static ms_status place(ms_model *m, const char *frozen, size_t *begin) {
  size_t at = 0;
  for (int fixed = 0; fixed < 2; fixed++) {
    for (int32_t i = 0; i < m->parameters; i++) {
      if ((!m->train || frozen[i]) != fixed) continue;
      begin[i] = at;
      MS_TRY(add_elements(&at, m->parameter[i].count));
    }
    if (!fixed) m->gradient_bytes = at * sizeof(float);
  }
  m->weight_bytes = at * ms_dtype_size(m->dtype);
  return MS_OK;
}

static ms_status allocate(ms_model *m) {
  void *p = NULL;
  MS_TRY(ms_device_alloc(m->dev, m->weight_bytes, "weights",
                         m->dtype == MS_BF16 ? "a smaller model is needed"
                                             : "dtype = bf16, or a smaller model, needs less",
                         &m->weight_arena));
  if (!m->gradient_bytes) return MS_OK;
  MS_TRY(ms_device_alloc(m->dev, m->gradient_bytes, "gradients",
                         "frozen parameters, or a smaller model, need less", &p));
  m->gradient_arena = p;
  return MS_OP(m->dev, zero, p, m->gradient_bytes);
}

static ms_status lay_arenas(ms_model *m, const char *frozen) {
  void *p;
  MS_TRY(ms_alloc((size_t)m->parameters * sizeof(size_t), "parameters", &p));
  size_t *begin = p;
  ms_status st = place(m, frozen, begin);
  if (st == MS_OK) st = allocate(m);
  for (int32_t i = 0; st == MS_OK && i < m->parameters; i++) {
    ms_parameter *q = &m->parameter[i];
    q->w = (char *)m->weight_arena + begin[i] * ms_dtype_size(m->dtype);
    if (m->train && !frozen[i]) q->g = m->gradient_arena + begin[i];
  }
  ms_free(p);
  return st;
}

/* ---- what the decoder sees ---- */

static ms_slice slice_at(const ms_model *m, const ms_parameter *p, int64_t row) {
  int64_t at = row * (p->rank == 2 ? p->shape[1] : 1);
  ms_slice s = {(const char *)p->w + (size_t)at * ms_dtype_size(m->dtype), p->g ? p->g + at : NULL};
  return s;
}

static ms_status link_layers(ms_model *m) {
  const ms_config *c = &m->config;
  void *p;
  MS_TRY(ms_alloc((size_t)c->layers * sizeof *m->layer, "layers", &p));
  m->layer = p;
  for (int32_t i = 0; i < c->layers; i++) {
    int32_t k = 0;
    for (const ms_weight *w = c->family->weight; w->name; w++) {
      if (!has_weight(c, w)) continue;
      const ms_parameter *q = &m->parameter[ms_layout_index(m, i, k++)];
      int64_t row = 0;
      for (const ms_part *part = w->part; part < w->part + MS_MAX_PARTS && part->rows; part++) {
        *(ms_slice *)((char *)&m->layer[i] + part->slice) = slice_at(m, q, row);
        row += ms_share_size(m, part->rows);
      }
    }
  }
  int32_t norm = ms_layout_index(m, c->layers, 0);
  m->embed = slice_at(m, &m->parameter[0], 0);
  m->norm = slice_at(m, &m->parameter[norm], 0);
  m->head = c->tied ? m->embed : slice_at(m, &m->parameter[norm + 1], 0);
  return MS_OK;
}

/* ---- life ---- */

/* f16 has more mantissa than bf16, so only f32 holds it. */
int ms_layout_dtype(int stored) { return stored == MS_BF16 ? MS_BF16 : MS_F32; }

ms_status ms_layout_new(ms_device *dev, ms_config *config, const ms_model_options *options,
                        ms_model **out) {
  ms_group *group = options->tp ? options->tp : ms_group_self();
  void *p;
  ms_status st;
  *out = NULL;
  MS_TRY(ms_share_check(config, group));
  MS_REQUIRE(options->vocab_cut >= 0, "model: its ids are cut as %lld are",
             (long long)options->vocab_cut);
  MS_REQUIRE(options->dtype == -1 || options->dtype == MS_F32 || options->dtype == MS_BF16,
             "model: weights cannot be held as %s, only as f32, bf16 or as stored",
             ms_dtype_name(options->dtype));
  if (config->head_dim > dev->ops->max_head_dim)
    return MS_FAIL(MS_EUNSUPPORTED,
                   "config.json: heads of %d ('head_dim', or 'hidden_size' over "
                   "'num_attention_heads'): attention on %s takes at most %d",
                   config->head_dim, dev->ops->name, dev->ops->max_head_dim);
  MS_TRY(ms_alloc(sizeof(ms_model), "model", &p));
  ms_model *m = p;
  m->refs = 1;
  m->dev = dev;
  ms_device_retain(dev);
  m->dtype = options->dtype == -1 ? ms_layout_dtype(config->dtype) : options->dtype;
  m->stored = m->dtype;
  m->train = options->train != 0;
  m->recompute = options->recompute != 0;
  m->head_bytes = options->head_bytes;
  m->config = *config; /* borrowed until all has gone well */
  m->outer_name = MS_EMBED_NAME;
  m->share = ms_share_of(config, group, options->vocab_cut, group->rank);
  if (options->head_only) keep_head(m);
  MS_TRY_OR(fail, add_parameters(m));
  memset(config, 0, sizeof *config);
  *out = m;
  return MS_OK;
fail:
  memset(&m->config, 0, sizeof m->config);
  ms_model_free(m);
  return st;
}

ms_status ms_layout_fill(ms_model *m, const char *patterns) {
  void *frozen;
  ms_status st;
  MS_TRY(ms_alloc((size_t)m->parameters, "frozen", &frozen));
  MS_TRY_OR(end, mark_frozen(m, patterns, frozen));
  MS_TRY_OR(end, lay_arenas(m, frozen));
  MS_TRY_OR(end, link_layers(m));
end:
  ms_free(frozen);
  return st;
}

ms_status ms_model_build(ms_device *dev, ms_config *config, const ms_model_options *options,
                         ms_model **out) {
  ms_model *m;
  ms_status st;
  *out = NULL;
  MS_TRY(ms_layout_new(dev, config, options, &m));
  st = ms_layout_fill(m, options->frozen);
  if (st == MS_OK) {
    *out = m;
    return MS_OK;
  }
  *config = m->config; /* the caller's again */
  memset(&m->config, 0, sizeof m->config);
  ms_model_free(m);
  return st;
}

static void destroy(ms_model *m) {
  ms_activations_free(m);
  if (!ms_buckets_free(m)) { /* else other ranks' messages still come into them */
    ms_device_free(m->dev, m->weight_arena, m->weight_bytes);
    ms_device_free(m->dev, m->gradient_arena, m->gradient_bytes);
  }
  for (int32_t i = 0; i < m->parameters; i++) ms_text_free(m->parameter[i].name);
  ms_free(m->parameter);
  ms_free(m->layer);
  ms_text_free(m->path);
  ms_free(m->end);
  ms_model_free_texts(m);
  ms_config_clear(&m->config);
  ms_device_close(m->dev);
  ms_free(m);
}

void ms_model_retain(ms_model *model) { atomic_fetch_add(&model->refs, 1); }

void ms_model_refer(void *model, int by) {
  if (by > 0)
    ms_model_retain(model);
  else
    ms_model_release(model);
}

void ms_model_release(ms_model *model) {
  if (atomic_fetch_sub(&model->refs, 1) == 1) destroy(model);
}

void ms_model_free(ms_model *model) {
  if (model) ms_model_release(model);
}

/* ---- facts ---- */

/* To nearest, ties to even. */
static float to_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  bits = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000;
  memcpy(&x, &bits, sizeof bits);
  return x;
}

float ms_embed_scale(const ms_model *m) {
  const ms_config *c = &m->config;
  return c->embed_scale_in_dtype && m->dtype == MS_BF16 ? to_bf16(c->embed_scale) : c->embed_scale;
}

void ms_model_head(const ms_model *m, ms_head_weights *head) {
  *head = (ms_head_weights){.w = m->head.w,
                            .dtype = m->dtype,
                            .vocab = m->share.vocab,
                            .width = m->config.hidden_size,
                            .scale = m->config.logit_scale,
                            .soft_cap = m->config.logit_cap,
                            .changes = &m->head_changes,
                            .tp = m->share.group,
                            .first_id = m->share.first_id,
                            .vocab_all = m->config.vocab};
}

/* The head is told by its place in the list: with no ids here it has no memory of its own. */
static ms_changes *changes_of(ms_model *m, const ms_parameter *p) {
  int32_t head = m->config.tied ? 0 : m->parameters - 1;
  return p == &m->parameter[head] ? &m->head_changes : &m->changes;
}

void ms_model_wait(ms_model *m) {
  if (!atomic_load(&m->being_read)) return;
  double since = ms_clock();
  while (atomic_load(&m->being_read)) usleep(200);
  m->waited += ms_clock() - since;
}

ms_status ms_model_check_read(const ms_model *m) {
  if (atomic_load(&m->being_read) != MS_READ_STOP) return MS_OK;
  return MS_FAIL(MS_EGROUP, "model: what is being saved is given up");
}

void ms_model_change(ms_model *m, const ms_parameter *p) {
  ms_model_wait(m);
  atomic_fetch_add(changes_of(m, p), 1);
}

int64_t ms_model_changes(const ms_model *m) {
  return atomic_load(&m->changes) + atomic_load(&m->head_changes);
}

int32_t ms_model_parameter_count(const ms_model *model) { return model->parameters; }

const char *ms_model_parameter_name(const ms_model *model, int32_t i) {
  return i >= 0 && i < model->parameters ? model->parameter[i].name : NULL;
}

static void release(void *model) { ms_model_release(model); }

static void release_weight(void *owner) {
  ms_model *m = owner;
  atomic_fetch_sub(&m->views, 1);
  ms_model_release(m);
}

ms_status ms_model_parameter(ms_model *m, int32_t i, ms_tensor **weight) {
  *weight = NULL;
  MS_REQUIRE(i >= 0 && i < m->parameters, "model: parameter %d of %d", i, m->parameters);
  const ms_parameter *p = &m->parameter[i];
  MS_TRY(ms_weights_settle(m));
  ms_model_wait(m); /* whoever has it may write */
  MS_TRY(ms_tensor_wrap(m->dev, m->dtype, p->rank, p->shape, p->w, changes_of(m, p), release_weight,
                        m, weight));
  atomic_fetch_add(&m->views, 1);
  ms_model_retain(m);
  return MS_OK;
}

ms_status ms_model_gradient(ms_model *m, int32_t i, ms_tensor **gradient) {
  *gradient = NULL;
  MS_REQUIRE(i >= 0 && i < m->parameters, "model: parameter %d of %d", i, m->parameters);
  const ms_parameter *p = &m->parameter[i];
  if (!p->g) return MS_OK;
  MS_TRY(ms_tensor_wrap(m->dev, MS_F32, p->rank, p->shape, p->g, NULL, release, m, gradient));
  ms_model_retain(m);
  return MS_OK;
}

/* Where in the whole tensor element `at` of this rank's part is. */
static int64_t whole_place(const ms_model *m, int32_t i, int64_t at) {
  ms_piece piece[MS_MAX_PIECES];
  ms_share_pieces(m, i, at, 1, piece);
  return piece->rows.first;
}

static ms_status check_finite(const ms_model *m, int32_t i) {
  const ms_parameter *p = &m->parameter[i];
  char place[80];
  int64_t at;
  MS_TRY(MS_OP(m->dev, not_finite, &at, p->w, m->dtype, p->count));
  if (at < 0) return MS_OK;
  return MS_FAIL(MS_EINVAL,
                 "model: '%s' holds NaN or infinity, first at %s: its training has diverged; begin "
                 "again with a smaller learning rate",
                 p->name, ms_place_text(p->rank, p->whole, whole_place(m, i, at), place));
}

ms_status ms_model_check_finite(const ms_model *m) {
  ms_status st = ms_weights_settle(m);
  for (int32_t i = 0; i < m->parameters && st == MS_OK; i++) st = check_finite(m, i);
  return ms_group_agree(m->share.group, st);
}

ms_status ms_model_zero_gradients(ms_model *m) {
  MS_TRY(ms_gradients_forget(m));
  if (!m->gradient_arena) return MS_OK;
  return MS_OP(m->dev, zero, m->gradient_arena, m->gradient_bytes);
}

ms_status ms_model_info(const ms_model *m, char **json) {
  const ms_config *c = &m->config;
  int64_t count = 0;
  *json = NULL;
  for (int32_t i = 0; i < m->parameters; i++) {
    const ms_parameter *p = &m->parameter[i];
    count += p->whole[0] * (p->rank == 2 ? p->whole[1] : 1);
  }
  ms_json_starved();
  json_t *path = m->path ? json_string(m->path) : NULL;
  if (ms_json_starved()) return MS_FAIL(MS_ENOMEM, "model info: no memory");
  if (!path) path = json_null(); /* none, or one that is not UTF-8 and cannot be said in JSON */
  json_t *info = json_pack(
      "{s:s, s:I, s:i, s:I, s:I, s:I, s:i, s:i, s:i, s:s, s:b, s:I, s:o, s:b, s:{s:I, s:I, s:I}}",
      "family", c->family->type, "parameters", (json_int_t)count, "layers", c->layers,
      "hidden_size", (json_int_t)c->hidden_size, "intermediate_size",
      (json_int_t)c->intermediate_size, "vocab", (json_int_t)c->vocab, "heads", c->heads,
      "kv_heads", c->kv_heads, "head_dim", c->head_dim, "dtype", ms_dtype_name(m->dtype), "tied",
      c->tied, "context", (json_int_t)c->context, "path", path, "train", m->train, "memory",
      "weights", (json_int_t)m->weight_bytes, "gradients", (json_int_t)m->gradient_bytes,
      "activations", (json_int_t)ms_activations_bytes(m));
  if (!info) return MS_FAIL(MS_ENOMEM, "model info: no memory");
  ms_status st = ms_json_text(info, 0, json);
  json_decref(info);
  return st;
}

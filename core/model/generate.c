/* generate.c - decoding with a cache of keys and values.
 *
 * All prompts go through the decoder at once, packed, and leave their keys and values in the
 * cache; then every step runs one row for each prompt that is still live. */
#include <math.h>
#include <string.h>

#include "../base/memory.h"
#include "batch.h"
#include "decoder.h"
#include "sample.h"

struct ms_generator {
  ms_model *model;
  ms_generate_options options;
  int32_t *stop; /* a copy; options.stop points at it */
  int32_t prompts, live;
  ms_cache cache;
  ms_pass pass;      /* of the prompts, then of each step: its memory stays the generator's */
  size_t half_bytes; /* of the cache's keys, and of its values */
  int32_t *made;     /* [prompts] tokens given so far */
  /* of the live rows, in order of prompts */
  int32_t *slot, *token, *position; /* the prompt, its last token and that token's position */
  int32_t *count;                   /* 0, 1, .. prompts */
  int32_t *range;                   /* scratch of the pass */
  void *memory;                     /* all the int32 arrays */
  float *logits;                    /* [live, vocab], host; of the next token when `ready` */
  void *scratch;                    /* of the sampling */
  int ready;
  int64_t changes; /* ms_model_changes when it began: the cache is of those weights */
};

static ms_status check_options(const ms_generate_options *o, int32_t prompts,
                               const int32_t *start) {
  MS_REQUIRE(prompts >= 1, "generate: %d prompts", prompts);
  MS_REQUIRE(o->temperature >= 0 && isfinite(o->temperature), "generate: temperature %g",
             o->temperature);
  MS_REQUIRE(o->top_p > 0 && o->top_p <= 1, "generate: top_p %g is not in (0, 1]", o->top_p);
  MS_REQUIRE(o->top_k >= 0, "generate: top_k %d", o->top_k);
  MS_REQUIRE(o->max_new >= 1, "generate: max_new %d", o->max_new);
  MS_REQUIRE(o->first >= 0 && o->first <= INT32_MAX - prompts, "generate: first %d", o->first);
  MS_REQUIRE(o->stops >= 0 && (o->stops == 0 || o->stop), "generate: %d stop tokens", o->stops);
  for (int32_t i = 0; i < prompts; i++)
    MS_REQUIRE(start[i + 1] > start[i], "generate: prompt %d is empty", i + 1);
  return MS_OK;
}

/* What ms_batch_check would find, in the caller's words: prompts and not segments. */
static ms_status check_prompts(const ms_model *model, int32_t prompts, const int32_t *token,
                               const int32_t *start) {
  const ms_config *c = &model->config;
  for (int32_t i = 0; i < prompts; i++) {
    MS_REQUIRE(start[i + 1] - start[i] <= c->context,
               "generate: prompt %d has %d tokens, the model's context is %lld", i + 1,
               start[i + 1] - start[i], (long long)c->context);
    for (int32_t t = start[i]; t < start[i + 1]; t++)
      MS_REQUIRE(token[t] >= 0 && token[t] < c->vocab,
                 "generate: prompt %d: id %d is %d, outside the model's vocabulary of %lld", i + 1,
                 t - start[i] + 1, token[t], (long long)c->vocab);
  }
  return MS_OK;
}

/* Cache rows hold the longest prompt and what may follow it. */
static int64_t find_capacity(const ms_generator *g, const int32_t *start) {
  int64_t capacity = 0;
  for (int32_t i = 0; i < g->prompts; i++) {
    int64_t need = (int64_t)start[i + 1] - start[i] + g->options.max_new;
    if (need > capacity) capacity = need;
  }
  return capacity < g->model->config.context ? capacity : g->model->config.context;
}

static ms_status new_cache(ms_generator *g, int64_t capacity) {
  const ms_config *c = &g->model->config;
  ms_device *dev = g->model->dev;
  int dtype = dev->ops->precision.attention;
  size_t bytes = (size_t)(c->layers * ms_kv_size(g->model) * g->prompts) * (size_t)capacity *
                 ms_dtype_size(dtype);
  void *p;
  g->cache.slots = g->prompts;
  g->cache.capacity = capacity;
  g->half_bytes = bytes;
  static const char what[] = "generate: keys and values";
  static const char less[] = "fewer prompts at once, or a smaller max_new, need less";
  MS_TRY(ms_device_alloc(dev, bytes, what, less, &p));
  g->cache.k = (ms_act){p, dtype};
  MS_TRY(ms_device_alloc(dev, bytes, what, less, &p));
  g->cache.v = (ms_act){p, dtype};
  return MS_OK;
}

static ms_status new_arrays(ms_generator *g) {
  size_t n = (size_t)g->prompts, vocab = (size_t)g->model->config.vocab;
  void *p;
  MS_TRY(ms_alloc((7 * n + 1 + (size_t)g->options.stops) * 4, "generate: rows", &g->memory));
  g->made = g->memory;
  g->slot = g->made + n;
  g->token = g->slot + n;
  g->position = g->token + n;
  g->range = g->position + n;
  g->count = g->range + 2 * n;
  g->stop = g->count + n + 1;
  for (int32_t i = 0; i <= g->prompts; i++) g->count[i] = i;
  MS_TRY(ms_alloc_undefined(n * vocab * 4, "generate: logits", &p));
  g->logits = p;
  return ms_alloc_undefined(ms_sample_bytes((int64_t)vocab), "generate: sampling", &g->scratch);
}

/* Runs the prompts; logits of the live ones' next tokens. */
static ms_status prefill(ms_generator *g, const ms_batch *batch) {
  ms_act hidden;
  for (int32_t i = 0; i < g->prompts; i++) {
    int32_t end = batch->segment_start[i + 1], length = end - batch->segment_start[i];
    if (length == g->model->config.context) continue; /* no room for a token */
    g->slot[g->live] = i;
    g->position[g->live] = length - 1;
    g->token[g->live++] = end - 1; /* for now: the row of the last token */
  }
  if (!g->live) return MS_OK;
  g->pass = (ms_pass){.model = g->model,
                      .tokens = batch->tokens,
                      .segments = batch->segments,
                      .token = batch->token,
                      .position = batch->position,
                      .segment_start = batch->segment_start,
                      .rows = g->live,
                      .row = g->token,
                      .first = g->model->config.layers,
                      .logits = 1,
                      .cache = &g->cache,
                      .slot = g->count};
  MS_TRY(ms_pass_forward(&g->pass, &hidden));
  g->ready = 1;
  return ms_pass_logits(&g->pass, hidden, g->logits);
}

/* One row for each live prompt: its last token. */
static ms_status step(ms_generator *g) {
  ms_act hidden;
  g->pass = (ms_pass){.model = g->model,
                      .tokens = g->live,
                      .segments = g->live,
                      .token = g->token,
                      .position = g->position,
                      .segment_start = g->count,
                      .rows = g->live,
                      .row = g->count,
                      .first = g->model->config.layers,
                      .logits = 1,
                      .cache = &g->cache,
                      .slot = g->slot,
                      .range = g->range,
                      .step = 1,
                      .act = g->pass.act};
  MS_TRY(ms_pass_forward(&g->pass, &hidden));
  MS_TRY(ms_pass_logits(&g->pass, hidden, g->logits));
  g->ready = 1;
  return MS_OK;
}

/* A generator whose prompts have not gone through the model yet; what there is of it, and of the batch, is
 * the caller's also after an error. */
static ms_status begin(ms_model *model, int32_t prompts, const int32_t *token, const int32_t *start,
                       const ms_generate_options *options, ms_batch **batch, ms_generator **out) {
  void *p;
  MS_TRY(check_options(options, prompts, start));
  MS_TRY(check_prompts(model, prompts, token, start));
  MS_TRY(ms_batch_new(start[prompts], token, prompts, start, NULL, NULL, batch));
  MS_TRY(ms_alloc(sizeof(ms_generator), "generator", &p));
  ms_generator *g = *out = p;
  g->model = model;
  ms_model_retain(model);
  g->changes = ms_model_changes(model);
  g->options = *options;
  g->prompts = prompts;
  MS_TRY(new_arrays(g));
  for (int32_t i = 0; i < options->stops; i++) g->stop[i] = options->stop[i];
  g->options.stop = g->stop;
  return new_cache(g, find_capacity(g, start));
}

ms_status ms_generator_new(ms_model *model, int32_t prompts, const int32_t *token,
                           const int32_t *start, const ms_generate_options *options,
                           ms_generator **out) {
  ms_batch *batch = NULL;
  ms_generator *g = NULL;
  *out = NULL;
  ms_status st = begin(model, prompts, token, start, options, &batch, &g);
  st = ms_batch_agree(model, batch, st);
  if (st == MS_OK) st = prefill(g, batch);
  ms_batch_free(batch);
  if (st != MS_OK) {
    ms_generator_free(g);
    return st;
  }
  *out = g;
  return MS_OK;
}

static int is_stop(const ms_generator *g, int32_t token) {
  for (int32_t i = 0; i < g->options.stops; i++)
    if (g->stop[i] == token) return 1;
  return 0;
}

/* Whether a row has ended with `token`, which is at `position`. */
static int has_ended(const ms_generator *g, int32_t slot, int32_t token, int32_t position) {
  return is_stop(g, token) || g->made[slot] >= g->options.max_new ||
         position + 1 >= g->model->config.context;
}

ms_status ms_generator_next(ms_generator *gen, int32_t *token, int32_t *live) {
  int32_t left = 0;
  MS_REQUIRE(!gen->live || ms_model_changes(gen->model) == gen->changes,
             "generate: the model's weights have changed since the prompts went through it (by a "
             "step, a checkpoint or a write): begin again with the tokens so far as prompts");
  if (gen->live && !gen->ready) MS_TRY(step(gen));
  for (int32_t i = 0; i < gen->prompts; i++) token[i] = -1;
  for (int32_t i = 0; i < gen->live; i++)
    MS_TRY(ms_sample(gen->logits + i * gen->model->config.vocab, gen->model->config.vocab,
                     &gen->options, gen->options.first + gen->slot[i], gen->made[gen->slot[i]],
                     gen->scratch, &token[gen->slot[i]]));
  for (int32_t i = 0; i < gen->live; i++) {
    int32_t slot = gen->slot[i], position = gen->position[i] + 1;
    gen->made[slot]++;
    if (has_ended(gen, slot, token[slot], position)) continue;
    gen->slot[left] = slot;
    gen->token[left] = token[slot];
    gen->position[left++] = position;
  }
  gen->live = left;
  gen->ready = 0;
  *live = left;
  return MS_OK;
}

void ms_generator_free(ms_generator *gen) {
  if (!gen) return;
  ms_device *dev = gen->model->dev;
  ms_pass_end(&gen->pass);
  ms_device_free(dev, gen->cache.k.at, gen->half_bytes);
  ms_device_free(dev, gen->cache.v.at, gen->half_bytes);
  ms_free(gen->memory);
  ms_free(gen->logits);
  ms_free(gen->scratch);
  ms_model_release(gen->model);
  ms_free(gen);
}

/* optimizer.c - what only C sees of the optimiser: how often a step waits for the device, and what
 * it asks of its group. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/group/group.h"
#include "core/train/optimizer.h"
#include "tests/support/test.h"

static const char config[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 11, \"hidden_size\": 8, \"intermediate_size\": 12,"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 1,"
    " \"max_position_embeddings\": 16, \"tie_word_embeddings\": true, \"rms_norm_eps\": 1e-5,"
    " \"hidden_act\": \"silu\"}";
static const ms_adamw_options options = {
    .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1, .clip = 1};

static ms_device *dev;

static ms_model *new_model(int dtype) {
  ms_model_options how = {.dtype = dtype, .train = 1};
  ms_model *m = NULL;
  CHECK(ms_model_create(dev, config, 1, &how, &m) == MS_OK);
  return m;
}

static ms_optimizer *new_optimizer(ms_model *m, ms_group *group) {
  ms_optimizer *opt = NULL;
  CHECK(ms_optimizer_new(m, group, &options, &opt) == MS_OK);
  return opt;
}

/* ---- the device's own operations, but that waiting is counted ---- */

static const ms_ops *own;
static int reads;

static ms_status count_read(ms_stream *s, void *host, const void *device, size_t bytes) {
  reads++;
  return own->read(s, host, device, bytes);
}

static void waits_once(int dtype) {
  ms_ops counting = *(own = dev->ops);
  ms_model *m = new_model(dtype);
  ms_optimizer *opt = new_optimizer(m, ms_group_self());
  double norm;
  int32_t skipped;
  for (size_t i = 0; i < m->gradient_bytes / 4; i++) m->gradient_arena[i] = 1;
  counting.read = count_read;
  dev->ops = &counting;
  reads = 0;
  CHECK(ms_optimizer_step(opt, 0.1, &norm, &skipped) == MS_OK && norm > 1 && !skipped);
  CHECK(reads == 1);
  dev->ops = own;
  ms_optimizer_free(opt);
  ms_model_free(m);
}

/* ---- a group of two, whose other rank has what this one has, and as rank 0 a `first` ---- */

static int sums;
static int32_t first;

static ms_status twice(ms_group *g, ms_stream *s, void *x, int dtype, int64_t n, ms_reduction how,
                       ms_work **work) {
  CHECK(how == MS_SUM && (dtype == MS_F32 || dtype == MS_F64));
  if (work) *work = NULL; /* done */
  sums += dtype == MS_F32;
  for (int64_t i = 0; i < n; i++)
    if (dtype == MS_F32)
      ((float *)x)[i] *= 2;
    else
      ((double *)x)[i] *= 2;
  return MS_OK;
}

static ms_status give_first(ms_group *g, ms_stream *s, void *x, int dtype, int64_t n, int32_t root,
                            ms_work **work) {
  CHECK(dtype == MS_U8 && n == sizeof first && root == 0 && !work);
  if (g->rank) memcpy(x, &first, sizeof first);
  return MS_OK;
}

static const ms_group_ops two = {.name = "two", .all_reduce = twice, .broadcast = give_first};
static ms_group pair = {.ops = &two, .rank = 1, .size = 2};

static void learn(ms_model *m, ms_group *last, ms_status want) {
  static const int32_t token[] = {1, 2, 3, 4}, start[] = {0, 4};
  ms_term term = {.kind = MS_TERM_CE, .on = MS_ON_ALL, .weight = 1, .norm = 6};
  ms_term_result result;
  ms_batch *batch;
  CHECK(ms_batch_new(4, token, 1, start, NULL, NULL, &batch) == MS_OK);
  CHECK(ms_model_learn(m, batch, 1, &term, last, &result) == want);
  ms_batch_free(batch);
}

/* The gradient of m is `factor` times that of `plain`, bit for bit. */
static int is_times(const ms_model *m, const ms_model *plain, float factor) {
  for (size_t i = 0; i < m->gradient_bytes / 4; i++)
    if (m->gradient_arena[i] != factor * plain->gradient_arena[i]) return 0;
  return 1;
}

static void sums_once(int by_learn) {
  ms_model *m = new_model(MS_F32), *plain = new_model(MS_F32);
  ms_optimizer *opt = new_optimizer(m, &pair), *alone = new_optimizer(plain, ms_group_self());
  double norm, half;
  int32_t skipped;
  for (int step = 0; step < 2; step++) {
    sums = 0;
    learn(m, NULL, MS_OK);
    CHECK(!sums);
    learn(m, by_learn ? &pair : NULL, MS_OK);
    learn(plain, NULL, MS_OK);
    learn(plain, NULL, MS_OK);
    CHECK(sums == by_learn && is_times(m, plain, by_learn ? 2 : 1));
    if (by_learn) learn(m, NULL, MS_EINVAL); /* would not be summed */
    CHECK(ms_optimizer_step(opt, 0, &norm, &skipped) == MS_OK);
    CHECK(ms_optimizer_step(alone, 0, &half, &skipped) == MS_OK);
    CHECK(sums == 1 && norm == 2 * half && norm > 0);
  }
  ms_optimizer_free(opt);
  ms_optimizer_free(alone);
  ms_model_free(m);
  ms_model_free(plain);
}

int main(void) {
  int64_t live = ms_test_live();
  if (ms_device_open("cpu", &dev) != MS_OK) return 1;

  TEST("a step waits for the device once, for the norm");
  waits_once(MS_F32);
  waits_once(MS_BF16);

  TEST("gradients are summed once a step: at its last batch, or else by the optimiser");
  sums_once(1);
  sums_once(0);

  TEST("sums and what rank 0 has, as Lua asks for them");
  double x[] = {1, 2};
  int32_t y = 7;
  first = 9;
  CHECK(ms_group_sum(&pair, x, 2) == MS_OK && x[0] == 2 && x[1] == 4);
  CHECK(ms_group_broadcast(&pair, &y, sizeof y, 0) == MS_OK && y == 9);
  CHECK(ms_group_sum(ms_group_self(), x, 2) == MS_OK && x[0] == 2 && x[1] == 4);
  CHECK(ms_group_broadcast(ms_group_self(), &y, sizeof y, 0) == MS_OK && y == 9);
  CHECK(ms_group_rank(&pair) == 1 && ms_group_size(&pair) == 2);
  CHECK(ms_group_rank(ms_group_self()) == 0 && ms_group_size(ms_group_self()) == 1);

  ms_device_close(dev);
  TEST("nothing stays behind");
  CHECK(ms_test_live() == live);
  return test_end();
}

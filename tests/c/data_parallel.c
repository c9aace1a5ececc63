/* data_parallel.c - ranks that learn from different batches. The program starts itself under mpirun with 1
 * to 4 ranks. Each learns its part of what one process alone learns whole, which every rank does as well. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/memory.h"
#include "core/group/group.h"
#include "core/model/gradients.h"
#include "core/train/optimizer.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

static ms_device *dev;
static ms_group *world;

#define SIZES(vocab)                                                                             \
  "\"hidden_size\": 36, \"num_hidden_layers\": 4, \"head_dim\": 4, \"num_attention_heads\": 9, " \
  "\"num_key_value_heads\": 3, \"intermediate_size\": 70, \"vocab_size\": " #vocab
static const char plain[] = "{\"model_type\": \"llama\", " SIZES(701) "}";
static const char tied[] =
    "{\"model_type\": \"qwen2\", \"tie_word_embeddings\": true, " SIZES(333) "}";

enum { STEPS = 5, MICRO = 3 }; /* micro-batches of a rank in a step */

/* How a run is laid out; the numbers may depend on none of it. */
typedef struct layout {
  const char *config, *frozen;
  int dtype, shard;
  int64_t bucket; /* bytes; 0: as many as are enough */
  int late;       /* nothing is summed before the backward pass has ended */
  ms_group *tp;   /* over which the model is cut; NULL: it is whole */
} layout;

typedef struct run {
  ms_model *model;
  ms_optimizer *opt;
} run;

static run new_run(const layout *l, ms_group *group) {
  ms_model_options how = {.dtype = l->dtype, .train = 1, .frozen = l->frozen, .tp = l->tp};
  ms_adamw_options o = {.beta1 = 0.9,
                        .beta2 = 0.99,
                        .eps = 1e-8,
                        .weight_decay = 0.1,
                        .clip = 0.5,
                        .shard = l->shard};
  run r = {0};
  CHECK(ms_model_create(dev, l->config, 3, &how, &r.model) == MS_OK);
  r.model->bucket_bytes = l->bucket;
  if (ms_optimizer_new(r.model, group, &o, &r.opt) != MS_OK) printf("  %s\n", ms_last_error());
  CHECK(r.opt);
  return r;
}

static void free_run(run *r) {
  ms_optimizer_free(r->opt);
  ms_model_free(r->model);
}

/* Learns micro-batch `number`; a rank's last one may have no position that counts. */
static void learn(run *r, int number, ms_group *last) {
  int32_t token[24], start[] = {0, 9, 24};
  float weight[24];
  ms_term term = {.kind = MS_TERM_CE, .on = MS_ON_ALL, .weight = 1, .norm = 50};
  ms_term_result result;
  ms_batch *batch;
  for (int t = 0; t < 24; t++) {
    token[t] = (t * 37 + number * 101 + t * t * number) % 300;
    weight[t] = number % 7 == 5 ? 0 : (float)(1 + (t + number) % 3) / 2;
  }
  CHECK(ms_batch_new(24, token, 2, start, NULL, weight, &batch) == MS_OK);
  if (ms_model_learn(r->model, batch, 1, &term, last, &result) != MS_OK) {
    printf("  %s\n", ms_last_error());
    CHECK(0);
  }
  ms_batch_free(batch);
}

/* What all ranks of a group of `size` learn in a step; alone: by one. */
static void learn_step(run *r, int step, ms_group *group, int late) {
  int first = step * MICRO * world->size;
  if (group->size == 1) {
    for (int k = 0; k < MICRO * world->size; k++) learn(r, first + k, NULL);
    return;
  }
  if (late && !r->model->buckets) CHECK(ms_buckets_make(r->model, group, MS_SHARD_NONE) == MS_OK);
  if (late) r->model->buckets->late = 1;
  for (int k = 0; k < MICRO; k++)
    learn(r, first + world->rank * MICRO + k, k + 1 < MICRO ? NULL : group);
}

/* The largest difference of parts that this rank has the sum of, as a share of the largest number. */
static double gradient_difference(const run *a, const run *b) {
  double worst = 0;
  for (int32_t i = 0; i < a->model->parameters; i++) {
    const ms_parameter *p = &a->model->parameter[i], *q = &b->model->parameter[i];
    double most = 0, apart = 0;
    int64_t from, count;
    if (!p->g) continue;
    ms_optimizer_part(b->opt, q, &from, &count);
    for (int64_t k = 0; k < p->count; k++) most = fmax(most, fabs(p->g[k]));
    for (int64_t k = from; k < from + count; k++) apart = fmax(apart, fabs(p->g[k] - q->g[k]));
    worst = fmax(worst, most > 0 ? apart / most : apart);
  }
  return worst;
}

static int same_weights(const run *a, const run *b) {
  CHECK(ms_weights_settle(a->model) == MS_OK && ms_weights_settle(b->model) == MS_OK);
  for (int32_t i = 0; i < a->model->parameters; i++) {
    const ms_parameter *p = &a->model->parameter[i], *q = &b->model->parameter[i];
    if (memcmp(p->w, q->w, (size_t)p->count * ms_dtype_size(a->model->dtype))) return 0;
  }
  return 1;
}

static double step(run *r, int32_t *skipped) {
  double norm;
  CHECK(ms_optimizer_step(r->opt, 1e-2, &norm, skipped) == MS_OK);
  return norm;
}

/* One process against all ranks, gradients before each step, on the same weights: rounding alone is
 * different, in sums of f32 of as many parts as there are ranks. */
static void is_that_of_one(const layout *l) {
  run one = new_run(l, ms_group_self()), many = new_run(l, world);
  int32_t skipped;
  learn_step(&one, 0, ms_group_self(), 0);
  learn_step(&many, 0, world, l->late);
  CHECK(gradient_difference(&one, &many) <= 1e-5);
  double a = step(&one, &skipped), b = step(&many, &skipped);
  CHECK(a > 0.5 && fabs(a - b) <= 1e-5 * a); /* and is clipped */
  free_run(&one);
  free_run(&many);
}

static run after_steps(const layout *l) {
  run r = new_run(l, world);
  int32_t skipped;
  for (int k = 0; k < STEPS; k++) {
    learn_step(&r, k, world, l->late);
    step(&r, &skipped);
    CHECK(!skipped);
  }
  return r;
}

/* Weights are the same bits however ranks share, cut buckets and overlap. */
static void every_way_is_one(layout l) {
  run first = after_steps(&l);
  for (int shard = MS_SHARD_NONE; shard <= MS_SHARD_OPTIMIZER; shard++)
    for (int late = 0; late < 2; late++)
      for (int64_t bucket = 1; bucket <= 1 << 20; bucket *= 1 << 14) {
        l.shard = shard;
        l.late = late;
        l.bucket = bucket;
        run other = after_steps(&l);
        CHECK(same_weights(&first, &other));
        free_run(&other);
      }
  free_run(&first);
}

/* ---- cut models: two ranks have a model together, and learn from other batches than the other two ---- */

static ms_group *dp, *tp;

static void learn_cut_step(run *r, int step, ms_group *group) {
  int first = step * MICRO * 2;
  for (int k = 0; k < (group->size == 1 ? 2 : 1) * MICRO; k++)
    learn(r, first + (group->size == 1 ? 0 : dp->rank * MICRO) + k,
          group->size > 1 && k + 1 == MICRO ? group : NULL);
}

/* The largest difference of what this rank has the sum of, as a share of the tensor's largest number. */
static double cut_difference(const run *whole, const run *cut) {
  double worst = 0;
  for (int32_t i = 0; i < cut->model->parameters; i++) {
    const ms_parameter *p = &cut->model->parameter[i], *q = &whole->model->parameter[i];
    ms_run of[MS_MAX_RUNS];
    int64_t from, count, width = q->rank == 2 ? q->shape[1] : 1;
    double most = 0;
    if (!p->g) continue;
    ms_optimizer_part(cut->opt, p, &from, &count);
    for (int64_t k = 0; k < q->count; k++) most = fmax(most, fabs(q->g[k]));
    for (int n = ms_share_runs(cut->model, i, of) - 1; n >= 0; n--)
      for (int64_t k = 0; k < of[n].rows * of[n].cols; k++) {
        int64_t row = k / of[n].cols, col = k % of[n].cols;
        int64_t at = ms_run_at(p, &of[n]) + k;
        if (at < from || at >= from + count) continue;
        double apart = fabs(p->g[at] - q->g[(of[n].row + row) * width + of[n].col + col]);
        worst = fmax(worst, most > 0 ? apart / most : apart);
      }
  }
  return worst;
}

/* All ranks of a group, which have the same part, have the same weights. */
static int same_on_all(const run *r, ms_group *g) {
  int same = 1;
  CHECK(ms_weights_settle(r->model) == MS_OK);
  for (int32_t i = 0; i < r->model->parameters; i++) {
    const ms_parameter *p = &r->model->parameter[i];
    int64_t bytes = p->count * (int64_t)ms_dtype_size(r->model->dtype);
    void *first = malloc((size_t)bytes);
    memcpy(first, p->w, (size_t)bytes);
    CHECK(g->ops->broadcast(g, NULL, first, MS_U8, bytes, 0, NULL) == MS_OK);
    same &= !memcmp(first, p->w, (size_t)bytes);
    free(first);
  }
  return same;
}

static void cut_in_two(layout l) {
  layout whole = l;
  int32_t skipped;
  run other[2];
  l.tp = tp;
  for (l.shard = 0; l.shard < 2; l.shard++) {
    run one = new_run(&whole, ms_group_self()), many = new_run(&l, dp);
    learn_cut_step(&one, 0, ms_group_self());
    learn_cut_step(&many, 0, dp);
    CHECK(cut_difference(&one, &many) <= 1e-5);
    double a = step(&one, &skipped), b = step(&many, &skipped);
    CHECK(a > 0.5 && fabs(a - b) <= 1e-5 * a);
    for (int k = 1; k < STEPS; k++) {
      learn_cut_step(&many, k, dp);
      step(&many, &skipped);
    }
    CHECK(same_on_all(&many, dp));
    other[l.shard] = many;
    free_run(&one);
  }
  CHECK(same_weights(&other[0], &other[1]));
  free_run(&other[0]);
  free_run(&other[1]);
}

/* ---- moments ---- */

/* Moments are those of one that has them all, whoever has which part. */
static void moments(layout l) {
  l.shard = MS_SHARD_NONE;
  run whole = after_steps(&l);
  l.shard = MS_SHARD_OPTIMIZER;
  run part = after_steps(&l);
  for (int32_t i = 0; i < whole.model->parameters; i++)
    for (int second = 0; second < 2; second++) {
      const ms_parameter *p = &whole.model->parameter[i];
      ms_tensor *a, *b;
      if (!p->g) continue;
      CHECK(ms_optimizer_moment(whole.opt, i, second, &a) == MS_OK);
      CHECK(ms_optimizer_moment(part.opt, i, second, &b) == MS_OK);
      int same = 1;
      for (int64_t k = 0; k < p->count; k++) same &= ((float *)a->data)[k] == ((float *)b->data)[k];
      CHECK(same);
      ms_tensor_free(a);
      ms_tensor_free(b);
    }
  free_run(&whole);
  free_run(&part);
}

/* The optimiser's memory is divided: all parts together are it once, and as equal as whole blocks of
 * squares let them be. */
static void is_divided(layout l) {
  run whole = new_run(&l, world);
  l.shard = MS_SHARD_OPTIMIZER;
  run part = new_run(&l, world);
  double bytes = (double)ms_optimizer_bytes(part.opt), all = bytes;
  CHECK(ms_group_sum(world, &all, 1) == MS_OK);
  CHECK(all == (double)ms_optimizer_bytes(whole.opt));
  int64_t arenas = whole.opt->master ? 3 : 2, buckets = part.model->buckets->n;
  double block = (double)(MS_SQUARES_BLOCK * arenas) * sizeof(float);
  CHECK(bytes <= all / world->size + block * (double)buckets);
  free_run(&whole);
  free_run(&part);
}

/* Bytes sent by all ranks in calls of a kind. */
static int64_t sent(int kind, int dtype) {
  int64_t bytes = ms_group_sent(world, kind, dtype);
  CHECK(world->ops->all_reduce(world, NULL, &bytes, MS_I64, 1, MS_SUM, NULL) == MS_OK);
  return bytes;
}

/* Messages of a step are those of the formulas: n gradients on N ranks, blocks of squares. */
static void sends_by_formula(layout l, int shard) {
  l.shard = shard;
  run r = new_run(&l, world);
  int64_t formula[3], before[4], after[4], N = world->size, blocks = r.opt->blocks;
  int64_t n = (int64_t)(r.model->gradient_bytes / sizeof(float));
  const int kind[][2] = {{MS_CALL_ALL_REDUCE, MS_F32},
                         {MS_CALL_REDUCE_SCATTER, MS_F32},
                         {MS_CALL_ALL_GATHER, l.dtype},
                         {MS_CALL_ALL_REDUCE, MS_F64}};
  int32_t skipped;
  for (int i = 0; i < 4; i++) before[i] = sent(kind[i][0], kind[i][1]);
  learn_step(&r, 0, world, 0);
  step(&r, &skipped);
  for (int i = 0; i < 4; i++) after[i] = sent(kind[i][0], kind[i][1]) - before[i];
  int divided = shard == MS_SHARD_OPTIMIZER;
  CHECK(after[0] == (divided ? 0 : 2 * n * (N - 1) * 4));
  CHECK(after[1] == (divided ? n * (N - 1) * 4 : 0));
  CHECK(after[2] == (divided ? n * (N - 1) * (int64_t)ms_dtype_size(l.dtype) : 0));
  CHECK(after[3] == (divided ? 2 * blocks * (N - 1) * 8 : 0));
  ms_optimizer_sends(r.opt, formula);
  CHECK(formula[0] == after[0] + after[1] && formula[1] == after[2] && formula[2] == after[3]);
  free_run(&r);
}

/* A gradient that is not finite on one rank is skipped by all. */
static void skips_together(layout l, int shard) {
  l.shard = shard;
  run r = new_run(&l, world), untouched = new_run(&l, world);
  int32_t skipped;
  for (int k = 0; k < MICRO; k++) {
    if (k + 1 == MICRO && world->rank == world->size - 1) r.model->gradient_arena[77] = INFINITY;
    learn(&r, world->rank * MICRO + k, k + 1 < MICRO ? NULL : world);
  }
  step(&r, &skipped);
  CHECK(skipped && same_weights(&r, &untouched));
  free_run(&r);
  free_run(&untouched);
}

/* ---- learning that fails ---- */

static void learn_bad_term(run *r) {
  int32_t token[2] = {1, 2}, start[] = {0, 2};
  ms_term term = {.kind = MS_TERM_CE, .on = 7, .weight = 1, .norm = 50};
  ms_term_result result;
  ms_batch *batch;
  CHECK(ms_batch_new(2, token, 1, start, NULL, NULL, &batch) == MS_OK);
  CHECK(ms_model_learn(r->model, batch, 1, &term, world, &result) == MS_EINVAL);
  ms_batch_free(batch);
}

/* Two more steps of each come out the same. */
static void go_on_alike(run *r, run *other) {
  int32_t skipped;
  for (int k = 0; k < 2; k++) {
    learn_step(r, k, world, 0);
    step(r, &skipped);
    learn_step(other, k, world, 0);
    step(other, &skipped);
  }
  CHECK(same_weights(r, other));
}

/* What was refused before anything was summed has left nothing behind. */
static void is_refused_in_time(layout l) {
  l.bucket = 1;
  run r = new_run(&l, world), other = new_run(&l, world);
  learn_bad_term(&r);
  go_on_alike(&r, &other);
  free_run(&r);
  free_run(&other);
}

static ms_status fail_embed(ms_stream *s, float *dw, ms_act dy, const int32_t *token,
                            int64_t tokens, int64_t width, int64_t first, int64_t vocab,
                            float scale) {
  return MS_FAIL(MS_EDEVICE, "embed_dw: no");
}

static int is_summed(const ms_model *m) {
  for (int32_t k = 0; k < m->buckets->n; k++)
    if (m->buckets->bucket[k].work) return 1;
  return 0;
}

/* Once sums have begun nothing may be added or summed again, nor may memory that ranks send be written. */
static void fails_midway(layout l) {
  const ms_ops *own = dev->ops;
  ms_ops failing = *own;
  int32_t token[24] = {0}, start[] = {0, 24}, skipped;
  double norm;
  ms_term term = {.kind = MS_TERM_CE, .on = MS_ON_ALL, .weight = 1, .norm = 50};
  ms_term_result result;
  ms_batch *batch;
  l.bucket = 1;
  run r = new_run(&l, world), other = new_run(&l, world);
  CHECK(ms_batch_new(24, token, 1, start, NULL, NULL, &batch) == MS_OK);
  failing.embed_dw = fail_embed;
  dev->ops = &failing;
  CHECK(ms_model_learn(r.model, batch, 1, &term, world, &result) == MS_EDEVICE);
  dev->ops = own;
  CHECK(ms_model_learn(r.model, batch, 1, &term, NULL, &result) == MS_EINVAL);
  CHECK(strstr(ms_last_error(), "learning failed"));
  CHECK(ms_optimizer_step(r.opt, 0.1, &norm, &skipped) == MS_EINVAL);
  if (is_summed(r.model)) {
    int64_t live = ms_test_live();
    CHECK(ms_model_zero_gradients(r.model) == MS_EGROUP);
    if (!r.model->buckets->users)
      CHECK(ms_buckets_make(r.model, ms_group_self(), MS_SHARD_NONE) == MS_EGROUP);
    CHECK(ms_test_live() == live);
  }
  if (world->size > 1) /* all ranks do, so nothing is under way */
    CHECK(ms_gradients_finish(r.model) == MS_OK);
  CHECK(ms_model_zero_gradients(r.model) == MS_OK);
  go_on_alike(&r, &other);
  ms_batch_free(batch);
  free_run(&r);
  free_run(&other);
}

/* A checkpoint is the same file whoever has which part, and is read by every layout. */
static void checkpoints(layout l) {
  char *state = NULL;
  int32_t skipped;
  l.shard = MS_SHARD_NONE;
  run whole = after_steps(&l), other = new_run(&l, world);
  l.shard = MS_SHARD_OPTIMIZER;
  run part = after_steps(&l), read = new_run(&l, world);
  CHECK(ms_checkpoint_write("parallel.tmp/whole/step-1", whole.model, whole.opt, "{}") == MS_OK);
  CHECK(ms_checkpoint_write("parallel.tmp/part/step-1", part.model, part.opt, "{}") == MS_OK);
  if (!world->rank)
    CHECK(
        !system("cmp parallel.tmp/whole/step-1/optimizer.safetensors "
                "parallel.tmp/part/step-1/optimizer.safetensors && "
                "cmp parallel.tmp/whole/step-1/model.safetensors "
                "parallel.tmp/part/step-1/model.safetensors"));
  CHECK(ms_checkpoint_read("parallel.tmp/whole/step-1", read.model, read.opt, &state) == MS_OK);
  ms_text_free(state);
  CHECK(ms_checkpoint_read("parallel.tmp/part/step-1", other.model, other.opt, &state) == MS_OK);
  ms_text_free(state);
  run *all[] = {&whole, &other, &part, &read};
  for (int i = 0; i < 4; i++) {
    learn_step(all[i], STEPS, world, 0);
    step(all[i], &skipped);
    CHECK(same_weights(&whole, all[i]));
  }
  CHECK(world->ops->barrier(world) == MS_OK);
  for (int i = 0; i < 4; i++) free_run(all[i]);
}

/* Two optimisers of one model may not share it out each in its own way. */
static void one_sharer(layout l) {
  ms_adamw_options o = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
  ms_optimizer *second = NULL;
  double norm;
  int32_t skipped;
  l.shard = MS_SHARD_OPTIMIZER;
  run r = new_run(&l, world);
  CHECK(ms_optimizer_new(r.model, world, &o, &second) == MS_OK);
  CHECK(ms_optimizer_step(second, 0.1, &norm, &skipped) == MS_EINVAL);
  CHECK(strstr(ms_last_error(), "another one of this model has shared it out"));
  ms_optimizer_free(second);
  o.shard = MS_SHARD_PARAMETERS;
  CHECK(ms_optimizer_new(r.model, world, &o, &second) == MS_EUNSUPPORTED && !second);
  free_run(&r);
}

static int all(void) {
  if (world->size == 4) {
    CHECK(world->ops->split(world, world->rank / 2, 0, &tp) == MS_OK);
    CHECK(world->ops->split(world, world->rank % 2, 0, &dp) == MS_OK);
  }
  const layout layouts[] = {{plain, NULL, MS_F32, 0, 0, 0, NULL},
                            {tied, NULL, MS_F32, 0, 0, 0, NULL},
                            {plain, NULL, MS_BF16, 0, 0, 0, NULL},
                            {plain, "model.layers.1.* model.embed*", MS_F32, 0, 0, 0, NULL},
                            {tied, "*norm* model.layers.3.*", MS_BF16, 0, 0, 0, NULL}};
  for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
    layout l = layouts[i];
    TEST("gradients and their norm are those of one process");
    for (l.shard = 0; l.shard < 2; l.shard++) is_that_of_one(&l);
    TEST("weights are the same bits however ranks share, cut and overlap");
    every_way_is_one(layouts[i]);
    TEST("the optimizer's memory exists once");
    is_divided(layouts[i]);
    TEST("moments are those of an optimizer that has them all");
    moments(layouts[i]);
    TEST("gradients of a cut model are summed over its ranks and over batches");
    if (tp) cut_in_two(layouts[i]);
    TEST("bytes sent are those of the formulas");
    sends_by_formula(layouts[i], MS_SHARD_NONE);
    sends_by_formula(layouts[i], MS_SHARD_OPTIMIZER);
    TEST("a gradient that is not finite anywhere is skipped everywhere");
    skips_together(layouts[i], MS_SHARD_NONE);
    skips_together(layouts[i], MS_SHARD_OPTIMIZER);
    TEST("a batch that is refused leaves nothing behind");
    is_refused_in_time(layouts[i]);
    TEST("checkpoints are the same, and are read by the other layout");
    checkpoints(layouts[i]);
  }
  TEST("a model is shared out in one way");
  one_sharer(layouts[0]);
  TEST("a batch that fails while gradients are summed spoils none");
  for (int shard = 0; shard < 2; shard++) {
    layout l = layouts[0];
    l.shard = shard;
    fails_midway(l);
  }
  return test_end();
}

static int launch(const char *program) {
  if (!test_has_mpirun()) {
    printf("skipped 1: no mpirun here\n0 passed, 0 failed, 1 skipped\n");
    return 0;
  }
  char folder[] = "/tmp/parallel.XXXXXX", self[4096], command[4200];
  if (!realpath(program, self) || !mkdtemp(folder) || chdir(folder)) return 1;
  for (int ranks = 1; ranks <= 4; ranks++) {
    char name[64];
    snprintf(name, sizeof name, "%d ranks", ranks);
    TEST(name);
    CHECK(!test_ranks(self, ranks, "", "MS_GROUP_CHECK=1", NULL));
  }
  snprintf(command, sizeof command, "rm -rf '%s'", folder);
  if (chdir("/") || system(command)) return 1;
  return test_end();
}

int main(int argc, char **argv) {
  (void)argc;
  if (!test_is_rank()) return launch(argv[0]);
  if (ms_group_world(&world) != MS_OK || ms_device_open("cpu", &dev) != MS_OK) {
    printf("%s\n", ms_last_error());
    return 1;
  }
  int status = all();
  ms_device_close(dev);
  return status;
}

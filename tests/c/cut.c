/* cut.c - passes of models cut over 1 to 4 ranks against the whole model, which every rank has as well. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/group/group.h"
#include "core/model/gradients.h"
#include "core/model/model.h"
#include "kernels/objective.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

static ms_device *dev;
static ms_group *world;

#define SIZES(heads, kv, inner, vocab)                                 \
  "\"initializer_range\": 0.2, "                                       \
  "\"hidden_size\": 36, \"num_hidden_layers\": 3, \"head_dim\": 4, "   \
  "\"num_attention_heads\": " #heads ", \"num_key_value_heads\": " #kv \
  ", \"intermediate_size\": " #inner ", \"vocab_size\": " #vocab
static const char *const configs[] = {
    "{\"model_type\": \"llama\", " SIZES(9, 3, 50, 101) "}",
    "{\"model_type\": \"llama\", \"attention_bias\": true, \"mlp_bias\": true, "
    "\"tie_word_embeddings\": true, " SIZES(6, 1, 7, 300) "}",
    "{\"model_type\": \"phi3\", \"pad_token_id\": 0, " SIZES(9, 3, 31, 40) "}",
    "{\"model_type\": \"qwen2\", " SIZES(8, 4, 200, 97) "}",
    "{\"model_type\": \"qwen3\", " SIZES(9, 3, 64, 97) "}",
    "{\"model_type\": \"olmo2\", " SIZES(9, 3, 129, 77) "}",
    "{\"model_type\": \"gemma2\", " SIZES(4, 2, 48, 64) "}",
    "{\"model_type\": \"granite\", \"residual_multiplier\": 0.3, " SIZES(9, 3, 48, 64) "}",
};
enum { CONFIGS = sizeof configs / sizeof *configs };

static ms_model *created(const char *config, uint64_t seed, ms_group *tp, int recompute,
                         const char *frozen, int64_t vocab_cut) {
  ms_model_options o = {.dtype = MS_F32,
                        .tp = tp,
                        .train = 1,
                        .recompute = recompute,
                        .frozen = frozen,
                        .vocab_cut = vocab_cut};
  ms_model *m = NULL;
  if (ms_model_create(dev, config, seed, &o, &m) != MS_OK) printf("  %s\n", ms_last_error());
  CHECK(m);
  /* norms and biases that are not 1 and 0: by their place in the whole tensor */
  for (int32_t i = 0; m && i < m->parameters; i++) {
    ms_parameter *p = &m->parameter[i];
    ms_run run[MS_MAX_RUNS];
    if (p->rank != 1) continue;
    int n = ms_share_runs(m, i, run);
    for (int k = 0; k < n; k++)
      for (int64_t r = 0; r < run[k].rows; r++)
        ((float *)p->w)[run[k].held + r] +=
            0.1f * (float)sin(1.0 + (double)(run[k].row + r) * 1.7 + i);
  }
  return m;
}

static ms_batch *batch_of(int kind, int vocab) {
  int32_t token[40], start[] = {0, 13, 14, 40};
  float weight[40], response[40];
  ms_batch *b = NULL;
  int n = kind == 3 ? 2 : 40;
  for (int t = 0; t < 40; t++) {
    token[t] = (t * 37 + t * t * 5) % vocab;
    weight[t] = kind == 1 ? (float)(t >= 30) : kind == 2 ? 0 : (float)(t % 3) / 2;
    response[t] = kind == 2 ? 0 : (float)(t % 2);
  }
  weight[0] = kind == 3;
  if (kind == 3) start[1] = 2;
  CHECK(ms_batch_new(n, token, kind == 3 ? 1 : 3, start, response, weight, &b) == MS_OK);
  return b;
}

static double worst_gradient(const ms_model *whole, const ms_model *part, const char **name) {
  double worst = 0;
  for (int32_t i = 0; i < part->parameters; i++) {
    const ms_parameter *p = &part->parameter[i], *q = &whole->parameter[i];
    int64_t cols = p->rank == 2 ? p->shape[1] : 1, width = p->rank == 2 ? p->whole[1] : 1;
    double most = 0, apart = 0;
    if (!!p->g != !!q->g) return NAN;
    if (!p->g) continue;
    for (int64_t k = 0; k < q->count; k++) most = fmax(most, fabs(q->g[k]));
    ms_run run[MS_MAX_RUNS];
    int n = ms_share_runs(part, i, run);
    for (int k = 0; k < n; k++)
      for (int64_t r = 0; r < run[k].rows; r++)
        for (int64_t c = 0; c < cols; c++) {
          double d = fabs(p->g[(run[k].held + r) * cols + c] -
                          q->g[(run[k].row + r) * width + run[k].col + c]);
          if (!(d <= apart)) apart = d;
        }
    double share = most > 0 ? apart / most : apart;
    if (!(share <= worst)) worst = share, *name = p->name;
  }
  return worst;
}

typedef struct answer {
  ms_term_result result[2];
  ms_segment_result part[6];
} answer;

static ms_target_options target_options(int kind, int64_t vocab) {
  return (ms_target_options){.kind = kind,
                             .k = kind == MS_TARGET_TOPK ? 9 : 0,
                             .on = MS_ON_RESPONSE,
                             .hidden_dtype = MS_F32,
                             .vocab = vocab,
                             .temperature = 1,
                             .teacher_temperature = 1};
}

static void learn(ms_model *m, ms_model *teacher, const ms_batch *b, int kind, int64_t vocab,
                  answer *a) {
  ms_target_options o = target_options(kind, vocab);
  ms_target *t = NULL;
  ms_status st = ms_model_target(teacher, b, &o, &t);
  if (st != MS_OK) printf("  target: %s\n", ms_last_error());
  ms_term term[2] = {{.kind = MS_TERM_CE, .on = MS_ON_ALL, .weight = 0.5, .t_scale = NAN},
                     {.kind = MS_TERM_KD,
                      .objective = MS_OBJECTIVE_js,
                      .on = MS_ON_RESPONSE,
                      .target = t,
                      .weight = 1,
                      .parameter = NAN,
                      .temperature = NAN,
                      .t_scale = NAN}};
  memset(a, 0, sizeof *a);
  if (st == MS_OK) st = ms_model_evaluate_parts(m, b, 2, term, a->result, a->part);
  if (st == MS_OK) st = ms_model_learn(m, b, 2, term, NULL, a->result);
  if (st != MS_OK) printf("  %s\n", ms_last_error());
  CHECK(st == MS_OK);
  ms_target_free(t);
}

static void same_learning(const char *config, const char *teacher_config, int recompute,
                          const char *frozen, int64_t vocab) {
  static const char *const kinds[] = {"topk", "hidden", "logits"};
  ms_model *whole = created(config, 5, NULL, recompute, frozen, 0);
  ms_model *part = created(config, 5, world, recompute, frozen, 0);
  ms_model *t_whole = created(teacher_config, 9, NULL, 0, NULL, 0);
  ms_model *t_part = created(teacher_config, 9, world, 0, NULL, whole->config.vocab);
  for (int k = 0; k < 4; k++)
    for (int kind = MS_TARGET_TOPK; kind <= MS_TARGET_LOGITS; kind++)
      for (int cut = 0; cut < 2; cut++) {
        answer want, got;
        const char *name = "";
        ms_batch *b = batch_of(k, (int)vocab);
        CHECK(ms_model_zero_gradients(whole) == MS_OK && ms_model_zero_gradients(part) == MS_OK);
        learn(whole, t_whole, b, kind, vocab, &want);
        learn(part, cut ? t_part : t_whole, b, kind, vocab, &got);
        CHECK(ms_model_sum_gradients(part, ms_group_self()) == MS_OK);
        double worst = worst_gradient(whole, part, &name);
        double apart = 0;
        for (int i = 0; i < 2; i++)
          apart = fmax(apart, fabs(want.result[i].value - got.result[i].value) /
                                  fmax(1, fabs(want.result[i].value)));
        for (int i = 0; i < 6; i++)
          apart = fmax(apart, fabs(want.part[i].value - got.part[i].value) /
                                  fmax(1, fabs(want.part[i].value)));
        if (!(worst <= 1e-5 && apart <= 1e-6))
          printf("  rank %d of %d: %.20s batch %d %s cut %d: loss %g, gradient %g of %s\n",
                 world->rank, world->size, config + 16, k, kinds[kind], cut, apart, worst, name);
        CHECK(worst <= 1e-5 && apart <= 1e-6);
        if (getenv("CUT_SAY") && !world->rank) printf("%g %g\n", apart, worst);
        ms_batch_free(b);
      }
  ms_model_free(whole);
  ms_model_free(part);
  ms_model_free(t_whole);
  ms_model_free(t_part);
}

static void same_logits(const char *config) {
  ms_model *whole = created(config, 5, NULL, 0, NULL, 0),
           *part = created(config, 5, world, 0, NULL, 0);
  static float a[40 * 400], b[40 * 400];
  static const int32_t rows[] = {3, 3, 39, 0, 12, 13, 14, 38, 2};
  ms_batch *batch = batch_of(0, 40);
  int64_t vocab = whole->config.vocab;
  CHECK(ms_model_logits(whole, batch, 9, rows, a) == MS_OK);
  CHECK(ms_model_logits(part, batch, 9, rows, b) == MS_OK);
  double most = 0, apart = 0;
  for (int64_t i = 0; i < 9 * vocab; i++)
    most = fmax(most, fabs(a[i])), apart = fmax(apart, fabs(a[i] - b[i]));
  CHECK(apart <= 1e-5 * most);
  ms_batch_free(batch);
  ms_generate_options o = {.max_new = 12, .top_p = 1};
  int32_t token[20], start[] = {0, 5, 6, 20}, x[3], y[3], live = 1, live2;
  for (int t = 0; t < 20; t++) token[t] = (t * 7) % 40;
  ms_generator *g = NULL, *h = NULL;
  CHECK(ms_generator_new(whole, 3, token, start, &o, &g) == MS_OK);
  CHECK(ms_generator_new(part, 3, token, start, &o, &h) == MS_OK);
  while (live) {
    CHECK(ms_generator_next(g, x, &live) == MS_OK && ms_generator_next(h, y, &live2) == MS_OK);
    CHECK(!memcmp(x, y, sizeof x) && live == live2);
  }
  ms_generator_free(g);
  ms_generator_free(h);
  ms_model_free(whole);
  ms_model_free(part);
}

static void long_rows(void) { /* more than one part of the MLP's rows */
  enum { N = 5003 };
  static int32_t token[N], start[] = {0, 1000, N};
  static float weight[N];
  for (int t = 0; t < N; t++) token[t] = t * 31 % 97, weight[t] = (float)(t > 400);
  ms_batch *b = NULL;
  CHECK(ms_batch_new(N, token, 2, start, weight, weight, &b) == MS_OK);
  for (int recompute = 0; recompute < 2; recompute++) {
    const char *name = "",
               *config =
                   "{\"model_type\": \"qwen2\", \"hidden_size\": 8, \"num_hidden_layers\": 2, "
                   "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
                   "\"intermediate_size\": 24, \"vocab_size\": 97}";
    ms_model *whole = created(config, 5, NULL, recompute, NULL, 0);
    ms_model *part = created(config, 5, world, recompute, NULL, 0);
    answer want, got;
    learn(whole, whole, b, MS_TARGET_TOPK, 97, &want);
    learn(part, part, b, MS_TARGET_TOPK, 97, &got);
    CHECK(ms_model_sum_gradients(part, ms_group_self()) == MS_OK);
    double worst = worst_gradient(whole, part, &name);
    if (!(worst <= 1e-5))
      printf("  rank %d of %d: long: %g of %s\n", world->rank, world->size, worst, name);
    CHECK(worst <= 1e-5);
    ms_model_free(whole);
    ms_model_free(part);
  }
  ms_batch_free(b);
}

/* What goes wrong on one rank is an error on all. */
static void fails_together(void) {
  ms_model *m = created(configs[0], 5, world, 0, NULL, 0);
  ms_batch *b = batch_of(world->rank ? 1 : 0, 40), *same = batch_of(0, 40);
  ms_term term = {.kind = MS_TERM_CE, .on = MS_ON_ALL, .weight = 1, .t_scale = NAN};
  ms_term_result result;
  CHECK(ms_model_learn(m, b, 1, &term, NULL, &result) == (world->size > 1 ? MS_EINVAL : MS_OK));
  if (world->size > 1) CHECK(strstr(ms_last_error(), "were given different ones"));
  int last = world->rank == world->size - 1;
  ms_status failed = last ? MS_ENOMEM : MS_EGROUP;
  ms_target_options o = target_options(MS_TARGET_LOGITS, 101);
  ms_target *t = NULL;
  ms_test_fail_alloc(last); /* the first request: rows */
  CHECK(ms_model_learn(m, same, 1, &term, NULL, &result) == failed);
  ms_test_fail_alloc(last);
  CHECK(ms_model_target(m, same, &o, &t) == failed && !t);
  ms_test_fail_alloc(0);
  CHECK(ms_model_target(m, same, &o, &t) == MS_OK && t);
  ms_target_free(t);
  if (last) ((float *)m->head.w)[0] = NAN;
  CHECK(ms_model_target(m, same, &o, &t) == (last ? MS_EINVAL : MS_EGROUP) && !t);
  CHECK(strstr(ms_last_error(), "gives logits that are not finite at position"));
  ms_batch_free(b);
  ms_batch_free(same);
  ms_model_free(m);
}

static int all(void) {
  TEST("what goes wrong on one rank is an error on all");
  fails_together();

  for (int i = 0; i < CONFIGS; i++) {
    TEST(configs[i]);
    if (world->size > 4 && i == 6) continue;
    same_logits(configs[i]);
    for (int recompute = 0; recompute < 2; recompute++)
      same_learning(configs[i], configs[(i + 1) % CONFIGS], recompute, NULL, 40);
    same_learning(configs[i], configs[i], 0, "model.layers.0.* model.embed*", 40);
    same_learning(configs[i], configs[i], 1, "model.layers.1.* *norm*", 40);
    same_learning(configs[i], configs[i], 1, "model.layers.* model.embed*", 40);
  }
  TEST("rows in several parts");
  long_rows();
  return test_end();
}

int main(int argc, char **argv) {
  (void)argc;
  if (!test_is_rank()) {
    for (int ranks = 1; ranks <= 4 && test_has_mpirun(); ranks++) {
      char name[64];
      snprintf(name, sizeof name, "%d ranks", ranks);
      TEST(name);
      CHECK(!test_ranks(argv[0], ranks, "", "MS_GROUP_CHECK=1", NULL));
    }
    return test_end();
  }
  if (ms_group_world(&world) != MS_OK || ms_device_open("cpu", &dev) != MS_OK) {
    printf("%s\n", ms_last_error());
    return 1;
  }
  int status = all();
  ms_device_close(dev);
  return status;
}

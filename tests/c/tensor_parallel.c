/* tensor_parallel.c - a model cut over ranks makes what the whole one makes: logits, losses, every gradient,
 * and what follows from them in five steps. The program starts itself under mpirun; every rank has the whole
 * model as well, and does alone what all do together. Written from DESIGN sections 4 and 7. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/group/group.h"
#include "core/model/batch.h"
#include "core/model/gradients.h"
#include "core/model/model.h"
#include "core/train/optimizer.h"
#include "kernels/head.h"
#include "kernels/objective.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

static ms_device *dev;
static ms_group *world, *tp, *dp; /* tp varies fastest */

/* ---- models ---- */

#define SIZES(heads, kv, inner, vocab)                                                  \
  "\"initializer_range\": 0.2, \"hidden_size\": 36, \"num_hidden_layers\": 3, "         \
  "\"head_dim\": 8, \"num_attention_heads\": " #heads ", \"num_key_value_heads\": " #kv \
  ", \"intermediate_size\": " #inner ", \"vocab_size\": " #vocab

/* Every family and every flag. Heads, widths and vocabularies that 2, 3 or 4 do not divide; borders inside
 * groups of heads, also of one that four ranks share; more ids than are cut in whole sixteens. */
static const char *const configs[] = {
    "{\"model_type\": \"llama\", " SIZES(9, 3, 50, 101) "}",
    "{\"model_type\": \"llama\", \"attention_bias\": true, \"mlp_bias\": true, "
    "\"tie_word_embeddings\": true, " SIZES(6, 1, 7, 300) "}",
    "{\"model_type\": \"mistral\", \"sliding_window\": 5, " SIZES(8, 2, 33, 67) "}",
    "{\"model_type\": \"qwen2\", \"use_sliding_window\": true, \"sliding_window\": 6, "
    "\"max_window_layers\": 1, " SIZES(8, 4, 200, 97) "}",
    "{\"model_type\": \"qwen3\", \"tie_word_embeddings\": true, " SIZES(7, 7, 64, 93) "}",
    "{\"model_type\": \"qwen3\", \"attention_bias\": true, " SIZES(9, 3, 30, 80) "}",
    "{\"model_type\": \"phi3\", \"pad_token_id\": 0, \"partial_rotary_factor\": 0.5, " SIZES(
        9, 3, 31, 71) "}",
    "{\"model_type\": \"gemma\", " SIZES(4, 1, 45, 90) "}",
    "{\"model_type\": \"gemma2\", \"sliding_window\": 7, \"attn_logit_softcapping\": 2.0, "
    "\"final_logit_softcapping\": 3.0, " SIZES(6, 2, 48, 64) "}",
    "{\"model_type\": \"olmo2\", " SIZES(9, 3, 129, 77) "}",
    "{\"model_type\": \"olmo2\", \"attention_bias\": true, " SIZES(8, 2, 64, 66) "}",
    "{\"model_type\": \"granite\", \"embedding_multiplier\": 3.0, \"residual_multiplier\": 0.3, "
    "\"attention_multiplier\": 0.4, \"logits_scaling\": 2.0, \"mlp_bias\": true, " SIZES(5, 5, 40,
                                                                                         70) "}",
};
enum { CONFIGS = sizeof configs / sizeof *configs, PLAIN = 0, QK_WHOLE = 9, GRANITE = 11 };
enum { SHARED = 60 }; /* ids below are in all vocabularies, and V_s of every term */

/* Norms and biases are drawn as ones and zeros, with which much would go unseen: here by their place in the
 * whole tensor. */
static void unsettle(ms_model *m) {
  for (int32_t i = 0; i < m->parameters; i++) {
    const ms_parameter *p = &m->parameter[i];
    ms_run run[MS_MAX_RUNS];
    if (p->rank != 1) continue;
    int n = ms_share_runs(m, i, run);
    for (int k = 0; k < n; k++)
      for (int64_t r = 0; r < run[k].rows; r++)
        ((float *)p->w)[run[k].held + r] += 0.2f * (float)sin((double)((run[k].row + r) * 7 + i));
  }
}

/* How a model is held. */
typedef struct holding {
  const char *config, *frozen;
  uint64_t seed;
  int recompute;
} holding;

static ms_model *created(const holding *h, ms_group *group, int64_t vocab_cut) {
  ms_model_options o = {.dtype = MS_F32,
                        .train = 1,
                        .recompute = h->recompute,
                        .frozen = h->frozen,
                        .tp = group,
                        .vocab_cut = vocab_cut};
  ms_model *m = NULL;
  if (ms_model_create(dev, h->config, h->seed, &o, &m) != MS_OK) {
    printf("  %s\n", ms_last_error());
    exit(1);
  }
  unsettle(m);
  return m;
}

/* Student and teacher, cut or whole. */
typedef struct side {
  ms_model *student, *teacher;
} side;

static side new_side(const holding *student, const char *teacher, ms_group *group) {
  holding other = {.config = teacher, .seed = 11};
  side s = {.student = created(student, group, 0)};
  s.teacher = created(&other, group, group ? s.student->config.vocab : 0);
  return s;
}

static void free_side(side *s) {
  ms_model_free(s->student);
  ms_model_free(s->teacher);
}

/* ---- batches ---- */

/* Where supervised rows are. Ranks have tokens in equal runs: all rows may be one rank's, others may have
 * none, or no token. */
enum { SPREAD, LAST_RANK, FIRST_RANK, ONE_ROW, TWO_TOKENS, NOTHING, ONE_TOKEN, BATCHES };
enum { TOKENS = 40, SEGMENTS = 3 };

static int is_supervised(int kind, int t) {
  switch (kind) {
    case SPREAD: return t % 5 != 2;
    case LAST_RANK: return t >= 31;
    case FIRST_RANK: return t < 9;
    case ONE_ROW: return t == 26;
    default: return kind == TWO_TOKENS;
  }
}

static ms_batch *new_batch(int kind, int seed) {
  const int32_t start[] = {0, 13, 14, TOKENS}, two[] = {0, 2}, one[] = {0, 1};
  const int32_t *starts = kind == TWO_TOKENS ? two : kind == ONE_TOKEN ? one : start;
  int small = kind == TWO_TOKENS || kind == ONE_TOKEN;
  int32_t token[TOKENS];
  float response[TOKENS], all[TOKENS];
  ms_batch *b = NULL;
  for (int t = 0; t < TOKENS; t++) {
    token[t] = (t * 37 + t * t * 5 + seed * 17) % SHARED;
    all[t] = is_supervised(kind, t) ? (float)(1 + t % 3) / 2 : 0;
    response[t] = t % 2 && kind != ONE_ROW && !small ? 0 : all[t];
  }
  CHECK(ms_batch_new(small ? starts[1] : TOKENS, token, small ? 1 : SEGMENTS, starts, response, all,
                     &b) == MS_OK);
  return b;
}

/* ---- what is learnt ---- */

/* A CE term on all positions, a KD term on the response. */
enum { TERMS = 2 };
typedef struct problem {
  int batch, target, objective, tail;
  double temperature;
} problem;

/* What one batch gives. */
typedef struct answer {
  ms_term_result result[TERMS];
  ms_segment_result part[SEGMENTS * TERMS];
} answer;

static ms_target *target_of(const side *s, const ms_batch *b, const problem *p) {
  ms_target_options o = {.kind = p->target,
                         .k = p->target == MS_TARGET_TOPK ? 9 : 0,
                         .on = MS_ON_RESPONSE,
                         .hidden_dtype = MS_F32,
                         .vocab = SHARED,
                         .temperature = p->temperature,
                         .teacher_temperature = 1.25};
  ms_target *t = NULL;
  if (ms_model_target(s->teacher, b, &o, &t) != MS_OK) printf("  %s\n", ms_last_error());
  CHECK(t);
  return t;
}

/* Learns a batch; norm: of all batches of the step. Forward, backward, and evaluation, which must say the
 * same. */
static void learn_one(const side *s, const ms_batch *b, const problem *p, const double norm[2],
                      ms_group *last, answer *a) {
  ms_target *target = target_of(s, b, p);
  ms_term_result again[TERMS];
  ms_term term[TERMS] = {
      {.kind = MS_TERM_CE, .on = MS_ON_ALL, .weight = 0.5, .t_scale = NAN, .norm = norm[MS_ON_ALL]},
      {.kind = MS_TERM_KD,
       .objective = p->objective,
       .tail = p->tail,
       .on = MS_ON_RESPONSE,
       .target = target,
       .weight = 1,
       .parameter = NAN,
       .temperature = NAN,
       .t_scale = NAN,
       .norm = norm[MS_ON_RESPONSE]}};
  memset(a, 0, sizeof *a);
  ms_status st = ms_model_evaluate_parts(s->student, b, TERMS, term, again, a->part);
  if (st == MS_OK) st = ms_model_learn(s->student, b, TERMS, term, last, a->result);
  if (st != MS_OK) printf("  %s\n", ms_last_error());
  CHECK(st == MS_OK && !memcmp(again, a->result, sizeof again));
  ms_target_free(target);
}

/* A step has two batches for each rank of dp: one of the problem's kind, or the next ones, and before it one
 * that has rows everywhere, since what few rows give a small tensor is a difference of larger terms, whose
 * rounding would be all that is compared. */
enum { MICRO = 2 };
static ms_batch *batch_of(const problem *p, int seed, int r, int micro) {
  return new_batch(micro ? (p->batch + r) % BATCHES : SPREAD, seed + r * MICRO + micro);
}

static void norms_of(const problem *p, int seed, double norm[2]) {
  norm[0] = norm[1] = 0;
  for (int i = 0; i < dp->size * MICRO; i++) {
    ms_batch *b = batch_of(p, seed, i / MICRO, i % MICRO);
    for (int on = 0; on < 2; on++) norm[on] += b->sum[on];
    ms_batch_free(b);
  }
}

/* The whole model learns all batches of a step, a cut one those of its rank of dp; sets the answers of the
 * latter. */
static void learn(const side *s, const problem *p, int seed, int is_cut, answer a[MICRO]) {
  double norm[2];
  norms_of(p, seed, norm);
  for (int i = 0; i < dp->size * MICRO; i++) {
    int r = i / MICRO, micro = i % MICRO, is_last = micro + 1 == MICRO;
    answer other;
    if (is_cut && r != dp->rank) continue;
    ms_batch *b = batch_of(p, seed, r, micro);
    learn_one(s, b, p, norm, is_cut && is_last && dp->size > 1 ? dp : NULL,
              r == dp->rank ? &a[micro] : &other);
    ms_batch_free(b);
  }
  if (is_cut) CHECK(ms_model_sum_gradients(s->student, dp) == MS_OK);
}

/* ---- comparing ---- */

static double worse(double a, double b) { return b > a || isnan(b) ? b : a; }

/* The largest difference of sums over rows, as shares of their weight, or of the sum where it is larger. */
static double apart(const double *x, const double *y, size_t n, double weight) {
  double worst = 0;
  for (size_t i = 0; i < n; i++)
    worst = worse(worst, fabs(x[i] - y[i]) / fmax(fmax(1, weight), fabs(y[i])));
  return worst;
}

static double answer_apart(const answer *got, const answer *want) {
  double worst = 0;
  for (int i = 0; i < TERMS; i++) {
    const ms_term_result *x = &got->result[i], *y = &want->result[i];
    worst = worse(worst, apart(&x->value, &y->value, sizeof *x / sizeof(double), y->weight));
    if (x->rows != y->rows || x->weight != y->weight) worst = INFINITY;
  }
  for (int i = 0; i < SEGMENTS * TERMS; i++) {
    const ms_segment_result *x = &got->part[i], *y = &want->part[i];
    worst = worse(worst, apart(&x->value, &y->value, sizeof *x / sizeof(double), y->weight));
  }
  return worst;
}

static double losses_apart(const answer got[MICRO], const answer want[MICRO]) {
  double worst = 0;
  for (int i = 0; i < MICRO; i++) worst = worse(worst, answer_apart(&got[i], &want[i]));
  return worst;
}

/* Of a run's elements, here and in the whole tensor. */
static double run_apart(const ms_parameter *p, const ms_run *run, const float *here,
                        const float *whole) {
  int64_t width = p->rank == 2 ? p->whole[1] : 1;
  double worst = 0;
  for (int64_t r = 0; r < run->rows; r++)
    for (int64_t c = 0; c < run->cols; c++)
      worst = worse(worst, fabs((double)here[(run->held + r) * run->cols + c] -
                                (double)whole[(run->row + r) * width + run->col + c]));
  return worst;
}

/* The largest difference of this rank's part of a parameter's weights or gradients, as a share of the whole
 * tensor's largest element. */
static double parameter_apart(const ms_model *part, const ms_model *whole, int32_t i,
                              int gradients) {
  const ms_parameter *p = &part->parameter[i], *q = &whole->parameter[i];
  const float *here = gradients ? p->g : p->w, *all = gradients ? q->g : q->w;
  double most = 0, worst = 0;
  ms_run run[MS_MAX_RUNS];
  if (!here || !all) return here == all ? 0 : NAN; /* frozen is what it is in the whole one */
  for (int64_t k = 0; k < q->count; k++) most = fmax(most, fabs((double)all[k]));
  int n = ms_share_runs(part, i, run);
  for (int k = 0; k < n; k++) worst = worse(worst, run_apart(p, &run[k], here, all));
  return most > 0 ? worst / most : worst;
}

static double all_apart(const ms_model *part, const ms_model *whole, int gradients,
                        const char **name) {
  double worst = 0;
  *name = "none";
  for (int32_t i = 0; i < part->parameters; i++) {
    double d = parameter_apart(part, whole, i, gradients);
    if (worse(worst, d) != worst) *name = part->parameter[i].name;
    worst = worse(worst, d);
  }
  return worst;
}

/* The largest deviations of all comparisons: TP_SAY=1 has each rank print them. */
static struct deviations { double loss, gradient, logit, norm, weight; } seen;

/* DESIGN 4: losses to 1e-6, gradients to 1e-5 of each tensor's largest element. At T below 1 what is divided
 * by it is rounded that much more. */
static void check_same(const side *whole, const side *part, const problem *p, const answer *want,
                       const answer *got, const char *what) {
  const char *name;
  double room = fmin(1, p->temperature), loss = losses_apart(got, want) * room;
  double gradient = all_apart(part->student, whole->student, 1, &name) * room;
  int good = loss <= 1e-6 && gradient <= 1e-5;
  if (!good)
    printf(
        "  rank %d of %d, tp %d: %s, batch %d, target %d, %s, T %g: loss %g, gradient %g of %s\n",
        world->rank, world->size, tp->size, what, p->batch, p->target,
        ms_objective_get(p->objective)->name, p->temperature, loss, gradient, name);
  CHECK(good);
  seen.loss = fmax(seen.loss, loss);
  seen.gradient = fmax(seen.gradient, gradient);
}

static void compare(const side *whole, const side *part, const problem *p, const char *what) {
  answer want[MICRO], got[MICRO];
  CHECK(ms_model_zero_gradients(whole->student) == MS_OK);
  CHECK(ms_model_zero_gradients(part->student) == MS_OK);
  learn(whole, p, 0, 0, want);
  learn(part, p, 0, 1, got);
  check_same(whole, part, p, want, got, what);
}

/* Whether no rank has seen anything fail: after the first one the rest need not be tried. */
static int all_well(void) {
  int32_t bad = test_bad || test_failed;
  CHECK(world->ops->all_reduce(world, NULL, &bad, MS_I32, 1, MS_MAX, NULL) == MS_OK);
  return !bad;
}

/* ---- every family ---- */

/* Rows in any order, some twice, and of a batch with fewer tokens than ranks. */
static void same_logits(const side *whole, const side *part) {
  static const int32_t some[] = {39, 0, 13, 13, 12, 26, 7}, few[] = {1, 0};
  static float a[7 * 300], b[7 * 300];
  for (int kind = SPREAD; kind <= ONE_TOKEN; kind++) {
    int small = kind >= TWO_TOKENS && kind != NOTHING;
    const int32_t *row = kind == ONE_TOKEN ? few + 1 : small ? few : some;
    int64_t rows = kind == ONE_TOKEN ? 1 : small ? 2 : 7, n = rows * whole->student->config.vocab;
    ms_batch *batch = new_batch(kind, kind);
    double largest = 0, worst = 0;
    CHECK(ms_model_logits(whole->student, batch, rows, row, a) == MS_OK);
    CHECK(ms_model_logits(part->student, batch, rows, row, b) == MS_OK);
    for (int64_t i = 0; i < n; i++) {
      largest = fmax(largest, fabs((double)a[i]));
      worst = worse(worst, fabs((double)a[i] - (double)b[i]));
    }
    /* sums over hidden and intermediate sizes, layer after layer, in other orders: as gradients */
    CHECK(largest > 0.5 && worst <= 1e-5 * largest);
    seen.logit = fmax(seen.logit, worst / largest);
    ms_batch_free(batch);
  }
}

/* Greedy, with caches: of different lengths, and past the window. */
static void same_answers(const side *whole, const side *part) {
  const int32_t start[] = {0, 5, 6, 20};
  const ms_generate_options o = {.max_new = 9, .top_p = 1};
  int32_t token[20], want[3], got[3], live = 1, lives;
  ms_generator *a = NULL, *b = NULL;
  for (int t = 0; t < 20; t++) token[t] = t * 7 % SHARED;
  CHECK(ms_generator_new(whole->student, 3, token, start, &o, &a) == MS_OK);
  CHECK(ms_generator_new(part->student, 3, token, start, &o, &b) == MS_OK);
  while (live) {
    CHECK(ms_generator_next(a, want, &live) == MS_OK);
    CHECK(ms_generator_next(b, got, &lives) == MS_OK);
    CHECK(!memcmp(got, want, sizeof got) && lives == live);
  }
  ms_generator_free(a);
  ms_generator_free(b);
}

static void same_learning(const holding *h, const char *teacher) {
  side whole = new_side(h, teacher, NULL), part = new_side(h, teacher, tp);
  if (!h->recompute) same_logits(&whole, &part);
  if (!h->recompute) same_answers(&whole, &part);
  for (int batch = 0; batch < BATCHES; batch++)
    for (int target = MS_TARGET_TOPK; target <= MS_TARGET_LOGITS; target++) {
      if (target != (batch + h->recompute) % 3) continue;
      problem p = {batch, target, batch % MS_OBJECTIVE_COUNT, MS_TAIL_BUCKET, 1};
      compare(&whole, &part, &p, h->config);
    }
  free_side(&whole);
  free_side(&part);
}

static void every_family(void) {
  for (int i = 0; i < CONFIGS && all_well(); i++) {
    TEST(configs[i]);
    for (int recompute = 0; recompute < 2; recompute++) {
      holding h = {configs[i], NULL, 5, recompute};
      same_learning(&h, configs[(i + 1) % CONFIGS]);
    }
  }
}

/* What is frozen has no gradient, and what is above or below it has the whole one's. */
static void frozen_parts(void) {
  static const char *const frozen[] = {
      "model.embed*", "model.layers.0.* model.embed*", "model.layers.1.* *norm*", "*self_attn*",
      "*mlp*",        "model.layers.* model.embed*",   "*k_proj* *v_proj*"};
  static const int with[] = {PLAIN, 1, QK_WHOLE, GRANITE};
  TEST("frozen parts");
  for (size_t f = 0; f < sizeof frozen / sizeof *frozen && all_well(); f++)
    for (size_t i = 0; i < sizeof with / sizeof *with; i++) {
      holding h = {configs[with[i]], frozen[f], 5, (int)(f + i) % 2};
      side whole = new_side(&h, configs[PLAIN], NULL), part = new_side(&h, configs[PLAIN], tp);
      for (int batch = SPREAD; batch <= LAST_RANK; batch++) {
        problem p = {batch, MS_TARGET_HIDDEN, MS_OBJECTIVE_js, MS_TAIL_BUCKET, 1};
        compare(&whole, &part, &p, frozen[f]);
      }
      free_side(&whole);
      free_side(&part);
    }
}

/* More tokens than go through the MLP at once, of which ranks have unequally many. */
static void many_rows(void) {
  enum { MANY = 5003 };
  static const char config[] =
      "{\"model_type\": \"qwen2\", \"initializer_range\": 0.2, \"hidden_size\": 8, "
      "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
      "\"intermediate_size\": 21, \"vocab_size\": 97}";
  static int32_t token[MANY];
  static float weight[MANY];
  const int32_t start[] = {0, 1000, 2500, 4000, MANY};
  ms_term term = {.kind = MS_TERM_CE, .on = MS_ON_ALL, .weight = 1};
  ms_term_result want, got;
  ms_batch *b = NULL;
  TEST("rows in several parts");
  for (int t = 0; t < MANY; t++) {
    token[t] = t * 31 % 97;
    weight[t] = (float)(t > 400 && t % 7);
  }
  CHECK(ms_batch_new(MANY, token, 4, start, NULL, weight, &b) == MS_OK);
  for (int recompute = 0; recompute < 2; recompute++) {
    holding h = {config, NULL, 5, recompute};
    const char *name;
    ms_model *whole = created(&h, NULL, 0), *part = created(&h, tp, 0);
    CHECK(ms_model_learn(whole, b, 1, &term, NULL, &want) == MS_OK);
    CHECK(ms_model_learn(part, b, 1, &term, NULL, &got) == MS_OK);
    CHECK(ms_model_sum_gradients(part, ms_group_self()) == MS_OK);
    CHECK(fabs(got.value - want.value) <= 1e-6 * want.value);
    CHECK(all_apart(part, whole, 1, &name) <= 1e-5);
    ms_model_free(whole);
    ms_model_free(part);
  }
  ms_batch_free(b);
}

static ms_status make_target(ms_model *m, const ms_batch *b, ms_target **out) {
  ms_target_options o = {
      .kind = MS_TARGET_LOGITS, .vocab = SHARED, .temperature = 1, .teacher_temperature = 1};
  return ms_model_target(m, b, &o, out);
}

/* Ranks of one model must be given one batch; memory that is not there on the last of them, and what is not
 * finite there alone, ends the call on all. */
static void fails_together(void) {
  holding h = {configs[PLAIN], NULL, 5, 0};
  ms_term term = {.kind = MS_TERM_CE, .on = MS_ON_ALL, .weight = 1};
  ms_term_result result;
  ms_target *t = NULL;
  TEST("what goes wrong on one rank of a model is an error on all");
  ms_model *m = created(&h, tp, 0);
  ms_batch *b = new_batch(SPREAD, tp->rank == 1), *same = new_batch(SPREAD, 0);
  ms_status st = ms_model_learn(m, b, 1, &term, NULL, &result);
  CHECK(tp->size == 1 ? st == MS_OK : st == MS_EINVAL && strstr(ms_last_error(), "different ones"));
  int last = tp->rank + 1 == tp->size;
  ms_test_fail_alloc(last); /* the first request */
  CHECK(ms_model_learn(m, same, 1, &term, NULL, &result) == (last ? MS_ENOMEM : MS_EGROUP));
  ms_test_fail_alloc(last);
  CHECK(make_target(m, same, &t) == (last ? MS_ENOMEM : MS_EGROUP) && !t);
  ms_test_fail_alloc(0);
  CHECK(make_target(m, same, &t) == MS_OK && t);
  ms_target_free(t);
  if (last) ((float *)m->head.w)[0] = NAN;
  CHECK(make_target(m, same, &t) == (last ? MS_EINVAL : MS_EGROUP) && !t);
  CHECK(strstr(ms_last_error(), "gives logits that are not finite at position"));
  ms_batch_free(b);
  ms_batch_free(same);
  ms_model_free(m);
}

/* ---- every objective ---- */

static void every_objective(void) {
  static const double T[] = {0.05, 1, 2};
  holding h = {configs[PLAIN], NULL, 5, 0};
  side whole = new_side(&h, configs[1], NULL), part = new_side(&h, configs[1], tp);
  side mixed = {part.student, whole.teacher}; /* a whole teacher beside a cut student */
  TEST("every objective, kind of target, tail, temperature");
  for (int o = 0; o < MS_OBJECTIVE_COUNT && all_well(); o++)
    for (int target = MS_TARGET_TOPK; target <= MS_TARGET_LOGITS; target++)
      for (int t = 0; t < 3; t++)
        for (int tail = 0; tail < (target == MS_TARGET_TOPK ? 2 : 1); tail++) {
          problem p = {(o + t) % 4, target, o, tail ? MS_TAIL_RENORMALIZE : MS_TAIL_BUCKET, T[t]};
          compare(&whole, (o + target) % 2 ? &mixed : &part, &p, "objectives");
        }
  free_side(&whole);
  free_side(&part);
}

/* ---- a known fault ---- */

/* A public system's loss came out of a reduction that every rank went back through: the gradient of each
 * rank's logits was the sum of what all ranks had, and so as many times too large as there were ranks, while
 * losses were right. */
static const ms_ops *own_ops;

static ms_status summed_back(ms_stream *s, const ms_head_args *a) {
  MS_TRY(own_ops->head_loss(s, a));
  int is_last = a->phase == MS_HEAD_FINISH || a->phase == MS_HEAD_WHOLE;
  if (!a->gradient || !is_last) return MS_OK;
  float *dz = a->logits.at;
  for (int64_t i = 0; i < a->rows * a->vocab; i++) dz[i] *= (float)a->parts;
  return MS_OK;
}

static void too_large(void) {
  holding h = {configs[PLAIN], NULL, 5, 0};
  problem p = {SPREAD, MS_TARGET_HIDDEN, MS_OBJECTIVE_forward_kl, MS_TAIL_BUCKET, 1};
  side whole = new_side(&h, configs[1], NULL), part = new_side(&h, configs[1], tp);
  ms_ops faulty = *(own_ops = dev->ops);
  answer want[MICRO], got[MICRO];
  const char *name;
  TEST("gradients that are as many times too large as there are ranks do not go unseen");
  learn(&whole, &p, 0, 0, want);
  faulty.head_loss = summed_back;
  dev->ops = &faulty;
  learn(&part, &p, 0, 1, got);
  dev->ops = own_ops;
  CHECK(losses_apart(got, want) <= 1e-6);
  for (int32_t i = 0; i < part.student->parameters; i++) {
    /* of the largest element itself, where this rank has it: tp - 1 */
    double d = parameter_apart(part.student, whole.student, i, 1);
    CHECK(ms_group_agree(tp, MS_OK) == MS_OK); /* ranks do not run apart */
    CHECK(tp->ops->all_reduce(tp, NULL, &d, MS_F64, 1, MS_MAX, NULL) == MS_OK);
    CHECK(fabs(d - (tp->size - 1)) <= 1e-4 * tp->size);
  }
  CHECK(tp->size == 1 || all_apart(part.student, whole.student, 1, &name) > 0.1);
  free_side(&whole);
  free_side(&part);
}

/* ---- steps ---- */

enum { STEPS = 5 };
static const double rate = 1e-2;

/* eps as large as gradients are: an update then changes by no more than the rate times a gradient's deviation
 * over eps, where Adam otherwise makes steps of full size of what is rounding alone. */
static ms_optimizer *new_optimizer(ms_model *m, ms_group *group, int shard, double clip) {
  ms_adamw_options o = {
      .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-2, .weight_decay = 0.1, .clip = clip, .shard = shard};
  ms_optimizer *opt = NULL;
  if (ms_optimizer_new(m, group, &o, &opt) != MS_OK) printf("  %s\n", ms_last_error());
  CHECK(opt);
  return opt;
}

static double make_step(ms_optimizer *opt, int32_t *skipped) {
  double norm = NAN;
  if (ms_optimizer_step(opt, rate, &norm, skipped) != MS_OK) printf("  %s\n", ms_last_error());
  return norm;
}

/* Puts this rank's part of a parameter's weights to its places among the whole one's, times `sign`, or says
 * whether that is what is there. */
static int place(const ms_model *m, int32_t i, float *whole, float sign, int compares) {
  const ms_parameter *p = &m->parameter[i];
  int64_t width = p->rank == 2 ? p->whole[1] : 1;
  const float *w = p->w;
  int same = 1;
  ms_run run[MS_MAX_RUNS];
  int n = ms_share_runs(m, i, run);
  for (int k = 0; k < n; k++)
    for (int64_t j = 0; j < run[k].rows * run[k].cols; j++) {
      int64_t row = j / run[k].cols, col = run[k].col + j % run[k].cols;
      float *to = &whole[(run[k].row + row) * width + col];
      float value = sign * w[run[k].held * run[k].cols + j];
      if (compares)
        same &= *to == value;
      else
        *to = value;
    }
  return same;
}

/* Whether all who hold an element of the weights have the same bits of it: the largest is everybody's, and so
 * is the least. */
static int copies_agree(const ms_model *m) {
  int good = 1;
  for (int32_t i = 0; i < m->parameters; i++) {
    const ms_parameter *p = &m->parameter[i];
    int64_t n = p->whole[0] * (p->rank == 2 ? p->whole[1] : 1);
    float *whole = malloc((size_t)n * sizeof *whole);
    for (int sign = -1; sign < 2; sign += 2) {
      for (int64_t k = 0; k < n; k++) whole[k] = -INFINITY;
      place(m, i, whole, (float)sign, 0);
      CHECK(world->ops->all_reduce(world, NULL, whole, MS_F32, n, MS_MAX, NULL) == MS_OK);
      good &= place(m, i, whole, (float)sign, 1);
    }
    free(whole);
  }
  return good;
}

static problem of_step(int step) {
  return (problem){step % BATCHES, step % 3, (step * 3) % MS_OBJECTIVE_COUNT, MS_TAIL_BUCKET, 1};
}

/* Five steps of a side; sets their norms. */
static void five_steps(const side *s, int is_cut, int shard, double clip, double norm[STEPS]) {
  ms_optimizer *opt = new_optimizer(s->student, is_cut ? dp : ms_group_self(), shard, clip);
  for (int k = 0; k < STEPS; k++) {
    problem p = of_step(k);
    answer a[MICRO];
    int32_t skipped;
    learn(s, &p, k * 10, is_cut, a);
    norm[k] = make_step(opt, &skipped);
    CHECK(!skipped);
  }
  CHECK(ms_weights_settle(s->student) == MS_OK);
  ms_optimizer_free(opt);
}

static int same_bits(const ms_model *a, const ms_model *b) {
  for (int32_t i = 0; i < a->parameters; i++) {
    const ms_parameter *p = &a->parameter[i], *q = &b->parameter[i];
    if (memcmp(p->w, q->w, (size_t)p->count * sizeof(float))) return 0;
  }
  return 1;
}

static void same_steps(const char *config, const char *frozen, double clip) {
  holding h = {config, frozen, 5, 1};
  side whole = new_side(&h, configs[1], NULL), part[2];
  double want[STEPS], got[STEPS];
  const char *name;
  five_steps(&whole, 0, MS_SHARD_NONE, clip, want);
  for (int shard = MS_SHARD_NONE; shard <= MS_SHARD_OPTIMIZER; shard++) {
    side *s = &part[shard];
    *s = new_side(&h, configs[1], tp);
    five_steps(s, 1, shard, clip, got);
    for (int k = 0; k < STEPS; k++) {
      double off = fabs(got[k] - want[k]) / want[k];
      CHECK(off <= 1e-5);
      seen.norm = fmax(seen.norm, off);
    }
    double d = all_apart(s->student, whole.student, 0, &name);
    seen.weight = fmax(seen.weight, d);
    if (!(d <= 1e-5))
      printf("  rank %d of %d, tp %d: %s: weights %g of %s\n", world->rank, world->size, tp->size,
             config, d, name);
    CHECK(d <= 1e-5);
    CHECK(copies_agree(s->student));
  }
  CHECK(same_bits(part[0].student, part[1].student));
  CHECK(clip == 0 || want[0] > clip); /* and it was clipped */
  free_side(&whole);
  free_side(&part[0]);
  free_side(&part[1]);
}

/* An element that is not finite, of one rank's gradient, is skipped by all. */
static void skips_together(int shard) {
  holding h = {configs[PLAIN], NULL, 5, 0};
  side s = new_side(&h, configs[1], tp), untouched = new_side(&h, configs[1], tp);
  ms_optimizer *opt = new_optimizer(s.student, dp, shard, 1);
  problem p = of_step(0);
  answer a[MICRO];
  int32_t skipped = 0;
  for (int32_t i = 0; i < s.student->parameters;
       i++) { /* of a matrix of which no other has this part */
    const ms_parameter *q = &s.student->parameter[i];
    if (world->rank + 1 == world->size && strstr(q->name, "layers.1.self_attn.q_proj"))
      q->g[q->count - 1] = NAN;
  }
  learn(&s, &p, 0, 1, a);
  make_step(opt, &skipped);
  CHECK(ms_weights_settle(s.student) == MS_OK);
  CHECK(skipped && same_bits(s.student, untouched.student));
  ms_optimizer_free(opt);
  free_side(&s);
  free_side(&untouched);
}

static void steps(void) {
  TEST("norms of gradients, and weights after five steps");
  same_steps(configs[PLAIN], NULL, 0.5);
  same_steps(configs[1], NULL, 0);
  same_steps(configs[QK_WHOLE], NULL, 0.5);
  same_steps(configs[GRANITE], "model.layers.1.* model.embed*", 0.02);
  TEST("a gradient that is not finite on one rank");
  for (int shard = MS_SHARD_NONE; shard <= MS_SHARD_OPTIMIZER; shard++) skips_together(shard);
}

/* ---- ranks ---- */

static int ranks(const char *what, int parts) {
  if (ms_device_open("cpu", &dev) != MS_OK) return 1;
  int rank = world->rank;
  CHECK(ms_group_split(world, rank / parts, rank, &tp) == MS_OK);
  CHECK(ms_group_split(world, rank % parts, rank, &dp) == MS_OK);
  if (!strcmp(what, "families")) every_family();
  if (!strcmp(what, "rest")) {
    frozen_parts();
    many_rows();
    fails_together();
    too_large();
    steps();
  }
  if (!strcmp(what, "objectives")) every_objective();
  if (getenv("TP_SAY"))
    printf(
        "rank %d of %d, tp %d, %s: losses %.1e, gradients %.1e, logits %.1e, norms %.1e, weights "
        "%.1e\n",
        rank, world->size, parts, what, seen.loss, seen.gradient, seen.logit, seen.norm,
        seen.weight);
  ms_device_close(dev);
  return test_end();
}

/* Every layout does all of it; the first one that fails says enough. */
static void launch(const char *program, int ranks, int parts) {
  static const char *const what[] = {"families", "objectives", "rest"};
  for (int w = 0; w < 3 && !test_failed && !test_bad; w++) {
    char name[64], arguments[64];
    snprintf(name, sizeof name, "dp %d x tp %d: %s", ranks / parts, parts, what[w]);
    snprintf(arguments, sizeof arguments, "%s %d", what[w], parts);
    TEST(name);
    CHECK(!test_ranks(program, ranks, arguments, "MS_GROUP_CHECK=1", NULL));
  }
}

int main(int argc, char **argv) {
  static const int layouts[][2] = {{2, 2}, {3, 3}, {4, 2}, {4, 4}, {1, 1}}; /* ranks, tp */
  if (test_is_rank()) {
    if (argc == 3 && ms_group_world(&world) == MS_OK) return ranks(argv[1], atoi(argv[2]));
    printf("%s\n", ms_last_error());
    return 1;
  }
  if (!test_has_mpirun()) {
    printf("skipped 1: no mpirun here\n0 passed, 0 failed, 1 skipped\n");
    return 0;
  }
  /* the sanitizers make each rank slow, and look at memory: one layout has all of its kinds of parts */
  size_t count = getenv("MS_SANITIZED") ? 1 : sizeof layouts / sizeof *layouts;
  for (size_t l = 0; l < count; l++) launch(argv[0], layouts[l][0], layouts[l][1]);
  return test_end();
}

/* head_parallel.c - the head in parts: the program starts itself as 1 to 4 ranks, each of which also does
 * everything alone, with the whole head, and compares. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/loss/head.h"
#include "kernels/head.h"
#include "kernels/objective.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

enum { ROWS = 7, VOCAB = 83, TEACHER = 91, WIDTH = 6, TERMS = 3 };

static ms_group *world;
static ms_device *dev;
static float hidden[ROWS * WIDTH], head[VOCAB * WIDTH];
static float t_hidden[ROWS * WIDTH], t_head[TEACHER * WIDTH];
static float response[ROWS] = {1, 0, 0.5f, 2, 1, 0, 1}, all[ROWS] = {1, 1, 0.25f, 1, 0, 1, 3};
static const int32_t label[ROWS] = {0, 82, 41, 20, 21, 62, 63};

static void fill(float *x, int n, int seed) {
  for (int i = 0; i < n; i++) {
    uint32_t h = (uint32_t)(i * 31 + seed) * 2654435761u;
    x[i] = (float)(int)(h >> 20 & 255) / 96 - 1.33f;
  }
}

static void fill_all(void) {
  fill(hidden, ROWS * WIDTH, 1);
  fill(head, VOCAB * WIDTH, 2);
  fill(t_hidden, ROWS * WIDTH, 3);
  fill(t_head, TEACHER * WIDTH, 4);
}

/* Where part `rank` begins, in one of several ways to cut. */
static int64_t border(int cut, int32_t rank, int64_t n) {
  int32_t size = world->size;
  if (rank >= size) return n;
  if (cut == 0) return n * rank / size;           /* nearly equal */
  if (cut == 1) return rank == 0 ? 0 : 61 + rank; /* a large one, one id each, the rest */
  if (cut == 2) return rank <= 1 ? 0 : n / 2;     /* the first one has nothing, others neither */
  return rank == 0 ? 0 : VOCAB;                   /* all of the student's on the first one */
}

static ms_head_weights whole(const float *w, int64_t vocab, float scale, float cap) {
  return (ms_head_weights){
      .w = w, .dtype = MS_F32, .vocab = vocab, .width = WIDTH, .scale = scale, .soft_cap = cap};
}

static ms_head_weights part(ms_head_weights h, int cut) {
  h.tp = world;
  h.vocab_all = h.vocab;
  h.first_id = border(cut, world->rank, h.vocab);
  h.vocab = border(cut, world->rank + 1, h.vocab) - h.first_id;
  h.w = (const float *)h.w + h.first_id * WIDTH;
  return h;
}

/* What a call is about. */
typedef struct problem {
  ms_head_weights student, teacher;
  int kind, k, on, gradient, spare; /* spare: weights are -inf, and d_hidden is not looked at */
  int whole;                        /* every rank has all of the teacher's head */
  int64_t vocab, budget;
  int terms;
  ms_term term[TERMS]; /* but for their targets */
  double temperature[TERMS];
} problem;

typedef struct answer {
  ms_term_result result[TERMS];
  double each[ROWS * TERMS * MS_HEAD_EACH];
  float d_hidden[ROWS * WIDTH], d_head[VOCAB * WIDTH];
} answer;

static ms_target *target_of(const problem *p, int i, ms_head_weights h) {
  const ms_term *t = &p->term[i];
  const float *weight = t->on == MS_ON_ALL ? all : response;
  float rows[ROWS * WIDTH];
  int64_t n = 0;
  for (int r = 0; r < ROWS; r++)
    if (weight[r] > 0) memcpy(rows + n++ * WIDTH, t_hidden + r * WIDTH, WIDTH * sizeof *rows);
  ms_target_options o = {p->kind,         p->kind == MS_TARGET_TOPK ? p->k : 0,
                         t->on,           MS_F32,
                         p->vocab,        p->temperature[i],
                         i == 1 ? 1.5 : 1};
  ms_target *out = NULL;
  CHECK(ms_target_make(dev, &o, n, ms_act_f32(rows), &h, p->budget, NULL, NULL, NULL, &out) ==
        MS_OK);
  return out;
}

static ms_status learn(const problem *p, ms_head_weights student, ms_head_weights teacher,
                       int phases, answer *a) {
  ms_target *target[TERMS] = {0};
  ms_term term[TERMS];
  memset(a, 0, sizeof *a);
  for (int i = 0; i < p->terms; i++) {
    term[i] = p->term[i];
    if (term[i].kind == MS_TERM_KD) term[i].target = target[i] = target_of(p, i, teacher);
  }
  ms_head_call c = {.dev = dev,
                    .head = student,
                    .rows = ROWS,
                    .hidden = ms_act_f32(hidden),
                    .label = label,
                    .weight = {response, all},
                    .terms = p->terms,
                    .term = term,
                    .budget = p->budget,
                    .result = a->result,
                    .each = a->each,
                    .phases = phases};
  if (p->gradient) {
    c.d_hidden = ms_act_f32(a->d_hidden);
    c.d_head = a->d_head;
  }
  ms_status st = ms_head_learn(&c);
  for (int i = 0; i < p->terms; i++) ms_target_free(target[i]);
  return st;
}

/* 1e-6 of the value, or of 1; -1e-5 / T where teacher and student agree. */
static int near(double x, double y, double room) {
  return (isnan(x) && isnan(y)) || fabs(x - y) <= room * fmax(1, fabs(y));
}

static int near_all(const float *x, const float *y, int64_t n, double largest) {
  for (int64_t i = 0; i < n; i++)
    if (!(fabs((double)x[i] - y[i]) <= 1e-5 * largest + 1e-12) && !(isnan(x[i]) && isnan(y[i])))
      return 0;
  return 1;
}

static double largest(const float *x, int64_t n) {
  double most = 0;
  for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(x[i]));
  return most;
}

/* Losses to 1e-6, gradients to 1e-5 of the largest element; at T below 1 what is divided by it is rounded
 * that much more. */
static int compare(const problem *p, const answer *got, const answer *want, int64_t first,
                   int64_t vocab) {
  double T = 1;
  int ok = 1;
  for (int i = 0; i < p->terms; i++) T = fmin(T, p->temperature[i]);
  for (int i = 0; i < p->terms; i++) {
    const double *x = &got->result[i].value, *y = &want->result[i].value;
    for (size_t f = 0; f < sizeof got->result[i] / sizeof(double); f++)
      ok &= f == 2 || near(x[f], y[f], 1e-6 / T);
    ok &= got->result[i].rows == want->result[i].rows;
    for (int r = 0; r < ROWS; r++)
      for (int e = 0; e < MS_HEAD_EACH; e++) {
        int at = (r * p->terms + i) * MS_HEAD_EACH + e;
        ok &= near(got->each[at], want->each[at], 1e-6 / T);
      }
  }
  if (!p->gradient) return ok;
  double most = largest(want->d_head, VOCAB * WIDTH);
  ok &= near_all(got->d_head, want->d_head + first * WIDTH, vocab * WIDTH, most);
  if (!p->spare)
    ok &= near_all(got->d_hidden, want->d_hidden, ROWS * WIDTH,
                   largest(want->d_hidden, ROWS * WIDTH));
  return ok;
}

/* The partial sums of all ranks; and all ranks have the same results. */
static void gather(answer *a) {
  static answer first;
  CHECK(world->ops->all_reduce(world, NULL, a->d_hidden, MS_F32, ROWS * WIDTH, MS_SUM, NULL) ==
        MS_OK);
  first = *a;
  CHECK(world->ops->broadcast(world, NULL, &first, MS_U8, sizeof first, 0, NULL) == MS_OK);
  CHECK(!memcmp(first.result, a->result, sizeof a->result));
  CHECK(!memcmp(first.each, a->each, sizeof a->each));
}

static void check_cut(const problem *p, int cut, const answer *want) {
  static answer got;
  ms_head_weights student = part(p->student, cut), teacher = p->teacher;
  /* cut where the student is: vocab_cut does that */
  if (!p->whole) teacher = part(teacher, cut);
  if (!p->whole && cut < 3 && p->teacher.vocab != p->student.vocab) {
    int last = world->rank + 1 == world->size;
    teacher.first_id = student.first_id;
    teacher.vocab = (last ? TEACHER : student.first_id + student.vocab) - student.first_id;
    teacher.w = (const float *)p->teacher.w + teacher.first_id * WIDTH;
  }
  CHECK(learn(p, student, teacher, 1, &got) == MS_OK);
  gather(&got);
  int ok = compare(p, &got, want, student.first_id, student.vocab);
  if (!ok)
    printf(
        "rank %d of %d, cut %d, objective %d, kind %d, k %d, tail %d, vocab %d, T %g: %.9g %.9g\n",
        world->rank, world->size, cut, p->term[1].objective, p->kind, p->k, p->term[1].tail,
        (int)p->vocab, p->temperature[1], got.result[1].value, want->result[1].value);
  CHECK(ok);
}

static void check(const problem *p) {
  static answer want;
  CHECK(learn(p, p->student, p->teacher, 0, &want) == MS_OK);
  for (int cut = 0; cut < 4; cut++)
    if (cut != 2 || world->size > 2) check_cut(p, cut, &want);
}

static problem of(int objective, int kind, int tail, double T) {
  problem p = {.student = whole(head, VOCAB, 1, 0),
               .teacher = whole(t_head, TEACHER, 1, 0),
               .kind = kind,
               .k = 5,
               .gradient = 1,
               .vocab = VOCAB,
               .terms = 2,
               .temperature = {1, T, T}};
  p.term[0] = (ms_term){.kind = MS_TERM_CE, .on = MS_ON_ALL, .weight = 0.5, .t_scale = NAN};
  p.term[1] = (ms_term){.kind = MS_TERM_KD,
                        .objective = objective,
                        .tail = tail,
                        .weight = 1,
                        .parameter = NAN,
                        .t_scale = NAN,
                        .temperature = NAN};
  p.term[2] = p.term[1];
  return p;
}

static void every_objective(void) {
  static const double T[] = {0.05, 1, 2};
  TEST("every objective, kind of target, tail, temperature");
  for (int o = 0; o < MS_OBJECTIVE_COUNT; o++)
    for (int kind = MS_TARGET_TOPK; kind <= MS_TARGET_LOGITS; kind++)
      for (int t = 0; t < 3; t++)
        for (int tail = 0; tail < (kind == MS_TARGET_TOPK ? 2 : 1); tail++) {
          problem p = of(o, kind, tail ? MS_TAIL_RENORMALIZE : MS_TAIL_BUCKET, T[t]);
          check(&p);
        }
}

static void widths_and_k(void) {
  static const int vocab[] = {1, 30, 64, 83}, k[] = {1, 2, 30, 64, 83};
  TEST("shared ids below the width, and a k beyond a part");
  for (int v = 0; v < 4; v++)
    for (int kind = MS_TARGET_TOPK; kind <= MS_TARGET_LOGITS; kind++)
      for (int i = 0; i < (kind == MS_TARGET_TOPK ? 5 : 1); i++) {
        if (k[i] > vocab[v]) continue;
        problem p = of(MS_OBJECTIVE_js, kind, MS_TAIL_BUCKET, 1);
        p.vocab = vocab[v];
        p.k = k[i];
        check(&p);
      }
}

static void heads_of_adaptive_kl(void) {
  static const double alpha[] = {0, 1e-7, 0.1, 0.5, 0.9, 1};
  TEST("adaptive KL: its head, wherever it ends, also among equal ids");
  float keep[TEACHER * WIDTH];
  memcpy(keep, t_head, sizeof keep);
  for (int equal = 0; equal < 2; equal++) {
    for (int i = 0; i < 6; i++) {
      problem p = of(MS_OBJECTIVE_adaptive_kl, MS_TARGET_HIDDEN, 0, 1);
      p.term[1].parameter = alpha[i];
      check(&p);
    }
    for (int i = 0; i < TEACHER; i++) /* few different ones, each of many ids */
      memcpy(t_head + i * WIDTH, keep + i % 3 * WIDTH, WIDTH * sizeof *keep);
  }
  memcpy(t_head, keep, sizeof keep);
}

static void several_terms(void) {
  TEST("several terms, temperatures and teachers, a soft cap, a scale, chunks of a row");
  for (int kind = MS_TARGET_TOPK; kind <= MS_TARGET_LOGITS; kind++)
    for (int cap = 0; cap < 2; cap++)
      for (int gradient = 0; gradient < 2; gradient++) {
        problem p = of(MS_OBJECTIVE_forward_kl, kind, MS_TAIL_BUCKET, 2);
        p.term[2].objective = MS_OBJECTIVE_adaptive_kl;
        p.term[2].on = MS_ON_ALL;
        p.temperature[2] = 0.5;
        p.terms = 3;
        p.gradient = gradient;
        p.budget = cap ? 4096 : 0;
        if (cap) {
          p.student.scale = 0.7f;
          p.student.soft_cap = 1.5f;
          p.teacher.soft_cap = 2;
        }
        check(&p);
      }
}

/* Makes the logits of ids from .. to - 1 the least there is, in all rows. */
static void forbid(float *h, int from, int to) {
  for (int i = from; i < to; i++) h[i * WIDTH] = -INFINITY;
}

static void forbidden_parts(void) {
  TEST("parts of which nothing can be said");
  for (int r = 0; r < ROWS; r++) hidden[r * WIDTH] = t_hidden[r * WIDTH] = 1;
  for (int side = 1; side < 4; side++)
    for (int first = 0; first < 2; first++) {
      fill(head, VOCAB * WIDTH, 2);
      fill(t_head, TEACHER * WIDTH, 4);
      if (side & 1) forbid(head, first ? 0 : 45, first ? 42 : 80);
      if (side & 2) forbid(t_head, first ? 0 : 45, first ? 42 : 79);
      for (int kind = MS_TARGET_TOPK; kind <= MS_TARGET_LOGITS; kind++)
        for (int o = 0; o < MS_OBJECTIVE_COUNT; o++) {
          problem p = of(o, kind, MS_TAIL_BUCKET, 1);
          p.spare = 1;
          p.term[0] = p.term[1]; /* labels may be forbidden: no CE */
          p.temperature[0] = 1;
          p.k = 60;
          check(&p);
        }
    }
  fill_all();
}

static void equal_sides(void) {
  TEST("a teacher that says the same gives nothing to learn");
  for (int kind = MS_TARGET_TOPK; kind <= MS_TARGET_LOGITS; kind++)
    for (int o = 0; o < MS_OBJECTIVE_COUNT; o++) {
      static answer got;
      problem p = of(o, kind, MS_TAIL_BUCKET, 0.5);
      p.terms = 1;
      p.term[0] = p.term[1];
      p.temperature[0] = 0.5;
      p.teacher = p.student;
      float keep[ROWS * WIDTH];
      memcpy(keep, t_hidden, sizeof keep);
      memcpy(t_hidden, hidden, sizeof keep);
      for (int cut = 0; cut < 4; cut++) {
        ms_head_weights h = part(p.student, cut);
        if (cut == 2 && world->size < 3) continue;
        CHECK(learn(&p, h, h, 1, &got) == MS_OK);
        CHECK(got.result[0].value == 0 && got.result[0].agree == got.result[0].weight);
        CHECK(largest(got.d_head, VOCAB * WIDTH) == 0 && largest(got.d_hidden, ROWS * WIDTH) == 0);
      }
      memcpy(t_hidden, keep, sizeof keep);
    }
}

static void whole_teacher(void) {
  TEST("a teacher whose head is whole beside a student's in parts");
  for (int kind = MS_TARGET_TOPK; kind <= MS_TARGET_LOGITS; kind++)
    for (int o = 0; o < MS_OBJECTIVE_COUNT; o++) {
      problem p = of(o, kind, MS_TAIL_BUCKET, 2);
      p.whole = 1;
      check(&p);
    }
}

/* The same few rows again and again: the first one of equal ids is the largest one. */
static void ties(void) {
  TEST("equal logits in several parts: the lowest id is the largest");
  for (int i = 0; i < VOCAB; i++)
    memcpy(head + i * WIDTH, head + i % 5 * WIDTH, WIDTH * sizeof *head);
  for (int same = 0; same < 2; same++) {
    for (int kind = MS_TARGET_TOPK; kind <= MS_TARGET_LOGITS; kind++)
      for (int o = 0; o < MS_OBJECTIVE_COUNT; o++) {
        problem p = of(o, kind, MS_TAIL_BUCKET, 1);
        check(&p);
      }
    for (int i = 0; i < TEACHER; i++)
      memcpy(t_head + i * WIDTH, t_head + i % 7 * WIDTH, WIDTH * sizeof *head);
  }
  fill_all();
}

/* A row of which some logit is NaN has that for its losses, and none of its gradient is finite: checked by
 * the sums over rows and ranks. */
static void spoils(problem *p, int cut, int row) {
  static answer want, got;
  ms_head_weights student = part(p->student, cut);
  CHECK(learn(p, p->student, p->teacher, 0, &want) == MS_OK);
  p->whole = 1;
  CHECK(learn(p, student, p->teacher, 1, &got) == MS_OK);
  CHECK(world->ops->all_reduce(world, NULL, got.d_hidden, MS_F32, ROWS * WIDTH, MS_SUM, NULL) ==
        MS_OK);
  for (int i = 0; i < p->terms; i++)
    for (int r = 0; r < ROWS; r++) {
      double of = want.each[(r * p->terms + i) * MS_HEAD_EACH];
      double is = got.each[(r * p->terms + i) * MS_HEAD_EACH];
      int active = (p->term[i].on == MS_ON_ALL ? all : response)[r] > 0;
      CHECK(isnan(of) == (active && (row < 0 || r == row)));
      CHECK(isnan(is) == isnan(of));
      if (i == 0 && isnan(of)) CHECK(isnan(got.d_hidden[r * WIDTH]));
    }
}

static void not_a_number(void) {
  TEST("a NaN among the logits of any part is seen everywhere");
  for (int kind = MS_TARGET_TOPK; kind <= MS_TARGET_LOGITS; kind++)
    for (int cut = 0; cut < 2; cut++)
      for (int32_t r = 0; r < world->size; r++)
        for (int few = 0; few < 2; few++) {
          problem p = of(MS_OBJECTIVE_js, kind, MS_TAIL_BUCKET, 1);
          int64_t from = border(cut, r, VOCAB), end = border(cut, r + 1, VOCAB);
          if (few) end = from + 1;
          for (int64_t i = from; i < end; i++) head[i * WIDTH] = NAN;
          spoils(&p, cut, -1);
          fill_all();
          hidden[3 * WIDTH] = NAN;
          spoils(&p, cut, 3);
          fill_all();
        }
}

static void topk_of_all(void) {
  static const int k[] = {1, 3, 7, 40, 83};
  TEST("the top-k of parts is that of all ids, ties by lower id");
  for (int ties = 0; ties < 2; ties++) {
    if (ties)
      for (int i = 0; i < VOCAB; i++)
        memcpy(t_head + i * WIDTH, t_head + i % 4 * WIDTH, WIDTH * sizeof *t_head);
    for (int i = 0; i < 5; i++)
      for (int cut = 0; cut < 4; cut++) {
        int32_t id[2][ROWS * VOCAB];
        float lp[2][ROWS * VOCAB], rest[2][ROWS];
        problem p = of(MS_OBJECTIVE_forward_kl, MS_TARGET_TOPK, 0, 0.7);
        if (cut == 2 && world->size < 3) continue;
        p.k = k[i];
        p.term[1].on = MS_ON_ALL;
        p.teacher = whole(t_head, VOCAB, 1, 0);
        int64_t n = 0;
        for (int way = 0; way < 2; way++) {
          ms_target *t = target_of(&p, 1, way ? part(p.teacher, cut) : p.teacher);
          CHECK(ms_target_read(t, id[way], lp[way], rest[way]) == MS_OK);
          n = ms_target_rows(t);
          ms_target_free(t);
        }
        CHECK(!memcmp(id[0], id[1], (size_t)(n * p.k) * sizeof **id));
        for (int64_t j = 0; j < n * p.k; j++) CHECK(near(lp[1][j], lp[0][j], 1e-6));
        for (int64_t r = 0; r < n; r++)
          CHECK(rest[0][r] == rest[1][r] || near(rest[1][r], rest[0][r], 1e-6));
      }
  }
  fill_all();
}

static void cut_elsewhere(void) {
  TEST("a full target of other ids than the student's part is refused");
  static answer got;
  problem p = of(MS_OBJECTIVE_forward_kl, MS_TARGET_HIDDEN, 0, 1);
  if (world->size < 2) return;
  ms_head_weights student = part(p.student, 0), teacher = part(p.teacher, 0);
  student.vocab_all = VOCAB;
  if (world->rank) teacher.first_id = student.first_id + 1; /* begins one id before the teacher's */
  CHECK(learn(&p, student, teacher, 0, &got) == (world->rank ? MS_EINVAL : MS_EGROUP));
  CHECK(strstr(ms_last_error(), "vocab_cut = 83") != NULL);
}

static int ranks(void) {
  if (ms_device_open("cpu", &dev) != MS_OK) return 1;
  fill_all();
  every_objective();
  widths_and_k();
  heads_of_adaptive_kl();
  several_terms();
  forbidden_parts();
  equal_sides();
  whole_teacher();
  ties();
  not_a_number();
  topk_of_all();
  cut_elsewhere();
  ms_device_close(dev);
  return test_end();
}

int main(int argc, char **argv) {
  if (test_is_rank()) {
    if (ms_group_world(&world) == MS_OK) return ranks();
    printf("%s\n", ms_last_error());
    return 1;
  }
  world = ms_group_self();
  if (!test_has_mpirun()) printf("skipped 1: no mpirun here\n");
  for (int n = 2; n <= 4 && test_has_mpirun(); n++) {
    char name[64];
    snprintf(name, sizeof name, "%d ranks", n);
    TEST(name);
    CHECK(!test_ranks(argv[0], n, "", "MS_GROUP_CHECK=1", NULL));
  }
  return ranks();
}

/* head.c - the fused head: its loss pass against the bandwidth floor, the whole against the matrix
 * products inside it, and the memory it takes.
 *
 *   ninja -C build bench_head && build/bench_head [threads] [rounds] [loss|head|memory]
 *
 * Everything is timed in turn within a round, so on a busy machine only the ratios mean something:
 * they are medians over rounds. */
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/loss/head.h"
#include "kernels/head.h"
#include "kernels/objective.h"

enum { VOCAB = 151936, ROWS = 512, TOPK = 64, MOST = 64 };

static int rounds = 9;

static void must(ms_status st) {
  if (st == MS_OK) return;
  fprintf(stderr, "%s\n", ms_last_error());
  exit(1);
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static double median(double *x, int n) {
  qsort(x, (size_t)n, sizeof *x, by_value);
  return x[n / 2];
}

static float *floats(int64_t n, uint32_t seed, float scale) {
  void *p;
  must(ms_alloc((size_t)n * 4, "bench", &p));
  float *x = p;
#pragma omp parallel for
  for (int64_t i = 0; i < n; i++) {
    uint32_t h = ((uint32_t)i + seed) * 2654435761u;
    h = (h ^ h >> 15) * 2246822519u;
    h ^= h >> 13;
    x[i] = ((float)(h >> 8) * 0x1p-23f - 1) * scale;
  }
  return x;
}

/* One read and one write of everything: no pass over the logits in place can take less. */
static void update(float *x, int64_t rows, int64_t cols) {
#pragma omp parallel for schedule(dynamic, 4)
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < cols; i++) x[r * cols + i] *= 1.0000001f;
}

typedef struct load {
  const char *name;
  int terms;
  ms_head_term term[3];
  int full; /* a teacher's logits are read as well */
} load;

static ms_head_term ce(const float *weight) {
  return (ms_head_term){.kind = MS_TERM_CE,
                        .source = -1,
                        .vocab = VOCAB,
                        .inv_t = 1,
                        .inv_tt = 1,
                        .t_scale = 1,
                        .gradient = 0.5 / ROWS,
                        .weight = weight};
}

static ms_head_term kd(int objective, double t, const float *weight, const int32_t *row,
                       const ms_topk_args *top) {
  return (ms_head_term){.kind = MS_TERM_KD,
                        .objective = objective,
                        .gaps = objective == MS_OBJECTIVE_adaptive_kl,
                        .source = top ? -1 : 0,
                        .vocab = VOCAB,
                        .inv_t = 1 / t,
                        .inv_tt = 1 / t,
                        .t_scale = t * t,
                        .parameter = 0.5,
                        .gradient = 0.5 / ROWS,
                        .sign_width = 1e-5,
                        .weight = weight,
                        .row = row,
                        .k = top ? TOPK : 0,
                        .leftover = 1,
                        .id = top ? top->id : NULL,
                        .log_p = top ? top->log_p : NULL,
                        .log_rest = top ? top->log_rest : NULL};
}

/* The top-k of other logits, at T = 1 whatever the term's: only speed is looked at. */
static ms_topk_args teacher(const ms_ops *ops, float *y) {
  void *id, *lp, *rest;
  must(ms_alloc(ROWS * TOPK * 4, "bench", &id));
  must(ms_alloc(ROWS * TOPK * 4, "bench", &lp));
  must(ms_alloc(ROWS * 4, "bench", &rest));
  ms_topk_args a = {id, lp, rest, y, ROWS, VOCAB, VOCAB, TOPK, 1, 1, 0, .parts = 1};
  double start = ms_clock();
  must(ops->topk(NULL, &a));
  printf("top-%d with log-sum-exp: %.1f ms\n", TOPK, 1e3 * (ms_clock() - start));
  return a;
}

static void bench_load(const ms_ops *ops, const load *l, float *z, const float *fresh, float *y,
                       const int32_t *label, const int32_t *row) {
  double pass[MOST], sweep[MOST], ratio[MOST];
  size_t bytes = (size_t)ROWS * VOCAB * 4;
  void *record;
  double total[3 * MS_HEAD_TOTALS] = {0};
  must(ms_alloc(ROWS * 3 * sizeof(ms_head_record), "bench", &record));
  ms_head_source source = {y, VOCAB, VOCAB, 1, 0, row, 0};
  ms_head_args a = {.total = total,
                    .record = record,
                    .logits = ms_act_f32(z),
                    .label = label,
                    .rows = ROWS,
                    .vocab = VOCAB,
                    .scale = 1,
                    .gradient = 1,
                    .terms = l->terms,
                    .sources = l->full,
                    .term = l->term,
                    .source = &source};
  for (int i = 0; i < rounds; i++) {
    memcpy(z, fresh, bytes);
    double t0 = ms_clock();
    update(z, ROWS, VOCAB);
    double t1 = ms_clock();
    must(ops->head_loss(NULL, &a));
    pass[i] = ms_clock() - t1;
    sweep[i] = t1 - t0;
    ratio[i] = pass[i] / sweep[i];
  }
  ms_free(record);
  printf("%-44s %7.1f ms  floor %6.1f ms  ratio %.2f", l->name, 1e3 * median(pass, rounds),
         1e3 * median(sweep, rounds), median(ratio, rounds));
  printf("  (best %.1f / %.1f = %.2f)\n", 1e3 * pass[0], 1e3 * sweep[0], pass[0] / sweep[0]);
}

static void bench_loss(const ms_ops *ops) {
  float *fresh = floats((int64_t)ROWS * VOCAB, 1, 6), *z = floats((int64_t)ROWS * VOCAB, 1, 6);
  float *y = floats((int64_t)ROWS * VOCAB, 2, 6), *one = floats(ROWS, 3, 1);
  int32_t row[ROWS], label[ROWS];
  for (int r = 0; r < ROWS; r++) {
    row[r] = r;
    label[r] = (r * 7919) % VOCAB;
    one[r] = 1;
  }
  printf("loss pass: %d rows, V = %d, %s\n", ROWS, VOCAB, ops->name);
  ms_topk_args top = teacher(ops, y);
  const load loads[] = {
      {"ce", 1, {ce(one)}, 0},
      {"forward_kl, top-64, T = 1", 1, {kd(MS_OBJECTIVE_forward_kl, 1, one, row, &top)}, 0},
      {"ce + forward_kl, top-64, T = 1",
       2,
       {ce(one), kd(MS_OBJECTIVE_forward_kl, 1, one, row, &top)},
       0},
      {"ce + js, top-64, T = 1", 2, {ce(one), kd(MS_OBJECTIVE_js, 1, one, row, &top)}, 0},
      {"ce + adaptive_kl, top-64, T = 1",
       2,
       {ce(one), kd(MS_OBJECTIVE_adaptive_kl, 1, one, row, &top)},
       0},
      {"forward_kl, top-64, T = 2", 1, {kd(MS_OBJECTIVE_forward_kl, 2, one, row, &top)}, 0},
      {"ce + forward_kl, top-64, T = 2",
       2,
       {ce(one), kd(MS_OBJECTIVE_forward_kl, 2, one, row, &top)},
       0},
      {"forward_kl, full teacher, T = 1", 1, {kd(MS_OBJECTIVE_forward_kl, 1, one, row, NULL)}, 1},
      {"ce + js, full teacher, T = 2", 2, {ce(one), kd(MS_OBJECTIVE_js, 2, one, row, NULL)}, 1},
      {"adaptive_kl, full teacher, T = 1", 1, {kd(MS_OBJECTIVE_adaptive_kl, 1, one, row, NULL)}, 1},
  };
  for (size_t i = 0; i < sizeof loads / sizeof *loads; i++) {
    if (loads[i].full) { /* top-k took its ids out of them */
      for (int64_t j = 0; j < (int64_t)ROWS * VOCAB; j++) y[j] = y[j] == -INFINITY ? 5 : y[j];
    }
    bench_load(ops, &loads[i], z, fresh, y, label, row);
  }
  ms_free(top.id);
  ms_free(top.log_p);
  ms_free(top.log_rest);
  ms_free(fresh);
  ms_free(z);
  ms_free(y);
  ms_free(one);
}

/* A call with CE and top-k KD over random states. */
typedef struct problem {
  ms_head_call call;
  ms_term term[2];
  ms_term_result result[2];
  ms_target *target;
  float *hidden, *head, *d_hidden, *d_head;
  int32_t *label;
} problem;

static void make(problem *p, ms_device *dev, int64_t rows, int64_t vocab, int64_t width,
                 int32_t k) {
  void *label;
  ms_target_options o = {MS_TARGET_TOPK, k, MS_ON_ALL, MS_F32, vocab, 1, 1};
  memset(p, 0, sizeof *p);
  p->hidden = floats(rows * width, 1, 1);
  p->head = floats(vocab * width, 2, 0.1f);
  p->d_hidden = floats(rows * width, 1, 0);
  p->d_head = floats(vocab * width, 1, 0);
  must(ms_alloc((size_t)rows * 4, "bench", &label));
  p->label = label;
  for (int64_t r = 0; r < rows; r++) p->label[r] = (int32_t)((r * 7919) % vocab);
  ms_head_weights head = {
      .w = p->head, .dtype = MS_F32, .vocab = vocab, .width = width, .scale = 1};
  must(
      ms_target_make(dev, &o, rows, ms_act_f32(p->hidden), &head, 0, NULL, NULL, NULL, &p->target));
  p->term[0] = (ms_term){.kind = MS_TERM_CE, .on = MS_ON_ALL, .weight = 0.5, .t_scale = NAN};
  p->term[1] = (ms_term){.kind = MS_TERM_KD,
                         .on = MS_ON_ALL,
                         .weight = 0.5,
                         .t_scale = NAN,
                         .parameter = NAN,
                         .temperature = 1,
                         .target = p->target};
  p->call = (ms_head_call){.dev = dev,
                           .head = head,
                           .rows = rows,
                           .hidden = ms_act_f32(p->hidden),
                           .label = p->label,
                           .terms = 2,
                           .term = p->term,
                           .d_hidden = ms_act_f32(p->d_hidden),
                           .d_head = p->d_head,
                           .result = p->result};
}

static void drop(problem *p) {
  ms_target_free(p->target);
  ms_free(p->hidden);
  ms_free(p->head);
  ms_free(p->d_hidden);
  ms_free(p->d_head);
  ms_free(p->label);
}

/* The products of a call alone, in chunks of the same size. */
static void products(const ms_head_call *c, float *logits, int64_t size) {
  const ms_ops *ops = c->dev->ops;
  int64_t v = c->head.vocab, w = c->head.width;
  for (int64_t r = 0; r < c->rows; r += size) {
    int64_t n = c->rows - r < size ? c->rows - r : size;
    ms_act x = ms_act_at(c->hidden, r * w), dx = ms_act_at(c->d_hidden, r * w);
    ms_act z = ms_act_f32(logits);
    must(ops->linear(NULL, z, x, c->head.w, c->head.dtype, n, w, v, 0));
    must(ops->linear_dx(NULL, dx, z, c->head.w, c->head.dtype, n, w, v, 0));
    must(ops->linear_dw(NULL, c->d_head, z, x, n, w, v, 1));
  }
}

static void bench_head(ms_device *dev) {
  double whole[MOST], alone[MOST], ratio[MOST];
  problem p;
  ms_head_workspace space = {0};
  int64_t rows = 400, width = 896;
  make(&p, dev, rows, VOCAB, width, TOPK);
  p.call.workspace = &space;
  /* what the call takes tells its chunks: equal ones, as few as fit */
  int64_t most = MS_HEAD_BUDGET / (VOCAB * 4 + 200), chunks = (rows + most - 1) / most;
  float *logits = floats((rows + chunks - 1) / chunks * VOCAB, 3, 1);
  must(ms_head_learn(&p.call));
  int n = rounds < 5 ? rounds : 5;
  for (int i = 0; i < n; i++) {
    double t0 = ms_clock();
    products(&p.call, logits, (rows + chunks - 1) / chunks);
    double t1 = ms_clock();
    must(ms_head_learn(&p.call));
    whole[i] = ms_clock() - t1;
    alone[i] = t1 - t0;
    ratio[i] = alone[i] / whole[i];
  }
  printf(
      "whole head: %lld rows in %lld chunks, V = %d, H = %lld: %.0f ms, its products %.0f ms: "
      "%.1f %% (median of ratios)\n",
      (long long)rows, (long long)chunks, VOCAB, (long long)width, 1e3 * median(whole, n),
      1e3 * median(alone, n), 100 * median(ratio, n));
  ms_head_workspace_free(&space);
  ms_free(logits);
  drop(&p);
}

/* Peak of resident memory since the last reset, in KiB. */
static long peak(int reset) {
  char line[256];
  long kib = 0;
  FILE *f = fopen(reset ? "/proc/self/clear_refs" : "/proc/self/status", reset ? "w" : "r");
  if (!f) return 0;
  if (reset)
    fputs("5", f);
  else
    while (fgets(line, sizeof line, f)) sscanf(line, "VmHWM: %ld", &kib);
  fclose(f);
  return kib;
}

static void bench_memory(ms_device *dev) {
  int64_t budget = 16 << 20;
  for (int64_t rows = 1024; rows <= 65536; rows *= 8) {
    problem p;
    make(&p, dev, rows, 8192, 32, 16);
    p.call.budget = budget;
    must(ms_head_learn(&p.call)); /* the library's own buffers are made once */
    peak(1);
    long before = peak(0);
    must(ms_head_learn(&p.call));
    printf("memory: %6lld rows, budget %lld KiB: %ld KiB above what is given\n", (long long)rows,
           (long long)budget >> 10, peak(0) - before);
    drop(&p);
  }
}

int main(int argc, char **argv) {
  const char *only = argc > 3 ? argv[3] : "";
  ms_device *dev;
  must(ms_threads_set(argc > 1 ? atoi(argv[1]) : 2));
  if (argc > 2) rounds = atoi(argv[2]);
  if (rounds < 1 || rounds > MOST) rounds = 9;
  must(ms_device_open("cpu", &dev));
  printf("%d threads, %d rounds\n", ms_threads_get(), rounds);
  if (!*only || !strcmp(only, "loss")) bench_loss(dev->ops);
  if (!*only || !strcmp(only, "head")) bench_head(dev);
  if (!*only || !strcmp(only, "memory")) bench_memory(dev);
  ms_device_close(dev);
  return 0;
}

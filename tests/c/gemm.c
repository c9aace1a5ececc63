/* gemm.c - matrix products of many random shapes, every operand against a page that must not be touched.
 *   build/tests/gemm [cases] [seed]
 * Each case is compared with sums in double and must have the same bits for 1 to 5 threads. */
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/tensor/tensor.h"
#include "kernels/cpu/cpu.h"
#include "tests/support/test.h"

static uint64_t state;
static uint32_t next(void) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(state >> 33);
}
static int64_t below(int64_t n) { return next() % n; }
static float value(void) { return (float)((int32_t)next() % 2001 - 1000) / 512.0f; }

/* Memory between two pages that fault; the end of it, or its start, is at one of them. */
typedef struct guarded {
  char *map;
  size_t pages;
  void *p;
} guarded;

enum { PAGE = 4096 };

static guarded guard(size_t bytes, int at_end) {
  guarded g = {.pages = (bytes + PAGE - 1) / PAGE + 2};
  g.map = mmap(NULL, g.pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (g.map == MAP_FAILED) abort();
  if (mprotect(g.map + PAGE, (g.pages - 2) * PAGE, PROT_READ | PROT_WRITE)) abort();
  g.p = at_end ? g.map + (g.pages - 1) * PAGE - bytes : g.map + PAGE;
  return g;
}

static void unguard(guarded *g) { munmap(g->map, g->pages * PAGE); }

/* A matrix as f32 or bf16, and the same in double. */
typedef struct matrix {
  guarded g;
  double *exact;
  int64_t rows, cols;
} matrix;

static matrix make(int64_t rows, int64_t cols, int dtype, int at_end) {
  matrix m = {guard((size_t)(rows * cols) * (dtype == MS_F32 ? 4 : 2), at_end), NULL, rows, cols};
  m.exact = malloc((size_t)(rows * cols) * sizeof(double));
  for (int64_t i = 0; i < rows * cols; i++) {
    float x = value();
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (dtype == MS_BF16) {
      bits &= 0xffff0000u;
      ((uint16_t *)m.g.p)[i] = (uint16_t)(bits >> 16);
      memcpy(&x, &bits, 4);
    } else {
      ((float *)m.g.p)[i] = x;
    }
    m.exact[i] = x;
  }
  return m;
}

static void drop(matrix *m) {
  unguard(&m->g);
  free(m->exact);
}

enum { FORWARD, BACKWARD, WEIGHTS };

typedef struct shape {
  int form, dtype, add, at_end;
  int64_t rows, in, out;
} shape;

/* y, dx or dw; a and b in the order of the operation's arguments. */
static ms_status call(const shape *s, float *y, const void *a, const void *b) {
  const ms_ops *ops = ms_cpu_backend(&ms_device_host);
  ms_act first = ms_act_f32(a), to = ms_act_f32(y);
  if (s->form == FORWARD)
    return ops->linear(NULL, to, first, b, s->dtype, s->rows, s->in, s->out, s->add);
  if (s->form == BACKWARD)
    return ops->linear_dx(NULL, to, first, b, s->dtype, s->rows, s->in, s->out, s->add);
  return ops->linear_dw(NULL, y, first, ms_act_f32(b), s->rows, s->in, s->out, s->add);
}

/* The sum for element (i, j) of the result. */
static double element(const shape *s, const matrix *a, const matrix *b, int64_t i, int64_t j) {
  int64_t n = s->form == FORWARD ? s->in : s->form == BACKWARD ? s->out : s->rows;
  double sum = 0;
  for (int64_t t = 0; t < n; t++)
    sum += (s->form == WEIGHTS ? a->exact[t * a->cols + i] : a->exact[i * a->cols + t]) *
           (s->form == FORWARD ? b->exact[j * b->cols + t] : b->exact[t * b->cols + j]);
  return sum;
}

/* All elements of a small result, some of a large one. Terms are 1.3 in the mean square, so a sum of
 * n walks to 1.3 sqrt(n), and half an ulp of that, n times at random, is about n eps / 4; four times
 * eps is nine standard deviations of it. */
static int close_enough(const shape *s, const matrix *a, const matrix *b, const float *y,
                        int64_t rows, int64_t cols, int64_t n) {
  int64_t step = rows * cols > 4000 ? rows * cols / 4000 + 1 : 1;
  for (int64_t at = 0; at < rows * cols; at += step) {
    double want = (s->add ? 0.5 : 0) + element(s, a, b, at / cols, at % cols);
    if (fabs(y[at] - want) <= 0x1p-24 * (double)(4 * n + 8)) continue;
    printf("form %d dtype %d add %d %lldx%lldx%lld: element %lld is %g, not %g\n", s->form,
           s->dtype, s->add, (long long)s->rows, (long long)s->in, (long long)s->out, (long long)at,
           (double)y[at], want);
    return 0;
  }
  return 1;
}

static void check(const shape *s) {
  int w = s->form == WEIGHTS;
  matrix a = make(s->rows, s->form == FORWARD ? s->in : s->out, MS_F32, s->at_end);
  matrix b = make(w ? s->rows : s->out, s->in, w ? MS_F32 : s->dtype, s->at_end);
  int64_t rows = w ? s->out : s->rows, cols = s->form == FORWARD ? s->out : s->in;
  int64_t n = w ? s->rows : s->form == FORWARD ? s->in : s->out;
  size_t bytes = (size_t)(rows * cols) * 4;
  guarded y = guard(bytes, s->at_end);
  float *first = malloc(bytes);
  for (int threads = 1; threads <= 5; threads += threads == 1 ? 1 : 3) {
    omp_set_num_threads(threads);
    for (int64_t i = 0; i < rows * cols; i++) ((float *)y.p)[i] = s->add ? 0.5f : NAN;
    CHECK(call(s, y.p, a.g.p, b.g.p) == MS_OK);
    if (threads == 1) {
      memcpy(first, y.p, bytes);
      CHECK(close_enough(s, &a, &b, y.p, rows, cols, n));
    } else {
      CHECK(!memcmp(first, y.p, bytes));
    }
  }
  free(first);
  unguard(&y);
  drop(&a);
  drop(&b);
}

/* Mostly small; now and then past the sizes of panels and blocks. */
static int64_t length(int large) {
  static const int64_t edges[] = {512, 1024, 64, 32, 14, 28, 48, 6, 16};
  if (large) return 1 + below(1300);
  if (below(3) == 0) return edges[below(9)] + below(3) - 1;
  return 1 + below(70);
}

int main(int count, char **arg) {
  int cases = count > 1 ? atoi(arg[1]) : 300;
  state = count > 2 ? strtoull(arg[2], NULL, 10) : 1;
  TEST("products of random shapes touch nothing beside them, and are right");
  for (int i = 0; i < cases; i++) {
    int large = (int)below(24); /* 0, 1, 2: that side is */
    shape s = {(int)below(3),      below(2) ? MS_F32 : MS_BF16, (int)below(2),     (int)below(2),
               length(large == 0), length(large == 1),          length(large == 2)};
    check(&s);
  }
  return test_end();
}

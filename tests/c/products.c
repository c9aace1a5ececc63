/* products.c - the matrix products where Lua cannot put them: callers that are threads themselves, no
 * memory for one thread of several. gemm.c has their numbers. */
#include <omp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/tensor/tensor.h"
#include "kernels/cpu/cpu.h"
#include "tests/support/test.h"

enum { FORMS = 3 };
/* Small integers: sums of their products are exact in any order. */
static float number(int64_t i, int64_t k) { return (float)((i * 7 + i / 3 + k) % 7 - 3); }
static void fill(float *p, int64_t n, int64_t k) {
  for (int64_t i = 0; i < n; i++) p[i] = number(i, k);
}

/* linear, linear_dx and linear_dw as y[m,n] = a b with k terms. */
typedef struct shape {
  int form;
  int64_t m, n, k;
} shape;

static float term(const shape *s, int64_t i, int64_t j, int64_t t) {
  int64_t a = s->form == 2 ? t * s->m + i : i * s->k + t;
  int64_t b = s->form == 0 ? j * s->k + t : t * s->n + j;
  return number(a, 1) * number(b, 2);
}

static int is_right(const shape *s, const float *y) {
  for (int64_t i = 0; i < s->m; i++)
    for (int64_t j = 0; j < s->n; j++) {
      float sum = 0;
      for (int64_t t = 0; t < s->k; t++) sum += term(s, i, j, t);
      if (y[i * s->n + j] != sum) return 0;
    }
  return 1;
}

static ms_status multiply(const ms_ops *ops, const shape *s, void *y, const void *a,
                          const void *b) {
  ms_act first = ms_act_f32(a), to = ms_act_f32(y);
  if (s->form == 0) return ops->linear(NULL, to, first, b, MS_F32, s->m, s->k, s->n, 0);
  if (s->form == 1) return ops->linear_dx(NULL, to, first, b, MS_F32, s->m, s->n, s->k, 0);
  return ops->linear_dw(NULL, y, first, ms_act_f32(b), s->k, s->n, s->m, 0);
}

/* True when the product of new operands is what it must be. */
static int holds(const shape *s) {
  float *a = malloc((size_t)(s->m * s->k) * 4), *b = malloc((size_t)(s->n * s->k) * 4);
  float *y = malloc((size_t)(s->m * s->n) * 4);
  if (!a || !b || !y) abort();
  fill(a, s->m * s->k, 1);
  fill(b, s->n * s->k, 2);
  int good = multiply(ms_cpu_backend(&ms_device_host), s, y, a, b) == MS_OK && is_right(s, y);
  free(a), free(b), free(y);
  return good;
}

static void *in_thread(void *arg) {
  intptr_t good = 1;
  for (int form = 0; form < FORMS; form++) {
    good &= holds(&(shape){form, 20, 21, 22});    /* too small for several threads */
    good &= holds(&(shape){form, 120, 130, 140}); /* not too small */
  }
  return (void *)good;
}

static void callers(void) {
  pthread_t thread[4];
  int good = 1;
  TEST("products of several threads at once");
  for (int i = 0; i < 4; i++)
    if (pthread_create(&thread[i], NULL, in_thread, NULL)) abort();
  for (int i = 0; i < 4; i++) {
    void *result;
    pthread_join(thread[i], &result);
    CHECK(result);
  }
  TEST("products in a parallel region of the caller's");
#pragma omp parallel num_threads(3) reduction(& : good)
  good = in_thread(NULL) != NULL;
  CHECK(good);
}

static void nothing(void) {
  TEST("products without rows are nothing; sums without terms are 0");
  float y[6] = {1, 2, 3, 4, 5, 6}, x[6] = {0};
  for (int form = 0; form < 2; form++)
    CHECK(multiply(ms_cpu_backend(&ms_device_host), &(shape){form, 0, 3, 2}, y, x, x) == MS_OK &&
          y[0] == 1);
  CHECK(multiply(ms_cpu_backend(&ms_device_host), &(shape){2, 2, 3, 0}, y, x, x) == MS_OK &&
        y[0] == 0 && y[5] == 0);
}

static void no_memory(void) {
  enum { N = 120 };
  float *a = malloc(N * N * 4), *b = malloc(N * N * 4), *y = malloc(N * N * 4);
  int64_t live = ms_test_live();
  if (!a || !b || !y) abort();
  fill(a, N * N, 1);
  fill(b, N * N, 2);
  TEST("products without memory for one of their threads fail, and go well the next time");
  for (int threads = 1; threads <= 3; threads++)
    for (int nth = 1; nth <= threads; nth++)
      for (int form = 0; form < FORMS; form++) {
        shape s = {form, N, N, N};
        omp_set_num_threads(threads);
        ms_test_fail_alloc(nth);
        CHECK(multiply(ms_cpu_backend(&ms_device_host), &s, y, a, b) == MS_ENOMEM);
        ms_test_fail_alloc(0);
        CHECK(multiply(ms_cpu_backend(&ms_device_host), &s, y, a, b) == MS_OK && is_right(&s, y));
      }
  CHECK(ms_test_live() == live);
  free(a), free(b), free(y);
}

int main(void) {
  omp_set_num_threads(2);
  callers();
  nothing();
  no_memory();
  return test_end();
}

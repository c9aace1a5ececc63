/* products.c - the matrix products where Lua cannot put them: operands that end where memory ends,
 * callers that are threads themselves, no memory for one thread of several. */
#include <omp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/base/memory.h"
#include "kernels/cpu/cpu.h"
#include "test.h"

enum { PAGE = 4096, FORMS = 3 };
typedef struct fence {
  char *base, *data;
  size_t area;
} fence;

/* Memory between two pages that may not be touched, at the end of it or at the start. */
static fence fence_new(size_t bytes, int at_end) {
  fence f = {.area = (bytes + PAGE - 1) / PAGE * PAGE};
  f.base = mmap(NULL, f.area + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (f.base == MAP_FAILED || mprotect(f.base + PAGE, f.area, PROT_READ | PROT_WRITE)) abort();
  f.data = f.base + PAGE + (at_end ? f.area - bytes : 0);
  return f;
}
static void fence_free(fence *f) { munmap(f->base, f->area + 2 * PAGE); }

/* Small integers: sums of their products are exact in any order. */
static float number(int64_t i, int64_t k) { return (float)((i * 7 + i / 3 + k) % 7 - 3); }
static void fill(void *p, int dtype, int64_t n, int64_t k) {
  for (int64_t i = 0; i < n; i++) {
    float x = number(i, k);
    uint32_t u;
    memcpy(&u, &x, 4);
    uint16_t h = (uint16_t)(u >> 16);
    memcpy((char *)p + i * (dtype == MS_F32 ? 4 : 2), dtype == MS_F32 ? (void *)&x : &h,
           dtype == MS_F32 ? 4 : 2);
  }
}

/* linear, linear_dx and linear_dw as y[m,n] = a b with k terms. */
typedef struct shape {
  int form, dtype;
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
  if (s->form == 0) return ops->linear(NULL, y, a, b, s->dtype, s->m, s->k, s->n, 0);
  if (s->form == 1) return ops->linear_dx(NULL, y, a, b, s->dtype, s->m, s->n, s->k, 0);
  return ops->linear_dw(NULL, y, a, b, s->k, s->n, s->m, 0);
}

/* True when the product is what it must be, with its operands fenced in. */
static int holds(const shape *s, int at_end) {
  size_t size = s->dtype == MS_F32 ? 4 : 2;
  fence a = fence_new((size_t)(s->m * s->k) * 4, at_end);
  fence b = fence_new((size_t)(s->n * s->k) * size, at_end);
  fence y = fence_new((size_t)(s->m * s->n) * 4, at_end);
  fill(a.data, MS_F32, s->m * s->k, 1);
  fill(b.data, s->dtype, s->n * s->k, 2);
  int good = multiply(ms_cpu_ops(), s, y.data, a.data, b.data) == MS_OK &&
             is_right(s, (const float *)y.data);
  fence_free(&a), fence_free(&b), fence_free(&y);
  return good;
}

static void *in_thread(void *arg) {
  intptr_t good = 1;
  for (int form = 0; form < FORMS; form++) {
    good &= holds(&(shape){form, MS_F32, 20, 21, 22}, 1);    /* too small for several threads */
    good &= holds(&(shape){form, MS_F32, 120, 130, 140}, 1); /* not too small */
  }
  return (void *)good;
}

static void edges(void) {
  static const int64_t sizes[] = {1, 2, 3, 7, 9, 15, 17, 31, 33, 50};
  enum { SIZES = sizeof sizes / sizeof *sizes };
  TEST("products touch nothing beside their operands");
  for (int form = 0; form < FORMS; form++)
    for (int dtype = 0; dtype < (form == 2 ? 1 : 2); dtype++)
      for (int at = 0; at < SIZES * SIZES * SIZES; at++) {
        shape s = {form, dtype ? MS_BF16 : MS_F32, sizes[at % SIZES], sizes[at / SIZES % SIZES],
                   sizes[at / SIZES / SIZES]};
        CHECK(holds(&s, at & 1));
      }
  TEST("products larger than their blocks touch nothing beside their operands");
  for (int form = 0; form < FORMS; form++) {
    CHECK(holds(&(shape){form, MS_F32, 530, 41, 33}, 1));
    CHECK(holds(&(shape){form, form == 2 ? MS_F32 : MS_BF16, 21, 1050, 70}, 1));
    CHECK(holds(&(shape){form, MS_F32, 37, 45, 1100}, 1));
  }
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

static void no_memory(void) {
  enum { N = 120 };
  float *a = malloc(N * N * 4), *b = malloc(N * N * 4), *y = malloc(N * N * 4);
  int64_t live = ms_test_live();
  if (!a || !b || !y) abort();
  fill(a, MS_F32, N * N, 1);
  fill(b, MS_F32, N * N, 2);
  TEST("products without memory for one of their threads fail, and go well the next time");
  for (int threads = 1; threads <= 3; threads++)
    for (int nth = 1; nth <= threads; nth++)
      for (int form = 0; form < FORMS; form++) {
        shape s = {form, MS_F32, N, N, N};
        omp_set_num_threads(threads);
        ms_test_fail_alloc(nth);
        CHECK(multiply(ms_cpu_ops(), &s, y, a, b) == MS_ENOMEM);
        ms_test_fail_alloc(0);
        CHECK(multiply(ms_cpu_ops(), &s, y, a, b) == MS_OK && is_right(&s, y));
      }
  CHECK(ms_test_live() == live);
  free(a), free(b), free(y);
}

int main(void) {
  omp_set_num_threads(2);
  edges();
  callers();
  no_memory();
  return test_end();
}

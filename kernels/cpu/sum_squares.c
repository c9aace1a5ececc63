/* sum_squares.c - the squared norm of a gradient, in double. */
#include "../../core/base/memory.h"
#include "cpu.h"

/* Blocks of this many elements have a sum each; the sums are added in order. */
enum { BLOCK = 1 << 15, LANES = 16 };

static double block_sum(const float *x, int64_t n) {
  double lane[LANES] = {0}, sum = 0;
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int j = 0; j < LANES; j++) lane[j] += (double)x[i + j] * (double)x[i + j];
  for (int j = 0; i < n; i++, j++) lane[j] += (double)x[i] * (double)x[i];
  for (int j = 0; j < LANES; j++) sum += lane[j];
  return sum;
}

/* The square of a finite float is far from the largest double, so the sum is finite exactly when
 * every element is. */
ms_status MS_KERNEL(sum_squares)(ms_stream *s, double *sum, const float *x, int64_t n, int add) {
  int64_t blocks = (n + BLOCK - 1) / BLOCK;
  void *p;
  MS_TRY(ms_scratch((size_t)blocks * sizeof(double), "squared norm", &p));
  double *part = p, total = 0;
#pragma omp parallel for schedule(static) if (n > MS_SERIAL)
  for (int64_t b = 0; b < blocks; b++)
    part[b] = block_sum(x + b * BLOCK, n - b * BLOCK < BLOCK ? n - b * BLOCK : BLOCK);
  for (int64_t b = 0; b < blocks; b++) total += part[b];
  *sum = add ? *sum + total : total;
  return MS_OK;
}

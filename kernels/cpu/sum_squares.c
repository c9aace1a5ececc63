/* sum_squares.c - the squared norms of blocks of a gradient, in double. */
#include "cpu.h"

enum { LANES = 16 };

static double block_sum(const float *x, int64_t n) {
  double lane[LANES] = {0}, sum = 0;
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int j = 0; j < LANES; j++) lane[j] += (double)x[i + j] * (double)x[i + j];
  for (int j = 0; i < n; i++, j++) lane[j] += (double)x[i] * (double)x[i];
  for (int j = 0; j < LANES; j++) sum += lane[j];
  return sum;
}

/* The square of a finite float is far from the largest double, so a sum is finite exactly when every
 * element is. */
ms_status MS_KERNEL(sum_squares)(ms_stream *s, double *sum, const float *x, int64_t n) {
#pragma omp parallel for schedule(static) if (n > MS_SERIAL)
  for (int64_t i = 0; i < n; i += MS_SQUARES_BLOCK)
    sum[i / MS_SQUARES_BLOCK] =
        block_sum(x + i, n - i < MS_SQUARES_BLOCK ? n - i : MS_SQUARES_BLOCK);
  return MS_OK;
}

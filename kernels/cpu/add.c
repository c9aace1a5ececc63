/* add.c - the residual sum. */
#include "cpu.h"

ms_status MS_KERNEL(add)(ms_stream *s, float *y, const float *x, int64_t n) {
#pragma omp parallel for simd schedule(static) if (n > MS_SERIAL)
  for (int64_t i = 0; i < n; i++) y[i] += x[i];
  return MS_OK;
}

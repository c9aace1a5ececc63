/* add.c - the residual sum. */
#include "cpu.h"

ms_status MS_KERNEL(add)(ms_stream *s, ms_act y, ms_act x, int64_t n, float scale) {
  MS_TAKES_F32("add", y, x);
  const float *more = f32(x);
  float *sum = f32(y);
#pragma omp parallel for simd schedule(static) if (n > MS_SERIAL)
  for (int64_t i = 0; i < n; i++) sum[i] += scale * more[i];
  return MS_OK;
}

/* gather.c - chosen rows taken out of a matrix and put back. */
#include <string.h>

#include "cpu.h"

ms_status MS_KERNEL(gather)(ms_stream *s, ms_act y, ms_act x, const int32_t *row, int64_t rows,
                            int64_t cols) {
  MS_TAKES_F32("gather", y, x);
#pragma omp parallel for schedule(static) if (rows * cols > MS_SERIAL)
  for (int64_t i = 0; i < rows; i++)
    memcpy(f32(y) + i * cols, f32(x) + row[i] * cols, (size_t)cols * sizeof(float));
  return MS_OK;
}

ms_status MS_KERNEL(scatter)(ms_stream *s, ms_act y, ms_act x, const int32_t *row, int64_t rows,
                             int64_t cols) {
  MS_TAKES_F32("scatter", y, x);
#pragma omp parallel for schedule(static) if (rows * cols > MS_SERIAL)
  for (int64_t i = 0; i < rows; i++)
    memcpy(f32(y) + row[i] * cols, f32(x) + i * cols, (size_t)cols * sizeof(float));
  return MS_OK;
}

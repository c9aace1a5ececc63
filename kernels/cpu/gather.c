/* gather.c - chosen rows taken out of a matrix and put back. */
#include <string.h>

#include "cpu.h"

ms_status MS_KERNEL(gather)(ms_stream *s, float *y, const float *x, const int32_t *row,
                            int64_t rows, int64_t cols) {
#pragma omp parallel for schedule(static) if (rows * cols > MS_SERIAL)
  for (int64_t i = 0; i < rows; i++) memcpy(y + i * cols, x + row[i] * cols, (size_t)cols * 4);
  return MS_OK;
}

ms_status MS_KERNEL(scatter)(ms_stream *s, float *y, const float *x, const int32_t *row,
                             int64_t rows, int64_t cols) {
#pragma omp parallel for schedule(static) if (rows * cols > MS_SERIAL)
  for (int64_t i = 0; i < rows; i++) memcpy(y + row[i] * cols, x + i * cols, (size_t)cols * 4);
  return MS_OK;
}

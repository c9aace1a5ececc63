/* bias.c - a vector added to every row, and its gradient. */
#include "cpu.h"
#include "simd.h"

ms_status MS_KERNEL(bias)(ms_stream *s, ms_act y, const void *b, int b_dtype, int64_t rows,
                          int64_t cols) {
  MS_TAKES_F32("bias", y);
#pragma omp parallel for schedule(static) if (rows * cols > MS_SERIAL)
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < cols; c += VF_LANES) {
      int64_t n = cols - c < VF_LANES ? cols - c : VF_LANES;
      float *p = f32(y) + r * cols + c;
      vf_store_n(p, vf_load_n(p, n) + vf_load_weight(b, b_dtype, c, n), n);
    }
  return MS_OK;
}

/* Sums of BLOCK rows are added up: a float sum of all rows in one chain loses digits. A strip of
 * columns is wide enough to read whole cache lines in a row. */
enum { BLOCK = 64, STRIP = 64 };

static void sum_strip(float *db, const float *dy, int64_t rows, int64_t cols, int64_t n) {
  for (int64_t r0 = 0; r0 < rows; r0 += BLOCK) {
    int64_t end = r0 + BLOCK < rows ? r0 + BLOCK : rows;
    float sum[STRIP] = {0};
    for (int64_t r = r0; r < end; r++)
      for (int64_t c = 0; c < n; c++) sum[c] += dy[r * cols + c];
    for (int64_t c = 0; c < n; c++) db[c] += sum[c];
  }
}

/* Threads share the columns, so each column is summed in one order. */
ms_status MS_KERNEL(bias_db)(ms_stream *s, float *db, ms_act dy, int64_t rows, int64_t cols) {
  MS_TAKES_F32("bias_db", dy);
#pragma omp parallel for schedule(static) if (rows * cols > MS_SERIAL)
  for (int64_t c = 0; c < cols; c += STRIP)
    sum_strip(db + c, f32(dy) + c, rows, cols, cols - c < STRIP ? cols - c : STRIP);
  return MS_OK;
}

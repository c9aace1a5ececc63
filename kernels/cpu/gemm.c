/* gemm.c - matrix products by oneDNN, behind one file. */
#include <dnnl.h>

#include "../../core/base/memory.h"
#include "cpu.h"

static ms_status sgemm(char ta, char tb, int64_t m, int64_t n, int64_t k, const float *a,
                       int64_t lda, const float *b, int64_t ldb, int add, float *c, int64_t ldc) {
  dnnl_status_t st = dnnl_sgemm(ta, tb, m, n, k, 1.0f, a, lda, b, ldb, add ? 1.0f : 0.0f, c, ldc);
  if (st != dnnl_success)
    return MS_FAIL(MS_EDEVICE, "GEMM %lld x %lld x %lld: oneDNN status %d", (long long)m,
                   (long long)n, (long long)k, (int)st);
  return MS_OK;
}

/* The weight as f32: itself, or a widened copy that the caller frees. */
static ms_status widen(const void *w, int w_dtype, int64_t n, const float **wide, void **own) {
  *own = NULL;
  *wide = w;
  if (w_dtype == MS_F32) return MS_OK;
  MS_TRY(ms_alloc((size_t)n * 4, "GEMM: widened weights", own));
  *wide = *own;
  return MS_KERNEL(cast)(NULL, *own, MS_F32, w, w_dtype, n);
}

ms_status MS_KERNEL(linear)(ms_stream *s, float *y, const float *x, const void *w, int w_dtype,
                        int64_t rows, int64_t in, int64_t out, int add) {
  const float *wide;
  void *own;
  ms_status st = widen(w, w_dtype, in * out, &wide, &own);
  if (st == MS_OK) st = sgemm('N', 'T', rows, out, in, x, in, wide, in, add, y, out);
  ms_free(own);
  return st;
}

ms_status MS_KERNEL(linear_dx)(ms_stream *s, float *dx, const float *dy, const void *w, int w_dtype,
                           int64_t rows, int64_t in, int64_t out, int add) {
  const float *wide;
  void *own;
  ms_status st = widen(w, w_dtype, in * out, &wide, &own);
  if (st == MS_OK) st = sgemm('N', 'N', rows, in, out, dy, out, wide, in, add, dx, in);
  ms_free(own);
  return st;
}

ms_status MS_KERNEL(linear_dw)(ms_stream *s, float *dw, const float *dy, const float *x, int64_t rows,
                           int64_t in, int64_t out, int add) {
  return sgemm('T', 'N', out, in, rows, dy, out, x, in, add, dw, in);
}

/* cpu.h - the CPU backend's shared declarations.
 *
 * Each kernel file is compiled once per instruction set with MS_ISA set; MS_KERNEL(rmsnorm) is then
 * ms_cpu_rmsnorm_avx512 and so on. cpu.c is compiled once. */
#ifndef MS_CPU_H
#define MS_CPU_H
#include "../ops.h"

#define MS_JOIN_(a, b) ms_cpu_##a##_##b
#define MS_JOIN(a, b) MS_JOIN_(a, b)
#define MS_KERNEL(name) MS_JOIN(name, MS_ISA)

/* The table for this machine, capped by MS_CPU=avx512|avx2|portable at the first call. */
const ms_ops *ms_cpu_ops(void);
extern const ms_ops ms_cpu_ops_avx512, ms_cpu_ops_avx2, ms_cpu_ops_portable;

/* cpu.c: memory, the same for all. */
ms_status ms_cpu_alloc(size_t bytes, void **out);
void ms_cpu_free(void *p, size_t bytes);
ms_status ms_cpu_write(ms_stream *s, void *device, const void *host, size_t bytes);
ms_status ms_cpu_read(ms_stream *s, void *host, const void *device, size_t bytes);
ms_status ms_cpu_copy(ms_stream *s, void *y, const void *x, size_t bytes);
ms_status ms_cpu_zero(ms_stream *s, void *y, size_t bytes);
ms_status ms_cpu_sync(ms_stream *s);

/* Fewer elements than this are not worth waking the other threads. Whether they are woken never
 * changes a result. */
enum { MS_SERIAL = 1 << 16 };
static inline int64_t ms_min(int64_t a, int64_t b) { return a < b ? a : b; }
enum { MS_FEW_ROWS = 8 }; /* up to here linear is bound by reading the weights */

#ifdef MS_ISA
ms_status MS_KERNEL(cast)(ms_stream *s, void *y, int y_dtype, const void *x, int x_dtype,
                          int64_t n);
ms_status MS_KERNEL(linear)(ms_stream *s, float *y, const float *x, const void *w, int w_dtype,
                            int64_t rows, int64_t in, int64_t out, int add);
ms_status MS_KERNEL(linear_few)(float *y, const float *x, const void *w, int w_dtype, int64_t rows,
                                int64_t in, int64_t out, int add);
ms_status MS_KERNEL(linear_dx_few)(float *dx, const float *dy, const void *w, int w_dtype,
                                   int64_t rows, int64_t in, int64_t out, int add);
ms_status MS_KERNEL(linear_dx)(ms_stream *s, float *dx, const float *dy, const void *w, int w_dtype,
                               int64_t rows, int64_t in, int64_t out, int add);
ms_status MS_KERNEL(linear_dw)(ms_stream *s, float *dw, const float *dy, const float *x,
                               int64_t rows, int64_t in, int64_t out, int add);
ms_status MS_KERNEL(bias)(ms_stream *s, float *y, const void *b, int b_dtype, int64_t rows,
                          int64_t cols);
ms_status MS_KERNEL(bias_db)(ms_stream *s, float *db, const float *dy, int64_t rows, int64_t cols);
ms_status MS_KERNEL(embed)(ms_stream *s, float *y, const int32_t *token, const void *w, int w_dtype,
                           int64_t tokens, int64_t width);
ms_status MS_KERNEL(embed_dw)(ms_stream *s, float *dw, const float *dy, const int32_t *token,
                              int64_t tokens, int64_t width, int64_t vocab);
ms_status MS_KERNEL(rmsnorm)(ms_stream *s, float *y, float *rstd, const float *x, const void *w,
                             int w_dtype, int64_t rows, int64_t cols, float eps);
ms_status MS_KERNEL(rmsnorm_backward)(ms_stream *s, float *dx, float *dw, const float *dy,
                                      const float *x, const float *rstd, const void *w, int w_dtype,
                                      int64_t rows, int64_t cols, int add);
ms_status MS_KERNEL(rope)(ms_stream *s, float *x, const int32_t *position, const float *cosine,
                          const float *sine, int64_t tokens, int32_t heads, int32_t head_dim,
                          int32_t rotary, int sign);
ms_status MS_KERNEL(attention)(ms_stream *s, float *y, float *lse, const float *q, const float *k,
                               const float *v, const int32_t *segment_start,
                               const ms_attention_shape *shape);
ms_status MS_KERNEL(attention_backward)(ms_stream *s, float *dq, float *dk, float *dv,
                                        const float *dy, const float *y, const float *lse,
                                        const float *q, const float *k, const float *v,
                                        const int32_t *segment_start,
                                        const ms_attention_shape *shape);
ms_status MS_KERNEL(attention_cached)(ms_stream *s, float *y, const float *q, const float *k,
                                      const float *v, const int32_t *slot, const int32_t *first,
                                      const int32_t *length, int64_t rows, int64_t capacity,
                                      int32_t heads, int32_t kv_heads, int32_t head_dim,
                                      float scale);
ms_status MS_KERNEL(swiglu)(ms_stream *s, float *y, const float *gate, const float *up, int64_t n);
ms_status MS_KERNEL(swiglu_backward)(ms_stream *s, float *d_gate, float *d_up, const float *dy,
                                     const float *gate, const float *up, int64_t n);
ms_status MS_KERNEL(add)(ms_stream *s, float *y, const float *x, int64_t n);
ms_status MS_KERNEL(gather)(ms_stream *s, float *y, const float *x, const int32_t *row,
                            int64_t rows, int64_t cols);
ms_status MS_KERNEL(scatter)(ms_stream *s, float *y, const float *x, const int32_t *row,
                             int64_t rows, int64_t cols);
ms_status MS_KERNEL(topk)(ms_stream *s, const struct ms_topk_args *args);
ms_status MS_KERNEL(head_loss)(ms_stream *s, const struct ms_head_args *args);
ms_status MS_KERNEL(sum_squares)(ms_stream *s, double *sum, const float *x, int64_t n, int add);
ms_status MS_KERNEL(not_finite)(ms_stream *s, int64_t *at, const void *x, int dtype, int64_t n);
ms_status MS_KERNEL(adamw)(ms_stream *s, float *w, uint16_t *low, float *m, float *v,
                           const float *g, int64_t n, double lr, double beta1, double beta2,
                           double eps, double decay, double scale, double c1, double c2);
#endif

#endif

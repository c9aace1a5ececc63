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
ms_backend ms_cpu_backend;
extern const ms_host *ms_cpu_host; /* as given; the kernels' errors go there */
#undef MS_FAIL
#define MS_FAIL(st, ...) (ms_cpu_host->fail((st), __FILE__, __LINE__, __VA_ARGS__))
extern const ms_ops ms_cpu_ops_avx512, ms_cpu_ops_avx2, ms_cpu_ops_portable;

/* cpu.c: memory, the same for all. */
int ms_cpu_devices(void);
ms_status ms_cpu_stream_open(int device, ms_stream **out);
void ms_cpu_stream_close(ms_stream *s);
ms_status ms_cpu_alloc(int device, size_t bytes, void **out);
void ms_cpu_free(int device, void *p, size_t bytes);
ms_status ms_cpu_write(ms_stream *s, void *device, const void *host, size_t bytes);
ms_status ms_cpu_read(ms_stream *s, void *host, const void *device, size_t bytes);
ms_status ms_cpu_copy(ms_stream *s, void *y, const void *x, size_t bytes);
ms_status ms_cpu_zero(ms_stream *s, void *y, size_t bytes);

/* Fewer elements than this are not worth waking the other threads. Whether they are woken never
 * changes a result. */
enum { MS_SERIAL = 1 << 16 };
static inline int64_t ms_min(int64_t a, int64_t b) { return a < b ? a : b; }
enum { MS_MAX_HEAD_DIM = 256 }; /* attention_cached holds the sums of a head on its stack */
enum { MS_FEW_ROWS = 8 };       /* up to here linear is bound by reading the weights */

/* Activations are f32 here: kernels begin with MS_TAKES_F32("name", ...) and read f32(x). */
static inline float *f32(ms_act x) { return (float *)x.at; }
#define MS_TAKES_F32(op, ...)                                                                     \
  do {                                                                                            \
    const ms_act acts_[] = {__VA_ARGS__};                                                         \
    for (size_t i_ = 0; i_ < sizeof acts_ / sizeof *acts_; i_++)                                  \
      if (acts_[i_].at && acts_[i_].dtype != MS_F32)                                              \
        return MS_FAIL(MS_EUNSUPPORTED, "%s: the CPU takes activations in f32, not dtype %d", op, \
                       acts_[i_].dtype);                                                          \
  } while (0)

#ifdef MS_ISA
ms_status MS_KERNEL(cast)(ms_stream *s, void *y, int y_dtype, const void *x, int x_dtype,
                          int64_t n);
ms_status MS_KERNEL(linear)(ms_stream *s, ms_act y, ms_act x, const void *w, int w_dtype,
                            int64_t rows, int64_t in, int64_t out, int add);
ms_status MS_KERNEL(linear_few)(float *y, const float *x, const void *w, int w_dtype, int64_t rows,
                                int64_t in, int64_t out, int add);
ms_status MS_KERNEL(linear_dx_few)(float *dx, const float *dy, const void *w, int w_dtype,
                                   int64_t rows, int64_t in, int64_t out, int add);
ms_status MS_KERNEL(linear_dx)(ms_stream *s, ms_act dx, ms_act dy, const void *w, int w_dtype,
                               int64_t rows, int64_t in, int64_t out, int add);
ms_status MS_KERNEL(linear_dw)(ms_stream *s, float *dw, ms_act dy, ms_act x, int64_t rows,
                               int64_t in, int64_t out, int add);
ms_status MS_KERNEL(bias)(ms_stream *s, ms_act y, const void *b, int b_dtype, int64_t rows,
                          int64_t cols);
ms_status MS_KERNEL(bias_db)(ms_stream *s, float *db, ms_act dy, int64_t rows, int64_t cols);
ms_status MS_KERNEL(embed)(ms_stream *s, ms_act y, const int32_t *token, const void *w, int w_dtype,
                           int64_t tokens, int64_t width, int64_t first, int64_t vocab,
                           float scale);
ms_status MS_KERNEL(embed_dw)(ms_stream *s, float *dw, ms_act dy, const int32_t *token,
                              int64_t tokens, int64_t width, int64_t first, int64_t vocab,
                              float scale);
ms_status MS_KERNEL(rmsnorm)(ms_stream *s, ms_act y, float *rstd, ms_act x, const void *w,
                             int w_dtype, int64_t rows, int64_t cols, float eps, float offset,
                             const ms_norm_part *part);
ms_status MS_KERNEL(rmsnorm_backward)(ms_stream *s, ms_act dx, float *dw, ms_act dy, ms_act x,
                                      const float *rstd, const void *w, int w_dtype, int64_t rows,
                                      int64_t cols, float offset, int add,
                                      const ms_norm_part *part);
ms_status MS_KERNEL(row_dot)(ms_stream *s, float *sum, ms_act a, ms_act b, const void *w,
                             int w_dtype, int64_t rows, int64_t cols, int64_t from, float offset);
ms_status MS_KERNEL(rope)(ms_stream *s, ms_act x, const int32_t *position, const float *cosine,
                          const float *sine, int64_t tokens, int32_t heads, int32_t head_dim,
                          int32_t rotary, int sign);
ms_status MS_KERNEL(attention)(ms_stream *s, ms_act y, float *lse, ms_act q, ms_act k, ms_act v,
                               const int32_t *segment_start, const ms_attention_shape *shape);
ms_status MS_KERNEL(attention_backward)(ms_stream *s, ms_act dq, ms_act dk, ms_act dv, ms_act dy,
                                        ms_act y, const float *lse, ms_act q, ms_act k, ms_act v,
                                        const int32_t *segment_start,
                                        const ms_attention_shape *shape);
ms_status MS_KERNEL(attention_cached)(ms_stream *s, ms_act y, ms_act q, ms_act k, ms_act v,
                                      const int32_t *slot, const int32_t *first,
                                      const int32_t *length, int64_t capacity,
                                      const ms_attention_shape *shape);
ms_status MS_KERNEL(glu)(ms_stream *s, ms_act y, ms_act gate, ms_act up, int64_t n, int activation);
ms_status MS_KERNEL(glu_backward)(ms_stream *s, ms_act d_gate, ms_act d_up, ms_act dy, ms_act gate,
                                  ms_act up, int64_t n, int activation);
ms_status MS_KERNEL(add)(ms_stream *s, ms_act y, ms_act x, int64_t n, float scale);
ms_status MS_KERNEL(gather)(ms_stream *s, ms_act y, ms_act x, const int32_t *row, int64_t rows,
                            int64_t cols);
ms_status MS_KERNEL(scatter)(ms_stream *s, ms_act y, ms_act x, const int32_t *row, int64_t rows,
                             int64_t cols);
ms_status MS_KERNEL(topk)(ms_stream *s, const struct ms_topk_args *args);
ms_status MS_KERNEL(head_loss)(ms_stream *s, const struct ms_head_args *args);
ms_status MS_KERNEL(sum_squares)(ms_stream *s, double *sum, const float *x, int64_t n);
ms_status MS_KERNEL(head_join)(ms_stream *s, const struct ms_head_args *args);
ms_status MS_KERNEL(not_finite)(ms_stream *s, int64_t *at, const void *x, int dtype, int64_t n);
ms_status MS_KERNEL(adamw)(ms_stream *s, float *w, uint16_t *low, float *m, float *v,
                           const float *g, int64_t n, double lr, double beta1, double beta2,
                           double eps, double decay, double scale, double c1, double c2);
#endif

#endif

/* cpu.h - the CPU backend's shared declarations.
 *
 * Each kernel file is compiled once per instruction set with MS_ISA set; MS_KERNEL(rmsnorm) is then
 * ms_cpu_rmsnorm_avx512 and so on. cpu.c and gemm.c are compiled once. */
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

/* gemm.c: oneDNN behind one file. */
ms_status ms_cpu_linear(ms_stream *s, float *y, const float *x, const void *w, int w_dtype,
                        int64_t rows, int64_t in, int64_t out, int add);
ms_status ms_cpu_linear_dx(ms_stream *s, float *dx, const float *dy, const void *w, int w_dtype,
                           int64_t rows, int64_t in, int64_t out, int add);
ms_status ms_cpu_linear_dw(ms_stream *s, float *dw, const float *dy, const float *x, int64_t rows,
                           int64_t in, int64_t out, int add);

#ifdef MS_ISA
ms_status MS_KERNEL(cast)(ms_stream *s, void *y, int y_dtype, const void *x, int x_dtype, int64_t n);
#endif

#endif

/* ops.h - what a backend can do, one line per operation.
 *
 * Pointers live on the backend's device, except those called host. Work is queued on `s` and may
 * still be running when the call returns. An entry a backend lacks is NULL, and calling it is
 * MS_EUNSUPPORTED, never a fallback. Shapes are checked by core; kernels trust them.
 *
 * Order of arguments: stream, outputs, inputs, weights, scratch, dimensions, options. Activations
 * and gradients are f32. Weights are `const void *` with a dtype beside them, f32 or bf16. A
 * matrix is row-major and dense. `add` != 0 accumulates into the (first) output instead of setting
 * it; outputs without `add` are set unless their line says otherwise. Everything repeats bit for
 * bit for any number of threads: reductions are split by shape. */
#ifndef MS_OPS_H
#define MS_OPS_H
#include <stddef.h>
#include "../core/base/error.h"

typedef struct ms_stream ms_stream; /* NULL on the CPU */
struct ms_topk_args;                /* kernels/head.h */
struct ms_head_args;

/* The rows of an attention call, THD form: segment i is rows start[i] .. start[i+1]. window 0 is
 * none, otherwise position t sees t-window+1 .. t. */
typedef struct ms_attention_shape {
  int64_t tokens, segments;
  int32_t heads, kv_heads, head_dim, window;
  float scale;
} ms_attention_shape;

typedef struct ms_ops {
  const char *name; /* "cpu/avx512" */

  /* memory */
  ms_status (*alloc)(size_t bytes, void **out);
  void (*free)(void *p, size_t bytes);
  ms_status (*write)(ms_stream *s, void *device, const void *host, size_t bytes);
  ms_status (*read)(ms_stream *s, void *host, const void *device, size_t bytes);
  ms_status (*copy)(ms_stream *s, void *y, const void *x, size_t bytes);
  ms_status (*zero)(ms_stream *s, void *y, size_t bytes);
  ms_status (*sync)(ms_stream *s);
  /* y[i] = x[i], converted: f32, bf16, f16 in any pair; round to nearest even */
  ms_status (*cast)(ms_stream *s, void *y, int y_dtype, const void *x, int x_dtype, int64_t n);

  /* y[rows,out] = x[rows,in] w[out,in]^T */
  ms_status (*linear)(ms_stream *s, float *y, const float *x, const void *w, int w_dtype,
                      int64_t rows, int64_t in, int64_t out, int add);
  /* dx[rows,in] = dy[rows,out] w[out,in] */
  ms_status (*linear_dx)(ms_stream *s, float *dx, const float *dy, const void *w, int w_dtype,
                         int64_t rows, int64_t in, int64_t out, int add);
  /* dw[out,in] = dy[rows,out]^T x[rows,in] */
  ms_status (*linear_dw)(ms_stream *s, float *dw, const float *dy, const float *x, int64_t rows,
                         int64_t in, int64_t out, int add);
  /* y[r,:] += b; db[:] += sum over r of dy[r,:] */
  ms_status (*bias)(ms_stream *s, float *y, const void *b, int b_dtype, int64_t rows, int64_t cols);
  ms_status (*bias_db)(ms_stream *s, float *db, const float *dy, int64_t rows, int64_t cols);

  /* y[t,:] = w[token[t],:]; dw[token[t],:] += dy[t,:] in order of t */
  ms_status (*embed)(ms_stream *s, float *y, const int32_t *token, const void *w, int w_dtype,
                     int64_t tokens, int64_t width);
  ms_status (*embed_dw)(ms_stream *s, float *dw, const float *dy, const int32_t *token,
                        int64_t tokens, int64_t width, int64_t vocab);

  /* y[r,:] = x[r,:] * w / sqrt(mean(x[r,:]^2) + eps); rstd[r] keeps 1/sqrt (NULL: not wanted).
   * y may be x. dx may be dy; dw is added to (NULL: frozen). */
  ms_status (*rmsnorm)(ms_stream *s, float *y, float *rstd, const float *x, const void *w,
                       int w_dtype, int64_t rows, int64_t cols, float eps);
  ms_status (*rmsnorm_backward)(ms_stream *s, float *dx, float *dw, const float *dy, const float *x,
                                const float *rstd, const void *w, int w_dtype, int64_t rows,
                                int64_t cols, int add);

  /* Rotates the first `rotary` of head_dim in halves (i, i + rotary/2), in place; cosine and sine
   * are tables f32 [positions, rotary/2], position[tokens]. `sign` -1 is the backward pass. */
  ms_status (*rope)(ms_stream *s, float *x, const int32_t *position, const float *cosine,
                    const float *sine, int64_t tokens, int32_t heads, int32_t head_dim,
                    int32_t rotary, int sign);

  /* y[t,h,:] = softmax(scale q k^T) v, causal within the segment. q, y [tokens,heads,head_dim];
   * k, v [tokens,kv_heads,head_dim]; lse f32 [tokens,heads] is kept for the backward pass (NULL:
   * not wanted). Memory beyond these is linear in nothing: fixed per thread. */
  ms_status (*attention)(ms_stream *s, float *y, float *lse, const float *q, const float *k,
                         const float *v, const int32_t *segment_start,
                         const ms_attention_shape *shape);
  ms_status (*attention_backward)(ms_stream *s, float *dq, float *dk, float *dv, const float *dy,
                                  const float *y, const float *lse, const float *q, const float *k,
                                  const float *v, const int32_t *segment_start,
                                  const ms_attention_shape *shape);
  /* Decoding: rows of q against caches. Row r sees keys first[r] .. first[r]+length[r] of the
   * cache of its row, k and v [cache rows, capacity, kv_heads, head_dim], cache row slot[r]. */
  ms_status (*attention_cached)(ms_stream *s, float *y, const float *q, const float *k,
                                const float *v, const int32_t *slot, const int32_t *first,
                                const int32_t *length, int64_t rows, int64_t capacity,
                                int32_t heads, int32_t kv_heads, int32_t head_dim, float scale);

  /* y = silu(gate) * up; the backward pass may write over gate and up */
  ms_status (*swiglu)(ms_stream *s, float *y, const float *gate, const float *up, int64_t n);
  ms_status (*swiglu_backward)(ms_stream *s, float *d_gate, float *d_up, const float *dy,
                               const float *gate, const float *up, int64_t n);
  /* y += x */
  ms_status (*add)(ms_stream *s, float *y, const float *x, int64_t n);
  /* y[i,:] = x[row[i],:]; the backward pass sets y[row[i],:] = x[i,:], row ascending */
  ms_status (*gather)(ms_stream *s, float *y, const float *x, const int32_t *row, int64_t rows,
                      int64_t cols);
  ms_status (*scatter)(ms_stream *s, float *y, const float *x, const int32_t *row, int64_t rows,
                       int64_t cols);

  /* the fused head's two: kernels/head.h has the structs and the formulas */
  ms_status (*topk)(ms_stream *s, const struct ms_topk_args *args);
  ms_status (*head_loss)(ms_stream *s, const struct ms_head_args *args);

  /* *sum = sum of x^2, in double on the device; not finite exactly when an element is not */
  ms_status (*sum_squares)(ms_stream *s, double *sum, const float *x, int64_t n, int add);
  /* index of the first NaN or infinity among x, f32 or bf16; -1 for none; a host result */
  ms_status (*not_finite)(ms_stream *s, int64_t *at, const void *x, int dtype, int64_t n);
  /* Decoupled AdamW on f32 masters w; `low` (bf16, NULL for none) gets the rounded result. scale
   * multiplies the gradient; c1 = 1 - beta1^t and c2 = 1 - beta2^t. Rates are double: 1 - beta2
   * of a float beta2 is off by 1e-5. */
  ms_status (*adamw)(ms_stream *s, float *w, uint16_t *low, float *m, float *v, const float *g,
                     int64_t n, double lr, double beta1, double beta2, double eps, double decay,
                     double scale, double c1, double c2);
} ms_ops;

#endif

/* ops.h - what a backend can do, one line per operation.
 *
 * Kernels include kernels/ and core/base, and nothing else of core.
 *
 * Pointers live on the device of the stream, except those called host. Shapes and the limits below
 * are checked by core; kernels trust them. An entry a backend lacks is NULL, and calling it is
 * MS_EUNSUPPORTED, never a fallback.
 *
 * Work is queued on `s` in order of the calls and may still be running when a call returns. After
 * `write` its host memory may be used again. Only `read` and the entries whose results are called
 * host wait: when they return, the result is there, and so is all that was queued before.
 *
 * Order of arguments: stream, outputs, inputs, weights, scratch, dimensions, options. Activations and
 * their gradients are ms_act; which dtypes they have is the device's precision. Gradients of weights
 * are f32. Weights are `const void *` with a dtype beside them, f32 or bf16. A matrix is row-major and
 * dense. `add` != 0 accumulates into the (first) output instead of setting it; outputs without `add`
 * are set unless their line says otherwise. Everything repeats bit for bit for any number of threads:
 * reductions are split by shape. */
#ifndef MS_OPS_H
#define MS_OPS_H
#include <stddef.h>
#include "../core/base/memory.h"

typedef struct ms_stream ms_stream; /* NULL on the CPU */
struct ms_topk_args;                /* kernels/head.h */
struct ms_head_args;

/* An activation or a gradient of one: where it is, and what its numbers are held in. */
typedef struct ms_act {
  void *at;
  int dtype;
} ms_act;

/* What activations are held in on a device. */
typedef struct ms_precision {
  int stream;    /* the residual stream, and what norms give */
  int product;   /* inputs and outputs of matrix products inside a layer */
  int attention; /* queries, keys, values and what attention gives; caches of keys and values */
  int logits;    /* the student's in the head, and their gradient; a teacher's are f32 */
} ms_precision;

/* What core gives a backend: how it reports errors and says things. A backend in a shared object of its
 * own reaches core by nothing else. */
typedef struct ms_host {
  ms_status (*fail)(ms_status status, const char *file, int line, const char *format, ...);
  void (*log)(int level, const char *format, ...);
} ms_host;

/* A backend is a function of this type. Core refuses a table of another version or size. */
enum { MS_OPS_VERSION = 2 };
typedef const struct ms_ops *ms_backend(const ms_host *host);

/* The rows of an attention call, THD form: segment i is rows start[i] .. start[i+1], `longest` the most
 * that one has. window 0 is none, otherwise position t sees t-window+1 .. t.
 *
 * `group` heads share a key/value head, in order. Where the heads are a part of a model's they may begin
 * and end inside a group: the first one here is number `shift` of its group. */
typedef struct ms_attention_shape {
  int64_t tokens, segments, longest;
  int32_t heads, kv_heads, head_dim, window;
  int32_t group, shift; /* kv_heads = (shift + heads - 1) / group + 1 */
  float scale;
  float soft_cap; /* scores s become c tanh(s / c) after `scale`; 0 for none */
} ms_attention_shape;
static inline int32_t ms_kv_head(const ms_attention_shape *a, int32_t head) {
  return (head + a->shift) / a->group;
}

/* Rows of which not all columns are here: what a norm must know of the others. */
typedef struct ms_norm_part {
  const float *sum; /* [rows], of whole rows: forwards of x^2, backwards of dy x (w + offset) */
  int64_t width;    /* columns of whole rows */
  int64_t copied;   /* leading columns here that another part has too, where they are counted */
} ms_norm_part;

/* What gates the MLP. */
enum { MS_SILU, MS_GELU_TANH };

/* Squares of a gradient are summed in blocks of this many elements. */
enum { MS_SQUARES_BLOCK = 1 << 15 };
static inline int64_t ms_squares_blocks(int64_t n) {
  return (n + MS_SQUARES_BLOCK - 1) / MS_SQUARES_BLOCK;
}

typedef struct ms_ops {
  int version;      /* MS_OPS_VERSION */
  size_t size;      /* sizeof(ms_ops) */
  const char *name; /* "cpu/avx512" */
  ms_precision precision;

  /* devices 0 .. devices() - 1, and their queues of work */
  int (*devices)(void);
  ms_status (*stream_open)(int device, ms_stream **out);
  void (*stream_close)(ms_stream *s);

  /* memory: its content is undefined, its alignment MS_ALIGN; `free` lets queued work end first */
  ms_status (*alloc)(int device, size_t bytes, void **out);
  void (*free)(int device, void *p, size_t bytes);
  ms_status (*write)(ms_stream *s, void *device, const void *host, size_t bytes);
  ms_status (*read)(ms_stream *s, void *host, const void *device, size_t bytes);
  ms_status (*copy)(ms_stream *s, void *y, const void *x, size_t bytes);
  ms_status (*zero)(ms_stream *s, void *y, size_t bytes);
  /* y[i] = x[i], converted: f32, bf16, f16 in any pair; round to nearest even */
  ms_status (*cast)(ms_stream *s, void *y, int y_dtype, const void *x, int x_dtype, int64_t n);

  /* y[rows,out] = x[rows,in] w[out,in]^T */
  ms_status (*linear)(ms_stream *s, ms_act y, ms_act x, const void *w, int w_dtype, int64_t rows,
                      int64_t in, int64_t out, int add);
  /* dx[rows,in] = dy[rows,out] w[out,in] */
  ms_status (*linear_dx)(ms_stream *s, ms_act dx, ms_act dy, const void *w, int w_dtype,
                         int64_t rows, int64_t in, int64_t out, int add);
  /* dw[out,in] = dy[rows,out]^T x[rows,in] */
  ms_status (*linear_dw)(ms_stream *s, float *dw, ms_act dy, ms_act x, int64_t rows, int64_t in,
                         int64_t out, int add);
  /* y[r,:] += b; db[:] += sum over r of dy[r,:] */
  ms_status (*bias)(ms_stream *s, ms_act y, const void *b, int b_dtype, int64_t rows, int64_t cols);
  ms_status (*bias_db)(ms_stream *s, float *db, ms_act dy, int64_t rows, int64_t cols);

  /* y[t,:] = scale w[token[t] - first,:]; dw[token[t] - first,:] += scale dy[t,:] in order of t. w and
   * dw have the rows of `vocab` ids (0 is possible): another id's y is zeros, its dy goes nowhere. */
  ms_status (*embed)(ms_stream *s, ms_act y, const int32_t *token, const void *w, int w_dtype,
                     int64_t tokens, int64_t width, int64_t first, int64_t vocab, float scale);
  ms_status (*embed_dw)(ms_stream *s, float *dw, ms_act dy, const int32_t *token, int64_t tokens,
                        int64_t width, int64_t first, int64_t vocab, float scale);

  /* y[r,:] = x[r,:] * (w + offset) / sqrt(mean(x[r,:]^2) + eps); rstd[r] keeps 1/sqrt (NULL: not
   * wanted). y may be x. dx may be dy; dw is added to (NULL: frozen). `part` NULL: rows are whole.
   * Otherwise the sums of whole rows are made of those of all parts by row_dot: forwards of x and x
   * without the columns that are copied, backwards of dy, x and w with them, since of a copied column
   * each part has the dy of its own uses. dx and dw of such a column are then to be added up too: what
   * comes from the mean is in the part alone that counts it. */
  ms_status (*rmsnorm)(ms_stream *s, ms_act y, float *rstd, ms_act x, const void *w, int w_dtype,
                       int64_t rows, int64_t cols, float eps, float offset,
                       const ms_norm_part *part);
  ms_status (*rmsnorm_backward)(ms_stream *s, ms_act dx, float *dw, ms_act dy, ms_act x,
                                const float *rstd, const void *w, int w_dtype, int64_t rows,
                                int64_t cols, float offset, int add, const ms_norm_part *part);
  /* sum[r] = sum over from <= c < cols of a[r,c] b[r,c] (w[c] + offset), w NULL: of a b */
  ms_status (*row_dot)(ms_stream *s, float *sum, ms_act a, ms_act b, const void *w, int w_dtype,
                       int64_t rows, int64_t cols, int64_t from, float offset);

  /* Rotates the first `rotary` of head_dim in halves (i, i + rotary/2), in place; cosine and sine
   * are tables f32 [positions, rotary/2], position[tokens]. `sign` -1 is the backward pass. */
  ms_status (*rope)(ms_stream *s, ms_act x, const int32_t *position, const float *cosine,
                    const float *sine, int64_t tokens, int32_t heads, int32_t head_dim,
                    int32_t rotary, int sign);

  int32_t max_head_dim; /* the largest of the next three; core refuses a model beyond it */
  /* y[t,h,:] = softmax(scale q k^T) v, causal within the segment. q, y [tokens,heads,head_dim];
   * k, v [tokens,kv_heads,head_dim]; lse f32 [tokens,heads] is kept for the backward pass (NULL:
   * not wanted). Memory beyond these is linear in nothing: fixed per thread. */
  ms_status (*attention)(ms_stream *s, ms_act y, float *lse, ms_act q, ms_act k, ms_act v,
                         const int32_t *segment_start, const ms_attention_shape *shape);
  ms_status (*attention_backward)(ms_stream *s, ms_act dq, ms_act dk, ms_act dv, ms_act dy,
                                  ms_act y, const float *lse, ms_act q, ms_act k, ms_act v,
                                  const int32_t *segment_start, const ms_attention_shape *shape);
  /* Decoding: shape->tokens rows of q against caches. Row r sees keys first[r] .. first[r]+length[r]
   * of the cache of its row, k and v [cache rows, capacity, kv_heads, head_dim], cache row slot[r];
   * the shape's segments and window do not count. */
  ms_status (*attention_cached)(ms_stream *s, ms_act y, ms_act q, ms_act k, ms_act v,
                                const int32_t *slot, const int32_t *first, const int32_t *length,
                                int64_t capacity, const ms_attention_shape *shape);

  /* y = act(gate) * up, act being x sigmoid(x), or x sigmoid(2u) with u = sqrt(2 / pi) (x + 0.044715
   * x^3); the backward pass may write over gate and up */
  ms_status (*glu)(ms_stream *s, ms_act y, ms_act gate, ms_act up, int64_t n, int activation);
  ms_status (*glu_backward)(ms_stream *s, ms_act d_gate, ms_act d_up, ms_act dy, ms_act gate,
                            ms_act up, int64_t n, int activation);
  /* y += scale x */
  ms_status (*add)(ms_stream *s, ms_act y, ms_act x, int64_t n, float scale);
  /* y[i,:] = x[row[i],:]; the backward pass sets y[row[i],:] = x[i,:], row ascending */
  ms_status (*gather)(ms_stream *s, ms_act y, ms_act x, const int32_t *row, int64_t rows,
                      int64_t cols);
  ms_status (*scatter)(ms_stream *s, ms_act y, ms_act x, const int32_t *row, int64_t rows,
                       int64_t cols);

  /* the fused head's: kernels/head.h has the structs and the formulas. head_join takes what the parts of
   * a phase say into the records. */
  ms_status (*topk)(ms_stream *s, const struct ms_topk_args *args);
  ms_status (*head_loss)(ms_stream *s, const struct ms_head_args *args);
  ms_status (*head_join)(ms_stream *s, const struct ms_head_args *args);

  /* sum[b] = sum of x^2 over the b-th MS_SQUARES_BLOCK elements, in double on the device; not finite
   * exactly when an element is not */
  ms_status (*sum_squares)(ms_stream *s, double *sum, const float *x, int64_t n);
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

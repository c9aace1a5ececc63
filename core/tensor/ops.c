/* ops.c - the operation table as functions on tensors: types, shapes, devices and indices are
 * checked here, once; kernels trust them. */
#include <math.h>
#include <stdio.h>

#include "../base/memory.h"
#include "tensor.h"

enum { WEIGHT = -1 }; /* f32 or bf16 */

#define SHAPE(...) \
  (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8), (int64_t[]) { __VA_ARGS__ }

static int fits(const ms_tensor *t, int dtype, int rank, const int64_t *shape) {
  int ok = t->rank == rank &&
           (dtype == WEIGHT ? t->dtype == MS_F32 || t->dtype == MS_BF16 : t->dtype == dtype);
  for (int i = 0; ok && i < rank; i++) ok = !shape[i] || t->shape[i] == shape[i];
  return ok;
}

/* The shape an argument should have, "*" for sizes that are free. */
static const char *wanted_text(int rank, const int64_t *shape, char *buffer, size_t room) {
  size_t n = (size_t)snprintf(buffer, room, "[");
  for (int i = 0; i < rank; i++)
    n += (size_t)(shape[i]
                      ? snprintf(buffer + n, room - n, i ? ", %lld" : "%lld", (long long)shape[i])
                      : snprintf(buffer + n, room - n, i ? ", *" : "*"));
  snprintf(buffer + n, room - n, "]");
  return buffer;
}

/* Checks that an argument of `op` is given, is on the device of `like`, and has this dtype and shape;
 * a 0 in the shape allows any size. */
static ms_status want(const char *op, const char *name, const ms_tensor *like, const ms_tensor *t,
                      int dtype, int rank, const int64_t *shape) {
  char a[200], b[200];
  MS_REQUIRE(t, "%s: %s is missing", op, name);
  MS_REQUIRE(!like || t->dev == like->dev, "%s: %s is on %s, not on %s", op, name, t->dev->spec,
             like ? like->dev->spec : "");
  MS_REQUIRE(fits(t, dtype, rank, shape), "%s: %s is %s %s, not %s %s", op, name,
             ms_dtype_name(t->dtype), ms_shape_text(t->rank, t->shape, a),
             dtype == WEIGHT ? "f32 or bf16" : ms_dtype_name(dtype),
             wanted_text(rank, shape, b, sizeof b));
  return MS_OK;
}

/* Checks an f32 argument that must have as many elements as `like`, in any shape. */
static ms_status want_count(const char *op, const char *name, const ms_tensor *like,
                            const ms_tensor *t) {
  char a[200], b[200];
  MS_REQUIRE(t && like, "%s: %s is missing", op, t ? "a tensor" : name);
  MS_REQUIRE(t->dev == like->dev, "%s: %s is on %s, not on %s", op, name, t->dev->spec,
             like->dev->spec);
  MS_REQUIRE(t->dtype == MS_F32, "%s: %s is %s, not f32", op, name, ms_dtype_name(t->dtype));
  MS_REQUIRE(t->count == like->count, "%s: %s is %s, not %s", op, name,
             ms_shape_text(t->rank, t->shape, a), ms_shape_text(like->rank, like->shape, b));
  return MS_OK;
}

/* The values of an i32 argument, copied to the host; freed with ms_free. */
static ms_status host_indices(const ms_tensor *t, int32_t **out) {
  void *p;
  *out = NULL;
  MS_TRY(ms_alloc_undefined((size_t)t->count * sizeof(int32_t), "indices", &p));
  ms_status st = ms_tensor_read(t, p, t->count * (int64_t)sizeof(int32_t));
  if (st == MS_OK)
    *out = p;
  else
    ms_free(p);
  return st;
}

/* Checks that every element is in 0 .. below - 1 and, if `ascending`, larger than the one before. */
static ms_status want_indices(const char *op, const char *name, const ms_tensor *t, int64_t below,
                              int ascending) {
  ms_status st = MS_OK;
  int32_t *v;
  MS_TRY(host_indices(t, &v));
  for (int64_t i = 0; i < t->count; i++) {
    MS_REQUIRE_OR(end, v[i] >= 0 && v[i] < below, "%s: %s[%lld] is %d, not in 0..%lld", op, name,
                  (long long)i, v[i], (long long)below - 1);
    MS_REQUIRE_OR(end, !ascending || i == 0 || v[i] > v[i - 1],
                  "%s: %s[%lld] is %d after %d, not ascending", op, name, (long long)i, v[i],
                  v[i - 1]);
  }
end:
  ms_free(v);
  return st;
}

/* ---- matrices ---- */

/* Of all three forms: x [rows, in] and w [out, in] give the sizes, y must be [rows, out]. */
static ms_status check_linear(const char *op, const char *ny, const ms_tensor *y, const char *nx,
                              const ms_tensor *x, const char *nw, const ms_tensor *w, int w_dtype) {
  MS_TRY(want(op, nx, NULL, x, MS_F32, SHAPE(0, 0)));
  MS_TRY(want(op, nw, x, w, w_dtype, SHAPE(0, x->shape[1])));
  return want(op, ny, x, y, MS_F32, SHAPE(x->shape[0], w->shape[0]));
}

ms_status ms_linear(ms_tensor *y, const ms_tensor *x, const ms_tensor *w, int add) {
  ms_tensor_change(y);
  MS_TRY(check_linear("linear", "y", y, "x", x, "w", w, WEIGHT));
  return MS_OP(x->dev, linear, ms_tensor_act(y), ms_tensor_act(x), w->data, w->dtype, x->shape[0],
               x->shape[1], w->shape[0], add);
}

ms_status ms_linear_dx(ms_tensor *dx, const ms_tensor *dy, const ms_tensor *w, int add) {
  ms_tensor_change(dx);
  MS_TRY(check_linear("linear_dx", "dy", dy, "dx", dx, "w", w, WEIGHT));
  return MS_OP(dx->dev, linear_dx, ms_tensor_act(dx), ms_tensor_act(dy), w->data, w->dtype,
               dx->shape[0], dx->shape[1], w->shape[0], add);
}

ms_status ms_linear_dw(ms_tensor *dw, const ms_tensor *dy, const ms_tensor *x, int add) {
  ms_tensor_change(dw);
  MS_TRY(check_linear("linear_dw", "dy", dy, "x", x, "dw", dw, MS_F32));
  return MS_OP(x->dev, linear_dw, dw->data, ms_tensor_act(dy), ms_tensor_act(x), x->shape[0],
               x->shape[1], dw->shape[0], add);
}

ms_status ms_bias(ms_tensor *y, const ms_tensor *b) {
  ms_tensor_change(y);
  MS_TRY(want("bias", "y", NULL, y, MS_F32, SHAPE(0, 0)));
  MS_TRY(want("bias", "b", y, b, WEIGHT, SHAPE(y->shape[1])));
  return MS_OP(y->dev, bias, ms_tensor_act(y), b->data, b->dtype, y->shape[0], y->shape[1]);
}

ms_status ms_bias_db(ms_tensor *db, const ms_tensor *dy) {
  ms_tensor_change(db);
  MS_TRY(want("bias_db", "dy", NULL, dy, MS_F32, SHAPE(0, 0)));
  MS_TRY(want("bias_db", "db", dy, db, MS_F32, SHAPE(dy->shape[1])));
  return MS_OP(dy->dev, bias_db, db->data, ms_tensor_act(dy), dy->shape[0], dy->shape[1]);
}

/* ---- embedding and rows ---- */

ms_status ms_embed(ms_tensor *y, const ms_tensor *token, const ms_tensor *w, double scale) {
  ms_tensor_change(y);
  MS_TRY(want("embed", "w", NULL, w, WEIGHT, SHAPE(0, 0)));
  MS_TRY(want("embed", "token", w, token, MS_I32, SHAPE(0)));
  MS_TRY(want("embed", "y", w, y, MS_F32, SHAPE(token->shape[0], w->shape[1])));
  MS_TRY(want_indices("embed", "token", token, w->shape[0], 0));
  return MS_OP(w->dev, embed, ms_tensor_act(y), token->data, w->data, w->dtype, y->shape[0],
               y->shape[1], 0, w->shape[0], (float)scale);
}

ms_status ms_embed_dw(ms_tensor *dw, const ms_tensor *dy, const ms_tensor *token, double scale) {
  ms_tensor_change(dw);
  MS_TRY(want("embed_dw", "dw", NULL, dw, MS_F32, SHAPE(0, 0)));
  MS_TRY(want("embed_dw", "token", dw, token, MS_I32, SHAPE(0)));
  MS_TRY(want("embed_dw", "dy", dw, dy, MS_F32, SHAPE(token->shape[0], dw->shape[1])));
  MS_TRY(want_indices("embed_dw", "token", token, dw->shape[0], 0));
  return MS_OP(dw->dev, embed_dw, dw->data, ms_tensor_act(dy), token->data, dy->shape[0],
               dy->shape[1], 0, dw->shape[0], (float)scale);
}

ms_status ms_gather(ms_tensor *y, const ms_tensor *x, const ms_tensor *row) {
  ms_tensor_change(y);
  MS_TRY(want("gather", "x", NULL, x, MS_F32, SHAPE(0, 0)));
  MS_TRY(want("gather", "row", x, row, MS_I32, SHAPE(0)));
  MS_TRY(want("gather", "y", x, y, MS_F32, SHAPE(row->shape[0], x->shape[1])));
  MS_TRY(want_indices("gather", "row", row, x->shape[0], 0));
  return MS_OP(x->dev, gather, ms_tensor_act(y), ms_tensor_act(x), row->data, y->shape[0],
               y->shape[1]);
}

ms_status ms_scatter(ms_tensor *y, const ms_tensor *x, const ms_tensor *row) {
  ms_tensor_change(y);
  MS_TRY(want("scatter", "y", NULL, y, MS_F32, SHAPE(0, 0)));
  MS_TRY(want("scatter", "row", y, row, MS_I32, SHAPE(0)));
  MS_TRY(want("scatter", "x", y, x, MS_F32, SHAPE(row->shape[0], y->shape[1])));
  MS_TRY(want_indices("scatter", "row", row, y->shape[0], 1));
  return MS_OP(y->dev, scatter, ms_tensor_act(y), ms_tensor_act(x), row->data, x->shape[0],
               x->shape[1]);
}

/* ---- norm, rope, attention ---- */

ms_status ms_rmsnorm(ms_tensor *y, ms_tensor *rstd, const ms_tensor *x, const ms_tensor *w,
                     double eps, double offset) {
  ms_tensor_change(y);
  ms_tensor_change(rstd);
  MS_TRY(want("rmsnorm", "x", NULL, x, MS_F32, SHAPE(0, 0)));
  MS_TRY(want("rmsnorm", "y", x, y, MS_F32, SHAPE(x->shape[0], x->shape[1])));
  MS_TRY(want("rmsnorm", "w", x, w, WEIGHT, SHAPE(x->shape[1])));
  if (rstd) MS_TRY(want("rmsnorm", "rstd", x, rstd, MS_F32, SHAPE(x->shape[0])));
  return MS_OP(x->dev, rmsnorm, ms_tensor_act(y), rstd ? rstd->data : NULL, ms_tensor_act(x),
               w->data, w->dtype, x->shape[0], x->shape[1], (float)eps, (float)offset, NULL);
}

ms_status ms_rmsnorm_backward(ms_tensor *dx, ms_tensor *dw, const ms_tensor *dy, const ms_tensor *x,
                              const ms_tensor *rstd, const ms_tensor *w, int add, double offset) {
  ms_tensor_change(dx);
  ms_tensor_change(dw);
  const char *op = "rmsnorm_backward";
  MS_TRY(want(op, "x", NULL, x, MS_F32, SHAPE(0, 0)));
  MS_TRY(want(op, "dx", x, dx, MS_F32, SHAPE(x->shape[0], x->shape[1])));
  MS_TRY(want(op, "dy", x, dy, MS_F32, SHAPE(x->shape[0], x->shape[1])));
  MS_TRY(want(op, "w", x, w, WEIGHT, SHAPE(x->shape[1])));
  MS_TRY(want(op, "rstd", x, rstd, MS_F32, SHAPE(x->shape[0])));
  if (dw) MS_TRY(want(op, "dw", x, dw, MS_F32, SHAPE(x->shape[1])));
  return MS_OP(x->dev, rmsnorm_backward, ms_tensor_act(dx), dw ? dw->data : NULL, ms_tensor_act(dy),
               ms_tensor_act(x), rstd->data, w->data, w->dtype, x->shape[0], x->shape[1],
               (float)offset, add, NULL);
}

ms_status ms_rope(ms_tensor *x, const ms_tensor *position, const ms_tensor *cosine,
                  const ms_tensor *sine, int sign) {
  ms_tensor_change(x);
  MS_TRY(want("rope", "x", NULL, x, MS_F32, SHAPE(0, 0, 0)));
  MS_TRY(want("rope", "cosine", x, cosine, MS_F32, SHAPE(0, 0)));
  MS_TRY(want("rope", "sine", x, sine, MS_F32, SHAPE(cosine->shape[0], cosine->shape[1])));
  MS_TRY(want("rope", "position", x, position, MS_I32, SHAPE(x->shape[0])));
  MS_TRY(want_indices("rope", "position", position, cosine->shape[0], 0));
  MS_REQUIRE(2 * cosine->shape[1] <= x->shape[2], "rope: %lld pairs in a head of %lld",
             (long long)cosine->shape[1], (long long)x->shape[2]);
  MS_REQUIRE(sign == 1 || sign == -1, "rope: sign is %d, not 1 or -1", sign);
  return MS_OP(x->dev, rope, ms_tensor_act(x), position->data, cosine->data, sine->data,
               x->shape[0], (int32_t)x->shape[1], (int32_t)x->shape[2],
               (int32_t)(2 * cosine->shape[1]), sign);
}

/* Sets the length of the longest. */
static ms_status want_segments(const char *op, const ms_tensor *start, int64_t tokens,
                               int64_t *longest) {
  ms_status st = MS_OK;
  int32_t *v;
  MS_TRY(host_indices(start, &v));
  int64_t last = start->count - 1;
  MS_REQUIRE_OR(end, v[0] == 0 && v[last] == tokens,
                "%s: segments go from %d to %d, not from 0 to %lld", op, v[0], v[last],
                (long long)tokens);
  *longest = 0;
  for (int64_t i = 0; i < last; i++) {
    MS_REQUIRE_OR(end, v[i] <= v[i + 1], "%s: segment %lld goes from %d to %d", op, (long long)i,
                  v[i], v[i + 1]);
    if (v[i + 1] - v[i] > *longest) *longest = v[i + 1] - v[i];
  }
end:
  ms_free(v);
  return st;
}

/* What all three check, and share. */
static ms_status check_heads(const char *op, const ms_tensor *q, int64_t kv_heads,
                             double soft_cap) {
  MS_REQUIRE(q->shape[1] % kv_heads == 0, "%s: %lld heads over %lld kv_heads", op,
             (long long)q->shape[1], (long long)kv_heads);
  MS_REQUIRE(q->shape[2] <= q->dev->ops->max_head_dim, "%s: head_dim %lld over %d", op,
             (long long)q->shape[2], q->dev->ops->max_head_dim);
  MS_REQUIRE(soft_cap >= 0, "%s: soft_cap %g", op, soft_cap);
  return MS_OK;
}

/* q decides tokens, heads and head_dim; k decides kv_heads. */
static ms_status check_attention(const char *op, const ms_tensor *q, const ms_tensor *k,
                                 const ms_tensor *v, const ms_tensor *start, int window,
                                 double scale, double soft_cap, ms_attention_shape *a) {
  int64_t longest = 0;
  MS_TRY(want(op, "q", NULL, q, MS_F32, SHAPE(0, 0, 0)));
  MS_TRY(want(op, "k", q, k, MS_F32, SHAPE(q->shape[0], 0, q->shape[2])));
  MS_TRY(want(op, "v", q, v, MS_F32, SHAPE(q->shape[0], k->shape[1], q->shape[2])));
  MS_TRY(want(op, "segment_start", q, start, MS_I32, SHAPE(0)));
  MS_TRY(want_segments(op, start, q->shape[0], &longest));
  MS_TRY(check_heads(op, q, k->shape[1], soft_cap));
  MS_REQUIRE(window >= 0, "%s: window %d", op, window);
  *a = (ms_attention_shape){.tokens = q->shape[0],
                            .segments = start->shape[0] - 1,
                            .longest = longest,
                            .heads = (int32_t)q->shape[1],
                            .kv_heads = (int32_t)k->shape[1],
                            .head_dim = (int32_t)q->shape[2],
                            .window = window,
                            .group = (int32_t)(q->shape[1] / k->shape[1]),
                            .scale = (float)scale,
                            .soft_cap = (float)soft_cap};
  return MS_OK;
}

ms_status ms_attention(ms_tensor *y, ms_tensor *lse, const ms_tensor *q, const ms_tensor *k,
                       const ms_tensor *v, const ms_tensor *segment_start, int window, double scale,
                       double soft_cap) {
  ms_tensor_change(y);
  ms_tensor_change(lse);
  ms_attention_shape a;
  MS_TRY(check_attention("attention", q, k, v, segment_start, window, scale, soft_cap, &a));
  MS_TRY(want("attention", "y", q, y, MS_F32, SHAPE(a.tokens, a.heads, a.head_dim)));
  if (lse) MS_TRY(want("attention", "lse", q, lse, MS_F32, SHAPE(a.tokens, a.heads)));
  return MS_OP(q->dev, attention, ms_tensor_act(y), lse ? lse->data : NULL, ms_tensor_act(q),
               ms_tensor_act(k), ms_tensor_act(v), segment_start->data, &a);
}

ms_status ms_attention_backward(ms_tensor *dq, ms_tensor *dk, ms_tensor *dv, const ms_tensor *dy,
                                const ms_tensor *y, const ms_tensor *lse, const ms_tensor *q,
                                const ms_tensor *k, const ms_tensor *v,
                                const ms_tensor *segment_start, int window, double scale,
                                double soft_cap) {
  ms_tensor_change(dq);
  ms_tensor_change(dk);
  ms_tensor_change(dv);
  const char *op = "attention_backward";
  ms_attention_shape a;
  MS_TRY(check_attention(op, q, k, v, segment_start, window, scale, soft_cap, &a));
  MS_TRY(want(op, "dq", q, dq, MS_F32, SHAPE(a.tokens, a.heads, a.head_dim)));
  MS_TRY(want(op, "dk", q, dk, MS_F32, SHAPE(a.tokens, a.kv_heads, a.head_dim)));
  MS_TRY(want(op, "dv", q, dv, MS_F32, SHAPE(a.tokens, a.kv_heads, a.head_dim)));
  MS_TRY(want(op, "dy", q, dy, MS_F32, SHAPE(a.tokens, a.heads, a.head_dim)));
  MS_TRY(want(op, "y", q, y, MS_F32, SHAPE(a.tokens, a.heads, a.head_dim)));
  MS_TRY(want(op, "lse", q, lse, MS_F32, SHAPE(a.tokens, a.heads)));
  return MS_OP(q->dev, attention_backward, ms_tensor_act(dq), ms_tensor_act(dk), ms_tensor_act(dv),
               ms_tensor_act(dy), ms_tensor_act(y), lse->data, ms_tensor_act(q), ms_tensor_act(k),
               ms_tensor_act(v), segment_start->data, &a);
}

/* Each row's keys must lie inside its cache row. */
static ms_status want_spans(const ms_tensor *slot, const ms_tensor *first, const ms_tensor *length,
                            int64_t slots, int64_t capacity) {
  int32_t *from = NULL, *count = NULL;
  ms_status st;
  MS_TRY(want_indices("attention_cached", "slot", slot, slots, 0));
  MS_TRY_OR(end, host_indices(first, &from));
  MS_TRY_OR(end, host_indices(length, &count));
  for (int64_t r = 0; r < first->count; r++)
    MS_REQUIRE_OR(end, from[r] >= 0 && count[r] > 0 && (int64_t)from[r] + count[r] <= capacity,
                  "attention_cached: row %lld sees %d keys from %d of %lld", (long long)r, count[r],
                  from[r], (long long)capacity);
end:
  ms_free(count);
  ms_free(from);
  return st;
}

ms_status ms_attention_cached(ms_tensor *y, const ms_tensor *q, const ms_tensor *k,
                              const ms_tensor *v, const ms_tensor *slot, const ms_tensor *first,
                              const ms_tensor *length, double scale, double soft_cap) {
  ms_tensor_change(y);
  const char *op = "attention_cached";
  MS_TRY(want(op, "q", NULL, q, MS_F32, SHAPE(0, 0, 0)));
  MS_TRY(want(op, "y", q, y, MS_F32, SHAPE(q->shape[0], q->shape[1], q->shape[2])));
  MS_TRY(want(op, "k", q, k, MS_F32, SHAPE(0, 0, 0, q->shape[2])));
  MS_TRY(want(op, "v", q, v, MS_F32, SHAPE(k->shape[0], k->shape[1], k->shape[2], k->shape[3])));
  MS_TRY(want(op, "slot", q, slot, MS_I32, SHAPE(q->shape[0])));
  MS_TRY(want(op, "first", q, first, MS_I32, SHAPE(q->shape[0])));
  MS_TRY(want(op, "length", q, length, MS_I32, SHAPE(q->shape[0])));
  MS_TRY(check_heads(op, q, k->shape[2], soft_cap));
  MS_TRY(want_spans(slot, first, length, k->shape[0], k->shape[1]));
  ms_attention_shape a = {.tokens = q->shape[0],
                          .heads = (int32_t)q->shape[1],
                          .kv_heads = (int32_t)k->shape[2],
                          .head_dim = (int32_t)q->shape[2],
                          .group = (int32_t)(q->shape[1] / k->shape[2]),
                          .scale = (float)scale,
                          .soft_cap = (float)soft_cap};
  return MS_OP(q->dev, attention_cached, ms_tensor_act(y), ms_tensor_act(q), ms_tensor_act(k),
               ms_tensor_act(v), slot->data, first->data, length->data, k->shape[1], &a);
}

/* ---- element by element ---- */

static ms_status glu(const char *op, ms_tensor *y, const ms_tensor *gate, const ms_tensor *up,
                     int activation) {
  ms_tensor_change(y);
  MS_TRY(want_count(op, "y", y, y));
  MS_TRY(want_count(op, "gate", y, gate));
  MS_TRY(want_count(op, "up", y, up));
  return MS_OP(y->dev, glu, ms_tensor_act(y), ms_tensor_act(gate), ms_tensor_act(up), y->count,
               activation);
}

ms_status ms_swiglu(ms_tensor *y, const ms_tensor *gate, const ms_tensor *up) {
  return glu("swiglu", y, gate, up, MS_SILU);
}

ms_status ms_geglu(ms_tensor *y, const ms_tensor *gate, const ms_tensor *up) {
  return glu("geglu", y, gate, up, MS_GELU_TANH);
}

static ms_status glu_backward(const char *op, ms_tensor *d_gate, ms_tensor *d_up,
                              const ms_tensor *dy, const ms_tensor *gate, const ms_tensor *up,
                              int activation) {
  ms_tensor_change(d_gate);
  ms_tensor_change(d_up);
  MS_TRY(want_count(op, "dy", dy, dy));
  MS_TRY(want_count(op, "d_gate", dy, d_gate));
  MS_TRY(want_count(op, "d_up", dy, d_up));
  MS_TRY(want_count(op, "gate", dy, gate));
  MS_TRY(want_count(op, "up", dy, up));
  return MS_OP(dy->dev, glu_backward, ms_tensor_act(d_gate), ms_tensor_act(d_up), ms_tensor_act(dy),
               ms_tensor_act(gate), ms_tensor_act(up), dy->count, activation);
}

ms_status ms_swiglu_backward(ms_tensor *d_gate, ms_tensor *d_up, const ms_tensor *dy,
                             const ms_tensor *gate, const ms_tensor *up) {
  return glu_backward("swiglu_backward", d_gate, d_up, dy, gate, up, MS_SILU);
}

ms_status ms_geglu_backward(ms_tensor *d_gate, ms_tensor *d_up, const ms_tensor *dy,
                            const ms_tensor *gate, const ms_tensor *up) {
  return glu_backward("geglu_backward", d_gate, d_up, dy, gate, up, MS_GELU_TANH);
}

ms_status ms_add(ms_tensor *y, const ms_tensor *x, double scale) {
  ms_tensor_change(y);
  MS_TRY(want_count("add", "y", y, y));
  MS_TRY(want_count("add", "x", y, x));
  return MS_OP(y->dev, add, ms_tensor_act(y), ms_tensor_act(x), y->count, (float)scale);
}

ms_status ms_sum_squares(const ms_tensor *x, double *sum) {
  void *squares, *host = NULL;
  MS_TRY(want_count("sum_squares", "x", x, x));
  size_t bytes = (size_t)ms_squares_blocks(x->count) * sizeof(double);
  MS_TRY(ms_device_new(x->dev, bytes, &squares));
  ms_status st = ms_alloc_undefined(bytes, "squared norm", &host);
  if (st == MS_OK) st = MS_OP(x->dev, sum_squares, squares, x->data, x->count);
  if (st == MS_OK) st = MS_OP(x->dev, read, host, squares, bytes);
  if (st == MS_OK) {
    *sum = 0;
    for (int64_t b = 0; b < ms_squares_blocks(x->count); b++) *sum += ((double *)host)[b];
  }
  ms_free(host);
  ms_device_free(x->dev, squares, bytes);
  return st;
}

ms_status ms_not_finite(const ms_tensor *x, int64_t *at) {
  MS_REQUIRE(x, "not_finite: x is missing");
  MS_REQUIRE(x->dtype == MS_F32 || x->dtype == MS_BF16, "not_finite: x is %s, neither f32 nor bf16",
             ms_dtype_name(x->dtype));
  return MS_OP(x->dev, not_finite, at, x->data, x->dtype, x->count);
}

ms_status ms_adamw(ms_tensor *w, ms_tensor *low, ms_tensor *m, ms_tensor *v, const ms_tensor *g,
                   int64_t step, double lr, double beta1, double beta2, double eps, double decay,
                   double scale) {
  ms_tensor_change(w);
  ms_tensor_change(low);
  ms_tensor_change(m);
  ms_tensor_change(v);
  MS_TRY(want_count("adamw", "w", w, w));
  MS_TRY(want_count("adamw", "m", w, m));
  MS_TRY(want_count("adamw", "v", w, v));
  MS_TRY(want_count("adamw", "g", w, g));
  MS_REQUIRE(!low || (low->dev == w->dev && low->dtype == MS_BF16 && low->count == w->count),
             "adamw: low is not bf16 of %lld elements", (long long)w->count);
  MS_REQUIRE(step > 0, "adamw: step %lld, counted from 1", (long long)step);
  return MS_OP(w->dev, adamw, w->data, low ? low->data : NULL, m->data, v->data, g->data, w->count,
               lr, beta1, beta2, eps, decay, scale, 1 - pow(beta1, (double)step),
               1 - pow(beta2, (double)step));
}

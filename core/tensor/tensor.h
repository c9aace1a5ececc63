/* tensor.h - dense row-major arrays on one device. Views share memory and hold their base. */
#ifndef MS_TENSOR_H
#define MS_TENSOR_H
#include <stdatomic.h>
#include <stddef.h>

#include "../moonstill.h"
#include "device.h"

/* Counts the writes to a piece of memory, so that what was computed from it can tell that it is stale. */
typedef _Atomic int64_t ms_changes;

struct ms_tensor {
  ms_device *dev;
  ms_tensor *base; /* NULL: owns `data` */
  void *data;
  int dtype, rank;
  int64_t shape[MS_MAX_RANK];
  int64_t count;                /* product of shape */
  _Atomic int refs;             /* the handle, and the views */
  void (*release)(void *owner); /* views of foreign memory: called with `owner` at the end */
  void *owner;
  ms_changes own, *changes; /* of the memory: `own`, or that of the base or owner */
};

size_t ms_dtype_size(int dtype); /* 0 for no dtype */
const char *ms_dtype_name(int dtype);
static inline ms_act ms_tensor_act(const ms_tensor *t) { return (ms_act){t->data, t->dtype}; }
/* An activation from element i on; the same memory as another dtype; f32 memory as an activation. */
static inline ms_act ms_act_at(ms_act x, int64_t i) {
  return (ms_act){(char *)x.at + (size_t)i * ms_dtype_size(x.dtype), x.dtype};
}
static inline ms_act ms_act_as(ms_act x, int dtype) { return (ms_act){x.at, dtype}; }
static inline ms_act ms_act_f32(const float *x) { return (ms_act){(void *)x, MS_F32}; }
static inline size_t ms_act_bytes(ms_act x, int64_t count) {
  return (size_t)count * ms_dtype_size(x.dtype);
}
/* Elements of a matrix: rows of `cols` that lie `stride` apart, from its element `first` on. What lies one
 * behind the other is one row. */
typedef struct ms_rows {
  int64_t first, rows, cols, stride;
} ms_rows;
/* The place in the matrix of their i-th element. */
static inline int64_t ms_rows_place(const ms_rows *r, int64_t i) {
  return r->first + i / r->cols * r->stride + i % r->cols;
}
/* "[2, 3]" into a buffer of at least 200 bytes; returns it. */
const char *ms_shape_text(int rank, const int64_t *shape, char *buffer);
/* "row 3, column 5", or "index 7" of a vector, counted from 0, into one of at least 80 bytes. */
const char *ms_place_text(int rank, const int64_t *shape, int64_t at, char *buffer);

/* A tensor over memory that `owner` keeps alive; `release(owner)` is called when it is freed.
 * `changes`: the owner's count of writes; NULL for one of the tensor's own. */
ms_status ms_tensor_wrap(ms_device *dev, int dtype, int rank, const int64_t *shape, void *data,
                         ms_changes *changes, void (*release)(void *owner), void *owner,
                         ms_tensor **out);
/* To be called before a tensor is written to; NULL does nothing. */
void ms_tensor_change(ms_tensor *t);

#endif

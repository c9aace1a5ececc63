/* group.h - what ranks do together, one line per operation.
 *
 * Every rank makes the same calls in the same order, and all get the same bits. A group of one is
 * still a group: `self`. A group lives until its process ends, so whoever is given one may keep it.
 * Finalizers run on one rank alone, so nothing here may be called in them. */
#ifndef MS_GROUP_H
#define MS_GROUP_H
#include "../../kernels/ops.h"
#include "../moonstill.h"

typedef struct ms_group_ops {
  const char *name; /* "self" */
  /* Adds up x[0 .. n-1] over the ranks, in place, on the device of `s`. */
  ms_status (*sum)(ms_group *g, ms_stream *s, float *x, int64_t n);
  /* The same in host memory: counts, weights, losses. */
  ms_status (*sum_host)(ms_group *g, double *x, int64_t n);
  /* Gives rank 0's bytes to all, in host memory. */
  ms_status (*broadcast)(ms_group *g, void *x, int64_t bytes);
} ms_group_ops;

struct ms_group {
  const ms_group_ops *ops;
  int32_t rank, size;
};

#endif

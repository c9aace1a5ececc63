/* group.h - what ranks do together, one line per operation.
 *
 * Every rank makes the same calls in the same order, and all get the same bits. A group of one is
 * still a group: `self` below, whose reductions leave everything as it is. Nobody communicates in
 * a finalizer: `free` is local and never waits. */
#ifndef MS_GROUP_H
#define MS_GROUP_H
#include "../../kernels/ops.h"

typedef struct ms_group ms_group;
enum { MS_GROUP_SUM = 0, MS_GROUP_MAX = 1 };

typedef struct ms_group_ops {
  const char *name; /* "self" */
  /* In place, f32 on the device of `s`, elements 0 .. n-1. */
  ms_status (*all_reduce)(ms_group *g, ms_stream *s, float *x, int64_t n, int op);
  /* In place, on the host; for counts, norms and other few numbers. */
  ms_status (*all_reduce_host)(ms_group *g, double *x, int64_t n, int op);
  ms_status (*finish)(ms_group *g); /* collective: drains and agrees to end */
  void (*abort)(ms_group *g);       /* local: releases whoever waits for us */
  void (*free)(ms_group *g);        /* local, never waits: safe in a finalizer */
} ms_group_ops;

struct ms_group {
  const ms_group_ops *ops;
  int rank, size;
};

/* The group of this process alone; static, so free does nothing. */
ms_group *ms_group_self(void);

#endif

/* self.c - the group of one: every sum is complete, every maximum found. */
#include "group.h"

static ms_status all_reduce(ms_group *g, ms_stream *s, float *x, int64_t n, int op) {
  return MS_OK;
}

static ms_status all_reduce_host(ms_group *g, double *x, int64_t n, int op) { return MS_OK; }

static ms_status finish(ms_group *g) { return MS_OK; }

static void nothing(ms_group *g) {}

ms_group *ms_group_self(void) {
  static const ms_group_ops ops = {.name = "self",
                                   .all_reduce = all_reduce,
                                   .all_reduce_host = all_reduce_host,
                                   .finish = finish,
                                   .abort = nothing,
                                   .free = nothing};
  static ms_group self = {.ops = &ops, .rank = 0, .size = 1};
  return &self;
}

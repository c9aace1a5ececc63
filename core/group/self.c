/* self.c - the group of one: every sum is complete, and everybody has rank 0's bytes. */
#include "group.h"

static ms_status sum(ms_group *g, ms_stream *s, float *x, int64_t n) { return MS_OK; }

static ms_status sum_host(ms_group *g, double *x, int64_t n) { return MS_OK; }

static ms_status broadcast(ms_group *g, void *x, int64_t bytes) { return MS_OK; }

ms_group *ms_group_self(void) {
  static const ms_group_ops ops = {
      .name = "self", .sum = sum, .sum_host = sum_host, .broadcast = broadcast};
  static ms_group self = {.ops = &ops, .rank = 0, .size = 1};
  return &self;
}

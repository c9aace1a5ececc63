/* self.c - the group of one: every sum is complete, and everybody has what rank 0 has. */
#include <string.h>

#include "group.h"

static ms_status done(int dtype, ms_work **work) {
  if (work) *work = NULL;
  return ms_group_check_dtype(dtype);
}

static ms_status all_reduce(ms_group *g, ms_stream *s, void *x, int dtype, int64_t n,
                            ms_reduction how, ms_work **work) {
  return done(dtype, work);
}

static ms_status reduce_scatter(ms_group *g, ms_stream *s, void *x, int dtype, const int64_t *count,
                                ms_reduction how, ms_work **work) {
  return done(dtype, work);
}

static ms_status all_gather(ms_group *g, ms_stream *s, void *x, int dtype, const int64_t *count,
                            ms_work **work) {
  return done(dtype, work);
}

static ms_status broadcast(ms_group *g, ms_stream *s, void *x, int dtype, int64_t n, int32_t root,
                           ms_work **work) {
  return done(dtype, work);
}

static ms_status alone(const char *what) {
  return MS_FAIL(MS_EINVAL, "%s: there is no other rank in a group of one", what);
}

static ms_status all_to_all(ms_group *g, ms_stream *s, const void *x, const int64_t *count, void *y,
                            const int64_t *count_y, int dtype, ms_work **work) {
  MS_REQUIRE(count[0] == count_y[0], "all_to_all: %lld elements for a part of %lld",
             (long long)count[0], (long long)count_y[0]);
  if (count[0]) memcpy(y, x, (size_t)count[0] * ms_element_size(dtype));
  return done(dtype, work);
}

static ms_status send(ms_group *g, ms_stream *s, const void *x, int dtype, int64_t n, int32_t to,
                      ms_work **work) {
  return alone("send");
}

static ms_status receive(ms_group *g, ms_stream *s, void *x, int dtype, int64_t n, int32_t from,
                         ms_work **work) {
  return alone("receive");
}

static ms_status barrier(ms_group *g) { return MS_OK; }

static ms_status split(ms_group *g, int32_t colour, int32_t key, ms_group **out) {
  *out = colour < 0 ? NULL : g;
  return MS_OK;
}

ms_group *ms_group_self(void) {
  static const ms_group_ops ops = {"self",     all_reduce, reduce_scatter, all_gather, broadcast,
                                   all_to_all, send,       receive,        barrier,    split};
  static ms_group self = {.ops = &ops, .rank = 0, .size = 1};
  return &self;
}

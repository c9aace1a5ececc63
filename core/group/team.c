/* team.c - what is done over both kinds of groups that ranks of a model are in: first over its parts, then
 * over those that have the same one. */
#include "team.h"

#include <stdio.h>

int32_t ms_team_rank(const ms_team *t) { return t->same->rank * t->parts->size + t->parts->rank; }

int32_t ms_team_size(const ms_team *t) { return t->same->size * t->parts->size; }

static ms_status most(ms_group *g, int32_t *x) {
  return g->size > 1 ? g->ops->all_reduce(g, NULL, x, MS_I32, 1, MS_MAX, NULL) : MS_OK;
}

static ms_status give(ms_group *g, void *data, int64_t bytes, int32_t root) {
  return g->size > 1 ? g->ops->broadcast(g, NULL, data, MS_U8, bytes, root, NULL) : MS_OK;
}

ms_status ms_team_most(const ms_team *t, int32_t *x) {
  MS_TRY(most(t->parts, x));
  return most(t->same, x);
}

/* The rank `root` of the team is in one group of parts: what that one has is what the second call gives. */
static ms_status give_all(const ms_team *t, void *data, int64_t bytes, int32_t root) {
  MS_TRY(give(t->parts, data, bytes, root % t->parts->size));
  return give(t->same, data, bytes, root / t->parts->size);
}

ms_status ms_team_broadcast(const ms_team *t, void *data, int64_t bytes) {
  return give_all(t, data, bytes, 0);
}

ms_status ms_team_agree(const ms_team *t, ms_status st) {
  char text[512];
  int32_t size = ms_team_size(t), failed = st == MS_OK ? 0 : size - ms_team_rank(t);
  if (size == 1) return st;
  snprintf(text, sizeof text, "%s", st == MS_OK ? "" : ms_last_error());
  MS_TRY(ms_team_most(t, &failed));
  if (!failed) return MS_OK;
  int32_t first = size - failed;
  MS_TRY(give_all(t, text, sizeof text, first));
  return st == MS_OK ? MS_FAIL(MS_EGROUP, "rank %d: %s", first, text) : st;
}

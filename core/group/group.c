/* group.c - what Lua asks of any group. */
#include "group.h"

#include <stdio.h>

size_t ms_element_size(int dtype) {
  static const uint8_t size[] = {
      [MS_F32] = 4, [MS_BF16] = 2, [MS_I32] = 4, [MS_I64] = 8, [MS_U8] = 1, [MS_F64] = 8};
  return dtype >= MS_F32 && dtype <= MS_F64 ? size[dtype] : 0;
}

ms_status ms_group_check_dtype(int dtype) {
  MS_REQUIRE(ms_element_size(dtype), "group: %d is no dtype of a group's numbers", dtype);
  return MS_OK;
}

int32_t ms_group_rank(const ms_group *group) { return group->rank; }

int32_t ms_group_size(const ms_group *group) { return group->size; }

const char *ms_group_call(int32_t kind) {
  static const char *const names[MS_CALL_KINDS] = {
      [MS_CALL_ALL_REDUCE] = "all_reduce", [MS_CALL_REDUCE_SCATTER] = "reduce_scatter",
      [MS_CALL_ALL_GATHER] = "all_gather", [MS_CALL_BROADCAST] = "broadcast",
      [MS_CALL_ALL_TO_ALL] = "all_to_all", [MS_CALL_SEND] = "send",
      [MS_CALL_RECEIVE] = "receive",       [MS_CALL_BARRIER] = "barrier"};
  return kind >= 0 && kind < MS_CALL_KINDS ? names[kind] : NULL;
}

int64_t ms_group_sent(const ms_group *group, int32_t kind, int32_t dtype) {
  return ms_group_call(kind) && dtype >= 0 && dtype <= MS_F64 ? group->sent[kind][dtype] : 0;
}

ms_status ms_group_split(ms_group *group, int32_t colour, int32_t key, ms_group **out) {
  MS_REQUIRE(group && out, "group: no group to split");
  *out = NULL;
  return group->ops->split(group, colour, key, out);
}

ms_status ms_group_sum(ms_group *group, double *x, int64_t n) {
  MS_REQUIRE(group && (x || !n) && n >= 0, "group: no group or no numbers");
  return group->ops->all_reduce(group, NULL, x, MS_F64, n, MS_SUM, NULL);
}

ms_status ms_group_broadcast(ms_group *group, void *data, int64_t bytes, int32_t root) {
  MS_REQUIRE(group && (data || !bytes) && bytes >= 0, "group: no group or no data");
  return group->ops->broadcast(group, NULL, data, MS_U8, bytes, root, NULL);
}

ms_status ms_group_agree(ms_group *g, ms_status st) {
  char text[512];
  if (g->size == 1) return st;
  snprintf(text, sizeof text, "%s", st == MS_OK ? "" : ms_last_error());
  int32_t failed = st == MS_OK ? 0 : g->size - g->rank;
  MS_TRY(g->ops->all_reduce(g, NULL, &failed, MS_I32, 1, MS_MAX, NULL));
  if (!failed) return MS_OK;
  int32_t first = g->size - failed;
  MS_TRY(g->ops->broadcast(g, NULL, text, MS_U8, sizeof text, first, NULL));
  return st == MS_OK ? MS_FAIL(MS_EGROUP, "rank %d: %s", first, text) : st;
}

/* group.c - what Lua asks of any group. */
#include "group.h"

int32_t ms_group_rank(const ms_group *group) { return group->rank; }

int32_t ms_group_size(const ms_group *group) { return group->size; }

ms_status ms_group_sum(ms_group *group, double *x, int64_t n) {
  MS_REQUIRE(group && (x || !n) && n >= 0, "group: no group or no numbers");
  return group->ops->sum_host(group, x, n);
}

ms_status ms_group_broadcast(ms_group *group, void *data, int64_t bytes) {
  MS_REQUIRE(group && (data || !bytes) && bytes >= 0, "group: no group or no data");
  return group->ops->broadcast(group, data, bytes);
}

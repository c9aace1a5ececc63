/* team.h - all ranks that have a model: those over which it is cut, and those that have the same part of
 * it and learn from other batches. Every rank makes the same calls in the same order. */
#ifndef MS_TEAM_H
#define MS_TEAM_H
#include "group.h"

/* A rank's place is same->rank * parts->size + parts->rank, as in a grid. */
typedef struct ms_team {
  ms_group *same;  /* ranks that have what this one has */
  ms_group *parts; /* of one model */
} ms_team;

int32_t ms_team_rank(const ms_team *team);
int32_t ms_team_size(const ms_team *team);
/* The largest number of all. */
ms_status ms_team_most(const ms_team *team, int32_t *x);
/* As ms_group_agree. */
ms_status ms_team_agree(const ms_team *team, ms_status st);
/* What the first rank has, for all. */
ms_status ms_team_broadcast(const ms_team *team, void *data, int64_t bytes);

#endif

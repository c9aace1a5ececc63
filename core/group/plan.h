/* plan.h - a transfer's plan, see ms_plan_new; and the colours of its messages. */
#ifndef MS_PLAN_H
#define MS_PLAN_H
#include "../moonstill.h"

/* What a side is, and where on it each rank is. */
typedef struct ms_side {
  int32_t dp, tp;
  int32_t *rank;  /* [dp * tp] */
  int32_t *place; /* [ranks]: of `rank`; -1 for a rank that is not on this side */
} ms_side;

struct ms_plan {
  ms_side from, to;
  int32_t ranks;
  int32_t *machine; /* [ranks] */
  double within, between, latency;
  /* Of the step that it was filled for. */
  int32_t messages, phases[2];
  ms_plan_message *message;
  int32_t *sample;   /* of all messages */
  int32_t *of_rank;  /* messages of rank 0, of rank 1, .. */
  int32_t *of_start; /* [ranks + 1]: where each rank's begin */
};

/* Colours the edges of a bipartite graph, from[i] on the left to to[i] on the right, both below
 * `nodes`, so that those that meet in a node have different colours, numbered from 0: *colours of
 * them, which is as few as can be, the largest number of edges that meet. Edges that come first tend to
 * get low colours. */
ms_status ms_colour_edges(int32_t nodes, int32_t edges, const int32_t *from, const int32_t *to,
                          int32_t *colour, int32_t *colours);

#endif

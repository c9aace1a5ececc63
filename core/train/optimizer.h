/* optimizer.h - AdamW's state, as checkpoints see it.
 *
 * Of each parameter this rank updates a part, and has moments and masters of that alone, one part behind
 * the other in each arena. */
#ifndef MS_OPTIMIZER_H
#define MS_OPTIMIZER_H
#include "../moonstill.h"
#include "../group/group.h"
#include "../model/model.h"

struct ms_optimizer {
  ms_model *model; /* retained */
  ms_group *group; /* over which gradients are summed; it makes steps and checkpoints together */
  ms_adamw_options options;
  int64_t steps;                /* updates made */
  int shares;                   /* the model's buckets say which parts are this rank's */
  size_t count;                 /* elements of an arena */
  float *first, *second;        /* moments */
  float *master;                /* f32 weights of a bf16 model; NULL for f32 */
  int64_t blocks;               /* of owned gradients, each with a sum of squares */
  double *squares;              /* [blocks] on the device */
  double *square;               /* [blocks] on the host */
  _Atomic int refs;             /* the handle, and views of moments */
  struct ms_snapshot *snapshot; /* a checkpoint that is being written while training goes on */
};

/* checkpoint.c: gives it up, on this rank alone; NULL is fine. */
void ms_snapshot_abort(struct ms_snapshot *snapshot);

/* Which elements of this rank's part of a trained parameter it updates: from .. from + count. */
void ms_optimizer_part(const ms_optimizer *opt, const ms_parameter *p, int64_t *from,
                       int64_t *count);
/* Where an arena has what belongs to the first one of them; NULL for an arena that is not there. */
float *ms_optimizer_at(const ms_optimizer *opt, float *arena, const ms_parameter *p);

#endif

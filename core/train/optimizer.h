/* optimizer.h - AdamW's state, as checkpoints see it.
 *
 * The arenas are laid out like the model's gradient arena: the moments of the parameter whose
 * gradient is at g are at the same distance from the beginning of `first` and `second`. */
#ifndef MS_OPTIMIZER_H
#define MS_OPTIMIZER_H
#include "../moonstill.h"
#include "../group/group.h"
#include "../model/model.h"

struct ms_optimizer {
  ms_model *model; /* retained */
  ms_group *group; /* over which gradients are summed; it makes steps and checkpoints together */
  ms_adamw_options options;
  int64_t steps;         /* updates made */
  size_t count;          /* elements of an arena */
  float *first, *second; /* moments */
  float *master;         /* f32 weights of a bf16 model; NULL for f32 */
  double *squares;       /* on the device: the gradient's squared norm */
  _Atomic int refs;      /* the handle, and views of moments */
};

/* The part of an arena that belongs to a parameter; NULL for an arena that is not there. */
float *ms_optimizer_at(const ms_optimizer *opt, float *arena, const ms_parameter *p);

#endif

/* objective.h - what core knows of each objective; the formulas are in kernels/<backend>. */
#ifndef MS_OBJECTIVE_H
#define MS_OBJECTIVE_H
#include "../base/error.h"

typedef struct ms_objective {
  const char *name;
  const char *parameter; /* its name; NULL: there is none */
  double normal;         /* the parameter's default */
  int below_one;         /* the parameter is in [0, 1) instead of [0, 1] */
  int power;             /* t_scale "auto" is T to this power */
} ms_objective;

/* By MS_FORWARD_KL ..; NULL for any other number. */
const ms_objective *ms_objective_get(int objective);

#endif

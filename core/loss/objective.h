/* objective.h - the objectives' records (ms_objective in moonstill.h) and what follows from them. */
#ifndef MS_OBJECTIVE_H
#define MS_OBJECTIVE_H
#include "../moonstill.h"
#include "../../kernels/objective.h"
#include "../base/error.h"

/* The one whose formula computes it: at an end of its parameter an objective may be another one. */
int ms_objective_resolve(int objective, double parameter);

#endif

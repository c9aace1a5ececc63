/* objective.c - the table of objectives: names, parameters, the factor that T asks for. */
#include "objective.h"

#include <stddef.h>

/* A divergence at temperature T has gradients of order 1/T^2 in the logits, and T^2 makes up for
 * it. tvd's have only one factor 1/T. */
static const ms_objective table[] = {
    [MS_FORWARD_KL] = {"forward_kl", NULL, 0, 0, 2},
    [MS_REVERSE_KL] = {"reverse_kl", NULL, 0, 0, 2},
    [MS_JS] = {"js", "beta", 0.5, 0, 2},
    [MS_SKEWED_FORWARD_KL] = {"skewed_forward_kl", "lambda", 0.1, 1, 2},
    [MS_SKEWED_REVERSE_KL] = {"skewed_reverse_kl", "lambda", 0.1, 1, 2},
    [MS_ADAPTIVE_KL] = {"adaptive_kl", "alpha", 0.5, 0, 2},
    [MS_TVD] = {"tvd", NULL, 0, 0, 1},
};

const ms_objective *ms_objective_get(int objective) {
  return objective >= 0 && objective <= MS_TVD ? &table[objective] : NULL;
}

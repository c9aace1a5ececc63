/* objective.c - the records of the objectives; kernels/objective.h has their list and formulas. */
#include "objective.h"

#include <stddef.h>

/* A divergence at temperature T has gradients of order 1/T^2 in the logits, and T^2 makes up for
 * it. tvd's have only one factor 1/T. */
static const ms_objective table[MS_OBJECTIVE_COUNT] = {
    [MS_OBJECTIVE_forward_kl] = {"forward_kl",
                                 "KL(teacher || student) = sum p log(p / q); covers all that the "
                                 "teacher does",
                                 .power = 2},
    [MS_OBJECTIVE_reverse_kl] = {"reverse_kl",
                                 "KL(student || teacher) = sum q log(q / p); keeps to what the "
                                 "teacher does most",
                                 .power = 2},
    [MS_OBJECTIVE_js] = {"js",
                         "Jensen-Shannon: beta KL(p || m) + (1 - beta) KL(q || m), "
                         "m = beta p + (1 - beta) q; beta 0 is forward_kl, 1 is reverse_kl",
                         "beta", 0.5, 0, 1, .power = 2},
    [MS_OBJECTIVE_skewed_forward_kl] = {"skewed_forward_kl",
                                        "KL(p || lambda p + (1 - lambda) q); lambda 0 is "
                                        "forward_kl",
                                        "lambda", 0.1, 0, 1, .open = 1, .power = 2},
    [MS_OBJECTIVE_skewed_reverse_kl] = {"skewed_reverse_kl",
                                        "KL(q || (1 - lambda) p + lambda q); lambda 0 is "
                                        "reverse_kl",
                                        "lambda", 0.1, 0, 1, .open = 1, .power = 2},
    [MS_OBJECTIVE_adaptive_kl] =
        {"adaptive_kl",
         "forward_kl and reverse_kl, weighted by how far p and q are apart "
         "in the head (the fewest likeliest ids with mass >= 1 - alpha) "
         "and in the tail",
         "alpha", 0.5, 0, 1, .power = 2, .gaps = 1},
    [MS_OBJECTIVE_tvd] = {"tvd", "total variation distance: sum |p - q| / 2", .power = 1},
};

int32_t ms_objectives(void) { return MS_OBJECTIVE_COUNT; }

const ms_objective *ms_objective_get(int32_t number) {
  return number >= 0 && number < MS_OBJECTIVE_COUNT ? &table[number] : NULL;
}

int ms_objective_resolve(int objective, double parameter) {
  int reverse = objective == MS_OBJECTIVE_skewed_reverse_kl;
  int skewed = objective == MS_OBJECTIVE_skewed_forward_kl || reverse;
  if (objective == MS_OBJECTIVE_js && parameter == 1) return MS_OBJECTIVE_reverse_kl;
  if ((objective == MS_OBJECTIVE_js || skewed) && parameter == 0)
    return reverse ? MS_OBJECTIVE_reverse_kl : MS_OBJECTIVE_forward_kl;
  return objective;
}

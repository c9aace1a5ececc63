/* objective.h - the formulas of kernels/objective.h over vectors, and their sums over symbols. */
#ifndef MS_CPU_OBJECTIVE_H
#define MS_CPU_OBJECTIVE_H
#include "cpu.h"
#include "softmax_math.h"

#define REAL vf
#define TRUTH vi
#define FORMULA static inline
#define REAL_OF vf_set
#define REAL_FMA vf_fma
#define REAL_ABS vf_abs
#define REAL_MAX vf_max
#define REAL_SELECT vf_select
#define REAL_LOG_1P log_1p
#define REAL_EXP exp_negative
#define REAL_EXP_EXPM1 exp_expm1
#include "../objective.h"

typedef struct objective_sums {
  double value, h, p_log_p, q_log_q;
} objective_sums;

/* Sums of f32 are kept short: beside a large term, those of a whole vocabulary would be lost. */
enum { OBJECTIVE_PART = 64 * VF_LANES };

/* n symbols, n a multiple of VF_LANES (fill up with lp = lq = OBJECTIVE_FILL, which adds nothing): sets h
 * and q (NULL: not wanted), adds to the sums. */
#define OBJECTIVE_FILL (-1e30f)
#define objective_sum MS_KERNEL(objective_sum)
void objective_sum(int objective, float *h, float *q, objective_sums *sums, const float *lp,
                   const float *lq, int64_t n, const objective_args *args);

/* Sets `centre`, from lp and lq of the symbol with the largest q. */
#define objective_set_centre MS_KERNEL(objective_set_centre)
void objective_set_centre(int objective, objective_args *args, float lp, float lq);

#endif

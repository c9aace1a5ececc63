/* objective.c - each objective's formula in a loop of its own over vectors of symbols. */
#include "objective.h"

typedef void objective_element(const element *s, const objective_args *a, vf *value, vf *h);

static inline __attribute__((always_inline)) void objective_part(
    float *h, float *q, objective_sums *sums, const float *lp, const float *lq, int64_t n,
    const objective_args *args, objective_element *one) {
  vf value = vf_zero(), slope = value, pp = value, qq = value, centre = vf_set(args->centre);
  for (int64_t i = 0; i < n; i += VF_LANES) {
    vf a = vf_load(lp + i), b = vf_load(lq + i), v, g;
    element s = element_of(a, b);
    one(&s, args, &v, &g);
    g = vf_fnma(centre, s.q, g);
    vf_store(h + i, g);
    if (q) vf_store(q + i, s.q);
    value = value + v;
    slope = slope + g;
    pp = vf_fma(s.p, a, pp);
    qq = vf_fma(s.q, b, qq);
  }
  sums->value += vf_sum(value);
  sums->h += vf_sum(slope);
  sums->p_log_p += vf_sum(pp);
  sums->q_log_q += vf_sum(qq);
}

static inline __attribute__((always_inline)) void objective_loop(
    float *h, float *q, objective_sums *sums, const float *lp, const float *lq, int64_t n,
    const objective_args *args, objective_element *one) {
  for (int64_t i = 0; i < n; i += OBJECTIVE_PART)
    objective_part(h + i, q ? q + i : NULL, sums, lp + i, lq + i,
                   n - i < OBJECTIVE_PART ? n - i : OBJECTIVE_PART, args, one);
}

typedef void objective_function(float *h, float *q, objective_sums *sums, const float *lp,
                                const float *lq, int64_t n, const objective_args *args);

#define OBJECTIVE_LOOP(name)                                                         \
  static void name##_loop(float *h, float *q, objective_sums *sums, const float *lp, \
                          const float *lq, int64_t n, const objective_args *args) {  \
    objective_loop(h, q, sums, lp, lq, n, args, name);                               \
  }
MS_OBJECTIVES(OBJECTIVE_LOOP)

/* By number. */
#define OBJECTIVE_ENTRY(name) name##_loop,
static objective_function *const loops[] = {MS_OBJECTIVES(OBJECTIVE_ENTRY)};

void objective_sum(int objective, float *h, float *q, objective_sums *sums, const float *lp,
                   const float *lq, int64_t n, const objective_args *args) {
  loops[objective](h, q, sums, lp, lq, n, args);
}

void objective_set_centre(int objective, objective_args *args, float lp, float lq) {
  float a[VF_LANES], b[VF_LANES], h[VF_LANES], q[VF_LANES];
  objective_sums none = {0, 0, 0, 0};
  vf_store(a, vf_set(OBJECTIVE_FILL));
  vf_store(b, vf_set(OBJECTIVE_FILL));
  a[0] = lp;
  b[0] = lq;
  args->centre = 0;
  loops[objective](h, q, &none, a, b, VF_LANES, args);
  args->centre = h[0] / q[0];
}

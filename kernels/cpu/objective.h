/* objective.h - the distillation objectives, element by element: DESIGN section 4.
 *
 * An objective gives, for log-probabilities lp and lq of one symbol, its part of the value D and
 * h = dD/dlq. Both are written in r = lq - lp and centred, so that r = 0 gives exactly 0:
 *
 * - A divergence sum a log(a / b) is summed as a (e^w - 1 - w), w = log(b / a). The added
 *   sum (b - a) is 0, every part is >= 0, and near w = 0 a series replaces the cancellation.
 * - A constant times q may be added to h, since h_j - q_j sum(h) does not change: forward's
 *   h = -p becomes q - p, and `centre` makes h vanish where q is largest, so that an id with nearly
 *   all of q does not get its gradient, which is next to nothing, as the difference of large numbers.
 *
 * Nothing is divided by p or q: the larger of the two is exp(max(lp, lq)), the other follows by
 * e^-|r|, and mixtures m are handled as m / max(p, q), which lies in (0, 1]. */
#ifndef MS_CPU_OBJECTIVE_H
#define MS_CPU_OBJECTIVE_H
#include "../../core/moonstill.h"
#include "softmax_math.h"

typedef struct objective_args {
  float parameter;
  float sign_width;       /* tvd */
  float forward, reverse; /* adaptive_kl's weights */
  float centre;           /* h / q, without it, of the symbol with the largest q */
} objective_args;

typedef struct objective_sums {
  double value, h, p_log_p, q_log_q;
} objective_sums;

typedef struct element {
  vf p, q, r;
  vf d;     /* q - p */
  vf e;     /* e^-|r| */
  vf x;     /* e^-|r| - 1 */
  vi below; /* q < p */
} element;

typedef void objective_element(const element *s, const objective_args *a, vf *value, vf *h);

/* a (e^w - 1 - w), where diff = a (e^w - 1) */
static inline vf bregman(vf a, vf diff, vf w) {
  vf s = vf_set(1.0f / 40320);
  s = vf_fma(s, w, vf_set(1.0f / 5040));
  s = vf_fma(s, w, vf_set(1.0f / 720));
  s = vf_fma(s, w, vf_set(1.0f / 120));
  s = vf_fma(s, w, vf_set(1.0f / 24));
  s = vf_fma(s, w, vf_set(1.0f / 6));
  s = vf_fma(s, w, vf_set(0.5f));
  return vf_select(vf_abs(w) < vf_set(0.5f), a * w * w * s, diff - a * w);
}

static inline void forward_kl(const element *s, const objective_args *a, vf *value, vf *h) {
  *value = bregman(s->p, s->d, s->r);
  *h = s->d;
}

static inline void reverse_kl(const element *s, const objective_args *a, vf *value, vf *h) {
  *value = bregman(s->q, vf_zero() - s->d, vf_zero() - s->r);
  *h = s->q * s->r;
}

/* The mixture m = c p + (1 - c) q: u = log(m / p), v = log(m / q), and q / m. */
static inline void mixture(const element *s, float c, vf *u, vf *v, vf *q_over_m) {
  vf small =
      vf_select(s->below, vf_set(1 - c), vf_set(c)); /* the weight of the smaller of p and q */
  vf w = vf_fma(small, s->e, vf_set(1.0f) - small);  /* m / max(p, q) */
  vf l = log_1p(w, small * s->x);
  *u = vf_select(s->below, l, l + s->r);
  *v = vf_select(s->below, l - s->r, l);
  *q_over_m = vf_select(s->below, s->e, vf_set(1.0f)) / w;
}

static inline void js(const element *s, const objective_args *a, vf *value, vf *h) {
  vf u, v, ratio, b = vf_set(a->parameter), c = vf_set(1 - a->parameter);
  mixture(s, a->parameter, &u, &v, &ratio);
  *value = vf_fma(b, bregman(s->p, c * s->d, u), c * bregman(s->q, vf_zero() - b * s->d, v));
  *h = vf_zero() - c * (s->q * v);
}

static inline void skewed_forward_kl(const element *s, const objective_args *a, vf *value, vf *h) {
  vf u, v, ratio, c = vf_set(1 - a->parameter);
  mixture(s, a->parameter, &u, &v, &ratio);
  *value = bregman(s->p, c * s->d, u);
  *h = c * c * s->d * ratio;
}

static inline void skewed_reverse_kl(const element *s, const objective_args *a, vf *value, vf *h) {
  vf u, v, ratio, l = vf_set(a->parameter), c = vf_set(1 - a->parameter);
  mixture(s, 1 - a->parameter, &u, &v, &ratio);
  *value = bregman(s->q, vf_zero() - c * s->d, v);
  *h = vf_zero() - s->q * v - l * c * s->d * ratio;
}

/* Forward and reverse, weighted by the gaps sum |p - q| over head and tail. The head are the fewest
 * largest p with mass >= 1 - alpha - 1e-6, ties by id; the leftover of a top-k target is tail, and at
 * alpha = 0 all else is head. The weights are constants in h, 1/2 each when both gaps are 0. */
static inline void adaptive_kl(const element *s, const objective_args *a, vf *value, vf *h) {
  vf f, g, hf, hg;
  forward_kl(s, a, &f, &hf);
  reverse_kl(s, a, &g, &hg);
  *value = vf_fma(vf_set(a->forward), f, vf_set(a->reverse) * g);
  *h = vf_fma(vf_set(a->forward), hf, vf_set(a->reverse) * hg);
}

static inline void tvd(const element *s, const objective_args *a, vf *value, vf *h) {
  vf half = vf_set(0.5f) * s->q;
  *value = vf_set(0.5f) * vf_abs(s->d);
  *h = vf_select(vf_abs(s->r) <= vf_set(a->sign_width), vf_zero(),
                 vf_select(s->below, vf_zero() - half, half));
}

/* What both sides say about VF_LANES symbols. */
static inline element element_of(vf lp, vf lq) {
  element s;
  s.r = lq - lp;
  s.below = s.r < vf_zero();
  vf big = exp_negative(vf_max(lp, lq));
  s.e = exp_expm1(vf_zero() - vf_abs(s.r), &s.x);
  vf small = big * s.e, d = big * s.x;
  s.p = vf_select(s.below, big, small);
  s.q = vf_select(s.below, small, big);
  s.d = vf_select(s.below, d, vf_zero() - d);
  return s;
}

/* n symbols, n a multiple of VF_LANES (fill up with lp = lq = OBJECTIVE_FILL, which adds nothing): sets h
 * and q (NULL: not wanted), adds to the sums. */
#define OBJECTIVE_FILL (-1e30f)
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

/* Sums of f32 are kept short: beside a large term, those of a whole vocabulary would be lost. */
enum { OBJECTIVE_PART = 64 * VF_LANES };
static inline __attribute__((always_inline)) void objective_loop(
    float *h, float *q, objective_sums *sums, const float *lp, const float *lq, int64_t n,
    const objective_args *args, objective_element *one) {
  for (int64_t i = 0; i < n; i += OBJECTIVE_PART)
    objective_part(h + i, q ? q + i : NULL, sums, lp + i, lq + i,
                   n - i < OBJECTIVE_PART ? n - i : OBJECTIVE_PART, args, one);
}

typedef void objective_function(float *h, float *q, objective_sums *sums, const float *lp,
                                const float *lq, int64_t n, const objective_args *args);

#define OBJECTIVE(name)                                                              \
  static void name##_loop(float *h, float *q, objective_sums *sums, const float *lp, \
                          const float *lq, int64_t n, const objective_args *args) {  \
    objective_loop(h, q, sums, lp, lq, n, args, name);                               \
  }
OBJECTIVE(forward_kl)
OBJECTIVE(reverse_kl)
OBJECTIVE(js)
OBJECTIVE(skewed_forward_kl)
OBJECTIVE(skewed_reverse_kl)
OBJECTIVE(adaptive_kl)
OBJECTIVE(tvd)

enum { OBJECTIVE_GAPS = 1 }; /* needs the gaps over head and tail first */
static const struct objective {
  objective_function *loop;
  unsigned needs;
} objectives[] = {
    [MS_FORWARD_KL] = {forward_kl_loop, 0},
    [MS_REVERSE_KL] = {reverse_kl_loop, 0},
    [MS_JS] = {js_loop, 0},
    [MS_SKEWED_FORWARD_KL] = {skewed_forward_kl_loop, 0},
    [MS_SKEWED_REVERSE_KL] = {skewed_reverse_kl_loop, 0},
    [MS_ADAPTIVE_KL] = {adaptive_kl_loop, OBJECTIVE_GAPS},
    [MS_TVD] = {tvd_loop, 0},
};

/* Sets `centre`, from lp and lq of the symbol with the largest q. */
static inline void objective_set_centre(int objective, objective_args *args, float lp, float lq) {
  float a[VF_LANES], b[VF_LANES], h[VF_LANES], q[VF_LANES];
  objective_sums none = {0, 0, 0, 0};
  vf_store(a, vf_set(OBJECTIVE_FILL));
  vf_store(b, vf_set(OBJECTIVE_FILL));
  a[0] = lp;
  b[0] = lq;
  args->centre = 0;
  objectives[objective].loop(h, q, &none, a, b, VF_LANES, args);
  args->centre = h[0] / q[0];
}

/* js and the skewed ones at the ends of their parameter are forward_kl or reverse_kl. */
static inline int objective_resolve(int objective, double parameter) {
  int skewed = objective == MS_SKEWED_FORWARD_KL || objective == MS_SKEWED_REVERSE_KL;
  if (objective == MS_JS && parameter == 1) return MS_REVERSE_KL;
  if ((objective == MS_JS || skewed) && parameter == 0)
    return objective == MS_SKEWED_REVERSE_KL ? MS_REVERSE_KL : MS_FORWARD_KL;
  return objective;
}

#endif

/* objective.h - the distillation objectives: their list, and their formulas for one symbol. DESIGN
 * section 4.
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
 * e^-|r|, and mixtures m are handled as m / max(p, q), which lies in (0, 1].
 *
 * The formulas are the same on every backend: over REAL, a float or a vector of floats, and TRUTH, what
 * a comparison of two gives. A backend defines these before it includes this file, and the operations
 * REAL_OF(float), REAL_FMA(a, b, c) = a b + c, REAL_ABS, REAL_MAX, REAL_SELECT(truth, a, b),
 * REAL_LOG_1P(w, y) = log w for w = 1 + y in (0, 1], REAL_EXP(x) and REAL_EXP_EXPM1(x, &expm1) for
 * x <= 0, and FORMULA, how such a function is declared. Who does not sees only the list. */
#ifndef MS_OBJECTIVE_FORMULAS_H
#define MS_OBJECTIVE_FORMULAS_H

/* Each has its record in core/loss/objective.c, which users know it by, in this order. */
#define MS_OBJECTIVES(DO) \
  DO(forward_kl)          \
  DO(reverse_kl)          \
  DO(js)                  \
  DO(skewed_forward_kl)   \
  DO(skewed_reverse_kl)   \
  DO(adaptive_kl)         \
  DO(tvd)

#define MS_OBJECTIVE_NUMBER(name) MS_OBJECTIVE_##name,
enum { MS_OBJECTIVES(MS_OBJECTIVE_NUMBER) MS_OBJECTIVE_COUNT };

#ifdef REAL

typedef struct objective_args {
  float parameter;
  float sign_width;       /* tvd */
  float forward, reverse; /* adaptive_kl's weights */
  float centre;           /* h / q, without it, of the symbol with the largest q */
} objective_args;

/* What both sides say about a symbol. */
typedef struct element {
  REAL p, q, r;
  REAL d;      /* q - p */
  REAL e;      /* e^-|r| */
  REAL x;      /* e^-|r| - 1 */
  TRUTH below; /* q < p */
} element;

FORMULA element element_of(REAL lp, REAL lq) {
  REAL zero = REAL_OF(0);
  element s;
  s.r = lq - lp;
  s.below = s.r < zero;
  REAL big = REAL_EXP(REAL_MAX(lp, lq));
  s.e = REAL_EXP_EXPM1(zero - REAL_ABS(s.r), &s.x);
  REAL small = big * s.e, d = big * s.x;
  s.p = REAL_SELECT(s.below, big, small);
  s.q = REAL_SELECT(s.below, small, big);
  s.d = REAL_SELECT(s.below, d, zero - d);
  return s;
}

/* a (e^w - 1 - w), where diff = a (e^w - 1) */
FORMULA REAL bregman(REAL a, REAL diff, REAL w) {
  REAL s = REAL_OF(1.0f / 40320);
  s = REAL_FMA(s, w, REAL_OF(1.0f / 5040));
  s = REAL_FMA(s, w, REAL_OF(1.0f / 720));
  s = REAL_FMA(s, w, REAL_OF(1.0f / 120));
  s = REAL_FMA(s, w, REAL_OF(1.0f / 24));
  s = REAL_FMA(s, w, REAL_OF(1.0f / 6));
  s = REAL_FMA(s, w, REAL_OF(0.5f));
  return REAL_SELECT(REAL_ABS(w) < REAL_OF(0.5f), a * w * w * s, diff - a * w);
}

FORMULA void forward_kl(const element *s, const objective_args *a, REAL *value, REAL *h) {
  *value = bregman(s->p, s->d, s->r);
  *h = s->d;
}

FORMULA void reverse_kl(const element *s, const objective_args *a, REAL *value, REAL *h) {
  *value = bregman(s->q, REAL_OF(0) - s->d, REAL_OF(0) - s->r);
  *h = s->q * s->r;
}

/* The mixture m = c p + (1 - c) q: u = log(m / p), v = log(m / q), and q / m. */
FORMULA void mixture(const element *s, float c, REAL *u, REAL *v, REAL *q_over_m) {
  REAL small =
      REAL_SELECT(s->below, REAL_OF(1 - c), REAL_OF(c)); /* the weight of the smaller of p and q */
  REAL w = REAL_FMA(small, s->e, REAL_OF(1.0f) - small); /* m / max(p, q) */
  REAL l = REAL_LOG_1P(w, small * s->x);
  *u = REAL_SELECT(s->below, l, l + s->r);
  *v = REAL_SELECT(s->below, l - s->r, l);
  *q_over_m = REAL_SELECT(s->below, s->e, REAL_OF(1.0f)) / w;
}

FORMULA void js(const element *s, const objective_args *a, REAL *value, REAL *h) {
  REAL u, v, ratio, b = REAL_OF(a->parameter), c = REAL_OF(1 - a->parameter);
  mixture(s, a->parameter, &u, &v, &ratio);
  *value = REAL_FMA(b, bregman(s->p, c * s->d, u), c * bregman(s->q, REAL_OF(0) - b * s->d, v));
  *h = REAL_OF(0) - c * (s->q * v);
}

FORMULA void skewed_forward_kl(const element *s, const objective_args *a, REAL *value, REAL *h) {
  REAL u, v, ratio, c = REAL_OF(1 - a->parameter);
  mixture(s, a->parameter, &u, &v, &ratio);
  *value = bregman(s->p, c * s->d, u);
  *h = c * c * s->d * ratio;
}

FORMULA void skewed_reverse_kl(const element *s, const objective_args *a, REAL *value, REAL *h) {
  REAL u, v, ratio, l = REAL_OF(a->parameter), c = REAL_OF(1 - a->parameter);
  mixture(s, 1 - a->parameter, &u, &v, &ratio);
  *value = bregman(s->q, REAL_OF(0) - c * s->d, v);
  *h = REAL_OF(0) - s->q * v - l * c * s->d * ratio;
}

/* Forward and reverse, weighted by the gaps sum |p - q| over head and tail. The head are the fewest
 * largest p with mass >= 1 - alpha - 1e-6, ties by id; the leftover of a top-k target is tail, and at
 * alpha = 0 all else is head. The weights are constants in h, 1/2 each when both gaps are 0. */
FORMULA void adaptive_kl(const element *s, const objective_args *a, REAL *value, REAL *h) {
  REAL f, g, hf, hg;
  forward_kl(s, a, &f, &hf);
  reverse_kl(s, a, &g, &hg);
  *value = REAL_FMA(REAL_OF(a->forward), f, REAL_OF(a->reverse) * g);
  *h = REAL_FMA(REAL_OF(a->forward), hf, REAL_OF(a->reverse) * hg);
}

FORMULA void tvd(const element *s, const objective_args *a, REAL *value, REAL *h) {
  REAL half = REAL_OF(0.5f) * s->q;
  *value = REAL_OF(0.5f) * REAL_ABS(s->d);
  *h = REAL_SELECT(REAL_ABS(s->r) <= REAL_OF(a->sign_width), REAL_OF(0),
                   REAL_SELECT(s->below, REAL_OF(0) - half, half));
}

#endif
#endif

/* head_gaps.c - the gaps |p - q| over head and tail, by which adaptive_kl weighs forward and reverse. */
#include <stdlib.h>

#include "head_loss.h"

/* Whether this much of the teacher's mass fills the head, the fewest largest p with mass >= 1 - alpha.
 * A sum of rounded p that meets 1 - alpha exactly may come out a little below, hence the 1e-6. */
static inline int fills_head(double mass, double alpha) { return mass >= 1 - alpha - 1e-6; }

static int by_mass(const void *a, const void *b) {
  const struct head_candidate *x = a, *y = b;
  if (x->lp != y->lp) return x->lp > y->lp ? -1 : 1;
  return x->id < y->id ? -1 : x->id > y->id;
}

/* Over n symbols, the leftover last when there is one (it is tail). */
void head_symbol_gaps(head_scratch *w, const int32_t *id, int32_t n, double alpha,
                      ms_head_record *record) {
  double mass = 0, head = 0, tail = 0;
  int32_t count = 0;
  for (int32_t i = 0; i < n; i++)
    if (w->symbol[i] >= 0) {
      w->candidate[count].id = id[w->symbol[i]];
      w->candidate[count++].lp = w->lp[i];
    }
  qsort(w->candidate, (size_t)count, sizeof *w->candidate, by_mass);
  int32_t in = 0;
  while (in < count && (alpha <= 0 || !fills_head(mass, alpha))) mass += exp(w->candidate[in++].lp);
  for (int32_t i = 0; i < n; i++) {
    struct head_candidate c = {w->lp[i], w->symbol[i] < 0 ? -1 : id[w->symbol[i]]};
    int is_head = w->symbol[i] >= 0 && in && by_mass(&c, &w->candidate[in - 1]) <= 0;
    *(is_head ? &head : &tail) += fabs(exp(w->lq[i]) - exp(w->lp[i]));
  }
  record->head_gap = head;
  record->tail_gap = tail;
}

/* ---- over a pair of rows ---- */

enum { MASS_PER_NAT = 64 };

/* -1 for what weighs nothing: e^-60 of all ids there can be. */
static inline int mass_bin(float lp) {
  return lp <= -60 ? -1 : lp > 0 ? 0 : (int)(-lp * MASS_PER_NAT);
}

/* Masses are summed by bins of lp; only the bin in which the head is filled has to be sorted. */
head_limit head_pair_limit(const head_pair *f, head_scratch *w) {
  float lp[LOGSUM_BLOCK], lq[LOGSUM_BLOCK];
  double mass = 0, alpha = f->t->parameter;
  int bin = 0;
  int64_t count = 0;
  memset(w->mass, 0, HEAD_MASS_BINS * sizeof *w->mass);
  HEAD_BLOCKS(f->t->vocab) {
    head_pair_logs(f, from, n, lp, lq);
    for (int64_t i = 0; i < n; i += VF_LANES)
      vf_store(lq + i, exp_negative(vf_min(vf_load(lp + i), vf_zero())));
    for (int64_t i = 0; i < n; i++) {
      w->h[from + i] = lp[i];
      int at = mass_bin(lp[i]);
      if (at >= 0) w->mass[at] += lq[i];
    }
  }
  if (fills_head(0, alpha)) return (head_limit){INFINITY, 0};
  if (alpha <= 0) return (head_limit){-INFINITY, 0};
  while (bin < HEAD_MASS_BINS && !fills_head(mass + w->mass[bin], alpha)) mass += w->mass[bin++];
  if (bin == HEAD_MASS_BINS) return (head_limit){-INFINITY, 0};
  for (int64_t i = 0; i < f->t->vocab; i++)
    if (mass_bin(w->h[i]) == bin)
      w->candidate[count++] = (struct head_candidate){w->h[i], (int32_t)i};
  qsort(w->candidate, (size_t)count, sizeof *w->candidate, by_mass);
  int64_t in = 0, ties = 1;
  while (in + 1 < count && !fills_head(mass += exp(w->candidate[in].lp), alpha)) in++;
  while (ties <= in && w->candidate[in - ties].lp == w->candidate[in].lp) ties++;
  return (head_limit){w->candidate[in].lp, ties};
}

void head_pair_gaps(const head_pair *f, head_limit limit, ms_head_record *part) {
  float lp[LOGSUM_BLOCK], lq[LOGSUM_BLOCK];
  double head = 0, tail = 0;
  int64_t ties = 0;
  HEAD_BLOCKS(f->t->vocab) {
    vf in = vf_zero(), out = vf_zero();
    head_pair_logs(f, from, n, lp, lq);
    for (int64_t i = 0; i < n; i += VF_LANES) {
      vf a = vf_load(lp + i);
      element s = element_of(a, vf_load(lq + i));
      vf gap = vf_abs(s.d), none = vf_zero();
      vi above = vf_set(limit.lp) < a;
      in = in + vf_select(above, gap, none);
      out = out + vf_select(above, none, gap);
      if (!vi_any(a == vf_set(limit.lp))) continue;
      for (int64_t j = i; j < i + VF_LANES && j < n; j++) /* ties with the last: by id */
        if (lp[j] == limit.lp && ties++ < limit.ties) {
          double d = fabs(exp(lq[j]) - exp(lp[j]));
          head += d;
          tail -= d;
        }
    }
    head += vf_sum(in);
    tail += vf_sum(out);
  }
  part->head_gap = head;
  part->tail_gap = tail;
}

/* ---- in parts ---- */

/* Numbers in descending order become integers in ascending order, and the other way. */
static inline uint32_t key_of(float lp) {
  union {
    float f;
    uint32_t bits;
  } x = {lp == 0 ? 0.0f : lp};
  return x.bits >> 31 ? x.bits : ~x.bits & 0x7fffffff;
}

static inline float lp_of(uint32_t key) {
  union {
    uint32_t bits;
    float f;
  } x = {key >> 31 ? key : ~key & 0x7fffffff};
  return x.f;
}

static inline int shift_of(int round) { return 8 * (MS_HEAD_SELECTS - 1 - round); }

void head_select(const head_pair *f, const ms_head_record *record, int round, double *bins) {
  float lp[LOGSUM_BLOCK], lq[LOGSUM_BLOCK];
  int shift = shift_of(round);
  HEAD_BLOCKS(f->t->vocab) {
    head_pair_logs(f, from, n, lp, lq);
    for (int64_t i = 0; i < n; i += VF_LANES)
      vf_store(lq + i, exp_negative(vf_min(vf_load(lp + i), vf_zero())));
    for (int64_t i = 0; i < n; i++) {
      uint64_t key = key_of(lp[i]); /* of 64 bits: all of them may be shifted out */
      if (key >> (shift + 8) == (uint64_t)record->key >> (shift + 8))
        bins[key >> shift & (MS_HEAD_BINS - 1)] += lq[i];
    }
  }
}

void head_join_select(double alpha, int round, const double *bins, ms_head_record *c) {
  double mass = c->above;
  int bin = 0, last = 0;
  for (; bin < MS_HEAD_BINS && !fills_head(mass + bins[bin], alpha); bin++) {
    if (bins[bin] > 0) last = bin, c->above = mass;
    mass += bins[bin];
  }
  if (bin < MS_HEAD_BINS)
    c->above = mass;
  else if (round == 0) /* all together do not fill it: all are in */
    c->above = INFINITY;
  else /* sums of the same numbers differ a little: it is the last one that has any mass */
    bin = last;
  c->key |= (uint32_t)(bin & (MS_HEAD_BINS - 1)) << shift_of(round);
  c->last = lp_of(c->key);
  if (fills_head(0, alpha)) c->last = INFINITY;
  if (alpha <= 0 || c->above == INFINITY) c->last = -INFINITY;
}

void head_count_ties(const head_pair *f, const ms_head_record *record, ms_head_record *part) {
  float lp[LOGSUM_BLOCK], lq[LOGSUM_BLOCK];
  HEAD_BLOCKS(f->t->vocab) {
    head_pair_logs(f, from, n, lp, lq);
    for (int64_t i = 0; i < n; i++) part->ties += lp[i] == record->last;
  }
}

void head_join_ties(double alpha, int64_t all, int64_t before, int64_t own, ms_head_record *c) {
  double p = exp(c->last), needed = 1;
  if (!fills_head(c->above + p, alpha))
    needed = fmin(ceil((1 - alpha - 1e-6 - c->above) / p), (double)all);
  int64_t here = (int64_t)needed - before;
  c->ties = here < 0 ? 0 : here < own ? here : own;
}

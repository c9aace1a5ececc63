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

/* The last id of the head. Masses are summed by bins of lp; only the bin in which the head is filled
 * has to be sorted. */
static struct head_candidate last_of_head(const head_pair *f, head_scratch *w, double alpha) {
  float lp[LOGSUM_BLOCK], lq[LOGSUM_BLOCK];
  double mass = 0;
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
  if (fills_head(0, alpha)) return (struct head_candidate){INFINITY, -1};
  if (alpha <= 0) return (struct head_candidate){-INFINITY, INT32_MAX};
  while (bin < HEAD_MASS_BINS && !fills_head(mass + w->mass[bin], alpha)) mass += w->mass[bin++];
  if (bin == HEAD_MASS_BINS) return (struct head_candidate){-INFINITY, INT32_MAX};
  for (int64_t i = 0; i < f->t->vocab; i++)
    if (mass_bin(w->h[i]) == bin)
      w->candidate[count++] = (struct head_candidate){w->h[i], (int32_t)i};
  qsort(w->candidate, (size_t)count, sizeof *w->candidate, by_mass);
  int64_t in = 0;
  while (in + 1 < count && !fills_head(mass += exp(w->candidate[in].lp), alpha)) in++;
  return w->candidate[in];
}

void head_pair_gaps(const head_pair *f, head_scratch *w, ms_head_record *record) {
  float lp[LOGSUM_BLOCK], lq[LOGSUM_BLOCK];
  struct head_candidate last = last_of_head(f, w, f->t->parameter);
  double head = 0, tail = 0;
  HEAD_BLOCKS(f->t->vocab) {
    vf in = vf_zero(), out = vf_zero();
    head_pair_logs(f, from, n, lp, lq);
    for (int64_t i = 0; i < n; i += VF_LANES) {
      vf a = vf_load(lp + i);
      element s = element_of(a, vf_load(lq + i));
      vf gap = vf_abs(s.d), none = vf_zero();
      vi above = vf_set(last.lp) < a;
      in = in + vf_select(above, gap, none);
      out = out + vf_select(above, none, gap);
      if (!vi_any(a == vf_set(last.lp))) continue;
      for (int64_t j = i; j < i + VF_LANES && j < n; j++) /* ties with the last: by id */
        if (lp[j] == last.lp && from + j <= last.id) {
          double d = fabs(exp(lq[j]) - exp(lp[j]));
          head += d;
          tail -= d;
        }
    }
    head += vf_sum(in);
    tail += vf_sum(out);
  }
  record->head_gap = head;
  record->tail_gap = tail > 0 ? tail : 0;
}

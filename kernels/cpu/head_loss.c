/* head_loss.c - a chunk of logits becomes losses and their gradient, in place, row by row.
 *
 * CE and top-k terms need of a row only log-sum-exps over ranges of ids and a few single ids; all
 * of them share one pass. The ids of all supports are taken out of the row first (U below), so the
 * sums over what is left serve every term: a term's leftover is that plus the ids of U outside its
 * own support. The pass writes each block's exponentials over the logits, a second one multiplies
 * them by the block's factor: e^z is computed once, and the row stays in the second-level cache
 * between the two. Terms at other temperatures keep their exponentials in scratch rows.
 *
 * Terms with full targets need the logits intact, so they go first, into a scratch row (`sum`) that
 * the last pass adds.
 *
 * A row is one thread's, and everything inside it has a fixed order. */
#include "../head.h"

#include <omp.h>
#include <stdlib.h>

#include "../../core/base/memory.h"
#include "cpu.h"
#include "logsum.h"
#include "objective.h"

/* What is the same for all rows. */
typedef struct plan {
  const ms_head_args *args;
  int groups;     /* distinct temperatures of CE and top-k terms */
  float *inv_t;   /* [groups] */
  int *group;     /* [terms]; -1: a full target */
  int ranges;     /* ids are cut where some term's vocab ends */
  int64_t *bound; /* [ranges + 1] */
  int *first;     /* [ranges + 1]: their blocks */
  int blocks;
  struct block {
    int64_t start, size;
    int range;
  } * block;
  int64_t support; /* sum of k: no row has more ids in U */
  int64_t longest; /* largest k */
  int64_t slots;   /* of the table that finds an id in U; 0: one support, ids are distinct */
  int full;        /* there are full targets */
} plan;

/* One thread's scratch. */
typedef struct work {
  float *sum, *slope, *extra, *h; /* rows */
  float *block_max;               /* [blocks] */
  float *block_sum;               /* [groups, blocks] */
  float *block_scale;             /* [groups, blocks]: exp((its - the range's maximum) inv_t) */
  logsum *range;                  /* [groups, ranges] */
  int64_t *top;                   /* [ranges]: where the range's maximum is; -1 */
  uint8_t *on;                    /* [groups, ranges]: needed in this row */
  double *factor;                 /* [groups, ranges]: of exp((z - range's maximum) inv_t) */
  int64_t ids;                    /* U: */
  int32_t *id;
  float *z;
  double *grad;
  int32_t *mark;  /* [support]: the last term, + 1, whose support has this id */
  int32_t *slot;  /* [support]: of each term's j-th id, its index in U; terms follow each other */
  int32_t *table; /* [slots] */
  float *lp, *lq, *dh, *q; /* [longest + 1 + VF_LANES]: the symbols that a term compares */
  int32_t *symbol;         /* their indices in the support; -1: the leftover */
  struct candidate {
    float lp;
    int32_t id;
  } * candidate; /* adaptive_kl */
  double *mass;
} work;

/* ---- plan and scratch ---- */

static int group_of(plan *p, float inv_t) {
  for (int g = 0; g < p->groups; g++)
    if (p->inv_t[g] == inv_t) return g;
  p->inv_t[p->groups] = inv_t;
  return p->groups++;
}

static void add_bound(plan *p, int64_t bound) {
  int i = p->ranges;
  for (; i > 0 && p->bound[i] >= bound; i--)
    if (p->bound[i] == bound) return;
  for (int j = p->ranges++; j > i; j--) p->bound[j + 1] = p->bound[j];
  p->bound[i + 1] = bound;
}

static void count_blocks(plan *p) {
  p->blocks = 0;
  for (int r = 0; r < p->ranges; p->first[++r] = p->blocks)
    for (int64_t i = p->bound[r]; i < p->bound[r + 1]; i += LOGSUM_BLOCK) {
      int64_t n = p->bound[r + 1] - i;
      if (p->block) p->block[p->blocks] = (struct block){i, n < LOGSUM_BLOCK ? n : LOGSUM_BLOCK, r};
      p->blocks++;
    }
}

static ms_status plan_make(plan *p, const ms_head_args *a) {
  void *m;
  int supports = 0;
  memset(p, 0, sizeof *p);
  p->args = a;
  size_t n = (size_t)a->terms;
  MS_TRY(ms_alloc((n + 1) * sizeof(float) + (2 * n + 2) * sizeof(int) + (n + 2) * sizeof(int64_t),
                  "head: plan", &m));
  p->bound = m;
  p->inv_t = (float *)(p->bound + n + 2);
  p->group = (int *)(p->inv_t + n + 1);
  p->first = p->group + n;
  for (int i = 0; i < a->terms; i++) {
    const ms_head_term *t = &a->term[i];
    p->group[i] = t->source >= 0 ? -1 : group_of(p, (float)t->inv_t);
    p->full |= t->source >= 0;
    if (t->source < 0) add_bound(p, t->vocab);
    p->support += t->k;
    supports += t->k > 0;
    if (t->k > p->longest) p->longest = t->k;
  }
  add_bound(p, a->vocab);
  if (supports > 1)
    for (p->slots = 16; p->slots < 2 * p->support;) p->slots *= 2;
  count_blocks(p);
  MS_TRY(ms_alloc((size_t)p->blocks * sizeof *p->block, "head: plan", &m));
  p->block = m;
  count_blocks(p);
  return MS_OK;
}

static void plan_free(plan *p) {
  ms_free(p->block);
  ms_free(p->bound);
}

enum { MASS_BINS = 4096, MASS_PER_NAT = 64 };

static int needs_gaps(const ms_head_args *a) {
  for (int i = 0; i < a->terms; i++)
    if (a->term[i].kind == MS_TERM_KD && a->term[i].source >= 0 &&
        objectives[a->term[i].objective].needs & OBJECTIVE_GAPS)
      return 1;
  return 0;
}

/* Cuts one allocation; with `base` NULL only adds up. */
static void *cut(char *base, size_t *used, size_t bytes) {
  void *p = base ? base + *used : NULL;
  *used += (bytes + 63) / 64 * 64;
  return p;
}

static size_t work_lay(work *w, const plan *p, char *base) {
  const ms_head_args *a = p->args;
  size_t u = 0, row = (size_t)a->vocab * 4, g = (size_t)p->groups, r = (size_t)p->ranges;
  size_t b = (size_t)p->blocks, k = (size_t)p->support, s = (size_t)p->longest + 1 + VF_LANES;
  int gaps = needs_gaps(a);
  w->sum = cut(base, &u, p->full ? row : 0);
  w->h = cut(base, &u, p->full ? row + VF_LANES * 4 : 0);
  w->slope = cut(base, &u, a->soft_cap > 0 ? row : 0);
  w->extra = cut(base, &u, g > 1 ? (g - 1) * row : 0);
  w->block_max = cut(base, &u, b * 4);
  w->block_sum = cut(base, &u, g * b * 4);
  w->block_scale = cut(base, &u, g * b * 4);
  w->range = cut(base, &u, g * r * sizeof(logsum));
  w->top = cut(base, &u, r * 8);
  w->on = cut(base, &u, g * r);
  w->factor = cut(base, &u, g * r * 8);
  w->id = cut(base, &u, k * 4);
  w->z = cut(base, &u, k * 4);
  w->grad = cut(base, &u, k * 8);
  w->mark = cut(base, &u, k * 4);
  w->slot = cut(base, &u, k * 4);
  w->table = cut(base, &u, (size_t)p->slots * 4);
  w->lp = cut(base, &u, s * 4);
  w->lq = cut(base, &u, s * 4);
  w->dh = cut(base, &u, s * 4);
  w->q = cut(base, &u, s * 4);
  w->symbol = cut(base, &u, s * 4);
  size_t most = gaps && (size_t)a->vocab > s ? (size_t)a->vocab : s;
  w->candidate = cut(base, &u, most * sizeof *w->candidate);
  w->mass = cut(base, &u, gaps ? MASS_BINS * 8 : 0);
  return u;
}

/* ---- supports ---- */

/* The index in U of an id, which is added when it is new. */
static int32_t place_id(const plan *p, work *w, int32_t id, float z) {
  int64_t at = 0;
  if (p->slots) {
    uint32_t mix = (uint32_t)id * 0x9e3779b1u;
    for (at = mix & (p->slots - 1); w->table[at]; at = (at + 1) & (p->slots - 1))
      if (w->id[w->table[at] - 1] == id) return w->table[at] - 1;
    w->table[at] = (int32_t)w->ids + 1;
  }
  w->id[w->ids] = id;
  w->z[w->ids] = z;
  w->grad[w->ids] = 0;
  w->mark[w->ids] = 0;
  return (int32_t)w->ids++;
}

static inline int is_active(const ms_head_term *t, int64_t r) { return t->weight[r] > 0; }

/* Collects the ids of all supports and takes them out of the row. */
static void take_supports(const plan *p, work *w, float *z, int64_t r) {
  int32_t *slot = w->slot;
  w->ids = 0;
  if (p->slots) memset(w->table, 0, (size_t)p->slots * sizeof *w->table);
  for (int i = 0; i < p->args->terms; i++) {
    const ms_head_term *t = &p->args->term[i];
    if (t->k && is_active(t, r)) {
      const int32_t *id = t->id + (int64_t)t->row[r] * t->k;
      for (int32_t j = 0; j < t->k; j++) slot[j] = place_id(p, w, id[j], z[id[j]]);
    }
    slot += t->k;
  }
  for (int64_t i = 0; i < w->ids; i++) z[w->id[i]] = -INFINITY;
}

/* Single ids of a row lie anywhere in memory: they are asked for a row ahead. */
static void fetch_supports(const ms_head_args *a, const float *z, int64_t r) {
  if (r >= a->rows) return;
  if (a->label) __builtin_prefetch(z + a->label[r], 1, 3);
  for (int i = 0; i < a->terms; i++) {
    const ms_head_term *t = &a->term[i];
    if (!t->k || !is_active(t, r)) continue;
    const int32_t *id = t->id + (int64_t)t->row[r] * t->k;
    for (int32_t j = 0; j < t->k && j < 256; j++) __builtin_prefetch(z + id[j], 1, 3);
  }
}

/* ---- the shared pass ---- */

static void choose_groups(const plan *p, work *w, int64_t r) {
  memset(w->on, 0, (size_t)(p->groups * p->ranges));
  for (int i = 0; i < p->args->terms; i++) {
    const ms_head_term *t = &p->args->term[i];
    if (p->group[i] < 0 || !is_active(t, r)) continue;
    for (int k = 0; k < p->ranges && p->bound[k] < t->vocab; k++)
      w->on[p->group[i] * p->ranges + k] = 1;
  }
}

/* Where group g's exponentials of a block are: the range's last group has the row itself. */
static float *exps_of(const plan *p, const work *w, float *z, int g, const struct block *b) {
  int last = p->groups - 1;
  while (last > g && !w->on[last * p->ranges + b->range]) last--;
  return (last == g ? z : w->extra + (int64_t)g * p->args->vocab) + b->start;
}

static void sum_block(const plan *p, work *w, float *z, int index) {
  const struct block *b = &p->block[index];
  int keep = p->args->gradient;
  float max = block_max(z + b->start, b->size);
  int any = 0;
  w->block_max[index] = max;
  for (int g = 0; g < p->groups; g++) any |= w->on[g * p->ranges + b->range];
  if (!any) return;
  if (w->top[b->range] < 0 || max > w->range[b->range].max) {
    /* range[0 .. ranges) serves as the running maximum until the sums are put together */
    w->range[b->range].max = max;
    if (max > -INFINITY) w->top[b->range] = b->start + block_find(z + b->start, b->size, max);
  }
  for (int g = 0; g < p->groups; g++)
    if (w->on[g * p->ranges + b->range])
      w->block_sum[g * p->blocks + index] =
          block_exp(keep ? exps_of(p, w, z, g, b) : NULL, z + b->start, b->size, max, p->inv_t[g]);
}

static void sum_row(const plan *p, work *w, float *z) {
  for (int k = 0; k < p->ranges; k++) w->top[k] = -1;
  for (int i = 0; i < p->blocks; i++) sum_block(p, w, z, i);
  for (int i = 0; i < p->groups * p->ranges; i++) {
    w->range[i] = logsum_none();
    w->factor[i] = 0;
  }
  for (int g = 0; g < p->groups; g++)
    for (int k = 0; k < p->ranges; k++) {
      int from = p->first[k], at = g * p->blocks + from;
      if (w->on[g * p->ranges + k])
        w->range[g * p->ranges + k] =
            logsum_list(w->block_scale + at, w->block_max + from, w->block_sum + at,
                        p->first[k + 1] - from, p->inv_t[g]);
    }
}

/* Over the ids below `vocab` that are in no support, or only in those of other terms. */
static logsum outside(const plan *p, const work *w, int g, int64_t vocab, int32_t mark) {
  logsum s = logsum_none();
  for (int k = 0; k < p->ranges && p->bound[k] < vocab; k++)
    logsum_add(&s, w->range[g * p->ranges + k], p->inv_t[g]);
  for (int64_t i = 0; i < w->ids; i++)
    if (w->mark[i] != mark && w->id[i] < vocab) logsum_add(&s, (logsum){w->z[i], 1}, p->inv_t[g]);
  return s;
}

/* Adds factor * exp((z - max) inv_t) to the gradient of those ids. */
static void spread(const plan *p, work *w, int g, int64_t vocab, int32_t mark, float max,
                   double factor) {
  for (int k = 0; k < p->ranges && p->bound[k] < vocab; k++) {
    int at = g * p->ranges + k;
    w->factor[at] += factor * exp_above(w->range[at].max, max, p->inv_t[g]);
  }
  for (int64_t i = 0; i < w->ids; i++)
    if (w->mark[i] != mark && w->id[i] < vocab)
      w->grad[i] += factor * exp_above(w->z[i], max, p->inv_t[g]);
}

/* The student's first largest id below vocab; -1: all are -inf. */
static int64_t student_top(const plan *p, const work *w, int g, int64_t vocab) {
  int64_t top = -1;
  float max = -INFINITY;
  for (int k = 0; k < p->ranges && p->bound[k] < vocab; k++)
    if (w->range[g * p->ranges + k].max > max) {
      max = w->range[g * p->ranges + k].max;
      top = w->top[k];
    }
  for (int64_t i = 0; i < w->ids; i++)
    if (w->id[i] < vocab && (w->z[i] > max || (w->z[i] == max && top >= 0 && w->id[i] < top))) {
      max = w->z[i];
      top = w->id[i];
    }
  return top;
}

/* ---- cross-entropy ---- */

static void ce_term(const plan *p, work *w, int index, int64_t r, float label_z, double *stats) {
  const ms_head_term *t = &p->args->term[index];
  int g = p->group[index];
  int32_t label = p->args->label[r];
  logsum all = outside(p, w, g, t->vocab, -1);
  double lq = ((double)label_z - all.max) - logsum_log(all);
  stats[MS_HEAD_VALUE] = -lq * t->t_scale;
  stats[MS_HEAD_AGREE] = student_top(p, w, g, t->vocab) == label;
  stats[MS_HEAD_TEACHER_MASS] = 1;
  stats[MS_HEAD_STUDENT_MASS] = exp(lq);
  if (p->args->gradient)
    spread(p, w, g, t->vocab, -1, all.max, t->weight[r] * t->gradient / all.sum);
}

/* ---- adaptive_kl: how forward and reverse are weighted ---- */

static void adaptive_weights(double head, double tail, objective_args *o) {
  int none = head == 0 && tail == 0;
  o->forward = none ? 0.5f : (float)(head / (head + tail));
  o->reverse = none ? 0.5f : (float)(tail / (head + tail));
}

/* Whether this much of the teacher's mass fills the head, the fewest largest p with mass >= 1 - alpha.
 * A sum of rounded p that meets 1 - alpha exactly may come out a little below, hence the 1e-6. */
static inline int fills_head(double mass, double alpha) { return mass >= 1 - alpha - 1e-6; }

static int by_mass(const void *a, const void *b) {
  const struct candidate *x = a, *y = b;
  if (x->lp != y->lp) return x->lp > y->lp ? -1 : 1;
  return x->id < y->id ? -1 : x->id > y->id;
}

/* Over n symbols, the leftover last when there is one (it is tail). */
static void symbol_gaps(work *w, const int32_t *id, int32_t n, double alpha, objective_args *o) {
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
    struct candidate c = {w->lp[i], w->symbol[i] < 0 ? -1 : id[w->symbol[i]]};
    int is_head = w->symbol[i] >= 0 && in && by_mass(&c, &w->candidate[in - 1]) <= 0;
    *(is_head ? &head : &tail) += fabs(exp(w->lq[i]) - exp(w->lp[i]));
  }
  adaptive_weights(head, tail, o);
}

/* ---- top-k terms ---- */

typedef struct support {
  const int32_t *id, *slot;
  const float *log_p;
  float log_rest, log_q_rest;
  logsum out, all; /* the student's: outside the support, and everything */
  int32_t symbols;
  int bucket; /* the leftover is one of them, the last */
} support;

/* log of the sum of exp(x), n >= 1, all finite. */
static double log_sum_exp(const float *x, int32_t n) {
  double max = x[0], sum = 0;
  for (int32_t i = 1; i < n; i++) max = x[i] > max ? x[i] : max;
  for (int32_t i = 0; i < n; i++) sum += exp(x[i] - max);
  return max + log(sum);
}

static void renormalize(float *x, int32_t n) {
  double l = log_sum_exp(x, n);
  for (int32_t i = 0; i < n; i++) x[i] = (float)(x[i] - l);
}

/* sum of exp(x), x <= 0 but for rounding; sums of f32 are kept short, as in objective.h. */
static double mass_of(const float *x, int64_t n) {
  double mass = 0;
  for (int64_t from = 0; from < n; from += OBJECTIVE_PART) {
    int64_t end = n - from < OBJECTIVE_PART ? n : from + OBJECTIVE_PART;
    vf sum = vf_zero();
    for (int64_t i = from; i < end; i += VF_LANES)
      sum = sum + vf_exp(vf_load_fill(x + i, end - i, -INFINITY));
    mass += vf_sum(sum);
  }
  return mass;
}

/* Lists the symbols that both sides have, sets lp and lq; returns the student's mass in the
 * support. */
static double list_symbols(const plan *p, work *w, const ms_head_term *t, int g, support *s) {
  double log_all = logsum_log(s->all), mass = 0;
  int32_t n = 0;
  float inv_t = p->inv_t[g];
  for (int32_t j = 0; j < t->k; j++) {
    float z = w->z[s->slot[j]];
    if (s->log_p[j] == -INFINITY || z == -INFINITY) {
      mass += exp(logsum_logp(s->all, log_all, z, inv_t)); /* the student alone may have it */
      continue;
    }
    w->symbol[n] = j;
    w->lp[n] = s->log_p[j];
    w->lq[n++] = logsum_logp(s->all, log_all, z, inv_t);
  }
  mass += mass_of(w->lq, n);
  s->log_q_rest =
      s->out.max == -INFINITY
          ? -INFINITY
          : log_finite(((double)s->out.max - s->all.max) * inv_t + logsum_log(s->out) - log_all);
  s->bucket = t->tail == MS_TAIL_BUCKET && t->k < t->vocab && s->log_rest > -INFINITY &&
              s->out.max > -INFINITY;
  if (s->bucket) {
    w->symbol[n] = -1;
    w->lp[n] = s->log_rest;
    w->lq[n++] = s->log_q_rest;
  }
  s->symbols = n;
  int left = n < t->k + (t->tail == MS_TAIL_BUCKET && t->k < t->vocab);
  if (n && (left || (t->tail == MS_TAIL_RENORMALIZE && t->k < t->vocab))) {
    renormalize(w->lp, n);
    renormalize(w->lq, n);
  }
  for (int32_t i = n; i % VF_LANES; i++) w->lp[i] = w->lq[i] = OBJECTIVE_FILL;
  return mass;
}

static void topk_stats(const plan *p, const work *w, const ms_head_term *t, int g, const support *s,
                       double *stats) {
  int32_t top = 0;
  for (int32_t j = 1; j < t->k; j++)
    if (s->log_p[j] > s->log_p[top] || (s->log_p[j] == s->log_p[top] && s->id[j] < s->id[top]))
      top = j;
  stats[MS_HEAD_TEACHER_MASS] = mass_of(s->log_p, t->k);
  stats[MS_HEAD_AGREE] = student_top(p, w, g, t->vocab) == s->id[top];
}

static void topk_gradient(const plan *p, work *w, const ms_head_term *t, int g, int32_t mark,
                          const support *s, double slope, double factor) {
  for (int32_t i = 0; i < s->symbols; i++) {
    double d = factor * (w->dh[i] - w->q[i] * slope);
    if (w->symbol[i] >= 0)
      w->grad[s->slot[w->symbol[i]]] += d;
    else if (d != 0) /* d = h_B - q_B H is shared out as exp(lq_j - lq_B) */
      spread(p, w, g, t->vocab, mark, s->out.max, d / s->out.sum);
  }
}

static void topk_term(const plan *p, work *w, int index, const int32_t *slot, int64_t r,
                      double *stats) {
  const ms_head_term *t = &p->args->term[index];
  int g = p->group[index], objective = objective_resolve(t->objective, t->parameter);
  int64_t row = t->row[r];
  support s = {.id = t->id + row * t->k, .slot = slot, .log_p = t->log_p + row * t->k};
  objective_args o = {(float)t->parameter, (float)t->sign_width, 0, 0, 0};
  objective_sums sums = {0, 0, 0, 0};

  for (int32_t j = 0; j < t->k; j++) w->mark[slot[j]] = index + 1;
  s.log_rest = t->log_rest[row];
  s.out = s.all = outside(p, w, g, t->vocab, index + 1);
  for (int32_t j = 0; j < t->k; j++) w->lq[j] = w->z[slot[j]];
  logsum_add(&s.all, logsum_list(NULL, w->lq, NULL, t->k, p->inv_t[g]), p->inv_t[g]);
  topk_stats(p, w, t, g, &s, stats);
  stats[MS_HEAD_STUDENT_MASS] = list_symbols(p, w, t, g, &s);
  if (objectives[objective].needs & OBJECTIVE_GAPS)
    symbol_gaps(w, s.id, s.symbols, t->parameter, &o);
  if (s.symbols) {
    int64_t top = block_find(w->lq, s.symbols, block_max(w->lq, s.symbols));
    objective_set_centre(objective, &o, w->lp[top], w->lq[top]);
  }
  objectives[objective].loop(w->dh, w->q, &sums, w->lp, w->lq,
                             (s.symbols + VF_LANES - 1) / VF_LANES * VF_LANES, &o);
  stats[MS_HEAD_VALUE] = sums.value * t->t_scale;
  stats[MS_HEAD_TEACHER_ENTROPY] = -sums.p_log_p;
  stats[MS_HEAD_STUDENT_ENTROPY] = -sums.q_log_q;
  if (p->args->gradient)
    topk_gradient(p, w, t, g, index + 1, &s, sums.h, t->weight[r] * t->gradient * p->inv_t[g]);
}

/* ---- full targets ---- */

/* y and z with every id that is -inf on either side made -inf on both. */
static inline void load_both(const float *y, const float *z, int64_t n, vf *a, vf *b) {
  vf none = vf_set(-INFINITY);
  *a = vf_load_fill(y, n, -INFINITY);
  *b = vf_load_fill(z, n, -INFINITY);
  vi out = (*a == none) | (*b == none);
  *a = vf_select(out, none, *a);
  *b = vf_select(out, none, *b);
}

typedef struct full {
  const ms_head_term *t;
  const float *y;
  float *z;
  float inv_t, inv_tt, log_z, log_y;
  logsum sz, sy;
  int64_t top_z, top_y;
  int nan;
} full;

/* A block's sum; top: the place of its maximum, if it is the row's so far, or -1. That id's term, 1,
 * is added in double: with nearly all of the mass it would hide the others'. */
static logsum full_sum(float *z, int64_t n, int64_t top, float max, float inv_t) {
  if (top < 0 || max == INFINITY) return (logsum){max, block_exp(NULL, z, n, max, inv_t)};
  z[top] = -INFINITY;
  return (logsum){max, 1 + (double)block_exp(NULL, z, n, max, inv_t)};
}

/* Adds a block to both log-sum-exps; pa and pb are scratch. */
static void full_block(full *f, int64_t from, int64_t n, float *pa, float *pb) {
  for (int64_t i = 0; i < n; i += VF_LANES) {
    vf a, b;
    load_both(f->y + from + i, f->z + from + i, n - i, &a, &b);
    vf_store(pa + i, a);
    vf_store(pb + i, b);
  }
  int64_t room = (n + VF_LANES - 1) / VF_LANES * VF_LANES;
  float ma = block_max(pa, room), mb = block_max(pb, room);
  int64_t top_a = ma > f->sy.max ? block_find(pa, n, ma) : -1;
  int64_t top_b = mb > f->sz.max ? block_find(pb, n, mb) : -1;
  if (top_a >= 0) f->top_y = from + top_a;
  if (top_b >= 0) f->top_z = from + top_b;
  logsum a = full_sum(pa, room, top_a, ma, f->inv_tt);
  logsum b = full_sum(pb, room, top_b, mb, f->inv_t);
  f->nan |= isnan(a.sum) || isnan(b.sum);
  logsum_add(&f->sy, a, f->inv_tt);
  logsum_add(&f->sz, b, f->inv_t);
}

/* lp and lq of a block, filled up to a multiple of VF_LANES. */
static void full_logs(const full *f, int64_t from, int64_t n, float *lp, float *lq) {
  vf none = vf_set(-INFINITY), fill = vf_set(OBJECTIVE_FILL);
  for (int64_t i = 0; i < n; i += VF_LANES) {
    vf a, b;
    load_both(f->y + from + i, f->z + from + i, n - i, &a, &b);
    vi out = a == none;
    a = vf_fma(a - vf_set(f->sy.max), vf_set(f->inv_tt), vf_set(-f->log_y));
    b = vf_fma(b - vf_set(f->sz.max), vf_set(f->inv_t), vf_set(-f->log_z));
    vf_store(lp + i, vf_select(out, fill, vf_max(vf_set(LOG_LEAST), a)));
    vf_store(lq + i, vf_select(out, fill, vf_max(vf_set(LOG_LEAST), b)));
  }
}

#define FULL_BLOCKS(vocab)                                                            \
  for (int64_t from = 0, n;                                                           \
       n = (vocab)-from < LOGSUM_BLOCK ? (vocab)-from : LOGSUM_BLOCK, from < (vocab); \
       from += LOGSUM_BLOCK)

/* -1 for what weighs nothing: e^-60 of all ids there can be. */
static inline int mass_bin(float lp) {
  return lp <= -60 ? -1 : lp > 0 ? 0 : (int)(-lp * MASS_PER_NAT);
}

/* The last id of the head. Masses are summed by bins of lp; only the bin in which the head is filled
 * has to be sorted. */
static struct candidate last_of_head(const full *f, work *w, double alpha) {
  float lp[LOGSUM_BLOCK], lq[LOGSUM_BLOCK];
  double mass = 0;
  int bin = 0;
  int64_t count = 0;
  memset(w->mass, 0, MASS_BINS * sizeof *w->mass);
  FULL_BLOCKS(f->t->vocab) {
    full_logs(f, from, n, lp, lq);
    for (int64_t i = 0; i < n; i += VF_LANES)
      vf_store(lq + i, exp_negative(vf_min(vf_load(lp + i), vf_zero())));
    for (int64_t i = 0; i < n; i++) {
      w->h[from + i] = lp[i];
      int at = mass_bin(lp[i]);
      if (at >= 0) w->mass[at] += lq[i];
    }
  }
  if (fills_head(0, alpha)) return (struct candidate){INFINITY, -1};
  if (alpha <= 0) return (struct candidate){-INFINITY, INT32_MAX};
  while (bin < MASS_BINS && !fills_head(mass + w->mass[bin], alpha)) mass += w->mass[bin++];
  if (bin == MASS_BINS) return (struct candidate){-INFINITY, INT32_MAX};
  for (int64_t i = 0; i < f->t->vocab; i++)
    if (mass_bin(w->h[i]) == bin) w->candidate[count++] = (struct candidate){w->h[i], (int32_t)i};
  qsort(w->candidate, (size_t)count, sizeof *w->candidate, by_mass);
  int64_t in = 0;
  while (in + 1 < count && !fills_head(mass += exp(w->candidate[in].lp), alpha)) in++;
  return w->candidate[in];
}

static void full_gaps(const full *f, work *w, double alpha, objective_args *o) {
  float lp[LOGSUM_BLOCK], lq[LOGSUM_BLOCK];
  struct candidate last = last_of_head(f, w, alpha);
  double head = 0, tail = 0;
  FULL_BLOCKS(f->t->vocab) {
    vf in = vf_zero(), out = vf_zero();
    full_logs(f, from, n, lp, lq);
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
  adaptive_weights(head, tail > 0 ? tail : 0, o);
}

/* out = add + factor (h - q slope), below the term's vocab. */
static void full_gradient(const full *f, float *out, const float *add, const float *h, double slope,
                          double factor) {
  float lp[LOGSUM_BLOCK], lq[LOGSUM_BLOCK];
  vf c = vf_set((float)factor), s = vf_set((float)slope);
  FULL_BLOCKS(f->t->vocab) {
    full_logs(f, from, n, lp, lq);
    for (int64_t i = 0; i < n; i += VF_LANES) {
      int64_t part = n - i < VF_LANES ? n - i : VF_LANES;
      vf g = c * (vf_load(h + from + i) - exp_negative(vf_load(lq + i)) * s);
      if (add) g = g + vf_load_fill(add + from + i, part, 0);
      vf_store_part(out + from + i, g, part);
    }
  }
}

/* One term; its gradient is added to w->sum, or set where `first`. */
static void full_term(const plan *p, work *w, int index, float *z, int64_t r, int first,
                      double *stats) {
  const ms_head_args *args = p->args;
  const ms_head_term *t = &args->term[index];
  const ms_head_source *y = &args->source[t->source];
  int objective = objective_resolve(t->objective, t->parameter);
  objective_args o = {(float)t->parameter, (float)t->sign_width, 0, 0, 0};
  objective_sums sums = {0, 0, 0, 0};
  float lp[LOGSUM_BLOCK], lq[LOGSUM_BLOCK];
  full f = {.t = t,
            .y = y->logits + (int64_t)y->row[r] * y->stride,
            .z = z,
            .inv_t = (float)t->inv_t,
            .inv_tt = (float)t->inv_tt,
            .sz = logsum_none(),
            .sy = logsum_none(),
            .top_z = -1,
            .top_y = -1};

  if (first && args->gradient) memset(w->sum, 0, (size_t)args->vocab * sizeof *w->sum);
  FULL_BLOCKS(t->vocab) full_block(&f, from, n, lp, lq);
  if (f.nan) { /* seen by whoever looks at losses or gradients, however few of the logits it is */
    stats[MS_HEAD_VALUE] = NAN;
    for (int64_t i = 0; i < t->vocab && args->gradient; i++) w->sum[i] = NAN;
    return;
  }
  if (f.top_z < 0) return;
  f.log_z = (float)logsum_log(f.sz);
  f.log_y = (float)logsum_log(f.sy);
  if (objectives[objective].needs & OBJECTIVE_GAPS) full_gaps(&f, w, t->parameter, &o);
  full_logs(&f, f.top_z, 1, lp, lq);
  objective_set_centre(objective, &o, lp[0], lq[0]);
  FULL_BLOCKS(t->vocab) {
    full_logs(&f, from, n, lp, lq);
    objectives[objective].loop(w->h + from, NULL, &sums, lp, lq,
                               (n + VF_LANES - 1) / VF_LANES * VF_LANES, &o);
  }
  stats[MS_HEAD_VALUE] = sums.value * t->t_scale;
  stats[MS_HEAD_AGREE] = f.top_z == f.top_y;
  stats[MS_HEAD_TEACHER_MASS] = stats[MS_HEAD_STUDENT_MASS] = 1;
  stats[MS_HEAD_TEACHER_ENTROPY] = -sums.p_log_p;
  stats[MS_HEAD_STUDENT_ENTROPY] = -sums.q_log_q;
  if (args->gradient)
    full_gradient(&f, w->sum, w->sum, w->h, sums.h, t->weight[r] * t->gradient * t->inv_t);
}

/* ---- rows ---- */

/* z = factor * e + add (NULL: nothing) */
static void scale_block(float *z, const float *e, const float *add, int64_t n, float factor) {
  vf f = vf_set(factor);
  int64_t i = 0;
  for (; i + 2 * VF_LANES <= n; i += 2 * VF_LANES) {
    vf x = f * vf_load(e + i), y = f * vf_load(e + i + VF_LANES);
    if (add) x = x + vf_load(add + i), y = y + vf_load(add + i + VF_LANES);
    vf_store(z + i, x);
    vf_store(z + i + VF_LANES, y);
  }
  for (; i < n; i++) z[i] = factor * e[i] + (add ? add[i] : 0);
}

/* The gradient of the ids of a block, those in U apart. */
static void finish_block(const plan *p, work *w, float *z, const float *sum, int index) {
  const struct block *b = &p->block[index];
  float *out = z + b->start;
  const float *add = sum ? sum + b->start : NULL;
  int any = 0;
  /* from the last group down: that one's exponentials lie where the result goes */
  for (int g = p->groups - 1; g >= 0; g--) {
    int k = g * p->ranges + b->range;
    if (!w->on[k]) continue;
    const float *e = exps_of(p, w, z, g, b);
    double f = w->factor[k] * w->block_scale[g * p->blocks + index];
    scale_block(out, e, add, b->size, (float)f);
    add = out;
    any = 1;
  }
  if (any) return;
  if (sum)
    memcpy(out, add, (size_t)b->size * sizeof *out);
  else
    memset(out, 0, (size_t)b->size * sizeof *out);
}

static void finish_row(const plan *p, work *w, float *z, int64_t r, const float *sum) {
  const ms_head_args *a = p->args;
  for (int i = 0; i < p->blocks; i++) finish_block(p, w, z, sum, i);
  for (int64_t i = 0; i < w->ids; i++)
    z[w->id[i]] = (float)(w->grad[i] + (sum ? sum[w->id[i]] : 0));
  for (int i = 0; i < a->terms; i++)
    if (a->term[i].kind == MS_TERM_CE && is_active(&a->term[i], r))
      z[a->label[r]] = (float)(z[a->label[r]] - a->term[i].weight[r] * a->term[i].gradient);
  if (a->scale == 1 && a->soft_cap == 0) return;
  for (int64_t i = 0; i < a->vocab; i++)
    z[i] *= a->soft_cap > 0 ? a->scale * w->slope[i] : a->scale;
}

static void sparse_terms(const plan *p, work *w, int64_t r, float label_z, double *stats) {
  const int32_t *slot = w->slot;
  for (int i = 0; i < p->args->terms; i++) {
    const ms_head_term *t = &p->args->term[i];
    if (p->group[i] >= 0 && is_active(t, r)) {
      if (t->kind == MS_TERM_CE)
        ce_term(p, w, i, r, label_z, stats + i * MS_HEAD_STATS);
      else
        topk_term(p, w, i, slot, r, stats + i * MS_HEAD_STATS);
    }
    slot += t->k;
  }
}

static void head_row(const plan *p, work *w, int64_t r) {
  const ms_head_args *a = p->args;
  float *z = a->logits + r * a->vocab;
  double *stats = a->stats + r * a->terms * MS_HEAD_STATS;
  int first = 1;
  memset(stats, 0, (size_t)a->terms * MS_HEAD_STATS * sizeof *stats);
  cap_row(z, a->gradient ? w->slope : NULL, a->vocab, a->scale, a->soft_cap);
  for (int i = 0; i < a->sources; i++) {
    const ms_head_source *s = &a->source[i];
    if (s->row[r] >= 0)
      cap_row(s->logits + (int64_t)s->row[r] * s->stride, NULL, s->stride, s->scale, s->soft_cap);
  }
  for (int i = 0; i < a->terms; i++)
    if (a->term[i].source >= 0 && is_active(&a->term[i], r)) {
      full_term(p, w, i, z, r, first, stats + i * MS_HEAD_STATS);
      first = 0;
    }
  float label_z = a->label ? z[a->label[r]] : 0;
  take_supports(p, w, z, r);
  fetch_supports(a, z + a->vocab, r + 1);
  choose_groups(p, w, r);
  sum_row(p, w, z);
  sparse_terms(p, w, r, label_z, stats);
  if (a->gradient) finish_row(p, w, z, r, first ? NULL : w->sum);
}

ms_status MS_KERNEL(head_loss)(ms_stream *s, const ms_head_args *args) {
  plan p;
  work lay;
  void *scratch = NULL;
  int threads = omp_get_max_threads();
  ms_status st;

  MS_TRY_OR(end, plan_make(&p, args));
  if (threads > args->rows) threads = (int)args->rows;
  size_t bytes = work_lay(&lay, &p, NULL);
  MS_TRY_OR(end, ms_alloc(bytes * (size_t)threads, "head: scratch", &scratch));
#pragma omp parallel num_threads(threads)
  {
    work w;
    work_lay(&w, &p, (char *)scratch + bytes * (size_t)omp_get_thread_num());
#pragma omp for schedule(dynamic, 4)
    for (int64_t r = 0; r < args->rows; r++) head_row(&p, &w, r);
  }
end:
  ms_free(scratch);
  plan_free(&p);
  return st;
}

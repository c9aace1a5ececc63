/* head_topk.c - a divergence from a top-k target: the ids of its support, and the leftover as one more
 * symbol. */
#include "head_loss.h"

typedef struct support {
  const int32_t *id;
  const int32_t *slot; /* -1: another rank's */
  const float *z;      /* the student's logits, of all ids once they are known */
  const float *log_p;
  float log_rest;
  int32_t symbols; /* the leftover is the last, where it is one */
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

/* sum of exp(x), x <= 0 but for rounding; sums of f32 are kept short. */
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
static double list_symbols(const head_plan *p, head_scratch *w, const ms_head_term *t, int g,
                           support *s, const ms_head_record *c) {
  double log_all = logsum_log(c->student), mass = 0;
  int32_t n = 0;
  float inv_t = p->inv_t[g];
  for (int32_t j = 0; j < t->k; j++) {
    float z = s->z[j];
    if (s->log_p[j] == -INFINITY || z == -INFINITY) {
      mass += exp(logsum_logp(c->student, log_all, z, inv_t)); /* the student alone may have it */
      continue;
    }
    w->symbol[n] = j;
    w->lp[n] = s->log_p[j];
    w->lq[n++] = logsum_logp(c->student, log_all, z, inv_t);
  }
  mass += mass_of(w->lq, n);
  int wants_rest = t->leftover && t->tail == MS_TAIL_BUCKET;
  if (wants_rest && s->log_rest > -INFINITY && c->rest.max > -INFINITY) {
    w->symbol[n] = -1;
    w->lp[n] = s->log_rest;
    w->lq[n++] =
        log_finite(((double)c->rest.max - c->student.max) * inv_t + logsum_log(c->rest) - log_all);
  }
  s->symbols = n;
  int left = n < t->k + wants_rest;
  if (n && (left || (t->leftover && t->tail == MS_TAIL_RENORMALIZE))) {
    renormalize(w->lp, n);
    renormalize(w->lq, n);
  }
  for (int32_t i = n; i % VF_LANES; i++) w->lp[i] = w->lq[i] = OBJECTIVE_FILL;
  return mass;
}

/* The first largest id of the target. */
static int32_t teacher_top(const support *s, int32_t k) {
  int32_t top = 0;
  for (int32_t j = 1; j < k; j++)
    if (s->log_p[j] > s->log_p[top] || (s->log_p[j] == s->log_p[top] && s->id[j] < s->id[top]))
      top = j;
  return s->id[top];
}

/* Over this rank's ids: those outside the support, and the largest of all. */
static void topk_sums(const head_plan *p, head_scratch *w, int term, ms_head_record *c) {
  int64_t vocab = p->args->term[term].vocab;
  int g = p->group[term];
  c->rest = head_outside(p, w, g, vocab, term + 1);
  c->student = logsum_none();
  c->student_top = head_student_top(p, w, g, vocab, &c->student.max);
}

static void topk_values(const head_plan *p, head_scratch *w, int term, support *s,
                        ms_head_record *c) {
  const ms_head_term *t = &p->args->term[term];
  objective_args o = {(float)t->parameter, (float)t->sign_width, 0, 0, 0};
  objective_sums sums = {0, 0, 0, 0};
  float inv_t = p->inv_t[p->group[term]];
  c->student = c->rest;
  logsum_join(&c->student, logsum_list(NULL, s->z, NULL, t->k, inv_t), inv_t);
  c->teacher_top = teacher_top(s, t->k);
  c->agree = c->student_top == c->teacher_top;
  c->teacher_mass = mass_of(s->log_p, t->k);
  c->student_mass = list_symbols(p, w, t, p->group[term], s, c);
  if (t->gaps) {
    head_symbol_gaps(w, s->id, s->symbols, t->parameter, c);
    head_weigh_gaps(c, &o);
  }
  if (s->symbols) {
    int64_t top = block_find(w->lq, s->symbols, block_max(w->lq, s->symbols));
    objective_set_centre(t->objective, &o, w->lp[top], w->lq[top]);
  }
  objective_sum(t->objective, w->dh, w->q, &sums, w->lp, w->lq,
                (s->symbols + VF_LANES - 1) / VF_LANES * VF_LANES, &o);
  c->value = sums.value;
  c->slope = sums.h;
  c->teacher_entropy = -sums.p_log_p;
  c->student_entropy = -sums.q_log_q;
}

static void topk_gradient(const head_plan *p, head_scratch *w, int term, const support *s,
                          const ms_head_record *c, double factor) {
  const ms_head_term *t = &p->args->term[term];
  for (int32_t i = 0; i < s->symbols; i++) {
    double d = factor * (w->dh[i] - w->q[i] * c->slope);
    int32_t at = w->symbol[i] < 0 ? -1 : s->slot[w->symbol[i]];
    if (at >= 0)
      w->grad[at] += d;
    else if (w->symbol[i] < 0 && d != 0) /* d = h_B - q_B H is shared out as exp(lq_j - lq_B) */
      head_spread(p, w, p->group[term], t->vocab, term + 1, c->rest.max, d / c->rest.sum);
  }
}

void head_topk(const head_plan *p, head_scratch *w, int term, int64_t from, int64_t r,
               ms_head_record *c) {
  const ms_head_args *a = p->args;
  const ms_head_term *t = &a->term[term];
  int64_t row = t->row[r] - t->first;
  const float *z = a->phase == MS_HEAD_FINISH ? a->support + r * p->support : w->entry;
  support s = {.id = head_support(t, r),
               .slot = w->slot + from,
               .z = z + from,
               .log_p = t->log_p + row * t->k,
               .log_rest = t->log_rest[row]};
  for (int32_t j = 0; j < t->k; j++)
    if (s.slot[j] >= 0) w->mark[s.slot[j]] = term + 1;
  if (a->phase != MS_HEAD_FINISH) topk_sums(p, w, term, c);
  if (a->phase == MS_HEAD_SUMS) return;
  topk_values(p, w, term, &s, c);
  if (a->gradient)
    topk_gradient(p, w, term, &s, c, t->weight[r] * t->gradient * p->inv_t[p->group[term]]);
}

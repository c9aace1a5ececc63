/* head_full.c - a divergence from a teacher's full row of logits. */
#include "head_loss.h"

/* y and z with every id that is -inf on either side made -inf on both. */
static inline void load_both(const float *y, const float *z, int64_t n, vf *a, vf *b) {
  vf none = vf_set(-INFINITY);
  *a = vf_load_fill(y, n, -INFINITY);
  *b = vf_load_fill(z, n, -INFINITY);
  vi out = (*a == none) | (*b == none);
  *a = vf_select(out, none, *a);
  *b = vf_select(out, none, *b);
}

/* A block's sum; top: the place of its maximum, if it is the row's so far, or -1. That id's term, 1,
 * is added in double: with nearly all of the mass it would hide the others'. */
static logsum block_sum(float *z, int64_t n, int64_t top, float max, float inv_t) {
  if (top < 0 || max == INFINITY) return (logsum){max, block_exp(NULL, z, n, max, inv_t)};
  z[top] = -INFINITY;
  return (logsum){max, 1 + (double)block_exp(NULL, z, n, max, inv_t)};
}

/* Adds a block to both log-sum-exps; pa and pb are scratch. */
static void add_block(head_pair *f, ms_head_record *c, int64_t from, int64_t n, float *pa,
                      float *pb) {
  for (int64_t i = 0; i < n; i += VF_LANES) {
    vf a, b;
    load_both(f->y + from + i, f->z + from + i, n - i, &a, &b);
    vf_store(pa + i, a);
    vf_store(pb + i, b);
  }
  int64_t room = (n + VF_LANES - 1) / VF_LANES * VF_LANES;
  float ma = block_max(pa, room), mb = block_max(pb, room);
  int64_t top_a = ma > c->teacher.max ? block_find(pa, n, ma) : -1;
  int64_t top_b = mb > c->student.max ? block_find(pb, n, mb) : -1;
  if (top_a >= 0) c->teacher_top = from + top_a;
  if (top_b >= 0) c->student_top = from + top_b;
  logsum a = block_sum(pa, room, top_a, ma, f->inv_tt);
  logsum b = block_sum(pb, room, top_b, mb, f->inv_t);
  f->nan |= isnan(a.sum) || isnan(b.sum);
  logsum_add(&c->teacher, a, f->inv_tt);
  logsum_add(&c->student, b, f->inv_t);
}

void head_pair_logs(const head_pair *f, int64_t from, int64_t n, float *lp, float *lq) {
  vf none = vf_set(-INFINITY), fill = vf_set(OBJECTIVE_FILL);
  for (int64_t i = 0; i < n; i += VF_LANES) {
    vf a, b;
    load_both(f->y + from + i, f->z + from + i, n - i, &a, &b);
    vi out = a == none;
    a = vf_fma(a - vf_set(f->max_y), vf_set(f->inv_tt), vf_set(-f->log_y));
    b = vf_fma(b - vf_set(f->max_z), vf_set(f->inv_t), vf_set(-f->log_z));
    vf_store(lp + i, vf_select(out, fill, vf_max(vf_set(LOG_LEAST), a)));
    vf_store(lq + i, vf_select(out, fill, vf_max(vf_set(LOG_LEAST), b)));
  }
}

static void full_sums(head_pair *f, int64_t first_id, ms_head_record *c) {
  float pa[LOGSUM_BLOCK], pb[LOGSUM_BLOCK];
  c->student = c->teacher = logsum_none();
  c->student_top = c->teacher_top = -1;
  HEAD_BLOCKS(f->t->vocab) add_block(f, c, from, n, pa, pb);
  if (f->nan) c->student.sum = NAN;
  if (c->student_top < 0) return; /* nor is there a teacher's */
  c->teacher_there = f->y[c->student_top];
  c->student_top += first_id;
  c->teacher_top += first_id;
}

/* Once the sums are known. */
static void take_sums(head_pair *f, const ms_head_record *c) {
  f->max_z = c->student.max;
  f->max_y = c->teacher.max;
  f->log_z = (float)logsum_log(c->student);
  f->log_y = (float)logsum_log(c->teacher);
}

static objective_args arguments_of(const head_pair *f, const ms_head_record *c) {
  const ms_head_term *t = f->t;
  objective_args o = {(float)t->parameter, (float)t->sign_width, 0, 0, 0};
  float lp[VF_LANES], lq[VF_LANES], z = c->student.max;
  head_pair top = *f;
  top.y = &c->teacher_there;
  top.z = &z;
  if (t->gaps) head_weigh_gaps(c, &o);
  head_pair_logs(&top, 0, 1, lp, lq);
  objective_set_centre(t->objective, &o, lp[0], lq[0]);
  return o;
}

/* Sets what is summed over this rank's ids, leaves h in w->h. */
static void full_values(const head_pair *f, head_scratch *w, const ms_head_record *c,
                        ms_head_record *part) {
  const ms_head_term *t = f->t;
  objective_args o = arguments_of(f, c);
  objective_sums sums = {0, 0, 0, 0};
  float lp[LOGSUM_BLOCK], lq[LOGSUM_BLOCK];
  HEAD_BLOCKS(t->vocab) {
    head_pair_logs(f, from, n, lp, lq);
    objective_sum(t->objective, w->h + from, NULL, &sums, lp, lq,
                  (n + VF_LANES - 1) / VF_LANES * VF_LANES, &o);
  }
  part->value = sums.value;
  part->slope = sums.h;
  part->teacher_entropy = -sums.p_log_p;
  part->student_entropy = -sums.q_log_q;
}

/* sum += factor (h - q slope), below the term's vocab. */
static void full_gradient(const head_pair *f, float *sum, const float *h, double slope,
                          double factor) {
  float lp[LOGSUM_BLOCK], lq[LOGSUM_BLOCK];
  vf c = vf_set((float)factor), s = vf_set((float)slope);
  HEAD_BLOCKS(f->t->vocab) {
    head_pair_logs(f, from, n, lp, lq);
    for (int64_t i = 0; i < n; i += VF_LANES) {
      int64_t part = n - i < VF_LANES ? n - i : VF_LANES;
      vf g = c * (vf_load(h + from + i) - exp_negative(vf_load(lq + i)) * s);
      vf_store_part(sum + from + i, g + vf_load_fill(sum + from + i, part, 0), part);
    }
  }
}

/* What the term says of the row, and its gradient; in parts h is made again for that. */
static void finish(const head_pair *f, const ms_head_args *args, head_scratch *w, int64_t r,
                   ms_head_record *c) {
  const ms_head_term *t = f->t;
  ms_head_record again;
  c->agree = c->student_top == c->teacher_top;
  c->teacher_mass = c->student_mass = 1;
  if (!args->gradient) return;
  if (args->phase == MS_HEAD_FINISH) full_values(f, w, c, &again);
  full_gradient(f, w->sum, w->h, c->slope, t->weight[r] * t->gradient * t->inv_t);
}

/* All phases but the first. */
static void compare(head_pair *f, const ms_head_args *args, head_scratch *w, int64_t r,
                    ms_head_record *c, ms_head_record *part) {
  int phase = args->phase, whole = phase == MS_HEAD_WHOLE;
  head_limit limit = {c->last, c->ties};
  take_sums(f, c);
  if (phase == MS_HEAD_SELECT)
    head_select(f, c, args->round, head_bins(args, r, f->t - args->term));
  if (whole && f->t->gaps) limit = head_pair_limit(f, w);
  if ((whole && f->t->gaps) || phase == MS_HEAD_GAPS) head_pair_gaps(f, limit, part);
  if (phase == MS_HEAD_TIES) head_count_ties(f, c, part);
  if (whole || phase == MS_HEAD_VALUES) full_values(f, w, c, part);
  if (whole || phase == MS_HEAD_FINISH) finish(f, args, w, r, c);
}

/* A row with a NaN says so to whoever looks at losses or gradients, however few of the logits it is. */
static void spoil(const ms_head_args *args, head_scratch *w, int64_t vocab, ms_head_record *c) {
  c->value = NAN;
  for (int64_t i = 0; i < vocab && args->gradient; i++) w->sum[i] = NAN;
}

void head_full(const head_plan *p, head_scratch *w, int term, float *z, int64_t r, int first,
               ms_head_record *c, ms_head_record *part) {
  const ms_head_args *args = p->args;
  const ms_head_term *t = &args->term[term];
  const ms_head_source *y = &args->source[t->source];
  int last = args->phase == MS_HEAD_WHOLE || args->phase == MS_HEAD_FINISH;
  head_pair f = {.t = t,
                 .y = y->logits + (y->row[r] - y->first) * y->stride,
                 .z = z,
                 .inv_t = (float)t->inv_t,
                 .inv_tt = (float)t->inv_tt};
  if (last && first && args->gradient) memset(w->sum, 0, (size_t)args->vocab * sizeof *w->sum);
  if (args->phase <= MS_HEAD_SUMS) full_sums(&f, args->first_id, part);
  if (args->phase == MS_HEAD_SUMS) return;
  if (isnan(c->student.sum)) {
    if (last) spoil(args, w, t->vocab, c);
  } else if (c->student_top >= 0) {
    compare(&f, args, w, r, c, part);
  }
}

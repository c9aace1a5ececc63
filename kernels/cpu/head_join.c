/* head_join.c - what the parts of the vocabulary say of rows, put together in order of the parts. */
#include "head_loss.h"

static void join_sums(const ms_head_term *t, const ms_head_record *x, ms_head_record *c) {
  if (x->student_top >= 0 && (c->student_top < 0 || x->student.max > c->student.max)) {
    c->student_top = x->student_top;
    c->teacher_there = x->teacher_there;
  }
  if (x->teacher_top >= 0 && (c->teacher_top < 0 || x->teacher.max > c->teacher.max))
    c->teacher_top = x->teacher_top;
  logsum_join(&c->student, x->student, (float)t->inv_t);
  logsum_join(&c->rest, x->rest, (float)t->inv_t);
  logsum_join(&c->teacher, x->teacher, (float)t->inv_tt);
  c->label = fmaxf(c->label, x->label);
}

static void join_values(const ms_head_record *x, ms_head_record *c) {
  c->value += x->value;
  c->slope += x->slope;
  c->teacher_entropy += x->teacher_entropy;
  c->student_entropy += x->student_entropy;
}

/* Part 0 of a record; those of other ranks lie `step` further on. */
static void join_ties(const ms_head_args *a, double alpha, const ms_head_record *x, int64_t step,
                      ms_head_record *c) {
  int64_t all = 0, before = 0;
  for (int32_t p = 0; p < a->parts; p++) {
    all += x[p * step].ties;
    before += p < a->own ? x[p * step].ties : 0;
  }
  head_join_ties(alpha, all, before, x[a->own * step].ties, c);
}

static void join(const ms_head_args *a, int64_t r, int i) {
  const ms_head_term *t = &a->term[i];
  ms_head_record *c = a->record + r * a->terms + i;
  const ms_head_record *x = a->part + r * a->terms + i;
  int64_t step = a->rows * a->terms;
  if (a->phase == MS_HEAD_SUMS)
    *c = (ms_head_record){.student = logsum_none(),
                          .rest = logsum_none(),
                          .teacher = logsum_none(),
                          .student_top = -1,
                          .teacher_top = -1,
                          .label = -INFINITY};
  for (int32_t p = 0; p < a->parts; p++) {
    const ms_head_record *part = x + p * step;
    if (a->phase == MS_HEAD_SUMS) join_sums(t, part, c);
    if (a->phase == MS_HEAD_VALUES) join_values(part, c);
    if (a->phase == MS_HEAD_GAPS) c->head_gap += part->head_gap, c->tail_gap += part->tail_gap;
  }
  if (!ms_head_selects(t)) return;
  if (a->phase == MS_HEAD_SELECT) head_join_select(t->parameter, a->round, head_bins(a, r, i), c);
  if (a->phase == MS_HEAD_TIES) join_ties(a, t->parameter, x, step, c);
}

ms_status MS_KERNEL(head_join)(ms_stream *s, const ms_head_args *args) {
  for (int64_t r = 0; r < args->rows; r++)
    for (int i = 0; i < args->terms; i++)
      if (head_is_active(&args->term[i], r)) join(args, r, i);
  return MS_OK;
}

/* head_ce.c - cross-entropy of a row with its label, over the student's whole vocabulary. */
#include "head_loss.h"

static void ce_values(const ms_head_term *t, int32_t label, float label_logit, ms_head_record *c) {
  double lq = ((double)label_logit - c->student.max) - logsum_log(c->student);
  c->value = -lq;
  c->agree = c->student_top == label;
  c->teacher_mass = 1;
  c->student_mass = exp(lq);
}

void head_ce(const head_plan *p, head_scratch *w, int term, int64_t r, float label_logit,
             ms_head_record *c) {
  const ms_head_term *t = &p->args->term[term];
  int g = p->group[term];
  c->student = head_outside(p, w, g, t->vocab, -1);
  c->student_top = head_student_top(p, w, g, t->vocab);
  ce_values(t, p->args->label[r], label_logit, c);
  if (p->args->gradient) /* the label's own part is head_finish_row's */
    head_spread(p, w, g, t->vocab, -1, c->student.max, t->weight[r] * t->gradient / c->student.sum);
}

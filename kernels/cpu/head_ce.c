/* head_ce.c - cross-entropy of a row with its label, over the student's whole vocabulary. */
#include "head_loss.h"

static void ce_sums(const head_plan *p, head_scratch *w, int term, float label_logit,
                    ms_head_record *c) {
  int64_t vocab = p->args->term[term].vocab;
  int g = p->group[term];
  float max;
  c->student = head_outside(p, w, g, vocab, -1);
  c->student_top = head_student_top(p, w, g, vocab, &max);
  c->label = label_logit;
}

static void ce_values(int32_t label, ms_head_record *c) {
  double lq = ((double)c->label - c->student.max) - logsum_log(c->student);
  c->value = -lq;
  c->agree = c->student_top == label;
  c->teacher_mass = 1;
  c->student_mass = exp(lq);
}

void head_ce(const head_plan *p, head_scratch *w, int term, int64_t r, float label_logit,
             ms_head_record *c) {
  const ms_head_args *a = p->args;
  const ms_head_term *t = &a->term[term];
  if (a->phase != MS_HEAD_FINISH) ce_sums(p, w, term, label_logit, c);
  if (a->phase == MS_HEAD_SUMS) return;
  ce_values(a->label[r], c);
  if (a->gradient) /* the label's own part is head_finish_row's */
    head_spread(p, w, p->group[term], t->vocab, -1, c->student.max,
                t->weight[r] * t->gradient / c->student.sum);
}

/* head_loss.c - a chunk of logits becomes losses and their gradient, in place, row by row.
 *
 * A row is one thread's, and everything inside it has a fixed order; the totals are summed in order of
 * the rows. head_loss.h says how a row is done. */
#include "head_loss.h"

#include <omp.h>

#include "../../core/base/memory.h"

static void sparse_terms(const head_plan *p, head_scratch *w, int64_t r, float label_logit,
                         ms_head_record *record) {
  const int32_t *slot = w->slot;
  for (int i = 0; i < p->args->terms; i++) {
    const ms_head_term *t = &p->args->term[i];
    if (p->group[i] >= 0 && head_is_active(t, r)) {
      if (t->kind == MS_TERM_CE)
        head_ce(p, w, i, r, label_logit, &record[i]);
      else
        head_topk(p, w, i, slot, r, &record[i]);
    }
    slot += t->k;
  }
}

static void head_row(const head_plan *p, head_scratch *w, int64_t r) {
  const ms_head_args *a = p->args;
  float *z = f32(a->logits) + r * a->vocab;
  ms_head_record *record = a->record + r * a->terms;
  int first = 1;
  memset(record, 0, (size_t)a->terms * sizeof *record);
  cap_row(z, a->gradient ? w->slope : NULL, a->vocab, a->scale, a->soft_cap);
  for (int i = 0; i < a->sources; i++) {
    const ms_head_source *s = &a->source[i];
    if (s->row[r] >= 0)
      cap_row(s->logits + (s->row[r] - s->first) * s->stride, NULL, s->stride, s->scale,
              s->soft_cap);
  }
  for (int i = 0; i < a->terms; i++)
    if (a->term[i].source >= 0 && head_is_active(&a->term[i], r)) {
      head_full(p, w, i, z, r, first, &record[i]);
      first = 0;
    }
  float label_logit = a->label ? z[a->label[r]] : 0;
  head_sum_row(p, w, z, r);
  sparse_terms(p, w, r, label_logit, record);
  if (a->gradient) head_finish_row(p, w, z, r, first ? NULL : w->sum);
}

static void add_totals(const ms_head_args *args, int64_t r) {
  for (int32_t i = 0; i < args->terms; i++) {
    const ms_head_term *t = &args->term[i];
    const ms_head_record *c = &args->record[r * args->terms + i];
    double a = t->weight[r], *sum = args->total + i * MS_HEAD_TOTALS;
    double *each = args->each ? args->each + (r * args->terms + i) * MS_HEAD_EACH : NULL;
    if (each) each[MS_HEAD_EACH_VALUE] = each[MS_HEAD_EACH_AGREE] = 0;
    if (!(a > 0)) continue;
    if (each) {
      each[MS_HEAD_EACH_VALUE] = c->value * t->t_scale;
      each[MS_HEAD_EACH_AGREE] = c->agree;
    }
    sum[MS_HEAD_VALUE] += a * (c->value * t->t_scale);
    sum[MS_HEAD_WEIGHT] += a;
    sum[MS_HEAD_ROWS] += 1;
    sum[MS_HEAD_AGREE] += a * c->agree;
    sum[MS_HEAD_TEACHER_MASS] += a * c->teacher_mass;
    sum[MS_HEAD_STUDENT_MASS] += a * c->student_mass;
    sum[MS_HEAD_TEACHER_ENTROPY] += a * c->teacher_entropy;
    sum[MS_HEAD_STUDENT_ENTROPY] += a * c->student_entropy;
  }
}

/* The plan and every thread's scratch. The plan is made twice: it says how large the rest is. */
static ms_status make_room(head_plan *p, const ms_head_args *args, int threads, char **room,
                           size_t *each) {
  head_scratch w;
  void *m;
  size_t first = head_plan_make(p, args, NULL);
  MS_TRY(ms_scratch(first, "head: plan", &m));
  head_plan_make(p, args, m);
  *each = head_scratch_lay(&w, p, NULL);
  MS_TRY(ms_scratch(first + *each * (size_t)threads, "head: scratch", &m));
  head_plan_make(p, args, m);
  *room = (char *)m + first;
  return MS_OK;
}

ms_status MS_KERNEL(head_loss)(ms_stream *s, const ms_head_args *args) {
  head_plan p;
  char *room;
  size_t each;
  int threads = omp_get_max_threads();
  MS_TAKES_F32("head_loss", args->logits);
  if (threads > args->rows) threads = (int)args->rows;
  MS_TRY(make_room(&p, args, threads, &room, &each));
#pragma omp parallel num_threads(threads)
  {
    head_scratch w;
    head_scratch_lay(&w, &p, room + each * (size_t)omp_get_thread_num());
#pragma omp for schedule(dynamic, 4)
    for (int64_t r = 0; r < args->rows; r++) head_row(&p, &w, r);
  }
  for (int64_t r = 0; r < args->rows; r++) add_totals(args, r);
  return MS_OK;
}

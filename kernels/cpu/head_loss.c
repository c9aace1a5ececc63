/* head_loss.c - a chunk of logits becomes losses and their gradient, in place, row by row.
 *
 * A row is one thread's, and everything inside it has a fixed order; the totals are summed in order of
 * the rows. head_loss.h says how a row is done. */
#include "head_loss.h"

#include <omp.h>

#include "../../core/base/memory.h"

/* What is said of a row in this phase goes here. */
static ms_head_record *said(const ms_head_args *a, int64_t r) {
  int last = a->phase == MS_HEAD_WHOLE || a->phase == MS_HEAD_FINISH;
  return last ? a->record + r * a->terms : a->part + (a->own * a->rows + r) * a->terms;
}

/* CE and top-k terms, which have two phases, the first and the last; `label` is its column. */
static void sparse_terms(const head_plan *p, head_scratch *w, float *z, int64_t r) {
  const ms_head_args *a = p->args;
  int64_t from = 0, label = a->label ? head_place(a, a->label[r]) : -1;
  float label_logit = label < 0 ? -INFINITY : z[label];
  head_sum_row(p, w, z, r);
  for (int i = 0; i < a->terms; i++) {
    const ms_head_term *t = &a->term[i];
    if (p->group[i] >= 0 && head_is_active(t, r)) {
      if (t->kind == MS_TERM_CE)
        head_ce(p, w, i, r, label_logit, said(a, r) + i);
      else
        head_topk(p, w, i, from, r, said(a, r) + i);
    }
    from += t->k;
  }
  if (a->phase == MS_HEAD_SUMS)
    memcpy(a->support + r * p->support, w->entry, (size_t)p->support * sizeof *w->entry);
}

/* Terms with full targets that take part in this phase; how many. */
static int full_terms(const head_plan *p, head_scratch *w, float *z, int64_t r) {
  const ms_head_args *a = p->args;
  int selects = a->phase >= MS_HEAD_SELECT && a->phase <= MS_HEAD_GAPS, done = 0;
  for (int i = 0; i < a->terms; i++)
    if (a->term[i].source >= 0 && head_is_active(&a->term[i], r) &&
        (!selects || ms_head_selects(&a->term[i])))
      head_full(p, w, i, z, r, !done++, a->record + r * a->terms + i, said(a, r) + i);
  return done;
}

static void cap_teachers(const ms_head_args *a, int64_t r) {
  for (int i = 0; i < a->sources; i++) {
    const ms_head_source *s = &a->source[i];
    if (s->row[r] >= 0)
      cap_row(s->logits + (s->row[r] - s->first) * s->stride, NULL, s->vocab, s->scale,
              s->soft_cap);
  }
}

/* The row itself, or but for its last phase a copy: later ones begin with the row as it is. */
static float *take_row(const ms_head_args *a, head_scratch *w, int64_t r) {
  float *z = f32(a->logits) + r * a->vocab;
  int last = a->phase == MS_HEAD_WHOLE || a->phase == MS_HEAD_FINISH;
  if (!last) z = memcpy(w->copy, z, (size_t)a->vocab * sizeof *z);
  cap_row(z, last && a->gradient ? w->slope : NULL, a->vocab, a->scale, a->soft_cap);
  return z;
}

static void head_row(const head_plan *p, head_scratch *w, int64_t r) {
  const ms_head_args *a = p->args;
  float *z = take_row(a, w, r);
  int first = a->phase <= MS_HEAD_SUMS,
      last = a->phase == MS_HEAD_WHOLE || a->phase == MS_HEAD_FINISH;
  if (a->phase != MS_HEAD_FINISH) memset(said(a, r), 0, (size_t)a->terms * sizeof *a->record);
  if (first) cap_teachers(a, r);
  int fulls = full_terms(p, w, z, r);
  if (first || last) sparse_terms(p, w, z, r);
  if (last && a->gradient) head_finish_row(p, w, z, r, fulls ? w->sum : NULL);
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
  if (args->phase == MS_HEAD_SELECT)
    memset(args->bins, 0,
           (size_t)(head_bins(args, args->rows, 0) - args->bins) * sizeof *args->bins);
  MS_TRY(make_room(&p, args, threads, &room, &each));
#pragma omp parallel num_threads(threads)
  {
    head_scratch w;
    head_scratch_lay(&w, &p, room + each * (size_t)omp_get_thread_num());
#pragma omp for schedule(dynamic, 4)
    for (int64_t r = 0; r < args->rows; r++) head_row(&p, &w, r);
  }
  if (args->phase == MS_HEAD_WHOLE || args->phase == MS_HEAD_FINISH)
    for (int64_t r = 0; r < args->rows; r++) add_totals(args, r);
  return MS_OK;
}

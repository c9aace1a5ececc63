/* parts.c - the ranks of a head that is cut by its ids: what they agree on, and the rounds of a chunk.
 * kernels/head.h says what each phase is for. */
#include "../base/memory.h"
#include "head_call.h"
#include "objective.h"

ms_status ms_head_agree(const ms_head_weights *h, ms_status st) {
  return h->tp ? ms_group_agree(h->tp, st) : st;
}

ms_status ms_head_agree_size(const ms_head_weights *h, int64_t *size) {
  int64_t least = -*size;
  if (ms_head_parts(h) == 1) return MS_OK;
  MS_TRY(h->tp->ops->all_reduce(h->tp, NULL, &least, MS_I64, 1, MS_MAX, NULL));
  *size = -least;
  return MS_OK;
}

ms_status ms_head_gather(ms_device *dev, ms_group *tp, void *x, size_t bytes) {
  void *p;
  MS_TRY(ms_alloc_undefined((size_t)tp->size * sizeof(int64_t), "head: parts", &p));
  int64_t *count = p;
  for (int32_t r = 0; r < tp->size; r++) count[r] = (int64_t)bytes;
  ms_status st = tp->ops->all_gather(tp, dev->stream, x, MS_U8, count, NULL);
  ms_free(p);
  return st;
}

ms_status ms_head_product(ms_device *dev, ms_act y, ms_act x, const void *w, int dtype,
                          int64_t rows, int64_t width, int64_t vocab) {
  return vocab ? MS_OP(dev, linear, y, x, w, dtype, rows, width, vocab, 0) : MS_OK;
}

static int selects(const ms_term *t) {
  return ms_head_is_full(t) && ms_objective_get(t->objective)->gaps;
}

int64_t ms_head_bins(const ms_head_work *w) {
  int64_t n = 0;
  for (int32_t i = 0; i < w->call->terms; i++) n += selects(&w->call->term[i]) * MS_HEAD_BINS;
  return n;
}

int64_t ms_head_supports(const ms_head_work *w) {
  int64_t n = 0;
  for (int32_t i = 0; i < w->call->terms; i++) {
    const ms_term *t = &w->call->term[i];
    n += t->kind == MS_TERM_KD && !ms_head_is_full(t) ? t->target->options.k : 0;
  }
  return n;
}

/* One phase: on this rank, among the ranks, and into the records. */
static ms_status phase(const ms_head_work *w, ms_head_args *a, int which, int round) {
  ms_device *dev = w->call->dev;
  ms_group *tp = w->tp;
  int64_t rows = a->rows;
  a->phase = which;
  a->round = round;
  MS_TRY(MS_OP(dev, head_loss, a));
  if (which == MS_HEAD_SELECT)
    MS_TRY(tp->ops->all_reduce(tp, dev->stream, a->bins, MS_F64, rows * ms_head_bins(w), MS_SUM,
                               NULL));
  else
    MS_TRY(ms_head_gather(dev, tp, a->part, (size_t)(rows * a->terms) * sizeof *a->part));
  if (which == MS_HEAD_SUMS && ms_head_supports(w))
    MS_TRY(tp->ops->all_reduce(tp, dev->stream, a->support, MS_F32, rows * ms_head_supports(w),
                               MS_MAX, NULL));
  return MS_OP(dev, head_join, a);
}

ms_status ms_head_phases(const ms_head_work *w, ms_head_args *a) {
  MS_TRY(phase(w, a, MS_HEAD_SUMS, 0));
  if (ms_head_bins(w)) {
    for (int round = 0; round < MS_HEAD_SELECTS; round++)
      MS_TRY(phase(w, a, MS_HEAD_SELECT, round));
    MS_TRY(phase(w, a, MS_HEAD_TIES, 0));
    MS_TRY(phase(w, a, MS_HEAD_GAPS, 0));
  }
  if (w->fulls) MS_TRY(phase(w, a, MS_HEAD_VALUES, 0));
  a->phase = MS_HEAD_FINISH;
  return MS_OP(w->call->dev, head_loss, a);
}

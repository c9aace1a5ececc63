/* span.c - rows of the stream over the ranks that a model is cut over.
 *
 * Rank r of n has the tokens from tokens * r / n on, and of the rows that are wanted those whose token it
 * has: so they stay where they are. What each rank has follows from what all know; parts may be empty,
 * and all rows that are wanted on one rank. */
#include "../group/group.h"
#include "decoder.h"

/* Where the rows of a rank begin. */
static int64_t border(const ms_pass *pass, int wanted, int32_t rank, int32_t size) {
  int64_t token = pass->tokens * rank / size, low = 0, high = pass->rows;
  if (!wanted) return token;
  if (rank == size) return pass->rows;
  while (rank && low < high) {
    int64_t middle = (low + high) / 2;
    if (pass->row[middle] < token)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* Which of its rows a rank has in a part of them. */
static int64_t rows_of(const ms_pass *pass, const ms_span *s, int32_t rank, int64_t *from) {
  int32_t size = pass->model->share.group->size;
  int64_t n = border(pass, s->wanted, rank + 1, size) - border(pass, s->wanted, rank, size);
  int64_t each = s->parts > 1 ? (n + s->parts - 1) / s->parts : n;
  *from = s->part * each < n ? s->part * each : n;
  return n - *from < each ? n - *from : each;
}

ms_span ms_span_of(const ms_pass *pass, int wanted, int64_t part, int64_t parts) {
  const ms_group *g = pass->model->share.group;
  ms_span s = {.wanted = wanted, .part = part, .parts = parts};
  for (int32_t r = 0; r < g->size; r++) {
    int64_t from, rows = rows_of(pass, &s, r, &from);
    if (r == g->rank) {
      s.first = s.all;
      s.own = rows;
      s.at = from;
    }
    s.all += rows;
    s.done += from;
  }
  return s;
}

/* What each rank has of x, in elements. */
static const int64_t *counts(const ms_pass *pass, const ms_span *s, int64_t cols) {
  int64_t from, *count = pass->act->count;
  for (int32_t r = 0; r < pass->model->share.group->size; r++)
    count[r] = rows_of(pass, s, r, &from) * cols;
  return count;
}

ms_status ms_span_gather(const ms_pass *pass, const ms_span *s, ms_act x, int64_t cols) {
  const ms_model *m = pass->model;
  ms_group *g = m->share.group;
  if (!ms_is_cut(m)) return MS_OK;
  return g->ops->all_gather(g, m->dev->stream, x.at, x.dtype, counts(pass, s, cols), NULL);
}

ms_status ms_span_sum(const ms_pass *pass, const ms_span *s, ms_act x, int64_t cols) {
  const ms_model *m = pass->model;
  ms_group *g = m->share.group;
  if (!ms_is_cut(m)) return MS_OK;
  return g->ops->reduce_scatter(g, m->dev->stream, x.at, x.dtype, counts(pass, s, cols), MS_SUM,
                                NULL);
}

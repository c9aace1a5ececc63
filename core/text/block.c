/* block.c - many texts encoded at once, over threads.
 *
 * A thread takes a few texts at a time and keeps what it makes of them; at the end all is put together
 * in the order of the texts, so that the result does not depend on the threads. Of several texts that
 * cannot be encoded the first is the error, by the same rule: texts before a bad one are still
 * encoded, texts behind it are not. */
#include <limits.h>
#include <omp.h>
#include <stdatomic.h>
#include <stdio.h>

#include "../base/memory.h"
#include "tokenizer.h"

/* What one thread has made. */
typedef struct {
  ms_worker *worker;
  ms_buf ids, level;
  int64_t bad; /* the first text that it could not encode; -1: it could not begin */
  ms_status status;
  char message[1024];
} lane;

/* Where a text's tokens are. */
typedef struct {
  int64_t at, tokens;
  int32_t lane, crossing;
} place;

typedef struct {
  const ms_tokenizer *tok;
  const ms_token_texts *in;
  lane *lanes;
  int threads;
  place *place;
  _Atomic int64_t bad; /* the first text that nobody could encode */
} job;

/* ---- levels ---- */

static ms_status check_marks(const int64_t *mark, int64_t marks, int64_t bytes) {
  int64_t done = 0;
  for (int64_t i = 0; i < marks; i++) {
    const int64_t *m = mark + 3 * i;
    MS_REQUIRE(
        m[0] >= done && m[1] >= m[0] && m[1] <= bytes,
        "marks: triple %lld is of %lld..%lld, expected ascending numbers in %lld..%lld, from "
        "the end before to the end of the text",
        (long long)i + 1, (long long)m[0], (long long)m[1], (long long)done, (long long)bytes);
    MS_REQUIRE(m[2] >= 0 && m[2] <= UINT8_MAX, "marks: triple %lld has level %lld, not in 0..%d",
               (long long)i + 1, (long long)m[2], UINT8_MAX);
    done = m[1];
  }
  return MS_OK;
}

/* The highest level of the bytes of a token, and the lowest, from the first mark that may touch it. */
static uint8_t level_of(const int64_t *mark, int64_t marks, ms_range r, uint8_t *least) {
  int64_t at = r.start;
  uint8_t level = 0;
  *least = UINT8_MAX;
  for (; marks > 0 && mark[0] < r.end; mark += 3, marks--) {
    if (mark[0] == mark[1]) continue;
    if (mark[0] > at) *least = 0;
    if (level < mark[2]) level = (uint8_t)mark[2];
    if (*least > mark[2]) *least = (uint8_t)mark[2];
    at = mark[1];
  }
  if (at < r.end) *least = 0;
  return level;
}

static ms_status add_levels(const ms_buf *ranges, const int64_t *mark, int64_t marks, ms_buf *out,
                            int32_t *crossing) {
  const ms_range *r = (const void *)ranges->data;
  size_t n = ranges->size / sizeof *r;
  *crossing = 0;
  MS_TRY(ms_buf_reserve(out, n));
  for (size_t i = 0; i < n; i++) {
    uint8_t level = 0, least = 0;
    for (; marks && mark[1] <= r[i].start; mark += 3, marks--) continue;
    if (r[i].start < r[i].end) level = level_of(mark, marks, r[i], &least);
    *crossing += level != least;
    MS_TRY(ms_buf_add(out, &level, 1));
  }
  return MS_OK;
}

/* ---- a text ---- */

static ms_status encode(const job *j, int64_t i, lane *l, place *p) {
  const ms_token_texts *in = j->in;
  int64_t marks = in->mark_start[i + 1] - in->mark_start[i];
  ms_manner how = {.special = in->special[i],
                   .parse = 1,
                   .traced = marks > 0,
                   .plain = in->plain + 2 * in->plain_start[i],
                   .plains = in->plain_start[i + 1] - in->plain_start[i]};
  const int64_t *mark = in->mark + 3 * in->mark_start[i];
  MS_TRY(check_marks(mark, marks, in->bytes[i]));
  MS_TRY(ms_worker_encode(j->tok, l->worker, in->text[i], in->bytes[i], &how));
  p->at = (int64_t)(l->ids.size / sizeof(int32_t));
  p->tokens = (int64_t)(l->worker->ids.size / sizeof(int32_t));
  MS_TRY(ms_buf_add(&l->ids, l->worker->ids.data, l->worker->ids.size));
  if (marks) return add_levels(&l->worker->ranges, mark, marks, &l->level, &p->crossing);
  MS_TRY(ms_buf_reserve(&l->level, (size_t)p->tokens));
  if (p->tokens) memset(l->level.data + l->level.size, 0, (size_t)p->tokens);
  l->level.size += (size_t)p->tokens;
  return MS_OK;
}

static void fail(job *j, lane *l, int64_t i, ms_status status) {
  l->bad = i;
  l->status = status;
  snprintf(l->message, sizeof l->message, "%s", ms_last_error());
  int64_t first = j->bad;
  while (i < first && !atomic_compare_exchange_weak(&j->bad, &first, i)) continue;
}

/* The texts of one thread. Those that it takes ascend, so that its first error is its first bad text. */
static void work(job *j, lane *l, int number) {
  ms_status st = ms_worker_borrow(j->tok, &l->worker);
  if (st != MS_OK) fail(j, l, -1, st);
#pragma omp for schedule(dynamic, 4)
  for (int64_t i = 0; i < j->in->count; i++) {
    if (i > j->bad) continue;
    j->place[i].lane = number;
    st = encode(j, i, l, &j->place[i]);
    if (st != MS_OK) fail(j, l, i, st);
  }
  ms_worker_give_back(j->tok, l->worker);
}

/* ---- all ---- */

static ms_status report(const job *j) {
  for (int k = 0; k < j->threads; k++) {
    const lane *l = &j->lanes[k];
    if (l->status == MS_OK || l->bad != j->bad) continue;
    if (l->bad < 0) return MS_FAIL(l->status, "%s", l->message);
    return MS_FAIL(l->status, "block: text %lld of %lld: %s", (long long)l->bad + 1,
                   (long long)j->in->count, l->message);
  }
  return MS_OK;
}

static ms_status put_together(const job *j, ms_token_block *b) {
  int64_t tokens = 0;
  void *p;
  for (int64_t i = 0; i < b->count; i++) {
    b->start[i] = tokens;
    tokens += j->place[i].tokens;
    b->crossing[i] = j->place[i].crossing;
  }
  b->start[b->count] = tokens;
  MS_TRY(ms_alloc_undefined((size_t)tokens * sizeof *b->ids, "block: ids", &p));
  b->ids = p;
  MS_TRY(ms_alloc_undefined((size_t)tokens, "block: levels", &p));
  b->level = p;
  for (int64_t i = 0; i < b->count; i++) {
    const place *from = &j->place[i];
    if (!from->tokens) continue;
    const lane *l = &j->lanes[from->lane];
    memcpy(b->ids + b->start[i], (const int32_t *)(const void *)l->ids.data + from->at,
           (size_t)from->tokens * sizeof *b->ids);
    memcpy(b->level + b->start[i], l->level.data + from->at, (size_t)from->tokens);
  }
  return MS_OK;
}

/* A few short texts are done sooner than other threads are awake. */
static int threads_for(const ms_token_texts *in) {
  enum { SHORT = 1 << 14 };
  int64_t bytes = 0, most = omp_get_max_threads();
  for (int64_t i = 0; i < in->count && bytes < SHORT; i++) bytes += in->bytes[i];
  if (bytes < SHORT) return 1;
  return (int)(in->count < most ? in->count : most);
}

static ms_status run(job *j, ms_token_block *b) {
  void *p;
  j->threads = threads_for(j->in);
  MS_TRY(ms_alloc((size_t)j->threads * sizeof *j->lanes, "block: threads", &p));
  j->lanes = p;
  MS_TRY(ms_alloc((size_t)b->count * sizeof *j->place, "block: texts", &p));
  j->place = p;
#pragma omp parallel num_threads(j->threads)
  work(j, &j->lanes[omp_get_thread_num()], omp_get_thread_num());
  MS_TRY(report(j));
  return put_together(j, b);
}

static ms_status block_new(int64_t count, ms_token_block **out) {
  void *p;
  MS_TRY(ms_alloc(sizeof(ms_token_block), "block", &p));
  ms_token_block *b = p;
  b->count = count;
  ms_status st = ms_alloc((size_t)(count + 1) * sizeof *b->start, "block: starts", &p);
  if (st == MS_OK) {
    b->start = p;
    st = ms_alloc((size_t)count * sizeof *b->crossing, "block: crossings", &p);
  }
  if (st == MS_OK) {
    b->crossing = p;
    *out = b;
  } else {
    ms_token_block_free(b);
  }
  return st;
}

ms_status ms_tokenizer_block(const ms_tokenizer *tok, const ms_token_texts *in,
                             ms_token_block **out) {
  ms_token_block *b;
  *out = NULL;
  MS_REQUIRE(tok && in && in->count >= 0 && in->count < INT32_MAX,
             "block: a NULL argument, or %lld "
             "texts",
             in ? (long long)in->count : 0);
  MS_TRY(block_new(in->count, &b));
  job j = {.tok = tok, .in = in, .bad = INT64_MAX};
  ms_status st = run(&j, b);
  for (int k = 0; j.lanes && k < j.threads; k++) {
    ms_buf_free(&j.lanes[k].ids);
    ms_buf_free(&j.lanes[k].level);
  }
  ms_free(j.lanes);
  ms_free(j.place);
  if (st == MS_OK) {
    *out = b;
  } else {
    ms_token_block_free(b);
  }
  return st;
}

void ms_token_block_free(ms_token_block *b) {
  if (!b) return;
  ms_free(b->start);
  ms_free(b->ids);
  ms_free(b->level);
  ms_free(b->crossing);
  ms_free(b);
}

/* exchange.c - collective operations as direct exchanges of parts between ranks.
 *
 * A work is a list of phases. A phase begins messages; the next one begins when all of them are done.
 * Whoever waits for one work moves all works of the job on, in the order in which they began, so that
 * no rank waits for another whose phases stand still. */
#include "exchange.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "../base/memory.h"
#include "../base/trace.h"

/* Ranks of a job, by their place in the group. */
typedef struct exchange {
  ms_group base;
  ms_job *job;
  int32_t context;
  int64_t calls;
  int32_t member[];
} exchange;

struct ms_work {
  exchange *group;
  ms_call call;
  ms_status (*next)(ms_work *w, int phase); /* begins a phase, or sets `done` */
  int phase, done;
  ms_status status;
  char *x, *y;
  int64_t *from, *from_y; /* bytes before each part; size + 1 of them */
  size_t element;
  char *scratch;
  ms_call *said; /* of each rank, where calls are compared */
  char *requests;
  int32_t count, at; /* of the phase: how many, and how many of them are done */
  int32_t capacity;
  ms_work *after;
};

/* Tags: 10 bits of the group, 20 of the call; the last number is for single messages. */
enum { CALL_BITS = 20, SINGLE = (1 << CALL_BITS) - 1, MOST_GROUPS = 1 << 10 };

static ms_job job;
static int64_t largest = MS_MESSAGE_BYTES;

void ms_test_messages(int64_t bytes) { job.largest = largest = bytes; }

static exchange *of(ms_group *g) { return (exchange *)g; }

static int32_t tag_of(const ms_work *w) {
  int single = w->call.op == MS_CALL_SEND || w->call.op == MS_CALL_RECEIVE;
  return w->group->context << CALL_BITS | (single ? SINGLE : (int32_t)(w->call.number % SINGLE));
}

/* ---- messages ---- */

static ms_status message(ms_work *w, int32_t peer, char *x, int64_t bytes, int sends) {
  const ms_transport *t = w->group->job->transport;
  int32_t to = w->group->member[peer], tag = tag_of(w);
  int64_t most = w->group->job->largest;
  if (sends && !w->said) w->group->base.sent[w->call.op][w->call.dtype] += bytes;
  for (int64_t at = 0; at < bytes; at += most) {
    int64_t n = bytes - at < most ? bytes - at : most;
    if (w->count == w->capacity) {
      size_t old = (size_t)w->capacity * t->request_bytes;
      int32_t capacity = w->capacity ? 2 * w->capacity : 8;
      MS_TRY(ms_grow((void **)&w->requests, old, (size_t)capacity * t->request_bytes, "messages"));
      w->capacity = capacity;
    }
    void *request = w->requests + (size_t)w->count * t->request_bytes;
    const char *why =
        sends ? t->send(to, tag, x + at, n, request) : t->receive(to, tag, x + at, n, request);
    if (why) return MS_FAIL(MS_EGROUP, "group: %s", why);
    w->count++;
  }
  return MS_OK;
}

static ms_status send_to(ms_work *w, int32_t peer, const void *x, int64_t bytes) {
  return message(w, peer, (char *)x, bytes, 1);
}

static ms_status receive_from(ms_work *w, int32_t peer, void *x, int64_t bytes) {
  return message(w, peer, x, bytes, 0);
}

static int64_t part_bytes(const int64_t *from, int32_t r) { return from[r + 1] - from[r]; }

/* ---- sums, in the order of ranks ---- */

static float bf16_value(uint16_t b) {
  uint32_t u = (uint32_t)b << 16;
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}

static uint16_t bf16_of(float f) { /* to nearest even; NaN stays one */
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  if (f != f) return (uint16_t)(u >> 16 | 0x40);
  return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

enum { BLOCK = 512 };

/* out[i] = the parts' i-th elements, reduced; `out` may be one of the parts. */
#define REDUCE(name, type, work_type, LOAD, STORE, ADD)                                       \
  static void name(void *out, char *const *part, int32_t size, int64_t n, ms_reduction how) { \
    work_type sum[BLOCK];                                                                     \
    for (int64_t at = 0; at < n; at += BLOCK) {                                               \
      int64_t m = n - at < BLOCK ? n - at : BLOCK;                                            \
      for (int32_t r = 0; r < size; r++) {                                                    \
        const type *x = (const type *)part[r] + at;                                           \
        if (r == 0)                                                                           \
          for (int64_t i = 0; i < m; i++) sum[i] = LOAD(x[i]);                                \
        else if (how == MS_SUM)                                                               \
          for (int64_t i = 0; i < m; i++) sum[i] = ADD(sum[i], LOAD(x[i]));                   \
        else                                                                                  \
          for (int64_t i = 0; i < m; i++) sum[i] = LARGER(sum[i], LOAD(x[i]));                \
      }                                                                                       \
      for (int64_t i = 0; i < m; i++) ((type *)out)[at + i] = STORE(sum[i]);                  \
    }                                                                                         \
  }
/* The larger one; a NaN stays, as in sums. */
#define LARGER(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define SAME(x) (x)
#define PLUS(a, b) ((a) + (b))
/* Sums of integers wrap around. */
#define PLUS_I32(a, b) ((int32_t)((uint32_t)(a) + (uint32_t)(b)))
#define PLUS_I64(a, b) ((int64_t)((uint64_t)(a) + (uint64_t)(b)))
#define PLUS_U8(a, b) ((uint8_t)((a) + (b)))
REDUCE(reduce_f32, float, float, SAME, SAME, PLUS)
REDUCE(reduce_bf16, uint16_t, float, bf16_value, bf16_of, PLUS)
REDUCE(reduce_f64, double, double, SAME, SAME, PLUS)
REDUCE(reduce_i32, int32_t, int32_t, SAME, SAME, PLUS_I32)
REDUCE(reduce_i64, int64_t, int64_t, SAME, SAME, PLUS_I64)
REDUCE(reduce_u8, uint8_t, uint8_t, SAME, SAME, PLUS_U8)

static void reduce(const ms_work *w, void *out, char *const *part, int64_t n) {
  static void (*const by_dtype[])(void *, char *const *, int32_t, int64_t, ms_reduction) = {
      [MS_F32] = reduce_f32, [MS_BF16] = reduce_bf16, [MS_I32] = reduce_i32,
      [MS_I64] = reduce_i64, [MS_U8] = reduce_u8,     [MS_F64] = reduce_f64};
  by_dtype[w->call.dtype](out, part, w->group->base.size, n, (ms_reduction)w->call.how);
}

/* ---- phases ---- */

/* Every rank has every other one's version of its own part: begins to get them. */
static ms_status spread_parts(ms_work *w) {
  int32_t me = w->group->base.rank, size = w->group->base.size;
  int64_t own = part_bytes(w->from, me);
  void *p = NULL;
  MS_TRY(ms_alloc_undefined((size_t)(own * size), "parts of a sum", &p));
  w->scratch = p;
  for (int32_t k = 1; k < size;
       k++) { /* beginning with the next one, so that not all take the first */
    int32_t from = (me + size - k) % size;
    MS_TRY(receive_from(w, from, w->scratch + from * own, own));
  }
  for (int32_t k = 1; k < size; k++) {
    int32_t to = (me + k) % size;
    MS_TRY(send_to(w, to, w->x + w->from[to], part_bytes(w->from, to)));
  }
  return MS_OK;
}

enum { MOST_RANKS = 4096 };

static void add_parts(ms_work *w) {
  int32_t me = w->group->base.rank, size = w->group->base.size;
  int64_t own = part_bytes(w->from, me);
  char *part[MOST_RANKS];
  for (int32_t r = 0; r < size; r++) part[r] = r == me ? w->x + w->from[me] : w->scratch + r * own;
  reduce(w, w->x + w->from[me], part, own / (int64_t)w->element);
  ms_free(w->scratch);
  w->scratch = NULL;
}

/* Begins to give this rank's part to all, and to get theirs. */
static ms_status gather_parts(ms_work *w) {
  int32_t me = w->group->base.rank, size = w->group->base.size;
  for (int32_t k = 1; k < size; k++) {
    int32_t from = (me + size - k) % size;
    MS_TRY(receive_from(w, from, w->x + w->from[from], part_bytes(w->from, from)));
  }
  for (int32_t k = 1; k < size; k++)
    MS_TRY(send_to(w, (me + k) % size, w->x + w->from[me], part_bytes(w->from, me)));
  return MS_OK;
}

static ms_status next_reduce_scatter(ms_work *w, int phase) {
  if (phase == 0) return spread_parts(w);
  add_parts(w);
  w->done = 1;
  return MS_OK;
}

static ms_status next_all_reduce(ms_work *w, int phase) {
  if (phase == 0) return spread_parts(w);
  if (phase == 1) {
    add_parts(w);
    return gather_parts(w);
  }
  w->done = 1;
  return MS_OK;
}

static ms_status next_all_gather(ms_work *w, int phase) {
  if (phase == 0) return gather_parts(w);
  w->done = 1;
  return MS_OK;
}

/* The root deals out the parts, and then everybody gives its own to all: no rank sends it all. */
static ms_status next_broadcast(ms_work *w, int phase) {
  int32_t me = w->group->base.rank, size = w->group->base.size, root = w->call.peer;
  if (phase == 0 && me != root)
    return receive_from(w, root, w->x + w->from[me], part_bytes(w->from, me));
  if (phase == 0) {
    for (int32_t k = 1; k < size; k++) {
      int32_t to = (me + k) % size;
      MS_TRY(send_to(w, to, w->x + w->from[to], part_bytes(w->from, to)));
    }
    return MS_OK;
  }
  if (phase == 1) return gather_parts(w);
  w->done = 1;
  return MS_OK;
}

static ms_status next_all_to_all(ms_work *w, int phase) {
  int32_t me = w->group->base.rank, size = w->group->base.size;
  if (phase > 0) {
    w->done = 1;
    return MS_OK;
  }
  for (int32_t k = 1; k < size; k++) {
    int32_t from = (me + size - k) % size;
    MS_TRY(receive_from(w, from, w->y + w->from_y[from], part_bytes(w->from_y, from)));
  }
  for (int32_t k = 1; k < size; k++) {
    int32_t to = (me + k) % size;
    MS_TRY(send_to(w, to, w->x + w->from[to], part_bytes(w->from, to)));
  }
  if (part_bytes(w->from, me))
    memcpy(w->y + w->from_y[me], w->x + w->from[me], (size_t)part_bytes(w->from, me));
  return MS_OK;
}

static ms_status next_single(ms_work *w, int phase) {
  int64_t bytes = w->call.count * (int64_t)w->element;
  if (phase > 0) {
    w->done = 1;
    return MS_OK;
  }
  return message(w, w->call.peer, w->x, bytes, w->call.op == MS_CALL_SEND);
}

/* In phase k this rank hears of 2^k more: when it has heard of all, all are here. */
static ms_status next_barrier(ms_work *w, int phase) {
  static char token[2];
  int32_t me = w->group->base.rank, size = w->group->base.size;
  int64_t step = (int64_t)1 << phase;
  if (step >= size) {
    w->done = 1;
    return MS_OK;
  }
  MS_TRY(receive_from(w, (int32_t)((me + size - step) % size), token + 1, 1));
  return send_to(w, (int32_t)((me + step) % size), token, 1);
}

/* ---- what ranks say of a call, compared before it begins ---- */

static ms_status say_call(ms_work *w) {
  int32_t me = w->group->base.rank, size = w->group->base.size;
  void *p = NULL;
  MS_TRY(ms_alloc((size_t)size * sizeof *w->said, "calls of ranks", &p));
  w->said = p;
  w->said[me] = w->call;
  for (int32_t k = 1; k < size; k++) {
    int32_t from = (me + size - k) % size;
    MS_TRY(receive_from(w, from, &w->said[from], sizeof *w->said));
  }
  for (int32_t k = 1; k < size; k++)
    MS_TRY(send_to(w, (me + k) % size, &w->said[me], sizeof *w->said));
  return MS_OK;
}

static int same_call(const ms_call *a, const ms_call *b) {
  return a->op == b->op && a->dtype == b->dtype && a->how == b->how && a->count == b->count &&
         a->parts == b->parts && a->peer == b->peer;
}

static ms_status compare_calls(ms_work *w) {
  char mine[MS_CALL_TEXT], other[MS_CALL_TEXT];
  int32_t me = w->group->base.rank, size = w->group->base.size;
  for (int32_t r = 0; r < size; r++)
    if (!same_call(&w->said[r], &w->call))
      return MS_FAIL(
          MS_EGROUP,
          "group: rank %d calls %s, but rank %d calls %s: every rank makes the same calls "
          "in the same order",
          w->group->member[me], ms_call_text(&w->call, mine), w->group->member[r],
          ms_call_text(&w->said[r], other));
  ms_free(w->said);
  w->said = NULL;
  return MS_OK;
}

/* ---- works ---- */

/* Moves a work on as far as it goes now. */
static ms_status advance(ms_work *w) {
  const ms_transport *t = w->group->job->transport;
  while (!w->done) {
    for (; w->at < w->count; w->at++) {
      int done = 0;
      const char *why = t->test(w->requests + (size_t)w->at * t->request_bytes, &done);
      if (why) {
        char text[MS_CALL_TEXT];
        return MS_FAIL(MS_EGROUP, "group: %s: %s", ms_call_text(&w->call, text), why);
      }
      if (!done) return MS_OK;
      ms_watch_progress();
    }
    w->count = w->at = 0;
    if (w->said) MS_TRY(compare_calls(w));
    MS_TRY(w->next(w, w->phase++));
  }
  return MS_OK;
}

/* The first call that fails ends the job's work: whoever it was with may never answer another one. */
static ms_status failed(ms_job *j, ms_status st) {
  if (st == MS_OK || j->broken) return st;
  j->broken = 1;
  snprintf(j->why, sizeof j->why, "%s", ms_last_error());
  return st;
}

static ms_status of_no_use(const ms_job *j) {
  return MS_FAIL(MS_EGROUP, "group: of no use any more, since a call has failed: %s", j->why);
}

static ms_status advance_all(ms_job *j) {
  for (ms_work *w = j->works; w && !j->broken; w = w->after)
    if (!w->done) w->status = failed(j, advance(w));
  return j->broken ? MS_EGROUP : MS_OK;
}

/* Where another call than w has failed w never ends, and says why. */
static ms_status status_of(const ms_work *w) {
  if (w->done || w->status != MS_OK || !w->group->job->broken) return w->status;
  return of_no_use(w->group->job);
}

static void free_work(ms_work *w) {
  ms_job *j = w->group->job;
  for (ms_work **at = &j->works; *at; at = &(*at)->after)
    if (*at == w) {
      *at = w->after;
      if (j->last == &w->after) j->last = at;
      break;
    }
  ms_free(w->scratch);
  ms_free(w->said);
  ms_free(w->requests);
  ms_free(w);
}

/* How a rank waits: spinning first, then giving the core to others, then asleep for moments. */
void ms_exchange_pause(int64_t round) {
  if (round < 200) return;
  if (round < 2000) {
    sched_yield();
    return;
  }
  struct timespec t = {0, 50000};
  nanosleep(&t, NULL);
}

ms_status ms_work_wait(ms_work *w) {
  if (!w) return MS_OK;
  ms_job *j = w->group->job;
  double since = 0, looked = 0, began = w->done ? 0 : ms_trace_begin();
  for (int64_t round = 0; !w->done && !j->broken; round++) {
    if (advance_all(j) != MS_OK || w->done) break;
    ms_exchange_pause(round);
    if (round % 256 != 255) continue;
    double now = ms_clock();
    if (since == 0) {
      since = looked = now;
      ms_watch_waits(&w->call, 1);
    }
    if (now - looked < 1) continue;
    looked = now;
    w->status = failed(j, ms_watch_look(since, j->timeout));
  }
  if (since > 0) ms_watch_waits(&w->call, 0);
  ms_trace_end(began, ms_trace_wait_cause(), ms_group_call(w->call.op));
  if (!w->done) return status_of(w); /* its memory is still the transport's, and stays */
  free_work(w);
  return MS_OK;
}

ms_status ms_exchange_advance(void) { return advance_all(&job) == MS_OK ? MS_OK : of_no_use(&job); }

double ms_exchange_timeout(void) { return job.timeout > 0 ? job.timeout : MS_EXCHANGE_TIMEOUT; }

ms_status ms_work_test(ms_work *w, int *done) {
  *done = 1;
  if (!w) return MS_OK;
  advance_all(w->group->job);
  *done = w->done;
  return status_of(w);
}

void ms_group_progress(void) { advance_all(&job); }

/* A new work; `parts`, and `parts_y`, are its counts, or NULL. */
static ms_status new_work(ms_group *g, int op, void *x, int dtype, const int64_t *parts, int64_t n,
                          ms_work **out) {
  exchange *e = of(g);
  int32_t size = g->size;
  void *p = NULL;
  size_t offsets = 2 * ((size_t)size + 1) * sizeof(int64_t);
  MS_TRY(ms_group_check_dtype(dtype));
  MS_TRY(ms_alloc(sizeof(ms_work) + offsets, "a call of a group", &p));
  ms_work *w = p;
  w->group = e;
  w->x = x;
  w->element = ms_element_size(dtype);
  w->from = (int64_t *)(w + 1);
  w->from_y = w->from + size + 1;
  w->call = (ms_call){.op = op, .dtype = dtype, .count = n, .peer = -1, .group = e->context};
  uint64_t hash = 14695981039346656037u;
  for (int32_t r = 0; r < size; r++) {
    /* without parts: equal ones, as far as it goes, of whole lines of memory */
    int64_t each = ((n + size - 1) / size + 63) / 64 * 64;
    int64_t left = n - (int64_t)r * each;
    int64_t count = parts ? parts[r] : left < 0 ? 0 : left < each ? left : each;
    if (count < 0 || w->from[r] > INT64_MAX / 16 - count) {
      ms_free(w);
      return MS_FAIL(MS_EINVAL, "group: part %d has %lld elements", r, (long long)count);
    }
    w->from[r + 1] = w->from[r] + count * (int64_t)w->element;
    hash = (hash ^ (uint64_t)count) * 1099511628211u;
  }
  if (parts) {
    w->call.count = w->from[size] / (int64_t)w->element;
    w->call.parts = hash;
  }
  *out = w;
  return MS_OK;
}

/* Begins a work; without `out` it is waited for. */
static ms_status begin(ms_work *w, ms_status (*next)(ms_work *, int), ms_work **out) {
  exchange *e = w->group;
  ms_job *j = e->job;
  int single = w->call.op == MS_CALL_SEND || w->call.op == MS_CALL_RECEIVE;
  if (j->broken) {
    ms_free(w);
    return of_no_use(j);
  }
  w->next = next;
  w->call.number = single ? 0 : ++e->calls;
  ms_watch_call(&w->call);
  *j->last = w;
  j->last = &w->after;
  if (j->checks && !single) w->status = failed(j, say_call(w));
  if (w->status == MS_OK) w->status = failed(j, advance(w));
  if (!out) return ms_work_wait(w);
  *out = w;
  return w->status;
}

/* ---- the table ---- */

static ms_status all_reduce(ms_group *g, ms_stream *s, void *x, int dtype, int64_t n,
                            ms_reduction how, ms_work **work) {
  ms_work *w = NULL;
  MS_TRY(new_work(g, MS_CALL_ALL_REDUCE, x, dtype, NULL, n, &w));
  w->call.how = how;
  return begin(w, next_all_reduce, work);
}

static ms_status reduce_scatter(ms_group *g, ms_stream *s, void *x, int dtype, const int64_t *count,
                                ms_reduction how, ms_work **work) {
  ms_work *w = NULL;
  MS_TRY(new_work(g, MS_CALL_REDUCE_SCATTER, x, dtype, count, 0, &w));
  w->call.how = how;
  return begin(w, next_reduce_scatter, work);
}

static ms_status all_gather(ms_group *g, ms_stream *s, void *x, int dtype, const int64_t *count,
                            ms_work **work) {
  ms_work *w = NULL;
  MS_TRY(new_work(g, MS_CALL_ALL_GATHER, x, dtype, count, 0, &w));
  return begin(w, next_all_gather, work);
}

static ms_status check_peer(ms_group *g, const char *what, int32_t peer) {
  MS_REQUIRE(peer >= 0 && peer < g->size, "%s: rank %d of %d", what, peer, g->size);
  return MS_OK;
}

static ms_status broadcast(ms_group *g, ms_stream *s, void *x, int dtype, int64_t n, int32_t root,
                           ms_work **work) {
  ms_work *w = NULL;
  MS_TRY(check_peer(g, "broadcast", root));
  MS_TRY(new_work(g, MS_CALL_BROADCAST, x, dtype, NULL, n, &w));
  w->call.peer = root;
  return begin(w, next_broadcast, work);
}

static ms_status all_to_all(ms_group *g, ms_stream *s, const void *x, const int64_t *count, void *y,
                            const int64_t *count_y, int dtype, ms_work **work) {
  ms_work *w = NULL;
  MS_REQUIRE(count[g->rank] == count_y[g->rank], "all_to_all: %lld elements for a part of %lld",
             (long long)count[g->rank], (long long)count_y[g->rank]);
  MS_TRY(new_work(g, MS_CALL_ALL_TO_ALL, (void *)x, dtype, count, 0, &w));
  w->y = y;
  for (int32_t r = 0; r < g->size; r++)
    w->from_y[r + 1] = w->from_y[r] + count_y[r] * (int64_t)w->element;
  w->call.count = 0; /* each rank has its own counts */
  w->call.parts = 0;
  return begin(w, next_all_to_all, work);
}

static ms_status single(ms_group *g, int op, void *x, int dtype, int64_t n, int32_t peer,
                        ms_work **work) {
  ms_work *w = NULL;
  MS_TRY(check_peer(g, op == MS_CALL_SEND ? "send" : "receive", peer));
  MS_REQUIRE(peer != g->rank, "group: rank %d sends itself nothing", peer);
  MS_TRY(new_work(g, op, x, dtype, NULL, n, &w));
  w->call.peer = peer;
  return begin(w, next_single, work);
}

static ms_status send(ms_group *g, ms_stream *s, const void *x, int dtype, int64_t n, int32_t to,
                      ms_work **work) {
  return single(g, MS_CALL_SEND, (void *)x, dtype, n, to, work);
}

static ms_status receive(ms_group *g, ms_stream *s, void *x, int dtype, int64_t n, int32_t from,
                         ms_work **work) {
  return single(g, MS_CALL_RECEIVE, x, dtype, n, from, work);
}

static ms_status barrier(ms_group *g) {
  ms_work *w = NULL;
  MS_TRY(new_work(g, MS_CALL_BARRIER, NULL, MS_U8, NULL, 0, &w));
  return begin(w, next_barrier, NULL);
}

static ms_status new_group(ms_job *j, int32_t size, ms_group **out);

/* Members come in order of key, then of rank. */
static void find_members(exchange *e, const int32_t *said, exchange *made) {
  const int32_t size = e->base.size, *own = said + 3 * e->base.rank;
  int32_t n = 0;
  for (int32_t r = 0; r < size; r++) {
    if (said[3 * r] != own[0]) continue;
    int32_t at = n++;
    for (; at > 0 && said[3 * made->member[at - 1] + 1] > said[3 * r + 1]; at--)
      made->member[at] = made->member[at - 1];
    made->member[at] = r;
  }
  for (int32_t i = 0; i < n; i++) {
    if (made->member[i] == e->base.rank) made->base.rank = i;
    made->member[i] = e->member[made->member[i]];
  }
}

/* The new group's context is one that none of the ranks knows yet. Groups of other colours have the same
 * one: they have no rank in common. */
static ms_status split(ms_group *g, int32_t colour, int32_t key, ms_group **out) {
  exchange *e = of(g);
  int32_t members = 0, context = 0;
  void *p = NULL;
  ms_status st = MS_OK;
  *out = NULL;
  MS_TRY(ms_alloc((size_t)g->size * (3 * sizeof(int32_t) + sizeof(int64_t)), "split", &p));
  int64_t *count = p;
  int32_t *said = (int32_t *)(count + g->size);
  for (int32_t r = 0; r < g->size; r++) count[r] = 3;
  said[3 * g->rank] = colour;
  said[3 * g->rank + 1] = key;
  said[3 * g->rank + 2] = e->job->contexts;
  MS_TRY_OR(done, all_gather(g, NULL, said, MS_I32, count, NULL));
  for (int32_t r = 0; r < g->size; r++) {
    members += said[3 * r] == colour;
    if (said[3 * r + 2] > context) context = said[3 * r + 2];
  }
  e->job->contexts = context + 1;
  if (context >= MOST_GROUPS) {
    st = MS_FAIL(MS_EGROUP, "group: more than %d groups in a job", MOST_GROUPS);
    goto done;
  }
  if (colour < 0) goto done;
  MS_TRY_OR(done, new_group(e->job, members, out));
  of(*out)->context = context;
  find_members(e, said, of(*out));
done:
  ms_free(p);
  return st;
}

static const ms_group_ops ops = {"exchange", all_reduce, reduce_scatter, all_gather, broadcast,
                                 all_to_all, send,       receive,        barrier,    split};

int32_t ms_exchange_rank(const ms_group *g, int32_t rank) {
  return g->ops == &ops ? ((const exchange *)g)->member[rank] : rank;
}

static ms_status new_group(ms_job *j, int32_t size, ms_group **out) {
  void *p = NULL;
  MS_TRY(ms_alloc(sizeof(exchange) + (size_t)size * sizeof(int32_t), "group", &p));
  exchange *e = p;
  e->base = (ms_group){.ops = &ops, .size = size};
  e->job = j;
  *out = &e->base;
  return MS_OK;
}

ms_status ms_exchange_open(const ms_transport *t, int checks, double timeout, ms_group **world) {
  MS_REQUIRE(t->size <= MOST_RANKS, "group: %d ranks, more than %d", t->size, MOST_RANKS);
  if (t->largest_tag < MOST_GROUPS * (1 << CALL_BITS) - 1)
    return MS_FAIL(MS_EGROUP, "group: %s has tags up to %d only", t->library, t->largest_tag);
  job = (ms_job){
      .transport = t, .contexts = 1, .checks = checks, .timeout = timeout, .largest = largest};
  job.last = &job.works;
  MS_TRY(new_group(&job, t->size, world));
  for (int32_t r = 0; r < t->size; r++) of(*world)->member[r] = r;
  (*world)->rank = t->rank;
  return MS_OK;
}

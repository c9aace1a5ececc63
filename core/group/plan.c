/* plan.c - a transfer's plan: which rank sends which samples to which, and in which order.
 *
 * What a model of the sender's side has, each of its ranks has; what a model of the receiver's side
 * needs, each of its ranks needs. So a sample enters the receiver's ranks once, from one rank to one
 * rank, and the one that has it gives it to the others. Where the two models have ranks in common
 * nothing has to enter.
 *
 * Each of a receiver's ranks takes about as many rows: its samples, in the order of the models that have
 * them, are cut into as many pieces as there are ranks, so that there are few messages. A piece is sent by
 * the rank of its model that would be done with it first.
 *
 * Ranks post their messages in one order that all know, by stage, phase and sender. The first message that
 * is not done yet has all that comes before it done on both of its sides, so it can go on: no order of
 * events makes ranks wait in a circle. */
#include "plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../base/memory.h"
#include "group.h"

/* ---- layouts ---- */

static ms_status new_array(int64_t n, int32_t **out) {
  return ms_alloc(sizeof **out * (size_t)n, "plan", (void **)out);
}

static ms_status copy_side(ms_side *side, const ms_plan_side *given, int32_t ranks,
                           const char *what) {
  MS_REQUIRE(given && given->rank && given->dp > 0 && given->tp > 0,
             "plan: the %s has no ranks: dp %d x tp %d", what, given ? given->dp : 0,
             given ? given->tp : 0);
  MS_REQUIRE((int64_t)given->dp * given->tp <= ranks, "plan: the %s is dp %d x tp %d of %d ranks",
             what, given->dp, given->tp, ranks);
  int32_t n = given->dp * given->tp;
  side->dp = given->dp, side->tp = given->tp;
  MS_TRY(new_array(n, &side->rank));
  MS_TRY(new_array(ranks, &side->place));
  for (int32_t r = 0; r < ranks; r++) side->place[r] = -1;
  for (int32_t i = 0; i < n; i++) {
    int32_t rank = given->rank[i];
    MS_REQUIRE(rank >= 0 && rank < ranks, "plan: rank %d of the %s is not in 0..%d", rank, what,
               ranks - 1);
    MS_REQUIRE(side->place[rank] < 0, "plan: rank %d is twice in the %s", rank, what);
    side->rank[i] = rank, side->place[rank] = i;
  }
  return MS_OK;
}

static ms_status set_options(ms_plan *p, const ms_plan_options *o) {
  MS_REQUIRE(o->ranks > 0, "plan: of %d ranks", o->ranks);
  MS_REQUIRE(o->within > 0 && o->between > 0 && o->latency >= 0 && isfinite(o->latency),
             "plan: %g bytes a second on a machine, %g between them, a latency of %g s", o->within,
             o->between, o->latency);
  p->ranks = o->ranks, p->within = o->within, p->between = o->between, p->latency = o->latency;
  MS_TRY(new_array(p->ranks, &p->machine));
  if (o->machine) memcpy(p->machine, o->machine, sizeof *p->machine * (size_t)p->ranks);
  return new_array(p->ranks + 1, &p->of_start);
}

ms_status ms_plan_new(const ms_plan_side *from, const ms_plan_side *to,
                      const ms_plan_options *options, ms_plan **out) {
  ms_status st;
  void *memory = NULL;
  MS_REQUIRE(options && out, "plan: no options, or no place for it");
  *out = NULL;
  MS_TRY(ms_alloc(sizeof(ms_plan), "plan", &memory));
  ms_plan *p = memory;
  MS_TRY_OR(fail, set_options(p, options));
  MS_TRY_OR(fail, copy_side(&p->from, from, p->ranks, "sender"));
  MS_TRY_OR(fail, copy_side(&p->to, to, p->ranks, "receiver"));
  *out = p;
  return MS_OK;

fail:
  ms_plan_free(p);
  return st;
}

static void empty(ms_plan *p) {
  ms_free(p->message);
  ms_free(p->sample);
  ms_free(p->of_rank);
  p->message = NULL, p->sample = p->of_rank = NULL;
  p->messages = p->phases[0] = p->phases[1] = 0;
  if (p->of_start) memset(p->of_start, 0, sizeof *p->of_start * ((size_t)p->ranks + 1));
}

void ms_plan_free(ms_plan *p) {
  if (!p) return;
  empty(p);
  ms_free(p->from.rank);
  ms_free(p->from.place);
  ms_free(p->to.rank);
  ms_free(p->to.place);
  ms_free(p->machine);
  ms_free(p->of_start);
  ms_free(p);
}

/* ---- a step ---- */

/* What filling a plan works with. */
typedef struct filling {
  const int32_t *rows, *from, *to; /* of samples, as given */
  int32_t wanted;                  /* samples that have rows and are needed */
  int32_t *list;                   /* [wanted] their numbers */
  int32_t *by_number,
      *by_model;        /* [wanted] by receiving model, then by number, or by sending model */
  int32_t *start;       /* [dp + 1] where each receiving model begins in both */
  int32_t *entry;       /* [samples] which rank of the model, from 0, gives it on */
  int32_t *entry_start; /* [tp + 1] of one model, sorted by entry: where each begins */
  int64_t *given;       /* [ranks] rows that a rank gives on which it has itself */
  double *busy;         /* [ranks] how long it sends */
  int64_t used;         /* samples in messages */
} filling;

static void filling_free(filling *f) {
  ms_free(f->list);
  ms_free(f->by_number);
  ms_free(f->by_model);
  ms_free(f->start);
  ms_free(f->entry);
  ms_free(f->entry_start);
  ms_free(f->given);
  ms_free(f->busy);
}

static ms_status filling_new(const ms_plan *p, int32_t samples, filling *f) {
  int32_t most = p->from.dp > p->to.dp ? p->from.dp : p->to.dp;
  MS_TRY(new_array(samples, &f->list));
  MS_TRY(new_array(samples, &f->by_number));
  MS_TRY(new_array(samples, &f->by_model));
  MS_TRY(new_array(samples, &f->entry));
  MS_TRY(new_array((int64_t)most + 1, &f->start));
  MS_TRY(new_array((int64_t)p->to.tp + 1, &f->entry_start));
  MS_TRY(ms_alloc(sizeof *f->given * (size_t)p->ranks, "plan", (void **)&f->given));
  return ms_alloc(sizeof *f->busy * (size_t)p->ranks, "plan", (void **)&f->busy);
}

static ms_status check_samples(const ms_plan *p, int32_t samples, const filling *f) {
  MS_REQUIRE(samples >= 0 && (!samples || (f->rows && f->from && f->to)), "plan: %d samples",
             samples);
  for (int32_t i = 0; i < samples; i++) {
    MS_REQUIRE(f->rows[i] >= 0, "plan: sample %d has %d rows", i, f->rows[i]);
    MS_REQUIRE(f->from[i] >= 0 && f->from[i] < p->from.dp,
               "plan: sample %d is with model %d of the sender's %d", i, f->from[i], p->from.dp);
    MS_REQUIRE(f->to[i] >= -1 && f->to[i] < p->to.dp,
               "plan: sample %d is for model %d of the receiver's %d", i, f->to[i], p->to.dp);
  }
  return MS_OK;
}

/* y: x sorted by key[x[i]] in 0..keys-1, equal ones in their order. start[keys + 1]: where each begins. */
static void sort_by(const int32_t *key, int32_t keys, const int32_t *x, int32_t n, int32_t *y,
                    int32_t *start) {
  memset(start, 0, sizeof *start * ((size_t)keys + 1));
  for (int32_t i = 0; i < n; i++) start[key[x[i]] + 1]++;
  for (int32_t k = 0; k < keys; k++) start[k + 1] += start[k];
  for (int32_t i = 0; i < n; i++) y[start[key[x[i]]]++] = x[i];
  for (int32_t k = keys; k > 0; k--) start[k] = start[k - 1];
  start[0] = 0;
}

/* Both orders of the samples that are wanted. */
static void sort_samples(const ms_plan *p, int32_t samples, filling *f) {
  for (int32_t i = 0; i < samples; i++)
    if (f->rows[i] > 0 && f->to[i] >= 0) f->list[f->wanted++] = i;
  sort_by(f->from, p->from.dp, f->list, f->wanted, f->by_number, f->start);
  sort_by(f->to, p->to.dp, f->by_number, f->wanted, f->by_model, f->start);
  sort_by(f->to, p->to.dp, f->list, f->wanted, f->by_number, f->start);
}

/* ---- who gives a sample on ---- */

/* The ranks of a model of the receiver's side. */
static const int32_t *ranks_of(const ms_plan *p, int32_t model) {
  return p->to.rank + (int64_t)model * p->to.tp;
}

/* Whether a rank is of a sending model, and so has its samples. */
static int has(const ms_plan *p, int32_t rank, int32_t model) {
  return p->from.place[rank] >= 0 && p->from.place[rank] / p->from.tp == model;
}

/* Of a model's ranks that have what a sending model has, the one that gives on the least so far: its place;
 * -1 where there is none. */
static int32_t holder(const ms_plan *p, const filling *f, int32_t model, int32_t from) {
  const int32_t *rank = ranks_of(p, model);
  int32_t best = -1;
  for (int32_t t = 0; t < p->to.tp; t++)
    if (has(p, rank[t], from) && (best < 0 || f->given[rank[t]] < f->given[rank[best]])) best = t;
  return best;
}

/* Says of each sample of a model which of its ranks gives it on: one that has it or, of what is sent to the
 * model, each in turn about as many rows. */
static void set_entries(const ms_plan *p, filling *f, int32_t model) {
  int64_t total = 0, before = 0;
  for (int32_t k = f->start[model]; k < f->start[model + 1]; k++) {
    int32_t i = f->by_model[k], t = f->entry[i] = holder(p, f, model, f->from[i]);
    if (t < 0)
      total += f->rows[i];
    else
      f->given[ranks_of(p, model)[t]] += f->rows[i];
  }
  for (int32_t k = f->start[model]; k < f->start[model + 1]; k++) {
    int32_t i = f->by_model[k];
    if (f->entry[i] >= 0) continue;
    f->entry[i] = (int32_t)((2 * before + f->rows[i]) * p->to.tp / (2 * total));
    before += f->rows[i];
  }
}

/* ---- messages ---- */

static ms_plan_message *add_message(ms_plan *p, const filling *f, int stage, int32_t from,
                                    int32_t to) {
  ms_plan_message *m = &p->message[p->messages++];
  *m = (ms_plan_message){.stage = stage, .from = from, .to = to, .sample = p->sample + f->used};
  return m;
}

static void add_sample(ms_plan *p, filling *f, ms_plan_message *m, int32_t i) {
  p->sample[f->used++] = i;
  m->samples++;
  m->rows += f->rows[i];
}

/* What is sent to a model, a message for each piece; `from` is the sending model for now. */
static void add_pieces(ms_plan *p, filling *f, int32_t model) {
  ms_plan_message *m = NULL;
  for (int32_t k = f->start[model]; k < f->start[model + 1]; k++) {
    int32_t i = f->by_model[k], rank = ranks_of(p, model)[f->entry[i]];
    if (has(p, rank, f->from[i])) continue;
    if (!m || m->from != f->from[i] || m->to != rank)
      m = add_message(p, f, MS_PLAN_SEND, f->from[i], rank);
    add_sample(p, f, m, i);
  }
}

/* What one of a model's ranks, the entry-th, gives to another: of its n samples those that this one lacks. */
static void add_exchange(ms_plan *p, filling *f, int32_t from, int32_t to, const int32_t *sample,
                         int32_t n) {
  ms_plan_message *m = NULL;
  for (int32_t k = 0; k < n; k++) {
    if (has(p, to, f->from[sample[k]])) continue;
    if (!m) m = add_message(p, f, MS_PLAN_EXCHANGE, from, to);
    add_sample(p, f, m, sample[k]);
  }
}

/* First each rank's to the next one, then to the one after that, and so on: phases that need no search. */
static void add_exchanges(ms_plan *p, filling *f, int32_t model) {
  const int32_t *rank = ranks_of(p, model), *start = f->entry_start;
  int32_t first = f->start[model], n = f->start[model + 1] - first, tp = p->to.tp;
  sort_by(f->entry, tp, f->by_number + first, n, f->list, f->entry_start);
  for (int32_t apart = 1; apart < tp; apart++)
    for (int32_t e = 0; e < tp; e++)
      if (start[e + 1] > start[e])
        add_exchange(p, f, rank[e], rank[(e + apart) % tp], f->list + start[e],
                     start[e + 1] - start[e]);
}

static int compare(int64_t a, int64_t b) { return (a > b) - (a < b); }

static int more_rows_first(const void *x, const void *y) {
  const ms_plan_message *a = x, *b = y;
  int by_rows = compare(b->rows, a->rows), by_from = compare(a->from, b->from);
  return by_rows ? by_rows : by_from ? by_from : compare(a->to, b->to);
}

/* Bytes a second from one rank to another. */
static double speed(const ms_plan *p, int32_t from, int32_t to) {
  return p->machine[from] == p->machine[to] ? p->within : p->between;
}

/* Gives every piece, the large ones first, which are then together in early phases, to the rank of its model that would be done with it first. */
static void choose_senders(ms_plan *p, filling *f) {
  qsort(p->message, (size_t)p->messages, sizeof *p->message, more_rows_first);
  for (int32_t k = 0; k < p->messages; k++) {
    ms_plan_message *m = &p->message[k];
    const int32_t *rank = p->from.rank + (int64_t)m->from * p->from.tp;
    double soonest = INFINITY;
    for (int32_t t = 0; t < p->from.tp; t++) {
      double done = f->busy[rank[t]] + (double)m->rows / speed(p, rank[t], m->to);
      if (done < soonest) soonest = done, m->from = rank[t];
    }
    f->busy[m->from] = soonest;
  }
}

/* Puts n messages, whose senders and phases are given, into the order of phases, then of senders. */
static ms_status sort_messages(const ms_plan *p, ms_plan_message *m, int32_t n, const int32_t *from,
                               const int32_t *phase, int32_t phases) {
  ms_status st;
  int32_t *order = NULL, *start = NULL;
  ms_plan_message *copy = NULL;
  MS_TRY_OR(done, new_array(3 * (int64_t)n, &order));
  MS_TRY_OR(done, new_array((int64_t)(p->ranks > phases ? p->ranks : phases) + 1, &start));
  MS_TRY_OR(done, ms_alloc_undefined(sizeof *copy * (size_t)n, "plan", (void **)&copy));
  int32_t *by_sender = order + n, *by_phase = by_sender + n;
  for (int32_t i = 0; i < n; i++) order[i] = i, copy[i] = m[i];
  sort_by(from, p->ranks, order, n, by_sender, start);
  sort_by(phase, phases, by_sender, n, by_phase, start);
  for (int32_t i = 0; i < n; i++) m[i] = copy[by_phase[i]];
done:
  ms_free(order);
  ms_free(start);
  ms_free(copy);
  return st;
}

/* Gives a stage's messages, from `first` on, their phases. */
static ms_status set_phases(ms_plan *p, int stage, int32_t first) {
  int32_t n = p->messages - first, *from;
  ms_plan_message *m = p->message + first;
  MS_TRY(new_array(3 * (int64_t)n, &from));
  int32_t *to = from + n, *phase = to + n;
  for (int32_t i = 0; i < n; i++) from[i] = m[i].from, to[i] = m[i].to;
  ms_status st = ms_colour_edges(p->ranks, n, from, to, phase, &p->phases[stage]);
  for (int32_t i = 0; st == MS_OK && i < n; i++) m[i].phase = phase[i];
  if (st == MS_OK) st = sort_messages(p, m, n, from, phase, p->phases[stage]);
  ms_free(from);
  return st;
}

/* Room for all messages and their samples: each sample is sent at most once, and given to all but one of its
 * model's ranks. */
static ms_status make_room(ms_plan *p, const filling *f) {
  int64_t tp = p->to.tp, room = f->wanted;
  for (int32_t b = 0; b < p->to.dp; b++) {
    int64_t n = f->start[b + 1] - f->start[b];
    room += (n < tp ? n : tp) * (tp - 1);
  }
  MS_REQUIRE(room <= INT32_MAX / 3, "plan: %lld messages are too many", (long long)room);
  MS_TRY(ms_alloc_undefined(sizeof *p->message * (size_t)room, "plan", (void **)&p->message));
  return ms_alloc_undefined(sizeof *p->sample * (size_t)(tp * f->wanted), "plan",
                            (void **)&p->sample);
}

/* Lists each rank's messages. */
static ms_status list_by_rank(ms_plan *p) {
  MS_TRY(new_array(2 * (int64_t)p->messages, &p->of_rank));
  for (int32_t k = 0; k < p->messages; k++)
    p->of_start[p->message[k].from + 1]++, p->of_start[p->message[k].to + 1]++;
  for (int32_t r = 0; r < p->ranks; r++) p->of_start[r + 1] += p->of_start[r];
  for (int32_t k = 0; k < p->messages; k++) {
    p->of_rank[p->of_start[p->message[k].from]++] = k;
    p->of_rank[p->of_start[p->message[k].to]++] = k;
  }
  for (int32_t r = p->ranks; r > 0; r--) p->of_start[r] = p->of_start[r - 1];
  p->of_start[0] = 0;
  return MS_OK;
}

static ms_status fill(ms_plan *p, int32_t samples, filling *f) {
  MS_TRY(filling_new(p, samples, f));
  sort_samples(p, samples, f);
  MS_TRY(make_room(p, f));
  for (int32_t b = 0; b < p->to.dp; b++) set_entries(p, f, b);
  for (int32_t b = 0; b < p->to.dp; b++) add_pieces(p, f, b);
  choose_senders(p, f);
  int32_t sent = p->messages;
  MS_TRY(set_phases(p, MS_PLAN_SEND, 0));
  for (int32_t b = 0; b < p->to.dp; b++) add_exchanges(p, f, b);
  MS_TRY(set_phases(p, MS_PLAN_EXCHANGE, sent));
  return list_by_rank(p);
}

ms_status ms_plan_fill(ms_plan *p, int32_t samples, const int32_t *rows, const int32_t *from,
                       const int32_t *to) {
  filling f = {.rows = rows, .from = from, .to = to};
  MS_REQUIRE(p, "plan: no plan to fill");
  empty(p);
  MS_TRY(check_samples(p, samples, &f));
  ms_status st = fill(p, samples, &f);
  filling_free(&f);
  if (st != MS_OK) empty(p);
  return st;
}

/* ---- what it says ---- */

const ms_plan_message *ms_plan_messages(const ms_plan *p, int32_t *count) {
  *count = p->messages;
  return p->message;
}

const int32_t *ms_plan_of_rank(const ms_plan *p, int32_t rank, int32_t *count) {
  *count = 0;
  if (rank < 0 || rank >= p->ranks || !p->messages) return NULL;
  *count = p->of_start[rank + 1] - p->of_start[rank];
  return p->of_rank + p->of_start[rank];
}

int32_t ms_plan_phases(const ms_plan *p, int stage) {
  return stage == MS_PLAN_SEND || stage == MS_PLAN_EXCHANGE ? p->phases[stage] : 0;
}

ms_status ms_plan_row_bytes(int kind, int64_t width, int dtype, int64_t *bytes) {
  int64_t size = dtype == MS_BF16 ? 2 : 4;
  MS_REQUIRE(width > 0, "plan: rows of %lld", (long long)width);
  MS_REQUIRE(dtype == MS_F32 || dtype == MS_BF16, "plan: rows of dtype %d, which is no f32 or bf16",
             dtype);
  switch (kind) {
    case MS_TARGET_TOPK:
      *bytes = width * (4 + size) + 4;
      return MS_OK; /* the leftover's log is f32 */
    case MS_TARGET_HIDDEN: *bytes = width * size; return MS_OK;
    case MS_TARGET_LOGITS: *bytes = width * 4; return MS_OK;
    default: return MS_FAIL(MS_EINVAL, "plan: %d is no kind of target", kind);
  }
}

static double later(double a, double b) { return a > b ? a : b; }

ms_status ms_plan_predict(ms_plan *p, int64_t row_bytes, double *seconds) {
  double *sends,
      last = 0; /* until when each rank sends, receives, and gets what enters its model */
  MS_REQUIRE(p && seconds && row_bytes > 0, "plan: rows of %lld bytes", (long long)row_bytes);
  MS_TRY(ms_alloc(sizeof *sends * 3 * (size_t)p->ranks, "plan", (void **)&sends));
  double *receives = sends + p->ranks, *entered = receives + p->ranks;
  for (int32_t k = 0; k < p->messages; k++) {
    ms_plan_message *m = &p->message[k];
    m->begins = later(sends[m->from], receives[m->to]);
    if (m->stage == MS_PLAN_EXCHANGE) m->begins = later(m->begins, entered[m->from]);
    m->ends = m->begins + p->latency + (double)(m->rows * row_bytes) / speed(p, m->from, m->to);
    sends[m->from] = receives[m->to] = m->ends;
    if (m->stage == MS_PLAN_SEND) entered[m->to] = m->ends;
    last = later(last, m->ends);
  }
  ms_free(sends);
  *seconds = last;
  return MS_OK;
}

/* transfer.c - rows of targets into messages, messages between ranks, and targets out of them. */
#include "transfer.h"

#include <string.h>

#include "../../kernels/ops.h"
#include "../base/json.h"
#include "../base/memory.h"
#include "../base/trace.h"
#include "batch.h"
#include "decoder.h"
#include "model.h"

/* ---- layout ---- */

static void add_tensor(ms_transfer *x, const char *name, int64_t cols, size_t element) {
  x->tensor[x->tensors++] = (ms_transfer_tensor){name, cols, element};
  x->row_bytes += cols * (int64_t)element;
}

static void lay_row(ms_transfer *x) {
  switch (x->options.kind) {
    case MS_TARGET_TOPK:
      add_tensor(x, "ids", x->width, sizeof(int32_t));
      add_tensor(x, "log_p", x->width, ms_dtype_size(x->dtype));
      add_tensor(x, "log_rest", 1, sizeof(float));
      break;
    case MS_TARGET_HIDDEN:
      add_tensor(x, "hidden", x->width, ms_dtype_size(x->options.hidden_dtype));
      break;
    default: add_tensor(x, "logits", x->width, sizeof(float));
  }
}

/* Where a row of a tensor is in a bundle. */
static char *row_at(const ms_transfer *x, const ms_bundle *b, int i, int64_t row) {
  int64_t rows = b->first[b->samples], at = 0;
  for (int k = 0; k < i; k++) at += rows * x->tensor[k].cols * (int64_t)x->tensor[k].element;
  return b->data + at + row * x->tensor[i].cols * (int64_t)x->tensor[i].element;
}

/* A tensor of a target, which has its elements in f32 where they may be bf16 on their way. */
static void *target_at(const ms_transfer *x, const ms_target *t, int i, int64_t row) {
  int64_t at = row * x->tensor[i].cols;
  switch (t->options.kind) {
    case MS_TARGET_TOPK:
      return i == 0 ? (void *)(t->id + at) : i == 1 ? t->log_p + at : t->log_rest + at;
    case MS_TARGET_HIDDEN: return (char *)t->hidden + at * (int64_t)x->tensor[i].element;
    default: return t->logits + at;
  }
}

static int is_narrowed(const ms_transfer *x, int i) {
  return x->options.kind == MS_TARGET_TOPK && i == 1 && x->dtype == MS_BF16;
}

/* ---- memory that ranks of a machine share ---- */

/* NULL where the rank is of another machine, this one itself, or nothing is shared. */
static ms_status find_edge(ms_transfer *x, int32_t peer, int stage, int sends, ms_edge **out) {
  void *p;
  *out = NULL;
  if (!ms_links_has(x->links, peer)) return MS_OK;
  for (*out = x->edges; *out; *out = (*out)->next)
    if ((*out)->peer == peer && (*out)->stage == stage && (*out)->sends == sends) return MS_OK;
  MS_TRY(ms_alloc(sizeof(ms_edge), "transfer", &p));
  *out = p;
  **out = (ms_edge){.peer = peer, .stage = stage, .sends = sends, .next = x->edges};
  x->edges = *out;
  return MS_OK;
}

/* Slots for a block that the present ones have no room for. Both ends know all sizes, so they go on to
 * the next slots at the same block. */
static ms_status have_room(ms_transfer *x, ms_edge *e, int64_t bytes) {
  int64_t key = 2 * x->key + e->stage;
  if (e->slots && ms_slots_room(e->slots) >= bytes) return MS_OK;
  if (e->slots && !e->sends) MS_TRY(ms_slots_finish(e->slots));
  ms_slots_free(e->slots);
  e->slots = NULL;
  if (!e->sends) return ms_slots_join(x->links, e->peer, key, NULL, &e->slots);
  ms_slots_plan plan = {.writer = x->group->rank,
                        .readers = 1,
                        .reader = &e->peer,
                        .depth = x->depth,
                        .bytes = bytes + bytes / 4};
  return ms_slots_make(x->links, &plan, key, &e->slots);
}

static ms_status begin_slot(ms_transfer *x, ms_bundle *b) {
  void *p;
  MS_TRY(have_room(x, b->edge, (int64_t)b->bytes));
  MS_TRY(ms_slots_begin(b->edge->slots, NULL, &p));
  b->data = p;
  b->held = 1;
  return MS_OK;
}

static ms_status give_slot(ms_bundle *b, int64_t bytes) {
  b->held = 0;
  return ms_slots_give(b->edge->slots, NULL, bytes);
}

static ms_status take_slot(ms_transfer *x, ms_bundle *b, int64_t *bytes) {
  const void *p;
  MS_TRY(have_room(x, b->edge, (int64_t)b->bytes));
  MS_TRY(ms_slots_take(b->edge->slots, NULL, &p, bytes));
  b->data = (char *)(uintptr_t)p; /* which is never written: it is not ours */
  b->held = 1;
  return MS_OK;
}

static void free_edges(ms_transfer *x) {
  while (x->edges) {
    ms_edge *e = x->edges;
    x->edges = e->next;
    ms_slots_free(e->slots);
    ms_free(e);
  }
}

/* ---- bundles ---- */

static void free_bundle(ms_transfer *x, ms_bundle *b) {
  if (!b) return;
  x->bytes -= b->bytes;
  ms_free(b->sample);
  ms_free(b->first);
  if (!b->edge) ms_free(b->data);
  ms_free(b);
}

static ms_status fill_bundle(ms_transfer *x, ms_bundle *b, const int32_t *sample) {
  void *p;
  MS_TRY(ms_alloc_undefined((size_t)b->samples * sizeof *sample, "transfer: samples", &p));
  b->sample = memcpy(p, sample, (size_t)b->samples * sizeof *sample);
  MS_TRY(ms_alloc(((size_t)b->samples + 1) * sizeof *b->first, "transfer: samples", &p));
  b->first = p;
  for (int32_t i = 0; i < b->samples; i++) b->first[i + 1] = b->first[i] + x->rows[sample[i]];
  size_t bytes = (size_t)(b->first[b->samples] * x->row_bytes);
  if (!b->edge) {
    MS_TRY(ms_alloc_undefined(bytes, "transfer: rows of targets", &p));
    b->data = p;
  }
  b->bytes = bytes;
  x->bytes += bytes;
  if (x->bytes > x->most) x->most = x->bytes;
  return MS_OK;
}

/* A bundle at the end of the round's. */
static ms_status add_bundle(ms_transfer *x, int32_t peer, int stage, int sends, int32_t samples,
                            const int32_t *sample, ms_bundle **out) {
  void *p;
  MS_TRY(ms_alloc(sizeof(ms_bundle), "transfer", &p));
  ms_bundle *b = p, **end = &x->round;
  b->peer = peer;
  b->stage = stage;
  b->sends = sends;
  b->samples = samples;
  ms_status st = find_edge(x, peer, stage, sends, &b->edge);
  if (st == MS_OK) st = fill_bundle(x, b, sample);
  if (st == MS_OK && b->edge && sends) st = begin_slot(x, b);
  if (st != MS_OK) {
    free_bundle(x, b);
    return st;
  }
  while (*end) end = &(*end)->next;
  *end = b;
  if (out) *out = b;
  return MS_OK;
}

/* The place of a sample in a bundle; -1: it is not there. */
static int32_t find_sample(const ms_bundle *b, int32_t sample) {
  int32_t from = 0, to = b->samples;
  while (from < to) {
    int32_t at = from + (to - from) / 2;
    if (b->sample[at] < sample)
      from = at + 1;
    else
      to = at;
  }
  return from < b->samples && b->sample[from] == sample ? from : -1;
}

static int is_own(const ms_transfer *x, const ms_bundle *b) { return b->peer == x->group->rank; }

/* A bundle whose rows this rank has: its own, or one that has come. */
static const ms_bundle *find_held(const ms_transfer *x, int32_t sample, int32_t *at) {
  for (const ms_bundle *b = x->round; b; b = b->next)
    if (!b->sends && (*at = find_sample(b, sample)) >= 0) return b;
  return NULL;
}

static void count(const ms_transfer *x, const ms_bundle *b, int64_t *bytes) {
  for (int i = 0; i < x->tensors; i++)
    bytes[i] += b->first[b->samples] * x->tensor[i].cols * (int64_t)x->tensor[i].element;
}

static ms_status post(ms_transfer *x, ms_bundle *b) {
  int64_t n = (int64_t)b->bytes;
  x->messages++;
  count(x, b, b->sends ? x->sent : x->received);
  if (b->edge) x->shared += n;
  if (b->edge) return b->sends ? give_slot(b, n) : MS_OK;
  return b->sends ? x->group->ops->send(x->group, NULL, b->data, MS_U8, n, b->peer, &b->work)
                  : x->group->ops->receive(x->group, NULL, b->data, MS_U8, n, b->peer, &b->work);
}

static ms_status wait_for(ms_transfer *x, ms_bundle *b) {
  ms_work *work = b->work;
  int64_t bytes = 0;
  if (b->edge && !b->sends && !b->held) {
    MS_TRY(take_slot(x, b, &bytes));
    MS_REQUIRE(bytes == (int64_t)b->bytes || !bytes,
               "transfer: %lld bytes of rank %d where %zu must come", (long long)bytes, b->peer,
               b->bytes);
  }
  b->work = NULL;
  return ms_work_wait(work);
}

/* ---- life ---- */

static ms_status check_new(ms_group *group, const ms_target_options *o, int64_t width, int dtype,
                           const ms_model *head) {
  MS_REQUIRE(group && o, "transfer: no group, or no options");
  MS_REQUIRE(o->kind >= MS_TARGET_TOPK && o->kind <= MS_TARGET_LOGITS, "transfer: %d is no kind",
             o->kind);
  MS_REQUIRE(width >= 1, "transfer: rows of %lld", (long long)width);
  MS_REQUIRE(o->vocab >= 1, "transfer: how many ids take part is not said");
  MS_REQUIRE(dtype == MS_F32 || dtype == MS_BF16, "transfer: %d is neither f32 nor bf16", dtype);
  MS_REQUIRE(o->kind != MS_TARGET_HIDDEN || !head || head->config.hidden_size == width,
             "transfer: states of %lld for a head of %lld", (long long)width,
             (long long)(head ? head->config.hidden_size : 0));
  return MS_OK;
}

ms_status ms_transfer_new(ms_group *group, const ms_target_options *options, int64_t width,
                          int dtype, ms_model *head, ms_transfer **out) {
  void *p;
  *out = NULL;
  MS_TRY(check_new(group, options, width, dtype, head));
  MS_TRY(ms_alloc(sizeof(ms_transfer), "transfer", &p));
  ms_transfer *x = p;
  x->group = group;
  x->options = *options;
  x->width = width;
  x->dtype = dtype;
  x->head = head;
  if (head) ms_model_retain(head);
  lay_row(x);
  *out = x;
  return MS_OK;
}

/* Those whose messages are under way stay: their memory is the transport's. */
static void free_bundles(ms_transfer *x, ms_bundle *b) {
  while (b) {
    ms_bundle *next = b->next;
    if (!b->work) free_bundle(x, b);
    b = next;
  }
}

ms_status ms_transfer_share(ms_transfer *x, int64_t key, int32_t depth) {
  enum { MORE = 2 }; /* the round that is read, and the one that is written */
  MS_REQUIRE(!x->open && !x->edges, "transfer: is shared when there was a round");
  MS_REQUIRE(depth >= 0 && depth <= MS_SLOTS_DEPTH - MORE, "transfer: %d rounds not in 0..%d",
             depth, MS_SLOTS_DEPTH - MORE);
  MS_REQUIRE(ms_links_world() && ms_links_world()->group->size == x->group->size,
             "transfer: the ranks of this machine share no memory");
  x->links = ms_links_world();
  x->key = key;
  x->depth = depth + MORE;
  return MS_OK;
}

int ms_transfer_shares(const ms_transfer *x, int32_t rank) { return ms_links_has(x->links, rank); }

void ms_transfer_free(ms_transfer *x) {
  if (!x) return;
  free_bundles(x, x->round);
  free_bundles(x, x->posted);
  free_edges(x);
  ms_free(x->rows);
  if (x->head) ms_model_release(x->head);
  ms_free(x);
}

/* ---- a round ---- */

/* The samples that this rank makes and needs itself. */
static ms_status add_own(ms_transfer *x, const uint8_t *own) {
  void *p;
  int32_t n = 0;
  MS_TRY(ms_alloc_undefined((size_t)x->samples * sizeof(int32_t), "transfer: samples", &p));
  int32_t *sample = p;
  for (int32_t i = 0; i < x->samples; i++)
    if (own[i] && x->rows[i]) sample[n++] = i;
  ms_status st = add_bundle(x, x->group->rank, MS_PLAN_SEND, 0, n, sample, NULL);
  ms_free(p);
  return st;
}

static ms_status add_message(ms_transfer *x, const ms_plan_message *m) {
  int sends = m->from == x->group->rank;
  ms_bundle *b;
  MS_TRY(add_bundle(x, sends ? m->to : m->from, m->stage, sends, m->samples, m->sample, &b));
  return sends ? MS_OK : post(x, b);
}

ms_status ms_transfer_begin(ms_transfer *x, const ms_plan *plan, int32_t samples,
                            const int32_t *rows, const uint8_t *own) {
  int32_t all, mine;
  void *p;
  MS_REQUIRE(!x->open, "transfer: a round begins, and the one before has not ended");
  MS_TRY(ms_alloc_undefined((size_t)samples * sizeof *rows, "transfer: samples", &p));
  ms_free(x->rows);
  x->rows = memcpy(p, rows, (size_t)samples * sizeof *rows);
  x->samples = samples;
  x->open = 1;
  MS_TRY(add_own(x, own));
  const ms_plan_message *message = ms_plan_messages(plan, &all);
  const int32_t *of = ms_plan_of_rank(plan, x->group->rank, &mine);
  for (int32_t i = 0; i < mine; i++) MS_TRY(add_message(x, &message[of[i]]));
  return MS_OK;
}

/* ---- rows into bundles ---- */

static uint16_t bf16_of(float f) { /* to nearest even */
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static float of_bf16(uint16_t b) {
  uint32_t u = (uint32_t)b << 16;
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}

/* In place, from the front: an element is read before its place is written. */
static void narrow(char *to, const float *from, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    uint16_t b = bf16_of(from[i]);
    memcpy(to + 2 * i, &b, sizeof b);
  }
}

static ms_status read_rows(const ms_target *t, void *to, const void *from, size_t bytes) {
  if (t->dev) return MS_OP(t->dev, read, to, from, bytes);
  memcpy(to, from, bytes);
  return MS_OK;
}

static ms_status pack_tensor(ms_transfer *x, const ms_target *t, int64_t row, ms_bundle *b,
                             int32_t at, int i) {
  int64_t n = (b->first[at + 1] - b->first[at]) * x->tensor[i].cols;
  char *to = row_at(x, b, i, b->first[at]);
  void *p;
  if (!is_narrowed(x, i))
    return read_rows(t, to, target_at(x, t, i, row), (size_t)n * x->tensor[i].element);
  MS_TRY(ms_scratch((size_t)n * sizeof(float), "transfer: log-probabilities", &p));
  MS_TRY(read_rows(t, p, target_at(x, t, i, row), (size_t)n * sizeof(float)));
  narrow(to, p, n);
  return MS_OK;
}

static ms_status pack_sample(ms_transfer *x, const ms_target *t, int64_t row, ms_bundle *b,
                             int32_t at) {
  for (int i = 0; i < x->tensors; i++) MS_TRY(pack_tensor(x, t, row, b, at, i));
  if (x->options.kind == MS_TARGET_LOGITS) /* who gets logits does not have the teacher's head */
    ms_finish_logits(&t->head, (float *)row_at(x, b, 0, b->first[at]),
                     (b->first[at + 1] - b->first[at]) * x->width);
  return MS_OK;
}

static ms_status check_added(const ms_transfer *x, const ms_target *t, int32_t n,
                             const int32_t *sample) {
  int64_t rows = 0;
  MS_REQUIRE(x->open, "transfer: no round is under way");
  MS_REQUIRE(t->options.kind == x->options.kind && t->options.k == x->options.k &&
                 t->options.on == x->options.on &&
                 t->options.hidden_dtype == x->options.hidden_dtype,
             "transfer: a target of another kind than the transfer is for");
  for (int32_t i = 0; i < n; i++) {
    MS_REQUIRE(sample[i] >= 0 && sample[i] < x->samples, "transfer: sample %d of %d", sample[i],
               x->samples);
    rows += x->rows[sample[i]];
  }
  MS_REQUIRE(rows == t->rows, "transfer: a target of %lld rows for samples that have %lld",
             (long long)t->rows, (long long)rows);
  return MS_OK;
}

ms_status ms_transfer_add(ms_transfer *x, const ms_target *t, int32_t n, const int32_t *sample) {
  double began = ms_clock();
  int64_t row = 0;
  MS_TRY(check_added(x, t, n, sample));
  for (int32_t i = 0; i < n; row += x->rows[sample[i++]])
    for (ms_bundle *b = x->round; b; b = b->next) {
      int32_t at =
          b->stage == MS_PLAN_SEND && (b->sends || is_own(x, b)) ? find_sample(b, sample[i]) : -1;
      if (at >= 0) MS_TRY(pack_sample(x, t, row, b, at));
    }
  x->seconds[MS_TRANSFER_PACK] += ms_clock() - began;
  return MS_OK;
}

/* ---- messages ---- */

static ms_status post_stage(ms_transfer *x, int stage) {
  for (ms_bundle *b = x->round; b; b = b->next)
    if (b->sends && b->stage == stage) MS_TRY(post(x, b));
  return MS_OK;
}

static ms_status wait_bundles(ms_transfer *x, int stage) {
  for (ms_bundle *b = x->round; b; b = b->next)
    if (!b->sends && b->stage == stage) MS_TRY(wait_for(x, b));
  return MS_OK;
}

/* A teacher is waited for; within a group its ranks wait for each other. */
static ms_status wait_stage(ms_transfer *x, int stage) {
  ms_trace_cause before =
      ms_trace_waits_for(stage == MS_PLAN_SEND ? MS_TRACE_TEACHER : MS_TRACE_PEER);
  ms_status st = wait_bundles(x, stage);
  ms_trace_waits_for(before);
  return st;
}

/* What goes on to others of the receiver's group, from what has come or is this rank's own. */
static ms_status fill_exchange(ms_transfer *x) {
  for (ms_bundle *b = x->round; b; b = b->next) {
    if (!b->sends || b->stage != MS_PLAN_EXCHANGE) continue;
    for (int32_t k = 0; k < b->samples; k++) {
      int32_t at;
      const ms_bundle *from = find_held(x, b->sample[k], &at);
      MS_REQUIRE(from, "transfer: sample %d is to be given on, and is not here", b->sample[k]);
      size_t rows = (size_t)(b->first[k + 1] - b->first[k]);
      for (int i = 0; i < x->tensors; i++)
        memcpy(row_at(x, b, i, b->first[k]), row_at(x, from, i, from->first[at]),
               rows * (size_t)x->tensor[i].cols * x->tensor[i].element);
    }
  }
  return MS_OK;
}

/* Frees what was read by now of the rounds before; with `wait` all of it. */
static ms_status drop_read(ms_transfer *x, int wait) {
  for (ms_bundle **at = &x->posted; *at;) {
    ms_bundle *b = *at;
    int done = 1;
    if (!wait) MS_TRY(ms_work_test(b->work, &done));
    if (!done) {
      at = &b->next;
      continue;
    }
    MS_TRY(wait_for(x, b));
    *at = b->next;
    free_bundle(x, b);
  }
  return MS_OK;
}

ms_status ms_transfer_send(ms_transfer *x) {
  MS_REQUIRE(x->open, "transfer: no round is under way");
  MS_TRY(drop_read(x, 0));
  return post_stage(x, MS_PLAN_SEND);
}

ms_status ms_transfer_receive(ms_transfer *x) {
  double began = ms_clock(), came;
  MS_REQUIRE(x->open, "transfer: no round is under way");
  MS_TRY(wait_stage(x, MS_PLAN_SEND));
  came = ms_clock();
  x->seconds[MS_TRANSFER_WAIT] += came - began;
  MS_TRY(fill_exchange(x));
  MS_TRY(post_stage(x, MS_PLAN_EXCHANGE));
  MS_TRY(wait_stage(x, MS_PLAN_EXCHANGE));
  x->seconds[MS_TRANSFER_EXCHANGE] += ms_clock() - came;
  return MS_OK;
}

ms_status ms_transfer_end(ms_transfer *x) {
  while (x->round) {
    ms_bundle *b = x->round;
    if (!b->sends) MS_TRY(wait_for(x, b));
    if (b->edge && b->held) /* what was not sent is a block of nothing */
      MS_TRY(b->sends ? give_slot(b, 0) : ms_slots_release(b->edge->slots, NULL));
    x->round = b->next;
    if (b->sends && b->work) {
      b->next = x->posted;
      x->posted = b;
    } else {
      free_bundle(x, b);
    }
  }
  x->open = 0;
  return MS_OK;
}

ms_status ms_transfer_settle(ms_transfer *x) {
  MS_TRY(drop_read(x, 1));
  for (ms_edge *e = x->edges; e; e = e->next) /* memory lasts until all have read it */
    if (!e->sends && e->slots) MS_TRY(ms_slots_finish(e->slots));
  free_edges(x);
  for (int stage = 0; stage < 2 && x->links; stage++) ms_links_forget(x->links, 2 * x->key + stage);
  return MS_OK;
}

/* ---- targets out of bundles ---- */

static ms_status write_rows(const ms_target *t, void *to, const void *from, size_t bytes) {
  if (t->dev) return MS_OP(t->dev, write, to, from, bytes);
  memcpy(to, from, bytes);
  return MS_OK;
}

static ms_status take_tensor(const ms_transfer *x, ms_target *t, int64_t row, const ms_bundle *b,
                             int32_t at, int i) {
  int64_t n = (b->first[at + 1] - b->first[at]) * x->tensor[i].cols;
  const char *from = row_at(x, b, i, b->first[at]);
  void *p;
  if (!is_narrowed(x, i))
    return write_rows(t, target_at(x, t, i, row), from, (size_t)n * x->tensor[i].element);
  MS_TRY(ms_scratch((size_t)n * sizeof(float), "transfer: log-probabilities", &p));
  for (int64_t k = 0; k < n; k++) {
    uint16_t half;
    memcpy(&half, from + 2 * k, sizeof half);
    ((float *)p)[k] = of_bf16(half);
  }
  return write_rows(t, target_at(x, t, i, row), p, (size_t)n * sizeof(float));
}

static ms_status take_rows(ms_transfer *x, ms_target *t, int32_t n, const int32_t *sample) {
  int64_t row = 0;
  for (int32_t i = 0; i < n; i++) {
    int32_t at;
    if (!x->rows[sample[i]]) continue;
    const ms_bundle *b = find_held(x, sample[i], &at);
    MS_REQUIRE(b, "transfer: the rows of sample %d of the round are not on this rank", sample[i]);
    for (int k = 0; k < x->tensors; k++) MS_TRY(take_tensor(x, t, row, b, at, k));
    row += x->rows[sample[i]];
  }
  return MS_OK;
}

/* The head that the rows are of. */
static ms_status head_of(const ms_transfer *x, int64_t rows, ms_head_weights *head) {
  *head = (ms_head_weights){.scale = 1, .width = x->width};
  if (x->options.kind == MS_TARGET_LOGITS) head->vocab = x->width;
  if (x->options.kind != MS_TARGET_HIDDEN) return MS_OK;
  if (x->head) ms_model_head(x->head, head);
  MS_REQUIRE(x->head || !rows, "transfer: the teacher's head is not on this rank");
  return MS_OK;
}

ms_status ms_transfer_take(ms_transfer *x, const ms_batch *batch, int32_t n, const int32_t *sample,
                           ms_target **out) {
  double began = ms_clock();
  ms_head_weights head;
  int64_t rows = batch->rows[x->options.on], held = 0;
  *out = NULL;
  for (int32_t i = 0; i < n; i++) {
    MS_REQUIRE(x->open && sample[i] >= 0 && sample[i] < x->samples, "transfer: sample %d of %d",
               sample[i], x->open ? x->samples : 0);
    held += x->rows[sample[i]];
  }
  MS_REQUIRE(rows == held, "transfer: a batch of %lld rows, whose samples have %lld",
             (long long)rows, (long long)held);
  MS_TRY(head_of(x, rows, &head));
  int hidden = x->options.kind == MS_TARGET_HIDDEN && x->head;
  MS_TRY(ms_target_room(hidden ? x->head->dev : NULL, &x->options, rows, &head,
                        hidden ? ms_model_refer : NULL, x->head, out));
  (*out)->labels = ms_batch_labels(batch, x->options.on);
  ms_status st = take_rows(x, *out, n, sample);
  if (st != MS_OK) {
    ms_target_free(*out);
    *out = NULL;
  }
  x->seconds[MS_TRANSFER_TAKE] += ms_clock() - began;
  return st;
}

/* ---- facts ---- */

int64_t ms_transfer_bytes(const ms_transfer *x) { return (int64_t)x->bytes; }

static json_t *by_tensor(const ms_transfer *x, const int64_t *bytes) {
  json_t *j = json_object();
  for (int i = 0; j && i < x->tensors; i++)
    if (json_object_set_new(j, x->tensor[i].name, json_integer(bytes[i]))) {
      json_decref(j);
      return NULL;
    }
  return j;
}

ms_status ms_transfer_info(const ms_transfer *x, char **json) {
  *json = NULL;
  json_t *j = json_pack(
      "{s:o, s:o, s:I, s:I, s:{s:f, s:f, s:f, s:f}, s:I, s:I}", "sent", by_tensor(x, x->sent),
      "received", by_tensor(x, x->received), "messages", (json_int_t)x->messages, "shared",
      (json_int_t)x->shared, "seconds", "pack", x->seconds[MS_TRANSFER_PACK], "wait",
      x->seconds[MS_TRANSFER_WAIT], "exchange", x->seconds[MS_TRANSFER_EXCHANGE], "take",
      x->seconds[MS_TRANSFER_TAKE], "held", (json_int_t)x->bytes, "most", (json_int_t)x->most);
  if (!j) return MS_FAIL(MS_ENOMEM, "transfer: no memory for its description");
  ms_status st = ms_json_text(j, 0, json);
  json_decref(j);
  return st;
}

/* slots.c - the numbers by which a writer and its readers take turns, and waiting for each other.
 *
 * Each number has one side that writes it, and remembers it: whenever it looks at others' numbers it
 * compares its own ones. So where one was lost, that side's next wait ends in an error, and then those of
 * the sides that wait for it. */
#include "slots.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "../base/memory.h"
#include "../base/trace.h"
#include "exchange.h"

static int32_t slot_of(const ms_slots *s, uint64_t block) {
  return (int32_t)((block - 1) % (uint64_t)s->depth);
}

/* The block that was in the slot before; 0 for none. */
static uint64_t before(const ms_slots *s, uint64_t block) {
  return block > (uint64_t)s->depth ? block - (uint64_t)s->depth : 0;
}

/* The last of the blocks 1 to `count` that was in a slot; 0 for none. */
static uint64_t last_in(const ms_slots *s, int32_t slot, uint64_t count) {
  uint64_t first = (uint64_t)slot + 1, depth = (uint64_t)s->depth;
  return count < first ? 0 : first + (count - first) / depth * depth;
}

static char *memory_of(const ms_slots *s, uint64_t block) {
  return s->backing->memory + slot_of(s, block) * s->slot_bytes;
}

static int32_t filled(const ms_slots *s, uint64_t block) { return slot_of(s, block); }
static int32_t read_by(const ms_slots *s, int32_t reader, uint64_t block) {
  return s->depth * (1 + reader) + slot_of(s, block);
}

/* ---- what the numbers say ---- */

static ms_status lost(const char *what, int32_t slot, uint64_t is, uint64_t must) {
  return MS_FAIL(MS_EGROUP, "slots: %s of slot %d is block %llu where it must be %llu: was lost",
                 what, slot, (unsigned long long)is, (unsigned long long)must);
}

/* What this side has written itself. */
static ms_status check_own(const ms_slots *s) {
  for (int32_t i = 0; i < s->depth; i++) {
    if (s->writes) {
      uint64_t is = atomic_load(&s->control->writer.announced[i]), must = last_in(s, i, s->given);
      if (is != must) return lost("the announcement", i, is, must);
    }
    if (s->self >= 0) {
      uint64_t is = atomic_load(&s->control->reader[s->self].released[i]);
      uint64_t must = last_in(s, i, s->released);
      if (is != must) return lost("the release", i, is, must);
    }
  }
  return MS_OK;
}

/* Somebody this side waits for has nothing more to say. */
static ms_status is_over(const ms_slots *s, int32_t peer, int finished, const char *what,
                         uint64_t block) {
  return MS_FAIL(MS_EGROUP, "slots: rank %d has %s before it %s block %llu", s->name[peer],
                 finished ? "finished" : "ended", what, (unsigned long long)block);
}

/* ---- steps: each is one look, one number or one event, and `go` those of an operation ---- */

/* *can 0: not yet, since *peer has to do something first. */

static ms_status look_begin(ms_slots *s, ms_stream *on, int *can, int32_t *peer) {
  uint64_t block = s->given + 1, awaited = before(s, block);
  int32_t slot = slot_of(s, block);
  MS_TRY(check_own(s));
  for (int32_t r = 0; r < s->readers; r++) {
    const struct ms_slots_reader *reader = &s->control->reader[r];
    if (atomic_load(&reader->finished)) continue; /* it drops what it has not read */
    uint64_t is = atomic_load(&reader->released[slot]);
    if (s->ended[r]) return is_over(s, r, 0, "took", block);
    if (is == awaited) continue;
    MS_REQUIRE(r != s->self,
               "slots: block %llu is still held by the rank itself that is to write %llu",
               (unsigned long long)awaited, (unsigned long long)block);
    *can = 0;
    *peer = r;
  }
  return MS_OK;
}

static ms_status wait_read(ms_slots *s, ms_stream *on, int *can, int32_t *peer) {
  uint64_t block = s->given + 1;
  for (int32_t r = 0; r < s->readers && before(s, block); r++)
    MS_TRY(s->backing->ops->wait(s->backing, read_by(s, r, block), on));
  s->begun = block;
  return MS_OK;
}

static ms_status record_filled(ms_slots *s, ms_stream *on, int *can, int32_t *peer) {
  return s->backing->ops->record(s->backing, filled(s, s->begun), on);
}

static ms_status announce(ms_slots *s, ms_stream *on, int *can, int32_t *peer) {
  s->given = s->begun;
  atomic_store(&s->control->writer.announced[slot_of(s, s->given)], s->given);
  return MS_OK;
}

static ms_status look_take(ms_slots *s, ms_stream *on, int *can, int32_t *peer) {
  uint64_t block = s->taken + 1;
  int32_t slot = slot_of(s, block);
  const struct ms_slots_writer *writer = &s->control->writer;
  MS_TRY(check_own(s));
  int finished = (int)atomic_load(&writer->finished); /* looked at first: it was said last */
  uint64_t is = atomic_load(&writer->announced[slot]);
  if (is == block) return MS_OK;
  MS_REQUIRE(!s->writes, "slots: block %llu is read before the same rank has written it",
             (unsigned long long)block);
  *can = 0;
  *peer = s->readers;
  if (finished || s->ended[*peer]) return is_over(s, *peer, finished, "gave", block);
  return MS_OK;
}

static ms_status wait_filled(ms_slots *s, ms_stream *on, int *can, int32_t *peer) {
  s->taken++;
  return s->backing->ops->wait(s->backing, filled(s, s->taken), on);
}

static ms_status record_read(ms_slots *s, ms_stream *on, int *can, int32_t *peer) {
  return s->backing->ops->record(s->backing, read_by(s, s->self, s->released + 1), on);
}

static ms_status say_released(ms_slots *s, ms_stream *on, int *can, int32_t *peer) {
  uint64_t block = ++s->released;
  atomic_store(&s->control->reader[s->self].released[slot_of(s, block)], block);
  return MS_OK;
}

/* Others' memory is given back before its maker may free it. */
static void close_reader(ms_slots *s) {
  if (!s->writes && s->backing) s->backing->ops->close(s->backing);
  if (!s->writes) s->backing = NULL;
}

static ms_status say_finished(ms_slots *s, ms_stream *on, int *can, int32_t *peer) {
  s->finished = 1;
  close_reader(s);
  if (s->self >= 0) atomic_store(&s->control->reader[s->self].finished, 1);
  if (s->writes) atomic_store(&s->control->writer.finished, 1);
  return MS_OK;
}

static ms_status look_finished(ms_slots *s, ms_stream *on, int *can, int32_t *peer) {
  if (!s->writes) return MS_OK;
  MS_TRY(check_own(s));
  for (int32_t r = 0; r < s->readers; r++) {
    if (atomic_load(&s->control->reader[r].finished)) continue;
    if (s->ended[r])
      return MS_FAIL(MS_EGROUP, "slots: rank %d has ended before it finished", s->name[r]);
    *can = 0;
    *peer = r;
  }
  return MS_OK;
}

ms_slots_step *const ms_slots_steps[][2] = {[MS_SLOTS_BEGIN] = {look_begin, wait_read},
                                            [MS_SLOTS_GIVE] = {record_filled, announce},
                                            [MS_SLOTS_TAKE] = {look_take, wait_filled},
                                            [MS_SLOTS_RELEASE] = {record_read, say_released},
                                            [MS_SLOTS_FINISH] = {say_finished, look_finished}};

/* ---- waiting ---- */

/* A process that ends closes its sockets, however it ends. */
static void see_ends(ms_slots *s) {
  struct pollfd at[MS_SLOTS_READERS + 1];
  nfds_t n = (nfds_t)s->readers + 1;
  for (nfds_t i = 0; i < n; i++) at[i] = (struct pollfd){.fd = s->fd[i], .events = POLLRDHUP};
  if (poll(at, n, 0) <= 0) return;
  for (nfds_t i = 0; i < n; i++)
    if (at[i].revents & (POLLRDHUP | POLLHUP | POLLERR)) s->ended[i] = 1;
}

static ms_status look_at_group(const ms_slots_wait *w) {
  char text[512], what[MS_CALL_TEXT];
  if (ms_watch_look(w->since, ms_exchange_timeout()) == MS_OK) return MS_OK;
  snprintf(text, sizeof text, "%s", ms_last_error());
  return MS_FAIL(MS_EGROUP, "slots: %s: %s", ms_call_text(&w->call, what), text);
}

ms_status ms_slots_wait_round(ms_slots_wait *w, int32_t peer) {
  if (!w->round) w->began = ms_trace_begin();
  MS_TRY(ms_exchange_advance());
  ms_exchange_pause(w->round++);
  if (w->round % 64) return MS_OK;
  double now = ms_clock();
  if (w->since == 0) w->since = w->looked = now;
  if (w->call.peer != peer) {
    w->call.peer = peer;
    ms_watch_waits(&w->call, 1);
  }
  if (now - w->looked < 1 && now - w->since < ms_exchange_timeout()) return MS_OK;
  w->looked = now;
  return look_at_group(w);
}

void ms_slots_wait_end(ms_slots_wait *w) {
  ms_trace_end(w->began, ms_trace_wait_cause(), "slots");
  if (w->call.peer >= 0) ms_watch_waits(&w->call, 0);
  ms_watch_progress();
}

/* Repeats a step until it can be done. */
static ms_status wait_for(ms_slots *s, ms_slots_step *step, ms_stream *on, ms_slots_wait *w) {
  for (;;) {
    int can = 1;
    int32_t peer = 0;
    MS_TRY(step(s, on, &can, &peer));
    if (can) return MS_OK;
    MS_TRY(ms_slots_wait_round(w, s->name[peer]));
    if (w->round % 64 == 0) see_ends(s);
  }
}

static ms_status go(ms_slots *s, int op, ms_stream *on, uint64_t block) {
  static const int calls[] = {[MS_SLOTS_BEGIN] = MS_CALL_BEGIN,
                              [MS_SLOTS_TAKE] = MS_CALL_TAKE,
                              [MS_SLOTS_FINISH] = MS_CALL_FINISH,
                              [MS_SLOTS_RELEASE] = 0};
  ms_slots_wait w = {.call = {.op = calls[op], .number = (int64_t)block, .peer = -1}};
  ms_status st = MS_OK;
  see_ends(s);
  for (int i = 0; i < 2 && st == MS_OK; i++) st = wait_for(s, ms_slots_steps[op][i], on, &w);
  ms_slots_wait_end(&w);
  return st;
}

static ms_status try(ms_slots *s, int op, int *can) {
  int32_t peer;
  *can = 1;
  see_ends(s);
  return ms_slots_steps[op][0](s, NULL, can, &peer);
}

/* ---- the writer ---- */

static ms_status check_writer(const ms_slots *s, const char *what, int begun) {
  MS_REQUIRE(s && s->writes, "%s: this rank does not write these slots", what);
  MS_REQUIRE(!s->finished, "%s: these slots are finished", what);
  MS_REQUIRE((s->begun > s->given) == begun, "%s: block %llu %s", what,
             (unsigned long long)s->given + 1, begun ? "was not begun" : "is begun already");
  return MS_OK;
}

ms_status ms_slots_can_begin(ms_slots *s, int *can) {
  MS_TRY(check_writer(s, "slots_can_begin", 0));
  return try(s, MS_SLOTS_BEGIN, can);
}

ms_status ms_slots_begin(ms_slots *s, ms_stream *on, void **data) {
  MS_TRY(check_writer(s, "slots_begin", 0));
  MS_TRY(go(s, MS_SLOTS_BEGIN, on, s->given + 1));
  *data = memory_of(s, s->begun);
  return MS_OK;
}

ms_status ms_slots_give(ms_slots *s, ms_stream *on, int64_t bytes) {
  MS_TRY(check_writer(s, "slots_give", 1));
  MS_REQUIRE(bytes >= 0 && bytes <= s->slot_bytes, "slots_give: %lld bytes in a slot of %lld",
             (long long)bytes, (long long)s->slot_bytes);
  s->control->writer.bytes[slot_of(s, s->begun)] = bytes;
  return go(s, MS_SLOTS_GIVE, on, s->begun);
}

/* ---- a reader ---- */

static ms_status check_reader(const ms_slots *s, const char *what) {
  MS_REQUIRE(s && s->self >= 0, "%s: this rank does not read these slots", what);
  MS_REQUIRE(!s->finished, "%s: these slots are finished", what);
  return MS_OK;
}

static ms_status check_take(const ms_slots *s, const char *what) {
  MS_TRY(check_reader(s, what));
  MS_REQUIRE(s->taken - s->released < (uint64_t)s->depth,
             "%s: this rank holds all %d slots: release one first", what, s->depth);
  return MS_OK;
}

ms_status ms_slots_can_take(ms_slots *s, int *can) {
  MS_TRY(check_take(s, "slots_can_take"));
  return try(s, MS_SLOTS_TAKE, can);
}

ms_status ms_slots_take(ms_slots *s, ms_stream *on, const void **data, int64_t *bytes) {
  MS_TRY(check_take(s, "slots_take"));
  MS_TRY(go(s, MS_SLOTS_TAKE, on, s->taken + 1));
  int64_t n = s->control->writer.bytes[slot_of(s, s->taken)];
  if (n < 0 || n > s->slot_bytes)
    return MS_FAIL(MS_EGROUP, "slots_take: block %llu has %lld bytes in a slot of %lld",
                   (unsigned long long)s->taken, (long long)n, (long long)s->slot_bytes);
  *data = memory_of(s, s->taken);
  *bytes = n;
  return MS_OK;
}

ms_status ms_slots_release(ms_slots *s, ms_stream *on) {
  MS_TRY(check_reader(s, "slots_release"));
  MS_REQUIRE(s->released < s->taken, "slots_release: this rank holds no block");
  return go(s, MS_SLOTS_RELEASE, on, s->released + 1);
}

/* ---- beginning and end ---- */

ms_status ms_slots_new(const ms_slots_plan *p, int32_t me, ms_slots_control *control,
                       ms_backing *backing, ms_slots **out) {
  void *memory = NULL;
  *out = NULL;
  MS_TRY(ms_alloc(sizeof(ms_slots), "slots", &memory));
  ms_slots *s = memory;
  *s = (ms_slots){.control = control, .backing = backing, .writes = me == p->writer, .self = -1};
  s->readers = p->readers;
  s->depth = p->depth;
  s->slot_bytes = ms_slots_slot_bytes(p);
  for (int32_t r = 0; r <= p->readers; r++) {
    s->name[r] = r < p->readers ? p->reader[r] : p->writer;
    s->fd[r] = -1;
    if (r < p->readers && s->name[r] == me) s->self = r;
  }
  *out = s;
  return MS_OK;
}

ms_status ms_slots_finish(ms_slots *s) {
  MS_REQUIRE(s && !s->finished, "slots_finish: no slots, or finished already");
  MS_REQUIRE(s->taken == s->released, "slots_finish: this rank still holds block %llu",
             (unsigned long long)s->released + 1);
  if (s->writes) MS_TRY(check_writer(s, "slots_finish", 0));
  return go(s, MS_SLOTS_FINISH, NULL, s->given);
}

/* Whether no other process has the writer's memory any more. */
static int is_alone(ms_slots *s) {
  see_ends(s);
  for (int32_t r = 0; r < s->readers; r++)
    if (r != s->self && !s->ended[r] && !atomic_load(&s->control->reader[r].finished)) return 0;
  return 1;
}

void ms_slots_free(ms_slots *s) {
  if (!s) return;
  close_reader(s);
  /* What others may still use is left until the process ends. */
  if (s->backing && (s->backing->ops->stays || is_alone(s))) s->backing->ops->close(s->backing);
  if (s->control_bytes) ms_memory_unmap(s->control, s->control_bytes);
  ms_free(s);
}

int64_t ms_slots_room(const ms_slots *s) { return s->slot_bytes; }

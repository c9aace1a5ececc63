/* trace.c - see trace.h. Events are added at the end of what they tell of, from any thread, to memory
 * that is there from the start: whoever waits must not wait for memory as well. */
#include "trace.h"

#include <stdatomic.h>
#include <stdio.h>

#include "error.h"
#include "memory.h"

static ms_trace_event *events; /* NULL: no timeline */
static int64_t room;
static _Atomic int64_t count;
static _Thread_local ms_trace_cause waits = MS_TRACE_PEER;

ms_status ms_trace_start(int64_t most) {
  void *p = NULL;
  MS_REQUIRE(most > 0, "trace: room for %lld events", (long long)most);
  ms_trace_stop();
  MS_TRY(ms_alloc_undefined((size_t)most * sizeof *events, "timeline", &p));
  room = most;
  atomic_store(&count, 0);
  events = p;
  return MS_OK;
}

void ms_trace_stop(void) {
  ms_free(events);
  events = NULL;
  atomic_store(&count, 0);
}

double ms_trace_begin(void) { return events ? ms_clock() : 0; }

void ms_trace_end(double began, int cause, const char *what) {
  if (!events || began == 0) return;
  double now = ms_clock();
  int64_t i = atomic_fetch_add(&count, 1);
  if (i >= room) return;
  ms_trace_event *e = &events[i];
  e->began = began;
  e->ended = now;
  e->cause = cause;
  snprintf(e->what, sizeof e->what, "%s", what);
}

int ms_trace_waits_for(int cause) {
  ms_trace_cause before = waits;
  waits = cause;
  return before;
}

int ms_trace_wait_cause(void) { return waits; }

int64_t ms_trace_events(const ms_trace_event **out) {
  int64_t n = atomic_load(&count);
  *out = events;
  return n;
}

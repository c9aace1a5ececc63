/* system.c - the process that moonstill runs in: clock, threads, interrupts. */
#include <omp.h>
#include <signal.h>
#include <time.h>

#include "error.h"
#include "../moonstill.h"
#include "system.h"

double ms_clock(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

ms_status ms_threads_set(int threads) {
  MS_REQUIRE(threads >= 0 && threads <= 4096, "threads: %d not in 0..4096", threads);
  omp_set_num_threads(threads ? threads : omp_get_num_procs());
  return MS_OK;
}

int ms_threads_get(void) { return omp_get_max_threads(); }

static volatile sig_atomic_t interrupted;
static void (*watcher)(int on);
static int watching;

void ms_interrupt_by(void (*watch)(int on)) { watcher = watch; }

void ms_interrupt_watch(int on) {
  if (!on == !watching) return;
  watching = on;
  if (on) interrupted = 0;
  if (watcher) watcher(on);
}

void ms_interrupt(int number) { interrupted = number; }
int ms_interrupted(void) { return interrupted; }

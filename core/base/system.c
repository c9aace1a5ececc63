/* system.c - clock, threads, interrupts, version: the process moonstill runs in. */
#include <jansson.h>
#include <luajit.h>
#include <omp.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <utf8proc.h>
#include <xxhash.h>
#include <yaml.h>

#include "error.h"
#include "memory.h"
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

ms_status ms_version(int libraries, char **text) {
  if (!libraries) return ms_text_format(text, "moonstill %s", MS_VERSION);
  char pcre[64];
  pcre2_config(PCRE2_CONFIG_VERSION, pcre);
  unsigned xxh = XXH_versionNumber();
  return ms_text_format(
      text,
      "moonstill %s\n%s\nlibyaml %s\njansson %s\nPCRE2 %s\nutf8proc %s\nxxHash %u.%u.%u\n"
      "OpenMP %d\nCPU kernels %s",
      MS_VERSION, LUAJIT_VERSION, yaml_get_version_string(), JANSSON_VERSION, pcre,
      utf8proc_version(), xxh / 10000, xxh / 100 % 100, xxh % 100, _OPENMP, ms_cpu_isa());
}

/* system.c - clock, threads, signals, version: the process moonstill runs in. */
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
static struct sigaction old_int, old_term;
static int watching;

static void on_signal(int number) {
  if (interrupted) _Exit(128 + number); /* asked twice */
  interrupted = 1;
}

void ms_interrupt_watch(int on) {
  if (on && !watching) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    interrupted = 0;
    sigaction(SIGINT, &action, &old_int);
    sigaction(SIGTERM, &action, &old_term);
  } else if (!on && watching) {
    sigaction(SIGINT, &old_int, NULL);
    sigaction(SIGTERM, &old_term, NULL);
  }
  watching = on;
}

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

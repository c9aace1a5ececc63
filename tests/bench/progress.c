/* progress.c - how sums under way are moved on while a rank computes: not at all before the end, between
 * layers, or by a thread of its own.
 *
 *   ninja -C build bench_progress
 *   MS_MPI_LIB=build/moonstill-mpi.so mpirun -np 2 build/bench_progress [layers] [ms a layer] [KiB] [rounds]
 *
 * A backward pass stands for itself: layers of arithmetic, after each of which the sum of a bucket begins, at
 * most four at once, as in core/model/gradients.c. All ways are timed in turn within a round, so on a busy
 * machine only the ratios of the medians mean something. The thread takes turns with the rank at the group,
 * by a lock, and sleeps for moments. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/memory.h"
#include "core/group/group.h"

enum { AT_ONCE = 4, MOST = 64 };
enum { COMPUTE, SUM, AT_END, BETWEEN, THREAD, WAYS };
static const char *const names[WAYS] = {"arithmetic alone", "sums alone", "moved on at the end",
                                        "moved on between layers", "moved on by a thread"};

static ms_group *world;
static int layers = 24, rounds = 9;
static double ms = 5;
static int64_t kib = 4096;
static float *gradient;
static ms_work *work[MOST];
static int begun, done, stop;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void must(ms_status st) {
  if (st == MS_OK) return;
  fprintf(stderr, "%s\n", ms_last_error());
  ms_group_abort(1);
}

/* As much arithmetic as takes so long here, when nobody disturbs it: `turns` of it. */
static int64_t turns;
static void compute(int64_t n) {
  static float x[4096];
  for (int64_t k = 0; k < n; k++)
    for (int i = 0; i < 4096; i++) x[i] = x[i] * 0.999f + 1;
  __asm__ volatile("" : : "r"(x) : "memory");
}

static void measure_turns(void) {
  double since = ms_clock();
  compute(2000);
  double each = (ms_clock() - since) / 2000;
  must(ms_group_sum(world, &each, 1));
  turns = (int64_t)(ms / 1e3 / (each / world->size)) + 1;
}

/* Begins what may begin of `ready` sums, sees what is done. */
static void move_on(int ready) {
  int is_done = 1;
  int64_t n = kib * 256;
  while (is_done) {
    for (; begun < ready && begun < done + AT_ONCE; begun++)
      must(world->ops->all_reduce(world, NULL, gradient + begun * n, MS_F32, n, MS_SUM,
                                  &work[begun]));
    if (done == begun) return;
    must(ms_work_test(work[done], &is_done));
    if (is_done) must(ms_work_wait(work[done++]));
  }
}

static int ready;
static void *run_thread(void *unused) {
  struct timespec t = {0, 100000};
  for (;;) {
    pthread_mutex_lock(&lock);
    move_on(ready);
    int ends = stop;
    pthread_mutex_unlock(&lock);
    if (ends) return unused;
    nanosleep(&t, NULL);
  }
}

static double pass(int way) {
  pthread_t thread;
  begun = done = stop = ready = 0;
  must(world->ops->barrier(world));
  double since = ms_clock();
  if (way == THREAD && pthread_create(&thread, NULL, run_thread, NULL)) abort();
  for (int l = 1; l <= layers; l++) {
    if (way != SUM) compute(turns);
    if (way == BETWEEN) move_on(l);
    pthread_mutex_lock(&lock);
    ready = l;
    pthread_mutex_unlock(&lock);
  }
  if (way == THREAD) {
    pthread_mutex_lock(&lock);
    stop = 1;
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
  }
  while (way != COMPUTE && done < layers) {
    move_on(layers);
    if (done < begun) must(ms_work_wait(work[done++]));
  }
  must(world->ops->barrier(world));
  return ms_clock() - since;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

int main(int argc, char **argv) {
  if (argc > 1) layers = atoi(argv[1]);
  if (argc > 2) ms = atof(argv[2]);
  if (argc > 3) kib = atoll(argv[3]);
  if (argc > 4) rounds = atoi(argv[4]);
  if (layers < 1 || layers > MOST || rounds < 1 || rounds > MOST || kib < 1) return 2;
  must(ms_group_world(&world));
  gradient = calloc((size_t)layers * (size_t)kib, 1024);
  if (!gradient) return 1;
  measure_turns();
  double t[WAYS][MOST];
  for (int r = -1; r < rounds; r++)
    for (int way = 0; way < WAYS; way++) t[way][r < 0 ? 0 : r] = pass(way);
  for (int way = 0; way < WAYS && world->rank == 0; way++) {
    qsort(t[way], (size_t)rounds, sizeof(double), by_value);
    printf("%-24s %8.1f ms  (%.1f .. %.1f)\n", names[way], 1e3 * t[way][rounds / 2],
           1e3 * t[way][0], 1e3 * t[way][rounds - 1]);
  }
  free(gradient);
  return 0;
}

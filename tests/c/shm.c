/* shm.c - memory between processes: what is passed, what is left behind, and what happens when one of
 * them is slow, stands still, or is killed. Ranks are forked, and in the last test launched by MPI. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <time.h>

#include "core/base/memory.h"
#include "core/group/slots.h"
#include "tests/support/forks.h"
#include "tests/support/ranks.h"

enum { MOST = 300000 }; /* bytes of a slot */

static void sleep_ms(int ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
  nanosleep(&t, NULL);
}

/* Byte i of block b of channel c, and how many there are. */
static uint8_t byte_of(int c, int64_t b, int64_t i) {
  return (uint8_t)(31 * c + 7 * b + 13 * i + i / 251);
}
static int64_t bytes_of(int c, int64_t b) { return b % 5 == 3 ? 0 : (b * 70001 + c * 977) % MOST; }

static void fill(uint8_t *x, int c, int64_t b) {
  for (int64_t i = 0; i < bytes_of(c, b); i++) x[i] = byte_of(c, b, i);
}

static int is_right(const uint8_t *x, int64_t bytes, int c, int64_t b) {
  int right = bytes == bytes_of(c, b);
  for (int64_t i = 0; i < bytes && right; i++) right = x[i] == byte_of(c, b, i);
  return right;
}

static int give(ms_slots *s, int c, int64_t b) {
  void *x = NULL;
  if (ms_slots_begin(s, NULL, &x) != MS_OK) return 0;
  fill(x, c, b);
  return ms_slots_give(s, NULL, bytes_of(c, b)) == MS_OK;
}

static int take(ms_slots *s, int c, int64_t b) {
  const void *x = NULL;
  int64_t bytes = -1;
  if (ms_slots_take(s, NULL, &x, &bytes) != MS_OK) return 0;
  CHECK(is_right(x, bytes, c, b));
  return 1;
}

static int end(ms_slots *s) {
  int done = ms_slots_finish(s) == MS_OK;
  ms_slots_free(s);
  return done;
}

/* ---- what is passed ---- */

static int pause_of[FORKS]; /* milliseconds that a rank needs for a block */

static ms_links *links;

/* This rank's side of slots: made by the writer, joined by the others; NULL: it has no part, or failed. */
static ms_slots *side(ms_group *g, const ms_slots_plan *p, int64_t key) {
  ms_slots *s = NULL;
  ms_status st = MS_OK;
  if (!links || links->group != g) {
    ms_links_close(links);
    links = NULL;
    st = ms_links_open(g, &links);
  }
  if (st == MS_OK && p->writer == g->rank) st = ms_slots_make(links, p, key, &s);
  for (int32_t r = 0; r < p->readers && st == MS_OK && p->writer != g->rank; r++)
    if (p->reader[r] == g->rank) st = ms_slots_join(links, p->writer, key, p->backing, &s);
  if (st != MS_OK) printf("rank %d: %s\n", g->rank, ms_last_error());
  return s;
}

/* Rank 0 to all others. */
static int pass(ms_group *g) {
  enum { BLOCKS = 23, DEPTH = 2 };
  int32_t readers[FORKS];
  for (int32_t r = 1; r < g->size; r++) readers[r - 1] = r;
  ms_slots_plan p = {.readers = g->size - 1, .reader = readers, .depth = DEPTH, .bytes = MOST};
  ms_slots *s = side(g, &p, 0);
  if (!s) return 1;
  for (int64_t b = 1; b <= BLOCKS; b++) {
    sleep_ms(pause_of[g->rank]);
    if (!(g->rank ? take(s, 0, b) : give(s, 0, b))) return 2;
    if (g->rank && ms_slots_release(s, NULL) != MS_OK) return 3;
  }
  return end(s) ? 0 : 4;
}

/* Every rank to the next one and to itself, and the last one to all, several blocks held. */
static int cross(ms_group *g) {
  enum { BLOCKS = 12, DEPTH = 3 };
  int32_t n = g->size, me = g->rank, reader[FORKS][2], all[FORKS];
  ms_slots_plan p[FORKS + 1];
  ms_slots *s[FORKS + 1] = {0};
  for (int32_t r = 0; r < n; r++) {
    reader[r][0] = all[r] = r;
    reader[r][1] = (r + 1) % n;
    p[r] = (ms_slots_plan){
        .writer = r, .readers = n > 1 ? 2 : 1, .reader = reader[r], .depth = DEPTH, .bytes = MOST};
  }
  p[n] =
      (ms_slots_plan){.writer = n - 1, .readers = n, .reader = all, .depth = DEPTH, .bytes = MOST};
  /* Slots of one writer are asked for in another order than that in which they were made. */
  if (!(s[me] = side(g, &p[me], me))) return 1;
  if (me == n - 1 && !(s[n] = side(g, &p[n], n))) return 1;
  if (me < n - 1 && !(s[n] = side(g, &p[n], n))) return 1;
  if (n > 1 && !(s[(me + n - 1) % n] = side(g, &p[(me + n - 1) % n], (me + n - 1) % n))) return 1;
  CHECK(ms_slots_room(s[me]) >= MOST);
  for (int64_t b = 1; b <= BLOCKS; b += DEPTH) {
    for (int64_t k = b; k < b + DEPTH; k++)
      if (!give(s[me], me, k) || (me == n - 1 && !give(s[n], n, k))) return 2;
    for (int32_t i = 0; i <= n; i++) {
      if (!s[i]) continue;
      for (int64_t k = b; k < b + DEPTH; k++)
        if (!take(s[i], i, k)) return 3;
      int can = 1;
      CHECK(ms_slots_can_take(s[i], &can) == MS_EINVAL); /* all are held */
      for (int64_t k = b; k < b + DEPTH; k++)
        if (ms_slots_release(s[i], NULL) != MS_OK) return 4;
    }
  }
  for (int32_t i = 0; i <= n; i++)
    if (s[i] && ms_slots_finish(s[i]) != MS_OK) return 5;
  for (int32_t i = 0; i <= n; i++) ms_slots_free(s[i]);
  return 0;
}

/* Whether this process may write where it reads. */
static int is_writable(const void *x) {
  char line[512];
  int writable = -1;
  FILE *f = fopen("/proc/self/maps", "r");
  unsigned long from, to;
  char access[8];
  while (f && fgets(line, sizeof line, f))
    if (sscanf(line, "%lx-%lx %7s", &from, &to, access) == 3 &&
        (unsigned long)(uintptr_t)x >= from && (unsigned long)(uintptr_t)x < to)
      writable = access[1] == 'w';
  if (f) fclose(f);
  return writable;
}

/* One writer and one reader, for what follows. */
static ms_slots *pair(ms_group *g, int depth, const ms_backing_ops *backing) {
  static const int32_t reader[] = {1};
  ms_slots_plan p = {
      .readers = 1, .reader = reader, .depth = depth, .bytes = MOST, .backing = backing};
  return side(g, &p, 7);
}

static int in_place(ms_group *g) {
  ms_slots *s = pair(g, 2, NULL);
  const void *x = NULL, *again = NULL;
  int64_t bytes = 0;
  int can = 1;
  for (int64_t b = 1; b <= 3 && s; b++) {
    if (g->rank == 0 && !give(s, 0, b)) return 1;
    if (g->rank == 0) continue;
    if (ms_slots_take(s, NULL, &x, &bytes) != MS_OK) return 2;
    CHECK(is_writable(x) == 0);
    if (b == 1) again = x;
    if (b == 3) CHECK(x == again);
    if (ms_slots_release(s, NULL) != MS_OK) return 3;
  }
  if (g->rank == 0) CHECK(ms_slots_begin(s, NULL, (void **)(uintptr_t)&x) == MS_OK);
  if (g->rank == 0)
    CHECK(is_writable(x) == 1 && ms_slots_begin(s, NULL, (void **)(uintptr_t)&x) == MS_EINVAL);
  if (g->rank == 0)
    CHECK(ms_slots_give(s, NULL, MOST + 4096) == MS_EINVAL && ms_slots_give(s, NULL, 0) == MS_OK);
  if (g->rank == 0)
    CHECK(ms_slots_give(s, NULL, 0) == MS_EINVAL &&
          ms_slots_take(s, NULL, &again, &bytes) == MS_EINVAL);
  if (g->rank == 1) CHECK(ms_slots_take(s, NULL, &x, &bytes) == MS_OK && bytes == 0);
  if (g->rank == 1)
    CHECK(ms_slots_can_take(s, &can) == MS_OK && !can && ms_slots_finish(s) == MS_EINVAL);
  if (g->rank == 1)
    CHECK(ms_slots_release(s, NULL) == MS_OK && ms_slots_release(s, NULL) == MS_EINVAL);
  if (g->ops->barrier(g) != MS_OK) return 4;
  return end(s) ? 0 : 5;
}

/* The writer is as many blocks ahead as there are slots, and no more. */
static int ahead(ms_group *g) {
  enum { DEPTH = 3 };
  ms_slots *s = pair(g, DEPTH, NULL);
  int can = -1;
  if (!s) return 1;
  for (int64_t b = 1; b <= DEPTH && g->rank == 0; b++)
    if (ms_slots_can_begin(s, &can) != MS_OK || !can || !give(s, 0, b)) return 2;
  if (g->rank == 0) CHECK(ms_slots_can_begin(s, &can) == MS_OK && !can);
  if (g->ops->barrier(g) != MS_OK) return 3;
  if (g->rank == 1 && (!take(s, 0, 1) || !take(s, 0, 2))) return 4;
  if (g->ops->barrier(g) != MS_OK) return 5;
  if (g->rank == 0) CHECK(ms_slots_can_begin(s, &can) == MS_OK && !can); /* taken is not released */
  if (g->ops->barrier(g) != MS_OK) return 6;
  if (g->rank == 1) CHECK(ms_slots_release(s, NULL) == MS_OK && ms_slots_release(s, NULL) == MS_OK);
  if (g->ops->barrier(g) != MS_OK) return 7;
  if (g->rank == 0) CHECK(ms_slots_can_begin(s, &can) == MS_OK && can);
  return end(s) ? 0 : 8;
}

/* While a rank waits for a block, the group's works go on. */
static int works(ms_group *g) {
  enum { N = 1000 };
  ms_slots *s = pair(g, 1, NULL);
  float x[N];
  ms_work *w = NULL;
  for (int i = 0; i < N; i++) x[i] = 1;
  if (!s || g->ops->all_reduce(g, NULL, x, MS_F32, N, MS_SUM, &w) != MS_OK) return 1;
  if (g->rank == 0) { /* gives only when the sum is complete, for which it needs the reader */
    int done = 0;
    while (!done && ms_work_test(w, &done) == MS_OK) sleep_ms(1);
    if (!give(s, 0, 1)) return 2;
  } else if (!take(s, 0, 1) || ms_slots_release(s, NULL) != MS_OK)
    return 3;
  if (ms_work_wait(w) != MS_OK) return 4;
  CHECK(x[0] == 2 && x[N - 1] == 2);
  return end(s) ? 0 : 5;
}

static void passing(void) {
  static const int pauses[][3] = {{0, 0, 0}, {7, 0, 0}, {0, 7, 0}, {1, 0, 9}};
  TEST("blocks of all sizes, to one reader and to several, slow ones too");
  test_forks(2, 20, pass, NULL);
  for (int i = 0; i < 4; i++) {
    memcpy(pause_of, pauses[i], sizeof pauses[i]);
    test_forks(3, 20, pass, NULL);
  }
  TEST("many channels at once, and a writer that reads what it wrote");
  test_forks(4, 20, cross, NULL);
  test_forks(1, 20, cross, NULL);
  TEST("a block is read where it lies, and calls out of turn are refused");
  test_forks(2, 20, in_place, NULL);
  TEST("a writer is ahead by the number of slots");
  test_forks(2, 20, ahead, NULL);
  TEST("a rank that waits for a block moves sums of its group on");
  test_forks(2, 20, works, NULL);
}

/* ---- memory whose work is done later ---- */

/* A stream: a thread that does what is queued, a while after it was. */
struct ms_stream {
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t more;
  struct late {
    enum { COPY, RECORD, WAIT, STOP } kind;
    void *to;
    const void *from;
    int64_t n;
  } queue[256];
  int head, tail;
  int pause;
};

/* Behind the slots: how often an event was recorded, and up to which record it has fired. */
typedef struct event {
  _Atomic int64_t recorded, fired;
} event;

static void *run_stream(void *of) {
  ms_stream *s = of;
  for (;;) {
    pthread_mutex_lock(&s->lock);
    while (s->head == s->tail) pthread_cond_wait(&s->more, &s->lock);
    struct late t = s->queue[s->head % 256];
    pthread_mutex_unlock(&s->lock);
    sleep_ms(s->pause);
    event *e = t.to;
    if (t.kind == COPY) memcpy(t.to, t.from, (size_t)t.n);
    if (t.kind == RECORD) atomic_store(&e->fired, t.n);
    while (t.kind == WAIT && atomic_load(&e->fired) < t.n) sleep_ms(1);
    pthread_mutex_lock(&s->lock);
    s->head++;
    pthread_mutex_unlock(&s->lock);
    if (t.kind == STOP) return NULL;
  }
}

static void queue(ms_stream *s, struct late t) {
  pthread_mutex_lock(&s->lock);
  s->queue[s->tail++ % 256] = t;
  pthread_cond_signal(&s->more);
  pthread_mutex_unlock(&s->lock);
}

static void start_stream(ms_stream *s, int pause) {
  *s = (ms_stream){
      .lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER, .pause = pause};
  if (pthread_create(&s->thread, NULL, run_stream, s)) abort();
}

static void end_stream(ms_stream *s) {
  queue(s, (struct late){STOP, NULL, NULL, 0});
  pthread_join(s->thread, NULL);
}

static int64_t with_events(int64_t bytes, int32_t events) {
  return bytes + (int64_t)sizeof(event) * events;
}

typedef struct late_backing {
  ms_backing base;
  int64_t all; /* bytes, with the events */
} late_backing;

static const ms_backing_ops late_memory;
static int late_closed;

static ms_status new_late(char *memory, int64_t bytes, int64_t all, ms_backing **out) {
  late_backing *b = malloc(sizeof *b);
  *b = (late_backing){{.ops = &late_memory, .memory = memory, .bytes = bytes}, all};
  *out = &b->base;
  return MS_OK;
}

/* The handle says which memory this is, and that the process is another one. */
static ms_status make_late(int64_t bytes, int32_t events, void *handle, int *fd, ms_backing **out) {
  char *memory = NULL;
  pid_t me = getpid();
  memcpy(handle, &me, sizeof me);
  MS_TRY(ms_memory_make(with_events(bytes, events), fd, &memory));
  return new_late(memory, bytes, with_events(bytes, events), out);
}

static ms_status open_late(int64_t bytes, int32_t events, const void *handle, int fd,
                           ms_backing **out) {
  char *memory = NULL;
  pid_t maker;
  memcpy(&maker, handle, sizeof maker);
  CHECK(maker > 0 && maker != getpid());
  MS_TRY(ms_memory_map(fd, with_events(bytes, events), 1, &memory));
  return new_late(memory, bytes, with_events(bytes, events), out);
}

static event *event_of(ms_backing *b, int32_t i) {
  return (event *)(void *)(b->memory + b->bytes) + i;
}

static ms_status record_late(ms_backing *b, int32_t i, ms_stream *on) {
  event *e = event_of(b, i);
  sleep_ms(3); /* who announces first is found out */
  queue(on, (struct late){RECORD, e, NULL, atomic_fetch_add(&e->recorded, 1) + 1});
  return MS_OK;
}

static ms_status wait_late(ms_backing *b, int32_t i, ms_stream *on) {
  event *e = event_of(b, i);
  queue(on, (struct late){WAIT, e, NULL, atomic_load(&e->recorded)});
  return MS_OK;
}

static void close_late(ms_backing *b) {
  ms_memory_unmap(b->memory, ((late_backing *)b)->all);
  free(b);
  late_closed++;
}

static const ms_backing_ops late_memory = {.name = "late",
                                           .handle_bytes = sizeof(pid_t),
                                           .make = make_late,
                                           .open = open_late,
                                           .record = record_late,
                                           .wait = wait_late,
                                           .close = close_late};

/* The writer's data come long after their announcement, and what a reader reads it reads late. */
static int late(ms_group *g) {
  enum { BLOCKS = 9, DEPTH = 2, ROOM = 70000 };
  static uint8_t block[BLOCKS + 1][MOST], got[BLOCKS + 1][MOST];
  static const int32_t readers[] = {1, 2};
  ms_slots_plan p = {
      .readers = 2, .reader = readers, .depth = DEPTH, .bytes = MOST, .backing = &late_memory};
  ms_slots *s = side(g, &p, 0);
  ms_stream stream;
  if (!s) return 1;
  start_stream(&stream, 2 + 5 * g->rank);
  for (int64_t b = 1; b <= BLOCKS; b++) {
    void *x = NULL;
    int64_t bytes = bytes_of(0, b);
    if (g->rank == 0) {
      fill(block[b], 0, b);
      if (ms_slots_begin(s, &stream, &x) != MS_OK) return 2;
      queue(&stream, (struct late){COPY, x, block[b], bytes});
      if (ms_slots_give(s, &stream, bytes) != MS_OK) return 3;
    } else {
      if (ms_slots_take(s, &stream, (const void **)(uintptr_t)&x, &bytes) != MS_OK) return 4;
      CHECK(bytes == bytes_of(0, b));
      queue(&stream, (struct late){COPY, got[b], x, bytes});
      if (ms_slots_release(s, &stream) != MS_OK) return 5;
    }
  }
  end_stream(&stream);
  for (int64_t b = 1; b <= BLOCKS && g->rank; b++) CHECK(is_right(got[b], bytes_of(0, b), 0, b));
  if (g->rank == 2) sleep_ms(50);
  if (ms_slots_finish(s) != MS_OK) return 6;
  CHECK(late_closed == (g->rank > 0)); /* the maker's goes last */
  ms_slots_free(s);
  CHECK(late_closed == 1);
  return 0;
}

/* Memory that others still have is not freed by a side that just ends. */
static int left(ms_group *g) {
  ms_slots *s = pair(g, 2, &late_memory);
  if (!s) return 1;
  if (g->rank == 0) ms_slots_free(s);
  if (g->rank == 0) CHECK(!late_closed);
  if (g->ops->barrier(g) != MS_OK) return 2;
  if (g->rank == 1) ms_slots_free(s);
  if (g->rank == 1) CHECK(late_closed == 1);
  return 0;
}

static void lateness(void) {
  TEST(
      "data that come after their announcement are not read before, nor overwritten while they are "
      "read");
  test_forks(3, 20, late, NULL);
  TEST("memory that others have open is not given back under them");
  test_forks(2, 20, left, NULL);
}

/* ---- faults ---- */

static int killed, killed_at; /* a rank, and before which of its steps it is killed */
static double since;

/* Three blocks to two readers, which hold up to two: each call is a step. */
static int dies(ms_group *g) {
  static const int32_t readers[] = {1, 2};
  ms_slots_plan p = {.readers = 2, .reader = readers, .depth = 2, .bytes = MOST};
  ms_slots *s = side(g, &p, 0);
  void *x;
  int step = 0;
  ms_status st = s ? MS_OK : MS_EGROUP;
#define STEP(call)                                                \
  do {                                                            \
    if (g->rank == killed && step++ == killed_at) raise(SIGKILL); \
    if (st == MS_OK) st = (call);                                 \
  } while (0)
  since = ms_clock();
  for (int64_t b = 1; b <= 3; b++) {
    if (g->rank == 0) {
      STEP(ms_slots_begin(s, NULL, &x));
      if (st == MS_OK) fill(x, 0, b);
      STEP(ms_slots_give(s, NULL, bytes_of(0, b)));
    } else {
      int64_t bytes;
      STEP(ms_slots_take(s, NULL, (const void **)(uintptr_t)&x, &bytes));
      if (st == MS_OK) CHECK(is_right(x, bytes, 0, b));
      STEP(ms_slots_release(s, NULL));
    }
  }
  STEP(ms_slots_finish(s));
  if (g->rank == killed) raise(SIGKILL); /* after all: nobody misses it */
  CHECK(ms_clock() - since < 5);
  char name[16];
  snprintf(name, sizeof name, "rank %d", killed);
  if (st != MS_OK && g->rank == 0) CHECK(st == MS_EGROUP && strstr(ms_last_error(), name));
  if (st != MS_OK) CHECK(strstr(ms_last_error(), "has ended") != NULL);
  /* A reader is the writer's concern only: the other reader has an error when the writer has one. */
  ms_slots_free(s);
  return st == MS_OK ? 0 : 42;
}

static void deaths(void) {
  int status[FORKS];
  TEST("a rank that is killed at any step ends the others' waits within a moment");
  for (killed = 0; killed < 3; killed++)
    for (killed_at = 0; killed_at <= 7; killed_at++) {
      test_forks(3, 20, dies, status);
      CHECK(WIFSIGNALED(status[killed]) && WTERMSIG(status[killed]) == SIGKILL);
      for (int r = 0; r < 3; r++) {
        if (r == killed) continue;
        CHECK(WIFEXITED(status[r]));
        int code = WEXITSTATUS(status[r]), missed = killed_at < 7;
        /* the writer is missed at any step before it has given all, and a reader until it has finished */
        if (killed == 0)
          CHECK(code == (killed_at < 6 ? 42 : 0));
        else if (r == 0)
          CHECK(code == (missed ? 42 : 0));
        else
          CHECK(code == 0 || code == 42);
      }
    }
}

/* Rank 1 does not come for its block. */
static int never(ms_group *g) {
  ms_slots *s = pair(g, 1, NULL);
  void *x;
  ms_status st = MS_OK;
  double began = ms_clock();
  if (!s) return 1;
  if (g->rank == 0 && !give(s, 0, 1)) return 2;
  if (g->rank == 0) st = ms_slots_begin(s, NULL, &x);
  if (g->rank == 1) sleep_ms(1500);
  if (g->rank == 0) {
    CHECK(st == MS_EGROUP && ms_clock() - began > 0.4 && ms_clock() - began < 1.4);
    CHECK(strstr(ms_last_error(), "begin of block 2, for rank 1") != NULL);
    CHECK(strstr(ms_last_error(), "MS_GROUP_TIMEOUT") != NULL);
  }
  ms_slots_free(s);
  return 0;
}

/* Rank 0 computes before it gives, and the second time it sleeps. */
static int computes(ms_group *g) {
  char name[64];
  snprintf(name, sizeof name, "test-%d", (int)getppid());
  if (ms_watch_open(name, g->rank, g->size) != MS_OK || g->ops->barrier(g) != MS_OK) return 1;
  ms_watch_close(name);
  ms_slots *s = pair(g, 2, NULL);
  volatile double sum = 0;
  double began = ms_clock();
  if (!s) return 2;
  if (g->rank == 0) {
    while (ms_clock() - began < 3) sum += 1;
    if (!give(s, 0, 1)) return 3;
    sleep_ms(6000);
    ms_slots_free(s);
    return 0;
  }
  CHECK(take(s, 0, 1) && ms_clock() - began > 2.9);
  const void *x;
  int64_t bytes;
  CHECK(ms_slots_take(s, NULL, &x, &bytes) == MS_EGROUP && ms_clock() - began < 7.5);
  CHECK(strstr(ms_last_error(), "take of block 2, for rank 0") != NULL);
  CHECK(strstr(ms_last_error(), "rank 0 does something else") != NULL);
  CHECK(strstr(ms_last_error(), "rank 1 waits in take of block 2, for rank 0") != NULL);
  ms_slots_free(s);
  return 0;
}

static void time_outs(void) {
  TEST("who waits in vain says for whom, after the time that was set");
  test_forks(2, 0.5, never, NULL);
  TEST("a rank that computes is waited for, one that does nothing is not");
  test_forks(2, 1, computes, NULL);
}

/* ---- what is left ---- */

/* How often memory of ours is mapped. */
static int count_maps(void) {
  char line[512];
  int n = 0;
  FILE *f = fopen("/proc/self/maps", "r");
  while (f && fgets(line, sizeof line, f)) n += strstr(line, "memfd:moonstill") != NULL;
  if (f) fclose(f);
  return n;
}

static int count_files(void) {
  int n = 0;
  DIR *d = opendir("/proc/self/fd");
  while (d && readdir(d)) n++;
  if (d) closedir(d);
  return n;
}

static int rounds(ms_group *g, int count) {
  for (int i = 0; i < count; i++) {
    ms_slots *s = pair(g, 2, NULL);
    if (!s) return 1;
    if (g->rank == 0 && !give(s, 0, 1)) return 2;
    if (g->rank == 1 && (!take(s, 0, 1) || ms_slots_release(s, NULL) != MS_OK)) return 3;
    if (i % 2 && ms_slots_finish(s) != MS_OK) return 4;
    if (g->ops->barrier(g) != MS_OK) return 5;
    ms_slots_free(s);
  }
  return 0;
}

static int leaves_nothing(ms_group *g) {
  ms_slots_free(pair(g, 2, NULL)); /* the link stays */
  if (g->ops->barrier(g) != MS_OK) return 1;
  int files = count_files();
  int64_t live = ms_test_live();
  ms_slots *s = pair(g, 2, NULL);
  CHECK(count_maps() == 2 && count_files() == files);
  if (g->ops->barrier(g) != MS_OK) return 1;
  ms_slots_free(s);
  if (rounds(g, 20)) return 1;
  CHECK(count_maps() == 0 && count_files() == files && ms_test_live() == live);
  return 0;
}

static int lacks, nth; /* a rank, and which of its requests for memory fails */

/* 10: there are no links for a reason that all say, and nothing is left; 11: the group cannot go on. */
static int no_memory(ms_group *g) {
  int files = count_files();
  int64_t live = ms_test_live();
  ms_links *l = NULL;
  if (g->rank == lacks) ms_test_fail_alloc(nth);
  ms_status st = ms_links_open(g, &l);
  ms_test_fail_alloc(0);
  ms_links_close(l);
  if (st == MS_OK) CHECK(count_files() == files && ms_test_live() == live);
  if (st == MS_OK) return 0;
  int said = strstr(ms_last_error(), "memory") != NULL;
  int64_t now = ms_test_live();
  CHECK(!l && count_files() == files);
  if (g->ops->barrier(g) != MS_OK) return 11;
  CHECK(now == live);
  return test_bad ? 1 : said ? 10 : 12;
}

static void all_memory(void) {
  int status[FORKS], said = 0;
  for (lacks = 0; lacks < 2; lacks++)
    for (nth = 1; nth < 200; nth++) {
      test_forks(2, 0.3, no_memory, status);
      int code = WEXITSTATUS(status[0]), other = WEXITSTATUS(status[1]);
      CHECK(WIFEXITED(status[0]) && WIFEXITED(status[1]));
      CHECK(code != 1 && other != 1);
      if (code == 11 || other == 11) continue;
      CHECK(code == other && code != 12);
      said += code == 10;
      if (!code) break;
    }
  CHECK(nth > 10 && nth < 200 && said >= 4);
}

/* Each request for memory of the writer's fails once, then each of the reader's. */
static int no_slots(ms_group *g) {
  static const int32_t reader[] = {1};
  ms_slots_plan p = {.readers = 1, .reader = reader, .depth = 2, .bytes = MOST};
  ms_slots *s = NULL;
  if (ms_links_open(g, &links) != MS_OK) return 1;
  if (g->rank == 1 && g->ops->barrier(g) != MS_OK) return 2;
  int files = count_files(), n = g->rank ? 2 : 0,
      came = 0; /* a reader's first two are for what comes */
  int64_t live = ms_test_live();
  while (!s && ++n < 50) {
    ms_test_fail_alloc(n);
    ms_status st = g->rank ? ms_slots_join(links, 0, 7, NULL, &s) : ms_slots_make(links, &p, 7, &s);
    ms_test_fail_alloc(0);
    CHECK(!s == (st != MS_OK) && (s || strstr(ms_last_error(), "memory")));
    if (!s && !links->arrived) CHECK(count_files() == files && ms_test_live() == live);
    CHECK(s || count_maps() == 0);
    if (!came && links->arrived) n = 0;
    came = links->arrived != NULL;
  }
  CHECK(s && n > 3);
  if (g->rank == 0 && g->ops->barrier(g) != MS_OK) return 3;
  return end(s) ? 0 : 4;
}

/* All numbers of descriptors are taken but a few; 10: it is said that there are none. */
static int few, who;

static int few_files(ms_group *g) {
  static int taken[4096];
  struct rlimit old, small;
  int n = 0;
  static const int32_t reader[] = {1};
  ms_slots_plan p = {.readers = 1, .reader = reader, .depth = 2, .bytes = MOST};
  ms_slots *s = NULL;
  if (who < 2 && ms_links_open(g, &links) != MS_OK) return 1;
  int files = count_files();
  getrlimit(RLIMIT_NOFILE, &old);
  small = (struct rlimit){64, old.rlim_max};
  if (g->rank == who % 2) setrlimit(RLIMIT_NOFILE, &small);
  while (g->rank == who % 2 && (taken[n] = dup(1)) >= 0) n++;
  for (int i = 0; i < few && n > 0; i++) close(taken[--n]);
  ms_status st = who >= 2       ? ms_links_open(g, &links)
                 : g->rank == 1 ? ms_slots_join(links, 0, 7, NULL, &s)
                                : ms_slots_make(links, &p, 7, &s);
  while (n > 0) close(taken[--n]);
  setrlimit(RLIMIT_NOFILE, &old);
  const char *why = ms_last_error();
  if (st != MS_OK) CHECK(count_files() == files && count_maps() == 0 && !s);
  if (st != MS_OK) return strstr(why, "descriptors") || strstr(why, "open files") ? 10 : 11;
  return who >= 2 || end(s) ? 0 : 12;
}

/* The writer needs two for its memory, and so does the reader; for links, one to listen at and one to call. */
static void descriptors(void) {
  int status[FORKS];
  for (who = 0; who < 4; who++)
    for (few = who >= 2; few <= 2; few++) { /* without any, no link would be asked for */
      int enough = few >= 2 || (who == 3 && few == 1);
      test_forks(2, 5, few_files, status);
      int at = WEXITSTATUS(status[who % 2]), other = WEXITSTATUS(status[1 - who % 2]);
      CHECK(WIFEXITED(status[0]) && WIFEXITED(status[1]));
      CHECK(at == (enough ? 0 : 10));
      if (enough || who >= 2)
        CHECK(other == at);
      else
        CHECK(other == 11 || other == 12); /* it has ended */
    }
}

/* Calls at every socket of ours that is there, as somebody who does not know the secret. */
static int strangers[64], called;

static void call_at_all(void) {
  char line[512];
  FILE *f = fopen("/proc/net/unix", "r");
  while (f && fgets(line, sizeof line, f) && called < 60) {
    char *name = strstr(line, "@moonstill-");
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char hello[20] = "whatever it is"; /* and the rank that is awaited */
    hello[16] = 1;
    if (!name) continue;
    name[strcspn(name, "\n")] = 0;
    strcpy(at.sun_path + 1, name + 1);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (connect(fd, (struct sockaddr *)&at,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name))) < 0) {
      close(fd);
      continue;
    }
    if (called % 3) send(fd, hello, called % 3 == 1 ? sizeof hello : 5, MSG_NOSIGNAL);
    strangers[called++] = fd;
  }
  if (f) fclose(f);
}

static int strange(ms_group *g) {
  if (g->rank == 1) fork_hook = call_at_all;
  ms_slots *s = pair(g, 2, NULL);
  fork_hook = NULL;
  if (!s) return 1;
  if (g->rank == 1) CHECK(called > 0);
  for (int i = 0; i < called; i++) {
    char byte[8];
    CHECK(recv(strangers[i], byte, sizeof byte, 0) <= 0);
    close(strangers[i]);
  }
  if (g->rank == 0 && !give(s, 0, 1)) return 2;
  if (g->rank == 1 && (!take(s, 0, 1) || ms_slots_release(s, NULL) != MS_OK)) return 3;
  return end(s) ? 0 : 4;
}

static int refuses(ms_group *g) {
  static const int32_t twice[] = {1, 1}, third[] = {3}, own[] = {0};
  ms_slots *s = NULL;
  if (ms_links_open(g, &links) != MS_OK) return 1;
  if (g->rank) return 0;
  CHECK(!ms_links_has(links, 0) && ms_links_has(links, 1));
  ms_slots_plan p = {.readers = 2, .reader = twice, .depth = 2, .bytes = MOST};
  CHECK(ms_slots_make(links, &p, 0, &s) == MS_EINVAL && !s);
  p.readers = 1, p.reader = third;
  CHECK(ms_slots_make(links, &p, 0, &s) == MS_EINVAL && strstr(ms_last_error(), "rank 3 of 2"));
  p.reader = own, p.depth = MS_SLOTS_DEPTH + 1;
  CHECK(ms_slots_make(links, &p, 0, &s) == MS_EINVAL);
  p.depth = 1, p.bytes = 0;
  CHECK(ms_slots_make(links, &p, 0, &s) == MS_EINVAL);
  p.bytes = 1, p.writer = 1;
  CHECK(ms_slots_make(links, &p, 0, &s) == MS_EINVAL && !s);
  CHECK(ms_slots_join(links, 0, 0, NULL, &s) == MS_EINVAL && !s);
  return 0;
}

/* Slots of which nobody asked for the first ones. */
static int forgets(ms_group *g) {
  int files, count = 0;
  int64_t live;
  ms_slots *s[3] = {NULL};
  static const int32_t reader[] = {1};
  ms_slots_plan p = {.readers = 1, .reader = reader, .depth = 2, .bytes = MOST};
  if (ms_links_open(g, &links) != MS_OK) return 1;
  files = count_files();
  live = ms_test_live();
  for (int i = 0; i < 3; i++)
    if (g->rank == 0 && ms_slots_make(links, &p, i / 2, &s[i]) != MS_OK) return 2;
  if (g->rank == 1 && ms_slots_join(links, 0, 1, NULL, &s[2]) != MS_OK) return 3;
  if (g->rank == 1) CHECK(count_files() == files + 4);
  ms_links_forget(links, 0);
  CHECK(count_files() == files);
  if (g->ops->barrier(g) != MS_OK) return 4;
  for (int i = 0; i < 3; i++) {
    count += s[i] != NULL;
    ms_slots_free(s[i]);
  }
  CHECK(count == (g->rank ? 1 : 3) && ms_test_live() == live);
  return 0;
}

static int can_part;

/* Rank 2 is in a network of its own. */
static int apart(ms_group *g) {
  int32_t machine[3] = {-1, -1, -1};
  if (g->rank == 2 && unshare(CLONE_NEWNET) < 0) return 1;
  CHECK(ms_group_machines(g, machine) == MS_OK);
  CHECK(machine[0] == 0 && machine[1] == 0 && machine[2] == 2);
  if (ms_links_open(g, &links) != MS_OK) return 2;
  CHECK(ms_links_has(links, 0) == (g->rank == 1) && ms_links_has(links, 1) == (g->rank == 0));
  CHECK(!ms_links_has(links, 2) && !ms_links_has(links, g->rank));
  return 0;
}

static void leftovers(void) {
  TEST("neither descriptors nor memory are left");
  test_forks(2, 20, leaves_nothing, NULL);
  TEST("no memory on one rank is an error on all, and nothing is left open");
  all_memory();
  TEST("no memory for slots is an error that may be mended");
  test_forks(2, 20, no_slots, NULL);
  TEST("who lacks descriptors says so");
  descriptors();
  TEST("who does not know the secret gets nothing, and does not disturb");
  test_forks(2, 20, strange, NULL);
  TEST("slots that cannot be are refused, and those that nobody asks for dropped");
  test_forks(2, 20, refuses, NULL);
  test_forks(2, 20, forgets, NULL);
  pid_t p = fork(); /* whether one may have a network of its own */
  if (!p) _exit(unshare(CLONE_NEWNET) != 0);
  int status;
  waitpid(p, &status, 0);
  can_part = status == 0;
  if (!can_part) return;
  TEST("ranks that cannot reach each other have machines of their own");
  test_forks(3, 20, apart, NULL);
}

/* ---- launched by MPI ---- */

/* All ranks of one colour, in groups of their own; messages name ranks of the world. */
static int launched(void) {
  ms_group *w = NULL, *g = NULL;
  int32_t machine[16];
  if (ms_group_world(&w) != MS_OK || ms_group_split(w, w->rank % 2, -w->rank, &g) != MS_OK)
    return 1;
  CHECK(ms_group_machines(w, machine) == MS_OK && machine[w->size - 1] == 0);
  int code = cross(w);
  if (!code) code = cross(g);
  if (!code) code = pass(g);
  ms_slots *s = code ? NULL : pair(g, 1, NULL);
  if (s) CHECK(s->name[0] == ms_exchange_rank(g, 1) && s->name[1] == ms_exchange_rank(g, 0));
  if (s) CHECK(ms_exchange_rank(g, g->rank) == w->rank);
  if (s && !end(s)) code = 7;
  if (code) printf("rank %d: %d: %s\n", w->rank, code, ms_last_error());
  return code || test_bad;
}

int main(int argc, char **argv) {
  if (test_is_rank()) {
    test_name = "launched";
    return launched();
  }
  passing();
  lateness();
  deaths();
  time_outs();
  leftovers();
  if (test_has_mpirun()) {
    TEST("the same among ranks of MPI, and of parts of its group");
    CHECK(!test_ranks(argv[0], 4, "", "MS_GROUP_CHECK=1", NULL));
  }
  test_close();
  int skipped = !can_part + !test_has_mpirun();
  if (!can_part) printf("skipped: ranks apart: no network of its own may be made here\n");
  if (!test_has_mpirun()) printf("skipped: ranks of MPI: there is no mpirun\n");
  printf("%d passed, %d failed, %d skipped\n", test_passed, test_failed, skipped);
  return test_failed > 0;
}

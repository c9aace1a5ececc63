/* watch.c - a page for each rank of a job, in memory that the ranks of a machine share: which call it
 * is in, and whether it waits. So a rank that waits in vain can say what the others wait in. Pages of
 * other machines' ranks say what was last heard of them (beat.c).
 *
 * A rank that computes uses the processor. While one that is awaited does, a wait may last. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../base/memory.h"
#include "exchange.h"

typedef struct page {
  _Atomic uint32_t version;  /* odd while the page is written */
  _Atomic int32_t pid;       /* 0: a rank of another machine */
  _Atomic double heard;      /* of such a rank: when; 0: never */
  _Atomic uint32_t beat;     /* the version that was heard of */
  _Atomic int64_t used;      /* ticks of the processor that it had used */
  _Atomic int32_t failed;    /* in the first page: a rank of this machine has said why it ends */
  _Atomic uint32_t messages; /* how many are done */
  int32_t waits, ended;      /* in a call; for good */
  double since;
  ms_call call;
} page;

static page *pages; /* NULL: nobody is seen */
static int32_t me, ranks;

static const char *const slot_waits[] = {"begin", "take", "finish"}; /* from MS_CALL_BEGIN */
static const char *const dtypes[] = {
    [MS_F32] = "f32", [MS_BF16] = "bf16", [MS_F16] = "f16", [MS_I32] = "i32",
    [MS_I64] = "i64", [MS_U8] = "u8",     [MS_F64] = "f64"};

const char *ms_call_text(const ms_call *c, char *text) {
  if (c->op >= MS_CALL_BEGIN) {
    sprintf(text, "%s of block %lld, for rank %d", slot_waits[c->op - MS_CALL_BEGIN],
            (long long)c->number, c->peer);
    return text;
  }
  char *p = text + sprintf(text, "%s", ms_group_call(c->op));
  if (c->op == MS_CALL_ALL_REDUCE || c->op == MS_CALL_REDUCE_SCATTER)
    p += sprintf(p, " (%s)", c->how == MS_SUM ? "sum" : "max");
  if (c->op != MS_CALL_BARRIER && c->op != MS_CALL_ALL_TO_ALL)
    p += sprintf(p, " of %lld %s", (long long)c->count, dtypes[c->dtype]);
  if (c->peer >= 0) p += sprintf(p, " %s rank %d", c->op == MS_CALL_SEND ? "to" : "from", c->peer);
  if (c->number) p += sprintf(p, ", call %lld", (long long)c->number);
  sprintf(p, " of group %d", c->group);
  return text;
}

/* What ended is not awaited, although MPI may use the processor until the others end as well. */
static void end_page(void) {
  if (!pages || atomic_load(&pages[me].pid) != getpid()) return;
  atomic_fetch_add(&pages[me].version, 1);
  pages[me].waits = pages[me].ended = 1;
  atomic_fetch_add(&pages[me].version, 1);
}

/* The file is removed at once: the memory lives as long as a rank has it. `name` is new, so what is
 * there was made by a rank of this job. */
ms_status ms_watch_open(const char *name, int32_t rank, int32_t size) {
  char path[128];
  size_t bytes = (size_t)size * sizeof(page);
  snprintf(path, sizeof path, "/dev/shm/moonstill-%s", name);
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return MS_OK; /* no such place here: nobody is seen */
  void *p = MAP_FAILED;
  if (ftruncate(fd, (off_t)bytes) == 0)
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (p == MAP_FAILED) return MS_OK;
  pages = p;
  me = rank;
  ranks = size;
  atomic_store(&pages[me].pid, (int32_t)getpid());
  atexit(end_page); /* before MPI's, which was entered earlier */
  return MS_OK;
}

void ms_watch_close(const char *name) {
  char path[128];
  snprintf(path, sizeof path, "/dev/shm/moonstill-%s", name);
  unlink(path); /* several ranks do: the first one removes it */
}

int32_t ms_watch_first(void) {
  for (int32_t r = 0; pages && r < ranks; r++)
    if (atomic_load(&pages[r].pid)) return r;
  return -1;
}

static void write_page(const ms_call *c, int waits) {
  if (!pages) return;
  page *p = &pages[me];
  atomic_fetch_add(&p->version, 1);
  p->call = *c;
  p->waits = waits;
  p->since = ms_clock();
  atomic_fetch_add(&p->version, 1);
}

void ms_watch_call(const ms_call *c) { write_page(c, 0); }
void ms_watch_waits(const ms_call *c, int waits) { write_page(c, waits); }

void ms_watch_progress(void) {
  if (pages) atomic_fetch_add(&pages[me].messages, 1);
}

/* What a rank's page says: 0 where it has none, or is just writing it. */
static int read_page(int32_t rank, page *out) {
  page *p = &pages[rank];
  uint32_t version = atomic_load(&p->version);
  if ((!atomic_load(&p->pid) && atomic_load(&p->heard) == 0) || version % 2) return 0;
  memcpy(out, p, sizeof *out);
  atomic_thread_fence(memory_order_acquire);
  return atomic_load(&p->version) == version;
}

int ms_watch_fails(void) {
  if (!pages) return -1;
  if (atomic_exchange(&pages[0].failed, 1)) return 0;
  return atomic_load(&pages[0].pid) ? 1 : -1;
}

/* Ticks of the processor that a process has used; -1 where that cannot be seen. */
static int64_t used(int32_t pid) {
  char path[64], line[512], *p;
  long long user, system;
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE *f = fopen(path, "r");
  if (!f) return -1;
  size_t n = fread(line, 1, sizeof line - 1, f);
  fclose(f);
  line[n] = 0;
  p = strrchr(line, ')'); /* the name before it may hold anything */
  if (!p ||
      sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lld %lld", &user, &system) != 2)
    return -1;
  return user + system;
}

int ms_watch_beat(int32_t rank, ms_beat *out) {
  page p;
  if (!atomic_load(&pages[rank].pid) || !read_page(rank, &p)) return 0;
  *out = (ms_beat){.rank = rank,
                   .waits = p.waits,
                   .version = p.version,
                   .messages = p.messages,
                   .used = used(p.pid),
                   .call = p.call};
  return 1;
}

void ms_watch_heard(const ms_beat *b) {
  if (b->rank < 0 || b->rank >= ranks || atomic_load(&pages[b->rank].pid)) return;
  page *p = &pages[b->rank];
  if (atomic_load(&p->heard) == 0 || atomic_load(&p->beat) != b->version) {
    atomic_fetch_add(&p->version, 1);
    p->call = b->call;
    p->waits = b->waits;
    atomic_fetch_add(&p->version, 1);
  }
  atomic_store(&p->beat, b->version);
  atomic_store(&p->messages, b->messages);
  atomic_store(&p->used, b->used);
  atomic_store(&p->heard, ms_clock());
}

enum { MOST_SEEN = 64 };
enum { STUCK = 30 }; /* seconds: a network may stand still for moments */

/* Whether a rank that does not wait has used the processor since the last look. */
static int somebody_works(void) {
  static int64_t before[MOST_SEEN];
  int works = 0;
  for (int32_t r = 0; r < ranks && r < MOST_SEEN; r++) {
    page p;
    if (r == me || !read_page(r, &p) || p.waits) continue;
    int64_t now = p.pid ? used(p.pid) : p.used;
    works |= now > before[r];
    before[r] = now;
  }
  return works;
}

/* "rank 0 waits in ..; rank 1 .." */
static ms_status describe(const char *what) {
  char *text = NULL, call[MS_CALL_TEXT];
  void *memory = NULL;
  size_t room = (size_t)ranks * (MS_CALL_TEXT + 64), at = 0;
  MS_TRY(ms_alloc(room, "a message", &memory));
  text = memory;
  for (int32_t r = 0; r < ranks; r++) {
    page p;
    if (!read_page(r, &p)) continue;
    at += (size_t)snprintf(
        text + at, room - at, "%srank %d %s %s", at ? "; " : "", r,
        p.ended   ? "has ended after"
        : p.waits ? "waits in"
                  : "does something else since",
        p.call.number || (p.waits && !p.ended) ? ms_call_text(&p.call, call) : "its start");
  }
  ms_status st = MS_FAIL(MS_EGROUP, "group: %s: %s", what, text);
  ms_free(text);
  return st;
}

enum { FRESH = 10 }; /* seconds for which what was heard holds */

/* Whether all ranks wait, but for those that have ended. */
static int all_wait(double now) {
  for (int32_t r = 0; r < ranks; r++) {
    page p;
    if (!read_page(r, &p) || !p.waits || (!p.pid && now - p.heard > FRESH)) return 0;
  }
  return 1;
}

/* Whether any rank of this machine has begun a call, or got a message, since the last look. */
static int somebody_goes_on(void) {
  static uint64_t before;
  uint64_t now = 0;
  for (int32_t r = 0; r < ranks; r++)
    now += atomic_load(&pages[r].version) + (uint64_t)atomic_load(&pages[r].messages);
  int goes_on = now != before;
  before = now;
  return goes_on;
}

ms_status ms_watch_look(double since, double timeout) {
  static double idle;  /* since when nobody works or goes on */
  static double stuck; /* since when all wait as well */
  double now = ms_clock();
  if (idle < since) idle = since;
  if (stuck < since) stuck = since;
  if (!pages) {
    if (now - since < timeout) return MS_OK;
    return MS_FAIL(MS_EGROUP, "group: nothing came for %.0f s (MS_GROUP_TIMEOUT)", timeout);
  }
  int goes_on = somebody_goes_on();
  if (somebody_works() || goes_on) idle = now;
  if (goes_on || !all_wait(now)) stuck = now;
  if (now - stuck >= (timeout < STUCK ? timeout : STUCK))
    return describe("no rank goes on, since every rank waits for another");
  if (now - idle < timeout) return MS_OK;
  char what[96];
  snprintf(what, sizeof what, "nothing came for %.0f s (MS_GROUP_TIMEOUT)", now - idle);
  return describe(what);
}

/* groups.c - groups of several ranks. The program starts itself under mpirun, with 1 to 6 ranks; each
 * checks what it gets against what it must be, which all know. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/base/memory.h"
#include "core/group/exchange.h"
#include "tests/support/test.h"

static ms_group *world;

/* What rank r has at place i: of a kind that sums differ by their order. */
static float value(int32_t r, int64_t i) {
  uint32_t h = (uint32_t)(i * 2654435761u) ^ (uint32_t)(r + 1) * 40503u;
  h ^= h >> 13;
  return ldexpf((float)(int32_t)(h * 1664525u), -31 + (int)(h % 24) - 12);
}

static float reduced(int32_t size, int64_t i, ms_reduction how) {
  float a = value(0, i);
  for (int32_t r = 1; r < size; r++) a = how == MS_SUM ? a + value(r, i) : fmaxf(a, value(r, i));
  return a;
}

static float *numbers(ms_group *g, int64_t n) {
  float *x = malloc((size_t)n * sizeof *x + 1);
  for (int64_t i = 0; i < n; i++) x[i] = value(g->rank, i);
  return x;
}

static int same(float a, float b) { return !memcmp(&a, &b, sizeof a); }

static void all_reduce(ms_group *g, int64_t n, ms_reduction how) {
  float *x = numbers(g, n);
  CHECK(g->ops->all_reduce(g, NULL, x, MS_F32, n, how, NULL) == MS_OK);
  int right = 1;
  for (int64_t i = 0; i < n; i++) right &= same(x[i], reduced(g->size, i, how));
  CHECK(right);
  free(x);
}

/* Bits do not depend on how a buffer is cut. */
static void cut(ms_group *g) {
  enum { N = 5000 };
  float *x = numbers(g, N);
  ms_work *work[8];
  int count = 0;
  for (int64_t at = 0; at < N; count++) {
    int64_t n = at + 701 * (count + 1) > N ? N - at : 701 * (count + 1);
    CHECK(g->ops->all_reduce(g, NULL, x + at, MS_F32, n, MS_SUM, &work[count]) == MS_OK);
    at += n;
  }
  for (int i = count - 1; i >= 0; i--) { /* in whatever order they are waited for */
    int done = 0;
    while (!done && i % 2) CHECK(ms_work_test(work[i], &done) == MS_OK);
    CHECK(ms_work_wait(work[i]) == MS_OK);
  }
  int right = 1;
  for (int64_t i = 0; i < N; i++) right &= same(x[i], reduced(g->size, i, MS_SUM));
  CHECK(right);
  free(x);
}

/* Unequal parts, of which some are empty. */
static int64_t parts(int32_t size, int64_t *count, int kind) {
  int64_t n = 0;
  for (int32_t r = 0; r < size; r++) {
    count[r] = kind == 0 ? 7 * r : kind == 1 ? (r == size - 1) * 900 : 1 + (r * 37) % 5;
    n += count[r];
  }
  return n;
}

static void scatter_and_gather(ms_group *g, int kind) {
  int64_t count[64], n = parts(g->size, count, kind), own = 0;
  for (int32_t r = 0; r < g->rank; r++) own += count[r];
  float *x = numbers(g, n);
  int right = 1;
  CHECK(g->ops->reduce_scatter(g, NULL, x, MS_F32, count, MS_SUM, NULL) == MS_OK);
  for (int64_t i = own; i < own + count[g->rank]; i++)
    right &= same(x[i], reduced(g->size, i, MS_SUM));
  CHECK(right);
  for (int64_t i = 0; i < n; i++)
    if (i < own || i >= own + count[g->rank]) x[i] = NAN;
  CHECK(g->ops->all_gather(g, NULL, x, MS_F32, count, NULL) == MS_OK);
  for (int64_t i = 0; i < n; i++) right &= same(x[i], reduced(g->size, i, MS_SUM));
  CHECK(right);
  free(x);
}

static void broadcast(ms_group *g, int32_t root, int64_t n) {
  float *x = numbers(g, n);
  int right = 1;
  CHECK(g->ops->broadcast(g, NULL, x, MS_F32, n, root, NULL) == MS_OK);
  for (int64_t i = 0; i < n; i++) right &= same(x[i], value(root, i));
  CHECK(right);
  free(x);
}

/* Rank a sends rank b (a + 2 b) % 5 numbers. */
static void all_to_all(ms_group *g) {
  int64_t count[64], count_y[64], n = 0, m = 0, at = 0;
  for (int32_t r = 0; r < g->size; r++) {
    n += count[r] = (g->rank + 2 * r) % 5;
    m += count_y[r] = (r + 2 * g->rank) % 5;
  }
  float *x = malloc((size_t)n * sizeof *x + 1), *y = malloc((size_t)m * sizeof *y + 1);
  for (int32_t r = 0; r < g->size; r++)
    for (int64_t i = 0; i < count[r]; i++) x[at++] = value(g->rank, 100 * r + i);
  CHECK(g->ops->all_to_all(g, NULL, x, count, y, count_y, MS_F32, NULL) == MS_OK);
  int right = 1;
  at = 0;
  for (int32_t r = 0; r < g->size; r++)
    for (int64_t i = 0; i < count_y[r]; i++) right &= same(y[at++], value(r, 100 * g->rank + i));
  CHECK(right);
  free(x);
  free(y);
}

/* A ring, with the receiver's call first and with the sender's. */
static void ring(ms_group *g) {
  int32_t next = (g->rank + 1) % g->size, before = (g->rank + g->size - 1) % g->size;
  for (int late = 0; late < 2; late++) {
    int32_t x[2] = {g->rank, 7}, y[2] = {-1, -1};
    ms_work *sent, *got;
    if (late) CHECK(g->ops->send(g, NULL, x, MS_I32, 2, next, &sent) == MS_OK);
    CHECK(g->ops->receive(g, NULL, y, MS_I32, 2, before, &got) == MS_OK);
    if (!late) CHECK(g->ops->send(g, NULL, x, MS_I32, 2, next, &sent) == MS_OK);
    CHECK(ms_work_wait(got) == MS_OK && ms_work_wait(sent) == MS_OK);
    CHECK(y[0] == before && y[1] == 7);
  }
}

#define OF_TYPE(type, dtype, sum, largest)                                       \
  do {                                                                           \
    type x_[3] = {(type)(w->rank + 1), (type)(3 - w->rank), (type)w->rank};      \
    type y_[3] = {x_[0], x_[1], x_[2]};                                          \
    CHECK(w->ops->all_reduce(w, NULL, x_, dtype, 3, MS_SUM, NULL) == MS_OK);     \
    CHECK(w->ops->all_reduce(w, NULL, y_, dtype, 3, MS_MAX, NULL) == MS_OK);     \
    CHECK(x_[0] == (type)(sum) && y_[0] == (type)(largest) && y_[1] == (type)3); \
  } while (0)

static void types(ms_group *w) {
  int n = w->size;
  OF_TYPE(double, MS_F64, n *(n + 1) / 2, n);
  OF_TYPE(int32_t, MS_I32, n * (n + 1) / 2, n);
  OF_TYPE(int64_t, MS_I64, n * (n + 1) / 2, n);
  uint8_t b[2] = {(uint8_t)(w->rank + 1), 200};
  CHECK(w->ops->all_reduce(w, NULL, b, MS_U8, 2, MS_SUM, NULL) == MS_OK);
  CHECK(b[0] == n * (n + 1) / 2 && b[1] == (uint8_t)(200 * n));
  int32_t low[] = {-5 - w->rank};
  CHECK(w->ops->all_reduce(w, NULL, low, MS_I32, 1, MS_MAX, NULL) == MS_OK && low[0] == -5);
  /* 256 + 1 is not a bf16: only a sum in f32 of all keeps the ones */
  uint16_t h[] = {w->rank ? 0x3f80 : 0x4380}; /* 1, 256 */
  CHECK(w->ops->all_reduce(w, NULL, h, MS_BF16, 1, MS_SUM, NULL) == MS_OK);
  CHECK(h[0] == (n < 3 ? 0x4380 : n < 4 ? 0x4381 : n < 5 ? 0x4382 : 0x4382));
  float f[] = {w->rank == n - 1 ? NAN : 1};
  CHECK(w->ops->all_reduce(w, NULL, f, MS_F32, 1, MS_MAX, NULL) == MS_OK && isnan(f[0]));
  CHECK(w->ops->all_reduce(w, NULL, f, MS_F16, 1, MS_MAX, NULL) == MS_EINVAL);
}

/* Odd and even ranks, in reverse order; within them pairs; and nobody. */
static void splits(ms_group *w) {
  ms_group *half = NULL, *pair = NULL, *none = w;
  CHECK(w->ops->split(w, w->rank % 2, -w->rank, &half) == MS_OK);
  int32_t size = (w->size + (w->rank + 1) % 2) / 2;
  CHECK(half->size == size && half->rank == size - 1 - w->rank / 2);
  int32_t x = w->rank;
  CHECK(half->ops->broadcast(half, NULL, &x, MS_I32, 1, 0, NULL) == MS_OK);
  CHECK(x == w->rank % 2 + 2 * (size - 1));
  all_reduce(half, 1000, MS_SUM);
  CHECK(half->ops->split(half, half->rank / 2, 0, &pair) == MS_OK);
  scatter_and_gather(pair, 2);
  all_reduce(w, 33, MS_SUM); /* the other groups are still there */
  CHECK(w->ops->split(w, -1, 0, &none) == MS_OK && !none);
}

/* Nobody comes out before the last one has come in; the clock is the machine's. */
static void barrier(ms_group *w) {
  for (int32_t late = 0; late < w->size; late++) {
    if (w->rank == late) nanosleep(&(struct timespec){0, 20000000}, NULL);
    double in = ms_clock();
    CHECK(w->ops->barrier(w) == MS_OK);
    double out = ms_clock();
    CHECK(w->ops->all_reduce(w, NULL, &in, MS_F64, 1, MS_MAX, NULL) == MS_OK && out >= in);
  }
}

/* All of it again, in messages of a few bytes, of odd numbers: as those of more than MS_MESSAGE_BYTES are
 * cut. Offsets and counts of 64 bits are what else there is to a call of more than 2^31 elements. */
static void in_pieces(ms_group *w) {
  int64_t count[64], before = ms_group_sent(w, MS_CALL_ALL_GATHER, MS_F32);
  for (int64_t most = 7; most < 200; most = most * 5 + 2) {
    ms_test_messages(most);
    all_reduce(w, 501, MS_SUM);
    cut(w);
    for (int kind = 0; kind < 3; kind++) scatter_and_gather(w, kind);
    broadcast(w, w->size - 1, 700);
    all_to_all(w);
    if (w->size > 1) ring(w);
    types(w);
  }
  ms_test_messages(MS_MESSAGE_BYTES);
  int64_t sent = ms_group_sent(w, MS_CALL_ALL_GATHER, MS_F32) - before, own = 0;
  for (int kind = 0; kind < 3; kind++) {
    parts(w->size, count, kind);
    own += count[w->rank] * (w->size - 1) * (int64_t)sizeof(float);
  }
  CHECK(sent == 3 * own); /* 7, 37, 187 bytes */
}

static int all(void) {
  ms_group *w = world;
  TEST("sums and largest numbers, to the bit in order of ranks");
  for (int64_t n = 0; n < 4; n++) all_reduce(w, n, MS_SUM);
  all_reduce(w, (3 << 20) + 5, MS_SUM); /* several messages a part */
  all_reduce(w, 4099, MS_MAX);
  TEST("the same bits, however a buffer is cut and in whatever order it is waited for");
  cut(w);
  TEST("unequal and empty parts");
  for (int kind = 0; kind < 3; kind++) scatter_and_gather(w, kind);
  TEST("what any rank has, for all");
  for (int32_t root = 0; root < w->size; root++) broadcast(w, root, 3 + 1000 * root);
  broadcast(w, 0, 0);
  TEST("each rank's part for each other");
  all_to_all(w);
  TEST("single messages");
  if (w->size > 1) ring(w);
  TEST("types");
  types(w);
  TEST("groups of some ranks");
  splits(w);
  TEST("a barrier");
  barrier(w);
  TEST("messages that are cut");
  in_pieces(w);
  return test_end();
}

/* By hand (groups huge): two ranks, 2^31 + 4097 bytes, which each has once. */
static int huge(ms_group *g) {
  int64_t n = ((int64_t)1 << 31) + 4097, wrong = 0;
  uint8_t *x = malloc((size_t)n);
  TEST("a message of more than 2^31 elements");
  for (int64_t i = 0; x && i < n; i++) x[i] = g->rank ? 0 : (uint8_t)(i * 7 + (i >> 20));
  CHECK(x && g->ops->broadcast(g, NULL, x, MS_U8, n, 0, NULL) == MS_OK);
  for (int64_t i = 0; x && i < n; i++) wrong += x[i] != (uint8_t)(i * 7 + (i >> 20));
  CHECK(!wrong);
  if (g->rank == 0) CHECK(g->ops->send(g, NULL, x, MS_U8, n, 1, NULL) == MS_OK);
  if (g->rank == 1) {
    memset(x, 0, (size_t)n);
    CHECK(g->ops->receive(g, NULL, x, MS_U8, n, 0, NULL) == MS_OK);
    for (int64_t i = 0; i < n; i++) wrong += x[i] != (uint8_t)(i * 7 + (i >> 20));
    CHECK(!wrong);
  }
  CHECK(g->ops->barrier(g) == MS_OK);
  free(x);
  return test_end();
}

/* ---- faults: each rank does something else ---- */

/* Calls under way differ: rank 0 must be told, although it waits for a later one than that, and although
 * the other rank, which has seen it as well, does not end. */
static ms_status part_ways(ms_group *g) {
  static float x[2][8];
  static int64_t count[8] = {8};
  ms_work *work[2] = {0};
  if (g->rank) {
    ms_status st = g->ops->all_gather(g, NULL, x, MS_F32, count, NULL);
    sleep(4);
    return st == MS_OK ? MS_FAIL(MS_EGROUP, "another call than the other rank's is done") : MS_OK;
  }
  double since = ms_clock();
  ms_status st = g->ops->all_reduce(g, NULL, x[0], MS_F32, 8, MS_SUM, &work[0]);
  if (st == MS_OK) st = g->ops->all_reduce(g, NULL, x[1], MS_F32, 8, MS_SUM, &work[1]);
  if (st == MS_OK) st = ms_work_wait(work[1]);
  return ms_clock() - since < 2 ? st : MS_OK;
}

static ms_status mistake(const char *what) {
  ms_group *g = world, *pair;
  float x[8] = {0};
  int64_t count[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  int first = g->rank == 0;
  if (!strcmp(what, "count"))
    return g->ops->all_reduce(g, NULL, x, MS_F32, first ? 7 : 8, MS_SUM, NULL);
  if (!strcmp(what, "dtype"))
    return g->ops->all_reduce(g, NULL, x, first ? MS_I32 : MS_F32, 8, MS_SUM, NULL);
  if (!strcmp(what, "root")) return g->ops->broadcast(g, NULL, x, MS_F32, 8, !first, NULL);
  if (!strcmp(what, "operation"))
    return first ? g->ops->all_gather(g, NULL, x, MS_F32, count, NULL) : g->ops->barrier(g);
  if (!strcmp(what, "group")) { /* one is in the pair's call, the other in that of all */
    if (g->ops->split(g, 0, 0, &pair) != MS_OK) return MS_OK;
    return pair->ops->barrier(first ? pair : g);
  }
  if (!strcmp(what, "missing")) /* the first one is done, and sleeps: nobody works */
    return first ? (sleep(30), MS_OK) : g->ops->barrier(g);
  if (!strcmp(what, "gone")) return first ? MS_OK : g->ops->barrier(g);
  if (!strcmp(what, "parted")) return part_ways(g);
  if (!strcmp(what, "busy")) { /* no hang: longer than the time-out, but at work */
    for (double since = ms_clock(); first && ms_clock() - since < 4;) x[0] += 1;
    return g->ops->barrier(g);
  }
  return MS_EINVAL;
}

static int run(const char *self, int ranks, const char *what, const char *environment) {
  char command[1024];
  snprintf(command, sizeof command,
           "MS_MPI_LIB=${MS_MPI_LIB:-%s/../moonstill-mpi.so} OMPI_ALLOW_RUN_AS_ROOT=1 "
           "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_pml=ob1 OMP_NUM_THREADS=1 %s timeout 60 "
           "$(command -v orterun || command -v mpirun) --oversubscribe --bind-to none -q -np %d "
           "'%s/groups' %s 2>&1",
           self, environment, ranks, self, what);
  FILE *p = popen(command, "r");
  char line[4096];
  static char text[1 << 16];
  size_t n = 0;
  text[0] = 0;
  while (p && fgets(line, sizeof line, p))
    if (n + strlen(line) < sizeof text) n += (size_t)sprintf(text + n, "%s", line);
  int status = p ? pclose(p) : -1;
  if (!strcmp(what, "")) {
    if (status) printf("%s", text);
    return status == 0;
  }
  if (getenv("MS_SHOW")) printf("# %s, %s: %s", what, environment, text);
  return strstr(text, "group: ") != NULL;
}

static int launch(const char *program) {
  char self[1024];
  snprintf(self, sizeof self, "%.*s", (int)(strrchr(program, '/') - program), program);
  if (system("(command -v orterun || command -v mpirun) >/dev/null")) {
    printf("skipped 1: no mpirun here\n0 passed, 0 failed, 1 skipped\n");
    return 0;
  }
  for (int ranks = 1; ranks <= 6; ranks++) {
    char name[64];
    snprintf(name, sizeof name, "%d ranks", ranks);
    TEST(name);
    CHECK(run(self, ranks, "", ""));
    CHECK(run(self, ranks, "", "MS_GROUP_CHECK=1"));
  }
  TEST("calls that differ are an error that names both");
  const char *const compared[] = {"count", "dtype", "root", "operation"};
  for (int i = 0; i < 4; i++) CHECK(run(self, 2, compared[i], "MS_GROUP_CHECK=1"));
  TEST("where no rank goes on, that is an error, which says where each is");
  CHECK(run(self, 2, "group", "MS_GROUP_TIMEOUT=3"));
  CHECK(run(self, 3, "group", "MS_GROUP_TIMEOUT=3"));
  TEST("ranks whose calls under way differ are told, whatever they wait for");
  CHECK(run(self, 2, "parted", "MS_GROUP_CHECK=1 MS_GROUP_TIMEOUT=3"));
  TEST("a rank that has ended is not waited for");
  CHECK(run(self, 2, "gone", "MS_GROUP_TIMEOUT=2"));
  TEST("a rank that does nothing is not waited for; one that works is");
  CHECK(run(self, 2, "missing", "MS_GROUP_TIMEOUT=2"));
  CHECK(!run(self, 2, "busy", "MS_GROUP_TIMEOUT=2"));
  return test_end();
}

int main(int argc, char **argv) {
  if (!getenv("OMPI_COMM_WORLD_SIZE")) return launch(argv[0]);
  int64_t live = ms_test_live();
  if (ms_group_world(&world) != MS_OK) {
    printf("%s\n", ms_last_error());
    return 1;
  }
  if (argc < 2) return all();
  if (!strcmp(argv[1], "huge")) return huge(world);
  ms_status st = mistake(argv[1]);
  if (st == MS_OK) return 0;
  printf("rank %d: %s\n", world->rank, ms_last_error());
  fflush(stdout);
  ms_group_abort(1);
  return live > 0;
}

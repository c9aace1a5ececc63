/* slots.c - the turns of a writer and its readers, in every order in which they and their devices can
 * take their steps.
 *
 * A side is a program of operations, whose steps are taken one by one; a device does what is queued on its
 * stream whenever it likes. From every state all next ones are tried. In none may a block be read that is
 * not the one that was meant, none may be stuck, and the writer's memory goes last. Then the same with a
 * side that is killed at any point, and with a number that is lost at any point. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/base/memory.h"
#include "core/group/slots.h"
#include "tests/support/test.h"

enum { SIDES = 3, DEPTH = 3, EVENTS = DEPTH * SIDES, QUEUE = 32 };

/* What a stream has still to do. */
enum { NOTHING, WRITES, READS, RECORDS, WAITS };
typedef struct task {
  uint8_t kind, at, half, value; /* at: a slot or an event; value: a block, or how many records */
} task;

/* Sides: 0 writes, the others read. Numbers are small, so that states are equal where they mean the same. */
typedef struct state {
  ms_slots side[SIDES];
  struct ms_slots_writer writer;
  struct ms_slots_reader reader[SIDES - 1];
  task queue[SIDES][QUEUE];
  uint8_t place[SIDES], step[SIDES]; /* in its program; of the operation */
  uint8_t done[SIDES];               /* blocks written, or read */
  uint8_t recorded[EVENTS], fired[EVENTS];
  uint8_t memory[DEPTH][2]; /* the block in each half of a slot; 0: none */
  uint8_t closed[SIDES];    /* has no memory of others' any more */
  uint8_t dead[SIDES];      /* killed, or ended by an error */
  uint8_t harmed;           /* there was a kill or a loss */
} state;

typedef struct trial {
  const char *program[SIDES];
  int sides, depth;
  int queues;              /* 0: memory of the host, where what is queued is done at once */
  int kills, loses, fails; /* fails: a side may end by an error although nothing happened */
  int64_t states, ends;
  int wrong, stuck, early, failed, unnamed;
} trial;

static trial *now;
static state world;
static ms_slots_control control;
static ms_backing backing[SIDES];

/* ---- devices ---- */

static int is_done(const task *t) { return t->kind != WAITS || world.fired[t->at] >= t->value; }

static void do_task(const task *t) {
  if (t->kind == WRITES) world.memory[t->at][t->half] = t->value;
  if (t->kind == READS && world.memory[t->at][t->half] != t->value) now->wrong++;
  if (t->kind == RECORDS) world.fired[t->at] = t->value;
}

static void queue(int side, task t) {
  if (!now->queues) {
    if (!is_done(&t)) now->stuck++;
    do_task(&t);
    return;
  }
  for (int i = 0; i < QUEUE; i++)
    if (!world.queue[side][i].kind) {
      world.queue[side][i] = t;
      return;
    }
  abort();
}

static int run_device(int side) {
  task *q = world.queue[side];
  if (!q[0].kind || !is_done(&q[0])) return 0;
  task t = q[0];
  memmove(q, q + 1, (QUEUE - 1) * sizeof *q);
  q[QUEUE - 1] = (task){0};
  do_task(&t);
  return 1;
}

static int side_of(ms_stream *on) { return (int)(intptr_t)on - 1; }

static ms_status record(ms_backing *b, int32_t event, ms_stream *on) {
  queue(side_of(on), (task){RECORDS, (uint8_t)event, 0, ++world.recorded[event]});
  return MS_OK;
}

static ms_status wait_event(ms_backing *b, int32_t event, ms_stream *on) {
  queue(side_of(on), (task){WAITS, (uint8_t)event, 0, world.recorded[event]});
  return MS_OK;
}

static void close_backing(ms_backing *b) { world.closed[b - backing] = 1; }

static const ms_backing_ops device = {
    .name = "device", .record = record, .wait = wait_event, .close = close_backing};

/* ---- sides ---- */

static void touch(int side, int kind) {
  uint8_t block = ++world.done[side];
  for (uint8_t half = 0; half < 2; half++)
    queue(side, (task){(uint8_t)kind, (uint8_t)((block - 1) % now->depth), half, block});
}

/* A process that ends is missed by those who have a socket to it. */
static void end_side(int side) {
  world.dead[side] = 1;
  memset(world.queue[side], 0, sizeof world.queue[side]);
  for (int s = 0; s < now->sides; s++)
    if ((s == 0) != (side == 0)) world.side[s].ended[side == 0 ? now->sides - 1 : side - 1] = 1;
}

static int is_over(int side) { return world.dead[side] || !now->program[side][world.place[side]]; }

/* Takes a side's next step; 0: it cannot. */
static int run_side(int side) {
  static const char names[] = "bgtrf"; /* in the order of MS_SLOTS_BEGIN .. */
  if (is_over(side)) return 0;
  char c = now->program[side][world.place[side]];
  if (c == 'w' || c == 'x') {
    touch(side, c == 'w' ? WRITES : READS);
    world.place[side]++;
    return 1;
  }
  if (c == 'f' && !world.step[side] && world.queue[side][0].kind) return 0;
  int can = 1;
  int32_t peer = -1;
  ms_slots_step *step = ms_slots_steps[strchr(names, c) - names][world.step[side]];
  if (step(&world.side[side], (ms_stream *)(intptr_t)(side + 1), &can, &peer) != MS_OK) {
    now->failed++;
    if (!world.harmed && !now->fails) now->stuck++;
    if (!strstr(ms_last_error(), "rank ") && !strstr(ms_last_error(), "lost")) now->unnamed++;
    end_side(side);
    return 1;
  }
  if (!can) return 0;
  if (++world.step[side] < 2) return 1;
  world.step[side] = 0;
  world.place[side]++;
  for (int s = 1; s < now->sides && c == 'f' && side == 0; s++)
    if (!world.closed[s] && !world.dead[s]) now->early++;
  return 1;
}

/* ---- what else may happen ---- */

/* Loses the number-th number of those that the sides share: it is 0, or what it was before, or nonsense. */
static int lose(int number, int how) {
  int slot = number % now->depth, owner = number / now->depth;
  _Atomic uint64_t *at =
      owner == 0 ? &control.writer.announced[slot] : &control.reader[owner - 1].released[slot];
  uint64_t is = *at, depth = (uint64_t)now->depth;
  uint64_t lost = how == 0 ? 0 : how == 1 && is > depth ? is - depth : how == 2 ? 99 : is;
  if (lost == is) return 0;
  *at = lost;
  world.harmed = 1;
  return 1;
}

/* Does the number-th thing that may happen next; -1: there is no such thing, 0: not now. */
static int happen(int number) {
  int sides = now->sides;
  if (number < sides) return run_side(number);
  if ((number -= sides) < sides) return run_device(number);
  number -= sides;
  if (now->kills) {
    if (number >= sides) return -1;
    if (world.harmed || is_over(number)) return 0;
    world.harmed = 1;
    end_side(number);
    return 1;
  }
  if (!now->loses || number >= 3 * sides * now->depth) return -1;
  return world.harmed ? 0 : lose(number / 3, number % 3);
}

static void keep(state *s) {
  world.writer = control.writer;
  memcpy(world.reader, control.reader, sizeof world.reader);
  *s = world;
}

static void restore(const state *s) {
  world = *s;
  control.writer = world.writer;
  memcpy(control.reader, world.reader, sizeof world.reader);
}

/* ---- all states ---- */

static uint64_t *seen;
static size_t room, used;

/* Whether a state is new; it is then known. */
static int is_new(const state *s) {
  uint64_t hash = XXH3_64bits(s, sizeof *s) | 1;
  if (2 * used >= room) {
    uint64_t *old = seen;
    size_t n = room;
    room = room ? 2 * room : 1 << 16;
    seen = calloc(room, sizeof *seen);
    used = 0;
    for (size_t i = 0; i < n; i++) {
      if (!old[i]) continue;
      size_t at = old[i] % room;
      while (seen[at]) at = (at + 1) % room;
      seen[at] = old[i];
      used++;
    }
    free(old);
  }
  size_t at = hash % room;
  for (; seen[at]; at = (at + 1) % room)
    if (seen[at] == hash) return 0;
  seen[at] = hash;
  used++;
  return 1;
}

static void explore(const state *from) {
  int moved = 0, over = 1;
  now->states++;
  for (int i = 0;; i++) {
    restore(from);
    int did = happen(i);
    if (did < 0) break;
    if (!did) continue;
    moved |= i < 2 * now->sides;
    state *to = malloc(sizeof *to);
    keep(to);
    if (is_new(to)) explore(to);
    free(to);
  }
  if (moved) return;
  restore(from);
  for (int s = 0; s < now->sides; s++) over &= is_over(s);
  now->ends++;
  if (!over) now->stuck++;
}

static void try_all(trial *t) {
  t->states = t->ends = 0;
  int32_t ranks[SIDES - 1] = {1, 2};
  ms_slots_plan plan = {
      .writer = 0, .readers = t->sides - 1, .reader = ranks, .depth = t->depth, .bytes = 1};
  state *first = malloc(sizeof *first);
  now = t;
  memset(&world, 0,
         sizeof world); /* what is between its fields too, since states are compared by it */
  memset(&control, 0, sizeof control);
  for (int s = 0; s < t->sides; s++) {
    ms_slots *made = NULL;
    backing[s] = (ms_backing){.ops = &device};
    CHECK(ms_slots_new(&plan, s, &control, &backing[s], &made) == MS_OK);
    memcpy(&world.side[s], made, sizeof *made);
    ms_free(made);
  }
  keep(first);
  CHECK(is_new(first));
  explore(first);
  free(first);
  free(seen);
  seen = NULL;
  room = used = 0;
}

static void check_sound(const trial *t) {
  CHECK(!t->wrong);
  CHECK(!t->stuck);
  CHECK(!t->early);
  CHECK(!t->unnamed);
}

/* Each block is written and read whole. */
static const char writer[] = "bwgbwgbwgf", in_turn[] = "txrtxrtxrf", held[] = "ttxxrtrxrf";

static void orders(void) {
  TEST("in every order of steps and of devices, each reader reads each block");
  trial all = {.program = {writer, in_turn, in_turn}, .sides = 3, .depth = 2, .queues = 1};
  try_all(&all);
  check_sound(&all);
  CHECK(!all.failed);
  CHECK(all.ends >= 1 && all.states > 50000);

  TEST("so with one slot, with more than blocks, and for a reader that holds two");
  for (int depth = 1; depth <= 3; depth++) {
    trial one = {.program = {writer, in_turn}, .sides = 2, .depth = depth, .queues = 1};
    try_all(&one);
    check_sound(&one);
    CHECK(!one.failed && one.ends >= 1);
    if (depth < 2) continue;
    one.program[1] = held;
    try_all(&one);
    check_sound(&one);
    CHECK(!one.failed);
  }

  TEST("a reader that stops early drops the rest; a writer that does ends the others' waits");
  trial stops = {.program = {writer, in_turn, "txrf"}, .sides = 3, .depth = 2, .queues = 1};
  try_all(&stops);
  check_sound(&stops);
  CHECK(!stops.failed);
  stops.program[2] = "f";
  try_all(&stops);
  check_sound(&stops);
  CHECK(!stops.failed);
  trial leaves = {.program = {"bwgf", in_turn}, .sides = 2, .depth = 2, .fails = 1};
  try_all(&leaves);
  check_sound(&leaves);
  CHECK(leaves.failed);
}

static void faults(void) {
  TEST("a side that is killed at any step ends the waits of all, and nothing wrong is read");
  trial kills = {.program = {writer, in_turn, held}, .sides = 3, .depth = 2, .kills = 1};
  try_all(&kills);
  check_sound(&kills);
  CHECK(kills.failed > 100);

  TEST("a number that is lost at any step ends them too");
  trial loses = {.program = {writer, in_turn, in_turn}, .sides = 3, .depth = 2, .loses = 1};
  try_all(&loses);
  check_sound(&loses);
  CHECK(loses.failed > 100);
}

int main(void) {
  int64_t live = ms_test_live();
  orders();
  faults();
  TEST("nothing is left");
  CHECK(ms_test_live() == live);
  return test_end();
}

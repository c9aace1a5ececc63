/* slots_races.c - a writer and its readers as threads of one process, built with the sanitizer that finds
 * races: what one side writes, the other ones read by the numbers' order alone. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/group/slots.h"
#include "tests/support/test.h"

enum { READERS = 2, DEPTH = 3, BLOCKS = 2000, NUMBERS = 512 };

static ms_slots_control control;
static ms_slots *side[1 + READERS];
static int wrong[1 + READERS];

static ms_status is_done(ms_backing *b, int32_t event, ms_stream *on) { return MS_OK; }
static void close_nothing(ms_backing *b) {}

static const ms_backing_ops memory = {
    .name = "memory", .record = is_done, .wait = is_done, .stays = 1, .close = close_nothing};

static void *write_blocks(void *of) {
  for (int b = 1; b <= BLOCKS; b++) {
    void *x = NULL;
    if (ms_slots_begin(side[0], NULL, &x) != MS_OK) wrong[0]++;
    for (int i = 0; i < b % NUMBERS; i++) ((int32_t *)x)[i] = b + i;
    if (ms_slots_give(side[0], NULL, b % NUMBERS * 4) != MS_OK) wrong[0]++;
  }
  if (ms_slots_finish(side[0]) != MS_OK) wrong[0]++;
  return NULL;
}

static void *read_blocks(void *of) {
  int me = (int)(intptr_t)of;
  for (int b = 1; b <= BLOCKS; b++) {
    const void *x = NULL;
    int64_t bytes = 0;
    if (ms_slots_take(side[me], NULL, &x, &bytes) != MS_OK) wrong[me]++;
    if (bytes != b % NUMBERS * 4) wrong[me]++;
    for (int i = 0; i < b % NUMBERS; i++)
      if (((const int32_t *)x)[i] != b + i) wrong[me]++;
    if (ms_slots_release(side[me], NULL) != MS_OK) wrong[me]++;
  }
  if (ms_slots_finish(side[me]) != MS_OK) wrong[me]++;
  return NULL;
}

int main(void) {
  static _Alignas(64) char slots[DEPTH * 4096];
  static ms_backing backing[1 + READERS];
  static const int32_t reader[READERS] = {1, 2};
  ms_slots_plan plan = {.readers = READERS, .reader = reader, .depth = DEPTH, .bytes = NUMBERS * 4};
  pthread_t thread[1 + READERS];
  TEST("what a writer and its readers share is ordered by the numbers");
  for (int i = 0; i <= READERS; i++) {
    backing[i] = (ms_backing){&memory, slots, sizeof slots};
    CHECK(ms_slots_new(&plan, i, &control, &backing[i], &side[i]) == MS_OK);
    CHECK(!pthread_create(&thread[i], NULL, i ? read_blocks : write_blocks, (void *)(intptr_t)i));
  }
  for (int i = 0; i <= READERS; i++) pthread_join(thread[i], NULL);
  for (int i = 0; i <= READERS; i++) {
    CHECK(!wrong[i]);
    ms_slots_free(side[i]);
  }
  return test_end();
}

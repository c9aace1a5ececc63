/* head.c - what only C sees of the fused head: targets without rows, heads that are held, workspace
 * that is kept between calls and stays within its budget. */
#include <math.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/loss/head.h"
#include "tests/support/test.h"

enum { ROWS = 6, VOCAB = 40, WIDTH = 8 };

static int held;
static void hold(void *owner, int by) { held += by; }

static float hidden[ROWS * WIDTH], head[VOCAB * WIDTH];
static ms_head_weights weights = {
    .w = head, .dtype = MS_F32, .vocab = VOCAB, .width = WIDTH, .scale = 1};
static ms_device *dev;

static void fill(void) {
  for (int i = 0; i < ROWS * WIDTH; i++) hidden[i] = (float)(i * 7 % 11 - 5) / 4;
  for (int i = 0; i < VOCAB * WIDTH; i++) head[i] = (float)(i * 5 % 13 - 6) / 8;
}

static ms_target *target(int kind, int64_t rows) {
  ms_target_options o = {kind, kind == MS_TARGET_TOPK ? 4 : 0, MS_ON_ALL, MS_BF16, 0, 1, 1};
  ms_target *t = NULL;
  CHECK(ms_target_make(dev, &o, rows, ms_act_f32(hidden), &weights, 0, NULL, hold, &held, &t) ==
        MS_OK);
  CHECK(ms_target_rows(t) == rows);
  return t;
}

/* CE and a KL against `t`, over all rows that `weight` gives. */
static ms_head_call call_of(const ms_target *t, ms_term *term, ms_term_result *result, int64_t rows,
                            const int32_t *label, const float *weight) {
  term[0] = (ms_term){.kind = MS_TERM_CE, .on = MS_ON_ALL, .weight = 1, .t_scale = NAN};
  term[1] = (ms_term){.kind = MS_TERM_KD,
                      .on = MS_ON_ALL,
                      .weight = 1,
                      .t_scale = NAN,
                      .parameter = NAN,
                      .temperature = 1,
                      .target = t};
  return (ms_head_call){.dev = dev,
                        .head = weights,
                        .rows = rows,
                        .hidden = ms_act_f32(hidden),
                        .label = label,
                        .weight = {NULL, weight},
                        .terms = 2,
                        .term = term,
                        .result = result};
}

static void hidden_targets_hold_their_head(void) {
  TEST("hidden targets hold their head");
  for (int kind = MS_TARGET_TOPK; kind <= MS_TARGET_LOGITS; kind++) {
    held = 0;
    ms_target *t = target(kind, ROWS);
    CHECK(held == (kind == MS_TARGET_HIDDEN));
    ms_target_free(t);
    CHECK(held == 0);
  }
  ms_target_free(NULL);
}

static void no_rows(void) {
  TEST("no rows");
  float none[ROWS] = {0}, d_hidden[ROWS * WIDTH], d_head[VOCAB * WIDTH];
  int32_t label[ROWS] = {0};
  ms_term term[2];
  ms_term_result result[2];
  for (int kind = MS_TARGET_TOPK; kind <= MS_TARGET_LOGITS; kind++) {
    ms_target *t = target(kind, 0);
    for (int64_t rows = 0; rows <= ROWS; rows += ROWS) {
      ms_head_call c = call_of(t, term, result, rows, label, none);
      for (int i = 0; i < ROWS * WIDTH; i++) d_hidden[i] = 7;
      for (int i = 0; i < VOCAB * WIDTH; i++) d_head[i] = 3;
      c.d_hidden = ms_act_f32(d_hidden);
      c.d_head = d_head;
      result[1].value = 5;
      CHECK(ms_head_learn(&c) == MS_OK);
      CHECK(result[0].value == 0 && result[1].value == 0 && result[1].rows == 0);
      for (int i = 0; i < ROWS * WIDTH; i++) CHECK(d_hidden[i] == (rows ? 0 : 7));
      for (int i = 0; i < VOCAB * WIDTH; i++) CHECK(d_head[i] == 3); /* added to, not set */
    }
    ms_target_free(t);
  }
}

static void workspace(void) {
  TEST("workspace: kept between calls, within its budget");
  int32_t label[ROWS] = {1, 2, 3, 4, 5, 39};
  ms_term term[2];
  ms_term_result first[2], again[2];
  float d_hidden[ROWS * WIDTH];
  ms_target *t = target(MS_TARGET_HIDDEN, ROWS);
  ms_head_call c = call_of(t, term, first, ROWS, label, NULL);
  ms_head_workspace space = {0};
  c.d_hidden = ms_act_f32(d_hidden);
  c.workspace = &space;
  for (int64_t budget = 2048; budget <= 1 << 20; budget *= 2) {
    c.budget = budget;
    CHECK(ms_head_workspace_bytes(&c) <= budget);
  }
  c.budget = 2048;
  CHECK(ms_head_learn(&c) == MS_OK);
  CHECK((int64_t)space.bytes == ms_head_workspace_bytes(&c));
  void *data = space.data;
  int64_t live = ms_test_live();
  c.result = again;
  CHECK(ms_head_learn(&c) == MS_OK);
  CHECK(space.data == data && ms_test_live() == live);
  CHECK(!memcmp(first, again, sizeof first));
  CHECK(first[1].rows == ROWS && first[1].value >= 0 && first[1].value < 1e-4);
  c.budget = 1 << 20; /* grows */
  CHECK(ms_head_learn(&c) == MS_OK);
  CHECK((int64_t)space.bytes == ms_head_workspace_bytes(&c) && space.bytes > 2048);
  ms_head_workspace_free(&space);
  CHECK(!space.data && !space.host && ms_test_live() == live - 2);
  ms_head_workspace_free(&space);
  ms_target_free(t);
}

int main(void) {
  if (ms_device_open("cpu", &dev) != MS_OK) return 1;
  fill();
  hidden_targets_hold_their_head();
  no_rows();
  workspace();
  ms_device_close(dev);
  return test_end();
}

/* passes.c - passes of one model that are alive at once: each has activations of its own, and those
 * of passes that have ended serve the next. */
#include <string.h>

#include "core/model/decoder.h"
#include "tests/support/test.h"

enum { VOCAB = 11, HIDDEN = 8, LAYERS = 2, ROWS = 3 };
static const char config[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 11, \"hidden_size\": 8, \"intermediate_size\": 12,"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 1,"
    " \"max_position_embeddings\": 600, \"tie_word_embeddings\": true, \"rms_norm_eps\": 1e-5,"
    " \"hidden_act\": \"silu\", \"initializer_range\": 0.3}";

typedef struct given {
  int32_t token[500], position[500], start[2], row[ROWS];
} given;

static ms_pass new_pass(ms_model *m, given *g, int32_t tokens, int32_t seed) {
  for (int32_t t = 0; t < tokens; t++) {
    g->token[t] = (t * 7 + seed) % VOCAB;
    g->position[t] = t;
  }
  g->start[0] = 0, g->start[1] = tokens;
  for (int32_t r = 0; r < ROWS; r++) g->row[r] = tokens - ROWS + r;
  return (ms_pass){.model = m,
                   .tokens = tokens,
                   .segments = 1,
                   .token = g->token,
                   .position = g->position,
                   .segment_start = g->start,
                   .rows = ROWS,
                   .row = g->row};
}

/* The backward pass of a gradient of ones. */
static void go_back(ms_pass *pass) {
  float *d = ms_pass_d_hidden(pass).at;
  for (int i = 0; i < ROWS * HIDDEN; i++) d[i] = 1;
  CHECK(ms_pass_backward(pass) == MS_OK);
}

static int idle(const ms_model *m) {
  int n = 0;
  for (const struct ms_activations *a = m->act; a; a = a->next) n += !a->busy;
  return n;
}

static void do_not_disturb(ms_model *m) {
  static given one, two;
  static float alone[4096], want[ROWS * HIDDEN];
  ms_act hidden, other;
  TEST("a pass between another's forward and backward changes nothing of it");
  CHECK(m->gradient_bytes <= sizeof alone);
  ms_pass a = new_pass(m, &one, 40, 1), b = new_pass(m, &two, 300, 2);
  CHECK(ms_pass_forward(&a, &hidden) == MS_OK);
  memcpy(want, hidden.at, sizeof want);
  go_back(&a);
  memcpy(alone, m->gradient_arena, m->gradient_bytes);
  CHECK(ms_model_zero_gradients(m) == MS_OK);
  CHECK(ms_pass_forward(&a, &hidden) == MS_OK);
  CHECK(ms_pass_forward(&b, &other) == MS_OK);
  CHECK(a.act != b.act && !memcmp(want, hidden.at, sizeof want));
  go_back(&a);
  CHECK(!memcmp(alone, m->gradient_arena, m->gradient_bytes));
  ms_pass_end(&a);
  ms_pass_end(&b);
  CHECK(!a.act && !b.act && idle(m) == 2);
}

static void serve_again(ms_model *m) {
  static given one, two;
  ms_act hidden;
  size_t bytes = ms_activations_bytes(m);
  TEST("activations of passes that have ended serve the next: the smallest that is large enough");
  for (int i = 0; i < 3; i++) {
    ms_pass small = new_pass(m, &one, 30, 3), large = new_pass(m, &two, 290, 4);
    CHECK(ms_pass_forward(&small, &hidden) == MS_OK);
    CHECK(ms_pass_forward(&large, &hidden) == MS_OK);
    CHECK(small.act->bytes < large.act->bytes);
    ms_pass_end(&small);
    ms_pass_end(&large);
    CHECK(ms_activations_bytes(m) == bytes && idle(m) == 2);
  }
  TEST("where none is large enough the largest grows");
  ms_pass huge = new_pass(m, &one, 500, 5);
  CHECK(ms_pass_forward(&huge, &hidden) == MS_OK);
  size_t most = huge.act->bytes;
  ms_pass_end(&huge);
  ms_pass small = new_pass(m, &one, 30, 3);
  CHECK(ms_pass_forward(&small, &hidden) == MS_OK && small.act->bytes < most / 4);
  ms_pass_end(&small);
  CHECK(idle(m) == 2);
}

/* The device's own attention, but that what it is told is looked at. */
static const ms_ops *own;
static int64_t longest;

static ms_status look(ms_stream *s, ms_act y, float *lse, ms_act q, ms_act k, ms_act v,
                      const int32_t *segment_start, const ms_attention_shape *shape) {
  longest = shape->longest;
  return own->attention(s, y, lse, q, k, v, segment_start, shape);
}

static void tell_longest(ms_device *dev, ms_model *m) {
  static given g;
  static const int32_t start[4] = {0, 3, 25, 40};
  ms_ops looking = *(own = dev->ops);
  ms_act hidden;
  TEST("attention is told how long the longest segment is");
  ms_pass pass = new_pass(m, &g, 40, 1);
  pass.segments = 3;
  pass.segment_start = start;
  looking.attention = look;
  dev->ops = &looking;
  CHECK(ms_pass_forward(&pass, &hidden) == MS_OK && longest == 22);
  dev->ops = own;
  ms_pass_end(&pass);
}

int main(void) {
  ms_device *dev = NULL;
  ms_model *m = NULL;
  ms_model_options options = {.dtype = MS_F32, .train = 1};
  CHECK(ms_device_open("cpu", &dev) == MS_OK);
  CHECK(ms_model_create(dev, config, 1, &options, &m) == MS_OK);
  do_not_disturb(m);
  serve_again(m);
  tell_longest(dev, m);
  ms_model_free(m);
  ms_device_close(dev);
  return test_end();
}

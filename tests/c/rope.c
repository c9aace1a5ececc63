/* rope.c - the tables of cosines and sines, which Lua does not see, at positions where the rounding
 * of an angle counts: numbers that transformers 5.24 computes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/model/decoder.h"
#include "tests/support/test.h"

static const char config[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 8, \"hidden_size\": 16, \"intermediate_size\": 8, "
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 1, \"max_position_embeddings\": 32768}";

enum { HALF = 8 };
static const struct {
  int32_t position;
  double cosine[HALF], sine[HALF];
} wants[] = {{4097,
              {0.934771955, 0.316241026, 0.274268627, -0.729491115, -0.991653323, 0.925105929,
               -0.577276111, 0.271750063},
              {0.355248332, 0.948678911, 0.961653113, -0.6839903, -0.128932983, 0.379709154,
               -0.816549003, 0.962367892}},
             {19999,
              {0.929096937, -0.977349102, -0.27279824, -0.570380867, 0.478421926, 0.916905284,
               0.408994317, 0.999157369},
              {-0.369836241, -0.211633623, 0.96207124, -0.821380317, -0.878130078, 0.399104893,
               0.912536919, 0.0410428904}}};

static void compare(const ms_model *m, int32_t position, const double *cosine, const double *sine) {
  const ms_rope_tables *r = &m->rope;
  const float *c = r->table + (int64_t)position * HALF, *s = c + r->positions * HALF;
  for (int i = 0; i < HALF; i++) {
    /* a unit in the last place of f32, below 1 */
    CHECK(fabs(c[i] - cosine[i]) <= 0x1p-23);
    CHECK(fabs(s[i] - sine[i]) <= 0x1p-23);
  }
}

/* A model whose tables reach position 19999. */
static ms_status prepare(ms_device *dev, float scale, ms_model **out) {
  int32_t token = 1, position = 19999, start[2] = {0, 1}, row = 0;
  ms_status st = ms_model_create(dev, config, 1, NULL, out);
  if (st != MS_OK) return st;
  (*out)->config.rope_scale = scale;
  ms_pass pass = {.model = *out,
                  .tokens = 1,
                  .segments = 1,
                  .token = &token,
                  .position = &position,
                  .segment_start = start,
                  .rows = 1,
                  .row = &row,
                  .first = 1};
  st = ms_pass_prepare(&pass);
  ms_pass_end(&pass);
  return st;
}

int main(void) {
  ms_device *dev;
  ms_model *m, *scaled;
  if (ms_device_open("cpu", &dev) != MS_OK) return 1;
  TEST("angles are f32 products, their cosines and sines exact");
  CHECK(prepare(dev, 1, &m) == MS_OK && m->rope.positions > 19999);
  for (int i = 0; i < 2; i++) compare(m, wants[i].position, wants[i].cosine, wants[i].sine);
  TEST("a scale multiplies what was rounded");
  CHECK(prepare(dev, 1.1f, &scaled) == MS_OK);
  for (int64_t i = 0; i < 2 * m->rope.positions * HALF; i++)
    CHECK(scaled->rope.table[i] == m->rope.table[i] * 1.1f);
  ms_model_free(m);
  ms_model_free(scaled);
  ms_device_close(dev);
  CHECK(ms_test_live() == 0);
  return test_end();
}

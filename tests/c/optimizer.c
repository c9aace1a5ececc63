/* optimizer.c - what only C sees of the optimiser: how often a step waits for the device. */

#include "core/train/optimizer.h"
#include "tests/support/test.h"

static const char config[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 11, \"hidden_size\": 8, \"intermediate_size\": 12,"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 1,"
    " \"max_position_embeddings\": 16, \"tie_word_embeddings\": true, \"rms_norm_eps\": 1e-5,"
    " \"hidden_act\": \"silu\"}";

static ms_device *dev;
static ms_ops counting; /* the device's own operations, but that these are counted */
static const ms_ops *own;
static int reads;

static ms_status count_read(ms_stream *s, void *host, const void *device, size_t bytes) {
  reads++;
  return own->read(s, host, device, bytes);
}

static ms_model *new_model(int dtype) {
  ms_model_options how = {.dtype = dtype, .train = 1};
  ms_model *m;
  CHECK(ms_model_create(dev, config, 1, &how, &m) == MS_OK);
  return m;
}

static void fill_gradients(ms_model *m) {
  for (size_t i = 0; i < m->gradient_bytes / 4; i++)
    m->gradient_arena[i] = (float)((int)(i * 7 % 23) - 11) / 64;
}

int main(void) {
  static const ms_adamw_options options = {
      .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1, .clip = 1};
  ms_optimizer *opt;
  double norm;
  int32_t skipped;
  if (ms_device_open("cpu", &dev) != MS_OK) return 1;
  own = dev->ops;
  counting = *own;
  counting.read = count_read;

  TEST("a step waits for the device once, for the norm");
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) {
    ms_model *m = new_model(dtype);
    CHECK(ms_optimizer_new(m, &options, &opt) == MS_OK);
    fill_gradients(m);
    dev->ops = &counting;
    reads = 0;
    CHECK(ms_optimizer_step(opt, 0.1, &norm, &skipped) == MS_OK && norm > 1 && !skipped);
    CHECK(reads == 1);
    dev->ops = own;
    ms_optimizer_free(opt);
    ms_model_free(m);
  }
  ms_device_close(dev);
  return test_end();
}

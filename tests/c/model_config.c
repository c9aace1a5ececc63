/* model_config.c - what a config.json means: windows of layers and frequencies of rope, which Lua
 * does not see, against numbers that transformers 5.24 computes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/json.h"
#include "core/model/model.h"
#include "tests/support/test.h"

static ms_status parse(const char *text, ms_config *c) {
  json_t *json;
  if (ms_json_parse("test", text, strlen(text), &json) != MS_OK) abort();
  ms_status st = ms_config_read("test", json, c);
  json_decref(json);
  return st;
}

#define SIZES "\"hidden_size\": 64, \"num_attention_heads\": 4, "
static void frequencies(const char *name, const char *text, int n, const double *want) {
  ms_config c;
  TEST(name);
  if (parse(text, &c) != MS_OK) {
    printf("  %s\n", ms_last_error());
    CHECK(0);
    return;
  }
  CHECK(c.rotary == 2 * n && c.rope_scale == 1);
  for (int i = 0; i < n && i < c.rotary / 2; i++) CHECK(c.inv_freq[i] == (float)want[i]);
  ms_config_clear(&c);
}

static void rope(void) {
  static const double plain[] = {0x1p+0,        0x1.43d136p-2, 0x1.99999ap-4,  0x1.030dc6p-5,
                                 0x1.47ae14p-7, 0x1.9e7c7p-9,  0x1.0624dep-10, 0x1.4b96cp-12};
  static const double linear[] = {0x1.99999ap-2, 0x1.030dc4p-3, 0x1.47ae14p-5, 0x1.9e7c7p-7,
                                  0x1.0624dcp-8, 0x1.4b96cp-10, 0x1.a36e3p-12, 0x1.094566p-13};
  static const double part[] = {0x1p+0,        0x1.b93a6ap-3, 0x1.7c3d2ap-5,
                                0x1.47ae14p-7, 0x1.1a62d2p-9, 0x1.e6b4b8p-12};
  static const double llama3[] = {0x1p+0,         0x1.8d276p-3,  0x1.34119p-5,   0x1.ddee9ep-8,
                                  0x1.132ba4p-11, 0x1.1f91fp-15, 0x1.be2188p-18, 0x1.5a0f4ep-20};
  static const double small[] = {
      0x1p+0,         0x1.53c38cp-1,  0x1.c2ef78p-2, 0x1.2b3dc6p-2,  0x1.8d276p-3,   0x1.078d4p-3,
      0x1.5dc95ap-4,  0x1.d03ccep-5,  0x1.34119p-5,  0x1.98de92p-6,  0x1.0f5386p-6,  0x1.681adap-7,
      0x1.ddee9ep-8,  0x1.3d2804p-8,  0x1.a4ee4p-9,  0x1.524f36p-10, 0x1.c26c4p-12,  0x1.9731eep-14,
      0x1.46831ap-16, 0x1.b15902p-17, 0x1.1f91fp-17, 0x1.7da9e8p-18, 0x1.fa8b86p-19, 0x1.5024d6p-19,
      0x1.be2188p-20, 0x1.280d96p-20, 0x1.88ec2p-21, 0x1.04be68p-21, 0x1.5a0f4ep-22, 0x1.cb4a9ap-23,
      0x1.30c94ep-23, 0x1.94836p-24};
  frequencies("rope: by default", "{" SIZES "\"model_type\": \"llama\"}", 8, plain);
  frequencies("rope: linear, old spelling",
              "{" SIZES
              "\"model_type\": \"llama\", \"rope_scaling\": "
              "{\"type\": \"linear\", \"factor\": 2.5}}",
              8, linear);
  frequencies("rope: llama3, old spelling",
              "{" SIZES
              "\"model_type\": \"llama\", \"rope_theta\": 500000, \"rope_scaling\": "
              "{\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, "
              "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}}",
              8, llama3);
  frequencies("rope: llama3, new spelling; the context of training is by default the model's",
              "{" SIZES
              "\"model_type\": \"llama\", \"max_position_embeddings\": 8192, "
              "\"rope_parameters\": {\"rope_theta\": 500000.0, \"rope_type\": \"llama3\", "
              "\"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0}}",
              8, llama3);
  frequencies("rope: llama3 as Llama 3.2 1B has it",
              "{\"model_type\": \"llama\", \"hidden_size\": 128, \"num_attention_heads\": 2, "
              "\"rope_theta\": 500000.0, \"rope_scaling\": {\"rope_type\": \"llama3\", "
              "\"factor\": 32.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
              "\"original_max_position_embeddings\": 8192}}",
              32, small);
  frequencies("rope: part of a head, old spelling",
              "{" SIZES "\"model_type\": \"phi3\", \"partial_rotary_factor\": 0.75}", 6, part);
  frequencies("rope: part of a head, new spelling",
              "{" SIZES
              "\"model_type\": \"phi3\", \"rope_parameters\": "
              "{\"rope_type\": \"default\", \"partial_rotary_factor\": 0.75}}",
              6, part);
}

/* `want` has four windows. */
static void windows(const char *name, const char *text, int a, int b, int c, int d) {
  char all[1000];
  ms_config config;
  int want[] = {a, b, c, d};
  TEST(name);
  snprintf(all, sizeof all, "{" SIZES "\"num_hidden_layers\": 4, %s}", text);
  if (parse(all, &config) != MS_OK) {
    printf("  %s\n", ms_last_error());
    CHECK(0);
    return;
  }
  for (int i = 0; i < 4; i++) CHECK(config.window[i] == want[i]);
  ms_config_clear(&config);
}

#define QWEN "\"model_type\": \"qwen2\", \"num_key_value_heads\": 4, "
#define GEMMA "\"model_type\": \"gemma2\", "
#define MIXED                                                                            \
  "\"layer_types\": [\"sliding_attention\", \"full_attention\", \"sliding_attention\", " \
  "\"full_attention\"]"

static void sliding(void) {
  windows("llama has no window", "\"model_type\": \"llama\"", 0, 0, 0, 0);
  windows("mistral's default is 4096", "\"model_type\": \"mistral\", \"num_key_value_heads\": 2",
          4096, 4096, 4096, 4096);
  windows("null is none",
          "\"model_type\": \"mistral\", \"num_key_value_heads\": 2, \"sliding_window\": null", 0, 0,
          0, 0);
  windows("phi3's default is none", "\"model_type\": \"phi3\"", 0, 0, 0, 0);
  windows("phi3: all layers", "\"model_type\": \"phi3\", \"sliding_window\": 7", 7, 7, 7, 7);
  windows("qwen2 must ask for it", QWEN "\"sliding_window\": 7, \"max_window_layers\": 0", 0, 0, 0,
          0);
  windows("qwen2: from max_window_layers on",
          QWEN "\"use_sliding_window\": true, \"sliding_window\": 7, \"max_window_layers\": 3", 0,
          0, 0, 7);
  windows("qwen2: by default from 28 on, that is none of 4", QWEN "\"use_sliding_window\": true", 0,
          0, 0, 0);
  windows("gemma2: every other layer, from the first on", GEMMA "\"sliding_window\": 7", 7, 0, 7,
          0);
  windows("gemma2: layer_types count more",
          GEMMA
          "\"sliding_window\": 7, "
          "\"layer_types\": [\"full_attention\", \"full_attention\", \"sliding_attention\", "
          "\"sliding_attention\"]",
          0, 0, 7, 7);
  windows("qwen2: layer_types count more than max_window_layers",
          QWEN
          "\"use_sliding_window\": true, \"sliding_window\": 7, \"max_window_layers\": 4, " MIXED,
          7, 0, 7, 0);
}

static void multipliers(void) {
  ms_config c;
  TEST("granite's multipliers; logits_scaling divides");
  CHECK(
      parse("{\"model_type\": \"granite\", \"embedding_multiplier\": 12, \"residual_multiplier\": "
            "0.22, \"attention_multiplier\": 0.015625, \"logits_scaling\": 8}",
            &c) == MS_OK);
  CHECK(c.embed_scale == 12 && c.residual_scale == 0.22f && c.attention_scale == 0.015625f);
  CHECK(c.logit_scale == 0.125f && !c.embed_scale_in_dtype);
  ms_config_clear(&c);
  TEST("gemma2's caps may be null, and its scores are over the root of query_pre_attn_scalar");
  CHECK(parse("{\"model_type\": \"gemma2\", \"attn_logit_softcapping\": null, "
              "\"final_logit_softcapping\": null, \"query_pre_attn_scalar\": 144}",
              &c) == MS_OK);
  CHECK(c.attention_cap == 0 && c.logit_cap == 0 && c.attention_scale == 1.0f / 12);
  TEST("gemma's embedding is multiplied by what the weights' dtype makes of sqrt(hidden_size)");
  ms_model m = {.config = c, .dtype = MS_F32};
  m.config.embed_scale = sqrtf(3072);
  CHECK(ms_embed_scale(&m) == sqrtf(3072));
  m.dtype = MS_BF16;
  CHECK(ms_embed_scale(&m) == 55.5f);
  m.config.embed_scale_in_dtype = 0;
  CHECK(ms_embed_scale(&m) == sqrtf(3072));
  ms_config_clear(&c);
}

static void defaults(void) {
  static const struct {
    const char *type;
    int64_t vocab, width, inner, layers, heads, kv, head_dim, context;
    double eps;
  } want[] = {{"llama", 32000, 4096, 11008, 32, 32, 32, 128, 2048, 1e-6},
              {"mistral", 32000, 4096, 14336, 32, 32, 8, 128, 131072, 1e-6},
              {"qwen2", 151936, 4096, 22016, 32, 32, 32, 128, 32768, 1e-6},
              {"qwen3", 151936, 4096, 22016, 32, 32, 32, 128, 32768, 1e-6},
              {"phi3", 32064, 3072, 8192, 32, 32, 32, 96, 4096, 1e-5},
              {"gemma", 256000, 3072, 24576, 28, 16, 16, 256, 8192, 1e-6},
              {"gemma2", 256000, 2304, 9216, 26, 8, 4, 256, 8192, 1e-6},
              {"olmo2", 50304, 4096, 11008, 32, 32, 32, 128, 2048, 1e-5},
              {"granite", 32000, 4096, 11008, 32, 32, 32, 128, 2048, 1e-6}};
  for (int i = 0; i < 9; i++) {
    int gemma = i == 5 || i == 6;
    char text[80];
    ms_config c;
    TEST(want[i].type);
    snprintf(text, sizeof text, "{\"model_type\": \"%s\"}", want[i].type);
    CHECK(parse(text, &c) == MS_OK);
    CHECK(c.vocab == want[i].vocab && c.hidden_size == want[i].width &&
          c.intermediate_size == want[i].inner);
    CHECK(c.layers == want[i].layers && c.heads == want[i].heads && c.kv_heads == want[i].kv);
    CHECK(c.head_dim == want[i].head_dim && c.context == want[i].context);
    CHECK(c.eps == (float)want[i].eps && c.init_std == 0.02 && c.tied == gemma);
    CHECK(c.qkv_bias == (i == 2) && !c.o_bias && !c.mlp_bias);
    CHECK(c.qk_norm == (i == 3 ? MS_QK_NORM_HEADS : i == 7 ? MS_QK_NORM_WHOLE : 0));
    CHECK(c.activation == (gemma ? MS_GELU_TANH : MS_SILU) && c.norm_offset == (float)gemma);
    CHECK(c.embed_scale == (gemma ? sqrtf((float)want[i].width) : 1));
    CHECK(c.attention_scale == (i == 8 ? 1 : (float)(1 / sqrt((double)want[i].head_dim))));
    CHECK(c.attention_cap == (i == 6 ? 50 : 0) && c.logit_cap == (i == 6 ? 30 : 0));
    CHECK(c.residual_scale == 1 && c.logit_scale == 1);
    ms_config_clear(&c);
  }
  ms_config c;
  TEST("qwen3's head_dim is no quotient");
  CHECK(parse("{\"model_type\": \"qwen3\", \"hidden_size\": 1024}", &c) == MS_OK);
  CHECK(c.head_dim == 128);
  ms_config_clear(&c);
  TEST("num_key_value_heads null means as many as heads");
  CHECK(parse("{\"model_type\": \"mistral\", \"num_key_value_heads\": null}", &c) == MS_OK);
  CHECK(c.kv_heads == 32);
  ms_config_clear(&c);
}

int main(void) {
  defaults();
  multipliers();
  sliding();
  rope();
  return test_end();
}

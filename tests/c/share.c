/* share.c - how a model is cut over ranks: of every tensor each element is owned by one rank, and a rank
 * has in its part what it needs and nothing twice. */
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/group/group.h"
#include "core/model/model.h"
#include "tests/support/test.h"

static ms_device *dev;

static ms_model *part_of(const char *config, ms_group *group, int64_t vocab_cut) {
  ms_model_options o = {.dtype = -1, .tp = group, .vocab_cut = vocab_cut};
  ms_model *m;
  if (ms_model_create(dev, config, 1, &o, &m) == MS_OK) return m;
  printf("  %s\n", ms_last_error());
  return NULL;
}

/* Counts in `owners` the elements of the whole tensor that this rank owns; returns whether its part is
 * covered once, in order. */
static int count_runs(const ms_model *m, int32_t i, char *owners) {
  const ms_parameter *p = &m->parameter[i];
  int64_t whole_cols = p->rank == 2 ? p->whole[1] : 1, cols = p->rank == 2 ? p->shape[1] : 1;
  int64_t held = 0;
  ms_run run[MS_MAX_RUNS];
  int n = ms_share_runs(m, i, run), right = n <= MS_MAX_RUNS;
  for (int k = 0; k < n; k++) {
    right &= run[k].held == held && run[k].cols == cols && run[k].col + cols <= whole_cols;
    right &= run[k].rows > 0 && run[k].row + run[k].rows <= p->whole[0];
    held += run[k].rows;
    for (int64_t r = run[k].row; r < run[k].row + run[k].rows; r++)
      for (int64_t c = run[k].col; c < run[k].col + cols; c++)
        owners[r * whole_cols + c] += run[k].owned != 0;
  }
  return right && held == p->shape[0];
}

static int all_once(const char *owners, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (owners[i] != 1) return 0;
  return 1;
}

static void cut_over(const char *config, int32_t size, int64_t vocab_cut) {
  ms_model *part[8] = {0};
  for (int32_t r = 0; r < size; r++) {
    ms_group group = {.ops = ms_group_self()->ops, .rank = r, .size = size};
    part[r] = part_of(config, &group, vocab_cut);
    CHECK(part[r]);
    if (!part[r]) return;
    part[r]->share.group = NULL; /* it is gone with this round */
  }
  for (int32_t i = 0; i < part[0]->parameters; i++) {
    const ms_parameter *p = &part[0]->parameter[i];
    int64_t n = p->whole[0] * (p->rank == 2 ? p->whole[1] : 1);
    char *owners = calloc((size_t)n, 1);
    for (int32_t r = 0; r < size; r++) {
      ms_group group = {.rank = r, .size = size};
      part[r]->share.group = &group;
      CHECK(count_runs(part[r], i, owners));
      part[r]->share.group = NULL;
    }
    CHECK(all_once(owners, n));
    free(owners);
  }
  for (int32_t r = 0; r < size; r++) ms_model_free(part[r]);
}

#define SIZES(heads, kv, inner, vocab)                                 \
  "\"hidden_size\": 36, \"num_hidden_layers\": 2, \"head_dim\": 4, "   \
  "\"num_attention_heads\": " #heads ", \"num_key_value_heads\": " #kv \
  ", \"intermediate_size\": " #inner ", \"vocab_size\": " #vocab

static void every_size(void) {
  static const char *const config[] = {
      "{\"model_type\": \"llama\", " SIZES(9, 3, 50, 101) "}",
      "{\"model_type\": \"llama\", \"tie_word_embeddings\": true, " SIZES(6, 1, 7, 300) "}",
      "{\"model_type\": \"qwen2\", " SIZES(8, 4, 200, 97) "}",
      "{\"model_type\": \"qwen3\", " SIZES(7, 7, 33, 64) "}",
      "{\"model_type\": \"phi3\", \"pad_token_id\": 0, " SIZES(9, 3, 31, 40) "}",
      "{\"model_type\": \"olmo2\", " SIZES(9, 3, 129, 77) "}",
  };
  for (size_t i = 0; i < sizeof config / sizeof *config; i++) {
    TEST(config[i]);
    for (int32_t size = 1; size <= 6; size++) {
      cut_over(config[i], size, 0);
      cut_over(config[i], size, 60);
      cut_over(config[i], size, 400);
    }
  }
}

/* 9 heads that share 3 keys and values in threes, over 2 ranks: 4 and 5 heads, the middle one copied. */
static void inside_a_group_of_heads(void) {
  static const char config[] = "{\"model_type\": \"llama\", " SIZES(9, 3, 50, 101) "}";
  TEST("a border inside a group of heads");
  for (int32_t r = 0; r < 2; r++) {
    ms_group group = {.ops = ms_group_self()->ops, .rank = r, .size = 2};
    ms_model *m = part_of(config, &group, 0);
    CHECK(m && m->share.first_head == 4 * r && m->share.heads == 4 + r);
    CHECK(m && m->share.first_kv_head == r && m->share.kv_heads == 2);
    ms_model_free(m);
  }
}

static void too_many(void) {
  static const char config[] = "{\"model_type\": \"llama\", " SIZES(2, 1, 50, 101) "}";
  ms_group group = {.ops = ms_group_self()->ops, .rank = 0, .size = 3};
  TEST("more ranks than heads");
  CHECK(!part_of(config, &group, 0));
  CHECK(strstr(ms_last_error(), "over 3 ranks, but it has 2 heads"));
}

int main(void) {
  if (ms_device_open("cpu", &dev) != MS_OK) return 1;
  every_size();
  inside_a_group_of_heads();
  too_many();
  ms_device_close(dev);
  return test_end();
}

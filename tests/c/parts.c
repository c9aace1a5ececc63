/* parts.c - models cut over ranks, from folders and into them. The program starts itself under mpirun with
 * 1 to 4 ranks, which compare their parts with the whole model. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/memory.h"
#include "core/group/group.h"
#include "core/model/model.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

static ms_device *dev;
static ms_group *world;

#define SIZES(heads, kv, inner, vocab)                                 \
  "\"hidden_size\": 36, \"num_hidden_layers\": 3, \"head_dim\": 4, "   \
  "\"num_attention_heads\": " #heads ", \"num_key_value_heads\": " #kv \
  ", \"intermediate_size\": " #inner ", \"vocab_size\": " #vocab
#define PLAIN "{\"model_type\": \"llama\", " SIZES(9, 3, 50, 101) "}"
#define TIED "{\"model_type\": \"llama\", \"tie_word_embeddings\": true, " SIZES(6, 1, 7, 300) "}"
#define FUSED "{\"model_type\": \"phi3\", \"pad_token_id\": 0, " SIZES(9, 3, 31, 40) "}"

static const char *const configs[] = {PLAIN,
                                      TIED,
                                      FUSED,
                                      "{\"model_type\": \"qwen2\", " SIZES(8, 4, 200, 97) "}",
                                      "{\"model_type\": \"olmo2\", " SIZES(9, 3, 129, 77) "}",
                                      "{\"model_type\": \"gemma2\", " SIZES(4, 2, 48, 64) "}"};
enum { CONFIGS = sizeof configs / sizeof *configs };

static ms_model *created(const char *config, uint64_t seed, ms_group *tp, int dtype) {
  ms_model_options o = {.dtype = dtype, .tp = tp, .train = 1};
  ms_model *m = NULL;
  if (ms_model_create(dev, config, seed, &o, &m) != MS_OK) printf("  %s\n", ms_last_error());
  CHECK(m);
  return m;
}

static ms_model *opened(const char *path, ms_group *tp, int dtype, int64_t vocab_cut) {
  ms_model_options o = {.dtype = dtype, .tp = tp, .vocab_cut = vocab_cut};
  ms_model *m = NULL;
  if (ms_model_open(dev, path, &o, &m) != MS_OK) printf("  %s\n", ms_last_error());
  CHECK(m);
  return m;
}

/* Whether a part has the bits of the whole, as the runs say. */
static int is_part_of(const ms_model *part, const ms_model *whole) {
  if (!part || !whole || part->dtype != whole->dtype) return 0;
  size_t size = part->dtype == MS_BF16 ? 2 : 4;
  for (int32_t i = 0; i < part->parameters; i++) {
    const ms_parameter *p = &part->parameter[i], *q = &whole->parameter[i];
    int64_t cols = p->rank == 2 ? p->shape[1] : 1, width = p->rank == 2 ? p->whole[1] : 1;
    ms_run run[MS_MAX_RUNS];
    int n = ms_share_runs(part, i, run);
    for (int k = 0; k < n; k++)
      for (int64_t r = 0; r < run[k].rows; r++) {
        const char *a = (const char *)p->w + (size_t)((run[k].held + r) * cols) * size;
        const char *b = (const char *)q->w + (size_t)((run[k].row + r) * width + run[k].col) * size;
        if (memcmp(a, b, (size_t)cols * size)) return 0;
      }
  }
  return 1;
}

static void drawn(const char *config, int dtype) {
  ms_model *whole = created(config, 5, NULL, dtype), *part = created(config, 5, world, dtype);
  CHECK(is_part_of(part, whole));
  ms_model_free(part);
  ms_model_free(whole);
}

/* What a folder has as `stored`, in files of at most `shard` bytes, is held as `held`. */
static void read_from(const char *config, int stored, int held, int64_t shard) {
  ms_model *whole = created(config, 7, NULL, MS_F32);
  const char *path = "parts.tmp/read";
  if (!world->rank) CHECK(ms_model_save(whole, NULL, path, NULL, stored, shard) == MS_OK);
  CHECK(world->ops->barrier(world) == MS_OK);
  ms_model *all = opened(path, NULL, held, 0), *part = opened(path, world, held, 0);
  CHECK(is_part_of(part, all));
  ms_model *cut = opened(path, world, held, 60);
  CHECK(is_part_of(cut, all));
  CHECK(world->ops->barrier(world) == MS_OK);
  ms_model_free(cut);
  ms_model_free(part);
  ms_model_free(all);
  ms_model_free(whole);
}

static void copied(const char *config) {
  ms_model *whole = created(config, 5, NULL, MS_F32), *part = created(config, 5, world, MS_F32);
  ms_model *a = NULL, *b = NULL;
  const int32_t layer[] = {0, 2};
  ms_model_options other = {.dtype = -1, .vocab_cut = 50};
  CHECK(ms_model_copy(part, NULL, &a) == MS_OK && is_part_of(a, whole));
  CHECK(a && a->share.group == world);
  ms_model_free(a);
  CHECK(ms_model_shrink(part, layer, 2, NULL, &a) == MS_OK);
  CHECK(ms_model_shrink(whole, layer, 2, NULL, &b) == MS_OK);
  CHECK(is_part_of(a, b));
  ms_model_free(a);
  CHECK(ms_model_copy(part, &other, &a) == MS_EINVAL);
  ms_model_free(b);
  ms_model_free(part);
  ms_model_free(whole);
}

static int same_hash(const ms_model *a, const ms_model *b) {
  char *x = NULL, *y = NULL;
  CHECK(ms_model_hash(a, &x) == MS_OK && ms_model_hash(b, &y) == MS_OK);
  int same = x && y && strlen(x) == 32 && !strcmp(x, y);
  ms_text_free(x);
  ms_text_free(y);
  return same;
}

/* Turns the lowest bit of an element of the whole tensor, wherever a rank has it. */
static void turn(ms_model *m, int32_t i, int64_t row, int64_t col) {
  ms_parameter *p = &m->parameter[i];
  ms_run run[MS_MAX_RUNS];
  int n = ms_share_runs(m, i, run);
  for (int k = 0; k < n; k++) {
    if (row < run[k].row || row >= run[k].row + run[k].rows) continue;
    if (col < run[k].col || col >= run[k].col + run[k].cols) continue;
    int64_t at = (run[k].held + row - run[k].row) * run[k].cols + col - run[k].col;
    if (m->dtype == MS_BF16)
      ((uint16_t *)p->w)[at] ^= 1;
    else
      ((uint32_t *)p->w)[at] ^= 1;
  }
}

/* The hash is that of the whole model, before and after any one element changes. */
static void hashed(const char *config, int dtype) {
  ms_model *whole = created(config, 5, NULL, dtype), *part = created(config, 5, world, dtype);
  CHECK(same_hash(part, whole));
  for (int32_t i = 0; i < whole->parameters; i++) {
    const ms_parameter *p = &whole->parameter[i];
    int64_t cols = p->rank == 2 ? p->whole[1] : 1, row = i * 7 % p->whole[0], col = i * 5 % cols;
    turn(whole, i, row, col);
    CHECK(!same_hash(part, whole));
    turn(part, i, row, col);
    CHECK(same_hash(part, whole));
  }
  ms_model_free(part);
  ms_model_free(whole);
}

/* Equal values in other places are another model. */
static void hash_knows_places(void) {
  ms_model *a = created(PLAIN, 5, world, MS_F32), *b = created(PLAIN, 5, world, MS_F32);
  int32_t *x = a->parameter[1].w, *y = b->parameter[1].w;
  memset(x, 0, (size_t)a->parameter[1].count * sizeof *x);
  memset(y, 0, (size_t)b->parameter[1].count * sizeof *y);
  x[0] = y[1] = 0x3f800000;
  CHECK(!same_hash(a, b));
  ms_model_free(a);
  ms_model_free(b);
}

/* What is not finite in one rank's part is said by all, with its place in the whole tensor. */
static void checked(const char *config) {
  for (int32_t failing = 0; failing < world->size; failing++) {
    ms_model *m = created(config, 5, world, MS_F32);
    CHECK(ms_model_check_finite(m) == MS_OK);
    int32_t i = m->parameters - 2; /* a matrix of columns that are cut, or a norm after it */
    const ms_parameter *p = &m->parameter[i];
    ms_run run[MS_MAX_RUNS];
    char place[80], want[8 * 80] = "";
    ms_share_runs(m, i, run);
    int64_t width = p->rank == 2 ? p->whole[1] : 1;
    int64_t at = (run->row + run->rows - 1) * width + run->col + run->cols - 1;
    if (world->rank == failing) {
      ((float *)p->w)[run->rows * run->cols - 1] = INFINITY;
      snprintf(want, sizeof want, "'%s' holds NaN or infinity, first at %s", p->name,
               ms_place_text(p->rank, p->whole, at, place));
    }
    CHECK(world->ops->broadcast(world, NULL, want, MS_U8, sizeof want, failing, NULL) == MS_OK);
    CHECK(ms_model_check_finite(m) != MS_OK && strstr(ms_last_error(), want));
    ms_model_free(m);
  }
}

/* A folder that one rank cannot read is an error on all. */
static void seen_by_some(void) {
  ms_model *whole = created(PLAIN, 7, NULL, MS_F32), *part = NULL;
  const char *path = "parts.tmp/some";
  ms_model_options o = {.dtype = -1, .tp = world};
  if (!world->rank) CHECK(ms_model_save(whole, NULL, path, NULL, -1, 0) == MS_OK);
  CHECK(world->ops->barrier(world) == MS_OK);
  int last = world->rank == world->size - 1;
  CHECK(ms_model_open(dev, last ? "parts.tmp/none" : path, &o, &part) != MS_OK && !part);
  CHECK(strstr(ms_last_error(), "parts.tmp/none"));
  if (!last) CHECK(strstr(ms_last_error(), "rank "));
  CHECK(world->ops->barrier(world) == MS_OK);
  ms_model_free(whole);
}

/* What every rank does; the result is its exit status. */
static int all(void) {
  static const int dtypes[] = {MS_F32, MS_BF16, MS_F16};
  for (int i = 0; i < CONFIGS; i++) {
    TEST(configs[i]);
    drawn(configs[i], MS_F32);
    drawn(configs[i], MS_BF16);
    for (int d = 0; d < 3; d++) {
      read_from(configs[i], dtypes[d], MS_F32, 0);
      read_from(configs[i], dtypes[d], MS_BF16, 5000);
    }
    copied(configs[i]);
    hashed(configs[i], MS_F32);
    hashed(configs[i], MS_BF16);
    checked(configs[i]);
  }
  TEST("places count in a hash");
  hash_knows_places();
  TEST("a folder that one rank cannot see");
  seen_by_some();
  return test_end();
}

static int launch(const char *program) {
  if (!test_has_mpirun()) {
    printf("skipped 1: no mpirun here\n0 passed, 0 failed, 1 skipped\n");
    return 0;
  }
  char folder[] = "/tmp/parts.XXXXXX", self[4096], environment[4200];
  if (!realpath(program, self) || !mkdtemp(folder) || chdir(folder)) return 1;
  for (int ranks = 1; ranks <= 4; ranks++) {
    char name[64];
    snprintf(name, sizeof name, "%d ranks", ranks);
    TEST(name);
    CHECK(!test_ranks(self, ranks, "", "MS_GROUP_CHECK=1", NULL));
  }
  snprintf(environment, sizeof environment, "rm -rf '%s'", folder);
  if (chdir("/") || system(environment)) return 1;
  return test_end();
}

int main(int argc, char **argv) {
  (void)argc;
  if (!test_is_rank()) return launch(argv[0]);
  if (ms_group_world(&world) != MS_OK || ms_device_open("cpu", &dev) != MS_OK) {
    printf("%s\n", ms_last_error());
    return 1;
  }
  int status = all();
  ms_device_close(dev);
  return status;
}

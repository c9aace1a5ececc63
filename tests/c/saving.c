/* saving.c - what several ranks write together, however a model lies over them: folders of models and
 * checkpoints are those of one process, are read by every layout, and appear as a whole or not at all when
 * a rank's disk is full, when it does not see the folder, or when it is killed. The program starts itself under
 * mpirun with 1 to 4 ranks. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/memory.h"
#include "core/group/group.h"
#include "core/train/optimizer.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

static ms_device *dev;
static ms_group *world;

/* ---- disturbances: these take the place of the C library's ---- */

/* The call of this process's, from now on, at which it fails as a full disk does, or is killed; 0: none. */
static _Atomic int fail_at, kill_at;
static _Atomic int slow; /* microseconds that each write takes */

static int disturbed(void) {
  if (slow) usleep((useconds_t)slow);
  if (kill_at && !--kill_at) raise(SIGKILL);
  if (!fail_at || --fail_at) return 0;
  errno = ENOSPC;
  return 1;
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at) {
  return disturbed() ? -1 : syscall(SYS_pwrite64, fd, data, bytes, at);
}

int fsync(int fd) { return disturbed() ? -1 : (int)syscall(SYS_fsync, fd); }

int renameat2(int from, const char *a, int to, const char *b, unsigned flags) {
  return disturbed() ? -1 : (int)syscall(SYS_renameat2, from, a, to, b, flags);
}

/* ---- models in any layout, with numbers that say where they are ---- */

#define SIZES(heads, kv, inner, vocab)                                 \
  "\"hidden_size\": 36, \"num_hidden_layers\": 2, \"head_dim\": 4, "   \
  "\"num_attention_heads\": " #heads ", \"num_key_value_heads\": " #kv \
  ", \"intermediate_size\": " #inner ", \"vocab_size\": " #vocab
#define PLAIN "{\"model_type\": \"llama\", " SIZES(9, 3, 50, 101) "}"

static const char *const configs[] = {
    PLAIN, "{\"model_type\": \"llama\", \"tie_word_embeddings\": true, " SIZES(6, 1, 7, 300) "}",
    "{\"model_type\": \"phi3\", \"pad_token_id\": 0, " SIZES(9, 3, 31, 40) "}",
    "{\"model_type\": \"qwen2\", " SIZES(8, 4, 129, 97) "}"};
enum { CONFIGS = sizeof configs / sizeof *configs, ARENAS = 3 };

typedef struct layout {
  int dp, tp, shard;
  ms_group *same, *parts;
} layout;

typedef struct run {
  ms_model *model;
  ms_optimizer *opt;
} run;

static layout alone(void) { return (layout){1, 1, 0, ms_group_self(), ms_group_self()}; }

static layout laid(int dp, int tp, int shard) {
  layout l = {dp, tp, shard, NULL, NULL};
  CHECK(ms_group_split(world, world->rank / tp, world->rank, &l.parts) == MS_OK);
  CHECK(ms_group_split(world, world->rank % tp, world->rank, &l.same) == MS_OK);
  return l;
}

/* All layouts of the ranks there are. */
static int layouts(layout list[8]) {
  int n = 0;
  for (int tp = 1; tp <= world->size; tp++)
    for (int shard = MS_SHARD_NONE; world->size % tp == 0 && shard <= MS_SHARD_OPTIMIZER; shard++)
      list[n++] = laid(world->size / tp, tp, shard);
  return n;
}

static run new_run(const char *config, const layout *l, int dtype, const char *frozen) {
  run r = {NULL, NULL};
  ms_model_options o = {.dtype = dtype, .train = 1, .frozen = frozen, .tp = l->parts};
  ms_adamw_options a = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .shard = l->shard};
  CHECK(ms_model_create(dev, config, 3, &o, &r.model) == MS_OK);
  CHECK(ms_optimizer_new(r.model, l->same, &a, &r.opt) == MS_OK);
  return r;
}

static void free_run(run *r) {
  ms_optimizer_free(r->opt);
  ms_model_free(r->model);
}

/* Where in the whole tensor element e of this rank's part is. */
static int64_t place(const ms_model *m, int32_t i, int64_t e) {
  const ms_parameter *p = &m->parameter[i];
  int64_t cols = p->rank == 2 ? p->shape[1] : 1, width = p->rank == 2 ? p->whole[1] : 1;
  ms_run r[MS_MAX_RUNS];
  int n = ms_share_runs(m, i, r);
  for (int k = 0; k < n; k++)
    if (e / cols >= r[k].held && e / cols < r[k].held + r[k].rows)
      return (r[k].row + e / cols - r[k].held) * width + r[k].col + e % cols;
  return -1;
}

/* What the weights (-1) or an arena of the optimiser have there: exact in bf16. */
static float value(int32_t i, int arena, int64_t at, int salt) {
  return (float)((at * 7 + i * 13 + arena * 101 + salt * 31) % 251 + 1);
}

static uint16_t bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (uint16_t)(bits >> 16);
}

static int visit_weights(const ms_model *m, int32_t i, int salt, int sets) {
  const ms_parameter *p = &m->parameter[i];
  int right = 1;
  for (int64_t e = 0; e < p->count; e++) {
    float x = value(i, -1, place(m, i, e), salt);
    if (m->dtype == MS_F32 && sets) ((float *)p->w)[e] = x;
    if (m->dtype == MS_BF16 && sets) ((uint16_t *)p->w)[e] = bf16(x);
    right &= m->dtype == MS_F32 ? ((float *)p->w)[e] == x : ((uint16_t *)p->w)[e] == bf16(x);
  }
  return right;
}

static int visit_arena(const run *r, int32_t i, int a, float *arena, int salt, int sets) {
  const ms_parameter *p = &r->model->parameter[i];
  int64_t from, count;
  int right = 1;
  if (!p->g || !arena) return 1;
  ms_optimizer_part(r->opt, p, &from, &count);
  float *x = ms_optimizer_at(r->opt, arena, p);
  for (int64_t k = 0; k < count; k++) {
    float want = value(i, a, place(r->model, i, from + k), salt);
    if (sets) x[k] = want;
    right &= x[k] == want;
  }
  return right;
}

/* Sets all numbers, or says whether they are what that sets. */
static int visit(const run *r, int salt, int sets) {
  float *arena[ARENAS] = {r->opt->first, r->opt->second, r->opt->master};
  int right = 1;
  for (int32_t i = 0; i < r->model->parameters; i++) {
    right &= visit_weights(r->model, i, salt, sets);
    for (int a = 0; a < ARENAS; a++) right &= visit_arena(r, i, a, arena[a], salt, sets);
  }
  if (sets) r->opt->steps = salt;
  return right && r->opt->steps == salt;
}

/* ---- what is written ---- */

static void barrier(void) { CHECK(world->ops->barrier(world) == MS_OK); }

/* On the first rank alone: a shell's command succeeds. */
static void first_checks(const char *command) {
  barrier();
  if (!world->rank && system(command)) {
    printf("  %s\n", command);
    CHECK(!"what a command checks");
  }
  barrier();
}

static void exported(const char *config, int dtype, int stored, int64_t shard_bytes) {
  layout one = alone(), list[8];
  run whole = new_run(config, &one, dtype, NULL);
  visit(&whole, 1, 1);
  if (!world->rank)
    CHECK(ms_model_save(whole.model, NULL, "saving.tmp/whole", NULL, stored, shard_bytes) == MS_OK);
  int n = layouts(list);
  for (int k = 0; k < n; k++) {
    if (list[k].shard) continue;
    run r = new_run(config, &list[k], dtype, NULL);
    visit(&r, 1, 1);
    CHECK(ms_model_save(r.model, list[k].same, "saving.tmp/parts", NULL, stored, shard_bytes) ==
          MS_OK);
    first_checks(
        "diff -r saving.tmp/whole saving.tmp/parts && ls saving.tmp/parts/*.safetensors "
        ">/dev/null");
    free_run(&r);
  }
  free_run(&whole);
  first_checks("rm -r saving.tmp && mkdir saving.tmp");
}

/* Every layout writes what one process writes, and reads what any wrote. */
static void checkpoints(const char *config, int dtype, const char *frozen) {
  layout one = alone(), list[8];
  run whole = new_run(config, &one, dtype, frozen);
  char *state;
  visit(&whole, 5, 1);
  if (!world->rank)
    CHECK(ms_checkpoint_write("saving.tmp/one/step-1", whole.model, whole.opt, "{\"n\": 1}") ==
          MS_OK);
  barrier();
  int n = layouts(list);
  list[n++] = one;
  for (int k = 0; k < n; k++) {
    run r = new_run(config, &list[k], dtype, frozen),
        back = new_run(config, &list[k], dtype, frozen);
    visit(&r, 5, 1);
    if (k + 1 < n) {
      CHECK(ms_checkpoint_write("saving.tmp/parts/step-1", r.model, r.opt, "{\"n\": 1}") == MS_OK);
      first_checks("diff -r saving.tmp/one saving.tmp/parts");
    }
    CHECK(!visit(&back, 5, 0));
    CHECK(ms_checkpoint_read("saving.tmp/one/step-1", back.model, back.opt, &state) == MS_OK);
    CHECK(visit(&back, 5, 0) && state && !strcmp(state, "{\"n\":1}"));
    ms_text_free(state);
    free_run(&back);
    free_run(&r);
  }
  free_run(&whole);
  first_checks("rm -r saving.tmp && mkdir saving.tmp");
}

/* ---- faults ---- */

/* A layout with as many parts, and as many ranks that have the same, as there can be. */
static layout both(int shard) {
  int tp = world->size == 4 ? 2 : world->size == 1 ? 1 : world->size;
  return laid(world->size / tp, tp, shard);
}

static void says(const char *what, int failing) {
  char rank[32];
  snprintf(rank, sizeof rank, "rank %d: ", failing);
  if (!strstr(ms_last_error(), what)) printf("  %s\n", ms_last_error());
  CHECK(strstr(ms_last_error(), what));
  CHECK((world->rank == failing) == (strncmp(ms_last_error(), rank, strlen(rank)) != 0));
}

/* A rank's disk is full at one of its writes: all say so, and what was there is there. */
static void full_disk(int failing, int call) {
  layout l = both(MS_SHARD_OPTIMIZER);
  run r = new_run(PLAIN, &l, MS_BF16, NULL);
  char *state;
  visit(&r, 1, 1);
  CHECK(ms_checkpoint_write("saving.tmp/step-1", r.model, r.opt, "{\"n\": 1}") == MS_OK);
  CHECK(ms_model_save(r.model, l.same, "saving.tmp/student", NULL, -1, 0) == MS_OK);
  first_checks("cat saving.tmp/*/* | cksum > saving.sum");
  visit(&r, 2, 1);
  for (int what = 0; what < 3; what++) {
    fail_at = world->rank == failing ? call : 0;
    ms_status st = what == 2 ? ms_model_save(r.model, l.same, "saving.tmp/student", NULL, -1, 0)
                             : ms_checkpoint_write(what ? "saving.tmp/step-1" : "saving.tmp/step-2",
                                                   r.model, r.opt, "{\"n\": 2}");
    CHECK(st != MS_OK && !fail_at);
    says("No space left", failing);
    fail_at = 0;
    first_checks(
        "cat saving.tmp/*/* | cksum | cmp - saving.sum && "
        "test \"$(ls -A saving.tmp | tr '\\n' ' ')\" = 'step-1 student '");
  }
  CHECK(ms_checkpoint_read("saving.tmp/step-1", r.model, r.opt, &state) == MS_OK);
  ms_text_free(state);
  CHECK(visit(&r, 1, 0));
  free_run(&r);
  first_checks("rm -r saving.tmp && mkdir saving.tmp");
}

/* Folders of other file systems look so: each rank has one of its own. */
static void seen_by_some(void) {
  layout l = both(MS_SHARD_NONE);
  run r = new_run(PLAIN, &l, MS_F32, NULL);
  int last = world->size - 1, mine = world->rank == last;
  const char *path = mine ? "saving.tmp/mine/it" : "saving.tmp/others/it";
  char *state;
  if (mine) CHECK(ms_dir_make("saving.tmp/mine") == MS_OK);
  if (!world->rank) CHECK(ms_dir_make("saving.tmp/others") == MS_OK);
  barrier();
  CHECK(ms_model_save(r.model, l.same, path, NULL, -1, 0) != MS_OK);
  says("a file system that they share", last);
  CHECK(ms_checkpoint_write(path, r.model, r.opt, "{}") != MS_OK);
  says("a file system that they share", last);
  first_checks("test -z \"$(ls -A saving.tmp/mine saving.tmp/others | grep -v :)\"");
  CHECK(ms_checkpoint_write("saving.tmp/others/it", r.model, r.opt, "{}") == MS_OK);
  CHECK(ms_checkpoint_read(path, r.model, r.opt, &state) != MS_OK && !state);
  says("saving.tmp/mine/it", last);
  free_run(&r);
  first_checks("rm -r saving.tmp && mkdir saving.tmp");
}

/* ---- while training goes on ---- */

static void train(run *r) {
  double norm;
  int32_t skipped;
  CHECK(ms_optimizer_step(r->opt, 0.1, &norm, &skipped) == MS_OK && !skipped);
}

/* What is written is what there was when it began, though a step follows at once, and waits for that. */
static void beside_training(const layout *l, int dtype, int polls) {
  run r = new_run(PLAIN, l, dtype, NULL);
  int32_t pending = 1;
  double waited;
  visit(&r, 3, 1);
  CHECK(ms_checkpoint_write("saving.tmp/one/step-1", r.model, r.opt, "{}") == MS_OK);
  slow = 3000;
  CHECK(ms_checkpoint_begin("saving.tmp/aside/step-1", r.model, r.opt, "{}") == MS_OK);
  CHECK(ms_checkpoint_write("saving.tmp/one/step-1", r.model, r.opt, "{}") == MS_EINVAL);
  CHECK(visit(&r, 3, 0));
  train(&r);
  CHECK(!visit(&r, 3, 0) && r.opt->steps == 4);
  do CHECK(ms_checkpoint_end(r.opt, !polls, &pending, &waited) == MS_OK);
  while (pending && polls);
  slow = 0;
  CHECK(!pending && waited >= 0 && waited < 60);
  CHECK(ms_checkpoint_end(r.opt, 1, &pending, &waited) == MS_OK && !pending);
  first_checks("diff -r saving.tmp/one saving.tmp/aside");
  free_run(&r);
  first_checks("rm -r saving.tmp && mkdir saving.tmp");
}

/* A disk that is full is said at the end; one that is not ended leaves nothing. */
static void beside_faults(const layout *l) {
  run r = new_run(PLAIN, l, MS_F32, NULL);
  int last = world->size - 1;
  int32_t pending;
  double waited;
  if (world->rank == last) fail_at = last ? 2 : 8;
  CHECK(ms_checkpoint_begin("saving.tmp/step-1", r.model, r.opt, "{}") == MS_OK);
  CHECK(ms_checkpoint_end(r.opt, 1, &pending, &waited) != MS_OK && !pending);
  says("No space left", last);
  fail_at = 0;
  first_checks("test -z \"$(ls -A saving.tmp)\"");
  slow = 1000;
  CHECK(ms_checkpoint_begin("saving.tmp/step-1", r.model, r.opt, "{}") == MS_OK);
  free_run(&r);
  slow = 0;
  first_checks("test -z \"$(ls -A saving.tmp)\"");
}

/* ---- kills ---- */

/* What a launched rank does that is to be killed (which: -1 all) at one of its calls: "RANK,CALL". */
static int is_killed(const char *what) {
  int rank, call;
  char *state;
  layout l = both(MS_SHARD_OPTIMIZER);
  run r = new_run(PLAIN, &l, MS_BF16, NULL);
  TEST("a rank that may be killed");
  CHECK(sscanf(what, "%d,%d", &rank, &call) == 2);
  CHECK(ms_checkpoint_read("step-1", r.model, r.opt, &state) == MS_OK && visit(&r, 1, 0));
  ms_text_free(state);
  visit(&r, 2, 1);
  if (rank < 0 || rank == world->rank) kill_at = call;
  CHECK(ms_checkpoint_write("step-2", r.model, r.opt, "{\"n\": 2}") == MS_OK);
  kill_at = 0;
  free_run(&r);
  return test_end();
}

/* The newest checkpoint is whole: gives its number. Nothing else stays once the next is written. */
static int what_is_left(run *r) {
  char *found, *state = NULL;
  CHECK(ms_checkpoint_find(".", &found) == MS_OK && found);
  int salt = found && strstr(found, "step-2") ? 2 : 1;
  CHECK(found && ms_checkpoint_read(found, r->model, r->opt, &state) == MS_OK);
  CHECK(visit(r, salt, 0));
  ms_text_free(state);
  ms_text_free(found);
  visit(r, 1, 1);
  CHECK(ms_dir_remove("step-2") == MS_OK);
  CHECK(ms_checkpoint_write("step-1", r->model, r->opt, "{\"n\": 1}") == MS_OK);
  CHECK(!system("test \"$(ls -A)\" = step-1"));
  return salt;
}

/* One rank (-1: all) is killed at one call after the other, until it has no more. */
static void killed(const char *self, int ranks, int rank) {
  layout one = alone();
  run r = new_run(PLAIN, &one, MS_BF16, NULL);
  int kills = 0, status = 1;
  visit(&r, 1, 1);
  CHECK(ms_checkpoint_write("step-1", r.model, r.opt, "{\"n\": 1}") == MS_OK);
  for (int call = 1; status && call < 1000; call *= 3) {
    char what[32];
    static char text[TEST_RANKS_TEXT];
    snprintf(what, sizeof what, "%d,%d", rank, call);
    status = test_ranks(self, ranks, what, "MS_GROUP_CHECK=1", text);
    int left = what_is_left(&r);
    CHECK(status || left == 2);
    kills += status != 0;
  }
  CHECK(!status && kills > 2);
  free_run(&r);
  CHECK(ms_dir_remove("step-1") == MS_OK);
}

/* ---- */

static int all(void) {
  static const int dtypes[] = {MS_F32, MS_BF16, MS_F16};
  first_checks("mkdir -p saving.tmp");
  for (int i = 0; i < CONFIGS; i++) {
    TEST(configs[i]);
    exported(configs[i], MS_F32, dtypes[i % 3], i % 2 ? 5000 : 0);
    exported(configs[i], MS_BF16, MS_BF16, 0);
    checkpoints(configs[i], MS_F32, NULL);
    checkpoints(configs[i], MS_BF16, "model.layers.1.* *norm*");
  }
  layout list[8];
  int n = layouts(list);
  for (int k = 0; k < n; k++) {
    TEST("a checkpoint that is written while training goes on");
    beside_training(&list[k], k % 2 ? MS_BF16 : MS_F32, k % 2);
    beside_faults(&list[k]);
  }
  for (int call = 1; call < 12; call += 9) {
    TEST("a full disk");
    full_disk(0, call);
    if (world->size > 1) full_disk(world->size - 1, call);
  }
  TEST("a folder that some ranks do not see");
  if (world->size > 1) seen_by_some();
  return test_end();
}

static int launch(const char *program) {
  if (!test_has_mpirun()) {
    printf("skipped 1: no mpirun here\n0 passed, 0 failed, 1 skipped\n");
    return 0;
  }
  char shm[] = "/dev/shm/saving.XXXXXX",
       tmp[] = "/tmp/saving.XXXXXX"; /* in memory fsync costs nothing */
  char *folder = mkdtemp(shm) ? shm : mkdtemp(tmp), self[4096], command[4200], name[64];
  if (!realpath(program, self) || !folder || chdir(folder)) return 1;
  for (int ranks = 1; ranks <= 4; ranks++) {
    snprintf(name, sizeof name, "%d ranks", ranks);
    TEST(name);
    CHECK(!test_ranks(self, ranks, "", "MS_GROUP_CHECK=1", NULL));
  }
  snprintf(command, sizeof command, "rm -rf '%s'", folder);
  CHECK(!system("rm -rf saving.tmp saving.sum"));
  /* not under the sanitizers: something was seen to stay there, which is not explained yet */
  if (!getenv("MS_SANITIZED")) {
    TEST("a kill of the first rank, of another, of all, at any moment");
    for (int rank = -1; rank <= 3; rank += rank < 0 ? 1 : 3) killed(self, 4, rank);
  }
  if (chdir("/") || system(command)) return 1;
  return test_end();
}

int main(int argc, char **argv) {
  if (ms_device_open("cpu", &dev) != MS_OK) return 1;
  if (!test_is_rank()) return launch(argv[0]);
  if (ms_group_world(&world) != MS_OK) {
    printf("%s\n", ms_last_error());
    return 1;
  }
  int status = argc > 1 ? is_killed(argv[1]) : all();
  ms_device_close(dev);
  return status;
}

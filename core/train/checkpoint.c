/* checkpoint.c - everything a run needs to go on, as one folder that is complete or not there.
 *
 * state.json is written last and lists every other file with its size and hash; a folder whose
 * files are not what the list says was damaged after it was written, and is passed over. Its own
 * hash is its first entry: of the text that it is without that entry. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../base/file.h"
#include "../base/guess.h"
#include "../base/json.h"
#include "../base/log.h"
#include "../base/memory.h"
#include "../io/folder.h"
#include "../io/safetensors.h"
#include "../io/together.h"
#include "../model/gradients.h"
#include "optimizer.h"

#define STATE "state.json"
#define OPTIMIZER "optimizer.safetensors"
enum { VERSION = 2, HASH = 32 };

/* ---- the optimiser's file: first.NAME, second.NAME, and for bf16 models master.NAME ---- */

static const char *const prefixes[] = {"first", "second", "master"};
enum { ARENAS = 3 };

static float *arena_of(const ms_optimizer *opt, int i) {
  return i == 0 ? opt->first : i == 1 ? opt->second : opt->master;
}

/* The tensors of the optimiser's file: an arena after the other. */
typedef struct stored_arenas {
  int32_t n;
  ms_storing *tensor;
  char **name;
} stored_arenas;

static void free_list(stored_arenas *all) {
  for (int32_t k = 0; all->name && k < all->n; k++) ms_text_free(all->name[k]);
  ms_free(all->name);
  ms_free(all->tensor);
}

static ms_status add_tensor(stored_arenas *all, int a, const ms_parameter *p) {
  MS_TRY(ms_text_format(&all->name[all->n], "%s.%s", prefixes[a], p->name));
  ms_storing *s = &all->tensor[all->n];
  *s = (ms_storing){.name = all->name[all->n++], .dtype = MS_F32, .rank = p->rank};
  memcpy(s->shape, p->whole, sizeof p->whole);
  return MS_OK;
}

/* An entry for each arena of each trained parameter. */
static ms_status list_tensors(const ms_optimizer *opt, stored_arenas *all) {
  const ms_model *m = opt->model;
  size_t most = (size_t)m->parameters * ARENAS;
  void *p;
  MS_TRY(ms_alloc(most * sizeof *all->tensor, "checkpoint", &p));
  all->tensor = p;
  MS_TRY(ms_alloc(most * sizeof *all->name, "checkpoint", &p));
  all->name = p;
  for (int a = 0; a < ARENAS; a++)
    for (int32_t i = 0; i < m->parameters && arena_of(opt, a); i++)
      if (m->parameter[i].g) MS_TRY(add_tensor(all, a, &m->parameter[i]));
  return MS_OK;
}

/* What of a parameter this rank writes: its own where ranks share arenas out, else its turn of all. */
static ms_status put_moment(ms_writing *w, const ms_optimizer *opt, const ms_team *team, int a,
                            int32_t i, const ms_storing *t) {
  const ms_parameter *p = &opt->model->parameter[i];
  ms_piece piece[MS_MAX_PIECES];
  int64_t first, from, count;
  ms_optimizer_part(opt, p, &first, &count);
  from = first;
  if (!opt->shares) ms_model_turn(opt->model, team, i, &from, &count);
  const float *x = ms_optimizer_at(opt, arena_of(opt, a), p);
  MS_TRY(ms_model_check_read(opt->model));
  int n = ms_share_pieces(opt->model, i, from, count, piece);
  for (int k = 0; k < n; k++)
    if (piece[k].owned)
      MS_TRY(ms_safetensors_put(w, t, &piece[k].rows, opt->model->dev, x + piece[k].at - first,
                                MS_F32));
  return MS_OK;
}

static ms_status put_arenas(ms_writing *w, const ms_optimizer *opt, const ms_team *team,
                            const stored_arenas *all) {
  const ms_storing *t = all->tensor;
  for (int a = 0; a < ARENAS; a++)
    for (int32_t i = 0; i < opt->model->parameters && arena_of(opt, a); i++)
      if (opt->model->parameter[i].g) MS_TRY(put_moment(w, opt, team, a, i, t++));
  return MS_OK;
}

/* The optimiser's file: its tensors, its path, its one fact. */
typedef struct moments_file {
  stored_arenas all;
  char *path, steps[32];
} moments_file;

static ms_status list_file(const ms_optimizer *opt, const ms_folder *folder, moments_file *f) {
  *f = (moments_file){.path = NULL};
  snprintf(f->steps, sizeof f->steps, "%" PRId64, opt->steps);
  MS_TRY(ms_folder_file(folder, OPTIMIZER, &f->path));
  return list_tensors(opt, &f->all);
}

static void free_file(moments_file *f) {
  ms_text_free(f->path);
  free_list(&f->all);
}

static ms_status make_moments(const ms_optimizer *opt, const ms_folder *folder) {
  moments_file f;
  ms_status st = list_file(opt, folder, &f);
  if (st == MS_OK) st = ms_safetensors_create(f.path, f.all.n, f.all.tensor, "steps", f.steps);
  free_file(&f);
  return st;
}

/* This rank's part of them. Once it is put the optimiser may go on. */
static ms_status put_moments(const ms_optimizer *opt, const ms_team *team,
                             const ms_folder *folder) {
  moments_file f;
  ms_writing *w = NULL;
  ms_status st = list_file(opt, folder, &f);
  if (st == MS_OK) st = ms_safetensors_join(f.path, f.all.n, f.all.tensor, "steps", f.steps, &w);
  if (st == MS_OK) st = put_arenas(w, opt, team, &f.all);
  atomic_store(&opt->model->being_read, MS_READ_NONE);
  st = ms_safetensors_end(w, st);
  free_file(&f);
  return st;
}

/* Finds a parameter's tensor; one that is missing, or of another shape, is an error. */
static ms_status find_stored(const ms_safetensors *file, const char *name, const ms_parameter *p,
                             const ms_stored **out) {
  char a[200], b[200];
  const ms_stored *s = *out = ms_safetensors_find(file, name);
  if (!s) return MS_FAIL(MS_EIO, "%s: no tensor %s", file->path, name);
  if (s->rank != p->rank || memcmp(s->shape, p->whole, (size_t)p->rank * sizeof *p->whole))
    return MS_FAIL(MS_EIO, "%s: %s is %s, the model's is %s", file->path, name,
                   ms_shape_text(s->rank, s->shape, a), ms_shape_text(p->rank, p->whole, b));
  return MS_OK;
}

static ms_status read_moment(const ms_safetensors *file, const ms_optimizer *opt, int a,
                             int32_t i) {
  const ms_parameter *p = &opt->model->parameter[i];
  float *y = ms_optimizer_at(opt, arena_of(opt, a), p);
  ms_piece piece[MS_MAX_PIECES];
  int64_t from, count;
  const ms_stored *s;
  char *name;
  MS_TRY(ms_text_format(&name, "%s.%s", prefixes[a], p->name));
  ms_status st = find_stored(file, name, p, &s);
  ms_text_free(name);
  MS_TRY(st);
  ms_optimizer_part(opt, p, &from, &count);
  int n = ms_share_pieces(opt->model, i, from, count, piece);
  for (int k = 0; k < n; k++)
    MS_TRY(ms_safetensors_read_rows(file, s, &piece[k].rows, opt->model->dev,
                                    y + piece[k].at - from, MS_F32));
  return MS_OK;
}

/* The file must have no more tensors than are read: those of a parameter that is frozen now would be
 * lost. */
static ms_status check_tensors(const ms_safetensors *file, const ms_optimizer *opt) {
  const ms_model *m = opt->model;
  int32_t trained = 0, arenas = 0;
  for (int32_t i = 0; i < m->parameters; i++) trained += m->parameter[i].g != NULL;
  for (int a = 0; a < ARENAS; a++) arenas += arena_of(opt, a) != NULL;
  if (file->tensors == trained * arenas) return MS_OK;
  return MS_FAIL(MS_EIO,
                 "%s: has %d tensors, but %d parameters are trained with %d each: others were "
                 "frozen when it was written",
                 file->path, file->tensors, trained, arenas);
}

static ms_status read_optimizer(ms_optimizer *opt, const char *path) {
  const ms_model *m = opt->model;
  ms_safetensors *file;
  MS_TRY(ms_safetensors_open(path, &file));
  ms_status st = MS_OK;
  const char *steps = ms_safetensors_metadata(file, "steps");
  if (!steps) st = MS_FAIL(MS_EIO, "%s: does not say how many steps it has", path);
  for (int a = 0; a < ARENAS; a++)
    for (int32_t i = 0; st == MS_OK && arena_of(opt, a) && i < m->parameters; i++)
      if (m->parameter[i].g) st = read_moment(file, opt, a, i);
  if (st == MS_OK) st = check_tensors(file, opt);
  if (st == MS_OK) opt->steps = strtoll(steps, NULL, 10);
  ms_safetensors_close(file);
  return st;
}

/* Checkpoints have all weights in one file, whatever their size. */
static ms_status read_weights(ms_model *m, const char *path) {
  ms_safetensors *file;
  const ms_stored *s;
  MS_TRY(ms_weights_settle(m));
  MS_TRY(ms_safetensors_open(path, &file));
  ms_status st = MS_OK;
  for (int32_t i = 0; st == MS_OK && i < m->parameters; i++) {
    ms_parameter *p = &m->parameter[i];
    st = find_stored(file, p->name, p, &s);
    if (st == MS_OK && s->dtype != m->dtype)
      st = MS_FAIL(MS_EIO, "%s: %s is %s, the model holds %s", path, p->name, s->type,
                   ms_dtype_name(m->dtype));
    if (st == MS_OK) ms_model_change(m, p);
    if (st == MS_OK) st = ms_model_read(m, i, file, s);
  }
  ms_safetensors_close(file);
  return st;
}

/* ---- config.json: shapes do not tell how weights are used, by heads, rope and windows ---- */

static ms_status compare_key(const char *path, const char *key, const json_t *then,
                             const json_t *now) {
  char a[80], b[80];
  if (ms_config_is_harmless(key) || json_equal(then, now)) return MS_OK;
  if ((!then || json_is_null(then)) && (!now || json_is_null(now))) return MS_OK;
  return MS_FAIL(MS_EINVAL, "%s: '%s' is %s, the model's is %s", path, key,
                 then ? ms_json_show(then, a, sizeof a) : "missing",
                 now ? ms_json_show(now, b, sizeof b) : "missing");
}

static ms_status compare_keys(const char *path, json_t *then, json_t *now) {
  const char *key;
  json_t *value;
  json_object_foreach(then, key, value)
      MS_TRY(compare_key(path, key, value, json_object_get(now, key)));
  json_object_foreach(now, key, value)
      MS_TRY(compare_key(path, key, json_object_get(then, key), value));
  return MS_OK;
}

static ms_status check_config(const ms_model *m, const char *path) {
  char *text = NULL;
  json_t *then = NULL, *now = NULL;
  ms_status st;
  MS_TRY_OR(end, ms_model_config(m, &text));
  MS_TRY_OR(end, ms_json_parse("the model's config.json", text, strlen(text), &now));
  MS_TRY_OR(end, ms_json_read(path, MS_CONFIG_MAX_BYTES, &then));
  st = compare_keys(path, then, now);
end:
  json_decref(then);
  json_decref(now);
  ms_text_free(text);
  return st;
}

/* ---- state.json ---- */

static ms_status describe_file(const char *folder, const char *name, json_t *files) {
  char *path, *hash = NULL;
  struct stat info;
  MS_TRY(ms_text_format(&path, "%s/%s", folder, name));
  ms_status st = ms_file_hash(path, &hash);
  if (st == MS_OK && stat(path, &info)) st = MS_FAIL(MS_EIO, "%s: has gone", path);
  if (st == MS_OK &&
      json_object_set_new(files, name,
                          json_pack("{s:I, s:s}", "bytes", (json_int_t)info.st_size, "xxh3", hash)))
    st = MS_FAIL(MS_ENOMEM, "%s: no memory", path);
  ms_text_free(hash);
  ms_text_free(path);
  return st;
}

static ms_status describe_folder(const char *folder, json_t *files) {
  char *names;
  MS_TRY(ms_dir_list(folder, &names));
  ms_status st = MS_OK;
  for (char *name = names, *end; st == MS_OK && (end = strchr(name, '\n')); name = end + 1) {
    *end = 0;
    if (strcmp(name, STATE)) st = describe_file(folder, name, files);
  }
  ms_text_free(names);
  return st;
}

/* The status of a checkpoint that is not as it was written: an older one is taken in its place.
 * Where one only cannot be read just now (MS_EIO, MS_ENOMEM), an older one would undo work that is
 * not lost. */
enum { DAMAGED = MS_EINVAL };

/* The file begins with these two, and its own hash between them. */
#define BEFORE "{\n  \"xxh3\": \""
#define AFTER "\","
/* Where the text that was hashed begins, once its first character is a brace again. */
enum { BARE = sizeof BEFORE - 1 + HASH + sizeof AFTER - 2 };

/* Makes the hash of an object's text its first entry. */
static ms_status add_own_hash(const char *text, char **out) {
  char *hash;
  MS_TRY(ms_hash(text, (int64_t)strlen(text), &hash));
  ms_status st = ms_text_format(out, BEFORE "%s" AFTER "%s", hash, text + 1);
  ms_text_free(hash);
  return st;
}

static ms_status write_state(const ms_folder *folder, const char *state) {
  json_t *value = NULL, *files = json_object(), *all = NULL;
  char *bare = NULL, *text = NULL;
  ms_status st;
  MS_TRY_OR(end, ms_json_parse("the run's state", state, strlen(state), &value));
  MS_TRY_OR(end, describe_folder(folder->tmp, files));
  all = json_pack("{s:i, s:O, s:O}", "version", VERSION, "state", value, "files", files);
  if (!all) {
    st = MS_FAIL(MS_ENOMEM, "%s: no memory for " STATE, folder->path);
    goto end;
  }
  MS_TRY_OR(end, ms_json_text(all, 2, &bare));
  MS_TRY_OR(end, add_own_hash(bare, &text));
  st = ms_folder_put(folder, STATE, text);
end:
  ms_text_free(text);
  ms_text_free(bare);
  json_decref(all);
  json_decref(files);
  json_decref(value);
  return st;
}

/* Compares the text with the hash at its beginning, and makes `text` + BARE the text that was
 * hashed. */
static ms_status check_own_hash(const char *path, char *text, size_t bytes) {
  const char *want = text + strlen(BEFORE), *after = want + HASH;
  char *hash;
  if (bytes <= BARE || memcmp(text, BEFORE, strlen(BEFORE)) || memcmp(after, AFTER, strlen(AFTER)))
    return MS_FAIL(DAMAGED, "%s: no checkpoint of version %d", path, VERSION);
  text[BARE] = '{';
  MS_TRY(ms_hash(text + BARE, (int64_t)bytes - BARE, &hash));
  ms_status st = MS_OK;
  if (memcmp(hash, want, HASH))
    st =
        MS_FAIL(DAMAGED, "%s: is not what was written (hash %s, not %.*s)", path, hash, HASH, want);
  ms_text_free(hash);
  return st;
}

/* Reads state.json, which must be as it was written. */
static ms_status read_state(const char *folder, json_t **out) {
  char *path, *text = NULL;
  size_t bytes;
  *out = NULL;
  MS_TRY(ms_text_format(&path, "%s/" STATE, folder));
  ms_status st = ms_path_kind(path) ? ms_file_read(path, MS_JSON_MAX_BYTES, &text, &bytes)
                                    : MS_FAIL(DAMAGED, "%s: is missing", path);
  if (st == MS_OK) st = check_own_hash(path, text, bytes);
  if (st == MS_OK) st = ms_json_parse(path, text + BARE, bytes - BARE, out);
  if (st == MS_OK &&
      (json_integer_value(json_object_get(*out, "version")) != VERSION ||
       !json_is_object(json_object_get(*out, "files")) || !json_object_get(*out, "state"))) {
    st = MS_FAIL(DAMAGED, "%s: no checkpoint of version %d", path, VERSION);
    json_decref(*out);
    *out = NULL;
  }
  ms_free(text);
  ms_text_free(path);
  return st;
}

static ms_status check_file(const char *folder, const char *name, const json_t *entry) {
  const char *want = json_string_value(json_object_get(entry, "xxh3"));
  json_int_t bytes = json_integer_value(json_object_get(entry, "bytes"));
  char *path, *hash = NULL;
  struct stat info;
  if (!want || strchr(name, '/')) return MS_FAIL(DAMAGED, "%s: " STATE " is malformed", folder);
  MS_TRY(ms_text_format(&path, "%s/%s", folder, name));
  ms_status st = MS_OK;
  if (!ms_path_kind(path))
    st = MS_FAIL(DAMAGED, "%s: is missing", path);
  else if (stat(path, &info))
    st = MS_FAIL(MS_EIO, "%s: %s", path, strerror(errno));
  else if (info.st_size != bytes)
    st = MS_FAIL(DAMAGED, "%s: %lld bytes, %lld were written", path, (long long)info.st_size,
                 (long long)bytes);
  if (st == MS_OK) st = ms_file_hash(path, &hash);
  if (st == MS_OK && strcmp(hash, want))
    st = MS_FAIL(DAMAGED, "%s: is not what was written (hash %s, not %s)", path, hash, want);
  ms_text_free(hash);
  ms_text_free(path);
  return st;
}

/* Reads state.json and compares every file it lists; of several ranks each takes some of them. */
static ms_status open_state(const char *folder, const ms_team *team, json_t **out) {
  const char *name;
  json_t *entry;
  int32_t i = 0;
  MS_TRY(read_state(folder, out));
  ms_status st = MS_OK;
  json_t *files = json_object_get(*out, "files");
  json_object_foreach(files, name, entry) {
    if (i++ % ms_team_size(team) == ms_team_rank(team)) st = check_file(folder, name, entry);
    if (st != MS_OK) break;
  }
  if (st == MS_OK &&
      (!json_object_get(files, "model.safetensors") || !json_object_get(files, OPTIMIZER)))
    st = MS_FAIL(DAMAGED, "%s: lists no weights or no moments", folder);
  if (st != MS_OK) {
    json_decref(*out);
    *out = NULL;
  }
  return st;
}

/* Everything in a checkpoint's folder must be state.json, or a file that it lists. */
static ms_status check_listed(const char *folder, const char *name, const json_t *files) {
  char *path;
  struct stat info;
  MS_TRY(ms_text_format(&path, "%s/%s", folder, name));
  ms_status st = MS_OK;
  if (strcmp(name, STATE) && !json_object_get(files, name))
    st = MS_FAIL(MS_EINVAL, "%s: holds '%s', which is no part of the checkpoint", folder, name);
  else if (!lstat(path, &info) && S_ISDIR(info.st_mode))
    st = MS_FAIL(MS_EINVAL, "%s: '%s' is a folder", folder, name);
  ms_text_free(path);
  return st;
}

/* MS_OK for a checkpoint in which nothing else has been put. Its files may be damaged or missing,
 * but not state.json, which says that it is one. */
static ms_status check_ours(const char *folder) {
  json_t *state;
  char *names;
  struct stat info;
  if (lstat(folder, &info) || !S_ISDIR(info.st_mode))
    return MS_FAIL(MS_EINVAL, "%s: is no folder", folder);
  MS_TRY(read_state(folder, &state));
  ms_status st = ms_dir_list(folder, &names);
  if (st == MS_OK) {
    for (char *name = names, *end; st == MS_OK && (end = strchr(name, '\n')); name = end + 1) {
      *end = 0;
      st = check_listed(folder, name, json_object_get(state, "files"));
    }
    ms_text_free(names);
  }
  json_decref(state);
  return st;
}

/* ---- the calls ---- */

/* A checkpoint that is being written. Its files are made; this rank puts its part of them, in a thread
 * where training goes on meanwhile; then the first one commits. */
typedef struct ms_snapshot {
  ms_optimizer *opt;
  ms_team team;
  ms_folder folder;
  char *state;
  pthread_t thread;
  int threaded;
  _Atomic int done; /* this rank's part is written, or that has failed: `st` and `why` */
  ms_status st;
  char why[1024];
} ms_snapshot;

static ms_team team_of(const ms_optimizer *opt) {
  return (ms_team){.same = opt->group, .parts = opt->model->share.group};
}

static void free_snapshot(ms_snapshot *s) {
  if (!s) return;
  ms_text_free(s->state);
  ms_free(s);
}

static ms_status new_snapshot(ms_optimizer *opt, const char *state, ms_snapshot **out) {
  void *p;
  MS_TRY(ms_weights_settle(opt->model));
  MS_TRY(ms_alloc(sizeof(ms_snapshot), "checkpoint", &p));
  *out = p;
  (*out)->opt = opt;
  (*out)->team = team_of(opt);
  return ms_text_copy(state, strlen(state), &(*out)->state);
}

static ms_status make_files(const ms_snapshot *s) {
  if (ms_team_rank(&s->team)) return MS_OK;
  MS_TRY(ms_model_make_files(s->opt->model, &s->folder, NULL, -1, INT64_MAX));
  return make_moments(s->opt, &s->folder);
}

/* All ranks: the files are made, or there is no snapshot. */
static ms_status begin_snapshot(const char *path, ms_optimizer *opt, const char *state,
                                ms_snapshot **out) {
  const ms_team team = team_of(opt);
  ms_folder folder;
  ms_snapshot *s = NULL;
  ms_status st = ms_together_begin(&team, new_snapshot(opt, state, &s), path, &folder);
  if (st == MS_OK) {
    s->folder = folder;
    st = ms_team_agree(&team, make_files(s));
    if (st != MS_OK) ms_folder_abort(&s->folder);
  }
  if (st != MS_OK) free_snapshot(s);
  *out = st == MS_OK ? s : NULL;
  return st;
}

static void *put_parts(void *snapshot) {
  ms_snapshot *s = snapshot;
  s->st = ms_model_put(s->opt->model, &s->team, &s->folder, -1, INT64_MAX);
  if (s->st == MS_OK) s->st = put_moments(s->opt, &s->team, &s->folder);
  if (s->st != MS_OK) snprintf(s->why, sizeof s->why, "%s", ms_last_error());
  atomic_store(&s->opt->model->being_read, MS_READ_NONE);
  atomic_store(&s->done, 1);
  return NULL;
}

/* Signals are for the thread that trains. */
static void put_aside(ms_snapshot *s) {
  sigset_t all, before;
  sigfillset(&all);
  atomic_store(&s->opt->model->being_read, MS_READ);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  s->threaded = !pthread_create(&s->thread, NULL, put_parts, s);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (!s->threaded) put_parts(s);
}

static void join_thread(ms_snapshot *s) {
  if (s->threaded) pthread_join(s->thread, NULL);
  s->threaded = 0;
}

/* All ranks: waits for their parts, and commits. */
static ms_status end_snapshot(ms_snapshot *s) {
  join_thread(s);
  ms_status st = s->st == MS_OK ? MS_OK : MS_FAIL(s->st, "%s", s->why);
  st = ms_team_agree(&s->team, st);
  if (st == MS_OK && !ms_team_rank(&s->team)) st = write_state(&s->folder, s->state);
  st = ms_together_end(&s->team, st, &s->folder, check_ours);
  free_snapshot(s);
  return st;
}

void ms_snapshot_abort(ms_snapshot *s) {
  if (!s) return;
  int reads = MS_READ;
  atomic_compare_exchange_strong(&s->opt->model->being_read, &reads, MS_READ_STOP);
  join_thread(s);
  ms_folder_abort(&s->folder);
  free_snapshot(s);
}

static ms_status check_call(const char *path, const ms_model *model, const ms_optimizer *opt,
                            const char *state) {
  MS_REQUIRE(path && model && opt && state, "checkpoint: path, model, optimizer or state missing");
  MS_REQUIRE(opt->model == model, "checkpoint: the optimizer is another model's");
  MS_REQUIRE(!opt->snapshot, "checkpoint: one is being written: end that first");
  return MS_OK;
}

ms_status ms_checkpoint_write(const char *path, const ms_model *model, ms_optimizer *opt,
                              const char *state) {
  ms_snapshot *s;
  MS_TRY(check_call(path, model, opt, state));
  MS_TRY(begin_snapshot(path, opt, state, &s));
  put_parts(s);
  return end_snapshot(s);
}

ms_status ms_checkpoint_begin(const char *path, const ms_model *model, ms_optimizer *opt,
                              const char *state) {
  MS_TRY(check_call(path, model, opt, state));
  MS_TRY(begin_snapshot(path, opt, state, &opt->snapshot));
  opt->model->waited = 0;
  put_aside(opt->snapshot);
  if (model->views || opt->refs > 1) ms_model_wait(opt->model); /* who has a view may write */
  return MS_OK;
}

ms_status ms_checkpoint_end(ms_optimizer *opt, int wait, int32_t *pending, double *waited) {
  MS_REQUIRE(opt && pending && waited, "checkpoint: no optimizer, or nowhere to say how it is");
  ms_snapshot *s = opt->snapshot;
  *pending = 0;
  *waited = opt->model->waited;
  if (!s) return MS_OK;
  int32_t open = !wait && !atomic_load(&s->done);
  MS_TRY(ms_team_most(&s->team, &open));
  *pending = open;
  if (open) return MS_OK;
  opt->snapshot = NULL;
  return end_snapshot(s);
}

/* The number at the end of "step-00000120"; -1 for other names. */
static long long step_of(const char *name) {
  char *end;
  if (strncmp(name, "step-", 5) || !name[5] || strspn(name + 5, "0123456789") != strlen(name + 5))
    return -1;
  return strtoll(name + 5, &end, 10);
}

/* The name with the largest number below `below`, which goes to *step; NULL when there is none. */
static const char *newest(char *const *name, int count, long long below, long long *step) {
  const char *best = NULL;
  for (int i = 0; i < count; i++) {
    long long n = step_of(name[i]);
    if (n < 0 || n >= below || (best && n <= *step)) continue;
    best = name[i];
    *step = n;
  }
  return best;
}

/* Cuts a text into its lines, in place: *name is an array of them, to be freed. */
static ms_status split(char *text, char ***name, int *count) {
  size_t lines = 0;
  void *p;
  for (char *s = text; (s = strchr(s, '\n')); s++) lines++;
  MS_TRY(ms_alloc(lines * sizeof(char *), "checkpoint list", &p));
  *name = p;
  *count = 0;
  for (char *s = text, *end; (end = strchr(s, '\n')); s = end + 1) {
    *end = 0;
    (*name)[(*count)++] = s;
  }
  return MS_OK;
}

ms_status ms_checkpoint_find(const char *path, char **found) {
  const ms_team one = {.same = ms_group_self(), .parts = ms_group_self()};
  char *text, **name = NULL;
  int count;
  long long step = INT64_MAX;
  *found = NULL;
  if (!ms_path_kind(path)) return MS_OK;
  MS_TRY(ms_dir_list(path, &text));
  ms_status st = split(text, &name, &count);
  for (const char *best; st == MS_OK && (best = newest(name, count, step, &step));) {
    char *folder;
    json_t *state = NULL;
    MS_TRY_OR(end, ms_text_format(&folder, "%s/%s", path, best));
    st = open_state(folder, &one, &state);
    if (st == MS_OK) {
      json_decref(state);
      *found = folder;
      break;
    }
    if (st != DAMAGED) {
      ms_text_free(folder);
      break;
    }
    st = MS_OK;
    ms_log(MS_LOG_WARNING, "damaged checkpoint passed over: %s", ms_last_error());
    ms_text_free(folder);
  }
end:
  ms_free(name);
  ms_text_free(text);
  return st;
}

static ms_status check_has_state(const char *path) {
  char *state;
  MS_TRY(ms_text_format(&state, "%s/" STATE, path));
  ms_status st = ms_path_kind(state) ? MS_OK : ms_folder_lacks(path, STATE);
  ms_text_free(state);
  return st;
}

static ms_status check_folder(const char *path, const ms_team *team, json_t **all) {
  MS_TRY(check_has_state(path));
  return open_state(path, team, all);
}

static ms_status read_folder(const char *path, ms_model *model, ms_optimizer *opt,
                             const json_t *all, char **state) {
  char *config = NULL, *weights = NULL, *moments = NULL;
  ms_status st;
  MS_TRY_OR(end, ms_text_format(&config, "%s/config.json", path));
  MS_TRY_OR(end, ms_text_format(&weights, "%s/model.safetensors", path));
  MS_TRY_OR(end, ms_text_format(&moments, "%s/" OPTIMIZER, path));
  MS_TRY_OR(end, check_config(model, config));
  MS_TRY_OR(end, read_weights(model, weights));
  MS_TRY_OR(end, read_optimizer(opt, moments));
  st = ms_json_text(json_object_get(all, "state"), 0, state);
end:
  ms_text_free(moments);
  ms_text_free(weights);
  ms_text_free(config);
  return st;
}

ms_status ms_checkpoint_read(const char *path, ms_model *model, ms_optimizer *opt, char **state) {
  MS_REQUIRE(path && model && opt, "checkpoint: path, model or optimizer missing");
  json_t *all = NULL;
  *state = NULL;
  MS_REQUIRE(opt->model == model, "checkpoint: the optimizer is another model's");
  MS_REQUIRE(!opt->snapshot, "checkpoint: one is being written: end that first");
  ms_team team = team_of(opt);
  ms_status st = ms_team_agree(&team, check_folder(path, &team, &all));
  if (st == MS_OK) st = ms_team_agree(&team, read_folder(path, model, opt, all, state));
  if (st != MS_OK) {
    ms_text_free(*state);
    *state = NULL;
  }
  json_decref(all);
  return st;
}

ms_status ms_checkpoint_remove(const char *path) {
  MS_REQUIRE(path, "checkpoint: no path");
  MS_TRY(check_ours(path));
  return ms_folder_discard(path);
}

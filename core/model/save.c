/* save.c - a model as a folder that transformers loads. */
#include <stdio.h>
#include <string.h>

#include "../base/file.h"
#include "../base/json.h"
#include "../base/memory.h"
#include "../io/folder.h"
#include "../io/safetensors.h"
#include "../io/together.h"
#include "family.h"
#include "gradients.h"
#include "layout.h"

#define DEFAULT_SHARD 5000000000 /* transformers' own */

/* What belongs to a model's folder and is not made from the model. */
static const char *const carried[] = {"tokenizer.json",
                                      "tokenizer_config.json",
                                      "special_tokens_map.json",
                                      "added_tokens.json",
                                      "vocab.json",
                                      "merges.txt",
                                      "tokenizer.model",
                                      "chat_template.jinja",
                                      "chat_template.json",
                                      "LICENSE",
                                      "LICENSE.txt",
                                      "LICENSE.md",
                                      "NOTICE",
                                      NULL};

/* ---- config.json ---- */

static const char *dtype_text(int dtype) {
  return dtype == MS_BF16 ? "bfloat16" : dtype == MS_F16 ? "float16" : "float32";
}

static int set_missing(json_t *json, const char *key, json_t *value) {
  if (!json_object_get(json, key)) return json_object_set_new(json, key, value);
  json_decref(value);
  return value ? 0 : -1;
}

/* The file as read; what it left to the reader's defaults is spelled out, since readers differ in
 * them, and the dtype is that of the weights beside it. */
static ms_status make_config(const ms_model *m, int dtype, json_t **out) {
  const ms_config *c = &m->config;
  json_t *j;
  *out = NULL;
  MS_TRY(ms_json_copy("model", c->json, &j));
  const char *key = json_object_get(j, "dtype") ? "dtype" : "torch_dtype";
  int bad = 0;
  bad |= set_missing(j, "architectures", json_pack("[s]", c->family->architecture));
  bad |= set_missing(j, "vocab_size", json_integer(c->vocab));
  bad |= set_missing(j, "hidden_size", json_integer(c->hidden_size));
  bad |= set_missing(j, "intermediate_size", json_integer(c->intermediate_size));
  bad |= set_missing(j, "num_hidden_layers", json_integer(c->layers));
  bad |= set_missing(j, "num_attention_heads", json_integer(c->heads));
  bad |= set_missing(j, "num_key_value_heads", json_integer(c->kv_heads));
  bad |= set_missing(j, "max_position_embeddings", json_integer(c->context));
  bad |= set_missing(j, "rms_norm_eps", json_real(c->family->eps));
  const char *act = c->family->activation_key ? c->family->activation_key : "hidden_act";
  bad |= set_missing(j, act,
                     json_string(c->activation == MS_GELU_TANH ? "gelu_pytorch_tanh" : "silu"));
  bad |= set_missing(j, "tie_word_embeddings", json_boolean(c->tied));
  if (c->family->head_dim) bad |= set_missing(j, "head_dim", json_integer(c->head_dim));
  if (c->family->windows != MS_WINDOWS_BY_LAYER && c->family->window)
    bad |= set_missing(j, "sliding_window", json_integer(c->family->window));
  if (c->family->attention_scalar) {
    bad |= set_missing(j, "query_pre_attn_scalar",
                       json_integer((json_int_t)c->family->attention_scalar));
    bad |= set_missing(j, "attn_logit_softcapping", json_real(c->family->attention_cap));
    bad |= set_missing(j, "final_logit_softcapping", json_real(c->family->logit_cap));
  }
  if (!json_object_get(json_object_get(j, "rope_parameters"), "rope_theta") &&
      !json_object_get(json_object_get(j, "rope_scaling"), "rope_theta"))
    bad |= set_missing(j, "rope_theta", json_real(1e4));
  bad |= json_object_set_new(j, key, json_string(dtype_text(dtype)));
  if (!strcmp(key, "dtype") && json_object_get(j, "torch_dtype"))
    bad |= json_object_set_new(j, "torch_dtype", json_string(dtype_text(dtype)));
  if (!bad) {
    *out = j;
    return MS_OK;
  }
  json_decref(j);
  return MS_FAIL(MS_ENOMEM, "model: no memory for config.json");
}

static ms_status config_text(const ms_model *m, int dtype, char **text) {
  json_t *json;
  *text = NULL;
  MS_TRY(make_config(m, dtype, &json));
  ms_status st = ms_json_text(json, 2, text);
  json_decref(json);
  return st;
}

ms_status ms_model_config(const ms_model *model, char **json) {
  return config_text(model, model->stored, json);
}

/* ---- weights ---- */

typedef struct plan {
  ms_storing *tensor;
  int32_t *shard; /* [parameters]: ascending */
  int32_t shards;
  int64_t bytes;
} plan;

/* Cuts the parameters into files of at most shard_bytes, but of one tensor at least. */
static ms_status make_plan(const ms_model *m, int dtype, int64_t shard_bytes, plan *p) {
  void *memory;
  int64_t in_shard = 0;
  MS_TRY(ms_alloc((size_t)m->parameters * sizeof *p->tensor, "tensors", &memory));
  p->tensor = memory;
  MS_TRY(ms_alloc((size_t)m->parameters * sizeof *p->shard, "shards", &memory));
  p->shard = memory;
  for (int32_t i = 0; i < m->parameters; i++) {
    const ms_parameter *q = &m->parameter[i];
    int64_t bytes = q->whole[0] * (q->rank == 2 ? q->whole[1] : 1);
    bytes *= (int64_t)ms_dtype_size(dtype);
    p->tensor[i] = (ms_storing){
        .name = q->name, .dtype = dtype, .rank = q->rank, .shape = {q->whole[0], q->whole[1]}};
    if (i && in_shard + bytes > shard_bytes) {
      p->shards++;
      in_shard = 0;
    }
    p->shard[i] = p->shards;
    in_shard += bytes;
    p->bytes += bytes;
  }
  p->shards++;
  return MS_OK;
}

static void shard_name(char name[48], int32_t i, int32_t shards) {
  if (shards == 1)
    strcpy(name, "model.safetensors");
  else
    snprintf(name, 48, "model-%05d-of-%05d.safetensors", i + 1, shards);
}

static ms_status put_index(const ms_folder *folder, const ms_model *m, const plan *p) {
  char name[48], *text;
  json_t *map = json_object();
  int bad = 0;
  for (int32_t i = 0; i < m->parameters; i++) {
    shard_name(name, p->shard[i], p->shards);
    bad |= json_object_set_new(map, m->parameter[i].name, json_string(name));
  }
  json_t *json = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)p->bytes,
                           "weight_map", map);
  ms_status st = bad || !json ? MS_FAIL(MS_ENOMEM, "model: no memory for an index")
                              : ms_json_text(json, 2, &text);
  if (st == MS_OK) {
    st = ms_folder_put(folder, "model.safetensors.index.json", text);
    ms_text_free(text);
  }
  json_decref(json);
  return st;
}

void ms_model_turn(const ms_model *m, const ms_team *team, int32_t i, int64_t *from,
                   int64_t *count) {
  int64_t n = m->parameter[i].count, rank = team->same->rank, size = team->same->size;
  *from = n * rank / size;
  *count = n * (rank + 1) / size - *from;
}

static ms_status put_parameter(ms_writing *w, const ms_model *m, const ms_team *team, int32_t i,
                               const ms_storing *t) {
  ms_piece piece[MS_MAX_PIECES];
  int64_t from, count;
  ms_model_turn(m, team, i, &from, &count);
  int n = ms_share_pieces(m, i, from, count, piece);
  MS_TRY(ms_model_check_read(m));
  for (int k = 0; k < n; k++) {
    const char *x = (const char *)m->parameter[i].w + (size_t)piece[k].at * ms_dtype_size(m->dtype);
    if (piece[k].owned) MS_TRY(ms_safetensors_put(w, t, &piece[k].rows, m->dev, x, m->dtype));
  }
  return MS_OK;
}

/* A file of n parameters from the first one on. */
typedef struct shard {
  char *path;
  int32_t first, n;
} shard;

static ms_status make_shard(const plan *p, const shard *s) {
  return ms_safetensors_create(s->path, s->n, p->tensor + s->first, "moonstill", MS_VERSION);
}

static ms_status put_shard(const ms_model *m, const ms_team *team, const plan *p, const shard *s) {
  ms_writing *w;
  ms_status st = MS_OK;
  MS_TRY(ms_safetensors_join(s->path, s->n, p->tensor + s->first, "moonstill", MS_VERSION, &w));
  for (int32_t i = s->first; st == MS_OK && i < s->first + s->n; i++)
    st = put_parameter(w, m, team, i, &p->tensor[i]);
  return ms_safetensors_end(w, st);
}

/* All files, one after the other: made where `puts` is 0, else given this rank's part. */
static ms_status each_shard(const ms_folder *folder, const ms_model *m, const ms_team *team,
                            const plan *p, int puts) {
  char name[48];
  for (int32_t i = 0, n; i < m->parameters; i += n) {
    for (n = 1; i + n < m->parameters && p->shard[i + n] == p->shard[i];) n++;
    shard s = {.first = i, .n = n};
    shard_name(name, p->shard[i], p->shards);
    MS_TRY(ms_folder_file(folder, name, &s.path));
    ms_status st = puts ? put_shard(m, team, p, &s) : make_shard(p, &s);
    ms_text_free(s.path);
    MS_TRY(st);
  }
  return MS_OK;
}

/* ---- the folder ---- */

static ms_model_text *find_text(const ms_model *m, const char *name) {
  ms_model_text *t = m->text;
  while (t && strcmp(t->name, name)) t = t->next;
  return t;
}

static const char *carried_name(const char *name) {
  for (const char *const *known = carried; *known; known++)
    if (!strcmp(*known, name)) return *known;
  return NULL;
}

ms_status ms_model_set_text(ms_model *m, const char *name, const char *text) {
  MS_REQUIRE(m && name && text, "model: no model, name or text of a file");
  const char *known = carried_name(name);
  MS_REQUIRE(known, "model: '%s' is no file that goes along", name);
  char *copy;
  MS_TRY(ms_text_format(&copy, "%s", text));
  ms_model_text *t = find_text(m, name);
  if (!t) {
    void *memory;
    ms_status st = ms_alloc(sizeof *t, "a file's text", &memory);
    if (st != MS_OK) {
      ms_text_free(copy);
      return st;
    }
    t = memory;
    *t = (ms_model_text){.name = known, .next = m->text};
    m->text = t;
  }
  ms_text_free(t->text);
  t->text = copy;
  return MS_OK;
}

void ms_model_free_texts(ms_model *m) {
  for (ms_model_text *t = m->text, *next; t; t = next) {
    next = t->next;
    ms_text_free(t->text);
    ms_free(t);
  }
  m->text = NULL;
}

/* The files that go along: those of the folder `from`, but for what the model has texts of. */
static ms_status carry_files(const ms_model *m, const ms_folder *folder, const char *from) {
  for (const char *const *name = carried; *name; name++) {
    char *path;
    const ms_model_text *t = find_text(m, *name);
    if (t && *t->text) MS_TRY(ms_folder_put(folder, *name, t->text));
    if (t || !from) continue;
    MS_TRY(ms_text_format(&path, "%s/%s", from, *name));
    ms_status st = ms_path_kind(path) == 1 ? ms_folder_copy(folder, path, *name) : MS_OK;
    ms_text_free(path);
    MS_TRY(st);
  }
  return MS_OK;
}

/* What the first rank writes alone: all but the tensors. */
static ms_status write_rest(const ms_model *m, const ms_folder *folder, const char *carry,
                            int dtype, const plan *p) {
  char *text;
  MS_TRY(config_text(m, dtype, &text));
  ms_status st = ms_folder_put(folder, "config.json", text);
  ms_text_free(text);
  MS_TRY(st);
  MS_TRY(each_shard(folder, m, NULL, p, 0));
  if (p->shards > 1) MS_TRY(put_index(folder, m, p));
  if (!carry) carry = m->path;
  MS_TRY(ms_ends_write(m, folder, carry));
  return carry_files(m, folder, carry);
}

static ms_status prepare(const ms_model *m, int *dtype, int64_t shard_bytes, plan *p) {
  *p = (plan){0};
  if (*dtype == -1) *dtype = m->stored;
  MS_REQUIRE(*dtype == MS_F32 || *dtype == MS_BF16 || *dtype == MS_F16,
             "model: cannot be saved as dtype %d", *dtype);
  MS_REQUIRE(shard_bytes >= 0, "model: shards of %lld bytes", (long long)shard_bytes);
  return make_plan(m, *dtype, shard_bytes ? shard_bytes : DEFAULT_SHARD, p);
}

static void free_plan(plan *p) {
  ms_free(p->tensor);
  ms_free(p->shard);
}

ms_status ms_model_make_files(const ms_model *m, const ms_folder *folder, const char *carry,
                              int dtype, int64_t shard_bytes) {
  plan p;
  ms_status st = prepare(m, &dtype, shard_bytes, &p);
  if (st == MS_OK) st = write_rest(m, folder, carry, dtype, &p);
  free_plan(&p);
  return st;
}

ms_status ms_model_put(const ms_model *m, const ms_team *team, const ms_folder *folder, int dtype,
                       int64_t shard_bytes) {
  plan p;
  ms_status st = prepare(m, &dtype, shard_bytes, &p);
  if (st == MS_OK) st = each_shard(folder, m, team, &p, 1);
  free_plan(&p);
  return st;
}

/* Whether a file is one that ms_model_make_files may have written. */
static int is_ours(const char *name, size_t n) {
  static const char *const made[] = {"config.json", "generation_config.json", "model.safetensors",
                                     "model.safetensors.index.json", NULL};
  unsigned i, of;
  char copy[64], back[64];
  for (const char *const *list = made; *list; list++)
    if (strlen(*list) == n && !memcmp(*list, name, n)) return 1;
  for (const char *const *list = carried; *list; list++)
    if (strlen(*list) == n && !memcmp(*list, name, n)) return 1;
  if (n >= sizeof copy) return 0;
  snprintf(copy, sizeof copy, "%.*s", (int)n, name);
  if (sscanf(copy, "model-%5u-of-%5u.safetensors", &i, &of) != 2) return 0;
  snprintf(back, sizeof back, "model-%05u-of-%05u.safetensors", i, of);
  return !strcmp(copy, back);
}

/* The weights say who wrote them. */
static ms_status check_marker(const char *path, const char *name, size_t n) {
  char *file;
  ms_safetensors *f;
  MS_TRY(ms_text_format(&file, "%s/%.*s", path, (int)n, name));
  ms_status st = ms_safetensors_open(file, &f);
  if (st == MS_OK && !ms_safetensors_metadata(f, "moonstill"))
    st =
        MS_FAIL(MS_EINVAL, "%s: not overwritten: moonstill did not write %.*s", path, (int)n, name);
  ms_safetensors_close(f);
  ms_text_free(file);
  return st;
}

/* Only a folder that moonstill wrote, and in which nothing else has been put, may be replaced. */
ms_status ms_model_save_check(const char *path) {
  char *names;
  int kind = ms_path_kind(path), weights = 0;
  if (!kind) return MS_OK;
  if (kind != 2) return MS_FAIL(MS_EINVAL, "%s: not overwritten: it is no folder", path);
  MS_TRY(ms_dir_list(path, &names));
  ms_status st = MS_OK;
  for (char *name = names, *end; st == MS_OK && (end = strchr(name, '\n')); name = end + 1) {
    size_t n = (size_t)(end - name);
    if (!is_ours(name, n)) {
      st = MS_FAIL(MS_EINVAL, "%s: not overwritten: it holds '%.*s', which is no part of a model",
                   path, (int)n, name);
    } else if (n > 12 && !memcmp(end - 12, ".safetensors", 12)) {
      weights = 1;
      st = check_marker(path, name, n);
    }
  }
  if (st == MS_OK && *names && !weights)
    st = MS_FAIL(MS_EINVAL, "%s: not overwritten: it holds files but no weights", path);
  ms_text_free(names);
  return st;
}

ms_status ms_model_save(const ms_model *model, ms_group *same, const char *path, const char *carry,
                        int dtype, int64_t shard_bytes) {
  ms_folder folder;
  MS_REQUIRE(model && path, "model: no model or no path to save");
  ms_team team = {.same = same ? same : ms_group_self(), .parts = model->share.group};
  ms_status st = ms_weights_settle(model);
  if (st == MS_OK && !ms_team_rank(&team)) st = ms_model_save_check(path);
  MS_TRY(ms_together_begin(&team, st, path, &folder));
  if (!ms_team_rank(&team)) st = ms_model_make_files(model, &folder, carry, dtype, shard_bytes);
  st = ms_team_agree(&team, st);
  if (st == MS_OK) st = ms_model_put(model, &team, &folder, dtype, shard_bytes);
  return ms_together_end(&team, st, &folder, ms_model_save_check);
}

/* weights.c - from the safetensors of a folder into a model: which file holds which tensor, and
 * that names, shapes and dtypes are what config.json promises, before any memory is taken. */
#include <stdio.h>
#include <string.h>

#include "../base/guess.h"
#include "../base/json.h"
#include "../base/memory.h"
#include "../group/group.h"
#include "../io/safetensors.h"
#include "layout.h"

enum { MAX_SHARDS = 4096 };

typedef struct source {
  const char *folder;
  int32_t files;
  ms_safetensors **file;
  const ms_stored **stored;  /* [parameters]: where each comes from, and .. */
  const ms_safetensors **in; /* [parameters]: .. in which file */
  const ms_stored *head;     /* lm_head of a tied model that stores it as well as the embedding */
} source;

static void close_source(source *s) {
  for (int32_t i = 0; i < s->files; i++) ms_safetensors_close(s->file[i]);
  ms_free(s->file);
  ms_free(s->stored);
  ms_free(s->in);
}

/* ---- files ---- */

static ms_status add_file(source *s, const char *name) {
  char *path;
  MS_TRY(ms_text_format(&path, "%s/%s", s->folder, name));
  ms_status st = ms_safetensors_open(path, &s->file[s->files]);
  if (st == MS_OK) s->files++;
  ms_text_free(path);
  return st;
}

/* A name in an index must be that of a file beside it, and nothing that leads elsewhere. */
static int is_plain(const char *name) {
  size_t n = strlen(name);
  return n > 12 && n < 256 && !strchr(name, '/') && name[0] != '.' &&
         !strcmp(name + n - 12, ".safetensors");
}

static const ms_safetensors *file_named(const source *s, const char *name) {
  size_t n = strlen(s->folder) + 1;
  for (int32_t i = 0; i < s->files; i++)
    if (!strcmp(s->file[i]->path + n, name)) return s->file[i];
  return NULL;
}

static ms_status check_there(const source *s, const char *index, const char *name) {
  char *path;
  MS_TRY(ms_text_format(&path, "%s/%s", s->folder, name));
  ms_status st = MS_OK;
  if (!ms_path_kind(path))
    st = ms_file_explain(path, MS_FAIL(MS_EIO,
                                       "%s: names %s, which is not beside it: the download has not "
                                       "ended, or has left it out",
                                       index, name));
  ms_text_free(path);
  return st;
}

static ms_status add_shard(source *s, const char *index, const char *tensor, const json_t *value) {
  const char *name = json_string_value(value);
  if (!name || !is_plain(name))
    return MS_FAIL(MS_EIO, "%s: tensor '%s': no name of a .safetensors file beside it", index,
                   tensor);
  const ms_safetensors *f = file_named(s, name);
  if (!f) {
    if (s->files == MAX_SHARDS) return MS_FAIL(MS_EIO, "%s: more than %d files", index, MAX_SHARDS);
    MS_TRY(check_there(s, index, name));
    MS_TRY(add_file(s, name));
    f = s->file[s->files - 1];
  }
  if (!ms_safetensors_find(f, tensor))
    return MS_FAIL(MS_EIO, "%s: tensor '%s' is not in %s", index, tensor, name);
  return MS_OK;
}

/* What the shards hold beyond the index would be loaded by nobody, or twice. */
static ms_status check_index(const source *s, const char *index, const json_t *map) {
  for (int32_t i = 0; i < s->files; i++) {
    const ms_safetensors *f = s->file[i];
    for (int32_t k = 0; k < f->tensors; k++) {
      const char *where = json_string_value(json_object_get(map, f->tensor[k].name));
      if (!where || strcmp(f->path + strlen(s->folder) + 1, where))
        return MS_FAIL(MS_EIO, "%s: tensor '%s' (at byte %zu): the index %s%s", f->path,
                       f->tensor[k].name, f->tensor[k].offset, where ? "has it in " : "lacks it",
                       where ? where : "");
    }
  }
  return MS_OK;
}

static ms_status open_index(source *s, const char *index) {
  json_t *json, *value, *map;
  const char *tensor;
  MS_TRY(ms_json_read(index, MS_JSON_MAX_BYTES, &json));
  ms_status st = MS_OK;
  map = json_object_get(json, "weight_map");
  if (!json_is_object(map)) st = MS_FAIL(MS_EIO, "%s: no 'weight_map'", index);
  json_object_foreach(map, tensor, value) {
    if (st != MS_OK) break;
    st = add_shard(s, index, tensor, value);
  }
  if (st == MS_OK) st = check_index(s, index, map);
  json_decref(json);
  return st;
}

/* One file, or an index and its shards; with both, the one file, as transformers does. */
static ms_status open_files(source *s) {
  static const char one[] = "model.safetensors";
  char *path = NULL, *index = NULL;
  void *p;
  ms_status st;
  MS_TRY(ms_alloc(MAX_SHARDS * sizeof *s->file, "files of weights", &p));
  s->file = p;
  MS_TRY_OR(end, ms_text_format(&path, "%s/%s", s->folder, one));
  MS_TRY_OR(end, ms_text_format(&index, "%s/%s.index.json", s->folder, one));
  if (ms_path_kind(path))
    st = add_file(s, one);
  else if (ms_path_kind(index))
    st = open_index(s, index);
  else
    st = ms_folder_lacks(s->folder, one);
end:
  ms_text_free(path);
  ms_text_free(index);
  return st;
}

/* ---- matching ---- */

static const ms_stored *find(const source *s, const char *name, const ms_safetensors **in) {
  for (int32_t i = 0; i < s->files; i++) {
    const ms_stored *t = ms_safetensors_find(s->file[i], name);
    if (t) {
      *in = s->file[i];
      return t;
    }
  }
  return NULL;
}

static ms_status check_tensor(const ms_safetensors *f, const ms_stored *t, const ms_parameter *p) {
  char have[200], want[200];
  if (t->dtype < 0 || t->dtype > MS_F16)
    return MS_FAIL(MS_EUNSUPPORTED,
                   "%s: tensor '%s' (at byte %zu) is %s; weights are read from "
                   "F32, BF16 and F16",
                   f->path, t->name, t->offset, t->type);
  if (t->rank != p->rank || memcmp(t->shape, p->whole, (size_t)p->rank * sizeof *t->shape))
    return MS_FAIL(MS_EIO, "%s: tensor '%s' (at byte %zu) is %s, config.json makes it %s", f->path,
                   t->name, t->offset, ms_shape_text(t->rank, t->shape, have),
                   ms_shape_text(p->rank, p->whole, want));
  return MS_OK;
}

/* Whether two tensors of ids differ in what this rank reads of them. */
static int differ(const ms_model *m, const ms_stored *a, const ms_stored *b) {
  const ms_parameter *p = &m->parameter[0];
  size_t row = (size_t)p->whole[1] * ms_dtype_size(a->dtype);
  size_t from = (size_t)m->share.first_id * row;
  return memcmp((const char *)a->data + from, (const char *)b->data + from,
                (size_t)p->shape[0] * row) != 0;
}

/* A tied model may store its one matrix under either name, or under both with the same content. */
static ms_status match_tied(source *s, const ms_model *m) {
  const ms_safetensors *f;
  s->head = find(s, MS_HEAD_NAME, &f);
  if (!s->head) return MS_OK;
  MS_TRY(check_tensor(f, s->head, &m->parameter[0]));
  const ms_stored *e = s->stored[0];
  if (!e) {
    s->stored[0] = s->head;
    s->in[0] = f;
  } else if (e->dtype != s->head->dtype || differ(m, e, s->head)) {
    return MS_FAIL(MS_EIO,
                   "%s: tensor '%s' (at byte %zu) differs from '%s', but config.json ties "
                   "them",
                   f->path, MS_HEAD_NAME, s->head->offset, MS_EMBED_NAME);
  }
  return MS_OK;
}

static ms_status match(source *s, const ms_model *m) {
  void *p;
  MS_TRY(ms_alloc((size_t)m->parameters * sizeof *s->stored, "weights", &p));
  s->stored = p;
  MS_TRY(ms_alloc((size_t)m->parameters * sizeof *s->in, "weights", &p));
  s->in = p;
  for (int32_t i = 0; i < m->parameters; i++)
    s->stored[i] = find(s, m->parameter[i].name, &s->in[i]);
  if (m->config.tied) MS_TRY(match_tied(s, m));
  for (int32_t i = 0; i < m->parameters; i++) {
    if (!s->stored[i])
      return MS_FAIL(MS_EIO, "%s: tensor '%s' is missing", s->folder, m->parameter[i].name);
    MS_TRY(check_tensor(s->in[i], s->stored[i], &m->parameter[i]));
  }
  return MS_OK;
}

/* Buffers that old versions of transformers stored among the weights; they are computed. */
static int is_harmless(const char *name) {
  static const char *const ends[] = {".rotary_emb.inv_freq", ".rotary_emb.cos_cached",
                                     ".rotary_emb.sin_cached"};
  size_t n = strlen(name);
  for (int i = 0; i < 3; i++) {
    size_t k = strlen(ends[i]);
    if (n > k && !strcmp(name + n - k, ends[i])) return 1;
  }
  return 0;
}

static int is_used(const source *s, int32_t parameters, const ms_stored *t) {
  if (t == s->head) return 1;
  for (int32_t i = 0; i < parameters; i++)
    if (s->stored[i] == t) return 1;
  return 0;
}

/* A weight that nothing uses means that the model is not what config.json says. */
static ms_status check_extras(const source *s, const ms_model *m) {
  for (int32_t i = 0; i < s->files; i++)
    for (int32_t k = 0; k < s->file[i]->tensors; k++) {
      const ms_stored *t = &s->file[i]->tensor[k];
      if (is_harmless(t->name) || is_used(s, m->parameters, t)) continue;
      return MS_FAIL(MS_EIO,
                     "%s: tensor '%s' (at byte %zu): a %s model with this config.json has "
                     "none",
                     s->file[i]->path, t->name, t->offset,
                     json_string_value(json_object_get(m->config.json, "model_type")));
    }
  return MS_OK;
}

/* The dtype that all weights have; f32, which holds every stored value, when they differ. */
static int stored_dtype(const source *s, int32_t parameters) {
  for (int32_t i = 1; i < parameters; i++)
    if (s->stored[i]->dtype != s->stored[0]->dtype) return MS_F32;
  return s->stored[0]->dtype;
}

/* f16 is held as f32, and goes back to what it was unless training has moved it off f16's grid. */
static void hold_as_stored(ms_model *m, int dtype) {
  m->dtype = ms_layout_dtype(dtype);
  m->stored = m->train ? m->dtype : dtype;
}

/* ---- the whole ---- */

static ms_status read_config(const char *folder, ms_config *config) {
  char *path;
  json_t *json;
  MS_TRY(ms_text_format(&path, "%s/config.json", folder));
  ms_status st = ms_path_kind(path) ? ms_json_read(path, MS_CONFIG_MAX_BYTES, &json)
                                    : ms_folder_lacks(folder, "config.json");
  if (st == MS_OK) {
    st = ms_folder_explain(folder, ms_config_read(path, json, config));
    json_decref(json);
  }
  ms_text_free(path);
  return st;
}

ms_status ms_model_read(ms_model *m, int32_t i, const ms_safetensors *file,
                        const ms_stored *stored) {
  const ms_parameter *p = &m->parameter[i];
  ms_run run[MS_MAX_RUNS];
  int n = ms_share_runs(m, i, run);
  for (int k = 0; k < n; k++) {
    ms_rows rows = ms_run_rows(p, &run[k]);
    char *y = (char *)p->w + (size_t)ms_run_at(p, &run[k]) * ms_dtype_size(m->dtype);
    MS_TRY(ms_safetensors_read_rows(file, stored, &rows, m->dev, y, m->dtype));
  }
  return MS_OK;
}

static ms_status load(source *s, ms_model *m, const ms_model_options *options) {
  MS_TRY(open_files(s));
  MS_TRY(match(s, m));
  if (!options->head_only) MS_TRY(check_extras(s, m));
  if (options->dtype == -1) hold_as_stored(m, stored_dtype(s, m->parameters));
  MS_TRY(ms_layout_fill(m, options->frozen));
  for (int32_t i = 0; i < m->parameters; i++) MS_TRY(ms_model_read(m, i, s->in[i], s->stored[i]));
  return MS_OK;
}

ms_status ms_model_open(ms_device *dev, const char *path, const ms_model_options *options,
                        ms_model **out) {
  static const ms_model_options defaults = {.dtype = -1};
  source s = {.folder = path};
  ms_config config = {0};
  ms_model *m = NULL;
  ms_status st;
  *out = NULL;
  MS_REQUIRE(dev && path, "model: no device or no path");
  if (!options) options = &defaults;
  MS_TRY_OR(end, read_config(path, &config));
  MS_TRY_OR(end, ms_layout_new(dev, &config, options, &m));
  MS_TRY_OR(end, ms_text_copy(path, strlen(path), &m->path));
  st = load(&s, m, options);
end:
  if (options->tp) st = ms_group_agree(options->tp, st);
  if (st == MS_OK) *out = m;
  if (st != MS_OK) ms_model_free(m);
  close_source(&s);
  ms_config_clear(&config);
  return st;
}
